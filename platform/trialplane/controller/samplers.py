"""Samplers and pruners of Optuna, built from a job's names and options.

A new sampler is built for each logical trial, with a seed derived from the job's seed and the trial's number. So the next
point depends only on the seed, the number and the history in the ledger, and a crash can lose none of these: a study that
was stopped and resumed draws the same points as an undisturbed one. Some samplers (QMC, grid) draw all trials from one
sequence. The sequence has the job's seed, and only other random numbers have the seed of the trial.

A sampler whose class is of another package draws all trials, because it may store in memory what it has learned, see
`replaying`.
"""

from __future__ import annotations

import copy
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
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from trialplane import errors
from trialplane.controller import points
from trialplane.job import options, space
from trialplane.job.kinds import Job
from trialplane.job.options import ValueKind
from trialplane.wire import rows
from trialplane.wire.earlier import EarlierTrial
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FAILURE_RULES, TrialState

OPTUNA_STATES = {
    TrialState.COMPLETE: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.PAUSED: OptunaState.PRUNED,  # until it is promoted
    TrialState.FAILED: OptunaState.FAIL,
}
_MIN_EARLIER = 10  # trials of earlier studies from which CMA-ES starts: it takes the best tenth
_ONE_SEQUENCE = frozenset({"qmc", "grid"})  # samplers that draw all trials from one sequence


class JobCode:
    """The job's code, with functions for options and spaces, and classes of samplers, that the job names.

    Args:
        folder: Folder of the code.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, name: str) -> Callable[..., Any]:
        """Return the function or class with a name of the form `module:function`.

        Raises:
            EntrypointError: It is missing, or its module cannot be imported.
        """
        module, _, attribute = name.partition(":")
        if str(self._folder) not in sys.path:
            sys.path.insert(0, str(self._folder))
        try:
            loaded: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:
            raise errors.EntrypointError(
                f"{name} does not import: {type(error).__name__}: {error}; it runs in the controller, from {self._folder}"
            ) from error
        return loaded


def derived_seed(seed: int, trial: int) -> int:
    """Return a 32-bit seed for a logical trial of a study that has the seed `seed`."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{trial}".encode()).digest()[:4], "little")


def build_sampler(
    job: Job,
    trial: int,
    code: JobCode,
    previous: optuna.samplers.BaseSampler | None = None,
    *,
    seed_salt: int | None = None,
    earlier: Sequence[FrozenTrial] = (),
) -> optuna.samplers.BaseSampler:
    """Return the sampler that draws a logical trial.

    Args:
        job: Job that names the sampler.
        trial: Number of the trial.
        code: Code of the job.
        previous: Sampler of another trial of the job; None if there is none. A sampler that draws all trials is returned
            itself. Of CMA-ES only the starts are taken that it has estimated.
        seed_salt: Number that changes the seed, if one trial needs several samplers; None for the trial's own seed.
        earlier: Trials of earlier studies. CMA-ES starts from them, and TPE groups parameters that some of them lack. All
            samplers also get them as part of the history.
    """
    if previous is not None and not is_rebuilt_for_each_trial(previous):
        return previous
    seed = derived_seed(job.seed, trial)
    if seed_salt is not None:
        seed = derived_seed(seed, seed_salt)
    chosen = job.search.sampler
    if chosen.class_path:
        return _build_from_class(job, seed, code)
    sampler: optuna.samplers.BaseSampler = _build_by_name(
        ValueKind.SAMPLER, chosen.name, chosen.options, job, seed=seed, code=code, earlier=earlier
    )
    if isinstance(sampler, _Cmaes) and isinstance(previous, _Cmaes):
        sampler.start_like(previous)
    if isinstance(sampler, _Grid):
        sampler.begin_with(job.search.parameters, job.search.enqueue)
    return sampler


def is_rebuilt_for_each_trial(sampler: optuna.samplers.BaseSampler) -> bool:
    """Return whether a new sampler is built for each trial, as the sampler stores nothing that it needs for the next one.

    True for Optuna's samplers, except for the grid, which keeps the points that it has computed. False for a class of
    another package, which may store what it has learned.
    """
    # `_Grid` and `_Cmaes` are classes of this module.
    return type(sampler).__module__.startswith("optuna.") or isinstance(sampler, _Cmaes)


