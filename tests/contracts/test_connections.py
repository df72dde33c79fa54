"""How many connections to PostgreSQL a gateway or an operator takes: a bound for the process, however many teams there are.

On a real PostgreSQL. That each ledger sees its own schema on a shared connection is in `test_ledger_namespaces` too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from tests.contracts.conftest import Postgres, make_job

from trialplane.gateway import ledgers as serving
from trialplane.gateway.ledgers import Connection, LedgerService
from trialplane.ledger import tables
from trialplane.ledger.archive import Archive
from trialplane.ledger.namespaces import Ledgers
from trialplane.ledger.tables import Connections
from trialplane.wire import ledger
from trialplane.wire.ledger import Address

OPEN = ledger.encode(ledger.OpenLedger(("maximize",)))
FACTS = {"submitted": 1.0, "code_hash": "ab"}


@pytest.fixture
def connections(url: str) -> Iterator[Connections]:
    made = Connections(url)
    yield made
    made.close()


@contextlib.contextmanager
def taken(share: tables.Share, number: int) -> Iterator[None]:
    """So many transactions under way, each in a thread of its own."""
    begun, over = threading.Semaphore(0), threading.Event()

    def work() -> None:
        with share.begin():
            begun.release()
            over.wait()

    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            assert begun.acquire(timeout=60)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def record(ledgers: Ledgers, namespace: str, run: str = "toy") -> None:
    archive = ledgers.of(namespace)
    assert archive is not None
    archive.record_run(run, make_job(), FACTS, b"", new=True)
    archive.set_token(run, f"of-{namespace}")


def test_twenty_teams_take_no_more_connections_than_one(postgres: Postgres, url: str) -> None:
    teams = [f"team-{number}" for number in range(20)]
    ledgers = Ledgers(url, "control", teams)
    for team in teams:
        record(ledgers, team)
    for team in teams:
        archive = ledgers.of(team)
        assert archive is not None
        assert [one.run for one in archive.runs()] == ["toy"]
    held = postgres.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()", url
    )
    assert 1 <= held[0][0] <= tables.POOL
    ledgers.close()


def test_a_team_that_has_its_share_in_use_leaves_others_theirs(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = connections.share("a"), connections.share("b")
    monkeypatch.setattr(tables, "TURN_SECONDS", 0.01)
    rest = tables.POOL - tables.CHECKS - tables.SHARE
    with taken(a, tables.SHARE):
        with pytest.raises(sa.exc.TimeoutError, match="all of its 4 connections"), a.begin():
            pass
        with taken(b, rest), pytest.raises(sa.exc.TimeoutError, match="all 6 connections of the process"), b.begin():
            pass
        with taken(b, rest):
            pass
    with taken(a, tables.SHARE):  # each was given back
        pass


def test_tokens_are_checked_while_two_teams_read_all_that_they_may(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers = Ledgers(url, "control", ["a", "b", "c"])
    for team in ledgers.namespaces:
        record(ledgers, team)
        assert _archive(ledgers, team).is_token_valid("toy", f"of-{team}"), "it is known now that its tables are there"
    monkeypatch.setattr(tables, "TURN_SECONDS", 0.01)
    shares = [_archive(ledgers, team)._connections for team in ("a", "b")]
    with taken(shares[0], tables.SHARE), taken(shares[1], tables.POOL - tables.CHECKS - tables.SHARE):
        for team in ledgers.namespaces:
            assert _archive(ledgers, team).is_token_valid("toy", f"of-{team}")
            assert not _archive(ledgers, team).is_mlflow_token_valid("toy", "x")
    ledgers.close()


def test_one_team_alone_has_all_that_are_not_for_checks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers = Ledgers(url, "control", ["a"])
    monkeypatch.setattr(tables, "TURN_SECONDS", 0.01)
    with taken(_archive(ledgers, "a")._connections, tables.POOL - tables.CHECKS):
        pass
    ledgers.close()


def _archive(ledgers: Ledgers, team: str) -> Archive:
    found = ledgers.of(team)
    assert found is not None
    return found


def test_a_schema_ends_with_its_transaction(connections: Connections) -> None:
    """One connection, by turns: nothing of the former ledger's is left on it, after an error neither."""
    shown = sa.text("SELECT current_setting('search_path'), pg_backend_pid()")
    found = []
    for schema, fails in (("a", True), ("b", False), ("", False)):
        with contextlib.suppress(ZeroDivisionError), connections.share(schema).begin() as connection:
            found.append(connection.execute(shown).one())
            assert not fails or 1 / 0
    assert len({pid for _, pid in found}) == 1
    assert [path for path, _ in found] == ["a", "b", "public"]
    with connections.share("a")._engine.begin() as connection:  # whoever does not say which
        assert connection.execute(shown).one()[0].strip('"') == tables.NO_SCHEMA


def test_runs_beyond_what_a_gateway_may_have_open_wait(url: str) -> None:
    """The lock of a run belongs to its connection, so each that works holds one; no team may take them all."""
    ledgers = Ledgers(url, "control", ["a", "b"])
    service = LedgerService(ledgers, max_runs=2)  # one of each
    for run in ("toy", "more"):
        record(ledgers, "a", run)
    record(ledgers, "b")

    def opened(namespace: str, run: str) -> Connection:
        made = Connection(service)
        made.admit(Address(namespace, run), f"of-{namespace}")
        made.answer(OPEN)
        return made

    first = opened("a", "toy")
    with pytest.raises(serving.Failure, match="waits until one of them ends") as caught:
        opened("a", "more")
    assert caught.value.code == ledger.UNAVAILABLE
    opened("b", "toy").close()
    first.answer(OPEN)  # again, on the same connection
    first.close()
    opened("a", "more").close()
    assert service.open_ledgers.total == 0
    ledgers.close()


def test_newcomers_leave_places_to_runs_that_come_back(url: str) -> None:
    """A gateway was started anew: its runs, whose trials work, come to the others, which new runs may have filled."""
    ledgers = Ledgers(url, "control", ["a"])
    service = LedgerService(ledgers, max_runs=10)
    runs = [f"toy-{number}" for number in range(11)]
    for run in runs:
        record(ledgers, "a", run)

    def opened(run: str, epoch: int | None = None) -> tuple[Connection, int]:
        made = Connection(service)
        made.admit(Address("a", run), "of-a")
        answer = ledger.decode(made.answer(ledger.encode(ledger.OpenLedger(("maximize",), epoch))), ledger.ANSWER)
        assert isinstance(answer, ledger.LedgerOpened)
        return made, answer.epoch

    gone, epoch = opened(runs[9])
    gone.close()
    held = [opened(run)[0] for run in runs[:9]]
    with pytest.raises(
        serving.Failure, match="ledgers of 9 runs open, which is its limit, apart from connections"
    ) as caught:
        opened(runs[10])
    assert "raises gateway.maxRuns in the chart's values, together with postgresql.parameters.max_connections" in str(
        caught.value
    )
    held.append(opened(runs[9], epoch)[0])
    with pytest.raises(serving.Failure, match="the ledgers of 10 runs open, which is its limit;"):
        opened(runs[10], 1)
    for one in held:
        one.close()
    ledgers.close()
