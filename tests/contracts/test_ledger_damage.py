"""A ledger that cannot be used: a full disk, a damaged or foreign database, and code in the job that does not do.

Each ends in one of our errors, with its exit code and a message that says what to do, and loses nothing told before.
Not checked here: what the command line prints of it (tests/cli).
"""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.contracts.conftest import Backend, ask, complete, drive, make_job, storage_of

from trialplane import errors
from trialplane.ledger import attempts as reading


@pytest.fixture
def full_disk():
    """Makes SQLite files as full as a disk can be: a function that allows so many pages more."""
    allowed: list[int] = []

    def limit(connection, _record) -> None:
        if allowed:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + allowed[0]}")

    def fill(ledger, pages: int) -> None:
        allowed[:] = [pages]
        storage_of(ledger)._engine.dispose()  # the limit is each connection's own

    sa.event.listen(sa.Engine, "connect", limit)
    yield fill
    sa.event.remove(sa.Engine, "connect", limit)


def test_a_full_disk_is_said_and_nothing_told_is_lost(sqlite: Backend, full_disk) -> None:
    job = make_job(trials=500)
    waits: list[str] = []
    ledger = sqlite.open(job, seconds=0.3, on_wait=waits.append)
    drive(ledger, count=3)
    full_disk(ledger, 2)
    told = 3
    with pytest.raises(errors.LedgerUnavailable) as caught:
        while (request := ledger.ask()) is not None:
            ledger.tell(complete(request))
            told += 1
    assert "full" in str(caught.value)
    assert "platform resume toy" in str(caught.value)
    assert caught.value.exit_code == errors.EXIT_PLATFORM
    assert waits, "the ledger says that it waits"
    ledger.close()
    assert 3 <= told < 500
    free = dataclasses.replace(sqlite, opened=[])
    full_disk(ledger, 100_000)
    with free.open(job) as again:
        assert again.counts.complete == told


def test_room_made_in_time_is_enough(sqlite: Backend, full_disk) -> None:
    """The controller waits for room, and goes on by itself."""
    job = make_job(trials=40)

    def make_room(message: str) -> None:
        waits.append(message)
        full_disk(ledger, 100_000)

    waits: list[str] = []
    ledger = sqlite.open(job, seconds=30, on_wait=make_room)
    drive(ledger, count=2)
    full_disk(ledger, 1)
    drive(ledger)
    assert ledger.counts.complete == 40
    assert "full" in waits[0]
    assert waits[-1] == "", "and says when the waiting is over"


@pytest.mark.parametrize("damage", ["text", "header", "table"])
def test_a_damaged_file_is_refused_and_left_as_it_is(sqlite: Backend, damage: str) -> None:
    job = make_job(trials=300)
    file = sqlite.folder / "ledger.db"
    with sqlite.open(job) as ledger:
        drive(ledger, count=40)
    whole = file.read_bytes()
    match damage:
        case "text":
            file.write_text("these are notes, not a study\n" * 200)
        case "header":
            file.write_bytes(b"\x00" * 100 + whole[100:])
        case "table":
            file.write_bytes(_with_damaged_pages(file, whole))
    for extra in ("-wal", "-shm"):
        file.with_name(file.name + extra).unlink(missing_ok=True)
    damaged = file.read_bytes()
    with pytest.raises(errors.LedgerCorrupt) as caught:
        sqlite.open(job)
    assert caught.value.exit_code == errors.EXIT_BAD_INPUT
    assert str(file) in str(caught.value)
    assert "damaged" in str(caught.value)
    if damage != "table":  # found only after this controller had written down that it is the newest
        assert file.read_bytes() == damaged
    file.write_bytes(whole)
    assert sqlite.open(job).counts.complete == 40, "the lock is free again, and a good copy is as good as new"


