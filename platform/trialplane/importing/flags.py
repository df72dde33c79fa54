"""The defaults and types of the arguments that a Python file declares, from its text."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from trialplane.importing import search
from trialplane.job import arguments


def _declarations(calls: Sequence[ast.Call]) -> Iterator[tuple[ast.Call, list[str], str]]:
    """Yield each call of `add_argument` and of click's `option`, with its flags and the name of the argument.

    The name is `batch_size` for `--batch-size`.
    """
    for call in calls:
        is_declaration = ast.unparse(call.func).rpartition(".")[2] in ("add_argument", "option")
        if not (is_declaration and call.args and isinstance(call.args[0], ast.Constant)):
            continue
        names = [str(argument.value) for argument in call.args if isinstance(argument, ast.Constant)]
        # A name without dashes is that of the variable in click; otherwise the long one is.
        long_name = min(names, key=lambda name: (name.startswith("-"), not name.startswith("--")))
        yield call, names, _variable(long_name)


def _variable(flag: str) -> str:
    """Return the name of the variable that gets the value of a flag."""
    return flag.lstrip("-").replace("-", "_")


def defaults(calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the default of each declared argument with a default.

    Args:
        calls: Calls in the file. Those that declare no argument are ignored.
    """
    for call, _, name in _declarations(calls):
        keywords = {word.arg: word.value for word in call.keywords}
        action = ast.unparse(keywords["action"]).strip("'") if "action" in keywords else ""
        default = keywords.get("default")
        if default is None and action in ("store_true", "store_false"):
            default = ast.Constant(action == "store_false")  # the opposite of what the switch stores
        if default is not None:
            # A new constant has no line, and readers of the tree need one.
            yield name, ast.copy_location(default, call)


def typed(words: Sequence[str], calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the value of each argument that a command line gives: `batch_size` for `--batch-size 8`.

    Args:
        words: Words of the command line. A short flag may have its value in the same word: `-n8`, `-n=8`.
        calls: Calls in the file, which declare the short flags.
    """
    names = {flag: name for _, flags, name in _declarations(calls) for flag in flags if flag.startswith("-")}
    for word, next_word in itertools.pairwise((*words, "-")):
        flag, equals, text = word.partition("=")
        if flag not in names and word[:2] in names and word[1:2] != "-":
            flag, equals, text = word[:2], "=", word[2:]
        if flag in names or flag.startswith("--"):
            value = text if equals else True if next_word.startswith("-") else next_word
            constant = ast.Constant(search.scalar(value) if isinstance(value, str) else value)
            yield names.get(flag, _variable(flag)), constant


def float_names(text: str) -> set[str]:
    """Return the names of a Python file's parameters that are floats: `drop_path` for `--drop-path` with `type=float`.

    A parameter may be a flag, or a value in the text, as `arguments.spots` finds it. Empty if the text is not Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: expressions that are nested too deeply
        return set()
    values = [(name, spot.value) for name, spot in arguments.spots(tree).items()]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            flags = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            types = [word.value for word in node.keywords if word.arg in ("type", "default")]
            values += [(flag.lstrip("-"), value) for flag in flags if flag.startswith("--") for value in types]
    return {name.replace("-", "_") for name, value in values if _is_float(value)}


def _is_float(node: ast.expr | None) -> bool:
    """Return whether an expression is a float, or the type of floats."""
    is_type = isinstance(node, ast.Name) and node.id == "float"
    return is_type or (isinstance(node, ast.Constant) and isinstance(node.value, float))
