"""A script, the modules beside it that it imports, directly or indirectly, and the folder in which it is started."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trialplane.errors import InputError, Issue, SpecError
from trialplane.importing import script
from trialplane.importing.script import Script
from trialplane.job import document

_MOST_FILES = 200
_LEVELS = 3  # folders above the script's in which its modules and files may be


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of a script: its folders and its module.

    Attributes:
        folder: The job's folder.
        cwd: The working directory, relative to it.
        path: Folders for PYTHONPATH, relative to it.
        module: The module that the script is, if it runs as one; otherwise "".
    """

    folder: Path
    cwd: str = "."
    path: tuple[str, ...] = ()
    module: str = ""

    @property
    def roots(self) -> list[Path]:
        """The folders from which it imports, beside its own."""
        return [self.folder / entry for entry in self.path]

    def within(self, folder: Path) -> Start:
        """Return the same start in a folder above as the job's, in which the script is started unless it needs its own."""
        cwd = "." if self.cwd == "." else os.path.relpath(self.folder / self.cwd, folder)
        return Start(folder, cwd, tuple(os.path.relpath(root, folder) for root in self.roots), self.module)

    def command(self, name: str, function: str = "", variables: Sequence[str] = ()) -> list[str]:
        """Return the command of a job; [] if it can run the file as a script.

        Args:
            name: Of the script in the job's folder.
            function: A function of the script that is called, as an entry point of its package is.
            variables: Assignments for its environment.
        """
        path = [os.path.relpath(entry, self.cwd) for entry in self.path]
        path += [os.path.relpath(Path(name).parent, self.cwd)] if function and not self.module else []
        path = [entry for entry in path if entry != "." or not (self.module or function)]
        settings = [*(["-C", self.cwd] if self.cwd != "." else [])]
        settings += [f"PYTHONPATH={os.pathsep.join(dict.fromkeys(path))}"] if path else []
        settings += variables
        program = ["-m", self.module] if self.module else [os.path.relpath(name, self.cwd)]
        if function:
            program = ["-c", f"from {self.module or Path(name).stem} import {function}; {function}()"]
        is_script = not settings and not self.module and not function
        return [] if is_script else [*(["env", *settings] if settings else []), "python", *program]

    def words(self, name: str) -> list[str]:
        """Return the command line of the script."""
        return self.command(name) or ["python", name]


def start(file: Path, read: Script, text: str) -> Start:
    """Return how a script is started: where its modules are, and the files that it names.

    Args:
        file: The script.
        read: Its content.
        text: Of it.
    """
    home = file.parent
    names = {module.partition(".")[0] for module in (*read.top, *read.late)}
    never = (Path.home(), Path(tempfile.gettempdir()), Path("/tmp"), Path(file.anchor))
    above = [folder for folder in home.parents[:_LEVELS] if folder not in never]
    module = _module(file)
    module = module if read.is_module or module.partition(".")[0] in names else ""
    roots = [file.parents[module.count(".")]] if module else []
    for name in sorted(names):
        if not any(has_module(folder, name) for folder in (home, *roots)) and not is_installed(name):
            candidates = (root for folder in above for root in (folder, folder / "src"))
            roots += [root for root in candidates if has_module(root, name) and not home.is_relative_to(root / name)][:1]
    config = str(Path(read.config).parent) if read.config else ""  # Hydra looks for it beside the script
    paths = [path for path in read.paths if not config or os.path.normpath(path) != os.path.normpath(config)]
    beside = [path for path in paths if not path.startswith("../") and (home / path).exists()]
    plain = [path for path in paths if not path.startswith("../") and path not in beside]
    from_above = [folder for path in plain for folder in above if (folder / path).exists()][:1]
    upward = [(home / path).resolve() for path in paths if path.startswith("../")]
    upward = [path if path.is_dir() else path.parent for path in upward if path.exists() and _is_below(path, above)]
    folder = Path(os.path.commonpath([roots[0] if module else home, *roots, *from_above, *upward]))
    cwd = from_above[0] if from_above else home if upward or (beside and not module) else folder
    alters_path = "sys.path" in text or "addsitedir" in text
    path = () if alters_path and not module else tuple(os.path.relpath(root, folder) for root in dict.fromkeys(roots))
    return Start(folder, os.path.relpath(cwd, folder), path, module)


def _is_below(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.resolve().is_relative_to(folder) for folder in folders)


def _module(file: Path) -> str:
    """Return the name of a script in a package as a module; "" outside of packages."""
    names = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names) if len(names) > 1 else ""


def has_module(folder: Path, name: str) -> bool:
    """Return whether a folder has a module or a package."""
    return (folder / name).is_dir() or (folder / f"{name}.py").is_file()


def is_installed(name: str) -> bool:
    """Return whether a module can be imported here."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def modules(file: Path) -> dict[Path, tuple[str, Script]]:
    """Return a script and the modules in its folder that it needs.

    Returns:
        Path below the script's folder → the text, and the content; the script comes first.

    Raises:
        InputError: One cannot be read.
        SpecError: One is not Python.
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
        InputError: It cannot be read.
        SpecError: It is not in that encoding.
    """
    try:
        return document.decode(document.content(file), file.name)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}; nothing was changed") from error
    except ValueError as error:
        raise SpecError([Issue(("script",), f"is not Python: {error}", str(file))]) from error


def package_text(file: Path) -> str:
    """Return the text of the package of a script, in which its parser may be; "" outside of packages."""
    files = sorted(file.parents[module.count(".") - 1].rglob("*.py"))[:_MOST_FILES] if (module := _module(file)) else []
    return "\n".join(map(source, files))


def _module_files(home: Path, module: str) -> list[Path]:
    """Return the files of a module or package in a folder."""
    parts = module.split(".")
    if (home / f"{parts[0]}.py").is_file():
        return [Path(f"{parts[0]}.py")]
    if not (home / parts[0]).is_dir():
        return []
    return [file.relative_to(home) for file in sorted((home / parts[0]).rglob("*.py"))[:_MOST_FILES]]  # for relative imports
