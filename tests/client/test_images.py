"""`platform image`: which commands it runs with which words, and what it says when a program is missing or fails.

docker and kind are programs on PATH that behave as the real ones do as far as they are asked. Not checked here: that the
Dockerfile builds (tests/images).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trialplane.cli import main
from trialplane.client import images

DOCKER = """\
#!{python}
import json, os, sys
state = {state!r}
known = json.load(open(state))
words = sys.argv[1:]
if words[0] == "version":
    if not known["daemon"]:
        sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
    print(known["client"] + " 20.10.24")
elif words[:2] == ["buildx", "version"]:
    sys.exit(0 if known["buildx"] else "docker: 'buildx' is not a docker command.")
elif words[:2] == ["image", "inspect"]:
    sys.exit(0 if words[-1] in known["images"] else "No such image")
else:
    known["ran"].append([os.environ.get("DOCKER_BUILDKIT", ""), os.getcwd(), *words])
    if words[0] == "build":
        if known["broken"]:
            sys.exit(17)
        known["images"].append(words[words.index("--tag") + 1])
        known["stdin"] = sys.stdin.read() if words[words.index("--file") + 1] == "-" else ""
    elif words[0] == "tag":
        if words[1] not in known["images"]:
            sys.exit("No such image")
        known["images"].append(words[2])
    elif words[0] == "push" and words[1] not in known["images"]:
        sys.exit("An image does not exist locally with the tag")
    json.dump(known, open(state, "w"))
"""
KIND = """\
#!{python}
import json, sys
state = {state!r}
known = json.load(open(state))
if sys.argv[1:3] == ["get", "clusters"]:
    print("\\n".join(known["clusters"]))
else:
    known["ran"].append(["kind", *sys.argv[1:]])
    json.dump(known, open(state, "w"))
