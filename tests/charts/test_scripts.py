"""The scripts that the chart puts into pods: what they write is read by MLflow, and their messages show no password.

Not checked here: their work on a real PostgreSQL, which `helm test` and tests/e2e see.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.mlflow_site import plugin_python, require_plugin
from tests.gateway.rbac_double import Rbac

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
        "platform-mlflow": ("prepare.py",),
        "platform-postgresql": ("create-databases.sh", "start-postgresql.sh"),
        "platform-test": ("verify.py",),
    }.items():
        data = named(objects, "ConfigMap", name)["data"]
        assert len(data) == len(scripts)
        for script in scripts:
            assert (data.get(script) or data["start"]).strip() == (chart / "files" / script).read_text().strip()


def test_a_database_that_does_not_answer_is_named_without_its_password(chart: Path) -> None:
    prepare = _load(chart / "files" / "prepare.py")
    with pytest.raises(SystemExit) as stopped:
        prepare.connect(URL, 0.0)
    assert "nowhere.invalid:5432/mlflow" in str(stopped.value)
    assert "p%40ss" not in str(stopped.value)
    assert "p@ss" not in str(stopped.value)


@pytest.mark.parametrize(("body", "told"), [("sys.exit(3)", "ended with 3"), ("time.sleep(60)", "time was up")])
def test_a_migration_that_fails_is_explained_without_the_password(
    chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    """With a module of our own in the place of `mlflow.db`, and a database that gives its lock at once."""
    prepare = _upgrading(chart, tmp_path, monkeypatch, body)
    with pytest.raises(SystemExit) as stopped:
        prepare.migrate(URL, 1.0)
    assert told in str(stopped.value)
    assert "p%40ss" not in str(stopped.value)


def test_the_migration_gets_the_password_and_shows_it_in_no_arguments(
    chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    body = f"open({str(said)!r}, 'w').write(repr(words) + open('/proc/self/cmdline').read())"
    _upgrading(chart, tmp_path, monkeypatch, body).migrate(URL, 60.0)
    words, _, arguments = said.read_text().partition("]")
    assert words == f"['upgrade', {URL!r}"
    assert "mlflow.db" in arguments
    assert "nowhere.invalid" not in arguments


# Adds an endpoint to the server, as a newer MLflow may have it.
NEWER = """
import sys
if "create_app()" in sys.orig_argv[-1]:
    from mlflow.server import app
    app.add_url_rule("/api/2.0/mlflow/newer", "newer", lambda: "", methods=["POST"])
