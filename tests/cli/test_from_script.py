"""`platform init --from`: the job that is made of a script, its smoke run, and scripts of which none is made.

Not checked here: each way of taking arguments (test_script_styles.py), what is guessed from which name
(tests/importing/test_guess.py), and such a job as a run (tests/study/test_scripts.py).
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import BODY, given, made, write

from trialplane.cli.init_from import script_job, smoke
from trialplane.importing import script_folder
from trialplane.job import load
from trialplane.job.program import Program
from trialplane.plan import pack
from trialplane.worker.metrics.reader import Reader
from trialplane.worker.metrics.steps import Steps
from trialplane.worker.metrics.tails import Tail

ARGPARSE = """
import argparse
from own import helper

parser = argparse.ArgumentParser()
parser.add_argument("stamp")
parser.add_argument("--learning-rate", "--lr", type=float, default=1e-3)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="adam")
parser.add_argument("--nesterov", action="store_true")
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--sizes", type=int, nargs="+", default=[64, 32])
parser.add_argument("--table", default="table.csv")
parser.add_argument("-j", type=int, default=4)
args = parser.parse_args()
open(args.table).close()
"""


def test_a_script_becomes_a_job_that_can_be_submitted(platform, written: Path) -> None:
    (written / "fit.py").write_text(ARGPARSE.replace('add_argument("stamp")', 'add_argument("--stamp", default="d")') + BODY)
    before = {file.name for file in written.iterdir()}
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    assert (
        "its metrics: train_loss, val_acc" in result.stderr
        and "`platform submit hpo src --local` runs the job" in result.stderr
    )
    assert {file.name for file in written.iterdir()} == before | {"job.yaml"}, "it runs in a copy of the folder"
    job = made()
    assert set(job.search.parameters) == {"learning-rate", "layers", "optimizer", "nesterov"}
    assert job.params == {"no-cuda": False, "stamp": "d", "sizes": [64, 32], "table": "table.csv", "j": 4}
    line = " ".join(given(job))
    assert "-j 4" in line and "--sizes 64 32" in line and "cuda" not in line
    assert job.objectives[0].metric == "val_acc" and job.objectives[0].direction == "maximize"
    text = (written / "job.yaml").read_text()
    assert all("# guessed: " in line for line in text.splitlines() if line.startswith("  ") and "type: " in line)
    assert "is valid" in platform("validate", "src").stdout


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n# \xe9\n"])
def test_a_script_may_name_its_encoding(platform, written: Path, head: bytes) -> None:
    (written / "fit.py").write_bytes(head + ARGPARSE.replace('"stamp"', '"--stamp"').encode())
    (written / "own.py").write_bytes(head + b"def helper(): ...\n")
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0, result.output


def test_nothing_behind_the_arguments_runs(platform, written: Path) -> None:
    (written / "fit.py").write_text(ARGPARSE + f"open({str(written / 'ran')!r}, 'w')\n" + BODY)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2, "one argument has no value"
    assert not (written / "ran").exists()
    # It is not run for its metrics either, as one argument has no value.
    assert "needs a value for stamp" in result.stderr and "runs once" not in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        ARGPARSE,
        ARGPARSE.replace('"stamp"', '"--stamp", required=True'),
        ARGPARSE.replace('"stamp"', '"-d", dest="stamp", required=True'),
        "import fire\ndef main(stamp, lr=0.1): ...\nif __name__ == '__main__':\n    fire.Fire(main)\n",
    ],
)
def test_a_job_that_lacks_a_value_is_not_valid(platform, written: Path, text: str) -> None:
    (written / "fit.py").write_text(text)
    assert platform("init", "--from", str(written / "fit.py")).exit_code == 2, "it cannot run yet"
    result = platform("validate", "src")
    assert result.exit_code == 2 and "1 problem" in result.stderr and "params.stamp: has no value" in result.stderr
    file = Path("src/job.yaml")
    file.write_text(file.read_text().replace("stamp: null", "stamp: table.csv"))
    assert platform("validate", "src").exit_code == 0
    assert "table.csv" in " ".join(given(made()))


def test_the_job_of_a_link_lies_where_it_leads(platform, written: Path) -> None:
    """Python imports from there."""
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + BODY)
    Path("other").mkdir()
    Path("other/link.py").symlink_to(written / "fit.py")
    result = platform("init", "--from", "other/link.py")
    assert result.exit_code == 0, result.output
    assert made().script == "fit.py" and not Path("other/job.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ("--lr=0.1 --layers=2", ["enqueue: [{lr: 0.1, layers: 2}] # today's values, tried first"]),
        (
            "--lr=0.1 --weight-decay=0.0",
            ["enqueue: [{lr: 0.1}] # today's values, tried first; weight-decay, 0.0 today, is outside of its range"],
        ),
        (
            "--weight-decay=0.0",
            ["# Today's values are not tried first: weight-decay, 0.0 today, is outside of its range"],
        ),
        ("--name=x", []),
    ],
)
def test_what_is_said_of_the_defaults_is_true(platform, written: Path, arguments: str, lines: list[str]) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\n"
    for name, _, value in (one.partition("=") for one in arguments.split()):
        default = repr(value) if value.isalpha() else value
        text += f"parser.add_argument({name!r}, type=type({default}), default={default})\n"
    (written / "fit.py").write_text(text + "parser.parse_args()\n")
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0, result.output
    made = Path("src/job.yaml").read_text().splitlines()
    assert [line for line in made if "tried first" in line or line.startswith("enqueue")] == lines
    said = "\nweight-decay, 0.0 today, is outside of its range: no trial has today's value\n"
    assert (said in result.stderr) == ("weight-decay" in arguments)


def test_without_a_smoke_run_the_metric_is_a_guess(platform, written: Path) -> None:
    (written / "fit.py").write_text("import fire\ndef main(lr=0.1): ...\nfire.Fire(main)\n" + BODY)
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0 and "runs once" not in result.stderr
    assert "# a placeholder: the script was not run; name a metric that it prints\n" in Path("src/job.yaml").read_text()
    assert (
        "the script was not run, so the objective in src/job.yaml is a placeholder: name a metric that it prints; "
        "`platform submit hpo src --objective METRIC:min --local` runs the job" in result.stderr
    )


def test_the_user_names_the_objective(platform, written: Path) -> None:
    (written / "fit.py").write_text("import fire\ndef main(lr=0.1): ...\nfire.Fire(main)\n" + BODY)
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "train_loss:min")
    assert result.exit_code == 0, result.output
    assert (made().objectives[0].metric, made().objectives[0].direction) == ("train_loss", "minimize")
    assert "objective: train_loss, minimized (as requested); `platform submit hpo src --local` runs" in result.stderr


@pytest.mark.parametrize(("of", "said"), [("best", ", the best of all reports"), ("last", "")])
def test_the_user_says_which_value_of_the_objective_counts(platform, written: Path, of: str, said: str) -> None:
    text = ARGPARSE.replace('"stamp"', '"--stamp"') + "for epoch in range(3):\n    print(f'epoch {epoch} auc: {epoch}')\n"
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"), "--objective", f"auc:max:{of}")
    assert f"; objective: auc, maximized{said} (as requested); `platform submit" in result.stderr, result.output
    assert made().objectives[0].of == of
    assert "value counts" not in Path("src/job.yaml").read_text()
    Path("src/job.yaml").unlink()
    result = platform("init", "--from", str(written / "fit.py"), "--objective", f"val_auc2:max:{of}")
    assert f"--objective auc:max:{of}`; if other values show val_auc2" in result.stderr, result.output


@pytest.mark.parametrize(
    ("printed", "requested", "remedy"),
    [
        (
            "val_acc=0.5 train_loss=0.25",
            "bleu:max",
            "`platform init --from src/fit.py --space lr=0.1..1 --objective METRIC:max` with one of its metrics "
            "(train_loss, val_acc)",
        ),
        (
            "auc=0.0 acc=0.5 train_loss=0.25",
            "test_acc:max",
            "`platform init --from src/fit.py --space lr=0.1..1 --objective acc:max`",
        ),
        (
            "val_mse=0.25",
            "val_rmse:min",
            "`platform init --from src/fit.py --space lr=0.1..1 --objective val_mse:min`",
        ),
    ],
    ids=["no similar one", "of other data", "similar"],
)
def test_an_objective_that_a_run_has_disproved_is_refused(
    platform, written: Path, printed: str, requested: str, remedy: str
) -> None:
    """The job is written, as other values may show the metric."""
    text = BODY.replace("val_acc=0.5 train_loss=0.25", printed)
    (written / "fit.py").write_text(f"import fire\ndef main(lr=0.1): ...\nfire.Fire(main)\n{text}")
    result = platform("init", "--from", "src/fit.py", "--space", "lr=0.1..1", "--objective", requested)
    assert result.exit_code == 1, result.output
    metric = requested.partition(":")[0]
    assert f"objective: {metric}, " in result.stderr and "(one run did not show it" in result.stderr
    said = (
        f"its trials will fail without {metric}: remove src/job.yaml and type {remedy}; if other values show {metric}, `pl"
    )
    assert said in result.stderr, result.output
    assert made().objectives[0].metric == metric
    assert f"\n# pruner: asha # not used: one run did not show {metric}" in Path("src/job.yaml").read_text()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("print('val_acc=0.5')", ["--no-smoke"]),
        ("print('val_acc=0.5', flush=True)\nwhile True:\n    signal.pause()", ["--smoke-seconds", "2"]),
        ("import wandb\nprint('val_acc=0.5')", []),
        ("", []),
    ],
    ids=["no run", "a run that was stopped", "W&B", "no metrics"],
)
def test_an_objective_that_no_run_has_disproved_is_used(platform, written: Path, line: str, words: list[str]) -> None:
    write(written, {"fit.py": f"import fire, signal\ndef main(lr=0.1): ...\nfire.Fire(main)\n{line}\n"})
    result = platform("init", "--from", "src/fit.py", "--objective", "bleu:max", *words)
    assert result.exit_code == 0 and "objective: bleu, maximized" in result.stderr, result.output
    assert "its trials will fail" not in result.stderr


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (
            "print(f'Train: {1:.2f}, Val: {val_rmse:.2f}')",
            "name a metric that it prints; `platform submit hpo src --objective Val:min",
        ),
        ("print('Val:', score)", "and :min if Val is an error; `platform submit hpo src --objective Val:max"),
        ("print(f'Loss: {1:.2f}, Train: {1:.2f}, Val: {val_rmse:.2f}')", "objective: Val, minimized"),
        ("print(f'Loss: {1:.2f}, Train: {1:.2f}, Val: {results[\"rmse\"]:.2f}')", "objective: Val, minimized"),
        ("print(f'Loss: {1:.2f}, Train: {1:.2f}, Val: {score:.2f}')", "objective: Val, maximized"),
    ],
)
def test_a_metric_named_by_its_data_alone_is_what_the_script_computes(
    platform, written: Path, printed: str, said: str
) -> None:
    (written / "fit.py").write_text(f"lr = 0.1\nscore = val_rmse = 0.5\nresults = {{'rmse': score}}\n{printed}\n")
    result = platform("init", "--from", "src/fit.py")
    assert said in result.stderr, result.output


def test_a_number_of_any_name_is_a_metric_if_the_user_names_it(platform, written: Path) -> None:
    text = ARGPARSE.replace('"stamp"', '"--stamp"') + "print('eval_mode 3, layers 2 of the first kind')\n"
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "eval_mode:min")
    assert result.exit_code == 0 and "its metrics: eval_mode" in result.stderr, result.output


def test_words_of_settings_are_no_metrics(platform, written: Path) -> None:
    text = """
