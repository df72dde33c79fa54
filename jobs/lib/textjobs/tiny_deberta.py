"""The preset `tiny-deberta`: an encoder and a tokenizer that need neither a hub nor a GPU.

It is a DeBERTa-v2 in the form of DeBERTa-v3 (relative attention, p2c|c2p, shared keys, no absolute positions) with two
layers, random weights that depend on the seed, and a SentencePiece model trained from the job's text. It learns a toy task
in seconds on one core, and runs through the same code as `microsoft/deberta-v3-large`.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trialplane import errors

if TYPE_CHECKING:
    from transformers import DebertaV2Config, PreTrainedTokenizerBase

NAME = "tiny-deberta"
VOCABULARY = 1200


def config(tokenizer: PreTrainedTokenizerBase, dropout: float) -> DebertaV2Config:
    """Return the configuration of the encoder for a tokenizer. `dropout` is that of hidden states and of attention."""
    from transformers import DebertaV2Config

    return DebertaV2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=256,
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        pad_token_id=tokenizer.pad_token_id,
        # 0.02 suits 768 dimensions; at 64 it leaves attention flat for most of a short training.
        initializer_range=0.08,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )


def write(corpus: Sequence[str], folder: Path) -> None:
    """Train a small unigram model in the layout of DeBERTa-v3, and write the files that `from_pretrained` converts.

    The same text gives the same bytes of `spm.model`, `config.json` and `tokenizer_config.json`.

    Args:
        corpus: Lines of text.
        folder: Folder of the files.

    Raises:
        InputError: There is too little text for a model.
    """
    import sentencepiece

    seeds = folder / "seeds.tsv"
    seeds.write_text(_seed_pieces(corpus))
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus),
            model_writer=model,
            model_type="unigram",
            vocab_size=VOCABULARY,
            seed_sentencepieces_file=str(seeds),
            hard_vocab_limit=False,  # a short text gives fewer pieces instead of an error
            character_coverage=1.0,
            num_threads=1,  # more than one makes the scores depend on scheduling
            minloglevel=2,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            pad_piece="[PAD]",
            bos_piece="[CLS]",
            eos_piece="[SEP]",
            unk_piece="[UNK]",
        )
    except (RuntimeError, ValueError) as error:
        raise errors.InputError(
            f"{NAME} could not train its tokenizer on the {len(corpus)} lines of text it was given ({error}); "
            "check that the data file holds text"
        ) from error
    (folder / "spm.model").write_bytes(model.getvalue())
    settings = {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False, "vocab_type": "spm"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))


def _seed_pieces(corpus: Sequence[str]) -> str:
    """Return the words of a text and the parts that words share, as lines `piece<tab>count`, the most frequent first.

    SentencePiece itself only takes strings that repeat across different words as seeds. In a text of a few hundred distinct
    words, most whole words would be missing, and rows would be twice as long.
    """
    words = Counter(word for line in corpus for word in re.findall(r"\w+", line))
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        for end in range(2, len(word)):
            pieces["\u2581" + word[:end]] += count
            pieces[word[end - 1 :]] += count
        pieces["\u2581" + word] += count
    ranked_pieces = sorted(pieces.items(), key=lambda item: (-item[1], item[0]))
    return "".join(f"{piece}\t{count}\n" for piece, count in ranked_pieces)
