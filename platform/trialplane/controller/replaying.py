"""Replay of a study for a sampler that keeps what it has learned in its own memory.

Optuna's samplers read the study each time. A class of another package may not, and a searcher of Ray Tune never does. So
each trial that such a sampler draws stores which trials had ended since the draw before it. A later controller makes a new
sampler, and lets it draw the same trials with the same ends between them, in a study that is thrown away.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from trialplane import errors
from trialplane.controller import history, points, samplers
from trialplane.job.kinds import Job

log = logging.getLogger(__name__)

TOLD = "trialplane:told"  # attribute of a trial: numbers of the trials that ended between the draw before it and its own
_FIXED = "fixed_params"  # Optuna's attribute of an enqueued trial


def replay(
    job: Job,
    memory: history.History,
    sampler: optuna.samplers.BaseSampler,
    trials: Sequence[FrozenTrial],
    untold: Sequence[int],
    bad: Collection[int],
    function: Callable[..., Any] | None,
) -> None:
    """Let a new sampler draw what one of a former controller has drawn.

    Args:
        job: of the study.
        memory: a new one.
        sampler: the new one.
        trials: all that were drawn, in order.
        untold: numbers of those that have ended since the last was drawn, in order.
        bad: numbers of those that have failed by their own fault.
        function: of the space, if it is code.
    """
    study_id = memory.create_new_study(memory.directions, "replay")
    study = optuna.Study("replay", memory, sampler=sampler)
    others = []
    for trial in trials:
        for number in trial.system_attrs.get(TOLD, ()):
            _end(study, memory, trials[number], is_bad=number in bad)
        if _FIXED in trial.system_attrs:
            study.enqueue_trial(trial.system_attrs[_FIXED])
        memory.drawing = True
        with points.seeded_globally(samplers.derived_seed(job.seed, trial.number)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as when the trial was drawn
            drawn = study.ask()
            samplers.suggest(drawn, job, function)
        memory.drawing = False
        again = memory.get_trial(memory.get_trial_id_from_study_id_trial_number(study_id, trial.number))
        if not points.is_same(again.params, trial.params):
            others.append(trial.number)
            running = copy.copy(trial)
            running.state, running.values, running.datetime_complete = TrialState.RUNNING, None, None
            memory.replace(again._trial_id, running)
    for number in untold:
        _end(study, memory, trials[number], is_bad=number in bad)
    if others:
        log.warning(
            "the sampler %s draws %s otherwise than before the run was resumed, so it has no seed; it goes on from there",
            *(job.search.sampler.of_class, errors.counted(len(others), "trial")),
        )


def _end(study: optuna.Study, memory: history.History, trial: FrozenTrial, *, is_bad: bool) -> None:
    ended = copy.copy(trial)
    trial_id = memory.get_trial_id_from_study_id_trial_number(study._study_id, trial.number)
    study.sampler.after_trial(study, memory.get_trial(trial_id), ended.state, ended.values)
    memory.replace(trial_id, ended)
    memory.ended(ended, is_bad)
