"""The parameters and the command of a launcher: a command line, a shell script, a Makefile, or an MLproject of MLflow.

The text is only parsed, and nothing is started. The result is a `Script` with the style COMMAND. Its command has a
placeholder {NAME} for each parameter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from trialplane import errors
from trialplane.errors import Issue, SpecError
from trialplane.importing import guess
from trialplane.importing.script import Call, Script, Style
from trialplane.job import arguments, credentials, document, settings
from trialplane.wire.declared import Option

# Installed programs that start another one, or that do not train.
_STARTERS = frozenset({
    "accelerate", "airflow", "dagster", "deepspeed", "dvc", "hatch", "horovodrun", "inv", "invoke", "jupyter",
    "jupyter-nbconvert", "kedro", "mlflow", "modal", "nox", "papermill", "pdm", "pip", "pipenv", "platform", "poetry",
    "prefect", "pytest", "ray", "sky", "snakemake", "torchrun", "tox", "uv", "wandb",
})  # fmt: skip
# The beginning of the program that pip writes for an entry point of a package.
_CONSOLE_SCRIPT = re.compile(r"#!(\S*python[\d.]*)\n(?:#[^\n]*\n|import [^\n]*\n)*from [\w.]+ import \w+\n")
_MLPROJECT = "MLproject"
MAKEFILES = ("Makefile", "makefile", "GNUmakefile")
_TARGETS = ("train", "fit", "training", "run", "main", "all")
_QUOTED = r"""(?:'[^']*'|"[^"]*"|[^\s;&|()'"])*"""  # a word, of which parts may be quoted
_PLAIN = r"[^|&;<>$`*?\n]"  # a character without a meaning for the shell
# make && PYTHONPATH=src make train CONFIG=a.yaml
_MAKE = re.compile(
    rf"(?P<before>(?:{_PLAIN}+(?:&&|;) *)*)(?P<head>(?:env +)?(?:[A-Za-z_]\w*={_QUOTED} +)*)make(?P<words>(?:\s{_PLAIN}*)?)"
)
# Options of make whose value is the next word, or behind `=`.
_MAKE_OPTION = re.compile(
    r"(?P<name>-[A-Za-z]*[CfIoW]|--(?:directory|file|makefile|include-dir|old-file|assume-old|what-if|new-file|assume-new))"
    r"(?:=(?P<value>.*))?"
)
_CHANGES_FOLDER = re.compile(r"\b(?:cd|pushd)\b")
_UNKNOWN_RULES = re.compile(r"^(?:[^\t#=:]*[%$]|-?s?include\b)", re.MULTILINE)  # whose targets are not in the text
_TARGET = re.compile(r"^([\w.-]+)[ \t]*:(?!=)", re.MULTILINE)  # train: data
_MAKE_VARIABLE = re.compile(r"^(?:export[ \t]+)?(\w+)[ \t]*[:?]?=[ \t]*([^\s#$]+)[ \t]*(?:#.*)?$", re.MULTILINE)  # LR ?= 0.1
_MAKE_DEFAULT = re.compile(r"^(?:export[ \t]+)?(\w+)[ \t]*\?=", re.MULTILINE)  # LR of LR ?= 0.1
_SILENT = re.compile(r"#|echo\b|$")  # a line of a recipe that trains nothing
_MAKE_DEFINITION = re.compile(r"^(?:export[ \t]+)?(\w+)[ \t]*[:?+]?=(.*)$", re.MULTILINE)  # FLAGS = --lr $(LR)
_RULE = re.compile(r"(?P<targets>[\w./ -]+):(?![:=])(?P<prerequisites>[^#;]*)")  # train eval: data
_MAKE_REFERENCE = re.compile(r"\$[({](\w+)[)}]")  # $(LR), ${LR}
_MORE_ARGUMENTS = re.compile(r"(?:\w*_)?(?:ARGS|FLAGS|OPTS|EXTRA|PARAMS)")  # usual names of what a user adds to a command
_PATH = re.compile(r"(?<![\w./$-])\w[\w.-]*/[\w./-]*\w")  # src/train.py
_LOOP = re.compile(r"^\s*for\s+(\w+)\s+in\s+([^;\n]+?)\s*(?:;|$)", re.MULTILINE)  # for lr in 0.1 0.01;
_ARRAY = re.compile(r"^\s*(\w+)=\(([^()]*)\)", re.MULTILINE)  # rates=(0.1 0.01)
_ARRAY_VALUES = re.compile(r"""["']?\$\{(\w+)\[[@*]\]\}["']?""")  # "${rates[@]}"
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)\}|(?:\$\(|`)seq\s+(-?\d+)(?:\s+(-?\d+))?(?:\)|`)")  # {1..5}, $(seq 5), $(seq 1 5)
_MOST_VALUES = 100  # of a range
_MOST_COMMANDS = 5  # in a message
_SET = re.compile(rf"\s*(?P<export>export\s+)?(?P<name>\w+)=(?P<value>{_QUOTED})\s*;?\s*(?:#.*)?$")  # export LR="0.1"
# Lines of a shell script that start no program to train.
_NO_PROGRAM = re.compile(
    r"\s*(?:#|\[|$|(?:echo|printf|for|done|if|then|else|elif|fi|while|case|esac|mkdir|rm|set|sleep|wait|local|exit|cd)\b)"
)
_LAST_IN_LIST = re.compile(rf"(?<=[\d.],){settings.NUMBER}(?![\w.,])")  # 64 of 1,1,64
_NAMED = re.compile(r"\{([A-Za-z_][\w.-]*)(?:=([^{}]*))?\}")  # {lr=0.1} of a command line
_VARIABLE = re.compile(r"\$\{(\w+):?[-=]([^${}`]+)\}")  # ${LR:-0.1}
# LR=$1, local lr="${2:-0.1}"
_ARGUMENT = re.compile(
    r"""^\s*(?:export\s+|local\s+)?(\w+)=["']?\$\{?(\d)(?::?-([^${}`]*))?\}?["']?\s*(?:#.*)?$""", re.MULTILINE
)
# An operator of the shell, such as `2>` or `&&`, or a word, of which parts may be quoted or as $(date).
_TOKEN = re.compile(r"""\d?[<>]|&&|\|\||[|&;()\n]|(?:\\.|\$\([^()]*\)|[^\s"'|&;<>()]|"[^"]*"|'[^']*')+""")
_SEPARATORS = ("&&", "||", "|", "&", ";", "\n")
SHELL_SYNTAX = re.compile(r"[|&;<>$`*?\n]|^time\s")  # characters, and its own word, that need a shell
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)  # the word LR=0.1
# Environment variables of libraries and of the system, which are not parameters.
_SYSTEM_VARIABLE = re.compile(
    r"(?:OMP|MKL|OPENBLAS|VECLIB|NUMEXPR|KMP|CUDA|CUBLAS|NCCL|GLOO|ROCR|HIP|PYTORCH|TORCH|TF|XLA|JAX|HF|TRANSFORMERS|TOKENIZERS|"
    r"WANDB|MLFLOW|RAY)_[A-Z0-9_]+|PYTHON[A-Z]+|(?:LOCAL_|NODE_)?RANK|WORLD_SIZE|MASTER_PORT"
)
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
_IN_BACKGROUND = re.compile(rf"(?P<head>(?:env +)?(?:[A-Za-z_]\w*={_QUOTED} +)*)(?P<program>(?:nohup|setsid) +)")
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
_NUMBER_TYPES = ("float", "int")  # types of an MLproject that are also kinds of an option


