"""What a ledger does besides trials where it outlives everything else of a run: it has all that is known and desired of it,
and waits for a former controller that PostgreSQL has not noticed the end of.

Not checked here: crashes and outages (test_ledger_crashes.py), who writes what is desired (controller/test_gateway.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
import sqlalchemy as sa
from tests.contracts.conftest import Backend, ask, complete, drive, make_job, storage_of, wait_until

from trialplane import errors
from trialplane.ledger.study import Storage
from trialplane.wire import labels, records
from trialplane.wire.records import Desired, RunStatus
from trialplane.wire.states import RunState


@contextlib.contextmanager
def session(backend: Backend) -> Iterator[Any]:
    """Another connection to the database."""
    connection = psycopg2.connect(backend.url.replace("postgresql+psycopg2", "postgresql"))
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def status(state: RunState, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = records.to_dict(RunStatus("toy", "toy", state, 6, **fields))
    return made


def test_a_run_is_described_and_described_anew(backend: Backend) -> None:
    """Through the gateway with its status alone: what else there is to know of a run is the operator's."""
    job = make_job()
    facts = {labels.LEDGER_JOB: {"trials": 6}} if backend.door is None else {}
    with backend.open(job) as ledger:
        ledger.write_facts({labels.LEDGER_STATUS: status(RunState.RUNNING)} | facts)
        drive(ledger)
        ledger.write_facts({labels.LEDGER_STATUS: status(RunState.SUCCEEDED)}, patient=False)
    with backend.open(job) as ledger:
        if facts:
            ledger.write_facts({labels.LEDGER_JOB: {"trials": 12}})
        said = [
            storage_of(ledger).read_column(key) for key in (labels.LEDGER_JOB, labels.LEDGER_STATUS, labels.LEDGER_DESIRED)
        ]
        assert said == [{"trials": 12} if facts else None, status(RunState.SUCCEEDED), None]
        assert ledger.counts.complete == 6


def test_a_controller_that_was_taken_over_describes_nothing(sqlite: Backend) -> None:
    job = make_job()
    first = sqlite.open(job)
    second = sqlite.open(job, lock=sqlite.folder / "other.lock")  # a file system without working locks
    second.write_facts({labels.LEDGER_STATUS: "second"})
    for patient in (True, False):
        with pytest.raises(errors.LedgerFenced):
            first.write_facts({labels.LEDGER_STATUS: "first"}, patient=patient)
    assert storage_of(second).read_column(labels.LEDGER_STATUS) == "second"


def test_how_long_a_run_has_worked_outlives_its_controller(backend: Backend) -> None:
    with backend.open(make_job()) as ledger:
        assert ledger.status is None
        ledger.write_facts({labels.LEDGER_STATUS: status(RunState.PAUSED, worked=12.5)})
    with backend.open(make_job()) as ledger:
        assert ledger.status is not None and ledger.status.worked == 12.5


def test_what_is_written_twice_is_there_once(backend: Backend) -> None:
    """As when the answer to a commit is lost."""
    with backend.open(make_job(trials=2)) as ledger:
        drive(ledger, count=2)
        first, second = storage_of(ledger).load()[0]
        storage_of(ledger).write_start(first, None)
        storage_of(ledger).write_draw(second, None)
        storage_of(ledger).write_end(dataclasses.replace(first, outcome=second.outcome), None)
        assert storage_of(ledger).load()[0] == [first, second]
        assert (first.end_number, second.end_number) == (1, 2)


@pytest.mark.parametrize("remote", ["postgres"], indirect=True)
def test_two_controllers_that_are_the_first_ones_make_the_tables_once(remote: Backend) -> None:
    """Each of a run of its own; the second waits while the first makes them."""
    engine = sa.create_engine(remote.url)
    with engine.connect() as connection, connection.begin():
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(labels.ledger_lock_key("schema_version"))))
        opened: list[Any] = []
        threads = [
            threading.Thread(target=lambda name=name: opened.append(Storage(remote.url, name, ("minimize",), remote.lock)))
            for name in ("one", "two")
        ]
        for thread in threads:
            thread.start()
        waiting = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        wait_until(lambda: connection.execute(waiting).scalar() == 2, "both have seen that there are none")
    for thread in threads:
        thread.join(60)
    assert len(opened) == 2
    for storage in opened:
        storage.close()
    engine.dispose()