import pprint
words = {"the": 1, "model": 2, "loss": 3, "win": 4, "of": 5, "rate": 1.5}
print(words)
pprint.pprint({"BASE_LR": 0.1, "crop_pct": 0.875, "eps": 1e-8, "model": 7, "x" * 80: 4})
print("  crop_pct: 0.875")
print("[I 2025-01-01 10:00:00,123] Trial 9 finished with value: 0.3 and best score: 0.2")
for epoch in range(2):
    print(f"epoch {epoch} gap: {1 / (epoch + 1)}")
for batch in range(2):
    print(f"speed: {batch}.5")
print(f"final_size={3}", "error:", 0.5)
"""
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert "; its metrics: error, final_size, gap, speed\n" in result.stderr, result.output
    assert "# guessed from the metrics of one run; the others: final_size, gap, speed\n" in Path("src/job.yaml").read_text()


def test_settings_that_a_script_prints_are_no_metrics(platform, written: Path) -> None:
    """Those are words of its options, what is printed before the first result, and the last words of longer names."""
    text = """
open("log.txt", "w").write("width: 3\\nscore: 2\\n")
open("words.json", "w").write(str({f"score_{name}": name for name in range(600)}).replace("'", '"'))
print(f"Image size: {32} X {32}\\nPatch size: {8} X {8}\\nwidth: {3}")
for phase in range(2):
    for epoch in range(3):
        print(f"Epoch {epoch} Loss: {1 / (epoch + 1)} time: {epoch}")
    print(f"Training layers: {args.layers + phase} learning rate: {0.1 + phase}\\nTest set AUC: {phase + 1}%\\ngap: {phase}")
"""
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert "; its metrics: Loss, gap, score, test_AUC, time\n" in result.stderr, result.output
    told = "# pruner: asha # not used: test_AUC was reported once, or twice without a step, as at the end of a phase\n"
    text = (written / "job.yaml").read_text()
    assert told in text and "of: best" not in text
    assert made().pruner.name == "none" and made().objectives[0].metric == "test_AUC"


def test_a_metric_with_steps_is_pruned_on(platform, written: Path) -> None:
    """Two values beside steps, or three values. The first rung is not before the first report."""
    for printed in ("epoch 0 auc: {0.5}\\nepoch 1 auc: {0.5}", "auc: {1}\\nauc: {2}\\nauc: {3}"):
        Path("src/job.yaml").unlink(missing_ok=True)
        (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + f'print(f"{printed}")\n')
        result = platform("init", "--from", str(written / "fit.py"))
        text = (written / "job.yaml").read_text()
        assert "\npruner: asha\n" in text and "one run; the last value counts, with `of: best` the best one" in text
        assert "\npruner: asha stops trials that are behind at step 1; `--pruner none` at submit" in result.stderr


@pytest.mark.parametrize(
    "written_by",
    [
        "open('log.csv', 'w').write('step,val_auc\\n' + ''.join(f'{step},0.5\\n' for step in range(501)))",
        """
import tensorboardX
with tensorboardX.SummaryWriter("runs") as writer:
    for step in range(501):
        writer.add_scalar("loss", 1.0, step)
        writer.add_scalar("val_auc", 0.5, step)
""",
        pytest.param(
            """
import mlflow
mlflow.log_metrics({"val_auc": 0.5}, step=250)
mlflow.log_metrics({"val_auc": 0.5}, step=500)
""",
            marks=pytest.mark.services,
        ),
    ],
    ids=["file", "tensorboard", "mlflow"],
)
def test_the_steps_of_files_count(platform, written: Path, written_by: str) -> None:
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + written_by)
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "val_auc:max")
    rung = 250 if "mlflow" in written_by else 31
    assert made().pruner.options.get("min_resource", 1) == rung, result.output


def test_an_objective_that_was_not_seen_is_read_where_the_others_were(platform, written: Path) -> None:
    log = "open('log.csv', 'w').write('step,val_auc\\n1,0.5\\n2,0.6\\n')"
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + log)
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "test_auc:max")
    assert [(source.source, source.path) for source in made().metrics or ()] == [("file", "log.csv")], result.output


_RESULTS = """
import json
lr = 0.1
with open("results.jsonl", "w") as file:
    for step in range(20):
        print(TEXT % (step, 20, 1.25))
        print(json.dumps({"step": step, "loss": 1.5, "loss_16": 2.5}), file=file)
