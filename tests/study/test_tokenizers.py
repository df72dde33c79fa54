"""The protobuf policy in a real study: parallel trials that convert a DeBERTa tokenizer fail without it and not with it,
and the controller runs the fast protobuf either way.

Not checked here: which imports collide (tests/worker/test_protobuf_failure.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.study.conftest import Study

from trialplane.policies import protobuf
from trialplane.wire.states import FailureClass, RunState

# Each trial has a cache of its own, so that each converts the tokenizer, and reads SentencePiece's messages itself.
JOB = """
import importlib
from pathlib import Path

def run(ctx):
    importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
    from trialplane.policies import protobuf
    from textjobs import tiny_deberta, tokenizers
    tiny_deberta.write(["I lie awake until three", "food tastes of nothing", "I feel sad"], ctx.workdir)
    tokenizer = tokenizers.load_tokenizer(str(ctx.workdir), ctx.workdir / "cache")
    assert tokenizer.is_fast
    print("implementation:", protobuf.implementation())
    return {"score": float(len(tokenizer("I feel sad every day").input_ids))}
"""

SPACE = """
from pathlib import Path
from google.protobuf.internal import api_implementation

def define(trial):
    # Runs in the controller.
    Path(__file__).with_name("controller.txt").write_text(api_implementation.Type())
    trial.suggest_float("x", 0.0, 1.0)
"""

SPEC = f"""
kind: hpo
packages: [{Path(__file__).parents[2] / "jobs" / "lib" / "textjobs"}]
preload: [transformers]
space: space:define
objectives: [{{metric: score, direction: maximize}}]
trials: 2
parallel: 2
"""


@pytest.mark.slow
@pytest.mark.parametrize("with_policy", [True, False])
def test_parallel_deberta_trials(study: Study, with_policy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    study.write(JOB, SPEC)
    (study.job / "space.py").write_text(SPACE)
    if with_policy:
        monkeypatch.delenv(protobuf.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(protobuf.VARIABLE, "upb")  # a user's own value wins
    run = study.submit()
    status = run.wait(600)
    logs = [study.files().trial_log(row.trial, row.attempt).read_text() for row in run.rows()]
    if with_policy:
        assert status.complete == 2, [row.message for row in run.rows()]
        assert all("implementation: python" in log for log in logs)
    else:
        assert status.state is RunState.FAILED
        assert {row.failure for row in run.rows()} == {FailureClass.ERROR}
        assert all("duplicate file name sentencepiece_model.proto" in log for log in logs)
        assert all("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python" in row.message for row in run.rows())
    assert (study.files().code / "controller.txt").read_text() == "upb"
