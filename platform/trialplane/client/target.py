"""Interface of a target of runs: `local` is this machine, `kubernetes` a namespace of a cluster.

It has only primitive operations. `run` combines them into submissions, pauses and resumes, for both targets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trialplane import errors
from trialplane.errors import CheckResult, InputError, RunNotFound
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
class Observation:
    """Snapshot of a run.

    Attributes:
        status: Status of the run. A run without a controller is never RUNNING.
        is_active: Whether a controller is running or starting. If not, the status is final.
        desired: Desired state recorded by `desire`. A controller on this machine gets signals instead.
        exit_code: Exit code of the controller. None unless this process started it and it has ended.
    """

    status: RunStatus
    is_active: bool
    desired: Desired
    exit_code: int | None = None


@dataclasses.dataclass(frozen=True)
class Log:
    """Selection of a log of a run. Default: the controller's.

    Attributes:
        trial: Number of a trial; None for the controller's log.
        attempt: Number of the attempt; None for the newest.
        worker: Worker of a collection in the iteration `trial`. All its processes append to one log.
    """

    trial: int | None = None
    attempt: int | None = None
    worker: int | None = None


class AttemptsRead(NamedTuple):
    """Attempts as they were read.

    Attributes:
        attempts: Running attempts, and those that ended after a position.
        is_active: Whether a controller was running in the meantime. Without one, no attempt is running.
    """

    attempts: list[Attempt]
    is_active: bool


class EndedRows(NamedTuple):
    """Attempts that ended after a position, and the position of the last of their ends, for the next read."""

    position: int
    rows: list[TrialRow]


class Target(Protocol):
    """A target of runs.

    Contract:
        - Methods that read never write, not even a lock file, and work while a controller writes.
        - A run is identified by its name alone. For an unknown name, a method raises `unknown_run_error`.
        - Reads return durable data.
        - A refusal is a `TargetError` (the target's fault) or an `InputError` (the user's), with what to do.
        - All methods are thread-safe.

    Attributes:
        remote: Whether runs are on a cluster. Then Ctrl-C in the foreground does not stop them, and reading costs requests.
        poll: Seconds between two reads of a run.
        name: Name of the target.
    """

    remote: bool
    poll: float

    @property
    def name(self) -> TargetName:
        """Name of the target."""

    def location(self, run: str = "") -> str:
        """Return the location of runs, or of a run's logs, for messages."""

    def check(self, job: Job | None) -> CheckResult:
        """Return issues that prevent a run here, and warnings. Start and write nothing.

        Args:
            job: The resolved job. None checks only the requirements of all runs.
        """

    def missing_checkpoint(self, run: str, job: Job) -> str:
        """Return the reason why a training of `job` would find no checkpoint of the training `run`.

        "" if it would find one, or if that cannot be checked: in an object store, or while the gateway does not answer.
        """

    def checkpoint_obstacle(self, run: str, old_job: Job, job: Job) -> str:
        """Return the reason why trials of a new run cannot read checkpoints of an earlier one; "" if they can.

        Args:
            run: Name of the earlier run.
            old_job: Its job.
            job: Job of the new run.
        """

    def checkpoint_users(self, run: str) -> list[str]:
        """Return the active runs whose trials start from checkpoints that are deleted with a run.

        On a cluster there are none, as checkpoints in an object store are not deleted.
        """

    def describe(self, plan: Plan) -> dict[str, Any]:
        """Return the objects that `apply` would write and start, as plain values to print."""

    # Reading

    def runs(self) -> list[str]:
        """Return the names of all runs, newest first."""

    def observe(self, run: str) -> Observation | None:
        """Return the state of a run. None if there is no run with this name."""

    def is_active(self, run: str) -> bool:
        """Return whether a controller is running or starting. Faster than `observe`, and works with a damaged status."""

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

    def rows(self, run: str) -> list[TrialRow]:
        """Return all attempts, in the order of their starts."""

    def ended_rows(self, run: str, after: int) -> EndedRows:
        """Return the attempts that ended after the position `after` (0 at first)."""

    def attempts(self, run: str, after: int) -> AttemptsRead:
        """Return running attempts and those that ended after the position `after`, with Optuna's view of them."""

    def curves(self, run: str, after: int = 0, limit: int = NO_LIMIT) -> list[ReportRow]:
        """Return at most `limit` reports of all attempts, also of running ones, in the order of their arrival.

        The first is that with the lowest mark (`ReportRow.mark`) above `after`.
        """

    def changes(self, run: str) -> list[Change]:
        """Return the changes of the run's desired state and their users, in order. Empty if they are not recorded."""

    def log(self, run: str, which: Log, follow: bool) -> Iterator[str]:
        """Return the lines of a log, with line ends. With `follow`, wait for more until the run or the attempt has ended.

        Raises:
            InputError: The log does not exist, and will not exist.
        """

    # Changing

    def apply(self, plan: Plan) -> None:
        """Create a run and start its controller, or do neither. The run outlives the caller.

        Raises:
            RunExists: A concurrent submission has the name.
        """

    def resume(self, run: str, job: Job, status: RunStatus) -> None:
        """Start a controller that continues an inactive run from its ledger, with a changed job.

        Args:
            run: Name of the run.
            job: Job that replaces the recorded one.
            status: Last status of the run, from which a target without an operator derives the new one.
        """

    def desire(self, run: str, state: RunState | None = None, *, parallel: int | None = None, now: bool = False) -> None:
        """Record the desired state of an active run; omitted fields stay as they are.

        Args:
            run: Name of the run.
            state: PAUSED, so that `resume` can continue the run, or CANCELLED, also for an inactive run.
            parallel: Number of parallel trials. `fit` applies it.
            now: Kill the controller and its trials instead of ending them cleanly.

        Raises:
            InputError: The target cannot change the number of trials, or cannot change it yet.
        """

    def fit(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """Allocate resources for the desired number of trials, and return whether this is done.

        With a lower number, this waits for trials to end. `now` ends them at once, and they are retried.
        """

    def remove(self, run: str, *, forget: bool) -> None:
        """Free the resources of a run: nothing locally, its pods on a cluster. Return when this is done.

        Args:
            run: Name of the run.
            forget: Also delete its ledger and logs. Its records in MLflow are kept.

        Raises:
            InputError: `forget` is set, and a controller is running.
        """


def unknown_run_error(target: Target, run: str) -> RunNotFound:
    """Return the error for an unknown run, with similar names."""
    run_names = target.runs()
    hint = (errors.nearest(run, run_names) or "`platform list` shows all") if run_names else no_runs_message(target)
    return RunNotFound(f"there is no run {run!r} in {target.location()}; {hint}")


def no_runs_message(target: Target) -> str:
    """Return the message for a target without runs."""
    return f"there are no runs yet; `platform submit hpo NAME{'' if target.remote else ' --local'}` starts one"


def active_run_error(run: str) -> InputError:
    """Return the error for deleting a run while its controller is running."""
    return InputError(f"the run {run} is active; `platform cancel {run}` ends it first")
