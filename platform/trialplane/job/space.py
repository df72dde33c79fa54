"""The parameters that a study searches, their conditions, and the order in which they are drawn.

Optuna draws one of several scalars, or a number between bounds. `coded` converts other values into such a form: choices that
are lists or mappings, and numbers from a normal distribution. `decoded` converts a drawn value back. Only
`controller.samplers` calls them; all other code has the user's values.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from trialplane.errors import Issue
from trialplane.job import models, values

# Points are not counted if the parameters in conditions have more combinations than this.
_MOST_BRANCHES = 10_000
_MOST_CHOICES = 20  # in a message
_TAIL = statistics.NormalDist().cdf(-6.0)  # share of a normal distribution that is cut off at each end, 1e-9
_FAR = 6.5  # standard deviations from the mean that floats must be able to represent


def _many(value: Any) -> Any:
    """Return `{model: bert}` as `{model: [bert]}`."""
    if isinstance(value, dict):
        return {key: allowed if isinstance(allowed, (list, tuple)) else [allowed] for key, allowed in value.items()}
    return value


When = Annotated[dict[str, Annotated[tuple[values.Plain, ...], Field(min_length=1)]], BeforeValidator(_many)]


class _Parameter(models.Model):
    when: When = Field(
        default_factory=dict,
        description="Condition: other parameters, each with a value or a list of values for which this parameter exists: "
        "{model: [bert, gpt]}.",
    )

    @property
    def count(self) -> int | None:
        """Number of values. None if infinitely many."""
        return None

    def points(self) -> list[Any]:
        """Return all values, for a grid. Raise ValueError if there are infinitely many."""
        raise ValueError("a parameter with infinitely many values has no grid")

    def codes(self) -> list[Any]:
        """Return all values in Optuna's form. Raise ValueError as `points` does."""
        return self.points()

    def coded(self, value: Any) -> Any:
        """Return a value of the parameter in Optuna's form."""
        return value

    def decoded(self, drawn: Any) -> Any:
        """Return the value of the parameter for a value that Optuna has drawn."""
        return drawn


class FloatParameter(_Parameter):
    """A real number in a range."""

    type: Literal["float"] = Field(description="A real number, with `low` and `high`.")
    low: values.Number = Field(description="Minimum, included.")
    high: values.Number = Field(description="Maximum, included.")
    log: bool = Field(default=False, description="Draw on a logarithmic scale. `low` must be greater than 0.")
    step: values.Number | None = Field(default=None, description="Distance between two values, starting at `low`.")

    @model_validator(mode="after")
    def _bounds(self) -> FloatParameter:
        issues = list(_interval(self.low, self.high, self.log, self.step, self.log and self.step is not None))
        models.refuse(issues or list(_resolution(self.low, self.high, self.step)))
        return self

    def holds(self, value: Any) -> bool:
        """Whether `value` is in the range, and on a step if there are steps."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            return False
        return self.step is None or _on_step(float(value) - self.low, self.step)

    @property
    def count(self) -> int | None:
        """Number of values. None if infinitely many."""
        if self.low == self.high:
            return 1
        return None if self.step is None else int((self.high - self.low) / self.step + 1e-8) + 1

    def points(self) -> list[Any]:
        """Return all values, for a grid. Raise ValueError without a step."""
        if self.count is None:
            return super().points()
        return [self.low + index * (self.step or 0.0) for index in range(self.count)]


class IntParameter(_Parameter):
    """An integer in a range."""

    type: Literal["int"] = Field(description="An integer, with `low` and `high`.")
    low: values.Bound = Field(description="Minimum, included.")
    high: values.Bound = Field(description="Maximum, included.")
    log: bool = Field(default=False, description="Draw on a logarithmic scale. `low` must be greater than 0.")
    step: values.Bound = Field(default=1, description="Distance between two values, starting at `low`.")

    @model_validator(mode="after")
    def _bounds(self) -> IntParameter:
        models.refuse(list(_interval(self.low, self.high, self.log, self.step, self.log and self.step != 1)))
        return self

    def holds(self, value: Any) -> bool:
        """Whether `value` is in the range and on a step."""
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    @property
    def count(self) -> int | None:
        """Number of values."""
        return (self.high - self.low) // self.step + 1

    def points(self) -> list[Any]:
        """Return all values, for a grid."""
        return list(range(self.low, self.high + 1, self.step))


class CategoricalParameter(_Parameter):
    """One of several values, without an order."""

    type: Literal["categorical"] = Field(description="One of `choices`.")
    choices: tuple[values.Plain, ...] = Field(
        description="Values to choose from. They can be any JSON values, including lists."
    )

    @model_validator(mode="after")
    def _distinct(self) -> CategoricalParameter:
        issues = [] if self.choices else [Issue(("choices",), "is empty; give at least one value")]
        keys: set[Any] = set()
        texts = {text(choice): choice for choice in self.choices if isinstance(choice, (list, dict))}
        for index, choice in enumerate(self.choices):
            # Optuna compares choices by ==, for which 1, 1.0 and true are one value, as they are in a set.
            if (key := _hashable(choice)) in keys:
                issues.append(Issue(("choices", index), f"{choice!r} is listed twice"))
            elif isinstance(choice, str) and choice in texts:
                issues.append(Issue(("choices", index), f"{choice!r} is also how {texts[choice]!r} is written; drop one"))
            keys.add(key)
        models.refuse(issues)
        return self

    def codes(self) -> list[Any]:
        """Return all choices in Optuna's form."""
        return list(map(text, self.choices))

    def coded(self, value: Any) -> Any:
        """Return a choice in Optuna's form: lists and mappings as JSON text."""
        return text(next(choice for choice in self.choices if same(value, choice)))

    def decoded(self, drawn: Any) -> Any:
        """Return the choice for a value that Optuna has drawn."""
        return next(choice for choice in self.choices if text(choice) == drawn)

    def holds(self, value: Any) -> bool:
        """Whether `value` is one of the choices. true is not 1."""
        return any(same(value, choice) for choice in self.choices)

    @property
    def count(self) -> int | None:
        """Number of choices."""
        return len(self.choices)

    def points(self) -> list[Any]:
        """Return all choices."""
        return list(self.choices)


