"""A `partial` of a trainable of Ray Tune, as text for the module from which a trial imports it.

The module has no local names of the searching file: `partial(fit, folder=os.path.abspath(args.data))` becomes
`partial(script.fit, folder=script.os.path.abspath('/data'))` there.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from trialplane.importing import flags, naming
from trialplane.job import arguments

SCRIPT = "script"  # name of the imported file in the module with its trainable


class Assignment(NamedTuple):
    """An assignment to a name.

    Attributes:
        block: Number of the block of statements that has it.
        line: Its line.
        value: Expression of the value.
    """

    block: int
    line: int
    value: ast.expr


_WITH_OWN_NAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def assignments(nodes: Iterable[ast.AST]) -> dict[str, list[Assignment]]:
    """Return the assignments in the blocks of some statements, such as a file or a function, by the assigned name."""
    by_name: dict[str, list[Assignment]] = {}
    for number, block in enumerate(naming.blocks(nodes)):
        for statement in block:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    by_name.setdefault(name, []).append(Assignment(number, statement.lineno, value))
    return by_name


def last_value(candidates: Sequence[Assignment], line: int) -> ast.expr | None:
    """Return the value that a name has in a line; None if it is not clear which of several it is.

    It is clear if there is one assignment, or if all of them are in the same block: then it is the last one before the line.
    """
    if len(candidates) == 1:
        return candidates[0].value
    earlier_values = [assignment.value for assignment in candidates if assignment.line < line]
    is_in_one_block = len({assignment.block for assignment in candidates}) == 1
    return earlier_values[-1] if earlier_values and is_in_one_block else None


class _UnclearValueError(Exception):
    """Raised for an expression whose value only a run of the file would show."""


class _LocalValue(NamedTuple):
    """The value of a local name.

    Attributes:
        expression: Expression of the value.
        scope: Scope of the names in it.
    """

    expression: ast.expr
    scope: _Scope


class _Scope:
    """The local names in a function, or in the statements below `if __name__ == "__main__"`.

    Args:
        statements: Body of the function, or these statements.
        changes: Names of dicts and lists that code changes in an unknown way.
        arguments: Expressions for the function's arguments, by name. None for one without a known expression.
        caller: Scope of the names in these expressions. None without arguments.
    """

    def __init__(
        self,
        statements: Sequence[ast.stmt],
        changes: Collection[str],
        arguments: Mapping[str, ast.expr | None],
        caller: _Scope | None = None,
    ) -> None:
        body = ast.Module([*statements], type_ignores=[])
        own_nodes, all_nodes = _own_nodes(body), [*ast.walk(body)]
        self._arguments, self._caller = arguments, caller
        self._assignments = assignments(node for node in own_nodes if not isinstance(node, _WITH_OWN_NAMES))
        self._changed_objects = _changed_objects(all_nodes)
        # A name that also has a value in another way than by `name = value`.
        self._unclear_names = _names_without_assignment(own_nodes) | ({*changes, *arguments} & self._assignments.keys())
        declarations = [node.names for node in all_nodes if isinstance(node, (ast.Global, ast.Nonlocal))]
        self._unclear_names.update(*declarations)

    def find(self, name: ast.Name) -> _LocalValue | None:
        """Return the value of a name; None if the name is not local. Names that only stand for other names are followed.

        Raises:
            _UnclearValueError: The name is local, but its value is not clear.
        """
        is_local = name.id in {*self._assignments, *self._arguments, *self._unclear_names}
        if not is_local:
            return None
        if name.id in self._arguments:
            value, scope = self._arguments[name.id], self._caller or self
        else:
            value, scope = last_value(self._assignments.get(name.id, ()), name.lineno), self
        # No method changes a constant. Changes of a dict or list are in it by `folding`, or it is in `changes`.
        is_changed = name.id in self._changed_objects and not isinstance(value, (ast.Constant, ast.Dict, ast.List))
        if value is None or name.id in self._unclear_names or is_changed:
            raise _UnclearValueError
        inner = scope.find(value) if isinstance(value, ast.Name) else None
        return inner or _LocalValue(value, scope)


def _own_nodes(body: ast.Module) -> list[ast.AST]:
    """Return the nodes of a function's body, without those inside of the functions and classes in it."""
    nodes: list[ast.AST] = [body]
    for node in nodes:  # the list grows while it is read
        if not isinstance(node, _WITH_OWN_NAMES):
            nodes += ast.iter_child_nodes(node)
    return nodes


