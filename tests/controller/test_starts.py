"""Start and slot of an attempt in the ledger while it runs, and after its controller was killed.

The loop and the ledger are real; slots and MLflow are doubles.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.controller.loops import Loop
from tests.controller.trainings import SEARCH, Opened, job

from trialplane.errors import LedgerFull
from trialplane.ledger import results
from trialplane.wire.records import TrialRequest, TrialRow
from trialplane.wire.states import FailureClass, TrialState

STUDY = job(**{**SEARCH, "trials": 4})


class Killed(Exception):
    """The controller ends here."""


def read(opened: Opened) -> list[TrialRow]:
    return results.attempts(opened.run.ledger, "toy-1", STUDY, alive=True)


def test_a_running_attempt_has_its_start_and_its_slot(opened: Opened) -> None:
    begun = time.time()
    loop = Loop(opened.open(STUDY), opened.run, None, size=3)
    start = loop.slots.start
    seen: list[TrialRow] = []

    def begin(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        seen.append(read(opened)[request.number])
        assert (seen[-1].state, seen[-1].slot) == (TrialState.RUNNING, slot)
        if len(seen) == 3:
            raise Killed

    loop.slots.start = begin  # type: ignore[method-assign]
    with pytest.raises(Killed):
        loop.controller.run()
    opened.close()
    assert [row.slot for row in seen] == [0, 1, 2]
    assert all(row.started is not None and begun <= row.started <= time.time() for row in seen)

    opened.open(STUDY)  # the next controller, which records that they are lost
    lost = read(opened)
    assert [(row.state, row.failure, row.slot, row.started) for row in lost] == [
        (TrialState.LOST, FailureClass.LOST, row.slot, row.started) for row in seen
    ]


def test_an_attempt_that_had_no_room_has_the_slot_in_which_it_starts_later(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise LedgerFull("there is no room")

    ledger = opened.open(STUDY)
    with monkeypatch.context() as patch:
        patch.setattr(ledger.storage, "write_start", refuse)
        with pytest.raises(LedgerFull):
            ledger.ask(5)
    assert ledger.ask(2) is not None
    assert [row.slot for row in read(opened)] == [2]
