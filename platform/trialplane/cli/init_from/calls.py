"""Calls of existing scripts in command lines."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from trialplane.cli.init_from.request import Request
from trialplane.importing import script, script_folder, shell, wrapper
from trialplane.importing.script import Style

SOURCES = "src"  # folder with the packages of a project, whose modules a command finds only if they are installed
_SUBCOMMAND = re.compile(r"[A-Za-z][\w-]*")


def existing_call(call: script.Call) -> script.Call | None:
    """Return a call with the path at which its script exists; None if it is not at or below the working directory.

    For a module, this may be the `__main__.py` of a package, in a folder of PYTHONPATH or in `src`.
    """
    candidates = [call.script]
    if call.module:  # `python -m a.b`, whose script is a/b.py
        roots = filter(None, [".", *call.variables.get("PYTHONPATH", "").split(os.pathsep), SOURCES])
        files = (call.script, f"{call.script.removesuffix('.py')}/__main__.py")
        candidates = [os.path.normpath(Path(root, file)) for root in roots for file in files]
    for candidate in candidates:
        path = Path(os.path.normpath(Path(call.folder, candidate)))
        is_below = not path.is_absolute() and os.pardir not in path.parts
        if is_below and script_folder.exists(path) and path.is_file():
            return dataclasses.replace(call, script=candidate)
    return None


def existing_shell_call(command_line: str) -> script.Call | None:
    """Return the call of a shell script in a command line; None without one, or if there is no such file."""
    shell_call = wrapper.find_call(command_line)
    return shell_call if shell_call is not None and Path(shell_call.folder, shell_call.script).is_file() else None


def starts_study(call: script.Call) -> bool:
    """Return whether a command starts the search of a Python script, by Optuna or another library of that kind."""
    file = Path(call.folder, call.script)
    parsed_script = script.read(script_folder.source(file), str(file))
    return parsed_script.style is Style.STUDY and subcommand(call.arguments) in ("", parsed_script.searching)


def started_lines(shell_text: str, shell_call: script.Call) -> list[str]:
    """Return the Python commands of a shell script, as one types them in the working directory."""
    path = os.path.normpath(Path(shell_call.folder, shell_call.script))
    started_here = wrapper.python_commands(shell_text, dataclasses.replace(shell_call, script=path, folder="."))
    calls = map(shell.find_call, started_here)
    if any(call is not None and existing_call(call) for call in calls):  # its paths are relative to the working directory
        return started_here
    return wrapper.python_commands(shell_text, shell_call)


def words_here(lines: Sequence[str]) -> str:
    """Return the arguments of Python commands that may name files in the working directory, as the commands stay in it."""
    python_calls = map(shell.find_call, lines)
    return " ".join(shlex.join(call.arguments) for call in python_calls if call is not None and call.folder == ".")


def started_commands(shell_text: str, shell_call: script.Call, request: Request) -> tuple[str, ...]:
    """Return the `platform init` command for each Python command of a shell script, with the options that the user typed."""
    return tuple(request.command(line) for line in started_lines(shell_text, shell_call))


def subcommand(words: Sequence[str]) -> str:
    """Return the subcommand among the arguments of a command, their first word; "" if that does not look like one."""
    return words[0] if words and _SUBCOMMAND.fullmatch(words[0]) else ""


def python_path(call: script.Call) -> list[Path]:
    """Return the folders of PYTHONPATH in a call, relative to the folder in which the command is typed."""
    return [Path(call.folder, entry) for entry in call.variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
