"""Builds the images of jobs/Dockerfile and layers with a job's requirements over them, pushes them and loads them into kind.

The commands are values (`build`, `layer`, `push`, `load`), so that they can be shown before they run.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import shlex
import subprocess
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

import trialplane
from trialplane import errors
from trialplane.errors import InputError, TargetError
from trialplane.job.requirements import Requirements

TARGETS = ("controller", "trial")
DOCKERFILE = Path("jobs", "Dockerfile")
REPOSITORY = "trialplane"  # local images are trialplane/controller and trialplane/trial
# Package indexes from the user's environment; the Dockerfile declares these arguments.
_PASSED_ON = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
_LISTS = "/tmp/requirements"  # where a build has a job's requirements


@dataclasses.dataclass(frozen=True)
class Command:
    """A program with its arguments, additional environment variables, working directory, and the text of its stdin."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folder: Path | None = None
    stdin: str = ""


@dataclasses.dataclass(frozen=True)
class Source:
    """Sources of images.

    Attributes:
        root: the repository; holds jobs/Dockerfile.
        revision: its commit, with the suffix `-dirty` when files were changed; "" outside of git.
        created: time as of RFC 3339; that of the commit, so that the same code gives the same image.
    """

    root: Path
    revision: str
    created: str


def image(target: str, tag: str, prefix: str = REPOSITORY) -> str:
    """The name of an image."""
    return f"{prefix.rstrip('/')}/{target}:{tag}"


