"""Runs in the layout of trialplane 0.1, Optuna's own tables: a controller takes them over and goes on as that version would.

`former.sql` is what that version's controller wrote of a run of 16 trials that was killed after eight, in SQLite; on
PostgreSQL the same rows are in the tables that Optuna makes there. The job in it is put in as this version writes it.
Not checked here: that version's other side, a controller of it that lives on while this one looks, but by its lock.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import psycopg2
import pytest
import sqlalchemy as sa
from tests.contracts.conftest import Backend, ask, complete, drive, failed, make_job, points, report

from trialplane import errors
from trialplane.client import results
from trialplane.controller import samplers
from trialplane.controller.ledger import Ledger
from trialplane.controller.store import tables
from trialplane.controller.store.archive import Archive
from trialplane.wire import labels
from trialplane.wire.records import Desired, TrialOutcome, TrialRequest, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState

JOB = make_job(
    sampler={"name": "tpe", "n_startup_trials": 3},
    pruner="median",
    constraints=[{"metric": "size", "max": 3}],
    trials=16,
)
TABLES = ("studies", "trials", "trial_params", "trial_values", "trial_user_attributes", "study_user_attributes")


def end(request: TrialRequest) -> TrialOutcome:
    return complete(request, score=float(request.params["x"]), size=float(request.params["layers"]))


def disturb(ledger: Ledger) -> None:
    """What the killed controller had done: trials that end in every way, one lost and tried again, one that runs."""
    for number in range(8):
        request = ask(ledger)
        for step, value in enumerate((float(request.params["x"]), math.inf if number == 1 else 0.5)):
            ledger.report(report(request, step, score=value))
        if number == 2:
            ledger.tell(TrialOutcome(request.number, TrialState.PRUNED, metrics={"score": 0.5}))
        elif number == 3:
            ledger.tell(failed(request, FailureClass.ERROR, "a mistake"))
        elif number == 4:
            ledger.tell(failed(request, FailureClass.OOM))
        elif number == 5:
            ledger.tell(failed(request, FailureClass.LOST))
            ledger.tell(end(ask(ledger)))
        else:
            ledger.tell(end(request))
    ask(ledger)


def fill(backend: Backend) -> None:
    """Puts the former run into an empty database."""
    file = backend.folder / ("ledger.db" if backend.kind == "sqlite" else "former.db")
    connection = sqlite3.connect(file)
    connection.executescript((Path(__file__).parent / "former.sql").read_text())
    job = json.dumps(JOB.model_dump(mode="json"))
    with connection:
        connection.execute("UPDATE study_user_attributes SET value_json = ? WHERE key = 'trialplane:job'", (job,))
    connection.close()
    if backend.kind == "sqlite":
        return
    optuna.storages.RDBStorage(backend.url).engine.dispose()
    source, target = sa.create_engine(f"sqlite:///{file}"), sa.create_engine(backend.url)
    there = sa.MetaData()
    there.reflect(source)
    here = sa.MetaData()
    here.reflect(target)
    with source.connect() as old, target.begin() as new:
        for table in here.sorted_tables:
            rows = [dict(row._mapping) for row in old.execute(sa.select(there.tables[table.name]))]
            if rows and table.name not in ("alembic_version", "version_info"):
                new.execute(sa.insert(table), rows)
                (key,) = table.primary_key.columns
                sequence = sa.func.pg_get_serial_sequence(table.name, key.name)
                new.execute(sa.select(sa.func.setval(sequence, sa.select(sa.func.max(key)).scalar_subquery())))
    for engine in (source, target):
        engine.dispose()


@pytest.fixture
def former(database: Backend) -> Backend:
    """A place with the former run."""
    fill(database)
    return database


def query(backend: Backend, statement: str) -> list[tuple[object, ...]]:
    engine = sa.create_engine(backend.url)
    with engine.begin() as connection:
        found = connection.execute(sa.text(statement))
        rows = [tuple(row) for row in found] if found.returns_rows else []
    engine.dispose()
    return rows


def timeless(row: TrialRow) -> Any:
    return rounded(dataclasses.asdict(dataclasses.replace(row, seconds=None)))


def rounded(value: Any) -> Any:
    """Without the last digits of drawn numbers, in which processors differ: the former run was on another one."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {name: rounded(below) for name, below in value.items()}
    return [rounded(below) for below in value] if isinstance(value, (list, tuple)) else value


