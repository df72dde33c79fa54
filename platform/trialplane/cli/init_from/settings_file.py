"""The settings file with a script's parameters, such as DVC's `params.yaml`: its location and its values.

A file is found by a pipeline of DVC, by a name in the script's source, or by a pattern such as `*.yaml`. It counts only if
its values are worth a search: at least one of them could become a parameter of the space.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from trialplane.cli import output
from trialplane.errors import SpecError
from trialplane.importing import dvc, guess, script, script_folder
from trialplane.importing.script import Script, Style
from trialplane.job import document, load, notebook, settings
from trialplane.wire.declared import Option

_MOST_FILES = 20  # files that match one pattern
_MOST_ENTRIES = 10_000  # entries of folders that are searched for a file without its suffix
_MOST_BYTES = 65_536  # of a file with settings that is no code; a larger one has data, and YAML reads 50 KiB in a second
_MOST_OTHERS = 10  # other files that a message names
_MOST_PAIRS = 1_000  # of a folder and the name of a file, both in a script
_CONFIG_FOLDER = re.compile(r"conf|cfg|exp|opt(?!im)|param|setting|yaml|hparam|recipe", re.IGNORECASE)
# Options whose values may be the name of a settings file without its suffix: -c, --config, --model-cfg, --exp.
_NAMES_FILE = re.compile(rf"-c|--?(?:[^\W_]+[_-])*(?:{script.CONFIG.pattern}|exp|experiment|recipe)")
_STEM = re.compile(r"[A-Za-z][\w/-]*")  # of a file that a command names without its suffix
_END = re.compile(r"[_-]\w{2,}")  # of a file's stem that a script has, where a command has the beginning: _Configs
_MODULE = re.compile(r"[A-Za-z]\w*(?:\.\w+)+")  # configs.base
_LEVELS = 3  # folders above the script's in which its pipeline or its file may be


@dataclasses.dataclass(frozen=True)
class SettingsFile:
    """A settings file.

    Attributes:
        folder: Folder in which the script is started, which has the file.
        name: Path of the file in `folder`.
        options: Its values.
        arguments: Arguments that the script gets, from DVC's pipeline, or to name the file; None otherwise.
        others: Names of other files that could be the settings file.
        is_ambiguous: Whether nothing makes this file more likely than the next one.
        required: Arguments of the script without a default, which it needs besides the file.
    """

    folder: Path
    name: str
    options: tuple[Option, ...]
    arguments: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    is_ambiguous: bool = False
    required: tuple[Option, ...] = ()

    def below(self, folder: Path) -> SettingsFile | None:
        """Return this file for a script that is started in `folder` instead; None if the file is not below `folder`."""
        file = Path(os.path.normpath(self.folder / self.name))
        if not file.is_relative_to(folder):
            return None
        name, *others = (Path(os.path.relpath(self.folder / name, folder)).as_posix() for name in (self.name, *self.others))
        return dataclasses.replace(self, folder=folder, name=name, others=tuple(others))

    def instead(self, name: str) -> SettingsFile:
        """Return one of the other files, which certainly is the settings file, in place of this one."""
        return dataclasses.replace(self, name=name, options=tuple(_options(self.folder / name)), others=())


class NamedFiles(NamedTuple):
    """The settings files that a command names.

    Attributes:
        names: Paths of the files.
        options: Their values. Of several with the same name, it is that of the first file.
    """

    names: tuple[str, ...] = ()
    options: Sequence[Option] = ()


class _Stage(NamedTuple):
    """The use of a script in a pipeline of DVC.

    Attributes:
        arguments: Arguments of the script.
        sections: Parameters that the script's stage names, or sections with parameters; () for all.
    """

    arguments: tuple[str, ...]
    sections: tuple[str, ...]


def find(file: Path, parsed_script: Script, requested: Collection[str] = (), objective: str = "") -> SettingsFile | None:
    """Return the settings file of a script, from its folder or else from the nearest folder above that has one.

    A pipeline of DVC decides if there is one. Otherwise the names and patterns in the script do.

    Args:
        file: The script.
        parsed_script: Content of the script.
        requested: Names of the parameters that the user wants to search; a file with one of them is preferred.
        objective: Metric that the user wants to optimize, or ""; of several such files, the one with its name is preferred.

    Returns:
        The file; None if there is no file with values that a pipeline uses or that are worth a search.
    """
    for folder in [file.parent, *file.parent.parents][: _LEVELS + 1]:
        stage = _stage(folder / dvc.FILE, file.relative_to(folder))
        options_by_name = _candidates(folder, stage, file, parsed_script, requested)
        if not options_by_name:
            continue
        ranks = {  # the least is the best
            name: (
                not _has_requested(options, requested),
                PurePath(name).stem.lower() != objective.lower(),
                not _has_config_path(PurePath(name)),
            )
            for name, options in options_by_name.items()
        }
        first, *others = sorted(ranks, key=lambda name: ranks[name])
        equal = [name for name in others if ranks[name] == ranks[first]]
        arguments = None if stage is None else stage.arguments
        if arguments is None and parsed_script.takes_file:
            arguments = (first,)
        return SettingsFile(
            folder, first, tuple(options_by_name[first]), arguments, tuple((equal or others)[:_MOST_OTHERS]), bool(equal)
        )
    return None


def _candidates(
    folder: Path, stage: _Stage | None, file: Path, parsed_script: Script, requested: Collection[str]
) -> dict[str, list[Option]]:
    """Return the files in a folder that may be the settings file of a script, by path in the folder, with their values.

    Args:
        folder: The folder of the script, or one above.
        stage: Use of the script in a pipeline of the folder, which says that the file is `params.yaml`; None without one.
        file: The script.
        parsed_script: Content of the script.
        requested: Names of the parameters that the user wants to search.
    """
    is_home = folder == file.parent
    if stage is not None:
        names = _files(folder, dvc.PARAMS, is_home)
        return {name: options for name in names if (options := _section_options(folder / name, stage.sections))}
    patterns = list(parsed_script.settings)
    if parsed_script.style is Style.PARSED and not is_home:
        # Above its folder, such a script reads a file only if an argument names it.
        patterns = [pattern for pattern in patterns if parsed_script.needs_file and pattern.startswith("*")]
    # Files without a known suffix are chosen for their content.
    texts = parsed_script.texts if is_home else ()
    names_without_suffix = (name for name in texts if not name.endswith(settings.SUFFIXES) and os.pardir not in name)
    by_content = [name for name in names_without_suffix if _may_be_named(folder, name)]
    searched = set(requested) - {option.name for option in parsed_script.values}
    options_by_name: dict[str, list[Option]] = {}
    by_name = [name for pattern in patterns for name in _files(folder, pattern, is_home)]
    for name in dict.fromkeys(by_name + by_content):
        options = _section_options(folder / name, sections=())
        is_likely = name not in by_content or _has_config_path(PurePath(name))
        if _has_requested(options, searched) or (is_likely and _is_worth_search(name, options, parsed_script)):
            options_by_name[name] = options
    return options_by_name


def _section_options(file: Path, sections: tuple[str, ...]) -> list[Option]:
    """Return the values in a settings file that are below some sections, or all of its values if none is.

    A job.yaml of the platform is not a settings file, and has none.
    """
    options = [] if file.name == load.FILE else _options(file)
    in_sections = [
        option
        for option in options
        if any(option.name == section or option.name.startswith(f"{section}.") for section in sections)
    ]
    return in_sections or options


def _is_worth_search(name: str, options: Sequence[Option], parsed_script: Script) -> bool:
    """Return whether some values in a file are worth a search, and none in the text of the script comes before them."""
    # The script's own values come before those of a module, but not before those of a configuration.
    has_own_values = name.endswith(".py") and bool(guess.space(parsed_script.options))
    return bool(guess.space(options)) and not has_own_values


def named(
    command: str,
    folder: Path,
    requested: Collection[str] = (),
    *,
    by_stem: bool = True,
    only_requested: bool = False,
    in_each: bool = True,
) -> NamedFiles:
    """Return the settings files that a command line names.

    They are those with the parameters that the user wants to search, or else the first one with values worth a search.

    Args:
        command: Command line.
        folder: Folder to which names in it are relative.
        requested: Names of the parameters that the user wants to search.
        by_stem: Whether the value of an option such as `--config` may also be a file's name without suffix, as
            `--config base` may mean `configs/base.yaml`. A note then says which file that is.
        only_requested: Whether a file without a parameter that the user wants to search does not count.
        in_each: Whether each file with such a parameter counts, and not only the first one. A note then says its values.
    """
    words = _words(command)
    paths = dict.fromkeys(word.removeprefix("./") for word in words)
    options_by_file = {path: _options(folder / path) for path in paths if _may_be_named(folder, path)}
    is_by_stem = by_stem and not options_by_file
    if is_by_stem:
        options_by_file = {path: _options(folder / path) for path in _named_by_stem(words, folder)}
    names: list[str] = []
    missing = set(requested)  # names that no file has so far
    for path, options in options_by_file.items():
        present = {name for name in missing if _has_requested(options, [name])}
        missing -= present
        names += [path] if present else []
    if in_each:
        names = _files_of_all(names, options_by_file, requested)
    if not names and not only_requested:
        names = [path for path, options in options_by_file.items() if guess.space(options)][:1]
    for name in names if is_by_stem else ():
        output.note(f"{name} is taken as the settings file that the command names without its suffix")
    options_by_name = {option.name: option for path in reversed(names) for option in options_by_file[path]}
    return NamedFiles(tuple(names), [*options_by_name.values()])


def _files_of_all(
    names: Sequence[str], options_by_file: Mapping[str, Sequence[Option]], requested: Collection[str]
) -> list[str]:
    """Return the given files and all others with a requested parameter of theirs, such as one that overrides a base.

    A note says the values of a parameter that are not the same.
    """
    searched = dict.fromkeys(
        option.name for path in names for option in options_by_file[path] if _has_requested([option], requested)
    )
    files = set(names)
    for name in searched:
        values = {
            path: option.default for path, options in options_by_file.items() for option in options if option.name == name
        }
        files |= values.keys()
        if len(set(map(repr, values.values()))) > 1:
            shown = ", ".join(f"{value} in {path}" for path, value in values.items())
            output.note(f"{name} is {shown}: trials replace it in each of them; the first value is the one of today")
    return [path for path in options_by_file if path in files]


def _words(command: str) -> list[str]:
    """Return the words of a command line, without quotes: `--config` and `a.yaml` of `--config="a.yaml"`."""
    return re.split(r"[\s=\"']+", command)


def _may_be_named(folder: Path, path: str) -> bool:
    """Return whether a path in a command or a script is that of a file that may have settings, in the folder or below."""
    is_below = not Path(path).is_absolute() and os.pardir not in Path(os.path.normpath(folder / path)).parts
    return is_below and _may_have_settings(folder / path)


def _may_have_settings(file: Path) -> bool:
    """Return whether a file exists and may have settings: by its suffix, or for its content if it is small."""
    if not script_folder.exists(file) or file.name.endswith(settings.SUFFIXES):
        return script_folder.exists(file)
    # The texts in a .env file may be secrets.
    return is_small(file) and ".env" not in file.name


def is_small(file: Path) -> bool:
    """Return whether a file exists and is small enough to be one of settings."""
    return script_folder.exists(file) and file.is_file() and file.stat().st_size <= _MOST_BYTES


def is_configuration(file: Path, folder: Path) -> bool:
    """Return whether a small file of a project may have settings besides code, by its path in the folder of the project."""
    is_data = file.name.endswith(settings.SUFFIXES) and file.suffix not in (".py", *settings.CODE)
    return _has_config_path(file.relative_to(folder)) and is_data and is_small(file)


def _has_config_path(path: PurePath) -> bool:
    """Return whether a file may have settings by its suffix, its name or the folders in its path."""
    return path.suffix in (".yaml", ".yml") or any(map(_CONFIG_FOLDER.search, path.parts))


def named_in_script(command: str, file: Path, folder: Path, requested: Collection[str]) -> NamedFiles:
    """Return the settings files that a script or its modules name or import, with parameters that the user wants to search.

    The script may name only the file, as `params.json`, and the command or the script its folder: `--model_dir models/a`.
    Files whose paths the script names come first, as a file of the same name in another folder may be one that it writes.

    Args:
        command: Command line.
        file: The script.
        folder: Folder in which it is started.
        requested: Names of the parameters that the user wants to search.
    """
    module_texts = script_folder.modules(file.resolve()).values()
    # Dicts as ordered sets: each word once.
    words = dict.fromkeys(word for text in module_texts for word in re.findall(r"[\w./-]+", text))
    config_modules = [name for text in module_texts for name in script.config_module_files(notebook.parse(text))]
    imported = [os.path.relpath(file.parent / name, folder) for name in config_modules]
    file_names = dict.fromkeys(PurePath(word).name for word in words if word.endswith(settings.SUFFIXES))
    paths = dict.fromkeys(filter(None, (*_words(command), *words)))
    folders = (path for path in paths if script_folder.exists(folder / path) and (folder / path).is_dir())
    joined = (f"{path.rstrip('/')}/{name}" for path in folders for name in file_names)
    all_paths = [*words, *imported, *itertools.islice(joined, _MOST_PAIRS)]
    return named(" ".join(all_paths), folder, requested, by_stem=False, only_requested=True, in_each=False)


def named_in_part(command: str, file: Path, folder: Path, requested: Collection[str]) -> NamedFiles:
    """Return the settings file of whose name a word of a command is the beginning and the script has the end.

    `--dataset HAR` and `f"{dataset}_Configs"` in the script mean `config_files/HAR_Configs.py`. It must have a parameter
    that the user wants to search. For the arguments see `named_in_script`.
    """
    text = script_folder.source(file)
    paths = list(_configurations(folder)) if requested else []
    for word, path in itertools.product(filter(_STEM.fullmatch, _words(command)), paths):
        end = path.stem.removeprefix(word)
        is_split = path.stem != end and _END.fullmatch(end) is not None
        if is_split and re.search(rf"[}}\"'/]{re.escape(end)}\b", text):  # {dataset}_Configs
            options = _options(folder / path)
            if _has_requested(options, requested):
                output.note(
                    f"{path} is taken as the settings file, because the script reads *{end} and the command has {word}"
                )
                return NamedFiles((path.as_posix(),), options)
    return NamedFiles()


def _has_requested(options: Sequence[Option], requested: Collection[str]) -> bool:
    """Return whether a settings file has a parameter that the user wants to search: `lr` or `model.lr` for lr."""
    return any(option.name == name or option.name.endswith(f".{name}") for option in options for name in requested)


def _named_by_stem(words: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the files in folders of configurations whose names without suffix are the values of options in a command."""
    values = [word for option, word in itertools.pairwise(words) if _NAMES_FILE.fullmatch(option)]  # --config base
    # configs.base is a module, configs/base.
    stems = [value.replace(".", "/") if _MODULE.fullmatch(value) else value for value in values]
    stems = [stem for stem in stems if _STEM.fullmatch(stem) and not script_folder.exists(folder / stem)]
    paths = list(_configurations(folder)) if stems else []
    for stem, path in itertools.product(stems, paths):
        if f"/{path.with_suffix('').as_posix()}".endswith(f"/{stem}"):  # configs/model/base.yaml for `model/base`
            yield path.as_posix()


