"""The preset `tiny-gpt2`: a language model and a tokenizer that need neither a hub nor a GPU.

It is a GPT-2 with two layers, random weights that depend on the seed, and a byte-level BPE trained from the job's text. It
learns a toy text in seconds on one core, and runs through the same code as `gpt2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trialplane import errors

if TYPE_CHECKING:
    from transformers import GPT2Config, PreTrainedTokenizerBase

NAME = "tiny-gpt2"
VOCABULARY = 1000
END = "<|endoftext|>"


def config(tokenizer: PreTrainedTokenizerBase, dropout: float) -> GPT2Config:
    """Return the configuration of the model for a tokenizer. `dropout` is that of embeddings, attention and residuals."""
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=256,
        n_embd=64,
        n_layer=2,
        n_head=2,
        # 0.02 suits 768 dimensions; at 64 it leaves attention flat for most of a short training.
        initializer_range=0.08,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        resid_pdrop=dropout,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )


def write(corpus: Sequence[str], folder: Path) -> None:
    """Write a tokenizer of this text to a folder, for `from_pretrained`.

    Raises:
        InputError: The text is empty.
    """
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    if not any(line.strip() for line in corpus):
        raise errors.InputError(f"{NAME} could not train its tokenizer: the text it was given is empty; look at params.data")
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(corpus, vocab_size=VOCABULARY, min_frequency=2, special_tokens=[END], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token=END, eos_token=END, unk_token=END, model_max_length=1024
    )
    tokenizer.save_pretrained(folder)
