"""The modules of a project that a script imports, and the values in them that parameters can replace. Runs nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trialplane.job import arguments, defaults, document, notebook, settings

_MOST_FILES = 200
_TESTS = re.compile(r"(?:^|/)tests?(?:/|_[^/]*$)|_tests?\.py$")  # tests/layers.py, test_layers.py, layers_test.py


class ModulePath(NamedTuple):
    """The path of a module that a file imports.

    Attributes:
        level: 0 if it is in a folder of `sys.path`, 1 if it is in the file's own folder, as in `from . import nets`, 2 if it
            is in the folder above, and so on.
        path: Path in that folder, without suffix.
    """

    level: int
    path: str


def paths(tree: ast.Module) -> list[ModulePath]:
    """Return the paths of the modules that a Python file may import."""
    all_paths: list[ModulePath] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            all_paths += [ModulePath(level=0, path=alias.name.replace(".", "/")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = (node.module or "").replace(".", "/")
            # An imported name may also be that of a module.
            module_paths = [package, *(f"{package}/{alias.name}".lstrip("/") for alias in node.names)]
            all_paths += [ModulePath(level=node.level, path=path) for path in module_paths if path]
    return list(dict.fromkeys(all_paths))


def imported(file: Path, roots: Sequence[Path]) -> list[Path]:
    """Return the files of the modules that a script imports from some folders, directly or indirectly; 200 at most.

    Of a package, they are only what is imported.
    """
    files = [file]
    for path in files:  # the list grows while it is read
        for module in paths(notebook.parse_or_empty(_text(path))):
            is_relative = 0 < module.level <= len(path.parents)
            folders = [path.parents[module.level - 1]] if is_relative else roots
            candidates = (folder / f"{module.path}{end}" for folder in folders for end in (".py", "/__init__.py"))
            module_file = next(filter(Path.is_file, candidates), None)
            if module_file is not None and module_file not in files and len(files) < _MOST_FILES:
                files.append(module_file)
    return files[1:]


def with_values(names: Collection[str], file: Path, folder: Path, roots: Sequence[Path]) -> dict[str, list[str]]:
    """Return the module that a script imports and that sets some names, with these names in it: `Tree.depth` for `depth`.

    A name that no module sets may be a default of a function or a constructor; see `defaults.in_effect`. {} if no module has
    them, or if several do, so that it is unknown which one is meant. A trial cannot replace values outside of its folder,
    and those of tests do nothing.

    Args:
        names: The names.
        file: The script.
        folder: Folder of the job, to which the path of the module is relative.
        roots: Folders from which the script imports.
    """
    modules = imported(file, roots) if names else []
    set_keys: dict[str, list[str]] = {}  # by module
    default_keys: dict[str, list[str]] = {}
    for path in modules:
        module = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else ""
        # Most modules of a large project do not have the names, and finding all of their values takes long.
        text = settings.normalized(_text(path)) if module and not _TESTS.search(module) else ""
        if any(re.sub(r"_\d+$", "", settings.normalized(name).rpartition(".")[2]) in text for name in names):
            set_keys[module], default_keys[module] = _values(path, [file, *modules])
    keys_by_module: dict[str, list[str]] = {}
    for name in names:
        for module, key in _meant(name, set_keys) or _meant(name, default_keys):
            keys = keys_by_module.setdefault(module, [])
            keys += [key] if key not in keys else []
    return keys_by_module if len(keys_by_module) == 1 else {}


def _meant(name: str, keys_by_module: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return the keys that a name may mean, each after its module."""
    return [(module, key) for module, keys in keys_by_module.items() for key in keys if settings.may_mean(name, key)]


def _values(file: Path, program: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Return the names of the values in a module that its import sets, and those of the defaults that a program uses.

    Values below `if __name__ == "__main__":`, and defaults of a parser's arguments, are neither.

    Args:
        file: The module.
        program: The script, and the modules that it imports.
    """
    text = _text(file)
    tree = notebook.parse_or_empty(text)
    spots = arguments.spots(tree)
    in_main = {id(node) for block in tree.body if arguments.is_main(block) for node in ast.walk(block)}
    names = [
        name
        for name in (settings.spans(text, file.name) if spots else ())
        if id(spots[name].value) not in in_main
        and spots[name].owner not in ("add_argument", "option")  # add_argument("--lr", default=0.1)
    ]
    default_names = [name for name in names if spots[name].is_default]
    if default_names:
        script, *modules = (notebook.parse_or_empty(_text(path)) for path in program)
        used = defaults.in_effect(tree, [script, *map(defaults.imported_part, modules)])
        default_names = [
            name for name in default_names if all(id(spot.value) in used for spot in (spots[name], *spots[name].others))
        ]
    return [name for name in names if not spots[name].is_default], default_names


def _text(file: Path) -> str:
    """Return the text of a Python file; "" if it cannot be read."""
    try:
        return document.decode(document.content(file), file.name)
    except (OSError, ValueError):
        return ""
