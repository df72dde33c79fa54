"""The state of MLflow that two exports of one ledger must agree in: all but ids and the times at which runs were created."""

from __future__ import annotations

from typing import Any

from tests.exporter.conftest import Place

from trialplane.wire import labels

_PROGRESS = (labels.EXPORTED, labels.EXPORTER, labels.PARENT)


def state(place: Place) -> dict[str, Any]:
    """By name of the run, what it holds; the name of a second run of that name ends with a sign."""
    runs = place.everything()
    names = {run.info.run_id: run.info.run_name for run in runs}
    tables: dict[str, Any] = {}
    for run in runs:
        name = run.info.run_name
        while name in tables:
            name += "+"
        tables[name] = {
            "status": run.info.status,
            "end": run.info.end_time,
            "params": run.data.params,
            "tags": {key: value for key, value in run.data.tags.items() if key not in _PROGRESS},
            "parent": names.get(run.data.tags.get(labels.PARENT, "")),
            "metrics": {
                key: sorted(
                    (metric.step, metric.timestamp, repr(metric.value))
                    for metric in place.client.get_metric_history(run.info.run_id, key)
                )
                for key in run.data.metrics
            },
            "latest": {key: repr(value) for key, value in run.data.metrics.items()},
        }
    return tables
