"""A script and the modules of its own, which lie beside it: what it imports, and what these import."""

from __future__ import annotations

from pathlib import Path

from trialplane.errors import InputError, Issue, SpecError
from trialplane.importing import script
from trialplane.importing.script import Script
from trialplane.job import document

_MOST_FILES = 200


def modules(file: Path) -> dict[Path, tuple[str, Script]]:
    """A script, and the modules in its folder that it needs.

    Args:
        file: the script.

    Returns:
        Path below the script's folder → the text, and what it says; the script comes first.

    Raises:
        InputError: one cannot be read.
        SpecError: one is not Python.
    """
    home, found = file.parent, dict[Path, tuple[str, Script]]()
    todo = [Path(file.name)]
    while todo and len(found) < _MOST_FILES:
        one = todo.pop(0)
        if one not in found:
            text = source(home / one)
            read = script.read(text, str(home / one))
            found[one] = text, read
            todo += [own for name in (*read.top, *read.late) for own in _own(home, name)]
    return found


def source(file: Path) -> str:
    """The text of a Python file, with a byte order mark and in whatever encoding it names, as Python reads it.

    Raises:
        InputError: it cannot be read.
        SpecError: it is not in that encoding.
    """
    try:
        return document.decoded(document.content(file), file.name)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}; nothing was changed") from error
    except ValueError as error:
        raise SpecError([Issue(("script",), f"is not Python: {error}", str(file))]) from error


def _own(home: Path, module: str) -> list[Path]:
    """The files of a module that lies in a folder, its packages' among them."""
    parts = module.split(".")
    if (home / f"{parts[0]}.py").is_file():
        return [Path(f"{parts[0]}.py")]
    if not (home / parts[0]).is_dir():
        return []
    return [file.relative_to(home) for file in sorted((home / parts[0]).rglob("*.py"))[:_MOST_FILES]]  # by relative imports
