"""Minimizes small functions with one sampler in several situations, by our ledger and by plain Optuna; prints shortfalls.

The two draw with the same sampler, options, seeds and number of trials.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState as OptunaState
from tests.benchmarks import runs, studies

from trialplane.job import kinds, options
from trialplane.job.kinds import Job
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

WIDTH = 4  # trials at once in `parallel`
STOP_EVERY = 7  # trials after which `resume` has another controller
LARGEST = 0.6  # of x + y, beyond which a trial is infeasible, or out of memory
NEAREST = 0.5 * (0.7 + 0.6 - LARGEST) ** 2  # the loss of the best point within
WORST = 1.0  # shortfall where no trial has a result
AREA = 1.1 * 11 - 1 / 3  # of the objectives, which the front of `several objectives` dominates up to (1.1, 11)


def space(case: str) -> dict[str, Any]:
    """The parameters of a situation, as in a job file."""
    if case == "conditional":
        branches = {f"{axis}_{kind}": kind for kind in "ab" for axis in "xy"}
        unit = runs.unit_space(tuple(branches))
        conditional = {name: {**unit[name], "when": {"kind": kind}} for name, kind in branches.items()}
        return {"kind": {"type": "categorical", "choices": ["a", "b"]}, **conditional}
    return runs.unit_space(("x", "y", "z") if case == "several objectives" else ("x", "y"))


def metrics(case: str, params: Mapping[str, Any]) -> dict[str, float] | None:
    """What a trial returns; None for one that runs out of memory."""
    if case == "several objectives":
        wide = 1 + 4.5 * (params["y"] + params["z"])
        return {"loss": params["x"], "cost": wide * (1 - math.sqrt(params["x"] / wide))}
    kind = params.get("kind")
    x, y = (params["x"], params["y"]) if kind is None else (params[f"x_{kind}"], params[f"y_{kind}"])
    if case == "out of memory" and x + y > LARGEST:
        return None
    return {"loss": (x - 0.7) ** 2 + (y - 0.6) ** 2 + (0.1 if kind == "a" else 0.0), "size": x + y}


def shortfall(case: str, found: Sequence[dict[str, float] | None]) -> float:
    """How far the results are from the best possible."""
    results = [one for one in found if one is not None and (case != "constraints" or one["size"] <= LARGEST)]
    if not results:
        return WORST
    if case != "several objectives":
        return min(one["loss"] for one in results) - (NEAREST if case in ("constraints", "out of memory") else 0.0)
    area, lowest = 0.0, 11.0
    for loss, cost in sorted((one["loss"], one["cost"]) for one in results):
        area += (1.1 - loss) * max(0.0, lowest - cost)
        lowest = min(lowest, cost)
    return 1 - area / AREA


def job(case: str, sampler: Mapping[str, Any], seed: int, trials: int) -> Job:
    """The job of a situation."""
    names = ("loss", "cost") if case == "several objectives" else ("loss",)
    return kinds.read(
        {
            "name": studies.NAME,
            "kind": "hpo",
            "objectives": [{"metric": name, "direction": "minimize"} for name in names],
            "constraints": [{"metric": "size", "max": LARGEST}] if case == "constraints" else [],
            "space": space(case),
            "sampler": sampler,
            "trials": trials,
            "seed": seed,
        }
    )


def ours(case: str, asked: Job, folder: Path) -> list[dict[str, float] | None]:
    """The results of our ledger."""
    found: list[dict[str, float] | None] = []
    width = WIDTH if case == "parallel" else 1
    while len(found) < asked.trials:
        with studies.open_ledger(folder, asked) as ledger:
            last = len(found) + STOP_EVERY if case == "resume" else asked.trials
            while len(found) < last:
                batch = [request for _ in range(width) if (request := ledger.ask()) is not None]
                for request in batch:
                    found.append(metrics(case, request.params))
                    ledger.tell(_outcome(request, found[-1]))
                if not batch:
                    break
            if case == "resume":
                ledger.ask()  # which the next controller finds running
    return found


def _outcome(request: TrialRequest, result: dict[str, float] | None) -> TrialOutcome:
    if result is None:
        return TrialOutcome(request.number, TrialState.FAILED, failure=FailureClass.OOM)
    return dataclasses.replace(studies.outcome(request, 0.0), metrics=result)


def plain(case: str, asked: Job, _: Path) -> list[dict[str, float] | None]:
    """The results of Optuna alone; a trial out of memory fails, and a resumed study has a new sampler."""
    found: list[dict[str, float] | None] = []
    study = optuna.create_study(directions=["minimize"] * len(asked.objectives))
    width = WIDTH if case == "parallel" else 1
    while len(found) < asked.trials:
        if not found or (case == "resume" and len(found) % STOP_EVERY == 0):
            chosen = options.SAMPLERS[asked.search.sampler.name].cls
            study.sampler = getattr(optuna.samplers, chosen)(seed=asked.seed + len(found), **asked.search.sampler.options)
        for trial in [study.ask() for _ in range(min(width, asked.trials - len(found)))]:
            found.append(metrics(case, _suggested(case, trial)))
            result = found[-1]
            if result is None:
                study.tell(trial, state=OptunaState.FAIL)
                continue
            if case == "constraints":
                trial.set_constraint("size", result["size"] - LARGEST)
            study.tell(trial, [result[objective.metric] for objective in asked.objectives])
    return found


def _suggested(case: str, trial: optuna.Trial) -> dict[str, Any]:
    if case != "conditional":
        return {name: trial.suggest_float(name, 0.0, 1.0) for name in space(case)}
    kind = trial.suggest_categorical("kind", ["a", "b"])
    return {"kind": kind, **{f"{axis}_{kind}": trial.suggest_float(f"{axis}_{kind}", 0.0, 1.0) for axis in "xy"}}


def main() -> None:
    """Prints for each situation the shortfalls of ours and of plain Optuna, one for each seed."""
    arguments = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    answer: dict[str, dict[str, list[float]]] = {}
    for case in arguments["cases"]:
        answer[case] = {"ours": [], "plain": []}
        for seed in range(arguments["seeds"]):
            asked = job(case, arguments["sampler"], seed, arguments["trials"])
            for name, search in (("ours", ours), ("plain", plain)):
                folder = Path(arguments["scratch"]) / f"{case.replace(' ', '-')}-{seed}"
                answer[case][name].append(shortfall(case, search(case, asked, folder)))
    print(json.dumps(answer))  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
