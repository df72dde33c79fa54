"""Samplers and pruners of Optuna from a job's (name, options).

A sampler is created for each logical trial with a seed derived from the job's seed and the trial's number. The next point is
thus a function of the seed, the trial's number and the history in the ledger, and of nothing that a crash could lose: a
study that was stopped and resumed draws what it would have drawn undisturbed. Samplers whose seed fixes a whole sequence
(QMC, grid) keep one seed for it, but not for what they draw beside it; their other state is in the study's attributes.

A class of another package draws all trials, as it may keep what it has learned in its own memory; see `replaying`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import optuna
from optuna import distributions
from optuna.trial import FrozenTrial, TrialState

from trialplane import errors
from trialplane.controller import points
from trialplane.job import options, space
from trialplane.job.kinds import Job
from trialplane.job.options import ValueKind
from trialplane.wire import rows
from trialplane.wire.earlier import EarlierTrial
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FAILURE_RULES
from trialplane.wire.states import TrialState as State

STATES = {
    State.COMPLETE: TrialState.COMPLETE,
    State.PRUNED: TrialState.PRUNED,
    State.PAUSED: TrialState.PRUNED,  # until it is promoted
    State.FAILED: TrialState.FAIL,
}
_ONE_SEQUENCE = frozenset({"qmc", "grid"})


class JobCode:
    """Functions of the job's own code, for options and spaces that are given as `module:function`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def function(self, name: str) -> Callable[..., Any]:
        """The function named `module:function`.

        Raises:
            EntrypointError: it does not import, or is missing.
        """
        module, _, attribute = name.partition(":")
        if str(self._folder) not in sys.path:
            sys.path.insert(0, str(self._folder))
        try:
            function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:
            raise errors.EntrypointError(
                f"{name} does not import: {type(error).__name__}: {error}; it runs in the controller, from {self._folder}"
            ) from error
        return function


def derived_seed(seed: int, trial: int) -> int:
    """A 32-bit seed for logical trial `trial` of a study seeded with `seed`."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{trial}".encode()).digest()[:4], "little")


def build_sampler(
    job: Job,
    trial: int,
    code: JobCode,
    reusable: optuna.samplers.BaseSampler | None = None,
    *,
    drawn_before: int | None = None,
    earlier: Sequence[FrozenTrial] = (),
) -> optuna.samplers.BaseSampler:
    """The sampler that draws logical trial `trial`.

    Args:
        job: names it.
        trial: a logical number.
        code: of the job.
        reusable: the sampler of another trial of the job. It is used again unless it is Optuna's: a grid holds all of its
            points, and a class of another package may hold what it has learned.
        drawn_before: for one parameter that is drawn by itself, how many the trial has before it; None for the whole trial.
        earlier: trials of earlier studies. CMA-ES starts from them; the others see them among those of the study.
    """
    if reusable is not None and not is_optunas(reusable):
        return reusable
    seed = derived_seed(job.seed, trial)
    if drawn_before is not None:
        seed = derived_seed(seed, drawn_before)
    chosen = job.search.sampler
    if chosen.of_class:
        return _of_class(job, seed, code)
    sampler: optuna.samplers.BaseSampler = _build(ValueKind.SAMPLER, chosen.name, chosen.options, job, seed, code, earlier)
    if isinstance(sampler, _Grid):
        sampler.begin_with(job.search.parameters, job.search.enqueue)
    return sampler


def is_optunas(sampler: optuna.samplers.BaseSampler) -> bool:
    """Whether a sampler is Optuna's, and so keeps what it has learned in the study."""
    return type(sampler).__module__.startswith("optuna.")


