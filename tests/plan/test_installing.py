"""Which pods install packages, what the container has and sees, and which way out of the network its run has.

How the container installs is tests/worker/test_install.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trialplane.plan import network, raycluster
from trialplane.plan.plan import Plan
from trialplane.plan.site import Site
from trialplane.wire import cluster, env

from .conftest import INSTALL, NETWORK

Make = tuple[Callable[..., Plan], Callable[..., Site]]
ASKED = {"requirements": "requirements.txt", "install": True}


def pod(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    return found


def test_a_run_that_does_not_ask_has_no_container_volume_or_way_out_of_it(make: Make) -> None:
    a_plan, a_site = make
    made = raycluster.raycluster(a_plan(requirements="requirements.txt"), site := a_site(install=INSTALL, network=NETWORK))
    assert "initContainers" not in pod(made)
    assert cluster.PACKAGES not in str(made)
    assert "8443" not in str(network.policies(made, site))


def test_the_container_has_the_runs_image_and_bounds_but_no_gpu_and_the_trials_only_read(make: Make) -> None:
    a_plan, a_site = make
    plan = a_plan(**ASKED, resources={"gpus": 2}, cluster={"image": "team/mine:1", "gpu_resource": "nvidia.com/mig-1g.10gb"})
    made = pod(raycluster.raycluster(plan, a_site(install=INSTALL)))
    (install,), (trials,) = made["initContainers"], made["containers"]
    assert install["image"] == trials["image"] == "team/mine:1"
    assert set(install["resources"]["limits"]) == {"cpu", "memory"}
    assert install["securityContext"] == trials["securityContext"]
    assert {one["name"] for one in install["volumeMounts"]} == {"packages", "code", "tmp"}, "neither data nor checkpoints"
    mounts = {one["name"]: one for one in trials["volumeMounts"]}
    assert mounts["packages"] == {"name": "packages", "mountPath": cluster.PACKAGES, "readOnly": True}
    assert {"name": "packages", "emptyDir": {"sizeLimit": "2Gi"}} in made["volumes"]
    said = " ".join(install["command"])
    assert said.endswith("--index https://packages.example.org/simple --max-size 2Gi --timeout 300 -- requirements.txt")


def test_trials_are_told_the_folder_and_no_path_of_the_image_is_replaced(make: Make) -> None:
    a_plan, a_site = make
    made = pod(raycluster.raycluster(a_plan(**ASKED), a_site(install=INSTALL)))
    installs, trials = (
        {one["name"]: one["value"] for one in made[kind][0]["env"]} for kind in ("initContainers", "containers")
    )
    assert env.PACKAGES not in installs and trials[env.PACKAGES] == cluster.PACKAGES
    assert not {"PYTHONPATH", "PATH"} & {*installs, *trials}


def test_only_trial_pods_of_a_run_that_asks_reach_the_index(make: Make) -> None:
    a_plan, a_site = make
    made = raycluster.raycluster(a_plan(**ASKED), site := a_site(install=INSTALL, network=NETWORK))
    head, trials = network.policies(made, site)
    assert INSTALL["egress"][0] in trials["spec"]["egress"]
    assert "8443" not in str(head)
    forbidden = a_site(install={**INSTALL, "enabled": False}, network=NETWORK)
    assert "8443" not in str(network.policies(made, forbidden)), "the values forbid it now"