def _configurations(folder: Path) -> Iterator[PurePath]:
    """Yield the settings files in folders of configurations below a folder, by relative path, those nearest to it first.

    Of many files and folders, only the first `_MOST_ENTRIES` are searched.
    """
    files: list[PurePath] = []
    entries_left = _MOST_ENTRIES
    for directory, names, file_names in os.walk(folder):
        names[:] = sorted(
            (name for name in names if not name.startswith(".")),
            key=lambda name: (_CONFIG_FOLDER.search(name) is None, name),  # those of configurations before those of data
        )
        path = PurePath(directory).relative_to(folder)
        if any(map(_CONFIG_FOLDER.search, path.parts)):
            files += (path / name for name in file_names if name.endswith(settings.SUFFIXES))
        entries_left -= len(names) + len(file_names)
        if entries_left < 0:
            break
    yield from sorted((file for file in files if file.suffix not in settings.CODE), key=lambda file: (len(file.parts), file))


def _files(folder: Path, pattern: str, is_home: bool) -> Iterator[str]:
    """Yield the paths of files that a script may mean by a name or a pattern, relative to a folder.

    Args:
        folder: Folder to search.
        pattern: Name or pattern of files in the script.
        is_home: Whether this is the folder of the script. It is searched with all folders below it, also for a name that it
            lacks. Of a folder above, only the folders whose names look like those of configurations are searched.
    """
    is_name = "*" not in pattern
    if is_name:
        yield pattern
    if is_home and not script_folder.exists(folder / pattern):
        below = (file.relative_to(folder) for file in folder.rglob(PurePath(pattern).name))
        paths = sorted(below, key=lambda path: (len(path.parts), path))
        if pattern == "*.py":  # Python files are settings only in a folder of configurations
            paths = [path for path in paths if any("conf" in part for part in path.parts[:-1])]
        yield from (path.as_posix() for path in paths[:_MOST_FILES] if not any(part.startswith(".") for part in path.parts))
    elif not is_home and not is_name and pattern != "*.py":
        config_folders = [entry for entry in folder.glob("*") if _CONFIG_FOLDER.match(entry.name) and entry.is_dir()]
        files = [*folder.glob(pattern), *(file for config_folder in config_folders for file in config_folder.rglob(pattern))]
        yield from (file.relative_to(folder).as_posix() for file in sorted(files)[:_MOST_FILES])


