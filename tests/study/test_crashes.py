"""Exact accounting under real crashes: processes are killed at random moments, and in the end every trial asked for has
ended once, in the ledger and in MLflow.

Not checked here: the ledger by itself (tests/contracts), pods and nodes (tests/e2e).
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from tests.study.conftest import Study, alive, wait_until

from trialplane import errors
from trialplane.wire.states import RunState

TRIALS = 24


def kill_at_random(study: Study, victims: str, times: int, rng: random.Random) -> int:
    """Kills one of the processes `study.<victims>()` at random moments while the run goes on; says how many."""
    killed = 0
    for _ in range(times):
        found = wait_until(lambda: getattr(study, victims)() or study.ended() == TRIALS, f"there are {victims}")
        if found is True:
            break
        time.sleep(rng.uniform(0, 0.15))  # the random moment itself
        victim = rng.choice(found)
        try:
            os.kill(victim.pid, signal.SIGKILL)
        except ProcessLookupError:  # it had just ended
            continue
        killed += 1
        wait_until(lambda pid=victim.pid: not alive(pid), "the victim is gone")
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["trials", "templates", "slot_workers"])
def test_every_trial_ends_once_whatever_is_killed(study: Study, victims: str) -> None:
    run = study.submit()
    wait_until(lambda: study.ended() >= 2, "two trials have ended")
    killed = kill_at_random(study, victims, 4 if victims == "trials" else 2, random.Random(victims))
    status = run.wait(200)
    assert killed
    assert status.state is RunState.SUCCEEDED, status.reason
    assert status.complete == TRIALS
    study.check_exact(TRIALS)
    classes = {failure for *_, failure, _ in study.attempts() if failure}
    assert classes <= ({"crashed"} if victims == "trials" else {"lost", "crashed"})


@pytest.mark.slow
def test_a_killed_controller_is_resumed_and_nothing_is_lost_or_done_twice(study: Study) -> None:
    rng = random.Random(11)
    run = study.submit()
    told: set[int] = set()
    for _ in range(3):
        target = study.ended() + rng.randrange(2, 6)
        wait_until(lambda target=target: study.ended() >= target, f"{target} trials have ended")
        pid = study.controller()
        everyone = study.pids()
        assert pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pids=everyone: not any(alive(p) for p in pids), "everything below the controller is gone too")
        before = {trial for _, state, trial, *_, retried in study.attempts() if state != "RUNNING" and not retried}
        assert told <= before
        told = before
        status = run.status()
        assert status.state is RunState.PAUSED
        assert "resume" in status.reason
        assert status.ended_trials == len(before), "counted exactly, from the ledger"
        run.resume()
    status = run.wait(200)
    assert status.state is RunState.SUCCEEDED, status.reason
    study.check_exact(TRIALS)


@pytest.mark.slow
def test_a_second_controller_is_refused(study: Study) -> None:
    from trialplane.client import process

    run = study.submit(trials=6, **{"params.pause": 1.5})  # so that the first is still at work when the second looks
    wait_until(study.trials, "the first controller is at work")
    first = study.controller()
    second = process.start(study.files())
    code = wait_until(lambda: (process.exit_code(second) is not None) and (process.exit_code(second),), "it gives up")
    assert code == (errors.LedgerLocked.exit_code,)
    assert f"another controller (pid {first})" in study.files().controller_log.read_text()
    assert run.wait(100).state is RunState.SUCCEEDED
    study.check_exact(6)


@pytest.mark.slow
def test_a_run_stopped_and_resumed_goes_on_and_draws_the_same_parameters(study: Study) -> None:
    undisturbed = study.submit("whole", parallel=1, trials=16)
    assert undisturbed.wait(100).state is RunState.SUCCEEDED
    stopped = study.submit("stopped", parallel=1, trials=16)
    wait_until(lambda: study.ended("stopped") >= 5 and study.trials("stopped"), "a sixth trial runs")
    stopped.stop()
    assert stopped.wait(60).state is RunState.PAUSED
    stopped.resume()
    assert stopped.wait(100).state is RunState.SUCCEEDED
    study.check_exact(16, "stopped")
    drawn = [{row.trial: row.params for row in run.rows()} for run in (undisturbed, stopped)]
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_a_template_killed_in_mid_trial_does_not_cost_its_slot(study: Study) -> None:
    run = study.submit(parallel=1, trials=4, **{"params.pause": 0.4})
    for _ in range(2):
        wait_until(study.trials, "a trial runs")
        (template,) = study.templates()
        os.kill(template.pid, signal.SIGKILL)
        wait_until(lambda pid=template.pid: not alive(pid), "the template is gone")
    assert run.wait(100).state is RunState.SUCCEEDED
    study.check_exact(4)
    assert [failure for *_, failure, _ in study.attempts() if failure] == ["lost", "lost"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the lock", "while Ray starts", "while slots warm up", "while a trial runs"])
def test_a_run_can_be_stopped_at_any_moment(study: Study, moment: str) -> None:
    run = study.submit(trials=4, **{"params.pause": 0.5})

    def there() -> bool:
        commands = [p.command for p in study.processes()]
        return {
            "before the lock": True,
            "while Ray starts": any("gcs_server" in c for c in commands),
            "while slots warm up": bool(study.templates()),
            "while a trial runs": bool(study.trials()),
        }[moment]

    wait_until(there, moment)
    everyone = study.pids()
    run.stop()
    status = run.wait(60)
    assert status.state is RunState.PAUSED, status.reason
    assert "resume" in status.reason
    assert run.exit_code == errors.EXIT_INTERRUPTED
    wait_until(lambda: not any(alive(pid) for pid in everyone), "nothing of the run is left", timeout=30)
    run.resume()
    assert run.wait(100).state is RunState.SUCCEEDED
    study.check_exact(4)
