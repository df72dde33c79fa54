"""`platform import`: the folder that it makes, the list of what is not in it, and files that are no such files.

Not checked here: what becomes of each field (tests/importing).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trialplane.spec import load

EXPERIMENT = """\
kind: Experiment
metadata: {name: digits, namespace: lab}
spec:
  objective: {type: maximize, objectiveMetricName: acc}
  maxTrialCount: 3
  parameters: [{name: lr, parameterType: double, feasibleSpace: {min: "0.1", max: "0.5"}}]
  trialTemplate:
    trialParameters: [{name: speed, reference: lr}]
    trialSpec: {kind: Job, spec: {containers: [{image: "a:1", command: [python, fit.py, "${trialParameters.speed}"]}]}}
  "odd\\u2028key: x": 1
"""


@pytest.fixture
def given(workplace: Path) -> Path:
    folder = workplace / "katib"
    folder.mkdir()
    (folder / "digits.yaml").write_text(EXPERIMENT)
    (folder / "fit.py").write_text("print('acc=0.5')\n")
    return folder / "digits.yaml"


def test_a_job_that_can_be_submitted(platform, given: Path) -> None:
    result = platform("import", "katib", str(given))
    assert result.exit_code == 0, result.output
    folder = Path("jobs/digits")
    assert result.stdout.strip().endswith("jobs/digits")
    assert load.load_job(folder).script == "fit.py"
    assert (folder / "fit.py").read_text() == "print('acc=0.5')\n"
    assert "metadata.namespace (line 2): is chosen at the submission" in result.stderr
    assert "--local` runs the job" in result.stderr


def test_what_is_not_mapped_stands_in_the_job_too(platform, given: Path) -> None:
    result = platform("import", "katib", str(given), "--into", "jobs/other")
    assert result.exit_code == 0, result.output
    text = Path("jobs/other/job.yaml").read_text()
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("metadata.namespace (line 2)" in line for line in comments)
    # A key with a line break of YAML's in it stays within its comment.
    assert any("spec.odd key: x (line 10): a job has no field for it" in line for line in comments)
    for note in (line.partition(": ")[2] for line in result.stderr.splitlines() if "(line" in line):
        assert any(" ".join(note.split()) in " ".join(line.split()) for line in comments), note


def test_a_folder_that_exists_is_left_alone(platform, given: Path) -> None:
    before = Path("jobs/demo/job.yaml").read_text()
    result = platform("import", "katib", str(given), "--into", "jobs/demo")
    assert result.exit_code == 2
    assert "already exists" in result.stderr
    assert Path("jobs/demo/job.yaml").read_text() == before


def test_a_job_that_cannot_run_yet_is_written_with_its_complaints(platform, given: Path) -> None:
    given.write_text(EXPERIMENT.replace('min: "0.1"', 'min: "0.9"'))
    result = platform("import", "katib", str(given))
    assert result.exit_code == 2
    assert "the job cannot run yet" in result.stderr and "0.9 is over high (0.5)" in result.stderr
    assert Path("jobs/digits/job.yaml").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff", "is not UTF-8 text"),
        (b"kind: [", "is not YAML"),
        (b"[" * 100_000, "levels deep"),
        (b"a: &a [1, 2]\nb: [" + b"*a, " * 90_000 + b"]", "is too large"),
        (b"x" * (17 * 2**20), "more than 16 MiB"),
        (b"1", "is no Experiment"),
        (b"", "is no Experiment"),
        (b"- 1", "is no Experiment"),
        (b"kind: Experiment\nspec: {parameters: 1, objective: [], trialTemplate: x}", "must be a"),
        (b"kind: Experiment\nspec: {parameters: [[1]], objective: {type: {a: 1}}}", "must be"),
    ],
    ids=str,
)
def test_files_that_are_none(platform, given: Path, text: bytes, said: str) -> None:
    given.write_bytes(text)
    refused(platform("import", "katib", str(given)), said)


def refused(result, said: str) -> None:
    assert result.exit_code == 2, result.output
    assert said in result.stderr and "Traceback" not in result.stderr
    assert not Path("jobs/digits").exists()


def test_paths_that_are_no_files(platform, given: Path) -> None:
    os.mkfifo("pipe")
    for path, said in (
        ("none.yaml", "No such file"),
        ("jobs", "Is a directory"),
        ("pipe", "is a pipe"),
        ("/dev/zero", "16 MiB"),
    ):
        refused(platform("import", "katib", path), said)
    refused(platform("import", "katib", str(given), "--into", "jobs/Big Name"), "not a valid job name")
    refused(platform("import", "ktaib", str(given)), "'ktaib' is not")
