"""The lines that a Python file may print, from its text, with a number or the expression in place of each value."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Iterator

from trialplane.importing import naming
from trialplane.job import notebook

# Names of functions and methods that print.
_PRINTS = re.compile(r"print|info|debug|warning|log|write|set_postfix|set_description|echo|secho|log_string|logger")
_VALUE = "0.5"  # stands for each value
_FORMAT = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?[fFeEgGdirs]|\{[^{}]*\}")  # %.3f, {loss:.3f}


def lines(text: str, shown: Callable[[ast.expr], str] = lambda _value: _VALUE) -> Iterator[str]:
    """Yield the lines that calls such as `print` and `logger.info` may print; none if the text is not Python.

    Args:
        text: Text of the file.
        shown: Function that returns the text in place of a value, which is an argument of a call or part of an f-string.
    """
    calls = (node for node in ast.walk(notebook.parse_or_empty(text)) if isinstance(node, ast.Call))
    for call in calls:
        name = naming.last(call.func)
        if _PRINTS.fullmatch(name):
            words = [_printed_text(argument, shown) for argument in call.args]
            if name == "set_postfix":  # tqdm prints the keywords: `set_postfix(loss=x)` is `loss=0.5`
                words += [f"{keyword.arg}={_VALUE}" for keyword in call.keywords if keyword.arg]
            yield from " ".join(words).splitlines()


def expression(metric: str, texts: Iterable[str]) -> str:
    """Return the words of the expression that Python files print behind the name of a metric; "" without one.

    They are `test_rmse` for Test, or `results_rmse` of `results["rmse"]`.
    """
    value = re.compile(rf"(?<!\w){re.escape(metric)}\W+(\w+)")
    texts_of_lines = (lines(text, lambda node: re.sub(r"\W+", "_", ast.unparse(node)).strip("_")) for text in texts)
    matches = map(value.search, itertools.chain.from_iterable(texts_of_lines))
    return next((match[1] for match in matches if match), "")


def _printed_text(node: ast.expr, shown: Callable[[ast.expr], str]) -> str:
    """Return the text of an expression with another text for each value: `loss 0.5` for `f"loss {loss:.3f}"`."""
    match node:
        case ast.Constant(value=str(text)):
            return _FORMAT.sub(_VALUE, text)
        case ast.JoinedStr(values=parts):
            return "".join(_printed_text(part, shown) for part in parts)
        case ast.FormattedValue(value=value):
            return shown(value)
        case ast.BinOp(left=left, op=ast.Mod()):  # "loss %.3f" % loss
            return _printed_text(left, shown)
        case ast.BinOp(left=left, op=ast.Add(), right=right):  # "loss " + str(loss)
            return _printed_text(left, shown) + _printed_text(right, shown)
        case ast.Call(func=ast.Attribute(value=text, attr="format")):  # "loss {}".format(loss)
            return _printed_text(text, shown)
    return shown(node)
