"""Whether a job fits a machine, on machines made up for it, and what this one is found to be.

Not checked here: that a GPU is really usable; the driver is not asked.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from trialplane.client.machine import ENOUGH_SPACE, Machine
from trialplane.job import kinds
from trialplane.job.resources import Budget, Resources

HOME = Path("/some/home")
MACHINE = Machine(cores=4, gpus=0, memory=8 * 2**30, missing=(), obstacle="", free=2**40)


def job(parallel=1, **resources):
    return kinds.read(
        {
            "name": "demo",
            "kind": "hpo",
            "objectives": [{"metric": "loss", "direction": "minimize"}],
            "parallel": parallel,
            "resources": resources,
        }
    )


def training(nodes=1, **resources):
    return kinds.read({"name": "demo", "kind": "train", "nodes": nodes, "resources": resources})


def check(wanted, **has):
    issues, warnings = dataclasses.replace(MACHINE, **has).check(HOME, wanted)
    return [f"{issue}" for issue in issues], warnings


def test_a_job_that_fits_is_silent():
    assert check(job(parallel=2, cpus=2)) == ([], [])


@pytest.mark.parametrize(
    ("wanted", "has", "said"),
    [
        (job(gpus=1), {}, "resources.gpus: a trial requests 1, and this machine has none; --set resources.gpus=0"),
        (job(gpus=4), {"gpus": 2}, "resources.gpus: a trial requests 4, and this machine has 2; --set resources.gpus=2"),
        (
            job(parallel=4, gpus=1),
            {"gpus": 2},
            "parallel: 4 trials with 1 GPU each do not fit this machine, which has 2, enough for 2 at a time; --parallel 2",
        ),
        (
            training(gpus=8),
            {"gpus": 4, "cores": 8, "memory": None},
            "resources.gpus: the training requests 8, and this machine has 4; --gpus 4 trains on those, --gpus 0 --ranks 8 "
            "on its cores, and without --local a cluster is asked",
        ),
        (job(gpus=0.5), {}, "resources.gpus: a trial requests 0.5, and this machine has none; --set resources.gpus=0"),
        (
            job(parallel=3, gpus=0.6),
            {"gpus": 2},
            "3 trials with 0.6 GPUs each do not fit this machine, which has 2, enough for 2 at a time; --parallel 2",
        ),
        (training(gpus=8), {}, "this machine has none; --gpus 0 --ranks 8 on its cores"),
        (
            training(nodes=2, gpus=4),
            {"gpus": 4},
            "nodes: 2 nodes with 4 GPUs each do not fit this machine, which has 4 and would run all nodes; --set nodes=1",
        ),
        (
            job(gpus=1).model_copy(update={"budget": Budget(cost=10)}),
            {"gpus": 1},
            "budget.cost: needs prices: set TRIALPLANE_GPU_PRICE to that of an hour",
        ),
        (job(), {"missing": ("ray", "optuna")}, "ray, optuna cannot be found; pip install 'trialplane[local]'"),
        (job(), {"obstacle": "cannot be written"}, "cannot be written; set TRIALPLANE_HOME to a folder"),
        (job(), {"free": ENOUGH_SPACE - 1}, "199 MiB are left on the disk and 200 are needed"),
    ],
)
def test_what_stands_in_the_way_is_an_issue(wanted, has, said):
    (issue,), _ = check(wanted, **has)
    assert said in issue


@pytest.mark.parametrize(("share", "parallel"), [(0.5, 4), (0.34, 4), (0.125, 16), (0.33, 6)])
def test_shares_of_a_gpu_fit_side_by_side_and_never_on_two(share, parallel):
    assert check(job(parallel=parallel, gpus=share), gpus=2, cores=64, memory=None)[0] == []
    (issue,), _ = check(job(parallel=parallel + 1, gpus=share), gpus=2, cores=64, memory=None)
    assert f"enough for {parallel} at a time" in issue


def test_a_budget_of_money_needs_the_price_of_what_is_used(monkeypatch):
    priced = job().model_copy(update={"budget": Budget(cost=10)})
    monkeypatch.setenv("TRIALPLANE_GPU_PRICE", "2.5")
    assert "set TRIALPLANE_CPU_PRICE" in check(priced)[0][0]
    monkeypatch.setenv("TRIALPLANE_CPU_PRICE", "0.05")
    assert check(priced) == ([], [])
    monkeypatch.delenv("TRIALPLANE_GPU_PRICE")
    assert "set TRIALPLANE_GPU_PRICE" in check(priced.model_copy(update={"resources": Resources(gpus=1)}), gpus=1)[0][0]
    monkeypatch.setenv("TRIALPLANE_CPU_PRICE", "-1")
    assert "TRIALPLANE_CPU_PRICE must be the price of an hour, for example 2.5, not '-1'" in check(priced)[0][0]


def test_all_of_it_at_once():
    issues, _ = check(job(gpus=1), missing=("ray",), free=0)
    assert len(issues) == 3


def test_without_a_job_only_the_machine_is_looked_at():
    assert check(None) == ([], [])
    assert len(check(None, free=0)[0]) == 1


@pytest.mark.parametrize(
    ("wanted", "has", "said"),
    [
        (
            job(parallel=3, cpus=2),
            {},
            "3 trials with 2 cores each: this machine has 4 cores, so they will be slower",
        ),
        (job(parallel=5, memory="2Gi"), {"cores": 8}, "more than this machine's 8 GiB"),
        (
            training(),
            {"gpus": 2},
            "the training runs on CPUs and does not use this machine's 2 GPUs; --gpus 2 does",
        ),
        (training(cpus=8), {}, "the training with 8 cores: this machine has 4 cores, so they will be slower"),
        (
            training(nodes=3, cpus=1, memory="4Gi"),
            {},
            "the training with 4Gi on each of 3 nodes: that is more than this machine's 8 GiB",
        ),
    ],
)
def test_what_gets_slow_is_a_warning(wanted, has, said):
    issues, (warning,) = check(wanted, **has)
    assert issues == []
    assert said in warning


def test_this_machine(tmp_path):
    here = Machine.inspect(tmp_path / "not" / "there")
    assert here.cores >= 1
    assert here.free > 0
    assert here.obstacle == ""
    assert not (tmp_path / "not").exists()


def test_a_home_below_a_file_is_no_home(tmp_path):
    (tmp_path / "file").write_text("")
    assert "not a folder" in Machine.inspect(tmp_path / "file" / "home").obstacle


def test_fewer_trials_than_parallel_need_fewer_gpus():
    few = job(parallel=4, gpus=1).model_copy(update={"trials": 2})
    assert check(few, gpus=2)[0] == []


def test_a_home_in_a_closed_folder(closed, tmp_path):
    here = Machine.inspect(tmp_path / "closed" / "a" / "home")
    assert here.obstacle == f"cannot be checked: you may not read {tmp_path / 'closed'}"


def test_hidden_gpus_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert Machine.inspect(tmp_path).gpus == 0
