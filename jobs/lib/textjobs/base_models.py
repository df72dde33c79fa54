"""Load frozen causal language models for adapters, once per process, so that forked trials share their memory.

    python -m textjobs.base_models FOLDER TOKENIZER FILE     # trains the preset, as `load` does when it is missing

The preset `tiny` is a GPT-2 of two layers that has learned to write the texts of a file, prompts and completions, but not
which completion belongs to which prompt. It is trained in a process of its own, because a training may start threads and
open a GPU, after which a template could not fork. Heavy libraries are imported inside the functions.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from textjobs import heads, tables, tiny_gpt2
from trialplane import errors
from trialplane.training import building

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TINY = "tiny"
COLUMNS = ("prompt", "completion")
_STEPS, _BATCH, _LENGTH = 120, 32, 64  # of the preset's training: steps, texts of a batch, tokens of a text


@functools.cache
def load(name: str, cache: Path, file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a base model, frozen, in float32 on the CPU, and its tokenizer. A second call in a process returns the same.

    Args:
        name: Name in the hub, local folder, or `tiny`.
        cache: Folder shared by all trials.
        file: Table with the columns prompt and completion, on which `tiny` is trained.

    Raises:
        InputError: There is no such model, or `tiny` cannot be trained.
    """
    import torch

    # A template with threads cannot fork. Each trial sets its own number of threads.
    torch.set_num_threads(1)
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    source = str(_tiny_folder(cache, file)) if name == TINY else name
    _, tokenizer = heads.load_tokenizer(source, cache)
    model = heads.load_model("causal", source, tokenizer)
    return model.requires_grad_(False).eval(), tokenizer


def _tiny_folder(cache: Path, file: Path) -> Path:
    """Return the folder of the preset in the cache; train it first if it is not there yet.

    Raises:
        InputError: It cannot be trained.
    """
    digest = hashlib.sha256(file.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    target = cache / "models" / f"{TINY}-{digest[:16]}"

    def build() -> None:
        """Train the preset in another process, and rename its folder when it is complete."""
        part = target.with_name(f"{target.name}{building.PART}")
        tokenizer, _ = heads.load_tokenizer(tiny_gpt2.NAME, cache, _texts(file))
        path = os.pathsep.join(sys.path)
        environ = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-m", "textjobs.base_models", *map(str, (part, tokenizer, file))]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise errors.InputError(f"the model {TINY!r} could not be made:\n{ended.stderr.strip()[-2000:]}")
        part.rename(target)

    building.build_once(target, build)
    return target


def _texts(file: Path) -> list[str]:
    """Return the prompts and the completions of a file, each as a text of its own."""
    return [text for row in tables.read_rows(file, COLUMNS) for text in (row["prompt"], row["completion"])]


def train_tiny(folder: Path, tokenizer_folder: Path, file: Path) -> None:
    """Train the preset on a file's texts, and write it to a folder with its tokenizer, as transformers loads them."""
    import torch
    from torch import nn
    from transformers import AutoTokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = random.Random(0)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, local_files_only=True)
    tokenizer.pad_token = tokenizer.eos_token
    model = heads.load_model("causal", tiny_gpt2.NAME, tokenizer, dropout=0.0)
    texts = [torch.tensor([*ids[: _LENGTH - 1], tokenizer.eos_token_id]) for ids in tokenizer(_texts(file))["input_ids"]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=_STEPS, pct_start=0.1)
    for _ in range(_STEPS):
        batch = rng.sample(texts, min(_BATCH, len(texts)))
        ids = nn.utils.rnn.pad_sequence(batch, batch_first=True)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in batch], batch_first=True)
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
        targets = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    train_tiny(*map(Path, sys.argv[1:4]))
