"""The lines that a Python file may print, from its text, with a number in place of each value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trialplane.job import notebook

_PRINTS = re.compile(r"print|info|debug|warning|log|write|set_postfix|set_description|echo|secho|log_string|logger")
_VALUE = "0.5"
_FORMAT = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?[fFeEgGdirs]|\{[^{}]*\}")  # of % and of `str.format`


def lines(text: str) -> Iterator[str]:
    """Yield the lines that calls such as `print` and `logger.info` may print; none if the text is not Python."""
    try:
        tree = notebook.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: expressions that are nested too deeply
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if not _PRINTS.fullmatch(name):
            continue
        words = [_shown(argument) for argument in node.args]
        if name == "set_postfix":  # tqdm prints the keywords: `set_postfix(loss=x)` is `loss=0.5`
            words += [f"{keyword.arg}={_VALUE}" for keyword in node.keywords if keyword.arg]
        yield from " ".join(words).splitlines()


def _shown(node: ast.expr) -> str:
    """Return the text of an expression with a number in place of each value: `loss 0.5` for `f"loss {loss:.3f}"`."""
    match node:
        case ast.Constant(value=str(text)):
            return _FORMAT.sub(_VALUE, text)
        case ast.JoinedStr(values=parts):
            return "".join(_shown(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Mod()):  # "loss %.3f" % loss
            return _shown(left)
        case ast.BinOp(left=left, op=ast.Add(), right=right):  # "loss " + str(loss)
            return _shown(left) + _shown(right)
        case ast.Call(func=ast.Attribute(value=text, attr="format")):
            return _shown(text)
    return _VALUE
