"""The common part of all kinds of job: fields, the rules between them, and properties that each kind defines."""

from __future__ import annotations

import abc
import dataclasses
import posixpath
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from trialplane import errors
from trialplane.errors import FieldPath, Issue
from trialplane.job import credentials, draft, mlflow_names, models, program, values
from trialplane.job.cluster import Cluster
from trialplane.job.kinds.roles import Role
from trialplane.job.notify import Notify
from trialplane.job.resources import Budget, Checkpoints, Resources, Retries
from trialplane.job.sampling import Pruner, Sampler
from trialplane.job.search import NO_SEARCH, Objective, Search, Stop

NAME = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"
RUN = r"^[a-z]([a-z0-9-]*[a-z0-9])?$"  # name of a run; see `plan.check_name`
_JOB_FILE = "job.yaml"
_ARGUMENT = {"": "ctx", "optuna": "trial", "ray": "config"}  # argument of a function, by its style


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that a job names.

    Attributes:
        field: Path of the job's field.
        text: Function as module:function.
        arguments: Names of the arguments that it is called with; empty if unknown.
        style: Style of its call, see `job.program`: "optuna" if it gets a trial of Optuna, "ray" if it gets a config of Ray
            Tune, "" if it gets the trial's context. "class" if it is a class, which may be one of an installed package.
    """

    field: FieldPath
    text: str
    arguments: tuple[str, ...] = ()
    style: str = ""

    @property
    def module(self) -> str:
        """Dotted name of its module."""
        return self.text.partition(":")[0]

    @property
    def name(self) -> str:
        """Its name in the module."""
        return self.text.partition(":")[2]


class ProgramFile(NamedTuple):
    """A file of the job's folder that trials run.

    Attributes:
        field: Path of the job's field that names it.
        path: Path in the job's folder.
        is_python: Whether it is a Python script; otherwise it is the program of a command.
    """

    field: FieldPath
    path: str
    is_python: bool


def _parse_sum(value: Any) -> Any:
    """Return the value of `Input.at_least`: a list, which is a sum, as a tuple, and other valid values unchanged.

    Valid are null, a positive whole number, the name of a parameter, and a list of numbers and names.

    Raises:
        ValueError: The value is none of these.
    """
    if value is None:
        return None
    if value == []:
        raise ValueError("is an empty sum; name what is added")
    for term in value if isinstance(value, (list, tuple)) else [value]:
        is_name = isinstance(term, str) and term != ""
        is_positive = type(term) is int and term > 0  # `isinstance` would accept true
        if not is_name and not is_positive:
            raise ValueError(f"must be a whole number over 0, the name of a parameter or a list of these, not {term!r}")
    return tuple(value) if isinstance(value, list) else value


_TERMS: list[dict[str, Any]] = [{"type": "integer", "minimum": 1}, {"type": "string", "minLength": 1}]
_Amount = Annotated[
    Any,
    BeforeValidator(_parse_sum),
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
    columns: tuple[str, ...] = Field(default=(), description="Required columns (CSV, TSV) or keys (JSON Lines).")
    columns_of: tuple[str, ...] = Field(
        default=(), description="Parameters whose values are required columns: [label_column]."
    )
    at_least: _Amount = Field(
        default=None,
        description="Minimum number of lines: a number, the name of a parameter, or a list of these, which is a sum: "
        "[batch, eval_samples]. Needs `format: lines`.",
    )
    optional: bool = Field(default=False, strict=True, description="Allow null as the parameter's value, for no file.")

    @model_validator(mode="after")
    def _check_format(self) -> Input:
        """Check that the fields belong to the format."""
        if self.format == "lines":
            column_fields = [name for name in ("columns", "columns_of") if getattr(self, name)]
            models.refuse(
                [Issue((name,), "plain text has no columns; drop them, or format: lines") for name in column_fields]
            )
        elif self.at_least is not None:
            models.refuse([Issue(("at_least",), "needs format: lines")])
        return self

    @property
    def terms(self) -> tuple[int | str, ...]:
        """Terms of the sum `at_least`: numbers and names of parameters. Empty if it is not set."""
        if self.at_least is None:
            return ()
        return self.at_least if isinstance(self.at_least, tuple) else (self.at_least,)


CAPTURED = ("wandb", "mlflow", "tensorboard", "hf", "hydra")


def _parse_capture(value: Any) -> Any:
    """Return a name as a tuple, and "none" as an empty one. Other values are returned unchanged, for pydantic to check."""
    if value == "none":
        return ()
    return (value,) if isinstance(value, str) else value


_NAMES = {"enum": list(CAPTURED)}
Captured = Annotated[
    tuple[Literal["wandb", "mlflow", "tensorboard", "hf", "hydra"], ...],
    BeforeValidator(_parse_capture),
    WithJsonSchema({"anyOf": [{"enum": [*CAPTURED, "none"]}, {"type": "array", "items": _NAMES}]}),
]


def _parse_links(value: Any) -> Any:
    """Return the links of a job as a mapping: link → target. A link of a list is its own target.

    Raises:
        ValueError: A link is not a path in the job's folder, or is in another link.
    """
    links = value if isinstance(value, (list, tuple, Mapping)) else [value]
    links_and_targets = list(links.items()) if isinstance(links, Mapping) else [(link, link) for link in links]
    if not all(isinstance(path, str) and path for pair in links_and_targets for path in pair):
        raise ValueError("must be a list of paths in the job's folder, or a mapping of these to other paths")
    targets = {posixpath.normpath(link): posixpath.normpath(target) for link, target in links_and_targets}
    for link in targets:
        if link.startswith(("/", "..", "~")) or link in (".", _JOB_FILE):
            raise ValueError(f"{link} cannot be a link: write a path in the job's folder, as in {{data: /mnt/mnist}}")
        if any(link.startswith(f"{other}/") for other in targets):
            raise ValueError(f"{link} is in another link; drop one of the two")
    return targets


_PATHS = {"type": "array", "items": {"type": "string", "minLength": 1}}
Links = Annotated[
    dict[str, str],
    BeforeValidator(_parse_links),
    WithJsonSchema({"anyOf": [_PATHS, {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}}]}),
]


Objectives = Annotated[tuple[Objective, ...], Field(min_length=1)]


class Base(models.Model):
    """The fields of all kinds. `Study`, `Training` and `Collection` add theirs."""

    title: ClassVar[str]  # name of a run of this kind in messages: "study"
    noun: ClassVar[str] = "trial"  # unit of progress of a run
    trial_name: ClassVar[str] = "trial"  # name of an attempt's run in MLflow
    # Values for required fields that are missing or invalid, so that the rest of the job can be checked.
    stand_in: ClassVar[Mapping[str, Any]] = {
        "name": "job",
        "objectives": [{"metric": "objective", "direction": "maximize"}],
    }
    count_field: ClassVar[str] = "trials"  # field with the number of these units
    width_option: ClassVar[str] = ""  # option of `platform resume` and `scale` for the width; "" if it is fixed
    changeable: ClassVar[tuple[str, ...]] = ("budget", "retries", "cluster", "notify")  # other changes need another run
    width_field: ClassVar[str] = ""  # field with the width
    is_sequential: ClassVar[bool] = True  # whether trials run one after another, so that the first failure ends the run
    is_for_gpus: ClassVar[bool] = False  # whether to warn if GPUs are available but not requested
    foreign_fields: ClassVar[Mapping[str, str]] = {}  # fields of other kinds → reason of the refusal, for messages
    lost_pod_effect: ClassVar[str]  # effect of a lost pod if checkpoints are lost with it, as a clause for messages

    name: str = Field(pattern=NAME, description="Name of the job's folder.")
    kind: str
    description: str = Field(default="", description="Description of the job in free text.")
    entrypoint: values.Entrypoint = Field(
        default="train:run",
        description="Function that runs one trial: module:function. Write optuna:module:function for an objective of "
        "Optuna, and ray:module:function for a function trainable of Ray Tune.",
    )
    preload: tuple[str, ...] = Field(
        default=(),
        description="Modules to import once per slot, before trials are forked: [torch, transformers]. train:load calls "
        "this function of the job's code too, with `params` and the folder of the cache; trials inherit what it loads.",
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
    links: Links = Field(
        default_factory=dict,
        description="Files and folders of the job's folder that are not uploaded, such as large data: [data]. Trials get "
        "links to them in their copy of the folder. They share your files, so they must not write to them. "
        "{data: /mnt/mnist} links to another path, which on a cluster must be on the chart's data volume.",
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
        "account), mlflow, tensorboard, hf (the Trainer of transformers), hydra (what the function of hydra.main returns), "
        "or none. Default: wandb if its package is not installed, else none.",
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
    notify: tuple[Notify, ...] = Field(
        default=(),
        max_length=10,
        description="Services to notify when the run ends, fails, has a new best trial or is stuck: "
        "[{url: ntfy://my-topic, on: [ended]}].",
    )
    seed: values.Integer = Field(
        default=0, ge=0, lt=2**32, description="Seed of the sampler. Each trial's seed is derived from it."
    )

    def resume_issues(self, old: Base) -> Iterator[Issue]:
        """Yield issues of changed fields with which a run cannot be resumed.

        Args:
            old: Job of the run before the change.
        """
        yield from ()

    @property
    def origin(self) -> str | None:
        """Name of the run from whose checkpoint this one starts."""
        return None

    @property
    def search(self) -> Search:
        """Search for parameters. Only a study has one."""
        return NO_SEARCH

    @property
    def stops(self) -> tuple[Stop, ...]:
        """Rules that end a trial early, as complete."""
        return ()

    @property
    def requires(self) -> str:
        """Path of the file in the job's folder from which required packages are read. "" if there is none."""
        return self.requirements or ""

    @property
    def objectives_text(self) -> str:
        """Objectives in words: "maximize accuracy, minimize loss"."""
        return ", ".join(f"{objective.direction} {objective.metric}" for objective in self.objectives)

    @property
    def required_metrics(self) -> tuple[str, ...]:
        """Names of metrics that a trial's result must have."""
        names = [
            *(objective.metric for objective in self.objectives),
            *(constraint.metric for constraint in self.search.constraints),
        ]
        return tuple(dict.fromkeys(names))

    @property
    def watched_metric(self) -> str:
        """Metric by whose reports a pruner would compare running trials, even if the job has no pruner.

        "" if trials run one after another, or have several objectives, which Optuna does not prune.
        """
        if self.is_sequential or len(self.objectives) > 1:
            return ""
        return self.search.watched_objective(self.objectives[0]).metric

    @property
    def world_size(self) -> int:
        """Number of processes of one trial."""
        return 1

    @property
    def output_location(self) -> str | None:
        """URL or folder for output files. None if the job sets none."""
        return None

    @property
    def slots(self) -> int:
        """Number of slots, and so pods, when all replicas run."""
        return sum(role.pods for role in self.roles())

    @abc.abstractmethod
    def roles(self) -> tuple[Role, ...]:
        """Return the roles of the job's processes. `platform scale` changes the number of replicas of the first one."""

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether its trials save checkpoints."""
        return True

    def grace(self, of_chart: float | None = None) -> float:
        """Return the grace period: the number of seconds to save a checkpoint when a trial must leave its pod.

        Args:
            of_chart: Grace period in the chart's values, which only a training uses. None without one.
        """
        return self.checkpoints.grace or 30.0  # default of Kubernetes

    def gpu_advice(self, field: str, gpus: int, nodes: int = 0) -> str:
        """Return the flags to type if no machine has the GPUs that a role requests.

        Args:
            field: Path of the section with the role's resources.
            gpus: Number of GPUs of the largest machine.
            nodes: Number of such machines that have enough GPUs together; 0 on a single machine.
        """
        return f"--set {field}.gpus={gpus}"

    def functions(self) -> Iterator[Function]:
        """Yield the functions that the job names."""
        style, function = program.split_style(self.entrypoint)
        yield Function(field=("entrypoint",), text=function, arguments=(_ARGUMENT[style],), style=style)
        for index, name in enumerate(self.preload):
            if ":" in name:
                yield Function(field=("preload", index), text=name, arguments=("params", "cache"))

    def programs(self) -> Iterator[ProgramFile]:
        """Yield the files of the job's folder that trials run."""
        return iter(())

    def advice(self) -> Iterator[str]:
        """Yield remarks about a valid job for the user: its secrets."""
        if names := [name for name, value in self.params.items() if credentials.is_secret(name, value)]:
            yield (
                f"everyone who may see the run sees {' and '.join(names)}, which looks like a secret: drop it from params, "
                "and let the code read an environment variable; see `platform docs scripts`"
            )

    def check(self, broken: Collection[FieldPath]) -> Iterator[Issue]:
        """Yield issues that concern several fields. Issues of a single field are errors of its model.

        Args:
            broken: Paths of fields (`("trials",)`) and of parameters (`("space", "lr")`) that are invalid by themselves. In
                this job, they have defaults or are left out, so fields that depend on them are not checked.
        """
        yield from _unused_field_issues(self, broken)
        yield from metric_name_issues(("objectives",), [objective.metric for objective in self.objectives])
        yield from _parameter_name_issues(self)
        if ("params",) not in broken and ("space",) not in broken:
            # Invalid parameters of the space are not in this job, but the file has them.
            broken_params = [field_path[1] for field_path in broken if field_path[0] == "space" and len(field_path) > 1]
            yield from _input_issues(self, list(map(str, [*self.params, *self.search.names, *broken_params])))
        yield from _environment_issues(self, broken)


