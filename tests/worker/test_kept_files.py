"""The files of `keep.files` in MLflow: sent once, from a folder and from a URL; links, time that is up, what is not taken.

MLflow is real, with a store in files. Not checked here: whose files are sent, how often (tests/controller/test_sending.py),
a whole study (tests/study/test_kept_files.py), and what the gateway refuses (tests/gateway/test_kept_files.py).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from trialplane.wire import env, labels
from trialplane.wire.messages import FilesSent, SendFiles
from trialplane.wire.records import SlotConfig
from trialplane.worker import kept_files


class Place:
    """A slot's configuration, trial 3 of which has left files beside its checkpoints, and MLflow."""

    def __init__(self, folder: Path, tables: Path, scheme: str = "") -> None:
        from mlflow import MlflowClient

        shutil.copy(tables, folder / "mlflow.db")
        uri = f"sqlite:///{folder}/mlflow.db"
        self.client = MlflowClient(uri)
        experiment = self.client.create_experiment("toy", (folder / "artifacts").as_uri())
        self.run: str = self.client.create_run(experiment, tags={labels.RUN: "toy", labels.NUMBER: "7"}).info.run_id
        checkpoints = folder / "checkpoints"
        self.config = SlotConfig(
            run="toy",
            code="",
            entrypoint="train:run",
            root=str(folder / "run"),
            cache="",
            checkpoints=f"{scheme}{checkpoints}",
            env=self.env(uri),
        )
        self.files = checkpoints / "toy" / "trial-3" / "files"
        (self.files / "out").mkdir(parents=True)
        (self.files / "model.pt").write_text("weights")
        (self.files / "out" / "log.txt").write_text("text")

    @staticmethod
    def env(uri: str) -> dict[str, str]:
        context = json.dumps({labels.RUN: "toy"})
        return {env.MLFLOW_TRACKING_URI: uri, env.MLFLOW_EXPERIMENT_NAME: "toy", env.MLFLOW_CONTEXT: context}

    def send(self, *, seconds: float = 900.0, number: int = 7) -> FilesSent:
        return kept_files.send(self.config, SendFiles(3, number, seconds))

    def there(self, folder: str = kept_files.FOLDER) -> dict[str, str]:
        """The artifacts below a folder, with their text."""
        found: dict[str, str] = {}
        for entry in self.client.list_artifacts(self.run, folder):
            if entry.is_dir:
                found |= self.there(entry.path)
            else:
                found[entry.path] = Path(self.client.download_artifacts(self.run, entry.path)).read_text()
        return found


@pytest.fixture
def place(tmp_path: Path, mlflow_tables: Path) -> Place:
    return Place(tmp_path, mlflow_tables)


SENT = {"kept_files/model.pt": "weights", "kept_files/out/log.txt": "text"}


@pytest.mark.parametrize("scheme", ["", "local://"])
def test_files_are_sent_once(tmp_path: Path, mlflow_tables: Path, scheme: str) -> None:
    place = Place(tmp_path, mlflow_tables, scheme)
    assert place.send() == FilesSent()
    assert place.there() == SENT
    (place.files / "model.pt").write_text("WEIGHTS")  # of the same size: it counts as there
    (place.files / "out" / "log.txt").write_text("more text")  # as one that was cut off when a process was killed
    assert place.send() == FilesSent()
    assert place.there() == {"kept_files/model.pt": "weights", "kept_files/out/log.txt": "more text"}


def test_links_are_not_followed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("of somebody else")
    (place.files / "key").symlink_to(tmp_path / "secret" / "key")
    (place.files / "more").symlink_to(tmp_path / "secret")
    assert place.send() == FilesSent()
    assert place.there() == SENT
    shutil.rmtree(place.files)
    place.files.symlink_to(tmp_path / "secret")
    (tmp_path / "secret" / "another").write_text("of somebody else")
    assert place.send() == FilesSent()
    assert place.there() == SENT


def test_a_trial_that_has_left_nothing_lacks_nothing(place: Place) -> None:
    shutil.rmtree(place.files)
    assert place.send() == FilesSent()


def test_no_large_library_is_imported(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "pyarrow", "scipy"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert place.send() == FilesSent()


def test_mlflow_that_cannot_be_reached_is_asked_again(place: Place) -> None:
    object.__setattr__(place.config, "env", place.env("http://127.0.0.1:9"))
    answer = place.send()
    assert answer.again and "127.0.0.1" in answer.lacks


def test_a_process_is_ended_when_its_time_is_up(place: Place) -> None:
    assert place.send(seconds=0.01) == FilesSent("they were not sent within 0 s", again=True)
    assert place.there() == {}


def test_a_process_that_fails_is_told(place: Place, tmp_path: Path) -> None:
    (tmp_path / "hidden" / "trialplane").mkdir(parents=True)
    (tmp_path / "hidden" / "trialplane" / "__init__.py").write_text("raise SystemExit('no room')")
    object.__setattr__(place.config, "env", {"PYTHONPATH": str(tmp_path / "hidden")})
    assert place.send() == FilesSent("the process that sends them ended with 1: no room", again=True)


class Refusing:
    """As much of MLflow's client as the sender uses; it takes no file above four bytes, as a door with a limit."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def list_artifacts(self, run: str, folder: str) -> list[object]:
        return []

    def log_artifact(self, run: str, file: str, folder: str) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

        if Path(file).stat().st_size > 4:
            raise MlflowException("the file is too large", INVALID_PARAMETER_VALUE)
        self.taken.append(f"{folder}/{Path(file).name}")


def test_a_file_that_is_refused_holds_up_no_other(place: Place) -> None:
    client = Refusing()
    assert kept_files.upload(client, place.run, str(place.files), by_http=False) == FilesSent(
        "model.pt (the file is too large)"
    )
    assert client.taken == ["kept_files/out/log.txt"]


def test_a_file_that_cannot_be_read_holds_up_no_other_and_is_tried_again(place: Place) -> None:
    client, log = Refusing(), Refusing.log_artifact

    def log_artifact(run: str, file: str, folder: str) -> None:
        if file.endswith("model.pt"):
            raise PermissionError("permission denied")
        log(client, run, file, folder)

    client.log_artifact = log_artifact  # type: ignore[method-assign]
    assert kept_files.upload(client, place.run, str(place.files), by_http=False) == FilesSent(
        "model.pt (permission denied)", again=True
    )
    assert client.taken == ["kept_files/out/log.txt"]


@pytest.mark.parametrize(("by_http", "taken"), [(True, 1), (False, 3)])
def test_names_that_http_would_change_are_refused_there(place: Place, by_http: bool, taken: int) -> None:
    client = Refusing()
    (place.files / "model.pt").unlink()
    for name in ("a#1.pt", "x%41.txt"):
        (place.files / name).write_text("odd")
    answer = kept_files.upload(client, place.run, str(place.files), by_http=by_http)
    assert len(client.taken) == taken and "kept_files/out/log.txt" in client.taken
    assert [name in answer.lacks for name in ("a#1.pt", "x%41.txt")] == [taken == 1] * 2 and not answer.again


def test_of_very_many_files_the_first_are_sent_and_it_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Refusing()
    monkeypatch.setattr(kept_files, "MAX_FILES", 1)
    (place.files / "a.txt").write_text("a")
    assert kept_files.upload(client, place.run, str(place.files), by_http=False) == FilesSent("of 3 files 1 are sent")
    assert client.taken == ["kept_files/a.txt"]
