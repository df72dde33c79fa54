"""The laptop reads a ledger that the controller's own code has written: rows, ends, damage, and a killed writer's log.

Not checked here: how the controller decides (tests/controller), and how rows are printed (tests/cli).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.client.conftest import ORIGIN, complete, failed

from trialplane.client import folder
from trialplane.client.run import RunHandle, submit
from trialplane.errors import LedgerCorrupt, LedgerUnavailable, TargetError
from trialplane.job import load
from trialplane.ledger import results, run_status
from trialplane.plan import plan as planning
from trialplane.wire import rows
from trialplane.wire.states import FailureClass, RunState, TrialState


def read(run, alive=False):
    return results.attempts(run.ledger, run.root.name, folder.load_job(run), alive)


def files(run):
    return sorted(path.name for path in run.root.iterdir())


def test_no_ledger_is_no_attempts(runs):
    assert read(runs.make("a")) == []


def test_every_attempt_is_a_row(runs):
    run = runs.make("a", tell=complete)
    found = read(run)
    assert [row.trial for row in found] == list(range(6))
    assert all(row.state is TrialState.COMPLETE and row.values == (row.params["lr"],) for row in found)
    assert found[0].seconds == 2.0


def test_a_retry_is_an_attempt_of_its_own(runs):
    run = runs.make("a", tell=lambda r: failed(r, FailureClass.LOST) if r.attempt == 1 and r.trial == 2 else complete(r))
    found = read(run)
    assert len(found) == 7
    assert [(row.attempt, row.state) for row in found if row.trial == 2] == [
        (1, TrialState.LOST),
        (2, TrialState.COMPLETE),
    ]
    counts = run_status.recount(folder.load_job(run), found)
    assert (counts.complete, counts.failed, counts.retried) == (6, 0, 1)


def test_what_runs_is_running_while_a_controller_lives_and_lost_after(runs):
    run = runs.make("a", tell=lambda r: complete(r) if r.trial < 2 else None, asks=3)
    assert read(run, alive=True)[2].state is TrialState.RUNNING
    left = read(run, alive=False)[2]
    assert left.state is TrialState.LOST
    assert "interrupted" in left.message


def test_counts_are_those_of_the_controller(runs):
    def tell(request):
        if request.trial == 0:
            return failed(request)
        if request.trial == 1:
            return failed(request, FailureClass.TIMEOUT)
        return complete(request)

    run = runs.make("a", tell=tell)
    counts = run_status.recount(folder.load_job(run), read(run))
    assert (counts.complete, counts.failed, counts.failures) == (4, 2, {"error": 1, "timeout": 1})


def test_ends_are_given_once(runs):
    run = runs.make("a", tell=lambda r: complete(r) if r.trial < 2 else None, asks=3)
    place, first = results.ended_attempts(run.ledger, "a", 0)
    assert [end.request.trial for end in first] == [0, 1]
    assert results.ended_attempts(run.ledger, "a", place) == (place, [])
    runs.drive(run, complete)
    _, later = results.ended_attempts(run.ledger, "a", place)
    assert [end.request.trial for end in later] == [2, 2, 3, 4, 5]  # lost, tried again, and the rest


def test_has_ended_tells_attempts_apart(runs):
    run = runs.make("a", tell=lambda r: failed(r, FailureClass.LOST) if r.attempt == 1 else None, asks=1)
    assert results.has_ended(run.ledger, "a", 0, 1)
    assert not results.has_ended(run.ledger, "a", 0, 2)


@pytest.mark.parametrize("told", [{"complete": 2}, {"running": 1}])
def test_a_run_whose_ledger_is_gone_is_neither_forgotten_nor_begun_anew(runs, told):
    run = runs.make("a", tell=complete, asks=2)
    runs.say(run, RunState.RUNNING, **told)
    run.ledger.unlink()
    source = runs.jobs / "demo"
    plan = planning.plan(load.load_job(source), source, "a", ORIGIN)
    handle = RunHandle("a", runs.target)
    for verb in (handle.attempts, handle.resume, lambda: submit(runs.target, plan)):
        with pytest.raises(TargetError, match=r"its trials are in MLflow: .*`platform delete a` deletes it"):
            verb()
    assert run.root.exists()


def test_reading_leaves_no_file_behind(runs):
    run = runs.make("a", tell=complete)
    before = files(run)
    read(run)
    assert files(run) == before


def test_a_killed_writers_log_is_read(runs, tmp_path):
    """The last transactions of a `kill -9` are in the write-ahead log only."""
    run = runs.make("a", tell=complete)
    script = """
import os, sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute("PRAGMA wal_autocheckpoint=0")
c.execute("UPDATE attempts SET outcome = replace(outcome, 'COMPLETE', 'PRUNED')")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script, str(run.ledger)], check=False)
    log = Path(f"{run.ledger}-wal")
    assert log.stat().st_size > 0
    assert {row.state for row in read(run)} == {TrialState.PRUNED}
    # And where the shared index of that log is gone as well, as after a copy.
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (run.ledger, log):
        shutil.copy(file, copy)
    found = results.attempts(copy / "ledger.db", "a", folder.load_job(run), False)
    assert {row.state for row in found} == {TrialState.PRUNED}


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b"this is not a database at all, but long enough to look like one" * 20),
        lambda file: os.truncate(file, file.stat().st_size // 2 + 100),
        lambda file: sqlite_do(file, "DROP TABLE attempts"),
        lambda file: sqlite_do(file, "UPDATE attempts SET outcome = '{broken'"),
        lambda file: sqlite_do(file, "UPDATE attempts SET outcome = '[1]'"),
    ],
    ids=["no database", "cut in half", "a table is gone", "no JSON", "another record"],
)
def test_a_damaged_ledger_says_what_to_do(runs, damage):
    run = runs.make("a", tell=complete)
    damage(run.ledger)
    with pytest.raises(LedgerCorrupt, match=r"move .* away") as caught:
        read(run)
    assert caught.value.exit_code == 2
    assert str(run.ledger) in str(caught.value)


@pytest.mark.parametrize("version", [0, 99])
def test_a_ledger_of_another_version_is_refused_in_one_line(runs, version):
    run = runs.make("a", tell=complete)
    sqlite_do(run.ledger, f"UPDATE schema_version SET version = {version}")
    with pytest.raises(LedgerCorrupt) as caught:
        read(run)
    message = str(caught.value)
    assert message.startswith(f"the ledger {run.ledger} has tables of version {version}") and "\n" not in message


def test_a_ledger_that_somebody_locks_is_no_damaged_one(runs, monkeypatch):
    run = runs.make("a", tell=complete)
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda file, **given: connect(file, **{**given, "timeout": 0}))
    holder = connect(run.ledger)
    holder.execute("PRAGMA journal_mode=DELETE")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerUnavailable, match="see which process holds it"):
        read(run, alive=True)
    holder.close()
    assert len(read(run)) == 6


def test_rows_are_ranked_as_the_controller_ranks(runs):
    run = runs.make("a", tell=complete)
    job = folder.load_job(run)
    best = rows.best_trial(job, read(run))
    assert best is not None
    assert best.values[0] == min(row.values[0] for row in read(run))


def sqlite_do(file, statement):
    connection = sqlite3.connect(file)
    with connection:
        connection.execute(statement)
    connection.close()
