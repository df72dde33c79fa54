"""`platform validate`: everything about a job that can be checked without running it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from trialplane import errors
from trialplane.cli import names, output
from trialplane.errors import SpecError
from trialplane.spec import inputs, jobs, load
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
    complaints = inputs.check_inputs(resolved, folder, cluster.DATA)
    if complaints:
        raise SpecError(complaints)
    for note in notes:
        output.note(note)
    trials = errors.counted(resolved.trials, "trial")
    if isinstance(resolved, jobs.Training):
        output.emit(kind, resolved.model_dump(mode="json"), lambda: _of_training(resolved))
        return
    if isinstance(resolved, jobs.Collection):
        output.emit(kind, resolved.model_dump(mode="json"), lambda: _of_collection(resolved))
        return
    search = resolved.search
    searched = search.function or errors.counted(len(search.parameters), "parameter")
    goals = ", ".join(f"{objective.direction} {objective.metric}" for objective in resolved.objectives)
    watched = "" if resolved.pruner.name == "none" else f" by {search.watched(resolved.objectives[0]).metric}"
    output.emit(
        kind,
        resolved.model_dump(mode="json"),
        lambda: (
            f"{resolved.name} is valid: {trials}, {resolved.parallel} at a time, {searched}, {goals}, "
            f"sampler {resolved.sampler.name}, pruner {resolved.pruner.name}{watched}"
        ),
    )


def _of_training(job: jobs.Training) -> str:
    goals = ", ".join(f"{objective.direction} {objective.metric}" for objective in job.objectives)
    gpus = f"with {errors.counted(job.resources.gpus, 'GPU')}{' each' if job.nodes > 1 else ''}"
    nodes = f"{errors.counted(job.nodes, 'node')} {gpus if job.resources.gpus else 'without GPUs'}"
    return f"{job.name} is valid: {errors.counted(job.world_size, 'rank')} on {nodes}, {goals}"


def _of_collection(job: jobs.Collection) -> str:
    collect = job.collect
    gpus = f", each with {errors.counted(job.resources.gpus, 'GPU')}" if job.resources.gpus else ""
    into = collect.learner.entrypoint if collect.write is None else f"files ({collect.write.format})"
    work = f"{errors.counted(collect.iterations, 'iteration')} of {errors.counted(collect.units, 'unit')}"
    return (
        f"{job.name} is valid: {work}, "
        f"{errors.counted(collect.workers, 'worker')}{gpus}, results to {into}, at most {collect.in_flight} on their way"
    )