def _build_from_class(job: Job, seed: int, code: JobCode) -> optuna.samplers.BaseSampler:
    """Return a sampler of the class that the job names.

    Raises:
        InputError: The class is not a sampler, or refuses its options.
    """
    chosen = job.search.sampler
    cls = code.load(chosen.class_path)
    if chosen.is_tune_searcher:
        from trialplane.controller import tune_search  # imports Ray Tune, which takes seconds

        return tune_search.TuneSampler(job, cls)
    if not (isinstance(cls, type) and issubclass(cls, optuna.samplers.BaseSampler)):
        raise errors.InputError(f"{chosen.class_path} is not a sampler: it is not a subclass of optuna.samplers.BaseSampler")
    if not cls.__module__.startswith("optuna."):  # this sampler draws all trials, so its seed must not depend on the trial
        seed = derived_seed(job.seed, trial=0)
    seeded = {"seed": seed} if "seed" in inspect.signature(cls).parameters else {}
    try:
        with points.seed_globally(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns of experimental classes
            sampler: optuna.samplers.BaseSampler = cls(**{**seeded, **chosen.options})
    except Exception as error:
        text = f"{type(error).__name__}: {errors.first_line(error)}"
        raise errors.InputError(f"the sampler {chosen.class_path} refuses its options: {text}") from error
    return sampler


def build_pruner(job: Job, code: JobCode) -> optuna.pruners.BasePruner:
    """Return the study's pruner. With promotion it prunes nothing, as trials are paused at rungs and not ended."""
    name, option_values = job.search.pruner.name, job.search.pruner.options
    if job.search.pruner.promotes:
        return optuna.pruners.NopPruner()
    if name == "asha":  # Optuna's successive halving, with other defaults
        defaults = job.search.pruner.choice.options
        option_values = {key: option_values.get(key, defaults[key].default) for key in ("min_resource", "reduction_factor")}
        name = "successive_halving"
    pruner: optuna.pruners.BasePruner = _build_by_name(ValueKind.PRUNER, name, option_values, job, seed=job.seed, code=code)
    return pruner


def grid_is_drawn(job: Job, study: optuna.Study) -> bool:
    """Return whether the sampler is a grid whose points were all drawn. Optuna itself would draw a running point again."""
    if job.search.sampler.name != "grid":
        return False
    # Optuna gives each trial with a point of the grid the number of the point. Other trials have none.
    drawn_ids = {trial.system_attrs.get("grid_id") for trial in study.get_trials(deepcopy=False)} - {None}
    point_count = math.prod(parameter.count or 1 for parameter in job.search.parameters.values())
    return len(drawn_ids) >= point_count


def stop_if_exhausted(job: Job, study: optuna.Study, code: JobCode) -> None:
    """Let the brute-force sampler call `study.stop` if every point was drawn under an earlier controller.

    Optuna's sampler checks that only when it is told that a trial has ended. So it is told the end of the last finished
    trial again.
    """
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    if job.search.sampler.name == "bruteforce" and finished:
        last = finished[-1]
        build_sampler(job, trial=0, code=code).after_trial(study, last, last.state, last.values)


class _Grid(optuna.samplers.GridSampler):
    """A grid that begins with the enqueued points, and does not check after each trial whether it is complete.

    In Optuna's grid a trial has the point with the trial's number. If the first trials got enqueued points instead, the
    points with their numbers would never be tried, and the enqueued ones twice.
    """

    def begin_with(self, parameters: Mapping[str, space.AnyParameter], enqueued: Sequence[Mapping[str, Any]]) -> None:
        """Move points of the grid to its beginning.

        Args:
            parameters: Parameters of the grid, by name.
            enqueued: Enqueued points, each with a value for every parameter.
        """
        first = [tuple(_grid_code(parameters[name], point[name]) for name in self._param_names) for point in enqueued]
        self._all_grids = list(dict.fromkeys([*first, *self._all_grids]))  # each once, in this order

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: OptunaState, values: Sequence[float] | None
    ) -> None:
        """Do nothing. Optuna would compare all points with all trials here; the ledger calls `grid_is_drawn` instead."""


