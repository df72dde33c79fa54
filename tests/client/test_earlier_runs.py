"""Earlier runs that a new study learns from, or takes results from, as the submitter reads them.

The ledgers are real and driven in this process. Not checked here: the mapping of single values (tests/plan/test_earlier.py),
and what samplers do with it (tests/controller/test_earlier.py).
"""

from __future__ import annotations

import dataclasses
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.client.conftest import Runs, complete, failed
from tests.controller.slots_double import Slots

from trialplane import errors
from trialplane.client import earlier_runs, folder
from trialplane.client.sdk import Platform, PreparedRun
from trialplane.controller.ledger import Ledger
from trialplane.controller.workloads.study import StudyWorkload
from trialplane.plan import datasets
from trialplane.wire import earlier
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import BestReport, CheckpointSummary, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState


def prepared(runs: Runs, name: str, **overrides: Any) -> PreparedRun:
    return Platform(runs.target).prepare("demo", name=name, overrides=overrides)


def made(runs: Runs, name: str, **overrides: Any) -> RunPaths:
    """A run as the platform submits it."""
    run = RunPaths.of(runs.home, name)
    folder.create(run, prepared(runs, name, **overrides).plan)
    return run


def driven(run: RunPaths) -> tuple[list[TrialRequest], list[str]]:
    """Work on a run; returns the trials that were trained, and the results that needed no training."""
    trained, answered = [], []
    with Ledger(f"sqlite:///{run.ledger}", folder.load_job(run), run.root.name, run.code, run.lock) as ledger:
        while True:
            request = ledger.ask()
            is_answered = request is not None and ledger.answer(request)
            if request is not None and not is_answered:
                trained.append(request)
                if request.start is not None:  # the trial has read the checkpoint
                    ledger.report(TrialReport(request.number, 4, {"loss": 2.0}, 5.0, start_step=3))
                ledger.tell(complete(request))
            answers = list(ledger.take_answers(is_stuck=request is None))
            for _, outcome in answers:
                answered.append(outcome.message)
                ledger.tell(outcome)
            if request is None and not answers:
                break
    return trained, answered


def test_a_repeated_study_trains_nothing(runs: Runs) -> None:
    runs.make("first", tell=complete)
    second = made(runs, "second", reuse=True)
    trained, answered = driven(second)
    assert not trained
    assert len(answered) == folder.load_job(second).trials
    assert answered[0] == "answered by trial 0 of first, which has the same parameters"
    rows = [runs.target.rows(name) for name in ("first", "second")]
    assert [(row.params, row.values) for row in rows[0]] == [(row.params, row.values) for row in rows[1]]
    with Ledger(f"sqlite:///{second.ledger}", folder.load_job(second), "second", second.code, second.lock) as ledger:
        assert StudyWorkload(ledger, Slots(1)).progress.answered == len(answered)


def test_answers_are_the_same_after_a_kill(runs: Runs) -> None:
    runs.make("first", tell=complete)
    second = made(runs, "second", reuse=True)
    with Ledger(f"sqlite:///{second.ledger}", folder.load_job(second), "second", second.code, second.lock) as ledger:
        assert ledger.ask() is not None  # and dies before the answer is written
    trained, answered = driven(second)
    assert not trained
    assert len(answered) == folder.load_job(second).trials


@pytest.mark.parametrize(
    "change",
    [{"seed": 9}, {"params.epochs": 99}, {"resources.cpus": 2}, {"objective.direction": "maximize"}],
    ids=str,
)
def test_another_seed_setting_or_objective_is_not_reused(runs: Runs, change: dict[str, Any]) -> None:
    (runs.jobs / "demo" / "job.yaml").write_text(f"{(runs.jobs / 'demo' / 'job.yaml').read_text()}\nparams: {{epochs: 3}}\n")
    runs.make("first", tell=complete)
    _, answered = driven(made(runs, "second", reuse=True, **change))
    assert not answered


def test_other_code_is_not_reused(runs: Runs) -> None:
    runs.make("first", tell=complete)
    code = runs.jobs / "demo" / "train.py"
    code.write_text(f"{code.read_text()}\n# changed\n")
    assert not driven(made(runs, "second", reuse=True))[1]


