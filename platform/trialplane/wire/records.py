"""The records that cross a process boundary, and their JSON form.

Frozen values without behaviour: what the controller requests of a slot (`TrialRequest`), what a trial reports while it runs
(`TrialReport`) and at its end (`TrialOutcome`), and what a run reports to the laptop (`TrialRow`, `RunStatus`). Times are
seconds since the epoch.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trialplane.job.program import Program
from trialplane.wire import escapes
from trialplane.wire.progress import RunProgress, StudyProgress
from trialplane.wire.states import FailureClass, RunState, TrialState

R = TypeVar("R")

METRICS = 1000  # of one report, and of an outcome
NAME = 500  # characters of a metric's name
STEPS = 2**31  # a report is of a step below this; databases keep no larger ones


@dataclasses.dataclass(frozen=True)
class StopRule:
    """A rule that ends a trial early, as complete; see `job.search.Stop`. Without a metric it is a step."""

    metric: str = ""
    above: float | None = None
    below: float | None = None
    after: int = 0
    step: int | None = None


@dataclasses.dataclass(frozen=True)
class Parent:
    """The checkpoint that a segment continues from.

    Attributes:
        trial: number of the trial that saved it.
        step: the last step that this trial had reported.
        digest: of the trial's checkpoints; "" in a retry, which may find newer ones of its own.
    """

    trial: int
    step: int
    digest: str = ""


@dataclasses.dataclass(frozen=True)
class Segment:
    """A stretch of a trial's training between two rungs, in one process; its attempts are retries.

    Attributes:
        rung: number of steps at which it ends. 0 if the trial trains to its own end.
        metrics: metrics by which trials are compared at the rung.
        done: number of steps that were done before.
        offset: 1 if the trial counts its steps from 0, so that its report of step 3 is of the fourth one; 0 if it counts
            from 1. None before its first report.
        parent: checkpoint that it continues from. None in a trial's first segment.
        series: number of the attempt that began the series: the segments that continue one another, without a failure in
            between. None if this attempt begins it.
    """

    rung: int = 0
    metrics: tuple[str, ...] = ()
    done: int = 0
    offset: int | None = None
    parent: Parent | None = None
    series: int | None = None


@dataclasses.dataclass(frozen=True)
class CheckpointSummary:
    """The checkpoints of a trial when an attempt ended: their number, their size in bytes, and their digest."""

    number: int
    bytes: int
    digest: str


@dataclasses.dataclass(frozen=True)
class TrialRequest:
    """One attempt at one trial, as a slot gets it.

    Attributes:
        run: name of the run.
        trial: logical number, 0 to `trials` - 1; a retry keeps it.
        attempt: 1 for the first.
        number: the ledger's number of this attempt; unique, so that a late result of a former attempt can be recognized.
        params: the job's fixed parameters and the sampled ones, merged.
        seed: for this trial's own random numbers; the same in every attempt.
        metrics: names that the result must hold (objectives and constraints).
        timeout: seconds this attempt may take, or None.
        prunable: whether a report waits for the pruner's answer.
        stop: what ends the trial early, as complete; the process of rank 0 compares its reports.
        reported: metrics that a report may give when the result has none, or none that is finite (`of: best`).
        env: variables set in the trial's process only.
        retry_of: the ledger number of the attempt before, or None.
        node: which of the trial's slots this is, 0 to `SlotConfig.nodes` - 1; node 0's outcome is the trial's.
        rendezvous: host:port at which the ranks of all nodes meet; "" when there is one node, which finds a port itself.
        resume: name of another run whose newest checkpoint the trial starts from while it has none of its own, or "".
        worker: number of a collection's worker; None for the learner and for any other trial.
        units: of a collection's iteration, how many results its learner is to get at most.
        objectives: how many values its objective of Optuna returns, which asks for parameters while it runs; 0 for any
            other trial.
        segment: the stretch of the training that this attempt is to do; None where trials are not paused.
    """

    run: str
    trial: int
    attempt: int
    number: int
    params: Mapping[str, Any]
    seed: int
    metrics: tuple[str, ...]
    timeout: float | None = None
    prunable: bool = False
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    retry_of: int | None = None
    node: int = 0
    rendezvous: str = ""
    resume: str = ""
    worker: int | None = None
    units: int = 0
    reported: tuple[str, ...] = ()
    stop: tuple[StopRule, ...] = ()
    objectives: int = 0
    segment: Segment | None = None

    @property
    def series(self) -> int:
        """Number of the attempt that began its series; MLflow and an Optuna study have one record of it."""
        return self.number if self.segment is None or self.segment.series is None else self.segment.series


@dataclasses.dataclass(frozen=True)
class SlotConfig:
    """The configuration that all trials of a slot share.

    Attributes:
        run: name of the run.
        code: folder of the job's code.
        entrypoint: `module:function` in it; "" where trials run a program.
        preload: modules the template imports before the job's own.
        root: folder below which trial logs and scratch folders go.
        cache: folder shared by all trials of all runs.
        cpus: cores of one trial.
        gpus: GPUs of one trial.
        memory: bytes one trial may use, or None for no limit of ours.
        env: variables set in the template and thus in every trial.
        ranks: processes of one trial on this node; with more than one, or several nodes, the trial is a group of ranks.
        nodes: slots that run one trial together.
        checkpoints: folder, or fsspec URL, with a folder of checkpoints for each run and trial; outlives attempts, pods and,
            on a cluster, runs. "" for `checkpoints` below `root`.
        grace: seconds a trial gets after SIGTERM, to save a checkpoint.
        linger: seconds that a process gets to end after the trial's result, and the other ranks, and then the other nodes,
            after rank 0 has returned it.
        pack: archive of the job's code that the slot unpacks into `code` before it starts; "" when it is there already.
        ship: whether the slot shares no folder with the controller. Then `code`, `root` and `cache` are below the slot's
            own home, and events carry what the trial writes into files: its log, and its own MLflow store.
        role: "trial"; of a collection "worker" or "learner".
        write: for the learner that writes files: how and where, see `job.kinds.collection.Write`.
        program: the script or command that its trials run instead of the entrypoint, or None.
        capture: libraries whose calls become reports: wandb, mlflow, tensorboard, hf; None for wandb where its package is
            missing.
        keep: files of a trial's folder that are put beside its checkpoints when it is complete.
        requirements: file of the code that may say which packages must be installed, or "".
        code_hash: SHA-256 of what is in `pack`, in hex; "" where that is not compared.
    """

    run: str
    code: str
    entrypoint: str
    root: str
    cache: str
    preload: tuple[str, ...] = ()
    cpus: int = 1
    gpus: int = 0
    memory: int | None = None
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ranks: int = 1
    nodes: int = 1
    checkpoints: str = ""
    grace: float = 30.0
    linger: float = 300.0
    pack: str = ""
    ship: bool = False
    role: str = "trial"
    write: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    program: Program | None = None
    capture: tuple[str, ...] | None = None
    keep: tuple[str, ...] = ()
    requirements: str = ""
    code_hash: str = ""


@dataclasses.dataclass(frozen=True)
class TrialReport:
    """Metrics of one step of a running trial; `remark` is a note on the trial for the user, or ""."""

    number: int
    step: int
    metrics: Mapping[str, float]
    time: float
    remark: str = ""


@dataclasses.dataclass(frozen=True)
class ReportRow:
    """Report of an attempt in the ledger.

    Attributes:
        mark: Position among the reports of the run, in the order they arrived, from 1. Some positions may be missing.
        trial: Number of the trial, from 0.
        attempt: Number of the attempt, from 1.
        number: Number of the attempt among all attempts of the run.
        step: Step.
        metrics: Metrics, by name.
        time: Time of the report, in seconds since the epoch.
    """

    mark: int
    trial: int
    attempt: int
    number: int
    step: int
    metrics: Mapping[str, float]
    time: float


@dataclasses.dataclass(frozen=True)
class BestReport:
    """The best value that a trial has reported of a metric, in any of its attempts, and the step of the report."""

    value: float
    step: int


@dataclasses.dataclass(frozen=True)
class TrialOutcome:
    """The end of one attempt.

    Attributes:
        number: the ledger's number of the attempt.
        state: COMPLETE, PRUNED, FAILED, or PAUSED at a rung.
        failure: why, when FAILED.
        metrics: the final metrics (COMPLETE), or the last reported ones.
        returned: what the job returned beside metrics and arrays: texts, lists and the like, as JSON values; the small ones.
        message: one line for the user.
        place: what failures that are alike have in common: file and line of the job's code that raised, or what its result
            lacks; or "".
        traceback: the job's, when it raised.
        exit_code: of the process, or of the rank whose end was the trial's; negative is the signal that ended it; None when
            there was no process left to ask.
        started, ended: seconds since the epoch.
        node: host or pod that ran it.
        slot: number of the slot that ran it; None if that is unknown, as its controller was killed.
        pid: of the trial process.
        start_method: "fork" (of the warm template) or "spawn".
        log: path of the log relative to the run's folder.
        peak_memory: largest resident set of the process, in bytes; of ranks the sum of theirs, in which pages that they
            share with the template they were forked from count once for each.
        arrays: number of bytes of arrays, and of what is too large for `returned`, that came with the result.
        retried: whether the trial is tried again; decided by the ledger.
        step: the last step reported.
        early: whether the job's `stop` ended it; the rest of its ranks and nodes need not go on.
        best: the best reports, by the metric of an objective that is their best (`of: best`); decided by the ledger.
        advice: what would make the run's other trials quicker, or "".
        remark: what somebody should know of a trial that counts nevertheless, or "".
        saved: whether its folder of checkpoints held anything when it ended; None where its slot cannot see that.
        certain: whether every other trial would fail in the same way.
        checkpoints: what its folder of checkpoints held when it ended; None if it held nothing.
        answered_by: run and trial whose result it has, as run:trial; "" if it was trained.
    """

    number: int
    state: TrialState
    failure: FailureClass | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    returned: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    message: str = ""
    place: str = ""
    traceback: str = ""
    exit_code: int | None = None
    started: float = 0.0
    ended: float = 0.0
    node: str = ""
    slot: int | None = None
    pid: int = 0
    start_method: str = ""
    log: str = ""
    peak_memory: int = 0
    arrays: int = 0
    retried: bool = False
    step: int = 0
    best: Mapping[str, BestReport] = dataclasses.field(default_factory=dict)
    early: bool = False
    advice: str = ""
    remark: str = ""
    saved: bool | None = None
    certain: bool = False
    checkpoints: CheckpointSummary | None = None
    answered_by: str = ""

    @property
    def best_steps(self) -> dict[str, int]:
        """Metric → the step whose report is its final value; without those whose final value was returned."""
        if self.state is not TrialState.COMPLETE:
            return {}
        return {name: best.step for name, best in self.best.items() if self.metrics.get(name) == best.value}


@dataclasses.dataclass(frozen=True)
class Desired:
    """The desired state of a run on a cluster.

    Attributes:
        state: RUNNING, PAUSED, CANCELLED, or FAILED when a deadline of the run is over.
        parallel: slots, or None for as many as the job says.
        again: number of the newest attempt when the user resumed the run; a training that failed for good with it is tried
            again.
    """

    state: RunState = RunState.RUNNING
    parallel: int | None = None
    again: int | None = None


@dataclasses.dataclass(frozen=True)
class TrialRow:
    """Result of one attempt of a trial, usually the newest.

    Attributes:
        trial: Number of the trial, from 0.
        state: State of the trial.
        attempt: Number of the attempt, from 1.
        number: Number of the attempt among all attempts of the run.
        values: Values of the objectives. Empty without a result.
        params: Parameters, by name.
        metrics: Final metrics, or the last reported ones, by name.
        returned: Other values that the job returned, as JSON values, by name.
        failure: Class of the failure. None if the attempt did not fail.
        message: One line about the failure, or "".
        feasible: Whether the metrics are within the job's constraints.
        seconds: Duration of the attempt, in seconds.
        started: Time of its start, in seconds since the epoch. None before its trial's process has ended.
        ended: Time of its end, in seconds since the epoch. None before that.
        node: Host or pod that ran it.
        slot: Number of the slot that ran it. None before the end, and if the controller was killed.
        log: Path of the log, relative to the run's folder.
        best_steps: Step at which a metric had its final value, by metric, for objectives with `of: best`.
        step: Last step that the attempt has reported. None if it has not ended.
        series: Number of the attempt of which it is a later segment, after promotions. None if it is not.
    """

    trial: int
    state: TrialState
    attempt: int
    number: int
    values: tuple[float, ...] = ()
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    returned: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    failure: FailureClass | None = None
    message: str = ""
    feasible: bool = True
    seconds: float | None = None
    started: float | None = None
    ended: float | None = None
    node: str = ""
    slot: int | None = None
    log: str = ""
    best_steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
    step: int | None = None
    series: int | None = None

    @property
    def first(self) -> int:
        """Number of the attempt that began its series, whose run in MLflow is that of all of them."""
        return self.number if self.series is None else self.series

    @property
    def value(self) -> float | None:
        """Value of the first objective. None without a result."""
        return self.values[0] if self.values else None


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """Status of a run. Times are in seconds since the epoch.

    Attributes:
        run: Name of the run.
        job: Name of the job.
        state: State of the run.
        trials: Total number of trials, or of iterations of a collection.
        parallel: Number of trials that run at the same time, or of workers of a collection.
        reason: Reason for the state, in words.
        complete: Number of complete trials.
        pruned: Number of pruned trials.
        failed: Number of failed trials.
        running: Number of running trials.
        paused: Number of trials that are paused at a rung.
        retried: Number of attempts that were retried.
        failures: Number of failures, by class.
        slots_ready: Number of slots that are ready.
        nodes: Hosts or pods that have a slot.
        objectives: Names of the objectives.
        best: Best feasible trial, or the first of the Pareto front.
        rate: Ended trials per second while slots were ready.
        eta: Estimated time left, in seconds.
        created: Time of the submission.
        started: Time of the last start.
        ended: Time of the end.
        updated: Time of this status.
        mlflow: Reason why MLflow cannot be reached or refuses records, how far recording at the end is, or "".
        unrecorded: Whether MLflow lacks results that a resume would write.
        warnings: Warnings for the user.
        slots_per_trial: Number of slots of one trial.
        progress: Details of this kind of run.
        worked: Time, in seconds, that the run has had slots, which `budget.time` limits.
        owner: User who may change the run, on a cluster.
        images: Digests of the images that the run's pods have used on a cluster, by name.
    """

    run: str
    job: str
    state: RunState
    trials: int
    parallel: int = 0
    reason: str = ""
    complete: int = 0
    pruned: int = 0
    failed: int = 0
    running: int = 0
    paused: int = 0
    retried: int = 0
    failures: Mapping[str, int] = dataclasses.field(default_factory=dict)
    slots_ready: int = 0
    nodes: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ()
    best: TrialRow | None = None
    rate: float | None = None
    eta: float | None = None
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    updated: float = 0.0
    mlflow: str = ""
    unrecorded: bool = False
    warnings: tuple[str, ...] = ()
    slots_per_trial: int = 1
    progress: RunProgress = dataclasses.field(default_factory=StudyProgress)
    worked: float = 0.0
    owner: str = ""
    images: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Kind of the job."""
        return self.progress.kind

    @property
    def slots(self) -> int:
        """Number of slots that the run needs in all."""
        return self.parallel * self.slots_per_trial + self.progress.slots_aside

    def has_ended(self, begun: float) -> bool:
        """Whether the run has ended, or was paused, since `begun` (seconds since the epoch)."""
        return not self.state.is_active and self.updated >= begun

    @property
    def ended_trials(self) -> int:
        """Number of trials that have ended for good."""
        return self.complete + self.pruned + self.failed


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the desired state of a run; on a cluster with the user and the time that the API server has recorded.

    Attributes:
        at: when it was made.
        by: who made it, as the API server knows its users; "" on a laptop, and for a Run without an owner.
        description: in words: "state: Running → Paused".
        uid: of the Run; "" on a laptop.
        generation: of the Run's spec since then; with the uid it identifies the change.
        requested: fields of the Run since then, by field; the words of the next change compare with it.
    """

    at: float
    by: str
    description: str
    uid: str = ""
    generation: int = 0
    requested: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def to_json(record: Any) -> str:
    """A record as one line of strict JSON; NaN and infinities become the strings that `float()` reads."""
    return json.dumps(to_dict(record), separators=(",", ":"), allow_nan=False)


def to_dict(record: Any) -> Any:
    """A record as plain JSON values, whose text anything can store: a job may raise and name what is no text."""
    kind = type(record)
    if kind in _SAME:
        return record
    if kind is float:
        return record if math.isfinite(record) else repr(record)
    if kind is str:
        return escapes.storable(record)
    if dataclasses.is_dataclass(kind):
        return {name: to_dict(getattr(record, name)) for name in _names(kind)}
    if isinstance(record, enum.Enum):
        return record.value
    if isinstance(record, Mapping):
        return {escapes.storable(str(key)): to_dict(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_dict(value) for value in record]
    if isinstance(record, str):
        return escapes.storable(record)
    if isinstance(record, float) and not math.isfinite(record):
        return repr(record)
    return record


def from_json(cls: type[R], text: str | bytes) -> R:
    """The record of type `cls` that `to_json` wrote. Fields it does not know are dropped, so versions may differ.

    Raises:
        ValueError: as of `from_dict`.
    """
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"no {cls.__name__}: {error}") from error
    return from_dict(cls, data)


def from_dict(cls: type[R], data: Mapping[str, Any]) -> R:
    """The record of type `cls` in plain JSON values, as `to_dict` made them.

    Raises:
        ValueError: they are no such record, or another version wrote one of a kind that this one does not know. Types of
            fields are for `misfit` to look at.
    """
    try:
        return _read(cls, data)
    except (TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"no {cls.__name__}: {error}") from error


def _read(cls: type[R], data: Mapping[str, Any]) -> R:
    readers = _readers(cls)  # type: ignore[arg-type]  # classes are hashable
    return cls(
        **{
            key: value if value is None or (read := readers[key]) is None else read(value)
            for key, value in data.items()
            if key in readers
        }
    )


_INT_BITS = 64  # no database keeps a larger whole number
_SAME = (int, bool, type(None))  # types whose values are JSON's own
_Reader = Callable[[Any], Any] | None
_Check = Callable[[Any], bool]


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def _readers(cls: Any) -> dict[str, _Reader]:
    """Return for each field but a tag the function from its JSON value to its type; None where they are the same."""
    hints = typing.get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in dataclasses.fields(cls) if field.init}


def _reader(hint: Any) -> _Reader:
    """Return a reader of enums, nested records, tuples and mappings of floats; created once for each type, as it is slow."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        members = [argument for argument in arguments if argument is not type(None)]
        return (
            _reader(members[0])
            if len(members) == 1
            else functools.partial(_read_tagged, {record_type.kind: record_type for record_type in members})
        )
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda value: tuple(_listed(value) if item is None else map(item, _listed(value)))
    if origin is Mapping:
        item_reader = _reader(arguments[1])
        return None if item_reader is None else lambda value: {key: item_reader(element) for key, element in value.items()}
    if hint is float or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        return hint
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return functools.partial(_read, hint)
    return None


