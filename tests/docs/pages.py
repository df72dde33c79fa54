"""The fenced blocks of a page, worked through as a reader does.

A block whose info string has a file's name (`yaml sweep.yaml`) is that file: written, or where a command has made it, what
is to be in it. A block `sh` holds commands, which run as they stand, from top to bottom, and end at the first that fails.
Any other block is an illustration, of which nothing is done.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import yaml

from trialplane.wire import env

ROOT = Path(__file__).parent.parent.parent
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.M | re.S)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: as the fence names it.
        file: the name of the file that it is, or "".
        text: what is in it.
    """

    language: str
    file: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page, in their order."""
    for language, file, text in _BLOCK.findall(page.read_text()):
        yield Block(language, file, text)


def follow(page: Path, folder: Path, home: Path) -> str:
    """Writes the files and types the commands of a page in a folder; gives what these have printed.

    Raises:
        AssertionError: a command failed, or made another file than the page shows.
    """
    printed = ""
    for block in blocks(page):
        if block.file:
            _write(folder / block.file, block.text)
        elif block.language == "sh":
            printed += _type(block.text, folder, home)
    return printed


def _write(file: Path, text: str) -> None:
    if file.exists():
        made = file.read_text()
        same = yaml.safe_load(made) == yaml.safe_load(text) if file.suffix == ".yaml" else made == text
        assert same, f"the page shows another {file} than the commands make:\n{made}"
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _type(commands: str, folder: Path, home: Path) -> str:
    environ = {**os.environ, "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}", env.HOME: str(home)}
    shell = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", commands],
        cwd=folder,
        env={**environ, "RAY_AUTH_MODE": "disabled", "NO_COLOR": "1", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert shell.returncode == 0, shell.stdout
    return shell.stdout
