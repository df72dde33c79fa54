"""Points of a study that are predicted to be out of memory, by trials that were. Pure.

The prediction needs no model of the memory: it assumes that memory never falls when one of the listed parameters grows, and
depends on no other number. Then every point at or above one that was out of memory, with the same choices, is so too, and no
point that fits is excluded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialplane.job import space
from trialplane.job.search import Search
from trialplane.wire import earlier

Values = tuple[float, ...]  # of the listed parameters that a point has


class MemoryFrontier:
    """The lowest points of a study that were out of memory.

    Args:
        search: Search with `avoid_oom`. Without it, no point is excluded.
    """

    def __init__(self, search: Search) -> None:
        self._names = search.avoid_oom
        parameters = search.parameters if self._names else {}
        self._choices = [  # names of the categorical parameters that are not listed
            name
            for name, parameter in parameters.items()
            if isinstance(parameter, space.CategoricalParameter) and name not in self._names
        ]
        # Group of points (see `_split`) → the lowest points that were out of memory, of which none is at or above another.
        self._lowest: dict[str, list[Values]] = {}

    def add(self, params: Mapping[str, Any]) -> None:
        """Add a point that was out of memory."""
        if self._names and not self.excludes(params):
            group, values = self._split(params)
            remaining = [other for other in self._lowest.get(group, ()) if not _is_at_or_above(other, values)]
            self._lowest[group] = [*remaining, values]

    def excludes(self, params: Mapping[str, Any]) -> bool:
        """Return whether a point is at or above one that was out of memory, and has the same choices."""
        if not self._lowest:
            return False
        group, values = self._split(params)
        return any(_is_at_or_above(values, lowest) for lowest in self._lowest.get(group, ()))

    def _split(self, params: Mapping[str, Any]) -> tuple[str, Values]:
        """Split a point into its group and its values. Only points of the same group are compared, by their values.

        Returns:
            A text that is the same for points with the same choices, and with the same ones of the listed parameters; and
            the values of these parameters.
        """
        names = [name for name in self._names if name in params]
        choices = {name: params[name] for name in self._choices if name in params}
        group = earlier.params_key({**choices, "": names})  # no parameter has the name ""
        return group, tuple(float(params[name]) for name in names)


def _is_at_or_above(values: Values, others: Values) -> bool:
    """Return whether each value of a point is at least the value of the other point for the same parameter."""
    return all(value >= other for value, other in zip(values, others, strict=True))
