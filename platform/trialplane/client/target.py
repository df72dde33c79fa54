"""The port: operations of a place where runs live; `local` is this machine, `kubernetes` a namespace of a cluster.

Primitives only: how submissions, pauses and resumes use them is decided once for both places, in `run`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from trialplane import errors
from trialplane.errors import InputError, Issue, RunNotFound
from trialplane.ledger.attempts import Attempt
from trialplane.wire.records import Change, Desired, RunStatus, TrialRow
from trialplane.wire.states import RunState

if TYPE_CHECKING:  # pydantic costs `platform status --help` a tenth of a second
    from trialplane.job.kinds import Job
    from trialplane.plan.plan import Plan


@dataclasses.dataclass(frozen=True)
class Place:
    """Where runs live: `local`, or a cluster's namespace; None for the kubeconfig's default."""

    local: bool = False
    context: str | None = None
    namespace: str | None = None

    @property
    def flags(self) -> str:
        """The flags that name it; for a place from a target, which has context and namespace."""
        return "--local" if self.local else f"--context {self.context} --namespace {self.namespace}"


HERE = Place(local=True)


@dataclasses.dataclass(frozen=True)
class Observed:
    """A run at one moment.

    Attributes:
        status: checked against the controller: a run without one is never RUNNING.
        is_active: whether a controller works on it, or is being started; without one the status is final.
        desired: its desired state, as `desire` records it; a controller on this machine gets signals instead.
        exit_code: of the controller, where this process started it and it has ended.
    """

    status: RunStatus
    is_active: bool
    desired: Desired
    exit_code: int | None = None


@dataclasses.dataclass(frozen=True)
class Log:
    """Which log of a run: its controller's, if nothing else is given.

    Attributes:
        trial: the log of this trial.
        attempt: of the trial; the newest when None.
        worker: of a collection, in the iteration `trial`; all its processes append to one log.
    """

    trial: int | None = None
    attempt: int | None = None
    worker: int | None = None


class Target(Protocol):
    """A place where runs live.

    Contract:
        - Methods that read never write, not even a lock file, and work while a controller writes.
        - A run is identified by its name alone. For the name of no run a method raises `unknown`.
        - Reads return what was durable at that moment.
        - A refusal is a `TargetError` (the place's fault) or an `InputError` (the user's), with what to do.
        - All methods are thread-safe.

    Attributes:
        remote: whether runs live elsewhere: then Ctrl-C in the foreground does not stop them, and reading costs requests.
        poll: seconds between two reads of a run.
        place: names it for later commands.
    """

    remote: bool
    poll: float

    @property
    def place(self) -> Place:
        """See above."""

    def where(self, run: str = "") -> str:
        """Where runs, or the logs of one, are; for messages."""

    def check(self, job: Job | None) -> tuple[list[Issue], list[str]]:
        """Issues that prevent a run here, and warnings about what will be slow; starts and writes nothing.

        Args:
            job: the resolved job, or None when it is invalid: then only what every run needs is checked.
        """

    def missing_checkpoint(self, run: str, job: Job) -> str:
        """Why a new training of `job` would find no checkpoint of the training `run`; "" when it would.

        Also "" if that cannot be checked: in an object store, or while the gateway does not answer.
        """

    def describe(self, plan: Plan) -> dict[str, Any]:
        """What `apply` would write and start, as plain values for people."""

    # What there is

    def runs(self) -> list[str]:
        """Names of all runs, the newest first."""

    def observe(self, run: str) -> Observed | None:
        """The state of a run; None when there is none of that name."""

    def is_active(self, run: str) -> bool:
        """As in `observe`, but cheaper, and also for a run whose status is damaged."""

    def job(self, run: str) -> Job:
        """The job of a run, as resolved when it was submitted or changed since."""

    def differences(self, plan: Plan) -> list[str] | None:
        """How a plan differs from the run of its name.

        None when the submission of that run is not complete: the same plan, applied again, completes it.
        """

    def rows(self, run: str, after: int | None = None) -> tuple[int, list[TrialRow]]:
        """The attempts that ended since the place `after` (0 at first), and the place to continue from.

        Without a place every attempt that started, in that order.
        """

    def attempts(self, run: str, after: int) -> tuple[list[Attempt], bool]:
        """The attempts that run and those that ended since the place `after`, with Optuna's view of them.

        The second is whether a controller worked on the run at any moment of that: without one no attempt runs.
        """

    def changes(self, run: str) -> list[Change]:
        """Who changed what of what the run is to be, in the order of the changes; empty where nobody records it."""

    def log(self, run: str, which: Log, follow: bool) -> Iterator[str]:
        """Lines of a log, with line ends.

        With `follow` the iterator continues until the run, or the attempt, has ended. A log that does not exist and will
        not is an `InputError`.
        """

    # What there is to be

    def apply(self, plan: Plan) -> None:
        """Create a run and start its controller, or does neither. The run outlives the caller.

        Raises:
            RunExists: a concurrent submission has the name.
        """

    def restart(self, run: str, job: Job, status: RunStatus) -> None:
        """Start a controller for an inactive run.

        Args:
            run: its name.
            job: its job from now on.
            status: its current status.
        """

    def desire(self, run: str, state: RunState | None = None, *, parallel: int | None = None, now: bool = False) -> None:
        """Record the desired state of an active run; omitted fields stay as they are.

        Args:
            run: its name.
            state: PAUSED, so that `restart` can continue, or CANCELLED, also for an inactive run.
            parallel: trials at a time; `fit` has the place follow.
            now: whether the controller and its trials are killed, instead of ended cleanly.

        Raises:
            InputError: the place cannot change how many trials run at a time, or not yet.
        """

    def fit(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """Allocate the room for the desired number of trials, and return whether that is done.

        With fewer than before it takes until trials end; no running one is lost. `now` frees the room at once, and the
        trials in it are retried.
        """

    def remove(self, run: str, *, forget: bool) -> None:
        """Free the resources of a run: nothing locally, its pods on a cluster. Returns when that is done.

        Args:
            run: its name.
            forget: also delete its ledger and its logs; its records in MLflow stay.

        Raises:
            InputError: it is to be deleted, and a controller works on it.
        """


def unknown(target: Target, run: str) -> RunNotFound:
    """The error for an unknown run, with the nearest names."""
    known = target.runs()
    hint = (errors.nearest(run, known) or "`platform list` shows all") if known else nothing_yet(target)
    return RunNotFound(f"there is no run {run!r} in {target.where()}; {hint}")


def nothing_yet(target: Target) -> str:
    """The message for a place without runs."""
    return f"there are no runs yet; `platform submit hpo NAME{'' if target.remote else ' --local'}` starts one"


def active(run: str) -> InputError:
    """The error for a run that is to be deleted while a controller works on it."""
    return InputError(f"the run {run} is active; `platform cancel {run}` ends it first")
