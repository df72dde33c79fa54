"""Collect the metrics that a library logs, and report each step once. The callbacks of this package use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trialplane


class Reports:
    """Collector of the metrics that a library logs in several calls per step. Each step is reported once, with all of them.

    Libraries log the training loss first, then the metrics of each evaluation, and some metrics twice. So metrics are
    collected until the next step begins, or until `send` is called.
    """

    def __init__(self) -> None:
        self._step = -1
        self._pending: dict[str, float] = {}
        self._sent: set[str] = set()

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add metrics of a step. The first metrics of a new step send those of the previous one.

        Args:
            step: Epochs, rounds or optimizer steps done.
            metrics: Metrics by name. Values that are not numbers, and metrics already sent for this step, are ignored.

        Raises:
            Pruned: The pruner ends the trial. Do not catch it.
        """
        if step != self._step:
            self.send()
            self._step, self._sent = step, set()
        self._pending.update({name: value for name, value in numeric_metrics(metrics).items() if name not in self._sent})

    def send(self) -> None:
        """Report the collected metrics, if there are any.

        Raises:
            Pruned: The pruner ends the trial. Do not catch it.
        """
        pending, self._pending = self._pending, {}
        self._sent.update(pending)
        if pending:
            trialplane.report(self._step, **pending)


def numeric_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers, including scalars of numpy and torch, without `step`."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if name != "step" and hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0
    }
