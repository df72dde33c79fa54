"""Find pairs of a name and a number in a line: `loss=0.3`, `acc: 93.1%`, and a metric of the job in any spelling."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from trialplane.worker.metrics.headings import DATA_SET, Heading, data_set_at, is_data_set, names_data_set
from trialplane.worker.metrics.names import Names, spelling
from trialplane.worker.metrics.numerals import CALL_PREFIX, LIST_PREFIX, NUMBER, NUMBER_END, THOUSANDS

# What makes another metric of a name, as a set of data does: `Adjusted R2`, `adj. R2`, `balanced accuracy`, `PR AUC`.
_OTHER_KIND = r"[aA]dj(?:usted|\.)?|[bB]alanced|PR|pr"
_KIND = rf"{DATA_SET}|{_OTHER_KIND}"
_POSSESSIVE = r"['’]s"  # `training's l2: 0.3   valid_1's l2: 0.5`
_AVERAGE = r"(?:macro|micro|weighted|samples) avg"  # `macro avg f1` is f1_macro; if the job names `f1`, this is one
_PAIR = re.compile(
    rf"(?<![\w./@^`-])(?:({DATA_SET}(?:(?=[ _])|(?:_\d{{1,3}})?(?={_POSSESSIVE} ))|(?:{_OTHER_KIND}|{_AVERAGE})(?= ))"
    rf"(?:{_POSSESSIVE})?[ _])?"
    rf"([^\W\d][\w./@^-]*+)([\"']?)\s*+([=:])(\s*+)[\"']?"
    rf"{CALL_PREFIX}{LIST_PREFIX}({THOUSANDS}|{NUMBER})(?:\s*+/\s*+(\d{{1,15}}))?{NUMBER_END}"
)
# `the error of the prediction is: 0.5`, `TPU available: False, using: 0 TPU cores`
_NO_NAMES = frozenset({"is", "are", "was", "of", "to", "at", "using"})
# A name before the sets of data of its values: `accuracy train: 0.9 test: 0.8`, `loss on test: 0.3`, `mae (val: 2)`.
_LABEL = re.compile(r"(?<![\w./@^-])([^\W\d][\w./@^-]*)(?:\s+(?:on|of|for|in))?(?:\s+the)?\s*[\s(]$")
_NO_LABELS = _NO_NAMES | frozenset(
    {"on", "for", "in", "the", "and", "after", "before", "during", "until", "final", "best", "highest", "lowest", "current"}
)
_LONGEST_LABEL = 60  # characters
_BETWEEN_SETS = re.compile(r"[\s,;|/%]*")  # `train: 71%, test: 58%`
# Words between a name and its value: `test: 0.9`, `on the train set is 0.9`, `of the net on 10000 test images: 54 %`.
_SET_BEFORE_VALUE = re.compile(
    rf"(?:[^:=]*\s(?:on|of|for|in|over)\s+|[\s(]*)(?:the\s+)?(?:\d+\s+)?({DATA_SET})(?:\s\w+)?\)?\s?(?:[:=]|is\b)\s*"
    rf"{CALL_PREFIX}{LIST_PREFIX}"
)
_BAR = re.compile(r"%\|[\s\d#█▉▊▋▌▍▎▏]*\|")  # of a progress bar, whose label is before its percentage: `Map: 100%|███|`
_KIND_BEFORE = re.compile(rf"(?<!\w)(?:{_KIND})(?:{_POSSESSIVE})?[\s_-]*$")
_OWNER_BEFORE = re.compile(rf"(?<!\w)({DATA_SET}){_POSSESSIVE}\s$")  # `training's auc: 0.9   valid's auc: 0.8`
# One of several sets of held-out data, as in `validation_0-auc:0.9   validation_1-auc:0.8`.
_NUMBERED_SET_BEFORE = re.compile(rf"(?<!\w){DATA_SET}_\d{{1,3}}(?:{_POSSESSIVE}\s|-)$")
# A number after such words and a name is where the metric begins or a bound: `Start training from score 0.5`.
_BOUND_BEFORE = re.compile(
    r"(?<!\w)(?:from|than|until|below|above|under)\s+(?:(?:an?|the|best|last|previous)\s+)*$", re.IGNORECASE
)
_ARTICLE_BEFORE = re.compile(r"\ban? $")  # `achieved an accuracy of 0.9`, unlike `change in accuracy of 0.1`
# A set of data or an average in parentheses behind a name: `acc (test): 0.9`, `F1 (macro) = 0.8`, `F1 (micro avg)  0.7`.
_IN_PARENTHESES = re.compile(
    rf"(?<=[\w-]) ?\((?:({DATA_SET})\)(?=\s?[:=])|(macro|micro|weighted|samples)(?: avg)?\)(?:\s?[:=]|(?=\s\s?\d?\.\d)))"
)
# Lightning's `'loss' reached 0.8 (best 0.8)`, `Metric loss improved by 0.1 >= min_delta = 0.0. New best score: 0.8`.
_NEW_VALUE = re.compile(
    rf"(?<![\w./@^`-])([^\W\d][\w./@^-]*+)[\"']? (?:reached (?=[-+]?(?:\d*\.\d|nan\b|inf\b))"
    rf"|improved(?: by {NUMBER} >= min_delta = {NUMBER})?\. New best score: )"
)
# Several values: those of `train/val loss: 0.5 / 0.6`, `precision, recall = 0.7, 0.6`, `loss, acc: [0.5, 0.9]`, and with
# their sets of data behind them, `loss: 0.5/0.6 (train/val)`.
_ONE_OF_VALUES = r"[-+]?(?:[\d.]++(?:[eE][-+]?\d+)?|(?i:nan|inf))(?![\w:]|-\d|,\d{3})(?:\s?%)?"  # faster than `NUMBER`
# Not the time or the count behind a value, as in `Epoch 3 done, loss: 0.5, 12.3 s`.
_NO_UNIT = r"(?!\s?(?i:m?s|secs?|seconds?|min(?:ute)?s?|h|hours?|it|iter(?:ation)?s|epochs|steps)\b(?!\s?[:=]))"
_VALUES = re.compile(
    rf"[:=]\s*+(?:\[\s*+(?=\d*\.))?({_ONE_OF_VALUES}(?:(?:\s*+/\s*+{_ONE_OF_VALUES})++"
    rf"|(?:(?:\s*+(?:[,|&]|and\b|-(?=\s))\s*+|\s++){_ONE_OF_VALUES}{_NO_UNIT})++(?!\s?/)))"
    rf"(?:\s?\(({DATA_SET}(?:\s?[/,]\s?{DATA_SET})+)\))?"
)
# Names before a sign and several values: `train/val loss`, `precision, recall`, `loss (train/val)`.
_BETWEEN_NAMES = r"(?:\s*+(?:/|,(?:\s*+and(?=\s))?)\s*+|\s++(?:and|&)\s++)"
_ONE_OF_NAMES = rf"(?:{DATA_SET}[ _])?(?!and\s)[^\W\d][\w.@-]*+"
_NAMES = re.compile(rf"(?<![\w./@-])({_ONE_OF_NAMES}(?:{_BETWEEN_NAMES}{_ONE_OF_NAMES}){{0,5}}+)\s?\)?\s*$")
_LONGEST_NAMES = 100  # characters
_LAST_SET = re.compile(rf"({DATA_SET})[ _](.+)")
_FRACTION = re.compile(r"\d+\s*/\s*\d+")
# A name before several sets of data with decimal values, without signs: `RMSE train 0.5 test 0.6`.
_SET_AND_VALUE = rf"({DATA_SET}) (?=[-+]?\d*\.\d)"
_SETS_WITHOUT_SIGNS = re.compile(rf"(?<=\w )(?:{_SET_AND_VALUE}[-+.\de]++(?: ?%)?(?:\s?[,;|]?\s|$)){{2,}}")


class _Pair(NamedTuple):
    """A match of `_PAIR`, by its groups.

    Attributes:
        data_set: Set of data, or another kind of the metric, directly before the name; None without one.
        name: Name.
        quote: Quotation mark after the name; "" without one.
        sign: "=" or ":".
        space: Spaces after the sign.
        text: Number.
        total: Number after a slash, as in `9870/10000`; None without one.
    """

    data_set: str | None
    name: str
    quote: str
    sign: str
    space: str
    text: str
    total: str | None

    @property
    def is_written_as_port(self) -> bool:
        """Whether the pair is written like `localhost:8080`."""
        return self.sign == ":" and not (self.space or self.quote or "." in self.text or "e" in self.text)


def pairs_of(line: str, names: Names, headings: Sequence[Heading]) -> dict[str, float]:
    """Return the numbers of a line by their names; a fraction as its value. Of a repeated name the first number counts.

    Args:
        line: The line.
        names: Meanings of names.
        headings: Headings in the line.
    """
    numbers: dict[str, float] = {}
    label, label_end = "", 0  # the name before the last sets of data, and the end of their pairs so far
    for match in _PAIR.finditer(line):
        pair = _Pair(*match.groups())
        is_requested = pair.name.lower() in names.requested
        if (pair.name.lower() in _NO_NAMES and not is_requested) or _BAR.match(line, match.end()):
            continue
        name = pair.name
        is_step = names.lookup(name).step_rank >= 0
        if not is_step:  # the name of a step has no set of data
            data_set = data_set_at(match.start(), headings)
            whole_name = names.whole_name(line, match.start(), match.end(2))
            if not pair.data_set and is_data_set(line, match.start(2), match.end(2)):
                if not _BETWEEN_SETS.fullmatch(line, label_end, match.start()):
                    label = _label_before(match.start(), line, names)
                label_end = match.end()
                if label and not (is_requested or whole_name):
                    pair, data_set = pair._replace(name=label), pair.name.lower()
            full_name = names.in_data_set(whole_name, data_set) if whole_name else _full_name(pair, names, data_set)
            is_second = not pair.data_set and full_name in numbers  # a second `acc` below a heading is not of its set
            name = pair.name if is_second else full_name
        if pair.is_written_as_port and name.lower() not in names.requested:
            continue
        if "," in pair.text and not ("." in pair.text or is_requested or name in names.requested.values()):
            continue  # `layers: 64,128` is perhaps a list
        value = float(pair.text.replace(",", ""))
        if pair.total and int(pair.total) and names.lookup(name).step_rank < 0:  # in `step: 3/10`, the step is 3
            value /= int(pair.total)
        numbers.setdefault(name, value)
    return numbers


def with_pairs(line: str) -> str:
    """Return `train loss: 0.5, val loss: 0.6` for `train/val loss: 0.5/0.6`, `acc test: 0.9` for `acc (test): 0.9`.

    Return `RMSE train: 0.5 test: 0.6` for `RMSE train 0.5 test 0.6`, `'acc: 0.9` for `'acc' reached 0.9`.

    Sets of data without a value each have none: `train/val loss` for `train/val loss: 0.5 / 0.6 / 0.7`.
    """
    if " reached " in line or " improved" in line:
        line = _NEW_VALUE.sub(r"\1: ", line)
    if "(" in line:
        line = _IN_PARENTHESES.sub(lambda match: f" {match[1]}" if match[1] else f"-{match[2]}: ", line)
    if names_data_set(line):
        line = _SETS_WITHOUT_SIGNS.sub(lambda match: re.sub(_SET_AND_VALUE, r"\1: ", match[0]), line)
    parts, end = [], 0
    for match in _VALUES.finditer(line):
        begin = max(end, match.start() - _LONGEST_NAMES)
        if _FRACTION.fullmatch(match[1]) and line.find("/", begin, match.start()) < 0:  # faster than a search for names
            continue
        names_match = _NAMES.search(line, begin, match.start())
        if names_match and (pairs := _pairs_in_order(names_match[1], *match.groups(default=""))):
            parts += [line[end : names_match.start()], pairs]
            end = match.end()
    return "".join([*parts, line[end:]])


def _pairs_in_order(names_text: str, values_text: str, sets_text: str) -> str:
    """Return pairs of names and values by their positions; "" if the names are not several, or not as many as values.

    Of sets of data that are not as many as values, return the names alone.

    Args:
        names_text: Names before the values, the last one perhaps only with a set of data, as `train/val loss`.
        values_text: Values.
        sets_text: Sets of data behind the values of one name; "" without any.
    """
    names, values = re.split(_BETWEEN_NAMES, names_text), re.findall(NUMBER, values_text)
    last_set = _LAST_SET.fullmatch(names[-1])
    if sets_text:
        names = [f"{data_set} {names_text}" for data_set in re.split(r"\s?[/,]\s?", sets_text)]
    elif last_set and all(map(is_data_set, names[:-1])):
        names = [f"{data_set} {last_set[2]}" for data_set in (*names[:-1], last_set[1])]
    elif not all(map(is_data_set, names)) and (
        any(map(is_data_set, names))
        or bool(_FRACTION.fullmatch(values_text))
        or (len(names) == 2 and not re.search("/" if "/" in names_text else r"[,|&]|\band\b", values_text))
    ):
        return ""  # in `val/acc: 0.9/0.8`, `test, correct: 98/100`, `images/s: 5 6`, and `done, loss: 5 6` they are not
    if len(names) != len(values) or len(names) < 2:
        return names_text if sets_text or (last_set and len(names) > 1) else ""
    return ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))


def _label_before(position: int, line: str, names: Names) -> str:
    """Return the name before a set of data at a position of a line; "" if there is none."""
    match = _LABEL.search(line, max(0, position - _LONGEST_LABEL), position)
    is_label = match is not None and match[1].lower() not in _NO_LABELS and names.lookup(match[1]).step_rank < 0
    return match[1] if match is not None and is_label else ""


def _full_name(pair: _Pair, names: Names, data_set: str) -> str:
    """Return the name of a pair's metric, with the set of data before the name or, without one, that of the heading."""
    if not pair.data_set:
        return names.in_data_set(pair.name, data_set)
    if is_data_set(pair.data_set):
        return names.of_data_set(pair.name, pair.data_set.lower())
    kind, *average = pair.data_set.lower().split()
    return names.in_data_set(f"{pair.name}_{kind}" if average else f"{kind}_{pair.name}", data_set)


