"""Whether a run fits a cluster: nodes and queue, on manifests as `plan` makes them."""

from __future__ import annotations

import decimal

import pytest
from tests.client.conftest import ORIGIN
from tests.client.kuberay_double import SITE

from trialplane.job import kinds, load
from trialplane.kube import preflight
from trialplane.kube.preflight import ClusterSnapshot
from trialplane.plan import raycluster
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site


@pytest.fixture
def look(workplace):
    """Checks the job demo with overrides against what a cluster has."""

    def check(snapshot: ClusterSnapshot, **overrides):
        spelt = {key.replace("__", "."): value for key, value in overrides.items()}
        job = load.load_job(workplace / "jobs" / "demo", overrides=spelt)
        ray_cluster = raycluster.raycluster(Plan("a", job, Pack(b"", "", ()), ORIGIN), Site.model_validate(SITE))
        issues, warnings = preflight.check(job, ray_cluster, snapshot)
        return [f"{one.field}: {one.message}" for one in issues], warnings

    return check


@pytest.fixture
def training(look, workplace):
    """As `look`, where the job is a training."""
    (workplace / "jobs" / "demo" / "job.yaml").write_text("kind: train\n")
    return look


def node(labels=None, **allocatable):
    found = {"cpu": "8", "memory": "32Gi", **{key.replace("__", "/").replace("_", "."): v for key, v in allocatable.items()}}
    return {"metadata": {"name": "n", "labels": labels or {}}, "status": {"allocatable": found}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", "0.5"), ("2", "2"), ("2Gi", str(2 * 2**30)), ("1.5G", "1.5e9"), ("1e3", "1000"), (4, "4"), ("?", "0")],
)
def test_amounts_as_kubernetes_writes_them(text, value):
    assert preflight.quantity(text) == decimal.Decimal(value)


def test_what_may_not_be_read_is_not_judged(look):
    assert look(ClusterSnapshot()) == ([], [])


def test_a_job_that_fits(look):
    assert look(ClusterSnapshot(nodes=[node()])) == ([], [])


def test_gpus_of_the_largest_node_that_trials_may_run_on(look):
    nodes = [node({"pool": "big"}, nvidia_com__gpu="8"), node({"pool": "small"}, nvidia_com__gpu="2")]
    assert look(ClusterSnapshot(nodes=nodes), resources__gpus=8) == ([], [])
    issues, _ = look(ClusterSnapshot(nodes=nodes), resources__gpus=8, cluster__node_selector={"pool": "small"})
    assert issues == [
        "resources.gpus: a trial requests 8 nvidia.com/gpu, and the largest node that it may run on has 2 nvidia.com/gpu; "
        "--set resources.gpus=2"
    ]


def test_what_a_node_autoscaler_may_make_is_a_warning(look):
    assert look(ClusterSnapshot(nodes=[node()]), resources__gpus=1) == (
        [],
        ["a trial requests 1 nvidia.com/gpu, and no node has any now; it waits until one appears"],
    )
    assert look(ClusterSnapshot(nodes=[node()]), cluster__node_selector={"pool": "gpu"}) == (
        [],
        ["no node has the labels pool=gpu now; a trial waits until one appears"],
    )
    _, (warning,) = look(ClusterSnapshot(nodes=[node()]), resources__cpus=16)
    assert "16 cores, and the largest node that it may run on has 8 cores; it waits" in warning


ASKED = {
    "cluster__priority_class": "urgent",
    "cluster__tolerations": [{"operator": "Exists"}],
    "cluster__node_selector": {"pool": "others"},
    "cluster__labels": {"app": "web"},
    "cluster__annotations": {"k8s.v1.cni.cncf.io/networks": "storage"},
}


def test_a_job_asks_for_nothing_beyond_what_the_values_allow(workplace):
    site = Site.model_validate({**SITE, "node_selector": {"pool": "ours"}})
    job = load.load_job(workplace / "jobs" / "demo", overrides={key.replace("__", "."): one for key, one in ASKED.items()})
    found = {one.field: one.message for one in preflight.placement_issues(job, site)}
    assert set(found) == {
        "cluster.priority_class",
        "cluster.node_selector.pool",
        "cluster.tolerations.0",
        "cluster.labels.app",
        "cluster.annotations.k8s.v1.cni.cncf.io/networks",
    }
    assert found["cluster.node_selector.pool"] == "trial pods of this namespace run on nodes with pool=ours; leave it out"
    assert found["cluster.priority_class"] == (
        "the chart does not allow the PriorityClass urgent here; an administrator adds it to "
        "studies.allowed.priorityClasses; see `platform docs teams`"
    )
    allowed = {
        "priority_classes": ["urgent"],
        "tolerations": [{"operator": "Exists"}],
        "labels": ["app"],
        "annotations": ["k8s.v1.cni.cncf.io/"],
    }
    site = Site.model_validate({**SITE, "allowed": allowed})
    assert preflight.placement_issues(job, site) == []


