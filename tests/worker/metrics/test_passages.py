"""Passages of an output whose numbers are not metrics: tracebacks, stacks, dumps of arguments and objects; and what is none.

Real dumps, as Python and well-known libraries print them.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import textwrap
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as given
from tests.worker.metrics.conftest import STDOUT, Trial

from trialplane.job.program import MetricSource
from trialplane.worker.metrics import passages

GOOD = "\nstep 1 loss=0.5\n"


def found(root: Path, text: str, *names: str) -> dict[str, float]:
    """The metrics of a text, with a line of results behind it."""
    trial = Trial(root, STDOUT, names=names)
    trial.prints(textwrap.dedent(text) + GOOD)
    trial.read(ended=True)
    return trial.reader.newest


@pytest.mark.parametrize(
    "text",
    [
        """
        /lib/sklearn/linear_model.py:1135: FutureWarning: 'penalty' was deprecated. Use l1_ratio=0 instead.
          warnings.warn(
        """,
        """
        Traceback (most recent call last):
          File "/work/train.py", line 5, in main
            raise SystemExit(loss=3)
        SystemExit: 5
        """,
        """
        2026-01-02 10:00:00 ERROR batch=7
        Traceback (most recent call last):
          File "/work/lr=0.1/train.py", line 5, in main
            fit(lr=0.1)
            ^^^^^^^^^^^
        ValueError: 3

        During handling of the above exception, another exception occurred:

        Traceback (most recent call last):
          File "/work/train.py", line 7, in <module>
            main(epochs=3)
        train.Wrong: 4
        """.replace("batch=7", "no batch"),
        """
          + Exception Group Traceback (most recent call last):
          |   File "/work/train.py", line 1, in <module>
          |     raise ExceptionGroup(code=1)
          | ExceptionGroup: two (2 sub-exceptions)
          +-+---------------- 1 ----------------
            | ValueError: 1
            +---------------- 2 ----------------
            | SystemExit: 2
            +------------------------------------
        """,
        """
        [rank0]: Traceback (most recent call last):
        [rank0]:   File "train.py", line 3, in <module>
        [rank0]:     x(lr=0.5)
        [rank0]: SystemExit: 5
        """,
        """
        Fatal Python error: Aborted

        Current thread 0x00007f7a (most recent call first):
          File "/work/train.py", line 3 in spin
          File "/work/train.py", line 9 in <module>

        Extension modules: numpy._core._multiarray_umath, torch._C (total: 1)
        """,
        "SIGTERM: 30 s to save a checkpoint and end\ntrialplane: wandb.watch has no effect: 3\n",
        "make: *** [Makefile:3: run] Error 127\n",
        "make[2]: [Makefile:3: run] Error 1 (ignored)\ngmake[1]: *** [all] Error 2\nscons: *** [run] Error 1\n",
    ],
)
def test_an_error_holds_no_metrics(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text, "SystemExit", "total", "Error") == {"loss": 0.5}


def test_an_error_behind_brackets_is_a_metric(tmp_path: Path) -> None:
    assert found(tmp_path, "[epoch 1] Error 12\n", "Error") == {"Error": 12.0, "loss": 0.5}


def test_the_line_after_a_traceback_counts_again(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in b\nValueError: 3\nf1: 0.75\nvalue_error: 4\n'
    assert found(tmp_path, text) == {"f1": 0.75, "value_error": 4.0, "loss": 0.5}


def test_a_dump_of_pythons_own_holds_no_metrics(tmp_path: Path) -> None:
    with (tmp_path / "dump.txt").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    assert "most recent call first" in text and found(tmp_path / "trial", text) == {"loss": 0.5}


def dumps() -> dict[str, str]:
    """Arguments and objects as they are printed, by where that is from."""
    args: dict[str, Any] = {"lr": 0.1, "crop_pct": 0.875, "eps": 1e-8, "batch_size": 64, "betas": (0.9, 0.999), "amp": True}
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4, eps=1e-5), torch.nn.Dropout(p=0.25))
    lines = [f"{name}: {value}" for name, value in args.items()]
    return {
        "argparse": str(argparse.Namespace(**args)),
        "with a word": f"args: {argparse.Namespace(**args)}",
        "vars": str(args),
        "vars with a word": f"2026-01-02 10:00:00 [INFO] Arguments: {args}",
        "config": f"config = {args}",
        "transformers": "TrainingArguments(\n_n_gpu=0,\nadam_epsilon=1e-08,\nfp16=False,\nlearning_rate=5e-05,\n)",
        "torch": str(net),
        "below a heading": "\n".join(["Hyperparameters", "---------------", *lines, ""]),
        "below a heading with a colon": "\n".join(
            ["Data processing configuration for model + dataset:", *map("\t{}".format, lines)]
        ),
        "table": "\n".join(["=== Options ===", *(f"| {name} = {value} |" for name, value in args.items()), "==="]),
        "json": '{"lr": 0.1, "batch_size": 64, "seed": 3, "model": "resnet"}',
        "in a record": '{"step": 0, "config": {"lr": 0.1, "eps": 1e-8}}',
        "one line": "lr=0.1, batch_size=64, epochs=10",
    }


@pytest.mark.parametrize("kind", dumps())
def test_a_dump_of_arguments_holds_no_metrics(tmp_path: Path, kind: str) -> None:
    assert found(tmp_path, dumps()[kind]) == {"loss": 0.5}


@pytest.mark.slow  # torch imports its compiler for an optimizer
def test_a_printed_optimizer_holds_no_metrics(tmp_path: Path) -> None:
    printed = str(torch.optim.Adam(torch.nn.Linear(3, 4).parameters(), lr=0.1, eps=1e-8))
    assert found(tmp_path, printed) == {"loss": 0.5}


LAYERS = """
  | Name      | Type               | Params | Mode  | FLOPs
---------------------------------------------------------------
0 | model     | Sequential         | 5.3 K  | train | 1.2 M
1 | val_acc   | MulticlassAccuracy | 0      | train | 0
---------------------------------------------------------------
5.3 K     Trainable params
0.021     Total estimated model params size (MB)
"""


@pytest.mark.parametrize("text", [LAYERS, LAYERS.replace("|", "│").replace("  │ Name", "┃   ┃ Name")])
def test_a_table_of_layers_holds_no_metrics(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, f"{text}f1: 0.75\n", "MulticlassAccuracy", "val_acc") == {"f1": 0.75, "loss": 0.5}


COUNTS = """
Trainable params: 202 K
Non-trainable params: 0
Total estimated model params size (MB): 0.808
Modules in train mode: 247
Total FLOPs: 396 K
 Total params: 409 (1.6 KB)
"""


def test_counts_of_a_models_parameters_are_only_metrics_that_the_job_names(tmp_path: Path) -> None:
    """As the summaries of Lightning and Keras print them."""
    assert found(tmp_path / "other", COUNTS) == {"loss": 0.5}
    assert found(tmp_path / "named", COUNTS, "FLOPs", "train_mode") == {"loss": 0.5, "FLOPs": 396.0, "train_mode": 247.0}


@pytest.mark.parametrize("kind", ["argparse", "with a word", "vars with a word", "config"])
def test_what_is_certainly_an_argument_is_not_even_the_objective(tmp_path: Path, kind: str) -> None:
    text = dumps()[kind].replace("crop_pct", "best_acc")
    assert "best_acc" not in found(tmp_path, text, "best_acc")


@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        ("EvalResult(acc=0.5, f1=0.25)", {"acc": 0.5, "f1": 0.25}),
        ("Best(acc=0.5)", {"acc": 0.5}),
        ("Results:\n  acc: 0.5\n  f1: 0.25", {"acc": 0.5, "f1": 0.25}),
        ("Loading the model (\nf1: 0.25\nacc=0.5", {"acc": 0.5, "f1": 0.25}),
        ("Options:\n  seed: 3\nf1: 0.25\nacc: 0.5", {"acc": 0.5, "f1": 0.25}),
        ("Options:\nseed: 3\nf1: 0.125\nf1: 0.25", {"f1": 0.25}),
        ("Options:\nseed: 3\nepoch: 1 f1: 0.25", {"f1": 0.25}),
        ("Arguments:\nseed: 3\nacc: 0.5", {"acc": 0.5}),
        ("{'eval_loss': 0.5, 'learning_rate': 1e-05, 'momentum': 0.9, 'f1': 1}", None),
        ("(acc=0.5, lr=0.1, f1=0.25)", {"acc": 0.5, "lr": 0.1, "f1": 0.25}),
        ("{'acc': Array(0.5, dtype=float32), 'f1': 0.25}", {"acc": 0.5, "f1": 0.25}),
        ("target: 0.5 optimum: 3", {"target": 0.5, "optimum": 3.0}),
        ("params: {'lr': 0.1, 'acc': 9} acc: 0.5", {"acc": 0.5}),
        ("config={'lr': [0.1]}, acc=0.5", {"acc": 0.5}),
        ("Namespace(lr=0.1) acc: 0.5 args: {'f1': 3} f1: 0.25", {"acc": 0.5, "f1": 0.25}),
    ],
)
def test_what_may_be_results_counts(tmp_path: Path, text: str, metrics: dict[str, float] | None) -> None:
    made = found(tmp_path, text, "acc")
    assert len(made) == 5 if metrics is None else made == {**metrics, "loss": 0.5}


def test_an_expression_of_the_job_looks_into_dumps_but_not_into_tracebacks(tmp_path: Path) -> None:
    trial = Trial(tmp_path, MetricSource("stdout", pattern=(r"(\w+)[=:] ?([\d.]+)",)))
    trial.prints('Summary(f1=0.5)\nTraceback (most recent call last):\n  File "a", line 1\nSystemExit: 5\n')
    trial.read(ended=True)
    assert trial.reader.newest == {"f1": 0.5}


def test_a_logged_exception_does_not_end_the_reading(tmp_path: Path) -> None:
    log = tmp_path / "log"
    logger = logging.Logger("toy")
    logger.addHandler(handler := logging.FileHandler(log))
    for loss in (3, 2):
        try:
            raise ValueError(f"loss: {loss}")
        except ValueError:
            logger.exception("epoch %d: loss=%d", loss, loss)
    handler.close()
    assert found(tmp_path / "trial", log.read_text() + "acc=1") == {"loss": 0.5, "acc": 1.0}


def test_optunas_log_has_only_the_metrics_that_the_job_names(tmp_path: Path) -> None:
    text = """
        [I 2025-01-02 10:00:00,123] A new study created in memory with name: no-name-1
        \x1b[32m[I 2025-01-02 10:00:00,456]\x1b[0m Trial 9 finished with value: 0.3 and parameters: {'x': 0.1}.
        [W 2025-01-02 10:00:01,456] Trial 10 failed with parameters: {'x': 0.2} score: 0.1
    """
    assert found(tmp_path / "other", text) == {"loss": 0.5}
    assert found(tmp_path / "named", text, "value") == {"loss": 0.5, "value": 0.3}


def test_lightgbms_log_has_only_the_metrics_that_the_job_names(tmp_path: Path) -> None:
    """Its command prints all its metrics in such lines."""
    text = """
        [LightGBM] [Info] Number of data points in the train set: 594, number of used features: 6
        [LightGBM] [Warning] No further splits with positive gain, best gain: -7
    """
    assert found(tmp_path / "other", text) == {"loss": 0.5}
    assert found(tmp_path / "named", text, "gain") == {"loss": 0.5, "gain": -7.0}
    command = "[LightGBM] [Info] Iteration:1, valid_1 auc : 0.75"
    assert found(tmp_path / "command", command)["auc"] == 0.75


@hypothesis.given(given.lists(given.text(alphabet="ab:= (){}[]\t1-", max_size=12), max_size=30))
def test_any_lines_are_taken_and_nothing_is_added(text: list[str]) -> None:
    seen = passages.Passages()
    for line in text:
        characters = iter(line)
        assert all(one in characters for one in seen.result_part(line).text), "in their order"
