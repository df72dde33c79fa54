"""Images of jobs/Dockerfile, with a job's requirements as a layer over them: their build, push, and load into kind.

`build`, `layer`, `push` and `load` return commands as values, so that they can be shown before they run.
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
from trialplane.client import git
from trialplane.errors import InputError, TargetError
from trialplane.job.requirements import Requirements

TARGETS = ("controller", "trial")
DOCKERFILE = Path("jobs", "Dockerfile")
REPOSITORY = "trialplane"  # local images are trialplane/controller and trialplane/trial
# Build arguments of the Dockerfile with package indexes, whose values come from the user's environment.
_INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
_REQUIREMENTS_FOLDER = "/tmp/requirements"  # in a build


@dataclasses.dataclass(frozen=True)
class Command:
    """A command to run.

    Attributes:
        argv: Program and its arguments.
        environ: Additional environment variables.
        folder: Working directory; None for that of this process.
        stdin: Text of its standard input; "" for the standard input of this process.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folder: Path | None = None
    stdin: str = ""


@dataclasses.dataclass(frozen=True)
class Source:
    """Repository from which images are built.

    Attributes:
        root: Folder of the repository, which has jobs/Dockerfile.
        revision: Its commit, with the suffix `-dirty` if files were changed; "" without git.
        created: Time of the commit in the format of RFC 3339, so that the same code gives the same image.
    """

    root: Path
    revision: str
    created: str


def image(target: str, tag: str, prefix: str = REPOSITORY) -> str:
    """Return the name of an image."""
    return f"{prefix.rstrip('/')}/{target}:{tag}"


