"""MLflow's database is created whole or not at all, whoever creates it. MLflow's own tables are made in one test."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exporter.conftest import Place

from trialplane import errors
from trialplane.exporter import store
from trialplane.training import building

pytestmark = pytest.mark.slow


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, mlflow_tables: Path) -> list[Path]:
    """The files for which tables are created; they are copied, as creating them takes seconds."""
    files: list[Path] = []

    def create_tables(file: Path, artifacts: Path) -> None:
        files.append(file)
        shutil.copy(mlflow_tables, file)

    monkeypatch.setattr(store, "_create_tables", create_tables)
    return files


def execute(file: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute(statement)
        database.commit()


@pytest.mark.services
def test_a_creation_that_ends_in_between_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mlflow.store.db import utils
    from mlflow.tracking import MlflowClient

    file = tmp_path / "mlflow.db"

    def end(engine: object) -> None:
        raise KeyboardInterrupt  # as a kill: MLflow has no handler for it

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(utils, "_upgrade_db", end)
        store.create(file)
    assert not file.exists()
    assert list(tmp_path.glob("*.part/*")), "it was ended while it created tables"
    store.create(file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mlflow.db"]
    (experiment,) = MlflowClient(f"sqlite:///{file}").search_experiments()
    assert experiment.artifact_location == f"{tmp_path}/artifacts/0"


def test_an_exporter_creates_its_database_so(place: Place, made: list[Path]) -> None:
    file = place.home / "mlflow.db"
    file.unlink()
    place.export()
    (part,) = made
    assert (part.parent.parent, part.name) == (place.home, "mlflow.db")
    assert place.runs("study")


@pytest.mark.parametrize("changed_at", [0, 1 << 32], ids=["long ago", "in the future"])
def test_a_database_that_mlflow_left_incomplete_is_replaced(
    tmp_path: Path, mlflow_tables: Path, made: list[Path], changed_at: int
) -> None:
    file = tmp_path / "mlflow.db"
    shutil.copy(mlflow_tables, file)
    store.create(file)
    assert not made, "it is complete"
    execute(file, "DELETE FROM experiments")  # the one that MLflow creates after the last table
    incomplete = file.read_bytes()
    os.utime(file, (changed_at, changed_at))  # no process changes it
    store.create(file)
    assert len(made) == 1
    (renamed,) = tmp_path.glob("mlflow.db.*.incomplete")
    assert renamed.read_bytes() == incomplete
    assert file.read_bytes() == mlflow_tables.read_bytes()


@pytest.mark.parametrize("is_begun_first", [True, False])
def test_a_database_that_a_trial_is_creating_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mlflow_tables: Path, made: list[Path], is_begun_first: bool
) -> None:
    file, create_tables = tmp_path / "mlflow.db", store._create_tables

    def begin() -> None:
        shutil.copy(mlflow_tables, file)
        execute(file, "DELETE FROM experiments")

    def finish(_: float) -> None:
        execute(file, "INSERT INTO experiments (experiment_id, name) VALUES (7, 'of the trial')")

    def begun_meanwhile(part: Path, artifacts: Path) -> None:
        create_tables(part, artifacts)
        begin()

    if is_begun_first:
        begin()
    monkeypatch.setattr(store, "_create_tables", begun_meanwhile)
    monkeypatch.setattr(store.time, "sleep", finish)
    store.create(file)
    assert len(made) == (not is_begun_first)
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("SELECT name FROM experiments").fetchall() == [("of the trial",)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["mlflow.db"]


def test_an_empty_file_is_replaced(tmp_path: Path, mlflow_tables: Path, made: list[Path]) -> None:
    file = tmp_path / "mlflow.db"
    file.touch()
    os.utime(file, (0, 0))
    store.create(file)
    assert file.read_bytes() == mlflow_tables.read_bytes()


def test_a_database_without_mlflows_tables_is_left_to_mlflow(tmp_path: Path, made: list[Path]) -> None:
    execute(tmp_path / "own.db", "CREATE TABLE studies (id INTEGER)")
    store.ensure(f"sqlite:///{tmp_path}/own.db")
    assert not made
    assert [entry.name for entry in tmp_path.iterdir()] == ["own.db"]


def test_only_one_of_two_processes_creates_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mlflow_tables: Path) -> None:
    @contextlib.contextmanager
    def lock(target: Path) -> Iterator[None]:
        shutil.copy(mlflow_tables, target)  # by the process whose lock this one has waited for
        yield

    monkeypatch.setattr(building, "lock", lock)
    monkeypatch.setattr(store, "_create_tables", None)
    store.create(tmp_path / "mlflow.db")


@pytest.mark.parametrize("uri", ["postgresql://host/mlflow", "http://host", "sqlite://", "sqlite:///:memory:"])
def test_other_stores_are_not_created(made: list[Path], uri: str) -> None:
    store.ensure(uri)
    assert not made


def test_the_program_becomes_its_command_or_says_why_not(tmp_path: Path, mlflow_tables: Path) -> None:
    program = [sys.executable, "-P", "-m", "trialplane.exporter.store"]
    command = [sys.executable, "-c", "print('served')"]
    served = subprocess.run([*program, str(mlflow_tables), *command], capture_output=True, text=True, check=False)
    assert (served.returncode, served.stdout) == (0, "served\n"), served.stderr
    (tmp_path / "file").touch()
    failed = subprocess.run([*program, f"{tmp_path}/file/mlflow.db", *command], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (errors.EXIT_PLATFORM, "")
    assert failed.stderr.startswith(f"MLflow's database {tmp_path}/file/mlflow.db cannot be created: ")
    assert failed.stderr.count("\n") == 1


@pytest.mark.services
def test_modules_that_an_exporter_does_without_can_be_inspected() -> None:
    """As libraries do that look for their callers."""
    code = "lean_imports.install(); import mlflow.genai, inspect; inspect.getmodule(inspect.currentframe())"
    program = [sys.executable, "-c", f"from trialplane.training import lean_imports; {code}"]
    ended = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.services
def test_an_exporter_does_without_large_libraries(tmp_path: Path) -> None:
    program = [sys.executable, "-X", "importtime", "-P", "-m", "trialplane.exporter", str(tmp_path)]
    ended = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "mlflow.tracking" in ended.stderr
    for module in ("pandas.core", "pyarrow.lib", "mlflow.genai.judges.builtin"):
        assert module not in ended.stderr
