"""Trials of several ranks, with real processes: how they meet, every way in which one of them can end all, and what is left.

Torch is real where ranks talk to each other (gloo on this machine), and absent elsewhere. Not checked here: which of several
failures is the cause (test_verdict.py), stragglers as such (test_stragglers.py), ranks on GPUs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.worker.conftest import Bench, Event, Slot, alive, wait_until

from trialplane.policies import transport
from trialplane.wire import ranks as rank_metrics
from trialplane.wire.records import SlotConfig, StopRule, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import sessions

MODULES = {"train": (Path(__file__).parent / "ranks" / "train.py").read_text()}
THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A warm slot for trials of three ranks."""
    with Bench(tmp_path_factory.mktemp("ranks"), MODULES, ranks=3, cpus=6, grace=20.0) as bench:
        assert bench.ready.unclean == ()
        assert bench.ready.address == ""
        yield bench


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The same with torch in its template."""
    preload = ("torch", "torch.distributed", "accelerate")
    with Bench(tmp_path_factory.mktemp("warm"), MODULES, ranks=3, cpus=6, preload=preload, grace=20.0) as bench:
        assert bench.ready.unclean == ()
        yield bench


def notes(folder: Path, count: int = 3) -> list[dict[str, Any]]:
    """What the ranks have noted, once all have."""
    files = [folder / f"rank-{rank}" for rank in range(count)]
    wait_until(lambda: all(file.exists() for file in files), "all ranks have noted something")
    return [json.loads(file.read_text()) for file in files]


def next_outcome(bench: Bench, event: Event) -> Any:
    return bench.slot.rest(event)[-1].outcome


def test_each_rank_knows_its_place(shared: Bench, tmp_path: Path) -> None:
    event = shared.run("looks", folder=str(tmp_path))
    outcome = event.outcome
    assert outcome is not None
    assert (outcome.state, outcome.message, outcome.start_method) == (TrialState.COMPLETE, "", "fork")
    assert outcome.metrics == {"score": 1.0}, "rank 0's; that the others return nothing is nobody's business"
    assert event.arrays is not None
    np.testing.assert_array_equal(transport.unpack(np.fromfile(event.arrays, dtype=np.uint8))["values"], [0, 1, 2])
    Path(event.arrays).unlink()
    found = notes(tmp_path)
    for rank, facts in enumerate(found):
        assert facts["place"] == [rank, rank, 3, rank == 0]
        env = facts["env"]
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        assert [env[name] for name in names] == [str(rank), str(rank), "3", "3"]
        assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"], env["TORCHELASTIC_RESTART_COUNT"]) == ("0", "1", "0")
        assert env["TORCHELASTIC_RUN_ID"] == f"toy-{event.outcome.number}"
        assert env["OMP_NUM_THREADS"] == "2", "6 cores, 3 ranks"
        assert facts["cwd"] == facts["workdir"] == env["TMPDIR"]
        assert (facts["session"], facts["parent"]) == (outcome.pid, outcome.pid)
        assert facts["checkpoints"] == str(shared.root / f"checkpoints/toy/trial-{outcome.number}")
    assert len({(facts["env"]["MASTER_ADDR"], facts["env"]["MASTER_PORT"]) for facts in found}) == 1
    assert len({facts["workdir"] for facts in found}) == 3
    assert found[0]["random"] == found[1]["random"] == found[2]["random"], "models start alike in all ranks"
    assert all(facts["first_write"] == "a line\n" for facts in found), "no other rank's line can come in between"
    assert not list((shared.root / "scratch").iterdir())


@pytest.mark.slow
def test_ranks_reduce_by_gloo(warm: Bench, tmp_path: Path) -> None:
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        folder.mkdir()
        outcome = warm.outcome("reduces", folder=str(folder))
        assert (outcome.state, outcome.metrics, outcome.message) == (TrialState.COMPLETE, {"score": 6.0}, "")
        assert [(facts["value"], facts["threads"]) for facts in notes(folder)] == [(6.0, 2)] * 3
        assert "ranks are spawned" not in warm.log(outcome), "the supervisor is as clean as the template"


@pytest.mark.slow
def test_accelerate_finds_the_ranks(warm: Bench, tmp_path: Path) -> None:
    outcome = warm.outcome("accelerates", folder=str(tmp_path))
    assert outcome.state is TrialState.COMPLETE, outcome.traceback
    assert [facts["place"] for facts in notes(tmp_path)] == [[rank, 3, rank] for rank in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 2])
def test_a_rank_that_is_killed_ends_all_and_is_named(warm: Bench, who: int) -> None:
    outcome = warm.outcome("fails_in_step", how="killed", who=who)
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.CRASHED)
    assert outcome.message.startswith(f"rank {who} was killed by SIGKILL")
    assert outcome.exit_code == -signal.SIGKILL, "the rank's: a gang of nodes tells by it what may have followed"
    assert not alive(outcome.pid)


@pytest.mark.slow
def test_a_rank_that_raises_ends_all_with_its_traceback(warm: Bench) -> None:
    outcome = warm.outcome("fails_in_step", how="raises", who=1)
    line = MODULES["train"].splitlines().index('        raise ValueError("no such colour")') + 1
    assert outcome.failure is FailureClass.ERROR
    assert outcome.message == f"rank 1: ValueError: no such colour (train.py:{line})"
    assert 'raise ValueError("no such colour")' in outcome.traceback
    assert '[rank 1]     raise ValueError("no such colour")' in warm.log(outcome)


def test_a_lost_connection_waits_for_its_cause(shared: Bench, tmp_path: Path) -> None:
    outcome = shared.outcome("follows", folder=str(tmp_path))
    assert outcome.failure is FailureClass.CRASHED
    assert outcome.message.startswith("rank 2 was killed by SIGKILL")


def test_a_lost_connection_without_a_cause_ends_all(shared: Bench) -> None:
    outcome = shared.outcome("loses_its_connection")
    assert outcome.failure is FailureClass.ERROR
    assert "Connection reset by peer" in outcome.message


def test_out_of_memory_in_one_rank(tmp_path: Path) -> None:
    torch = (
        "import types\ncuda = types.SimpleNamespace(is_initialized=lambda: False)\nclass Tensor: ...\n"
        "class OutOfMemoryError(RuntimeError): ...\ndef set_num_threads(count): ...\ndef manual_seed(seed): ...\n"
    )
    with Bench(tmp_path, {**MODULES, "torch": torch}, ranks=2, preload=("torch",), grace=5.0) as bench:
        outcome = bench.outcome("out_of_memory")
    assert outcome.failure is FailureClass.OOM
    assert outcome.message.startswith("rank 1: OutOfMemoryError: CUDA out of memory")


def test_a_rank_that_leaves_without_a_word_has_crashed(shared: Bench) -> None:
    outcome = shared.outcome("leaves_at_once")
    assert outcome.failure is FailureClass.CRASHED
    assert outcome.message.startswith("rank 1 ended with exit code 0 before it could send its result")


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_killed_in_mid_word_has_crashed(tmp_path: Path, ranks: int) -> None:
    with Bench(tmp_path, MODULES, ranks=ranks) as bench:
        outcome = bench.outcome("dies_in_mid_word")
        assert outcome.failure is FailureClass.CRASHED
        assert "was killed by SIGKILL" in outcome.message


def test_a_stop_lets_ranks_save_a_checkpoint(shared: Bench) -> None:
    request = shared.request("stops")
    event = shared.slot.run(request)
    assert [report.metrics for report in event.reports] == [{"score": 0.5}], "rank 0's only"
    shared.slot.stop("the run was paused")
    outcome = next_outcome(shared, event)
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.LOST)
    assert outcome.message == "the run was paused: stopped by SIGTERM after step 7, with a checkpoint"
    assert outcome.metrics == {"score": 0.5}
    assert (shared.root / f"checkpoints/toy/trial-{request.trial}/saved").read_text() == "7"


def test_sigterm_from_anybody_is_passed_on(shared: Bench) -> None:
    event = shared.slot.run(shared.request("stops"))
    os.kill(shared.running.pid, signal.SIGTERM)
    outcome = next_outcome(shared, event)
    assert (outcome.failure, outcome.message) == (FailureClass.LOST, "stopped by SIGTERM after step 7, with a checkpoint")


def test_a_job_that_never_asks_is_stopped_at_once(shared: Bench) -> None:
    event = shared.slot.run(shared.request("never_asks"))
    shared.slot.stop("enough")
    outcome = next_outcome(shared, event)
    assert (outcome.failure, outcome.message) == (
        FailureClass.LOST,
        "enough: stopped by SIGTERM at once, without a checkpoint",
    )


def test_a_rank_that_does_not_stop_is_killed_after_the_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trialplane.worker.running.STOP_MARGIN", 60.0)
    with Bench(tmp_path, MODULES, ranks=2, grace=5.0) as bench:  # rank 0 stops in time also on a busy machine
        event = bench.slot.run(bench.request("stops_in_part", folder=str(tmp_path)))
        bench.slot.stop("enough")
        outcome = next_outcome(bench, event)
    assert outcome.failure is FailureClass.LOST
    assert outcome.message == (
        "enough: stopped by SIGTERM after step 7, with a checkpoint; rank 1 had not ended after 5 s and had to be killed: "
        "see ctx.stopping"
    )


def test_the_pruner_or_a_stop_rule_ends_all_ranks(shared: Bench) -> None:
    request = shared.request("reports", prunable=True, steps=10)
    *before, event = shared.slot.play(request, lambda each: 2 if each.reports[-1].step == 2 else None)
    assert all(each.waiting for each in before)
    steps = [report.step for each in before for report in each.reports]
    assert event.outcome is not None
    assert steps == [0, 1, 2], "rank 0's, each answered before the next"
    assert (event.outcome.state, event.outcome.metrics) == (TrialState.PRUNED, {"score": 2.0})
    assert event.outcome.message == "pruned at step 2"
    assert shared.outcome("reports", steps=10, stop=(StopRule("score", above=1.5),)).early


def test_the_log_has_every_line_of_every_rank(shared: Bench, tmp_path: Path) -> None:
    outcome = shared.outcome("prints", folder=str(tmp_path))
    assert outcome.message.startswith("rank 1 was killed by SIGKILL")
    log = shared.log(outcome)
    lines = log.splitlines()
    for_rank_1 = [line.removeprefix("[rank 1] ") for line in lines if line.startswith("[rank 1] ")]
    assert for_rank_1 == [*(f"line {line} of 1" for line in range(200)), "the last words of 1"], "to its last moment"
    assert [line for line in lines if line.startswith("line ")] == [f"line {line} of 0" for line in range(200)]


@pytest.mark.parametrize("then", ["return", "wait"])
def test_nothing_is_left_of_ranks_and_of_what_they_started(shared: Bench, tmp_path: Path, then: str) -> None:
    event = shared.slot.run(shared.request("leaves_children", folder=str(tmp_path), then=then))
    pids = [pid for facts in notes(tmp_path) for pid in facts["pids"]]
    if then == "wait":
        shared.slot.kill(FailureClass.STOPPED, "enough")
    outcome = next_outcome(shared, event)
    assert outcome.state is (TrialState.COMPLETE if then == "return" else TrialState.FAILED)
    assert len(pids) == 6
    assert not any(alive(pid) for pid in pids)


def test_a_time_out_leaves_the_stacks_of_all_ranks(shared: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trialplane.worker.running.ABORT_GRACE", 60.0)
    event = shared.slot.run(shared.request("hangs", folder=str(tmp_path)))
    notes(tmp_path)
    outcome = shared.overdue(event)
    assert outcome.failure is FailureClass.TIMEOUT
    log = shared.log(outcome)
    assert log.count("in hangs") == 3
    assert "[rank 2] Fatal Python error: Aborted" in log


def test_ranks_that_hang_when_rank_0_has_returned_are_ended_and_its_result_counts(tmp_path: Path) -> None:
    with Bench(tmp_path, MODULES, ranks=3, linger=0.3) as bench:
        outcome = bench.outcome("lingers", folder=str(tmp_path))
        log = bench.log(outcome)
    text = "ranks 1, 2 had not ended 0.3 s after rank 0 had returned its result, and had to be ended"
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 1.0})
    assert outcome.message == f"{text}; the log has their stacks"
    assert f"supervisor: {text}" in log
    assert "[rank 1] Fatal Python error: Aborted" in log
    assert "in lingers" in log


def test_a_straggler_is_named_in_the_log_and_in_the_next_report(shared: Bench, tmp_path: Path) -> None:
    outcome, reports = shared.reported(shared.request("straggles", folder=str(tmp_path), prunable=True))
    metrics = rank_metrics.without_seconds(reports[-1].metrics)
    assert metrics == {"score": 0.5, "slowest_rank": 2.0, "slowest_rank_factor": pytest.approx(5.0)}
    assert "supervisor: rank 2 holds the others up" in shared.log(outcome)


def test_reports_have_the_time_per_step_of_each_rank(shared: Bench, tmp_path: Path) -> None:
    _, reports = shared.reported(shared.request("straggles", folder=str(tmp_path), prunable=True))
    times: dict[int, float] = {}
    for report in reports:
        times |= rank_metrics.seconds(report.metrics)
    assert times == {0: 0.1, 1: 0.1, 2: 0.5}


def test_a_node_without_rank_0_reports_the_times_of_its_ranks_and_nothing_else_follows(tmp_path: Path) -> None:
    with Bench(tmp_path, MODULES, ranks=2, nodes=2) as bench:
        request = bench.request("pulses", stop=(StopRule(step=3),))
        outcome, (report,) = bench.reported(dataclasses.replace(request, node=1, rendezvous=bench.ready.address))
    assert (report.step, report.metrics) == (3, {"rank_seconds/2": pytest.approx(0.2), "rank_seconds/3": pytest.approx(0.3)})
    assert (outcome.state, outcome.early, outcome.metrics) == (TrialState.COMPLETE, False, {}), outcome.message


def test_the_times_of_very_many_ranks_are_in_no_report(tmp_path: Path) -> None:
    with Bench(tmp_path, MODULES, ranks=2, nodes=40) as bench:
        request = bench.request("pulses")
        _, reports = bench.reported(dataclasses.replace(request, node=1, rendezvous=bench.ready.address))
    assert reports == []


def test_a_rank_that_is_slow_stays_named_in_reports_when_another_catches_up(tmp_path: Path) -> None:
    with Bench(tmp_path, MODULES, ranks=4) as bench:
        events = bench.events("one_catches_up", folder=str(tmp_path), prunable=True)
    metrics = rank_metrics.without_seconds([report for event in events for report in event.reports][-1].metrics)
    assert metrics == {"score": 0.5, "slowest_rank": 2.0, "slowest_rank_factor": pytest.approx(5.0)}


def test_memory_that_ranks_share_counts_once(tmp_path: Path) -> None:
    """What the template holds is in each rank's resident set, and in the supervisor's; it is there once."""
    code = MODULES["train"] + "\nSHARED = np.ones(100 << 20, dtype=np.uint8)\n"
    with Bench(tmp_path, {"train": code}, ranks=3, memory=330 << 20) as bench:
        event = bench.slot.run(bench.request("hog", mib=1, folder=str(tmp_path)))
        notes(tmp_path)
        running = bench.running
        assert sessions.resident_memory(running.pid) > 400 << 20
        assert sessions.resident_memory(running.pid, limit=330 << 20) < 330 << 20
        bench.slot.kill(FailureClass.STOPPED, "enough")
        next_outcome(bench, event)
        assert "over its limit of 0.3 GiB" in bench.outcome("hog", mib=100, folder=str(tmp_path)).message


def test_ranks_of_a_spawned_trial_import_the_job_themselves(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": MODULES["train"] + THREAD}, ranks=2) as bench:
        outcome = bench.outcome("looks", folder=str(tmp_path))
        assert (outcome.state, outcome.start_method) == (TrialState.COMPLETE, "spawn"), outcome.message
        assert [facts["place"][:3] for facts in notes(tmp_path, 2)] == [[0, 0, 2], [1, 1, 2]]
        assert "ranks are spawned" not in bench.log(outcome), "the supervisor itself is clean"


def test_ranks_are_spawned_where_the_supervisor_has_a_thread(tmp_path: Path) -> None:
    """Every interpreter here starts with a thread, as one under a debugger does."""
    start = tmp_path / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text(THREAD)
    with Bench(tmp_path, MODULES, ranks=2, env={"PYTHONPATH": str(start)}) as bench:
        outcome = bench.outcome("looks", folder=str(tmp_path))
        assert outcome.state is TrialState.COMPLETE, outcome.message
        assert [facts["place"][:3] for facts in notes(tmp_path, 2)] == [[0, 0, 2], [1, 1, 2]]
        assert len({json.dumps(facts["random"]) for facts in notes(tmp_path, 2)}) == 1
        assert "supervisor: ranks are spawned, not forked: 1 thread(s) are alive" in bench.log(outcome)
        assert bench.outcome("prints", folder=str(tmp_path)).message.startswith("rank 1 was killed by SIGKILL")


@pytest.mark.slow
def test_two_nodes_run_one_trial(tmp_path: Path) -> None:
    """Two slots of one machine stand for two nodes."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(MODULES["train"])
    slots = []
    for node in range(2):
        root = tmp_path / f"node-{node}" / "toy"
        config = SlotConfig("toy", str(code), "train:run", str(root), str(tmp_path), preload=("torch",), ranks=2, nodes=2)
        slots.append(Slot(config, f"0-{node}"))
    addresses = [slot.start().address for slot in slots]
    assert all(port.isdigit() and int(port) for _, _, port in (address.rpartition(":") for address in addresses))
    events: list[Event] = [Event(), Event()]

    def run(node: int) -> None:
        request = TrialRequest(
            "toy",
            0,
            1,
            0,
            {"what": "reduces", "folder": str(tmp_path)},
            1,
            ("score",),
            60.0,
            node=node,
            rendezvous=addresses[0],
        )
        events[node] = slots[node].run(request)

    threads = [threading.Thread(target=run, args=(node,)) for node in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for slot in slots:
        slot.close()
    outcomes = [event.outcome for event in events]
    assert outcomes[0] is not None
    assert outcomes[1] is not None
    assert (outcomes[0].state, outcomes[0].metrics) == (TrialState.COMPLETE, {"score": 10.0}), outcomes[0].message
    assert (outcomes[1].state, outcomes[1].metrics) == (TrialState.COMPLETE, {}), outcomes[1].message
    assert [facts["value"] for facts in notes(tmp_path, 4)] == [10.0] * 4


@pytest.mark.parametrize("how", ["stop", "signal"])
@pytest.mark.parametrize(
    ("what", "grace", "said"),
    [
        ("stops", 60.0, "stopped by SIGTERM after step 7, with a checkpoint"),
        ("never_asks", 60.0, "stopped by SIGTERM at once, without a checkpoint"),
        ("asks_and_hangs", 0.3, "stopped by SIGTERM; it had not ended after 0.3 s, see ctx.stopping"),
    ],
)
def test_a_trial_of_one_process_stops_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, grace: float, said: str, how: str
) -> None:
    monkeypatch.setattr("trialplane.worker.running.STOP_MARGIN", 60.0)
    with Bench(tmp_path, MODULES, grace=grace) as bench:
        event = bench.slot.run(bench.request(what))
        running = bench.running
        if how == "stop":
            bench.slot.stop("enough")
        else:
            os.kill(running.pid, signal.SIGTERM)
        outcome = next_outcome(bench, event)
        assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.LOST)
        assert outcome.message == (f"enough: {said}" if how == "stop" else said)
        bench.slot.stop("nothing runs now")


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_slot_kills_what_cannot_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    monkeypatch.setattr("trialplane.worker.running.STOP_MARGIN", 0.1)
    with Bench(tmp_path, MODULES, ranks=ranks, grace=0.3) as bench:
        event = bench.slot.run(bench.request("stands_still"))
        running = bench.running
        os.kill(running.pid, signal.SIGSTOP)
        bench.slot.stop("enough")
        outcome = next_outcome(bench, event)
    assert (outcome.failure, outcome.exit_code) == (FailureClass.LOST, -signal.SIGKILL)
    assert outcome.message == "enough; it had not ended 0.3 s after SIGTERM and was killed"


def test_ranks_die_with_their_supervisor_also_when_nobody_else_is_there(shared: Bench, tmp_path: Path) -> None:
    event = shared.slot.run(shared.request("leaves_children", folder=str(tmp_path), then="wait"))
    ranks = [facts["pids"][0] for facts in notes(tmp_path)]
    (template,) = shared.templates()
    os.kill(template, signal.SIGSTOP)  # it would kill what a trial leaves
    shared.slot.kill(FailureClass.STOPPED, "enough")
    wait_until(lambda: not any(alive(pid) for pid in ranks), "the ranks are gone")
    os.kill(template, signal.SIGCONT)
    assert next_outcome(shared, event).failure is FailureClass.STOPPED
