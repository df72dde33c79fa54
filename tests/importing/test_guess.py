"""What is guessed from an argument's name and default, and from the names of metrics.

Not checked here: how arguments are found (tests/cli/test_from_script.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from trialplane.importing import guess
from trialplane.wire.declared import Option

SEARCHED: list[tuple[str, Any, dict[str, Any]]] = [
    ("lr", 1e-3, {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}),
    ("optimizer.learningRate", 0.5, {"type": "float", "low": 0.05, "high": 5.0, "log": True}),
    ("weight_decay", 0.0, {"type": "float", "low": 1e-6, "high": 0.1, "log": True}),
    ("l2", 0.01, {"type": "float", "low": 0.001, "high": 0.1, "log": True}),
    ("dropout", 0.1, {"type": "float", "low": 0.0, "high": 0.6}),
    ("momentum", 0.9, {"type": "float", "low": 0.5, "high": 0.99}),
    ("n_layers", 1, {"type": "int", "low": 1, "high": 2}),
    ("max_depth", 5, {"type": "int", "low": 2, "high": 10}),
    ("min-samples-leaf", 2, {"type": "int", "low": 1, "high": 4}),
    ("train-batch-size", 32, {"type": "int", "low": 16, "high": 64, "step": 16}),
    ("heads", 6, {"type": "categorical", "choices": [3, 6, 12]}),
    ("gae-lambda", 0.95, {"type": "float", "low": 0.475, "high": 1.0}),
    ("lambda", 0.01, {"type": "float", "low": 0.001, "high": 0.1, "log": True}),
    ("config.momentum", 0.9, {"type": "float", "low": 0.5, "high": 0.99}),
    ("train.dropout", 0.1, {"type": "float", "low": 0.0, "high": 0.6}),
    ("lrate", 1e-3, {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}),
    ("feature-fraction", 0.9, {"type": "float", "low": 0.1, "high": 1.0}),
    ("nesterov", False, {"type": "categorical", "choices": [False, True]}),
    ("nhid", 30, {"type": "int", "low": 15, "high": 60, "step": 15}),
    ("levels", 8, {"type": "int", "low": 4, "high": 16}),
    ("ksize", 7, {"type": "int", "low": 3, "high": 14}),
    ("d_model", 64, {"type": "int", "low": 32, "high": 128, "step": 32}),
    ("netwidth", 64, {"type": "int", "low": 32, "high": 128, "step": 32}),
    ("bs", 8, {"type": "int", "low": 4, "high": 16, "step": 4}),
    ("factor_num", 32, {"type": "int", "low": 16, "high": 64, "step": 16}),
    ("num_ng", 4, {"type": "int", "low": 2, "high": 8}),
    ("N_samples", 24, {"type": "int", "low": 12, "high": 48}),
    ("temperature", 0.5, {"type": "float", "low": 0.25, "high": 1.0}),
    ("projection_dim", 64, {"type": "int", "low": 32, "high": 128, "step": 32}),
    ("label_smoothing", 0.1, {"type": "float", "low": 0.0, "high": 0.6}),
    ("data.batch_size", 4, {"type": "int", "low": 2, "high": 8, "step": 2}),
    ("data.hidden", 4, {"type": "int", "low": 2, "high": 8, "step": 2}),
    ("obs_hidden_dim", 64, {"type": "int", "low": 32, "high": 128, "step": 32}),
    ("action_hidden", 64, {"type": "int", "low": 32, "high": 128, "step": 32}),
    ("num_features_hidden", 64, {"type": "int", "low": 32, "high": 128, "step": 32}),
    ("num_state_layers", 2, {"type": "int", "low": 1, "high": 4}),
    ("data_depth", 4, {"type": "int", "low": 2, "high": 8}),
]
LEFT = [("epochs", 10), ("seed", 1), ("num_workers", 4), ("log_interval", 10), ("min_lr", None), ("lr", -1.0),
        ("save-model", False), ("val_batch_size", 64), ("momentum", 1.5),
        ("model-ema-decay", 0.9998), ("lr_decay", 0.97), ("eval_dropout", 0.1), ("layers", 0), ("name", "x"),
        ("nodes", 1), ("nr", 1), ("gpus", 1), ("rank", 1), ("world_size", 2), ("image_size", 32), ("block_size", 64),
        ("num_classes", 10), ("n_samples", 5000), ("print_freq", 10), ("verbosity", 1), ("start_epoch", 1), ("step_size", 3),
        ("factor", 8), ("nproc_per_node", 2), ("seq_len", 60), ("test_num_ng", 99), ("image_channels", 3),
        ("eval.dropout", 0.1), ("size", 400), ("input_size", 4), ("out_dim", 4), ("vocab_size", 64),
        ("make_classification.n_features", 100), ("num_features", 16), ("obs_dim", 8), ("action_dim", 4),
        ("input_dim", 8), ("n_features", 4), ("state_width", 8), ("out_channels", 3), ("label_features", 8),
        ("output_units", 4)]  # fmt: skip
KINDS = {int: "int", float: "float", bool: "bool"}


@pytest.mark.parametrize(("name", "default", "expected"), SEARCHED)
def test_what_is_searched(name: str, default: Any, expected: dict[str, Any]) -> None:
    found = guess.parameter(Option(name, default, KINDS[type(default)]))
    assert found is not None and found.fields == expected and found.reason


@pytest.mark.parametrize(("name", "default"), LEFT)
def test_what_is_not(name: str, default: Any) -> None:
    assert guess.parameter(Option(name, default, KINDS.get(type(default), "float"))) is None


@pytest.mark.parametrize(
    ("name", "is_duration"),
    [("niters", True), ("opt.max_steps", True), ("--num-train-epochs", True), ("Epochs", True), ("num_boost_round", True)]
    + [(name, True) for name in ("n-estimators", "total_timesteps", "n_trees", "num_updates", "num_steps")]
    + [(name, False) for name in ("warmup_steps", "step_size", "steps_per_epoch", "lr", "eval.steps_late", "epochs.lr")],
)
def test_the_number_of_steps_of_a_run(name: str, is_duration: bool) -> None:
    assert guess.duration(["depth", name], [Option("depth", 3)]) == (name if is_duration else "")


@pytest.mark.parametrize(
    ("searched", "others", "duration"),
    [
        (["num_steps"], {"epochs": 30}, ""),
        (["n_steps"], {"total_timesteps": 10**6, "n_epochs": 10}, ""),
        (["num_steps", "epochs"], {}, "epochs"),
        (["epochs"], {"num_steps": 128}, "epochs"),
        (["num_steps"], {"epochs": None, "max_epochs": -1, "steps": 3}, "num_steps"),
        (["max_steps"], {"epochs": 3}, "max_steps"),
        (["n_epochs"], {"total_timesteps": 10**6}, ""),
        (["n_epochs", "n_steps"], {"gae_lambda": 0.95}, "n_steps"),
        (["n_epochs", "timesteps"], {"clip_range": 0.2}, "timesteps"),
        (["num_epochs"], {"num_updates": 1000}, ""),
        (["epochs"], {"clip_ratio": 0.2, "steps_per_epoch": 4000}, "epochs"),
        (["epochs"], {"clip_eps": 0.2}, "epochs"),
        (["epochs"], {"clip_eps": 0.2, "episodes": 100}, ""),
        (["epochs"], {"gamma": 0.1}, "epochs"),
        (["timesteps"], {"epochs": 30}, ""),
        (["timesteps", "lr"], {"beta_start": 1e-4}, ""),
        (["model.num_timesteps"], {"noise_schedule": None}, ""),
        (["timesteps"], {"env": None}, "timesteps"),
        (["diffusion_steps", "T"], {}, ""),
        (["n_timesteps"], {"noise_std": 0.1}, "n_timesteps"),
        (["num_timesteps"], {"noise_type": None}, "num_timesteps"),
        (["timesteps"], {"expl_noise": 0.1}, "timesteps"),
        (["timesteps"], {"beta1": 0.9, "beta2": 0.999}, "timesteps"),
        (["timesteps"], {"beta1": 1e-4, "beta2": 0.999, "beta_T": 0.02}, ""),
        (["timesteps"], {"beta1": 1e-4, "beta_end": 0.02}, ""),
        (["timesteps"], {"beta1": 1e-4}, ""),
        (["noise_timesteps"], {"noise_steps": 1000}, ""),
        (["epochs"], {"n_episodes": 100, "n_way": 5}, "epochs"),
        (["epochs"], {"num_episodes": 100}, "epochs"),
        (["epochs"], {"max_timesteps": 1000}, "epochs"),
        (["epochs"], {"gae_dim": 16}, "epochs"),
        (["epochs"], {"vgae_hidden": 32}, "epochs"),
        (["epochs"], {"use_gae": True, "frames": 10**6}, ""),
    ],
)
def test_the_length_of_a_rollout_or_of_a_diffusion_is_not_that_of_a_run(
    searched: list[str], others: dict[str, Any], duration: str
) -> None:
    options = [Option(name, 9) for name in searched] + [Option(name, value) for name, value in others.items()]
    assert guess.duration(searched, options) == duration


def test_a_learning_rate_without_a_default_is_searched() -> None:
    found = guess.parameter(Option("lr", None, "float"))
    assert found is not None and found.fields == {"type": "float", "low": 1e-5, "high": 0.1, "log": True}


def test_the_most_likely_come_first() -> None:
    options = [
        Option("bias", False, "bool"),
        Option("lr_k", 1.0, "float"),
        Option("width", 8, "int"),
        Option("train_batch_size", 8, "int"),
        Option("drop", 0.1, "float"),
        Option("weight_decay", 0.1, "float"),
        Option("lr", 0.1, "float"),
    ]
    assert list(guess.space(options)) == ["lr", "drop", "weight_decay", "train_batch_size", "width", "lr_k", "bias"]


def test_heads_come_after_sizes_and_a_variant_of_another_parameter_is_told_apart() -> None:
    names = ["logistic_batch_size", "netwidth_fine", "batch_size", "n_head", "n_embd", "netwidth"]
    options = [Option(name, 8, "int") for name in names] + [Option("optimizer", "sgd", choices=("sgd", "adam"))]
    likely = list(guess.space(options))
    assert likely == ["batch_size", "logistic_batch_size", "netwidth", "optimizer", "netwidth_fine", "n_embd", "n_head"]
    assert guess.without_variants(likely) == ["batch_size", "netwidth", "optimizer", "n_embd", "n_head"]


def test_choices_are_searched_where_they_are_what_is_learnt() -> None:
    found = guess.parameter(Option("act", "relu", choices=("relu", "gelu")))
    assert found is not None and found.fields == {"type": "categorical", "choices": ["relu", "gelu"]}
    assert guess.parameter(Option("device", "cpu", choices=("cpu", "cuda"))) is None
    assert guess.parameter(Option("act", "relu", choices=("relu",))) is None
    assert guess.parameter(Option("lr", [0.1], "float", lists="spread")) is None


def test_choices_that_a_script_compares_an_argument_to_are_its_choices() -> None:
    compared = {"optimizer": ("adam", "lars"), "dataset": ("a", "b"), "act": ("relu", "gelu")}
    assert guess.with_choices(Option("optimizer", "adam"), compared).choices == ("adam", "lars")
    for option in (Option("dataset", "a"), Option("act", "tanh"), Option("optimizer", "adam", choices=("adam", "sgd"))):
        assert guess.with_choices(option, compared) == option


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (["train_loss", "val_loss", "val_acc"], ("val_acc", "maximize")),
        (["loss", "lr", "epoch"], ("loss", "minimize")),
        (["train_loss", "val_loss"], ("val_loss", "minimize")),
        (["train_acc", "loss"], ("loss", "minimize")),
        (["eval/perplexity", "tokens"], ("eval/perplexity", "minimize")),
        (["quality", "seconds"], ("quality", "maximize")),
        (["lr", "time"], None),
        (["test_loss", "Loss", "val_loss"], ("val_loss", "minimize")),
        (["train_Loss", "test_loss"], ("test_loss", "minimize")),
        (["training_acc", "loss"], ("loss", "minimize")),
        (["dev_acc", "test_acc", "acc"], ("dev_acc", "maximize")),
        (["testing_loss", "acc"], ("testing_loss", "minimize")),
        (["val/acc_step", "val/acc_epoch", "val/loss"], ("val/acc_epoch", "maximize")),
        (["eval_mode", "y", "i"], None),
        (["HYDRA_FULL_ERROR"], None),
        (["HR_10", "NDCG_10"], ("NDCG_10", "maximize")),
        (["eval_min_reward", "eval_max_reward", "eval_accuracy", "eval_loss"], ("eval_accuracy", "maximize")),
        (["eval_min_reward", "eval_mean_reward", "eval_loss", "loss"], ("eval_loss", "minimize")),
        (["eval_precision", "eval_accuracy", "eval_loss"], ("eval_accuracy", "maximize")),
        (["val_loss", "val_mean_iou"], ("val_mean_iou", "maximize")),
        (["loss", "mean_reward"], ("mean_reward", "maximize")),
        (["last_reward", "average_reward"], ("average_reward", "maximize")),
    ],
)
def test_the_objective(metrics: list[str], expected: tuple[str, str] | None) -> None:
    found = guess.objective(dict.fromkeys(metrics, 1.0))
    assert found == (expected and {"metric": expected[0], "direction": expected[1]})


def test_names_in_an_output_that_are_those_of_objectives() -> None:
    text = "Epoch: [0] Loss 2.3 Acc@1 10.2\n0.977 accuracy, C 3\nVal loss 2\nr2 0.4 lr 0.1\n"
    text += "valid_0's l2: 3\nl2=1 objective_seed=5\nepoch 1 | valid/loss 3 | train/val acc 1\n"
    assert guess.candidates(text) == ["Loss", "Acc_1", "accuracy", "val_loss", "r2", "valid_0_l2", "valid/loss", "val_acc"]
    assert guess.candidates("Last reward: 9.0, average reward: 8.0, loss: 1") == ["last_reward", "average_reward", "loss"]
    assert guess.candidates("Dev acc 0.5, testing loss 2") == ["dev_acc", "testing_loss"]
    assert guess.candidates("loss0.595-|Sample:0.04| acc5 0.4") == ["loss", "acc5"]
    assert not {"mAP", "recall", "loss"} & {*guess.candidates("mAP0.5 0.60 recall0.5: 0.31 in ckpt/loss0.595.pt")}
    assert guess.candidates(f"Last reward: 9, {'x' * 100} reward: 8") == ["last_reward", "reward"]
    assert guess.objective({"valid_0_l2": 3.0}) == {"metric": "valid_0_l2", "direction": "minimize"}
    assert guess.objective({"val_f1": 0.5, "x": 1.0}) == {"metric": "val_f1", "direction": "maximize"}


@pytest.mark.parametrize(
    ("metrics", "objective"),
    [
        ("Loss Train Val Test", ("Val", "maximize")),
        ("train_loss Test", ("train_loss", "minimize")),  # Test may be the loss of the test data
        ("loss Test", ("loss", "minimize")),
        ("loss val_loss Val", ("val_loss", "minimize")),
        ("loss accuracy Val", ("accuracy", "maximize")),
        ("Train Val Test", None),
    ],
)
def test_a_metric_named_by_its_data_alone_is_a_score_beside_a_loss(metrics: str, objective: tuple[str, str] | None) -> None:
    fields = guess.objective(dict.fromkeys(metrics.split(), 0.5))
    assert (fields and (fields["metric"], fields["direction"])) == objective
    assert guess.possible_objective(metrics.split()) == guess.data_alone(metrics.split())


@pytest.mark.parametrize(
    "name",
    [
        "Sample (seconds)", "it/s", "s/it", "ETA", "time_elapsed", "elapsed", "batch", "Epoch", "train_runtime", "sec",
        "samples_per_second", "fps", "data_time", "iters", "step_ms",
    ],
)  # fmt: skip
def test_a_duration_a_speed_or_a_counter_is_no_objective(name: str) -> None:
    assert guess.possible_objective(["divergence", name]) == "divergence"
    assert guess.objective({name: 1.0}) is None
