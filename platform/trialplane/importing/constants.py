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
        match node:
            case ast.Name(id=name) if name in variables:
                return variables[name]
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return self._values(elements, variables)
            case ast.Dict(keys=keys, values=values) if None not in keys:  # which stands for `**unknown`
                return self._dict(self._values([key for key in keys if key], variables), self._values(values, variables))
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
                return [self._value(element, scope) for scope in self._scopes(node.generators, variables)]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._value(body if self._value(test, variables) else orelse, variables)
            case ast.UnaryOp(op=op, operand=operand):
                return self._result(op, self._values([operand], variables))
            case ast.BinOp(op=op, left=left, right=right) | ast.Compare(ops=[op], left=left, comparators=[right]):
                return self._result(op, self._values([left, right], variables))
            case ast.Call(func=ast.Name(id=name), args=arguments) if is_constant_call(node, self._module_names):
                return self._call_result(name, self._values(arguments, variables))
        return self._lookup(node)

    def _values(self, nodes: Sequence[ast.expr], variables: Mapping[str, Any]) -> list[Any]:
        """Return the values of several expressions, see `_value`."""
        return [self._value(node, variables) for node in nodes]

    def _dict(self, keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
        """Return the dict of keys and values. Hashes of large numbers can be equal, and it would then take long to build."""
        if any(isinstance(key, (int, float)) and abs(key) > _LARGEST for key in keys):
            raise NotConstant
        return dict(zip(keys, values, strict=True))

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
        if function is None:
            raise NotConstant
        self._check_operands(op, operands)
        result = function(*operands)
        if isinstance(result, complex):  # (-1) ** 0.5
            raise NotConstant
        return self._elements(result) if isinstance(result, list) else result

    def _check_operands(self, op: ast.AST, operands: Sequence[Any]) -> None:
        """Count the work of an operator before it is done.

        Raises:
            NotConstant: It is too much, or the operator would make a text.
        """
        numbers = [operand for operand in operands if isinstance(operand, (int, float))]
        has_large_number = any(abs(number) > _LARGEST for number in numbers)
        has_large_exponent = isinstance(op, ast.Pow) and abs(operands[1]) > _MAX_EXPONENT
        makes_text = any(isinstance(operand, str) for operand in operands) and not isinstance(op, ast.cmpop)  # "a" * 1000
        if has_large_number or has_large_exponent or makes_text:
            raise NotConstant
        for operand in operands:
            self._work.count_elements(operand)
            if isinstance(operand, list) and isinstance(op, ast.Mult):  # [0] * 10
                self._work.count(len(operand) * int(max([0, *numbers])))

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
