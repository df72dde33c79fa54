"""The surroundings of a script: the folder in which it is started, and the modules in its own folder that it imports.

`start` finds the folders from the modules that the script imports and the files that it names. `modules` reads the modules.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.machinery
import importlib.util
import os
import re
import sysconfig
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from trialplane.errors import InputError, Issue, SpecError
from trialplane.importing import script
from trialplane.importing.script import Script
from trialplane.job import document, module_files, notebook

_MOST_FILES = 200
_MOST_ENTRIES = 1000
_NAMED_PATH = re.compile(r"(?<![\w./$-])(?:\./)?(\w[\w-]*(?:[./][\w.-]+)+|\w[\w./-]*/)")  # run.py, ./data/, src/fit.py
_NAMED_MODULE = re.compile(r"python[\d.]*(?:\s+-[a-z])*\s+-m\s+([\w.]+)")  # python -m src.fit
MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w{1,99}(?:\.\w{1,99})*)'", re.ASCII)
_LEVELS = 3  # folders above the script's in which its modules and files may be


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of a script: its folders and its module.

    Attributes:
        folder: Folder of the job.
        cwd: Working directory, relative to `folder`.
        path: Folders for PYTHONPATH, relative to `folder`.
        module: Name of the script as a module, if it must be run as one; otherwise "".
        links: Paths in `folder` that are too large to be uploaded, and to which the job links.
    """

    folder: Path
    cwd: str = "."
    path: tuple[str, ...] = ()
    module: str = ""
    links: tuple[str, ...] = ()

    @property
    def roots(self) -> list[Path]:
        """The folders in PYTHONPATH, from which the script imports in addition to its own folder."""
        return [self.folder / entry for entry in self.path]

    @property
    def job_fields(self) -> dict[str, Any]:
        """Fields of job.yaml for the links; {} without links."""
        return {"links": list(self.links)} if self.links else {}

    def within(self, folder: Path) -> Start:
        """Return the same start for a job in `folder`, which is this folder or one above.

        A script that was started in the old folder is started in the new one. Any other keeps its working directory.
        """
        cwd = "." if self.cwd == "." else os.path.relpath(self.folder / self.cwd, folder)
        path = tuple(os.path.relpath(root, folder) for root in self.roots)
        return Start(folder, cwd=cwd, path=path, module=self.module)

    def command(self, name: str, function: str = "", variables: Sequence[str] = ()) -> list[str]:
        """Return the command of a job that starts the script; [] if the job can run the file by its field `script`.

        Args:
            name: Path of the script, relative to the job's folder.
            function: Function of the script to call, as an entry point of its package is called; "" to run the script.
            variables: Assignments of environment variables.
        """
        # The words of `env`.
        path = [os.path.relpath(entry, self.cwd) for entry in self.path]
        if function and not self.module:  # `python -c` does not import from the script's folder by itself
            path.append(os.path.relpath(Path(name).parent, self.cwd))
        if self.module or function:  # `python -m` and `python -c` import from the working directory anyway
            path = [entry for entry in path if entry != "."]
        env_words = ["-C", self.cwd] if self.cwd != "." else []
        if path:
            path += exported_path(self.folder, self.folder / self.cwd)
            env_words.append(f"PYTHONPATH={os.pathsep.join(dict.fromkeys(path))}")
        env_words += variables
        # Those of Python.
        if function:
            program = ["-c", f"from {self.module or Path(name).stem} import {function}; {function}()"]
        elif self.module:
            program = ["-m", self.module]
        elif env_words:
            program = [os.path.relpath(name, self.cwd)]
        else:
            return []
        return [*(["env", *env_words] if env_words else []), "python", *program]

    def words(self, name: str) -> list[str]:
        """Return the command line that starts the script, also if a job needs no command for it."""
        return self.command(name) or ["python", name]


def exported_path(folder: Path, cwd: Path) -> list[str]:
    """Return the folders in the user's PYTHONPATH, which that of a job's command would replace.

    Those in the job's folder are relative to the working directory of the command.
    """
    return [os.path.relpath(entry, cwd) if entry.is_relative_to(folder) else str(entry) for entry in _exported()]


