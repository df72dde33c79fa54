"""The exporter of a run on a cluster reads its ledger through the gateway, and goes through MLflow's door.

Not checked here: what it writes (tests/exporter), and its patience with MLflow itself (tests/controller).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from tests.contracts.conftest import complete, failed, make_job, report
from tests.controller.conftest import Server, wait_until
from tests.exporter.conftest import DONE, bring
from tests.gateway.gateway_site import NAMESPACE, PLACE, Site
from tests.gateway.mlflow_site import OTHER, Door, postgres, rbac, server, site, tenants
from tests.gateway.rbac_double import Rbac

from trialplane import errors
from trialplane.controller.exporter_process import ExporterProcess
from trialplane.controller.ledger import Ledger
from trialplane.exporter.batch import Artifact, is_refusal
from trialplane.exporter.exporter import Exporter
from trialplane.ledger.remote import Reader
from trialplane.plan import plan as planning
from trialplane.wire import env, labels
from trialplane.wire.exports import Order
from trialplane.wire.paths import RunPaths
from trialplane.wire.states import FailureClass, RunState

__all__ = ["postgres", "rbac", "server", "site", "tenants"]  # fixtures
pytestmark = pytest.mark.slow


class Pod:
    """A run's folder in its pod, the ledger that its controller has open, and exporters."""

    def __init__(self, site: Site, folder: Path, run: str, ledger: Ledger) -> None:
        self.site, self.ledger, self.name = site, ledger, run
        self.door = Door(site, run)
        self.run = RunPaths.of(folder, run)
        self.run.root.mkdir(parents=True)
        self.run.job.write_text(make_job().model_dump_json())
        self.run.submission.write_text(json.dumps(site.archive.column(run, labels.LEDGER_SUBMISSION)))
        self.ledger_url = f"http://:the token of {run}@127.0.0.1:{site.http.port}{PLACE}"
        self.source = Reader(self.ledger_url, run)
        self.client = MlflowClient(self.door.uri)

    def exporter(self) -> Exporter:
        return Exporter(self.run, self.source, self.door.uri, keeps_folder=False)

    def play(self, failure: FailureClass | None = None) -> None:
        """One trial."""
        request = self.ledger.ask()
        assert request is not None
        for step in range(2):
            self.ledger.report(report(request, step, score=step / 4))
        self.ledger.tell(complete(request) if failure is None else failed(request, failure, "it fell"))

    def runs(self, kind: str = "trial") -> list[object]:
        experiment = self.client.get_experiment_by_name(make_job().name)
        assert experiment is not None
        condition = f"tags.`{labels.RUN}` = '{self.name}' and tags.`{labels.KIND}` = '{kind}'"
        return list(self.client.search_runs([experiment.experiment_id], condition))


@pytest.fixture
def pod(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Pod]:
    run = f"toy-{abs(hash(request.node.name)) % 10**6}"  # MLflow's server is that of all tests
    with site.ledger(run) as ledger:
        site.archive.set_token(run, f"the token of {run}")
        made = Pod(site, tmp_path, run, ledger)
        monkeypatch.setenv(env.MLFLOW_TOKEN, made.door.token)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        yield made
        made.source.close()


def test_a_run_is_exported_while_its_controller_has_the_lock(pod: Pod, tmp_path: Path) -> None:
    exporter = pod.exporter()
    pod.play()
    bring(exporter, closes=False)
    for _ in range(2):
        pod.play()
    log = pod.run.trial_log(3, 1)
    log.parent.mkdir(parents=True)
    log.write_text("what the trial printed")
    pod.play(FailureClass.ERROR)
    status = dataclasses.replace(planning.pending_status(pod.name, make_job(), 1000.0), state=RunState.SUCCEEDED)
    exporter.set_end(dataclasses.replace(DONE, status=status))
    bring(exporter, closes=True)
    (study,) = pod.runs("study")
    page = Path(pod.client.download_artifacts(study.info.run_id, "report.html", str(tmp_path)))  # type: ignore[attr-defined]
    assert f"<title>{pod.name}</title>" in page.read_text()
    assert '"failures":[{"class":"error"' in page.read_text()
    assert study.info.status == "FINISHED"  # type: ignore[attr-defined]
    trials = {int(run.data.tags[labels.NUMBER]): run for run in pod.runs()}  # type: ignore[attr-defined]
    assert sorted(trials) == [0, 1, 2, 3]
    scores = pod.client.get_metric_history(trials[0].info.run_id, "score")
    assert sorted(metric.step for metric in scores) == [0, 1, 1]
    assert trials[3].info.status == "FAILED"
    assert [item.path for item in pod.client.list_artifacts(trials[3].info.run_id, "logs")] == [f"logs/{log.name}"]

    ids = {run.info.run_id for run in (study, *trials.values())}  # type: ignore[attr-defined]
    again = pod.exporter()  # of the next pod, which has nothing of this one
    again.set_end(DONE)
    bring(again, closes=True)
    assert {run.info.run_id for run in (*pod.runs("study"), *pod.runs())} == ids  # type: ignore[attr-defined]


