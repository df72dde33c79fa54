"""`platform submit … --dry-run --values FILE`: what is checked and shown without a cluster, and that none is contacted.

What is shown with one is test_cluster_verbs.py; that the defaults are the chart's is compared with its values here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from trialplane.client.offline import Offline
from trialplane.kube import kubeconfig
from trialplane.plan.site import CheckpointDefaults

SUBMIT = ("submit", "hpo", "demo", "--name", "x", "--dry-run", "--values", "values.yaml")
TRAIN = ("submit", "train", "demo", "--name", "x", "--dry-run", "--values", "values.yaml")
CHART = Path(__file__).parents[2] / "charts" / "platform" / "values.yaml"


@pytest.fixture(autouse=True)
def nowhere(workplace, monkeypatch):
    """Nobody reads a kubeconfig."""
    (workplace / "values.yaml").write_text("{image: {trial: {tag: '7'}}}")

    def read(context):
        raise AssertionError("a kubeconfig was read")

    monkeypatch.setattr(kubeconfig, "read", read)


@pytest.fixture
def training(workplace):
    """The job demo is a training of a data set."""
    file = workplace / "jobs" / "demo" / "job.yaml"
    file.write_text("kind: train\nparams: {data: /data/a.csv}\ninputs: {data: {columns: [text]}}\n")


def test_run_and_code_are_shown_and_what_was_not_checked(platform, home):
    result = platform(*SUBMIT)
    assert result.exit_code == 0, result.stderr
    run, code = yaml.safe_load_all(result.stdout)
    assert (run["kind"], run["metadata"]["name"], code["kind"]) == ("Run", "x", "ConfigMap")
    assert (run["spec"]["state"], run["spec"]["code"]["configMaps"], code["immutable"]) == ("Running", ["x-code"], True)
    assert "namespace" not in run["metadata"]
    assert "annotations" not in run["metadata"], "who will apply it is not known"
    assert result.stdout.startswith("# The cluster only accepts a Run with your username")
    assert "trialplane.io/owner: USERNAME" in result.stdout
    assert "without a cluster it was not checked whether the run's name is free" in result.stderr
    assert {one["metadata"]["namespace"] for one in yaml.safe_load_all(platform(*SUBMIT, "-n", "team").stdout)} == {"team"}
    assert not home.exists()


def test_a_name_is_made_of_the_job(platform):
    words = [word for word in SUBMIT if word not in ("--name", "x")]
    (run, _) = yaml.safe_load_all(platform(*words).stdout)
    assert run["metadata"]["name"].startswith("demo-")


def test_the_values_say_what_data_and_checkpoints_there_are(platform, workplace, training):
    result = platform(*TRAIN)
    assert (result.exit_code, "params.data: " in result.stderr, "the chart has no data volume" in result.stderr) == (
        2,
        True,
        True,
    )
    (workplace / "values.yaml").write_text("data: {enabled: true}")
    result = platform(*TRAIN, "--resume", "another")
    assert (result.exit_code, "the chart has no volume for checkpoints" in result.stderr) == (0, True)
    (workplace / "values.yaml").write_text("data: {enabled: true}\ncheckpoints: {enabled: true}")
    assert "the chart has no volume for checkpoints" not in platform(*TRAIN).stderr


def test_every_issue_at_once_with_its_line(platform, workplace):
    (workplace / "values.yaml").write_text("data:\n  enabled: maybe\ncheckpoints:\n  grace: soon\n")
    result = platform(*SUBMIT, "--trials", "0")
    assert result.exit_code == 2
    assert "3 problems" in result.stderr
    assert "--values values.yaml:2: data.enabled: " in result.stderr
    assert "--values values.yaml:4: checkpoints.grace: 'soon' is not a duration" in result.stderr
    assert "--trials: trials: 0 must be over 0" in result.stderr
    (workplace / "values.yaml").unlink()
    assert "--values values.yaml: file: does not exist" in platform(*SUBMIT).stderr


@pytest.mark.parametrize("words", [SUBMIT[:5] + SUBMIT[6:], (*SUBMIT, "--local")])
def test_values_are_for_a_dry_run_of_a_cluster(platform, words):
    result = platform(*words)
    assert (result.exit_code, "use it with --dry-run, and without --local" in result.stderr) == (2, True)


def test_a_teams_values_are_laid_over_the_others(workplace):
    file = workplace / "teams.yaml"
    file.write_text(
        """
checkpoints: {enabled: true, grace: 300}
teams:
  - namespace: vision
    data: {enabled: true}
    checkpoints: {enabled: false, url: "s3://vision/saved"}
  - namespace: speech
"""
    )
    vision, speech = Offline.read(file, "vision"), Offline.read(file, "speech")
    assert (vision.has_data, vision.checkpoints) == (True, CheckpointDefaults(url="s3://vision/saved", grace=300))
    assert (speech.has_data, speech.checkpoints) == (False, CheckpointDefaults(claim="checkpoints", grace=300))
    assert Offline.read(file, "").checkpoints == speech.checkpoints


def test_a_namespace_that_the_values_do_not_list_is_told_with_those_that_they_do(platform, workplace):
    (workplace / "values.yaml").write_text("teams:\n  - namespace: vision\n  - namespace: speech\n")
    result = platform(*SUBMIT, "--namespace", "visoin")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "values.yaml:1: teams: no team has the namespace visoin; choose one of vision, speech" in result.stderr
    assert platform(*SUBMIT, "--namespace", "speech").exit_code == 0
    assert platform(*SUBMIT).exit_code == 0  # which one is left to kubectl


def test_the_defaults_are_the_charts(workplace):
    chart = Offline.read(CHART, "")
    assert chart == Offline.read(workplace / "values.yaml", "") == Offline(False, CheckpointDefaults())


def test_packages_are_installed_where_the_values_of_the_team_allow_it(platform, workplace):
    folder = workplace / "jobs" / "demo"
    (folder / "requirements.txt").write_text("spam\n")
    words = (*SUBMIT, "--set", "requirements=requirements.txt", "--set", "install=true", "-n", "vision")
    result = platform(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "studies.install.enabled=true" in result.stderr
    allowed = "{enabled: true, index: 'https://packages.example.org/simple'}"
    (workplace / "values.yaml").write_text(f"teams: [{{namespace: vision, studies: {{install: {allowed}}}}}]")
    assert platform(*words).exit_code == 0
    (folder / "requirements.txt").write_text("spam\n--find-links wheels\n./eggs.whl\n")
    result = platform(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "jobs/demo/requirements.txt:2: --find-links: options are not followed in a pod" in result.stderr
    assert "jobs/demo/requirements.txt:3: a URL or a path: is not installed in a pod" in result.stderr
