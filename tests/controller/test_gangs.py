"""Gangs: when the slots of a trial of several nodes start together, who speaks for it, and how it ends when one fails.

The slots are a double that does what it is told; real ones, with ranks in them, are in tests/study/test_training.py. Not
checked here: slots by themselves (tests/worker/test_slot.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from tests.controller.conftest import request
from tests.controller.slots_double import Slots

from trialplane import errors
from trialplane.controller import gangs
from trialplane.controller.gangs import GangPool
from trialplane.controller.pool import SlotReady, SlotTrial
from trialplane.wire.messages import LogGrown
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialReport
from trialplane.wire.states import FailureClass, TrialState

CONFIG = SlotConfig("toy", "/code", "train:run", "/root", "/cache", nodes=2, grace=30.0)


class Gangs:
    """The gangs over such slots, driven as the loop does it."""

    def __init__(self, size: int = 2) -> None:
        self.slots = Slots(size)
        self.pool = GangPool(self.slots, CONFIG)
        self.ready: list[SlotReady] = []
        self.said: list[SlotTrial] = []

    def listen(self, prune_at: int | None = None) -> list[SlotTrial]:
        """Hears everything there is to hear and answers it; gives the trials' events."""
        heard = []
        for said in self.pool.events(0):
            if isinstance(said, SlotReady):
                self.ready.append(said)
            else:
                heard.append(said)
                if said.outcome is None:
                    self.pool.answer(said.slot, prune_at)
        return heard

    def run(self) -> None:
        """Two slots are warm and run a trial together."""
        self.slots.warm(0, 1)
        self.listen()
        self.pool.start(0, request(5))

    def outcomes(self) -> list[TrialOutcome]:
        return [said.outcome for said in self.listen() if said.outcome is not None]


@pytest.fixture
def two() -> Gangs:
    made = Gangs()
    made.run()
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(gangs.time, "monotonic", lambda: now[0])
    return now


def test_a_trial_starts_when_all_of_its_slots_are_ready() -> None:
    made = Gangs()
    made.slots.warm(1)
    made.listen()
    assert not made.ready
    made.slots.warm(0)
    made.listen()
    assert [ready.slot for ready in made.ready] == [0]
    made.pool.start(0, request(5))
    placed = {slot: (asked.node, asked.rendezvous) for slot, asked in made.slots.started.items()}
    assert placed == {0: (0, "pod-0:1"), 1: (1, "pod-0:1")}, "one rendezvous, where node 0 is"
    assert all(dataclasses.replace(asked, node=0, rendezvous="") == request(5) for asked in made.slots.started.values())
    assert made.pool.running() == {0: request(5)}


def test_node_0_speaks_for_the_trial_and_the_log_is_everybodys(two: Gangs) -> None:
    two.slots.say(1, reports=(TrialReport(5, 1, {"loss": 9.0}, 1.0),), log=b"[rank 2] hello\n")
    two.slots.say(0, reports=(TrialReport(5, 1, {"loss": 3.0}, 1.0),))
    other, own = two.listen(prune_at=1)
    assert other.messages == (LogGrown(b"[rank 2] hello\n"),)
    assert own.reports[0].metrics == {"loss": 3.0}
    assert two.slots.answered == [(1, None), (0, 1)], "each is answered, and node 0 alone hears the pruner"


def test_node_0_waits_for_the_record_of_its_reports(two: Gangs) -> None:
    two.slots.say(0, reports=(TrialReport(5, 1, {"loss": 3.0}, 1.0),), confirm=True)
    (event,) = two.listen()
    assert event.awaits_record and len(event.reports) == 1


