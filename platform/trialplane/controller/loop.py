"""The controller's loop: ask, run, tell, record, until every trial has ended or the budget has.

One thread. Slots answer with events. The loop waits for the database only while it is away, and for MLflow only for the id
of a trial's run, as long as `_id_patience` says.

Over 400 lines: what ends a run, its user, its budgets and its trials, is weighed in one place, where the events come in.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Sequence

from trialplane import errors
from trialplane.controller import arrival
from trialplane.controller.counts import Alike
from trialplane.controller.crews import CrewPool
from trialplane.controller.gangs import GangPool
from trialplane.controller.ledger import Ledger
from trialplane.controller.progress import Progress
from trialplane.controller.recorder import ID_WAIT, Recorder
from trialplane.controller.slot_events import SlotEvent, SlotReady, SlotTrial
from trialplane.controller.slots import SlotPool
from trialplane.controller.status import StatusBoard
from trialplane.spec import jobs
from trialplane.wire import env
from trialplane.wire.messages import LogGrown
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, RunState, TrialState

log = logging.getLogger(__name__)

WAIT = 0.25  # seconds; how soon the loop sees a signal when no slot says anything
_RANKS = {RunState.PAUSED: 2, RunState.CANCELLED: 3}  # of the user's endings


@dataclasses.dataclass
class Ending:
    """How a run is to end.

    Attributes:
        state: the run's last state.
        reason: in words.
        kill: whether running trials are ended at once, or left to finish. Trials that save themselves get the time to do so
            when the user ends them.
        hurry: whether they do not even get that.
    """

    state: RunState
    reason: str
    kill: bool
    hurry: bool = False

    @property
    def rank(self) -> int:
        """Which ending counts: CANCELLED before PAUSED, that before a budget's, and there one that ends what runs."""
        return _RANKS.get(self.state, int(self.kill))


