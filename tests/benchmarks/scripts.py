"""A script that knows nothing of the platform: how soon the next trial of it begins, and what reading its output costs.

The script imports torch and transformers and parses its arguments. From one trial's last line to the next one's first is
what counts: of the script in a slot, of the same work as `run(ctx)` in a slot, and of a subprocess for each trial, as W&B,
Katib and Hydra's launchers start them. Then a script that prints 100,000 lines of metrics with a little work between them,
with a slot that reads them and with one that does not.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import runs
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import Workplace

from trialplane.job.program import MetricSource, Program
from trialplane.wire.records import SlotConfig, TrialOutcome

SCRIPT = """
import argparse
import time

began = time.time()
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
args = parser.parse_args()
print(f"began={began!r} score={args.lr}")
print(f"ended={time.time()!r}", flush=True)
"""
FUNCTION = """
import time

def run(ctx):
    began = time.time()
    return {"score": ctx.params["lr"], "began": began, "ended": time.time()}
"""
LINES = """
import time

began, total = time.perf_counter(), 0
for step in range({count}):
    for number in range(300):  # some 10 µs of work, which is far less than any training step
        total += number
    print(f"step {{step}}: loss={{1 / (step + 1)}} score={{step}}")
print(f"seconds={{time.perf_counter() - began}} score=1", flush=True)
"""
STDOUT = (MetricSource("stdout"),)


def measure(place: Workplace) -> Iterator[Row]:
    """The rows, ours and the peers in turn."""
    trials, imports = place.size(40, 2), place.heavy("torch", "transformers")
    script = Program(script="train.py", arguments=("{flags}",), metrics=STDOUT, names=("score", "began", "ended"))
    ours: list[float] = []
    function: list[float] = []
    processes: list[float] = []
    for number in range(place.repeats(3)):
        place.say(f"scripts: round {number + 1}, as scripts, as functions, as processes")
        ours += _gaps(_trials(place.scratch / f"script-{number}", imports + SCRIPT, script, trials))
        function += _gaps(_trials(place.scratch / f"function-{number}", imports + FUNCTION, None, trials))
        processes += _gaps(_subprocesses(place.scratch / f"process-{number}", imports + SCRIPT, max(2, trials // 8)))
    what = "from a trial's last line to the next one's first"
    yield Row("scripts", what, "ms", tuple(ours), "a subprocess for each trial", tuple(processes), Goal(times=30))
    beyond = tuple(one - statistics.median(function) for one in ours)
    yield Row("scripts", "the same, beyond the same work as run(ctx)", "ms", beyond, goal=Goal(value=10))

    count = place.size(100_000, 2_000)
    read: list[float] = []
    alone: list[float] = []
    for number in range(place.repeats(5)):
        place.say(f"scripts: round {number + 1}, {count:,} lines of metrics, read and not")
        text = LINES.format(count=count)
        for samples, sources in ((read, STDOUT), (alone, (MetricSource("file", path="seconds.txt"),))):
            program = Program(script="train.py", metrics=sources, names=("score",))
            folder = place.scratch / f"lines-{number}-{len(sources[0].path)}"
            [outcome] = _trials(folder, _told(text) if sources[0].path else text, program, 1)
            samples.append(outcome.metrics["seconds"])
    cost = tuple(100 * (one - other) / other for one, other in zip(read, alone, strict=True))
    yield Row("scripts", f"{count:,} lines of metrics, read, beyond the script alone", "%", cost, goal=Goal(value=3))


def _told(text: str) -> str:
    """The script with its last line in a file, as its output is not read."""
    return text.replace('print(f"seconds=', "print(file=open('seconds.txt', 'w'), end='')\nprint(f\"seconds=").replace(
        "flush=True)", "file=open('seconds.txt', 'w'))"
    )


def _trials(folder: Path, text: str, program: Program | None, count: int) -> list[TrialOutcome]:
    """The outcomes of trials in a slot, one after the other."""
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "train.py").write_text(text)
    entrypoint = "train:run" if program is None else ""
    config = SlotConfig("scripts", str(code), entrypoint, str(folder / "run"), str(folder / "cache"), program=program)
    params: dict[str, Any] = {"lr": 0.1} if "lr" in text else {}
    return runs.in_slot(config, [params] * count, "score")


def _subprocesses(folder: Path, text: str, count: int) -> list[dict[str, float]]:
    """What a script printed in processes of its own."""
    folder.mkdir(parents=True)
    file = folder / "train.py"
    file.write_text(text)
    made = []
    for _ in range(count):
        ended = subprocess.run([sys.executable, str(file), "--lr=0.1"], capture_output=True, text=True, check=True)
        pairs = dict(word.split("=") for word in ended.stdout.split())
        made.append({name: json.loads(value) for name, value in pairs.items()})
    return made


def _gaps(trials: list[TrialOutcome] | list[dict[str, float]]) -> list[float]:
    """Milliseconds from each trial's end to the next one's beginning."""
    metrics = [one.metrics if isinstance(one, TrialOutcome) else one for one in trials]
    return [1000 * (after["began"] - before["ended"]) for before, after in itertools.pairwise(metrics)]
