"""How quickly does a population change its members? Ray Tune's own toy, `pbt_function`, unchanged, here and in Ray Tune.

    python -m tests.benchmarks.populations [--members 4] [--slots 2] [--interval 5] [--steps 200] [--rounds 3]
        [--peers fresh reused]

Both run `ray.tune.examples.pbt_function`, with the settings of its example: a quarter of the members takes over the state of
another quarter. Ray Tune is measured with a fresh actor for each part of a trial, and with actors that are reused, which
isolate nothing. It keeps 10 checkpoints of a trial and not 2: with 2, trials fail, as the checkpoint that they take over is
deleted before. Ours is measured with a barrier (`quorum: 1`, the default) and without (`quorum: 0`), as Ray Tune has it.

Prints for each: members that took over another's state per second, from the first report to the last, and the time from a
member's last report before that to its first one after it, as median and 95th percentile. This contains the wait for a slot,
of which there are fewer than members, and that for the slowest member at a barrier. For ours also from the decision to that
report, which contains neither, and from the end of the segment before it in the same slot. The last lines compare them with
the goals. Not a part of `python -m tests.benchmarks`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CODE = "from ray.tune.examples.pbt_function import pbt_function\nSAVES = 'a checkpoint at every interval'\n"
LOW, HIGH, FACTORS = 1e-4, 0.02, [1, 2]  # of lr and some_other_factor, as in Ray's example
GOALS = (10.0, 0.1)  # times as many a second as Ray Tune; seconds from the decision to the first report


@dataclasses.dataclass(frozen=True)
class Figures:
    """What is measured of one population.

    Attributes:
        copies: Number of members that took over the state of another one.
        seconds: From the first report to the last.
        gaps: Seconds from a member's last report before it took over a state to its first one after it.
        starts: From the decision to that first report. Empty where it is not known.
        slots: From the end of the segment before it in the same slot to that report. Empty where it is not known.
    """

    copies: int
    seconds: float
    gaps: list[float]
    starts: list[float] = dataclasses.field(default_factory=list)
    slots: list[float] = dataclasses.field(default_factory=list)

    @property
    def rate(self) -> float:
        """Copies per second."""
        return self.copies / self.seconds

    def line(self, name: str) -> str:
        """Return the line of the table."""
        cells = [f"{self.copies} copies in {self.seconds:.1f} s, {self.rate:.2f} per second"]
        for text, values in (("last report to first", self.gaps), ("decision", self.starts), ("slot's end", self.slots)):
            cells += [f"{text}: {_times(values)}"] if values else []
        return f"{name:8} {'; '.join(cells)}"


def _times(seconds: Sequence[float]) -> str:
    tail = sorted(seconds)[int(0.95 * len(seconds))]
    return f"{1000 * statistics.median(seconds):.0f} ms (95 %: {1000 * tail:.0f} ms)"


def ours(options: argparse.Namespace, quorum: int, folder: Path) -> Figures:
    """Run the toy as a study on this machine."""
    from trialplane import Platform
    from trialplane.wire.paths import RunPaths

    job = folder / "jobs" / "toy"
    job.mkdir(parents=True)
    (job / "main.py").write_text(CODE)
    fields = {
        "kind": "hpo",
        "entrypoint": "ray:main:pbt_function",
        "preload": ["numpy", "ray.tune.examples.pbt_function"],
        "params": {"checkpoint_interval": options.interval},
        "space": {"lr": {"type": "float", "low": LOW, "high": HIGH}, "some_other_factor": FACTORS},
        "objective": {"metric": "mean_accuracy", "direction": "maximize"},
        "population": {"interval": options.interval, "steps": options.steps, "quorum": quorum},
        "stop": [{"step": options.steps}],
        "sampler": "random",
        "enqueue": [{"lr": LOW, "some_other_factor": 1}] * options.members,
        "trials": options.members,
        "parallel": options.slots,
    }
    (job / "job.yaml").write_text(json.dumps(fields))
    os.environ["TRIALPLANE_HOME"] = str(folder / "home")
    status = Platform().submit(job, name="toy").wait(600)
    assert status.complete == options.members, status
    with contextlib.closing(sqlite3.connect(RunPaths.of(folder / "home", "toy").ledger)) as ledger:
        query = "select request, outcome from attempts order by number"
        attempts = [(json.loads(request), json.loads(outcome)) for request, outcome in ledger.execute(query)]
        query = "select number, min(moment), max(moment) from reports group by number"
        moments = {number: (first, last) for number, first, last in ledger.execute(query)}
    copies, gaps, starts, slots = 0, list[float](), list[float](), list[float]()
    last_report, slot_end = dict[int, float](), dict[int, float]()  # by trial, by slot
    for request, outcome in attempts:
        parent, (first, last) = request["segment"]["parent"], moments[request["number"]]
        if parent is not None and parent["trial"] != request["trial"]:
            copies += 1
            gaps.append(first - last_report[request["trial"]])
            starts.append(first - request["begun"])
            if outcome["slot"] in slot_end:  # a slot that is ready late may begin with a copy
                slots.append(first - slot_end[outcome["slot"]])
        last_report[request["trial"]], slot_end[outcome["slot"]] = last, outcome["ended"]
    seconds = max(last for _, last in moments.values()) - min(first for first, _ in moments.values())
    return Figures(copies, seconds, gaps, starts, slots)


def rays(options: argparse.Namespace, reuses: bool, folder: Path) -> Figures:
    """Run the toy with Ray Tune's population based training."""
    import ray
    from ray import tune
    from ray.tune.examples.pbt_function import pbt_function
    from ray.tune.schedulers import PopulationBasedTraining

    class Clock(tune.Callback):
        """Records when the driver gets the first report of a trial with other parameters than before."""

        def __init__(self) -> None:
            self.moments: list[float] = []
            self.gaps: list[float] = []
            self._last: dict[str, tuple[float, Any]] = {}  # trial → time and parameters of its last report

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
            """Record the time of a report."""
            now, params = time.time(), (result["config"]["lr"], result["config"]["some_other_factor"])
            last, before = self._last.get(trial.trial_id, (now, params))
            if params != before:
                self.gaps.append(now - last)
            self._last[trial.trial_id] = now, params
            self.moments.append(now)

    ray.init(num_cpus=options.slots, log_to_driver=False, include_dashboard=False)
    clock = Clock()
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=options.interval,
        hyperparam_mutations={"lr": tune.uniform(LOW, HIGH), "some_other_factor": FACTORS},
    )
    tuner = tune.Tuner(
        pbt_function,
        param_space={"lr": LOW, "some_other_factor": 1, "checkpoint_interval": options.interval},
        tune_config=tune.TuneConfig(
            metric="mean_accuracy", mode="max", scheduler=scheduler, num_samples=options.members, reuse_actors=reuses
        ),
        run_config=tune.RunConfig(
            storage_path=str(folder / "ray"),
            name="toy",
            verbose=0,
            stop={"training_iteration": options.steps},
            checkpoint_config=tune.CheckpointConfig(checkpoint_score_attribute="mean_accuracy", num_to_keep=10),
            callbacks=[clock],
        ),
    )
    results = tuner.fit()
    ray.shutdown()
    assert not results.num_errors, results.errors
    return Figures(scheduler._num_perturbations, max(clock.moments) - min(clock.moments), clock.gaps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure in turn, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.populations")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--interval", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    peers = {"fresh": functools.partial(rays, reuses=False), "reused": functools.partial(rays, reuses=True)}
    parser.add_argument("--peers", nargs="+", choices=peers, default=list(peers))
    options = parser.parse_args(arguments)
    measures = {"quorum 1": functools.partial(ours, quorum=1), "quorum 0": functools.partial(ours, quorum=0)}
    measures |= {name: peers[name] for name in options.peers}
    rounds: list[dict[str, Figures]] = []
    for _ in range(options.rounds):
        rounds.append({})
        for name, measure in measures.items():
            with tempfile.TemporaryDirectory() as folder:
                rounds[-1][name] = measure(options, folder=Path(folder))
            print(rounds[-1][name].line(name), flush=True)  # noqa: T201
    for name in ("quorum 1", "quorum 0"):
        for peer in options.peers:
            rate = statistics.median(figures[name].rate / (figures[peer].rate or math.nan) for figures in rounds)
            met = "met" if rate >= GOALS[0] else "missed"
            print(f"{name}: {rate:.1f} times as many per second as Ray Tune, {peer}; goal {GOALS[0]:g}: {met}")  # noqa: T201
        start = statistics.median(start for figures in rounds for start in figures[name].starts)
        met = "met" if start <= GOALS[1] else "missed"
        print(f"{name}: {1000 * start:.0f} ms until the first report, goal {1000 * GOALS[1]:g}: {met}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
