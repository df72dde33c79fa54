"""The verbs that continue a study or start from it, on a cluster: retry, edit, diff, a clone of a trial, and a refit.

Not checked here: each of their rules (tests/client, tests/cli), and how a winner is registered (tests/cli/test_cloning.py).
"""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from tests.e2e.conftest import Cluster

CODE = """
def run(ctx):
    if (ctx.trial, ctx.attempt) == (1, 1) and not ctx.run.endswith("-refit"):
        raise RuntimeError("fails the first time")
    ctx.save(1, {"x": ctx.params["x"]})
    return {"score": ctx.params["x"]}
"""
SPEC = """
kind: hpo
space:
  x: {type: float, low: 0.0, high: 1.0}
objective: {metric: score, direction: maximize}
sampler: random
trials: 4
parallel: 2
seed: 3
keep: {best: 2}
resources: {cpus: 1, memory: 512Mi}
"""


@pytest.mark.slow
def test_a_study_is_retried_edited_cloned_and_refitted(cluster: Cluster, tmp_path: Path) -> None:
    run = f"verbs-{secrets.token_hex(3)}"
    job = cluster.job(tmp_path / "verbs", CODE, SPEC)
    cluster.platform("submit", "hpo", job, "--name", run)
    before = {row["trial"]: row for row in cluster.said("results", run)}
    assert {trial for trial, row in before.items() if row["state"] == "FAILED"} == {1}

    cluster.platform("retry", run, "--failed")
    rows = {row["trial"]: row for row in cluster.check_exact(run, 4)}
    assert rows[1]["params"] == before[1]["params"]
    assert {trial: row["number"] for trial, row in rows.items() if trial != 1} == {
        trial: row["number"] for trial, row in before.items() if trial != 1
    }, "no other trial ran again"

    cluster.platform("edit", run, "--set", "trials=5")
    cluster.check_exact(run, 5)
    assert "trials: 5 → 4" in cluster.platform("diff", job, run)

    clone, refit = f"{run}-clone", f"{run}-refit"
    cluster.platform("submit", "hpo", "--from", f"{run}:1", "--name", clone)
    (row,) = cluster.check_exact(clone, 1)
    assert row["values"] == [before[1]["params"]["x"]]

    cluster.platform("refit", run, "--top", "2", "--seeds", "2", "--name", refit)
    cluster.check_exact(refit, 4)
    compared = cluster.said("refit", refit, "--show")
    best = max(row["params"]["x"] for row in cluster.said("results", run))
    assert compared["candidates"][0]["values"] == [best, best]
    for name in (run, clone, refit):
        cluster.platform("delete", name, "--yes")
