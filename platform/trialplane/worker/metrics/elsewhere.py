"""Search for a missing metric in files that a program has written and that its job does not read.

If a trial ends without a metric that its job names, the message of the failure gets this advice.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialplane.job.program import MetricSource
from trialplane.worker.metrics.names import LineMetrics, similar_name
from trialplane.worker.metrics.tails import LAST, Source, Tail

_TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".txt", ".log")
_TIME_LIMIT = 2.0  # seconds for the search, which may take little more
MOST_ENTRIES = 5_000  # entries of the folders that are searched
_MAX_FILES = 3  # files in a message
_MAX_NAMES = 5  # metrics of each file in a message
_LETTER = re.compile(r"[^\W\d_]")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
# A date, perhaps with a time, and a number as long as a time in seconds or a process ID: 2026-01-31_12-00-00, 1769860800.
_STAMP = re.compile(
    r"(?<!\d)(?:20\d\d([-_.]?)\d\d\1\d\d(?:[-_.T ]{0,2}\d\d[-_.h]?\d\d(?:[-_.m]?\d{2,})?)?|\d{5,})(?:\.\d+)?(?!\d)"
)


class MetricFile(NamedTuple):
    """A file with metrics.

    Attributes:
        path: Path of the file.
        source: Source that would read it; None for a file of W&B, which no source reads.
        values: Last value of each metric in it.
        ambiguous: Metrics to find that stand for one of several values in nested objects.
        lines: Lines with metrics or a step. To take little memory, lines with the same names share values.
    """

    path: Path
    source: MetricSource | None
    values: dict[str, float]
    ambiguous: Collection[str] = ()
    lines: Sequence[LineMetrics] = ()


def advice(
    folder: Path,
    names: Collection[str],
    read_sources: Sequence[MetricSource],
    is_own: Callable[[Path], bool],
    original_content: Callable[[Path], bytes],
    values: Collection[Any],
) -> list[str]:
    """Return messages that name files with metrics, each with the line of job.yaml that reads its file.

    If files have missing metrics, only the messages on these files are returned; otherwise, those on files with other
    metrics.

    Args:
        folder: Folder in which the program ran.
        names: Missing metrics.
        read_sources: Sources that the job reads, which it keeps.
        is_own: Returns whether the program has written a file that the job does not read.
        original_content: Returns the content that a file had before the program ran.
        values: Values of the trial's parameters.
    """
    missing_advice: dict[str, str] = {}  # source in job.yaml → message on a file with a missing metric
    other_advice: dict[str, str] = {}  # source in job.yaml → message on a file with other metrics
    for metric_file in metric_files(folder, names, is_own, original_content, values=values):
        path, source, values = metric_file.path.relative_to(folder), metric_file.source, metric_file.values
        if source is None:
            remedy = "print the metric, or for a script write `capture: wandb`"
            other_advice.setdefault("wandb", f"{path} is W&B's, which is not read: {remedy}")
            continue
        read_names = [name if name in values else similar_name(name, values) for name in names]
        missing_values = {name: values[name] for name in read_names if name}
        shown_values = list((missing_values or values).items())[:_MAX_NAMES]
        shown = ", ".join(f"{name} ({value:g})" for name, value in shown_values)
        declaration = source.source if source.source != "file" else f'{{from: file, path: "{source.path}"}}'
        declaration = with_others(declaration, read_sources)
        option = f"--set {shlex.quote(f'metrics={declaration}')}"
        message = f"{path} has {shown}: write `metrics: {declaration}`, or submit with `{option}`,"
        if not missing_values:
            message += " and name one of these"
        elif other_names := [name for name in missing_values if name not in names]:
            message += f" and name {', '.join(other_names)}"
        (missing_advice if missing_values else other_advice).setdefault(declaration, message.rstrip(","))
    return list((missing_advice or other_advice).values())[:_MAX_FILES]


def with_others(declaration: str, read_sources: Sequence[MetricSource]) -> str:
    """Return the value of the field `metrics` for one more source: `[stdout, tensorboard]` beside the output.

    Args:
        declaration: Declaration of the source in YAML.
        read_sources: Sources that the job reads. Those with a path or a pattern, which the user knows, are left out.
    """
    others = [
        source.source
        for source in read_sources
        if source in (MetricSource("stdout"), MetricSource("mlflow")) and source.source != declaration
    ]
    return f"[{', '.join([*others, declaration])}]" if others else declaration


def metric_files(
    folder: Path,
    names: Collection[str],
    is_own: Callable[[Path], bool],
    original_content: Callable[[Path], bytes],
    declared: Sequence[str] = (),
    values: Collection[Any] = (),
) -> Iterator[MetricFile]:
    """Yield each file with metrics. The search ends after `_TIME_LIMIT`.

    Args:
        folder: Folder in which a program ran.
        names: Metrics to find in any spelling.
        is_own: Returns whether the program has written a file.
        original_content: Returns the content that a file had before the program ran.
        declared: Relative paths of files that are searched first, with wildcards.
        values: Values of parameters, which may be parts of the names of files.
    """
    deadline = time.monotonic() + _TIME_LIMIT
    declared_files = dict.fromkeys(_declared_files(folder, declared))
    for file in itertools.chain(declared_files, (file for file in _files(folder) if file not in declared_files)):
        if time.monotonic() > deadline:
            return
        with contextlib.suppress(OSError):  # the file was removed meanwhile
            if not is_own(file):
                continue
            source = _source(file, folder, values, is_own)
            if source is not None and (source.source == "tensorboard" or file.stat().st_size <= LAST):
                metric_file = _read(file, source, names, original_content(file), deadline)
                if metric_file.values:
                    yield metric_file
            elif file.suffix == ".wandb":
                yield MetricFile(path=file, source=None, values={})


def _read(file: Path, source: MetricSource, names: Collection[str], original: bytes, deadline: float) -> MetricFile:
    """Read the metrics in a file.

    Args:
        file: The file.
        source: Source that would read it.
        names: Metrics to find in any spelling.
        original: Content that the file had before the program ran.
        deadline: End of the read, by the monotonic clock.
    """
    tail_source = Source(source, names)
    values: dict[str, float] = {}
    file_lines: list[LineMetrics] = []
    first_metrics: dict[frozenset[str], dict[str, float]] = {}  # names in a line → the metrics of the first such line
    for line in Tail(file, tail_source, offset=0, original=original).read(ended=True, deadline=deadline):
        values.update(line.metrics)
        # Only names, steps and the number of lines matter, so lines with the same names share one dict, to save memory.
        file_lines.append(line._replace(metrics=first_metrics.setdefault(frozenset(line.metrics), line.metrics)))
    ambiguous = tail_source.names.ambiguous.keys()  # as the lines above have filled it
    return MetricFile(path=file, source=source, values=values, ambiguous=ambiguous, lines=file_lines)


def _declared_files(folder: Path, declared: Sequence[str]) -> Iterator[Path]:
    """Yield the files below a folder with one of some paths, `MOST_ENTRIES` at most; see `metric_files`."""
    for pattern in declared:
        if not {"/", os.pardir}.isdisjoint(Path(pattern).parts):
            continue
        with contextlib.suppress(ValueError, OSError):  # no path can be this one
            yield from itertools.islice(filter(Path.is_file, folder.glob(pattern)), MOST_ENTRIES)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, until `MOST_ENTRIES` entries were listed."""
    entries_left = MOST_ENTRIES
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield Path(root, name)
        entries_left -= len(folders) + len(files)
        if entries_left < 0:
            return