@pytest.mark.parametrize(
    ("wanted", "gpus", "allowed"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, 1, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, 0, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, 1, False),
        ({"key": "dedicated", "value": "ml", "effect": "NoSchedule"}, 0, True),
        ({"key": "dedicated", "value": "web", "effect": "NoSchedule"}, 0, False),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}, 0, False),
        ({"key": "spot", "value": "true", "effect": "NoExecute", "tolerationSeconds": 60}, 0, True),
        ({"key": "spot", "operator": "Exists"}, 0, True),
        ({"operator": "Exists"}, 0, False),
    ],
)
def test_a_toleration_is_allowed_that_tolerates_no_more(workplace, wanted, gpus, allowed):
    """The GPUs' own taint, and what the values have, for all runs and for those that ask."""
    tolerations = [{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}]
    site = Site.model_validate(
        {**SITE, "tolerations": tolerations, "allowed": {"tolerations": [{"key": "spot", "operator": "Exists"}]}}
    )
    overrides = {"cluster.tolerations": [wanted], "resources.gpus": gpus}
    job = load.load_job(workplace / "jobs" / "demo", overrides=overrides)
    assert (preflight.placement_issues(job, site) == []) is allowed


def test_a_queue_must_be_there(look):
    seen = ClusterSnapshot(queues=frozenset())
    issues, _ = look(seen, cluster__queue="gpus")
    assert issues == [
        "cluster.queue: there is no LocalQueue gpus in the namespace; there is none (is Kueue installed?)",
    ]
    assert look(seen)[0] == []


BIG = {"cpu": "64", "memory": "512Gi"}


def test_a_training_on_nodes_with_fewer_gpus_is_told_how_to_spread(training):
    nodes = [node(nvidia_com__gpu="4", **BIG), node(nvidia_com__gpu="4", **BIG)]
    (issue,), _ = training(ClusterSnapshot(nodes=nodes), resources__gpus=8)
    assert issue == (
        "resources.gpus: each pod of the training requests 8 nvidia.com/gpu, and the largest node that it may run on has "
        "4 nvidia.com/gpu; --gpus 4 --nodes 2 spreads them over 2 nodes"
    )
    assert training(ClusterSnapshot(nodes=nodes), resources__gpus=4, nodes=2) == ([], [])
    (issue,), _ = training(ClusterSnapshot(nodes=nodes), resources__gpus=6, nodes=3)
    assert "--gpus 4 --nodes 5" in issue


def test_all_pods_of_a_training_need_room(training):
    nodes = [node(nvidia_com__gpu="4", **BIG)]
    issues, (warning,) = training(ClusterSnapshot(nodes=nodes), resources__gpus=4, nodes=2)
    assert issues == []
    assert "starts when all 2 are ready, and the nodes have room for 1" in warning


def test_files_of_the_data_volume_need_one(workplace):
    def job(**fields):
        return kinds.read(
            {
                "name": "demo",
                "kind": "train",
                "inputs": {"data": {}, "more": {}},
                "params": {"data": "/data/a.csv", "more": ["b.csv", "/data/c.csv", "/database.csv"]},
                **fields,
            }
        )

    issues = preflight.data_issues(job(), "")
    assert [(one.field, one.message.partition(" is")[0]) for one in issues] == [
        ("params.data", "/data/a.csv"),
        ("params.more", "/data/c.csv"),
    ]
    assert "the chart has no data volume; helm upgrade --set data.enabled=true" in issues[0].message
    assert preflight.data_issues(job(), "datasets") == []
    assert preflight.data_issues(job(cluster={"image": "lab/own:1"}), "") == []


def test_packages_are_installed_only_where_the_chart_allows_it(workplace):
    (workplace / "jobs" / "demo" / "requirements.txt").write_text("spam\n")
    asks = load.load_job(workplace / "jobs" / "demo", overrides={"requirements": "requirements.txt", "install": True})
    (issue,) = preflight.install_issues(asks, is_allowed=False)
    assert issue.field_path == ("install",)
    assert "helm upgrade --set studies.install.enabled=true,studies.install.index=URL" in issue.message
    assert "studies.install.egress" in issue.message
    assert preflight.install_issues(asks, is_allowed=True) == []
    assert preflight.install_issues(asks.model_copy(update={"install": False}), is_allowed=False) == []


def test_a_notification_of_a_cluster_names_a_secret() -> None:
    urls = ["secret:SLACK", "json://user:hidden@host/"]
    job = kinds.read({"name": "demo", "kind": "train", "notify": [{"url": url} for url in urls]})
    (issue,) = preflight.notify_issues(job)
    assert issue.field == "notify.1.url"
    assert "kubectl create secret generic trialplane-notify --from-literal=NAME=URL" in issue.message
    assert "hidden" not in issue.message
