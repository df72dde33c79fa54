"""What a trial runs: a function in one of several styles, a script or a command. Plain values: a slot gets them too."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

# How a function that an entrypoint names with a style before it is called; without one it gets the trial's context.
STYLES = ("optuna", "ray")


def styled(entrypoint: str) -> tuple[str, str]:
    """The style of an entrypoint, "" for `run(ctx)`, and its module:function."""
    style, _, function = entrypoint.partition(":")
    return (style, function) if style in STYLES and ":" in function else ("", entrypoint)


def nested(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as the `config` of a function trainable of Ray Tune: `model.lr` is config["model"]["lr"].

    Raises:
        ValueError: a name stands both for a value and for what has values below it.
    """
    made: dict[str, Any] = {}
    for name in sorted(params):  # `model` before `model.lr`
        *above, last = name.split(".")
        here = made
        for index, key in enumerate(above):
            here = here.setdefault(key, {})
            if not isinstance(here, dict):
                outer = ".".join(above[: index + 1])
                raise ValueError(f"{outer} is one value, and {name} would be a part of it; rename one of them")
        here[last] = copy.deepcopy(params[name])
    return made


@dataclasses.dataclass(frozen=True)
class MetricSource:
    """A place in which a program leaves its metrics.

    Attributes:
        source: stdout, mlflow, file or tensorboard.
        pattern: regular expressions that find metrics in a line; the usual forms when there are none.
        path: of the files, with wildcards, below the folder in which the program runs; "" for wherever they are.
        step: name of the step among the numbers; "" for the usual ones.
    """

    source: str
    pattern: tuple[str, ...] = ()
    path: str = ""
    step: str = ""


@dataclasses.dataclass(frozen=True)
class Program:
    """What the trials of a slot run.

    Attributes:
        script: a Python file of the job's folder, which runs as `__main__`; "" for a command.
        command: a program with its first arguments, which may hold placeholders; empty for a script.
        arguments: what follows, with placeholders; see `arguments.build`.
        booleans: how they become flags.
        lists: how they become flags.
        cwd: "code", a copy of the job's folder for each trial, or "workdir", an empty folder.
        metrics: where the program leaves its metrics.
        names: metrics that the job names, which are found in any spelling.
        sample: parameters of a possible trial, with which the script's arguments are checked before the first one; None
            where only the job's code knows them.
        packages: whether modules are imported from the folder of the code, too, as packages were laid there.
    """

    script: str = ""
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    booleans: str = "switch"
    lists: str = "spread"
    cwd: str = "code"
    metrics: tuple[MetricSource, ...] = ()
    names: tuple[str, ...] = ()
    sample: Mapping[str, Any] | None = None
    packages: bool = False
