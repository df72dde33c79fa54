"""More than can be recorded or read: what the job names stays exact, and what was not read is told."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as given
from tests.worker.metrics.conftest import STDOUT, Trial

from trialplane.job.program import MetricSource
from trialplane.wire.records import StopRule
from trialplane.worker.metrics import burst, lines, reader, tails
from trialplane.worker.metrics.steps import Report

NOISE = "working on something that has no number worth a word\n"


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends before any of its output is read, and a last read that has no time for more than the end."""
    monkeypatch.setattr(reader, "END", 0.0)


def test_a_flood_is_thinned_evenly(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("".join(f"step {step} acc={step}\n" for step in range(30_000)))
    steps = [step for step, _ in trial.read(ended=True)]
    assert len(steps) == burst.MOST and steps[-1] == 29_999
    assert trial.reader.newest == {"acc": 29_999.0}


def test_names_without_an_end_are_bounded(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("".join(f"m{index}=1\n" for index in range(2 * reader.MOST_NAMES)))
    trial.read(ended=True)
    assert len(trial.reader.newest) == reader.MOST_NAMES


def test_the_best_and_the_worst_of_a_burst_stay(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    values = {3_001: 0.125, 7_003: 0.875}
    trial.prints("".join(f"step {step} acc={values.get(step, 0.5)} loss={step}\n" for step in range(10_000)))
    made = trial.read(ended=True)
    assert len(made) == burst.MOST
    assert [(step, metrics["acc"]) for step, metrics in made if metrics["acc"] != 0.5] == list(values.items())


def test_a_stop_rule_sees_each_report_of_a_burst(tmp_path: Path) -> None:
    """Neither the best nor the first: the first one after step 5,000."""
    rule = StopRule("acc", above=0.8, after=5_000)
    trial = Trial(tmp_path, STDOUT, stop=(rule,))
    values = {11: 0.95, 5_003: 0.875, 5_004: 0.875, 8_000: 0.9}
    trial.prints("".join(f"step {step} acc={values.get(step, 0.5)}\n" for step in range(10_000)))
    above = [step for step, metrics in trial.read(ended=True) if metrics["acc"] > 0.8]
    assert 5_003 in above and above[0] == 11


@hypothesis.given(values=given.lists(given.integers(-9, 9), min_size=1, max_size=120), most=given.integers(4, 40))
def test_thinning_keeps_the_first_minimum_the_first_maximum_and_the_last(values: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burst, "MOST", most)
        made = burst.Burst[str](("a",), lambda report: report[1]["a"] == 7)
        for step, value in enumerate(values):
            made.add("of", Report(step, {"a": float(value)}))
        steps = [step for _, (step, _) in made.reports()]
    assert steps == sorted(set(steps)) and len(steps) == min(len(values), most)
    assert {values.index(min(values)), values.index(max(values)), len(values) - 1} <= {*steps}
    assert 7 not in values or values.index(7) in steps


def test_the_objective_is_seen_after_ten_thousand_other_names(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("".join(f"m{index}=1\n" for index in range(10_001)) + "acc=0.5\nmore=3\n")
    trial.read(ended=True)
    assert trial.reader.newest["acc"] == 0.5 and "more" not in trial.reader.newest
    assert len(trial.reader.newest) == reader.MOST_NAMES + 1


@pytest.mark.usefixtures("no_time")
def test_half_a_name_is_no_metric(tmp_path: Path) -> None:
    """Where a part is left out, reading goes on behind the line in which it begins."""
    trial = Trial(tmp_path, STDOUT, names=("loss",))
    cut, line = NOISE * 3, "val_loss=7\n"
    trial.prints(cut + line)
    trial.prints("x" * (tails.LAST - len("loss=7\n") - 1) + "\n")
    trial.read(ended=True)
    assert "loss" not in trial.reader.newest


@pytest.mark.parametrize("size", range(lines.LONGEST_LINE, lines.LONGEST_LINE + 23, 3))
def test_half_a_name_in_a_long_line_is_no_metric(tmp_path: Path, size: int) -> None:
    """Of a long line the end counts."""
    end = "val_loss=7 train loss=3" + " " * (size - 23)
    for before in ("y" * 30 + " ", "y " * 80_000):  # one that is cut by the parser, and one that no buffer holds
        (root := tmp_path / str(len(before))).mkdir()
        trial = Trial(root, STDOUT, names=("loss",))
        trial.prints(before + end + "\n")
        trial.read(ended=True)
        assert "loss" not in trial.reader.newest


@pytest.mark.usefixtures("no_time")
@pytest.mark.parametrize("form", ["acc=0.25", "Acc is 0.25", "step 7: acc 0.25"])
def test_what_the_job_names_is_searched_for_from_the_end_on(tmp_path: Path, form: str) -> None:
    trial = Trial(tmp_path, STDOUT, names=("acc", "f1"))
    noise = NOISE * (tails.LAST // len(NOISE) + 1)
    trial.prints(f"acc=0.5\nf1=1\n{noise}{form}\nother=3\n{noise}f1=0.5\n")
    made = trial.read(ended=True)
    assert trial.reader.newest == {"acc": 0.25, "f1": 0.5}
    assert [metrics["acc"] for _, metrics in made if "acc" in metrics] == [0.25]
    assert trial.reader.remarks == [
        "4.0 MiB of its output were not searched for metrics but for the last acc and f1, as there was more than 0 s can "
        "read; print less, or report the metrics with trialplane.report"
    ]


@pytest.mark.usefixtures("no_time")
def test_a_message_does_not_deny_what_was_not_read(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("accuracy=0.5\n" + NOISE * (2 * tails.LAST // len(NOISE)))
    trial.read(ended=True)
    said = trial.reader.missing_message(("acc",), {})
    assert "no metrics were found in what was read" in said and "MiB of its output were not searched for metrics" in said


@pytest.mark.usefixtures("no_time")
def test_rows_are_searched_for_by_the_header_that_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "LAST", 1 << 16)
    trial = Trial(tmp_path, MetricSource("file", path="m.csv"))
    (trial.folder / "m.csv").write_text("step,loss,acc\n0,1,\n")
    trial.read()
    with (trial.folder / "m.csv").open("a") as file:
        file.write("1,0.5,0.75\n" + "2,0.25,\n" * (2 * tails.LAST // 8))
    trial.read(ended=True)
    assert trial.reader.newest == {"acc": 0.75, "loss": 0.25}


def test_all_of_a_long_output_is_read_where_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "END", 600.0)  # however busy the machine is
    trial = Trial(tmp_path, STDOUT)
    trial.prints("acc=0.9\nacc=0.5\n" + NOISE * (2 * tails.LAST // len(NOISE)))
    assert trial.read(ended=True) == [(0, {"acc": 0.9}), (1, {"acc": 0.5})]
    assert trial.reader.remarks == []


@pytest.mark.usefixtures("no_time")
def test_an_event_file_is_not_read_from_its_middle(tmp_path: Path) -> None:
    trial = Trial(tmp_path, MetricSource("tensorboard"))
    (trial.folder / "events.out.tfevents.1").write_bytes(b"\x07" * 2_000)
    assert trial.read(ended=True) == []
    assert "MiB of events.out.tfevents.1 were not searched" in trial.reader.remarks[0]
