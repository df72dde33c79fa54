"""Reports made of what a program writes: lines that arrive in pieces, tables, the files of loggers; and bounds."""

from __future__ import annotations

import json
import os
import pprint
import warnings
from pathlib import Path

import pytest
import tensorboardX
from tests.worker.metrics.conftest import STDOUT, Trial

from trialplane.job.program import MetricSource, Program
from trialplane.worker.metrics.reader import Reader


def test_lines_that_belong_to_one_step_are_one_report(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("Epoch 1\nloss=0.5\nacc=0.7\nEpoch 2\nloss=0.4\nac")
    assert trial.read() == [(1, {"loss": 0.5, "acc": 0.7})]
    assert trial.read() == [(2, {"loss": 0.4})], "nothing more has come: it is reported"
    trial.prints("c=0.8\n")
    assert trial.read() == [] and trial.read() == [(2, {"acc": 0.8})], "and what follows is of the same step"
    assert trial.reader.newest == {"loss": 0.4, "acc": 0.8}


def test_steps_that_no_one_names_are_counted(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("loss=3\nloss=2\nacc=1\nloss=1")
    assert trial.read(ended=True) == [(0, {"loss": 3.0}), (1, {"loss": 2.0, "acc": 1.0}), (2, {"loss": 1.0})]


def test_what_ends_an_epoch_has_its_number_however_many_lines_its_batches_print(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("Epoch: 1 [0/60]\tloss: 2.5\n")
    assert trial.read() == [] and trial.read() == [], "whether the next line is of this epoch too, nobody knows yet"
    made = []
    for epoch in (1, 2):
        for batch in (20, 40):
            trial.prints(f"Epoch: {epoch} [{batch}/60]\tloss: {2 - epoch - batch / 100}\n")
            made += trial.read() + trial.read()
        trial.prints(f"Test: acc: 0.{epoch}\n")
        made += trial.read() + trial.read()
    assert made == [(1, {"loss": 0.6, "acc": 0.1}), (2, {"loss": -0.4, "acc": 0.2})]
    trial.prints("Epoch: 3 [20/60]\tacc: 0.3\nEpoch: 3 [40/60]\tacc: 0.4\n")
    assert trial.read(ended=True) == [(3, {"acc": 0.3}), (4, {"acc": 0.4})], "of what the job names no point is left out"


def test_steps_that_begin_anew_are_counted_on(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("".join(f"step {step} loss={step}\n" for _ in (1, 2) for step in (5, 10)))
    assert [step for step, _ in trial.read(ended=True)] == [5, 10, 11, 12]


@pytest.mark.parametrize(
    ("epochs", "steps", "form", "expected"),
    [
        ((1, 2, 3), (100, 600), "Epoch [{}/5], Step [{}/600], Loss: 0.4", [100, 600, 700, 1200, 1300, 1800]),
        ((0, 1), (100, 900), "Epoch [{}/5], Step [{}/938], Loss: 0.4", [100, 900, 1038, 1838]),
        ((1, 2, 3), (100,), "Epoch [{}/5], Step [{}/100], Loss: 0.4", [100, 200, 300]),
        ((10, 20), (600,), "Epoch [{}/50], Step [{}/600], Loss: 0.4", [600, 6600]),
        ((1, 2), (5, 10), "epoch {} step {} loss=1", [5, 10, 15, 20]),
        ((1, 2), (5, 10), "epoch={} step={} loss=1", [5, 10, 15, 20]),
        ((1, 2), (5, 10), '{{"epoch": {}, "step": {}, "loss": 1}}', [5, 10, 15, 20]),
    ],
)
def test_steps_that_begin_anew_in_each_epoch_go_on_behind_those_before(
    tmp_path: Path, epochs: tuple[int, ...], steps: tuple[int, ...], form: str, expected: list[int]
) -> None:
    trial = Trial(tmp_path, STDOUT)
    made = []
    for epoch in epochs:
        for step in steps:
            trial.prints(form.format(epoch, step) + "\n")
            made += trial.read()
    made += trial.read(ended=True)
    assert [step for step, _ in made] == expected


def test_steps_that_go_on_through_all_epochs_are_as_they_are_named(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    steps = [(1, 100), (1, 600), (2, 700), (2, 1200)]
    trial.prints("".join(f"Epoch [{epoch}/2], Step [{step}/1200], Loss: 1\n" for epoch, step in steps))
    assert [step for step, _ in trial.read(ended=True)] == [100, 600, 700, 1200]


def test_a_line_of_the_epoch_alone_does_not_end_the_count(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    for epoch in (1, 2):
        trial.prints(f"Epoch [{epoch}/2], Step [600/600], Loss: 1\nEpoch [{epoch}/2], acc: 0.{epoch}\n")
    assert [step for step, _ in trial.read(ended=True)] == [600, 601, 1200, 1201]


def test_the_first_epoch_is_reported_as_the_others_whenever_it_is_read(tmp_path: Path) -> None:
    text = [f"Epoch: {epoch} [{batch}/60]\tloss: {epoch + batch / 100}\n" for epoch in (1, 2) for batch in (0, 40)]
    made = []
    for pause in (False, True):
        (folder := tmp_path / str(pause)).mkdir()
        trial = Trial(folder, STDOUT)
        found = []
        for line in text:
            trial.prints(line)
            found += trial.read() + trial.read() if pause else []
        made.append(found + trial.read(ended=True))
    assert made[0] == made[1] == [(1, {"loss": 1.4}), (2, {"loss": 2.4})]


def test_a_progress_bar_is_read_as_it_stands(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("\r 10%| loss=3\r 20%| loss=2\r 30%| lo")
    assert trial.read() == [] and trial.read() == [(0, {"loss": 2.0})]
    trial.prints("ss=1.5\r100%| loss=1\n")
    assert trial.read(ended=True) == [(1, {"loss": 1.0})]


def test_a_progress_bar_below_a_named_step_is_read_at_its_end(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("Epoch 1/2\n1/6 - acc: 0.1\r3/6 - acc: 0.2\r")
    assert trial.read() == [] and trial.read() == [], "how often it is read must not change the steps"
    trial.prints("6/6 - acc: 0.3\r6/6 - acc: 0.4 - val_acc: 0.5\nEpoch 2/2\n1/6 - acc: 0.6\r")
    assert trial.read() == [(1, {"acc": 0.4, "val_acc": 0.5})]
    trial.prints("6/6 - acc: 0.7 - val_acc: 0.8\n")
    assert trial.read(ended=True) == [(2, {"acc": 0.7, "val_acc": 0.8})]


def test_what_comes_before_the_first_step_does_not_shift_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("overriding lr = 0.1\nstep 0: acc=0.5\nstep 5: acc=0.6\n")
    assert [(step, values.get("acc")) for step, values in trial.read(ended=True)] == [(0, None), (0, 0.5), (5, 0.6)]


def test_other_ranks_do_not_report(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("[rank 1] acc=0.1\n[rank 0] acc=0.5\n")
    assert trial.read(ended=True) == [(0, {"acc": 0.5})]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("eval/reward", "200,0.5\n400,0.75\n", [(200, {"eval/reward": 0.5}), (400, {"eval/reward": 0.75})]),
        ("reward", "200,0.5\n400,0.75\n", [(200, {"reward": 0.5}), (400, {"reward": 0.75})]),
        ("reward", "0.5\n0.75\n", [(0, {"reward": 0.5}), (1, {"reward": 0.75})]),
        ("reward", "0\n0.5\n0.75\n", [(0, {"0": 0.5}), (1, {"0": 0.75})]),  # the name of a column of pandas
        ("reward", "0.5,1.5\n0.75,2\n", [(0, {"1.5": 2.0})]),  # no steps: the first row is taken as a header
    ],
)
def test_a_table_without_a_header_is_named_after_its_metric(
    tmp_path: Path, name: str, text: str, expected: list[tuple[int, dict[str, float]]]
) -> None:
    """As those of torchrl's logger."""
    trial = Trial(tmp_path, MetricSource("file", path="**/eval/reward.csv"), names=(name,))
    (trial.folder / "scalars" / "eval").mkdir(parents=True)
    (trial.folder / "scalars" / "eval" / "reward.csv").write_text(text)
    assert [
        (step, {key: value for key, value in metrics.items() if key != "0.5"}) for step, metrics in trial.read(ended=True)
    ] == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.jsonl", '{"step": 1, "acc": 0.5}\n{"step": 2, "acc": 0.75}\n'),
        ("m.csv", "step,acc,note\n1,0.5,x\n2,0.75,y"),
        ("m.tsv", "epoch\tACC\n1\t0.5\n2\t0.75\n"),
        ("m.txt", "step 1 acc=0.5\nstep 2 acc=0.75\n"),
    ],
)
def test_files(tmp_path: Path, name: str, text: str) -> None:
    trial = Trial(tmp_path, MetricSource("file", path="out/m.*"))
    assert trial.read() == []
    (trial.folder / "out").mkdir()
    with (trial.folder / "out" / name).open("w") as file:
        made = []
        for letter in text:  # as it may arrive
            file.write(letter)
            file.flush()
            made += trial.read()
    assert made + trial.read(ended=True) == [(1, {"acc": 0.5}), (2, {"acc": 0.75})]


def test_a_file_that_is_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    trial = Trial(tmp_path, MetricSource("file", path="m.jsonl"))
    (trial.folder / "m.jsonl").write_text('{"step": 1, "acc": 0.5, "loss": 1}\n')
    assert trial.read() == [] and trial.read() == [(1, {"acc": 0.5, "loss": 1.0})]
    (trial.folder / "m.jsonl").write_text('{"step": 2, "acc": 0.6}\n')
    assert trial.read(ended=True) == [(2, {"acc": 0.6})]


def test_links_and_files_of_others_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"acc": 1}\n')
    trial = Trial(tmp_path, MetricSource("file", path="**/*.jsonl"))
    (trial.folder / "m.jsonl").symlink_to(secret)
    (trial.folder / "out").symlink_to(tmp_path)
    assert trial.read(ended=True) == []
    old = trial.folder / "old.jsonl"
    old.write_text('{"acc": 1}\n')
    os.utime(old, (1, 1))
    late = Reader(Program(metrics=(MetricSource("file", path="*.jsonl"),)), trial.log, trial.folder, 1_000.0)
    assert late.read(1.0, ended=True) == [], "it came with the code"


def test_a_file_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("acc=0.5\nacc=0.25\npassword: 12345\n")
    trial = Trial(tmp_path, MetricSource("file", path="m.txt"))
    (trial.folder / "m.txt").write_text("acc=0.5\n")
    trial.read()
    (trial.folder / "m.txt").unlink()
    (trial.folder / "m.txt").symlink_to(secret)
    assert "password" not in [name for _, metrics in trial.read(ended=True) for name in metrics]
    (trial.folder / "m.txt").unlink()
    os.mkfifo(trial.folder / "m.txt")
    assert trial.read(ended=True) == [], "a pipe that nobody writes to"


def test_what_cannot_be_read_is_told_and_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tmp_path, STDOUT, MetricSource("file", path="m.csv"))
    (trial.folder / "m.csv").write_text("acc\n1\n" + "9" * 200_000 + "\n2\n")
    assert trial.read(ended=True) == [(0, {"acc": 1.0}), (1, {"acc": 2.0})], "a row is left out"

    def fails(line: str) -> None:
        raise RuntimeError("no such line")

    monkeypatch.setattr(trial.reader._tails[0].source, "parse", fails)
    trial.prints("acc=1\n")
    assert trial.read(ended=True) == []
    assert trial.reader.remarks == ["attempt-1.log was not read further: RuntimeError: no such line"]


def test_training_and_held_out_values_are_never_one_series(tmp_path: Path) -> None:
    """A line of training comes first, so a pruner would compare it with the test of another trial."""
    trial = Trial(tmp_path, STDOUT, names=("loss",))
    for epoch in (1, 2):
        trial.prints(f"Train Epoch: {epoch} Loss: 0.{9 - epoch}\n\nTest set: Average loss: 0.{5 - epoch}\n\n")
    reports = trial.read(ended=True)
    assert [(step, report["loss"]) for step, report in reports if "loss" in report] == [(1, 0.4), (2, 0.3)]
    assert trial.reader.newest == {"train_Loss": 0.7, "loss": 0.3}


def test_a_metric_of_validation_comes_before_that_of_a_test(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT, names=("f",))
    for epoch in (1, 2):
        trial.prints(f"Epoch: {epoch}\nDev: acc: 0.5, f: 0.{epoch}\nTest: acc: 0.5, f: 0.{epoch}9\n")
    reports = trial.read(ended=True)
    assert [report["f"] for _, report in reports if "f" in report] == [0.1, 0.2]
    assert trial.reader.newest == {"dev_acc": 0.5, "f": 0.2, "test_acc": 0.5, "test_f": 0.29}


def test_a_metric_of_training_alone_counts_at_the_end_under_the_name_without_training(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT, names=("loss",))
    trial.prints("Train Epoch: 1 Loss: 0.9\nTrain Epoch: 2 Loss: 0.8\nTrain Epoch: 3\n")
    assert all("loss" not in report for _, report in trial.read()), "a loss of held-out data may follow"
    assert trial.read(ended=True)[-1] == (2, {"loss": 0.8})


def test_a_metric_of_training_is_none_beside_those_of_held_out_data(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("Epoch 1, Train Acc: 0.9, Val Acc: 0.8, Test Acc: 0.7\n")
    trial.read(ended=True)
    assert "acc" not in trial.reader.newest


def test_lines_of_training_that_are_not_read_are_told(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("".join(f"epoch {epoch} acc=0.9\nEval | acc=0.5\n" for epoch in range(4)))
    assert [metrics["acc"] for _, metrics in trial.read(ended=True)] == [0.9, 0.5, 0.9, 0.5, 0.5, 0.5]
    assert "acc is eval_acc" in trial.reader.remarks[0] and "name eval_acc in the job" in trial.reader.remarks[0]


def test_a_metric_of_training_that_the_job_names_counts_under_no_other_name(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT, names=("loss", "train_loss"))
    trial.prints("Train Epoch: 1 Loss: 0.9\n")
    assert trial.read(ended=True) == [(1, {"train_loss": 0.9})]


def test_tensorboard(tmp_path: Path) -> None:
    trial = Trial(tmp_path, MetricSource("tensorboard"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = tensorboardX.SummaryWriter(str(trial.folder / "runs" / "a"))
    for step in (10, 20):
        writer.add_scalar("eval/loss", 1 / step, step)
        writer.add_scalar("ACC", step / 100, step)
        writer.add_text("note", "no number", step)
    writer.close()
    made = [*trial.read(), *trial.read(ended=True)]
    assert [step for step, _ in made] == [10, 20]
    assert made[-1][1] == pytest.approx({"eval/loss": 0.05, "acc": 0.2})


@pytest.mark.parametrize(
    ("names", "printed", "metrics"),
    [
        (("test_acc",), "loss=1\n", [{"loss": 1.0}, {"acc/test": 0.5}, {"acc/test": 0.25}]),
        (("ACC/test", "loss"), "loss=1\n", [{"loss": 1.0}, {"ACC/test": 0.5}, {"ACC/test": 0.25}]),
        (("test_acc",), "test_acc=1\n", [{"test_acc": 1.0}]),
        (("test_acc",), "testing_acc=1\n", [{"test_acc": 1.0}]),
        (("test_acc",), "acc_test=1\n", [{"acc_test": 1.0}]),
        (("acc",), "train_acc=1\n", [{"train_acc": 1.0}, {"acc": 1.0}]),
    ],
)
def test_event_files_are_read_late_for_what_nothing_else_has(
    tmp_path: Path, names: tuple[str, ...], printed: str, metrics: list[dict[str, float]]
) -> None:
    trial = Trial(tmp_path, STDOUT, names=names, late=(MetricSource("tensorboard"),))
    trial.prints(printed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = tensorboardX.SummaryWriter(str(trial.folder / "runs"))
    writer.add_scalar("acc/test", 0.5, 1)
    writer.add_scalar("acc/test", 0.25, 2)
    writer.close()
    made = [*trial.read(), *trial.read(ended=True)]
    assert [values for _, values in made] == metrics
    is_late = len(metrics) == 3
    assert any("--set 'metrics=[stdout, tensorboard]'" in remark for remark in trial.reader.remarks) == is_late


@pytest.mark.parametrize(("name", "late"), [("acc", True), ("accuracy", True), ("acc", False)])
@pytest.mark.parametrize(
    ("folders", "acc"), [(("runs/test", "runs/train"), None), (("runs/test",), 0.25), (("runs/test", "runs/test"), 0.5)]
)
def test_what_several_folders_of_event_files_have_is_ambiguous(
    tmp_path: Path, folders: tuple[str, ...], acc: float | None, name: str, late: bool
) -> None:
    source = MetricSource("tensorboard")
    trial = Trial(tmp_path, STDOUT if late else source, names=(name,), late=(source,) if late else ())
    for number, folder in enumerate(folders, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            writer = tensorboardX.SummaryWriter(str(trial.folder / folder), filename_suffix=f".{number}")
        writer.add_scalar("acc", 0.25 * number, number)
        writer.add_scalar(folder, 1.0, number)
        writer.close()
    made = trial.read(ended=True)
    assert [values["acc"] for _, values in made if "acc" in values] == [0.25, 0.5][: len(folders) if acc else 0]
    assert trial.reader.newest.get("acc") == acc and trial.reader.newest["runs/test"] == 1.0
    text = "acc is in the event files of runs/test and of runs/train: to read one of them write `metrics: "
    remedy = f"{'[stdout, ' if late else ''}{{from: tensorboard, path: runs/test}}{']' if late else ''}`"
    assert any(remark == text + remedy for remark in trial.reader.remarks) == (acc is None)


def test_event_files_of_a_former_source_make_no_metric_ambiguous(tmp_path: Path) -> None:
    first, second = MetricSource("tensorboard", path="runs/val"), MetricSource("tensorboard", path="runs/train")
    trial = Trial(tmp_path, first, second, names=("acc",))
    for folder, value in (("runs/train", 0.5), ("runs/val", 0.75)):  # the one listed last is written first
        writer = tensorboardX.SummaryWriter(str(trial.folder / folder))
        writer.add_scalar("acc", value, 1)
        writer.close()
        trial.read()
    trial.read(ended=True)
    assert trial.reader.newest["acc"] == 0.75
    assert trial.reader.remarks == []


def test_tensorboard_by_torch(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter  # torch takes seconds

    trial = Trial(tmp_path, MetricSource("tensorboard", path="logs"))
    with SummaryWriter(str(trial.folder / "logs")) as writer:
        writer.add_scalar("acc", 0.5, 3)
        writer.add_scalar("acc", 0.75, 4, new_style=True)
    assert trial.read(ended=True) == [(3, {"acc": 0.5}), (4, {"acc": 0.75})]


def test_damaged_event_files_are_passed_over(tmp_path: Path) -> None:
    trial = Trial(tmp_path, MetricSource("tensorboard"))
    (trial.folder / "events.out.tfevents.1").write_bytes(b"\xff" * 5_000)
    assert trial.read(ended=True) == []


def test_what_a_script_prints_and_reports_is_read_once(tmp_path: Path) -> None:
    """Its first report comes after its first line, within a moment; what it only prints is read, in order."""
    trial = Trial(tmp_path, STDOUT, script="train.py")
    trial.prints("step 1 acc=0.5 loss=2\nstep 2 acc=0.6 loss=1\n")
    assert trial.read() == []
    trial.reader.leave_out(["acc"])
    assert trial.read() == [(1, {"loss": 2.0}), (2, {"loss": 1.0})]
    trial.prints("step 3 acc=0.7 loss=0.5\n")
    assert trial.read() == [] and trial.read() == [(3, {"loss": 0.5})]
    trial.prints("f1=0.5\n")
    assert trial.read(ended=True) == [(3, {"f1": 0.5})], "nothing is held back once the script has ended"


@pytest.mark.parametrize(
    ("name", "before", "rows"),
    [
        ("m.csv", "step,acc\n", ["1,0.5\n", "2,0.6\n", "3,0.7\n"]),
        ("m.jsonl", "", ['{"step": 1, "acc": 0.5}\n', '{"step": 2, "acc": 0.6}\n', '{"step": 3, "acc": 0.7}\n']),
    ],
)
def test_the_rows_of_a_file_that_is_written_anew_count_once(tmp_path: Path, name: str, before: str, rows: list[str]) -> None:
    """As by `DataFrame.to_csv` after each epoch; a read may come while the file is empty."""
    trial = Trial(tmp_path, MetricSource("file", path=name))
    file, found = trial.folder / name, []
    for count in (1, 2, 3):
        file.write_text("")
        found += trial.read()
        file.write_text(before + "".join(rows[:count]))
        found += trial.read()
    assert found + trial.read(ended=True) == [(1, {"acc": 0.5}), (2, {"acc": 0.6}), (3, {"acc": 0.7})]


def test_a_value_that_is_written_over_is_read_again(tmp_path: Path) -> None:
    """A file of the same size, or a larger one, in which the newest state stands alone."""
    trial = Trial(tmp_path, MetricSource("file", path="state.json"))
    found = []
    for text in ('{"step": 1, "acc": 0.5}\n', '{"step": 2, "acc": 0.6}\n', '{"step": 10, "acc": 0.625}\n'):
        (trial.folder / "state.json").write_text(text)
        found += trial.read()
    assert found + trial.read(ended=True) == [(1, {"acc": 0.5}), (2, {"acc": 0.6}), (10, {"acc": 0.625})]


def test_rows_that_came_with_the_code_are_not_the_trials(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "m.csv").write_text("step,acc\n1,0.9\n2,0.95\n")
    trial = Trial(tmp_path, MetricSource("file", path="m.csv"), code=code)
    (trial.folder / "m.csv").write_text((code / "m.csv").read_text() + "3,0.5\n")
    assert trial.read(ended=True) == [(3, {"acc": 0.5})]


SCORES = {
    "class": {"a": {"f1": 0.1}, "b": {"f1": 0.2}},
    "overall": {"f1": 0.8, "n": 144},
    "part": {"c": {"d": {"f1": 0.3}}},
}
WHOLE_NAMES = {"class.a.f1": 0.1, "class.b.f1": 0.2, "overall.f1": 0.8, "overall.n": 144.0, "part.c.d.f1": 0.3}
RICH = [f"{line:60}" for line in json.dumps(SCORES, indent=2).splitlines()]  # as `RichHandler` prints it


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(SCORES),
        json.dumps(SCORES, indent=2),
        f"scores = {SCORES}",
        pprint.pformat(SCORES, width=20),
        "\n".join(["[11/26/26 13:57:28] INFO     {        main.py:74", *(f"{'':29}{line}" for line in RICH[1:])]),
        str(SCORES).replace("0.8", "np.float64(0.8)").replace("}, ", "},\n"),
        json.dumps(SCORES, indent=2).replace("0.2", '"0.2"'),
    ],
)
def test_the_outermost_value_of_nested_objects_is_the_metric_that_the_job_names(tmp_path: Path, text: str) -> None:
    """Each is found by its whole name, also in a file; the other values are told."""
    for place, source in (("output", STDOUT), ("file", MetricSource("file", path="scores.json"))):
        trial = Trial(tmp_path / place, source, names=("f1",))
        if source is STDOUT:
            trial.prints(f"{text}\n")
        else:
            (trial.folder / "scores.json").write_text(text)
        assert trial.read(ended=True) == [(0, {**WHOLE_NAMES, "f1": 0.8})]
        (remark,) = trial.reader.remarks
        others = "class.a.f1, class.b.f1, part.c.d.f1"
        assert remark == f"f1 is overall.f1; to use another value write its whole name in the job: {others}"
    named = Trial(tmp_path / "named", STDOUT, names=("overall.F1",))
    named.prints(f"{text}\n")
    assert named.read(ended=True)[0][1]["overall.F1"] == 0.8 and not named.reader.remarks


def test_a_value_of_another_nested_object_is_not_a_later_value(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT, names=("f1",))
    for epoch in (1, 2):
        trial.prints(f'{{"epoch": {epoch}, "train": {{"f1": 0.9}}, "dev": {{"f1": 0.{epoch}}}}}\n')
        trial.prints("{'a': {'f1': 0.7},\n 'b': {'f1': 0.8}}\n")
    assert [metrics["f1"] for _, metrics in trial.read(ended=True) if "f1" in metrics] == [0.1, 0.2]
    assert trial.reader.newest["f1"] == 0.2 and trial.reader.ambiguous == {"f1": ("dev.f1", "train.f1", "a.f1", "b.f1")}
    (tmp_path / "top").mkdir()
    top = Trial(tmp_path / "top", STDOUT, names=("f1",))
    top.prints('{"a": {"f1": 0.1}, "f1": 0.5, "b": {"f1": 0.2}}\n')
    assert top.read(ended=True)[0][1]["f1"] == 0.5 and not top.reader.remarks


def test_lines_that_only_look_like_an_object_are_read_as_lines(tmp_path: Path) -> None:
    """As are those of a history in an object, and those of one that does not end."""
    trial = Trial(tmp_path, STDOUT)
    trial.prints("int main() {\nacc=0.1\n{\n'acc': 0.2,\nacc=0.3\n")
    trial.prints(json.dumps({"log": [{"acc": 0.4}, {"acc": 0.5}]}, indent=1))
    trial.prints('\n{\n "note": "a } b", "when": "10:31",\n "also": "it\'s",\n "args": {"acc": 7},\n "acc": 0.6\n}\n')
    trial.prints('{\n"acc": 0.7')
    assert [metrics["acc"] for _, metrics in trial.read(ended=True)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]


def test_an_object_of_a_file_that_the_job_has_already_counts_if_one_line_differs(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    text = json.dumps({"overall": {"acc": 0.5}, "other": {"acc": 0.2}}, indent=1)
    (code / "scores.json").write_text(text)
    for place, values in (("changed", [0.5]), ("same", [])):
        trial = Trial(tmp_path / place, MetricSource("file", path="scores.json"), script="fit.py", code=code)
        (trial.folder / "scores.json").write_text(text.replace("0.2", "0.3") if values else text)
        assert [metrics["acc"] for _, metrics in trial.read(ended=True)] == values


def test_the_label_of_a_progress_bar_is_no_metric(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT, names=("mAP", "acc"))
    for percent, bar in ((0, " " * 10), (69, "██████▉   "), (69, "######9   "), (100, "█" * 10)):
        trial.prints(f"Map: {percent:3}%|{bar}| 291/420 [00:00<00:00, 2073.41 examples/s, acc=0.5]\n")
    trial.prints("mAP: 40%\n")
    assert [metrics for _, metrics in trial.read(ended=True)] == [{"acc": 0.5}] * 3 + [{"acc": 0.5, "mAP": 40.0}]


def _bar(position: int, total: int, text: str) -> str:
    """Return the state of a progress bar of tqdm."""
    return f"{100 * position // total:3}%|███▏ | {position}/{total} [00:01<00:08, 9.87it/s, {text}]"


@pytest.mark.parametrize("redraws", [1, 3])
def test_the_step_of_a_progress_bar_is_its_position_however_often_it_is_drawn(tmp_path: Path, redraws: int) -> None:
    trial, reports = Trial(tmp_path, STDOUT), []
    for position in (20, 40, 60):
        for draw in range(redraws):
            trial.prints(f"\r{_bar(position, 60, f'acc={position + draw - redraws}')}")
            reports += trial.read() + trial.read()
    trial.prints("\n")
    assert reports + trial.read(ended=True) == [(20, {"acc": 19.0}), (40, {"acc": 39.0}), (60, {"acc": 59.0})]


@pytest.mark.parametrize("label", ["", "epoch {}: "], ids=["alone", "with its epoch"])
@pytest.mark.parametrize("end", ["\n", "\x1b[A\n"], ids=["one bar", "below the bar of the epochs"])
def test_positions_of_bars_are_counted_through_all_epochs(tmp_path: Path, label: str, end: str) -> None:
    """Those drawn in turn with it are shorter: of the epochs, and of the validation."""
    trial, reports = Trial(tmp_path, STDOUT), []
    for epoch in (1, 2, 3):
        trial.prints(f"\r{_bar(epoch - 1, 3, 'acc=0')}{end}" if epoch > 1 else "\r")
        for position in (30, 60, 60):
            trial.prints(f"\r{label.format(epoch)}{_bar(position, 60, f'acc={position}')}")
            trial.prints(end if "\x1b" in end else "")
            reports += trial.read()
        trial.prints(f"\n\r{_bar(5, 10, f'acc={epoch}')}\n")
    steps = [step for step, _ in reports + trial.read(ended=True)]
    assert steps[-1] == 180 and set(steps) <= {30, 60, 90, 120, 150, 180}


def test_last_states_of_bars_are_those_of_successive_bars(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints("".join(f"\r{_bar(1, 60, 'acc=0')}\r{_bar(60, 60, f'acc={epoch}')}\n" for epoch in (1, 2, 3)))
    assert trial.read(ended=True) == [(60, {"acc": 1.0}), (120, {"acc": 2.0}), (180, {"acc": 3.0})]


def test_a_bar_without_a_total_counts_by_its_position(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    for position in (3, 8, 4):
        trial.prints(f"loss {position}: {position}it [00:03, 1.02it/s, acc={position}]\n")
    assert trial.read(ended=True) == [(3, {"acc": 3.0}), (8, {"acc": 8.0}), (12, {"acc": 4.0})]


def test_a_bar_below_a_named_step_is_part_of_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    for epoch in (1, 2):
        trial.prints(f"Epoch {epoch}/2\n")
        trial.prints("".join(f"\r{_bar(position, 60, f'acc={position}')}\x1b[A\n" for position in (30, 60)))
    assert trial.read(ended=True) == [(1, {"acc": 60.0}), (2, {"acc": 60.0})]


def test_a_bar_without_a_metric_of_the_job_has_no_steps(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    for epoch in (1, 2):
        trial.prints(f"\r{_bar(60, 60, 'loss=1')}\nEpoch {epoch}: acc=0.{epoch}\n")
    assert [(step, metrics["acc"]) for step, metrics in trial.read(ended=True) if "acc" in metrics] == [(1, 0.1), (2, 0.2)]


def test_a_bar_that_changes_after_its_report_has_another_one(tmp_path: Path) -> None:
    trial = Trial(tmp_path, STDOUT)
    trial.prints(f"\r{_bar(60, 60, 'acc=1')}\x1b[A\nloss=2\n")
    reports = trial.read() + trial.read()
    trial.prints(f"\r{_bar(60, 60, 'acc=3')}\n")
    assert [metrics for _, metrics in reports + trial.read(ended=True)][-1] == {"acc": 3.0}


TRAINING = "".join(f"Epoch: {epoch} | Train Loss: 0.5 | Val Loss: {epoch}.5\n" for epoch in (1, 2, 3))
STEPPED = "".join(f"step {step}: Val Loss: 0.5\n" for step in (10, 20, 30))


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (
            f"first\n{TRAINING}second\n{TRAINING}",
            "epochs begin again at 1 after 3, as in another training or fold, 2 in all",
        ),
        (STEPPED * 3, "steps begin again at 10 after 30, as in another epoch, training or fold, 3 in all"),
        (TRAINING, ""),
        (TRAINING.replace("3", "1"), ""),  # perhaps the summary of a later one
        (f"{TRAINING}Best epoch: 2 Val Loss: 2.5\n{TRAINING.replace('Epoch: ', 'Epoch: 1')}", ""),
        ("".join(f"epoch {epoch}\n{STEPPED}" for epoch in (1, 2)), ""),
        ("".join(f"Epoch [{epoch}/2], Step [{step}/9], Val Loss: 0.5\n" for epoch in (1, 2) for step in (3, 6, 9)), ""),
        ("Epoch: 1 Val Loss: 0.5\n" * 5, ""),
        (TRAINING.replace("Val Loss", "Val Acc") * 2, ""),
    ],
)
def test_a_trial_says_that_the_numbers_of_the_metrics_steps_begin_again(tmp_path: Path, text: str, remark: str) -> None:
    trial = Trial(tmp_path, STDOUT, names=("Val Loss",))
    trial.prints(text)
    trial.read(ended=True)
    counts = "its last value is that of the last one, and its best report that of any of them"
    assert trial.reader.remarks == ([f"Val Loss: {remark}: {counts}"] if remark else [])