class _Cmaes(optuna.samplers.CmaEsSampler):
    """CMA-ES that estimates its start from the trials of earlier studies only once in a study.

    Optuna repeats this slow estimate for each trial that is drawn before the first generation is complete. The trials that
    are drawn are the same.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        # Number of dimensions → optimizer at its start. A study's space only loses dimensions, so this number is enough.
        self._starts: dict[int, Any] = {}

    def start_like(self, other: _Cmaes) -> None:
        """Share the starts that the sampler of another trial of the same study has estimated."""
        self._starts = other._starts

    def _init_optimizer(self, trans: Any, direction: Any) -> Any:
        """Return the optimizer of the first generation, which gets its random numbers from the caller.

        Args:
            trans: Optuna's transform of the space, which has the bounds of each dimension.
            direction: Direction of the objective.
        """
        dimension_count = len(trans.bounds)
        if (start := self._starts.get(dimension_count)) is not None:
            # Optuna's method draws a seed for the optimizer. Draw it too, so that the numbers after it are the same.
            self._cma_rng.rng.randint(1, 2**31 - 2)
            return copy.deepcopy(start)
        optimizer = super()._init_optimizer(trans, direction)
        if self._source_trials is not None:  # the start was estimated from earlier studies
            self._starts[dimension_count] = copy.deepcopy(optimizer)
        return optimizer


def _grid_code(parameter: space.AnyParameter, value: Any) -> Any:
    """Return the value of a grid that is nearest to a parameter's value, which may have a rounding error."""
    if isinstance(parameter, space.CategoricalParameter):
        return parameter.encode(value)
    return min(parameter.codes(), key=lambda code: abs(code - value))


_OWN_CLASSES = {"GridSampler": _Grid, "CmaEsSampler": _Cmaes}  # by the name of the class of Optuna that is replaced
_MODULES = {
    ValueKind.SAMPLER: optuna.samplers,
    ValueKind.PRUNER: optuna.pruners,
    ValueKind.CROSSOVER: optuna.samplers.nsgaii,
    ValueKind.MUTATION: optuna.samplers.nsgaii,
}


def _build_by_name(
    kind: ValueKind,
    name: str,
    option_values: Mapping[str, Any],
    job: Job,
    seed: int,
    code: JobCode,
    earlier: Sequence[FrozenTrial] = (),
) -> Any:
    """Return an object of Optuna, built from its name and options in the job.

    Args:
        kind: Kind of the object: a sampler, a pruner, or a crossover or mutation of a genetic sampler.
        name: Its name in the job.
        option_values: Its options in the job.
        job: The job.
        seed: Seed of the trial for which it is built.
        code: Code of the job, for options that are functions.
        earlier: Trials of earlier studies, from which CMA-ES starts.

    Raises:
        InputError: Optuna refuses the options, or a library that it needs cannot be imported.
    """
    choice = options.TABLES[kind][name]
    for library in choice.libraries:  # Optuna imports them too late: with the first trial that is drawn from earlier ones
        try:
            importlib.import_module(library)
        except ImportError as error:
            text = f"{kind.name.lower()} {name} needs {library}, which does not import where the controller runs: {error}"
            raise errors.InputError(f"{text}; once it does, `platform resume` continues") from error
    arguments: dict[str, Any] = {}  # of the object's class
    for key, value in option_values.items():
        arguments[key] = _option_value(choice.options[key].kind, value, job, seed=seed, code=code)
    # The arguments in `choice.platform` are set by the platform and not by the job.
    if "seed" in choice.platform:
        arguments["seed"] = job.seed if name in _ONE_SEQUENCE else seed
    if "search_space" in choice.platform:
        arguments["search_space"] = {key: parameter.codes() for key, parameter in job.search.parameters.items()}
    _adjust_arguments(name, arguments, job, seed=seed, earlier=earlier)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns of experimental and deprecated options, which the job has chosen
            cls = _OWN_CLASSES.get(choice.cls) or getattr(_MODULES[kind], choice.cls)
            return cls(**arguments)
    except (ValueError, TypeError) as error:
        raise errors.InputError(f"{kind.name.lower()} {name}: {error}") from error


