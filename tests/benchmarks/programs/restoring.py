"""Runs the trials of `tests.benchmarks.restores` with Ray Tune's ASHA, or restores them from a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

NAME = "asha"


class Counted(ASHAScheduler):
    """ASHA, which writes how many results its rungs have: when it begins, and after each report."""

    file: Path

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take a trial; write the results that are there before the first one."""
        super().on_trial_add(tune_controller, trial)
        if len(self._trial_info) == 1:
            self._write("begins")

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Decide by a report, and write the results that are there then."""
        decision: str = super().on_trial_result(tune_controller, trial, result)
        self._write("reports")
        return decision

    def _write(self, event: str) -> None:
        results = sum(len(recorded) for bracket in self._brackets for _, recorded in bracket._rungs)
        with self.file.open("a") as opened:
            opened.write(json.dumps([event, results]) + "\n")


def main() -> None:
    """Start, or continue where there is something to restore."""
    arguments = json.loads(sys.argv[1])
    folder = Path(arguments["folder"])
    sys.path.insert(0, str(folder))
    from main import fit  # type: ignore[import-not-found]  # written by the benchmark

    ray.init(
        num_cpus=1,
        log_to_driver=False,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": f"{folder}:{Path.cwd()}"}},
    )
    path = folder / "ray" / NAME
    if tune.Tuner.can_restore(str(path)):
        tune.Tuner.restore(str(path), trainable=fit, resume_unfinished=True).fit()
        return
    scheduler = Counted(
        time_attr="training_iteration", max_t=arguments["top"], grace_period=1, reduction_factor=arguments["factor"]
    )
    scheduler.file = folder / "rungs.jsonl"
    tune.Tuner(
        fit,
        param_space={**arguments["params"], "x": tune.grid_search(arguments["values"])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(path.parent), name=NAME, verbose=0),
    ).fit()


if __name__ == "__main__":
    main()
