"""A study on this machine, where Ray must not be imported by any of its processes, as it takes seconds to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.study.conftest import Study

from trialplane.wire.states import RunState

STUB = """
import sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.orig_argv) + chr(10))
raise ImportError("Ray is not needed here")
"""
# A trial fails if it does not see the stub.
JOB = """
import importlib.util

def run(ctx):
    assert importlib.util.find_spec("ray").origin == ctx.params["stub"]
    return {"score": ctx.params["x"]}
"""
SPEC = """
kind: hpo
params: {stub: ""}
space: {x: {type: float, low: 0.0, high: 1.0}}
objectives: [{metric: score, direction: maximize}]
trials: 2
parallel: 2
"""


@pytest.mark.services
def test_no_process_of_a_local_study_imports_ray(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub, log = tmp_path / "stubs" / "ray.py", tmp_path / "imports"
    stub.parent.mkdir()
    stub.write_text(STUB.format(log=str(log)))
    monkeypatch.setenv("PYTHONPATH", str(stub.parent))
    study.write(JOB, SPEC)
    run = study.submit(**{"params.stub": str(stub)})
    status = run.wait()
    assert (status.state, status.complete) == (RunState.SUCCEEDED, 2), "\n".join(run.logs())
    assert not log.exists(), log.read_text()
    assert subprocess.run([sys.executable, "-c", "import ray"], capture_output=True, check=False).returncode == 1
    assert log.read_text().endswith("-c import ray\n"), "an import would have been seen"