def _exported() -> list[Path]:
    """Return the folders in the user's PYTHONPATH, of which an empty one is the working directory."""
    path = os.environ.get("PYTHONPATH")
    return [Path(entry).resolve() for entry in path.split(os.pathsep)] if path else []


def exported_root(module: str) -> Path | None:
    """Return the first folder in the user's PYTHONPATH that has a module with a dotted name; None if none has it."""
    return next((entry for entry in _exported() if has_module(entry, module.replace(".", "/"))), None)


def start(file: Path, parsed_script: Script, text: str) -> Start:
    """Return the start of a script, by the locations of the modules that it imports and of the files that it names."""
    home = file.parent
    above = [folder for folder in home.parents[:_LEVELS] if not has_unrelated_files(folder)]
    # The folders from which it imports.
    imported = sorted({module.partition(".")[0] for module in parsed_script.modules})
    module = _module_name(file)
    imports_its_package = parsed_script.is_module or module.partition(".")[0] in imported
    if not imports_its_package:
        module = ""  # so it can run as a file
    roots = _import_roots(file, module, imported, {*parsed_script.modules, *parsed_script.objects}, above)
    # The files that it and the modules name. Hydra finds its folder of configurations from any working directory, so the
    # path of this folder does not count.
    config_folder = os.path.normpath(Path(parsed_script.config).parent) if parsed_script.config else None
    module_trees = [notebook.parse_or_empty(source(file)) for file in _imported_files([home, *roots], parsed_script)]
    module_paths = [path for tree in module_trees for path in script.path_texts(tree)]
    paths = [path for path in (*parsed_script.paths, *module_paths) if os.path.normpath(path) != config_folder]
    named = _named_files(home, above, paths)
    # The job's folder has everything that the script imports or names.
    needed_folders = [roots[0] if module else home, *roots, *named.upward_folders]
    if named.folder_above is not None:
        needed_folders.append(named.folder_above)
    folder = Path(os.path.commonpath(needed_folders))
    # Files that the script names are relative to its working directory.
    if named.folder_above is not None:
        cwd = named.folder_above
    elif named.upward_folders or (named.has_home_files and not module):
        cwd = home
    else:
        cwd = folder
    if finds_own_modules(text) and not module:
        roots = []
    path = tuple(os.path.relpath(root, folder) for root in dict.fromkeys(roots))
    return Start(folder, cwd=os.path.relpath(cwd, folder), path=path, module=module)


def code_of(file: Path) -> tuple[Path, str]:
    """Return the folder with the code of a script that runs without a job, and the path of the script in it.

    This is the script's own folder. If that lacks a module that the script imports, and a folder above has it, it is that of
    `start`, up to the working directory. It must run there by its path alone, as the script does without a job.
    """
    real_file, in_own_folder = file.resolve(), (file.parent, file.name)
    if Path.cwd() not in real_file.parent.parents:
        return in_own_folder
    try:
        if not any(root_above(real_file.parent, name) for name in missing_modules(real_file)):
            return in_own_folder
        text = source(real_file)
        start_by_paths = start(real_file, script.read(text, str(real_file)), text)
    except InputError:  # the checks of the job report it
        return in_own_folder
    name = real_file.relative_to(start_by_paths.folder).as_posix()
    needs_command = bool(start_by_paths.command(name))  # its path alone would not start it
    is_in_working_directory = start_by_paths.folder.is_relative_to(Path.cwd())
    return in_own_folder if needs_command or not is_in_working_directory else (start_by_paths.folder, name)


def finds_own_modules(text: str) -> bool:
    """Return whether a script itself sets the folders from which it imports."""
    return "sys.path" in text or "addsitedir" in text


class _NamedFiles(NamedTuple):
    """The folders with the files that a script names.

    Attributes:
        upward_folders: Folders with the files of paths that begin with `../`.
        folder_above: Folder above the script's with a file that the script's folder lacks; None without one.
        has_home_files: Whether the script's folder has some of the files.
    """

    upward_folders: list[Path]
    folder_above: Path | None
    has_home_files: bool


