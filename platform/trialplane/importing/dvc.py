"""A pipeline of DVC, which is a file `dvc.yaml`, as one command that runs the stages up to its metrics.

The text is only parsed, and DVC is not needed: the stages are put in the order of their dependencies, and the values of
`params.yaml` into their commands. The result is a `Script` with the style COMMAND, whose settings file is a file of
parameters. See https://dvc.org/doc/user-guide/project-structure/dvcyaml-files.
"""

from __future__ import annotations

import dataclasses
import getopt
import graphlib
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from trialplane import errors
from trialplane.errors import Issue, SpecError
from trialplane.importing import guess, hydra, placeholders, search, shell
from trialplane.importing.script import Call, Script, Style, settings_options
from trialplane.job import arguments, credentials, document, settings, values
from trialplane.job.numeric import is_number
from trialplane.wire.declared import Option

FILE, PARAMS = "dvc.yaml", "params.yaml"
_INTERPOLATION = re.compile(r"(?<!\\)\$\{(.*?)\}")  # ${train.lr}, and not \${HOME}
_INDEX = re.compile(r"\[(.*?)\]")  # layers[0]
# Names of stages that are likely to print a metric, if none of them declares one.
_TRAINS = re.compile(r"train(?!_?test)|fit|eval|(?<!train_)(?<!train)test|valid|score|metric|tune", re.IGNORECASE)
# A command that can run in the same shell as others. Any other gets a shell of its own, as DVC runs each command: it may
# change or end its shell, as `cd data` or `set -e; python train.py` do.
_PLAIN_COMMAND = re.compile(r"python[^|&;<#\n]*")
_REPOSITORY = r"mkdir -p .dvc && printf '[core]\n    no_scm = true\n' > .dvc/config"
_TEMPLATES = ("foreach", "matrix")  # keys of a stage that stands for several
_RUNS = (("repro",), ("exp", "run"), ("experiments", "run"), ("exp", "r"))
# Options of these commands that leave the stages as they are, and `-S` and `-s`, as for `getopt`. Others choose stages.
_SHORT = "sfikqvS:n:j:r:C:"
_LONG = (
    *("single-item", "force", "interactive", "keep-going", "ignore-errors", "pull", "temp", "allow-missing", "dry"),
    *("no-commit", "no-run-cache", "force-downstream", "queue", "run-all", "reset", "quiet", "verbose"),
    *("set-param=", "name=", "jobs=", "rev=", "copy-paths="),
)
# The short and the long option that only `repro` has, and those that only `exp run` has.
_OF_REPRO = ("m", "metrics")
_OF_EXPERIMENT = ("m:", "message=")
_SET_VALUE = re.compile(rf"(?:{re.escape(PARAMS)}:)?\+*(?P<name>[^=:]+)=(?P<value>.*)", re.DOTALL)  # +train.lr=0.1


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of DVC that runs stages: `dvc repro evaluate`, `dvc exp run -S train.lr=0.1`.

    Attributes:
        file: Path of the pipeline.
        targets: Names of stages to run, or paths of their outputs; empty for those up to the metrics.
        is_alone: Whether the stages run without those that they depend on.
        values: Values that the command sets in `params.yaml`, by parameter.
        space: Parameters with several values, as fields of a job.
        variables: Environment variables that it sets.
    """

    file: str = FILE
    targets: tuple[str, ...] = ()
    is_alone: bool = False
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    space: Mapping[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Files:
    """The files beside a pipeline. Their paths are relative to its folder.

    Attributes:
        read: Function that returns the text of a file; it raises an OSError or a ValueError for one that cannot be read.
        exists: Function that returns whether a file or a folder exists.
    """

    read: Callable[[str], str]
    exists: Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class _Stage:
    """A stage. Paths are relative to the folder of the pipeline.

    Attributes:
        name: Name of the stage.
        commands: Commands, with interpolations: `python train.py --lr ${train.lr}`.
        folder: Folder in which they run.
        deps: Paths that it reads.
        outs: Paths that it writes, with those of its metrics and plots.
        metrics: Paths of its metrics.
        params: Names of parameters by file; none for all values of the file.
        values: Values for its interpolations; those of the last mapping count.
        template: `foreach` or `matrix`, if it stands for several stages; otherwise "".
        is_frozen: Whether DVC never runs it.
    """

    name: str
    commands: tuple[str, ...]
    folder: str
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    metrics: tuple[str, ...]
    params: Mapping[str, Sequence[str]]
    values: Sequence[Mapping[str, Any]]
    template: str = ""
    is_frozen: bool = False


def find_command(text: str) -> Command | None:
    """Return the command of DVC that runs stages in a command line; None without one.

    Raises:
        SpecError: An option cannot be read.
    """
    call = shell.last_call(text, _call)
    return None if call is None else _command(call)


def _call(words: Sequence[str]) -> Call | None:
    """Return the call of DVC in the words of a simple command, with `repro` or `exp` and its arguments; None without one."""
    for index, word in enumerate(words):
        if PurePath(word).name != "dvc":
            continue
        words_behind = tuple(words[index + 1 :])
        for verb in _RUNS:
            if words_behind[: len(verb)] == verb:
                return Call(FILE, arguments=(verb[0], *words_behind[len(verb) :]))
    return None


def _command(call: Call) -> Command:
    """Return the command of DVC that a call stands for, see `find_command`."""
    verb, *words = call.arguments
    short, long = _OF_REPRO if verb == "repro" else _OF_EXPERIMENT
    try:
        if "--" in words:  # which getopt would leave out
            raise getopt.GetoptError("option -- not recognized")
        pairs, targets = getopt.gnu_getopt(words, _SHORT + short, [*_LONG, long])
    except getopt.GetoptError as error:
        reason = errors.shortened(error.msg, 80)
        message = f"{reason}, so it is not read: name the stages to run, as in `dvc repro STAGE`"
        raise SpecError([Issue((f"dvc {verb}",), message)]) from error
    file, stage_names = FILE, []
    for target in targets:
        path, _, name = target.rpartition(":")  # train, or models/dvc.yaml:train
        if PurePath(name).name == FILE:  # models/dvc.yaml
            file = name
        else:
            file = path or file
            stage_names.append(name)
    settings = [value for flag, value in pairs if flag in ("-S", "--set-param")]
    parameters = _set_parameters(settings)
    return Command(
        file=_join(call.folder, file),
        targets=tuple(stage_names),
        is_alone=not {"-s", "--single-item"}.isdisjoint(flag for flag, _ in pairs),
        values=parameters.params,
        space=parameters.space,
        variables=call.variables,
    )


def _set_parameters(settings: Sequence[str]) -> search.Parameters:
    """Return the parameters that options of a command set: `train.lr=0.1` a fixed one, `depth=2,4` one to search.

    Raises:
        SpecError: One of the options cannot be read, such as that of a parameter in another file than `params.yaml`.
    """
    parameters = search.Parameters()
    for setting in settings:
        match = _SET_VALUE.fullmatch(setting)
        try:
            parameter = hydra.parse_value(match["value"], includes_end=False) if match is not None else None
        except hydra.NOT_UNDERSTOOD:
            parameter = None
        if match is None or parameter is None:
            shown_setting = repr(errors.shortened(setting, 60))
            message = f"{shown_setting} is not understood: write -S train.lr=0.1, or -S 'train.lr=0.1,0.01'"
            raise SpecError([Issue(("-S",), message)])
        parameters.add(match["name"], parameter)
    return parameters


def read(text: str, name: str, files: Files, *, command: Command | None = None, requested: Collection[str] = ()) -> Script:
    """Return the command of a pipeline, and its parameters.

    Without targets, the command runs the last stage with metrics, or else the last one that trains or evaluates by its name,
    and the stages before it. The parameters are the values that these stages list or interpolate.

    Args:
        text: Text of the file.
        name: Path of the file, for messages.
        files: The files beside it.
        command: Command of the user.
        requested: Names of the parameters that the user wants to search.

    Raises:
        SpecError: The file or one of its files of parameters cannot be read; it has no such stage, or a cycle; a stage is
            a template of several, or lacks a value or a file; or there is nothing to search.
    """
    return _Pipeline(text, name, files, command or Command()).script(requested)


def with_repository(parsed_pipeline: Script) -> Script:
    """Return a pipeline whose command first makes an empty repository of DVC, without which `dvc.api` reads nothing."""
    *words, text = parsed_pipeline.command
    return dataclasses.replace(parsed_pipeline, command=(*words, f"{_REPOSITORY} && {text}"))


class _Pipeline:
    """The stages of a pipeline. Issues are collected, and raised together before they could cause others."""

    def __init__(self, text: str, name: str, files: Files, command: Command) -> None:
        self._source = document.parse(text, name)
        self._text, self._files, self._command = text, files, command
        self._issues: list[Issue] = []
        self._notes: list[str] = []
        self._data: dict[str, dict[str, Any]] = {}  # of each file of parameters that was read
        self._path_names: set[str] = set()  # parameters that are parts of paths
        self._secrets: dict[str, str] = {}  # environment variable → secret in a file of parameters that it replaces
        self._literal_names: set[str] = set()  # parameters whose values are in a command, where no trial can replace them
        self._placeholders: dict[str, Option] = {}  # parameters with a placeholder in a command → their options
        # The stages.
        data = self._source.data if isinstance(self._source.data, dict) else {}
        fields_by_stage = data.get("stages")
        if not isinstance(fields_by_stage, dict) or not fields_by_stage:
            line = self._source.nearest_line(("stages",))
            raise SpecError(
                [Issue(("stages",), "has no stages, and a job needs a stage with `cmd`", source=name, line=line)]
            )
        shared_values: list[Mapping[str, Any]] = [self._read_data(PARAMS, "stages")] if self._files.exists(PARAMS) else []
        shared_values += self._variables(data.get("vars"), ".", "vars")
        self._stages = {stage: self._stage(stage, fields, shared_values) for stage, fields in fields_by_stage.items()}
        # A number in the name of a file of metrics may differ between trials.
        metrics = self._paths(data.get("metrics"), ".", shared_values, number_text="*")
        self._raise_issues()
        # Which stage writes a path, and which stages run before another.
        self._writers = {path: stage.name for stage in self._stages.values() for path in stage.outs}
        self._metrics: dict[str, list[str]] = {}  # stage → files of the top-level `metrics` that it writes; "" → of no stage
        for path in metrics:
            written_path = next((name for name in (path, *_parents(path)) if name in self._writers), "")
            self._metrics.setdefault(self._writers.get(written_path, ""), []).append(path)
        self._before = _stages_before(self._stages.values())

    def script(self, requested: Collection[str]) -> Script:
        """Return the content of the pipeline for the command of the user; see `read`."""
        targets = self._targets()
        self._raise_issues()
        names = targets if self._command.is_alone else self._ordered(targets)
        self._raise_issues()
        stages = [self._stages[name] for name in names if not self._stages[name].is_frozen]
        self._check(stages)
        self._raise_issues()
        used_names = self._used_names(stages)
        text = self._command_text(stages)
        self._raise_issues()
        options_by_file = {file: self._options(file, file_names) for file, file_names in used_names.items()}
        config = self._rewritten_file(options_by_file, requested)
        options = self._searchable(options_by_file.get(config, ())) | self._placeholders
        if not options:
            text, options = placeholders.for_numbers(text)
        self._check_names(options, options_by_file, config)
        self._raise_issues()
        self._note_stages(stages, names)
        text, secrets = credentials.extract(text, self._secrets)
        own_secrets = {variable: value for variable, value in secrets.items() if variable not in self._secrets}
        assignments = [f"{name}={arguments.escaped(value)}" for name, value in self._command.variables.items()]
        paths = [config, *(stage.folder for stage in stages), *(path for stage in stages for path in stage.deps)]
        return Script(
            Style.COMMAND,
            tuple(options.values()),
            config=config,
            command=(*(("env", *assignments) if assignments else ()), "bash", "-c", text),
            paths=tuple(dict.fromkeys(path for path in paths if path.startswith(os.pardir))),
            notes=(*credentials.upload_notes(self._text, own_secrets), *map(_secret_note, self._secrets), *self._notes),
            metric_files=self._metric_files(stages),
            outputs=tuple(dict.fromkeys(path for stage in stages for path in stage.outs)),
            fixed=tuple(self._command.values),
        )

    def _searchable(self, options: Sequence[Option]) -> dict[str, Option]:
        """Return the options of the file that trials rewrite, without those whose values are in a command, by name.

        One of the latter stays if the user sets it, so that a check finds it.
        """
        unsearchable = self._literal_names.difference(self._command.values)
        return {option.name: option for option in options if option.name not in unsearchable}

    def _rewritten_file(self, options_by_file: Mapping[str, Sequence[Option]], requested: Collection[str]) -> str:
        """Return the file of parameters that trials rewrite; "" without one. Add a remark on others worth a search.

        It is the one with the most requested parameters, or of several the one with the most that are worth a search.
        """

        def counts(file: str) -> tuple[int, int]:
            """Return the numbers of requested parameters in a file and of those that are worth a search."""
            options = options_by_file[file]
            requested_count = sum(
                option.name == name or option.name.endswith(f".{name}") for option in options for name in requested
            )
            return requested_count, len(guess.space(options))

        rewritten_file = max(options_by_file, key=counts, default="")
        for file, options in options_by_file.items():
            if file != rewritten_file and guess.space(options):
                self._notes.append(f"{file} stays as it is: trials rewrite one file, which is {rewritten_file}")
        return rewritten_file

    def _refuse(self, message: str, *field_path: str | int) -> None:
        """Add an issue of a field."""
        line = self._source.nearest_line(field_path)
        self._issues.append(Issue(field_path, message, source=self._source.source, line=line))

    def _raise_issues(self) -> None:
        """Raise an error with the issues, if there are any."""
        if self._issues:
            raise SpecError(self._issues)

    def _read_data(self, file: str, *field_path: str | int) -> dict[str, Any]:
        """Return the data of a file of parameters, with the values that the user's command sets in it; {} after an issue."""
        if file not in self._data:
            self._data[file] = {}  # so that a file with an issue has only one
            try:
                data = _parse(self._files.read(file), file)
            except SpecError as error:
                self._issues += error.issues
                return {}
            except (OSError, ValueError, RecursionError) as error:
                reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
                self._refuse(f"the file of parameters {file} {reason}", *field_path)
                return {}
            if not isinstance(data, dict):
                self._refuse(f"the file of parameters {file} has no `name: value` lines", *field_path)
                return {}
            for name, value in self._command.values.items() if file == PARAMS else ():
                _replace(data, name.split("."), value)
            self._data[file] = data
        return self._data[file]

    def _variables(self, items: Any, folder: str, *field_path: str | int) -> list[Mapping[str, Any]]:
        """Return the values of `vars`: of mappings, files, and keys of files, as `file.yaml:a,b`.

        Args:
            items: The field `vars`.
            folder: Folder of the files.
            field_path: Path of the field.
        """
        layers: list[Mapping[str, Any]] = []
        for index, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, str):
                file, _, keys = item.partition(":")
                data = self._read_data(_join(folder, file), *field_path, index)
                layers.append({key: data[key] for key in keys.split(",") if key in data} if keys else data)
            elif isinstance(item, dict):
                layers.append(item)
        return layers

    def _stage(self, name: str, fields: Any, shared_values: Sequence[Mapping[str, Any]]) -> _Stage:
        """Return the stage of a name and its fields. `shared_values` are those for interpolations in all stages."""
        field_path = ("stages", name)
        template = next((key for key in _TEMPLATES if isinstance(fields, dict) and key in fields), "")
        if template == "foreach":
            fields = fields.get("do")
        if not isinstance(fields, dict):
            self._refuse("must be a mapping with `cmd`", *field_path)
            fields = {}
        commands = self._commands(fields.get("cmd"), *field_path)
        wdir = fields.get("wdir")
        folder = _join(self._filled(wdir, shared_values)) if isinstance(wdir, str) else "."
        stage_values = (*shared_values, *self._variables(fields.get("vars"), folder, *field_path, "vars"))
        paths = {key: self._paths(fields.get(key), folder, stage_values) for key in ("deps", "outs", "metrics", "plots")}
        return _Stage(
            name=name,
            commands=commands,
            folder=folder,
            deps=paths["deps"],
            outs=(*paths["outs"], *paths["metrics"], *paths["plots"]),
            metrics=self._paths(fields.get("metrics"), folder, stage_values, number_text="*"),
            params=_listed_names(fields.get("params"), folder, lambda text: self._filled(text, stage_values)),
            values=stage_values,
            template=template,
            is_frozen=fields.get("frozen") is True,
        )

    def _commands(self, cmd: Any, *field_path: str | int) -> tuple[str, ...]:
        """Return the commands of a stage: the items of its `cmd`, or the lines, as DVC runs each in a shell of its own."""
        commands = re.sub(r"\s*\\\n\s*", " ", cmd).splitlines() if isinstance(cmd, str) else cmd
        if not isinstance(commands, list) or not all(isinstance(text, str) for text in commands):
            self._refuse("needs `cmd`, a command or a list of commands", *field_path)
            return ()
        return tuple(text.strip() for text in commands if text.strip())

    def _paths(
        self, items: Any, folder: str, values_for_names: Sequence[Mapping[str, Any]], *, number_text: str = ""
    ) -> tuple[str, ...]:
        """Return the paths in a list of a stage, which has a path, or a mapping of one to its options.

        Args:
            items: The list.
            folder: Folder to which they are relative.
            values_for_names: Values for interpolations; those of the last mapping count.
            number_text: Text in place of interpolated numbers, such as `*`; "" for their values.
        """
        items = items if isinstance(items, (list, dict)) else []
        paths = []
        for item in items:
            for text in item if isinstance(item, dict) else [item]:  # metrics.json, or {metrics.json: {cache: false}}
                path = self._filled(str(text), values_for_names, number_text=number_text)
                if "${" in path:  # of a stage that stands for several: the folder above all of its files
                    path = path[: path.index("${")].rpartition("/")[0]
                if path:
                    paths.append(path if "://" in path else _join(folder, path))
        return tuple(path for path in paths if path != ".")

    def _filled(self, text: str, values_for_names: Sequence[Mapping[str, Any]], *, number_text: str = "") -> str:
        """Return a path with the values of its interpolations, see `_paths`, and remember their names in `_path_names`."""

        def value_of(match: re.Match[str]) -> str:
            """Return the text in place of an interpolation; one without a number or a text stays."""
            name = _interpolated_name(match)
            value = _find(values_for_names, name)
            if value is _MISSING or isinstance(value, (dict, list)):
                return match[0]
            self._path_names.add(name)
            return number_text if number_text and is_number(value) else _text(value)

        return _INTERPOLATION.sub(value_of, text).replace(r"\${", "${")

    def _targets(self) -> list[str]:
        """Return the names of the stages that the user's command runs; [] after an issue."""
        if not self._command.targets:
            return self._default_target()
        names = []
        for target in self._command.targets:
            name = target.partition("@")[0]  # train@0, of a template
            if name not in self._stages:  # the target is a path
                name = self._writers.get(_join(target), "")
            if not name:
                self._refuse(f"there is no stage {target!r}; {errors.nearest(target, self._stages)}".rstrip("; "), "stages")
            names.append(name)
        return names

    def _default_target(self) -> list[str]:
        """Return the last stage with metrics, or else the last one that trains by its name, or else the last, in a list."""
        ordered = self._ordered(self._stages)
        with_metrics = [name for name in ordered if self._stages[name].metrics or name in self._metrics]
        if len(with_metrics) > 1:
            *others, last = with_metrics
            self._notes.append(
                f"stages with metrics are {', '.join(with_metrics)}, and trials run up to {last}, the last one; for "
                f"another: `platform init --from 'dvc repro {others[-1]}'`"
            )
        likely = with_metrics or [name for name in ordered if _TRAINS.search(name)] or ordered
        return likely[-1:]

    def _ordered(self, targets: Iterable[str]) -> list[str]:
        """Return stages and all that they depend on, in an order in which they can run; [] after an issue of a cycle."""
        needed: dict[str, list[str]] = {}
        todo = list(targets)
        while todo:
            name = todo.pop()
            if name not in needed:
                needed[name] = [] if self._stages[name].is_frozen else self._before[name]
                todo += needed[name]
        in_order_of_file = {name: needed[name] for name in self._stages if name in needed}
        try:
            return list(graphlib.TopologicalSorter(in_order_of_file).static_order())
        except graphlib.CycleError as error:
            cycle = errors.shortened(" → ".join(error.args[1]), 300)
            self._refuse(f"depend on each other: {cycle}; drop one of the `deps`", "stages", error.args[1][0])
            return []

    def _check(self, stages: Sequence[_Stage]) -> None:
        """Check that no stage is a template, and that each file that one reads exists or is written by another one."""
        written = {path for stage in stages for path in stage.outs}
        folders_above = {parent for path in written for parent in _parents(path)}
        for stage in stages:
            if stage.template:
                message = (
                    f"stands for several stages, and a trial runs one: write {stage.name} out as one stage, with the values "
                    f"of `{stage.template}` in {PARAMS}, and search those with --space; or name another stage, as in "
                    f"`platform init --from 'dvc repro STAGE'`"
                )
                self._refuse(message, "stages", stage.name, stage.template)
                continue
            for path in stage.deps:
                is_written = path in folders_above or not written.isdisjoint([path, *_parents(path)])
                if "://" not in path and not is_written and not self._files.exists(path):
                    writer = self._writers.get(path)
                    remedy = f"`dvc repro {writer}` writes it" if writer else "`dvc pull` gets it, if DVC tracks it"
                    self._refuse(f"{path} does not exist; {remedy}", "stages", stage.name, "deps")

    def _used_names(self, stages: Sequence[_Stage]) -> dict[str, list[str]]:
        """Return the names of values, or of mappings of values, that stages list or interpolate, by file.

        The name "" stands for all values of a file. If there are no names, these are all values of `params.yaml`.
        """
        used_names: dict[str, list[str]] = {}
        for stage in stages:
            for file, names in stage.params.items():
                self._check_listed_names(stage, file, names)
                used_names.setdefault(file, []).extend(names or [""])
            for match in _INTERPOLATION.finditer("\n".join(stage.commands)):
                name = _interpolated_name(match)
                for file in self._files_with(name):
                    used_names.setdefault(file, []).append(name)
            # A settings file among the dependencies is listed with all of its values.
            for path in stage.deps:
                if path.endswith((".yaml", ".yml", ".toml")) and path not in self._writers:
                    used_names.setdefault(path, []).append("")
        if not used_names and self._files.exists(PARAMS):
            used_names[PARAMS] = [""]
        return used_names

    def _check_listed_names(self, stage: _Stage, file: str, names: Sequence[str]) -> None:
        """Check that a file of parameters has the values that a stage lists in `params`."""
        field_path = ("stages", stage.name, "params")
        data = self._read_data(file, *field_path)
        for name in names if data else ():
            if _look(data, name) is _MISSING:
                hint = errors.nearest(name, (key for key, _ in _flat(data)))
                self._refuse(f"{file} has no {name}; {hint}".rstrip("; "), *field_path)

    def _files_with(self, name: str) -> list[str]:
        """Return the files of parameters that have a value with a dotted name."""
        return [file for file, data in self._data.items() if _look(data, name) is not _MISSING]

    def _options(self, file: str, used_names: Collection[str]) -> tuple[Option, ...]:
        """Return the values in a file that stages use, as options; () if it has no values. See `_used_names`."""
        if not file.endswith(settings.SUFFIXES):
            return ()
        try:
            options = settings_options(self._files.read(file), file)
        except (OSError, ValueError):  # a dependency may be no file of parameters
            return ()
        set_values = self._command.values if file == PARAMS else {}
        return tuple(
            dataclasses.replace(option, default=set_values.get(option.name, option.default))
            for option in options
            if "" in used_names or not {option.name, *_parents(option.name, ".")}.isdisjoint(used_names)
        )

    def _command_text(self, stages: Sequence[_Stage]) -> str:
        """Return the commands of stages as one command of the shell, with placeholders."""
        pieces: list[str] = []
        is_single = sum(len(stage.commands) for stage in stages) == 1
        for stage in stages:
            for raw_command in stage.commands:
                text = self._with_placeholders(stage, raw_command)
                is_plain = _PLAIN_COMMAND.fullmatch(raw_command) is not None
                if not is_plain and (not is_single or stage.folder != "."):
                    text = _in_subshell(text, raw_command)
                if stage.folder != ".":
                    text = f"(cd {arguments.escaped(shlex.quote(stage.folder))} && {text})"
                pieces.append(text)
        if not pieces and not self._issues:
            self._refuse("has no commands to run: the stages are frozen, or `cmd` is empty", "stages")
        return " && ".join(pieces)

    def _with_placeholders(self, stage: _Stage, command: str) -> str:
        """Return a command with a placeholder for each interpolated value that could be searched, and the other values."""
        pieces, copied = [], 0  # pieces of the text, which stand for `command` up to the index `copied`
        quote = ""  # quotation mark that is open there
        for match in _INTERPOLATION.finditer(command):
            text_before = command[copied : match.start()]
            quote = credentials.open_quote(text_before, quote)
            pieces += [_literal(text_before), self._interpolated_text(stage, match, quote)]
            copied = match.end()
        return "".join([*pieces, _literal(command[copied:])])

    def _interpolated_text(self, stage: _Stage, match: re.Match[str], quote: str) -> str:
        """Return the text in place of an interpolation in a command; "" after an issue.

        Args:
            stage: Stage of the command.
            match: The interpolation.
            quote: Quotation mark that is open before it, or "".
        """
        name = _interpolated_name(match)
        value = _find(stage.values, name)
        if value is _MISSING or isinstance(value, list):
            self._refuse_interpolation(stage, match[0], name, value)
            return ""
        next_character = match.string[match.end() : match.end() + 1]

        def value_text(key: str, leaf: Any) -> str:
            """Return the text of the value, or of one in a mapping: a variable of the shell, a placeholder, or itself."""
            if credentials.is_secret(key, leaf):
                return credentials.reference(key, leaf, self._secrets, quote=quote, following=next_character)
            return self._placeholder(key, leaf)

        if not isinstance(value, dict):
            return value_text(name, value)
        leaves = _flat(value, f"{name}.")  # a mapping stands for a flag with each of its values
        flags = [_flag(key.removeprefix(f"{name}."), leaf, value_text(key, leaf)) for key, leaf in leaves]
        return " ".join(filter(None, flags))

    def _refuse_interpolation(self, stage: _Stage, interpolation: str, name: str, value: Any) -> None:
        """Add an issue of an interpolation in a stage's command, whose value is a list or `_MISSING`."""
        text, hint = errors.shortened(interpolation, 60), ""
        if value is _MISSING:
            hint = errors.nearest(name, (key for layer in stage.values for key, _ in _flat(layer)))
        reason = "has no value" if value is _MISSING else "is a list, which a command cannot have"
        remedy = f"{hint or f'write it into {PARAMS}'}; for a variable of the shell write \\{text}"
        self._refuse(f"{text} {reason}; {remedy}", "stages", stage.name, "cmd")

    def _placeholder(self, name: str, value: Any) -> str:
        """Return the placeholder for a number or a text, and add its option; of another value, or a path, its own text."""
        is_text = isinstance(value, str) and name not in self._path_names
        is_item = any(part.isdecimal() for part in name.split("."))  # of a list, which a file has as one value
        has_option = (is_number(value) or is_text) and not is_item and values.parameter_name(name, ()) == name
        if not has_option:
            self._literal_names.add(name)
            return _literal(_text(value))
        self._placeholders.setdefault(name, Option(name, default=value, kind=type(value).__name__))
        return f"{{{name}}}"

    def _check_names(
        self, options: Collection[str], options_by_file: Mapping[str, Sequence[Option]], rewritten_file: str
    ) -> None:
        """Check that there are options, and that the parameters that the user's command sets have an effect.

        Args:
            options: Names of the options.
            options_by_file: Options of each file of parameters.
            rewritten_file: The file of parameters that trials rewrite.
        """
        if not options:
            remedy = (
                "list the parameters that a stage reads, as in `params: [train.lr]`, or write ${train.lr} into its `cmd`"
            )
            self._refuse(f"have no parameters: {remedy}", "stages")
            return
        names_in_params = {option.name for option in options_by_file.get(PARAMS, ())}
        for name, value in self._command.values.items():
            is_listed = name in names_in_params
            is_interpolated = self._is_interpolated(name, value)
            # Trials write it into the file, or it is in the command, unless an interpolation takes it from another file.
            has_effect = (is_listed and rewritten_file == PARAMS) or (is_interpolated and self._files_with(name) == [PARAMS])
            if has_effect:
                continue
            if is_listed or is_interpolated:
                remedy = f"write the value into {PARAMS}, and drop -S"
                reason = f"trials rewrite one file of parameters, which is {rewritten_file}: {remedy}"
            else:
                reason = f"no stage of the job has this parameter; {errors.nearest(name, options)}".rstrip("; ")
            self._issues.append(Issue(("-S", name), reason))

    def _is_interpolated(self, name: str, value: Any) -> bool:
        """Return whether a value that the user's command sets is in a command or a path of a stage.

        It is not if it is an item of a list, which -S does not replace.
        """
        is_replaced = _look(self._data.get(PARAMS), name) == value
        return is_replaced and name in {*self._placeholders, *self._literal_names, *self._path_names}

    def _metric_files(self, stages: Sequence[_Stage]) -> tuple[str, ...]:
        """Return the paths of the metrics of the last stage that has some, or else of those that no stage writes."""
        for stage in reversed(stages):
            paths = dict.fromkeys((*stage.metrics, *self._metrics.get(stage.name, ())))
            if paths:
                return tuple(path if PurePath(path).suffix else f"{path}/*" for path in paths)  # all files of a folder
        return tuple(self._metrics.get("", ()))

    def _note_stages(self, stages: Sequence[_Stage], names: Collection[str]) -> None:
        """Add remarks on the stages that trials run, and those that they do not run.

        Args:
            stages: Stages that trials run.
            names: Names of these and of the frozen stages on which they depend.
        """
        others = [name for name in self._stages if name not in names]
        remark = f"trials run {', '.join(stage.name for stage in stages)}"
        if others:
            remark += f", and not {', '.join(others)}"
        self._notes.append(errors.shortened(remark, 400))
        if frozen := [name for name in names if self._stages[name].is_frozen]:
            self._notes.append(f"{', '.join(frozen)}: frozen, so trials take the outputs as they are")


