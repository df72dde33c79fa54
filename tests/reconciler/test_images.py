"""Images of a run's pods: their digests are in its status and in the ledger, and its pods go by the names in job and chart.

On the doubles of a cluster. Here also: a status that a newer operator wrote.
"""

from __future__ import annotations

from typing import Any

import pytest

from trialplane.plan.run import Image, Status
from trialplane.reconciler import observing

from .conftest import Team

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
CONTROLLER, TRIAL = "trialplane/controller:1", "trialplane/trial:1"
RECORDED = [{"image": CONTROLLER, "digest": A}, {"image": TRIAL, "digest": B}]


def pull(team: Team, digests: dict[str, str], pods: str = "a-") -> None:
    """Has the containers of pods run images, by their names."""
    for name, pod in team.cluster.objects["pods"].items():
        for box in [*pod["status"]["containerStatuses"], *pod["status"]["initContainerStatuses"]]:
            if name.startswith(pods) and box["image"] in digests:
                box["imageID"] = f"hub.example/{box['image'].partition(':')[0]}@{digests[box['image']]}"


def images(team: Team) -> set[str]:
    """The images of the templates."""
    spec = team.ray_clusters["a"]["spec"]
    pods = [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    return {box["image"] for pod in pods for box in [*pod["containers"], *pod.get("initContainers", [])]}


def test_what_pods_have_pulled_is_in_the_status_and_in_the_ledger_and_templates_go_by_tag(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.apply()
    assert team.settle()["images"] == []
    pull(team, {CONTROLLER: A, TRIAL: B})
    assert sorted(team.settle()["images"], key=lambda one: one["image"]) == RECORDED
    assert team.namespace.studies["a"].images == {CONTROLLER: (A,), TRIAL: (B,)}
    assert images(team) == {CONTROLLER, TRIAL}
    before = len(team.cluster.requests)
    monkeypatch.setattr(team.archive, "add_images", lambda *args: pytest.fail("the ledger has them already"))
    team.settle()
    assert {verb for verb, _ in team.cluster.requests[before:]} == {"GET"}


def test_two_digests_of_one_image_stay_in_the_status_when_their_pods_are_gone(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, {TRIAL: B}, "a-trials-worker-0")
    pull(team, {TRIAL: C}, "a-trials-worker-1")
    team.settle()
    team.cluster.remove("pods", "a-trials-worker-1")
    status = team.settle()
    assert status["state"] == "Running"
    assert {one["digest"] for one in status["images"]} == {B, C}
    assert set(team.namespace.studies["a"].images[TRIAL]) == {B, C}


def test_a_resume_takes_the_tag_and_adds_what_it_pulls(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, {CONTROLLER: A, TRIAL: B})
    team.settle()
    team.change(state="Paused")
    team.settle()
    team.later = 10_000.0
    team.settle()
    assert "a" not in team.ray_clusters
    team.change(state="Running", resumes=1)
    assert len(team.settle()["images"]) == 2
    assert (images(team), team.made) == ({CONTROLLER, TRIAL}, 2)
    pull(team, {TRIAL: C})
    assert {"image": TRIAL, "digest": C} in team.settle()["images"]
    assert team.namespace.studies["a"].images[TRIAL] == (B, C)


def test_a_status_with_fields_of_a_newer_operator_is_read() -> None:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Working",
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
    assert (status.resumes, status.images[0].digest, status.conditions[0].type) == (3, A, "Ready")


def test_an_operator_that_reads_a_newer_status_goes_on_with_the_run(team: Team) -> None:
    team.apply()
    team.settle()
    pull(team, {CONTROLLER: A, TRIAL: B})
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
    ("image", "said", "digests"),
    [
        ("hub.example:5000/b:1", f"hub.example:5000/b@{A}", [A]),
        ("b", f"docker-pullable://docker.io/library/b@{A}", [A]),
        (f"a/b@{B}", f"hub.example/c/d@{A}", [B]),  # the node knows it by another name too
        (f"a/b@{B}", "", []),  # not pulled yet
        ("a/b:1", A, []),  # loaded into the node by hand
        ("a/b:1", f"docker.io/library/import-2026@{A}", []),  # by `kind load`
        ("a/b:1", f"hub.example/c/d@{A}", []),  # the node has the same image of another repository
        ("a/b:1", None, []),
    ],
)
def test_the_digest_of_an_image_is_what_its_node_pulled(image: str, said: str | None, digests: list[str]) -> None:
    box: dict[str, Any] = {"name": "ray-head", "image": f"sha256:{'f' * 64}", "imageID": said}
    pod = {"spec": {"containers": [{"name": "ray-head", "image": image}]}, "status": {"containerStatuses": [box]}}
    assert observing.images([pod, pod]) == tuple(Image(image=image, digest=one) for one in digests)


def test_a_container_that_somebody_injects_is_no_image_of_the_run() -> None:
    box = {"name": "istio-proxy", "image": "istio/proxy:1", "imageID": f"istio/proxy@{A}"}
    pod = {"spec": {"containers": [box]}, "status": {"containerStatuses": [box]}}
    assert observing.images([pod]) == ()
