"""What a job needs installed: requirements files and scripts' metadata are read as pip does, and each line is compared.

Not checked: that a submission is refused (tests/cli/test_requirements.py), and a slot (tests/worker/test_requirements.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.job.conftest import found

from trialplane.job import load, requirements

TAIL = "script: train.py\n"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with installed packages: `big_one` 2.5, `small` 1.0+cpu, `pre` 3.0rc1."""
    place = tmp_path / "site"
    for name, version in (("big_one", "2.5"), ("small", "1.0+cpu"), ("pre", "3.0rc1")):
        info = place / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    return place


def lacking(folder: Path, text: str, name: str = "requirements.txt") -> list[tuple[str, int, str]]:
    (folder / name).write_text(text)
    read = requirements.read(folder, name)
    assert read.issues == ()
    return [(one.field, one.line, one.message) for one in requirements.unmet_issues(read)[1:]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("big-one", ""),
        ("Big.One>=2,<3  # a comment", ""),
        ("small==1.0", ""),
        ("pre>=3.0rc1", ""),
        ("pre>=3", "3.0rc1 is installed"),
        ("big_one>=3", "2.5 is installed"),
        ("never-heard", "is not installed"),
        ("never-heard; python_version < '3'", ""),
        ("big_one[gpu]", ""),
        ("never-heard @ https://example.invalid/n.whl", "is not installed"),
        ("small==1.0 --hash=sha256:00", ""),
        ("small \\\n  ==9", "1.0+cpu is installed"),
        ("--index-url https://example.invalid/simple", ""),
        ("-c limits.txt", ""),
        ("-c limits.txt\nsmall", ""),
    ],
)
def test_a_line_is_compared(folder: Path, packages: Path, line: str, why: str) -> None:
    (folder / "limits.txt").write_text("small<1\nbig_one<1\n")
    assert [message for _, _, message in lacking(folder, f"{line}\n")] == ([why] if why else [])


def test_a_marker_says_whether_a_line_applies_here(folder: Path, packages: Path) -> None:
    text = 'three; python_version < "3"\nfour; python_version > "3"\nfive\n'
    assert [message for _, _, message in lacking(folder, text)] == ["is not installed"] * 2
    read = requirements.read(folder, "requirements.txt")
    assert [one.applies for one in read.lines] == [False, True, True]


def test_all_that_is_missing_is_one_list_with_lines(folder: Path, packages: Path) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "base.txt").write_text("-r ../requirements.txt\nsmall>=7\n")
    text = "\ufeffone\n\n# two\nbig_one==1 \\\n  --hash=sha256:00 \\\n  --hash=sha256:11\n-r more/base.txt\nthree<1\n"
    assert lacking(folder, text) == [
        ("one", 1, "is not installed"),
        ("big_one==1", 4, "2.5 is installed"),
        ("small>=7", 2, "1.0+cpu is installed"),
        ("three<1", 8, "is not installed"),
    ]
    head = requirements.unmet_issues(requirements.read(folder, "requirements.txt"))[0].message
    assert head.startswith("4 requirements are not met by ") and "`pip install -r requirements.txt`" in head


def test_what_only_an_installation_could_check_is_said_and_shows_no_password(folder: Path) -> None:
    (folder / "requirements.txt").write_text(
        "git+https://ann:secret@example.invalid/x.git\n./wheels/a.whl\n-e ../mine\npip @ file:///x.whl\na==${VERSION}\n"
    )
    read = requirements.read(folder, "requirements.txt")
    assert not read.issues and [one.line for one in read.unchecked] == [1, 2, 3, 4, 5]
    assert "secret" not in repr(read.unchecked)
    assert [one.requirement.name for one in read.lines] == ["pip"]


def test_what_is_no_requirement_is_an_issue_of_the_job(folder: Path) -> None:
    (folder / "job.yaml").write_text("kind: hpo\nrequirements: need.txt\nobjective: {metric: f1, direction: maximize}\n")
    place = ("requirements", os.path.join("jobs", "demo", "job.yaml"), 2)  # noqa: PTH118
    (issue,) = found(folder)
    assert issue[:3] == place and issue[3].startswith("there is no need.txt in ")
    (folder / "need.txt").write_text("torch >\n--fast\n-r ../other.txt\n-r gone.txt\n")
    assert [(source, line, field) for field, source, line, _ in found(folder)] == [
        ("jobs/demo/need.txt", 1, "torch >"),
        ("jobs/demo/need.txt", 2, "--fast"),
        ("jobs/demo/need.txt", 3, "-r ../other.txt"),
        ("jobs/demo/need.txt", 4, "-r gone.txt"),
    ]
    (folder / "need.txt").write_bytes(b"\xff\n")
    assert found(folder)[0][3] == "need.txt is not UTF-8 text"
    for wrong in ("/etc/need.txt", "../need.txt", "./"):
        assert "is not a file of the job's folder" in found(folder, sets=[f"requirements={wrong}"])[0][3]
    for wrong in ("-need.txt", "./-need.txt"):
        assert "begins with -, as options do" in found(folder, sets=[f"requirements={wrong}"])[0][3]