class _Word(NamedTuple):
    """A word of a command line.

    Attributes:
        text: The word without quotation marks.
        start: Its position in the command line.
        end: Position behind it.
    """

    text: str
    start: int
    end: int


class _SimpleCommand(NamedTuple):
    """A command between two operators of the shell, such as `&&`, without redirections.

    Attributes:
        words: Its words.
        opened: Number of subshells that begin before it: 2 for `((python train.py)`.
        closed: Number of subshells that end with it.
    """

    words: list[_Word]
    opened: int
    closed: int


class _MakeCall(NamedTuple):
    """A call of make in a command line.

    Attributes:
        folder: Folder in which it runs, relative to the one in which the command is typed.
        files: Makefiles that it is given.
        words: Its targets and variables, and its options without a value.
        end: Position behind its last word.
    """

    folder: PurePath
    files: list[str]
    words: list[str]
    end: int


class RecipeCommand(NamedTuple):
    """The command of a Makefile's target that a job runs.

    Attributes:
        text: The command; "" if there is none that a job could run.
        remark: Remark on other commands of the target, which a trial leaves out; "" without any.
    """

    text: str = ""
    remark: str = ""


def is_launcher(file: PurePath) -> bool:
    """Return whether a file is a shell script, a Makefile or an MLproject, by its name."""
    return file.name == _MLPROJECT or is_makefile(file) or file.suffix in settings.SHELLS


def is_makefile(file: PurePath) -> bool:
    """Return whether a file is a Makefile, by its name."""
    return file.name in MAKEFILES or file.suffix == ".mk"


def read(
    text: str,
    name: str,
    *,
    started_commands: Sequence[str] = (),
    requested: Collection[str] = (),
    configs: Sequence[str] = (),
    values: Sequence[Option] = (),
) -> Script:
    """Return the parameters and the command of a launcher.

    Args:
        text: Text of the file.
        name: Path of the file. Its last part shows the kind of the file.
        started_commands: Of a shell script, a `platform init` command for each Python command in it. Errors show them.
        requested: Names of the parameters that the user wants to search.
        configs: Settings files that the commands of a shell script name, in its folder.
        values: Values in them.

    Raises:
        SpecError: The file has no parameters that a job could set, is a Makefile without a target that trains, or cannot be
            read.
    """
    file = PurePath(name)
    if is_makefile(file):
        return _read_makefile(text, name)
    if file.name == _MLPROJECT:
        options, command = _read_mlproject(text, name)
        remedy = "an entry point needs `parameters:` and a command with {NAME}"
    elif loops := _loop_values(text):
        return _loop_script(text, file, loops)
    else:
        options, command = _read_shell_script(text, file)
        remedy = "write LR=${LR:-0.1}, or LR=${1:-0.1}, for each value to search"
    text_options = _replaceable_options(text, name, options, requested)
    # Trials replace the values in copies of the script and of its settings files.
    files = [*([file.name] if text_options else []), *configs]
    own_names = {option.name for option in (*options, *text_options)}
    file_options = [*text_options, *(option for option in values if option.name not in own_names)]
    if not options and not file_options:
        raise _no_options_error(name, "; or ".join(filter(None, (remedy, started_remedy(started_commands)))))
    return Script(
        Style.COMMAND,
        (*options, *file_options),
        config=files[0] if files else "",
        further_configs=tuple(files[1:]),
        command=tuple(command),
        paths=tuple(dict.fromkeys(_PATH.findall(text))),
        notes=tuple(secret_notes(text)),
    )


def _no_options_error(name: str, remedy: str) -> SpecError:
    """Return the error for a launcher without parameters."""
    return SpecError([Issue(("script",), f"has no parameters; {remedy}", source=name)])


def _replaceable_options(text: str, name: str, declared: Sequence[Option], requested: Collection[str]) -> list[Option]:
    """Return the values in the text of a shell script that trials replace in a copy of it; [] for another launcher.

    They are the requested values, and all numbers if the script declares nothing that is worth a search.
    """
    if PurePath(name).suffix not in settings.SHELLS:
        return []
    declared_keys, requested_keys = {_key(option.name) for option in declared}, set(map(_key, requested))
    needs_numbers = not guess.space(declared)
    options = []
    for value_name, value in settings.values(text, name).items():
        if isinstance(value, str):  # `true` is a boolean, as it is for --space
            option = Option(value_name, document.scalar(value, name))
        else:
            option = _option(value_name, str(value))
        is_requested = _key(value_name) in requested_keys
        is_number = option.kind != "str"
        if _key(value_name) not in declared_keys and (is_requested or (needs_numbers and is_number)):
            options.append(option)
    return options


