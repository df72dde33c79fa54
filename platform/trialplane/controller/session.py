"""One life of a controller: opens everything a study needs, runs the loop, and closes everything.

Turns every ending, errors included, into the run's last status and an exit code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.controller import loop, slots, stopping
from trialplane.controller.ledger import Ledger
from trialplane.controller.loop import Ending
from trialplane.controller.recorder import Recorder
from trialplane.controller.status import StatusBoard, write_status
from trialplane.spec.job import Job
from trialplane.wire import env, labels, paths
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, SlotConfig
from trialplane.wire.states import RunState

log = logging.getLogger(__name__)


def drive(folder: Path, stopped: list[int]) -> int:
    """Runs the study in `folder`; a signal's number in `stopped` stops it."""
    run = RunPaths(folder)
    job = Job.model_validate_json(run.job.read_text())
    session = Session(run, job, stopped)
    try:
        state = session.run()
    except errors.LedgerLocked as error:
        log.error("%s", error)
        return error.exit_code  # the status is the other controller's
    except errors.TrialplaneError as error:
        log.error("%s", error)
        resumable = isinstance(error, (errors.LedgerError, errors.SlotError)) and not isinstance(error, errors.LedgerCorrupt)
        session.show_last(RunState.PAUSED if resumable else RunState.FAILED, str(error))
        if isinstance(error, errors.EntrypointError) and session.has_begun:
            return errors.EXIT_RUN_FAILED  # it was no input that could have been refused before anything started
        return error.exit_code
    except Exception as error:
        log.exception("the controller failed")
        reason = f"the controller failed: {type(error).__name__}: {errors.first_line(error)}; see {run.controller_log}"
        session.show_last(RunState.PAUSED, reason)
        return errors.EXIT_PLATFORM
    return {
        RunState.SUCCEEDED: errors.EXIT_OK,
        RunState.CANCELLED: errors.EXIT_CANCELLED,
        RunState.PAUSED: errors.EXIT_INTERRUPTED,
    }.get(state, errors.EXIT_RUN_FAILED)


