"""The Python script that a command calls: its content and its arguments."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.cli import importing, output
from trialplane.cli.init_from import calls, probe, script_parameters
from trialplane.cli.init_from.probe import ScriptCopy
from trialplane.errors import InputError
from trialplane.importing import guess, script, script_folder
from trialplane.importing.script import Script, Style
from trialplane.job import arguments
from trialplane.wire.declared import Declared, Option

_PAIR = re.compile(r"(?<!\S)[A-Za-z_]\w*(?:\.\w+)+ +[^\s-]")  # SOLVER.LR 0.1
_OPTION_KINDS = {int: "int", float: "float", bool: "bool", str: "str"}


@dataclasses.dataclass(frozen=True)
class CalledScript:
    """A Python script that a command calls.

    Attributes:
        copy: Copy of the job's folder, with the path of this script.
        call: Its call in the command.
        script: Its content.
        declared: Its arguments.
        appended: Form of arguments that are appended to the command: FLAGS, HYDRA or PAIRS; "" if it declares none.
    """

    copy: ScriptCopy
    call: script.Call
    script: Script
    declared: Declared
    appended: str


def find(copy: ScriptCopy, command: Script, call: script.Call, requested: Collection[str]) -> CalledScript:
    """Return the script that a command calls.

    Args:
        copy: Copy of the job's folder.
        command: The command.
        call: Its call of the script.
        requested: Names of the parameters that the user wants to search.

    Raises:
        InputError: The script has a search of its own, and the command no parameter to search.
        SpecError: A file is not Python or YAML.
    """
    path = Path(os.path.normpath(copy.folder / call.folder / call.script))
    parsed_script = _read(path, call, command, requested)
    # Of an installed program, the path is absolute.
    name = path.relative_to(copy.folder).as_posix() if path.is_relative_to(copy.folder) else str(path)
    copy = dataclasses.replace(copy, name=name)
    declared, appended = _arguments(copy, parsed_script, call, requested)
    return CalledScript(copy, call, parsed_script, declared, appended)


def _read(path: Path, call: script.Call, command: Script, requested: Collection[str]) -> Script:
    """Return the content of the script that a command calls. Its own search is left out if the user does not mean that.

    Raises:
        InputError: The script has a search of its own, and the command no parameter to search.
        SpecError: A file is not Python.
    """
    script_text, module_text = script_folder.source(path), script_folder.module_text(path)
    called_script = script.read(script_text, call.script, module_text, requested=requested)
    if Path(call.script).is_absolute():  # an installed program, whose parser is in its package
        return dataclasses.replace(called_script, style=Style.PARSED)
    if called_script.style not in script.OWN_SEARCHES:
        return called_script
    subcommand_name = calls.subcommand(call.arguments)
    # A subcommand other than the one that has the search does not start it. It may be unknown which one has it.
    may_search = not subcommand_name or called_script.searching in ("", subcommand_name)
    if may_search:
        is_chosen = bool(requested or (subcommand_name and not called_script.searching))
        _print_search(call, called_script, command, is_chosen=is_chosen)
    if requested or subcommand_name:  # the parameters besides those of the search are meant
        return script.read(script_text, call.script, module_text, with_search=False, requested=requested)
    return called_script


def _print_search(call: script.Call, called_script: Script, command: Script, *, is_chosen: bool) -> None:
    """Print that the script of a command has a search of its own, which each trial of the command would run.

    Args:
        call: Call of the script in the command.
        called_script: Content of the script.
        command: The command.
        is_chosen: Whether the user means this command in spite of that: names parameters to search, or a subcommand that
            may not be the one with the search.

    Raises:
        InputError: It is not chosen, and the search is one of Ray Tune or the command has no parameter to search.
    """
    tool = {Style.TUNE: "Ray Tune", Style.STUDY: "Optuna or the like"}.get(called_script.style, "W&B")
    script_form = (
        f"`platform init --from {importing.shell_path(Path(call.folder, call.script))}` makes the job of the search itself"
    )
    if called_script.searching:
        start = f"its subcommand {called_script.searching} starts that"
        script_form = f"{start}; {script_form}" if called_script.style is Style.TUNE else start
    remark = (
        f"{call.script} has a search of its own, by {tool}; {script_form}. If this command starts the search, each of its "
        "trials is a whole search"
    )
    remedy = "name the parameters of the command to search with --space NAME=LOW..HIGH; nothing was changed"
    if not is_chosen and called_script.style is Style.TUNE:
        raise InputError(f"{remark}; if it does not, {remedy}")
    if not is_chosen and not guess.space(command.options) and not guess.positive_floats(command.options):
        raise InputError(f"{remark}; no number of the command looks like a parameter: {remedy}")
    output.note(remark)


def _arguments(
    copy: ScriptCopy, called_script: Script, call: script.Call, requested: Collection[str]
) -> tuple[Declared, str]:
    """Return the arguments of a script that a command calls, and their form: FLAGS, HYDRA, PAIRS, or "" if it declares none.

    If the script ends before it reads its arguments, there are none, but the reason.
    """
    folder = copy.folder / call.folder
    may_merge = script_parameters.may_merge_arguments(copy, called_script)
    if called_script.style is Style.PARSED or may_merge:
        start = dataclasses.replace(copy.start, cwd=call.folder, module=call.module)
        declared, log_clause = probe.run(dataclasses.replace(copy, start=start), call.arguments, call.variables)
        if declared.failure and may_merge:
            has_own_flags = called_script.style is Style.ATTRIBUTES
            return Declared(called_script.options), arguments.FLAGS if has_own_flags else ""
        if declared.failure:
            return Declared(failure=f"{errors.shortened(declared.failure, 300)}{log_clause}"), ""
        declared = script_parameters.with_choices(_without_flags_after_pairs(declared, call), called_script)
        if declared.overrides:
            return declared, arguments.HYDRA
        return declared, arguments.PAIRS if declared.pairs else arguments.FLAGS
    if called_script.style is Style.HYDRA:
        hydra_copy = dataclasses.replace(copy, file=Path(call.script), folder=folder, name=call.script)
        declared = script_parameters.hydra_parameters(hydra_copy, called_script, requested, call.arguments, call.variables)
        return declared, arguments.HYDRA
    if called_script.style is Style.CONFIGURATOR:
        return Declared(_with_file_defaults(called_script.options, folder, call.arguments)), arguments.FLAGS
    if called_script.style is Style.ATTRIBUTES:
        return Declared(called_script.options), arguments.FLAGS
    if called_script.style is Style.SACRED:
        trailing = () if "with" in call.arguments else ("with",)
        return Declared(called_script.options, trailing=trailing), arguments.HYDRA
    if called_script.style is Style.POSITIONS:
        return Declared(called_script.options), ""
    return Declared(), ""


def _without_flags_after_pairs(declared: Declared, call: script.Call) -> Declared:
    """Return the arguments of a script that can follow those of its call.

    After the pairs of yacs, there can only be further pairs, because these are all arguments that follow.
    """
    # Words before the pairs, such as a flag of their own, show that the call has pairs. Without such words, their form does.
    if declared.trailing:
        has_pairs = bool(set(declared.trailing) & set(call.arguments))
    else:
        has_pairs = _PAIR.search(" ".join(call.arguments)) is not None
    if not declared.pairs or not has_pairs:
        return declared
    options = tuple(option for option in declared.options if not option.flag.startswith("-"))
    return dataclasses.replace(declared, options=options, trailing=())


def _with_file_defaults(options: Sequence[Option], folder: Path, words: Sequence[str]) -> tuple[Option, ...]:
    """Return the options of a script with a configurator, whose defaults are the values in its Python files of settings.

    Options without a plain value are left out.
    """
    file_values: dict[str, Any] = {}
    for word in words:
        if word.endswith(".py") and script_folder.exists(folder / word):
            file_options = script.settings_options(script_folder.source(folder / word), word)
            file_values |= {option.name: option.default for option in file_options}
    options_of_run: list[Option] = []
    for option in options:
        value = file_values.get(option.name, option.default)
        # The kind is that of the value, as a configurator refuses an integer for a float, and the other way round.
        if kind := _OPTION_KINDS.get(type(value)):
            options_of_run.append(dataclasses.replace(option, default=value, kind=kind))
    return tuple(options_of_run)
