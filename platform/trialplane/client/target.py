"""The port between the client and a target of runs: `local` is this machine, `kubernetes` a namespace of a cluster.

It has only primitive operations. `run` combines them to submissions, pauses and resumes, for both targets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from trialplane import errors
from trialplane.errors import InputError, Issue, RunNotFound
from trialplane.ledger.attempts import NO_LIMIT, Attempt
from trialplane.wire.records import Change, Desired, ReportRow, RunStatus, TrialRow
from trialplane.wire.states import RunState

if TYPE_CHECKING:  # pydantic costs `platform status --help` a tenth of a second
    from trialplane.job.kinds import Job
    from trialplane.plan.plan import Plan


@dataclasses.dataclass(frozen=True)
class TargetName:
    """Name of a target: `local`, or a cluster's namespace. None for the kubeconfig's default."""

    local: bool = False
    context: str | None = None
    namespace: str | None = None

    @property
    def flags(self) -> str:
        """Flags for this target. Only for a name returned by a target, which has context and namespace."""
        return "--local" if self.local else f"--context {self.context} --namespace {self.namespace}"


HERE = TargetName(local=True)


@dataclasses.dataclass(frozen=True)
class Observed:
    """Snapshot of a run.

    Attributes:
        status: status of the run; a run without a controller is never RUNNING.
        is_active: whether a controller is running or starting; otherwise the status is final.
        desired: desired state recorded by `desire`; a controller on this machine gets signals instead.
        exit_code: exit code of the controller, if this process started it and it has ended.
    """

    status: RunStatus
    is_active: bool
    desired: Desired
    exit_code: int | None = None


@dataclasses.dataclass(frozen=True)
class Log:
    """Selection of a log of a run. Default: the controller's.

    Attributes:
        trial: the log of this trial.
        attempt: attempt of the trial; None for the newest.
        worker: worker of a collection in the iteration `trial`; all its processes append to one log.
    """

    trial: int | None = None
    attempt: int | None = None
    worker: int | None = None


class Target(Protocol):
    """A target of runs.

    Contract:
        - Methods that read never write, not even a lock file, and work while a controller writes.
        - A run is identified by its name alone. For an unknown name a method raises the error of `unknown`.
        - Reads return durable data.
        - A refusal is a `TargetError` (the target's fault) or an `InputError` (the user's), with what to do.
        - All methods are thread-safe.

    Attributes:
        remote: whether runs are on a cluster: then Ctrl-C in the foreground does not stop them, and reading costs requests.
        poll: seconds between two reads of a run.
        place: name of the target.
    """

    remote: bool
    poll: float

    @property
    def place(self) -> TargetName:
        """See above."""

    def where(self, run: str = "") -> str:
        """Return the location of runs, or of a run's logs, for messages."""

    def check(self, job: Job | None) -> tuple[list[Issue], list[str]]:
        """Return issues that prevent a run here, and warnings. Start and write nothing.

        Args:
            job: the resolved job; None if it is invalid, to check only the requirements of all runs.
        """

    def missing_checkpoint(self, run: str, job: Job) -> str:
        """Return why a training of `job` would find no checkpoint of the training `run`, or "".

        Also "" if that cannot be checked: in an object store, or while the gateway does not answer.
        """

    def describe(self, plan: Plan) -> dict[str, Any]:
        """Return the objects that `apply` would write and start, as plain values for people."""

    # Reading

    def runs(self) -> list[str]:
        """Return the names of all runs, newest first."""

    def observe(self, run: str) -> Observed | None:
        """Return the state of a run. None if there is no run with this name."""

    def is_active(self, run: str) -> bool:
        """Return `observe(run).is_active`, but faster, and also for a run whose status is damaged."""

    def job(self, run: str) -> Job:
        """Return the job of a run, as submitted or changed since."""

    def submission(self, run: str) -> Mapping[str, Any]:
        """Return the facts of a run's submission."""

    def code(self, run: str) -> bytes:
        """Return the packed code of a run."""

    def differences(self, plan: Plan) -> list[str] | None:
        """Return the differences between a plan and the run with its name.

        None if the submission of this run is incomplete. Applying the same plan again completes it.
        """

    def rows(self, run: str, after: int | None = None) -> tuple[int, list[TrialRow]]:
        """Return the attempts that ended after the position `after` (0 at first), and the next position.

        Without a position, return all attempts, in the order of their start.
        """

    def attempts(self, run: str, after: int) -> tuple[list[Attempt], bool]:
        """Return running attempts and those that ended after the position `after`, with Optuna's view of them.

        The second value is whether a controller was running in the meantime. Without one, no attempt is running.
        """

    def curves(self, run: str, after: int = 0, limit: int = NO_LIMIT) -> list[ReportRow]:
        """Return the first reports of all attempts with marks above `after`, those of running attempts included."""

    def changes(self, run: str) -> list[Change]:
        """Return the changes of the run's desired state and their users, in order. Empty if they are not recorded."""

    def log(self, run: str, which: Log, follow: bool) -> Iterator[str]:
        """Return the lines of a log, with line ends.

        With `follow`, the iterator continues until the run or the attempt has ended. A log that will never exist is an
        `InputError`.
        """

    # Changing

    def apply(self, plan: Plan) -> None:
        """Create a run and start its controller, or do neither. The run outlives the caller.

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
            parallel: trials at a time; `fit` applies it.
            now: kill the controller and its trials instead of ending them cleanly.

        Raises:
            InputError: the target cannot change the number of trials, or not yet.
        """

    def fit(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """Allocate resources for the desired number of trials, and return whether this is done.

        With a lower number, this waits for trials to end. `now` ends them at once, and they are retried.
        """

    def remove(self, run: str, *, forget: bool) -> None:
        """Free the resources of a run: nothing locally, its pods on a cluster. Return when this is done.

        Args:
            run: its name.
            forget: also delete its ledger and logs; its records in MLflow are kept.

        Raises:
            InputError: `forget` is set, and a controller is running.
        """


def unknown(target: Target, run: str) -> RunNotFound:
    """Return the error for an unknown run, with similar names."""
    run_names = target.runs()
    hint = (errors.nearest(run, run_names) or "`platform list` shows all") if run_names else nothing_yet(target)
    return RunNotFound(f"there is no run {run!r} in {target.where()}; {hint}")


def nothing_yet(target: Target) -> str:
    """Return the message for a target without runs."""
    return f"there are no runs yet; `platform submit hpo NAME{'' if target.remote else ' --local'}` starts one"


def active(run: str) -> InputError:
    """Return the error for deleting a run while its controller is running."""
    return InputError(f"the run {run} is active; `platform cancel {run}` ends it first")