"""
_BAR = "%d/%d [00:01<00:08, 9.87it/s, loss=%s]"


@pytest.mark.parametrize(
    ("text", "sources", "remark"),
    [
        (
            f"| {_BAR}",
            ["results.jsonl"],
            "loss is 1.5 in results.jsonl, which is read; to read its output, with loss 1.25",
        ),
        (
            "step %d/%d loss: %s",
            [],
            "loss is 1.25 in its output, which is read; to read results.jsonl, with loss 1.5, loss_16",
        ),
        ("step %d/%d mse: %s", ["stdout", "results.jsonl"], ""),
        (f"| {_BAR.replace('loss', 'loss_32')}", ["results.jsonl", "stdout"], ""),
    ],
    ids=["bar", "line", "another name", "another name in a bar"],
)
def test_the_source_of_each_listed_metric_is_read_or_named(
    platform, written: Path, text: str, sources: list[str], remark: str
) -> None:
    """A file comes before a progress bar with a metric of the same name, and after a line."""
    (written / "fit.py").write_text(_RESULTS.replace("TEXT", repr(text)))
    result = platform("init", "--from", str(written / "fit.py"))
    assert [source.path or source.source for source in made().metrics or ()] == sources, result.output
    written_remarks = [line for line in Path("src/job.yaml").read_text().splitlines() if "which is read" in line]
    assert remark in result.stderr and ("which is read" in result.stderr) == bool(remark)
    assert [line.startswith(f"# {remark}") for line in written_remarks] == [True] * bool(remark)


def test_a_requested_metric_of_a_bar_and_a_file_is_that_of_the_file(platform, written: Path) -> None:
    (written / "fit.py").write_text(_RESULTS.replace("TEXT", repr(f"| {_BAR}")))
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "loss:min")
    assert [source.path for source in made().metrics or ()] == ["results.jsonl"], result.output
    assert made().pruner.options == {} and "at steps 1, 4, 16; " in result.stderr


@pytest.mark.parametrize(
    ("printed", "sources"),
    [
        ("Test AUC: 73.93%", ["results.json"]),
        ("Test auc: 73.93%", ["results.json"]),
        ("Namespace(metric='test_auc')\nTest AUC: 73.93%", ["results.json"]),
        ("test_auc: 73.93%", []),  # the output
        ("Epoch 1 Test AUC: 0.72\nEpoch 2 Test AUC: 0.739", []),  # the same value, with those before it
    ],
)
def test_the_source_that_spells_the_requested_metric_exactly_is_read(
    platform, written: Path, printed: str, sources: list[str]
) -> None:
    text = f"import json\nlr = 0.1\nprint({printed!r})\njson.dump({{'test_auc': 0.7392676}}, open('results.json', 'w'))\n"
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "test_auc:max")
    assert [source.path for source in made().metrics or ()] == sources, result.output
    assert made().objectives[0].metric == ("test_AUC" if printed.startswith("Epoch") else "test_auc")


@pytest.mark.parametrize(
    ("lines", "metric", "values"),
    [
        (["Epoch 1 Test AUC: 72.5%", "Epoch 2 Test AUC: 73.5%", "test_auc: 0.735."], "test_auc", [0.735]),
        (["Epoch 1 test_auc: 0.725", "Epoch 2 test_auc: 0.735", "Test AUC: 73.5%"], "test_auc", [0.725, 0.735]),
        (["initial test_auc: 0.5", "Epoch 1 Test AUC: 0.725", "Epoch 2 Test AUC: 0.735"], "test_auc", [0.5, 0.725, 0.735]),
        (["Epoch 1 Test AUC: 0.725", "Epoch 2 Test AUC: 0.735"], "test_AUC", [0.725, 0.735]),
    ],
)
def test_the_lines_that_spell_the_requested_metric_exactly_are_read(
    platform, written: Path, lines: list[str], metric: str, values: list[float]
) -> None:
    (written / "fit.py").write_text("lr = 0.1\n" + "".join(f"print({line!r})\n" for line in lines))
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "test_auc:max")
    assert made().objectives[0].metric == metric, result.output
    log = Path("output.log")
    trial = Reader(Program(metrics=made().metrics or (smoke.STDOUT,), names=(metric,)), log, written, 0.0)
    log.write_text("\n".join(lines))  # after the reader was made, which skips what a file has by then
    assert [report.metrics[metric] for report in trial.read(0.0, ended=True)] == values


@pytest.mark.parametrize(("later", "is_told"), [("{'test_auc': 0.739}", True), ("{'loss': 0.5}", False)])
def test_a_spelling_that_a_stopped_run_may_show_later_is_named(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, later: str, is_told: bool
) -> None:
    monkeypatch.setattr(smoke, "LONGEST", 2.0)
    endless = "import signal\nprint('Test AUC: 73.93%', flush=True)\nwhile True:\n    signal.pause()\n"
    (written / "fit.py").write_text(f"lr = 0.1\n{endless}open('results.json', 'w').write(str({later}))\n")
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "test_auc:max")
    assert made().objectives[0].metric == "test_AUC"
    told = "test_auc in another spelling only, and has this one in its code: if it writes test_auc later, remove "
    command = f"`platform init --from {written / 'fit.py'} --objective test_auc:max --smoke-seconds 600`"
    assert (f"{told}job.yaml and type {command}" in result.stderr) == is_told, result.output


def test_a_value_that_a_line_rounds_is_no_other_one(platform, written: Path) -> None:
    text = "lr = 0.1\nprint('loss: 0.12')\nopen('log.csv', 'w').write('loss\\n0.1234\\n')\n"
    (written / "fit.py").write_text(text)
    assert "which is read" not in platform("init", "--from", str(written / "fit.py")).stderr


def test_a_metric_that_is_reported_once_is_not_pruned_on(platform, written: Path) -> None:
    """An epoch beside it, as in the summary of a Trainer, makes no series."""
    text = "print({'train_loss': '4.834', 'epoch': '1'})\n"
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert made().pruner.name == "none" and "pruner" not in result.stderr, result.output
    assert "# pruner: asha # not used: train_loss was reported once, or" in Path("src/job.yaml").read_text()


def test_trials_that_are_searched_for_their_length_are_not_pruned(platform, written: Path) -> None:
    """At step 20, one of 30 steps is almost trained, and one of 240 is not behind because of its other values."""
    text = "epochs = 30\nlr = 0.1\nfor epoch in range(epochs):\n    print(f'epoch {epoch} loss: {lr / (epoch + 1)}')\n"
    (written / "fit.py").write_text(text)
    space = ("--space", "epochs=30,60,240", "--space", "lr=0.1..1")
    result = platform("init", "--from", str(written / "fit.py"), *space, "--objective", "loss:min")
    assert made().pruner.name == "none" and "pruner" not in result.stderr, result.output
    assert "\n# pruner: asha # not used: trials differ in epochs, and the same" in Path("src/job.yaml").read_text()


def test_trials_with_rollouts_of_different_lengths_are_pruned(platform, written: Path) -> None:
    text = (
        "epochs = 30\nnum_steps = 128\nfor epoch in range(epochs):\n    print(f'epoch {epoch} loss: {num_steps + epoch}')\n"
    )
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"), "--space", "num_steps=64..256")
    assert made().pruner.name == "asha" and "asha stops trials that are behind" in result.stderr, result.output


@pytest.mark.parametrize(
    ("of", "counts"),
    [
        (
            ":best",
            "the best value of any of them counts; for the last value of the last one, `--objective val_Loss:min` at submit",
        ),
        ("", "the last value of the last one counts"),
    ],
)
def test_several_trainings_in_a_run_are_told_and_not_pruned(platform, written: Path, of: str, counts: str) -> None:
    line = "    for epoch in range(1, 4): print(f'Epoch: {epoch} | Val Loss: {lr + epoch + len(name):.2f}')\n"
    text = f"lr = 0.1\nfor name in ('LSTM', 'CRF'):\n    print(name)\n{line}print('f1: 0.5')\n"
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"), "--objective", f"val_Loss:min{of}")
    remark = "val_Loss: epochs begin again at 1 after 3, as in another training or fold, 2 in all"
    remark = f"{remark}: {counts}; only the last one shows f1; to read another one, print it under its own name"
    assert f"\n{remark}\n" in result.stderr and f"\n# {remark}\n" in Path("src/job.yaml").read_text(), result.output
    assert made().pruner.name == "none" and "begin again, and it would judge" in Path("src/job.yaml").read_text()


@pytest.mark.parametrize(
    ("steps", "rung", "shown"),
    [("range(501)", 31, "31, 124, 496"), ("range(20, 201, 20)", 20, "20, 80"), ("range(30)", 1, "1, 4, 16")],
)
def test_the_first_rung_follows_the_length_of_a_run(platform, written: Path, steps: str, rung: int, shown: str) -> None:
    """It is after the first steps of a long run, and not before the first report, also if other metrics repeat."""
    text = f"""
for step in {steps}:
    for batch in range(3):
        print(f"step {{step}} batch_loss: {{batch}}.5")
    print(f"step {{step}} val_auc: {{step / 1000}}")
"""
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert (made().objectives[0].metric, made().pruner.options.get("min_resource", 1)) == ("val_auc", rung), result.output
    assert f"asha stops trials that are behind at steps {shown}; " in result.stderr, "and no step that a run does not reach"


def test_the_series_of_the_objective_alone_is_computed(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the output is not parsed again for it."""
    parsed, series = [], set()
    monkeypatch.setattr(smoke, "Tail", lambda file, *rest: parsed.append(file.name) or Tail(file, *rest))
    monkeypatch.setattr(smoke, "Steps", lambda names: series.add(names) or Steps(names))
    text = "lr = 0.1\nfor i in range(9):\n    print(f'epoch {i} loss: {i} val_loss: {i} mae: {i}')\n"
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert "its metrics: loss, mae, val_loss\n" in result.stderr and "at steps 1, 4; " in result.stderr, result.output
    assert (parsed, series) == (["printed.log"], {("val_loss",)})


def test_a_job_without_a_metric_tells_of_no_pruner(platform, written: Path) -> None:
    (written / "fit.py").write_text("lr = 0.1\nprint('hello')\n")
    words = ("init", "--from", str(written / "fit.py"))
    for words_with_flag in (words, (*words, "--no-smoke")):
        Path("src/job.yaml").unlink(missing_ok=True)
        result = platform(*words_with_flag)
        assert "placeholder" in result.stderr and "pruner" not in result.stderr, result.output
    Path("src/job.yaml").unlink()
    assert "at steps 1, 4, 16, …; " in platform(*words, "--no-smoke", "--objective", "auc:max").stderr


