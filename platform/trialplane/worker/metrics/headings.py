"""Headings in lines: sets of data to which the metrics after them belong, as in `Test set: loss: 0.2`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from trialplane.worker.metrics.numerals import LIST_PREFIX

DATA_SET = r"(?i:train|training|val|valid|validation|test|eval|evaluation)"
_ANY_DATA_SET = re.compile(r"train|val|test", re.IGNORECASE)  # also in valid and eval
# A set of data to which the metrics after it belong: `Test set:`, `Train Epoch: 3`, `[VAL]`, `valid |`, `'test': {`, or
# `valid (NDCG: 0.1, HR: 0.2)`.
_HEADING = re.compile(
    rf"(?<![\w./@-])({DATA_SET})(?:[\])]|[\"']?\s?[:|>](?!\s?{LIST_PREFIX}[-+]?[\d.])"
    r"|\s-\s|\s?\((?=[^\W\d][\w@.-]*\s?[:=])"
    r"|[ _](?i:set|data|dataset|split|phase|results?|stats|metrics|epoch|step|iter|iteration|batch|round)(?!\w))"
)
_SET_OF_LINE = re.compile(rf"\W*({DATA_SET})[ _](?=[^\W\d])")  # before the first of several: `Train loss: 0.3, acc: 0.9`

is_data_set = re.compile(DATA_SET).fullmatch


class Heading(NamedTuple):
    """A set of data that a line names as a heading.

    Attributes:
        begin: Position in the line from which it counts.
        data_set: Name of the set, in lower case.
    """

    begin: int
    data_set: str


def headings_of(line: str) -> list[Heading]:
    """Return the headings of a line, in order.

    If a line has no heading but begins with a set of data and names no other set, this one counts for the whole line.
    """
    if not _ANY_DATA_SET.search(line):  # as most lines; this search is fast
        return []
    if headings := [Heading(match.end(), match[1].lower()) for match in _HEADING.finditer(line)]:
        return headings
    match = _SET_OF_LINE.match(line)
    return [Heading(match.end(), match[1].lower())] if match and not _ANY_DATA_SET.search(line, match.end()) else []


def data_set_at(position: int, headings: Sequence[Heading]) -> str:
    """Return the set of data of a position in a line, by the last heading before it; "" without one."""
    return next((heading.data_set for heading in reversed(headings) if heading.begin <= position), "")
