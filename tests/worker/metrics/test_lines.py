"""Metrics in lines of text, as well-known programs print them, and lines that hold none."""

from __future__ import annotations

import math

import hypothesis
import pytest
from hypothesis import strategies as given

from trialplane.worker.metrics import lines
from trialplane.worker.metrics.names import Names, similar_name

NAMES = ("accuracy", "val_loss")


@pytest.mark.parametrize(
    ("line", "step", "metrics"),
    [
        ("loss=0.93", None, {"loss": 0.93}),
        ("name: 0.93  acc: 93.1%", None, {"name": 0.93, "acc": 93.1}),
        ('{"step": 3, "loss": 0.5, "eval": {"f1": 1}, "ok": true}', 3, {"loss": 0.5, "eval.f1": 1.0}),
        ("{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 1.0}", 1, {"loss": 0.5, "learning_rate": 1e-05}),
        ("{'loss': 0.5, 'epoch': 1.25}", None, {"loss": 0.5}),
        ("Epoch [3/10], Step [100/600], Loss: 0.25", 100, {"Loss": 0.25}),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300", 1, {"train_Loss": 2.3}),
        ("Test set: Average loss: 0.04, Accuracy: 9870/10000 (99%)", None, {"test_loss": 0.04, "accuracy": 0.987}),
        (
            "epoch:2, time: 1.4(s), valid (NDCG@10: 0.15, HR@10: 0.28), test (NDCG@10: 0.16, HR@10: 0.29)",
            2,
            {"time": 1.4, "valid_NDCG_10": 0.15, "valid_HR_10": 0.28, "test_NDCG_10": 0.16, "test_HR_10": 0.29},
        ),
        ("Epoch 3: val_loss improved from 0.61 to 0.45, saving model", 3, {"val_loss": 0.45}),
        ("Val loss decreased (inf --> 0.666). Saving model ...", None, {"val_loss": 0.666}),
        ("10:32:32,975 - val_loss has been updated to 0.5965", None, {"val_loss": 0.5965}),
        ("Epoch 4: val_loss did not improve from 0.45", 4, {}),
        (
            "Epoch 3, global step 36: 'val/wer' reached 0.77523 (best 0.77523), saving model to './a/epoch=3-step=36.ckpt'",
            36,
            {"val/wer": 0.77523},
        ),
        ("Epoch 3, global step 36: 'val_loss' was not in top 1", 36, {}),
        ("Metric val_wer improved. New best score: -0.8", None, {"val_wer": -0.8}),
        ("Metric wer improved by 0.018 >= min_delta = 0.0. New best score: 0.822", None, {"wer": 0.822}),
        ("`Trainer.fit` stopped: `max_epochs=4` reached.", None, {}),
        ("TPU available: False, using: 0 TPU cores", None, {}),
        ("step 250: train loss 1.9, val loss 2.1", 250, {"val_loss": 2.1}),
        ("[10]\ttrain-rmse:0.3\tvalid-auc:0.9", 10, {"train-rmse": 0.3, "valid-auc": 0.9}),
        ("[3/10] train_loss=0.4 val_loss=0.5", 3, {"train_loss": 0.4, "val_loss": 0.5}),
        ("100%|###| 60/60 [00:05<00:00, 11.3it/s, loss=0.3]", None, {"loss": 0.3}),
        ("Epoch 3/10 - loss: 0.3 - accuracy: 0.9", 3, {"loss": 0.3, "accuracy": 0.9}),
        ("12/12 [====] - 0s 5ms/step - loss: 0.4 - val_loss: 0.7", None, {"loss": 0.4, "val_loss": 0.7}),
        ("Accuracy is 0.8", None, {"accuracy": 0.8}),
        ("Accuracy on test set: 93.2%", None, {"accuracy": 93.2, "test_set": 93.2}),
        ("\x1b[32maccuracy\x1b[0m: \x1b[1m0.93\x1b[0m", None, {"accuracy": 0.93}),
        ("{'accuracy': np.float64(0.93), 'loss': tensor(0.25)}", None, {"accuracy": 0.93, "loss": 0.25}),
        ("| val_loss   | 22.2 |", None, {"val_loss": 22.2}),
        ("   macro avg   0.93  0.92  0.91   60", None, {"precision_macro": 0.93, "recall_macro": 0.92, "f1_macro": 0.91}),
        ("   macro avg   0.93  0.92  0.9.1   60", None, {"precision_macro": 0.93, "recall_macro": 0.92}),
        ("macro avg of 3 runs", None, {}),
        (" Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.420", None, {"AP": 0.42}),
        (" Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.620", None, {"AP50": 0.62}),
        (" Average Precision  (AP) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = 0.120", None, {"APs": 0.12}),
        (" Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets= 10 ] = 0.320", None, {"AR10": 0.32}),
        (" Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.520", None, {"AR": 0.52}),
        (" Average Recall     (AR) @[ IoU=0.50:0.95 | area=medium | maxDets=100 ] = -1.000", None, {}),
        ("Train accuracy: 0.99 | Test accuracy: 0.91", None, {"train_accuracy": 0.99, "test_accuracy": 0.91}),
        ("train accuracy 0.1, accuracy 0.5", None, {"accuracy": 0.5}),
        (
            "accuracy: 1,234.5, val_loss=$12,345 score: -1,234.5 layers: 64,128",
            None,
            {"accuracy": 1234.5, "val_loss": 12345.0, "score": -1234.5},
        ),
        ("val_loss: 0,123 accuracy: 1,234,5", None, {}),
        ("val_loss: 12,345/20,000 accuracy: $1", None, {}),
        ("val_loss: tf.Tensor(0.3, shape=(), dtype=float32)", None, {"val_loss": 0.3}),
        ("val loss 12,345.5", None, {"val_loss": 12345.5}),
        ("Accuracy is ==> -0.5", None, {"accuracy": -0.5}),
        ("Accuracy => 0.8", None, {"accuracy": 0.8}),
        ("Accuracy of the 3 models is 0.8", None, {"accuracy": 0.8}),
        ("Accuracy on the test set is 93 %", None, {"accuracy": 93.0}),
        ("Accuracy on the training set is 0.93", None, {"training_accuracy": 0.93}),
        ("Accuracy of the network on 50000 train images is 54 %", None, {"train_accuracy": 54.0}),
        ("The accuracy of the 3 models is 5 points lower", None, {}),
        ("achieved an accuracy of 0.90", None, {"accuracy": 0.9}),
        ("improvement in accuracy of 0.02, from an accuracy of 0.5", None, {}),
        ("Accuracy of   cat : 40 %", None, {"cat": 40.0}),
        ("Accuracy of model : 40 %", None, {"model": 40.0, "accuracy": 40.0}),
        ("adj accuracy: 0.5, Adj. mae: 0.4", None, {"adj_accuracy": 0.5, "adj._mae": 0.4}),
        ("balanced accuracy 0.5, PR-accuracy 0.4, accuracy 0.3", None, {"accuracy": 0.3}),
        ("epochs=100", None, {"epochs": 100.0}),
        ("max_steps: 1000", None, {"max_steps": 1000.0}),
        ("loss=" + "9" * 400, None, {"loss": math.inf}),
        ("epoch=2", 2, {}),
        ("global step 7, epoch 1: loss=3", 7, {"loss": 3.0}),
        ("the rmse of the prediction is: 0.25", None, {}),
        ("serving on http://localhost:8080", None, {}),
        ("2024-01-02 10:31:02 INFO: hello 3", None, {}),
        ("version: 1.2.3 hash=3fa9 eta: 0:00:10", None, {}),
        ("done in 3 epochs", None, {}),
        ("no number here: at all", None, {}),
    ],
)
def test_forms(line: str, step: int | None, metrics: dict[str, float]) -> None:
    assert lines.LineParser((), Names(NAMES)).parse(line)[:2] == (step, pytest.approx(metrics))


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("Train Epoch: 1 [640/60000 (1%)]\tLearning rate: 0.004\tLoss: 2.3", {"train_rate": 0.004, "train_Loss": 2.3}),
        ("Test set: Average loss: 0.04", {"test_loss": 0.04}),
        ("[TRAIN] Iter: 100 Loss: 0.5  PSNR: 17.5", {"train_Loss": 0.5, "train_PSNR": 17.5}),
        ("INFO - Validation - loss=0.5 mae=2", {"val_loss": 0.5, "validation_mae": 2.0}),
        ("Dev: time: 0.52s, speed: 2000.00st/s; mae: 0.9433, f: 0.45", {"dev_mae": 0.9433, "dev_f": 0.45}),
        ("Epoch 3/10 dev loss: 0.5, mae: 2", {"dev_loss": 0.5, "dev_mae": 2.0}),
        ("Epoch 3 Development | loss: 0.5 | mae: 2", {"development_loss": 0.5, "development_mae": 2.0}),
        ("** Test ** loss: 0.5 mae: 2", {"test_loss": 0.5, "test_mae": 2.0}),
        ("=== Dev === loss: 0.5", {"dev_loss": 0.5}),
        ("test ==> loss: 0.5 mae: 2", {"test_loss": 0.5, "test_mae": 2.0}),
        ("valid -> 0.5, mae: 2", {"mae": 2.0}),
        ("eval: split test . loss: 0.5. mae: 2", {"test_loss": 0.5, "test_mae": 2.0}),
        ("EP0_test, mae= 2", {"test_mae": 2.0}),
        ("Train: 0 [   0/12 (  0%)]  Loss: 2.3 (2.5)", {"Train": 0.0, "train_Loss": 2.5}),
        ("2026-01-31 12:00:00 | INFO | train_inner | mae=2", {"train_mae": 2.0}),
        ("[1]\ttraining's mae: 2\tvalid_1's mae: 3", {"training_mae": 2.0, "valid_1_mae": 3.0}),
        ("epoch_3_val: loss= 2", {"val_loss": 2.0}),
        ("saved ep0_test.pt, mae: 2", {"mae": 2.0}),
        ("std dev: 0.5, mae: 2, device: 1", {"dev": 0.5, "mae": 2.0, "device": 1.0}),
        ("Std. dev: 0.5, mae: 2", {"dev": 0.5, "mae": 2.0}),
        ("St. dev: 0.5", {"dev": 0.5}),
        ("mean abs dev: 0.5", {"dev": 0.5}),
        ("mean absolute dev: 0.5", {"dev": 0.5}),
        ("max dev: 0.5", {"dev": 0.5}),
        ("mean dev: 0.5", {"dev": 0.5}),
        ("mean dev loss: 0.5", {"dev_loss": 0.5}),
        ("mode: dev | loss: 0.5", {"loss": 0.5}),
        ("mode=dev | loss: 0.5", {"loss": 0.5}),
        ("split train: 60000, loss: 3", {"train_split": 60000.0, "loss": 3.0}),
        ("epoch 3 | train: loss=0.5 | val: loss=0.7", {"train_loss": 0.5, "val_loss": 0.7}),
        ("epoch 3 {'train': {'loss': 0.5}, 'test': {'loss': 0.7}}", {"train_loss": 0.5, "test_loss": 0.7}),
        ("Train Loss: 0.5, mae: 2", {"train_Loss": 0.5, "train_mae": 2.0}),
        ("Train loss: 0.5, val loss: 0.7, time: 3", {"train_loss": 0.5, "val_loss": 0.7, "time": 3.0}),
        ("train loss: 0.5, loss: 0.6", {"train_loss": 0.5, "loss": 0.6}),
        ("valid: 3, mae: 2", {"valid": 3.0, "mae": 2.0}),
        ("train: [0.5] test: [0.6]", {"train": 0.5, "test": 0.6}),
        ("mae train: 0.71 test: 0.58", {"train_mae": 0.71, "test_mae": 0.58}),
        ("Epoch 3, mae (train: 71%, valid: 58%), time: 3", {"train_mae": 71.0, "valid_mae": 58.0, "time": 3.0}),
        ("mae training: 1.27, error for test: 2", {"training_mae": 1.27, "test_error": 2.0}),
        ("Final Train: 0.9, Test: 0.8", {"Train": 0.9, "Test": 0.8}),
        ("after training: 0.9, epoch test: 0.8", {"training": 0.9, "test": 0.8}),
        ("the training of loss: 0.5", {"loss": 0.5}),
        ("Epoch [3/10], Train Loss: 0.5, Accuracy: 80", {"train_Loss": 0.5, "accuracy": 80.0}),
        ("Epoch: 003, Train Loss: 0.5, Acc: 0.8", {"train_Loss": 0.5, "Acc": 0.8}),
        ("Iter 100, Train Loss: 0.5, Perplexity: 12.3", {"train_Loss": 0.5, "Perplexity": 12.3}),
        (
            "| End of training | test/loss: 0.5 | val_acc: 2 | mae: 3",
            {"test/loss": 0.5, "val_acc": 2.0, "training_mae": 3.0},
        ),
    ],
)
def test_a_set_of_data_before_several_metrics_belongs_to_their_names(line: str, metrics: dict[str, float]) -> None:
    assert lines.LineParser((), Names(NAMES)).parse(line).metrics == metrics


