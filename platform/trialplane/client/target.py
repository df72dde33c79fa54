"""The port: what a place where runs live can do; `local` is this machine, `kubernetes` a namespace of a cluster.

Primitives only: what a submission, a pause or a resumed run is made of is decided once for both places, in `run`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from trialplane import errors
from trialplane.errors import InputError, Issue, RunNotFound
from trialplane.wire.attempts import Attempt
from trialplane.wire.records import Desired, RunStatus, TrialRow
from trialplane.wire.states import RunState

if TYPE_CHECKING:  # pydantic is a tenth of a second that `platform status --help` need not take
    from trialplane.plan.plan import Plan
    from trialplane.spec.jobs import Job


@dataclasses.dataclass(frozen=True)
class Place:
    """Where runs live: `local`, or a cluster's namespace; None is what the kubeconfig says."""

    local: bool = False
    context: str | None = None
    namespace: str | None = None

    @property
    def flags(self) -> str:
        """What a command line needs to name it; of a place that a target gave, which knows context and namespace."""
        return "--local" if self.local else f"--context {self.context} --namespace {self.namespace}"


HERE = Place(local=True)


@dataclasses.dataclass(frozen=True)
class Observed:
    """A run at one moment.

    Attributes:
        status: with the truth about whether a controller works on the run: no dead run is RUNNING.
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
    """Which log of a run: its controller's, where nothing else is given.

    Attributes:
        trial: the log of this trial.
        attempt: at the trial; the newest when None.
        worker: of a collection, which has worked in the iteration `trial`; all its processes add to one log.
        submitter: what the place itself printed while it started the controller.
    """

    trial: int | None = None
    attempt: int | None = None
    worker: int | None = None
    submitter: bool = False


class Target(Protocol):
    """A place where runs live.

    Contract:
        - Methods that read never write, also not a lock file, and work while a controller writes.
        - A run is named by its name alone. A method that gets the name of no run raises `unknown`.
        - Reads give what was durable at that moment.
        - What the place refuses is a `TargetError` (its fault) or an `InputError` (the user's), with what to do.
        - Everything may be called from several threads.

    Attributes:
        remote: whether runs live elsewhere: then Ctrl-C in the foreground leaves them alone, and looking costs requests.
        poll: seconds between two looks at a run.
        place: to find it again.
    """

    remote: bool
    poll: float

    @property
    def place(self) -> Place:
        """See above."""

    def where(self, run: str = "") -> str:
        """Where runs are, or the logs of one, for messages."""

    def check(self, job: Job | None) -> tuple[list[Issue], list[str]]:
        """What stands in the way of a run here, and warnings about what will be slow; starts and writes nothing.

        Args:
            job: the resolved job, or None when it is wrong: then only what every run needs is looked at.
        """

    def missing_checkpoint(self, run: str, job: Job) -> str:
        """Why a new training of `job` would find no checkpoint of the training `run`; "" when it would.

        Also "" where nobody can look: in an object store, or while those who could do not answer.
        """

    def describe(self, plan: Plan) -> dict[str, Any]:
        """What `apply` would write and start, as plain values for people."""

    # What there is

    def runs(self) -> list[str]:
        """Names of all runs, the newest first."""

    def observe(self, run: str) -> Observed | None:
        """How a run stands; None when there is none of that name."""

    def is_active(self, run: str) -> bool:
        """As `observe` has it, for a run whose status may be damaged, and for less."""

    def job(self, run: str) -> Job:
        """The job of a run, as resolved when it was submitted or changed since."""

    def differences(self, plan: Plan) -> list[str] | None:
        """What a plan has otherwise than the run of its name.

        None when that run is being submitted, or was interrupted at that: the same plan, applied again, completes it.
        """

    def rows(self, run: str, after: int | None = None) -> tuple[int, list[TrialRow]]:
        """The attempts that ended since the place `after` (0 at first), and the place to ask from next time.

        Without a place every attempt that started, in that order.
        """

    def attempts(self, run: str, after: int) -> tuple[list[Attempt], bool]:
        """The attempts that run and those that ended since the place `after`, with Optuna's view of them.

        The second is whether a controller worked on the run at any moment of that: without one no attempt runs.
        """

    def log(self, run: str, which: Log, follow: bool) -> Iterator[str]:
        """Lines of a log, with their ends of line.

        With `follow` the iterator goes on until the run, or the attempt, has ended. A log that does not exist and will
        not is an `InputError`.
        """

    # What there is to be

    def apply(self, plan: Plan) -> None:
        """Makes a new run and starts its controller, or does neither. It goes on when the caller ends.

        Raises:
            RunExists: another submission of this moment has the name.
        """

    def restart(self, run: str, job: Job, status: RunStatus) -> None:
        """Starts a controller of a run that nobody works on.

        Args:
            run: its name.
            job: what its job is from now on.
            status: how it stands.
        """

    def desire(self, run: str, state: RunState | None = None, *, parallel: int | None = None, now: bool = False) -> None:
        """Records the desired state of an active run; what is left out stays as it is.

        Args:
            run: its name.
            state: PAUSED, so that `restart` goes on, or CANCELLED, also of a run that nobody works on.
            parallel: trials at a time; `fit` has the place follow.
            now: whether the controller and its trials are killed, instead of asked to end cleanly.

        Raises:
            InputError: the place cannot change how many trials run at a time, or not yet.
        """

    def fit(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """Has as much room as the desired number of trials needs, and returns whether that is done.

        With fewer than before it takes until trials end; none that runs is lost. `now` takes the room away at once, and the
        trials in it are tried again.
        """

    def remove(self, run: str, *, forget: bool) -> None:
        """Frees what a run still holds of the place: nothing here, its pods on a cluster. Returns when that is done.

        Args:
            run: its name.
            forget: its ledger and its logs too; what is in MLflow stays there.

        Raises:
            InputError: it is to be forgotten, and a controller works on it.
        """


def unknown(target: Target, run: str) -> RunNotFound:
    """The error for the name of no run, with the nearest that is one."""
    known = target.runs()
    hint = (errors.nearest(run, known) or "`platform list` shows all") if known else nothing_yet(target)
    return RunNotFound(f"there is no run {run!r} in {target.where()}; {hint}")


def nothing_yet(target: Target) -> str:
    """What is reported of a place without runs."""
    return f"there are no runs yet; `platform submit hpo NAME{'' if target.remote else ' --local'}` starts one"


def active(run: str) -> InputError:
    """The error for a run that is to be forgotten while a controller works on it."""
    return InputError(f"the run {run} is active; `platform cancel {run}` ends it first")
