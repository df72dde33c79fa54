"""The presenter of collections: iterations, the progress of the current one, and the state of each worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from trialplane import errors
from trialplane.cli import output, starters
from trialplane.cli.kinds import presenter
from trialplane.cli.kinds.presenter import Column, Live, Presenter, Table
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle
    from trialplane.job.kinds import Collection, Job


class CollectionPresenter(Presenter):
    """The presentation of a collection."""

    noun = "iteration"
    scaled_noun = "worker"
    max_failed_field = "collect.max_failed"
    starter = starters.COLLECTION

    def job_summary(self, job: Job) -> str:
        """Return a line such as `9 iterations of 80 units, 4 workers, results to learn:run, at most 1Gi in flight`."""
        collect = cast("Collection", job).collect
        worker_role, learner_role = job.roles()
        work = f"{errors.counted(collect.iterations, 'iteration')} of {errors.counted(collect.units, 'unit')}"
        workers = errors.counted(collect.workers, "worker")
        if worker_role.resources.gpus:
            workers += f" with {errors.counted(worker_role.resources.gpus, 'GPU')} each"
        destination = collect.learner.entrypoint if collect.write is None else f"files ({collect.write.format})"
        if learner_role.resources.gpus:
            destination = f"{destination} with {errors.counted(learner_role.resources.gpus, 'GPU')}"
        return f"{work}, {workers}, results to {destination}, at most {collect.in_flight} in flight"

    def finished_hint(self, job: Job) -> str:
        """Return the commands to show the iterations, and to run more of them; `{0}` stands for the run."""
        return "`platform results {0}` shows its iterations, `platform resume {0} --iterations N` runs more"

    def line(self, status: RunStatus) -> str:
        """Return the number of iterations, and the units, rates, sizes and failed workers of the current one."""
        parts = [_counts_text(status)]
        if iteration := _iteration_text(status):  # the rest describes the current iteration
            parts += [iteration, _rates_text(status), _sizes_text(status), _failed_workers_text(status)]
        return "; ".join(part for part in parts if part)

    def summary(self, handle: RunHandle, status: RunStatus) -> Iterator[str]:
        """Yield lines with the number of iterations, and the commands for results, logs and a continuation."""
        name, duration = handle.name, presenter.duration_text(status)
        yield _counts_text(status) + (f" in {duration}" if duration else "")
        yield f"its iterations: `platform results {name}`, `platform ui`"
        yield f"logs are in {handle.log_location()}: `platform logs {name}`, `platform logs {name} ITERATION --worker N`"
        if status.state in (RunState.FAILED, RunState.CANCELLED):
            yield f"continue after its last complete iteration: `platform resume {name}`"

    def live(self, status: RunStatus) -> Live:
        """Return a bar of iterations, with the progress of the current one below it."""
        share = (status.ended_trials + _iteration_share(status)) / status.trials if status.trials else 0.0
        time_left = presenter.time_left_text(status.eta)
        lines = (
            presenter.spans("", _iteration_text(status), _rates_text(status), _sizes_text(status)),
            presenter.spans("dim", time_left, presenter.slots_text(status), status.mlflow),
        )
        return Live(share=min(1.0, share), bar_labels=(_counts_text(status),), lines=lines)

    def fields(self, status: RunStatus) -> dict[str, object]:
        """Return the number of iterations, and the progress of the current one."""
        fields: dict[str, object] = {"iterations": _counts_text(status)}
        if iteration := _iteration_text(status):  # the rest describes the current iteration
            fields |= {"now": iteration, "speed": _rates_text(status), "results": _sizes_text(status)}
        return fields

    def best_value(self, status: RunStatus) -> float | None:
        """Return None, because no iteration is better than another."""
        return None

    def results(self, job: Job, rows: Sequence[TrialRow]) -> Table:
        """Return the iterations with their metrics: the objective, the platform's counts, and others of the learner."""
        from trialplane.job.kinds import collection  # imports pydantic, which would delay `platform status --help`

        all_names = dict.fromkeys(name for row in rows for name in row.metrics)
        reported = [name for name in all_names if not collection.OF_WORKER.match(name)]  # not of single workers
        added_by_platform = [name for name in collection.ADDED if name in reported]
        ordered_names = dict.fromkeys([*job.required_metrics, *added_by_platform, *reported])
        metrics: list[Column] = [(name, [_integral(row.metrics.get(name)) for row in rows]) for name in ordered_names]
        return presenter.results_table(presenter.identifying_columns(self.noun, rows), rows, metrics)

    def workers(self, status: RunStatus) -> Table | None:
        """Return a line for each worker: its state, counts, rates and node; its message only if any has one."""
        workers = _progress(status).workers
        if not workers:
            return None

        def rate(count: int, seconds: float) -> str:
            return output.rate(count / seconds) if count and seconds else ""

        has_messages = any(worker.message for worker in workers)
        lines: list[list[Any]] = []
        for worker in workers:
            units = [worker.units, rate(worker.units, worker.seconds)]
            items = [worker.items, rate(worker.items, worker.seconds)]
            message = [output.cell(worker.message)] if has_messages else []
            counts = [*units, *items, worker.failed, output.size(worker.bytes)]
            lines.append([worker.worker, worker.state, *counts, worker.node, *message])
        header = ["worker", "state", "units", "units/s", "items", "items/s", "failed", "moved", "node"]
        return [*header, "message"] if has_messages else header, lines

    def in_order(self, rows: list[TrialRow]) -> list[TrialRow]:
        """Return the iterations in the order in which they ran."""
        return sorted(rows, key=lambda row: row.trial)

    def why_no_best(self, run: str) -> str:
        """Return that a collection searches nothing."""
        return f"{run} is a collection, which searches nothing; `platform results {run}` shows its iterations"

    def worker_logs(self, handle: RunHandle, trial: int, worker: int, *, follow: bool) -> Iterator[str]:
        """Yield lines of a worker's log in the iteration `trial`."""
        return handle.logs(trial, follow=follow, worker=worker)


