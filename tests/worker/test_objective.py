"""An objective of Optuna in a trial's process: what it gets behaves as `optuna.Trial`, and what the slot passes on.

Values come from a double in place of the controller. Not checked here: what Optuna draws
(tests/controller/test_suggesting.py).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from tests.worker.conftest import Bench, Event

from trialplane.wire import messages
from trialplane.wire.messages import Suggest, Suggested
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import context
from trialplane.worker.shims import objective

JOB = {
    "train": """
import os
import optuna

def run(trial):
    what = trial.suggest_categorical("what", ["return", "prune", "kill", "fail", "several", "constrain", "large", "log"])
    x = trial.suggest_float("x", 0, 1)
    trial.set_user_attr("note", {"x": [x]})
    if what == "kill":
        os.kill(os.getpid(), 9)
    if what == "fail":
        raise RuntimeError("no")
    if what == "several":
        return 1.0, 2.0
    if what == "constrain":
        trial.set_constraint("size", 3)
    if what == "large":
        trial.set_user_attr("text", "x" * 5000)
    if what == "log":
        import wandb
        import trialplane
        wandb.init(config={"x": 9.0})
        found = dict(wandb.config), dict(trialplane.params()), dict(trialplane.current().params)
        trial.set_user_attr("params", found)
        for step in range(3):
            wandb.log({"score": x + step})
            trial.report(x + step, step)
            wandb.log({"score": x + step, "other": step})
    if what == "prune":
        for step in range(9):
            trial.report(x - step, step)
            if trial.should_prune():
                raise optuna.TrialPruned()
    return x
