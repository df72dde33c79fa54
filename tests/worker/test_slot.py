"""A slot with real templates and trial processes: every way a trial can end, its limits, and that it leaves nothing behind.

Not checked here: when a template is not forked, and what happens when it dies (test_template.py); Ray (tests/study).
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.worker.conftest import Bench, Event, alive, wait_until

from trialplane import errors
from trialplane.policies import transport
from trialplane.wire.records import StopRule
from trialplane.wire.states import FailureClass, TrialState

MODULES = {file.stem: file.read_text() for file in (Path(__file__).parent / "job").glob("*.py")}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One warm slot for all tests of this module: that they do not disturb each other is the point."""
    bench = Bench(tmp_path_factory.mktemp("slot"), MODULES)
    assert bench.ready.unclean == ()
    yield bench
    bench.close()


def test_a_result_with_arrays(shared: Bench) -> None:
    event = shared.run("arrays")
    outcome = event.outcome
    assert outcome is not None
    assert (outcome.state, outcome.failure, outcome.start_method) == (TrialState.COMPLETE, None, "fork")
    assert outcome.metrics == {"score": 0.5, "count": 3.0}
    assert outcome.exit_code == 0
    assert outcome.started <= outcome.ended
    assert outcome.peak_memory > 1 << 20
    assert outcome.pid
    assert outcome.node == os.uname().nodename
    assert (shared.root / outcome.log).exists()
    assert event.arrays is not None
    tree = transport.unpack(np.fromfile(event.arrays, dtype=np.uint8))
    assert outcome.arrays == Path(event.arrays).stat().st_size
    np.testing.assert_array_equal(tree["logits"], np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(tree["one"], np.ones(1), err_msg="an array of one number is an array")
    np.testing.assert_array_equal(tree["nested"]["ids"][0], [1, 2])
    assert outcome.returned == {"name": "0.5"}, "a text that reads like a number is a text"
    assert set(tree) == {"logits", "one", "nested"}
    Path(event.arrays).unlink()


def test_a_single_number_is_the_objective(shared: Bench) -> None:
    assert shared.outcome("number").metrics == {"score": 0.25}


def test_an_exception_comes_with_its_traceback_and_its_place(shared: Bench) -> None:
    outcome = shared.outcome("fails")
    line = MODULES["train"].splitlines().index('    raise ValueError("no such colour")') + 1
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.ERROR)
    assert outcome.message == f"ValueError: no such colour (train.py:{line})"
    assert "Traceback (most recent call last)" in outcome.traceback
    assert 'raise ValueError("no such colour")' in outcome.traceback
    assert 'raise ValueError("no such colour")' in shared.log(outcome)


@pytest.mark.parametrize(
    ("what", "said"),
    [("missing", "score is missing"), ("nan", "score is NaN"), ("nothing", "score is missing")],
)
def test_a_result_without_its_metric_is_invalid(shared: Bench, what: str, said: str) -> None:
    outcome = shared.outcome(what)
    assert outcome.failure is FailureClass.INVALID
    assert said in outcome.message
    assert "run(ctx) must return" in outcome.message


def test_a_result_that_may_not_cross_says_where_it_is(shared: Bench) -> None:
    outcome = shared.outcome("objects")
    assert outcome.failure is FailureClass.ERROR
    assert "result['best']['model'] is a builtins.object" in outcome.message


def test_a_process_that_is_killed_has_crashed(shared: Bench) -> None:
    outcome = shared.outcome("killed")
    assert (outcome.failure, outcome.exit_code) == (FailureClass.CRASHED, -signal.SIGKILL)
    assert "SIGKILL" in outcome.message


def test_sys_exit_is_the_jobs_error(shared: Bench) -> None:
    outcome = shared.outcome("leaves")
    assert outcome.failure is FailureClass.ERROR
    assert outcome.message.startswith("SystemExit: 3 (train.py:")


def test_a_process_that_ends_without_a_word_has_crashed(shared: Bench) -> None:
    outcome = shared.outcome("leaves_at_once")
    assert (outcome.failure, outcome.exit_code) == (FailureClass.CRASHED, 7)
    assert "exit code 7" in outcome.message


def test_memory_error_is_a_crash(shared: Bench) -> None:
    outcome = shared.outcome("no_memory")
    assert (outcome.failure, outcome.message.partition(" (")[0]) == (FailureClass.CRASHED, "MemoryError: 12 TiB")