@pytest.mark.parametrize(
    ("fields", "files", "reason"),
    [
        ({}, {"train.py": "def run(ctx):\n    return {'loss': 0.0}\n"}, "code: train.py: changed"),
        ({}, {"data.csv": "a,b\n1,3\n"}, "code: data.csv: changed"),
        ({"seed": 9, "description": "x", "trials": 9}, {}, "seed: 0 → 9"),
        ({"cluster.image": "train:2", "cluster.node_selector": {"gpu": "h100"}}, {}, 'cluster.image: null → "train:2"'),
        ({"params.data": "other.csv"}, {}, 'params.data: "data.csv" → "other.csv"'),
        (
            {"seed": 9},
            {f"part-{number}.csv": "1\n" for number in range(6)},
            "seed: 0 → 9; code: part-0.csv: added; code: part-1.csv: added; code: part-2.csv: added; "
            "code: part-3.csv: added; and 2 more",
        ),
    ],
    ids=["code", "data", "field", "image", "param", "many"],
)
def test_the_reason_why_nothing_is_reused_is_reported(
    runs: Runs, fields: dict[str, Any], files: dict[str, str], reason: str
) -> None:
    job = runs.jobs / "demo" / "job.yaml"
    job.write_text(f"{job.read_text()}\nparams: {{data: data.csv}}\n")
    (job.parent / "data.csv").write_text("a,b\n1,2\n")
    runs.make("first", tell=complete)
    shutil.copytree(job.parent, runs.jobs / "other")
    folder.create(RunPaths.of(runs.home, "of-another-job"), Platform(runs.target).prepare("other").plan)
    job.write_text(f"# the text of the job does not matter\n{job.read_text()}")
    for name, text in files.items():
        (job.parent / name).write_text(text)
    texts = prepared(runs, "second", reuse=True, **fields).warnings
    assert f"reuse: nothing of first, which differs (then → now): {reason}" in texts


def test_a_wider_search_reuses_what_it_repeats(runs: Runs) -> None:
    """The sampler, the number of trials and the space are not what a trial does."""
    runs.make("first", tell=complete)
    point = dict(runs.target.rows("first")[3].params)
    trained, answered = driven(made(runs, "second", reuse=True, enqueue=[point], sampler="qmc", trials=3, parallel=2))
    assert answered == ["answered by trial 3 of first, which has the same parameters"]
    assert [request.trial for request in trained] == [1, 2]


def test_another_job_file_is_reused(runs: Runs) -> None:
    """What a trial does is compared field by field, and the text of the file may change."""
    runs.make("first", tell=complete)
    job = runs.jobs / "demo" / "job.yaml"
    job.write_text(f"# more of the same\n{job.read_text().replace('trials: 6', 'trials: 4')}")
    trained, answered = driven(made(runs, "second", reuse=True))
    assert (len(trained), len(answered)) == (0, 4)


