"""The settings file with a script's parameters, such as DVC's `params.yaml`: its location and its values."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from trialplane.cli import script_folder
from trialplane.errors import SpecError
from trialplane.importing import guess, script
from trialplane.importing.script import Script, Style
from trialplane.job import document, load, settings
from trialplane.wire.declared import Option

_PIPELINE, _PARAMS = "dvc.yaml", "params.yaml"
_MOST_FILES = 20  # that a pattern stands for
_MOST_OTHERS = 5  # of those that a message names
_CONFIG_FOLDER = re.compile(r"conf|cfg|exp|opt|param|setting|yaml|hparam|recipe", re.IGNORECASE)
_LEVELS = 3  # folders above the script's in which its pipeline or its file may be


@dataclasses.dataclass(frozen=True)
class SettingsFile:
    """A settings file.

    Attributes:
        folder: Folder in which the script is started, which has the file.
        name: Path of the file in `folder`.
        options: Its values.
        arguments: Arguments that the script gets, from DVC's pipeline, or to name the file; None otherwise.
        others: Files that could be the one, too.
    """

    folder: Path
    name: str
    options: tuple[Option, ...]
    arguments: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()

    def below(self, folder: Path) -> SettingsFile | None:
        """Return the file with its name in a folder above; None if it is outside of that."""
        file = Path(os.path.normpath(self.folder / self.name))
        if not file.is_relative_to(folder):
            return None
        return dataclasses.replace(self, folder=folder, name=file.relative_to(folder).as_posix())


def find(file: Path, read: Script) -> SettingsFile | None:
    """Return the settings file of a script, if a pipeline runs the script or its parameters are worth a search.

    Args:
        file: The script.
        read: The content of the script.
    """
    for folder in [file.parent, *file.parent.parents][: _LEVELS + 1]:
        arguments, sections = _stage(folder / _PIPELINE, file.relative_to(folder)) or (None, ())
        patterns = [_PARAMS] if arguments is not None else list(read.settings)
        is_home = folder == file.parent
        if arguments is None and read.style is Style.PARSED and not is_home:  # only what an argument may need to name
            patterns = [pattern for pattern in patterns if read.needs_file and pattern.startswith("*")]
        files: dict[str, tuple[Option, ...]] = {}
        candidates = (name for pattern in patterns for name in _files(folder, pattern, is_home))
        for name in dict.fromkeys(name for name in candidates if PurePath(name).name != load.FILE):
            values = _options(folder / name)
            options = [option for option in values if _is_below(option.name, sections)] or values
            is_own = name.endswith(".py") and bool(guess.space(read.options))  # the script's values come first
            if (guess.space(options) and not is_own) or (options and arguments is not None):
                files[name] = tuple(options)
        if files:
            name, *others = files
            by_argument = (name,) if read.takes_file else None
            line = by_argument if arguments is None else arguments
            return SettingsFile(folder, name, files[name], line, tuple(others[:_MOST_OTHERS]))
    return None


def named(command: str, folder: Path) -> tuple[str, list[Option]]:
    """Return the first file that a command line names and that has values worth a search, with these; "" without one."""
    for word in re.split(r"[\s=\"']+", command):
        name = word.removeprefix("./")
        is_below = not Path(name).is_absolute() and os.pardir not in Path(name).parts
        if name.endswith(settings.SUFFIXES) and is_below and script_folder.exists(folder / name):
            values = _options(folder / name)
            if guess.space(values):
                return name, values
    return "", []


def _files(folder: Path, pattern: str, is_home: bool) -> Iterator[str]:
    """Yield the files that a script may mean by a name, or by a pattern: in its folder, also further below."""
    if "*" not in pattern:
        yield pattern
    elif not is_home:
        folders = [
            folder,
            *(entry for entry in sorted(folder.glob("*")) if _CONFIG_FOLDER.match(entry.name) and entry.is_dir()),
        ]
        files = [file for home in folders for file in (home.glob(pattern) if home == folder else home.rglob(pattern))]
        yield from (file.relative_to(folder).as_posix() for file in sorted(files)[:_MOST_FILES] if pattern != "*.py")
    if is_home and not script_folder.exists(folder / pattern):
        below = (file.relative_to(folder) for file in folder.rglob(PurePath(pattern).name))
        names = sorted(below, key=lambda path: (len(path.parts), path))
        if pattern == "*.py":  # which is a configuration in a folder of these
            names = [name for name in names if any("conf" in part for part in name.parts[:-1])]
        yield from (name.as_posix() for name in names[:_MOST_FILES] if not any(part[:1] == "." for part in name.parts))


def _options(file: Path) -> list[Option]:
    try:
        return script.of_settings(document.decode(document.content(file), file.name), file.name)
    except (OSError, ValueError):  # it does not exist, or is not text
        return []


def _is_below(name: str, sections: tuple[str, ...]) -> bool:
    return not sections or any(name == section or name.startswith(f"{section}.") for section in sections)


def _stage(pipeline: Path, file: Path) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the arguments of a script in a pipeline of DVC, and the parameters of its stage. None without a stage."""
    try:
        stages = document.parse(document.decode(document.content(pipeline), pipeline.name), pipeline.name).data.get("stages")
    except (OSError, ValueError, SpecError, AttributeError):
        return None
    module = ".".join(file.with_suffix("").parts)
    for command, sections in _commands(stages):
        try:
            words = shlex.split(command)
        except ValueError:
            continue
        at = next((index for index, word in enumerate(words) if word in (str(file), f"./{file}", module)), None)
        if at is not None and not any("${" in word for word in words[at + 1 :]):
            return tuple(words[at + 1 :]), sections
    return None


def _commands(stages: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each command of the stages, with the parameters that its stage names."""
    for stage in stages.values() if isinstance(stages, dict) else ():
        if isinstance(stage, dict):
            command, params = stage.get("cmd"), stage.get("params")
            sections = tuple(str(name) for name in params if isinstance(name, str)) if isinstance(params, list) else ()
            commands = command if isinstance(command, list) else [command]
            yield from ((text, sections) for text in commands if isinstance(text, str))
