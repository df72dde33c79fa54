"""The flags of a script that certainly takes no others, as it reads its arguments only by argparse. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
_METHODS = ("add_argument", "parse_args", *_GROUPS)  # of parsers
# Names in code that may read arguments otherwise, or take other flags: sys.argv, parse_known_args, HfArgumentParser.
_OTHER_READERS = re.compile(
    r"\w*argv|REMAINDER|.*parse_(?:known|intermixed)\w*|\w+ArgumentParser|add_subparsers|.*(?:CLI|cli|FLAGS|flags)"
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
    # Each parser must come from a function of the project, or be its argument.
    creators = {*functions, *_METHODS, "ArgumentParser"}
    parsers = {ast.unparse(call.func.value) for call in methods if isinstance(call.func, ast.Attribute)}
    created = {argument.arg for arguments in functions.values() for argument in (*arguments.posonlyargs, *arguments.args)}
    created |= {ast.unparse(call) for call in calls if _called(call) in creators}
    for node in nodes:
        if isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])) in parsers:
            if not isinstance(node.value, ast.Call) or _called(node.value) not in creators:
                return None
            created.add(name)
    if not parsers <= created or _may_be_changed_elsewhere(nodes, parsers, creators):
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


def _may_be_changed_elsewhere(nodes: Sequence[ast.AST], parsers: Collection[str], creators: Collection[str]) -> bool:
    """Return whether a parser, a group of its flags or one of its methods is used in a way that may add other flags.

    `library.add_flags(parser)` may add some, and so may `add = parser.add_argument` or `plugins["a"] = parser`.

    Args:
        nodes: All nodes of the trees.
        parsers: Parsers and groups whose methods are called, as in the code.
        creators: Names of the functions that may get parsers.
    """
    known_uses: set[int] = set()  # ids of nodes
    called_functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    groups: set[str] = set()
    for node in nodes:
        match node:
            case ast.Attribute(value=value, attr=name) if name not in _METHODS or id(node) in called_functions:
                known_uses.add(id(value))
            case ast.Call() if _called(node) in creators:
                known_uses.update(map(id, (*node.args, *(keyword.value for keyword in node.keywords))))
            case ast.Return(value=ast.expr() as value):
                known_uses.add(id(value))
            case ast.Assign(targets=[target], value=ast.Call() as call) if _called(call) in _GROUPS:
                known_uses.add(id(call))
                groups.add(ast.unparse(target))
            case ast.Expr(value=ast.Call() as call):
                known_uses.add(id(call))
    texts = {*parsers, *groups}
    last_names = {text.rpartition(".")[2] for text in texts}
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                is_parser = name in last_names and ast.unparse(node) in texts
            case ast.Call():
                is_parser = _called(node) in _GROUPS
            case _:
                is_parser = False
        if is_parser and id(node) not in known_uses:
            return True
    return False