def test_changed_data_is_not_reused_and_reported(runs: Runs, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("a,b\n1,2\n")
    job = runs.jobs / "demo" / "job.yaml"
    job.write_text(f"{job.read_text()}\nparams: {{data: {data}}}\n")
    folder.create(RunPaths.of(runs.home, "first"), prepared(runs, "first").plan)
    runs.drive(RunPaths.of(runs.home, "first"), complete)
    assert any(text == "reuse: 6 results of earlier runs with the same code, data and seed" for text in notes(runs)), notes(
        runs
    )
    data.write_text("a,b\n1,3\n")
    assert "reuse: nothing of first, because the data in data has changed since" in notes(runs)


def test_data_whose_changes_are_not_detected_is_reported(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = runs.jobs / "demo" / "job.yaml"
    text = job.read_text()
    job.write_text(f"{text}\nparams: {{data: 'https://example.org/data.csv'}}\n")
    note = (
        "reuse: a change of what data names (https://example.org/data.csv) is not detected; if it has changed, submit with "
        "`--set reuse=false`"
    )
    assert note not in notes(runs), "nothing is reused"
    runs.make("first", tell=complete)
    assert note in notes(runs)
    assert note not in prepared(runs, "second").warnings
    monkeypatch.setattr(datasets, "_MOST_FILES", 1)
    for name in ("a", "b"):
        (tmp_path / "parts").mkdir(exist_ok=True)
        (tmp_path / "parts" / name).touch()
    job.write_text(f"{text}\nparams: {{data: {tmp_path / 'parts'}}}\n")
    assert notes(runs)[0].startswith(
        "reuse: nothing, because the data in data cannot be read here to check it for changes, or has"
    )


def notes(runs: Runs) -> tuple[str, ...]:
    return prepared(runs, "second", reuse=True).warnings


def test_submitting_the_same_again_continues_it_though_there_are_more_results(runs: Runs) -> None:
    runs.make("first", tell=complete)
    made(runs, "second", reuse=True)
    runs.make("third", tell=complete)
    assert runs.target.differences(prepared(runs, "second", reuse=True).plan) == []


def test_history_travels_with_the_code(runs: Runs) -> None:
    runs.make("first", tell=lambda request: failed(request, FailureClass.OOM) if request.trial == 2 else complete(request))
    second = made(runs, "second", history=["first"], sampler="tpe")
    content = earlier.read(second.code)
    assert [trial.trial for trial in content.history] == list(range(6))
    assert [bool(trial.values) for trial in content.history] == [True, True, False, True, True, True]
    with Ledger(f"sqlite:///{second.ledger}", folder.load_job(second), "second", second.code, second.lock) as ledger:
        with ledger._memory.sampler_view():
            shown = ledger._study.get_trials(deepcopy=False)
        assert sorted(trial.number for trial in shown) == list(range(-6, 0))
        assert not ledger._study.get_trials(), "pruners, counts and results have only the study's own"


def killed(request: TrialRequest) -> TrialOutcome:
    """The outcome of a trial that was out of memory on every second point: of the GPU, or killed."""
    if request.trial % 2 == 0:
        return complete(request)
    if request.trial == 1:
        return failed(request, FailureClass.OOM)
    return dataclasses.replace(failed(request, FailureClass.CRASHED), exit_code=-signal.SIGKILL)


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({"seed": 9, "trials": 40}, 3),
        ({"resources.memory": "2Mi"}, 0),
        ({"cluster.gpu_resource": "nvidia.com/mig-1g.10gb"}, 0),
        ({"params.layers": 3}, 0),
        ({"avoid_oom": []}, None),
    ],
    ids=str,
)
def test_points_of_history_that_were_out_of_memory_are_avoided(
    runs: Runs, fields: dict[str, Any], counted: int | None
) -> None:
    job = runs.jobs / "demo" / "job.yaml"
    job.write_text(f"{job.read_text()}\nparams: {{layers: 2}}\navoid_oom: [lr]\n")
    runs.drive(made(runs, "first"), killed)
    fields = {"history": ["first"], "sampler": "tpe", **fields}
    notes_of_memory = [text for text in prepared(runs, "second", **fields).warnings if text.startswith("avoid_oom")]
    others = "; the others had other code, fields or parameters"
    expected = f"avoid_oom: {counted} of 3 trials of first out of memory count{'' if counted else others}"
    assert notes_of_memory == ([] if counted is None else [expected])
    lowest: dict[str, float] = {}
    for row in runs.target.rows("first"):
        if row.trial % 2:
            lowest[row.params["name"]] = min(row.params["lr"], lowest.get(row.params["name"], 1.0))
    requests, _ = driven(made(runs, "second", **fields))
    above = [request for request in requests if request.params["lr"] >= lowest.get(request.params["name"], 1.0)]
    assert bool(above) is (not counted), above


def test_points_out_of_memory_do_not_count_for_other_code(runs: Runs) -> None:
    runs.make("first", tell=killed)
    code = runs.jobs / "demo" / "train.py"
    code.write_text(f"{code.read_text()}\n# needs less memory\n")
    texts = prepared(runs, "second", history=["first"], sampler="tpe", avoid_oom=["lr"]).warnings
    assert any(text.startswith("avoid_oom: 0 of ") for text in texts), texts


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"history": ["first"], "sampler": "tpe", "objectives": [{"metric": "acc", "direction": "maximize"}]},
            "has other objectives",
        ),
        ({"history": ["nowhere"], "sampler": "tpe"}, "there is no run 'nowhere'"),
        ({"history": ["first"], "sampler": "random"}, "teaches random nothing"),
    ],
    ids=["objectives", "unknown", "sampler"],
)
def test_history_that_says_nothing_is_refused(runs: Runs, overrides: dict[str, Any], message: str) -> None:
    runs.make("first", tell=complete)
    with pytest.raises(errors.SpecError, match=message):
        prepared(runs, "second", **overrides)


def test_missing_and_ignored_parameters_are_reported(runs: Runs) -> None:
    runs.make("first", tell=complete)
    space = {"width": {"type": "int", "low": 1, "high": 4}, "lr": {"type": "float", "low": 0.0, "high": 1.0}}
    texts = prepared(runs, "second", history=["first"], space=space, sampler="tpe").warnings
    assert any(text.startswith("history: 6 trials of first, with lr") and "without width" in text for text in texts), texts
    texts = prepared(runs, "third", history=["first"], space=space, sampler="gp").warnings
    assert any("6 trials of first left out: it has no width, which gp needs of every trial" in text for text in texts), texts


