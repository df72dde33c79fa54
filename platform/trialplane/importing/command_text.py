"""A command line as text, before its parameters are read: what a trial does not need is removed, and values are marked.

Also the commands that stand for a file: a Python script without arguments, and an executed notebook.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from trialplane.importing import literals, shell
from trialplane.importing.script import Call
from trialplane.job import settings

# jupyter nbconvert, python -m papermill
_NOTEBOOK_PROGRAM = re.compile(
    r"(?:python[\d.]*\s+-m\s+)?(?:(?P<nbconvert>(?:jupyter[\s-]+)?nbconvert)|jupyter[\s-]+execute|(?P<papermill>papermill))\s+"
)
# Options of papermill that set parameters of the notebook.
_PAPERMILL_PARAMETERS = frozenset(
    ["-p", "--parameters", "-r", "--parameters_raw", "-f", "--parameters_file", "-y", "--parameters_yaml", "-b"]
)
_FILE = r"""(?:'[^']*'|"[^"]*"|\$\([^()]*\)|[^\s|&;<>()'"])+"""  # log.txt, "my log", log_$(date +%s)
# Parts of a command line that let it run on without a terminal, and keep its output: nohup, `> log.txt 2>&1 & disown`,
# `| tee log`.
_IN_BACKGROUND = re.compile(rf"(?P<head>(?:env +)?(?:[A-Za-z_]\w*={shell.QUOTED} +)*)(?P<program>(?:nohup|setsid) +)")
_AT_END = (
    re.compile(rf"(?:\s+(?:\d?>>?|&>>?|<)\s*(?:&\d|{_FILE}))*\s*(?<!&)&\s*(?:disown(?:\s+[-%]\S+)*\s*)?$"),
    re.compile(rf"(?:\s+2>&1)?\s*\|&?\s*tee(?:\s+{_FILE})+\s*$"),
)
# A quoted part, or a comment: a `#` at the beginning of a word, and the rest of the line.
_COMMENT = re.compile(r"""(?P<quoted>'[^']*'|"(?:[^"\\]|\\.)*"|\\.)|(?<![^\s;&|()])[ \t]*\#[^\n]*""", re.DOTALL)
# The code of `python -c "train(lr=0.1)"` without what the shell or a placeholder would change.
_PYTHON_CODE = re.compile(
    r"""\bpython[\d.]*(?: +-[a-zA-Z]+)* +-c +(?P<quote>['"])(?P<code>(?:(?!(?P=quote))[^\\$`{}])*)(?P=quote)"""
)


class _SetText(NamedTuple):
    """A text to which a command sets a parameter.

    Attributes:
        name: Name of the parameter.
        word: Word with the text.
        before: Part of the word before the text: `--kernel=`.
        value: The text; "" if a script's own flag sets it.
    """

    name: str
    word: shell.Word
    before: str
    value: str


def on_one_line(text: str) -> str:
    """Return a command line without comments, and with its continued lines as one."""
    return re.sub(r"\s*\\\n\s*", " ", _COMMENT.sub(lambda match: match["quoted"] or "", text)).strip()


def without_own_log(text: str) -> tuple[str, list[str]]:
    """Return a command line that a trial waits for, with its output, and the parts that were removed for this.

    They are nohup, `&` at the end with the redirections before it, and a pipe to tee, whose exit code would replace that of
    the program.
    """
    removed: list[str] = []
    if (start := _IN_BACKGROUND.match(text)) is not None:
        removed.append(start["program"].strip())
        text = start["head"] + text[start.end() :]
    for pattern in _AT_END:
        if (end := pattern.search(text)) is not None:
            removed.append(end[0].strip())
            text = text[: end.start()]
    return text, removed