def test_a_metric_that_the_job_names_without_a_set_of_data_is_none_of_training() -> None:
    parse = lines.LineParser((), Names(("loss",))).parse
    assert parse("Train Epoch: 1 Loss: 0.9").metrics == {"train_Loss": 0.9}
    assert parse("Train Epoch: 1 Loss 0.9").metrics == {"train_loss": 0.9}
    assert parse("Test set: Average loss: 0.8").metrics == {"loss": 0.8}
    assert parse("Epoch 3: train acc 0.5, loss 0.8, f1 0.3").metrics == {"loss": 0.8}
    parse = lines.LineParser((), Names(("loss", "test_loss"))).parse
    assert parse("Test: [1/3] Loss 0.8").metrics == {"test_loss": 0.8}
    assert parse("Epoch: [1] Loss 0.9").metrics == {"loss": 0.9}


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("[1]\ttraining's auc: 0.9\tvalid_1's auc: 0.8", {"training_auc": 0.9, "valid_1_auc": 0.8, "auc": 0.8}),
        ("[1]\tvalid_0's auc: 0.9\tvalid_1's auc: 0.8", {"valid_0_auc": 0.9, "valid_1_auc": 0.8}),
        ("[1]\ttrain's auc: 0.9\tvalid's auc: 0.8", {"train_auc": 0.9, "valid_auc": 0.8, "auc": 0.8}),
        ("[1]\tvalid's auc: 0.9\ttest's auc: 0.8", {"valid_auc": 0.9, "test_auc": 0.8, "auc": 0.9}),
        ("[1]\ttrain's auc: 0.9", {"train_auc": 0.9}),
        ("[1]\tvalidation_0-auc:0.9", {"validation_0-auc": 0.9, "auc": 0.9}),
        ("[1]\tvalidation_0-auc:0.9\tvalidation_1-auc:0.8", {"validation_0-auc": 0.9, "validation_1-auc": 0.8}),
    ],
)
def test_a_metric_that_the_job_names_is_none_of_several_numbered_sets(line: str, metrics: dict[str, float]) -> None:
    """LightGBM and XGBoost number them, and the first may be the training set."""
    assert lines.LineParser((), Names(("auc",))).parse(line).metrics == metrics


