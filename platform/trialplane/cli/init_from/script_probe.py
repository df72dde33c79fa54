"""The parameters of a script for `platform init --from`: from its text, from its configuration, or by a probe of it.

A probe runs a copy of the script in another process until it reads its arguments. The rest of the script does not run.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import itertools
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.cli import importing, output
from trialplane.cli.init_from import bounded, script_job, settings_file
from trialplane.cli.init_from.request import with_names
from trialplane.errors import InputError, SpecError
from trialplane.importing import guess, literals, placeholders, positions, script, script_folder, shell
from trialplane.importing.script import Script, Style
from trialplane.job import arguments, module_files, notebook, reach, settings, short_forms
from trialplane.wire import declared as declared_arguments
from trialplane.wire import records
from trialplane.wire.declared import Declared, Option

_LONGEST_PROBE = 120.0  # seconds until a script reads its arguments, with its imports
_MISSING_LIBRARY = ("ModuleNotFoundError", "ImportError")  # start of a failure
_LONGEST_REASON = 400  # characters at the end of Hydra's output in a message
_BY_PARAMS = (
    'write `from trialplane import params` at its top and `params().get("NAME", VALUE)` in place of a value, and run this '
    "with --set arguments=none"
)
_MOST_SETTINGS_FILES = 200
_MOST_PLACES = 20  # values without a name of their own in a message
# Name of an argument that may take pairs of a name and a value.
_TAKES_PAIRS = re.compile(r"(?:hyper[_-]?)?param(?:eter)?s|hparams|overrides?|opts?")
# Flag of absl for bindings of gin.
_GIN = re.compile(r"""DEFINE_multi_string\(\s*["'](gin_(?:param|binding)s?)["']""")
# Call of a function that gets the command line, and may merge it into a configuration. `main` and getopt do not: a probe
# would run the whole script.
_MERGES_ARGUMENTS = re.compile(r"[\w\])](?<!main)(?<!getopt)\((?:[^()]*[,=])?\s*sys\.argv\[\d?:\]")
_SUBCOMMAND = re.compile(r"[A-Za-z][\w-]*")
_REFERENCE = re.compile(r"\$\{?(\w+)(?::?[-=](.*?))?\}?")  # $LR, ${LR} and ${LR:-0.3}
_PAIR = re.compile(r"(?<!\S)[A-Za-z_]\w*(?:\.\w+)+ +[^\s-]")  # SOLVER.LR 0.1
_PART = re.compile(r"[\w.+-]+")  # of a value such as 1,1,64
_COMPOSITE = re.compile(rf"(?<![\w.,/+-]){_PART.pattern}(?:, ?{_PART.pattern})+(?![\w.,/+-])")
# A number between spaces, and the flag before it.
_NUMBER_WORD = re.compile(rf"(?<!\S)(?P<flag>-+[A-Za-z][\w-]* +)?(?P<number>{settings.NUMBER})(?!\S)")
_OPTION_KINDS = {int: "int", float: "float", bool: "bool", str: "str"}
# Styles of scripts that may run without arguments.
_RUN_ALONE = (Style.UNKNOWN, Style.GLOBALS, Style.SEARCHES, Style.ENVIRONMENT, Style.POSITIONS)
_LIST_ARGUMENTS = (Style.PARSED, Style.ATTRIBUTES, Style.CONFIGURATOR, Style.SACRED)  # styles of those that list all of them


@dataclasses.dataclass(frozen=True)
class ScriptCopy:
    """A copy of a job's folder, in which its script is probed.

    Attributes:
        file: Path of the script as the user names it, for messages; for a command, the command line.
        folder: The copy. A probe may change files in it.
        name: Path of the script in the copy.
        start: How the script is started: its working directory, folders for PYTHONPATH, and its name as a module.
        scratch: Folder for the output of probes.
        secrets: Secrets of the user's command, by environment variable.
    """

    file: Path
    folder: Path
    name: str
    start: script_folder.Start
    scratch: Path
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Path of the script's copy."""
        return self.folder / self.name


def script_parameters(
    copy: ScriptCopy, parsed_script: Script, requested: Collection[str], names_in_file: Collection[str]
) -> tuple[Script, Declared]:
    """Return a script with the style that its parameters need, and these parameters.

    If the user wants to search values in the text of a script that takes arguments, the parameters are these values, and the
    arguments that are required or searched, too. For `names_in_file` see `module_parameters`.

    If the script takes no arguments, the parameters replace values in its text. If there are no such values either, a script
    that searches by itself has no parameters.

    Raises:
        InputError: There are no parameters, or the script ends before it reads its arguments.
        SpecError: The configuration is not YAML.
    """
    if parsed_script.style is Style.PARSED:
        return _parsed_parameters(copy, parsed_script, requested, names_in_file)
    if parsed_script.style is Style.HYDRA:
        return parsed_script, _hydra_parameters(copy, parsed_script, requested)
    if _may_merge_arguments(copy, parsed_script):
        declared, _ = _probe_arguments(copy)
        if declared.options:
            style = Style.HYDRA if declared.overrides else Style.ATTRIBUTES  # Hydra's notation: lr=0.1
            return dataclasses.replace(parsed_script, style=style), declared
    is_searchable = bool(guess.space(parsed_script.values) or _requested_constants(parsed_script, requested, ()))
    if parsed_script.style is Style.UNKNOWN:
        if not is_searchable:
            raise InputError(f"{_advice(copy)}. Nothing was changed")
        return as_globals(parsed_script), Declared(parsed_script.values)
    if parsed_script.style is Style.GLOBALS and not is_searchable:
        if _reads_wandb_config(script_folder.source(copy.path)):
            raise InputError(f"{_advice(copy)}. Nothing was changed")
        if not requested:
            output.note(f"{_advice(copy)}. Until then, the job is one trial without parameters")
            return dataclasses.replace(parsed_script, style=Style.SEARCHES), Declared()
    if parsed_script.style is Style.COMMAND and parsed_script.config:  # a settings file that the command names
        in_command = _options_in_command(parsed_script, Declared())
        in_file = {option.name: option for option in parsed_script.options if option.name not in in_command}
        in_file, left_out = _not_overridden(Declared(), parsed_script, in_file)
        options = (*in_command.values(), *in_file.values())
        return dataclasses.replace(parsed_script, options=options), Declared(options, left_out)
    return parsed_script, Declared(parsed_script.options)


def _may_merge_arguments(copy: ScriptCopy, parsed_script: Script) -> bool:
    """Return whether a script may merge its arguments into a configuration, without a known parser."""
    is_candidate = parsed_script.style in (Style.ATTRIBUTES, Style.UNKNOWN)
    return is_candidate and _MERGES_ARGUMENTS.search(script_folder.source(copy.path)) is not None


def _parsed_parameters(
    copy: ScriptCopy, parsed_script: Script, requested: Collection[str], names_in_file: Collection[str]
) -> tuple[Script, Declared]:
    """Return the parameters of a script with a parser, as `script_parameters` does."""
    if _GIN.search(script_folder.source(copy.path)):
        raise InputError(f"{_advice(copy)}. Nothing was changed")
    declared, log_clause = _probe_arguments(copy)
    if declared.overrides:  # its parser takes lr=0.1, as Hydra does
        return dataclasses.replace(parsed_script, style=Style.HYDRA), declared
    constants = _requested_constants(parsed_script, requested, _spellings(declared.options))
    if constants and not declared.failure:  # the user wants to search values in the text
        passed = [option for option in declared.options if option.required or option.name in requested]
        return as_globals(parsed_script), dataclasses.replace(declared, options=(*passed, *constants.values()))
    if not declared.failure:
        declared = _with_choices(declared, parsed_script)
        return module_parameters(copy, parsed_script, declared, requested, names_in_file) or (parsed_script, declared)
    reason = errors.shortened(declared.failure, 300)
    # If a library is missing here, the script can have arguments that are not known yet.
    lacks_library = declared.failure.startswith(_MISSING_LIBRARY)
    if guess.space(parsed_script.values) and not lacks_library:
        output.note(f"{copy.file.name} read no arguments: {reason}; so parameters replace the values in its text")
        return as_globals(parsed_script), Declared(parsed_script.values)
    remedy = f"type this again when it reads them; or, if it needs other arguments, {by_command(copy.file)}"
    if lacks_library:
        remedy = "install it, and type this again"
    raise InputError(
        f"{copy.file.name} ended before it read its arguments: {reason}{log_clause}; {remedy}; nothing was changed"
    )


def searches_only_constants(parsed_script: Script, requested: Collection[str], names_in_file: Sequence[str]) -> bool:
    """Return whether the user wants to search values in the text of a script that runs without arguments, and no others.

    Values of its settings file come before those.
    """
    constants = map(str.lower, _own_constants(parsed_script, requested, names_in_file))
    return _may_run_alone(parsed_script) and bool(requested) and {name.lower() for name in requested} <= set(constants)


def _own_constants(parsed_script: Script, requested: Collection[str], names_in_file: Collection[str]) -> dict[str, Option]:
    """Return the values in the text of a script that the user wants to search, by name, and that nothing else has."""
    # With GLOBALS, the script's options are the values in its text.
    other_options = () if parsed_script.style is Style.GLOBALS else parsed_script.options
    return _requested_constants(parsed_script, requested, [*names_in_file, *(option.name for option in other_options)])


def _may_run_alone(parsed_script: Script) -> bool:
    """Return whether a script may run without arguments."""
    return parsed_script.style in _RUN_ALONE and not any(option.required for option in parsed_script.options)


def beside_constants(
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
    module, values, declared = _module_constants(copy, path, requested, declared, in_file, constants)
    if not values:
        return None
    names_in_module = {option.name for option in script.settings_options(script_folder.source(copy.folder / module), module)}
    if constants.keys() & names_in_module:  # a trial would replace both values
        return None
    if mixed := beside_constants(parsed_script, module, [*values.values()], requested):
        return mixed
    style = parsed_script.style if lists_arguments else Style.SETTINGS
    parsed_script = dataclasses.replace(parsed_script, style=style, config=module, in_file=tuple(values))
    options = (*values.values(), *(declared.options if lists_arguments else ()))
    return parsed_script, dataclasses.replace(declared, options=options)


def as_globals(parsed_script: Script) -> Script:
    """Return a script whose parameters replace values in its text."""
    return dataclasses.replace(parsed_script, style=Style.GLOBALS, options=parsed_script.values)


def command_parameters(copy: ScriptCopy, command: Script, requested: Collection[str]) -> tuple[Script, Declared]:
    """Return a command that calls a Python script, with the form of further arguments, and the command's parameters.

    The parameters are the numbers in the command line, the values of a settings file that the command names, and the
    arguments that the script declares, which are appended to the command. If both the file and the script have a parameter,
    a trial sets it in both, as either may override the other.

    Args:
        copy: Copy of the job's folder.
        command: The command.
        requested: Names of the parameters that the user wants to search; none to guess.

    Raises:
        InputError: The script has a search of its own, and the command no parameter to search.
        SpecError: There are no parameters, or a file is not Python or YAML.
    """
    assert command.call is not None
    call = command.call
    path = Path(os.path.normpath(copy.folder / call.folder / call.script))
    called_script = _read_called_script(path, call, command, requested)
    # Of an installed program, the path is absolute.
    name = path.relative_to(copy.folder).as_posix() if path.is_relative_to(copy.folder) else str(path)
    called_copy = dataclasses.replace(copy, name=name)
    declared, appended = _called_parameters(called_copy, called_script, call, requested)
    called = _Called(called_copy, call, called_script, declared, appended)
    command = _with_placeholders(command, called, requested)
    # First the parameters in the command line, then those in a file, then the arguments that can be appended.
    in_command = _options_in_command(command, declared)
    command, in_file, declared = _options_in_file(command, called, in_command, requested)
    in_file, left_out = _not_overridden(declared, command, in_file)
    appendable = _appendable_options(declared, command, in_command, appended)
    searched_variables = () if requested else guess.space([*in_command.values()])
    appendable, unknown_names = _with_typed_values(appendable, call, searched_variables)
    in_file, appendable = _with_flags(in_file, appendable)
    # The command runs without them today, so none is required.
    appended_options = [dataclasses.replace(option, required=False) for option in appendable.values()]
    options = (*in_command.values(), *in_file.values(), *appended_options)
    if not options and declared.failure:
        reason = f"its script ended before it read its arguments: {declared.failure}"
        raise InputError(f"{copy.file} has no named numbers that could be parameters, and {reason}; nothing was changed")
    if not options and not requested:
        raise placeholders.no_parameters_error(str(copy.file))
    has_likely = bool(requested or guess.space(options) or guess.positive_floats(options))
    if declared.failure.startswith(_MISSING_LIBRARY) and not has_likely:  # the script's arguments may be likely
        raise InputError(f"{copy.file}: {not_asked(declared)}; install it, and type this again; nothing was changed")
    shared_in_command = (*script.shared_outputs(call.arguments), *script.shared_ports(str(copy.file)))
    command = dataclasses.replace(
        command,
        options=options,
        config=command.config if in_file else "",
        further_configs=command.further_configs if in_file else (),
        appended=appended,
        in_file=tuple(in_file),
        shared_paths=tuple(dict.fromkeys((*shared_in_command, *called_script.shared_paths))),
        top_modules=called_script.top_modules,
        late_modules=called_script.late_modules,
        unknown=tuple(unknown_names),
    )
    declared = dataclasses.replace(declared, options=options, left_out=(*declared.left_out, *left_out))
    return command, dataclasses.replace(declared, subcommands=(), overrides=False, function="")


@dataclasses.dataclass(frozen=True)
class _Called:
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


def _with_placeholders(command: Script, called: _Called, requested: Collection[str]) -> Script:
    """Return a command with placeholders for values whose names only its script knows, such as positional arguments."""
    call, declared = called.call, called.declared
    positions = _positional_parameters(called.script, declared, call, requested) | _attached_parameters(declared, call)
    command = placeholders.with_names(
        placeholders.with_positions(command, positions), _options_of_short_flags(command, declared)
    )
    known_names = {option.name for option in (*command.options, *declared.options)}
    searched = {name.lower() for name in set(requested) - known_names}
    variables = [option for option in called.script.variables if option.name.lower() in searched]
    return placeholders.with_variables(command, variables)


def _options_in_file(
    command: Script, called: _Called, in_command: Mapping[str, Option], requested: Collection[str]
) -> tuple[Script, dict[str, Option], Declared]:
    """Return a command with the file whose values a trial replaces in a copy, these values by name, and the other arguments.

    Of these files, a later one replaces an earlier one:
    1. The settings file that the command names, unless arguments override its values.
    2. The called script or a module with its settings, if neither the command, the settings file nor the arguments have a
       parameter worth a search.
    3. The called script, if a requested name is a constant in it and none is in the file so far.
    4. A module that sets a requested name; see `_module_constants`.
    There may be none.
    """
    declared = called.declared
    in_file = _settings_of_command(command, called, in_command)
    known_options = [*in_command.values(), *in_file.values(), *declared.options]
    has_parameters = bool(in_command or called.appended or guess.space(known_options))
    # Appended arguments are of no use if none is worth a search, and the user requests none.
    is_of_use = bool(requested or declared.failure or guess.space(known_options) or guess.positive_floats(known_options))
    if not has_parameters or (called.appended and not is_of_use):
        text_values = {called.copy.name: called.script.values, **_module_values(called.copy, called.script)}
        config = next((name for name, values in text_values.items() if guess.space(values)), called.copy.name)
        if not has_parameters or guess.space(text_values[config]):
            in_file = {option.name: option for option in text_values[config]}
            command = dataclasses.replace(command, config=config, further_configs=())
    constants = _requested_constants(called.script, requested, [*in_command, *in_file, *_spellings(declared.options)])
    if constants and not _share_names(requested, in_file):  # a trial can replace values of one file only
        in_file = constants
        command = dataclasses.replace(command, config=called.copy.name, further_configs=())
    if called.script.style is not Style.HYDRA:  # which does not list all keys
        path = [Path(called.call.folder), *_python_path(called.call)]
        typed = called.call.arguments
        module, constants, declared = _module_constants(called.copy, path, requested, declared, in_file, in_command, typed)
        if constants:
            in_file = constants
            command = dataclasses.replace(command, config=module, further_configs=())
    return command, in_file, declared


def _settings_of_command(command: Script, called: _Called, in_command: Mapping[str, Option]) -> dict[str, Option]:
    """Return the values of the settings file that a command names, by name; {} if arguments of its script override them."""
    if called.script.style is Style.CONFIGURATOR:
        return {}
    in_file = {option.name: option for option in command.options if option.name not in in_command}
    declared = called.declared
    # A flag of ml_collections: with --config, the arguments config.lr, … override lr, … of the file.
    flags = [word.lstrip("-").partition("=")[0] for word in called.call.arguments if word.startswith("-")]
    if {option.name for option in declared.options} & {f"{flag}.{key}" for flag in flags for key in in_file}:
        return {}
    # A parser such as ConfigArgParse reads a file whose values are all its arguments.
    declared_names = [*_spellings(declared.options), *(text.partition(":")[0].lstrip("-") for text in declared.left_out)]
    declares_all = set(map(settings.normalized, in_file)) <= set(map(settings.normalized, declared_names))
    return {} if declares_all and not command.config.endswith(settings.SUFFIXES) else in_file


def _module_constants(
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
    known_names = [*in_command, *in_file, *_spellings(declared.options)]
    missing = [name for name in requested if not any(settings.may_mean(name, known_name) for known_name in known_names)]
    if not lists_all or _share_names(requested, in_file):
        return "", {}, declared
    roots = [copy.path.parent, *(Path(os.path.normpath(copy.folder / entry)) for entry in path)]
    names_by_text = _names_by_text((*declared.options, *in_command.values()), typed)
    in_module = module_files.with_values(missing, copy.path, copy.folder, roots, names_by_text)
    if in_module is None:
        return "", {}, declared
    module, keys = in_module.module, ", ".join(in_module.keys)
    choosing = [name for text in sorted(in_module.texts) for name in names_by_text[text]]
    for name in choosing:
        if _share_names([name], requested):
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


def _share_names(names: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether a name is among others, perhaps in another spelling."""
    return not set(map(settings.normalized, names)).isdisjoint(map(settings.normalized, others))


def _with_flags(
    in_file: Mapping[str, Option], appendable: Mapping[str, Option]
) -> tuple[dict[str, Option], dict[str, Option]]:
    """Return the values in a file, with the flag of the argument that also sets a value, and the other arguments.

    A trial sets such a value in both, as either may override the other.
    """
    values, others = dict(in_file), dict(appendable)
    for name, argument in appendable.items():
        if key := name if name in values else settings.overridden_key(name, values):
            values[key] = dataclasses.replace(values[key], flag=argument.flag, choices=argument.choices)
            del others[name]
    return values, others


def _options_in_command(command: Script, declared: Declared) -> dict[str, Option]:
    """Return the options whose values a command line has, by name, with the types that the script declares for them."""
    names = {name for _, name in arguments.placeholders(command.command)}
    return {
        option.name: _with_declared_type(option, _typed_option(option.name, command, declared))
        for option in command.options
        if option.name in names
    }


def _positional_parameters(
    called_script: Script, declared: Declared, call: script.Call, requested: Collection[str]
) -> dict[int, Option]:
    """Return the parameters that positional arguments of a call are, by their index among its arguments.

    These are numbers, and others that the user wants to search, also if the call lacks them.
    """
    if called_script.style is Style.POSITIONS:
        indices = list(range(len(call.arguments)))
        options: Sequence[Option] = called_script.options
    else:
        indices = _positional_indices(declared, call)
        options = [option for option in declared.options if not option.flag] if not declared.subcommands else []
    if any(option.lists for option in options):  # it takes any number of arguments, so an index is not of one option
        return {}
    values: dict[int, Option] = {}
    for option, index in zip(options, indices, strict=False):
        value = literals.with_default(option, call.arguments[index])
        if option.name in requested or isinstance(value.default, (int, float)):
            values[index] = value
    missing = options[len(indices) :]  # from the call
    # All up to the last requested one are added, and those before it need a value.
    count = max((number for number, option in enumerate(missing, 1) if option.name in requested), default=0)
    if all(option.default is not None for option in missing[:count]):
        values |= dict(enumerate(missing[:count], len(call.arguments)))
    return values


def _module_values(copy: ScriptCopy, parsed_script: Script) -> dict[str, Sequence[Option]]:
    """Return the values in the modules with settings that a script imports, by the path of the module in the copy."""
    files = [copy.path.parent / name for name in parsed_script.config_modules]
    return {
        file.relative_to(copy.folder).as_posix(): script.settings_options(script_folder.source(file), file.name)
        for file in files
        if file.is_file()
    }


def _attached_parameters(declared: Declared, call: script.Call) -> dict[int, Option]:
    """Return the parameters whose numbers follow a short flag without a space, as in `-b16`, by their index in a call."""
    options = {flag: option for option in declared.options for flag in (option.flag, *option.aliases)}
    values: dict[int, Option] = {}
    for index, word in enumerate(call.arguments):
        match = re.fullmatch(rf"(-\w)({settings.NUMBER})", word)
        is_flag_with_number = match is not None and word not in options and match[1] in options  # and no flag such as -1
        if match is not None and is_flag_with_number and not options[match[1]].style:  # it is not a boolean
            values[index] = literals.with_default(dataclasses.replace(options[match[1]], flag=match[1]), match[2])
    return values


def _options_of_short_flags(command: Script, declared: Declared) -> dict[str, Option]:
    """Return the options that short flags of a command stand for, by the names that the command gives to their values.

    If `-n` is short for `--epochs` of the script, they are {"n": epochs} for `-n 5`, and {"vn": epochs} for `-vn 5` with a
    switch `-v`.
    """
    assert command.call is not None
    typed_flags = {word.partition("=")[0] for word in command.call.arguments}
    names = {option.name for option in command.options}
    options = {name: _typed_option(name, command, declared) for name in names if f"-{name}" in typed_flags}
    return {name: option for name, option in options.items() if option is not None and option.name not in names}


def _positional_indices(declared: Declared, call: script.Call) -> list[int]:
    """Return the indices of the arguments of a call that are neither flags nor values of flags.

    Empty if an argument follows a flag that is not known, as it may be the flag's value. A flag may be the beginning of
    another one, as argparse takes `--batch` for `--batch-size`, if no other flag begins so.
    """
    options_by_flag = {flag: option for option in declared.options for flag in (option.flag, *option.aliases)}
    switches = {flag for flag, option in options_by_flag.items() if option.style in ("switch", "negated")}
    switches |= {*declared.switches, "--"}
    flags = {*options_by_flag, *switches}
    indices: list[int] = []
    option: Option | None = None  # of the last flag
    takes_value = False  # whether the next word may be a value of it
    for index, word in enumerate(call.arguments):
        if word.startswith("-") and not re.fullmatch(settings.NUMBER, word):
            flag, equals_sign, _ = word.partition("=")
            longer_flags = [known_flag for known_flag in flags if known_flag.startswith(flag)]
            if flag not in flags and len(longer_flags) == 1:
                (flag,) = longer_flags
            option = options_by_flag.get(flag)
            takes_value = not equals_sign and flag not in switches
        elif not takes_value:
            indices.append(index)
        elif option is None:
            return []
        else:
            takes_value = bool(option.lists)
    return indices


def _typed_option(name: str, command: Script, declared: Declared) -> Option | None:
    """Return the option that a name in a command line stands for, by one of its flags; None without one.

    A typed flag may be the beginning of one, as argparse takes `--batch` for `--batch-size`, if no other option begins so.
    Short flags may be one word.
    """
    short_flags = {flag for option in declared.options for flag in (option.flag, *option.aliases)}
    options_by_flag = {
        flag.lstrip("-"): option for option in declared.options for flag in (option.name, option.flag, *option.aliases)
    }
    if name in options_by_flag:
        return options_by_flag[name]
    if all(f"-{letter}" in declared.switches for letter in name[:-1]) and f"-{name[-1]}" in short_flags:  # as in -vn 5
        return options_by_flag[name[-1]]
    typed_flags = [] if command.call is None else [word.partition("=")[0] for word in command.call.arguments]
    if f"--{name}" not in typed_flags:
        return None
    options = {option.name: option for flag, option in options_by_flag.items() if flag.startswith(name)}
    return next(iter(options.values())) if len(options) == 1 else None


def _read_called_script(path: Path, call: script.Call, command: Script, requested: Collection[str]) -> Script:
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
    subcommand_name = subcommand(call.arguments)
    # A subcommand other than the one that has the search does not start it. It may be unknown which one has it.
    may_search = not subcommand_name or called_script.searching in ("", subcommand_name)
    if may_search:
        is_chosen = bool(requested or (subcommand_name and not called_script.searching))
        _print_search(call, called_script, command, is_chosen=is_chosen)
    if requested or subcommand_name:  # the parameters besides those of the search are meant
        return script.read(script_text, call.script, module_text, with_search=False, requested=requested)
    return called_script


def subcommand(words: Sequence[str]) -> str:
    """Return the subcommand among the arguments of a command, their first word; "" if that does not look like one."""
    return words[0] if words and _SUBCOMMAND.fullmatch(words[0]) else ""


def _not_overridden(
    declared: Declared, command: Script, in_file: Mapping[str, Option]
) -> tuple[dict[str, Option], tuple[str, ...]]:
    """Return the values of a settings file that no flag of a command overrides, and a remark on each of the others."""
    flags = [word.partition("=")[0] for word in command.call.arguments] if command.call is not None else []
    typed_options = [option for option in declared.options if set(option.aliases) & set(flags)]
    flags += [alias for option in typed_options for alias in option.aliases]
    overriding = settings.overriding_flags([*command.command, *flags], in_file)
    names = {option.name for option in command.options}
    remarks = tuple(
        f"{key} of {command.config}: {flag} of the command overrides it"
        for key, flag in overriding.items()
        if not (flag.endswith(f".{key}") and flag.lstrip("-") in names)  # `layers` then means `config.layers`
    )
    return {key: option for key, option in in_file.items() if key not in overriding}, remarks


def _requested_constants(
    parsed_script: Script, requested: Collection[str], declared_names: Collection[str]
) -> dict[str, Option]:
    """Return the values in the text of a script that the user wants to search, by name, except those that arguments set."""
    spellings = set(map(settings.normalized, declared_names))
    options = (option for option in parsed_script.values if settings.normalized(option.name) not in spellings)
    requested_names = {name.lower() for name in requested}
    return {option.name: option for option in options if option.name.lower() in requested_names}


def _spellings(options: Sequence[Option]) -> list[str]:
    """Return the names of options, and their flags without dashes."""
    return [text.lstrip("-") for option in options for text in (option.name, option.flag, *option.aliases)]


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


def _appendable_options(
    declared: Declared, command: Script, in_command: Collection[str], appended: str
) -> dict[str, Option]:
    """Return the options with a flag that can be appended to a command, by name: those that it does not set already.

    Args:
        declared: Options of the script that the command calls.
        command: The command.
        in_command: Names of the options that the command line sets to a parameter.
        appended: Form of appended arguments: FLAGS, HYDRA, or "".
    """
    set_names = set(in_command)
    if command.call is not None and appended == arguments.HYDRA:
        # Hydra refuses an override that is given twice. Other parsers use the last value.
        set_names |= {word.partition("=")[0] for word in command.call.arguments}
    # The name of the flag may differ from that of the parameter: `--learning_rate {lr}`, `--layers 1,1,{width}`.
    set_names |= set(re.findall(r"--?([\w.-]+)[ =]+[^\s{]*\{", " ".join(command.command)))
    set_names |= {option.name for name in set_names if (option := _typed_option(name, command, declared)) is not None}
    set_names = {name.replace("-", "_") for name in set_names}  # tyro takes --learning_rate for --learning-rate

    def is_set(option: Option) -> bool:
        """Return whether the command sets an option, by any of its flags."""
        names = (option.name, *(alias.lstrip("-") for alias in option.aliases))
        return any(name.replace("-", "_") in set_names for name in names)

    return {option.name: option for option in declared.options if option.flag and not is_set(option)}


def _with_typed_values(
    options: Mapping[str, Option], call: script.Call, likely: Collection[str]
) -> tuple[dict[str, Option], list[str]]:
    """Return options with the values that a call gives them, and the names of those whose value only the shell knows.

    An option whose value is that of a variable which is searched itself is left out.

    Args:
        options: The options by name.
        call: The call. Its arguments may be those of a shell script: `--lr ${LR:-0.3}`.
        likely: Names of the variables that are searched.
    """
    flags = {flag for option in options.values() for flag in (option.flag, *option.aliases)}
    words: list[str] = []
    for word in call.arguments:  # `--lr=0.1` is `--lr` and `0.1`, but `a=b` of `--tag a=b` stays
        words += word.split("=", 1) if word.partition("=")[0] in flags else [word]
    typed_options, unknown_names = dict(options), list[str]()
    for name, option in options.items():
        values = [value for flag, value in itertools.pairwise(words) if flag in (option.flag, *option.aliases)]
        if not values or option.lists or option.kind == "bool":
            continue
        variables = re.findall(r"\$\{?(\w+)", values[-1])  # LR of ${LR:-0.3}
        if set(variables) & set(likely):
            del typed_options[name]
        elif (text := _shell_value(values[-1], call.variables)) is None:
            unknown_names.append(name)
        else:
            typed_options[name] = literals.with_default(option, text)
    return typed_options, unknown_names


def _shell_value(word: str, variables: Mapping[str, str]) -> str | None:
    """Return the value of a word of a shell script: 0.3 of `${LR:-0.3}` without a variable LR. None if it is not known."""
    reference = _REFERENCE.fullmatch(word)
    if reference is None:
        return None if set(word) & set("$`") else word
    value, fallback = variables.get(reference[1]), reference[2]
    if value is not None and "$" not in value:
        return value
    return _shell_value(fallback, variables) if fallback else None


def _with_choices(declared: Declared, parsed_script: Script) -> Declared:
    """Return the arguments of a script, with the choices of an optimizer and the like that its text shows."""
    options = tuple(guess.with_choices(option, parsed_script.compared) for option in declared.options)
    return dataclasses.replace(declared, options=options)


def _called_parameters(
    copy: ScriptCopy, called_script: Script, call: script.Call, requested: Collection[str]
) -> tuple[Declared, str]:
    """Return the arguments of a script that a command calls, and their form: FLAGS, HYDRA, PAIRS, or "" if it declares none.

    If the script ends before it reads its arguments, there are none, but the reason.
    """
    folder = copy.folder / call.folder
    may_merge = _may_merge_arguments(copy, called_script)
    if called_script.style is Style.PARSED or may_merge:
        start = dataclasses.replace(copy.start, cwd=call.folder, module=call.module)
        declared, log_clause = _probe_arguments(dataclasses.replace(copy, start=start), call.arguments, call.variables)
        if declared.failure and may_merge:
            has_own_flags = called_script.style is Style.ATTRIBUTES
            return Declared(called_script.options), arguments.FLAGS if has_own_flags else ""
        if declared.failure:
            return Declared(failure=f"{errors.shortened(declared.failure, 300)}{log_clause}"), ""
        declared = _with_choices(_without_flags_after_pairs(declared, call), called_script)
        if declared.overrides:
            return declared, arguments.HYDRA
        return declared, arguments.PAIRS if declared.pairs else arguments.FLAGS
    if called_script.style is Style.HYDRA:
        hydra_copy = dataclasses.replace(copy, file=Path(call.script), folder=folder, name=call.script)
        return _hydra_parameters(hydra_copy, called_script, requested, call.arguments, call.variables), arguments.HYDRA
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


def _with_declared_type(option: Option, declared: Option | None) -> Option:
    """Return an option of a command line, with the type and the choices that the script declares for it.

    Its value stays as it is typed: 2 is not passed as 2.0 although the script takes floats. The option is returned unchanged
    if the script does not declare it, or one of them is not a number.
    """
    if declared is None or not isinstance(option.default, (int, float)) or declared.kind not in ("int", "float"):
        return option
    aliases = (declared.flag, *declared.aliases)
    return dataclasses.replace(option, kind=declared.kind, choices=option.choices or declared.choices, aliases=aliases)


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


def _hydra_parameters(
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
    log = copy.scratch / "composed.yaml"
    command = [*copy.start.words(copy.name), "--cfg", "job"]  # prints the configuration and ends
    environ = {**variables, **_probe_environment(copy.scratch), "PYTHONWARNINGS": "ignore"}  # the log has stderr too
    process_end = bounded.run(command, copy.folder, environ, log, _LONGEST_PROBE)
    with contextlib.suppress(SpecError):  # the output is no configuration
        composed = log.read_text(encoding="utf-8", errors="replace") if process_end.code == 0 else ""
        if options := script.hydra_options(composed, copy.file.name):
            return Declared(tuple(options))
    raise InputError(
        f"{copy.file.name} names no existing Hydra configuration; `platform import hydra FILE` reads one with a "
        f"sweep, and `python {copy.file.name} -m hydra/sweeper=trialplane` needs no job at all; or name the parameters, "
        f"those that no configuration has as +NAME: {_submit_command(copy.file, '--set arguments=hydra')}"
    )


def hydra_config(file: Path, parsed_script: Script) -> Path | None:
    """Return the file of the Hydra configuration that a script names; None if it names none, or the file does not exist."""
    if not parsed_script.config:
        return None
    paths = [Path(os.path.normpath(file.parent / f"{parsed_script.config}{suffix}")) for suffix in (".yaml", ".yml")]
    return next((path for path in paths if path.is_file()), None)


def _advice(copy: ScriptCopy) -> str:
    """Return advice to the user for a script whose arguments are not known."""
    file, text = copy.file, script_folder.source(copy.path)
    if flag := _GIN.search(text):
        argument = f"--set 'arguments=[\"--{flag[1]}=FUNCTION.NAME={{FUNCTION.NAME}}\"]'"
        command = _submit_command(file, argument, space="FUNCTION.NAME")
        return f"{file.name} is configured by gin; this searches a value: {command}"
    if _reads_wandb_config(text):
        reason = "reads its parameters from wandb.config, and has no sweep that can be read"
        command = _submit_command(file, "--set arguments=none --set capture=wandb")
        return f"{file.name} {reason}; this searches it: {command}"
    if reach.reads_nothing(copy.path, (copy.folder,)):
        command = _submit_command(file, "--set arguments=globals")
        return (
            f"{file.name} reads no arguments, and assigns no single value that looks worth searching. If NAME has one "
            f"single value in its text, this searches it: {command}; if not, {_BY_PARAMS}"
        )
    return (
        f"{file.name} uses no known parser, and assigns no single value that looks worth searching. "
        f"If it takes --NAME=VALUE, this searches it: {_submit_command(file)}; if it takes NAME=VALUE, with --set "
        "arguments=hydra; if it takes values alone, with --set 'arguments=[\"{NAME}\"]'; if NAME has one single value in "
        f"its text, with --set arguments=globals; or {by_command(file)}. If none of these holds, {_BY_PARAMS}"
    )


def _reads_wandb_config(text: str) -> bool:
    """Return whether a script has its parameters in wandb.config only: neither arguments nor bindings of gin."""
    return "wandb.config" in text and not script.ARGUMENTS.search(text) and not _GIN.search(text)


def by_command(file: Path = Path("train.py")) -> str:
    """Return the clause that says how a job is made of a script that gets arguments, or of another program."""
    command = f"python {importing.shell_path(file)} --lr 0.1"
    return (
        f"give the command that you type today, in quotes, with its numbers: `platform init --from {shlex.quote(command)}`"
    )


def _submit_command(file: Path, further_options: str = "", *, space: str = "NAME") -> str:
    """Return the command, in backticks, that runs a study of a script without a job.yaml."""
    script_options = f"{importing.shell_path(file)} --space {space}=LOW..HIGH --objective METRIC:min --local"
    return f"`{f'platform submit hpo {script_options} {further_options}'.strip()}`"


def _probe_environment(scratch: Path) -> dict[str, str]:
    """Return additional environment variables for a process that only reads a script's arguments or configuration.

    With them, the process writes no bytecode into the copy, and nothing to W&B or the user's MLflow.
    """
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),  # as for a trial
        "PYTHONDONTWRITEBYTECODE": "1",
        "WANDB_MODE": "disabled",
        "MLFLOW_TRACKING_URI": f"sqlite:///{scratch}/unused.db",
    }


def _probe_arguments(
    copy: ScriptCopy, typed: Sequence[str] = (), typed_variables: Mapping[str, str] = MappingProxyType({})
) -> tuple[Declared, str]:
    """Run a script in another process until it reads its arguments.

    Args:
        copy: Copy of the script.
        typed: Arguments of the script in the user's command.
        typed_variables: Environment variables that the command sets.

    Returns:
        The arguments that the script declares, and a clause of a message that names the log of a failure; "" without one.
    """
    declared_file = copy.scratch / "declared.json"
    variables = {**typed_variables, **copy.secrets, **_probe_environment(copy.scratch)}
    exported = os.environ.get("PYTHONPATH", "")
    python_path = [typed_variables.get("PYTHONPATH", exported), *(str(copy.folder / entry) for entry in copy.start.path)]
    if any(python_path):
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
    command = [sys.executable, "-P", "-m", "trialplane.worker.setup.declaring", str(copy.path), str(declared_file)]
    command += [copy.start.module, *typed]
    log = copy.scratch / "declaring.log"
    process_end = bounded.run(command, copy.folder / copy.start.cwd, variables, log, _LONGEST_PROBE)
    try:
        declared = records.from_json(Declared, declared_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        is_timeout = process_end.code is None
        reason = f"it took more than {_LONGEST_PROBE:.0f} seconds" if is_timeout else process_end.cause
        declared = Declared(failure=reason)
    log_clause = process_end.keep_log(copy.file.stem) if declared.failure else ""
    return declared, f"; {log_clause}" if log_clause else ""


def refuse_unknown(
    space: Mapping[str, Mapping[str, Any]],
    copy: ScriptCopy,
    parsed_script: Script,
    declared: Declared,
    title: str,
    started_commands: Sequence[str] = (),
    typed: str = "",
) -> None:
    """Check that a script has the parameters that the user wants to search.

    Args:
        space: The parameters, by name.
        copy: Copy of the script.
        parsed_script: Content of the script.
        declared: Its arguments.
        title: Name of the script for messages.
        started_commands: Commands that make the jobs of the Python commands that a shell script starts.
        typed: The user's command.

    Raises:
        InputError: The script lacks one. The message has similar names, or for Hydra the reason that Hydra gives.
    """
    known_names = {option.name for option in declared.options}
    unknown_names = _unknown_names(space, declared, title)
    if not unknown_names:
        return
    reason = ""
    if parsed_script.style is Style.HYDRA and parsed_script.config:
        # The composed configuration may have more parameters than the files that were read.
        hydra_error = _override_error(unknown_names, copy)
        if hydra_error is None:
            return
        reason = f" ({hydra_error})"
    if declared.failure:
        names_text = " and no ".join(unknown_names)
        raise InputError(f"{title} has no parameter {names_text}, and {not_asked(declared)}; nothing was changed")
    call = parsed_script.call or script.Call(copy.name)
    names_in_files = [name for name in unknown_names if not (_longer_names(name, known_names) or _remark_on(name, declared))]
    default_files = _default_files(declared, copy.folder, call)
    keys = {name: _find_key(name, copy.folder, call.arguments, default_files) for name in names_in_files}
    # A script that reads no arguments opens only files that its code names.
    code = script_folder.module_text(copy.path) if reach.reads_nothing(copy.path, (copy.folder,)) else None
    in_files = {name: key for name, key in keys.items() if key and (code is None or Path(key.file).stem in code)}
    started_remedy = placeholders.started_remedy(started_commands)
    # Of a command that a shell script starts, the settings file is found.
    remedy = (
        f"; {started_remedy}"
        if in_files and started_remedy
        else _file_remedy(in_files, default_files, declared, call.folder, typed)
    )
    meant = {name: _meant_options(name, space, declared) or _meant_texts(space[name], copy, call) for name in unknown_names}
    remedy = remedy or _remedy_with_names(typed, meant)
    is_unlike_all = not any(
        _is_similar(name, known_names - set(space)) or _remark_on(name, declared) for name in unknown_names
    )
    if not remedy and is_unlike_all and started_remedy:
        remedy = f"; for an option that it does not set, {started_remedy}"
    elif not remedy and is_unlike_all and not reason:
        remedy = _unnamed_remedy(space, parsed_script, declared, typed)
        if not remedy and (copy.file.suffix == ".py" or parsed_script.call is not None):
            file_name, name = Path(call.script).name, unknown_names[0].rpartition(".")[2]
            remedy = f"; for a value without a name in {file_name}, set `{name} = VALUE` at its top and use {name} there"
    if is_unlike_all and not reason and len(unknown_names) == 1:
        remedy = _part_remedy(unknown_names[0], space[unknown_names[0]], typed) + remedy
    if places := [f"{option.name}: {option.default}, {option.place}" for option in declared.options if option.place]:
        remedy = f"; those without a name of their own are {'; '.join(places[:_MOST_PLACES])}{remedy}"
    hints = _names_with_hints(meant, space, declared, in_files)
    raise InputError(f"{title} has no parameter {'; and no '.join(hints)}{reason}{remedy}; nothing was changed")


def _unknown_names(names: Collection[str], declared: Declared, title: str) -> list[str]:
    """Return the names that a script does not have; [] if some may be its own, although it does not declare them.

    Names that cannot be checked are printed.
    """
    known_names = {option.name for option in declared.options}
    # jsonargparse lists `--model.backbone.help` in place of the arguments of a class that the command may choose.
    prefixes = {name: itertools.accumulate(name.split(".")[:-1], "{}.{}".format) for name in names}  # a, a.b of a.b.c
    unlisted_names = {name for name in names if any(f"{prefix}.help" in known_names for prefix in prefixes[name])}
    if unchecked_names := sorted(unlisted_names - known_names):
        output.note(f"{', '.join(unchecked_names)}: not checked, as jsonargparse lists no arguments of a class to choose")
    unknown_names = [name for name in names if name not in known_names | unlisted_names]
    is_misspelled = any(_is_similar(name, known_names - set(names)) for name in unknown_names)
    if unknown_names and declared.open and not is_misspelled:
        output.note(f"{', '.join(unknown_names)}: not checked, as {title} takes any --NAME=VALUE")
        return []
    # yacs lists no keys, and LightningCLI no arguments of its Trainer.
    lists_no_keys = declared.pairs and all(option.flag.startswith("-") for option in declared.options if option.flag)
    has_trainer = declared_arguments.LIGHTNING_CALLBACK in declared.subcommands
    return [] if lists_no_keys or has_trainer else unknown_names


def _is_similar(name: str, known_names: Collection[str]) -> bool:
    """Return whether a name may be a misspelled known one."""
    return bool(errors.similar(name, known_names))


def _names_with_hints(
    meant: Mapping[str, Sequence[Option]],
    requested: Collection[str],
    declared: Declared,
    in_files: Mapping[str, _FileKey],
) -> list[str]:
    """Return unknown names of parameters, each with a hint at the name or the file that the user may mean.

    Args:
        meant: The options that each unknown name may mean.
        requested: Names of all parameters that the user wants to search.
        declared: Arguments of the script.
        in_files: Key in a settings file of each name that one has.
    """
    known_names = {option.name for option in declared.options}
    other_names = known_names - set(requested)  # the user does not mean a name twice
    names_with_hints: list[str] = []
    for name in meant:
        remark = _remark_on(name, declared)
        longer_names = _longer_names(name, known_names)
        all_names = errors.nearest("", known_names)  # "there are …", which is printed once
        if name in in_files:
            names_with_hints.append(f"{name}; {in_files[name].file} has {in_files[name].key}")
        elif remark:
            names_with_hints.append(remark)
        elif longer_names:
            names_with_hints.append(f"{name}, but several: {' or '.join(longer_names)}")
        elif len(meant[name]) == 1:
            names_with_hints.append(f"{name}; did you mean {meant[name][0].name}?")
        elif _is_similar(name, other_names):
            names_with_hints.append(f"{name}; {errors.nearest(name, other_names)}")
        elif all_names and not any(all_names in text for text in names_with_hints):
            names_with_hints.append(f"{name}; {all_names}")
        else:
            names_with_hints.append(name)
    return names_with_hints


def _remark_on(name: str, declared: Declared) -> str:
    """Return the remark that says why a value of a settings file is not a parameter; "" without one."""
    return next((text for text in declared.left_out if text.startswith(f"{name} of ")), "")


def _longer_names(name: str, known_names: Collection[str]) -> list[str]:
    """Return the known names that end with a name: `A.drop` and `B.drop` for `drop`."""
    return sorted(known_name for known_name in known_names if known_name.endswith(f".{name}"))


def _remedy_with_names(typed: str, meant: Mapping[str, Sequence[Option]]) -> str:
    """Return the clause with the user's command and known names in place of unknown ones; "" if one of them has none.

    Args:
        typed: The user's command.
        meant: The options that each unknown name may mean.
    """
    if not typed or not all(meant.values()):
        return ""
    command = with_names(shlex.split(typed), {name: [option.name for option in options] for name, options in meant.items()})
    options = [option for options in meant.values() for option in options]
    if len(options) > len(meant):
        return f"; `{command}` searches each of them: leave out those that you do not mean"
    places = [
        f"the {option.default} in {option.place}{', which one layer puts out and the next takes in' * option.shared}"
        for option in options
        if option.place
    ]
    return f"; `{command}` searches {' and '.join(places)}" if places else f"; type `{command}`"


def _meant_options(name: str, space: Mapping[str, Mapping[str, Any]], declared: Declared) -> list[Option]:
    """Return the options that an unknown name may mean, except those that are searched anyway.

    Those that end with it, or else the one that is its last part or a similar name, or the size of a layer, or else those
    whose value is one of its choices: `optimizer=sgd,adam` may mean `optim.name`, which is sgd.
    """
    options = {option.name: option for option in declared.options if option.name not in space}
    last_part = re.split(r"\.|__", name)[-1]  # of `svc.C`, or `svc__C` of a pipeline
    names = _longer_names(name, options) or [last_part] * (last_part in options)
    if not names and not _remark_on(name, declared):
        shared_size = arguments.similar_size(name, (key for key, option in options.items() if option.shared))
        meant = errors.only_similar(name, options) or ("" if _is_similar(name, options) else shared_size)
        names = [meant] if meant else []
    choices = space[name].get("choices", ())
    return [options[key] for key in names] or [
        option for option in options.values() if option.kind == "str" and option.default in choices
    ]


def _meant_texts(parameter: Mapping[str, Any], copy: ScriptCopy, call: script.Call) -> list[Option]:
    """Return the texts in a script, or in a module that it imports, that are among the choices of a parameter."""
    choices = [choice for choice in parameter.get("choices", ()) if isinstance(choice, str)]
    file = copy.folder / call.folder / call.script
    path = [Path(call.folder), *_python_path(call), *map(Path, copy.start.path)]
    roots = [file.parent, *(Path(os.path.normpath(copy.folder / entry)) for entry in path)]
    texts = module_files.texts(choices, file, copy.folder, roots) if file.is_file() else []
    return [Option(text.name, f'"{text.text}"', place=f"{text.module}:{text.line}") for text in texts]


def _python_path(call: script.Call) -> list[Path]:
    """Return the folders of PYTHONPATH in a call, relative to the folder in which the command is typed."""
    return [Path(call.folder, entry) for entry in call.variables.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _part_remedy(name: str, parameter: Mapping[str, Any], typed: str) -> str:
    """Return the clause that says how a part of a value such as `1,1,64` is searched; "" for a command without such a value.

    It has the user's command if only one part is a value that the parameter can have.

    Args:
        name: Name of the parameter.
        parameter: Its fields in the space.
        typed: The user's command.
    """
    words = shlex.split(typed)
    index = words.index("--from") + 1 if "--from" in words else 0
    parts = [
        (composite, part)
        for composite in (_COMPOSITE.finditer(words[index]) if index else ())
        for part in _PART.finditer(words[index], *composite.span())
    ]
    if not parts:
        return ""
    fitting = [
        (composite, part)
        for composite, part in parts
        if script_job.contains(parameter, literals.with_default(Option(name), part[0]).default)
    ]
    composite, part = fitting[0] if len(fitting) == 1 else parts[-1]
    before, after = composite.string[: part.start()], composite.string[part.end() :]
    placeholder = f"{{{name}={part[0]}}}"
    if len(fitting) == 1:
        words[index] = f"{before}{placeholder}{after}"
        return f"; if {name} is the {part[0]} of {composite[0]}, type `{shlex.join(words)}`"
    example = f"{before[composite.start() :]}{placeholder}{after[: composite.end() - part.end()]}"
    return f"; if {name} is a part of {composite[0]}, write {{{name}=VALUE}} there in the command, as in `{example}`"


def _unnamed_remedy(space: Mapping[str, Mapping[str, Any]], parsed_script: Script, declared: Declared, typed: str) -> str:
    """Return the clause with the user's command, and unknown names at the numbers in it that have no name and that they fit.

    "" without such numbers.

    Args:
        space: The parameters that the user wants to search.
        parsed_script: The command, with its call of a script.
        declared: Its parameters.
        typed: The user's command.
    """
    words, call = shlex.split(typed), parsed_script.call
    if call is None or "--from" not in words:
        return ""
    index = words.index("--from") + 1
    before, program, argument_text = words[index].partition(call.script)
    head = f"{before}{program}"
    # Those that follow a flag have its name.
    numbers = [match for match in _NUMBER_WORD.finditer(argument_text) if not match["flag"]]
    in_command = {name for _, name in arguments.placeholders(parsed_script.command)}
    for option in declared.options:
        if option.name in in_command and not positions.is_unnamed(option):
            named = next((match for match in numbers if _number_of(match) == option.default), None)
            numbers = [match for match in numbers if match is not named]
    known_names = {option.name for option in declared.options}
    fitting = {
        name: [match for match in numbers if script_job.contains(parameter, _number_of(match))]
        for name, parameter in space.items()
        if name not in known_names
    }
    names: dict[re.Match[str], str] = {}
    for name in sorted(fitting, key=lambda name: len(fitting[name])):  # those with a choice come last
        if (match := next((match for match in fitting[name] if match not in names), None)) is not None:
            names[match] = name
    if not numbers or not fitting:
        return ""
    if not names:
        return f"; if {next(iter(fitting))} is a number in the command, write {{{next(iter(fitting))}=VALUE}} in its place"
    in_order = sorted(names, key=lambda match: match.start())
    meanings = " and ".join(f"{names[match]} is the {match['number']}" for match in in_order)
    if len(names) < len(fitting):  # so that the command would be refused, too
        placeholders = " and ".join(f"{{{names[match]}={match['number']}}}" for match in in_order)
        return f"; if {meanings} in the command, write {placeholders} there"
    for match in reversed(in_order):
        start, end = match.span("number")
        argument_text = f"{argument_text[:start]}{{{names[match]}={match['number']}}}{argument_text[end:]}"
    words[index] = f"{head}{argument_text}"
    return f"; if {meanings} in the command, type `{shlex.join(words)}`"


def _number_of(match: re.Match[str]) -> Any:
    """Return the number in a command that `_NUMBER_WORD` matches."""
    return literals.with_default(Option(""), match["number"]).default


def _override_error(names: Collection[str], copy: ScriptCopy) -> str | None:
    """Return the end of Hydra's message if a script does not accept overrides of parameters; None if it does."""
    command = [*copy.start.words(copy.name), "--cfg", "job", *(f"{name}=1" for name in names)]
    log = copy.scratch / "composed.log"
    process_end = bounded.run(command, copy.folder, _probe_environment(copy.scratch), log, _LONGEST_PROBE)
    if process_end.code == 0:
        return None
    text = log.read_text(errors="replace").partition("Set the environment variable HYDRA_FULL_ERROR")[0]
    return " ".join(text.split())[-_LONGEST_REASON:]


class _FileKey(NamedTuple):
    """A value in a settings file of a project.

    Attributes:
        file: Path of the file in the project.
        key: Its full key, such as `train.lr`.
    """

    file: str
    key: str


def _default_files(declared: Declared, folder: Path, call: script.Call) -> dict[str, Option]:
    """Return the settings files that are defaults of a script's options, by their paths in a project, with the options.

    Those below the script's own folder have no plain default: `add_argument("--hyp", default=ROOT / "hyps/low.yaml")`.

    Args:
        declared: Arguments of the script.
        folder: Folder of the project.
        call: Call of the script.
    """
    file = folder / call.folder / call.script
    text = script_folder.source(file) if file.suffix == ".py" and file.is_file() else ""
    options = {flag: option for option in declared.options for flag in (option.flag, *option.aliases) if flag}
    paths = {folder / call.folder / str(option.default): option for option in declared.options}
    for node in ast.walk(notebook.parse_or_empty(text)):
        if isinstance(node, ast.Call) and node.args and (flag := getattr(node.args[0], "value", "")) in options:
            defaults = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
            constants = [part for default in defaults for part in ast.walk(default) if isinstance(part, ast.Constant)]
            paths |= {file.parent / str(part.value): options[flag] for part in constants}
    normal = {
        Path(os.path.normpath(path)): option for path, option in paths.items() if path.name.endswith(settings.SUFFIXES)
    }
    return {
        path.relative_to(folder).as_posix(): option
        for path, option in normal.items()
        if path.is_relative_to(folder) and settings_file.is_small(path)
    }


def _find_key(name: str, folder: Path, words: Collection[str], default_files: Collection[str]) -> _FileKey | None:
    """Return the place of a name in the settings files of a project; None if none has it.

    A file or section that the command names is preferred, and a file that an option has as its default.

    Args:
        name: Last part of the key.
        folder: Folder of the project.
        words: Words of the command.
        default_files: Paths of the files that options have as their defaults.
    """
    candidates: list[tuple[bool, bool, _FileKey]] = []  # the least is the best: False is less than True
    named_files = sorted(file for file in folder.rglob("*.*") if file.name.endswith(settings.SUFFIXES))
    files = (file for file in named_files if settings_file.is_configuration(file, folder))
    for file in (*(folder / path for path in default_files), *itertools.islice(files, _MOST_SETTINGS_FILES)):
        for option in script.settings_options(file.read_text(encoding="utf-8", errors="replace"), file.name):
            *sections, last_part = option.name.split(".")
            if last_part == name:
                is_other_file = file.stem not in words and file.relative_to(folder).as_posix() not in default_files
                is_other_section = not any(part in words for part in (*sections, last_part))
                key = _FileKey(file.relative_to(folder).as_posix(), option.name)
                candidates.append((is_other_file, is_other_section, key))
    return min(candidates)[2] if candidates else None


def _file_remedy(
    in_files: Mapping[str, _FileKey], default_files: Mapping[str, Option], declared: Declared, folder: str, typed: str
) -> str:
    """Return the clause that says how names in a settings file are searched; "" without any.

    Args:
        in_files: File and key of each name.
        default_files: Option of each file that is the default of one.
        declared: Arguments of the script, some of which may name such a file, or take pairs of name and value.
        folder: Folder in which the script is started.
        typed: The user's command.
    """
    if not in_files:
        return ""
    name, (file, key) = next(iter(in_files.items()))  # the first is the example
    other_option = next((option for option in declared.options if script.CONFIG.fullmatch(option.name)), Option(""))
    file_option = default_files.get(file, other_option)
    pairs_flag = next((option.flag for option in declared.options if _TAKES_PAIRS.fullmatch(option.name)), "")
    typed_file = f"{file_option.flag} {os.path.relpath(file, folder)}".strip()
    remedy = f"; to search a value of {file}, write `{typed_file}` in the command, and `--space {key}=LOW..HIGH`"
    keys = {name: other.key for name, other in in_files.items() if other.file == file}
    if file_option.flag and typed and (command := _with_file(typed, file_option, typed_file, keys)):
        remedy += f": `{command}`"
    if pairs_flag:
        pair = f"{pairs_flag} {name}:{{{name}=VALUE}}"
        remedy += f"; or, if {pairs_flag} takes pairs of a name and a value, `{pair}` in the command"
    return remedy


def _with_file(typed: str, file_option: Option, typed_file: str, keys: Mapping[str, str]) -> str:
    """Return the user's `platform init` with arguments that name a settings file, and keys of the file for names.

    "" if the place of the arguments is not known: in a shell's syntax, or of something else than a Python script or command.

    Args:
        typed: The user's command.
        file_option: Option of the script that takes a settings file.
        typed_file: The arguments. They replace those of the option that the command has.
        keys: Key in the file of each name.
    """
    flags = "|".join(map(re.escape, {file_option.flag, *file_option.aliases}))
    words = shlex.split(typed)
    for index, (option, word) in enumerate(itertools.pairwise(words), 1):
        name, sign, range_text = word.partition("=")
        if option == "--space" and name in keys:
            words[index] = f"{keys[name]}{sign}{range_text}"
        elif option == "--from":
            is_file = Path(word).is_file()
            is_script = is_file and word.endswith(".py")
            is_command = " " in word and not is_file
            if shell.SYNTAX.search(word) or not (is_script or is_command):  # another file, such as a notebook
                return ""
            command = f"python {shlex.quote(word)}" if is_script else word
            # Without the option that it has: --config=a.yaml, -c "b.yaml"
            command = re.sub(rf"""\s(?:{flags})(?:=|\s+)(?:"[^"]*"|'[^']*'|\S+)(?!\S)""", "", command)
            words[index] = f"{command} {typed_file}"
    return shlex.join(words)


def not_asked(declared: Declared) -> str:
    """Return the clause that says why the arguments of a command's script are unknown."""
    return f"its script ended before it read its arguments, so only its command has parameters: {declared.failure}"


def declared_space(space: Mapping[str, Any], declared: Declared) -> dict[str, Any]:
    """Return a space with the names of the script's arguments, and with ranges of floats for those that are floats.

    The script may spell a name with dashes, as tyro writes learning-rate, or in capitals, as environment variables are, or
    know it as another flag of the same option. A value in its text or a file may have a longer or a shorter name. A name
    stays as it is if the script has it, or if it could mean several arguments.
    """
    floats = {option.name for option in declared.options if option.kind == "float" or isinstance(option.default, float)}
    named_space = {_declared_name(name, declared): parameter for name, parameter in space.items()}
    return {
        name: short_forms.with_float_range(parameter) if name in floats else parameter
        for name, parameter in named_space.items()
    }


def _declared_name(name: str, declared: Declared) -> str:
    """Return the name of the argument that a name of the space means; the name itself if it means none, or several."""
    options = declared.options
    if name in {option.name for option in options}:
        return name
    candidates = {option.name for option in options if _share_names([name], _spellings([option]))}
    if not candidates and not _remark_on(name, declared):
        # `lr` may mean `optim.lr` of a file, and `net.Model.hidden` may mean `Model.hidden` of the script's text.
        candidates = {
            option.name
            for option in options
            if option.name.endswith(f".{name}")
            or any("." in key and name.endswith(f".{key}") for key in (option.name, *option.aliases))
        }
    return candidates.pop() if len(candidates) == 1 else name
