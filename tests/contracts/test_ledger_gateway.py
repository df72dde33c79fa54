"""What only a ledger through the gateway can meet: a gateway that is killed or away, tokens, and requests that do harm.

The gateway is a process of its own on a real PostgreSQL. What it has in common with the other ledgers is in the suite beside
this file; how the operator makes tokens is in tests/reconciler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import logging
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.contracts.conftest import Backend, Postgres, ask, complete, door, drive, make_job, wait_until
from tests.contracts.gateway_process import NAMESPACE, TOKEN, Cut, Gateways

from trialplane import errors
from trialplane.gateway import ledgers
from trialplane.ledger import remote
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import cluster, labels, ledger, records
from trialplane.wire.ledger import Address
from trialplane.wire.records import ReportRow, RunStatus, TrialOutcome, TrialRequest
from trialplane.wire.states import RunState, TrialState

KILLS = 8
PLACE = ledger.namespace_path(NAMESPACE)


def post(served: Backend, run: str, body: bytes, token: str = TOKEN, **headers: str) -> tuple[int, dict[str, Any]]:
    """One request on a connection of its own; its status, and what failed."""
    connection = http.client.HTTPConnection("127.0.0.1", door(served).port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", ledger.path(PLACE, run), body, {cluster.TOKEN_HEADER: token, **headers})
        reply = connection.getresponse()
        data = reply.read()
        return reply.status, json.loads(data) if reply.status != 200 else {}


OPEN = ledger.encode(ledger.OpenLedger(("maximize",)))


def test_a_gateway_killed_at_any_moment_loses_and_doubles_nothing(served: Backend) -> None:
    """Requests that were under way are sent again, whether or not they were committed."""
    job = make_job(trials=60)
    book = served.open(job, seconds=60, lock_seconds=60)
    rng, done = random.Random(3), threading.Event()

    def kill() -> None:
        for _ in range(KILLS):
            if done.wait(rng.uniform(0, 0.2)):  # the random moment itself
                return
            door(served).kill()
            door(served).start()

    killer = threading.Thread(target=kill)
    killer.start()
    told = drive(book, count=40)
    done.set()
    killer.join()
    told += drive(book)
    book.close()
    with served.open(job, lock_seconds=60) as again:
        assert again.counts.complete == 60
        attempts = [(request, outcome) for request, outcome in again.attempts()]
    assert [request.number for request, _ in attempts] == list(range(60)), "nothing was lost, and nothing written twice"
    assert [request.params for request, _ in attempts] == [request.params for request in told]


@pytest.mark.parametrize("moment", ["ask", "tell", "describe"])
def test_what_was_committed_without_an_answer_is_sent_again_and_there_once(served: Backend, moment: str) -> None:
    door(served).admit("toy", ["maximize"])
    request = TrialRequest(run="toy", trial=0, attempt=1, number=0, params={"x": 0.5}, seed=1, metrics=("score",))
    attempt = ledgers.Attempt(request, optuna={"values": [0.1, "nan"]})
    outcome = TrialOutcome(0, TrialState.COMPLETE, metrics={"score": 0.5})
    status = {"run": "toy", "job": "toy", "state": "RUNNING", "trials": 3}
    with contextlib.closing(Cut(door(served).port)) as cut:
        url = f"http://:{TOKEN}@127.0.0.1:{cut.port}{PLACE}"
        storage = remote.Storage(url, "toy", ("maximize",), lock_patience=60, should_give_up=lambda: False)
        steps = {
            "ask": lambda: storage.write_start(attempt, {"a": 1}),
            "tell": lambda: storage.write_end(dataclasses.replace(attempt, outcome=outcome), None),
            "describe": lambda: storage.write_facts({labels.LEDGER_STATUS: status}),
        }
        with contextlib.closing(storage):
            for name, step in steps.items():
                cut.armed = name == moment
                step()
            found, kept = storage.load()
            assert cut.cuts == 1
            assert found == [dataclasses.replace(attempt, outcome=outcome, end_number=1)]
            assert kept == {"a": 1}
            assert storage.read_column(labels.LEDGER_STATUS)["state"] == "RUNNING"


def test_a_gateway_that_is_away_is_waited_for_with_a_line_in_the_log(
    served: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []

    def on_wait(message: str) -> None:
        said.append(message)
        if len(said) == 3:
            door(served).start()

    caplog.set_level(logging.INFO, "trialplane")
    book = served.open(make_job(trials=3), seconds=120, lock_seconds=60, on_wait=on_wait)
    request = ask(book)
    door(served).kill()
    assert book.tell(complete(request)) is not None
    drive(book)
    assert book.counts.complete == 3
    assert f"the gateway http://127.0.0.1:{door(served).port} does not answer" in said[0]
    assert "platform resume toy" in said[0]
    assert said[-1] == ""
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("patience")]
    assert ["does not answer" in lines[0], *lines[1:]] == [True, "the ledger answers again"], "one line, and one at the end"
    assert TOKEN not in " ".join([*said, *lines])


def test_a_controller_that_was_taken_over_while_its_connection_was_broken_writes_nothing(served: Backend) -> None:
    job = make_job()
    first = served.open(job, lock_seconds=60)
    request = ask(first)
    door(served).kill()
    door(served).start()
    second = wait_until(lambda: _opened(served, job), "the lock is free")
    with pytest.raises(errors.LedgerFenced, match="another controller has taken over the study toy"):
        first.tell(complete(request, score=100.0))
    assert second.counts.retried == 1


def _opened(served: Backend, job: Any) -> Any:
    try:
        return served.open(job)
    except errors.LedgerLocked:
        return None


def test_a_token_opens_its_own_run_and_tells_nothing_of_others(served: Backend) -> None:
    """The answer is the same for a run that exists, for one that does not, and for one that has ended."""
    door(served).admit("a", ["maximize"], "token-of-a")
    door(served).admit("b", ["maximize"], "token-of-b")
    door(served).admit("ended", ["maximize"])
    door(served).revoke("ended")
    answers = [post(served, run, OPEN, "token-of-a") for run in ("b", "nobody", "ended")]
    answers += [post(served, "a", OPEN, token) for token in ("", "token-of-b", "tökén")]
    answers.append(post(served, "ended", OPEN))
    assert {status for status, _ in answers} == {403}
    assert {tuple(sorted(body)) for _, body in answers} == {("code", "error")}
    assert len({json.dumps(body) for _, body in answers}) == 1
    assert post(served, "a", OPEN, "token-of-a") == (200, {})


def test_a_request_that_names_another_run_is_refused(served: Backend) -> None:
    """On the connection of run a, an attempt and a status that say of themselves that they are of run b."""
    for run in ("a", "b"):
        door(served).admit(run, ["maximize"], f"token-of-{run}")
    request = TrialRequest(run="b", trial=0, attempt=1, number=0, params={}, seed=1, metrics=("score",))
    service = ledgers.LedgerService(Ledgers(served.url, NAMESPACE, [NAMESPACE]))
    connection = ledgers.Connection(service)
    connection.admit(Address(NAMESPACE, "a"), "token-of-a")
    connection.answer(OPEN)
    status = RunStatus("b", "toy", RunState.RUNNING, 6)
    for message in (ledger.BeginAttempt(request, "{}", None), ledger.WriteStatus(status)):
        with pytest.raises(ledgers.Failure) as caught:
            connection.answer(ledger.encode(message))
        assert caught.value.code == ledger.REFUSED
    connection.close()
    service.ledgers.close()


@pytest.mark.parametrize("after", ["a new token", "none"])
@pytest.mark.parametrize("what", ["write", "read"])
def test_a_token_that_was_replaced_or_taken_away_ends_its_controller(served: Backend, after: str, what: str) -> None:
    """On the connection that is open, at the next transaction."""
    book = served.open(make_job())
    request = ask(book)
    if after == "none":
        door(served).revoke("toy")
    else:
        door(served).admit("toy", ["maximize"], "another")
    with pytest.raises(errors.LedgerFenced, match="refuses this controller's token"):
        if what == "write":
            book.tell(complete(request))
        else:
            book.read_desired()
    engine = sa.create_engine(served.url)
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT outcome FROM attempts")).scalars().all() == [None]
    engine.dispose()


def head(length: int, token: str = TOKEN) -> bytes:
    """That of a request, whose body then may come."""
    lines = (f"POST {ledger.path(PLACE, 'toy')} HTTP/1.1", "Host: x", f"{cluster.TOKEN_HEADER}: {token}")
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def test_a_body_over_the_limit_is_refused_before_it_is_read(served: Backend) -> None:
    door(served).admit("toy", ["maximize"])
    for length, token, wanted in ((ledger.MAX_BYTES + 1, TOKEN, 413), (10**15, TOKEN, 413), (16_000_000, "wrong", 403)):
        with socket.create_connection(("127.0.0.1", door(served).port), timeout=60) as connection:
            connection.sendall(head(length, token))  # and no body, which nobody waits for
            reply = http.client.HTTPResponse(connection)
            reply.begin()
            assert reply.status == wanted
            assert json.loads(reply.read())["code"] == (ledger.TOO_LARGE if wanted == 413 else ledger.REFUSED)


def test_a_record_that_is_too_large_is_named_and_not_sent(served: Backend) -> None:
    book = served.open(make_job(), seconds=0)
    request = ask(book)
    outcome = TrialOutcome(request.number, TrialState.FAILED, message="x" * (ledger.MAX_BYTES + 1))
    with pytest.raises(errors.LedgerError, match="a record of toy is too large for its ledger"):
        book.storage.write_end(ledgers.Attempt(request, outcome), None)


@pytest.mark.parametrize("moment", [-1.0, 1e11])
def test_a_report_of_another_time_is_refused_whatever_the_size_of_its_request(served: Backend, moment: float) -> None:
    book = served.open(make_job(), seconds=0)
    request = ask(book)
    report = ReportRow(1, request.trial, request.attempt, request.number, 0, {"score": 0.5}, moment)
    with pytest.raises(errors.LedgerError, match="negative or more than an hour in the future"):
        book.storage.write_reports([report], [])


def test_the_reports_of_a_request_are_counted(served: Backend) -> None:
    book = served.open(make_job(), seconds=0)
    request = ask(book)
    row = (request.trial, request.attempt, request.number, 0, {"score": 0.5}, time.time())
    with pytest.raises(errors.LedgerError, match="may write 1,000 reports"):
        book.storage.write_reports([ReportRow(mark, *row) for mark in range(1, ledger.MAX_BATCH + 2)], [])


@pytest.mark.parametrize("sent", ["", "POST /runs/toy/led", "POST /runs/toy/ledger HTTP/1.1\r\nContent-Le", "body"])
def test_who_sends_slowly_or_nothing_holds_no_thread(postgres: Postgres, gateways: Gateways, sent: str) -> None:
    made = gateways.door(postgres.new_database(), idle=0.2, request=0.2)
    made.admit("toy", ["maximize"])
    with socket.create_connection(("127.0.0.1", made.port), timeout=60) as connection:
        connection.sendall(head(100) + b"half" if sent == "body" else sent.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))  # the other end closes it
    assert (b'"code": "slow"' in answer) == (sent == "body")
    made.close()


def test_a_controller_may_be_quiet_for_as_long_as_it_likes(postgres: Postgres, gateways: Gateways, place: Path) -> None:
    made = Backend("gateway", postgres.new_database(), place, server=postgres)
    made.door = gateways.door(made.url, idle=0.05)
    made.code.mkdir()
    book = made.open(make_job())
    with pytest.raises(errors.LedgerLocked):  # which takes longer than that
        made.open(make_job(), lock_seconds=0.3)
    before = book.storage._connection
    drive(book)
    assert book.storage._connection is before, "it is still the first connection"
    made.close()


def test_a_run_has_a_few_connections_at_most(served: Backend) -> None:
    door(served).admit("toy", ["maximize"])
    door(served).admit("other", ["maximize"])
    service = ledgers.LedgerService(Ledgers(served.url, NAMESPACE, [NAMESPACE]))
    made = [ledgers.Connection(service) for _ in range(ledgers.CONNECTIONS + 1)]
    for connection in made[:-1]:
        connection.admit(Address(NAMESPACE, "toy"), TOKEN)
    with pytest.raises(ledgers.Failure) as caught:
        made[-1].admit(Address(NAMESPACE, "toy"), TOKEN)
    assert caught.value.code == ledger.BUSY
    made[-1].admit(Address(NAMESPACE, "other"), TOKEN)
    made[0].close()
    made[-1].admit(Address(NAMESPACE, "toy"), TOKEN)
    service.ledgers.close()


def test_a_connection_that_ended_releases_the_lock_and_counts_no_more(served: Backend) -> None:
    door(served).admit("toy", ["maximize"])
    for _ in range(ledgers.CONNECTIONS + 1):
        wait_until(lambda: post(served, "toy", OPEN)[0] == 200, "the connection before is gone")


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        (b"", 400, ledger.INVALID),
        (b"[" * 100_000, 400, ledger.INVALID),
        (b'["DeleteLedger","1",{}]', 400, ledger.INVALID),
        (ledger.encode(ledger.OpenLedger(("sideways",))), 400, ledger.INVALID),
        (ledger.encode(ledger.LoadAttempts(-1)), 409, ledger.UNOPENED),
        (ledger.encode(ledger.OpenLedger(("minimize",))), 422, ledger.CORRUPT),
        (ledger.encode(ledger.OpenLedger(("maximize",), 7)), 409, ledger.FENCED),
    ],
)
def test_what_is_wrong_has_a_code(served: Backend, message: bytes, status: int, code: str) -> None:
    door(served).admit("toy", ["maximize"])
    found, body = post(served, "toy", message)
    assert (found, body["code"]) == (status, code), body


def test_documents_that_are_none_are_not_stored(served: Backend) -> None:
    book = served.open(make_job())
    request = ask(book)
    for text in ("", "[1]", "{", "[" * 100_000):
        with pytest.raises(
            errors.LedgerError, match=r"takes no such record of toy: a document is not (JSON:|a JSON object)"
        ):
            book.storage._request(ledger.DrawAttempt(request, text, None), ledger.Written)
    assert book.tell(complete(request)) is not None


def test_of_the_facts_a_controller_may_write_its_status_alone(served: Backend) -> None:
    book = served.open(make_job())
    with pytest.raises(errors.LedgerError, match="may write the status only"):
        book.write_facts({labels.LEDGER_DESIRED: {"state": "RUNNING"}})


def test_a_long_run_is_loaded_in_pieces(served: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of which the database bounds."""
    job = make_job(trials=12)
    with served.open(job) as book:
        drive(book)
        wanted, _ = book.storage.load()
    monkeypatch.setattr(ledger, "PAGE_BYTES", 4 * len(records.to_json(wanted[0].request)))
    service = ledgers.LedgerService(Ledgers(served.url, NAMESPACE, [NAMESPACE]))
    connection = ledgers.Connection(service)
    connection.admit(Address(NAMESPACE, "toy"), TOKEN)
    connection.answer(OPEN)
    found: list[ledger.StoredAttempt] = []
    pieces = 0
    while True:
        after = found[-1].request.number if found else -1
        page = ledger.decode(connection.answer(ledger.encode(ledger.LoadAttempts(after))), ledger.ANSWER)
        assert isinstance(page, ledger.AttemptsLoaded)
        if not page.attempts:
            break
        pieces += 1
        found += page.attempts
    assert [(one.request, one.outcome, json.loads(one.optuna)) for one in found] == [
        (one.request, one.outcome, one.optuna) for one in wanted
    ]
    assert pieces > 2
    connection.close()
    service.ledgers.close()