def _read_tagged(tagged: Mapping[str, type[R]], data: Mapping[str, Any]) -> R:
    """The record of the type that `kind` names, of several."""
    kind = data["kind"]
    if kind not in tagged:
        raise ValueError(f"it is of kind {kind!r}, and this version supports {', '.join(tagged)}: another version wrote it")
    return _read(tagged[kind], data)


def _listed(value: Any) -> Any:
    """A JSON list; a text would otherwise become a tuple of letters."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a {type(value).__name__} where a list is expected")
    return value


def misfit(record: Any) -> str:
    """Name of the first field of a record that holds another type than its own, as in a damaged file; "" when none does."""
    cls: Any = type(record)
    return next((name for name, fits in _checks(cls) if not fits(getattr(record, name))), "")


@functools.cache
def _checks(cls: Any) -> tuple[tuple[str, _Check], ...]:
    """Return a check of its type for each field; created once for each type, as the readers are."""
    hints = typing.get_type_hints(cls)
    return tuple((field.name, _check(hints[field.name])) for field in dataclasses.fields(cls))


def _check(hint: Any) -> _Check:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin is types.UnionType:
        checks = [_check(argument) for argument in arguments]
        return lambda value: any(fits(value) for fits in checks)
    if origin is typing.Literal:
        return lambda value: value in arguments
    if origin is tuple:
        item = _check(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(item, value))
    if origin is Mapping:
        item_check = _check(arguments[1])
        return lambda value: isinstance(value, Mapping) and all(map(item_check, value.values()))
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < _INT_BITS
    if hint is float:
        return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return lambda value: isinstance(value, hint) and not misfit(value)
    return lambda value: isinstance(value, hint)
