"""The fenced blocks of a page, followed as a reader does.

| block | what a reader does |
|---|---|
| any language with a title (`yaml title="sweep.yaml"`) | writes that file, or compares it with what a command has written |
| `sh` | types the commands, from top to bottom, in one folder per page |
| `bash` | only reads them: they need a cluster, a GPU, the network, or minutes |
| others | only reads them |
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
FOLDER = ROOT / "platform" / "docs"
README = ROOT / "README.md"
# The generated references have only illustrations.
PAGES = [README, *(page for page in sorted(FOLDER.rglob("*.md")) if not page.read_text().startswith("<!-- Generated"))]
_BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: the file that it is in.
        language: as the fence names it.
        title: the name of the file that it shows, or "".
        text: its content.
    """

    page: Path
    language: str
    title: str
    text: str

    @property
    def is_followed(self) -> bool:
        """Whether a reader types or writes it."""
        return self.language == "sh" or bool(self.title)


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    return [Block(page, *match) for match in _BLOCK.findall(page.read_text())]


def name(page: Path) -> str:
    """A page's short address; the README's is README."""
    return page.stem


def follow(page: Path, folder: Path, home: Path) -> str:
    """Writes the files and types the commands of a page in a folder, and returns what the commands printed.

    Raises:
        AssertionError: a command failed, or wrote another file than the page shows.
    """
    printed = ""
    for block in blocks(page):
        if block.language == "sh":
            printed += _type(block.text, folder, home)
        elif block.title:
            _write(folder / block.title, block.text)
    return printed


def commands(text: str) -> Iterator[str]:
    """Each `platform …` in commands for a shell, without redirections and comments."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|;|>|\||`", line.partition(" # ")[0]):
            if part.strip().startswith("platform "):
                yield part.strip()


def _write(file: Path, text: str) -> None:
    if file.exists():
        written = file.read_text()
        same = yaml.safe_load(written) == yaml.safe_load(text) if file.suffix == ".yaml" else written == text
        assert same, f"the page shows another {file} than the commands write:\n{written}"
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
