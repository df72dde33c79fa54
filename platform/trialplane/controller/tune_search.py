"""A searcher of Ray Tune as a sampler of Optuna, through Tune's public interface.

A searcher stores in memory what it has learned. A later controller restores that by a replay, see `replaying`. For Tune, the
parameters are named `p0`, `p1`, …, because it gives dots and slashes in names a meaning.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna import distributions
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState
from ray import tune
from ray.tune.search import Searcher

from trialplane import errors
from trialplane.controller import points
from trialplane.job import space as spaces
from trialplane.job.kinds import Job

_SEED_NAMES = ("seed", "random_state_seed", "random_seed", "random_state")  # arguments of searchers


class TuneSampler(optuna.samplers.BaseSampler):
    """A sampler that draws trials by a searcher.

    Args:
        job: Job that defines the space and one objective.
        cls: Class of the searcher.

    Raises:
        InputError: The class is not a searcher, or refuses its arguments or the space.
    """

    def __init__(self, job: Job, cls: Callable[..., Any]) -> None:
        self._name = job.search.sampler.class_path
        self._objective = job.objectives[0]
        self._parameters = job.search.parameters
        self._keys = {name: f"p{index}" for index, name in enumerate(self._parameters)}
        self._random = optuna.samplers.RandomSampler(seed=job.seed)
        self._uses_reports = job.watched_metric == self._objective.metric  # whether reports have the objective's metric
        self._told_numbers: set[int] = set()  # numbers of the trials whose ends the searcher was told
        self._suggested: dict[int, dict[str, Any]] = {}  # trial → its parameters in Optuna's form
        self._values: list[float] = []  # values of the trials that the searcher was told
        self._space = {name: points.distribution(parameter) for name, parameter in self._parameters.items()}
        self._searcher = self._build_searcher(cls, job)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, distributions.BaseDistribution]:
        """See `BaseSampler`. All parameters are drawn together."""
        return dict(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, distributions.BaseDistribution]
    ) -> dict[str, Any]:
        """See `BaseSampler`. First tell the searcher which trials have ended.

        The result is empty if the searcher has no suggestion. Then `sample_independent` draws each parameter at random.
        """
        for other in study.get_trials(deepcopy=False):
            if other.state.is_finished() and other.number not in self._told_numbers:
                self._tell(other)
        return self._suggest(trial)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: distributions.BaseDistribution
    ) -> Any:
        """See `BaseSampler`. Optuna calls this for a parameter that neither an enqueued point nor a suggestion has."""
        return self._random.sample_independent(study, trial, name, distribution)

    def reseed_rng(self) -> None:
        """Do nothing: the searcher has the job's seed."""

    def _build_searcher(self, cls: Callable[..., Any], job: Job) -> Searcher:
        """Return a searcher of the class, with the job's options, seed and space.

        Raises:
            InputError: The class is not a searcher, or refuses its options or the space.
        """
        if not (isinstance(cls, type) and issubclass(cls, Searcher)):
            raise errors.InputError(
                f"{self._name} is not a searcher of Ray Tune: it is not a subclass of ray.tune.search.Searcher"
            )
        arguments = dict(job.search.sampler.options)
        accepted_names = inspect.signature(cls).parameters
        seed_name = next((name for name in _SEED_NAMES if name in accepted_names), "")
        if seed_name:
            arguments.setdefault(seed_name, job.seed)
        config = {self._keys[name]: _domain(parameter) for name, parameter in self._parameters.items()}
        mode = {"minimize": "min", "maximize": "max"}[self._objective.direction]
        try:
            with points.seed_globally(job.seed):
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
        """Return the parameters that the searcher suggests for a trial, in Optuna's form.

        The result is empty if the trial is an enqueued point, or if the searcher has no suggestion now.
        """
        if "fixed_params" in trial.system_attrs:  # the trial is an enqueued point
            return {}
        config = self._searcher.suggest(str(trial.number))
        if not isinstance(config, Mapping):
            return {}
        values = {name: _to_optuna(self._parameters[name], config[key]) for name, key in self._keys.items()}
        self._suggested[trial.number] = values
        return values

    def _value_for_searcher(self, trial: FrozenTrial) -> float | None:
        """Return the value of an ended trial for the searcher; None if the trial counts as an error.

        A trial that violates constraints, was pruned by another metric or failed by its own fault gets the worst value so
        far.
        """
        was_pruned_at_report = trial.state == OptunaState.PRUNED and bool(trial.intermediate_values)
        was_pruned_by_other_metric = was_pruned_at_report and not self._uses_reports
        has_failed_by_itself = bool(trial.system_attrs.get(points.BAD))
        if points.violation(trial) > 0 or has_failed_by_itself or was_pruned_by_other_metric:
            worst = max if self._objective.direction == "minimize" else min
            return worst(self._values, default=None)
        if trial.state == OptunaState.COMPLETE:
            value = float(trial.values[0])
        elif was_pruned_at_report:
            value = float(trial.intermediate_values[max(trial.intermediate_values)])
        else:
            return None
        return value if math.isfinite(value) else None

    def _tell(self, trial: FrozenTrial) -> None:
        """Tell the searcher the end of a trial: of its own suggestion, or as another point."""
        value = self._value_for_searcher(trial)
        self._told_numbers.add(trial.number)
        if value is not None:
            self._values.append(value)
        if trial.number in self._suggested:
            if points.is_same(self._suggested[trial.number], trial.params):
                self._end_suggestion(trial, value)
                return
            # In a replay, this searcher may suggest other parameters than that of the earlier controller, which the trial
            # has. So its suggestion ends as an error, and the trial is added as another point.
            self._end_suggestion(trial, value=None)
        if value is not None:
            self._add_point(trial, value)

    def _end_suggestion(self, trial: FrozenTrial, value: float | None) -> None:
        """Tell the searcher the reports and the end of a trial that it has suggested. A value of None means an error."""
        name = str(trial.number)
        last_step = 1  # without reports
        reports = trial.intermediate_values if self._uses_reports else {}
        for step, report in reports.items():
            self._searcher.on_trial_result(name, self._tune_result(report, step))
            last_step = step
        result = None if value is None else self._tune_result(value, last_step)
        self._searcher.on_trial_complete(name, result, error=value is None)

    def _tune_result(self, value: float, step: int) -> dict[str, float]:
        """Return a report or a result as Tune passes it to a searcher. The time in it is only a substitute."""
        return {self._objective.metric: value, "training_iteration": step, "time_total_s": step}

    def _add_point(self, trial: FrozenTrial, value: float) -> None:
        """Tell the searcher a point that it has not suggested, if it accepts such points and the point is complete."""
        if trial.params.keys() == self._keys.keys():
            point = {self._keys[name]: param for name, param in trial.params.items()}
            with contextlib.suppress(NotImplementedError):  # the searcher accepts none
                self._searcher.add_evaluated_point(point, value)


