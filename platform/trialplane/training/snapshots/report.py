"""Changes of a model from snapshot to snapshot: a table in Markdown and one in CSV.

    python -m trialplane.training.snapshots FOLDER            # prints the table
    python -m trialplane.training.snapshots FOLDER --to OUT   # writes OUT/snapshots.md and OUT/snapshots.csv

The table has the step and metrics of each snapshot, the Euclidean distance of its weights from the first snapshot and from
the previous one, and the relative distance, in total and per layer. Weights are read one tensor at a time, which needs
little memory.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import io
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.training import snapshots

# A layer is the part of a parameter's name up to the first number (`transformer.h.0`, `bert.encoder.layer.11`); without
# a number, the module that has the parameter (`transformer.wte`).
_NUMBERED = re.compile(r"(.*?\.\d+)\.")


@dataclasses.dataclass(frozen=True)
class Row:
    """Snapshot, compared with the others. Lengths are Euclidean norms.

    Attributes:
        step: Step of the snapshot.
        metrics: Metrics of the snapshot, by name.
        size: Size of the weights, in bytes.
        from_start: Length of the difference from the first snapshot's weights.
        relative: `from_start` divided by the length of the first snapshot's weights.
        from_previous: Length of the difference from the previous snapshot's weights.
        layers: Relative difference from the first snapshot, by layer.
    """

    step: int
    metrics: Mapping[str, float]
    size: int
    from_start: float
    relative: float
    from_previous: float
    layers: Mapping[str, float]


def layer_of(name: str) -> str:
    """Return the layer that a parameter belongs to."""
    match = _NUMBERED.match(name)
    return match[1] if match else name.rpartition(".")[0] or name


def compare(location: str | Path) -> list[Row]:
    """Return a row for each snapshot in `location`, by step.

    Raises:
        InputError: There are no snapshots, or they are of different models.
    """
    store = snapshots.Snapshots(location)
    saved = store.all()
    if not saved:
        raise errors.InputError(f"there are no snapshots in {store.location}; name the folder that holds the step-… folders")
    with contextlib.ExitStack() as files:
        weights = [_open_weights(store, snapshot, files) for snapshot in saved]
        previous_weights = [weights[0], *weights[:-1]]  # the first snapshot is compared with itself
        return [
            _row(snapshot, current, weights[0], previous)
            for snapshot, current, previous in zip(saved, weights, previous_weights, strict=True)
        ]


def _row(snapshot: snapshots.Snapshot, current: Any, first: Any, previous: Any) -> Row:
    """Return the row of a snapshot.

    Args:
        snapshot: Snapshot.
        current: Its weights, as an open safetensors file.
        first: Weights of the first snapshot.
        previous: Weights of the previous snapshot. Those of the first one for the first snapshot itself.

    Raises:
        InputError: The snapshots are of different models.
    """
    names = list(first.keys())
    if sorted(current.keys()) != sorted(names):
        raise errors.InputError(
            f"{snapshot.location} has other weights than the first snapshot: they are of different models"
        )
    # Sums of squares: by layer of the first snapshot's weights and of the differences from them, and in total of the
    # differences from the previous snapshot.
    first_squares: dict[str, float] = defaultdict(float)
    difference_squares: dict[str, float] = defaultdict(float)
    squares_from_previous = 0.0
    for name in names:
        first_values, values = first.get_tensor(name), current.get_tensor(name)
        if first_values.shape != values.shape:
            raise errors.InputError(f"{snapshot.location}: {name} has another shape than in the first snapshot")
        if not first_values.is_floating_point():  # position ids and the like
            continue
        layer = layer_of(name)
        first_squares[layer] += float(first_values.double().square().sum())
        difference_squares[layer] += float((values.double() - first_values.double()).square().sum())
        squares_from_previous += float((values.double() - previous.get_tensor(name).double()).square().sum())
    distance, length = math.sqrt(sum(difference_squares.values())), math.sqrt(sum(first_squares.values()))
    return Row(
        step=snapshot.step,
        metrics=snapshot.metrics,
        size=snapshot.size,
        from_start=distance,
        relative=_ratio(distance, length),
        from_previous=math.sqrt(squares_from_previous),
        layers={
            layer: _ratio(math.sqrt(difference_squares[layer]), math.sqrt(squares))
            for layer, squares in first_squares.items()
        },
    )


def _ratio(part: float, whole: float) -> float:
    """Return a relative change; NaN for weights that were zero at the start, such as a new bias."""
    return part / whole if whole else math.nan


def _open_weights(store: snapshots.Snapshots, snapshot: snapshots.Snapshot, files: contextlib.ExitStack) -> Any:
    """Open the weights of a snapshot as a safetensors file, until `files` is closed."""
    from safetensors import safe_open

    file = files.enter_context(store.weights(snapshot))
    return files.enter_context(safe_open(str(file), framework="pt"))


def markdown(rows: Sequence[Row]) -> str:
    """Return two tables in Markdown: the snapshots, and the layers."""
    metrics = _metric_names(rows)
    head = ["step", *metrics, "from start", "relative", "from previous", "MiB"]
    lines = []
    for row in rows:
        numbers = [row.metrics.get(name, math.nan) for name in metrics] + [row.from_start, row.relative, row.from_previous]
        lines.append([f"{row.step:,}", *map(_cell, numbers), f"{row.size / 2**20:,.1f}"])
    layers = [[layer, *(_cell(row.layers[layer]) for row in rows)] for layer in rows[0].layers]
    return (
        "# Snapshots\n\nDistances are lengths of differences of all weights; relative to the length of the first's.\n\n"
        + _table(head, lines)
        + "\n## Change per layer\n\n"
        + "Lengths of differences from the first snapshot, each relative to the length that the layer had there.\n\n"
        + _table(["layer", *(f"{row.step:,}" for row in rows)], layers)
    )


def comma_separated(rows: Sequence[Row]) -> str:
    """Return a table in CSV, with a row per snapshot: step, metrics, distances, and a column `layer:NAME` per layer."""
    metrics = _metric_names(rows)
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    layer_columns = [f"layer:{layer}" for layer in rows[0].layers]
    table.writerow(["step", *metrics, "from_start", "relative", "from_previous", "bytes", *layer_columns])
    for row in rows:
        values = [row.metrics.get(name, "") for name in metrics]
        table.writerow([row.step, *values, row.from_start, row.relative, row.from_previous, row.size, *row.layers.values()])
    return out.getvalue()


def _metric_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of all metrics of the snapshots, each once."""
    return list(dict.fromkeys(name for row in rows for name in row.metrics))


def write(location: str | Path, folder: Path) -> Path:
    """Write `snapshots.md` and `snapshots.csv` about the snapshots in `location`. Return the folder.

    Raises:
        InputError: As in `compare`.
    """
    rows = compare(location)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "snapshots.md").write_text(markdown(rows))
    (folder / "snapshots.csv").write_text(comma_separated(rows))
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Print or write the report, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trialplane.training.snapshots", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("location", help="folder or fsspec URL that holds the step-… folders")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="write snapshots.md and snapshots.csv there")
    arguments = parser.parse_args(argv)
    try:
        if arguments.to:
            write(arguments.location, arguments.to)
        else:
            sys.stdout.write(markdown(compare(arguments.location)))
    except errors.TrialplaneError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, whose first column is aligned to the left and the others to the right."""
    ruler = ["---", *("---:" for _ in head[1:])]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ruler, *rows))


def _cell(value: float) -> str:
    """Return a number for a table: `0.1235`; "" for NaN."""
    return "" if math.isnan(value) else f"{value:.4g}"
