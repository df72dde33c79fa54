"""The content of a run's page: facts as JSON values, and the columns of its tables of trials, attempts and curves.

`content` computes both from the record of the run. `page` writes them into the HTML file, and its scripts draw them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.job.kinds import Job
from trialplane.pages import columns, curves, importances, lineage, ranks, savings
from trialplane.pages.columns import Column
from trialplane.pages.importances import Importances
from trialplane.pages.lineage import Lineage
from trialplane.plan import changes
from trialplane.wire import records, rows, system_metrics
from trialplane.wire.costs import Busy, JobDemand, Prices, Usage
from trialplane.wire.records import ReportRow, RunStatus, TrialRow
from trialplane.wire.states import RunState, TrialState

_MAX_BEST = 50  # limit of the best trials that the page lists, and whose curves it draws with all points
_MAX_FAILURES = 100  # limit of the kinds of failure that the page lists
_MAX_TEXT = 2000  # limit of the characters of a message
# Numbers in which failures of one kind may differ, as in `step 7: loss 3.2`; exit codes and signals tell kinds apart.
_NUMBER = re.compile(r"(?<!code )(?<!signal )(?<!status )(?<!Errno )(?<![\d.])(?:0x[0-9a-f]+|\d+(?:\.\d+)?)")

Content = tuple[dict[str, Any], list[Column]]  # facts and columns of a run


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The record of a run.

    Attributes:
        job: Job of the run.
        status: Status of the run.
        attempts: All attempts, in the order in which they started.
        reports: All reports, in the order in which they arrived.
    """

    job: Job
    status: RunStatus
    attempts: Sequence[TrialRow]
    reports: Sequence[ReportRow]

    @functools.cached_property
    def trial_reports(self) -> list[ReportRow]:
        """The reports without samples of system metrics, whose steps are their own. MLflow shows the samples."""
        return system_metrics.without_samples(self.reports)


@dataclasses.dataclass(frozen=True)
class PageContext:
    """The values beside the run itself on which its page depends.

    Attributes:
        flags: Flags that select the run's target, such as `--local`.
        is_named: Whether `platform submit` finds the job by its name.
        prices: Prices of GPU-hours and core-hours. None for the prices in the run's status.
        now: Current time, in seconds since the epoch.
    """

    flags: str
    is_named: bool
    prices: Prices | None
    now: float


def content(record: RunRecord, context: PageContext, known_importances: Importances | None = None) -> Content:
    """Return the facts of a run as JSON values, and its columns. Without `known_importances`, this computes them."""
    job, status = record.job, record.status
    lineages = lineage.lineages(job, record.attempts)
    trials = [trial_lineage.row for trial_lineage in lineages]
    ranked = rows.ranked(job, trials)
    reports = lineage.join_segments(job, lineages, record.trial_reports)
    last_steps = _last_steps(reports)
    start_time = _start_time(record)
    best_trials = rows.best_results(job, trials)
    run_importances = known_importances or importances.importances(job, trials)
    metrics = curves.metrics(reports, [job.watched_metric, *job.required_metrics])
    facts = {
        **_header(record, start_time, context.now),
        "facts": [[name, text] for name, text in _setting_texts(record) if text],
        "best": [_best_trial(row) for row in best_trials[:_MAX_BEST]],
        "commands": [[label, command] for label, command in _commands(record, context, best_trials)],
        "log": f"platform logs {shlex.quote(status.run)} {context.flags}".strip(),
        "importances": run_importances.shares,
        "no_importances": run_importances.reason,
        "curve_metrics": metrics,
        "failures": _failures(record.attempts),
        "rungs": [dataclasses.asdict(count) for count in lineage.funnel(job, lineages)],
        "costs": _costs(record, trials, _trained_steps(last_steps, reports), context),
        "stragglers": [dataclasses.asdict(straggler) for straggler in ranks.stragglers(record.trial_reports)],
        "workers": records.to_dict(getattr(status.progress, "workers", ())),
    }
    all_columns = [
        *_trial_columns(job, lineages, ranked, last_steps, start_time),
        *_attempt_columns(record, start_time, context.now),
        *_pause_columns(lineages),
        *_segment_columns(record, ranked),
        *ranks.time_columns(record.trial_reports),
        *curves.curve_columns(reports, metrics, {row.number for row in ranked[:_MAX_BEST]}),
    ]
    return facts, all_columns


