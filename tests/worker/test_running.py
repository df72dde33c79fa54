"""How long a trial may take, by a clock that goes as the test says: what the controller makes it wait is not its own time;
and how many metrics it may send.

Not checked here: real processes (test_slot.py), and a worker's limit (test_collect.py).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import types
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.worker.conftest import Event, Slot

from trialplane.wire import messages
from trialplane.wire.records import MAX_METRICS, MAX_NAME, SlotConfig, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import running as module
from trialplane.worker import slot as slots
from trialplane.worker import timers, trial_end
from trialplane.worker.channel import Channel, TrialChannel
from trialplane.worker.running import RunningTrial

LIMIT = 60.0


class Trial:
    """A trial in a slot, of which the test plays the process and the template."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, prunable: bool) -> None:
        self.now = 1000.0
        clock = types.SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        for each in (module, slots, timers):
            monkeypatch.setattr(each, "time", clock)
        self._request = TrialRequest(
            "toy", 0, 1, 0, {}, 1, ("score",), timeout=LIMIT, prunable=prunable, directions=("minimize",)
        )
        ours, theirs = socket.socketpair()
        self.channel: TrialChannel = Channel(theirs, messages.TO_TRIAL)
        self._control, self.template = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = SlotConfig("toy", "", "train:run", str(folder), "", linger=300.0)
        self.running = RunningTrial(
            config, self._request, Channel(ours, messages.FROM_TRIAL), folder / "work", started_at=self.now
        )
        self.slot = Slot(config, "0-1")
        self.slot.running, self.slot._control = self.running, self._control

    def report(self, step: int, metrics: Mapping[str, float] = types.MappingProxyType({"score": 0.5})) -> None:
        self.channel.send(messages.Reported(step, metrics, self.now, self.now))

    def ask(self, name: str) -> None:
        """Asks for a parameter, and is answered a minute later."""
        self.channel.send(messages.Suggest(name, "float", 0.0, 1.0))
        assert Event.of(self.slot.next_messages()).wanted is not None
        self.now += 60.0
        self.running.answer(None, messages.Suggested(None, "refused"))

    def is_killed(self) -> bool:
        """Whether it is over its time by now."""
        self.running.run_due_actions()
        assert self.running.kill_reason is None or self.running.kill_reason[0] is FailureClass.TIMEOUT
        return self.running.kill_reason is not None

    def exits(self) -> None:
        self.channel.send(messages.Ended(TrialOutcome(0, TrialState.COMPLETE, metrics={"score": 0.5})))
        self.channel.close()
        self.template.send(messages.encode(messages.TrialExited(0, 0, 0)))

    def close(self) -> None:
        for end in (self.channel, self.running.channel, self._control, self.template):
            end.close()


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Trial]:
    made = Trial(tmp_path, monkeypatch, prunable=getattr(request, "param", True))
    yield made
    made.close()


def test_the_time_that_a_trial_waits_for_an_answer_is_not_its_own(trial: Trial) -> None:
    trial.now += 50.0
    trial.report(1)
    trial.slot.next_messages()
    assert trial.running.is_answer_due
    trial.now += 600.0  # the controller waits for its database
    trial.running.answer(None)
    trial.now += 9.0
    assert not trial.is_killed()
    trial.now += 1.0
    assert trial.is_killed()


def test_a_report_that_came_while_the_controller_was_busy_waits_as_well(trial: Trial) -> None:
    """As after a piece of its log, with which the slot had turned to the controller already."""
    trial.report(1)
    trial.now += 600.0
    assert [report.step for report in trial.slot.answer().reports] == [1]
    assert trial.running.kill_reason is None
    trial.running.answer(None)
    assert trial.running.timers.until_next() == LIMIT


def test_a_trial_without_rungs_may_not_wait_for_its_record(trial: Trial) -> None:
    trial.channel.send(messages.Confirm())
    trial.exits()
    assert trial.slot.next_messages()
    assert trial.running.kill_reason is not None
    assert "only a trial with rungs may" in trial.running.kill_reason[1]


@pytest.mark.parametrize("trial", [True, False], indirect=True)
def test_time_in_which_nobody_reads_what_a_trial_says_is_not_its_own(trial: Trial) -> None:
    """Its reports fill the channel at last, and then it stands still."""
    trial.now += 50.0
    trial.report(1)
    assert [report.step for report in Event.of(trial.slot.next_messages()).reports] == [1]
    trial.now += 3.0
    trial.report(2)
    trial.now += 597.0
    trial.running.answer(None)
    assert not trial.is_killed()
    assert [report.step for report in Event.of(trial.slot.next_messages()).reports] == [2]
    trial.now += 600.0
    trial.running.answer(None)
    assert trial.running.timers.until_next() == 10.0, "none of the first ten minutes counts twice"


@pytest.mark.parametrize("trial", [False], indirect=True)
def test_a_trial_that_waits_for_nobody_has_its_limit_and_no_more(trial: Trial) -> None:
    trial.report(1)
    trial.now += LIMIT
    assert trial.is_killed()