class Spelling(NamedTuple):
    """A name under which a metric that the job names may appear in lines, in any spelling.

    Attributes:
        metric: Metric that the job names.
        name: Its name in lines, perhaps without the set of data that a heading names.
        patterns: Expressions that find it.
    """

    metric: str
    name: str
    patterns: tuple[re.Pattern[str], ...]

    def pair(self, line: str, headings: Sequence[Heading], names: Names) -> tuple[str, float] | None:
        """Return the metric and its value in a line, or else, as `train_loss`, that below a heading; None without one.

        A value of another set of data does not count, as in `train accuracy` and `accuracy train: 0.9`, none of several
        numbered sets, as in `valid_0's auc: 0.9 valid_1's auc: 0.8`, and no bound, as in `better than accuracy 0.9`. Of
        pairs the words before them are not read: `better than accuracy: 0.9` is a value.

        Args:
            line: The line.
            headings: Headings in the line.
            names: Meanings of names.
        """
        of_training: tuple[str, float] | None = None
        of_numbered_sets: list[tuple[str, float]] = []
        follows_other_set = False  # in `train accuracy 0.1, accuracy 0.5`, the second value is not one of training
        for match in itertools.chain.from_iterable(pattern.finditer(line) for pattern in self.patterns):
            text_before = line[max(0, match.start() - 30) : match.start()]
            if not _is_value(match, text_before):
                continue
            value = float(match["value"].replace(",", ""))
            owner = _OWNER_BEFORE.search(text_before)
            if _KIND_BEFORE.search(text_before) and not owner:
                follows_other_set = True
            elif _NUMBERED_SET_BEFORE.search(text_before):
                of_numbered_sets.append((self.metric, value))
            elif not names.whole_name(line, match.start("name"), match.end("name")):
                named_set = _SET_BEFORE_VALUE.fullmatch(line, match.end("name"), match.start("value")) or owner
                heading_set = "" if follows_other_set else data_set_at(match.start(), headings)
                full_name = names.in_data_set(self.name, named_set[1].lower() if named_set else heading_set)
                if full_name.lower() == self.metric.lower():
                    return self.metric, value
                if self.name == self.metric:
                    of_training = of_training or (full_name, value)
        return of_numbered_sets[0] if len(of_numbered_sets) == 1 and self.name == self.metric else of_training


