"""Locks, fencing, kill -9 and a database that goes away, with real processes and a real server.

Not checked here: a whole controller that is killed (tests/study).
"""

from __future__ import annotations

import random
import time

import pytest
from tests.contracts.conftest import Backend, Postgres, ask, complete, drive, failed, make_job, open_when_free, take_over
from tests.contracts.driver import Driver

from trialplane import errors
from trialplane.controller.ledger import Ledger
from trialplane.wire.states import FailureClass

KILLS = 10


@pytest.mark.slow
def test_a_told_trial_survives_kill_9_at_any_moment(backend: Backend, driver: Driver) -> None:
    job = make_job(trials=100_000)
    rng = random.Random(5)
    told: set[int] = set()
    for _ in range(KILLS):
        driver.go(backend, job, "trials")
        for _ in range(rng.randrange(1, 12)):
            said = driver.hear()
            if said[0] == "told":
                told.add(int(said[1]))
        time.sleep(rng.uniform(0, 0.01))  # the random moment itself
        told |= {int(number) for word, *rest in driver.kill() if word == "told" for number in rest}
        with open_when_free(backend, job) as ledger:
            ended = {r.number for r, outcome in ledger.attempts() if outcome is not None and outcome.failure is None}
            assert told <= ended
            lost = [r for r, outcome in ledger.attempts() if outcome is not None and outcome.failure is not None]
            assert all(request.number not in told for request in lost)
            assert ledger.running() == []
    assert len(told) > KILLS
    trials = [request.trial for request, outcome in ledger.attempts() if outcome is not None and not outcome.retried]
    assert len(trials) == len(set(trials)), "no logical trial ended twice"


def test_a_second_controller_is_refused_until_the_first_is_gone(backend: Backend, driver: Driver) -> None:
    job = make_job()
    driver.go(backend, job, "hold")
    assert driver.hear() == ["open"]
    for _ in range(2):
        with pytest.raises(errors.LedgerLocked) as caught:
            backend.open(job)
        assert "platform cancel toy" in str(caught.value)
        if backend.kind == "sqlite":
            assert f"pid {driver.child}" in str(caught.value)
    driver.kill()
    ledger = open_when_free(backend, job)
    drive(ledger)
    assert ledger.counts.complete == 6


def test_a_closed_ledger_is_free_at_once(backend: Backend) -> None:
    job = make_job(trials=8)
    for count in range(1, 5):
        with backend.open(job) as ledger:
            drive(ledger, count=1)
            assert ledger.counts.complete == count


def test_studies_in_one_database_do_not_lock_each_other(backend: Backend) -> None:
    job = make_job(trials=2)
    with (
        Ledger(backend.ledger("one", job), job, "one", backend.code, backend.folder / "one.lock") as one,
        Ledger(backend.ledger("two", job), job, "two", backend.code, backend.folder / "two.lock") as two,
    ):
        for _ in range(2):
            for ledger in (one, two):
                ledger.tell(complete(ask(ledger)))
        assert one.counts.complete == two.counts.complete == 2


def test_a_controller_that_lost_its_lock_cannot_tell(backend: Backend, postgres: Postgres) -> None:
    job = make_job()
    first = backend.open(job)
    request = ask(first)
    second = take_over(backend, postgres, job)
    with pytest.raises(errors.LedgerFenced, match="another controller has taken over the study toy"):
        first.tell(complete(request, score=100.0))
    again = ask(second)
    assert (again.trial, again.attempt) == (0, 2)
    second.tell(complete(again, score=0.5))
    with pytest.raises(errors.LedgerFenced):
        first.ask()
    drive(second)
    second.close()
    first.close()
    with backend.open(job) as third:
        assert third.counts.complete == 6
        assert third.newest[0].values == (0.5,)


@pytest.mark.parametrize("moment", ["ask", "tell"])
def test_a_database_that_goes_away_is_waited_for(remote: Backend, postgres: Postgres, moment: str) -> None:
    job = make_job(trials=4)
    said: list[str] = []

    def on_wait(message: str) -> None:
        if not said:
            postgres.start()
        said.append(message)

    ledger = remote.open(job, seconds=60, on_wait=on_wait)
    drive(ledger, count=1)
    request = ask(ledger) if moment == "tell" else None
    postgres.stop()
    if request is not None:
        ledger.tell(complete(request))
    drive(ledger)
    assert ledger.counts.complete == 4
    assert "platform resume toy" in said[0]
    assert said[-1] == ""
    ledger.close()
    with remote.open(job) as again:
        assert again.counts.complete == 4
        assert [request.number for request, _ in again.attempts()] == [0, 1, 2, 3], "nothing was written twice"


def test_a_database_that_stays_away_ends_the_run_and_loses_nothing(remote: Backend, postgres: Postgres) -> None:
    job = make_job(trials=4)
    ledger = remote.open(job, seconds=0.2)
    drive(ledger, count=2)
    request = ask(ledger)
    postgres.stop()
    try:
        with pytest.raises(errors.LedgerUnavailable):
            ledger.tell(complete(request))
        ledger.close()
    finally:
        postgres.start()
    with remote.open(job) as again:
        assert again.counts.complete == 2
        assert again.counts.retried == 1, "the third is not known to have ended, so it runs again"
        assert ask(again).params == request.params


def test_a_controller_that_lost_its_lock_with_the_server_keeps_others_out(remote: Backend, postgres: Postgres) -> None:
    """A restart of PostgreSQL forgets its locks; the controller that has written since holds it again."""
    job = make_job(trials=4)
    ledger = remote.open(job, seconds=60)
    drive(ledger, count=1)
    postgres.stop()
    postgres.start()
    drive(ledger, count=1)
    with pytest.raises(errors.LedgerLocked):
        remote.open(job)
    drive(ledger)
    assert ledger.counts.complete == 4


def test_what_failed_before_the_crash_keeps_its_retries(backend: Backend, driver: Driver) -> None:
    """Each kill of the controller uses up one of the five retries of what ran, and no more."""
    job = make_job(trials=1, retries={"lost": 2})
    with backend.open(job) as ledger:
        ledger.tell(failed(ask(ledger), FailureClass.LOST))
    for _ in range(2):
        with backend.open(job) as ledger:
            attempt = ask(ledger).attempt
    assert attempt == 3
    with backend.open(job) as ledger:
        assert ledger.ask() is None
        assert (ledger.counts.failed, ledger.counts.counted_failures, ledger.counts.retried) == (1, 0, 2)
