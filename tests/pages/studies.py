"""Runs as the ledger tells of them, of any size, without a controller; the same for the same arguments."""

from __future__ import annotations

import array
import base64
import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trialplane.controller import population as populations
from trialplane.controller import promotion
from trialplane.job import kinds
from trialplane.job.kinds import Job
from trialplane.job.population import Intervals
from trialplane.pages import columns
from trialplane.pages.content import PageContext, RunRecord
from trialplane.plan import plan as planning
from trialplane.wire import ranks as rank_metrics
from trialplane.wire import rows
from trialplane.wire.progress import CollectionProgress
from trialplane.wire.records import ReportRow, RunStatus, TrialRow
from trialplane.wire.states import FailureClass, RunState, TrialState
from trialplane.wire.units import WorkerStatus

BEGAN = 1_790_000_000.0
SPACE: dict[str, Any] = {
    "lr": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
    "dropout": {"type": "float", "low": 0.0, "high": 0.6},
    "layers": {"type": "int", "low": 1, "high": 12},
    "optimizer": {"type": "categorical", "choices": ["adam", "sgd", "lion"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
    "batch": {"type": "categorical", "choices": [16, 32, 64, 128]},
}
AROUND = PageContext("--local", True, None, BEGAN + 86_400)
# A text that would run in a page if it were markup.
HOSTILE = (
    "<img src=x onerror=\"alert('A')\"></script><script>alert('B')</script>{{7*7}}%{x}<a href='javascript:alert(1)'>c</a>"
)


def job(trials: int, **fields: Any) -> Job:
    """The job of a study."""
    return kinds.read(
        {
            "name": "demo",
            "kind": "hpo",
            "objectives": [{"metric": "loss", "direction": "minimize"}],
            "space": SPACE,
            "pruner": "median",
            "trials": trials,
            "parallel": 8,
            **fields,
        }
    )


def drawn(chance: random.Random) -> dict[str, Any]:
    """Parameters of a trial."""
    params: dict[str, Any] = {
        "lr": 10 ** chance.uniform(-5, -1),
        "dropout": chance.uniform(0, 0.6),
        "layers": chance.randint(1, 12),
        "optimizer": chance.choice(["adam", "sgd", "lion"]),
        "batch": chance.choice([16, 32, 64, 128]),
    }
    if params["optimizer"] == "sgd":
        params["momentum"] = chance.uniform(0, 0.99)
    return params


def loss(params: Mapping[str, Any]) -> float:
    """A valley with some noise of the parameters."""
    return (
        0.08 * (math.log10(params["lr"]) + 3) ** 2
        + 0.3 * (params["dropout"] - 0.2) ** 2
        + {"adam": 0.0, "sgd": 0.08, "lion": 0.04}[params["optimizer"]]
        + 0.004 * abs(params["layers"] - 6)
        + 0.1
    )


def study(
    trials: int,
    *,
    steps: int = 12,
    metrics: Callable[[Mapping[str, Any], float], dict[str, float]] = lambda params, value: {"loss": value},
    seed: int = 0,
    run: str = "",
    state: RunState = RunState.SUCCEEDED,
    **fields: Any,
) -> RunRecord:
    """A study that ended, in which some trials were pruned, failed, or were lost and retried.

    Args:
        trials: number of them.
        steps: reports of a complete trial.
        metrics: of a trial, from its parameters and its loss.
        seed: of all chance.
        run: name of the run.
        state: of the run.
        **fields: of the job.
    """
    chance = random.Random(seed)
    job_ = job(max(1, trials), **{"seed": seed, **fields})
    attempts: list[TrialRow] = []
    reports: list[ReportRow] = []
    free = [BEGAN + index * 0.3 for index in range(8)]
    for trial in range(trials):
        params = drawn(chance)
        final = loss(params) + chance.gauss(0, 0.01)
        fate = chance.random()
        count = steps if fate > 0.45 else max(1, int(steps * chance.uniform(0.1, 0.7)))
        slot = min(range(8), key=free.__getitem__)
        seconds = count * (2 + params["layers"] / 4)
        start, number = free[slot] + chance.uniform(0.1, 2), len(attempts)
        requested = (2 * free[slot] + start) / 3
        common = {
            "params": params,
            "requested": requested,
            "started": start,
            "node": f"pod-{slot}",
            "log": f"trials/{trial:04d}/attempt-1.log",
        }
        curve = [(step, final + 0.6 * math.exp(-4 * step / steps) * (1 + chance.gauss(0, 0.05))) for step in range(count)]
        for step, value in curve:
            mark = len(reports) + 1
            reports.append(ReportRow(mark, trial, 1, number, step, {"loss": value, "accuracy": 1 - value}, start + step))
        values = metrics(params, final)
        if fate < 0.03:
            text = chance.choice(["CUDA out of memory", "the loss is nan", "ValueError: shapes (3,4) and (5,) differ"])
            row = TrialRow(trial, TrialState.FAILED, 1, number, failure=FailureClass.ERROR, message=text, **common)
        elif fate < 0.05:
            lost = TrialRow(
                trial, TrialState.LOST, 1, number, failure=FailureClass.LOST, message="its pod was evicted", **common
            )
            attempts.append(dataclasses.replace(lost, seconds=seconds, ended=start + seconds))
            common["requested"] = common["started"] = start = start + seconds + 1
            row = TrialRow(trial, TrialState.COMPLETE, 2, number + 1, metrics=values, values=_values(job_, values), **common)
        elif fate < 0.45:
            row = TrialRow(trial, TrialState.PRUNED, 1, number, metrics={"loss": curve[-1][1]}, **common)
        else:
            row = TrialRow(trial, TrialState.COMPLETE, 1, number, metrics=values, values=_values(job_, values), **common)
        if row.state is TrialState.COMPLETE:
            feasible = all(bound.excess(values[bound.metric]) <= 0 for bound in job_.search.constraints)
            row = dataclasses.replace(row, feasible=feasible)
        attempts.append(dataclasses.replace(row, seconds=seconds, ended=start + seconds))
        free[slot] = start + seconds
    return recorded(job_, attempts, reports, run=run or f"study-{trials}", state=state)


def promoted(trials: int, *, top: int = 64, factor: int = 4, seed: int = 0) -> RunRecord:
    """A study with promotion, as the controller's own rule decides it on one slot; a step takes a second.

    Args:
        trials: number of them.
        top: steps of a whole trial.
        factor: ratio between rungs.
        seed: of all chance.
    """
    chance = random.Random(seed)
    pruner = {"name": "asha", "promote": True, "max_resource": top, "reduction_factor": factor}
    job_ = job(trials, seed=seed, pruner=pruner, parallel=1)
    ladder = job_.search.ladder
    assert ladder is not None
    rule = promotion.Promotion(ladder, trials)
    params = [drawn(chance) for _ in range(trials)]
    attempts: list[TrialRow] = []
    reports: list[ReportRow] = []
    count, moment = 0, BEGAN
    while (stretch := rule.next_stretch(count if count < trials else None)) is not None:
        if stretch.trial is None:
            stretch, count = rule.first_stretch(count), count + 1
        trial = stretch.trial
        assert trial is not None
        rule.record_start(stretch)
        last, begun, number = stretch.rung or top, moment, len(attempts)
        attempt = 1 + sum(row.trial == trial for row in attempts)
        for step in range(stretch.done + 1, last + 1):
            moment += 1
            value = loss(params[trial]) + 0.6 * math.exp(-6 * step / top)
            reports.append(ReportRow(len(reports) + 1, trial, attempt, number, step, {"loss": value}, moment))
        times = {"requested": begun - 0.2, "started": begun, "ended": moment, "seconds": moment - begun, "slot": 0}
        ended = TrialState.PAUSED if stretch.rung else TrialState.COMPLETE
        values = () if stretch.rung else (value,)
        attempts.append(TrialRow(trial, ended, attempt, number, values, params[trial], {"loss": value}, step=last, **times))
        rule.record_end(trial, ended, last, (value,))
        moment += 0.5
        for dropped in rule.find_hopeless():
            rule.drop(dropped)
            newest = max(row.number for row in attempts if row.trial == dropped)
            attempts[newest] = dataclasses.replace(attempts[newest], state=TrialState.PRUNED)
    return recorded(job_, attempts, reports, run=f"promoted-{trials}", state=RunState.SUCCEEDED)


def population(members: int, *, top: int = 64, interval: int = 8, seed: int = 0) -> RunRecord:
    """A population, as the controller's own rule decides it; all members train at once, and a step takes a second.

    Args:
        members: number of them.
        top: steps of a whole trial.
        interval: steps between two decisions.
        seed: of all chance.
    """
    chance = random.Random(seed)
    fields = {"interval": interval, "steps": top, "fixed": ["layers"]}
    job_ = job(members, seed=seed, population=fields, parallel=members, pruner="none")
    assert job_.search.population is not None and isinstance(job_.search.ladder, Intervals)
    rule = populations.Members(job_.search.population, job_.search.ladder, members, seed)
    params = {member: drawn(chance) for member in range(members)}
    reached = dict.fromkeys(range(members), 1.0)  # the share of the way to its best loss that a member has left
    states: dict[tuple[int, int], tuple[int, dict[str, Any], float]] = {}  # what a checkpoint is: attempt, parameters, way
    attempts: list[TrialRow] = []
    reports: list[ReportRow] = []
    begun = 0
    while (stretch := rule.next_stretch(begun if begun < members else None)) is not None:
        if stretch.trial is None:
            stretch, begun = dataclasses.replace(stretch, trial=begun), begun + 1
        member, number, parent = stretch.trial, len(attempts), None
        assert member is not None
        if stretch.parent is not None:
            changed = rule.params(stretch, job_.search.parameters, states[stretch.parent][1])
            parent, _, reached[member] = states[stretch.parent]
            params[member] = params[member] if changed is None else changed
        rule.record_start(stretch)
        last, start, value = stretch.rung or top, BEGAN + stretch.done, 0.0
        for step in range(stretch.done + 1, last + 1):
            reached[member] *= 1 - 0.1 * min(1.0, max(0.1, 1 - 0.3 * abs(math.log10(params[member]["lr"]) + 3)))
            value = loss(params[member]) + reached[member]
            metrics = {"loss": value}
            reports.append(ReportRow(len(reports) + 1, member, 1, number, step, metrics, BEGAN + step))
        attempt = 1 + sum(row.trial == member for row in attempts)
        times = {"started": start, "ended": BEGAN + last, "seconds": float(last - stretch.done), "slot": member}
        ended = TrialState.PAUSED if stretch.rung else TrialState.COMPLETE
        values = () if stretch.rung else (value,)
        row = TrialRow(member, ended, attempt, number, values, dict(params[member]), {"loss": value}, step=last, **times)
        attempts.append(dataclasses.replace(row, done=stretch.done, parent=parent))
        states[member, last] = number, dict(params[member]), reached[member]
        rule.record_end(member, ended, last, (value,))
    return recorded(job_, attempts, reports, run=f"population-{members}", state=RunState.SUCCEEDED)


def training(ranks: int, *, steps: int = 2000, slow: int | None = None, seed: int = 0) -> RunRecord:
    """A training that reports as `training.progress` does, was lost once and goes on.

    Args:
        ranks: number of them.
        steps: steps so far.
        slow: the rank that holds the others up for a while; None for none.
        seed: of all chance.
    """
    chance = random.Random(seed)
    job_ = kinds.read({"name": "pretrain", "kind": "train", "ranks": ranks, "params": {"lr": 3e-4, "batch": 256}})
    lost = TrialRow(
        0, TrialState.LOST, 1, 0, failure=FailureClass.LOST, message="its pod was evicted", started=BEGAN,
        ended=BEGAN + 0.2 * steps, seconds=0.2 * steps, slot=0,
    )  # fmt: skip
    running = TrialRow(0, TrialState.RUNNING, 2, 1, params={"lr": 3e-4, "batch": 256}, started=BEGAN + 0.25 * steps)
    reports = []
    for index, step in enumerate(range(0, steps + 1, 20)):
        is_second = step > 0.4 * steps
        own = {rank: 0.4 * (1 + 0.04 * chance.random()) for rank in range(ranks)}
        remarks = {}
        if slow is not None and 0.5 < step / steps < 0.7:
            own[slow] *= 2.5
            remarks = {rank_metrics.SLOWEST_RANK: float(slow), rank_metrics.SLOWEST_RANK_FACTOR: 2.5}
        seconds = max(own.values()) + 0.05
        metrics = {
            "loss": 2.2 + 8 * math.exp(-6 * step / steps) + 0.05 * chance.gauss(0, 1),
            "lr": 3e-4 * min(1.0, step / (0.1 * steps)),
            "grad_norm": 1 + 4 * math.exp(-4 * step / steps) * chance.random(),
            "tokens_per_second": 1e6 / seconds,
            "tokens_per_second_and_rank": 1e6 / seconds / ranks,
            "seconds_per_step": seconds,
            "seconds_left": (2 * steps - step) * seconds,
            "total_steps": 2.0 * steps,
            **remarks,
            **rank_metrics.as_metrics(own if ranks > 1 else {}),
        }
        time = BEGAN + (0.25 * steps if is_second else 0) + 0.5 * step
        reports.append(ReportRow(index + 1, 0, 1 + is_second, int(is_second), step, metrics, time))
    return recorded(job_, [lost, running], reports, run="pretrain", state=RunState.RUNNING)


def collection(iterations: int) -> RunRecord:
    """A collection that goes on, with two workers."""
    collect = {"iterations": iterations + 10, "units": 2, "learner": "train:learn"}
    job_ = kinds.read({"name": "play", "kind": "collect", "collect": collect})
    chance = random.Random(0)
    ended = [
        TrialRow(
            number, TrialState.COMPLETE, 1, number, started=BEGAN + 60.0 * number, ended=BEGAN + 55 + 60.0 * number,
            metrics={"elo": 800 * (1 - math.exp(-number / 12)) + 15 * chance.random(), "games": 64.0, "units": 2.0},
            values=(1.0,), seconds=55.0, slot=0,
        )
        for number in range(iterations)
    ]  # fmt: skip
    made = recorded(job_, ended, [], run="play", state=RunState.RUNNING)
    workers = (
        WorkerStatus(0, "working", "pod-1", units=12, items=384, seconds=50.0),
        WorkerStatus(1, "working", "pod-2", units=9, items=288, seconds=52.0),
    )
    progress = CollectionProgress(iteration=iterations, units=2, units_total=2, items=96, workers=workers)
    return dataclasses.replace(made, status=dataclasses.replace(made.status, progress=progress))


def recorded(made: Job, attempts: list[TrialRow], reports: list[ReportRow], *, run: str, state: RunState) -> RunRecord:
    """A run of these attempts, with the status that a controller would give."""
    newest = rows.newest_attempts(attempts)
    counts = {state: sum(row.state is state for row in newest) for state in TrialState}
    ended = max((row.ended or BEGAN for row in attempts), default=BEGAN)
    status = dataclasses.replace(
        planning.pending_status(run, made, BEGAN),
        state=state,
        reason="",
        complete=counts[TrialState.COMPLETE],
        pruned=counts[TrialState.PRUNED],
        failed=counts[TrialState.FAILED],
        running=counts[TrialState.RUNNING],
        best=rows.best_trial(made, newest),
        started=BEGAN,
        ended=ended,
        updated=ended,
        worked=ended - BEGAN,
    )
    assert isinstance(status, RunStatus)
    return RunRecord(made, status, attempts, reports)


def _values(made: Job, values: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(values[objective.metric] for objective in made.objectives)


def unpacked(
    directory: Sequence[Mapping[str, Any]], block: str, known: Mapping[tuple[str, str], list[Any]] | None = None
) -> dict[tuple[str, str], list[Any]]:
    """Return the values of packed columns by table and name, texts and NaN as they were: what the page reads.

    Args:
        directory: of the columns.
        block: their bytes.
        known: what the page had before.
    """
    data = base64.b64decode(block)
    codes = {name: code for code, name in columns.TYPES.items()}
    tables: dict[tuple[str, str], list[Any]] = {}
    for entry in directory:
        values = array.array(codes[entry["type"]])
        values.frombytes(data[entry["offset"] : entry["offset"] + entry["length"] * values.itemsize])
        old = (known or {}).get((entry["table"], entry["name"]), [])
        texts = entry.get("texts")
        if texts is not None:  # in the order of their first rows
            texts = [*list(dict.fromkeys(text for text in old if text is not None))[: entry.get("kept_texts", 0)], *texts]
        decoded = list(values) if texts is None else [texts[code - 1] if code else None for code in values]
        decoded = [*old[: entry.get("kept", 0)], *decoded]
        tables[entry["table"], entry["name"]] = decoded
    return tables
