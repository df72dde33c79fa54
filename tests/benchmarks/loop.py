"""How long an edit takes to a result on a laptop: `platform submit hpo FOLDER --local` as a user types it, start to prompt.

A trial writes when it began and ended. Its work is a sleep, so nearly all of the time is the platform's. A study that ends
before the exporter has imported MLflow waits for that, so the way to the prompt is measured for trials of 1 s too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from tests.benchmarks import runs
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import MeasurementFailed, Workplace

TRIALS = 8
SHORT, LONG = 0.04, 1.0  # seconds of a trial
CODE = """\
import time


def run(ctx):
    began = time.time()
    time.sleep(ctx.params["seconds"])
    with open(ctx.params["moments"], "a") as file:
        print(began, time.time(), file=file)
    return ctx.params["x"]
"""
# The same study as a script of Optuna's, in one process.
PEER = """\
import sys
import time

import optuna


def objective(trial):
    time.sleep(0.04)
    return trial.suggest_float("x", 0.0, 1.0)


optuna.create_study(storage="sqlite:///" + sys.argv[1]).optimize(objective, n_trials=8, n_jobs=2)
"""


def measure(place: Workplace) -> Iterator[Row]:
    """Seconds to the first trial, to the prompt, and of all; to the first trial of a job that imports torch."""
    first: list[float] = []
    prompt: list[float] = []
    whole: list[float] = []
    optuna: list[float] = []
    with_torch: list[float] = []
    later_prompt: list[float] = []
    if not place.quick:
        _submit(place, "loop-warm-up", CODE)
    for number in range(place.repeats(5)):
        place.say(f"loop: round {number + 1}")
        for samples, seconds in zip((first, prompt, whole), _submit(place, f"loop-{number}", CODE), strict=True):
            samples.append(seconds)
        storage = place.scratch / f"loop-{number}.db"
        optuna.append(place.time_command([sys.executable, "-c", PEER, str(storage)]))
        torch = place.heavy("torch")
        imports = place.time_command([sys.executable, "-c", torch])
        with_torch.append(_submit(place, f"loop-torch-{number}", torch + CODE)[0] - imports)
        later_prompt.append(_submit(place, f"loop-long-{number}", CODE, LONG)[1])
    study = f"a study of {TRIALS} trials of 40 ms, `--local`"
    yield Row("loop", f"{study}, from `submit` to the first trial", "s", tuple(first), goal=Goal(value=3))
    yield Row("loop", f"{study}, from the last trial's end to the prompt", "s", tuple(prompt), goal=Goal(value=1))
    what = f"the same with trials of {LONG:g} s"
    yield Row("loop", f"{what}, from the last trial's end to the prompt", "s", tuple(later_prompt), goal=Goal(value=1))
    yield Row("loop", study, "s", tuple(whole), "Optuna in one process, SQLite", tuple(optuna))
    what = "from `submit` to the first trial of a job that imports torch, less `python -c 'import torch'`"
    yield Row("loop", what, "s", tuple(with_torch), goal=Goal(value=1.5))


def _submit(place: Workplace, name: str, code: str, seconds_each: float = SHORT) -> tuple[float, float, float]:
    """Run a study and return the seconds until its first trial, from its last trial's end to the prompt, and of all."""
    command, moments = submission(place, name, code, seconds_each)
    start = time.time()  # the clock of the trials
    seconds = place.time_command(command, timeout=120)
    spans = [tuple(map(float, line.split())) for line in moments.read_text().splitlines()]
    if len(spans) != TRIALS:
        raise MeasurementFailed(f"{len(spans)} of {TRIALS} trials of {name} ended")
    return min(spans)[0] - start, start + seconds - max(end for _, end in spans), seconds


def submission(place: Workplace, name: str, code: str, seconds_each: float) -> tuple[list[str], Path]:
    """Write the job of a study, and return the command that submits it and the file that its trials write."""
    folder = place.scratch / name
    folder.mkdir()
    moments = folder / "moments"
    (folder / "train.py").write_text(code)
    job = {
        "kind": "hpo",
        "space": runs.unit_space(("x",)),
        "params": {"moments": str(moments), "seconds": seconds_each},
        "objective": {"metric": "loss", "direction": "minimize"},
        "trials": TRIALS,
        "parallel": 2,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return [platform(), "submit", "hpo", str(folder), "--name", name, "--local"], moments


def platform() -> str:
    """Return the path of the command `platform`."""
    return str(Path(sys.executable).with_name("platform"))
