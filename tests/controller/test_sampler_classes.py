"""Samplers that a job names by a class: they draw, learn from failures, go on after a resume, and what is broken is refused.

Of the table in the guide on studies, tests repeat the rows of `TPESampler` and `OptunaSearch` with a resume, and those of
`GPSampler` and `NSGAIISampler` without one. `Walk` stands for a class with a memory of its own, as OptunaHub's. The other
rows were run by hand. The ledger, Optuna and Ray Tune's searcher are real. Not checked here: what a job file may say
(tests/job).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.controller.conftest import outcome
from tests.controller.trainings import Opened, asked, failed, job, shown

from trialplane import errors
from trialplane.controller import points, rehearsal, samplers
from trialplane.wire.records import TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

SEARCH: dict[str, Any] = {
    "kind": "hpo",
    "objectives": [{"metric": "loss", "direction": "minimize"}],
    "params": {},
    "space": {
        "model/lr": {"type": "float", "low": 0.0, "high": 1.0},
        "n": {"type": "int", "low": 1, "high": 9, "step": 2},
        "k": {"type": "categorical", "choices": ["a", ["b"]]},
        "z": {"type": "normal", "mean": 0, "std": 1, "when": {"k": "a"}},
    },
    "trials": 30,
}
TUNE = {"tune": "ray.tune.search.optuna:OptunaSearch"}
# A walk: it remembers its last point in its own memory, as many samplers do outside of Optuna.
WALK = """
import optuna
class Walk(optuna.samplers.BaseSampler):
    def __init__(self, seed, step=0.1):
        self.rng, self.step, self.at, self.ends = optuna.samplers.RandomSampler(seed=seed), step, {}, []
    def infer_relative_search_space(self, study, trial):
        return {}
    def sample_relative(self, study, trial, search_space):
        return {}
    def sample_independent(self, study, trial, name, distribution):
        drawn = self.rng.sample_independent(study, trial, name, distribution)
        if name == "model/lr":
            drawn = min(1.0, max(0.0, self.at.get(name, drawn) + self.step * (drawn - 0.5) + 0.001 * len(self.ends)))
            self.at[name] = drawn
        return drawn
    def after_trial(self, study, trial, state, values):
        self.ends.append(trial.number)
