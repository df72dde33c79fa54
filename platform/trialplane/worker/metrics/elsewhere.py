"""Search the files that a program has written, and that its job does not read, for a missing metric."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from trialplane.job.program import MetricSource
from trialplane.worker.metrics.tails import LAST, Source, Tail

_TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".txt", ".log")
_TIME_LIMIT = 2.0  # seconds for the search, which may take little more
MOST_ENTRIES = 5_000  # entries of the folders that are searched
_MAX_FILES = 3  # files in a message
_MAX_NAMES = 5  # metrics of each file in a message


def advice(
    folder: Path, names: Collection[str], is_own: Callable[[Path], bool], original_content: Callable[[Path], bytes]
) -> list[str]:
    """Return advice on files with metrics, with lines of job.yaml that read them; if possible on missing metrics only.

    Args:
        folder: Folder in which the program ran.
        names: Missing metrics.
        is_own: Returns whether the program has written a file, and the job does not read it.
        original_content: Returns the content of a file original_content the program ran.
    """
    missing_advice: dict[str, str] = {}  # line of job.yaml → advice on a file with a missing metric
    other_advice: dict[str, str] = {}
    for file, source, values in metric_files(folder, names, is_own, original_content):
        if source is None:
            remedy = "print the metric, or for a script write `capture: wandb`"
            other_advice.setdefault("wandb", f"{file.relative_to(folder)} is W&B's, which is not read: {remedy}")
            continue
        matching = {name: values[name] for name in names if name in values}
        shown = ", ".join(f"{name} ({value:g})" for name, value in list((matching or values).items())[:_MAX_NAMES])
        kind = source.source if source.source != "file" else f'{{from: file, path: "{source.path}"}}'
        (missing_advice if matching else other_advice).setdefault(
            kind,
            f"{file.relative_to(folder)} has {shown}: write `metrics: {kind}`{'' if matching else ' and name one of these'}",
        )
    return list((missing_advice or other_advice).values())[:_MAX_FILES]


def metric_files(
    folder: Path, names: Collection[str], is_own: Callable[[Path], bool], original_content: Callable[[Path], bytes]
) -> Iterator[tuple[Path, MetricSource | None, dict[str, float]]]:
    """Yield files with metrics, the source that reads each, and its last values. A file of W&B has no source and no values.

    Args:
        folder: Folder in which a program ran.
        names: Metrics to find in any spelling.
        is_own: Returns whether the program has written a file.
        original_content: Returns the content of a file original_content the program ran.
    """
    deadline = time.monotonic() + _TIME_LIMIT
    for file in _files(folder):
        if time.monotonic() > deadline:
            return
        if file.suffix == ".wandb" and is_own(file):
            yield file, None, {}
        if (source := _source(file, folder)) is None:
            continue
        values: dict[str, float] = {}
        with contextlib.suppress(OSError):  # the file was removed meanwhile
            if not is_own(file) or (source.source == "file" and file.stat().st_size > LAST):
                continue
            for line in Tail(file, Source(source, names), 0, original_content(file)).read(True, deadline):
                values.update(line.metrics)
        if values:
            yield file, source, values


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, up to a number of entries."""
    budget = MOST_ENTRIES
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield Path(root, name)
        budget -= len(folders) + len(files)
        if budget < 0:
            return


def _source(file: Path, folder: Path) -> MetricSource | None:
    """Return the source that reads a file of this kind, or None."""
    if "tfevents" in file.name:
        return MetricSource("tensorboard")
    if file.suffix not in _TEXT_SUFFIXES:
        return None
    *parents, name = file.relative_to(folder).parts
    # A folder with a number in its name may have another one in the next trial.
    return MetricSource("file", path="/".join(["**", name] if any(map(str.isdigit, "".join(parents))) else [*parents, name]))
