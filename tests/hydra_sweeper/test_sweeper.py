"""A sweep as it is typed, on this machine: its files, its run, going on with it, and sweeps of which nothing is started.

Not checked here: each job (test_task.py), and the parameters (test_space.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trialplane.client.local import LocalTarget
from trialplane.client.sdk import Platform
from trialplane.wire.states import RunState

LR = "lr=tag(log, interval(1e-3,1e-1))"


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "fit.py", "-m", "hydra/sweeper=trialplane", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "TRIALPLANE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def read(file: Path) -> dict:
    return yaml.safe_load(file.read_text())


@pytest.mark.services
@pytest.mark.slow
def test_a_sweep_is_a_study_that_goes_on(application: Path) -> None:
    words = (
        LR,
        "model=small,large",
        "hydra.sweep.dir=multirun/mine",
        "hydra.sweeper.n_trials=4",
        "+hydra.sweeper.job.seed=1",
    )
    done = typed(application, *words)
    assert done.returncode == 0, done.stderr
    folder = application / "multirun" / "mine"
    assert {file.name for file in folder.iterdir()} == {"0", "1", "2", "3", "multirun.yaml", "optimization_results.yaml"}
    [run] = Platform(LocalTarget(application / "home")).list()
    assert run.status().state is RunState.SUCCEEDED and run.job.parallel == 2
    best = read(folder / "optimization_results.yaml")
    assert best["best_evaluated_params"] == run.best.params and best["best_value"] == run.best.value
    for row in run.rows():
        assert read(folder / str(row.trial) / ".hydra" / "config.yaml")["lr"] == row.params["lr"]
    assert all(f"#{trial} : lr=" in done.stdout for trial in range(4))

    before = (folder / "0" / "fit.log").read_text()
    again = typed(application, *words)
    assert again.returncode == 0 and "finished" in again.stdout, again.stderr
    assert (folder / "0" / "fit.log").read_text() == before, "nothing is done twice"
    other = typed(application, "lr=interval(0,1)", *words[1:])
    assert other.returncode != 0 and "another hydra.sweep.dir" in other.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("lr=interval(1,0)",), "space.lr"),
        (("lr=0.1,0.2", "hydra.sweeper.direction=up"), "is not minimize or maximize"),
        (("lr=0.1,0.2", "hydra.sweeper.sampler=tpee"), "sampler"),
        (("lr=0.1,0.2", "+hydra.sweeper.job.budgett=1"), "budgett"),
    ],
)
def test_nothing_is_started_of_what_is_wrong(application: Path, words: tuple[str, ...], told: str) -> None:
    done = typed(application, *words)
    assert done.returncode != 0 and told in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (application / "home" / "runs").exists()


def test_hydra_finds_it_without_importing_the_platform(application: Path) -> None:
    asked = """
import sys
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
print([plugin.__name__ for plugin in Plugins.instance().discover(Sweeper)])
print([name for name in sys.modules if name.startswith("trialplane")])
"""
    done = subprocess.run([sys.executable, "-c", asked], cwd=application, capture_output=True, text=True, check=True)
    found, imported = done.stdout.splitlines()
    assert "TrialplaneSweeper" in found and imported == "[]"


def test_a_task_that_no_trial_could_import(application: Path) -> None:
    (application / "fit.py").write_text(
        "import hydra\ndef outer():\n    @hydra.main(version_base=None)\n    def main(cfg): ...\n    main()\nouter()\n"
    )
    done = typed(application, "+lr=0.1,0.2")
    assert done.returncode != 0 and "must be a function at the top of its module" in done.stderr
