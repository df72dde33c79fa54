"""Which of several failures is the cause: when one rank dies, the others fail because it is gone.

Pure: used by the supervisor of a node's ranks, and where the outcomes of several nodes are joined.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState

# Messages of gloo, NCCL, torch's store and Python when the other end is gone; in lower case.
_OTHER_END = (
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


def may_follow(outcome: TrialOutcome) -> bool:
    """Whether a failure may be there only because another process has failed before."""
    if outcome.state is not TrialState.FAILED:
        return False
    if outcome.failure is FailureClass.CRASHED and outcome.exit_code == -signal.SIGABRT:
        return True  # NCCL's watchdog ends its process so
    message = outcome.message.lower()
    return outcome.failure is FailureClass.ERROR and any(text in message for text in _OTHER_END)


def cause(failures: Sequence[TrialOutcome]) -> TrialOutcome:
    """The first failure that cannot have followed from another, else the first; of at least one, in order of arrival."""
    return next((failure for failure in failures if not may_follow(failure)), failures[0])
