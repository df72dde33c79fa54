"""The job of a script for `platform init --from`: its fields from the script's parameters, and the text of job.yaml.

`build` guesses the space and chooses the form in which a trial passes its parameters to the script. `yaml_text` adds the
metrics that a run of the script with its defaults has shown.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.cli import output
from trialplane.cli.init_from import settings_file, smoke
from trialplane.importing import guess, hydra, script_folder
from trialplane.importing.script import Script, Style
from trialplane.job import arguments, credentials, settings, values
from trialplane.job import options as optuna_options
from trialplane.job.program import MetricSource
from trialplane.wire import declared as declared_arguments
from trialplane.wire import escapes
from trialplane.wire.declared import Declared, Option
from trialplane.worker.metrics.names import similar_name

_MOST_PARAMS = 40  # a script with more arguments has those as comments that are neither searched nor required
_MOST_SHOWN = 4  # options in a message that could be searched, or metrics in one that are not read
_MOST_SEARCHED = 6  # searched parameters; other likely ones are comments
_SHORTEST_SECRET = 8  # characters of a secret that is recognized by its value alone
_TRIALS, _PARALLEL = 20, 2
_PRINTS = re.compile(r".+\.help|print_config")  # options of jsonargparse that end the script
LEAST_MEMORY = 2  # GiB of a trial
_HEADROOM = 1.5  # of the memory of one run: other parameters than the defaults may need more
_PARTS = 16  # of a run; the pruner compares no trials in the first one
_REDUCTION = optuna_options.PRUNERS["asha"].options["reduction_factor"].default
_LEAST_PRUNED = 2 * _REDUCTION  # trials; of fewer, asha would stop nearly all at the first step at which it compares them
_STOPPED_HEADROOM = 3.0  # of a run that was stopped, perhaps before it used the most
# Style of a script → form in which a trial passes it the parameters that no other argument has. Others get flags.
_FORMS: dict[Style, str] = {
    Style.HYDRA: arguments.HYDRA,
    Style.SACRED: arguments.HYDRA,
    Style.GLOBALS: arguments.GLOBALS,
    Style.SETTINGS: arguments.HYDRA,
    Style.ENVIRONMENT: Style.ENVIRONMENT,
    Style.COMMAND: Style.COMMAND,
    Style.SEARCHES: Style.SEARCHES,
    Style.PROMPTS: Style.PROMPTS,
}
_BY_COMMAND = (Style.ENVIRONMENT, Style.COMMAND, Style.PROMPTS)  # styles whose parameters are in the job's command
_DATA_SUFFIXES = (".csv", ".tsv", ".parquet", ".npz", ".npy", ".jsonl", ".txt", ".json")
_CAPTURED_WANDB = "its logs to W&B are reported, and W&B gets nothing"
_DATA_FOLDERS = ("data", "input", "dataset", "datasets")
_OPPOSITE = {"minimize": "maximize", "maximize": "minimize"}


class FixedParam(NamedTuple):
    """A parameter that is the same in all trials.

    Attributes:
        value: Its value; None if the user must write it.
        comment: Comment in job.yaml; "" for none.
    """

    value: Any
    comment: str


class Objective(NamedTuple):
    """A metric to optimize.

    Attributes:
        source: Source that the metric is read from.
        fields: Field `objective` of job.yaml: `metric`, `direction`, and `of` if the user names it.
        reason: Reason for the choice, for a comment.
        similar: Metrics of the run that the user may mean by one that it has not shown, the likeliest first.
    """

    source: MetricSource
    fields: dict[str, str]
    reason: str
    similar: Sequence[str] = ()

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self.fields["metric"]

    @property
    def text(self) -> str:
        """The objective for messages: `loss, minimized` or `accuracy, maximized, the best of all reports`."""
        of = ", the best of all reports" if self.fields.get("of") == "best" else ""
        return f"{self.metric}, {self.fields['direction']}d{of}"


@dataclasses.dataclass(frozen=True)
class ScriptJob:
    """The parts of a job that do not need a smoke run.

    Attributes:
        script: Path of the script in the job's folder.
        arguments: Field `arguments` of job.yaml; None for the default.
        command: Command that starts the script; [] if the job can run it as a script.
        params: Parameters of every trial, by name.
        space: Parameters to search, by name.
        further_space: Lines of job.yaml, to be written as comments, for further parameters that are likely to be searched.
        further_params: Such lines for the other parameters with their defaults.
        searchable: Names of numbers that could be searched, too, the likeliest first.
        defaults: Default values of the searched parameters, as far as they are known.
        comments: Lines at the top of job.yaml, without the `#`.
        preload: Modules that the script imports, if the template would not find all of them by itself.
        uses_wandb: Whether the script imports W&B.
        returned: Expression that the script's function returns to Hydra or Sacred, or "".
        in_file: Parameters that replace values in a settings file, and are not arguments unless `arguments` names them.
        monitored: Metric by which the script chooses its best model; None if no option names it.
        shared_paths: Absolute paths to which the script writes, and its fixed port, so that its trials run one at a time.
        objective: Field `objective` of job.yaml as the user gives it; None to guess one.
        metric_files: Paths of the files with the script's metrics, with wildcards, if it declares them.
        links: Paths in the job's folder that are linked instead of uploaded.
        trials: Number of trials; None for the default.
        duration: Searched parameter that is the number of steps or epochs of a trial; "" if there is none.
    """

    script: str
    arguments: Any
    command: list[str]
    params: dict[str, FixedParam]
    space: dict[str, guess.Guess]
    further_space: list[str]
    further_params: list[str]
    searchable: list[str]
    defaults: dict[str, Any]
    comments: list[str]
    preload: list[str]
    uses_wandb: bool
    returned: str
    in_file: tuple[str, ...] = ()
    monitored: guess.Monitored | None = None
    shared_paths: tuple[str, ...] = ()
    objective: Mapping[str, str] | None = None
    metric_files: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    duration: str = ""
    trials: int | None = None

    @property
    def missing(self) -> list[str]:
        """The parameters that need a value from the user."""
        return [name for name, param in self.params.items() if param.value is None]

    @property
    def default_values(self) -> dict[str, Any]:
        """The values of all parameters in a run with the script's defaults."""
        return {name: param.value for name, param in self.params.items()} | self.defaults

    def command_line(self) -> list[str]:
        """Return the command line of a run with the script's defaults."""
        if self.command:
            program = arguments.build(self.command, self.default_values, {})
        else:
            program = [sys.executable, "-u", self.script]
        return [*program, *self.default_arguments()]

    def default_arguments(self) -> list[str]:
        """Return the script's arguments in a run with its defaults; [] if it gets its parameters by other ways."""
        if self.arguments is None and self.command:
            return []
        field = self.arguments if isinstance(self.arguments, dict) else {"items": self.arguments or arguments.FLAGS}
        items = field.get("items", "none")  # a dict without items names a settings file
        if isinstance(items, str):
            if items == "none" or items.endswith(settings.SUFFIXES):
                return []
            items = [f"{{{items}}}"]  # the name of a form is the placeholder for all parameters in it
        item_names = {name for _, name in arguments.placeholders(items)}
        command_names = {name for _, name in arguments.placeholders(self.command)}
        # Values in a settings file or in the command are arguments only if an item names them.
        left_out = {*self.in_file, *command_names} - item_names
        values = {name: value for name, value in self.default_values.items() if name not in left_out}
        return arguments.build(items, values, {}, field.get("booleans", "switch"), field.get("lists", "spread"))


