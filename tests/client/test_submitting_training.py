"""What is refused of a training before anything starts on a cluster: its run to start from, and files it would not find.

On the doubles of an API server, KubeRay and the gateway. The same on this machine is tests/cli/test_training.py.
"""

from __future__ import annotations

import pytest

from trialplane.client.run import RunHandle, submit
from trialplane.client.sdk import Platform
from trialplane.errors import SpecError

TRAINING = "kind: train\nparams: {lr: 0.5, data: a.csv}\ninputs: {data: {columns: [text], optional: true}}\n"


@pytest.fixture(autouse=True)
def job(workplace):
    """The job demo is a training."""
    file = workplace / "jobs" / "demo" / "job.yaml"
    file.write_text(TRAINING)
    (file.parent / "a.csv").write_text("text\nx\n")
    return file


@pytest.fixture
def chart(namespace, target):
    """Changes what the chart says of itself."""

    def change(**fields):
        namespace.install(**fields)
        target.objects.__dict__.pop("site", None)  # it is read once

    return change


def said(platform, *sets, **overrides) -> list[str]:
    """What is wrong with a submission of the job."""
    try:
        platform.prepare("demo", name="b", sets=sets, overrides=overrides, kind="train")
    except SpecError as error:
        return [f"{one.field}: {one.message}" for one in error.issues]
    return []


@pytest.fixture
def platform(target, namespace, planned):
    """The SDK at that namespace, where the training `a` has run."""
    submit(target, planned("a"))
    RunHandle("a", target).status()
    return Platform(target)


def test_a_checkpoint_is_looked_for_where_it_would_be(platform, namespace, chart):
    went = "resume: the checkpoints of a were lost with its pods, because the chart has no volume for them"
    assert said(platform, resume="a") == [went]
    chart(checkpoints={"claim": "saved"})
    study = namespace.studies["a"]
    study.saved = False
    (issue,) = said(platform, resume="a")
    assert issue.startswith("resume: a has saved no checkpoint to start from; see `platform logs a`")
    for study.saved in (True, None):  # None: a gateway that cannot tell stands in nobody's way
        assert said(platform, resume="a") == []
    (issue,) = said(platform, "checkpoints.url=s3://b/c", resume="a")
    assert issue.startswith("resume: a saved checkpoints in /checkpoints, but this run would look in s3://b/c.")
    assert namespace.cluster.objects["rayclusters"].keys() == {"a"}


def test_what_is_in_an_object_store_is_not_looked_at(platform, namespace, chart):
    chart(checkpoints={"url": "s3://b/c"})
    namespace.studies["a"].saved = False
    assert said(platform, resume="a") == []


def test_another_job_and_no_run_at_all(platform, job):
    job.write_text(TRAINING + "description: changed\n")
    assert said(platform, resume="aa") == [
        f"resume: there is no run 'aa' in {platform.target.cluster.location}; did you mean a?"
    ]
    other = job.parent.with_name("other")
    job.parent.rename(other)
    with pytest.raises(SpecError, match="a is a training of the job demo, whose checkpoints other cannot read"):
        platform.prepare("other", overrides={"resume": "a"}, kind="train")


def test_files_that_only_this_machine_has(platform, job, tmp_path, chart):
    """All of it at once, and of the run to start from too."""
    mine = tmp_path / "mine.csv"
    mine.write_text("text\nx\n")
    here, resume = said(platform, f"params.data={mine}", resume="aa")
    assert here.startswith(
        "params.data: is on this machine only, and the trials are on a cluster; put it on the chart's data"
    )
    assert resume.startswith("resume: there is no run 'aa'")
    (volume,) = said(platform, "params.data=/data/a.csv")
    assert "the chart has no data volume" in volume
    chart(data={"claim": "datasets"})
    assert said(platform, "params.data=/data/a.csv") == []
    assert said(platform, "params.data=null") == said(platform) == []
    job.write_text(TRAINING.replace(", optional: true", ""))
    assert said(platform, "params.data=null") == ["params.data: is null, and must name a .csv, .tsv or .jsonl file"]
