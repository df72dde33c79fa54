"""What the gateway does not let a run's controller do to others: sizes, times, connections, and requests that are none.

A controller is taken here for what may stand behind its token: a trial that has taken over the head of its run.
"""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from tests.contracts.conftest import Backend, ask, complete, door, make_job
from tests.contracts.gateway_process import NAMESPACE, TOKEN

from trialplane.gateway import ledgers
from trialplane.ledger import locking, remote
from trialplane.ledger.archive import Archive
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import ledger
from trialplane.wire.ledger import Address
from trialplane.wire.records import RunStatus, TrialOutcome, TrialRequest
from trialplane.wire.states import RunState, TrialState

OPEN = ledger.encode(ledger.OpenLedger(("maximize",)))


@pytest.fixture
def service(served: Backend) -> Iterator[ledgers.LedgerService]:
    """What a gateway in this process shares among its connections; `toy` is admitted."""
    door(served).admit("toy", ["maximize"])
    made = ledgers.LedgerService(Ledgers(served.url, NAMESPACE, [NAMESPACE]))
    yield made
    made.ledgers.close()


def archive(service: ledgers.LedgerService) -> Archive:
    found = service.ledgers.of(NAMESPACE)
    assert found is not None
    return found


def connect(service: ledgers.LedgerService, token: str = TOKEN) -> ledgers.Connection:
    made = ledgers.Connection(service)
    made.admit(Address(NAMESPACE, "toy"), token)
    return made


def refused(connection: ledgers.Connection, request: ledger.Request) -> str:
    with pytest.raises(ledgers.Failure) as caught:
        connection.answer(ledger.encode(request))
    return caught.value.code


@pytest.mark.parametrize("after", ["revoked", "replaced", "deleted"])
def test_a_token_that_is_over_opens_nothing_on_a_connection_that_it_opened(
    served: Backend, service: ledgers.LedgerService, after: str
) -> None:
    """Nor makes it a run of a name that was deleted, or fences the controller that has the new one."""
    connection = connect(service)
    connection.answer(OPEN)
    connection.answer(ledger.encode(ledger.CloseLedger()))
    match after:
        case "revoked":
            archive(service).revoke_tokens("toy")
        case "replaced":
            archive(service).set_token("toy", "another")
        case "deleted":
            engine = sa.create_engine(served.url)
            with engine.begin() as database:
                database.execute(sa.text("DELETE FROM runs"))
            engine.dispose()
    assert refused(connection, ledger.OpenLedger(("maximize",))) == ledger.REFUSED
    assert refused(connection, ledger.OpenLedger(("maximize",), 1)) == ledger.REFUSED
    engine = sa.create_engine(served.url)
    with engine.connect() as database:
        assert database.execute(sa.text("SELECT epoch FROM runs")).scalars().all() == ([] if after == "deleted" else [1])
    engine.dispose()
    assert not archive(service).is_alive("toy")
    connection.close()


def test_a_status_is_no_larger_than_whoever_reads_all_of_them_can_bear(service: ledgers.LedgerService) -> None:
    connection = connect(service)
    connection.answer(OPEN)
    status = RunStatus("toy", "toy", RunState.RUNNING, 3, reason="x" * (1 << 20))
    assert refused(connection, ledger.WriteStatus(status)) == ledger.TOO_LARGE
    connection.close()


def test_a_record_is_no_larger_than_every_reader_of_the_run_can_bear(service: ledgers.LedgerService) -> None:
    """Parsed, a hostile one takes thirty times its size."""
    connection = connect(service)
    connection.answer(OPEN)
    request = TrialRequest("toy", 0, 1, 0, {"x": 0.5}, seed=0, metrics=("score",))
    large = TrialRequest("toy", 0, 1, 0, {"x": [[]] * 500_000}, seed=0, metrics=("score",))
    assert refused(connection, ledger.BeginAttempt(large, "{}", None)) == ledger.TOO_LARGE
    connection.answer(ledger.encode(ledger.BeginAttempt(request, json.dumps({"params": "x" * (2 << 20)}), None)))
    outcome = TrialOutcome(0, TrialState.COMPLETE, metrics={f"{number}": 0.5 for number in range(100_000)})
    assert refused(connection, ledger.FinishAttempt(request, outcome, "{}", None)) == ledger.TOO_LARGE
    connection.close()


@pytest.mark.parametrize("moment", [math.inf, math.nan, 1e300, -1.0])
@pytest.mark.parametrize("name", ["updated", "started", "ended", "alive", "worked"])
def test_a_status_is_of_no_time_that_outlasts_a_deadline(service: ledgers.LedgerService, name: str, moment: float) -> None:
    connection = connect(service)
    connection.answer(OPEN)
    fields: dict[str, Any] = {name: moment}
    assert refused(connection, ledger.WriteStatus(RunStatus("toy", "toy", RunState.RUNNING, 3, **fields))) == ledger.INVALID
    connection.close()


def test_a_statement_that_waits_too_long_is_ended_by_the_database(
    served: Backend, service: ledgers.LedgerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would hold the run's lock for longer than its controller waits for an answer."""
    assert remote.ANSWER_SECONDS > locking.STATEMENT_SECONDS
    monkeypatch.setitem(locking.CONNECT, "options", "-c statement_timeout=3000")
    connection = connect(service)
    connection.answer(OPEN)
    engine = sa.create_engine(served.url)
    with engine.begin() as database:
        database.execute(sa.text("LOCK TABLE runs"))
        assert refused(connection, ledger.WriteStatus(RunStatus("toy", "toy", RunState.RUNNING, 3))) == ledger.UNAVAILABLE
    engine.dispose()
    connection.close()


def test_an_answer_that_was_cut_off_is_no_answer(served: Backend) -> None:
    door(served).admit("toy", ["maximize"])
    book = served.open(make_job())
    request = ask(book)
    storage = book.storage
    broken = []

    class Short(http.client.HTTPResponse):
        def read(self, amount: int | None = None) -> bytes:
            if broken:
                return super().read(amount)
            broken.append(True)
            return super().read(5)

    storage._connection.response_class = Short
    book.tell(complete(request))
    assert broken and book.counts.complete == 1


@pytest.mark.parametrize("name", ["a\0b", "A", "..", "a.token", "", "a" * 64])
def test_what_is_no_name_of_a_run_has_no_ledger(name: str) -> None:
    assert ledger.address(ledger.path(ledger.namespace_path(NAMESPACE), name)) is None