def _split_words(text: str) -> list[str]:
    """Return the words of a command line.

    Raises:
        SpecError: A quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SpecError([Issue(("command",), f"cannot be read: {error}", source=text)]) from error


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
    keys = {_key(name): name for name in names}
    texts_by_name: dict[str, list[tuple[_Word, str, str]]] = {}  # a word, its part before the value, and the value
    for command in _simple_commands(text):
        if call is not None and command.words and command.words[0].start != call.start:
            continue
        program = len(_leading_words([word.text for word in command.words]))
        for word in command.words[:program] if call is None else ():  # a Python script shows which variables it reads
            variable, _, value = word.text.partition("=")
            if _key(variable) in keys:
                texts_by_name.setdefault(variable, []).append((word, f"{variable}=", value))
        words = command.words[program + 1 :]
        for word, next_word in itertools.zip_longest(words, words[1:]):
            flag, equals, value = word.text.partition("=")
            name = keys.get(_key(flag.lstrip("-+")), "")
            has_flag = flag.startswith("-")
            is_declared = has_flag and call is not None
            if name and equals:
                texts_by_name.setdefault(name, []).append((word, f"{flag}=", "" if is_declared else value))
            elif name and has_flag and next_word:
                texts_by_name.setdefault(name, []).append((next_word, "", "" if is_declared else next_word.text))
    spans: list[tuple[int, int, str]] = []  # start and end of a word, and its replacement
    for name, texts in texts_by_name.items():
        values = {value for *_, value in texts}
        if len(values) == 1 and (placeholder := _text_placeholder(name, values.pop())):
            spans += [(word.start, word.end, f"{before}{placeholder}") for word, before, _ in texts]
    for start, end, replacement in sorted(spans, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def with_code_values(text: str, names: Collection[str]) -> str:
    """Return a command line with {NAME=VALUE} for values in the code of `python -c CODE`: `train(lr=0.1)`.

    Args:
        text: Command line.
        names: Names of the values; none for all numbers.
    """
    code = _PYTHON_CODE.search(text)
    if code is None:
        return text
    keys = set(map(_key, names))
    with contextlib.suppress(ValueError):  # it is not Python
        values = settings.values(code["code"], ".py")
        for name, (start, end) in sorted(settings.named_spans(code["code"], ".py"), key=lambda pair: -pair[1][0]):
            value, old = values[name], code["code"][start:end]
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            placeholder = f"{{{name}={old}}}" if is_number else _text_placeholder(name, str(value))
            if placeholder and (_key(name) in keys if names else is_number):
                old_text = old if is_number else old[1:-1]  # the quotes of a text stay
                place = code.start("code") + start + old.index(old_text)
                text = f"{text[:place]}{placeholder}{text[place + len(old_text) :]}"
    return text


def _text_placeholder(name: str, value: str) -> str:
    """Return {NAME=VALUE} for a text without spaces, quotation marks or syntax of the shell; "" for a flag, and others."""
    is_plain = re.fullmatch(r"(?!-)[\w./:@+-]+", value) is not None
    return f"{{{name}={value}}}" if is_plain and isinstance(_value(value), str) else ""


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


def script_without_arguments(text: str) -> str:
    """Return the Python script that a command line starts without arguments, as `python train.py` does.

    "" if it has arguments, or starts another program.
    """
    program, *words = _split_words(text)
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
    words = _split_words(text[program.end() :])
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


def find_call(text: str) -> Call | None:
    """Return the call of a Python script in a command line; None without one.

    If there are several, it is the last one with numbers, or else the last one. A `cd FOLDER` before it sets its folder, and
    an `export NAME=VALUE` one of its environment variables.
    """
    return last_call(text, _python_call)


def last_call(text: str, call_in: Callable[[Sequence[str]], Call | None]) -> Call | None:
    """Return the last call with numbers in a command line, or else the last one; None without one.

    Args:
        text: Command line.
        call_in: Function that returns the call in the words of a simple command, one without operators such as `&&`, or None
            without one. The folder, the positions and the variables are added to the call.
    """
    calls = list(_calls(text, call_in))
    with_numbers = [call for call in calls if list(settings.named_numbers(shlex.join(call.arguments)))]
    candidates = with_numbers or calls
    return candidates[-1] if candidates else None


def python_commands(text: str) -> dict[str, Call]:
    """Return the commands in a shell script that call a Python script, without redirections, each with its call."""
    return {text[call.start : call.end]: call for call in _calls(text, _python_call)}


def _calls(text: str, call_in: Callable[[Sequence[str]], Call | None]) -> Iterator[Call]:
    """Yield the calls in a command line, see `last_call`."""
    folder = PurePath()
    exported: dict[str, str] = {}
    subshells: list[tuple[PurePath, dict[str, str]]] = []  # folder and variables before each open subshell
    for command in _simple_commands(text):
        subshells += [(folder, exported)] * command.opened
        words = [word.text for word in command.words]
        if len(words) > 1 and words[0] == "cd":
            folder = folder / words[1]
        elif words and words[0] == "export":
            exported = {**exported, **_assignments(words[1:])}
        elif (call := call_in(words)) is not None:
            variables = {**exported, **_assignments(_leading_words(words))}
            start, end = command.words[0].start, command.words[-1].end
            yield dataclasses.replace(call, folder=folder.as_posix(), start=start, end=end, variables=variables)
        if command.closed:  # the command after a subshell runs in the folder before it
            folder, exported = subshells[-command.closed]
            del subshells[-command.closed :]


def _simple_commands(text: str) -> Iterator[_SimpleCommand]:
    """Yield the simple commands of a command line."""
    depth = 0  # subshells that are open before the command
    for is_separator, tokens in itertools.groupby(_TOKEN.finditer(text), lambda token: token[0] in _SEPARATORS):
        if not is_separator:
            command = _simple_command(tokens, depth)
            depth += command.opened - command.closed
            yield command


def _simple_command(tokens: Iterable[re.Match[str]], depth: int) -> _SimpleCommand:
    """Return the simple command of its tokens, before which `depth` subshells are open."""
    words: list[_Word] = []
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
            words.append(_Word(" ".join(_split_words(token[0])), *token.span()))
    return _SimpleCommand(words, opened, closed)


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


def find_console_call(text: str) -> Call | None:
    """Return the call of a program of a package that is installed here, such as `chemprop train`; None without one.

    Its `script` is an absolute path. Programs that start other programs are left out, and commands of several programs.
    """
    return None if SHELL_SYNTAX.search(text) else last_call(text, _console_call)


def _console_call(words: Sequence[str]) -> Call | None:
    """Return the call of an installed program in the words of a simple command; None if it starts another program."""
    program, *script_arguments = words[len(_leading_words(words)) :] or [""]
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


def _leading_words(words: Sequence[str]) -> list[str]:
    """Return the words before the program of a simple command: `env` and assignments such as `LR=0.1`."""
    return list(itertools.takewhile(lambda word: word == "env" or _ASSIGNMENT.fullmatch(word), words))


def _assignments(words: Iterable[str]) -> dict[str, str]:
    """Return the variables that words like `NAME=VALUE` set, by name. `$NAME` in a value is replaced from `os.environ`."""
    matches = (_ASSIGNMENT.fullmatch(word) for word in words)
    return {match[1]: os.path.expandvars(match[2]) for match in matches if match}


def parse_command_line(
    text: str,
    *,
    configs: Sequence[str] = (),
    values: Sequence[Option] = (),
    call: Call | None = None,
    started_commands: Sequence[str] = (),
) -> Script:
    """Return the parameters and the command of a command line that a user types.

    The parameters are the numbers that follow the names of options, and those that are written as {lr=0.1}. If there is a
    call, further arguments can be appended to the command: they become arguments of the called script.

    Args:
        text: Command line.
        configs: Settings files that it names.
        values: Values in these files.
        call: Call of a Python script in the command line.
        started_commands: See `read`, for a shell script in the command line.

    Raises:
        SpecError: There are no parameters, and no script that could declare some.
    """
    if loops := _loop_values(text):  # typed as `for lr in 0.1 0.01; do python train.py --lr $lr; done`
        return _loop_script(text, PurePath("command"), loops)
    starts_shell = SHELL_SYNTAX.search(text) is not None
    if call is not None and starts_shell:  # the shell gets the further arguments, and passes them on as "$@"
        text = f'{text[: call.end]} "$@"{text[call.end :]}'
    command, options = number_placeholders(text, convert=_with_placeholders)
    for name, default in _NAMED.findall(text):
        options.setdefault(name, _option(name, default or None, required=not default))
    if not options and not configs and call is None:
        raise no_parameters_error(text, started_commands)
    words = ["bash", "-c", command] if SHELL_SYNTAX.search(command) else _split_words(command)
    if call is not None and starts_shell:
        words.append("bash")  # $0 of the shell, which comes before the arguments of "$@"
    if re.match(r"\w+=", words[0]):  # an assignment before the program, which only `env` understands without a shell
        words = ["env", *words]
    file_options = [option for option in values if option.name not in options]
    return Script(
        Style.COMMAND,
        (*options.values(), *file_options),
        config=configs[0] if configs else "",
        further_configs=tuple(configs[1:]),
        command=tuple(words),
        call=call,
    )


def has_parameters(text: str) -> bool:
    """Return whether a command line has named numbers, or values in braces, that are parameters."""
    _, options = number_placeholders(text)
    return bool(options or _NAMED.search(text))


def number_placeholders(text: str, convert: Callable[[str], str] = str) -> tuple[str, dict[str, Option]]:
    """Return a command line with placeholders for the numbers that follow the names of options, and the options.

    Args:
        text: Command line.
        convert: Function that returns the other parts of the command line as parts of a job's command.
    """
    options: dict[str, Option] = {}
    pieces, copied = [], 0  # pieces of the command, which stand for `text` up to the index `copied`
    for name, (start, end) in settings.named_numbers(text):
        if _SYSTEM_VARIABLE.fullmatch(name):
            continue
        options.setdefault(name, _option(name, text[start:end]))
        pieces += [convert(text[copied:start]), f"{{{name}}}"]
        copied = end
    return "".join([*pieces, convert(text[copied:])]), options


def with_positions(command: Script, options: Mapping[int, Option]) -> Script:
    """Return a command that calls a Python script, with parameters in place of arguments of the script.

    Args:
        command: The command, with a call.
        options: The parameters, by the index of the argument. An index beyond the last argument appends one. The flag of an
            option, as the `-b` of `-b16`, stays before its value.
    """
    assert command.call is not None
    count, words = len(command.call.arguments), list(command.command)
    placeholders = {index: f"{option.flag}{{{option.name}}}" for index, option in sorted(options.items())}
    replacements = {index: text for index, text in placeholders.items() if index < count}
    appended = [text for index, text in placeholders.items() if index >= count]
    if words[:2] == ["bash", "-c"]:  # the arguments are the last words before those that the shell gets as "$@"
        head, all_arguments, tail = words[2].rpartition(' "$@"')
        spans = [token.span() for token in _TOKEN.finditer(head)][-count:] if count else []
        for index in reversed(replacements):  # the last one first, as a replacement moves those behind it
            start, end = spans[index]
            head = head[:start] + replacements[index] + head[end:]
        words[2] = " ".join([head, *appended]) + all_arguments + tail
    else:
        first = len(words) - count
        for index, text in replacements.items():
            words[first + index] = text
        words += appended
    names = {option.name for option in options.values()}
    others = [option for option in command.options if option.name not in names]
    return dataclasses.replace(command, command=tuple(words), options=(*others, *options.values()))


def with_names(command: Script, options: Mapping[str, Option]) -> Script:
    """Return a command with other parameters in place of some of its own, by their names; their values stay as typed."""
    names = {name: option.name for name, option in options.items()}
    words = tuple(arguments.renamed(word, names) for word in command.command)
    renamed = [dataclasses.replace(option, name=names.get(option.name, option.name)) for option in command.options]
    return dataclasses.replace(command, command=words, options=tuple(renamed))


def with_variables(command: Script, options: Sequence[Option]) -> Script:
    """Return a command that also sets environment variables, which are parameters.

    Where the command itself sets one of them, as `MODEL=small python train.py` does, the parameter replaces the value there.
    """
    words, assignments, variables = list(command.command), [], []
    for option in options:
        if command.call is not None and option.name in command.call.variables:
            words = _with_assigned_parameter(words, command.call, option.name)
            option = with_default(option, command.call.variables[option.name])
        else:
            assignments.append(f"{option.name}={{{option.name}}}")
        variables.append(option)
    if assignments:
        words = ["env", *assignments, *(words[1:] if words[0] == "env" else words)]
    return dataclasses.replace(command, command=tuple(words), options=(*command.options, *variables))


def _with_assigned_parameter(words: Sequence[str], call: Call, name: str) -> list[str]:
    """Return the words of a command with a parameter in place of the value that it assigns to an environment variable.

    Words behind the script are its arguments, and stay.
    """
    assignment = f"{name}={{{name}}}"
    if words[:2] == ["bash", "-c"]:
        head, script, tail = words[2].partition(call.module or call.script)
        pattern = rf"(?<![\w$.-]){name}=(?:\"[^\"]*\"|'[^']*'|[^\s\"';&|])*"  # LR=0.1, LR="0.1"
        return ["bash", "-c", f"{re.sub(pattern, assignment, head)}{script}{tail}", *words[3:]]
    leading_words = _leading_words(words)
    new_words = [assignment if word.startswith(f"{name}=") else word for word in leading_words]
    return [*new_words, *words[len(leading_words) :]]


def with_default(option: Option, text: str) -> Option:
    """Return an option whose default is the value that a text in a command stands for, and which is not required.

    It keeps its kind if both the kind and the value are numbers. Otherwise it gets the kind of the value, see `_option`.
    """
    typed = _option(option.name, text)
    are_numbers = option.kind in _NUMBER_TYPES and typed.kind in _NUMBER_TYPES
    kind = option.kind if are_numbers else typed.kind
    return dataclasses.replace(option, default=typed.default, kind=kind, required=False)


def no_parameters_error(command: str, started_commands: Sequence[str] = ()) -> SpecError:
    """Return the error for a command line without parameters.

    Its example is the command itself if that has a list of numbers, such as `1,1,64`. Otherwise, the error suggests the
    commands that its shell script starts, if any.
    """
    match, example = _LAST_IN_LIST.search(command), "python train.py --lr 0.1"
    if match is not None:
        example = f"{command[: match.start()]}{{NAME={match[0]}}}{command[match.end() :]}"
    remedy = "write `--lr 0.1`, `lr=0.1` or {lr=0.1} where a value goes that the program reads"
    remedy = f"{remedy}, as in `platform init --from {shlex.quote(example)}`"
    if match is None:
        remedy = started_remedy(started_commands) or remedy
    return SpecError([Issue(("command",), f"has no named numbers that could be parameters; {remedy}", source=command)])


def started_remedy(commands: Sequence[str]) -> str:
    """Return the clause that names commands for the Python commands of a shell script; "" without any."""
    shown_commands = (f"`{command}`" for command in commands[:_MOST_COMMANDS])
    return f"give a Python command that its shell script starts: {' or '.join(shown_commands)}" if commands else ""


def _loop_values(text: str) -> dict[str, tuple[Any, ...]]:
    """Return the values of each variable of a loop in a shell script, as of `for lr in 0.1 0.01; do`, by variable.

    The values may also be a range or an array. Empty without a loop over several values, or if the values of a loop are not
    in the text.
    """
    arrays = dict(_ARRAY.findall(text))
    lines = shell_lines(text)
    variables = {match["name"]: match["value"] for line in lines if (match := _SET.match(line))}
    loops = {}
    for name, values_text in _LOOP.findall("\n".join(lines)):
        if array := _ARRAY_VALUES.fullmatch(values_text):  # "${rates[@]}"
            values_text = arrays.get(array[1], values_text)
        elif (limits := _RANGE.fullmatch(values_text)) is not None:  # {1..5}, or $(seq 5), which begins at 1
            *first, last = [int(number) for number in limits.groups() if number is not None]
            numbers = range(first[0] if first else 1, last + 1)
            values_text = " ".join(map(str, numbers[:_MOST_VALUES]))
        values_text = with_variable_values(values_text, variables)
        if set(values_text) & set("$*{}`"):  # only the shell knows the values
            return {}
        loops[name] = tuple(_value(word) for word in values_text.split())
    return loops if any(len(values) > 1 for values in loops.values()) else {}


def _loop_script(text: str, file: PurePath, loops: Mapping[str, tuple[Any, ...]]) -> Script:
    """Return one command that runs the commands in the loops of a shell script once, and the loops' variables as options.

    The values of a loop are the choices of its option. Other variables of the script are replaced by their values.
    Redirections of output to files are left out, as metrics are read from the output.

    Raises:
        SpecError: No command uses the variables of the loops.
    """
    command_line = _command_of_loops(text, {name: f"{{{name}={values[0]}}}" for name, values in loops.items()})
    if not command_line:
        raise SpecError([Issue(("script",), "has loops whose variables no command uses", source=str(file))])
    command_line, secrets = credentials.extract(command_line)
    call = find_call(command_line)
    if call is not None:  # its arguments get the first values of the loops
        call = dataclasses.replace(call, arguments=tuple(_NAMED.sub(r"\2", word) for word in call.arguments))
    script = parse_command_line(command_line, call=call)
    # The values of a loop become choices.
    options = []
    for option in script.options:
        values = loops.get(option.name, ())
        options.append(dataclasses.replace(option, choices=values) if len(values) > 1 else option)
    words = list(script.command)
    if command_line.startswith("cd "):  # then words are `bash -c COMMAND $0`, and `cd $(dirname $0)` needs the script's name
        words[3:] = [file.name]
    return dataclasses.replace(
        script,
        options=tuple(options),
        command=tuple(words),
        paths=tuple(dict.fromkeys(_PATH.findall(text))),
        notes=tuple(secret_notes(text, secrets)),
    )


def _command_of_loops(text: str, loop_values: Mapping[str, str]) -> str:
    """Return the commands in the loops of a shell script as one command line; "" if none uses a variable of a loop.

    Args:
        text: Text of the script.
        loop_values: Text in place of each variable of a loop, such as `{lr=0.1}`.
    """
    variables = dict(loop_values)
    exports: list[str] = []  # assignments before each command
    folder_changes: list[str] = []  # the `cd` commands
    commands: list[str] = []  # those that use variables of the loops
    for line in shell_lines(text):
        if (match := _SET.match(line)) is not None:
            name, value = match["name"], with_variable_values(match["value"], variables)
            variables[name] = value
            if match["export"]:
                exports.append(f"{name}={value} ")
        elif re.match(r"\s*cd\b", line):
            folder_changes.append(with_variable_values(line.strip().rstrip(";"), variables))
        elif not _NO_PROGRAM.match(line):
            without_redirections = re.sub(r"\s*(?:>|2>|\||;|&\s*$).*", "", line).strip()
            command = with_variable_values(without_redirections, variables)
            if any(value in command for value in loop_values.values()):
                commands.append(command)
    prefix = "".join(exports)
    command_line = [*folder_changes, *(prefix + command for command in dict.fromkeys(commands))]
    return " && ".join(command_line) if commands else ""


def secret_notes(text: str, in_command: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Yield a remark on each secret in the text of a file, which is uploaded with the job.

    Args:
        text: The text.
        in_command: Secrets of the command that is made of it, by the environment variable from which it reads each one.
    """
    _, in_text = credentials.extract(text)
    name_by_secret = {secret: name for name, secret in in_text.items()}
    variable_by_secret = name_by_secret | {secret: variable for variable, secret in in_command.items()}
    for secret, variable in variable_by_secret.items():
        name = name_by_secret.get(secret, variable)
        yield (
            f"sets {name}, which looks like a secret, and the file is uploaded with the job: remove it there, and type "
            f"`export {variable}=…` before `platform submit`"
        )


