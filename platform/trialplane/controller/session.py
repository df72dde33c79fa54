"""One life of a controller: opens everything a study needs, runs the loop, and closes everything.

Turns every ending, errors included, into the run's last status and an exit code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.controller import loop, slots
from trialplane.controller.ledger import Ledger
from trialplane.controller.recorder import Recorder
from trialplane.controller.status import StatusBoard, write_status
from trialplane.spec.job import Job
from trialplane.wire import env, labels, paths, records
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, SlotConfig
from trialplane.wire.states import RunState

log = logging.getLogger(__name__)


def drive(folder: Path, stopped: list[int]) -> int:
    """Runs the study in `folder`; a signal's number in `stopped` stops it."""
    run = RunPaths(folder)
    job = Job.model_validate_json(run.job.read_text())
    base = RunStatus(
        run=run.root.name,
        job=job.name,
        state=RunState.PENDING,
        trials=job.trials,
        parallel=job.parallel,
        objectives=tuple(objective.metric for objective in job.objectives),
        created=_created(run),
        started=time.time(),
        updated=time.time(),
    )
    try:
        with contextlib.ExitStack() as stack:
            ending = _drive(run, job, base, stopped, stack)
    except errors.LedgerLocked as error:
        log.error("%s", error)
        return error.exit_code  # the status is the other controller's
    except errors.TrialplaneError as error:
        log.error("%s", error)
        resumable = isinstance(error, (errors.LedgerError, errors.SlotError)) and not isinstance(error, errors.LedgerCorrupt)
        state = RunState.PAUSED if resumable else RunState.FAILED
        _show_failure(run, base, state, str(error))
        return error.exit_code
    except Exception as error:
        log.exception("the controller failed")
        reason = f"the controller failed: {type(error).__name__}: {error}; see {run.controller_log}"
        _show_failure(run, base, RunState.PAUSED, reason)
        return errors.EXIT_PLATFORM
    return {
        RunState.SUCCEEDED: errors.EXIT_OK,
        RunState.CANCELLED: errors.EXIT_CANCELLED,
        RunState.PAUSED: errors.EXIT_INTERRUPTED,
    }.get(ending, errors.EXIT_RUN_FAILED)


def _drive(run: RunPaths, job: Job, base: RunStatus, stopped: list[int], stack: contextlib.ExitStack) -> RunState:
    """Opens everything in order, runs the loop, and closes everything in the opposite order."""
    home = run.root.parent.parent
    waits: list[str] = [""]
    ledger = stack.enter_context(
        Ledger(
            os.environ.get(env.LEDGER) or f"sqlite:///{run.ledger}",
            job,
            run.root.name,
            run.code,
            run.lock,
            on_wait=lambda message: waits.__setitem__(0, message),
        )
    )
    board = StatusBoard(run)
    stack.callback(board.close)
    board.show(dataclasses.replace(base, **_counts(ledger), reason="the slots are warming up"), now=True)
    uri = os.environ.get(env.MLFLOW_TRACKING_URI) or paths.mlflow_uri(home)
    recorder = Recorder(run, uri, spares=max(8, 2 * job.parallel))
    recorder.study(_facts(run, job))
    caught = loop.catch_up(ledger, recorder)
    if caught:
        log.info("%d attempts are recorded that the last controller had no time for", caught)
    slots.connect(job.parallel, job.resources.cpus, job.resources.gpus)
    stack.callback(slots.disconnect)
    pool = slots.SlotPool(
        SlotConfig(
            run=run.root.name,
            code=str(run.code),
            entrypoint=job.entrypoint,
            root=str(run.root),
            cache=str(paths.cache(home)),
            preload=job.preload,
            cpus=job.resources.cpus,
            gpus=job.resources.gpus,
            memory=job.resources.memory_bytes,
            env={env.MLFLOW_TRACKING_URI: uri, env.MLFLOW_EXPERIMENT_NAME: job.name},
        ),
        min(job.parallel, job.trials),
    )
    stack.callback(pool.close)
    controller = loop.Controller(run, ledger, pool, recorder, board, base)
    _on_signals(controller, run, stopped)
    try:
        ending = controller.run()
    except errors.EntrypointError:
        recorder.study_ended(RunState.FAILED, "the job's code does not import")
        recorder.close(5)
        raise
    log.info("%s: %s", ending.state.value, ending.reason)
    recorder.study_ended(ending.state, ending.reason)
    patience = 5.0 if ending.state in (RunState.PAUSED, RunState.CANCELLED) else 120.0
    controller.show(RunState.RUNNING, "writing the last results to MLflow", now=True)
    reason = ending.reason
    if not recorder.close(patience):
        reason += f"; MLflow has not taken everything yet ({recorder.away or 'it is slow'}): "
        reason += f"`platform resume {run.root.name}` writes the rest"
        log.warning("%s", reason)
    controller.show(ending.state, reason, now=True)
    return ending.state


def _show_failure(run: RunPaths, base: RunStatus, state: RunState, reason: str) -> None:
    """Puts an error into the run's last status."""
    before = records.from_json(RunStatus, run.status.read_text()) if run.status.exists() else base
    with contextlib.suppress(OSError):  # a full disk may be what the error is about
        write_status(run, dataclasses.replace(before, state=state, reason=reason, running=0, eta=None, ended=time.time()))


def _on_signals(controller: loop.Controller, run: RunPaths, stopped: list[int]) -> None:

    def stop(*_: object) -> None:
        cancelled = run.cancelled.exists()
        state = RunState.CANCELLED if cancelled else RunState.PAUSED
        reason = "cancelled by the user" if cancelled else f"stopped; `platform resume {run.root.name}` goes on"
        controller.stop(loop.Ending(state, reason, kill=True))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if stopped:
        stop()


def _counts(ledger: Ledger) -> dict[str, Any]:
    counts = ledger.counts
    return {
        "complete": counts.complete,
        "pruned": counts.pruned,
        "failed": counts.failed,
        "retried": counts.retried,
        "failures": dict(counts.failures),
        "best": ledger.best,
    }


def _created(run: RunPaths) -> float:

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