"""
}
WHAT = ["return", "prune", "kill", "fail", "several", "constrain", "large", "log"]


class Controller:
    """Gives the next of some values, and keeps what it was asked."""

    def __init__(self, *answers: Suggested | float, prune: bool = False) -> None:
        self.attributes: dict[str, Any] = {}
        self.wanted: list[Suggest] = []
        self.reports: list[tuple[int, dict[str, float]]] = []
        self._answers = list(answers)
        self._prune = prune

    def __call__(self, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
        self.reports.append((step, dict(metrics)))
        return self._prune

    def suggest(self, wanted: Suggest) -> Suggested:
        self.wanted.append(wanted)
        answer = self._answers.pop(0)
        return answer if isinstance(answer, Suggested) else Suggested(answer)


def context_of(controller: Controller, **params: Any) -> context.Context:
    place = Path("/nowhere")
    return context.Context(params, 1, "toy", 7, 1, 1, 0, place, place, place, controller)


def trial(
    controller: Controller, metrics: tuple[str, ...] = ("loss",), directions: tuple[str, ...] = ("minimize",)
) -> objective.Trial:
    return objective.Trial(context_of(controller), metrics, directions, controller)


def test_values_come_back_as_optuna_has_them() -> None:
    controller = Controller(0.5, 4.0, 1.0)
    asks = trial(controller)
    square = [3, 3]
    assert asks.suggest_float("x", 0, 1) == 0.5
    depth = asks.suggest_int("depth", 2, 8, step=2)
    assert (depth, type(depth)) == (4, int)
    assert asks.suggest_categorical("kernel", [(1, 2), square]) is square
    assert asks.params == {"x": 0.5, "depth": 4, "kernel": square}
    kernel = asks.distributions.pop("kernel")
    assert isinstance(kernel, optuna.distributions.CategoricalDistribution)
    assert kernel.choices == ([1, 2], [3, 3])
    assert asks.distributions["x"] == optuna.distributions.FloatDistribution(0, 1)
    assert asks.distributions["depth"] == optuna.distributions.IntDistribution(2, 8, step=2)
    assert asks.number == 7
    assert asks.datetime_start is not None


def test_the_study_of_a_trial_has_its_directions_alone() -> None:
    study = trial(Controller(), directions=("maximize",)).study
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    with pytest.raises(AttributeError, match=r"trial\.study\.best_value does not exist: the study is in the controller"):
        study.best_value  # noqa: B018
    several = trial(Controller(), ("loss", "f1"), ("minimize", "maximize")).study
    assert [direction.name for direction in several.directions] == ["MINIMIZE", "MAXIMIZE"]
    with pytest.raises(RuntimeError, match="several objectives"):
        several.direction  # noqa: B018


def test_the_same_name_again_is_answered_from_memory() -> None:
    controller = Controller(0.5)
    asks = trial(controller)
    assert asks.suggest_float("x", 0, 1) == asks.suggest_float("x", 0.0, 1.0) == 0.5
    assert len(controller.wanted) == 1


def test_what_optuna_says_is_said_at_the_line_of_the_objective() -> None:
    asks = trial(Controller(0.5, Suggested(0.5, warnings=("Inconsistent",)), Suggested(None, "low is over high")))
    asks.suggest_float("x", 0, 1)
    with pytest.warns(UserWarning, match="Inconsistent") as caught:
        assert asks.suggest_float("x", 0, 2) == 0.5
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="low is over high"):
        asks.suggest_float("y", 2, 1)
    assert asks.params == {"x": 0.5}


def test_the_deprecated_names_are_there() -> None:
    controller = Controller(0.1, 0.2, 0.4)
    asks = trial(controller)
    assert (asks.suggest_uniform("a", 0, 1), asks.suggest_loguniform("b", 0.1, 1)) == (0.1, 0.2)
    assert asks.suggest_discrete_uniform("c", 0, 1, 0.2) == 0.4
    assert [(one.log, one.step) for one in controller.wanted] == [(False, None), (True, None), (False, 0.2)]


@pytest.mark.parametrize("choice", [object(), float("nan"), len])
def test_choices_that_are_no_json_are_refused_with_the_cure(choice: Any) -> None:
    with pytest.raises(TypeError, match="give its name"):
        trial(Controller()).suggest_categorical("kernel", ["rbf", choice])


@pytest.mark.parametrize("bound", [float("nan"), float("inf")])
def test_bounds_that_are_no_numbers_are_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        trial(Controller()).suggest_float("x", 0, bound)


def test_reports_prune_as_optunas() -> None:
    controller = Controller(prune=True)
    asks = trial(controller)
    assert not asks.should_prune()
    asks.report(1, step=0)
    assert asks.should_prune()
    with pytest.warns(UserWarning, match="ignored"):
        asks.report(2.0, 0)
    assert controller.reports == [(0, {"loss": 1.0})]
    with pytest.raises(TypeError):
        asks.report("much", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps go from 0 to"):
        asks.report(1.0, -1)
    several = trial(Controller(), ("loss", "size"), ("minimize", "minimize"))
    for call in (lambda: several.report(1.0, 0), several.should_prune):
        with pytest.raises(NotImplementedError, match="multi-objective"):
            call()


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(AttributeError, match="the study is in the controller"):
        _ = trial(Controller()).storage


def test_an_objective_that_is_run_as_a_function_is_told_its_entrypoint() -> None:
    with pytest.raises(AttributeError, match="needs `entrypoint: optuna:MODULE:FUNCTION`"):
        context_of(Controller()).suggest_float("x", 0, 1)
    assert not hasattr(context_of(Controller()), "anything")


def test_a_constraint_must_be_one_of_the_jobs() -> None:
    asks = trial(Controller(), ("loss", "size"))
    asks.set_constraint("size", 1)
    assert asks.constraints == {"size": 1.0}
    with pytest.raises(ValueError, match=r"constraints: \[{metric: other, max: 0}\]"):
        asks.set_constraint("other", 1)
    with pytest.raises(ValueError, match="NaN"):
        asks.set_constraint("size", float("nan"))
    with pytest.raises(TypeError):
        asks.set_constraint("size", "much")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with warnings.catch_warnings(), Bench(tmp_path_factory.mktemp("slot"), JOB, capture=("wandb",)) as made:
        yield made


def answered(bench: Bench, what: str, *, prune_at: int = 99, **options: Any) -> tuple[list[Event], TrialOutcome]:
    """All events of a trial that does `what`, its parameters given, and its outcome."""
    events = [bench.slot.run(bench.request(what, directions=("minimize",), prunable=True, **options))]
    while events[-1].outcome is None:
        wanted, given = events[-1].wanted, None
        if wanted is not None:
            given = Suggested(float(WHAT.index(what)) if wanted.kind == "categorical" else 0.25)
        prune = any(report.step >= prune_at for report in events[-1].reports)
        events.append(bench.slot.answer(prune_at if prune else None, given))
    return events, events[-1].outcome


def test_a_slot_passes_requests_on_and_values_back(bench: Bench) -> None:
    events, outcome = answered(bench, "return")
    assert [event.wanted.name for event in events if event.wanted] == ["what", "x"]
    assert (outcome.state, dict(outcome.metrics)) == (TrialState.COMPLETE, {"score": 0.25})
    assert outcome.returned == {"note": {"x": [0.25]}}


def test_what_wandb_logs_and_the_objective_reports_counts_once(bench: Bench) -> None:
    """The first point has come by W&B's call when the objective's own report takes the metric over."""
    events, outcome = answered(bench, "log")
    assert outcome.state is TrialState.COMPLETE, outcome
    reports = [report for event in events for report in event.reports]
    points = [(report.step, name, value) for report in reports for name, value in report.metrics.items()]
    assert points == [
        (0, "score", 0.25),
        (1, "other", 0.0),
        (1, "score", 1.25),
        (3, "other", 1.0),
        (2, "score", 2.25),
        (5, "other", 2.0),
    ]


def test_the_parameters_of_the_trial_are_what_was_suggested(bench: Bench) -> None:
    _, outcome = answered(bench, "log")
    given = {"what": "log", "x": 0.25}
    assert outcome.returned["params"] == [given, given, given], "W&B's configuration, the trial's parameters, the context's"


def test_parameters_are_shown_as_a_retry_has_them() -> None:
    controller = Controller(0.5, 1.0)
    ctx = context_of(controller, epochs=3)
    asks = objective.Trial(ctx, ("loss",), ("minimize",), controller)
    asks.suggest_float("x", 0, 1)
    assert ctx.params == {"epochs": 3, "x": 0.5}
    assert asks.suggest_categorical("kernel", ["rbf", (1, 2)]) == (1, 2)
    assert ctx.params == {"epochs": 3, "x": 0.5, "kernel": [1, 2]}, "a retry has read it from JSON"


def test_a_report_of_another_thread_waits_until_a_parameter_is_drawn() -> None:
    """One answer at a time is on its way: the report could take the parameter's."""
    asked, reported, order = threading.Event(), threading.Event(), []

    class Slow(Controller):
        def __call__(self, step: int, metrics: Mapping[str, float], *, waits: bool = True) -> bool:
            order.append("report")
            reported.set()
            return False

        def suggest(self, wanted: Suggest) -> Suggested:
            asked.set()
            reported.wait(0.2)
            order.append("value")
            return Suggested(0.5)

    controller = Slow()
    ctx = context_of(controller)
    asks = objective.Trial(ctx, ("loss",), ("minimize",), controller)
    thread = threading.Thread(target=lambda: asked.wait(60) and ctx.note("wandb", 0, {"loss": 1.0}))
    thread.start()
    asks.suggest_float("x", 0, 1)
    thread.join()
    assert order == ["value", "report"]


