"""`platform examples`: it lists, prints and writes the jobs of the page of examples, which all run.

The commands of the page itself are typed by tests/docs/test_pages.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from trialplane.cli import examples
from trialplane.job import fields, load

NAMES = list(examples.examples())
# Field that no example has → the reason.
ELSEWHERE = {"packages": "needs a folder outside of the job's, which an example cannot write"}


def test_each_is_listed_with_what_it_shows(platform):
    lines = platform("examples").stdout.splitlines()
    assert lines[0].split() == ["example", "shows"]
    assert [line.split()[0] for line in lines[1:]] == NAMES
    assert len(NAMES) >= 7


@pytest.mark.parametrize("name", NAMES)
def test_it_is_printed_and_written_as_a_job_that_loads(platform, name):
    printed = platform("examples", name).stdout
    done = platform("examples", name, "--write", f"jobs/{name}")
    assert (done.exit_code, done.stdout) == (0, f"jobs/{name}\n")
    for file in Path("jobs", name).iterdir():
        assert file.read_text() in printed
    job = load.load_job(Path("jobs", name))
    for profile in yaml.safe_load(Path("jobs", name, "job.yaml").read_text()).get("profiles", {}):
        load.load_job(Path("jobs", name), profile=profile)
    command = printed.splitlines()[-1].removeprefix("# ")
    assert f"`{command}` runs it" in done.stderr
    words = [word for word in shlex.split(command) if not word.startswith("TRIALPLANE_")]  # variables before the command
    assert words[:4] == ["platform", "submit", job.kind, name]


def test_each_field_is_in_an_example():
    shown = set()
    for example in examples.examples().values():
        job = yaml.safe_load(example.files["job.yaml"])
        shown |= set().union(job, *job.get("profiles", {}).values())
    assert {field.path for field in fields.explain("").fields} - shown - {"objectives"} == set(ELSEWHERE)


def test_all_commands_of_an_example_name_the_new_folder(platform):
    done = platform("examples", "earlier", "--write", "jobs/mine")
    assert done.stderr == (
        "`platform submit hpo mine --local --name earlier-1 && platform submit hpo mine --local --profile again` runs it\n"
    )


def test_what_cannot_be_written_is_refused(platform, tmp_path):
    assert platform("examples", "study", "--write", str(tmp_path / "x" / "y")).exit_code == 0
    done = platform("examples", "study", "--write", str(tmp_path / "x" / "y"))
    assert (done.exit_code, "already exists; nothing was changed" in done.stderr) == (2, True)
    done = platform("examples", "stdy")
    assert (done.exit_code, "study" in done.stderr) == (2, True)
    assert platform("examples", "--write", "x").exit_code == 2
    (tmp_path / "file").touch()
    done = platform("examples", "study", "--write", str(tmp_path / "file" / "x"))
    assert (done.exit_code, "cannot be written" in done.stderr) == (2, True)
