"""A training of two nodes with two ranks each, killed and going on: from a volume that both nodes write, and from an object
store, where MLflow has its artifacts too.

The volume needs two nodes and values-nodes.yaml. The store is S3's: TRIALPLANE_E2E_STORE=NAMESPACE/SECRET/BUCKET names a
Secret with AWS_ENDPOINT_URL, AWS_REGION and two keys, as `envFrom` takes it. Not checked: NFS, TLS.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e import steps
from tests.e2e.conftest import Cluster, install

STORE = os.environ.get("TRIALPLANE_E2E_STORE", "")
SAVE = 20  # steps from checkpoint to checkpoint
_APART = "{topology: {spread: kubernetes.io/hostname}}"
_GANG = ("--nodes", "2", "--set", "ranks=2", "--set", f"params.save_every={SAVE}", "--set", "params.pause=0.6")
# All processes of a pod at once, without a word: a deleted pod would run its hook first.
_KILL = ("python", "-c", "import os; os.kill(-1, 9)")
_LIST = """
import boto3, sys
found = boto3.client("s3").list_objects_v2(Bucket=sys.argv[1]).get("Contents", [])
print(*(one["Key"] for one in found))
"""


def nodes_of(cluster: Cluster, run: str) -> set[str]:
    return {str(pod["spec"].get("nodeName")) for pod in cluster.objects("pods", run=run, role="trial")}


def kill_one(cluster: Cluster, run: str) -> int:
    """Kills a pod of two once there is a checkpoint; gives the steps that were reported then."""
    at = steps.passed(cluster, run, SAVE + 5)
    pods = cluster.running(run=run, role="trial")
    assert len(pods) == 2
    if len(nodes_of(cluster, run)) < 2:
        pytest.skip("the cluster put both pods on one node")
    cluster.kubectl("exec", pods[-1], "-c", "ray-worker", "--", *_KILL)
    return at


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_four_ranks_on_two_nodes_go_on_from_a_shared_volume(cluster: Cluster) -> None:
    claim = json.loads(cluster.kubectl("get", "pvc", "platform-checkpoints", "-o", "json"))
    if "ReadWriteMany" not in claim["status"].get("accessModes", []):
        pytest.skip("checkpoints lie on one node's volume; TRIALPLANE_E2E_VALUES=tests/e2e/values-nodes.yaml")
    steps.submit(cluster, "wide", *_GANG, cluster_fields=_APART)
    kill_one(cluster, "wide")
    row = steps.finished(cluster, "wide")
    assert row["attempt"] == 2
    assert row["metrics"]["done"] == steps.STEPS
    assert 0 < row["metrics"]["again"] <= SAVE
    cluster.platform("delete", "wide", "--yes")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Cluster]:
    """The chart with the store for checkpoints and artifacts; team and MLflow each have a Secret of their own."""
    if STORE.count("/") != 2:
        pytest.skip("TRIALPLANE_E2E_STORE names no object store")
    namespace, secret, bucket = STORE.split("/")
    keys = json.loads(cluster.kubectl("get", "secret", secret, "--namespace", namespace, "-o", "json"))["data"]
    for place, name in ((cluster, "store"), (cluster.control, "store-of-mlflow")):
        made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": keys}
        place.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    install("--values", str(values(tmp_path_factory.mktemp("stored"), keys, bucket)))
    yield cluster
    install()


def values(folder: Path, keys: dict[str, str], bucket: str) -> Path:
    """Values for the chart, as the README describes them for an object store of the cluster's own."""
    endpoint = base64.b64decode(keys["AWS_ENDPOINT_URL"]).decode()
    port = urllib.parse.urlsplit(endpoint).port or 443
    artifacts = {
        "artifacts": {"uri": f"s3://{bucket}/artifacts"},
        "extraEnvFrom": [{"secretRef": {"name": "store-of-mlflow"}}],
        "extraEnv": [{"name": "MLFLOW_S3_ENDPOINT_URL", "value": endpoint}],
    }
    made = {
        "checkpoints": {"enabled": False, "url": f"s3://{bucket}/checkpoints", "secret": "store", "ports": [port]},
        "mlflow": artifacts,
        "networkPolicy": {"mlflow": {"egress": [{"ports": [{"port": port}]}]}},
    }
    file = folder / "values.json"
    file.write_text(json.dumps(made))
    return file


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_four_ranks_on_two_nodes_go_on_from_an_object_store(stored: Cluster) -> None:
    bucket = STORE.rpartition("/")[2]
    steps.submit(stored, "afar", *_GANG, cluster_fields=_APART)
    reported = kill_one(stored, "afar")
    row = steps.finished(stored, "afar")
    assert row["attempt"] == 2
    assert row["metrics"]["begun"] % SAVE == 0
    assert reported - row["metrics"]["begun"] < SAVE, "no more than an interval was done again"
    (pod, *_) = stored.control.running(role="mlflow")
    found = stored.control.kubectl("exec", pod, "-c", "mlflow", "--", "python", "-c", _LIST, bucket).split()
    assert [key for key in found if key.startswith(f"checkpoints/{stored.namespace}/afar/") and key.endswith("COMPLETE")]
    stored.until("end of its pods", lambda: not stored.objects("pods", run="afar"))
    assert "begins with step" in stored.platform("logs", "afar", "0"), "from MLflow, which has it in the store"
    assert [key for key in found if key.startswith("artifacts/") and key.endswith(".log")], found
