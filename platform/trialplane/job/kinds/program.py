"""Scripts and commands as trials: their arguments, and the sources of their metrics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import arguments, models, program, settings
from trialplane.job.program import Program

if TYPE_CHECKING:
    from trialplane.job.kinds.ranked import Ranked

STYLES = (arguments.FLAGS, arguments.HYDRA, arguments.GLOBALS, "none")
_USUAL = ("stdout", "mlflow")  # default sources of metrics
_WITH_A_FILE = ("file", "tensorboard")


class Arguments(models.Model):
    """The arguments of a script or command, and how parameters become flags."""

    items: tuple[str, ...] = Field(
        default=("{flags}",), description="Arguments. {lr} is a parameter, and {flags} or {hydra} stands for all others."
    )
    booleans: Literal["switch", "value", "negated"] = Field(
        default="switch",
        description="Format of booleans. switch: --amp or nothing. negated: --amp or --no-amp. value: --amp=True or "
        "--amp=False.",
    )
    lists: Literal["spread", "repeat", "comma", "literal"] = Field(
        default="spread",
        description="Format of lists. spread: --sizes 64 32. repeat: --sizes=64 --sizes=32. comma: --sizes=64,32. "
        "literal: --sizes=[64, 32].",
    )
    file: str = Field(
        default="",
        description="Settings file of the job's folder, YAML, JSON, TOML or INI: params.yaml. In each trial's copy, the "
        "parameters that the file has replace its values. They are no arguments then.",
    )


def _arguments(value: Any) -> Any:
    if isinstance(value, str):
        if value.endswith(settings.SUFFIXES):
            return {"items": [], "file": _settings_file(value)}
        if value not in STYLES:
            raise ValueError(f"{value!r} is not flags, hydra, globals, none, a settings file or a list of arguments")
        return {"items": [] if value == "none" else [f"{{{value}}}"]}
    if isinstance(value, (list, tuple)):
        return {"items": _texts(value)}
    if isinstance(value, dict) and isinstance(value.get("file"), str) and value["file"]:
        value = {"items": [], **value, "file": _settings_file(value["file"])}
    if isinstance(value, dict) and isinstance(value.get("items"), str):
        return {**value, **_arguments(value["items"])}
    return value


def _settings_file(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/") or not name.endswith(settings.SUFFIXES):
        raise ValueError(f"{name!r} is no settings file of the job's folder; write file: params.yaml")
    return name.removeprefix("./")


def _texts(value: Any) -> Any:
    """Return a list of strings, in which numbers are converted."""
    if not isinstance(value, (list, tuple)):
        return value
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise ValueError(f"{item!r} must be a string: put it in quotes")
    return [str(item) for item in value]


def _script(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.startswith("/") or ".." in value.split("/") or not value.endswith(".py"):
        raise ValueError(f"{value!r} is no Python file of the job's folder; write script: train.py")
    return value.removeprefix("./")


ScriptFile = Annotated[str, BeforeValidator(_script), WithJsonSchema({"type": "string", "pattern": r"^[^/].*\.py$"})]
_SETTINGS: dict[str, Any] = {"type": "string", "pattern": r"\.(yaml|yml|json|toml|ini|cfg)$"}
_ITEMS = {"type": "array", "items": {"type": ["string", "number"]}}
ArgumentsField = Annotated[
    Arguments,
    BeforeValidator(_arguments),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(STYLES)},
                _SETTINGS,
                _ITEMS,
                {
                    "type": "object",
                    "properties": {
                        "items": {
                            "anyOf": [{"enum": list(STYLES)}, _ITEMS],
                            "description": "The arguments: one of the names, or a list.",
                        },
                        "booleans": {
                            "enum": list(arguments.BOOLEANS),
                            "description": "Format of booleans in flags. switch: --amp or nothing. negated: --amp or "
                            "--no-amp. value: --amp=True or --amp=False. Default: switch.",
                        },
                        "lists": {
                            "enum": list(arguments.LISTS),
                            "description": "Format of lists in flags. spread: --sizes 64 32. repeat: --sizes=64 --sizes=32. "
                            "comma: --sizes=64,32. literal: --sizes=[64, 32]. Default: spread.",
                        },
                        "file": {
                            **_SETTINGS,
                            "description": "Settings file of the job, whose values parameters replace. Default: none.",
                        },
                    },
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(_texts),
    Field(min_length=1),
    WithJsonSchema({**_ITEMS, "minItems": 1}),
]


class SourceField(models.Model):
    """One source of a script's metrics."""

    model_config = ConfigDict(populate_by_name=True)

    @property
    def plain(self) -> program.MetricSource:
        """The source as a plain value, for a slot."""
        return program.MetricSource(self.source, self.pattern, self.path or "", self.step or "")

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
    def _one_pattern(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("pattern"), str):
            return {**data, "pattern": [data["pattern"]]}
        return data

    @model_validator(mode="after")
    def _fits(self) -> SourceField:
        issues = [Issue(("pattern", index), problem) for index, text in enumerate(self.pattern) if (problem := _unfit(text))]
        if self.pattern and self.source not in ("stdout", "file"):
            issues.append(Issue(("pattern",), f"is for lines of text, which {self.source} has not; drop it"))
        if self.path is not None and self.source in ("stdout", "mlflow"):
            issues.append(Issue(("path",), "is for files; write from: file, or drop it"))
        if self.path is None and self.source == "file":
            issues.append(Issue(("path",), "is missing; write path: metrics.jsonl"))
        if self.path is not None and (problem := _no_files(self.path)):
            issues.append(Issue(("path",), problem))
        elif self.path is not None and (self.path.startswith("/") or ".." in self.path.split("/")):
            issues.append(Issue(("path",), "must lie below the folder in which the script runs, as in out/metrics.jsonl"))
        models.refuse(issues)
        return self


