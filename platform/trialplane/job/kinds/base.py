"""What all kinds of job share: their fields, the rules between them, and the properties that each kind defines."""

from __future__ import annotations

import abc
import dataclasses
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from trialplane import errors
from trialplane.errors import Issue, Place
from trialplane.job import draft, models, program, values
from trialplane.job.cluster import Cluster
from trialplane.job.kinds.roles import Role
from trialplane.job.resources import Budget, Checkpoints, Resources, Retries
from trialplane.job.search import NO_SEARCH, Objective, Search, Stop

NAME = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"
RUN = r"^[a-z]([a-z0-9-]*[a-z0-9])?$"  # of a run; `plan.check_name` says more
_LONGEST = 250  # characters of a name that MLflow keeps
_ARGUMENT = {"": "ctx", "optuna": "trial", "ray": "config"}  # of a function, by its style
_ALLOWED = re.compile(r"[/\w.\- :]*")


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that a job names.

    Attributes:
        field: of the job.
        text: module:function.
        arguments: that it is called with; none where that is not known.
        style: of `spec.program`: "optuna" for what gets a trial of Optuna's, "ray" for what gets a config of Ray Tune's.
    """

    field: Place
    text: str
    arguments: tuple[str, ...] = ()
    style: str = ""


def _amount(value: Any) -> Any:
    terms = value if isinstance(value, (list, tuple)) else [value]
    for term in terms if value is not None else ():
        if not (isinstance(term, str) and term) and not (type(term) is int and term > 0):
            raise ValueError(f"must be a whole number over 0, the name of a parameter or a list of these, not {term!r}")
    if value == []:
        raise ValueError("is an empty sum; name what is added")
    return tuple(value) if isinstance(value, list) else value


_TERMS: list[dict[str, Any]] = [{"type": "integer", "minimum": 1}, {"type": "string", "minLength": 1}]
_Amount = Annotated[
    Any,
    BeforeValidator(_amount),
    WithJsonSchema(
        {"anyOf": [*_TERMS, {"type": "array", "items": {"anyOf": _TERMS}, "minItems": 1}, {"type": "null"}]},
    ),
]


class Input(models.Model):
    """A data file, named by a parameter. It is checked before anything starts."""

    format: Literal["table", "dataset", "lines"] = Field(
        default="table",
        description="table: CSV, TSV or JSON Lines. dataset: these, or Parquet. lines: UTF-8 text with one sample per line.",
    )
    columns: tuple[str, ...] = Field(default=(), description="Required columns (CSV, TSV, Parquet) or keys (JSON Lines).")
    columns_of: tuple[str, ...] = Field(
        default=(), description="Parameters whose values are required columns: [label_column]."
    )
    at_least: _Amount = Field(
        default=None,
        description="Minimum number of lines: a number, the name of a parameter, or a list of these, which is a sum: "
        "[batch, eval_samples]. Needs `format: lines`.",
    )
    per_rank: _Amount = Field(
        default=None, description="Minimum number of lines per rank, in the same format as `at_least`."
    )
    optional: bool = Field(default=False, strict=True, description="Allow null as the parameter's value, for no file.")

    @model_validator(mode="after")
    def _one_format(self) -> Input:
        if self.format == "lines":
            given = [name for name in ("columns", "columns_of") if getattr(self, name)]
            models.refuse([Issue((name,), "plain text has no columns; drop them, or format: lines") for name in given])
        if self.format != "lines":
            models.refuse([Issue((name,), "needs format: lines") for name in self.amounts])
        return self

    @property
    def amounts(self) -> dict[str, tuple[int | str, ...]]:
        """The terms of `at_least` and of `per_rank`, those that are given."""
        both = {"at_least": self.at_least, "per_rank": self.per_rank}
        return {name: value if isinstance(value, tuple) else (value,) for name, value in both.items() if value is not None}


CAPTURED = ("wandb", "mlflow", "tensorboard", "hf")


def _captured(value: Any) -> Any:
    if value == "none":
        return ()
    return (value,) if isinstance(value, str) else value


_NAMES = {"enum": list(CAPTURED)}
Captured = Annotated[
    tuple[Literal["wandb", "mlflow", "tensorboard", "hf"], ...],
    BeforeValidator(_captured),
    WithJsonSchema({"anyOf": [{"enum": [*CAPTURED, "none"]}, {"type": "array", "items": _NAMES}]}),
]


Objectives = Annotated[tuple[Objective, ...], Field(min_length=1)]


class Base(models.Model):
    """The fields that all kinds have; `Study`, `Training` and `Collection` add theirs."""

    title: ClassVar[str]  # of its runs, in a sentence
    noun: ClassVar[str] = "trial"  # what is counted towards the end of a run
    count_field: ClassVar[str] = "trials"  # the field that says how many of them
    width_option: ClassVar[str] = (
        ""  # of `platform resume` and `scale`: how many work at the same time; "" where that is fixed
    )
    changeable: ClassVar[tuple[str, ...]] = ("budget", "retries", "cluster")  # all else would make it another run
    width_field: ClassVar[str] = ""  # the same as a field of the job
    is_sequential: ClassVar[bool] = True  # whether trials come one after another, so that the first to fail ends the run
    is_for_gpus: ClassVar[bool] = False  # whether to warn if GPUs are available but not requested
    foreign: ClassVar[Mapping[str, str]]  # fields of other kinds → why this one has none
    loss: ClassVar[str]  # consequence of checkpoints lost with their pod

    name: str = Field(pattern=NAME, description="Name of the job's folder.")
    kind: str
    description: str = Field(default="", description="Description of the job in free text.")
    entrypoint: values.Entrypoint = Field(
        default="train:run",
        description="Function that runs one trial: module:function. Write optuna:module:function for an objective of "
        "Optuna, and ray:module:function for a function trainable of Ray Tune.",
    )
    preload: tuple[str, ...] = Field(
        default=(), description="Modules to import once per slot, before trials are forked: [torch, transformers]."
    )
    requirements: values.RequirementsFile | None = Field(
        default=None,
        description="File with the required Python packages: requirements.txt, or a script with PEP 723 metadata. They "
        "are checked before the first trial. Default: the metadata of `script`, if any.",
    )
    install: bool = Field(
        default=False,
        description="Install missing requirements in trial pods, if the chart allows it (`studies.install`). Local runs "
        "never install packages.",
    )
    packages: tuple[str, ...] = Field(
        default=(),
        description="Python packages outside of the job's folder to include: [../src/mine]. Paths are relative to the "
        "job's folder. Each is imported by the name of its own folder.",
    )
    params: dict[str, values.Plain] = Field(
        default_factory=dict,
        description="Fixed parameters. A value can be any JSON value. A parameter with the same name in `space` wins.",
    )
    inputs: dict[str, Input] = Field(
        default_factory=dict, description="Parameters whose values are data files, and the required content of the files."
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="Environment variables that override fields: {HPO_EPOCHS: params.epochs}."
    )
    objectives: Objectives = Field(description="Metrics to optimize. More than one makes a multi-objective study.")
    capture: Captured | None = Field(
        default=None,
        description="Libraries whose logged metrics become reports of the trial: wandb (without its package or an "
        "account), mlflow, tensorboard, hf (the Trainer of transformers), or none. Default: wandb if its package is not "
        "installed, else none.",
    )
    budget: Budget = Field(default_factory=Budget, description="Limits on time and failures.")
    retries: Retries = Field(default_factory=Retries, description="Number of retries of a crashed or lost trial.")
    resources: Resources = Field(
        default_factory=Resources, description="CPU cores, memory and GPUs of a trial on each of its nodes."
    )
    checkpoints: Checkpoints = Field(default_factory=Checkpoints, description="Location and grace period of checkpoints.")
    cluster: Cluster = Field(
        default_factory=Cluster, description="Settings of the run's pods on a cluster. Local runs ignore them."
    )
    seed: values.Integer = Field(
        default=0, ge=0, lt=2**32, description="Seed of the sampler. Each trial's seed is derived from it."
    )

    @property
    def search(self) -> Search:
        """How parameters are drawn and trials compared: not at all, but in a study."""
        return NO_SEARCH

    @property
    def stops(self) -> tuple[Stop, ...]:
        """What ends a trial early, as complete."""
        return ()

    @property
    def requires(self) -> str:
        """The file of its folder that may say which packages it needs, or ""."""
        return self.requirements or ""

    @property
    def required_metrics(self) -> tuple[str, ...]:
        """Names that a trial's result must hold."""
        names = [*(one.metric for one in self.objectives), *(one.metric for one in self.search.constraints)]
        return tuple(dict.fromkeys(names))

    @property
    def world_size(self) -> int:
        """Processes of one trial."""
        return 1

    @property
    def files_to(self) -> str | None:
        """The URL or folder that results are written to as files, where the job names one."""
        return None

    @property
    def slots(self) -> int:
        """Slots, and so pods, that its roles fill when as much runs as may."""
        return sum(role.pods for role in self.roles())

    @abc.abstractmethod
    def roles(self) -> tuple[Role, ...]:
        """What its processes are; the first is the role whose replicas `platform scale` changes."""

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether its trials save themselves."""
        return True

    def grace(self, of_chart: float | None = None) -> float:
        """Seconds that a trial which must leave its pod gets to save itself.

        Args:
            of_chart: what the chart allows a training.
        """
        return self.checkpoints.grace or 30.0  # what Kubernetes gives every pod

    def with_gpus(self, field: str, gpus: int, nodes: int = 0) -> str:
        """What to type when no machine has the GPUs that a role requests.

        Args:
            field: section of the role's resources.
            gpus: of the largest machine.
            nodes: how many such machines have as many in all; 0 where there is one machine.
        """
        return f"--set {field}.gpus={gpus}"

    def functions(self) -> Iterator[Function]:
        """The functions that the job names."""
        style, function = program.styled(self.entrypoint)
        yield Function(("entrypoint",), function, (_ARGUMENT[style],), style)

    def programs(self) -> Iterator[tuple[Place, str, bool]]:
        """The files of its folder that it runs as they are: field, path, and whether it is a Python script."""
        return iter(())

    def advice(self) -> Iterator[str]:
        """Remarks on a valid job for the user."""
        return iter(())

    def check(self, broken: Collection[Place]) -> Iterator[Issue]:
        """Issues across fields; those within one model are found by the model.

        Args:
            broken: the fields (`("trials",)`) and parameters (`("space", "lr")`) that have issues of their own, in whose
                place stand-ins are; what depends on them is not judged.
        """
        if self.install and not self.requires and ("requirements",) not in broken:
            yield Issue(
                ("install",), "says what to do with requirements, and there are none; add requirements: requirements.txt"
            )
        yield from metric_names(("objectives",), [one.metric for one in self.objectives])
        yield from (Issue(("params", name), why) for name in self.params if (why := unkeepable(values.key(name))))
        yield from _twice((*self.params, *self.search.names))
        if ("params",) not in broken and ("space",) not in broken:
            known = [*self.params, *self.search.names, *(place[1] for place in broken if place[0] == "space" and place[1:])]
            for name in self.inputs:
                if name not in known:
                    yield Issue(
                        ("inputs", name), f"there is no such name in params; {errors.nearest(name, map(str, known))}"
                    )
            yield from _amounts(self)
        for variable, field in self.environment.items():
            first = field.split(".")[0]
            if any(place[0] == first for place in broken):
                continue
            if issue := unknown(self, field):
                yield Issue(("environment", variable), issue)


def _twice(names: Collection[str]) -> Iterator[Issue]:
    """Parameters that MLflow would have under one name."""
    keys: dict[str, str] = {}
    for name in dict.fromkeys(names):
        other = keys.setdefault(values.key(name), name)
        if other != name:
            yield Issue(("params", name), f"is {other!r} but for the +, and both would be one parameter; drop one of them")


def search_fields(refusal: str) -> dict[str, str]:
    """The fields by which a search chooses among trials, each with why a kind that refuses them so has no use for it."""
    hints = {
        **dict.fromkeys(("space", "enqueue"), "write the values into params"),
        "sampler": "nothing is drawn",
        **dict.fromkeys(("pruner", "constraints", "keep"), "nothing is compared"),
    }
    return {field: f"{refusal}: {hint}" for field, hint in hints.items()}


def refused_target(job: Base) -> Iterator[Issue]:
    """A target with several objectives, which none of them reaches for all."""
    count = len(job.objectives)
    if job.budget.target is not None and count > 1:
        yield Issue(("budget", "target"), f"needs one objective, and there are {count}; drop the target")


def refused_budget(budget: Budget, why: Mapping[str, str]) -> Iterator[Issue]:
    """Budgets that a kind has no use for, and why."""
    for field, reason in why.items():
        if getattr(budget, field) != Budget.model_fields[field].default:
            yield Issue(("budget", field), f"{reason}; drop it")


def metric_names(field: Place, metrics: list[str]) -> Iterator[Issue]:
    """What is wrong with the names in a list of metrics."""
    for index, metric in enumerate(metrics):
        if why := unkeepable(metric):
            yield Issue((*field, index, "metric"), why)
        elif metric in metrics[:index]:
            yield Issue((*field, index, "metric"), f"{metric!r} is listed twice")


def unkeepable(name: str) -> str:
    """Why MLflow would not keep a parameter or a metric under `name`, or "".

    It refuses it when the first trial writes it, long after the submission; see its `utils/validation.py`.
    """
    if len(name) > _LONGEST:
        return f"the name has {len(name)} characters, and MLflow keeps {_LONGEST} at most"
    if not _ALLOWED.fullmatch(name):
        kept = re.sub(r"[^\w\-.:/ ]+", "_", name, flags=re.ASCII)
        return f"{name!r} is not a valid MLflow name: use letters, digits, _ - . : / and spaces, as in {kept!r}"
    # It uses names as paths, and requires them to be normalized.
    if posixpath.normpath(name) != name or name == "." or name.startswith(("..", "/")):
        return f"{name!r} is not a valid MLflow name: it may not be empty, begin or end with /, or hold //, ./ or ../"
    return ""


def _amounts(job: Base) -> Iterator[Issue]:
    """Parameters that set how many lines or which columns a file must have."""
    for file, input_ in job.inputs.items():
        for index, name in enumerate(input_.columns_of):
            if name not in job.params:
                hint = errors.nearest(name, job.params)
                yield Issue(("inputs", file, "columns_of", index), f"there is no {name!r} in params; {hint}".rstrip("; "))
            elif job.params[name] is not None and not isinstance(job.params[name], str):
                why = f"inputs.{file}.columns_of needs it"
                yield Issue(("params", name), f"must be the name of a column, not {job.params[name]!r}: {why}")
    every = [(file, key, terms) for file, input_ in job.inputs.items() for key, terms in input_.amounts.items()]
    for file, key, terms in every:
        for name in dict.fromkeys(term for term in terms if isinstance(term, str)):
            value = job.params.get(name)
            if name not in job.params:
                hint = errors.nearest(name, job.params)
                yield Issue(("inputs", file, key), f"there is no {name!r} in params; {hint}".rstrip("; "))
            elif type(value) is not int or value < 1:
                why = f"inputs.{file}.{key} needs it"
                yield Issue(("params", name), f"must be a whole number over 0, not {value!r}: {why}")


def unknown(job: Base, field: str) -> str:
    """Why `field` is no dotted path of a field that an override could set, or nothing."""
    place = draft.path(field, (*job.params, *job.search.names))
    steps = list(map(str, place))
    here: Any = job
    for depth, step in enumerate(steps):
        if isinstance(here, tuple) or (isinstance(here, str) and isinstance(place[depth], int)):
            names: Collection[str] = list(map(str, range(len(here))))
            below = here[int(step)] if isinstance(here, tuple) and step in names else None
        elif hasattr(here, "choice"):
            own = [name for name in type(here).model_fields if name != "options"]
            names = [*own, *here.choice.options]
            below = None if step in own else here.options.get(step)
        elif hasattr(type(here), "model_fields"):
            names = [name for name in type(here).model_fields if not (depth == 0 and name == "name")]
            below = getattr(here, step, None) if step in names else None
        elif isinstance(here, dict):
            # A parameter may hold anything, so what lies below it is not known before.
            names = here if depth < 2 else [step]
            below = here.get(step)
        elif depth > 2 and steps[0] == "params":
            return ""
        else:
            return f"{'.'.join(steps[:depth])} has no fields"
        if step not in names:
            return f"there is no field {field!r}: {step!r} is unknown; {errors.nearest(step, names)}"
        here = below
    return ""
