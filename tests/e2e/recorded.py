"""The records of a run in a cluster's MLflow, read through `platform ui` as a user would."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.browser import Browser
from tests.e2e.conftest import Cluster

_API = "/api/2.0/mlflow"
PAGE = 1000  # runs in an answer of MLflow's


def mlflow_runs(cluster: Cluster, run: str, job: str = "criteria", metric: str = "") -> list[dict[str, Any]]:
    """The trials' runs in MLflow, through `platform ui`; with the times (ms) at which each reported `metric`."""
    with subprocess.Popen(
        cluster.command("ui", "--port", "5055"),
        env=cluster.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as ui:
        try:
            assert ui.stdout is not None
            browser = Browser(ui.stdout.readline().strip())
            runs = browser.get(f"{_API}/experiments/get-by-name?experiment_name={job}")
            text = f"tags.`trialplane.kind` = 'trial' and tags.`trialplane.run` = '{run}'"
            search = {"experiment_ids": [runs["experiment"]["experiment_id"]], "filter": text, "max_results": PAGE}
            answer = browser.get(f"{_API}/runs/search", search)
            runs = answer.get("runs", [])
            while token := answer.get("next_page_token"):
                answer = browser.get(f"{_API}/runs/search", {**search, "page_token": token})
                runs += answer.get("runs", [])
            ids = [one["info"]["run_id"] for one in runs if metric]
            reports = {run_id: _times(browser, run_id, metric) for run_id in ids}
        finally:
            ui.terminate()
    return [
        {
            "id": one["info"]["run_id"],
            "tags": {tag["key"]: tag["value"] for tag in one["data"]["tags"]},
            "status": one["info"]["status"],
            "reports": reports.get(one["info"]["run_id"], []),
        }
        for one in runs
    ]


def _times(browser: Browser, run_id: str, metric: str) -> list[int]:
    history = browser.get(f"{_API}/metrics/get-history?run_id={run_id}&metric_key={metric}")["metrics"]
    return [int(point["timestamp"]) for point in history]
