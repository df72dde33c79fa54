"""Trials of earlier runs for a new one: history for its sampler, and results that it takes over. Pure.

A trial of an earlier study is mapped to the space of the new one. Results are taken over only from a job with the same
`training_digest`, whose trials would be trained in the same way.
"""

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

# Fields that do not affect a trial with given parameters: they choose the trials, their number, and where they run.
IGNORED_FIELDS = frozenset(
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


def training_digest(job: Job) -> str:
    """Return a digest of all fields of a job that affect the result of a trial with given parameters, and of its seed."""
    fields = job.model_dump(mode="json", exclude=set(IGNORED_FIELDS))
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def refusal(old: Job, new: Job) -> str:
    """Return the reason why the sampler of a new job cannot learn from the trials of an old one. "" if it can."""
    if old.kind != "hpo":
        return f"is a {old.title}, and the sampler of a study learns from studies"
    if old.objectives_text != new.objectives_text:
        return f"has other objectives: {old.objectives_text}, and this job has {new.objectives_text}"
    return ""


class HistoryMapper:
    """Mapper of the trials of an earlier study to the space of a new one.

    A parameter that was fixed in the earlier study has this value in all of its trials. A trial is left out if a value is
    outside of the new space, or if it lacks a parameter. Only TPE, which draws parameters one by one, learns from trials
    that lack some.

    Args:
        run: Name of the earlier study.
        old: Job of the earlier study.
        new: The new job.
        rows: Newest attempt of each trial of the earlier study.

    Attributes:
        trials: Trials from which the sampler learns.
    """

    def __init__(self, run: str, old: Job, new: Job, rows: Iterable[TrialRow]) -> None:
        self.trials: list[EarlierTrial] = []
        self._run, self._old, self._new = run, old, new
        self._omitted = collections.Counter[str]()  # reason → number of trials
        self._ignored: dict[str, None] = {}  # names of parameters that the new study does not search
        for row in rows:
            trial = self._trial(row)
            if trial is not None:
                self.trials.append(trial)

    def notes(self) -> Iterator[str]:
        """Yield remarks for the user: the numbers of trials and the parameters, then the reasons why trials are left out."""
        names = [name for name in self._new.search.names if any(name in trial.params for trial in self.trials)]
        missing = [name for name in self._new.search.names if name not in names]
        text = f"history: {errors.counted(len(self.trials), 'trial')} of {self._run}"
        if names:
            text += f", with {', '.join(names)}"
        if missing:
            text += f"; without {', '.join(missing)}"
        if self._ignored:
            text += f"; not in the space, and so ignored: {', '.join(self._ignored)}"
        yield text
        for reason, number in self._omitted.items():
            yield f"history: {errors.counted(number, 'trial')} of {self._run} left out: {reason}"

    def _trial(self, row: TrialRow) -> EarlierTrial | None:
        """Return a trial in the new space. None if it is left out.

        The reason is counted for `notes`, except for a trial without a result that depends on its parameters.
        """
        # Some parameters make the job's code fail, so such a failure is a bad result. Other failures have other causes.
        is_bad = row.state is TrialState.FAILED and row.failure is not None and FAILURE_RULES[row.failure].counts
        if row.state not in (TrialState.COMPLETE, TrialState.PRUNED) and not is_bad:
            return None
        constrained = [constraint.metric for constraint in self._new.search.constraints]
        missing_metrics = [metric for metric in constrained if metric not in row.metrics]
        if row.state is TrialState.COMPLETE and missing_metrics:
            self._omitted[f"it has no {missing_metrics[0]}, which is constrained here"] += 1
            return None
        old_params = {**self._old.params, **row.params}
        params: dict[str, Any] = {}
        for name, parameter in self._new.search.parameters.items():
            if not space.is_active(parameter, params):
                continue
            if name not in old_params:
                if self._new.search.sampler.accepts_partial_trials:
                    continue
                self._omitted[f"it has no {name}, which {self._new.search.sampler.name} needs of every trial"] += 1
                return None
            if not parameter.contains(old_params[name]):
                self._omitted[f"its {name} is outside of the space"] += 1
                return None
            params[name] = old_params[name]
        self._ignored.update(dict.fromkeys(name for name in row.params if name not in self._new.search.names))
        if not params:
            self._omitted["it has none of the parameters"] += 1
            return None
        return EarlierTrial(
            run=self._run,
            trial=row.trial,
            params=params,
            values=row.values,
            metrics={metric: row.metrics[metric] for metric in self._new.required_metrics if metric in row.metrics},
            step=row.step or 0,
            pruned=row.state is TrialState.PRUNED,
        )


def results(run: str, job: Job, rows: Iterable[TrialRow], metrics: Iterable[str]) -> Iterator[EarlierTrial]:
    """Yield the complete trials of an earlier run. A new run uses their results for trials with the same parameters.

    Args:
        run: Name of the run.
        job: Job of the run.
        rows: Newest attempt of each trial.
        metrics: Metrics that a result must have.
    """
    required = set(metrics)
    for row in rows:
        if row.state is TrialState.COMPLETE and required <= row.metrics.keys():
            params: Mapping[str, Any] = {**job.params, **row.params}
            yield EarlierTrial(
                run=run,
                trial=row.trial,
                params=params,
                values=row.values,
                metrics=row.metrics,
                step=row.step or 0,
                returned=row.returned,
            )
