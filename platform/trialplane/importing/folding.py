"""The dicts of a Python file with what later statements put into them: `space["lr"] = …`, `space.update({…})`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

_CHANGES = ("update", "setdefault", "pop", "popitem", "clear")


def fold(tree: ast.Module) -> dict[str, int]:
    """Move what a statement puts into a dict into the dict, where both stand in one block.

    Args:
        tree: of the file; it is changed.

    Returns:
        The names of dicts that other statements change, so that only running the file would show them → the last line.
    """
    folded: set[ast.stmt] = set()
    dicts: set[str] = set()
    for node in list(ast.walk(tree)):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                dicts_of_block: dict[str, ast.Dict] = {}
                for statement in block:
                    if _folds(statement, dicts_of_block):
                        folded.add(statement)
                dicts |= set(dicts_of_block)
    changes = (
        (name, line)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node not in folded
        for name, line in _changed(node)
    )
    return {name: line for name, line in changes if name in dicts}


def _folds(statement: ast.stmt, dicts: dict[str, ast.Dict]) -> bool:
    """Take a statement that makes or fills a dict into those of its block; whether it fills one."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        value = statement.value = _written(statement.value)
        if isinstance(target, ast.Name):
            dicts.pop(target.id, None)
            if isinstance(value, ast.Dict):
                dicts[target.id] = value
        elif isinstance(target, ast.Subscript) and (filled := _dict(target.value, dicts)):
            return _put(filled, target.slice, value)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "update" and (filled := _dict(call.func.value, dicts)):
            merged = [_dict(argument, dicts) for argument in call.args]
            if all(merged) and all(word.arg for word in call.keywords):
                pairs = [
                    pair for argument in merged if argument for pair in zip(argument.keys, argument.values, strict=True)
                ]
                pairs += [(ast.copy_location(ast.Constant(word.arg), word), word.value) for word in call.keywords]
                return all(key is not None and _put(filled, key, _written(value)) for key, value in pairs)
    return False


def _written(value: ast.expr) -> ast.expr:
    """`dict(a=1)` as `{"a": 1}`; others as they are."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "dict" or value.args:
        return value
    if not all(word.arg for word in value.keywords):
        return value
    keys: list[ast.expr | None] = [ast.copy_location(ast.Constant(word.arg), word) for word in value.keywords]
    return ast.copy_location(ast.Dict(keys, [word.value for word in value.keywords]), value)


def _dict(node: ast.expr, dicts: Mapping[str, ast.Dict]) -> ast.Dict | None:
    """The dict that an expression stands for."""
    if isinstance(node, ast.Name):
        return dicts.get(node.id)
    if isinstance(node, ast.Subscript) and (outer := _dict(node.value, dicts)):
        values = [value for key, value in zip(outer.keys, outer.values, strict=True) if _same(key, node.slice)]
        return _dict(values[-1], dicts) if values else None
    return node if isinstance(node, ast.Dict) else None


def _same(key: ast.expr | None, other: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and isinstance(other, ast.Constant) and key.value == other.value


def _put(node: ast.Dict, key: ast.expr, value: ast.expr) -> bool:
    """Put a value into a dict; whether its key is known."""
    if not isinstance(key, ast.Constant):
        return False
    position = next((index for index, existing in enumerate(node.keys) if _same(existing, key)), len(node.keys))
    node.keys[position:] = [key, *node.keys[position + 1 :]]
    node.values[position:] = [value, *node.values[position + 1 :]]
    return True


def _changed(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    """The names of the dicts that a statement changes itself, and not those in it."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    changed = [target.value for target in targets if isinstance(target, ast.Subscript)]
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _CHANGES:
        changed.append(call.func.value)
    for node in changed:
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name):
            yield node.id, statement.lineno
