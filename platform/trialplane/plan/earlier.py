"""Trials of earlier studies in the space of a new one, and whether two jobs train alike. Pure."""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trialplane import errors
from trialplane.job import space
from trialplane.job.kinds import Job
from trialplane.wire.earlier import EarlierTrial
from trialplane.wire.records import TrialRow
from trialplane.wire.states import FAILURE_RULES, TrialState

# Fields that decide which trials there are, how many at a time and where, and not what one of them does.
_SEARCH = frozenset(
    [
        "name",
        "description",
        "space",
        "sampler",
        "pruner",
        "constraints",
        "trials",
        "parallel",
        "keep",
        "enqueue",
        "history",
        "reuse",
        "duplicates",
        "budget",
        "retries",
        "notify",
        "cluster",
        "params",
        "checkpoints",
        "requirements",
        "install",
    ]
)


def trains_alike(job: Job) -> str:
    """Return a digest of all fields that decide what a trial with given parameters does; its seed is among them."""
    fields = job.model_dump(mode="json", exclude=set(_SEARCH))
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def refusal(old: Job, new: Job) -> str:
    """Return why trials of a study say nothing to the sampler of another, or ""."""
    if old.kind != "hpo":
        return f"is a {old.title}, and the sampler of a study learns from studies"
    objectives = [
        ", ".join(f"{objective.direction} {objective.metric}" for objective in job.objectives) for job in (old, new)
    ]
    return f"has other objectives: {objectives[0]}, and this job has {objectives[1]}" if len(set(objectives)) > 1 else ""


class Mapped:
    """The trials of an earlier study in the space of a new one.

    A parameter that the earlier study had fixed counts with that value. A trial is left out if a value is outside of the new
    space, or if it lacks a parameter; TPE draws parameters one by one, and so learns from trials that lack some.

    Args:
        run: name of the earlier study.
        old: its job.
        new: the new job.
        rows: the newest attempt of each of its trials.

    Attributes:
        trials: the ones that the sampler is shown.
    """

    def __init__(self, run: str, old: Job, new: Job, rows: Iterable[TrialRow]) -> None:
        self.trials: list[EarlierTrial] = []
        self._run, self._old, self._new = run, old, new
        self._left_out = collections.Counter[str]()
        self._unsearched: dict[str, None] = {}
        for row in rows:
            trial = self._trial(row)
            if trial is not None:
                self.trials.append(trial)

    def notes(self) -> Iterator[str]:
        """Yield what the user should know of the mapping."""
        names = [name for name in self._new.search.names if any(name in trial.params for trial in self.trials)]
        missing = [name for name in self._new.search.names if name not in names]
        text = f"history: {errors.counted(len(self.trials), 'trial')} of {self._run}"
        text += f", with {', '.join(names)}" if names else ""
        if missing:
            text += f"; without {', '.join(missing)}"
        if self._unsearched:
            text += f"; {', '.join(self._unsearched)} is not searched here, and its values are ignored"
        yield text
        for reason, number in self._left_out.items():
            yield f"history: {errors.counted(number, 'trial')} of {self._run} left out: {reason}"

    def _trial(self, row: TrialRow) -> EarlierTrial | None:
        bad = row.state is TrialState.FAILED and row.failure is not None and FAILURE_RULES[row.failure].counts
        if row.state not in (TrialState.COMPLETE, TrialState.PRUNED) and not bad:
            return None
        lacking = [constraint.metric for constraint in self._new.search.constraints if constraint.metric not in row.metrics]
        if row.state is TrialState.COMPLETE and lacking:
            self._left_out[f"it has no {lacking[0]}, which is constrained here"] += 1
            return None
        had = {**self._old.params, **row.params}
        params: dict[str, Any] = {}
        for name, parameter in self._new.search.parameters.items():
            if not space.is_active(parameter, params):
                continue
            if name not in had:
                if self._new.search.sampler.takes_parts:
                    continue
                self._left_out[f"it has no {name}, which {self._new.search.sampler.name} needs of every trial"] += 1
                return None
            if not parameter.holds(had[name]):
                self._left_out[f"its {name} is outside of the space"] += 1
                return None
            params[name] = had[name]
        self._unsearched.update(dict.fromkeys(name for name in row.params if name not in self._new.search.names))
        if not params:
            self._left_out["it has none of the parameters"] += 1
            return None
        return EarlierTrial(
            self._run,
            row.trial,
            params,
            row.values,
            {metric: row.metrics[metric] for metric in self._new.required_metrics if metric in row.metrics},
            row.step or 0,
            row.state is TrialState.PRUNED,
        )


def results(run: str, job: Job, rows: Iterable[TrialRow], metrics: Iterable[str]) -> Iterator[EarlierTrial]:
    """Yield the complete trials of an earlier run that answer for the same parameters.

    Args:
        run: name of the run.
        job: its job.
        rows: the newest attempt of each trial.
        metrics: those that a result must have.
    """
    required = set(metrics)
    for row in rows:
        if row.state is TrialState.COMPLETE and required <= row.metrics.keys():
            params: Mapping[str, Any] = {**job.params, **row.params}
            yield EarlierTrial(run, row.trial, params, row.values, row.metrics, row.step or 0, returned=row.returned)
