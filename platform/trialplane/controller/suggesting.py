"""Draws the parameters that an objective of Optuna requests one by one.

The objective runs in a trial, and Optuna in the controller. A request gives the same result as `suggest_*` of Optuna itself,
with three differences. A fixed value of 0 is allowed in a logarithmic range. The others make each draw independent of
anything that a crash could lose:

- Each parameter that is drawn independently has a new sampler. Its seed is derived from the job's seed, the trial, and the
  number of parameters that the trial has. Without this number, each new sampler would repeat the same random numbers.
- Parameters that a sampler draws jointly (CMA-ES, multivariate TPE, GP) are drawn at the trial's first request, as in
  Optuna, but also stored in an attribute of the trial, which is part of the ledger.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

import optuna
from optuna import distributions

from trialplane import errors
from trialplane.controller import samplers
from trialplane.controller.samplers import JobCode
from trialplane.job import mlflow_names, space
from trialplane.job.kinds import Job
from trialplane.wire.messages import Suggest, Suggested

MOST = 1000  # parameters of a trial; each is written to the ledger together with all earlier ones
MOST_CHOICES = 64 << 10  # bytes of JSON of a parameter's choices
MOST_POINTS = 10_000  # points of a parameter with the sampler bruteforce
_LONGEST = 1000  # characters of a message
_FIXED = "fixed_params"  # Optuna's attribute of a trial: the values that the sampler does not draw
_JOINT = "trialplane:together"  # attribute of a trial: name → [Optuna's internal value, its distribution as JSON]


def suggest(trial: optuna.trial.Trial, job: Job, parameter: Suggest, code: JobCode) -> Suggested:
    """Draw a parameter for a running trial, or return the value that it already has.

    Args:
        trial: Trial in the study's memory.
        job: Job that names the sampler.
        parameter: Requested parameter.
        code: Code of the job, for samplers that are given as functions.

    Returns:
        The answer to the trial, with Optuna's warnings. It has a message instead of a value if Optuna raised an error.
    """
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Failed trials have infinite values, see `History.record_end`. Optuna warns that it clips them.
        warnings.filterwarnings("ignore", "Clip non-finite values")
        try:
            _check_limits(trial, job, parameter)
            fixed = _fixed_value_without_logarithm(trial, parameter)
            if fixed is not None:
                return Suggested(fixed, warnings=(f"{parameter.name} is fixed at {fixed:g}, which is out of its range",))
            if parameter.name not in trial.distributions:
                _draw_joint_parameters(trial, job, code)
                trial.study.sampler = samplers.build_sampler(
                    job, trial.number, code, trial.study.sampler, seed_salt=len(trial.distributions)
                )
            drawn = _draw(trial, parameter)
        except Exception as error:  # noqa: BLE001  any error is passed to the objective and must not end the controller
            is_for_user = isinstance(
                error, (ValueError, TypeError, errors.InputError)
            )  # its text says all without its class
            text = str(error) if is_for_user else repr(error)
            return Suggested(value=None, error=errors.shortened(text, _LONGEST), warnings=_distinct_texts(caught_warnings))
    return Suggested(trial.distributions[parameter.name].to_internal_repr(drawn), warnings=_distinct_texts(caught_warnings))


def restore_joint_parameters(trial: optuna.trial.Trial) -> optuna.trial.Trial:
    """Give a trial the parameters that were drawn jointly for an earlier attempt at it, if any; return the trial."""
    stored = trial.storage.get_trial_system_attrs(trial._trial_id).get(_JOINT)
    if stored is not None:
        drawn_space, drawn_values = {}, {}
        for name, (internal_value, distribution_json) in stored.items():
            distribution = distributions.json_to_distribution(distribution_json)
            drawn_space[name] = distribution
            drawn_values[name] = distribution.to_external_repr(internal_value)
        # With these fields, Optuna's `suggest_…` takes the values and draws none.
        trial.relative_search_space, trial._relative_params = drawn_space, drawn_values
    return trial


def user_value(parameter: Suggest, internal: float) -> Any:
    """Return the value of a parameter in the user's form, given Optuna's internal value: for choices, the position."""
    match parameter.kind:
        case "categorical":
            return parameter.choices[int(internal)]
        case "int":
            return int(internal)
        case _:
            return internal


def _check_limits(trial: optuna.trial.Trial, job: Job, parameter: Suggest) -> None:
    """Check the name and the size of a requested parameter.

    Raises:
        ValueError: The name is invalid, or a limit is exceeded.
    """
    if problem := mlflow_names.problem(parameter.name):
        raise ValueError(problem)
    if parameter.name not in trial.distributions and len(trial.distributions) >= MOST:
        raise ValueError(f"{parameter.name} is one more than the {MOST} parameters that a trial may have")
    if parameter.choices and len(json.dumps(parameter.choices)) > MOST_CHOICES:
        raise ValueError(f"the choices of {parameter.name} are larger than {MOST_CHOICES >> 10} KiB; choose among names")
    if job.search.sampler.name == "bruteforce" and parameter.step is not None:
        points = (parameter.high - parameter.low) // parameter.step + 1
        if points > MOST_POINTS:  # bruteforce stores a tree of all points in memory
            advice = "narrow it, or write sampler: tpe"
            raise ValueError(
                f"{parameter.name} has {points:,.0f} points, and bruteforce tries {MOST_POINTS:,} at most; {advice}"
            )


def _fixed_value_without_logarithm(trial: optuna.trial.Trial, parameter: Suggest) -> float | None:
    """Return the value of a fixed parameter with a logarithmic range if it has no logarithm, as 0 has none; otherwise None.

    Optuna raises an error for such a value, and only warns of others out of range. Its trial does not get the parameter, as
    samplers could not learn from it.
    """
    if not parameter.log:
        return None
    fixed = trial.storage.get_trial_system_attrs(trial._trial_id).get(_FIXED, {}).get(parameter.name)
    is_number = isinstance(fixed, (int, float)) and not isinstance(fixed, bool)
    return fixed if is_number and fixed <= 0 else None


def _draw(trial: optuna.trial.Trial, parameter: Suggest) -> Any:
    """Let Optuna draw a parameter; return its value in Optuna's form."""
    match parameter.kind:
        case "float":
            return trial.suggest_float(parameter.name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)
        case "int":
            low, high = int(parameter.low), int(parameter.high)
            step = 1 if parameter.step is None else int(parameter.step)
            return trial.suggest_int(parameter.name, low, high, step=step, log=parameter.log)
        case _:
            return trial.suggest_categorical(parameter.name, tuple(map(space.code, parameter.choices)))


def _draw_joint_parameters(trial: optuna.trial.Trial, job: Job, code: JobCode) -> None:
    """At the trial's first request, draw and store the parameters that the sampler draws jointly."""
    if trial._relative_params is not None:  # they were drawn before
        return
    trial.study.sampler = samplers.build_sampler(job, trial.number, code, trial.study.sampler)
    drawn = trial.relative_params
    stored: Any = {}
    for name, distribution in (trial.relative_search_space or {}).items():
        if name in drawn:
            internal_value = distribution.to_internal_repr(drawn[name])
            stored[name] = [internal_value, distributions.distribution_to_json(distribution)]
    trial.storage.set_trial_system_attr(trial._trial_id, _JOINT, stored)


def _distinct_texts(caught_warnings: list[warnings.WarningMessage]) -> tuple[str, ...]:
    """Return the texts of warnings, each once."""
    return tuple(dict.fromkeys(str(warning.message) for warning in caught_warnings))