def build(
    name: str,
    parsed_script: Script,
    declared: Declared,
    start: script_folder.Start,
    requested_space: Mapping[str, dict[str, Any]],
) -> ScriptJob:
    """Return the job for a script's arguments.

    Args:
        name: Path of the script in the job's folder.
        parsed_script: Content of the script.
        declared: Its arguments.
        start: Its start.
        requested_space: Parameters to search in place of guessed ones; empty to guess.
    """
    style = parsed_script.style
    form = parsed_script.appended or (arguments.PAIRS if declared.pairs else _FORMS.get(style, arguments.FLAGS))
    options = [_with_value(option, start.folder) for option in _settable_options(declared, form)]
    open_options = [option for option in options if option.name not in parsed_script.fixed]
    likely = guess.space(open_options) or guess.positive_floats(open_options)
    if requested_space:
        space = {name: guess.Guess(fields, reason="") for name, fields in requested_space.items()}
    else:
        space = {name: likely[name] for name in guess.without_variants(likely)[:_MOST_SEARCHED]}
    in_command = {name for _, name in arguments.placeholders(parsed_script.command)}
    writes_defaults = len(options) <= _MOST_PARAMS and _writes_defaults(parsed_script, form)
    other_options = [option for option in options if option.name not in space]
    # The same in all trials. The script sets the others itself; they are comments in job.yaml.
    params = {
        option.name: _fixed_param(option, declared)
        for option in other_options
        if option.required
        or option.name in in_command
        or option.name in parsed_script.fixed
        or (option.default is not None and writes_defaults)
    }
    set_options = [option for option in options if option.name in space or option.name in params]
    items = _argument_items(set_options, params, parsed_script, declared, form)
    field = _arguments_field(parsed_script, declared, space, params, form, items)
    command = _command(name, parsed_script, declared, start, options, items)
    own_arguments = _own_arguments(name, parsed_script, field, has_command=bool(command))
    if called_script := _plain_call(command, parsed_script):
        words = command[command.index(called_script) + 1 :]
        name, command, own_arguments = called_script, [], _with_first_items(words, own_arguments)
    # The user can search these by a line in the space alone.
    addable_options = [
        option for option in options if option in set_options or not _needs_item(option, parsed_script, declared, form)
    ]
    return ScriptJob(
        script=name,
        arguments=own_arguments,
        command=command,
        params=params,
        space=space,
        further_space=_further_space(other_options, likely | guess.on_request(open_options)),
        further_params=_further_params([option for option in other_options if option.name not in params], form),
        searchable=[key for key in _number_names(addable_options, list(likely)) if key not in space][:_MOST_SHOWN],
        defaults={
            option.name: _single_item(option.default)
            for option in options
            if option.default is not None and option.name in space and option.name not in parsed_script.unknown
        },
        comments=_comments(name, parsed_script),
        preload=_preloaded_modules(parsed_script),
        uses_wandb=any(module.partition(".")[0] == "wandb" for module in parsed_script.modules),
        in_file=parsed_script.in_file,
        monitored=guess.monitored(declared.options),
        shared_paths=parsed_script.shared_paths,
        metric_files=parsed_script.metric_files,
        duration=guess.duration(space, options),
        # No command can report what the function returns.
        returned="" if command and style is Style.HYDRA else parsed_script.returned,
    )


def _single_item(default: Any) -> Any:
    """Return the item of a list with one item, as of an argument with nargs="+", and any other default unchanged."""
    return default[0] if isinstance(default, (list, tuple)) and len(default) == 1 else default


def _further_space(options: Sequence[Option], likely: Mapping[str, guess.Guess]) -> list[str]:
    """Return the lines of job.yaml for options that are likely to be searched, but are not."""
    lines: list[str] = []
    for option in options:
        if option.name in likely and not option.required:  # a required one is in `params`
            parameter, place = likely[option.name], f", {option.place}" if option.place else ""
            lines.append(_field_line(option.name, parameter.fields, f"guessed: {parameter.reason}{place}"))
    return lines


def _further_params(options: Sequence[Option], form: str) -> list[str]:
    """Return the lines of job.yaml with the defaults of options that no trial sets, except flags beside pairs.

    A user could not set such a flag by its line alone, because the form PAIRS does not write it. Options that print
    something and end the script are left out, too.
    """
    addable = [option for option in options if form != arguments.PAIRS or not option.flag.startswith("-")]
    return [
        _field_line(option.name, option.default, option.place) for option in addable if not _PRINTS.fullmatch(option.name)
    ]