def test_lines_of_training_beside_those_of_held_out_data_lack_the_metric_that_the_job_names() -> None:
    """From the second line of held-out data on. A line without a step may be the result of the program."""
    names = Names(("ppl",))
    parse = lines.LineParser((), names).parse
    epoch = ("epoch 1 | 50/92 batches | ppl 7.5", "epoch 1 | 90/92 batches | ppl 7", "eval checkpoint 1 | ppl 1.8")
    assert [parse(line).metrics.get("ppl") for line in (*epoch, *epoch, *epoch)] == [
        7.5,
        7,
        1.8,
        7.5,
        7,
        1.8,
        None,
        None,
        1.8,
    ]
    assert parse("50%|#| 1/2 [00:05<00:00, 11.3it/s, ppl=6.5]").metrics == {}
    assert parse("final ppl 1.5").metrics == {"ppl": 1.5}
    assert names.mixed == {"ppl": "eval_ppl"}


def test_lines_of_batches_beside_those_of_epochs_lack_the_metric_that_the_job_names() -> None:
    names = Names(("acc_1",))
    parse = lines.LineParser((), names).parse
    epoch = ("Epoch 1 Step 10/12 lr 0.05 acc@1 0.6", "Epoch 1 Step 12/12 lr 0.05 acc@1 0.7", "Epoch 1 acc@1 0.3")
    values = [parse(line).metrics.get("acc_1") for line in (*epoch, *epoch, *epoch)]
    assert values == [0.6, 0.7, 0.3, 0.6, 0.7, 0.3, None, None, 0.3]
    assert parse("50%|#| 1/2 [00:05<00:00, 11.3it/s, acc_1=0.9]").metrics == {}
    assert names.mixed == {"acc_1": ""}


@pytest.mark.parametrize("before", [["epoch 1 loss 0.9", "epoch 2 loss 0.8"], ["Val: loss 0.9", "Val: loss 0.8"]])
@pytest.mark.parametrize("line", ["epoch 1 step 1 loss 0.5", "epoch 1:  50%|#| 1/2 [00:05<00:00, 11.3it/s, loss=0.5]"])
def test_lines_of_batches_after_those_of_epochs_have_the_metric(before: list[str], line: str) -> None:
    parse = lines.LineParser((), Names(("loss",))).parse
    values = [parse(line).metrics.get("loss") for line in [*before, line, line, line]]
    assert values == [0.9, 0.8, 0.5, 0.5, 0.5]


def test_lines_of_batches_have_the_metric_again_if_those_of_epochs_end() -> None:
    parse = lines.LineParser((), Names(("loss",))).parse
    epoch = ["epoch 1 step 1 loss 0.9", "epoch 1 loss 0.8"]
    values = [parse(line).metrics.get("loss") for line in [*epoch, *epoch, *["epoch 1 step 1 loss 0.5"] * 6]]
    assert values == [0.9, 0.8, 0.9, 0.8, None, None, None, None, 0.5, 0.5]


def test_lines_of_batches_lack_the_metric_also_if_those_of_epochs_become_rare() -> None:
    parse = lines.LineParser((), Names(("loss",))).parse
    values = []
    for epoch in range(1, 33):
        values.append(parse(f"epoch {epoch} step 1 loss 0.9").metrics.get("loss"))
        if epoch in (1, 2, 4, 8, 16, 32):
            values.append(parse(f"epoch {epoch} loss 0.5").metrics.get("loss"))
    assert [value for value in values if value] == [0.9, 0.5, 0.9, 0.5, 0.5, 0.5, 0.5, 0.5]


def test_a_metric_before_the_heading_of_held_out_data_is_not_one_of_that_data() -> None:
    names = Names(("loss",))
    parse = lines.LineParser((), names).parse
    for _ in range(3):
        parse("epoch 1 step 1 loss 0.9")
        parse("epoch 1 loss 0.8 | val: acc 0.5")
    assert names.mixed == {"loss": ""}


