"""Checkpoints of one process: what comes back, what is kept, and what does not fit and is refused.

Not checked here: damage and full disks (test_checkpoint_failures.py), ranks (test_checkpoint_ranks.py), processes that are
killed (test_checkpoint_crashes.py); how long a save stops a step (tests/benchmarks).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training import trainings
from tests.training.trainings import Training, names, saved, small, steps

from trialplane import errors
from trialplane.training import checkpoint
from trialplane.training.checkpoint import Checkpoints, tensors
from trialplane.training.steps import folders, record, stores


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "run" / "trial-0") if request.param == "folder" else trainings.bucket()


def test_a_resumed_training_does_what_an_undisturbed_one_does(place: str) -> None:
    undisturbed = Training()
    checkpoint.reseed(7, rank=0, step=0)
    expected = undisturbed.run(30)

    first = Training()
    checkpoint.reseed(7, rank=0, step=0)
    seen = first.run(13)
    with Checkpoints(place) as checkpoints:
        checkpoints.save(13, first.state(), rank_state={"rng": checkpoint.rng_state()})

    second = Training()
    checkpoint.reseed(99, rank=0, step=0)
    found = Checkpoints(place).resume(like=second.model)
    assert found is not None
    second.take(found)
    assert seen + second.run(30) == expected
    for ours, theirs in zip(second.model.parameters(), undisturbed.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_nothing_is_found_where_nothing_was_saved(place: str) -> None:
    assert Checkpoints(place).newest() is None
    assert Checkpoints(place).resume() is None


def test_another_runs_checkpoints_are_taken_when_there_are_none_here(tmp_path: Path) -> None:
    saved(tmp_path / "old", 5)
    here = Checkpoints(tmp_path / "new")
    with pytest.raises(errors.CheckpointError, match=r"no checkpoint at .*/typo to continue from"):
        here.resume(otherwise=tmp_path / "typo")
    found = here.resume(otherwise=tmp_path / "old")
    assert found is not None
    assert found.step == 5
    saved(tmp_path / "new", 2)
    assert getattr(here.resume(otherwise=tmp_path / "old"), "step", None) == 2


def test_what_is_known_without_the_tensors(place: str) -> None:
    checkpoints = Checkpoints(place, background=False)
    checkpoints.save(1200, small(), metric=0.5, meta={"run": "cnm"}, rank_state={"a": 1})
    newest = checkpoints.newest()
    assert newest is not None
    assert (newest.step, newest.metric, newest.meta, newest.world_size) == (1200, 0.5, {"run": "cnm"}, 1)
    assert newest.location == f"{place}/step-0000001200"
    assert newest.size == sum(part.size for part in newest.parts.values()) > 0
    state, own = checkpoints.load(newest)
    assert state["note"] == "x"
    assert own == {"a": 1}


class Blocked:
    """A store whose first file cannot be written before `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        create = stores.FolderStore.create

        @contextlib.contextmanager
        def blocked(store: Any, name: str, file: str) -> Iterator[Any]:
            with create(store, name, file) as sink:
                self.begun.set()
                assert self.go.wait(60)
                yield sink

        monkeypatch.setattr(stores.FolderStore, "create", blocked)


def test_a_save_returns_before_anything_is_written_and_keeps_the_values_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Blocked(monkeypatch)
    weight = torch.ones(1000)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"model": {"weight": weight}, "list": [weight]})
        weight.zero_()
        assert disk.begun.wait(60)
        assert checkpoints.newest() is None
        disk.go.set()
        checkpoints.wait()
        newest = checkpoints.newest()
        assert newest is not None
        state, _ = checkpoints.load(newest)
        assert state["model"]["weight"].sum() == state["list"][0].sum() == 1000
        checkpoints.save(2, {"model": {"weight": weight}, "list": []})  # into the same memory
    state, _ = checkpoints.load(checkpoints.all()[-1])
    assert state["model"]["weight"].sum() == 0


def test_a_copy_waits_for_every_gpu_that_tensors_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the current one alone: what another still copies would be written half."""
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)

    class OnGpus(tensors.Copier):
        def _copy_value(self, value: Any, path: str) -> Any:
            self._copied[(torch.device(value), path)] = torch.empty(0)

    OnGpus().copy({"weight": "cuda:1", "bias": "cuda:1", "other": "cuda:2", "step": "cpu"}, "state")
    assert sorted(map(str, waited)) == ["cuda:1", "cuda:2"]


def test_tied_weights_stay_tied_and_views_are_cut_out(tmp_path: Path) -> None:
    weight = torch.zeros(50_000)
    checkpoints = Checkpoints(tmp_path, background=False)
    checkpoints.save(1, {"model": {"embed": weight, "head": weight.detach(), "row": torch.zeros(900_000)[:10]}})
    newest = checkpoints.newest()
    assert newest is not None
    assert 200_000 < newest.size < 300_000
    state, _ = checkpoints.load(newest)
    assert state["model"]["embed"].data_ptr() == state["model"]["head"].data_ptr()


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        ({}, [8, 9]),
        ({"keep_last": 1}, [9]),
        ({"keep_last": 1, "keep_every": 4}, [0, 4, 8, 9]),
        ({"keep_last": 1, "keep_best": 2}, [3, 6, 9]),
        ({"keep_last": 1, "keep_best": 2, "direction": "maximize"}, [0, 1, 9]),
        ({"keep_last": 99}, list(range(10))),
    ],
)
def test_what_no_rule_keeps_is_deleted(place: str, rules: dict[str, Any], kept: list[int]) -> None:
    metrics = [9.0, 8.0, 5.0, 1.0, 5.0, float("nan"), 1.0, 7.0, None, 6.0]
    checkpoints = Checkpoints(place, background=False, **rules)
    for step, metric in enumerate(metrics):
        checkpoints.save(step, small(step), metric=metric)
    assert steps(checkpoints) == kept
    assert len(checkpoints._store.complete()) == len(kept)


@pytest.mark.parametrize("rules", [{"keep_last": 0}, {"keep_best": -1}, {"keep_every": 0}])
def test_rules_that_keep_nothing_are_refused(tmp_path: Path, rules: dict[str, Any]) -> None:
    with pytest.raises(errors.InputError, match="keep_last and keep_every are at least 1"):
        Checkpoints(tmp_path, **rules)


def test_a_step_that_is_saved_again_is_replaced(place: str) -> None:
    checkpoints = saved(place, 5, 7)
    checkpoints.save(7, small(70))
    assert steps(checkpoints) == [5, 7]
    state, _ = checkpoints.load(checkpoints.all()[-1])
    assert state["model"]["bias"][0] == 70


def test_what_a_crash_left_is_swept_away_by_the_next_save(tmp_path: Path) -> None:
    (tmp_path / ".step-0000000003.saving").mkdir(parents=True)
    (tmp_path / ".step-0000000003.saving" / "state.pt").write_bytes(b"half")
    (tmp_path / ".step-0000000001.deleted").mkdir()
    (tmp_path / "notes.txt").write_text("the user's own")
    saved(tmp_path, 4)
    assert names(tmp_path) == ["notes.txt", "step-0000000004"]


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(tmp_path: Path) -> None:
    training = Training()
    checkpoints = Checkpoints(tmp_path, background=False)
    checkpoints.save(1, training.state())
    with pytest.raises(errors.CheckpointMismatch, match=r"0\.weight is 5×6 in the checkpoint and 9×6 in this model"):
        checkpoints.resume(like=Training(width=9).model)
    with pytest.raises(errors.CheckpointMismatch, match=r"0\.bias, 0\.weight, 2\.bias and 1 more are only in the"):
        checkpoints.resume(like={"other": torch.zeros(1)})
    assert checkpoints.resume(like=Training().model) is not None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.float64(1.0), r'state\["state.pt"\]\[\'optimizer\'\]\[0\] is a numpy.float64.*\.item\(\)'),
        (np.zeros(3), "is a numpy.ndarray.*torch.from_numpy"),
        (Training, "is a builtins.type"),
        (torch.zeros(3).to_sparse(), "a Tensor of layout torch.sparse_coo"),
        (torch.zeros(3, device="meta"), "on the meta device"),
    ],
)
def test_what_a_safe_load_would_refuse_is_refused_when_it_is_saved(tmp_path: Path, value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Checkpoints(tmp_path).save(1, {"optimizer": [value]})
    assert not list(tmp_path.iterdir())


class Code:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def test_loading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints = saved(tmp_path, 1)
    torch.save({"model": Code()}, tmp_path / "step-0000000001" / "state.pt")
    with pytest.raises(errors.CheckpointDamaged, match="cannot be read"):
        checkpoints.load(checkpoints.all()[0], verify=False)
    assert not (tmp_path / "harm").exists()


def test_a_url_that_nothing_can_open_is_refused() -> None:
    with pytest.raises(errors.InputError, match="checkpoints cannot be kept at nowhere://x: Protocol not known"):
        Checkpoints("nowhere://x")


def test_a_record_survives_a_moved_folder(tmp_path: Path) -> None:
    saved(tmp_path / "a", 1)
    shutil.move(tmp_path / "a", tmp_path / "b")
    (found,) = Checkpoints(tmp_path / "b").all()
    assert found.location == str(tmp_path / "b" / "step-0000000001")
    assert record.unused_name(1, ["step-0000000001", "step-0000000001.4"]) == "step-0000000001.5"


def test_all_checkpoints_of_a_trial_are_removed_and_of_no_other(place: str) -> None:
    for trial in (place, f"{place}1"):
        saved(trial, 1)
    folders.remove_all(place)
    folders.remove_all(place)  # twice does nothing
    assert steps(Checkpoints(place)) == [] and steps(Checkpoints(f"{place}1")) == [1]


def test_checkpoints_that_cannot_be_removed_are_named(tmp_path: Path) -> None:
    (tmp_path / "trial-0").write_text("a file")
    with pytest.raises(errors.CheckpointError, match="trial-0 cannot be removed"):
        folders.remove_all(str(tmp_path / "trial-0"))


def test_a_link_to_elsewhere_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "trial-0").symlink_to(tmp_path / "elsewhere")
    folders.remove_all(str(tmp_path / "trial-0"))
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_a_file_that_cannot_be_copied_is_told_and_the_others_are_copied(tmp_path: Path) -> None:
    work, place = tmp_path / "work", tmp_path / "trial-0"
    work.mkdir()
    for name in ("a.pt", "b.pt"):
        (work / name).write_text(name)
    (place / "files" / "a.pt").mkdir(parents=True)
    assert folders.put_files(str(place), work, ["*.pt"]) == ((), {"a.pt": "Is a directory"})
    assert names(f"{place}/files") == ["a.pt", "b.pt"]


def test_files_are_put_beside_checkpoints(place: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True)
    for name in ("model.pt", "out/a.pt", "out/log.txt"):
        (work / name).write_text(name)
    saved(place, 1)
    unkept = folders.put_files(place, work, ["model.pt", "out/*.pt", "none*", ""])
    assert unkept.unmatched == ("none*",) and list(unkept.failed) == [""]
    assert names(f"{place}/files") == ["model.pt", "out"] and names(f"{place}/files/out") == ["a.pt"]
    assert steps(Checkpoints(place)) == [1], "they are not checkpoint"
    folders.remove_all(place)
    assert steps(Checkpoints(place)) == []
