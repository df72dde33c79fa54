"""What a user sees of a job's requirements: refused on this machine before anything starts, told by `validate`.

Not checked: how they are read (tests/job/test_requirements.py), and trial pods (tests/worker/test_requirements.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Platform = Callable[..., Result]
LINES = "packaging>=999\nnever-heard-of\nhttps://ann:secret@example.invalid/x.whl\n"


@pytest.fixture
def needing(workplace: Path) -> Path:
    folder = Path("jobs", "demo")
    (folder / "requirements.txt").write_text(LINES)
    file = folder / "job.yaml"
    file.write_text(f"{file.read_text()}requirements: requirements.txt\n")
    return folder


def test_a_local_run_is_refused_with_every_line(platform: Platform, needing: Path, home: Path) -> None:
    result = platform("submit", "hpo", "demo", "--local", "--name", "Not_a_name")
    assert result.exit_code == 2
    assert "4 problems; nothing was started" in result.stderr and "--name" in result.stderr
    assert "2 requirements are not met by " in result.stderr
    assert "`pip install -r jobs/demo/requirements.txt`" in result.stderr
    assert "jobs/demo/requirements.txt:1: packaging>=999: " in result.stderr
    assert "jobs/demo/requirements.txt:2: never-heard-of: is not installed" in result.stderr
    assert not (home / "runs").exists()


def test_a_cluster_has_packages_of_its_own(platform: Platform, needing: Path, namespace: object) -> None:
    result = platform("submit", "hpo", "demo", "--dry-run", "--context", "lab", "--namespace", "team")
    assert result.exit_code == 0, result.stderr
    assert "never-heard-of" not in result.stderr
    assert "jobs/demo/requirements.txt:3: a URL or a path: is not checked" in result.stderr


def test_validate_tells_what_is_missing_here(platform: Platform, needing: Path) -> None:
    result = platform("validate", "demo")
    assert result.exit_code == 0, result.stderr
    assert "jobs/demo/requirements.txt:2: never-heard-of: is not installed" in result.stderr
    assert "requirements.txt:3: a URL or a path: is not checked" in result.stderr
    assert "secret" not in result.stderr
    (needing / "requirements.txt").write_text("packaging >\n")
    result = platform("validate", "demo")
    assert result.exit_code == 2 and "jobs/demo/requirements.txt:1: packaging >: is not a requirement" in result.stderr


def test_requirements_that_do_not_travel_are_refused(platform: Platform, needing: Path, home: Path) -> None:
    """A slot reads them in its copy of the folder, where it would find none."""
    (needing / "requirements.txt").write_text("-r more.txt\n")
    (needing / "more.txt").write_text("packaging\n")
    (needing / ".jobignore").write_text("more*\n")
    for command in (("validate", "demo"), ("submit", "hpo", "demo", "--local")):
        result = platform(*command)
        assert result.exit_code == 2, command
        assert "requirements: more.txt is not uploaded with the job: .jobignore excludes it" in result.stderr
    (needing / ".jobignore").write_text("")
    assert platform("validate", "demo").exit_code == 0


def test_a_cluster_that_installs_nothing_refuses_a_job_that_asks_for_it(
    platform: Platform, needing: Path, namespace: object
) -> None:
    (needing / "requirements.txt").write_text("spam\n")
    words = ("submit", "hpo", "demo", "--dry-run", "--context", "lab", "--namespace", "team", "--set", "install=true")
    result = platform(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the chart does not let trial pods install packages" in result.stderr
    assert "studies.install.enabled=true" in result.stderr


def test_on_this_machine_nothing_is_installed_whatever_the_job_asks(platform: Platform, needing: Path) -> None:
    result = platform("submit", "hpo", "demo", "--local", "--set", "install=true")
    assert result.exit_code == 2
    assert "`pip install -r jobs/demo/requirements.txt`" in result.stderr