def _of_class(job: Job, seed: int, code: JobCode) -> optuna.samplers.BaseSampler:
    """A sampler of a class that the job names."""
    chosen = job.search.sampler
    cls = code.function(chosen.of_class)
    if chosen.of_tune:
        from trialplane.controller import tune_search  # Ray Tune, seconds

        return tune_search.TuneSampler(job, cls)
    if not (isinstance(cls, type) and issubclass(cls, optuna.samplers.BaseSampler)):
        raise errors.InputError(f"{chosen.of_class} is no sampler: it is no subclass of optuna.samplers.BaseSampler")
    if not cls.__module__.startswith("optuna."):  # it draws all trials, so its seed is the same under every controller
        seed = derived_seed(job.seed, 0)
    seeded = {"seed": seed} if "seed" in inspect.signature(cls).parameters else {}
    try:
        with points.seeded_globally(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # optuna on experimental classes
            sampler: optuna.samplers.BaseSampler = cls(**{**seeded, **chosen.options})
    except Exception as error:
        text = f"{type(error).__name__}: {errors.first_line(error)}"
        raise errors.InputError(f"the sampler {chosen.of_class} refuses its options: {text}") from error
    return sampler


def build_pruner(job: Job, code: JobCode) -> optuna.pruners.BasePruner:
    """The study's pruner; with promotion none, as trials are paused and not ended."""
    name, option_values = job.search.pruner.name, job.search.pruner.options
    if job.search.pruner.promotes:
        return optuna.pruners.NopPruner()
    if name == "asha":  # Optuna's successive halving with other defaults
        defaults = job.search.pruner.choice.options
        option_values = {key: option_values.get(key, defaults[key].default) for key in ("min_resource", "reduction_factor")}
        name = "successive_halving"
    pruner: optuna.pruners.BasePruner = _build(ValueKind.PRUNER, name, option_values, job, job.seed, code)
    return pruner


def grid_is_drawn(job: Job, study: optuna.Study) -> bool:
    """Whether every point of a grid has been drawn; Optuna's sampler would draw a running one twice."""
    if job.search.sampler.name != "grid":
        return False
    drawn = {trial.system_attrs.get("grid_id") for trial in study.get_trials(deepcopy=False)} - {None}
    return len(drawn) >= math.prod(parameter.count or 1 for parameter in job.search.parameters.values())


def stop_if_exhausted(job: Job, study: optuna.Study, code: JobCode) -> None:
    """Call `study.stop` if a former controller ran the last point: brute force detects it after its last trial."""
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    if job.search.sampler.name == "bruteforce" and finished:
        build_sampler(job, 0, code).after_trial(study, finished[-1], finished[-1].state, finished[-1].values)


class _Grid(optuna.samplers.GridSampler):
    """A grid that begins with the enqueued points, and does not search for its end after each trial.

    Optuna gives a trial the point of the trial's number. With points enqueued beside the grid, those of the first numbers
    would never be tried, and the enqueued ones twice.
    """

    def begin_with(self, parameters: Mapping[str, space.AnyParameter], points: Sequence[Mapping[str, Any]]) -> None:
        """Move whole points of the grid to its beginning."""
        moved = (tuple(_nearest(parameters[name], point[name]) for name in self._param_names) for point in points)
        self._all_grids = list(dict.fromkeys([*moved, *self._all_grids]))

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Do nothing: the ledger calls `grid_is_drawn`. Optuna would compare all points of all trials each time."""


def _nearest(parameter: space.AnyParameter, value: Any) -> Any:
    """The code of a parameter's value; a number may differ from that of the grid by a rounding error."""
    if isinstance(parameter, space.CategoricalParameter):
        return parameter.encode(value)
    return min(parameter.codes(), key=lambda code: abs(code - value))


_OURS = {"GridSampler": _Grid}
_MODULES = {
    ValueKind.SAMPLER: optuna.samplers,
    ValueKind.PRUNER: optuna.pruners,
    ValueKind.CROSSOVER: optuna.samplers.nsgaii,
    ValueKind.MUTATION: optuna.samplers.nsgaii,
}


def _build(
    kind: ValueKind,
    name: str,
    option_values: Mapping[str, Any],
    job: Job,
    seed: int,
    code: JobCode,
    earlier: Sequence[FrozenTrial] = (),
) -> Any:
    choice = options.TABLES[kind][name]
    arguments: dict[str, Any] = {}
    for key, value in option_values.items():
        arguments[key] = _value(choice.options[key].kind, value, job, seed, code)
    if "seed" in choice.platform:
        arguments["seed"] = job.seed if name in _ONE_SEQUENCE else seed
    if name == "qmc" and arguments.get("independent_sampler") is None:
        # Optuna's default has the seed of the sequence, and so would draw the same number in every trial.
        arguments["independent_sampler"] = optuna.samplers.RandomSampler(seed=seed)
    whole = [trial for trial in earlier if trial.state == TrialState.COMPLETE and all(map(math.isfinite, trial.values))]
    if name == "cmaes" and whole:
        arguments["source_trials"] = whole
    if choice.cls == "ThresholdPruner" and job.search.opposes(job.objectives[0]):  # reports are negated, see Pruning.sign
        lower, upper = arguments.pop("lower", None), arguments.pop("upper", None)
        arguments |= {"lower": None if upper is None else -upper, "upper": None if lower is None else -lower}
    if "search_space" in choice.platform:
        arguments["search_space"] = {key: parameter.codes() for key, parameter in job.search.parameters.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # optuna on experimental and deprecated options: the job asked for them
            return (_OURS.get(choice.cls) or getattr(_MODULES[kind], choice.cls))(**arguments)
    except (ValueError, TypeError) as error:
        raise errors.InputError(f"{kind.name.lower()} {name}: {error}") from error


def _value(kind: ValueKind, value: Any, job: Job, seed: int, code: JobCode) -> Any:
    """One option in Optuna's form."""
    if value is None:
        return None
    match kind:
        case ValueKind.FUNCTION:
            return code.function(value)
        case ValueKind.FACTORY:
            return code.function(value)()
        case ValueKind.POINT:
            return coded(job, value)
        case ValueKind.POINTS:
            import numpy as np

            return np.asarray(value, dtype=float)
        case ValueKind.SAMPLER | ValueKind.PRUNER | ValueKind.CROSSOVER | ValueKind.MUTATION:
            nested: dict[str, Any] = {"name": value} if isinstance(value, str) else dict(value)
            name = nested.pop("name")
            return _build(kind, name, {**nested.pop("options", {}), **nested}, job, seed, code)
        case _:
            return value


_GENERATIONS = {"nsgaii": "NSGAIISampler:generation", "nsgaiii": "NSGAIIISampler:generation"}  # Optuna's attributes


def frozen(job: Job, trials: Sequence[EarlierTrial]) -> list[FrozenTrial]:
    """Trials of earlier studies as Optuna's, numbered from -1 down, those with all parameters last.

    For a genetic sampler the best of them are the first generation.
    """
    space_ = {name: points.distribution(parameter) for name, parameter in job.search.parameters.items()}
    signs = [-1.0 if objective.direction == "maximize" else 1.0 for objective in job.objectives]
    ordered = sorted(trials, key=lambda trial: (bool(trial.values), len(trial.params)))
    result = [_frozen(job, trial, space_, signs, number - len(ordered)) for number, trial in enumerate(ordered)]
    if generation := _GENERATIONS.get(job.search.sampler.name):
        size = job.search.sampler.options.get("population_size", 50)
        losses = {
            trial.number: tuple(sign * value for sign, value in zip(signs, trial.values, strict=True))
            for trial in result
            if trial.state == TrialState.COMPLETE
        }
        ranks = rows.fronts(losses)
        first = set(sorted(losses, key=lambda number: (ranks[number], losses[number]))[:size])
        for trial in result:
            trial.system_attrs = {**trial.system_attrs, **({generation: 0} if trial.number in first else {})}
    return result


def _frozen(
    job: Job,
    trial: EarlierTrial,
    space_: Mapping[str, distributions.BaseDistribution],
    signs: Sequence[float],
    number: int,
) -> FrozenTrial:
    params = coded(job, trial.params)
    values = list(trial.values)
    state = TrialState.COMPLETE if values else TrialState.PRUNED
    if not values and not trial.pruned and points.WORST.get(job.search.sampler.name) is TrialState.COMPLETE:
        state, values = TrialState.COMPLETE, [sign * math.inf for sign in signs]
    report = trial.metrics.get(job.objectives[0].metric)
    reports = {trial.step: report} if trial.pruned and report is not None else {}
    attributes = {
        f"constraints:{constraint.metric}": constraint.excess(trial.metrics[constraint.metric])
        for constraint in job.search.constraints
        if trial.values
    }
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=state,
        value=None,
        values=values or None,
        datetime_start=None,
        datetime_complete=None,
        params=params,
        distributions={name: space_[name] for name in params},
        user_attrs={},
        system_attrs=attributes,
        intermediate_values=reports,
    )


def in_space(job: Job, trial: FrozenTrial) -> FrozenTrial:
    """A trial of the study in its space, which may have changed since the trial was drawn.

    A trial that does not fit keeps its former distributions, see `fits`.
    """
    if job.search.is_code:
        return trial
    parameters = job.search.parameters
    space_ = {name: points.distribution(parameters[name]) for name in trial.params if name in parameters}
    if space_ != trial.distributions and space_.keys() == trial.params.keys():
        same_form = all(type(space_[name]) is type(former) for name, former in trial.distributions.items())
        normal = any(isinstance(parameters[name], space.NormalParameter) for name in space_)
        if same_form and not normal and all(points.contains(space_[name], value) for name, value in trial.params.items()):
            trial.distributions = space_
    return trial


def fits(job: Job, trial: FrozenTrial) -> bool:
    """Whether a trial is in the study's space, so that samplers can learn from it; see `in_space`."""
    if job.search.is_code or not trial.params:
        return True
    values: dict[str, Any] = {}
    for name, parameter in job.search.parameters.items():
        if space.is_active(parameter, values):
            if name not in trial.params and job.search.sampler.takes_parts:
                continue
            if name not in trial.params or trial.distributions[name] != points.distribution(parameter):
                return False
            values[name] = parameter.decode(trial.params[name])
    return values.keys() == trial.params.keys()


def state_and_values(job: Job, outcome: TrialOutcome) -> tuple[TrialState, list[float] | None]:
    """State and values of an attempt that ended, in Optuna's form."""
    state = STATES[outcome.state]
    if state is TrialState.PRUNED and len(job.objectives) > 1:
        state = TrialState.FAIL  # optuna has no pruning with several objectives
    complete = outcome.state is State.COMPLETE
    return state, [outcome.metrics[objective.metric] for objective in job.objectives] if complete else None


def is_bad(job: Job, outcome: TrialOutcome) -> bool:
    """Whether an attempt has ended without values by its own fault, so that samplers should avoid its point.

    An attempt that its machine or its user ended says nothing about its point, and a retried one may still succeed.
    """
    if outcome.failure is None:
        return outcome.state is State.PRUNED and len(job.objectives) > 1 and job.search.ladder is None
    return FAILURE_RULES[outcome.failure].counts and not outcome.retried


def coded(job: Job, point: Mapping[str, Any]) -> dict[str, Any]:
    """A point of the job's space in Optuna's form; see `job.space`."""
    if job.search.suggests:
        return {name: space.text(value) for name, value in point.items()}
    parameters = job.search.parameters  # none where the space is code, whose points are Optuna's own
    return {name: parameters[name].encode(value) if name in parameters else value for name, value in point.items()}


def suggest(
    drawn: optuna.trial.Trial,
    job: Job,
    function: Callable[..., Any] | None,
    enqueued: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The parameters of a trial, by the job's space or by its space function.

    Args:
        drawn: the trial.
        job: defines the space.
        function: that defines the space instead.
        enqueued: the enqueued point, which is returned exactly: a normal parameter's value is rounded in Optuna's form.

    Raises:
        EntrypointError: the function raised.
    """
    if function is not None:
        try:
            function(drawn)
        except Exception as error:
            raise errors.EntrypointError(
                f"{job.search.function} failed for trial {drawn.number}: {type(error).__name__}: {error}"
            ) from error
        return drawn.params
    values: dict[str, Any] = {}
    for name, parameter in job.search.parameters.items():
        if space.is_active(parameter, values):
            internal = _suggest_one(drawn, name, parameter)
            if job.search.sampler.of_class:
                distribution = points.distribution(parameter)
                if not points.contains(distribution, internal):
                    problem = f"{name} is {internal!r}, and must be {space.describe(parameter)}"
                    name_of_class = job.search.sampler.of_class
                    raise errors.EntrypointError(f"the sampler {name_of_class} draws outside of the space: {problem}")
                internal = distribution.to_external_repr(distribution.to_internal_repr(internal))  # without NumPy's types
            value = parameter.decode(internal)
            values[name] = enqueued[name] if isinstance(parameter, space.NormalParameter) and name in enqueued else value
    return values


def _suggest_one(drawn: optuna.trial.Trial, name: str, parameter: space.AnyParameter) -> Any:
    """A parameter's value in Optuna's form."""
    match parameter:
        case space.FloatParameter():
            return drawn.suggest_float(name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)
        case space.IntParameter():
            return drawn.suggest_int(name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)
        case space.CategoricalParameter():
            return drawn.suggest_categorical(name, parameter.codes())
        case space.NormalParameter():
            return drawn.suggest_float(name, *parameter.shares)