def shell_lines(text: str) -> list[str]:
    """Return the lines of a shell script. Continued lines are joined, and each `do` ends a line and is left out."""
    joined_text = re.sub(r"\\\n[ \t]*", " ", text)
    return re.sub(r"(?:^|;)[ \t]*do\b", "\n", joined_text, flags=re.MULTILINE).splitlines()


class Assignment(NamedTuple):
    """An assignment to a variable in a shell script."""

    name: str
    value: str


def assignment(line: str) -> Assignment | None:
    """Return the assignment in a line of a shell script; None if the line sets no variable."""
    match = _SET.match(line)
    return None if match is None else Assignment(name=match["name"], value=match["value"])


def with_variable_values(text: str, variables: Mapping[str, str]) -> str:
    """Return a part of a shell script with the values of variables in place of `$NAME` and `${NAME}`."""

    def value_of(match: re.Match[str]) -> str:
        """Return the value of a variable without quotation marks; an unknown variable stays as it is."""
        value = variables.get(match[1] or match[2], match[0])
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        return value[1:-1] if is_quoted else value

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value_of, text)


def _with_placeholders(text: str) -> str:
    """Return a part of a command line as a part of a job's command: {lr=0.1} becomes {lr}, and other braces are doubled."""
    pieces, copied = [], 0  # pieces of the command, which stand for `text` up to the index `copied`
    for match in _NAMED.finditer(text):
        pieces += [arguments.escaped(text[copied : match.start()]), f"{{{match[1]}}}"]
        copied = match.end()
    return "".join([*pieces, arguments.escaped(text[copied:])])


