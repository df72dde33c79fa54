"""The parameters of a script for `platform init --from`: from its text, from its configuration, or by a probe of it."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trialplane import errors
from trialplane.cli import output
from trialplane.cli.init_from import advice, probe, requested_constants, space_names
from trialplane.cli.init_from.probe import ScriptCopy
from trialplane.errors import InputError, SpecError
from trialplane.importing import guess, script, script_folder
from trialplane.importing.script import Script, Style
from trialplane.job import notebook
from trialplane.wire.declared import Declared

# Call of a function that gets the command line, and may merge it into a configuration. `main` and getopt do not: a probe
# would run the whole script.
_MERGES_ARGUMENTS = re.compile(r"[\w\])](?<!main)(?<!getopt)\((?:[^()]*[,=])?\s*sys\.argv\[\d?:\]")


def find(
    copy: ScriptCopy, parsed_script: Script, requested: Collection[str], names_in_file: Collection[str]
) -> tuple[Script, Declared]:
    """Return a script with the style that its parameters need, and these parameters.

    If the user wants to search values in the text of a script that takes arguments, the parameters are these values, and the
    arguments that are required or searched, too. For `names_in_file` see `requested_constants.module_parameters`.

    If the script takes no arguments, the parameters replace values in its text. If there are no such values either, a script
    that searches by itself has no parameters.

    Raises:
        InputError: There are no parameters, or the script ends before it reads its arguments.
        SpecError: The configuration is not YAML.
    """
    if parsed_script.style is Style.PARSED:
        return _parsed_parameters(copy, parsed_script, requested, names_in_file)
    if parsed_script.style is Style.HYDRA:
        return parsed_script, hydra_parameters(copy, parsed_script, requested)
    if may_merge_arguments(copy, parsed_script):
        declared, _ = probe.run(copy)
        if declared.options:
            style = Style.HYDRA if declared.overrides else Style.ATTRIBUTES  # Hydra's notation: lr=0.1
            return dataclasses.replace(parsed_script, style=style), declared
    is_searchable = bool(guess.space(parsed_script.values) or requested_constants.in_text(parsed_script, requested, ()))
    if parsed_script.style is Style.UNKNOWN:
        if not is_searchable:
            raise InputError(f"{advice.on_script(copy)}. Nothing was changed")
        return requested_constants.as_globals(parsed_script), Declared(parsed_script.values)
    if parsed_script.style is Style.GLOBALS and not is_searchable:
        if advice.reads_wandb_config(script_folder.source(copy.path)):
            raise InputError(f"{advice.on_script(copy)}. Nothing was changed")
        if not requested:
            output.note(f"{advice.on_script(copy)}. Until then, the job is one trial without parameters")
            return dataclasses.replace(parsed_script, style=Style.SEARCHES), Declared()
    return parsed_script, Declared(parsed_script.options)


def _parsed_parameters(
    copy: ScriptCopy, parsed_script: Script, requested: Collection[str], names_in_file: Collection[str]
) -> tuple[Script, Declared]:
    """Return the parameters of a script with a parser, as `find` does."""
    source = script_folder.source(copy.path)
    if advice.GIN.search(source):
        raise InputError(f"{advice.on_script(copy)}. Nothing was changed")
    if _has_several_parsers(source) and parsed_script.values:
        output.note(
            f"{copy.file.name} has several parsers, and each refuses the arguments of the others; so parameters replace the "
            "values in its text"
        )
        return requested_constants.as_globals(parsed_script), Declared(parsed_script.values)
    declared, log_clause = probe.run(copy)
    if declared.overrides:  # its parser takes lr=0.1, as Hydra does
        return dataclasses.replace(parsed_script, style=Style.HYDRA), declared
    constants = requested_constants.in_text(parsed_script, requested, space_names.spellings(declared.options))
    if constants and not declared.failure:  # the user wants to search values in the text
        passed = [option for option in declared.options if option.required or option.name in requested]
        declared = dataclasses.replace(declared, options=(*passed, *constants.values()))
        return requested_constants.as_globals(parsed_script), declared
    if not declared.failure:
        declared = with_choices(declared, parsed_script)
        in_module = requested_constants.module_parameters(copy, parsed_script, declared, requested, names_in_file)
        return in_module or (parsed_script, declared)
    reason = errors.shortened(declared.failure, 300)
    # If a library is missing here, the script can have arguments that are not known yet.
    lacks_library = probe.lacks_library(declared)
    if guess.space(parsed_script.values) and not lacks_library:
        output.note(f"{copy.file.name} read no arguments: {reason}; so parameters replace the values in its text")
        return requested_constants.as_globals(parsed_script), Declared(parsed_script.values)
    remedy = f"type this again when it reads them; or, if it needs other arguments, {advice.by_command(copy.file)}"
    if lacks_library:
        remedy = "install it, and type this again"
    raise InputError(
        f"{copy.file.name} ended before it read its arguments: {reason}{log_clause}; {remedy}; nothing was changed"
    )


def _has_several_parsers(text: str) -> bool:
    """Return whether a function of a script, or its top level, reads the whole command line by several parsers."""
    tree = notebook.parse_or_empty(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    top_level = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    for scope in (ast.Module(top_level, []), *functions):
        parsers: set[str] = set()
        for node in ast.walk(scope):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=parser), attr="parse_args"), args=[], keywords=[]):
                    parsers.add(parser)
        if len(parsers) > 1:
            return True
    return False


def may_merge_arguments(copy: ScriptCopy, parsed_script: Script) -> bool:
    """Return whether a script may merge its arguments into a configuration, without a known parser."""
    is_candidate = parsed_script.style in (Style.ATTRIBUTES, Style.UNKNOWN)
    return is_candidate and _MERGES_ARGUMENTS.search(script_folder.source(copy.path)) is not None


def with_choices(declared: Declared, parsed_script: Script) -> Declared:
    """Return the arguments of a script, with the choices of an optimizer and the like that its text shows."""
    options = tuple(guess.with_choices(option, parsed_script.compared) for option in declared.options)
    return dataclasses.replace(declared, options=options)


def hydra_parameters(
    copy: ScriptCopy,
    parsed_script: Script,
    requested: Collection[str],
    words: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Declared:
    """Return the values of a Hydra configuration: of its file, or else of the configuration that the script prints.

    Args:
        copy: Copy of the script.
        parsed_script: Content of the script.
        requested: Names of the parameters that the user wants to search.
        words: Arguments of the script in the user's command.
        variables: Environment variables that the command sets.

    Raises:
        InputError: There is no configuration.
        SpecError: The file is not YAML.
    """
    config = hydra_config(copy.path, parsed_script)
    if config is not None:
        groups: dict[str, dict[str, str]] = {}  # group of configurations → their texts, by name
        for yaml_file in sorted(config.parent.rglob("*.y*ml")):
            group = yaml_file.parent.relative_to(config.parent).as_posix()
            groups.setdefault(group, {})[yaml_file.stem] = yaml_file.read_text(encoding="utf-8", errors="replace")
        overrides = {name: value for name, _, value in (word.partition("=") for word in words)}
        text = config.read_text(encoding="utf-8")
        options = script.hydra_options(text, config.name, groups=groups, overrides=overrides, requested=requested)
        return Declared(tuple(options))
    composed = probe.hydra_configuration(copy, variables)
    with contextlib.suppress(SpecError):  # the output is no configuration
        if options := script.hydra_options(composed, copy.file.name):
            return Declared(tuple(options))
    raise InputError(
        f"{copy.file.name} names no existing Hydra configuration; `platform import hydra FILE` reads one with a "
        f"sweep, and `python {copy.file.name} -m hydra/sweeper=trialplane` needs no job at all; or name the parameters, "
        f"those that no configuration has as +NAME: {advice.submit_command(copy.file, '--set arguments=hydra')}"
    )


def hydra_config(file: Path, parsed_script: Script) -> Path | None:
    """Return the file of the Hydra configuration that a script names; None if it names none, or the file does not exist."""
    if not parsed_script.config:
        return None
    paths = [Path(os.path.normpath(file.parent / f"{parsed_script.config}{suffix}")) for suffix in (".yaml", ".yml")]
    return next((path for path in paths if path.is_file()), None)