def _named_files(home: Path, above: Sequence[Path], paths: Sequence[str]) -> _NamedFiles:
    """Find the files that a script in the folder `home` names by relative paths, also in the folders `above` it."""
    upward_folders: list[Path] = []
    for path in paths:
        file = Path(os.path.realpath(home / path))
        if path.startswith("../") and exists(file) and any(file.is_relative_to(folder) for folder in above):
            upward_folders.append(file if file.is_dir() else file.parent)
    downward_paths = [path for path in paths if not path.startswith("../")]
    missing_paths = [path for path in downward_paths if not exists(home / path)]
    folder_above = next((folder for path in missing_paths for folder in above if exists(folder / path)), None)
    return _NamedFiles(upward_folders, folder_above, has_home_files=len(missing_paths) < len(downward_paths))


def shell_start(file: Path, parsed_script: Script, text: str) -> Start:
    """Return the start of a shell script: in the working directory, to which the paths in it are usually relative.

    If the working directory has none of the files that the script names, and the folder of the script or one above has some,
    it is started as by `start`.
    """
    working_directory, start_by_paths = Path.cwd().resolve(), start(file, parsed_script, text)
    if not _can_start_in(working_directory, file):
        return start_by_paths
    # The text has only the names of the shell's variables, and the command has their values.
    all_text = f"{text}\n{' '.join(parsed_script.command)}"
    module_paths = [module.replace(".", "/") for module in _NAMED_MODULE.findall(all_text)]
    paths = [*_NAMED_PATH.findall(all_text), *module_paths, *(f"{path}.py" for path in module_paths)]
    has_files_elsewhere = _has_any(file.parent, paths) or start_by_paths.folder != file.parent
    if has_files_elsewhere and not _has_any(working_directory, paths):
        return start_by_paths
    return Start(working_directory)


def typed_start(file: Path, parsed_script: Script, text: str, working_directory: Path) -> Start:
    """Return the start of a Python script that a command like `python bin/fit.py` starts: in its working directory.

    It is started as by `start` if the working directory of that start has some of the files that the script names, and the
    current one has none of them, or if no job may contain the current one.
    """
    start_by_paths = start(file, parsed_script, text)
    if not _can_start_in(working_directory, file):
        return start_by_paths
    has_files_elsewhere = _has_any(start_by_paths.folder / start_by_paths.cwd, parsed_script.paths)
    if has_files_elsewhere and not _has_any(working_directory, parsed_script.paths):
        return start_by_paths
    folder = Path(os.path.commonpath([start_by_paths.folder, working_directory]))
    path = tuple(os.path.relpath(root, folder) for root in start_by_paths.roots)
    return Start(folder, cwd=os.path.relpath(working_directory, folder), path=path, module=start_by_paths.module)


def _has_any(folder: Path, paths: Iterable[str]) -> bool:
    """Return whether a folder has a file or folder of some relative paths."""
    return any(exists(folder / path) for path in paths)


def _can_start_in(folder: Path, file: Path) -> bool:
    """Return whether a folder contains a script, and a job may contain the folder."""
    return file.is_relative_to(folder) and not has_unrelated_files(folder)


def has_unrelated_files(folder: Path) -> bool:
    """Return whether a folder is one with many unrelated files, such as the home directory, which no job may contain."""
    return folder in (Path.home(), Path(tempfile.gettempdir()), Path("/tmp"), Path(folder.anchor))


def _import_roots(
    file: Path, module: str, names: Sequence[str], full_names: Collection[str], above: Sequence[Path]
) -> list[Path]:
    """Return the folders from which a script imports in addition to its own.

    If the script is run as a module, the first one is the folder that has its package. The others have modules that are
    neither installed nor in the folders before them.

    Args:
        file: Path of the script.
        module: Name of the script as a module; "" if it is run as a script.
        names: First parts of the names of the modules that it imports.
        full_names: Full names of these modules, and of what it imports from them.
        above: Folders above the script's, in which modules are looked for.
    """
    home = file.parent
    roots = [file.parents[module.count(".")]] if module else []
    candidates = [root for folder in above for root in (folder, folder / "src")]
    for name in names:
        if any(has_module(folder, name) for folder in (home, *roots)) or is_installed(name):
            continue
        full_paths = [full_name.replace(".", "/") for full_name in full_names if full_name.startswith(f"{name}.")]
        for root in candidates:
            # A folder that is only named like the module counts if it has what the script imports from the module.
            paths = full_paths if _is_named_by_chance(root, name, home) else [name]
            if any(has_module(root, path) for path in paths):
                roots.append(root)
                break
    return roots


