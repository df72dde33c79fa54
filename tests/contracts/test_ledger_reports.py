"""The reports of attempts in a ledger, on SQLite, on PostgreSQL and through the gateway.

Not checked here: what pruners make of them (tests/controller/test_pruning.py), what the budget counts (test_budget.py).
"""

from __future__ import annotations

import math
import time

import pytest
import sqlalchemy as sa
from tests.contracts.conftest import Backend, ask, complete, make_job, report

from trialplane import errors
from trialplane.controller import curves
from trialplane.ledger import attempts as reading
from trialplane.ledger import tables
from trialplane.wire.records import ReportRow


def stored(backend: Backend) -> list[ReportRow]:
    """All reports, as somebody beside the controller reads them."""
    engine = sa.create_engine(backend.url)
    with engine.connect() as connection:
        rows = reading.reports(tables.select(connection), "toy", 0).rows
    engine.dispose()
    return rows


def row(mark: int, step: int = 0, **metrics: float) -> ReportRow:
    return ReportRow(mark, 0, 1, 0, step, metrics, time.time())


def test_reports_of_running_attempts_are_there_for_others_in_their_order(backend: Backend) -> None:
    ledger = backend.open(make_job())
    first, second = ask(ledger), ask(ledger)
    for step in (3, 1, 2):  # steps may go backwards
        for request in (first, second):
            ledger.report(report(request, step, score=step / 2, loss=math.nan))
    ledger.report(report(first, 9, score=math.inf))
    ledger.write_reports()
    rows = stored(backend)
    assert [one.mark for one in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [(one.trial, one.attempt, one.number, one.step) for one in rows[:4]] == [
        (0, 1, 0, 3),
        (1, 1, 1, 3),
        (0, 1, 0, 1),
        (1, 1, 1, 1),
    ]
    assert rows[0].metrics["score"] == 1.5 and math.isnan(rows[0].metrics["loss"])
    assert rows[-1].metrics == {"score": math.inf}


def test_an_attempt_that_ended_has_all_of_its_reports(backend: Backend) -> None:
    ledger = backend.open(make_job())
    request = ask(ledger)
    ledger.write_reports()
    ledger.report(report(request, 0, score=0.5))  # a moment after the last batch
    ledger.tell(complete(request))
    assert [one.step for one in stored(backend)] == [0]


def test_the_curve_of_an_attempt_that_was_lost_stays_and_marks_go_on(backend: Backend) -> None:
    job = make_job(objectives=[{"metric": "score", "direction": "maximize", "of": "best"}], checkpoints={"grace": 10})
    with backend.open(job) as ledger:
        request = ask(ledger)
        for step, score in enumerate((0.2, 0.9, 0.4)):
            ledger.report(report(request, step, score=score))
        ledger.write_reports()
    with backend.open(job) as ledger:
        ((_, lost),) = ledger.attempts()
        assert lost is not None and (lost.step, lost.best["score"].value) == (2, 0.9)
        again = ask(ledger)
        ledger.report(report(again, 3, score=0.5))
        told = ledger.tell(complete(again, score=0.5))
        assert told is not None and told.metrics == {"score": 0.9}
    assert [(one.mark, one.attempt, one.step) for one in stored(backend)] == [(1, 1, 0), (2, 1, 1), (3, 1, 2), (4, 2, 3)]


def test_what_is_written_twice_is_there_once(backend: Backend) -> None:
    """As when the answer to a commit is lost."""
    ledger = backend.open(make_job())
    ask(ledger)
    for _ in range(2):
        ledger._storage.report([row(1, score=1.0), row(2, step=1, score=2.0)], [])
    for _ in range(2):
        ledger._storage.report([row(3, step=2, score=3.0)], [1])
    assert [(one.mark, one.step) for one in stored(backend)] == [(2, 1), (3, 2)]


def test_a_controller_that_was_taken_over_writes_no_report(sqlite: Backend) -> None:
    first = sqlite.open(make_job())
    request = ask(first)
    sqlite.open(make_job(), lock=sqlite.folder / "other.lock")  # a file system without working locks
    first.report(report(request, 0, score=0.5))
    with pytest.raises(errors.LedgerFenced):
        first.write_reports()
    assert stored(sqlite) == []


def test_pages_of_reports_miss_none(backend: Backend) -> None:
    ledger = backend.open(make_job())
    ask(ledger)
    ledger._storage.report([row(mark, step=mark, score=1.0) for mark in range(1, 2502)], [])
    first = ledger._storage.reports(0)
    second = ledger._storage.reports(first.rows[-1].mark)
    assert (first.more, second.more) == (True, False)
    assert [one.mark for one in (*first.rows, *second.rows)] == list(range(1, 2502))


def test_a_long_curve_is_thinned_evenly_with_its_extremes(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MOST", 100)
    ledger = backend.open(make_job())
    request = ask(ledger)
    scores = [float(step % 7) for step in range(1000)]
    scores[333], scores[777] = 50.0, -50.0
    for step, score in enumerate(scores):
        ledger.report(report(request, step, score=score))
        if step % 90 == 0:
            ledger._write_at = 0.0
            ledger.write_reports()
    (remark,) = ledger.remarks
    assert "it keeps an even sample, with the minimum and maximum of score" in remark
    ledger.tell(complete(request))
    steps = [one.step for one in stored(backend)]
    assert steps == sorted({*range(0, 1000, 16), 333, 777, 999})
