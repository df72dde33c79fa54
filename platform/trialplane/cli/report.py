"""A run as a page for the browser, in one file: `platform report`; and several runs side by side: `platform compare`."""

from __future__ import annotations

import os
import re
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

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle
    from trialplane.pages.content import Recorded

_MANY = 12  # columns of settings in a table; the page has all


@click.command("report")
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=names.complete_run)
@names.target_options()
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="File to write. Default: RUN.html.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser. Without --out, in a temporary folder.")
@click.option("--mlflow", "stores", is_flag=True, help="Also store the page in MLflow, as report.html of the study's run.")
@click.option("--price", type=click.FloatRange(0), help="Price of a GPU-hour, or of a slot-hour without GPUs.")
def report_command(
    runs: tuple[str, ...], target_name: TargetName, out: Path | None, opens: bool, stores: bool, price: float | None
) -> None:
    """Write RUN (default: the newest run) as a page for the browser, in one HTML file.

    The page opens offline, and shows the history, the parameters, the curves, the timeline, the failures, and a table to
    sort and filter. Several runs need the same objectives; the page also compares them.

    With --mlflow, the page is stored in the MLflow of MLFLOW_TRACKING_URI, or in that of this machine.
    """
    from trialplane.pages import comparison, content, page

    handles = [names.find_run(run, target_name) for run in dict.fromkeys(runs or (None,))]
    if stores and len(handles) > 1:
        raise click.UsageError("--mlflow takes one run, in whose MLflow run the page is stored")
    uri = _mlflow(handles[0]) if stores else ""
    file = _file(out or _default(handles[0].name, opens))
    recorded = [_read(handle) for handle in handles]
    comparison.check(recorded)
    around = [
        content.Surroundings(handle.target.place.flags, each.job.name in names.jobs(), price, time.time())
        for handle, each in zip(handles, recorded, strict=True)
    ]
    contents = [content.content(each, surroundings) for each, surroundings in zip(recorded, around, strict=True)]
    if uri.startswith(("http://", "https://")):
        contents[0][0]["mlflow"] = re.sub(r"(?<=://)[^/?#]*@", "", uri)  # without a login
    compared = comparison.comparison(recorded) if len(recorded) > 1 else None
    title = ", ".join(handle.name for handle in handles[:3]) + (" and others" if len(handles) > 3 else "")
    text = page.page(title, contents, compared)
    _write(file, text, opens)
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
    runs: tuple[str, ...], target_name: TargetName, shows_all: bool, value: float | None, out: Path | None, kind: str
) -> None:
    """Compare runs, or trials as RUN:3 RUN:7: settings that differ, values, and the time to reach a value.

    Runs that differ in their seed alone are repetitions. With at least two repetitions of each setting, the command also
    shows which differences may be noise (Welch's interval, 95 % together). The runs need the same objectives.
    """
    from trialplane.pages import comparison, page

    file = None if out is None else _file(out)
    compared = _compared(list(dict.fromkeys(runs)), target_name, value)
    shown = [*compared["differing"], *compared["same"]] if shows_all else compared["differing"]
    if kind == "csv":
        click.echo(output.as_csv(*_table(compared, shown, readable=False)))
    else:
        output.emit(kind, comparison.plain(compared), lambda: _text(compared, shown, everything=shows_all))
    if file is not None:
        _write(file, page.page("Comparison", [], compared), opens=False)


def _compared(texts: Sequence[str], target_name: TargetName, value: float | None) -> dict[str, Any]:
    """Return the comparison of runs, or of trials as RUN:TRIAL.

    Raises:
        InputError: fewer than two, runs beside trials, or runs that cannot be compared.
    """
    from trialplane.pages import comparison

    chosen = [text.rpartition(":") if ":" in text else (text, "", "") for text in texts]
    wrong = [text for text, (_, colon, trial) in zip(texts, chosen, strict=True) if colon and not trial.isdecimal()]
    if wrong:
        raise InputError(f"{wrong[0]} is no trial; write the run and the number of the trial, as in run:3")
    of_trials = [bool(colon) for _, colon, _ in chosen]
    if any(of_trials) and not all(of_trials):
        raise InputError("compare takes runs, or trials as run:3, and not both in one comparison")
    handles = {run: names.find_run(run, target_name) for run, _, _ in chosen}
    if len(texts) < 2:
        run = handles[chosen[0][0]].name
        if of_trials[0]:
            raise InputError(f"compare needs two different trials; `platform logs {run} {chosen[0][2]}` shows one")
        raise InputError(f"compare needs two different runs; `platform report {run}` shows one")
    recorded = {run: _read(handle) for run, handle in handles.items()}
    if of_trials[0]:
        return comparison.of_trials([(recorded[run], int(trial)) for run, _, trial in chosen], value)
    return comparison.comparison(list(recorded.values()), value)


