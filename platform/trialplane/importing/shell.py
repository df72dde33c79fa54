"""The syntax of the shell: words and calls of programs in a command line, lines and variables of a script.

The text is only parsed, and nothing is started.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from trialplane.errors import Issue, SpecError
from trialplane.importing.script import Call
from trialplane.job import settings

# Installed programs that start another one, or that do not train.
_STARTERS = frozenset({
    "accelerate", "airflow", "dagster", "deepspeed", "dvc", "hatch", "horovodrun", "inv", "invoke", "jupyter",
    "jupyter-nbconvert", "kedro", "mlflow", "modal", "nox", "papermill", "pdm", "pip", "pipenv", "platform", "poetry",
    "prefect", "pytest", "ray", "sky", "snakemake", "torchrun", "tox", "uv", "wandb",
})  # fmt: skip
# The beginning of the program that pip writes for an entry point of a package.
_CONSOLE_SCRIPT = re.compile(r"#!(\S*python[\d.]*)\n(?:#[^\n]*\n|import [^\n]*\n)*from [\w.]+ import \w+\n")
QUOTED = r"""(?:'[^']*'|"[^"]*"|[^\s;&|()'"])*"""  # a word, of which parts may be quoted
_PATH = re.compile(r"(?<![\w./$-])\w[\w.-]*/[\w./-]*\w")  # src/train.py
_SET = re.compile(rf"\s*(?P<export>export\s+)?(?P<name>\w+)=(?P<value>{QUOTED})\s*;?\s*(?:#.*)?$")  # export LR="0.1"
# An operator of the shell, such as `2>` or `&&`, or a word, of which parts may be quoted or as $(date).
TOKEN = re.compile(r"""\d?[<>]|&&|\|\||[|&;()\n]|(?:\\.|\$\([^()]*\)|[^\s"'|&;<>()]|"[^"]*"|'[^']*')+""")
_SEPARATORS = ("&&", "||", "|", "&", ";", "\n")
SYNTAX = re.compile(r"[|&;<>$`*?\n]|^time\s")  # characters, and its own word, that need a shell
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)  # the word LR=0.1


class Word(NamedTuple):
    """A word of a command line.

    Attributes:
        text: The word without quotation marks.
        start: Its position in the command line.
        end: Position behind it.
    """

    text: str
    start: int
    end: int


class SimpleCommand(NamedTuple):
    """A command between two operators of the shell, such as `&&`, without redirections.

    Attributes:
        words: Its words.
        opened: Number of subshells that begin before it: 2 for `((python train.py)`.
        closed: Number of subshells that end with it.
    """

    words: list[Word]
    opened: int
    closed: int


class Assignment(NamedTuple):
    """An assignment to a variable in a shell script."""

    name: str
    value: str
    is_exported: bool