def test_lines_of_batches_alone_have_the_metric_that_the_job_names() -> None:
    names = Names(("loss",))
    parse = lines.LineParser((), names).parse
    batch = "Epoch [1/5], Step [100/600], Loss: 0.5"
    assert [parse(line).metrics for line in (batch, batch, batch, "Epoch 1 Loss: 0.4", batch)] == [
        {"loss": 0.5},
        {"loss": 0.5},
        {"loss": 0.5},
        {"loss": 0.4},
        {"loss": 0.5},
    ]
    assert names.mixed == {}


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-01-31 12:00:00,123 - train - INFO - ",
        "01/31/2026 12:00:00 - INFO - __main__ -   ",
        "2026-01-31 12:00:00 | INFO | cli.train | ",
        "2026-01-31 12:00:00.123 | INFO     | __main__:main:12 - ",
        "[2026-01-31 12:00:00,123][__main__][INFO] - ",
        "[01/31 12:00:00 d2.engine]: ",
        "I0131 12:00:00.123456 97 train.py:12] ",
        "INFO 01-31 12:00:00 ",
        "12:00:00 ",
        "INFO:__main__:",
        "[INFO] ",
    ],
)
def test_the_prefix_of_a_log_is_no_part_of_its_message(prefix: str) -> None:
    parse = lines.LineParser((), Names(())).parse
    assert parse(f"{prefix}valid loss: 0.3, acc: 0.9").metrics == {"valid_loss": 0.3, "valid_acc": 0.9}
    assert parse(f"{prefix}step 3 | loss: 0.3").metrics == {"loss": 0.3}, "a logger is no set of data"


@pytest.mark.parametrize(
    ("names", "metrics"),
    [
        (("accuracy",), {"train_accuracy": 0.71, "accuracy": 0.6, "test_accuracy": 0.58}),
        (("test_accuracy",), {"train_accuracy": 0.71, "val_accuracy": 0.6, "test_accuracy": 0.58}),
        (("accuracy train",), {"accuracy train": 0.71, "val_accuracy": 0.6, "test_accuracy": 0.58}),
        (("test",), {"train_accuracy": 0.71, "val_accuracy": 0.6, "test": 0.58}),
    ],
)
def test_a_name_before_several_sets_of_data_belongs_to_each(names: tuple[str, ...], metrics: dict[str, float]) -> None:
    read = lines.LineParser((), Names(names)).parse("accuracy train: 0.71 val: 0.6 test: 0.58").metrics
    assert read == metrics


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("Dev: time: 0.52s; acc: 0.9, f: 0.4", {"dev_acc": 0.9, "dev_f": 0.4}),
        ("[Dev] acc 0.9", {"dev_acc": 0.9}),
        ("average test of epoch 3: test_error: 0.1 f: 0.4", {"test_error": 0.1, "test_f": 0.4}),
        ("Validate performance at epoch 3: loss: 0.5, acc: 0.8", {"val_loss": 0.5, "validate_acc": 0.8}),
        ("Best test performance at epoch 3: f: 0.4", {"test_f": 0.4}),
        ("Evaluating loss: 0.5", {"loss": 0.5}),
        ("Train: balanced_f=0.9 | Dev: balanced_f=0.6", {"train_balanced_f": 0.9, "dev_balanced_f": 0.6}),
        ("Validation: loss: 0.5 acc: 0.8", {"val_loss": 0.5, "validation_acc": 0.8}),
        ("Epoch 3 Valid | loss 0.5 | acc 0.8", {"val_loss": 0.5}),
        ("Valid loss: 0.5, valid_acc: 0.8", {"val_loss": 0.5, "valid_acc": 0.8}),
        ("eval: split test . loss 1.1e-01. error 20.83%. misses: 24", {"test_error": 20.83, "test_misses": 24.0}),
        ("eval: split train. loss 1.1e-01. error 6.36%. misses: 6", {"train_misses": 6.0}),
    ],
)
def test_a_metric_that_the_job_names_with_its_set_of_data(line: str, metrics: dict[str, float]) -> None:
    assert lines.LineParser((), Names(("dev_acc", "val_loss", "test_error"))).parse(line).metrics == metrics


def test_a_metric_that_the_job_names_is_not_that_of_the_training_set_behind_its_name() -> None:
    parse = lines.LineParser((), Names(("accuracy",))).parse
    assert "accuracy" not in parse("accuracy on train: 0.7").metrics
    assert "accuracy" not in parse("Accuracy | train = 0.7").metrics
    assert parse("accuracy on the test: 0.6").metrics["accuracy"] == 0.6


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("Train/Val loss: 0.500/0.600", {"train_loss": 0.5, "val_loss": 0.6}),
        ("Train / Test mse: 1.000 / 0.950.", {"train_mse": 1.0, "test_mse": 0.95}),
        ("train, test error: .5, .6", {"train_error": 0.5, "test_error": 0.6}),
        ("Epoch 3: train, val and test mse: .5 .6 .7", {"train_mse": 0.5, "val_mse": 0.6, "test_mse": 0.7}),
        ("Train and val loss = 95.0 % | 85.0 %", {"train_loss": 95.0, "val_loss": 85.0}),
        ("Precision / Recall / F1: 0.70 / 0.60 / 0.65", {"Precision": 0.7, "Recall": 0.6, "F1": 0.65}),
        ("precision, recall, f1 = 0.70 0.60 0.65", {"precision": 0.7, "recall": 0.6, "f1": 0.65}),
        ("Test loss, test acc: [0.3, 0.9]", {"test_loss": 0.3, "test_acc": 0.9}),
        ("loss (train/val): .5 / .6", {"train_loss": 0.5, "val_loss": 0.6}),
        ("Loss: .5 / .6 (train / val)", {"train_Loss": 0.5, "val_loss": 0.6}),
        ("Train/Val loss: 0.5 / 0.6 / 0.7", {}),
        ("Loss: 0.5 / 0.6 / 0.7 (train / val)", {}),
        ("val/mae: 0.9 / 0.8", {"val/mae": 0.9}),
        ("Test set, correct: 98/100", {"test_correct": 0.98}),
        ("images/s: 5.5 6.5", {"images/s": 5.5}),
        ("Epoch 3, mae: 0.5, f1: 0.6", {"mae": 0.5, "f1": 0.6}),
        ("mae, f1: 0.5 0.6 0.7", {"f1": 0.5}),
        ("Epoch 3 done, mae: 0.25, 12.3 s", {"mae": 0.25}),
        ("Early stopping, mae: 0.25, 12 epochs", {"mae": 0.25}),
        ("Improved, mae: 0.5 - 0.25", {"mae": 0.5}),
        ("Precision and recall: 0.7 and 0.6", {"Precision": 0.7, "recall": 0.6}),
        ("SVM, mae: 0.5 0.02", {"mae": 0.5}),
        ("Done, mae: 0.25 in 12.5 s", {"mae": 0.25}),
        ("Epoch 3 done, samples: 1,234", {}),
        ("Train/val mae: 0.5/0.6, 12.3 s", {"train_mae": 0.5, "val_mae": 0.6}),
        ("strides, shape: [3, 224]", {}),
        ("mae (train): 0.9, mae (test): 0.8", {"train_mae": 0.9, "test_mae": 0.8}),
        ("accuracy (train): 0.9, accuracy (test): 0.8", {"train_accuracy": 0.9, "accuracy": 0.8}),
        ("F1-score (macro): 0.8, F1-score (micro) = 0.9", {"F1-score-macro": 0.8, "F1-score-micro": 0.9}),
        ("accuracy (weighted): 0.8", {"accuracy-weighted": 0.8, "accuracy": 0.8}),
        ("DEV : loss 0.5 - accuracy (micro avg)  0.75", {"dev_accuracy-micro": 0.75, "accuracy": 0.75}),
        ("time (s): 3", {}),
        ("RMSE train 0.5 test 0.6", {"train_RMSE": 0.5, "test_RMSE": 0.6}),
        ("Epoch 3 accuracy train 93.5 %, valid 91.5 %", {"train_accuracy": 93.5, "accuracy": 91.5}),
        ("macro avg f1=0.83", {"f1_macro": 0.83}),
        ("R^2 = 0.91", {"R2": 0.91}),
    ],
)
def test_names_and_values_belong_together_by_their_positions(line: str, metrics: dict[str, float]) -> None:
    assert lines.LineParser((), Names(NAMES)).parse(line).metrics == metrics


