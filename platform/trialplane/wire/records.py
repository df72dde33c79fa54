"""The records that cross a process boundary, and their JSON form.

Frozen values: requests of the controller to a slot (`TrialRequest`), reports of a running trial (`TrialReport`), its outcome
(`TrialOutcome`), and what the laptop displays of a run (`TrialRow`, `RunStatus`). Times are seconds since the epoch.
`to_json` and `from_json` convert any dataclass to JSON and back, by the types of its fields.
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

from trialplane.job.numeric import is_number
from trialplane.job.program import Program
from trialplane.wire import escapes
from trialplane.wire.costs import Prices, Usage
from trialplane.wire.progress import RunProgress, StudyProgress
from trialplane.wire.states import FailureClass, RunState, TrialState

R = TypeVar("R")

MAX_METRICS = 1000  # limit of the metrics in a report or an outcome
MAX_NAME = 500  # limit of the characters in a metric's name
MAX_STEP = 2**31 - 1  # largest step, because databases store steps in 32 bits


@dataclasses.dataclass(frozen=True)
class StopRule:
    """A rule that ends a trial early, as complete: by a metric, or without one at a step. See `job.search.Stop`."""

    metric: str = ""
    above: float | None = None
    below: float | None = None
    after: int = 0
    step: int | None = None


@dataclasses.dataclass(frozen=True)
class Parent:
    """The checkpoint that a segment continues from.

    Attributes:
        trial: Number of the trial that saved it.
        step: Last step that this trial had reported.
        digest: Digest of the checkpoints. "" in a retry that may have newer checkpoints of its own, and for a job's `start`.
        number: Number of the attempt that saved it.
        folder: Folder of the checkpoint, as of `Segment`.
    """

    trial: int
    step: int
    digest: str = ""
    number: int | None = None
    folder: int = 0


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a trial's training, up to the next rung, in one process. Further attempts at a segment are retries.

    A rung is a number of steps at which the trials of a study are compared. All are paused there, and some continue.

    Attributes:
        rung: Number of steps at which it ends. 0 if the trial trains to its own end.
        metrics: Metrics by which trials are compared at the rung.
        done: Number of steps that were trained before this segment, and so the step at which it starts.
        offset: 1 if the trial counts its steps from 0, so that its report of step 3 is of the fourth one. 0 if it counts
            from 1. None before its first report.
        parent: Checkpoint that it continues from. None in a trial's first segment.
        series: Number of the attempt that began the series. A series is the consecutive segments of a trial without a
            failure between them. None if this attempt begins it.
        folder: Number of steps in the name of the folder of its checkpoints, if other trials may continue from them; see
            `paths.TrialFolder`. 0 for the trial's own folder.
        changed: Whether the trial's parameters are not those with which the checkpoint was trained.
        top: Number of steps of a whole trial, whose last state is always saved. 0 without one.
        restart: Whether a population restarts with it: the optimizer begins anew with the weights of the checkpoint.
    """

    rung: int = 0
    metrics: tuple[str, ...] = ()
    done: int = 0
    offset: int | None = None
    parent: Parent | None = None
    series: int | None = None
    folder: int = 0
    changed: bool = False
    top: int = 0
    restart: bool = False


@dataclasses.dataclass(frozen=True)
class CheckpointSummary:
    """The checkpoints of a trial when an attempt ended: their number, their size in bytes, and their digest."""

    number: int
    bytes: int
    digest: str


