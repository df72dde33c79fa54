"""Tell apart the output of a program: its results, and passages whose numbers are no results.

The latter are tracebacks, stacks as `faulthandler` dumps them, lines of the platform itself, and dumps of arguments or
objects: `Namespace(lr=0.1, …)`, `Config: {…}`, a model, or a heading like `Arguments:` with a value in each line below.
Pure: text in, text out.
"""

from __future__ import annotations

import re

_TRACEBACK = re.compile(r"(.*?)(?:\s*\+ Exception Group )?Traceback \(most recent call last\):")
_RAISED = re.compile(r"[^\W\d][\w.]*(?:: |:?$)")  # the line below a traceback
_STACK = "(most recent call first)"
_OWN = ("SIGTERM: ", "trialplane: ", "Extension modules: ")  # the last is of faulthandler

_WORDS = r"(?:hyper[- ]?)?param(?:eter)?s|hparams|arg(?:ument)?s|config(?:uration)?|options|settings|flags|opts?|cfg"
_ENDINGS = "Args|Arguments|Config|Configuration|Params|Parameters|HParams|Options|Settings|Flags"
# From here on a line is a dump: Namespace(, TrainingArguments(, args: {, config = Anything(.
_DUMP = re.compile(
    rf"\b(?:Namespace|[A-Z]\w*(?:{_ENDINGS}))\(|(?<![\w.-])(?i:{_WORDS})['\"]?(?:\s*[{{]|\s*[:=]\s*(?:[\w.]+\(|[{{(\[]))"
)
# Other objects: a layer, an optimizer; but not one named like a result, as EvalResult(loss=0.3).
_OBJECT = re.compile(r"([A-Z]\w*)(?:\((?=[^()]*\b\w+=[-+.\d(\[])| ?\($)")
_RESULT = re.compile("Output|Result|Metric|Score|Stat|Eval|Report")
_IS_WORD = re.compile(rf"(?<![\w.-])(?:{_WORDS})\b", re.IGNORECASE)
_DECORATION = " \t=-*#~_>|+:│┃╭╮╰╯─━═"
_LONGEST_HEADING = 100  # characters
_SETTING = re.compile(r"([\s|│┃*•+-]*)(['\"]?[^\W\d][\w./-]*(?: [\w./-]+){0,2}['\"]?)\s*(?:[:=|│┃]|\.{3}|\s\s)")
_STEPS = frozenset(("step", "iteration", "iter", "round", "epoch", "global_step"))
_MOST = 1000  # lines of a dump

is_argument_word = re.compile(_WORDS, re.IGNORECASE).fullmatch


class Passages:
    """The passages of one text, line by line.

    Args:
        has_dumps: whether dumps of arguments and objects are told apart, too.
    """

    def __init__(self, has_dumps: bool = True) -> None:
        self._has_dumps = has_dumps
        self._traceback: str | None = None  # the prefix of each line of a traceback that goes on
        self._is_group = False  # whether it is that of an exception group, all of whose lines are indented
        self._in_stack = False
        self._depth = 0  # open brackets of a dump that goes on
        self._indent: int | None = None  # of the settings below a heading; -1 before the first of them
        self._settings: set[str] = set()  # their names
        self._lines_left = 0  # lines that the dump may still have

    def of(self, line: str) -> tuple[str, bool]:
        """Return the part of the next line that may hold results, and whether only metrics that the job names count."""
        if self._traceback is not None and self._is_traceback(line):
            return "", False
        if self._in_stack and line[:1].isspace():
            return "", False
        self._traceback, self._in_stack = None, False
        if self._depth > 0:
            self._depth += _opened(line)
            self._lines_left -= 1
            if self._lines_left <= 0:
                self._depth = 0
            return line, True
        if self._indent is not None and self._is_setting(line):
            return line, True
        self._indent = None
        return self._begun(line)

    def _begun(self, line: str) -> tuple[str, bool]:
        """Return the same for a line outside of a passage, which may begin one."""
        if "Traceback (" in line and (match := _TRACEBACK.match(line)):
            self._traceback, self._is_group = match[1], "Exception Group" in match[0]
            return "", False
        if _STACK in line:
            self._in_stack = True
            return "", False
        if line.startswith(_OWN):
            return "", False
        if not self._has_dumps:
            return line, False
        lower = line.lower()
        has_word = "arg" in lower or "conf" in lower or "param" in lower or "opt" in lower or "setting" in lower
        has_word = has_word or "flags" in lower or "cfg" in lower or "namespace" in lower
        # `lines` itself recognizes dumps in JSON records.
        dump = _DUMP.search(line) if has_word and not line.lstrip().startswith("{") else None
        if dump is not None or ("(" in line and (match := _OBJECT.search(line)) and not _RESULT.search(match[1])):
            begin = 0 if dump is None else dump.start()
            self._depth, self._lines_left = max(0, _opened(line[begin:])), _MOST
            if dump is None:
                return line, True
            if self._depth or (end := _closed(line, begin)) is None:
                return line[:begin], False
            rest, is_named_only = self._begun(line[end:])  # a result may be printed behind it
            return line[:begin] + rest, is_named_only
        if has_word and len(line) <= _LONGEST_HEADING and self._is_heading(line):
            self._indent, self._settings, self._lines_left = -1, set(), _MOST
        return line, False

    def _is_traceback(self, line: str) -> bool:
        """Whether the traceback goes on; the line below it, with the exception, is its last one."""
        assert self._traceback is not None
        inside = line.removeprefix(self._traceback)
        if not inside or inside[0].isspace() or (self._is_group and inside[0] in "|+"):
            return True
        self._traceback = None
        return not self._is_group and _RAISED.match(inside) is not None

    def _is_heading(self, line: str) -> bool:
        text = line.strip(_DECORATION)
        if not text or text[-1].isdigit() or not _IS_WORD.search(text):
            return False
        return line.rstrip().endswith(":") or (len(text.split()) <= 3 and not any(map(str.isdigit, text)))

    def _is_setting(self, line: str) -> bool:
        """Whether a line belongs to the heading above it: a rule, or a setting of another name at the same place."""
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


def _closed(line: str, begin: int) -> int | None:
    """The position behind the bracket that closes the first one from `begin` on; None where none does."""
    depth = 0
    for position, character in enumerate(line[begin:], begin + 1):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character in ")]}":
            return position
    return None


def _opened(text: str) -> int:
    """Return the number of brackets that a text opens and does not close."""
    return sum(map(text.count, "([{")) - sum(map(text.count, ")]}"))