def _unused_field_issues(job: Base, broken: Collection[FieldPath]) -> Iterator[Issue]:
    """Yield issues of fields without an effect: `install` without requirements, and a limit on GPUs without GPUs."""
    if job.install and not job.requires and ("requirements",) not in broken:
        problem = "says what to do with requirements, and there are none; add requirements: requirements.txt"
        yield Issue(("install",), problem)
    if job.budget.gpu_hours is not None and not broken and not any(role.resources.gpus for role in job.roles()):
        problem = "limits the use of GPUs, and this job has none; set resources.gpus, or drop it"
        yield Issue(("budget", "gpu_hours"), problem)


def _parameter_name_issues(job: Base) -> Iterator[Issue]:
    """Yield issues of the names of parameters in MLflow, which lack + at their start: invalid names, and equal ones."""
    first_names: dict[str, str] = {}  # name in MLflow → first parameter that has it
    for field, names in (("params", job.params), ("space", job.search.names)):
        for name in names:
            if problem := mlflow_names.problem(mlflow_names.parameter(name)):
                yield Issue((field, name), problem)
            other = first_names.setdefault(mlflow_names.parameter(name), name)
            if other != name:
                reason = f"is {other!r} but for the +, and both would be one parameter; drop one of them"
                yield Issue(("params", name), reason)


