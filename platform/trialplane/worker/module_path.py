"""Folders from which a trial's interpreters import modules before others, also if its command sets PYTHONPATH."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from trialplane.job import credentials
from trialplane.wire import env

_PATH = "PYTHONPATH"
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_COMMAND_FLAG = re.compile(r"-\w*c")  # of a shell: `bash -lc`
# An assignment of PYTHONPATH in a text for a shell, where a command begins, or as an argument of `env` and `export`. The
# numbers bound the work for each of many beginnings.
_ASSIGNMENT = re.compile(
    r"""(?:^|[\n;&|({`]|(?<![^\s;&|({`"'])(?:!|(?:if|while|elif|do|then|else|time|exec|export)(?!\S)|-\w*c\s+["'])|"""
    r"""(?<![\w.-])env(?!\S)(?:\s+-\S+(?:\s+[^\s=-][^\s=]*)?){0,9})[ \t]*"""
    r"""(?:[A-Za-z_]\w*=(?:'[^']{0,99}'|"[^"]{0,99}"|[^\s;&|'"]){0,400}\s+){0,20}PYTHONPATH="""
)


def import_variables(folder: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which an interpreter imports from a folder first, and then from those of its `variables`."""
    return {name: os.pathsep.join(filter(None, (folder, variables.get(name)))) for name in (_PATH, env.MODULE_FOLDERS)}


def with_import_folders(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return a command with the folders of `import_variables` before those in each PYTHONPATH that the command itself sets.

    `env PYTHONPATH=src python x.py` becomes `env PYTHONPATH=FOLDERS:src python x.py`, as it would replace the folders.
    """
    folders = variables.get(env.MODULE_FOLDERS, "")
    return list(_words(command, folders)) if folders else list(command)


def _shell_text(text: str) -> str:
    """Return a text for a shell with a reference to the folders before those that it sets: PYTHONPATH="${VARIABLE}":src."""
    pieces, copied_until = [], 0
    quote = ""  # the quotation mark that is open at this point of the text
    for match in _ASSIGNMENT.finditer(text):
        piece = text[copied_until : match.end()]
        quote = credentials.open_quote(piece, quote)
        reference = f'"${{{env.MODULE_FOLDERS}}}"'
        if quote == '"':  # bash -c "PYTHONPATH=src …": the inner shell replaces the variable
            reference = reference.replace('"', r"\"").replace("$", r"\$")
        pieces += [piece, reference, os.pathsep]
        copied_until = match.end()
    return "".join([*pieces, text[copied_until:]])


def _words(command: Sequence[str], folders: str) -> Iterator[str]:
    """Yield the words of a command with folders before those that it sets, by `env PYTHONPATH=src` or a shell's text."""
    follows_shell = follows_env = False
    previous = ""
    for word in command:
        if follows_shell and _COMMAND_FLAG.fullmatch(previous):  # the text of `bash -c TEXT`
            yield _shell_text(word)
            follows_shell = False
        elif follows_env and word.startswith(f"{_PATH}="):
            yield f"{_PATH}={folders}{os.pathsep}{word.partition('=')[2]}"
        else:
            yield word
        # Assignments, and options with their values, come before the program: `env -u HOME X=1 PYTHONPATH=src python`.
        is_before_program = "=" in word or word.startswith("-") or previous.startswith("-")
        follows_env = PurePath(word).name == "env" or (follows_env and is_before_program)
        follows_shell = follows_shell or PurePath(word).name in _SHELLS
        previous = word
