"""Ray Tune: trials at once that save a checkpoint of 10 MiB every few steps; prints when the last began and all ended."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune


def main() -> None:
    """Runs the trials and prints the moments, in seconds of one clock."""
    arguments = json.loads(sys.argv[1])
    steps, seconds, every = arguments["steps"], arguments["seconds"], arguments["every"]

    def train(config: dict[str, Any]) -> None:
        import numpy as np

        began = time.time()
        weights = np.random.default_rng(0).random(10 * 2**20 // 8)
        for step in range(steps):
            time.sleep(seconds)
            metrics = {"loss": config["x"], "began": began}
            if (step + 1) % every:
                tune.report(metrics)
                continue
            with tempfile.TemporaryDirectory() as folder:
                np.save(Path(folder, "weights.npy"), weights)
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))

    ray.init(address="local", num_cpus=arguments["trials"], include_dashboard=False, log_to_driver=False)
    tuner = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=arguments["trials"]),
        run_config=tune.RunConfig(storage_path=arguments["storage"], verbose=0),
    )
    results = tuner.fit()
    end = time.time()
    # All must be at work, as ours are whose slots are ready: the start of its actors is not counted.
    start = max(result.metrics["began"] for result in results)
    complete = len(results) - results.num_errors
    ray.shutdown()
    print(json.dumps({"start": start, "end": end, "complete": complete}), flush=True)  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
