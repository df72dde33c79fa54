"""Draws the trials of a study by the job's sampler.

A trial that may not run is drawn again. It may not run if `duplicates` is redraw and an earlier trial has the same
parameters, or if `avoid_oom` predicts that it would be out of memory.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from trialplane import errors
from trialplane.controller import history, points, replaying, samplers
from trialplane.controller.memory_frontier import MemoryFrontier
from trialplane.job.kinds import Job
from trialplane.wire import earlier

log = logging.getLogger(__name__)

_REDRAWS = 100  # most redraws of one trial
_SAMPLER_REDRAWS = 10  # the first of these are by the job's sampler, which may draw the same point each time
_GP_REDRAWS = 2  # the same for gp, which fits its model for each of them
_AVOIDED = "trialplane:avoided"  # attribute of a study that holds `Drawing.avoided`


class Drawing:
    """Draws the trials of one study.

    Args:
        job: Resolved job.
        code: Code of the job, for spaces and options that are given as functions.
        study: The study in memory, whose sampler is set for each draw.
        memory: Its trials.
        earlier: Trials of earlier runs from which samplers learn.
        past_events: Function that yields the starts and ends of attempts so far, for a replay.
    """

    def __init__(
        self,
        job: Job,
        code: samplers.JobCode,
        study: optuna.Study,
        memory: history.History,
        earlier: Sequence[FrozenTrial],
        past_events: Callable[[], Iterable[replaying.Start | replaying.End]],
    ) -> None:
        self._job = job
        self._search = job.search
        self._code = code
        self._study = study
        self._memory = memory
        self._earlier = earlier
        self._past_events = past_events
        self._frontier = MemoryFrontier(job.search)
        self._point_keys: set[str] = set()  # keys of the points of all trials; empty if trials may repeat others

    def check_sampler(self) -> None:
        """Check before the first trial that the sampler can be built and the job's functions can be imported.

        Raises:
            EntrypointError: A function of the job cannot be imported.
            InputError: Optuna refuses the sampler, or a library that it needs is missing.
        """
        samplers.build_sampler(self._job, trial=0, code=self._code)
        _ = self._space_function  # this access imports it

    @functools.cached_property
    def _space_function(self) -> Callable[..., Any] | None:
        """The job's function that defines the space; None if the job lists the parameters."""
        return self._code.load(self._search.function) if self._search.function else None

    def draw(self, trial: int) -> tuple[optuna.trial.Trial, Mapping[str, Any]]:
        """Draw the trial with a number; return it as Optuna has it, and its parameters without the job's fixed ones.

        If the job enqueues a point for this trial, the sampler draws only the parameters that the point lacks.
        """
        self._set_sampler(trial)
        # A grid has the enqueued points as its first ones, see `samplers`.
        is_enqueued = trial < len(self._search.enqueue) and self._search.sampler.name != "grid"
        preset_values = self._search.enqueue[trial] if is_enqueued else {}  # values that the sampler does not draw
        if self._search.suggests:  # the objective requests its parameters later, and gets the fixed ones in the same way
            preset_values = {**self._job.params, **preset_values}
        if preset_values:
            self._study.enqueue_trial(samplers.encode_point(self._job, preset_values))
        with self._memory.sampler_view(), self._sampler_call(trial), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns of experimental features and fixed values, which jobs may use
            optuna_trial = self._study.ask()
            sampled: Mapping[str, Any] = samplers.draw_parameters(
                optuna_trial, self._job, space_function=self._space_function, enqueued=preset_values
            )
        return (optuna_trial, sampled) if is_enqueued else self._redraw_until_allowed(trial, optuna_trial, sampled)

    def _redraw_until_allowed(
        self, trial: int, optuna_trial: optuna.trial.Trial, sampled: Mapping[str, Any]
    ) -> tuple[optuna.trial.Trial, Mapping[str, Any]]:
        """Draw the parameters of a trial again until it may run, see the module's docstring; return it and its parameters.

        After `_REDRAWS` attempts the space probably has no point that may run, and the trial keeps the last parameters.
        """
        jobs_sampler = self._study.sampler
        avoided_count = 0  # points that would be out of memory
        for redraw in range(_REDRAWS):
            is_repeated = self._point_key(sampled) in self._point_keys
            would_exceed_memory = self._frontier.excludes(sampled)
            if not is_repeated and not would_exceed_memory:
                break
            if would_exceed_memory:
                avoided_count += 1
            empty_trial = optuna.trial.create_trial(state=OptunaState.RUNNING)
            self._memory.replace(optuna_trial._trial_id, empty_trial)  # Optuna draws no parameter that the trial has
            self._study.sampler = self._redraw_sampler(trial, redraw, jobs_sampler)
            with self._memory.sampler_view(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optuna_trial = optuna.trial.Trial(self._study, optuna_trial._trial_id)
                sampled = samplers.draw_parameters(optuna_trial, self._job, space_function=self._space_function)
            self._study.sampler = jobs_sampler
        if avoided_count:
            log.info("trial %d was drawn again: %s would be out of memory", trial, errors.counted(avoided_count, "point"))
            self._memory.set_study_system_attr(self._study._study_id, _AVOIDED, self.avoided + avoided_count)
        return optuna_trial, sampled

    def _redraw_sampler(
        self, trial: int, redraw: int, jobs_sampler: optuna.samplers.BaseSampler
    ) -> optuna.samplers.BaseSampler:
        """Return the sampler for a redraw of a trial: the job's own with another seed at first, later a random sampler.

        A sampler whose class is of another package draws each trial only once, because it may store what it has drawn.

        Args:
            trial: Number of the trial.
            redraw: Number of the redraw, from 0.
            jobs_sampler: Sampler that has drawn the trial at first.
        """
        sampler_redraws = _GP_REDRAWS if self._search.sampler.name == "gp" else _SAMPLER_REDRAWS
        if redraw < sampler_redraws and samplers.is_rebuilt_for_each_trial(jobs_sampler):
            return samplers.build_sampler(self._job, trial, self._code, seed_salt=redraw + 1, earlier=self._earlier)
        seed = samplers.derived_seed(samplers.derived_seed(self._job.seed, trial), redraw)  # of the trial and the redraw
        return optuna.samplers.RandomSampler(seed=seed)

    @property
    def avoided(self) -> int:
        """The number of drawn points that were not run, because they would have been out of memory."""
        return int(self._memory.get_study_system_attrs(self._study._study_id).get(_AVOIDED, 0))

    def add_point(self, sampled: Mapping[str, Any]) -> None:
        """Record the parameters of a trial, if no later one may repeat them."""
        if self._search.duplicates == "redraw":
            self._point_keys.add(self._point_key(sampled))

    def _point_key(self, sampled: Mapping[str, Any]) -> str:
        """Return a text that is the same for trials with the same parameters."""
        return earlier.params_key({**self._job.params, **sampled})

    def record_out_of_memory(self, params: Mapping[str, Any]) -> None:
        """Record the parameters of a trial that was out of memory. With `avoid_oom`, no later trial gets such parameters."""
        self._frontier.add(params)

    @property
    def is_replayed(self) -> bool:
        """Whether a new controller must replay the study for its sampler, see `replaying`.

        It must for a class that the job names, as such a sampler may store in memory what it has learned. A study whose
        objective is Optuna's cannot be replayed, as only the processes of its trials request parameters.
        """
        return bool(self._search.sampler.class_path) and not self._search.suggests

    def _set_sampler(self, trial: int) -> None:
        """Set the sampler that draws a new trial. If it is new and must know the earlier trials, replay these for it."""
        previous = self._study.sampler
        sampler = samplers.build_sampler(self._job, trial, self._code, previous, earlier=self._earlier)
        self._study.sampler = sampler
        knows_earlier_trials = trial == 0 or sampler is previous
        stores_nothing = samplers.is_rebuilt_for_each_trial(sampler)
        if self.is_replayed and not knows_earlier_trials and not stores_nothing:
            with self._sampler_call(trial):
                memory = history.History(self._job, self._earlier)
                replaying.replay(self._job, memory, sampler, events=self._past_events(), space_function=self._space_function)

    @contextlib.contextmanager
    def _sampler_call(self, trial: int) -> Iterator[None]:
        """Prepare for calls of a sampler: if the job names its class, seed the global random generators, which it may use.

        Raises:
            EntrypointError: A sampler whose class the job names has failed in the context.
        """
        seed = samplers.derived_seed(self._job.seed, trial)
        seeding = points.seed_globally(seed) if self.is_replayed else contextlib.nullcontext()
        try:
            with seeding:
                yield
        except Exception as error:
            name = self._search.sampler.class_path
            if not name or isinstance(error, errors.TrialplaneError):
                raise
            text = f"{type(error).__name__}: {errors.first_line(error)}"
            raise errors.EntrypointError(f"the sampler {name} failed to draw trial {trial}: {text}") from error
