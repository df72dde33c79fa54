"""Parameters that the user requests by the names of constants: in the text of a script, or of a module that it imports."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trialplane.cli import output
from trialplane.cli.init_from import space_names
from trialplane.cli.init_from.probe import ScriptCopy
from trialplane.errors import InputError
from trialplane.importing import script, script_folder
from trialplane.importing.script import Script, Style
from trialplane.job import module_files, settings
from trialplane.wire.declared import Declared, Option

# Styles of scripts that may run without arguments.
_RUN_ALONE = (Style.UNKNOWN, Style.GLOBALS, Style.SEARCHES, Style.ENVIRONMENT, Style.POSITIONS)
_LIST_ARGUMENTS = (Style.PARSED, Style.ATTRIBUTES, Style.CONFIGURATOR, Style.SACRED)  # styles of those that list all of them


def searches_only_constants(parsed_script: Script, requested: Collection[str], names_in_file: Sequence[str]) -> bool:
    """Return whether the user wants to search values in the text of a script that runs without arguments, and no others.

    Values of its settings file come before those.
    """
    constants = map(str.lower, _own_constants(parsed_script, requested, names_in_file))
    return _may_run_alone(parsed_script) and bool(requested) and {name.lower() for name in requested} <= set(constants)


def in_text(parsed_script: Script, requested: Collection[str], declared_names: Collection[str]) -> dict[str, Option]:
    """Return the values in the text of a script that the user wants to search, by name, except those that arguments set."""
    spellings = set(map(settings.normalized, declared_names))
    options = (option for option in parsed_script.values if settings.normalized(option.name) not in spellings)
    requested_names = {name.lower() for name in requested}
    return {option.name: option for option in options if option.name.lower() in requested_names}


def _own_constants(parsed_script: Script, requested: Collection[str], names_in_file: Collection[str]) -> dict[str, Option]:
    """Return the values in the text of a script that the user wants to search, by name, and that nothing else has."""
    # With GLOBALS, the script's options are the values in its text.
    other_options = () if parsed_script.style is Style.GLOBALS else parsed_script.options
    return in_text(parsed_script, requested, [*names_in_file, *(option.name for option in other_options)])


def _may_run_alone(parsed_script: Script) -> bool:
    """Return whether a script may run without arguments."""
    return parsed_script.style in _RUN_ALONE and not any(option.required for option in parsed_script.options)


def beside_file(
    parsed_script: Script, config: str, options: Sequence[Option], requested: Collection[str]
) -> tuple[Script, Declared] | None:
    """Return a script with values of a file and requested ones of its own text, which trials replace in both.

    None if it may need arguments, or if the user requests no value of its text.

    Args:
        parsed_script: Content of the script.
        config: Path of the file in the job's folder.
        options: Values of the file.
        requested: Names of the parameters that the user wants to search.
    """
    names = tuple(option.name for option in options)
    constants = _own_constants(parsed_script, requested, names)
    if not constants or not _may_run_alone(parsed_script):
        return None
    parsed_script = dataclasses.replace(as_globals(parsed_script), config=config, in_file=names)
    return parsed_script, Declared((*options, *constants.values()))


def module_parameters(
    copy: ScriptCopy, parsed_script: Script, declared: Declared, requested: Collection[str], names_in_file: Collection[str]
) -> tuple[Script, Declared] | None:
    """Return a script with requested values of a module that it imports, and these and its arguments as its parameters.

    None if there is no such module, or if the script may have the values itself.

    Args:
        copy: Copy of the script.
        parsed_script: Content of the script.
        declared: Its arguments, or else the values in its text.
        requested: Names of the parameters that the user wants to search.
        names_in_file: Names of the values in its settings file.
    """
    lists_arguments = parsed_script.style in _LIST_ARGUMENTS
    if not lists_arguments and not _may_run_alone(parsed_script):
        return None
    own_names = () if lists_arguments else [option.name for option in (*declared.options, *parsed_script.values)]
    constants = _own_constants(parsed_script, requested, names_in_file)  # which trials replace besides those of a file
    in_file = [*names_in_file, *(name for name in own_names if name not in constants)]
    path = map(Path, (".", *copy.start.path))
    module, values, declared = in_module(copy, path, requested, declared, in_file, constants)
    if not values:
        return None
    names_in_module = {option.name for option in script.settings_options(script_folder.source(copy.folder / module), module)}
    if constants.keys() & names_in_module:  # a trial would replace both values
        return None
    if mixed := beside_file(parsed_script, module, [*values.values()], requested):
        return mixed
    style = parsed_script.style if lists_arguments else Style.SETTINGS
    parsed_script = dataclasses.replace(parsed_script, style=style, config=module, in_file=tuple(values))
    options = (*values.values(), *(declared.options if lists_arguments else ()))
    return parsed_script, dataclasses.replace(declared, options=options)


def in_module(
    copy: ScriptCopy,
    path: Iterable[Path],
    requested: Collection[str],
    declared: Declared,
    in_file: Collection[str],
    in_command: Mapping[str, Option] = MappingProxyType({}),
    typed: Sequence[str] = (),
) -> tuple[str, dict[str, Option], Declared]:
    """Return the module that a script imports and that alone sets requested names which nothing else has, and these values.

    Arguments of the script may choose it, as in `import_module("models." + args.model)`. The arguments are returned without
    those, as another value of them would choose another module.

    "" and {} without one, or if a requested name is in another file, as a trial can replace values of one file only.

    Args:
        copy: Copy of the script.
        path: Folders besides its own from which it imports, relative to that of the copy.
        requested: Names of the parameters that the user wants to search.
        declared: Arguments of the script.
        in_file: Names of the values in a file that a trial can replace.
        in_command: Values in the command, by name.
        typed: Arguments of the script in the command.

    Raises:
        InputError: An argument that is searched chooses the module.
    """
    # Only of a script that lists all of its arguments, an unknown name is certainly none. One that did not start lists none.
    lists_all = not (declared.failure or declared.overrides or declared.pairs)
    known_names = [*in_command, *in_file, *space_names.spellings(declared.options)]
    missing = [name for name in requested if not any(settings.may_mean(name, known_name) for known_name in known_names)]
    if not lists_all or space_names.share_names(requested, in_file):
        return "", {}, declared
    roots = [copy.path.parent, *(Path(os.path.normpath(copy.folder / entry)) for entry in path)]
    names_by_text = _names_by_text((*declared.options, *in_command.values()), typed)
    in_module = module_files.with_values(missing, copy.path, copy.folder, roots, names_by_text)
    if in_module is None:
        return "", {}, declared
    module, keys = in_module.module, ", ".join(in_module.keys)
    choosing = [name for text in sorted(in_module.texts) for name in names_by_text[text]]
    for name in choosing:
        if space_names.share_names([name], requested):
            reason = f"{keys}: a value in {module}, which {name} chooses; so one job cannot search both"
            raise InputError(f"{reason}; leave out --space {name}, and make a job for each value of it; nothing was changed")
    output.note(f"{keys}: a value in {module}, which {copy.name} imports")
    options = script.settings_options(script_folder.source(copy.folder / module), module, in_module.keys)
    fixed = tuple(f"{name}: chooses {module}, of which values are searched" for name in choosing)
    others = tuple(option for option in declared.options if option.name not in choosing)
    declared = dataclasses.replace(declared, options=others, left_out=(*declared.left_out, *fixed))
    return module, {option.name: option for option in options if option.name in in_module.keys}, declared


def _names_by_text(options: Sequence[Option], typed: Sequence[str]) -> dict[str, list[str]]:
    """Return the texts that arguments of a script are, each with the names of the options that may have it, as far as known.

    Args:
        options: The options of the script.
        typed: Its arguments in the user's command. An option that is not among them has its default.
    """
    words = [part for word in typed for part in word.split("=", 1)]  # `--model=net` is `--model` and `net`
    names_by_text: dict[str, list[str]] = {word: [] for word in words}
    for option in options:
        flags = {option.flag, *option.aliases} - {""}
        values = [word for flag, word in itertools.pairwise(words) if flag in flags]
        if not flags.intersection(words) and isinstance(option.default, str):
            values = [option.default]
        for value in values:
            names_by_text.setdefault(value, []).append(option.name)
    return names_by_text


def as_globals(parsed_script: Script) -> Script:
    """Return a script whose parameters replace values in its text."""
    return dataclasses.replace(parsed_script, style=Style.GLOBALS, options=parsed_script.values)
