"""How good is the schedule that population based training finds? On the table of HPO-RL-Bench, beside Ray Tune's PBT.

    python -m tests.benchmarks.schedules FOLDER [--members 8 16 32] [--seeds 60]

FOLDER is `data_hpo_rl_bench/PPO/Enduro-v0` of a checkout of HPO-RL-Bench (Shala et al., AutoML 2024). For each schedule of
three learning rates and three discounts, it has the return of PPO on Enduro after each 10,000 steps: 729 schedules, with
three seeds. Parameters change after 300,000 and 600,000 of a million steps. Schedules that begin alike have the same returns
until they part, so the table says what a member does that continues from the checkpoint of another one. A single run of some
differs, so the median of those that begin alike counts.

A member has three segments, and is compared after the first two. A search sees the returns of one seed of the table, and its
result is the member with the highest last return. Its regret is the difference between the mean last return of the best
schedule and of this one, over all seeds of the table: a lucky run does not count. Each rule trains as many members.

Ours is the ledger with a job's settings; Ray Tune's is its scheduler class, with the loop of Tune's controller. There are as
many slots as members, and all are equally quick. Not a part of `python -m tests.benchmarks`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import random
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Schedule = tuple[tuple[float, ...], ...]  # (lr, gamma) of each segment so far
SEGMENTS = 3
_EVALUATION = 10_000  # steps of training between two returns
_NAME = re.compile(r"_lr_(-\d)(-\d)(-\d)_gamma_([01]\.\d+)([01]\.\d+)([01]\.\d+)_seed(\d+)_eval\.json$")
_NEAR = 0.05  # share of the best return within which a regret counts as near


class Table:
    """Returns of all schedules.

    Args:
        runs: Seed and schedule of each run, with its returns at the ends of its segments.

    Attributes:
        seeds: Seeds of the runs.
        values: Values of the parameters, in order.
        means: Mean last return of each schedule.
        best: The highest one.
    """

    def __init__(self, runs: Mapping[tuple[int, Schedule], Sequence[float]]) -> None:
        returns: dict[tuple[int, Schedule], list[float]] = {}
        last: dict[Schedule, list[float]] = {}
        for (seed, schedule), ends in runs.items():
            last.setdefault(schedule, []).append(ends[-1])
            for done, value in enumerate(ends, 1):
                returns.setdefault((seed, schedule[:done]), []).append(value)
        self._returns = {key: statistics.median(values) for key, values in returns.items()}
        self.seeds = sorted({seed for seed, _ in runs})
        columns = zip(*{point for schedule in last for point in schedule}, strict=True)
        self.values = {name: sorted(set(column)) for name, column in zip(("lr", "gamma"), columns, strict=True)}
        self.means = {schedule: statistics.fmean(values) for schedule, values in last.items()}
        self.best = max(self.means.values())

    def value(self, seed: int, schedule: Schedule) -> float:
        """Return the return after the segments of a schedule; of a run that the table lacks, the mean of the other seeds."""
        found = self._returns.get((seed, schedule))
        return self.means[schedule] if found is None else found


def read(folder: Path) -> Table:
    """Read the schedules of a folder of HPO-RL-Bench; files of runs without changes are not used."""
    runs: dict[tuple[int, Schedule], list[float]] = {}
    for file in sorted(folder.iterdir()):
        if named := _NAME.search(file.name):
            *numbers, seed = named.groups()
            lrs, gammas = map(float, numbers[:SEGMENTS]), map(float, numbers[SEGMENTS:])
            record = json.loads(file.read_text())
            segment = record["switch_every"] // _EVALUATION
            ends = [segment * done - 1 for done in range(1, SEGMENTS)] + [-1]
            runs[int(seed), tuple(zip(lrs, gammas, strict=True))] = [record["returns_eval"][end] for end in ends]
    return Table(runs)


@dataclasses.dataclass
class Population:
    """The members that a search trains on a table.

    Attributes:
        table: The table.
        seed: The seed of it that the search sees.
        trained: Number of segments.
        schedules: Schedules of the members that have ended, with their last returns.
    """

    table: Table
    seed: int
    trained: int = 0
    schedules: list[tuple[float, Schedule]] = dataclasses.field(default_factory=list)

    def train(self, schedule: Schedule) -> float:
        """Train the last segment of a schedule, and return the return after it."""
        self.trained += 1
        value = self.table.value(self.seed, schedule)
        if len(schedule) == SEGMENTS:
            self.schedules.append((value, schedule))
        return value

    @property
    def regret(self) -> float:
        """How much less the best member's schedule returns on average than the best one of the table."""
        return self.table.best - self.table.means[max(self.schedules)[1]]


