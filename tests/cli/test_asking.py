"""Verbs that end or take away a run ask first, on the terminal, and do nothing without an answer.

Not checked here: what the verbs then do (tests/cli/test_verbs.py, test_cluster_verbs.py).
"""

from __future__ import annotations

import sys

import click
import pytest
from tests.client.conftest import complete

from trialplane.client.run import RunHandle
from trialplane.wire.states import RunState


@pytest.fixture
def run(runs):
    made = runs.make("a", tell=complete, asks=3)
    runs.say(made, RunState.PAUSED, complete=3)
    return made


@pytest.fixture
def answers(monkeypatch):
    """A user at a terminal, who gives these answers; the value is what was asked."""
    asked = []

    def say(answer):
        def confirm(question, **options):
            asked.append(question)
            if not answer:
                raise click.Abort

        monkeypatch.setattr(click, "confirm", confirm)
        monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: self.name == "<stdin>", raising=False)
        return asked

    return say


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_without_a_terminal_it_is_refused(platform, run, verb):
    before = run.status.read_bytes()
    result = platform(verb, "a")
    assert result.exit_code == 2
    assert f"there is no terminal to ask on; pass --yes to {verb} a" in result.stderr
    assert run.status.read_bytes() == before


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_a_closed_standard_input_is_nobody(platform, run, verb, monkeypatch):
    from trialplane.cli import lifecycle

    monkeypatch.setattr(lifecycle, "sys", type("Closed", (), {"stdin": None}))
    result = platform(verb, "a")
    assert (result.exit_code, "--yes" in result.stderr) == (2, True)
    assert sys.stdin is not None


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_no_leaves_the_run_as_it_is(platform, run, verb, answers):
    asked = answers(False)
    before = run.status.read_bytes()
    assert platform(verb, "a").exit_code == 130
    assert run.status.read_bytes() == before
    assert len(asked) == 1
    assert all(text in asked[0] for text in ("a", "3 ended trials", str(run.root)))


def test_yes_on_the_terminal(platform, run, runs, answers):
    answers(True)
    assert platform("cancel", "a").exit_code == 0
    assert RunHandle("a", runs.target).status().state is RunState.CANCELLED
    assert platform("delete", "a").exit_code == 0
    assert runs.target.runs() == []


def test_nobody_is_asked_about_a_run_that_has_ended(platform, run, runs):
    runs.say(run, RunState.SUCCEEDED, complete=6)
    result = platform("cancel", "a")
    assert (result.exit_code, "has ended already" in result.stderr) == (2, True)
