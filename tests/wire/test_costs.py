"""Hours of slots, GPUs and cores, and their price, for each kind of run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trialplane import errors
from trialplane.job import kinds
from trialplane.wire.costs import Busy, Demand, JobDemand, Prices, Usage

STUDY = {"kind": "hpo", "objectives": [{"metric": "loss", "direction": "minimize"}], "trials": 9, "parallel": 3}
COLLECTION = {"kind": "collect", "collect": {"units": 8, "iterations": 2, "workers": 4, "learner": "train:learn"}}


@pytest.mark.parametrize(
    ("fields", "demand"),
    [
        ({**STUDY, "resources": {"cpus": 2}}, Demand(1, 0, 2)),
        ({**STUDY, "nodes": 2, "resources": {"cpus": 0.5, "gpus": 4}}, Demand(2, 8, 1)),
        ({"kind": "train", "nodes": 3, "resources": {"cpus": 4, "gpus": 8}}, Demand(3, 24, 12)),
        ({**COLLECTION, "resources": {"cpus": 2, "gpus": 1}}, Demand(5, 5, 10)),
    ],
)
def test_an_attempt_uses_all_that_works_on_it(fields: dict[str, Any], demand: Demand) -> None:
    assert Demand.of(kinds.read({"name": "toy", **fields})) == demand


def test_cost_is_the_sum_of_gpus_and_cores() -> None:
    demand = JobDemand(Demand(slots=2, gpus=4, cpus=6), Demand(0, 0, 0))
    usage = Usage.of(Busy(1800), demand, Prices(gpu_hour=3.0, cpu_hour=0.5))
    assert usage == Usage(slot_hours=1.0, gpu_hours=2.0, cpu_hours=3.0, cost=7.5)
    assert Usage.of(Busy(1800), demand, Prices()).cost is None


@pytest.mark.parametrize("workers", [1, 4])
def test_the_workers_of_a_collection_count_by_their_own_time(workers: int) -> None:
    collect = {**COLLECTION["collect"], "workers": workers}
    job = kinds.read({"name": "toy", **COLLECTION, "collect": collect, "resources": {"cpus": 2, "gpus": 1}})
    demand = JobDemand.of(job)
    assert demand == JobDemand(Demand(1, 1, 2), Demand(1, 1, 2))
    busy = Busy(1800, 1800 * 4) + Busy(1800, 1800 * 1)
    assert Usage.of(busy, demand, Prices(gpu_hour=2.0)) == Usage(slot_hours=3.5, gpu_hours=3.5, cpu_hours=7.0, cost=7.0)


def test_other_jobs_have_no_workers() -> None:
    for fields in (STUDY, {"kind": "train", "nodes": 3}):
        assert JobDemand.of(kinds.read({"name": "toy", **fields})).worker == Demand(0, 0, 0)


def test_prices_are_read_from_the_environment() -> None:
    assert Prices.of({}) == Prices.of({"TRIALPLANE_GPU_PRICE": ""}) == Prices()
    assert Prices.of({"TRIALPLANE_GPU_PRICE": "2.5", "TRIALPLANE_CPU_PRICE": "1e-2"}) == Prices(2.5, 0.01)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "2,5", "$3"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(errors.InputError, match="TRIALPLANE_GPU_PRICE must be the price of an hour"):
        Prices.of({"TRIALPLANE_GPU_PRICE": text})


def test_other_prices_replace_only_those_that_are_given() -> None:
    assert Prices(1.0, 2.0).with_overrides(None, 0.0) == Prices(1.0, 0.0)
    assert math.isclose(Prices(1.0, 2.0).with_overrides(3.0, None).gpu_hour, 3.0)
