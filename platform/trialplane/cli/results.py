"""The results of a run: `platform results`, `best`, and `export` for Optuna."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trialplane.cli import kinds, names, output
from trialplane.client.target import Place
from trialplane.errors import InputError
from trialplane.wire import records
from trialplane.wire.records import TrialRow

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle


@click.command("results")
@names.run_argument
@names.place_options()
@click.option("--limit", type=click.IntRange(1), help="Show at most this many.")
@click.option("--all-attempts", is_flag=True, help="Include attempts that were retried, in the order they started.")
@output.option("table", "json", "yaml", "csv")
def results_command(run: str | None, place: Place, limit: int | None, all_attempts: bool, kind: str) -> None:
    """Show the trials of RUN, or of the newest run, the best first; of a training, its metrics.

    Of a collection it shows the iterations in order, with the platform's counts and the metrics the learner returned.
    """
    handle = names.find_run(run, place)
    job = handle.job
    presenter = kinds.of(job)
    found = (handle.attempts() if all_attempts else presenter.ordered(handle.rows()))[:limit]
    if not found and kind == "table":
        output.note(f"{handle.name} has started no {presenter.noun} yet; `platform status {handle.name}`")
        return
    if kind == "csv":
        click.echo(output.as_csv(*_full(found)))
        return
    output.emit(kind, [records.to_dict(row) for row in found], lambda: output.as_table(*presenter.results(job, found)))


def _as_text(value: Any) -> Any:
    """A value in one cell: strings and numbers as they are, lists and mappings as JSON."""
    return json.dumps(value) if isinstance(value, (list, tuple, Mapping)) else value


def _full(found: list[TrialRow]) -> tuple[list[str], list[list[Any]]]:
    """Every field of every row; each parameter, metric and other returned value has its own column."""
    params = list(dict.fromkeys(name for row in found for name in row.params))
    metrics = list(dict.fromkeys(name for row in found for name in row.metrics))
    steps = list(dict.fromkeys(name for row in found for name in row.best_steps))
    returned = list(dict.fromkeys(name for row in found for name in row.returned))
    plain = ("trial", "attempt", "number", "state", "feasible", "failure", "message", "seconds", "node", "log")
    lines = [
        [
            *(getattr(row, name) for name in plain),
            *(row.metrics.get(name) for name in metrics),
            *(row.best_steps.get(name) for name in steps),
            *(_as_text(row.params.get(name)) for name in params),
            *(_as_text(row.returned.get(name)) for name in returned),
        ]
        for row in found
    ]
    names = [("metrics", metrics), ("best_steps", steps), ("params", params), ("returned", returned)]
    return [*plain, *(f"{kind}.{name}" for kind, every in names for name in every)], lines


@click.command("best")
@names.run_argument
@names.place_options()
@click.option("--trial", type=click.IntRange(0), help="Print the parameters of this trial instead.")
@output.option("yaml", "json")
def best_command(run: str | None, place: Place, trial: int | None, kind: str) -> None:
    """Print the best parameters of RUN, or of the newest run.

    With several objectives these are the Pareto-optimal trials; choose one with --trial.
    """
    handle = names.find_run(run, place)
    reason = kinds.of(handle.job).why_no_best(handle.name)
    if reason:
        raise InputError(reason)
    found = _chosen(handle, trial)
    if kind == "json":
        output.emit(kind, [records.to_dict(row) for row in found], str)
        return
    objectives = [objective.metric for objective in handle.job.objectives]
    made = [_document(handle.name, objectives, row) for row in found]
    click.echo("---\n".join(made), nl=False)
    if len(found) > 1:
        output.note(
            f"{len(found)} trials are Pareto-optimal; `platform best {handle.name} --trial N` prints one for --params"
        )


def _chosen(handle: RunHandle, trial: int | None) -> list[TrialRow]:
    if trial is None:
        found = handle.best()
        why = "has no result yet" if handle.is_active() else "has no result"
        message = f"{handle.name} {why}; `platform results {handle.name}` shows its trials"
    else:
        found = [row for row in handle.rows() if row.trial == trial]
        message = f"{handle.name} has started no trial {trial}; `platform results {handle.name}` shows its trials"
    if not found:
        raise InputError(message)
    return found


def _document(run: str, objectives: list[str], row: TrialRow) -> str:
    values = ", ".join(f"{name} {output.cell(row.metrics.get(name))}" for name in objectives)
    return f"# {run}, trial {row.trial}: {values}\n{output.as_yaml(dict(row.params))}"


@click.command("export")
@click.argument("run", shell_complete=names.complete_run)
@click.argument("url")
@names.place_options()
def export_command(run: str, url: str, place: Place) -> None:
    """Write RUN as an Optuna study into the database at URL, for example sqlite:///study.db.

    Each attempt becomes a trial, with its parameters, values, reports, constraints and times. An existing study of that name
    is not changed. `optuna.load_study(study_name=RUN, storage=URL)` opens the export.
    """
    handle = names.find_run(run, place)
    handle.export(url)
    output.note(f"exported as the study {handle.name}; open it with optuna.load_study or optuna-dashboard")
