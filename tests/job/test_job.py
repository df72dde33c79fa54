"""Jobs as values: JSON round trips, parameters in order, merging of layers, differences; laws as property tests.

Does not check files and issues (test_load.py).
"""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
import pydantic
import pytest
from hypothesis import given, settings

from trialplane.job import draft, kinds, space, values
from trialplane.job.document import FieldPath
from trialplane.job.draft import Draft, Origin
from trialplane.job.sampling import Pruner, Sampler
from trialplane.job.search import Constraint
from trialplane.plan.changes import changed_fields

_names = st.from_regex(r"[a-z][a-z_]{0,5}", fullmatch=True)
_finite = st.floats(allow_nan=False, allow_infinity=False)
_scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | _finite | st.text(max_size=6)
_json = st.recursive(_scalars, lambda below: st.lists(below, max_size=3) | st.dictionaries(_names, below, max_size=3))


@st.composite
def _parameters(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(space.TYPES))
    if kind == "categorical":
        several = st.lists(_scalars, min_size=1, max_size=4, unique_by=_by_value)
        return {"type": kind, "choices": draw(several | st.lists(_json, min_size=1, max_size=1))}
    if kind == "normal":
        return {"type": kind, "mean": draw(st.floats(-9, 9)), "std": draw(st.floats(0.1, 9)), "log": draw(st.booleans())}
    low = draw(st.integers(1, 50))
    made: dict[str, Any] = {"type": kind, "low": low, "high": low + draw(st.integers(0, 50))}
    extra = draw(st.sampled_from([{}, {"log": True}, {"step": 2}]))
    return {**made, **extra}


def _by_value(choice: Any) -> Any:
    return ("number", float(choice)) if isinstance(choice, (bool, float)) else ("other", choice)


