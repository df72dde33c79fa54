"""The parameters that a study searches, their conditions, and the order in which they are drawn.

Optuna draws one of several scalars, or a number between bounds. `encode` converts other values into this form: choices that
are lists or mappings, and numbers from a normal distribution. `decode` converts a drawn value back. Only
`controller.samplers` calls them; all other code has the user's values.
"""

from __future__ import annotations

import graphlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from trialplane.errors import Issue
from trialplane.job import models, values
from trialplane.job.numeric import is_number

# The points of a space are not counted if the parameters that conditions name have more combinations than this.
_MOST_BRANCHES = 10_000
_MOST_CHOICES = 20  # choices that a message lists
_TAIL = statistics.NormalDist().cdf(-6.0)  # share of a normal distribution that is cut off at each end: 1e-9
_ROUNDING = 1e-8  # tolerance for rounding errors in a number of steps
_REACH = 6.5  # distance from the mean, in standard deviations, that floats must be able to represent


def _expand_condition(value: Any) -> Any:
    """Return a condition with a list of values for each parameter: `{model: bert}` as `{model: [bert]}`.

    A value that is not a mapping is returned unchanged, for pydantic to refuse.
    """
    if isinstance(value, dict):
        return {key: allowed if isinstance(allowed, (list, tuple)) else [allowed] for key, allowed in value.items()}
    return value


When = Annotated[dict[str, Annotated[tuple[values.Plain, ...], Field(min_length=1)]], BeforeValidator(_expand_condition)]


class _Parameter(models.Model):
    """The common part of all parameters."""

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
        """Return all values, for a grid.

        Raises:
            ValueError: There are infinitely many.
        """
        raise ValueError("a parameter with infinitely many values has no grid")

    def codes(self) -> list[Any]:
        """Return all values in Optuna's form, which differs from the values only for a categorical parameter.

        Raises:
            ValueError: There are infinitely many.
        """
        return self.points()

    def encode(self, value: Any) -> Any:
        """Return a value of the parameter in Optuna's form."""
        return value

    def decode(self, drawn: Any) -> Any:
        """Return the value of the parameter for a value in Optuna's form."""
        return drawn


class FloatParameter(_Parameter):
    """A real number in a range."""

    type: Literal["float"] = Field(description="A real number, with `low` and `high`.")
    low: values.Number = Field(description="Minimum, included.")
    high: values.Number = Field(description="Maximum, included.")
    log: bool = Field(default=False, description="Draw on a logarithmic scale. `low` must be greater than 0.")
    step: values.Number | None = Field(default=None, description="Distance between two values, starting at `low`.")

    @model_validator(mode="after")
    def _check_range(self) -> FloatParameter:
        """Check the bounds and the step, and that floats can represent the values."""
        has_step = self.step is not None
        issues = list(_range_issues(self.low, self.high, self.step, is_log=self.log, has_step=has_step))
        models.refuse(issues or list(_precision_issues(self.low, self.high, self.step)))  # these expect a valid range
        return self

    def contains(self, value: Any) -> bool:
        """Whether `value` is in the range, and on a step if there are steps."""
        if not is_number(value) or not self.low <= value <= self.high:
            return False
        return self.step is None or _is_on_step(float(value) - self.low, self.step)

    @property
    def count(self) -> int | None:
        """Number of values. None if infinitely many."""
        if self.low == self.high:
            return 1
        return None if self.step is None else int((self.high - self.low) / self.step + _ROUNDING) + 1

    def points(self) -> list[Any]:
        """Return all values, for a grid.

        Raises:
            ValueError: There are infinitely many, because the parameter has no step.
        """
        if self.count is None:
            return super().points()  # raises the error
        step = self.step or 0.0  # there may be no step if there is only one value
        return [self.low + index * step for index in range(self.count)]


