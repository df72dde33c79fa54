"""A file that starts a program, read and never run: a shell script, or an MLproject of MLflow."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import yaml

from trialplane.errors import Issue, SpecError
from trialplane.importing.script import COMMAND, Script
from trialplane.job import document
from trialplane.wire.declared import Option

_MLPROJECT = "MLproject"
_SHELLS = (".sh", ".bash")
_VARIABLE = re.compile(r"\$\{(\w+):?[-=]([^${}`]+)\}")  # ${LR:-0.1}
_ARGUMENT = re.compile(
    r"""^\s*(?:export\s+|local\s+)?(\w+)=["']?\$\{?(\d)(?::?-([^${}`]*))?\}?["']?\s*(?:#.*)?$""", re.MULTILINE
)
_SHELL_SYNTAX = re.compile(r"[|&;<>$`*?\n]")
_TYPES = {"float": "float", "int": "int"}


def is_launcher(file: PurePath) -> bool:
    """Whether a file is one of these, by its name."""
    return file.name == _MLPROJECT or file.suffix in _SHELLS


def read(text: str, name: str) -> Script:
    """Return the content of a launcher.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        SpecError: it has no parameters that a job could set.
    """
    if PurePath(name).name == _MLPROJECT:
        options, command = _of_mlproject(text, name)
        remedy = "an entry point needs `parameters:` and a command with {NAME}"
    else:
        options, command = _of_shell(text, PurePath(name))
        remedy = "write LR=${LR:-0.1} in place of LR=0.1, or LR=${1:-0.1}, for each value to search"
    if not options:
        raise SpecError([Issue(("script",), f"has no parameters; {remedy}", name)])
    return Script(COMMAND, tuple(options), "", (), (), command=tuple(command))


def _of_shell(text: str, file: PurePath) -> tuple[list[Option], list[str]]:
    """Variables with a default, and arguments that are assigned to variables."""
    arguments: dict[int, Option] = {}
    for name, position, default in _ARGUMENT.findall(text):
        if int(position) > 0:
            arguments.setdefault(int(position), _option(name, default, required=not default))
    positional = [arguments[index] for index in range(1, len(arguments) + 1) if index in arguments]
    names = {option.name for option in positional}
    defaults = dict(reversed([(name, default) for name, default in _VARIABLE.findall(text) if not name.isdigit()]))
    variables = [_option(name, defaults[name]) for name in reversed(defaults) if name not in names]
    shell = "sh" if re.match(r"#!\S*(?:/|env )sh\b", text) else "bash"
    command = [
        *(["env", *(f"{option.name}={{{option.name}}}" for option in variables)] if variables else []),
        shell,
        file.name,
    ]
    return [*variables, *positional], [*command, *(f"{{{option.name}}}" for option in positional)]


def _of_mlproject(text: str, name: str) -> tuple[list[Option], list[str]]:
    """Parameters and command of the entry point main, or of the only one."""
    data = document.parse(text, name).data
    points = data.get("entry_points") if isinstance(data, dict) else None
    points = points if isinstance(points, dict) else {}
    point = points.get("main") or (next(iter(points.values())) if len(points) == 1 else None)
    command, parameters = (point.get("command"), point.get("parameters")) if isinstance(point, dict) else (None, None)
    if not isinstance(command, str) or not isinstance(parameters, dict):
        return [], []
    options = list(_declared(parameters, command))
    unset = re.findall(r"\{(\w+)\}", command)
    if set(unset) - {option.name for option in options}:
        return [], []
    return options, ["bash", "-c", command] if _SHELL_SYNTAX.search(command) else shlex.split(command)


def _declared(parameters: dict[str, Any], command: str) -> Iterator[Option]:
    for name, declaration in parameters.items():
        fields = declaration if isinstance(declaration, dict) else {"type": declaration}
        if f"{{{name}}}" in command:
            yield _option(name, fields.get("default"), required="default" not in fields, kind=str(fields.get("type", "")))


def _option(name: str, default: Any, *, required: bool = False, kind: str = "") -> Option:
    """Return the option of a text, which may be that of a number."""
    if isinstance(default, str):
        with contextlib.suppress(yaml.YAMLError):
            default = yaml.safe_load(default.strip("\"'"))
    default = default if isinstance(default, (int, float, str)) and not isinstance(default, bool) else None
    number = "int" if isinstance(default, int) else "float" if isinstance(default, float) else "str"
    if isinstance(default, int) and kind == "float":
        number, default = "float", float(default)
    return Option(name, default, _TYPES.get(kind, number), required=required)