@pytest.fixture
def _time_for_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process write its stacks, however busy the machine is."""
    monkeypatch.setattr("trialplane.worker.running.ABORT_GRACE", 60.0)


@pytest.mark.usefixtures("_time_for_stacks")
def test_a_time_out_leaves_the_stacks_of_its_threads_in_the_log(shared: Bench) -> None:
    outcome = shared.overdue(shared.slot.run(shared.request("reports_and_hangs", timeout=600.0)))
    assert outcome.failure is FailureClass.TIMEOUT
    assert "longer than its limit of 600 s" in outcome.message
    log = shared.log(outcome)
    assert "about to hang" in log
    assert "most recent call first" in log
    assert "in reports_and_hangs" in log


@pytest.mark.usefixtures("_time_for_stacks")
@pytest.mark.parametrize("fails", [False, True])
def test_an_exit_hook_that_hangs_is_ended_and_the_outcome_counts(tmp_path: Path, fails: bool) -> None:
    with Bench(tmp_path, MODULES, linger=2.0) as bench:
        event = bench.run("hangs_at_exit", fails=fails, timeout=None)
        outcome = event.outcome
        assert outcome is not None
        late = (
            "its process had not ended 2 s after run(ctx) and was killed (does an exit hook hang?), see budget.exit_timeout"
        )
        assert late in outcome.message
        assert outcome.exit_code == -signal.SIGABRT
        assert "Current thread" in bench.log(outcome)
        if fails:
            assert outcome.failure is FailureClass.ERROR
            assert outcome.message.startswith("ValueError: no such colour (train.py:")
        else:
            assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 0.5})
            assert event.arrays is not None


def test_an_exit_hook_that_hangs_is_told_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench(tmp_path, MODULES, linger=2.0) as bench:
        monkeypatch.setattr("trialplane.worker.running.EXIT_NOTICE", 0.1)
        told = [event.exiting for event in bench.events("hangs_at_exit", fails=False, timeout=None)]
        assert told.count(True) == 1
        assert not told[-1], "it is told before the end"
        monkeypatch.setattr("trialplane.worker.running.EXIT_NOTICE", 60.0)
        assert not any(event.exiting for event in bench.events("number"))


def test_too_much_memory_ends_a_trial(tmp_path: Path) -> None:
    with Bench(tmp_path, MODULES, memory=200 << 20) as bench:
        outcome = bench.outcome("hog")
        assert outcome.failure is FailureClass.CRASHED
        assert (
            "over its limit of 0.2 GiB; raise resources.memory, at submit by `--set resources.memory=1Gi`" in outcome.message
        )
        # Also while the controller does not answer, for want of its database, say.
        event = bench.slot.run(bench.request("hog_while_it_waits", prunable=True))
        running = bench.slot.running
        assert event.waiting and running is not None
        wait_until(lambda: not alive(running.pid), "the trial that waits is killed")
        outcome = bench.slot.answer().outcome
        assert outcome is not None
        assert outcome.failure is FailureClass.CRASHED
        assert "over its limit of 0.2 GiB" in outcome.message
        assert bench.outcome("number").state is TrialState.COMPLETE


def test_the_pruner_ends_a_trial(shared: Bench) -> None:
    request = shared.request("reports", prunable=True, steps=10)
    *before, event = shared.slot.play(request, lambda each: 2 if each.reports[-1].step == 2 else None)
    assert all(each.waiting for each in before)
    steps = [report.step for each in before for report in each.reports]
    assert event.outcome is not None
    assert steps == [0, 1, 2], "each report was answered before the next"
    assert event.outcome.state is TrialState.PRUNED
    assert event.outcome.metrics == {"score": 1.0, "loss": 1.0}
    assert event.outcome.message == "pruned at step 2"


@pytest.mark.parametrize("prunable", [False, True])
def test_a_stop_rule_ends_a_trial_as_complete(shared: Bench, prunable: bool) -> None:
    events = shared.events("reports", prunable=prunable, steps=10, stop=(StopRule("score", above=1.2),))
    assert [report.step for event in events for report in event.reports] == [0, 1, 2, 3]
    outcome = events[-1].outcome
    assert outcome is not None
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 1.5, "loss": 1.0})
    assert outcome.message == "stopped at step 3: score 1.5 is above 1.2"


def test_optunas_own_way_of_pruning_is_understood(shared: Bench) -> None:
    outcome = shared.outcome("prunes_itself")
    assert (outcome.state, outcome.failure, outcome.metrics) == (TrialState.PRUNED, None, {"score": 0.125})


def test_reports_that_nobody_waits_for_come_together(shared: Bench) -> None:
    events = shared.events("reports", steps=2000)
    reports = [report for event in events for report in event.reports]
    assert [(r.step, r.metrics["score"]) for r in reports] == [(step, step / 2) for step in range(2000)]
    assert len(events) < 100
    assert not any(event.waiting for event in events)


def test_a_report_is_heard_while_the_trial_goes_on(shared: Bench) -> None:
    event = shared.slot.run(shared.request("reports_and_hangs"))
    assert [report.step for report in event.reports] == [1]
    assert event.outcome is None
    shared.slot.kill(FailureClass.STOPPED, "enough")
    outcome = shared.slot.answer().outcome
    assert outcome is not None
    assert (outcome.failure, outcome.message, outcome.metrics) == (FailureClass.STOPPED, "enough", {"score": 0.5})


def test_a_failure_keeps_the_last_report(shared: Bench) -> None:
    assert shared.outcome("reports_and_fails").metrics == {"score": 0.75}


def test_a_kill_from_another_thread(shared: Bench) -> None:
    """As a Ray actor does it: one thread waits for the trial's next event, another one kills."""
    heard: list[Event] = []
    request = shared.request("hangs")
    log = shared.root / f"trials/{request.trial:04d}/attempt-1.log"
    waiter = threading.Thread(target=lambda: heard.append(shared.slot.run(request)))
    waiter.start()
    wait_until(lambda: log.exists() and "about to hang" in log.read_text(), "the trial runs")
    shared.slot.kill(FailureClass.STOPPED, "stopped by the user")
    waiter.join()
    assert heard[0].outcome is not None
    assert (heard[0].outcome.failure, heard[0].outcome.message) == (FailureClass.STOPPED, "stopped by the user")
    shared.slot.kill(FailureClass.STOPPED, "nothing runs now")
    assert shared.outcome("number").state is TrialState.COMPLETE


