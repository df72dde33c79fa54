"""Paths that a script derives from its own, as `Path(__file__).parents[1] / "data"`."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from trialplane.importing import naming

# Functions and methods whose result stands for the same path.
_SAME = ("Path", "PurePath", "abspath", "realpath", "normpath", "resolve", "absolute", "expanduser", "str", "fspath")
_FILE = "."  # stands for the script, whose folder is then `..`
_DEEPEST = 50  # operands of operands; `path = path.parent` refers to itself


def upward_paths(tree: ast.Module, left_out: Collection[ast.AST] = ()) -> Iterator[str]:
    """Yield the paths above a script's folder that it derives from `__file__`, relative to that folder: `../data`.

    Args:
        tree: Syntax tree of the script.
        left_out: Expressions of paths that do not count.
    """
    variables = naming.first_values(tree)
    for node in (node for node in ast.walk(tree) if node not in left_out):
        path = _path(node, variables, depth=_DEEPEST) if isinstance(node, (ast.Call, ast.BinOp)) else ""
        path = os.path.relpath(path, os.pardir) if path else ""  # relative to the script's folder
        if path.startswith(os.pardir) and not path.endswith(os.pardir):  # `../..` alone is only the start of a path
            yield path


def _path(node: ast.expr, variables: Mapping[str, ast.expr], depth: int) -> str:
    """Return the path, relative to the script, that an expression derives from `__file__`; "" for another expression.

    Args:
        node: The expression.
        variables: Values of the script's names.
        depth: Most operands of operands that are followed.
    """
    if depth == 0:
        return ""
    steps: list[str] = []  # from the path of `base` to that of the expression
    base: ast.expr | None = None
    match node:
        case ast.Name(id="__file__"):
            return _FILE
        case ast.Name(id=name) if name in variables:
            base = variables[name]
        case ast.Attribute(value=base, attr="parent"):  # path.parent
            steps = [os.pardir]
        case ast.Subscript(value=ast.Attribute(value=base, attr="parents"), slice=ast.Constant(value=int(number))):
            steps = [os.pardir] * (min(number, depth) + 1)  # path.parents[1]
        case ast.BinOp(left=base, op=ast.Div(), right=ast.Constant(value=str(text))):  # path / "data"
            steps = [text]
        case ast.Call(func=ast.Attribute(attr="joinpath", value=base), args=words):  # path.joinpath("data", name)
            steps = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        case ast.Call(func=ast.Attribute(attr="join"), args=[base, *words]):  # os.path.join(path, "data")
            steps = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            if len(steps) < len(words):
                return ""
        case ast.Call(func=ast.Attribute(attr="dirname") | ast.Name(id="dirname"), args=[base]):  # os.path.dirname(path)
            steps = [os.pardir]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[base]) if name in _SAME:
            pass  # os.path.abspath(path)
        case ast.Call(func=ast.Attribute(attr=name, value=base), args=[]) if name in _SAME:
            pass  # path.resolve()
    path = _path(base, variables, depth - 1) if base is not None else ""
    return os.path.normpath(Path(path, *steps)) if path else ""
