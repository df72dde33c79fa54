"""What one MLflow run gets in one go, and what it gets from a store that a trial kept for itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient


@dataclasses.dataclass
class Batch:
    """What one MLflow run gets in one go."""

    metrics: list[Metric] = dataclasses.field(default_factory=list)
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    name: str = ""
    status: str = ""
    end: int | None = None
    artifacts: list[tuple[str, Path]] = dataclasses.field(default_factory=list)


def metrics_of(values: Mapping[str, float], moment: float, step: int) -> list[Metric]:
    """Values of one step, as MLflow takes them, in order of their names."""
    return [Metric(name, float(value), milliseconds(moment), step) for name, value in sorted(values.items())]


def milliseconds(moment: float) -> int:
    """A time in seconds as MLflow counts it."""
    return int(moment * 1000)


def adopt(store: Path, batch: Batch) -> None:
    """Takes over what a trial logged into a store of its own because MLflow was away when it started."""
    client = MlflowClient(f"sqlite:///{store}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments):
        batch.params |= run.data.params
        batch.tags |= {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
        for name in run.data.metrics:
            batch.metrics += client.get_metric_history(run.info.run_id, name)
        for item in client.list_artifacts(run.info.run_id):
            folder = Path(client.download_artifacts(run.info.run_id, item.path))
            batch.artifacts.append(("", folder))
