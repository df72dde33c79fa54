"""A budget of money is refused where the chart has no price for what the job uses."""

from __future__ import annotations

import pytest
from tests.plan.conftest import a_plan

from trialplane.kube import preflight
from trialplane.wire.costs import Prices

COST = {"budget": {"cost": 10}}
GPU = {**COST, "resources": {"gpus": 1}}


@pytest.mark.parametrize(
    ("fields", "prices", "missing"),
    [
        ({}, Prices(), ""),
        (COST, Prices(cpu_hour=0.1), ""),
        (COST, Prices(gpu_hour=2.0), "cpuHour"),
        (GPU, Prices(gpu_hour=2.0), ""),
        (GPU, Prices(), "gpuHour"),
        (GPU, Prices(cpu_hour=0.1), "gpuHour"),
    ],
)
def test_money_needs_a_price(fields, prices: Prices, missing: str) -> None:
    issues = preflight.cost_issues(a_plan(**fields).job, prices)
    assert [issue.field for issue in issues] == ["budget.cost"] * bool(missing)
    assert all(f"helm upgrade --set studies.prices.{missing}=2.5" in issue.message for issue in issues)
