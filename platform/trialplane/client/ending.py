"""Why a run that ended has nothing to do, and what to type so that it has. Pure."""

from __future__ import annotations

from trialplane import errors
from trialplane.spec.jobs import Job
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState


def nothing_to_do(status: RunStatus, old: Job, job: Job, where: str = "") -> str:
    """Why a resumed run would end again at once, and what to type; "" when it goes on.

    Args:
        status: of the run, with exact counts.
        old: its job.
        job: its job with the changes asked for.
        where: what a submission needs to go to the same place: " --local".
    """
    if old.count_field not in old.changeable and status.ended_trials >= job.trials and not status.failed:
        return _done(status, job, where)  # a training: no change makes it go on
    resume = f"`platform resume {status.run}"
    counts = f"{status.ended_trials} of {errors.counted(job.trials, job.noun)}"
    used = _used_up(status, job)
    if used is not None and status.state in (RunState.SUCCEEDED, RunState.FAILED):
        return (
            f"the run {status.run} has {status.state.lower()}: budget.time ({used:g} s) was used up after "
            f"{counts}; {resume} --set budget.time={2 * used:g}` goes on until it has worked that long in all, "
            "budget.time=null without end"
        )
    if status.state is not RunState.SUCCEEDED:
        return ""
    done = f"the {job.title} {status.run} has succeeded"
    if _is_reached(status, job):
        return (
            f"{done}: it reached budget.target ({job.budget.target:g}) after {counts}; "
            f"{resume} --set budget.target=null` goes on without a target, or set a better one"
        )
    if job != old:
        return ""
    if status.ended_trials >= job.trials:
        return _done(status, job, where)
    return (
        f"{done}: every point of the space was tried, in {counts}; a larger space is another study, under another name. "
        f"{resume} --trials N` looks for more points all the same"
    )


def _done(status: RunStatus, job: Job, where: str) -> str:
    return f"the {job.title} {status.run} has succeeded, and nothing is left to do; {job.further(status.run, where)}"


def _is_reached(status: RunStatus, job: Job) -> bool:
    if job.budget.target is None or status.best is None or not status.best.values:
        return False
    value = status.best.values[0]
    return value >= job.budget.target if job.objectives[0].direction == "maximize" else value <= job.budget.target


def _used_up(status: RunStatus, job: Job) -> float | None:
    """The time budget, in seconds, when it was used up before all trials had ended."""
    limit = job.budget.time
    return limit if limit is not None and status.worked > limit and status.ended_trials < job.trials else None