class IntParameter(_Parameter):
    """An integer in a range."""

    type: Literal["int"] = Field(description="An integer, with `low` and `high`.")
    low: values.Bound = Field(description="Minimum, included.")
    high: values.Bound = Field(description="Maximum, included.")
    log: bool = Field(default=False, description="Draw on a logarithmic scale. `low` must be greater than 0.")
    step: values.Bound = Field(default=1, description="Distance between two values, starting at `low`.")

    @model_validator(mode="after")
    def _check_range(self) -> IntParameter:
        """Check the bounds and the step."""
        models.refuse(list(_range_issues(self.low, self.high, self.step, is_log=self.log, has_step=self.step != 1)))
        return self

    def contains(self, value: Any) -> bool:
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
    def _check_distinct(self) -> CategoricalParameter:
        """Check that there is a choice, and that no two choices are the same for Optuna."""
        issues = [] if self.choices else [Issue(("choices",), "is empty; give at least one value")]
        previous_keys: set[Any] = set()
        # Optuna gets lists and mappings as JSON text, which must differ from the choices that are texts themselves.
        choice_by_text = {code(choice): choice for choice in self.choices if isinstance(choice, (list, dict))}
        for index, choice in enumerate(self.choices):
            # Optuna compares choices by ==, for which 1, 1.0 and true are equal. A set compares its members in the same way.
            key = _hashable(choice)
            if key in previous_keys:
                issues.append(Issue(("choices", index), f"{choice!r} is listed twice"))
            elif isinstance(choice, str) and choice in choice_by_text:
                message = f"{choice!r} is also how {choice_by_text[choice]!r} is written; drop one"
                issues.append(Issue(("choices", index), message))
            previous_keys.add(key)
        models.refuse(issues)
        return self

    def codes(self) -> list[Any]:
        """Return all choices in Optuna's form."""
        return list(map(code, self.choices))

    def encode(self, value: Any) -> Any:
        """Return a choice in Optuna's form: lists and mappings as JSON text.

        It is the form of the equal choice in `choices`, because `value` may be 1 where the list has 1.0.
        """
        return code(next(choice for choice in self.choices if is_same(value, choice)))

    def decode(self, drawn: Any) -> Any:
        """Return the choice for a value in Optuna's form."""
        return next(choice for choice in self.choices if code(choice) == drawn)

    def contains(self, value: Any) -> bool:
        """Whether `value` is one of the choices. true is not 1."""
        return any(is_same(value, choice) for choice in self.choices)

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
    def _check_range(self) -> NormalParameter:
        """Check the bounds, that floats can represent the values, and that some values are left between the bounds."""
        bounds = {name: value for name, value in (("low", self.low), ("high", self.high)) if value is not None}
        if self.log:
            not_positive = {name: value for name, value in bounds.items() if value <= 0}
            models.refuse([Issue((name,), f"{value} must be over 0 with log: true") for name, value in not_positive.items()])
        if not self._is_representable:
            models.refuse([Issue(("mean",), f"{self.mean} with std {self.std} goes beyond the numbers there are")])
        low_share, high_share = self.shares
        if low_share >= high_share:
            first_bound = next(iter(bounds))  # without bounds, the shares are in order
            models.refuse([Issue((first_bound,), "leaves nothing of the distribution; widen low and high")])
        return self

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the distribution below the smallest and below the largest value."""
        low = _TAIL if self.low is None else max(_TAIL, self._share(self.low))
        high = 1 - _TAIL if self.high is None else min(1 - _TAIL, self._share(self.high))
        return low, high

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value: the bounds, or the ends of the distribution without its tails."""
        low_share, high_share = self.shares
        # A bound in one of the tails, which are cut off, has no effect.
        low = self.decode(low_share) if self.low is None or low_share == _TAIL else self.low
        high = self.decode(high_share) if self.high is None or high_share == 1 - _TAIL else self.high
        return low, high

    def encode(self, value: Any) -> float:
        """Return the share of the distribution below `value`: Optuna draws this share instead of the value."""
        low, high = self.shares
        return min(max(low, self._share(value)), high)

    def decode(self, drawn: Any) -> float:
        """Return the value for a share that Optuna has drawn: this share of the distribution is below the value."""
        value = self._value(self._normal.inv_cdf(drawn))
        # A rounding error could put the value outside of the bounds.
        value = value if self.low is None else max(self.low, value)
        return value if self.high is None else min(self.high, value)

    def contains(self, value: Any) -> bool:
        """Whether `value` is in the range."""
        low, high = self.ends
        return is_number(value) and low <= value <= high

    @property
    def _is_representable(self) -> bool:
        """Whether floats can represent the values."""
        try:
            smallest, largest = (self._value(self.mean + distance * self.std) for distance in (-_REACH, _REACH))
        except OverflowError:  # the exponential of a large number
            return False
        is_rounded_to_zero = self.log and smallest == 0  # the exponential of a very negative number
        return math.isfinite(smallest) and math.isfinite(largest) and not is_rounded_to_zero

    @property
    def _normal(self) -> statistics.NormalDist:
        return statistics.NormalDist(self.mean, self.std)

    def _value(self, normal: float) -> float:
        """Return the value for a normally distributed number: with `log`, its exponential."""
        return math.exp(normal) if self.log else normal

    def _share(self, value: float) -> float:
        """Return the share of the distribution below a value."""
        return self._normal.cdf(math.log(value) if self.log else value)


