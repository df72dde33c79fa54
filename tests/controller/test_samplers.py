"""Samplers made for a job. Not checked here: what a ledger draws with them (tests/contracts)."""

from __future__ import annotations

from pathlib import Path

import optuna

from trialplane.controller import samplers
from trialplane.spec import jobs

JOB = jobs.read(
    {
        "name": "demo",
        "kind": "hpo",
        "objectives": [{"metric": "loss", "direction": "minimize"}],
        "space": {name: {"type": "int", "low": 1, "high": 4} for name in ("a", "b")},
        "sampler": "grid",
        "trials": 16,
    }
)
CODE = samplers.JobCode(Path())


def drawn(again: bool) -> list[dict[str, int]]:
    """Every point of the grid in order; with `again` by one sampler, else by a new one for each trial."""
    study = optuna.create_study()
    points = []
    for trial in range(JOB.trials):
        study.sampler = samplers.build_sampler(JOB, trial, CODE, study.sampler if again else None)
        asked = study.ask()
        points.append(samplers.suggest(asked, JOB, None))
        study.tell(asked, 1.0)
    assert samplers.grid_is_drawn(JOB, study)
    return points


def test_a_grid_is_made_once_and_draws_what_a_new_one_would() -> None:
    first = samplers.build_sampler(JOB, 0, CODE)
    assert samplers.build_sampler(JOB, 1, CODE, first) is first
    assert drawn(again=True) == drawn(again=False)
    assert len({tuple(point.values()) for point in drawn(again=True)}) == 16


def test_other_samplers_are_made_anew_for_each_trial() -> None:
    job = JOB.model_copy(update={"sampler": JOB.sampler.model_copy(update={"name": "random"})})
    first = samplers.build_sampler(job, 0, CODE)
    assert samplers.build_sampler(job, 1, CODE, first) is not first