def test_duplicates_are_drawn_again(runs: Runs) -> None:
    space = {"lr": {"type": "categorical", "choices": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}, "name": None}
    run = made(runs, "small", space=space, duplicates="redraw", sampler="random", trials=6)
    trained, _ = driven(run)
    assert sorted(request.params["lr"] for request in trained) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    again = made(runs, "larger", space=space, duplicates="redraw", trials=8)
    assert len(driven(again)[0]) == 8, "a space without another point is not a reason to stop"


def test_duplicates_are_answered(runs: Runs) -> None:
    space = {"lr": {"type": "categorical", "choices": [0.1, 0.2]}, "name": None}
    run = made(runs, "small", space=space, duplicates="answer", sampler="random", trials=6)
    trained, answered = driven(run)
    assert len({request.params["lr"] for request in trained}) == len(trained) == 2
    assert len(answered) == 4
    rows = runs.target.rows("small")
    assert all(row.state is TrialState.COMPLETE and row.values == (row.params["lr"],) for row in rows)


def unfinished(request: TrialRequest) -> TrialOutcome:
    """The outcome of a trial that is complete if its number is even, and otherwise pruned after four steps; it has saved."""
    summary = CheckpointSummary(2, 100, f"digest of {request.trial}")
    if request.trial % 2 == 0:
        return dataclasses.replace(complete(request), checkpoints=summary, step=7)
    metrics = {"loss": 0.5}
    return TrialOutcome(request.number, TrialState.PRUNED, metrics=metrics, step=3, checkpoints=summary, ended=11.0)


def with_epochs(runs: Runs) -> None:
    """The job demo, with a parameter for the number of epochs, and code that continues."""
    job, code = runs.jobs / "demo" / "job.yaml", runs.jobs / "demo" / "train.py"
    job.write_text(f"{job.read_text()}\nparams: {{epochs: 8}}\n")
    code.write_text(f"{code.read_text()}\nSTATE = 'ctx.restored'\n")


def test_a_trial_that_was_not_complete_is_continued(runs: Runs) -> None:
    with_epochs(runs)
    runs.make("first", tell=unfinished)
    earlier_seeds = {attempt.request.trial: attempt.request.seed for attempt in runs.target.attempts("first", 0)[0]}
    assert prepared(runs, "second", reuse=True).warnings[:2] == (
        "reuse: 3 results of earlier runs with the same code, data and seed",
        "reuse: 3 checkpoints of earlier runs to start trials from",
    )
    points = [dict(row.params) for row in sorted(runs.target.rows("first"), key=lambda row: -row.trial)]
    trained, answered = driven(made(runs, "second", reuse=True, enqueue=points, trials=7))
    assert len(answered) == 3
    begun = [(request.trial, request.resume, request.start) for request in trained]
    assert [(trial, run, start and (start.trial, start.step, start.digest)) for trial, run, start in begun] == [
        (0, "first", (5, -1, "digest of 5")),
        (2, "first", (3, -1, "digest of 3")),
        (4, "first", (1, -1, "digest of 1")),
        (6, "", None),
    ]
    assert [request.seed for request in trained[:3]] == [earlier_seeds[trial] for trial in (5, 3, 1)]


@pytest.mark.parametrize(("epochs", "continued"), [(16, 6), (8, 3), (4, 0)])
def test_a_shorter_trial_is_continued_if_the_job_says_what_sets_its_length(runs: Runs, epochs: int, continued: int) -> None:
    with_epochs(runs)
    runs.make("first", tell=unfinished)
    fields = {"params.epochs": epochs}
    plain = earlier.read(made(runs, "plain", reuse=True, **fields).code)
    assert len(plain.beginnings) == (3 if epochs == 8 else 0)
    trained, _ = driven(made(runs, "second", reuse={"steps": "epochs"}, **fields))
    assert sum(request.resume == "first" for request in trained) == continued


