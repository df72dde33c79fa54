"""The parameters and the command of a launcher: a shell script, a Makefile, or an MLproject of MLflow.

The text is only parsed, and nothing is started. The result is a `Script` with the style COMMAND. Its command has a
placeholder {NAME} for each parameter.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from pathlib import PurePath

from trialplane.errors import Issue, SpecError
from trialplane.importing import command_text, guess, literals, loops, makefile, mlproject, placeholders, shell
from trialplane.importing.script import Script, Style
from trialplane.job import credentials, document, settings
from trialplane.wire.declared import Option

_VARIABLE = re.compile(r"\$\{(\w+):?[-=]([^${}`]+)\}")  # ${LR:-0.1}
# LR=$1, local lr="${2:-0.1}"
_ARGUMENT = re.compile(
    r"""^\s*(?:export\s+|local\s+)?(\w+)=["']?\$\{?(\d)(?::?-([^${}`]*))?\}?["']?\s*(?:#.*)?$""", re.MULTILINE
)


def is_launcher(file: PurePath) -> bool:
    """Return whether a file is a shell script, a Makefile or an MLproject, by its name."""
    return file.name == mlproject.NAME or makefile.is_makefile(file) or file.suffix in settings.SHELLS


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
    if makefile.is_makefile(file):
        return makefile.read(text, name)
    if file.name == mlproject.NAME:
        options, command = mlproject.read(text, name)
        remedy = "an entry point needs `parameters:` and a command with {NAME}"
    elif loop_values := loops.values_by_variable(text):
        return placeholders.parse_loops(text, file, loop_values)
    else:
        options, command = _read_shell_script(text, file)
        remedy = "write LR=${LR:-0.1}, or LR=${1:-0.1}, for each value to search"
    text_options = _replaceable_options(text, name, options, requested)
    # Trials replace the values in copies of the script and of its settings files.
    files = [*([file.name] if text_options else []), *configs]
    own_names = {option.name for option in (*options, *text_options)}
    file_options = [*text_options, *(option for option in values if option.name not in own_names)]
    if not options and not file_options:
        remedies = "; or ".join(filter(None, (remedy, placeholders.started_remedy(started_commands))))
        raise SpecError([Issue(("script",), f"has no parameters; {remedies}", source=name)])
    return Script(
        Style.COMMAND,
        (*options, *file_options),
        config=files[0] if files else "",
        further_configs=tuple(files[1:]),
        command=tuple(command),
        paths=shell.paths_in(text),
        notes=tuple(credentials.upload_notes(text)),
    )


def _replaceable_options(text: str, name: str, declared: Sequence[Option], requested: Collection[str]) -> list[Option]:
    """Return the values in the text of a shell script that trials replace in a copy of it; [] for another launcher.

    They are the requested values, and all numbers if the script declares nothing that is worth a search.
    """
    if PurePath(name).suffix not in settings.SHELLS:
        return []
    declared_keys = {command_text.key(option.name) for option in declared}
    requested_keys = set(map(command_text.key, requested))
    needs_numbers = not guess.space(declared)
    options = []
    for value_name, value in settings.values(text, name).items():
        if isinstance(value, str):  # `true` is a boolean, as it is for --space
            option = Option(value_name, document.scalar(value, name))
        else:
            option = literals.option_of(value_name, str(value))
        is_requested = command_text.key(value_name) in requested_keys
        is_number = option.kind != "str"
        if command_text.key(value_name) not in declared_keys and (is_requested or (needs_numbers and is_number)):
            options.append(option)
    return options


def _read_shell_script(text: str, file: PurePath) -> tuple[list[Option], list[str]]:
    """Return the parameters of a shell script, and the command that starts it.

    The parameters are variables with a default, as ${LR:-0.1}, and arguments that are assigned to variables, as LR=$1.
    """
    by_position: dict[int, Option] = {}
    for name, position, default in _ARGUMENT.findall(text):
        by_position.setdefault(int(position), literals.option_of(name, default, required=not default))
    # Those from $1 on without a gap.
    positional = [by_position[index] for index in itertools.takewhile(by_position.__contains__, itertools.count(1))]
    excluded_names = {option.name for option in positional}
    values = literals.first_values(_VARIABLE.findall(text))
    defaults = {name: default for name, default in values.items() if not name.isdigit()}
    variables = [literals.option_of(name, default) for name, default in defaults.items() if name not in excluded_names]
    command = ["env", *(f"{option.name}={{{option.name}}}" for option in variables)] if variables else []
    command += ["sh" if re.match(r"#!\S*(?:/|env )sh\b", text) else "bash", file.name]
    return [*variables, *positional], [*command, *(f"{{{option.name}}}" for option in positional)]