def _expand_choices(value: Any) -> Any:
    """Return the fields of a parameter that is written as a list of its choices; any other value unchanged.

    A tuple of Python is unchanged, and so refused: (1e-5, 1e-1) would rather be meant as a range.
    """
    return {"type": "categorical", "choices": value} if isinstance(value, list) else value


AnyParameter = FloatParameter | IntParameter | CategoricalParameter | NormalParameter
_WithFields = Annotated[AnyParameter, Field(discriminator="type")]
Parameter = Annotated[
    _WithFields, BeforeValidator(_expand_choices, json_schema_input_type=_WithFields | tuple[values.Plain, ...])
]
TYPES: tuple[str, ...] = ("float", "int", "categorical", "normal")


def is_same(first: Any, second: Any) -> bool:
    """Whether two JSON values are equal. 1 equals 1.0, but not true."""
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(is_same(value, second[key]) for key, value in first.items())
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)


def is_active(parameter: AnyParameter, drawn: Mapping[str, Any]) -> bool:
    """Whether all conditions of a parameter hold. A condition on a parameter that was not drawn does not hold.

    Args:
        parameter: The parameter.
        drawn: Values of the parameters that were drawn before it.
    """
    return all(
        name in drawn and any(is_same(drawn[name], value) for value in allowed) for name, allowed in parameter.when.items()
    )


def sort_by_condition(space: Mapping[str, AnyParameter]) -> list[tuple[str, AnyParameter]]:
    """Return the parameters with their names, each after the parameters in its `when`, else in their original order.

    Raises:
        ValueError: The conditions are circular.
    """
    if names := cycle(space):
        raise ValueError(f"the conditions go round in a circle: {' → '.join(names)}")
    sorted_parameters: dict[str, AnyParameter] = {}

    def visit(name: str) -> None:
        """Append a parameter, after the parameters in its `when`. Do nothing if it was appended before."""
        if name not in sorted_parameters:
            for other in space[name].when:
                if other in space:
                    visit(other)
            sorted_parameters[name] = space[name]

    for name in space:
        visit(name)
    return list(sorted_parameters.items())


def cycle(space: Mapping[str, AnyParameter]) -> list[str]:
    """Return the names in a cycle of conditions, the first one again at the end. Empty if there is none."""
    sorter = graphlib.TopologicalSorter({name: list(parameter.when) for name, parameter in space.items()})
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        names: list[str] = error.args[1]
        return names[::-1]
    return []


