"""`platform image build --job`: the layer with a job's requirements, its Dockerfile, its tag, and what it says to do next.

docker is a program on PATH that notes what it is asked (test_images.py). Not checked here: that the layer builds.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.client.test_images import Machine, arguments, machine

from trialplane.client import images
from trialplane.job import requirements

__all__ = ["machine"]

JOB = "kind: hpo\nobjective: {metric: loss, direction: minimize}\n"
SPACE = "space: {x: {type: float, low: 0, high: 1}}\n"
SCRIPT = '# /// script\n# dependencies = [\n#   "rich>=14; python_version>\'3\'",\n#   "it\'s<2",\n# ]\n# ///\n'


@pytest.fixture
def job(machine: Machine) -> Path:
    folder = machine.root / "jobs" / "mine"
    (folder / "more").mkdir(parents=True)
    (folder / "job.yaml").write_text(f"{JOB}{SPACE}requirements: requirements.txt\n")
    (folder / "train.py").write_text("def run(ctx): ...\n")
    (folder / "requirements.txt").write_text("-r more/base.txt\nrich\n")
    (folder / "more" / "base.txt").write_text("click\n")
    machine.set(images=["trialplane/trial:dev"])
    return folder


def test_the_layer_is_built_over_the_trial_image(machine: Machine, job: Path) -> None:
    said = machine.type("build", "--job", "mine")
    assert said.exit_code == 0, said.output
    needed = requirements.read(job, "requirements.txt")
    made = f"trialplane/trial:dev-{needed.digest[:12]}"
    assert said.stdout == f"{made}\n"
    (command,) = machine.ran
    assert command[1:] == [str(job), "build", "--file", "-", "--tag", made, "."]
    assert json.loads(machine.state.read_text())["stdin"] == images.layer_dockerfile(needed, "trialplane/trial:dev")
    assert (
        f"cluster: {{image: {made}}}" in said.stderr and f"load --target trial --tag dev-{needed.digest[:12]}" in said.stderr
    )
    assert "<<'END'\nFROM trialplane/trial:dev\n" in said.stderr


def test_the_dockerfile_installs_what_the_files_say_and_checks_the_image(job: Path) -> None:
    text = images.layer_dockerfile(requirements.read(job, "requirements.txt"), "trialplane/trial:dev")
    lines = text.replace("\\\n", "").splitlines()
    assert lines[:2] == ["FROM trialplane/trial:dev", "USER root"]
    assert lines[2:6] == [
        "ARG PIP_INDEX_URL",
        "ARG PIP_EXTRA_INDEX_URL",
        'COPY ["more/base.txt", "/tmp/requirements/more/base.txt"]',
        'COPY ["requirements.txt", "/tmp/requirements/requirements.txt"]',
    ]
    install = lines[6]
    assert "grep -E '^(ray|trialplane)==' > /tmp/requirements/pins.txt" in install
    assert "pip install -r /tmp/requirements/requirements.txt -c /tmp/requirements/pins.txt && pip check" in install
    assert lines[7:9] == ["USER 1000:1000", "RUN python -m trialplane.worker.probe --image trial && rm -rf /tmp/*"]


def test_a_script_needs_no_file(machine: Machine, job: Path) -> None:
    (job / "job.yaml").write_text(f"{JOB}{SPACE}script: train.py\n")
    (job / "train.py").write_text(SCRIPT.replace("it's<2", "click") + "import argparse\n")
    said = machine.type("build", "--job", "mine")
    assert said.exit_code == 0, said.output
    text = json.loads(machine.state.read_text())["stdin"]
    quoted = shlex.join(["rich>=14; python_version>'3'", "click"])
    assert f"printf '%s\\n' {quoted} > /tmp/requirements/script.txt\n" in text
    assert "pip install -r /tmp/requirements/script.txt " in text and "COPY" not in text
    (job / "train.py").write_text(f"{(job / 'train.py').read_text()}print('accuracy=1')\n")
    assert machine.type("build", "--job", "mine").stdout == said.stdout


def test_the_tag_follows_the_requirements_and_nothing_else(machine: Machine, job: Path) -> None:
    first = machine.type("build", "--job", "mine").stdout
    (job / "train.py").write_text("def run(ctx): pass\n")
    assert machine.type("build", "--job", "mine").stdout == first
    (job / "more" / "base.txt").write_text("click>=8\n")
    assert machine.type("build", "--job", "mine").stdout != first


def test_an_index_is_passed_on_and_a_password_refused(machine: Machine, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.invalid/simple")
    assert machine.type("build", "--job", "mine").exit_code == 0
    assert "--build-arg" in machine.ran[0] and arguments(machine.ran[0]) == {"PIP_INDEX_URL": ""}
    monkeypatch.setenv("PIP_INDEX_URL", "https://ann:secret@example.invalid/simple")
    said = machine.type("build", "--job", "mine")
    assert said.exit_code == 2 and "secret" not in said.output


def test_what_cannot_be_built(machine: Machine, job: Path) -> None:
    said = machine.type("build", "--job", "mine", "--device", "cpu")
    assert said.exit_code == 2 and "--device is for the platform's own images" in said.stderr
    said = machine.type("build", "--job", "mine", "--tag", "v2")
    assert said.exit_code == 2 and "there is no image trialplane/trial:v2 here" in said.stderr
    (job / "job.yaml").write_text(JOB + SPACE)
    said = machine.type("build", "--job", "mine")
    assert said.exit_code == 2 and "mine requires no packages" in said.stderr
    (job / "job.yaml").write_text(f"{JOB}{SPACE}requirements: gone.txt\n")
    said = machine.type("build", "--job", "mine")
    assert said.exit_code == 2 and "there is no gone.txt" in said.stderr
    assert machine.ran == []


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("job.yaml", f"{JOB}{SPACE}requirements: requirements.txt\ntrails: 3\n", "trails"),
        (".jobignore", "!\n", ".jobignore has lines that are not valid gitignore patterns"),
        ("job.yaml", f"{JOB}{SPACE}requirements: requirements.txt\nparams: {{data: no.csv}}\n"
         "inputs: {data: {columns: [a]}}\n", "no.csv"),
        ("job.yaml", f"{JOB}{SPACE}requirements: requirements.txt\npackages: [../none]\n", "packages.0"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_submitted_has_no_layer_built(
    machine: Machine, job: Path, file: str, text: str, said: str
) -> None:
    (job / file).write_text(text)
    result = machine.type("build", "--job", "mine")
    assert result.exit_code == 2 and said in result.stderr
    assert not machine.ran
    as_submitted = machine.platform("validate", "mine")
    assert as_submitted.exit_code == 2 and as_submitted.stderr == result.stderr


def test_a_folder_that_leads_out_of_itself_has_no_layer_built(machine: Machine, job: Path) -> None:
    (job / "out").symlink_to("/etc/hostname")
    result = machine.type("build", "--job", "mine")
    assert result.exit_code == 2 and "out" in result.stderr and not machine.ran
