"""Optuna's study in memory with a random sampler; prints the memory of the process in KiB by the number of trials."""

from __future__ import annotations

import json
import sys

import optuna
from tests.benchmarks.programs.simulated import resident


def main() -> None:
    """Asks and tells."""
    arguments = json.loads(sys.argv[1])
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    memory: dict[int, int] = {}
    for number in range(1, arguments["trials"] + 1):
        trial = study.ask()
        for name in arguments["parameters"]:
            trial.suggest_float(name, 0.0, 1.0)
        study.tell(trial, 1 / number)
        if number % arguments["every"] == 0:
            memory[number] = resident()
    print(json.dumps({"memory": memory}), flush=True)  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
