"""A run as the content of its page: facts and texts as plain values, and columns of its trials, attempts and curves."""

from __future__ import annotations

import dataclasses
import heapq
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from trialplane import errors
from trialplane.job.kinds import Job
from trialplane.pages import columns, curves, importances, lineage, savings
from trialplane.pages.columns import Column, Texts
from trialplane.pages.lineage import Lineage
from trialplane.pages.savings import Hours
from trialplane.wire import records, rows
from trialplane.wire.records import ReportRow, RunStatus, TrialRow
from trialplane.wire.states import RunState, TrialState

BEST = 50  # trials whose curves keep all of their points
_FAILURES = 100  # kinds of failure on the page
_LONGEST = 2000  # characters of a message of a failure


Content = tuple[dict[str, Any], list[Column]]  # facts and columns of a run


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The records of a run.

    Attributes:
        job: its job.
        status: its status.
        attempts: all attempts, in the order they started.
        reports: all reports, in the order they arrived.
    """

    job: Job
    status: RunStatus
    attempts: Sequence[TrialRow]
    reports: Sequence[ReportRow]


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """The context of a page: all that commands on it depend on, beside the run.

    Attributes:
        flags: of the run's target: `--local`.
        is_named: whether `platform submit` finds the job by its name.
        price: of a GPU-hour, or of a slot-hour without GPUs; None if unknown.
        now: seconds since the epoch.
    """

    flags: str
    is_named: bool
    price: float | None
    now: float


def content(recorded: Recorded, around: Surroundings, shares: importances.Shares | None = None) -> Content:
    """Return the facts of a run as plain values, and its columns.

    Args:
        recorded: of the run.
        around: of the commands.
        shares: the importances; None to compute them.
    """
    job, status = recorded.job, recorded.status
    lineages = lineage.lineages(job, recorded.attempts)
    trials = [trial_lineage.row for trial_lineage in lineages]
    ranked = rows.rank(job, trials)
    reports = lineage.joined(job, lineages, recorded.reports)
    last_steps = _last_steps(reports)
    start_time = _start_time(recorded)
    best = _front(job, trials)
    importance, no_importances = shares or importances.importances(job, trials)
    first = [job.watched_metric, *job.required_metrics]
    metrics = curves.metrics(reports, first)
    whole = {row.number for row in ranked[:BEST]}
    width, gpus = job.roles()[0].nodes, job.resources.gpus
    facts = {
        "run": status.run,
        "job": job.name,
        "description": job.description,
        "kind": job.kind,
        "noun": job.noun,
        "state": status.state.value,
        "active": status.state.is_active,
        "reason": errors.shortened(status.reason, _LONGEST),
        "warnings": [errors.shortened(warning, _LONGEST) for warning in status.warnings],
        "begun": start_time,
        "now": around.now,
        "trials": job.trials,
        "width": job.width,
        "ranks": job.roles()[0].ranks * job.roles()[0].nodes if job.kind == "train" else 1,
        "objectives": [objective.model_dump() for objective in job.objectives],
        "constraints": [constraint.model_dump() for constraint in job.search.constraints],
        "watched": job.watched_metric,
        "facts": [[name, text] for name, text in _facts(recorded) if text],
        "best": [_best(row) for row in best[:BEST]],
        "commands": [[label, command] for label, command in _commands(recorded, around, best)],
        "log": f"platform logs {shlex.quote(status.run)} {around.flags}".strip(),
        "importances": importance,
        "no_importances": no_importances,
        "curve_metrics": metrics,
        "failures": _failures(recorded.attempts),
        "rungs": [dataclasses.asdict(count) for count in lineage.funnel(job, lineages)],
        "costs": _costs(recorded, trials, _trained(last_steps, reports), width, gpus, around.price),
        "workers": records.to_dict(getattr(status.progress, "workers", ())),
    }
    table = [
        *_trials(job, lineages, ranked, last_steps, start_time),
        *_attempts(recorded, start_time, around.now),
        *_pauses(lineages),
        *curves.tables(reports, metrics, whole),
    ]
    return facts, table


def _last_steps(reports: Sequence[ReportRow]) -> dict[int, int]:
    """Return the last reported step of each attempt, by its number."""
    last: dict[int, int] = {}
    for report in reports:
        last[report.number] = max(report.step, last.get(report.number, 0))
    return last


def _trained(last_steps: dict[int, int], reports: Sequence[ReportRow]) -> dict[int, int]:
    """Return the number of steps that each attempt has trained, by its number: steps are counted from 0 or from 1."""
    offset = int(any(report.step == 0 for report in reports))
    return {number: step + offset for number, step in last_steps.items()}


def _start_time(recorded: Recorded) -> float:
    """Return the time from which times on the page count: that of the first attempt or report, or of the submission."""
    starts = [attempt.started for attempt in recorded.attempts if attempt.started]
    starts += [report.time for report in recorded.reports[:1]]
    return min(starts, default=recorded.status.created)


def _facts(recorded: Recorded) -> Iterator[tuple[str, str]]:
    """Yield the search and the budgets of a job, by name."""
    job, budget = recorded.job, recorded.job.budget
    yield "objective", ", ".join(f"{objective.direction} {objective.metric}" for objective in job.objectives)
    if job.kind == "hpo":
        yield "sampler", job.search.sampler.name
        yield "pruner", job.search.pruner.name
    yield f"{job.noun}s", str(job.trials)
    yield "at a time", str(job.width)
    roles = job.roles()
    ranks, nodes = roles[0].ranks, roles[0].nodes
    yield "processes", f"{ranks * nodes} on {errors.counted(nodes, 'node')}" if ranks * nodes > 1 else ""
    resources = job.resources
    gpus = f", {errors.counted(resources.gpus, 'GPU')}" if resources.gpus else ""
    yield "resources", f"{resources.cores}, {resources.memory}{gpus}"
    yield "budget.time", "" if budget.time is None else f"{budget.time:g} s"
    yield "budget.timeout", "" if budget.timeout is None else f"{budget.timeout:g} s"
    yield "budget.max_failed", "" if budget.max_failed is None else str(budget.max_failed)
    yield "budget.target", "" if budget.target is None else f"{budget.target:g}"
    yield "seed", str(job.seed)


def _front(job: Job, trials: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the Pareto-optimal trials, or the best one."""
    if len(job.objectives) > 1:
        return rows.rank(job, rows.pareto_front(job, trials))
    best = rows.best_trial(job, trials)
    return [] if best is None else [best]