def test_a_value_may_follow_of_and_precede_its_name() -> None:
    parse = lines.LineParser((), Names(("roc_auc",))).parse
    assert parse("INFO:nets.train:Has a training score of 0.98 roc_auc").metrics == {"roc_auc": 0.98}
    assert parse("one of 3 roc_auc").metrics == parse("Improvement of 0.02 roc_auc").metrics == {}


def test_a_power_is_a_spelling_of_a_name_with_a_digit() -> None:
    parse = lines.LineParser((), Names(("r2",))).parse
    assert parse("R^2: 0.91").metrics == parse("R^2 0.91").metrics == {"r2": 0.91}
    test_metrics = parse("Test R^2: 0.91").metrics
    assert test_metrics == {"test_R2": 0.91} and similar_name("r2", test_metrics) == "test_R2"


@pytest.mark.parametrize("name", ["f1_macro", "macro_f1", "macro avg F1"])
@pytest.mark.parametrize(
    "line", ["macro avg f1=0.83", "Macro F1: 0.83", "F1 (macro): 0.83", "f1_macro 0.83", "macro-averaged F1 is 0.83"]
)
def test_an_average_stands_before_a_name_or_behind_it(name: str, line: str) -> None:
    assert lines.LineParser((), Names((name,))).parse(line).metrics[name] == 0.83
    assert name not in lines.LineParser((), Names((name, "f1"))).parse("micro avg f1=0.7, f1=0.6").metrics
    names = ("test_macro_f1", "macro roc auc", "samples_per_second")
    metrics = (
        lines.LineParser((), Names(names)).parse("Test: macro F1 0.5, macro ROC AUC 0.6, samples per second 0.7").metrics
    )
    assert [metrics[name] for name in names] == [0.5, 0.6, 0.7]


def test_a_text_in_an_object_moves_no_step() -> None:
    parse = lines.LineParser((), Names(("loss",))).parse
    assert parse('{"message": "loss after epoch 3: 0.51", "loss": 0.4}').metrics == {"loss": 0.4}
    assert parse('INFO {"message": "loss after epoch 3: 0.51", "loss": 0.4}').metrics == {"loss": 0.4}


@pytest.mark.parametrize(
    ("line", "step", "metrics"),
    [
        ("INFO:root:evaluation metric in 20 epoch: 0.15", 20, {"evaluation_metric": 0.15}),
        ("Cost after iteration 100: 0.693", 100, {"Cost": 0.693}),
        ("Validation loss at epoch 3 = 0.5", 3, {"val_loss": 0.5}),
        ("Train loss after 2 epochs: 0.3, Val loss after 2 epochs: 0.4", 2, {"train_loss": 0.3, "val_loss": 0.4}),
        ("Loss after iteration 7: nan", 7, {"Loss": math.nan}),
        ("Val loss 11 0.5 Grad Norm 0.6 1.20s/it", 11, {"val_loss": 0.5}),
        ("Validation loss 11: 0.5", 11, {"val_loss": 0.5}),
        ("Loss 1: 0.5", None, {}),
        ("Val loss 5 12.3 ms", None, {"val_loss": 5.0}),
        ("Val loss 5 3", None, {"val_loss": 5.0}),
        ("Saved model at epoch 3: 5 files", 3, {}),
    ],
)
def test_a_step_may_stand_between_a_name_and_its_value(line: str, step: int, metrics: dict[str, float]) -> None:
    found = lines.LineParser((), Names(("val_loss",))).parse(line)
    assert found.step == step
    assert found.metrics == pytest.approx(metrics, nan_ok=True)


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("Test: [10/50] eta: 0:00:01 loss: 2.2 (2.1) acc1: 67.0% ( 66.0%)", {"test_loss": 2.1, "test_acc1": 66.0}),
        ("Epoch: [1][ 10/50]\tLoss: 2.2 (2.1)", {"Loss": 2.1}),
        ("Train Epoch: 1 [640/60000 (1%)] Loss: 2.2 (2.1)", {"train_Loss": 2.1}),
        ("Epoch [3/10] loss: 0.93 (0.02)", {"loss": 0.93}),
        ("Fold [3/10] loss: 0.93 (0.02)", {"loss": 0.93}),
        ("[12:00:00] [3/10] loss: 0.93 (0.02)", {"loss": 0.93}),
        ("Test: [10/50] loss: 0.5 (12)", {"test_loss": 0.5}),
        ("Test [3/10]: loss: 0.5 (0.02)", {"loss": 0.5}),
        ("Test [3/10] loss: 0.5 (0.02)", {"loss": 0.5}),
    ],
)
def test_a_number_in_parentheses_behind_that_of_a_batch_is_the_average(line: str, metrics: dict[str, float]) -> None:
    """Beside other positions it is perhaps a deviation."""
    assert {name: lines.LineParser((), Names(())).parse(line).metrics.get(name) for name in metrics} == metrics


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("  test metric: [4.13e-02]", {"test metric": 0.0413}),
        ("loss: tensor([0.25]) mae=[ 2. ] mse: [nan", {"loss": 0.25, "mae": 2.0}),
        ("  test metric: []", {}),
        ("  test metric: [4.13e-02, 1.0e-01]", {}),
        ("gpus: [0]", {}),
        ("Step      Train loss    Test loss     Test metric   ", {}),
        ("1000      [3.23e-12]    [3.56e-04]    [4.13e-02]    ", {}),
        ("2000      [3.23e-12]    [3.56e-04]    []            ", {}),
    ],
)
def test_a_list_of_one_fraction_is_its_number(line: str, metrics: dict[str, float]) -> None:
    assert lines.LineParser((), Names(("test metric",))).parse(line).metrics == metrics


