"""Rules that stop or pause trials early, driven in virtual time: ours, Optuna's and Ray Tune's own classes.

A rule decides which trial a free slot takes. Those that sample by themselves also say at which point; the others take the
configurations of the task in order.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.benchmarks.curve_tasks import Task

_WORST = 1e30  # in place of infinity, which the libraries refuse


@dataclasses.dataclass(frozen=True)
class Setting:
    """A search.

    Attributes:
        task: The task, in the order in which rules without a sampler take its configurations.
        target: Loss that is searched for.
        trials: Number of trials of random search.
        seed: Seed of samplers.
    """

    task: Task
    target: float
    trials: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Work:
    """The part of a trial that a slot takes.

    Attributes:
        trial: Number of the trial.
        done: Steps that it has done.
        until: Step after which the slot is free again.
        point: Its point in the unit cube; None if it has the configuration with its number.
    """

    trial: int
    done: int
    until: int
    point: Sequence[float] | None = None


class Rule:
    """A rule, told what trials report. This one is random search: it trains every trial to its end, in order."""

    def __init__(self, setting: Setting) -> None:
        self.drawn = 0  # number of trials that have started
        self.setting = setting
        self.most, self.top = len(setting.task.losses), setting.task.steps

    def take(self) -> Work | None:
        """Return what a free slot takes; None if nothing can start."""
        if self.drawn == self.most:
            return None
        self.drawn += 1
        return Work(self.drawn - 1, 0, self.top)

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        """Take a report; return whether the trial goes on."""
        return True

    def end(self, trial: int, step: int, loss: float) -> None:
        """Take the end of the work at a trial."""

    def close(self) -> None:
        """Remove what the rule has written."""


class Clairvoyant(Rule):
    """What no rule can beat: after its first step it knows of each trial whether it reaches the target."""

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        return bool((self.setting.task.losses[trial, 1:] <= self.setting.target).any())


class OneStepOfAll(Rule):
    """As many trials as random search has, for one step each; then the best three in full."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._first: list[tuple[float, int]] = []
        self._left = 3

    def take(self) -> Work | None:
        if self.drawn < self.setting.trials:
            self.drawn += 1
            return Work(self.drawn - 1, 0, 1)
        if len(self._first) < self.setting.trials or not self._left:
            return None
        self._left -= 1
        return Work(sorted(self._first)[2 - self._left][1], 1, self.top)

    def end(self, trial: int, step: int, loss: float) -> None:
        if step == 1:
            self._first.append((loss, trial))


class Promoted(Rule):
    """Our promotion over the configurations in order."""

    def __init__(self, setting: Setting, *, restarts: bool = False, **ladder: Any) -> None:
        from trialplane.controller.promotion import Promotion
        from trialplane.job.search import Ladder
        from trialplane.wire.states import TrialState

        super().__init__(setting)
        self._states, self._restarts = TrialState, restarts
        self._rule = Promotion(Ladder(1, 4, self.top, **ladder), self.most)
        self._rungs: dict[int, int] = {}

    def take(self) -> Work | None:
        stretch = self._rule.next_stretch(self.drawn if self.drawn < self.most else None)
        if stretch is None:
            return None
        if stretch.trial is None:
            stretch, self.drawn = dataclasses.replace(stretch, trial=self.drawn), self.drawn + 1
        self._rule.record_start(stretch)
        assert stretch.trial is not None
        self._rungs[stretch.trial] = stretch.rung
        return Work(stretch.trial, 0 if self._restarts else stretch.done, stretch.rung or self.top)

    def end(self, trial: int, step: int, loss: float) -> None:
        state = self._states.PAUSED if self._rungs[trial] else self._states.COMPLETE
        self._rule.raise_top(trial, step, (loss,))
        self._rule.record_end(trial, state, step, (loss,))