def _header(record: RunRecord, start_time: float, now: float) -> dict[str, Any]:
    """Return the facts of the page that are copied from the job and the status, by their names in the page."""
    job, status = record.job, record.status
    role = job.roles()[0]
    return {
        "run": status.run,
        "job": job.name,
        "description": job.description,
        "kind": job.kind,
        "noun": job.noun,
        "state": status.state.value,
        "active": status.state.is_active,
        "reason": errors.shortened(status.reason, _MAX_TEXT),
        "warnings": [errors.shortened(warning, _MAX_TEXT) for warning in status.warnings],
        "begun": start_time,
        "now": now,
        "trials": job.trials,
        "width": job.width,
        "ranks": role.ranks * role.nodes if job.kind == "train" else 1,
        "objectives": [objective.model_dump() for objective in job.objectives],
        "population": job.search.population is not None,
        "constraints": [constraint.model_dump() for constraint in job.search.constraints],
        "watched": job.watched_metric,
    }


def _last_steps(reports: Sequence[ReportRow]) -> dict[int, int]:
    """Return the last reported step of each attempt, by its number."""
    last: dict[int, int] = {}
    for report in reports:
        last[report.number] = max(report.step, last.get(report.number, 0))
    return last


def _trained_steps(last_steps: dict[int, int], reports: Sequence[ReportRow]) -> dict[int, int]:
    """Return the number of steps that each attempt has trained, by its number.

    A job counts steps from 0 or from 1. If it has reported step 0, step 4 is the fifth one. For `last_steps`, see
    `_last_steps`.
    """
    counts_from_zero = any(report.step == 0 for report in reports)
    return {number: step + 1 if counts_from_zero else step for number, step in last_steps.items()}


def _start_time(record: RunRecord) -> float:
    """Return the origin of the times on the page, in seconds since the epoch.

    It is the request or the start of the first attempt or the first report, whichever is earlier, or else the submission.
    """
    starts = [time for attempt in record.attempts for time in (attempt.requested, attempt.started) if time]
    starts += [report.time for report in record.reports[:1]]
    return min(starts, default=record.status.created)


