"""Optuna's own view of a ledger, exported: `optuna.load_study` sees the same trials, with nothing of ours needed.

The ledger is on both databases, and is exported into the same kind: a file, or the ledger's own database.
Not checked here: the verb, and how attempts come to the program that writes them (tests/cli/test_export.py).
"""

from __future__ import annotations

import datetime
import json
import math
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState
from tests.contracts.conftest import Backend, ask, complete, drive, failed, make_job, report, storage_of

from trialplane.controller import export
from trialplane.ledger import attempts as reading
from trialplane.ledger import tables
from trialplane.ledger.attempts import StudyOrder
from trialplane.wire import records
from trialplane.wire.records import ReportRow
from trialplane.wire.states import FailureClass, TrialState


def load(backend: Backend, *, alive: bool = True) -> optuna.Study:
    """The study of a new export."""
    name, url = "toy", backend.url
    if backend.kind == "sqlite":
        url = f"sqlite:///{backend.folder}/{uuid.uuid4()}.db"
    engine = sa.create_engine(backend.url)
    with engine.connect() as connection:
        select = tables.select(connection)
        found, reports = reading.attempts_since(select, name), reading.reports(select, name, 0).rows
        ((directions,),) = connection.execute(sa.text("SELECT directions FROM runs WHERE name = 'toy'")).all()
        names = sa.inspect(connection).get_table_names()
    engine.dispose()
    if "studies" in names:  # of a former export
        optuna.delete_study(study_name=name, storage=url)
    ways = tuple(json.loads(directions))
    order = StudyOrder(name, ways, tuple(f"metric {index}" for index, _ in enumerate(ways)), {"job": "toy"}, url)
    export.write(order, [line(records.to_dict(found), reports, alive=alive)])
    return optuna.load_study(study_name=name, storage=url)


def line(found: Any, reports: Sequence[ReportRow] = (), *, alive: bool = False) -> str:
    """What an export is sent; each report has one metric."""
    points = [[one.number, one.step, value] for one in reports for value in one.metrics.values()]
    return json.dumps({"attempts": found, "alive": alive, "reports": records.to_dict(points)})


def trials(backend: Backend, *, alive: bool = True) -> Sequence[FrozenTrial]:
    return load(backend, alive=alive).get_trials()


def test_the_same_trials_parameters_values_reports_and_times(backend: Backend) -> None:
    job = make_job(pruner="median", trials=3)
    before = datetime.datetime.now()
    with backend.open(job) as ledger:
        requests = []
        for _ in range(3):
            request = ask(ledger)
            requests.append(request)
            for step in range(2):
                ledger.report(report(request, step, score=step + float(request.params["x"])))
            ledger.tell(complete(request))
    after = datetime.datetime.now()
    study = load(backend)
    assert [direction.name for direction in study.directions] == ["MAXIMIZE"]
    seen = study.get_trials()
    assert [trial.number for trial in seen] == [0, 1, 2]
    for trial, request in zip(seen, requests, strict=True):
        x = request.params["x"]
        assert trial.state is OptunaState.COMPLETE
        assert {"epochs": 2, **trial.params} == request.params
        assert trial.distributions == {
            "x": optuna.distributions.FloatDistribution(0.0, 1.0),
            "layers": optuna.distributions.IntDistribution(1, 4),
            "kind": optuna.distributions.CategoricalDistribution(("a", "b", None, 3)),
        }
        assert trial.values == [x]
        assert trial.intermediate_values == {0: x, 1: x + 1}
        assert trial.datetime_start is not None
        assert trial.datetime_complete is not None
        assert before <= trial.datetime_start <= trial.datetime_complete <= after
    assert study.best_value == max(request.params["x"] for request in requests)


def test_a_running_trial_is_there_with_its_parameters(backend: Backend) -> None:
    request = ask(backend.open(make_job()))
    (trial,) = trials(backend)
    assert trial.state is OptunaState.RUNNING
    assert trial.params == {key: value for key, value in request.params.items() if key != "epochs"}
    assert trial.datetime_complete is None
    (lost,) = trials(backend, alive=False)
    assert (lost.state, lost.params) == (OptunaState.FAIL, trial.params), "without a controller nothing runs"


def test_pruned_is_pruned(backend: Backend) -> None:
    ledger = backend.open(make_job(pruner="median", trials=1))
    request = ask(ledger)
    ledger.report(report(request, 4, score=0.125))
    ledger.tell(records.TrialOutcome(request.number, TrialState.PRUNED, metrics={"score": 0.125}))
    (trial,) = trials(backend)
    assert trial.state is OptunaState.PRUNED
    assert trial.value == 0.125, "Optuna's own rule: a pruned trial is worth its last report"
    assert load(backend).trials_dataframe()["state"].tolist() == ["PRUNED"]


