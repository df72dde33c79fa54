"""Parameters that an objective of Optuna asks for one by one, drawn by Optuna in the controller.

Optuna decides all that `suggest_*` decides in a study of its own: what is enqueued, what a sampler draws together, what is
the same parameter as before, what is refused. Two things differ, so that nothing a crash could lose decides what is drawn:

- each parameter that is drawn alone has a sampler of its own, seeded from the job's seed, the trial and how many parameters
  the trial has. A sampler that was made anew for the rest of a trial would repeat the random numbers of its beginning;
- what a sampler draws together (CMA-ES, multivariate TPE, GP) is drawn at the trial's first request, as by Optuna, and kept
  in an attribute of the trial, which the ledger stores.
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
from trialplane.job import space
from trialplane.job.kinds import Job, base
from trialplane.wire.messages import Suggest, Suggested

MOST = 1000  # parameters of a trial; each is written with all before it
MOST_CHOICES = 64 << 10  # bytes of JSON of a parameter's choices
MOST_POINTS = 10_000  # of a parameter that bruteforce goes through
_LONGEST = 1000  # characters of a message
_TOGETHER = "trialplane:together"  # attribute of a trial: name → value inside Optuna and distribution


def suggest(trial: optuna.trial.Trial, job: Job, parameter: Suggest, code: JobCode) -> Suggested:
    """Draw a parameter for a running trial, or give the value that it has; what Optuna would raise is in the answer.

    Args:
        trial: in the study's memory.
        job: names the sampler.
        parameter: the parameter.
        code: of the job, for samplers that are given as functions.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", "Clip non-finite values")  # those of failed trials, see History
        try:
            _check(trial, job, parameter)
            if parameter.name not in trial.distributions:
                _draw_together(trial, job, code)
                trial.study.sampler = samplers.build_sampler(
                    job, trial.number, code, trial.study.sampler, drawn_before=len(trial.distributions)
                )
            drawn = _suggest(trial, parameter)
        except Exception as error:  # noqa: BLE001  whatever Optuna raises is for the objective, and ends no controller
            text = str(error) if isinstance(error, (ValueError, TypeError, errors.InputError)) else repr(error)
            return Suggested(None, errors.shortened(text, _LONGEST), _texts(caught))
    return Suggested(trial.distributions[parameter.name].to_internal_repr(drawn), warnings=_texts(caught))


def resumed(trial: optuna.trial.Trial) -> optuna.trial.Trial:
    """The trial of a retry, with what was drawn together in an attempt before."""
    stored = trial.storage.get_trial_system_attrs(trial._trial_id).get(_TOGETHER)
    if stored is not None:
        distributions_by_name = {name: distributions.json_to_distribution(text) for name, (_, text) in stored.items()}
        trial.relative_search_space = distributions_by_name
        trial._relative_params = {
            name: distributions_by_name[name].to_external_repr(internal) for name, (internal, _) in stored.items()
        }
    return trial


def value(parameter: Suggest, internal: float) -> Any:
    """The user's value of a parameter that Optuna keeps as `internal`."""
    match parameter.kind:
        case "categorical":
            return parameter.choices[int(internal)]
        case "int":
            return int(internal)
        case _:
            return internal


def _check(trial: optuna.trial.Trial, job: Job, parameter: Suggest) -> None:
    if problem := base.name_problem(parameter.name):
        raise ValueError(problem)
    if parameter.name not in trial.distributions and len(trial.distributions) >= MOST:
        raise ValueError(f"{parameter.name} is one more than the {MOST} parameters that a trial may have")
    if parameter.choices and len(json.dumps(parameter.choices)) > MOST_CHOICES:
        raise ValueError(f"the choices of {parameter.name} are larger than {MOST_CHOICES >> 10} KiB; choose among names")
    if job.search.sampler.name == "bruteforce" and parameter.step is not None:
        points = (parameter.high - parameter.low) // parameter.step + 1
        if points > MOST_POINTS:  # of which it makes a tree in memory
            advice = "narrow it, or write sampler: tpe"
            raise ValueError(
                f"{parameter.name} has {points:,.0f} points, and bruteforce tries {MOST_POINTS:,} at most; {advice}"
            )


def _suggest(trial: optuna.trial.Trial, parameter: Suggest) -> Any:
    match parameter.kind:
        case "float":
            return trial.suggest_float(parameter.name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)
        case "int":
            low, high, step = int(parameter.low), int(parameter.high), 1 if parameter.step is None else int(parameter.step)
            return trial.suggest_int(parameter.name, low, high, step=step, log=parameter.log)
        case _:
            return trial.suggest_categorical(parameter.name, tuple(map(space.text, parameter.choices)))


def _draw_together(trial: optuna.trial.Trial, job: Job, code: JobCode) -> None:
    """Draw what the sampler draws in one, at the trial's first request."""
    if trial._relative_params is not None:
        return
    trial.study.sampler = samplers.build_sampler(job, trial.number, code, trial.study.sampler)
    drawn = trial.relative_params
    internal: Any = {
        name: [distribution.to_internal_repr(drawn[name]), distributions.distribution_to_json(distribution)]
        for name, distribution in (trial.relative_search_space or {}).items()
        if name in drawn
    }
    trial.storage.set_trial_system_attr(trial._trial_id, _TOGETHER, internal)


def _texts(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(warning.message) for warning in caught))
