"""The fields of a job whose trials are scripts or commands: their arguments, and the sources of their metrics.

`from_job` returns them as plain values for the slots, and `check` has the rules between these fields.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from trialplane import errors
from trialplane.errors import FieldPath, Issue
from trialplane.job import arguments, models, program, settings, values
from trialplane.job.program import Program

if TYPE_CHECKING:
    from trialplane.job.kinds.ranked import Ranked

STYLES = (*arguments.FOR_ALL, "none")
_DEFAULT_SOURCES = ("stdout", "mlflow")  # default sources of metrics
_SILENT_LIBRARIES = {"mlflow", "hydra"}  # captured libraries that do not print their metrics
_LATE_SOURCES = (program.MetricSource("tensorboard"),)  # those of `Program.late_metrics`, by default
_SOURCES_WITH_PATH = ("file", "tensorboard")


class Arguments(models.Model):
    """The arguments of a script or command, and how parameters become flags."""

    items: tuple[str, ...] = Field(
        default=("{flags}",),
        description="Arguments. {lr} is a parameter, and {flags}, {hydra} or {pairs} stands for all others.",
    )
    booleans: Literal["switch", "value", "negated"] = Field(
        default="switch",
        description="Format of booleans in flags. switch: --amp or nothing. negated: --amp or --no-amp. value: --amp=True "
        "or --amp=False.",
    )
    lists: Literal["spread", "repeat", "comma", "literal"] = Field(
        default="spread",
        description="Format of lists in flags. spread: --sizes 64 32. repeat: --sizes=64 --sizes=32. comma: --sizes=64,32. "
        "literal: --sizes=[64, 32].",
    )
    files: tuple[str, ...] = Field(
        default=(),
        description="Settings files of the job's folder, YAML, JSON, TOML, INI, gin, Python or shell scripts: params.yaml, "
        "config.py. With another suffix, a file's text says its format. In each trial's copy, the parameters that a file "
        "has replace its values. They are not arguments then. `file` names a single one.",
    )


def _expand_arguments(value: Any) -> Any:
    """Return a short form of `arguments` (a name of `STYLES`, a settings file or a list) as a mapping of its fields.

    Other values are returned unchanged, for pydantic to check.

    Raises:
        ValueError: A text is neither a name nor a settings file, or an item is not a text.
    """
    if isinstance(value, str):
        if value.endswith(settings.SUFFIXES):
            return {"items": [], "files": [_settings_path(value)]}
        if value not in STYLES:
            raise ValueError(f"{value!r} is not flags, hydra, pairs, globals, none, a settings file or a list of arguments")
        return {"items": [] if value == "none" else [f"{{{value}}}"]}
    if isinstance(value, (list, tuple)):
        return {"items": _parse_texts(value)}
    if isinstance(value, dict) and isinstance(value.get("file"), str) and "files" not in value:
        value = {**{key: item for key, item in value.items() if key != "file"}, "files": [value["file"]]}
    if isinstance(value, dict) and isinstance(value.get("files"), (list, tuple)):
        # Without items, parameters are in the files alone, and not also flags, the default of `items`.
        value = {"items": [], **value, "files": [_settings_path(name) for name in _parse_texts(value["files"])]}
    if isinstance(value, dict) and isinstance(value.get("items"), str):
        return {**value, **_expand_arguments(value["items"])}  # items: hydra
    return value


def _settings_path(name: str) -> str:
    """Return the path of a settings file without ./ at its start.

    Raises:
        ValueError: It is not the path of a settings file in the job's folder.
    """
    if values.leads_outside(name):
        raise ValueError(f"{name!r} is not a settings file of the job's folder; write file: params.yaml")
    return name.removeprefix("./")


def _parse_texts(value: Any) -> Any:
    """Return a list of strings and numbers with the numbers as strings. Return a value that is not a list unchanged.

    Raises:
        ValueError: An item is neither a string nor a number.
    """
    if not isinstance(value, (list, tuple)):
        return value
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise ValueError(f"{item!r} must be a string: put it in quotes")
    return [str(item) for item in value]


def _parse_script_path(value: Any) -> Any:
    """Return the path of a script without ./ at its start. Return a value that is not a text unchanged, for pydantic.

    Raises:
        ValueError: It is not the path of a Python file in the job's folder.
    """
    if not isinstance(value, str):
        return value
    if values.leads_outside(value) or not value.endswith(".py"):
        raise ValueError(f"{value!r} is no Python file of the job's folder; write script: train.py")
    return value.removeprefix("./")


def _described(model: type[models.Model], field: str, **schema: Any) -> dict[str, Any]:
    """Return the schema of a field with the description that it has in its model."""
    return {**schema, "description": model.model_fields[field].description}


ScriptFile = Annotated[
    str, BeforeValidator(_parse_script_path), WithJsonSchema({"type": "string", "pattern": r"^[^/].*\.py$"})
]
_SETTINGS: dict[str, Any] = {"type": "string", "pattern": rf"\.({'|'.join(end[1:] for end in settings.SUFFIXES)})$"}
_ITEMS = {"type": "array", "items": {"type": ["string", "number"]}}
ArgumentsField = Annotated[
    Arguments,
    BeforeValidator(_expand_arguments),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(STYLES)},
                _SETTINGS,
                _ITEMS,
                {
                    "type": "object",
                    "properties": {
                        "items": _described(Arguments, "items", anyOf=[{"enum": list(STYLES)}, _ITEMS]),
                        "booleans": _described(Arguments, "booleans", enum=list(arguments.BOOLEANS), default="switch"),
                        "lists": _described(Arguments, "lists", enum=list(arguments.LISTS), default="spread"),
                        "file": {"type": "string", "description": "A single settings file; see `files`."},
                        "files": _described(Arguments, "files", type="array", items={"type": "string"}),
                    },
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(_parse_texts),
    Field(min_length=1),
    WithJsonSchema({**_ITEMS, "minItems": 1}),
]


class SourceField(models.Model):
    """One source of a script's metrics."""

    model_config = ConfigDict(populate_by_name=True)

    @property
    def metric_source(self) -> program.MetricSource:
        """The source as a plain value, for a slot, which does not import pydantic."""
        return program.MetricSource(source=self.source, pattern=self.pattern, path=self.path or "", step=self.step or "")

    source: Literal["stdout", "mlflow", "file", "tensorboard"] = Field(
        alias="from",
        description="stdout: lines of output. mlflow: calls of MLflow. file: a file with JSON Lines, CSV or text. "
        "tensorboard: its event files.",
    )
    pattern: tuple[str, ...] = Field(
        default=(),
        description="Regular expressions that find metrics in a line. Name a group after each metric: loss: "
        "(?P<loss>[0-9.]+). Or use the groups `name` and `value`, or two groups in this order.",
    )
    path: str | None = Field(default=None, description="Path of the files, relative to the working directory: out/*.jsonl.")
    step: str | None = Field(default=None, description="Name of the metric that is the step: epoch, global_step.")

    @model_validator(mode="before")
    @classmethod
    def _expand_pattern(cls, data: Any) -> Any:
        """Return a single pattern as a list."""
        if isinstance(data, dict) and isinstance(data.get("pattern"), str):
            return {**data, "pattern": [data["pattern"]]}
        return data

    @model_validator(mode="after")
    def _check_fields(self) -> SourceField:
        """Check the patterns and the path, and that each field belongs to this kind of source."""
        problems = [_pattern_problem(pattern) for pattern in self.pattern]
        issues = [Issue(("pattern", index), problem) for index, problem in enumerate(problems) if problem]
        if self.pattern and self.source not in ("stdout", "file"):
            issues.append(Issue(("pattern",), f"is for lines of text, which {self.source} has not; drop it"))
        if self.path is not None and self.source in ("stdout", "mlflow"):
            issues.append(Issue(("path",), "is for files; write from: file, or drop it"))
        if self.path is None and self.source == "file":
            issues.append(Issue(("path",), "is missing; write path: metrics.jsonl"))
        if self.path is not None and (problem := _path_problem(self.path)):
            issues.append(Issue(("path",), problem))
        elif self.path is not None and values.leads_outside(self.path):
            issues.append(Issue(("path",), "must lie below the folder in which the script runs, as in out/metrics.jsonl"))
        models.refuse(issues)
        return self