_MISSING: Any = object()  # stands for the value of a parameter without one


def _parse(text: str, name: str) -> Any:
    """Return the data of a file of parameters.

    Raises:
        SpecError, ValueError, RecursionError: It cannot be read.
    """
    if name.endswith(".toml"):
        return tomllib.loads(text)
    if name.endswith(".py"):
        return settings.values(text, name)
    return document.parse(text, name).data


def _join(*paths: str) -> str:
    """Return the path of a file, without `.` and inner `..` in it."""
    return os.path.normpath(PurePath(*paths))


def _parents(path: str, separator: str = "/") -> Iterator[str]:
    """Yield the folders above a path, or the names of the mappings above a value."""
    while separator in path:
        path = path.rpartition(separator)[0]
        yield path


def _look(data: Any, name: str) -> Any:
    """Return the value with a dotted name in nested mappings and lists; `_MISSING` if there is none."""
    if isinstance(data, dict) and name in data:  # the names of values in a Python file are dotted themselves
        return data[name]
    for key in map(str.strip, name.split(".")):
        if isinstance(data, dict) and key in data:
            data = data[key]
        elif isinstance(data, list) and key.isdecimal() and int(key) < len(data):  # layers.0
            data = data[int(key)]
        else:
            return _MISSING
    return data


def _interpolated_name(interpolation: re.Match[str]) -> str:
    """Return the dotted name in an interpolation: layers.0 of `${layers[0]}`."""
    return _INDEX.sub(r".\1", interpolation[1].strip())


