"""The presenter of collections: iterations, the progress of the current one, and the state of each worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from trialplane import errors
from trialplane.cli import output, starters
from trialplane.cli.kinds import presenter
from trialplane.cli.kinds.presenter import Column, Live, Presenter, Span, Table
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.job.kinds import Collection, Job


class CollectionPresenter(Presenter):
    """See `Presenter`."""

    noun = "iteration"
    scaled = "worker"
    max_failed = "collect.max_failed"
    finished = "`platform results {0}` shows its iterations, `platform resume {0} --iterations N` runs more"
    starter = starters.COLLECTION

    def valid(self, job: Job) -> str:
        """See `Presenter`."""
        collect = cast("Collection", job).collect
        workers, learner = (role.resources.gpus for role in job.roles())
        into = collect.learner.entrypoint if collect.write is None else f"files ({collect.write.format})"
        learner_gpus = f" with {errors.counted(learner, 'GPU')}" if learner else ""
        work = f"{errors.counted(collect.iterations, 'iteration')} of {errors.counted(collect.units, 'unit')}"
        each = f" with {errors.counted(workers, 'GPU')} each" if workers else ""
        parts = f"{work}, {errors.counted(collect.workers, 'worker')}{each}"
        return f"{parts}, results to {into}{learner_gpus}, at most {collect.in_flight} in flight"

    def line(self, status: RunStatus) -> str:
        """See `Presenter`."""
        parts = [_done(status)]
        if _now(status):
            parts += [_now(status), _rates(status), _moved(status), _troubles(status)]
        return "; ".join(part for part in parts if part)

    def summary(self, handle: RunHandle, status: RunStatus) -> Iterator[str]:
        """See `Presenter`."""
        name, took = handle.name, presenter.took(status)
        yield _done(status) + (f" in {took}" if took else "")
        yield f"its iterations: `platform results {name}`, `platform ui`"
        yield f"logs are in {handle.log_place()}: `platform logs {name}`, `platform logs {name} ITERATION --worker N`"
        if status.state in (RunState.FAILED, RunState.CANCELLED):
            yield f"continue after its last complete iteration: `platform resume {name}`"

    def live(self, status: RunStatus) -> Live:
        """See `Presenter`."""
        whole = (status.ended_trials + _share(status)) / status.trials if status.trials else 0.0
        time_left = "" if status.eta is None else f"{output.duration(status.eta)} left"
        now = (_now(status), _rates(status), _moved(status))
        lines: list[tuple[Span, ...]] = [tuple((text, "") for text in now)] if any(now) else []
        lines.append(tuple((text, "dim") for text in (time_left, presenter.slots(status), status.mlflow)))
        return Live(min(1.0, whole), (_done(status),), tuple(lines))

    def fields(self, status: RunStatus) -> dict[str, object]:
        """The current iteration; earlier ones are in `platform results`."""
        if not _now(status):
            return {"iterations": _done(status)}
        return {"iterations": _done(status), "now": _now(status), "speed": _rates(status), "results": _moved(status)}

    def best_value(self, status: RunStatus) -> float | None:
        """None: iterations do not compete with each other."""
        return None

    def results(self, job: Job, rows: Sequence[TrialRow]) -> Table:
        """Return the iterations with every metric: the objective, the platform's counts, and others of the learner."""
        from trialplane.job.kinds import collection  # pydantic, which `platform status --help` need not wait for

        reported = dict.fromkeys(name for row in rows for name in row.metrics if not collection.OF_WORKER.match(name))
        names = dict.fromkeys([*job.required_metrics, *(name for name in collection.ADDED if name in reported), *reported])
        shown: list[Column] = [(name, [_whole(row.metrics.get(name)) for row in rows]) for name in names]
        return presenter.table(presenter.numbered(self.noun, rows), rows, shown)

    def workers(self, status: RunStatus) -> Table | None:
        """See `Presenter`."""
        workers = _progress(status).workers
        if not workers:
            return None
        lines: list[list[Any]] = []
        for worker in workers:
            rates = [
                output.rate(count / worker.seconds) if count and worker.seconds else ""
                for count in (worker.units, worker.items)
            ]
            arrived = [worker.units, rates[0], worker.items, rates[1], worker.failed, output.size(worker.bytes)]
            lines.append([worker.worker, worker.state, *arrived, worker.node, output.cell(worker.message)])
        header = ["worker", "state", "units", "units/s", "items", "items/s", "failed", "moved", "node", "message"]
        if not any(line[-1] for line in lines):
            header, lines = header[:-1], [line[:-1] for line in lines]
        return header, lines

    def ordered(self, rows: list[TrialRow]) -> list[TrialRow]:
        """Return the iterations in the order in which they ran."""
        return sorted(rows, key=lambda row: row.trial)

    def why_no_best(self, run: str) -> str:
        """See `Presenter`."""
        return f"{run} is a collection, which searches nothing; `platform results {run}` shows its iterations"

    def worker_logs(self, handle: RunHandle, trial: int, worker: int, *, follow: bool) -> Iterator[str]:
        """See `Presenter`."""
        return handle.logs(trial, follow=follow, worker=worker)


def _progress(status: RunStatus) -> CollectionProgress:
    assert isinstance(status.progress, CollectionProgress)
    return status.progress


def _share(status: RunStatus) -> float:
    """Return the share of the current iteration's units that have arrived, 0 to 1; 0 while none runs."""
    now = _progress(status)
    return min(1.0, now.units / now.units_total) if now.units_total and status.running else 0.0


def _done(status: RunStatus) -> str:
    """Return `3/10 iterations complete`, with failures and retries."""
    parts = [f"{status.complete}/{status.trials} iterations complete"]
    if status.failed:
        parts.append(f"{status.failed} failed")
    if status.retried:
        parts.append(f"{errors.counted(status.retried, 'attempt')} retried")
    return ", ".join(parts)


def _now(status: RunStatus) -> str:
    """Return `iteration 3: 45/80 units, 1 failed`, or "" while none runs."""
    now = _progress(status)
    if not status.running or now.iteration is None:
        return ""
    failed = f", {now.units_failed:,} failed" if now.units_failed else ""
    return f"iteration {now.iteration}: {now.units:,}/{now.units_total:,} units{failed}"


def _rates(status: RunStatus) -> str:
    """Return `1.5 units/s, 300 items/s`, if known."""
    now = _progress(status)
    rates = {"units/s": now.units_per_second, "items/s": now.items_per_second}
    return ", ".join(f"{output.rate(rate)} {unit}" for unit, rate in rates.items() if rate)


def _moved(status: RunStatus) -> str:
    """Return the bytes moved in this iteration, in flight, and spilled to disk."""
    now = _progress(status)
    sizes = {"moved": now.bytes, "in flight": now.in_flight_bytes, "spilled to disk": now.spilled_bytes}
    return ", ".join(f"{output.size(count)} {where}" for where, count in sizes.items() if count)


def _troubles(status: RunStatus) -> str:
    """Return the workers that have failed or are gone, with messages."""
    bad = [worker for worker in _progress(status).workers if worker.state in ("failed", "gone")]
    return ", ".join(
        f"worker {worker.worker} {worker.state}" + (f" ({worker.message})" if worker.message else "") for worker in bad
    )


def _whole(value: float | None) -> float | None:
    """Return integral floats as integers."""
    return int(value) if value is not None and value.is_integer() else value
