"""This machine as a target: a run is a folder below home, and its controller is a process with its own session.

A folder can be damaged or vanish at any moment. This affects only its own run, and the error names the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from trialplane import errors
from trialplane.client import folder, process, target
from trialplane.client.machine import Machine
from trialplane.client.target import HERE, AttemptsRead, EndedRows, Log, Observation
from trialplane.errors import CheckResult, InputError, LedgerError, RunDamaged, RunNotFound
from trialplane.job.kinds import Job, Study
from trialplane.ledger import attempts as reading
from trialplane.ledger import results, run_status
from trialplane.ledger.attempts import NO_LIMIT
from trialplane.ledger.run_status import LedgerView, OperatorView
from trialplane.plan import plan as planning
from trialplane.plan import saving
from trialplane.plan.plan import Plan
from trialplane.training.steps import record
from trialplane.wire import earlier, logs, paths, records
from trialplane.wire.holder import Holder
from trialplane.wire.logs import Piece
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import Change, Desired, ReportRow, RunStatus, TrialRow
from trialplane.wire.states import RunState

_REPAIR_HINT = "Removing that file repairs the run: its counts are in the ledger, only the used budget.time is lost."
_POLL = 0.2  # seconds between reads of a growing log

M = TypeVar("M", bound=Callable[..., Any])


def _map_system_errors(method: M) -> M:
    """Decorate a method about one run, so that errors of the operating system become errors about the run's folder."""

    @functools.wraps(method)
    def mapped(self: LocalTarget, run: str, *args: Any, **options: Any) -> Any:
        """Call the method of a target; raise an OSError as an error about the run's folder."""
        try:
            return method(self, run, *args, **options)
        except OSError as error:
            files = RunPaths.of(self.home, run)
            raise folder.damage_error(files, Path(error.filename or files.root), error) from error

    return cast(M, mapped)


