"""`platform refit`: the best trials of a study again with new seeds, their comparison, and a training with the best one."""

from __future__ import annotations

import dataclasses
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from trialplane.cli import foreground, names, output, report
from trialplane.client import cloning, exporting, target_choice
from trialplane.client.run import RunHandle
from trialplane.client.sdk import Platform
from trialplane.client.target import TargetName
from trialplane.errors import InputError
from trialplane.job.kinds import Job
from trialplane.plan import refit
from trialplane.wire import escapes, labels, records, rows
from trialplane.wire.exports import Registration
from trialplane.wire.records import TrialRow
from trialplane.wire.states import RunState

if TYPE_CHECKING:
    from trialplane.client.gateway import Gateway


@click.command("refit")
@names.run_argument
@names.target_options()
@click.option("--top", type=click.IntRange(1), default=3, show_default=True, help="Number of configurations.")
@click.option("--seeds", type=click.IntRange(2), default=5, show_default=True, help="Number of seeds of each.")
@click.option("--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Field to set: params.epochs=64. Repeatable.")
@click.option("--gpus", metavar="N", help="Number of GPUs of a trial on each node: short for --set resources.gpus=N.")
@click.option("--name", metavar="RUN", help="Name of the new run. Default: the job's name and the time.")
@click.option(
    "--register",
    "model",
    metavar="NAME",
    help="Name in MLflow's model registry to add the winner to, with seeds, interval and origin. A tie adds nothing.",
)
@click.option(
    "--train",
    "trains",
    is_flag=True,
    help="Start one training (kind: train) with the best configuration instead. If RUN is a refit, that is the one with "
    "the best mean.",
)
@click.option("--show", is_flag=True, help="RUN is a refit: compare what has ended, and start nothing.")
@click.option("--detach", is_flag=True, help="Return at once. The run continues in the background.")
@output.option("table", "json", "yaml")
def refit_command(
    run: str | None,
    target_name: TargetName,
    top: int,
    seeds: int,
    sets: tuple[str, ...],
    gpus: str | None,
    name: str | None,
    model: str | None,
    trains: bool,
    show: bool,
    detach: bool,
    output_format: str,
) -> int:
    """Train the best trials of the study RUN (default: the newest run) again with new seeds, and compare them.

    The result is a new study with the code of RUN: TOP configurations, each in SEEDS trials. The best value of a search is
    the luckiest of many, so only the new values count. The comparison gives each mean with its interval, and calls a tie a
    tie. All of its statements hold together in 95 % of refits.

    With --train, the result is a training with the parameters of the best trial, the code of RUN and a new seed:

    \b
    platform refit mine-1 --train --gpus 8 --set nodes=4 --set params.epochs=64
    """  # noqa: D301  \b is click's mark
    if trains:
        _check_options_of_training(click.get_current_context())
    handle = names.find_run(run, target_name)
    if model is not None:
        exporting.check_installed("mlflow", "sqlalchemy")
        if handle.target.remote:
            _gateway(handle).check_mlflow()  # at once, and not after the trials
    if show:
        _print_comparison_and_register(handle, output_format, model)
        return 0
    job = handle.job
    _check_study(handle.name, job, trains=trains)
    is_refit = job.description.startswith(cloning.REFIT)
    best_trials = cloning.best_trials(job, handle.rows(), top)
    if trains and is_refit:  # the best single trial of a refit may only be the luckiest one
        best_trials = _trials_of_best_mean(handle, job)
    if not best_trials:
        raise InputError(f"{handle.name} has no result yet; `platform results {handle.name}` shows its trials")
    if trains:
        new_fields = cloning.training_fields(handle.name, job, best_trials[0])
        note = f"trains with the parameters of trial {best_trials[0].trial} of {handle.name}"
    else:
        new_fields = cloning.refit_fields(handle.name, job, best_trials, seeds, keeps_files=model is not None)
        note = f"trains {len(best_trials)} configurations with {seeds} seeds each"
    platform = Platform(target_choice.target_of(target_name))
    if gpus is not None:
        sets = (*sets, f"resources.gpus={gpus}")
    with cloning.job_folder(platform.target, handle.name, new_fields) as folder:
        prepared = platform.prepare(folder, name=name, sets=sets, command=["platform", *sys.argv[1:]])
    for warning in prepared.warnings:
        output.note(f"note: {warning}")
    with foreground.signals() as stop_signals:
        new_run, _ = platform.start(prepared.plan)
        target_choice.remember(platform.target.name, new_run.name)
        output.note(f"{new_run.name} {note}")
        if detach and not trains:
            register = "" if model is None else f" --register {model}"
            output.note(f"`platform refit {new_run.name} --show{register}` compares them")
        if detach:
            return foreground.detach(new_run, output_format)
        if trains:
            return foreground.attend(new_run, output_format, stop_signals)
        exit_code = foreground.attend(new_run, "table", stop_signals)
    if new_run.status().state is RunState.SUCCEEDED:
        _print_comparison_and_register(new_run, output_format, model)
    return exit_code


def _check_options_of_training(context: click.Context) -> None:
    """Raise UsageError if the user has set an option that does not fit --train."""
    flags = {"top": "--top", "seeds": "--seeds", "model": "--register", "show": "--show"}
    for argument, flag in flags.items():
        if context.get_parameter_source(argument) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--train starts one training, which compares nothing; drop {flag}")


def _check_study(run: str, job: Job, *, trains: bool) -> None:
    """Raise InputError if trials of a run cannot be trained again; `trains` if one of them is to become a training."""
    if job.kind != "hpo" or len(job.objectives) != 1:
        raise InputError(f"a refit compares trials of a study with one objective, and {run} is not such a study")
    if job.search.population is not None:
        raise InputError(
            f"the members of {run} change their parameters, and a refit trains with fixed ones; "
            f"`platform best {run} --schedule` prints what to train again, with more trials for more seeds"
        )
    if trains and job.origin is not None:
        raise InputError(
            f"the trials of {run} start from a checkpoint of {job.origin}, and a training would not; drop --train"
        )