@dataclasses.dataclass(frozen=True)
class TrialRequest:
    """The request to a slot for one attempt at a trial.

    Attributes:
        run: Name of the run.
        trial: Number of the trial, from 0 to `trials` - 1. Its retries have the same number.
        attempt: Number of the attempt at this trial, from 1.
        number: Number of the attempt in the ledger. It is unique in the run, so that late results can be recognized.
        params: Fixed parameters of the job and sampled parameters, merged.
        seed: Seed of the trial's random numbers. It is the same in every attempt.
        metrics: Names of the metrics that the result must contain (objectives and constraints).
        timeout: Time limit of this attempt, in seconds. None without one.
        prunable: Whether the process waits after a report for the pruner's answer.
        stop: Rules that end the trial early, as complete. The process of rank 0 applies them to its reports.
        reported: Metrics whose best report counts if the result lacks them or has no finite value (`of: best`).
        env: Environment variables of the trial's process.
        retry_of: Number in the ledger of the attempt that this one retries. None if it is not a retry.
        node: Index of the slot among the trial's slots, from 0 to `SlotConfig.nodes` - 1. Node 0 has the trial's outcome.
        rendezvous: Address (host:port) at which the ranks of all nodes connect. "" with one node, which chooses a port.
        resume: Name of another run whose newest checkpoint the trial starts from if it has no checkpoint of its own, or "".
        worker: Number of a collection's worker. None for the learner and for any other trial.
        units: Maximum number of results for the learner of a collection's iteration. 0 for any other trial.
        directions: Directions of the values that an Optuna objective returns, which requests its parameters while it runs:
            "minimize" or "maximize". Empty for any other trial.
        segment: Part of the training that this attempt does. None if trials are not paused at rungs.
        start: Checkpoint of the run `resume` to start from, with step -1 for the newest. None for the newest of the trial
            with the same number. With a digest, it is one that `reuse` has selected: it is used only if it is unchanged, and
            its step is set once the trial has continued from it.
        workers: Number of a collection's workers when it starts. 0 for any other trial.
        begun: Time at which it was written to the ledger, in seconds since the epoch.
        slot: Number of the slot for which it was written to the ledger. None if it is not to run in a slot.
        ended_before: Numbers of the attempts that ended after the start of the attempt before, in the order of their ends.
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
    directions: tuple[str, ...] = ()
    segment: Segment | None = None
    start: Parent | None = None
    workers: int = 0
    begun: float = dataclasses.field(default=0.0, compare=False)
    slot: int | None = dataclasses.field(default=None, compare=False)
    ended_before: tuple[int, ...] = dataclasses.field(default=(), compare=False)

    @property
    def folder(self) -> int:
        """Number of steps in the name of the folder of its checkpoints; 0 for the trial's own."""
        return 0 if self.segment is None else self.segment.folder

    @property
    def series(self) -> int:
        """Number of the attempt that began its series. MLflow and an Optuna study have one record for each series."""
        return self.number if self.segment is None or self.segment.series is None else self.segment.series


@dataclasses.dataclass(frozen=True)
class SlotConfig:
    """The configuration that all trials of a slot share.

    Attributes:
        run: Name of the run.
        code: Folder of the job's code.
        entrypoint: `module:function` in this folder. "" if trials run a program.
        preload: Modules that the template imports before the job's own, and functions that it calls.
        root: Folder for trial logs and scratch folders.
        cache: Folder shared by all trials of all runs.
        cpus: Number of cores of one trial, rounded down to a whole number of threads, at least 1.
        cores: The same number as in the job, such as 0.5.
        gpus: Number of GPUs of one trial.
        gpu_share: Share of its GPU that a trial has. 1 for whole GPUs.
        memory: Memory limit of one trial, in bytes. None for no limit by trialplane.
        env: Environment variables of the template and thus of every trial.
        ranks: Number of processes of one trial on this node. With several ranks or nodes, the trial is a group of ranks.
        nodes: Number of slots that run one trial together.
        checkpoints: Folder, or fsspec URL, with a folder of checkpoints for each run and trial. It outlives attempts, pods
            and, on a cluster, runs. "" for the folder `checkpoints` below `root`.
        grace: Time for a trial to save a checkpoint after SIGTERM, in seconds.
        linger: Time for processes to exit after the trial's result, in seconds. It applies to the process of rank 0, then to
            the other ranks, and then to the other nodes.
        pack: Archive of the job's code, which the slot unpacks into `code` before it starts. "" if the code is unpacked.
        ship: Whether the slot shares no folder with the controller. Then `code`, `root` and `cache` are in the slot's own
            home, and the slot sends the files of a trial (its log and its own MLflow store) in messages.
        role: "trial", or in a collection "worker" or "learner".
        write: Destination and format for a learner that writes files; see `job.kinds.collection.Write`.
        program: Script or command that trials run instead of the entrypoint, or None.
        capture: Libraries whose calls become reports: wandb, mlflow, tensorboard, hf. None for wandb only, if its package is
            missing.
        keep: Files of a trial's folder that are stored with its checkpoints when it is complete.
        requirements: File of the code with requirements of packages that may have to be installed, or "".
        code_hash: SHA-256 of the content of `pack`, in hex. "" if it is not checked.
        params: Fixed parameters of the job, for functions in `preload`. Empty without such functions.
        restores: Whether trials are paused at rungs, so that each of their processes restores and saves a state.
        system_metrics: Seconds between samples of the use of the machine by a trial. None without samples.
        links: Links that the slot adds to `code`: path in it → absolute path of the target.
    """

    run: str
    code: str
    entrypoint: str
    root: str
    cache: str
    preload: tuple[str, ...] = ()
    cpus: int = 1
    cores: float = 1.0
    gpus: int = 0
    gpu_share: float = 1.0
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
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    restores: bool = False
    system_metrics: float | None = None
    links: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TrialReport:
    """Metrics of one step of a running trial.

    Attributes:
        number: Number of the attempt in the ledger.
        step: Step.
        metrics: Metrics, by name.
        time: Time of the report, in seconds since the epoch.
        remark: Note on the trial for the user, or "".
        start_step: Step of the checkpoint that `reuse` has selected, from which the attempt has started; -1 if from step 0
            instead. None in later reports, and if `reuse` has selected no checkpoint.
    """

    number: int
    step: int
    metrics: Mapping[str, float]
    time: float
    remark: str = ""
    start_step: int | None = None