def test_a_number_in_brackets_after_a_step_or_a_set_of_data_is_a_count() -> None:
    parse = lines.LineParser((), Names(())).parse
    assert parse("Epoch: [1], Step: [100/600], Loss: [0.5]")[:2] == (100, {"Loss": 0.5})
    assert parse("Test: [3] Loss: 0.5").metrics == {"test_Loss": 0.5}


@pytest.mark.parametrize("line", ["Cross Validation Accuracy = 83.7%", "cross-validation accuracy 83.7"])
@pytest.mark.parametrize("others", [(), ("validation_accuracy", "accuracy")])
def test_the_last_words_of_a_metrics_name_are_no_other_metric(line: str, others: tuple[str, ...]) -> None:
    name = "Cross Validation Accuracy"
    assert lines.LineParser((), Names((*others, name))).parse(line).metrics == {name: 83.7}
    assert lines.LineParser((), Names((*others, name))).parse("Accuracy = 0.5").metrics == {
        "accuracy" if others else "Accuracy": 0.5
    }


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (" * Acc@1 55.200 Acc@5 80.100", "Acc_1", 55.2),
        (" * Acc@1 55.200 Acc@5 80.100", "acc 5", 80.1),
        (" * Acc@1 55.200 Acc@5 80.100", "acc5", 80.1),
        ("Epoch: [0][10/391]\tLoss 2.3e+00 (2.4e+00)\tAcc@1  10.16 ( 10.5)", "acc-1", 10.5),
        ("[1]\tvalid_0's l2: 0.25\tvalid_1's l2: 0.5", "valid_0_l2", 0.25),
        ("[1]\tvalid_0's l2: 0.25\tvalid_1's l2: 0.5", "valid_1_s_l2", 0.5),
        ("[1]\tvalid_0\u2019s l2: 0.25", "valid_0 l2", 0.25),
        ("mAP@0.5 0.75", "mAP_0.5", 0.75),
        ("0.977 accuracy with a standard deviation of 0.01", "accuracy", 0.977),
        ("result: 93 % accuracy", "accuracy", 93.0),
        ("0.5 accuracy: 0.75", "accuracy", 0.75),
        ("Accuracy of the network on the 10000 test images: 54 %", "accuracy", 54.0),
        ("I1127 22:27:46.336615 run.py:109] [16000] Exploitability AVG 0.3186608", "exploitability", 0.3186608),
        ("reward mean 12.5 after 3 episodes", "reward", 12.5),
        ("2026-11-27 22:51:52 INFO     Test auc_pr at step 299: 0.312", "test_auc_pr", 0.312),
        ("the dog's bowl 3", "dog_bowl", 3.0),
        ("EPOCH[1/11] loss0.690-|Sample:0.54|", "loss", 0.69),
    ],
)
def test_names_with_signs_that_mlflow_does_not_keep(line: str, name: str, value: float) -> None:
    assert lines.LineParser((), Names((name,))).parse(line).metrics[name] == value


@pytest.mark.parametrize(
    "line",
    [
        "accuracy score 3 folds",
        "Saved best accuracy after epoch 3: 12 files",
        "accuracy average 10 batches",
        "accuracy mean",
        "accuracy10",
        "accuracy0.5.1",
        "accuracy-95 %",
        "accuracy0.5 0.9",
        "ckpt/accuracy0.5.pt",
        "accuracy1 0.5",
    ],
)
def test_a_whole_number_after_an_average_is_a_count(line: str) -> None:
    assert "accuracy" not in lines.LineParser((), Names(("accuracy",))).parse(line).metrics


def test_the_code_of_an_error_is_no_error() -> None:
    assert "error" not in lines.LineParser((), Names(("error",))).parse("error code: 127").metrics


@pytest.mark.parametrize(
    "line", ["Epoch 3 accuracy improved", "0.5 train accuracy", "in 3 accuracy rounds", "1.5x accuracy"]
)
def test_a_number_before_a_name_that_is_not_its_value(line: str) -> None:
    assert "accuracy" not in lines.LineParser((), Names(("accuracy",))).parse(line).metrics


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ("Start training from score -0.5", {}),
        ("no better than score 0.5", {}),
        ("worse than the previous best score 0.5", {}),
        ("above the last score 0.5", {}),
        ("improved from score 0.5 to score 0.7", {"Score": 0.7}),
        ("ended with score 0.5", {"Score": 0.5}),
        ("averaged over score 0.5", {"Score": 0.5}),
        ("better than score: 0.5", {"Score": 0.5}),
    ],
)
def test_where_a_metric_begins_and_a_bound_are_no_values(line: str, metrics: dict[str, float]) -> None:
    """Other words of a sentence may stand before a name."""
    assert lines.LineParser((), Names(("Score",))).parse(line).metrics == metrics


@pytest.mark.parametrize("line", ["dogs bowl 3", "valid_0, l2 3", "valid: 0, l2: 3", "{'valid': 0, 'l2': 3}"])
def test_other_names_are_not_taken_for_them(line: str) -> None:
    assert (
        not {"dog_bowl", "valid_0_l2"} & lines.LineParser((), Names(("dog_bowl", "valid_0_l2"))).parse(line).metrics.keys()
    )


@pytest.mark.parametrize(
    ("line", "epoch", "steps"),
    [
        ("Epoch [3/10], Step [100/600], Loss: 0.25", 3.0, 600),
        ("epoch 3, iter 100: loss=0.25", 3.0, None),
        ("epoch=3 step=100 loss=0.25", 3.0, None),
        ("Epoch [3/10], Loss: 0.25", None, None),
        ("step 100/600 loss=0.25", None, None),
    ],
)
def test_the_epoch_beside_a_step(line: str, epoch: float | None, steps: int | None) -> None:
    assert lines.LineParser((), Names(NAMES)).parse(line)[2:4] == (epoch, steps)


