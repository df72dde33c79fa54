"""The refusal of parameters that a script does not have: names that the user may mean, and the command that works."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.cli import output
from trialplane.cli.init_from import calls, command_parameters, probe, script_job, settings_file, space_names
from trialplane.cli.init_from.probe import ScriptCopy
from trialplane.cli.init_from.request import with_names
from trialplane.errors import InputError
from trialplane.importing import literals, placeholders, positions, script, script_folder, shell
from trialplane.importing.script import Script, Style
from trialplane.job import arguments, module_files, notebook, reach, settings
from trialplane.wire import declared as declared_arguments
from trialplane.wire.declared import Declared, Option

_MOST_SETTINGS_FILES = 200
_MOST_PLACES = 20  # values without a name of their own in a message
# Name of an argument that may take pairs of a name and a value.
_TAKES_PAIRS = re.compile(r"(?:hyper[_-]?)?param(?:eter)?s|hparams|overrides?|opts?")
_PART = re.compile(r"[\w.+-]+")  # of a value such as 1,1,64
_COMPOSITE = re.compile(rf"(?<![\w.,/+-]){_PART.pattern}(?:, ?{_PART.pattern})+(?![\w.,/+-])")
# A number between spaces, and the flag before it.
_NUMBER_WORD = re.compile(rf"(?<!\S)(?P<flag>-+[A-Za-z][\w-]* +)?(?P<number>{settings.NUMBER})(?!\S)")


def refuse(
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
    unknown_names = _unknown_names(space, declared, title)
    if not unknown_names:
        return
    reason = _hydra_reason(unknown_names, copy, parsed_script)
    if reason is None:
        return
    if declared.failure:
        names_text, cause = " and no ".join(unknown_names), command_parameters.not_asked(declared)
        raise InputError(f"{title} has no parameter {names_text}, and {cause}; nothing was changed")
    call = parsed_script.call or script.Call(copy.name)
    default_files = _default_files(declared, copy.folder, call)
    in_files = _keys_in_files(unknown_names, default_files, copy, call, declared)
    meant = {name: _meant_options(name, space, declared) or _meant_texts(space[name], copy, call) for name in unknown_names}
    started_remedy = placeholders.started_remedy(started_commands)
    if in_files and started_remedy:  # of a command that a shell script starts, the settings file is found
        remedy = f"; {started_remedy}"
    else:
        remedy = _file_remedy(in_files, default_files, declared, call.folder, typed) or _remedy_with_names(typed, meant)
    if _are_unlike_all(unknown_names, space, declared):
        if not remedy and started_remedy:
            remedy = f"; for an option that it does not set, {started_remedy}"
        if not reason:
            remedy = (
                remedy
                or _unnamed_remedy(space, parsed_script, declared, typed)
                or _assignment_remedy(unknown_names[0], copy, parsed_script, call)
            )
            remedy = _part_remedy(unknown_names, space, typed) + remedy
    hints = "; and no ".join(_names_with_hints(meant, space, declared, in_files))
    raise InputError(f"{title} has no parameter {hints}{reason}{_places_clause(declared)}{remedy}; nothing was changed")


def _hydra_reason(names: Collection[str], copy: ScriptCopy, parsed_script: Script) -> str | None:
    """Return the reason for which Hydra refuses unknown names, in brackets; "" without Hydra, None if it accepts them."""
    if parsed_script.style is not Style.HYDRA or not parsed_script.config:
        return ""
    # The composed configuration may have more parameters than the files that were read.
    hydra_error = probe.override_error(names, copy)
    return None if hydra_error is None else f" ({hydra_error})"


def _keys_in_files(
    names: Sequence[str], default_files: Collection[str], copy: ScriptCopy, call: script.Call, declared: Declared
) -> dict[str, _FileKey]:
    """Return the file and key of each unknown name that a settings file of the project has, if the script may read the file.

    Args:
        names: The unknown names.
        default_files: Paths of the files that options have as their defaults.
        copy: Copy of the script.
        call: Call of the script.
        declared: Its arguments.
    """
    known_names = {option.name for option in declared.options}
    # A script that reads no arguments opens only files that its code names.
    code = script_folder.module_text(copy.path) if reach.reads_nothing(copy.path, (copy.folder,)) else None
    in_files: dict[str, _FileKey] = {}
    for name in names:
        if _longer_names(name, known_names) or space_names.remark_on(name, declared):
            continue
        key = _find_key(name, copy.folder, call.arguments, default_files)
        if key is not None and (code is None or Path(key.file).stem in code):
            in_files[name] = key
    return in_files


def _are_unlike_all(names: Sequence[str], requested: Collection[str], declared: Declared) -> bool:
    """Return whether no unknown name is similar to one that the script has, or to a value that cannot be a parameter."""
    other_names = {option.name for option in declared.options} - set(requested)
    return not any(_is_similar(name, other_names) or space_names.remark_on(name, declared) for name in names)


def _assignment_remedy(name: str, copy: ScriptCopy, parsed_script: Script, call: script.Call) -> str:
    """Return the clause that says how a value in a Python script gets a name; "" for another program."""
    if copy.file.suffix != ".py" and parsed_script.call is None:
        return ""
    file_name, variable = Path(call.script).name, name.rpartition(".")[2]
    return f"; for a value without a name in {file_name}, set `{variable} = VALUE` at its top and use {variable} there"


def _places_clause(declared: Declared) -> str:
    """Return the clause that lists the values without a name of their own; "" without any."""
    places = [f"{option.name}: {option.default}, {option.place}" for option in declared.options if option.place]
    return f"; those without a name of their own are {'; '.join(places[:_MOST_PLACES])}" if places else ""


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
        remark = space_names.remark_on(name, declared)
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


def _longer_names(name: str, known_names: Collection[str]) -> list[str]:
    """Return the known names that end with a name: `A.drop` and `B.drop` for `drop`."""
    return sorted(known_name for known_name in known_names if known_name.endswith(f".{name}"))


def _meant_options(name: str, space: Mapping[str, Mapping[str, Any]], declared: Declared) -> list[Option]:
    """Return the options that an unknown name may mean, except those that are searched anyway.

    Those that end with it, or else the one that is its last part or a similar name, or the size of a layer, or else those
    whose value is one of its choices: `optimizer=sgd,adam` may mean `optim.name`, which is sgd.
    """
    options = {option.name: option for option in declared.options if option.name not in space}
    last_part = re.split(r"\.|__", name)[-1]  # of `svc.C`, or `svc__C` of a pipeline
    names = _longer_names(name, options) or [last_part] * (last_part in options)
    if not names and not space_names.remark_on(name, declared):
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
    path = [Path(call.folder), *calls.python_path(call), *map(Path, copy.start.path)]
    roots = [file.parent, *(Path(os.path.normpath(copy.folder / entry)) for entry in path)]
    texts = module_files.texts(choices, file, copy.folder, roots) if file.is_file() else []
    return [Option(text.name, f'"{text.text}"', place=f"{text.module}:{text.line}") for text in texts]


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


def _part_remedy(names: Sequence[str], space: Mapping[str, Mapping[str, Any]], typed: str) -> str:
    """Return the clause that says how a part of a value such as `1,1,64` is searched; "" for a command without such a value.

    "" for several names, too, as any of them could be the part.

    It has the user's command if only one part is a value that the parameter can have.

    Args:
        names: The unknown names.
        space: The parameters that the user wants to search.
        typed: The user's command.
    """
    if len(names) != 1:
        return ""
    (name,) = names
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
        if script_job.contains(space[name], literals.with_default(Option(name), part[0]).default)
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
    numbers = _unnamed_numbers(argument_text, parsed_script, declared)
    known_names = {option.name for option in declared.options}
    fitting = {
        name: [match for match in numbers if script_job.contains(parameter, _number_of(match))]
        for name, parameter in space.items()
        if name not in known_names
    }
    if not numbers or not fitting:
        return ""
    names = _names_of_numbers(fitting)
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
    words[index] = f"{before}{program}{argument_text}"
    return f"; if {meanings} in the command, type `{shlex.join(words)}`"


def _unnamed_numbers(argument_text: str, command: Script, declared: Declared) -> list[re.Match[str]]:
    """Return the numbers in the arguments of a command that have no name: no flag before them, and no position with one."""
    numbers = [match for match in _NUMBER_WORD.finditer(argument_text) if not match["flag"]]
    in_command = {name for _, name in arguments.placeholders(command.command)}
    for option in declared.options:
        if option.name in in_command and not positions.is_unnamed(option):
            named = next((match for match in numbers if _number_of(match) == option.default), None)
            numbers = [match for match in numbers if match is not named]
    return numbers


def _names_of_numbers(fitting: Mapping[str, Sequence[re.Match[str]]]) -> dict[re.Match[str], str]:
    """Return a name for each number, as far as there are some. `fitting` has the numbers that each name may be."""
    names: dict[re.Match[str], str] = {}
    for name in sorted(fitting, key=lambda name: len(fitting[name])):  # those with a choice come last
        if (match := next((match for match in fitting[name] if match not in names), None)) is not None:
            names[match] = name
    return names


def _number_of(match: re.Match[str]) -> Any:
    """Return the number in a command that `_NUMBER_WORD` matches."""
    return literals.with_default(Option(""), match["number"]).default


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
    paths = {folder / call.folder / str(option.default): option for option in declared.options}
    if file.suffix == ".py" and file.is_file():
        options = {flag: option for option in declared.options for flag in (option.flag, *option.aliases) if flag}
        default_texts = _default_texts(script_folder.source(file), options)
        paths |= {file.parent / text: options[flag] for flag, text in default_texts}
    normal = {
        Path(os.path.normpath(path)): option for path, option in paths.items() if path.name.endswith(settings.SUFFIXES)
    }
    return {
        path.relative_to(folder).as_posix(): option
        for path, option in normal.items()
        if path.is_relative_to(folder) and settings_file.is_small(path)
    }


def _default_texts(script_text: str, flags: Collection[str]) -> list[tuple[str, str]]:
    """Return the constants in the defaults that a Python script declares for flags, each with its flag."""
    texts: list[tuple[str, str]] = []
    for node in ast.walk(notebook.parse_or_empty(script_text)):
        if isinstance(node, ast.Call) and node.args and (flag := getattr(node.args[0], "value", "")) in flags:
            defaults = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
            constants = [part for default in defaults for part in ast.walk(default) if isinstance(part, ast.Constant)]
            texts += [(flag, str(constant.value)) for constant in constants]
    return texts


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