class LocalTarget:
    """Runs on this machine; see `target.Target` for the contract of each method.

    Args:
        home: Folder of all runs and settings. Default: TRIALPLANE_HOME.
    """

    remote = False
    poll = 0.1  # the controller writes its status twice a second, and its end at once
    name = HERE

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or paths.home()
        self._controllers: dict[str, process.Controller] = {}  # by run

    def location(self, run: str = "") -> str:
        """Return the location of runs, or of a run's logs, for messages."""
        return str(paths.runs(self.home) / run)

    def check(self, job: Job | None) -> CheckResult:
        """Return issues that prevent a run here, and warnings. Start and write nothing."""
        return Machine.inspect(self.home).check(self.home, job)

    @_map_system_errors
    def missing_checkpoint(self, run: str, job: Job) -> str:
        """Return the reason why a training of `job` would find no checkpoint of the training `run`."""
        files = self._find(run)
        if obstacle := self.checkpoint_obstacle(run, folder.load_job(files), job):
            return obstacle
        if job.checkpoints.url:
            return ""  # an object store, or a folder of the job, is not checked
        start = job.start if isinstance(job, Study) else None  # trial and step from which the trials of a study start
        trial = 0 if start is None else start.trial  # a training has one trial, 0
        checkpoints = Path(paths.trial_checkpoints(str(files.checkpoints), run, trial))
        if not paths.has_checkpoint(checkpoints):
            return f"{saving.no_checkpoint_message(run)} (in {checkpoints})"
        names = [path.name for path in checkpoints.iterdir() if record.is_name(path.name)]
        steps = sorted(set(map(record.step_of, names)))
        if start is None or start.step is None or start.step in steps:
            return ""
        return f"trial {start.trial} of {run} has no checkpoint of step {start.step}; it has {', '.join(map(str, steps))}"

    def checkpoint_obstacle(self, run: str, old_job: Job, job: Job) -> str:
        """Return the reason why trials of a new run cannot read checkpoints of an earlier one; "" if they can."""
        old_url, new_url = old_job.checkpoints.url, job.checkpoints.url
        if old_url == new_url:
            return ""
        old_location = old_url or str(RunPaths.of(self.home, run).checkpoints)
        new_location = new_url or f"a folder of {paths.runs(self.home)}"
        return saving.other_location_message(run, old_location, new_location, old_url)

    def checkpoint_users(self, run: str) -> list[str]:
        """Return the active runs whose trials start from checkpoints that are deleted with a run."""
        names = []
        for other in self.runs():
            files = RunPaths.of(self.home, other)
            with contextlib.suppress(RunDamaged, OSError, ValueError):  # a damaged run, which `platform list` shows
                if other == run or process.active_controller(files) is None:
                    continue
                sources = {beginning.run for beginning in earlier.read(files.code).beginnings}
                if run in {*sources, folder.load_job(files).origin}:
                    names.append(other)
        return names

    def describe(self, plan: Plan) -> dict[str, Any]:
        """Return the objects that `apply` would write and start, as plain values to print."""
        run = RunPaths.of(self.home, plan.run)
        return {
            "run": plan.run,
            "target": "local",
            "writes": str(run.root),
            "starts": f"python -m trialplane.controller --run-dir {run.root}",
            "code": {"folder": plan.provenance.job_folder, "sha256": plan.pack.sha256, "files": list(plan.pack.files)},
            "job": plan.job.model_dump(mode="json"),
        }

    def runs(self) -> list[str]:
        """Return the names of all runs, newest first."""
        folder_of_runs = paths.runs(self.home)
        with folder.explain_read_errors(self.home):
            if not folder_of_runs.is_dir():
                return []
            names = [path.name for path in folder_of_runs.iterdir() if self._is_run(path.name)]
        return sorted(names, key=lambda name: (self._submission_time(name), name), reverse=True)

    @_map_system_errors
    def observe(self, run: str) -> Observation | None:
        """Return the state of a run. None if there is no run with this name."""
        files = RunPaths.of(self.home, run)
        with folder.explain_read_errors(self.home):
            if not self._is_run(run):
                return None
        is_active = process.active_controller(files) is not None
        status = self._last_status(files)  # read last, to get the final status of a run that has just ended
        if not is_active:
            status = self._inactive_status(files, status)
        controller = self._controllers.get(run)  # only if this process has started it
        exit_code = None if controller is None else controller.poll()
        return Observation(status, is_active, desired=Desired(), exit_code=exit_code)

    def _inactive_status(self, files: RunPaths, status: RunStatus) -> RunStatus:
        """Return the status of an inactive run, with counts and best trial of its ledger.

        Args:
            files: Paths of the run.
            status: Last status that was written.
        """
        run = files.root.name
        # If the mark of a cancel still exists, the controller was killed after the cancel, or ended before it noticed it.
        desired = RunState.CANCELLED if files.cancelled.exists() else RunState.RUNNING
        # There is no operator here. In its place: a run whose controller was killed counts as paused.
        reason = f"the controller is not running (killed?); `platform resume {run}` continues it"
        status = run_status.current(LedgerView(status, desired), OperatorView(RunState.PAUSED, reason))
        if status.unrecorded and "platform resume" not in status.mlflow:  # the controller was killed while it recorded them
            status = dataclasses.replace(
                status, mlflow=f"MLflow lacks some results; `platform resume {run}` writes the rest"
            )
        # A controller that was killed has not written its last counts. After a success with all trials, none is missing.
        is_complete = status.state is RunState.SUCCEEDED and status.ended_trials == status.trials
        job = folder.load_job(files)  # also of a run without a ledger: it raises if the run is damaged
        if not is_complete and files.ledger.exists():
            status = _with_counts_of_ledger(files, job, status)
        self._find(run)  # raises if the run was deleted in the meantime, as the counts would be wrong
        return status

    @_map_system_errors
    def is_active(self, run: str) -> bool:
        """Return whether a controller is running or starting. Faster than `observe`, and works with a damaged status."""
        return process.active_controller(self._find(run)) is not None

    @_map_system_errors
    def job(self, run: str) -> Job:
        """Return the job of a run, as submitted or changed since."""
        return folder.load_job(self._find(run))

    @_map_system_errors
    def submission(self, run: str) -> Mapping[str, Any]:
        """Return the facts of a run's submission."""
        return folder.load_submission(self._find(run))

    @_map_system_errors
    def code(self, run: str) -> bytes:
        """Return the packed code of a run."""
        return folder.pack_code(self._find(run)).data

    def differences(self, plan: Plan) -> list[str] | None:
        """Return the differences between a plan and the run with its name."""
        return folder.differences(self._find(plan.run), plan)

    @_map_system_errors
    def rows(self, run: str) -> list[TrialRow]:
        """Return all attempts, in the order of their starts."""
        files = self._find(run)
        if not files.ledger.exists():
            status = self._last_status(files)
            if status.ended_trials or status.running:
                ways = f"its trials are in MLflow: `platform ui`; `platform delete {run}` deletes it"
                raise RunDamaged(f"the ledger of {run} is not in {files.root}; {ways}")
        return results.attempts(files.ledger, run, folder.load_job(files), alive=self.is_active(run))

    @_map_system_errors
    def ended_rows(self, run: str, after: int) -> EndedRows:
        """Return the attempts that ended after the position `after` (0 at first)."""
        files = self._find(run)
        position, ended_attempts = results.ended_attempts(files.ledger, run, after)
        if not ended_attempts:  # the usual case while a display polls, which then need not read the job
            return EndedRows(position, rows=[])
        job = folder.load_job(files)
        return EndedRows(position, [reading.trial_row(job, attempt, alive=True) for attempt in ended_attempts])

    @_map_system_errors
    def attempts(self, run: str, after: int) -> AttemptsRead:
        """Return running attempts and those that ended after the position `after`, with Optuna's view of them."""
        files = self._find(run)
        was_active = self.is_active(run)
        ledger_attempts = results.attempts_since(files.ledger, run, was_active, after)
        # A controller may have started after the first check; then attempts may be running too.
        return AttemptsRead(ledger_attempts, is_active=was_active or self.is_active(run))

    @_map_system_errors
    def curves(self, run: str, after: int = 0, limit: int = NO_LIMIT) -> list[ReportRow]:
        """Return at most `limit` reports of all attempts, also of running ones, in the order of their arrival."""
        files = self._find(run)
        return results.reports(files.ledger, run, self.is_active(run), after, limit)

    @_map_system_errors
    def changes(self, run: str) -> list[Change]:
        """Return the submission, each resume and the state before it, in order. Empty before the first resume."""
        files = self._find(run)
        if not files.changes.exists():
            return []
        lines = files.changes.read_bytes().splitlines()
        recorded = [records.from_json(Change, line) for line in lines]
        return [Change(self._submission_time(run), "", "submitted"), *recorded]

    @_map_system_errors
    def log(self, run: str, which: Log, follow: bool) -> Iterator[str]:
        """Return the lines of a log, with line ends. With `follow`, wait for more until the run or the attempt has ended."""
        files = self._find(run)
        if which.trial is None:
            file = files.controller_log
            is_growing: Callable[[], bool] = functools.partial(self.is_active, run)
        else:
            attempt = self._attempt_number(run, which.trial, which.attempt, follow=follow)
            file = files.trial_log(which.trial, attempt, which.worker)
            is_growing = functools.partial(self._is_attempt_active, run, which.trial, attempt)
        if file.exists():
            file.open("rb").close()  # here, where errors are mapped: the lines are read only after this method has returned
        elif not follow:
            raise self._missing_log_error(run, which, file)
        return logs.lines(_log_pieces(file, is_growing if follow else lambda: False))

    def _missing_log_error(self, run: str, which: Log, file: Path) -> InputError:
        """Return the error for a log that does not exist."""
        if which.worker is None:
            hint = f"`platform results {run}` shows the {self.job(run).noun}s"
        else:
            absence = f"worker {which.worker} has not worked in iteration {which.trial}"
            hint = f"{absence}; `platform logs {run}` shows the work of each"
        yet = " yet" if self.is_active(run) else ""
        return InputError(f"there is no log {file}{yet}; {hint}")

    def apply(self, plan: Plan) -> None:
        """Create a run and start its controller, or do neither. The run outlives the caller."""
        run = RunPaths.of(self.home, plan.run)
        folder.create(run, plan)
        self._controllers[plan.run] = process.start(run)

    @_map_system_errors
    def resume(self, run: str, job: Job, status: RunStatus) -> None:
        """Start a controller that continues an inactive run from its ledger, with a changed job."""
        files = self._find(run)
        folder.load_submission(files)  # raises if it is damaged, because the controller needs it
        folder.replace_job(files, job)
        new_status = dataclasses.replace(
            status,
            state=RunState.PENDING,
            reason="the controller is starting",
            trials=job.trials,
            parallel=job.width,
            ended=None,
            updated=time.time(),
        )
        old_state = f"{status.state.value.lower()}: {status.reason}".removesuffix(": ")
        changes = (Change(status.ended or status.updated, "", old_state), Change(time.time(), "", "resumed"))
        with folder.explain_write_errors(files.root):
            with files.changes.open("a", encoding="utf-8") as file:
                file.writelines(f"{records.to_json(change)}\n" for change in changes)
            files.cancelled.unlink(missing_ok=True)
            process.replace(files.status, records.to_json(new_status))
        self._controllers[run] = process.start(files)

    @_map_system_errors
    def desire(self, run: str, state: RunState | None = None, *, parallel: int | None = None, now: bool = False) -> None:
        """Record the desired state of an active run; omitted fields stay as they are.

        `parallel` is refused, because on a laptop Ray allocates a run's resources when it starts.
        """
        files = self._find(run)
        if parallel is not None:
            advice = f"`platform resume {run} {self.job(run).width_option} {parallel}` continues with that many at a time"
            raise InputError(f"first `platform pause {run}`: {advice}")
        controller = process.active_controller(files)
        if state is RunState.CANCELLED:
            self._cancel(files, controller, now=now)
        elif controller is not None:
            process.signal_stop(run, controller, now=now)

    def _cancel(self, files: RunPaths, controller: Holder | None, *, now: bool) -> None:
        """Mark a run as cancelled, and stop its controller.

        Args:
            files: Paths of the run.
            controller: Its controller; None if it is not active.
            now: Whether to kill the controller instead of ending it cleanly.
        """
        run = files.root.name
        if controller is not None:
            # Checked before the mark `cancelled` is written: with a mark, but without a signal, the run would go on, and its
            # next pause would count as a cancel.
            process.check_reach(run, controller)
        status = self._last_status(files)
        if controller is None:
            status = self._inactive_status(files, status)
        with folder.explain_write_errors(files.root, "nothing was changed"):
            files.cancelled.touch()
        if controller is not None:
            process.signal_stop(run, controller, now=now)
            if not now:
                return  # a controller that ends cleanly writes its last status itself
        if not status.state.is_ended:  # no controller writes the end of the run
            with folder.explain_write_errors(files.root, "the run counts as cancelled anyway"):
                view = LedgerView(dataclasses.replace(status, updated=time.time()), desired=RunState.CANCELLED)
                process.replace(files.status, records.to_json(run_status.current(view)))

    def fit(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """Allocate resources for the desired number of trials, and return whether this is done.

        Here there is nothing to do, as `desire` has refused every change.
        """
        return True

    @_map_system_errors
    def remove(self, run: str, *, forget: bool) -> None:
        """Delete a run with `forget`.

        Without it there is nothing to do, because a controller that has ended holds no resources.
        """
        files = self._find(run)
        if not forget:
            return
        folder.allow_access(files.root)  # so that the lock of the controller can be read
        if process.active_controller(files) is not None:
            raise target.active_run_error(run)
        folder.discard(files)

    def _is_run(self, name: str) -> bool:
        """Whether a name is valid, and a run has it."""
        return not planning.check_name(name) and folder.is_run(RunPaths.of(self.home, name).root)

    def _find(self, run: str) -> RunPaths:
        """Return the paths of a run.

        Raises:
            RunNotFound: There is no such run.
        """
        with folder.explain_read_errors(self.home):
            if self._is_run(run):
                return RunPaths.of(self.home, run)
        raise target.unknown_run_error(self, run)

    def _submission_time(self, run: str) -> float:
        """Return the time of the submission; 0 for a damaged run."""
        try:
            return float(folder.load_submission(RunPaths.of(self.home, run))["submitted"])
        except (RunDamaged, RunNotFound):
            return 0.0  # a damaged run is still listed, as the oldest

    def _last_status(self, files: RunPaths) -> RunStatus:
        """Return the last status that was written.

        Raises:
            RunDamaged: It cannot be read.
        """
        try:
            status = records.from_json(RunStatus, files.status.read_bytes())
        except FileNotFoundError:
            return planning.pending_status(files.root.name, folder.load_job(files), self._submission_time(files.root.name))
        except (OSError, ValueError) as error:
            raise folder.damage_error(files, files.status, error, _REPAIR_HINT) from error
        invalid_field = records.mistyped_field(status)
        if invalid_field:
            raise folder.damage_error(files, files.status, f"has an invalid value for `{invalid_field}`", _REPAIR_HINT)
        return status

    def _is_attempt_active(self, run: str, trial: int, attempt: int) -> bool:
        """Whether the run is active and an attempt has not ended, so that its log may grow."""
        return self.is_active(run) and not results.has_ended(self._find(run).ledger, run, trial, attempt)

    def _attempt_number(self, run: str, trial: int, attempt: int | None, *, follow: bool) -> int:
        """Return the number of the attempt whose log is requested.

        Args:
            run: Name of the run.
            trial: Number of the trial.
            attempt: Requested attempt; None for the newest.
            follow: Whether the log is followed, so that the attempt may start later.

        Raises:
            InputError: The trial has not started, or does not have the attempt.
        """
        noun = self.job(run).noun
        attempts = [row.attempt for row in self.rows(run) if row.trial == trial]
        if not attempts:
            raise InputError(f"the run {run} has started no {noun} {trial}; `platform results {run}` shows the {noun}s")
        newest = max(attempts)
        if attempt is None:
            return newest
        if attempt > newest and not follow:
            raise InputError(f"{noun} {trial} of {run} has no attempt {attempt}; its newest is {newest}")
        return attempt


def _with_counts_of_ledger(files: RunPaths, job: Job, status: RunStatus) -> RunStatus:
    """Return the status of an inactive run with the counts and the best trial of its ledger."""
    try:
        ledger_rows = results.attempts(files.ledger, files.root.name, job, alive=False)
    except LedgerError as error:
        # Added to the reason instead of raised: one such run must not break the list of runs.
        text = errors.first_line(error)
        if text in status.reason:
            return status
        return dataclasses.replace(status, reason=f"{status.reason}; {text}".removeprefix("; "))
    return run_status.recounted(status, run_status.recount(job, ledger_rows))


def _log_pieces(file: Path, is_growing: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the bytes of a log in pieces, and new ones while it may grow. Wait for a file that does not exist yet."""

    def read(offset: int) -> Piece:
        """Return the piece at an offset, which is empty at the end of the file or without a file."""
        may_grow = is_growing()  # checked before reading, so that the last lines are not missed
        data = b""
        if file.exists():
            with file.open("rb") as handle:
                handle.seek(offset)
                data = handle.read(logs.PIECE)
        return Piece(data, next=offset + len(data), is_growing=may_grow)

    return logs.follow(read, _POLL)
