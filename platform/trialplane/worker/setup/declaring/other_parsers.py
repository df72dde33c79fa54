"""Arguments of other libraries: optparse, absl with ml_collections, fire, docopt, Sacred and OmegaConf."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import optparse
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from trialplane.training import imports
from trialplane.wire.declared import Option
from trialplane.worker.setup.declaring.configurations import leaves
from trialplane.worker.setup.declaring.declarations import KINDS, Declarations, kind_of, parameter_name, plain_choices

_ABSL = {"float": "float", "int": "int", "string": "str", "string enum": "str", "bool": "bool"}  # a flag's type → kind


def watch(declarations: Declarations) -> None:
    """Replace the functions that read the arguments, in the libraries that the script imports."""
    optparse.OptionParser.parse_args = lambda parser, *args, **kwargs: _end_at_optparse(declarations, parser)  # type: ignore[method-assign]
    for name, watch_library in _LIBRARIES.items():
        imports.on_import(name, functools.partial(watch_library, declarations))


def _watch_fire(declarations: Declarations, fire: Any) -> None:
    fire.Fire = lambda component=None, *args, **kwargs: _end_at_fire(declarations, component)


def _watch_absl(declarations: Declarations, flags: Any) -> None:
    parse = flags.FlagValues.__call__
    flags.FlagValues.__call__ = lambda values, *args, **kwargs: _end_at_absl(declarations, parse, values)


def _watch_docopt(declarations: Declarations, docopt: Any) -> None:
    docopt.docopt = lambda doc="", *args, **kwargs: _end_at_docopt(declarations, docopt, doc)


def _watch_sacred(declarations: Declarations, sacred: Any) -> None:
    sacred.Experiment.run_commandline = lambda experiment, argv=None: _end_at_sacred(
        declarations, experiment, sys.argv if argv is None else argv
    )


def _watch_omegaconf(declarations: Declarations, module: Any) -> None:
    """Replace the functions of OmegaConf, to end when values of the command line are merged into a configuration."""
    omegaconf, dict_config = module.OmegaConf, module.DictConfig
    merge, from_cli, get_node = omegaconf.merge, omegaconf.from_cli, dict_config._get_node
    command_line_configs: list[Any] = []

    def record_command_line(*args: Any) -> Any:
        """Read a configuration from the command line, in place of `OmegaConf.from_cli`, and record it."""
        config = from_cli(*args)
        command_line_configs.append(config)
        return config

    def is_of_command_line(config: Any) -> bool:
        return any(config is recorded for recorded in command_line_configs)

    def look_up(config: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a value, in place of `DictConfig._get_node`, and remember a key that the arguments lack."""
        node = get_node(config, key, *args, **kwargs)
        if node is None and is_of_command_line(config):
            declarations.missing_key = declarations.missing_key or str(key)
        return node

    def merge_until_command_line(*configs: Any) -> Any:
        """Merge as `OmegaConf.merge`; if a configuration is of the command line, add the values of the result and end."""
        merged = merge(*configs)
        if not any(map(is_of_command_line, configs)):
            return merged
        declarations.takes_overrides = True
        declarations.add_leaves(omegaconf.to_container(merged))
        return declarations.end()

    dict_config._get_node = look_up
    omegaconf.from_cli, omegaconf.merge = record_command_line, merge_until_command_line


_LIBRARIES = {
    "fire": _watch_fire,
    "absl.flags": _watch_absl,
    "docopt": _watch_docopt,
    "sacred": _watch_sacred,
    "omegaconf": _watch_omegaconf,
}


def _end_at_optparse(declarations: Declarations, parser: Any) -> NoReturn:
    """Add the options of an optparse parser that take one value, or that are switched on by their flag, and end."""
    groups = [parser, *parser.option_groups]
    for option in itertools.chain.from_iterable(group.option_list for group in groups):
        if option.action not in ("store", "store_true"):
            continue
        is_switch = option.action == "store_true"
        if is_switch:
            kind, default = "bool", False
        else:
            kind = {"int": "int", "long": "int", "float": "float"}.get(str(option.type), "str")
            default = declarations.plain_default(parser.defaults.get(option.dest), {"int": int, "float": float}.get(kind))
        flag = (option._long_opts or option._short_opts)[0]
        name = parameter_name(flag, flags=(), destination=option.dest)
        style = "switch" if is_switch else ""
        declarations.options.append(Option(name, default, kind, flag, plain_choices(option.choices), style))
    declarations.end()


def _end_at_absl(declarations: Declarations, parse: Any, values: Any) -> NoReturn:
    """Add the flags of the script's modules, also the nested values of ml_collections, and end.

    `parse` is absl's function that reads the command line into `values`, the flags of all modules.
    """
    missing_flags: set[str] = set()
    try:
        parse(values, sys.argv)  # this reads the files of ml_collections
    except Exception as error:  # noqa: BLE001  flags that are required have no value here, and the error names them
        missing_flags = set(re.findall(r"--([\w.-]+)", str(error)))
    for module, flags in values.flags_by_module_dict().items():
        if module.startswith("absl."):
            continue
        for flag in flags:
            is_nested = hasattr(flag.value, "to_dict")
            named_values = leaves(flag.value.to_dict(), flag.name) if is_nested else [(flag.name, flag.value)]
            for name, value in named_values:
                kind = KINDS.get(type(value), "") if is_nested else _ABSL.get(flag.flag_type(), "")
                if flag.flag_type() == "config object" and value is None:  # of ml_collections, without a file
                    kind = "str"
                if kind:  # other flags, as of lists, have no single value
                    _add_absl_flag(declarations, flag, name, value, kind, is_required=flag.name in missing_flags)
    declarations.end()


