"""The simulation of early stopping: steps are counted as slots report them, and each library's rule finds the best.

Not checked: how many steps a rule takes, which is what the benchmark measures.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.benchmarks import curve_tasks, curves
from tests.benchmarks.curve_rules import DEFAULT, RANDOM, RESTARTED, RULES, Setting
from tests.benchmarks.curve_tasks import Task


def planted(best: int, trials: int = 40, steps: int = 9) -> Setting:
    """Curves that never cross, of which the one of trial `best` is the lowest."""
    height = np.arange(trials) + 1.0
    height[best] = 0
    losses = height[:, None] + np.exp(-np.arange(steps + 1) / steps)
    task = Task("planted", losses, np.linspace(0, 1, trials)[:, None])
    return Setting(task, float(losses[best, -1]), trials, seed=3)


def test_steps_are_those_of_all_slots() -> None:
    assert curves.steps_to_target(RULES["random"](planted(0)), planted(0), slots=1) == 9
    assert curves.steps_to_target(RULES["random"](planted(2)), planted(2), slots=1) == 27
    assert curves.steps_to_target(RULES["random"](planted(2)), planted(2), slots=4) == 8 * 4 + 3, "the third of each round"
    assert curves.steps_to_target(RULES["random"](planted(5)), planted(5), slots=4) == 9 * 4 + 8 * 4 + 2


def test_a_rule_that_does_not_arrive_takes_infinitely_many_steps() -> None:
    setting = planted(0)
    unreachable = Setting(setting.task, -1.0, setting.trials, setting.seed)
    assert curves.steps_to_target(RULES["random"](unreachable), unreachable, slots=2) == math.inf


@pytest.mark.services
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_finds_the_best_where_no_curves_cross(name: str, slots: int) -> None:
    if name == "Ray Tune BOHB":
        pytest.importorskip("hpbandster")
    setting = planted(17)
    rule = RULES[name](setting)
    steps = curves.steps_to_target(rule, setting, slots)
    rule.close()
    assert steps < math.inf
    if name == RESTARTED:
        assert steps > curves.steps_to_target(RULES["promotion"](setting), setting, slots)


def test_a_sampled_point_gets_the_nearest_configuration_that_no_trial_has_had() -> None:
    rows = curves.Rows(planted(0, trials=11).task)  # at 0, 0.1, 0.2, …
    assert [rows.row(trial, [0.32]) for trial in range(4)] == [3, 4, 2, 5]
    assert rows.row(1, None) == 4
    assert rows.row(7, None) == 7


def test_planted_curves_cross_as_said() -> None:
    for task in curve_tasks.planted():
        first, last = task.losses[:, 1].argsort().argsort(), task.losses[:, -1].argsort().argsort()
        correlation = float(np.corrcoef(first, last)[0, 1])
        assert correlation < -0.9 if task.name == "inverted" else 0 < correlation < 0.5, (task.name, correlation)


def test_a_measurement_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "steps.jsonl"
    arguments = [str(tmp_path), "--trials", "8", "--slots", "8", "--results", str(file), "--rules", "random", "promotion"]
    assert curves.main([*arguments, "--seeds", "1"]) == 0
    first = file.read_text().splitlines()
    assert len(first) == 2 * 2, "two rules, two planted tasks"
    assert curves.main([*arguments, "--seeds", "2"]) == 0
    assert file.read_text().splitlines()[:4] == first
    assert len(file.read_text().splitlines()) == 8
    assert "promotion" in capsys.readouterr().out


def test_the_table_says_which_goals_are_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A peer with 1.5 times the default's steps meets 1.4 and misses 2; planted tasks count for the line on random only."""
    names = ("a", "b", *(task.name for task in curve_tasks.planted()))
    peers = {"Optuna TPE, Hyperband": 15.0, "Ray Tune ASHA": 15.0, RESTARTED: 13.0, "promotion": 10.0, DEFAULT: 10.0}
    tasks = [Task(name, np.ones((2, 2)), np.zeros((2, 1)), is_planted=name not in ("a", "b")) for name in names]
    steps = {curves.Search(rule, name, 0, 1, 8): taken for rule, taken in peers.items() for name in names}
    steps |= {curves.Search(RANDOM, name, 0, 1, 8): 5.0 if name == "inverted" else 20.0 for name in names}
    lines = {line[:36].strip(): line for line in reversed(list(curves._table(steps, tasks, 1)))}
    assert lines["Optuna TPE, Hyperband"].endswith("2.0 missed")
    assert lines["Ray Tune ASHA"].endswith("1.4 met")
    assert lines[RESTARTED].endswith("1.25 met"), "against promotion over the same configurations"
    assert not lines[DEFAULT].endswith(("met", "missed")), "no goal"
    assert "Tasks on which the default is behind random: inverted" in "\n".join(curves._table(steps, tasks, 1))
