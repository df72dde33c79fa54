"""What a library logs in portions is one report for each step.

Not checked here: when each library says that a step is over (test_libraries.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from trialplane.integrations.reports import Reports, numeric_metrics
from trialplane.worker import context

Sent = list[tuple[int, dict[str, float]]]


@pytest.fixture
def sent() -> Iterator[Sent]:
    """What the trial of this process reports; it is pruned when a loss is infinite."""
    reports: Sent = []

    def report(step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
        reports.append((step, dict(metrics)))
        return metrics.get("loss") == math.inf

    place = Path("/nowhere")
    with context.activate(context.Context({}, 1, "toy", 0, 1, 1, 0, place, place, place, report)):
        yield reports


def test_portions_of_a_step_are_one_report(sent: Sent) -> None:
    reports = Reports()
    reports.add(4, {"loss": 1.0})
    reports.add(4, {"eval_loss": 2.0, "loss": 1.0})
    assert sent == [], "the step is not over"
    reports.add(8, {"loss": 0.5})
    assert sent == [(4, {"loss": 1.0, "eval_loss": 2.0})]
    reports.send()
    reports.send()
    assert sent[1:] == [(8, {"loss": 0.5})]


def test_a_metric_that_was_sent_for_a_step_is_not_sent_again(sent: Sent) -> None:
    reports = Reports()
    for metrics in ({"loss": 1.0}, {"loss": 1.0}, {"loss": 1.0, "eval_loss": 2.0}):
        reports.add(4, metrics)
        reports.send()
    assert sent == [(4, {"loss": 1.0}), (4, {"eval_loss": 2.0})]
    reports.add(5, {"loss": 1.0})
    reports.send()
    assert sent[2:] == [(5, {"loss": 1.0})], "another step"


def test_a_pruned_report_is_not_sent_again(sent: Sent) -> None:
    reports = Reports()
    reports.add(1, {"loss": math.inf})
    with pytest.raises(context.Pruned, match="pruned at step 1"):
        reports.send()
    reports.send()
    assert len(sent) == 1


def test_only_numbers_are_metrics() -> None:
    metrics = {
        "loss": np.float32(0.5),
        "count": 3,
        "text": "0.5",
        "list": [1.0],
        "array": np.ones(2),
        "none": None,
        "step": 7,
    }
    assert numeric_metrics(metrics) == {"loss": 0.5, "count": 3.0}
    assert all(type(value) is float for value in numeric_metrics(metrics).values())
