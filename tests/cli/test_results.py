"""`platform results` of several runs: one table, one list, one CSV, each row with its run.

Not checked here: the results of one run (test_verbs.py).
"""

from __future__ import annotations

import csv
import io
import json

import pytest
from tests.client.conftest import complete

from trialplane.cli import output
from trialplane.wire.states import RunState


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
