"""The jobs of a sweep as trials of a real slot: their configuration, their folders, what they return, and how they end.

Not checked here: the sweep as a whole (test_sweeper.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from tests.worker.conftest import Bench, prune_at

from hydra_plugins.trialplane_sweeper import _task as task
from hydra_plugins.trialplane_sweeper import sweeper
from trialplane.wire import records
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState


@pytest.fixture
def sweep(application: Path) -> task.Task:
    """What the sweeper writes for `lr=interval(0,1) model=small,large what=…`."""
    return task.Task(
        file=str(application / "fit.py"),
        module="",
        function="main",
        job_name="fit",
        config_name="config",
        config_sources=(("hydra", "pkg://hydra.conf"), ("main", f"file://{application}/conf"), ("schema", "structured://")),
        folder=str(application),
        sweep_folder=str(application / "multirun"),
        hydra_overrides=("hydra.mode=MULTIRUN",),
        fixed_overrides=("seed=3",),
        keys={"lr": "lr", "model": "model", "what": "what"},
        choices={"model": ("small", "large"), "what": ("trains", "fails")},
        metrics=("objective",),
    )


@pytest.fixture
def bench(tmp_path: Path, sweep: task.Task, request: pytest.FixtureRequest) -> Iterator[Bench]:
    (tmp_path / "code").mkdir()
    made = dataclasses.replace(sweep, **getattr(request, "param", {}))
    (tmp_path / "code" / "sweep.json").write_text(records.to_json(made))
    started = Bench(tmp_path, {"train": sweeper.RUN})
    yield started
    started.close()


def run(bench: Bench, what: str = "trains", *, prune: int | None = None, metrics: int = 1, **params: Any) -> TrialOutcome:
    """One job; pruned at its report of that step."""
    names = sweep_metrics(metrics)
    request = bench.request(what, prunable=prune is not None, **{"lr": 0.25, "model": "large", **params})
    return prune_at(bench, 99 if prune is None else prune, bench.slot.run(dataclasses.replace(request, metrics=names)))


def sweep_metrics(count: int) -> tuple[str, ...]:
    return ("objective",) if count == 1 else tuple(f"objective_{index}" for index in range(count))


def test_a_job_has_its_configuration_and_its_folder(bench: Bench, application: Path) -> None:
    first = run(bench)
    second = run(bench, model="small", lr=0.5)
    assert [one.metrics for one in (first, second)] == [{"objective": 4.25}, {"objective": 2.5}], (
        first.message,
        second.message,
    )
    folder = application / "multirun" / "0"
    assert yaml.safe_load((folder / ".hydra" / "config.yaml").read_text()) == {
        "model": {"layers": 4}, "lr": 0.25, "what": "trains", "seed": 3,
    }  # fmt: skip
    overrides = ["seed=3", "what=trains", "lr=0.25", "model=large"]
    assert yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text()) == overrides
    assert "layers 4" in (folder / "fit.log").read_text()
    assert (folder / "seen.txt").read_text() == f"0 {','.join(sorted(overrides))} {application}"
    assert "layers 2" in (application / "multirun" / "1" / "fit.log").read_text()


def test_a_configuration_made_ahead_is_the_one_that_hydra_composes(
    sweep: task.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sweep.folder)  # and back
    monkeypatch.syspath_prepend(sweep.folder)
    runner = task.Runner(sweep)
    assert len(runner._bases) == 2
    swept = ["lr=0.25", "model=large", "what=trains"]
    changed = runner._compose_from_base(swept)
    # As text, for the time is in it too.
    assert changed is not None and OmegaConf.to_yaml(changed) == OmegaConf.to_yaml(runner._compose(swept))
    assert runner._compose_from_base(["+new=1", "model=small"]) is None


@pytest.mark.parametrize(
    ("what", "failure", "told"),
    [
        ("fails", FailureClass.ERROR, "no such layer"),
        ("text", FailureClass.INVALID, "main returned 'good'; it must return the number to optimize"),
        ("two", FailureClass.INVALID, "main returned [0.25, 4]"),
    ],
)
def test_a_job_that_fails(bench: Bench, what: str, failure: FailureClass, told: str) -> None:
    outcome = run(bench, what)
    assert outcome.failure is failure and told in outcome.message


def test_a_pruned_job_is_no_error(bench: Bench) -> None:
    outcome = run(bench, prune=1)
    assert outcome.state is TrialState.PRUNED
    assert "Error executing job" not in bench.log(outcome)


@pytest.mark.parametrize("bench", [{"metrics": ("objective_0", "objective_1")}], indirect=True)
def test_several_objectives(bench: Bench) -> None:
    outcome = run(bench, "two", metrics=2)
    assert outcome.metrics == {"objective_0": 0.25, "objective_1": 4.0}
