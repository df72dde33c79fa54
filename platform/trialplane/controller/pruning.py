"""The pruner, the metric of the reports that it compares trials by, and whether that metric comes at all."""

from __future__ import annotations

from collections.abc import Mapping

import optuna
from optuna.study import StudyDirection

from trialplane import errors
from trialplane.controller import samplers
from trialplane.controller.history import History
from trialplane.controller.samplers import JobCode
from trialplane.spec.jobs import Job
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import TrialState

MANY = 100  # reports of a study without the watched metric, after which it need not be waited for until a trial has a result
_MOST_NAMES = 5  # of other metrics, in a message


class Pruning:
    """Decides which running trials end early.

    Args:
        job: says which pruner there is and what it watches.
        memory: the trials of the study.
        code: the job's, for options that are functions.

    Attributes:
        pruner: Optuna's.
        has_come: whether any report of the study had the watched metric.
    """

    def __init__(self, job: Job, memory: History, code: JobCode) -> None:
        self.pruner = samplers.build_pruner(job, code)
        self.has_come = False
        self._job = job
        self._memory = memory
        self._watched = job.search.watched(job.objectives[0])
        self._other = self._watched.direction != job.objectives[0].direction
        self._reports = 0
        self._names: dict[str, None] = {}  # metrics that came instead, in their order
        self._has_result = False
        self._told = ""

    def report(self, study: optuna.Study, trial: optuna.trial.Trial, step: int, metrics: Mapping[str, float]) -> bool:
        """Takes the metrics of one step of a running trial; True when the trial is to end.

        Args:
            study: that the trial is of.
            trial: that reports.
            step: epoch or optimizer step; of a step reported twice the first report counts.
            metrics: by name.
        """
        watched = self._watched.metric
        if watched not in metrics:
            self._reports += 1
            if len(self._names) < _MOST_NAMES:
                self._names.update(dict.fromkeys(metrics))
            return False
        self.has_come = True
        try:
            trial.report(metrics[watched], step)
        except ValueError:  # a step that Optuna does not take; MLflow may
            return False
        if not self._other:
            return bool(trial.should_prune())
        # Optuna's pruners ask the study, and studies made of it the storage, which way is better.
        self._memory.judged_by = StudyDirection[self._watched.direction.upper()]
        try:
            judged = optuna.Study(study.study_name, self._memory, sampler=study.sampler, pruner=self.pruner)
            return bool(self.pruner.prune(judged, self._memory.get_trial(trial._trial_id)))
        finally:
            self._memory.judged_by = None

    def ended(self, outcome: TrialOutcome) -> None:
        """Takes note of the end of an attempt."""
        self._has_result = self._has_result or outcome.state is TrialState.COMPLETE

    @property
    def complaint(self) -> str:
        """Why no trial can be pruned, once there should have been a report of the watched metric; "" else."""
        if self._job.search.pruner.name == "none" or self.has_come or not (self._has_result or self._reports >= MANY):
            return ""
        self._told = self._told or self._why()  # in the words of that moment, so that it is one complaint
        return self._told

    def _why(self) -> str:
        watched = self._watched.metric
        cure = f"report it, ctx.report(step, {watched}=…)" if watched.isidentifier() else "report it"
        if self._names:
            names = list(self._names)[:_MOST_NAMES]
            came = f"{errors.counted(self._reports, 'report')} had {', '.join(names)}"
            cure += f", or write pruner: {{name: {self._job.search.pruner.name}, metric: {names[0]}}}"
        else:
            came = "no trial has reported anything"
        return f"nothing is pruned: the {self._job.search.pruner.name} pruner watches {watched}, and {came}; {cure}"