def without_switches(text: str, names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Return a command line without the flags of parameters that are on or off, and these flags by parameter.

    A flag is such a switch if no value follows: another flag, an operator of the shell, or the end.
    """
    flags: dict[str, str] = {}
    for name in names:
        spelling = "[-_]".join(map(re.escape, re.split("[-_]", name)))
        # A flag before another flag, an operator such as `2>`, or the end.
        match = re.search(rf"\s(--?{spelling})(?=\s+-|\s*(?:\d?[|&;<>)]|$))", text)
        if match is None:
            continue
        is_quoted = any(text[: match.start()].count(quote) % 2 for quote in "'\"")
        if not is_quoted:
            text = text[: match.start()] + text[match.end() :]
            flags[name] = match[1]
    return text, flags


def with_texts(text: str, names: Collection[str], call: Call | None) -> str:
    """Return a command line with {NAME=VALUE} for the texts that set some parameters: `model='lstm'`, `--kernel rbf`.

    These may be variables before the program, as in `KIND=lstm julia fit.jl`.

    Numbers are parameters already. A parameter that the command sets to several values stays as it is. If the command calls
    a Python script, only the arguments of this call are read, and a parameter that a flag sets is left to the script, which
    declares the flag.

    Args:
        text: Command line.
        names: Names of the parameters.
        call: Call of a Python script in the command; None without one.
    """
    keys = {key(name): name for name in names}
    texts_by_name: dict[str, list[_SetText]] = {}
    for command in shell.simple_commands(text):
        if call is None or (command.words and command.words[0].start == call.start):
            for set_text in _set_texts(command, keys, call):
                texts_by_name.setdefault(set_text.name, []).append(set_text)
    spans: list[tuple[int, int, str]] = []  # start and end of a word, and its replacement
    for name, texts in texts_by_name.items():
        values = {set_text.value for set_text in texts}
        if len(values) == 1 and (placeholder := _text_placeholder(name, values.pop())):
            spans += [(word.start, word.end, f"{before}{placeholder}") for _, word, before, _ in texts]
    for start, end, replacement in sorted(spans, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def _set_texts(command: shell.SimpleCommand, keys: Mapping[str, str], call: Call | None) -> Iterator[_SetText]:
    """Yield the texts to which a simple command sets parameters, see `with_texts`.

    Args:
        command: The simple command.
        keys: Names of the parameters, each by its `key`.
        call: Call of a Python script that it is; None for another program.
    """
    program = len(shell.leading_words([word.text for word in command.words]))
    for word in command.words[:program] if call is None else ():  # a Python script shows which variables it reads
        variable, _, value = word.text.partition("=")
        if key(variable) in keys:
            yield _SetText(variable, word, f"{variable}=", value)
    words = command.words[program + 1 :]
    for word, next_word in itertools.zip_longest(words, words[1:]):
        flag, equals, value = word.text.partition("=")
        name = keys.get(key(flag.lstrip("-+")), "")
        has_flag = flag.startswith("-")
        is_declared = has_flag and call is not None
        if name and equals:
            yield _SetText(name, word, f"{flag}=", "" if is_declared else value)
        elif name and has_flag and next_word:
            yield _SetText(name, next_word, "", "" if is_declared else next_word.text)


def with_code_values(text: str, names: Collection[str]) -> str:
    """Return a command line with {NAME=VALUE} for values in the code of `python -c CODE`: `train(lr=0.1)`.

    Args:
        text: Command line.
        names: Names of the values; none for all numbers.
    """
    code = _PYTHON_CODE.search(text)
    if code is None:
        return text
    keys = set(map(key, names))
    with contextlib.suppress(ValueError):  # it is not Python
        values = settings.values(code["code"], ".py")
        for name, (start, end) in sorted(settings.named_spans(code["code"], ".py"), key=lambda pair: -pair[1][0]):
            value, old = values[name], code["code"][start:end]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            placeholder = f"{{{name}={old}}}" if is_number else _text_placeholder(name, str(value))
            if placeholder and (key(name) in keys if names else is_number):
                old_text = old if is_number else old[1:-1]  # the quotes of a text stay
                place = code.start("code") + start + old.index(old_text)
                text = f"{text[:place]}{placeholder}{text[place + len(old_text) :]}"
    return text


def _text_placeholder(name: str, value: str) -> str:
    """Return {NAME=VALUE} for a text without spaces, quotation marks or syntax of the shell; "" for a flag, and others."""
    is_plain = re.fullmatch(r"(?!-)[\w./:@+-]+", value) is not None
    return f"{{{name}={value}}}" if is_plain and isinstance(literals.value_of(value), str) else ""


def script_without_arguments(text: str) -> str:
    """Return the Python script that a command line starts without arguments, as `python train.py` does.

    "" if it has arguments, or starts another program.
    """
    program, *words = shell.split_words(text)
    if not re.fullmatch(r"python[\d.]*", program):
        return ""
    match [word for word in words if word != "-u"]:  # which has no effect on a trial
        case ["-m", module]:
            return f"{module.replace('.', '/')}.py"
        case [file] if file.endswith(".py"):
            return file
    return ""


def executed_notebook(text: str) -> str:
    """Return the notebook that a command line executes, by nbconvert, `jupyter execute` or papermill.

    "" if it starts another program, executes several notebooks, or sets parameters in one.
    """
    program = _NOTEBOOK_PROGRAM.match(text)
    if program is None:
        return ""
    words = shell.split_words(text[program.end() :])
    only_converts = program["nbconvert"] and "--execute" not in words
    if only_converts or _PAPERMILL_PARAMETERS & set(words):
        return ""
    names = [
        word
        for previous_word, word in itertools.pairwise(["", *words])
        if word.endswith(".ipynb") and not word.startswith("-") and previous_word not in ("--output", "-o")
    ]
    # The second notebook of `papermill INPUT OUTPUT` is the executed copy.
    return names[0] if len(names) == 1 or (names and program["papermill"]) else ""


def key(name: str) -> str:
    """Return a name as it is compared, in lower case and with underscores."""
    return name.lower().replace("-", "_")
