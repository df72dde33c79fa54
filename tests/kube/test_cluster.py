"""What a cluster refuses, as a message with its cure; and which cluster a kubeconfig means.

On the double of an API server. How a kubeconfig is read, and certificates: test_kubeconfig.py.
"""

from __future__ import annotations

import json

import pytest
from tests.client.kuberay_double import NamespaceDouble
from tests.kube import cluster_double
from tests.kube.cluster_double import ClusterDouble, Problem

from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.run import RunHandle, submit
from trialplane.errors import InputError, TargetError
from trialplane.kube import refusal
from trialplane.wire import cluster as names


def status(message: str, **fields) -> bytes:
    return json.dumps({"kind": "Status", "message": message, **fields}).encode()


@pytest.mark.parametrize(
    ("code", "data", "kind", "said"),
    [
        (401, status("Unauthorized"), TargetError, "log in again"),
        (403, status("pods is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no host paths"),
         InputError, "refuses the request: no host paths"),
        (403, status('admission webhook "w" denied the request: no'), InputError, "refuses the request: no"),
        (422, status("runs \"a\" is invalid: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"),
         InputError, "refuses the request: no"),
        (404, status('namespaces "team" not found', details={"kind": "namespaces", "name": "team"}), InputError,
         "no namespace team"),
        (409, status("Operation cannot be fulfilled"), TargetError, "try again"),
        (422, status("spec.x: unknown"), InputError, "rejects the request: spec.x: unknown"),
        (422, status("the server rejected our request due to an error in our request"), TargetError, "try again"),
        (422, status('Run.trialplane.io "a" is invalid: spec.code: no'), InputError, "rejects the request: spec.code: no"),
        (503, b"<html>", TargetError, "try again in a moment"),
        (418, b"", TargetError, "failed (418): HTTP 418"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_of_the_wanted_ones(code, data, kind, said):
    error = refusal.error(code, data, "get", "pods", "team", "lab")
    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get issuer", "kubeconfig does not trust"),
        ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required", "rejects the certificate"),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", "rejects the certificate"),
        ("[Errno 111] Connection refused", "cannot be reached"),
    ],
)
def test_whose_certificate_is_not_taken(text, said):
    assert said in refusal.unreachable_message(OSError(text), "https://api", "lab")


def test_a_404_of_one_object_is_told_from_one_of_its_kind():
    assert refusal.is_about_an_object(
        status('rayclusters.ray.io "a" not found', details={"name": "a", "kind": "rayclusters"})
    )
    assert not refusal.is_about_an_object(status("the server could not find the requested resource", details={}))
    assert not refusal.is_about_an_object(b"404 page not found")


def test_a_namespace_without_the_chart(target, namespace, planned):
    namespace.cluster.remove("configmaps", names.SITE)
    # There may be teams that this user may not see; the platform is there.
    with pytest.raises(
        TargetError, match=r"team of lab is not that of a team.*run `helm upgrade`, see `platform docs teams`$"
    ):
        target.check(planned().job)
    del namespace.cluster.objects["runs"]
    with pytest.raises(TargetError, match=r"team of lab is not that of a team.*helm install.*'teams\[0\].namespace=team'"):
        KubernetesTarget(namespace="team").check(planned().job)


def test_a_namespace_that_is_no_teams_is_told_with_the_teams(target, namespace, planned):
    def said() -> str:
        with pytest.raises(TargetError) as caught:
            KubernetesTarget(namespace="other").check(planned().job)
        return str(caught.value)

    refused: set[tuple[str, str]] = set()

    def refuse(verb: str, plural: str, name: str) -> None:
        if (verb, plural) in refused:
            raise Problem(403, f'{plural} is forbidden: User "ann" cannot {verb} resource "{plural}"', reason="Forbidden")

    namespace.cluster.refuse = refuse
    assert "is not that of a team, and runs are in those; choose your team's with --namespace (team), or" in said()
    assert "add `- namespace: other` to `teams` in the chart's values" in said()
    # Who may list namespaces only, knows them by the label.
    refused.add(("list", "configmaps"))
    labelled = {"metadata": {"name": "vision", "labels": {names.CONTROL: "trialplane"}}}
    namespace.cluster.put("namespaces", labelled)
    namespace.cluster.put("namespaces", {"metadata": {"name": "default"}})
    assert "--namespace (vision), or" in said()
    # The same for who may read nothing where he is; of his own team's he is told what he may not.
    refused.add(("get", "configmaps"))
    assert "--namespace (vision), or" in said()
    labelled["metadata"]["name"] = "other"
    namespace.cluster.objects["namespaces"] = {"other": labelled}
    assert "ann may not get configmaps in namespace other of lab" in said()
    with pytest.raises(TargetError, match=r"^ann may not get configmaps[^\n]*$"):  # nor is the gateway said to be away
        KubernetesTarget(namespace="other").observe("some")
    # And who may list nothing is told what to do all the same.
    refused.add(("list", "namespaces"))
    refused.discard(("get", "configmaps"))
    assert "choose your team's with --namespace, or" in said()


def test_a_cluster_without_kuberay(target, namespace, planned, monkeypatch):
    monkeypatch.delitem(namespace.cluster.objects, "rayclusters")
    monkeypatch.delitem(cluster_double.KINDS, "rayclusters")
    submit(target, planned())
    assert "the KubeRay operator (1.6 or newer) is not installed" in RunHandle("a", target).status().reason


def test_what_is_forbidden_names_the_verb_and_who_grants_it(target, namespace, planned):
    def refuse(verb: str, plural: str, name: str) -> None:
        if (verb, plural) == ("patch", "runs"):
            message = 'runs.trialplane.io "a" is forbidden: User "ann" cannot patch resource "runs" in API group "…"'
            raise Problem(403, message, reason="Forbidden")

    namespace.cluster.refuse = refuse
    with pytest.raises(TargetError, match=r"ann may not patch runs.trialplane.io in namespace team.*adding ann to `users`"):
        submit(target, planned())


def test_expired_credentials(target, namespace, monkeypatch):
    monkeypatch.setattr(cluster_double, "TOKEN", "another")
    with pytest.raises(TargetError, match="does not accept your credentials"):
        target.runs()


def test_a_cluster_that_is_not_there(workplace, tmp_path, monkeypatch):
    gone = ClusterDouble()
    NamespaceDouble(gone)
    gone.close()
    monkeypatch.setenv("KUBECONFIG", str(gone.kubeconfig(tmp_path / "kubeconfig")))
    with pytest.raises(TargetError, match=r"lab .* cannot be reached"):
        KubernetesTarget().runs()


def test_contexts_and_namespaces_of_the_kubeconfig(namespace):
    assert KubernetesTarget().name.flags == "--context lab --namespace team"
    assert KubernetesTarget(namespace="other").name.flags == "--context lab --namespace other"
    with pytest.raises(InputError, match="did you mean lab"):
        _ = KubernetesTarget("labb").cluster


def test_no_kubeconfig(workplace):
    with pytest.raises(InputError, match=r"there is no kubeconfig .*--local"):
        _ = KubernetesTarget().cluster