class OtherOrder(Promoted):
    """Our promotion over the configurations in an order that says nothing about the target, as for rules that sample."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._points = setting.task.shuffled(setting.seed + 1).points

    def take(self) -> Work | None:
        work = super().take()
        return None if work is None else dataclasses.replace(work, point=self._points[work.trial])


class Study(Rule):
    """Our study as a job without options has it: promotion, and the default sampler, by a ledger in a scratch folder."""

    def __init__(self, setting: Setting) -> None:
        from tests.benchmarks import runs, studies

        from trialplane.job import kinds

        super().__init__(setting)
        self._names = tuple(f"p{index:02}" for index in range(setting.task.points.shape[1]))
        job = kinds.read(
            {
                "name": studies.NAME,
                "kind": "hpo",
                "params": {"steps": self.top},
                "objectives": [{"metric": "loss", "direction": "minimize"}],
                "space": runs.unit_space(self._names),
                "pruner": {"name": "asha", "promote": True, "max_resource": "steps"},
                "trials": self.most,
                "seed": setting.seed,
            }
        )
        self._folder = tempfile.TemporaryDirectory()
        self._ledger = studies.open_ledger(Path(self._folder.name), job)
        self._running: dict[int, Any] = {}

    def take(self) -> Work | None:
        request = self._ledger.ask()
        if request is None:
            return None
        self._running[request.trial] = request
        point = [request.params[name] for name in self._names]
        return Work(request.trial, request.segment.done, request.segment.rung or self.top, point)

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        from trialplane.wire.records import TrialReport

        self._ledger.report(TrialReport(self._running[trial].number, step, {"loss": min(loss, _WORST)}, time.time()))
        return True

    def end(self, trial: int, step: int, loss: float) -> None:
        from tests.benchmarks import studies

        from trialplane.wire.records import CheckpointSummary
        from trialplane.wire.states import TrialState

        request = self._running.pop(trial)
        state = TrialState.PAUSED if request.segment.rung else TrialState.COMPLETE
        saved = CheckpointSummary(1, 100, f"{trial} at {step}")
        outcome = studies.outcome(request, min(loss, _WORST))
        self._ledger.tell(dataclasses.replace(outcome, state=state, checkpoints=saved))

    def close(self) -> None:
        self._ledger.close()
        self._folder.cleanup()


class Optunas(Rule):
    """A pruner of Optuna, over the configurations in order or with TPE."""

    def __init__(self, setting: Setting, pruner: Any, *, tpe: bool = False) -> None:
        import optuna

        super().__init__(setting)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        samplers = optuna.samplers
        sampler = samplers.TPESampler(seed=setting.seed) if tpe else samplers.RandomSampler(seed=setting.seed)
        name = f"study {setting.seed}"  # from which Hyperband derives the brackets of trials
        self._study = optuna.create_study(study_name=name, pruner=pruner, sampler=sampler)
        self._pruned = optuna.trial.TrialState.PRUNED
        self._names = [f"p{index:02}" for index in range(setting.task.points.shape[1])] if tpe else []
        self._running: dict[int, Any] = {}
        self._bad: set[int] = set()

    def take(self) -> Work | None:
        if self.drawn == self.most:
            return None
        self.drawn += 1
        trial = self._study.ask()
        self._running[trial.number] = trial
        point = [trial.suggest_float(name, 0, 1) for name in self._names]
        return Work(trial.number, 0, self.top, point or None)

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        running = self._running[trial]
        running.report(min(loss, _WORST), step)
        if running.should_prune():
            self._bad.add(trial)
            return False
        return True

    def end(self, trial: int, step: int, loss: float) -> None:
        if trial in self._bad:
            self._study.tell(self._running.pop(trial), state=self._pruned)
        else:
            self._study.tell(self._running.pop(trial), min(loss, _WORST))


@dataclasses.dataclass(eq=False)
class _TuneTrial:
    """A trial as Ray Tune's schedulers see it."""

    number: int
    status: str
    last_result: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_saving: bool = False

    @property
    def trial_id(self) -> str:
        return str(self.number)