def test_the_times_of_other_nodes_ranks_come_with_node_0s_next_report(two: Gangs) -> None:
    two.slots.say(1, reports=(TrialReport(5, 1, {"rank_seconds/2": 0.2, "rank_seconds/3": 0.3, "loss": 9.0}, 1.0),))
    assert [said.reports for said in two.listen()] == [()]
    reports = (TrialReport(5, 1, {"loss": 3.0, "rank_seconds/0": 0.1}, 2.0), TrialReport(5, 2, {"loss": 2.0}, 3.0))
    two.slots.say(0, reports=reports)
    (said,) = two.listen()
    assert [report.metrics for report in said.reports] == [
        {"loss": 3.0, "rank_seconds/0": 0.1, "rank_seconds/2": 0.2, "rank_seconds/3": 0.3},
        {"loss": 2.0},
    ]


def test_a_sample_of_system_metrics_stays_as_it_is(two: Gangs) -> None:
    two.slots.say(1, reports=(TrialReport(5, 1, {"rank_seconds/2": 0.2}, 1.0),))
    two.listen()
    use = {"system/cpu_utilization_percentage": 50.0}
    two.slots.say(0, reports=(TrialReport(5, 0, use, 2.0), TrialReport(5, 2, {"loss": 2.0}, 3.0)))
    (said,) = two.listen()
    assert [report.metrics for report in said.reports] == [use, {"loss": 2.0, "rank_seconds/2": 0.2}]


def test_a_trial_is_told_once_when_every_node_is_free(two: Gangs) -> None:
    two.slots.end(0, metrics={"loss": 1.0}, arrays="packed", store="store-0")
    (last,) = two.listen()
    assert last.messages == (LogGrown(b"the end"),), "node 0 has ended, and the trial not yet"
    assert two.pool.running()
    two.slots.end(1, metrics={"loss": 7.0}, arrays="other", store="store-1")
    *_, ended = two.listen()
    assert ended.outcome is not None
    assert ended.outcome.state is TrialState.COMPLETE
    assert ended.outcome.metrics == {"loss": 1.0}
    assert (ended.arrays, ended.store, ended.slot_lost) == ("packed", "store-0", False)
    assert ended.request == request(5), "as the loop gave it"
    assert not two.pool.running()
    two.pool.start(0, request(6))


def test_a_node_that_hangs_when_rank_0_has_returned_is_ended_and_the_result_counts(two: Gangs, clock: list[float]) -> None:
    two.slots.end(0, metrics={"loss": 1.0}, arrays="packed")
    assert not two.outcomes()
    clock[0] += CONFIG.linger - 1
    two.listen()
    assert not two.slots.killed
    clock[0] += 1
    two.listen()
    assert [(slot, failure) for slot, failure, _ in two.slots.killed] == [(1, FailureClass.LOST)]
    two.slots.fail(1, FailureClass.LOST, "killed")
    *_, ended = two.listen()
    assert ended.outcome is not None
    assert (ended.outcome.state, ended.outcome.metrics) == (TrialState.COMPLETE, {"loss": 1.0})
    text = f"node 1 was ended because it was still at work {CONFIG.linger:g} s after rank 0 had returned its result"
    assert (ended.outcome.message, ended.arrays) == (text, "packed")


def test_a_node_that_ended_while_the_controller_waited_was_not_late(two: Gangs, clock: list[float]) -> None:
    two.slots.end(0, metrics={"loss": 1.0})
    assert not two.outcomes()
    clock[0] += 10 * CONFIG.linger  # for its database, say
    two.slots.end(1, metrics={})
    (ended,) = two.outcomes()
    assert (ended.state, ended.message) == (TrialState.COMPLETE, "")


def test_what_ended_before_the_slots_failed_is_an_outcome(two: Gangs, monkeypatch: pytest.MonkeyPatch) -> None:
    two.slots.end(0, metrics={"loss": 1.0})
    two.slots.end(1, metrics={})
    said = list(two.slots.events(0))

    def events(timeout: float) -> Iterator[Any]:
        yield from said
        raise errors.SlotError("3 slots in a row could not be started")

    monkeypatch.setattr(two.slots, "events", events)
    heard = []
    with pytest.raises(errors.SlotError):
        for event in two.pool.events(0):
            heard.append(event)
    told = [one.outcome for one in heard if isinstance(one, SlotTrial) and one.outcome is not None]
    assert [outcome.state for outcome in told] == [TrialState.COMPLETE]


