"""Microseconds per random line, ours and of a memory-mapped Arrow file in turn, one by one and 32 at a time."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import datasets

from trialplane.training.lines import LineDataset

BATCH = 32


def main(corpus: str, arrow: str, reads: int, rounds: int) -> dict[str, list[float]]:
    """The first round warms the page cache and is not counted."""
    lines = LineDataset(corpus)
    kinds: dict[str, Any] = {"ours": lines, "arrow": datasets.Dataset.from_text(corpus, cache_dir=arrow)}
    taken: dict[str, list[float]] = {}
    generator = random.Random(5)
    for number in range(rounds + 1):
        rows = [generator.randrange(len(lines)) for _ in range(reads)]
        for name, dataset in kinds.items():
            began = time.perf_counter()
            for row in rows:
                dataset[row]
            single = time.perf_counter() - began
            began = time.perf_counter()
            for start in range(0, reads, BATCH):
                dataset.__getitems__(rows[start : start + BATCH])
            batched = time.perf_counter() - began
            if number:
                taken.setdefault(name, []).append(1e6 * single / reads)
                taken.setdefault(f"{name}, {BATCH}", []).append(1e6 * batched / reads)
    return taken


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))  # noqa: T201
