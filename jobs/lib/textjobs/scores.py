"""Scores of classifiers and span finders, in numpy.

The definitions are scikit-learn's (a test compares them). Its own import brings pandas and pyarrow, whose allocator starts
a thread, and a warm template with a thread alive may not be forked (`policies/spawn.py`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
from numpy import typing as npt

Span = tuple[int, int]


def confusion(truth: npt.ArrayLike, predicted: npt.ArrayLike, classes: int) -> npt.NDArray[np.int64]:
    """Return counts of shape (classes, classes). Rows are true classes, columns are predicted ones."""
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (np.asarray(truth, dtype=np.int64), np.asarray(predicted, dtype=np.int64)), 1)
    return table


def macro_f1(truth: npt.ArrayLike, predicted: npt.ArrayLike, classes: int = 2) -> float:
    """Return the mean F1 of the classes. A class that is neither true nor predicted counts as 0."""
    table = confusion(truth, predicted, classes)
    hits = np.diag(table)
    total = table.sum(axis=0) + table.sum(axis=1)
    return float(np.mean(np.divide(2 * hits, total, out=np.zeros(classes), where=total > 0)))


def average_precision(truth: npt.ArrayLike, score: npt.ArrayLike) -> float:
    """Return the area under the precision-recall curve, by steps: the sum of (step in recall) x precision.

    It is 0 without a positive label.
    """
    labels, values = np.asarray(truth, dtype=bool), np.asarray(score, dtype=np.float64)
    if not labels.any():
        return 0.0
    order = np.argsort(-values, kind="stable")
    labels, values = labels[order], values[order]
    ends = np.append(np.flatnonzero(np.diff(values)), labels.size - 1)  # equal scores share one threshold
    hits = np.cumsum(labels)[ends]
    steps = np.diff(hits, prepend=0) / labels.sum()
    return float(np.sum(steps * hits / (ends + 1)))


def span_f1(truth: Sequence[Set[Span]], predicted: Sequence[Set[Span]]) -> float:
    """Return the F1 of spans over all texts. A span is correct if both of its ends are. It is 0 without any span."""
    hits = sum(len(gold & guess) for gold, guess in zip(truth, predicted, strict=True))
    total = sum(map(len, truth)) + sum(map(len, predicted))
    return 2 * hits / total if total else 0.0
