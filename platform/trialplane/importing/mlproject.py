"""The parameters and the command of an MLproject of MLflow."""

from __future__ import annotations

import re
import shlex

from trialplane.importing import literals, shell
from trialplane.job import credentials, document
from trialplane.wire.declared import Option

NAME = "MLproject"


def read(text: str, name: str) -> tuple[list[Option], list[str]]:
    """Return the parameters and the command of an MLproject's entry point `main`, or of its only one.

    Both are empty if there is no such entry point, or if its command has a {NAME} that is not one of the parameters.
    """
    match document.parse(text, name).data:
        case {"entry_points": {"main": entry_point}}:
            pass
        case {"entry_points": dict(entry_points)} if len(entry_points) == 1:
            [entry_point] = entry_points.values()
        case _:
            return [], []
    match entry_point:
        case {"command": str(raw_command), "parameters": dict(parameters)}:
            command, _ = credentials.extract(raw_command)
        case _:
            return [], []
    names = set(re.findall(r"\{([\w-]+)\}", command))  # {lr}, {batch-size}
    options = []
    for parameter, declaration in parameters.items():
        fields = declaration if isinstance(declaration, dict) else {"type": declaration}  # `lr: float` is a short form
        if parameter in names:
            is_required = "default" not in fields
            declared_type = str(fields.get("type", ""))
            options.append(
                literals.option_of(parameter, fields.get("default"), required=is_required, declared_type=declared_type)
            )
    if len(options) < len(names):
        return [], []
    return options, ["bash", "-c", command] if shell.SYNTAX.search(command) else shlex.split(command)