def _domain(parameter: spaces.AnyParameter) -> Any:
    """Return a parameter as a search space of Tune. Steps are left out, as few searchers have them; `_to_optuna` rounds."""
    match parameter:
        case spaces.FloatParameter():
            float_domain = tune.loguniform if parameter.log else tune.uniform
            return float_domain(parameter.low, parameter.high)
        case spaces.IntParameter(step=1):
            int_domain = tune.lograndint if parameter.log else tune.randint
            return int_domain(parameter.low, parameter.high + 1)  # Tune's integers exclude the upper end
        case spaces.IntParameter():
            return tune.uniform(float(parameter.low), float(parameter.high))
        case spaces.CategoricalParameter():
            return tune.choice(parameter.codes())
        case spaces.NormalParameter():
            return tune.uniform(*parameter.shares)


def _to_optuna(parameter: spaces.AnyParameter, suggested: Any) -> Any:
    """Return a suggested value in Optuna's form: rounded to a step, and within the bounds despite rounding errors."""
    match parameter:
        case spaces.CategoricalParameter():
            return suggested
        case spaces.NormalParameter():
            low, high = parameter.shares
            return min(max(low, float(suggested)), high)
        case spaces.IntParameter():
            position = round((suggested - parameter.low) / parameter.step)
            last_position = (parameter.high - parameter.low) // parameter.step
            return parameter.low + min(max(0, position), last_position) * parameter.step
        case spaces.FloatParameter():
            value = float(suggested)
            if parameter.step is not None:
                value = parameter.low + round((value - parameter.low) / parameter.step) * parameter.step
            return min(max(parameter.low, value), parameter.high)
