"""A function trainable of Ray Tune in a trial: what it calls of Ray is answered by the trial, and Ray never starts.

Modules in the styles that Ray's users write, run by a real slot. Not checked here: the importer that writes such an
entrypoint (tests/importing/test_ray.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.conftest import Bench, Event, prune_at

from trialplane import errors
from trialplane.wire.records import TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

pytestmark = pytest.mark.services

CODE = """
import json
import os
import tempfile

import ray
from ray import train, tune
from ray.air import session
from ray.tune import Checkpoint


def loop(config):
    for epoch in range(3):
        tune.report({"score": config["model"]["lr"] + epoch, "eval": {"loss": epoch}, "note": "text"})


def save(config):
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "deep", "state.json")) as file:
            start = json.load(file)["epoch"] + 1
    for epoch in range(start, config.get("epochs", 4)):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "deep"))
            with open(os.path.join(folder, "deep", "state.json"), "w") as file:
                json.dump({"epoch": epoch}, file)
            tune.report({"score": float(epoch)}, checkpoint=Checkpoint.from_directory(folder))
        if epoch == config.get("dies", -1) and start == 0:
            os.kill(os.getpid(), 9)


def older(config):
    where = train.get_context()
    assert where.get_trial_id() == session.get_trial_id() and where.get_world_size() == 1
    assert os.path.isdir(where.get_trial_dir()) and where.get_trial_name().startswith("toy_")
    assert where.get_trial_resources().head_cpus == 1.0
    train.report({"score": 1.0})
    session.report({"score": 2.0})
    tune.report(score=3.0)


def steps(config):
    for epoch in range(3):
        yield {"score": epoch}


def once(config):
    ray.init()
    return {"score": config["x"], "eval": {"loss": 0.5}, "ray": ray.is_initialized()}


def puts(config):
    ray.put(1)


class Trains(tune.Trainable):
    def setup(self, config):
        self.score = config["model"]["lr"]

    def step(self):
        self.score += 1
        return {"score": self.score, "done": self.training_iteration == 2}


class Other: ...


def run(config):
    return globals()[config["what"]](config)


tuner = tune.Tuner(run, param_space={"what": tune.choice(["loop"])}, tune_config=tune.TuneConfig(metric="score", mode="min"))
results = tuner.fit()
print(results.get_best_result().config)
raise SystemExit("the search was started")
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("slot")
    with Bench(folder, {"train": CODE}, entrypoint="ray:train:run", env={"HOME": str(folder / "home")}) as made:
        yield made


def points(events: list[Event]) -> list[tuple[int, dict[str, float]]]:
    return [(report.step, dict(report.metrics)) for event in events for report in event.reports]


def attempt(bench: Bench, request: TrialRequest) -> tuple[list[Event], TrialOutcome]:
    events = [bench.slot.run(request)]
    while (outcome := events[-1].outcome) is None:
        events.append(bench.slot.answer())
    return events, outcome


def test_a_loop_reports_with_steps_and_its_last_report_is_the_result(bench: Bench) -> None:
    events = bench.events("loop", **{"model.lr": 0.5})
    outcome = events[-1].outcome
    assert outcome is not None and outcome.state is TrialState.COMPLETE, outcome
    assert points(events) == [(step, {"score": step - 0.5, "eval/loss": step - 1.0}) for step in (1, 2, 3)]
    assert dict(outcome.metrics) == {"score": 2.5, "eval/loss": 2.0}


def test_the_modules_own_search_is_not_started_and_the_slot_forks(bench: Bench) -> None:
    assert bench.ready.unclean == ()
    assert "the module's own search is not started" in bench.slot_log()
    assert not (bench.root.parent / "home" / "ray_results").exists()


def test_a_report_prunes(bench: Bench) -> None:
    request = bench.request("loop", prunable=True, **{"model.lr": 0.5})
    outcome = prune_at(bench, 2, bench.slot.run(request))
    assert (outcome.state, outcome.metrics["score"]) == (TrialState.PRUNED, 1.5)


def test_a_killed_trial_goes_on_from_its_checkpoint(bench: Bench) -> None:
    request = bench.request("save", dies=1)
    events, killed = attempt(bench, request)
    assert (killed.failure, [step for step, _ in points(events)]) == (FailureClass.CRASHED, [1, 2])
    events, outcome = attempt(bench, dataclasses.replace(request, attempt=2, number=1000))
    assert points(events) == [(3, {"score": 2.0}), (4, {"score": 3.0})]
    assert outcome.metrics["score"] == 3.0


def test_one_that_was_killed_after_its_last_report_has_its_result(bench: Bench) -> None:
    request = bench.request("save", dies=3)
    attempt(bench, request)
    events, outcome = attempt(bench, dataclasses.replace(request, attempt=2, number=1001))
    assert (points(events), outcome.state, outcome.metrics["score"]) == ([], TrialState.COMPLETE, 3.0)


def test_older_spellings_are_answered(bench: Bench) -> None:
    assert points(bench.events("older")) == [(step, {"score": float(step)}) for step in (1, 2, 3)]


def test_what_is_yielded_is_reported(bench: Bench) -> None:
    events = bench.events("steps")
    assert [step for step, _ in points(events)] == [1, 2, 3]
    assert events[-1].outcome is not None and events[-1].outcome.metrics["score"] == 2.0


def test_one_that_only_returns_starts_no_ray(bench: Bench) -> None:
    outcome = bench.outcome("once", x=0.25)
    assert dict(outcome.metrics) == {"score": 0.25, "eval/loss": 0.5, "ray": 0.0}
    assert "ray.init() does nothing here" in bench.log(outcome)


def test_a_call_that_needs_ray_fails_and_starts_none(bench: Bench) -> None:
    outcome = bench.outcome("puts")
    assert outcome.failure is FailureClass.ERROR and "Ray has not been started" in outcome.message


def test_a_class_without_steps_is_refused_with_what_to_do(tmp_path: Path) -> None:
    remedy = r"is a class without a method train; write a function Other\(config\)"
    with pytest.raises(errors.EntrypointError, match=remedy):
        Bench(tmp_path, {"train": CODE}, entrypoint="ray:train:Other")


def test_a_class_trainable_is_run_step_by_step(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": CODE}, entrypoint="ray:train:Trains") as bench:
        outcome, reports = bench.reported(bench.request("", **{"model.lr": 0.5}))
    assert outcome.message == "" and outcome.metrics["score"] == 3.5
    assert [(report.step, report.metrics["score"]) for report in reports] == [(1, 1.5), (2, 2.5), (3, 3.5)]


def test_a_function_of_a_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "code" / "pkg").mkdir(parents=True)
    (tmp_path / "code" / "pkg" / "__init__.py").touch()
    code = "import pkg\n\ndef f(config):\n    return {'score': float(pkg.s.f is f)}\n"
    with Bench(tmp_path, {"pkg/s": code}, entrypoint="ray:pkg.s:f") as bench:
        event = bench.slot.run(bench.request(""))
        outcome = event.outcome or bench.slot.answer().outcome
        assert outcome is not None and (outcome.message, outcome.metrics) == ("", {"score": 1.0})


def test_a_function_below_the_modules_search_is_told_so(tmp_path: Path) -> None:
    code = "from ray import tune\ntune.run(None)\n\ndef f(config):\n    return {'score': 1.0}\n"
    with pytest.raises(errors.EntrypointError, match="the search of train comes before f; put it under `if __name__"):
        Bench(tmp_path, {"train": code}, entrypoint="ray:train:f")
