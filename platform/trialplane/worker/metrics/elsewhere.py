"""Search for a missing metric in the files that a program has written and that its job does not read."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from trialplane.job.program import MetricSource
from trialplane.worker.metrics.tails import LAST, Source, Tail

_TEXTS = (".csv", ".tsv", ".jsonl", ".json", ".txt", ".log")
_SECONDS = 2.0  # that it takes, or little more
MOST_ENTRIES = 5_000  # of the folders that are searched
_MOST_FILES = 3  # in a message
_MOST_NAMES = 5  # of each


def advice(
    folder: Path, names: Collection[str], is_own: Callable[[Path], bool], before: Callable[[Path], bytes]
) -> list[str]:
    """Return messages about files with metrics, each with the line of job.yaml that reads it; preferably of missing metrics.

    Args:
        folder: in which the program ran.
        names: the missing metrics.
        is_own: whether a file is one that the program has written, and is not read already.
        before: returns the content of a file before the program ran.
    """
    with_missing: dict[str, str] = {}  # line of job.yaml → of a file with one of the names
    with_other: dict[str, str] = {}
    for file, source, values in written(folder, names, is_own, before):
        if source is None:
            remedy = "print the metric, or for a script write `capture: wandb`"
            with_other.setdefault("wandb", f"{file.relative_to(folder)} is W&B's, which is not read: {remedy}")
            continue
        matching = {name: values[name] for name in names if name in values}
        shown = ", ".join(f"{name} ({value:g})" for name, value in list((matching or values).items())[:_MOST_NAMES])
        kind = source.source if source.source != "file" else f'{{from: file, path: "{source.path}"}}'
        (with_missing if matching else with_other).setdefault(
            kind,
            f"{file.relative_to(folder)} has {shown}: write `metrics: {kind}`{'' if matching else ' and name one of these'}",
        )
    return list((with_missing or with_other).values())[:_MOST_FILES]


def written(
    folder: Path, names: Collection[str], is_own: Callable[[Path], bool], before: Callable[[Path], bytes]
) -> Iterator[tuple[Path, MetricSource | None, dict[str, float]]]:
    """Yield files that have metrics, with the source that reads them and their last values. A file of W&B has neither.

    Args:
        folder: in which a program ran.
        names: metrics that are found in any spelling.
        is_own: whether a file is one that the program has written.
        before: returns the content of a file before the program ran.
    """
    deadline = time.monotonic() + _SECONDS
    for file in _files(folder):
        if time.monotonic() > deadline:
            return
        if file.suffix == ".wandb" and is_own(file):
            yield file, None, {}
        if (source := _source(file, folder)) is None:
            continue
        values: dict[str, float] = {}
        with contextlib.suppress(OSError):  # it is gone meanwhile
            if not is_own(file) or (source.source == "file" and file.stat().st_size > LAST):
                continue
            for line in Tail(file, Source(source, names), 0, before(file)).read(True, deadline):
                values.update(line.metrics)
        if values:
            yield file, source, values


def _files(folder: Path) -> Iterator[Path]:
    budget = MOST_ENTRIES
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield Path(root, name)
        budget -= len(folders) + len(files)
        if budget < 0:
            return


def _source(file: Path, folder: Path) -> MetricSource | None:
    """Return the source that reads such a file, or None."""
    if "tfevents" in file.name:
        return MetricSource("tensorboard")
    if file.suffix not in _TEXTS:
        return None
    *above, name = file.relative_to(folder).parts
    # A folder with a number in its name is another one in the next trial.
    return MetricSource("file", path="/".join(["**", name] if any(map(str.isdigit, "".join(above))) else [*above, name]))
