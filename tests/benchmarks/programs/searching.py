"""Minimizes a function of ten parameters with TPE, by our ledger or by plain Optuna; prints the best values on the way."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
from tests.benchmarks import studies


def main() -> None:
    """Prints the best value after each number of trials in `marks`, and the seconds of all trials."""
    arguments = json.loads(sys.argv[1])
    marks, seed = arguments["marks"], arguments["seed"]
    function = studies.FUNCTIONS[arguments["function"]]
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = _plain if arguments["plain"] else _ours
    before = time.perf_counter()
    values = search(function, max(marks), seed, Path(arguments["scratch"]))
    seconds = time.perf_counter() - before
    answer = {"best": [min(values[:mark]) for mark in marks], "seconds": seconds}
    print(json.dumps(answer))  # noqa: T201  this is the answer


def _ours(function: Callable[[Mapping[str, Any]], float], trials: int, seed: int, folder: Path) -> list[float]:
    values = []
    with studies.open_ledger(folder, studies.job(trials, "tpe", seed)) as ledger:
        while (request := ledger.ask()) is not None:
            values.append(function(request.params))
            ledger.tell(studies.outcome(request, values[-1]))
    return values


def _plain(function: Callable[[Mapping[str, Any]], float], trials: int, seed: int, _: Path) -> list[float]:
    values = []
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    for _number in range(trials):
        trial = study.ask()
        values.append(function({name: trial.suggest_float(name, 0.0, 1.0) for name in studies.PARAMETERS}))
        study.tell(trial, values[-1])
    return values


if __name__ == "__main__":
    main()
