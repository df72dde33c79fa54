"""Files and modules above the working directory, of which trials get no copy: refusals with the command that works."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trialplane.cli import output
from trialplane.cli.init_from import calls, data_links
from trialplane.cli.init_from.request import Origin, Request
from trialplane.errors import InputError, OtherFolderError
from trialplane.importing import script, script_folder
from trialplane.importing.script import Script, Style
from trialplane.job import module_files, notebook, settings

_UPWARD = re.compile(r"(?<![\w./])\.\./[\w./-]+")  # ../config/args.json
_PATH = re.compile(r"(?<![\w.])(?:\.\.)?/[\w./-]+")  # ../data/train.csv, or from the root
_PYTHONPATH = re.compile(r"""\bPYTHONPATH=((?:"[^"]*"|'[^']*'|[^\s"';&|])*)""")  # with its value


def refuse_files_above(command_line: str, words: str, folder: str, call: script.Call | None, request: Request) -> None:
    """Check that a command or its script names no data above the working directory, of which trials get a copy.

    Other folders above are only printed, as trials may write to them.

    Args:
        command_line: Command line.
        words: Words of it that may be files.
        folder: Folder to which the words are relative, itself relative to the working directory.
        call: Call of a Python script in the command; None without one.
        request: Options of the user.

    Raises:
        InputError: It names one. The message has the command for the folder that has all files.
    """
    names = dict.fromkeys(os.path.normpath(Path(folder, name)) for name in _UPWARD.findall(words))
    paths_above = [Path(name) for name in names if name.startswith(os.pardir)]
    for path in paths_above:
        is_output = path.is_dir() and data_links.names_output(path.as_posix())
        if _has_data(Path.cwd() / path, Path.cwd()) and not is_output:
            raise _path_above_error(command_line, f"the command reads {path}", Path.cwd() / path, Path.cwd(), request)
    if call is not None:
        target = data_above(call, Path.cwd())
        if target is not None:
            raise _path_above_error(command_line, f"{call.script} names {target}", target, Path.cwd(), request)
    for path in paths_above:
        if path.is_dir():
            output.note(
                f"the command names {path}, above this folder, and trials get a copy of this folder only; to read files "
                "there, give its absolute path, or give the command in the folder that has both, as `cd FOLDER && …`"
            )


def data_above(call: script.Call, folder: Path) -> Path | None:
    """Return data above the job's folder that the script of a command names; None without any.

    What scripts write by its usual name does not count, as `../checkpoints`.
    """
    for path in _named_above(call):
        if _has_data(path, folder) and not data_links.names_output(os.path.relpath(path, folder)):
            return path
    return None


def _named_above(call: script.Call) -> Iterator[Path]:
    """Yield the paths that the script of a command, or a module in its folder, names by `../` or derives from its own path.

    The folder of a Hydra configuration is one of them. A link in a path stays: trials need the folder that has the link.
    """
    script_file, working_directory = Path(call.folder, call.script).resolve(), Path(call.folder).resolve()
    parsed_script = script.read(script_folder.source(script_file), call.script)
    if parsed_script.style is Style.HYDRA and parsed_script.config:
        yield Path(os.path.normpath(script_file.parent / parsed_script.config)).parent
    for file in (script_file, *module_files.imported(script_file, [script_file.parent])):
        tree = notebook.parse_or_empty(script_folder.source(file))
        paths = [file.parent / path for path in script.paths_above(tree)]
        for path in script.path_texts(tree):
            if path.startswith(f"{os.pardir}/") and set(Path(path).parts) != {os.pardir}:  # `../` alone is only a start
                paths.append(working_directory / path)
        yield from (Path(os.path.normpath(path)) for path in paths)


def _has_data(path: Path, folder: Path) -> bool:
    """Return whether a path has content to read above a job's folder, in a folder that could be a job's.

    A folder that also has other things, such as the home directory, could not; see `script_folder.has_unrelated_files`.

    Args:
        path: The path. Of a link to data elsewhere, the folder of the link counts.
        folder: The job's folder.
    """
    path = Path(os.path.normpath(path))
    common_folder = Path(os.path.commonpath([folder, path]))
    if common_folder == folder or script_folder.has_unrelated_files(common_folder) or not script_folder.exists(path):
        return False
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _path_above_error(command_line: str, reason: str, path: Path, folder: Path, request: Request) -> OtherFolderError:
    """Return the error for a command that reads a path above the job's folder, with the command that works."""
    common_folder = Path(os.path.commonpath([folder, os.path.normpath(path)]))
    command_there = f"cd {shlex.quote(folder.relative_to(common_folder).as_posix())} && {command_line}"
    return _other_folder_error(f"{reason}, above this folder", common_folder, command_there, request)


def missing_python_path(command_line: str, call: script.Call, request: Request) -> str:
    """Return the PYTHONPATH that the script of a command needs for its modules; "" if it needs none, or the command sets it.

    Raises:
        InputError: It imports a module of a folder that the working directory lacks, see `_module_above_error`.
    """
    file, call_folder = Path(call.folder, call.script).resolve(), Path(call.folder).resolve()
    if not file.is_relative_to(Path.cwd()):
        return ""
    script_text = script_folder.source(file)
    parsed_script = script.read(script_text, call.script)
    start = script_folder.start(file, parsed_script, text="")  # also with the folders that the script itself finds
    _refuse_modules_above(command_line, call, start.roots, script_text, request)
    if "PYTHONPATH" in call.variables:
        return ""
    roots = [] if script_folder.finds_own_modules(script_text) and not start.module else start.roots
    if call.module and call.script.startswith(f"{calls.SOURCES}/"):
        roots.append(Path(call.folder, calls.SOURCES).resolve())
    # Python imports from the folder of a script, or from the working directory for a module.
    known_root = call_folder if call.module else file.parent
    needed = [root for root in roots if root != known_root and not _is_installed_instead(root, parsed_script)]
    path = [os.path.relpath(root, call_folder) for root in needed]
    path += script_folder.exported_path(Path.cwd(), call_folder) if path else []
    return os.pathsep.join(dict.fromkeys(map(shlex.quote, path)))


def _is_installed_instead(root: Path, parsed_script: Script) -> bool:
    """Return whether all modules that a script imports from a folder are also installed, and so imported by its command."""
    names = {module.partition(".")[0] for module in parsed_script.modules}
    names_in_root = [name for name in names if script_folder.has_module(root, name)]
    return bool(names_in_root) and all(script_folder.is_installed_outside(Path.cwd(), name) for name in names_in_root)


def _refuse_modules_above(
    command_line: str, call: script.Call, roots: Sequence[Path], script_text: str, request: Request
) -> None:
    """Check that the script of a command imports no module of a folder that the working directory lacks.

    The folders are `roots`, also those that the script adds to `sys.path` by itself, and those in PYTHONPATH of the command.

    Raises:
        InputError: It imports one, see `_module_above_error`.
    """
    entries = list(filter(None, call.variables.get("PYTHONPATH", "").split(os.pathsep)))
    absolute_roots = {os.path.realpath(entry) for entry in entries if entry.startswith("/")}
    relative_roots = [Path(os.path.realpath(Path(call.folder, entry))) for entry in entries if not entry.startswith("/")]
    # Of these, only folders with modules that are not found otherwise are needed.
    missing_modules = script_folder.missing_modules(Path(call.folder, call.script)) if relative_roots else ()
    needed_roots = [root for root in relative_roots if any(script_folder.has_module(root, name) for name in missing_modules)]
    for root in (*roots, *needed_roots):
        # A folder that the command or the script names by its absolute path is found in the copy, too.
        is_named = str(root) in absolute_roots or re.search(rf"""(["']){re.escape(str(root))}/?\1""", script_text)
        if not root.is_relative_to(Path.cwd()) and not is_named:
            reason = f"{call.script} imports modules of {root}"
            raise _module_above_error(command_line, call, root, Path.cwd(), reason, request)


def refuse_missing_module(
    failure: str, origin: Origin, parsed_script: Script, start: script_folder.Start, request: Request
) -> None:
    """Check that a script did not fail because the job's folder lacks a module that a folder above has.

    Raises:
        InputError: It failed so, see `_module_above_error`.
    """
    missing = script_folder.MISSING_MODULE.search(failure)
    root = script_folder.root_above(start.folder, missing[1]) if missing is not None else None
    if missing is None or root is None:
        return
    started = _start_command(origin, parsed_script, start)
    reason = f"{origin.short_title} imports {missing[1]}, which is in {root}"
    raise _module_above_error(started.command_line, started.call, root, started.folder, reason, request)


def refuse_missing_file(
    failure: str, copy: Path, origin: Origin, parsed_script: Script, start: script_folder.Start, request: Request
) -> None:
    """Check that a script did not fail because the job's folder lacks a file that a folder above has.

    Raises:
        OtherFolderError: It failed so.
    """
    started = _start_command(origin, parsed_script, start)
    if not started.command_line:
        return
    call_folder = started.folder / (started.call.folder if started.call is not None else ".")
    working_directory = copy / os.path.relpath(call_folder, start.folder)  # of the run that failed
    for name in _PATH.findall(failure):
        path = start.folder / os.path.relpath(working_directory / name, copy)  # the user's own
        if not script_folder.exists(working_directory / name) and _has_data(path, start.folder):
            reason = f"{origin.short_title} reads {os.path.normpath(path)}"
            raise _path_above_error(started.command_line, reason, path, started.folder, request)


class _StartCommand(NamedTuple):
    """The command that starts a script.

    Attributes:
        command_line: Command line; "" if it is not known.
        call: Its call of a Python script; None without one.
        folder: Folder in which the user types it.
    """

    command_line: str
    call: script.Call | None
    folder: Path


def _start_command(origin: Origin, parsed_script: Script, start: script_folder.Start) -> _StartCommand:
    """Return the command that starts a script."""
    folder = start.folder / start.cwd
    if not origin.text:  # the job is that of a command line
        return _StartCommand(origin.title, parsed_script.call, folder)
    name = os.path.relpath(origin.real, folder)
    if origin.real.suffix == ".py" and not start.path and not start.module:
        return _StartCommand(shlex.join(["python", name]), script.Call(name), folder)
    is_shell = origin.real.suffix in settings.SHELLS
    return _StartCommand(shlex.join(["bash", name]) if is_shell else "", None, folder)


def _module_above_error(
    command_line: str, call: script.Call | None, root: Path, folder: Path, reason: str, request: Request
) -> InputError:
    """Return the error for a command that imports modules of a folder that the job's folder lacks.

    The message has the command for the folder that has both.

    Args:
        command_line: Command line; "" for one that is not known.
        call: Its call of a Python script; None without one.
        root: Folder with the modules.
        folder: Folder of the job without them, in which the command runs.
        reason: Beginning of the message.
        request: Options of the user.
    """
    common_folder = Path(os.path.commonpath([root, folder]))
    call_folder = folder / call.folder if call is not None else folder
    relative_root = shlex.quote(os.path.relpath(root, call_folder))
    entries = call.variables.get("PYTHONPATH", "").split(os.pathsep) if call is not None else []
    # As the command line has them, with variables of the shell: `$HOME/lib` of `PYTHONPATH=$HOME/lib python train.py`.
    typed_values = _PYTHONPATH.findall(command_line) if call is None or any(entries) else []
    if str(root) in [os.path.realpath(call_folder / entry) for entry in entries]:
        with_root = command_line
    elif typed_values:  # an export before it would have no effect
        with_root = _PYTHONPATH.sub(lambda match: f"PYTHONPATH={relative_root}{os.pathsep}{match[1]}", command_line)
    else:
        exported = map(shlex.quote, script_folder.exported_path(common_folder, call_folder))
        with_root = f"export PYTHONPATH={os.pathsep.join((relative_root, *exported))} && {command_line or 'COMMAND'}"
    reason += ", outside of this folder"
    if script_folder.has_unrelated_files(common_folder):  # it cannot be the folder of a job
        absolute_path = os.pathsep.join([shlex.quote(str(root)), *typed_values[-1:]])
        return InputError(
            f"{reason}, and trials get a copy of this folder only; set `PYTHONPATH={absolute_path}` in the command, for "
            "trials on this machine only; nothing was changed"
        )
    command_there = f"cd {shlex.quote(folder.relative_to(common_folder).as_posix())} && {with_root}"
    error = _other_folder_error(reason, common_folder, command_there, request)
    return error if command_line else InputError(str(error))  # an unknown command cannot be repeated there


def _other_folder_error(reason: str, folder: Path, command: str, request: Request) -> OtherFolderError:
    """Return the error for a command that works in another folder only."""
    message = (
        f"{reason}, and trials get a copy of this folder only; give the command in the folder that has both: "
        f"`cd {shlex.quote(str(folder))} && {request.command(command)}`; nothing was changed"
    )
    return OtherFolderError(message, reason, folder, command, request)
