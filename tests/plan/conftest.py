"""Sites and plans as the tests of manifests want them; the packed code is made by hand, for builds of zlib differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trialplane.job import kinds
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan, Provenance
from trialplane.plan.site import Site

SUBMITTED = 1767225600.0
_SITE: dict[str, Any] = {
    "version": "0.1.0",
    "release": "platform",
    "namespace": "ml",
    "images": {"controller": "trialplane-controller:1", "trial": "trialplane-trial:1"},
    "gateway": {"service": "platform-gateway", "port": 8080, "secret": "platform-gateway"},
    "ledger": {"name": "platform-ledger", "key": "url"},
    "controller_account": "platform-controller",
    "trial_account": "platform-trial",
}

NETWORK: dict[str, Any] = {
    "enabled": True,
    "head": {
        "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"trialplane.io/role": "gateway"}}}], "ports": [{"port": 8090}]}
        ],
        "egress": [{"to": [{"podSelector": {"matchLabels": {"trialplane.io/role": "gateway"}}}], "ports": [{"port": 8080}]}],
    },
    "autoscaler": {"egress": [{"ports": [{"port": 6443}]}]},
    "trial": {"egress": [{"ports": [{"port": 443}]}]},
}


INSTALL: dict[str, Any] = {
    "enabled": True,
    "index": "https://packages.example.org/simple",
    "timeout": "5m",
    "egress": [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 8443}]}],
}


def a_site(**changes: Any) -> Site:
    return Site.model_validate({**_SITE, **changes})


def a_plan(**changes: Any) -> Plan:
    search = {"objectives": [{"metric": "f1", "direction": "maximize"}], "trials": 24, "parallel": 2}
    fields = {"name": "criteria", "kind": "hpo", **(search if changes.get("kind", "hpo") == "hpo" else {}), **changes}
    job = kinds.read(fields)
    origin = Provenance(job_folder="/home/ann/jobs/criteria", user="ann", version="0.1.0", command=("platform", "submit"))
    return Plan("criteria-1", job, Pack(b"not really a tar.gz", "ab" * 32, ("job.yaml", "train.py")), origin)


# By what they show; each has a golden file of its name.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {"network": NETWORK}),
    "gpus": (
        {
            "trials": 800,
            "parallel": 16,
            "resources": {"cpus": 8, "memory": "32Gi", "gpus": 2, "shm": "8Gi"},
            "cluster": {
                "node_selector": {"nvidia.com/gpu.product": "A100"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "topology": {"spread": "topology.kubernetes.io/zone", "pack": "kubernetes.io/hostname"},
                "priority_class": "research",
                "queue": "team-a",
                "deadline": "3d",
                "controller": {"cpus": 2, "memory": "4Gi"},
                "labels": {"team": "nlp"},
                "annotations": {"karpenter.sh/do-not-disrupt": "true"},
            },
        },
        {
            "runs": {"claim": "platform-runs"},
            "node_selector": {"pool": "gpu"},
            "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
            "priority_class": "standard",
        },
    ),
    "autoscale": (
        {"cluster": {"autoscale": True, "idle": "5m", "queue": "team-a"}, "resources": {"gpus": 1}},
        {"env": {"HTTPS_PROXY": "http://proxy:3128"}, "overcommit": 4, "network": NETWORK},
    ),
    "train": (
        {
            "kind": "train",
            "nodes": 2,
            "resources": {"cpus": 32, "memory": "256Gi", "gpus": 8},
            "checkpoints": {"grace": "5m"},
            "cluster": {"queue": "team-a"},
            "resume": "criteria-0",
        },
        {
            "autoscale": True,
            "runs": {"claim": "platform-runs"},
            "data": {"claim": "datasets"},
            "checkpoints": {"claim": "platform-checkpoints", "grace": "120s"},
        },
    ),
    "collect": (
        {
            "kind": "collect",
            "collect": {"units": 800, "iterations": 10, "workers": 8, "learner": "train:learn", "in_flight": "1Gi"},
            "resources": {"cpus": 4, "memory": "8Gi", "gpus": 1},
            "cluster": {"autoscale": True},
        },
        {
            "runs": {"claim": "platform-runs"},
            "checkpoints": {"claim": "platform-checkpoints", "grace": "120s"},
        },
    ),
    "install": (
        {"requirements": "requirements.txt", "install": True, "resources": {"gpus": 1}},
        {"network": NETWORK, "install": INSTALL, "env": {"HTTPS_PROXY": "http://proxy:3128"}},
    ),
    "data": (
        {"cluster": {"image": "team/criteria@sha256:" + "0" * 64, "gpu_resource": "nvidia.com/mig-1g.10gb"}},
        {
            "images": {**_SITE["images"], "pull_policy": "Always", "pull_secrets": ["registry"]},
            "data": {"claim": "datasets"},
            "runs": {"claim": "platform-runs"},
        },
    ),
}


@pytest.fixture(params=CASES, name="case")
def _case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cases() -> set[str]:
    return set(CASES)


@pytest.fixture
def plan(case: str) -> Plan:
    return a_plan(**CASES[case][0])


@pytest.fixture
def site(case: str) -> Site:
    return a_site(**CASES[case][1])


@pytest.fixture(name="make")
def _make() -> tuple[Callable[..., Plan], Callable[..., Site]]:
    """A plan by fields of its job, and a site by its own."""
    return a_plan, a_site


@pytest.fixture
def submitted() -> float:
    return SUBMITTED
