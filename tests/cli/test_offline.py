"""`platform submit … --dry-run --offline`: what is checked and printed without a cluster, and that none is contacted."""

from __future__ import annotations

import pytest
import yaml

from trialplane.kube import kubeconfig

SUBMIT = ("submit", "hpo", "demo", "--name", "x", "--dry-run", "--offline")


@pytest.fixture(autouse=True)
def nowhere(workplace, monkeypatch):
    """Nobody reads a kubeconfig."""

    def read(context):
        raise AssertionError("a kubeconfig was read")

    monkeypatch.setattr(kubeconfig, "read", read)


def test_run_and_code_are_printed_without_an_owner(platform, home):
    result = platform(*SUBMIT)
    assert result.exit_code == 0, result.stderr
    run, code = yaml.safe_load_all(result.stdout)
    assert (run["kind"], run["metadata"]["name"], code["kind"]) == ("Run", "x", "ConfigMap")
    assert "annotations" not in run["metadata"] and "namespace" not in run["metadata"]
    assert result.stdout.startswith("# The cluster only accepts a Run with your username")
    assert "no cluster was contacted" in result.stderr
    namespaces = {thing["metadata"]["namespace"] for thing in yaml.safe_load_all(platform(*SUBMIT, "-n", "team").stdout)}
    assert namespaces == {"team"}
    assert not home.exists()


def test_the_job_is_checked_and_named(platform):
    result = platform(*SUBMIT, "--trials", "0")
    assert (result.exit_code, "--trials: trials: 0 must be over 0" in result.stderr) == (2, True)
    (run, _) = yaml.safe_load_all(platform(*(word for word in SUBMIT if word not in ("--name", "x"))).stdout)
    assert run["metadata"]["name"].startswith("demo-")


@pytest.mark.parametrize("words", [SUBMIT[:5] + SUBMIT[6:], (*SUBMIT, "--local")])
def test_offline_is_for_a_dry_run_of_a_cluster(platform, words):
    result = platform(*words)
    assert (result.exit_code, "use it with --dry-run, and without --local" in result.stderr) == (2, True)