def _names_without_assignment(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that get values in other ways than by `name = value`: `for k in …`, `k += 1`, `import k`."""
    plain_targets = {node.targets[0] for node in nodes if isinstance(node, ast.Assign) and len(node.targets) == 1}
    names: set[str | None] = set()
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if node not in plain_targets:
                names.add(name)
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):  # an argument of a lambda
                names.add(name)
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                names.add(name)
            case ast.alias(name=name, asname=alias):  # import numpy.random
                names.add(alias or name.partition(".")[0])
    return {name for name in names if name}


def _changed_objects(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names whose objects code may change: `k.width = 4`, `k["width"] = 4`, `k.load()`."""
    names = set()
    for node in nodes:
        match node:
            case ast.Attribute(value=target, ctx=ast.Store() | ast.Del()) | ast.Call(func=ast.Attribute(value=target)):
                names.add(_root_name(target))
            case ast.Subscript(value=target, ctx=ast.Store() | ast.Del()):
                names.add(_root_name(target))
    return names


def _root_name(node: ast.expr) -> str:
    """Return the name at the beginning of an expression: `k` for `k.sizes["width"]`. "" if it begins with none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


class _Replacement(ast.NodeTransformer):
    """Replaces the names in an expression, so that it has the same value in another module.

    Args:
        scope: Scope of the local names, which are replaced by their values.
        global_names: Names of the file that have the same value in a trial, which become attributes of `SCRIPT`.
        flag_defaults: Defaults of `--x`, which replace `args.x`, by `x`.
    """

    def __init__(self, scope: _Scope, global_names: Collection[str], flag_defaults: Mapping[str, ast.expr]) -> None:
        self._scope, self._global_names, self._flag_defaults = scope, global_names, flag_defaults

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Return the expression in place of a name.

        Raises:
            _UnclearValueError: It is not clear which value the name has.
        """
        if (local_value := self._scope.find(node)) is not None:
            inner = _Replacement(local_value.scope, self._global_names, self._flag_defaults)
            return inner.replaced(local_value.expression)
        if node.id in self._global_names:
            return ast.Attribute(ast.Name(SCRIPT), node.id)
        if node.id not in dir(builtins):
            raise _UnclearValueError
        return node

    def replaced(self, expression: ast.expr) -> ast.expr:
        """Return a copy of an expression without names of the file."""
        copied: ast.expr = self.visit(copy.deepcopy(expression))
        return copied

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Return the default of the flag that `args.x` reads, if `args` has parsed arguments."""
        if node.attr in self._flag_defaults and isinstance(node.value, ast.Name):
            match self._scope.find(node.value):
                case _LocalValue(expression=ast.Call(func=ast.Attribute(attr="parse_args"))):
                    return self.replaced(self._flag_defaults[node.attr])
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Refuse a call that parses the command line, which is another one in a trial."""
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("parse_args", "parse_known_args"):
            raise _UnclearValueError
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Refuse a lambda with arguments, which are names of its own."""
        raise _UnclearValueError


def text(call: ast.Call, tree: ast.Module, module_names: Collection[str], changes: Collection[str]) -> str:
    """Return the text of a `partial` for a module that imports the file as `script`.

    "" if only a run of the file would show the value of a name in it, as for a call in a class or in an inner function.

    Args:
        call: The call, which may also be one of Ray's `with_parameters`.
        tree: Tree of the file.
        module_names: Names that the file defines at its top level.
        changes: Names of dicts and lists that code of the file changes in an unknown way.
    """
    scope = _scope(call, tree, module_names, changes)
    if scope is None:
        return ""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    argument_defaults = dict(flags.defaults(calls))  # of the file's parser, in place of `args.data`
    replacement = _Replacement(scope, {*module_names} - _names_set_by_run(tree), argument_defaults)
    try:
        partial_arguments = [replacement.replaced(argument) for argument in call.args]
        keywords = [ast.keyword(word.arg, replacement.replaced(word.value)) for word in call.keywords]
    except (_UnclearValueError, RecursionError):  # the latter of `a = b; b = a`
        return ""
    return ast.unparse(ast.Call(ast.Name("partial"), partial_arguments, keywords))


def _scope(call: ast.Call, tree: ast.Module, module_names: Collection[str], changes: Collection[str]) -> _Scope | None:
    """Return the scope of the local names in a call, see `text`; None in a class or an inner function."""
    scope = _Scope(_main_statements(tree), {*changes, *module_names}, arguments={})
    match [node for node in ast.walk(tree) if isinstance(node, _WITH_OWN_NAMES) and call in ast.walk(node)]:
        case []:  # at the top level, or below `if __name__ == "__main__"`
            return scope
        case [ast.FunctionDef() as function] if function in tree.body:
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
            names = [node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)]
            expressions = dict.fromkeys(names) | naming.argument_values(function, calls)
            return _Scope(function.body, changes, expressions, caller=scope)
    return None


def _main_statements(tree: ast.Module) -> list[ast.stmt]:
    """Return the statements `if __name__ == "__main__"` of a file."""
    return [statement for statement in tree.body if arguments.is_main(statement)]


def _names_set_by_run(tree: ast.Module) -> set[str]:
    """Return the names that a run of the file sets, and its import does not, or that a function may set.

    A trial only imports the file, so they have other values there, or none.
    """
    nodes = [node for statement in _main_statements(tree) for node in ast.walk(statement)]
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return names.union(*(node.names for node in ast.walk(tree) if isinstance(node, ast.Global)))
