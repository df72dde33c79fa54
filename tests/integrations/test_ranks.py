"""Trials of two ranks: rank 0 reports, a pruned trial ends in both, and a stop is taken by both in the same step.

Not checked here: how ranks are started and ended (tests/worker/test_ranks.py).
"""

from __future__ import annotations

import pytest
from tests.integrations.conftest import Trials

from trialplane.wire.states import FailureClass, TrialState

LIBRARIES = {"accelerate": [1, 2, 3, 4, 5, 6, 7, 8], "huggingface": [*range(2, 17, 2)], "lightning": [2, 4, 6, 8]}

every_library = pytest.mark.parametrize("library", LIBRARIES)


@every_library
def test_rank_0_reports_and_both_stop_in_the_same_step(ranks: Trials, library: str) -> None:
    whole = ranks.attempt(library)
    assert (whole.outcome.state, whole.outcome.message) == (TrialState.COMPLETE, ""), whole.outcome.traceback
    assert whole.steps == LIBRARIES[library]
    first = ranks.attempt(library, stop_at=2)
    step = {"accelerate": 2, "huggingface": 5, "lightning": 4}[library]
    assert first.outcome.failure is FailureClass.LOST, first.outcome.traceback
    assert first.outcome.message in {
        f"paused: stopped by {who} after step {step}, with a checkpoint" for who in ("SIGTERM", "itself")
    }
    second = ranks.attempt(library, after=first)
    assert second.outcome.state is TrialState.COMPLETE, second.outcome.traceback
    assert [*first.steps, *second.steps] == LIBRARIES[library]
    assert second.outcome.metrics == whole.outcome.metrics


@every_library
def test_a_signal_to_one_rank_stops_both(ranks: Trials, library: str) -> None:
    """To rank 1, which may or may not have read it when the others exchange what they know of the step before."""
    first = ranks.attempt(library, signal_at=2)
    steps = {"accelerate": (2, 3), "huggingface": (5,), "lightning": (4, 5)}[library]
    assert first.outcome.failure is FailureClass.LOST, first.outcome.traceback
    assert first.outcome.message in {
        f"stopped by {who} after step {step}, with a checkpoint" for who in ("SIGTERM", "itself") for step in steps
    }
    second = ranks.attempt(library, after=first)
    assert second.outcome.state is TrialState.COMPLETE, second.outcome.traceback


@every_library
def test_a_pruned_trial_ends_in_both_ranks(ranks: Trials, library: str) -> None:
    ended = ranks.attempt(library, prune_at=2)
    assert ended.outcome.state is TrialState.PRUNED
    assert ended.steps == LIBRARIES[library][:2]
