"""Text for training: opening a corpus in a worker, its memory, random reads, the index, and tokenizing it.

The corpus has 14.8 million lines, 1.4 GB, as the one whose list of strings took 15 s to pickle and came out empty. It is
made in the scratch folder and removed in the end. All rows are with a warm page cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import corpora
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import Workplace

WORKERS = 8
LIST = "list of strings, pickled"
LAZY = "path and length pickled, list read again"


def measure(place: Workplace) -> Iterator[Row]:
    """All rows; peers and ours in turn."""
    folder = place.scratch / "lines"
    folder.mkdir()
    count = place.size(14_800_000, 20_000)
    corpus = folder / "corpus.txt"
    place.say(f"lines: writing a corpus of {count:,} lines")
    corpora.write(corpus, count)
    try:
        yield from _index(place, corpus)
        yield from _sending(place, corpus, count)
        yield from _reads(place, corpus, count)
        yield from _tokenizing(place, folder)
    finally:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def _index(place: Workplace, corpus: Path) -> Iterator[Row]:
    place.say("lines: building the index")
    arguments = {"corpus": str(corpus), "rounds": place.repeats(5)}
    taken = place.call("indexing", arguments, timeout=300)
    size = corpus.stat().st_size / 1e9
    what = f"index of {size:.2g} GB of lines, built and on disk"
    yield Row("lines", what, "s/GB", tuple(seconds / size for seconds in taken["seconds"]), goal=Goal(value=1))


def _sending(place: Workplace, corpus: Path, count: int) -> Iterator[Row]:
    """What a worker waits for and holds: our recipe, a pickled list, a recipe by which the list is read again."""
    pickled: dict[str, list[float]] = {}
    opened: dict[str, list[dict[str, Any]]] = {}
    for kind, rounds in (("ours", place.repeats(10, 2)), ("list", place.repeats(2)), ("lazy", place.repeats(2))):
        place.say(f"lines: a dataset of the kind {kind!r}, sent {rounds} times")
        file = corpus.with_suffix(f".{kind}")
        sent = place.call("sending", {"do": "pickle", "kind": kind, "corpus": str(corpus), "file": str(file)}, timeout=300)
        pickled[kind] = [sent["seconds"]]
        opening = {"do": "open", "kind": kind, "file": str(file), "lines": count}
        opened[kind] = [place.call("sending", opening, timeout=300) for _ in range(rounds)]
        file.unlink()
    first = {kind: tuple(1000 * each["seconds"] for each in rounds) for kind, rounds in opened.items()}
    what = f"a new process: length and first of {count:,} lines"
    yield Row("lines", what, "ms", first["ours"], goal=Goal(value=2))
    yield Row("lines", what, "ms", first["ours"], LIST, first["list"], Goal(times=1000))
    yield Row("lines", what, "ms", first["ours"], LAZY, first["lazy"], Goal(times=1000))
    milliseconds = {kind: tuple(1000 * value for value in values) for kind, values in pickled.items()}
    yield Row("lines", "pickling the dataset", "ms", milliseconds["ours"], LIST, milliseconds["list"])

    reads = place.size(100_000, 1_000)
    place.say(f"lines: {WORKERS} workers, {reads:,} random lines each")
    arguments = {"corpus": str(corpus), "workers": WORKERS, "reads": reads}
    held = [place.call("memory", arguments, timeout=300)["mib"] for _ in range(place.repeats(2))]
    theirs = tuple(WORKERS * each["pss_mib"] for each in opened["lazy"])
    goal = Goal(value=1.1 * corpus.stat().st_size / 2**20 + WORKERS * 60e6 / 2**20)
    note = f"the peer's is one worker's, measured, times {WORKERS}: they share nothing"
    what = f"{WORKERS} workers, {reads:,} random lines each: memory in all (PSS)"
    yield Row("lines", what, "MiB", tuple(held), LAZY, theirs, goal, words=("less", "more"), note=note)


def _reads(place: Workplace, corpus: Path, count: int) -> Iterator[Row]:
    place.say("lines: random reads, beside an Arrow file of the same lines")
    arguments = {
        "corpus": str(corpus),
        "arrow": str(corpus.parent / "arrow"),
        "reads": place.size(50_000, 1_000),
        "rounds": place.repeats(5),
    }
    taken = place.call("reading", arguments, timeout=600)
    peer = "datasets.Dataset over Arrow"
    what = f"one of {count:,} lines, at random"
    yield Row("lines", what, "µs", tuple(taken["ours"]), peer, tuple(taken["arrow"]), Goal(times=2))
    what = "the same, asked for 32 at a time"
    yield Row("lines", what, "µs", tuple(taken["ours, 32"]), peer, tuple(taken["arrow, 32"]), Goal(times=2))


def _tokenizing(place: Workplace, folder: Path) -> Iterator[Row]:
    count = place.size(1_000_000, 500)
    corpus, tokenizer = folder / "short.txt", folder / "tokenizer"
    corpora.write(corpus, count)
    corpora.write_tokenizer(tokenizer)
    taken: dict[str, list[float]] = {"ours": [], "map": [], "map, 10": []}
    for number in range(place.repeats(2)):
        for kind, samples in taken.items():
            if kind == "map, 10" and number:
                continue  # four minutes each
            place.say(f"lines: tokenizing {count:,} lines, round {number + 1}, {kind}")
            scratch = folder / f"tokens-{number}-{kind}"
            arguments = {
                "kind": kind,
                "corpus": str(corpus),
                "tokenizer": str(tokenizer),
                "scratch": str(scratch),
            }
            samples.append(place.call("tokenizing", arguments, timeout=1200)["seconds"])
    cores = len(os.sched_getaffinity(0))
    what = f"tokenizing {count:,} lines on {cores} cores, with a BERT tokenizer"
    ours = tuple(taken["ours"])
    yield Row("lines", what, "s", ours, "datasets.map(num_proc=None)", tuple(taken["map"]), Goal(times=0.8 * cores))
    yield Row("lines", what, "s", ours, "the same, batch_size=10", tuple(taken["map, 10"]), Goal(times=0.8 * cores))
