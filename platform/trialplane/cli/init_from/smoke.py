"""One run of a script with its defaults, to find its metrics."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fnmatch
import itertools
import math
import os
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.cli.init_from import bounded
from trialplane.importing import guess, prints
from trialplane.job import settings
from trialplane.job.program import MetricSource, Program
from trialplane.wire import env
from trialplane.worker import module_path
from trialplane.worker.metrics import elsewhere, passages, reader
from trialplane.worker.metrics.headings import headings_of
from trialplane.worker.metrics.lines import LineParser
from trialplane.worker.metrics.names import STEPS, LineMetrics, Names
from trialplane.worker.metrics.steps import Report, Restarts, Steps
from trialplane.worker.metrics.tails import Source, Tail
from trialplane.worker.shims import wandb_files

LONGEST = 60.0  # seconds
STDOUT = MetricSource("stdout")
MLFLOW = MetricSource("mlflow")
WANDB = MetricSource("wandb")
_WANDB_PREFIX = "wandb:"  # of lines that W&B prints
_BAR = r"(?:.*\])?\s*"  # a progress bar before a number in the same line
_TOTAL = r"(?:\s*/\s*\d+)?"  # of the steps, or of what the number counts
_REMARK = r"\s*+(?:\(.*\)\s*+)?"  # behind a number, such as a time in parentheses
# 100 0.25, and 100%|███| 100: 0.25 (3.1 s), and 100/ 2000: 0.25, and Epoch 1: 9300 / 10000
_STEP_AND_NUMBER = (
    rf"{_BAR}(?:(?i:{'|'.join(STEPS)})\W{{0,3}})?(?P<step>\d+){_TOTAL}[\s:,|]+(?P<value>{settings.NUMBER}){_TOTAL}{_REMARK}"
)
_NUMBER_ALONE = rf"\s*+(?:\[1\]\s++)?(?P<value>{settings.NUMBER})\s*+"  # 0.25, and [1] 0.25, as R prints it
_MAX_OUTPUT = 1 << 20  # characters at the end of the output that are searched for names of metrics
_MOST_CANDIDATES = 30
_SERIES = 3  # reports without a step; fewer may be those of phases, as after pretraining and after training
_HELD_OUT_SETS = ("val", "eval", "test", "dev")
_CROWD = 4  # names in a line that may be a list of settings
_PRINTED_SUFFIXES = (".txt", ".log", ".json", ".jsonl")  # of files that may have settings and other words beside results
_VOCABULARY = 50  # words at least
_MOST_SHOWN = 20  # names in a message
_MOST_VALUES = 100_000  # values in MLflow's database that are read for their steps
_MOST_FILES = 500  # Python files that are searched for prints


class Series(NamedTuple):
    """The reports of a metric that has a value per step.

    Attributes:
        first: Step of the first report.
        last: Step of the last one.
        reports: Number of reports.
        restarts: How often the printed epochs or steps begin again, as in another training or fold.
        later_names: Losses and scores that appear only after the last restart.
    """

    first: int
    last: int
    reports: int
    restarts: Restarts
    later_names: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Smoke:
    """The result of a run.

    Attributes:
        metrics: Source of metrics → the last value of each metric. Sources without metrics are left out.
        seconds: Duration of the run, up to the limit.
        failure: Cause of a failure, and the file with the whole output; "" if it succeeded or was stopped.
        ended: Whether the script ended by itself.
        lines: Source of metrics → the lines with metrics of its output, or of each of its files.
        unnamed_steps: Source of a number that is printed without a name → its steps.
        peak_memory: Most bytes that the script and its descendants were seen to use.
        only_in_bars: Names of printed metrics that occur only in progress bars.
        read: Those of the watched files that it has read.
        held_out: Requested metric that lines print for several sets of data → its name for the held-out one.
        exact: Source of metrics → the requested metrics that it spells exactly so.
        expressions: Metric named only by held-out data → expression in the script that is its value, as `val_rmse`.
        was_run: Whether the script was run, now or earlier. If not, there are no metrics.
    """

    metrics: Mapping[MetricSource, Mapping[str, float]]
    seconds: float = 0.0
    failure: str = ""
    ended: bool = True
    lines: Mapping[MetricSource, Sequence[Sequence[LineMetrics]]] = dataclasses.field(default_factory=dict)
    unnamed_steps: Mapping[MetricSource, Sequence[int]] = dataclasses.field(default_factory=dict)
    peak_memory: int = 0
    only_in_bars: Collection[str] = ()
    read: Collection[str] = ()
    held_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exact: Mapping[MetricSource, Collection[str]] = dataclasses.field(default_factory=dict)
    expressions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    was_run: bool = True

    def series(self, source: MetricSource, metric: str) -> Series | None:
        """Return the reports of a metric of a source if it has a value per step; None if it has not.

        It has one if it has several reports beside steps, or three at least without.
        """
        if metric not in self.metrics.get(source, {}):
            return None
        steps, least = self.unnamed_steps.get(source, ()), 2  # reports; one of them may be a summary at the end
        restarts, later_names = Restarts(), list[str]()
        for file_lines in self.lines.get(source, ()):
            if metric_lines := [line for line in file_lines if metric in line.metrics]:  # the first file with the metric
                steps, restarts, later_names = _report_steps(file_lines, metric)
                least = 2 if any(line.step is not None or line.bar is not None for line in metric_lines) else _SERIES
                break
        return Series(steps[0], steps[-1], len(steps), restarts, later_names) if len(steps) >= least else None


NOT_RUN = Smoke({}, was_run=False)


def run(
    command: Sequence[str],
    name: str,
    folder: Path,
    scratch: Path,
    default_name: str,
    secrets: Mapping[str, str],
    options: Collection[str],
    limit: float,
    requested: Sequence[str] = (),
    declared: Sequence[str] = (),
    watched: Collection[str] = (),
    searched_values: Collection[Any] = (),
) -> Smoke:
    """Run a script to its end, or to a limit.

    Args:
        command: Program and arguments.
        name: Name of the script, for the file with its output.
        default_name: Name for the metric of a script that prints a number without a name, if no metric is requested.
        folder: Working directory, to which the script may write.
        scratch: Another folder, for the output of the script.
        secrets: Secrets of the user's command, by the name of the environment variable that the command reads.
        options: Names of the script's options, which are not metrics if it prints them.
        limit: Maximum duration, in seconds.
        requested: Names of metrics that are results in any case, and are read in any spelling. If the script shows none of
            them, and none with a similar name, the first is that of a number without a name.
        declared: Paths of the files with metrics, with wildcards, if the script declares them. If one of them has an
            objective, or a requested metric, no other source counts.
        watched: Names of files in `folder` of which to find out whether the script reads them.
        searched_values: Values of the searched parameters, which may be parts of the names of files.
    """
    log, database, wandb_folder = scratch / "output.log", scratch / "mlflow.db", scratch / "wandb"
    shutil.rmtree(wandb_folder, ignore_errors=True)  # of an earlier run
    wandb_folder.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])  # as for a trial
    variables = {
        **secrets,
        "PATH": path,
        **wandb_files.variables(wandb_folder),  # nothing reaches W&B
        "PYTHONUNBUFFERED": "1",
        env.MLFLOW_TRACKING_URI: f"sqlite:///{database}",
    }
    old_files = {file: _file_version(file) for file in folder.rglob("*") if file.is_file()}
    for file in watched:
        os.utime(folder / file, ns=(0, (folder / file).stat().st_mtime_ns))  # a read sets the time of the last access
    process_end = bounded.run(module_path.with_import_folders(command, variables), folder, variables, log, limit)
    read = [file for file in watched if (folder / file).exists() and (folder / file).stat().st_atime_ns]
    text = log.read_bytes().decode(errors="replace")  # keeps the carriage returns of progress bars
    output = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_WANDB_PREFIX))
    held_out = {metric: name for metric in requested if (name := _held_out_name(output[-(_MAX_OUTPUT // 8) :], metric))}
    names = tuple(dict.fromkeys((*requested, *held_out.values(), *_candidates(output[-_MAX_OUTPUT:], requested))))
    values, occurrences = _printed_metrics(output, names, scratch / "printed.log", folder, options, requested)
    metrics: dict[MetricSource, Mapping[str, float]] = {STDOUT: values} if values else {}
    unnamed_steps: dict[MetricSource, Sequence[int]] = {}
    if not requested and guess.objective(values) is None:
        _add_unnamed_metric(output, default_name, metrics, unnamed_steps)
    lines: dict[MetricSource, list[Sequence[LineMetrics]]] = {STDOUT: [occurrences.parsed_lines]}
    in_bars = {name for line in occurrences.parsed_lines if line.bar is not None for name in line.metrics}
    in_lines = {name for line in occurrences.parsed_lines if line.bar is None for name in line.metrics}
    only_in_bars = in_bars - in_lines
    exact: dict[MetricSource, set[str]] = {STDOUT: _exact_names(output, requested)}
    for metric in exact[STDOUT] & values.keys() - only_in_bars:
        if pattern := _exact_pattern(metric, output, occurrences.parsed_lines):
            source = MetricSource("stdout", (pattern,))
            metrics[source], lines[source], exact[source] = {metric: values[metric]}, [occurrences.parsed_lines], {metric}
            exact[STDOUT] = exact[STDOUT] - {metric}
    for source, (last_values, reports) in (
        (WANDB, _wandb_metrics(wandb_folder, log)),
        (MLFLOW, _mlflow_metrics(database)),
    ):
        if last_values:
            metrics[source], lines[source] = last_values, [reports]
            exact[source] = last_values.keys() & set(requested)

    def is_changed(file: Path) -> bool:
        return old_files.get(file) != _file_version(file)

    for source, file_metrics, metric_file in _file_metrics(folder, names, is_changed, options, declared, searched_values):
        metrics[source] = {**metrics.get(source, {}), **file_metrics}
        lines.setdefault(source, []).append(metric_file.lines)
        file_text = metric_file.path.read_text(encoding="utf-8", errors="replace") if requested else ""
        exact.setdefault(source, set()).update(_exact_names(file_text, requested))
    seen_names = {spelling(name) for source_metrics in metrics.values() for name in source_metrics}
    shows_similar = any(errors.similar(spelling(name), seen_names) for name in requested)  # or the same
    if requested and process_end.code == 0 and not shows_similar:
        _add_unnamed_metric(output, re.sub(r"\W", "_", requested[0]), metrics, unnamed_steps)
    failure = ""
    if process_end.code:  # None if the script was stopped at the time limit
        failure = "; ".join(filter(None, (process_end.cause, process_end.keep_log(name))))
    return Smoke(
        _of_declared_files(metrics, requested, declared),
        process_end.seconds,
        failure,
        process_end.code is not None,
        lines,
        unnamed_steps,
        process_end.peak_memory,
        only_in_bars,
        read,
        held_out,
        exact,
        {metric: prints.expression(metric, python_texts(folder)) for metric in filter(None, [guess.data_alone(values)])},
    )


def _of_declared_files(
    metrics: Mapping[MetricSource, Mapping[str, float]], requested: Collection[str], declared: Collection[str]
) -> Mapping[MetricSource, Mapping[str, float]]:
    """Return the metrics of the declared files alone if they have the objective; otherwise of all sources that may count.

    Other files than the declared ones do not count, as they are plots, for example, unless a metric is requested.
    """
    in_declared = {source: values for source, values in metrics.items() if source.path in declared}
    has_requested = any(not values.keys().isdisjoint(requested) for values in in_declared.values())
    if has_requested or (not requested and any(map(guess.objective, in_declared.values()))):
        return in_declared
    if not declared or requested:
        return metrics
    return {source: values for source, values in metrics.items() if source.source != "file" or source.path in declared}


def _add_unnamed_metric(
    output: str,
    name: str,
    metrics: dict[MetricSource, Mapping[str, float]],
    steps_by_source: dict[MetricSource, Sequence[int]],
) -> None:
    """Add the metric that a script prints as a number without a name, and its steps, if there is one.

    The number is alone in the last line, or behind a number of a step, which increases, in several lines.
    """
    if not name.isidentifier():  # it would be the name of a group in a regular expression
        return
    lines_with_text = [line for line in output.splitlines() if line.strip()]
    matches = [match for line in lines_with_text if (match := re.fullmatch(_STEP_AND_NUMBER, line))]
    steps = [int(match["step"]) for match in matches]

    def source_of(pattern: str) -> MetricSource:
        return MetricSource("stdout", (f"^{pattern.replace('<value>', f'<{name}>')}$",))

    # Below `Epoch 1: 0.9`, which may be a loss of training, a number alone is the result; below `1 0.9`, it may be a time.
    has_names = any(match[0].lstrip()[:1].isalpha() for match in matches)
    is_series = len(steps) >= _SERIES and steps == sorted(set(steps))
    if (has_names or not is_series) and lines_with_text and (number := re.fullmatch(_NUMBER_ALONE, lines_with_text[-1])):
        metrics[source_of(_NUMBER_ALONE)] = {name: float(number["value"])}
    elif is_series:  # 1 0.9, 2 0.7, 3 0.6: the first number increases
        source = source_of(_STEP_AND_NUMBER)
        metrics[source], steps_by_source[source] = {name: float(matches[-1]["value"])}, steps


def declared_metrics(folder: Path, declared: Sequence[str]) -> dict[MetricSource, dict[str, float]]:
    """Return the metrics in files that a script declares, by the source that reads them; {} without an objective."""

    def is_declared(file: Path) -> bool:
        return any(fnmatch.fnmatchcase(file.relative_to(folder).as_posix(), pattern) for pattern in declared)

    metrics = {source: values for source, values, _ in _file_metrics(folder, (), is_declared, (), declared)}
    return metrics if any(map(guess.objective, metrics.values())) else {}


def _printed_metrics(
    output: str,
    names: Collection[str],
    log: Path,
    folder: Path,
    options: Collection[str],
    requested: Collection[str] = (),
) -> tuple[dict[str, float], _Occurrences]:
    """Return the last value of each metric in an output, and the occurrences of metrics in it.

    Args:
        output: Output of the script.
        names: Names of losses and scores that are read in any spelling.
        log: File to write for the reader of metrics.
        folder: Folder with the code.
        options: Names of the script's options.
        requested: Names of metrics that are results in any case.
    """
    log.unlink(missing_ok=True)  # of an earlier run
    metric_reader = reader.Reader(Program(metrics=(STDOUT,), names=tuple(names)), log, folder, time.time())
    # After the reader was created, because a reader skips the content that a file has by then.
    log.write_bytes(output.encode())
    metric_reader.read(time.monotonic(), ended=True)
    read_values = metric_reader.finite  # last finite value of each metric
    result_names, occurrences = _result_names(log, names, read_values, folder, options)
    result_names |= set(requested)
    # A metric may be read twice: under the name of a `name: value` pair, and under a guessed name that is spelled
    # differently. The guessed one is then dropped.
    pair_spellings = {spelling(name) for name in read_values if name in result_names and name not in names}
    values = {
        name: value
        for name, value in read_values.items()
        if name in result_names
        and name not in metric_reader.ambiguous  # the whole names of its values are metrics, too
        and (name not in names or spelling(name) not in pair_spellings)
    }
    return values, occurrences


def _report_steps(parsed_lines: Iterable[LineMetrics], metric: str) -> tuple[list[int], Restarts, list[str]]:
    """Return the step of each report that a job would get of a metric, if it names this one alone, and its restarts.

    The last item are losses and scores that appear only after the last restart.
    """
    steps, reports = Steps((metric,)), list[Report]()
    restarts = steps.restarts[metric]
    names_by_training: dict[int, set[str]] = {}
    for line in parsed_lines:
        reports += steps.add(line)
        names_by_training.setdefault(restarts.count, set()).update(line.metrics)
    later_names = names_by_training.pop(restarts.count, set()).difference(*names_by_training.values())
    report_steps = [step for step, values in (*reports, *steps.flush()) if metric in values]
    return report_steps, restarts, sorted(filter(guess.is_measure, later_names))


def _exact_names(text: str, requested: Collection[str]) -> set[str]:
    """Return the requested metrics that a text has in exactly this spelling, outside of dumps as `Namespace(by='f1')`."""
    text_passages = passages.Passages()
    parts = (text_passages.result_part(line) for line in text.splitlines())
    result_text = "\n".join(part.text for part in parts if not part.is_named_only)
    return {name for name in requested if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", result_text)}


def _exact_pattern(metric: str, output: str, parsed_lines: Iterable[LineMetrics]) -> str:
    """Return a pattern for the lines that spell a metric exactly so, if a job would read other spellings, too; otherwise "".

    It is "" also if most lines, and the last one, spell it otherwise: an `initial loss: 2` before lines with `Loss: 1`.
    """
    shown = [name for line in parsed_lines for name in line.metrics if spelling(name) == spelling(metric)]
    is_main = shown[-1:] == [metric] or 2 * shown.count(metric) > len(shown)
    pattern = rf"(?<![\w./-])({re.escape(metric)})[^\w.+-]+([-+.\w]*\w)"
    return pattern if len(set(shown)) > 1 and is_main and re.search(pattern, output) else ""


def _file_metrics(
    folder: Path,
    names: Collection[str],
    is_written: Callable[[Path], bool],
    options: Collection[str],
    declared: Sequence[str],
    searched_values: Collection[Any] = (),
) -> Iterator[tuple[MetricSource, dict[str, float], elsewhere.MetricFile]]:
    """Yield the source that reads a file, the metrics in it, and the file, for each that the script has written.

    A pattern that matches several of these files would mix up their values, so each of them is read by its own path.

    Args:
        folder: Working directory of the script, with its code.
        names: Names of losses and scores that are read in any spelling.
        is_written: Function that returns whether the script may have written a file.
        options: Names of the script's options.
        declared: See `run`. The source of such a file has this path.
        searched_values: See `run`.
    """

    def is_new(file: Path) -> bool:
        """Return whether the script has written a file itself."""
        is_of_wandb = "wandb" in file.relative_to(folder).parts  # a folder of W&B's own files
        return not is_of_wandb and file.is_file() and is_written(file)

    # b"": all content of a file counts, also what it had before the run.
    files = list(elsewhere.metric_files(folder, names, is_new, lambda _file: b"", declared, searched_values))
    file_counts = collections.Counter(file.source for file in files)
    for file in files:
        finite = {name: value for name, value in file.values.items() if math.isfinite(value)}
        if file.source is None or len(finite) > reader.MOST_NAMES or _is_vocabulary(finite):  # not read by a job, or data
            continue
        result_names = finite.keys() - set(file.ambiguous)
        path = file.path.relative_to(folder).as_posix()
        pattern = next((pattern for pattern in declared if fnmatch.fnmatchcase(path, pattern)), "")
        if pattern:
            yield MetricSource("file", path=pattern), {name: finite[name] for name in result_names}, file
            continue
        if file.path.suffix in _PRINTED_SUFFIXES:
            result_names &= _result_names(file.path, names, finite, folder, options)[0]
        if result_names:
            source = file.source
            if source.source == "file" and file_counts[source] > 1:
                source = dataclasses.replace(source, path=path)
            yield source, {name: value for name, value in finite.items() if name in result_names}, file


def _is_vocabulary(values: Mapping[str, float]) -> bool:
    """Return whether values in a file are the numbers of words, as in a tokenizer's file, and not metrics.

    There are many, all whole numbers, and few words happen to be the name of a loss or a score, as `em` and `hit` are.
    """
    measures = sum(map(guess.is_measure, values))
    return len(values) >= _VOCABULARY and 10 * measures < len(values) and all(map(float.is_integer, values.values()))


def _file_version(file: Path) -> tuple[int, int]:
    """Return values of a file that a change of it changes: the time of the last change in nanoseconds, and the size."""
    info = file.stat()
    return info.st_mtime_ns, info.st_size


def shown_names(metrics: Iterable[Iterable[str]]) -> list[str]:
    """Return the different names of metrics in alphabetical order, 20 at most, and those of nested objects last."""
    return sorted(set(itertools.chain.from_iterable(metrics)), key=lambda name: (name.count("."), name))[:_MOST_SHOWN]


def _candidates(output: str, requested: Collection[str]) -> tuple[str, ...]:
    """Return the names of losses and scores in an output, with the set of data that their line names: `train_loss`.

    Args:
        output: Output of the script.
        requested: Names of metrics that are returned without such a set.
    """
    names: dict[str, None] = {}  # a set in the order of the output
    requested_spellings = set(map(spelling, requested))
    output_passages, parse = passages.Passages(), LineParser((), Names(())).parse
    for line in output.splitlines():
        part = output_passages.result_part(line)
        if part.is_named_only:
            continue
        heading_sets = [heading.data_set for heading in headings_of(line)]  # Train: loss 0.9
        for metric in guess.candidates(part.text):
            # Sets of data behind the metric's name: `accuracy train: 0.9 test: 0.8` has `train_accuracy`.
            sets_behind = [
                name.removesuffix(f"_{metric}")
                for name in parse(part.text).metrics
                if name.endswith(f"_{metric}") and name.lower() not in spelling(line)
            ]
            data_sets = heading_sets or sets_behind
            is_complete = not data_sets or guess.names_data(metric) or spelling(metric) in requested_spellings
            names |= dict.fromkeys([metric] if is_complete else [f"{data_set}_{metric}" for data_set in data_sets])
    return tuple(names)[:_MOST_CANDIDATES]


def _held_out_name(output: str, metric: str) -> str:
    """Return the name of a metric for held-out data if other lines print it, too; "" if a job would not mix them up.

    It is `eval_ppl` if the script prints both `epoch 1 | ppl 7.05` and `eval checkpoint | ppl 1.86`, each several times. If
    lines of validation and of a test print it, it is that of validation.
    """
    names = [f"{data_set}_{metric}" for data_set in _HELD_OUT_SETS]
    parse = LineParser((), Names((metric, *names))).parse
    lines = output.splitlines()
    counts = collections.Counter(
        name for line in lines for name in parse(line).metrics if name == metric or headings_of(line)
    )
    printed = sorted(filter(counts.get, names), key=lambda name: (guess.objective_rank(name), counts[name]))
    if not printed:
        return ""
    has_test_too = guess.objective_rank(printed[0]) < guess.objective_rank(printed[-1])
    return printed[-1] if has_test_too or min(counts[metric], counts[printed[-1]]) > 1 else ""


def names_in_code(texts: Iterable[str], metrics: Iterable[str]) -> list[str]:
    """Return the losses and scores that Python code prints and a run has not shown, the best objective first."""
    output = "\n".join(line for text in texts for line in prints.lines(text))
    spellings = set(map(spelling, metrics))
    names = [name for name in _candidates(output, ()) if spelling(name) not in spellings]
    return sorted(names, key=guess.objective_rank, reverse=True)


class _Occurrences(NamedTuple):
    """The names of metrics in an output, by the lines in which they occur.

    Attributes:
        stepped: Names in a line with a step.
        crowded: Names in a line in which most names are not those of losses and scores.
        only_early: Names that occur only before the first loss, score or step; none if there is no such line.
        changing: Names with several values in lines with the same names.
        parsed_lines: Lines with metrics or a step. To take little memory, lines of the same names share values.
    """

    stepped: set[str]
    crowded: set[str]
    only_early: set[str]
    changing: set[str]
    parsed_lines: list[LineMetrics]


def _occurrences(log: Path, names: Collection[str]) -> _Occurrences:
    """Return the occurrences of metrics in a file with an output, of losses and scores with some names in any spelling."""
    stepped, crowded, early, late = set[str](), set[str](), set[str](), set[str]()
    values: dict[tuple[frozenset[str], str], set[float]] = {}  # names in a line, one of them → its values in such lines
    parsed_lines: list[LineMetrics] = []
    first_metrics: dict[frozenset[str], dict[str, float]] = {}  # names in a line → the metrics of the first such line
    for line in Tail(log, Source(STDOUT, names), 0).read(True, time.monotonic() + reader.END):  # from 0 to the end
        line_names = frozenset(line.metrics)
        parsed_lines.append(line._replace(metrics=first_metrics.setdefault(line_names, line.metrics)))
        measures = [name for name in line.metrics if guess.is_measure(name)]
        is_crowded = len(line.metrics) >= _CROWD and 2 * len(measures) < len(line.metrics)
        if line.step is not None:
            stepped |= line.metrics.keys()
        elif is_crowded:
            crowded |= line.metrics.keys()
        has_result = bool(measures) or line.step is not None
        if late or has_result:  # this line, and all after the first such line; those before it may print settings
            late |= line.metrics.keys()
        else:
            early |= line.metrics.keys()
        for name, value in line.metrics.items():
            values.setdefault((line_names, name), set()).add(value)
    changing = {name for (_, name), distinct_values in values.items() if len(distinct_values) > 1}
    return _Occurrences(stepped, crowded, early - late if late else set(), changing, parsed_lines)


def _result_names(
    log: Path, names: Collection[str], metrics: Collection[str], folder: Path, options: Collection[str]
) -> tuple[set[str], _Occurrences]:
    """Return the names of metrics in an output that are results, not settings, and the occurrences of metrics in it.

    Results are, in the terms of `_Occurrences`:
        - metrics in a line with a step, but not an option whose value stays the same;
        - those named as a loss or a score; in a crowded line, only if they name their data, as `val_loss` does;
        - others that change, or that a print of the code names, unless they are settings: names of an option, the last word
          of a longer name, or names that occur only early.

    Args:
        log: File with the output.
        names: Names of losses and scores that are read in any spelling.
        metrics: Names of all metrics that are found.
        folder: Folder with the code.
        options: Names of the script's options.
    """
    stepped, crowded, only_early, changing, _ = occurrences = _occurrences(log, names)
    option_spellings = set(map(spelling, options))
    stepped = {name for name in stepped if name in changing or spelling(name) not in option_spellings}
    measures = {name for name in metrics if guess.is_measure(name) and (name not in crowded or guess.names_data(name))}
    text = log.read_text(encoding="utf-8", errors="replace")
    others = {
        name
        for name in set(metrics) - measures - stepped - only_early
        if not guess.is_option(name, options) and not _longer_name(name).search(text)
    }
    code = "\n".join(python_texts(folder)) if others - changing else ""  # it is read only if it decides
    other_results = {name for name in others if name in changing or _printed_name(name).search(code)}
    return stepped | measures | other_results, occurrences


def _longer_name(name: str) -> re.Pattern[str]:
    """Return an expression that finds a longer name whose last word is a metric's name: `Patch size: 8` for size."""
    return re.compile(rf"[^\W\d] {re.escape(name)}[\"']?\s*[:=]", re.IGNORECASE)


