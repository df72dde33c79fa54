"""Names in the syntax tree of a Python file: of called functions, of imported objects, and of code that may be executed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence


def imported(tree: ast.AST) -> dict[str, str]:
    """Return the full names of the objects that a file imports, by their names in it.

    They are `tune` → `ray.tune` for `from ray import tune`, and `np` → `numpy` for `import numpy as np`.
    """
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:  # import ray.tune as tune
                    names[alias.asname] = alias.name
                else:  # import ray.tune, which defines the name ray
                    root = alias.name.partition(".")[0]
                    names[root] = root
    return names


def first_values(tree: ast.AST) -> dict[str, ast.expr]:
    """Return the first expression that a file assigns to each name or attribute: that of 0.1 for `lr = 0.1; lr = 0.2`."""
    values: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            values.setdefault(ast.unparse(node.targets[0]), node.value)
    return values


def augmented(tree: ast.AST) -> set[str]:
    """Return the names whose values a file changes by an operator such as `+=`."""
    targets = (node.target for node in ast.walk(tree) if isinstance(node, ast.AugAssign))
    return {target.id for target in targets if isinstance(target, ast.Name)}


def blocks(nodes: Iterable[ast.AST]) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of statements of some nodes, such as those of a function, of `if`, and of `else`."""
    for node in nodes:
        for attribute in ("body", "orelse", "finalbody"):
            block = getattr(node, attribute, None)
            if isinstance(block, list):  # the body of a lambda is an expression
                yield block


def full(node: ast.expr, imported_names: Mapping[str, str]) -> str:
    """Return the dotted name of an expression, with the full name of an imported object: `ray.tune.run` for `tune.run`.

    Args:
        node: The expression.
        imported_names: See `imported`.
    """
    root, dot, tail = dotted(node).partition(".")
    return imported_names.get(root, root) + dot + tail


def dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression: "tune.run", or ".fit" for `model().fit`. "" if it has no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def last(node: ast.expr) -> str:
    """Return the last part of an expression's dotted name: `run` for `tune.run`. "" if it has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def executed_nodes(tree: ast.Module, statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes that statements of a file may execute.

    They include the functions and methods whose names these nodes use, as `Fire(main)` does, and those with a decorator,
    which may be commands of click or typer.

    Args:
        tree: Tree of the file.
        statements: The statements.
    """
    functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.setdefault(node.name, []).append(node)
    todo: list[ast.AST] = list(statements)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.decorator_list:
            continue  # its body follows if its name is used
        yield node
        todo += ast.iter_child_nodes(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            for function in functions.pop(name, ()):
                todo += function.body


def arguments_by_name(call: ast.Call, *names: str) -> dict[str, ast.expr]:
    """Return the arguments of a call by name. Positional ones get the `names`, in order; any further ones are left out."""
    return dict(zip(names, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}


def argument_values(function: ast.FunctionDef, calls: Sequence[ast.Call]) -> dict[str, ast.expr]:
    """Return the expressions for a function's arguments by name: those in its only call, or else their defaults.

    Arguments without either are left out. If several calls are of the function, only the defaults count.

    Args:
        function: The function.
        calls: Calls in the file.
    """
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    values: dict[str, ast.expr] = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None:
            values[argument.arg] = default
    own_calls = [call for call in calls if dotted(call.func) == function.name]
    if len(own_calls) == 1:
        values |= arguments_by_name(own_calls[0], *names)
    return values
