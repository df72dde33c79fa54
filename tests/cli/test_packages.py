"""What a user sees of a job's packages: they are in the submission, and `validate` finds what could not be packed.

Not checked: which are refused (tests/job/test_packages.py), and that trials import them (tests/worker/test_packages.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Platform = Callable[..., Result]


@pytest.fixture
def package(workplace: Path) -> Path:
    folder = Path("src", "mine")
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    file = Path("jobs", "demo", "job.yaml")
    file.write_text(f"{file.read_text()}packages: [../../src/mine]\n")
    return folder


def test_a_package_is_part_of_the_submission(platform: Platform, package: Path) -> None:
    result = platform("submit", "hpo", "demo", "--local", "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.stderr
    assert "mine/__init__.py" in json.loads(result.stdout)["code"]["files"]


def test_validate_finds_what_could_not_be_packed(platform: Platform, package: Path) -> None:
    assert platform("validate", "demo").exit_code == 0
    (package / "secret").symlink_to("/etc/passwd")
    result = platform("validate", "demo")
    assert result.exit_code == 2
    assert "mine/secret is a link that leads out of the folder (/etc/passwd)" in result.stderr
