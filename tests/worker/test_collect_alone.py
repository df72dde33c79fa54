"""A collection's script by itself, in one process: iterations, weights, what may not cross, shards.

Not checked here: the jobs of this repository (tests/jobs); arguments that all kinds have (test_alone.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trialplane.controller import units as book
from trialplane.job.resources import Retries
from trialplane.wire import units

JOB = """
kind: collect
collect:
  units: 5
  iterations: 3
  learner: train:learn
params: {bad: false}
"""

SCRIPT = """
from trialplane import standalone
import numpy as np

def play(ctx):
    for unit in ctx.units():
        bias = 0.0 if ctx.weights is None else float(ctx.weights["bias"])
        value = object() if ctx.params["bad"] else {"drawn": np.random.random(2), "bias": bias}
        ctx.give(unit, value, items=2)

def learn(ctx, results):
    seen = [(one.unit, one.items, one.value) for one in results]
    assert not seen[0][2]["drawn"].flags.writeable
    return {
        "count": len(seen), "first": seen[0][0], "bias": seen[0][2]["bias"], "drawn": float(seen[0][2]["drawn"][0]),
        "before": ctx.state or 0, "weights": {"bias": np.float64(ctx.iteration + 1)}, "state": (ctx.state or 0) + len(seen),
    }

if __name__ == "__main__":
    standalone(__file__, play, learn)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "games"
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    (folder / "train.py").write_text(SCRIPT)
    return folder / "train.py"


def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=script.parent)


def test_iterations(script: Path) -> None:
    done = run(script)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["iteration 0", "iteration 1", "iteration 2"]
    said = json.loads("\n".join(lines[3:]))
    assert (said["count"], said["first"], said["bias"], said["before"]) == (5, 10, 2.0, 10)
    assert (said["units"], said["items"]) == (5, 10)
    import numpy as np

    np.random.seed(units.unit_seed(0, 10))
    assert said["drawn"] == np.random.random(2)[0]


def test_units_have_the_seeds_they_have_on_the_platform() -> None:
    (unit,) = book.Units(10, 1, 7, Retries()).assign(0, 1)
    assert unit.seed == units.unit_seed(7, 10)


def test_less_of_it(script: Path) -> None:
    done = run(script, "--units", "2", "--iterations", "1")
    assert json.loads(done.stdout.partition("\n")[2])["count"] == 2
    assert "there is no such parameter" in run(script, "--unit", "2").stderr


def test_what_may_not_cross_is_found_here_too(script: Path) -> None:
    done = run(script, "--bad", "true")
    assert done.returncode != 0
    assert "result is a builtins.object" in done.stderr


def test_shards(script: Path) -> None:
    (script.parent / "job.yaml").write_text(JOB.replace("learner: train:learn", "write: {format: npz}"))
    script.write_text(SCRIPT.replace("play, learn)", "play)"))
    done = run(script, "--checkpoints", str(script.parent / "kept"), "--iterations", "1")
    assert done.returncode == 0, done.stderr
    assert (script.parent / "kept/standalone/iteration-0000/MANIFEST.json").exists()
