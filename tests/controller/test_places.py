"""What comes from pods and what is done about it: the submission, logs, stores, failed starts, the desired state.

Not checked here: all of it together (tests/study/test_cluster.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import sqlite3
import tarfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.controller.conftest import request

from trialplane import errors
from trialplane.controller import arrival, desired, session
from trialplane.controller.desired import DesiredState
from trialplane.controller.setting import Setting
from trialplane.controller.slots import StartFailures
from trialplane.exporter import adoption
from trialplane.plan import pack
from trialplane.wire import env, mlflow
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import Desired
from trialplane.wire.states import RunState


def mounted(root: Path, code: str, job: str = "{}") -> Path:
    """A submission as pods have it."""
    source = root / f"source-{len(list(root.iterdir()))}"
    source.mkdir()
    (source / "train.py").write_text(code)
    (root / "in" / "run").mkdir(parents=True, exist_ok=True)
    (root / "in" / "code").mkdir(exist_ok=True)
    (root / "in" / "run" / "job.json").write_text(job)
    (root / "in" / "run" / "submission.json").write_text("{}")
    (root / "in" / "code" / "code.tar.gz").write_bytes(pack.pack(source).data)
    return root / "in"


def test_a_submission_is_taken_in_anew_at_each_start(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "runs" / "toy")
    arrival.copy_submission(mounted(tmp_path, "one"), run)
    run.controller_log.write_text("stays")
    (run.code / "old.py").touch()
    arrival.copy_submission(mounted(tmp_path, "two", '{"trials": 8}'), run)
    assert [file.name for file in run.code.iterdir()] == ["train.py"]
    assert (run.code / "train.py").read_text() == "two"
    assert run.job.read_text() == '{"trials": 8}'
    names = sorted(file.name for file in run.root.iterdir())
    assert names == ["code", "controller.log", "job.json", "submission.json"]


def test_code_in_parts_is_taken_in_when_it_is_that_of_the_submission(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "runs" / "toy")
    there = mounted(tmp_path, "one")
    archive = there / "code" / "code.tar.gz"
    packed = archive.read_bytes()
    digest = hashlib.sha256(gzip.decompress(packed)).hexdigest()
    (there / "run" / "submission.json").write_text(json.dumps({"code_hash": digest}))
    archive.write_bytes(packed[:50])
    archive.with_name("code.tar.gz.1").write_bytes(packed[50:])
    arrival.copy_submission(there, run)
    assert (run.code / "train.py").read_text() == "one"
    other = mounted(tmp_path, "two")  # one part is replaced, and the submission is not yet
    archive.with_name("code.tar.gz.1").unlink()
    (other / "run" / "submission.json").write_text(json.dumps({"code_hash": digest}))
    with pytest.raises(errors.InputError, match="differs from the submission"):
        arrival.copy_submission(other, run)
    assert (run.code / "train.py").read_text() == "one"


def test_a_damaged_submission_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "runs" / "toy")
    there = mounted(tmp_path, "one")
    arrival.copy_submission(there, run)
    (there / "code" / "code.tar.gz").write_bytes(b"damaged")
    with pytest.raises(errors.InputError, match="damaged"):
        arrival.copy_submission(there, run)
    assert (run.code / "train.py").read_text() == "one"
    with pytest.raises(errors.InputError, match="mounted"):
        arrival.copy_submission(tmp_path / "nowhere", run)


def test_logs_grow_and_a_full_disk_does_not_end_the_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunPaths(tmp_path)
    for piece in (b"one ", b"two"):
        arrival.add_to_log(run, request(3), piece)
    assert run.trial_log(3, 1).read_bytes() == b"one two"
    (tmp_path / "trials" / "0004").touch()  # no folder can be made there
    arrival.add_to_log(run, request(4), b"lost")
    assert "the log of trial 4 cannot be written" in caplog.text


def test_a_store_from_elsewhere_is_adopted_with_its_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    from mlflow.tracking import MlflowClient

    there = RunPaths(tmp_path / "pod").trial_store(5)
    there.parent.mkdir(parents=True)
    for name, value in env.mlflow_store_variables(there).items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(f"sqlite:///{there}")
    made = client.create_run(
        client.create_experiment("toy", artifact_location=there.with_suffix(".artifacts").as_uri() + "/1")
    )
    client.log_metric(made.info.run_id, "from_the_job", 0.5)
    client.log_text(made.info.run_id, "kept", "note.txt")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("attempt-5.db", "attempt-5.artifacts"):
            archive.add(there.parent / name, name)
    (tmp_path / "pod").rename(tmp_path / "gone")

    here = RunPaths(tmp_path / "head")
    arrival.unpack_store(here, 5, np.frombuffer(buffer.getvalue(), dtype=np.uint8))
    (own,) = adoption.read(here.trial_store(5))
    assert [(metric.key, metric.value) for metric in own.batch.metrics] == [("from_the_job", 0.5)]
    assert [Path(artifact.file).read_text() for artifact in own.batch.artifacts] == ["kept"]
    assert mlflow.__version__


@pytest.mark.parametrize("way", ["uri", "link"])
def test_a_store_gives_no_file_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A trial writes its store, and so could name the run's token, which would then be in MLflow for it to read."""
    from mlflow.tracking import MlflowClient

    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "token").write_text("the run's")
    store = RunPaths(tmp_path / "run").trial_store(5)
    store.parent.mkdir(parents=True)
    for name, value in env.mlflow_store_variables(store).items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(f"sqlite:///{store}")
    place = (tmp_path / "private").as_uri() if way == "uri" else store.with_suffix(".artifacts").as_uri() + "/1"
    made = client.create_run(client.create_experiment("toy", artifact_location=place))
    if way == "uri":
        with contextlib.closing(sqlite3.connect(store)) as file, file:
            file.execute("UPDATE runs SET artifact_uri = ?", (place,))
    else:
        client.log_text(made.info.run_id, "kept", "a/note.txt")
        (note,) = store.with_suffix(".artifacts").rglob("note.txt")
        (note.parent / "token").symlink_to(tmp_path / "private" / "token")
    (own,) = adoption.read(store)
    texts = [(artifact.folder, Path(artifact.file).read_text()) for artifact in own.batch.artifacts]
    assert texts == ([] if way == "uri" else [("a", "kept")])