def find_source(start: Path) -> Source:
    """Return the repository with jobs/Dockerfile that contains a folder.

    Raises:
        InputError: There is no such repository.
    """
    root = next((folder for folder in (start, *start.parents) if (folder / DOCKERFILE).is_file()), None)
    if root is None:
        raise InputError(f"there is no {DOCKERFILE} in {start} or above it; run this in the platform's repository")
    revision = git.output(root, "rev-parse", "HEAD")
    if not revision:
        return Source(root, revision="", created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    is_dirty = bool(git.output(root, "status", "--porcelain"))
    created = git.output(root, "log", "-1", "--format=%cI")
    return Source(root, revision=revision + ("-dirty" if is_dirty else ""), created=created)


def build(
    source: Source, target: str, tag: str, device: str, builder: Mapping[str, str], packages: Sequence[str] = ()
) -> Command:
    """Return the command that builds one image.

    Args:
        source: Repository of the image.
        target: "controller" or "trial".
        tag: Tag of the image.
        device: "cuda" or "cpu", for a trial image.
        builder: Environment variables that select the builder; see `builder_environ`.
        packages: Additional Python packages to install.
    """
    argv = ["docker", "build", "--file", str(DOCKERFILE), "--target", target, "--tag", image(target, tag)]
    arguments = {"VERSION": trialplane.__version__, "REVISION": source.revision, "CREATED": source.created}
    if target == "trial":
        arguments["DEVICE"] = device
    if packages:
        arguments["PACKAGES"] = " ".join(packages)
    for name, value in arguments.items():
        argv += ["--build-arg", f"{name}={value}"]
    return Command(argv=(*argv, *_index_arguments(), "."), environ=builder, folder=source.root)


def layer_tag(requirements: Requirements, tag: str) -> str:
    """Return the tag of the trial image with a job's requirements, from these and the tag of the image below."""
    return f"{tag}-{requirements.digest[:12]}"


def layer(requirements: Requirements, folder: Path, tag: str, builder: Mapping[str, str]) -> Command:
    """Return the command that builds the trial image with a job's requirements as a layer over it.

    Args:
        requirements: Requirements of the job.
        folder: Folder of the job.
        tag: Tag of the trial image below.
        builder: Environment variables that select the builder; see `builder_environ`.

    Raises:
        InputError: A variable with a package index has a user name or a password.
    """
    argv = ["docker", "build", "--file", "-", "--tag", image("trial", layer_tag(requirements, tag))]
    dockerfile = layer_dockerfile(requirements, base=image("trial", tag))
    return Command(argv=(*argv, *_index_arguments(), "."), environ=builder, folder=folder, stdin=dockerfile)


def layer_dockerfile(requirements: Requirements, base: str) -> str:
    """Return the Dockerfile of a layer with a job's requirements over the image `base`.

    Its build context is the job's folder. From a script, whose requirements are in a comment, the lines are written to a
    file.

    The layer may replace libraries of the image below, except trialplane and Ray, which must have the controller's versions.
    Its last step runs the checks of a trial image.
    """
    file_name = requirements.main
    if file_name.endswith(".py"):
        file_name = "script.txt"
        _, text = requirements.files[0]  # its name, and the requirements in its comment
        quoted_lines = " ".join(shlex.quote(line) for line in text.splitlines())
        printf = f"printf '%s\\n' {quoted_lines} > {_REQUIREMENTS_FOLDER}/{file_name}"
        copy_lines = [f"RUN mkdir -p {_REQUIREMENTS_FOLDER} && {printf}"]
    else:
        copy_lines = [f"COPY {json.dumps([file, f'{_REQUIREMENTS_FOLDER}/{file}'])}" for file, _ in requirements.files]
    pins = f"{_REQUIREMENTS_FOLDER}/pins.txt"
    requirements_file = shlex.quote(f"{_REQUIREMENTS_FOLDER}/{file_name}")
    dockerfile_lines = [
        f"FROM {base}",
        "USER root",
        *(f"ARG {name}" for name in _INDEX_VARIABLES),
        *copy_lines,
        f"RUN pip list --format=freeze | grep -E '^(ray|trialplane)==' > {pins} \\",
        f" && pip install -r {requirements_file} -c {pins} && pip check && rm -rf {_REQUIREMENTS_FOLDER}",
        "USER 1000:1000",
        "RUN python -m trialplane.worker.probe --image trial && rm -rf /tmp/*",
        f'LABEL io.trialplane.requirements="{requirements.digest}"',
    ]
    return "".join(f"{line}\n" for line in dockerfile_lines)


def _index_arguments() -> list[str]:
    """Return arguments for the package indexes in the user's environment, from which docker reads their values.

    Raises:
        InputError: A variable has a user name or a password.
    """
    argv: list[str] = []
    for name in _INDEX_VARIABLES:
        if os.environ.get(name):
            _check_no_password(name, os.environ[name])
            argv += ["--build-arg", name]
    return argv


def push(target: str, tag: str, registry: str) -> tuple[Command, Command]:
    """Return the commands that tag an image for a registry and push it."""
    remote_name = image(target, tag, registry)
    return Command(("docker", "tag", image(target, tag), remote_name)), Command(("docker", "push", remote_name))


def load(targets: Sequence[str], tag: str, cluster: str, nodes: Sequence[str]) -> Command:
    """Return the command that loads images into nodes of a kind cluster; into all nodes if `nodes` is empty."""
    argv = ["kind", "load", "docker-image", *(image(target, tag) for target in targets), "--name", cluster]
    return Command((*argv, *(["--nodes", ",".join(nodes)] if nodes else [])))


def builder_environ() -> dict[str, str]:
    """Return the environment variables that make `docker build` use BuildKit, or the older builder without BuildKit.

    Raises:
        TargetError: Docker is not installed, or its daemon does not answer.
    """
    version = _client_version()
    if version < 23:  # these clients have BuildKit, but do not use it by default
        return {"DOCKER_BUILDKIT": "1"}
    has_buildx = _run_captured("docker", "buildx", "version").returncode == 0
    return {"DOCKER_BUILDKIT": "1" if has_buildx else "0"}


def check_image(name: str) -> None:
    """Check that docker has an image.

    Raises:
        InputError: There is no image of this name.
        TargetError: Docker is not installed, or its daemon does not answer.
    """
    _client_version()  # raises if docker does not work
    if _run_captured("docker", "image", "inspect", "--format", "{{.Id}}", name).returncode:
        raise InputError(f"there is no image {name} here; `platform image build` creates it")


def check_cluster(name: str) -> None:
    """Check that kind has a cluster.

    Raises:
        InputError: There is no cluster of this name.
        TargetError: Kind is not installed, or does not work.
    """
    answer = _run_captured("kind", "get", "clusters")
    if answer.returncode:
        raise TargetError(f"`kind get clusters` failed: {_last_line(answer.stderr)}")
    clusters = answer.stdout.split()
    if name not in clusters:
        hint = errors.nearest(name, clusters) or "there is none"
        raise InputError(
            f"kind has no cluster {name!r}; {hint}. `kind create cluster --name {name} --config kind-config.yaml` creates it"
        )


def run(command: Command) -> None:
    """Run a command, whose output goes to that of this process.

    Raises:
        TargetError: The command failed, or its program is not installed.
    """
    try:
        environ = {**os.environ, **command.environ}
        stdin_text = command.stdin or None
        process = subprocess.run(command.argv, env=environ, cwd=command.folder, input=stdin_text, text=True, check=False)
    except FileNotFoundError as error:
        raise _not_installed_error(command.argv[0]) from error
    if process.returncode:
        command_name = " ".join(command.argv[:2])
        raise TargetError(f"`{command_name}` ended with exit code {process.returncode}; its output is above")


def _check_no_password(name: str, url: str) -> None:
    """Raise InputError if the value of a variable, one or more URLs, has a user name or a password."""
    if any(urllib.parse.urlsplit(part).username for part in url.split()):
        raise InputError(
            f"{name} holds a user name or password, which would be readable in the image's history; unset it and put "
            f"the index into the pip.conf of a base image: `docker build --build-arg PYTHON=... --file {DOCKERFILE} .`"
        )


def _client_version() -> int:
    """Return the major version of docker's client; 0 if it is unknown.

    Raises:
        TargetError: Docker is not installed, or its daemon does not answer.
    """
    answer = _run_captured("docker", "version", "--format", "{{.Client.Version}} {{.Server.Version}}")
    if answer.returncode:
        raise TargetError(
            f"the docker daemon does not answer: {_last_line(answer.stderr)}\n"
            "Start it (`sudo systemctl start docker`, or Docker Desktop), and check that `docker info` works"
        )
    major = answer.stdout.split(".")[0]
    return int(major) if major.isdigit() else 0


def _run_captured(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command and return its exit code and output. Raise TargetError if its program is not installed."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise _not_installed_error(argv[0]) from error


def _not_installed_error(program: str) -> TargetError:
    instructions = {"docker": "https://docs.docker.com/engine/install", "kind": "https://kind.sigs.k8s.io"}
    return TargetError(f"{program} is not installed; {instructions.get(program, '')} explains how")


def _last_line(text: str) -> str:
    """Return the last line of a program's error output that is not blank, for a message."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"
