"""The pruner, the reported metric by which it compares trials, and whether that metric is reported at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from trialplane import errors
from trialplane.controller import samplers
from trialplane.controller.samplers import JobCode
from trialplane.job.kinds import Job
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import TrialState

MANY = 100  # reports without the watched metric after which it counts as missing, even before a trial has a result
_MOST_NAMES = 5  # other metrics listed in a message
_RUNG = "completed_rung_"  # attributes in which Optuna's halving pruners keep how far a trial has come
_RESOURCE = "trialplane:resource"  # attribute of a study: what a pruner estimated for "auto"
# Where Optuna's pruners keep that.
_ESTIMATES: Mapping[type, str] = {
    optuna.pruners.HyperbandPruner: "_max_resource",
    optuna.pruners.SuccessiveHalvingPruner: "_min_resource",
}


class Pruning:
    """Decides which running trials end early.

    Args:
        job: names the pruner and the metric it watches.
        code: of the job, for options that are functions.

    Attributes:
        pruner: Optuna's.
        sign: factor of the reports in Optuna's memory. Its pruners, and TPE, which ranks pruned trials by their reports,
            compare them in the direction of the objective; so a metric of the opposite direction is negated.
        has_come: whether any report of the study had the watched metric.
    """

    def __init__(self, job: Job, code: JobCode) -> None:
        self.pruner = samplers.build_pruner(job, code)
        self.sign = -1.0 if job.search.opposes(job.objectives[0]) else 1.0
        self.has_come = False
        self._halving: optuna.pruners.BasePruner | None = self.pruner
        while isinstance(self._halving, optuna.pruners.PatientPruner):
            self._halving = self._halving._wrapped_pruner
        self._estimated = _ESTIMATES.get(type(self._halving), "")
        self._former: dict[int, FrozenTrial] = {}  # id of a trial → its last attempt with reports
        self._job = job
        self._watched = job.search.watched(job.objectives[0])
        self._reports = 0
        self._names: dict[str, None] = {}  # metrics reported instead, in order
        self._has_result = False
        self._complaint = ""

    def report(self, trial: optuna.trial.Trial, step: int, metrics: Mapping[str, float]) -> bool:
        """Take the metrics of one step of a running trial; True when the trial is to end.

        Args:
            trial: the one that reports.
            step: epoch or optimizer step; if one is reported twice, the first report counts.
            metrics: by name.
        """
        watched = self._watched.metric
        if watched not in metrics:
            self._reports += 1
            if len(self._names) < _MOST_NAMES:
                self._names.update(dict.fromkeys(metrics))
            return False
        self.has_come = True
        if (previous := self._continued(trial._trial_id, step)) is not None:
            self._continue(trial, step, previous)
        try:
            trial.report(self.sign * metrics[watched], step)
        except ValueError:  # a step that Optuna does not accept; MLflow may
            return False
        prunes = bool(trial.should_prune())
        if isinstance(estimate := getattr(self._halving, self._estimated, None), int):
            trial.storage.set_study_system_attr(trial.study._study_id, _RESOURCE, estimate)
        return prunes

    def restore(self, attributes: Mapping[str, Any]) -> None:
        """Restore what the pruner estimated under a former controller, from the study's attributes."""
        if self._estimated and _RESOURCE in attributes:
            setattr(self._halving, self._estimated, attributes[_RESOURCE])

    def replaced(self, trial_id: int, attempt: FrozenTrial) -> dict[str, Any]:
        """Take an attempt that is retried; return its attributes without those of the pruner.

        A retry that starts over is judged from its first report on. One that continues from a checkpoint, and so reports a
        later step first, gets the reports and the rungs of the attempt before.
        """
        if attempt.intermediate_values:
            self._former[trial_id] = attempt
        return {key: value for key, value in attempt.system_attrs.items() if not key.startswith(_RUNG)}

    def restored(self, trial_id: int, curve: dict[int, float]) -> dict[int, float]:
        """The reports of a retry under a former controller, with those of the attempt before where it continues that one."""
        first_step = next(iter(curve), -1)
        previous = self._continued(trial_id, first_step) if curve else None
        if previous is None:
            return curve
        return {step: value for step, value in previous.intermediate_values.items() if step < first_step} | curve

    def _continued(self, trial_id: int, step: int) -> FrozenTrial | None:
        """The attempt that a retry continues, if its first report is of this step; asked for once."""
        previous = self._former.pop(trial_id, None)
        return previous if previous is not None and step > min(previous.intermediate_values) else None

    def _continue(self, trial: optuna.trial.Trial, step: int, previous: FrozenTrial) -> None:
        for earlier, value in previous.intermediate_values.items():
            if earlier < step:
                trial.report(value, earlier)
        for key, value in previous.system_attrs.items():
            if key.startswith(_RUNG):
                trial.storage.set_trial_system_attr(trial._trial_id, key, value)

    def ended(self, outcome: TrialOutcome) -> None:
        """Record the end of an attempt."""
        self._has_result = self._has_result or outcome.state is TrialState.COMPLETE

    @property
    def complaint(self) -> str:
        """The reason why no trial can be pruned, once the watched metric should have been reported; otherwise ""."""
        if self._job.search.pruner.name == "none" or self.has_come or not (self._has_result or self._reports >= MANY):
            return ""
        self._complaint = self._complaint or self._complaint_text()  # fixed at that moment, so that it stays one complaint
        return self._complaint

    def _complaint_text(self) -> str:
        watched = self._watched.metric
        advice = f"report it, ctx.report(step, {watched}=…)" if watched.isidentifier() else "report it"
        if self._names:
            names = list(self._names)[:_MOST_NAMES]
            reported = f"{errors.counted(self._reports, 'report')} had {', '.join(names)}"
            advice += f", or write pruner: {{name: {self._job.search.pruner.name}, metric: {names[0]}}}"
        else:
            reported = "no trial has reported anything"
        return f"nothing is pruned: the {self._job.search.pruner.name} pruner watches {watched}, and {reported}; {advice}"