def _options(file: Path) -> list[Option]:
    """Return the values in a settings file. Empty if the file cannot be read, or is one of data, see `_MOST_BYTES`."""
    if not file.name.endswith((".py", *settings.CODE)) and not is_small(file):
        return []
    try:
        return script.settings_options(document.decode(document.content(file), file.name), file.name)
    except (OSError, ValueError):  # it does not exist, or is not text
        return []


def _stage(pipeline: Path, file: Path) -> _Stage | None:
    """Return the use of a script in a pipeline of DVC.

    None if there is no such pipeline, if no stage runs the script, or if its arguments contain a variable of DVC (`${…}`).

    Args:
        pipeline: Path of the pipeline.
        file: Path of the script in the pipeline's folder.
    """
    try:
        text = document.decode(document.content(pipeline), pipeline.name)
        stages = document.parse(text, pipeline.name).data.get("stages")
    except (OSError, ValueError, SpecError, AttributeError):  # there is no such file, or it is not a mapping in YAML
        return None
    script_words = (str(file), f"./{file}", ".".join(file.with_suffix("").parts))  # the last as in `python -m src.train`
    for command, sections in _commands(stages):
        try:
            words = shlex.split(command)
        except ValueError:  # an open quote
            continue
        index = next((index for index, word in enumerate(words) if word in script_words), None)
        if index is not None and not any("${" in word for word in words[index + 1 :]):
            return _Stage(tuple(words[index + 1 :]), sections)
    return None


def _commands(stages: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each command of the stages, with the parameters that its stage names."""
    for stage in stages.values() if isinstance(stages, dict) else ():
        if isinstance(stage, dict):
            command, params = stage.get("cmd"), stage.get("params")
            names = params if isinstance(params, list) else []
            sections = tuple(name for name in names if isinstance(name, str))
            commands = command if isinstance(command, list) else [command]
            yield from ((text, sections) for text in commands if isinstance(text, str))
