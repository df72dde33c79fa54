"""The values in a call to Ray Tune as data, from the text of a Python file.

They are like those of a YAML file: each call in it is a mapping with the function's name under "()" and the
arguments under their names. A name is replaced by the value that the file assigns to it, an argument of the function around
the call by its default, and `args.x` by the default of `--x`. So a `Source` can note each value that was not read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.errors import FieldPath, Issue, SpecError
from trialplane.importing import constants, flags, naming, tune_partial
from trialplane.importing.source import CALL

# Limit of the values in the data of a call. Each use of a name repeats its value, so they can be more than in the file.
_MOST_NODES = 50_000
_RANDOM = re.compile(r"(?:np\.random|numpy\.random|random)\.(?:randint|uniform|choice)")  # functions that are called
_MOST_DRAWN = 100  # choices for a random number
BINDERS = ("partial", "with_parameters")  # functions that bind arguments to a trainable
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


class Remark(NamedTuple):
    """A remark for the user on a value of the call.

    Attributes:
        field: Path of the value.
        text: The remark.
    """

    field: FieldPath
    text: str


class Reader:
    """Reader of a call as data, with the values of names in it.

    Args:
        tree: Tree of the file.
        file_name: Name of the file in messages.
        call: The call. Names in it may be arguments of the function around it.
        changes: Names of dicts and lists that other code changes → line of that code.

    Attributes:
        lines: 1-based line of each value, by its path.
        remarks: Remarks on values of which only a run would show which they are.
    """

    def __init__(self, tree: ast.Module, file_name: str, call: ast.Call, changes: Mapping[str, int]) -> None:
        self.lines: dict[FieldPath, int] = {}
        self.remarks: list[Remark] = []
        self._file_name, self._tree, self._call = file_name, tree, call
        self._changes = changes
        self._count = 0  # of values so far
        self._work = constants.Work()
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._flags = dict(flags.defaults(calls))  # `x` of `args.x` → the default
        self._module_names = module_names(tree)
        self._assignments = tune_partial.assignments(ast.walk(tree))
        for node in tree.body:  # the arguments of the function around the call, which are in no block
            if isinstance(node, ast.FunctionDef) and call in ast.walk(node):
                for name, value in naming.argument_values(node, calls).items():
                    argument = tune_partial.Assignment(block=-1, line=node.lineno, value=value)
                    self._assignments.setdefault(name, [argument])
        for name in naming.augmented(tree) - set(changes):  # n += 1; a changed list is read, with a remark
            self._assignments.pop(name, None)

    def read(self) -> dict[str, Any]:
        """Return the call as data.

        Raises:
            SpecError: The data have too many values, or are nested too deeply.
        """
        try:
            data: dict[str, Any] = self._call_data(self._call, field=())
        except RecursionError:  # such as of `a = b; b = a`
            raise self._too_large() from None
        return data

    def _too_large(self) -> SpecError:
        """Return the error of a call with too many values."""
        reason = f"has more than {_MOST_NODES:,} values, or is nested too deeply"
        return SpecError([Issue(("file",), reason, source=self._file_name, line=self._call.lineno)])

    def _data(self, node: ast.expr, field: FieldPath) -> Any:
        """Return the value of an expression as data. One that only a run would show becomes a mapping with its text."""
        self.lines.setdefault(field, node.lineno)
        self._count += 1
        if self._count > _MOST_NODES:
            raise self._too_large()
        match node:
            case ast.Name(id=name) if (value := self._assigned_value(node)) is not None:
                if name in self._changes:
                    change = f"{name} is changed in line {self._changes[name]}"
                    remark = f"{change}, and only running the file would show how: write that into job.yaml"
                    self.remarks.append(Remark(field, remark))
                return self._data(value, field)
            case ast.Attribute(value=ast.Name(), attr=flag) if flag in self._flags:  # args.x
                return self._data(self._flags[flag], field)
            case ast.Name() | ast.Attribute():
                return _unknown_value(node)
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self._data(element, (*field, index)) for index, element in enumerate(elements)]
            case ast.Dict(keys=keys, values=values):
                names = [str(key.value) for key in keys if isinstance(key, ast.Constant)]
                if len(names) < len(keys):  # `**unknown`, or a key that is computed
                    return _unknown_value(node)
                return {name: self._data(value, (*field, name)) for name, value in zip(names, values, strict=True)}
            case ast.IfExp():
                return self._data(self._chosen_expression(node, field), field)
            case ast.Call() if not constants.is_constant_call(node, self._module_names):
                return self._call_data(node, field)
        try:
            return self._evaluated(node, field)
        except constants.NotConstant:
            return _unknown_value(node)

    def _chosen_expression(self, node: ast.IfExp, field: FieldPath) -> ast.expr:
        """Return the expression that a conditional one stands for; if only a run would show it, that after `else`."""
        is_true = self._truth(node.test, field)
        if is_true is None:
            text = errors.shortened(ast.unparse(node.orelse), 60)
            remark = f"{text} is taken, as only running the file would show whether another value is used"
            self.remarks.append(Remark(field, remark))
        return node.body if is_true else node.orelse

    def _evaluated(self, node: ast.expr, field: FieldPath, results: Mapping[ast.expr, Any] = MappingProxyType({})) -> Any:
        """Return the value of a constant expression.

        Args:
            node: The expression.
            field: Its path.
            results: Calls in it → their results.

        Raises:
            constants.NotConstant: Only a run of the file would show it.
        """

        def lookup(inner: ast.expr) -> Any:
            """Return the value of a part of the expression."""
            return results[inner] if inner in results else self._constant(inner, field)

        return constants.Evaluator(lookup, self._work, self._module_names).value(node)

    def _constant(self, node: ast.expr, field: FieldPath) -> Any:
        """Return the value of a name or another expression in a constant expression, without calls of unknown functions.

        Raises:
            constants.NotConstant: Only a run of the file would show it.
        """
        is_readable = isinstance(node, (ast.Name, ast.Attribute))
        if not is_readable or has_call(value := self._data(node, field)):
            raise constants.NotConstant
        return value

    def _call_data(self, node: ast.Call, field: FieldPath) -> Any:
        """Return a call as a mapping with the function's name and the arguments, and one of `partial` with its text.

        A call of `sample_from` becomes that of the function of Ray that draws the same values, if there is one.
        """
        is_of_result = naming.dotted(node.func).startswith(".")  # default_rng().choice(…), unlike tune.choice(…)
        function = "" if is_of_result else naming.last(node.func)
        if function in BINDERS and node.args:
            trainable = self._data(node.args[0], (*field, "function"))
            text = tune_partial.text(node, self._tree, self._module_names, self._changes)
            return {CALL: function, "function": trainable, "text": text}
        if function == "sample_from" and node.args and isinstance(node.args[0], ast.Lambda):
            domain = self._sampled_domain(node.args[0].body, field)
            if domain is not None:
                return domain
        if any(word.arg is None for word in node.keywords):  # `**unknown`
            return _unknown_value(node)
        # Arguments without a name here are those of a function that is not known, or too many.
        names = [*_ARGUMENTS.get(function, ()), *(f"argument {index + 1}" for index in range(len(node.args)))]
        arguments = [*zip(names, node.args, strict=False)]
        arguments += [(word.arg, word.value) for word in node.keywords if word.arg]
        return {CALL: function, **{key: self._data(value, (*field, key)) for key, value in arguments}}

    def _sampled_domain(self, body: ast.expr, field: FieldPath) -> dict[str, Any] | None:
        """Return the domain of an expression with one random number, such as `2 ** np.random.randint(2, 9)`.

        It is in the form of a call of `tune.choice`, `uniform` or `loguniform`, with the values of the expression for each
        random number, or for the lowest and the highest one. None for any other expression.
        """
        calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
        random_calls = [call for call in calls if _RANDOM.fullmatch(naming.dotted(call.func))]
        if len(random_calls) != 1 or random_calls[0].keywords:  # `high`, or the `size` of an array
            return None
        call = random_calls[0]
        random_numbers = self._random_numbers(call, field)
        is_continuous = naming.last(call.func) == "uniform"
        is_power = isinstance(body, ast.BinOp) and isinstance(body.op, ast.Pow) and body.right is call
        has_no_domain = is_continuous and body is not call and not is_power
        if has_no_domain or not 0 < len(random_numbers) <= _MOST_DRAWN:
            return None
        try:
            values = [self._evaluated(body, field, {call: number}) for number in random_numbers]
        except constants.NotConstant:
            return None
        if is_continuous:
            return {CALL: "loguniform" if is_power else "uniform", "lower": values[0], "upper": values[1]}
        return {CALL: "choice", "categories": values}

    def _random_numbers(self, call: ast.Call, field: FieldPath) -> Sequence[Any]:
        """Return the numbers that a `_RANDOM` function may return, or the two bounds of `uniform`; [] if unknown."""
        match naming.last(call.func), [self._data(argument, field) for argument in call.args]:
            case "uniform", [int() | float() as low, int() | float() as high]:
                return [low, high]
            case "choice", [list(choices)]:
                return choices
            case "randint", [int() as end]:
                return range(end)
            case "randint", [int() as low, int() as high]:
                includes_high = naming.dotted(call.func) == "random.randint"  # and NumPy's function does not
                return range(low, high + 1 if includes_high else high)
        return []

    def _assigned_value(self, name: ast.Name) -> ast.expr | None:
        """Return the expression that is assigned to a name; None if there is none, or if it is not clear which one is used.

        The user sees the value in job.yaml, so local names of different functions are not distinguished.
        """
        return tune_partial.last_value(self._assignments.get(name.id, ()), name.lineno)

    def _truth(self, test: ast.expr, field: FieldPath) -> bool | None:
        """Return whether the test of a conditional expression is true; None if only a run would show it."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):  # not args.smoke_test
                is_true = self._truth(operand, field)
                return None if is_true is None else not is_true
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as operator], comparators=[right]):  # args.x == "a"
                sides = [self._data(left, field), self._data(right, field)]
                if any(isinstance(side, (dict, list)) for side in sides):  # a dict stands for an unknown value
                    return None
                is_equal = sides[0] == sides[1]
                return is_equal if isinstance(operator, ast.Eq) else not is_equal
        value = self._data(test, field)
        return None if isinstance(value, dict) else bool(value)


def module_names(tree: ast.Module) -> set[str]:
    """Return the names that a file's top level gives to functions, classes, imports and plain assignments.

    A name that it gets in another way, as in an `if`, is not looked for.
    """
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _unknown_value(node: ast.expr) -> dict[str, Any]:
    """Return the mapping for an expression whose value only a run would show: a call without a name, and its text."""
    return {CALL: "", "text": ast.unparse(node)[:200]}


def has_call(value: Any) -> bool:
    """Return whether a value is a call, such as `tune.uniform(0, 1)`, or contains one."""
    if isinstance(value, dict):
        return CALL in value or any(map(has_call, value.values()))
    return isinstance(value, list) and any(map(has_call, value))
