"""Which reports have the first minimum and the first maximum of the metrics that a job names."""

from __future__ import annotations

import math

from trialplane.wire.extremes import Extremes


def test_the_first_of_equal_reports_stays_and_others_are_replaced() -> None:
    extremes = Extremes(["loss"])
    losses = [2.0, 3.0, 1.0, 1.0, math.nan, 3.0, 4.0]
    replaced = [extremes.add(number, {"loss": loss, "other": -loss}) for number, loss in enumerate(losses)]
    assert replaced == [[], [0], [0], None, None, None, [1]]
    assert extremes.numbers == {2, 6}