def split_words(text: str) -> list[str]:
    """Return the words of a command line.

    Raises:
        SpecError: A quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SpecError([Issue(("command",), f"cannot be read: {error}", source=text)]) from error


def find_call(text: str) -> Call | None:
    """Return the call of a Python script in a command line; None without one.

    Of several, it is the last one with numbers that may be parameters, as in `--lr 0.1`, or else the last one. A `cd FOLDER`
    before it sets its folder, and an `export NAME=VALUE` one of its environment variables.
    """
    return last_call(text, _python_call)


def last_call(text: str, call_in: Callable[[Sequence[str]], Call | None]) -> Call | None:
    """Return the last call with named numbers in a command line, or else the last call; None without one.

    Args:
        text: Command line.
        call_in: Function that returns the call in the words of a simple command, one without operators such as `&&`, or None
            without one. The folder, the positions and the variables are added to the call.
    """
    calls = list(find_calls(text, call_in))
    with_numbers = [call for call in calls if list(settings.named_numbers(shlex.join(call.arguments)))]
    candidates = with_numbers or calls
    return candidates[-1] if candidates else None


def python_commands(text: str) -> dict[str, Call]:
    """Return the commands in a shell script that call a Python script, without redirections, each with its call."""
    return {text[call.start : call.end]: call for call in find_calls(text, _python_call)}


def find_console_call(text: str) -> Call | None:
    """Return the call of a program of a package that is installed here, such as `chemprop train`; None without one.

    Its `script` is an absolute path. Programs that start other programs are left out, and commands of several programs.
    """
    return None if SYNTAX.search(text) else last_call(text, _console_call)


def find_calls(text: str, call_in: Callable[[Sequence[str]], Call | None]) -> Iterator[Call]:
    """Yield the calls in a command line, see `last_call`."""
    folder = PurePath()
    exported: dict[str, str] = {}
    subshells: list[tuple[PurePath, dict[str, str]]] = []  # folder and variables before each open subshell
    for command in simple_commands(text):
        subshells += [(folder, exported)] * command.opened
        words = [word.text for word in command.words]
        if len(words) > 1 and words[0] == "cd":
            folder = folder / words[1]
        elif words and words[0] == "export":
            exported = {**exported, **assignments(words[1:])}
        elif (call := call_in(words)) is not None:
            variables = {**exported, **assignments(leading_words(words))}
            start, end = command.words[0].start, command.words[-1].end
            yield dataclasses.replace(call, folder=folder.as_posix(), start=start, end=end, variables=variables)
        if command.closed:  # the command after a subshell runs in the folder before it
            folder, exported = subshells[-command.closed]
            del subshells[-command.closed :]


def simple_commands(text: str) -> Iterator[SimpleCommand]:
    """Yield the simple commands of a command line."""
    depth = 0  # subshells that are open before the command
    for is_separator, tokens in itertools.groupby(TOKEN.finditer(text), lambda token: token[0] in _SEPARATORS):
        if not is_separator:
            command = _simple_command(tokens, depth)
            depth += command.opened - command.closed
            yield command


def _simple_command(tokens: Iterable[re.Match[str]], depth: int) -> SimpleCommand:
    """Return the simple command of its tokens, before which `depth` subshells are open."""
    words: list[Word] = []
    opened = closed = 0
    is_redirected = False  # words behind `>` are left out
    for token in tokens:
        if token[0] == "(":
            opened += not words  # behind a word, it is that of an array or a function: `sizes=(1 2)`
        elif token[0] == ")":
            closed += depth + opened > closed  # otherwise it is that of an array, a function or a `case`
        elif token[0].endswith(("<", ">")):
            is_redirected = True
        elif not is_redirected:
            words.append(Word(" ".join(split_words(token[0])), *token.span()))
    return SimpleCommand(words, opened, closed)


def _python_call(words: Sequence[str]) -> Call | None:
    """Return the call of a Python script in the words of a simple command; None if it starts another program."""
    has_python = any(re.fullmatch(r"(?:\S*/)?python[\d.]*", word) for word in words)
    for index, word in enumerate(words):
        script_arguments = tuple(words[index + 1 :])
        is_script = word.endswith(".py") and (index > 0 or word.startswith("./"))
        if is_script:
            return Call(os.path.normpath(word), arguments=script_arguments)
        is_module = index > 0 and words[index - 1] == "-m" and has_python
        if is_module and not word.startswith("torch.distributed."):  # whose arguments name the script
            return Call(f"{word.replace('.', '/')}.py", module=word, arguments=script_arguments)
    return None


def _console_call(words: Sequence[str]) -> Call | None:
    """Return the call of an installed program in the words of a simple command; None if it starts another program."""
    program, *script_arguments = words[len(leading_words(words)) :] or [""]
    if not program or PurePath(program).name in _STARTERS:
        return None
    environment_folder = Path(sys.executable).parent
    file = shutil.which(program, path=os.pathsep.join([str(environment_folder), os.environ.get("PATH", "")]))
    if file is None:
        return None
    try:
        with Path(file).open("rb") as stream:
            beginning = _CONSOLE_SCRIPT.match(stream.read(2000).decode(errors="replace"))
    except OSError:  # this user may not read it
        return None
    is_installed_here = beginning is not None and Path(beginning[1]).parent == environment_folder
    return Call(str(Path(file).absolute()), arguments=tuple(script_arguments)) if is_installed_here else None


def leading_words(words: Sequence[str]) -> list[str]:
    """Return the words before the program of a simple command: `env` and assignments such as `LR=0.1`."""
    return list(itertools.takewhile(lambda word: word == "env" or ASSIGNMENT.fullmatch(word), words))


def assignments(words: Iterable[str]) -> dict[str, str]:
    """Return the variables that words like `NAME=VALUE` set, by name. `$NAME` in a value is replaced from `os.environ`."""
    matches = (ASSIGNMENT.fullmatch(word) for word in words)
    return {match[1]: os.path.expandvars(match[2]) for match in matches if match}


def paths_in(text: str) -> tuple[str, ...]:
    """Return the paths in a text that are below a folder: src/train.py."""
    return tuple(dict.fromkeys(_PATH.findall(text)))


def lines(text: str) -> list[str]:
    """Return the lines of a shell script. Continued lines are joined, and each `do` ends a line and is left out."""
    joined_text = re.sub(r"\\\n[ \t]*", " ", text)
    return re.sub(r"(?:^|;)[ \t]*do\b", "\n", joined_text, flags=re.MULTILINE).splitlines()


def assignment(line: str) -> Assignment | None:
    """Return the assignment in a line of a shell script; None if the line sets no variable."""
    match = _SET.match(line)
    return None if match is None else Assignment(match["name"], match["value"], is_exported=bool(match["export"]))


def with_variable_values(text: str, variables: Mapping[str, str]) -> str:
    """Return a part of a shell script with the values of variables in place of `$NAME` and `${NAME}`."""

    def value_of(match: re.Match[str]) -> str:
        """Return the value of a variable without quotation marks; an unknown variable stays as it is."""
        value = variables.get(match[1] or match[2], match[0])
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        return value[1:-1] if is_quoted else value

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value_of, text)