def count_points(parameters: dict[str, AnyParameter]) -> int | None:
    """Return the number of points of the space, with conditions. None if it is infinite or would take too long to count.

    Only the values of parameters that conditions name are tried one by one. The counts of the others are multiplied.

    Args:
        parameters: Parameters, each after those in its conditions; see `sort_by_condition`.
    """
    condition_names = {other for parameter in parameters.values() for other in parameter.when}
    counts = {name: parameter.count for name, parameter in parameters.items() if parameter.count is not None}
    if len(counts) < len(parameters):
        return None
    if math.prod(counts[name] for name in condition_names if name in counts) > _MOST_BRANCHES:
        return None
    order = list(parameters.items())

    def count_from(index: int, drawn: dict[str, Any]) -> int:
        """Return the number of points of the parameters from an index on.

        Args:
            index: Index in `order`.
            drawn: Values of the earlier parameters that conditions name.
        """
        if index == len(order):
            return 1
        name, parameter = order[index]
        if not is_active(parameter, drawn):  # the points with these values do not have it
            return count_from(index + 1, drawn)
        if name in condition_names:  # its value decides which parameters follow
            return sum(count_from(index + 1, {**drawn, name: value}) for value in parameter.points())
        return counts[name] * count_from(index + 1, drawn)

    return count_from(0, {})


def describe(parameter: AnyParameter) -> str:
    """Return a description of a parameter's values, for messages."""
    if isinstance(parameter, CategoricalParameter):
        if len(parameter.choices) > _MOST_CHOICES:
            return f"one of {len(parameter.choices)} choices"
        return f"one of {', '.join(map(repr, parameter.choices))}"
    if isinstance(parameter, NormalParameter):
        low, high = parameter.ends
        return f"a number from {low:.6g} to {high:.6g}"
    noun = "a whole number" if isinstance(parameter, IntParameter) else "a number"
    step = f" in steps of {parameter.step}" if parameter.step not in (None, 1) else ""
    return f"{noun} from {parameter.low} to {parameter.high}{step}"


def code(choice: Any) -> Any:
    """Return a choice in Optuna's form, which is a scalar: a list or a mapping as JSON text, anything else unchanged."""
    return json.dumps(choice, ensure_ascii=False) if isinstance(choice, (list, dict)) else choice


def _hashable(value: Any) -> Any:
    """Return a hashable value that stands for a JSON value. Those of two JSON values are equal if these are."""
    if isinstance(value, list):
        return (list, *map(_hashable, value))
    if isinstance(value, dict):
        return (dict, frozenset((key, _hashable(item)) for key, item in value.items()))
    return value


def _range_issues(low: float, high: float, step: float | None, *, is_log: bool, has_step: bool) -> Iterator[Issue]:
    """Yield issues of a range.

    Args:
        low: Minimum.
        high: Maximum.
        step: Distance between two values. None without one.
        is_log: Whether the scale is logarithmic. Then there can be no step.
        has_step: Whether the job sets a step other than the default.
    """
    if low > high:
        yield Issue(("low",), f"{low} is over high ({high})")
    if is_log and low <= 0:
        yield Issue(("low",), f"{low} must be over 0 with log: true")
    if is_log and has_step:
        yield Issue(("step",), "cannot stand together with log: true; drop one of them")
    if step is not None and step <= 0:
        yield Issue(("step",), f"{step} must be over 0")


def _precision_issues(low: float, high: float, step: float | None) -> Iterator[Issue]:
    """Yield issues of bounds and steps that floats cannot represent or distinguish."""
    if not math.isfinite(high - low):
        yield Issue(("high",), f"{high} is farther from low ({low}) than the largest number there is; narrow the range")
    elif step is not None and step < max(math.ulp(low), math.ulp(high)):  # the distances to the next floats
        yield Issue(
            ("step",), f"{step} is lost beside {max(low, high, key=abs)}, whose neighbours are farther away; raise it"
        )
    elif step is not None and (high - low) / step > values.LARGEST:
        yield Issue(("step",), f"{step} makes more steps than can be counted; raise it, or drop it")


def _is_on_step(distance: float, step: float) -> bool:
    """Whether a distance is a multiple of a step, up to rounding errors."""
    ratio = distance / step
    return abs(ratio - round(ratio)) < _ROUNDING