@st.composite
def _spaces(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for name in draw(st.lists(_names, unique=True, max_size=5)):
        parameter = draw(_parameters())
        if made and draw(st.booleans()):
            parameter["when"] = {draw(st.sampled_from(list(made))): draw(st.lists(_json, min_size=1, max_size=2))}
        made[name] = parameter
    return dict(draw(st.permutations(list(made.items()))))


@st.composite
def _jobs(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "name": "demo",
        "kind": "hpo",
        "params": draw(st.dictionaries(_names, _json, max_size=3)),
        "space": draw(_spaces() | st.just("train:define")),
        "objectives": [{"metric": "f1", "direction": draw(st.sampled_from(["minimize", "maximize"]))}],
        "constraints": draw(st.just([]) | st.just([{"metric": "size", "max": 3}])),
        "sampler": draw(st.sampled_from(["tpe", {"name": "qmc", "qmc_type": "halton"}, {"name": "gp"}])),
        "pruner": draw(st.sampled_from(["none", {"name": "patient", "patience": 2, "wrapped_pruner": {"name": "median"}}])),
        "budget": draw(st.just({}) | st.just({"time": "1h30m", "target": 0.5})),
        "resources": draw(st.just({}) | st.just({"memory": 12345678, "shm": "1Gi"})),
        "cluster": draw(
            st.just({})
            | st.just({"controller": {"cpus": 0.5}, "ttl": "1m", "tolerations": [{"operator": "Exists"}]})
            | st.just({"topology": {"pack": "kubernetes.io/hostname"}, "labels": {"team": "nlp"}})
        ),
        "enqueue": draw(st.lists(st.dictionaries(_names, _json, max_size=3), max_size=2)),
    }


@settings(max_examples=60, deadline=None)
@given(_jobs())
def test_a_job_reads_back_from_its_json(data: dict[str, Any]) -> None:
    try:
        job = kinds.read(data)
    except pydantic.ValidationError as error:  # 1 and 1.0 in one list of choices
        assert "listed twice" in str(error)
        return
    again = kinds.read(job.model_dump_json())
    assert again == job
    assert again.model_dump_json() == job.model_dump_json()
    assert changed_fields(job, again) == []


@settings(max_examples=40, deadline=None)
@given(_spaces())
def test_parameters_come_after_what_they_depend_on(data: dict[str, Any]) -> None:
    try:
        made = kinds.read({**_BARE, "space": data})
    except pydantic.ValidationError as error:
        assert "listed twice" in str(error)
        return
    order = list(made.search.parameters)
    assert sorted(order) == sorted(data)
    for name, parameter in made.search.parameters.items():
        assert all(order.index(other) < order.index(name) for other in parameter.when if other in order)


_BARE: dict[str, Any] = {"name": "demo", "kind": "hpo", "objectives": [{"metric": "f1", "direction": "maximize"}]}


def test_order_is_as_written_where_nothing_depends() -> None:
    made = {name: space.IntParameter(type="int", low=1, high=2) for name in "cab"}
    assert [name for name, _ in space.sort_by_condition(made)] == ["c", "a", "b"]
    made["c"] = space.IntParameter(type="int", low=1, high=2, when={"b": (1,)})
    assert [name for name, _ in space.sort_by_condition(made)] == ["b", "c", "a"]


def test_a_circle_of_conditions_is_found() -> None:
    made = {name: space.IntParameter(type="int", low=1, high=2, when={on: (1,)}) for name, on in ("ab", "bc", "cb")}
    assert space.cycle(made) in (["b", "c", "b"], ["c", "b", "c"])
    with pytest.raises(ValueError, match="circle: b → c → b"):
        space.sort_by_condition(made)


def test_conditions() -> None:
    parameter = space.IntParameter.model_validate({"type": "int", "low": 1, "high": 2, "when": {"m": ["a", 1], "n": True}})
    assert space.is_active(parameter, {"m": "a", "n": True})
    assert space.is_active(parameter, {"m": 1.0, "n": True})
    assert not space.is_active(parameter, {"m": "b", "n": True})
    assert not space.is_active(parameter, {"m": True, "n": True})
    assert not space.is_active(parameter, {"m": "a", "n": 1})
    assert not space.is_active(parameter, {"m": "a"})


def test_values_in_a_range() -> None:
    steps = space.FloatParameter(type="float", low=0.0, high=1.0, step=0.1)
    assert steps.contains(0.3) and steps.contains(1) and not steps.contains(0.35) and not steps.contains(True)
    assert steps.count == 11 and steps.points()[-1] == pytest.approx(1.0)
    whole = space.IntParameter(type="int", low=1, high=8, step=3)
    assert whole.points() == [1, 4, 7] and whole.count == 3
    assert whole.contains(4) and not whole.contains(5) and not whole.contains(4.0) and not whole.contains("4")
    words = space.CategoricalParameter(type="categorical", choices=("a", True, None))
    assert words.contains(True) and words.contains(None) and not words.contains(1)
    assert space.FloatParameter(type="float", low=0, high=1).count is None


def test_points_are_not_counted_for_ever() -> None:
    big = space.IntParameter(type="int", low=1, high=10**9)
    asks = space.IntParameter(type="int", low=1, high=2, when={"a": (1,)})
    assert space.count_points({"a": big, "b": asks}) is None
    assert space.count_points({"a": big, "b": big}) == 10**18


def test_constraints_say_how_far_outside() -> None:
    both = Constraint(metric="size", min=1, max=3)
    assert [both.excess(value) for value in (0, 1, 2, 3, 5)] == [1, 0, -1, 0, 2]
    assert Constraint(metric="size", max=3).excess(1) == -2


def test_units() -> None:
    job = kinds.read({**_BARE, "resources": {"memory": "1.5Gi", "shm": "64Mi"}, "budget": {"time": "1d 2h"}})
    assert (job.resources.memory_bytes, job.resources.shm_bytes) == (1536 * 2**20, 64 * 2**20)
    assert job.budget.time == 26 * 3600
    with pytest.raises(ValueError, match="amount of memory"):
        values.bytes_of("2GB")


def test_samplers_in_long_and_short_form() -> None:
    long = Sampler.model_validate({"name": "tpe", "options": {"n_startup_trials": 3}})
    assert long == Sampler.model_validate({"name": "tpe", "n_startup_trials": 3})
    assert Sampler.model_validate("gp").choice.cls == "GPSampler"
    assert Pruner.model_validate("none").choice.cls == "NopPruner"


# ------------------------------------------------------------------------------------------------- merging

_trees = st.dictionaries(_names, st.recursive(_scalars, lambda b: st.dictionaries(_names, b, max_size=3)), max_size=4)


def _merged(*layers: dict[str, Any]) -> dict[str, Any]:
    made = Draft({"params": {}}, {(): Origin("file", 1)})
    for index, layer in enumerate(layers):
        made.merge({"params": copy.deepcopy(layer)}, {("params",): Origin(f"layer {index}")})
    return dict(made.data["params"])


@settings(max_examples=40, deadline=None)
@given(_trees, _trees)
def test_merge_laws(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert _merged(one, {}) == one == _merged({}, one)
    both = _merged(one, other)
    assert _merged(one, one) == one
    assert _merged(one, other, other) == both
    assert set(both) == {*one, *other}
    for key, value in other.items():
        if not (isinstance(value, dict) and isinstance(one.get(key), dict)):
            assert both[key] == value
    assert {key: both[key] for key in one if key not in other} == {k: v for k, v in one.items() if k not in other}


@settings(max_examples=40, deadline=None)
@given(_trees, st.lists(st.tuples(st.lists(_names, min_size=1, max_size=3), _scalars), max_size=4))
def test_every_value_knows_where_it_came_from(tree: dict[str, Any], sets: list[tuple[list[str], Any]]) -> None:
    made = Draft({"params": tree}, {(): Origin("file", 1)})
    for index, (steps, value) in enumerate(sets):
        before = len(made.issues)
        place: FieldPath = ("params", *steps)
        made.set(place, value, Origin(f"set {index}"))
        if len(made.issues) == before:
            assert made.get(place) == value
            assert made.origin(place).source == f"set {index}"


def test_paths() -> None:
    assert draft.path("enqueue.0.lr", ()) == ("enqueue", 0, "lr")
    assert draft.path("params.model.lr", ["lr"]) == ("params", "model", "lr")
    for field in ("space.model.lr.high", 'space."model.lr".high'):
        assert draft.path(field, ["model", "model.lr"]) == ("space", "model.lr", "high")
    assert draft.path('space."new.lr"', ()) == ("space", "new.lr")
    assert draft.path("enqueue.0.model.lr", ["model.lr"]) == ("enqueue", 0, "model.lr")
    assert draft.path("space.lr.when.model.name", ["model.name"]) == ("space", "lr", "when", "model.name")


# ------------------------------------------------------------------------------------------------- differences


def test_differences_are_told_by_field() -> None:
    old = kinds.read({**_BARE, "space": {"lr": {"type": "float", "low": 1, "high": 2}}, "params": {"a": [1], "b": 1}})
    new = kinds.read(
        {
            **_BARE,
            "description": "words",
            "space": {"lr": {"type": "float", "low": 1, "high": 3}},
            "params": {"a": [1, 2], "b": True},
            "sampler": {"name": "random"},
            "trials": 800,
            "enqueue": [{"lr": 2}],
        }
    )
    assert changed_fields(old, new) == [
        "params.a: [1] → [1, 2]",
        "params.b: 1 → true",
        "space.lr.high: 2.0 → 3.0",
        'sampler.name: "tpe" → "random"',
        "trials: 20 → 800",
        "enqueue.0.lr: (not set) → 2",
    ]
    assert changed_fields(old, old) == []


@pytest.mark.parametrize(
    ("pruner", "watched"),
    [
        ("median", ("f1", "maximize")),
        ({"name": "median", "metric": "auc"}, ("auc", "maximize")),
        ({"name": "median", "metric": "loss", "direction": "minimize", "n_warmup_steps": 2}, ("loss", "minimize")),
    ],
)
def test_a_pruner_watches_the_objective_or_another_metric(pruner: Any, watched: tuple[str, str]) -> None:
    made = kinds.read(
        {"name": "demo", "kind": "hpo", "objectives": [{"metric": "f1", "direction": "maximize"}], "pruner": pruner}
    )
    assert (
        made.search.watched_objective(made.objectives[0]).metric,
        made.search.watched_objective(made.objectives[0]).direction,
    ) == watched
    assert kinds.read(made.model_dump_json()) == made
    assert set(made.pruner.options) <= {"n_warmup_steps"}, "Optuna has no such options"


@pytest.mark.parametrize(
    ("pruner", "field", "said"),
    [
        ({"name": "none", "metric": "auc"}, "metric", "none is named; write name: median, or drop it"),
        ({"name": "median", "direction": "minimize"}, "direction", "applies only to pruner.metric, which is not set"),
        ({"name": "median", "metric": "f1", "direction": "minimize"}, "direction", "f1 is an objective to maximize"),
        ({"name": "median", "metric": ""}, "metric", ""),
    ],
)
def test_what_a_pruner_cannot_watch(pruner: Any, field: str, said: str) -> None:
    objectives = [{"metric": "f1", "direction": "maximize"}]
    made = kinds.read({"name": "demo", "kind": "hpo", "objectives": objectives, "pruner": pruner})
    (issue,) = [issue for issue in made.check(()) if issue.field_path[0] == "pruner"]
    assert issue.field_path == ("pruner", field)
    assert said in issue.message


@pytest.mark.parametrize(
    ("given", "cores"),
    [(2, 2), (2.0, 2), ("2", 2), (0.5, 0.5), ("500m", 0.5), ("1500m", 1.5), (1234567, 1234567), (0.0015, 0.002)],
)
def test_cores_are_numbers_and_whole_ones_stay_whole(given: Any, cores: float) -> None:
    """Also in JSON, which other versions read."""
    job = kinds.read({"name": "demo", "kind": "train", "resources": {"cpus": given}})
    assert (job.resources.cpus, type(job.resources.cpus)) == (cores, type(cores))
    assert kinds.read(job.model_dump_json()) == job
    assert f'"cpus":{cores},' in job.model_dump_json()
    assert job.resources.threads == max(1, int(cores))


@pytest.mark.parametrize("given", [0, -1, True, "", "0m", "1.5.2", "9" * 400, 10**400, float("inf"), None, [1]])
def test_what_is_no_amount_of_cores_is_refused(given: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        kinds.read({"name": "demo", "kind": "train", "resources": {"cpus": given}})


def test_part_of_a_core_is_worth_no_advice() -> None:
    assert list(kinds.read({"name": "demo", "kind": "train", "resources": {"cpus": "500m"}}).advice()) == []


@pytest.mark.parametrize(
    ("space", "trials", "is_told"),
    [
        ({}, 3, True),
        ({"x": {"type": "int", "low": 2, "high": 2}, "y": {"type": "categorical", "choices": ["a"]}}, 3, True),
        ({}, 1, False),
        ({"x": {"type": "float", "low": 0, "high": 1}}, 3, False),
        ("train:space", 3, False),
    ],
)
def test_a_study_with_nothing_to_search_is_told(space: object, trials: int, is_told: bool) -> None:
    study = {"name": "demo", "kind": "hpo", "objectives": [{"metric": "f1", "direction": "maximize"}]}
    remarks = list(kinds.read({**study, "space": space, "trials": trials}).advice())
    assert [f"all {trials} trials have the same parameters" in remark for remark in remarks] == [True] * is_told


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"params": {"hf_token": "x1", "lr": 0.1}}, "sees hf_token, which looks like a secret"),
        ({"command": ["fit", "--api-key", "x1"]}, "sees the secret in command"),
        ({"command": ["bash", "-c", 'API_KEY="$API_KEY" fit']}, ""),
    ],
)
def test_a_secret_in_a_job_is_told(fields: dict[str, object], remark: str) -> None:
    study = {"name": "demo", "kind": "hpo", "objectives": [{"metric": "f1", "direction": "maximize"}], "trials": 1}
    remarks = list(kinds.read({**study, **fields}).advice())
    assert len(remarks) == bool(remark) and all(remark in text for text in remarks)
