"""The records of a run in a cluster's MLflow, read through `platform ui` as a user would."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.browser import Browser
from tests.e2e.conftest import Cluster

_API = "/api/2.0/mlflow"
PAGE = 1000  # runs in an answer of MLflow's


def mlflow_runs(cluster: Cluster, run: str, job: str = "criteria") -> list[dict[str, Any]]:
    """Return the trials' runs in MLflow, through `platform ui`."""
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
        finally:
            ui.terminate()
    return [
        {
            "id": one["info"]["run_id"],
            "tags": {tag["key"]: tag["value"] for tag in one["data"]["tags"]},
            "status": one["info"]["status"],
        }
        for one in runs
    ]
