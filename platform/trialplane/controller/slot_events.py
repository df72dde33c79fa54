"""The events of a pool of slots: a slot is ready, or its process sent messages. Frozen values."""

from __future__ import annotations

import dataclasses
from typing import Any

from trialplane.wire.messages import FromSlot, Suggest, TrialEnded
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest


@dataclasses.dataclass(frozen=True)
class SlotReady:
    """A slot's template is warm.

    `unclean` lists why its trials are spawned, not forked; `mlflow` is whether the job has imported MLflow; `node` is its
    host or pod, `address` a host:port of it for the rendezvous of ranks on several nodes.
    """

    slot: int
    seconds: float
    unclean: tuple[str, ...]
    mlflow: bool
    node: str
    address: str = ""


@dataclasses.dataclass(frozen=True)
class SlotTrial:
    """Messages of the process in a slot; TrialEnded is the last one.

    `arrays` holds the packed arrays of its result, `store` its own packed MLflow store; `gone` means that the slot is lost,
    and is being replaced unless the pool has become smaller.
    """

    slot: int
    request: TrialRequest
    messages: tuple[FromSlot, ...] = ()
    arrays: Any = None
    store: Any = None
    gone: bool = False

    @property
    def ended(self) -> TrialEnded | None:
        """Its end, if it has ended."""
        last = self.messages[-1] if self.messages else None
        return last if isinstance(last, TrialEnded) else None

    @property
    def outcome(self) -> TrialOutcome | None:
        """Its outcome, if it has ended."""
        return None if self.ended is None else self.ended.outcome

    @property
    def reports(self) -> tuple[TrialReport, ...]:
        """What it has reported."""
        return tuple(message for message in self.messages if isinstance(message, TrialReport))

    def with_first(self, reports: int) -> SlotTrial:
        """The event with so many of its reports, the first ones."""
        others = (message for message in self.messages if not isinstance(message, TrialReport))
        return dataclasses.replace(self, messages=(*self.reports[:reports], *others))

    @property
    def wanted(self) -> Suggest | None:
        """The parameter that it waits for, if it does."""
        return next((message for message in self.messages if isinstance(message, Suggest)), None)


SlotEvent = SlotReady | SlotTrial
