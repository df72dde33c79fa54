"""The writer of a run's records goes through MLflow's door: with or without its journal, and waiting while the door is shut.

Not checked here: what it writes, and its patience with MLflow itself (tests/controller).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from tests.controller.conftest import FACTS, Place, Server, outcome, play, request
from tests.gateway.gateway_site import Site
from tests.gateway.mlflow_site import OTHER, Door, postgres, server, site

from trialplane.controller.batch import is_refusal
from trialplane.wire import env, labels
from trialplane.wire.states import FailureClass, RunState, TrialState

__all__ = ["postgres", "server", "site"]  # fixtures


@pytest.fixture
def place(site: Site, tmp_path: Path, mlflow_tables: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A run whose MLflow is the door."""
    with site.ledger("toy-1"):
        site.archive.admit("toy-1", "the token of toy-1")
    door = Door(site, "toy-1")
    monkeypatch.setenv(env.MLFLOW_TOKEN, door.token)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    made = Place(tmp_path / "home", mlflow_tables)
    made.uri = door.uri
    yield made
    for writer in made.writers:
        writer._journal._file.close()
    for recorder in made.recorders:
        recorder._writer.kill()
        recorder._writer.wait()
        for stream in (recorder._writer.stdin, recorder._writer.stdout, recorder._spool):
            if stream is not None:
                stream.close()
    mlflow.set_tracking_uri(None)


def test_all_of_a_run_is_written_also_without_the_journal(place: Place) -> None:
    spool = place.spooler()
    spool.study(FACTS)
    for number in range(3):
        play(spool, number)
    log = place.run.trial_log(3, 1)
    log.parent.mkdir(parents=True)
    log.write_text("what the trial printed")
    spool.started(request(3), uses_mlflow=False)
    spool.ended(request(3), outcome(3, state=TrialState.FAILED, failure=FailureClass.CRASHED, message="it fell", metrics={}))
    spool.study_ended(RunState.SUCCEEDED, "all trials have ended")
    first = place.writer()
    first._ensure_parent()
    first._create_trial(9, "trial-0009")  # and then it was killed
    while first.write() or first.artifacts.send():
        pass
    first.close()
    first._journal._file.close()
    place.run.written.unlink()
    second = place.written(look=True)
    second.close()
    (study,) = place.runs("study")
    assert study.info.status == "FINISHED"
    assert study.data.params["sampler"] == "tpe"
    trials = {int(run.data.tags[labels.NUMBER]): run for run in place.runs()}
    assert sorted(trials) == [0, 1, 2, 3]
    assert {run.data.tags[labels.PARENT] for run in trials.values()} == {study.info.run_id}
    assert place.history(trials[0])["loss"] == [(0, 1.0), (1, 1.0), (2, 0.25), (2, 1.0)]
    assert trials[3].info.status == "FAILED"
    assert [item.path for item in place.client.list_artifacts(trials[3].info.run_id, "logs")] == [f"logs/{log.name}"]


def test_a_writer_waits_while_mlflow_is_away_or_the_token_is_another(place: Place, site: Site, server: Server) -> None:
    before = len(place.runs())  # of another test's run of this name
    spool = place.spooler()
    spool.study(FACTS)
    play(spool, 7)  # which the other test has not
    writer = place.writer()
    site.archive.revoke("toy-1")
    with pytest.raises(MlflowException) as shut:
        writer.write()
    site.archive.admit("toy-1", "the token of toy-1")
    server.stop()
    try:
        with pytest.raises(MlflowException) as away:
            writer.write()
    finally:
        server.start()
    assert not is_refusal(shut.value)
    assert not is_refusal(away.value)
    assert writer.write()
    assert len(place.runs()) == before + 1
    theirs = Door(site, "own-1", OTHER).new_run()["run_id"]
    with pytest.raises(MlflowException) as foreign:
        place.client.log_metric(theirs, "x", 1.0)
    assert is_refusal(foreign.value), "one entry that is not the team's must not hold up all others"
