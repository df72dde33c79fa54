"""What a user sees of a collection: its iterations, how far the one that runs is, what each worker does. Pure text."""

from __future__ import annotations

from typing import Any

from trialplane import errors
from trialplane.cli import output
from trialplane.wire.records import RunStatus

# Of `RunStatus.progress`; the controller says so of the iteration that runs.
_RATES = {"units_per_second": "units/s", "items_per_second": "items/s"}


def share(status: RunStatus) -> float | None:
    """How much of the iteration that runs has arrived, 0 to 1; None while none runs."""
    units, total = status.progress.get("units"), status.progress.get("units_total")
    return None if units is None or not total or not status.running else min(1.0, units / total)


def done(status: RunStatus) -> str:
    """`3/10 iterations complete`, and what else is to say of them."""
    parts = [f"{status.complete}/{status.trials} iterations complete"]
    if status.failed:
        parts.append(f"{status.failed} failed")
    if status.retried:
        parts.append(f"{errors.counted(status.retried, 'attempt')} done again")
    return ", ".join(parts)


def now(status: RunStatus) -> str:
    """`iteration 3: 45/80 units, 1 failed`, or "" while none runs."""
    said = status.progress
    if not status.running or "iteration" not in said:
        return ""
    total = f"/{said['units_total']:,.0f}" if "units_total" in said else ""
    failed = f", {said['units_failed']:,.0f} failed" if said.get("units_failed") else ""
    return f"iteration {said['iteration']:.0f}: {said.get('units', 0):,.0f}{total} units{failed}"


def rates(status: RunStatus) -> str:
    """`1.5 units/s, 300 items/s`, as far as they are known."""
    said = status.progress
    return ", ".join(f"{output.rate(said[name])} {unit}" for name, unit in _RATES.items() if said.get(name))


def moved(status: RunStatus) -> str:
    """Bytes that came in this iteration, those on their way, and those that had to go over a disk."""
    said = status.progress
    parts = [f"{output.size(said['bytes'])} moved"] if said.get("bytes") else []
    if said.get("in_flight_bytes"):
        parts.append(f"{output.size(said['in_flight_bytes'])} in flight")
    if said.get("spilled_bytes"):
        parts.append(f"{output.size(said['spilled_bytes'])} spilled to disk")
    return ", ".join(parts)


def line(status: RunStatus) -> str:
    """How it stands, in one line, without the time left."""
    parts = [done(status)]
    if now(status):
        parts += [now(status), rates(status), moved(status), troubles(status)]
    return "; ".join(part for part in parts if part)


def troubles(status: RunStatus) -> str:
    """Which workers do not work, and why."""
    bad = [worker for worker in status.workers if worker.state in ("failed", "gone")]
    return ", ".join(f"worker {one.worker} {one.state}" + (f" ({one.message})" if one.message else "") for one in bad)


def fields(status: RunStatus) -> dict[str, object]:
    """What `platform status` shows of it; what is past is in `platform results`."""
    if not now(status):
        return {"iterations": done(status)}
    return {"iterations": done(status), "now": now(status), "speed": rates(status), "results": moved(status)}


def workers(status: RunStatus) -> tuple[list[str], list[list[Any]]]:
    """Header and lines of the table of its workers."""
    lines: list[list[Any]] = []
    for one in status.workers:
        rates = [output.rate(count / one.seconds) if count and one.seconds else "" for count in (one.units, one.items)]
        arrived = [one.units, rates[0], one.items, rates[1], one.failed, output.size(one.bytes)]
        lines.append([one.worker, one.state, *arrived, one.node, output.cell(one.message)])
    header = ["worker", "state", "units", "units/s", "items", "items/s", "failed", "moved", "node", "message"]
    if not any(line[-1] for line in lines):
        header, lines = header[:-1], [line[:-1] for line in lines]
    return header, lines
