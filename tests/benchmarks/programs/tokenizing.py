"""Seconds to tokenize a corpus: into our token cache, its digest included, or by `datasets.map`. Imports are not counted."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import datasets
import transformers

from trialplane.training import tokens
from trialplane.training.lines import LineDataset

MAX_LENGTH = 128


def main(kind: str, corpus: str, tokenizer: str, scratch: str) -> dict[str, float]:
    """The map's tokenizer keeps its own threads, as it comes."""
    text = LineDataset(corpus)
    if kind == "ours":
        (Path(corpus).parent / f".{Path(corpus).name}.skip.lines.content").unlink(missing_ok=True)  # of a former round
        began = time.perf_counter()
        made = tokens.tokenized(text, tokenizer, max_length=MAX_LENGTH, cache=scratch, say=None)
        assert len(made) == len(text)
        return {"seconds": time.perf_counter() - began}
    datasets.disable_progress_bars()
    fast = transformers.AutoTokenizer.from_pretrained(tokenizer)
    table = datasets.Dataset.from_text(corpus, cache_dir=scratch)
    began = time.perf_counter()
    mapped = table.map(
        lambda batch: fast(batch["text"], truncation=True, max_length=MAX_LENGTH),
        batched=True,
        batch_size=10 if kind == "map, 10" else 1000,
        num_proc=None,
        remove_columns=["text"],
        load_from_cache_file=False,
    )
    assert len(mapped) == len(text)
    return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))  # noqa: T201