def source(here: Path) -> Source:
    """The nearest repository with jobs/Dockerfile, from `here` upwards.

    Raises:
        InputError: there is none.
    """
    root = next((folder for folder in (here, *here.parents) if (folder / DOCKERFILE).is_file()), None)
    if root is None:
        raise InputError(f"there is no {DOCKERFILE} in {here} or above it; run this in the platform's repository")
    revision = _git(root, "rev-parse", "HEAD")
    if not revision:
        return Source(root, "", datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    is_dirty = bool(_git(root, "status", "--porcelain"))
    return Source(root, revision + ("-dirty" if is_dirty else ""), _git(root, "log", "-1", "--format=%cI"))


def build(
    origin: Source, target: str, tag: str, device: str, builder: Mapping[str, str], packages: Sequence[str] = ()
) -> Command:
    """The command that builds one image.

    Args:
        origin: the repository.
        target: controller or trial.
        tag: of the image.
        device: cuda or cpu; of the trial image.
        builder: variables that choose the builder, see `builder`.
        packages: additional Python packages to install.
    """
    argv = ["docker", "build", "--file", str(DOCKERFILE), "--target", target, "--tag", image(target, tag)]
    arguments = {"VERSION": trialplane.__version__, "REVISION": origin.revision, "CREATED": origin.created}
    if target == "trial":
        arguments["DEVICE"] = device
    if packages:
        arguments["PACKAGES"] = " ".join(packages)
    for name, value in arguments.items():
        argv += ["--build-arg", f"{name}={value}"]
    return Command((*argv, *_indexes(), "."), builder, origin.root)


def layer_tag(needed: Requirements, tag: str) -> str:
    """The tag of the trial image with a job's requirements: the same for the same files over the same tag."""
    return f"{tag}-{needed.digest[:12]}"


def layer(needed: Requirements, folder: Path, tag: str, builder: Mapping[str, str]) -> Command:
    """The command that builds the trial image with a job's requirements as a layer over it.

    Args:
        needed: of the job.
        folder: of the job.
        tag: of the trial image below.
        builder: variables that choose the builder, see `builder`.

    Raises:
        InputError: a variable with an index of packages holds a password.
    """
    argv = ["docker", "build", "--file", "-", "--tag", image("trial", layer_tag(needed, tag))]
    return Command((*argv, *_indexes(), "."), builder, folder, layer_dockerfile(needed, image("trial", tag)))


def layer_dockerfile(needed: Requirements, base: str) -> str:
    """Return the Dockerfile of this layer. Its context is the job's folder.

    What the layer installs may replace libraries of the image below, but neither trialplane nor Ray, which must be those of
    the controller. At the end it passes what the image itself had to pass.
    """
    name = needed.main
    if name.endswith(".py"):
        lines = " ".join(shlex.quote(line) for line in needed.files[0][1].splitlines())
        copy_lines, name = [f"RUN mkdir -p {_LISTS} && printf '%s\\n' {lines} > {_LISTS}/script.txt"], "script.txt"
    else:
        copy_lines = [f"COPY {json.dumps([file, f'{_LISTS}/{file}'])}" for file, _ in needed.files]
    pinned = f"{_LISTS}/kept.txt"
    lines_of_file = [
        f"FROM {base}",
        "USER root",
        *(f"ARG {name}" for name in _PASSED_ON),
        *copy_lines,
        f"RUN pip list --format=freeze | grep -E '^(ray|trialplane)==' > {pinned} \\",
        f" && pip install -r {shlex.quote(f'{_LISTS}/{name}')} -c {pinned} && pip check && rm -rf {_LISTS}",
        "USER 1000:1000",
        "RUN python -m trialplane.worker.probe --image trial && rm -rf /tmp/*",
        f'LABEL io.trialplane.requirements="{needed.digest}"',
    ]
    return "".join(f"{line}\n" for line in lines_of_file)


def _indexes() -> list[str]:
    """Arguments that pass on the package indexes of the user's environment; docker takes the values from there."""
    argv: list[str] = []
    for name in _PASSED_ON:
        if os.environ.get(name):
            _check_no_password(name, os.environ[name])
            argv += ["--build-arg", name]
    return argv


def push(target: str, tag: str, registry: str) -> tuple[Command, Command]:
    """Return the commands that tag an image for a registry and push it."""
    remote_name = image(target, tag, registry)
    return Command(("docker", "tag", image(target, tag), remote_name)), Command(("docker", "push", remote_name))


def load(targets: Sequence[str], tag: str, cluster: str, nodes: Sequence[str]) -> Command:
    """Return the command that loads images into nodes of a kind cluster. Default: all nodes."""
    argv = ["kind", "load", "docker-image", *(image(target, tag) for target in targets), "--name", cluster]
    return Command((*argv, *(["--nodes", ",".join(nodes)] if nodes else [])))


def builder() -> dict[str, str]:
    """The variables that make `docker build` use BuildKit where the client has it; the older builder works too.

    Raises:
        TargetError: docker is not installed, or its daemon does not answer.
    """
    version = _client_version()
    if version < 23:  # BuildKit is in these clients, off by default
        return {"DOCKER_BUILDKIT": "1"}
    has_buildx = _ask("docker", "buildx", "version").returncode == 0
    return {"DOCKER_BUILDKIT": "1" if has_buildx else "0"}


def check_image(name: str) -> None:
    """Raise InputError when docker has no image of that name."""
    _client_version()
    if _ask("docker", "image", "inspect", "--format", "{{.Id}}", name).returncode:
        raise InputError(f"there is no image {name} here; `platform image build` creates it")


def check_cluster(name: str) -> None:
    """Raise TargetError if kind is not installed, InputError if it has no cluster of that name."""
    answer = _ask("kind", "get", "clusters")
    if answer.returncode:
        raise TargetError(f"`kind get clusters` failed: {_last(answer.stderr)}")
    clusters = answer.stdout.split()
    if name not in clusters:
        hint = errors.nearest(name, clusters) or "there is none"
        raise InputError(
            f"kind has no cluster {name!r}; {hint}. `kind create cluster --name {name} --config kind-config.yaml` makes it"
        )


def run(command: Command) -> None:
    """Run a command, which inherits stdout and stderr, and stdin where it is given no text.

    Raises:
        TargetError: it failed.
    """
    try:
        environ = {**os.environ, **command.environ}
        stdin_text = command.stdin or None
        done = subprocess.run(command.argv, env=environ, cwd=command.folder, input=stdin_text, text=True, check=False)
    except FileNotFoundError as error:
        raise _missing(command.argv[0]) from error
    if done.returncode:
        command_name = " ".join(command.argv[:2])
        raise TargetError(f"`{command_name}` ended with exit code {done.returncode}; its output is above")


def _check_no_password(name: str, url: str) -> None:
    if any(urllib.parse.urlsplit(part).username for part in url.split()):
        raise InputError(
            f"{name} holds a user name or password, which would be readable in the image's history; unset it and put "
            f"the index into the pip.conf of a base image: `docker build --build-arg PYTHON=... --file {DOCKERFILE} .`"
        )


def _client_version() -> int:
    """The major version of docker's client, when its daemon answers."""
    answer = _ask("docker", "version", "--format", "{{.Client.Version}} {{.Server.Version}}")
    if answer.returncode:
        raise TargetError(
            f"the docker daemon does not answer: {_last(answer.stderr)}\n"
            "Start it (`sudo systemctl start docker`, or Docker Desktop), and check that `docker info` works"
        )
    major = answer.stdout.split(".")[0]
    return int(major) if major.isdigit() else 0


def _ask(*argv: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise _missing(argv[0]) from error


def _missing(program: str) -> TargetError:
    where = {"docker": "https://docs.docker.com/engine/install", "kind": "https://kind.sigs.k8s.io"}
    return TargetError(f"{program} is not installed; {where.get(program, '')} explains how")


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def _git(folder: Path, *arguments: str) -> str:
    """The output of git, or "" without git, a repository or a commit."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
