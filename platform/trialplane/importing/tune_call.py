"""The values in a call to Ray Tune as data, from the text of a Python file.

They are like those of a YAML file: each call in it is a mapping with the function's name under "()" and the
arguments under their names. A name is replaced by the value that the file assigns to it, an argument of the function around
the call by its default, and `args.x` by the default of `--x`. So a `Source` can note each value that was not read.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.errors import Issue, Place, SpecError
from trialplane.importing import constants, flags, naming
from trialplane.importing.source import CALL
from trialplane.job import arguments

# Limit of the values in the data of a call. Each use of a name repeats its value, so they can be more than in the file.
_MOST_NODES = 50_000
_MAX_DEPTH = 50
_LONGEST_TEXT = 10_000  # characters of a `partial` in the module with the trainable
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_RANDOM = re.compile(r"(?:np\.random|numpy\.random|random)\.(?:randint|uniform|choice)")  # functions that are called
_MOST_DRAWN = 100  # choices for a random number, and the largest exponent
BINDERS = ("partial", "with_parameters")  # functions that bind arguments to a trainable
SCRIPT = "script"  # name of the imported file in the module with its trainable
# Function → names of its arguments, in their order.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "Tuner": ("trainable",),
    "run": ("run_or_experiment",),
    "with_resources": ("trainable", "resources"),
    **dict.fromkeys(
        ("TorchTrainer", "TensorflowTrainer", "DataParallelTrainer", "XGBoostTrainer", "LightGBMTrainer"),
        ("train_loop_per_worker",),
    ),
    "ConcurrencyLimiter": ("searcher", "max_concurrent"),
    "choice": ("categories",),
    "grid_search": ("values",),
    "randn": ("mean", "sd"),
    "qrandn": ("mean", "sd", "q"),
    **{f"q{name}": ("lower", "upper", "q", "base") for name in ("uniform", "loguniform", "randint", "lograndint")},
    **dict.fromkeys(("uniform", "loguniform", "randint", "lograndint"), ("lower", "upper", "base")),
}


_ARGUMENT_BLOCK = -1


class _Assignment(NamedTuple):
    """An assignment to a name.

    Attributes:
        block: Number of the block of statements that has it; `_ARGUMENT_BLOCK` for an argument of a function.
        line: Its line.
        value: Expression of the value.
        target: Node of the name.
    """

    block: int
    line: int
    value: ast.expr
    target: ast.expr | ast.stmt


class _Scope:
    """The file, or a function or class in it, and the names that it binds.

    Args:
        node: Its node.
        parent: Scope around it. None for the file.

    Attributes:
        node: Its node.
        parent: Scope around it.
        bindings: Name → its assignments; None in place of one by other code, such as a loop, `+=`, `import` or an argument.
    """

    def __init__(self, node: ast.AST, parent: _Scope | None) -> None:
        self.node = node
        self.bindings: dict[str, list[_Assignment | None]] = {}
        self.parent = parent

    def bind(self, name: str | None, assignment: _Assignment | None = None) -> None:
        """Add an assignment to a name, if there is a name."""
        if name:
            self.bindings.setdefault(name, []).append(assignment)

    def owner(self, name: str) -> _Scope | None:
        """Return the innermost scope that binds a name. None if no scope does."""
        scope: _Scope | None = self
        while scope is not None and name not in scope.bindings:
            scope = scope.parent
        return scope


class _Assumed(NamedTuple):
    """A value of the call that is one of two, because only a run would show which of them is used.

    Attributes:
        field: Its path.
        text: Its text.
    """

    field: Place
    text: str


class _Changed(NamedTuple):
    """A dict or list in the call that other code changes.

    Attributes:
        field: Its path.
        remark: Remark for the user.
    """

    field: Place
    remark: str


class Reader:
    """Reader of a call as data, with the values of names in it.

    Args:
        tree: Tree of the file.
        file_name: Name of the file in messages.
        call: The call. Names in it may be arguments of the function around it.
        changes: Names of dicts and lists that other code changes → line of that code.

    Attributes:
        lines: 1-based line of each value, by its path.
        changed: Dicts and lists in the data that other code changes.
        assumed: Values that are each one of two.
    """

    def __init__(self, tree: ast.Module, file_name: str, call: ast.Call, changes: Mapping[str, int]) -> None:
        self.lines: dict[Place, int] = {}
        self.changed: list[_Changed] = []
        self.assumed: list[_Assumed] = []
        self._file_name = file_name
        self._changes = changes
        self._count = 0  # of values so far
        self._work = constants.Work()
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._flags = dict(flags.defaults(calls))  # `x` of `args.x` → the default
        self._assignments = _assignments(tree)
        self._module_names = module_names(tree)
        self._texts: dict[int, str] = {}  # id of an expression → its text
        self._scopes = _scopes(tree)
        self._mutations = _mutations(tree, self._scopes)
        self._rebound_names = _rebound_names(tree)
        self._augmented = naming.augmented(tree) - set(changes)  # a changed list is read, with a remark
        self._function: ast.FunctionDef | None = None  # the one around the call
        self._argument_values: dict[str, ast.expr] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and any(descendant is call for descendant in ast.walk(node)):
                self._function, self._argument_values = node, naming.argument_values(node, calls)
                for name, value in self._argument_values.items():
                    argument = _Assignment(block=_ARGUMENT_BLOCK, line=node.lineno, value=value, target=node)
                    self._assignments.setdefault(name, [argument])

    def data(self, node: ast.expr, field: Place, depth: int = 0) -> Any:
        """Return the value of an expression as data. One that only a run would show becomes a mapping with its text.

        Args:
            node: The expression.
            field: Path of the value in the data.
            depth: Number of expressions around it.

        Raises:
            SpecError: The data have too many values, or are nested too deeply.
        """
        self.lines.setdefault(field, node.lineno)
        self._count += 1
        if self._count > _MOST_NODES or depth > _MAX_DEPTH:
            reason = f"has more than {_MOST_NODES:,} values, or is nested more than {_MAX_DEPTH} levels deep"
            raise SpecError([Issue(("file",), reason, source=self._file_name, line=node.lineno)])
        # Names and flags.
        if isinstance(node, ast.Name) and (value := self._assigned_value(node)) is not None:
            if node.id in self._changes:
                self.changed.append(_Changed(field, f"{node.id} is changed in line {self._changes[node.id]}"))
            return self.data(value, field, depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in self._flags:  # args.x
            return self.data(self._flags[node.attr], field, depth + 1)
        # Values in the text.
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.data(element, (*field, index), depth + 1) for index, element in enumerate(node.elts)]
        if isinstance(node, ast.Dict):
            keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
            if len(keys) < len(node.keys):  # `**unknown`, or a key that is computed
                return _unknown_value(node)
            pairs = zip(keys, node.values, strict=True)
            return {key: self.data(value, (*field, key), depth + 1) for key, value in pairs}
        # Expressions that stand for other values.
        if isinstance(node, ast.IfExp):
            is_true = self._truth(node.test, field, depth)
            if is_true is None:  # the value after `else` is used
                self.assumed.append(_Assumed(field, errors.shortened(ast.unparse(node.orelse), 60)))
            return self.data(node.body if is_true else node.orelse, field, depth + 1)
        if isinstance(node, ast.Call) and not constants.is_constant_call(node, self._module_names):
            return self._call_data(node, field, depth)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return _unknown_value(node)
        evaluator = constants.Evaluator(lambda inner: self._constant(inner, field, depth), self._work, self._module_names)
        try:
            return evaluator.value(node)
        except constants.NotConstant:
            return _unknown_value(node)

    def _constant(self, node: ast.expr, field: Place, depth: int) -> Any:
        """Return the value of a name or another expression in a constant expression, without calls of unknown functions.

        Raises:
            constants.NotConstant: Only a run of the file would show it.
        """
        is_readable = isinstance(node, (ast.Name, ast.Attribute))
        if not is_readable or is_drawn(value := self.data(node, field, depth + 1)):
            raise constants.NotConstant
        return value

    def _call_data(self, node: ast.Call, field: Place, depth: int) -> Any:
        """Return a call as a mapping with the function's name and the arguments, and one of `partial` with its text.

        A call of `sample_from` becomes that of the function of Ray that draws the same values, if there is one.
        """
        function = naming.last(node.func)
        if function in BINDERS and node.args:
            trainable = self.data(node.args[0], (*field, "function"), depth + 1)
            return {CALL: function, "function": trainable, "text": self._bound_text(node)}
        if function == "sample_from" and node.args and isinstance(node.args[0], ast.Lambda):
            domain = self._sampled_domain(node.args[0].body, field, depth)
            if domain is not None:
                return domain
        if any(word.arg is None for word in node.keywords):  # `**unknown`
            return _unknown_value(node)
        # Arguments without a name here are those of a function that is not known, or too many.
        names = [*_ARGUMENTS.get(function, ()), *(f"argument {index + 1}" for index in range(len(node.args)))]
        arguments = [*zip(names, node.args, strict=False)]
        arguments += [(word.arg, word.value) for word in node.keywords if word.arg]
        return {CALL: function, **{key: self.data(value, (*field, key), depth + 1) for key, value in arguments}}

    def _sampled_domain(self, body: ast.expr, field: Place, depth: int) -> dict[str, Any] | None:
        """Return the domain of an expression with one random number, such as `2 ** np.random.randint(2, 9)`.

        It is in the form of a call of `tune.choice`, `uniform` or `loguniform`. None for any other expression.
        """
        calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
        random_calls = [call for call in calls if _RANDOM.fullmatch(naming.dotted(call.func))]
        if len(random_calls) != 1:
            return None
        call, function = random_calls[0], naming.dotted(random_calls[0].func)
        call_arguments = [self.data(argument, field, depth + 1) for argument in call.args]
        if call.keywords:  # `high`, or the `size` of an array
            return None
        if function.endswith(".uniform"):
            return self._continuous_domain(body, call, call_arguments, field, depth)
        values = _drawn_values(function, call_arguments)
        if values is None:
            return None
        categories = []
        for value in values:  # the expression's value for each value of the random number
            evaluator = constants.Evaluator(
                lambda inner, value=value: value if inner is call else self._constant(inner, field, depth),  # type: ignore[misc]
                self._work,
                self._module_names,
            )
            try:
                categories.append(evaluator.value(body))
            except constants.NotConstant:
                return None
        return {CALL: "choice", "categories": categories}

    def _continuous_domain(
        self, body: ast.expr, call: ast.Call, bounds: Sequence[Any], field: Place, depth: int
    ) -> dict[str, Any] | None:
        """Return the domain of `uniform(low, high)`, or of a power of a constant base with it; None for other expressions.

        Args:
            body: The expression.
            call: Call of `uniform` in it.
            bounds: Values of the call's arguments.
            field: Path of the expression in the data.
            depth: Number of expressions around it.
        """
        if len(bounds) != 2 or not all(type(bound) in (int, float) for bound in bounds):
            return None
        low, high = bounds
        if body is call:
            return {CALL: "uniform", "lower": low, "upper": high}
        if not isinstance(body, ast.BinOp) or not isinstance(body.op, ast.Pow) or body.right is not call:
            return None
        base = self.data(body.left, field, depth + 1)
        if type(base) not in (int, float) or base <= 1 or max(abs(low), abs(high)) >= _MOST_DRAWN:
            return None
        return {CALL: "loguniform", "lower": base**low, "upper": base**high}

    def _bound_text(self, node: ast.Call) -> str:
        """Return the text of a call that binds arguments to a function, as one of `partial`; "" if that is not possible."""
        texts = [self._text(argument) for argument in node.args]
        keyword_texts = [self._text(word.value) for word in node.keywords]
        if not all([*texts, *keyword_texts]):
            return ""
        prefixes = [f"{word.arg}=" if word.arg else "**" for word in node.keywords]
        texts += [prefix + text for prefix, text in zip(prefixes, keyword_texts, strict=True)]
        return f"partial({', '.join(texts)})"

    def _text(self, node: ast.expr, depth: int = 0) -> str:
        """Return the text of an expression for the module with the trainable, which imports the file as `script`.

        Names at the file's top level become attributes of `script`, such as `script.model`. Local names are replaced by the
        expressions that are assigned to them, and `args.x` by the default of `--x`. "" if that is not possible for each of
        them, or if the text is too long.
        """
        if id(node) not in self._texts:
            self._texts[id(node)] = ""  # of an expression that contains itself
            self._texts[id(node)] = self._new_text(node, depth)
        return self._texts[id(node)]

    def _new_text(self, node: ast.expr, depth: int) -> str:
        """Return the text of an expression, as `_text` does, without looking it up in the texts so far."""
        texts: dict[str, str] = {}  # name, or dotted name of a flag → text in its place
        scope_texts: dict[tuple[int, str], str] = {}  # id of the scope and name → text; a lambda has a scope of its own
        length = 0  # of the texts, with repetitions
        todo: list[ast.AST] = [node]
        while todo:
            part = todo.pop()
            if isinstance(part, ast.Attribute) and self._is_flag(part):
                name, text = naming.dotted(part), self._text(self._flags[part.attr], depth + 1)
            elif isinstance(part, ast.Name):
                name, key = part.id, (id(self._scopes[id(part)]), part.id)
                if key not in scope_texts:
                    scope_texts[key] = self._name_text(part, depth)
                text = scope_texts[key]
            else:
                todo += ast.iter_child_nodes(part)
                continue
            texts[name] = text
            length += len(text)
            if not text or length > _LONGEST_TEXT:
                return ""
        # A trial has another command line, so nothing may parse it there.
        parses_arguments = any(
            isinstance(part, ast.Attribute) and part.attr in ("parse_args", "parse_known_args") for part in ast.walk(node)
        )
        if depth > _MAX_DEPTH or isinstance(node, ast.Starred) or parses_arguments:
            return ""
        expressions = {name: ast.parse(text, mode="eval").body for name, text in texts.items()}
        text = ast.unparse(_Substitution(expressions).visit(copy.deepcopy(node)))
        return text if len(text) <= _LONGEST_TEXT else ""

    def _name_text(self, name: ast.Name, depth: int) -> str:
        """Return the text in place of a name. "" if it is not clear which value it has."""
        scope = self._scopes[id(name)].owner(name.id)
        if scope is None:  # the file binds no such name
            return name.id if name.id in dir(builtins) else ""
        is_global = isinstance(scope.node, ast.Module) and name.id in self._module_names
        if is_global and name.id not in self._rebound_names and isinstance(name.ctx, ast.Load):
            return f"{SCRIPT}.{name.id}"
        value = None if depth > _MAX_DEPTH else self._local_value(name)
        return self._text(value, depth + 1) if value is not None and name.id not in self._changes else ""

    def _local_value(self, name: ast.Name) -> ast.expr | None:
        """Return the expression that is assigned to a local name; None if other code may change its value.

        It is the only one, or the last one before the name if all of them are in the same block of the name's function. A
        trial evaluates the expression, so unlike `_assigned_value` this obeys Python's scopes, and no code may change the
        object.
        """
        scope = self._scopes[id(name)].owner(name.id)
        if scope is None or isinstance(scope.node, ast.ClassDef):
            return None
        value = self._bound_value(name, scope)
        if value is None:
            return None
        mutations = self._mutations.get((id(scope), name.id), set())
        is_dict = isinstance(value, ast.Dict)  # `folding` writes changed items into a dict, or it is in `self._changes`
        if "attribute" in mutations or ("item" in mutations and not is_dict):
            return None
        # A method may change an object that a call has created.
        is_created_by_call = any(isinstance(descendant, ast.Call) for descendant in ast.walk(value))
        return None if "method" in mutations and is_created_by_call else value

    def _bound_value(self, name: ast.Name, scope: _Scope) -> ast.expr | None:
        """Return the expression that a scope binds to a name last before it; None if that is not clear.

        See `_local_value`.
        """
        bindings = scope.bindings[name.id]
        if scope.node is self._function and bindings == [None]:
            return self._argument_values.get(name.id)  # None if the name is not that of an argument
        assignments = [binding for binding in bindings if binding is not None]
        if len(assignments) < len(bindings):  # other code, such as a loop, binds it
            return None
        if len(assignments) == 1:
            return assignments[0].value
        is_in_one_block = len({assignment.block for assignment in assignments}) == 1
        if not is_in_one_block or scope is not self._scopes[id(name)]:
            return None
        earlier = [assignment for assignment in assignments if assignment.line < name.lineno]
        last = max(earlier, key=lambda assignment: (assignment.line, assignment.target.col_offset), default=None)
        return last.value if last else None

    def _is_flag(self, node: ast.Attribute) -> bool:
        """Return whether an expression is `args.x`, with parsed arguments and a flag that has a default."""
        if node.attr not in self._flags or not isinstance(node.value, ast.Name):
            return False
        value: ast.expr | None = node.value
        for _ in range(_MAX_DEPTH):  # args = options; options = parser.parse_args()
            if not isinstance(value, ast.Name):
                break
            value = self._local_value(value)
        return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "parse_args"

    def _assigned_value(self, name: ast.Name) -> ast.expr | None:
        """Return the expression that is assigned to a name; None if there is none, or if it is not clear which one is used.

        It is the only one in the whole file, or the last one before the name if all of them are in the same block. The user
        sees the value in job.yaml, so functions with local names of the same name are not distinguished.
        """
        assignments = self._assignments.get(name.id, []) if name.id not in self._augmented else []
        if len(assignments) == 1:
            return assignments[0].value
        earlier_values = [assignment.value for assignment in assignments if assignment.line < name.lineno]
        is_in_one_block = len({assignment.block for assignment in assignments}) == 1
        return earlier_values[-1] if earlier_values and is_in_one_block else None

    def _truth(self, test: ast.expr, field: Place, depth: int) -> bool | None:
        """Return whether the test of a conditional expression is true; None if only a run would show it."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._truth(test.operand, field, depth)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
            first, second = (self.data(node, field, depth + 1) for node in (test.left, *test.comparators))
            is_known = not isinstance(first, (dict, list)) and not isinstance(second, (dict, list))
            return (first == second) == isinstance(test.ops[0], ast.Eq) if is_known else None
        value = self.data(test, field, depth + 1)
        return None if isinstance(value, dict) else bool(value)