def test_numbers_that_are_none() -> None:
    found = lines.LineParser((), Names(())).parse("loss=nan grad: inf")
    assert math.isnan(found.metrics["loss"]) and found.metrics["grad"] == math.inf


@pytest.mark.parametrize("pattern", [r"(\w+)\s*->\s*([\d.]+)", r"(?P<value>[\d.]+) points of (?P<name>\w+)"])
def test_a_pattern_of_the_job_counts_alone(pattern: str) -> None:
    found = lines.LineParser((pattern,), Names(NAMES)).parse("Accuracy -> 0.5 loss=3, 0.5 points of accuracy")
    assert found[:2] == (None, {"accuracy": 0.5})


def test_a_group_may_be_named_like_its_metric() -> None:
    pattern = r"loss of (?P<loss>[\d.]+)(?:, (?P<val_loss>[\d.]+) on held-out data)?"
    parse = lines.LineParser((pattern,), Names(NAMES)).parse
    assert parse("epoch 3: loss of 0.5, 0.7 on held-out data").metrics == {"loss": 0.5, "val_loss": 0.7}
    assert parse("loss of 0.4 acc=3").metrics == {"loss": 0.4}


def test_the_step_may_have_a_name_of_its_own() -> None:
    assert lines.LineParser((), Names((), "tick")).parse("epoch=3 tick=40 loss=1.5")[:2] == (
        40,
        {"epoch": 3.0, "loss": 1.5},
    )


def test_arguments_are_no_metrics_beside_a_step_with_a_name_of_its_own() -> None:
    parse = lines.LineParser((), Names(("loss",), "tick")).parse
    assert parse("lr=0.1 momentum=0.9 loss=2").metrics == {"loss": 2.0}


def test_a_metric_that_is_called_like_a_step_is_one() -> None:
    assert lines.LineParser((), Names(("epoch",))).parse("epoch=3 loss=1")[:2] == (3, {"epoch": 3.0, "loss": 1.0})


def test_names_are_as_mlflow_keeps_them() -> None:
    assert lines.LineParser((), Names(())).parse('{"eval//f1 (macro)": 1, "/": 2}').metrics == {"eval/f1 _macro_": 1.0}


@hypothesis.given(given.text(max_size=300))
def test_any_line_is_read(text: str) -> None:
    found = lines.LineParser((), Names(NAMES)).parse(text)
    assert all(isinstance(value, float) for value in found.metrics.values())


@pytest.mark.parametrize(
    "text",
    ["1 epoch", "1 val_loss", "1 accuracy", "1 loss:", "1 loss: 3/", "step ", "1 x: 1", "1 x, y: 1 2"],
)
def test_padding_costs_no_time(text: str) -> None:
    """Expressions that try each length of the padding would take minutes."""
    parse = lines.LineParser((), Names(NAMES)).parse
    parse(text + " " * lines.LONGEST_LINE + "|")
    parse((text + " " * 100) * 150)


def test_a_long_line_counts_with_its_end() -> None:
    assert lines.LineParser((), Names(())).parse("x" * (2 * lines.LONGEST_LINE) + " loss=2").metrics == {"loss": 2.0}


def test_a_metric_is_the_first_column_of_its_name() -> None:
    """The table of DEAP has a line of groups above the names, here fitness and size."""
    parse = lines.LineParser((), Names(("min",))).parse
    assert not parse("gen\tavg\tmin\tavg\tmin").metrics
    assert parse("40\t0.12\t5e-33\t16.4\t1").metrics == {"gen": 40.0, "avg": 0.12, "min": 5e-33}


def test_the_columns_of_a_table_are_metrics_by_its_header() -> None:
    parse = lines.LineParser((), Names(("val_loss",))).parse
    table = """
      epoch    train_loss    valid_acc    val_loss     dur
    -------  ------------  -----------  ----------  ------
          1        0.4        0.5        0.3     0.01
          2        0.2        n/a        0.1    00:10
    the val_loss is fine
          3        0.2        0.3        0.4     0.5
    """
    read = [line for text in table.splitlines() if (line := parse(text)).metrics]
    assert [(line.step, line.metrics) for line in read] == [
        (1, {"train_loss": 0.4, "valid_acc": 0.5, "val_loss": 0.3, "dur": 0.01}),
        (2, {"train_loss": 0.2, "val_loss": 0.1}),
    ]
    assert parse("│     val_loss      │      0.25     │").metrics == {"val_loss": 0.25}
    parse = lines.LineParser((), Names(("precision",))).parse
    report = ("  precision    recall  f1-score   support", "  1       0.95      0.93      0.94        54")
    assert not any(parse(line).metrics for line in report)


SPACY = """
E    #       LOSS TEXTCAT  CATS_SCORE  SCORE 
---  ------  ------------  ----------  ------
  0       0          0.25       33.33    0.33
  0      40          9.23       52.98    0.53
saved   3        models in         2.5 s
"""  # noqa: W291
SKORCH = """
  epoch    val loss    cp     dur
-------  ----------  ----  ------
      1        0.50     +    0.01
      2        0.25             -
      3  12345678.25     +    0.02
5
"""
PIPES = """
+-------+----------+-----------+
| Epoch | Val Loss | Top 5     |
+-------+----------+-----------+
|     1 |      50% | resnet 50 |
|     2 |          |      93 % |
| 3 | 25% | 94% |
| 4 | 2 | 95%      |
+-------+----------+-----------+
"""
BOXES = """
┏━━━━━━━┳━━━━━━━━━━┓
┃ Epoch ┃ val-loss ┃
┡━━━━━━━╇━━━━━━━━━━┩
│ 1     │ 0.5      │
└───────┴──────────┘
"""
MARKDOWN = """
| step | val_loss | name |
|---|---|---|
| 7 | 0.5 | a |
"""
DETECTRON = """
|   AP   |  AP50  |
|:------:|:------:|
| 35.201 | 55.301 |
Per-category bbox AP:
| category   | AP     | category   | AP     |
|:-----------|:-------|:-----------|:-------|
| person     | 52.1   | car        | 40.2   |
"""
ULTRALYTICS = """
                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|######| 2/2 [00:01<00:00]
                   all          4         17      0.567       0.55      0.612      0.412
                person          3         10      0.100       0.20      0.300      0.200
"""
CLASSES = """
   Class      mAP50: 100% ━━━━━━━━━━━━ 2/2 6.1it/s 0.3s
   person     0.3
   avg        0.6
   micro      0.7
"""
SECTIONS = """
-----------------------------
| rollout/           |      |
|    ep_rew_mean     | 21.3 |
| train/             |      |
|    loss            | 2.5  |
-----------------------------
|    loss            | 3.5  |
"""
SETS = """
Metric    Train  Validation
--------  -----  ----------
MAE       0.500       0.600
INFO - console_logger -                    Training |  Validation
INFO - console_logger - mae              |   41.0 % |      55.0 %
INFO - console_logger - memory           | 1024.000 |         N/A
INFO - trainer - 1 2
mae       0.1
"""
REST = """
====  ========
name  val loss
====  ========
a          0.5
====  ========
"""


