"""The importance of each parameter of a study: Optuna's PED-ANOVA, which takes conditional parameters too."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Sequence
from typing import Any

from trialplane.job import space as spaces
from trialplane.job.kinds import Job
from trialplane.pages import columns
from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

Shares = tuple[list[tuple[str, float]], str]  # see `importances`

MOST = 5000  # trials; those of a larger study are an even sample
FEWEST = 20  # trials with a result; the best tenth of fewer says nothing
MISSING = "Optuna is not installed: pip install 'trialplane[notebook]'"


def importances(job: Job, rows: Sequence[TrialRow]) -> Shares:
    """Return the share of each parameter, largest first, and why there is none, or "".

    The shares add up to 1. They say which parameters matter for getting into the best tenth of the trials (with several
    objectives: near the Pareto front).
    """
    if not job.search.names and not job.search.is_code:
        return [], ""
    complete = [row for row in rows if row.state is TrialState.COMPLETE and all(map(math.isfinite, row.values))]
    if len(complete) < FEWEST:
        return [], f"{FEWEST} complete trials are needed, and there are {len(complete)}"
    complete = complete[:: -(-len(complete) // MOST)]
    if importlib.util.find_spec("optuna") is None:
        return [], MISSING
    import optuna  # a second, and laptops that only submit have none

    distributions = _distributions(job, complete, optuna.distributions)
    if not distributions:
        return [], "no parameter has two different values"
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(directions=[objective.direction for objective in job.objectives])
            study.add_trials([_trial(row, distributions, optuna) for row in complete])
            shares = optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), params=list(distributions)
            )
    except (ValueError, ArithmeticError, RuntimeError) as error:  # of what it cannot judge, such as equal values
        return [], f"PED-ANOVA cannot judge these trials: {error}"
    finally:
        optuna.logging.set_verbosity(verbosity)
    found_shares = [(name, float(share)) for name, share in shares.items() if math.isfinite(share)]
    return (found_shares, "") if found_shares else ([], "all trials have the same value")


def _distributions(job: Job, rows: Sequence[TrialRow], distributions: Any) -> dict[str, Any]:
    """Return Optuna's distribution of each parameter with at least two values, from the values that were drawn."""
    parameters = job.search.parameters
    names = dict.fromkeys(name for row in rows for name in row.params)
    result: dict[str, Any] = {}
    for name in names:
        values = [row.params[name] for row in rows if name in row.params]
        if not _is_numeric(values) or isinstance(parameters.get(name), spaces.CategoricalParameter):
            choices = list(dict.fromkeys(map(columns.text, values)))
            if len(choices) > 1:
                result[name] = distributions.CategoricalDistribution(choices)
            continue
        low, high = min(values), max(values)
        if low < high:
            log = bool(getattr(parameters.get(name), "log", False)) and low > 0
            whole = all(isinstance(value, int) for value in values)
            kind = distributions.IntDistribution if whole else distributions.FloatDistribution
            result[name] = kind(low, high, log=log)
    return result


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) for value in values)


def _trial(row: TrialRow, distributions: dict[str, Any], optuna: Any) -> Any:
    used = {name: distribution for name, distribution in distributions.items() if name in row.params}
    params = {
        name: columns.text(row.params[name]) if hasattr(distribution, "choices") else row.params[name]
        for name, distribution in used.items()
    }
    return optuna.trial.create_trial(values=list(row.values), params=params, distributions=used)