def test_what_has_begun_is_the_same_after_a_kill(runs: Runs) -> None:
    """The step is in the ledger with the first report, and a retry keeps it."""
    with_epochs(runs)
    runs.make("first", tell=unfinished)
    second = made(runs, "second", reuse=True)

    def opened() -> Ledger:
        return Ledger(f"sqlite:///{second.ledger}", folder.load_job(second), "second", second.code, second.lock)

    with opened() as ledger:
        for _ in range(2):
            request = ledger.ask()
            assert request is not None
            if ledger.answer(request):
                for _, answer in ledger.take_answers():
                    ledger.tell(answer)
        first = request
        assert first.start is not None
        ledger.report(TrialReport(first.number, 4, {"loss": 0.4}, 5.0, start_step=3))  # and the controller dies
    with opened() as ledger:
        retry = ledger.ask()
        assert retry is not None
        assert (retry.trial, retry.attempt, retry.seed) == (first.trial, 2, first.seed)
        assert (retry.resume, retry.start) == ("first", dataclasses.replace(first.start, step=3))
        outcome = ledger.tell(dataclasses.replace(complete(retry), begun_from="a lie", spared_steps=99))
        assert outcome is not None
        assert (outcome.begun_from, outcome.spared_steps) == ("first:1", 3)
        assert outcome.message == "continued from step 3 of trial 1 of first"
    with opened() as ledger:
        assert ledger.reuse.spared_steps == {1: 3}


def test_the_best_report_before_counts(runs: Runs) -> None:
    with_epochs(runs)
    objective = [{"metric": "loss", "direction": "minimize", "of": "best"}]
    first = made(runs, "first", objectives=objective)

    def stopped(request: TrialRequest) -> TrialOutcome:
        return dataclasses.replace(unfinished(request), state=TrialState.PRUNED, best={})

    with Ledger(f"sqlite:///{first.ledger}", folder.load_job(first), "first", first.code, first.lock) as ledger:
        while request := ledger.ask():
            ledger.report(TrialReport(request.number, 0, {"loss": -1.0}, 5.0))
            ledger.report(TrialReport(request.number, 1, {"loss": 3.0}, 5.0))
            ledger.tell(stopped(request))
    second = made(runs, "second", objectives=objective, reuse=True)
    assert earlier.read(second.code).beginnings[0].best == {"loss": BestReport(-1.0, 0)}
    assert {beginning.offset for beginning in earlier.read(second.code).beginnings} == {1}, "it counts from 0"
    driven(second)
    assert {row.values for row in runs.target.rows("second")} == {(-1.0,)}


@pytest.mark.parametrize("first_step", [0, 1])
def test_samples_of_system_metrics_do_not_tell_from_where_steps_are_counted(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, first_step: int
) -> None:
    monkeypatch.setattr(earlier_runs, "_PAGE", 2)
    with_epochs(runs)
    first = made(runs, "first")
    with Ledger(f"sqlite:///{first.ledger}", folder.load_job(first), "first", first.code, first.lock) as ledger:
        while request := ledger.ask():
            for sample in range(5):
                ledger.report(TrialReport(request.number, sample, {"system/cpu_utilization_percentage": 9.0}, 5.0))
            ledger.report(TrialReport(request.number, first_step, {"loss": 3.0}, 5.0))
            ledger.tell(unfinished(request))
    second = made(runs, "second", reuse=True)
    assert {beginning.offset for beginning in earlier.read(second.code).beginnings} == {1 - first_step}


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        ({}, {"checkpoints.url": "memory://new"}, "reuse: no checkpoints of first: first saved checkpoints in"),
        (
            {"keep": {"best": 2}},
            {},
            "reuse: 3 unfinished trials of first cannot be continued, because no checkpoint is left",
        ),
    ],
    ids=["elsewhere", "removed"],
)
def test_checkpoints_that_cannot_be_used_are_reported(
    runs: Runs, old: dict[str, Any], new: dict[str, Any], note: str
) -> None:
    with_epochs(runs)
    first = made(runs, "first", **old)
    runs.drive(first, unfinished)
    second = prepared(runs, "second", reuse=True, **new)
    assert any(text.startswith(note) for text in second.warnings), second.warnings
    assert not any("to start trials from" in text for text in second.warnings)


def test_trials_that_ran_when_their_controller_was_killed_are_counted_without_a_checkpoint(runs: Runs) -> None:
    with_epochs(runs)
    first = made(runs, "first")
    with Ledger(f"sqlite:///{first.ledger}", folder.load_job(first), "first", first.code, first.lock) as ledger:
        requests = [ledger.ask() for _ in range(2)]
        assert requests[0] is not None
        ledger.tell(unfinished(requests[0]))
    second = prepared(runs, "second", reuse=True)
    text = "reuse: 1 unfinished trial of first cannot be continued, because no checkpoint is left or recorded"
    assert text in second.warnings


