"""Spans of characters as tags of tokens, and back.

Tags are BIO: 0 outside, 1 at the first token of a span, 2 inside. A span is [start, end) in characters of the post.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy import typing as npt

from textjobs.pairs import SECOND, Pairs
from textjobs.scores import Span
from trialplane import errors

OUTSIDE, BEGIN, INSIDE = 0, 1, 2
IGNORED = -100  # what torch's cross-entropy leaves out

_SENTENCE = re.compile(r"\S.*?(?:[.!?]+(?=\s)|$)", re.DOTALL)


def parse(row: Mapping[str, Any], path: Path) -> list[Span]:
    """The row's spans: a list of [start, end] pairs, or that list as a JSON string (from a CSV).

    Raises:
        InputError: they are something else, or lie outside the post.
    """
    value = row["spans"]
    try:
        pairs = json.loads(value) if isinstance(value, str) else value
        spans = [(int(start), int(end)) for start, end in pairs]
    except (ValueError, TypeError) as error:
        raise errors.InputError(
            f"data file {path}: spans is {value!r}; it must be a list of [start, end] in characters of the post"
        ) from error
    for start, end in spans:
        if not 0 <= start < end <= len(row["post"]):
            raise errors.InputError(
                f"data file {path}: span [{start}, {end}] is not inside its post of {len(row['post'])} characters"
            )
    return spans


def tag(pairs: Pairs, spans: Sequence[Sequence[Span]]) -> npt.NDArray[np.int64]:
    """Tags of shape (rows, tokens) of the pairs' second texts; IGNORED elsewhere."""
    tags = np.where(pairs.segments == SECOND, OUTSIDE, IGNORED)
    for row, wanted in enumerate(spans):
        starts, ends = pairs.offsets[row, :, 0], pairs.offsets[row, :, 1]
        for start, end in wanted:
            (inside,) = np.nonzero((pairs.segments[row] == SECOND) & (starts < end) & (ends > start))
            tags[row, inside] = INSIDE
            tags[row, inside[:1]] = BEGIN
    return tags


def decode(tags: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], post: str) -> set[Span]:
    """The spans that one row's tags say, without space at their ends; an INSIDE with nothing before it begins one.

    Args:
        tags: (tokens,); whatever is not the post's must be OUTSIDE or IGNORED.
        offsets: (tokens, 2).
        post: the text that offsets refer to.
    """
    ranges: list[list[int]] = []
    before = OUTSIDE
    for tag, (start, end) in zip(tags.tolist(), offsets.tolist(), strict=True):
        if tag == BEGIN or (tag == INSIDE and before not in (BEGIN, INSIDE)):
            ranges.append([start, end])
        elif tag == INSIDE:
            ranges[-1][1] = end
        before = tag
    spans = set()
    for start, end in ranges:
        text = post[start:end]
        if text.strip():
            spans.add((end - len(text.lstrip()), start + len(text.rstrip())))
    return spans


def sentences(post: str) -> list[Span]:
    """The ranges of a post's sentences: each ends with '.', '!' or '?' before a space, or with the text."""
    return [match.span() for match in _SENTENCE.finditer(post)]


def sentence_scores(
    post: str, spans: Sequence[Span], chance: npt.NDArray[np.float32], offsets: npt.NDArray[np.int64]
) -> list[tuple[bool, float]]:
    """Return for each sentence whether a span touches it, and the largest chance of evidence among its tokens.

    Args:
        post: the text.
        spans: the true ones.
        chance: (tokens,) probability of being evidence; 0 for what is not the post's.
        offsets: (tokens, 2).
    """
    rows = []
    for start, end in sentences(post):
        inside = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        best = float(chance[inside].max()) if inside.any() else 0.0
        rows.append((any(a < end and b > start for a, b in spans), best))
    return rows


def log_examples(posts: Sequence[str], truth: Sequence[Sequence[Span]], predicted: Sequence[Set[Span]]) -> None:
    """Write the first posts with their true and their found spans into the trial's MLflow run, where it has one."""
    if not os.environ.get("MLFLOW_TRACKING_URI"):  # the trial's store, or one that you have named
        return
    import mlflow

    examples = [
        {"post": post, "true": sorted(gold), "found": sorted(guess)}
        for post, gold, guess in zip(posts[:50], truth, predicted, strict=False)
    ]
    mlflow.log_dict({"held_out": examples}, "spans.json")
