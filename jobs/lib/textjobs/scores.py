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
    """Counts of shape (classes, classes): rows are the truth, columns the predictions."""
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (np.asarray(truth, dtype=np.int64), np.asarray(predicted, dtype=np.int64)), 1)
    return table


def macro_f1(truth: npt.ArrayLike, predicted: npt.ArrayLike, classes: int = 2) -> float:
    """Mean over the classes of F1; a class neither there nor predicted counts as 0."""
    table = confusion(truth, predicted, classes)
    hits = np.diag(table)
    total = table.sum(axis=0) + table.sum(axis=1)
    return float(np.mean(np.divide(2 * hits, total, out=np.zeros(classes), where=total > 0)))


def average_precision(truth: npt.ArrayLike, score: npt.ArrayLike) -> float:
    """Area under the precision-recall curve by its steps: sum of (recall step) x precision; 0 without a positive."""
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
    """F1 over all texts of spans that match exactly, both ends; 0 when nothing is there to find."""
    hits = sum(len(gold & guess) for gold, guess in zip(truth, predicted, strict=True))
    total = sum(map(len, truth)) + sum(map(len, predicted))
    return 2 * hits / total if total else 0.0