def test_a_trial_leaves_nothing_behind(shared: Bench) -> None:
    file = shared.root / "said"
    before = shared.look(file)
    outcome = shared.outcome("leaves_everything", file=str(file))
    assert outcome.state is TrialState.COMPLETE
    left = [int(pid) for pid in file.read_text().split()]
    assert len(left) == 3
    assert not any(alive(pid) for pid in left), "the outcome says that nothing of the trial is alive"
    assert not list((shared.root / "scratch").iterdir())
    after = shared.look(file)
    assert after["rss"] < before["rss"] + (100 << 20)
    own = {"pid", "rss", "workdir", "cwd", "tmp", "seed", "trial", "random"}
    assert {key: value for key, value in after.items() if key not in own} == {
        key: value for key, value in before.items() if key not in own
    }
    assert after["random"] == before["random"], "seeded alike"
    assert after["patched"] == ["as imported"]
    assert after["files"] == []


def test_a_trial_has_a_place_of_its_own(shared: Bench) -> None:
    found = shared.look(shared.root / "said", env={"EXTRA": "for this trial"})
    assert found["cwd"] == found["workdir"] == found["tmp"]
    assert found["session"]
    assert found["stdin"] == os.devnull
    assert found["extra"] == "for this trial"
    assert found["threads"] == 1
    assert shared.look(shared.root / "said")["extra"] is None
    assert "EXTRA" not in os.environ


def test_a_jobs_own_workers_work(shared: Bench) -> None:
    assert shared.outcome("workers").metrics == {"score": 14.0}


def test_a_data_loader_works(shared: Bench) -> None:
    assert shared.outcome("loader").metrics == {"score": 90.0}


def test_a_large_argument_of_a_worker_is_refused(shared: Bench) -> None:
    outcome = shared.outcome("large_argument")
    assert outcome.failure is FailureClass.ERROR
    assert "PolicyError" in outcome.message
    assert "2.0 MiB" in outcome.message


@pytest.mark.parametrize("die", [False, True])
def test_shared_memory_and_semaphores_are_given_back(shared: Bench, die: bool) -> None:
    """What multiprocessing keeps in /dev/shm outlives its process, unless its resource tracker may still clean up."""
    file = shared.root / "names"
    shared.run("shared_memory", file=str(file), die=die)
    block, lock = file.read_text().split()
    left = [file.name for file in Path("/dev/shm").iterdir() if file.name in (block, f"sem.{lock.strip('/')}")]
    assert left == []


