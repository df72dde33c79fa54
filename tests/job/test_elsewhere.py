"""Names that other tools have for samplers and pruners: the complaint says which of ours is meant, or that there is none.

Not checked here: misspelt names of ours (tests/job/test_load.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.job.conftest import found

from trialplane.job import options, sampling
from trialplane.job.options import ValueKind

HEAD = "kind: hpo\nobjective: {metric: f1, direction: maximize}\nspace: {a: {type: int, low: 1, high: 2}}\n"
# What the documentation of Katib, Ray Tune, W&B, SageMaker, Determined, Vizier and Optuna itself calls them.
_NAMES = [
    ("sampler", "random_search", "it is called random here"),
    ("sampler", "sobol", "{name: qmc, qmc_type: sobol}"),
    ("sampler", "QUASI_RANDOM_SEARCH", "{name: qmc, qmc_type: sobol}"),
    ("sampler", "bayesianoptimization", "tpe is Bayesian, and so is gp"),
    ("sampler", "Bayesian", "tpe is Bayesian, and so is gp"),
    ("sampler", "bayes", "tpe is Bayesian, and so is gp"),
    ("sampler", "multivariate-tpe", "{name: tpe, multivariate: true}"),
    ("sampler", "hyperopt", "it is called tpe here"),
    ("sampler", "TPESampler", "it is called tpe here"),
    ("sampler", "CMA-ES", "it is called cmaes here"),
    ("sampler", "bohb", "sampler: tpe with pruner: hyperband"),
    ("sampler", "hyperband", "write pruner: hyperband"),
    ("sampler", "adaptive_asha", "write pruner: asha"),
    ("sampler", "pbt", "it is a field of its own here: population:"),
    ("sampler", "darts", "there is none here"),
    ("pruner", "ASHAScheduler", "it is called asha here"),
    ("pruner", "successive-halving", "it is called successive_halving here"),
    ("pruner", "SuccessiveHalvingPruner", "it is called successive_halving here"),
    ("pruner", "async_hyperband", "it is called asha here"),
    ("pruner", "medianstop", "it is called median here"),
    ("pruner", "median_stopping_rule", "it is called median here"),
    ("pruner", "HyperBandScheduler", "it is called hyperband here"),
    ("pruner", "fifo", "write none"),
    ("pruner", "pbt", "it is a field of its own here: population:"),
]


@pytest.mark.parametrize(("field", "name", "hint"), _NAMES)
def test_the_complaint_names_ours(folder: Path, field: str, name: str, hint: str) -> None:
    (folder / "job.yaml").write_text(f"{HEAD}{field}: {name}\n")
    ((place, _, line, message),) = found(folder)
    assert (place, line) == (f"{field}.name", 4)
    assert message.startswith(f"{name!r} is not a {field}; ") and hint in message


def test_what_is_unknown_everywhere_lists_ours(folder: Path) -> None:
    (folder / "job.yaml").write_text(f"{HEAD}sampler: zzz\n")
    assert found(folder)[0][3].endswith("there are: bruteforce, cmaes, gp, grid, nsgaii, nsgaiii, qmc, random, tpe")


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (kind, name, hint)
        for kind, hints in options.FOREIGN_NAMES.items()
        for hint, names in hints.items()
        for name in names.split()
    ],
)
def test_every_entry_can_be_met_and_names_something_there_is(kind: ValueKind, name: str, hint: str) -> None:
    (issue,) = sampling.check(kind, name)
    assert issue.message == f"{name!r} is not {kind.value}; {hint}", "shadowed by a name of ours, or by Optuna's class"
    for ours in re.findall(r"it is called (\w+) here", hint):
        assert ours in options.TABLES[kind]
    for field, ours in re.findall(r"(sampler|pruner): (\w+)", hint):
        assert ours in options.TABLES[ValueKind[field.upper()]]
    for text in re.findall(r"\{name: (\w+), (\w+): \w+\}", hint):
        assert text[1] in options.TABLES[kind][text[0]].options
