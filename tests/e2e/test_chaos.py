"""A pod of every role is killed by force while a study runs: the trials, the head with the controller, the chart's gateway,
MLflow and PostgreSQL, and KubeRay.

The short form of `python -m tests.chaos`. Not checked here: that it kills whom it should, and counts (tests/chaos).
"""

from __future__ import annotations

import subprocess
import sys

from tests.chaos.kills import roles
from tests.e2e.conftest import ROOT, Cluster


def test_a_kill_of_every_role_costs_no_trial_and_doubles_none(cluster: Cluster) -> None:
    where = ("--context", cluster.context, "--namespace", cluster.namespace)
    how = ("--trials", "60", "--once", "--every", "8", "--seed", "1")
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *where, *how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    table = {name: number for name, number, _ in rows}
    assert {role.name: table[f"kills: {role.name}"] for role in roles("")} == {role.name: "1" for role in roles("")}
    assert int(table["attempts tried again"]) > 0, "no trial was lost: the kills hit nothing"