def _needs_item(option: Option, parsed_script: Script, declared: Declared, form: str) -> bool:
    """Return whether a user who adds an option to the space must also add an item for it to the job's `arguments`."""
    if option.name in parsed_script.in_file:
        return False
    return bool(_option_items(option, form, _boolean_style(declared), lacks_value=False))


def build_with_file(
    name: str,
    parsed_script: Script,
    file: settings_file.SettingsFile,
    start: script_folder.Start,
    requested_space: Mapping[str, dict[str, Any]],
) -> ScriptJob:
    """Return the job of a script whose parameters are the values in a settings file. See `build` for the other arguments."""
    parsed_script = dataclasses.replace(parsed_script, style=Style.SETTINGS, config=file.name)
    items = [arguments.escaped(text) for text in file.arguments or ()]
    items += [item for option in file.required for item in _option_items(option, arguments.FLAGS, "", lacks_value=True)]
    field: Any = file.name
    if items or not file.name.endswith(settings.SUFFIXES):
        field = {"items": items, "file": file.name} if items else {"file": file.name}
    job = build(name, parsed_script, Declared((*file.options, *file.required)), start, requested_space)
    return dataclasses.replace(job, arguments=field)


def _settable_options(declared: Declared, form: str) -> list[Option]:
    """Return the options of a script that a job can set in a form; none that is a secret."""
    # A job has one style for all booleans. `negated` would write `--no-amp` for a switch, which has no such flag.
    is_negated = _boolean_style(declared) == "negated"
    options = [option for option in declared.options if not (option.style == "switch" and is_negated)]
    if form == arguments.PAIRS:
        # `SOLVER.LR 0.1` is always written. A switch such as `--amp` must be left out when it is off.
        options = [option for option in options if not (option.flag.startswith("-") and option.kind == "bool")]
    return [option for option in options if not _is_secret(option)]


def _fixed_param(option: Option, declared: Declared) -> FixedParam:
    """Return the parameter for an option that is not searched. A required option has a guessed value, or none."""
    if not option.required:
        return FixedParam(option.default, "")
    is_guessed = option.default is not None and option not in declared.options  # `_with_value` has replaced it
    value = option.choices[0] if option.choices else option.default
    return FixedParam(value, "required; the value is guessed" if is_guessed else "required")


def _boolean_style(declared: Declared) -> str:
    """Return the style of a job for all booleans of a script: the first of three that an option has, or "switch"."""
    styles = {option.style for option in declared.options}
    return next((style for style in ("negated", "switch", "value") if style in styles), "switch")


def _writes_defaults(parsed_script: Script, form: str) -> bool:
    """Return whether job.yaml gets the script's defaults, and trials pass them. Otherwise the script sets them itself."""
    # A settings file, the user's command or the script's own configuration has the values already.
    if parsed_script.config or parsed_script.call or parsed_script.style is Style.ATTRIBUTES:
        return False
    return form in (arguments.FLAGS, arguments.PAIRS, Style.COMMAND, Style.PROMPTS)


def _comments(name: str, parsed_script: Script) -> list[str]:
    """Return the comments at the top of job.yaml: its origin, and the file that has the values that it lacks."""
    comments = [f"Made from {name} by `platform init --from`."]
    if parsed_script.style is Style.GLOBALS:
        comments.append("A parameter replaces the value that the script gives to its name.")
    if parsed_script.style is Style.HYDRA and parsed_script.config:
        comments.append(f"{parsed_script.config}.yaml has the other defaults; a parameter here overrides one of them.")
    if parsed_script.style is Style.SETTINGS:
        comments.append(
            f"{parsed_script.config} has the other values; a parameter here replaces one of them in a trial's copy."
        )
    return comments


def _argument_items(
    options: Sequence[Option],
    params: Mapping[str, FixedParam],
    parsed_script: Script,
    declared: Declared,
    form: str,
) -> list[str]:
    """Return the items of `arguments` for options that their form cannot write.

    Args:
        options: Options that a trial sets.
        params: Those of them that are not searched, with their values.
        parsed_script: Content of the script.
        declared: Its arguments.
        form: Form in which the other parameters are passed.
    """
    in_command = {key for _, key in arguments.placeholders(parsed_script.command)}
    in_subcommands = {key for _, key in arguments.placeholders(declared.subcommands)}
    boolean_style = _boolean_style(declared)
    items: list[str] = []
    for option in options:
        if option.name in in_subcommands or (parsed_script.call is not None and option.name in in_command):
            continue  # it has a placeholder already
        if option.name in parsed_script.in_file:
            if option.flag.startswith("-"):  # the script may prefer the argument to the value in the file
                items.append(f"{option.flag}={{{option.name}}}")
            continue
        lacks_value = option.name in params and params[option.name].value is None and option.lists != "repeat"
        items += _option_items(option, form, boolean_style, lacks_value=lacks_value)
    return items


def _option_items(option: Option, form: str, boolean_style: str, *, lacks_value: bool) -> list[str]:
    """Return the items of `arguments` for an option; [] if its form writes it.

    Args:
        option: The option.
        form: Form in which the other parameters are passed.
        boolean_style: Style of a job for all booleans.
        lacks_value: Whether the user must still write its value. It needs an item, as the forms FLAGS and HYDRA leave
            out parameters without a value.
    """
    placeholder = f"{{{option.name}}}"
    if form == Style.ENVIRONMENT:
        return [f"{option.name}={placeholder}"]
    if form in (Style.COMMAND, Style.PROMPTS):  # the command has the placeholders
        return []
    if form == arguments.GLOBALS and option.flag:  # an argument beside the values in the script's text
        is_one_word = option.flag.startswith("--") and not option.lists and not lacks_value
        return [f"{option.flag}={placeholder}"] if is_one_word else [option.flag, placeholder]
    if form == arguments.GLOBALS and option.required:  # a positional argument
        return [placeholder]
    if form == arguments.PAIRS and option.flag:  # without a dash it is a key, and the form writes it
        return [option.flag, placeholder] if option.flag.startswith("-") else []
    if form not in (arguments.FLAGS, arguments.PAIRS):
        is_python_boolean = option.kind == "bool" and not option.style  # Sacred's True, and not Hydra's true
        needs_item = lacks_value or (form == arguments.HYDRA and is_python_boolean)
        return [f"{option.name}={placeholder}"] if needs_item else []
    if not option.flag:  # a positional argument
        return [placeholder]
    if option.flag != f"--{option.name}" or lacks_value:  # the form writes `--NAME` only, and only with a value
        return [option.flag, placeholder] if option.style != "switch" else []
    has_other_style = option.style == "value" and boolean_style != "value"
    return [f"{option.flag}={placeholder}"] if has_other_style else []