class Tunes(Rule):
    """A scheduler of Ray Tune, over the configurations in order or with a searcher, with the loop of Tune's controller.

    Args:
        setting: The search.
        scheduler: The scheduler.
        searcher: Searcher with parameters p00, p01, …; None for the configurations in order.
    """

    def __init__(self, setting: Setting, scheduler: Any, searcher: Any = None) -> None:
        from ray.tune.experiment import Trial

        super().__init__(setting)
        self._scheduler, self._status = scheduler, Trial
        self._trials: list[_TuneTrial] = []
        self._points: dict[int, Sequence[float]] = {}
        self._ahead = 1 if searcher else 200  # trials that Tune draws ahead
        self._pending: dict[int, _TuneTrial] = {}  # in order
        self._decision = ""
        self.search_alg = SimpleNamespace(searcher=searcher)

    def get_trials(self) -> list[_TuneTrial]:
        """Return all trials."""
        return self._trials

    def stop_trial(self, trial: _TuneTrial) -> None:
        """Stop a trial that runs, is paused or has not started."""
        if trial.status == self._status.TERMINATED:
            return
        self._pending.pop(trial.number, None)
        if trial.status == self._status.RUNNING:
            self._scheduler.on_trial_complete(self, trial, trial.last_result)
        else:
            self._scheduler.on_trial_remove(self, trial)
        if self.search_alg.searcher is not None:
            self.search_alg.searcher.on_trial_complete(trial.trial_id, trial.last_result)
        trial.status = self._status.TERMINATED

    def take(self) -> Work | None:
        while len(self._trials) < self.most and len(self._pending) < self._ahead:
            number = len(self._trials)
            if self.search_alg.searcher is not None:
                config = self.search_alg.searcher.suggest(str(number))
                self._points[number] = [config[name] for name in sorted(config)]
            self._pending[number] = _TuneTrial(number, self._status.PENDING)
            self._trials.append(self._pending[number])
            self._scheduler.on_trial_add(self, self._trials[-1])
        trial = self._scheduler.choose_trial_to_run(self)
        if trial is None:
            trial = next(iter(self._pending.values()), None)
        if trial is None:
            return None
        self._pending.pop(trial.number, None)
        trial.status = self._status.RUNNING
        done = trial.last_result.get("training_iteration", 0)
        return Work(trial.number, done, self.top, self._points.get(trial.number))

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        result = {"training_iteration": step, "loss": min(loss, _WORST)}
        self._decision = self._scheduler.on_trial_result(self, self._trials[trial], result)
        if self._decision != self._scheduler.STOP and self.search_alg.searcher is not None:
            self.search_alg.searcher.on_trial_result(str(trial), result)
        self._trials[trial].last_result = result
        return bool(self._decision == self._scheduler.CONTINUE)

    def end(self, trial: int, step: int, loss: float) -> None:
        if self._decision == self._scheduler.PAUSE:
            self._trials[trial].status = self._status.PAUSED
        else:
            self.stop_trial(self._trials[trial])


def _optunas(make: Callable[[Any, int], Any], *, tpe: bool = False) -> Callable[[Setting], Rule]:
    def rule(setting: Setting) -> Rule:
        import optuna

        return Optunas(setting, make(optuna.pruners, setting.task.steps), tpe=tpe)

    return rule


def _tunes(name: str) -> Callable[[Setting], Rule]:
    def rule(setting: Setting) -> Rule:
        from ray.tune import schedulers

        options = {"time_attr": "training_iteration", "metric": "loss", "mode": "min", "max_t": setting.task.steps}
        return Tunes(setting, getattr(schedulers, name)(**options))

    return rule


def _bohb(setting: Setting) -> Rule:
    import ConfigSpace
    from ray.tune import schedulers
    from ray.tune.search.bohb import TuneBOHB

    np.random.seed(setting.seed)  # from which its model draws
    space = ConfigSpace.ConfigurationSpace(seed=setting.seed)
    for index in range(setting.task.points.shape[1]):
        space.add_hyperparameter(ConfigSpace.UniformFloatHyperparameter(f"p{index:02}", 0, 1))
    scheduler = schedulers.HyperBandForBOHB("training_iteration", "loss", "min", max_t=setting.task.steps)
    return Tunes(setting, scheduler, TuneBOHB(space, metric="loss", mode="min"))


RANDOM, BEST, OURS, DEFAULT = "random", "knows the best", "promotion", "promotion, TPE (the default)"
RESTARTED = "promotion, restarted from step 0"
# Rules that take the configurations in order, and rules that sample. Their names have the libraries' own defaults where
# nothing is said.
RULES: Mapping[str, Callable[[Setting], Rule]] = {
    RANDOM: Rule,
    OURS: Promoted,
    RESTARTED: lambda setting: Promoted(setting, restarts=True),
    "promotion, in another order": OtherOrder,
    "promotion, max: auto": lambda setting: Promoted(setting, is_auto=True),
    "promotion, 3 brackets": lambda setting: Promoted(setting, brackets=3),
    "Optuna median": _optunas(lambda pruners, top: pruners.MedianPruner(n_warmup_steps=1)),
    "Optuna Hyperband": _optunas(lambda pruners, top: pruners.HyperbandPruner(1, top, 3)),
    "Optuna successive halving, 3": _optunas(lambda pruners, top: pruners.SuccessiveHalvingPruner(1, 3)),
    "Ray Tune ASHA": _tunes("AsyncHyperBandScheduler"),
    "Ray Tune HyperBand": _tunes("HyperBandScheduler"),
    "one step of all, the best 3 in full": OneStepOfAll,
    BEST: Clairvoyant,
    DEFAULT: Study,
    "Optuna TPE, Hyperband": _optunas(lambda pruners, top: pruners.HyperbandPruner(1, top, 3), tpe=True),
    "Optuna TPE, successive halving, 3": _optunas(lambda pruners, top: pruners.SuccessiveHalvingPruner(1, 3), tpe=True),
    "Ray Tune BOHB": _bohb,
}
