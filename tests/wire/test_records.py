"""Records survive their way through JSON, states and failures have their rules, and paths are where they are said to be.

Not checked here: who writes and reads them (tests/contracts, tests/study).
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trialplane.job.resources import Retries
from trialplane.wire import env, labels, paths, progress, records, states, units
from trialplane.wire.paths import RunPaths
from trialplane.wire.states import FailureClass, RunState, TrialState

FLOATS = st.floats(allow_nan=False)
NAMES = st.text(max_size=8)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False), NAMES
)
PARAMS = st.dictionaries(NAMES, PLAIN, max_size=4)
METRICS = st.dictionaries(NAMES, FLOATS, max_size=4)
COUNTS = st.integers(0, 10**6)

REPORTS = st.builds(records.TrialReport, number=COUNTS, step=COUNTS, metrics=METRICS, time=FLOATS)
OUTCOMES = st.builds(
    records.TrialOutcome,
    number=COUNTS,
    state=st.sampled_from(TrialState),
    failure=st.none() | st.sampled_from(FailureClass),
    metrics=METRICS,
    message=st.text(),
    exit_code=st.none() | st.integers(-64, 255),
    started=FLOATS,
    retried=st.booleans(),
)
ROWS = st.builds(
    records.TrialRow,
    trial=COUNTS,
    state=st.sampled_from(TrialState),
    attempt=COUNTS,
    number=COUNTS,
    values=st.lists(FLOATS, max_size=3).map(tuple),
    params=PARAMS,
    metrics=METRICS,
    failure=st.none() | st.sampled_from(FailureClass),
    seconds=st.none() | FLOATS,
)
WORKERS = st.builds(units.WorkerStatus, worker=COUNTS, state=NAMES, units=COUNTS, seconds=FLOATS, message=NAMES)
PROGRESS = st.one_of(
    st.builds(progress.StudyProgress),
    st.builds(progress.TrainingProgress, step=st.none() | COUNTS, total_steps=st.none() | COUNTS, metrics=METRICS),
    st.builds(
        progress.CollectionProgress,
        iteration=st.none() | COUNTS,
        units=COUNTS,
        items_per_second=FLOATS,
        workers=st.lists(WORKERS, max_size=2).map(tuple),
    ),
)
RECORDS = st.one_of(
    st.builds(
        records.TrialRequest,
        run=NAMES,
        trial=COUNTS,
        attempt=COUNTS,
        number=COUNTS,
        params=PARAMS,
        seed=COUNTS,
        metrics=st.lists(NAMES, max_size=3).map(tuple),
        timeout=st.none() | FLOATS,
        prunable=st.booleans(),
        env=st.dictionaries(NAMES, NAMES, max_size=3),
        retry_of=st.none() | COUNTS,
    ),
    st.builds(
        records.SlotConfig,
        run=NAMES,
        code=NAMES,
        entrypoint=NAMES,
        root=NAMES,
        cache=NAMES,
        preload=st.lists(NAMES, max_size=3).map(tuple),
        memory=st.none() | COUNTS,
    ),
    REPORTS,
    OUTCOMES,
    st.builds(records.Desired, state=st.sampled_from(RunState), parallel=st.none() | COUNTS),
    ROWS,
    st.builds(
        records.RunStatus,
        run=NAMES,
        job=NAMES,
        state=st.sampled_from(RunState),
        trials=COUNTS,
        failures=st.dictionaries(NAMES, COUNTS, max_size=3),
        objectives=st.lists(NAMES, max_size=2).map(tuple),
        best=st.none() | ROWS,
        rate=st.none() | FLOATS,
        progress=PROGRESS,
    ),
)


@settings(deadline=None, max_examples=300)
@given(RECORDS)
def test_every_record_comes_back(record: Any) -> None:
    text = records.to_json(record)
    assert "\n" not in text
    json.loads(text, parse_constant=pytest.fail)  # strict: no NaN, no Infinity
    back = records.from_json(type(record), text)
    assert back == record
    for field in dataclasses.fields(record):
        assert type(getattr(back, field.name)) is type(getattr(record, field.name)), field.name


def test_nan_comes_back() -> None:
    back = records.from_json(records.TrialReport, records.to_json(records.TrialReport(0, 1, {"loss": math.nan}, 2.0)))
    assert math.isnan(back.metrics["loss"])


def test_what_a_newer_version_adds_is_dropped_and_what_an_older_one_lacks_has_its_default() -> None:
    data = {"number": 3, "state": "COMPLETE", "from_the_future": [1, 2]}
    assert records.from_dict(records.TrialOutcome, data) == records.TrialOutcome(3, TrialState.COMPLETE)


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        records.TrialOutcome(1, TrialState.COMPLETE).number = 2  # type: ignore[misc]


def test_every_failure_has_its_rule() -> None:
    assert set(states.FAILURE_RULES) == set(FailureClass)
    for rule in states.FAILURE_RULES.values():
        assert rule.retry in (None, "always") or rule.retry in Retries.model_fields


def test_the_rules_are_those_of_the_design() -> None:
    never, counted = None, True
    assert {name: (rule.retry, rule.counts) for name, rule in states.FAILURE_RULES.items()} == {
        FailureClass.ERROR: (never, counted),
        FailureClass.OOM: (never, counted),
        FailureClass.INVALID: (never, counted),
        FailureClass.CRASHED: ("crashed", counted),
        FailureClass.LOST: ("lost", False),
        FailureClass.TIMEOUT: (never, counted),
        FailureClass.STOPPED: ("always", False),
    }
    assert (Retries().crashed, Retries().lost) == (1, 5)


def test_a_record_of_a_kind_nobody_knows_is_of_another_version() -> None:
    record = {"run": "a", "job": "b", "state": "RUNNING", "trials": 1, "progress": {"kind": "population", "members": 8}}
    with pytest.raises(
        ValueError, match="'population', and this version supports hpo, train, collect: another version wrote it"
    ):
        records.from_dict(records.RunStatus, record)


def test_which_states_are_ends() -> None:
    assert {state for state in TrialState if state.is_ended} == {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED}
    assert {state for state in RunState if state.is_ended} == {RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED}


def test_a_state_nobody_knows_is_unknown() -> None:
    assert RunState("Hibernating") is RunState.UNKNOWN


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(env.HOME, raising=False)
    assert paths.home() == tmp_path / ".trialplane"
    monkeypatch.setenv(env.HOME, "~/elsewhere")
    assert paths.home() == tmp_path / "elsewhere"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(env.HOME, "relative")
    assert paths.home() == tmp_path / "relative"


def test_every_path_of_a_run_is_below_its_folder_and_its_own() -> None:
    run = RunPaths.of(Path("/home"), "toy-1")
    assert run.root == Path("/home/runs/toy-1")
    every = [*vars(run).values(), run.trial_log(7, 2), run.trial_store(3)]
    assert len(set(every)) == len(every) > 12
    assert all(path.is_relative_to(run.root) for path in every)
    assert run.trial_log(7, 2) == run.root / "trials/0007/attempt-2.log"
    assert run.trial_log(12345, 1).parent.name == "12345"


def test_the_docstring_of_paths_names_every_file() -> None:
    run = RunPaths(Path("/r"))
    names = {path.name for path in vars(run).values() if path != run.root}
    assert len(names) > 12
    missing = {name for name in names - {"events.jsonl", "written.jsonl"} if name not in (paths.__doc__ or "")}
    assert not missing


@pytest.mark.parametrize("module", [env, labels])
def test_names_are_unique(module: Any) -> None:
    names = [value for name, value in vars(module).items() if name.isupper()]
    assert len(names) == len(set(names)) > 5


@given(RECORDS)
@settings(max_examples=50)
def test_what_was_written_fits_its_fields(record):
    assert records.mistyped_field(records.from_json(type(record), records.to_json(record))) == ""


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "3", "{", "{}", '{"run": "a", "job": "b", "state": "RUNNING", "trials": 1, "best": 3}', "[" * 100_000,
     f'{{"run": "a", "job": "b", "state": "RUNNING", "trials": 1, "created": 1{"0" * 400}}}', b"\xff"],
)  # fmt: skip
def test_a_damaged_record_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\w"):
        records.from_json(records.RunStatus, text)


@pytest.mark.parametrize(
    ("field", "value"),
    [("run", 3), ("run", None), ("trials", "6"), ("trials", True), ("complete", 1.5), ("reason", None), ("failures", [1]),
     ("failures", {"error": "x"}), ("objectives", [1]), ("unrecorded", "yes"),
     ("progress", {"kind": "collect", "workers": [{"worker": "x", "state": "working"}]}),
     ("progress", {"kind": "train", "step": "12"}), ("progress", {"kind": "collect", "units": 1.5})],
)  # fmt: skip
def test_a_field_of_another_type_is_named(field, value):
    record = {"run": "a", "job": "b", "state": "RUNNING", "trials": 1, field: value}
    assert records.mistyped_field(records.from_dict(records.RunStatus, record)) == field
