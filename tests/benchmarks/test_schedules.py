"""The comparison of schedules: the table says what members do that continue from others, and each rule trains as many steps.

Not checked: which rule finds the better schedule, which is what the benchmark measures.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from tests.benchmarks import schedules
from tests.benchmarks.schedules import RULES, SEGMENTS, Population, Schedule, Table

POINTS: list[tuple[float, ...]] = [(lr, gamma) for lr in (-5.0, -4.0) for gamma in (0.95, 0.99)]


def returns(schedule: Schedule, luck: float = 0.0) -> list[float]:
    """Returns at the ends of segments: each segment adds 10 for one rate and 1 for one discount."""
    gains = [10 * (lr == -4.0) + (gamma == 0.99) for lr, gamma in schedule]
    return [gain + luck for gain in itertools.accumulate(gains)]


def planted() -> Table:
    runs = itertools.product((0, 1), itertools.product(POINTS, repeat=SEGMENTS))
    return Table({(seed, schedule): returns(schedule, luck=seed) for seed, schedule in runs})


def test_files_are_read(tmp_path: Path) -> None:
    for seed, schedule in itertools.product((0, 2), itertools.product(POINTS, repeat=SEGMENTS)):
        numbers = "".join(f"{lr:.0f}" for lr, _ in schedule), "".join(str(gamma) for _, gamma in schedule)
        file = tmp_path / f"Enduro-v0_PPO_random_lr_{numbers[0]}_gamma_{numbers[1]}_seed{seed}_eval.json"
        first, second, last = returns(schedule, luck=seed)
        curve = [0.0, first, 0.0, second, 0.0, 0.0, last]
        file.write_text(json.dumps({"switch_every": 20_000, "returns_eval": curve}))
    short = (POINTS[0],) * 2 + (POINTS[3],)
    (tmp_path / "Enduro-v0_PPO_random_lr_-5-5-4_gamma_0.950.950.99_seed2_eval.json").unlink()
    (tmp_path / "Enduro-v0_PPO_random_lr_-1_gamma_0.8_clip_0.2_seed0_eval.json").write_text("{}")
    table = schedules.read(tmp_path)
    assert (table.seeds, table.values, table.best) == ([0, 2], {"lr": [-5.0, -4.0], "gamma": [0.95, 0.99]}, 34.0)
    assert len(table.means) == len(POINTS) ** SEGMENTS
    assert [table.value(2, short[:done]) for done in (1, 2, 3)] == [2, 2, 11], "the other seed's, where a run is missing"


def test_one_run_that_differs_before_it_parts_does_not_count() -> None:
    runs: dict[tuple[int, Schedule], list[float]]
    runs = {(0, schedule): returns(schedule) for schedule in itertools.product(POINTS, repeat=SEGMENTS)}
    odd = (POINTS[3],) * SEGMENTS
    runs[0, odd] = [100.0, 100.0, 33.0]
    table = Table(runs)
    assert [table.value(0, odd[:done]) for done in (1, 2, 3)] == [11, 22, 33]


@pytest.mark.services
@pytest.mark.parametrize("name", RULES)
def test_a_rule_trains_whole_schedules(name: str) -> None:
    population = Population(planted(), seed=1)
    RULES[name](population, 3, 8)
    assert len(population.schedules) == 8
    assert all(len(schedule) == SEGMENTS and set(schedule) <= set(POINTS) for _, schedule in population.schedules)
    assert population.regret == 33 - sum(10 * (lr == -4.0) + (gamma == 0.99) for lr, gamma in max(population.schedules)[1])
    # Without a barrier, a member of Ray Tune may repeat a segment or skip one.
    assert population.trained == 8 * SEGMENTS or name == "Ray Tune PBT (the default)"
    if "random" not in name:
        changed = [schedule for _, schedule in population.schedules if len(set(schedule)) > 1]
        assert changed, "members take over states, with changes"


@pytest.mark.services
def test_the_tables_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(schedules, "read", lambda folder: planted())
    assert schedules.main([str(tmp_path), "--members", "4", "--seeds", "3"]) == 0
    printed = capsys.readouterr().out
    assert "64 schedules with 2 seeds; the best returns 33.5 on average" in printed
    assert all(f"\n{name}" in printed for name in RULES)
