"""What becomes of what the job returns and of an error; and a result that has no room.

Not checked here: processes (test_slot.py), and `sys.exit` (test_exits.py).
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.worker.conftest import Bench
from tests.worker.job_runs import Channel, Job, run

from trialplane import errors
from trialplane.training import batches
from trialplane.wire import messages, records
from trialplane.wire.records import SlotConfig, StopRule, TrialOutcome, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import context, outcomes, trial

__all__ = ["run"]  # a fixture


def returns(value: Any) -> Job:
    return lambda ctx: value


@pytest.mark.parametrize(
    ("metrics", "returned"),
    [
        (("flops", "accuracy"), (3, 0.5)),
        (("flops", "accuracy"), [np.float32(3), np.float64(0.5)]),
        (("flops", "accuracy"), {"accuracy": 0.5, "flops": 3}),
    ],
)
def test_metrics_come_by_name_or_in_the_order_of_the_objectives(run, metrics, returned) -> None:
    outcome, _ = run(returns(returned), *metrics)
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"flops": 3.0, "accuracy": 0.5})


def test_one_number_or_a_sequence_of_one_is_the_one_metric(run) -> None:
    assert [run(returns(value))[0].metrics for value in (0.5, (0.5,), [0.5])] == [{"score": 0.5}] * 3


@pytest.mark.parametrize(
    ("metrics", "returned", "said"),
    [
        (("score",), None, "score is missing: … it returned None"),
        (("score",), "good", "score is missing: … it returned 'good'"),
        (("score",), {"score": "good", "loss": 1.0}, "score is missing: … it returned score = 'good', loss"),
        (("score",), {}, "score is missing: … it returned no metrics"),
        (("score",), [0.5, 0.25], "score is missing: … it returned [0.5, 0.25], where score is expected"),
        (("a", "b"), (1, None), "b is missing: … it returned (1, None), where a, b are expected"),
        (("a", "b"), 0.5, "b is missing: … it returned 0.5"),
        (("a", "b"), (1, float("nan")), "b is NaN: … it returned (1, nan), where a, b are expected"),
        (("score",), "x" * 500, "xxx...xxx"),
        pytest.param(("score",), 10**400, "score is missing: … it returned 1000000", id="beyond every float"),
    ],
)
def test_what_does_not_fit_is_told(run, metrics, returned, said) -> None:
    outcome, _ = run(returns(returned), *metrics)
    assert outcome.failure is FailureClass.INVALID
    for part in said.split("…"):
        assert part.strip() in outcome.message
    assert len(outcome.message) < 300


def reports(returned: Any, *reported: Mapping[str, float]) -> Job:
    def job(ctx: Any) -> Any:
        for step, metrics in enumerate(reported):
            ctx.report(step, **metrics)
        return returned

    return job


def test_a_job_that_returns_nothing_has_what_it_reported_last(run) -> None:
    outcome, _ = run(reports(None, {"score": 0.25}, {"score": 0.5}, {"loss": 3.0}))
    assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 0.5, "loss": 3.0})
    outcome, _ = run(reports(None, {"loss": 3.0}))
    assert outcome.failure is FailureClass.INVALID
    assert outcome.message.endswith("it returned nothing, after reports of loss")
    outcome, _ = run(reports({"loss": 3.0}, {"score": 0.5}))
    assert outcome.failure is FailureClass.INVALID, "a result that lacks it may be misspelt"


@pytest.mark.parametrize("returned", [None, {}, {"score": math.nan}, {"score": -math.inf}])
def test_where_the_best_report_counts_the_result_need_not_have_it(run, returned) -> None:
    best = {"reported": ("score",)}
    diverges = [{"score": 0.5}, {"score": 0.25, "loss": 1.0}, {"score": math.nan}]
    outcome, _ = run(reports(returned, *diverges), asked=best)
    assert (outcome.state, outcome.metrics["score"]) == (TrialState.COMPLETE, 0.25), "the ledger knows which is the best"
    assert run(reports({"score": 0.125}, *diverges), asked=best)[0].metrics == {"score": 0.125}
    assert "score is NaN" in run(reports(None, {"score": math.nan}), asked=best)[0].message


LOSSES = [{"loss": value, "score": value / 2} for value in (4.0, 2.0, 1.0, 8.0, 0.5)]


@pytest.mark.parametrize(
    ("rules", "step", "why"),
    [
        ([StopRule("loss", below=2.5)], 1, "loss 2 is below 2.5"),
        ([StopRule("loss", below=2.0)], 2, "loss 1 is below 2"),
        ([StopRule("loss", above=4.0)], 3, "loss 8 is above 4"),
        ([StopRule("loss", below=2.5, after=2)], 2, "loss 1 is below 2.5"),
        ([StopRule("loss", below=1.0, above=5.0)], 3, "loss 8 is above 5"),
        ([StopRule(step=2)], 2, "step 2 is reached"),
        ([StopRule(step=0)], 0, "step 0 is reached"),
        ([StopRule("loss", below=0.1), StopRule("score", above=3.0)], 3, "score 4 is above 3"),
    ],
)
def test_a_stop_rule_ends_a_trial_as_complete_with_what_it_reported(run, rules, step, why) -> None:
    outcome, _ = run(reports({"score": -1.0}, {"start": 7.0, **LOSSES[0]}, *LOSSES[1:]), asked={"stop": tuple(rules)})
    assert (outcome.state, outcome.early) == (TrialState.COMPLETE, True)
    assert outcome.metrics == {"start": 7.0, **LOSSES[step]}
    assert outcome.message == f"stopped at step {step}: {why}"


def test_a_rule_that_no_report_meets_changes_nothing(run) -> None:
    rules = (StopRule("loss", below=0.5), StopRule("loss", below=1e9, after=5), StopRule(step=5))
    outcome, _ = run(reports({"score": -1.0}, *LOSSES, {"loss": math.nan}), asked={"stop": rules[:2]})
    assert (outcome.early, outcome.message, outcome.metrics) == (False, "", {"score": -1.0})
    assert run(reports({"score": -1.0}, *LOSSES), asked={"stop": rules})[0].message == ""


def test_a_rule_for_a_metric_that_never_came_is_told(run) -> None:
    rules = (StopRule("los", below=9.0), StopRule(step=99))
    outcome, _ = run(reports({"score": -1.0}, *LOSSES), asked={"stop": rules})
    assert (outcome.early, outcome.message) == (False, "no report had los, which stop watches")


def test_a_stopped_trial_needs_its_metrics_as_any_other(run) -> None:
    outcome, _ = run(reports(None, {"loss": 1.0}), asked={"stop": (StopRule(step=0),)})
    assert (outcome.failure, outcome.early) == (FailureClass.INVALID, False)
    assert outcome.message.endswith("it was stopped at step 0: step 0 is reached, after reports of loss")


def test_a_rule_counts_before_the_pruner(run) -> None:
    class Pruner(Channel):
        def receive(self) -> messages.AnswerReport:
            return messages.AnswerReport(3)

    request = TrialRequest("toy", 7, 1, 9, {}, 0, ("score",), prunable=True, stop=(StopRule(step=3),))
    reporter = trial.Reporter(request, Pruner())  # type: ignore[arg-type]
    assert reporter(2, {"score": 1.0})
    with pytest.raises(context.Finished):
        reporter(3, {"score": 1.0})


def test_texts_and_lists_stay_with_the_outcome(run) -> None:
    told = {"best": "adamw", "per_class": [0.5, 0.25], "matrix": {"yes": [3, 1], "note": None}, "none": None}
    outcome, packed = run(returns({"score": 0.5, **told, "logits": np.ones(2)}))
    assert outcome.returned == told
    assert list(packed) == ["logits"]
    crossed = records.from_json(TrialOutcome, records.to_json(outcome))
    assert crossed.returned == told


def test_a_text_that_is_none_is_made_one(run) -> None:
    outcome, _ = run(returns({"score": 0.5, "texts": ["fine", "lone \ud800"], "by": {"\ud800": "x"}}))
    assert outcome.returned == {"texts": ["fine", "lone \\ud800"], "by": {"\\ud800": "x"}}


def test_what_is_too_large_for_the_ledger_goes_into_the_file(run) -> None:
    texts = ["a long answer"] * 10_000
    outcome, packed = run(returns({"score": 0.5, "answers": texts, "name": "short"}))
    assert (outcome.returned, packed) == ({"name": "short"}, {"answers": texts})
    many = {f"text{number}": "x" * 1000 for number in range(10)}
    outcome, packed = run(returns({"score": 0.5, **many}))
    assert len(json.dumps(outcome.returned)) <= outcomes.MAX_RETURNED + 100
    assert {**outcome.returned, **packed} == many


def test_an_error_has_its_place(run) -> None:
    def job(ctx: Any) -> None:
        raise ValueError("no such colour")

    outcome, _ = run(job)
    assert outcome.message == f"ValueError: no such colour ({outcome.fingerprint})"
    assert outcome.fingerprint == f"test_outcomes.py:{job.__code__.co_firstlineno + 1}"


def test_its_place_is_in_the_jobs_code_and_not_in_what_python_made() -> None:
    """A dataclass' `__init__` is made by Python, in a file called `<string>`."""
    job = compile("length = 3\nBatchOrder(length, 4)\n", "/jobs/demo/train.py", "exec")
    with pytest.raises(errors.InputError) as caught:
        exec(job, {"BatchOrder": batches.BatchOrder})
    assert "<string>" in [entry.frame.code.raw.co_filename for entry in caught.traceback]
    said = outcomes.describe(caught.value)
    assert said.startswith("InputError: 3 samples do not fill one global batch of 4")
    assert said.endswith("(train.py:2)")


