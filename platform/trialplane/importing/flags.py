"""The defaults and types of the arguments that a Python file declares, from its text."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trialplane.importing import naming, search
from trialplane.job import arguments, notebook


class _Declaration(NamedTuple):
    """A call that declares an argument.

    Attributes:
        call: The call.
        flags: Flags and names in it: `-b`, `--batch-size`.
        variable: Variable that gets the value: `batch_size`.
    """

    call: ast.Call
    flags: list[str]
    variable: str


def _declarations(calls: Sequence[ast.Call]) -> Iterator[_Declaration]:
    """Yield the calls of `add_argument` and of click's `option` among some calls."""
    for call in calls:
        flags = [str(argument.value) for argument in call.args if isinstance(argument, ast.Constant)]
        if naming.last(call.func) in ("add_argument", "option") and flags:
            # In click, a name without dashes is that of the variable. Otherwise the first long flag is.
            variable_flag = min(flags, key=lambda flag: (flag.startswith("-"), not flag.startswith("--")))
            yield _Declaration(call, flags, _variable(variable_flag))


def _variable(flag: str) -> str:
    """Return the name of the variable that gets the value of a flag."""
    return flag.lstrip("-").replace("-", "_")


def defaults(calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the default of each declared argument with a default.

    Args:
        calls: Calls in the file. Those that declare no argument are ignored.
    """
    for declaration in _declarations(calls):
        keywords = {word.arg: word.value for word in declaration.call.keywords}
        action = ast.unparse(keywords["action"]).strip("'") if "action" in keywords else ""
        default = keywords.get("default")
        if default is None and action in ("store_true", "store_false"):
            default = ast.Constant(action == "store_false")  # the opposite of what the switch stores
        if default is not None:
            # A new constant has no line, and readers of the tree need one.
            yield declaration.variable, ast.copy_location(default, declaration.call)


def typed(words: Sequence[str], calls: Sequence[ast.Call]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the value of each argument that a command line gives: `batch_size` for `--batch-size 8`.

    Args:
        words: Words of the command line. A short flag may have its value in the same word: `-n8`, `-n=8`.
        calls: Calls in the file, which declare the short flags.
    """
    variables: dict[str, str] = {}  # declared flag → variable
    for declaration in _declarations(calls):
        variables |= {flag: declaration.variable for flag in declaration.flags if flag.startswith("-")}
    for word, next_word in itertools.pairwise((*words, "-")):  # "-": after the last word, there is no value
        flag, equals, text = word.partition("=")
        has_value_attached = flag not in variables and word[:2] in variables and word[1:2] != "-"  # -n8
        if has_value_attached:
            flag, equals, text = word[:2], "=", word[2:]
        if flag not in variables and not flag.startswith("--"):
            continue
        if equals:
            value = search.scalar(text)
        elif next_word.startswith("-"):  # a switch
            value = True
        else:
            value = search.scalar(next_word)
        yield variables.get(flag, _variable(flag)), ast.Constant(value)


def names(text: str) -> set[str]:
    """Return the long flags that a Python file declares, without dashes before them; none if the text is not Python."""
    calls = [node for node in ast.walk(notebook.parse_or_empty(text)) if isinstance(node, ast.Call)]
    flags = (flag for declaration in _declarations(calls) for flag in declaration.flags)
    return {flag.removeprefix("--") for flag in flags if flag.startswith("--")}


def float_names(text: str) -> set[str]:
    """Return the names of a Python file's parameters that are floats, by its flags and by the values in its text.

    For these, see `arguments.spots`. Empty if the text is not Python.
    """
    values = arguments.spots(notebook.parse_or_empty(text)).items()
    return float_flags(text) | {name.replace("-", "_") for name, spot in values if _is_float(spot.value)}


def float_flags(text: str) -> set[str]:
    """Return the variables of a Python file's flags that are floats: `drop_path` for `--drop-path` with `type=float`."""
    variables: set[str] = set()
    for node in ast.walk(notebook.parse_or_empty(text)):
        if isinstance(node, ast.Call):  # of `add_argument`, or of any other function that declares a flag
            words = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            declared = [keyword.value for keyword in node.keywords if keyword.arg in ("type", "default")]
            if any(map(_is_float, declared)):
                variables.update(_variable(word) for word in words if word.startswith("--"))
    return variables


def _is_float(node: ast.expr | None) -> bool:
    """Return whether an expression is a float, or the type of floats."""
    is_type = isinstance(node, ast.Name) and node.id == "float"
    is_value = isinstance(node, ast.Constant) and isinstance(node.value, float)
    return is_type or is_value
