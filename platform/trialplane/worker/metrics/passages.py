"""Recognize the passages of a program's output in which numbers are usually not results.

These are tracebacks, warnings of Python, stacks as `faulthandler` prints them, errors of make, lines of the platform itself,
tables of a model's layers, counts of its parameters, lines of the logs of Optuna and LightGBM, and dumps of arguments or
objects: `Namespace(lr=0.1, …)`, `Config: {…}`, a model, or a heading like `Arguments:` with a setting in each line below. In
dumps, logs and counts, the metrics that the job names still count as results. Pure: text in, text out.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TRACEBACK = re.compile(r"(.*?)(?:\s*\+ Exception Group )?Traceback \(most recent call last\):")
_EXCEPTION = re.compile(r"[^\W\d][\w.]*(?:: |:?$)")  # the last line of a traceback, as `ValueError: negative`
_STACK = "(most recent call first)"
_OPTUNA_LOG = re.compile(r"(?:\x1b\[[\d;]*m)*\[[DIWEC] \d{4}-\d\d-\d\d [\d:,]+\]|Trial \d+ finished with value")
# LightGBM's own messages, but not the metrics of its command: `[LightGBM] [Info] Iteration:1, valid_1 auc : 0.77`.
_LIGHTGBM_LOG = re.compile(r"\[LightGBM\] \[\w+\] (?!Iteration:)")
_WARNING = re.compile(r"\S+:\d+: \w*Warning: ")  # train.py:3: FutureWarning: use alpha=0 instead
# make: *** [Makefile:3: run] Error 127, make[1]: [Makefile:3: run] Error 1 (ignored), and scons: *** [run] Error 1
_MAKE_ERROR = re.compile(r"(?:\S*make(?:\[\d+\])?: (?:\*\*\* )?|(?:\S+: )?\*\*\* )\[.*\] Error \d{1,3}(?: \(ignored\))?\s*$")
_OWN_PREFIXES = ("SIGTERM: ", "trialplane: ", "Extension modules: ")  # faulthandler writes the last one

_WORDS = r"(?:hyper[- ]?)?param(?:eter)?s|hparams|arg(?:ument)?s|config(?:uration)?|options|settings|flags|opts?|cfg"
_ENDINGS = "Args|Arguments|Config|Configuration|Params|Parameters|HParams|Options|Settings|Flags"
# The beginning of a dump of arguments: Namespace(, TrainingArguments(, args: {, config = Anything(.
_ARGUMENTS_DUMP = re.compile(
    rf"\b(?:Namespace|[A-Z]\w*(?:{_ENDINGS}))\(|(?<![\w.-])(?i:{_WORDS})['\"]?(?:\s*[{{]|\s*[:=]\s*(?:[\w.]+\(|[{{(\[]))"
)
# The beginning of a dump of another object, as a layer or an optimizer.
_OBJECT_DUMP = re.compile(r"([A-Z]\w*)(?:\((?=[^()]*\b\w+=[-+.\d(\[])| ?\($)")
# Part of the class name of an object that holds results, as in EvalResult(loss=0.3). It is not a dump.
_RESULT_CLASS = re.compile("Output|Result|Metric|Score|Stat|Eval|Report")
_ARGUMENT_WORD = re.compile(rf"(?<![\w.-])(?:{_WORDS})\b", re.IGNORECASE)
# Each match of `_WORDS`, and `Namespace`, contains one of these in any case.
_WORD_PARTS = ("arg", "conf", "param", "opt", "setting", "flags", "cfg", "namespace")
# The header of a table of a model's layers, as Lightning prints it: `| Name | Type | Params`, `┃ Name ┃ Type ┃ Params ┃`.
_LAYERS_HEADER = re.compile(r"(?=.*[|│┃])(?=.*\b(?:Type|Layer)\b).*\bParam")
# A count in the summary of a model: `Total params: 202 K`, `Modules in train mode: 7`, `Total mult-adds (M): 0.5`.
_MODEL_COUNT = re.compile(
    r"\s*(?:(?i:total|(?:non-)?trainable|optimizer|estimated)\s(?:[\w ]+\s)?(?i:params|parameters|flops|mult-adds)\b"
    r"|Modules in (?:train|eval) mode\b)"
)
_LAYERS_ROW = re.compile(r"\s*(?:\d+\s*)?[|│┃┡├└╞]|\s*[-=━─]{3,}")  # a layer, or a rule between the rows
_DECORATION = " \t=-*#~_>|+:│┃╭╮╰╯─━═"
_LONGEST_HEADING = 100  # characters
_SETTING = re.compile(r"([\s|│┃*•+-]*)(['\"]?[^\W\d][\w./-]*(?: [\w./-]+){0,2}['\"]?)\s*(?:[:=|│┃]|\.{3}|\s\s)")
_STEPS = frozenset(("step", "iteration", "iter", "round", "epoch", "global_step"))
_MAX_LINES = 1000  # lines of a dump

# The name of an object with settings: args, config, hparams.
is_argument_word = re.compile(_WORDS, re.IGNORECASE).fullmatch


class ResultPart(NamedTuple):
    """The part of a line that may hold results.

    Attributes:
        text: Text of the part; "" if no part of the line may hold results.
        is_named_only: Whether only the metrics that the job names count there, as in a dump.
    """

    text: str
    is_named_only: bool = False


_NO_RESULT = ResultPart("")


class Passages:
    """A reader of one text that remembers, from line to line, in which passage it is.

    Args:
        has_dumps: Whether dumps of arguments and objects are passages, too.
    """

    def __init__(self, has_dumps: bool = True) -> None:
        self._has_dumps = has_dumps
        self._traceback: str | None = None  # prefix of each line of an unfinished traceback
        self._is_group = False  # whether the traceback is that of an exception group, whose lines are all indented
        self._in_stack = False
        self._in_layers = False  # whether the lines are those of a table of layers
        self._depth = 0  # open brackets of an unfinished dump
        self._indent: int | None = None  # indentation of the settings below a heading; -1 before the first one
        self._settings: set[str] = set()  # names of these settings
        self._lines_left = 0  # lines that the dump may still have

    def result_part(self, line: str) -> ResultPart:
        """Return the part of the next line that may hold results.

        Call it for each line in order, because a passage may have several lines.
        """
        if self._traceback is not None and self._consume_traceback(line):
            return _NO_RESULT
        if self._in_stack and line[:1].isspace():
            return _NO_RESULT
        self._traceback, self._in_stack = None, False
        self._in_layers = self._in_layers and _LAYERS_ROW.match(line) is not None
        if self._in_layers:
            return _NO_RESULT
        if self._depth > 0:
            self._depth += open_brackets(line)
            self._lines_left -= 1
            if self._lines_left <= 0:
                self._depth = 0
            return ResultPart(line, is_named_only=True)
        if self._indent is not None and self._consume_setting(line):
            return ResultPart(line, is_named_only=True)
        self._indent = None
        return self._begin_passage(line)

    def _begin_passage(self, line: str) -> ResultPart:
        """Return the part that may hold results of a line outside of a passage. Record a passage that begins in it."""
        if "Traceback (" in line and (match := _TRACEBACK.match(line)):
            self._traceback, self._is_group = match[1], "Exception Group" in match[0]
            return _NO_RESULT
        if _STACK in line:
            self._in_stack = True
            return _NO_RESULT
        if line.startswith(_OWN_PREFIXES) or _WARNING.match(line) or ("] Error " in line and _MAKE_ERROR.match(line)):
            return _NO_RESULT
        return self._begin_dump_or_log(line) if self._has_dumps else ResultPart(line)

    def _begin_dump_or_log(self, line: str) -> ResultPart:
        """Return the part that may hold results of a line that may be a log's or a count, or begin a table or a dump."""
        if _OPTUNA_LOG.match(line) or _LIGHTGBM_LOG.match(line) or _MODEL_COUNT.match(line):
            return ResultPart(line, is_named_only=True)
        if "Param" in line and _LAYERS_HEADER.match(line):
            self._in_layers = True
            return _NO_RESULT
        lower = line.lower()
        has_word = any(part in lower for part in _WORD_PARTS)  # most lines have none, so the search below is skipped
        is_json = line.lstrip().startswith("{")  # `lines` reads it, and leaves out the arguments in it
        if has_word and not is_json and (arguments := _ARGUMENTS_DUMP.search(line)):
            return self._begin_arguments_dump(line, arguments.start())
        if "(" in line and (match := _OBJECT_DUMP.search(line)) and not _RESULT_CLASS.search(match[1]):
            self._begin_dump(line)
            return ResultPart(line, is_named_only=True)
        if has_word and len(line) <= _LONGEST_HEADING and _is_heading(line):
            self._indent, self._settings, self._lines_left = -1, set(), _MAX_LINES
        return ResultPart(line)

    def _begin_arguments_dump(self, line: str, begin: int) -> ResultPart:
        """Begin the dump of arguments at a position of a line; return the text around it, which may hold results."""
        self._begin_dump(line[begin:])
        end = _closing_position(line, begin)
        is_unfinished = self._depth > 0 or end is None
        if is_unfinished:
            return ResultPart(line[:begin])
        rest = self._begin_passage(line[end:])
        return ResultPart(line[:begin] + rest.text, rest.is_named_only)

    def _begin_dump(self, text: str) -> None:
        """Begin a dump, which lasts until the brackets that its first line opens are closed."""
        self._depth, self._lines_left = max(0, open_brackets(text)), _MAX_LINES

    def _consume_traceback(self, line: str) -> bool:
        """Return whether a line belongs to the unfinished traceback. The line of the exception ends it."""
        assert self._traceback is not None
        text = line.removeprefix(self._traceback)
        if not text or text[0].isspace() or (self._is_group and text[0] in "|+"):
            return True
        self._traceback = None
        is_exception = _EXCEPTION.match(text) is not None
        return is_exception and not self._is_group  # all lines of a group are indented, so this one is after it

    def _consume_setting(self, line: str) -> bool:
        """Return whether a line belongs to the heading of arguments above it, and record the setting in it.

        A line belongs to the heading if it is a rule of dashes directly below it, or a setting with a new name that is
        indented at least as far as the first setting. A step ends the settings, because it belongs to a result.
        """
        if not line.strip(_DECORATION):
            return self._indent == -1
        match = _SETTING.match(line)
        if match is None or self._lines_left <= 0:
            return False
        indent, name = len(match[1]), match[2]
        if name in self._settings or not _STEPS.isdisjoint(name.lower().split()):
            return False
        if self._indent == -1:
            self._indent = indent
        assert self._indent is not None, "called below a heading"
        if indent < self._indent:
            return False
        self._settings.add(name)
        self._lines_left -= 1
        return True


def _is_heading(line: str) -> bool:
    """Return whether a line is a heading of arguments, as `Arguments:`."""
    text = line.strip(_DECORATION)
    if not text or text[-1].isdigit() or not _ARGUMENT_WORD.search(text):
        return False
    return line.rstrip().endswith(":") or (len(text.split()) <= 3 and not any(map(str.isdigit, text)))


def _closing_position(line: str, begin: int) -> int | None:
    """Return the position after the bracket that closes the first bracket from `begin` on; None if none does."""
    depth = 0
    for position, character in enumerate(line[begin:], begin + 1):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character in ")]}":
            return position
    return None


def open_brackets(text: str) -> int:
    """Return the number of brackets that a text opens, less those that it closes."""
    return sum(map(text.count, "([{")) - sum(map(text.count, ")]}"))