def _path_problem(path: str) -> str:
    """Return the reason why a path with wildcards can match no file. "" if it can."""
    if path.strip("./") == "":
        return "names no file; write path: out/*.jsonl"
    if any("**" in part and part != "**" for part in path.split("/")):  # Python 3.13 reads this ** as *
        return "cannot be looked for: ** stands for folders, as in out/**/*.jsonl"
    try:
        next(iter(Path("/nonexistent").glob(path.lstrip("/"))), None)  # only to check the pattern
    except (ValueError, IndexError, NotImplementedError) as error:
        return f"cannot be looked for: {error}"
    return ""


def _pattern_problem(pattern: str) -> str:
    """Return the reason why a pattern cannot find metrics. "" if it can. For valid patterns, see `SourceField.pattern`."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        return f"is not a regular expression: {error}"
    group_names = set(regex.groupindex)
    has_pair = group_names >= {"name", "value"}
    has_metric_names = bool(group_names) and not group_names & {"name", "value"}
    if has_pair or has_metric_names or (regex.groups >= 2 and not group_names):
        return ""
    return r"needs two groups, the name and the value: (\w+)=([-+.\deE]+), or one named like its metric: (?P<loss>…)"


def _expand_sources(value: Any) -> Any:
    """Return the short forms of `metrics`, "none", one source or a source's name, as a list of mappings."""
    if value == "none":
        return []
    if isinstance(value, (str, dict)):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return value
    return [{"from": source} if isinstance(source, str) else source for source in value]


