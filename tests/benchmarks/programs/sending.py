"""A dataset of lines on its way to a worker: pickled here, and in another process unpickled and opened.

Three kinds: ours; a list of strings that is pickled; and one that pickles path and length and reads the list again on
first access.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

from trialplane.training.lines import LineDataset


class ListDataset:
    """All lines in memory."""

    def __init__(self, corpus: str) -> None:
        self.corpus = corpus
        self.lines = _read(corpus)

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, str]:
        return {"text": self.lines[index]}


class LazyDataset(ListDataset):
    """The same, but it sends a recipe."""

    def __init__(self, corpus: str) -> None:
        super().__init__(corpus)
        self.length = len(self.lines)

    def __getstate__(self) -> dict[str, Any]:
        return {"corpus": self.corpus, "length": self.length, "lines": None}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, str]:
        if self.lines is None:
            self.lines = _read(self.corpus)
        return super().__getitem__(index)


KINDS: dict[str, Any] = {"ours": LineDataset, "list": ListDataset, "lazy": LazyDataset}


def _read(corpus: str) -> list[str]:
    with Path(corpus).open(encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def write(kind: str, corpus: str, file: str) -> dict[str, float]:
    """Seconds to pickle it."""
    dataset = KINDS[kind](corpus)
    began = time.perf_counter()
    with Path(file).open("wb") as out:
        pickle.dump(dataset, out)
    return {"seconds": time.perf_counter() - began}


def read(file: str, lines: int) -> dict[str, float]:
    """Seconds to unpickle it and to have its length and first line; what the process holds then."""
    began = time.perf_counter()
    with Path(file).open("rb") as pickled:
        dataset = pickle.load(pickled)
    assert len(dataset) == lines
    assert dataset[0]["text"]
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "pss_mib": pss_mib()}


def pss_mib() -> float:
    """What this process holds, its share of what it shares included."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no Pss in smaps_rollup")


def main(do: str, **arguments: Any) -> dict[str, float]:
    """Pickles or opens."""
    if do == "pickle":
        return write(**arguments)
    del arguments["kind"]
    return read(**arguments)


if __name__ == "__main__":
    print(json.dumps(main(**json.loads(sys.argv[1]))))  # noqa: T201
