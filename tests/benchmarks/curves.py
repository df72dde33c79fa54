"""How many steps do rules of early stopping take to find what random search finds? On real learning curves, in virtual time.

    python -m tests.benchmarks.curves FOLDER [--trials 256] [--seeds 10] [--slots 1 8 32] [--tasks NAME …]

FOLDER holds `taskset.npz`: per task an array of losses, (configurations, points), of which point 0 is before training. Each
seed shuffles the configurations, and all rules see them in this order. Random search trains the first 256 to the end.
The target is the best final loss among them; what counts is the number of steps, over all slots, until a trial reports it.
The rules are the libraries' own classes: ours, Optuna's pruners, and the bracket of Ray Tune's ASHA. A slot reports a step
at a time, and all slots are equally quick.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trialplane.controller.promotion import Promotion
from trialplane.job.search import Ladder
from trialplane.wire.states import TrialState

Losses = npt.NDArray[np.float64]
_MOST = 4  # times the steps of random search, after which a rule has not arrived


class Rule(Protocol):
    """A rule, told what trials report; it owns the order of trials and segments."""

    def take(self) -> tuple[int, int, int] | None:
        """The trial that a free slot takes, the steps that it has done, and the step after which it is paused."""

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        """Take a report; whether the trial goes on."""

    def ended(self, trial: int, step: int, loss: float) -> None:
        """Take the end of a segment."""


class Ours:
    """Promotion, as a study uses it, or its trials begin again at each rung."""

    def __init__(self, trials: int, top: int, *, restarts: bool = False, auto: bool = False) -> None:
        self._rule = Promotion(Ladder(1, 4, top, is_auto=auto), trials)
        self._drawn, self._trials, self._top, self._restarts = 0, trials, top, restarts
        self._rungs: dict[int, int] = {}

    def take(self) -> tuple[int, int, int] | None:
        stretch = self._rule.next_stretch(self._drawn if self._drawn < self._trials else None)
        if stretch is None:
            return None
        if stretch.trial is None:
            stretch, self._drawn = dataclasses.replace(stretch, trial=self._drawn), self._drawn + 1
        self._rule.record_start(stretch)
        assert stretch.trial is not None
        self._rungs[stretch.trial] = stretch.rung
        return stretch.trial, 0 if self._restarts else stretch.done, stretch.rung or self._top

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        return True

    def ended(self, trial: int, step: int, loss: float) -> None:
        state = TrialState.PAUSED if self._rungs[trial] else TrialState.COMPLETE
        self._rule.record_end(trial, state, step, (loss,))


class Optunas:
    """A pruner of Optuna over random trials."""

    def __init__(self, trials: int, top: int, pruner: Any) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=0))
        self._states = optuna.trial.TrialState
        self._trials, self._top = trials, top
        self._running: dict[int, Any] = {}
        self._pruned: set[int] = set()

    def take(self) -> tuple[int, int, int] | None:
        if len(self._study.trials) >= self._trials:
            return None
        trial = self._study.ask()
        self._running[trial.number] = trial
        return trial.number, 0, self._top

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        self._running[trial].report(loss, step)
        if self._running[trial].should_prune():
            self._pruned.add(trial)
            return False
        return True

    def ended(self, trial: int, step: int, loss: float) -> None:
        if trial in self._pruned:
            self._study.tell(self._running.pop(trial), state=self._states.PRUNED)
        else:
            self._study.tell(self._running.pop(trial), min(loss, 1e30))


class RaysAsha:
    """The bracket of Ray Tune's ASHA, which stops trials."""

    def __init__(self, trials: int, top: int) -> None:
        from ray.tune.schedulers.async_hyperband import _Bracket

        self._bracket = _Bracket(1, top, 4, 0, stop_last_trials=True)
        self._drawn, self._trials, self._top = 0, trials, top

    def take(self) -> tuple[int, int, int] | None:
        if self._drawn >= self._trials:
            return None
        self._drawn += 1
        return self._drawn - 1, 0, self._top

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        decision = self._bracket.on_result(SimpleNamespace(trial_id=str(trial)), step, -min(loss, 1e30))
        return bool(decision == "CONTINUE")

    def ended(self, trial: int, step: int, loss: float) -> None:
        """Nothing: it has decided."""


