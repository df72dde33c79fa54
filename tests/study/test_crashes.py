"""Exact accounting under real crashes: processes are killed at random moments, and in the end every trial asked for has
ended once, in the ledger and in MLflow.

Not checked here: the ledger by itself (tests/contracts), a slot by itself (tests/worker), pods and nodes (tests/e2e).
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.study.conftest import STAGE, Study, alive, kill, wait_until

from trialplane import errors
from trialplane.client import folder, process
from trialplane.controller.ledger import Ledger
from trialplane.wire.records import TrialOutcome, TrialReport
from trialplane.wire.states import RunState, TrialState

# Of a job that logs to MLflow by itself each slot imports MLflow, which takes three seconds of processor time.
QUIET = {"preload": [], "params.logs": False}


def kill_at_random(study: Study, victims: str, times: int, ended: int, rng: random.Random) -> None:
    """Kills one of the processes `study.<victims>()` at random moments, so many times or until so many trials have ended."""
    killed = 0
    while killed < times and study.ended() < ended:
        found = wait_until(getattr(study, victims), f"there are {victims}")
        time.sleep(rng.uniform(0, 0.15))  # the random moment itself
        killed += kill(rng.choice(found).pid)
    wait_until(lambda: study.ended() >= ended, f"{ended} trials have ended")


@pytest.mark.slow
@pytest.mark.usefixtures("forked_exporters")
def test_every_trial_ends_once_whatever_is_killed(study: Study) -> None:
    victims = {"trials": 4, "working_templates": 2, "slot_workers": 2}
    run = study.submit_in_stages(trials=STAGE * len(victims))
    for stage, (who, times) in enumerate(victims.items()):
        wait_until(lambda: len(study.trials()) == 2, "two trials wait for their stage")
        slots = {slot.pid for slot in study.slot_workers()}
        rng = random.Random(who)
        # On a busy machine a random moment may be that after a trial has sent its result, each time.
        assert kill(rng.choice(getattr(study, who)()).pid), "one is killed whose trial waits"
        study.let_begin(stage)
        kill_at_random(study, who, times, STAGE * (stage + 1), rng)
        if who != "slot_workers":
            assert {slot.pid for slot in study.slot_workers()} <= slots, "what is killed does not cost its slot"
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    assert status.complete == STAGE * len(victims)
    study.check_exact(STAGE * len(victims))
    classes = [(trial // STAGE, failure) for _, _, trial, _, failure, _ in study.attempts() if failure]
    assert {failure for stage, failure in classes if stage == 0} == {"crashed"}
    assert {failure for stage, failure in classes if stage > 0} <= {"lost", "crashed"}


@pytest.mark.slow
@pytest.mark.usefixtures("forked_exporters")
def test_a_killed_controller_is_resumed_and_nothing_is_lost_or_done_twice(study: Study) -> None:
    rng = random.Random(11)
    run = study.submit_in_stages(trials=3 * STAGE, **QUIET, **{"params.saves": True, "keep.best": 3})
    told: set[int] = set()
    for stage in range(2):
        study.let_begin(stage)
        target = stage * STAGE + rng.randrange(2, 6)
        wait_until(lambda target=target: study.ended() >= target, f"{target} trials have ended")
        pid = study.controller()
        everyone = study.pids()
        assert pid
        kill(pid)
        wait_until(lambda pids=everyone: not any(alive(p) for p in pids), "everything below the controller is gone too")
        before = {trial for _, state, trial, *_, retried in study.attempts() if state != "RUNNING" and not retried}
        assert told <= before
        told = before
        status = run.status()
        assert status.state is RunState.PAUSED
        assert "resume" in status.reason
        assert status.ended_trials == len(before), "counted exactly, from the ledger"
        run.resume()

    wait_until(study.trials, "the controller is at work")
    first = study.controller()
    second = process.start(study.files())
    wait_until(lambda: second.poll() is not None, "it gives up")
    assert second.returncode == errors.LedgerLocked.exit_code
    assert f"another controller (pid {first} on {socket.gethostname()})" in study.files().controller_log.read_text()

    study.let_begin(2)
    status = run.wait(600)
    assert status.state is RunState.SUCCEEDED, status.reason
    study.check_exact(3 * STAGE, logged=False)
    left = {file.parent.name for file in study.files().checkpoints.rglob("model")}
    assert left == {f"trial-{row.trial}" for row in run.rows()[:3]}, "the models of the three best, whoever was killed when"


@pytest.mark.slow
def test_a_run_that_is_paused_in_its_last_trials_is_not_called_killed(study: Study) -> None:
    run = study.submit_in_stages(trials=2, **QUIET)
    wait_until(lambda: len(study.trials()) == 2, "two trials wait for their stage")
    paused = run.pause()
    assert paused.state is RunState.PAUSED
    assert paused.reason.startswith("stopped; `platform resume toy` continues it"), "and MLflow may be slow"
    assert study.controller() is None and run.status() == paused, "and it stays so without a controller"
    study.let_begin(0)
    run.resume()
    status = run.wait(600)
    assert (status.state, status.complete) == (RunState.SUCCEEDED, 2), status.reason


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_interrupted_as_it_is_recorded_has_ended(study: Study, number: signal.Signals) -> None:
    run = study.submit_in_stages(trials=2, **QUIET)
    wait_until(lambda: len(study.trials()) == 2, "two trials wait for their stage")
    (exporter,) = [process.pid for process in study.processes() if "trialplane.exporter" in process.command]
    os.kill(exporter, signal.SIGSTOP)  # MLflow is slow
    study.let_begin(0)
    waiting = wait_until(lambda: "recording" in (status := run.status()).mlflow and status, "the end")
    assert (waiting.state, waiting.unrecorded) == (RunState.SUCCEEDED, True)
    wait_until(lambda: run.status().mlflow == "recording in MLflow: 0 of 2 trials", "what is waited for is told")
    wait_until(lambda: not any("slot_process" in process.command for process in study.processes()), "the slots are gone")
    pid = study.controller()
    assert pid is not None
    os.kill(pid, number)
    status = run.wait(100)  # less than the patience with an MLflow that does not answer
    assert (status.state, status.unrecorded) == (RunState.SUCCEEDED, True), status.reason
    assert "SUCCEEDED: all 2 trials ended" in study.files().controller_log.read_text()
    assert "`platform resume toy` writes the rest" in status.mlflow
    assert "killed?" not in status.reason
    wait_until(lambda: not alive(exporter), "the exporter is gone, too")
    run.resume()
    status = run.wait(600)
    while "(it is slow)" in status.reason:  # on a busy machine an exporter imports MLflow for longer than a run waits
        run.resume()
        status = run.wait(600)
    assert (status.state, status.unrecorded, status.mlflow) == (RunState.SUCCEEDED, False, ""), status.reason
    study.check_exact(2, logged=False)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_exporters")
def test_a_run_can_be_stopped_at_any_moment_and_goes_on_with_what_it_would_have_drawn(study: Study, tmp_path: Path) -> None:
    trials = STAGE + 4
    run = study.submit_in_stages(parallel=1, trials=trials, **QUIET)
    study.let_begin(0)
    moments: dict[str, Callable[[], object]] = {
        "before the lock": lambda: True,
        "while slots start": lambda: any("slot_process" in process.command for process in study.processes()),
        "while slots warm up": study.templates,
        "while a trial runs": lambda: any(trial == STAGE for _, _, trial, *_ in study.attempts()) and study.trials(),
    }
    for moment, there in moments.items():
        wait_until(there, moment)
        everyone = study.pids()
        run.stop()
        status = run.wait(600)
        assert status.state is RunState.PAUSED, status.reason
        assert "resume" in status.reason
        assert run.exit_code == errors.EXIT_INTERRUPTED
        wait_until(lambda pids=everyone: not any(alive(pid) for pid in pids), "nothing of the run is left")
        run.resume()
    study.let_begin(1)
    assert run.wait(600).state is RunState.SUCCEEDED
    study.check_exact(trials, logged=False)
    assert (STAGE, "stopped") in [(trial, failure) for _, _, trial, _, failure, _ in study.attempts()]

    undisturbed = {}
    job = folder.load_job(study.files())
    with Ledger(f"sqlite:///{tmp_path}/whole.db", job, "toy", tmp_path / "whole", tmp_path / "whole.lock") as ledger:
        while (request := ledger.ask()) is not None:
            undisturbed[request.trial] = request.params
            score = request.params["x"]
            for step in range(3):
                ledger.report(TrialReport(request.number, step, {"score": score * (step + 1)}, time.time()))
            ledger.tell(TrialOutcome(request.number, TrialState.COMPLETE, metrics={"score": score}))
    assert {row.trial: {**job.params, **row.params} for row in run.rows()} == undisturbed
