"""Which outcome a trial of several ranks has: pure, from what ranks say and how their processes end.

Not checked here: real processes (test_ranks.py).
"""

from __future__ import annotations

import signal

import pytest

from trialplane.wire import causes
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker.ranks.verdict import NextStep, Verdict

COMPLETE = TrialOutcome(5, TrialState.COMPLETE, metrics={"score": 1.0})
EARLY = TrialOutcome(5, TrialState.COMPLETE, metrics={"score": 1.0}, message="stopped at step 3", early=True)
PRUNED = TrialOutcome(5, TrialState.PRUNED, message="pruned at step 3")
STOPPED = TrialOutcome(5, TrialState.FAILED, FailureClass.LOST, message="stopped by SIGTERM after step 9, with a checkpoint")
ERROR = TrialOutcome(5, TrialState.FAILED, FailureClass.ERROR, message="ValueError: no such colour (train.py:3)")
RESET = TrialOutcome(5, TrialState.FAILED, FailureClass.ERROR, message="RuntimeError: Connection reset by peer (train.py:9)")


def verdict(ranks: int = 3, first: int = 0) -> Verdict:
    return Verdict(5, range(first, first + ranks), 30.0)


def test_complete_when_all_are() -> None:
    trial = verdict()
    assert [trial.handle_outcome(rank, COMPLETE) for rank in (2, 0, 1)] == [NextStep.GO_ON, NextStep.RESULT, NextStep.GO_ON]
    assert trial.outcome({}) == COMPLETE


def test_ranks_that_are_left_when_the_result_is_there_do_not_change_it() -> None:
    trial = verdict()
    assert trial.handle_outcome(0, COMPLETE) is NextStep.RESULT
    trial.record_late([1, 2], 300.0)
    assert trial.handle_exit(1, -signal.SIGABRT) is NextStep.GO_ON
    assert trial.handle_exit(2, -signal.SIGKILL) is NextStep.GO_ON
    outcome = trial.outcome({})
    text = "ranks 1, 2 had not ended 300 s after rank 0 had returned its result, and had to be ended"
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 1.0})
    assert outcome.message == f"{text}; the log has their stacks"
    assert trial.remarks == [text]


def test_on_a_node_without_rank_0_nobody_knows_when_the_result_is_there() -> None:
    trial = verdict(ranks=2, first=2)
    assert trial.handle_outcome(2, COMPLETE) is NextStep.GO_ON


def test_the_first_failure_counts() -> None:
    trial = verdict()
    assert trial.handle_outcome(2, ERROR) is NextStep.END
    assert trial.handle_outcome(1, RESET) is NextStep.GO_ON
    assert trial.handle_exit(0, -signal.SIGTERM) is NextStep.GO_ON
    outcome = trial.outcome({"loss": 2.0})
    assert (outcome.message, outcome.metrics) == (f"rank 2: {ERROR.message}", {"loss": 2.0})


def test_what_may_have_followed_waits_for_its_cause() -> None:
    trial = verdict()
    assert trial.handle_outcome(1, RESET) is NextStep.SETTLE
    assert trial.handle_outcome(0, RESET) is NextStep.SETTLE
    assert trial.handle_exit(2, -signal.SIGSEGV) is NextStep.END
    outcome = trial.outcome({})
    assert (outcome.failure, outcome.message) == (FailureClass.CRASHED, "rank 2 was killed by SIGSEGV")


def test_without_a_cause_the_first_that_followed_counts() -> None:
    trial = verdict()
    trial.handle_outcome(1, RESET)
    trial.handle_outcome(0, RESET)
    trial.decide_cause()
    assert trial.outcome({}).message == f"rank 1: {RESET.message}"


def test_an_abort_may_be_nccls_watchdog() -> None:
    trial = verdict()
    assert trial.handle_exit(1, -signal.SIGABRT) is NextStep.SETTLE
    assert trial.handle_outcome(0, ERROR) is NextStep.END
    assert trial.outcome({}).message.startswith("rank 0: ValueError")


def test_pruned_is_everybodys_outcome() -> None:
    trial = verdict()
    assert trial.handle_outcome(0, PRUNED) is NextStep.END
    outcome = trial.outcome({"score": 0.25})
    assert (outcome.state, outcome.metrics) == (TrialState.PRUNED, {"score": 0.25})


def test_a_trial_that_a_stop_rule_ends_is_complete_and_nobody_else_goes_on() -> None:
    trial = verdict()
    assert trial.handle_outcome(0, EARLY) is NextStep.END
    assert trial.handle_outcome(1, RESET) is NextStep.GO_ON
    assert trial.handle_exit(2, -signal.SIGKILL) is NextStep.GO_ON
    assert trial.outcome({"score": 0.25}) == EARLY, "with all that it has reported"


def test_one_that_stops_stops_all() -> None:
    trial = verdict()
    assert trial.handle_outcome(1, STOPPED) is NextStep.STOP
    assert trial.handle_outcome(0, STOPPED) is NextStep.GO_ON
    assert trial.handle_outcome(2, RESET) is NextStep.GO_ON, "its peers are gone, as was asked"
    assert trial.remarks == [f"rank 2: {RESET.message}; not counted, since the ranks were already requested to stop"]
    assert (trial.outcome({}).failure, trial.outcome({}).message) == (FailureClass.LOST, STOPPED.message)


def test_an_error_while_stopping_is_an_error() -> None:
    trial = verdict()
    trial.is_stopping = True
    assert trial.handle_outcome(1, ERROR) is NextStep.END
    assert trial.outcome({}).failure is FailureClass.ERROR


def test_a_result_that_is_there_stays() -> None:
    """Rank 0 has ended with it; the others lose their connection to it while they end."""
    trial = verdict()
    trial.handle_outcome(0, COMPLETE)
    assert trial.handle_outcome(1, RESET) is NextStep.GO_ON
    assert trial.remarks == [f"rank 1: {RESET.message}; not counted, since the result was already complete"]
    assert trial.outcome({}) == COMPLETE
    trial.handle_exit(2, -signal.SIGKILL)
    assert trial.outcome({}).failure is FailureClass.CRASHED, "but a rank that is killed is no word about a connection"


def test_a_node_without_rank_0_is_complete_when_all_are() -> None:
    trial = verdict(first=3)
    trial.handle_outcome(3, COMPLETE)
    trial.handle_outcome(4, COMPLETE)
    assert trial.handle_outcome(5, RESET) is NextStep.SETTLE
    assert trial.outcome({}).message == f"rank 5: {RESET.message}"


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:12345",
        "DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited",
        "DistNetworkError: failed to recv, got 0 bytes",
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
)
def test_what_the_other_end_leaves(message: str) -> None:
    assert causes.may_be_consequence(TrialOutcome(0, TrialState.FAILED, FailureClass.ERROR, message=message))
    assert not causes.may_be_consequence(TrialOutcome(0, TrialState.FAILED, FailureClass.OOM, message=message))
    assert not causes.may_be_consequence(ERROR)