"""


@pytest.fixture
def opened(opened: Opened) -> Opened:
    opened.run.code.mkdir()
    (opened.run.code / "walking.py").write_text(WALK)
    return opened


def drawn(opened: Opened, sampler: dict[str, Any], resumed: Sequence[int] = (), trials: int = 12) -> list[dict[str, Any]]:
    """The parameters of a study whose trials run two at a time; a new controller starts before those in `resumed`."""
    of = job(**SEARCH, sampler=sampler)
    ledger = opened.open(of)
    points, running = [], []
    for number in range(trials):
        if number in resumed:
            ledger = opened.open(of)
            running = [asked(ledger) for _ in running]  # those that ran are lost, and tried again
        request = asked(ledger)
        assert request.trial == number
        points.append(dict(request.params))
        running.append(request)
        if len(running) == 2:
            ended = running.pop(0)
            loss = abs(ended.params["model/lr"] - 0.3) + ended.params["n"] / 9
            if ended.trial % 5 == 4:
                ledger.tell(failed(ended, FailureClass.OOM))
            else:
                ledger.tell(outcome(ended.number, metrics={"loss": loss}))
    return points


@pytest.mark.services  # Ray Tune is Ray
@pytest.mark.parametrize("resumed", [(7,), (3, 4, 10)], ids=str)
def test_a_searcher_of_ray_tune_is_resumed_by_replay(tmp_path: Path, resumed: Sequence[int]) -> None:
    whole, parts = Opened(tmp_path / "a"), Opened(tmp_path / "b")
    assert drawn(parts, TUNE, resumed) == drawn(whole, TUNE)
    parts.close()
    whole.close()


@pytest.mark.parametrize("resumed", [(7,), (3, 4, 10)], ids=str)
def test_a_class_with_a_memory_of_its_own_is_resumed_by_replay(tmp_path: Path, resumed: Sequence[int]) -> None:
    points = []
    for name, at in (("a", ()), ("b", resumed)):
        opened = Opened(tmp_path / name)
        opened.run.code.mkdir()
        (opened.run.code / "walking.py").write_text(WALK)
        points.append(drawn(opened, {"class": "walking:Walk"}, at))
        opened.close()
    assert points[0] == points[1]
    steps = [abs(after["model/lr"] - before["model/lr"]) for before, after in zip(points[0], points[0][1:], strict=False)]
    assert max(steps) < 0.1, "it remembers where it was"


def promoted(opened: Opened, sampler: dict[str, Any], resumed: Sequence[int] = ()) -> list[tuple[Any, ...]]:
    """The starts of a study with rungs whose trials run two at a time; a new controller works from those in `resumed` on."""
    promote = {"name": "asha", "promote": True, "max_resource": "epochs"}
    of = job(**{**SEARCH, "params": {"epochs": 16}, "pruner": promote, "trials": 60}, sampler=sampler)
    ledger = opened.open(of)
    starts: list[tuple[Any, ...]] = []
    running: list[TrialRequest] = []
    while True:
        if len(starts) in resumed and len(running) == 1:
            ledger = opened.open(of)
            running = [asked(ledger)]
        if request := ledger.ask():
            assert request.segment is not None
            starts.append((request.trial, request.segment.rung, request.segment.done, dict(request.params)))
            running.append(request)
        if not running:
            return starts
        if len(running) == 2 or request is None:
            ended = running.pop(len(starts) % len(running))
            rung = ended.segment.rung if ended.segment else 0
            lr, loss = ended.params["model/lr"], 0.0
            for step in range(ended.segment.done + 1 if ended.segment else 1, (rung or 16) + 1):
                loss = abs(lr - 0.3) + (1 - lr) * 4 / step  # another point is the best after more steps
                ledger.report(TrialReport(ended.number, step, {"loss": loss}, 5.0))
            state = TrialState.PAUSED if rung else TrialState.COMPLETE
            ledger.tell(outcome(ended.number, state=state, metrics={"loss": loss}))


@pytest.mark.parametrize("resumed", [(9,), (5, 14, 25, 40)], ids=str)
@pytest.mark.parametrize("sampler", [{"class": "walking:Walk"}, pytest.param(TUNE, marks=pytest.mark.services)], ids=str)
def test_a_class_draws_the_same_after_a_restart_if_trials_are_promoted(
    tmp_path: Path, sampler: dict[str, Any], resumed: Sequence[int]
) -> None:
    starts = []
    for name, at in (("a", ()), ("b", resumed)):
        opened = Opened(tmp_path / name)
        opened.run.code.mkdir()
        (opened.run.code / "walking.py").write_text(WALK)
        starts.append(promoted(opened, sampler, at))
        opened.close()
    assert starts[0] == starts[1]
    assert {rung for _, rung, *_ in starts[0]} == {0, 1, 4}


def test_a_class_of_optuna_draws_what_its_name_draws(tmp_path: Path) -> None:
    options, points = {"n_startup_trials": 4}, []
    by_class = {"class": "optuna.samplers:TPESampler", **options}
    for name, sampler, resumed in (("a", by_class, ()), ("b", by_class, (6,)), ("c", {"name": "tpe", **options}, ())):
        opened = Opened(tmp_path / name)
        points.append(drawn(opened, sampler, resumed))
        opened.close()
    assert points[0] == points[1]
    assert points[0][:4] == points[2][:4], "then it differs by how a failure is shown"


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(
            {"class": "optuna.samplers:GPSampler", "n_startup_trials": 6, "deterministic_objective": True},
            marks=pytest.mark.slow,
        ),
        {"class": "optuna.samplers:NSGAIISampler", "population_size": 6},
        pytest.param(TUNE, marks=pytest.mark.services),
    ],
    ids=str,
)
def test_a_class_avoids_points_that_do_not_fit(opened: Opened, sampler: dict[str, Any]) -> None:
    unit = {"type": "float", "low": 0.0, "high": 1.0}
    trials = 30 if "GPSampler" in str(sampler) else 60
    of = job(**{**SEARCH, "space": {"x": unit, "y": unit}, "trials": trials, "objectives": [{**SCORE}]}, sampler=sampler)
    ledger, scores = opened.open(of), []
    for _ in range(trials):
        request = asked(ledger)
        scores.append(request.params["x"] + request.params["y"])
        fits = scores[-1] <= 1
        ledger.tell(outcome(request.number, metrics={"score": scores[-1]}) if fits else failed(request, FailureClass.OOM))
    later = scores[trials // 2 :]
    assert sum(score > 1 for score in later) < 0.6 * len(later), later


SCORE = {"metric": "score", "direction": "maximize"}


def test_a_class_is_shown_failures_with_the_worst_value_there_is(opened: Opened) -> None:
    of = job(**{**SEARCH, "constraints": [{"metric": "size", "max": 1}]}, sampler={"class": "walking:Walk"})
    ledger = opened.open(of)
    requests = [asked(ledger) for _ in range(3)]
    ledger.tell(failed(requests[0], FailureClass.INVALID))

    def state() -> tuple[str, list[float] | None]:
        trial = shown(ledger)[0]
        return trial.state.name, trial.values

    assert state() == ("FAIL", None), "nothing is known of the values yet"
    ledger.tell(outcome(requests[1].number, metrics={"loss": 3.0, "size": 0.5}))
    assert state() == ("COMPLETE", [3.0])
    ledger.tell(outcome(requests[2].number, metrics={"loss": 7.0, "size": 0.5}))
    assert state() == ("COMPLETE", [7.0])
    assert shown(ledger)[0].constraints == {"size": 1.0}


# A searcher that draws points beside each other, and writes down what it is told of their ends.
RECORDER = """
import json, pathlib
from ray.tune.search import Searcher
class Recorder(Searcher):
    def set_search_properties(self, metric, mode, config, **spec):
        self.name, self.keys = metric, sorted(config)
        return True
    def suggest(self, trial_id):
        return {key: 0.1 * int(trial_id) for key in self.keys}
    def on_trial_result(self, trial_id, result): ...
    def on_trial_complete(self, trial_id, result=None, error=False):
        with open(pathlib.Path(__file__).with_name("told"), "a") as file:
            file.write(json.dumps([int(trial_id), None if error else result[self.name]]) + "\\n")
