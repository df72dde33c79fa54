"""The reports of attempts in a ledger, on SQLite, on PostgreSQL and through the gateway.

Not checked here: what pruners make of them (tests/controller/test_pruning.py), the budget of a namespace (test_budget.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import pytest
import sqlalchemy as sa
from tests.contracts.conftest import Backend, Postgres, ask, complete, make_job, report, take_over
from tests.contracts.driver import Driver

from trialplane import errors
from trialplane.controller import curves
from trialplane.ledger import attempts as reading
from trialplane.ledger import tables
from trialplane.wire.ledger import MAX_BATCH
from trialplane.wire.records import ReportRow, TrialReport, TrialRequest


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
    next_mark = 3 + curves.GAP + 1  # the last marks of the former controller may have been deleted
    assert [(one.mark, one.attempt, one.step) for one in stored(backend)] == [
        (1, 1, 0),
        (2, 1, 1),
        (3, 1, 2),
        (next_mark, 2, 3),
    ]


def test_what_is_written_twice_is_there_once(backend: Backend) -> None:
    """As when the answer to a commit is lost."""
    ledger = backend.open(make_job())
    ask(ledger)
    for _ in range(2):
        ledger.storage.write_reports([row(1, score=1.0), row(2, step=1, score=2.0)], [])
    for _ in range(2):
        ledger.storage.write_reports([row(3, step=2, score=3.0)], [1])
    assert [(one.mark, one.step) for one in stored(backend)] == [(2, 1), (3, 2)]


def test_a_controller_that_was_taken_over_neither_writes_nor_deletes_reports(backend: Backend, postgres: Postgres) -> None:
    job = make_job()
    first = backend.open(job)
    request = ask(first)
    first.report(report(request, 0, score=0.5))
    first.write_reports(patient=True)
    second = take_over(backend, postgres, job)
    before = stored(backend)
    first.report(report(request, 1, score=0.5))
    with pytest.raises(errors.LedgerFenced):
        first.write_reports(patient=True)
    with pytest.raises(errors.LedgerFenced):
        first.storage.write_reports([], [one.mark for one in before])
    assert stored(backend) == before != []
    again = ask(second)
    second.report(report(again, 1, score=0.75))
    second.write_reports(patient=True)
    assert [(one.attempt, one.step) for one in stored(backend)] == [(1, 0), (2, 1)]


def whole_batches(connection: sa.Connection) -> int:
    """Checks that each batch of the driver is there as a whole or not at all; returns their number."""
    marks = list(connection.execute(sa.select(tables.reports.c.mark).order_by(tables.reports.c.mark)).scalars())
    batches = marks[-1] // 50 if marks else 0
    before = 50 * max(0, batches - 1)
    assert marks == [*range(1, before, 2), *range(before + 1, 50 * batches + 1)]
    return batches


@pytest.mark.slow
def test_readers_beside_a_writer_and_after_its_kill_9_find_whole_batches(backend: Backend, driver: Driver) -> None:
    job = make_job()
    with backend.open(job) as ledger:
        ask(ledger)
    engine = sa.create_engine(backend.url, isolation_level="AUTOCOMMIT")
    followed: list[int] = []
    with engine.connect() as connection:
        for kill in range(5):
            batches = whole_batches(connection)
            driver.go(backend, job, "report", batches)
            for _ in range(3 + kill):
                while whole_batches(connection) == batches:
                    pass  # it writes at this moment
                batches = whole_batches(connection)
                rows = reading.reports(tables.select(connection), "toy", followed[-1] if followed else 0).rows
                followed += [row.mark for row in rows]
            written = [int(number) for word, *rest in driver.kill() if word == "written" for number in rest]
            assert whole_batches(connection) > max(written), "nothing of what was written is lost"
    engine.dispose()
    assert [mark for mark in followed if mark % 2] == list(range(1, followed[-1] + 1, 2)), "a follower misses none"


def test_pages_of_reports_miss_none(backend: Backend) -> None:
    ledger = backend.open(make_job())
    ask(ledger)
    for first_mark in range(1, 2502, MAX_BATCH):
        marks = range(first_mark, min(first_mark + MAX_BATCH, 2502))
        ledger.storage.write_reports([row(mark, step=mark, score=1.0) for mark in marks], [])
    first = ledger.storage.reports(0)
    second = ledger.storage.reports(first.rows[-1].mark)
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
            ledger._next_write = 0.0
            ledger.write_reports()
    (remark,) = ledger.remarks
    assert "it keeps an even sample, with the minimum and maximum of score" in remark
    ledger.tell(complete(request))
    steps = [one.step for one in stored(backend)]
    assert steps == sorted({*range(0, 1000, 16), 333, 777, 999})


def test_a_curve_that_only_improves_is_thinned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report has the new minimum of one metric and the new maximum of another, and is the last one."""
    monkeypatch.setattr(curves, "MOST", 100)
    curve = curves.Curve(["loss", "accuracy"])
    kept: set[int] = set()
    for step in range(1000):
        kept.add(step)
        report = TrialReport(0, step, {"loss": -float(step), "accuracy": float(step)}, 0.0)
        kept.difference_update(curve.add(step, report))
        assert len(kept) <= 100
    assert kept == {*range(0, 1000, 16), 999}


