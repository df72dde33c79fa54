"""Volumes on a cluster: pods see the folders of their run alone, logs outlive pods, and a deleted run leaves no file.

Not checked here: an operator that is killed meanwhile (tests/reconciler/test_removal.py).
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.conftest import RELEASE, SPEC, Cluster

CODE = """
import os

def run(ctx):
    os.makedirs(ctx.checkpoints, exist_ok=True)
    with open(os.path.join(ctx.checkpoints, "model.bin"), "wb") as file:
        file.write(b"1")
    cache = os.path.join(ctx.checkpoints, "cache")  # as some libraries have them
    os.makedirs(os.path.join(cache, "deep"), exist_ok=True)
    os.chmod(cache, 0o500)
    print("sees", sorted(os.listdir("/checkpoints")), flush=True)
    return {"score": ctx.params["x"]}
"""
SAVING = SPEC + "checkpoints: {grace: 5s}\n"
LOOK = "import os, json; print(json.dumps([sorted(os.listdir(p)) if os.path.isdir(p) else [] for p in ('/r/runs', '/c')]))"


def folders(cluster: Cluster) -> tuple[list[str], list[str]]:
    """The runs that have a folder on the claims of run folders and of checkpoints, as a pod sees them that mounts both."""
    controller = json.loads(cluster.control.kubectl("get", "deployment", f"{RELEASE}-gateway", "-o", "json"))
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    locked = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True, "runAsUser": 1000}
    locked |= {"seccompProfile": {"type": "RuntimeDefault"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "looks"},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "looks",
                    "image": container["image"],
                    "command": ["python", "-c", LOOK],
                    "securityContext": locked,
                    "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("r", "c")],
                }
            ],
            "volumes": [
                {"name": name, "persistentVolumeClaim": {"claimName": f"{RELEASE}-{claim}", "readOnly": True}}
                for name, claim in (("r", "runs"), ("c", "checkpoints"))
            ],
        },
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    try:
        phase = ("get", "pod", "looks", "-o", "jsonpath={.status.phase}")
        cluster.until("a look at the volumes", lambda: cluster.kubectl(*phase) == "Succeeded")
        runs, checkpoints = json.loads(cluster.kubectl("logs", "looks"))
        return runs, checkpoints
    finally:
        cluster.kubectl("delete", "pod", "looks", "--wait")


def test_a_deleted_run_leaves_no_file_and_another_one_all(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.job(tmp_path / "saver", code=CODE, spec=SAVING)
    for name in ("gone", "stays"):
        cluster.platform("submit", "hpo", folder, "--name", name, "--parallel", "1", "--detach")
    for name in ("gone", "stays"):
        cluster.until("end", lambda name=name: cluster.status(name)["state"] == "SUCCEEDED")
        cluster.until("end of the pods", lambda name=name: not cluster.objects("pods", run=name))
        assert f"sees ['{name}']" in cluster.platform("logs", name, "0"), "from MLflow, as no pod is left"
        assert "all 6 trials ended" in cluster.platform("logs", name)
    for found in folders(cluster):
        assert {"gone", "stays"} <= set(found)
    cluster.platform("delete", "gone", "--yes")
    for found in folders(cluster):
        assert "gone" not in found
        assert "stays" in found
    assert cluster.objects("pods", removes="gone") == []
    cluster.kubectl("delete", "run", "stays")
    assert len(cluster.said("results", "stays")) == 6, "the record and the files stay where only the object is deleted"
    assert "stays" in folders(cluster)[1]
    cluster.platform("delete", "stays", "--yes")
    assert [found for found in folders(cluster) if "stays" in found] == []