def _arguments_field(
    parsed_script: Script,
    declared: Declared,
    space: Collection[str],
    params: Collection[str],
    form: str,
    items: Sequence[str],
) -> str | list[str] | dict[str, Any]:
    """Return the field `arguments` of a script that gets its parameters as arguments.

    It is a form, or a list of items, or a mapping with either of them and the style of booleans or lists.

    Args:
        parsed_script: Content of the script.
        declared: Its arguments.
        space: Names of the searched parameters.
        params: Names of the other parameters that a trial sets.
        form: Form in which the parameters without an item are passed.
        items: Items of the parameters that the form cannot pass.
    """
    # A word that names an option is left out unless a trial sets the option.
    first_words = [
        word
        for word in declared.subcommands
        if all(key in space or key in params for _, key in arguments.placeholders([word]))
    ]
    if parsed_script.style is Style.SACRED:
        first_words.append("with")
    items = [*first_words, *items, *declared.trailing]
    field: dict[str, Any] = {"items": [*items, f"{{{form}}}"] if items else form}
    boolean_style = _boolean_style(declared)
    if form == arguments.FLAGS and boolean_style != "switch":  # "switch" is the default
        field["booleans"] = boolean_style
    style_by_option = {option.name: option.lists for option in declared.options if option.lists}
    used_styles = {style for name, style in style_by_option.items() if name in params or name in space}
    # If no trial sets a list, the style of the others is for parameters that the user adds later.
    list_styles = (used_styles or set(style_by_option.values())) - {"spread"}  # "spread" is the default
    if list_styles:
        field["lists"] = min(list_styles)  # a job has one style for all lists; any one, but always the same
    return field["items"] if len(field) == 1 else field


def _own_arguments(name: str, parsed_script: Script, field: Any, *, has_command: bool) -> Any:
    """Return the field `arguments` of a job; None for the default.

    Args:
        name: Path of the script in the job's folder.
        parsed_script: Content of the script.
        field: The field if the script gets its parameters as arguments.
        has_command: Whether the job has a command of its own.
    """
    style = parsed_script.style
    if style is Style.SETTINGS:
        return parsed_script.config
    files = [parsed_script.config, *parsed_script.further_configs]
    # Arguments after those of a command, which may name a settings file, or besides values of a module.
    if parsed_script.appended or (parsed_script.in_file and style not in _BY_COMMAND):
        if not parsed_script.config:
            return field
        return {**(field if isinstance(field, dict) else {"items": field}), **_files_field(files)}
    if style in _BY_COMMAND:  # no arguments, but perhaps a settings file
        if not parsed_script.config:
            return None
        files = [os.path.normpath(Path(name).parent / file) for file in files]
        is_short = len(files) == 1 and files[0].endswith(settings.SUFFIXES)
        return files[0] if is_short else _files_field(files)
    if style is Style.SEARCHES:
        return "none"
    if has_command and style is Style.GLOBALS:
        # The values in its text are replaced as in a settings file, and are not arguments.
        items = field if isinstance(field, list) else []
        items = [item for item in items if item != f"{{{arguments.GLOBALS}}}"]
        return {"items": items, "file": name} if items else name
    return None if field == arguments.FLAGS and not has_command else field


def _files_field(files: Sequence[str]) -> dict[str, Any]:
    """Return the part of the field `arguments` that names settings files."""
    return {"file": files[0]} if len(files) == 1 else {"files": list(files)}


def _command(
    name: str,
    parsed_script: Script,
    declared: Declared,
    start: script_folder.Start,
    options: Sequence[Option],
    items: Sequence[str],
) -> list[str]:
    """Return the command that starts a script; [] if the job can run it as a script.

    Args:
        name: Path of the script in the job's folder.
        parsed_script: Content of the script.
        declared: Its arguments.
        start: Its start.
        options: Options of the script, in the order of its prompts.
        items: With ENVIRONMENT, assignments of the variables.
    """
    if parsed_script.style is Style.ENVIRONMENT:
        return start.command(name, variables=items)
    if parsed_script.style is Style.PROMPTS:
        answers = " ".join("'{" + option.name + "}'" for option in options)  # a trial replaces '{lr}' by '0.1'
        return ["bash", "-c", f"printf '%s\\n' {answers} | {shlex.join(start.words(name))}"]
    if parsed_script.style is Style.COMMAND:
        # The command names the file without its folder.
        words = [os.path.relpath(name, start.cwd) if word == Path(name).name else word for word in parsed_script.command]
        return [*(["env", "-C", start.cwd] if start.cwd != "." else []), *words]
    return start.command(name, declared.function)


def _plain_call(command: Sequence[str], parsed_script: Script) -> str:
    """Return the Python file that a command starts in the job's folder as a job's field `script` would; "" for another one.

    If a trial replaces values in the file itself, it must start the copy, as a command does.
    """
    call = parsed_script.call
    match command:
        case ["python" | "python3", "-u", file, *_] | ["python" | "python3", file, *_]:  # -u has no effect on a trial
            is_called = call is not None and (call.folder, call.script, call.module) == (".", file, "")
            return (
                file
                if is_called
                and file not in (parsed_script.config, *parsed_script.further_configs)
                and not values.leads_outside(file)
                else ""
            )
    return ""


