"""The memory of samplers and pruners: one Optuna trial per logical trial, of which a sampler sees a bounded part.

Optuna's storage exists only here, in memory. For each attempt the ledger stores a document from which its trial is restored
(`document`, `trial`), exact to the last bit. Its reports are in the ledger as well; of a very long curve a sample.

Attempts that were stopped or lost are not in it: a retry takes the place of the attempt before. So its number, its order and
its share of all trials are those of an undisturbed study, on which samplers and pruners rely.

Two things differ in what a sampler is shown from what pruners and the export see:

- Optuna's samplers ignore failed trials. One that maximizes a model would draw the same point again and again, so a trial
  that failed by its own fault is shown as the worst there is, see `History.ended`.
- TPE's time to draw grows with the number of trials it considers (280 ms at 10,000 trials of 10 parameters, measured). It
  needs the best ones and a fair sample of the rest, so it is shown the best `BEST` and an even sample of the others, `LIMIT`
  in all. The selection depends on the history alone, so that a resumed study sees the same.
"""

from __future__ import annotations

import copy
import datetime
import functools
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.samplers.nsgaii._elite_population_selection_strategy import _crowding_distance_sort
from optuna.study import StudyDirection
from optuna.study._multi_objective import _fast_non_domination_rank
from optuna.trial import FrozenTrial, TrialState

from trialplane.controller import points
from trialplane.job.kinds import Job

LIMIT = 1000
BEST = 200
# Samplers that read all trials each time; the others need every trial (generations, visited points) or none.
BOUNDED = frozenset({"tpe", "gp"})
_distribution = functools.cache(json_to_distribution)  # a study has few, and each trial repeats them


def document(trial: FrozenTrial, sign: float = 1.0) -> dict[str, Any]:
    """A trial as JSON values.

    Args:
        trial: in memory.
        sign: factor of its reports in memory.

    Returns:
        `state` and `values` as samplers see them; `params`: by name the value inside Optuna and its distribution as JSON;
        `attributes`, which samplers keep; `started` and `ended` in seconds since the epoch.
    """
    value_sign = sign if trial.state == TrialState.PRUNED else 1.0  # the value of a pruned trial is its last report
    return {
        "state": trial.state.name,
        "values": None if trial.values is None else [_number(value_sign * value) for value in trial.values],
        "params": {
            name: [trial.distributions[name].to_internal_repr(value), distribution_to_json(trial.distributions[name])]
            for name, value in trial.params.items()
        },
        "attributes": trial.system_attrs,
        "started": None if trial.datetime_start is None else trial.datetime_start.timestamp(),
        "ended": None if trial.datetime_complete is None else trial.datetime_complete.timestamp(),
    }


def trial(number: int, document: Mapping[str, Any], sign: float = 1.0) -> FrozenTrial:
    """The trial restored from its document, see `document`, without its reports; equal distributions are one object."""
    value_sign = sign if document["state"] == TrialState.PRUNED.name else 1.0
    distributions = {name: _distribution(text) for name, (_, text) in document["params"].items()}
    values = document["values"]
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=TrialState[document["state"]],
        value=None,
        values=None if values is None else [value_sign * float(value) for value in values],
        datetime_start=start(document),
        datetime_complete=_local(document["ended"]),
        params={name: distributions[name].to_external_repr(value) for name, (value, _) in document["params"].items()},
        distributions=distributions,
        user_attrs={},
        system_attrs=dict(document["attributes"]),
        intermediate_values={},
    )


def start(document: Mapping[str, Any]) -> datetime.datetime | None:
    """The start of the trial of a document, as Optuna has it."""
    return _local(document["started"])


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)  # in the form that `float()` reads; JSON has no such numbers


def _local(moment: float | None) -> datetime.datetime | None:
    """Optuna's times are naive and local."""
    return None if moment is None else datetime.datetime.fromtimestamp(moment)