def _source(file: Path, folder: Path, values: Collection[Any], is_own: Callable[[Path], bool]) -> MetricSource | None:
    """Return the source that would read a file, also that of another trial; None if no source reads files with its suffix.

    What may differ in the name of another trial's file is a wildcard, unless the program has written several such files.
    """
    if "tfevents" in file.name:
        return MetricSource("tensorboard")
    if file.suffix not in _TEXT_SUFFIXES:
        return None
    parents = file.relative_to(folder).parts[:-1]
    changing = [index for index, part in enumerate(parents) if any(map(str.isdigit, part)) or _pattern(part, values) != part]
    if changing:
        parents = ("**", *parents[changing[-1] + 1 :])
    name = f"{_pattern(file.stem, values)}{file.suffix}"
    if name != file.name and [other for other in file.parent.glob(name) if is_own(other)] != [file]:
        name = file.name
    return MetricSource("file", path="/".join([*parents, name]))


def _pattern(name: str, values: Collection[Any]) -> str:
    """Return the name of a file or folder with a wildcard for each part that is a time stamp, a long number or a value."""
    pattern, texts = _STAMP.sub("*", name), {str(value) for value in values}
    numbers = {abs(float(text)) for text in texts if _NUMBER.fullmatch(text.removeprefix("-"))}
    for text in sorted(filter(_LETTER.search, texts), key=len, reverse=True):
        pattern = re.sub(rf"(?<![^\W_]){re.escape(text)}(?![^\W_])", "*", pattern, flags=re.IGNORECASE)
    pattern = _NUMBER.sub(lambda match: "*" if float(match[0]) in numbers else match[0], pattern)
    return re.sub(r"\*+", "*", pattern)
