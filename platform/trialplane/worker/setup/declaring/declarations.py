"""The arguments that a script declares, as its parsers are read, and their plain forms."""

from __future__ import annotations

import argparse
import contextlib
import enum
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NoReturn

from trialplane.wire import records
from trialplane.wire.declared import Declared, Option
from trialplane.worker.setup.declaring.configurations import leaves

KINDS = {int: "int", float: "float", str: "str", bool: "bool"}  # type of a value → kind (`Option.kind`)
_MAX_CHOICES = 50
_TRAINING_COMMANDS = ("train", "fit", "training", "run", "main")  # subcommands that are chosen among several


class Declarations:
    """The arguments that a script's parsers declare. The process ends at the parser that reads the arguments.

    The attributes without a description here are the fields of `Declared`, which has their meanings: `takes_pairs` is its
    `pairs`, `words_before_pairs` its `trailing`, `takes_overrides` its `overrides` and `takes_undeclared` its `open`.

    Args:
        script: The script.
        file: File for the `Declared`.

    Attributes:
        folder: Folder of the script.
        missing_key: Key that the arguments lack and OmegaConf reads, such as `config`; "" if none is missing.
        typed_words: Typed arguments, without values after =.
        is_parsing: Whether a parser reads the typed arguments, for their values.
    """

    def __init__(self, script: Path, file: Path) -> None:
        self._file = file
        self.folder = str(script.parent.resolve())
        self.options: list[Option] = []
        self.left_out: list[str] = []
        self.subcommands: list[str] = []
        self.takes_pairs = False
        self.switches: list[str] = []
        self.words_before_pairs: list[str] = []
        self.takes_overrides = False
        self.takes_undeclared = False
        self.function = ""
        self.missing_key = ""
        self.typed_words = {word.partition("=")[0] for word in sys.argv[1:]}
        self.is_parsing = False

    def end(self, failure: str = "") -> NoReturn:
        """Write the declared arguments, or the reason why there are none, and end the process."""
        declared = Declared(
            options=tuple(self.options),
            left_out=tuple(self.left_out),
            failure=failure,
            subcommands=tuple(self.subcommands),
            pairs=self.takes_pairs,
            trailing=tuple(self.words_before_pairs),
            overrides=self.takes_overrides,
            function=self.function,
            switches=tuple(self.switches),
            open=self.takes_undeclared,
        )
        self._file.write_text(records.to_json(declared), encoding="utf-8")
        os._exit(0)

    def fail(self, failure: str) -> NoReturn:
        """End with a failure, or with the key without which the script has ended, such as OmegaConf's `config=FILE`."""
        if self.missing_key:
            self.takes_overrides = True
            self.options.append(Option(self.missing_key, flag=self.missing_key, required=True))
        self.end("" if self.missing_key else failure)

    def typed_values(self, parse: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the values that a parser reads from typed arguments, by destination; {} if it refuses them."""
        self.is_parsing = True
        try:
            with Path(os.devnull).open("w") as nothing, contextlib.redirect_stderr(nothing):
                return parse()
        except (SystemExit, Exception):  # noqa: BLE001  a type of the script's may raise anything
            return {}
        finally:
            self.is_parsing = False

    def preferred_flag(self, flags: Sequence[str]) -> str:
        """Return the flag of an option that is typed, or else its first long one, or its first one; "" without any."""
        typed_flags = [flag for flag in flags if flag in self.typed_words]
        long_flags = [flag for flag in flags if flag.startswith("--")]
        return next(iter([*typed_flags, *long_flags, *flags]), "")

    def choose_subcommand(self, subcommands: Iterable[str]) -> str:
        """Return the subcommand to use: the only one, the typed one, or by its name the one that trains; "" without one.

        If the user has not chosen it among several, record the others as left out.
        """
        names = list(subcommands)
        if len(names) == 1:
            return names[0]
        chosen = next((word for word in (*sys.argv[1:], *_TRAINING_COMMANDS) if word in names), "")
        if names and chosen not in self.typed_words:
            consequence = f"{chosen} is used" if chosen else "name one of them in `arguments`"
            self.left_out.append(f"subcommands ({', '.join(names)}): {consequence}")
        return chosen

    def descend(self, subcommand: str) -> None:
        """Record a subcommand. The options so far belong to the parser above it, so they come before it on a command line.

        A placeholder stands for the value of each option. Options that have no single value, or need none, are dropped.
        """
        if subcommand in self.typed_words:
            # The typed command has the subcommand already. Only options of the subcommand can be added at its end.
            self.options = []
            return
        single_value_options = [option for option in self.options if option.flag and not option.style and not option.lists]
        self.options = [option for option in single_value_options if option.default is not None or option.required]
        recorded_flags = {word.partition("=")[0] for word in self.subcommands}
        for option in self.options:
            if option.flag not in recorded_flags:
                placeholder = f"{{{option.name}}}"  # `--lr={lr}`, or `-l {lr}`
                is_long = option.flag.startswith("--")
                self.subcommands += [f"{option.flag}={placeholder}"] if is_long else [option.flag, placeholder]
        self.subcommands.append(subcommand)

    def add_leaves(self, config: Mapping[str, Any]) -> None:
        """Add an option for each plain value of a configuration of nested dicts that takes pairs NAME=VALUE."""
        for name, value in leaves(config, ""):
            default = self.plain_default(value, None)
            if default is not None and not isinstance(default, list):
                self.options.append(key_option(name, default))

    def plain_default(self, value: Any, type_: Any) -> Any:
        """Return a default as a number, text, boolean or list of these; None if it has no such form.

        A text with the path of the script's folder has none, because trials run in other folders.

        Args:
            value: Default of a parser.
            type_: Type of the argument's values, or None.
        """
        value = _without_wrapper(value)
        if isinstance(value, (list, tuple)):
            items = [self.plain_default(item, type_) for item in value]
            return items if items and None not in items else None
        if isinstance(value, str) and type_ in (int, float):
            try:
                return type_(value)
            except ValueError:
                return None
        has_folder = isinstance(value, str) and self.folder in value
        if type(value) not in KINDS or has_folder or value == argparse.SUPPRESS:
            return None
        return float(value) if type_ is float else value


def _without_wrapper(value: Any) -> Any:
    """Return the value of an enum's member, the text of a path, and anything else unchanged."""
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, PurePath) else value