@pytest.mark.parametrize("die", [False, True])
def test_joblib_leaves_nothing_behind(shared: Bench, die: bool) -> None:
    """Its arrays go through files of the trial's own folder, and its tracker may still remove its semaphores."""
    file = shared.root / "joblib"
    shared.run("joblib_workers", file=str(file), die=die)
    pid, where = file.read_text().split()
    assert Path(where).is_relative_to(shared.root / "scratch")
    assert not Path(where).exists()
    mine = (f"sem.loky-{pid}-", f"joblib_memmapping_folder_{pid}_")
    assert [file.name for file in Path("/dev/shm").iterdir() if file.name.startswith(mine)] == []


def test_a_closed_slot_leaves_nothing_alive(tmp_path: Path) -> None:
    bench = Bench(tmp_path, MODULES)
    event = bench.slot.run(bench.request("reports_and_hangs"))
    assert event.outcome is None
    (template,) = bench.templates()
    (trial,) = bench.children(template)
    bench.close()
    assert not alive(template)
    assert not alive(trial)


@pytest.mark.parametrize(
    ("code", "said", "place"),
    [
        ("import numpy\nimport nothing_like_it\n", "No module named 'nothing_like_it'", "train.py:2"),
        ("def run(ctx):\n    return (\n", "SyntaxError", "train.py, line 2"),
        ("def other(ctx): ...\n", "module 'train' has no attribute 'run'", "train:run"),
        ("raise SystemExit(2)\n", "SystemExit: 2", "train.py:1"),
        (None, "No module named 'train'", "train"),
    ],
)
def test_code_that_does_not_import_is_said_before_any_trial(tmp_path: Path, code: str | None, said: str, place: str) -> None:
    with pytest.raises(errors.EntrypointError) as caught:
        Bench(tmp_path, {} if code is None else {"train": code})
    message = str(caught.value)
    assert said in message
    assert place in message
    assert "__init__.py" not in message, "the place is the job's, not Python's own"
    assert "template.py" not in message
    assert str(tmp_path / "code") in message
    assert "train:run" in message
    assert caught.value.exit_code == errors.EXIT_BAD_INPUT


def test_a_template_that_dies_while_it_imports(tmp_path: Path) -> None:
    with pytest.raises(errors.SlotError, match=r"ended while importing; see .*\.log"):
        Bench(tmp_path, {"train": "import os\nos._exit(9)\n"})


def test_the_context_as_a_job_sees_it(tmp_path: Path) -> None:
    code = (
        "import dataclasses, json, pathlib\n"
        "def run(ctx):\n"
        "    seen = {f.name: getattr(ctx, f.name) for f in dataclasses.fields(ctx) if f.repr}\n"
        "    pathlib.Path(ctx.params['file']).write_text(json.dumps(seen, default=str))\n"
        "    return 1.0\n"
    )
    file = tmp_path / "seen"
    with Bench(tmp_path, {"train": code}, cpus=2) as bench:
        bench.run("", file=str(file))
        seen: dict[str, Any] = json.loads(file.read_text())
    assert seen["params"] == {"what": "", "file": str(file)}
    assert (seen["run"], seen["trial"], seen["attempt"], seen["cpus"], seen["gpus"]) == ("toy", 0, 1, 2, 0)
    assert seen["code"] == str(tmp_path / "code")


SAVES = """
from pathlib import Path

def run(ctx):
    Path(ctx.checkpoints).mkdir(parents=True)
    if ctx.params["what"] == "saves":
        Path(ctx.checkpoints, "model.bin").write_bytes(b"1")
    if ctx.params["what"] == "begins to":
        Path(ctx.checkpoints, ".model.bin").write_bytes(b"")
    return {"score": 1.0}
"""


@pytest.mark.parametrize(
    "place", [pytest.param("{}/saved", id="a folder that is given"), pytest.param("", id="the run's own folder")]
)
def test_whether_a_trial_has_left_a_checkpoint(tmp_path: Path, place: str) -> None:
    saved = {"saves": True, "begins to": False, "nothing": False}
    with Bench(tmp_path, {"train": SAVES}, checkpoints=place.format(tmp_path)) as bench:
        assert {what: bench.outcome(what).saved for what in saved} == saved