class _Substitution(ast.NodeTransformer):
    """Replaces names and dotted names in an expression by other expressions.

    Args:
        expressions: Name → the expression in its place.
    """

    def __init__(self, expressions: Mapping[str, ast.expr]) -> None:
        self._expressions = expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the expression in place of a name."""
        return self._expressions.get(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Return the expression in place of a dotted name, such as `args.x`, or of the names in another attribute."""
        return self._expressions.get(naming.dotted(node)) or self.generic_visit(node)


def _drawn_values(function: str, call_arguments: Sequence[Any]) -> Sequence[Any] | None:
    """Return the values among which `choice` or `randint` draws; None if they cannot be read, or are too many.

    Args:
        function: Dotted name of the function, such as `np.random.randint`.
        call_arguments: Values of its arguments.
    """
    if function.endswith(".choice"):
        return call_arguments[0] if len(call_arguments) == 1 and isinstance(call_arguments[0], list) else None
    if len(call_arguments) not in (1, 2) or not all(type(bound) is int for bound in call_arguments):
        return None
    low, high = call_arguments if len(call_arguments) == 2 else (0, call_arguments[0])
    if function.startswith("random."):  # the standard library includes the upper bound, and NumPy does not
        high += 1
    return range(low, high) if low < high <= low + _MOST_DRAWN else None