def _with_first_items(words: Sequence[str], field: Any) -> Any:
    """Return the field `arguments` of a job with further items before its own. `field` is None for no arguments."""
    if isinstance(field, str) and field.endswith(settings.SUFFIXES):
        field = {"file": field}
    fields = field if isinstance(field, dict) else {"items": field or []}
    items = fields.get("items", [])
    fields = {**fields, "items": [*words, *([f"{{{items}}}"] if isinstance(items, str) else items)]}
    return fields["items"] if len(fields) == 1 else fields


def _number_names(options: Sequence[Option], likely: Sequence[str]) -> list[str]:
    """Return the names of the numeric options whose values may affect what a script learns, those in `likely` first."""
    numbers = [option for option in options if option.kind in ("int", "float") and not option.choices]
    names = [option.name for option in numbers if option.name in likely or guess.is_searchable(option)]
    return sorted(names, key=lambda name: likely.index(name) if name in likely else len(likely))


def _is_secret(option: Option) -> bool:
    """Return whether the default of an option is a secret: by its name, or as it equals a secret in this environment."""
    secrets = {
        value for name, value in os.environ.items() if len(value) >= _SHORTEST_SECRET and credentials.is_secret(name, value)
    }
    return credentials.is_secret(option.name, option.default) or str(option.default) in secrets


def _with_value(option: Option, folder: Path) -> Option:
    """Return an option with a guessed value if it is required and has none; otherwise the option, unchanged.

    Data may be a file or folder at the top of the job's folder.
    """
    if not option.required or option.default is not None or option.choices or option.lists or option.style:
        return option
    files = sorted(file.relative_to(folder).as_posix() for suffix in _DATA_SUFFIXES for file in folder.glob(f"*{suffix}"))
    files += [name for name in _DATA_FOLDERS if (folder / name).is_dir()]
    return dataclasses.replace(option, default=guess.needed_value(option, files))


def _preloaded_modules(parsed_script: Script) -> list[str]:
    """Return the libraries to import once per slot; [] if the script imports all of them at its top, as that is enough."""
    late = [module for module in parsed_script.late_modules if _is_library(module)]
    top = [module for module in parsed_script.top_modules if _is_library(module)]
    return [*top, *late] if late else []


def _is_library(module: str) -> bool:
    """Return whether a module is an installed library, and not of the standard library or the script."""
    name = module.partition(".")[0]
    return name not in sys.stdlib_module_names and name != "trialplane" and script_folder.is_installed(name)


def yaml_text(job: ScriptJob, result: smoke.Smoke) -> str:
    """Return the text of job.yaml."""
    lines = [f"# {line}" for comment in job.comments for line in comment.splitlines()]  # a command may have several
    if any(parameter.reason for parameter in job.space.values()):
        lines.append("# Check the fields that are marked as guessed.")
    lines += ["kind: hpo", _field_line("command", job.command) if job.command else _field_line("script", job.script)]
    if job.arguments is not None:
        lines.append(_field_line("arguments", job.arguments))
    if job.preload and not job.command:  # a command is a process of its own, which imports its modules itself
        lines.append(
            _field_line("preload", job.preload, "imported once per slot; the script imports some of them in functions")
        )
    elif not job.command:
        lines.append("# preload: []  # what the script imports at its top is imported once per slot anyway")
    if job.links:
        lines.append(_field_line("links", list(job.links), "not uploaded: all trials share these"))
    if job.params or job.further_params:
        lines += ["", "params: # today's values, the same in every trial" if job.params else "# params:"]
        lines += [f"  {_field_line(name, param.value, param.comment)}" for name, param in job.params.items()]
        lines += [f"  # {line}" for line in job.further_params]
    if job.space:
        lines += ["", "space: # what is searched"]
        lines += [
            f"  {_field_line(name, parameter.fields, f'guessed: {parameter.reason}' if parameter.reason else '')}"
            for name, parameter in job.space.items()
        ]
        if job.further_space:
            lines.append("  # Others that could be searched; drop one from params if you do:")
            lines += [f"  # {line}" for line in job.further_space]
        lines += _enqueue_lines(job)
    lines += [
        "",
        *_metric_lines(job, result),
        "sampler: tpe",
        _pruner_line(job, result),
        "",
    ]
    parallel = _PARALLEL if job.space and not job.shared_paths else 1
    remark = f"trials share {', '.join(job.shared_paths)}" if job.shared_paths else ""
    lines += [f"trials: {job.trials or (_TRIALS if job.space else 1)}", _field_line("parallel", parallel, remark)]
    lines += ["budget: {max_failed: 5, timeout: 1h}", _resources_line(result)]
    return "\n".join(lines) + "\n"


def _resources_line(result: smoke.Smoke) -> str:
    """Return the line of the resources. The memory is that of the smoke run with headroom, in GiB."""
    used = result.peak_memory / 2**30
    memory = max(LEAST_MEMORY, math.ceil(used * (_HEADROOM if result.ended else _STOPPED_HEADROOM)))
    when = "" if result.ended else " before it was stopped"
    remark = f"one run with the defaults used {used:.1f} GiB{when}" if memory > LEAST_MEMORY else ""
    return _field_line("resources", {"cpus": 1, "memory": f"{memory}Gi"}, remark)


def _pruner_line(job: ScriptJob, result: smoke.Smoke) -> str:
    """Return the line of the pruner; a comment if the objective has no values that a pruner could compare step by step."""
    if reason := _no_pruner_reason(job, result):
        return f"# pruner: {reason}"
    rung = _first_rung(best_objective(job, result), result)
    if rung == 1:  # the default
        return "pruner: asha"
    return _field_line("pruner", {"name": "asha", "min_resource": rung}, "the first step at which trials are compared")


