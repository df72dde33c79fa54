"""`platform status`: how a run stands."""

from __future__ import annotations

import click

from trialplane.cli import collecting, names, output, progress, training
from trialplane.client.places import Place
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
    fields = output.as_fields(_fields(status))
    if not status.workers or status.state is not RunState.RUNNING:  # else they are those of the last moment
        return fields
    return f"{fields}\n\n{output.as_table(*collecting.workers(status))}"


def _fields(status: RunStatus) -> dict[str, object]:
    how = {"train": _of_training, "collect": collecting.fields}.get(status.kind, _of_search)
    return {
        "run": status.run,
        "job": status.job,
        "state": status.state.value,
        "reason": status.reason or _waiting(status),
        **how(status),
        "failures": ", ".join(f"{count} {name}" for name, count in status.failures.items()),
        "slots ready": f"{status.slots_ready}/{status.slots}" if status.slots_ready else "",
        "time left": output.duration(training.left(status) if status.is_training else status.eta),
        "submitted": output.moment(status.created),
        "ended": output.moment(status.ended),
        "MLflow": status.recorder,
        "warning": "; ".join(status.warnings),
    }


def _of_search(status: RunStatus) -> dict[str, object]:
    return {
        "trials": progress.counts(status),
        "best": progress.best(status),
        "parameters": _parameters(status),
        "speed": "" if status.rate is None else f"{status.rate:.3g} trials/s",
    }


def _of_training(status: RunStatus) -> dict[str, object]:
    said = {"training": training.line(status), "also": training.details(status), "result": training.result(status)}
    return {**said, "parameters": _parameters(status)}


def _parameters(status: RunStatus) -> str:
    """Those of the best trial, or of a training."""
    return "" if status.best is None else ", ".join(f"{k}={output.cell(v)}" for k, v in status.best.params.items())


def _waiting(status: RunStatus) -> str:
    """What a run does of which there is nothing else to say yet."""
    begins = status.state is RunState.RUNNING and not (status.ended_trials or status.running)
    return f"the slots are warming up ({status.slots_ready}/{status.slots} slots ready)" if begins else ""