def _key(name: str) -> str:
    """Return a name as it is compared, in lower case and with underscores."""
    return name.lower().replace("-", "_")


def made_command(command: str, makefile: str) -> RecipeCommand:
    """Return the command with parameters that `make` or `make TARGET` stands for; an empty one for any other command.

    Commands before it, as of `make && make run`, stay as they are. The parameters are the numeric variables in the target's
    recipe, given to make, or else the arguments of a command in the recipe. Variables before `make` are also before that
    command, and those that make gets have their values there. A command of make with numbers stays as it is: these are the
    parameters.

    Args:
        command: Command line.
        makefile: Text of the Makefile; "" without one.
    """
    match = _MAKE.fullmatch(command)  # with the groups `make && `, `PYTHONPATH=src ` and ` train CONFIG=a.yaml`
    if match is None or not makefile or has_parameters(command) or _CHANGES_FOLDER.search(match["before"]):
        return RecipeCommand()
    words = _split_words(match["words"])
    typed = _assignments(words)
    names = [word for word in words if not _ASSIGNMENT.fullmatch(word)]
    targets = _targets(makefile)
    target = names[0] if names else next(iter(targets), "")
    if len(names) > 1 or target not in targets:
        return RecipeCommand()
    if variables := _make_variables(makefile, target):
        defaults = {option.name: option.default for option in variables if option.name not in typed}
        assignments = [f"{name}={value}" for name, value in {**typed, **defaults}.items()]
        return RecipeCommand(match["before"] + match["head"] + shlex.join(["make", target, *assignments]))
    recipe_command = _recipe_command(makefile, target, typed)
    if not recipe_command.text:
        return recipe_command
    text = f"{match['head']}{recipe_command.text}"
    if match["head"] and set(recipe_command.text) & set("&|;"):  # of which only the first command would get the variables
        text = f"export {match['head'].removeprefix('env ').strip()} && {recipe_command.text}"
    return recipe_command._replace(text=f"{match['before']}{text}")