def test_a_store_is_unpacked_by_the_first_python_3_11_too_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its `extractall` takes no filter; that of Debian 12 neither."""

    def extract_all(self: tarfile.TarFile, path: str = ".", members: Any = None, *, numeric_owner: bool = False) -> None:
        raise AssertionError("without a filter an archive may write anywhere")

    monkeypatch.setattr(tarfile.TarFile, "extractall", extract_all)
    here = RunPaths(tmp_path / "head")
    arrival.unpack_store(here, 5, packed({"../outside": b"x"}))
    assert "attempt 5" in caplog.text
    assert not list(tmp_path.rglob("outside"))
    arrival.unpack_store(here, 6, packed({"attempt-6.artifacts/1/note.txt": b"kept"}))
    (note,) = tmp_path.rglob("note.txt")
    assert note.read_bytes() == b"kept"


def packed(files: Mapping[str, bytes]) -> Any:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return np.frombuffer(buffer.getvalue(), dtype=np.uint8)


def test_a_damaged_store_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrival.unpack_store(RunPaths(tmp_path), 5, np.frombuffer(b"no archive", dtype=np.uint8))
    assert "attempt 5" in caplog.text


def test_on_one_machine_three_failures_are_too_many() -> None:
    failures = StartFailures(0.0)
    assert [failures.record_failure(0.0) for _ in range(3)] == [False, False, True]
    assert failures.pause == 0.0
    failures.record_success()
    assert not failures.record_failure(0.0)


def test_in_a_cluster_drained_pods_are_not_the_end() -> None:
    failures = StartFailures(600.0)
    assert not any(failures.record_failure(float(second)) for second in range(0, 590, 10))
    assert failures.pause == 30.0
    failures.record_success()
    assert failures.pause == 0.0
    assert not failures.record_failure(700.0)
    assert failures.pause == 1.0
    assert not failures.record_failure(1300.0), "two are not three in a row"
    assert failures.record_failure(1301.0)


class Ledger:
    """A ledger as far as the desired state goes."""

    def __init__(self, wanted: Desired | None) -> None:
        self.job = types.SimpleNamespace(width=4)
        self.said = wanted
        self.looks = 0

    def read_desired(self) -> Desired:
        self.looks += 1
        if self.said is None:
            raise errors.LedgerUnavailable("away")
        return self.said


def opened(tmp_path: Path, wanted: Desired | None, stopped: list[int] | None = None) -> tuple[DesiredState, Ledger]:
    ledger = Ledger(wanted)
    return DesiredState(RunPaths(tmp_path / "toy"), stopped or [], ledger), ledger  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "stopped", "state"),
    [
        (Desired(), [], None),
        (Desired(RunState.PAUSED), [], RunState.PAUSED),
        (Desired(RunState.CANCELLED), [], RunState.CANCELLED),
        (Desired(RunState.FAILED), [], RunState.FAILED),  # a deadline of the run is over
        (Desired(), [15], RunState.PAUSED),
        (Desired(RunState.CANCELLED), [15], RunState.CANCELLED),
        (Desired(RunState.UNKNOWN), [], None),
        (None, [], None),
    ],
)
def test_how_the_user_wants_a_run_to_end(
    tmp_path: Path, wanted: Desired | None, stopped: list[int], state: RunState | None
) -> None:
    made, _ = opened(tmp_path, wanted, stopped)
    ending = made.ending()
    assert (None if ending is None else ending.state) == state


def test_the_database_is_asked_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(desired.time, "monotonic", lambda: now)
    made, ledger = opened(tmp_path, Desired(parallel=7))
    for _ in range(50):
        assert made.parallel() == 7
    assert ledger.looks == 1
    now += desired.INTERVAL
    ledger.said = dataclasses.replace(ledger.said, parallel=None) if ledger.said else None
    assert made.parallel() == 4
    now += desired.INTERVAL
    ledger.said = None  # away: the last word counts
    assert made.parallel() == 4
    now += desired.INTERVAL
    made.ending()
    assert ledger.looks == 3, "and it is left in peace for longer"


@pytest.mark.parametrize(
    ("environ", "submitted", "in_cluster", "status"),
    [
        ({}, None, False, ("127.0.0.1", 0)),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, None, False, ("127.0.0.1", 0)),
        ({"RAY_ADDRESS": "10.0.0.1:6379", env.STATUS: "0.0.0.0:8090"}, Path("/etc"), True, ("0.0.0.0", 8090)),
        ({}, Path("/etc"), False, ("127.0.0.1", 0)),
    ],
)
def test_only_what_was_submitted_to_a_cluster_joins_its_ray(
    environ: dict[str, str], submitted: Path | None, in_cluster: bool, status: tuple[str, int]
) -> None:
    setting = Setting.of(environ, submitted)
    assert (setting.in_cluster, setting.status) == (in_cluster, status)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(errors.InputError, match="host:port"):
        Setting.of({env.STATUS: "0.0.0.0:http"}, None)


def test_the_runs_token_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    environ = {env.LEDGER: "http://platform-gateway:8080", env.TOKEN_FILE: str(file)}
    with pytest.raises(errors.InputError, match=r"the run's token in .*token \(TRIALPLANE_TOKEN_FILE\) cannot be read"):
        Setting.of(environ, Path("/etc"))
    file.write_text("abc-_1\n")
    found = Setting.of(environ, Path("/etc"))
    assert found.ledger == "http://:abc-_1@platform-gateway:8080"
    assert found.mlflow_token == mlflow.token("abc-_1")
    assert Setting.of({}, None).mlflow_token == ""
    assert Setting.of({env.LEDGER: "postgresql+psycopg2:///x"}, None).ledger == "postgresql+psycopg2:///x"


def test_a_spec_of_another_version_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "job.json").write_text('{"name": "toy", "kind": "hpo", "objectives": [], "newer": 1}')
    assert session.drive(tmp_path, [], Setting()) == errors.EXIT_PLATFORM
    assert "another version" in caplog.text
    assert "platform image build" in caplog.text
    assert not (tmp_path / "status.json").exists()