def _imported_files(roots: Sequence[Path], parsed_script: Script) -> list[Path]:
    """Return the files of the modules that a script imports from its own folder and from others."""
    names = (module.replace(".", "/") for module in parsed_script.modules)
    candidates = [root / f"{name}{suffix}" for name in names for root in roots for suffix in (".py", "/__init__.py")]
    return [file for file in dict.fromkeys(candidates) if file.is_file()][:_MOST_FILES]


def _module_name(file: Path) -> str:
    """Return the dotted name of a script in a package, as for `python -m`; "" outside of packages."""
    names = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names) if len(names) > 1 else ""


def _is_named_by_chance(root: Path, name: str, script_folder: Path) -> bool:
    """Return whether the folder of a script is only named like a module in `root`: `lightgbm/fit.py` needs the library."""
    module_files = (root / f"{name}.py", root / name / "__init__.py")
    return script_folder.is_relative_to(root / name) and not any(file.is_file() for file in module_files)


def has_module(folder: Path, name: str) -> bool:
    """Return whether a folder has a module or a package, which is a folder with files of Python."""
    return _has_files(folder / name) or (folder / f"{name}.py").is_file()


def _has_files(package: Path) -> bool:
    """Return whether a folder has files of Python, perhaps compiled, or folders with such files, near its beginning."""
    if any(next(package.glob(pattern), None) for pattern in ("*.py", "*.so", "*/*.py")):
        return True
    entries_left = _MOST_ENTRIES
    for _, folders, files in os.walk(package):
        if any(name.endswith((".py", ".so")) for name in files):
            return True
        entries_left -= len(folders) + len(files)
        if entries_left < 0:  # a folder of data
            break
    return False


def exists(path: Path) -> bool:
    """Return whether a file or a folder exists; False for a name that no file can have."""
    try:
        return path.exists()
    except OSError:  # the name is too long, for example
        return False


def is_installed(name: str) -> bool:
    """Return whether a module can be imported here, and not only from a folder of the project in PYTHONPATH."""
    of_project = (entry for entry in _exported() if entry.is_relative_to(Path.cwd()))
    return _installed_spec(name) is not None and not any(has_module(entry, name) for entry in of_project)


def _installed_spec(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the specification of a module that can be imported here; None for others."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def is_installed_outside(folder: Path, name: str) -> bool:
    """Return whether a module is installed, and not only linked to a folder, as by `pip install -e .`.

    A module in an environment is installed, also if the environment is in the folder.
    """
    spec = _installed_spec(name)
    if spec is None:
        return False
    locations = [spec.origin, *(spec.submodule_search_locations or ())]  # a package without __init__.py has no origin
    location = next((Path(entry) for entry in locations if entry), None)
    if location is None:
        return False
    is_in_environment = any(location.is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))
    return is_in_environment or not location.resolve().is_relative_to(folder.resolve())


def modules(file: Path, script_text: str | None = None) -> dict[Path, str]:
    """Return the texts of a script, and of the modules in its folder that it imports, directly or indirectly.

    Args:
        file: Path of the script.
        script_text: Text of a script that is not written yet. None for the text of the file.

    Returns:
        The texts of at most 200 files, by path relative to the script's folder. The script comes first.

    Raises:
        InputError: A file cannot be read.
        SpecError: A file is not Python.
    """
    written = {} if script_text is None else {Path(file.name): script_text}
    return _module_texts(file.parent, [Path(file.name)], written)


def root_above(folder: Path, module: str) -> Path | None:
    """Return the closest folder above a folder, or the `src` in one, that has the files of a module with a dotted name.

    None if there is none.
    """
    path = module.replace(".", "/")
    parents = [parent for parent in folder.parents[:_LEVELS] if not has_unrelated_files(parent)]
    roots = [root for parent in parents for root in (parent, parent / "src") if not root.is_relative_to(folder)]
    roots = [root for root in roots if not _is_named_by_chance(root, module.partition(".")[0], folder)]
    patterns = (f"{path}.py", f"{path}/*.py", f"{path}/*/*.py")  # a package without __init__.py may have files below only
    return next((root for root in roots if any(next(root.glob(pattern), None) for pattern in patterns)), None)


