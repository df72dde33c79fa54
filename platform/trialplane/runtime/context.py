"""What a job sees of the platform: `run(ctx)` gets a `Context`, and `standalone` runs one trial without the platform.

Imports nothing heavy and must not: it is loaded in the template before the job's own libraries.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

Result = Mapping[str, Any] | float
Run = Callable[["Context"], Result]


class Pruned(Exception):
    """The pruner ended this trial; raised by `Context.report`. Let it pass."""


class Reporter(Protocol):
    """Where reports go."""

    def __call__(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Sends the metrics of one step; True when the trial is to end as pruned."""


@dataclasses.dataclass(frozen=True)
class Context:
    """One trial, as the job's `run(ctx)` sees it.

    Attributes:
        params: the job's fixed parameters and the sampled ones, merged.
        seed: for the trial's random numbers. Python's, numpy's and torch's generators are seeded with it already.
        run: name of the run.
        trial: number of the trial, from 0.
        attempt: 1, or more when the trial is tried again.
        cpus: cores this trial may use.
        gpus: GPUs this trial may use; `CUDA_VISIBLE_DEVICES` names them.
        code: folder of the job's files.
        cache: folder shared by all trials of all runs; may not exist yet.
        workdir: scratch folder of this trial; deleted when it ends.
    """

    params: Mapping[str, Any]
    seed: int
    run: str
    trial: int
    attempt: int
    cpus: int
    gpus: int
    code: Path
    cache: Path
    workdir: Path
    _reporter: Reporter = dataclasses.field(repr=False)

    def report(self, step: int, **metrics: float) -> None:
        """Sends the metrics of one step to the controller, which records them and asks the pruner.

        Args:
            step: epoch or optimizer step; must grow from report to report.
            **metrics: by name; the pruner looks at the study's objective, so report that one.

        Raises:
            Pruned: the pruner wants this trial to end. Do not catch it.
            ValueError: the step is negative, or larger than a database keeps.
        """
        if not 0 <= step < 2**31:
            raise ValueError(f"ctx.report(step={step}): a step is a whole number from 0 to {2**31 - 1}")
        values = {name: float(value) for name, value in metrics.items()}
        if self._reporter(int(step), values):
            raise Pruned(f"pruned at step {step}")

    def path(self, name: str) -> Path:
        """The parameter `name` as a path; a relative one is below the job's folder."""
        return self.code / Path(str(self.params[name])).expanduser()


def seed_everything(seed: int) -> None:
    """Seeds the generators of Python, and of numpy and torch where they are loaded."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def standalone(file: str, run: Run) -> None:
    """Runs one trial without the platform; the last line of a train.py that can be run by itself.

    Args:
        file: the script's `__file__`; its folder holds job.yaml.
        run: the job's function.
    """
    from trialplane.runtime import alone  # a trial of a run needs neither the job file nor what reads it

    alone.main(file, run)