def test_a_report_of_the_objective_and_one_by_the_context_have_one_count_of_steps() -> None:
    controller = Controller()
    ctx = context_of(controller)
    asks = objective.Trial(ctx, ("loss",), ("minimize",), controller)
    asks.report(1.0, 4)
    ctx.report(other=2.0)
    assert controller.reports == [(4, {"loss": 1.0}), (5, {"other": 2.0})]


def test_a_pruned_trial_keeps_its_attributes(bench: Bench) -> None:
    _, outcome = answered(bench, "prune", prune_at=2)
    assert (outcome.state, outcome.metrics["score"]) == (TrialState.PRUNED, -1.75)
    assert outcome.returned == {"note": {"x": [0.25]}}


def test_failures_are_those_of_any_trial(bench: Bench) -> None:
    _, killed = answered(bench, "kill")
    assert killed.failure is FailureClass.CRASHED
    _, failed = answered(bench, "fail")
    assert (failed.failure, failed.returned) == (FailureClass.ERROR, {"note": {"x": [0.25]}})
    _, several = answered(bench, "several")
    assert several.failure is FailureClass.INVALID


def test_a_constraint_of_the_code_without_one_of_the_job_fails_with_the_cure(bench: Bench) -> None:
    _, outcome = answered(bench, "constrain")
    assert "write constraints: [{metric: size, max: 0}] into job.yaml" in outcome.message


def test_attributes_that_are_too_large_are_named(bench: Bench) -> None:
    _, outcome = answered(bench, "large")
    assert outcome.state is TrialState.COMPLETE
    assert outcome.returned == {"note": {"x": [0.25]}}
    assert "attributes text were not kept" in outcome.message


def test_a_trial_that_has_its_parameters_may_ask_for_none(tmp_path: Path) -> None:
    code = {
        "train": "def run(ctx):\n"
        "    from trialplane.wire import messages\n"
        "    ctx._reporter._channel.send(messages.Suggest('x', 'float', 0.0, 1.0))\n"
        "    ctx._reporter._channel.receive()\n"
    }
    with Bench(tmp_path, code) as bench:
        outcome = bench.outcome("anything")
    assert (outcome.failure, "only an objective" in outcome.message) == (FailureClass.INVALID, True)


def test_an_objective_runs_in_its_own_copy_of_the_code(tmp_path: Path) -> None:
    code = {
        "train": "from pathlib import Path\n"
        "at_import = Path('train.py').exists()\n"
        "def run(trial):\n"
        "    with open('rows.txt', 'a') as file:\n"
        "        file.write('x')\n"
        "    trial.set_user_attr('files', [at_import, Path('train.py').exists(), Path('rows.txt').read_text()])\n"
        "    return trial.suggest_float('x', 0, 1)\n"
    }
    with Bench(tmp_path, code, entrypoint="optuna:train:run") as bench:
        for _ in range(2):
            _, outcome = answered(bench, "return")
            assert outcome.returned == {"files": [True, True, "x"]}


def test_messages_are_checked() -> None:
    wanted = Suggest("x", "categorical", choices=("a", None, [1, {"b": 2}]))
    assert messages.decode(messages.encode(wanted), messages.FROM_TRIAL) == wanted
    answer = messages.AnswerReport(None, Suggested(0.5, warnings=("a",)))
    assert messages.decode(messages.encode(answer), messages.ANSWER) == answer