def _environment_issues(job: Base, broken: Collection[FieldPath]) -> Iterator[Issue]:
    """Yield issues of environment variables for fields that do not exist. Fields below an invalid one are not checked."""
    broken_fields = {field_path[0] for field_path in broken}
    for variable, field in job.environment.items():
        if field.split(".")[0] not in broken_fields and (problem := _field_problem(job, field)):
            yield Issue(("environment", variable), problem)


def search_field_refusals(refusal: str) -> dict[str, str]:
    """Return the fields of a search, each with the reason why a kind without a search refuses it.

    Args:
        refusal: Beginning of each reason.
    """
    hints = {
        **dict.fromkeys(("space", "enqueue"), "write the values into params"),
        **dict.fromkeys(("history", "duplicates", "avoid_oom"), "nothing is drawn"),
        "reuse": "it is trained each time",
        "sampler": "nothing is drawn",
        **dict.fromkeys(("pruner", "constraints", "keep"), "nothing is compared"),
    }
    return {field: f"{refusal}: {hint}" for field, hint in hints.items()}


def target_issues(job: Base) -> Iterator[Issue]:
    """Yield an issue if a job has a target and several objectives, because a target is for one objective."""
    count = len(job.objectives)
    if job.budget.target is not None and count > 1:
        yield Issue(("budget", "target"), f"needs one objective, and there are {count}; drop the target")


