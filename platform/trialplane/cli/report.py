"""`platform report`, which writes runs as a page for the browser, and `platform compare`, which compares runs or trials."""

from __future__ import annotations

import os
import tempfile
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trialplane.cli import names, output
from trialplane.client.target import TargetName
from trialplane.errors import InputError, RunDamaged
from trialplane.wire import env, escapes, paths

if TYPE_CHECKING:  # imports pydantic, which would delay `--help`
    from trialplane.client.run import RunHandle
    from trialplane.pages.content import RunRecord

_MAX_SETTINGS = 12  # columns of settings in a table on the terminal; the page has all settings


@click.command("report")
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=names.complete_run)
@names.target_options()
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="File to write. Default: RUN.html.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser. Without --out, in a temporary folder.")
@click.option("--mlflow", "stores", is_flag=True, help="Also store the page in MLflow, as report.html of the study's run.")
@click.option("--gpu-price", type=click.FloatRange(0), help="Price of a GPU-hour. Default: the one that the run has.")
@click.option("--cpu-price", type=click.FloatRange(0), help="Price of a core-hour. Default: the one that the run has.")
def report_command(
    runs: tuple[str, ...],
    target_name: TargetName,
    out: Path | None,
    opens: bool,
    stores: bool,
    gpu_price: float | None,
    cpu_price: float | None,
) -> None:
    """Write RUN (default: the newest run) as a page for the browser, in one HTML file.

    The page opens offline, and shows the history, the parameters, the curves, the timeline, the failures, and a table to
    sort and filter. Several runs need the same objectives; the page also compares them.

    With --mlflow, the page is stored in the MLflow of MLFLOW_TRACKING_URI, or in that of this machine.
    """
    from trialplane.pages import comparison, content, page

    handles = names.find_runs(runs, target_name)
    if stores and len(handles) > 1:
        raise click.UsageError("--mlflow takes one run, in whose MLflow run the page is stored")
    uri = mlflow_uri(handles[0]) if stores else ""
    if out is None:
        out = Path(tempfile.mkdtemp(prefix="trialplane-") if opens else "", f"{handles[0].name}.html")
    _check_file(out)
    run_records = [_read_record(handle) for handle in handles]
    comparison.check_objectives(run_records)
    contents = []
    for handle, record in zip(handles, run_records, strict=True):
        page_context = content.PageContext(
            flags=handle.target.name.flags,
            is_named=record.job.name in names.jobs(),
            prices=record.status.prices.with_overrides(gpu_price, cpu_price),
            now=time.time(),
        )
        contents.append(content.content(record, page_context))
    if uri.startswith(("http://", "https://")):  # a database has no pages to link to
        from trialplane.cli import ui  # imports an HTTP client, which would delay `--help`

        facts, _ = contents[0]
        facts["mlflow"] = ui.mlflow_address(uri, handles[0].name, run_records[0].job)
    run_comparison = comparison.run_comparison(run_records) if len(run_records) > 1 else None
    title = ", ".join(handle.name for handle in handles[:3]) + (" and others" if len(handles) > 3 else "")
    text = page.page(title, contents, run_comparison)
    _write(out, text, opens)
    if uri:
        handles[0].store_report(text, uri)
        output.note(f"stored it as report.html of {handles[0].name} in {escapes.mask_passwords(uri)}")


@click.command("compare")
@click.argument("runs", metavar="RUN[:TRIAL]...", nargs=-1, required=True, shell_complete=names.complete_run)
@names.target_options()
@click.option("--all", "shows_all", is_flag=True, help="Show all settings, not only those that differ.")
@click.option("--value", type=float, help="Value to reach. Default: the best value of the worst run.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page to this HTML file.")
@output.option("table", "json", "yaml", "csv")
def compare_command(
    runs: tuple[str, ...],
    target_name: TargetName,
    shows_all: bool,
    value: float | None,
    out: Path | None,
    output_format: str,
) -> None:
    """Compare runs, or trials as RUN:3 RUN:7: settings that differ, values, and the time to reach a value.

    Runs that differ in their seed alone are repetitions. With at least two repetitions of each setting, the command also
    shows which differences may be noise (Welch's interval, 95 % together). The runs need the same objectives.
    """
    from trialplane.pages import comparison, page

    if out is not None:
        _check_file(out)
    result = _compare(list(dict.fromkeys(runs)), target_name, value)  # without repetitions
    settings = [*result["differing"], *result["same"]] if shows_all else result["differing"]
    if output_format == "csv":
        click.echo(output.as_csv(*_comparison_table(result, settings, readable=False)))
    else:
        output.emit(
            output_format,
            comparison.as_json_values(result),
            lambda: _comparison_text(result, settings, everything=shows_all),
        )
    if out is not None:
        _write(out, page.page("Comparison", runs=[], comparison=result), opens=False)