"""


class Machine:
    """A PATH with git, and with docker and kind as far as they are installed; types `platform image …` in a repository."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin = folder / "bin"
        self.state = folder / "state.json"
        self.root = folder / "repository"
        self.bin.mkdir()
        (self.root / "jobs").mkdir(parents=True)
        (self.root / "jobs" / "Dockerfile").write_text("FROM scratch\n")
        known = {"daemon": True, "client": "28.2.2", "buildx": True, "images": [], "clusters": ["lab"], "broken": False}
        self.state.write_text(json.dumps({**known, "ran": []}))
        for program in ("git",):
            found = next(Path(part, program) for part in os.environ["PATH"].split(":") if Path(part, program).exists())
            (self.bin / program).symlink_to(found)
        monkeypatch.setenv("PATH", str(self.bin))
        for name in ("DOCKER_BUILDKIT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.chdir(self.root / "jobs")
        self.install("docker", DOCKER)
        self.install("kind", KIND)

    def install(self, name: str, text: str) -> None:
        file = self.bin / name
        file.write_text(text.format(python=sys.executable, state=str(self.state)))
        file.chmod(0o755)

    def uninstall(self, name: str) -> None:
        (self.bin / name).unlink()

    def set(self, **values: object) -> None:
        self.state.write_text(json.dumps({**json.loads(self.state.read_text()), **values}))

    @property
    def ran(self) -> list[list[str]]:
        return json.loads(self.state.read_text())["ran"]

    def type(self, *words: str) -> Result:
        return self.platform("image", *words)

    def platform(self, *words: str) -> Result:
        return CliRunner().invoke(_Whole(), list(words))


class _Whole:
    name = "platform"

    def main(self, args, prog_name, **_):
        main.main(args)


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def arguments(command: list[str]) -> dict[str, str]:
    """What `--build-arg` gives."""
    pairs = [command[at + 1].partition("=") for at, word in enumerate(command) if word == "--build-arg"]
    return {name: value for name, _, value in pairs}


def test_build_makes_both_images_from_the_root_of_the_repository(machine):
    said = machine.type("build", "--device", "cpu")
    assert said.exit_code == 0, said.output
    first, second = machine.ran
    assert first[1] == second[1] == str(machine.root)
    assert first[first.index("--target") + 1] == "controller"
    assert second[second.index("--target") + 1] == "trial"
    assert [command[command.index("--tag") + 1] for command in (first, second)] == [
        "trialplane/controller:dev",
        "trialplane/trial:dev",
    ]
    assert "DEVICE" not in arguments(first)
    assert arguments(second)["DEVICE"] == "cpu"
    assert first[-1] == second[-1] == "."


def test_it_prints_what_it_runs_so_that_it_can_be_typed(machine):
    said = machine.type("build", "--target", "trial", "--tag", "v1")
    assert "$ DOCKER_BUILDKIT=1 docker build --file jobs/Dockerfile --target trial --tag trialplane/trial:v1" in said.stderr
    assert len(machine.ran) == 1


@pytest.mark.parametrize(
    ("client", "buildx", "switch"),
    [("28.2.2", True, "1"), ("28.2.2", False, "0"), ("20.10.24+dfsg1", False, "1")],
)
def test_buildkit_is_used_where_the_client_has_it(machine, client, buildx, switch):
    machine.set(client=client, buildx=buildx)
    assert machine.type("build", "--target", "controller").exit_code == 0
    assert machine.ran[0][0] == switch


def test_labels_name_the_commit_and_whether_it_was_changed(machine):
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", *who, *words], cwd=machine.root, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    machine.type("build", "--target", "trial")
    assert arguments(machine.ran[0])["REVISION"] == ""
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD")
    machine.type("build", "--target", "trial")
    (machine.root / "jobs" / "Dockerfile").write_text("FROM nothing\n")
    machine.type("build", "--target", "trial")
    _, clean, dirty = (arguments(command) for command in machine.ran)
    assert clean["REVISION"] == commit
    assert dirty["REVISION"] == f"{commit}-dirty"
    assert clean["CREATED"] == dirty["CREATED"] != ""  # the commit's, so that the same code gives the same image


def test_a_package_index_and_more_packages_are_passed_on(machine, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.com/simple")
    machine.type("build", "--target", "trial", "--package", "datasets", "--package", "peft")
    command = machine.ran[0]
    assert command[command.index("PIP_INDEX_URL") - 1] == "--build-arg"
    assert arguments(command)["PACKAGES"] == "datasets peft"


def test_a_package_index_with_a_password_is_refused_as_it_would_stay_in_the_image(machine, monkeypatch):
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://example.com/simple https://user:secret@example.com/simple")
    said = machine.type("build")
    assert said.exit_code == 2
    assert "PIP_EXTRA_INDEX_URL holds a user name or password" in said.stderr
    assert "secret" not in said.output
    assert machine.ran == []


def test_a_build_that_fails_says_so_and_ends_with_3(machine):
    machine.set(broken=True)
    said = machine.type("build")
    assert said.exit_code == 3
    assert "`docker build` ended with exit code 17; its output is above" in said.stderr
    assert len(machine.ran) == 0


def test_outside_of_a_repository_there_is_nothing_to_build(machine, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = machine.type("build")
    assert said.exit_code == 2
    assert "there is no jobs/Dockerfile" in said.stderr


@pytest.mark.parametrize("verb", [["build"], ["push", "--registry", "r"], ["load", "--cluster", "lab"]])
def test_without_docker_it_says_where_to_get_it(machine, verb):
    machine.uninstall("docker")
    said = machine.type(*verb)
    assert said.exit_code == 3
    assert "docker is not installed" in said.stderr


@pytest.mark.parametrize("verb", [["build"], ["push", "--registry", "r"], ["load", "--cluster", "lab"]])
def test_without_its_daemon_it_says_how_to_start_it(machine, verb):
    machine.set(daemon=False)
    said = machine.type(*verb)
    assert said.exit_code == 3
    assert "Cannot connect to the Docker daemon" in said.stderr
    assert "systemctl start docker" in said.stderr


def test_push_gives_the_images_names_in_the_registry(machine):
    machine.type("build", "--tag", "v1")
    said = machine.type("push", "--tag", "v1", "--registry", "registry.example.com/team/")
    assert said.exit_code == 0, said.output
    assert said.stdout.split() == ["registry.example.com/team/controller:v1", "registry.example.com/team/trial:v1"]
    pushed = [command[2:] for command in machine.ran if command[2] == "push"]
    assert pushed == [["push", "registry.example.com/team/controller:v1"], ["push", "registry.example.com/team/trial:v1"]]


def test_push_and_load_want_images_that_are_there(machine):
    for verb in (["push", "--registry", "r"], ["load", "--cluster", "lab"]):
        said = machine.type(*verb, "--tag", "v9")
        assert said.exit_code == 2
        assert "there is no image trialplane/controller:v9 here; `platform image build` creates it" in said.stderr
    assert machine.ran == []


def test_load_brings_both_images_to_the_nodes_that_were_named(machine):
    machine.type("build")
    said = machine.type("load", "--cluster", "lab", "--nodes", "lab-worker,lab-worker2")
    assert said.exit_code == 0, said.output
    names = ["trialplane/controller:dev", "trialplane/trial:dev"]
    nodes = ["--nodes", "lab-worker,lab-worker2"]
    assert machine.ran[-1] == ["kind", "load", "docker-image", *names, "--name", "lab", *nodes]


def test_load_into_a_cluster_that_is_not_there_names_the_nearest(machine):
    said = machine.type("load", "--cluster", "lob")
    assert said.exit_code == 2
    assert "kind has no cluster 'lob'; did you mean lab?" in said.stderr
    assert "kind create cluster --name lob --config kind-config.yaml" in said.stderr


def test_load_without_kind_says_where_to_get_it(machine):
    machine.uninstall("kind")
    said = machine.type("load")
    assert said.exit_code == 3
    assert "kind is not installed" in said.stderr


def test_names_of_images() -> None:
    assert images.image("trial", "dev") == "trialplane/trial:dev"
    assert images.image("trial", "1.0", "registry.example.com/a") == "registry.example.com/a/trial:1.0"