def budget_issues(budget: Budget, reasons: Mapping[str, str]) -> Iterator[Issue]:
    """Yield an issue for each field of a budget that the job's kind does not support and that is set.

    Args:
        budget: Budget of the job.
        reasons: Unsupported fields, each with the reason.
    """
    for field, reason in reasons.items():
        if getattr(budget, field) != Budget.model_fields[field].default:
            yield Issue(("budget", field), f"{reason}; drop it")


def metric_name_issues(field: FieldPath, metrics: list[str]) -> Iterator[Issue]:
    """Yield issues of the metrics of objectives or constraints: invalid names, and names that occur twice.

    Args:
        field: Path of the list of objectives or constraints.
        metrics: Names of the metrics, in the order of the list.
    """
    previous = set[str]()
    for index, metric in enumerate(metrics):
        if problem := mlflow_names.problem(metric):
            yield Issue((*field, index, "metric"), problem)
        elif metric in previous:
            yield Issue((*field, index, "metric"), f"{metric!r} is listed twice")
        previous.add(metric)


def _input_issues(job: Base, names: Collection[str]) -> Iterator[Issue]:
    """Yield issues of the parameters that the job's inputs name: as their files, in `columns_of` and in `at_least`.

    Args:
        job: The job.
        names: Names of all parameters, also of invalid ones.
    """
    for file_param, input_ in job.inputs.items():
        if file_param not in names:
            yield Issue(("inputs", file_param), f"there is no such name in params; {errors.nearest(file_param, names)}")
        yield from _column_issues(job, file_param, input_)
        yield from _amount_issues(job, file_param, input_)