def _adjust_arguments(name: str, arguments: dict[str, Any], job: Job, seed: int, earlier: Sequence[FrozenTrial]) -> None:
    """Set or change arguments of a few samplers and of the pruner `threshold`, for which Optuna's defaults do not fit.

    Args:
        name: Name of the sampler or pruner in the job.
        arguments: Arguments of its class so far, which are changed.
        job: The job.
        seed: Seed of the trial for which it is built.
        earlier: Trials of earlier studies.
    """
    if name == "qmc" and arguments.get("independent_sampler") is None:
        # Without this, Optuna would build one with the seed of the sequence, which draws the same numbers in every trial.
        arguments["independent_sampler"] = optuna.samplers.RandomSampler(seed=seed)
    job_chooses_groups = "multivariate" in arguments or "group" in arguments
    if name == "tpe" and len(job.objectives) == 1 and not job_chooses_groups:
        # By default TPE draws all parameters together, from trials that have them all. With groups it draws those together
        # that the same trials have. The last earlier trial has the most parameters, see `earlier_trials`.
        arguments["group"] = any(len(trial.params) < len(earlier[-1].params) for trial in earlier)
    if name == "cmaes":
        finite_trials = [
            trial for trial in earlier if trial.state == OptunaState.COMPLETE and all(map(math.isfinite, trial.values))
        ]
        if len(finite_trials) >= _MIN_EARLIER:
            arguments["source_trials"] = finite_trials
    if name == "threshold" and job.search.opposes(job.objectives[0]):
        # Reports are negated, see `Pruning.sign`. So are the limits, and the lower one becomes the upper one.
        lower, upper = arguments.get("lower"), arguments.get("upper")
        arguments["lower"] = None if upper is None else -upper
        arguments["upper"] = None if lower is None else -lower


def _option_value(kind: ValueKind, value: Any, job: Job, seed: int, code: JobCode) -> Any:
    """Return the value of an option in Optuna's form: for example the function that the job names, or a nested sampler."""
    if value is None:
        return None
    match kind:
        case ValueKind.FUNCTION:
            return code.load(value)
        case ValueKind.FACTORY:
            return code.load(value)()
        case ValueKind.POINT:
            return encode_point(job, value)
        case ValueKind.POINTS:
            import numpy as np

            return np.asarray(value, dtype=float)
        case ValueKind.SAMPLER | ValueKind.PRUNER | ValueKind.CROSSOVER | ValueKind.MUTATION:
            # Either a name, or for example {name: median, n_startup_trials: 3}; the options may also be under `options`.
            nested: dict[str, Any] = {"name": value} if isinstance(value, str) else dict(value)
            name = nested.pop("name")
            nested_options = {**nested.pop("options", {}), **nested}
            return _build_by_name(kind, name, nested_options, job, seed=seed, code=code)
        case _:
            return value


# Attributes in which Optuna's genetic samplers store the generation of a trial.
_GENERATIONS = {"nsgaii": "NSGAIISampler:generation", "nsgaiii": "NSGAIIISampler:generation"}


def earlier_trials(job: Job, trials: Sequence[EarlierTrial]) -> list[FrozenTrial]:
    """Return trials of earlier studies in Optuna's form. Their numbers are negative, and the last one is -1.

    They are sorted so that the last ones are complete and have the most parameters: of trials with negative numbers, Optuna
    takes the space that it draws from trial -1 alone. For a genetic sampler the best ones are the first generation.
    """
    distribution_of = {name: points.distribution(parameter) for name, parameter in job.search.parameters.items()}
    signs = [-1.0 if objective.direction == "maximize" else 1.0 for objective in job.objectives]
    ordered = sorted(trials, key=lambda trial: (bool(trial.values), len(trial.params)))
    frozen_trials = [
        _frozen_trial(job, trial, distribution_of, signs, number=index - len(ordered)) for index, trial in enumerate(ordered)
    ]
    if job.search.sampler.name in _GENERATIONS:
        _mark_first_generation(job, frozen_trials, signs)
    return frozen_trials