def _print_comparison_and_register(handle: RunHandle, output_format: str, model: str | None) -> None:
    """Print the comparison of a refit's trials that have ended, and register the model of the winner.

    Args:
        handle: The refit.
        output_format: Format of the comparison.
        model: Name in the registry of the run's MLflow; None to register nothing.

    Raises:
        InputError: The run is not a refit, or nothing can be registered, see `_check_complete`.
        TargetError: MLflow cannot be written.
    """
    job = handle.job
    trials, comparison = _comparison(handle, job)
    metric = job.objectives[0].metric
    output.emit(output_format, records.to_dict(comparison), lambda: _comparison_text(metric, comparison))
    if model is None:
        return
    _check_complete(handle, {trial: len(repetitions) for trial, repetitions in trials.items()})
    if (winner := comparison.winner) is None:
        raise InputError(
            "nothing was registered: no configuration is better than the others for certain. More --seeds may show a "
            "difference; --top 1 uses the best of the search"
        )
    registration = cloning.registration(handle, winner, trials[winner.trial], model)
    if handle.target.remote:
        version, location = _register_on_cluster(handle, registration), f"the MLflow of {handle.target.location()}"
    else:
        uri = report.mlflow_uri(handle)
        version, location = exporting.register(registration, uri), escapes.mask_passwords(uri)
    output.note(f"trial {winner.trial} is version {version} of {model} in {location}")


def _register_on_cluster(handle: RunHandle, registration: Registration) -> str:
    """Add a version to the model registry of a cluster's MLflow, with the user's rights; return its number.

    The client of MLflow connects to a port of this machine, with a secret as its token. `Pages` forwards its requests to the
    gateway; the page at which a browser would start does not matter.

    Raises:
        InputError: MLflow has no model of the trial.
        TargetError: The gateway does not answer, or MLflow refuses the version.
    """
    from trialplane.client.pages import Pages  # imports urllib3, which would delay `--help`

    gateway = _gateway(handle)
    # The ledger's submission, unlike that of the Run object, has the uid that identifies the records in MLflow.
    identity = labels.identity(handle.name, gateway.submission(handle.name) or {})
    registration = dataclasses.replace(registration, identity=identity)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Pages(source=gateway.mlflow, listener=listener, start=lambda: "/", report=output.note) as pages,
    ):
        return exporting.register(registration, pages.site, pages.secret)


def _comparison(handle: RunHandle, job: Job) -> tuple[dict[int, list[TrialRow]], refit.Comparison]:
    """Return a refit's complete trials, by the number of the search's trial that they repeat, and their comparison.

    Raises:
        InputError: The run is not a refit.
    """
    trials = cloning.refit_trials(handle.name, job, rows.newest_attempts(handle.attempts()))
    values = {trial: [row.values[0] for row in repetitions] for trial, repetitions in trials.items()}
    return trials, refit.compare(values, maximize=job.objectives[0].direction == "maximize")


def _trials_of_best_mean(handle: RunHandle, job: Job) -> list[TrialRow]:
    """Return the trials of a refit whose configuration has the best mean, tied or not; empty without a result."""
    trials, comparison = _comparison(handle, job)
    return trials[comparison.candidates[0].trial] if comparison.candidates else []


def _check_complete(handle: RunHandle, value_counts: Mapping[int, int]) -> None:
    """Check that a refit has ended and compares all of its configurations.

    Args:
        handle: The refit.
        value_counts: Trial of the search → number of values of its configuration.

    Raises:
        InputError: It has not ended, or a configuration has less than two values.
    """
    run = handle.name
    if not handle.status().state.is_ended:
        raise InputError(f"nothing was registered: {run} has not ended; `platform status {run}` shows it")
    if uncompared := [str(trial) for trial, count in value_counts.items() if count < 2]:
        raise InputError(
            f"nothing was registered: each configuration needs two values, and those of trials {', '.join(uncompared)} have "
            f"fewer; `platform results {run}` shows why, and `platform retry {run} --failed` tries again"
        )


def _comparison_text(metric: str, comparison: refit.Comparison) -> str:
    """Return a table of the configurations, and statements about their differences."""
    if not comparison.candidates:
        return "no trial has a result yet"
    lines: list[list[Any]] = []
    for candidate in comparison.candidates:
        mean, margin = output.cell(candidate.mean), f"± {candidate.margin:.3g}"
        verdict = "best" if candidate.is_best else "worse"
        lines.append([candidate.trial, mean, margin, len(candidate.values), verdict])
    text = output.as_table(["trial", metric, "95 %", "seeds", ""], lines)
    best = [str(candidate.trial) for candidate in comparison.candidates if candidate.is_best]  # several of a tie
    if comparison.winner is not None and len(comparison.candidates) > 1:
        text += f"\ntrial {comparison.winner.trial} is better than the others"
    elif len(best) > 1:
        text += f"\na tie: these seeds do not tell trials {', '.join(best)} apart"
    if comparison.difference is not None:
        text += f"\nwith this noise, a winner that is better by {comparison.difference:.3g} is found in about 80 % of refits"
    return text


def _gateway(handle: RunHandle) -> Gateway:
    """Return the client of the gateway of a run on a cluster."""
    from trialplane.client.kubernetes import KubernetesTarget  # imports urllib3, which would delay `--help`

    assert isinstance(handle.target, KubernetesTarget)
    return handle.target.gateway
