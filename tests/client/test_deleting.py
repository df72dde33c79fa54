"""`platform delete` on a cluster: it returns when the operator has removed files and record, or says why that takes so long.

Not checked here: how the operator removes them (tests/reconciler/test_removal.py).
"""

from __future__ import annotations

import pytest
from tests.client.conftest import submitted
from tests.client.kuberay_double import NamespaceDouble

from trialplane.client import kubernetes
from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.run import RunHandle
from trialplane.errors import TargetError
from trialplane.wire import cluster as names
from trialplane.wire.states import RunState


@pytest.fixture
def handle(target: KubernetesTarget, namespace: NamespaceDouble, planned) -> RunHandle:
    """A run that has ended."""
    made = submitted(target, planned())
    namespace.end("a", RunState.SUCCEEDED)
    return made


def test_a_run_without_a_run_object_is_deleted_as_well(handle: RunHandle, namespace: NamespaceDouble) -> None:
    namespace.cluster.remove("runs", "a")
    handle.delete()
    assert namespace.studies == {}


def test_a_controller_that_is_coming_to_its_end_is_waited_for(
    handle: RunHandle, namespace: NamespaceDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that began while its run was being cancelled has the run for a moment."""
    monkeypatch.setattr(KubernetesTarget, "poll", 0.0)
    namespace.ending = 4
    handle.delete()
    assert (namespace.studies, namespace.ending) == ({}, 0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "REMOVAL", 0.0)


@pytest.mark.usefixtures("impatient")
def test_without_an_operator_it_stays_and_the_user_is_told(handle: RunHandle, namespace: NamespaceDouble) -> None:
    namespace.unattended = True
    with pytest.raises(TargetError, match=r"a is deleted and no longer runs, but its files .* is the operator running\?"):
        handle.delete()
    assert "a" in namespace.studies
    namespace.unattended = False
    assert handle.target.runs() == [], "it goes when the operator is back"


@pytest.mark.usefixtures("impatient")
def test_a_controller_that_does_not_end_is_named(handle: RunHandle, namespace: NamespaceDouble) -> None:
    namespace.ending = 99
    with pytest.raises(
        TargetError, match=r"its controller still works on it; repeat `platform delete a` once `kubectl .* -l"
    ):
        handle.delete()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("status", "says"),
    [
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"message": "rm: Permission denied\n"}}}]},
            "not removed yet: rm: Permission denied; `kubectl .* logs a-runs-1` has the rest. Another pod tries in a minute",
        ),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "not removed yet: DeadlineExceeded; "),
        (
            {"phase": "Pending"},
            "the pod a-runs-1 is Pending; `kubectl .* describe pod a-runs-1` shows why. The removal continues",
        ),
    ],
)
def test_what_its_pod_says_is_passed_on(handle: RunHandle, namespace: NamespaceDouble, status, says: str) -> None:
    namespace.unattended = True
    pod = {"metadata": {"name": "a-runs-1", "labels": {names.REMOVES: "a"}}, "status": status}
    namespace.cluster.put("pods", pod)
    with pytest.raises(TargetError, match=says):
        handle.delete()
