"""Images by digest: what the pods of a run have pulled is in its status, and later pods are made of that.

On the doubles of a cluster. Here also: names of images, and a status that a newer operator wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.cluster_double import Problem

from trialplane.plan import raycluster
from trialplane.plan.plan import Plan
from trialplane.plan.run import Image, Status
from trialplane.reconciler import pinning
from trialplane.wire.states import RunState

from .conftest import Team

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
CONTROLLER, TRIAL = "trialplane/controller:1", "trialplane/trial:1"
HOST = "hub.example"  # the nodes' default one, which the names of images leave out


def pull(team: Team, digests: dict[str, str], pods: str = "a-") -> None:
    """Has the containers of pods run images: by name without tag, a digest, or "" for one that was loaded by hand."""
    for name, pod in team.cluster.objects["pods"].items():
        for box in [*pod["status"]["containerStatuses"], *pod["status"]["initContainerStatuses"]]:
            repository = box["image"].partition("@")[0].rpartition(":")[0] or box["image"].partition("@")[0]
            digest = digests.get(repository)
            if name.startswith(pods) and digest is not None:
                box["imageID"] = f"{HOST}/{repository}@{digest}" if digest else f"sha256:{'f' * 64}"


BOTH = {"trialplane/controller": A, "trialplane/trial": B}
RECORDED = [{"image": CONTROLLER, "digest": A}, {"image": TRIAL, "digest": B}]
PINNED = {
    ("head", "ray-head"): f"trialplane/controller@{A}",
    ("head", "controller"): f"trialplane/controller@{A}",
    ("trials", "ray-worker"): f"trialplane/trial@{B}",
}


def images(team: Team) -> dict[tuple[str, str], str]:
    """The images of the templates, by group and container."""
    spec = team.ray_clusters["a"]["spec"]
    groups = [("head", spec["headGroupSpec"]), *((one["groupName"], one) for one in spec["workerGroupSpecs"])]
    return {
        (group, box["name"]): box["image"]
        for group, one in groups
        for box in [
            *one["template"]["spec"]["containers"],
            *one["template"]["spec"].get("initContainers", []),
        ]
    }


def resume(team: Team, **fields: Any) -> None:
    """Pauses the run and starts it again."""
    team.change(state="Paused")
    team.settle()
    team.later = 10_000.0
    team.settle()
    assert "a" not in team.ray_clusters
    team.change(state="Running", resumes=1, **fields)
    team.settle()


def test_what_pods_pulled_is_in_the_status_and_later_pods_are_made_of_it(team: Team) -> None:
    team.apply()
    assert team.settle()["images"] == []
    assert team.condition("Pinned")[:2] == ("Unknown", "NoDigest")
    assert images(team)["trials", "ray-worker"] == TRIAL
    pull(team, BOTH)
    assert sorted(team.settle()["images"], key=lambda one: one["image"]) == RECORDED
    assert team.condition("Pinned") == ("True", "Pinned", "")
    assert images(team) == PINNED
    assert team.made == 1
    team.namespace._pod(
        "a-late",
        team.ray_clusters["a"]["spec"]["workerGroupSpecs"][0]["template"],
        [{"uid": team.ray_clusters["a"]["metadata"]["uid"]}],
        "trials",
    )
    pull(team, {"trialplane/trial": C}, "a-late")  # as the node knows the image by another name too
    before = len(team.cluster.requests)
    assert len(team.settle()["images"]) == 2
    assert {verb for verb, _ in team.cluster.requests[before:]} == {"GET"}


def test_a_resumed_run_is_made_of_the_digests_it_had(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, BOTH)
    team.settle()
    resume(team)
    assert (images(team), team.made) == (PINNED, 2)
    assert len(team.status()["images"]) == 2
    assert team.condition("Pinned")[1] == "Pinned"


def make_again(team: Team, plan: Plan) -> None:
    """Removes a run's Run, and resumes it as a new one."""
    team.namespace.end("a", RunState.PAUSED)
    team.cluster.remove("runs", "a")
    team.reconciler.reconcile("a")
    assert "a" not in team.ray_clusters
    team.apply(plan)
    team.change(resumes=1)
    team.settle()