def _best(row: TrialRow) -> dict[str, Any]:
    return {
        "trial": row.trial,
        "values": [records.to_dict(value) for value in row.values],
        "params": [[name, columns.text(value)] for name, value in row.params.items()],
    }


def _commands(recorded: Recorded, around: Surroundings, best: Sequence[TrialRow]) -> Iterator[tuple[str, str]]:
    """Yield next steps that exist for a run: a label and a command."""
    job, status, flags = recorded.job, recorded.status, f" {around.flags}" if around.flags else ""
    run = shlex.quote(status.run)
    is_study, is_active = job.kind == "hpo", status.state.is_active
    local = " --local" if around.flags == "--local" else flags
    if is_study and best:
        trial = f" --trial {best[0].trial}" if len(job.objectives) > 1 else ""
        yield "Save the best parameters", f"platform best {run}{trial}{flags} > best.yaml"
        if around.is_named:
            again = f"platform submit hpo {shlex.quote(job.name)} --params best.yaml --trials 1{local}"
            yield "Run the best parameters again", again
    if is_active:
        yield "Follow the run", f"platform status {run} --watch{flags}"
    elif is_study:
        yield "Continue with more trials", f"platform resume {run} --trials {2 * job.trials}{flags}"
    elif job.kind == "collect":
        yield "Continue with more iterations", f"platform resume {run} --iterations {2 * job.trials}{flags}"
    elif status.state is RunState.SUCCEEDED and around.is_named:
        yield (
            "Train on from the newest checkpoint",
            f"platform submit train {shlex.quote(job.name)} --resume {run}{local}",
        )
    elif status.state is not RunState.SUCCEEDED:
        yield "Continue the run", f"platform resume {run}{flags}"
    yield "Open it in MLflow", f"platform ui {run}{flags}"
    if is_study:
        yield "Open it in optuna-dashboard", f"platform ui {run} --dashboard{flags}"
        yield "Export it for Optuna", f"platform export {run} sqlite:///{run}.db{flags}"
    yield "All results, with all digits", f"platform results {run} --output csv{flags} > {run}.csv"


