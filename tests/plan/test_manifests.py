"""What a run is on a cluster, its RayCluster and what `submit` sends: in golden files, and laws for every job and site.

Golden files are compared as text. To write them anew on purpose, and then to read `git diff tests/plan/golden`:

    REWRITE_GOLDEN=1 python -m pytest tests/plan/test_manifests.py

With KUBERAY_CRDS=<folder of KubeRay's config/crd/bases> the RayClusters are checked against KubeRay's schema, unknown fields
included. Not checked here: what the API server and the operator make of them (tests/e2e).
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import jsonschema
import pytest
import yaml

from trialplane import policies
from trialplane.plan import network, raycluster, sizes
from trialplane.plan import run as runs
from trialplane.plan.pack import Pack
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.policies import protobuf
from trialplane.wire import cluster, env

GOLDEN = Path(__file__).parent / "golden"
CRDS = os.environ.get("KUBERAY_CRDS", "")
Make = tuple[Callable[..., Plan], Callable[..., Site]]


def manifests(plan: Plan, site: Site, submitted: float) -> list[dict[str, Any]]:
    """The RayCluster, the Run, the ConfigMaps with its code, and the network policies where the site has some."""
    made = raycluster.raycluster(plan, site)
    return [made, *runs.manifests(plan, site.namespace, submitted), *network.policies(made, site)]


@pytest.fixture
def made(plan: Plan, site: Site, submitted: float) -> list[dict[str, Any]]:
    return manifests(plan, site, submitted)


def ray_cluster(made: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = made[0]["spec"]
    return spec


def templates(made: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pods' templates by what their label calls them; of several worker groups the first, and the others by name."""
    spec = made[0]["spec"]
    head, (first, *others) = spec["headGroupSpec"], spec["workerGroupSpecs"]
    workers = {"trial": first["template"], **{group["groupName"]: group["template"] for group in others}}
    return {"controller": head["template"], **workers}


