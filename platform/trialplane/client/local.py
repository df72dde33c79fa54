"""This machine as a target: a run is a folder below home, its controller a process of its own session.

A folder can be damaged or vanish at any moment. What that hinders is one run, and its error names the file.

Over 400 lines: the methods of a target, each short, over the same folders.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from trialplane import errors
from trialplane.client import changes as changing
from trialplane.client import ending, folder, process, results, tail
from trialplane.client.machine import Machine
from trialplane.client.target import HERE, Submitted
from trialplane.errors import Complaint, InputError, LedgerError, RunExists, RunNotFound, TargetError
from trialplane.plan import plan as planning
from trialplane.plan import saving
from trialplane.plan.plan import Plan
from trialplane.spec.jobs import Job
from trialplane.wire import attempts as reading
from trialplane.wire import paths, records, rows
from trialplane.wire.attempts import Attempt
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState

_EXIT_CODES = {
    RunState.SUCCEEDED: errors.EXIT_OK,
    RunState.FAILED: errors.EXIT_RUN_FAILED,
    RunState.CANCELLED: errors.EXIT_CANCELLED,
    RunState.PAUSED: errors.EXIT_INTERRUPTED,
}
_COUNTED = "Removing that file mends the run: its counts are in the ledger, only what it used of budget.time is lost."

M = TypeVar("M", bound=Callable[..., Any])


def _of_run(method: M) -> M:
    """A method about one run, whose folder answers for whatever the system refuses meanwhile."""

    @functools.wraps(method)
    def told(self: LocalTarget, run: str, *args: Any, **options: Any) -> Any:
        try:
            return method(self, run, *args, **options)
        except OSError as error:
            files = RunPaths.of(self.home, run)
            raise folder.damaged(files, Path(error.filename or files.root), error) from error

    return cast(M, told)


class LocalTarget:
    """Runs on this machine; see `target.Target` for what each method promises.

    Args:
        home: the folder of everything, TRIALPLANE_HOME when None.
    """

    name = "local"
    remote = False
    poll = 0.25  # the controller writes its status twice a second
    flags = "--local"
    place = HERE

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or paths.home()
        self._started: dict[str, int] = {}  # pids of the controllers that this object started

    def check(self, job: Job | None) -> tuple[list[Complaint], list[str]]:
        """See `Target`."""
        return Machine.here(self.home).check(self.home, job)

    def describe(self, plan: Plan) -> dict[str, Any]:
        """See `Target`."""
        run = RunPaths.of(self.home, plan.run)
        return {
            "run": plan.run,
            "target": self.name,
            "writes": str(run.root),
            "starts": f"python -m trialplane.controller --run-dir {run.root}",
            "code": {"folder": plan.provenance.job_folder, "sha256": plan.pack.sha256, "files": list(plan.pack.files)},
            "job": plan.job.model_dump(mode="json"),
        }

    def submit(self, plan: Plan) -> Submitted:
        """See `Target`."""
        run = RunPaths.of(self.home, plan.run)
        became = Submitted.NEW
        if folder.is_run(run.root):
            known = self._join(run, plan)
            if known is not None:
                return known
            became = Submitted.REPLACED
            folder.discard(run)
        folder.create(run, plan)
        self._started[plan.run] = process.start(run)
        return became

    def _join(self, run: RunPaths, plan: Plan) -> Submitted | None:
        """Goes on with the run of that name, or None when it never started a trial and may be replaced."""
        name = plan.run
        active = process.living(run) is not None
        if not active and not self._has_started(run):
            return None
        lines = folder.differences(run, plan)
        if lines:
            raise RunExists(changing.refusal(name, lines))
        if active:
            return Submitted.RUNNING
        state = self.status(name).state
        if state is RunState.SUCCEEDED:
            return Submitted.FINISHED
        if state in (RunState.FAILED, RunState.CANCELLED):
            word = "failed" if state is RunState.FAILED else "was cancelled"
            raise RunExists(f"the run {name} {word}; `platform resume {name}` goes on with it, {changing.other_name(name)}")
        self.resume(name, {}, ())
        return Submitted.RESUMED

    def runs(self) -> list[str]:
        """See `Target`."""
        found = paths.runs(self.home)
        with folder.seen(self.home):
            if not found.is_dir():
                return []
            names = [path.name for path in found.iterdir() if not planning.check_name(path.name) and folder.is_run(path)]
        return sorted(names, key=lambda name: (self._submitted(name), name), reverse=True)

    @_of_run
    def job(self, run: str) -> Job:
        """See `Target`."""
        return folder.load_job(self._find(run))

    @_of_run
    def status(self, run: str) -> RunStatus:
        """See `Target`."""
        files = self._find(run)
        alive = process.living(files) is not None
        status = self._recorded(files)  # read after the look, so that one that has just ended has said so
        if alive:
            return status
        if files.cancelled.exists() and not status.state.is_ended:  # its controller had said its last word, or was killed
            status = _cancelled(status)
        elif status.state in (RunState.PENDING, RunState.RUNNING):
            reason = f"the controller is not running (killed?); `platform resume {run}` goes on"
            status = dataclasses.replace(
                status, state=RunState.PAUSED, reason=reason, eta=None, rate=None, running=0, slots_ready=0, ended=None
            )
        job = folder.load_job(files)
        # A controller that failed told its last counts before; one that succeeded with all trials told all.
        whole = status.state is RunState.SUCCEEDED and status.ended_trials == status.trials
        if not whole and files.ledger.exists():
            status = self._recounted(files, job, status)
        if not folder.is_run(files.root):  # deleted while it was counted: counts of what was left would be wrong
            self._find(run)
        return status

    def _recounted(self, files: RunPaths, job: Job, status: RunStatus) -> RunStatus:
        """A status with the counts and the best of the ledger."""
        try:
            found = results.attempts(files.ledger, files.root.name, job, alive=False)
        except LedgerError as error:  # the rest of the status may say why; and one such run must not spoil the list
            text = errors.first_line(error)
            reason = status.reason if text in status.reason else f"{status.reason}; {text}".removeprefix("; ")
            return dataclasses.replace(status, reason=reason)
        return dataclasses.replace(status, **results.counts(found), best=rows.best(job, rows.newest(found)))

    @_of_run
    def is_active(self, run: str) -> bool:
        """See `Target`."""
        return process.living(self._find(run)) is not None

    @_of_run
    def look(self, run: str) -> tuple[RunStatus, bool]:
        """See `Target`."""
        active = self.is_active(run)  # asked first, so that the status of one that has ended is the last word
        return self.status(run), active

    @_of_run
    def missing_checkpoint(self, run: str, job: Job) -> str:
        """See `Target`."""
        files = self._find(run)
        old, new = folder.load_job(files).checkpoints.url, job.checkpoints.url
        if old != new:
            return saving.elsewhere(run, old or str(files.checkpoints), new or f"a folder of {paths.runs(self.home)}", old)
        saved = Path(paths.trial_checkpoints(str(files.checkpoints), run, 0))
        return "" if new or paths.is_saved(saved) else f"{saving.none_of(run)} (in {saved})"

    @_of_run
    def attempts(self, run: str) -> list[TrialRow]:
        """See `Target`."""
        files = self._find(run)
        if not files.ledger.exists() and self._recorded(files).ended_trials:
            raise TargetError(f"the ledger of {run} is not in {files.root}; its trials are in MLflow: `platform ui`")
        return results.attempts(files.ledger, run, folder.load_job(files), alive=self.is_active(run))

    @_of_run
    def ends(self, run: str, after: int) -> tuple[int, list[TrialRow]]:
        """See `Target`."""
        files = self._find(run)
        place, found = results.ends(files.ledger, run, after)
        if not found:
            return after, []
        job = folder.load_job(files)
        return place, [reading.row(job, attempt, True) for attempt in found]

    @_of_run
    def whole(self, run: str, after: int) -> tuple[list[Attempt], bool]:
        """See `Target`."""
        files = self._find(run)
        alive = self.is_active(run)
        found = results.whole(files.ledger, run, alive, after)
        return found, alive or self.is_active(run)  # one that came or went meanwhile counts: what runs may run still

    @_of_run
    def log(
        self, run: str, trial: int | None, attempt: int | None, follow: bool, worker: int | None = None
    ) -> Iterator[str]:
        """See `Target`."""
        files = self._find(run)
        if trial is None:
            file = files.controller_log
            growing = lambda: self.is_active(run)  # noqa: E731
        else:
            attempt = self._newest_attempt(run, trial) if attempt is None else attempt
            file = files.trial_log(trial, attempt, worker)
            growing = lambda: self._is_running(run, trial, attempt)  # noqa: E731
        if follow:
            if file.exists():
                process.check_file(file)
            return tail.follow(file, growing)
        if not file.exists():
            shows = f"`platform results {run}` shows the {self.job(run).noun}s"
            if worker is not None:
                shows = f"worker {worker} has not worked in iteration {trial}; `platform logs {run}` says what each did"
            raise InputError(f"there is no log {file} (yet); {shows}")
        process.check_file(file)
        return tail.lines(file)

    def submitter_log(self, run: str, follow: bool) -> Iterator[str]:
        """See `Target`."""
        self._find(run)
        raise InputError(f"a run on this machine has no submitter; `platform logs {run}` is what its controller said")

    def log_place(self, run: str) -> str:
        """See `Target`."""
        return str(self._find(run).root)

    @_of_run
    def stop(self, run: str, *, now: bool = False) -> None:
        """See `Target`."""
        controller = process.living(self._find(run))
        if controller is not None:
            process.signal_stop(run, controller, now=now)

    @_of_run
    def cancel(self, run: str, *, now: bool = False) -> None:
        """See `Target`."""
        files = self._find(run)
        status = self.status(run)
        if status.state.is_ended:
            raise InputError(f"the run {run} has ended already ({status.state}); nothing was changed")
        controller = process.living(files)
        if controller is not None:
            process.check_reach(run, controller)  # before the mark, which would make a cancel of the next pause
        with folder.written(files.root, "nothing was changed"):
            files.cancelled.touch()
        if controller is not None:
            process.signal_stop(run, controller, now=now)
        if controller is None or now:
            with folder.written(files.root, "the run counts as cancelled all the same"):
                process.replace(files.status, records.to_json(_cancelled(status)))

    def release(self, run: str) -> None:
        """See `Target`: a controller that has ended holds nothing."""
        self._find(run)

    def scale(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """See `Target`: Ray gives a laptop's run its room when it starts."""
        active = self.is_active(run)
        goes_on = f"`platform resume {run} {self.job(run).width_option} {parallel}` goes on with so many at a time"
        raise InputError(f"first `platform pause {run}`: {goes_on}" if active else f"nobody works on {run}; {goes_on}")

    def scaled(self, run: str, parallel: int, *, now: bool = False) -> bool:
        """See `Target`."""
        return self.scale(run, parallel, now=now)

    @_of_run
    def delete(self, run: str) -> None:
        """See `Target`."""
        files = self._find(run)
        folder.open_up(files)
        if process.living(files) is not None:
            raise InputError(f"the run {run} is active; `platform cancel {run}` ends it first")
        folder.discard(files)

    @_of_run
    def resume(self, run: str, changes: Mapping[str, Any], sets: Sequence[str]) -> None:
        """See `Target`."""
        files = self._find(run)
        if process.living(files) is not None:
            raise InputError(f"the run {run} is running; `platform status {run}` shows it, `platform cancel {run}` ends it")
        found, _ = self.check(None)
        if found:
            raise errors.SpecError(found)
        status = self.status(run)
        old = folder.load_job(files)
        folder.load_submission(files)  # the controller needs it
        ledger = results.attempts(files.ledger, run, old, alive=False)
        job = changing.changed(old, changes, sets, len({row.trial for row in ledger}))
        found, _ = self.check(job)
        if found:
            raise errors.SpecError(found)
        why = "" if status.unrecorded else ending.nothing_to_do(status, old, job, " --local")
        if why:
            raise InputError(why)
        if job != old:
            folder.keep(files, job)
        with folder.written(files.root):
            files.cancelled.unlink(missing_ok=True)
        again = dataclasses.replace(
            status,
            state=RunState.PENDING,
            reason="the controller is starting",
            trials=job.trials,
            parallel=job.width,
            ended=None,
            updated=time.time(),
        )
        with folder.written(files.root):
            process.replace(files.status, records.to_json(again))
        self._started[run] = process.start(files)

    def exit_code(self, run: str) -> int:
        """See `Target`."""
        pid = self._started.get(run)
        code = None if pid is None else process.exit_code(pid)
        if code in (errors.EXIT_BAD_INPUT, errors.EXIT_PLATFORM):
            return code
        state = self.status(run).state
        if state is RunState.PAUSED and code is not None and code > 0 and code != errors.EXIT_INTERRUPTED:
            return errors.EXIT_PLATFORM  # nobody stopped it: it broke
        return _EXIT_CODES.get(state, errors.EXIT_PLATFORM)

    def _find(self, run: str) -> RunPaths:
        files = RunPaths.of(self.home, run)
        with folder.seen(self.home):
            if not planning.check_name(run) and folder.is_run(files.root):
                return files
        known = self.runs()
        hint = errors.nearest(run, known) if known else "there are none yet; `platform submit hpo NAME --local` starts one"
        raise RunNotFound(f"there is no run {run!r} in {paths.runs(self.home)}; {hint or '`platform list` shows all'}")

    def _has_started(self, files: RunPaths) -> bool:
        """Whether a trial was ever started, also by a controller whose ledger is elsewhere."""
        status = self._recorded(files)
        return bool(status.ended_trials or status.running or results.has_attempts(files.ledger, files.root.name))

    def _submitted(self, run: str) -> float:
        try:
            return float(folder.load_submission(RunPaths.of(self.home, run))["submitted"])
        except (errors.RunDamaged, RunNotFound):
            return 0.0  # a damaged run is still listed, as the oldest

    def _recorded(self, files: RunPaths) -> RunStatus:
        try:
            status = records.from_json(RunStatus, process.read(files.status))
        except FileNotFoundError:
            return planning.pending(files.root.name, folder.load_job(files), self._submitted(files.root.name))
        except (OSError, ValueError) as error:
            raise folder.damaged(files, files.status, error, _COUNTED) from error
        wrong = records.misfit(status)
        if wrong:
            raise folder.damaged(files, files.status, f"has an invalid value for `{wrong}`", _COUNTED)
        return status

    def _newest_attempt(self, run: str, trial: int) -> int:
        mine = [row.attempt for row in self.attempts(run) if row.trial == trial]
        if not mine:
            what = self.job(run).noun
            raise InputError(f"the run {run} has started no {what} {trial}; `platform results {run}` shows the {what}s")
        return max(mine)

    def _is_running(self, run: str, trial: int, attempt: int) -> bool:
        files = self._find(run)
        return self.is_active(run) and not results.has_ended(files.ledger, run, trial, attempt)


def _cancelled(status: RunStatus) -> RunStatus:
    """The status of a run that was cancelled and that nobody works on, whatever was said last."""
    return dataclasses.replace(
        status,
        state=RunState.CANCELLED,
        reason="cancelled by the user",
        running=0,
        slots_ready=0,
        eta=None,
        rate=None,
        ended=status.ended or time.time(),
    )
