"""`platform init`: a new job that runs in seconds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from trialplane.cli import output, starters
from trialplane.errors import InputError
from trialplane.spec import load, schema
from trialplane.spec.jobs import base

_SCHEMA = "job.schema.json"


@click.command("init")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(starters.FILES)),
    default="hpo",
    show_default=True,
    help="hpo: a search, which needs no library. train: one training of many ranks, with torch. collect: producers and a "
    "consumer, with numpy.",
)
def command(name: str, kind: str) -> None:
    """Make jobs/NAME with a job.yaml and a train.py that run as they are, and jobs/job.schema.json for editors."""
    if not re.fullmatch(base.NAME, name):
        raise InputError(f"{name!r} is no name for a job: use lower-case letters, digits, - and _, 63 at most")
    here = Path.cwd()
    jobs = next((above / load.FOLDER for above in (here, *here.parents) if (above / load.FOLDER).is_dir()), None)
    folder = (jobs or here / load.FOLDER) / name
    if folder.exists():
        raise InputError(f"{folder} is there already; nothing was changed, choose another name")
    try:
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
    output.note(f"`platform submit {kind} {name} --local{ranks}` runs it")