def test_reports_of_a_metric_of_the_opposite_direction_are_as_reported(sqlite: Backend) -> None:
    job = make_job(pruner={"name": "median", "metric": "loss", "direction": "minimize"}, trials=2)
    with sqlite.open(job) as ledger:
        for state in (TrialState.COMPLETE, TrialState.PRUNED):
            request = ask(ledger)
            for step, loss in enumerate((0.75, 0.5)):
                ledger.report(report(request, step, loss=loss))
            ledger.tell(records.TrialOutcome(request.number, state, metrics={"score": 2.0}))
    sqlite.open(job).close()
    complete_one, pruned_one = trials(sqlite)
    assert complete_one.intermediate_values == pruned_one.intermediate_values == {0: 0.75, 1: 0.5}
    assert (complete_one.value, pruned_one.value) == (2.0, 0.5)


@pytest.mark.parametrize("failure", list(FailureClass))
def test_every_failure_is_a_failed_trial_without_a_value(backend: Backend, failure: FailureClass) -> None:
    """Also out of memory, which the sampler is told otherwise."""
    job = make_job(pruner="median", trials=1)
    with backend.open(job) as ledger:
        request = ask(ledger)
        ledger.report(report(request, 0, score=0.5))
        ledger.tell(failed(request, failure, "what happened"))
    trial = trials(backend)[0]
    assert (trial.state, trial.values) == (OptunaState.FAIL, None)
    assert trial.user_attrs["failure"] == failure.value
    assert trial.user_attrs["message"] == "what happened"
    backend.open(job).close()
    assert trials(backend)[0].state is OptunaState.FAIL, "also after another controller has read it"


def test_a_retry_is_a_trial_of_its_own_with_the_same_parameters(backend: Backend) -> None:
    with backend.open(make_job(trials=1)) as ledger:
        drive(ledger, lambda r: failed(r, FailureClass.LOST) if r.attempt == 1 else complete(r))
    first, second = trials(backend)
    assert (first.state, second.state) == (OptunaState.FAIL, OptunaState.COMPLETE)
    assert (first.params, first.distributions) == (second.params, second.distributions)
    assert second.user_attrs["retry_of"] == 0


def test_constraints(backend: Backend) -> None:
    job = make_job(constraints=[{"metric": "size", "max": 10}, {"metric": "speed", "min": 2}], trials=2)
    sizes = iter([5.0, 12.5])
    with backend.open(job) as ledger:
        drive(ledger, lambda r: complete(r, score=1.0, size=next(sizes), speed=3.0))
    assert [trial.constraints for trial in trials(backend)] == [
        {"size": -5.0, "speed": -1.0},
        {"size": 2.5, "speed": -1.0},
    ]


def test_several_objectives_have_their_front(backend: Backend) -> None:
    objectives = [{"metric": "score", "direction": "maximize"}, {"metric": "cost", "direction": "minimize"}]
    values = iter([(0.5, 5.0), (0.9, 9.0), (0.4, 6.0)])
    with backend.open(make_job(objectives=objectives, sampler="nsgaii", trials=3)) as ledger:
        drive(ledger, lambda r: complete(r, **dict(zip(("score", "cost"), next(values), strict=True))))
    study = load(backend)
    assert [trial.values for trial in study.get_trials()] == [[0.5, 5.0], [0.9, 9.0], [0.4, 6.0]]
    assert {trial.number for trial in study.best_trials} == {0, 1}


def test_values_that_are_no_finite_numbers(backend: Backend) -> None:
    """Databases do not agree on infinities and NaN; Optuna has its own way of storing them."""
    job = make_job(pruner="median", trials=2)
    scores = iter([math.inf, -math.inf])
    with backend.open(job) as ledger:
        request = ask(ledger)
        for step, value in enumerate((math.nan, math.inf, -math.inf, 1.0)):
            ledger.report(report(request, step, score=value))
        ledger.tell(complete(request, score=next(scores)))
        drive(ledger, lambda r: complete(r, score=next(scores)))
        best = ledger.best
    first, second = trials(backend)
    assert (first.value, second.value) == (math.inf, -math.inf)
    reports = first.intermediate_values
    assert math.isnan(reports.pop(0))
    assert reports == {1: math.inf, 2: -math.inf, 3: 1.0}
    assert backend.open(job).best == best


