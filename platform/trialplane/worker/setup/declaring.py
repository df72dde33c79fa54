"""Find the arguments that a script declares to a parser, by running it up to the point where it reads them.

Supported are argparse, click and libraries based on them (typer, simple-parsing, transformers, plac, pydantic-settings),
optparse, tyro, pyrallis, draccus, absl with ml_collections, docopt, fire, jsonargparse with LightningCLI, OmegaConf, yacs,
and a function or method of the script's own that merges `sys.argv[1:]` into a configuration.

`python -m trialplane.worker.setup.declaring SCRIPT FILE MODULE [ARGUMENT ...]` is started in the folder in which the script
runs, and writes FILE, a `Declared` in JSON. MODULE is "" for a script that is run as a file. The process ends when the
script reads its arguments, so the rest of the script does not run, and the arguments need not be complete. If the script
ends without reading any, its function `main` is called, as an entry point of its package would.

With arguments, these are those of a command that a user types. Defaults are then the values that argparse reads from them,
also from a settings file that they name, as with ConfigArgParse.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import itertools
import linecache
import optparse
import os
import re
import runpy
import shlex
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from types import FrameType, MappingProxyType, ModuleType
from typing import Any, NoReturn, cast

from trialplane.training import process
from trialplane.wire import records
from trialplane.wire.declared import LIGHTNING_CALLBACK, Declared, Option

_CLICK = ("click.core", "typer._click.core")  # typer includes a copy of click
_TRAINING_COMMANDS = ("train", "fit", "training", "run", "main")  # subcommands that are chosen among several
_MAX_CHOICES = 50
_HELP_TYPES = {"int": int, "float": float, "str": str, "bool": bool}  # type of a value in the help → Python type
_DEFAULT = re.compile(r"\(default: (.*?)\)")  # in the help of tyro and pydantic-settings
_LIGHTNING = ("model.", "data.")  # arguments of LightningCLI that belong to the script's own classes
_ABSL = {"float": "float", "int": "int", "string": "str", "string enum": "str", "bool": "bool"}  # a flag's type → kind
_KINDS = {int: "int", float: "float", str: "str", bool: "bool"}
_FUNCTIONS = ("main", "cli", "app", "run", "train")  # entry points of packages
_MOST_LEVELS, _MOST_LEAVES = 5, 1000  # of a configuration
# Text of a function that reads words of the command line: as `LR 0.1`, as `--lr=0.1`, or as `lr=0.1`.
_READS_PAIRS = re.compile(r"merge_from_list|\[[01]?::2\]")
_READS_FLAGS = re.compile(r"""["']--?["']""")
_READS_ASSIGNMENTS = re.compile(r"""(?:split|partition)\(["']=["']""")


class _Parsers:
    """The arguments that a script's parsers declare. The process ends at the parser that reads the arguments."""

    def __init__(self, script: Path, file: Path) -> None:
        self._file = file
        self._folder = str(script.parent.resolve())
        # The fields of `Declared`, which has their meanings.
        self._options: list[Option] = []
        self._left_out: list[str] = []
        self._subcommands: list[str] = []
        self._takes_pairs = False
        self._switches: list[str] = []
        self._words_before_pairs: list[str] = []
        self._takes_overrides = False
        self._missing_key = ""  # of the arguments that OmegaConf reads, such as `config`
        self.function = ""
        self._typed_words = {word.partition("=")[0] for word in sys.argv[1:]}  # arguments, without values after =
        self._is_parsing = False  # whether argparse reads the typed arguments, for their values
        # A script may read a few arguments with a small parser and `parse_known_args`, before its main parser reads them all
        # with `parse_args`.
        self._calls_parse_args = "parse_args(" in script.read_text(errors="replace")

    def watch(self) -> None:
        """Replace the functions that read the arguments, in all supported libraries that are installed."""
        self._watch_argparse()
        optparse.OptionParser.parse_args = lambda parser, *args, **kwargs: self._end_at_optparse(parser)  # type: ignore[method-assign]
        for name in _CLICK:
            try:
                command = importlib.import_module(name).Command
            except ImportError:
                continue
            command.make_context = lambda command, *args, **kwargs: self._end_at_click(command)
        if _is_installed("tyro"):
            tyro: Any = importlib.import_module("tyro")
            tyro.cli = lambda component, **kwargs: self._end_at_tyro(tyro, component, kwargs)
        for name in ("pyrallis", "draccus"):
            if _is_installed(name):
                self._watch_dataclasses(importlib.import_module(f"{name}.argparsing").ArgumentParser)
        if _is_installed("jsonargparse"):
            importlib.import_module("jsonargparse").ArgumentParser.parse_args = lambda parser, *args, **kwargs: (
                self._end_at_jsonargparse(parser)
            )
        if _is_installed("fire"):
            fire: Any = importlib.import_module("fire")
            fire.Fire = lambda component=None, *args, **kwargs: self._end_at_fire(component)
        if _is_installed("absl"):
            flags: Any = importlib.import_module("absl.flags")
            parse = flags.FlagValues.__call__
            flags.FlagValues.__call__ = lambda values, *args, **kwargs: self._end_at_absl(parse, values)
        if _is_installed("docopt"):
            docopt: Any = importlib.import_module("docopt")
            docopt.docopt = lambda doc="", *args, **kwargs: self._end_at_docopt(docopt, doc)
        if _is_installed("sacred"):
            importlib.import_module("sacred").Experiment.run_commandline = lambda experiment, argv=None: self._end_at_sacred(
                experiment, sys.argv if argv is None else argv
            )
        if _is_installed("omegaconf"):
            self._watch_omegaconf(importlib.import_module("omegaconf").OmegaConf)

    def _watch_argparse(self) -> None:
        """Replace the function of argparse that all of its parsers call to read the arguments."""
        parse_known = argparse.ArgumentParser.parse_known_args

        def parse_known_args(parser: argparse.ArgumentParser, args: Any = None, *others: Any, **kwargs: Any) -> Any:
            """Add the parser's arguments and end, unless it is a small parser before the main one."""
            if self._is_parsing:  # a subcommand
                return parse_known(parser, args, *others, **kwargs)
            if args is not None and not args and self._is_called_with_empty_list():
                return self.end("it reads none, as it calls `parse_args([])`")
            words = sys.argv[1:] if args is None else list(args)
            values = self._typed_values(lambda: vars(parse_known(parser, words)[0])) if words else {}
            self._add_argparse(parser, values)
            # Let a small parser read its arguments. It is recognized because it has no --help and is not the main one.
            is_called_by_parse_args = sys._getframe(1).f_code.co_name == "parse_args"
            is_small = self._calls_parse_args and not parser.add_help
            if not is_called_by_parse_args and (is_small or _parses_again(sys._getframe(1))):
                return parse_known(parser, args, *others, **kwargs)
            return self.end()

        argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[assignment]

    def _typed_values(self, parse: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the values that a parser reads from typed arguments, by destination; {} if it refuses them."""
        self._is_parsing = True
        try:
            with Path(os.devnull).open("w") as nothing, contextlib.redirect_stderr(nothing):
                return parse()
        except (SystemExit, Exception):  # noqa: BLE001  a type of the script's may raise anything
            return {}
        finally:
            self._is_parsing = False

    def _preferred_flag(self, flags: Sequence[str]) -> str:
        """Return the flag of an option that is typed, or else its first long one, or its first one; "" without any."""
        typed_flags = [flag for flag in flags if flag in self._typed_words]
        long_flags = [flag for flag in flags if flag.startswith("--")]
        return next(iter([*typed_flags, *long_flags, *flags]), "")

    def _is_called_with_empty_list(self) -> bool:
        """Return whether the line of the script that calls the parser gives it `[]` in place of its arguments.

        Call it from the function that replaces `parse_known_args`.
        """
        frame = sys._getframe(2)  # the caller of that function
        while frame.f_back is not None and frame.f_code.co_filename == argparse.__file__:
            frame = frame.f_back
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        return frame.f_code.co_filename.startswith(self._folder) and re.search(r"\((?:args\s*=\s*)?\[\]", line) is not None

    def watch_merge(self, frame: FrameType) -> None:
        """If a statement of the script passes `sys.argv[1:]` to a function, end after it with the configuration it fills.

        The configuration is the function's result, one of its arguments, or the object that has it as a method. Without
        one, or if the form of the words is unknown, the script continues.

        Args:
            frame: Frame that takes the slice.
        """
        merge = _merge_at(frame)
        if merge is None:
            return

        def end_after(traced: FrameType, event: str, result: Any) -> Any:
            """Trace the frame up to the end of the statement, and end there; see `sys.settrace`."""
            is_in_statement = merge.first_line <= traced.f_lineno <= merge.last_line
            if event == "exception" or (is_in_statement and event != "return"):
                return end_after
            sys.settrace(None)
            traced.f_trace = None
            configs = [_value_of(node, traced) for node in merge.configs]
            if merge.is_returned and event == "return":
                configs.append(result)
            self._end_at_merge(merge, configs)
            return None

        sys.settrace(lambda *event: None)  # without a global function, that of the frame is not called
        frame.f_trace = end_after

    def _end_at_merge(self, merge: _Merge, configs: Iterable[Any]) -> None:
        """Add an option for each plain value of the largest configuration, and end. Return if there is none.

        Args:
            merge: Statement that merges the arguments into a configuration.
            configs: Values that may be the configuration.
        """
        leaves: list[tuple[str, Any]] = []
        for config in configs:
            config_leaves = list(itertools.islice(_object_leaves(config), _MOST_LEAVES))
            if len(config_leaves) > len(leaves):
                leaves = config_leaves
        for name, value in leaves:
            default = self._plain_default(value, None)
            if default is not None:
                self._options.append(merge.option(name, default))
        if self._options:
            self._takes_pairs, self._takes_overrides = merge.form == "pairs", merge.form == "assignments"
            self.end()

    def _watch_omegaconf(self, omegaconf: Any) -> None:
        """Replace the functions of OmegaConf, to end when values of the command line are merged into a configuration."""
        merge, from_cli = omegaconf.merge, omegaconf.from_cli
        command_line_configs: list[Any] = []

        def record_command_line(*args: Any) -> Any:
            command_line_configs.append(from_cli(*args))
            return command_line_configs[-1]

        def look_up(config: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            """Return a value, and remember a key that the arguments lack."""
            node = get_node(config, key, *args, **kwargs)
            if node is None and any(config is recorded for recorded in command_line_configs):
                self._missing_key = self._missing_key or str(key)
            return node

        def merge_until_command_line(*configs: Any) -> Any:
            """Merge configurations; if one is of the command line, add the values of the result and end."""
            merged = merge(*configs)
            if not any(config is recorded for config in configs for recorded in command_line_configs):
                return merged
            self._takes_overrides = True
            self._add_leaves(omegaconf.to_container(merged))
            return self.end()

        dict_config = importlib.import_module("omegaconf").DictConfig
        get_node, dict_config._get_node = dict_config._get_node, look_up
        omegaconf.from_cli, omegaconf.merge = record_command_line, merge_until_command_line

    def fail(self, failure: str) -> NoReturn:
        """End with a failure, or with the key without which the script has ended, such as OmegaConf's `config=FILE`."""
        if self._missing_key:
            self._takes_overrides = True
            self._options.append(Option(self._missing_key, flag=self._missing_key, required=True))
        self.end("" if self._missing_key else failure)

    def _end_at_optparse(self, parser: Any) -> NoReturn:
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
                default = self._plain_default(parser.defaults.get(option.dest), {"int": int, "float": float}.get(kind))
            flag = (option._long_opts or option._short_opts)[0]
            style = "switch" if is_switch else ""
            name = _parameter_name(flag, (), option.dest)
            self._options.append(Option(name, default, kind, flag, _choices(option.choices), style))
        self.end()

    def _end_at_click(self, command: Any) -> NoReturn:
        """Add the parameters of a click command, of the groups and subcommands down to the one that trains, and end."""
        while getattr(command, "commands", None):
            commands = command.commands
            name = _subcommand(commands)
            if not name:
                break
            if len(commands) > 1 and name not in self._typed_words:
                self._left_out.append(f"subcommands ({', '.join(commands)}): {name} is used")
            self._add_click(command, is_group=True)
            self._descend(name)
            command = commands[name]
        self._add_click(command)
        self.end()

    def _end_at_tyro(self, tyro: Any, component: Any, kwargs: dict[str, Any]) -> NoReturn:
        """Add the arguments that tyro makes for a function or class, and end.

        Args:
            tyro: tyro's module.
            component: The function or class.
            kwargs: Other arguments of the call `tyro.cli`.
        """
        supported = {name: kwargs[name] for name in ("default", "config", "use_underscores") if name in kwargs}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the function is deprecated, and no other one exists in all versions
            parser = tyro.extras.get_parser(component, **supported)
        for action in parser._actions:
            # tyro's action for a single value has a list of one, and no default of its type; the help has the default.
            action.nargs = None if action.nargs == 1 else action.nargs
            if action.nargs is None:
                action.default = argparse.SUPPRESS
        self._add_argparse(parser)
        self.end()

    def _watch_dataclasses(self, parser_class: Any) -> None:
        """Replace the function by which a parser of pyrallis or draccus fills a dataclass: add its fields, and end."""
        parse = parser_class.parse_args

        def parse_args(parser: Any, args: Any = None, *others: Any) -> NoReturn:
            """Add the fields of the dataclass, and end."""
            actions = getattr(parser, "parser", parser)._actions
            fields = {action.dest: (action.type, action.default) for action in actions}  # which a parse changes
            words = sys.argv[1:] if args is None else list(args)
            values = self._typed_values(lambda: dict(_object_leaves(parse(parser, words))))
            for name, (type_, value) in fields.items():
                value = values.get(name, value)
                # The libraries read members of an enum by their names, and a list as one literal.
                choices = tuple(type(value).__members__) if isinstance(value, enum.Enum) else ()
                default = self._plain_default(value.name if isinstance(value, enum.Enum) else value, type_)
                kind = _KINDS.get(type_, "") or _kind(default)
                style, lists = "value" if kind == "bool" else "", "literal" if isinstance(default, list) else ""
                if name != "help":
                    self._options.append(Option(name, default, kind, f"--{name}", choices, style, lists=lists))
            self.end()

        parser_class.parse_args = parse_args

    def _end_at_jsonargparse(self, parser: Any) -> NoReturn:
        """Add the plain arguments of a jsonargparse parser, of LightningCLI only those of the script's classes, and end."""
        subcommands = getattr(parser._subcommands_action, "choices", None) or {}
        is_lightning = "fit" in subcommands
        if is_lightning:
            parser, self._subcommands = subcommands["fit"], ["fit", LIGHTNING_CALLBACK]
        for action in list(parser._actions):
            action.type = getattr(action, "_typehint", action.type)
            is_own = not is_lightning or action.dest.startswith(_LIGHTNING)
            if not is_own or not (action.type in _KINDS or type(action.default) in _KINDS):
                parser._actions.remove(action)
        self._add_argparse(parser)
        self.end()

    def _end_at_absl(self, parse: Any, values: Any) -> NoReturn:
        """Add the flags of the script's modules, also the nested values of ml_collections, and end.

        Args:
            parse: absl's function that parses the command line.
            values: absl's flags.
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
                pairs = _leaves(flag.value.to_dict(), flag.name) if is_nested else [(flag.name, flag.value)]
                for name, value in pairs:
                    kind = _KINDS.get(type(value), "") if is_nested else _ABSL.get(flag.flag_type(), "")
                    if flag.flag_type() == "config object" and value is None:  # of ml_collections, without a file
                        kind = "str"
                    if kind:
                        self._add_absl_flag(flag, name, value, kind, is_required=flag.name in missing_flags)
        self.end()

    def _add_absl_flag(self, flag: Any, name: str, value: Any, kind: str, *, is_required: bool) -> None:
        """Add a flag of absl, or one value of a flag with nested values.

        Args:
            flag: Flag of absl.
            name: Name on the command line, as `lr`, or `config.lr` for a nested value.
            value: Default.
            kind: Kind of its values (`Option.kind`).
            is_required: Whether the flag has no default.
        """
        self._options.append(
            Option(
                name=name,
                default=self._plain_default(value, None),
                kind=kind,
                flag=f"--{name}",
                choices=tuple(getattr(flag.parser, "enum_values", None) or ()),
                style="value" if kind == "bool" else "",
                required=is_required,
            )
        )

    def _end_at_fire(self, component: Any) -> NoReturn:
        """Add the parameters of a component of fire, and end.

        Args:
            component: Function, or a class, object or dict whose methods are commands. None for the script's functions.
        """
        if component is None:
            component = {name: value for name, value in vars(sys.modules["__main__"]).items() if inspect.isfunction(value)}
        for function in [component] if inspect.isroutine(component) else self._fire_functions(component):
            for parameter in inspect.signature(function).parameters.values():
                if parameter.name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    continue
                is_required = parameter.default is parameter.empty
                default = None if is_required else self._plain_default(parameter.default, None)
                kind = _KINDS.get(parameter.annotation, "") or _kind(default)
                # fire reads each value as Python, so a list is one literal.
                self._options.append(
                    Option(
                        name=parameter.name,
                        default=default,
                        kind=kind,
                        flag=f"--{parameter.name}",
                        style="value" if kind == "bool" else "",
                        required=is_required,
                        lists="literal" if isinstance(default, list) else "",
                    )
                )
        self.end()

    def _fire_functions(self, component: Any) -> list[Any]:
        """Return what fire calls for a class, object or dict: the class, and the method that is the subcommand to use."""
        members = component if isinstance(component, dict) else {name: getattr(component, name) for name in dir(component)}
        commands = {name: value for name, value in members.items() if name[:1] != "_" and callable(value)}
        name = _subcommand(commands)
        if len(commands) > 1:
            self._left_out.append(f"subcommands ({', '.join(commands)}): {name or 'none'} is used")
        functions = [component] if inspect.isclass(component) else []
        if name:
            self._subcommands.append(name)
            functions.append(commands[name])
        return functions

    def _end_at_docopt(self, docopt: Any, doc: str) -> NoReturn:
        """Add the options in a docstring, and the words and arguments that its first usage needs, and end.

        Args:
            docopt: docopt's module.
            doc: The docstring.
        """
        options = docopt.parse_defaults(doc)
        required_flags: set[str] = set()
        with contextlib.suppress(AttributeError):  # other versions have other functions
            usage = docopt.parse_pattern(docopt.formal_usage(docopt.printable_usage(doc)), list(options))
            while len(usage.children) == 1 or isinstance(usage, docopt.Either):  # of which the first is the way to train
                usage = usage.children[0]
            for part in usage.children:
                if isinstance(part, docopt.Command):
                    self._subcommands.append(part.name)
                elif isinstance(part, docopt.Argument):
                    self._options.append(Option(part.name.strip("<>"), required=True))
                elif isinstance(part, docopt.Option):
                    required_flags.add(part.name)
        for option in options:
            name = (option.long or option.short).lstrip("-")
            if name not in ("help", "version"):
                default = _scalar(option.value) if option.argcount else False
                style = "" if option.argcount else "switch"
                flag = option.long or option.short
                required = flag in required_flags and default is None
                self._options.append(Option(name, default, _kind(default), flag, style=style, required=required))
        self.end()

    def _end_at_sacred(self, experiment: Any, argv: str | Sequence[str]) -> NoReturn:
        """Add the values of the configuration of one of Sacred's experiments, and end.

        Args:
            experiment: The experiment.
            argv: Name of the script and its arguments, of which those after `with` change the configuration.
        """
        words = shlex.split(argv) if isinstance(argv, str) else list(argv)
        if "with" in words:
            updates = words[words.index("with") + 1 :]
        else:
            updates = []
            self._words_before_pairs.append("with")
        values, named_configs = importlib.import_module("sacred.arg_parser").get_config_updates(updates)
        config = experiment.run("print_config", values, named_configs).config
        self._takes_overrides = True
        self._add_leaves(config)
        self.end()

    def _add_leaves(self, config: Mapping[str, Any]) -> None:
        """Add an option for each plain value of a configuration of nested dicts that takes pairs NAME=VALUE."""
        for name, value in _leaves(config, ""):
            default = self._plain_default(value, None)
            if default is not None and not isinstance(default, list):
                self._options.append(_key_option(name, default))

    def end(self, failure: str = "") -> NoReturn:
        """Write the declared arguments, or the reason why there are none, and end the process."""
        declared = Declared(
            tuple(self._options),
            tuple(self._left_out),
            failure,
            tuple(self._subcommands),
            self._takes_pairs,
            tuple(self._words_before_pairs),
            self._takes_overrides,
            self.function,
            tuple(self._switches),
        )
        self._file.write_text(records.to_json(declared), encoding="utf-8")
        os._exit(0)

    def _add_argparse(self, parser: argparse.ArgumentParser, values: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Add the arguments of a parser of argparse, and those of its subcommand.

        Args:
            parser: The parser.
            values: Values that it reads from typed arguments and a settings file, by destination.
        """
        names: set[str] = {option.name for option in self._options}
        destinations: set[str] = set()
        # Subcommands come last: the options that a script adds after them precede them in a command too.
        for action in sorted(parser._actions, key=lambda action: isinstance(action, argparse._SubParsersAction)):
            if action.nargs == 0:
                self._switches += action.option_strings
            if isinstance(action, argparse._VersionAction) or action.dest in ("help", *destinations):
                continue  # a second argument of the same destination is the opposite of the first: --no-amp of --amp
            destinations.add(action.dest)
            _set_default_in_help(action)
            flag = self._preferred_flag(action.option_strings)
            name = _parameter_name(flag, action.option_strings, action.dest)
            if name in names:
                continue
            names.add(name)
            if isinstance(action, argparse._SubParsersAction):
                self._add_argparse_subcommand(action, values)
                continue
            # An argument that takes all further words may take pairs for yacs: `NAME VALUE …`.
            yacs_values = _yacs_values() if action.nargs in (argparse.REMAINDER, "+", "*") else []
            if yacs_values or (action.nargs == argparse.REMAINDER and _merges_pairs()):
                self._takes_pairs = True
                self._words_before_pairs += [flag] if flag else []
                self._options += [_key_option(key, value) for key, value in yacs_values]
                continue
            self._add_action(action, name, flag, values.get(action.dest, action.default))

    def _add_argparse_subcommand(self, action: argparse._SubParsersAction[Any], values: Mapping[str, Any]) -> None:
        """Add the arguments of the subcommand to use, or record the subcommands as left out if none is known to train.

        Args:
            action: All subcommands of a parser.
            values: As in `_add_argparse`.
        """
        chosen = _subcommand(action.choices)
        if not chosen:
            self._left_out.append(f"subcommands ({', '.join(action.choices)}): name one of them in `arguments`")
            return
        if len(action.choices) > 1 and chosen not in self._typed_words:
            self._left_out.append(f"subcommands ({', '.join(action.choices)}): {chosen} is used")
        self._descend(chosen)
        self._add_argparse(action.choices[chosen], values)

    def _add_action(self, action: argparse.Action, name: str, flag: str, value: Any) -> None:
        """Add one argument of argparse, or record it as left out if a job cannot set it.

        Args:
            action: Argument in argparse.
            name: Name of the parameter.
            flag: Flag of the argument; "" for a positional argument.
            value: Value of the argument in the command or its file; otherwise its default.
        """
        style = _style(action)
        obstacle = "" if style == "negated" else _obstacle(action)
        if obstacle:
            self._left_out.append(f"{flag or name}: {obstacle}")
            return
        if style == "switch" and value != action.default:
            self._left_out.append(f"{flag or name}: stays on, as in the command or its file")
            return
        default = False if style == "switch" else self._plain_default(value, action.type)
        self._options.append(
            Option(
                name=name,
                default=default,
                kind="bool" if style else _KINDS.get(cast(Any, action.type), "") or _kind(default),
                flag=flag,
                choices=_choices(action.choices),
                style=style,
                required=action.required and action.nargs not in ("?", "*"),
                lists=_list_form(action),
                aliases=tuple(action.option_strings) if len(action.option_strings) > 1 else (),
            )
        )

    def _descend(self, subcommand: str) -> None:
        """Record a subcommand. The options so far belong to the parser above it, so they come before it on a command line.

        A placeholder stands for the value of each option. Options that have no single value, or need none, are dropped.
        """
        if subcommand in self._typed_words:
            # The typed command has the subcommand already. Only options of the subcommand can be added at its end.
            self._options = []
            return
        single_value_options = [option for option in self._options if option.flag and not option.style and not option.lists]
        self._options = [option for option in single_value_options if option.default is not None or option.required]
        recorded_flags = {word.partition("=")[0] for word in self._subcommands}
        for option in self._options:
            if option.flag not in recorded_flags:
                is_long = option.flag.startswith("--")
                value = f"{{{option.name}}}"
                self._subcommands += [f"{option.flag}={value}"] if is_long else [option.flag, value]
        self._subcommands.append(subcommand)

    def _add_click(self, command: Any, *, is_group: bool = False) -> None:
        """Add the parameters of a click command. Record what a job cannot set as left out.

        Args:
            command: Command of click.
            is_group: Whether it is a group and one of its subcommands is used, so that its subcommands are not left out.
        """
        if hasattr(command, "commands") and not is_group:
            self._left_out.append(f"subcommands ({', '.join(command.commands)}): name one of them in `arguments`")
        for parameter in command.params:
            if parameter.expose_value and parameter.name != "help":
                self._add_click_parameter(parameter)

    def _add_click_parameter(self, parameter: Any) -> None:
        """Add a parameter of a click command, or record it as left out if a job cannot set it."""
        is_option = parameter.param_type_name == "option"
        flag = self._click_flag(parameter) if is_option else ""
        name = _parameter_name(flag, parameter.opts, parameter.name)
        is_flag, is_counter = getattr(parameter, "is_flag", False), getattr(parameter, "count", False)
        if is_flag or is_counter:
            self._switches += [*parameter.opts, *parameter.secondary_opts]
        opposite = next(iter(parameter.secondary_opts), "") if is_flag else ""  # `--no-amp` in `--amp/--no-amp`
        if is_counter or opposite not in ("", f"--no-{name}"):
            self._left_out.append(f"{flag}: is neither a value nor an on/off switch, so a job cannot set it")
            return
        type_ = _click_type(parameter)
        style = "value" if type_ is bool else ""
        if is_flag:
            style = "negated" if opposite else "switch"
        default = self._plain_default(parameter.default, type_)
        if style == "switch" and default:
            self._left_out.append(f"{flag}: is on by default, and cannot be switched off")
            return
        self._options.append(
            Option(
                name=name,
                default=bool(default) if style == "switch" else default,
                kind="bool" if style else _KINDS.get(type_, "") or _kind(default),
                flag=flag,
                choices=_choices(getattr(getattr(parameter, "type", None), "choices", None)),
                style=style,
                required=bool(parameter.required),
                lists="repeat" if getattr(parameter, "multiple", False) else "",
                aliases=tuple(parameter.opts) if is_option and len(parameter.opts) > 1 else (),
            )
        )

    def _click_flag(self, option: Any) -> str:
        """Return the flag of an option of click that is typed, or else its longest one."""
        flags: list[str] = option.opts
        typed_flags = [flag for flag in flags if flag in self._typed_words]
        return typed_flags[0] if typed_flags else max(flags, key=len)

    def _plain_default(self, value: Any, type_: Any) -> Any:
        """Return a default as a number, text, boolean or list of these; None if it has no such form.

        A text with the path of the script's folder has none, because trials run in other folders.

        Args:
            value: Default of a parser.
            type_: Type of the argument's values, or None.
        """
        if isinstance(value, enum.Enum):
            value = value.value
        elif isinstance(value, PurePath):
            value = str(value)
        if isinstance(value, (list, tuple)):
            items = [self._plain_default(item, type_) for item in value]
            return items if items and None not in items else None
        if isinstance(value, str) and type_ in (int, float):
            try:
                return type_(value)
            except ValueError:
                return None
        if type(value) not in (int, float, str, bool) or (isinstance(value, str) and self._folder in value):
            return None
        if value == argparse.SUPPRESS:
            return None
        return float(value) if type_ is float else value


def _parameter_name(flag: str, flags: Sequence[str], destination: str) -> str:
    """Return the name of an argument: its flag without dashes, in place of one letter its long flag or the destination.

    Args:
        flag: Flag that a command uses; "" for a positional argument.
        flags: All flags of the argument.
        destination: Name of its value in the script.
    """
    if re.fullmatch(r"-\w", flag):
        flag = next((long_flag for long_flag in flags if long_flag.startswith("--")), "")
    return flag.lstrip("-") or destination


def _key_option(name: str, default: Any) -> Option:
    """Return the option for a key of a configuration, which is set by its name without a flag."""
    kind = _kind(default)
    return Option(name, default, kind, flag=name, style="value" if kind == "bool" else "")


class _CommandLine(list[str]):
    """`sys.argv`, which calls a function with the frame that takes a slice of it."""

    def __init__(self, words: Iterable[str], on_slice: Callable[[FrameType], None]) -> None:
        super().__init__(words)
        self._on_slice = on_slice

    def __reduce__(self) -> Any:
        """Pickle as a list: a process that the script spawns gets it, and has another `__main__`."""
        return list, (list(self),)

    def __getitem__(self, index: Any) -> Any:
        """Return a word or several."""
        if isinstance(index, slice):
            self._on_slice(sys._getframe(1))
        return super().__getitem__(index)


@dataclasses.dataclass(frozen=True)
class _Merge:
    """A statement of a script that merges words of the command line into a configuration.

    Attributes:
        first_line: First line of the statement.
        last_line: Last line of the statement.
        configs: Expressions that may be the configuration after the statement.
        is_returned: Whether the statement returns the configuration.
        form: Form of the words: "pairs" (`LR 0.1`), "flags" (`--lr=0.1`) or "assignments" (`lr=0.1`).
    """

    first_line: int
    last_line: int
    configs: tuple[ast.expr, ...]
    is_returned: bool
    form: str

    def option(self, name: str, value: Any) -> Option:
        """Return the option for a value of the configuration."""
        option = _key_option(name, value)
        lists = "literal" if isinstance(value, list) else ""
        return dataclasses.replace(option, flag=f"--{name}" if self.form == "flags" else name, lists=lists)


def _merge_at(frame: FrameType) -> _Merge | None:
    """Return the statement that a frame runs, if it is the script's own and passes a slice of `sys.argv` to a function.

    Return None for another statement, and if it is unknown in which form the function reads words.

    Args:
        frame: Frame that takes the slice.
    """
    file = Path(frame.f_code.co_filename)
    if not _is_own_file(file):
        return None
    slice_position = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    text = file.read_text(encoding="utf-8", errors="replace")
    for statement in ast.walk(ast.parse(text)):
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)):
            continue
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and slice_position in map(_position, _call_arguments(call)):
                form = _form_of_words(_value_of(call.func, frame), text)
                return _merge_of(statement, call, form) if form else None
    return None