def test_it_goes_on_as_it_would_have_undisturbed(former: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts, best, retries, and every parameter that is still drawn, as of a run that has only known this version."""
    ours = dataclasses.replace(former, url=f"sqlite:///{former.folder}/ours.db", opened=[])
    with monkeypatch.context() as patched, ours.open(JOB, lock=ours.folder / "ours.lock") as ledger:
        # That version's samplers were not shown a mistake in the code.
        patched.setattr(samplers, "is_bad", lambda job, outcome: outcome.failure is FailureClass.OOM)
        disturb(ledger)
    with ours.open(JOB, lock=ours.folder / "ours.lock") as wanted, former.open(JOB) as ledger:
        assert ledger.counts == wanted.counts
        assert {trial: timeless(row) for trial, row in ledger.newest.items()} == {
            trial: timeless(row) for trial, row in wanted.newest.items()
        }
        assert ledger.best is not None
        requests = [[rounded(dataclasses.asdict(one)) for one, _ in each.attempts()] for each in (ledger, wanted)]
        assert requests[0] == requests[1]
        assert rounded(points(drive(ledger, end))) == rounded(points(drive(wanted, end)))
        assert ledger.counts == wanted.counts
        assert ledger.counts.ended == 16


def test_what_was_known_of_it_is_kept(former: Backend) -> None:
    with former.open(JOB) as ledger:
        assert ledger.status is not None and ledger.status.worked == 12.5
        assert ledger.desired() == Desired(RunState.RUNNING, 3)
        assert ledger._storage.described(labels.LEDGER_SUBMISSION) == {"submitted": 5.0, "user": "ann"}
    assert [bytes(data) for (data,) in query(former, "SELECT data FROM codes JOIN runs ON code = digest")] == [b"\0\1\2"]
    assert query(former, "SELECT epoch FROM runs") == [(2,)], "a controller of that version is fenced"


def test_nothing_of_it_stays_in_the_former_tables(former: Backend) -> None:
    former.open(JOB).close()
    assert {name: query(former, f"SELECT count(*) FROM {name}") for name in TABLES} == {name: [(0,)] for name in TABLES}
    former.open(JOB).close()
    assert query(former, "SELECT count(*) FROM attempts") == [(10,)], "it is taken over once"


def test_a_run_that_a_former_controller_begins_anew_stays_as_it_was_taken_over(former: Backend) -> None:
    former.open(JOB).close()
    study = optuna.create_study(storage=former.url, study_name="toy")
    study.set_user_attr("trialplane:epoch", 1)
    with former.open(JOB) as ledger:
        assert len(list(ledger.attempts())) == 10


def test_other_studies_in_the_database_are_left_alone(former: Backend) -> None:
    study = optuna.create_study(storage=former.url, study_name="other")
    study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=2)
    former.open(JOB).close()
    assert len(optuna.load_study(storage=former.url, study_name="other").trials) == 2
    assert query(former, "SELECT name FROM runs") == [("toy",)]


def test_a_study_with_trials_of_somebody_else_is_refused_and_left_as_it_is(former: Backend) -> None:
    study = optuna.load_study(study_name="toy", storage=former.url)
    study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=1)
    before = {name: query(former, f"SELECT * FROM {name} ORDER BY 1") for name in TABLES}
    with pytest.raises(errors.LedgerCorrupt, match="trial 10 of the study toy was not made by trialplane"):
        former.open(JOB)
    assert {name: query(former, f"SELECT * FROM {name} ORDER BY 1") for name in TABLES} == before
    assert query(former, "SELECT count(*) FROM runs") == [(0,)]


def test_a_laptop_reads_it_as_it_is(sqlite: Backend) -> None:
    """Also in a file that it may not write, and with the counts that a controller would have."""
    fill(sqlite)
    file = sqlite.folder / "ledger.db"
    before = file.read_bytes()
    found = results.attempts(file, "toy", JOB, alive=False)
    assert (results.has_ended(file, "toy", 5, 1), results.has_ended(file, "toy", 8, 1)) == (True, False)
    place, ends = results.ends(file, "toy", 0)
    assert [end.request.number for end in ends] == list(range(9))
    assert results.ends(file, "toy", place) == (place, [])
    assert file.read_bytes() == before
    sqlite.open(JOB).close()
    assert [timeless(row) for row in results.attempts(file, "toy", JOB, alive=False)][:-1] == list(map(timeless, found))[:-1]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_the_gateway_takes_over_what_nobody_works_on(former: Backend) -> None:
    connections = tables.Connections(former.url)
    archive = Archive(connections.share())
    other = psycopg2.connect(former.url.replace("postgresql+psycopg2", "postgresql"))
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", (labels.ledger_lock("toy"),))
        assert archive.runs() == []
        with pytest.raises(errors.LedgerLocked, match="kubectl delete rayjob toy"):
            archive.attempts("toy", -1)
        with pytest.raises(errors.LedgerLocked, match="kubectl delete rayjob toy"):
            archive.record("toy", JOB, {"submitted": 9.0}, b"", new=True)
        cursor.execute("SELECT pg_advisory_unlock(%s)", (labels.ledger_lock("toy"),))
    other.close()
    assert [(known.run, known.submitted, known.state) for known in archive.runs()] == [("toy", 5.0, "RUNNING")]
    assert [row.trial for row in archive.attempts("toy", -1)[0]] == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert [row and row.attempt for row in (archive.attempt("toy", 5), archive.attempt("toy", 5, 1))] == [2, 1]
    assert archive.ends("toy", 0)[2] == 9
    assert archive.code("toy") == b"\0\1\2"
    connections.close()
    with former.open(JOB) as ledger:
        assert ledger.counts.retried == 2
