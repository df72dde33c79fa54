"""The benchmarks run: every figure at its small size gives complete rows, in the table and as JSON.

Checked is the structure, never a time and never whether a goal is met. What the figures mean is in README.md. Not checked:
the figures whose peers take minutes even at a small size (trial, overhead), and those that need a cluster.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.benchmarks import parts
from tests.gateway.mlflow_site import require_plugin

ROOT = Path(__file__).resolve().parents[2]
# Figure → units of its rows, and how many there are.
FIGURES = {
    "cli": ({"ms"}, 6),
    "controller": ({"% of a core", "s", "reports", "points", "ms", "KiB"}, 6),
    "scripts": ({"ms", "%"}, 3),
    "sweeps": ({"%"}, 1),
    "loop": ({"s"}, 5),
    "checkpoints": ({"%"}, 1),
    "report": ({"ms", "s"}, 9),
    "ask": ({"ms", "MiB", "s"}, 11),
    "ledger": ({"ms"}, 7),
    "training_overhead": ({"%", "ms", "µs", "MiB"}, 6),
    "ranks": ({"s"}, 2),
    "transport": ({"ms", "s/GB", "MiB"}, 7),
    "selfplay": ({"s", "Elo"}, 3),
    "search": ({"", "s"}, 49),
    "lines": ({"s/GB", "ms", "MiB", "µs", "s"}, 10),
}

# Figures of one process: their runs have one home, whose MLflow takes seconds to make.
TOGETHER = ["loop", "checkpoints", "selfplay"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("forked_commands")]


@pytest.mark.parametrize("names", [TOGETHER, *([name] for name in FIGURES if name not in TOGETHER)], ids="-".join)
def test_figures_give_complete_rows(names: list[str], tmp_path: Path) -> None:
    if "ledger" in names:
        require_plugin()
    file = tmp_path / "figures.json"
    only = [word for name in names for word in ("--only", name)]
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", *only, "--json", str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=850)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(file.read_text())
    assert document["failures"] == {}
    assert {"cpu", "cores", "python", "libraries"} <= document["machine"].keys()
    rows = document["figures"]
    assert {row["figure"] for row in rows} == set(names)
    for name in names:
        units = [row["unit"] for row in rows if row["figure"] == name]
        assert (set(units), len(units)) == FIGURES[name]
    for row in rows:
        assert row["what"] in ended.stdout
        samples = row["ours"]["samples"]
        assert row["ours"]["min"] <= row["ours"]["median"] <= row["ours"]["max"]
        assert len(samples) == row["ours"]["n"] >= 1
        assert (row["met"] is None) == (row["goal"] is None), row
        if row["peer"] is not None:
            assert row["peer"]["n"] >= 1, row
            assert row["ratio"] == pytest.approx(row["peer"][row["statistic"]] / row["ours"][row["statistic"]])


def test_a_cluster_must_be_named() -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "--only", "cluster"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=400)
    assert ended.returncode == 2
    assert "--context CTX --namespace NS" in ended.stderr


def test_parts_are_measured_beside_a_checkout_and_optuna() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.parts", "--rounds=1", "--warm-ups=0", "--beside", str(ROOT)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=850)
    assert ended.returncode == 0, ended.stderr
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in ended.stdout.splitlines() if "│" in line]
    assert [part for part, *_ in cells] == list(parts.PARTS)
    medians = [[float(cell.split()[0]) for cell in column if cell] for column in list(zip(*cells, strict=True))[1:]]
    assert [len(column) for column in medians] == [len(parts.PARTS), len(parts.PARTS), sum(parts.PARTS.values())]
    for column in medians:
        assert column[:8] == sorted(column[:8])  # from one part to the next, but for MLflow


@pytest.mark.parametrize(
    ("program", "arguments", "lines"),
    [
        (
            "populations",
            "--steps 20 --rounds 1 --peers fresh",
            ["quorum 0 .*decision: ", "fresh .* per second", "goal 10"],
        ),
        (
            "restores",
            "--trials 4 --kills 1 --every 8 --pause 0.1",
            [
                r"promotion +1 kills; results in rungs: (\d+) → \1; .* 0 of 4 trials end at another step",
                r"Ray Tune ASHA +1 kills; results in rungs: \d+ → 0; ",
            ],
        ),
    ],
)
def test_ray_tune_is_measured_beside_ours(program: str, arguments: str, lines: list[str]) -> None:
    command = [sys.executable, "-m", f"tests.benchmarks.{program}", *arguments.split()]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=850)
    assert ended.returncode == 0, ended.stderr
    for line in lines:
        assert re.search(line, ended.stdout), ended.stdout
