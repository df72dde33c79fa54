"""Command lines with placeholders for their parameters.

The result is a `Script` with the style COMMAND. Its command has a placeholder {NAME} for each parameter.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from trialplane.errors import Issue, SpecError
from trialplane.importing import literals, loops, shell
from trialplane.importing.script import Call, Script, Style
from trialplane.job import arguments, credentials, settings
from trialplane.wire.declared import Option

_MOST_COMMANDS = 5  # in a message
_LAST_IN_LIST = re.compile(rf"(?<=[\d.],){settings.NUMBER}(?![\w.,])")  # 64 of 1,1,64
_NAMED = re.compile(r"\{([A-Za-z_][\w.-]*)(?:=([^{}]*))?\}")  # {lr=0.1} of a command line
# Environment variables of libraries and of the system, which are not parameters.
_SYSTEM_VARIABLE = re.compile(
    r"(?:OMP|MKL|OPENBLAS|VECLIB|NUMEXPR|KMP|CUDA|CUBLAS|NCCL|GLOO|ROCR|HIP|PYTORCH|TORCH|TF|XLA|JAX|HF|TRANSFORMERS|TOKENIZERS|"
    r"WANDB|MLFLOW|RAY)_[A-Z0-9_]+|PYTHON[A-Z]+|(?:LOCAL_|NODE_)?RANK|WORLD_SIZE|MASTER_PORT"
)


def parse(
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
        started_commands: A `platform init` command for each Python command of a shell script that it calls, for the error.

    Raises:
        SpecError: There are no parameters, and no script that could declare some.
    """
    if loop_values := loops.values_by_variable(text):  # typed as `for lr in 0.1 0.01; do python train.py --lr $lr; done`
        return parse_loops(text, PurePath("command"), loop_values)
    starts_shell = shell.SYNTAX.search(text) is not None
    if call is not None and starts_shell:  # the shell gets the further arguments, and passes them on as "$@"
        text = f'{text[: call.end]} "$@"{text[call.end :]}'
    command, options = for_numbers(text, convert=_with_placeholders)
    for name, default in _NAMED.findall(text):
        options.setdefault(name, literals.option_of(name, default or None, required=not default))
    if not options and not configs and call is None:
        raise no_parameters_error(text, started_commands)
    words = ["bash", "-c", command] if shell.SYNTAX.search(command) else shell.split_words(command)
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


def parse_loops(text: str, file: PurePath, loop_values: Mapping[str, tuple[Any, ...]]) -> Script:
    """Return one command that runs the commands in the loops of a shell script once, and the loops' variables as options.

    The values of a loop are the choices of its option. Other variables of the script are replaced by their values.
    Redirections of output to files are left out, as metrics are read from the output.

    Raises:
        SpecError: No command uses the variables of the loops.
    """
    command_line = loops.as_command(text, {name: f"{{{name}={values[0]}}}" for name, values in loop_values.items()})
    if not command_line:
        raise SpecError([Issue(("script",), "has loops whose variables no command uses", source=str(file))])
    command_line, secrets = credentials.extract(command_line)
    call = shell.find_call(command_line)
    if call is not None:  # its arguments get the first values of the loops
        call = dataclasses.replace(call, arguments=tuple(_NAMED.sub(r"\2", word) for word in call.arguments))
    script = parse(command_line, call=call)
    # The values of a loop become choices.
    options = []
    for option in script.options:
        values = loop_values.get(option.name, ())
        options.append(dataclasses.replace(option, choices=values) if len(values) > 1 else option)
    words = list(script.command)
    if command_line.startswith("cd "):  # then words are `bash -c COMMAND $0`, and `cd $(dirname $0)` needs the script's name
        words[3:] = [file.name]
    return dataclasses.replace(
        script,
        options=tuple(options),
        command=tuple(words),
        paths=shell.paths_in(text),
        notes=tuple(credentials.upload_notes(text, secrets)),
    )


def has_parameters(text: str) -> bool:
    """Return whether a command line has named numbers, or values in braces, that are parameters."""
    _, options = for_numbers(text)
    return bool(options or _NAMED.search(text))


def for_numbers(text: str, convert: Callable[[str], str] = str) -> tuple[str, dict[str, Option]]:
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
        options.setdefault(name, literals.option_of(name, text[start:end]))
        pieces += [convert(text[copied:start]), f"{{{name}}}"]
        copied = end
    return "".join([*pieces, convert(text[copied:])]), options


def _with_placeholders(text: str) -> str:
    """Return a part of a command line as a part of a job's command: {lr=0.1} becomes {lr}, and other braces are doubled."""
    pieces, copied = [], 0  # pieces of the command, which stand for `text` up to the index `copied`
    for match in _NAMED.finditer(text):
        pieces += [arguments.escaped(text[copied : match.start()]), f"{{{match[1]}}}"]
        copied = match.end()
    return "".join([*pieces, arguments.escaped(text[copied:])])


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
        spans = [token.span() for token in shell.TOKEN.finditer(head)][-count:] if count else []
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
            option = literals.with_default(option, command.call.variables[option.name])
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
    leading_words = shell.leading_words(words)
    new_words = [assignment if word.startswith(f"{name}=") else word for word in leading_words]
    return [*new_words, *words[len(leading_words) :]]


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
