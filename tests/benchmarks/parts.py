"""What does each part of the way from `submit` to the prompt take on a laptop? Beside plain Optuna, and an older checkout.

    python -m tests.benchmarks.parts [--rounds 5] [--warm-ups 1] [--seconds 0.04] [--beside CHECKOUT]

Each round runs the study of figure `loop` on a terminal, as a user does, then the same with the platform of CHECKOUT, the
root of another checkout of this repository, and as a script of Optuna's. Rounds to warm up come first, and do not count.
CHECKOUT uses the same libraries and a home of its own.

A trial writes when it began and ended, when its template began, and when this began and ended the import of train.py. The
other moments are those of the run's records, and of the last write to MLflow's database. It comes after the prompt: on a
terminal, this does not wait for MLflow.

Prints the seconds since the start of the command, in medians, and the load of the machine. Not a part of `python -m
tests.benchmarks`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from tests.benchmarks import loop
from tests.benchmarks.workplace import MeasurementFailed, Workplace

from trialplane.wire import paths
from trialplane.wire.paths import RunPaths

_PATIENCE = 300.0  # seconds for the exporter after the prompt; it has a low priority
OURS, OPTUNA = "ours", "Optuna"
CODE = """\
import os
import time


def process_start():
    ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


moments = [process_start(), time.time()]
import json

moments.append(time.time())


def run(ctx):
    began = time.time()
    time.sleep(ctx.params["seconds"])
    with open(ctx.params["moments"], "a") as file:
        print(json.dumps([*moments, began, time.time()]), file=file)
    return ctx.params["x"]
"""
PEER = """\
import json
import sys
import time

import optuna

imported, spans = time.time(), []


def objective(trial):
    x, began = trial.suggest_float("x", 0.0, 1.0), time.time()
    time.sleep(float(sys.argv[3]))
    spans.append((began, time.time()))
    return x


optuna.create_study(storage="sqlite:///" + sys.argv[1]).optimize(objective, n_trials=8, n_jobs=2)
with open(sys.argv[2], "w") as file:
    json.dump([imported, min(spans)[0], max(end for _, end in spans)], file)
"""
# Part → whether Optuna's script has it too.
PARTS = {
    "the job is stored, the controller starts": False,
    "the controller has imported its libraries": False,
    "a slot is ready, its template starts": False,
    "the template imports train.py": False,
    "its imports are done": True,
    "first line of the first trial": True,
    "end of the last trial": True,
    "prompt": True,
    "all in MLflow": False,
}


def main() -> int:
    """Measure in turn, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.parts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-ups", type=int, default=1, help="rounds before them, which do not count")
    parser.add_argument("--seconds", type=float, default=loop.SHORT, help="of a trial")
    parser.add_argument("--imports", default="json", metavar="MODULE", help="which train.py imports")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="root of another checkout of this repository")
    options = parser.parse_args()
    sources = {OURS: None, **({str(options.beside): options.beside.absolute() / "platform"} if options.beside else {})}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in (*sources, OPTUNA)}
    with tempfile.TemporaryDirectory(prefix="trialplane-benchmarks-", ignore_cleanup_errors=True) as scratch:
        places = {name: _place(Path(scratch) / f"{index}", source) for index, (name, source) in enumerate(sources.items())}
        for number in range(options.warm_ups + options.rounds):
            samples = {name: _ours(place, f"parts-{number}", options) for name, place in places.items()}
            samples[OPTUNA] = _optuna(places[OURS], number, options)
            for name, sample in samples.items() if number >= options.warm_ups else ():
                rounds[name].append(sample)
    Console(width=None if sys.stdout.isatty() else 140).print(_table(rounds), f"load {os.getloadavg()[0]:.1f}")
    return 0


@dataclasses.dataclass(frozen=True)
class _Checkout(Workplace):
    """The workplace of another checkout's platform."""

    source: Path | None = None

    def environment(self) -> dict[str, str]:
        """Of every child."""
        return super().environment() | ({"PYTHONPATH": str(self.source)} if self.source else {})


def _place(scratch: Path, source: Path | None) -> _Checkout:
    scratch.mkdir()
    return _Checkout(scratch, quick=False, rounds=None, say=lambda text: None, source=source)


def _ours(place: Workplace, name: str, options: argparse.Namespace) -> dict[str, float]:
    """Run the study on a terminal, and return the seconds from the start of the command to the end of each part."""
    code = CODE.replace("import json", f"import json, {options.imports}")
    command, file = loop.submission(place, name, code, options.seconds)
    start = time.time()  # the clock of the trials
    seconds = _time_on_terminal(place, command)
    run = RunPaths.of(place.home, name)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(json.loads(run.controller.read_text())["pid"]).wait(_PATIENCE)
    trials = sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda trial: trial[3])
    if len(trials) != loop.TRIALS:
        raise MeasurementFailed(f"{len(trials)} of {loop.TRIALS} trials of {name} ended")
    status = json.loads(place.output([loop.platform(), "status", name, "--local", "--output", "json"]))
    stored = json.loads(run.submission.read_text())["submitted"]
    moments = [stored, status["started"], *trials[0][:4], max(trial[4] for trial in trials), start + seconds]
    recorded = max(each.stat().st_mtime for each in place.home.glob(f"{paths.mlflow_db(place.home).name}*"))
    return dict(zip(PARTS, (moment - start for moment in (*moments, recorded)), strict=True))


def _time_on_terminal(place: Workplace, command: list[str]) -> float:
    """Return the seconds that a command takes on a terminal.

    Raises:
        MeasurementFailed: The command failed.
    """
    ours, theirs = pty.openpty()
    start = time.perf_counter()
    child = subprocess.Popen(command, env=place.environment(), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = bytearray()
    with contextlib.suppress(OSError):  # the terminal's end
        while data := os.read(ours, 4096):
            shown += data
    os.close(ours)
    if child.wait(60):
        raise MeasurementFailed(
            f"{' '.join(command)} ended with {child.returncode}:\n{shown[-2000:].decode(errors='replace')}"
        )
    return time.perf_counter() - start


def _optuna(place: Workplace, number: int, options: argparse.Namespace) -> dict[str, float]:
    """Run the script of Optuna's, and return the seconds from its start to the end of each part that it has."""
    file = place.scratch / f"optuna-{number}.json"
    script = f"import {options.imports}\n{PEER}"
    command = [sys.executable, "-c", script, str(file.with_suffix(".db")), str(file), str(options.seconds)]
    start = time.time()
    seconds = place.time_command(command)
    moments = [moment - start for moment in json.loads(file.read_text())]
    return dict(zip((part for part, has in PARTS.items() if has), (*moments, seconds), strict=True))


def _table(rounds: Mapping[str, list[dict[str, float]]]) -> Table:
    """Return the table of the medians, with the smallest and the largest."""
    made = Table("seconds from the start of the command until", *rounds)
    for part in PARTS:
        samples = [[sample[part] for sample in taken if part in sample] for taken in rounds.values()]
        made.add_row(
            part, *(f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})" if each else "" for each in samples)
        )
    return made


if __name__ == "__main__":
    sys.exit(main())