def makefiles(command: str) -> list[PurePath]:
    """Return the paths that the Makefile of the last make in a command may have; [] without a make."""
    calls = list(_make_calls(command))
    return [calls[-1].folder / name for name in (calls[-1].files[-1:] or MAKEFILES)] if calls else []


def with_make_variables(command: str, makefile: str, names: Collection[str]) -> str:
    """Return a command that gives its last make those of some variables of a Makefile that it lacks, with their values.

    Variables before that make stay there if the Makefile reads them, as in `KIND ?= rbf`. If it has a value of its own, as
    in `KIND = rbf`, they have no effect, and are left out. Names of numbers behind that make are left out, as these are
    parameters of another program.

    Args:
        command: Command line.
        makefile: Text of the Makefile.
        names: Names of variables.
    """
    calls = list(_make_calls(command))
    if not calls:
        return command
    head, rest = command[: calls[-1].end], command[calls[-1].end :]
    _, others = number_placeholders(rest)
    values = _first_values(_MAKE_VARIABLE.findall(makefile))
    own_names = set(values) - set(_MAKE_DEFAULT.findall(makefile))  # that the environment does not change
    set_names = _assignments(calls[-1].words).keys() | others.keys()
    for name in (name for name in values if name in names and name not in set_names):
        before_make = re.search(rf"(?<!\S){name}=\S+\s+(?=(?:[A-Za-z_]\w*=\S+\s+)*make\b)", head)
        if before_make is None or name in own_names:
            start, end = before_make.span() if before_make else (0, 0)
            head = f"{head[:start]}{head[end:]} {name}={shlex.quote(values[name])}"
    return head + rest


