"""The parameters that a study searches, their conditions, and the order in which they can be drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from trialplane.errors import Issue
from trialplane.spec import models, values

# With more combinations than this of the parameters named by conditions, points are not counted.
_MOST_BRANCHES = 10_000
_MOST_CHOICES = 20  # that a message lists


def _many(value: Any) -> Any:
    """`{model: bert}` as `{model: [bert]}`."""
    if isinstance(value, dict):
        return {key: below if isinstance(below, (list, tuple)) else [below] for key, below in value.items()}
    return value


When = Annotated[dict[str, Annotated[tuple[values.Choice, ...], Field(min_length=1)]], BeforeValidator(_many)]


class _Parameter(models.Model):
    when: When = Field(
        default_factory=dict,
        description="Other parameters with the value, or list of values, for which this parameter exists.",
    )


class FloatParameter(_Parameter):
    """A real number between two bounds, both included."""

    type: Literal["float"] = Field(description="A real number.")
    low: values.Number = Field(description="Smallest value.")
    high: values.Number = Field(description="Largest value.")
    log: bool = Field(default=False, description="Drawn on a logarithmic scale; low must be over 0.")
    step: values.Number | None = Field(default=None, description="Distance between values, counted from low.")

    @model_validator(mode="after")
    def _bounds(self) -> FloatParameter:
        found = list(_interval(self.low, self.high, self.log, self.step, self.log and self.step is not None))
        models.refuse(found or list(_resolution(self.low, self.high, self.step)))
        return self

    def holds(self, value: Any) -> bool:
        """Whether `value` lies in the range, and on a step when there are steps."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            return False
        return self.step is None or _on_step(float(value) - self.low, self.step)

    @property
    def count(self) -> int | None:
        """How many values there are, or None if infinitely many."""
        if self.low == self.high:
            return 1
        return None if self.step is None else int((self.high - self.low) / self.step + 1e-8) + 1

    def points(self) -> list[values.Scalar]:
        """Every value, for a grid.

        Raises:
            ValueError: there are infinitely many.
        """
        if self.count is None:
            raise ValueError("a float without a step has no grid")
        return [self.low + index * (self.step or 0.0) for index in range(self.count)]


class IntParameter(_Parameter):
    """A whole number between two bounds, both included."""

    type: Literal["int"] = Field(description="A whole number.")
    low: values.Bound = Field(description="Smallest value.")
    high: values.Bound = Field(description="Largest value.")
    log: bool = Field(default=False, description="Drawn on a logarithmic scale; low must be over 0.")
    step: values.Bound = Field(default=1, description="Distance between values, counted from low.")

    @model_validator(mode="after")
    def _bounds(self) -> IntParameter:
        models.refuse(list(_interval(self.low, self.high, self.log, self.step, self.log and self.step != 1)))
        return self

    def holds(self, value: Any) -> bool:
        """Whether `value` lies in the range, and on a step."""
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    @property
    def count(self) -> int | None:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1

    def points(self) -> list[values.Scalar]:
        """Every value, for a grid."""
        return list(range(self.low, self.high + 1, self.step))


class CategoricalParameter(_Parameter):
    """One of several values without an order."""

    type: Literal["categorical"] = Field(description="One of the choices.")
    choices: tuple[values.Choice, ...] = Field(description="The values to choose from.")

    @model_validator(mode="after")
    def _distinct(self) -> CategoricalParameter:
        found = [] if self.choices else [Issue(("choices",), "is empty; give at least one value")]
        seen: set[values.Scalar] = set()
        for index, choice in enumerate(self.choices):
            # Optuna compares choices by ==, for which 1, 1.0 and true are one value, as they are in a set.
            if choice in seen:
                found.append(Issue(("choices", index), f"{choice!r} is listed twice"))
            seen.add(choice)
        models.refuse(found)
        return self

    def holds(self, value: Any) -> bool:
        """Whether `value` is one of the choices; true is not 1."""
        return any(same(value, choice) for choice in self.choices)

    @property
    def count(self) -> int | None:
        """How many choices there are."""
        return len(self.choices)

    def points(self) -> list[values.Scalar]:
        """Every choice."""
        return list(self.choices)


AnyParameter = FloatParameter | IntParameter | CategoricalParameter
Parameter = Annotated[AnyParameter, Field(discriminator="type")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")]  # no dots: `--set space.lr.high=1` stays clear
TYPES: tuple[str, ...] = ("float", "int", "categorical")


def middle(parameter: AnyParameter) -> Any:
    """The value in the middle of a range, on its scale; the first of choices."""
    if isinstance(parameter, CategoricalParameter):
        return parameter.choices[0]
    low, high = parameter.low, parameter.high
    value = math.sqrt(low * high) if parameter.log else (low + high) / 2
    return round(value) if isinstance(parameter, IntParameter) else value


def same(one: Any, other: Any) -> bool:
    """Whether two scalars are the same value; unlike ==, true is not 1, but 1.0 is 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def is_active(parameter: AnyParameter, drawn: Mapping[str, Any]) -> bool:
    """Whether `parameter` exists, given the values drawn before it; one whose condition is not drawn does not."""
    return all(
        name in drawn and any(same(drawn[name], value) for value in allowed) for name, allowed in parameter.when.items()
    )


def ordered(
    space: Mapping[str, AnyParameter],
) -> list[tuple[str, AnyParameter]]:
    """The parameters so that each comes after those its `when` names, else in the order they were written.

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
    """A cycle of conditions, its first name repeated at the end, or []."""
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
    """How many points the space has, following conditions, or None when it is infinite or too large to count.

    Args:
        parameters: in an order in which conditions come after what they name.
    """
    asked = {other for parameter in parameters.values() for other in parameter.when}
    if any(parameter.count is None for parameter in parameters.values()):
        return None
    if math.prod(parameters[name].count or 0 for name in asked if name in parameters) > _MOST_BRANCHES:
        return None
    order = list(parameters.items())

    def below(index: int, drawn: dict[str, Any]) -> int:
        if index == len(order):
            return 1
        name, parameter = order[index]
        if not is_active(parameter, drawn):
            return below(index + 1, drawn)
        if name in asked:
            return sum(below(index + 1, {**drawn, name: value}) for value in parameter.points())
        return (parameter.count or 0) * below(index + 1, drawn)

    return below(0, {})


def describe(parameter: AnyParameter) -> str:
    """A description of the range."""
    if isinstance(parameter, CategoricalParameter):
        if len(parameter.choices) > _MOST_CHOICES:
            return f"one of {len(parameter.choices)} choices"
        return f"one of {', '.join(map(repr, parameter.choices))}"
    kind = "a whole number" if isinstance(parameter, IntParameter) else "a number"
    step = f" in steps of {parameter.step}" if parameter.step not in (None, 1) else ""
    return f"{kind} from {parameter.low} to {parameter.high}{step}"


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
    """Issues of bounds and steps that floats cannot represent or distinguish."""
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