"""


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.parametrize("case", ["supported", "another version", "another endpoint"])
def test_an_mlflow_that_its_plugin_does_not_support_is_refused_before_its_tables_change(
    chart: Path, tmp_path: Path, case: str
) -> None:
    require_plugin()
    if case == "another version":
        described = tmp_path / "mlflow-3.99.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: mlflow\nVersion: 3.99.0\n")
    elif case == "another endpoint":
        (tmp_path / "sitecustomize.py").write_text(NEWER)
    rbac = Rbac(tmp_path)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "KUBECONFIG": str(rbac.kubeconfig), "MIGRATION_TIMEOUT": "0"}
    environ |= {"MLFLOW_BACKEND_STORE_URI": URL, "MLFLOW_K8S_AUTH_AUTHORIZATION_MODE": "subject_access_review"}
    command = [plugin_python(), str(chart / "files" / "prepare.py")]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    rbac.close()
    assert ended.returncode == 1
    reason = ended.stderr.strip().splitlines()[-1]
    if case == "supported":
        assert "nowhere.invalid:5432/mlflow cannot be reached" in reason  # the next step
        return
    assert "cannot be served with mlflow-kubernetes-plugins" in reason
    assert {"another version": "MLflow 3.99.0", "another endpoint": "POST /api/2.0/mlflow/newer"}[case] in reason
    assert "the database has not been changed: set image.controller of the chart" in reason
    assert "pip install mlflow-kubernetes-plugins 'mlflow<" in reason


def _install(folder: Path, name: str) -> None:
    described = folder / f"{name.replace('-', '_')}-3.99.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3.99.0\n")


def test_a_server_that_hangs_at_its_start_is_refused(chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = _load(chart / "files" / "prepare.py")
    for name in ("mlflow", prepare.PLUGIN):
        _install(tmp_path, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(prepare, "START", "import time; time.sleep(60)")
    monkeypatch.setattr(prepare, "START_TIMEOUT", 0.1)
    with pytest.raises(SystemExit, match=r"its application was not made within 0\.1 s; the database has not been changed"):
        prepare.check()


@pytest.mark.parametrize("missing", ["mlflow", "mlflow-kubernetes-plugins"])
def test_a_missing_package_is_named(chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    prepare = _load(chart / "files" / "prepare.py")
    for name in {"mlflow", prepare.PLUGIN} - {missing}:
        _install(tmp_path / "packages", name)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    with pytest.raises(SystemExit, match=f": {missing} is not installed; the database has not been changed"):
        prepare.check()


@pytest.mark.services
def test_mlflow_has_the_command_by_which_it_migrates() -> None:
    from mlflow import db

    assert [parameter.name for parameter in db.commands.commands["upgrade"].params] == ["url"]


def _upgrading(chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> types.ModuleType:
    """The script, with a `mlflow.db` that does this instead."""
    prepare = _load(chart / "files" / "prepare.py")
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").touch()
    (tmp_path / "mlflow" / "db.py").write_text(f"import sys, time\ndef commands(words):\n    {body}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(prepare, "connect", lambda url, deadline: _Database())
    monkeypatch.setenv("WORKSPACES", "vision,speech")
    return prepare


def test_records_that_no_team_could_see_keep_mlflow_from_starting(
    chart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = _upgrading(chart, tmp_path, monkeypatch, "pass")
    monkeypatch.setattr(_Database, "former", 7)
    with pytest.raises(SystemExit, match=r"records from before teams had workspaces \(7\)"):
        prepare.migrate(URL, 60.0)
    monkeypatch.setenv("WORKSPACES", "vision,default")  # it is a team's, and what is in it may be new
    prepare.migrate(URL, 60.0)


class _Database:
    former = 0

    def scalar(self, statement: object) -> int:
        assert "workspace = 'default'" in str(statement)
        return self.former

    def __enter__(self) -> _Database:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def execute(self, statement: object, values: object) -> None:
        assert "pg_advisory_lock" in str(statement)


@pytest.mark.parametrize("script", ["create-databases.sh", "start-postgresql.sh"])
def test_the_scripts_of_postgresql_are_sound(chart: Path, script: str) -> None:
    subprocess.run(["bash", "-n", str(chart / "files" / script)], check=True, timeout=300)


def test_databases_are_made_with_no_password_in_arguments(chart: Path, tmp_path: Path) -> None:
    """With a program of our own in the place of `psql`."""
    said = tmp_path / "said"
    (tmp_path / "psql").write_text(f'#!/bin/sh\necho "$@" >> {said}\ncat > {said}.$PASSWORD\n')
    (tmp_path / "psql").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "POSTGRES_USER": "postgres"}
    environ |= {"LEDGER_PASSWORD": "secret1", "MLFLOW_PASSWORD": "secret2"}
    command = ["bash", str(chart / "files" / "create-databases.sh")]
    subprocess.run(command, env=environ, check=True, timeout=300, capture_output=True)
    assert "--set=name=ledger" in said.read_text()
    assert "secret" not in said.read_text()
    for password in ("secret1", "secret2"):
        assert "\\getenv password PASSWORD" in said.with_name(f"said.{password}").read_text()


@pytest.mark.parametrize("is_old", [True, False])
def test_passwords_are_set_before_the_server_starts_on_a_volume_that_holds_databases(
    chart: Path, tmp_path: Path, is_old: bool
) -> None:
    """With programs of our own in the places of `postgres` and of the image's entry point."""
    bin_, data, said = tmp_path / "bin", tmp_path / "data", tmp_path / "said"
    bin_.mkdir()
    data.mkdir()
    if is_old:
        (data / "PG_VERSION").write_text("17")
    for name, body in (
        ("postgres", f'echo "$1" >> {said}; cat >> {said}'),
        ("docker-entrypoint.sh", f'echo "$@" >> {said}'),
    ):
        (bin_ / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin_ / name).chmod(0o755)
    environ = {"PATH": f"{bin_}:/usr/bin:/bin", "PGDATA": str(data), "POSTGRES_USER": "postgres"}
    environ |= {"POSTGRES_PASSWORD": "a", "LEDGER_PASSWORD": "it's", "MLFLOW_PASSWORD": "m\\"}
    command = ["bash", str(chart / "files" / "start-postgresql.sh"), "postgres", "-c", "x=1"]
    subprocess.run(command, env=environ, check=True, timeout=300, capture_output=True)
    lines = said.read_text().splitlines()
    assert lines[-1] == "postgres -c x=1"
    changes = [
        "--single",
        "ALTER ROLE postgres PASSWORD 'a'",
        "ALTER ROLE ledger PASSWORD 'it''s'",
        "ALTER ROLE mlflow PASSWORD 'm\\'",
    ]
    assert lines[:-1] == (changes if is_old else [])