def _make_calls(command: str) -> Iterator[_MakeCall]:
    """Yield the calls of make in a command line."""
    for call in _calls(command, _make_call):
        folder, files, words = PurePath(call.folder), [], []
        rest = iter(call.arguments)
        for word in rest:
            option = _MAKE_OPTION.fullmatch(word)
            if option is None:
                words.append(word)
                continue
            value = next(rest, "") if option["value"] is None else option["value"]
            if option["name"].endswith(("C", "directory")):
                folder /= value
            elif re.fullmatch(r"-\w*f|--(?:make)?file", option["name"]):
                files.append(value)
        yield _MakeCall(folder, files, words, call.end)


def _make_call(words: Sequence[str]) -> Call | None:
    """Return the call of make in the words of a simple command; None if it starts another program."""
    program, *make_arguments = words[len(_leading_words(words)) :] or [""]
    return Call(program, arguments=tuple(make_arguments)) if PurePath(program).name in ("make", "gmake") else None


def unmade_names(command: str, makefile: str) -> list[str]:
    """Return the names after `make` for which a Makefile of the working directory has no rule.

    [] for any other command, and if the Makefile may have rules that its text does not show.

    Args:
        command: Command line.
        makefile: Text of the Makefile; "" without one.
    """
    calls = list(_make_calls(command))
    is_make_alone = len(calls) == 1 and _MAKE.fullmatch(command) is not None and calls[0].folder == PurePath()
    if not is_make_alone or calls[0].files or _UNKNOWN_RULES.search(makefile):
        return []
    names = [word for word in calls[0].words if not word.startswith("-") and not _ASSIGNMENT.fullmatch(word)]
    rules = (rule for line in makefile.splitlines() if (rule := _RULE.match(line)) is not None)
    made_names = {target for rule in rules for target in rule["targets"].split()}
    return [name for name in names if name not in made_names]


def training_target(makefile: str) -> str:
    """Return the target of a Makefile that trains by its name, or else the first one; "" without a target."""
    targets = _targets(makefile)
    return _training_target(targets) or next(iter(targets), "")


def makefile_command(makefile: str) -> RecipeCommand:
    """Return the command that trains, in the recipe of a Makefile; an empty one if make itself gets the parameters."""
    target = _training_target(_targets(makefile))
    is_recipe = bool(target) and not _make_variables(makefile, target)
    return _recipe_command(makefile, target) if is_recipe else RecipeCommand()


def _targets(makefile: str) -> list[str]:
    """Return the targets of a Makefile, in their order, without those of make itself such as `.PHONY`."""
    return [target for target in dict.fromkeys(_TARGET.findall(makefile)) if not target.startswith(".")]


def _training_target(targets: Collection[str]) -> str:
    """Return the first target with a name in `_TARGETS`; "" without one."""
    return next((target for target in _TARGETS if target in targets), "")


def _make_variables(text: str, target: str) -> list[Option]:
    """Return the numeric variables of a Makefile that `make TARGET` uses, by name or in the value of another variable."""
    definitions = _first_values(_MAKE_DEFINITION.findall(text))
    prerequisites, recipe = _make_commands(text, target)
    names = _MAKE_REFERENCE.findall("\n".join([*prerequisites, *recipe]))
    for name in names:  # the list grows while it is read
        names += [other for other in _MAKE_REFERENCE.findall(definitions.get(name, "")) if other not in names]
    options = [_option(name, value) for name, value in _first_values(_MAKE_VARIABLE.findall(text)).items()]
    return [option for option in options if option.kind in ("int", "float") and option.name in names]


def _make_commands(text: str, target: str) -> tuple[list[str], list[str]]:
    """Return the commands that make runs for the prerequisites of a target, and those of the target's own recipe."""
    prerequisites: dict[str, list[str]] = {}  # by target
    recipes: dict[str, list[str]] = {}
    rule_targets: list[str] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.startswith("\t"):
            for name in rule_targets:
                recipes[name].append(line.strip().lstrip("@-"))  # make removes these marks, too
        elif (match := _RULE.match(line)) is not None:
            rule_targets = match["targets"].split()
            for name in rule_targets:
                prerequisites.setdefault(name, []).extend(match["prerequisites"].split())
                recipes.setdefault(name, [])
    names = [target]
    for name in names:  # the list grows while it is read
        names += [other for other in prerequisites.get(name, ()) if other in recipes and other not in names]
    # In make's order, but for prerequisites of the same target.
    return [line for name in reversed(names[1:]) for line in recipes[name]], recipes.get(target, [])


def _recipe_command(text: str, target: str, typed: Mapping[str, str] | None = None) -> RecipeCommand:
    """Return the command in the recipe of a Makefile's target that trains, with the values of variables filled in.

    It is the last one of a Python script with named numbers, or else the last one with named numbers, or else the last one
    of a Python script. It is empty if there is no such command, or if it has other variables.

    Args:
        text: Text of the Makefile.
        target: Target.
        typed: Variables that make gets, which replace those of the Makefile.
    """
    values = {**_first_values(_MAKE_VARIABLE.findall(text)), **(typed or {})}

    def value(reference: re.Match[str]) -> str:
        """Return the value of a variable, which for ARGS in `$(ARGS)` is empty unless it is set; else the reference."""
        name = reference[1]
        # For one target, below an `ifdef`, in an included file, or in the environment.
        in_text = rf"\b{name}\s*[:?+!]*=|^[ \t]*[-s]?include\b|\bdefine\b"
        may_be_set = name in os.environ or re.search(in_text, text, re.MULTILINE)
        return values.get(name, reference[0] if may_be_set or not _MORE_ARGUMENTS.fullmatch(name) else "")

    def with_values(lines: Sequence[str]) -> list[str]:
        """Return the lines that may train, with the values of variables."""
        loud_lines = [line for line in lines if not _SILENT.match(line)]
        return [_MAKE_REFERENCE.sub(value, line).rstrip() for line in loud_lines]

    prerequisites, recipe = map(with_values, _make_commands(text, target))
    commands = [line for line in reversed(recipe) if "$" not in line]
    calls = [line for line in commands if find_call(line) is not None]
    with_numbers = [line for line in (*calls, *commands) if list(settings.named_numbers(line))]
    command = next(iter([*with_numbers, *calls]), "")
    others = [line for line in (*prerequisites, *recipe) if line != command]
    if not command or not others:
        return RecipeCommand(command)
    shown_commands = errors.shortened(credentials.extract(" and ".join(f"`{line}`" for line in others))[0], 200)
    return RecipeCommand(command, remark=f"`make {target}` also runs {shown_commands}, which trials leave out")


