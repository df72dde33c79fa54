"""A study with promotion is refused where its paused trials could not continue in another pod."""

from __future__ import annotations

import pytest
from tests.plan.conftest import a_plan

from trialplane.kube import preflight

PROMOTES = {"pruner": {"name": "asha", "promote": True, "max_resource": 9}}


@pytest.mark.parametrize(
    ("fields", "has_place", "refused"),
    [
        (PROMOTES, False, True),
        (PROMOTES, True, False),
        ({**PROMOTES, "checkpoints": {"url": "s3://bucket/path"}}, False, False),
        ({"pruner": "asha"}, False, False),
    ],
)
def test_promotion_needs_a_place_that_all_pods_reach(fields, has_place: bool, refused: bool) -> None:
    issues = preflight.promotion_issues(a_plan(**fields).job, has_place)
    assert [issue.field for issue in issues] == ["pruner.promote"] * refused
    assert all("helm upgrade --set checkpoints.enabled=true" in issue.message for issue in issues)