def parameter_name(flag: str, flags: Sequence[str], destination: str) -> str:
    """Return the name of an argument: `lr` for `--lr`; for `-l`, and without a flag, its long flag's or the destination.

    Args:
        flag: Flag that a command uses; "" for a positional argument.
        flags: All flags of the argument.
        destination: Name of its value in the script.
    """
    if re.fullmatch(r"-\w", flag):
        flag = next((long_flag for long_flag in flags if long_flag.startswith("--")), "")
    return flag.lstrip("-") or destination


def key_option(name: str, default: Any) -> Option:
    """Return the option for a key of a configuration, which is set by its name without a flag."""
    kind = kind_of(default)
    return Option(name, default, kind, flag=name, style="value" if kind == "bool" else "")


def kind_of(default: Any) -> str:
    """Return the kind of a default's values (`Option.kind`), "str" for unknown types."""
    value = default[0] if isinstance(default, list) else default
    return KINDS.get(type(value), "str")


def plain_choices(choices: Any) -> tuple[Any, ...]:
    """Return the first `_MAX_CHOICES` choices as plain values; none if there are none, or one has no plain form."""
    if choices is None:
        return ()
    first_choices = itertools.islice(choices, _MAX_CHOICES)  # `range(10**9)` has too many
    values = [_without_wrapper(value) for value in first_choices]
    return tuple(values) if all(type(value) in KINDS for value in values) else ()