def test_a_desired_state_is_there_once_it_is_recorded(backend: Backend) -> None:
    engine = sa.create_engine(backend.url)
    with backend.open(make_job()) as ledger:
        assert ledger.read_desired() == Desired(RunState.RUNNING, None)
        desired = json.dumps({"state": "PAUSED", "parallel": 3, "of": "a newer version"})
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE runs SET desired = :desired"), {"desired": desired})
        assert ledger.read_desired() == Desired(RunState.PAUSED, 3)
    engine.dispose()


def test_what_is_left_to_start_is_counted(backend: Backend) -> None:
    with backend.open(make_job(trials=3)) as ledger:
        assert ledger.startable == 3
        drive(ledger, count=2)
        assert ledger.startable == 1
        ask(ledger)
        assert ledger.startable == 0
    with backend.open(make_job(trials=3)) as ledger:
        assert ledger.startable == 1, "the one that ran is tried again"


def test_a_former_controllers_connection_is_waited_for(remote: Backend) -> None:
    """As that of a lost node, which PostgreSQL believes in for a while."""
    job = make_job()
    first = remote.open(job)
    drive(first, count=2)
    looked = threading.Event()
    count = 0

    def should_give_up() -> bool:
        nonlocal count
        count += 1
        if count == 3:
            looked.set()
        return False

    opened: list[Any] = []
    thread = threading.Thread(target=lambda: opened.append(remote.open(job, lock_seconds=60, should_give_up=should_give_up)))
    thread.start()
    assert looked.wait(60), "it looks again and again"
    assert not opened
    first.close()
    thread.join(60)
    assert opened[0].counts.complete == 2


def test_waiting_for_a_former_controller_can_be_given_up(remote: Backend) -> None:
    job = make_job()
    remote.open(job)
    with pytest.raises(errors.LedgerLocked):
        remote.open(job, lock_seconds=600, should_give_up=lambda: True)


def test_a_broken_connection_that_postgresql_believes_in_is_no_other_controller(remote: Backend) -> None:
    """The network broke: the next connection finds the lock held by the last one, until the server gives that up."""
    looked = threading.Event()
    ledger = remote.open(make_job(), lock_seconds=60, should_give_up=lambda: bool(looked.set()))
    request = ask(ledger)
    key = labels.ledger_lock_key("toy")
    with session(remote) as other:
        other.execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted")
        ((holder,),) = other.fetchall()
        other.execute("SELECT pg_terminate_backend(%s, 10000)", (holder,))
        other.execute("SELECT pg_advisory_lock(%s)", (key,))  # stands for the session that is not noticed to be dead
        told: list[Any] = []
        thread = threading.Thread(target=lambda: told.append(ledger.tell(complete(request))))
        thread.start()
        assert looked.wait(60)
        assert not told
        other.execute("SELECT pg_advisory_unlock(%s)", (key,))
        thread.join(60)
    assert told[0] is not None
    assert ledger.counts.complete == 1


@pytest.mark.parametrize("remote", ["postgres"], indirect=True)
def test_the_server_notices_a_lost_controller(remote: Backend) -> None:
    """The settings are the session's own; over a local socket the server shows none, so it is asked whether it took them."""
    ledger = remote.open(make_job())
    connection = storage_of(ledger)._engine.raw_connection()
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_settings WHERE name LIKE 'tcp_%' AND source = 'session' ORDER BY name")
        names = [name for (name,) in cursor.fetchall()]
    assert names == ["tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_user_timeout"]
