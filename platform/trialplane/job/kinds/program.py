"""Scripts and commands as trials: which one runs, with which arguments, and where its metrics are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import arguments, models, program
from trialplane.job.program import Program

if TYPE_CHECKING:
    from trialplane.job.kinds.ranked import Ranked

STYLES = (arguments.FLAGS, arguments.HYDRA, arguments.GLOBALS, "none")
_USUAL = ("stdout", "mlflow")  # places of metrics, where the job names none
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


def _arguments(value: Any) -> Any:
    if isinstance(value, str):
        if value not in STYLES:
            raise ValueError(f"{value!r} is not flags, hydra, globals, none or a list of arguments")
        return {"items": [] if value == "none" else [f"{{{value}}}"]}
    if isinstance(value, (list, tuple)):
        return {"items": _texts(value)}
    if isinstance(value, dict) and isinstance(value.get("items"), str):
        return {**value, **_arguments(value["items"])}
    return value


def _texts(value: Any) -> Any:
    """A list of texts, in which numbers may stand as they are."""
    if not isinstance(value, (list, tuple)):
        return value
    for one in value:
        if isinstance(one, bool) or not isinstance(one, (str, int, float)):
            raise ValueError(f"{one!r} must be a string: put it in quotes")
    return [str(one) for one in value]


def _script(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.startswith("/") or ".." in value.split("/") or not value.endswith(".py"):
        raise ValueError(f"{value!r} is no Python file of the job's folder; write script: train.py")
    return value.removeprefix("./")


ScriptFile = Annotated[str, BeforeValidator(_script), WithJsonSchema({"type": "string", "pattern": r"^[^/].*\.py$"})]
_ITEMS = {"type": "array", "items": {"type": ["string", "number"]}}
ArgumentsField = Annotated[
    Arguments,
    BeforeValidator(_arguments),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(STYLES)},
                _ITEMS,
                {
                    "type": "object",
                    "properties": {
                        "items": {"anyOf": [{"enum": list(STYLES)}, _ITEMS]},
                        "booleans": {"enum": list(arguments.BOOLEANS)},
                        "lists": {"enum": list(arguments.LISTS)},
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


class Source(models.Model):
    """One place in which a script leaves its metrics."""

    model_config = ConfigDict(populate_by_name=True)

    @property
    def plain(self) -> program.MetricSource:
        """The same for a slot."""
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
    def _fits(self) -> Source:
        found = [Issue(("pattern", index), why) for index, text in enumerate(self.pattern) if (why := _unfit(text))]
        if self.pattern and self.source not in ("stdout", "file"):
            found.append(Issue(("pattern",), f"is for lines of text, which {self.source} has not; drop it"))
        if self.path is not None and self.source in ("stdout", "mlflow"):
            found.append(Issue(("path",), "is for files; write from: file, or drop it"))
        if self.path is None and self.source == "file":
            found.append(Issue(("path",), "is missing; write path: metrics.jsonl"))
        if self.path is not None and (why := _no_files(self.path)):
            found.append(Issue(("path",), why))
        elif self.path is not None and (self.path.startswith("/") or ".." in self.path.split("/")):
            found.append(Issue(("path",), "must lie below the folder in which the script runs, as in out/metrics.jsonl"))
        models.refuse(found)
        return self


def _no_files(path: str) -> str:
    """Why a path with wildcards can match no file, or ""."""
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
    """Why a pattern cannot find metrics, or ""."""
    try:
        made = re.compile(pattern)
    except re.error as error:
        return f"is no regular expression: {error}"
    named = set(made.groupindex)
    if named >= {"name", "value"} or (named and not named & {"name", "value"}) or (made.groups >= 2 and not named):
        return ""
    return r"needs two groups, the name and the value: (\w+)=([-+.\deE]+), or one named like its metric: (?P<loss>…)"


def _sources(value: Any) -> Any:
    if value == "none":
        return []
    if isinstance(value, (str, dict)):
        value = [value]
    return [{"from": one} if isinstance(one, str) else one for one in value] if isinstance(value, (list, tuple)) else value


_SOURCE_FORMS = {
    "anyOf": [
        {"enum": ["stdout", "mlflow", "tensorboard"]},
        {
            "type": "object",
            "properties": {
                "from": {"enum": ["stdout", "mlflow", *_WITH_A_FILE]},
                "pattern": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
                "path": {"type": "string"},
                "step": {"type": "string"},
            },
            "required": ["from"],
            "additionalProperties": False,
        },
    ]
}
MetricSources = Annotated[
    tuple[Source, ...],
    BeforeValidator(_sources),
    WithJsonSchema({"anyOf": [{"const": "none"}, _SOURCE_FORMS, {"type": "array", "items": _SOURCE_FORMS}]}),
]


def of(job: Ranked) -> Program | None:
    """The program that the trials of a job run; None where they call its entrypoint."""
    if not job.script and not job.command:
        return None
    given = _arguments_of(job)
    search = job.search
    watched = [metric for metric in (search.pruner.metric, *(rule.metric for rule in job.stops)) if metric is not None]
    # What a library is known to report is not guessed from the output as well.
    usual = _USUAL if set(job.capture or ()) <= {"mlflow"} else _USUAL[1:]
    metrics = [program.MetricSource(one) for one in usual] if job.metrics is None else [one.plain for one in job.metrics]
    return Program(
        script=job.script or "",
        command=job.command or (),
        arguments=given.items,
        booleans=given.booleans,
        lists=given.lists,
        cwd=job.cwd or "code",
        metrics=tuple(metrics),
        names=tuple(dict.fromkeys([*job.required_metrics, *watched])),
        sample=None if search.function else {**job.params, **search.start_point()},
        packages=bool(job.packages),
    )


def _captured(job: Ranked, broken: Collection[Place]) -> Iterator[Issue]:
    """What is read where it is captured already, or cannot be captured."""
    captured = set(job.capture or ())
    if job.command and captured:
        cure = "write metrics: tensorboard, say, or run a Python file as script"
        yield Issue(("capture",), f"reaches into a script, and a command is a process of its own; {cure}")
    elif ("metrics",) not in broken:
        for index, one in enumerate(job.metrics or ()):
            if one.source in captured - {"mlflow"}:
                cure = "drop it, or drop it from capture"
                yield Issue(("metrics", index), f"{one.source} is in capture, which reports the same; {cure}")


def _arguments_of(job: Ranked) -> Arguments:
    return job.arguments or Arguments(items=("{flags}",) if job.script else ())


def check(job: Ranked, broken: Collection[Place]) -> Iterator[Issue]:
    """What of a job's program does not fit together."""
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
    if {("params",), ("space",)} & {place[:1] for place in broken} or job.search.function:
        return
    known = [*job.params, *job.search.names]
    yield from _added(job, known)
    if job.command and f"{{{arguments.GLOBALS}}}" in _arguments_of(job).items:
        yield Issue(("arguments",), "globals are a script's, and a command has none: write script: train.py")
    both: tuple[tuple[Place, tuple[str, ...]], ...] = (
        (("command",), job.command or ()),
        (("arguments",) if job.arguments is None else ("arguments", "items"), _arguments_of(job).items),
    )
    empty: dict[str, str] = {}  # parameters that have no value → the argument that needs one
    for place, items in both:
        for index, name in arguments.placeholders(items):
            if name in job.params and job.params[name] is None:
                empty.setdefault(name, items[index])
            if not arguments.is_known(name, items[index], known):
                near = errors.nearest(name, [*known, *arguments.FACTS])
                what = f"{{{name}}} is no parameter, and no fact about the trial; {near}".rstrip("; ")
                yield Issue((place[0], index), f"{what}; write {{{{ and }}}} for braces that are none")
    for name, argument in empty.items():
        yield Issue(("params", name), f"has no value, and the argument {argument} needs one: write it here")


def _added(job: Ranked, names: Collection[str]) -> Iterator[Issue]:
    """Parameters that add a key to a Hydra configuration, where the arguments are flags."""
    items = _arguments_of(job).items
    placed = {name for _, name in arguments.placeholders((*(job.command or ()), *items))}
    if arguments.FLAGS not in placed or arguments.FLAGS in names:
        return
    for name in names:
        if name.startswith("+") and name not in placed:
            why = "begins with +, by which Hydra adds a key: write arguments: hydra, or drop the +"
            yield Issue(("space" if name in job.search.names else "params", name), why)