def _read_makefile(text: str, name: str) -> Script:
    """Return the command that makes the first target with a name in `_TARGETS`, and its parameters.

    It is `make` with the numeric variables of the target, or without any a command of its recipe that has named numbers.

    Raises:
        SpecError: No target has a name in `_TARGETS`, as one with another name could deploy or delete something; or there
            are no parameters.
    """
    targets = _targets(text)
    target = _training_target(targets)
    if not target:
        choice = f"; its targets are {errors.shortened(', '.join(targets), 200)}" if targets else ""
        remedy = "name the one that trains: `platform init --from 'make TARGET LR=0.1'`"
        message = f"has no target {', '.join(_TARGETS[:-1])} or {_TARGETS[-1]}{choice}; {remedy}"
        raise SpecError([Issue(("script",), message, source=name)])
    if options := _make_variables(text, target):
        command = ("make", target, *(f"{option.name}={{{option.name}}}" for option in options))
        paths = tuple(dict.fromkeys(_PATH.findall(text)))
        return Script(Style.COMMAND, tuple(options), command=command, paths=paths, notes=tuple(secret_notes(text)))
    recipe_command = _recipe_command(text, target)
    if not recipe_command.text:
        remedy = "write LR ?= 0.1 at its top, and $(LR) in the recipe, for each value to search, or give them to make, as in"
        raise _no_options_error(name, f"{remedy} `platform init --from 'make train LR=0.1'`")
    line, secrets = credentials.extract(recipe_command.text)
    script = parse_command_line(line, call=find_call(line))
    notes = (*secret_notes(text, secrets), *filter(None, [recipe_command.remark]))
    return dataclasses.replace(script, notes=notes)


def _first_values(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the first value of each name."""
    value_by_name: dict[str, str] = {}
    for name, value in pairs:
        value_by_name.setdefault(name, value)
    return value_by_name


def _read_shell_script(text: str, file: PurePath) -> tuple[list[Option], list[str]]:
    """Return the parameters of a shell script, and the command that starts it.

    The parameters are variables with a default, as ${LR:-0.1}, and arguments that are assigned to variables, as LR=$1.
    """
    by_position: dict[int, Option] = {}
    for name, position, default in _ARGUMENT.findall(text):
        by_position.setdefault(int(position), _option(name, default, required=not default))
    # Those from $1 on without a gap.
    positional = [by_position[index] for index in itertools.takewhile(by_position.__contains__, itertools.count(1))]
    excluded_names = {option.name for option in positional}
    defaults = {name: default for name, default in _first_values(_VARIABLE.findall(text)).items() if not name.isdigit()}
    variables = [_option(name, default) for name, default in defaults.items() if name not in excluded_names]
    command = ["env", *(f"{option.name}={{{option.name}}}" for option in variables)] if variables else []
    command += ["sh" if re.match(r"#!\S*(?:/|env )sh\b", text) else "bash", file.name]
    return [*variables, *positional], [*command, *(f"{{{option.name}}}" for option in positional)]


def _read_mlproject(text: str, name: str) -> tuple[list[Option], list[str]]:
    """Return the parameters and the command of an MLproject's entry point `main`, or of its only one.

    Both are empty if there is no such entry point, or if its command has a {NAME} that is not one of the parameters.
    """
    match document.parse(text, name).data:
        case {"entry_points": {"main": entry_point}}:
            pass
        case {"entry_points": dict(entry_points)} if len(entry_points) == 1:
            [entry_point] = entry_points.values()
        case _:
            return [], []
    match entry_point:
        case {"command": str(raw_command), "parameters": dict(parameters)}:
            command, _ = credentials.extract(raw_command)
        case _:
            return [], []
    names = set(re.findall(r"\{([\w-]+)\}", command))  # {lr}, {batch-size}
    options = []
    for parameter, declaration in parameters.items():
        fields = declaration if isinstance(declaration, dict) else {"type": declaration}  # `lr: float` is a short form
        if parameter in names:
            is_required = "default" not in fields
            declared_type = str(fields.get("type", ""))
            options.append(_option(parameter, fields.get("default"), required=is_required, declared_type=declared_type))
    if len(options) < len(names):
        return [], []
    return options, ["bash", "-c", command] if SHELL_SYNTAX.search(command) else shlex.split(command)


def _option(name: str, default: Any, *, required: bool = False, declared_type: str = "") -> Option:
    """Return an option whose kind is that of its default, "str" without one.

    Args:
        name: Name of the option.
        default: Default in a launcher, see `_value`.
        required: Whether the option needs a value.
        declared_type: Type that an MLproject declares for it; "" if it declares none.
    """
    value = _value(default)
    if isinstance(value, int) and declared_type == "float":
        value = float(value)
    kind = "str" if value is None else type(value).__name__  # int, float or str
    if declared_type in _NUMBER_TYPES:
        kind = declared_type
    return Option(name, default=value, kind=kind, required=required)


def _value(written_value: Any) -> Any:
    """Return the number or text that a value in a launcher stands for; None for a boolean, list or mapping."""
    value = written_value
    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError):
            value = yaml.safe_load(value.strip("\"'"))
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)  # such as 1e-3, which is a text in YAML 1.1
    return value if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
