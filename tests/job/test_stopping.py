"""What ends a trial early, in a job file: one rule or a list of them, and what is refused, with the line.

Not checked here: how a trial ends by a rule (tests/worker/test_outcomes.py, test_ranks.py).
"""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from tests.job.conftest import found

from trialplane.job import document, kinds, load, schema
from trialplane.job.search import Stop

HEAD = "kind: hpo\nobjective: {metric: f1, direction: maximize}\nspace: {a: {type: int, low: 1, high: 2}}\ntrials: 2\n"
TRAIN = "kind: train\n"
BELOW = Stop(metric="loss", below=0.1, after=5)


@pytest.mark.parametrize("head", [HEAD, TRAIN], ids=["hpo", "train"])
@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("stop: {metric: loss, below: 0.1, after: 5}", (BELOW,)),
        ("stop:\n  - {metric: loss, below: 0.1, after: 5}\n  - step: 100", (BELOW, Stop(step=100))),
        ("stop: []", ()),
        ("", ()),
        ("stop: {metric: loss, below: 0, above: 9}", (Stop(metric="loss", below=0, above=9),)),
    ],
)
def test_one_rule_or_several(folder: Path, head: str, text: str, rules: tuple[Stop, ...]) -> None:
    (folder / "job.yaml").write_text(head + text)
    job = load.load_job(folder)
    assert job.stops == rules
    assert kinds.read(job.model_dump_json()) == job
    assert jsonschema.Draft202012Validator(schema.json_schema()).is_valid(document.read(folder / "job.yaml").data)


def test_a_rule_that_is_a_step_adds_no_metric_to_those_of_a_command(folder: Path) -> None:
    (folder / "job.yaml").write_text(HEAD + 'command: [date, "{a}"]\nstop: [{step: 100}, {metric: loss, below: 0.1}]')
    program = load.load_job(folder).roles()[0].program
    assert program is not None
    assert program.names == ("f1", "loss")


def test_a_bound_can_be_set_from_the_command_line(folder: Path) -> None:
    (folder / "job.yaml").write_text(HEAD + "stop: {metric: loss, below: 0.1, after: 5}")
    assert load.load_job(folder, sets=["stop.below=0.2", "stop.after=0"]).stops == (Stop(metric="loss", below=0.2),)
    assert load.load_job(folder, sets=["stop=[]"]).stops == ()


@pytest.mark.parametrize(
    ("text", "field", "line", "message"),
    [
        ("stop:\n  metric: loss\n  blow: 0.1", "stop.blow", 7, "there is no such field; did you mean below?"),
        ("stop:\n  metric: loss\n  below: low", "stop.below", 7, "must be a number, not 'low'"),
        ("stop:\n  - step: 3\n  - metric: loss\n    below: low", "stop.1.below", 8, "must be a number"),
        ("stop: {metric: loss}", "stop", 5, "needs above or below: what loss is compared with"),
        ("stop: {below: 3}", "stop", 5, "needs metric with above or below, or step"),
        ("stop:\n  - {step: 3}\n  - {}", "stop.1", 7, "needs metric with above or below, or step"),
        ("stop: {metric: loss, below: 2, above: 1}", "stop.below", 5, "2.0 is not under above (1.0)"),
        ("stop: {metric: loss, below: 2, step: 9}", "stop.step", 5, "is a rule of its own"),
        ("stop: {step: 9, after: 3}", "stop.step", 5, "is a rule of its own"),
        ("stop: {step: -1}", "stop.step", 5, "-1 must be at least 0"),
        ("stop: {metric: loss, below: 2, after: 1.5}", "stop.after", 5, "must be a whole number"),
        ("stop: {metric: loss, below: .nan}", "stop.below", 5, "must be a number that is not infinite"),
        ("stop: 9", "stop", 5, "must be a mapping, not 9"),
        ("stop: [9]", "stop.0", 5, "must be a mapping, not 9"),
    ],
)
def test_what_is_no_rule_is_refused_where_it_stands(folder: Path, text: str, field: str, line: int, message: str) -> None:
    (folder / "job.yaml").write_text(HEAD + text)
    issues = found(folder)
    assert [one[:3] for one in issues] == [(field, "jobs/demo/job.yaml", line)], issues
    assert message in issues[0][3]


def test_a_collection_has_none(folder: Path) -> None:
    text = "kind: collect\nentrypoint: train:run\ncollect: {units: 3, learner: train:define}\nstop: {step: 3}\n"
    (folder / "job.yaml").write_text(text)
    (message,) = [one[3] for one in found(folder) if one[0] == "stop"]
    assert message.endswith("an iteration ends when its learner returns; drop it")