def test_the_ledger_has_all_digests_and_a_run_that_is_made_again_is_made_of_them(team: Team) -> None:
    plan = team.plan()
    team.apply(plan)
    team.settle()
    pull(team, BOTH)
    team.settle()
    study = team.namespace.studies["a"]
    assert study.images == {CONTROLLER: (A,), TRIAL: (B,)}
    make_again(team, plan)
    assert images(team) == PINNED
    assert sorted(team.status()["images"], key=lambda one: one["image"]) == RECORDED


def test_an_image_that_the_job_changed_goes_by_its_name_and_the_former_is_forgotten(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, BOTH)
    team.settle()
    job = {**team.cluster.objects["runs"]["a"]["spec"]["job"], "cluster": {"image": "ada/trainer:2"}}
    resume(team, job=job)
    assert images(team)["trials", "ray-worker"] == "ada/trainer:2"
    assert images(team)["head", "ray-head"] == f"trialplane/controller@{A}"
    assert team.status()["images"] == RECORDED[:1]
    assert team.condition("Pinned")[:2] == ("Unknown", "NoDigest")
    assert "ada/trainer:2" in team.condition("Pinned")[2]
    assert team.namespace.studies["a"].images[TRIAL] == (B,), "its earlier trials ran that"


def test_an_image_that_the_job_names_by_digest_is_left_alone(team: Team) -> None:
    image = f"hub.example:5000/ada/trainer:2@{C}"
    team.apply(team.plan(cluster={"image": image}))
    team.settle()
    pull(team, BOTH)
    for pod in team.cluster.objects["pods"].values():
        if "worker" in pod["metadata"]["name"]:
            pod["status"]["containerStatuses"][0]["imageID"] = f"hub.example:5000/ada/trainer@{B}"
    assert {"image": image, "digest": C} in team.settle()["images"]
    assert images(team)["trials", "ray-worker"] == image
    assert team.condition("Pinned")[1] == "Pinned"


def test_an_image_without_a_registry_is_no_error(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, {"trialplane/controller": A, "trialplane/trial": ""})
    status = team.settle()
    assert (status["state"], status["images"]) == ("Running", RECORDED[:1])
    assert images(team)["trials", "ray-worker"] == TRIAL
    holds, reason, message = team.condition("Pinned")
    assert (holds, reason, TRIAL in message, CONTROLLER in message) == ("Unknown", "NoDigest", True, False)
    assert "or by another name" in message


def test_two_digests_of_one_image_are_a_condition_until_a_new_start(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, {"trialplane/controller": A})
    pull(team, {"trialplane/trial": B}, "a-trials-worker-0")
    pull(team, {"trialplane/trial": C}, "a-trials-worker-1")
    status = team.settle()
    assert status["state"] == "Running"
    holds, reason, message = team.condition("Pinned")
    assert (holds, reason) == ("False", "SeveralDigests")
    for part in (TRIAL, f"{B} in a-trials-worker-0", f"{C} in a-trials-worker-1", "architecture", "`platform resume a`"):
        assert part in message, part
    assert images(team)["trials", "ray-worker"] == TRIAL
    team.cluster.remove("pods", "a-trials-worker-1")
    team.settle()
    assert team.condition("Pinned")[1] == "SeveralDigests"
    assert f"{C} in pods that are gone" in team.condition("Pinned")[2]
    resume(team)
    assert team.status()["images"] == RECORDED[:1]
    assert images(team)["trials", "ray-worker"] == TRIAL
    pull(team, {"trialplane/trial": C})
    team.settle()
    assert team.condition("Pinned") == ("True", "Pinned", "")
    assert images(team)["trials", "ray-worker"] == f"trialplane/trial@{C}"


def test_an_image_that_was_pinned_goes_by_its_tag_again_once_it_has_a_second_digest(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, {"trialplane/controller": A})
    pull(team, {"trialplane/trial": B}, "a-trials-worker-0")
    team.settle()
    assert images(team) == PINNED
    pull(team, {"trialplane/trial": C}, "a-trials-worker-1")  # made of the tag, before the templates were pinned
    assert team.settle()["state"] == "Running"
    assert images(team) == {**PINNED, ("trials", "ray-worker"): TRIAL}
    assert team.condition("Pinned")[:2] == ("False", "SeveralDigests")
    before = len(team.cluster.requests)
    assert len(team.settle()["images"]) == 3
    assert {verb for verb, _ in team.cluster.requests[before:]} == {"GET"}


