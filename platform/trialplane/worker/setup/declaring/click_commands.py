"""Arguments of click's commands, and of typer's, which are click's."""

from __future__ import annotations

from typing import Any, NoReturn

from trialplane.training import imports
from trialplane.wire.declared import Option
from trialplane.worker.setup.declaring.declarations import KINDS, Declarations, kind_of, parameter_name, plain_choices

_MODULES = ("click.core", "typer._click.core")  # typer includes a copy of click


def watch(declarations: Declarations) -> None:
    """Replace the function by which a command reads the arguments, in click and typer if the script imports them."""

    def replace(module: Any) -> None:
        module.Command.make_context = lambda command, *args, **kwargs: _end_at_click(declarations, command)

    for name in _MODULES:
        imports.on_import(name, replace)


def _end_at_click(declarations: Declarations, command: Any) -> NoReturn:
    """Add the parameters of a click command, of the groups and subcommands down to the one that trains, and end."""
    while getattr(command, "commands", None):
        name = declarations.choose_subcommand(command.commands)
        if not name:
            break
        _add_parameters(declarations, command)
        declarations.descend(name)
        command = command.commands[name]
    _add_parameters(declarations, command)
    declarations.end()


def _add_parameters(declarations: Declarations, command: Any) -> None:
    """Add the parameters of a click command. Record those that a job cannot set as left out."""
    for parameter in command.params:
        if parameter.expose_value and parameter.name != "help":
            _add_parameter(declarations, parameter)


def _add_parameter(declarations: Declarations, parameter: Any) -> None:
    """Add a parameter of a click command, or record it as left out if a job cannot set it."""
    is_option = parameter.param_type_name == "option"
    flag = _flag(declarations, parameter) if is_option else ""
    name = parameter_name(flag, parameter.opts, parameter.name)
    if _takes_no_value(parameter):
        declarations.switches += [*parameter.opts, *parameter.secondary_opts]
    type_ = _python_type(parameter)
    style = _style(parameter, type_)
    is_boolean = style != ""
    default = declarations.plain_default(parameter.default, type_)
    obstacle = _obstacle(parameter, name, is_on=style == "switch" and bool(default))
    if obstacle:
        declarations.left_out.append(f"{flag}: {obstacle}")
        return
    declarations.options.append(
        Option(
            name=name,
            default=bool(default) if style == "switch" else default,
            kind="bool" if is_boolean else KINDS.get(type_, "") or kind_of(default),
            flag=flag,
            choices=plain_choices(getattr(getattr(parameter, "type", None), "choices", None)),
            style=style,
            required=bool(parameter.required),
            lists="repeat" if getattr(parameter, "multiple", False) else "",
            aliases=tuple(parameter.opts) if is_option and len(parameter.opts) > 1 else (),
        )
    )


def _takes_no_value(parameter: Any) -> bool:
    """Return whether a parameter is a flag, or counts how often it is written, as -vv."""
    return bool(getattr(parameter, "is_flag", False) or getattr(parameter, "count", False))


def _style(parameter: Any, type_: Any) -> str:
    """Return the style of a boolean parameter (`Option.style`) with values of this type; "" for other parameters."""
    if getattr(parameter, "is_flag", False):
        return "negated" if parameter.secondary_opts else "switch"
    return "value" if type_ is bool else ""


def _obstacle(parameter: Any, name: str, *, is_on: bool) -> str:
    """Return the reason why a job cannot set a parameter, for a message; "" if it can.

    Args:
        parameter: Parameter of click.
        name: Name of the parameter of the job.
        is_on: Whether it is a switch that is on by default.
    """
    opposites = parameter.secondary_opts if getattr(parameter, "is_flag", False) else []
    has_other_opposite = bool(opposites) and opposites[0] != f"--no-{name}"  # as `--no-amp` is that of `--amp`
    if getattr(parameter, "count", False) or has_other_opposite:
        return "is neither a value nor an on/off switch, so a job cannot set it"
    return "is on by default, and cannot be switched off" if is_on else ""


def _flag(declarations: Declarations, option: Any) -> str:
    """Return the flag of an option of click that is typed, or else its longest one."""
    flags: list[str] = option.opts
    typed_flags = [flag for flag in flags if flag in declarations.typed_words]
    return typed_flags[0] if typed_flags else max(flags, key=len)


def _python_type(parameter: Any) -> Any:
    """Return the Python type of a parameter's values; None if it is unknown. typer has it in an attribute of its own."""
    name = getattr(getattr(parameter, "type", None), "name", "").removesuffix(" range")
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    return {"integer": int, "float": float, "boolean": bool}.get(name, annotation)