def _add_absl_flag(declarations: Declarations, flag: Any, name: str, value: Any, kind: str, *, is_required: bool) -> None:
    """Add a flag of absl, or one value of a flag with nested values.

    Args:
        declarations: Declarations to add to.
        flag: Flag of absl.
        name: Name on the command line, as `lr`, or `config.lr` for a nested value.
        value: Default.
        kind: Kind of its values (`Option.kind`).
        is_required: Whether the flag has no default.
    """
    declarations.options.append(
        Option(
            name=name,
            default=declarations.plain_default(value, None),
            kind=kind,
            flag=f"--{name}",
            choices=tuple(getattr(flag.parser, "enum_values", None) or ()),
            style="value" if kind == "bool" else "",
            required=is_required,
        )
    )


def _end_at_fire(declarations: Declarations, component: Any) -> NoReturn:
    """Add the parameters of a component of fire, and end.

    Args:
        declarations: Declarations to add to.
        component: Function, or a class, object or dict whose methods are commands. None for the script's functions.
    """
    if component is None:
        component = {name: value for name, value in vars(sys.modules["__main__"]).items() if inspect.isfunction(value)}
    for function in [component] if inspect.isroutine(component) else _fire_functions(declarations, component):
        for parameter in inspect.signature(function).parameters.values():
            is_keywords = parameter.kind is parameter.VAR_KEYWORD  # **kwargs
            declarations.takes_undeclared |= is_keywords
            if parameter.name != "self" and not is_keywords and parameter.kind is not parameter.VAR_POSITIONAL:
                declarations.options.append(_fire_option(declarations, parameter))
    declarations.end()


def _fire_option(declarations: Declarations, parameter: inspect.Parameter) -> Option:
    """Return the option for a parameter of a function that fire calls."""
    is_required = parameter.default is parameter.empty
    default = None if is_required else declarations.plain_default(parameter.default, type_=None)
    kind = KINDS.get(parameter.annotation, "") or kind_of(default)
    return Option(
        name=parameter.name,
        default=default,
        kind=kind,
        flag=f"--{parameter.name}",
        style="value" if kind == "bool" else "",
        required=is_required,
        lists="literal" if isinstance(default, list) else "",  # fire reads each value as Python
    )


def _fire_functions(declarations: Declarations, component: Any) -> list[Any]:
    """Return what fire calls for a class, object or dict: the class, and the method that is the subcommand to use."""
    members = component if isinstance(component, dict) else {name: getattr(component, name) for name in dir(component)}
    commands = {name: value for name, value in members.items() if name[:1] != "_" and callable(value)}
    name = declarations.choose_subcommand(commands)
    functions = [component] if inspect.isclass(component) else []
    if name:
        declarations.subcommands.append(name)
        functions.append(commands[name])
    return functions


def _end_at_docopt(declarations: Declarations, docopt: Any, doc: str) -> NoReturn:
    """Add the options in a docstring, and the words and arguments that its first usage needs, and end."""
    options = docopt.parse_defaults(doc)
    required_flags: set[str] = set()
    with contextlib.suppress(AttributeError):  # other versions have other functions
        required_flags = _add_docopt_usage(declarations, docopt, doc, options)
    for option in options:
        flag = option.long or option.short
        name = flag.lstrip("-")
        if name not in ("help", "version"):
            default = _scalar(option.value) if option.argcount else False
            style = "" if option.argcount else "switch"
            required = flag in required_flags and default is None
            declarations.options.append(Option(name, default, kind_of(default), flag, style=style, required=required))
    declarations.end()


def _add_docopt_usage(declarations: Declarations, docopt: Any, doc: str, options: list[Any]) -> set[str]:
    """Add the words and arguments of the first usage in a docstring, which is the way to train; return flags it needs.

    `options` are those in the docstring, as docopt has parsed them.
    """
    required_flags: set[str] = set()
    usage = docopt.parse_pattern(docopt.formal_usage(docopt.printable_usage(doc)), list(options))
    while len(usage.children) == 1 or isinstance(usage, docopt.Either):  # several usages are alternatives
        usage = usage.children[0]
    for part in usage.children:
        if isinstance(part, docopt.Command):
            declarations.subcommands.append(part.name)
        elif isinstance(part, docopt.Argument):
            declarations.options.append(Option(part.name.strip("<>"), required=True))
        elif isinstance(part, docopt.Option):
            required_flags.add(part.name)
    return required_flags


def _end_at_sacred(declarations: Declarations, experiment: Any, argv: str | Sequence[str]) -> NoReturn:
    """Add the values of the configuration of one of Sacred's experiments, and end.

    `argv` has the name of the script and its arguments, of which those after `with` change the configuration.
    """
    words = shlex.split(argv) if isinstance(argv, str) else list(argv)
    if "with" in words:
        updates = words[words.index("with") + 1 :]
    else:
        updates = []
        declarations.words_before_pairs.append("with")  # train.py with lr=0.1
    values, named_configs = importlib.import_module("sacred.arg_parser").get_config_updates(updates)
    config = experiment.run("print_config", values, named_configs).config  # a command that trains nothing
    declarations.takes_overrides = True
    declarations.add_leaves(config)
    declarations.end()


def _scalar(text: Any) -> Any:
    """Return a value as a number if it is one; otherwise unchanged."""
    for type_ in (int, float):
        try:
            return type_(text)
        except (TypeError, ValueError):
            continue
    return text
