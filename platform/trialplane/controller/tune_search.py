"""A searcher of Ray Tune as a sampler of Optuna, through Tune's public interface.

A searcher keeps what it has learned in its own memory, which a later controller restores by a replay; see `replaying`.
Parameters have neutral names (`p0`, `p1`, …), as Tune gives dots and slashes in names a meaning.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna import distributions
from optuna.trial import FrozenTrial, TrialState
from ray import tune
from ray.tune.search import Searcher

from trialplane import errors
from trialplane.controller import points
from trialplane.job import space as spaces
from trialplane.job.kinds import Job

_SEEDS = ("seed", "random_state_seed", "random_seed", "random_state")  # names of a searcher's seed


class TuneSampler(optuna.samplers.BaseSampler):
    """Draws trials by a searcher.

    Args:
        job: defines the space, and has one objective.
        cls: class of the searcher.
        history: trials of earlier studies, which the searcher is told first.

    Raises:
        InputError: the class is no searcher, or refuses its arguments or the space.
    """

    def __init__(self, job: Job, cls: Callable[..., Any], history: Sequence[FrozenTrial] = ()) -> None:
        self._name = job.search.sampler.of_class
        self._objective = job.objectives[0]
        self._parameters = job.search.parameters
        self._keys = {name: f"p{index}" for index, name in enumerate(self._parameters)}
        self._random = optuna.samplers.RandomSampler(seed=job.seed)
        self._reports = job.watched_metric == self._objective.metric
        self._told_numbers: set[int] = set()
        self._suggested: dict[int, dict[str, Any]] = {}  # trial → its parameters in Optuna's form
        self._values: list[float] = []  # that the searcher was told
        self._space = {name: points.distribution(parameter) for name, parameter in self._parameters.items()}
        self._searcher = self._built(cls, job)
        for trial in history:
            if trial.state == TrialState.COMPLETE:
                self._add(trial, trial.values[0])

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, distributions.BaseDistribution]:
        """See `BaseSampler`. All parameters are drawn together."""
        return dict(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, distributions.BaseDistribution]
    ) -> dict[str, Any]:
        """See `BaseSampler`. Empty if the searcher has no suggestion now; the trial is then drawn at random."""
        for other in study.get_trials(deepcopy=False):
            if other.state.is_finished() and other.number not in self._told_numbers:
                self._tell(other)
        return self._suggest(trial)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: distributions.BaseDistribution
    ) -> Any:
        """See `BaseSampler`. The rest of an enqueued point, or a trial without a suggestion."""
        return self._random.sample_independent(study, trial, name, distribution)

    def reseed_rng(self) -> None:
        """See `BaseSampler`. The searcher has the job's seed."""

    def _built(self, cls: Callable[..., Any], job: Job) -> Searcher:
        if not (isinstance(cls, type) and issubclass(cls, Searcher)):
            raise errors.InputError(
                f"{self._name} is no searcher of Ray Tune: it is no subclass of ray.tune.search.Searcher"
            )
        arguments = dict(job.search.sampler.options)
        named = inspect.signature(cls).parameters
        seed = next((name for name in _SEEDS if name in named), "")
        if seed:
            arguments.setdefault(seed, job.seed)
        config = {self._keys[name]: _domain(parameter) for name, parameter in self._parameters.items()}
        mode = {"minimize": "min", "maximize": "max"}[self._objective.direction]
        try:
            with points.seeded_globally(job.seed):
                searcher: Searcher = cls(**arguments)
                accepted = searcher.set_search_properties(self._objective.metric, mode, config)
        except Exception as error:
            text = f"{type(error).__name__}: {errors.first_line(error)}"
            raise errors.InputError(f"the searcher {self._name} refuses the job: {text}") from error
        if not accepted:
            raise errors.InputError(
                f"the searcher {self._name} does not take the job's space; drop the space from its options"
            )
        return searcher

    def _suggest(self, trial: FrozenTrial) -> dict[str, Any]:
        """The searcher's parameters of a trial in Optuna's form; empty if it has none now, or the trial has its own."""
        if "fixed_params" in trial.system_attrs:  # an enqueued point
            return {}
        config = self._searcher.suggest(str(trial.number))
        if not isinstance(config, Mapping):
            return {}
        values = {name: _value(self._parameters[name], config[key]) for name, key in self._keys.items()}
        self._suggested[trial.number] = values
        return values

    def _value(self, trial: FrozenTrial) -> float | None:
        """The value of an ended trial for the searcher; None for an error."""
        if trial.state == TrialState.COMPLETE:
            value = float(trial.values[0])
        elif trial.state == TrialState.PRUNED and trial.intermediate_values:
            value = float(trial.intermediate_values[max(trial.intermediate_values)])
        elif trial.system_attrs.get(points.BAD) and self._values:
            value = (max if self._objective.direction == "minimize" else min)(self._values)
        else:
            return None
        return value if math.isfinite(value) else None

    def _tell(self, trial: FrozenTrial) -> None:
        value = self._value(trial)
        self._told_numbers.add(trial.number)
        if value is not None:
            self._values.append(value)
        if trial.number in self._suggested and points.is_same(self._suggested[trial.number], trial.params):
            self._complete(trial, value)
            return
        if trial.number in self._suggested:  # of a former controller, whose searcher suggested something else
            self._complete(trial, None)
        if value is not None:
            self._add(trial, value)

    def _complete(self, trial: FrozenTrial, value: float | None) -> None:
        name, step = str(trial.number), 1
        for step, report in trial.intermediate_values.items() if self._reports else ():
            self._searcher.on_trial_result(name, self._as_result(report, step))
        result = None if value is None else self._as_result(value, step)
        self._searcher.on_trial_complete(name, result, error=value is None)

    def _as_result(self, value: float, step: int) -> dict[str, float]:
        return {self._objective.metric: value, "training_iteration": step, "time_total_s": step}

    def _add(self, trial: FrozenTrial, value: float) -> None:
        """Tells the searcher of a point that it has not suggested, if it takes such."""
        if trial.params.keys() == self._keys.keys():
            with contextlib.suppress(NotImplementedError):
                self._searcher.add_evaluated_point({self._keys[name]: of for name, of in trial.params.items()}, value)