def _column_issues(job: Base, file_param: str, input_: Input) -> Iterator[Issue]:
    """Yield issues of the parameters in `columns_of` of an input: their values must be names of columns, or null."""
    for index, name in enumerate(input_.columns_of):
        column = job.params.get(name)
        if name not in job.params:
            yield Issue(("inputs", file_param, "columns_of", index), _missing_param_problem(job, name))
        elif column is not None and not isinstance(column, str):
            reason = f"inputs.{file_param}.columns_of needs it"
            yield Issue(("params", name), f"must be the name of a column, not {column!r}: {reason}")


def _amount_issues(job: Base, file_param: str, input_: Input) -> Iterator[Issue]:
    """Yield issues of the parameters in `at_least` of an input: their values must be positive whole numbers."""
    for name in dict.fromkeys(term for term in input_.terms if isinstance(term, str)):  # each name once
        count = job.params.get(name)
        if name not in job.params:
            yield Issue(("inputs", file_param, "at_least"), _missing_param_problem(job, name))
        elif type(count) is not int or count < 1:
            reason = f"inputs.{file_param}.at_least needs it"
            yield Issue(("params", name), f"must be a whole number over 0, not {count!r}: {reason}")


def _missing_param_problem(job: Base, name: str) -> str:
    """Return the message for a name that is not in `params`, with a similar one."""
    return f"there is no {name!r} in params; {errors.nearest(name, job.params)}".rstrip("; ")


def _field_problem(job: Base, field: str) -> str:
    """Return the reason why an override cannot set a field of a job. "" if it can.

    The path is followed through the job, from a value to the value of one of its fields.

    Args:
        job: The job.
        field: Dotted path of the field: "sampler.n_startup_trials", "objectives.0.metric".
    """
    steps = list(map(str, draft.path(field, (*job.params, *job.search.names))))
    value: Any = job
    for depth, step in enumerate(steps):
        fields = _fields_of(value)
        if fields is None:
            is_in_param = steps[0] == "params" and depth > 2  # in a parameter that is a mapping, which may have any fields
            return "" if is_in_param else f"{'.'.join(steps[:depth])} has no fields"
        may_be_new = isinstance(value, dict) and depth > 1  # such as a label, but no parameter
        if step not in fields and not may_be_new:
            return f"there is no field {field!r}: {step!r} is unknown; {errors.nearest(step, fields)}"
        value = fields.get(step)
    return ""


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    """Return the values in a part of a job by their names, indices or keys. None if it has no fields."""
    match value:
        case tuple():
            return {str(index): item for index, item in enumerate(value)}
        case Sampler() | Pruner():  # whose options stand beside its name
            own_fields = {name: None for name in type(value).model_fields if name != "options"}
            return {**own_fields, **{name: value.options.get(name) for name in value.choice.options}}
        case Base():  # whose name is that of its folder, and no field of the file
            return {name: getattr(value, name) for name in type(value).model_fields if name != "name"}
        case models.Model():
            return {name: getattr(value, name) for name in type(value).model_fields}
        case dict():
            return value
    return None
