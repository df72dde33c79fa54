"""What a pool of slots says: a slot is ready, its trial says something, results have moved. Frozen values."""

from __future__ import annotations

import dataclasses
from typing import Any

from trialplane.wire.messages import FromSlot, TrialEnded
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest


@dataclasses.dataclass(frozen=True)
class SlotReady:
    """A slot's template is warm.

    `unclean` says why its trials are spawned, not forked; `mlflow` whether the job has imported MLflow; `node` is its
    host or pod, `address` a host:port of it where ranks of several nodes can meet.
    """

    slot: int
    seconds: float
    unclean: tuple[str, ...]
    mlflow: bool
    node: str
    address: str = ""


@dataclasses.dataclass(frozen=True)
class SlotTrial:
    """There are messages about the trial of a slot; TrialEnded is the last one.

    `arrays` holds the packed arrays of its result, `store` the packed MLflow store of its own; `gone` says that the slot
    is no more, and that a new one is on its way unless the pool has become smaller.
    """

    slot: int
    request: TrialRequest
    messages: tuple[FromSlot, ...] = ()
    arrays: Any = None
    store: Any = None
    gone: bool = False

    @property
    def ended(self) -> TrialEnded | None:
        """Its end, when it is over."""
        last = self.messages[-1] if self.messages else None
        return last if isinstance(last, TrialEnded) else None

    @property
    def outcome(self) -> TrialOutcome | None:
        """How it ended, when it is over."""
        return None if self.ended is None else self.ended.outcome

    @property
    def reports(self) -> tuple[TrialReport, ...]:
        """What it has reported."""
        return tuple(message for message in self.messages if isinstance(message, TrialReport))


@dataclasses.dataclass(frozen=True)
class SlotFetched:
    """Results that a slot's trial offered lie in the object store, as a list in the order of `units`; `gone` do not.

    Each `fetch` has one such answer, whatever becomes of the slot. `why` says what went wrong in a slot that is still there.
    """

    slot: int
    request: TrialRequest
    units: tuple[int, ...] = ()
    reference: Any = None
    gone: tuple[int, ...] = ()
    why: str = ""


@dataclasses.dataclass(frozen=True)
class SlotFed:
    """A slot's trial has the results, or they were lost on their way. Each `feed` has one such answer; `why` as above."""

    slot: int
    request: TrialRequest
    units: tuple[int, ...]
    lost: bool
    why: str = ""


SlotEvent = SlotReady | SlotTrial | SlotFetched | SlotFed
