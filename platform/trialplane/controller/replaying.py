"""Replays a study, to restore the memory of a sampler after a restart of the controller.

Optuna's samplers read the study before each draw. Classes of other packages may instead store in memory what they have
learned, as searchers of Ray Tune do. Each attempt in the ledger names the attempts that have ended since the one before it
started. So a later controller creates a new sampler and a temporary study, in which the sampler draws the same trials again,
and sees the same ends and continuations of paused trials between them.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from trialplane import errors
from trialplane.controller import history, points, samplers
from trialplane.job.kinds import Job

log = logging.getLogger(__name__)

_FIXED = "fixed_params"  # Optuna's attribute of an enqueued trial: the parameters that the sampler does not draw


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of an attempt.

    Attributes:
        trial: Its trial.
        is_drawn: Whether it was drawn. Otherwise it was paused and continues.
    """

    trial: FrozenTrial
    is_drawn: bool


@dataclasses.dataclass(frozen=True)
class End:
    """The end of an attempt.

    Attributes:
        trial: Its trial, as it was then. If it was paused, it may have continued later.
        is_bad: Whether it has failed by its own fault.
    """

    trial: FrozenTrial
    is_bad: bool


def replay(
    job: Job,
    memory: history.History,
    sampler: optuna.samplers.BaseSampler,
    events: Iterable[Start | End],
    space_function: Callable[..., Any] | None,
) -> None:
    """Let a new sampler draw the trials that the sampler of an earlier controller has drawn, in a temporary study.

    A sampler without a seed may draw other parameters. The temporary study then gets the trial with its real parameters, as
    one that still runs, and a warning is logged.

    Args:
        job: Job of the study.
        memory: Empty memory for the temporary study.
        sampler: New sampler.
        events: Starts and ends of the study, in order, without those of attempts that were retried.
        space_function: Function that defines the space; None if the job lists the parameters.
    """
    memory.create_new_study(memory.directions, "replay")
    study = optuna.Study("replay", memory, sampler=sampler)
    different: list[int] = []  # numbers of trials for which the new sampler draws other parameters
    for event in events:
        trial = event.trial
        if isinstance(event, End):
            _replay_end(study, memory, event)
            continue
        if event.is_drawn:
            replayed = _replay_draw(study, memory, job, trial, space_function)
            if points.is_same(replayed.params, trial.params):
                continue
            different.append(trial.number)
        # A trial that was drawn otherwise gets its real parameters, and a paused trial that continues runs again.
        running = copy.copy(trial)
        running.state, running.values, running.datetime_complete = OptunaState.RUNNING, None, None
        memory.replace(memory.get_trial_id_from_study_id_trial_number(study._study_id, trial.number), running)
    if different:
        log.warning(
            "the sampler %s draws %s otherwise than before the run was resumed, so it has no seed; it goes on from there",
            job.search.sampler.class_path,
            errors.counted(len(different), "trial"),
        )


def _replay_draw(
    study: optuna.Study,
    memory: history.History,
    job: Job,
    trial: FrozenTrial,
    space_function: Callable[..., Any] | None,
) -> FrozenTrial:
    """Let the sampler draw a trial of the temporary study again, with the seed that it had; return the drawn trial.

    For the arguments see `replay`.
    """
    if _FIXED in trial.system_attrs:
        study.enqueue_trial(trial.system_attrs[_FIXED])
    seed = samplers.derived_seed(job.seed, trial.number)
    with memory.sampler_view(), points.seed_globally(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first draw of the trial has already warned
        samplers.draw_parameters(study.ask(), job, space_function)
    return memory.get_trial(memory.get_trial_id_from_study_id_trial_number(study._study_id, trial.number))


def _replay_end(study: optuna.Study, memory: history.History, end: End) -> None:
    """Tell the sampler of the temporary study the end of a trial, and record it in the study's memory."""
    ended = copy.copy(end.trial)  # `record_end` changes it
    trial_id = memory.get_trial_id_from_study_id_trial_number(study._study_id, ended.number)
    study.sampler.after_trial(study, memory.get_trial(trial_id), ended.state, ended.values)
    memory.replace(trial_id, ended)
    memory.record_end(ended, end.is_bad)
