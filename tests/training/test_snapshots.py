"""Snapshots: kept within a budget, whole or absent, loaded by transformers, and compared by numbers that can be foretold.

Not checked: how a training uses them (tests/jobs/test_finetune.py).
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from trialplane import errors
from trialplane.training import snapshots
from trialplane.training.snapshots import Snapshot, Snapshots, report


class Model(nn.Module):
    """Two numbered layers and one that is tied to another."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 4)
        self.h = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 3, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("places", torch.arange(3))


def listed(steps: list[int], size: int = 10) -> list[Snapshot]:
    return [Snapshot(step, f"step-{step:010d}", "", size, {}) for step in steps]


def at_the_end(steps: list[int], keep: int, max_bytes: int | None = None) -> list[int]:
    """The steps that are left when snapshots were taken at `steps`, one after the other."""
    there: list[Snapshot] = []
    for one in listed(steps):
        there.append(one)
        gone = snapshots.surplus_snapshots(there, keep, max_bytes)
        there = [other for other in there if other not in gone]
    return [one.step for one in there]


# -- which stay


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200, unique=True), st.integers(2, 9))
def test_the_first_the_last_and_no_more_than_the_budget(steps: list[int], keep: int) -> None:
    steps = [0, *sorted(steps)]
    left = at_the_end(steps, keep)
    assert (left[0], left[-1]) == (0, steps[-1])
    assert len(left) == min(keep, len(steps))
    assert at_the_end(steps, 1000, max_bytes=10 * keep) == left
    assert left == sorted(set(left))


def test_steps_that_stay_lie_like_a_geometric_series() -> None:
    left = at_the_end(list(range(0, 10_001, 10)), 8)
    gaps = [math.log1p(after) - math.log1p(before) for before, after in itertools.pairwise(left)]
    assert len(left) == 8
    assert max(gaps[1:]) < 3 * min(gaps[1:]), left  # the first gap is given: 0 to 10 or so


def test_when_one_is_due() -> None:
    due = [step for step in range(11) if snapshots.is_due(step, 10, every=4, steps=(1, 9))]
    assert due == [0, 1, 4, 8, 9, 10]
    assert [step for step in range(11) if snapshots.is_due(step, 10)] == [0, 10]


@pytest.mark.parametrize("wrong", [{"keep": 1}, {"max_bytes": 0}])
def test_a_budget_that_keeps_nothing_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(errors.InputError, match="keep is at least 2"):
        Snapshots(tmp_path, **wrong)  # type: ignore[arg-type]


# -- files