def test_an_exporter_waits_while_mlflow_is_away_or_the_token_is_another(pod: Pod, server: Server) -> None:
    exporter = pod.exporter()
    bring(exporter, closes=False)
    pod.play()
    pod.site.archive.revoke_tokens(pod.name)
    with pytest.raises(errors.LedgerFenced, match="refuses this controller's token"):
        exporter.advance()
    with pytest.raises(MlflowException) as shut:
        pod.client.get_experiment_by_name("toy")
    pod.site.archive.set_token(pod.name, f"the token of {pod.name}")
    server.stop()
    try:
        with pytest.raises(MlflowException) as away:
            exporter.advance()
    finally:
        server.start()
    assert not is_refusal(shut.value)
    assert not is_refusal(away.value)
    bring(exporter, closes=False)
    assert len(pod.runs()) == 1
    theirs = Door(pod.site, "own-1", OTHER).new_run()["run_id"]
    with pytest.raises(MlflowException) as foreign:
        pod.client.log_metric(theirs, "x", 1.0)
    assert is_refusal(foreign.value), "one entry that is not the team's must not hold up all others"


def test_all_that_comes_while_the_workspace_is_missing_is_written_when_it_is_there(pod: Pod, rbac: Rbac) -> None:
    exporter = pod.exporter()
    bring(exporter, closes=False)
    request = pod.ledger.ask()
    assert request is not None
    assert exporter.advance()  # its run is in MLflow, so its records and files are next
    log = pod.run.trial_log(0, 1)
    log.parent.mkdir(parents=True)
    log.write_text("all that the trial printed")
    pod.ledger.report(report(request, 0, score=0.5))
    pod.ledger.tell(failed(request, FailureClass.ERROR, "it fell"))
    exporter.files.add([(pod.runs()[0].info.run_id, Artifact("notes", str(pod.run.job)))])  # type: ignore[attr-defined]

    def is_missing() -> bool:
        return pod.door.call("experiments/search", {"max_results": 1}).code != 200

    rbac.delete(NAMESPACE)
    try:
        wait_until(is_missing, "MLflow has no workspace")
        for attempt in (exporter.advance, exporter.files.send):
            with pytest.raises(MlflowException):
                attempt()
        waiting = ExporterProcess(pod.run, Order(pod.ledger_url), pod.door.uri, token=pod.door.token)
        try:
            wait_until(lambda: waiting.tick() or waiting.trouble, "the status has the reason")
        finally:
            waiting.close(0.0)
            assert waiting.process.stdout is not None
            waiting.process.stdout.close()
        assert "MLflow does not have the namespace studies as a workspace" in waiting.trouble
        assert "kubectl get namespace studies" in waiting.trouble
    finally:
        rbac.create(NAMESPACE)
    wait_until(lambda: not is_missing(), "MLflow has the workspace")
    exporter.set_end(DONE)
    bring(exporter, closes=True)
    (trial,) = pod.runs()
    scores = pod.client.get_metric_history(trial.info.run_id, "score")  # type: ignore[attr-defined]
    assert [(metric.step, metric.value) for metric in scores] == [(0, 0.5)]
    assert trial.info.status == "FAILED"  # type: ignore[attr-defined]
    for folder, file in (("logs", log), ("notes", pod.run.job)):
        items = pod.client.list_artifacts(trial.info.run_id, folder)  # type: ignore[attr-defined]
        assert [item.path for item in items] == [f"{folder}/{file.name}"]
    assert not exporter.progress.trouble


def test_only_the_runs_own_ledger_is_read(pod: Pod) -> None:
    pod.play()
    stranger = Reader(f"http://:another@127.0.0.1:{pod.site.http.port}{PLACE}", pod.name)
    for read in (lambda: stranger.running_attempts(-1), lambda: stranger.ended_attempts(0), lambda: stranger.reports(0)):
        with pytest.raises(errors.LedgerFenced):
            read()
    stranger.close()
    assert pod.ledger.ask() is not None
    assert [one.request.number for one in pod.source.running_attempts(-1)] == [1]
    assert pod.source.running_attempts(1) == []
    assert pod.source.attempt(0).request.number == 0
    assert [one.end_number for one in pod.source.ended_attempts(0)] == [1]
    assert pod.source.ended_attempts(1) == []
    assert [one.step for one in pod.source.reports(0).rows] == [0, 1]
