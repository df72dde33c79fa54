"""What all workers hold that read random lines of one LineDataset at the same time."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
from multiprocessing import synchronize
from typing import Any

from tests.benchmarks.programs import sending

from trialplane.training.lines import LineDataset


def work(dataset: LineDataset, seed: int, reads: int, together: synchronize.Barrier, answers: Any) -> None:
    """Reads, waits until all have read, measures, and stays until all have measured."""
    generator = random.Random(seed)
    characters = sum(len(dataset[generator.randrange(len(dataset))]["text"]) for _ in range(reads))
    assert characters
    together.wait()
    answers.put(sending.pss_mib())
    together.wait()


def main(corpus: str, workers: int, reads: int) -> dict[str, float]:
    """Their sum."""
    context = multiprocessing.get_context("spawn")
    together, answers = context.Barrier(workers), context.SimpleQueue()
    dataset = LineDataset(corpus)
    children = [
        context.Process(target=work, args=(dataset, seed, reads, together, answers), daemon=True) for seed in range(workers)
    ]
    for child in children:
        child.start()
    total = sum(answers.get() for _ in children)
    for child in children:
        child.join()
    return {"mib": total}


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))  # noqa: T201