def _find(layers: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Return the value with a dotted name in the last mapping that has it; `_MISSING` if none has."""
    return next((value for layer in reversed(layers) if (value := _look(layer, name)) is not _MISSING), _MISSING)


def _replace(data: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Replace a value in nested mappings; do nothing if they do not have it."""
    for key in keys[:-1]:
        data = data.get(key, {}) if isinstance(data, dict) else {}
    if isinstance(data, dict) and keys[-1] in data:
        data[keys[-1]] = value


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings, by dotted names."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    """Return a value as the text that DVC writes into a command."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _secret_note(variable: str) -> str:
    """Return the remark on a secret in a file of parameters, for which a variable stands in the command."""
    return (
        f"the command reads {variable} from the environment, as its value in a file of parameters looks like a secret, and "
        f"the file is uploaded with the job: remove it there, and type `export {variable}=…` before `platform submit`"
    )


def _literal(text: str) -> str:
    """Return a part of a command as a part of a job's command, with the variables of the shell that it escapes."""
    return arguments.escaped(text.replace(r"\${", "${"))


def _in_subshell(text: str, raw_command: str) -> str:
    """Return the text of a command in parentheses, with which a shell runs it in a shell of its own."""
    # A comment would hide the parenthesis, and the end of a here-document needs a line of its own.
    if set("#\n") & set(raw_command) or "<<" in raw_command:
        return f"(\n{text}\n)"
    return f"( {text})" if text.startswith("(") else f"({text})"  # `((` would begin an arithmetic expression


def _flag(name: str, value: Any, text: str) -> str:
    """Return the flag of a value in an interpolated mapping, as DVC writes it: `--lr 0.1`, and `--amp` for true.

    Args:
        name: Name of the flag.
        value: The value.
        text: Its text in the command.
    """
    if isinstance(value, bool):
        return f"--{name}" if value else ""
    if isinstance(value, list):
        items = " ".join(shlex.quote(item) if isinstance(item, str) else str(item) for item in value)
        return f"--{name} {_literal(items)}" if value else ""
    is_quoted = isinstance(value, str) and text == _literal(value)  # and no placeholder
    return f"--{name} {_literal(shlex.quote(value)) if is_quoted else text}"


def _listed_names(items: Any, folder: str, filled: Callable[[str], str]) -> dict[str, list[str]]:
    """Return the names of a stage's `params` by file; none for all values of the file.

    Args:
        items: The field: names in `params.yaml`, and mappings of files to lists of names.
        folder: Folder of the stage.
        filled: Function that returns a text with the values of its interpolations.
    """
    names_by_file: dict[str, list[str]] = {}
    for item in items if isinstance(items, list) else [items]:
        if item is None:
            continue
        for file, names in item.items() if isinstance(item, dict) else [(PARAMS, [item])]:
            file_names = names_by_file.setdefault(_join(folder, filled(str(file))), [])
            if isinstance(names, list):
                file_names += (filled(str(name)) for name in names)
    return names_by_file


def _stages_before(stages: Collection[_Stage]) -> dict[str, list[str]]:
    """Return the names of the stages on which each stage depends, by its name: those that write what it reads.

    It reads an output, a folder above one, or a file in one.
    """
    before: dict[str, list[str]] = {}
    for stage in stages:
        paths_read = {path for dep in stage.deps for path in (dep, *_parents(dep))}
        before[stage.name] = [
            other.name
            for other in stages
            if other is not stage
            and not stage.template  # which is refused, and the folders of its files may seem to be in a cycle
            and any(out in paths_read or not set(_parents(out)).isdisjoint(stage.deps) for out in other.outs)
        ]
    return before
