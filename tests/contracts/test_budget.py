"""What the runs of a namespace may keep, all of them together, on a real PostgreSQL: in the ledger, as code, and in MLflow.

What the gateway's door to MLflow does with it: tests/gateway/test_mlflow.py. What a controller does: tests/controller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contracts.conftest import Postgres, make_job, wait_until

from trialplane.errors import InputError, LedgerFull
from trialplane.gateway.ledgers import Connection, Failure, LedgerService
from trialplane.ledger import budget
from trialplane.ledger.archive import Archive
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import ledger
from trialplane.wire.ledger import Address
from trialplane.wire.records import ReportRow, TrialOutcome, TrialRequest
from trialplane.wire.states import TrialState

OPEN = ledger.encode(ledger.OpenLedger(("maximize",)))
FACTS = {"submitted": 1.0, "code_hash": "ab"}
MOST = 200_000  # bytes that `vision` may keep in the database
BUDGETS = json.dumps({"vision": {"database": MOST, "artifacts": 1000}})


@pytest.fixture
def ledgers(url: str) -> Iterator[Ledgers]:
    """Of a team with a small budget, and of one without a limit that would matter."""
    made = Ledgers(url, "control", ["vision", "speech"], BUDGETS)
    yield made
    made.close()


def archive(ledgers: Ledgers, namespace: str = "vision") -> Archive:
    found = ledgers.of(namespace)
    assert found is not None
    return found


class Controller:
    """What may stand behind a run's token."""

    def __init__(self, ledgers: Ledgers, run: str, namespace: str = "vision") -> None:
        archive(ledgers, namespace).record_run(run, make_job(), FACTS, b"code", new=True)
        archive(ledgers, namespace).set_token(run, "a-token")
        self.run, self.connection = run, Connection(LedgerService(ledgers))
        self.connection.admit(Address(namespace, run), "a-token")
        self.connection.answer(OPEN)
        self.begun = 0

    def request(self, number: int) -> TrialRequest:
        return TrialRequest(self.run, number, 1, number, {"text": "x" * 1000}, seed=0, metrics=("score",))

    def send(self, request: ledger.Request) -> None:
        self.connection.answer(ledger.encode(request))

    def begin(self) -> None:
        self.send(ledger.BeginAttempt(self.request(self.begun), "{}", None))
        self.begun += 1

    def draw(self, number: int) -> None:
        self.send(ledger.DrawAttempt(self.request(number), "{}", None))

    def finish(self, number: int) -> None:
        outcome = TrialOutcome(number, TrialState.COMPLETE, metrics={"score": 1.0}, message="y" * 200)
        self.send(ledger.FinishAttempt(self.request(number), outcome, "{}", None))

    def fill(self) -> str:
        """Begins attempts until one is refused; gives the message."""
        with pytest.raises(Failure) as caught:
            while self.begun < 1000:
                self.begin()
        assert caught.value.code == ledger.FULL
        return str(caught.value)

    def close(self) -> None:
        self.connection.close()


def delete(ledgers: Ledgers, run: str) -> None:
    """Deletes a run whose controller has just ended."""
    wait_until(lambda: not archive(ledgers).is_alive(run), "PostgreSQL sees that the controller is gone")
    archive(ledgers).delete(run)


def rows(postgres: Postgres, url: str, table: str) -> list[tuple[Any, ...]]:
    return postgres.execute(f"SELECT * FROM vision.{table}", url)