def _no_pruner_reason(job: ScriptJob, result: smoke.Smoke) -> str:
    """Return the comment with the reason why a job has no pruner; "" if it has one."""
    if job.trials is not None and job.trials < _LEAST_PRUNED:
        return f"asha # not used: {errors.counted(job.trials, 'trial')}, too few to compare"
    objective = best_objective(job, result)
    if objective is None:
        return "none # the function's return value has no steps" if job.returned else ""
    if job.duration:
        return f"asha # not used: trials differ in {job.duration}, and the same step is early in one and the end of another"
    series = result.series(objective.source, objective.metric)
    if series is not None and series.restarts.are_epochs:
        return f"asha # not used: the epochs of {objective.metric} begin again, and it would judge the first ones"
    if not result.was_run or series is not None:
        return ""
    if objective.metric not in result.metrics.get(objective.source, ()):
        return f"asha # not used: one run did not show {objective.metric}, which may have no value per step"
    return f"asha # not used: {objective.metric} was reported once, or twice without a step, as at the end of a phase"


def _first_rung(objective: Objective | None, result: smoke.Smoke) -> int:
    """Return the first step at which the pruner compares trials.

    It is a sixteenth of a run that has ended, so that no trial is judged by its first few steps, but at least the step of
    the first report, which would count at all rungs before it.
    """
    series = result.series(objective.source, objective.metric) if objective is not None else None
    if series is None or not result.ended or result.failure:
        return 1
    return max(1, series.first, series.last // _PARTS)


def restart_remark(job: ScriptJob, result: smoke.Smoke) -> str:
    """Return the remark that the objective's epochs or steps begin again, and which value counts then; "" if they do not."""
    objective = best_objective(job, result)
    series = result.series(objective.source, objective.metric) if objective is not None else None
    if objective is None or series is None or not series.restarts.count:
        return ""
    metric, so_far = objective.metric, "" if result.ended else ", so far"
    option = f"--objective {shlex.quote(metric)}:{objective.fields['direction'][:3]}"
    counts = "the last value of the last one counts"
    if objective.fields.get("of") == "best":
        counts = f"the best value of any of them counts; for the last value of the last one, `{option}` at submit"
    others = f"; only the last one shows {', '.join(series.later_names[:_MOST_SHOWN])}" if series.later_names else ""
    return f"{metric}: {series.restarts.text}{so_far}: {counts}{others}; to read another one, print it under its own name"


def pruner_message(job: ScriptJob, result: smoke.Smoke) -> str:
    """Return the message that the job has a pruner, which the user has not asked for; "" without one, or without a metric.

    It names the first steps at which trials are compared, of a run that has ended only those that the run has reached.
    """
    objective = best_objective(job, result)
    if objective is None or _no_pruner_reason(job, result) or not job.space:
        return ""
    rung = _first_rung(objective, result)
    steps, rest = [rung * _REDUCTION**power for power in range(3)], ", …"
    series = result.series(objective.source, objective.metric)
    if series is not None and result.ended and not result.failure:
        steps, rest = [step for step in steps if step <= series.last], ""
    steps_text = f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}{rest}"
    return f"pruner: asha stops trials that are behind at {steps_text}; `--pruner none` at submit trains all to the end"


def _enqueue_lines(job: ScriptJob) -> list[str]:
    """Return the line of `enqueue`, which makes the script's defaults the first trial, with a remark on those out of range.

    It is only a comment if all of them are out of range; [] if there are no defaults.
    """
    values, outside = first_trial(job), outside_remark(job)
    if values:
        remark = f"today's values, tried first{f'; {outside}' if outside else ''}"
        return [_field_line("enqueue", [values], remark)]
    return [f"# Today's values are not tried first: {escapes.escape_controls(outside)}"] if outside else []


def outside_remark(job: ScriptJob) -> str:
    """Return the remark on the script's defaults of searched parameters that are out of their ranges; "" without any."""
    names = [name for name in job.space if name in job.defaults and name not in first_trial(job)]
    return "; ".join(f"{name}, {job.defaults[name]} today, is outside of its range" for name in names)


def first_trial(job: ScriptJob) -> dict[str, Any]:
    """Return the values of the first trial: the script's defaults of the searched parameters that are in their ranges."""
    defaults = {name: job.defaults[name] for name in job.space if name in job.defaults}
    return {name: value for name, value in defaults.items() if contains(job.space[name].fields, value)}


def contains(parameter: Mapping[str, Any], value: Any) -> bool:
    """Return whether a value is one that a parameter can have: a choice, or in its range and on one of its steps."""
    if "choices" in parameter:
        return value in parameter["choices"]
    if not isinstance(value, (int, float)) or not parameter["low"] <= value <= parameter["high"]:
        return False
    step = parameter.get("step") or (1 if parameter["type"] == "int" else None)
    if step is None:
        return True
    steps_from_low = (value - parameter["low"]) / step
    return math.isclose(steps_from_low, round(steps_from_low))


def best_objective(job: ScriptJob, result: smoke.Smoke) -> Objective | None:
    """Return the metric to optimize; None without one.

    The metric that the user names comes first, then the one that an option of the script names, then the one with the best
    name. If several sources have equally good metrics, it is the first one. The output comes before files, but progress bars
    after them, as these show rounded values of training.
    """
    if job.objective is not None:
        return _requested_objective(job, job.objective, result)
    if (monitored := job.monitored) is not None:
        for source, metrics in result.metrics.items():
            if monitored.metric in metrics:
                fields = {"metric": monitored.metric, "direction": monitored.direction}
                return Objective(source, fields, f"from {monitored.option}")
    stopped = "" if result.ended else ", which was stopped before its end"
    objectives = [
        Objective(source, guessed, f"guessed from the metrics of one run{stopped}")
        for source, metrics in result.metrics.items()
        if (guessed := guess.objective(metrics, result.expressions)) is not None
    ]
    # `max` returns the first of equals.
    return max(
        objectives,
        key=lambda objective: (
            guess.objective_rank(objective.metric),
            not _is_only_in_bars(objective.source, objective.metric, result),
        ),
        default=None,
    )