class NormalParameter(_Parameter):
    """A real number from a normal or log-normal distribution.

    Optuna draws its quantile, uniformly between 0 and 1.
    """

    type: Literal["normal"] = Field(description="A normal distribution, with `mean` and `std`.")
    mean: values.Number = Field(description="Mean. With `log: true`, that of the natural logarithm.")
    std: values.Number = Field(gt=0, description="Standard deviation. With `log: true`, that of the natural logarithm.")
    log: bool = Field(
        default=False, description="Use a log-normal distribution: the natural logarithm of the value is normal."
    )
    low: values.Number | None = Field(
        default=None, description="Minimum, included. Default: 6 standard deviations below the mean."
    )
    high: values.Number | None = Field(
        default=None, description="Maximum, included. Default: 6 standard deviations above the mean."
    )

    @model_validator(mode="after")
    def _bounds(self) -> NormalParameter:
        bounds = {name: value for name, value in (("low", self.low), ("high", self.high)) if value is not None}
        wrong = [name for name, value in bounds.items() if self.log and value <= 0]
        models.refuse([Issue((name,), f"{bounds[name]} must be over 0 with log: true") for name in wrong])
        try:
            reach = [self._from(self.mean + far * self.std) for far in (-_FAR, _FAR)]
        except OverflowError:
            reach = [math.inf]
        if not all(map(math.isfinite, reach)) or (self.log and reach[0] == 0):
            models.refuse([Issue(("mean",), f"{self.mean} with std {self.std} goes beyond the numbers there are")])
        if not self.shares[0] < self.shares[1]:
            models.refuse([Issue(tuple(bounds)[:1], "leaves nothing of the distribution; widen low and high")])
        return self

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the distribution below the smallest and below the largest value."""
        low = _TAIL if self.low is None else max(_TAIL, self._share(self.low))
        return low, 1 - _TAIL if self.high is None else min(1 - _TAIL, self._share(self.high))

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        low, high = self.shares
        return (
            self.decoded(low) if self.low is None or low == _TAIL else self.low,
            self.decoded(high) if self.high is None or high == 1 - _TAIL else self.high,
        )

    def coded(self, value: Any) -> float:
        """Return the share of the distribution below `value`."""
        low, high = self.shares
        return min(max(low, self._share(value)), high)

    def decoded(self, drawn: Any) -> float:
        """Return the value for a drawn share of the distribution."""
        value = self._from(self._normal.inv_cdf(drawn))
        value = value if self.low is None else max(self.low, value)  # rounding errors
        return value if self.high is None else min(self.high, value)

    def holds(self, value: Any) -> bool:
        """Whether `value` is in the range."""
        low, high = self.ends
        return not isinstance(value, bool) and isinstance(value, (int, float)) and low <= value <= high

    @property
    def _normal(self) -> statistics.NormalDist:
        return statistics.NormalDist(self.mean, self.std)

    def _from(self, normal: float) -> float:
        return math.exp(normal) if self.log else normal

    def _share(self, value: float) -> float:
        return self._normal.cdf(math.log(value) if self.log else value)


AnyParameter = FloatParameter | IntParameter | CategoricalParameter | NormalParameter
Parameter = Annotated[AnyParameter, Field(discriminator="type")]
TYPES: tuple[str, ...] = ("float", "int", "categorical", "normal")


def same(first: Any, second: Any) -> bool:
    """Whether two JSON values are the same. 1 is the same as 1.0, but not as true."""
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)


def is_active(parameter: AnyParameter, drawn: Mapping[str, Any]) -> bool:
    """Whether a parameter exists, given the values drawn before it. It needs a drawn value for each of its conditions."""
    return all(
        name in drawn and any(same(drawn[name], value) for value in allowed) for name, allowed in parameter.when.items()
    )


def ordered(
    space: Mapping[str, AnyParameter],
) -> list[tuple[str, AnyParameter]]:
    """Return the parameters, each after those in its `when`, and otherwise in their original order.

    Raises:
        ValueError: the conditions are circular.
    """
    circle = cycle(space)
    if circle:
        raise ValueError(f"the conditions go round in a circle: {' → '.join(circle)}")
    done: dict[str, AnyParameter] = {}

    def visit(name: str) -> None:
        if name not in done:
            for other in space[name].when:
                if other in space:
                    visit(other)
            done[name] = space[name]

    for name in space:
        visit(name)
    return list(done.items())


def cycle(space: Mapping[str, AnyParameter]) -> list[str]:
    """Return a cycle of conditions, with its first name repeated at the end, or []."""
    clear: set[str] = set()
    for start in space:
        trail: list[str] = []

        def walk(name: str, trail: list[str] = trail) -> list[str]:
            if name in trail:
                return [*trail[trail.index(name) :], name]
            if name in clear or name not in space:
                return []
            trail.append(name)
            for other in space[name].when:
                circle = walk(other)
                if circle:
                    return circle
            trail.pop()
            clear.add(name)
            return []

        circle = walk(start)
        if circle:
            return circle
    return []


def count_points(parameters: dict[str, AnyParameter]) -> int | None:
    """Return the number of points of the space, with conditions. None if it is infinite or too large to count.

    Args:
        parameters: each after those in its conditions; see `ordered`.
    """
    condition_names = {other for parameter in parameters.values() for other in parameter.when}
    if any(parameter.count is None for parameter in parameters.values()):
        return None
    if math.prod(parameters[name].count or 0 for name in condition_names if name in parameters) > _MOST_BRANCHES:
        return None
    order = list(parameters.items())

    def count_from(index: int, drawn: dict[str, Any]) -> int:
        if index == len(order):
            return 1
        name, parameter = order[index]
        if not is_active(parameter, drawn):
            return count_from(index + 1, drawn)
        if name in condition_names:
            return sum(count_from(index + 1, {**drawn, name: value}) for value in parameter.points())
        return (parameter.count or 0) * count_from(index + 1, drawn)

    return count_from(0, {})


def describe(parameter: AnyParameter) -> str:
    """Return a description of the range."""
    if isinstance(parameter, CategoricalParameter):
        if len(parameter.choices) > _MOST_CHOICES:
            return f"one of {len(parameter.choices)} choices"
        return f"one of {', '.join(map(repr, parameter.choices))}"
    if isinstance(parameter, NormalParameter):
        low, high = parameter.ends
        return f"a number from {low:.6g} to {high:.6g}"
    kind = "a whole number" if isinstance(parameter, IntParameter) else "a number"
    step = f" in steps of {parameter.step}" if parameter.step not in (None, 1) else ""
    return f"{kind} from {parameter.low} to {parameter.high}{step}"


def text(choice: Any) -> Any:
    """Return a list or a mapping as JSON text, and anything else unchanged."""
    return json.dumps(choice, ensure_ascii=False) if isinstance(choice, (list, dict)) else choice


def _hashable(value: Any) -> Any:
    """Return a hashable value that is equal for equal JSON values."""
    if isinstance(value, list):
        return (list, *map(_hashable, value))
    if isinstance(value, dict):
        return (dict, frozenset((key, _hashable(item)) for key, item in value.items()))
    return value


def _interval(low: float, high: float, log: bool, step: float | None, log_and_step: bool) -> Iterator[Issue]:
    if low > high:
        yield Issue(("low",), f"{low} is over high ({high})")
    if log and low <= 0:
        yield Issue(("low",), f"{low} must be over 0 with log: true")
    if log_and_step:
        yield Issue(("step",), "cannot stand together with log: true; drop one of them")
    if step is not None and step <= 0:
        yield Issue(("step",), f"{step} must be over 0")


def _resolution(low: float, high: float, step: float | None) -> Iterator[Issue]:
    """Yield issues of bounds and steps that floats cannot represent or distinguish."""
    if not math.isfinite(high - low):
        yield Issue(("high",), f"{high} is farther from low ({low}) than the largest number there is; narrow the range")
    elif step is not None and step < max(math.ulp(low), math.ulp(high)):
        yield Issue(
            ("step",), f"{step} is lost beside {max(low, high, key=abs)}, whose neighbours are farther away; raise it"
        )
    elif step is not None and (high - low) / step > values.LARGEST:
        yield Issue(("step",), f"{step} makes more steps than can be counted; raise it, or drop it")


def _on_step(distance: float, step: float) -> bool:
    ratio = distance / step
    return abs(ratio - round(ratio)) < 1e-8
