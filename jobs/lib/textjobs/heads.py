"""Models with a head, for fine-tuning: a causal language model or a classifier of sequences, by name or from a preset.

Heavy libraries are imported inside the functions. Must not import optuna or kubernetes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textjobs import tiny_deberta, tiny_gpt2, tokenizers
from trialplane import errors
from trialplane.training.tokens import loading

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TASKS = ("causal", "sequence")
_PRESETS = {tiny_gpt2.NAME: tiny_gpt2, tiny_deberta.NAME: tiny_deberta}


def is_causal(task: str) -> bool:
    """Return whether a task is to continue texts. The other task is to label them.

    Raises:
        InputError: There is no such task.
    """
    if task not in TASKS:
        raise errors.InputError(f"params.task is {task!r}; it is one of: {', '.join(TASKS)}")
    return task == "causal"


def load_tokenizer(name: str, cache: Path, corpus: Sequence[str] = ()) -> tuple[Path, PreTrainedTokenizerBase]:
    """Return the folder of a model's tokenizer, and the tokenizer, with a padding token.

    Arguments and errors are those of `tokenizers.load_tokenizer`.
    """
    entry = tokenizers.folder(name, cache, corpus)
    tokenizer = tokenizers.load_tokenizer(str(entry), cache)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return entry, tokenizer


def load_model(
    task: str, name: str, tokenizer: PreTrainedTokenizerBase, *, labels: Sequence[str] = (), dropout: float = 0.1
) -> PreTrainedModel:
    """Return a model with the head of a task, in float32 on the CPU. Torch's generator draws new weights.

    Args:
        task: `causal` (next token) or `sequence` (one label per text).
        name: Name in the hub, local folder, or a preset: `tiny-gpt2`, and for `sequence` also `tiny-deberta`.
        tokenizer: Tokenizer of the same name.
        labels: Names of the classes, for `sequence`.
        dropout: Dropout of a preset. A pretrained model has its own.

    Raises:
        InputError: There is no such task, or neither the hub nor a folder has such a model.
    """
    loading.quiet()
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    head = AutoModelForCausalLM if is_causal(task) else AutoModelForSequenceClassification
    options: dict[str, Any] = {}
    if labels:
        options = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    try:
        if name in _PRESETS:
            config = _PRESETS[name].config(tokenizer, dropout)
            config.update(options)
            model = head.from_config(config)
        else:
            model = head.from_pretrained(name, dtype=torch.float32, **options)
    except (OSError, ValueError, ImportError) as error:
        raise errors.InputError(
            f"the model {name!r} could not be loaded for the task {task}: {errors.first_line(error)}; give a local folder "
            f"or a hub name that this machine reaches or has downloaded (HF_HOME), or a preset: {', '.join(_PRESETS)}"
        ) from error
    if model.config.pad_token_id is None:  # a GPT-2 classifies by the last token that is not padding
        model.config.pad_token_id = tokenizer.pad_token_id
    return model
