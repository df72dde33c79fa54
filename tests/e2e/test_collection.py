"""A collection in the pods of a cluster: `selfplay` as its user starts it, with a worker's pod that is lost on the way.

Not checked: GPUs, and results so large that nodes have to move gigabytes; benchmarks do the latter on one machine.
"""

from __future__ import annotations

import pytest
from tests.e2e.conftest import Cluster

GAMES, ITERATIONS = 20, 2


@pytest.mark.timeout(1800)
def test_twenty_games_twice_and_a_worker_pod_that_is_lost(cluster: Cluster) -> None:
    wanted = ("--workers", "2", "--games", str(GAMES), "--iterations", str(ITERATIONS), "--profile", "smoke")
    cluster.platform("submit", "collect", "selfplay", "--name", "chess", *wanted, "--detach")

    def busy() -> str:
        """The pod of a worker that has given results of the iteration that runs, and has more to do."""
        status = cluster.status("chess")
        if status["progress"].get("units", GAMES) > GAMES - 4:
            return ""
        return next((worker["node"] for worker in status["workers"] if worker["units"] and worker["state"] == "working"), "")

    pod = cluster.until("worker with results", busy, patience=600)
    cluster.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    cluster.until("end", lambda: cluster.status("chess")["state"] in ("SUCCEEDED", "FAILED"), patience=900)
    status = cluster.status("chess")
    assert (status["state"], status["complete"]) == ("SUCCEEDED", ITERATIONS), status["reason"]
    rows = cluster.said("results", "chess")
    assert [(row["trial"], row["state"]) for row in rows] == [(number, "COMPLETE") for number in range(ITERATIONS)]
    assert {(row["metrics"]["units"], row["metrics"]["units_failed"]) for row in rows} == {(GAMES, 0)}
    log = cluster.platform("logs", "chess", str(ITERATIONS - 1), "--worker", "0")
    assert log.strip()
