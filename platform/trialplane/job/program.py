"""The program of a trial: a function in one of several styles, a script or a command. Plain values, also for slots."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

# Prefixes of an entrypoint. Without one, the function gets the trial's context.
STYLES = ("optuna", "ray")


def split_style(entrypoint: str) -> tuple[str, str]:
    """Return the style of an entrypoint and its module:function. The style is "" for a function that gets the context."""
    style, _, function = entrypoint.partition(":")
    return (style, function) if style in STYLES and ":" in function else ("", entrypoint)


def nested_config(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as the `config` of a function trainable of Ray Tune: `model.lr` is config["model"]["lr"].

    Raises:
        ValueError: A name is both a value and a prefix of other names.
    """
    config: dict[str, Any] = {}
    for name in sorted(params):  # `model` before `model.lr`
        *prefixes, last = name.split(".")
        section = config
        for index, key in enumerate(prefixes):
            section = section.setdefault(key, {})
            if not isinstance(section, dict):
                outer = ".".join(prefixes[: index + 1])
                raise ValueError(f"{outer} is one value, and {name} would be a part of it; rename one of them")
        section[last] = copy.deepcopy(params[name])
    return config


@dataclasses.dataclass(frozen=True)
class MetricSource:
    """A source of a program's metrics.

    Attributes:
        source: "stdout", "mlflow", "file" or "tensorboard"; "wandb" for the files of its stand-in, and in `init`.
        pattern: Regular expressions that find metrics in a line; empty for common formats.
        path: Path of the files with wildcards, relative to the working directory; "" for any file.
        step: Name of the metric that is the step; "" for common names.
    """

    source: str
    pattern: tuple[str, ...] = ()
    path: str = ""
    step: str = ""


@dataclasses.dataclass(frozen=True)
class Program:
    """The script or command that the trials of a slot run.

    Attributes:
        script: Python file in the job's folder, which runs as `__main__`; "" for a command.
        command: Program with its first arguments, which may have placeholders; empty for a script.
        arguments: Further arguments, with placeholders; see `arguments.build`.
        booleans: Format of booleans in flags.
        lists: Format of lists in flags.
        files: Settings files in which parameters replace values.
        cwd: "code", a copy of the job's folder for each trial, or "workdir", an empty folder.
        metrics: Sources of the program's metrics.
        late_metrics: Sources that are read when the program has ended, if the others lack a metric that the job names.
        names: Metrics that the job names, which are matched in any spelling.
        sample: Example parameters for checking the script's arguments before the first trial; None if they are defined in
            the job's code.
        packages: Whether the folder with the code contains packages to import.
    """

    script: str = ""
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    booleans: str = "switch"
    lists: str = "spread"
    files: tuple[str, ...] = ()
    cwd: str = "code"
    metrics: tuple[MetricSource, ...] = ()
    late_metrics: tuple[MetricSource, ...] = ()
    names: tuple[str, ...] = ()
    sample: Mapping[str, Any] | None = None
    packages: bool = False
