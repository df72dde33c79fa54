"""A run as a page for the browser, in one file: `platform report`; and several runs side by side: `platform compare`."""

from __future__ import annotations

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

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle
    from trialplane.pages.content import Recorded

_MANY = 12  # columns of settings in a table; the page has all


@click.command("report")
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=names.complete_run)
@names.target_options()
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="File to write. Default: RUN.html.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser. Without --out, in a temporary folder.")
@click.option("--price", type=click.FloatRange(0), help="Price of a GPU-hour, or of a slot-hour without GPUs.")
def report_command(
    runs: tuple[str, ...], target_name: TargetName, out: Path | None, opens: bool, price: float | None
) -> None:
    """Write RUN (default: the newest run) as a page for the browser, in one HTML file.

    The page opens offline, and shows the history, the parameters, the curves, the timeline, the failures, and a table to
    sort and filter. Several runs need the same objectives; the page also compares them.
    """
    from trialplane.pages import comparison, content, page

    handles = [names.find_run(run, target_name) for run in dict.fromkeys(runs or (None,))]
    file = _file(out or _default(handles[0].name, opens))
    recorded = [_read(handle) for handle in handles]
    comparison.check(recorded)
    around = [
        content.Surroundings(handle.target.place.flags, each.job.name in names.jobs(), price, time.time())
        for handle, each in zip(handles, recorded, strict=True)
    ]
    contents = [content.content(each, surroundings) for each, surroundings in zip(recorded, around, strict=True)]
    compared = comparison.comparison(recorded) if len(recorded) > 1 else None
    title = ", ".join(handle.name for handle in handles[:3]) + (" and others" if len(handles) > 3 else "")
    _write(file, page.page(title, contents, compared), opens)


@click.command("compare")
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, shell_complete=names.complete_run)
@names.target_options()
@click.option("--all", "shows_all", is_flag=True, help="Show all settings, not only those that differ.")
@click.option("--value", type=float, help="Value to reach. Default: the best value of the worst run.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page to this HTML file.")
@output.option("table", "json", "yaml", "csv")
def compare_command(
    runs: tuple[str, ...], target_name: TargetName, shows_all: bool, value: float | None, out: Path | None, kind: str
) -> None:
    """Compare runs: settings that differ, best values, and the time to reach a value.

    Runs that differ in their seed alone are repetitions. With at least two repetitions of each setting, the command also
    shows which differences may be noise (Welch's interval, 95 % together). The runs need the same objectives.
    """
    from trialplane.pages import comparison, page

    handles = [names.find_run(run, target_name) for run in dict.fromkeys(runs)]
    if len(handles) < 2:
        raise InputError(f"compare needs two different runs; `platform report {handles[0].name}` shows one")
    file = None if out is None else _file(out)
    compared = comparison.comparison([_read(handle) for handle in handles], value)
    shown = [*compared["differing"], *compared["same"]] if shows_all else compared["differing"]
    if kind == "csv":
        click.echo(output.as_csv(*_table(compared, shown, readable=False)))
    else:
        output.emit(kind, comparison.plain(compared), lambda: _text(compared, shown, everything=shows_all))
    if file is not None:
        _write(file, page.page("Comparison", [], compared), opens=False)


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
    """Return a line for each run; times in words, or in seconds."""
    seconds = output.duration if readable else (lambda value: value)
    header = ["run", "state", "ended", "trials", "best", "trial", "time", "to reach", "steps", *settings]
    lines = [
        [
            *(run[name] for name in ("run", "state", "ended", "trials", "best", "trial")),
            seconds(run["seconds"]),
            seconds(run["reached"]),
            run["steps"],
            *(run["params"].get(name) for name in settings),
        ]
        for run in compared["runs"]
    ]
    return header, lines


def _text(compared: dict[str, Any], settings: Sequence[str], *, everything: bool) -> str:
    """Return the table of runs, and statements about their differences."""
    relevant = settings if everything else [name for name in settings if not name.startswith("best.")]
    shown = relevant if everything else relevant[:_MANY]
    parts = [output.as_table(*_table(compared, shown, readable=True))]
    if len(relevant) > len(shown):
        parts.append(f"{len(relevant) - len(shown)} more settings differ; --all or --out shows them")
    objective, goal = compared["objective"], compared["goal"]
    if goal is not None:
        parts.append(f"best: {objective['direction']} {objective['metric']}; to reach: until {output.cell(goal)}")
    (first, *other_groups) = compared["groups"]
    if not other_groups and first["deviation"] is not None:
        mean, deviation = output.cell(first["mean"]), output.cell(first["deviation"])
        parts.append(f"they differ in their seed alone: mean {mean}, standard deviation {deviation}")
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
