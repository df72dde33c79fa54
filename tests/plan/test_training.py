"""The pods of a training: all of them at once and near each other, with shared memory, checkpoints, and time to save itself.

Not checked here: the whole manifests (test_manifests.py), and that the hook finds the trial (tests/worker).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trialplane.plan import pods, raycluster, saving, sizes
from trialplane.plan.plan import Plan
from trialplane.plan.saving import Saving
from trialplane.plan.site import Site
from trialplane.wire import cluster, env, paths

Make = tuple[Callable[..., Plan], Callable[..., Site]]
GIB = 2**30


def worker(plan: Plan, site: Site) -> dict[str, Any]:
    spec: dict[str, Any] = pods.trial(plan, site, plan.job.roles()[0])["spec"]
    return spec


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in container["env"]}


@pytest.mark.parametrize("queue", ["", "team-a"])
@pytest.mark.parametrize(
    ("job", "pods_"),
    [
        ({"kind": "train"}, 1),
        ({"kind": "train", "nodes": 4}, 4),
        ({"nodes": 2, "parallel": 3}, 6),
        ({"nodes": 2, "parallel": 30}, 48),
    ],
)
def test_pods_that_work_together_are_all_there_or_none(make: Make, job: dict[str, Any], pods_: int, queue: str) -> None:
    """Also where the chart lets pods come and go: KubeRay starts the run when all are ready, Kueue admits all at once."""
    a_plan, a_site = make
    made = raycluster.raycluster(a_plan(**job), a_site(autoscale=True, queue=queue))
    ray_cluster = made["spec"]
    (group,) = ray_cluster["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (pods_, pods_, pods_)
    assert "enableInTreeAutoscaling" not in ray_cluster
    assert raycluster.ELASTIC not in made["metadata"]["annotations"]


def test_nodes_of_one_trial_lie_near_each_other_unless_the_job_says_where(make: Make) -> None:
    a_plan, a_site = make
    assert "affinity" not in worker(a_plan(kind="train"), a_site())
    near = worker(a_plan(kind="train", nodes=2), a_site())["affinity"]["podAffinity"]
    ((way, terms),) = near.items()
    assert way.startswith("preferred")
    keys = [term["podAffinityTerm"]["topologyKey"] for term in terms]
    assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    own = worker(a_plan(kind="train", nodes=2, cluster={"topology": {"spread": "zone"}}), a_site())
    assert "affinity" not in own


@pytest.mark.parametrize(
    ("job", "shm"),
    [
        ({"kind": "train", "resources": {"gpus": 8}}, 8 * GIB),
        ({"kind": "train", "ranks": 4}, GIB),
        ({"kind": "train", "resources": {"gpus": 8, "shm": "2Gi"}}, 2 * GIB),
        ({"resources": {"gpus": 2}}, 2 * GIB),
        ({"resources": {"gpus": 1}}, sizes.DEFAULT_SHM),
        ({}, sizes.DEFAULT_SHM),
    ],
)
def test_shared_memory_is_sized_by_ranks_and_counted(make: Make, job: dict[str, Any], shm: int) -> None:
    a_plan, a_site = make
    plan = a_plan(**job)
    spec = worker(plan, a_site())
    (volume,) = (one["emptyDir"] for one in spec["volumes"] if one["name"] == "shm")
    assert volume == {"medium": "Memory", "sizeLimit": sizes.mib(shm + sizes.OBJECT_STORE + sizes.SHM_MARGIN)}
    whole = plan.job.resources.memory_bytes + sizes.trial_shm(plan.job.roles()[0]) + sizes.RAY_MEMORY
    assert spec["containers"][0]["resources"]["limits"]["memory"] == sizes.mib(whole)


def test_checkpoints_lie_on_the_volume_of_the_chart(make: Make) -> None:
    a_plan, a_site = make
    site = a_site(checkpoints={"claim": "c"})
    plan = a_plan(kind="train")
    spec = worker(plan, site)
    (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "checkpoints")
    own = f"{cluster.CHECKPOINTS}/{plan.run}"
    assert mount == {"name": "checkpoints", "mountPath": own, "subPath": plan.run}  # and may be written
    (volume,) = (one for one in spec["volumes"] if one["name"] == "checkpoints")
    assert volume["persistentVolumeClaim"] == {"claimName": "c"}
    assert list(saving.warnings(plan.job, site.checkpoints)) == []
    head = pods.head(plan, site)["spec"]
    assert "checkpoints" not in [one["name"] for one in head["volumes"]]
    for container in (spec["containers"][0], head["initContainers"][0]):
        assert variables(container)[env.CHECKPOINTS] == cluster.CHECKPOINTS


@pytest.mark.parametrize("job", [{"kind": "train"}, {"kind": "collect", "collect": {"units": 8, "learner": "train:learn"}}])
def test_of_another_run_it_sees_the_checkpoints_that_it_starts_from_and_cannot_write_them(
    make: Make, job: dict[str, Any]
) -> None:
    a_plan, a_site = make
    plan = a_plan(**job, resume="before-1")
    for role in plan.job.roles():
        spec = pods.trial(plan, a_site(checkpoints={"claim": "c"}), role)["spec"]
        own, other = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "checkpoints")
        assert (own["subPath"], own.get("readOnly")) == (plan.run, None)
        assert other == {
            "name": "checkpoints",
            "mountPath": paths.trial_checkpoints(cluster.CHECKPOINTS, "before-1", 0).rpartition("/")[0],
            "subPath": "before-1",
            "readOnly": True,
        }


def test_without_a_place_they_go_with_the_pod_and_the_user_is_told(make: Make) -> None:
    a_plan, a_site = make
    plan = a_plan(kind="train")
    (volume,) = (one for one in worker(plan, a_site())["volumes"] if one["name"] == "checkpoints")
    assert volume["emptyDir"] == {"sizeLimit": "50Gi"}
    (warning,) = saving.warnings(plan.job, a_site().checkpoints)
    assert "checkpoints.enabled=true" in warning
    assert "checkpoints.url" in warning


@pytest.mark.parametrize(
    ("job", "site", "place", "secret"),
    [
        ({}, {"url": "s3://b/c", "secret": "s3"}, "s3://b/c", "s3"),
        ({"url": "gs://mine/c"}, {"claim": "c"}, "gs://mine/c", ""),
        ({"url": "s3://mine/c"}, {"url": "s3://b/c", "secret": "s3"}, "s3://mine/c", "s3"),
    ],
)
def test_an_object_store_takes_no_volume(
    make: Make, job: dict[str, Any], site: dict[str, Any], place: str, secret: str
) -> None:
    a_plan, a_site = make
    plan, where = a_plan(kind="train", checkpoints=job), a_site(checkpoints=site)
    spec = worker(plan, where)
    assert "checkpoints" not in [one["name"] for one in spec["volumes"]]
    assert spec["containers"][0].get("envFrom") == ([{"secretRef": {"name": secret}}] if secret else None)
    assert variables(spec["containers"][0])[env.CHECKPOINTS] == place
    head = pods.head(plan, where)["spec"]["initContainers"][0]
    assert "envFrom" not in head
    assert variables(head)[env.CHECKPOINTS] == place
    assert list(saving.warnings(plan.job, where.checkpoints)) == []


@pytest.mark.parametrize(
    ("job", "site", "grace"),
    [
        ({"kind": "train"}, {}, 120),
        ({"kind": "train"}, {"grace": 300}, 300),
        ({"kind": "train", "checkpoints": {"grace": "1m"}}, {"grace": 300}, 60),
        ({"checkpoints": {"url": "s3://b/c"}}, {"grace": 300}, 30),
        ({"checkpoints": {"grace": 45.5}}, {}, 45.5),
    ],
)
def test_a_trial_that_saves_itself_is_told_and_waited_for(
    make: Make, job: dict[str, Any], site: dict[str, Any], grace: float
) -> None:
    a_plan, a_site = make
    plan, where = a_plan(**job), a_site(checkpoints=site)
    spec = worker(plan, where)
    (container,) = spec["containers"]
    *command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["python", "-m", "trialplane.worker.leaving"]
    assert grace < int(seconds) < spec["terminationGracePeriodSeconds"]
    assert grace + saving.MARGIN <= spec["terminationGracePeriodSeconds"] < grace + saving.MARGIN + 1
    head = pods.head(plan, where)["spec"]["initContainers"][0]
    assert [float(variables(one)[env.GRACE]) for one in (container, head)] == [grace, grace]


def test_a_search_that_saves_nothing_is_as_before(make: Make) -> None:
    a_plan, a_site = make
    site = a_site(checkpoints={"claim": "c", "url": "", "grace": 300})
    assert Saving.of(a_plan().job, site.checkpoints) is None
    spec = worker(a_plan(), site)
    assert "terminationGracePeriodSeconds" not in spec
    assert "lifecycle" not in spec["containers"][0]
    assert "checkpoints" not in [one["name"] for one in spec["volumes"]]
    assert not {env.CHECKPOINTS, env.GRACE} & set(variables(spec["containers"][0]))
    assert list(saving.warnings(a_plan().job, a_site().checkpoints)) == []


def test_a_sites_variables_do_not_move_checkpoints(make: Make) -> None:
    a_plan, a_site = make
    site = a_site(env={env.CHECKPOINTS: "/tmp", env.GRACE: "1"}, checkpoints={"claim": "c"})
    for container in (
        worker(a_plan(kind="train"), site)["containers"][0],
        pods.head(a_plan(kind="train"), site)["spec"]["initContainers"][0],
    ):
        assert variables(container)[env.CHECKPOINTS] == cluster.CHECKPOINTS
        assert variables(container)[env.GRACE] == "120"


@pytest.mark.parametrize("saves", [{}, {"claim": "c"}])
def test_what_a_trial_may_write_to_its_nodes_disk_is_bounded(make: Make, saves: dict[str, str]) -> None:
    a_plan, a_site = make
    spec = worker(a_plan(kind="train"), a_site(scratch="7Gi", checkpoints=saves))
    folders = {one["name"]: one["emptyDir"] for one in spec["volumes"] if "emptyDir" in one}
    assert set(folders) == {"tmp", "home", "shm", *([] if saves else ["checkpoints"])}
    assert {folder["sizeLimit"] for folder in folders.values() if folder.get("medium") != "Memory"} == {"7Gi"}


@pytest.mark.parametrize(("grace", "seconds"), [("2m", "130"), ("5s", "20")])
def test_a_worker_without_its_head_lives_as_long_as_its_trial_may_take_to_save(make: Make, grace: str, seconds: str) -> None:
    """Kueue removes the head of a run that gives way at once; Ray in the worker ends so many seconds later."""
    a_plan, a_site = make
    (container,) = worker(a_plan(kind="train", checkpoints={"grace": grace}), a_site())["containers"]
    assert variables(container)["RAY_gcs_rpc_server_reconnect_timeout_s"] == seconds
    (container,) = worker(a_plan(), a_site())["containers"]
    assert variables(container)["RAY_gcs_rpc_server_reconnect_timeout_s"] == "20"
