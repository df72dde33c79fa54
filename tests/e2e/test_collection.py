"""A collection in the pods of a cluster: `selfplay` as its user starts it, with a worker's pod that is lost on the way.

Not checked: GPUs, and results so large that nodes have to move gigabytes; benchmarks do the latter on one machine.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.e2e.conftest import Cluster

GAMES, ITERATIONS = 12, 2


@pytest.mark.timeout(1800)
def test_games_twice_and_a_worker_pod_that_is_lost(cluster: Cluster) -> None:
    wanted = ("--workers", "2", "--games", str(GAMES), "--iterations", str(ITERATIONS), "--profile", "smoke")
    # Searched longer and two at a time, games come one after the other for long enough to be seen by a busy machine.
    slow = ("--set", "params.simulations=192", "--set", "params.games_at_once=2")
    cluster.platform("submit", "collect", "selfplay", "--name", "chess", *wanted, *slow, "--detach")

    def busy() -> dict[str, Any] | None:
        """A worker that has given results of the iteration that runs, in which there is much left to do."""
        status = cluster.status("chess")
        if not 2 <= status["progress"].get("units", 0) <= GAMES // 2:
            return None
        return next(
            (worker for worker in status["progress"]["workers"] if worker["units"] and worker["state"] == "working"), None
        )

    worker = cluster.until("worker with results", busy, patience=600)
    cluster.kubectl("delete", "pod", worker["node"], "--force", "--grace-period=0")
    cluster.until("end", lambda: cluster.status("chess")["state"] in ("SUCCEEDED", "FAILED"), patience=900)
    status = cluster.status("chess")
    assert (status["state"], status["complete"]) == ("SUCCEEDED", ITERATIONS), status["reason"]
    rows = cluster.said("results", "chess")
    assert [(row["trial"], row["state"]) for row in rows] == [(number, "COMPLETE") for number in range(ITERATIONS)]
    assert {(row["metrics"]["units"], row["metrics"]["units_failed"]) for row in rows} == {(GAMES, 0)}
    assert re.search(rf"worker {worker['worker']} at units? .*: lost: ", cluster.platform("logs", "chess")), "it was idle"
    assert "gave" in cluster.platform("logs", "chess", "0", "--worker", str(worker["worker"]))
