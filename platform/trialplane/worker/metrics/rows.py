"""Complete rows whose section or sets of data stand in a line above them. Pure: text in, text out."""

from __future__ import annotations

import re

from trialplane.worker.metrics.headings import DATA_SET, names_data_set
from trialplane.worker.metrics.numerals import NUMBER, number

_GAP = r"[\s|│┃]++"
# A section in a box of Stable-Baselines3, `| rollout/           |      |`, and a row in it.
_SECTION = re.compile(r"\| ([^\W\d][\w-]*/) *\| *\|\s*")
_SECTION_ROW = re.compile(r"\| {4,}(?=\S)")
# `Metric   Train   Val   Test`, and AllenNLP's `INFO - console_logger -     Training |  Validation`; and a row below it.
_SETS = re.compile(rf"(?:.*\s-)?{_GAP}(?:(?!{DATA_SET})[^\W\d]\w*{_GAP})?({DATA_SET}(?:{_GAP}{DATA_SET})+)[\s|│┃]*")
_SETS_ROW = re.compile(rf"(?:.*\s-\s)?[\s|│┃]*([^\W\d][\w./@-]*+)((?:{_GAP}(?:{NUMBER}|N/A|-)(?:\s?%)?)++)[\s|│┃]*")
_LONGEST = 400  # characters


class Rows:
    """A reader of the lines of a text, in order, that remembers the section or the sets of data above a row."""

    def __init__(self) -> None:
        self._section = ""
        self._sets: list[str] = []

    def completed(self, line: str) -> str:
        """Return the next line with what it lacks if it is such a row; other lines as is.

        It is `| rollout/ep_len_mean | 21 |` for `|    ep_len_mean | 21 |` below `| rollout/ |  |`, and `loss train: 0.5
        val: 0.6` for `loss  0.5  0.6` below `train  val`.
        """
        if len(line) > _LONGEST or not line.strip():
            return line
        if line.startswith("| "):
            if section := _SECTION.fullmatch(line):
                self._section = section[1]
            elif self._section:
                line = _SECTION_ROW.sub(f"| {self._section}", line, count=1)
        else:
            self._section = ""
        if names_data_set(line) and (sets := _SETS.fullmatch(f" {line}")):
            self._sets = re.findall(rf"{DATA_SET}(?!\w)", sets[1])
        elif self._sets and any(character.isalnum() for character in line):  # a rule ends no table
            row = _SETS_ROW.fullmatch(line)
            values = re.findall(rf"{NUMBER}|N/A|-(?!\S)", row[2]) if row else []
            if row is None or len(values) != len(self._sets):
                self._sets = []
                return line
            pairs = zip(self._sets, values, strict=True)
            line = " ".join([row[1], *(f"{data_set}: {value}" for data_set, value in pairs if number(value) is not None)])
        return line
