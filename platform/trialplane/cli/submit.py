"""`platform submit hpo NAME`: a study of a job, as a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from trialplane.cli import foreground, names, output
from trialplane.client import places
from trialplane.client.places import Place
from trialplane.client.sdk import Platform
from trialplane.client.target import Submitted
from trialplane.errors import Complaint, SpecError
from trialplane.plan import render
from trialplane.spec import document
from trialplane.spec.load import Flag

_NOTES = {
    Submitted.RESUMED: "{0} was submitted before with the same spec and is not finished: it goes on",
    Submitted.RUNNING: "{0} was submitted before with the same spec and is running: it goes on",
    Submitted.FINISHED: "{0} was submitted before with the same spec and has succeeded: nothing was started. "
    "`platform results {0}` shows its trials, `platform resume {0} --trials N` asks for more",
}


@click.group("submit")
def command() -> None:
    """Start a run of a job."""


@command.command("hpo")
@names.job_argument
@names.place_options(submits=True)
@click.option("--trials", type=int, help="Trials that must end.")
@click.option("--parallel", type=int, help="Trials at the same time.")
@click.option("--profile", metavar="NAME", help="A profile of job.yaml, for example max.")
@click.option("--name", metavar="RUN", help="Name of the run; NAME and the time when left out.")
@click.option("--params", type=click.Path(path_type=Path), help="YAML file of parameters to fix; see `platform best`.")
@click.option("--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Any field: --set budget.time=2h. Repeatable.")
@click.option("--sampler", help="tpe, gp, cmaes, nsgaii, qmc, random, grid, …")
@click.option("--pruner", help="median, hyperband, percentile, none, …")
@click.option("--seed", type=int, help="Seed of the sampler and of the trials.")
@click.option("--timeout", metavar="TIME", help="Longest time of one trial: 30m, 2h.")
@click.option("--max-failed", type=int, help="Stop when more trials than this failed.")
@click.option("--detach", is_flag=True, help="Return at once; the run goes on in the background.")
@click.option("--dry-run", is_flag=True, help="Show what would be started, with the resolved job; start nothing.")
@output.option("table", "json", "yaml")
def hpo(job: str, place: Place, name: str | None, detach: bool, dry_run: bool, kind: str, **given: Any) -> int:
    """Search good hyper-parameters for the job NAME (in jobs/NAME) or the job in a folder.

    Without --local it runs on a cluster: where --context and --namespace, else TRIALPLANE_CONTEXT and
    TRIALPLANE_NAMESPACE, else the kubeconfig say. The other verbs then look there too.

    Stays in the foreground and shows the progress. With --local, Ctrl-C stops the run cleanly, a second one kills it;
    `platform resume` goes on with it in both cases. On a cluster Ctrl-C only ends to show it: the run goes on, and
    `platform pause` or `cancel` ends it. A run goes on when the terminal goes away.
    """
    platform = Platform(place.target())
    complaints, params = _params(given["params"])
    prepared = platform.prepare(
        job,
        name=name,
        profile=given["profile"],
        sets=given["sets"],
        overrides={
            "trials": given["trials"],
            "parallel": given["parallel"],
            "seed": given["seed"],
            "sampler": given["sampler"],
            "pruner": given["pruner"],
            "budget.timeout": Flag(given["timeout"], "--timeout"),
            "budget.max_failed": Flag(given["max_failed"], "--max-failed"),
        },
        params=params,
        command=["platform", *sys.argv[1:]],
        complaints=complaints,
    )
    for warning in prepared.warnings:
        output.note(f"note: {warning}")
    if dry_run:
        described = platform.target.describe(prepared.plan)
        if place.local or kind == "json":
            output.emit(kind, described, lambda: output.as_yaml(described).rstrip())
        else:  # as `kubectl apply --server-side -f -` takes it
            click.echo(render.as_yaml(described["items"]), nl=False)
        return 0
    with foreground.signals() as received:
        handle, became = platform.start(prepared.plan)
        places.remember(platform.target.place, handle.name)
        if became in _NOTES:
            output.note(_NOTES[became].format(handle.name))
        if became is Submitted.FINISHED:
            return handle.exit_code
        if became is Submitted.NEW:
            output.note(f"{handle.name} is starting")
        return foreground.detached(handle, kind) if detach else foreground.attend(handle, kind, received)


def _params(file: Path | None) -> tuple[list[Complaint], dict[str, Any]]:
    """The parameters in a file, or what is wrong with it."""
    if file is None:
        return [], {}
    try:
        return [], document.read(file, f"--params {file}").data
    except SpecError as error:
        return list(error.complaints), {}