def _mark_first_generation(job: Job, trials: Sequence[FrozenTrial], signs: Sequence[float]) -> None:
    """Mark the best of some trials as the first generation of the job's genetic sampler.

    Args:
        job: Job that names the sampler.
        trials: Trials of earlier studies, of which the marked ones get an attribute.
        signs: Factor of each objective that makes smaller values better.
    """
    generation_attribute = _GENERATIONS[job.search.sampler.name]
    size = job.search.sampler.options.get("population_size", 50)  # 50 is Optuna's default
    losses = {
        trial.number: tuple(sign * value for sign, value in zip(signs, trial.values, strict=True))
        for trial in trials
        if trial.state == OptunaState.COMPLETE
    }
    ranks = rows.front_numbers(losses)
    best = set(sorted(losses, key=lambda number: (ranks[number], losses[number]))[:size])
    for trial in trials:
        if trial.number in best:
            trial.system_attrs = {**trial.system_attrs, generation_attribute: 0}


def _frozen_trial(
    job: Job,
    trial: EarlierTrial,
    distribution_of: Mapping[str, distributions.BaseDistribution],
    signs: Sequence[float],
    number: int,
) -> FrozenTrial:
    """Return a trial of an earlier study in Optuna's form.

    Args:
        job: Job of this study.
        trial: The trial.
        distribution_of: Distribution of each parameter of this study, by name.
        signs: Factor of each objective that makes smaller values better.
        number: Number of the trial.
    """
    params = encode_point(job, trial.params)
    values = list(trial.values)
    state = OptunaState.COMPLETE if values else OptunaState.PRUNED
    has_failed = not values and not trial.pruned
    if has_failed and points.WORST.get(job.search.sampler.name) is OptunaState.COMPLETE:
        # This sampler learns from a failed trial only if it is complete, with the worst possible values.
        state, values = OptunaState.COMPLETE, [sign * math.inf for sign in signs]
    report = trial.metrics.get(job.objectives[0].metric)
    reports = {trial.step: report} if trial.pruned and report is not None else {}
    # Optuna stores the amount by which a trial violates a constraint in an attribute with this name.
    excesses = {
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
        distributions={name: distribution_of[name] for name in params},
        user_attrs={},
        system_attrs=excesses,
        intermediate_values=reports,
    )


def adapt_to_space(job: Job, trial: FrozenTrial) -> FrozenTrial:
    """Give a trial the distributions of the study's space, which may have changed after the trial was drawn; return it.

    A trial that does not fit into the space keeps its distributions, see `fits`.
    """
    if job.search.is_code:
        return trial
    parameters = job.search.parameters
    current = {name: points.distribution(parameters[name]) for name in trial.params if name in parameters}
    has_removed_parameter = current.keys() != trial.params.keys()
    if has_removed_parameter or current == trial.distributions:
        return trial
    has_same_types = all(type(current[name]) is type(old) for name, old in trial.distributions.items())
    # A changed normal parameter gives another meaning to the share that Optuna has stored.
    has_normal = any(isinstance(parameters[name], space.NormalParameter) for name in current)
    is_inside = all(points.contains(current[name], value) for name, value in trial.params.items())
    if has_same_types and is_inside and not has_normal:
        trial.distributions = current
    return trial


def fits(job: Job, trial: FrozenTrial) -> bool:
    """Return whether a trial is in the study's space, so that samplers can learn from it.

    It must have each parameter whose condition holds, with the same distribution, and no other parameter. For some samplers
    it may lack parameters.

    Args:
        job: Job that defines the space and names the sampler.
        trial: Trial that `adapt_to_space` has returned.
    """
    if job.search.is_code or not trial.params:
        return True
    values: dict[str, Any] = {}  # values of the trial's parameters that are in the space
    for name, parameter in job.search.parameters.items():
        if not space.is_active(parameter, values):
            continue
        if name in trial.params:
            if trial.distributions[name] != points.distribution(parameter):
                return False
            values[name] = parameter.decode(trial.params[name])
        elif not job.search.sampler.accepts_partial_trials:
            return False
    return values.keys() == trial.params.keys()


