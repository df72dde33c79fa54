"""The memory of samplers and pruners: one Optuna trial per logical trial, of which a sampler sees a bounded part.

Optuna's storage exists only here, in memory. For each attempt the ledger stores a document from which its trial is restored
(`document`, `trial`), exact to the last bit.

Attempts that were stopped or lost are not in it: a retry takes the place of the attempt before. So its number, its order and
its share of all trials are those of an undisturbed study, on which samplers and pruners rely.

TPE's time to draw grows with the number of trials it considers (280 ms at 10,000 trials of 10 parameters, measured). It
needs the best ones and a fair sample of the rest, so it sees the best `BEST` and every k-th of the others, at most `LIMIT`
in all. The selection depends on the history alone, so that a resumed study sees the same.
"""

from __future__ import annotations

import bisect
import datetime
import functools
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

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
        `attributes`, which samplers keep; `reports`: value by step; `started` and `ended` in seconds since the epoch.
    """
    of_values = sign if trial.state == TrialState.PRUNED else 1.0  # the value of a pruned trial is its last report
    return {
        "state": trial.state.name,
        "values": None if trial.values is None else [_number(of_values * value) for value in trial.values],
        "params": {
            name: [trial.distributions[name].to_internal_repr(value), distribution_to_json(trial.distributions[name])]
            for name, value in trial.params.items()
        },
        "attributes": trial.system_attrs,
        "reports": {str(step): _number(sign * value) for step, value in trial.intermediate_values.items()},
        "started": None if trial.datetime_start is None else trial.datetime_start.timestamp(),
        "ended": None if trial.datetime_complete is None else trial.datetime_complete.timestamp(),
    }


def trial(number: int, document: Mapping[str, Any], sign: float = 1.0) -> FrozenTrial:
    """The trial restored from its document, see `document`; equal distributions are one object."""
    of_values = sign if document["state"] == TrialState.PRUNED.name else 1.0
    distributions = {name: _distribution(text) for name, (_, text) in document["params"].items()}
    values = document["values"]
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=TrialState[document["state"]],
        value=None,
        values=None if values is None else [of_values * float(value) for value in values],
        datetime_start=_local(document["started"]),
        datetime_complete=_local(document["ended"]),
        params={name: distributions[name].to_external_repr(value) for name, (value, _) in document["params"].items()},
        distributions=distributions,
        user_attrs={},
        system_attrs=dict(document["attributes"]),
        intermediate_values={int(step): sign * float(value) for step, value in document["reports"].items()},
    )


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)  # in the form that `float()` reads; JSON has no such numbers


def _local(moment: float | None) -> datetime.datetime | None:
    """Optuna's times are naive and local."""
    return None if moment is None else datetime.datetime.fromtimestamp(moment)


class History(optuna.storages.InMemoryStorage):
    """All trials of one study; `get_all_trials` shows at most `LIMIT` finished ones while `bounded` is set."""

    def __init__(self, directions: Sequence[StudyDirection]) -> None:
        super().__init__()
        self.bounded = False
        self._signs = [-1.0 if direction == StudyDirection.MAXIMIZE else 1.0 for direction in directions]
        self._order: list[tuple[float, int]] = []  # (loss, number) of finished trials, best first
        self._unfinished: set[int] = set()
        self._view: list[int] | None = None  # numbers of the finished trials shown; rebuilt after each end

    def ended(self, trial: FrozenTrial) -> None:
        """Records that a trial has finished."""
        bisect.insort(self._order, (self._loss(trial), trial.number))
        self._unfinished.discard(trial.number)
        self._view = None

    def replace(self, trial_id: int, attempt: FrozenTrial) -> None:
        """Replaces an attempt that has ended with another; the trial is unfinished until `ended` is called."""
        before = self.get_trial(trial_id)
        attempt.number, attempt._trial_id = before.number, trial_id
        study_id, _ = self._trial_id_to_study_id_and_number[trial_id]
        self._set_trial(trial_id, attempt)
        self._update_cache(trial_id, study_id)  # of the best trial
        self._order.remove((self._loss(before), before.number))
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
        """All trials, or the bounded part of them."""
        if not self.bounded or len(self._order) <= LIMIT:
            return super().get_all_trials(study_id, deepcopy, states)
        if self._view is None:
            best = [number for _, number in self._order[:BEST]]
            rest = sorted(number for _, number in self._order[BEST:])
            stride = -(-len(rest) // (LIMIT - BEST))
            self._view = sorted(best + rest[::stride])
        trials: list[Any] = super().get_all_trials(study_id, deepcopy=False)
        shown = (trials[number] for number in sorted({*self._view, *self._unfinished}))
        return [trial for trial in shown if states is None or trial.state in states]

    def _loss(self, trial: FrozenTrial) -> float:
        """Smaller is better; several objectives are summed, infeasible and failed trials come last."""
        if trial.state != TrialState.COMPLETE or any(excess > 0 for excess in trial.constraints.values()):
            return float("inf")
        return float(sum(sign * value for sign, value in zip(self._signs, trial.values or [], strict=True)))
