"""Fields of a job for samplers, ranges and metrics of other tools, which several importers use."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from trialplane.errors import FieldPath
from trialplane.importing.source import Source
from trialplane.job import space as spaces

# Name in another tool, in lower case, without the suffixes `sampler` and `search` → sampler of a job. For "Bayesian" this is
# tpe, the default of Optuna.
_SAMPLERS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"name": name} for name in ("random", "tpe", "gp", "cmaes", "qmc", "grid", "bruteforce", "nsgaii", "nsgaiii")},
    **{name: {"name": "tpe"} for name in ("bayes", "bayesian", "bayesianoptimization", "bayesopt")},
    **{name: {"name": "tpe"} for name in ("hyperopt", "optuna", "tunebohb", "motpe", "ax")},
    "multivariatetpe": {"name": "tpe", "multivariate": True},
    "sobol": {"name": "qmc", "qmc_type": "sobol"},
    "basicvariantgenerator": {"name": "random"},
}
SIGMAS = 3  # half the width of the range that replaces a normal distribution with steps: 99.7 % of its values
DEFAULT_TRIALS = 20
_PARAMETER: TypeAdapter[Any] = TypeAdapter(spaces.Parameter)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The parameters of a job. An importer adds them while it reads a file.

    Attributes:
        space: Fields of the parameters to search, by name.
        params: Values of the fixed parameters, by name.
        arguments: Arguments of the script for parameters that have another name in the job: `--n:layers={n_layers}`.
    """

    space: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    arguments: list[str] = dataclasses.field(default_factory=list)

    def add(self, name: str, parameter: dict[str, Any]) -> None:
        """Add a parameter by its fields in `space`, or by `{"value": …}` if it is fixed."""
        if "type" in parameter:
            self.space[name] = parameter
        else:
            self.params[name] = parameter["value"]


def sampler(name: str) -> dict[str, Any] | None:
    """Return the sampler of a job for a sampler's name in another tool; None for an unknown name."""
    key = re.sub(r"[^a-z0-9]|(sampler|search)$", "", name.lower())  # grid for `GridSearch` and `grid_search`
    return dict(_SAMPLERS[key]) if key in _SAMPLERS else None


def sampler_or_tpe(source: Source, name: str, *field: str | int) -> dict[str, Any]:
    """Return the sampler of a job for a sampler's name in another tool; tpe, with a note, for an unknown name or ""."""
    fields = sampler(name)
    if fields is None:
        problem = f"{name!r} has no counterpart" if name else "is missing"
        source.note(f"{problem}; tpe is used", *field)
    return fields or {"name": "tpe"}


def direction(source: Source, *field: str | int) -> str:
    """Return the direction at a path, by default "minimize". Add an issue for any other word."""
    word = source.text(*field) or "minimize"
    if word not in ("minimize", "maximize"):
        source.refuse(f"{word!r} is not minimize or maximize", *field)
    return word


def pattern(source: Source, *field: str | int) -> re.Pattern[str] | None:
    """Return the regular expression at a path; None, with a note, if Python does not understand it, such as one of Go."""
    try:
        return re.compile(source.text(*field))
    except (re.error, OverflowError, RecursionError) as error:
        source.note(f"is not a regular expression that Python understands: {error}", *field)
        return None


def short_form(component: Mapping[str, Any]) -> Any:
    """Return the short form of a sampler or pruner: its name, if it has no options. Otherwise return all of its fields."""
    return component["name"] if len(component) == 1 else dict(component)


def span(
    kind: Literal["float", "int"], low: float, high: float, *, log: bool = False, step: float | None = None
) -> dict[str, Any]:
    """Return a parameter between two bounds, both included. With `log`, a step is left out: a job cannot have both."""
    convert: Any = int if kind == "int" else float
    fields: dict[str, Any] = {"type": kind, "low": convert(low), "high": convert(high)}
    is_default_step = kind == "int" and step == 1
    if log:
        fields["log"] = True
    elif step is not None and not is_default_step:
        fields["step"] = convert(step)
    return fields


