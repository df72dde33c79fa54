"""What of a script's surroundings its job gets: its own modules, the files that it names, Hydra's configuration."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from trialplane.errors import InputError
from trialplane.importing import script
from trialplane.importing.script import Script
from trialplane.plan import pack
from trialplane.spec import document, load

_LARGEST = 256 << 10  # bytes of a file beside the script that is copied, and of all files of a folder
_MOST_FILES = 200
_WHOLE = "give its whole path, see Data in platform/docs/job-file.md"


@dataclasses.dataclass(frozen=True)
class ScriptFolder:
    """A script that was copied with what it needs.

    Attributes:
        script: its path in the folder. It lies in a folder of its own where its configuration lies above it
            (`config_path="../conf"`), so that it finds that as it is.
        read: what its text says.
        config: path of Hydra's configuration in the folder; "" where there is none.
        left: a sentence on each thing that stays behind.
    """

    script: str
    read: Script
    config: str
    left: tuple[str, ...]


def copy(file: Path, code: Path) -> ScriptFolder:
    """Copies a script with its own modules, its configuration and the files that it names.

    Where the script is a link, Python imports from the folder that the link leads to, while files are opened from the folder
    of the link: so modules are looked for in the former first, and files in the latter.

    Args:
        file: the script.
        code: the folder that is made.

    Raises:
        InputError: a file of it cannot be read.
        SpecError: the script, or a module of its own, is not Python.
    """
    homes = list(dict.fromkeys((file.absolute().parent.resolve(), file.resolve().parent)))
    done: dict[str, Script] = {}
    todo, texts = [(homes[0], Path(file.name))], dict[str, str]()
    while todo and len(texts) < _MOST_FILES:
        home, one = todo.pop()
        if str(one) in texts:
            continue
        texts[str(one)] = source(home / one)
        done[str(one)] = read = script.read(texts[str(one)], one.name)
        todo += [own for name in (*read.top, *read.late) for own in _own(homes[::-1], name)]
    read = script.read(texts[file.name], str(file), "\n".join(texts.values()))
    # Hydra looks for the configuration from the script's folder.
    beside = Path(os.path.normpath(Path(read.config).parent))
    home = next((home for home in homes if (home / beside).is_dir()), homes[0])
    above = beside.parts.count(os.pardir)  # folders between the script and the one that holds the configuration as well
    above = min(above, len(home.parents))
    place = home.relative_to(home.parents[above - 1]) if above else Path()
    (code / place).mkdir(parents=True)
    for name, text in texts.items():
        (code / place / name).parent.mkdir(parents=True, exist_ok=True)
        (code / place / name).write_text(text, encoding="utf-8")
    root = home.parents[above - 1] if above else home
    places = [(root, code)] * bool(above) + [(home, code / place) for home in homes]
    named = {text for read in done.values() for text in read.texts if os.path.normpath(text) != str(beside)}
    left = _copy_named(named, places, code)
    config = ""
    if read.config and (home / beside).is_dir():
        target, there = Path(os.path.normpath(place / beside)), Path(os.path.normpath(home / beside))
        # Where the script lies below it as well, the folder is no configuration's own.
        only = _named_by(there, Path(read.config).name) if home.is_relative_to(there) else None
        left += _copy_configs(there, code / target, code, only)
        names = [target / f"{Path(read.config).name}{end}" for end in (".yaml", ".yml")]
        config = next((str(name) for name in names if (code / name).is_file()), "")
    return ScriptFolder(str(place / file.name), read, config, tuple(left))


def source(file: Path) -> str:
    """The text of a file.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return document.content(file).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}; nothing was changed"
        ) from error


def _copy_named(texts: set[str], places: Sequence[tuple[Path, Path]], runs: Path) -> list[str]:
    """Copies the files and folders that strings of the script name.

    Args:
        texts: that may name files or folders.
        places: folders in which they may lie, each with its copy.
        runs: the folder in which the script will run, in which it finds each of them too.

    Returns:
        A sentence on each that stays behind.
    """
    left = []
    for name in sorted(set(filter(None, map(_path, texts)))):
        for home, target in places:
            here = home / name
            try:
                if (target / name).is_file() or not (here.is_file() or here.is_dir()):
                    continue
                why = _why_left(name, here, [home for home, _ in places])
                files = [] if why else _files(here)
                if why := why or _too_large(name, files, here.is_dir()):
                    left.append(why)
                    continue
            except OSError as error:
                left.append(f"{here} cannot be read: {error.strerror or error}")
                continue
            for file in files:
                path = file.relative_to(home)
                left += _copy_where_none_is(file, (target / path, runs / path))
    return list(dict.fromkeys(left))


def _copy_where_none_is(file: Path, copies: Sequence[Path]) -> list[str]:
    """Copies a file, but not over a module or a file of another home; returns a sentence where that fails."""
    try:
        for copy in copies:
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
    except OSError as error:
        return [f"{file} cannot be copied: {error.strerror or error}"]
    return []


