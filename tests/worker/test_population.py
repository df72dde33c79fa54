"""A member of a population that takes over another one's state, each in a process: what it finds, and what is an error.

Not checked here: who takes over whose state (tests/controller/test_population.py).
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench

from trialplane.training import optimizers
from trialplane.wire.records import Parent, Segment, TrialOutcome, TrialReport
from trialplane.wire.states import FailureClass, TrialState

CODE = """
import os
import sys


def run(ctx):
    what, done, weight = ctx.params["what"], 0, 0.0
    if what == "looks":
        return {"loss": 0.0, "score": float("trialplane.training.states" in sys.modules and "numpy" in sys.modules)}
    if what == "logs":
        ctx.note("wandb", 0, {"samples": 3.0})
    if what == "logs its loss":
        ctx.note("wandb", 5, {"loss": 3.0}, waits=True)
    groups = [{"lr": ctx.params.get("lr", 0.0), "betas": (0.9, 0.99)}]
    if what != "forgets" and (state := ctx.restored) is not None:
        done, weight, groups = state["step"], state["weight"], state["optimizer"]["param_groups"]
    if what == "plants":
        weight = 42.0
    if what == "sets":
        groups[0]["lr"] = ctx.params["lr"]
    if what == "dies" and ctx.is_restart:
        weight = 100.0
    for step in range(done + 1, 13):
        if what == "dies" and step == 7 and ctx.attempt == 2:
            os._exit(1)
        weight += 1.0
        ctx.report(step, loss=weight)
        every = 1000 if what in ("rarely", "dies last") else 0
        ctx.save(step, {"weight": weight, "optimizer": {"param_groups": groups}}, every=every)
    if what == "dies last" and ctx.attempt == 2:
        os._exit(1)
    return {"loss": weight, "score": 0.5}
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, {"train": CODE}) as bench:
        yield bench


def ended(bench: Bench, what: str, trial: int, segment: Segment, **changes: Any) -> tuple[TrialOutcome, list[TrialReport]]:
    """An attempt at a segment of a trial, and its reports."""
    params = {"lr": changes.pop("lr", 0.1)}
    request = dataclasses.replace(bench.request(what, **params), trial=trial, segment=segment, **changes)
    return bench.reported(request)


def first(bench: Bench, what: str, trial: int, **changes: Any) -> Parent:
    """The checkpoint of a trial's first segment."""
    outcome, _ = ended(bench, what, trial, Segment(4, ("loss",), folder=4), **changes)
    assert outcome.state is TrialState.PAUSED, outcome.message
    assert outcome.checkpoints is not None
    return Parent(trial, 4, outcome.checkpoints.digest, trial, 4)


def second(parent: Parent) -> Segment:
    return Segment(8, ("loss",), 4, 0, parent, folder=8)


def values(reports: list[TrialReport]) -> dict[int, float]:
    return {report.step: report.metrics["loss"] for report in reports}


def test_a_planted_weight_is_found_in_the_child(bench: Bench) -> None:
    donor = first(bench, "plants", 5)
    first(bench, "saves", 3)
    outcome, reports = ended(bench, "saves", 3, second(donor), attempt=2)
    assert outcome.state is TrialState.PAUSED
    assert values(reports) == {5: 47.0, 6: 48.0, 7: 49.0, 8: 50.0}, "the donor's, trained on"
    assert outcome.checkpoints is not None
    parent = Parent(3, 8, outcome.checkpoints.digest, 9, 8)
    last, rest = ended(bench, "saves", 3, Segment(0, ("loss",), 8, 0, parent), attempt=3)
    assert (last.state, last.metrics["loss"], list(values(rest))) == (TrialState.COMPLETE, 54.0, [9, 10, 11, 12])


def test_a_donor_trains_on_while_others_take_over_its_state(bench: Bench) -> None:
    donor = first(bench, "plants", 5)
    ended(bench, "saves", 5, second(donor), attempt=2)
    for trial in (3, 4):
        _, reports = ended(bench, "saves", trial, second(donor), attempt=2)
        assert values(reports)[5] == 47.0