def _domain(parameter: spaces.AnyParameter) -> Any:
    """A parameter as a search space of Tune. A step is rounded afterwards, as few searchers have steps."""
    match parameter:
        case spaces.FloatParameter():
            return (tune.loguniform if parameter.log else tune.uniform)(parameter.low, parameter.high)
        case spaces.IntParameter(step=1):
            return (tune.lograndint if parameter.log else tune.randint)(parameter.low, parameter.high + 1)
        case spaces.IntParameter():
            return tune.uniform(float(parameter.low), float(parameter.high))
        case spaces.CategoricalParameter():
            return tune.choice(parameter.codes())
        case spaces.NormalParameter():
            return tune.uniform(*parameter.shares)


def _value(parameter: spaces.AnyParameter, suggested: Any) -> Any:
    """A suggested value in Optuna's form: on a step, and within the bounds in spite of rounding errors."""
    match parameter:
        case spaces.CategoricalParameter():
            return suggested
        case spaces.NormalParameter():
            low, high = parameter.shares
            return min(max(low, float(suggested)), high)
        case spaces.IntParameter():
            steps = round((suggested - parameter.low) / parameter.step)
            return min(max(0, steps), (parameter.high - parameter.low) // parameter.step) * parameter.step + parameter.low
        case spaces.FloatParameter():
            value = float(suggested)
            if parameter.step is not None:
                value = parameter.low + round((value - parameter.low) / parameter.step) * parameter.step
            return min(max(parameter.low, value), parameter.high)
