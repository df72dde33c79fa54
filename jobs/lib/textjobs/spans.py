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
IGNORED = -100  # target that torch's cross-entropy leaves out

_SENTENCE = re.compile(r"\S.*?(?:[.!?]+(?=\s)|$)", re.DOTALL)


def parse(row: Mapping[str, Any], path: Path) -> list[Span]:
    """Return the spans of a row: a list of [start, end] pairs, or such a list as a JSON string, from a CSV.

    Raises:
        InputError: The value is no such list, or a span is outside of the post.
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
    """Return tags of shape (rows, tokens): those of the pairs' second texts, and IGNORED for all other tokens."""
    tags = np.where(pairs.segments == SECOND, OUTSIDE, IGNORED)
    for row, row_spans in enumerate(spans):
        starts, ends = pairs.offsets[row, :, 0], pairs.offsets[row, :, 1]
        for start, end in row_spans:
            (tokens,) = np.nonzero((pairs.segments[row] == SECOND) & (starts < end) & (ends > start))
            tags[row, tokens] = INSIDE
            tags[row, tokens[:1]] = BEGIN
    return tags


def decode(tags: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], post: str) -> set[Span]:
    """Return the spans of one row's tags, without white space at their ends. An INSIDE after an OUTSIDE begins a span, too.

    Args:
        tags: Tags of shape (tokens,). Those of tokens outside of the post are OUTSIDE or IGNORED.
        offsets: Offsets of the tokens in the post, of shape (tokens, 2).
        post: Text of the post.
    """
    ranges: list[list[int]] = []
    previous = OUTSIDE
    for tag, (start, end) in zip(tags.tolist(), offsets.tolist(), strict=True):
        if tag == BEGIN or (tag == INSIDE and previous not in (BEGIN, INSIDE)):
            ranges.append([start, end])
        elif tag == INSIDE:
            ranges[-1][1] = end
        previous = tag
    spans = set()
    for start, end in ranges:
        text = post[start:end]
        if text.strip():
            spans.add((end - len(text.lstrip()), start + len(text.rstrip())))
    return spans


def sentences(post: str) -> list[Span]:
    """Return the ranges of a post's sentences. Each ends with '.', '!' or '?' before a space, or with the text."""
    return [match.span() for match in _SENTENCE.finditer(post)]


def sentence_scores(
    post: str, spans: Sequence[Span], chance: npt.NDArray[np.float32], offsets: npt.NDArray[np.int64]
) -> list[tuple[bool, float]]:
    """Return for each sentence whether a true span overlaps it, and the largest chance of evidence among its tokens.

    Args:
        post: Text of the post.
        spans: True spans.
        chance: Probability of each token to be evidence, of shape (tokens,); 0 for tokens outside of the post.
        offsets: Offsets of the tokens in the post, of shape (tokens, 2).
    """
    rows = []
    for start, end in sentences(post):
        tokens = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        score = float(chance[tokens].max()) if tokens.any() else 0.0
        has_evidence = any(span_start < end and span_end > start for span_start, span_end in spans)
        rows.append((has_evidence, score))
    return rows


def log_examples(posts: Sequence[str], truth: Sequence[Sequence[Span]], predicted: Sequence[Set[Span]]) -> None:
    """Log the first 50 posts with their true and predicted spans to MLflow, if a tracking URI is set."""
    if not os.environ.get("MLFLOW_TRACKING_URI"):  # a trial has one; alone, the user may have set one
        return
    import mlflow

    examples = [
        {"post": post, "true": sorted(gold), "found": sorted(guess)}
        for post, gold, guess in zip(posts[:50], truth, predicted, strict=False)
    ]
    mlflow.log_dict({"held_out": examples}, "spans.json")
