"""A shell script that a command line starts, and that passes its arguments on to a Python script.

The text is only parsed, and nothing is started. Of branches on an argument, as of `if [[ $1 == train ]]`, only the one
is read that the arguments of the command line take.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from trialplane.importing import shell
from trialplane.importing.script import Call
from trialplane.job import credentials, settings

_SHELL = re.compile(r"(?:\S*/)?(?:ba|z|da)?sh")
_MARKER = "$@"  # marks where further arguments can stand
_ALL_ARGUMENTS = re.compile(r'"\$(?:@|\{@(?::(\d+))?\})"|(?<!")\$(?:[@*]|\{[@*](?::(\d+))?\})')  # "$@", ${@:2}, $*
_POSITION = re.compile(r"\$(?:(\d)|\{(\d{1,3})(?::?-[^{}]*)?\})")  # $1, ${10}, ${1:-train}
# $(dirname "$0"), `dirname ${BASH_SOURCE[0]}`
_OWN_FOLDER = re.compile(r"""(?:\$\(|`)dirname\s+(?:--\s+)?["']?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?["']?(?:\)|`)""")
# if [[ train == "train" ]], elif [ train != eval ]
_TEST = re.compile(r"""\s*(?:el)?if\s+\[\[?\s+["']?([^"'\s]*)["']?\s*(==?|!=)\s*["']?([^"'\s]*)["']?\s+\]\]?\s*$""")
_CASE = re.compile(r"""\s*case\s+["']?(\S*?)["']?\s+in\b""")  # case "train" in
_PATTERN = re.compile(r"\s*\(?([^()]+)\)\s*(.*)$")  # train|fit) python train.py ;;
_KEYWORD = re.compile(r"(?:^[ \t]*|;\s*)(then|else|elif|fi)\b", re.MULTILINE)  # then, also after `if [ $1 = train ];`
# Lines of a shell script that need not run before its Python command, or whose effect is in the command.
_SETUP = re.compile(
    r"""\s*(?:\#.*
    |(?:cd\s+[^$`|&;<>]+?(?:\s*\|\|\s*exit(?:\s+\d+)?)?
    |export(?:\s+\w+=(?:"[^"$`\\]*"|'[^']*'|[^\s"'$`~\\|&;<>()]*))+
    |set\s+[-+][euxo]+(?:\s+pipefail)?
    |echo\b(?:(?!\$\()[^`|&;<>])*
    )?\s*;?\s*(?:\s\#.*)?)""",
    re.VERBOSE,
)
_SHIFT = re.compile(r"\s*shift(?:\s+(\d+))?\s*$")  # shift, shift 2


@dataclasses.dataclass(frozen=True)
class _Branches:
    """An `if` or a `case` with its branches, at one line of the script.

    Attributes:
        is_case: Whether it is a `case`.
        word: Word that a `case` compares with the patterns of its branches; "" for an `if`.
        may_run: Whether the branch at this line may run.
        is_taken: Whether an earlier branch, or this one, runs for certain.
    """

    is_case: bool
    word: str = ""
    may_run: bool = True
    is_taken: bool = False

    def next(self, is_true: bool | None) -> _Branches:
        """Return the state in the next branch, whose condition is true, false, or unknown (None)."""
        may_run = is_true is not False and not self.is_taken
        return dataclasses.replace(self, may_run=may_run, is_taken=self.is_taken or is_true is True)


def find_call(text: str) -> Call | None:
    """Return the call of a shell script in a command line; None without one. `Call.script` is then the shell script."""
    return shell.last_call(text, _shell_call)


def _shell_call(words: Sequence[str]) -> Call | None:
    """Return the call of a shell script in the words of a simple command; None if it starts another program."""
    for index, word in enumerate(words):
        follows_shell = index > 0 and _SHELL.fullmatch(words[index - 1])  # `bash train.sh`
        is_program = "/" in word if index == 0 else word.startswith("./")  # tools/train.sh, env LR=0.1 ./train.sh
        if word.endswith(settings.SHELLS) and (follows_shell or is_program):
            return Call(os.path.normpath(word), arguments=tuple(words[index + 1 :]))
    return None


def wrapped_call(text: str, shell_call: Call) -> Call | None:
    """Return the call of the Python script to which a shell script passes its arguments on; None without one.

    Its arguments are those in the shell script and those of the command line, and its positions are those of the shell
    script's call.
    """
    call = shell.find_call(_read_text(text, shell_call))
    if call is None or _MARKER not in call.arguments:
        return None
    folder = os.path.normpath(PurePath(shell_call.folder, call.folder))
    words = tuple(word for word in call.arguments if word != _MARKER)
    variables = {**shell_call.variables, **call.variables}
    return dataclasses.replace(
        call, folder=folder, arguments=words, start=shell_call.start, end=shell_call.end, variables=variables
    )


def python_commands(text: str, shell_call: Call) -> list[str]:
    """Return the Python commands that a shell script starts, as one types them where the shell script is called."""
    commands: dict[str, None] = {}  # a set in the order of the script
    for command, call in shell.python_commands(_read_text(text, shell_call)).items():
        folder = os.path.normpath(PurePath(shell_call.folder, call.folder))
        variables = {**shell_call.variables, **call.variables}
        missing_variables = {name: value for name, value in variables.items() if f"{name}=" not in command}  # not set there
        words = [f"{name}={shlex.quote(value)}" for name, value in missing_variables.items()]
        words.append(command.replace(f' "{_MARKER}"', ""))
        command_line = " ".join(words if folder == "." else ["cd", shlex.quote(folder), "&&", *words])
        commands[credentials.extract(command_line)[0]] = None  # without secrets
    return list(commands)


def only_sets_up(text: str, shell_call: Call) -> bool:
    """Return whether a job can run the Python command of a shell script in place of the script.

    Besides the command, the script may then only set variables, change the folder, and print.
    """
    script_text = _read_text(text, shell_call)
    for command in shell.python_commands(script_text):  # `cd src && python train.py` becomes the harmless `echo`
        script_text = re.sub(rf"(?:\bcd\s+[^\s$`|&;<>]+\s*&&\s*)?{re.escape(command)}", "echo", script_text, count=1)
    return all(_SETUP.fullmatch(line) or _sets_known_value(line) for line in script_text.splitlines())


def _sets_known_value(line: str) -> bool:
    """Return whether a line sets a variable, and only the value of another variable may be unknown."""
    assignment = shell.assignment(line)
    if assignment is None or "export" in line:
        return False
    return not re.search(r"`|\$(?!\w|\{\w+\})", assignment.value)  # `date` and $(date), but not $LR and ${LR}


def _read_text(text: str, shell_call: Call) -> str:
    """Return the lines of a shell script that may run, with the values of arguments and variables in place of names."""
    own_folder = PurePath(shell_call.script).parent.as_posix()
    words = list(shell_call.arguments)  # those that are left after `shift`
    branches: list[_Branches] = []  # those that are open at the current line, the innermost last
    variables: dict[str, str] = {}
    lines = []
    for raw_line in shell.lines(_KEYWORD.sub(_on_own_line, text)):
        line = _with_arguments(_OWN_FOLDER.sub(own_folder, raw_line), words)
        line = _follow_branches(shell.with_variable_values(line, variables), branches)
        if not all(branch.may_run for branch in branches):
            continue
        if (shift := _SHIFT.match(line)) is not None:
            words = words[int(shift[1] or 1) :]
        elif (assignment := shell.assignment(line)) is not None:
            variables[assignment.name] = assignment.value
        lines.append(re.sub(r";;\s*$", "", _with_all_arguments(line, words)))  # `;;` ends a branch of a `case`
    return "\n".join(lines)


def _follow_branches(line: str, branches: list[_Branches]) -> str:
    """Open, change or close the branches at a line of a shell script. Return the line without the beginning of a branch."""
    innermost = branches[-1] if branches else _Branches(is_case=False)
    keyword = re.match(r"\s*(if|elif|else|fi|case|esac)\b", line)
    match keyword[1] if keyword is not None else "":
        case "if":
            branches.append(_Branches(is_case=False).next(_is_true(line)))
        case "case" if (case := _CASE.match(line)) is not None:
            branches.append(_Branches(is_case=True, word=case[1], may_run=False))  # until its first pattern
        case "fi" | "esac" if branches:
            branches.pop()
        case "elif" | "else" as word if branches and not innermost.is_case:
            branches[-1] = innermost.next(_is_true(line) if word == "elif" else True)
            return ""
        case _ if innermost.is_case and (pattern := _PATTERN.match(line)) is not None:  # train) python train.py
            branches[-1] = innermost.next(_matches(innermost.word, pattern[1]))
            return pattern[2]
    return line


def _on_own_line(match: re.Match[str]) -> str:
    """Return a keyword of the shell at the beginning of a new line. `then` and `else` also end it."""
    return f"\n{match[1]}" + ("\n" if match[1] in ("then", "else") else "")


def _with_arguments(line: str, words: Sequence[str]) -> str:
    """Return a line of a shell script with the values of its arguments in place of `$1`.

    Those that are missing stay, but for `${10}` and later ones, which are empty: a script often passes them on.
    """

    def value_of(match: re.Match[str]) -> str:
        """Return the value of an argument, quoted if it needs that."""
        position = int(match[1] or match[2])
        if 0 < position <= len(words):
            return shlex.quote(words[position - 1])
        return "" if match[0] == f"${{{position}}}" and position > 9 else match[0]

    return _POSITION.sub(value_of, line)


def _with_all_arguments(line: str, words: Sequence[str]) -> str:
    """Return a line of a shell script with its arguments in place of `"$@"`, and `_MARKER` after them."""

    def values_of(match: re.Match[str]) -> str:
        """Return the arguments from a position on, and `_MARKER`."""
        first = max(int(match[1] or match[2] or 1), 1)  # 2 for ${@:2}, and 1 for "$@" and $*
        return f'{shlex.join(words[first - 1 :])} "{_MARKER}"'

    return _ALL_ARGUMENTS.sub(values_of, line)


def _is_true(line: str) -> bool | None:
    """Return whether the condition of an `if` or `elif` holds; None if only the shell knows."""
    test = _TEST.match(line)
    if test is None:
        return None
    first, test_operator, second = test.groups()
    if "$" in first + second:  # the value of a variable that is not known
        return None
    return first != second if test_operator == "!=" else first == second


def _matches(word: str, patterns: str) -> bool | None:
    """Return whether one of the patterns of a `case` matches a word; None if only the shell knows."""
    if patterns.strip() == "*":
        return True
    if "$" in word + patterns:
        return None
    return any(fnmatch.fnmatchcase(word, pattern.strip().strip("\"'")) for pattern in patterns.split("|"))