@dataclasses.dataclass(frozen=True)
class ReportRow:
    """A report in the ledger.

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
    """The best value of a metric in all attempts at a trial, and the step of its report."""

    value: float
    step: int


@dataclasses.dataclass(frozen=True)
class TrialOutcome:
    """The end of one attempt.

    Attributes:
        number: Number of the attempt in the ledger.
        state: COMPLETE, PRUNED, FAILED, or PAUSED at a rung.
        failure: Class of the failure if the state is FAILED, else None.
        metrics: Final metrics if the state is COMPLETE, else the last reported ones, by name.
        returned: Other small values that the job returned, such as texts and lists, as JSON values, by name.
        message: One line for the user.
        fingerprint: Text that similar failures share: file and line of the job's code that raised, or what the result lacks;
            or "".
        traceback: Traceback of the job's exception, or "".
        exit_code: Exit code of the process, or of the rank that ended the trial. Negative if a signal ended it. None if
            unknown.
        started, ended: Time of the start and the end, in seconds since the epoch.
        node: Host or pod that ran it.
        slot: Number of the slot that ran it. None if it did not run, because its result was known.
        pid: Process id of the trial.
        start_method: "fork" (of the warm template) or "spawn".
        log: Path of the log, relative to the run's folder.
        peak_memory: Largest resident set of the process, in bytes. For several ranks, this is their sum, which counts pages
            shared with the template once for each rank.
        arrays: Size of the returned arrays and of values that are too large for `returned`, in bytes.
        retried: Whether the trial is retried. The ledger sets it.
        step: Last reported step.
        early: Whether a rule in the job's `stop` ended the trial. Its other ranks and nodes are then stopped.
        best: Best reports, by metric, of objectives with `of: best`. The ledger sets it.
        advice: Advice that would make other trials of the run faster, or "".
        remark: Note for the user on a trial whose result counts, or "".
        saved: Whether its folder of checkpoints contained files at its end. None if its slot cannot read the folder.
        certain: Whether every other trial would fail in the same way.
        checkpoints: Summary of its checkpoints at its end. None without checkpoints.
        answered_by: Trial of an earlier run whose result it has, as run:trial. "" if it was trained.
        begun_from: Trial of an earlier run from whose checkpoint the trial has begun, as run:trial. "" if it has begun at
            step 0. The ledger sets it.
        spared_steps: Number of steps of this checkpoint, which were not trained again. The ledger sets it.
        workers: Mean number of a collection's workers while it ran. The ledger sets it.
    """

    number: int
    state: TrialState
    failure: FailureClass | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    returned: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    message: str = ""
    fingerprint: str = ""
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
    begun_from: str = ""
    spared_steps: int = 0
    workers: float = 0.0

    @property
    def seconds(self) -> float | None:
        """Seconds for which the attempt held its slots. None if its start or its end is unknown."""
        return max(0.0, self.ended - self.started) if self.ended and self.started else None

    @property
    def best_steps(self) -> dict[str, int]:
        """Step of the report that had the final value, by metric, for objectives with `of: best`.

        A metric is missing if its final value was returned and not reported. Empty if the attempt is not complete.
        """
        if self.state is not TrialState.COMPLETE:
            return {}
        return {name: best.step for name, best in self.best.items() if self.metrics.get(name) == best.value}


@dataclasses.dataclass(frozen=True)
class Desired:
    """The desired state of a run on a cluster.

    Attributes:
        state: RUNNING, PAUSED, CANCELLED, or FAILED if a deadline of the run has passed.
        parallel: Number of slots. None for the job's number.
        again: Number of the newest attempt when the user resumed the run. A training that failed with it is retried. None if
            the run was not resumed.
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
        requested: Time at which it was written to the ledger and given to its slot, in seconds since the epoch.
        started: Time of its start, in seconds since the epoch. While it runs, this is when it was written to the ledger, and
            later the start of its process.
        ended: Time of its end, in seconds since the epoch. None before that.
        node: Host or pod that ran it.
        slot: Number of the slot that runs or ran it. None if it did not run, because its result was known.
        log: Path of the log, relative to the run's folder.
        best_steps: Step at which a metric had its final value, by metric, for objectives with `of: best`.
        step: Last step that the attempt has reported. None if it has not ended.
        series: Number of the attempt that began its series, see `Segment.series`. None if this attempt begins it.
        done: Number of steps that were trained before it, and so the step at which it starts. 0 without a checkpoint.
        parent: Number of the attempt that saved this checkpoint. None if it begins at step 0.
        workers: Mean number of a collection's workers while it ran.
        restart: Whether its population restarted with it, see `Segment.restart`.
        saved: Whether its folder of checkpoints contained files at its end. None if that is unknown, or it has not ended.
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
    requested: float | None = None
    started: float | None = None
    ended: float | None = None
    node: str = ""
    slot: int | None = None
    log: str = ""
    best_steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
    step: int | None = None
    series: int | None = None
    done: int = 0
    parent: int | None = None
    workers: float = 0.0
    restart: bool = False
    saved: bool | None = None

    @property
    def first(self) -> int:
        """Number of the attempt that began its series. All attempts of a series share its run in MLflow."""
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
        alive: Time at which a controller last saw its trials, in seconds since the epoch.
        usage: Hours that its attempts have used so far, and their cost, which `budget.gpu_hours` and `budget.cost` limit.
        prices: Prices of the cost.
        owner: User who may change the run, on a cluster.
        images: Digests of the images that the run's pods have used on a cluster, by name.
        final_state: State that an active run gets when MLflow has its last results; None while its trials have not ended.
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
    alive: float = 0.0
    usage: Usage = dataclasses.field(default_factory=Usage)
    prices: Prices = dataclasses.field(default_factory=Prices)
    owner: str = ""
    images: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    final_state: RunState | None = None

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
    """A change of the desired state of a run. On a cluster, user and time are those that the API server has recorded.

    Attributes:
        at: Time of the change, in seconds since the epoch.
        by: Username at the API server. "" on a laptop, and for a Run without an owner.
        description: Description for users, such as "state: Running → Paused".
        uid: Uid of the Run. "" on a laptop.
        generation: Generation of the Run's spec after the change. With the uid, it identifies the change.
        requested: Fields of the spec after the change, to describe the next one.
    """

    at: float
    by: str
    description: str
    uid: str = ""
    generation: int = 0
    requested: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def to_json(record: Any) -> str:
    """Return a record as one line of strict JSON. NaN and infinities become strings that `float()` accepts."""
    return json.dumps(to_dict(record), separators=(",", ":"), allow_nan=False)


