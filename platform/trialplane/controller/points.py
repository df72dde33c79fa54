"""Points of a study in Optuna's form, and the seed of the random numbers by which other packages draw them."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Any

from optuna import distributions
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from trialplane.job import space

BAD = "trialplane:bad"  # attribute that marks a trial that failed by its own fault, for searchers of Ray Tune
# The state in which a sampler gets a trial that failed by its own fault, so that it learns from it. Other samplers learn
# nothing from trials.
WORST = {
    "tpe": OptunaState.PRUNED,  # without reports, which TPE ranks behind pruned trials with reports
    **dict.fromkeys(("gp", "cmaes", "nsgaii", "nsgaiii"), OptunaState.COMPLETE),  # these ignore trials of other states
}
_TOLERANCE = 1e-9  # relative difference of numbers that count as equal


def violation(trial: FrozenTrial) -> float:
    """Return the amount by which a trial violates its constraints; 0 if it is feasible."""
    return float(sum(excess for excess in trial.constraints.values() if excess > 0))


def distribution(parameter: space.AnyParameter) -> distributions.BaseDistribution:
    """Return Optuna's distribution of a parameter."""
    match parameter:
        case space.FloatParameter():
            return distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case space.IntParameter():
            return distributions.IntDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case space.CategoricalParameter():
            return distributions.CategoricalDistribution(parameter.codes())
        case space.NormalParameter():
            # Optuna draws the share of the normal distribution that is below the value.
            low_share, high_share = parameter.shares
            return distributions.FloatDistribution(low_share, high_share)


def contains(distribution: distributions.BaseDistribution, value: Any) -> bool:
    """Return whether a distribution contains a value in Optuna's form."""
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except (ValueError, TypeError):  # it is not a choice of a categorical distribution, or not a number
        return False


def is_same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether the parameters of two trials are the same, except for rounding errors."""
    if first.keys() != second.keys():
        return False
    for name, value in first.items():
        if isinstance(value, float):
            is_equal = math.isclose(value, second[name], rel_tol=_TOLERANCE)
        else:
            is_equal = value == second[name]
        if not is_equal:
            return False
    return True


@contextlib.contextmanager
def seed_globally(seed: int) -> Iterator[None]:
    """Seed the random generators of Python and NumPy for a while, and restore their states at the end.

    Samplers without a seed of their own use these generators.
    """
    import numpy as np

    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