def at_random(population: Population, seed: int, members: int, changes: bool) -> None:
    """Train members that are never compared, with random schedules or with random parameters that do not change."""
    generator = random.Random(seed)
    points = list(itertools.product(*population.table.values.values()))
    for _ in range(members):
        drawn = tuple(generator.choices(points, k=SEGMENTS)) if changes else (generator.choice(points),) * SEGMENTS
        for done in range(1, SEGMENTS + 1):
            population.train(drawn[:done])


def ours(population: Population, seed: int, members: int, **settings: Any) -> None:
    """Train the members of a study, by a ledger in a scratch folder."""
    from tests.benchmarks import studies

    from trialplane.job import kinds
    from trialplane.wire.records import CheckpointSummary, TrialReport
    from trialplane.wire.states import TrialState

    job = kinds.read(
        {
            "name": studies.NAME,
            "kind": "hpo",
            "objectives": [{"metric": "loss", "direction": "minimize"}],
            "space": population.table.values,
            "population": {"interval": 1, "steps": SEGMENTS, **settings},
            "sampler": "random",
            "trials": members,
            "seed": seed,
        }
    )
    states: dict[tuple[int, int], Schedule] = {}  # by trial and segments
    running = collections.deque[Any]()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(studies.open_ledger(Path(folder), job)) as ledger:
        while True:
            while len(running) < members and (started := ledger.ask()) is not None:
                running.append(started)
            if not running:
                return
            request = running.popleft()
            parent, done = request.segment.parent, request.segment.done
            before = () if parent is None else states[parent.trial, done]
            schedule = (*before, tuple(request.params[name] for name in population.table.values))
            states[request.trial, done + 1] = schedule
            loss = -population.train(schedule)
            ledger.report(TrialReport(request.number, done + 1, {"loss": loss}, 0))
            state = TrialState.PAUSED if request.segment.rung else TrialState.COMPLETE
            saved = CheckpointSummary(1, 100, f"{request.trial} at {done + 1}")
            ledger.tell(dataclasses.replace(studies.outcome(request, loss), state=state, checkpoints=saved))


@dataclasses.dataclass(eq=False)
class _TuneTrial:
    """A trial as Ray Tune's scheduler sees it; its checkpoint is its schedule so far."""

    trial_id: str
    status: str
    config: dict[str, float] = dataclasses.field(default_factory=dict)
    evaluated_params: dict[str, float] = dataclasses.field(default_factory=dict)
    experiment_tag: str = ""
    schedule: Schedule = ()

    def __post_init__(self) -> None:
        keeping = SimpleNamespace(num_to_keep=None)
        self.checkpoints = SimpleNamespace(checkpoint_config=keeping, _latest_checkpoint_result=None)
        self.run_metadata = SimpleNamespace(checkpoint_manager=self.checkpoints)
        self.temporary_state = SimpleNamespace(saving_to=None)

    @property
    def checkpoint(self) -> Schedule:
        """The schedule up to the last checkpoint."""
        return self.checkpoints._latest_checkpoint_result.checkpoint  # type: ignore[no-any-return]

    def is_finished(self) -> bool:
        return self.status == "TERMINATED"

    def set_experiment_tag(self, tag: str) -> None:
        self.experiment_tag = tag

    def set_config(self, config: dict[str, float]) -> None:
        self.config = config


class _TuneController:
    """What Ray Tune's scheduler needs of the controller."""

    search_alg = None

    def __init__(self) -> None:
        self.trials: list[_TuneTrial] = []

    def get_trials(self) -> list[_TuneTrial]:
        return self.trials

    def get_live_trials(self) -> list[_TuneTrial]:
        return [trial for trial in self.trials if not trial.is_finished()]

    def _schedule_trial_save(self, trial: _TuneTrial, result: Mapping[str, Any]) -> Schedule:
        trial.checkpoints._latest_checkpoint_result = SimpleNamespace(checkpoint=trial.schedule)
        return trial.schedule

    def pause_trial(self, trial: _TuneTrial, should_checkpoint: bool = True) -> None:
        if should_checkpoint:
            self._schedule_trial_save(trial, {})
        trial.status = "PAUSED"


