"""What is left of a search after `kill -9`? Promotion here beside Ray Tune's ASHA and `Tuner.restore`.

    python -m tests.benchmarks.restores [--trials 16] [--kills 3] [--every 12] [--pause 0.3]

Both train the same function of Ray Tune, which saves a checkpoint at each step, with one slot, and the same configurations
in the same order. Each is run undisturbed first. Then it is killed with all its processes after each `--every` newly trained
steps, and restored: `platform resume`, or `Tuner.restore` with `resume_unfinished`. Ray Tune writes the state of its
experiment every second (`TUNE_GLOBAL_CHECKPOINT_S=1`), which is more often than by default.

Prints for each: how many results the rungs had before each kill and after it, steps trained twice, trials that end at
another step than undisturbed, and the steps in all beside those of the undisturbed search. Not a part of `python -m
tests.benchmarks`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

TOP, FACTOR = 16, 4
CODE = """
import tempfile
import time
from pathlib import Path

from ray import tune


def fit(config):
    step = 0
    if (checkpoint := tune.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            step = int(Path(folder, "step").read_text())
    while step < config["epochs"]:
        step += 1
        time.sleep(config["pause"])
        with open(config["log"], "a") as log:
            log.write(f"{config['x']} {step}\\n")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            tune.report({"loss": config["x"] + 1 / step}, checkpoint=tune.Checkpoint.from_directory(folder))
"""


class Search(Protocol):
    """A search that can be killed."""

    def begin(self) -> int:
        """Start or restore it; return the id of its main process."""

    def has_ended(self) -> bool:
        """Return whether it is complete."""

    def results(self, *, after_restore: bool) -> int:
        """Return how many results the rungs have: now, or when it was restored last."""


class RayTune:
    """Ray Tune's ASHA in a process."""

    def __init__(self, folder: Path, params: dict[str, Any], values: list[float]) -> None:
        self._rungs = folder / "rungs.jsonl"
        fields = {"folder": str(folder), "params": params, "values": values, "top": TOP, "factor": FACTOR}
        self._arguments = json.dumps(fields)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "driver.log"

    def begin(self) -> int:
        """See `Search`."""
        command = [sys.executable, "-m", "tests.benchmarks.programs.restoring", self._arguments]
        environment = {**os.environ, "TUNE_GLOBAL_CHECKPOINT_S": "1"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        return self._process.pid

    def has_ended(self) -> bool:
        """See `Search`."""
        assert self._process is not None
        code = self._process.poll()
        if code not in (None, 0, -signal.SIGKILL):
            raise RuntimeError(self._log.read_text())
        return code == 0

    def results(self, *, after_restore: bool) -> int:
        """See `Search`."""
        lines = [json.loads(line) for line in self._rungs.read_text().splitlines()]
        return [results for event, results in lines if event == "begins" or not after_restore][-1]


class Ours:
    """A study with promotion, on this machine."""

    def __init__(self, folder: Path, params: dict[str, Any], values: list[float]) -> None:
        self._folder = folder
        fields = {
            "kind": "hpo",
            "entrypoint": "ray:main:fit",
            "params": params,
            "space": {"x": {"type": "float", "low": 0, "high": len(values)}},
            "objective": {"metric": "loss", "direction": "minimize"},
            "pruner": {"name": "asha", "promote": True, "max_resource": "epochs"},
            "enqueue": [{"x": value} for value in values],
            "trials": len(values),
        }
        (folder / "job.yaml").write_text(json.dumps(fields))
        self._run: Any = None

    def begin(self) -> int:
        """See `Search`."""
        from trialplane import Platform
        from trialplane.client import process
        from trialplane.wire.paths import RunPaths

        os.environ["TRIALPLANE_HOME"] = str(self._folder / "home")
        if self._run is None:
            self._run = Platform().submit(self._folder, name="asha")
        else:
            self._run.resume()
        run = RunPaths.of(self._folder / "home", "asha")
        controller = wait(lambda: process.active_controller(run))
        return int(controller.pid)

    def has_ended(self) -> bool:
        """See `Search`."""
        return bool(self._run.status().state.is_ended)

    def results(self, *, after_restore: bool) -> int:
        """See `Search`."""
        from trialplane.pages import lineage

        attempts = self._run.attempts()
        *rungs, _ = lineage.funnel(self._run.job, lineage.lineages(self._run.job, attempts))
        return sum(rung.reached for rung in rungs)


def wait(condition: Callable[[], Any]) -> Any:
    """Return what a condition gives, once it gives something."""
    deadline = time.monotonic() + 300
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError("waited 300 s in vain")
        time.sleep(0.02)
    return value


def kill(pid: int) -> None:
    """Kill a process and everything below it, and wait until all of it is gone."""
    main = psutil.Process(pid)
    everyone = [main, *main.children(recursive=True)]
    for process in everyone:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(everyone, timeout=60)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A search that has ended: the steps that it has trained, by value of x, and the rungs' results around each kill."""

    steps: list[tuple[str, int]]
    kills: list[tuple[int, int]]

    @property
    def last_steps(self) -> dict[str, int]:
        """The step at which each trial has ended."""
        last: dict[str, int] = collections.defaultdict(int)
        for value, step in self.steps:
            last[value] = max(last[value], step)
        return dict(last)


def run(make: Callable[[Path, dict[str, Any], list[float]], Search], options: argparse.Namespace, kills: int) -> Ended:
    """Run a search to its end; kill and restore it on the way."""
    values = [float(value) for value in range(1, options.trials + 1)]
    random.Random(3).shuffle(values)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        (folder / "main.py").write_text(CODE)
        log = folder / "steps.log"
        log.touch()
        search = make(folder, {"epochs": TOP, "pause": options.pause, "log": str(log)}, values)
        pid, around = search.begin(), []
        for number in range(1, kills + 1):
            goal = number * options.every
            wait(lambda goal=goal: search.has_ended() or len(log.read_text().splitlines()) >= goal)
            if search.has_ended():
                break
            kill(pid)
            before = search.results(after_restore=False)
            trained = len(log.read_text().splitlines())
            pid = search.begin()
            wait(lambda trained=trained: search.has_ended() or len(log.read_text().splitlines()) > trained)
            around.append((before, search.results(after_restore=True)))
        while not search.has_ended():
            time.sleep(0.1)
        lines = [line.split() for line in log.read_text().splitlines()]
        return Ended([(value, int(step)) for value, step in lines], around)


def line(name: str, undisturbed: Ended, killed: Ended) -> str:
    """Return the line of the table."""
    twice = len(killed.steps) - len(set(killed.steps))
    others = sum(undisturbed.last_steps[value] != last for value, last in killed.last_steps.items())
    rungs = ", ".join(f"{before} → {after}" for before, after in killed.kills)
    return (
        f"{name:14} {len(killed.kills)} kills; results in rungs: {rungs}; {len(killed.steps)} steps instead of "
        f"{len(undisturbed.steps)}, {twice} of them twice; {others} of {len(killed.last_steps)} trials end at another step"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.restores", description=description)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--every", type=int, default=12, help="newly trained steps before each kill")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds of a step")
    options = parser.parse_args(arguments)
    for name, make in (("promotion", Ours), ("Ray Tune ASHA", RayTune)):
        print(line(name, run(make, options, 0), run(make, options, options.kills)), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