def test_arrays_without_room_are_told_with_size_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    request = TrialRequest("toy", 0, 1, 0, {}, 0, ("score",))
    says = r"its result \(1\.6 MB\) cannot be written to .*7\.arrays: No space left on device; make room there"
    with pytest.raises(errors.TransportError, match=says):
        outcomes.outcome_of_result(request, {"score": 1.0, "logits": np.zeros(200_000)}, tmp_path / "7")


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "infinite"), (-math.inf, "infinite")])
def test_a_value_that_is_not_finite_is_no_result_whichever_way_is_better(value: float, word: str) -> None:
    request = TrialRequest("run", trial=0, attempt=1, number=0, params={}, seed=0, metrics=("loss", "size"))
    outcome = outcomes.outcome_of_result(request, {"loss": value, "size": 1, "other": math.inf}, Path("w"))
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.INVALID)
    assert outcome.message.startswith(f"loss is {word}: run(ctx) must return a finite number")
    outcome = outcomes.outcome_of_result(request, {"loss": 1.7e308, "size": 1, "other": math.inf}, Path("w"))
    assert outcome.state is TrialState.COMPLETE, "only what is optimized or bounded must be finite"


def resumed(function: Job, tmp_path: Path, attempt: int = 1) -> tuple[list[str], str]:
    """What is remarked with each report of a training that is to start from another run, and the message of its end."""
    config = SlotConfig("toy", str(tmp_path), "train:run", str(tmp_path), str(tmp_path))
    request = TrialRequest("toy", 0, attempt, 9, {}, 0, ("loss",), resume="other")
    channel = Channel()
    outcome = trial.run_job(function, config, request, tmp_path / "0", trial.Reporter(request, channel))  # type: ignore[arg-type]
    return [message.remark for message in channel.sent], outcome.message


