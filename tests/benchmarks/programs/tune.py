"""Ray Tune with OptunaSearch: a trial that imports torch and transformers, two at a time; prints when each ended."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import ray
from ray import tune
from ray.tune.search.optuna import OptunaSearch


class Heavy(tune.Trainable):  # type: ignore[misc]  # ray has no types here
    """The trial; with `reuse_actors` the next one starts in the same process by `reset_config`."""

    def setup(self, config: dict[str, Any]) -> None:
        import torch  # noqa: F401  the cost of a trial that needs them
        import transformers  # noqa: F401

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        return True

    def step(self) -> dict[str, Any]:
        return {"loss": (self.config["x"] - 0.3) ** 2 + self.config["y"], "done": True}


class Clock(tune.Callback):  # type: ignore[misc]  # ray has no types here
    """Notes when trials end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    """Runs the trials and prints the ends, in seconds of one clock."""
    arguments = json.loads(sys.argv[1])
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    clock = Clock()
    tuner = tune.Tuner(
        Heavy,
        param_space={"x": tune.uniform(0.0, 1.0), "y": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=OptunaSearch(seed=0),
            num_samples=arguments["trials"],
            max_concurrent_trials=2,
            reuse_actors=arguments["reuse"],
        ),
        run_config=tune.RunConfig(
            storage_path=arguments["storage"],
            verbose=0,
            callbacks=[clock],
            # A class would write a checkpoint when its trial ends; ours writes none either.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    results = tuner.fit()
    for error in results.errors[:1]:
        print(error, file=sys.stderr)  # noqa: T201  for the log
    complete = len(results) - results.num_errors
    ray.shutdown()
    print(json.dumps({"ends": clock.ends, "complete": complete}), flush=True)  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