SCRIPT = """\
#!/usr/bin/env python
# /// script
# requires-python = ">=3.8"
# dependencies = [
#     "small>=3",
#     "big-one",
# ]
#
# [tool.other]
# key = 1
# ///
print("f1=1")
"""


def test_the_metadata_of_a_script(folder: Path, packages: Path) -> None:
    assert lacking(folder, SCRIPT, "train.py") == [("small>=3", 5, "1.0+cpu is installed")]
    assert lacking(folder, SCRIPT.replace("3.8", "99"), "train.py")[0][:2] == ("requires-python >=99", 3)
    read = requirements.read(folder, "train.py")
    assert "`pip install 'small>=3' big-one`" in requirements.unmet_issues(read)[0].message
    assert requirements.read(folder, "gone.py", is_named=False) == requirements.Requirements()


@pytest.mark.parametrize(
    ("change", "line", "why"),
    [
        (("[tool.other]", "[tool.other"), 2, "the metadata is not TOML"),
        (("key = 1", "key = 1\n# ///\n# /// script\n# x = 1"), 12, ""),
        (('"big-one"', "1"), 2, "must be a list of strings"),
        ((">=3.8", "3 or so"), 3, "is not a range of versions"),
        (("big-one", "big one"), 6, "is not a requirement"),
    ],
)
def test_wrong_metadata_is_an_issue_with_its_line(folder: Path, change: tuple[str, str], line: int, why: str) -> None:
    (folder / "job.yaml").write_text(f"kind: hpo\n{TAIL}objective: {{metric: f1, direction: maximize}}\n")
    (folder / "train.py").write_text(SCRIPT.replace(*change))
    if not why:  # the last `# ///` ends the block, so the first is a part of it
        why, line = "the metadata is not TOML", 2
    assert [(source, at, why in text) for _, source, at, text in found(folder)] == [("jobs/demo/train.py", line, True)]


def test_a_comment_that_begins_as_metadata_does_hides_none(folder: Path, packages: Path) -> None:
    assert lacking(folder, SCRIPT.replace("#!/usr/bin/env python", "# /// settings\n"), "train.py") == [
        ("small>=3", 6, "1.0+cpu is installed")
    ]


def test_a_script_without_metadata_needs_nothing_unless_it_is_named(folder: Path) -> None:
    (folder / "job.yaml").write_text(f"kind: hpo\n{TAIL}objective: {{metric: f1, direction: maximize}}\n")
    job = load.load_job(folder)
    assert requirements.job_requirements(job, folder) == requirements.Requirements()
    assert found(folder, sets=["requirements=train.py"])[0][3].startswith("train.py has no metadata")
    (folder / "requirements.txt").write_text("one\n")
    named = load.load_job(folder, sets=["requirements=requirements.txt"])
    assert [one.source for one in requirements.job_requirements(named, folder, "x/").lines] == ["x/requirements.txt"]


def test_the_digest_is_that_of_what_the_files_say(folder: Path, tmp_path: Path) -> None:
    (folder / "requirements.txt").write_text("-c limits.txt\none\n")
    (folder / "limits.txt").write_text("one<2\n")
    first = requirements.read(folder, "requirements.txt")
    assert first.digest == requirements.read(folder, "requirements.txt", "elsewhere/").digest
    (folder / "limits.txt").write_text("one<3\n")
    assert requirements.read(folder, "requirements.txt").digest != first.digest


def test_no_message_shows_what_a_url_may_hold(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("-e git+https://me:secret@example.invalid/x.git#egg=x\n-e ./mine\n")
    read = requirements.read(tmp_path, "r.txt")
    assert [one.field for one in read.unchecked] == ["-e", "-e ./mine"]
    assert "secret" not in str(read.unchecked)


def test_a_marker_that_cannot_be_compared_is_an_issue_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text('\nfoo; sys_platform ~= "linux"\n')
    (issue,) = requirements.read(tmp_path, "r.txt").issues
    assert issue.line == 2 and "cannot be compared" in issue.message


def test_a_url_is_no_reason_to_install_a_package_of_that_name_from_the_index(packages: Path, tmp_path: Path) -> None:
    block = '# /// script\n# dependencies = ["mine @ https://example.invalid/mine.whl", "never-heard"]\n# ///\n'
    (tmp_path / "train.py").write_text(block)
    head = requirements.unmet_issues(requirements.read(tmp_path, "train.py"))[0].message
    assert "`pip install never-heard` installs what is missing from the index" in head


def test_to_install_needs_requirements(folder) -> None:
    ((field, _, _, message),) = found(folder, sets=["install=true"])
    assert field == "install" and "add requirements: requirements.txt" in message