@pytest.mark.parametrize(("prunable", "timeouts"), [(True, [60.0, None]), (False, [60.0, 60.0])])
def test_nodes_that_wait_for_an_answer_to_node_0_have_its_deadline(prunable: bool, timeouts: list[float | None]) -> None:
    made = Gangs()
    made.slots.warm(0, 1)
    made.listen()
    made.pool.start(0, request(5, prunable=prunable, timeout=60.0))
    assert [made.slots.started[slot].timeout for slot in (0, 1)] == timeouts


def test_a_node_that_is_done_first_ends_nobody(two: Gangs, clock: list[float]) -> None:
    two.slots.end(1, metrics={})
    assert not two.outcomes()
    clock[0] += 10 * CONFIG.linger
    two.listen()
    assert not two.slots.killed


def test_the_first_failure_ends_the_others_and_is_the_trials(two: Gangs) -> None:
    two.slots.fail(1, FailureClass.OOM, "CUDA out of memory")
    assert not two.outcomes()
    assert [(slot, failure) for slot, failure, _ in two.slots.killed] == [(0, FailureClass.LOST)]
    two.slots.fail(0, FailureClass.LOST, "ended because another node failed")
    (ended,) = two.outcomes()
    assert (ended.failure, ended.message) == (FailureClass.OOM, "node 1 (pod-1): CUDA out of memory")


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_lost_its_peers_is_not_the_cause(two: Gangs, clock: list[float], first: int) -> None:
    hint = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711"
    ends = [(0, FailureClass.ERROR, hint), (1, FailureClass.CRASHED, "the process was killed by SIGKILL")]
    two.slots.fail(*ends[first])
    assert not two.outcomes()
    assert bool(two.slots.killed) is bool(first), "who may not be the cause does not end the one that knows it"
    clock[0] += 1.0
    two.slots.fail(*ends[1 - first])
    (ended,) = two.outcomes()
    assert (ended.failure, ended.message) == (FailureClass.CRASHED, "node 1 (pod-1): the process was killed by SIGKILL")


def test_nodes_that_lost_each_other_are_tried_again(two: Gangs, clock: list[float]) -> None:
    two.slots.fail(1, FailureClass.ERROR, "DistBackendError: NCCL error, remote process exited or there was a network error")
    two.listen()
    assert not two.slots.killed
    clock[0] += CONFIG.grace + gangs.MARGIN  # node 0 stands in a collective and knows of nothing
    two.listen()
    assert [slot for slot, *_ in two.slots.killed] == [0]
    two.slots.fail(0, FailureClass.LOST, "killed")
    (ended,) = two.outcomes()
    assert ended.failure is FailureClass.LOST
    assert "lost each other" in ended.message


def test_all_nodes_of_a_trial_that_stops_get_the_time_to_save_it(two: Gangs, clock: list[float]) -> None:
    two.pool.stop(0, "paused")
    assert two.slots.stopped == [0, 1]
    two.slots.fail(1, FailureClass.LOST, "stopped by SIGTERM after step 7, with a checkpoint")
    clock[0] += CONFIG.grace - 1
    two.listen()
    assert not two.slots.killed
    two.slots.fail(0, FailureClass.LOST, "stopped by SIGTERM after step 7, with a checkpoint")
    (ended,) = two.outcomes()
    assert ended.failure is FailureClass.LOST


def test_a_node_whose_pod_ends_leaves_the_others_the_time_to_save_the_trial(two: Gangs, clock: list[float]) -> None:
    """The pool gives its slot up; the others have the checkpoint to write, which they began together."""
    two.slots.fail(1, FailureClass.LOST, "stopped by SIGTERM after step 7, with a checkpoint", slot_lost=True, exit_code=0)
    two.listen()
    clock[0] += CONFIG.grace - 1
    two.listen()
    assert not two.slots.killed
    two.slots.fail(0, FailureClass.LOST, "stopped by SIGTERM after step 7, with a checkpoint")
    *_, ended = two.listen()
    assert ended.slot_lost