class Controller:
    """Drives one study to its end.

    Attributes:
        worked: seconds since its first slot was ready, with those of former controllers; see `RunStatus`.

    Args:
        run: the run's files.
        ledger: the study.
        pool: the slots.
        recorder: MLflow's.
        board: shows the status.
        base: the status's unchanging part.
        wanted: says how the user wants the run to end, or None; asked all the time.
        parallel: says how many slots the user wants; asked all the time. None keeps the pool as it is.
        keeps_mlflow: whether trials log by themselves into stores of their own, also while MLflow answers.
        progress: how far the run is; `base.progress` when left out.
    """

    def __init__(
        self,
        run: RunPaths,
        ledger: Ledger,
        pool: SlotPool | GangPool | CrewPool,
        recorder: Recorder,
        board: StatusBoard,
        base: RunStatus,
        wanted: Callable[[], Ending | None] = lambda: None,
        *,
        parallel: Callable[[], int] | None = None,
        keeps_mlflow: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._run = run
        self._job = ledger.job
        self._ledger = ledger
        self._pool = pool
        self._recorder = recorder
        self._board = board
        self._base = base
        self._wanted = wanted
        self._parallel = parallel
        self._keeps_mlflow = keeps_mlflow
        self._progress = progress or Progress(base.progress)
        self._follows = isinstance(self._job, jobs.Training)  # the reports of a search's trials are no progress of the run
        self._crew = pool if isinstance(pool, CrewPool) else None
        self._is_dry = False  # nothing is left to start, unless a running trial is tried again
        self._ending: Ending | None = None
        self._hurry = False
        self._idle: set[int] = set()
        self._stopping: set[int] = set()  # numbers of attempts that the user has stopped
        self.worked = base.worked
        self._since: float | None = None  # up to when `worked` counts, by the monotonic clock; None until a slot is ready
        self._ended_before = ledger.counts.ended
        self._alike = Alike(self._job.budget.failed_alike, bool(ledger.counts.complete or ledger.counts.pruned))
        self._best_trial = None if ledger.best is None else ledger.best.trial
        self._durations: collections.deque[float] = collections.deque(maxlen=20)  # seconds, of the last trials
        self._logs_itself = False
        self._warnings: dict[str, None] = {}  # those told already, in their order

    def _stop(self, ending: Ending) -> None:
        """Ends the run as soon as the loop comes by: of several endings the first of the highest rank, in its newest words.

        Trials that are left to finish may yet make a success of what was none.
        """
        now = self._ending
        if (
            now is None
            or ending.rank > now.rank
            or (ending.rank == now.rank and (ending.state == now.state or not now.kill))
        ):
            self._ending = ending

    def run(self) -> Ending:
        """Runs until the end and says how it ended; running trials have been told by then."""
        while True:
            self._check_budget()
            if self._ending is None:
                self._fill()
            elif self._ending.kill:
                self._end_all(self._ending)  # each time: a trial that is just being started hears nothing yet
            if self._parallel is not None:
                self._fit(self._parallel())
            if not self._ledger.counts.running and (self._ending or self._nothing_left()):
                return self._end()
            for said in self._pool.events(WAIT):
                self._hear(said)
            if complaint := self._ledger.pruning.complaint:
                self._warn(complaint)
            self._recorder.tick()
            self.show(RunState.RUNNING, "what runs saves itself and ends" if self._stopping else self._pool.trouble)

    def show(self, state: RunState, reason: str = "", *, now: bool = False) -> None:
        """Puts the run's status on the board."""
        self._board.show(self._status(state, reason), now=now)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What somebody should know of the run, in the order in which it was found."""
        return tuple(self._warnings)

    def _warn(self, text: str) -> None:
        """Has somebody told, once."""
        if text not in self._warnings:
            self._warnings[text] = None
            log.warning("%s", text)

    def _fit(self, parallel: int) -> None:
        """Has as many slots as the user wants and trials can use.

        Towards the end of a study that are as many as run: a trial that is tried again finds the slot it had, or its
        successor. The others' GPUs are free for somebody else.
        """
        self._base = dataclasses.replace(self._base, parallel=parallel)
        left = 0 if self._is_dry or self._ending else self._ledger.unstarted
        useful = parallel if self._crew else left + self._ledger.counts.running  # an iteration has work for all workers
        size = max(1, min(parallel, useful))
        if size != self._pool.size:
            log.info("%d slots instead of %d", size, self._pool.size)
            self._idle -= self._pool.resize(size)

    def _fill(self) -> None:
        """Starts a trial in every idle slot while there are trials to start."""
        while self._idle:
            request = self._ledger.ask()
            if request is None:
                self._is_dry = True
                return
            slot = self._idle.pop()
            run_id = self._recorder.run_id(self._id_patience(), self._ledger.unstarted + 1)
            self._recorder.started(request, run_id)
            self._pool.start(slot, dataclasses.replace(request, env=self._trial_env(request, run_id)))

    def _id_patience(self) -> float:
        """Seconds worth waiting for the id of a trial's MLflow run before the trial starts.

        A job that has imported MLflow, or a trial of which has logged, will use it. Another may still import it while it
        runs, and is well served by a store of its own; a wait may then cost at most a fiftieth of a trial.
        """
        if self._logs_itself or not self._durations:
            return ID_WAIT
        return 0.02 * statistics.median(self._durations)

    def _trial_env(self, request: TrialRequest, run_id: str | None) -> dict[str, str]:
        """Where the trial's own `mlflow.log_*` calls go."""
        if run_id is not None and not self._keeps_mlflow:
            return {env.MLFLOW_RUN_ID: run_id}
        # MLflow is away or slow: the trial logs into a store of its own, which the recorder takes over later. A slot that
        # shares no folder with us puts its own in this one's place.
        return env.own_mlflow(self._run.trial_store(request.number))

    def _hear(self, said: SlotEvent) -> None:
        if isinstance(said, SlotReady):
            self._since = self._since or time.monotonic()
            self._idle.add(said.slot)
            self._logs_itself = self._logs_itself or said.mlflow
            who = "the learner" if self._crew else f"slot {said.slot}"
            log.info("%s is warm after %.1f s of imports", who, said.seconds)
            if said.unclean:
                log.warning("slot %d spawns its trials, which takes longer: %s", said.slot, "; ".join(said.unclean))
            return
        if not isinstance(said, SlotTrial):
            return  # results on their way: a crew sees to them
        prune = False
        for message in said.messages:
            if isinstance(message, LogGrown):
                arrival.add_to_log(self._run, said.request, message.data)
        self._recorder.reported(said.reports)
        for report in said.reports:
            if report.remark:
                self._warn(report.remark)
            if self._follows:  # Optuna copies all of a trial's reports for each new one, and a training may have millions
                self._progress.reported(report)
            elif not self._crew:  # a learner's reports are for MLflow alone
                prune = self._ledger.report(report)  # the newest one decides
        if said.outcome is None:
            self._pool.go_on(said.slot, prune)
        else:
            self._tell(said, said.outcome)

    def _tell(self, said: SlotTrial, outcome: TrialOutcome) -> None:
        request = next((r for r in self._ledger.running() if r.number == outcome.number), None)
        if request is None:
            log.warning("slot %d came with a late result of attempt %d, which is ignored", said.slot, outcome.number)
            return
        arrays = None
        if said.arrays is not None:
            arrays = self._run.packed(outcome.number)
            arrival.arrays_to_file(said.arrays, arrays)
        if said.store is not None:
            arrival.unpack_store(self._run, outcome.number, said.store)
        self._logs_itself = self._logs_itself or self._run.trial_store(outcome.number).exists()
        # In the ledger, so that a controller without this one's disk finds what MLflow has of this attempt.
        step, run_id = self._recorder.last_step(outcome.number), said.request.env.get(env.MLFLOW_RUN_ID, "")
        told = self._ledger.tell(dataclasses.replace(self._as_stopped(outcome), step=step, mlflow=run_id))
        assert told is not None
        self._is_dry = False
        self._recorder.ended(request, told, arrays)
        self._alike.ended(request, told)
        self._durations.append(told.ended - told.started)
        if not said.gone:  # else there is a new one soon, which says when it is warm
            self._idle.add(said.slot)
        self._log_outcome(request, told.state, told.failure, told.message, told.retried)
        best = self._ledger.best
        if best is not None and best.trial != self._best_trial:
            self._best_trial = best.trial
            self._recorder.best(self._job.objectives[0].metric, best.values[0], best.trial, self._ledger.counts.ended)

    def _log_outcome(
        self, request: TrialRequest, state: TrialState, failure: FailureClass | None, message: str, retried: bool
    ) -> None:
        what = "trial" if self._crew is None else "iteration"
        name = f"{what} {request.trial}" + (f" (attempt {request.attempt})" if request.attempt > 1 else "")
        if failure is None:
            log.info("%s: %s%s", name, state.value, f"; {message}" if message else "")
        else:
            log.warning("%s: %s: %s%s", name, failure.value, message, "; it is tried again" if retried else "")

    def _check_budget(self) -> None:
        """Ends the run when the user wants it, or when one of its budgets is used up."""
        if self._since is not None:
            before, self._since = self._since, time.monotonic()
            self.worked += self._since - before
        wanted = self._wanted()
        if wanted is not None:
            self._stop(wanted)
            self._hurry = self._hurry or wanted.hurry  # whatever the ending is called
        budget, counts = self._job.budget, self._ledger.counts
        asked = f"{counts.ended} of {self._job.trials} trials"
        if budget.max_failed is not None and counts.counted_failures > budget.max_failed:
            classes = ", ".join(f"{count} {name}" for name, count in counts.failures.most_common())
            self._stop(
                Ending(
                    RunState.FAILED,
                    f"{counts.counted_failures} trials failed ({classes}), more than budget.max_failed = "
                    f"{budget.max_failed}, after {asked}",
                    kill=True,
                )
            )
        if not (self._follows or self._crew) and (alike := self._alike.found(self._ledger.running())):
            self._stop(self._failed_alike(alike))
        if self._crew is not None and counts.failed:  # the next iteration needs the weights of this one
            self._stop(self._failed_iteration())
        if budget.time is not None and self.worked > budget.time:
            text = f"the time budget of {budget.time:g} s is used, after {asked}"
            self._stop(Ending(RunState.SUCCEEDED if counts.complete else RunState.FAILED, text, kill=False))
        best = self._ledger.best
        if budget.target is not None and best is not None:
            maximize = self._job.objectives[0].direction == "maximize"
            if best.values[0] >= budget.target if maximize else best.values[0] <= budget.target:
                text = f"trial {best.trial} reached the target {budget.target:g} with {best.values[0]:g}, after {asked}"
                self._stop(Ending(RunState.SUCCEEDED, text, kill=True))

    def _end_all(self, ending: Ending) -> None:
        """Ends the running trials: those that the user stops and that save themselves in their own time."""
        by_user = ending.state in (RunState.PAUSED, RunState.CANCELLED)
        for slot, request in self._pool.running().items():
            if by_user and self._job.keeps_checkpoints and not self._hurry:
                self._stopping.add(request.number)
                self._pool.stop(slot, f"the user {'paused' if ending.state is RunState.PAUSED else 'cancelled'} the run")
            else:
                self._pool.kill(slot, FailureClass.STOPPED, f"stopped: {ending.reason}")

    def _as_stopped(self, outcome: TrialOutcome) -> TrialOutcome:
        """The outcome of a trial that the user has stopped: it uses up no retry, whatever became of its process."""
        if outcome.number not in self._stopping:
            return outcome
        self._stopping.discard(outcome.number)
        if outcome.failure not in (FailureClass.LOST, FailureClass.CRASHED):
            return outcome  # it ended by itself, in the time it got
        return dataclasses.replace(outcome, failure=FailureClass.STOPPED)

    def _end(self) -> Ending:
        """How the run ended, now that nothing runs."""
        if self._ending is None or (self._ending.state is RunState.PAUSED and self._nothing_left()):
            return self._finished()  # also when the last trial used the time it got to the end
        return self._ending

    def _nothing_left(self) -> bool:
        counts = self._ledger.counts
        return counts.ended >= self._job.trials or (self._ledger.exhausted and not counts.running)

    def _finished(self) -> Ending:
        counts = self._ledger.counts
        if self._follows:
            return self._trained()
        if not counts.complete:
            classes = ", ".join(f"{count} {name}" for name, count in counts.failures.most_common())
            return Ending(RunState.FAILED, f"none of {counts.ended} trials completed ({classes or 'all pruned'})", False)
        if self._crew is not None:
            return Ending(RunState.SUCCEEDED, f"all {errors.counted(counts.ended, 'iteration')} ended", False)
        if counts.ended < self._job.trials:
            return Ending(RunState.SUCCEEDED, f"every point of the space was tried, in {counts.ended} trials", False)
        return Ending(RunState.SUCCEEDED, f"all {counts.ended} trials ended", False)

    def _trained(self) -> Ending:
        """How a training ended."""
        row = self._ledger.newest[0]
        if row.failure is None:
            return Ending(RunState.SUCCEEDED, "; ".join(filter(None, ("the training ended", row.message))), False)
        tried = f"at attempt {row.attempt} " if row.attempt > 1 else ""
        return Ending(RunState.FAILED, f"the training failed {tried}({row.failure}): {row.message}", False)

    def _failed_iteration(self) -> Ending:
        """How a collection ended of which an iteration has failed for good."""
        row = next(row for row in self._ledger.newest.values() if row.failure is not None)
        tried = f" at attempt {row.attempt}" if row.attempt > 1 else ""
        text = f"iteration {row.trial} failed{tried} ({row.failure}): {row.message}"
        return Ending(RunState.FAILED, f"{text}; `platform resume {self._ledger.run}` tries it again", kill=True)

    def _failed_alike(self, requests: Sequence[TrialRequest]) -> Ending:
        """How a study ended of which trials failed alike and none ended well."""
        message = self._ledger.newest[requests[-1].trial].message
        many = f"{len(requests)} trials in a row failed in the same way" if len(requests) > 1 else "a trial failed"
        log = f"`platform logs {self._ledger.run} {requests[-1].trial}` shows more"
        return Ending(
            RunState.FAILED,
            f"{many} and none has succeeded, so the study was stopped: {message}; {log}; "
            f"budget.failed_alike ({self._job.budget.failed_alike}) sets how many, null turns the check off",
            kill=True,
        )

    def _status(self, state: RunState, reason: str) -> RunStatus:
        counts, now = self._ledger.counts, time.time()
        done, seconds = counts.ended - self._ended_before, self.worked - self._base.worked
        rate = done / seconds if done and seconds > 0 else None
        left: float = self._job.trials - counts.ended
        if self._crew is not None:
            self._progress.now = progress = self._crew.progress
            left -= progress.done if counts.running else 0.0
        eta = self._progress.eta(now) if self._follows else left / rate if rate else None
        return dataclasses.replace(
            self._base,
            state=state,
            reason=reason,
            **counts.shown(),
            slots_ready=self._pool.ready,
            nodes=self._pool.nodes if self._parallel is not None else (),
            best=self._ledger.best,
            rate=rate,
            eta=eta if state is RunState.RUNNING else None,
            worked=self.worked,
            progress=self._progress.now,
            ended=now if state is not RunState.RUNNING else None,
            updated=now,
            recorder=self._recorder.trouble,
            warnings=self.warnings,
        )


def catch_up(ledger: Ledger, recorder: Recorder) -> int:
    """Adds to the recorder's spool what the ledger holds and the spool lacks, after a crash between the two.

    Returns:
        How many attempts were caught up.
    """
    count = 0
    for request, outcome in ledger.attempts():
        missing = False
        if not recorder.has("started", request.number):
            recorder.started(request, (outcome.mlflow or None) if outcome is not None else None)
            missing = True
        if outcome is not None and not recorder.has("ended", request.number):
            recorder.ended(request, outcome)
            missing = True
        count += missing
    return count
