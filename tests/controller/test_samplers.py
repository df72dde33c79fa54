"""Samplers made for a job. Not checked here: what a ledger draws with them (tests/contracts)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.controller.conftest import outcome
from tests.controller.trainings import Opened, asked

from trialplane.controller import samplers
from trialplane.job import kinds, options

JOB = kinds.read(
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
        points.append(samplers.draw_parameters(asked, JOB, None))
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


UNIT = {"type": "float", "low": 0.0, "high": 1.0}
CONDITIONAL = {
    "kind": {"type": "categorical", "choices": ["a", "b"]},
    **{f"of_{kind}": {**UNIT, "when": {"kind": kind}} for kind in "ab"},
}
WITH_CONDITIONS = [name for name in options.SAMPLERS if name != "grid"]  # which is refused with them
INDEPENDENT = [name for name, choice in options.SAMPLERS.items() if choice.is_independent]


@pytest.mark.parametrize(
    "sampler",
    [
        *WITH_CONDITIONS,
        {"name": "tpe", "multivariate": True, "group": True},
        {"name": "nsgaii", "population_size": 4},
        {"name": "qmc", "independent_sampler": None},
        *({"name": "qmc", "independent_sampler": name} for name in INDEPENDENT),
        {"name": "qmc", "independent_sampler": {"name": "gp", "independent_sampler": "qmc"}},
    ],
    ids=str,
)
def test_conditional_parameters_get_another_value_in_every_trial(opened: Opened, sampler: Any) -> None:
    space = CONDITIONAL
    if sampler == "bruteforce":
        space = {name: {**of, "step": 1 / 64} if name != "kind" else of for name, of in CONDITIONAL.items()}
    job = kinds.read({**JOB.model_dump(exclude_unset=True), "space": space, "sampler": sampler, "trials": 20})
    ledger = opened.open(job)
    values = []
    for _ in range(20):
        request = asked(ledger)
        (value,) = (value for name, value in request.params.items() if name != "kind")
        values.append((request.params["kind"], value))
        ledger.tell(outcome(request.number, metrics={"loss": value}))
    assert len(set(values)) == 20, values
