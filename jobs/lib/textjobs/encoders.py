"""Encoders for jobs: pretrained ones by name or folder, and the preset of `tiny_deberta.py`; how they are trained.

Heavy libraries are imported inside the functions. Must not import optuna or kubernetes.
"""

from __future__ import annotations

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
    """The encoder `name` in float32 on the CPU, without a head.

    Args:
        name: hub name, local folder, or `tiny-deberta`.
        tokenizer: the one loaded by the same name; gives the size of the tiny vocabulary.
        seed: of the weights that are drawn; sets torch's generator.
        dropout: probability for hidden states and attention, in place of the checkpoint's.

    Raises:
        InputError: the hub or the folder does not give a model of that name.
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
        first = str(error).strip().split("\n", 1)[0]
        raise errors.InputError(
            f"the encoder {name!r} could not be loaded: {first}; give a local folder or a hub name that this machine "
            f"reaches or has downloaded (HF_HOME), or the preset {tiny_deberta.NAME}"
        ) from error


def mean_over(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of shape (batch, size) over the tokens where the mask, (batch, tokens), is set."""
    weight = mask.unsqueeze(-1).to(states.dtype)
    return (states * weight).sum(1) / weight.sum(1).clamp(min=1)


def prepare(
    accelerator: Accelerator,
    model: torch.nn.Module,
    rates: Mapping[PreTrainedModel, float],
    rows: torch.utils.data.Dataset[Any],
    p: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Prepare the model, AdamW with a learning rate per layer, the loader of rows, and the schedule with accelerate.

    Args:
        accelerator: of the trial.
        model: the whole model.
        rates: for each encoder inside `model`, the learning rate of its topmost layer.
        rows: what is trained on.
        p: the trial's parameters: lr, layer_decay, head_lr, weight_decay, batch, accumulate, epochs, schedule, warmup.
    """
    import torch
    from transformers import get_scheduler

    groups = parameter_groups(rates, model, decay=p["layer_decay"], head_lr=p["lr"] * p["head_lr"], weight=p["weight_decay"])
    optimizer = torch.optim.AdamW(groups, fused=True)
    loader = torch.utils.data.DataLoader(rows, batch_size=p["batch"], shuffle=True)
    steps = -(-len(loader) // p["accumulate"]) * p["epochs"]
    schedule = get_scheduler(p["schedule"], optimizer, int(p["warmup"] * steps), steps)
    prepared: tuple[Any, ...] = accelerator.prepare(model, optimizer, loader, schedule)
    return prepared


def training_state(accelerator: Accelerator, *objects: Any) -> dict[str, Any]:
    """The state of what `prepare` returned, for `ctx.save`: the model first, then optimizer and schedule."""
    model, *others = objects
    return {"model": accelerator.unwrap_model(model).state_dict(), "others": [stateful.state_dict() for stateful in others]}


def load_training_state(accelerator: Accelerator, state: Mapping[str, Any], *objects: Any) -> None:
    """Continue from `training_state`, with the same objects."""
    model, *others = objects
    accelerator.unwrap_model(model).load_state_dict(state["model"])
    for stateful, saved in zip(others, state["others"], strict=True):
        stateful.load_state_dict(saved)


def parameter_groups(
    rates: Mapping[PreTrainedModel, float], model: torch.nn.Module, *, decay: float, head_lr: float, weight: float
) -> list[dict[str, Any]]:
    """Parameter groups with a learning rate per layer, as AdamW takes them.

    The top layer of each encoder learns at its rate, each one below at `decay` times the one above, embeddings slowest,
    and every parameter outside the encoders at `head_lr`. Biases and norms get no weight decay.

    Args:
        rates: for each encoder inside `model`, the learning rate of its topmost layer.
        model: the whole model.
        decay: factor from a layer to the one below, in (0, 1].
        head_lr: of whatever is not part of an encoder.
        weight: weight decay of matrices.
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
    return [{"params": group, "lr": rate, "weight_decay": decayed} for (rate, decayed), group in groups.items()]


def _layer(name: str, depth: int) -> int:
    """Index of the layer that a parameter belongs to: -1 for embeddings, the top one for what lies above the stack."""
    if ".layer." in name:
        return int(name.split(".layer.")[1].split(".")[0])
    return -1 if "embeddings" in name else depth - 1
