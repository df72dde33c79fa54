"""`platform status`: how a run stands."""

from __future__ import annotations

import click

from trialplane.cli import kinds, names, output, progress
from trialplane.cli.kinds.presenter import Presenter
from trialplane.client.target import Place
from trialplane.wire import records
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState


@click.command("status")
@names.run_argument
@names.place_options()
@click.option("--watch", "-w", is_flag=True, help="Show it until nobody works on the run any more.")
@output.option("table", "json", "yaml")
def command(run: str | None, place: Place, watch: bool, kind: str) -> None:
    """Show how RUN stands, or the newest run."""
    if watch and kind == "table":
        progress.show(names.find_run(run, place))
        return
    handle, status = names.find_status(run, place)
    show(handle.wait() if watch else status, kind)


def show(status: RunStatus, kind: str) -> None:
    """Prints a status."""
    output.emit(kind, records.to_dict(status), lambda: _text(status))


def _text(status: RunStatus) -> str:
    presenter = kinds.of(status)
    fields = output.as_fields(_fields(status, presenter))
    workers = presenter.workers(status)
    if workers is None or status.state is not RunState.RUNNING:  # else they are those of the last moment
        return fields
    return f"{fields}\n\n{output.as_table(*workers)}"


def _fields(status: RunStatus, presenter: Presenter) -> dict[str, object]:
    return {
        "run": status.run,
        "job": status.job,
        "state": status.state.value,
        "reason": status.reason or _waiting(status),
        **presenter.fields(status),
        "failures": ", ".join(f"{count} {name}" for name, count in status.failures.items()),
        "slots ready": f"{status.slots_ready}/{status.slots}" if status.slots_ready else "",
        "time left": output.duration(presenter.left(status)),
        "submitted": output.moment(status.created),
        "ended": output.moment(status.ended),
        "MLflow": status.recorder,
        "warning": "; ".join(status.warnings),
    }


def _waiting(status: RunStatus) -> str:
    """What a run does of which there is nothing else to say yet."""
    begins = status.state is RunState.RUNNING and not (status.ended_trials or status.running)
    return f"the slots are warming up ({status.slots_ready}/{status.slots} slots ready)" if begins else ""
