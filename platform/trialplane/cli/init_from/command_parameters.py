"""The parameters of a command for `platform init --from`: in its words, in a settings file, or arguments of its script."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from trialplane.cli.init_from import calls, probe, requested_constants, script_of_command, space_names
from trialplane.cli.init_from.probe import ScriptCopy
from trialplane.cli.init_from.script_of_command import CalledScript
from trialplane.errors import InputError
from trialplane.importing import guess, literals, placeholders, script, script_folder
from trialplane.importing.script import Script, Style
from trialplane.job import arguments, settings
from trialplane.wire.declared import Declared, Option

_REFERENCE = re.compile(r"\$\{?(\w+)(?::?[-=](.*?))?\}?")  # $LR, ${LR} and ${LR:-0.3}


def find(copy: ScriptCopy, command: Script, requested: Collection[str]) -> tuple[Script, Declared]:
    """Return a command with the form of further arguments, and the command's parameters.

    The parameters are the numbers in the command line, the values of a settings file that the command names, and, if it
    calls a Python script, the arguments that the script declares, which are appended to the command. If both the file and
    the script have a parameter, a trial sets it in both, as either may override the other.

    Args:
        copy: Copy of the job's folder.
        command: The command.
        requested: Names of the parameters that the user wants to search; none to guess.

    Raises:
        InputError: The script has a search of its own, and the command no parameter to search.
        SpecError: There are no parameters, or a file is not Python or YAML.
    """
    if command.call is None:
        return _without_script(command)
    called = script_of_command.find(copy, command, command.call, requested)
    call, declared = called.call, called.declared
    command = _with_placeholders(command, called, requested)
    # First the parameters in the command line, then those in a file, then the arguments that can be appended.
    in_command = _options_in_command(command, declared)
    command, in_file, declared = _options_in_file(command, called, in_command, requested)
    in_file, left_out = _not_overridden(declared, command, in_file)
    appendable = _appendable_options(declared, command, in_command, called.appended)
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
    if probe.lacks_library(declared) and not has_likely:  # the script's arguments may be likely
        raise InputError(f"{copy.file}: {not_asked(declared)}; install it, and type this again; nothing was changed")
    shared_in_command = (*script.shared_outputs(call.arguments), *script.shared_ports(str(copy.file)))
    command = dataclasses.replace(
        command,
        options=options,
        config=command.config if in_file else "",
        further_configs=command.further_configs if in_file else (),
        appended=called.appended,
        in_file=tuple(in_file),
        shared_paths=tuple(dict.fromkeys((*shared_in_command, *called.script.shared_paths))),
        top_modules=called.script.top_modules,
        late_modules=called.script.late_modules,
        unknown=tuple(unknown_names),
    )
    declared = dataclasses.replace(declared, options=options, left_out=(*declared.left_out, *left_out))
    return command, dataclasses.replace(declared, subcommands=(), overrides=False, function="")


def _without_script(command: Script) -> tuple[Script, Declared]:
    """Return a command that calls no Python script, and its parameters: in its words, and in a file that it names."""
    if not command.config:
        return command, Declared(command.options)
    in_command = _options_in_command(command, Declared())
    in_file = {option.name: option for option in command.options if option.name not in in_command}
    in_file, left_out = _not_overridden(Declared(), command, in_file)
    options = (*in_command.values(), *in_file.values())
    return dataclasses.replace(command, options=options), Declared(options, left_out)


def _with_placeholders(command: Script, called: CalledScript, requested: Collection[str]) -> Script:
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


def _options_in_command(command: Script, declared: Declared) -> dict[str, Option]:
    """Return the options whose values a command line has, by name, with the types that the script declares for them."""
    names = {name for _, name in arguments.placeholders(command.command)}
    return {
        option.name: _with_declared_type(option, _typed_option(option.name, command, declared))
        for option in command.options
        if option.name in names
    }


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


def _with_declared_type(option: Option, declared: Option | None) -> Option:
    """Return an option of a command line, with the type and the choices that the script declares for it.

    Its value stays as it is typed: 2 is not passed as 2.0 although the script takes floats. The option is returned unchanged
    if the script does not declare it, or one of them is not a number.
    """
    if declared is None or not isinstance(option.default, (int, float)) or declared.kind not in ("int", "float"):
        return option
    aliases = (declared.flag, *declared.aliases)
    return dataclasses.replace(option, kind=declared.kind, choices=option.choices or declared.choices, aliases=aliases)


def _options_in_file(
    command: Script, called: CalledScript, in_command: Mapping[str, Option], requested: Collection[str]
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
    constants = requested_constants.in_text(
        called.script, requested, [*in_command, *in_file, *space_names.spellings(declared.options)]
    )
    if constants and not space_names.share_names(requested, in_file):  # a trial can replace values of one file only
        in_file = constants
        command = dataclasses.replace(command, config=called.copy.name, further_configs=())
    if called.script.style is not Style.HYDRA:  # which does not list all keys
        path = [Path(called.call.folder), *calls.python_path(called.call)]
        typed = called.call.arguments
        module, constants, declared = requested_constants.in_module(
            called.copy, path, requested, declared, in_file, in_command, typed
        )
        if constants:
            in_file = constants
            command = dataclasses.replace(command, config=module, further_configs=())
    return command, in_file, declared


def _settings_of_command(command: Script, called: CalledScript, in_command: Mapping[str, Option]) -> dict[str, Option]:
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
    declared_names = [
        *space_names.spellings(declared.options),
        *(text.partition(":")[0].lstrip("-") for text in declared.left_out),
    ]
    declares_all = set(map(settings.normalized, in_file)) <= set(map(settings.normalized, declared_names))
    return {} if declares_all and not command.config.endswith(settings.SUFFIXES) else in_file


def _module_values(copy: ScriptCopy, parsed_script: Script) -> dict[str, Sequence[Option]]:
    """Return the values in the modules with settings that a script imports, by the path of the module in the copy."""
    files = [copy.path.parent / name for name in parsed_script.config_modules]
    return {
        file.relative_to(copy.folder).as_posix(): script.settings_options(script_folder.source(file), file.name)
        for file in files
        if file.is_file()
    }


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


def not_asked(declared: Declared) -> str:
    """Return the clause that says why the arguments of a command's script are unknown."""
    return f"its script ended before it read its arguments, so only its command has parameters: {declared.failure}"