def _no_files(path: str) -> str:
    """Return why a path with wildcards can match no file, or ""."""
    if path.strip("./") == "":
        return "names no file; write path: out/*.jsonl"
    if any("**" in part and part != "**" for part in path.split("/")):  # which means * since Python 3.13
        return "cannot be looked for: ** stands for folders, as in out/**/*.jsonl"
    try:
        next(iter(Path("/nonexistent").glob(path.lstrip("/"))), None)
    except (ValueError, IndexError, NotImplementedError) as error:
        return f"cannot be looked for: {error}"
    return ""


def _unfit(pattern: str) -> str:
    """Return why a pattern cannot find metrics, or ""."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        return f"is no regular expression: {error}"
    named = set(regex.groupindex)
    if named >= {"name", "value"} or (named and not named & {"name", "value"}) or (regex.groups >= 2 and not named):
        return ""
    return r"needs two groups, the name and the value: (\w+)=([-+.\deE]+), or one named like its metric: (?P<loss>…)"


def _sources(value: Any) -> Any:
    if value == "none":
        return []
    if isinstance(value, (str, dict)):
        value = [value]
    return (
        [{"from": source} if isinstance(source, str) else source for source in value]
        if isinstance(value, (list, tuple))
        else value
    )


def _source_form(name: str, **form: Any) -> dict[str, Any]:
    """Return the schema of a source's field, with the model's description."""
    return {**form, "description": SourceField.model_fields[name].description}


_SOURCE_FORMS = {
    "anyOf": [
        {"enum": ["stdout", "mlflow", "tensorboard"]},
        {
            "type": "object",
            "properties": {
                "from": _source_form("source", enum=["stdout", "mlflow", *_WITH_A_FILE]),
                "pattern": _source_form(
                    "pattern", anyOf=[{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
                ),
                "path": _source_form("path", type="string"),
                "step": _source_form("step", type="string"),
            },
            "required": ["from"],
            "additionalProperties": False,
        },
    ]
}
MetricSources = Annotated[
    tuple[SourceField, ...],
    BeforeValidator(_sources),
    WithJsonSchema({"anyOf": [{"const": "none"}, _SOURCE_FORMS, {"type": "array", "items": _SOURCE_FORMS}]}),
]


def of(job: Ranked) -> Program | None:
    """Return the program of a job's trials. None if they call its entrypoint."""
    if not job.script and not job.command:
        return None
    job_arguments = _arguments_of(job)
    search = job.search
    watched = [metric for metric in (search.pruner.metric, *(rule.metric for rule in job.stops)) if metric is not None]
    # Metrics of a captured library are not searched in the output as well.
    usual = _USUAL if set(job.capture or ()) <= {"mlflow", "hydra"} else _USUAL[1:]
    metrics = (
        [program.MetricSource(source) for source in usual]
        if job.metrics is None
        else [source.plain for source in job.metrics]
    )
    return Program(
        script=job.script or "",
        command=job.command or (),
        arguments=job_arguments.items,
        booleans=job_arguments.booleans,
        lists=job_arguments.lists,
        file=job_arguments.file,
        cwd=job.cwd or "code",
        metrics=tuple(metrics),
        names=tuple(dict.fromkeys([*job.required_metrics, *watched])),
        sample=None if search.function else {**job.params, **search.start_point()},
        packages=bool(job.packages),
    )