def _with_damaged_pages(file: Path, whole: bytes) -> bytes:
    """The file with the first page of the table of attempts overwritten."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'attempts'").fetchone()
    connection.close()
    start = (root - 1) * size
    return whole[:start] + b"\xff" * size + whole[start + size :]


def test_a_study_with_other_objectives_is_refused(backend: Backend) -> None:
    backend.open(make_job()).close()
    with pytest.raises(errors.LedgerCorrupt, match="another name"):
        backend.open(make_job(objectives=[{"metric": "score", "direction": "minimize"}]))


@pytest.mark.parametrize("version", [reading.VERSION - 1, reading.VERSION + 1])
def test_tables_of_another_version_are_refused_and_left_as_they_are(backend: Backend, version: int) -> None:
    with backend.open(make_job()) as ledger:
        drive(ledger, count=1)
    engine = sa.create_engine(backend.url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE schema_version SET version = {version}"))
    with pytest.raises(
        errors.LedgerCorrupt, match=rf"tables of version {version}, and .*\. Use the trialplane that wrote it, or delete it"
    ):
        backend.open(make_job())
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT epoch FROM runs")).scalar() == 1
        connection.execute(sa.text(f"UPDATE schema_version SET version = {reading.VERSION}"))
    engine.dispose()
    assert backend.open(make_job()).counts.complete == 1


@pytest.mark.parametrize("name", ["runs", "attempts"])
def test_tables_of_another_program_are_refused(database: Backend, name: str) -> None:
    """As those of MLflow, which has a table `runs` too."""
    engine = sa.create_engine(database.url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE {name} (run_uuid VARCHAR(32))"))
    with pytest.raises(errors.LedgerCorrupt, match="is not a ledger"):
        database.open(make_job())
    assert sa.inspect(engine).get_table_names() == [name], "all tables are made, or none"
    engine.dispose()


def test_a_folder_that_is_not_there(sqlite: Backend) -> None:
    with pytest.raises(errors.LedgerUnavailable, match="cannot"):
        dataclasses.replace(sqlite, url=f"sqlite:///{sqlite.folder}/none/ledger.db").open(
            make_job(), lock=sqlite.folder / "none" / "lock"
        )


def test_a_database_that_does_not_answer(postgres) -> None:
    nowhere = Backend("postgres", postgres.url("nothing").replace("host=", "host=/nonexistent"), Path("/nonexistent"))
    with pytest.raises(errors.LedgerUnavailable, match="platform resume toy"):
        nowhere.open(make_job())


def test_a_password_is_not_shown() -> None:
    nowhere = Backend("postgres", "postgresql+psycopg2://ann:s3cret@/x?host=/nonexistent", Path("/nonexistent"))
    with pytest.raises(errors.LedgerUnavailable) as caught:
        nowhere.open(make_job())
    assert "s3cret" not in str(caught.value)


def test_the_space_may_be_a_function(backend: Backend) -> None:
    (backend.code / f"space_{backend.kind}.py").write_text(
        "def space(trial):\n"
        "    if trial.suggest_categorical('kind', ['a', 'b']) == 'b':\n"
        "        trial.suggest_float('rate', 1e-5, 1e-1, log=True)\n"
    )
    job = make_job(space=f"space_{backend.kind}:space", enqueue=[{"kind": "b", "rate": 0.01}], trials=12)
    with backend.open(job) as ledger:
        requests = drive(ledger, lambda r: complete(r, score=1.0), count=6)
    with backend.open(job) as ledger:
        requests += drive(ledger, lambda r: complete(r, score=1.0))
    assert requests[0].params == {"epochs": 2, "kind": "b", "rate": 0.01}
    assert {request.params["kind"] for request in requests} == {"a", "b"}
    assert all(("rate" in request.params) == (request.params["kind"] == "b") for request in requests)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "No module named"),
        ("def other(trial): ...", "no attribute 'space'"),
        ("def space(trial:", "SyntaxError"),
        ("raise RuntimeError('not today')", "not today"),
    ],
)
def test_a_space_function_that_does_not_import(sqlite: Backend, code: str | None, said: str) -> None:
    name = f"space_broken_{abs(hash(code))}"
    if code is not None:
        (sqlite.code / f"{name}.py").write_text(code)
    ledger = sqlite.open(make_job(space=f"{name}:space"))
    with pytest.raises(errors.EntrypointError) as caught:
        ledger.drawing.check_sampler()
    assert f"{name}:space" in str(caught.value)
    assert said in str(caught.value)
    assert str(sqlite.code) in str(caught.value)
    assert caught.value.exit_code == errors.EXIT_BAD_INPUT


def test_a_space_function_that_fails(sqlite: Backend) -> None:
    (sqlite.code / "space_fails.py").write_text("def space(trial):\n    trial.suggest_int('n', 3, 1)\n")
    with pytest.raises(errors.EntrypointError, match="space_fails:space failed for trial 0: ValueError"):
        ask(sqlite.open(make_job(space="space_fails:space")))
