"""Points of a study in Optuna's form, and the random numbers by which classes of other packages draw them."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Any

from optuna import distributions
from optuna.trial import TrialState

from trialplane.job import space

BAD = "trialplane:bad"  # attribute by which a searcher of Ray Tune knows a trial that failed by its own fault
# The state of a trial without values from which a sampler learns; the other samplers learn nothing from former trials.
WORST = {
    "tpe": TrialState.PRUNED,  # without reports: worse than any pruned trial with some
    **dict.fromkeys(("gp", "cmaes", "nsgaii", "nsgaiii"), TrialState.COMPLETE),  # they read no other
}
_SAME = 1e-9  # relative difference of two numbers that are the same


def distribution(parameter: space.AnyParameter) -> distributions.BaseDistribution:
    """Optuna's distribution of a parameter, in Optuna's form."""
    match parameter:
        case space.FloatParameter():
            return distributions.FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case space.IntParameter():
            return distributions.IntDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)
        case space.CategoricalParameter():
            return distributions.CategoricalDistribution(parameter.codes())
        case space.NormalParameter():
            return distributions.FloatDistribution(*parameter.shares)


def contains(distribution: distributions.BaseDistribution, internal: Any) -> bool:
    """Whether a value in Optuna's form is one of a distribution."""
    try:
        return bool(distribution._contains(distribution.to_internal_repr(internal)))
    except (ValueError, TypeError):
        return False


def is_same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two trials have the same parameters, but for rounding errors."""
    return first.keys() == second.keys() and all(
        math.isclose(value, second[name], rel_tol=_SAME) if isinstance(value, float) else value == second[name]
        for name, value in first.items()
    )


@contextlib.contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed the random numbers of the process, on which classes without a seed of their own rely, and restore them after."""
    import numpy as np

    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
