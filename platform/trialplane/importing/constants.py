"""Values of expressions of a Python file that need no run of it: arithmetic, comprehensions, and calls like `range(9)`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

_MOST_STEPS = 50_000  # evaluated expressions, elements of lists, and characters of texts
_LARGEST = 1e15  # largest absolute value of an operand
_MAX_EXPONENT = 64
_MOST_DIGITS = 20  # largest absolute value of the second argument of `round`
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (int, float, round, abs, min, max, sum, len, list, tuple, sorted, range)
}
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class NotConstant(Exception):
    """Raised for an expression whose value only a run of the file would show."""


def literal(node: ast.expr | None) -> Any:
    """Return the number, text or boolean that an expression such as `2 ** 6` stands for, or a list of these.

    None for any other expression, and for None.
    """
    try:
        value = None if node is None else evaluated(node)
    except NotConstant:
        return None
    items = value if isinstance(value, list) else [value]
    return value if items and all(type(item) in (int, float, str, bool) for item in items) else None


class Work:
    """Work of all evaluations for one file, with a limit."""

    def __init__(self) -> None:
        self._steps = 0

    def count(self, steps: int) -> None:
        """Add steps to the work.

        Raises:
            NotConstant: It is too much.
        """
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise NotConstant

    def count_elements(self, value: Any) -> None:
        """Add the elements of a value and of the values in it. One that it contains twice counts twice, as in its text.

        Raises:
            NotConstant: They are too many.
        """
        if isinstance(value, (str, list, dict)):
            self.count(len(value))
        if isinstance(value, (list, dict)):
            for element in value.values() if isinstance(value, dict) else value:
                self.count_elements(element)


def evaluated(node: ast.expr, assigned: Mapping[str, ast.expr] = MappingProxyType({})) -> Any:
    """Return the value of an expression, as `Evaluator.value` does.

    Args:
        node: The expression.
        assigned: Names that the expression may use → the expressions that stand for them.

    Raises:
        NotConstant: The value is unknown, or too large.
    """

    def value_of_name(name: ast.expr) -> Any:
        if isinstance(name, ast.Name) and name.id in assigned:
            return evaluated(assigned[name.id], assigned)
        raise NotConstant

    return Evaluator(value_of_name, Work(), module_names=()).value(node)


class Evaluator:
    """Evaluator of one expression.

    Args:
        lookup: Function that returns the value of a name or of another expression, or raises NotConstant.
        work: Work of all evaluations for the file.
        module_names: Names that the file defines; a built-in function of the same name is not called.
    """

    def __init__(self, lookup: Callable[[ast.expr], Any], work: Work, module_names: Collection[str]) -> None:
        self._lookup = lookup
        self._work = work
        self._module_names = module_names

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression: a number, a text, or a list or dict of these.

        Raises:
            NotConstant: The value is unknown, or too large.
        """
        try:
            result = self._value(node, {})
            self._work.count_elements(result)
        except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
            raise NotConstant from error
        return result

    def _value(self, node: ast.expr, variables: Mapping[str, Any]) -> Any:
        """Return the value of an expression, see `value`.

        Args:
            node: The expression.
            variables: Values of the variables of the comprehensions around it.
        """
        self._work.count(1)
        if isinstance(node, ast.Name) and node.id in variables:
            return variables[node.id]
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(element, variables) for element in node.elts]
        if isinstance(node, ast.Dict) and None not in node.keys:  # which stands for `**unknown`
            keys = [self._value(key, variables) for key in node.keys if key]
            if any(isinstance(key, (int, float)) and abs(key) > _LARGEST for key in keys):
                raise NotConstant  # hashes of large numbers can be equal, and then the time is quadratic
            return dict(zip(keys, [self._value(value, variables) for value in node.values], strict=True))
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return [self._value(node.elt, scope) for scope in self._scopes(node.generators, variables)]
        if isinstance(node, ast.IfExp):
            is_true = self._value(node.test, variables)
            return self._value(node.body if is_true else node.orelse, variables)
        if isinstance(node, ast.UnaryOp):
            return self._result(node.op, [self._value(node.operand, variables)])
        if isinstance(node, ast.BinOp):
            return self._result(node.op, [self._value(operand, variables) for operand in (node.left, node.right)])
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._result(node.ops[0], [self._value(side, variables) for side in (node.left, *node.comparators)])
        if is_constant_call(node, self._module_names):
            assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            return self._call_result(node.func.id, [self._value(argument, variables) for argument in node.args])
        return self._lookup(node)

    def _scopes(self, generators: Sequence[ast.comprehension], variables: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the variables of each round of a comprehension.

        Args:
            generators: Loops of the comprehension, the outermost first.
            variables: Values of the variables around it, which the rounds also have.
        """
        if not generators:
            yield variables
            return
        loop, *inner_loops = generators
        if not isinstance(loop.target, ast.Name):  # for a, b in pairs
            raise NotConstant
        for element in self._elements(self._value(loop.iter, variables)):
            scope = {**variables, loop.target.id: element}
            if all(self._value(test, scope) for test in loop.ifs):
                yield from self._scopes(inner_loops, scope)

    def _call_result(self, name: str, arguments: Sequence[Any]) -> Any:
        """Return the result of a built-in function. Arguments with which it would take long raise NotConstant."""
        if name == "sum" and len(arguments) > 1:  # the time of `sum(lists, [])` is quadratic
            raise NotConstant
        if name == "round" and len(arguments) > 1 and abs(arguments[1]) > _MOST_DIGITS:  # it computes a power of 10
            raise NotConstant
        for argument in arguments:
            self._work.count_elements(argument)
        result = _FUNCTIONS[name](*arguments)
        return self._elements(result) if isinstance(result, (list, tuple, range)) else result

    def _result(self, op: ast.AST, operands: Sequence[Any]) -> Any:
        """Return the result of an operator with numbers or lists, or of a comparison."""
        function = _OPERATORS.get(type(op))
        numbers = [operand for operand in operands if isinstance(operand, (int, float))]
        lists = [operand for operand in operands if isinstance(operand, list)]
        has_text = any(isinstance(operand, str) for operand in operands)
        if function is None or max(map(abs, numbers), default=0) > _LARGEST:
            raise NotConstant
        if isinstance(op, ast.Pow) and abs(operands[1]) > _MAX_EXPONENT:
            raise NotConstant
        if has_text and not isinstance(op, ast.cmpop):  # "a" * 1000
            raise NotConstant
        # The work of the operator is counted before it is done.
        for operand in operands:
            self._work.count_elements(operand)
        if lists and isinstance(op, ast.Mult):  # [0] * 10
            self._work.count(len(lists[0]) * int(max([0, *numbers])))
        result = function(*operands)
        if isinstance(result, complex):  # (-1) ** 0.5
            raise NotConstant
        return self._elements(result) if isinstance(result, list) else result

    def _elements(self, values: Sequence[Any]) -> list[Any]:
        """Return the elements of a list, tuple or range as a list."""
        if isinstance(values, (str, dict)):  # characters or keys, which a search rarely draws
            raise NotConstant
        self._work.count(len(values))
        return list(values)


def is_constant_call(node: ast.expr, module_names: Collection[str]) -> bool:
    """Return whether an expression is a call of a built-in function that can be evaluated, without keywords.

    Args:
        node: The expression.
        module_names: Names that the file defines, and which are thus not those of built-in functions.
    """
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)) or node.keywords:
        return False
    return node.func.id in _FUNCTIONS and node.func.id not in module_names
