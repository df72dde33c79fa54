"""Every value of a valid source, one after another, replaced by values of another kind: a job or one clean complaint comes
of it, and what is replaced is either read or named.

Not checked here: whether the job is a valid one, which the command says.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.importing import test_hydra, test_katib, test_sagemaker, test_wandb

from trialplane import errors
from trialplane.importing import hydra, katib, ray, sagemaker, wandb
from trialplane.importing.source import ImportResult
from trialplane.job import document

ODD = (None, "", "x", 0, -1, 1e308, "1e999", True, [], [1], ["x", []], {}, {"a": 1}, {"a": {"b": [2]}})
COLLECTOR = "  metricsCollectorSpec: {collector: {kind: File}, source: {fileSystemPath: {path: /a/b, format: JSON}}}\n"
SAMPLES = {
    "katib": (katib, test_katib.HEAD + test_katib.ALGORITHM + test_katib.PARAMETERS + COLLECTOR + test_katib.TEMPLATE),
    "replicas": (katib, test_katib.HEAD + test_katib.PARAMETERS + test_katib.REPLICAS.replace("KEY", "tfReplicaSpecs")),
    "wandb": (wandb, test_wandb.SWEEP + "command: ['${program}', '${args_json}']\n"),
    "sagemaker": (sagemaker, json.dumps(test_sagemaker.request())),
    "hydra": (hydra, test_hydra.CONFIG),
}


def changed(data: Any) -> Iterator[Any]:
    """The data, with one value replaced."""
    todo: list[tuple[Any, ...]] = [()]
    while todo:
        place = todo.pop()
        value = data
        for step in place:
            value = value[step]
        keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        todo += [(*place, key) for key in keys]
        for odd in ODD:
            if not place:
                yield odd
                continue
            other = copy.deepcopy(data)
            here = other
            for step in place[:-1]:
                here = here[step]
            here[place[-1]] = odd
            yield other


@pytest.mark.parametrize("name", SAMPLES)
def test_a_value_of_another_kind(name: str) -> None:
    module, text = SAMPLES[name]
    made = refused = 0
    for data in changed(document.parse(text, "").data):
        try:
            assert isinstance(module.read(json.dumps(data), "odd", {}), ImportResult)
            made += 1
        except errors.SpecError as error:
            assert error.issues
            refused += 1
    assert made and refused


def test_an_argument_of_another_kind() -> None:
    text = "def fit(config): ...\ntune.run({}, config={}, num_samples={}, scheduler={}, search_alg={}, metric={})\n"
    good = ["fit", "{'a': tune.uniform(0, 1), 'b': tune.grid_search([1])}", "3", "ASHAScheduler()", "Optuna()", "'m'"]
    for index in range(len(good)):
        for odd in (
            *map(repr, ODD),
            "f(x)",
            "tune.choice()",
            "tune.uniform()",
            "{**a}",
            "f(*a, **b)",
            "lambda: 1",
            "{'a': f}",
        ):
            try:
                assert ray.read(text.format(*good[:index], odd, *good[index + 1 :]), "odd.py", {})
            except errors.SpecError as error:
                assert error.issues
