"""What MLflow on a cluster has of a run, read through `platform ui` as a user would."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from typing import Any

from tests.e2e.conftest import Cluster

PAGE = 1000  # runs in an answer of MLflow's


def mlflow_runs(cluster: Cluster, run: str, job: str = "criteria", metric: str = "") -> list[dict[str, Any]]:
    """The trials' runs in MLflow, through `platform ui`; with the times (ms) at which each reported `metric`."""
    with subprocess.Popen(
        cluster.command("ui", "--port", "5055"), env=cluster.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as ui:
        try:
            cluster.until("MLflow", lambda: _answers("http://127.0.0.1:5055/health"), patience=300)
            name = urllib.parse.quote(f"{cluster.namespace}/{job}", safe="")
            experiment = _ask(f"experiments/get-by-name?experiment_name={name}")["experiment"]["experiment_id"]
            text = f"tags.`trialplane.kind` = 'trial' and tags.`trialplane.run` = '{run}'"
            search = {"experiment_ids": [experiment], "filter": text, "max_results": PAGE}
            answer = _ask("runs/search", search)
            found = answer.get("runs", [])
            while token := answer.get("next_page_token"):
                answer = _ask("runs/search", {**search, "page_token": token})
                found += answer.get("runs", [])
            reports = {one["info"]["run_id"]: _times(one["info"]["run_id"], metric) for one in found if metric}
        finally:
            ui.terminate()
    return [
        {
            "id": one["info"]["run_id"],
            "tags": {tag["key"]: tag["value"] for tag in one["data"]["tags"]},
            "status": one["info"]["status"],
            "reports": reports.get(one["info"]["run_id"], []),
        }
        for one in found
    ]


def _times(run_id: str, metric: str) -> list[int]:
    found = _ask(f"metrics/get-history?run_id={run_id}&metric_key={metric}")["metrics"]
    return [int(one["timestamp"]) for one in found]


def _ask(path: str, body: Any = None) -> Any:
    url = f"http://127.0.0.1:5055/api/2.0/mlflow/{path}"
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        time.sleep(0.2)
        return False