def _read(handle: RunHandle) -> Recorded:
    """Read the records of a run.

    Raises:
        InputError: files of the run are damaged or missing.
    """
    from trialplane.pages.content import Recorded

    try:
        job, status = handle.job, handle.status()
        attempts = handle.attempts()
        return Recorded(job, status, attempts, handle.reports())
    except RunDamaged as error:
        raise InputError(f"{error}\nNothing was written") from error


def _mlflow(handle: RunHandle) -> str:
    """Return the tracking URI of the MLflow that gets the page.

    Raises:
        InputError: the run is on a cluster, whose MLflow cannot be written from here.
    """
    uri = os.environ.get(env.MLFLOW_TRACKING_URI, "")
    if not uri and handle.target.remote:
        raise InputError(
            f"{handle.name} is on a cluster, whose MLflow only its runs write; set {env.MLFLOW_TRACKING_URI} to another one"
        )
    return uri or paths.mlflow_uri(paths.home())


def _default(run: str, opens: bool) -> Path:
    return Path(tempfile.mkdtemp(prefix="trialplane-"), f"{run}.html") if opens else Path(f"{run}.html")


def _file(file: Path) -> Path:
    """Return a file that can be written.

    Raises:
        InputError: its folder is missing, or it is a folder itself.
    """
    if not file.parent.is_dir():
        raise InputError(f"there is no folder {file.parent} for {file.name}; create it, or choose another --out")
    if file.is_dir():
        raise InputError(f"{file} is a folder; choose a file in it: --out {file / 'report.html'}")
    return file


def _write(file: Path, text: str, opens: bool) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from error
    output.note(f"wrote {file} ({output.size(file.stat().st_size)})")
    if opens and not webbrowser.open(file.absolute().as_uri()):
        output.note("no browser was found; open the file in one")


def _table(compared: dict[str, Any], settings: Sequence[str], *, readable: bool) -> tuple[list[str], list[list[Any]]]:
    """Return a line for each run or trial; times in words, or in seconds."""
    timed = {"seconds": "time", "reached": "to reach"}
    fields = compared["fields"]
    if readable:
        fields = [name for name in fields if name != "message"]  # of failures: long, and on the page

    def cell(name: str, value: Any) -> Any:
        return output.duration(value) if readable and name in timed else value

    header = [*(timed.get(name, name) for name in fields), *settings]
    lines = [
        [*(cell(name, each[name]) for name in fields), *(each["params"].get(name) for name in settings)]
        for each in compared[compared["of"]]
    ]
    return header, lines


def _text(compared: dict[str, Any], settings: Sequence[str], *, everything: bool) -> str:
    """Return the table of runs or trials, and statements about their differences."""
    relevant = settings if everything else [name for name in settings if not name.startswith("best.")]
    shown = relevant if everything else relevant[:_MANY]
    parts = [output.as_table(*_table(compared, shown, readable=True))]
    if len(relevant) > len(shown):
        parts.append(f"{len(relevant) - len(shown)} more settings differ; --all or --out shows them")
    objective, goal = compared["objective"], compared["goal"]
    if goal is not None:
        value = "best" if compared["of"] == "runs" else "value"
        parts.append(f"{value}: {objective['direction']} {objective['metric']}; to reach: until {output.cell(goal)}")
    (first, *other_groups) = compared["groups"]
    if not other_groups and first["deviation"] is not None:
        mean, deviation = output.cell(first["mean"]), output.cell(first["deviation"])
        alike = "they differ in their seed alone" if compared["of"] == "runs" else "they have the same parameters"
        parts.append(f"{alike}: mean {mean}, standard deviation {deviation}")
    if compared["pairs"]:
        header = ["setting", "mean", "against", "difference", "interval", "verdict"]
        means = {group["name"]: group["mean"] for group in compared["groups"]}
        lines = [
            [
                pair["a"],
                means[pair["a"]],
                pair["b"],
                pair["difference"],
                None if pair["low"] is None else f"{pair['low']:.3g} to {pair['high']:.3g}",
                pair["verdict"],
            ]
            for pair in compared["pairs"]
        ]
        parts += ["", output.as_table(header, lines)]
    return "\n".join(parts)