def test_a_child_that_dies_continues_from_its_own_newer_state(bench: Bench) -> None:
    donor = first(bench, "plants", 5)
    lost, reports = ended(bench, "dies", 3, second(donor), attempt=2)
    assert (lost.failure, list(values(reports))) == (FailureClass.CRASHED, [5, 6])
    again, more = ended(bench, "dies", 3, second(donor), attempt=3)
    assert (again.state, values(more)) == (TrialState.PAUSED, {7: 49.0, 8: 50.0})


def test_a_child_that_dies_after_a_restart_does_not_restart_again(bench: Bench) -> None:
    restart = dataclasses.replace(second(first(bench, "plants", 5)), restart=True)
    _, reports = ended(bench, "dies", 3, restart, attempt=2)
    assert values(reports) == {5: 101.0, 6: 102.0}, "the job was told of the restart"
    again, more = ended(bench, "dies", 3, restart, attempt=3)
    assert (again.state, values(more)) == (TrialState.PAUSED, {7: 103.0, 8: 104.0}), "from its own newer state"


def test_a_missing_checkpoint_of_a_donor_is_a_reported_error(bench: Bench) -> None:
    donor = first(bench, "plants", 5)
    for folder in bench.root.rglob("trial-5-step-4"):
        shutil.rmtree(folder)
    outcome, reports = ended(bench, "saves", 3, second(donor), attempt=2)
    assert (outcome.state, outcome.failure, reports) == (TrialState.FAILED, FailureClass.LOST, [])
    assert "trial 3 was to continue after step 4, and trial 5's checkpoint at " in outcome.message
    assert outcome.message.endswith("trial-5-step-4 is missing")


def test_the_newest_state_of_a_donor_is_taken_or_none(bench: Bench) -> None:
    donor = first(bench, "plants", 5)
    (folder,) = bench.root.rglob("trial-5-step-4")
    assert {path.name for path in folder.iterdir()} == {"step-0000000003", "step-0000000004"}
    file = folder / "step-0000000004" / "state.packed"
    file.write_bytes(bytes(file.stat().st_size))  # the digest is that of names and sizes, which stay
    outcome, reports = ended(bench, "saves", 3, second(donor), attempt=2)
    assert (outcome.state, outcome.failure, reports) == (TrialState.FAILED, FailureClass.LOST, [])
    assert "step-0000000004/state.packed was changed after it was written" in outcome.message


def test_the_last_step_is_always_saved(bench: Bench) -> None:
    donor = first(bench, "plants", 5)
    last = Segment(0, ("loss",), 4, 0, donor, top=12)
    outcome, _ = ended(bench, "rarely", 3, last, attempt=2)
    assert (outcome.state, outcome.metrics["loss"]) == (TrialState.COMPLETE, 54.0)
    (folder,) = bench.root.rglob("trial-3")
    assert [path.name for path in folder.iterdir()] == ["step-0000000012"]


def test_an_attempt_that_dies_after_its_last_step_trains_it_again(bench: Bench) -> None:
    last = Segment(0, ("loss",), 4, 0, first(bench, "plants", 5), top=12)
    lost, _ = ended(bench, "dies last", 3, last, attempt=2)
    assert lost.failure is FailureClass.CRASHED
    again, reports = ended(bench, "dies last", 3, last, attempt=3)
    assert (again.state, again.metrics["loss"]) == (TrialState.COMPLETE, 54.0)
    assert list(values(reports)) == list(range(5, 13))


def test_a_library_may_log_before_the_state_is_read(bench: Bench) -> None:
    donor = first(bench, "plants", 5)
    outcome, reports = ended(bench, "logs", 3, second(donor), attempt=2)
    assert outcome.state is TrialState.PAUSED, outcome.message
    assert {5, 6, 7, 8} <= {report.step for report in reports}
    compared, _ = ended(bench, "logs its loss", 4, second(donor), attempt=2)
    assert (compared.state, compared.failure) == (TrialState.FAILED, FailureClass.INVALID)
    assert "begin with ctx.restored" in compared.message