def containers(made: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every container with the role of its pod; the autoscaler's, which KubeRay makes, by what it is told."""
    for role, template in templates(made).items():
        yield from ((role, one) for one in template["spec"]["containers"])
        yield from ((role, one) for one in template["spec"].get("initContainers", []))
    if "autoscalerOptions" in ray_cluster(made):
        yield "controller", ray_cluster(made)["autoscalerOptions"]


def of_head(made: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The containers of the head pod: Ray's, and the controller's."""
    spec = templates(made)["controller"]["spec"]
    (ray,), (controller,) = spec["containers"], spec["initContainers"]
    return ray, controller


def variables(container: dict[str, Any]) -> dict[str, Any]:
    names = [one["name"] for one in container["env"]]
    assert len(names) == len(set(names))
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_the_manifests_are_the_golden_ones(case: str, made: list[dict[str, Any]]) -> None:
    file, text = GOLDEN / f"{case}.yaml", runs.as_yaml(made)
    if os.environ.get("REWRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert file.is_file(), f"{file} is missing; the docstring of this file says how to write it"
    assert text == file.read_text(encoding="utf-8")


def test_there_is_no_golden_file_without_a_case(cases: set[str]) -> None:
    assert {file.name for file in GOLDEN.iterdir()} == {f"{case}.yaml" for case in cases}


def test_what_is_printed_reads_back_to_what_is_sent(made: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(runs.as_yaml(made))) == made


def test_run_and_config_map_hold_the_submission(made: list[dict[str, Any]], plan: Plan, submitted: float) -> None:
    _, run, code, *_ = made
    read = runs.read({**run, "metadata": {"name": plan.run}})
    assert read.spec is not None
    assert (read.job, read.spec.submission, read.issues) == (plan.job, plan.submission(submitted), ())
    assert (read.spec.code.config_maps, read.spec.code.sha256) == ((code["metadata"]["name"],), plan.pack.sha256)
    assert base64.b64decode(code["binaryData"][cluster.CODE_KEY]) == plan.pack.data
    assert [one["metadata"]["name"] for one in made[:3]] == [plan.run, plan.run, f"{plan.run}-code"]
    assert {one["metadata"]["namespace"] for one in made[1:3]} == {"ml"}


def test_code_above_one_mib_is_several_config_maps_and_one_folder(make: Make, submitted: float) -> None:
    a_plan, a_site = make
    data = bytes(range(256)) * (9 * 2**10)  # 2.25 MiB
    plan = dataclasses.replace(a_plan(), pack=Pack(data, "ab" * 32, ("train.py",)))
    _, run, *code = made = manifests(plan, a_site(), submitted)
    maps = ["criteria-1-code", "criteria-1-code-1", "criteria-1-code-2"]
    assert [one["metadata"]["name"] for one in code] == maps
    assert run["spec"]["code"] == {"configMaps": maps, "sha256": "ab" * 32}
    pieces = {name: base64.b64decode(text) for one in code for name, text in one["binaryData"].items()}
    assert list(pieces) == ["code.tar.gz", "code.tar.gz.1", "code.tar.gz.2"]
    assert b"".join(pieces.values()) == data and max(map(len, pieces.values())) == 2**20
    assert all(one["immutable"] for one in code)
    wanted = [{"configMap": {"name": name}} for name in maps]
    for role in ("controller", "trial"):
        (volume,) = [one for one in templates(made)[role]["spec"]["volumes"] if one["name"] == "code"]
        assert volume == {"name": "code", "projected": {"sources": wanted}}
    assert made[0]["metadata"]["annotations"][cluster.CODE_HASH] == "ab" * 32


def test_every_object_and_every_pod_is_labelled(made: list[dict[str, Any]], plan: Plan) -> None:
    common = {cluster.RUN: plan.run, cluster.JOB: "criteria", cluster.MANAGED_BY: cluster.MANAGER}
    for one in made:
        assert common.items() <= one["metadata"]["labels"].items()
    for role, template in templates(made).items():
        label = cluster.TRIAL if role == cluster.group("learner") else role
        wanted = {**common, cluster.ROLE: label, **plan.job.cluster.labels}
        assert wanted == template["metadata"]["labels"]
        assert template["metadata"].get("annotations", {}) == plan.job.cluster.annotations


def test_pods_satisfy_the_restricted_standard_and_cannot_write_their_image(made: list[dict[str, Any]]) -> None:
    for _, container in containers(made):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]
        assert variables(container)["HOME"] == "/tmp"
    for template in templates(made).values():
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "configMap", "persistentVolumeClaim", "projected", "secret"}


def test_no_pod_has_a_token_but_the_autoscalers_container(made: list[dict[str, Any]], plan: Plan) -> None:
    holders = []
    for role, template in templates(made).items():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        tokens = [volume["name"] for volume in spec["volumes"] if "projected" in volume]
        holders += [role] if tokens else []
        everything = [*spec["containers"], *spec.get("initContainers", [])]
        mounts = [mount["name"] for container in everything for mount in container["volumeMounts"]]
        assert not set(tokens) & set(mounts)
    assert holders == (["controller"] if plan.job.cluster.autoscale else [])
    if plan.job.cluster.autoscale:
        mounts = ray_cluster(made)["autoscalerOptions"]["volumeMounts"]
        assert "/var/run/secrets/kubernetes.io/serviceaccount" in [mount["mountPath"] for mount in mounts]


def test_every_mount_has_its_volume(made: list[dict[str, Any]]) -> None:
    pods = templates(made)
    for role, container in containers(made):
        volumes = {volume["name"] for volume in pods[role]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_all_pods_have_the_authority_of_a_gateway_with_a_certificate(make: Make, submitted: float) -> None:
    plan, site = make[0](), make[1](gateway={"service": "gateway", "port": 8080, "tls": True})
    objects = manifests(plan, site, submitted)
    pods = templates(objects)
    path = f"{cluster.GATEWAY_CA_MOUNT}/{cluster.GATEWAY_CA}"
    (worker,) = pods["trial"]["spec"]["containers"]
    _, controller = of_head(objects)
    for role, container in (("trial", worker), ("controller", controller)):
        assert variables(container)[env.MLFLOW_CA] == path
        (mount,) = (mount for mount in container["volumeMounts"] if mount["mountPath"] == cluster.GATEWAY_CA_MOUNT)
        (volume,) = (volume for volume in pods[role]["spec"]["volumes"] if volume["name"] == mount["name"])
        assert volume["configMap"]["name"] == cluster.SITE
        assert [item["key"] for item in volume["configMap"]["items"]] == [
            cluster.GATEWAY_CA
        ]  # the rest is not a trial's business
    assert variables(controller)[env.LEDGER].startswith("https://")


def test_trials_have_every_policy_and_nothing_private(made: list[dict[str, Any]]) -> None:
    (worker,) = templates(made)["trial"]["spec"]["containers"]
    found = variables(worker)
    assert policies.trial_env().items() <= found.items()
    assert all(isinstance(value, str) for value in found.values())  # nothing of a secret
    assert env.LEDGER not in found
    assert "envFrom" not in worker


def test_the_runs_token_is_a_file_of_the_controller_alone_and_no_pod_has_the_databases_password(
    made: list[dict[str, Any]], site: Site
) -> None:
    for role, template in templates(made).items():
        assert site.ledger.name not in json.dumps(template)
        secrets = [volume["secret"]["secretName"] for volume in template["spec"]["volumes"] if "secret" in volume]
        assert (secrets == [f"{made[0]['metadata']['name']}.token"]) == (role == "controller"), role
    head, controller = of_head(made)
    place = str(PurePosixPath(variables(controller)[env.TOKEN_FILE]).parent)
    assert {mount["mountPath"]: mount.get("readOnly") for mount in controller["volumeMounts"]}[place] is True
    assert place not in [mount["mountPath"] for mount in head["volumeMounts"]]


def test_the_controller_keeps_the_fast_protobuf_and_the_other_policies(made: list[dict[str, Any]], site: Site) -> None:
    others = protobuf.controller_env(policies.trial_env())
    for role, container in containers(made):
        found = variables(container)
        if role == "controller":
            assert protobuf.VARIABLE not in found
            assert others.items() <= found.items()
        assert site.env.items() <= found.items()
    _, controller = map(variables, of_head(made))
    assert controller[env.LEDGER] == "http://platform-gateway:8080/namespaces/ml"
    assert controller[env.STATUS] == "0.0.0.0:8090"
    assert controller[env.MLFLOW_TRACKING_URI] == "http://platform-gateway:8080/namespaces/ml/runs/criteria-1/mlflow"
    assert not {env.MLFLOW_TOKEN, env.MLFLOW_USERNAME, env.MLFLOW_PASSWORD} & {
        name for _, container in containers(made) for name in variables(container)
    }


def test_a_sites_variables_give_way_to_policies_and_secrets(make: Make) -> None:
    a_plan, a_site = make
    site = a_site(env={protobuf.VARIABLE: "upb", env.LEDGER: "sqlite://", "HOME": "/root", "A": "b"})
    made = manifests(a_plan(), site, 0.0)
    head, controller, worker = (variables(container) for _, container in containers(made))
    assert (worker[protobuf.VARIABLE], protobuf.VARIABLE in controller) == ("python", False)
    assert controller[env.LEDGER] == "http://platform-gateway:8080/namespaces/ml"
    assert [one["HOME"] for one in (head, controller, worker)] == ["/tmp"] * 3
    assert [one["A"] for one in (head, controller, worker)] == ["b"] * 3


def test_requests_are_limits_unless_the_site_overcommits(made: list[dict[str, Any]], site: Site) -> None:
    for _, container in containers(made):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        shares = container["name"] in ("ray-head", "controller") if "name" in container else False
        assert (requests == limits) == (site.overcommit == 1 and not shares)
        assert {**requests, "cpu": ""} == {**limits, "cpu": ""}


@pytest.mark.parametrize(
    ("cpus", "overcommit", "wanted"), [(1, 4, "250m"), (0.5, 3, "167m"), (0.001, 9, "1m"), (0.25, 1, "250m"), (2.0, 1, "2")]
)
def test_overcommitted_cpus_are_asked_for_in_part(cpus: float, overcommit: float, wanted: str) -> None:
    assert sizes.resources(cpus, "1Gi", overcommit)["requests"] == {"cpu": wanted, "memory": "1Gi"}


def test_a_trial_pod_holds_the_trial_its_shared_memory_and_ray(make: Make) -> None:
    a_plan, _ = make
    (small,), (shared,) = a_plan().job.roles(), a_plan(resources={"shm": "1Gi"}).job.roles()
    assert sizes.trial_memory(small) > small.resources.memory_bytes + sizes.trial_shm(small)
    assert sizes.trial_memory(shared) - sizes.trial_memory(small) == 2**30 - sizes.DEFAULT_SHM
    assert sizes.trial_shm(shared) > 2**30 + sizes.OBJECT_STORE


def test_gpus_are_limits_of_the_pod_and_resources_of_ray(make: Make) -> None:
    a_plan, a_site = make
    job = {"resources": {"gpus": 2, "cpus": 3}, "cluster": {"gpu_resource": "nvidia.com/mig-1g.10gb"}}
    made = manifests(a_plan(**job), a_site(), 0.0)
    (group,) = ray_cluster(made)["workerGroupSpecs"]
    assert group["resources"] == {"CPU": "3", "GPU": "2", "trial_slot": "1"}
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "2"


def test_rays_resources_are_said_in_one_place_only(made: list[dict[str, Any]]) -> None:
    """KubeRay refuses a group with `resources` and any of these as well."""
    for group in ray_cluster(made)["workerGroupSpecs"]:
        assert not {"num-cpus", "num-gpus", "memory", "resources"} & set(group["rayStartParams"])
    assert ray_cluster(made)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        ({"parallel": 3}, (3, 3, 3)),
        ({"parallel": 30}, (24, 24, 24)),
        ({"parallel": 3, "cluster": {"autoscale": True}}, (1, 0, 3)),
        ({"parallel": 3, "cluster": {"autoscale": True, "queue": "gpus"}}, (0, 0, 3)),
    ],
)
def test_there_are_no_more_pods_than_trials(make: Make, job: dict[str, Any], wanted: tuple[int, ...]) -> None:
    a_plan, a_site = make
    plan = a_plan(**job)
    (group,) = ray_cluster(manifests(plan, a_site(), 0.0))["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == wanted


def test_only_the_controller_has_the_runs_volume_and_trials_only_read_data(make: Make) -> None:
    a_plan, a_site = make
    made = manifests(a_plan(), a_site(runs={"claim": "r"}, data={"claim": "d"}), 0.0)
    claims = {
        role: {v["persistentVolumeClaim"]["claimName"] for v in pod["spec"]["volumes"] if "persistentVolumeClaim" in v}
        for role, pod in templates(made).items()
    }
    assert claims == {"controller": {"r"}, "trial": {"d"}}
    (controller,) = templates(made)["controller"]["spec"]["initContainers"]
    (own,) = (mount for mount in controller["volumeMounts"] if mount["name"] == "runs")
    assert own == {"name": "runs", "mountPath": f"{cluster.HOME}/runs/criteria-1", "subPath": "runs/criteria-1"}
    (worker,) = templates(made)["trial"]["spec"]["containers"]
    (data,) = (mount for mount in worker["volumeMounts"] if mount["mountPath"] == cluster.DATA)
    assert data["readOnly"] is True


def test_the_job_wins_over_the_site_and_adds_to_its_nodes(make: Make) -> None:
    a_plan, a_site = make
    site = a_site(priority_class="low", queue="all", node_selector={"pool": "a", "os": "linux"})
    plain = manifests(a_plan(), site, 0.0)
    selector = {"pool": "b", "gpu": "a100"}  # the team's nodes stay the team's
    own = manifests(a_plan(cluster={"priority_class": "high", "queue": "mine", "node_selector": selector}), site, 0.0)
    assert {pod["spec"]["priorityClassName"] for pod in templates(plain).values()} == {"low"}
    assert {pod["spec"]["priorityClassName"] for pod in templates(own).values()} == {"high"}
    assert plain[0]["metadata"]["labels"][raycluster.QUEUE_LABEL] == "all"
    assert own[0]["metadata"]["labels"][raycluster.QUEUE_LABEL] == "mine"
    assert templates(own)["trial"]["spec"]["nodeSelector"] == {"pool": "a", "os": "linux", "gpu": "a100"}
    assert "nodeSelector" not in templates(own)["controller"]["spec"]


def test_durations_are_whole_seconds(make: Make) -> None:
    a_plan, a_site = make
    options = manifests(a_plan(cluster={"idle": "89.5s", "autoscale": True}), a_site(), 0.0)[0]["spec"]["autoscalerOptions"]
    assert options["idleTimeoutSeconds"] == 90
    forever = manifests(a_plan(cluster={"idle": 1e12, "autoscale": True}), a_site(), 0.0)[0]["spec"]["autoscalerOptions"]
    assert forever["idleTimeoutSeconds"] == 2**31 - 1


def test_the_images_ray_is_the_one_that_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra in ("controller", "worker"):
        (ray,) = (one for one in project["optional-dependencies"][extra] if one.startswith("ray["))
        low, high = (tuple(map(int, text.split("."))) for text in re.findall(r"[\d.]+", ray))
        assert low <= tuple(map(int, raycluster.RAY_VERSION.split("."))) < high


def test_pods_of_trials_lie_as_the_job_wants(make: Make) -> None:
    a_plan, a_site = make
    alike = {"matchLabels": {cluster.RUN: "criteria-1", cluster.ROLE: cluster.TRIAL}}
    spread = templates(manifests(a_plan(cluster={"topology": {"spread": "zone"}}), a_site(), 0.0))["trial"]["spec"]
    (constraint,) = spread["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["labelSelector"]) == ("zone", alike)
    assert "affinity" not in spread
    pack = templates(manifests(a_plan(cluster={"topology": {"pack": "host"}}), a_site(), 0.0))["trial"]["spec"]
    ((preferred,),) = pack["affinity"]["podAffinity"].values()
    assert preferred["podAffinityTerm"] == {"topologyKey": "host", "labelSelector": alike}
    assert "topologySpreadConstraints" not in pack


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    if not CRDS:
        pytest.skip("KUBERAY_CRDS names no folder of KubeRay's CRDs")
    text = (Path(CRDS) / "ray.io_rayclusters.yaml").read_text()
    versions = yaml.load(text, Loader=yaml.CSafeLoader)["spec"]["versions"]
    (found,) = (one["schema"]["openAPIV3Schema"] for one in versions if one["name"] == "v1")
    closed: dict[str, Any] = _closed(found)
    return closed


def test_the_raycluster_fits_kuberays_schema(schema: dict[str, Any], made: list[dict[str, Any]]) -> None:
    found = jsonschema.Draft202012Validator(schema).iter_errors(made[0])
    assert [f"{error.json_path}: {error.message}" for error in found] == []


def _closed(schema: Any) -> Any:
    """The schema with every field refused that it does not name; the API server would drop it in silence."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize(
    ("site", "job", "autoscales"),
    [
        ({}, {}, False),
        ({"autoscale": True}, {}, True),
        ({"autoscale": True}, {"autoscale": False}, False),
        ({"autoscale": False}, {"autoscale": True}, True),
        ({"autoscale": True, "queue": "team-a"}, {}, False),
        ({"autoscale": True}, {"queue": "team-a"}, False),
        ({"autoscale": True, "queue": "team-a"}, {"autoscale": True}, True),
    ],
)
def test_the_site_says_whether_pods_come_and_go_unless_the_job_or_a_queue_does(
    make: Make, site: dict[str, Any], job: dict[str, Any], autoscales: bool
) -> None:
    a_plan, a_site = make
    made = manifests(a_plan(cluster=job), a_site(**site), 0.0)
    assert ray_cluster(made).get("enableInTreeAutoscaling", False) is autoscales
    assert (ray_cluster(made)["workerGroupSpecs"][0]["minReplicas"] == 0) is autoscales
