"""The jobs of a sweep of Hydra: how much of a slot's time is not the task function's.

From a job's last line to the next one's first: its end, the next one's fork, configuration, folder and files. Measured in
one slot with the job that the sweeper writes, as percent of the whole from the first job's begin to the last one's end;
beside it the same sweep by Hydra's basic sweeper, in its one process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import runs
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import MeasurementFailed, Workplace

from hydra_plugins.trialplane_sweeper import _task as task
from hydra_plugins.trialplane_sweeper import sweeper
from trialplane.wire import records
from trialplane.wire.records import SlotConfig

SCRIPT = """
import time

import hydra


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    with open(cfg.times, "a") as file:
        file.write(f"{time.time()!r}\\n")
        time.sleep(cfg.seconds)
        file.write(f"{time.time()!r}\\n")
    return cfg.lr


if __name__ == "__main__":
    main()
"""


def measure(place: Workplace) -> Iterator[Row]:
    """A row for each length of a job, ours and Hydra's in turn."""
    for seconds in (0.1,) if place.quick else (1.0, 8.0):
        jobs = place.size(20 if seconds < 2 else 6, 3)
        ours: list[float] = []
        hydra: list[float] = []
        for number in range(place.repeats(3)):
            place.say(f"sweeps: round {number + 1}, {jobs} jobs of {seconds:g} s")
            folder = place.scratch / f"sweep-{seconds:g}-{number}"
            _write(folder)
            ours.append(_ours(folder, seconds, jobs))
            hydra.append(_hydra(folder, seconds, jobs))
        what = f"share of a slot's time between jobs of {seconds:g} s"
        yield Row("sweeps", what, "%", tuple(ours), "Hydra's basic sweeper", tuple(hydra), Goal(value=5))


def _write(folder: Path) -> None:
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "fit.py").write_text(SCRIPT)
    (folder / "conf" / "config.yaml").write_text("defaults: [{model: small}, _self_]\nlr: 0\nseconds: 1\ntimes: ''\n")
    for name in ("small", "large"):
        (folder / "conf" / "model" / f"{name}.yaml").write_text("layers: 2\n")


def _ours(folder: Path, seconds: float, jobs: int) -> float:
    times = folder / "ours.txt"
    made = task.Task(
        file=str(folder / "fit.py"),
        module="",
        function="main",
        job_name="fit",
        config_name="config",
        config_sources=(("hydra", "pkg://hydra.conf"), ("main", f"file://{folder}/conf"), ("schema", "structured://")),
        folder=str(folder),
        sweep_folder=str(folder / "ours"),
        hydra_overrides=("hydra.mode=MULTIRUN",),
        fixed_overrides=(f"seconds={seconds}", f"times={times}"),
        keys={"lr": "lr", "model": "model"},
        choices={"model": ("small", "large")},
        metrics=("objective",),
    )
    code = folder / "code"
    code.mkdir()
    (code / "hydra_sweep.py").write_text(sweeper.RUN)
    (code / "sweep.json").write_text(records.to_json(made))
    config = SlotConfig("sweeps", str(code), "hydra_sweep:run", str(folder / "run"), str(folder / "cache"))
    points = [{"lr": number / jobs, "model": ("small", "large")[number % 2]} for number in range(jobs)]
    runs.in_slot(config, points, "objective")
    return _idle(times)


def _hydra(folder: Path, seconds: float, jobs: int) -> float:
    times = folder / "hydra.txt"
    words = [f"seconds={seconds}", f"times={times}", "model=small,large", f"lr=range({max(1, jobs // 2)})"]
    began = time.monotonic()
    command = [sys.executable, "fit.py", "-m", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise MeasurementFailed(f"Hydra's sweep ended after {time.monotonic() - began:.0f} s: {done.stderr[-500:]}")
    return _idle(times)


def _idle(file: Path) -> float:
    """Percent of the time from the first begin to the last end that is between an end and the next begin."""
    times = [float(line) for line in file.read_text().split()]
    gaps = sum(begin - end for end, begin in zip(times[1::2], times[2::2], strict=False))
    return 100 * gaps / (times[-1] - times[0])