def test_only_the_best_of_keep_are_continued(runs: Runs) -> None:
    with_epochs(runs)
    first = made(runs, "first", keep={"best": 2})
    runs.drive(first, unfinished)
    best = sorted((row for row in runs.target.rows("first") if row.values), key=lambda row: row.values)[:2]
    second = made(runs, "second", reuse={"steps": "epochs"}, **{"params.epochs": 16})
    continued = {beginning.trial for beginning in earlier.read(second.code).beginnings}
    assert continued == {row.trial for row in best}


PROMOTE = {"name": "asha", "promote": True, "max_resource": "epochs"}


def test_a_trial_with_rungs_does_not_start_from_a_checkpoint_beyond_the_next_rung(runs: Runs) -> None:
    with_epochs(runs)
    runs.make("first", tell=unfinished)
    second = made(runs, "second", reuse=True, pruner=PROMOTE)
    content = earlier.read(second.code)
    assert (len(content.results), len(content.beginnings)) == (3, 3)
    trained, _ = driven(second)
    assert {request.trial for request in trained} == {1, 3, 5}
    assert not any(request.start for request in trained)


@pytest.mark.parametrize("is_killed", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("first_step", [0, 1])
def test_a_trial_that_was_stopped_before_its_first_rung_continues(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, first_step: int, is_killed: bool
) -> None:
    """Also without its reports, which show whether steps are counted from 0."""
    monkeypatch.setattr(earlier_runs, "MAX_REPORTS", 0)
    with_epochs(runs)
    pruner = {**PROMOTE, "min_resource": 4}
    first = made(runs, "first", pruner=pruner)
    with Ledger(f"sqlite:///{first.ledger}", folder.load_job(first), "first", first.code, first.lock) as ledger:
        request = ledger.ask()
        assert request is not None
        for done in (1, 2):
            ledger.report(TrialReport(request.number, done - 1 + first_step, {"loss": 1.0}, 5.0))
        summary = CheckpointSummary(2, 100, "digest")
        ledger.tell(TrialOutcome(request.number, TrialState.FAILED, FailureClass.STOPPED, checkpoints=summary))
    second = made(runs, "second", reuse=True, pruner=pruner)
    assert earlier.read(second.code).followed == ()
    for dies in (True, True, False) if is_killed else (False,):
        with Ledger(f"sqlite:///{second.ledger}", folder.load_job(second), "second", second.code, second.lock) as ledger:
            request = ledger.ask()
            assert request is not None and request.segment is not None and request.start is not None
            assert (request.start.digest, request.segment.offset) == ("digest", 1 - first_step)
            ledger.report(TrialReport(request.number, 2 + first_step, {"loss": 1.0}, 5.0, start_step=1 + first_step))
            if not dies:
                ledger.report(TrialReport(request.number, 3 + first_step, {"loss": 1.0}, 5.0))
                outcome = ledger.tell(TrialOutcome(request.number, TrialState.PAUSED, metrics={"loss": 1.0}))
                assert outcome is not None and ledger.promotion is not None
                assert (ledger.promotion.used_steps, outcome.spared_steps) == (4, 2)


def test_a_job_without_checkpoints_continues_nothing(runs: Runs) -> None:
    runs.make("first", tell=lambda request: dataclasses.replace(unfinished(request), checkpoints=None))
    texts = prepared(runs, "second", reuse=True).warnings
    assert "reuse: 3 unfinished trials of first cannot be continued, because no checkpoint is left or recorded" in texts
    with pytest.raises(errors.SpecError, match=r"needs checkpoints to continue trials from.* or write reuse: true"):
        prepared(runs, "third", reuse={"steps": "epochs"}, params={"epochs": 3})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"reuse": {"steps": "epoch"}}, "epoch is not a parameter in params; did you mean epochs"),
        ({"reuse": {"steps": "epochs"}, "params": {"epochs": "many"}}, "must be a whole number"),
        (
            {"reuse": {"steps": "epochs"}, "pruner": {"name": "asha", "promote": True, "max_resource": "epochs"}},
            "rungs count from step 0",
        ),
        ({"reuse": "yes"}, "reuse"),
    ],
    ids=["unknown", "a word", "promote", "no flag"],
)
def test_a_wrong_parameter_of_reuse_is_refused(runs: Runs, overrides: dict[str, Any], message: str) -> None:
    with_epochs(runs)
    with pytest.raises(errors.SpecError, match=message):
        prepared(runs, "second", **overrides)
