"""A script and the modules beside it that it imports, directly or indirectly."""

from __future__ import annotations

from pathlib import Path

from trialplane.errors import InputError, Issue, SpecError
from trialplane.importing import script
from trialplane.importing.script import Script
from trialplane.job import document

_MOST_FILES = 200


def modules(file: Path) -> dict[Path, tuple[str, Script]]:
    """Return a script and the modules in its folder that it needs.

    Returns:
        Path below the script's folder → the text, and the content; the script comes first.

    Raises:
        InputError: one cannot be read.
        SpecError: one is not Python.
    """
    home, by_path = file.parent, dict[Path, tuple[str, Script]]()
    todo = [Path(file.name)]
    while todo and len(by_path) < _MOST_FILES:
        path = todo.pop(0)
        if path not in by_path:
            text = source(home / path)
            read = script.read(text, str(home / path))
            by_path[path] = text, read
            todo += [module_file for name in (*read.top, *read.late) for module_file in _module_files(home, name)]
    return by_path


def source(file: Path) -> str:
    """Return the text of a Python file, with a byte order mark and in the encoding that it names, as Python reads it.

    Raises:
        InputError: it cannot be read.
        SpecError: it is not in that encoding.
    """
    try:
        return document.decode(document.content(file), file.name)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}; nothing was changed") from error
    except ValueError as error:
        raise SpecError([Issue(("script",), f"is not Python: {error}", str(file))]) from error


def _module_files(home: Path, module: str) -> list[Path]:
    """Return the files of a module or package in a folder."""
    parts = module.split(".")
    if (home / f"{parts[0]}.py").is_file():
        return [Path(f"{parts[0]}.py")]
    if not (home / parts[0]).is_dir():
        return []
    return [file.relative_to(home) for file in sorted((home / parts[0]).rglob("*.py"))[:_MOST_FILES]]  # for relative imports
