"""Whatever a job file holds, loading ends in a job or in issues, never in another error.

A good file is damaged at random places, and loaded with layers that touch the same places. Does not check what the
issues say (test_load.py).
"""

from __future__ import annotations

import copy
import functools
import operator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from trialplane import errors
from trialplane.job import kinds, load

GOOD: dict[str, Any] = {
    "kind": "hpo",
    "params": {"epochs": 3, "data": "a.csv"},
    "inputs": {"data": {"columns": ["text"]}},
    "environment": {"HPO_EPOCHS": "params.epochs", "HPO_MODEL_CHOICES": "space.model.choices"},
    "space": {
        "lr": {"type": "float", "low": 0.1, "high": 0.2},
        "model": {"type": "categorical", "choices": ["bert", "roberta"]},
        "heads": {"type": "int", "low": 2, "high": 8, "when": {"model": "bert"}},
    },
    "objectives": [{"metric": "f1", "direction": "maximize"}],
    "constraints": [{"metric": "size", "max": 3}],
    "sampler": {"name": "nsgaii", "crossover": {"name": "sbx", "eta": 2}},
    "pruner": {"name": "patient", "patience": 2, "wrapped_pruner": "median"},
    "budget": {"time": "1h"},
    "enqueue": [{"lr": 0.1, "model": "bert"}],
    "profiles": {"max": {"trials": 800, "space": {"lr": {"high": 1}}, "pruner": {"wrapped_pruner": {"n_warmup_steps": 1}}}},
}
_SCALARS = [None, 0, -1, 1.5, float("nan"), True, "", "x", "a:b", 10**400]
_LISTS = [[], [None], [[]]]
_MAPPINGS = [{}, {"name": None}, {"name": "tpe"}, {"": 1}, {"type": "int"}, {"type": []}, {"when": {"lr": []}}]
_ODD = st.sampled_from([*_SCALARS, *_LISTS, *_MAPPINGS, {"options": 3}, {"options": {"x": {}}}])


def _places(data: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, below in items for place in ((*above, key), *_places(below, (*above, key)))]


def _has(data: Any, place: tuple[Any, ...]) -> bool:
    """Whether the place is still there: damage above it may have taken it away, or made a list of a mapping."""
    for step in place:
        there = step in data if isinstance(data, dict) else isinstance(data, list) and step in range(len(data))
        if not there:
            return False
        data = data[step]
    return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("jobs") / "demo"
    made.mkdir()
    (made / "train.py").write_text("def run(ctx): ...\n")
    return made


_DAMAGE = st.lists(st.tuples(st.sampled_from(_places(GOOD)), _ODD, st.booleans()), max_size=3)
_FIELDS = [".".join(map(str, place)) for place in _places(GOOD)]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_DAMAGE, st.lists(st.tuples(st.sampled_from(_FIELDS), _ODD), max_size=2), st.booleans())
def test_a_damaged_file_is_complained_about(
    folder: Path, damage: list[tuple[tuple[Any, ...], Any, bool]], overrides: list[tuple[str, Any]], layers: bool
) -> None:
    data = copy.deepcopy(GOOD)
    for place, odd, rename in damage:
        if not _has(data, place):
            continue
        holder: Any = functools.reduce(operator.getitem, place[:-1], data)
        if rename and isinstance(holder, dict):
            holder[f"{place[-1]}x"] = holder.pop(place[-1])
        else:
            holder[place[-1]] = copy.deepcopy(odd)
    (folder / "job.yaml").write_text(yaml.safe_dump(data))
    more: dict[str, Any] = {}
    if layers:
        more = {
            "profile": "max",
            "environ": {"HPO_EPOCHS": "3", "HPO_MODEL_CHOICES": "bert,x"},
            "params": {"model": "bert"},
        }
    try:
        job = load.load_job(folder, overrides=dict(overrides), **more)
    except errors.SpecError as error:
        assert error.issues and all(one.message and one.source for one in error.issues)
        assert all(one.line > 0 for one in error.issues if one.source.endswith("job.yaml"))
    else:
        assert kinds.read(job.model_dump_json()) == job
