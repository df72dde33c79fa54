"""What a library logs, as reports of the trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trialplane


class Reports:
    """Sends what a library logs in portions: each step once, with all metrics of that step, and none of them twice.

    Libraries log a step's metrics one after the other: the training loss, then those of each evaluation, and some of them
    again. So they wait until the library goes on to the next step, and calls `send`.
    """

    def __init__(self) -> None:
        self._step = -1
        self._waiting: dict[str, float] = {}
        self._sent: set[str] = set()

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes metrics of a step; those of the step before are sent first, if they have not been.

        Args:
            step: epochs, rounds or optimizer steps done.
            metrics: by name; what is no number is left out, and what was sent for this step before.

        Raises:
            Pruned: as of `send`.
        """
        if step != self._step:
            self.send()
            self._step, self._sent = step, set()
        self._waiting.update({name: value for name, value in numbers(metrics).items() if name not in self._sent})

    def send(self) -> None:
        """Reports what waits, if anything does.

        Raises:
            Pruned: the pruner ends this trial. Let it pass.
        """
        waiting, self._waiting = self._waiting, {}
        self._sent.update(waiting)
        if waiting:
            trialplane.report(self._step, **waiting)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that are numbers, numpy's and torch's scalars too; but `step`, which a report has anyway."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if name != "step" and hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0
    }