def test_the_steps_of_metrics_that_wandb_gets_are_known(platform, written: Path) -> None:
    text = """
import wandb
run = wandb.init()
for step in range(101):
    wandb.log({"val_acc": step / 1000})
wandb.log({"test_acc": 0.5})
"""
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + text)
    for metric, pruner in (("val_acc", {"min_resource": 6}), ("test_acc", None)):
        Path("src/job.yaml").unlink(missing_ok=True)
        platform("init", "--from", str(written / "fit.py"), "--objective", f"{metric}:max")
        chosen = made().pruner
        assert (chosen.options if chosen.name == "asha" else None) == pruner


@pytest.mark.services
def test_what_a_command_logs_to_mlflow_is_not_offered_but_what_a_script_logs(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written)
    (written / "own_fit.py").write_text("import mlflow, sys\nmlflow.log_metric('f1', 0.5)\nprint('error: 0.25')\n")
    platform("init", "--from", "python own_fit.py {lr=0.1}")
    assert load.load_job(written).objectives[0].metric == "f1"
    Path("job.yaml").unlink()
    result = platform("init", "--from", "python -O own_fit.py {lr=0.1}")
    assert "logs f1 to MLflow, which is not read from a command, a process of its own: print the metric" in result.stderr
    assert load.load_job(written).objectives[0].metric == "error", result.output


def test_the_whole_names_of_nested_metrics_are_offered(platform, written: Path) -> None:
    text = """
import json
scores = {"classes": {name: {"f1": 0.1} for name in "abcdefghijklmnopqrstuvwxyz"}, "overall": {"f1": 0.5}}
print(json.dumps(scores, indent=2) if args.stamp else "")
json.dump({"top": {"f1": 0.5}, "other": {"f1": 0.1}}, open("scores.json", "w"), indent=2)
"""
    for printed, metric, others in (("d", "overall.f1", "classes.a.f1"), ("", "top.f1", "other.f1")):
        Path("src/job.yaml").unlink(missing_ok=True)
        (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', f'"--stamp", default="{printed}"') + text)
        result = platform("init", "--from", str(written / "fit.py"))
        assert result.exit_code == 0, result.output
        assert f"objective: {{metric: {metric}, direction: maximize}}" in Path("src/job.yaml").read_text()
        assert f"the others: {others}" in Path("src/job.yaml").read_text()


def test_a_name_that_is_no_metrics_is_not_guessed_to_be_the_objective(platform, written: Path) -> None:
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + "print(f'y={1} eval_mode={3}')\n")
    result = platform("init", "--from", str(written / "fit.py"))
    assert (
        "no metric that it printed has the name of an objective (eval_mode, y), so the objective in src/job.yaml is a "
        "placeholder: name a metric that it prints; `platform submit hpo src --objective y:min --local` runs"
        in result.stderr
    )
    reason = "no metric that it printed has the name of an objective (eval_mode, y)"
    assert made().objectives[0].metric == "loss"
    assert f" # a placeholder: {reason}; name a metric that it prints\n" in Path("src/job.yaml").read_text()


@pytest.mark.parametrize("script", ["fit.py", "python fit.py --lr 0.1"])
def test_what_a_script_logs_to_wandb_alone_is_captured(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.chdir(written)
    (written / "fit.py").write_text("import wandb\n" + ARGPARSE.replace('"stamp"', '"--stamp"'))
    result = platform("init", "--from", script)
    assert result.exit_code == 0 and "no metrics were found" in result.stderr, result.output
    assert made(".").capture == ("wandb",) and "placeholder: name a metric that it logs to W&B" in result.stderr


@pytest.mark.parametrize(
    "script",
    ["fit.py", "python fit.py --lr 0.1", "export PYTHONPATH=. && python fit.py --lr 0.1", "LR=0.1 python fit.py"],
)
def test_what_is_logged_to_wandb_names_what_is_captured(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.chdir(written)
    text = "import wandb\n" + ARGPARSE.replace('"stamp"', '"--stamp"')
    (written / "fit.py").write_text(text + "wandb.init(project='p').log({'lr': 0.1, 'val/loss': 0.5})\n")
    result = platform("init", "--from", script)
    assert result.exit_code == 0 and "its metrics: lr, val/loss" in result.stderr, result.output
    job = made(".")
    assert job.capture == ("wandb",) and job.metrics is None
    assert (job.objectives[0].metric, job.objectives[0].direction) == ("val/loss", "minimize")


@pytest.mark.parametrize("metric", ["val_acc", "test_acc"])
def test_a_script_that_also_logs_to_wandb_needs_no_account(platform, written: Path, metric: str) -> None:
    text = "import wandb\n" + ARGPARSE.replace('"stamp"', '"--stamp"') + BODY
    (written / "fit.py").write_text(f"{text}wandb.init().log({{'grad/norm': 0.5}})\n")
    result = platform("init", "--from", str(written / "fit.py"), "--objective", f"{metric}:max")
    assert result.exit_code == 0, result.output
    job = made()
    assert job.capture == ("wandb",) and [source.source for source in job.metrics or ()] == ["stdout"]


@pytest.mark.parametrize(("metric", "direction"), [("val_acc", "max"), ("train_loss", "min")])
def test_a_smoke_run_is_bounded(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, metric: str, direction: str
) -> None:
    monkeypatch.setattr(smoke, "LONGEST", 2.0)
    endless = f"import signal\nprint('{metric}=0.5', flush=True)\nwhile True:\n    signal.pause()\n"
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + endless)
    result = platform("init", "--from", str(written / "fit.py"))
    assert "fit.py was stopped after" in result.stderr and f"its metrics: {metric}" in result.stderr
    assert f"`platform submit hpo src --objective METRIC:{direction} --local`, or remove job.yaml and" in result.stderr
    assert f"`platform init --from {written / 'fit.py'} --smoke-seconds 600`" in result.stderr
    assert "guessed from the metrics of one run, which was stopped before its end" in (written / "job.yaml").read_text()
    assert made().objectives[0].metric == metric


def test_a_requested_metric_that_a_stopped_run_has_not_shown_is_kept(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "LONGEST", 2.0)
    endless = "import signal\nprint('loss=0.5', flush=True)\nwhile True:\n    signal.pause()\nprint('Test loss: 1')\n"
    (written / "fit.py").write_text(f"lr = 0.1\n{endless}")
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "F1 Score:max")
    told = "it had not shown F1 Score by then; for a longer run remove job.yaml and type `platform init --from"
    assert told in result.stderr and "name yours" not in result.stderr, result.output
    assert made().objectives[0].metric == "F1 Score"


@pytest.mark.parametrize(
    ("printed", "objective"),
    [
        ("print(f'Test loss: {x:.4f}')", "test_loss:min"),
        ("print('Test loss: %.4f' % x)", "test_loss:min"),
        ("print('val accuracy: {:.2f}'.format(x))", "val_accuracy:max"),
        ("logging.info('AUC = ' + str(x))", "AUC:max"),
        ("bar.set_postfix(val_f1=x)", "val_f1:max"),
        ("print('done', x)", "METRIC:min"),
        ("open('Test loss: %f')", "METRIC:min"),
    ],
)
def test_metrics_that_a_script_prints_later_are_named(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, printed: str, objective: str
) -> None:
    monkeypatch.setattr(smoke, "LONGEST", 2.0)
    endless = "import signal\nprint('train_loss=0.5', flush=True)\nwhile True:\n    signal.pause()\n"
    write(written, {"fit.py": f"import own\nlr = 0.1\n{endless}", "own.py": f"def test(x):\n    {printed}\n"})
    result = platform("init", "--from", str(written / "fit.py"))
    assert f"`platform submit hpo src --objective {objective} --local`" in result.stderr, result.output


@pytest.mark.parametrize(
    "text",
    [
        "for e in range(3): print(f'epoch {e}: loss={lr / (e + 1)} train_rate: {train_rate}')\n",
        "for n in (1, 2): print(f'loss={lr}'), print(f'train_rate: {train_rate}')\n",
    ],
)
def test_a_setting_beside_metrics_is_no_metric(platform, written: Path, text: str) -> None:
    (written / "fit.py").write_text(f"train_rate = 0.6\nlr = 0.1\n{text}")
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss\n" in result.stderr, result.output


def test_a_script_that_fails_is_told_with_its_reason(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(written))
    noise = "import atexit\natexit.register(print, '\x1b[34mwandb: see the docs\x1b[0m')\n"
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + noise + "raise OSError('no such disk')\n")
    result = platform("init", "--from", str(written / "fit.py"))
    (kept,) = written.glob("trialplane-fit-*.log")
    assert f"OSError: no such disk; its whole output is in {kept}; no metrics were found" in result.stderr
    assert result.exit_code == 1 and "see the docs" not in result.stderr and "wandb: see the docs" in kept.read_text()
    assert "its trials will fail as the run above did; when that is mended, `platform submit hpo src" in result.stderr
    assert made().script == "fit.py"


