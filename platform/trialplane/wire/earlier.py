"""Trials of earlier runs that are part of a submission: history for its sampler, results, and checkpoints to start from.

It also has the attempts of one earlier run, which the new one repeats without training as long as it decides the same.

The submitter reads them with the rights of the user and sends them with the job's code, because a run's token opens no other
run's ledger. So a run sees earlier runs as they were at its submission.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialplane.wire import records
from trialplane.wire.records import BestReport, TrialOutcome

FILE = ".trialplane-earlier.json"  # hidden, because hidden files of a job's own folder are not packed by default


@dataclasses.dataclass(frozen=True)
class EarlierTrial:
    """A trial of an earlier run.

    Attributes:
        run: Name of its run.
        trial: Number of the trial in that run.
        params: Parameters, by name. In `history`, those of the new space. In `results`, all, with the fixed ones.
        values: Values of the objectives. Empty if the trial was pruned or failed.
        metrics: Metrics, by name.
        step: Last step that it reported. 0 if it reported none.
        pruned: Whether it was pruned.
        returned: Other values that it returned.
        out_of_memory: Whether it was out of memory, and trials of the new run with these parameters would be, too.
    """

    run: str
    trial: int
    params: Mapping[str, Any]
    values: tuple[float, ...] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    step: int = 0
    pruned: bool = False
    returned: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    out_of_memory: bool = False


@dataclasses.dataclass(frozen=True)
class Beginning:
    """The newest checkpoint of an earlier run's trial, up to which a trial of the new run would be trained in the same way.

    Attributes:
        run: Name of the earlier run.
        trial: Number of the trial in that run.
        params: All parameters of a trial of the new run that starts from it.
        seed: Seed of the earlier trial.
        digest: Digest of the trial's checkpoints, see `CheckpointSummary`.
        step: Last step that the trial has reported. The checkpoint may be of an earlier one.
        offset: 1 if the code counts its steps from 0, so that a checkpoint of step 3 is of four steps; 0 if from 1.
        best: Best reports of the trial, for objectives with `of: best`.
    """

    run: str
    trial: int
    params: Mapping[str, Any]
    seed: int
    digest: str
    step: int = 0
    offset: int = 0
    best: Mapping[str, BestReport] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EarlierAttempt:
    """An attempt of an earlier run, with its retries.

    Attributes:
        run: Name of the earlier run.
        trial: Number of the trial.
        params: All parameters.
        seed: Seed of the trial.
        rung: Number of steps after which it was paused; 0 if it was to train to the end.
        done: Number of steps that were trained before.
        ended_before: Positions of the attempts that ended after the start of the attempt before this one, and before the
            start of this one, in the order of their ends.
        outcome: Its end. None if it must be trained again.
        reports: Step and metrics of each report, in order.
    """

    run: str
    trial: int
    params: Mapping[str, Any]
    seed: int
    rung: int = 0
    done: int = 0
    ended_before: tuple[int, ...] = ()
    outcome: TrialOutcome | None = None
    reports: tuple[tuple[int, Mapping[str, float]], ...] = ()


@dataclasses.dataclass(frozen=True)
class Earlier:
    """Trials of earlier runs.

    Attributes:
        history: Trials that the sampler learns from.
        results: Complete trials of the same code, data and seed. The run takes over their results instead of repeating them.
        beginnings: Checkpoints of trials of the same code, data and seed, from which trials of the run start.
        followed: Attempts of one earlier run with the same code, data, seed and pruner, in the order of their starts. They
            are repeated without training as long as the run decides the same.
    """

    history: tuple[EarlierTrial, ...] = ()
    results: tuple[EarlierTrial, ...] = ()
    beginnings: tuple[Beginning, ...] = ()
    followed: tuple[EarlierAttempt, ...] = ()

    def pack(self) -> bytes:
        """Return the content of `FILE`. Empty if there are no earlier trials."""
        return records.to_json(self).encode() if self != Earlier() else b""


def read(code: Path) -> Earlier:
    """Return the earlier trials of a submission, from the folder with its code. All tuples are empty without the file."""
    file = code / FILE
    return parse(file.read_bytes()) if file.is_file() else Earlier()


def parse(content: bytes) -> Earlier:
    """Return the earlier trials in the content of `FILE`."""
    return records.from_json(Earlier, content)


def answer_message(run: str, trial: int) -> str:
    """Return the message of a trial that takes over the end of a trial of an earlier run."""
    return f"answered by trial {trial} of {run}, which has the same parameters"


def params_key(params: Mapping[str, Any]) -> str:
    """Return a text that is the same for equal parameters, to find a trial with the same ones. 1 and 1.0 are equal."""
    # `type(value) is int` and not isinstance, because a boolean is an int in Python, and True is not equal to 1 here.
    comparable = {name: float(value) if type(value) is int else value for name, value in params.items()}
    return json.dumps(comparable, sort_keys=True, default=str)
