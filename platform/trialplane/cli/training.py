"""What a user sees of a training: where it is, how fast it goes, how long it will take. Pure text of a status."""

from __future__ import annotations

from trialplane.cli import output
from trialplane.wire.records import RunStatus

# How a report names what is shown apart from the other metrics; `training/progress.py` reports so.
STEP = "step"
TOTAL = "total_steps"
LEFT = "seconds_left"
SLOWEST = "slowest_rank"  # by the supervisor of the ranks, while one of them holds the others up
_PASSING = (
    *(LEFT, TOTAL, SLOWEST, "slowest_rank_factor", "seconds_per_step"),
    *("samples_per_second", "samples_per_second_and_rank", "tokens_per_second", "tokens_per_second_and_rank"),
)
_RATES = {"tokens_per_second": "tokens/s", "samples_per_second": "samples/s"}


def share(status: RunStatus) -> float | None:
    """How much of it is done, 0 to 1; None while it has not said."""
    step, total = status.progress.get(STEP), status.progress.get(TOTAL)
    return None if step is None or not total else min(1.0, step / total)


def steps(status: RunStatus) -> str:
    """`step 1,200/10,000`, or as much of that as is known."""
    step, total = status.progress.get(STEP), status.progress.get(TOTAL)
    if step is None:
        return ""
    return f"step {step:,.0f}" + (f"/{total:,.0f}" if total else "")


def left(status: RunStatus) -> float | None:
    """Seconds to the end, as the controller says, or the training itself; None while it does not run."""
    if not status.running:
        return None
    return status.eta if status.eta is not None else status.progress.get(LEFT)


def line(status: RunStatus) -> str:
    """Where it is and how it goes, in one line, without the time left."""
    done = share(status)
    where = steps(status) + (f" ({output.percent(done)})" if done is not None else "")
    return "; ".join(part for part in (where or _before(status), *measures(status), slowest(status), again(status)) if part)


def measures(status: RunStatus, rates_only: bool = False) -> list[str]:
    """The objectives and the rates of the newest report."""
    said = status.progress
    rates = [f"{output.rate(said[name])} {unit}" for name, unit in _RATES.items() if name in said]
    if rates_only:
        return rates
    found = [f"{name} {output.cell(float(said[name]))}" for name in status.objectives if name in said]
    if "loss" in said and "loss" not in status.objectives:
        found.append(f"loss {output.cell(float(said['loss']))}")
    return [*found, *rates]


def details(status: RunStatus) -> str:
    """Everything else that the newest report said."""
    shown = (STEP, TOTAL, LEFT, SLOWEST, "loss", *status.objectives, *_RATES)
    return ", ".join(f"{name} {output.cell(float(said))}" for name, said in status.progress.items() if name not in shown)


def result(status: RunStatus) -> str:
    """The objectives of what it returned, which its newest report need not say; "" while it has returned nothing."""
    if status.best is None or not status.best.values:
        return ""
    found = zip(status.objectives, status.best.values, strict=False)
    return ", ".join(f"{name} {output.cell(value)}" for name, value in found)


def is_passing(name: str) -> bool:
    """Whether a number tells how a training goes and not how good it is."""
    return name in _PASSING


def slowest(status: RunStatus) -> str:
    """Which rank holds the others up; "" while none does."""
    rank = status.progress.get(SLOWEST)
    return "" if rank is None else f"rank {rank:.0f} holds the others up"


def again(status: RunStatus) -> str:
    """How often it had to start again."""
    waits = not (status.running or status.ended_trials)  # for an attempt that has not begun, or for `platform resume`
    count = status.retried - waits
    times = {1: "once", 2: "twice"}.get(count, f"{count} times")
    return f"started again {times}" if count > 0 else ""


def ended(status: RunStatus) -> str:
    """`done`, `failed`, how much is done, or "" for one that has said nothing."""
    if status.complete:
        return "done"
    if status.failed or status.pruned:
        return "failed" if status.failed else "stopped"
    done = share(status)
    return steps(status) if done is None else output.percent(done)


def _before(status: RunStatus) -> str:
    if status.ended_trials:
        return "ended"
    return "the training has started; it has not reported a step yet" if status.running else ""
