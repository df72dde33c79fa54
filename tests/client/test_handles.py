"""What Python gets of a run that has ended, or goes on: its best trial, its tables, its study, its events, its live view.

On ledgers that the real controller's code has written. Not checked here: submitting (test_sdk.py), and a notebook
(tests/study/test_notebook.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import tempfile
import threading

import optuna
import pytest
from rich.console import Console
from tests.client.conftest import complete, failed

from trialplane.client import exporting, live
from trialplane.client.events import RunChanged, RunEnded, TrialEnded, TrialInterrupted, TrialStarted
from trialplane.client.run import RunHandle
from trialplane.client.target import Observation
from trialplane.errors import InputError, RunNotFound, SpecError, TargetError
from trialplane.wire.records import Desired
from trialplane.wire.states import FailureClass, RunState, TrialState

TWO = [{"metric": "loss", "direction": "minimize"}, {"metric": "size", "direction": "minimize"}]


def end(request):
    """Trial 1 fails, trial 2 is lost once, trial 5 goes on."""
    if request.trial == 1:
        return failed(request)
    if request.trial == 2 and request.attempt == 1:
        return failed(request, FailureClass.LOST)
    return None if request.trial == 5 else complete(request)


@pytest.fixture
def handle(runs) -> RunHandle:
    runs.make("a", tell=end, asks=7)
    return RunHandle("a", runs.target)


def test_the_best_trial_and_why_there_is_none(handle, runs):
    best = min((row for row in handle.rows() if row.values), key=lambda row: row.values)
    assert (handle.best, handle.best.value, handle.front()) == (best, best.metrics["loss"], [best])
    runs.make("b")
    with pytest.raises(InputError, match=r"b has no result; `platform results b` shows its trials"):
        RunHandle("b", runs.target).best  # noqa: B018
    runs.make("c", objectives=TWO, sampler="random")
    with pytest.raises(InputError, match=r"c has 2 objectives; front\(\) lists its Pareto-optimal trials"):
        RunHandle("c", runs.target).best  # noqa: B018


def test_trials_are_a_table_with_a_column_for_each_value(handle):
    table = handle.trials()
    assert table["trial"].tolist() == [row.trial for row in handle.rows()]
    assert table["params.lr"].tolist() == [row.params["lr"] for row in handle.rows()]
    assert set(table[table["state"] == "COMPLETE"]["ended"] - table[table["state"] == "COMPLETE"]["started"]) == {2.0}
    assert table.set_index("trial")["metrics.loss"].idxmin() == handle.best.trial
    assert set(table["state"]) == {"COMPLETE", "FAILED", "LOST"}


def test_curves_are_a_table_with_a_row_for_each_metric(runs):
    runs.report(runs.make("live"), steps=3)
    table = RunHandle("live", runs.target).curves()
    assert table.columns.tolist() == ["trial", "attempt", "step", "metric", "value", "time"]
    assert table[table["metric"] == "loss"]["value"].tolist() == [1.0, 1 / 2, 1 / 3]
    assert str(table["time"][0]) == "1970-01-01 00:01:40+00:00"
    assert table.pivot_table("value", "step", "trial").shape == (3, 1)
    (newest,) = RunHandle("live", runs.target).reports(after=2)
    assert (newest.mark, newest.step) == (3, 2)
    assert [report.step for report in RunHandle("live", runs.target).reports(limit=2)] == [0, 1]


@pytest.mark.parametrize(
    ("library", "ask"), [("pandas", RunHandle.trials), ("pandas", RunHandle.curves), ("optuna", RunHandle.study)]
)
def test_without_the_library_it_says_what_to_install(handle, monkeypatch, library, ask):
    find = exporting.importlib.util.find_spec
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None if name == library else find(name))
    with pytest.raises(InputError, match=rf"{library} cannot be found; pip install 'trialplane\[notebook\]'"):
        ask(handle)


def test_a_study_is_a_copy_in_memory(handle, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    study = handle.study()
    assert (study.study_name, study.metric_names, study.best_value) == ("a", ["loss"], handle.best.value)
    assert [trial.number for trial in study.trials] == [row.number for row in handle.attempts()]
    assert study.user_attrs["job"] == "demo"
    assert study.trials_dataframe()["user_attrs_trial"].tolist() == [row.trial for row in handle.attempts()]
    plot = optuna.visualization.plot_param_importances(study).to_json()
    assert "loss" in plot
    study.add_trial(optuna.create_trial(values=[-1.0]))
    assert handle.study().best_value == handle.best.value
    assert not list(tmp_path.glob("trialplane-*"))


# Events


async def told(handle: RunHandle, most: int = 100) -> list:
    found = []
    async for event in handle.events():
        found.append(event)
        if len(found) == most:
            break
    return found


def test_events_of_a_run_that_is_over(handle):
    first, *events, last = asyncio.run(told(handle))
    assert isinstance(first, RunChanged)
    assert isinstance(last, RunEnded)
    assert last.status == handle.status()
    begun = [(event.trial, event.attempt) for event in events if isinstance(event, TrialStarted)]
    assert begun == [(row.trial, row.attempt) for row in handle.attempts()]
    assert [event.row.trial for event in events if isinstance(event, TrialInterrupted)] == [2]
    ended = [event.row for event in events if isinstance(event, TrialEnded)]
    assert {row.trial: row.state for row in ended} == {
        0: TrialState.COMPLETE, 1: TrialState.FAILED, 2: TrialState.COMPLETE, 3: TrialState.COMPLETE, 4: TrialState.COMPLETE,
    }  # fmt: skip
    assert {event.params["lr"] for event in events if isinstance(event, TrialStarted)} >= {row.params["lr"] for row in ended}


@pytest.fixture
def going(runs, monkeypatch):
    """A run whose ledger grows between two looks: at each it is a step further, and after the last it is over."""
    run = runs.make("a", trials=3)
    handle = RunHandle("a", runs.target)
    steps = [lambda: None, lambda: runs.drive(run, lambda request: None, 1), lambda: runs.drive(run, complete)]
    looks = iter(steps)
    status = handle.status()
    monkeypatch.setattr(type(runs.target), "poll", 0.0)
    monkeypatch.setattr(type(runs.target), "is_active", lambda target, name: True)

    def observe(target, name):
        step = next(looks, None)
        if step is not None:
            step()
        state = RunState.RUNNING if step is not None else RunState.SUCCEEDED
        return Observation(dataclasses.replace(status, state=state), step is not None, Desired())

    monkeypatch.setattr(type(runs.target), "observe", observe)
    return handle


def test_each_thing_that_happens_is_told_once(going):
    events = asyncio.run(told(going))
    assert [type(event) for event in events if isinstance(event, (RunChanged, RunEnded))] == [
        RunChanged,
        RunChanged,
        RunEnded,
    ]
    begun = [(event.trial, event.attempt) for event in events if isinstance(event, TrialStarted)]
    assert sorted(begun) == [(0, 1), (0, 2), (1, 1), (2, 1)], "the first attempt was lost with its controller"
    ended = [event.row.trial for event in events if isinstance(event, TrialEnded)]
    assert sorted(ended) == [0, 1, 2]
    for trial in range(3):
        first = next(i for i, event in enumerate(events) if isinstance(event, TrialStarted) and event.trial == trial)
        last = next(i for i, event in enumerate(events) if isinstance(event, TrialEnded) and event.row.trial == trial)
        assert first < last


def test_whoever_stops_listening_leaves_nothing_and_a_new_iterator_begins_anew(handle, monkeypatch):
    looking, done = threading.Event(), threading.Event()
    attempts = type(handle.target).attempts

    def slow(target, run, after):
        looking.set()
        assert done.wait(60)
        return attempts(target, run, after)

    async def cancelled() -> None:
        task = asyncio.ensure_future(told(handle))
        await asyncio.to_thread(looking.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        done.set()

    monkeypatch.setattr(type(handle.target), "attempts", slow)
    asyncio.run(cancelled())
    assert isinstance(asyncio.run(told(handle))[-1], RunEnded)
    assert len(asyncio.run(told(handle, most=2))) == 2


def test_a_ledger_that_is_away_for_a_while_is_waited_for_on_a_cluster_only(going, monkeypatch):
    attempts = type(going.target).attempts
    fails = iter([True, False, False, False])

    def flaky(target, run, after):
        if next(fails):
            raise TargetError("the gateway does not answer")
        return attempts(target, run, after)

    monkeypatch.setattr(type(going.target), "attempts", flaky)
    with pytest.raises(TargetError, match="does not answer"):
        asyncio.run(told(going))
    fails = iter([True, False, False, False])
    monkeypatch.setattr(type(going.target), "remote", True)
    assert isinstance(asyncio.run(told(going))[-1], RunEnded)


def test_a_change_that_does_not_fit_the_target_pauses_nothing(handle, runs, monkeypatch):
    monkeypatch.setattr(type(runs.target), "is_active", lambda target, name: True)
    monkeypatch.setattr(RunHandle, "pause", lambda handle: pytest.fail("the run is paused"))
    with pytest.raises(SpecError, match="cpus"):
        handle.edit(["resources.cpus=100000"])


def test_a_run_that_is_not_there(runs):
    with pytest.raises(RunNotFound):
        asyncio.run(told(RunHandle("nosuch", runs.target)))


# The live view


def test_waiting_with_progress_prints_each_change_to_a_file(going, capsys):
    assert going.wait(progress=True).state is RunState.SUCCEEDED
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "a RUNNING: 0/3 ended, 0 running, 0 complete, 0 pruned, 0 failed",
        "a SUCCEEDED: 0/3 ended, 0 running, 0 complete, 0 pruned, 0 failed",
    ]


def test_waiting_without_progress_prints_nothing(going, capsys):
    going.wait()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_the_last_status_with_the_best(handle):
    console = Console(file=io.StringIO(), force_terminal=True, force_jupyter=False, width=120)
    status = dataclasses.replace(handle.status(), reason="\x1b[31mred", warnings=("too slow",))
    with live.display(console) as update:
        update(dataclasses.replace(status, state=RunState.RUNNING))
        update(status)
    text = console.file.getvalue()
    assert f"loss {status.best.value:.4g} (trial {status.best.trial})" in text
    assert "5/6 ended" in text
    assert "too slow" in text
    assert "\x1b[31mred" not in text, "a job's text has no control characters"
