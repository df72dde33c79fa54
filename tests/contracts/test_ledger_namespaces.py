"""Two namespaces in one database: a run of a name in each, at the same time, and neither knows of the other.

On a real PostgreSQL, through the gateway as controllers come, and through what the operator uses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from tests.contracts.conftest import make_job

from trialplane.errors import InputError, LedgerError, RunExists
from trialplane.gateway import ledgers as serving
from trialplane.gateway.ledgers import Connection, LedgerService
from trialplane.ledger import tables
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import ledger, records
from trialplane.wire.ledger import Address
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

OPEN = ledger.encode(ledger.OpenLedger(("maximize",)))
FACTS = {"submitted": 1.0, "code_hash": "ab"}


@pytest.fixture
def both(url: str) -> Iterator[Ledgers]:
    """Of a control namespace with runs of its own, and of two teams, each with a run of the same name."""
    made = Ledgers(url, "control", ["control", "team-a", "team-b"])
    for namespace in ("team-a", "team-b"):
        archive = made.of(namespace)
        assert archive is not None
        archive.record_run("toy", make_job(), {**FACTS, "user": namespace}, b"", new=True)
        archive.set_token("toy", f"of-{namespace}")
    yield made
    made.close()


@contextlib.contextmanager
def controller(ledgers: Ledgers, namespace: str) -> Iterator[Connection]:
    """One that has opened its run."""
    made = Connection(LedgerService(ledgers))
    made.admit(Address(namespace, "toy"), f"of-{namespace}")
    made.answer(OPEN)
    try:
        yield made
    finally:
        made.close()


def test_a_name_is_taken_in_its_own_namespace_only(both: Ledgers) -> None:
    a, b, control = both.of("team-a"), both.of("team-b"), both.of("control")
    assert a is not None and b is not None and control is not None
    with pytest.raises(RunExists):
        a.record_run("toy", make_job(), FACTS, b"", new=True)
    assert [one.run for one in a.runs()] == [one.run for one in b.runs()] == ["toy"]
    assert control.runs() == []
    assert (a.column("toy", "submission")["user"], b.column("toy", "submission")["user"]) == ("team-a", "team-b")
    a.delete("toy")
    assert (a.runs(), [one.run for one in b.runs()]) == ([], ["toy"])


def test_two_controllers_of_one_name_work_at_the_same_time(both: Ledgers) -> None:
    a, b = both.of("team-a"), both.of("team-b")
    assert a is not None and b is not None
    with controller(both, "team-a") as first:
        assert (a.is_alive("toy"), b.is_alive("toy")) == (True, False)
        with controller(both, "team-b") as second:
            for one, complete in ((first, 1), (second, 2)):
                one.answer(
                    ledger.encode(ledger.WriteStatus(RunStatus("toy", "toy", RunState.RUNNING, 6, complete=complete)))
                )
    written = [records.from_dict(RunStatus, one.column("toy", "status")).complete for one in (a, b)]
    assert written == [1, 2]


def test_a_token_opens_the_run_of_its_own_namespace_only(both: Ledgers) -> None:
    for namespace in ("team-b", "control"):
        connection = Connection(LedgerService(both))
        with pytest.raises(serving.Failure) as caught:
            connection.admit(Address(namespace, "toy"), "of-team-a")
        assert caught.value.code == ledger.REFUSED


def test_the_run_of_a_team_that_is_not_listed_any_more_waits_for_it(both: Ledgers) -> None:
    """As for a database that is away; refused, its controller would end as one that another has taken over from."""
    with pytest.raises(serving.Failure, match="team-c is not among the gateway's namespaces") as caught:
        Connection(LedgerService(both)).admit(Address("team-c", "toy"), "of-team-c")
    assert caught.value.code == ledger.UNAVAILABLE


def test_what_a_run_has_under_way_is_counted_by_namespace_and_name(both: Ledgers) -> None:
    service = LedgerService(both)
    taken = [Connection(service) for _ in range(serving.CONNECTIONS)]
    for one in taken:
        one.admit(Address("team-a", "toy"), "of-team-a")
    with pytest.raises(serving.Failure) as caught:
        Connection(service).admit(Address("team-a", "toy"), "of-team-a")
    assert caught.value.code == ledger.BUSY
    Connection(service).admit(Address("team-b", "toy"), "of-team-b")


def test_what_happens_to_a_run_does_not_happen_to_its_namesake(both: Ledgers) -> None:
    """Marked for removal, given a new token, and none, while the other one works."""
    a, b = both.of("team-a"), both.of("team-b")
    assert a is not None and b is not None
    with controller(both, "team-b") as working:
        a.mark_for_removal("toy")
        assert (set(a.removal_marks()), b.removal_marks()) == ({"toy"}, {})
        assert (a.runs_with_token(), b.runs_with_token()) == ([], ["toy"])
        a.set_token("toy", "another")
        assert (b.is_token_valid("toy", "another"), b.is_token_valid("toy", "of-team-b")) == (False, True)
        a.change_desired("toy", {"state": RunState.CANCELLED})
        assert b.column("toy", "desired") is None
        a.revoke_tokens("toy")
        a.delete("toy")
        working.answer(ledger.encode(ledger.WriteStatus(RunStatus("toy", "toy", RunState.RUNNING, 6, complete=3))))
    assert [one.run for one in b.runs()] == ["toy"]


def test_a_schema_is_made_when_there_is_something_to_record(url: str) -> None:
    made = Ledgers(url, "control", ["team-a"])
    archive = made.of("team-a")
    assert archive is not None
    assert archive.runs() == []
    assert archive.snapshot("toy") is None
    archive.revoke_tokens("toy")
    engine = sa.create_engine(url)
    assert sa.inspect(engine).get_schema_names() == ["information_schema", "public"]
    archive.record_run("toy", make_job(), FACTS, b"", new=True)
    made_tables = sorted(sa.inspect(engine).get_table_names("team-a"))
    assert made_tables == ["attempts", "changes", "codes", "reports", "runs", "schema_version", "sizes", "usage"]
    assert sa.inspect(engine).get_table_names("public") == []
    engine.dispose()
    made.close()


def test_a_team_that_is_named_as_the_databases_user_shadows_nobodys_runs(url: str) -> None:
    """PostgreSQL looks into a schema of its user's name first, where nobody says which."""
    user = sa.make_url(url).username
    assert user
    for _ in range(2):  # the second time the tables are there
        made = Ledgers(url, "control", [user, "control"])
        team, control = made.of(user), made.of("control")
        assert team is not None and control is not None
        if not team.runs():
            team.record_run("toy", make_job(), FACTS, b"", new=True)
            control.record_run("other", make_job(), FACTS, b"", new=True)
        assert ([one.run for one in team.runs()], [one.run for one in control.runs()]) == (["toy"], ["other"])
        made.close()
    engine = sa.create_engine(url)
    assert "runs" in sa.inspect(engine).get_table_names("public")
    engine.dispose()