def _merge_of(statement: ast.stmt, call: ast.Call, form: str) -> _Merge:
    """Return the description of a statement that merges words of the command line into a configuration.

    The configuration may be what the statement assigns to, the object whose method is called, or an argument.

    Args:
        statement: The statement.
        call: Call in it, with the words as an argument.
        form: Form of the words.
    """
    configs = _call_arguments(call)
    if isinstance(call.func, ast.Attribute):
        configs.insert(0, call.func.value)
    if isinstance(statement, ast.Assign):
        configs = [*statement.targets, *configs]
    elif isinstance(statement, ast.AnnAssign):
        configs = [statement.target, *configs]
    last_line = statement.end_lineno or statement.lineno
    return _Merge(statement.lineno, last_line, tuple(configs), isinstance(statement, ast.Return), form)


def _call_arguments(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, with and without names."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _position(node: ast.expr) -> tuple[int | None, int | None, int | None, int | None]:
    """Return the position of an expression in its file, in the form of `co_positions`."""
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _form_of_words(function: Any, text: str) -> str:
    """Return the form of words that a function reads (`_Merge.form`), by what its text splits; "" if it is unknown.

    Args:
        function: The function, or a class; None if it is unknown.
        text: Text of the script, which decides if the function is unknown.
    """
    with contextlib.suppress(OSError, TypeError):
        text = inspect.getsource(function)
    if _READS_PAIRS.search(text):
        return "pairs"
    if not _READS_ASSIGNMENTS.search(text):
        return ""
    return "flags" if _READS_FLAGS.search(text) else "assignments"


def _value_of(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name with attributes in a frame; None for another expression, or without such a value."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    return getattr(_value_of(node.value, frame), node.attr, None) if isinstance(node, ast.Attribute) else None


def _object_leaves(config: Any, prefix: str = "", parents: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the plain values of an object and of the objects and dicts in it, by names with dots.

    Args:
        config: Object of the script's own class, or a dict; another object has only its attributes.
        prefix: Beginning of each name.
        parents: Objects that contain this one. They are not entered again.
    """
    parents = (*parents, config)
    for name, value in itertools.islice(_values_by_name(config).items(), _MOST_LEAVES):
        if str(name).startswith("_"):
            continue
        may_enter = len(parents) <= _MOST_LEVELS and not any(value is parent for parent in parents)
        if type(value) in (*_KINDS, list, tuple):
            yield f"{prefix}{name}", value
        elif may_enter and (isinstance(value, Mapping) or _is_own_class(type(value))):
            yield from _object_leaves(value, f"{prefix}{name}.", parents)


def _values_by_name(config: Any) -> dict[str, Any]:
    """Return the values of a dict, or the attributes of an object and of its class if that is one of the script's."""
    if isinstance(config, Mapping):
        return dict(config)
    values: dict[str, Any] = {}
    if _is_own_class(type(config)):
        for class_ in reversed(type(config).__mro__[:-1]):  # without `object`
            values |= vars(class_)
    return {**values, **getattr(config, "__dict__", {})}


def _is_own_class(class_: type) -> bool:
    """Return whether a class is one of the script's, or a namespace."""
    file = getattr(sys.modules.get(class_.__module__), "__file__", None)
    return class_.__name__ == "SimpleNamespace" or (file is not None and _is_own_file(Path(file)))


def _parses_again(frame: FrameType) -> bool:
    """Return whether a function calls a parser behind its current line, as it does if it adds arguments between calls."""
    if frame.f_code.co_name == "<module>":
        return False
    with contextlib.suppress(OSError):
        lines, first = inspect.getsourcelines(frame.f_code)
        return re.search(r"\.parse_(?:known_)?args\(", "".join(lines[frame.f_lineno - first + 1 :])) is not None
    return False


def _subcommand(names: Iterable[str]) -> str:
    """Return the subcommand to use: the only one, the typed one, or by its name the one that trains; "" if there is none."""
    subcommands = list(names)
    if len(subcommands) == 1:
        return subcommands[0]
    return next((word for word in (*sys.argv[1:], *_TRAINING_COMMANDS) if word in subcommands), "")


def _leaves(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts, by names with dots after a prefix."""
    for name, value in data.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, dict):
            yield from _leaves(value, key)
        else:
            yield key, value


def _yacs_values() -> list[tuple[str, Any]]:
    """Return names and values of the largest configuration of yacs in a module of the script; an empty list without one."""
    config_class = getattr(sys.modules.get("yacs.config"), "CfgNode", None)
    if config_class is None:
        return []
    nodes = [value for module in _own_modules() for value in list(vars(module).values()) if isinstance(value, config_class)]
    leaves = max((list(_leaves(node, "")) for node in nodes), key=len, default=[])
    return [(name, value) for name, value in leaves if type(value) in _KINDS]


def _merges_pairs() -> bool:
    """Return whether a module of the script calls `merge_from_list`, by which a configuration of yacs takes pairs."""
    texts = (Path(str(module.__file__)).read_text(encoding="utf-8", errors="replace") for module in _own_modules())
    return any("merge_from_list" in text for text in texts)


def _own_modules() -> list[ModuleType]:
    """Return the modules of the script: those from Python files that are neither installed nor part of this program."""
    own_modules = []
    for name, module in list(sys.modules.items()):
        file = Path(str(getattr(module, "__file__", None) or ""))
        if name.partition(".")[0] != "trialplane" and _is_own_file(file):
            own_modules.append(module)
    return own_modules


def _is_own_file(file: Path) -> bool:
    """Return whether a file is Python's, and not installed."""
    is_installed = "site-packages" in file.parts or file.is_relative_to(sysconfig.get_path("stdlib"))
    return file.suffix == ".py" and not is_installed and file.is_file()


def _set_default_in_help(action: argparse.Action) -> None:
    """Set the default and the type of an argument that has them only in its help, as with tyro and pydantic-settings."""
    default_in_help = _DEFAULT.search(str(action.help))
    if action.default == argparse.SUPPRESS and default_in_help:
        action.default = _unquoted(default_in_help[1]) if default_in_help[1] != "None" else None
        action.type = _HELP_TYPES.get(str(action.metavar).rpartition("|")[2].lower(), action.type)


def _unquoted(text: str) -> str:
    """Return a default in tyro's help without the quotation marks that the shell needs, as around an empty text."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text


def _scalar(text: Any) -> Any:
    """Return a value as a number if it is one; otherwise unchanged."""
    for type_ in (int, float):
        try:
            return type_(text)
        except (TypeError, ValueError):
            continue
    return text


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


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
    flag = next(iter(action.option_strings), "").lstrip("-")
    if action.nargs == 0 and f"--no-{flag}" in action.option_strings:  # argparse's BooleanOptionalAction, and tyro's
        return "negated"
    is_boolean = "bool" in getattr(action.type, "__name__", "").lower() or isinstance(action.default, bool)
    if is_boolean and action.nargs == "?" and action.const and not action.default and not _reads_booleans(action):
        return "switch"  # without a value it is `const`
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


def _click_type(parameter: Any) -> Any:
    """Return the Python type of a parameter's values; None if it is unknown. typer has it in an attribute of its own."""
    name = getattr(getattr(parameter, "type", None), "name", "").removesuffix(" range")
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    return {"integer": int, "float": float, "boolean": bool}.get(name, annotation)


def _kind(default: Any) -> str:
    """Return the kind of a default's values (`Option.kind`), "str" for unknown types."""
    value = default[0] if isinstance(default, list) else default
    return _KINDS.get(type(value), "str")


def _choices(choices: Any) -> tuple[Any, ...]:
    """Return the first `_MAX_CHOICES` choices as plain values; none if there are none, or one has no plain form."""
    if choices is None:
        return ()
    first_choices = itertools.islice(choices, _MAX_CHOICES)  # `range(10**9)` has too many
    values = [value.value if isinstance(value, enum.Enum) else value for value in first_choices]
    return tuple(values) if all(type(value) in (int, float, str, bool) for value in values) else ()


def main() -> None:
    """Run the script up to its parser, and write the declared arguments."""
    script, file = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    module = sys.argv[3] if len(sys.argv) > 3 else ""
    process.end_with_parent()
    words = [str(script), *sys.argv[4:]]
    sys.argv = words
    sys.path.insert(0, str(Path.cwd() if module else script.parent))
    parsers = _Parsers(script, file)
    parsers.watch()
    sys.argv = _CommandLine(words, parsers.watch_merge)
    try:
        if module:
            script_globals = runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            script_globals = runpy.run_path(str(script), run_name="__main__")
        for name in _FUNCTIONS:
            if callable(script_globals.get(name)):
                parsers.function = name
                script_globals[name]()
                break
    except SystemExit as error:
        parsers.fail(f"it exited with {error.code!r} before that")
    except BaseException as error:  # noqa: BLE001  the script's error is the result
        parsers.fail(f"{type(error).__name__}: {error}")
    parsers.end("it ended without reading any")


if __name__ == "__main__":
    main()