@pytest.mark.parametrize(("printed", "metric"), [("HYDRA_FULL_ERROR=1", "loss"), ("val_acc=0.5", "val_acc")])
def test_of_a_run_that_failed_only_a_known_metric_is_the_objective(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, printed: str, metric: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(written))
    failing = f"print('{printed}')\nraise OSError('no such disk')\n"
    (written / "fit.py").write_text(ARGPARSE.replace('"stamp"', '"--stamp"') + failing)
    platform("init", "--from", str(written / "fit.py"))
    assert made().objectives[0].metric == metric


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import sys\nprint(sys.argv)\n", "if it takes values alone, with --set 'arguments=[\"{NAME}\"]'"),
        (
            "import wandb, yaml\nwandb.agent(wandb.sweep(yaml.safe_load(open('s.yaml'))), print)\nprint(wandb.config.lr)\n",
            "--objective METRIC:min --local --set arguments=none --set capture=wandb`",
        ),
        ("x = (\n", "is not Python: '(' was never closed"),
        (f"x = {'-' * 20_000}1\n", "is not Python: it is nested too deeply for Python's parser"),
        (
            "import argparse\nimport no_such_library\nargparse.ArgumentParser().parse_args()\n",
            "No module named 'no_such_library'; install it, and type this again; nothing was changed",
        ),
        (
            "import argparse\ndef never(parser): parser.parse_args()\n",
            "ended before it read its arguments: it ended without reading any; type this again when it reads them; or, if "
            "it needs other arguments, give the command that you type today, in quotes, with its numbers: `platform init "
            "--from 'python src/fit.py --lr 0.1'`; nothing was changed",
        ),
        (
            "import hydra\n@hydra.main(config_name='none')\ndef main(cfg): ...\n",
            "names no existing Hydra configuration",
        ),
    ],
)
def test_nothing_is_made_of_what_cannot_be_searched(platform, written: Path, text: str, told: str) -> None:
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and told in result.stderr
    assert not Path("src/job.yaml").exists()


@pytest.mark.parametrize("text", ["print('loss=1')\n", "SEED = 1\nprint('loss=1')\n"])
def test_a_script_with_nothing_to_search_is_one_trial(platform, written: Path, text: str) -> None:
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "assigns no single value that looks worth searching" in result.stderr
    told = "searches it: `platform submit hpo src/fit.py --space NAME=LOW..HIGH --objective METRIC:min --local --set"
    assert f"{told} arguments=globals`" in result.stderr
    assert (made().trials, given(made()), dict(made().search.parameters)) == (1, [], {})


def test_a_job_has_the_number_of_trials_that_the_user_types(platform, written: Path) -> None:
    (written / "fit.py").write_text("lr = 0.1\n")
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke", "--trials", "3")
    assert result.exit_code == 0 and made().trials == 3, result.stderr
    assert "--trials needs --from" in platform("init", "new", "--trials", "3").stderr


@pytest.mark.parametrize(
    ("trials", "line"), [("7", "# pruner: asha # not used: 7 trials, too few to compare"), ("8", "pruner: asha")]
)
def test_few_trials_have_no_pruner(platform, written: Path, trials: str, line: str) -> None:
    """It would stop nearly all of them at the first step at which it compares them."""
    (written / "fit.py").write_text("lr = 0.1\nfor step in range(9): print(f'{step=} loss={lr}')\n")
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke", "--trials", trials)
    assert result.exit_code == 0, result.output
    assert f"\n{line}\n" in Path("src/job.yaml").read_text()


def test_a_command_that_is_shown_can_be_pasted(platform, written: Path) -> None:
    folder = written.rename(written.with_name("my scripts"))
    (folder / "fit.py").write_text("print('loss=1')\n")
    assert "`platform submit hpo 'my scripts/fit.py' --space" in platform("init", "--from", str(folder / "fit.py")).stderr
    (folder / "job.yaml").unlink()
    (folder / "fit.py").write_text("lr = 0.1\n")
    result = platform("init", "--from", str(folder / "fit.py"), "--no-smoke")
    assert "`platform validate 'my scripts'`" in result.stderr
    assert "`platform submit hpo 'my scripts' --objective METRIC:min --local`" in result.stderr


def test_a_script_in_which_nothing_looks_like_a_parameter_is_told_what_to_write(platform, written: Path) -> None:
    (written / "fit.py").write_text("import fire\ndef main(seed=1): print('loss=1')\nfire.Fire(main)\n")
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert "found no parameter to search: write `space: {NAME: …}` into src/job.yaml" in result.stderr


@pytest.mark.parametrize("style", ["argparse", "fire"])
def test_a_default_that_no_job_can_hold_stays_the_scripts_own(platform, written: Path, style: str) -> None:
    number = "9" * 400
    texts = {
        "argparse": f"import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
        f"p.add_argument('--hidden', type=int, default={number})\n"
        f"p.add_argument('--picked', type=int, choices=[1, {number}], default=1)\nprint('loss=1', p.parse_args().lr)\n",
        "fire": f"import fire\ndef main(lr=0.1, hidden={number}): print('loss=1')\nfire.Fire(main)\n",
    }
    (written / "fit.py").write_text(texts[style])
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0, result.stderr
    assert list(made().search.parameters) == ["lr"]
    assert number not in Path("src/job.yaml").read_text()


ANY_OPTION = (
    "import fire\ndef fit(mix=1, **kwargs): print('loss=1')\ndef test(mix=1): ...\nfire.Fire({'test': test, 'fit': fit})\n"
)


def test_a_function_with_any_keyword_takes_each_name(platform, written: Path) -> None:
    (written / "fit.py").write_text(ANY_OPTION)
    spaces = ["--space", "lr=0.1..1:log", "--space", "mix=1..3"]
    result = platform("init", "--from", "python src/fit.py fit", *spaces, "--no-smoke")
    assert result.exit_code == 0, result.stderr
    assert "lr: not checked, as python src/fit.py fit takes any --NAME=VALUE" in result.stderr
    job = made(".")
    assert (list(job.search.names), job.enqueue) == (["lr", "mix"], ({"mix": 1},))
    Path("job.yaml").unlink()
    result = platform("init", "--from", "python src/fit.py test", *spaces, "--no-smoke")
    assert "has no parameter lr" in result.stderr
    result = platform("init", "--from", "python src/fit.py fit", "--space", "mixx=1..3", "--no-smoke")
    assert result.exit_code == 2 and "no parameter mixx; did you mean mix?" in result.stderr, "it is misspelled"


def test_no_name_is_proposed_that_is_searched_already(platform, written: Path) -> None:
    (written / "fit.py").write_text(ANY_OPTION)
    spaces = [("--space", f"{name}=1..3") for name in ("mix", "mixx")]
    told = [
        platform("init", "--from", "python src/fit.py test", *words, "--no-smoke").stderr
        for words in ([*spaces[0], *spaces[1]], spaces[1])
    ]
    assert "no parameter mixx; there are: mix" in told[0] and "no parameter mixx; did you mean mix?" in told[1]


@pytest.mark.parametrize(
    ("names", "value", "missing"),
    [
        ("none", "rounds = 5", "none; for a value without a name"),
        ("none rounds", "rounds = 5", "none; there are: rounds;"),
        ("none rounds", "rounds = 5; sys.argv[9:]", "none; there are: rounds;"),
        ("svc__C", "svc = SVC(C=1.0)", "svc__C; did you mean C?"),
    ],
)
def test_only_names_that_a_script_lacks_are_refused(platform, written: Path, names: str, value: str, missing: str) -> None:
    (written / "fit.py").write_text(f"import sys\ndef main():\n    {value}\n    print('loss=1')\nmain()\n")
    spaces = [word for name in names.split() for word in ("--space", f"{name}=1..9")]
    result = platform("init", "--from", "src/fit.py", *spaces, "--no-smoke")
    assert result.exit_code == 2 and f"fit.py has no parameter {missing}" in result.stderr, result.stderr
    assert "assigns no single value" not in result.stderr


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("width = 3", "lr; there are: n, width;"),
        ("width = 3; import sys; sys.argv[9:]", "lr; conf.toml has model.lr; to search"),
        ("width = 3; open('width.yaml'); open('conf.toml')", "lr; conf.toml has model.lr; to search"),
    ],
)
def test_a_settings_file_is_named_if_the_script_may_open_it(platform, written: Path, code: str, hint: str) -> None:
    write(
        written,
        {"fit.py": f"n = 2; {code}\nprint('loss=1')\n", "conf.toml": "[model]\nlr = 0.1\n", "width.yaml": "width: 3\nn: 2"},
    )
    names = ("--space", "width=1..9", "--space", "n=1..9", "--space", "lr=0.1..1")
    result = platform("init", "--from", "src/fit.py", *names, "--no-smoke")
    assert result.exit_code == 2 and f"fit.py has no parameter {hint}" in result.stderr, result.stderr