def _is_only_in_bars(source: MetricSource, metric: str, result: smoke.Smoke) -> bool:
    """Return whether a metric of a source occurs only in progress bars of the output."""
    return source == smoke.STDOUT and metric in result.only_in_bars


def metric_sources(job: ScriptJob, result: smoke.Smoke) -> tuple[list[MetricSource], list[str]]:
    """Return the sources of a job's metrics, that of the objective first, and remarks on sources that are not read.

    Others are read for their losses and scores that the sources before them lack, so that each can be the objective. One
    that has the objective too is not: its values could be read in place of those of the first source. If the user names the
    objective, no others are read.
    """
    objective = best_objective(job, result)
    if objective is None:
        return [], []
    source, metric = objective.source, objective.metric
    if metric not in result.metrics.get(source, ()) or source.pattern or source == smoke.WANDB:
        return [source], []
    value = result.metrics[source][metric]
    sources, unread = [source], dict[MetricSource, Mapping[str, float]]()
    for other, metrics in result.metrics.items():
        if other == source or other.pattern or other == smoke.WANDB:
            continue
        known_names = {name for read in sources for name in result.metrics[read]}
        new_names = [name for name in metrics if name not in known_names and guess.is_measure(name)]
        is_repeated = metric in metrics and _is_rounded(metrics[metric], value) and not new_names  # nothing is lost
        if metric in metrics and not is_repeated:
            unread[other] = {name: metrics[name] for name in (metric, *new_names)}
        elif metric not in metrics and new_names and job.objective is None:
            sources.append(other)
    remarks: list[str] = []
    for other, metrics in unread.items():
        shown = ", ".join(f"{name} {value:g}" for name, value in list(metrics.items())[:_MOST_SHOWN])
        remarks.append(
            f"{metric} is {value:g} in {_shown_source(source)}, which is read; "
            f"to read {_shown_source(other)}, with {shown}, write `{_field_line('metrics', _declaration(other))}`"
        )
    return sources, remarks


def _is_rounded(first: float, second: float) -> bool:
    """Return whether two numbers are equal, or one is the other with fewer decimal places."""
    exponents = (decimal.Decimal(repr(number)).as_tuple().exponent for number in (first, second))  # -2 of 0.25
    places = min(-exponent for exponent in exponents if isinstance(exponent, int))
    return first == second or abs(first - second) <= 10.0**-places


def _shown_source(source: MetricSource) -> str:
    """Return the name of a source for messages."""
    names = {
        "stdout": "its output",
        "file": source.path,
        "tensorboard": "its TensorBoard files",
        "mlflow": "its MLflow calls",
    }
    return names[source.source]


def _declaration(source: MetricSource) -> Any:
    """Return the value of the field `metrics` for a source: `tensorboard`, or a mapping of a file or a pattern."""
    if source.pattern:
        return {"from": "stdout", "pattern": source.pattern[0]}
    return {"from": "file", "path": source.path} if source.source == "file" else source.source


def _requested_objective(job: ScriptJob, requested: Mapping[str, str], result: smoke.Smoke) -> Objective:
    """Return the metric that the user names, with the spelling that a run has shown."""
    metric = requested["metric"]
    if (held_out := result.held_out.get(metric, "")) in result.metrics.get(smoke.STDOUT, ()):
        reason = f"{metric} of held-out data, as other lines print {metric}, too"
        return Objective(smoke.STDOUT, {**requested, "metric": held_out}, reason)
    shown = [(source, name) for source, metrics in result.metrics.items() for name in metrics]
    same = [(source, name) for source, name in shown if name == metric or smoke.spelling(name) == smoke.spelling(metric)]
    exact_values = [result.metrics[source][metric] for source in result.exact if metric in result.exact[source]]

    def order(source: MetricSource, name: str) -> tuple[bool, bool, bool, bool]:
        """Return the order of a metric, the least first.

        The lines that spell it exactly so come before all lines of the output, and a source with such a spelling before one
        with another value. Of equal values, those of the output come first, which may be a curve, but bars come last.
        """
        value = result.metrics[source][name]
        is_other = bool(exact_values) and not any(_is_rounded(value, exact_value) for exact_value in exact_values)
        is_inexact = not exact_values and name != metric
        return not source.pattern, is_other, is_inexact, _is_only_in_bars(source, metric, result)

    same.sort(key=lambda pair: order(*pair))
    if same:
        source, name = same[0]
        is_exact = metric in result.exact.get(source, ())
        pattern_reason = ", spelled exactly so" if is_exact else ", the number that it prints without a name"
        reason = f"as requested{pattern_reason if source.pattern else ''}"
        return Objective(source, {**requested, "metric": name}, reason)
    if other_name := similar_name(metric, [name for _, name in shown]):  # val_loss for loss/val
        source = next(source for source, name in shown if name == other_name)
        return Objective(source, {**requested, "metric": other_name}, f"{metric} by another name")
    only_source = next(iter(result.metrics)) if len(result.metrics) == 1 else smoke.STDOUT
    likely_source = next((MetricSource("file", path=path) for path in job.metric_files), only_source)
    if not result.was_run:
        return Objective(likely_source, dict(requested), "the script was not run to see it")
    values = {name: value for metrics in result.metrics.values() for name, value in metrics.items()}
    if guess.is_held_out(metric):  # `accuracy` may be that of `train_accuracy`, and has its value then
        training_values = {value for name, value in values.items() if guess.is_of_training(name)}
        values = {name: value for name, value in values.items() if value not in training_values}
    others = [name for name in values if not guess.is_measure(name) or guess.direction(name) == requested["direction"]]
    similar = [name for name in others if similar_name(metric, [name]) or similar_name(name, [metric])]
    similar = similar or errors.similar(metric, others)
    hint = f"; did you mean {' or '.join(similar)}?" if similar else ""
    return Objective(likely_source, dict(requested), f"one run did not show it{hint}", similar)


