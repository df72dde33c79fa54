"""Arguments of argparse, and of libraries whose parsers are argparse's: tyro, pyrallis, draccus and jsonargparse."""

from __future__ import annotations

import argparse
import contextlib
import enum
import inspect
import linecache
import re
import sys
import warnings
from collections.abc import Mapping
from types import FrameType, MappingProxyType
from typing import Any, NoReturn, cast

from trialplane.training import imports
from trialplane.wire.declared import LIGHTNING_CALLBACK, Option
from trialplane.worker.setup.declaring.configurations import merges_pairs, object_leaves, yacs_values
from trialplane.worker.setup.declaring.declarations import (
    KINDS,
    Declarations,
    key_option,
    kind_of,
    parameter_name,
    plain_choices,
)

_HELP_TYPES = {"int": int, "float": float, "str": str, "bool": bool}  # type of a value in the help → Python type
_DEFAULT = re.compile(r"\(default: (.*?)\)")  # in the help of tyro and pydantic-settings
_LIGHTNING = ("model.", "data.")  # arguments of LightningCLI that belong to the script's own classes


def watch(declarations: Declarations, *, calls_parse_args: bool) -> None:
    """Replace the functions that read the arguments, in argparse and the libraries that the script imports.

    Args:
        declarations: Declarations to add to.
        calls_parse_args: Whether the script calls `parse_args`. It may read a few arguments with a small parser and
            `parse_known_args` before.
    """
    _watch_argparse(declarations, calls_parse_args=calls_parse_args)

    def watch_tyro(tyro: Any) -> None:
        tyro.cli = lambda component, **kwargs: _end_at_tyro(declarations, tyro, component, kwargs)

    def watch_dataclasses(argparsing: Any) -> None:
        _watch_dataclasses(declarations, argparsing.ArgumentParser)

    def watch_jsonargparse(jsonargparse: Any) -> None:
        parser_class = jsonargparse.ArgumentParser
        parser_class.parse_args = lambda parser, *args, **kwargs: _end_at_jsonargparse(declarations, parser)

    imports.on_import("tyro", watch_tyro)
    imports.on_import("pyrallis.argparsing", watch_dataclasses)
    imports.on_import("draccus.argparsing", watch_dataclasses)
    imports.on_import("jsonargparse", watch_jsonargparse)


def _watch_argparse(declarations: Declarations, *, calls_parse_args: bool) -> None:
    """Replace the function of argparse that all of its parsers call to read the arguments."""
    parse_known = argparse.ArgumentParser.parse_known_args

    def parse_known_args(parser: argparse.ArgumentParser, args: Any = None, *others: Any, **kwargs: Any) -> Any:
        """Add the parser's arguments and end, unless it is a small parser before the main one."""
        if declarations.is_parsing:  # a subcommand
            return parse_known(parser, args, *others, **kwargs)
        has_empty_list = args is not None and not args
        if has_empty_list and _is_called_with_empty_list(declarations):
            return declarations.end("it reads none, as it calls `parse_args([])`")
        words = sys.argv[1:] if args is None else list(args)
        values = declarations.typed_values(lambda: vars(parse_known(parser, words)[0])) if words else {}
        _add_parser(declarations, parser, values)
        # Let a small parser read its arguments. It is recognized because it has no --help and is not the main one.
        is_called_by_parse_args = sys._getframe(1).f_code.co_name == "parse_args"
        is_small = calls_parse_args and not parser.add_help
        if not is_called_by_parse_args and (is_small or _parses_again(sys._getframe(1))):
            return parse_known(parser, args, *others, **kwargs)
        return declarations.end()

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[assignment]


def _is_called_with_empty_list(declarations: Declarations) -> bool:
    """Return whether the line of the script that calls the parser gives it `[]` in place of its arguments.

    Call it from the function that replaces `parse_known_args`.
    """
    frame = sys._getframe(2)  # the caller of that function
    while frame.f_back is not None and frame.f_code.co_filename == argparse.__file__:
        frame = frame.f_back
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    is_of_script = frame.f_code.co_filename.startswith(declarations.folder)
    return is_of_script and re.search(r"\((?:args\s*=\s*)?\[\]", line) is not None


def _parses_again(frame: FrameType) -> bool:
    """Return whether a function calls a parser behind its current line, as it does if it adds arguments between calls."""
    if frame.f_code.co_name == "<module>":
        return False
    with contextlib.suppress(OSError):
        lines, first = inspect.getsourcelines(frame.f_code)
        return re.search(r"\.parse_(?:known_)?args\(", "".join(lines[frame.f_lineno - first + 1 :])) is not None
    return False


