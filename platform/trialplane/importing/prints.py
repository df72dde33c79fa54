"""The lines that a Python file may print, from its text, with a number in place of each value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trialplane.importing import naming
from trialplane.job import notebook

# Names of functions and methods that print.
_PRINTS = re.compile(r"print|info|debug|warning|log|write|set_postfix|set_description|echo|secho|log_string|logger")
_VALUE = "0.5"  # stands for each value
_FORMAT = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?[fFeEgGdirs]|\{[^{}]*\}")  # %.3f, {loss:.3f}


def lines(text: str) -> Iterator[str]:
    """Yield the lines that calls such as `print` and `logger.info` may print; none if the text is not Python."""
    calls = (node for node in ast.walk(notebook.parse_or_empty(text)) if isinstance(node, ast.Call))
    for call in calls:
        name = naming.last(call.func)
        if _PRINTS.fullmatch(name):
            words = [_printed_text(argument) for argument in call.args]
            if name == "set_postfix":  # tqdm prints the keywords: `set_postfix(loss=x)` is `loss=0.5`
                words += [f"{keyword.arg}={_VALUE}" for keyword in call.keywords if keyword.arg]
            yield from " ".join(words).splitlines()


def _printed_text(node: ast.expr) -> str:
    """Return the text of an expression with a number in place of each value: `loss 0.5` for `f"loss {loss:.3f}"`."""
    match node:
        case ast.Constant(value=str(text)):
            return _FORMAT.sub(_VALUE, text)
        case ast.JoinedStr(values=parts):
            return "".join(map(_printed_text, parts))
        case ast.BinOp(left=left, op=ast.Mod()):  # "loss %.3f" % loss
            return _printed_text(left)
        case ast.BinOp(left=left, op=ast.Add(), right=right):  # "loss " + str(loss)
            return _printed_text(left) + _printed_text(right)
        case ast.Call(func=ast.Attribute(value=text, attr="format")):  # "loss {}".format(loss)
            return _printed_text(text)
    return _VALUE
