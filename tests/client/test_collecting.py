"""A collection on the laptop's side: whether it fits a machine or a cluster, what a resume may change, what it starts from.

Not checked here: flags and what verbs show (tests/cli/test_collecting.py), pods (tests/plan), that it runs (tests/study).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import failed, scaled
from tests.client.test_machine import check as fits
from tests.kube.test_preflight import look, node

from trialplane.client.run import RunHandle, submit
from trialplane.client.sdk import Platform
from trialplane.errors import InputError, SpecError
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.kube import preflight
from trialplane.kube.preflight import ClusterSnapshot
from trialplane.plan import changes
from trialplane.plan import plan as planning
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import RunStatus, TrialOutcome
from trialplane.wire.states import FailureClass, RunState, TrialState

__all__ = ["look"]

GIB = 2**30
COLLECT = "{units: 4, iterations: 3, workers: 2, learner: 'train:learn'}"


def a_job(resources: dict[str, Any] | None = None, **collect: Any) -> Job:
    fields = {"units": 80, "iterations": 10, "workers": 8, "learner": "train:learn", **collect}
    return kinds.read(
        {"name": "demo", "kind": "collect", "collect": fields, "resources": {"memory": "1Mi", **(resources or {})}}
    )


@pytest.fixture(autouse=True)
def job(workplace) -> Path:
    """The job demo is a collection."""
    file = workplace / "jobs" / "demo" / "job.yaml"
    file.write_text(f"kind: collect\ncollect: {COLLECT}\nresources: {{memory: 1Mi}}\n")
    (file.parent / "train.py").write_text("def play(ctx): ...\ndef learn(ctx, results): ...\n")
    return file


def collected(request) -> TrialOutcome:
    return TrialOutcome(request.number, TrialState.COMPLETE, metrics={"units": 4.0, "loss": 0.5}, started=10.0, ended=40.0)


# A machine


@pytest.mark.parametrize(
    ("wanted", "has", "said"),
    [
        (
            a_job({"gpus": 1}, workers=4),
            {"gpus": 3},
            "collect.workers: 4 workers with 1 GPU each and the learner with 1 GPU do not fit this machine, which has 3, "
            "enough for 2 beside the learner; --workers 2",
        ),
        (
            a_job({"gpus": 1}, workers=4),
            {"gpus": 1},
            "collect.workers: 4 workers with 1 GPU each and the learner with 1 GPU do not fit this machine, which has 1, "
            "enough for 0 beside the learner; "
            "--set resources.gpus=0",
        ),
        (
            a_job({"gpus": 2}),
            {},
            "resources.gpus: a worker requests 2, and this machine has none; --set resources.gpus=0",
        ),
    ],
)
def test_gpus_are_counted_for_the_learner_too(wanted, has, said):
    assert fits(wanted, **{"cores": 99, **has}) == ([said], [])


def test_what_gets_slow_is_told_in_its_own_words():
    assert fits(a_job({"cpus": 2}, workers=3))[1] == [
        "3 workers with 2 cores each and the learner with 2 cores: this machine has 4 cores, so they will be slower"
    ]
    (warning,) = fits(a_job({"memory": "5Gi"}, workers=1))[1]
    assert warning == "a worker with 5Gi and the learner with 5Gi: that is more than this machine's 8 GiB"


@pytest.mark.parametrize(("in_flight", "shm", "told"), [("597Mi", 2 * GIB, 0), ("598Mi", 2 * GIB, 1), ("4Gi", None, 0)])
def test_shared_memory_too_small_for_what_is_in_flight_is_told(in_flight, shm, told):
    _, warnings = fits(a_job(in_flight=in_flight), cores=99, shm=shm)
    assert len(warnings) == told
    for warning in warnings:
        assert "collect.in_flight is 598 MiB, and /dev/shm has 2048 MiB left, half of it for results" in warning
        assert warning.endswith("--in-flight 597Mi fits")


def test_a_search_is_not_told_of_shared_memory():
    searched = kinds.read({"name": "a", "kind": "hpo", "objectives": [{"metric": "a", "direction": "minimize"}]})
    assert fits(searched, shm=1) == ([], [])


# A cluster


def test_a_worker_larger_than_every_node_is_called_a_worker(look):
    issues, _ = look(ClusterSnapshot(nodes=[node(nvidia_com__gpu="1")]), resources__gpus=2)
    assert [text.partition(",")[0] for text in issues] == ["resources.gpus: a worker requests 2 nvidia.com/gpu"]


def test_the_cure_for_a_learner_without_gpus_is_the_learners(look):
    """Else the workers would get them."""
    (issue,), _ = look(
        ClusterSnapshot(nodes=[node(nvidia_com__gpu="1")]), **{"collect.learner.resources.gpus": 2, "resources.gpus": 0}
    )
    assert issue.startswith("collect.learner.resources.gpus: the learner requests 2 nvidia.com/gpu")
    assert issue.endswith("--set collect.learner.resources.gpus=1")
    job = a_job(learner={"entrypoint": "train:learn", "resources": {"gpus": 2}})
    assert fits(job, cores=99)[0] == [
        "collect.learner.resources.gpus: the learner requests 2, and this machine has none; "
        "--set collect.learner.resources.gpus=0"
    ]


@pytest.mark.parametrize(
    ("to", "has_volume", "said"),
    [
        (None, False, ""),
        ("s3://b/c", False, ""),
        ("/checkpoints/games", True, ""),
        ("/checkpoints/games", False, "is lost with it; write a URL (s3://bucket/path), or leave it out"),
        ("/data/games", True, "is on the data volume, which is read-only; write a folder below /checkpoints, a URL"),
        ("/home/ann", True, "/home/ann is a folder of the pod"),
    ],
)
def test_files_go_where_they_stay(to, has_volume, said):
    found = preflight.output_issues(a_job(learner={}, write={"to": to}), has_volume)
    assert len(found) == bool(said)
    for issue in found:
        assert issue.field == "collect.write.to"
        assert said in issue.message


# Going on


def test_a_resume_may_ask_for_more_iterations_and_other_workers():
    job = changes.apply_changes(
        a_job(), {"collect.iterations": 20, "collect.workers": 2, "trials": None}, ["budget.time=2h"], 10
    )
    assert (job.trials, job.slots, job.budget.time) == (20, 3, 7200.0)


@pytest.mark.parametrize(
    ("changed", "sets", "field", "said"),
    [
        ({"collect.iterations": 5}, [], "collect.iterations", "7 have already started"),
        (
            {"trials": 20},
            [],
            "trials",
            "cannot change when a run is resumed; only collect.itera",
        ),
        ({"budget.max_failed": 5}, [], "budget.max_failed", "collect.max_failed says how many units may fail"),
        ({}, ["collect.units=5"], "collect.units", "cannot change"),
        ({}, ["collect.learner=train:other"], "collect.learner", "cannot change"),
        ({}, ["collect=null"], "collect", "cannot change"),
    ],
)
def test_what_would_make_another_collection_is_refused(changed, sets, field, said):
    with pytest.raises(SpecError) as caught:
        changes.apply_changes(a_job(), changed, sets, 7)
    (issue,) = caught.value.issues
    assert issue.field == field
    assert said in issue.message


def test_a_budget_of_hours_may_be_set_later_and_with_another_number_of_workers():
    job = kinds.read({**a_job({"gpus": 1}).model_dump(mode="json"), "budget": {"cost": 5}})
    for sets in (["collect.workers=2", "budget.cost=9"], ["budget.gpu_hours=9", "budget.cost=null"]):
        assert changes.apply_changes(job, {}, sets, 7) != job


def test_a_study_has_no_iterations():
    searched = kinds.read({"name": "a", "kind": "hpo", "objectives": [{"metric": "a", "direction": "minimize"}]})
    with pytest.raises(SpecError, match=r"--iterations: collect\.iterations: cannot change"):
        changes.apply_changes(searched, {"collect.iterations": 5}, [], 0)


def test_one_that_has_succeeded_says_how_to_ask_for_more():
    status = RunStatus("a", "demo", RunState.SUCCEEDED, trials=10, complete=10, progress=CollectionProgress())
    assert "`platform resume a --iterations N` runs more than 10" in changes.completed_message(status, a_job(), a_job())
    failed_ = dataclasses.replace(status, state=RunState.FAILED, complete=3, failed=1)
    assert changes.completed_message(failed_, a_job(), a_job()) == ""


def test_a_status_before_the_controller_speaks_counts_slots():
    status = planning.pending_status("a", a_job(), 1.0)
    assert (status.kind, status.trials, status.parallel, status.slots) == ("collect", 10, 8, 9)


def test_here_other_workers_need_a_pause(runs, held):
    run = runs.make("a", tell=collected)
    with pytest.raises(InputError, match="a is not active; `platform resume a --workers 4` continues"):
        list(RunHandle("a", runs.target).scale(4))
    held(run)
    with pytest.raises(InputError, match="first `platform pause a`: `platform resume a --workers 4`"):
        list(RunHandle("a", runs.target).scale(4))


def on_a_cluster(target, planned, **overrides: Any) -> RunHandle:
    submit(target, planned(**overrides))
    handle = RunHandle("a", target)
    assert handle.status().state is RunState.RUNNING
    return handle


def test_on_a_cluster_workers_come_and_go(target, namespace, planned):
    """Their pods are as many, and the learner keeps its own."""
    on_a_cluster(target, planned)
    assert scaled(target, 4)
    group, learners = namespace.cluster.objects["rayclusters"]["a"]["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["maxReplicas"]) == (4, 4)
    assert not scaled(target, 1, now=True)
    assert group["scaleStrategy"] == {"workersToDelete": ["a-workers-worker-0"]}
    namespace.cluster.remove("pods", "a-workers-worker-0")
    assert scaled(target, 1)
    assert (group["replicas"], learners["replicas"]) == (1, 1)
    assert "scaleStrategy" not in learners


def test_a_resumed_one_keeps_its_workers(target, namespace, planned):
    handle = on_a_cluster(target, planned)
    assert scaled(target, 4)
    handle.pause()
    with pytest.raises(InputError, match="`platform resume a --workers 3` continues with that many"):
        scaled(target, 3)
    handle.resume()
    assert (handle.job.width, handle.status().slots) == (4, 5)
    handle.pause()
    handle.resume(changes={"collect.workers": 3, "collect.iterations": 7})
    assert (handle.job.width, handle.job.trials) == (3, 7)


def test_logs_of_a_worker_come_from_the_gateway(target, namespace, planned):
    handle = on_a_cluster(target, planned)
    namespace.studies["a"].worker_logs[1, 0] = b"one\ntwo\n"
    assert list(handle.logs(1, worker=0)) == ["one\n", "two\n"]
    assert list(handle.logs(1, worker=0, follow=True)) == ["one\n", "two\n"]
    with pytest.raises(InputError, match=r"no log of iteration 1 of a .*no such log.* shows the iterations"):
        handle.logs(1, worker=1)


# Starting from another run


def issues(platform: Platform, **options: Any) -> list[str]:
    try:
        platform.prepare("demo", name="b", **options)
    except SpecError as error:
        return [one.message for one in error.issues]
    return []


def test_it_starts_from_the_weights_of_another_collection(runs):
    run = runs.make("a", tell=lambda request: failed(request, FailureClass.ERROR))
    platform = Platform(runs.target)
    assert issues(platform, overrides={"resume": "a"}) == [
        f"a has saved no checkpoint to start from; see `platform logs a` and `platform docs trainings` "
        f"(in {run.checkpoints / 'a' / 'trial-0'})"
    ]
    (run.checkpoints / "a" / "trial-0" / "step-0000000001").mkdir(parents=True)
    assert issues(platform, overrides={"resume": "a"}) == []


def test_another_kind_is_no_start(runs, job):
    runs.make("a", tell=collected)
    job.write_text("kind: train\nentrypoint: train:play\n")
    assert issues(Platform(runs.target), overrides={"resume": "a"}) == [
        "a is a collection, and a training starts from another training"
    ]


def test_a_finished_training_does_not_go_on_whatever_is_changed():
    old = kinds.read({"name": "demo", "kind": "train"})
    new = kinds.read({"name": "demo", "kind": "train", "retries": {"lost": 9}})
    for state in (RunState.SUCCEEDED, RunState.CANCELLED):
        status = RunStatus("a", "demo", state, 1, complete=1)
        assert "`platform submit train demo --resume a` starts another one" in changes.completed_message(status, old, new)
    assert changes.completed_message(RunStatus("a", "demo", RunState.FAILED, 1, failed=1), old, new) == ""
