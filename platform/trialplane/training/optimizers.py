"""Compares the values in an optimizer's saved state with the parameters of a trial that takes over another trial's state.

An optimizer restores its learning rate with its state. So the trial's own learning rate has no effect unless the job sets it
again, and no error shows that. The messages of this module do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trialplane.job.numeric import is_number

_GROUPS = "param_groups"  # of torch's optimizers
_ALIASES = {"learning_rate": "lr"}  # parameter of a job → its name in a group
_SAME = 1e-5  # relative difference of equal values, because some libraries save them with single precision
_MOST_LEVELS = 4  # of mappings around the groups


class Position(NamedTuple):
    """Position of a value in a state: path of the list of groups, number of the group, and name of the parameter."""

    path: str
    group: int
    name: str


Values = Mapping[Position, float]


def values_of_params(state: Mapping[str, Any], params: Mapping[str, Any]) -> dict[Position, float]:
    """Return the values in a state's parameter groups that have the name of one of the trial's parameters.

    The state may have states of optimizers at any key. These are the values before any learning-rate schedule, because a
    schedule changes values at each step.
    """
    shared_values: dict[Position, float] = {}
    for path, groups in _groups(state):
        for index, group in enumerate(groups):
            if not isinstance(group, Mapping):  # the job's own list of this name
                continue
            for name, key in _numeric_keys(params):
                value = _unscheduled_value(group, key)
                if is_number(value):
                    shared_values[Position(path, index, name)] = value
    return shared_values


def stale_value_message(restored: Values, saved: Values, params: Mapping[str, Any]) -> str:
    """Return a message about the first value that the trial has kept from the restored state instead of its own, or "".

    Args:
        restored: Values of the state that the trial has taken over.
        saved: Values of the first state that it saves.
        params: Parameters of the trial.
    """
    for position, value in restored.items():
        name = position.name
        differs_from_trial = name in params and params[name] != value
        is_unchanged = saved.get(position) == value
        if differs_from_trial and is_unchanged:
            return _mismatch_sentence(name, value, params)
    return ""


def mismatch_message(groups: Iterable[Mapping[str, Any]], params: Mapping[str, Any], remedy: str = "") -> str:
    """Return a message about the first parameter of the trial whose value no group has, or "".

    Args:
        groups: Parameter groups of optimizers, just after their states were restored.
        params: Parameters of the trial.
        remedy: Advice of a library whose optimizers have no `param_groups`.
    """
    all_groups = list(groups)
    for name, key in _numeric_keys(params):
        group_values = [_unscheduled_value(group, key) for group in all_groups]
        numbers = [value for value in group_values if is_number(value)]
        if numbers and not any(math.isclose(params[name], number, rel_tol=_SAME) for number in numbers):
            return _mismatch_sentence(name, numbers[0], params, remedy)
    return ""


def _mismatch_sentence(name: str, value: float, params: Mapping[str, Any], remedy: str = "") -> str:
    """Return the message that an optimizer has a value of another trial for a parameter."""
    key = _ALIASES.get(name, name)
    schedule = " and, with a scheduler, ['initial_lr'] and its base_lrs" if key == "lr" else ""
    return (
        f"the optimizer has {name} {value!r} of the trial whose checkpoint was restored, and ctx.params has "
        f"{params[name]!r}: {remedy or f'set param_groups[…][{key!r}]{schedule} after the state is loaded'}"
    )


def _unscheduled_value(group: Mapping[str, Any], key: str) -> Any:
    """Return the value of a group before any schedule, which torch's schedulers store in the group, or else its value."""
    return group.get(f"initial_{key}", group.get(key))


def _numeric_keys(params: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names of the parameters that are numbers, each with its name in a group."""
    return [(name, _ALIASES.get(name, name)) for name, value in params.items() if is_number(value)]


def _groups(state: Mapping[str, Any], path: str = "", level: int = 0) -> Iterator[tuple[str, list[Any]]]:
    """Yield each list of parameter groups in a state, with its path: `/opt` for `state["opt"]["param_groups"]`."""
    for key, value in state.items():
        if key == _GROUPS and isinstance(value, (list, tuple)):
            yield path, list(value)
        elif isinstance(value, Mapping) and level < _MOST_LEVELS:
            yield from _groups(value, f"{path}/{key}", level + 1)
