"""A run as the start of another: its code and its resolved job in a folder, which is submitted like any other."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane.client.target import Target
from trialplane.errors import InputError
from trialplane.job import entrypoint, load
from trialplane.job.kinds import Job
from trialplane.plan import changes
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.wire import earlier, rows
from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

REFIT = "refit of "  # how the description of a refit begins


def source(text: str) -> tuple[str, int | None]:
    """Return the run and the trial of RUN or RUN:TRIAL.

    Raises:
        InputError: the trial is no number.
    """
    run, colon, trial = text.partition(":")
    if colon and not trial.isdecimal():
        raise InputError(f"--from {text}: {trial!r} is no number of a trial; write --from {run}:3")
    return run, int(trial) if colon else None


def trial(target: Target, run: str, number: int) -> TrialRow:
    """Return the newest attempt of a trial.

    Raises:
        InputError: the run has started no such trial.
    """
    for row in rows.newest_attempts(target.rows(run)[1]):
        if row.trial == number:
            return row
    raise InputError(f"the run {run} has started no trial {number}; `platform results {run}` shows its trials")


@contextlib.contextmanager
def folder(
    target: Target,
    run: str,
    fields: Mapping[str, Any],
    code: Path | None = None,
    *,
    allow_other_code: bool = False,
) -> Iterator[Path]:
    """Yield a folder with the job of a run, for as long as the context lasts.

    Args:
        target: of the run.
        run: its name.
        fields: fields of its job to replace; None drops one.
        code: folder of a job whose code to take. Default: the run's own.
        allow_other_code: whether that may differ from the run's.

    Raises:
        InputError: the code differs.
    """
    job = target.job(run)
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        root = Path(scratch, job.name)
        packing.unpack(target.code(run), root)
        (root / earlier.FILE).unlink(missing_ok=True)
        if code is not None:
            root = _with_code(root, load.load_job(code), code, run, allow_other_code)
        (root / load.FILE).write_text(json.dumps(_fields(job, fields), indent=2), encoding="utf-8")
        yield root


def best(job: Job, trials: list[TrialRow], number: int) -> list[TrialRow]:
    """Return the best feasible trials, at most `number` of them, without those that have equal parameters."""
    different: dict[str, TrialRow] = {}
    for row in rows.rank(job, trials):
        if row.state is TrialState.COMPLETE and row.feasible:
            different.setdefault(earlier.key(row.params), row)
    return list(different.values())[:number]


def refit(run: str, job: Job, trials: list[TrialRow], seeds: int) -> dict[str, Any]:
    """Return the fields by which a study becomes a refit of some of its trials: each with new seeds, in turns.

    Args:
        run: name of the study.
        job: its job.
        trials: the ones to train again.
        seeds: how often.
    """
    points = [dict(row.params) for row in trials]
    budget = {name: value for name, value in job.model_dump(mode="json")["budget"].items() if name == "timeout"}
    numbers = ", ".join(str(row.trial) for row in trials)
    return {
        "description": f"{REFIT}{run}: trials {numbers}",
        "enqueue": points * seeds,
        "trials": len(points) * seeds,
        "sampler": "random",
        "pruner": None,
        "history": None,
        "reuse": None,
        "duplicates": None,
        "keep": None,
        "budget": budget,
        "seed": (job.seed + 1) % 2**32,
    }


def groups(run: str, job: Job, trials: list[TrialRow]) -> dict[int, list[float]]:
    """Return the values of a refit's trials by the number of the trial that they repeat.

    Raises:
        InputError: the run is no refit.
    """
    if not job.description.startswith(REFIT):
        raise InputError(f"{run} is no refit of another run; `platform refit {run}` starts one")
    numbers = [int(number) for number in job.description.rpartition(" trials ")[2].split(", ")]
    values: dict[int, list[float]] = {number: [] for number in numbers}
    for row in trials:
        if row.state is TrialState.COMPLETE:
            values[numbers[row.trial % len(numbers)]].append(row.values[0])
    return values


def _fields(job: Job, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's own fields; its packages are in the folder of code already."""
    fields = job.model_dump(mode="json", exclude_defaults=True, exclude={"name", "packages"})
    fields = {**fields, "kind": job.kind, **changed}
    return {name: value for name, value in fields.items() if value is not None}


def _with_code(root: Path, job: Job, code: Path, run: str, allow_other_code: bool) -> Path:
    """Return a folder with the code of a job, after a comparison with that of the run in `root`."""
    other = root.with_name(f"{root.name}-code") / root.name
    packing.unpack(packing.pack(code, entrypoint.packages(job, code)).data, other)
    before, after = (changes.contents(packing.pack(path).data) for path in (root, other))
    lines = [line for line in planning.code_difference(before, after) if not line.startswith(f"{load.FILE}: ")]
    if lines and not allow_other_code:
        shown = "\n".join(f"  {line}" for line in lines)
        raise InputError(
            f"the code in {code} is not that of {run}:\n{shown}\n"
            "--other-code takes it anyway; without the job's name, the run's own code is taken"
        )
    return other