class Random:
    """Every trial to its end."""

    def __init__(self, trials: int, top: int) -> None:
        self._drawn, self._trials, self._top = 0, trials, top

    def take(self) -> tuple[int, int, int] | None:
        self._drawn += 1
        return (self._drawn - 1, 0, self._top) if self._drawn <= self._trials else None

    def goes_on(self, trial: int, step: int, loss: float) -> bool:
        return True

    def ended(self, trial: int, step: int, loss: float) -> None:
        """Nothing."""


def _optunas(make: Callable[[Any, int], Any]) -> Callable[[int, int], Rule]:
    def rule(trials: int, top: int) -> Rule:
        import optuna

        return Optunas(trials, top, make(optuna.pruners, top))

    return rule


RULES: Mapping[str, Callable[[int, int], Rule]] = {
    "random": Random,
    "promotion (ours)": Ours,
    "the same, max: auto": lambda trials, top: Ours(trials, top, auto=True),
    "the same, restarted from step 0": lambda trials, top: Ours(trials, top, restarts=True),
    "Optuna median": _optunas(lambda pruners, top: pruners.MedianPruner(n_warmup_steps=1)),
    "Optuna hyperband": _optunas(lambda pruners, top: pruners.HyperbandPruner(1, top, 3)),
    "Optuna successive halving, 3": _optunas(lambda pruners, top: pruners.SuccessiveHalvingPruner(1, 3)),
    "Ray ASHA, 4": RaysAsha,
}


def arrives(rule: Rule, losses: Losses, target: float, slots: int, trials: int) -> float:
    """Return the steps, over all slots, until a trial reports the target; infinite if a rule does not arrive."""
    top = losses.shape[1] - 1
    queue: list[tuple[int, int, int, int, int]] = []  # time, serial, trial, step, until
    serial, used, now = 0, 0, 0
    free = slots
    while used < _MOST * trials * top:
        while free and (taken := rule.take()) is not None:
            trial, done, until = taken
            heapq.heappush(queue, (now + 1, serial, trial, done + 1, until))
            serial, free = serial + 1, free - 1
        if not queue:
            return math.inf
        now, _, trial, step, until = heapq.heappop(queue)
        used += 1
        loss = float(losses[trial, step])
        if loss <= target:
            return used
        if rule.goes_on(trial, step, loss) and step < until:
            heapq.heappush(queue, (now + 1, serial, trial, step + 1, until))
            serial += 1
        else:
            rule.ended(trial, step, loss)
            free += 1
    return math.inf


def speedups(tasks: Mapping[str, Losses], seeds: int, slots: int, trials: int) -> Iterator[tuple[str, list[float], int]]:
    """Yield each rule with its speedups over random search, one per task and seed, and how often it did not arrive."""
    runs = []
    for losses in tasks.values():
        for seed in range(seeds):
            shuffled = losses[np.random.default_rng(seed).permutation(len(losses))]
            target = float(shuffled[:trials, -1].min())
            steps = arrives(Random(len(losses), losses.shape[1] - 1), shuffled, target, slots, trials)
            runs.append((shuffled, target, steps))
    for name, make in RULES.items():
        found = [
            steps / arrives(make(len(shuffled), shuffled.shape[1] - 1), shuffled, target, slots, trials)
            for shuffled, target, steps in runs
        ]
        yield name, found, sum(value == 0 for value in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.curves", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="the folder with taskset.npz")
    parser.add_argument("--trials", type=int, default=256, help="trials of random search")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tasks", nargs="+")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # of Optuna, on experimental pruners
    with np.load(options.folder / "taskset.npz") as file:
        names = [name for name in file.files if not name.endswith("_hp")]
        missing = set(options.tasks or ()) - set(names)
        if missing:
            parser.error(f"{', '.join(sorted(missing))} not in taskset.npz, which has {', '.join(names)}")
        tasks = {
            name: np.nan_to_num(file[name].astype(float), nan=math.inf, posinf=math.inf) for name in options.tasks or names
        }
    print(f"{len(tasks)} tasks, {options.seeds} seeds; median speedup over random search, and its quartiles")  # noqa: T201
    for slots in options.slots:
        for name, found, lost in speedups(tasks, options.seeds, slots, options.trials):
            low, median, high = statistics.quantiles(found, n=4) if len(found) > 1 else [found[0]] * 3
            print(f"{slots:3} slots  {name:32} {median:6.2f}  ({low:.2f} to {high:.2f}), {lost} did not arrive", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
