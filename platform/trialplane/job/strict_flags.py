"""The flags of a script that certainly takes no others, as it reads its arguments only by argparse. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

_METHODS = ("add_argument", "add_argument_group", "add_mutually_exclusive_group", "parse_args")  # of parsers
# Names in code that may read arguments otherwise, or take other flags: sys.argv, parse_known_args, HfArgumentParser.
_OTHER_READERS = re.compile(
    r"argv|.*parse_(?:known|intermixed)\w*|\w+ArgumentParser|add_subparsers|.*(?:CLI|cli|FLAGS|flags)"
)
_OTHER_FLAGS = ("parents", "fromfile_prefix_chars", "prefix_chars")  # arguments of a parser


def names(trees: Sequence[ast.Module]) -> set[str] | None:
    """Return the long flags of a script without dashes before them; None if it may take others, or has none.

    Args:
        trees: Syntax trees of the script and of all modules of the project that it may import.
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    functions = {node.name: node.args for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    methods = [call for call in calls if isinstance(call.func, ast.Attribute) and _called(call) in _METHODS]
    if not any(_called(call) == "parse_args" for call in methods) or any(map(_may_take_others, nodes)):
        return None
    # Each parser must come from a function of the project, or be its argument. Another function that gets one may add flags.
    creators = {*functions, *_METHODS, "ArgumentParser"}
    parsers = {ast.unparse(call.func.value) for call in methods if isinstance(call.func, ast.Attribute)}
    created = {argument.arg for arguments in functions.values() for argument in (*arguments.posonlyargs, *arguments.args)}
    created |= {ast.unparse(call) for call in calls if _called(call) in creators}
    for node in nodes:
        if isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])) in parsers:
            if not isinstance(node.value, ast.Call) or _called(node.value) not in creators:
                return None
            created.add(name)
    is_given_away = any(_has(call, parsers) and _called(call) not in creators for call in calls)
    if is_given_away or not parsers <= created:
        return None
    flags: set[str] = set()
    for call in methods:
        texts = [flag.value for flag in call.args if isinstance(flag, ast.Constant) and isinstance(flag.value, str)]
        if _called(call) == "add_argument" and (not texts or len(texts) != len(call.args)):  # add_argument(f"--{name}")
            return None
        flags.update(text.removeprefix("--") for text in texts if text.startswith("--"))
    return flags or None


def takes(name: str, flags: Collection[str]) -> bool:
    """Return whether argparse takes a name for a flag, of which it may be the beginning."""
    return any(flag.startswith(name) for flag in flags)


def _called(call: ast.Call) -> str:
    """Return the last part of the name of what a call calls: `add_argument` for `parser.add_argument()`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _may_take_others(node: ast.AST) -> bool:
    """Return whether a node may read arguments in another way, or be a parser that takes other flags."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return _OTHER_READERS.fullmatch(name) is not None
        case ast.ClassDef(bases=bases):
            return any(ast.unparse(base).endswith("ArgumentParser") for base in bases)
        case ast.keyword(arg=str(name)):
            return name in _OTHER_FLAGS
    return False


def _has(call: ast.Call, parsers: Collection[str]) -> bool:
    """Return whether a call has a parser as an argument."""
    values = (*call.args, *(keyword.value for keyword in call.keywords))
    return any(isinstance(value, (ast.Name, ast.Attribute)) and ast.unparse(value) in parsers for value in values)
