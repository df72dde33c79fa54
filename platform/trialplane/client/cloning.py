"""Copies of a run as new jobs: a folder with its code and resolved job, and the fields of a refit."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane.client.run import RunHandle
from trialplane.client.target import Target
from trialplane.errors import InputError
from trialplane.job import load
from trialplane.job.kinds import Job, Study, Training
from trialplane.plan import changes
from trialplane.plan import pack as packing
from trialplane.plan import plan as planning
from trialplane.plan.refit import Candidate
from trialplane.wire import earlier, labels, rows
from trialplane.wire.exports import Registration
from trialplane.wire.records import TrialRow
from trialplane.wire.states import TrialState

REFIT = "refit of "  # beginning of the description of a refit


def parse_source(text: str) -> tuple[str, int | None]:
    """Return run and trial of the text RUN:TRIAL, such as ("tune", 3) of tune:3. The trial of RUN is None.

    Raises:
        InputError: The trial is not a number.
    """
    run, colon, trial = text.partition(":")
    if colon and not trial.isdecimal():
        raise InputError(f"--from {text}: {trial!r} is not the number of a trial; write --from {run}:3")
    return run, int(trial) if colon else None


def newest_attempt(target: Target, run: str, trial: int) -> TrialRow:
    """Return the newest attempt of a trial.

    Raises:
        InputError: The run has not started this trial.
    """
    for row in rows.newest_attempts(target.rows(run)):
        if row.trial == trial:
            return row
    raise InputError(f"the run {run} has started no trial {trial}; `platform results {run}` shows its trials")


@contextlib.contextmanager
def job_folder(
    target: Target,
    run: str,
    fields: Mapping[str, Any],
    code: Path | None = None,
    *,
    allow_other_code: bool = False,
) -> Iterator[Path]:
    """Yield a temporary folder with the job of a run. It is removed at the end of the context.

    Args:
        target: Target of the run.
        run: Name of the run.
        fields: Fields of the job to replace. None removes a field.
        code: Folder of a job whose code replaces that of the run. Default: the run's own code.
        allow_other_code: Whether the code in `code` may differ from that of the run.

    Raises:
        InputError: The code in `code` differs, and `allow_other_code` is not set.
    """
    job = target.job(run)
    with tempfile.TemporaryDirectory(prefix="trialplane-") as scratch:
        root = Path(scratch, job.name)
        packing.unpack(target.code(run), root)
        (root / earlier.FILE).unlink(missing_ok=True)  # trials of earlier runs, which are collected anew for a new run
        if code is not None:
            root = _unpack_other_code(root, load.load_job(code), code, run, allow_other_code)
        (root / load.FILE).write_text(json.dumps(_job_fields(job, fields), indent=2), encoding="utf-8")
        yield root


def best_trials(job: Job, trials: list[TrialRow], number: int) -> list[TrialRow]:
    """Return at most `number` of the best feasible trials. Of trials with equal parameters, only the best is returned."""
    by_params: dict[str, TrialRow] = {}
    for row in rows.ranked(job, trials):
        if row.state is TrialState.COMPLETE and row.feasible:
            by_params.setdefault(earlier.params_key(row.params), row)
    return list(by_params.values())[:number]


def refit_fields(run: str, job: Job, trials: list[TrialRow], seeds: int, *, keeps_files: bool = False) -> dict[str, Any]:
    """Return the job's fields that turn a study into a refit, which trains some of its trials again with new seeds.

    Args:
        run: Name of the study.
        job: Job of the study.
        trials: Trials to train again.
        seeds: Number of times to train each trial.
        keeps_files: Whether to keep the files in the job's `keep` of every trial.
    """
    files = job.keep.files if keeps_files and isinstance(job, Study) and job.keep is not None else ()
    points = [dict(row.params) for row in trials]
    numbers = ", ".join(str(row.trial) for row in trials)
    # Each configuration must run to its end, once for each seed. So nothing is sampled, pruned, reused or left out as a
    # duplicate, and of the budget only the time limit of a trial stays.
    return {
        "description": f"{REFIT}{run}: trials {numbers}",
        "enqueue": points * seeds,
        "trials": len(points) * seeds,
        "sampler": "random",
        "pruner": None,
        "history": None,
        "reuse": None,
        "duplicates": None,
        "avoid_oom": None,
        "keep": {"best": len(points) * seeds, "files": list(files)} if files else None,
        "budget": job.budget.model_dump(mode="json", include={"timeout"}),
        "seed": (job.seed + 1) % 2**32,
    }


def training_fields(run: str, job: Job, trial: TrialRow) -> dict[str, Any]:
    """Return the job's fields that turn a study into a training with the parameters of one of its trials and a new seed."""
    environment = {
        variable: field for variable, field in job.environment.items() if field.split(".")[0] in Training.model_fields
    }
    return {
        **dict.fromkeys(Study.model_fields.keys() - Training.model_fields.keys()),  # None removes what only a study has
        "kind": "train",
        "description": f"training of {run}: trial {trial.trial}",
        "params": {**job.params, **trial.params},
        "environment": environment,
        "budget": job.budget.model_dump(mode="json", include={"timeout"}),
        "cluster": job.cluster.model_dump(mode="json", exclude_defaults=True, exclude={"autoscale"}),
        "seed": (job.seed + 1) % 2**32,
    }


