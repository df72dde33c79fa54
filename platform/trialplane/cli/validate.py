"""`platform validate`: everything about a job that can be checked without running it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from trialplane.cli import kinds, names, output
from trialplane.errors import SpecError
from trialplane.spec import inputs, load
from trialplane.wire import cluster


@click.command("validate")
@names.job_argument
@click.option("--profile", metavar="NAME", help="A profile of job.yaml, for example max.")
@click.option("--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Any field: --set budget.time=2h. Repeatable.")
@output.option("table", "json", "yaml")
def command(job: str, profile: str | None, sets: tuple[str, ...], kind: str) -> None:
    """Check the job NAME, or the job in a folder: its fields, its profiles, its code and its data files.

    Says nothing but the job in short when all is well; json and yaml print the resolved job.
    """
    folder = load.find_job(job, Path.cwd())
    notes: list[str] = []
    resolved = load.load_job(folder, profile=profile, sets=sets, environ=os.environ, notes=notes)
    issues = inputs.check_inputs(resolved, folder, cluster.DATA)
    if issues:
        raise SpecError(issues)
    for note in notes:
        output.note(note)
    valid = kinds.of(resolved).valid(resolved)
    output.emit(kind, resolved.model_dump(mode="json"), lambda: f"{resolved.name} is valid: {valid}")