def _failures(attempts: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Return the failures by class and first line, most frequent first."""
    kinds: Counter[tuple[str, str, bool]] = Counter()
    examples: dict[tuple[str, str, bool], TrialRow] = {}
    for attempt in attempts:
        if attempt.failure is None:
            continue
        line = errors.shortened(next(iter(attempt.message.splitlines()), ""), _LONGEST)
        kind = (attempt.failure.value, line, attempt.state is not TrialState.FAILED)
        kinds[kind] += 1
        examples.setdefault(kind, attempt)
    return [
        {
            "class": kind[0],
            "line": kind[1],
            "retried": kind[2],
            "count": count,
            "trial": examples[kind].trial,
            "attempt": examples[kind].attempt,
        }
        for kind, count in kinds.most_common(_FAILURES)
    ]


def _costs(
    recorded: Recorded,
    trials: Sequence[TrialRow],
    steps: dict[int, int],
    width: int,
    gpus: int,
    price: float | None,
) -> dict[str, Any]:
    """Return the slot-hours used, lost and saved, the share of idle slots, and how the saved ones are estimated."""
    busy = savings.busy(recorded.attempts, width)
    available = recorded.status.worked * recorded.status.slots
    hours = {
        "used": Hours.of(busy, gpus, price),
        "lost": Hours.of(savings.lost(recorded.attempts, width), gpus, price),
        "saved": Hours.of(savings.saved(trials, steps, width, recorded.status.state.is_active), gpus, price),
    }
    return {
        **{name: dataclasses.asdict(value) for name, value in hours.items()},
        "idle": max(0.0, 1 - busy / available) if available > 0 and busy > 0 else None,
        "slots": recorded.status.slots,
        "method": savings.METHOD,
    }


def _trials(
    job: Job, lineages: Sequence[Lineage], ranked: Sequence[TrialRow], last_steps: dict[int, int], begun: float
) -> Iterator[Column]:
    """Yield the columns of the newest attempt of each trial."""
    trials = [trial_lineage.row for trial_lineage in lineages]
    ranks = {row.trial: rank for rank, row in enumerate(ranked)}
    several = len(job.objectives) > 1
    front = {row.trial for row in rows.pareto_front(job, trials)} if several else set()
    yield Column("trials", "trial", "", columns.counts(row.trial for row in trials))
    yield Column("trials", "rank", "", columns.counts(ranks[row.trial] for row in trials))
    yield Column("trials", "attempt", "", columns.counts(row.attempt for row in trials))
    yield Column("trials", "number", "", columns.counts(row.number for row in trials))
    yield _coded("trials", "state", [row.state.value for row in trials])
    yield Column("trials", "feasible", "", columns.counts(int(row.feasible) for row in trials))
    yield Column("trials", "front", "", columns.counts(int(row.trial in front) for row in trials))
    yield Column("trials", "seconds", "", columns.numbers(row.seconds for row in trials))
    yield Column("trials", "started", "", columns.offsets((row.started for row in trials), begun))
    yield Column("trials", "ended", "", columns.offsets((row.ended for row in trials), begun))
    yield Column("trials", "step", "", columns.numbers(last_steps.get(row.number) for row in trials))
    yield Column(
        "trials",
        "rung",
        "",
        columns.numbers(trial_lineage.rungs[-1] if trial_lineage.rungs else None for trial_lineage in lineages),
    )
    yield _coded("trials", "failure", [row.failure and row.failure.value for row in trials])
    yield _coded("trials", "message", [row.message or None for row in trials])
    yield _coded("trials", "node", [row.node or None for row in trials])
    for name in dict.fromkeys([*job.required_metrics, *(name for row in trials for name in row.metrics)]):
        yield columns.of_values("trials", name, "metric", [row.metrics.get(name) for row in trials])
    parameters = job.search.parameters
    for name in dict.fromkeys(name for row in trials for name in row.params):
        log = bool(getattr(parameters.get(name), "log", False))
        yield columns.of_values("trials", name, "param", [row.params.get(name) for row in trials], log=log)


def _coded(table: str, name: str, values: Sequence[str | None]) -> Column:
    texts = Texts()
    codes = columns.counts([texts.code(value) for value in values])
    return Column(table, name, "", codes, texts.texts)


def _attempts(recorded: Recorded, begun: float, now: float) -> Iterator[Column]:
    """Yield the columns of all attempts whose start is known: for the timeline."""
    first_reports: dict[int, float] = {}
    for report in recorded.reports:
        first_reports.setdefault(report.number, report.time)
    spans = []
    for attempt in recorded.attempts:
        start = attempt.started or first_reports.get(attempt.number)
        if start is None:
            continue
        running = attempt.state is TrialState.RUNNING
        spans.append((start, attempt.ended or (now if running else start + (attempt.seconds or 0.0)), attempt))
    spans.sort(key=lambda span: (span[0], span[2].number))
    attempts = [attempt for _, _, attempt in spans]
    yield Column("attempts", "trial", "", columns.counts(attempt.trial for attempt in attempts))
    yield Column("attempts", "attempt", "", columns.counts(attempt.attempt for attempt in attempts))
    yield Column("attempts", "number", "", columns.counts(attempt.number for attempt in attempts))
    yield _coded("attempts", "state", [attempt.state.value for attempt in attempts])
    yield _coded("attempts", "failure", [attempt.failure and attempt.failure.value for attempt in attempts])
    yield Column("attempts", "start", "", columns.offsets((start for start, _, _ in spans), begun))
    yield Column("attempts", "end", "", columns.offsets((end for _, end, _ in spans), begun))
    yield Column("attempts", "lane", "", columns.counts(_lanes(spans)))


def _pauses(lineages: Sequence[Lineage]) -> Iterator[Column]:
    """Yield the columns of the pauses from which trials were promoted: the number of the curve, and the step."""
    pauses = [(each.row.number, step) for each in lineages for step in each.pauses]
    yield Column("pauses", "number", "", columns.counts(number for number, _ in pauses))
    yield Column("pauses", "step", "", columns.numbers(step for _, step in pauses))


def _lanes(spans: Sequence[tuple[float, float, TrialRow]]) -> Iterator[int]:
    """Yield a lane for each attempt, in the order of their starts: its slot, or else a lane that is free by then.

    The slot of an attempt that runs, or whose controller was killed, is unknown. Such attempts are below all slots.
    """
    first = max((attempt.slot + 1 for _, _, attempt in spans if attempt.slot is not None), default=0)
    free: list[int] = []
    occupied: list[tuple[float, int]] = []
    for start, end, attempt in spans:
        if attempt.slot is not None:
            yield attempt.slot
            continue
        while occupied and occupied[0][0] <= start:
            heapq.heappush(free, heapq.heappop(occupied)[1])
        lane = heapq.heappop(free) if free else len(occupied)
        heapq.heappush(occupied, (end if math.isfinite(end) else start, lane))
        yield first + lane
