"""How quickly does a population change its members? A toy whose best rate rises and falls, here and in Ray Tune.

    python -m tests.benchmarks.populations [--members 4] [--slots 2] [--interval 4] [--steps 200]

Prints for each, as medians and 95th percentiles: members that took over another's state per second, from the first report to
the last; and for ours the time from the end of a segment to the first report of the next one in the same slot, the part of
it after the decision, and the processor time of a segment's process up to that report. With a quorum of all, the first of
these contains the wait for the slowest member.
Not a part of `python -m tests.benchmarks`: it needs `ray[tune]` for the comparison, and leaves that out without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOY = """
import random


def grow(rate, height):
    best = max(0.001, min(height, 200 - height) / 100 * 0.01)
    ratio = max(rate, best) / min(rate, best)
    change = random.random() / ratio if ratio < 3 else (3 - ratio) * random.random()
    return max(0.0, height + change + random.gauss(0, 0.5))
"""
CODE = """
import time

from toy import grow


def run(ctx):
    done, height = 0, 0.0
    if state := ctx.restored:
        done, height = state["step"], state["height"]
    for step in range(done + 1, ctx.params["steps"] + 1):
        height = grow(ctx.params["rate"], height)
        ctx.report(step, height=height, cpu=time.process_time())
        ctx.save(step, {"height": height})
    return {"height": height}
"""


def ours(options: argparse.Namespace, folder: Path) -> None:
    """Run the toy as a study on this machine, and print its row."""
    from trialplane import Platform
    from trialplane.wire.paths import RunPaths

    job = folder / "jobs" / "toy"
    job.mkdir(parents=True)
    (job / "toy.py").write_text(TOY)
    (job / "train.py").write_text(CODE)
    fields = {
        "kind": "hpo",
        "params": {"steps": options.steps},
        "space": {"rate": {"type": "float", "low": 1e-4, "high": 0.02}},
        "objective": {"metric": "height", "direction": "maximize"},
        "population": {"interval": options.interval, "steps": "steps"},
        "sampler": "random",
        "trials": options.members,
        "parallel": options.slots,
    }
    (job / "job.yaml").write_text(json.dumps(fields))
    os.environ["TRIALPLANE_HOME"] = str(folder / "home")
    status = Platform().submit(job, name="toy").wait(600)
    with contextlib.closing(sqlite3.connect(RunPaths.of(folder / "home", "toy").ledger)) as ledger:
        attempts = [
            (json.loads(request), json.loads(outcome))
            for request, outcome in ledger.execute("select request, outcome from attempts order by number")
        ]
        query = "select number, min(moment), metrics from reports group by number"  # metrics are those of the first one
        first = {number: (moment, json.loads(metrics)["cpu"]) for number, moment, metrics in ledger.execute(query)}
        begun, ended = ledger.execute("select min(moment), max(moment) from reports").fetchone()
    gaps, starts, cpu, copies = [], [], [], 0
    ends: dict[int, float] = {}  # of the newest attempt in each slot
    for request, outcome in attempts:
        if request["segment"]["parent"] is not None and request["number"] in first:
            moment, seconds = first[request["number"]]
            gaps.append(moment - ends[outcome["slot"]])
            starts.append(moment - request["begun"])
            cpu.append(seconds)
            copies += request["segment"]["parent"]["trial"] != request["trial"]
        ends[outcome["slot"]] = outcome["ended"]
    seconds = ended - begun
    print(  # noqa: T201
        f"ours: {status.state.value}, {copies} of {len(gaps)} segments took over another state, {copies / seconds:.2f} per "
        f"second; from the end of a segment to the first report of the next in its slot {_times(gaps)}, from the decision "
        f"{_times(starts)}, with {_times(cpu)} of processor time; in {seconds:.1f} s"
    )


def _times(seconds: list[float]) -> str:
    tail = sorted(seconds)[int(0.95 * len(seconds))]
    return f"{1000 * statistics.median(seconds):.0f} ms (95 %: {1000 * tail:.0f} ms)"


def rays(options: argparse.Namespace, folder: Path) -> None:
    """Run the toy with Ray Tune's population based training, and print its row."""
    import ray
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    sys.path.insert(0, str(folder / "jobs" / "toy"))
    from toy import grow  # type: ignore[import-not-found]  # written above

    steps, times = options.steps, folder / "times"
    times.mkdir()

    def fit(config: dict[str, Any]) -> None:
        done, height = 0, 0.0
        if (checkpoint := tune.get_checkpoint()) is not None:
            with checkpoint.as_directory() as place:
                done, height = json.loads(Path(place, "state").read_text())
        for step in range(done + 1, steps + 1):
            height = grow(config["rate"], height)
            with tempfile.TemporaryDirectory() as place:
                Path(place, "state").write_text(json.dumps([step, height]))
                saved = tune.Checkpoint.from_directory(place) if step % options.interval == 0 else None
                tune.report({"height": height, "at": time.time()}, checkpoint=saved)

    workers = {"env_vars": {"PYTHONPATH": str(folder / "jobs" / "toy")}}
    ray.init(num_cpus=options.slots, log_to_driver=False, include_dashboard=False, runtime_env=workers)
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=options.interval,
        hyperparam_mutations={"rate": tune.uniform(1e-4, 0.02)},
    )
    tuner = tune.Tuner(
        fit,
        param_space={"rate": tune.uniform(1e-4, 0.02)},
        tune_config=tune.TuneConfig(metric="height", mode="max", scheduler=scheduler, num_samples=options.members),
        run_config=tune.RunConfig(storage_path=str(folder / "ray"), name="toy", verbose=0),
    )
    results = tuner.fit()
    moments = [moment for result in results for moment in result.metrics_dataframe["at"]]
    copies = scheduler._num_perturbations
    seconds = max(moments) - min(moments)
    print(f"Ray Tune: {copies} perturbations, {copies / seconds:.2f} per second, in {seconds:.1f} s")  # noqa: T201
    ray.shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.populations")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--interval", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ours(options, Path(folder))
        try:
            rays(options, Path(folder))
        except ImportError as error:
            print(f"Ray Tune is left out: {error}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