class Session:
    """Everything that one controller holds while it works on a study.

    Args:
        run: the run's files.
        job: the resolved job.
        stopped: numbers of the signals received so far.
    """

    def __init__(self, run: RunPaths, job: Job, stopped: list[int]) -> None:
        self._run = run
        self._job = job
        self._stopped = stopped
        self._ledger: Ledger | None = None
        self._base = RunStatus(
            run=run.root.name,
            job=job.name,
            state=RunState.PENDING,
            trials=job.trials,
            parallel=job.parallel,
            objectives=tuple(objective.metric for objective in job.objectives),
            created=_submitted(run),
            started=time.time(),
            updated=time.time(),
        )

    @property
    def has_begun(self) -> bool:
        """Whether any trial was ever started."""
        return self._ledger is not None and any(True for _ in self._ledger.attempts())

    def run(self) -> RunState:
        """Opens everything in order, runs the loop, and closes everything in the opposite order."""
        run, job = self._run, self._job
        uri = os.environ.get(env.MLFLOW_TRACKING_URI) or paths.mlflow_uri(run.root.parent.parent)
        with contextlib.ExitStack() as stack:
            board = StatusBoard(run)
            stack.callback(board.close)
            ledger = stack.enter_context(
                Ledger(
                    os.environ.get(env.LEDGER) or f"sqlite:///{run.ledger}",
                    job,
                    run.root.name,
                    run.code,
                    run.lock,
                    on_wait=lambda message: board.show(self._status(RunState.RUNNING, message), now=True),
                    give_up=lambda: bool(self._stopped),
                )
            )
            self._ledger = ledger
            board.publish()
            board.show(self._status(RunState.PENDING, "the slots are warming up"), now=True)
            shutil.rmtree(run.scratch, ignore_errors=True)  # of a controller that was killed
            recorder = Recorder(run, uri, spares=max(8, 2 * job.parallel))
            stack.callback(recorder.close, 5.0)
            recorder.study(_facts(run, job))
            caught = loop.catch_up(ledger, recorder)
            if caught:
                log.info("%d attempts are recorded that the last controller had no time for", caught)
            try:
                ending = self._work(ledger, recorder, board, uri)
            except errors.EntrypointError as error:
                recorder.study_ended(RunState.FAILED, errors.first_line(error))
                raise
            log.info("%s: %s", ending.state.value, ending.reason)
            recorder.study_ended(ending.state, ending.reason)
            board.show(self._status(RunState.RUNNING, "writing the last results to MLflow"), now=True)
            last = self._status(ending.state, ending.reason)
            if not self._recorded(recorder, ending):
                text = f"MLflow has not taken everything yet ({recorder.away or 'it is slow'}): "
                text += f"`platform resume {run.root.name}` writes the rest"
                log.warning("%s", text)
                last = dataclasses.replace(last, reason=f"{ending.reason}; {text}", unrecorded=True)
            board.show(last, now=True)
            return ending.state

    def show_last(self, state: RunState, reason: str) -> None:
        """Puts an error into the run's last status, with the counts as they are."""
        with contextlib.suppress(OSError):  # a full disk may be what the error is about
            write_status(self._run, self._status(state, reason))

    def _work(self, ledger: Ledger, recorder: Recorder, board: StatusBoard, uri: str) -> Ending:
        """Starts the slots, runs the loop, and ends the slots."""
        run, job = self._run, self._job
        with contextlib.ExitStack() as stack:
            if not self._stopped:
                try:
                    slots.connect(job.parallel, job.resources.gpus)
                except SystemExit:  # what Ray's own handler makes of SIGTERM while it starts
                    self._stopped.append(signal.SIGTERM)
                stack.callback(slots.disconnect)
                stopping.hear(self._stopped)
            wanted = self._wanted()
            if wanted is not None:
                return wanted
            config = SlotConfig(
                run=run.root.name,
                code=str(run.code),
                entrypoint=job.entrypoint,
                root=str(run.root),
                cache=str(paths.cache(run.root.parent.parent)),
                preload=job.preload,
                cpus=job.resources.cpus,
                gpus=job.resources.gpus,
                memory=job.resources.memory_bytes,
                env={env.MLFLOW_TRACKING_URI: uri, env.MLFLOW_EXPERIMENT_NAME: job.name},
            )
            pool = slots.SlotPool(config, min(job.parallel, job.trials))
            stack.callback(pool.close)
            return loop.Controller(run, ledger, pool, recorder, board, self._base, self._wanted).run()

    def _wanted(self) -> Ending | None:
        """How the user wants the run to end, once a signal has come."""
        if not self._stopped:
            return None
        if self._run.cancelled.exists():
            return Ending(RunState.CANCELLED, "cancelled by the user", kill=True)
        return Ending(RunState.PAUSED, f"stopped; `platform resume {self._run.root.name}` goes on", kill=True)

    def _recorded(self, recorder: Recorder, ending: Ending) -> bool:
        """Waits until MLflow has everything, or another signal comes; says whether it has."""
        signals = len(self._stopped)
        patience = 5.0 if ending.state in (RunState.PAUSED, RunState.CANCELLED) else 120.0
        return recorder.close(patience, stopped=lambda: len(self._stopped) > signals)

    def _status(self, state: RunState, reason: str) -> RunStatus:
        """The status outside of the loop: nothing runs."""
        counts = {} if self._ledger is None else self._ledger.counts.shown()
        best = None if self._ledger is None else self._ledger.best
        now = time.time()
        ended = None if state in (RunState.PENDING, RunState.RUNNING) else now
        return dataclasses.replace(
            self._base, **{**counts, "running": 0}, state=state, reason=reason, best=best, ended=ended, updated=now
        )


def _submitted(run: RunPaths) -> float:
    return float(json.loads(run.submission.read_text()).get("submitted", 0.0))


def _facts(run: RunPaths, job: Job) -> dict[str, Any]:
    """Names, parameters and tags of the study's MLflow run."""
    submission = json.loads(run.submission.read_text())
    return {
        "tags": {
            labels.JOB: job.name,
            labels.SEED: job.seed,
            labels.STATE: "RUNNING",
            labels.GIT_REVISION: submission.get("git_revision", ""),
            labels.CODE_HASH: submission.get("code_hash", ""),
            labels.SPEC_HASH: submission.get("spec_hash", ""),
            "mlflow.note.content": job.description,
        },
        "params": {
            "trials": job.trials,
            "parallel": job.parallel,
            "sampler": job.sampler.name,
            "pruner": job.pruner.name,
            "objectives": ", ".join(f"{o.direction} {o.metric}" for o in job.objectives),
        },
    }
