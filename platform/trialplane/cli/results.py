"""The results of a run: `platform results`, `best`, and `export` for Optuna and MLflow.

A segment is the part of a trial's training between two pauses. A trial that is never paused has one segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from trialplane.cli import kinds, names, output
from trialplane.cli.kinds.presenter import Table
from trialplane.client.target import TargetName
from trialplane.errors import InputError
from trialplane.pages import lineage as lineages
from trialplane.wire import escapes, records, rows
from trialplane.wire.records import ReportRow, TrialRow

if TYPE_CHECKING:  # imports pydantic, which would delay `--help`
    from trialplane.client.run import RunHandle


@click.command("results")
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=names.complete_run)
@names.target_options()
@click.option("--limit", type=click.IntRange(1), help="Maximum number of rows per run.")
@click.option("--all-attempts", is_flag=True, help="Include retried attempts, in the order they started.")
@click.option("--curves", is_flag=True, help="Show the reports of all attempts instead, those of running ones included.")
@click.option(
    "--lineage",
    is_flag=True,
    help="Show each segment of the trials instead, with the trial and attempt whose checkpoint it continues.",
)
@output.option("table", "json", "yaml", "csv")
def results_command(
    runs: tuple[str, ...],
    target_name: TargetName,
    limit: int | None,
    all_attempts: bool,
    curves: bool,
    lineage: bool,
    output_format: str,
) -> None:
    """Show the trials of RUN (default: the newest run).

    Those of a study are shown best first, iterations and attempts in order. For a training, this shows its metrics. For a
    collection, it shows counts and the metrics that the learner returned. Several runs are shown in one table. CSV has more
    columns: all metrics and returned values, times and logs.
    """
    handles = names.find_runs(runs, target_name)
    if curves:
        _show_curves(handles, limit, output_format)
        return
    if lineage:
        _show_lineage(handles, limit, output_format)
        return
    trials_by_run = [(handle, _trials(handle, limit, all_attempts)) for handle in handles]
    has_several_runs = len(handles) > 1
    if output_format in ("json", "yaml"):
        output.emit(output_format, _json_rows([(handle.name, trials) for handle, trials in trials_by_run]), str)
        return
    if output_format == "csv":  # for programs, which need all columns; a table on the screen has those that a user compares
        csv_tables = [(handle.name, rows.table(trials)) for handle, trials in trials_by_run]
        click.echo(output.as_csv(*_join_tables(csv_tables, has_several_runs)))
        return
    tables: list[tuple[str, Table]] = []
    for handle, trials in trials_by_run:
        presenter = kinds.of(handle.job)
        if trials:
            tables.append((handle.name, presenter.results(handle.job, trials)))
        else:
            output.note(f"{handle.name} has started no {presenter.noun} yet; `platform status {handle.name}`")
    if tables:
        click.echo(output.as_table(*_join_tables(tables, has_several_runs)))


def _show_curves(handles: Sequence[RunHandle], limit: int | None, output_format: str) -> None:
    """Print reports. A table and CSV have a line for each metric, JSON and YAML an item for each report."""
    reports_by_run = [(handle.name, handle.reports(limit=limit)) for handle in handles]
    if output_format in ("json", "yaml"):
        output.emit(output_format, _json_rows(reports_by_run), str)
        return
    tables = [(run, rows.curve_table(reports)) for run, reports in reports_by_run]
    header, lines = _join_tables(tables, len(reports_by_run) > 1)
    if output_format == "csv":
        click.echo(output.as_csv(header, lines))
        return
    for run, reports in reports_by_run:
        if not reports:
            output.note(f"{run} has no reports yet; `platform status {run}`")
    if lines:
        readable_lines = [[*other_cells, output.moment(time)] for *other_cells, time in lines]
        click.echo(output.as_table(header, readable_lines))


def _show_lineage(handles: Sequence[RunHandle], limit: int | None, output_format: str) -> None:
    """Print the segments of runs, in the order they started."""
    segments_by_run = [(handle, lineages.segments(handle.attempts())[:limit]) for handle in handles]
    if output_format in ("json", "yaml"):
        output.emit(output_format, _json_rows([(handle.name, segments) for handle, segments in segments_by_run]), str)
        return
    tables = [(handle.name, _lineage_table(handle, segments)) for handle, segments in segments_by_run if segments]
    if tables:
        as_text = output.as_csv if output_format == "csv" else output.as_table
        click.echo(as_text(*_join_tables(tables, len(handles) > 1)))


def _lineage_table(handle: RunHandle, segments: Sequence[TrialRow]) -> Table:
    """Return the table of trials for segments, with two more columns: what each continues, and from which step."""
    (trial_column, *other_columns), lines = kinds.of(handle.job).results(handle.job, segments)
    by_number = {row.number: row for row in handle.attempts()}
    lineage_lines: list[list[Any]] = []
    for row, (trial, *other_cells) in zip(segments, lines, strict=True):
        parent = None if row.parent is None else by_number.get(row.parent)  # whose checkpoint the segment continues
        continued_segment = None if parent is None else f"{parent.trial}, attempt {parent.attempt}"
        steps_before = row.done
        lineage_lines.append([trial, continued_segment, steps_before, *other_cells])
    return [trial_column, "continues", "from step", *other_columns], lineage_lines


def _trials(handle: RunHandle, limit: int | None, all_attempts: bool) -> list[TrialRow]:
    """Return at most `limit` trials of a run in the order of its kind, or attempts in the order of their start."""
    trials = handle.attempts() if all_attempts else kinds.of(handle.job).in_order(handle.rows())
    return trials[:limit]


def _json_rows(rows_by_run: Sequence[tuple[str, Sequence[TrialRow | ReportRow]]]) -> list[dict[str, Any]]:
    """Return rows of runs as plain values. If there are several runs, each row has the name of its run."""
    has_several_runs = len(rows_by_run) > 1
    return [
        {**({"run": run} if has_several_runs else {}), **records.to_dict(row)}
        for run, own_rows in rows_by_run
        for row in own_rows
    ]


def _join_tables(tables: Sequence[tuple[str, Table]], has_several_runs: bool) -> Table:
    """Return the tables of runs as one table. If there are several runs, its first column has their names."""
    if not has_several_runs:
        return tables[0][1]
    header = list(dict.fromkeys(name for _, (column_names, _) in tables for name in column_names))
    lines: list[list[Any]] = []
    for run, (column_names, rows_of_run) in tables:
        for row in rows_of_run:
            cells = dict(zip(column_names, row, strict=True))
            lines.append([run, *(cells.get(name) for name in header)])  # None in a column that the run does not have
    return ["run", *header], lines


@click.command("best")
@names.run_argument
@names.target_options()
@click.option("--trial", type=click.IntRange(0), help="Number of the trial whose parameters to print. Default: the best.")
@click.option(
    "--schedule", is_flag=True, help="Print the parameters by step: those of the trials whose states it has taken over, too."
)
@output.option("yaml", "json")
def best_command(run: str | None, target_name: TargetName, trial: int | None, schedule: bool, output_format: str) -> None:
    """Print the best parameters of RUN (default: the newest run).

    With several objectives, this prints the parameters of all Pareto-optimal trials. Select one with --trial.
    """
    handle = names.find_run(run, target_name)
    reason = kinds.of(handle.job).why_no_best(handle.name)
    if reason:
        raise InputError(reason)
    trials = _best_trials(handle, trial)
    if schedule:
        _print_schedule(handle, trials, output_format)
        return
    if output_format == "json":
        output.emit(output_format, [records.to_dict(row) for row in trials], str)
        return
    documents = [f"{_title_comment(handle, row)}\n{output.as_yaml(dict(row.params))}" for row in trials]
    click.echo("---\n".join(documents), nl=False)
    if len(trials) > 1:
        output.note(
            f"{len(trials)} trials are Pareto-optimal; `platform best {handle.name} --trial N` prints one for --params"
        )


def _print_schedule(handle: RunHandle, trials: Sequence[TrialRow], output_format: str) -> None:
    """Print, for each trial, the steps at which its parameters changed, and the new parameters.

    The first steps may be those of another trial, whose state it took over.
    """
    attempts = handle.attempts()

    def schedule(row: TrialRow) -> list[dict[str, Any]]:
        """Return an item for each step from which on other parameters hold; `restart` if the optimizer begins anew."""
        return [
            {"step": segment.done, "trial": segment.trial, "params": dict(segment.params)}
            | ({"restart": True} if segment.restart else {})
            for segment in lineages.schedule(attempts, row)
        ]

    if output_format == "json":
        output.emit(output_format, [{"trial": row.trial, "schedule": schedule(row)} for row in trials], str)
        return
    documents = [f"{_title_comment(handle, row)}\n{output.as_yaml(schedule(row))}" for row in trials]
    click.echo("---\n".join(documents), nl=False)


def _best_trials(handle: RunHandle, trial: int | None) -> list[TrialRow]:
    """Return one trial, or the best ones for None.

    Raises:
        InputError: There is no such trial, or no result.
    """
    if trial is None:
        trials = handle.front()
        missing = "no result yet" if handle.is_active() else "no result"
    else:
        trials = [row for row in handle.rows() if row.trial == trial]
        missing = f"started no trial {trial}"
    if not trials:
        raise InputError(f"{handle.name} has {missing}; `platform results {handle.name}` shows its trials")
    return trials


def _title_comment(handle: RunHandle, row: TrialRow) -> str:
    """Return a YAML comment with the values of a trial, such as `# demo-1, trial 7: loss 0.12`."""
    metrics = [objective.metric for objective in handle.job.objectives]
    values = ", ".join(f"{name} {output.cell(row.metrics.get(name))}" for name in metrics)
    return f"# {handle.name}, trial {row.trial}: {values}"


@click.command("export")
@click.argument("run", shell_complete=names.complete_run)
@click.argument("url")
@names.target_options()
def export_command(run: str, url: str, target_name: TargetName) -> None:
    """Export RUN as an Optuna study to the database at URL, for example sqlite:///study.db, or to MLflow at mlflow:URI.

    Each attempt becomes a trial, with its parameters, values, reports, constraints and times. Fixed parameters are user
    attributes, as `params.epochs`. An existing study with the same name is not changed. Open the export with
    `optuna.load_study(study_name=RUN, storage=URL)`.

    With mlflow:URI, for example mlflow:sqlite:///mlflow.db or mlflow:http://localhost:5000, that MLflow is brought up to
    date with the run's records: once more changes nothing. Files such as logs and arrays are not exported.
    """
    handle = names.find_run(run, target_name)
    handle.export(url)
    if url.startswith("mlflow:"):
        output.note(f"exported {handle.name} to {escapes.mask_passwords(url.removeprefix('mlflow:'))}")
        return
    output.note(f"exported as the study {handle.name}; open it with optuna.load_study or optuna-dashboard")