def refit_trials(run: str, job: Job, trials: list[TrialRow]) -> dict[int, list[TrialRow]]:
    """Return a refit's complete trials, by the number of the original trial that they repeat.

    Raises:
        InputError: The run is not a refit.
    """
    if not job.description.startswith(REFIT):
        raise InputError(f"{run} is not a refit of another run; `platform refit {run}` starts one")
    # `refit_fields` has written the description: "refit of tune: trials 3, 17".
    numbers = [int(number) for number in job.description.rpartition(" trials ")[2].split(", ")]
    repetitions: dict[int, list[TrialRow]] = {number: [] for number in numbers}
    for row in trials:
        if row.state is TrialState.COMPLETE:
            original = numbers[row.trial % len(numbers)]  # `enqueue` repeats the list of trials once for each seed
            repetitions[original].append(row)
    return repetitions


def registration(handle: RunHandle, winner: Candidate, trials: list[TrialRow], model: str) -> Registration:
    """Return the registration of a refit's winner in a model registry.

    Of the trials with the winner's configuration, the one whose value is nearest to the mean is registered.

    Args:
        handle: The refit.
        winner: Best configuration.
        trials: Trials with this configuration and different seeds.
        model: Name in the registry.
    """
    run, job = handle.name, handle.job
    earlier_run = job.description.removeprefix(REFIT).rpartition(": trials ")[0]  # tune, of "refit of tune: trials 3, 17"
    typical = min(trials, key=lambda row: (abs(row.values[0] - winner.mean), row.trial))
    metric = job.objectives[0].metric
    interval = f"{metric} {winner.mean:.6g} ± {winner.margin:.3g} (95 %, {len(trials)} seeds)"
    return Registration(
        model=model,
        identity=labels.identity(run, handle.target.submission(run)),
        number=typical.first,  # a trial's run in MLflow has the ledger number of its first attempt
        numbers=tuple(row.first for row in trials),
        description=f"{interval}. Winner of the refit {run} of trial {winner.trial} of {earlier_run}.",
        tags={
            "trialplane.refit": run,
            labels.RUN: earlier_run,
            labels.TRIAL: str(winner.trial),
            "trialplane.metric": metric,
            "trialplane.mean": repr(winner.mean),
            "trialplane.margin": repr(winner.margin),
            "trialplane.values": json.dumps([row.values[0] for row in trials]),
        },
    )


def _job_fields(job: Job, replacements: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job that differ from their defaults, with replacements.

    The name and the packages are left out: the folder with the job's code has this name, and contains them.
    """
    fields = job.model_dump(mode="json", exclude_defaults=True, exclude={"name", "packages"})
    fields = {**fields, "kind": job.kind, **replacements}
    return {name: value for name, value in fields.items() if value is not None}


def _unpack_other_code(root: Path, job: Job, code: Path, run: str, allow_other_code: bool) -> Path:
    """Copy the code in a job's folder `code` to a new folder beside `root`, which has the code of a run, and return it.

    Raises:
        InputError: The code differs from that of the run, and `allow_other_code` is not set.
    """
    new_root = root.with_name(f"{root.name}-code") / root.name  # a folder of the same name, as it names the job
    packing.unpack(planning.pack_job(job, code).data, new_root)
    # Both folders are packed in the same way, because a pack may leave out or add files. The job's file is not compared,
    # because the caller replaces it.
    old_files, new_files = (changes.contents(packing.pack(path).data) for path in (root, new_root))
    lines = [line for line in planning.code_difference(old_files, new_files) if not line.startswith(f"{load.FILE}: ")]
    if lines and not allow_other_code:
        list_of_lines = "\n".join(f"  {line}" for line in lines)
        raise InputError(
            f"the code in {code} is not that of {run}:\n{list_of_lines}\n"
            "--other-code uses it anyway; without the job's name, the run's own code is used"
        )
    return new_root