def _scopes(tree: ast.Module) -> dict[int, _Scope]:
    """Return the scope in which each name of a file is used, by the id of the name's node."""
    by_target: dict[int, _Assignment] = {}  # id of an assignment's target → the assignment
    for assignments in _assignments(tree).values():
        by_target |= {id(assignment.target): assignment for assignment in assignments}
    scopes: dict[int, _Scope] = {}
    todo: list[tuple[ast.AST, _Scope]] = [(tree, _Scope(tree, parent=None))]
    while todo:
        node, scope = todo.pop()
        children = [*ast.iter_child_nodes(node)]
        if isinstance(node, ast.Name):
            scopes[id(node)] = scope
            if not isinstance(node.ctx, ast.Load):
                scope.bind(node.id, by_target.get(id(node)))
        elif isinstance(node, ast.arg):
            scope.bind(node.arg)
        elif isinstance(node, ast.alias):  # import numpy.random
            scope.bind((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):  # except … as, case … as, case [*rest]
            scope.bind(node.name)
        elif isinstance(node, ast.MatchMapping):  # case {**rest}
            scope.bind(node.rest)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            outer: _Scope | None = scope
            while outer is not None:  # in doubt, a name of each scope around it
                for name in node.names:
                    outer.bind(name)
                outer = outer.parent
        elif isinstance(node, (*DEFINITIONS, ast.Lambda)):
            scope.bind(getattr(node, "name", None))
            if not isinstance(node, ast.ClassDef):
                children.remove(node.args)
                children += ast.iter_child_nodes(node.args)
            body = set(node.body) if isinstance(node.body, list) else {node.body}
            inner_scope = _Scope(node, parent=scope)
            # Only its body and the names of its arguments are inside; defaults and decorators are evaluated outside.
            todo += [(child, inner_scope) for child in children if child in body or isinstance(child, ast.arg)]
            children = [child for child in children if child not in body and not isinstance(child, ast.arg)]
        todo += [(child, scope) for child in children]
    return scopes


def _mutations(tree: ast.Module, scopes: Mapping[int, _Scope]) -> dict[tuple[int, str], set[str]]:
    """Return how code of a file may change the objects of names.

    Args:
        tree: Tree of the file.
        scopes: Scope of each name in it, by the id of the name's node.

    Returns:
        Id of the scope that binds a name, and the name → "attribute" if code sets an attribute of its object, "item" if it
        sets an item, "method" if it calls a method.
    """
    mutations: dict[tuple[int, str], set[str]] = {}
    for node in ast.walk(tree):
        target: ast.expr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            mutation, target = "method", node.func
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            mutation, target = "attribute", node
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            mutation, target = "item", node
        else:
            continue
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
        if isinstance(target, ast.Name) and (scope := scopes[id(target)].owner(target.id)):
            mutations.setdefault((id(scope), target.id), set()).add(mutation)
    return mutations


def _rebound_names(tree: ast.Module) -> set[str]:
    """Return the names at the top level of a file that may have another value in a trial, which only imports the file."""
    nodes = [node for statement in tree.body if arguments.is_main(statement) for node in ast.walk(statement)]
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return names.union(*(node.names for node in ast.walk(tree) if isinstance(node, ast.Global)))


def module_names(tree: ast.Module) -> set[str]:
    """Return the names that a file defines at its top level."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _assignments(tree: ast.Module) -> dict[str, list[_Assignment]]:
    """Return the assignments in a file by the name to which they assign."""
    assignments: dict[str, list[_Assignment]] = {}
    blocks = [getattr(node, attribute, None) for node in ast.walk(tree) for attribute in ("body", "orelse", "finalbody")]
    for number, block in enumerate(blocks):
        for node in block if isinstance(block, list) else ():
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                target = node.targets[0]
                assignment = _Assignment(block=number, line=node.lineno, value=node.value, target=target)
                assignments.setdefault(target.id, []).append(assignment)
    return assignments


def _unknown_value(node: ast.expr) -> dict[str, Any]:
    """Return the mapping for an expression whose value only a run would show: a call without a name, and its text."""
    return {CALL: "", "text": ast.unparse(node)[:200]}


def is_drawn(value: Any) -> bool:
    """Return whether a value is a call, such as `tune.uniform(0, 1)`, or contains one."""
    if isinstance(value, dict):
        return CALL in value or any(map(is_drawn, value.values()))
    return isinstance(value, list) and any(map(is_drawn, value))
