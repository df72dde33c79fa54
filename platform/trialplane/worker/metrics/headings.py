"""Headings in lines: sets of data to which the metrics after them belong, as in `Test set: loss: 0.2`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from trialplane.worker.metrics.numerals import LIST_PREFIX

# `std dev`, `st. dev`, and `mean abs dev` are deviations, and `mode: dev` is a mode: no sets of data.
_NO_DEVIATION_OR_MODE = (
    r"(?<!std[ ._-])(?<!\bst\. )(?<!std\. )(?<!standard[ _])(?<!abs[ _])(?<!absolute[ _])(?<!mode[:=])(?<!mode[:=] )"
)
DATA_SET = rf"(?i:train|training|val|valid|validation|test|testing|eval|evaluation|{_NO_DEVIATION_OR_MODE}dev(?:elopment)?)"
# Finds a part of each set of data, also in valid and eval, but not in device. Most lines have none, and the search is fast.
names_data_set = re.compile(r"train|val|test|dev(?!ic)", re.IGNORECASE).search
# A set of data to which the metrics after it belong: `Test set:`, `Train Epoch: 3`, `[VAL]`, `valid |`, `'test': {`,
# `valid (NDCG: 0.1, HR: 0.2)`, `** Dev **`, `test => loss: 0.3`, `split train.`, `average test of
# epoch 3:`, `EP0_test, `, `train_inner | `, or `Train: 0 [10/50]`
_HEADING = re.compile(
    rf"(?<![\w./@-])(?:({DATA_SET}|(?i:(?:validat|evaluat)(?:e|ing)))(?:_inner)?"
    rf"(?:[\])]|[\"']?\s?(?:[:|>]|[-=]+>)(?!\s?{LIST_PREFIX}[-+]?[\d.])"
    r"|:? \d{1,9} (?=\[ *\d{1,9}/\d)"
    r"|\s-\s|\s[*=#-]{2}|\s?\((?=[^\W\d][\w@.-]*\s?[:=])"
    r"|[ _](?i:set|data|dataset|split|phase|results?|stats|metrics|performance"
    r"|(?:of )?epoch|step|iter|iteration|batch|round)(?!\w))"
    rf"|(?i:split)(?:\s|\s?[:=]\s?)({DATA_SET})(?!\w|\s?[:=]\s?[-+]?[\d.])"
    rf"|(?i:ep(?:och)?)_?\d{{1,9}}_({DATA_SET})(?=[,:]?\s))"
)
# A set of data before the first of several metrics: `Train loss: 0.3, acc: 0.9`, `Epoch 3/10 dev loss: 0.3, acc: 0.9`. In
# `Epoch 3/10 train loss: 0.3, acc: 0.9`, as many scripts print it, the accuracy is often that of held-out data.
_SET_OF_LINE = re.compile(
    rf"\W*(?:(?i:epoch|step|iter|iteration|round)\W{{0,3}}\d{{1,15}}(?:/\d{{1,15}})?\W+(?!(?i:train)))?"
    rf"({DATA_SET})[ _](?=[^\W\d])"
)
_LEVEL = r"(?:DEBUG|INFO|WARNING)"
# What a log puts before each message: `2026-01-31 12:00:00,123 - train - INFO - `, `12:00:00 | INFO | cli.train | `,
# `[01/31 12:00:00 d2.engine]: `, `I0131 12:00:00.123456 97 train.py:12] `, `INFO:__main__:`, or `[INFO] `. A set of data
# behind the level, as in `INFO | valid | loss 0.3`, is no logger.
_LOG_PREFIX = re.compile(
    rf"(?:I\d{{4}} |[\s\[(]*(?:{_LEVEL}\W{{1,3}})?(?:\d{{1,4}}[-/]\d\d(?:[-/]\d{{1,4}})?[T, ]{{1,2}})?)"
    r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?"
    rf"(?:\s+\d{{1,9}} [\w.]+:\d{{1,9}}\]|\s(?!{DATA_SET}\])[\w.]++\]|(?:\W{{1,5}}+[\w.]++){{0,2}}?\W{{1,5}}{_LEVEL}\b"
    rf"(?:\W{{1,9}}(?!{DATA_SET}(?:_inner)?\W)[\w.:]++(?=\s?[-|\]]\s))?)?"
    rf"|{_LEVEL}:(?:[\w.]+:)?|\[{_LEVEL}\]"
)

# In `max dev: 0.5`, unlike `max dev acc: 0.5`, `dev` is a deviation.
is_data_set = re.compile(rf"(?!(?i:(?<=max )dev|(?<=mean )dev)){DATA_SET}").fullmatch


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
    if not names_data_set(line):
        return []
    prefix = _LOG_PREFIX.match(line)
    begin = prefix.end() if prefix else 0  # of the message; a logger may be named like a set of data
    if headings := [
        Heading(match.end(), next(filter(None, match.groups())).lower()) for match in _HEADING.finditer(line, begin)
    ]:
        return headings
    match = _SET_OF_LINE.match(line, begin)
    return [Heading(match.end(), match[1].lower())] if match and not names_data_set(line, match.end()) else []


def data_set_at(position: int, headings: Sequence[Heading]) -> str:
    """Return the set of data of a position in a line, by the last heading before it; "" without one."""
    return next((heading.data_set for heading in reversed(headings) if heading.begin <= position), "")
