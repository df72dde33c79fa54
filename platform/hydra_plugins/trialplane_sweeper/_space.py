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
    """What a sweep draws, and what it does not.

    Attributes:
        parameters: name → its fields in job.yaml. The name is the override's key without `+`, where a parameter may have it.
        keys: name → the key of its override, with `+` and the package where it has them.
        fixed: the other overrides.
    """

    parameters: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, str]
    fixed: Sequence[str]

    @property
    def is_finite(self) -> bool:
        """Whether all of its points can be tried."""
        return all(made["type"] == "categorical" or "step" in made for made in self.parameters.values())


def read(overrides: Sequence[str], loader: ConfigLoader) -> Space:
    """The space of a sweep's overrides; of several for one key the last counts.

    Args:
        overrides: `lr=interval(1e-5,1e-1)`, `model=small,large`, `seed=3`.
        loader: knows the options of groups, for `glob`.

    Raises:
        HydraException: one of them is none.
    """
    from trialplane.job import values  # Hydra loads its plugins at each start, where this must cost nothing

    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
    newest = {str(override.get_key_element()).lstrip("+~"): override for override in parsed}
    parameters: dict[str, Mapping[str, Any]] = {}
    keys: dict[str, str] = {}
    fixed: list[str] = []
    for key, override in newest.items():
        made = _parameter(override) if override.is_sweep_override() else None
        if made is None:
            fixed.append(str(override.input_line))
        elif "value" in made:
            fixed.append(text(override.get_key_element(), made["value"]))
        else:
            name = values.parameter(key, keys)
            parameters[name] = made
            keys[name] = override.get_key_element()
    return Space(parameters, keys, tuple(fixed))


def text(key: str, value: Any) -> str:
    """An override. Texts are in Hydra's grammar already, as the sweep had them."""
    return f"{key}={value if isinstance(value, str) else repr(value).lower() if isinstance(value, bool) else repr(value)}"


def _parameter(override: Override) -> dict[str, Any]:
    """The fields of a parameter, or `{"value": …}` where there is only one."""
    swept = override.value()
    if isinstance(swept, IntervalSweep):
        kind = "int" if isinstance(swept.start, int) and isinstance(swept.end, int) else "float"
        return {"type": kind, "low": swept.start, "high": swept.end, "log": "log" in swept.tags}
    if isinstance(swept, RangeSweep):
        return _range(swept)
    values = [_scalar(one) for one in dict.fromkeys(override.sweep_string_iterator())]
    return {"value": values[0]} if len(values) == 1 else {"type": "categorical", "choices": values}


def _range(swept: RangeSweep) -> dict[str, Any]:
    """A range without its end, as Hydra's own sweeper counts."""
    points = list(swept.range())
    if len(points) < 2:
        return {"value": points[0]} if points else {"type": "categorical", "choices": []}
    kind = "int" if all(isinstance(point, int) for point in points) else "float"
    made = {"type": kind, "low": min(points), "high": max(points)}
    return {**made, "log": True} if "log" in swept.tags else {**made, "step": abs(swept.step)}


def _scalar(given: str) -> Any:
    """A number or boolean, where its text comes out the same again; else the text."""
    if given.lower() in ("true", "false"):
        return given.lower() == "true"
    for number in (int, float):
        try:
            if repr(made := number(given)) == given:
                return made
        except ValueError:
            continue
    return given
