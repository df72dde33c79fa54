"""Finds the failure of a rank that caused those of the others, which fail because they lose the connection to it.

The supervisor uses it for the ranks of a node, and the controller for the outcomes of several nodes. Pure.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState

# Parts of the messages of gloo, NCCL, torch's store and Python about a lost connection, in lower case.
_LOST_CONNECTION = (
    "connectionerror",
    "connectionreseterror",
    "connectionrefusederror",
    "brokenpipeerror",
    "distbackenderror",
    "distnetworkerror",
    "diststoreerror",
    "connection closed by",
    "connection reset by",
    "connection refused",
    "broken pipe",
    "gloo/transport",
    "nccl error",
    "ncclremoteerror",
    "ncclsystemerror",
    "failed to recv",
    "socket timeout",
)


def may_be_consequence(outcome: TrialOutcome) -> bool:
    """Whether an attempt may have failed only because another process of the trial had failed before."""
    if outcome.state is not TrialState.FAILED:
        return False
    if outcome.failure is FailureClass.CRASHED and outcome.exit_code == -signal.SIGABRT:
        return True  # NCCL's watchdog aborts its process when another rank is lost
    message = outcome.message.lower()
    return outcome.failure is FailureClass.ERROR and any(text in message for text in _LOST_CONNECTION)


def cause(failures: Sequence[TrialOutcome]) -> TrialOutcome:
    """Return the first failure that cannot be the consequence of another one. If all can be, return the first failure.

    Args:
        failures: At least one failure, in the order of arrival.
    """
    return next((failure for failure in failures if not may_be_consequence(failure)), failures[0])
