"""Encoders for jobs: pretrained ones by name or folder, and the preset of `tiny_deberta.py`; and their training.

Heavy libraries are imported inside the functions. Must not import optuna or kubernetes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from textjobs import tiny_deberta
from trialplane import errors
from trialplane.training.tokens import loading

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def load_encoder(name: str, tokenizer: PreTrainedTokenizerBase, *, seed: int, dropout: float) -> PreTrainedModel:
    """Return an encoder in float32 on the CPU, without a head.

    Args:
        name: Name in the hub, local folder, or `tiny-deberta`.
        tokenizer: Tokenizer of the same name. It gives the size of the vocabulary of `tiny-deberta`.
        seed: Seed of torch's generator, which draws new weights.
        dropout: Probability for hidden states and attention, instead of that of the checkpoint.

    Raises:
        InputError: Neither the hub nor a folder has a model of this name.
    """
    loading.quiet()
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(seed)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if name == tiny_deberta.NAME:
        return AutoModel.from_config(tiny_deberta.config(tokenizer, dropout))
    try:
        config = AutoConfig.from_pretrained(name, **rates)
        return AutoModel.from_pretrained(name, config=config, dtype=torch.float32)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise errors.InputError(
            f"the encoder {name!r} could not be loaded: {reason}; give a local folder or a hub name that this machine "
            f"reaches or has downloaded (HF_HOME), or the preset {tiny_deberta.NAME}"
        ) from error


def mean_over(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean, of shape (batch, size), of the states of tokens in the mask, of shape (batch, tokens)."""
    weight = mask.unsqueeze(-1).to(states.dtype)
    return (states * weight).sum(1) / weight.sum(1).clamp(min=1)


def prepare(
    accelerator: Accelerator,
    model: torch.nn.Module,
    rates: Mapping[PreTrainedModel, float],
    rows: torch.utils.data.Dataset[Any],
    p: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Make an optimizer, a loader and a schedule for a model, and prepare all four with accelerate.

    The optimizer is AdamW with a learning rate for each layer.

    Args:
        accelerator: Accelerator of the trial.
        model: Model with its heads.
        rates: Learning rate of the top layer of each encoder in `model`.
        rows: Training rows.
        p: Parameters of the trial: lr, layer_decay, head_lr, weight_decay, batch, accumulate, epochs, schedule, warmup.

    Returns:
        The prepared model, optimizer, loader and schedule.
    """
    import torch
    from transformers import get_scheduler

    groups = parameter_groups(rates, model, decay=p["layer_decay"], head_lr=p["lr"] * p["head_lr"], weight=p["weight_decay"])
    optimizer = torch.optim.AdamW(groups, fused=True)
    loader = torch.utils.data.DataLoader(rows, batch_size=p["batch"], shuffle=True)
    steps = math.ceil(len(loader) / p["accumulate"]) * p["epochs"]
    schedule = get_scheduler(p["schedule"], optimizer, int(p["warmup"] * steps), steps)
    prepared: tuple[Any, ...] = accelerator.prepare(model, optimizer, loader, schedule)
    return prepared


def training_state(accelerator: Accelerator, *objects: Any) -> dict[str, Any]:
    """Return the states of objects that `prepare` returned, for `ctx.save`: the model first, then optimizer and schedule."""
    model, *others = objects
    return {"model": accelerator.unwrap_model(model).state_dict(), "others": [stateful.state_dict() for stateful in others]}


def load_training_state(accelerator: Accelerator, state: Mapping[str, Any], *objects: Any) -> None:
    """Restore a state of `training_state` in the same objects."""
    model, *others = objects
    accelerator.unwrap_model(model).load_state_dict(state["model"])
    for stateful, saved in zip(others, state["others"], strict=True):
        stateful.load_state_dict(saved)


def parameter_groups(
    rates: Mapping[PreTrainedModel, float], model: torch.nn.Module, *, decay: float, head_lr: float, weight: float
) -> list[dict[str, Any]]:
    """Return parameter groups for AdamW, with a learning rate for each layer.

    The rate of a layer is that of the layer above it times `decay`, and that of the embeddings is the lowest. Biases and
    norms have no weight decay.

    Args:
        rates: Learning rate of the top layer of each encoder in `model`.
        model: Model with its heads.
        decay: Factor from a layer to the one below, in (0, 1].
        head_lr: Learning rate of parameters outside of the encoders.
        weight: Weight decay of matrices.
    """
    rate_of: dict[int, float] = {}
    for encoder, rate in rates.items():
        depth = int(encoder.config.num_hidden_layers)
        for name, parameter in encoder.named_parameters():
            rate_of[id(parameter)] = rate * decay ** (depth - 1 - _layer(name, depth))
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for parameter in model.parameters():
        key = (rate_of.get(id(parameter), head_lr), weight if parameter.ndim > 1 else 0.0)
        groups.setdefault(key, []).append(parameter)
    return [{"params": group, "lr": rate, "weight_decay": weight_decay} for (rate, weight_decay), group in groups.items()]


def _layer(name: str, depth: int) -> int:
    """Return the index of a parameter's layer: -1 for embeddings, and the top layer for parameters above the stack."""
    if ".layer." in name:
        return int(name.split(".layer.")[1].split(".")[0])
    return -1 if "embeddings" in name else depth - 1
