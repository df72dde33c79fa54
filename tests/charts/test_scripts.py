"""The scripts that the chart puts into pods: what they write is read by MLflow, and their messages show no password.

Not checked here: their work on a real PostgreSQL and a real MLflow, which `helm test` and tests/e2e see.
"""

from __future__ import annotations

import importlib.util
import stat
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

URL = "postgresql+psycopg2://mlflow:p%40ss@nowhere.invalid:5432/mlflow"


def _load(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_scripts_reach_the_pods_unchanged(
    chart: Path, render: Callable[..., list[dict[str, Any]]], named: Callable[..., dict[str, Any]]
) -> None:
    objects = render({})
    for name, scripts in {
        "platform-mlflow": ("prepare.py", "ready.py"),
        "platform-postgresql": ("create-databases.sh",),
        "platform-test": ("verify.py",),
    }.items():
        data = named(objects, "ConfigMap", name)["data"]
        assert set(data) == set(scripts)
        for script in scripts:
            assert data[script].strip() == (chart / "files" / script).read_text().strip()


def test_mlflow_reads_the_file_of_authentication(chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    # By its file: the package around it is a whole server.
    config = _load(Path(mlflow.__file__).parent / "server" / "auth" / "config.py")
    path = tmp_path / "auth.ini"
    _load(chart / "files" / "prepare.py").write_auth(path, URL, "NO_PERMISSIONS")
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", str(path))
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", "secret")
    read = config.read_auth_config()
    assert (read.database_uri, read.default_permission, read.admin_username) == (URL, "NO_PERMISSIONS", "admin")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_database_that_does_not_answer_is_named_without_its_password(chart: Path) -> None:
    prepare = _load(chart / "files" / "prepare.py")
    with pytest.raises(SystemExit) as stopped:
        prepare.connect(URL, 0.0)
    assert "nowhere.invalid:5432/mlflow" in str(stopped.value)
    assert "p%40ss" not in str(stopped.value)
    assert "p@ss" not in str(stopped.value)


@pytest.mark.parametrize(("body", "told"), [("exit 3", "ended with 3"), ("sleep 60", "time was up")])
def test_a_migration_that_fails_is_explained_without_the_password(
    chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    """With a program of our own in the place of `mlflow`, and a database that gives its lock at once."""
    prepare = _load(chart / "files" / "prepare.py")
    program = tmp_path / "mlflow"
    program.write_text(f"#!/bin/sh\nexec {body}\n" if "sleep" in body else f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(prepare, "connect", lambda url, deadline: _Database())
    with pytest.raises(SystemExit) as stopped:
        prepare.migrate(URL, 1.0)
    assert told in str(stopped.value)
    assert "p%40ss" not in str(stopped.value)


class _Database:
    def __enter__(self) -> _Database:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def execute(self, statement: object, values: object) -> None:
        assert "pg_advisory_lock" in str(statement)


def test_the_script_of_the_databases_is_sound(chart: Path) -> None:
    subprocess.run(["bash", "-n", str(chart / "files" / "create-databases.sh")], check=True, timeout=10)
