"""The defaults of a project's functions and constructors that take effect, as no call passes another value. Pure."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trialplane.job import arguments

_THIS_CLASS = ("cls", "__class__")  # a class in its own methods: cls(64), self.__class__(64)
_CHECKS = ("isinstance", "issubclass", "super")  # functions that take a class and do not call it


class _Default(NamedTuple):
    """The default of an argument.

    Attributes:
        value: Its expression.
        argument: Name of the argument.
        position: Index of the argument in a call; None for one that only a keyword passes.
        owner: Function at the top level of a module, or class, that is called.
    """

    value: ast.expr
    argument: str
    position: int | None
    owner: ast.FunctionDef | ast.ClassDef


def in_effect(module: ast.Module, trees: Sequence[ast.Module]) -> set[int]:
    """Return the identities of the defaults in a module that a program uses: it calls their owner, and passes no value.

    One is left out if the program may call its owner in a way that is not seen: by a decorator, as a base class, by another
    name, or as a value.

    Args:
        module: Module with the defaults.
        trees: The script and the modules of the program, without what importing them does not run; see `imported_part`.
    """
    nodes = [node for tree in trees for node in _evaluated(tree)]
    read_names = Counter(map(_name, nodes))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    imported_as = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
    used: set[int] = set()
    for default in _defaults(module):
        name = default.owner.name
        owner_calls = [call for call in calls if _called(call) == name]
        own_calls = [node for node in ast.walk(default.owner) if isinstance(node, ast.Call) and _called(node) in _THIS_CLASS]
        is_hidden = bool(default.owner.decorator_list) or name in imported_as or read_names[name] > len(owner_calls)
        if owner_calls and not is_hidden and not any(_passes(call, default) for call in (*owner_calls, *own_calls)):
            used.add(id(default.value))
    return used


def imported_part(tree: ast.Module) -> ast.Module:
    """Return a module without `if __name__ == "__main__":`."""
    return ast.Module([statement for statement in tree.body if not arguments.is_main(statement)], [])


def _defaults(module: ast.Module) -> Iterator[_Default]:
    """Yield the defaults of the functions at the top level of a module, and of the constructors of its classes."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            yield from _defaults_of(node, node, first_index=0)
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    yield from _defaults_of(item, node, first_index=-1)  # a call does not pass `self`


def _defaults_of(function: ast.FunctionDef, owner: ast.FunctionDef | ast.ClassDef, first_index: int) -> Iterator[_Default]:
    """Yield the defaults of a function, of which a call passes the first argument at an index."""
    positional = [*function.args.posonlyargs, *function.args.args]
    first_default = len(positional) - len(function.args.defaults)
    for index, (argument, value) in enumerate(
        zip(positional[first_default:], function.args.defaults, strict=True), first_default + first_index
    ):
        yield _Default(value, argument.arg, index, owner)
    for argument, keyword_value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if keyword_value is not None:
            yield _Default(keyword_value, argument.arg, None, owner)


def _passes(call: ast.Call, default: _Default) -> bool:
    """Return whether a call may pass an argument."""
    if any(keyword.arg in (None, default.argument) for keyword in call.keywords):
        return True
    has_starred = any(isinstance(value, ast.Starred) for value in call.args)
    return default.position is not None and (has_starred or len(call.args) > default.position)


def _evaluated(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module, without annotations, and without the classes that a check such as `isinstance` takes."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        is_check = isinstance(node, ast.Call) and _called(node) in _CHECKS
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns") and not (is_check and field == "args"):
                children: Iterable[object] = value if isinstance(value, list) else [value]
                pending += [child for child in children if isinstance(child, ast.AST)]


def _called(call: ast.Call) -> str:
    """Return the last part of the name of what a call calls: `Net` for `models.Net()`."""
    return _name(call.func)


def _name(node: ast.AST) -> str:
    """Return the last part of a name that is read; "" for other nodes."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
            return name
    return ""