def test_what_was_there_before_is_the_control_namespaces_until_its_schema_is_renamed(url: str) -> None:
    """The step that the documentation describes for a release that had all runs in its own namespace."""
    before = Ledgers(url, "studies", ["studies"])
    archive = before.of("studies")
    assert archive is not None
    archive.record_run("toy", make_job(), FACTS, b"", new=True)
    before.close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text('ALTER SCHEMA public RENAME TO "team-a"'))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    after = Ledgers(url, "studies", ["team-a"])
    archive = after.of("team-a")
    assert archive is not None
    assert [one.run for one in archive.runs()] == ["toy"]
    after.close()


def test_tables_of_another_version_are_named_by_their_schema(url: str, both: Ledgers) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text('UPDATE "team-a".schema_version SET version = 1'))
    engine.dispose()
    archive = both.of("team-a")
    assert archive is not None
    with pytest.raises(LedgerError, match="schema=team-a has tables of version 1"):
        archive.runs()


def test_a_url_says_which_schema_and_a_message_shows_no_password() -> None:
    url = tables.in_schema("postgresql+psycopg2://ledger:secret@host:5432/ledger", "team-a")
    assert url == "postgresql+psycopg2://ledger:secret@host:5432/ledger?schema=team-a"
    assert tables.redacted_url(url) == "postgresql+psycopg2://ledger:***@host:5432/ledger?schema=team-a"


def test_no_namespace_is_taken_for_the_default_schema() -> None:
    with pytest.raises(InputError, match="namespace cannot be called public"):
        Ledgers("postgresql+psycopg2://host/ledger", "control", ["public"])
