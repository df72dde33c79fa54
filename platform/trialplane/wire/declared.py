"""The arguments that a script declares, as the process in which its parser was made sends them."""

from __future__ import annotations

import dataclasses
from typing import Any

# An argument of LightningCLI: the callback reports what a LightningModule logs.
LIGHTNING_CALLBACK = "--trainer.callbacks+=trialplane.integrations.lightning.TrialCallback"
_TOO_LARGE = 10**300  # for a float, and for a job file


@dataclasses.dataclass(frozen=True)
class Option:
    """An argument.

    Attributes:
        name: the parameter: of an option its long flag without dashes, of others the name the script gives it.
        default: a number, a text, a boolean, or a list of them; None where there is none, or none that a job can hold.
        kind: "int", "float", "str" or "bool".
        flag: what stands before the value on the command line; "" for a positional argument.
        choices: the only values it takes; empty for any.
        style: of a boolean: "switch" (`--amp` or nothing), "negated" (`--amp` or `--no-amp`), "value" (`--amp=True`).
        required: whether the script refuses to run without it.
        lists: of a list: "spread" (`--sizes 64 32`) or "repeat" (`--sizes=64 --sizes=32`); "" for one value.
    """

    name: str
    default: Any = None
    kind: str = "str"
    flag: str = ""
    choices: tuple[Any, ...] = ()
    style: str = ""
    required: bool = False
    lists: str = ""

    def __post_init__(self) -> None:
        values = self.default if isinstance(self.default, (list, tuple)) else (self.default,)
        if any(isinstance(value, int) and abs(value) >= _TOO_LARGE for value in values):
            object.__setattr__(self, "default", None)
        if any(isinstance(value, int) and abs(value) >= _TOO_LARGE for value in self.choices):
            object.__setattr__(self, "choices", ())


@dataclasses.dataclass(frozen=True)
class Declared:
    """The arguments of a script.

    Attributes:
        options: those that a job can give it.
        left_out: the others, each with the reason.
        failure: why there are none: what the script ended with before it had read its arguments; "" when it came there.
        subcommands: the words before the arguments.
    """

    options: tuple[Option, ...] = ()
    left_out: tuple[str, ...] = ()
    failure: str = ""
    subcommands: tuple[str, ...] = ()
