"""Optuna's storage of a study, in memory: one trial per logical trial. Samplers see a bounded part of them.

For each attempt the ledger stores a document, from which its trial is restored exactly (`trial_document`, `restore_trial`).
The ledger also stores the reports of the attempt, or a sample of a very long curve.

A retry replaces the attempt that it repeats. So the numbers, the order and the states of the trials are those of a study in
which nothing was lost or stopped. Samplers and pruners rely on that.

Samplers get other trials than pruners and the export in four respects:

- A paused trial that continues is running. TPE never counts a running trial among the good ones. But trials that continue
  are the best ones. So until their segment ends, samplers get them as they were paused, and also if it is lost.
- Of Optuna's samplers, only TPE learns from trials without a final value, and so from paused ones. With promotion hardly any
  trial is complete. So the other samplers get each trial that has reported as a complete one, see `History._as_ranked`.
- Optuna's samplers ignore failed trials. A sampler that maximizes a model would draw the same point again and again. So a
  trial that failed by its own fault has the worst possible values, see `History.record_end`.
- The time to draw of a sampler that fits a model grows with the number of trials it considers (of 10 parameters, measured:
  280 ms for TPE at 10,000 trials; for GP 0.2 s at 300, and 2.5 s at 1,000). So it gets a part of a long history, see
  `BOUNDS`: the best trials and an even sample of the others. The selection depends on the history alone, so that a resumed
  study gets the same.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import math
import statistics
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.samplers.nsgaii._elite_population_selection_strategy import _crowding_distance_sort
from optuna.study import StudyDirection
from optuna.study._multi_objective import _fast_non_domination_rank
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from trialplane.controller import points
from trialplane.job.kinds import Job
from trialplane.job.search import Ladder


class Bound(NamedTuple):
    """Number of the trials that a sampler gets, and of the best ones among them."""

    trials: int
    best: int


# Samplers that fit a model to all trials each time. The others need every trial (generations, visited points) or none.
BOUNDS = {"tpe": Bound(trials=1000, best=200), "gp": Bound(trials=300, best=150)}
_distribution = functools.cache(json_to_distribution)  # parsing is slow, and all trials have the same few distributions


def trial_document(trial: FrozenTrial, report_sign: float) -> dict[str, Any]:
    """Return the JSON document of a trial, from which `restore_trial` restores it.

    Args:
        trial: Trial in memory.
        report_sign: Factor of its reports in memory, see `Pruning.sign`.

    Returns:
        A mapping with `state`, `values`, `params` (by name: Optuna's internal value and the distribution as JSON),
        `attributes` (Optuna's system attributes), and `started` and `ended` in seconds since the epoch.
    """
    value_sign = report_sign if trial.state == OptunaState.PRUNED else 1.0  # a pruned trial has its last report as its value
    return {
        "state": trial.state.name,
        "values": None if trial.values is None else [_json_number(value_sign * value) for value in trial.values],
        "params": {
            name: [trial.distributions[name].to_internal_repr(value), distribution_to_json(trial.distributions[name])]
            for name, value in trial.params.items()
        },
        "attributes": trial.system_attrs,
        "started": None if trial.datetime_start is None else trial.datetime_start.timestamp(),
        "ended": None if trial.datetime_complete is None else trial.datetime_complete.timestamp(),
    }


def restore_trial(number: int, document: Mapping[str, Any], report_sign: float = 1.0) -> FrozenTrial:
    """Return the trial of a document, without its reports.

    Args:
        number: Number of the trial.
        document: Result of `trial_document`.
        report_sign: Factor of its reports in memory, see `Pruning.sign`.
    """
    value_sign = report_sign if document["state"] == OptunaState.PRUNED.name else 1.0
    distributions = {name: _distribution(text) for name, (_, text) in document["params"].items()}
    values = document["values"]
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=OptunaState[document["state"]],
        value=None,
        values=None if values is None else [value_sign * float(value) for value in values],
        datetime_start=start_time(document),
        datetime_complete=_local_time(document["ended"]),
        params={name: distributions[name].to_external_repr(value) for name, (value, _) in document["params"].items()},
        distributions=distributions,
        user_attrs={},
        system_attrs=dict(document["attributes"]),
        intermediate_values={},
    )


def start_time(document: Mapping[str, Any]) -> datetime.datetime | None:
    """Return the start time in a result of `trial_document`, as Optuna stores it; None if the trial has none."""
    return _local_time(document["started"])


def _json_number(value: float) -> float | str:
    """Return a number as a JSON value. JSON has no infinity and no NaN, so these become texts that `float()` reads."""
    return value if math.isfinite(value) else repr(value)


def _local_time(seconds: float | None) -> datetime.datetime | None:
    """Return a time as Optuna stores it: local and without a time zone; None for None.

    Args:
        seconds: Time in seconds since the epoch.
    """
    return None if seconds is None else datetime.datetime.fromtimestamp(seconds)


class History(optuna.storages.InMemoryStorage):
    """All trials of one study.

    Args:
        job: Job of the study.
        earlier: Trials of earlier studies, which only samplers get.

    Attributes:
        directions: Directions of the objectives.
    """

    def __init__(self, job: Job, earlier: Sequence[FrozenTrial] = ()) -> None:
        super().__init__()
        self._earlier = {trial.number: trial for trial in earlier}
        self.directions = [StudyDirection[objective.direction.upper()] for objective in job.objectives]
        self._is_drawing = False  # whether a sampler draws now, see `sampler_view`
        self._sampler = job.search.sampler.name
        self._is_class_sampler = bool(job.search.sampler.class_path)  # whether the job names the sampler by its class
        self._is_tune_searcher = job.search.sampler.is_tune_searcher  # whether this class is a searcher of Ray Tune
        self._suggests = job.search.suggests
        # Optuna's attributes of a trial that violates all constraints.
        self._violations = {f"constraints:{constraint.metric}": math.inf for constraint in job.search.constraints}
        self._signs = [-1.0 if direction == StudyDirection.MAXIMIZE else 1.0 for direction in self.directions]
        # Whether a sampler that learns only from complete trials gets paused ones as complete. It does not with constraints
        # or several objectives, as trials have these values only at their end.
        self._ranks_paused = (
            isinstance(job.search.ladder, Ladder)
            and points.WORST.get(self._sampler) is OptunaState.COMPLETE
            and len(self.directions) == 1
            and not job.search.constraints
        )
        self._learns_from_pruned = self._sampler == "tpe" or self._ranks_paused
        self._worst: dict[int, FrozenTrial] = {}  # number of a failed trial → the form in which samplers get it
        # Number of a trial that continues, or has failed since → the trial as it was paused
        self._paused: dict[int, FrozenTrial] = {}
        # If trials request their parameters one by one: the sets of names that complete trials have requested.
        self._shapes: set[frozenset[str]] = set()
        # Finished trials from which samplers learn, by number: the losses of feasible ones, and sort keys of the others.
        self._losses: dict[int, list[float]] = {}
        self._sort_keys: dict[int, tuple[float, ...]] = {}
        self._unfinished: set[int] = set()  # numbers of running trials
        # The distributions of all trials, and sets of them by name. Trials with equal ones share them, which saves memory.
        self._distributions: dict[BaseDistribution, BaseDistribution] = {}
        self._spaces: dict[tuple[tuple[str, BaseDistribution], ...], dict[str, BaseDistribution]] = {}
        self._hidden: set[int] = set()  # numbers of the trials that samplers do not get
        # Numbers of the finished trials that samplers get; None if it must be computed again, as another trial has ended.
        self._selection: list[int] | None = None
        self._ranked: dict[int, FrozenTrial] | None = None  # the trials of `_as_ranked` by number; None as for `_selection`
        for trial in earlier:
            self._store_sort_values(trial)

    @contextlib.contextmanager
    def sampler_view(self) -> Iterator[None]:
        """In the context, in which a sampler draws, let `get_all_trials` return the trials that samplers get."""
        self._is_drawing = True
        try:
            yield
        finally:
            self._is_drawing = False

    def hide(self, number: int) -> None:
        """Hide a trial from samplers, because it does not fit into the study's space any more."""
        self._hidden.add(number)
        self._ranked = None

    def record_end(self, trial: FrozenTrial, is_bad: bool) -> None:
        """Record that a trial has finished, so that samplers learn from it.

        Args:
            trial: The trial, as this storage holds it.
            is_bad: Whether it has no values by its own fault. Samplers then get it with the worst possible values, and with
                all constraints violated.
        """
        number, space = trial.number, trial.distributions
        trial.distributions = self._spaces.setdefault(tuple(space.items()), space)  # trials share equal spaces
        self._unfinished.discard(number)
        self._selection = self._ranked = None
        # If a segment has failed, the trial as it was paused is still needed: the segment is retried, or samplers learn from
        # the segments before.
        if trial.state != OptunaState.FAIL:
            self._paused.pop(number, None)
        if self._suggests and trial.state == OptunaState.COMPLETE:
            self._add_shape(frozenset(trial.params))
        sampler_learns_from_bad = self._is_class_sampler or self._sampler in points.WORST
        lacks_parameters = any(trial.params.keys() < shape for shape in self._shapes)  # see `_add_shape`
        if is_bad and sampler_learns_from_bad and not lacks_parameters:
            self._worst[number] = self._as_worst(trial)
            # `_finite_worst`, for a class, needs the losses of real results only.
            self._store_sort_values(trial if self._is_class_sampler else self._worst[number])
        else:
            self._store_sort_values(self._paused.get(number, trial))

    def _store_sort_values(self, trial: FrozenTrial) -> None:
        """Store the losses or the sort key of a finished trial, by which `_select` selects trials for samplers."""
        if trial.number in self._hidden:
            return
        is_complete = trial.state == OptunaState.COMPLETE
        if is_complete and not points.violation(trial):
            self._losses[trial.number] = self._loss(trial)
        elif is_complete or (trial.state == OptunaState.PRUNED and self._learns_from_pruned):
            self._sort_keys[trial.number] = self._sort_key(trial)

    def replace(self, trial_id: int, attempt: FrozenTrial) -> None:
        """Replace the attempt of a trial by another one. The trial counts as unfinished until `record_end` is called."""
        previous = self.get_trial(trial_id)
        if previous.state == OptunaState.PRUNED and self._learns_from_pruned:  # Optuna has a paused trial as a pruned one
            self._paused[previous.number] = previous
        attempt.number, attempt._trial_id = previous.number, trial_id
        study_id, _ = self._trial_id_to_study_id_and_number[trial_id]
        self._set_trial(trial_id, attempt)
        self._update_cache(trial_id, study_id)  # Optuna caches the best trial
        self._remove_end(previous.number)
        self._unfinished.add(previous.number)
        self._selection = self._ranked = None

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Set a parameter of a running trial, with a distribution that equal ones share."""
        distribution = self._distributions.setdefault(distribution, distribution)
        super().set_trial_param(trial_id, param_name, param_value_internal, distribution)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial, which is unfinished until `record_end` is called; return its id."""
        trial_id = super().create_new_trial(study_id, template_trial)
        self._unfinished.add(self.get_trial_number_from_id(trial_id))
        return trial_id

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[OptunaState] | None = None
    ) -> list[FrozenTrial]:
        """Return all trials; while a sampler draws, only the trials that samplers get, see the module's docstring."""
        replacements = (self._earlier, self._bound, self._worst, self._paused, self._hidden)
        samplers_get_others = self._ranks_paused or any(replacements)
        if self._is_drawing and samplers_get_others:
            own_trials = super().get_all_trials(study_id, deepcopy=False)
            return [trial for trial in self._sampler_trials(own_trials) if states is None or trial.state in states]
        return super().get_all_trials(study_id, deepcopy, states)

    @property
    def _bound(self) -> Bound | None:
        """The number of the trials that the sampler gets; None if it gets all of them."""
        bound = BOUNDS.get(self._sampler)
        return bound if bound is not None and len(self._losses) + len(self._sort_keys) > bound.trials else None

    def _sampler_trials(self, own_trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return the trials that samplers get: those of earlier studies, and own ones, selected and changed for samplers."""
        trials = self._earlier | {trial.number: trial for trial in own_trials}
        if (bound := self._bound) is not None:
            if self._selection is None:
                self._selection = self._select(trials, bound)
            trials = {number: trials[number] for number in sorted({*self._selection, *self._unfinished})}
        worst = self._finite_worst() if self._is_class_sampler and not self._is_tune_searcher else self._worst
        paused = {number: trial for number, trial in self._paused.items() if number not in self._worst}
        replaced = worst | paused
        visible = [replaced.get(number, trial) for number, trial in trials.items() if number not in self._hidden]
        if not self._ranks_paused:
            return visible
        if self._ranked is None:
            self._ranked = self._as_ranked(visible)
        return [self._ranked.get(trial.number, trial) for trial in visible]

    def _add_shape(self, names: frozenset[str]) -> None:
        """Record the names of the parameters of a complete trial, and no longer learn from failed trials that lack some.

        Such a trial has failed before its objective had requested all parameters. Some samplers draw jointly only the
        parameters that all trials have. If they learned from the failed trial, they would draw the parameters that it lacks
        separately.
        """
        if names not in self._shapes:
            self._shapes.add(names)
            for number, trial in list(self._worst.items()):
                if trial.params.keys() < names:
                    self._remove_end(number)

    def _remove_end(self, number: int) -> None:
        """Undo `record_end` for a trial."""
        self._worst.pop(number, None)
        self._losses.pop(number, None)
        self._sort_keys.pop(number, None)

    def _as_worst(self, trial: FrozenTrial) -> FrozenTrial:
        """Return a failed trial in the form from which the job's sampler learns that its point is bad.

        A searcher of Ray Tune gets a mark, see `points.BAD`. Another sampler gets a complete trial with the worst possible
        values, or a pruned one without reports, see `points.WORST`.
        """
        worst = copy.copy(trial)
        if self._is_tune_searcher:
            worst.system_attrs = {**trial.system_attrs, points.BAD: True}
            return worst
        worst.state = OptunaState.COMPLETE if self._is_class_sampler else points.WORST[self._sampler]
        worst.values = [sign * math.inf for sign in self._signs] if worst.state == OptunaState.COMPLETE else None
        worst.intermediate_values = {}
        worst.system_attrs = {**trial.system_attrs, **self._violations}
        return worst

    def _as_ranked(self, trials: Sequence[FrozenTrial]) -> dict[int, FrozenTrial]:
        """Return trials that have ended or are paused by number, each as complete, with a value that stands for its rank.

        Trials with more steps rank before others, and trials with the same number of steps by their value, as TPE ranks
        them. The value is the quantile of the standard normal distribution at this rank, because values of different steps
        have no common scale, and a model such as GP's needs one. Trials that have failed by their own fault have infinite
        losses, and rank last. Trials without a value and without reports are left out.
        """
        keys: dict[int, tuple[float, ...]] = {}  # number of a trial → its sort key; the best trial has the smallest one
        for trial in trials:
            if trial.state == OptunaState.COMPLETE:
                [loss] = self._loss(trial)  # trials are ranked only with one objective
                keys[trial.number] = (0, loss) if math.isfinite(loss) else (2,)
            elif trial.state == OptunaState.PRUNED and trial.intermediate_values:
                keys[trial.number] = (1, *self._sort_key(trial))
        quantile = statistics.NormalDist().inv_cdf
        rank_losses = {key: quantile((rank + 0.5) / len(keys)) for rank, key in enumerate(sorted(keys.values()))}
        ranked: dict[int, FrozenTrial] = {}
        for trial in trials:
            if trial.number in keys:
                ranked[trial.number] = complete = copy.copy(trial)
                complete.state = OptunaState.COMPLETE
                complete.values = [self._signs[0] * rank_losses[keys[trial.number]]]
        return ranked

    def _finite_worst(self) -> dict[int, FrozenTrial]:
        """Return the trials in `_worst` by number, with the worst values of any trial so far instead of infinity.

        A sampler of another package may not be able to learn from infinity. While no trial has values, the result is empty.
        """
        if not self._losses:
            return {}
        worst_losses = [max(objective_losses) for objective_losses in zip(*self._losses.values(), strict=True)]
        worst = {number: copy.copy(trial) for number, trial in self._worst.items()}
        for trial in worst.values():
            trial.values = [sign * loss for sign, loss in zip(self._signs, worst_losses, strict=True)]
            trial.system_attrs = {**trial.system_attrs, **dict.fromkeys(self._violations, 1.0)}  # positive: it is violated
        return worst

    def _loss(self, trial: FrozenTrial) -> list[float]:
        """Return the losses of a trial: the values of its objectives, negated where larger is better."""
        return [sign * value for sign, value in zip(self._signs, trial.values, strict=True)]

    def _sort_key(self, trial: FrozenTrial) -> tuple[float, ...]:
        """Return the key by which trials that are not feasible or were pruned are sorted, the best first, as by TPE.

        Pruned trials with reports come first, sorted by their last step and its value. Then come pruned trials without
        reports, and then infeasible trials, sorted by violation.
        """
        if violation := points.violation(trial):
            return 2, violation
        if not trial.intermediate_values:
            return (1,)
        last_step, report = max(trial.intermediate_values.items())
        loss = math.inf if math.isnan(report) else self._signs[0] * report
        return 0, -last_step, loss

    def _select(self, trials: Mapping[int, FrozenTrial], bound: Bound) -> list[int]:
        """Return the numbers of finished trials that a sampler gets: the best, and an even sample of the others.

        Feasible trials are better than others. They are ranked by non-dominated front, and in the front that does not fit
        as a whole by crowding distance.
        """
        best: list[int] = []
        feasible = np.array(sorted(self._losses), dtype=int)  # numbers of trials
        ranks = _fast_non_domination_rank(np.array([self._losses[number] for number in feasible]), n_below=bound.best)
        for rank in range(ranks.max(initial=-1) + 1):
            front = [trials[number] for number in feasible[ranks == rank]]
            if len(best) + len(front) > bound.best:
                _crowding_distance_sort(front)  # in place, the least crowded first
            best += [trial.number for trial in front][: bound.best - len(best)]
            if len(best) == bound.best:
                break
        not_feasible = sorted(self._sort_keys, key=lambda number: (self._sort_keys[number], number))
        best += not_feasible[: bound.best - len(best)]
        candidates = sorted((self._losses.keys() | self._sort_keys.keys()).difference(best))
        sample_size = bound.trials - bound.best
        sample = [candidates[index * len(candidates) // sample_size] for index in range(sample_size)]  # evenly spaced
        # Before a trial of this study has ended, Optuna takes the space from trial -1, see `samplers.earlier_trials`.
        if -1 in candidates and -1 not in sample:
            sample[0] = -1
        return best + sample
