"""The terms of other tools for samplers, pruners and ranges, as fields of a job. One table for all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from trialplane.job import space as spaces

# Lower case, letters and digits only → the sampler of a job. Where only "Bayesian" is meant it is tpe, Optuna's default.
SAMPLERS: Mapping[str, Mapping[str, Any]] = {
    "random": {"name": "random"},
    "randomsampler": {"name": "random"},
    "randomsearch": {"name": "random"},
    "basicvariantgenerator": {"name": "random"},
    "tpe": {"name": "tpe"},
    "tpesampler": {"name": "tpe"},
    "hyperoptsearch": {"name": "tpe"},
    "optunasearch": {"name": "tpe"},
    "tunebohb": {"name": "tpe"},
    "multivariatetpe": {"name": "tpe", "multivariate": True},
    "bayes": {"name": "tpe"},
    "bayesian": {"name": "tpe"},
    "bayesianoptimization": {"name": "tpe"},
    "bayesoptsearch": {"name": "tpe"},
    "axsearch": {"name": "tpe"},
    "gpsampler": {"name": "gp"},
    "cmaes": {"name": "cmaes"},
    "cmaessampler": {"name": "cmaes"},
    "sobol": {"name": "qmc", "qmc_type": "sobol"},
    "qmcsampler": {"name": "qmc"},
    "grid": {"name": "grid"},
    "gridsearch": {"name": "grid"},
    "gridsampler": {"name": "grid"},
    "bruteforcesampler": {"name": "bruteforce"},
    "nsgaiisampler": {"name": "nsgaii"},
    "nsgaiiisampler": {"name": "nsgaiii"},
    "motpesampler": {"name": "tpe"},
}
SIGMAS = 3  # of a normal distribution with steps, which becomes a range: 99.7 % of its values
_MOST_TRIALS = 20  # of a job that names none
_PARAMETER: TypeAdapter[Any] = TypeAdapter(spaces.Parameter)


def sampler(word: str) -> dict[str, Any] | None:
    """The sampler that another tool calls `word`, or None."""
    known_sampler = SAMPLERS.get(re.sub(r"[^a-z0-9]", "", word.lower()))
    return None if known_sampler is None else dict(known_sampler)


def short(choice: Mapping[str, Any]) -> Any:
    """A sampler or pruner without options as its name."""
    return choice["name"] if len(choice) == 1 else dict(choice)


def span(
    kind: Literal["float", "int"], low: float, high: float, *, log: bool = False, step: float | None = None
) -> dict[str, Any]:
    """A parameter between two bounds, both included; with log a step is left out, as they do not go together."""
    number: Any = int if kind == "int" else float
    fields: dict[str, Any] = {"type": kind, "low": number(low), "high": number(high)}
    if log:
        fields["log"] = True
    elif step is not None and not (kind == "int" and step == 1):
        fields["step"] = number(step)
    return fields


def multiples(low: float, high: float, step: float, *, inward: bool = False) -> tuple[float, float]:
    """Two bounds as multiples of a step: the nearest, or those between them. They stay as they are without a step."""
    if not step > 0 or not math.isfinite(max(abs(low), abs(high)) / step):
        return low, high
    indices = [low / step, high / step]
    for position, rounded in enumerate((math.ceil, math.floor)):
        is_multiple = math.isclose(indices[position], round(indices[position]), rel_tol=1e-9)
        indices[position] = rounded(indices[position]) if inward and not is_multiple else round(indices[position])
    low_multiple, high_multiple = (float(f"{index * step:.12g}") for index in indices)  # 3 * 0.1 is not 0.3
    return low_multiple, high_multiple


def normal(mean: float, deviation: float, *, log: bool = False, step: float | None = None) -> dict[str, Any] | None:
    """A normal or log-normal parameter; with a step, which that has not, a range that holds nearly all of its values.

    None if no float can be as large.
    """
    if log and mean + 6 * deviation > math.log(1e300):
        return None
    if step is None:
        return {"type": "normal", "mean": mean, "std": deviation, **({"log": True} if log else {})}
    low, high = multiples(mean - SIGMAS * deviation, mean + SIGMAS * deviation, 0.0 if log else step)
    return span("float", math.exp(low) if log else low, math.exp(high) if log else high, log=log, step=step)


def scalar(text: str) -> Any:
    """A number from its text, or the text."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def categorical(values: list[Any]) -> dict[str, Any]:
    """One of several values."""
    return {"type": "categorical", "choices": values}


def points(space: Mapping[str, Any]) -> int | None:
    """The number of points of a space; None if it is infinite or the space is invalid."""
    try:
        parameters = {name: _PARAMETER.validate_python(parameter) for name, parameter in space.items()}
    except ValidationError:
        return None
    return spaces.count_points(parameters)


def trials(requested: int | None, sampler_: Mapping[str, Any], space: Mapping[str, Any]) -> int:
    """The number of trials: as given, and of a grid not more than it has points."""
    count = points(space) if sampler_["name"] in ("grid", "bruteforce") else None
    return min(requested or count or _MOST_TRIALS, count or requested or _MOST_TRIALS)