def _is_value(match: re.Match[str], text_before: str) -> bool:
    """Return whether a match has a value, and not the percentage of a progress bar, a bound, or a change by 0.1.

    Args:
        match: Match of an expression of a `Spelling`.
        text_before: Text before it.
    """
    text_between = match.string[match.end("name") : match.start("value")]
    is_change = text_between.strip() == "of" and not _ARTICLE_BEFORE.search(text_before)
    return not (is_change or _BAR.match(match.string, match.end()) or _BOUND_BEFORE.search(text_before))


def spellings_of(metric: str) -> list[Spelling]:
    """Return the names of a metric in lines: its own, and for `test_loss` also `loss`, which counts below `Test` alone."""
    data_set = re.match(rf"{DATA_SET}_", metric)
    names = [metric, metric[data_set.end() :]] if data_set else [metric]
    return [Spelling(metric, name, _spelling_patterns(name)) for name in names]


def _spelling_patterns(name: str) -> tuple[re.Pattern[str], ...]:
    """Return expressions that find a metric's value by its name in any spelling; none if the name has no letter or digit.

    The first one finds a value after the name, as `val loss 2.1`; the second one a value before it, as `0.98 accuracy` or `a
    score of 0.98 roc_auc`.
    """
    name_pattern = spelling(name)
    if not name_pattern:
        return ()
    # Between the name and its value: other words and a sign as `:`, or `on the 100 images:`, or `is`, or
    # `AVG`, or `->`, or `has been updated to`, or `improved from 0.4 to`, or `decreased (0.4 -->`,
    # or `is ==>`, or `on the test set is`, or after an article `of`, or nothing. In `accuracy of  cat : 40 %` the value is
    # that of a class; in `error code: 127` it is no error.
    fraction_ahead = r"(?=\s*+[-+]?(?:\d*\.\d|\d+(?:e|\s?%)))"
    between = (
        r"(?!\s+code\b|\s+of\s+(?!model|net)\w++\s:\s*+\d++\s%)(?:[^\d:=|│┃,;\n]{0,40}?[:=|│┃]|\s+(?:on|of|over)\s[^:=|,;\n]{0,60}?[:=]"
        # Only before a decimal number: `loss average 10 batches` has none.
        r"|\s+(?:avg|average|mean|score|value)\b(?=\s*+[-+]?\d*\.\d)|\s*+is\b(?!\s*+[=-]+>)|\s*+(?:is\s++)?[=-]{1,3}>"
        # Not of one part: `on fold 3 is 0.5`, `of class cat is 0.5`.
        rf"|\s+(?:on|of|over|for|in)\s(?!.{{0,40}}\b(?:class|label|category|fold|client)\b)"
        rf"(?:.{{0,30}}\bthe\s|(?=.{{0,40}}{DATA_SET}))[^:=|,;\n]{{0,60}}?\sis\b{fraction_ahead}|\s+of\b{fraction_ahead}"
        r"|(?:\s+(?:has|have|was|were|is|been)){0,2}\s+(?:updated|improved|increased|decreased|reduced|dropped|changed)"
        rf"(?:(?:\s+from\s+{NUMBER}\s?%?)?\s+to(?=\s)|\s+\({NUMBER}\s*+-+>))?"
    )
    value = rf"{CALL_PREFIX}{LIST_PREFIX}(?P<value>{THOUSANDS}|{NUMBER}){NUMBER_END}"
    # Without anything between, only a decimal number: `loss0.595`, and not `mAP0.5: 0.6` or `loss0.595.pt`.
    attached = r"(?=\d{1,15}\.\d++(?![\w.]|\s*[:=]|\s+[-+.\d]))"
    value_after = rf"(?<!\w)(?P<name>{name_pattern})(?:(?!\w|[-+][\d.])[\"']?{between}\s*+|{attached}){value}"
    fraction = r"(?P<value>\d*\.\d+|\d+(?:\.\d+)?(?= ?%))"
    value_before = rf"(?:^|[:=|,;(]|(?<=\bscore )of(?= )) *+{fraction} ?%? ++(?P<name>{name_pattern})(?![\w@]|\s?[:=])"
    return re.compile(value_after, re.IGNORECASE), re.compile(value_before, re.IGNORECASE)
