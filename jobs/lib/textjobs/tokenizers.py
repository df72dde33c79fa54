"""Tokenizers for jobs: converted from SentencePiece once, then read from `tokenizer.json`.

The conversion of a `spm.model` of DeBERTa or XLM-R takes seconds for a large vocabulary, and needs protobuf, in whose
default implementation two generated modules of the same message collide (see `policies/protobuf.py`). So the first trial
that needs a tokenizer converts it under a file lock, and renames the result into the cache. Later trials, in any process,
read `tokenizer.json`, which needs no protobuf, no SentencePiece and no hub.

A tokenizer has a name in the hub (`microsoft/deberta-v3-base`), a local folder, or the name of a preset, which is made from
the job's text: `tiny_deberta.py` trains a SentencePiece model, `tiny_gpt2.py` a byte-level BPE, and `characters.py` takes
the characters. This module must not import optuna or kubernetes. Heavy libraries are imported inside the functions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textjobs import characters, tiny_deberta, tiny_gpt2
from trialplane import errors
from trialplane.training import building
from trialplane.training.tokens import loading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The output of a conversion depends on the versions of these libraries, which are part of the cache key.
_CONVERTERS = ("transformers", "tokenizers", "sentencepiece")

# Files of a tokenizer. The digests of those in a local folder are part of its cache key.
_TOKENIZER_FILES = (
    "spm.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "config.json",
)

# Modules of presets. Each has NAME, VOCABULARY (the maximum number of tokens) and write().
_PRESETS = {preset.NAME: preset for preset in (tiny_deberta, tiny_gpt2, characters)}


def load_tokenizer(name: str, cache: Path, corpus: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Return a fast tokenizer from the cache. If it is not there yet, convert it first.

    Args:
        name: Name in the hub, local folder, `tiny-deberta`, `tiny-gpt2` or `characters`.
        cache: Folder that all trials share. It is created if necessary.
        corpus: Lines of text for a preset, which are part of its cache key.

    Raises:
        InputError: Neither the hub nor the folder has a tokenizer of this name, or a preset has too little text.
    """
    entry = folder(name, cache, corpus)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(entry, local_files_only=True)


def folder(name: str, cache: Path, corpus: Sequence[str] = ()) -> Path:
    """Return the folder of a tokenizer in the cache, to send it to other processes instead of the tokenizer itself.

    Arguments and errors are those of `load_tokenizer`.
    """
    loading.quiet()
    # Without this, each process would start threads that outlive the call.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    entry = cache / "tokenizers" / _key(name, corpus)
    if not entry.is_dir():
        with building.lock(entry):
            if not entry.is_dir():
                _fill(entry, name, corpus)
    return entry


def convert(source: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from its own files, like `tokens.loading`, whose error does not name the presets.

    Raises:
        InputError: There is no such tokenizer, or the hub cannot be reached.
        PolicyError: Protobuf refuses SentencePiece's messages in this process.
    """
    try:
        return loading.load(source)
    except errors.InputError as error:
        raise errors.InputError(f"{error}, or a preset: {', '.join(_PRESETS)}") from error


def _fill(entry: Path, name: str, corpus: Sequence[str]) -> None:
    """Convert a tokenizer in a temporary folder beside `entry`, and rename it. So `entry` is always complete or missing."""
    scratch = Path(tempfile.mkdtemp(dir=entry.parent, prefix=f".{entry.name}-"))
    source = scratch / "source"
    source.mkdir()
    try:
        if name in _PRESETS:
            _PRESETS[name].write(corpus, source)
        tokenizer = convert(source if name in _PRESETS else name)
        converted = scratch / "converted"
        tokenizer.save_pretrained(converted)
        if not (converted / "tokenizer.json").is_file():
            raise errors.InputError(f"the tokenizer {name!r} has no fast form; a job needs one that has")
        converted.rename(entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _key(name: str, corpus: Sequence[str]) -> str:
    """Return a name for a folder in the cache that depends on everything that the tokenizer depends on."""
    facts: dict[str, Any] = {"name": name, **{library: metadata.version(library) for library in _CONVERTERS}}
    if name in _PRESETS:
        text = hashlib.sha256()
        for line in corpus:
            text.update(line.encode() + b"\n")
        facts |= {"corpus": text.hexdigest(), "vocabulary": _PRESETS[name].VOCABULARY}
    elif (local := Path(name)).is_dir():
        files = (local / file for file in _TOKENIZER_FILES)
        facts |= {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    readable = "".join(letter if letter.isalnum() else "-" for letter in Path(name).name)[:40]
    return f"{readable}-{digest[:16]}"