def _setting_texts(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each setting of the search, the resources and the budget. "" if it is not set."""
    job, budget = record.job, record.job.budget
    yield "objective", job.objectives_text
    if job.kind == "hpo":
        yield "sampler", job.search.sampler.name
        yield "pruner", job.search.pruner.name
        population = job.search.population
        yield "population", "" if population is None else population.comparison
    yield f"{job.noun}s", str(job.trials)
    yield "at a time", str(job.width)
    role = job.roles()[0]
    processes = role.ranks * role.nodes
    yield "processes", f"{processes} on {errors.counted(role.nodes, 'node')}" if processes > 1 else ""
    resources = job.resources
    gpus = f", {errors.counted(resources.gpus, 'GPU')}" if resources.gpus else ""
    yield "resources", f"{resources.cores}, {resources.memory}{gpus}"
    for name in ("time", "steps", "gpu_hours", "cost", "timeout", "max_failed", "failed_alike", "target"):
        limit = getattr(budget, name)
        unit = " s" if name in ("time", "timeout") else ""
        limit_text = f"{limit:g}" if isinstance(limit, float) else str(limit)
        yield f"budget.{name}", "" if limit is None else f"{limit_text}{unit}"
    yield "seed", str(job.seed)


def _best_trial(row: TrialRow) -> dict[str, Any]:
    """Return the facts of one of the best trials: its number, values and parameters."""
    return {
        "trial": row.trial,
        "values": [records.to_dict(value) for value in row.values],
        "params": [[name, columns.text(value)] for name, value in row.params.items()],
    }


def _commands(record: RunRecord, context: PageContext, best_trials: Sequence[TrialRow]) -> Iterator[tuple[str, str]]:
    """Yield the label and the command of each possible next step after a run.

    With several objectives, `best_trials` are the Pareto-optimal trials.
    """
    job, status = record.job, record.status
    flags = f" {context.flags}" if context.flags else ""
    run = shlex.quote(status.run)
    is_study, is_active = job.kind == "hpo", status.state.is_active
    if is_study and best_trials:
        yield from _commands_for_best(job, run, best_trials, flags)
    if is_active:
        yield "Follow the run", f"platform status {run} --watch{flags}"
    elif is_study:
        yield from _commands_to_continue(record, run, flags)
    elif job.kind == "collect":
        yield "Continue with more iterations", f"platform resume {run} --iterations {2 * job.trials}{flags}"
    elif status.state is RunState.SUCCEEDED:  # a training that has ended can only be continued by a new one
        newest_attempts = rows.newest_attempts(record.attempts)  # those of a trial share a folder of checkpoints
        may_have_checkpoint = any(attempt.saved is not False for attempt in newest_attempts)  # None: it is unknown
        if context.is_named and may_have_checkpoint:
            command = f"platform submit train {shlex.quote(job.name)} --resume {run}{flags}"
            yield "Train on from the newest checkpoint", command
    else:
        yield "Continue the run", f"platform resume {run}{flags}"
    yield "Open it in MLflow", f"platform ui {run}{flags}"
    if is_study:
        yield "Open it in optuna-dashboard", f"platform ui {run} --dashboard{flags}"
        yield "Export it for Optuna", f"platform export {run} sqlite:///{run}.db{flags}"
    yield "All results, with all digits", f"platform results {run} --output csv{flags} > {run}.csv"


def _commands_for_best(job: Job, run: str, best_trials: Sequence[TrialRow], flags: str) -> Iterator[tuple[str, str]]:
    """Yield the label and the command of each possible next step with the best trials of a study; see `_commands`.

    The parameters of a population's members change, so a trial with the last ones would not reproduce a member.
    """
    best = best_trials[0].trial
    trial = f" --trial {best}" if len(job.objectives) > 1 else ""
    if job.search.population is not None:
        yield "Save the best schedule of parameters", f"platform best {run} --schedule{flags} > best.yaml"
        return
    yield "Save the best parameters", f"platform best {run}{trial}{flags} > best.yaml"
    yield f"Run trial {best} again, with its code", f"platform submit hpo --from {run}:{best}{flags}"
    if len(job.objectives) == 1:
        yield "Train the best trials again, with new seeds", f"platform refit {run} --top 3 --seeds 5{flags}"


def _commands_to_continue(record: RunRecord, run: str, flags: str) -> Iterator[tuple[str, str]]:
    """Yield the label and the command of each way in which a study that is not active can continue; see `_commands`."""
    job, status = record.job, record.status
    has_failed = any(row.state is TrialState.FAILED for row in rows.newest_attempts(record.attempts))
    if has_failed and changes.can_retry(status, job):
        yield "Try the failed trials again", f"platform retry {run} --failed{flags}"
    extension = changes.extension(status, job)  # changed fields with which the run would continue
    if extension is None:  # it cannot continue
        return
    if not extension:  # it has trials left
        yield "Continue the run", f"platform resume {run}{flags}"
    elif "trials" in extension:
        yield "Continue with more trials", f"platform resume {run} --trials {extension['trials']}{flags}"
    else:
        ((field, value),) = extension.items()  # a field of the budget: twice its limit, or None for no target
        text = "null" if value is None else f"{value:.15g}"
        yield "Continue beyond its limit", f"platform resume {run} --set {field}={text}{flags}"


def _failures(attempts: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Return the kinds of failure, the most frequent first, each with the number of attempts and the first of them.

    Failures of one kind have the same class and the same first line of the message but for its numbers, and all or none are
    retried. The kind has the line of the first of them.
    """
    attempts_by_kind: dict[tuple[str, str, bool], list[TrialRow]] = collections.defaultdict(list)
    for attempt in attempts:
        if attempt.failure is None:
            continue
        line_without_numbers = _NUMBER.sub("0", _first_line(attempt))
        is_retried = attempt.state is not TrialState.FAILED  # a retried attempt is LOST, and FAILED is final
        attempts_by_kind[attempt.failure.value, line_without_numbers, is_retried].append(attempt)
    most_frequent = sorted(attempts_by_kind.items(), key=lambda item: -len(item[1]))
    return [
        {
            "class": failure_class,
            "line": _first_line(same_failures[0]),
            "retried": is_retried,
            "count": len(same_failures),
            "trial": same_failures[0].trial,
            "attempt": same_failures[0].attempt,
        }
        for (failure_class, _, is_retried), same_failures in most_frequent[:_MAX_FAILURES]
    ]


def _first_line(attempt: TrialRow) -> str:
    """Return the first line of the message of an attempt, shortened."""
    return errors.shortened(next(iter(attempt.message.splitlines()), ""), _MAX_TEXT)


def _costs(
    record: RunRecord, trials: Sequence[TrialRow], trained_steps: dict[int, int], context: PageContext
) -> dict[str, Any]:
    """Return the costs of a run: the usage that was used, lost and saved, and the share of time in which slots were idle.

    Args:
        record: Record of the run.
        trials: Newest attempt of each trial.
        trained_steps: Number of steps that each attempt has trained, by its number.
        context: Prices for the cost, and the current time.
    """
    times = {
        "used": savings.busy(record.attempts, context.now),
        "lost": savings.lost(record.attempts),
        "saved": Busy(savings.saved_seconds(trials, trained_steps, record.status.state.is_active)),
    }
    demand, prices = JobDemand.of(record.job), context.prices or record.status.prices
    usages = {name: Usage.of(busy, demand, prices) for name, busy in times.items()}
    busy_hours, available_hours = usages["used"].slot_hours, record.status.worked * record.status.slots / 3600
    is_known = available_hours > 0 and busy_hours > 0
    return {
        **{name: dataclasses.asdict(usage) for name, usage in usages.items()},
        "idle": max(0.0, 1 - busy_hours / available_hours) if is_known else None,
        "slots": record.status.slots,
        "method": savings.METHOD,
    }


def _trial_columns(
    job: Job, lineages: Sequence[Lineage], ranked: Sequence[TrialRow], last_steps: dict[int, int], start_time: float
) -> Iterator[Column]:
    """Yield the columns of the table of trials, with the newest attempt of each.

    Args:
        job: Job of the run.
        lineages: Lineage of each trial.
        ranked: Newest attempt of each trial, from best to worst.
        last_steps: Last reported step of each attempt, by its number.
        start_time: Origin of the times on the page.
    """
    trials = [trial_lineage.row for trial_lineage in lineages]
    rank_by_trial = {row.trial: rank for rank, row in enumerate(ranked)}
    front = {row.trial for row in rows.pareto_front(job, trials)} if len(job.objectives) > 1 else set()
    yield Column("trials", "trial", columns.unsigned(row.trial for row in trials))
    yield Column("trials", "rank", columns.unsigned(rank_by_trial[row.trial] for row in trials))
    yield Column("trials", "attempt", columns.unsigned(row.attempt for row in trials))
    yield Column("trials", "number", columns.unsigned(row.number for row in trials))
    yield columns.from_texts("trials", "state", [row.state.value for row in trials])
    yield Column("trials", "feasible", columns.unsigned(int(row.feasible) for row in trials))
    yield Column("trials", "front", columns.unsigned(int(row.trial in front) for row in trials))
    yield Column("trials", "seconds", columns.numbers(row.seconds for row in trials))
    yield Column("trials", "started", columns.offsets((row.started for row in trials), start_time))
    yield Column("trials", "ended", columns.offsets((row.ended for row in trials), start_time))
    yield Column("trials", "step", columns.numbers(last_steps.get(row.number) for row in trials))
    last_rungs = (trial_lineage.rungs[-1] if trial_lineage.rungs else None for trial_lineage in lineages)
    yield Column("trials", "rung", columns.numbers(last_rungs))
    yield columns.from_texts("trials", "failure", [row.failure and row.failure.value for row in trials])
    yield columns.from_texts("trials", "message", [row.message or None for row in trials])
    yield columns.from_texts("trials", "node", [row.node or None for row in trials])
    for name in dict.fromkeys([*job.required_metrics, *(name for row in trials for name in row.metrics)]):
        yield columns.from_values("trials", name, "metric", [row.metrics.get(name) for row in trials])
    parameters = job.search.parameters
    for name in dict.fromkeys(name for row in trials for name in row.params):
        log = bool(getattr(parameters.get(name), "log", False))
        yield columns.from_values("trials", name, "param", [row.params.get(name) for row in trials], log=log)


def _attempt_columns(record: RunRecord, start_time: float, now: float) -> Iterator[Column]:
    """Yield the columns of the table of attempts, for the timeline. Attempts without a start are left out."""
    spans: list[_Span] = []
    for attempt in record.attempts:
        if attempt.started is None:
            continue
        is_running = attempt.state is TrialState.RUNNING
        default_end = now if is_running else attempt.started + (attempt.seconds or 0.0)
        spans.append(_Span(attempt.started, attempt.ended or default_end, attempt))
    spans.sort(key=lambda span: (span.start, span.attempt.number))
    attempts, lanes = [span.attempt for span in spans], list(_lanes(spans))
    free_times, request_times = _times_before_starts(spans, lanes)
    yield Column("attempts", "trial", columns.unsigned(attempt.trial for attempt in attempts))
    yield Column("attempts", "attempt", columns.unsigned(attempt.attempt for attempt in attempts))
    yield Column("attempts", "number", columns.unsigned(attempt.number for attempt in attempts))
    yield columns.from_texts("attempts", "state", [attempt.state.value for attempt in attempts])
    yield columns.from_texts("attempts", "failure", [attempt.failure and attempt.failure.value for attempt in attempts])
    yield Column("attempts", "free", columns.offsets(free_times, start_time))
    yield Column("attempts", "requested", columns.offsets(request_times, start_time))
    yield Column("attempts", "start", columns.offsets((span.start for span in spans), start_time))
    yield Column("attempts", "end", columns.offsets((span.end for span in spans), start_time))
    yield Column("attempts", "lane", columns.unsigned(lanes))
    yield Column("attempts", "workers", columns.numbers(attempt.workers for attempt in attempts))


def _pause_columns(lineages: Sequence[Lineage]) -> Iterator[Column]:
    """Yield the columns of the table of pauses from which trials were promoted: the attempt's number, and the step."""
    pauses = [(trial_lineage.row.number, step) for trial_lineage in lineages for step in trial_lineage.pauses]
    yield Column("pauses", "number", columns.unsigned(number for number, _ in pauses))
    yield Column("pauses", "step", columns.numbers(step for _, step in pauses))


def _segment_columns(record: RunRecord, ranked: Sequence[TrialRow]) -> Iterator[Column]:
    """Yield the columns of the table of a population's segments, ordered by trial and step. Other runs have no segments.

    A step is the number of steps done. The lineage of the best trial, the first of `ranked`, consists of the segments that
    led to its state.
    """
    is_population = record.job.search.population is not None
    segments = sorted(lineage.segments(record.attempts), key=lambda row: (row.trial, row.done)) if is_population else []
    trained_steps = _trained_steps(_last_steps(record.trial_reports), record.trial_reports)
    line_of_best = {row.number for row in lineage.ancestors(record.attempts, ranked[0])} if segments else set()
    donors, metric = lineage.donors(segments), record.job.watched_metric
    yield Column("segments", "trial", columns.unsigned(row.trial for row in segments))
    yield Column("segments", "donor", columns.unsigned(donors.get(row.number, row.trial) for row in segments))
    yield Column("segments", "start", columns.numbers(row.done for row in segments))
    yield Column("segments", "end", columns.numbers(trained_steps.get(row.number, row.done) for row in segments))
    yield Column("segments", "value", columns.numbers(row.metrics.get(metric) for row in segments))
    yield Column("segments", "best", columns.unsigned(int(row.number in line_of_best) for row in segments))
    for name in dict.fromkeys(name for row in segments for name in row.params):
        yield columns.from_values("segments", name, "param", [row.params.get(name) for row in segments])


class _Span(NamedTuple):
    """An attempt on the timeline, with its start and end in seconds since the epoch."""

    start: float
    end: float
    attempt: TrialRow


def _times_before_starts(spans: Sequence[_Span], lanes: Sequence[int]) -> tuple[list[float | None], list[float | None]]:
    """Return for each attempt the time since which its slot was free, and the time at which the slot got it.

    The slot waits between the two, and then starts the attempt. Both are None if they are unknown. The `spans` are ordered
    by start.
    """
    free_times: list[float | None] = []
    request_times: list[float | None] = []
    last_end_by_lane: dict[int, float] = {}
    for span, lane in zip(spans, lanes, strict=True):
        # The clocks of two nodes may differ. The limits keep the order: the end before, the request, the start.
        lane_end = last_end_by_lane.get(lane, -math.inf)
        free_since = min(span.start, lane_end)
        is_first_of_lane, has_slot = lane_end == -math.inf, span.attempt.slot is not None
        free_times.append(free_since if has_slot and not is_first_of_lane else None)
        requested = span.attempt.requested
        request_times.append(None if requested is None else min(span.start, max(requested, free_since)))
        last_end_by_lane[lane] = max(span.end, lane_end)
    return free_times, request_times


def _lanes(spans: Sequence[_Span]) -> Iterator[int]:
    """Yield the lane of each attempt on the timeline: its slot, or if it has none, a free lane below those of all slots.

    An attempt whose result was known from an earlier run has no slot. The `spans` are ordered by start.
    """
    first_extra_lane = max((span.attempt.slot + 1 for span in spans if span.attempt.slot is not None), default=0)
    # Two heaps of extra lanes, which are numbered from 0: free ones, and occupied ones by the end of their attempt.
    free_lanes: list[int] = []
    occupied_lanes: list[tuple[float, int]] = []
    for span in spans:
        if span.attempt.slot is not None:
            yield span.attempt.slot
            continue
        while occupied_lanes and occupied_lanes[0][0] <= span.start:
            _, lane = heapq.heappop(occupied_lanes)
            heapq.heappush(free_lanes, lane)
        # If no lane is free, all lanes up to now are occupied, so their count is the number of the next one.
        lane = heapq.heappop(free_lanes) if free_lanes else len(occupied_lanes)
        heapq.heappush(occupied_lanes, (span.end, lane))
        yield first_extra_lane + lane