def _end_at_tyro(declarations: Declarations, tyro: Any, component: Any, kwargs: dict[str, Any]) -> NoReturn:
    """Add the arguments that tyro makes for a function or class, the component of `tyro.cli(component, …)`, and end."""
    supported = {name: kwargs[name] for name in ("default", "config", "use_underscores") if name in kwargs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the function is deprecated, and no other one exists in all versions
        parser = tyro.extras.get_parser(component, **supported)
    for action in parser._actions:
        # tyro's action for a single value has a list of one, and no default of its type; `_add_parser` reads it in the help.
        if action.nargs in (1, None):
            action.nargs, action.default = None, argparse.SUPPRESS
    _add_parser(declarations, parser)
    declarations.end()


def _watch_dataclasses(declarations: Declarations, parser_class: Any) -> None:
    """Replace the function by which a parser of pyrallis or draccus fills a dataclass: add its fields, and end."""
    parse = parser_class.parse_args

    def parse_args(parser: Any, args: Any = None, *others: Any) -> NoReturn:
        """Add the fields of the dataclass, and end."""
        actions = getattr(parser, "parser", parser)._actions
        fields = {action.dest: (action.type, action.default) for action in actions if action.dest != "help"}
        words = sys.argv[1:] if args is None else list(args)
        values = declarations.typed_values(lambda: dict(object_leaves(parse(parser, words))))  # changes the actions
        for name, (type_, field_default) in fields.items():
            value = values.get(name, field_default)
            # The libraries read members of an enum by their names, and a list as one literal.
            is_enum = isinstance(value, enum.Enum)
            default = declarations.plain_default(value.name if is_enum else value, type_)
            kind = KINDS.get(type_, "") or kind_of(default)
            declarations.options.append(
                Option(
                    name,
                    default,
                    kind,
                    flag=f"--{name}",
                    choices=tuple(type(value).__members__) if is_enum else (),
                    style="value" if kind == "bool" else "",
                    lists="literal" if isinstance(default, list) else "",
                )
            )
        declarations.end()

    parser_class.parse_args = parse_args


def _end_at_jsonargparse(declarations: Declarations, parser: Any) -> NoReturn:
    """Add the plain arguments of a jsonargparse parser, of LightningCLI only those of the script's classes, and end."""
    subcommands = getattr(parser._subcommands_action, "choices", None) or {}
    is_lightning = "fit" in subcommands
    if is_lightning:
        parser = subcommands["fit"]
        declarations.subcommands = ["fit", LIGHTNING_CALLBACK]
    for action in list(parser._actions):
        action.type = getattr(action, "_typehint", action.type)
        is_own = not is_lightning or action.dest.startswith(_LIGHTNING)
        is_plain = action.type in KINDS or type(action.default) in KINDS
        if not (is_own and is_plain):
            parser._actions.remove(action)
    _add_parser(declarations, parser)
    declarations.end()


def _add_parser(
    declarations: Declarations, parser: argparse.ArgumentParser, values: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Add the arguments of a parser of argparse, and those of its subcommand.

    `values` are those that it reads from typed arguments and a settings file, by destination.
    """
    names: set[str] = {option.name for option in declarations.options}
    destinations: set[str] = set()
    # Subcommands come last: the options that a script adds after them precede them in a command too.
    for action in sorted(parser._actions, key=lambda action: isinstance(action, argparse._SubParsersAction)):
        if action.nargs == 0:
            declarations.switches += action.option_strings
        if isinstance(action, argparse._VersionAction) or action.dest in ("help", *destinations):
            continue  # a second argument of the same destination is the opposite of the first: --no-amp of --amp
        destinations.add(action.dest)
        _set_default_in_help(action)
        flag = declarations.preferred_flag(action.option_strings)
        name = parameter_name(flag, action.option_strings, action.dest)
        if name in names:
            continue
        names.add(name)
        if isinstance(action, argparse._SubParsersAction):
            _add_subcommand(declarations, action, values)
        elif not _adds_pairs(declarations, action, flag):
            _add_action(declarations, action, name, flag, values.get(action.dest, action.default))


def _adds_pairs(declarations: Declarations, action: argparse.Action, flag: str) -> bool:
    """If an argument sets values of a configuration by pairs of words, `NAME VALUE …`, as with yacs, add these values.

    Return whether it does.
    """
    config_values = yacs_values() if action.nargs in (argparse.REMAINDER, "+", "*") else []
    takes_pairs = bool(config_values) or (action.nargs == argparse.REMAINDER and merges_pairs())
    if not takes_pairs:
        return False
    declarations.takes_pairs = True
    declarations.words_before_pairs += [flag] if flag else []
    declarations.options += [key_option(key, value) for key, value in config_values]
    return True


def _add_subcommand(declarations: Declarations, action: argparse._SubParsersAction[Any], values: Mapping[str, Any]) -> None:
    """Add the arguments of the subcommand to use, if one is known to train; for `values` see `_add_parser`."""
    chosen = declarations.choose_subcommand(action.choices)
    if chosen:
        declarations.descend(chosen)
        _add_parser(declarations, action.choices[chosen], values)


def _add_action(declarations: Declarations, action: argparse.Action, name: str, flag: str, value: Any) -> None:
    """Add one argument of argparse, or record it as left out if a job cannot set it.

    Args:
        declarations: Declarations to add to.
        action: Argument in argparse.
        name: Name of the parameter of the job.
        flag: Flag of the argument; "" for a positional argument.
        value: Value of the argument in the command or its file; otherwise its default.
    """
    style = _style(action)
    obstacle = "" if style == "negated" else _obstacle(action)
    if obstacle:
        declarations.left_out.append(f"{flag or name}: {obstacle}")
        return
    if style == "switch" and value != action.default:
        declarations.left_out.append(f"{flag or name}: stays on, as in the command or its file")
        return
    default = False if style == "switch" else declarations.plain_default(value, action.type)
    is_boolean = style != ""
    may_be_omitted = not action.required or action.nargs in ("?", "*")  # argparse requires positional arguments
    declarations.options.append(
        Option(
            name=name,
            default=default,
            kind="bool" if is_boolean else KINDS.get(cast(Any, action.type), "") or kind_of(default),
            flag=flag,
            choices=plain_choices(action.choices),
            style=style,
            required=not may_be_omitted,
            lists=_list_form(action),
            aliases=tuple(action.option_strings) if len(action.option_strings) > 1 else (),
        )
    )


def _set_default_in_help(action: argparse.Action) -> None:
    """Set the default and the type of an argument that has them only in its help, as with tyro and pydantic-settings."""
    default_in_help = _DEFAULT.search(str(action.help))  # `(default: 0.1)`
    if action.default != argparse.SUPPRESS or not default_in_help:
        return
    text = default_in_help[1]
    is_quoted = len(text) > 1 and text[0] == text[-1] == "'"  # for the shell, as an empty text
    action.default = None if text == "None" else text[1:-1] if is_quoted else text
    type_name = str(action.metavar).rpartition("|")[2].lower()  # `float` of the metavar `None|FLOAT`
    action.type = _HELP_TYPES.get(type_name, action.type)


def _obstacle(action: argparse.Action) -> str:
    """Return the reason why a job cannot set an argument, for a message; "" if it can."""
    if _style(action) == "value" and not _reads_booleans(action):
        how = "without a type" if action.type is None else f"`type={getattr(action.type, '__name__', action.type)}`"
        return f"takes a boolean {how}, which does not read the texts True and False"
    if action.nargs == 0 and not isinstance(action, (argparse._StoreTrueAction, argparse._StoreFalseAction)):
        return "is neither a value nor an on/off switch, so a job cannot set it"
    if action.metavar == "JSON":  # pydantic-settings also has an argument for each field
        return "takes JSON; its fields are arguments, too"
    if action.nargs in (argparse.REMAINDER, argparse.PARSER):
        return "takes all arguments that follow, which a job cannot set"
    return ""


def _style(action: argparse.Action) -> str:
    """Return the style of a boolean argument (`Option.style`); "" for other arguments."""
    if isinstance(action, (argparse._StoreTrueAction, argparse._StoreFalseAction)):
        return "switch"
    flag_name = next(iter(action.option_strings), "").lstrip("-")
    if action.nargs == 0 and f"--no-{flag_name}" in action.option_strings:  # argparse's BooleanOptionalAction, and tyro's
        return "negated"
    is_boolean = "bool" in getattr(action.type, "__name__", "").lower() or isinstance(action.default, bool)
    is_on_without_value = action.nargs == "?" and action.const and not action.default  # `--amp` is `const`, as `--amp 1`
    if is_boolean and is_on_without_value and not _reads_booleans(action):
        return "switch"
    return "value" if is_boolean else ""


def _list_form(action: argparse.Action) -> str:
    """Return the form of an argument with a list (`Option.lists`); "" for an argument with a single value."""
    if isinstance(action, argparse._AppendAction):
        return "repeat"
    takes_several = action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 0)
    return "spread" if takes_several else ""


def _reads_booleans(action: argparse.Action) -> bool:
    """Return whether an argument reads the texts True and False; `bool` as its type does not, as every text is true."""
    if hasattr(action, "_typehint"):  # jsonargparse reads booleans
        return True
    convert: Any = action.type or str
    try:
        return bool(convert("True")) and not convert("False")
    except Exception:  # noqa: BLE001  a function of the script's, which may raise anything
        return False