def _compare(runs_or_trials: Sequence[str], target_name: TargetName, goal: float | None) -> dict[str, Any]:
    """Return the comparison of runs, which the user typed as RUN, or of trials, as RUN:TRIAL.

    Raises:
        InputError: There is only one run or trial, there are both runs and trials, or they cannot be compared.
    """
    from trialplane.pages import comparison

    runs_and_trials: list[tuple[str, str]] = []  # the trial is "" if a run is compared as a whole
    for text in runs_or_trials:
        run, colon, trial = text.partition(":")
        if colon and not trial.isdecimal():
            raise InputError(f"{text} is not a trial; write the run and the number of the trial, as in run:3")
        runs_and_trials.append((run, trial))
    is_of_trials = any(trial for _, trial in runs_and_trials)
    if is_of_trials and not all(trial for _, trial in runs_and_trials):
        raise InputError("compare takes runs, or trials as run:3, and not both in one comparison")
    handles = {run: names.find_run(run, target_name) for run, _ in runs_and_trials}
    if len(runs_and_trials) < 2:
        run, trial = runs_and_trials[0]
        if is_of_trials:
            raise InputError(f"compare needs two different trials; `platform logs {run} {trial}` shows one")
        raise InputError(f"compare needs two different runs; `platform report {run}` shows one")
    run_records = {run: _read_record(handle) for run, handle in handles.items()}
    if is_of_trials:
        return comparison.trial_comparison([(run_records[run], int(trial)) for run, trial in runs_and_trials], goal)
    return comparison.run_comparison(list(run_records.values()), goal)


def _read_record(handle: RunHandle) -> RunRecord:
    """Return the record of a run.

    Raises:
        InputError: Files of the run are damaged or missing.
    """
    from trialplane.pages.content import RunRecord

    try:
        job, status = handle.job, handle.status()
        attempts = handle.attempts()
        return RunRecord(job, status, attempts, handle.reports())
    except RunDamaged as error:
        raise InputError(f"{error}\nNothing was written") from error


def mlflow_uri(handle: RunHandle) -> str:
    """Return the tracking URI of an MLflow that can be written from this machine.

    Raises:
        InputError: The run is on a cluster, whose MLflow cannot be written from this machine.
    """
    uri = os.environ.get(env.MLFLOW_TRACKING_URI, "")
    if not uri and handle.target.remote:
        raise InputError(
            f"{handle.name} is on a cluster, which adds the page to its MLflow when the run ends; to add it to another "
            f"MLflow, set {env.MLFLOW_TRACKING_URI}"
        )
    return uri or paths.mlflow_uri(paths.home())


def _check_file(file: Path) -> None:
    """Raise InputError if the folder of a file to write is missing, or the file is a folder."""
    if not file.parent.is_dir():
        raise InputError(f"there is no folder {file.parent} for {file.name}; create it, or choose another --out")
    if file.is_dir():
        raise InputError(f"{file} is a folder; choose a file in it: --out {file / 'report.html'}")


def _write(file: Path, text: str, opens: bool) -> None:
    """Write a page, and open it in a browser if `opens` is set.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from error
    output.note(f"wrote {file} ({output.size(file.stat().st_size)})")
    if opens and not webbrowser.open(file.absolute().as_uri()):
        output.note("no browser was found; open the file in one")


def _comparison_table(
    comparison: dict[str, Any], settings: Sequence[str], *, readable: bool
) -> tuple[list[str], list[list[Any]]]:
    """Return the header and a line for each run or trial, with some of its settings.

    If `readable` is set, times are in words instead of seconds, and messages are left out.
    """
    time_headers = {"seconds": "time", "reached": "to reach"}  # by the name of the field
    field_names = comparison["fields"]
    if readable:
        field_names = [name for name in field_names if name != "message"]  # long, and also on the page
    header = [*(time_headers.get(name, name) for name in field_names), *settings]
    lines: list[list[Any]] = []
    for run_or_trial in comparison[comparison["of"]]:  # `of` is the key "runs" or "trials"
        cells = {name: run_or_trial[name] for name in field_names}
        if readable:
            cells |= {name: output.duration(cells[name]) for name in time_headers}
        lines.append([*cells.values(), *(run_or_trial["params"].get(name) for name in settings)])
    return header, lines


def _comparison_text(comparison: dict[str, Any], settings: Sequence[str], *, everything: bool) -> str:
    """Return the table of runs or trials, and statements about their differences.

    Unless `everything` is set, the table has only the first settings, without those of best trials.
    """
    hidden_count = 0
    if not everything:
        settings = [name for name in settings if not name.startswith("best.")]
        hidden_count = max(0, len(settings) - _MAX_SETTINGS)
        settings = settings[:_MAX_SETTINGS]
    parts = [output.as_table(*_comparison_table(comparison, settings, readable=True))]
    if hidden_count:
        parts.append(f"{hidden_count} more settings differ; --all or --out shows them")
    is_of_runs = comparison["of"] == "runs"
    objective, goal = comparison["objective"], comparison["goal"]
    if goal is not None:
        column = "best" if is_of_runs else "value"
        parts.append(f"{column}: {objective['direction']} {objective['metric']}; to reach: until {output.cell(goal)}")
    (first_group, *other_groups) = comparison["groups"]
    if not other_groups and first_group["deviation"] is not None:  # all of them are repetitions of one setting
        mean, deviation = output.cell(first_group["mean"]), output.cell(first_group["deviation"])
        similarity = "they differ in their seed alone" if is_of_runs else "they have the same parameters"
        parts.append(f"{similarity}: mean {mean}, standard deviation {deviation}")
    if comparison["pairs"]:
        parts += ["", _pairs_table(comparison)]
    return "\n".join(parts)


def _pairs_table(comparison: dict[str, Any]) -> str:
    """Return a table of the differences between groups of repetitions: each one (`a`), and the best (`b`)."""
    means = {group["name"]: group["mean"] for group in comparison["groups"]}
    lines = []
    for pair in comparison["pairs"]:
        interval = None if pair["low"] is None else f"{pair['low']:.3g} to {pair['high']:.3g}"
        lines.append([pair["a"], means[pair["a"]], pair["b"], pair["difference"], interval, pair["verdict"]])
    return output.as_table(["setting", "mean", "against", "difference", "interval", "verdict"], lines)
