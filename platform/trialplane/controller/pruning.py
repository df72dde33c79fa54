"""The pruner of a study, which ends bad trials by their reports, and a warning if no trial reports the metric it watches.

Optuna's pruner judges the reports in Optuna's memory. This module passes them there, also when a retry continues an attempt
whose reports it must keep, and when a controller restores them from the ledger.
"""

from __future__ import annotations

import warnings
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

MANY_UNWATCHED = 100  # reports without the watched metric, after which it is missing although no trial has a result yet
_MOST_NAMES = 5  # other metrics listed in a message
_RUNG = "completed_rung_"  # prefix of the attributes in which Optuna's halving pruners store the rungs of a trial
_RESOURCE = "trialplane:resource"  # attribute of a study with the resource that its pruner estimated for "auto"
# The attributes of Optuna's pruners that hold this estimate.
_ESTIMATES: Mapping[type, str] = {
    optuna.pruners.HyperbandPruner: "_max_resource",
    optuna.pruners.SuccessiveHalvingPruner: "_min_resource",
}


class Pruning:
    """Decides which running trials end early.

    Args:
        job: Job that names the pruner and the metric it watches.
        code: Code of the job, for options that are functions.

    Attributes:
        pruner: Optuna's pruner.
        sign: Factor of the reports in Optuna's memory, 1 or -1. Pruners compare reports in the direction of the objective,
            and so does TPE, which ranks pruned trials. So a watched metric with the opposite direction is negated.
        is_reported: Whether any report of the study had the watched metric.
    """

    def __init__(self, job: Job, code: JobCode) -> None:
        self.pruner = samplers.build_pruner(job, code)
        self.sign = -1.0 if job.search.opposes(job.objectives[0]) else 1.0
        self.is_reported = False
        # The pruner without the PatientPruners that may be around it.
        self._inner_pruner: optuna.pruners.BasePruner | None = self.pruner
        while isinstance(self._inner_pruner, optuna.pruners.PatientPruner):
            self._inner_pruner = self._inner_pruner._wrapped_pruner
        # Its attribute with the estimated resource; "" for a pruner that estimates none.
        self._estimate_name = _ESTIMATES.get(type(self._inner_pruner), "")
        self._replaced: dict[int, FrozenTrial] = {}  # id of a trial → its last attempt, until a retry reports
        self._job = job
        self._watched = job.search.watched_objective(job.objectives[0])
        self._unwatched_count = 0  # number of reports without the watched metric
        self._unwatched_names: dict[str, None] = {}  # names of the metrics in these reports, in order
        self._has_result = False  # whether any attempt is complete
        self._complaint = ""  # the complaint that was returned first; "" before that

    def report(self, trial: optuna.trial.Trial, step: int, metrics: Mapping[str, float]) -> bool:
        """Pass a report of a running trial to the pruner; return whether the pruner ends the trial.

        Args:
            trial: The trial that reports.
            step: Epoch or optimizer step. If a step is reported twice, the first report counts.
            metrics: Values of the report, by name.
        """
        if not self._job.watched_metric:  # trials are not compared, and Optuna copies all reports at each one
            return False
        watched = self._watched.metric
        if watched not in metrics:
            self._unwatched_count += 1
            if len(self._unwatched_names) < _MOST_NAMES:
                self._unwatched_names.update(dict.fromkeys(metrics))
            return False
        self.is_reported = True
        continued_attempt = self._take_continued_attempt(trial._trial_id, step)
        if continued_attempt is not None:  # this is the first report of a retry that continues from a checkpoint
            self._copy_reports(trial, step, continued_attempt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns of a step that is reported twice
            try:
                trial.report(self.sign * metrics[watched], step)
            except ValueError:  # Optuna refuses a negative step, for example; the ledger and MLflow still record the report
                return False
            is_pruned = bool(trial.should_prune())
        self._store_estimate(trial)
        return is_pruned

    def _store_estimate(self, trial: optuna.trial.Trial) -> None:
        """Store the resource that the pruner has estimated, as an attribute of the study, for a later controller."""
        if self._estimate_name:
            estimate = getattr(self._inner_pruner, self._estimate_name)
            if isinstance(estimate, int):  # it is "auto" or None before the first trials have ended
                trial.storage.set_study_system_attr(trial.study._study_id, _RESOURCE, estimate)

    def restore(self, attributes: Mapping[str, Any]) -> None:
        """Restore the resource that the pruner estimated under an earlier controller, from the study's attributes."""
        if self._estimate_name and _RESOURCE in attributes:
            setattr(self._inner_pruner, self._estimate_name, attributes[_RESOURCE])

    def replace_attempt(self, trial_id: int, attempt: FrozenTrial) -> dict[str, Any]:
        """Record that a retry replaces an attempt.

        A retry that starts over is judged by its own reports alone. A retry that continues from a checkpoint is recognized
        by its first report, which has a later step. It then gets the reports and the rungs of the attempt that it replaces.

        Args:
            trial_id: Id of the trial in memory.
            attempt: Attempt that the retry replaces.

        Returns:
            Attributes of the attempt that the retry has as well: all but those of the pruner.
        """
        if attempt.intermediate_values:  # without reports, the retry has none to get
            self._replaced[trial_id] = attempt
        return {key: value for key, value in attempt.system_attrs.items() if not key.startswith(_RUNG)}

    def restore_reports(self, trial_id: int, curve: dict[int, float]) -> dict[int, float]:
        """Return the reports of a retry that ran under an earlier controller, in the form of Optuna's memory.

        If the retry continued from a checkpoint, the earlier reports of the attempt that it replaced come first.

        Args:
            trial_id: Id of the trial in memory.
            curve: Value of the watched metric by step, as the retry reported it.
        """
        if not curve:
            return curve
        first_step = next(iter(curve))
        continued_attempt = self._take_continued_attempt(trial_id, first_step)
        if continued_attempt is None:
            return curve
        return {step: value for step, value in continued_attempt.intermediate_values.items() if step < first_step} | curve

    def _take_continued_attempt(self, trial_id: int, first_step: int) -> FrozenTrial | None:
        """Return the attempt that a retry continues from a checkpoint; None if the retry starts over.

        The attempt is returned only once: for later reports of the retry the result is None.

        Args:
            trial_id: Id of the trial in memory.
            first_step: Step of the retry's first report.
        """
        replaced_attempt = self._replaced.pop(trial_id, None)
        if replaced_attempt is None:
            return None
        starts_over = first_step <= min(replaced_attempt.intermediate_values)
        return None if starts_over else replaced_attempt

    def _copy_reports(self, retry: optuna.trial.Trial, first_step: int, continued_attempt: FrozenTrial) -> None:
        """Copy to a retry the rungs, and the reports before its first one, of the attempt that it continues."""
        for step, value in continued_attempt.intermediate_values.items():
            if step < first_step:
                retry.report(value, step)
        for key, value in continued_attempt.system_attrs.items():
            if key.startswith(_RUNG):
                retry.storage.set_trial_system_attr(retry._trial_id, key, value)

    def record_end(self, outcome: TrialOutcome) -> None:
        """Record the end of an attempt."""
        self._has_result = self._has_result or outcome.state is TrialState.COMPLETE

    @property
    def complaint(self) -> str:
        """A warning that no trial is pruned, if the watched metric should have been reported and was not; otherwise ""."""
        should_be_reported = self._has_result or self._unwatched_count >= MANY_UNWATCHED
        if self._job.search.pruner.name == "none" or self.is_reported or not should_be_reported:
            return ""
        # The text stays as it was at first, because each changed text would be one more warning.
        self._complaint = self._complaint or self._complaint_text()
        return self._complaint

    def _complaint_text(self) -> str:
        """Return the text of `complaint`, with the metrics that trials report instead."""
        watched = self._watched.metric
        advice = f"report it, ctx.report(step, {watched}=…)" if watched.isidentifier() else "report it"
        if self._unwatched_names:
            names = list(self._unwatched_names)[:_MOST_NAMES]
            reported = f"{errors.counted(self._unwatched_count, 'report')} had {', '.join(names)}"
            advice += f", or write pruner: {{name: {self._job.search.pruner.name}, metric: {names[0]}}}"
        else:
            reported = "no trial has reported anything"
        return f"nothing is pruned: the {self._job.search.pruner.name} pruner watches {watched}, and {reported}; {advice}"
