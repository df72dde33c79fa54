"""Tokenizers for jobs: converted from SentencePiece once, then read from `tokenizer.json`.

Converting a DeBERTa or XLM-R `spm.model` needs protobuf, in whose default implementation two generated modules of the
same message collide (see `policies/protobuf.py`), and takes seconds for a large vocabulary. So the first trial that
asks for a tokenizer converts it under a file lock and renames the result into the cache; every later one, in any
process, reads `tokenizer.json`, which needs no protobuf, no SentencePiece and no hub.

A name is a hub name (`microsoft/deberta-v3-base`), a local folder, or a preset made from the job's own text:
`tiny_deberta.py` trains a SentencePiece model, `tiny_gpt2.py` a byte-level BPE, `characters.py` takes the characters.
Must not import optuna or kubernetes; heavy libraries are imported inside the functions, so that importing this module
starts nothing.
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

# The libraries whose versions decide what a conversion writes: a new one makes a new cache entry.
_CONVERTERS = ("transformers", "tokenizers", "sentencepiece")

# What a tokenizer is read from; the digests of those present are part of a local folder's cache key.
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

# Those made from the job's text: modules of one shape, NAME, VOCABULARY (the most tokens) and write().
_PRESETS = {preset.NAME: preset for preset in (tiny_deberta, tiny_gpt2, characters)}


def load_tokenizer(name: str, cache: Path, corpus: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """The fast tokenizer `name`, from the cache, converted into it if it is not there yet.

    Args:
        name: hub name, local folder, `tiny-deberta`, `tiny-gpt2` or `characters`.
        cache: folder shared by all trials; made when missing.
        corpus: lines of text that a preset is made from; part of its cache key.

    Raises:
        InputError: the hub or the folder does not give a tokenizer of that name, or the preset got too little text.
    """
    entry = folder(name, cache, corpus)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(entry, local_files_only=True)


def folder(name: str, cache: Path, corpus: Sequence[str] = ()) -> Path:
    """The folder of that tokenizer in the cache, for those who send a tokenizer's place and not the tokenizer itself.

    Arguments and errors are those of `load_tokenizer`.
    """
    loading.quiet()
    # One tokenizer per process is enough, and its rayon threads would outlive the call.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    entry = cache / "tokenizers" / _key(name, corpus)
    if not entry.is_dir():
        with building.lock(entry):
            if not entry.is_dir():
                _fill(entry, name, corpus)
    return entry


def convert(source: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer from its own files, as `tokens.loading` does, which knows no presets.

    Raises:
        InputError: there is no such tokenizer, or it cannot be reached.
        PolicyError: protobuf refuses SentencePiece's messages in this process.
    """
    try:
        return loading.load(source)
    except errors.InputError as error:
        raise errors.InputError(f"{error}, or a preset: {', '.join(_PRESETS)}") from error


def _fill(entry: Path, name: str, corpus: Sequence[str]) -> None:
    """Convert into a temporary folder beside `entry`, and rename: `entry` is whole or absent at every moment."""
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
    """A folder name that changes with whatever changes the tokenizer."""
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