SIZES = "lr = 0.1\nnet = Net(\n    Dense(size_in=10, size_out=50),\n    Dense(size_in=50, size_out=4),\n)\nprint('loss=1')\n"


def test_a_size_that_two_layers_share_is_offered(platform, written: Path) -> None:
    (written / "fit.py").write_text(SIZES)
    result = platform("init", "--from", "src/fit.py", "--space", "lr=0.1..1", "--space", "hidden_size=20..80", "--no-smoke")
    command = "platform init --from src/fit.py --space lr=0.1..1 --space size_out=20..80 --no-smoke"
    assert "has no parameter hidden_size; did you mean size_out?" in result.stderr
    assert f"`{command}` searches the 50 in lines 3 and 4, which one layer puts out and the next takes in" in result.stderr
    result = platform(*shlex.split(command)[1:])
    assert result.exit_code == 0 and "size_out is the 50 in lines 3 and 4\n" in result.stderr
    assert made().enqueue == ({"lr": 0.1, "size_out": 50},)


TEXTS = {
    "call": ("fit.py", "compile.0", {"fit.py": "n = 3\nmodel.compile('sgd', 'mse')\n"}),
    "module": (
        "nets.py",
        "compile.0",
        {"fit.py": "n = 3\nimport nets\n", "nets.py": "x = 1\nmodel.compile('sgd', 'mse')\n"},
    ),
    "keyword": ("nets.py", "kind", {"fit.py": "n = 3\nimport nets\n", "nets.py": "x = 1\nNet(kind='sgd')\n"}),
}


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("source", ["src/fit.py", "python src/fit.py"])
def test_a_text_that_is_one_of_the_choices_is_offered(platform, written: Path, case: str, source: str) -> None:
    file, name, texts = TEXTS[case]
    write(written, texts)
    words = ("init", "--from", source, "--space", "n=1..9", "--no-smoke")
    refused = platform(*words, "--space", "optimizer=sgd,adam")
    assert refused.exit_code == 2 and f"has no parameter optimizer; did you mean {name}?; " in refused.stderr, refused.output
    [command] = re.findall(rf'`([^`]+)` searches the "sgd" in (?:src/)?{file}:2; nothing was changed', refused.stderr)
    result = platform(*shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    assert made().search.enqueue == ({"n": 3, name: "sgd"},)


@pytest.mark.parametrize("more", ["other.compile('adam')", "def tune(kind='adam'): ..."])
def test_no_text_is_offered_that_may_be_another(platform, written: Path, more: str) -> None:
    write(written, {"fit.py": "n = 3\nimport nets, others\n", "nets.py": "m.compile('sgd')\n", "others.py": f"{more}\n"})
    result = platform("init", "--from", "src/fit.py", "--space", "optimizer=sgd,adam", "--no-smoke")
    assert result.exit_code == 2 and "has no parameter optimizer" in result.stderr, result.output
    assert ("did you mean compile.0" in result.stderr) == more.startswith("def"), result.output


def test_a_script_that_removes_its_folder_has_a_job(platform, written: Path) -> None:
    removing = "import argparse, os, shutil\nshutil.rmtree(os.getcwd())\np = argparse.ArgumentParser()\n"
    reading = "p.add_argument('--lr', type=float, default=0.1)\np.parse_args()\nprint('val_acc=0.5')\n"
    (written / "fit.py").write_text(removing + reading)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.stderr
    assert made().script == "fit.py"
    assert (written / "fit.py").is_file()


def test_a_missing_library_is_named(platform, written: Path) -> None:
    (written / "fit.py").write_text(ARGPARSE + "def late():\n    import no_such_library\n")
    result = platform("init", "--from", str(written / "fit.py"))
    assert "imports no_such_library, which is not installed here" in result.stderr


def test_a_process_that_outlives_the_script_holds_nothing_up(platform, written: Path) -> None:
    os.mkfifo("held")
    held = os.open("held", os.O_RDONLY | os.O_NONBLOCK)
    left = f"import subprocess\nsubprocess.Popen(['sleep', '600'], stdin=open({str(Path('held').absolute())!r}, 'w'))\n"
    (written / "fit.py").write_text(left + ARGPARSE.replace('"stamp"', '"--stamp"'))
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0, result.output
    assert select.select([held], [], [], 60.0)[0] and os.read(held, 1) == b"", "it is ended with the script"
    os.close(held)


def test_the_job_of_a_typed_command_is_the_folder_in_which_it_is_typed(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (written / "bin").mkdir()
    (written / "bin" / "near.py").write_text("def loss(rate): return 2 * rate\n")
    text = "from near import loss\nlr = 0.1\nprint(f'loss={loss(lr)}')\n"
    (written / "bin" / "fit.py").write_text(text)
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python bin/fit.py")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    monkeypatch.chdir(written.parent)
    assert made().script == "bin/fit.py" and not (written / "bin" / "job.yaml").exists()
    assert "is valid" in platform("validate", "src").stdout


def test_the_module_of_a_typed_command_is_started_in_the_folder_in_which_it_is_typed(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (written / "pack").mkdir()
    (written / "pack" / "__init__.py").touch()
    (written / "pack" / "near.py").write_text("def loss(rate): return 2 * rate\n")
    (written / "pack" / "fit.py").write_text("from .near import loss\nlr = 0.1\nprint(f'loss={loss(lr)}')\n")
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python -m pack.fit")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    monkeypatch.chdir(written.parent)
    assert made().command == ("python", "-m", "pack.fit")


SPACES = {
    "argparse": ("python src/fit.py", ARGPARSE.replace('"stamp"', '"--stamp"') + BODY, "layers", "leyers"),
    "values": ("src/fit.py", "lr = 0.1\nlayers = 2\nprint(f'loss={lr}')\n", "layers", "leyers"),
    "shell": ("src/fit.sh", "RATE=0.1\necho loss=$RATE --layers 2\n", "layers", "leyers"),
    "loop": ("src/fit.sh", "for layers in 2 3; do\n  env echo --lr 0.1 --layers $layers loss=1\ndone\n", "lr", "lrr"),
    "make": ("src/Makefile", "LR = 0.1\nLAYERS = 2\ntrain:\n\techo loss=$(LR) $(LAYERS)\n", "LAYERS", "LEYERS"),
    "command": ("echo loss=0.5 --lr 0.1 --layers 2", "", "layers", "leyers"),
    "notebook": (
        "src/fit.ipynb",
        json.dumps({"cells": [{"cell_type": "code", "source": "lr = 0.1\nlayers = 2\nprint(f'loss={lr}')"}]}),
        "layers",
        "leyers",
    ),
    "settings": (
        "src/fit.py",
        "import yaml\nprint('loss=%f' % yaml.safe_load(open('conf/config.yaml'))['optimizer']['lr'])\n",
        "optimizer.lr",
        "optimiser.lr",
    ),
    "hydra": (
        "src/fit.py",
        "import hydra\n@hydra.main(version_base=None, config_path='conf', config_name='config')\n"
        "def main(cfg): print(f'loss={cfg.optimizer.lr}')\nif __name__ == '__main__': main()\n",
        "model.layers",
        "model.leyers",
    ),
}


@pytest.mark.parametrize("style", SPACES)
def test_the_user_may_say_what_is_searched(platform, written: Path, style: str) -> None:
    source, text, name, misspelled = SPACES[style]
    if text:
        (written / ("fit.py" if source.startswith("python") else Path(source).name)).write_text(text)
    result = platform("init", "--from", source, "--space", f"{misspelled}=1..5")
    assert result.exit_code == 2 and f"has no parameter {misspelled}; did you mean {name}" in result.stderr, result.output
    [command] = re.findall(rf"; type `(platform init --from [^`]+ {name})=1..5`; nothing", result.stderr)
    files = [Path("job.yaml"), Path("src/job.yaml")]
    assert not any(map(Path.exists, files))
    result = platform(*shlex.split(f"{command}=0.5..5")[1:])
    assert result.exit_code == 0 and "its metrics: " in result.stderr, result.output
    [file] = filter(Path.exists, files)
    job = load.load_job(file.parent)
    assert list(job.search.parameters) == [name] and "guessed: half" not in file.read_text()
    assert "1 parameter to search; " in result.stderr


def test_a_key_that_hydra_adds_is_searched(platform, written: Path) -> None:
    (written / "fit.py").write_text(SPACES["hydra"][1])
    result = platform("init", "--from", "src/fit.py", "--space", "trainer.clip=1..5")
    assert result.exit_code == 2 and "To append to your config use +trainer.clip=1" in result.stderr, result.output
    assert platform("init", "--from", "src/fit.py", "--space", "+trainer.clip=1..5").exit_code == 0
    assert list(made().search.parameters) == ["+trainer.clip"]


def test_options_that_are_not_searched_are_named_with_the_command_that_searches_them(platform, written: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\n"
    for name, default in (("lr", 0.1), ("beta-one", 0.9), ("window", 5), ("seed", 1), ("name", "'x'")):
        text += f"p.add_argument('--{name}', type=type({default}), default={default})\n"
    (written / "fit.py").write_text(f"{text}p.parse_args()\nprint('loss=1')\n")
    result = platform("init", "--from", "src/fit.py")
    last = result.stderr.splitlines()[-1]
    words = "platform submit hpo src --space beta-one=LOW..HIGH --local"
    assert last == f"to search another option (beta-one, window): `{words}`"
    words = words.replace("LOW..HIGH", "0.1..0.9").split()[1:]
    result = platform(*words, "--dry-run", "-o", "json")
    assert result.exit_code == 0 and set(json.loads(result.stdout)["job"]["space"]) == {"lr", "beta-one"}, result.output


SHARED = """
lr = 0.1
path = "/tmp/model.h5"
def ModelCheckpoint(path, save_best_only): return path
ModelCheckpoint(path, save_best_only=True)
open("/etc/hostname")
open("/dev/null", "w")
print(f"loss={lr}")
"""


@pytest.mark.parametrize("source", ["src/fit.py", "cd src && python fit.py --a-long-option with-a-long-value --lr 0.1"])
def test_trials_that_write_to_one_path_run_one_after_the_other(platform, written: Path, source: str) -> None:
    (written / "fit.py").write_text(SHARED)
    result = platform("init", "--from", source)
    assert result.exit_code == 0 and " uses /tmp/model.h5, which all trials share" in result.stderr, result.output
    folder = written if source.endswith("py") else written.parent
    assert "parallel: 1 # trials share /tmp/model.h5\n" in (folder / "job.yaml").read_text()
    assert result.stderr.count("--lr 0.1") <= 1, "a long command is shown once"
    (folder / "job.yaml").unlink()
    (written / "fit.py").write_text(SHARED.replace("/tmp/model.h5", "model.h5"))
    result = platform("init", "--from", source, "--no-smoke")
    assert "which all trials share" not in result.stderr and "parallel: 2\n" in (folder / "job.yaml").read_text()


def test_a_value_of_the_settings_file_is_searched_there_if_the_script_has_a_constant_of_its_name(
    platform, written: Path
) -> None:
    (written / "config.yaml").write_text("lr: 0.1\n")
    (written / "fit.py").write_text("import yaml\nlr = 0.5\nconfig = yaml.safe_load(open('config.yaml'))\n")
    result = platform("init", "--from", "src/fit.py", "--space", "lr=0.1..1.0", "--no-smoke")
    assert result.exit_code == 0 and made().arguments.files == ("config.yaml",), result.output


CONSTANTS = """
import argparse
WIDTH = 8
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--decay", type=float, default=0.5)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
print(f"loss={WIDTH * args.decay:.1f}", args.data)
"""


@pytest.mark.services
@pytest.mark.parametrize("source", ["python fit.py --data x --amp", "src/fit.py"])
def test_constants_of_a_script_with_arguments_are_searched(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (written / "fit.py").write_text(CONSTANTS)
    monkeypatch.chdir(written if source.startswith("python") else written.parent)
    result = platform("init", "--from", source, "--space", "WIDTH=2..4", "--space", "decay=0.1,0.2")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert set(load.load_job(written).search.parameters) == {"WIDTH", "decay"}
    fixed = ("--param", "WIDTH=3", "--param", "decay=0.2", "--trials", "1")
    result = platform("submit", "hpo", str(written), "--local", "--objective", "loss:min", *fixed)
    assert result.exit_code == 0, result.output
    assert platform("results").stdout.splitlines()[1].split()[1:3] == ["COMPLETE", "0.6"]


@pytest.mark.parametrize("source", ["src/fit.py", "python src/fit.py", "cd src && python fit.py"])
@pytest.mark.parametrize(
    "head",
    [
        "",
        "import argparse\nargparse.ArgumentParser().parse_args()\n",
        "import os\nlr = float(os.environ.get('LR', '0.1'))\n",
        "import yaml\nconfig = yaml.safe_load(open('config.yaml'))\n",
        "from sklearn.model_selection import GridSearchCV\n",
    ],
)
def test_a_constant_whose_name_is_no_known_parameter_is_searched_if_the_user_names_it(
    platform, written: Path, source: str, head: str
) -> None:
    (written / "fit.py").write_text(f"{head}params = {{'bagging_freq': 5, 'verbose': 0}}\nprint('loss:', params)\n")
    (written / "config.yaml").write_text("lr: 0.1\n")
    result = platform("init", "--from", source, "--space", "bagging_freq=1..10", "--no-smoke")
    assert result.exit_code == 0, result.output
    folder = next(folder for folder in (Path(), Path("src")) if (folder / "job.yaml").exists())
    assert set(load.load_job(folder).search.parameters) == {"bagging_freq"}


@pytest.mark.parametrize(
    "text",
    [
        "import optuna\ndef objective(trial): return 1\noptuna.create_study().optimize(objective)\n",
        "import wandb\nwandb.agent(wandb.sweep({'parameters': {'lr': {'min': 0.1, 'max': 1.0}}}), function=print)\n",
    ],
)
def test_the_space_of_a_search_in_a_script_is_not_replaced(platform, written: Path, text: str) -> None:
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", "src/fit.py", "--space", "lr=1..2")
    assert result.exit_code == 2 and "fit.py has a search of its own" in result.stderr, result.output


def test_the_other_parameters_of_an_objective_are_named(platform, written: Path) -> None:
    text = "def objective(trial): return trial.suggest_float('lr', 0, 1) + trial.suggest_int('depth', 1, 9)\n"
    (written / "fit.py").write_text(f"import optuna\n{text}optuna.create_study().optimize(objective)\n")
    result = platform("init", "--from", "src/fit.py", "--space", "lr=1..2")
    assert "to search only some of them, fix the others in job.yaml, as `params: {depth: …}`; nothing was" in result.stderr


READS_HIDDEN = """
from pathlib import Path
assert Path('.marker').exists() and Path("./.here").exists()
lr = 0.1
keys = [name for name in ('.env', '.login') if Path(name).exists()]
print(f'loss={lr}', keys)
"""


def test_a_hidden_file_that_a_script_names_is_packed(platform, written: Path) -> None:
    (written / "fit.py").write_text(READS_HIDDEN)
    texts = {".marker": "x\n", ".here": "x\n", ".env": "MODE=a\n", ".login": '{"api_key": "hush1"}\n', ".other": "x\n"}
    for name, text in texts.items():
        (written / name).write_text(text)
    result = platform("init", "--from", "src/fit.py")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert (written / ".jobignore").read_text() == "!/.marker\n"
    assert {name for name in pack.pack(written).files if name.startswith(".")} == {".marker", ".here"}
    for name in (".env", ".login"):
        assert f"fit.py reads {name}, which is not uploaded, as it may have secrets" in result.stderr


def test_a_script_that_needs_a_secret_is_asked_with_it(platform, written: Path) -> None:
    (written / "fit.py").write_text(f"import os\nos.environ['API_KEY']\n{ARGPARSE}")
    result = platform("init", "--from", "API_KEY=hush1 python src/fit.py")
    job = written / "job.yaml"
    assert "4 parameters to search" in result.stderr and "read no arguments" not in result.stderr, result.output
    assert "hush1" not in job.read_text()


def test_an_ignore_file_of_the_user_is_left_alone(platform, written: Path) -> None:
    (written / "fit.py").write_text(READS_HIDDEN)
    for name, text in {".marker": "x\n", ".here": "", ".jobignore": "out/\n"}.items():
        (written / name).write_text(text)
    result = platform("init", "--from", "src/fit.py")
    assert "add a line `!/.marker` to src/.jobignore, which includes it" in result.stderr, result.output
    assert (written / ".jobignore").read_text() == "out/\n"


def test_what_is_there_is_left_alone(platform, written: Path) -> None:
    (written / "fit.py").write_text(ARGPARSE + f"open({str(written / 'ran')!r}, 'w')\n")
    (written / "job.yaml").write_text("mine")
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and "src/job.yaml already exists; nothing was changed" in result.stderr
    assert (written / "job.yaml").read_text() == "mine" and not (written / "ran").exists()
    assert "; remove it, or move fit.py" in result.stderr


def test_the_command_that_replaces_a_job_of_a_script_is_shown(platform, written: Path) -> None:
    (written / "fit.py").write_text("lr = 0.1\nprint('val_acc=1')\n")
    words = ("init", "--from", "src/fit.py", "--objective", "val_acc:max", "--no-smoke")
    assert platform(*words).exit_code == 0
    result = platform(*words)
    assert result.exit_code == 2 and f"`rm src/job.yaml && {shlex.join(('platform', *words))}` replaces it" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name the job"),
        (("--from", "src/onw.py"), "there is no src/onw.py; did you mean own.py?; nothing was changed"),
        (("--from", "no/such.py"), "there is no no/such.py; give the path of a Python script; nothing was changed"),
        (("--from", "src/table.csv"), "src/table.csv is not a Python script"),
        (("--from", "src"), "src is not a Python script"),
        (("x", "--space", "lr=1..2"), "--space needs --from"),
        (("--from", "a.py", "--space", "lr"), "'lr' is not a parameter; write NAME=LOW..HIGH"),
        (("x", "--kind", "train", "--from", "a.py"), "drop --kind"),
        (
            ("x", "--from", "python src/own.py", "--space", "lr=1..2"),
            "--from writes a job.yaml beside the script; drop x: `platform init --from 'python src/own.py' --space lr=1..2`",
        ),
        (("x", "--from", "own.py", "--no-smoke"), "; drop x: `platform init --from own.py --no-smoke`"),
    ],
)
def test_wrong_words(platform, written: Path, words: tuple[str, ...], told: str) -> None:
    result = platform("init", *words)
    assert result.exit_code == 2 and told in result.stderr


FLOATS = {
    "flags": ("src/fit.py", "import argparse\np = argparse.ArgumentParser()\nSET\np.parse_args()\n"),
    "command": (
        "cd src && python fit.py --mosaic 1",
        "import argparse\np = argparse.ArgumentParser()\nSET\np.parse_args()\n",
    ),
    "constants": ("src/fit.py", "lr = 0.1\nmosaic = 1.0\ncopies = 1\n"),
    "settings file": ("src/fit.py", "import yaml\nyaml.safe_load(open('hyp.yaml'))\n"),
    "settings file of a command": ("cd src && python fit.py --hyp hyp.yaml", "lr = 0.1\n"),
}
_FLAGS = "".join(
    f"p.add_argument('--{name}', type={kind}, default={default})\n"
    for name, kind, default in (("lr", "float", 0.1), ("mosaic", "float", 1.0), ("copies", "int", 1))
)


@pytest.mark.parametrize("style", FLOATS)
def test_the_range_of_a_float_is_one_of_floats(platform, written: Path, style: str) -> None:
    source, text = FLOATS[style]
    (written / "fit.py").write_text(text.replace("SET\n", _FLAGS))
    (written / "hyp.yaml").write_text("lr: 0.1\nmosaic: 1.0\ncopies: 1\n")
    spaces = ("--space", "mosaic=0..1", "--space", "copies=0..1")
    result = platform("init", "--from", source, "--no-smoke", *spaces)
    assert result.exit_code == 0, result.output
    folder = written if source.startswith("src") else written.parent
    parameters = load.load_job(folder).search.parameters
    assert {name: parameter.type for name, parameter in parameters.items()} == {"mosaic": "float", "copies": "int"}


def test_an_abbreviated_flag_of_a_command_is_one_option(platform, written: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
    text += "p.add_argument('--batch-size', type=int, default=16)\np.add_argument('--drop', type=float, default=0.1)\n"
    text += "p.add_argument('--drop-path', type=float, default=0.1)\np.add_argument('--img-size', '--img', type=int)\n"
    (written / "fit.py").write_text(f"{text}p.parse_args()\n")
    command = "cd src && python fit.py --batch 8 --drop 0.2 --img 64"
    result = platform("init", "--from", command, "--no-smoke", "--space", "batch-size=4..16", "--space", "drop-path=0..1")
    assert result.exit_code == 0, result.output
    job = load.load_job(written.parent)
    assert set(job.search.parameters) == {"batch", "drop-path"} and job.search.enqueue[0]["batch"] == 8
    assert not any(f"{name}:" in (written.parent / "job.yaml").read_text() for name in ("batch-size", "img-size"))


def test_a_typed_integer_is_passed_as_typed(platform, written: Path) -> None:
    text = "import argparse, sys\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
    text += "p.add_argument('--num_train_epochs', type=float)\np.add_argument('--alpha', type=float)\n"
    (written / "fit.py").write_text(f"{text}p.parse_args()\nprint('loss=1', sys.argv)\n")
    result = platform("init", "--from", "cd src && python fit.py --num_train_epochs 2 --alpha 1")
    assert result.exit_code == 0, result.output
    assert "--num_train_epochs 2 " in result.stderr and "2.0" not in result.stderr
    job = load.load_job(written.parent)
    assert job.params["num_train_epochs"] == 2 and type(job.params["num_train_epochs"]) is int
    assert job.search.parameters["alpha"].type == "float"


def test_the_words_of_a_vocabulary_are_no_metrics(platform, written: Path) -> None:
    text = "import json\nlr = 0.1\nwords = [*(f'w{number}' for number in range(60)), 'em', 'hit', 'Cer']\n"
    text += "tokenizer = {'added_tokens': [{'id': 0}], 'vocab': dict(zip(words, range(100)))}\n"
    text += "json.dump(tokenizer, open('tokenizer.json', 'w'), indent=1)\n"
    text += "names = [f'grad{number}' for number in range(60)] + ['em']\n"
    text += "open('scores.csv', 'w').write(','.join(names) + '\\n' + '1.5,' * 60 + '0.5\\n')\n"
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", "src/fit.py")
    assert result.exit_code == 0 and "its metrics: em, grad" in result.stderr and "Cer" not in result.stderr, result.output
    assert "path: scores.csv" in (written / "job.yaml").read_text()


def test_the_memory_is_that_of_the_smoke_run_with_headroom(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import signal\nlr = 0.1\nheld = b'x' * (400 << 20)\nprint('loss=1', flush=True)\nsignal.pause()\n"
    (written / "fit.py").write_text(text)
    assert platform("init", "--from", "src/fit.py", "--no-smoke").exit_code == 0
    assert (written / "job.yaml").read_text().endswith("\nresources: {cpus: 1, memory: 2Gi}\n")
    (written / "job.yaml").unlink()
    monkeypatch.setattr(script_job, "LEAST_MEMORY", 0)
    result = platform("init", "--from", "src/fit.py", "--smoke-seconds", "5")
    assert result.exit_code == 0, result.output
    remark = "# one run with the defaults used 0.4 GiB before it was stopped"
    assert (written / "job.yaml").read_text().endswith(f"\nresources: {{cpus: 1, memory: 2Gi}} {remark}\n")
    (written / "job.yaml").unlink()
    (written / "fit.py").write_text(text.replace("signal.pause()", "import time; time.sleep(1)"))
    assert platform("init", "--from", "src/fit.py").exit_code == 0
    assert "used 0.4 GiB\n" in (written / "job.yaml").read_text(), "it ended, so it needs less headroom"


def test_a_command_without_a_likely_parameter_waits_for_the_library_that_its_script_lacks(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written)
    (written / "fit.py").write_text(f"import no_such_library\n{ARGPARSE}")
    result = platform("init", "--from", "python fit.py --seed 3")
    assert result.exit_code == 2 and "'no_such_library'; install it, and type this again" in result.stderr, result.output
    assert not Path("job.yaml").exists()
    assert platform("init", "--from", "python fit.py --lr 0.1", "--no-smoke").exit_code == 0


@pytest.mark.parametrize("typed", ["fit.py", "VERBOSE=1 python fit.py"])
def test_a_number_that_a_script_sets_twice_is_searched_at_both_lines(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    text = "size = 1\nlr = 0.1\nprint('first_loss=', size)\nsize = 2\nprint('loss=', size * lr)\n"
    write(written, {"fit.py": text})
    monkeypatch.chdir(written)
    result = platform("init", "--from", typed, "--space", "size=1..32", "--space", "lr=0.1..1")
    assert result.exit_code == 0, result.output
    told = "size is set in lines 1 and 4 of fit.py; both get the trial's value, 2 in the first trial\n"
    assert f"\n{told}" in result.stderr
    assert "lr is set" not in result.stderr
    job_text = Path("job.yaml").read_text()
    assert "\n# Values that are replaced in fit.py: lr in line 2\n" in job_text
    assert "\nenqueue: [{size: 2, lr: 0.1}]" in job_text and f"\n# {told}" in job_text
    Path("job.yaml").unlink()
    assert "both get the trial's value\n" in platform("init", "--from", typed, "--space", "size=3..9").stderr


@pytest.mark.parametrize("config", ["settings.yaml", "settings.py"])
def test_only_a_settings_file_in_python_is_read_for_numbers_that_it_sets_twice(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    names, source = [], script_folder.source
    monkeypatch.setattr(script_folder, "source", lambda file: names.append(file.name) or source(file))
    is_python = config.endswith(".py")
    text = "size = 1\nlr = 0.1\nsize = 2\n" if is_python else "size: 2\nlr: 0.1\n"
    write(written, {config: text, "fit.py": "import sys\nprint('loss=', len(open(sys.argv[1]).read()))\n"})
    monkeypatch.chdir(written)
    result = platform("init", "--from", f"python fit.py {config}", "--space", "size=1..32")
    assert result.exit_code == 0, result.output
    assert (f"size is set in lines 1 and 3 of {config}" in result.stderr) == (config in names) == is_python