def test_times_of_ranks_are_no_result_of_a_process_that_dies(trial: Trial) -> None:
    trial.report(1, {"score": 0.5, "rank_seconds/0": 0.1})
    assert trial.running.receive()
    assert trial.running.last_metrics == {"score": 0.5}
    assert trial.running.reports[-1].metrics == {"score": 0.5, "rank_seconds/0": 0.1}


def test_a_limit_moves_once_for_each_parameter_that_is_asked_for(trial: Trial) -> None:
    """Whatever is answered: an objective that asks for one without an end has a limit, too."""
    for name in ("x", "y"):
        trial.ask(name)
    assert trial.running.timers.until_next() == LIMIT
    trial.now += 10.0
    trial.ask("x")
    assert trial.is_killed()


def test_a_deadline_is_no_concern_of_what_has_returned(trial: Trial) -> None:
    trial.now += LIMIT - 1
    trial.channel.send(messages.Ended(TrialOutcome(0, TrialState.COMPLETE, metrics={"score": 0.5})))
    assert trial.running.receive()
    trial.now += 2.0
    assert not trial.is_killed()
    trial.now += 4.0
    assert trial.running.run_due_actions() == (messages.Exiting(),)
    trial.now += 293.0
    assert not trial.is_killed()
    trial.now += 1.0
    assert trial.is_killed(), "budget.exit_timeout is a limit, too"


def test_a_result_that_has_not_been_read_ends_the_limit(trial: Trial) -> None:
    trial.now += LIMIT
    trial.channel.send(messages.Ended(TrialOutcome(0, TrialState.COMPLETE, metrics={"score": 0.5})))
    assert not trial.is_killed()
    assert trial.running.receive()
    assert not trial.is_killed()


@pytest.mark.parametrize("trial", [False], indirect=True)
def test_a_process_that_writes_its_stacks_for_too_long_is_killed(trial: Trial) -> None:
    child = subprocess.Popen(["sh", "-c", "trap '' ABRT; echo; exec sleep 600"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    trial.running.handle_start(child.pid, "fork", os.pidfd_open(child.pid))
    try:
        trial.now += LIMIT
        assert trial.is_killed()
        trial.now += module.ABORT_GRACE / 2
        assert trial.is_killed() and child.poll() is None
        trial.now += module.ABORT_GRACE / 2
        assert trial.is_killed()
        assert child.wait(timeout=60) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        trial.running.handle_exit()


def test_what_ended_while_the_controller_was_busy_has_ended_well(trial: Trial) -> None:
    trial.exits()
    trial.now += 600.0
    outcome = trial.slot.answer().outcome
    assert outcome is not None
    assert (outcome.state, outcome.message) == (TrialState.COMPLETE, "")


def test_a_process_that_reads_nothing_is_killed_for_it(trial: Trial) -> None:
    trial.running.channel.set_patience(0.05)
    for _ in range(10_000):
        if trial.running.kill_reason is not None:
            break
        trial.running.send(messages.ReleaseResults((1, 2, 3)))
    assert trial.running.kill_reason is not None, "a full socket holds a slot up for so long, and not for ever"
    failure, message = trial.running.kill_reason
    assert (failure, message.startswith("the process did not read its slot's messages within ")) == (
        FailureClass.INVALID,
        True,
    )


@pytest.mark.parametrize("trial", [False], indirect=True)
def test_a_program_that_is_over_before_its_start_is_known_is_signalled_then(trial: Trial) -> None:
    """Its report, and the answer that prunes it, may overtake the template's message."""
    trial.running.answer(3)
    child = subprocess.Popen(["sleep", "600"])
    trial.running.handle_start(child.pid, "fork", os.pidfd_open(child.pid))
    try:
        assert child.wait(timeout=60) == -signal.SIGTERM
    finally:
        child.kill()
        trial.running.handle_exit()
    assert trial_end.outcome_of(trial.running, -signal.SIGTERM, "").state is TrialState.PRUNED


def test_of_more_metrics_than_one_may_have_those_that_count_are_recorded(trial: Trial) -> None:
    many = {f"class_{number}": 0.1 for number in range(MAX_METRICS + 5)}
    many |= {"n" * (MAX_NAME + 1): 0.2, "score": 0.5}
    trial.report(1, many)
    (report,) = Event.of(trial.slot.next_messages()).reports
    trial.running.answer(None)
    trial.running.handle_outcome(TrialOutcome(0, TrialState.COMPLETE, metrics=many, remark="slow disk"))
    for found in (report, trial.running.final_outcome):
        assert found is not None
        assert list(found.metrics.items())[:2] == [("score", 0.5), ("class_0", 0.1)]
        assert len(found.metrics) == MAX_METRICS
        assert "of 1,007 metrics 1,000 were recorded" in found.remark
    assert trial.running.final_outcome is not None
    assert trial.running.final_outcome.remark.startswith("slow disk; ")
