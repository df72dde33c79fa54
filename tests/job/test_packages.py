"""Packages outside of the job's folder: what can travel with it, each mistake with its line, and entrypoints in them.

Not checked: how they are packed (tests/plan/test_pack.py), and that trials import them (tests/worker/test_programs.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.job.conftest import found

from trialplane.job import entrypoint, load

JOB = "kind: hpo\nobjective: {metric: f1, direction: maximize}\nspace: {x: {type: int, low: 1, high: 2}}\n"


@pytest.fixture
def job(folder: Path) -> Path:
    for name in ("src/mine", "other/mine", "src/my-lib", "src/json", "src/train"):
        (folder.parent.parent / name).mkdir(parents=True)
    (folder.parent.parent / "src" / "mine" / "fit.py").write_text("def run(ctx): ...\n")
    (folder.parent.parent / "src" / "file.py").touch()
    (folder / "sub").mkdir()
    return folder


def write(folder: Path, *packages: str, more: str = "") -> None:
    (folder / "job.yaml").write_text(f"{JOB}packages: [{', '.join(packages)}]\n{more}")


@pytest.mark.parametrize("named", ["../../src/mine", "../../src/../src/mine/", "{root}/src/mine"])
def test_a_package_is_found_from_the_folder_of_the_job(job: Path, named: str) -> None:
    root = job.parent.parent
    write(job, named.format(root=root))
    made = load.load_job(job)
    assert entrypoint.packages(made, Path("jobs/demo")) == [root / "src" / "mine"]


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("../../src/mina", "there is no folder {root}/src/mina; did you mean mine?"),
        ("../../src/file.py", "{root}/src/file.py is a file"),
        ("sub", "lies in the job's folder"),
        (".", "lies in the job's folder"),
        ("../..", "holds the job's folder"),
        ("../../src/my-lib", "'my-lib' is not a name that can be imported"),
        ("../../src/json", "json would hide the module of that name"),
        ("../../src/train", "the job's folder has train.py of its own"),
        (f"../{'x' * 300}", "cannot be read: File name too long"),
        ("../loop", "there is no folder"),
    ],
)
def test_what_cannot_travel(job: Path, named: str, why: str) -> None:
    (job.parent / "loop").symlink_to("loop")
    write(job, "../../src/mine", named)
    ((field, source, line, message),) = found(job)
    assert (field, source, line) == ("packages.1", "jobs/demo/job.yaml", 4)
    assert why.format(root=job.parent.parent) in message


def test_two_of_one_name(job: Path) -> None:
    write(job, "../../src/mine", "../../other/mine")
    ((field, _, _, message),) = found(job)
    assert field == "packages.1"
    assert message == "../../other/mine and ../../src/mine are both called mine; rename one of them"


def test_all_of_them_are_named_at_once(job: Path) -> None:
    write(job, "../../src/none", "../../src/file.py", more="requirements: gone.txt\nentrypoint: train:none\n")
    assert [field for field, *_ in found(job)] == ["packages.0", "packages.1", "requirements", "entrypoint"]


def test_an_entrypoint_may_be_in_a_package(job: Path) -> None:
    write(job, "../../src/mine", more="entrypoint: mine.fit:run\n")
    assert load.load_job(job).entrypoint == "mine.fit:run"
    write(job, "../../src/mine", more="entrypoint: mine.fit:fun\n")
    assert "fit.py defines no fun; did you mean run?" in found(job)[0][3]
