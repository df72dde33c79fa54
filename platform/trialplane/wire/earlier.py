"""Trials of earlier runs that travel with a submission: those that its sampler learns from, and results to take over.

The submitter reads both, with the rights of the user, and sends them with the job's code: a run's token opens no other run's
ledger. So a run sees earlier runs as they were when it was submitted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialplane.wire import records

FILE = ".trialplane-earlier.json"  # hidden, so no file of a job's folder has this name


@dataclasses.dataclass(frozen=True)
class EarlierTrial:
    """A trial of an earlier run.

    Attributes:
        run: Name of its run.
        trial: Its number there.
        params: Parameters, by name. For `history` those of the new space; otherwise all, fixed ones included.
        values: Values of the objectives. Empty if the trial was pruned, or has failed by its own fault.
        metrics: Metrics, by name.
        step: Last step that it has reported; 0 if it has reported none.
        pruned: Whether it was pruned.
        returned: Other values that it has returned.
    """

    run: str
    trial: int
    params: Mapping[str, Any]
    values: tuple[float, ...] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    step: int = 0
    pruned: bool = False
    returned: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Earlier:
    """Trials of earlier runs.

    Attributes:
        history: Trials that the sampler learns from.
        results: Complete trials of the same code, data and seed.
    """

    history: tuple[EarlierTrial, ...] = ()
    results: tuple[EarlierTrial, ...] = ()

    def pack(self) -> bytes:
        """Return the content of `FILE`; empty if there is nothing to tell."""
        return records.to_json(self).encode() if self != Earlier() else b""


def read(code: Path) -> Earlier:
    """Return what a submission has brought in its folder of code."""
    file = code / FILE
    return records.from_json(Earlier, file.read_bytes()) if file.is_file() else Earlier()


def key(params: Mapping[str, Any]) -> str:
    """Return a text that is the same for the same parameters. 1 is the same as 1.0."""
    whole = {name: float(value) if type(value) is int else value for name, value in params.items()}
    return json.dumps(whole, sort_keys=True, default=str)
