"""`platform best`: the best parameters, as YAML that `platform submit --params` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trialplane.cli import kinds, names, output
from trialplane.client.target import Place
from trialplane.errors import InputError
from trialplane.wire import records
from trialplane.wire.records import TrialRow

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle


@click.command("best")
@names.run_argument
@names.place_options()
@click.option("--trial", type=click.IntRange(0), help="The parameters of this trial instead.")
@output.option("yaml", "json")
def command(run: str | None, place: Place, trial: int | None, kind: str) -> None:
    """Print the best parameters of RUN, or of the newest run.

    With several objectives these are the trials that no other beats in all of them; choose one with --trial.
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
        output.note(f"{len(found)} trials are not beaten; `platform best {handle.name} --trial N` prints one for --params")


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
