"""Parameters whose values Optuna cannot draw as they are: choices that are lists or mappings, and normal numbers.

Checks what a job file may say of them, how their values are put into Optuna's form and back, and what is refused, with the
line. Not checked here: what a ledger draws (tests/controller/test_drawing.py).
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.job.conftest import found

from trialplane.job import kinds, load, space

HEAD = "kind: hpo\nobjective: {metric: f1, direction: maximize}\ntrials: 2\nspace:\n"
LAYERS = "  layers: {type: categorical, choices: [[64, 64], [128], {wide: 2}, auto]}\n"
NORMAL = "  x: {type: normal, mean: 0, std: 1}\n"


def categorical(*choices: Any) -> space.CategoricalParameter:
    return space.CategoricalParameter.model_validate({"type": "categorical", "choices": choices})


def normal(**fields: Any) -> space.NormalParameter:
    return space.NormalParameter.model_validate({"type": "normal", **fields})


def test_lists_stand_wherever_a_choice_may(folder: Path) -> None:
    more = "  rate: {type: float, low: 0, high: 1, when: {layers: [[64, 64], {wide: 2}]}}\nenqueue: [{layers: [128]}]\n"
    (folder / "job.yaml").write_text(HEAD + LAYERS + more)
    job = load.load_job(folder)
    layers, rate = job.search.parameters.values()
    assert layers.points() == [[64, 64], [128], {"wide": 2}, "auto"]
    assert [space.is_active(rate, {"layers": choice}) for choice in layers.points()] == [True, False, True, False]
    assert job.search.enqueue == ({"layers": [128]},)
    assert kinds.read(job.model_dump_json()) == job


def test_a_list_is_the_choices_of_a_parameter(folder: Path) -> None:
    (folder / "job.yaml").write_text(HEAD + "  width: [64, 128, 256]\n  layers: [[64, 64], [128]]\n")
    width, layers = load.load_job(folder).search.parameters.values()
    assert (width, layers) == (categorical(64, 128, 256), categorical([64, 64], [128]))


def test_fixing_a_list_settles_conditions_on_it(folder: Path) -> None:
    more = "  rate: {type: float, low: 0, high: 1, when: {layers: [[64, 64]]}}\nenqueue: [{layers: [128]}]\n"
    (folder / "job.yaml").write_text(HEAD + LAYERS + more)
    fixed = load.load_job(folder, params={"layers": [64, 64]})
    assert (fixed.params, list(fixed.search.names), fixed.search.enqueue) == ({"layers": [64, 64]}, ["rate"], ())
    assert not load.load_job(folder, params={"layers": [128]}).search.names


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3),
    max_leaves=6,
)


@given(st.lists(values, min_size=1, max_size=6))
def test_every_choice_has_a_scalar_of_its_own_and_comes_back(choices: list[Any]) -> None:
    try:
        parameter = categorical(*choices)
    except ValueError:
        return  # two of them are the same
    coded = [parameter.encode(choice) for choice in parameter.choices]
    assert all(one is None or isinstance(one, (bool, int, float, str)) for one in coded)
    assert len(set(coded)) == len(coded)
    for choice, code in zip(parameter.choices, coded, strict=True):
        assert space.is_same(parameter.decode(code), choice)


def test_true_is_no_1_inside_a_list_either() -> None:
    assert categorical([1, 2]).contains([1.0, 2]) and not categorical([1, 2]).contains([True, 2])
    assert not categorical([1, 2]).contains([1]) and categorical({"a": 1, "b": 2}).contains({"b": 2, "a": 1})
    assert not categorical({"a": 1}).contains({"a": True})


@pytest.mark.parametrize(
    ("fields", "q", "value"),
    [
        ({"mean": 3.0, "std": 2.0}, 0.5, 3.0),
        ({"mean": 3.0, "std": 2.0}, 0.975, 3.0 + 2 * 1.959963984540054),
        ({"mean": -7.0, "std": 1.0, "log": True}, 0.5, math.exp(-7.0)),
        ({"mean": 0.0, "std": 1.0, "low": -1.0, "high": 0.0}, 0.5, 0.0),
    ],
)
def test_a_normal_number_is_drawn_by_its_share(fields: dict[str, Any], q: float, value: float) -> None:
    parameter = normal(**fields)
    assert parameter.decode(q) == pytest.approx(value)
    assert parameter.encode(value) == pytest.approx(q)


@given(
    st.floats(-5, 5), st.floats(0.1, 5), st.booleans(), st.floats(0, 1), st.sampled_from([{}, {"low": 1.0}, {"high": 2.0}])
)
def test_what_is_drawn_lies_in_the_range_and_its_ends_are_held(mean, std, log, at, bounds) -> None:
    try:
        parameter = normal(mean=mean, std=std, log=log, **bounds)
    except ValueError:
        return  # nothing of the distribution is between the bounds
    low, high = parameter.shares
    value = parameter.decode(low + at * (high - low))
    assert parameter.contains(value)
    assert all(parameter.contains(end) for end in parameter.ends)
    assert bounds.get("low", value) <= value <= bounds.get("high", value)
    assert parameter.decode(parameter.encode(value)) == pytest.approx(value, rel=1e-3)


def test_equal_shares_make_the_distribution() -> None:
    parameter = normal(mean=10.0, std=3.0)
    low, high = parameter.shares
    drawn = [parameter.decode(low + (index + 0.5) / 2000 * (high - low)) for index in range(2000)]
    assert statistics.mean(drawn) == pytest.approx(10.0) and statistics.stdev(drawn) == pytest.approx(3.0, rel=0.01)
    assert [parameter.ends[0], parameter.ends[1]] == pytest.approx([10 - 18, 10 + 18])


@pytest.mark.parametrize(
    ("text", "field", "line", "message"),
    [
        (LAYERS.replace("auto", "[128]"), "space.layers.choices.3", 5, "[128] is listed twice"),
        (LAYERS.replace("auto", "[128.0]"), "space.layers.choices.3", 5, "[128.0] is listed twice"),
        (LAYERS.replace("auto", "'[128]'"), "space.layers.choices.3", 5, "'[128]' is also how [128] is written; drop one"),
        (LAYERS.replace("auto", "[.nan]"), "space.layers.choices.3.0", 5, "nan is not a number"),
        (
            LAYERS + "  a: {type: int, low: 1, high: 2, when: {layers: [128]}}\n",
            "space.a.when.layers",
            6,
            "layers is never 128; it is one of [64, 64], [128], {'wide': 2}, 'auto'; for that list write layers: [[128]]",
        ),
        (LAYERS + "enqueue:\n  - {layers: [64]}\n", "enqueue.0.layers", 7, "[64] is outside of the space"),
        (NORMAL.replace("std: 1", "std: 0"), "space.x.std", 5, "must be over 0"),
        (NORMAL.replace(", std: 1", ""), "space.x.std", 5, "is missing"),
        (NORMAL.replace("std: 1", "sdt: 1"), "space.x.sdt", 5, "did you mean std?"),
        (NORMAL.replace("std: 1", "std: 1, low: 0, log: true"), "space.x.low", 5, "0.0 must be over 0 with log: true"),
        (NORMAL.replace("std: 1", "std: 1, low: 2, high: 1"), "space.x.low", 5, "leaves nothing of the distribution"),
        (NORMAL.replace("std: 1", "std: 1, low: 9"), "space.x.low", 5, "leaves nothing of the distribution"),
        (NORMAL.replace("std: 1", "std: 200, log: true"), "space.x.mean", 5, "goes beyond the numbers there are"),
        (NORMAL.replace("std: 1", "std: 1.7e308"), "space.x.mean", 5, "goes beyond the numbers there are"),
        (NORMAL + "enqueue: [{x: 7}]\n", "enqueue.0.x", 6, "7 is outside of the space: x is a number from -6 to 6"),
        (NORMAL + "sampler: grid\n", "space.x", 5, "has no steps, and the grid sampler tries every value"),
        (NORMAL + LAYERS + "sampler: {name: cmaes, x0: {layers: auto}}\n", "sampler.x0", 7, "lacks x;"),
        (NORMAL.replace("normal", "gauss"), "space.x", 5, "type 'gauss' is unknown"),
    ],
)
def test_what_cannot_be_drawn_is_refused_where_it_stands(
    folder: Path, text: str, field: str, line: int, message: str
) -> None:
    (folder / "job.yaml").write_text(HEAD + text)
    issues = found(folder)
    assert [one[:3] for one in issues] == [(field, "jobs/demo/job.yaml", line)], issues
    assert message in issues[0][3]