def test_a_lost_slot_ends_the_trial_and_a_new_gang_is_made_when_there_is_a_new_slot(two: Gangs) -> None:
    two.slots.fail(0, FailureClass.LOST, "slot 0 was lost", slot_lost=True)
    two.slots.warm(0, port=2)  # the new one is there before the others have ended
    two.listen()
    assert [slot for slot, *_ in two.slots.killed] == [1], "at once: it waits for ranks that are gone"
    two.slots.fail(1, FailureClass.LOST, "killed")
    two.ready.clear()
    (ended,) = two.listen()[-1:]
    assert ended.slot_lost
    assert ended.outcome is not None
    assert ended.outcome.failure is FailureClass.LOST
    assert ended.outcome.message == "slot 0 was lost"
    assert [ready.slot for ready in two.ready] == [0]
    two.pool.start(0, request(6))
    assert two.slots.started[1].rendezvous == "pod-0:2", "and the ranks meet at the new one"


def test_a_pruned_trial_ends_on_all_nodes(two: Gangs) -> None:
    two.slots.end(0, state=TrialState.PRUNED, metrics={"loss": 5.0})
    two.listen()
    assert [slot for slot, *_ in two.slots.killed] == [1]
    two.slots.fail(1, FailureClass.LOST, "killed")
    (ended,) = two.outcomes()
    assert (ended.state, ended.failure) == (TrialState.PRUNED, None)


@pytest.mark.parametrize("first", [0, 1], ids=["node 0 ends first", "node 1 has lost node 0 before it ends"])
def test_a_trial_that_a_stop_rule_ends_is_complete_on_all_nodes(two: Gangs, first: int) -> None:
    if first == 1:
        two.slots.fail(1, FailureClass.ERROR, "RuntimeError: Connection reset by peer")
        two.listen()
    two.slots.end(0, metrics={"loss": 5.0}, message="stopped at step 3", early=True)
    if first == 0:
        two.listen()
        assert [slot for slot, *_ in two.slots.killed] == [1], "at once"
        two.slots.fail(1, FailureClass.LOST, "killed")
    (ended,) = two.outcomes()
    assert (ended.state, ended.metrics, ended.message) == (TrialState.COMPLETE, {"loss": 5.0}, "stopped at step 3")


def test_a_kill_reaches_every_node_that_has_not_ended(two: Gangs) -> None:
    two.slots.end(1)
    two.listen()
    two.pool.kill(0, FailureClass.STOPPED, "stopped")
    assert [(slot, failure) for slot, failure, _ in two.slots.killed] == [(0, FailureClass.STOPPED)]
    two.slots.fail(0, FailureClass.STOPPED, "stopped")
    (ended,) = two.outcomes()
    assert ended.failure is FailureClass.STOPPED


def test_a_failure_after_node_0_has_ended_well_is_one_all_the_same(two: Gangs) -> None:
    two.slots.end(0)
    two.listen()
    two.slots.fail(1, FailureClass.ERROR, "ValueError: no room for the shard")
    (ended,) = two.outcomes()
    assert ended.failure is FailureClass.ERROR
    assert ended.metrics == {"score": 0.5}, "what the trial reported is node 0's"


def test_a_smaller_pool_takes_idle_gangs_apart_and_a_larger_one_makes_more() -> None:
    made = Gangs(6)
    made.slots.warm(0, 1, 2, 3, 4)
    made.listen()
    assert [ready.slot for ready in made.ready] == [0, 1]
    assert made.pool.size == 3
    made.pool.start(0, request(5))
    made.pool.resize(1)
    assert (made.pool.idle, made.pool.running()) == ([], {0: request(5)})
    made.ready.clear()
    made.slots.warm(2)
    made.listen()
    assert not made.ready, "one slot is not a gang"
    made.pool.resize(2)
    made.slots.warm(3)
    made.listen()
    assert [ready.slot for ready in made.ready] == [1]
