"""Hydra's sweep syntax as the space of a study: https://hydra.cc/docs/advanced/override_grammar/extended/."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep


@dataclasses.dataclass(frozen=True)
class Space:
    """The space of a sweep: the parameters whose values it draws, and the fixed overrides.

    Attributes:
        parameters: Name → fields of the parameter in job.yaml. The name is the override's key without `+`, with characters
            replaced that the name of a parameter may not have.
        keys: Name → key of the override, with its `+` and its package, if it has them.
        fixed: Overrides with a single value, which is the same in every trial.
    """

    parameters: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, str]
    fixed: Sequence[str]

    @property
    def is_finite(self) -> bool:
        """Whether the space has a finite number of points, so that a grid can try all of them."""
        return all(fields["type"] == "categorical" or "step" in fields for fields in self.parameters.values())


def parse(overrides: Sequence[str], loader: ConfigLoader) -> Space:
    """Return the space of a sweep's overrides. If several overrides have the same key, the last one is used.

    Args:
        overrides: Overrides as on the command line: `lr=interval(1e-5,1e-1)`, `model=small,large`, `seed=3`.
        loader: Hydra's loader of configurations, which lists the options of a group for `glob`.

    Raises:
        HydraException: An override is invalid.
    """
    from trialplane.job import values  # imported here, as Hydra imports its plugins whenever any of its programs starts

    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
    # `+key` and `~key` are overrides of `key`, too.
    last_by_key = {str(override.get_key_element()).lstrip("+~"): override for override in parsed}
    parameters: dict[str, Mapping[str, Any]] = {}
    keys: dict[str, str] = {}
    fixed: list[str] = []
    for key, override in last_by_key.items():
        fields = _parameter_fields(override) if override.is_sweep_override() else None
        if fields is None:
            fixed.append(str(override.input_line))
        elif "value" in fields:  # a sweep over one value, which is a fixed override
            fixed.append(override_text(override.get_key_element(), fields["value"]))
        else:
            name = values.parameter_name(key, keys)
            parameters[name] = fields
            keys[name] = override.get_key_element()
    return Space(parameters, keys, tuple(fixed))


def override_text(key: str, value: Any) -> str:
    """Return the override that sets a key to a value. A text is already in Hydra's grammar, as it comes from the sweep."""
    if isinstance(value, str):
        return f"{key}={value}"
    return f"{key}={str(value).lower() if isinstance(value, bool) else repr(value)}"


def _parameter_fields(override: Override) -> dict[str, Any]:
    """Return the fields of a parameter in job.yaml, or `{"value": …}` if the sweep has only one value."""
    swept = override.value()
    if isinstance(swept, IntervalSweep):
        kind = "int" if isinstance(swept.start, int) and isinstance(swept.end, int) else "float"
        return {"type": kind, "low": swept.start, "high": swept.end, "log": "log" in swept.tags}
    if isinstance(swept, RangeSweep):
        return _range_fields(swept)
    choices = [_scalar(choice) for choice in dict.fromkeys(override.sweep_string_iterator())]
    return {"value": choices[0]} if len(choices) == 1 else {"type": "categorical", "choices": choices}


def _range_fields(swept: RangeSweep) -> dict[str, Any]:
    """Return the fields of a range in job.yaml, or `{"value": …}` if it has only one point.

    As with Hydra's own sweeper, the end of the range is not one of its points. A range without points becomes a parameter
    without choices, which the job's check refuses.
    """
    points = list(swept.range())
    if len(points) < 2:
        return {"value": points[0]} if points else {"type": "categorical", "choices": []}
    kind = "int" if all(isinstance(point, int) for point in points) else "float"
    fields = {"type": kind, "low": min(points), "high": max(points)}
    return {**fields, "log": True} if "log" in swept.tags else {**fields, "step": abs(swept.step)}


def _scalar(text: str) -> Any:
    """Return the boolean or number that a text stands for; the text itself if the number would be written differently."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number_type in (int, float):
        try:
            number = number_type(text)
        except ValueError:
            continue
        if repr(number) == text:
            return number
    return text