def test_a_study_that_is_not_written_whole_is_not_there(sqlite: Backend) -> None:
    with sqlite.open(make_job(trials=2)) as ledger:
        drive(ledger)
        found = [records.to_dict(attempt) for attempt in storage_of(ledger).load()[0]]
    url = f"sqlite:///{sqlite.folder}/x.db"
    order = StudyOrder("toy", ("maximize",), ("score",), {}, url)
    with pytest.raises(json.JSONDecodeError):
        export.write(order, [line(found), "{cut off"])
    assert optuna.get_all_study_names(storage=url) == []


# Ends the export without warning at its first row of a table. sys.argv: the table.
KILLED = """
import os, signal, sys
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from trialplane.controller import export

@sa.event.listens_for(Engine, "before_cursor_execute")
def kill(connection, cursor, statement, *_):
    if statement.startswith(f"INSERT INTO {sys.argv[1]} "):
        os.kill(os.getpid(), signal.SIGKILL)

export.main()
"""


@pytest.mark.parametrize("table", ["trials", "trial_params", "trial_intermediate_values"])
def test_a_killed_export_leaves_nothing_and_is_repeated(backend: Backend, table: str) -> None:
    found, reports = _reported(backend, trials=3)
    url = f"sqlite:///{backend.folder}/{uuid.uuid4()}.db" if backend.kind == "sqlite" else backend.url
    order = StudyOrder("toy", ("maximize",), ("score",), {}, url)
    lines = f"{records.to_json(order)}\n{line(found, reports)}\n"
    done = subprocess.run([sys.executable, "-c", KILLED, table], input=lines, text=True, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert optuna.get_all_study_names(storage=url) == []
    export.write(order, lines.splitlines()[1:])
    study = optuna.load_study(study_name="toy", storage=url)
    assert [len(trial.intermediate_values) for trial in study.trials] == [40] * 3
    assert study.metric_names == ["score"]


def test_an_export_asks_the_database_a_few_times(sqlite: Backend) -> None:
    """However many values there are."""
    found, reports = _reported(sqlite, trials=4)
    url = f"sqlite:///{sqlite.folder}/{uuid.uuid4()}.db"
    optuna.storages.RDBStorage(url).engine.dispose()  # its tables are there
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
    try:
        export.write(StudyOrder("toy", ("maximize",), ("score",), {}, url), [line(found, reports)])
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)
    inserts = [text.split()[2] for text in statements if text.startswith("INSERT")]
    assert sorted(inserts) == sorted([*set(inserts), *["trials"] * 3]), "one for each table, and for each trial"
    assert len(statements) < 40


def _reported(backend: Backend, trials: int) -> tuple[list[object], list[ReportRow]]:
    """The attempts and the reports of a run whose trials have reported 40 times."""
    with backend.open(make_job(pruner="none", trials=trials)) as ledger:
        while (request := ledger.ask()) is not None:
            for step in range(40):
                ledger.report(report(request, step, score=float(step)))
            ledger.tell(complete(request))
        storage = storage_of(ledger)
        return [records.to_dict(attempt) for attempt in storage.load()[0]], storage.reports(0).rows


def test_the_dashboards_copy_is_whole_before_it_can_be_seen(sqlite: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite.open(make_job(trials=2)) as ledger:
        drive(ledger)
        found = [records.to_dict(attempt) for attempt in storage_of(ledger).load()[0]]
    served: list[list[int]] = []

    def wsgi(storage: BaseStorage) -> object:
        served.append([trial.number for trial in storage.get_all_trials(0)])
        return lambda environ, start: []

    monkeypatch.setitem(sys.modules, "optuna_dashboard", SimpleNamespace(wsgi=wsgi))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # at a name that the system chooses
    listener.listen()
    order = StudyOrder("toy", ("maximize",), ("score",), {}, listener=listener.detach())  # closed by `show`
    export.show(order, [line(found)])
    assert served == [[0, 1]]


def test_the_study_goes_on_in_optuna_itself(backend: Backend) -> None:
    """Who leaves the platform keeps the study."""
    with backend.open(make_job(trials=3)) as ledger:
        drive(ledger)
    study = load(backend)
    assert study.user_attrs == {"job": "toy"}
    study.enqueue_trial({"x": 1.0, "layers": 2, "kind": None})
    study.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=1)
    assert study.best_value == 1.0
    assert len(study.trials) == 4