def test_the_runs_of_a_namespace_share_its_budget_and_others_have_their_own(
    ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is no way out to open a ledger again, or to submit another run."""
    monkeypatch.setattr(budget, "AT_ONCE", 10_000)
    first, second, other = Controller(ledgers, "a"), Controller(ledgers, "b"), Controller(ledgers, "c", "speech")
    for _ in range(30):
        first.begin()
    said = second.fill()
    assert 80 <= second.begun <= 120
    assert said.startswith("the runs in vision use 19") and "the budget is 195.3 KiB" in said
    assert "the largest runs: b 1" in said and "`platform delete RUN`" in said and "budget.database" in said
    first.fill()
    assert first.begun <= 40, "no more than it had taken at once"
    second.connection.answer(OPEN)
    second.fill()
    with pytest.raises(LedgerFull, match="the runs in vision use"):
        archive(ledgers).record_run("d", make_job(), FACTS, b"z" * 30_000, new=True)
    assert [one.run for one in archive(ledgers).runs()] == ["a", "b"], "it leaves nothing behind"
    while other.begun < 300:
        other.begin()
    first.close()
    delete(ledgers, "a")
    second.begin()
    second.close()
    other.close()


def test_the_ends_of_trials_that_run_have_room_beyond_the_budget(ledgers: Ledgers) -> None:
    controller = Controller(ledgers, "a")
    controller.fill()
    for number in range(30):
        controller.draw(number)
        controller.finish(number)
    controller.fill()
    with pytest.raises(Failure, match="the runs in vision use") as caught:
        for number in range(30, controller.begun):
            controller.finish(number)
    assert caught.value.code == ledger.FULL
    controller.close()


def test_a_record_in_the_place_of_another_counts_once(ledgers: Ledgers, postgres: Postgres, url: str) -> None:
    """A define-by-run trial writes its parameters anew with each that it draws."""
    controller = Controller(ledgers, "a")
    controller.begin()
    ((_, before),) = rows(postgres, url, "sizes")
    for _ in range(300):
        controller.draw(0)
        controller.send(ledger.BeginAttempt(controller.request(0), "{}", None))
    assert rows(postgres, url, "sizes") == [(1, before)]
    controller.finish(0)
    ((_, after),) = rows(postgres, url, "sizes")
    assert before + 200 < after < before + 1500
    controller.close()


def test_the_count_is_that_of_the_rows(ledgers: Ledgers, postgres: Postgres, url: str) -> None:
    """Also of what is written twice, thinned, or written after the ledger was opened again."""
    controller = Controller(ledgers, "a")
    for _ in range(3):
        controller.begin()
    reports = tuple(ReportRow(mark, 0, 1, 0, mark, {"score": mark / 3}, 1.0) for mark in range(1, 7))
    for _ in range(2):
        controller.finish(0)
        controller.send(ledger.WriteReports(reports[:4], ()))
        controller.send(ledger.WriteReports(reports[4:5], (2, 3)))
    controller.connection.answer(OPEN)
    controller.draw(1)
    for number in (1, 2):
        controller.finish(number)
    controller.begin()
    controller.finish(3)
    controller.send(ledger.WriteReports(reports[5:], ()))
    texts = "octet_length(request) + octet_length(outcome) + octet_length(optuna)"
    counted = f"SELECT (SELECT sum({texts} + {budget.ROW}) FROM vision.attempts)"
    counted += f" + (SELECT sum(octet_length(metrics) + {budget.ROW}) FROM vision.reports)"
    assert [size for _, size in rows(postgres, url, "sizes")] == [int(size) for (size,) in postgres.execute(counted, url)]
    controller.close()


def test_code_is_stored_once_and_goes_with_the_last_run_that_has_it(ledgers: Ledgers, postgres: Postgres, url: str) -> None:
    team = archive(ledgers)
    for run, code in (("a", b"x" * 9000), ("b", b"x" * 9000), ("c", b"y" * 9000)):
        team.record_run(run, make_job(), FACTS, code, new=True)
    assert sorted(data.tobytes()[:1] for _, data in rows(postgres, url, "codes")) == [b"x", b"y"]
    assert (team.code("a"), team.code("c")) == (b"x" * 9000, b"y" * 9000)
    team.delete("a")
    assert team.code("b") == b"x" * 9000
    team.record_run("b", make_job(trials=7), FACTS, b"z" * 9000, new=False)
    team.delete("c")
    assert [data.tobytes()[:1] for _, data in rows(postgres, url, "codes")] == [b"z"]


def test_a_run_named_as_the_table_of_code_keeps_nobody_out(ledgers: Ledgers) -> None:
    """A controller holds the lock of its run's name for as long as it works."""
    working = Controller(ledgers, "codes")
    archive(ledgers).record_run("b", make_job(), FACTS, b"other code", new=True)
    working.begin()
    delete(ledgers, "b")


def test_runs_that_never_start_cannot_fill_the_database_with_code(ledgers: Ledgers) -> None:
    made = 0
    with pytest.raises(LedgerFull, match=r"code 1\d\d.* KiB"):
        for made in range(100):
            archive(ledgers).record_run(f"run-{made}", make_job(), FACTS, bytes([made]) * 9000, new=True)
    assert 10 < made < 22
    delete(ledgers, "run-0")
    archive(ledgers).record_run("small", make_job(), FACTS, b"\0" * 9000, new=True)


def test_what_mlflow_gets_counts_too_and_stays_counted(ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what it has beyond the run."""
    monkeypatch.setattr(budget, "AT_ONCE", 1000)
    controller = Controller(ledgers, "a")
    team, taken = archive(ledgers), 0
    with pytest.raises(LedgerFull, match="MLflow 1"):
        while taken < 2 * MOST:
            team.spend(budget.MLFLOW, 500, may_exceed=False)
            taken += 500
    assert 0.9 * MOST < taken <= MOST
    controller.fill()
    assert controller.begun < 10
    with pytest.raises(LedgerFull):
        while taken < 2 * MOST:
            team.spend(budget.MLFLOW, 500, may_exceed=True)
            taken += 500
    assert MOST < taken <= 1.1 * MOST, "what belongs to trials that run"
    controller.close()
    delete(ledgers, "a")
    with pytest.raises(LedgerFull):
        team.spend(budget.MLFLOW, 30_000, may_exceed=True)
    archive(ledgers, "speech").record_run("a", make_job(), FACTS, b"", new=True)
    archive(ledgers, "speech").spend(budget.MLFLOW, 2 * MOST, may_exceed=False)


def test_artifacts_have_a_budget_of_their_own(ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "AT_ONCE", 1)
    archive(ledgers).record_run("a", make_job(), FACTS, b"", new=True)
    archive(ledgers, "speech").record_run("a", make_job(), FACTS, b"", new=True)
    archive(ledgers).spend(budget.ARTIFACTS, 900, may_exceed=True)
    with pytest.raises(
        LedgerFull,
        match=r"have logged 900 bytes of artifacts to MLflow, and 200 bytes more would exceed the budget of 1,000 bytes",
    ) as said:
        archive(ledgers).spend(budget.ARTIFACTS, 200, may_exceed=True)
    assert "budget.artifacts" in str(said.value)
    archive(ledgers).spend(budget.ARTIFACTS, 100, may_exceed=True)
    archive(ledgers, "speech").spend(budget.ARTIFACTS, 1 << 40, may_exceed=True)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": {"disk": 1}}'])
def test_budgets_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="the budgets of namespaces cannot be read"):
        budget.read(text, ["a"])


@pytest.mark.parametrize(("size", "text"), [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (5 << 30, "5 GiB")])
def test_sizes_are_shown_for_people(size: int, text: str) -> None:
    assert budget.size_text(size) == text
