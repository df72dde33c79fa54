"""Promotion and a population whose pods are killed: the same decisions as in runs that are left alone, and metrics that are
equal to the last bit. And with autoscaling, paused trials hold no pods.

Not checked here: kills of single processes (tests/study/test_promotion.py, test_population.py), the rules by themselves
(tests/controller).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.controller.test_promotion import play
from tests.e2e.conftest import Cluster

from trialplane.job.search import Ladder
from trialplane.wire import cluster as names

TOP, TRIALS, MEMBERS = 16, 24, 4
CODE = """
import random
import time


def run(ctx):
    done, values, walk = 0, [ctx.params["x"]], 0.0
    if state := ctx.restored:
        done, values, walk = state["step"], list(state["values"]), state["walk"]
    for epoch in range(done + 1, ctx.params["epochs"] + 1):
        walk += random.random()
        values.append(ctx.params["x"])
        time.sleep(ctx.params["pause"])
        loss = sum((x - 0.3) ** 2 for x in values) + walk / 100
        ctx.report(epoch, loss=loss)
        ctx.save(epoch, {"values": values, "walk": walk}, every=0.1)
    return {"loss": loss}
"""
SPEC = """
kind: hpo
params: {epochs: %d, pause: 0.0}
space:
  x: {type: float, low: 0.0, high: 1.0}
objective: {metric: loss, direction: minimize}
sampler: random
trials: %d
seed: 3
retries: {crashed: 9, lost: 9}
resources: {cpus: 1, memory: 512Mi}
%s
"""
# The trials wait for a file, and the last one, 15, for another. Earlier trials are better.
STEERED = """
import time
from pathlib import Path


def run(ctx):
    folder = Path(ctx.checkpoints).parent
    for epoch in range((ctx.restored or {"step": 0})["step"] + 1, ctx.params["epochs"] + 1):
        while not (folder / ("end" if ctx.trial == 15 else "begin")).exists():
            time.sleep(0.1)
        ctx.report(epoch, loss=ctx.trial + 1 / epoch)
        ctx.save(epoch, {})
    return {"loss": ctx.trial}
"""
PAUSE = ("--set", "params.pause=3")  # so that pods are killed between reports
VICTIMS = (names.TRIAL, names.CONTROLLER, names.TRIAL, names.CONTROLLER, names.TRIAL)


def kill_pods(cluster: Cluster, run: str, roles: Sequence[str]) -> None:
    """Delete a running pod of each role at once, each after some more reports of the run."""
    for role in roles:
        reports = len(curves(cluster, run))
        cluster.until(f"more than {reports} reports of {run}", lambda n=reports: len(curves(cluster, run)) > n)
        pods = cluster.until(f"running {role} pod of {run}", lambda r=role: cluster.running(run=run, role=r))
        cluster.kubectl("delete", "pod", pods[0], "--grace-period=0", "--force", "--wait=false")


def curves(cluster: Cluster, run: str) -> dict[tuple[int, int], float]:
    """The loss by trial and step; each step has the same in all attempts."""
    losses: dict[tuple[int, int], float] = {}
    for report in cluster.said("results", run, "--curves"):
        loss = report["metrics"]["loss"]
        assert losses.setdefault((report["trial"], report["step"]), loss) == loss, report
    return losses


def submit(cluster: Cluster, job: str, name: str, *words: str) -> str:
    """Submit a job; return the name of the run, which no earlier run in the cluster's ledger has."""
    run = f"{name}-{secrets.token_hex(2)}"
    cluster.platform("submit", "hpo", job, "--name", run, "--detach", *words)
    return run


def wait(cluster: Cluster, run: str) -> dict[str, Any]:
    """The status of a run that has succeeded."""
    ends = ("SUCCEEDED", "FAILED", "CANCELLED")
    status = cluster.until(f"end of {run}", lambda: (s := cluster.status(run))["state"] in ends and s, patience=600)
    assert status["state"] == "SUCCEEDED", status
    return dict(status)


def lineage(cluster: Cluster, run: str) -> list[tuple[int, int, int | None, dict[str, Any]]]:
    """The trial, the steps done before, the donor's trial and the parameters of each segment."""
    attempts = {row["number"]: row for row in cluster.said("results", run, "--all-attempts")}
    return [
        (row["trial"], row["done"], attempts[row["parent"]]["trial"] if row["parent"] is not None else None, row["params"])
        for row in cluster.said("results", run, "--lineage")
    ]


