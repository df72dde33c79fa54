"""The state of runs: `platform status` for one, `platform list` for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any

import click

from trialplane.cli import kinds, names, output, progress
from trialplane.cli.kinds.presenter import Presenter, slots_text
from trialplane.client import target as targets
from trialplane.client import target_choice
from trialplane.client.target import TargetName
from trialplane.errors import RunDamaged, RunNotFound
from trialplane.wire import records
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

if TYPE_CHECKING:  # imports pydantic, which would delay `--help`
    from trialplane.client.run import RunHandle

_DIGEST_LENGTH = len("sha256:") + 12  # characters of a digest that are shown; `--output json` has all
_MAX_REQUESTS = 8  # at the same time, for `list` on a cluster
_DAMAGED = "DAMAGED"  # the state of a run whose files cannot be read


@click.command("status")
@names.run_argument
@names.target_options()
@click.option("--watch", "-w", is_flag=True, help="Update the display until the run is no longer active.")
@output.option("table", "json", "yaml")
def status_command(run: str | None, target_name: TargetName, watch: bool, output_format: str) -> None:
    """Show the state of RUN (default: the newest run)."""
    if watch and output_format == "table":
        progress.show(names.find_run(run, target_name))
        return
    handle, status = names.find_status(run, target_name)
    show(handle.wait() if watch else status, output_format)


def show(status: RunStatus, output_format: str) -> None:
    """Print a status in an output format."""
    output.emit(output_format, records.to_dict(status), lambda: _status_text(status))


def _status_text(status: RunStatus) -> str:
    """Return a status as text: a line for each field, and a table of the workers of a running collection."""
    presenter = kinds.of(status)
    fields = output.as_fields(_fields(status, presenter))
    workers = presenter.workers(status)
    if workers is None or status.state is not RunState.RUNNING:  # the workers of a run that is not running are outdated
        return fields
    return f"{fields}\n\n{output.as_table(*workers)}"


def _fields(status: RunStatus, presenter: Presenter) -> dict[str, object]:
    """Return the fields of a status by label. Empty ones are not shown."""
    return {
        "run": status.run,
        "job": status.job,
        "state": status.state.value,
        "reason": status.reason or _warm_up_reason(status),
        **presenter.fields(status),
        "failures": ", ".join(f"{count} {name}" for name, count in status.failures.items()),
        "slots ready": f"{status.slots_ready}/{status.slots}" if status.slots_ready else "",
        "used": _usage_text(status),
        "time left": output.duration(presenter.seconds_left(status)),
        "submitted": output.moment(status.created),
        "owner": status.owner,
        "ended": output.moment(status.ended),
        "MLflow": status.mlflow,
        "images": ", ".join(_image_text(image, digests) for image, digests in status.images.items()),
        "warning": "; ".join(status.warnings),
    }


def _usage_text(status: RunStatus) -> str:
    """Return the GPU-hours and the cost of a run so far; "" for a run without GPUs and prices."""
    usage = status.usage
    gpus = f"{usage.gpu_hours:.3g} GPU-hours" if usage.gpu_hours else ""
    cost = "" if usage.cost is None else f"cost {usage.cost:.2f}"
    if not (gpus or cost):
        return ""
    return ", ".join(filter(None, (f"{usage.slot_hours:.3g} slot-hours", gpus, cost)))


def _image_text(image: str, digests: Sequence[str]) -> str:
    """Return a text with an image and the beginnings of the digests that the run's pods have used."""
    return f"{image} ({', '.join(digest[:_DIGEST_LENGTH] for digest in digests)})"


def _warm_up_reason(status: RunStatus) -> str:
    """Return the reason why a running run has started no trial yet; "" if it has."""
    is_warming_up = status.state is RunState.RUNNING and not (status.ended_trials or status.running)
    return f"the slots are warming up ({slots_text(status)})" if is_warming_up else ""


@click.command("list")
@names.target_options()
@click.option("--limit", type=click.IntRange(1), help="Maximum number of runs.")
@output.option("table", "json", "yaml")
def list_command(target_name: TargetName, limit: int | None, output_format: str) -> None:
    """List all runs of a target, newest first. A run with damaged files has the state DAMAGED."""
    from trialplane.client import sdk  # imports pydantic, which would delay `--help`

    target = target_choice.target_of(target_name)
    handles = sdk.Platform(target).list()[:limit]
    if not handles and output_format == "table":
        output.note(targets.no_runs_message(target))
        return
    with futures.ThreadPoolExecutor(_MAX_REQUESTS) as pool:  # on a cluster, each status takes a few requests
        statuses = list(pool.map(_read_status, handles)) if target.remote else [_read_status(handle) for handle in handles]
    runs = [(handle.name, status) for handle, status in zip(handles, statuses, strict=True) if status is not None]
    output.emit(output_format, [_plain_fields(name, status) for name, status in runs], lambda: _table(runs))
    for _, status in runs:
        if isinstance(status, RunDamaged):
            output.note(str(status))


def _read_status(handle: RunHandle) -> RunStatus | RunDamaged | None:
    """Return the status of a run, or the error if it is damaged; None if it was deleted in the meantime."""
    try:
        return handle.status()
    except RunDamaged as error:
        return error
    except RunNotFound:
        return None


def _plain_fields(name: str, status: RunStatus | RunDamaged) -> dict[str, Any]:
    """Return the fields of a status as plain values. For a damaged run, all but name, state and reason are None."""
    if isinstance(status, RunStatus):
        fields: dict[str, Any] = records.to_dict(status)
        return fields
    empty_fields = dict.fromkeys(field.name for field in dataclasses.fields(RunStatus))
    return {**empty_fields, "run": name, "state": _DAMAGED, "reason": str(status)}


def _table(runs: list[tuple[str, RunStatus | RunDamaged]]) -> str:
    """Return the table of runs, from their names and statuses. It has a column of owners if a run has one."""
    has_owners = any(isinstance(status, RunStatus) and status.owner for _, status in runs)  # only on a cluster
    header = ["run", "job", "state", "ended", "failed", "best", "submitted", *(["owner"] if has_owners else [])]
    lines: list[list[Any]] = []
    for name, status in runs:
        if isinstance(status, RunDamaged):
            fields: dict[str, Any] = {"run": name, "state": _DAMAGED}
        else:
            presenter = kinds.of(status)
            fields = {
                "run": name,
                "job": status.job,
                "state": status.state.value,
                "ended": presenter.progress(status),
                "failed": status.failed,
                "best": presenter.best_value(status),
                "submitted": output.moment(status.created),
                "owner": status.owner,
            }
        lines.append([fields.get(column) for column in header])
    return output.as_table(header, lines)