@pytest.mark.parametrize(
    ("table", "name", "rows"),
    [
        (
            SPACY,
            "CATS_SCORE",
            [
                (0, {"E": 0.0, "LOSS TEXTCAT": 0.25, "CATS_SCORE": 33.33, "SCORE": 0.33}),
                (40, {"E": 0.0, "LOSS TEXTCAT": 9.23, "CATS_SCORE": 52.98, "SCORE": 0.53}),
            ],
        ),
        (SPACY, "loss_textcat", None),
        (
            SKORCH,
            "val_loss",
            [(1, {"val_loss": 0.5, "dur": 0.01}), (2, {"val_loss": 0.25}), (3, {"val_loss": 12345678.25, "dur": 0.02})],
        ),
        (
            PIPES,
            "val_loss",
            [
                (1, {"val_loss": 50.0}),
                (2, {"Top 5": 93.0}),
                (3, {"val_loss": 25.0, "Top 5": 94.0}),
                (4, {"val_loss": 2.0, "Top 5": 95.0}),
            ],
        ),
        (BOXES, "val_loss", [(1, {"val_loss": 0.5})]),
        (MARKDOWN, "val_loss", [(7, {"val_loss": 0.5})]),
        (REST, "val_loss", [(None, {"val_loss": 0.5})]),
        (REST, "validation_loss", [(None, {"validation_loss": 0.5})]),
        (DETECTRON, "AP", [(None, {"AP": 35.201, "AP50": 55.301})]),
        (
            ULTRALYTICS,
            "mAP50-95",
            [(None, {"Images": 4.0, "Instances": 17.0, "P": 0.567, "R": 0.55, "mAP50": 0.612, "mAP50-95": 0.412})],
        ),
        (CLASSES, "mAP50", [(None, {"mAP50": 0.6}), (None, {"mAP50": 0.7})]),
        ("Test\tmAP50: 95%\nTest\tmAP50:  96%", "mAP50", [(None, {"mAP50": 95.0}), (None, {"mAP50": 96.0})]),
        (SECTIONS, "rollout/ep_rew_mean", [(None, {"rollout/ep_rew_mean": 21.3})]),
        (SECTIONS, "train/loss", [(None, {"train/loss": 2.5})]),
        (
            SETS,
            "mae",
            [
                (None, {"train_MAE": 0.5, "mae": 0.6}),
                (None, {"training_mae": 41.0, "mae": 55.0}),
                (None, {"training_memory": 1024.0}),
                (None, {"mae": 0.1}),
            ],
        ),
        ("\x1b[1m#  acc  loss\x1b[0m\n3  0.5     1", "acc", [(3, {"acc": 0.5, "loss": 1.0})]),
    ],
)
def test_a_rule_below_a_header_shows_the_columns(
    table: str, name: str, rows: list[tuple[int | None, dict[str, float]]] | None
) -> None:
    parse = lines.LineParser((), Names((name,))).parse
    read = [line[:2] for text in table.splitlines() if (line := parse(text)).metrics]
    if rows is None:
        assert [metrics[name] for _, metrics in read] == [0.25, 9.23]
    else:
        assert read == rows


@pytest.mark.parametrize(
    "text",
    [
        "the loss and accuracy\n---------------------\n1 2 3 4",
        "the loss  and accuracy\n--------  ------------\n1  2",
        "Loss of it  accuracy\n---  ---\n  1    2",
        "# accuracy\ntook 3",
        "# loss  accuracy\ntook 3 s",
        "E  accuracy\n-  --------\n3",
        "accuracy\n--------\n3",
        "E  accuracy\n-  --------\n3  0.5       of 9",
        "E  accuracy  top k\n-  --------  -----\nin epoch 3: 5",
    ],
)
def test_text_beside_rules_holds_no_metrics(text: str) -> None:
    parse = lines.LineParser((), Names(("accuracy",))).parse
    assert not any(parse(line).metrics for line in text.splitlines())


def test_wide_gaps_separate_the_columns_of_a_header_whose_names_have_spaces() -> None:
    """As scikit-learn's boosting prints them. Without a number in the first column, the line above is no header."""
    parse = lines.LineParser((), Names(("train_loss",))).parse
    rows = ("      Iter       Train Loss   Remaining Time ", "         1           1.25            0.55s", "epoch 3 0.5")
    read = [parse(row) for row in rows]
    assert [(row.step, row.metrics) for row in read] == [(None, {}), (1, {"train_loss": 1.25}), (3, {})]
    for row in ("the train loss  is  fine", "7 8 9"):
        assert not parse(row).metrics
    for row in ("Epoch   Train Loss   Time", "2   0.5   2.3 s"):
        read.append(parse(row))
    assert (read[-1].step, read[-1].metrics) == (2, {"train_loss": 0.5}), "a value may have a unit"
    assert not parse("3   0.4   0.1  *").metrics, "a mark behind a row would shift its columns"


@pytest.mark.parametrize("rule", ["+----------+-------+", "├──────────┼───────┤"])
def test_a_rule_between_rows_makes_no_header_of_the_row_above(rule: str) -> None:
    parse = lines.LineParser((), Names(("accuracy", "loss"))).parse
    rows = ["| accuracy | 0.91  |", rule, "| loss     | 0.30  |"]
    metrics: dict[str, float] = {}
    for row in rows:
        metrics |= parse(row).metrics
    assert metrics["loss"] == 0.30 and "0.91" not in metrics


@hypothesis.given(given.lists(given.text("-=| \t+│━1.a#%\x1b", max_size=40), max_size=6))
def test_any_table_is_read(texts: list[str]) -> None:
    parse = lines.LineParser((), Names(("a", "#"))).parse
    for text in ("a  #", *texts):
        assert all(isinstance(value, float) for value in parse(text).metrics.values())


def test_a_rule_with_a_thousand_columns_costs_no_time() -> None:
    parse = lines.LineParser((), Names(("a",))).parse
    for text in ("a " * 8000, "- " * 8000, *["1 " * 8000, "- " * 8000] * 20, *["a " * 8000, "- " * 8000] * 20):
        parse(text)
