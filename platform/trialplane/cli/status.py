"""The state of runs: `platform status` for one, `platform list` for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any

import click

from trialplane.cli import kinds, names, output, progress
from trialplane.cli.kinds.presenter import Presenter
from trialplane.client import target as targets
from trialplane.client import target_choice
from trialplane.client.target import TargetName
from trialplane.errors import RunDamaged, RunNotFound
from trialplane.wire import records
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState

if TYPE_CHECKING:  # pydantic, which `--help` need not wait for
    from trialplane.client.run import RunHandle

_SHORT = len("sha256:") + 12  # characters of a digest; `--output json` has it whole
_AT_ONCE = 8  # runs on a cluster that `list` requests at the same time
_DAMAGED = "DAMAGED"  # the state of a run whose files cannot be read


@click.command("status")
@names.run_argument
@names.target_options()
@click.option("--watch", "-w", is_flag=True, help="Update the display until the run is no longer active.")
@output.option("table", "json", "yaml")
def status_command(run: str | None, target_name: TargetName, watch: bool, kind: str) -> None:
    """Show the state of RUN (default: the newest run)."""
    if watch and kind == "table":
        progress.show(names.find_run(run, target_name))
        return
    handle, status = names.find_status(run, target_name)
    show(handle.wait() if watch else status, kind)


def show(status: RunStatus, kind: str) -> None:
    """Print a status."""
    output.emit(kind, records.to_dict(status), lambda: _text(status))


def _text(status: RunStatus) -> str:
    presenter = kinds.of(status)
    fields = output.as_fields(_fields(status, presenter))
    workers = presenter.workers(status)
    if workers is None or status.state is not RunState.RUNNING:  # otherwise they are stale
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
        "time left": output.duration(presenter.seconds_left(status)),
        "submitted": output.moment(status.created),
        "owner": status.owner,
        "ended": output.moment(status.ended),
        "MLflow": status.mlflow,
        "images": ", ".join(_image(image, digests) for image, digests in status.images.items()),
        "warning": "; ".join(status.warnings),
    }


def _image(image: str, digests: Sequence[str]) -> str:
    """Return an image with the digests that a run's pods have used, shortened."""
    return f"{image} ({', '.join(digest[:_SHORT] for digest in digests)})"


def _waiting(status: RunStatus) -> str:
    """Return the reason to show for a run that has started no trial yet."""
    begins = status.state is RunState.RUNNING and not (status.ended_trials or status.running)
    return f"the slots are warming up ({status.slots_ready}/{status.slots} slots ready)" if begins else ""


@click.command("list")
@names.target_options()
@click.option("--limit", type=click.IntRange(1), help="Maximum number of runs.")
@output.option("table", "json", "yaml")
def list_command(target_name: TargetName, limit: int | None, kind: str) -> None:
    """List all runs of a target, newest first. A run with damaged files has the state DAMAGED."""
    from trialplane.client import sdk  # needs pydantic, which `--help` should not wait for

    target = target_choice.target_of(target_name)
    handles = sdk.Platform(target).list()[:limit]
    if not handles and kind == "table":
        output.note(targets.no_runs_message(target))
        return
    with futures.ThreadPoolExecutor(_AT_ONCE) as pool:  # on a cluster each is a few requests
        looked = list(pool.map(_look, handles)) if target.remote else [_look(handle) for handle in handles]
    runs = [(handle.name, status) for handle, status in zip(handles, looked, strict=True) if status is not None]
    output.emit(kind, [_plain(name, status) for name, status in runs], lambda: _table(runs))
    for _, status in runs:
        if isinstance(status, RunDamaged):
            output.note(str(status))


def _look(handle: RunHandle) -> RunStatus | RunDamaged | None:
    """Return the status of a run; None if it was deleted meanwhile."""
    try:
        return handle.status()
    except RunDamaged as error:
        return error
    except RunNotFound:
        return None


def _plain(name: str, status: RunStatus | RunDamaged) -> dict[str, Any]:
    """Return a run as plain values; of a damaged one name and reason."""
    if isinstance(status, RunStatus):
        plain: dict[str, Any] = records.to_dict(status)
        return plain
    unknown = dict.fromkeys(field.name for field in dataclasses.fields(RunStatus))
    return {**unknown, "run": name, "state": _DAMAGED, "reason": str(status)}


def _table(runs: list[tuple[str, RunStatus | RunDamaged]]) -> str:
    owned = any(isinstance(status, RunStatus) and status.owner for _, status in runs)  # of a cluster's runs
    header = ("run", "job", "state", "ended", "failed", "best", "submitted", *(("owner",) if owned else ()))
    lines = [
        (name, None, _DAMAGED, *[None] * (len(header) - 3))
        if isinstance(status, RunDamaged)
        else (
            name,
            status.job,
            status.state.value,
            kinds.of(status).ended(status),
            status.failed,
            kinds.of(status).best_value(status),
            output.moment(status.created),
            *((status.owner,) if owned else ()),
        )
        for name, status in runs
    ]
    return output.as_table(header, lines)
