"""A script without a job file, as `submit` takes it: what would run, and all complaints about its flags at once.

Not checked here: that it runs (tests/study/test_scripts.py), each form of a parameter (tests/spec/test_short.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Platform = Callable[..., Result]


@pytest.fixture
def script(workplace: Path) -> Path:
    file = Path("loose") / "fit.py"
    file.parent.mkdir()
    file.write_text("print('accuracy=1')\n")
    return file


def test_a_script_needs_no_file(platform: Platform, script: Path) -> None:
    words = ("--space", "lr=1e-4..1e-1:log", "--space", "opt=adam,sgd", "--objective", "accuracy:max", "--trials", "7")
    result = platform("submit", "hpo", f"./{script}", *words, "--local", "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.stderr
    job = json.loads(result.stdout)["job"]
    assert (job["name"], job["script"], job["trials"]) == ("fit", "fit.py", 7)
    assert job["space"]["opt"]["choices"] == ["adam", "sgd"] and job["space"]["lr"]["log"]
    assert job["objectives"][0]["direction"] == "maximize"


def test_every_wrong_flag_is_named_at_once(platform: Platform, script: Path) -> None:
    words = ("--space", "lr", "--space", "n=9..1", "--objective", "accuracy", "--trials", "0")
    result = platform("submit", "hpo", f"./{script}", *words, "--local")
    assert result.exit_code == 2
    for part in ("'lr' is no parameter", "--space n=9..1", "accuracy:max or accuracy:min", "--trials"):
        assert part in result.stderr


def test_flags_change_a_job_that_has_a_file(platform: Platform) -> None:
    words = ("--space", "lr=1..2", "--objective", "loss:min")
    result = platform("submit", "hpo", "demo", *words, "--local", "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.stderr
    job = json.loads(result.stdout)["job"]
    assert job["space"]["lr"] | {"type": "int", "low": 1, "high": 2} == job["space"]["lr"]
    assert [one["metric"] for one in job["objectives"]] == ["loss"]


def test_a_script_that_is_not_there_is_looked_for_as_a_job(platform: Platform) -> None:
    result = platform("submit", "hpo", "./no.py", "--local", "--objective", "a:max")
    assert result.exit_code == 2 and "no job './no.py'" in result.stderr