def starts_anew(ctx: Any) -> float:
    for step in range(3):
        ctx.report(step, loss=1.0)
    return 1.0


def goes_on(ctx: Any) -> float:
    assert ctx.resume_from is not None
    return starts_anew(ctx)


def test_a_training_that_never_asks_where_to_start_from_is_told_at_its_first_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "the checkpoint of other has no effect: the job has read neither ctx.restored nor ctx.resume_from, so it started "
    told += "from scratch"
    assert resumed(starts_anew, tmp_path) == ([told, "", ""], told)
    assert capsys.readouterr().out.splitlines()[0] == f"warning: {told}"
    assert resumed(lambda ctx: 1.0, tmp_path) == ([], told)


def test_one_that_asks_and_one_that_has_checkpoints_of_its_own_are_not(tmp_path: Path) -> None:
    assert resumed(goes_on, tmp_path) == (["", "", ""], "")
    assert resumed(starts_anew, tmp_path, attempt=2) == (["", "", ""], "")


KEEPING = """
from pathlib import Path

def run(ctx):
    Path("model.pt").write_text("weights")
    if ctx.params["what"] == "full":
        Path(ctx.checkpoints).parent.mkdir(parents=True)
        Path(ctx.checkpoints).write_text("in the way")
    return 1.0
"""


def test_files_that_cannot_be_kept_are_told_and_the_trial_counts(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": KEEPING}, keep=("model.pt", "best.pt")) as bench:
        failed, kept = bench.outcome("full"), bench.outcome("fits")
        assert (failed.state, failed.metrics) == (TrialState.COMPLETE, {"score": 1.0})
        assert failed.remark == "keep.files: could not copy model.pt (Not a directory); the trial counts all the same"
        assert (kept.state, kept.remark) == (TrialState.COMPLETE, "")
        assert "keep.files: model.pt could not be copied to " in bench.log(failed)
        for outcome in (failed, kept):
            assert bench.log(outcome).count("keep.files: the trial has left no file best.pt\n") == 1
        assert [file.read_text() for file in bench.root.glob("checkpoints/toy/trial-1/files/*")] == ["weights"]


def test_of_many_files_that_cannot_be_kept_a_few_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "in-the-way"
    place.write_text("")
    for number in range(5):
        (tmp_path / f"{number}.pt").write_text("")
    remark = outcomes.copy_kept_files(str(place), tmp_path, ["*.pt"])
    assert "2.pt (Not a directory) and 2 more; the trial counts all the same" in remark
    assert capsys.readouterr().err.count("could not be copied") == 5