def test_reports_without_room_are_left_out_and_deletions_are_written(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "MOST", 4)
    ledger = backend.open(make_job())
    request = ask(ledger)
    for step in range(5):
        ledger.report(report(request, step, score=0.0))
    ledger.write_reports(patient=True)
    before = [one.step for one in stored(backend)]
    write = ledger.storage.write_reports

    def full(reports: Sequence[ReportRow], deleted: Sequence[int]) -> None:
        if reports:
            raise errors.LedgerFull("there is no room")
        write(reports, deleted)

    for step in range(5, 17):
        ledger.report(report(request, step, score=0.0))
    with monkeypatch.context() as patch:
        patch.setattr(ledger.storage, "write_reports", full)
        ledger.write_reports(patient=True)
    after = [one.step for one in stored(backend)]
    assert set(after) < set(before)
    assert "curves lack reports that the ledger does not take: there is no room" in ledger.remarks[-1]
    ledger.report(report(request, 17, score=0.0))
    ledger.write_reports(patient=True)
    assert [one.step for one in stored(backend)] == [*after, 17]


def test_a_time_that_no_clock_shows_is_replaced(backend: Backend) -> None:
    ledger = backend.open(make_job())
    request = ask(ledger)
    for moment in (math.inf, math.nan, -1.0, time.time() + 1e9):
        ledger.report(TrialReport(request.number, 0, {"score": 0.0}, moment))
    ledger.write_reports(patient=True)
    assert all(abs(one.time - time.time()) < 600 for one in stored(backend))


def test_samples_of_system_metrics_are_stored_and_are_no_steps_of_the_trial(backend: Backend) -> None:
    job = make_job(objectives=[{"metric": "score", "direction": "maximize", "of": "best"}], checkpoints={"grace": 10})
    use = {"system/cpu_utilization_percentage": 99.0}
    with backend.open(job) as ledger:
        request, ended = ask(ledger), ask(ledger)
        for sample in range(9):
            assert not ledger.report(report(request, sample, **use))
            ledger.report(report(ended, sample, **use))
        ledger.report(report(request, 2, score=0.5))
        told = ledger.tell(complete(ended))
        assert told is not None and told.step == 0
        ledger.write_reports()
    assert sum(one.metrics == use for one in stored(backend)) == 18
    with backend.open(job) as ledger:
        lost = next(outcome for one, outcome in ledger.attempts() if one.number == request.number)
        assert lost is not None and (lost.step, lost.best["score"].step) == (2, 2)


def test_samples_and_reports_are_thinned_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MOST", 4)
    kept = curves.Curves(["score"])
    request = TrialRequest("toy", 0, 1, 0, {}, 1, ("score",))
    for step in range(4):
        kept.add(request, TrialReport(0, step, {"score": 0.5}, 1.0))
    for step in range(40):
        kept.add(request, TrialReport(0, step, {"system/cpu_utilization_percentage": 1.0}, 1.0))
    batch = kept.next_batch()
    assert batch is not None
    assert [one.step for one in batch.reports if "score" in one.metrics] == [0, 1, 2, 3]
    assert 1 < sum("score" not in one.metrics for one in batch.reports) <= 5
    assert kept.end(0) == 3, "the last step of the trial, not of its samples"
    assert not kept.remark, "the trial itself reports little"
