"""`platform results` of several runs: one table, one list, one CSV, each row with its run.

Not checked here: the results of one run (test_verbs.py).
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import pytest
import yaml
from tests.client.conftest import complete

from trialplane.cli import output
from trialplane.wire.states import RunState, TrialState


@pytest.fixture
def two(runs):
    """A run of two trials, and one of three with another parameter."""
    for name, trials in (("a", 2), ("b", 3)):
        space = {"space.other": {"type": "int", "low": 1, "high": 2}} if name == "b" else {}
        runs.say(runs.make(name, tell=complete, trials=trials, **space), RunState.SUCCEEDED)


def test_one_table_names_the_run_of_each_row(platform, two):
    header, *lines = platform("results", "b", "a").stdout.splitlines()
    assert header.split()[:3] == ["run", "trial", "state"]
    assert "other" in header.split()
    assert [line.split()[0] for line in lines] == ["b"] * 3 + ["a"] * 2
    assert platform("results", "b", "a", "--limit", "1").stdout.count("\n") == 3


def test_a_run_named_twice_is_shown_once_and_as_it_is(platform, two):
    assert platform("results", "a", "a").stdout == platform("results", "a").stdout
    assert platform("results", "a").stdout.split()[0] == "trial"


def test_a_long_value_is_cut_in_a_table_alone(platform, runs):
    space = {"space.text": {"type": "categorical", "choices": ["x" * 40_000, "y" * 40_000]}}
    runs.say(runs.make("a", tell=complete, trials=2, **space), RunState.SUCCEEDED)
    header, *lines = platform("results", "a").stdout.splitlines()
    assert "text" in header
    assert max(map(len, (header, *lines))) < 300
    assert all("xxx…" in line or "yyy…" in line for line in lines)
    for kind in ("json", "csv"):
        assert len(platform("results", "a", "--output", kind).stdout) > 80_000


def test_data_has_the_run_in_each_row(platform, two):
    rows = json.loads(platform("results", "a", "b", "--output", "json").stdout)
    assert [row["run"] for row in rows] == ["a"] * 2 + ["b"] * 3
    assert "run" not in json.loads(platform("results", "a", "--output", "json").stdout)[0]
    table = list(csv.DictReader(io.StringIO(platform("results", "a", "b", "--output", "csv").stdout)))
    assert [(row["run"], bool(row["params.other"])) for row in table] == [("a", False)] * 2 + [("b", True)] * 3


def test_curves_are_the_reports_of_trials(platform, runs):
    runs.report(runs.make("live"), steps=3)
    runs.report(runs.make("other"), steps=1)
    header, *lines = platform("results", "live", "--curves").stdout.splitlines()
    assert header.split() == ["trial", "attempt", "step", "metric", "value", "time"]
    assert [line.split()[2:4] for line in lines] == [[str(step), name] for step in range(3) for name in ("loss", "lr")]
    assert lines[0].split()[-2:] == output.moment(100.0).split()
    assert platform("results", "live", "--curves", "--limit", "1").stdout.count("\n") == 3
    both = list(csv.DictReader(io.StringIO(platform("results", "live", "other", "--curves", "--output", "csv").stdout)))
    assert [row["run"] for row in both] == ["live"] * 6 + ["other"] * 2
    data = json.loads(platform("results", "live", "--curves", "--output", "json").stdout)
    assert data[2] == {**data[2], "mark": 3, "trial": 0, "attempt": 1, "step": 2, "metrics": {"loss": 1 / 3, "lr": 0.5}}
    runs.make("none")
    done = platform("results", "none", "--curves")
    assert (done.stdout, "none has no reports yet" in done.stderr) == ("", True)
    assert json.loads(platform("results", "none", "--curves", "--output", "json").stdout) == []


def test_one_of_them_without_trials_is_noted_and_an_unknown_one_refused(platform, two, runs):
    runs.make("c")
    done = platform("results", "a", "c")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 3)
    assert "c has started no trial yet; `platform status c`" in done.stderr
    assert platform("results", "a", "nosuch").exit_code == 2


@pytest.fixture
def population(runs):
    """A population of four in which each segment ends with a loss that follows from its learning rate."""
    train = runs.jobs / "demo" / "train.py"
    train.write_text(train.read_text() + "\nSTATE = 'ctx.restored'\n")

    def segment(request):
        ended = complete(request)
        paused = request.segment.rung > 0
        steps = request.segment.rung or 12
        state = TrialState.PAUSED if paused else TrialState.COMPLETE
        return dataclasses.replace(ended, state=state, step=steps)

    fields = {"population": {"interval": 4, "steps": 12}, "trials": 4, "pruner": "none", "sampler": "random"}
    runs.say(runs.make("p", tell=segment, **fields), RunState.SUCCEEDED)


def test_lineage_has_a_line_for_each_segment_and_what_it_continues(platform, population):
    header, *lines = platform("results", "p", "--lineage").stdout.splitlines()
    assert header.split()[:5] == ["trial", "continues", "from", "step", "attempt"]
    assert len(lines) == 4 * 3
    table = list(csv.DictReader(io.StringIO(platform("results", "p", "--lineage", "--output", "csv").stdout)))
    assert [row["from step"] for row in table] == ["0"] * 4 + ["4"] * 4 + ["8"] * 4
    taken = [row for row in table if row["continues"] and not row["continues"].startswith(f"{row['trial']},")]
    assert taken, "somebody has taken over another one's state"
    rows = json.loads(platform("results", "p", "--lineage", "--output", "json").stdout)
    by_number = {row["number"]: row for row in rows}
    assert all((row["parent"] is None) == (row["done"] == 0) for row in rows)
    assert all(by_number[row["parent"]]["step"] == row["done"] for row in rows if row["parent"] is not None)


def test_a_schedule_has_the_parameters_by_step(platform, population):
    ((best,), rows) = (
        json.loads(platform("best", "p", "--schedule", "--output", "json").stdout),
        {row["number"]: row for row in json.loads(platform("results", "p", "--lineage", "--output", "json").stdout)},
    )
    row = next(row for row in rows.values() if row["trial"] == best["trial"] and row["state"] == "COMPLETE")
    line = [row]
    while line[0]["parent"] is not None:
        line.insert(0, rows[line[0]["parent"]])
    for segment in line:
        newest = [entry for entry in best["schedule"] if entry["step"] <= segment["done"]][-1]
        assert newest["params"] == segment["params"]
    assert best["schedule"][0]["step"] == 0
    text = platform("best", "p", "--schedule").stdout
    assert text.startswith(f"# p, trial {best['trial']}: loss")
    assert yaml.safe_load(text) == best["schedule"]
