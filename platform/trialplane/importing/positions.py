"""The names that a script gives to its arguments `sys.argv[1]`, `sys.argv[2]`, …, which are its parameters without a parser.

An argument has the name of the variable, or of the function's argument, that gets it. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from trialplane.importing import constants, naming
from trialplane.job import arguments
from trialplane.wire.declared import Option

_MOST_COPIES = 3  # variables in a row that have sys.argv or a part of it: words = sys.argv[1:]; main(words)
_UNNAMED = "argument_"  # before the index of an argument without a name
# Functions, also those of NumPy, that return the value which the text of an argument means.
_CONVERSIONS = ("int", "float", "str", "bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64")


class _Item(NamedTuple):
    """An item of `sys.argv`, or the first one of several.

    Attributes:
        position: Its index in `sys.argv`.
        kind: "int" or "float" if the script converts it to such a number; otherwise "str".
        default: Value that the script has without the item; None without one.
    """

    position: int
    kind: str = "str"
    default: ast.expr | None = None


def options(tree: ast.Module, requested: Collection[str] = ()) -> Iterator[Option]:
    """Yield the arguments of a script that reads `sys.argv`, in order, as options.

    An argument is called `argument_2` or the like if the script gives it no name that it alone has. Of several names, it
    has a requested one, or the first. Its default is a value that the script assigns to the name elsewhere. There are none
    if the script changes `sys.argv`.

    Args:
        tree: Tree of the script.
        requested: Names of the parameters that the user wants to search.
    """
    values: dict[str, list[ast.expr]] = {}
    for name, value in (*_assigned(tree), *_passed(tree)):
        values.setdefault(name, []).append(value)
    code = _Code(naming.imported(tree), {})
    for _ in range(_MOST_COPIES):
        first_items = {name: {code.first_item(node) for node in nodes} for name, nodes in values.items()}
        code = code._replace(parts={name: item for name, (item, *others) in first_items.items() if item and not others})
    if any(map(code.shifts_items, ast.walk(tree))):
        return
    items = {name: [item for node in nodes if (item := code.item(node)) is not None] for name, nodes in values.items()}
    parts = {name: [item for node in nodes if (item := code.text_part(node)) is not None] for name, nodes in values.items()}
    by_index: dict[int, dict[str, _Item]] = {}
    # A name of the item itself comes before that of a value with it.
    for name, named_items in (*items.items(), *((name, parts[name]) for name in parts if not items[name])):
        if len({item.position for item in named_items}) == 1:
            by_index.setdefault(named_items[0].position, {})[name] = named_items[0]
    for index in range(1, max(by_index, default=0) + 1):
        names = by_index.get(index, {})
        name = next((name for name in names if name in requested), next(iter(names), ""))
        item = names.get(name, _Item(index))
        literals = [constants.literal(node) for node in (item.default, *values.get(name, ()))]
        default = next((literal for literal in literals if literal is not None), None)
        yield Option(name or f"{_UNNAMED}{index}", default=default, kind=item.kind, required=default is None)


def is_unnamed(option: Option) -> bool:
    """Return whether an argument has no name of the script's own."""
    return option.name.removeprefix(_UNNAMED).isdecimal()


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables to which a script assigns a value, each with it: two of `lr, depth = 0.1, 3`."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                yield name, value
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _named_values(target, value)