def test_a_run_that_is_made_again_takes_the_tag_of_an_image_of_which_the_ledger_has_two_digests(team: Team) -> None:
    plan = team.plan()
    team.apply(plan)
    team.settle()
    pull(team, BOTH)
    team.settle()
    team.archive.keep_images("a", [(TRIAL, C)])  # of another start
    make_again(team, plan)
    assert images(team) == {**PINNED, ("trials", "ray-worker"): TRIAL}
    assert team.status()["images"] == RECORDED[:1]


def test_templates_of_a_run_in_a_queue_wait_for_its_next_start(team: Team) -> None:
    team.apply(team.plan(cluster={"queue": "gpus"}))
    team.settle()
    assert team.ray_clusters["a"]["metadata"]["labels"][raycluster.QUEUE_LABEL] == "gpus"
    pull(team, BOTH)
    team.settle()
    assert images(team)["trials", "ray-worker"] == TRIAL
    assert team.condition("Pinned")[:2] == ("False", "PinnedAtNextStart")
    resume(team)
    assert images(team) == PINNED
    assert team.condition("Pinned")[:2] == ("True", "Pinned")


def test_a_pinned_image_that_no_registry_has_any_more_is_told(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, BOTH)
    team.settle()
    team.namespace._pod(
        "a-late",
        team.ray_clusters["a"]["spec"]["workerGroupSpecs"][0]["template"],
        [{"uid": team.ray_clusters["a"]["metadata"]["uid"]}],
        "trials",
    )
    late = team.cluster.objects["pods"]["a-late"]["status"]
    late["containerStatuses"][0]["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    late["phase"] = "Pending"
    team.namespace.studies["a"].status = dataclasses.replace(team.namespace.studies["a"].status, slots_ready=2)
    reason = team.settle()["reason"]
    assert f"cannot get its image trialplane/trial@{B} (ImagePullBackOff)" in reason
    assert f"the run is pinned to this digest of {TRIAL}" in reason


def refusing(verb: str, wanted: Callable[[], bool]) -> Callable[[str, str, str], None]:
    def refuse(asked: str, plural: str, name: str) -> None:
        if (asked, plural) == (verb, "rayclusters") and wanted():
            raise Problem(403, 'admission webhook "images" denied the request: no digests here')

    return refuse


def test_a_run_whose_pins_are_refused_goes_on_by_tag(team: Team) -> None:
    team.apply()
    team.settle()
    refused: list[int] = []
    team.cluster.refuse = refusing("patch", lambda: not refused and (refused.append(1) or True))
    pull(team, BOTH)
    assert team.settle()["state"] == "Running"
    assert refused
    assert images(team)["trials", "ray-worker"] == TRIAL
    holds, reason, message = team.condition("Pinned")
    assert (holds, reason, "no digests here" in message) == ("False", "Refused", True)
    assert team.condition("Accepted")[0] == "True"


def test_a_start_whose_pins_are_refused_is_made_by_tag(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, BOTH)
    team.settle()
    refused: list[int] = []
    team.cluster.refuse = refusing("create", lambda: not refused and (refused.append(1) or True))
    resume(team)
    assert (refused, images(team)["trials", "ray-worker"]) == ([1], TRIAL)
    assert team.status()["images"] == []
    assert team.settle()["state"] == "Running"
    assert team.condition("Pinned")[:2] == ("False", "Refused")


def test_a_patch_that_fails_is_tried_again(team: Team) -> None:
    team.apply()
    team.settle()
    failed: list[int] = []

    def fail(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("patch", "rayclusters") and len(failed) < 2:
            failed.append(1)
            raise Problem(500, "etcd is away")

    team.cluster.refuse = fail
    pull(team, BOTH)
    team.settle()
    assert (len(failed), images(team)) == (2, PINNED)


def test_a_status_with_fields_of_a_newer_operator_is_read() -> None:
    condition = {
        "type": "Pinned",
        "status": "True",
        "reason": "Pinned",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    written = {
        "state": "Running",
        "resumes": 3,
        "images": [{"image": TRIAL, "digest": A, "platform": "new"}],
        "conditions": [{**condition, "severity": "new"}],
        "signatures": ["new"],
    }
    status = Status.model_validate(written)
    assert (status.resumes, status.images[0].digest, status.conditions[0].type) == (3, A, "Pinned")


def test_an_operator_that_reads_a_newer_status_goes_on_with_the_run(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, BOTH)
    before = team.settle()
    status = team.cluster.objects["runs"]["a"]["status"]
    status["signatures"], status["images"][0]["platform"] = ["new"], "new"
    team.change(state="Paused")
    team.settle()
    team.later = 10_000.0
    after = team.settle()
    assert (after["state"], after["signatures"]) == ("Paused", ["new"])
    assert (after["started"], len(after["images"])) == (before["started"], 2)


@pytest.mark.parametrize(
    ("image", "said", "digest"),
    [
        ("hub.example/a/b:1", f"hub.example/a/b@{A}", A),
        ("hub.example:5000/b", f"hub.example:5000/b@{A}", A),
        ("hub.example/a/b:1", f"docker-pullable://hub.example/a/b@{A}", A),
        ("a/b:1", f"hub.example/a/b@{A}", A),
        ("b", f"hub.example/library/b@{A}", A),
        ("localhost/b", f"localhost/b@{A}", A),
        ("docker.io/b:1", f"docker.io/library/b@{A}", A),
        ("docker.io/a/b:1", f"docker.io/a/b@{A}", A),
        ("index.docker.io/a/b:1", f"docker.io/a/b@{A}", A),
        ("index.docker.io/b:1", f"docker.io/library/b@{A}", A),
        ("docker.io/b:1", f"docker.io/library/c@{A}", ""),
        ("docker.io/b:1", f"hub.example/library/b@{A}", ""),
        ("hub.example/b:1", f"hub.example/library/b@{A}", ""),
        (f"a/b@{B}", f"hub.example/c/d@{A}", B),
        ("a/b:1", A, ""),
        ("a/b:1", f"docker://{A}", ""),
        ("a/b:1", f"hub.example/library/import-2026-01-01@{A}", ""),  # as `kind load` leaves it
        ("hub.example/a/b:1", f"other.example/a/b@{A}", ""),
        ("x/a/b:1", f"hub.example/a/b@{A}", ""),
        ("a/b:1", "hub.example/a/b@sha256:12", ""),
    ],
)
def test_a_digest_counts_if_it_is_of_the_repository_of_the_name(image: str, said: str, digest: str) -> None:
    assert pinning._digest(image, said) == digest


@pytest.mark.parametrize(
    ("image", "pinned"),
    [
        ("b", f"b@{A}"),
        ("a/b:1", f"a/b@{A}"),
        ("hub.example:5000/a/b", f"hub.example:5000/a/b@{A}"),
        ("hub.example:5000/a/b:1", f"hub.example:5000/a/b@{A}"),
        (f"a/b:1@{B}", f"a/b:1@{B}"),
    ],
)
def test_a_digest_takes_the_place_of_the_tag(image: str, pinned: str) -> None:
    assert pinning.by_digest(image, A) == pinned


def test_containers_of_kuberay_and_other_pods_images_do_not_count() -> None:
    cluster = {"spec": {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "ray-head", "image": "a/b:1"}]}}}}}
    boxes = [("ray-head", "a/b:1", A), ("autoscaler", "a/b:1", B), ("ray-head", "a/c:1", C)]
    pods = [
        {
            "metadata": {"name": f"p{number}"},
            "spec": {"containers": [{"name": name, "image": image}]},
            "status": {"containerStatuses": [{"name": name, "imageID": f"a/{image[2]}@{digest}"}]},
        }
        for number, (name, image, digest) in enumerate(boxes)
    ]
    assert pinning.pulled(cluster, pods, ()) == (pinning.Pulled("a/b:1", A, "p0"),)
    known = (Image(image="a/b:1", digest=A), Image(image="a/b:1", digest=B))
    assert pinning.patch(cluster, known) == []
