"""Several sources of one trial: by which of them a metric counts, and under which steps.

Not checked here: what one source makes of what it reads (test_reader.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.worker.metrics.conftest import STDOUT, Trial

from trialplane.job.program import MetricSource
from trialplane.worker.metrics import reader

ROWS = MetricSource("file", path="m.csv")


def test_a_metric_of_two_sources_counts_by_the_first_of_them(tmp_path: Path) -> None:
    """The other prints the same values, counted from 0, and a metric of its own."""
    trial = Trial(tmp_path, ROWS, STDOUT)
    (trial.folder / "m.csv").write_text("step,acc\n10,0.5\n20,0.6\n")
    trial.prints("acc=0.5 lr=3\nacc=0.6 lr=2\n")
    made = trial.read(ended=True)
    assert made == [(10, {"acc": 0.5}), (20, {"acc": 0.6}), (0, {"lr": 3.0}), (1, {"lr": 2.0})]
    assert trial.reader.newest == {"acc": 0.6, "lr": 2.0}


@pytest.mark.parametrize("sources", [(ROWS, STDOUT), (STDOUT, ROWS)])
def test_of_two_sources_the_one_that_comes_long_before_the_other_counts(
    tmp_path: Path, sources: tuple[MetricSource, ...]
) -> None:
    trial = Trial(tmp_path, *sources)
    trial.prints("acc=0.5\n")
    made = [report for _ in range(4) for report in trial.read()]
    (trial.folder / "m.csv").write_text("step,acc\n10,0.5\n20,0.6\n")
    trial.prints("acc=0.6\n")
    assert made + trial.read(ended=True) == [(0, {"acc": 0.5}), (1, {"acc": 0.6})]
    assert trial.reader.newest == {"acc": 0.6}


@pytest.mark.parametrize("sources", [(ROWS, STDOUT), (STDOUT, ROWS)])
def test_of_two_sources_at_about_the_same_time_the_one_that_is_listed_first_counts(
    tmp_path: Path, sources: tuple[MetricSource, ...]
) -> None:
    """However they are read: together, or a little after each other."""
    steps = []
    for name, late in (("together", False), ("apart", True)):
        (root := tmp_path / name).mkdir()
        trial = Trial(root, *sources)
        trial.prints("acc=0.5\n")
        made = trial.reader.read(1.0) if late else []
        (trial.folder / "m.csv").write_text("step,acc\n10,0.5\n")
        made += trial.reader.read(1.0 + reader.LOOK_INTERVAL)
        trial.prints("acc=0.6\n")
        with (trial.folder / "m.csv").open("a") as file:
            file.write("20,0.6\n")
        made += trial.reader.read(1.5 + reader.LOOK_INTERVAL)
        made += trial.reader.read(9.0, ended=True)
        assert [values for _, values in made] == [{"acc": 0.5}, {"acc": 0.6}]
        steps.append([step for step, _ in made])
    assert steps[0] == steps[1] == ([10, 20] if sources[0] == ROWS else [0, 1])


HISTORY = {"loss": [0.9, 0.7], "acc": [0.5, 0.6], "layers": [8, 4, 2], "seconds": 3, "test": {"f2": 0.8}}


@pytest.mark.parametrize("text", [json.dumps(HISTORY), json.dumps(HISTORY, indent=2), json.dumps(HISTORY) + "\n"])
def test_a_history_in_a_file_has_the_metrics_of_each_step(tmp_path: Path, text: str) -> None:
    """In an output, whose lines had them before, it adds no steps. Other lists may be those of classes or batches."""
    trial = Trial(tmp_path, MetricSource("file", path="*.json"), STDOUT)
    (trial.folder / "classes.json").write_text(text.replace("loss", "f1"))
    (trial.folder / "batches.json").write_text(text.replace('"layers"', '"epoch": 0, "layers"'))
    trial.prints(text.replace("acc", "f1"))
    assert {name for _, metrics in trial.read(ended=True) for name in metrics} == {"seconds", "test.f2"}
    (trial.folder / "history.json").write_text(text)
    made = trial.read(ended=True)
    assert made == [(0, {"loss": 0.9, "acc": 0.5}), (1, {"loss": 0.7, "acc": 0.6, "seconds": 3.0, "test.f2": 0.8})]


def test_the_steps_of_one_file_do_not_shift_those_of_another(tmp_path: Path) -> None:
    trial = Trial(tmp_path, MetricSource("file", path="*.csv"))
    (trial.folder / "train.csv").write_text("epoch,loss\n1,3\n2,2\n3,1\n")
    (trial.folder / "valid.csv").write_text("epoch,acc\n1,0.5\n2,0.6\n3,0.7\n")
    made = trial.read(ended=True)
    assert [step for step, metrics in made if "acc" in metrics] == [1, 2, 3]


def test_what_a_script_reports_itself_is_dropped_from_all_sources(tmp_path: Path) -> None:
    trial = Trial(tmp_path, ROWS, STDOUT)
    trial.reader.leave_out(["acc"])
    (trial.folder / "m.csv").write_text("step,acc\n10,0.5\n")
    trial.prints("acc=0.5\n")
    assert trial.read(ended=True) == []


HEADER = "epoch,batch,train_loss,val_loss\n"
EPOCHS = "0,0,5,\n0,1,4,3\n1,0,2.5,\n1,1,2,1\n"


@pytest.mark.parametrize(
    ("text", "values", "is_noted"),
    [
        (HEADER + EPOCHS + "1,1,2,9\n", [3, 1], True),
        ("epoch,lr,val_loss\n0,1,8\n1,1,7\n1,1,6\n2,1,5\n2,1,4\n", [8, 7, 6, 5, 4], False),  # later rows follow a copy
        (HEADER + EPOCHS + "1,1,1.5,9\n", [3, 1, 9], False),  # it is no copy of the row before
        ("epoch,lr,val_loss\n1,0.1,4\n1,0.1,3\n2,0.1,2\n2,0.1,1\n", [4, 3, 2, 1], False),  # each batch
        ("epoch,step,train_loss,val_loss\n0,9,4,\n0,9,,3\n1,19,2,\n1,19,,1\n", [3, 1], False),  # Lightning's
        ("epoch,val_loss\n1,3\n2,2\n2,1\n", [3, 2, 1], False),  # nothing says that it is a copy
    ],
)
def test_a_copy_of_the_last_row_with_another_value_is_left_out_and_noted(
    tmp_path: Path, text: str, values: list[float], is_noted: bool
) -> None:
    """As of a program that appends its test loss to the column of the validation loss, and writes the file anew."""
    trial = Trial(tmp_path, ROWS, names=("val_loss",))
    file, made = trial.folder / "m.csv", []
    file.write_text(text[: text.rstrip().rfind("\n") + 1])
    made += trial.read()
    file.write_text("")
    made += trial.read()
    file.write_text(text)
    made += trial.read(ended=True)
    assert [report.metrics["val_loss"] for report in made if "val_loss" in report.metrics] == values
    assert trial.reader.newest["val_loss"] == values[-1]
    assert any("val_loss: 9 at the end of m.csv is not read" in remark for remark in trial.reader.remarks) == is_noted
