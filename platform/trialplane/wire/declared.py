"""The arguments that a script declares to its parser, from which a job is written.

The script runs in a process of its own until it creates its parser. That process sends these values.
"""

from __future__ import annotations

import dataclasses
from typing import Any

# An argument of LightningCLI that adds the callback which reports the metrics that a LightningModule logs.
LIGHTNING_CALLBACK = "--trainer.callbacks+=trialplane.integrations.lightning.TrialCallback"
_TOO_LARGE = 10**300  # integers from here on fit neither a float nor a job file


@dataclasses.dataclass(frozen=True)
class Option:
    """An argument of a script.

    Attributes:
        name: Name of the parameter. For an option, this is its long flag without dashes; otherwise the script's name for it.
        default: Number, text, boolean, or list of these. None without a default, or if a job file cannot hold it.
        kind: Type of the value: "int", "float", "str" or "bool".
        flag: Flag before the value on the command line. "" for a positional argument. A flag without a dash is a key of
            yacs, which comes after all arguments.
        choices: Allowed values. Empty if any value is allowed.
        style: Form of a boolean: "switch" (`--amp` or nothing), "negated" (`--amp` or `--no-amp`), "value" (`--amp=True`).
        required: Whether the script refuses to run without it.
        lists: Form of a list: "spread" (`--sizes 64 32`), "repeat" (`--sizes=64 --sizes=32`) or "literal"
            (`--sizes=[64, 32]`). "" for a single value.
        aliases: All flags of the option, if it has several. For a value in the text of a script, its names with what has it,
            such as `Encoder.dropout`.
        place: Line and function of a value in the text of a script that has no name of its own, such as `line 9, in main()`.
        on_request: Whether it is searched only on request, because other values of the script have the same name.
        shared: Whether it is a number in the text of a script that one layer puts out and the next one takes in.
    """

    name: str
    default: Any = None
    kind: str = "str"
    flag: str = ""
    choices: tuple[Any, ...] = ()
    style: str = ""
    required: bool = False
    lists: str = ""
    aliases: tuple[str, ...] = ()
    place: str = ""
    on_request: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        """Remove a default, or all choices, with an integer that is too large for a job file."""
        default_values = self.default if isinstance(self.default, (list, tuple)) else (self.default,)
        # By object.__setattr__, because the class is frozen.
        if any(isinstance(value, int) and abs(value) >= _TOO_LARGE for value in default_values):
            object.__setattr__(self, "default", None)
        if any(isinstance(value, int) and abs(value) >= _TOO_LARGE for value in self.choices):
            object.__setattr__(self, "choices", ())


@dataclasses.dataclass(frozen=True)
class Declared:
    """The arguments of a script.

    Attributes:
        options: Arguments that a job can set.
        left_out: Arguments that a job cannot set, each with the reason, for users.
        failure: Error with which the script ended before it parsed its arguments. "" if it parsed them.
        subcommands: Words before the arguments, which may name options: `--lr={lr}`.
        pairs: Whether the script takes `SOLVER.LR 0.1` after its other arguments, as yacs does.
        trailing: Words before these pairs, or before such overrides.
        overrides: Whether the script takes `lr=0.1`, as OmegaConf does.
        function: Function that reads the arguments and that the script itself does not call.
        switches: Flags that take no value, also those that a job cannot set.
        open: Whether the script takes options that it does not declare, as a function with `**kwargs` does.
    """

    options: tuple[Option, ...] = ()
    left_out: tuple[str, ...] = ()
    failure: str = ""
    subcommands: tuple[str, ...] = ()
    pairs: bool = False
    trailing: tuple[str, ...] = ()
    overrides: bool = False
    function: str = ""
    switches: tuple[str, ...] = ()
    open: bool = False
