"""Find passages in the output of a program whose numbers are usually no results.

These are tracebacks, stacks as `faulthandler` dumps them, lines of the platform itself, and dumps of arguments or
objects: `Namespace(lr=0.1, …)`, `Config: {…}`, a model, or a heading like `Arguments:` with a value in each line below.
In dumps, the metrics that the job names still count as results. Pure: text in, text out.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TRACEBACK = re.compile(r"(.*?)(?:\s*\+ Exception Group )?Traceback \(most recent call last\):")
_EXCEPTION = re.compile(r"[^\W\d][\w.]*(?:: |:?$)")  # the line after a traceback
_STACK = "(most recent call first)"
_OWN_PREFIXES = ("SIGTERM: ", "trialplane: ", "Extension modules: ")  # faulthandler writes the last one

_WORDS = r"(?:hyper[- ]?)?param(?:eter)?s|hparams|arg(?:ument)?s|config(?:uration)?|options|settings|flags|opts?|cfg"
_ENDINGS = "Args|Arguments|Config|Configuration|Params|Parameters|HParams|Options|Settings|Flags"
# The beginning of a dump of arguments: Namespace(, TrainingArguments(, args: {, config = Anything(.
_DUMP = re.compile(
    rf"\b(?:Namespace|[A-Z]\w*(?:{_ENDINGS}))\(|(?<![\w.-])(?i:{_WORDS})['\"]?(?:\s*[{{]|\s*[:=]\s*(?:[\w.]+\(|[{{(\[]))"
)
# The beginning of a dump of another object, as a layer or an optimizer. EvalResult(loss=0.3) has the name of a result.
_OBJECT = re.compile(r"([A-Z]\w*)(?:\((?=[^()]*\b\w+=[-+.\d(\[])| ?\($)")
_RESULT = re.compile("Output|Result|Metric|Score|Stat|Eval|Report")
_ARGUMENT_WORD = re.compile(rf"(?<![\w.-])(?:{_WORDS})\b", re.IGNORECASE)
_DECORATION = " \t=-*#~_>|+:│┃╭╮╰╯─━═"
_LONGEST_HEADING = 100  # characters
_SETTING = re.compile(r"([\s|│┃*•+-]*)(['\"]?[^\W\d][\w./-]*(?: [\w./-]+){0,2}['\"]?)\s*(?:[:=|│┃]|\.{3}|\s\s)")
_STEPS = frozenset(("step", "iteration", "iter", "round", "epoch", "global_step"))
_MAX_LINES = 1000  # lines of a dump

is_argument_word = re.compile(_WORDS, re.IGNORECASE).fullmatch


class ResultPart(NamedTuple):
    """The part of a line that may hold results.

    Attributes:
        text: Text of the part; "" for none.
        is_named_only: Whether only metrics that the job asks for by name are results there, as in a dump.
    """

    text: str
    is_named_only: bool = False


_NO_RESULT = ResultPart("")


class Passages:
    """The passages of one text, line by line.

    Args:
        has_dumps: Whether to find dumps of arguments and objects, too.
    """

    def __init__(self, has_dumps: bool = True) -> None:
        self._has_dumps = has_dumps
        self._traceback: str | None = None  # prefix of each line of an unfinished traceback
        self._is_group = False  # whether the traceback is that of an exception group, whose lines are all indented
        self._in_stack = False
        self._depth = 0  # open brackets of an unfinished dump
        self._indent: int | None = None  # indentation of the settings below a heading; -1 before the first one
        self._settings: set[str] = set()  # names of these settings
        self._lines_left = 0  # lines that the dump may still have

    def result_part(self, line: str) -> ResultPart:
        """Return the part of the next line that may hold results. Lines must come in order, as a passage has several."""
        if self._traceback is not None and self._consume_traceback(line):
            return _NO_RESULT
        if self._in_stack and line[:1].isspace():
            return _NO_RESULT
        self._traceback, self._in_stack = None, False
        if self._depth > 0:
            self._depth += _open_brackets(line)
            self._lines_left -= 1
            if self._lines_left <= 0:
                self._depth = 0
            return ResultPart(line, is_named_only=True)
        if self._indent is not None and self._consume_setting(line):
            return ResultPart(line, is_named_only=True)
        self._indent = None
        return self._begin_passage(line)

    def _begin_passage(self, line: str) -> ResultPart:
        """Return the part of a line outside of a passage that may hold results. The line may begin a passage."""
        if "Traceback (" in line and (match := _TRACEBACK.match(line)):
            self._traceback, self._is_group = match[1], "Exception Group" in match[0]
            return _NO_RESULT
        if _STACK in line:
            self._in_stack = True
            return _NO_RESULT
        if line.startswith(_OWN_PREFIXES):
            return _NO_RESULT
        if not self._has_dumps:
            return ResultPart(line)
        lower = line.lower()
        has_word = "arg" in lower or "conf" in lower or "param" in lower or "opt" in lower or "setting" in lower
        has_word = has_word or "flags" in lower or "cfg" in lower or "namespace" in lower
        # Dumps in JSON records are recognized by `lines`.
        dump = _DUMP.search(line) if has_word and not line.lstrip().startswith("{") else None
        if dump is not None or ("(" in line and (match := _OBJECT.search(line)) and not _RESULT.search(match[1])):
            begin = 0 if dump is None else dump.start()
            self._depth, self._lines_left = max(0, _open_brackets(line[begin:])), _MAX_LINES
            if dump is None:
                return ResultPart(line, is_named_only=True)
            if self._depth or (end := _closing_position(line, begin)) is None:
                return ResultPart(line[:begin])
            rest = self._begin_passage(line[end:])  # a result may follow the dump
            return ResultPart(line[:begin] + rest.text, rest.is_named_only)
        if has_word and len(line) <= _LONGEST_HEADING and self._is_heading(line):
            self._indent, self._settings, self._lines_left = -1, set(), _MAX_LINES
        return ResultPart(line)

    def _consume_traceback(self, line: str) -> bool:
        """Return whether a line belongs to the unfinished traceback. Its last line is that of the exception."""
        assert self._traceback is not None
        inside = line.removeprefix(self._traceback)
        if not inside or inside[0].isspace() or (self._is_group and inside[0] in "|+"):
            return True
        self._traceback = None
        return not self._is_group and _EXCEPTION.match(inside) is not None

    def _is_heading(self, line: str) -> bool:
        """Return whether a line is a heading of arguments, as `Arguments:`."""
        text = line.strip(_DECORATION)
        if not text or text[-1].isdigit() or not _ARGUMENT_WORD.search(text):
            return False
        return line.rstrip().endswith(":") or (len(text.split()) <= 3 and not any(map(str.isdigit, text)))

    def _consume_setting(self, line: str) -> bool:
        """Return whether a line belongs to the heading above it, and record the setting in it.

        It is a rule below the heading, or a setting with a new name that is indented as far as the first one, or further.
        """
        if not line.strip(_DECORATION):
            return self._indent == -1
        match = _SETTING.match(line)
        if (
            match is None
            or match[2] in self._settings
            or not _STEPS.isdisjoint(match[2].lower().split())
            or self._lines_left <= 0
        ):
            return False
        if self._indent == -1:
            self._indent = len(match[1])
        if len(match[1]) < (self._indent or 0):
            return False
        self._settings.add(match[2])
        self._lines_left -= 1
        return True


def _closing_position(line: str, begin: int) -> int | None:
    """Return the position after the bracket that closes the first bracket from `begin` on; None if it is not closed."""
    depth = 0
    for position, character in enumerate(line[begin:], begin + 1):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character in ")]}":
            return position
    return None


def _open_brackets(text: str) -> int:
    """Return the number of brackets that a text opens and does not close."""
    return sum(map(text.count, "([{")) - sum(map(text.count, ")]}"))