_SOURCE_SCHEMA = {
    "anyOf": [
        {"enum": ["stdout", "mlflow", "tensorboard"]},
        {
            "type": "object",
            "properties": {
                "from": _described(SourceField, "source", enum=["stdout", "mlflow", *_SOURCES_WITH_PATH]),
                "pattern": _described(
                    SourceField, "pattern", anyOf=[{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
                ),
                "path": _described(SourceField, "path", type="string"),
                "step": _described(SourceField, "step", type="string"),
            },
            "required": ["from"],
            "additionalProperties": False,
        },
    ]
}
MetricSources = Annotated[
    tuple[SourceField, ...],
    BeforeValidator(_expand_sources),
    WithJsonSchema({"anyOf": [{"const": "none"}, _SOURCE_SCHEMA, {"type": "array", "items": _SOURCE_SCHEMA}]}),
]


def from_job(job: Ranked) -> Program | None:
    """Return the program that a job's trials run. None if they call its entrypoint."""
    if not job.script and not job.command:
        return None
    job_arguments = _arguments_of(job)
    search = job.search
    metrics_to_watch = (search.pruner.metric, *(rule.metric for rule in job.stops))
    watched_metrics = filter(None, metrics_to_watch)  # without None of a pruner, and "" of a rule that is a step
    return Program(
        script=job.script or "",
        command=job.command or (),
        arguments=job_arguments.items,
        booleans=job_arguments.booleans,
        lists=job_arguments.lists,
        files=job_arguments.files,
        cwd=job.cwd or "code",
        metrics=_metric_sources(job),
        late_metrics=_LATE_SOURCES if job.metrics is None and "tensorboard" not in (job.capture or ()) else (),
        names=tuple(dict.fromkeys([*job.required_metrics, *watched_metrics])),
        sample=None if search.function else {**job.params, **search.start_point()},
        packages=bool(job.packages),
    )


def _metric_sources(job: Ranked) -> tuple[program.MetricSource, ...]:
    """Return the sources of a program's metrics, from the job or by default."""
    if job.metrics is not None:
        return tuple(source.metric_source for source in job.metrics)
    # A captured library that prints its metrics, too, is the only source of them beside MLflow.
    prints_metrics = not set(job.capture or ()) <= _SILENT_LIBRARIES
    names = ("mlflow",) if prints_metrics else _DEFAULT_SOURCES
    # The calls of MLflow in a command, a process of its own, are not seen.
    return tuple(program.MetricSource(name) for name in names if not (job.command and name == "mlflow"))


def _capture_issues(job: Ranked) -> Iterator[Issue]:
    """Yield issues of `capture`, and of the metrics of MLflow, which are captured too.

    A command allows neither, except `capture: wandb`. A library must not be both in `capture` and in `metrics`.
    """
    captured = set(job.capture or ())
    uncapturable = sorted(captured - {"wandb"}) if job.command else []
    if uncapturable:
        advice = "write metrics: tensorboard, say, or run a Python file as script"
        text = f"reaches into a script, and a command is a process of its own, in which only wandb is captured: {advice}"
        yield Issue(("capture",), f"{', '.join(uncapturable)} {text}")
    for index, source in enumerate(job.metrics or ()):
        if job.command and source.source == "mlflow" and not uncapturable:
            reason = "mlflow reads the calls of a script; a command is a process of its own, whose calls are not seen"
            advice = "print the metric, write it to a file for {from: file, path: FILE}, or run a Python file as script"
            yield Issue(("metrics", index), f"{reason}: {advice}")
        if source.source in captured - {"mlflow"}:  # both read the same calls of MLflow, and count each once
            advice = "drop it, or drop it from capture"
            yield Issue(("metrics", index), f"{source.source} is in capture, which reports the same; {advice}")


def _arguments_of(job: Ranked) -> Arguments:
    """Return the arguments of a job's program. Default: flags for a script, none for a command."""
    return job.arguments or Arguments(items=("{flags}",) if job.script else ())


def check(job: Ranked, broken: Collection[FieldPath]) -> Iterator[Issue]:
    """Yield issues of the fields of a job's script or command that contradict each other.

    Args:
        job: The job.
        broken: Paths of invalid fields; see `Base.check`.
    """
    if job.script and job.command:
        yield Issue(("command",), f"stands beside script ({job.script}); keep one of them")
    elif job.script or job.command:
        if "entrypoint" in job.model_fields_set and ("entrypoint",) not in broken:
            yield Issue(("entrypoint",), f"stands beside {'script' if job.script else 'command'}; keep one of them")
        yield from _capture_issues(job)
        has_broken_params = any(field_path[0] in ("params", "space") for field_path in broken)
        if not has_broken_params and not job.search.function:  # otherwise not all names of parameters are known
            yield from _argument_issues(job)
    elif not {("script",), ("command",)} & set(broken):
        for name in ("arguments", "cwd", "metrics"):
            if getattr(job, name) is not None:
                yield Issue((name,), "is for a script or a command: write script: train.py, or drop it")


def _argument_issues(job: Ranked) -> Iterator[Issue]:
    """Yield issues of the arguments of a job's script or command."""
    names = [*job.params, *job.search.names]
    yield from _hydra_name_issues(job, names)
    if job.command and f"{{{arguments.GLOBALS}}}" in _arguments_of(job).items:
        yield Issue(("arguments",), "globals are a script's, and a command has none: write script: train.py")
    yield from _placeholder_issues(job, names)


def _placeholder_issues(job: Ranked, names: Collection[str]) -> Iterator[Issue]:
    """Yield issues of placeholders that name nothing, that must be an argument by themselves, or whose parameter is null.

    Args:
        job: The job.
        names: Names of its parameters.
    """
    null_params: dict[str, str] = {}  # parameter without a value → the first argument that needs one
    for field, items in (("command", job.command or ()), ("arguments", _arguments_of(job).items)):
        for index, name in arguments.placeholders(items):
            if name in job.params and job.params[name] is None:
                null_params.setdefault(name, items[index])
            if arguments.is_known(name, items[index], names):
                continue
            if name in arguments.FOR_ALL:
                message = f"{{{name}}} must be an argument by itself"
            else:
                hint = errors.nearest(name, [*names, *arguments.FACTS])
                message = f"{{{name}}} is not a parameter, and no fact about the trial; {hint}".rstrip("; ")
            yield Issue((field, index), f"{message}; write {{{{ and }}}} for literal braces")
    # These come last, one for each parameter, because several arguments may need the same one.
    for name, argument in null_params.items():
        yield Issue(("params", name), f"has no value, and the argument {argument} needs one: write it here")


def _hydra_name_issues(job: Ranked, names: Collection[str]) -> Iterator[Issue]:
    """Yield issues of parameters with a name for Hydra (`+name`) in a job whose arguments are flags.

    Args:
        job: The job.
        names: Names of its parameters.
    """
    items = _arguments_of(job).items
    placeholders = {name for _, name in arguments.placeholders((*(job.command or ()), *items))}
    if arguments.FLAGS not in placeholders or arguments.FLAGS in names:
        return
    for name in names:
        if name.startswith("+") and name not in placeholders:
            reason = "begins with +, by which Hydra adds a key: write arguments: hydra, or drop the +"
            yield Issue(("space" if name in job.search.names else "params", name), reason)