def placeholder_message(job: ScriptJob, result: smoke.Smoke, file: str) -> tuple[str, str]:
    """Return a message that the objective in a job's file is a placeholder, and the option of `submit` that replaces it."""
    reason, remedy = _placeholder_remark(job, result)
    metrics = metric_names(result)
    metric = guess.possible_objective(metrics) or "METRIC"
    is_of_data = bool(guess.data_alone(metrics))  # `Val` alone is usually an accuracy
    direction = guess.direction(result.expressions.get(metric, metric)) if is_of_data else "minimize"
    remedy += f", and :min if {metric} is an error" if is_of_data and direction == "maximize" else ""
    option = f" --objective {shlex.quote(metric)}:{direction[:3]}"
    return f"{reason}, so the objective in {file} is a placeholder: {remedy}", option


def _placeholder_remark(job: ScriptJob, result: smoke.Smoke) -> tuple[str, str]:
    """Return the reason why the objective is a placeholder, and what to do: "it printed no metric", "name a metric that …".

    `capture: wandb` is written only after a run, so without one the script must print the metric.
    """
    if not result.was_run:
        reason = "the script was not run"
    elif metrics := metric_names(result):
        reason = f"no metric that it printed has the name of an objective ({', '.join(smoke.shown_names([metrics]))})"
    else:
        reason = "it printed no metric"
    verb = "logs to W&B" if result.was_run and job.uses_wandb else "prints"
    origin = f"of {' or '.join(job.metric_files)}" if job.metric_files else f"that it {verb}"
    return reason, f"name a metric {origin}"


def metric_names(result: smoke.Smoke) -> list[str]:
    """Return the names of all metrics of a smoke run."""
    return [metric for metrics in result.metrics.values() for metric in metrics]


def _metric_lines(job: ScriptJob, result: smoke.Smoke) -> list[str]:
    """Return the lines of the objective, and of the source of its metric unless that is the default.

    The objective is a metric of the smoke run, the value that the script returns, or a placeholder, in this order.
    """
    if (objective := best_objective(job, result)) is not None:
        sources, remarks = metric_sources(job, result)
        shown_metrics = result.metrics.get(objective.source, {})
        other_names = ", ".join(name for name in smoke.shown_names([shown_metrics]) if name != objective.metric)
        others = f"; the others: {other_names}" if other_names else ""
        has_steps = result.series(objective.source, objective.metric) is not None
        last = "; the last value counts, with `of: best` the best one" if has_steps and "of" not in objective.fields else ""
        # W&B's package would need an account. A metric that one run did not show may be logged to it, or printed.
        may_log = result.was_run and job.uses_wandb and objective.metric not in shown_metrics
        source_lines = _source_lines(job, sources, captures_wandb=may_log or smoke.WANDB in result.metrics)
        remarks += filter(None, [restart_remark(job, result)])
        source_lines += [f"# {escapes.escape_controls(remark)}" for remark in remarks]
        return [*source_lines, _field_line("objective", objective.fields, f"{objective.reason}{last}{others}")]
    if job.returned:
        return _returned_metric_lines(job)
    remark = f"a placeholder: {'; '.join(_placeholder_remark(job, result))}"
    placeholder = _field_line("objective", {"metric": "loss", "direction": "minimize"}, remark)
    if job.metric_files:
        declarations = [{"from": "file", "path": path} for path in job.metric_files]
        return [_field_line("metrics", declarations, "which the stages declare"), placeholder]
    capture = _field_line("capture", "wandb", _CAPTURED_WANDB)
    return [capture, placeholder] if result.was_run and job.uses_wandb else [placeholder]


def _source_lines(job: ScriptJob, sources: Sequence[MetricSource], *, captures_wandb: bool) -> list[str]:
    """Return the lines of the fields, `capture` and `metrics`, that name the sources of the metrics; [] if none is needed.

    Args:
        job: The job.
        sources: The sources, that of the objective first.
        captures_wandb: Whether the job captures W&B's calls, so that it has no default source.
    """
    capture_lines = [_field_line("capture", "wandb", _CAPTURED_WANDB)] if captures_wandb else []
    are_default = not captures_wandb and all(source.source in ("stdout", "mlflow") for source in sources)
    has_callback = declared_arguments.LIGHTNING_CALLBACK in str(job.arguments)  # which reports the metrics
    if sources[0] == smoke.WANDB or ((are_default or has_callback) and not sources[0].pattern):
        return capture_lines
    declarations = [_declaration(source) for source in sources]
    field = declarations if len(sources) > 1 else declarations[0]
    return [*capture_lines, _field_line("metrics", field, "where they were found")]


def _returned_metric_lines(job: ScriptJob) -> list[str]:
    """Return the lines of the objective of a function that returns its value to Hydra or Sacred."""
    guessed = guess.objective({job.returned.removeprefix("-"): 0.0})  # by the name of the returned variable
    direction = guessed["direction"] if guessed else "minimize"
    if job.returned.startswith("-"):
        direction = _OPPOSITE[direction]
    remark = f"returned: {errors.shortened(job.returned, 60)}; the direction is guessed"
    if "with" in str(job.arguments):  # the arguments of Sacred, which prints the returned value as `Result`
        return [_field_line("objective", {"metric": "Result", "direction": direction}, remark)]
    libraries = [*(["wandb"] if job.uses_wandb else []), "hydra"]
    capture = _field_line("capture", libraries, "the function's return value is reported")
    return [capture, _field_line("objective", {"metric": hydra.OBJECTIVE, "direction": direction}, remark)]


def _field_line(name: str, value: Any, comment: str = "") -> str:
    """Return a line of job.yaml: a field with its value, and a comment unless that is ""."""
    # YAML would put `...` after a plain value such as 0.1. In a list, `[0.1]`, it does not, and the brackets are cut off.
    key_text, value_text = (output.as_yaml([part], flow=True).strip()[1:-1] for part in (name, value))
    remark = escapes.escape_controls(" ".join(comment.split()))
    return f"{key_text}: {value_text} # {remark}" if remark else f"{key_text}: {value_text}"
