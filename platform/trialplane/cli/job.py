"""Jobs before they are submitted: `platform init` creates one, `validate` checks it, `schema` is for editors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import click

from trialplane.cli import from_script, importing, kinds, names, output, starters
from trialplane.errors import EXIT_OK, InputError, SpecError
from trialplane.plan import pack as packing
from trialplane.spec import entrypoint, inputs, load, requirements, schema
from trialplane.spec.jobs import Job, base
from trialplane.wire import cluster

_SCHEMA = "job.schema.json"


@click.command("init")
@click.argument("name", required=False)
@click.option(
    "--from",
    "script",
    type=click.Path(path_type=Path),
    metavar="SCRIPT",
    help="A Python script that the job searches as it is.",
)
@click.option("--no-smoke", is_flag=True, help="With --from: do not run the script once to see its metrics.")
@click.option(
    "--kind",
    type=click.Choice(list(starters.FILES)),
    default="hpo",
    show_default=True,
    help="hpo: a search, which needs no library. train: one training on many ranks, with torch. collect: workers and a "
    "learner, with numpy.",
)
def init_command(name: str | None, script: Path | None, no_smoke: bool, kind: str) -> int:
    """Create jobs/NAME with a job.yaml and a train.py that run as they are, and jobs/job.schema.json for editors.

    With --from SCRIPT the job runs that script, and NAME may be left out. Its arguments are found by starting it up to the
    point where it reads them (argparse, click, typer), or in its text (Hydra, fire, nanoGPT's configurator). What to search
    is guessed from them, and marked as guessed. The script then runs once with its defaults, for a minute at most, to see
    its metrics. A script that starts a search of Ray Tune becomes what `platform import ray` makes of it.

    \b
    platform init --from train.py
    platform init digits --from examples/train.py --no-smoke
    """  # noqa: D301  \b is click's mark
    if script is not None and kind != "hpo":
        raise click.UsageError("--from makes a study; drop --kind")
    if script is None and no_smoke:
        raise click.UsageError("--no-smoke goes with --from: what is made without it is not run")
    if name is None and script is None:
        raise click.UsageError("name the job, or the script that it is made from: --from train.py")
    name = name or re.sub(r"[^a-z0-9_-]+", "-", script.stem.lower() if script else "").strip("-_")
    if not re.fullmatch(base.NAME, name):
        raise InputError(f"{name!r} is not a valid job name: use lower-case letters, digits, - and _, at most 63 characters")
    here = Path.cwd()
    jobs = next((above / load.FOLDER for above in (here, *here.parents) if (above / load.FOLDER).is_dir()), None)
    folder = (jobs or here / load.FOLDER) / name
    if folder.exists():
        raise InputError(f"{folder} already exists; nothing was changed, choose another name")
    if script is not None and importing.is_tune(script):
        if no_smoke:
            output.note("--no-smoke changes nothing: a search of Ray Tune is read, and never run")
        return importing.make("ray", script, folder)
    if script is not None:
        from_script.make(script, folder, with_smoke=not no_smoke)
    try:
        if script is None:
            folder.mkdir(parents=True)
            for file, text in zip((load.FILE, "train.py"), starters.FILES[kind], strict=True):
                (folder / file).write_text(text.format(name=name), encoding="utf-8")
        if not (folder.parent / _SCHEMA).exists():
            text = json.dumps(schema.json_schema(), indent=2, ensure_ascii=False)
            (folder.parent / _SCHEMA).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    click.echo(folder)
    ranks = " --ranks 2" if kind == "train" else ""
    if script is not None:
        output.note(f"`platform validate {name}` checks it")
    output.note(f"`platform submit {kind} {name} --local{ranks}` runs it")
    return EXIT_OK


@click.command("validate")
@names.job_argument
@click.option("--profile", metavar="NAME", help="A profile of job.yaml, for example max.")
@click.option("--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Any field: --set budget.time=2h. Repeatable.")
@output.option("table", "json", "yaml")
def validate_command(job: str, profile: str | None, sets: tuple[str, ...], kind: str) -> None:
    """Check the job NAME, or the job in a folder: its fields, its profiles, its code and packages, and its data files.

    Prints a one-line summary when the job is valid; with json or yaml, the resolved job. Packages that the job needs are
    compared with those of this machine; on a cluster with those of the image, before the first trial.
    """
    notes: list[str] = []
    resolved, needed = checked(load.find_job(job, Path.cwd()), notes, profile, sets)
    for note in [*notes, *map(str, [*needed.unchecked, *requirements.unmet(needed)])]:
        output.note(note)
    valid = kinds.of(resolved).valid(resolved)
    output.emit(kind, resolved.model_dump(mode="json"), lambda: f"{resolved.name} is valid: {valid}")


def checked(
    folder: Path, notes: list[str], profile: str | None = None, sets: Sequence[str] = ()
) -> tuple[Job, requirements.Requirements]:
    """A job with what it needs installed, after all that `submit` looks at in its folder.

    Args:
        folder: of the job.
        notes: collects remarks on a valid job for the user.
        profile: name of a profile in job.yaml.
        sets: `field=value` each.

    Raises:
        SpecError: issues of the job, its code or its data.
        InputError: its folder cannot travel as it is.
    """
    resolved = load.load_job(folder, profile=profile, sets=sets, environ=os.environ, notes=notes)
    if issues := inputs.check_inputs(resolved, folder, cluster.DATA):
        raise SpecError(issues)
    packing.pack(folder, entrypoint.packages(resolved, folder))
    needed = requirements.of(resolved, folder, requirements.prefix(folder))
    if issues := packing.left_out(folder, (name for name, _ in needed.files)):
        raise SpecError(issues)
    return resolved, needed


@click.command("schema")
@output.option("json", "yaml")
def schema_command(kind: str) -> None:
    """Print the JSON schema of job.yaml.

    \b
    platform schema > jobs/job.schema.json
    and as the first line of job.yaml, for editors with a YAML language server:
    # yaml-language-server: $schema=../job.schema.json
    """  # noqa: D301  \b is click's mark
    output.emit(kind, schema.json_schema(), str)
