"""Folding of changes of dicts, such as `space["lr"] = …` and `space.update({…})`, in the syntax tree of a Python file.

To fold a change means to write it into the expression that creates the dict, where a reader of the tree then finds the whole
content.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from trialplane.importing import naming

# Methods that change a dict or a list.
_CHANGES = ("update", "setdefault", "pop", "popitem", "clear", "append", "extend", "insert", "remove")


def fold(tree: ast.Module) -> dict[str, int]:
    """Fold each change of a dict that is in the same block as the dict's creation.

    Args:
        tree: Tree of the file, which is changed.

    Returns:
        Names of the dicts and lists with a change that is not folded, so that their contents are unknown → line of the last
        such change. No change of a list is folded.
    """
    folded: set[ast.stmt] = set()
    names: set[str] = set()  # of dicts and lists
    for block in list(naming.blocks(ast.walk(tree))):  # a list, because folding changes the tree
        block_dicts: dict[str, ast.Dict] = {}
        folded.update(statement for statement in block if _fold_statement(statement, block_dicts))
        names |= set(block_dicts)
    last_lines: dict[str, int] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.stmt) and node not in folded:
            last_lines |= dict.fromkeys(names.intersection(_changed_names(node)), node.lineno)
    return last_lines


def _fold_statement(statement: ast.stmt, dicts: dict[str, ast.Dict]) -> bool:
    """Fold a statement into the dict that it changes. Return False if it changes none, or if it cannot be folded.

    Args:
        statement: The statement.
        dicts: Dicts of its block by name. A statement that creates one adds it.
    """
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        value = statement.value = _as_display(statement.value)
        if isinstance(target, ast.Name):
            dicts.pop(target.id, None)  # from here on, the name stands for another value
            if isinstance(value, ast.Dict):
                dicts[target.id] = value
        elif isinstance(target, ast.Subscript) and (target_dict := _find_dict(target.value, dicts)):
            return _set_item(target_dict, target.slice, value)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _fold_update(statement.value, dicts)
    return False


def _fold_update(call: ast.Call, dicts: Mapping[str, ast.Dict]) -> bool:
    """Fold a call of a dict's `update`. Return False if it is another call, or if not all of its keys are in the text."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "update":
        return False
    target_dict = _find_dict(call.func.value, dicts)
    argument_dicts = [argument_dict for argument in call.args if (argument_dict := _find_dict(argument, dicts))]
    has_unknown_keywords = any(word.arg is None for word in call.keywords)  # `**unknown`
    if target_dict is None or len(argument_dicts) < len(call.args) or has_unknown_keywords:
        return False
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    for argument_dict in argument_dicts:
        pairs += zip(argument_dict.keys, argument_dict.values, strict=True)
    pairs += [(ast.copy_location(ast.Constant(word.arg), word), word.value) for word in call.keywords]
    return all(key is not None and _set_item(target_dict, key, _as_display(value)) for key, value in pairs)


def _as_display(value: ast.expr) -> ast.expr:
    """Return the call `dict(a=1)` as the display `{"a": 1}`, and any other expression unchanged."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "dict" or value.args:
        return value
    if any(word.arg is None for word in value.keywords):  # `**unknown`
        return value
    keys: list[ast.expr | None] = [ast.copy_location(ast.Constant(word.arg), word) for word in value.keywords]
    return ast.copy_location(ast.Dict(keys, [word.value for word in value.keywords]), value)


def _find_dict(node: ast.expr, dicts: Mapping[str, ast.Dict]) -> ast.Dict | None:
    """Return the dict that an expression stands for: a name, a subscript of a dict, or a dict's display. None if unknown."""
    if isinstance(node, ast.Name):
        return dicts.get(node.id)
    if isinstance(node, ast.Subscript) and (outer := _find_dict(node.value, dicts)):
        values = [value for key, value in zip(outer.keys, outer.values, strict=True) if _is_same_key(key, node.slice)]
        return _find_dict(values[-1], dicts) if values else None  # of a key that is in the text twice, the last value counts
    return node if isinstance(node, ast.Dict) else None


def _is_same_key(key: ast.expr | None, other: ast.expr) -> bool:
    """Return whether two keys are the same constant."""
    return isinstance(key, ast.Constant) and isinstance(other, ast.Constant) and key.value == other.value


def _set_item(node: ast.Dict, key: ast.expr, value: ast.expr) -> bool:
    """Set or replace an item of a dict's display. Return False, without a change, if the key is not a constant."""
    if not isinstance(key, ast.Constant):
        return False
    # The index of the key, or that behind the last one.
    index = next((index for index, existing in enumerate(node.keys) if _is_same_key(existing, key)), len(node.keys))
    node.keys[index : index + 1] = [key]
    node.values[index : index + 1] = [value]
    return True


def _changed_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the name of each dict or list that a statement changes. Statements inside of it are ignored."""
    # Assignments and `del` have targets; a loop, `+=` and an annotated assignment have one target.
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    changed_nodes = [target.value for target in targets if isinstance(target, ast.Subscript)]
    if isinstance(statement, ast.AugAssign):
        changed_nodes.append(statement.target)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _CHANGES:
        changed_nodes.append(call.func.value)
    for node in changed_nodes:
        while isinstance(node, ast.Subscript):  # space["model"]["lr"]
            node = node.value
        if isinstance(node, ast.Name):
            yield node.id