def _printed_name(name: str) -> re.Pattern[str]:
    """Return an expression that finds a metric's name in a text that code prints with a value: `f"total={…}"` for total."""
    words = r"[\W_]*".join(re.escape(word) for word in re.split(r"[\W_]+", name) if word)
    return re.compile(rf"(?<![\w-]){words}[\"']?\s*[:=]\s*(?:[{{%]|[\"']\s*[,+)%.])", re.IGNORECASE)


def python_texts(folder: Path) -> Iterator[str]:
    """Yield the texts of Python files in a folder or below."""
    for file in itertools.islice(folder.rglob("*.py"), _MOST_FILES):
        with contextlib.suppress(OSError):
            yield file.read_text(encoding="utf-8", errors="replace")


def spelling(name: str) -> str:
    """Return a metric's name in lower case with underscores, to compare names that differ only in this."""
    return re.sub(r"\W", "_", name).lower()


def _wandb_metrics(folder: Path, log: Path) -> tuple[dict[str, float], list[LineMetrics]]:
    """Return the newest values that a script has logged to the stand-in for W&B, and each report as a line."""
    metric_reader = reader.Reader(Program(metrics=(wandb_files.SOURCE,)), log, folder, start_time=0.0)
    reports = metric_reader.read(time.monotonic(), ended=True)
    return metric_reader.finite, [LineMetrics(step, metrics) for step, metrics in reports]


def _mlflow_metrics(database: Path) -> tuple[dict[str, float], list[LineMetrics]]:
    """Return the newest metrics in a database of MLflow, and each of their values as a line, in the order of its time."""
    if not database.is_file():
        return {}, []
    with contextlib.closing(sqlite3.connect(database)) as connection:
        try:
            last_values = {name: float(value) for name, value in connection.execute("SELECT key, value FROM latest_metrics")}
            rows = connection.execute(
                "SELECT step, key, value FROM metrics ORDER BY timestamp, step LIMIT ?", (_MOST_VALUES,)
            )
            return last_values, [LineMetrics(step, {name: float(value)}) for step, name, value in rows]
        except sqlite3.Error:  # MLflow was imported, but has logged nothing
            return {}, []
