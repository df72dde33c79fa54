"""What a user is told when a metric of the job is missing: what was found instead, and where."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
import tensorboardX
from tests.worker.metrics.conftest import STDOUT, Trial

from trialplane.job.program import MetricSource
from trialplane.worker.metrics import elsewhere
from trialplane.worker.metrics.names import similar_name


def test_what_is_missing_is_told_with_what_was_found(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT, MetricSource("file", path="m.csv"))
    assert (
        trial.reader.missing_message(("acc",), {})
        == "no acc in its output or m.csv; no metrics were found; see `platform docs scripts`"
    )
    trial.prints("loss=0.5\n")
    trial.read(ended=True)
    assert trial.reader.missing_message(("acc",), {}) == (
        "no acc in its output or m.csv; found were loss (0.5): name one of these, or write metrics.pattern; "
        "see `platform docs scripts`"
    )


def test_losses_and_scores_that_are_read_only_by_their_names_are_told(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("Train: [1][10/20] loss 1.6 (1.1) lr 0.5\nTop5 accuracy 0.5\nmem: 3\n")
    trial.read(ended=True)
    said = trial.reader.missing_message(("f1",), {})
    assert "found were train_loss (1.1), accuracy (0.5), mem (3): name one of these" in said


@pytest.mark.parametrize(
    ("name", "metrics", "similar"),
    [
        ("mAP_0.5", ("metrics/mAP_0.5", "metrics/mAP_0.5_0.95"), "metrics/mAP_0.5"),
        ("val_loss", ("a/val_loss", "Loss/validation"), "Loss/validation"),
        ("acc1", ("Acc_1", "Acc_5"), "Acc_1"),
        ("loss", ("a/loss", "b/loss"), ""),
        ("loss", ("train/loss",), ""),
        ("loss", ("train-loss", "test-loss"), "test-loss"),
        ("loss", ("val_loss", "test_loss"), ""),
        ("auc", ("training_auc", "valid_1_AUC"), "valid_1_AUC"),
        ("loss", ("aux-loss",), ""),
    ],
)
def test_one_metric_with_the_words_of_a_name_or_behind_a_slash_is_similar(
    name: str, metrics: tuple[str, ...], similar: str
) -> None:
    assert similar_name(name, metrics) == similar


def test_what_was_reported_is_told_too(tmp_path: Path) -> None:
    said = Trial(tmp_path, STDOUT).reader.missing_message(("loss",), {"accuracy": 0.5})
    assert "found were accuracy (0.5): name one of these" in said


def test_of_many_metrics_that_were_found_the_first_are_told(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints(" ".join(f"m{number}={number}" for number in range(30)) + "\n")
    trial.read(ended=True)
    assert "m9 (9) and 20 more: name one of these" in trial.reader.missing_message(("acc",), {})


def test_a_number_that_is_none_is_not_called_missing(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT, names=("acc", "loss"))
    trial.prints("acc=0.5 loss=inf\nacc=nan\n")
    trial.read(ended=True)
    assert trial.reader.missing_message(("acc", "loss"), trial.reader.newest) == (
        "acc is NaN at the end, and must be a finite number; before it was 0.5; "
        "loss is infinite at the end, and must be a finite number"
    )
    assert trial.reader.missing_message(("acc",), {"acc": math.nan}).startswith("acc is NaN at the end"), (
        "reported by the script"
    )


def test_event_files_that_have_the_metric_are_named_with_what_reads_them(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = tensorboardX.SummaryWriter(str(trial.folder / "runs" / "a"))
    writer.add_scalar("acc", 0.75, 1)
    writer.add_scalar("loss", 0.5, 1)
    writer.close()
    (trial.folder / "notes.txt").write_text("f1: 0.5\n")
    trial.read(ended=True)
    said = trial.reader.missing_message(("acc",), {})
    assert said.startswith("no acc in its output; runs/a/events.out.tfevents.")
    advice = "write `metrics: [stdout, tensorboard]`, or submit with `--set 'metrics=[stdout, tensorboard]'`"
    assert said.endswith(f" has acc (0.75): {advice}; no metrics were found; see `platform docs scripts`")
    with_its_words = trial.reader.missing_message(("accuracy",), {})
    assert f" has acc (0.75): {advice}, and name acc; no metrics" in with_its_words
    only_one_exactly = trial.reader.missing_message(("loss", "accuracy"), {})
    assert f" has loss (0.5), acc (0.75): {advice}, and name acc; no metrics" in only_one_exactly


def test_event_files_that_are_read_late_are_named_if_there_are_any(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "without", STDOUT, late=(MetricSource("tensorboard"),))
    trial.read(ended=True)
    assert trial.reader.missing_message(("acc",), {}).startswith("no acc in its output; no metrics")
    trial = Trial(tmp_path / "with", STDOUT, late=(MetricSource("tensorboard"),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = tensorboardX.SummaryWriter(str(trial.folder / "runs"))
    writer.add_scalar("loss", 0.5, 1)
    writer.close()
    trial.read(ended=True)
    said = trial.reader.missing_message(("acc",), {})
    assert said.startswith("no acc in its output or its TensorBoard files; found were loss (0.5): name one of these")


def test_files_of_wandb_are_named_with_what_captures_its_calls(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    (trial.folder / "wandb").mkdir()
    (trial.folder / "wandb" / "run-1.wandb").write_bytes(b":W&B")
    trial.read(ended=True)
    said = trial.reader.missing_message(("acc",), {})
    assert "wandb/run-1.wandb is W&B's, which is not read: print the metric, or for a script write `capture: wandb`" in said


@pytest.mark.parametrize(
    ("name", "text", "found", "path", "end"),
    [
        ("out/m.csv", "step,acc\n1,0.5\n", "acc", "out/m.csv", ""),
        ("m.json", '{\n  "Acc": 0.5\n}', "acc", "m.json", ""),
        ("2026-01-02/7/m.jsonl", '{"step": 1, "f1": 0.5}\n', "f1", "**/m.jsonl", ", and name one of these"),
        ("run/7/test/acc.csv", "1,0.5\n", "acc", "**/test/acc.csv", ""),
    ],
)
def test_files_with_metrics_are_named_with_what_reads_them(
    tmp_path: Path, name: str, text: str, found: str, path: str, end: str
) -> None:
    trial = Trial(tmp_path, STDOUT)
    (trial.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (trial.folder / name).write_text(text)
    trial.read(ended=True)
    declaration = f'{{from: file, path: "{path}"}}'
    declaration = f"[stdout, {declaration}]"
    advice = f"{name} has {found} (0.5): write `metrics: {declaration}`, or submit with `--set 'metrics={declaration}'`{end}"
    said = trial.reader.missing_message(("acc",), {})
    assert said == f"no acc in its output; {advice}; no metrics were found; see `platform docs scripts`"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("logs/Etth1_96_24.log", "logs/Etth1_*_24.log"),
        ("lr1e-03_ADAM_bs32.txt", "lr*_*_bs32.txt"),
        ("m0.0010.txt", "m*.txt"),
        ("adamw_9601.txt", "adamw_9601.txt"),
        ("adam/out/m.txt", "**/out/m.txt"),
        ("run-2026-01-31_12-00-00.txt", "run-*.txt"),
        ("run_20260131T120000.5_1024.txt", "run_*_1024.txt"),
        ("run1769860800.txt", "run*.txt"),
    ],
)
def test_what_differs_in_the_name_of_the_file_of_another_trial_is_a_wildcard(tmp_path: Path, name: str, path: str) -> None:
    trial = Trial(tmp_path, params={"seq_len": 96, "lr": 0.001, "optim": "adam", "amp": True, "sizes": [24]})
    (trial.folder / name).parent.mkdir(parents=True, exist_ok=True)
    (trial.folder / name).write_text("acc=0.5\n")
    trial.read(ended=True)
    said = trial.reader.missing_message(("acc",), {})
    assert f'{name} has acc (0.5): write `metrics: {{from: file, path: "{path}"}}`' in said


def test_a_wildcard_never_finds_several_files_of_a_trial(tmp_path: Path) -> None:
    trial = Trial(tmp_path, params={"fold": 2})
    for fold in (1, 2):
        (trial.folder / f"fold_{fold}.log").write_text(f"acc=0.{fold}\n")
    trial.read(ended=True)
    said = trial.reader.missing_message(("acc",), {})
    assert '{from: file, path: "fold_1.log"}' in said and '{from: file, path: "fold_2.log"}' in said


def test_links_that_lead_nowhere_do_not_end_the_search(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    (trial.folder / "debug.log").symlink_to("gone/debug.log")
    (trial.folder / "loop.log").symlink_to("loop.log")
    (trial.folder / "m.csv").write_text("step,acc\n1,0.5\n")
    trial.read(ended=True)
    assert "m.csv has acc (0.5)" in trial.reader.missing_message(("acc",), {})


def test_the_line_that_is_told_finds_the_metric(tmp_path: Path) -> None:
    trial = Trial(tmp_path, MetricSource("file", path="**/m.jsonl"))
    (trial.folder / "2026-01-02/7").mkdir(parents=True)
    (trial.folder / "2026-01-02/7/m.jsonl").write_text('{"acc": 0.5}\n')
    trial.read(ended=True)
    assert trial.reader.newest == {"acc": 0.5}


def test_files_that_came_with_the_code_are_not_named(tmp_path: Path) -> None:
    (code := tmp_path / "code").mkdir()
    (code / "old.csv").write_text("acc\n0.9\n")
    trial = Trial(tmp_path, STDOUT, code=code)
    (trial.folder / "old.csv").write_text("acc\n0.9\n")
    (trial.folder / "link.csv").symlink_to("/etc/hostname")
    assert (
        trial.reader.missing_message(("acc",), {})
        == "no acc in its output; no metrics were found; see `platform docs scripts`"
    )


def test_many_files_are_looked_at_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "MOST_ENTRIES", 10)
    trial = Trial(tmp_path, STDOUT)
    for number in range(12):
        (trial.folder / f"{number:02}").mkdir()
    (trial.folder / "11" / "m.csv").write_text("acc\n1\n")
    assert "m.csv" not in trial.reader.missing_message(("acc",), {})