def _captured(job: Ranked, broken: Collection[Place]) -> Iterator[Issue]:
    """Yield issues of sources that are captured already, or cannot be captured."""
    captured = set(job.capture or ())
    if job.command and (refused := captured - {"wandb"}):
        advice = "write metrics: tensorboard, say, or run a Python file as script"
        text = f"reaches into a script, and a command is a process of its own, in which only wandb is captured: {advice}"
        yield Issue(("capture",), f"{', '.join(sorted(refused))} {text}")
    elif ("metrics",) not in broken:
        for index, source in enumerate(job.metrics or ()):
            if source.source in captured - {"mlflow"}:
                advice = "drop it, or drop it from capture"
                yield Issue(("metrics", index), f"{source.source} is in capture, which reports the same; {advice}")


def _arguments_of(job: Ranked) -> Arguments:
    return job.arguments or Arguments(items=("{flags}",) if job.script else ())


def check(job: Ranked, broken: Collection[Place]) -> Iterator[Issue]:
    """Yield issues of fields of a job's program that contradict each other."""
    if job.script and job.command:
        yield Issue(("command",), f"stands beside script ({job.script}); keep one of them")
        return
    field = "script" if job.script else "command"
    if not job.script and not job.command:
        for name in ("arguments", "cwd", "metrics"):
            if getattr(job, name) is not None and not {("script",), ("command",)} & set(broken):
                yield Issue((name,), "is for a script or a command: write script: train.py, or drop it")
        return
    yield from _captured(job, broken)
    if "entrypoint" in job.model_fields_set and ("entrypoint",) not in broken:
        yield Issue(("entrypoint",), f"stands beside {field}; keep one of them")
    if {("params",), ("space",)} & {field_path[:1] for field_path in broken} or job.search.function:
        return
    names = [*job.params, *job.search.names]
    yield from _added(job, names)
    if job.command and f"{{{arguments.GLOBALS}}}" in _arguments_of(job).items:
        yield Issue(("arguments",), "globals are a script's, and a command has none: write script: train.py")
    argument_fields: tuple[tuple[Place, tuple[str, ...]], ...] = (
        (("command",), job.command or ()),
        (("arguments",) if job.arguments is None else ("arguments", "items"), _arguments_of(job).items),
    )
    null_params: dict[str, str] = {}  # parameters without a value → the argument that needs one
    for field_path, items in argument_fields:
        for index, name in arguments.placeholders(items):
            if name in job.params and job.params[name] is None:
                null_params.setdefault(name, items[index])
            if not arguments.is_known(name, items[index], names):
                near = errors.nearest(name, [*names, *arguments.FACTS])
                message = f"{{{name}}} is no parameter, and no fact about the trial; {near}".rstrip("; ")
                yield Issue((field_path[0], index), f"{message}; write {{{{ and }}}} for braces that are none")
    for name, argument in null_params.items():
        yield Issue(("params", name), f"has no value, and the argument {argument} needs one: write it here")


def _added(job: Ranked, names: Collection[str]) -> Iterator[Issue]:
    """Yield issues of parameters for Hydra (`+name`) where the arguments are flags."""
    items = _arguments_of(job).items
    placeholders = {name for _, name in arguments.placeholders((*(job.command or ()), *items))}
    if arguments.FLAGS not in placeholders or arguments.FLAGS in names:
        return
    for name in names:
        if name.startswith("+") and name not in placeholders:
            reason = "begins with +, by which Hydra adds a key: write arguments: hydra, or drop the +"
            yield Issue(("space" if name in job.search.names else "params", name), reason)