def span_of_multiples(
    source: Source,
    field: FieldPath,
    kind: Literal["float", "int"],
    low: float,
    high: float,
    *,
    step: float | None,
    log: bool = False,
    inward: bool = False,
) -> dict[str, Any]:
    """Return a parameter of multiples of a step between two bounds, or of all numbers between them without a step.

    Add a note if the step is left out, or if the bounds are rounded to multiples of it.

    Args:
        source: The file.
        field: Path of the value that the note is on.
        kind: Type of the parameter.
        low: Lower bound.
        high: Upper bound.
        step: The step.
        log: Whether the range is logarithmic; then it has no step.
        inward: See `multiples`.
    """
    bounds = low, high
    if step is not None and log:
        source.note("a logarithmic range has no step here, so it is left out", *field)
    elif step is not None:
        bounds = multiples(low, high, step, inward=inward)
    if bounds != (low, high):
        source.note(f"values are multiples of {step:g}, so the range is {bounds[0]:g} to {bounds[1]:g}", *field)
    return span(kind, *bounds, log=log, step=step)


def multiples(low: float, high: float, step: float, *, inward: bool = False) -> tuple[float, float]:
    """Return two bounds rounded to multiples of a step.

    They are unchanged if the step is not above 0, or so small that multiples of it cannot be counted.

    Args:
        low: Lower bound.
        high: Upper bound.
        step: The step.
        inward: Whether to take the outermost multiples between the bounds, instead of the nearest ones.
    """
    if not step > 0 or not math.isfinite(max(abs(low), abs(high)) / step):
        return low, high
    low_index, high_index = round(low / step), round(high / step)
    # A bound that is a multiple but for rounding errors stays: 0.3 / 0.1 is 2.9999999999999996.
    if inward and not math.isclose(low / step, low_index, rel_tol=1e-9):
        low_index = math.ceil(low / step)
    if inward and not math.isclose(high / step, high_index, rel_tol=1e-9):
        high_index = math.floor(high / step)
    return float(f"{low_index * step:.12g}"), float(f"{high_index * step:.12g}")  # 3 * 0.1 is not 0.3


def normal(mean: float, deviation: float, *, log: bool = False, step: float | None = None) -> dict[str, Any] | None:
    """Return a parameter with a normal or log-normal distribution. None if its values are too large for a float.

    With a step, which such a parameter cannot have, return a range with nearly all of its values.
    """
    if log and mean + 6 * deviation > math.log(1e300):  # nearly all values lie within 6 deviations
        return None
    if step is None:
        return {"type": "normal", "mean": mean, "std": deviation, **({"log": True} if log else {})}
    low, high = mean - SIGMAS * deviation, mean + SIGMAS * deviation
    if log:  # mean and deviation are those of the logarithm
        return span("float", math.exp(low), math.exp(high), log=True)
    low, high = multiples(low, high, step)
    return span("float", low, high, step=step)


def scalar(text: str) -> Any:
    """Return the number that a text stands for, or else the text."""
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return text


def categorical(values: list[Any]) -> dict[str, Any]:
    """Return a parameter that is one of several values."""
    return {"type": "categorical", "choices": values}


def trials(requested: int | None, sampler_fields: Mapping[str, Any], space: Mapping[str, Any]) -> int:
    """Return the number of trials of a job: the requested one, but for a grid at most the number of its points.

    None or 0 requests the default.
    """
    points = _count_points(space) if sampler_fields["name"] in ("grid", "bruteforce") else None
    if points is None:
        return requested or DEFAULT_TRIALS
    return min(requested or points, points)


def _count_points(space: Mapping[str, Any]) -> int | None:
    """Return the number of points of a space. None if it is infinite, or the space is invalid."""
    try:
        parameters = {name: _PARAMETER.validate_python(parameter) for name, parameter in space.items()}
    except ValidationError:
        return None
    return spaces.count_points(parameters)