def to_dict(record: Any) -> Any:
    """Return a record, or any value in one, as plain JSON values.

    NaN and infinities become strings that `float()` accepts. Lone surrogates, which a job may use in names and messages, are
    escaped, because files and databases do not store them.
    """
    # Exact types are checked first, because most values have one and the checks for subclasses below are slow.
    kind = type(record)
    if kind in _JSON_TYPES:
        return record
    if kind is float:
        return record if math.isfinite(record) else repr(record)
    if kind is str:
        return escapes.escape_surrogates(record)
    if dataclasses.is_dataclass(kind):
        return {name: to_dict(getattr(record, name)) for name in _field_names(kind)}
    if isinstance(record, enum.Enum):
        return record.value
    if isinstance(record, Mapping):
        return {escapes.escape_surrogates(str(key)): to_dict(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_dict(value) for value in record]
    if isinstance(record, str):
        return escapes.escape_surrogates(record)
    if isinstance(record, float) and not math.isfinite(record):
        return repr(record)
    return record


def from_json(cls: type[R], text: str | bytes) -> R:
    """Return the record of type `cls` that `to_json` wrote. Unknown fields, which a newer version may add, are ignored.

    Raises:
        ValueError: The text is not JSON, or not such a record. Types of fields are not checked; see `mistyped_field`.
    """
    try:
        fields = json.loads(text)
    except RecursionError as error:  # nested too deeply
        raise ValueError(f"no {cls.__name__}: {error}") from error
    return from_dict(cls, fields)


def from_dict(cls: type[R], fields: Mapping[str, Any]) -> R:
    """Return the record of type `cls` that `to_dict` turned into plain JSON values. Unknown fields are ignored.

    Raises:
        ValueError: The values are not such a record, or another version wrote it and its kind is unknown. Types of fields
            are not checked; see `mistyped_field`.
    """
    try:
        return _from_fields(cls, fields)
    except (TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"no {cls.__name__}: {error}") from error


def _from_fields(cls: type[R], fields: Mapping[str, Any]) -> R:
    """Return a record of type `cls` with these fields, converted to their types. Unknown fields are ignored."""
    converters = _converters(cls)  # type: ignore[arg-type]  # classes are hashable
    converted: dict[str, Any] = {}
    for name, value in fields.items():
        if name in converters:
            convert = converters[name]
            converted[name] = value if value is None or convert is None else convert(value)
    return cls(**converted)


_INT_BITS = 64  # databases store no larger integers
_JSON_TYPES = (int, bool, type(None))  # types whose values are JSON values already
_Converter = Callable[[Any], Any] | None
_Check = Callable[[Any], bool]


@functools.cache
def _field_names(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass. They are cached because reading them is slow."""
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def _converters(cls: Any) -> dict[str, _Converter]:
    """Return the converter of each field that the constructor accepts, by name. See `_converter`."""
    hints = typing.get_type_hints(cls)
    return {field.name: _converter(hints[field.name]) for field in dataclasses.fields(cls) if field.init}


def _converter(hint: Any) -> _Converter:
    """Return the function that converts a JSON value to a field's type. None if the JSON value has this type already."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        members = [argument for argument in arguments if argument is not type(None)]
        if len(members) == 1:  # an optional type
            return _converter(members[0])
        # Several types of records, which have different values of the field `kind`.
        return functools.partial(_from_tagged_fields, {record_type.kind: record_type for record_type in members})
    if origin is tuple:
        convert_item = _converter(arguments[0])
        if convert_item is None:
            return lambda value: tuple(_check_list(value))
        return lambda value: tuple(map(convert_item, _check_list(value)))
    if origin is Mapping:
        convert_element = _converter(arguments[1])
        if convert_element is None:
            return None
        return lambda value: {key: convert_element(element) for key, element in value.items()}
    if hint is float or (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        return hint  # the type itself converts: float("nan"), State("RUNNING")
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return functools.partial(_from_fields, hint)
    return None


def _from_tagged_fields(types_by_kind: Mapping[str, type[R]], fields: Mapping[str, Any]) -> R:
    """Return a record of the type that its field `kind` names.

    Raises:
        ValueError: The kind is unknown.
    """
    kind = fields["kind"]
    if kind not in types_by_kind:
        supported = ", ".join(types_by_kind)
        raise ValueError(f"it is of kind {kind!r}, and this version supports {supported}: another version wrote it")
    return _from_fields(types_by_kind[kind], fields)


def _check_list(value: Any) -> Any:
    """Return a list unchanged. Raise TypeError for any other value, because a text would become a tuple of characters."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a {type(value).__name__} where a list is expected")
    return value


def mistyped_field(record: Any) -> str:
    """Return the name of the first field whose value has a wrong type, as in a damaged file. "" if all types are right."""
    cls: Any = type(record)
    return next((name for name, has_type in _type_checks(cls) if not has_type(getattr(record, name))), "")


@functools.cache
def _type_checks(cls: Any) -> tuple[tuple[str, _Check], ...]:
    """Return the name and the type check of each field of a class. They are cached because creating them is slow."""
    hints = typing.get_type_hints(cls)
    return tuple((field.name, _type_check(hints[field.name])) for field in dataclasses.fields(cls))


def _type_check(hint: Any) -> _Check:
    """Return a function that returns whether a value has the type `hint` of a record's field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin is types.UnionType:
        member_checks = [_type_check(argument) for argument in arguments]
        return lambda value: any(has_type(value) for has_type in member_checks)
    if origin is typing.Literal:
        return lambda value: value in arguments
    if origin is tuple:
        item_check = _type_check(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(item_check, value))
    if origin is Mapping:
        element_check = _type_check(arguments[1])
        return lambda value: isinstance(value, Mapping) and all(map(element_check, value.values()))
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < _INT_BITS
    if hint is float:
        return is_number
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return lambda value: isinstance(value, hint) and not mistyped_field(value)
    return lambda value: isinstance(value, hint)