def _why_left(name: str, here: Path, homes: Sequence[Path]) -> str:
    """Why a file or folder that the script names stays behind; "" where it does not.

    Args:
        name: its path in its home, without `..`.
        here: where it is.
        homes: folders in which it may lie, links resolved.
    """
    real = here.resolve()
    inside = [real.relative_to(home) for home in homes if real.is_relative_to(home)]
    if name == load.FILE:
        return f"{here} is not copied: the job's own file has that name"
    if lines := pack.lines_for(name + "/" * here.is_dir()):  # perhaps with passwords
        lets = f"have it travel by `{'` and `'.join(lines)}` in {pack.IGNORE_FILE}"
        return f"{name} is hidden: if the job needs it, copy it, and {lets}"
    if not inside:
        return f"{name} leads by a link to a place outside of the script's folder: {_WHOLE}"
    if any(home.is_relative_to(real) for home in homes):
        return f"{name} is the script's folder, or one above it: copy what the job needs of it"
    if pack.lines_for(shortest := min((path.as_posix() for path in inside), key=len)):
        return f"{name} leads by a link to {shortest}, which is hidden: if the job needs it, copy it"
    return ""


def _too_large(name: str, files: Sequence[Path], is_folder: bool) -> str:
    """Why a file, or the files of a folder, stay behind for their size or number; "" where they do not."""
    if len(files) <= _MOST_FILES and sum(file.stat().st_size for file in files) <= _LARGEST:
        return ""
    return f"{name} is too large to travel with the job: {f'if the script reads it, {_WHOLE}' if is_folder else _WHOLE}"


def _files(here: Path) -> list[Path]:
    """A file, or a folder's: one more than may be copied at most; no links, which lead elsewhere, and nothing hidden."""
    found = [here] if here.is_file() else []
    for place, folders, names in os.walk(here):  # nothing where it is a file
        folders[:] = sorted(one for one in folders if not one.startswith((".", "__pycache__")))
        files = [Path(place, one) for one in sorted(names) if not one.startswith(".")]
        found += [one for one in files if one.is_file() and not one.is_symlink()]  # nor pipes and sockets
        if len(found) > _MOST_FILES:
            break
    return found[: _MOST_FILES + 1]


def _path(text: str) -> str:
    """The file or folder below a folder, and not that folder itself, that a string of the script may name; or ""."""
    is_short = len(text.encode(errors="replace")) < 256  # a longer name is an error of the system
    path = os.path.normpath(text) if text and is_short and not set("\0\n") & set(text) else "."
    return "" if path == "." or path.startswith(("/", "..")) else path


def _own(homes: Sequence[Path], module: str) -> list[tuple[Path, Path]]:
    """The files of a module that lies beside the script, its packages' among them: folder, and path in it."""
    parts = module.split(".")
    for home in homes:
        made = [Path(*parts[:size], "__init__.py") for size in range(1, len(parts) + 1)]
        if (home / parts[0]).is_dir() and not (home / f"{parts[0]}.py").is_file():  # relative imports reach the others
            made += [file.relative_to(home) for file in sorted((home / parts[0]).rglob("*.py"))[:_MOST_FILES]]
        if there := [(home, one) for one in (*made, Path(*parts).with_suffix(".py")) if (home / one).is_file()]:
            return there
    return []


def _named_by(folder: Path, name: str) -> set[str]:
    """What beside a configuration belongs to it: its own file, and the groups and files of its defaults list."""
    found = {f"{name}.yaml", f"{name}.yml"}
    for file in [folder / one for one in sorted(found) if (folder / one).is_file()]:
        data = document.parse(source(file), str(file)).data
        for entry in (data.get("defaults") or ()) if isinstance(data, dict) else ():
            for key in entry if isinstance(entry, dict) else (entry,):
                first = str(key).rpartition(" ")[2].lstrip("/").partition("@")[0].partition("/")[0]  # "override /opt@here"
                found |= {first, f"{first}.yaml", f"{first}.yml"}
    return found


def _copy_configs(here: Path, there: Path, code: Path, only: set[str] | None) -> list[str]:
    """Copies the YAML files of a folder, those near its top first.

    Args:
        here: the folder.
        there: its copy.
        code: the job's folder.
        only: names in the folder that belong to the configuration; None for all.

    Returns:
        A sentence on each thing that stays behind.
    """
    files = [file.relative_to(here) for file in here.rglob("*.y*ml") if file.is_file()]
    files = [file for file in files if not any(part.startswith(".") for part in file.parts)]  # of earlier runs, of tools
    files = [file for file in files if only is None or file.parts[0] in only]
    files.sort(key=lambda file: (len(file.parts), file))
    left = [f"{here} has {len(files)} YAML files, and the job gets {_MOST_FILES} of them"] * (len(files) > _MOST_FILES)
    for file in files[:_MOST_FILES]:
        if there / file == code / load.FILE:
            left.append(f"{here / file} is not copied: the job's own file has that name")
        elif not (here / file).resolve().is_relative_to(here.resolve()):
            left.append(f"{here / file} is not copied: it leads by a link to a place outside of the configuration's folder")
        elif (here / file).stat().st_size > _LARGEST:
            left.append(f"{here / file} is not copied: it is too large to travel with the job")
        else:
            left += _copy_where_none_is(here / file, [there / file])
    return left