@pytest.mark.slow
def test_kills_of_pods_change_no_promotion_and_no_metric(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.job(tmp_path / "rungs", CODE, SPEC % (TOP, TRIALS, ""))
    whole = submit(cluster, job, "whole", "--parallel", "2")
    wait(cluster, whole)
    undisturbed = curves(cluster, whole)
    assert len(undisturbed) == TRIALS * TOP

    promote = "pruner={name: asha, promote: true, max_resource: epochs}"
    killed = submit(cluster, job, "killed", "--parallel", "1", "--set", promote, *PAUSE)
    kill_pods(cluster, killed, VICTIMS)
    status = wait(cluster, killed)
    assert status["retried"] >= 3

    rule, history, _ = play(Ladder(1, 4, TOP), TRIALS, lambda trial, done: undisturbed[trial, done])
    expected = [(stretch.trial, stretch.done) for stretch in history]
    assert [(trial, done) for trial, done, _, _ in lineage(cluster, killed)] == expected
    losses = curves(cluster, killed)
    assert len(losses) == rule.used_steps, "no step was left out, and none was trained beyond"
    assert losses == {key: undisturbed[key] for key in losses}, "to the last bit"
    cluster.check_exact(killed, TRIALS)


@pytest.mark.slow
def test_kills_of_pods_change_no_lineage_and_no_metric(cluster: Cluster, tmp_path: Path) -> None:
    population = "population: {interval: 4, steps: epochs, exploit: tournament}"
    job = cluster.job(tmp_path / "members", CODE, SPEC % (TOP, MEMBERS, population))
    alone = submit(cluster, job, "alone", "--parallel", "2")
    wait(cluster, alone)
    killed = submit(cluster, job, "killed", "--parallel", "2", *PAUSE)
    kill_pods(cluster, killed, VICTIMS)
    assert wait(cluster, killed)["retried"] >= 3

    segments = sorted(lineage(cluster, alone), key=lambda segment: segment[:2])
    assert sorted(lineage(cluster, killed), key=lambda segment: segment[:2]) == segments
    assert any(donor not in (None, trial) for trial, _, donor, _ in segments), "no member took a donor's checkpoint"
    undisturbed = curves(cluster, alone)
    losses = curves(cluster, killed)
    assert losses == {key: undisturbed[key] for key in losses}, "to the last bit"
    cluster.check_exact(killed, MEMBERS)


def test_with_autoscaling_paused_trials_hold_no_pods(cluster: Cluster, tmp_path: Path) -> None:
    """The last of the trials is slow. Its end lets some of the paused ones continue, one after another."""
    job = cluster.job(tmp_path / "steered", STEERED, SPEC % (TOP, 16, "cluster: {autoscale: true, idle: 20s}"))
    promote = "pruner={name: asha, promote: true, max_resource: epochs}"
    run = submit(cluster, job, "steered", "--parallel", "3", "--set", promote)

    def pods() -> list[str]:
        return cluster.running(run=run, role="trial")

    def let(file: str) -> None:
        cluster.kubectl("exec", pods()[0], "-c", "ray-worker", "--", "touch", f"{names.CHECKPOINTS}/{run}/{file}")

    def at_rest(status: dict[str, Any]) -> bool:
        """Whether one trial runs and all others have ended or are paused."""
        return status["running"] == 1 and status["complete"] + status["pruned"] + status["paused"] == 15

    cluster.until("three trial pods", lambda: len(pods()) == 3)
    let("begin")
    cluster.until("one running trial", lambda: at_rest(cluster.status(run)), patience=600)
    assert cluster.status(run)["paused"]
    cluster.until("one trial pod", lambda: len(pods()) == 1)
    assert at_rest(cluster.status(run))
    let("end")
    status = wait(cluster, run)
    assert (status["complete"], status["pruned"]) == (1, 15)
    assert status["progress"]["steps"] == len(curves(cluster, run)) >= 16 + 4 * 3 + 12
    cluster.check_exact(run, 16)
