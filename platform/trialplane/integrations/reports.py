"""Reports of the metrics that a library logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trialplane


class Reports:
    """Sender of metrics that a library logs in portions: each step is reported once, with all its metrics.

    Libraries log the metrics of a step one after the other: the training loss, then those of each evaluation, and some of
    them twice. So metrics are collected until the library reaches the next step or calls `send`.
    """

    def __init__(self) -> None:
        self._step = -1
        self._waiting: dict[str, float] = {}
        self._sent: set[str] = set()

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add metrics of a step. The first metrics of a new step send those of the previous one.

        Args:
            step: epochs, rounds or optimizer steps done.
            metrics: by name; values that are not numbers and metrics already sent for this step are ignored.

        Raises:
            Pruned: see `send`.
        """
        if step != self._step:
            self.send()
            self._step, self._sent = step, set()
        self._waiting.update({name: value for name, value in numbers(metrics).items() if name not in self._sent})

    def send(self) -> None:
        """Report the collected metrics, if there are any.

        Raises:
            Pruned: the pruner ends this trial. Let it pass.
        """
        waiting, self._waiting = self._waiting, {}
        self._sent.update(waiting)
        if waiting:
            trialplane.report(self._step, **waiting)


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers, including scalars of numpy and torch, without `step`."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if name != "step" and hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0
    }
