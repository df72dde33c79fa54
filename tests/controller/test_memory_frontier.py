"""`avoid_oom` on a planted model of memory: how few trials run out of memory, and that no point that fits is left out.

The ledger and the samplers are real; the test plays the trials.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.controller.conftest import outcome
from tests.controller.trainings import Opened, asked, job

from trialplane.controller import samplers
from trialplane.controller.ledger import Ledger
from trialplane.controller.memory_frontier import MemoryFrontier
from trialplane.wire import rows
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

LIMIT = 2.0  # GiB
SPACE: dict[str, Any] = {
    "batch": {"type": "int", "low": 1, "high": 256, "log": True},
    "width": {"type": "int", "low": 64, "high": 4096, "log": True},
    "lr": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
    "precision": ["full", "half"],
}
AVOID = {"avoid_oom": ["batch", "width"]}
SEARCH: dict[str, Any] = {
    "kind": "hpo",
    "objectives": [{"metric": "loss", "direction": "minimize"}],
    "params": {},
    "space": SPACE,
}


def gib(params: Any) -> float:
    """The planted memory: a base, the weights, and the activations."""
    number_bytes = 4 if params["precision"] == "full" else 2
    weights, activations = 12 * params["width"] ** 2, 2000 * params["batch"] * params["width"]
    return 1.0 + number_bytes * (16 * weights + activations) / 2**30


def played(request: TrialRequest) -> TrialOutcome:
    """The end of a trial; the best points are just below the limit, as larger models are better."""
    if gib(request.params) > LIMIT:
        return outcome(
            request.number, state=TrialState.FAILED, metrics={}, failure=FailureClass.OOM, message="CUDA out of memory"
        )
    loss = 1 / request.params["width"] + abs(request.params["lr"] - 1e-3) / 100
    return outcome(request.number, metrics={"loss": loss})


def run(opened: Opened, trials: int, **fields: Any) -> tuple[int, int, float]:
    """The number of trials out of memory, and of points that were not run, and the best loss."""
    ledger = opened.open(job(**SEARCH, trials=trials, **fields))
    failed = 0
    for _ in range(trials):
        request = asked(ledger)
        failed += gib(request.params) > LIMIT
        ledger.tell(played(request))
    assert ledger.best is not None
    avoided, (best,) = ledger.drawing.avoided, ledger.best.values
    opened.close()
    return failed, avoided, best


@pytest.mark.parametrize(("sampler", "trials"), [("random", 100), pytest.param("tpe", 60, marks=pytest.mark.slow)])
def test_few_trials_run_out_of_memory(tmp_path: Path, sampler: str, trials: int) -> None:
    plain = [run(Opened(tmp_path / f"plain-{seed}"), trials, sampler=sampler, seed=seed) for seed in range(3)]
    avoiding = [run(Opened(tmp_path / f"avoids-{seed}"), trials, sampler=sampler, seed=seed, **AVOID) for seed in range(3)]
    assert all(avoided == 0 for _, avoided, _ in plain)
    assert all(avoided > 0 for _, avoided, _ in avoiding)
    failed = [sum(count for count, _, _ in runs) for runs in (plain, avoiding)]
    assert failed[1] < 0.65 * failed[0], (plain, avoiding)
    assert sorted(best for *_, best in avoiding)[1] <= sorted(best for *_, best in plain)[1], "nothing good is lost"


def test_no_point_that_fits_is_left_out() -> None:
    """Each of 2,000 random points is either run or above one that was out of memory, and then it is so too."""
    chance, frontier, excluded, failed = random.Random(1), MemoryFrontier(job(**SEARCH, **AVOID).search), 0, 0
    for _ in range(2000):
        params = {
            "batch": chance.randint(1, 256),
            "width": chance.randint(64, 4096),
            "lr": chance.random(),
            "precision": chance.choice(["full", "half"]),
        }
        if frontier.excludes(params):
            excluded += 1
            assert gib(params) > LIMIT
        elif gib(params) > LIMIT:
            failed += 1
            frontier.add(params)
    assert excluded > 9 * failed > 0, (excluded, failed)


def test_a_choice_and_a_missing_parameter_separate_points() -> None:
    space = {**SPACE, "depth": {"type": "int", "low": 1, "high": 9, "when": {"precision": "half"}}}
    frontier = MemoryFrontier(job(**{**SEARCH, "space": space}, avoid_oom=["batch", "depth"]).search)
    frontier.add({"batch": 8, "width": 64, "lr": 0.1, "precision": "full"})
    assert frontier.excludes({"batch": 8, "width": 99, "lr": 0.5, "precision": "full"})
    assert not frontier.excludes({"batch": 7, "width": 64, "lr": 0.1, "precision": "full"})
    assert not frontier.excludes({"batch": 9, "width": 64, "lr": 0.1, "precision": "half", "depth": 2})
    frontier.add({"batch": 4, "depth": 4, "precision": "half"})
    assert frontier.excludes({"batch": 4, "depth": 5, "precision": "half"})
    assert not frontier.excludes({"batch": 16, "depth": 3, "precision": "half"})


@pytest.mark.parametrize(("sampler", "redraws"), [("gp", 2), ("tpe", 10)])
def test_the_sampler_draws_again_before_chance_does(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sampler: str, redraws: int
) -> None:
    build, seeds = samplers.build_sampler, []

    def counted(*args: Any, seed_salt: int | None = None, **fields: Any) -> optuna.samplers.BaseSampler:
        seeds.append(seed_salt)
        return build(*args, seed_salt=seed_salt, **fields)

    monkeypatch.setattr(samplers, "build_sampler", counted)
    smallest = {"batch": 1, "width": 64, "lr": 0.1, "precision": "full"}
    space = {**SPACE, "precision": ["full"]}
    ledger = opened.open(job(**{**SEARCH, "space": space}, trials=2, sampler=sampler, enqueue=[smallest], **AVOID))
    out_of_memory = {"state": TrialState.FAILED, "metrics": {}, "failure": FailureClass.OOM}
    ledger.tell(outcome(asked(ledger).number, **out_of_memory))
    seeds.clear()
    with caplog.at_level("INFO"):
        asked(ledger)
    assert seeds == [None, *range(1, redraws + 1)]
    assert ledger.drawing.avoided == 100
    assert caplog.messages == ["trial 1 was drawn again: 100 points would be out of memory"]


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"failure": FailureClass.OOM}, True),
        ({"failure": FailureClass.CRASHED, "exit_code": -signal.SIGKILL}, True),
        ({"failure": FailureClass.CRASHED, "exit_code": -signal.SIGKILL, "retried": True}, False),
        ({"failure": FailureClass.CRASHED, "exit_code": -signal.SIGSEGV}, False),
        ({"failure": FailureClass.LOST, "exit_code": -signal.SIGKILL}, False),
    ],
    ids=str,
)
def test_what_counts_as_out_of_memory(fields: dict[str, Any], counts: bool) -> None:
    assert rows.is_out_of_memory(TrialOutcome(1, TrialState.FAILED, **fields)) is counts


def test_a_killed_controller_draws_the_same_points(tmp_path: Path) -> None:
    drawn, avoided = [], []
    for name, stops in (("a", False), ("b", True)):
        opened = Opened(tmp_path / name)
        of = job(**SEARCH, trials=30, sampler="tpe", **AVOID)
        ledger: Ledger = opened.open(of)
        points = []
        for number in range(30):
            if stops and number % 10 == 5:
                ledger.close()
                ledger = opened.open(of)
            request = asked(ledger)
            points.append(request.params)
            ledger.tell(played(request))
        drawn.append(points)
        avoided.append(ledger.drawing.avoided)
        ledger.close()
    assert drawn[0] == drawn[1]
    assert avoided[0] == avoided[1] > 0


def test_a_point_that_the_job_names_is_run(opened: Opened) -> None:
    large = {"batch": 256, "width": 4096, "lr": 0.1, "precision": "full"}
    ledger = opened.open(job(**SEARCH, trials=3, sampler="random", enqueue=[large, {**large, "lr": 0.01}], **AVOID))
    for expected in (0.1, 0.01):
        request = asked(ledger)
        assert (request.params["batch"], request.params["lr"]) == (256, expected)
        ledger.tell(played(request))
    assert gib(asked(ledger).params) <= LIMIT or ledger.drawing.avoided == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"avoid_oom": ["batches"]}, "there is no parameter 'batches' in the space; did you mean batch"),
        ({"avoid_oom": ["precision"]}, "precision has choices that are not numbers"),
        ({"avoid_oom": ["batch"], "sampler": "bruteforce"}, "bruteforce tries each point once"),
        ({"avoid_oom": ["batch"], "space": "space:define"}, "needs the space in the job file"),
    ],
    ids=["unknown", "choices", "bruteforce", "code"],
)
def test_what_cannot_be_avoided_is_refused(fields: dict[str, Any], message: str) -> None:
    problems = [issue.message for issue in job(**{**SEARCH, **fields}).check(())]
    assert any(message in problem for problem in problems), problems