def test_a_job_that_does_not_read_the_state_fails_before_it_trains_on(bench: Bench) -> None:
    outcome, reports = ended(bench, "forgets", 3, second(first(bench, "plants", 5)), attempt=2)
    assert (outcome.state, outcome.failure, reports) == (TrialState.FAILED, FailureClass.INVALID, [])
    assert "begin with ctx.restored" in outcome.message


def test_an_optimizer_with_the_donors_learning_rate_is_reported(bench: Bench) -> None:
    donor = first(bench, "plants", 5)
    changed_segment = dataclasses.replace(second(donor), changed=True)
    kept, _ = ended(bench, "saves", 3, changed_segment, attempt=2, lr=0.08)
    assert kept.state is TrialState.PAUSED
    assert kept.remark == (
        "the optimizer has lr 0.1 of the trial whose checkpoint was restored, and ctx.params has 0.08: "
        "set param_groups[…]['lr'] and, with a scheduler, ['initial_lr'] and its base_lrs after the state is loaded"
    )
    own, _ = ended(bench, "saves", 5, second(donor), attempt=2, lr=0.08)
    assert (own.state, own.remark) == (TrialState.PAUSED, ""), "another schedule than that of the segment is its own"
    changed, _ = ended(bench, "sets", 4, changed_segment, attempt=2, lr=0.08)
    assert (changed.state, changed.remark) == (TrialState.PAUSED, "")


def test_values_that_a_schedule_has_changed_are_not_reported() -> None:
    params = {"lr": 0.2, "learning_rate": 0.3, "name": "x", "flag": True}
    state = {"model": {"weight": 1}, "optimizer": {"param_groups": [{"lr": 0.1, "flag": True}]}}
    restored = optimizers.values_of_params(state, params)
    assert restored == {("/optimizer", 0, "lr"): 0.1, ("/optimizer", 0, "learning_rate"): 0.1}
    assert "learning_rate" in optimizers.stale_value_message(restored, restored, {"learning_rate": 0.3})
    scheduled = [{"param_groups": [{"lr": lr, "initial_lr": initial}]} for lr, initial in ((0.05, 0.1), (0.04, 0.1))]
    old, new = (optimizers.values_of_params({"optimizer": state}, params) for state in scheduled)
    assert "lr 0.1 of the trial" in optimizers.stale_value_message(old, new, params), "the schedule moves the donor's rate"
    moved = optimizers.values_of_params({"optimizer": {"param_groups": [{"lr": 0.05}]}}, params)
    assert optimizers.stale_value_message(restored, moved, params) == ""
    assert optimizers.stale_value_message(restored, restored, {"lr": 0.1}) == ""


def test_an_optimizer_is_compared_before_its_schedule_and_by_any_of_its_groups() -> None:
    params = {"learning_rate": 0.3, "weight_decay": 0.1}
    groups = [{"lr": 0.01, "initial_lr": 0.3, "weight_decay": 0.1}, {"lr": 0.01, "initial_lr": 0.3, "weight_decay": 0.0}]
    assert optimizers.mismatch_message(groups, params) == ""
    assert "learning_rate 0.3 of the trial" in optimizers.mismatch_message(groups, {**params, "learning_rate": 0.2})
    assert "weight_decay 0.1 of the trial" in optimizers.mismatch_message(groups, {**params, "weight_decay": 0.2})


@pytest.mark.parametrize("restores", [False, True])
def test_a_slot_of_a_study_with_rungs_imports_once_what_each_segment_needs(tmp_path: Path, restores: bool) -> None:
    with Bench(tmp_path, {"train": CODE}, restores=restores) as bench:
        outcome = bench.outcome("looks")
    assert (outcome.start_method, outcome.metrics["score"]) == ("fork", float(restores))