def rays(population: Population, seed: int, members: int, synch: bool) -> None:
    """Train the members that Ray Tune's scheduler starts and pauses."""
    from ray.tune.schedulers import PopulationBasedTraining

    random.seed(seed)  # from which the scheduler draws
    controller = _TuneController()
    scheduler: Any = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="return",
        mode="max",
        perturbation_interval=1,
        hyperparam_mutations=population.table.values,
        log_config=False,
        synch=synch,
    )
    for number in range(members):
        controller.trials.append(_TuneTrial(str(number), "PENDING"))
        scheduler.on_trial_add(controller, controller.trials[-1])
    running = collections.deque[_TuneTrial]()
    while True:
        while (started := scheduler.choose_trial_to_run(controller)) is not None:
            if started.status == "PAUSED":
                started.schedule = started.checkpoint
            started.status = "RUNNING"
            running.append(started)
        if not running:
            return
        trial = running.popleft()
        trial.schedule = (*trial.schedule, tuple(trial.config[name] for name in population.table.values))
        result = {"training_iteration": len(trial.schedule), "return": population.train(trial.schedule)}
        if len(trial.schedule) == SEGMENTS:
            scheduler.on_trial_complete(controller, trial, result)
            trial.status = "TERMINATED"
            continue
        decision = scheduler.on_trial_result(controller, trial, result)
        if decision == scheduler.PAUSE:
            controller.pause_trial(trial)
        elif decision == scheduler.CONTINUE:
            running.append(trial)


Rule = Callable[[Population, int, int], None]
RULES: Mapping[str, Rule] = {
    "random, no changes": functools.partial(at_random, changes=False),
    "random schedules": functools.partial(at_random, changes=True),
    "ours (the default)": ours,
    "ours, quorum: 0": functools.partial(ours, quorum=0),
    "ours, exploit: tournament": functools.partial(ours, exploit="tournament"),
    "Ray Tune PBT (the default)": functools.partial(rays, synch=False),
    "Ray Tune PBT, synch=True": functools.partial(rays, synch=True),
}


def line(name: str, found: Sequence[Population], members: int) -> str:
    """Return the line of the table of a rule."""
    regrets = [population.regret for population in found]
    low, median, high = statistics.quantiles(regrets, n=4, method="inclusive")
    near = statistics.fmean(
        regret <= _NEAR * population.table.best for regret, population in zip(regrets, found, strict=True)
    )
    trained = statistics.fmean(population.trained for population in found) / members / SEGMENTS
    cells = (f"{median:.1f}", f"{low:.1f}-{high:.1f}", f"{statistics.fmean(regrets):.1f}", f"{near:.0%}", f"{trained:.2f}")
    return f"{name:28}" + "".join(f"{cell:>13}" for cell in cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the tables."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.schedules", description=description)
    parser.add_argument("folder", type=Path, help="the folder with the runs of one environment")
    parser.add_argument("--members", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--seeds", type=int, default=60)
    options = parser.parse_args(arguments)
    logging.getLogger("ray.tune").setLevel(logging.WARNING)
    table = read(options.folder)
    constant = max(value for schedule, value in table.means.items() if len(set(schedule)) == 1)
    print(  # noqa: T201
        f"{len(table.means)} schedules with {len(table.seeds)} seeds; the best returns {table.best:.1f} on average, "
        f"the best without changes {constant:.1f} (a regret of {table.best - constant:.1f})"
    )
    for members in options.members:
        columns = ("regret", "quartiles", "mean", f"within {_NEAR:.0%}", "trained")
        print(f"\n{f'{members} members':28}" + "".join(f"{column:>13}" for column in columns))  # noqa: T201
        for name, rule in RULES.items():
            found = []
            for seed in range(options.seeds):
                found.append(Population(table, table.seeds[seed % len(table.seeds)]))
                rule(found[-1], seed, members)
            print(line(name, found, members), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
