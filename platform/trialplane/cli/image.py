"""`platform image`: build, push and load the images; print each command, so that it can be run by hand."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from click.core import ParameterSource

from trialplane.cli import output
from trialplane.cli.output import Decorator
from trialplane.client import images
from trialplane.client.images import Command
from trialplane.errors import InputError
from trialplane.job import load as loading
from trialplane.job import requirements
from trialplane.plan import plan as planning

_tag_option: Decorator = click.option("--tag", default="dev", show_default=True, metavar="TAG", help="Tag of the images.")
_target_option: Decorator = click.option(
    "--target",
    type=click.Choice([*images.TARGETS, "both"]),
    default="both",
    show_default=True,
    help="Image: controller (also the operator, the gateway and MLflow), trial or both.",
)


@click.group("image")
def image_command() -> None:
    """Build the images for a cluster, and push or load them.

    The images contain the platform and its dependencies. They contain no job code, which is sent with each submission.
    """


@image_command.command("build")
@_target_option
@_tag_option
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="cpu: a smaller trial image for nodes without GPUs and for kind, of 2.3 GB instead of 7 GB.",
)
@click.option("--package", "packages", multiple=True, metavar="NAME", help="Python package to add. Repeatable.")
@click.option(
    "--job", metavar="NAME", help="Job whose requirements to add to trialplane/trial:TAG. Only this image is built."
)
@click.pass_context
def build(ctx: click.Context, target: str, tag: str, device: str, packages: tuple[str, ...], job: str | None) -> None:
    """Build trialplane/controller:TAG and trialplane/trial:TAG with docker.

    With --job, build a trial image with the requirements of the job. Its tag is TAG and the digest of the requirements. The
    job is checked first, as by `platform validate`.
    """
    if job is not None:
        for name in ("target", "device", "packages"):
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
                raise InputError(f"--{name.removesuffix('s')} is for the platform's own images, and not for --job")
        _build_layer(job, tag)
        return
    source = images.find_source(Path.cwd())
    builder = images.builder_environ()
    for name in _targets(target):
        _run(images.build(source, target=name, tag=tag, device=device, builder=builder, packages=packages))
    output.note(f"built {', '.join(images.image(name, tag) for name in _targets(target))}")


def _build_layer(name: str, tag: str) -> None:
    """Build a trial image with the requirements of a job, and print its name and how to use it.

    Raises:
        InputError: The job requires no packages, or there is no trial image with this tag.
    """
    folder = loading.find_job(name, Path.cwd())
    _, required = planning.check_job(folder)
    has_requirements = bool(required.lines or required.unchecked)  # the latter are URLs and paths
    if not has_requirements:
        job_file = f"{requirements.source_prefix(folder)}{loading.FILE}"
        raise InputError(f"{name} requires no packages; write requirements: requirements.txt into {job_file}")
    images.check_image(images.image("trial", tag))
    layer_tag = images.layer_tag(required, tag)
    _run(images.layer(required, folder, tag, images.builder_environ()))
    image = images.image("trial", layer_tag)
    output.note(
        f"built {image}; bring it to the cluster with `platform image push --target trial --tag {layer_tag} "
        f"--registry PREFIX` or `platform image load --target trial --tag {layer_tag}`, and name it in the "
        f"job: cluster: {{image: {image}}}"
    )
    click.echo(image)


@image_command.command("push")
@_target_option
@_tag_option
@click.option("--registry", required=True, metavar="PREFIX", help="Registry and path: registry.example.com/team/trialplane.")
def push(target: str, tag: str, registry: str) -> None:
    """Push the images to a registry as PREFIX/controller:TAG and PREFIX/trial:TAG."""
    for name in _targets(target):  # all are checked before the first is pushed
        images.check_image(images.image(name, tag))
    for name in _targets(target):
        for command in images.push(name, tag, registry):
            _run(command)
    for name in _targets(target):
        click.echo(images.image(name, tag, prefix=registry))


@image_command.command("load")
@_target_option
@_tag_option
@click.option("--cluster", default="kind", show_default=True, metavar="NAME", help="Name of the kind cluster.")
@click.option("--nodes", default="", metavar="NODE,…", help="Nodes to load the images into. Default: all.")
def load(target: str, tag: str, cluster: str, nodes: str) -> None:
    """Load the images into the nodes of a kind cluster, so that they need not be pulled."""
    images.check_cluster(cluster)
    for name in _targets(target):
        images.check_image(images.image(name, tag))
    _run(images.load(_targets(target), tag, cluster, [node for node in nodes.split(",") if node]))


def _targets(target: str) -> tuple[str, ...]:
    """Return the images that a value of `--target` names."""
    return images.TARGETS if target == "both" else (target,)


def _run(command: Command) -> None:
    """Print a command for a shell, and run it."""
    variables = [f"{name}={value}" for name, value in command.environ.items()]
    here_document = f" <<'END'\n{command.stdin}END" if command.stdin else ""
    # A layer, which has a Dockerfile as its input, is built in the job's folder; images, in the repository's.
    cd = f"cd {shlex.quote(str(command.folder))} && " if command.stdin else ""
    output.note(output.paint(f"$ {cd}{' '.join([*variables, shlex.join(command.argv)])}{here_document}", dim=True))
    images.run(command)
