"""Optuna's `n_jobs=2` with a subprocess per trial that imports torch and transformers; prints when each trial ended."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import optuna

TRIAL = """
import sys
import torch
import transformers
print((float(sys.argv[1]) - 0.3) ** 2 + float(sys.argv[2]))
"""


def main() -> None:
    """Runs the trials and prints the ends, in seconds of one clock."""
    arguments = json.loads(sys.argv[1])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ends: list[float] = []

    def objective(trial: optuna.Trial) -> float:
        values = [str(trial.suggest_float(name, 0.0, 1.0)) for name in ("x", "y")]
        command = [sys.executable, "-c", TRIAL, *values]
        return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)

    study = optuna.create_study(storage=arguments["storage"], sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(
        objective, n_trials=arguments["trials"], n_jobs=2, callbacks=[lambda *_: ends.append(time.perf_counter())]
    )
    complete = sum(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)
    print(json.dumps({"ends": ends, "complete": complete}), flush=True)  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