def state_and_values(job: Job, outcome: TrialOutcome) -> tuple[OptunaState, list[float] | None]:
    """Return the state and the values of an ended attempt for Optuna. The values are None unless the attempt is complete."""
    state = OPTUNA_STATES[outcome.state]
    if state is OptunaState.PRUNED and len(job.objectives) > 1:
        state = OptunaState.FAIL  # Optuna has no pruning with several objectives
    if outcome.state is not TrialState.COMPLETE:
        return state, None
    return state, [outcome.metrics[objective.metric] for objective in job.objectives]


def is_bad(job: Job, outcome: TrialOutcome) -> bool:
    """Return whether an attempt has ended without values by its own fault, so that samplers should avoid its point.

    An attempt that its machine or its user ended says nothing about its point, and a retried one may still succeed.
    """
    if outcome.failure is not None:
        is_own_fault = FAILURE_RULES[outcome.failure].counts
        return is_own_fault and not outcome.retried
    # Optuna knows pruned trials only with one objective. With several, a pruned trial is a failed one, see
    # `state_and_values`, and its point is a bad one. But with rungs, pruned trials are those that were not promoted.
    return outcome.state is TrialState.PRUNED and len(job.objectives) > 1 and job.search.ladder is None


def encode_point(job: Job, point: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point of the job's space in Optuna's form; see `job.space`."""
    if job.search.suggests:
        return {name: space.code(value) for name, value in point.items()}
    parameters = job.search.parameters  # empty if the space is code, whose points are already in Optuna's form
    return {name: parameters[name].encode(value) if name in parameters else value for name, value in point.items()}


def draw_parameters(
    optuna_trial: optuna.trial.Trial,
    job: Job,
    space_function: Callable[..., Any] | None,
    enqueued: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Draw the parameters of a trial; return them in the user's form.

    Args:
        optuna_trial: Trial in memory.
        job: Job that defines the space.
        space_function: Function that defines the space instead; None if the job lists the parameters.
        enqueued: Enqueued point. Its values of normal parameters are returned as they are, because Optuna's form rounds
            them.

    Raises:
        EntrypointError: The function raised an error, or the job's sampler has drawn a point outside of the space.
    """
    if space_function is not None:
        try:
            space_function(optuna_trial)
        except Exception as error:
            raise errors.EntrypointError(
                f"{job.search.function} failed for trial {optuna_trial.number}: {type(error).__name__}: {error}"
            ) from error
        return optuna_trial.params
    values: dict[str, Any] = {}
    for name, parameter in job.search.parameters.items():
        if space.is_active(parameter, values):
            drawn = _suggest_parameter(optuna_trial, name, parameter)
            if job.search.sampler.class_path:
                drawn = _checked_value(job.search.sampler.class_path, name, parameter, drawn)
            is_exact = isinstance(parameter, space.NormalParameter) and name in enqueued
            values[name] = enqueued[name] if is_exact else parameter.decode(drawn)
    return values


def _checked_value(class_path: str, name: str, parameter: space.AnyParameter, drawn: Any) -> Any:
    """Return a value that a sampler of another package has drawn, in Optuna's form, as a type of Python instead of NumPy's.

    Raises:
        EntrypointError: The value is outside of the space.
    """
    distribution = points.distribution(parameter)
    if not points.contains(distribution, drawn):
        problem = f"{name} is {drawn!r}, and must be {space.describe(parameter)}"
        raise errors.EntrypointError(f"the sampler {class_path} draws outside of the space: {problem}")
    return distribution.to_external_repr(distribution.to_internal_repr(drawn))  # such as float for np.float64


def _suggest_parameter(optuna_trial: optuna.trial.Trial, name: str, parameter: space.AnyParameter) -> Any:
    """Draw a parameter; return its value in Optuna's form."""
    match parameter:
        case space.FloatParameter():
            return optuna_trial.suggest_float(name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)
        case space.IntParameter():
            return optuna_trial.suggest_int(name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)
        case space.CategoricalParameter():
            return optuna_trial.suggest_categorical(name, parameter.codes())
        case space.NormalParameter():
            return optuna_trial.suggest_float(name, *parameter.shares)