class History(optuna.storages.InMemoryStorage):
    """All trials of one study; while `drawing` is set, `get_all_trials` has what the study's sampler is shown.

    Args:
        job: of the study.
        earlier: trials of earlier studies, which only the sampler is shown.
    """

    def __init__(self, job: Job, earlier: Sequence[FrozenTrial] = ()) -> None:
        super().__init__()
        self._earlier = {trial.number: trial for trial in earlier}
        self.directions = [StudyDirection[objective.direction.upper()] for objective in job.objectives]
        self.drawing = False
        self._sampler = job.search.sampler.name
        self._of_class = bool(job.search.sampler.of_class)
        self._of_tune = job.search.sampler.of_tune
        self._asks = job.search.suggests
        self._unbounded = {f"constraints:{constraint.metric}": math.inf for constraint in job.search.constraints}
        self._signs = [-1.0 if direction == StudyDirection.MAXIMIZE else 1.0 for direction in self.directions]
        self._worst: dict[int, FrozenTrial] = {}  # failed trials as the sampler is shown them
        self._shapes: set[frozenset[str]] = set()  # names of the parameters for which trials that completed have asked
        # Finished trials that the sampler reads: the losses of feasible ones, and the sort keys of the others.
        self._losses: dict[int, list[float]] = {}
        self._sort_keys: dict[int, tuple[float, ...]] = {}
        self._unfinished: set[int] = set()
        self._hidden: set[int] = set()
        self._view: list[int] | None = None  # numbers of the finished trials shown; rebuilt after each end
        for trial in earlier:
            self._sort(trial)

    def hide(self, number: int) -> None:
        """Do not show the sampler a trial: its parameters are not those of the study's space any more."""
        self._hidden.add(number)

    def ended(self, trial: FrozenTrial, is_bad: bool) -> None:
        """Record that a trial has finished.

        Args:
            trial: in this memory.
            is_bad: whether it has no values by its own fault. The sampler is then shown the worst values that there are,
                beyond all constraints.
        """
        number = trial.number
        self._unfinished.discard(number)
        self._view = None
        if self._asks and trial.state == TrialState.COMPLETE:
            self._add_shape(frozenset(trial.params))
        learns = self._of_class or self._sampler in points.WORST
        if is_bad and learns and not any(trial.params.keys() < shape for shape in self._shapes):
            shown = self._worst[number] = self._as_worst(trial)
            trial = trial if self._of_class else shown
        self._sort(trial)

    def _sort(self, trial: FrozenTrial) -> None:
        """Notes the values of a finished trial, by which the trials are chosen that the sampler is shown."""
        number = trial.number
        if number in self._hidden:
            return
        if trial.state == TrialState.COMPLETE and not _violation(trial):
            self._losses[number] = self._loss(trial)
        elif trial.state == TrialState.COMPLETE or (trial.state == TrialState.PRUNED and self._sampler == "tpe"):
            self._sort_keys[number] = self._sort_key(trial)

    def replace(self, trial_id: int, attempt: FrozenTrial) -> None:
        """Replace an attempt that has ended with another; the trial is unfinished until `ended` is called."""
        before = self.get_trial(trial_id)
        attempt.number, attempt._trial_id = before.number, trial_id
        study_id, _ = self._trial_id_to_study_id_and_number[trial_id]
        self._set_trial(trial_id, attempt)
        self._update_cache(trial_id, study_id)  # of the best trial
        self._forget(before.number)
        self._unfinished.add(before.number)
        self._view = None

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """A new trial, which is unfinished until `ended` is called."""
        trial_id = super().create_new_trial(study_id, template_trial)
        self._unfinished.add(self.get_trial_number_from_id(trial_id))
        return trial_id

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """All trials, or those that the sampler is shown."""
        bounded = self._sampler in BOUNDED and len(self._losses) + len(self._sort_keys) > LIMIT
        if not self.drawing or not (bounded or self._worst or self._earlier or self._hidden):
            return super().get_all_trials(study_id, deepcopy, states)
        trials = super().get_all_trials(study_id, deepcopy=False)
        if bounded:
            by_number = self._earlier | {trial.number: trial for trial in trials}
            self._view = self._view or self._selected(by_number)
            trials = [by_number[number] for number in sorted({*self._view, *self._unfinished})]
        else:
            trials = [*self._earlier.values(), *trials]
        worst = self._finite_worst() if self._of_class and not self._of_tune else self._worst
        shown = (worst.get(trial.number, trial) for trial in trials if trial.number not in self._hidden)
        return [trial for trial in shown if states is None or trial.state in states]

    def _add_shape(self, names: frozenset[str]) -> None:
        """Forget trials that failed before they asked for all of `names`.

        Samplers draw together the parameters that all trials have, and would do without the others from then on.
        """
        if names not in self._shapes:
            self._shapes.add(names)
            for number in [number for number, trial in self._worst.items() if trial.params.keys() < names]:
                self._forget(number)

    def _forget(self, number: int) -> None:
        self._worst.pop(number, None)
        self._losses.pop(number, None)
        self._sort_keys.pop(number, None)

    def _as_worst(self, trial: FrozenTrial) -> FrozenTrial:
        worst = copy.copy(trial)
        if self._of_tune:
            worst.system_attrs = {**trial.system_attrs, points.BAD: True}
            return worst
        worst.state = TrialState.COMPLETE if self._of_class else points.WORST[self._sampler]
        worst.values = [sign * math.inf for sign in self._signs] if worst.state == TrialState.COMPLETE else None
        worst.intermediate_values = {}
        worst.system_attrs = {**trial.system_attrs, **self._unbounded}
        return worst

    def _finite_worst(self) -> dict[int, FrozenTrial]:
        """The trials in `_worst` with the worst values so far, as not every class can learn from infinity.

        Without any value they are shown as failed.
        """
        if not self._losses:
            return {}
        losses = [max(losses) for losses in zip(*self._losses.values(), strict=True)]
        shown = {number: copy.copy(trial) for number, trial in self._worst.items()}
        for trial in shown.values():
            trial.values = [sign * loss for sign, loss in zip(self._signs, losses, strict=True)]
            trial.system_attrs = {**trial.system_attrs, **dict.fromkeys(self._unbounded, 1.0)}
        return shown

    def _loss(self, trial: FrozenTrial) -> list[float]:
        """The values of the objectives with signs such that smaller is better."""
        return [sign * value for sign, value in zip(self._signs, trial.values, strict=True)]

    def _sort_key(self, trial: FrozenTrial) -> tuple[float, ...]:
        """The order behind the feasible trials, as in TPE: pruned ones by steps and report, then by violation."""
        if violation := _violation(trial):
            return 2, violation
        if not trial.intermediate_values:
            return (1,)
        step, report = max(trial.intermediate_values.items())
        return 0, -step, math.inf if math.isnan(report) else self._signs[0] * report

    def _selected(self, trials: Mapping[int, FrozenTrial]) -> list[int]:
        """Numbers of the finished trials that are shown: the best, and an even sample of the others."""
        best: list[int] = []
        feasible = np.array(sorted(self._losses), dtype=int)
        ranks = _fast_non_domination_rank(np.array([self._losses[number] for number in feasible]), n_below=BEST)
        for rank in range(ranks.max(initial=-1) + 1):
            front = [trials[number] for number in feasible[ranks == rank]]
            if len(best) + len(front) > BEST:
                _crowding_distance_sort(front)
            best += [trial.number for trial in front][: BEST - len(best)]
            if len(best) == BEST:
                break
        best += sorted(self._sort_keys, key=lambda number: (self._sort_keys[number], number))[: BEST - len(best)]
        candidates = sorted((self._losses.keys() | self._sort_keys.keys()).difference(best))
        sample_size = LIMIT - BEST
        return best + [candidates[index * len(candidates) // sample_size] for index in range(sample_size)]


def _violation(trial: FrozenTrial) -> float:
    """The amount by which a trial violates its constraints; 0 if it is feasible."""
    return float(sum(excess for excess in trial.constraints.values() if excess > 0))