def _named_values(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables of the target of an assignment, each with its value; those behind a starred one are left out."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else None
        for index, part in enumerate(target.elts):
            if isinstance(part, ast.Starred) or (values is not None and len(values) != len(target.elts)):
                return
            yield from _named_values(part, _item_of(value, index) if values is None else values[index])


def _passed(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the arguments of functions of the script, and keywords of any others, each with a value that a call passes."""
    signatures = arguments.signatures(tree)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            names = signatures.get(ast.unparse(call.func), ())
            for index, value in enumerate(call.args):
                if isinstance(value, ast.Starred):  # train(*sys.argv[1:])
                    yield from ((name, _item_of(value.value, item)) for item, name in enumerate(names[index:]))
                    break
                yield from ((name, value) for name in names[index : index + 1])
            yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg)


def _item_of(sequence: ast.expr, index: int) -> ast.expr:
    """Return the expression for an item of a sequence."""
    return ast.Subscript(sequence, ast.Constant(index), ast.Load())


class _Code(NamedTuple):
    """The code in which expressions are read.

    Attributes:
        imported: Full names of what it imports, by their names in it.
        parts: First items of its variables that are `sys.argv` or a part of it, by name.
    """

    imported: Mapping[str, str]
    parts: Mapping[str, _Item]

    def item(self, node: ast.expr) -> _Item | None:
        """Return the item of `sys.argv` that an expression is, perhaps as a number; None for others."""
        match node:
            case ast.Subscript(value=sequence, slice=ast.Constant(value=int(index))) if index >= 0:
                first = self.first_item(sequence)
                return None if first is None else first._replace(position=first.position + index)
            case ast.Call(func=function, args=[argument], keywords=[]) if naming.last(function) in _CONVERSIONS:
                item = self.item(argument)
                return None if item is None else _converted(item, function)
            case ast.IfExp(body=body, orelse=other):  # float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
                items = [(self.item(body), other), (self.item(other), body)]
                return next((item._replace(default=default) for item, default in items if item is not None), None)
        return None

    def shifts_items(self, node: ast.AST) -> bool:
        """Return whether a statement or a call may change the indices of items of `sys.argv`."""
        match node:
            case (
                ast.Call(func=ast.Attribute(value=sequence, attr="pop" | "remove" | "insert"))
                | ast.Delete(targets=[ast.Subscript(value=sequence)])
                | ast.Assign(targets=[ast.Attribute() as sequence])
            ):
                return self.first_item(sequence) is not None
        return False

    def text_part(self, node: ast.expr) -> _Item | None:
        """Return the only item of `sys.argv` in an expression if it stays a text: that of `MODELS[sys.argv[1]]`."""
        parts = (part for part in ast.walk(node) if isinstance(part, ast.expr))
        items = {item._replace(default=None) for part in parts if (item := self.item(part)) is not None}
        return items.pop() if len(items) == 1 and all(item.kind == "str" for item in items) else None

    def first_item(self, node: ast.expr) -> _Item | None:
        """Return the first item of a part of `sys.argv`; None for other expressions."""
        match node:
            case ast.Subscript(value=sequence, slice=ast.Slice(lower=lower, step=None)):
                first, start = self.first_item(sequence), 0 if lower is None else constants.literal(lower)
                is_start = isinstance(start, int) and start >= 0
                return first._replace(position=first.position + start) if first is not None and is_start else None
            case ast.Call(func=ast.Name("list" | "tuple"), args=[sequence]):
                return self.first_item(sequence)
            case ast.Call(func=ast.Name("map"), args=[function, sequence]):
                first = self.first_item(sequence)
                return None if first is None or naming.last(function) not in _CONVERSIONS else _converted(first, function)
            case ast.ListComp(
                elt=ast.Call(func=function, args=[ast.Name(argument)]),
                generators=[ast.comprehension(target=ast.Name(name), iter=sequence, ifs=[])],
            ) if argument == name:  # [float(text) for text in sys.argv[1:]]
                return self.first_item(ast.Call(ast.Name("map"), [function, sequence], []))
            case ast.Name(name) if name in self.parts:
                return self.parts[name]
            case ast.Name() | ast.Attribute() if naming.full(node, self.imported) == "sys.argv":
                return _Item(0)
        return None


def _converted(item: _Item, function: ast.expr) -> _Item:
    """Return an item after a conversion, of which the first one shows the kind: int(float(sys.argv[1]))."""
    kind = naming.last(function).rstrip("0123456789")
    return item._replace(kind=kind) if item.kind == "str" and kind in ("int", "float") else item
