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
    """The space of a sweep: the parameters that it draws, and the fixed overrides.

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
        return all(fields["type"] == "categorical" or "step" in fields for fields in self.parameters.values())


def read(overrides: Sequence[str], loader: ConfigLoader) -> Space:
    """The space of a sweep's overrides; of several for one key the last counts.

    Args:
        overrides: `lr=interval(1e-5,1e-1)`, `model=small,large`, `seed=3`.
        loader: has the options of groups, for `glob`.

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
        fields = _parameter(override) if override.is_sweep_override() else None
        if fields is None:
            fixed.append(str(override.input_line))
        elif "value" in fields:
            fixed.append(text(override.get_key_element(), fields["value"]))
        else:
            name = values.parameter(key, keys)
            parameters[name] = fields
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
    values = [_scalar(choice) for choice in dict.fromkeys(override.sweep_string_iterator())]
    return {"value": values[0]} if len(values) == 1 else {"type": "categorical", "choices": values}


def _range(swept: RangeSweep) -> dict[str, Any]:
    """A range without its end, as Hydra's own sweeper counts."""
    points = list(swept.range())
    if len(points) < 2:
        return {"value": points[0]} if points else {"type": "categorical", "choices": []}
    kind = "int" if all(isinstance(point, int) for point in points) else "float"
    fields = {"type": kind, "low": min(points), "high": max(points)}
    return {**fields, "log": True} if "log" in swept.tags else {**fields, "step": abs(swept.step)}


def _scalar(written: str) -> Any:
    """A number or boolean, where its text comes out the same again; else the text."""
    if written.lower() in ("true", "false"):
        return written.lower() == "true"
    for number in (int, float):
        try:
            if repr(value := number(written)) == written:
                return value
        except ValueError:
            continue
    return written
