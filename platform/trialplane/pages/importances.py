"""The importance of each parameter of a study, by Optuna's PED-ANOVA, which also accepts conditional parameters."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from trialplane.job import space as spaces
from trialplane.job.kinds import Job
from trialplane.job.numeric import is_number
from trialplane.pages import columns
from trialplane.wire.records import TrialRow
from trialplane.wire.rows import losses
from trialplane.wire.states import TrialState

MAX_TRIALS = 5000  # limit of the evaluated trials; of a larger study, evenly spaced trials are evaluated
MIN_TRIALS = 20  # smallest number of trials with a value; with fewer, the best tenth would be a single trial
OPTUNA_MISSING = "Optuna is not installed: pip install 'trialplane[notebook]'"


class Importances(NamedTuple):
    """The importances of parameters.

    Attributes:
        shares: Name and share of each parameter, largest share first; the shares add up to 1.
        reason: Reason why there are no shares; "" if there are, or if the job has no parameters.
    """

    shares: list[tuple[str, float]]
    reason: str


def importances(job: Job, rows: Sequence[TrialRow]) -> Importances:
    """Return the importance of each parameter: how much it matters for a trial to be among the best.

    With one objective, the best trials are the best tenth, and a stopped trial is worse than those that went further, as for
    Optuna's TPE. With several objectives, the best are those near the Pareto front, and only complete trials count.

    Args:
        job: Job of the run.
        rows: Newest attempt of each trial.
    """
    if not job.search.names and not job.search.is_code:
        return Importances(shares=[], reason="")
    trials = _trials_with_values(job, rows)
    if len(trials) < MIN_TRIALS:
        return Importances(shares=[], reason=f"{MIN_TRIALS} trials with a value are needed, and there are {len(trials)}")
    trials = trials[:: math.ceil(len(trials) / MAX_TRIALS)]
    if importlib.util.find_spec("optuna") is None:
        return Importances(shares=[], reason=OPTUNA_MISSING)
    import optuna  # takes a second, and is missing on laptops that only submit

    distributions = _distributions(job, [row for row, _ in trials], optuna.distributions)
    if not distributions:
        return Importances(shares=[], reason="no parameter has two different values")
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # Optuna would print a line about the new study
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(directions=["minimize"] * len(job.objectives))
            study.add_trials([_optuna_trial(row, values, distributions, optuna) for row, values in trials])
            share_by_name = optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), params=list(distributions)
            )
    except (ValueError, ArithmeticError, RuntimeError) as error:  # for example if all trials have the same value
        return Importances(shares=[], reason=f"PED-ANOVA cannot judge these trials: {error}")
    finally:
        optuna.logging.set_verbosity(verbosity)
    shares = [(name, float(share)) for name, share in share_by_name.items() if math.isfinite(share)]
    return Importances(shares, "" if shares else "all trials have the same value")


def _trials_with_values(job: Job, rows: Sequence[TrialRow]) -> list[tuple[TrialRow, list[float]]]:
    """Return the trials that can be compared, with values of which smaller ones are better. See `importances`.

    With one objective, the value is the rank. With several, the values are the losses.
    """
    complete = [row for row in rows if row.state is TrialState.COMPLETE and all(map(math.isfinite, row.values))]
    trial_losses = [(row, losses(job, row)) for row in complete]
    if len(job.objectives) > 1:
        return trial_losses
    [objective] = job.objectives
    sign = -1 if objective.direction == "maximize" else 1
    # Keys that sort the trials from the best on: complete ones by loss, then stopped ones, those that went further first.
    keys: list[tuple[TrialRow, tuple[float, ...]]] = [(row, (0, 0, loss)) for row, [loss] in trial_losses]
    for row in rows:
        last_value = row.metrics.get(objective.metric, math.nan)
        is_stopped = row.state in (TrialState.PRUNED, TrialState.PAUSED)
        if is_stopped and row.step is not None and math.isfinite(last_value):
            keys.append((row, (1, -row.step, sign * last_value)))
    rank_by_key = {key: rank for rank, key in enumerate(sorted({key for _, key in keys}))}
    return [(row, [rank_by_key[key]]) for row, key in keys]


def _distributions(job: Job, rows: Sequence[TrialRow], distributions: Any) -> dict[str, Any]:
    """Return Optuna's distribution of each parameter that has at least two different values, by name.

    A distribution covers the drawn values, and not the space of the job: this may have changed, or be code.

    Args:
        job: Job of the run.
        rows: Trials with their parameters.
        distributions: Optuna's module of this name.
    """
    parameters = job.search.parameters
    names = dict.fromkeys(name for row in rows for name in row.params)
    distribution_by_name: dict[str, Any] = {}
    for name in names:
        values = [row.params[name] for row in rows if name in row.params]
        are_numbers = all(is_number(value) and math.isfinite(value) for value in values)
        if not are_numbers or isinstance(parameters.get(name), spaces.CategoricalParameter):
            choices = list(dict.fromkeys(map(columns.text, values)))
            if len(choices) > 1:
                distribution_by_name[name] = distributions.CategoricalDistribution(choices)
            continue
        low, high = min(values), max(values)
        if low < high:
            log = bool(getattr(parameters.get(name), "log", False)) and low > 0
            is_integer = all(isinstance(value, int) for value in values)
            distribution = distributions.IntDistribution if is_integer else distributions.FloatDistribution
            distribution_by_name[name] = distribution(low, high, log=log)
    return distribution_by_name


def _optuna_trial(row: TrialRow, values: list[float], distributions: dict[str, Any], optuna: Any) -> Any:
    """Return a trial of Optuna with these values and the parameters of a trial, except those without a distribution."""
    own_distributions = {name: distribution for name, distribution in distributions.items() if name in row.params}
    params = {
        name: columns.text(row.params[name]) if hasattr(distribution, "choices") else row.params[name]
        for name, distribution in own_distributions.items()
    }
    return optuna.trial.create_trial(values=values, params=params, distributions=own_distributions)
