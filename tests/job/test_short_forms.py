"""Parameters and objectives in one word, and a script as a job without a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.job.conftest import GOOD

from trialplane import errors
from trialplane.job import kinds, load, short_forms
from trialplane.job.load import Flag
from trialplane.worker.metrics import names


@pytest.mark.parametrize(
    ("text", "name", "fields"),
    [
        ("lr=1e-5..1e-2:log", "lr", {"type": "float", "low": 1e-5, "high": 1e-2, "log": True}),
        ("layers=2..6", "layers", {"type": "int", "low": 2, "high": 6, "log": False}),
        ("net:layers=2..6", "net:layers", {"type": "int", "low": 2, "high": 6, "log": False}),
        ("width=64..512:64", "width", {"type": "int", "low": 64, "high": 512, "log": False, "step": 64}),
        ("n=1..1000:log", "n", {"type": "int", "low": 1, "high": 1000, "log": True}),
        ("drop=0..0.5:0.1", "drop", {"type": "float", "low": 0.0, "high": 0.5, "log": False, "step": 0.1}),
        ("x=-1.5..-0.5", "x", {"type": "float", "low": -1.5, "high": -0.5, "log": False}),
        ("opt=adam,sgd", "opt", {"type": "categorical", "choices": ["adam", "sgd"]}),
        ("batch=16,32", "batch", {"type": "categorical", "choices": [16, 32]}),
        ("amp=true, false", "amp", {"type": "categorical", "choices": [True, False]}),
        ("on=[q,v],[q,k,v]", "on", {"type": "categorical", "choices": [["q", "v"], ["q", "k", "v"]]}),
        ('on=["q", "v"], ["q"]', "on", {"type": "categorical", "choices": [["q", "v"], ["q"]]}),
        ("on=[[q,v],[q]]", "on", {"type": "categorical", "choices": [["q", "v"], ["q"]]}),
        ('on="[q,v]","[q]"', "on", {"type": "categorical", "choices": ["[q,v]", "[q]"]}),
        ("on=[1],(1, 2),'a,b'", "on", {"type": "categorical", "choices": [[1], "(1, 2)", "a,b"]}),
        ("n=(1, 1),(1, (2, 3))", "n", {"type": "categorical", "choices": ["(1, 1)", "(1, (2, 3))"]}),
        ("on=don't,can't", "on", {"type": "categorical", "choices": ["don't", "can't"]}),
        ("on=a(,b", "on", {"type": "categorical", "choices": ["a(", "b"]}),
        ("n=[(1, 1), (1, 2)]", "n", {"type": "categorical", "choices": ["(1, 1)", "(1, 2)"]}),
        ("n='(1, 1)',[(1, 2)]", "n", {"type": "categorical", "choices": ["(1, 1)", ["(1, 2)"]]}),
        ("size=[64, 128]", "size", {"type": "categorical", "choices": [64, 128]}),
    ],
)
def test_parameters(text: str, name: str, fields: dict[str, Any]) -> None:
    assert short_forms.parameter(text, "--space") == (name, fields)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lr",
        "=1..2",
        "lr=",
        "lr=1..",
        "lr=..2",
        "lr=1..b",
        "lr=1..2:lin",
        "n=1...6",
        "--lr=1..2",
        "x=a,,b",
        "lr=1..2,log",
        "lr=1:2",
    ],
)
def test_what_is_no_parameter(text: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        short_forms.parameter(text, "--space")
    [issue] = caught.value.issues
    assert issue.source == "--space" and "write NAME=LOW..HIGH" in issue.message


@pytest.mark.parametrize("text", ["on=[q,v", "on=[q],v]", "lr=[1e-4..1e-2]", "on=[q] v,[k]"])
def test_malformed_lists_name_the_parameter_and_a_spelling(text: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        short_forms.parameter(text, "--space")
    [issue] = caught.value.issues
    name = text.partition("=")[0]
    assert issue.field == f"space.{name}" and f"--space '{name}=[A,B],[A,B,C]'" in issue.message


@pytest.mark.parametrize(("text", "direction"), [("a/b:max", "maximize"), ("loss:minimize", "minimize")])
def test_objectives(text: str, direction: str) -> None:
    assert short_forms.objective(text, "") == {"metric": text.rpartition(":")[0], "direction": direction}


@pytest.mark.parametrize(
    ("text", "metric", "of"),
    [("NDCG:max:best", "NDCG", "best"), ("val:loss:max:last", "val:loss", "last"), ("a:max:max:best", "a:max", "best")],
)
def test_objectives_say_which_value_counts(text: str, metric: str, of: str) -> None:
    assert short_forms.objective(text, "") == {"metric": metric, "direction": "maximize", "of": of}


@pytest.mark.parametrize("metric", ["valid_NDCG@10", "mAP@[.5:.95]", "acc@@5", "Précision", "val:loss", "a//b"])
def test_the_objective_of_a_program_is_named_as_its_printed_metric(tmp_path: Path, metric: str) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('loss=1', sys.argv)\n")
    (tmp_path / "job.yaml").write_text("kind: hpo\nscript: train.py\nspace: {lr: {type: float, low: 0.1, high: 1}}\n")
    flags = {"objectives": Flag([short_forms.objective(f"{metric}:max", "")], f"--objective {metric}:max")}
    job = load.load_job(tmp_path, overrides=flags)
    assert isinstance(job, kinds.Study)
    [objective] = job.objectives
    assert names.Names([objective.metric]).lookup(metric).metric == objective.metric


def test_a_metric_that_a_function_returns_is_not_renamed(tmp_path: Path) -> None:
    flags = {"objectives": Flag([short_forms.objective("NDCG@10:max", "")], "--objective NDCG@10:max")}
    (tmp_path / "job.yaml").write_text(GOOD)
    with pytest.raises(errors.SpecError, match=r"'NDCG@10' is not a valid MLflow name.*'NDCG_10'"):
        load.load_job(tmp_path, overrides=flags)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("loss", "does not name its direction; write loss:max or loss:min"),
        ("loss:", "does not name its direction; write loss:max or loss:min"),
        ("loss:up", "does not name its direction; write loss:max or loss:min"),
        ("loss:best", "does not name its direction; write loss:max:best or loss:min:best"),
        ("loss:up:last", "does not name its direction; write loss:max:last or loss:min:last"),
        ("a:b:max:mean", "does not end with best or last; write a:b:max:best or a:b:max:last"),
        ("loss:min:", "does not end with best or last; write loss:min:best or loss:min:last"),
        (":max", "names no metric; write METRIC:max, as in accuracy:max"),
        (":max:best", "names no metric; write METRIC:max, as in accuracy:max"),
        (":", "names no metric; write METRIC:max, as in accuracy:max"),
        ("", "names no metric; write METRIC:max, as in accuracy:max"),
    ],
)
def test_what_is_no_objective(text: str, advice: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        short_forms.objective(text, "--objective")
    assert [issue.message for issue in caught.value.issues] == [f"{text!r} {advice}"]


def test_a_script_is_a_job_without_a_file(tmp_path: Path) -> None:
    (tmp_path / "My Train.py").write_text("import sys\nprint('loss=1', sys.argv)\n")
    name, fields = short_forms.parameter("lr=0.1..1", "")
    flags = {
        f"space.{name}": Flag(fields, "--space"),
        "objectives": Flag([short_forms.objective("loss:min", "")], "--objective"),
    }
    job = load.load_job(tmp_path, kind="hpo", script="My Train.py", overrides=flags)
    assert isinstance(job, kinds.Study)
    assert (job.name, job.script, job.objectives[0].metric) == ("my-train", "My Train.py", "loss")
    assert job.roles()[0].program is not None


def test_what_it_lacks_is_said_with_the_flag(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(\n")
    with pytest.raises(errors.SpecError) as caught:
        load.load_job(tmp_path, kind="hpo", script="train.py")
    messages = [issue.message for issue in caught.value.issues]
    assert any("or --objective METRIC:max" in message for message in messages)
    assert any("is not Python" in message for message in messages)


def test_the_range_of_a_parameter_that_the_job_has_as_a_float_is_one_of_floats(folder: Path) -> None:
    text = (
        GOOD.replace("model: small}", "model: small, mix: 1.0, copies: 1}") + "# comments:\n  # rate: 1.0e-2 # the default\n"
    )
    (folder / "job.yaml").write_text(
        text.replace("lr: {type: float, low: 1e-5, high: 1e-2, log: true}", "lr: {type: float, low: 0.0, high: 1.0}")
    )
    flags: dict[str, Flag] = {}
    for name in ("mix", "copies", "rate", "lr", "layers"):
        _, fields = short_forms.parameter(f"{name}=0..1", "")
        flags[f'space."{name}"'] = Flag(fields, f"--space {name}=0..1")
    parameters = load.load_job(folder, overrides=flags).search.parameters
    floats = {name for name, parameter in parameters.items() if parameter.type == "float"}
    assert floats == {"mix", "rate", "lr"}