def _progress(status: RunStatus) -> CollectionProgress:
    assert isinstance(status.progress, CollectionProgress)  # a record of a collection has no other
    return status.progress


def _iteration_share(status: RunStatus) -> float:
    """Return the share of the current iteration's units that have arrived, from 0 to 1; 0 without an iteration."""
    progress = _progress(status)
    return min(1.0, progress.units / progress.units_total) if progress.units_total and status.running else 0.0


def _counts_text(status: RunStatus) -> str:
    """Return a text such as `3/10 iterations complete`, with failures and retries if there are any."""
    parts = [f"{status.complete}/{status.trials} iterations complete"]
    if status.failed:
        parts.append(f"{status.failed} failed")
    if status.retried:
        parts.append(f"{errors.counted(status.retried, 'attempt')} retried")
    return ", ".join(parts)


def _iteration_text(status: RunStatus) -> str:
    """Return a text such as `iteration 3: 45/80 units, 1 failed`; "" without a running iteration."""
    progress = _progress(status)
    if not status.running or progress.iteration is None:
        return ""
    failed = f", {progress.units_failed:,} failed" if progress.units_failed else ""
    return f"iteration {progress.iteration}: {progress.units:,}/{progress.units_total:,} units{failed}"


def _rates_text(status: RunStatus) -> str:
    """Return a text such as `1.5 units/s, 300 items/s`, without unknown rates."""
    progress = _progress(status)
    rates = {"units/s": progress.units_per_second, "items/s": progress.items_per_second}
    return ", ".join(f"{output.rate(rate)} {unit}" for unit, rate in rates.items() if rate)


def _sizes_text(status: RunStatus) -> str:
    """Return the sizes of the results that were moved in this iteration, are in flight, and are spilled to disk."""
    progress = _progress(status)
    sizes = {"moved": progress.bytes, "in flight": progress.in_flight_bytes, "spilled to disk": progress.spilled_bytes}
    return ", ".join(f"{output.size(count)} {label}" for label, count in sizes.items() if count)


def _failed_workers_text(status: RunStatus) -> str:
    """Return the workers that have failed or are gone, with their messages."""
    texts = []
    for worker in _progress(status).workers:
        if worker.state in ("failed", "gone"):
            message = f" ({worker.message})" if worker.message else ""
            texts.append(f"worker {worker.worker} {worker.state}{message}")
    return ", ".join(texts)


def _integral(value: float | None) -> float | None:
    """Return a number as an integer if it is whole, so that it is shown without an exponent."""
    return int(value) if value is not None and value.is_integer() else value