def missing_modules(file: Path) -> set[str]:
    """Return the modules that a script and the modules in its folder import, and that are neither there nor installed."""
    names = {name for text in modules(file).values() for name in _imported_names(notebook.parse(text))}
    return {name for name in names if not has_module(file.parent, name) and not is_installed(name)}


def modules_of(folder: Path, names: Iterable[str]) -> dict[Path, str]:
    """Return the texts of the modules of a folder with these names, and of those in it that they import; see `modules`."""
    return _module_texts(folder, [path for name in names for path in _module_files(folder, name)])


def module_text(file: Path, script_text: str | None = None) -> str:
    """Return the text of a script and of the modules that it imports, in which its parser may be.

    The modules are those in its own folder, in its package, and in the folders above that it imports from. For
    `script_text`, see `modules`.
    """
    texts = modules(file, script_text)
    all_texts = list(texts.values())
    script_text = texts[Path(file.name)]
    parsed_script = script.read(script_text, str(file))
    for root in start(file, parsed_script, script_text).roots:
        all_texts += modules_of(root, parsed_script.modules).values()
    if any(map(finds_own_modules, all_texts)):  # perhaps in a folder beside the script, as `lib`
        names = {module.partition(".")[0] for module in parsed_script.modules}
        missing = [name for name in names if not has_module(file.parent, name) and not is_installed(name)]
        for folder in filter(Path.is_dir, sorted(file.parent.iterdir())):
            all_texts += modules_of(folder, missing).values()
    return "\n".join([*all_texts, package_text(file)])


def _module_texts(home: Path, files: Sequence[Path], written: Mapping[Path, str] = MappingProxyType({})) -> dict[Path, str]:
    """Return the texts of Python files, and of the modules in their folder that they import, as `modules` does.

    Args:
        home: The folder.
        files: Paths of the files in it.
        written: Texts of files that are not written yet.
    """
    texts: dict[Path, str] = {}
    todo = list(files)
    while todo and len(texts) < _MOST_FILES:
        path = todo.pop(0)
        if path not in texts:
            texts[path] = written[path] if path in written else source(home / path)
            for name in _imported_names(script.parse(texts[path], str(home / path))):
                todo += _module_files(home, name)
    return texts


def _imported_names(tree: ast.Module) -> list[str]:
    """Return the first parts of the names of the modules that a Python file imports, without relative imports."""
    absolute_paths = [module.path for module in module_files.paths(tree) if module.level == 0]
    names = dict.fromkeys(path.partition("/")[0] for path in absolute_paths)
    return [name for name in names if "*" not in name]  # as of import_module(args.model + "_net")


def source(file: Path) -> str:
    """Return the text of a script, a launcher or a pipeline, in the encoding of a Python file.

    That is the one of its byte order mark, or the one that it declares.

    Raises:
        InputError: The file cannot be read.
        SpecError: The file is not in that encoding.
    """
    try:
        return document.decode(document.content(file), file.name)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}; nothing was changed") from error
    except ValueError as error:
        raise SpecError([Issue(("script",), f"is not Python: {error}", source=str(file))]) from error


def package_text(file: Path) -> str:
    """Return the text of all files in the package of a script, where its parser may be; "" outside of packages."""
    module = _module_name(file)
    if not module:
        return ""
    package = file.parents[module.count(".") - 1]
    return "\n".join(map(source, sorted(package.rglob("*.py"))[:_MOST_FILES]))


def _module_files(home: Path, module: str) -> list[Path]:
    """Return the files of a module, or all files of a package, relative to the folder that has it; [] if it lacks it."""
    root_name = module.partition(".")[0]
    if (home / f"{root_name}.py").is_file():
        return [Path(f"{root_name}.py")]
    if not (home / root_name).is_dir():
        return []
    return [file.relative_to(home) for file in sorted((home / root_name).rglob("*.py"))[:_MOST_FILES]]
