"""The port: a place where runs live. `local.LocalTarget` is this machine, `kubernetes.KubernetesTarget` a namespace.

A target starts runs, reads them and ends them; the handle (`run.RunHandle`), the SDK and the command line know nothing
else of a place.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trialplane.errors import Complaint
from trialplane.wire.attempts import Attempt
from trialplane.wire.records import RunStatus, TrialRow

if TYPE_CHECKING:  # pydantic is a tenth of a second that `platform status --help` need not take
    from trialplane.plan.plan import Plan
    from trialplane.spec.jobs import Job


@dataclasses.dataclass(frozen=True)
class Place:
    """Where runs live: `local`, or a cluster's namespace; None is what the kubeconfig says."""

    local: bool = False
    context: str | None = None
    namespace: str | None = None


HERE = Place(local=True)


class Submitted(enum.Enum):
    """What became of a submission."""

    NEW = "new"
    REPLACED = "replaced"  # new too; a run of that name had ended before its first trial, and is forgotten
    RESUMED = "resumed"  # the same spec under the same name was unfinished: it goes on
    RUNNING = "running"  # it is running already
    FINISHED = "finished"  # it has succeeded before; nothing was started


class Target(Protocol):
    """A place where runs live.

    Contract:
        - Methods that read never write, also not a lock file, and work while a controller writes.
        - A run is named by its name alone. A method that gets the name of no run raises `RunNotFound` with the nearest.
        - Reads give what was durable at that moment. The order of `attempts` is the order in which they started.
        - What the place refuses is a `TargetError` (its fault) or an `InputError` (the user's), with what to do.
        - Everything may be called from several threads.

    Attributes:
        name: of the kind of place.
        remote: whether runs live elsewhere: then Ctrl-C in the foreground leaves them alone, and looking costs requests.
        poll: seconds between two looks at a run.
        place: to find it again.
        flags: what a command line needs to name this place: `--local`, `--context lab --namespace team`.
    """

    name: str
    remote: bool
    poll: float

    @property
    def place(self) -> Place:
        """See above."""

    @property
    def flags(self) -> str:
        """See above."""

    def check(self, job: Job | None) -> tuple[list[Complaint], list[str]]:
        """What stands in the way of a run here, and warnings about what will be slow; starts and writes nothing.

        Args:
            job: the resolved job, or None when it is wrong: then only what every run needs is looked at.
        """

    def describe(self, plan: Plan) -> dict[str, Any]:
        """What `submit` would write and start, as plain values for people."""

    def submit(self, plan: Plan) -> Submitted:
        """Starts a run, or goes on with the one of that name and spec. It goes on when the caller ends.

        Raises:
            RunExists: the name belongs to a run with another spec or other code, or to one that failed or was cancelled.
        """

    def runs(self) -> list[str]:
        """Names of all runs, the newest first."""

    def job(self, run: str) -> Job:
        """The job of a run, as resolved when it was submitted or changed by `resume`."""

    def status(self, run: str) -> RunStatus:
        """The newest status, with the truth about whether anybody works on the run: no dead run is RUNNING."""

    def is_active(self, run: str) -> bool:
        """Whether a controller works on the run, or is being started."""

    def look(self, run: str) -> tuple[RunStatus, bool]:
        """`status` and `is_active` of the same moment, for the price of one; without a controller it is the last word."""

    def missing_checkpoint(self, run: str, job: Job) -> str:
        """Why a new training of `job` would find no checkpoint of the training `run`; "" when it would.

        Also "" where nobody can look: in an object store, or while those who could do not answer.
        """

    def attempts(self, run: str) -> list[TrialRow]:
        """Every attempt that started."""

    def ends(self, run: str, after: int) -> tuple[int, list[TrialRow]]:
        """The attempts that ended since the place `after` (0 at first), and the place to ask from next time."""

    def whole(self, run: str, after: int) -> tuple[list[Attempt], bool]:
        """The attempts that run and those that ended since the place `after`, with Optuna's view of them.

        The second is whether a controller worked on the run at any moment of that: without one no attempt runs.
        """

    def log(
        self, run: str, trial: int | None, attempt: int | None, follow: bool, worker: int | None = None
    ) -> Iterator[str]:
        """Lines of the controller's log, or of a trial's attempt (the newest when None), with their ends of line.

        `worker` is one producer of the collection's iteration `trial` instead: all its processes add to one log.

        With `follow` the iterator goes on until the run, or the attempt, has ended. A log that does not exist and will
        not is an `InputError`.
        """

    def submitter_log(self, run: str, follow: bool) -> Iterator[str]:
        """Lines of what the place itself said while it started the controller; an `InputError` where nothing does."""

    def log_place(self, run: str) -> str:
        """Where the logs are, for messages."""

    def stop(self, run: str, *, now: bool = False) -> None:
        """Asks the controller to end cleanly, so that `resume` goes on; `now` kills it and its trials instead.

        Returns at once; a run that is not active is left as it is.
        """

    def cancel(self, run: str, *, now: bool = False) -> None:
        """As `stop`, but the run ends as CANCELLED.

        Where a run never came to start nothing of it may be left: its name is free again.

        Raises:
            InputError: it has ended already.
        """

    def release(self, run: str) -> None:
        """Frees what a run that nobody works on still holds of the place: nothing here, its pods on a cluster.

        Returns when that is done. What the run knows is kept.
        """

    def scale(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """Asks the controller of an active run for so many trials at a time, and does what `scaled` does; see there.

        Raises:
            InputError: the run is not active, or the place cannot do it.
        """

    def scaled(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """Goes on with what `scale` was asked for, and says whether it is done; no running trial is lost.

        With fewer than before it takes until trials end: called again and again it gives True when it is done. `now` takes
        the room away at once, and the trials in it are tried again.

        Raises:
            InputError: the run is no longer active, or somebody has asked for another number since.
        """

    def delete(self, run: str) -> None:
        """Forgets a run that nobody works on, its ledger and its logs; what is in MLflow stays there.

        Raises:
            InputError: it is active.
        """

    def resume(self, run: str, changes: Mapping[str, Any], sets: Sequence[str]) -> None:
        """Starts the controller of a run that stopped, with changes of how long and how wide it goes.

        Raises:
            InputError: the run is active or has succeeded with nothing left, or a change is not among those allowed.
        """

    def exit_code(self, run: str) -> int:
        """How the run ended, as an exit code of `errors`."""