"""


@pytest.mark.services  # Ray Tune is Ray
def test_a_searcher_is_told_no_value_that_cannot_be_compared(opened: Opened) -> None:
    """Trials that violate a constraint, or were pruned by another metric, have the worst value so far."""
    (opened.run.code / "recording.py").write_text(RECORDER)
    of = job(
        **{**SEARCH, "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}}},
        constraints=[{"metric": "size", "max": 1}],
        pruner={"name": "median", "metric": "acc", "direction": "maximize"},
        sampler={"tune": "recording:Recorder"},
    )
    ledger = opened.open(of)
    requests = [asked(ledger) for _ in range(4)]
    ledger.tell(outcome(requests[0].number, metrics={"loss": 2.0, "size": 0.5}))
    ledger.tell(outcome(requests[1].number, metrics={"loss": -4.0, "size": 9.0}))
    ledger.report(TrialReport(requests[2].number, 1, {"acc": 0.6}, 5.0))
    ledger.tell(outcome(requests[2].number, state=TrialState.PRUNED, metrics={"acc": 0.6}))
    ledger.tell(outcome(requests[3].number, metrics={"loss": 1.0, "size": 0.5}))
    asked(ledger)
    told = [json.loads(line) for line in (opened.run.code / "told").read_text().splitlines()]
    assert told == [[0, 2.0], [1, 2.0], [2, 2.0], [3, 1.0]]


HOSTILE = {
    "raises": ("    raise RuntimeError('no licence')", "refuses its options: RuntimeError: no licence"),
    "exits": ("    import sys; sys.exit(3)", "draws no trials: its process ended with 3 and said nothing"),
    "dies": ("    import os; os._exit(9)", "draws no trials: its process ended with 9 and said nothing"),
}


@pytest.mark.slow  # another process imports Optuna
@pytest.mark.parametrize(("body", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_class_is_refused_before_a_trial(opened: Opened, body: str, message: str) -> None:
    text = f"import optuna\nclass Bad(optuna.samplers.RandomSampler):\n  def __init__(self):\n{body}\n"
    (opened.run.code / "bad.py").write_text(text)
    with pytest.raises(errors.InputError, match=message):
        rehearsal.check(job(**SEARCH, sampler={"class": "bad:Bad"}), opened.run.code)


BROKEN = {
    "no class": ("Bad = 3", "is not a sampler"),
    "no such name": ("", "has no attribute 'Bad'"),
    "fails in trial 1": (
        "import optuna\nclass Bad(optuna.samplers.RandomSampler):\n  def after_trial(self, *args): raise KeyError('elite')",
        "KeyError: 'elite'",
    ),
    "draws outside": (
        "import optuna\nclass Bad(optuna.samplers.RandomSampler):\n  def sample_independent(self, *args): return 7.5",
        "draws outside of the space: model/lr is 7.5, and must be a number from 0.0 to 1.0",
    ),
    "draws nonsense": (
        "import optuna\nclass Bad(optuna.samplers.RandomSampler):\n  def sample_independent(self, *args): return None",
        "draw",
    ),
    "does not import": ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
    "exits at import": ("import sys; sys.exit('bye')", "does not import: SystemExit: bye"),
}


@pytest.mark.slow  # another process imports Optuna
@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_class_is_refused_before_a_trial(opened: Opened, text: str, message: str) -> None:
    (opened.run.code / "bad.py").write_text(text)
    with pytest.raises(errors.InputError, match=message) as caught:
        rehearsal.check(job(**SEARCH, sampler={"class": "bad:Bad"}), opened.run.code)
    assert str(caught.value).endswith("; nothing was started")


@pytest.mark.slow  # another process imports Optuna
def test_a_class_that_hangs_is_refused(opened: Opened) -> None:
    text = (
        "import optuna, threading\nclass Bad(optuna.samplers.RandomSampler):\n  def __init__(self): threading.Event().wait()"
    )
    (opened.run.code / "bad.py").write_text(text)
    with pytest.raises(errors.InputError, match=r"the sampler bad:Bad took over 5 s to draw three trials"):
        rehearsal.check(job(**SEARCH, sampler={"class": "bad:Bad"}), opened.run.code, seconds=5)


@pytest.mark.slow  # another process imports Optuna
def test_a_good_class_passes_its_rehearsal(opened: Opened) -> None:
    rehearsal.check(job(**SEARCH, sampler={"class": "walking:Walk", "step": 0.2}), opened.run.code)


def test_a_class_that_fails_later_names_itself(opened: Opened) -> None:
    text = (
        "import optuna\nclass Bad(optuna.samplers.RandomSampler):\n  def before_trial(self, study, trial):\n"
        "    if trial.number == 5: raise ValueError('singular matrix')\n"
    )
    (opened.run.code / "bad.py").write_text(text)
    with pytest.raises(errors.EntrypointError, match="the sampler bad:Bad failed to draw trial 5: ValueError: singular"):
        drawn(opened, {"class": "bad:Bad"})


@pytest.mark.services
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Bad = dict", "is not a searcher of Ray Tune"),
        ("from ray.tune.search import Searcher\nclass Bad(Searcher): ...", "does not take the job's space"),
        (
            "from ray.tune.search import Searcher\nclass Bad(Searcher):\n"
            "  def set_search_properties(self, *args, **spec): return True",
            "NotImplementedError",
        ),
    ],
    ids=["no searcher", "no space", "no suggestion"],
)
def test_a_broken_searcher_is_refused(opened: Opened, text: str, message: str) -> None:
    (opened.run.code / "bad.py").write_text(text)
    with pytest.raises(errors.InputError, match=message):
        rehearsal.check(job(**SEARCH, sampler={"tune": "bad:Bad"}), opened.run.code)


def test_random_numbers_of_the_process_are_restored() -> None:
    import random

    import numpy as np

    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    with points.seed_globally(3):
        first = random.random(), np.random.rand()
    with points.seed_globally(3):
        assert (random.random(), np.random.rand()) == first
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index, union-attr]


def test_the_name_of_a_class_of_optuna_is_known() -> None:
    assert samplers.is_rebuilt_for_each_trial(optuna.samplers.TPESampler())