def test_what_is_saved_is_what_the_model_was(tmp_path: Path) -> None:
    model, kept = Model(), Snapshots(tmp_path / "snapshots", keep=3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    saved = kept.save(0, model, {"loss": torch.tensor(1.5)})  # type: ignore[dict-item]
    with torch.no_grad():
        model.h[0].weight.zero_()  # type: ignore[union-attr]
    assert kept.all() == [saved]
    assert saved.metrics == {"loss": 1.5}
    assert saved.size == (Path(saved.location) / "model.safetensors").stat().st_size
    written = load_file(Path(saved.location) / "model.safetensors")
    assert "head.weight" not in written, "tied weights are written once"
    assert all(torch.equal(written[name], before[name]) for name in written)


def test_a_step_that_is_made_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    model, kept = Model(), Snapshots(tmp_path, keep=3)
    for loss in (1.0, 2.0):
        kept.save(5, model, {"loss": loss})
    assert [(one.step, one.metrics["loss"]) for one in kept.all()] == [(5, 2.0)]
    for step in (6, 7, 8, 9):
        kept.save(step, model, {})
    assert len(list(tmp_path.iterdir())) == 3
    assert [one.step for one in kept.all()][::2] == [5, 9]


def test_half_a_snapshot_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, kept = Model(), Snapshots(tmp_path)
    kept.save(0, model, {})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(kept._store, "publish", full)
        with pytest.raises(
            errors.CheckpointError, match=r"snapshot of step 1 could not be written .*No space left.*keep fewer"
        ):
            kept.save(1, model, {})
    assert [one.step for one in kept.all()] == [0]
    kept.save(2, model, {})
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-0000000000", "step-0000000002"]


def test_a_url_is_a_place_too() -> None:
    model, place = Model(), "memory://evolution/snapshots"
    kept = Snapshots(place, keep=2)
    for step in (0, 1, 2):
        kept.save(step, model, {"loss": step})
    assert [one.step for one in kept.all()] == [0, 2]
    assert [row.from_start for row in report.compare(place)] == [0.0, 0.0]


# -- comparing


@pytest.fixture
def evolved(tmp_path: Path) -> Path:
    """Three snapshots: as begun; the second layer moved by 2; then by 2 more in another direction."""
    torch.manual_seed(0)
    model, kept = Model(), Snapshots(tmp_path / "snapshots")
    kept.save(0, model, {"loss": 3.0, "accuracy": 0.25})
    with torch.no_grad():
        model.h[1].weight[0, 0] += 2.0  # type: ignore[index,operator]
        kept.save(10, model, {"loss": 2.0, "accuracy": 0.5})
        model.h[1].weight[0, 1] += 2.0  # type: ignore[index,operator]
        kept.save(40, model, {"loss": 1.0})
    return tmp_path / "snapshots"


def test_distances_are_those_of_the_weights(evolved: Path) -> None:
    rows = report.compare(evolved)
    assert [row.step for row in rows] == [0, 10, 40]
    assert [row.from_start for row in rows] == pytest.approx([0, 2, math.sqrt(8)], rel=1e-6)
    assert [row.from_previous for row in rows] == pytest.approx([0, 2, 2], rel=1e-6)
    first = load_file(evolved / "step-0000000000" / "model.safetensors")
    whole = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in first.values() if tensor.is_floating_point()))
    layer = math.sqrt(sum(float(first[f"h.1.{name}"].double().square().sum()) for name in ("weight", "bias")))
    assert rows[1].relative == pytest.approx(2 / whole, rel=1e-6)
    assert rows[1].layers == pytest.approx({"h.0": 0, "h.1": 2 / layer, "table": 0}, rel=1e-6)


def test_the_report_needs_no_torch() -> None:
    program = "import sys, trialplane.training.snapshots.report; print({'torch', 'numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_report_is_printed_and_written(evolved: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trialplane.training.snapshots"]
    printed = subprocess.run([*command, str(evolved)], capture_output=True, text=True, check=True).stdout
    assert "| step | loss | accuracy | from start | relative | from previous | MiB |" in printed
    assert "\n| 10 | 2 | 0.5 | 2 |" in printed
    assert "\n| h.1 | 0 |" in printed
    assert report.main([str(evolved), "--to", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "snapshots.md").read_text() == printed
    (_, second, third) = csv.DictReader(io.StringIO((tmp_path / "out" / "snapshots.csv").read_text()))
    assert (second["step"], second["loss"], second["accuracy"]) == ("10", "2.0", "0.5")
    assert float(second["from_start"]) == pytest.approx(2)
    assert (third["accuracy"], third["layer:table"]) == ("", "0.0")


def test_a_place_without_snapshots_and_one_of_two_models_are_refused(
    evolved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report.main([str(tmp_path)]) == 2
    assert f"there are no snapshots in {tmp_path}" in capsys.readouterr().err
    Snapshots(evolved).save(50, nn.Linear(2, 2), {})
    with pytest.raises(errors.InputError, match="step-0000000050 has other weights than the first snapshot"):
        report.compare(evolved)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("transformer.h.11.attn.c_attn.weight", "transformer.h.11"),
        ("bert.encoder.layer.0.output.dense.bias", "bert.encoder.layer.0"),
        ("transformer.wte.weight", "transformer.wte"),
        ("score", "score"),
    ],
)
def test_layers(name: str, layer: str) -> None:
    assert report.layer_of(name) == layer
