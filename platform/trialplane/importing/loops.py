"""Loops of the shell over values to search: `for lr in 0.1 0.01; do python train.py --lr $lr; done`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trialplane.importing import literals, shell

_LOOP = re.compile(r"^\s*for\s+(\w+)\s+in\s+([^;\n]+?)\s*(?:;|$)", re.MULTILINE)  # for lr in 0.1 0.01;
_ARRAY = re.compile(r"^\s*(\w+)=\(([^()]*)\)", re.MULTILINE)  # rates=(0.1 0.01)
_ARRAY_VALUES = re.compile(r"""["']?\$\{(\w+)\[[@*]\]\}["']?""")  # "${rates[@]}"
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)\}|(?:\$\(|`)seq\s+(-?\d+)(?:\s+(-?\d+))?(?:\)|`)")  # {1..5}, $(seq 5), $(seq 1 5)
_MOST_VALUES = 100  # of a range
# Lines of a shell script that start no program to train.
_NO_PROGRAM = re.compile(
    r"\s*(?:#|\[|$|(?:echo|printf|for|done|if|then|else|elif|fi|while|case|esac|mkdir|rm|set|sleep|wait|local|exit|cd)\b)"
)


def values_by_variable(text: str) -> dict[str, tuple[Any, ...]]:
    """Return the values of each variable of a loop in a shell script, as of `for lr in 0.1 0.01; do`, by variable.

    The values may also be a range or an array. Empty without a loop over several values, or if the values of a loop are not
    in the text.
    """
    arrays = dict(_ARRAY.findall(text))
    lines = shell.lines(text)
    assignments = filter(None, map(shell.assignment, lines))
    variables = {assignment.name: assignment.value for assignment in assignments}
    loops = {}
    for name, values_text in _LOOP.findall("\n".join(lines)):
        if array := _ARRAY_VALUES.fullmatch(values_text):  # "${rates[@]}"
            values_text = arrays.get(array[1], values_text)
        elif (limits := _RANGE.fullmatch(values_text)) is not None:  # {1..5}, or $(seq 5), which begins at 1
            *first, last = [int(number) for number in limits.groups() if number is not None]
            numbers = range(first[0] if first else 1, last + 1)
            values_text = " ".join(map(str, numbers[:_MOST_VALUES]))
        values_text = shell.with_variable_values(values_text, variables)
        if set(values_text) & set("$*{}`"):  # only the shell knows the values
            return {}
        loops[name] = tuple(literals.value_of(word) for word in values_text.split())
    return loops if any(len(values) > 1 for values in loops.values()) else {}


def as_command(text: str, loop_values: Mapping[str, str]) -> str:
    """Return the commands in the loops of a shell script as one command line; "" if none uses a variable of a loop.

    Args:
        text: Text of the script.
        loop_values: Text in place of each variable of a loop, such as `{lr=0.1}`.
    """
    variables = dict(loop_values)
    exports: list[str] = []  # assignments before each command
    folder_changes: list[str] = []  # the `cd` commands
    commands: list[str] = []  # those that use variables of the loops
    for line in shell.lines(text):
        if (assignment := shell.assignment(line)) is not None:
            value = shell.with_variable_values(assignment.value, variables)
            variables[assignment.name] = value
            if assignment.is_exported:
                exports.append(f"{assignment.name}={value} ")
        elif re.match(r"\s*cd\b", line):
            folder_changes.append(shell.with_variable_values(line.strip().rstrip(";"), variables))
        elif not _NO_PROGRAM.match(line):
            without_redirections = re.sub(r"\s*(?:>|2>|\||;|&\s*$).*", "", line).strip()
            command = shell.with_variable_values(without_redirections, variables)
            if any(value in command for value in loop_values.values()):
                commands.append(command)
    prefix = "".join(exports)
    command_line = [*folder_changes, *(prefix + command for command in dict.fromkeys(commands))]
    return " && ".join(command_line) if commands else ""
