"""A notebook, executed as a user would: a function is submitted from a cell, watched, and looked at.

A real study on this machine, with Jupyter's own kernel. Not checked here: what is refused (tests/client/test_functions.py).
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import nbclient
import pytest
from nbformat import v4

from trialplane.wire import env

CELLS = [
    """
    import math

    import numpy as np
    from sklearn.metrics import accuracy_score

    from trialplane import Platform

    CLASSES = ("a", "b")
    """,
    """
    class Nothing(Exception):
        '''Has no method by which its cell could be found.'''


    def score(lr, layers):
        if layers < 0:
            raise Nothing
        truth = np.array([CLASSES[index % 2] for index in range(layers)])
        return accuracy_score(truth, truth) - abs(math.log10(lr) + 3) / 10
    """,
    """
    def objective(lr, ctx, layers=3):
        ctx.report(accuracy=0.0)
        return {"accuracy": score(lr, layers)}
    """,
    """
    run = Platform().submit(
        objective,
        space={
            "lr": {"type": "float", "low": 1e-5, "high": 1e-1, "log": True},
            "layers": {"type": "int", "low": 1, "high": 4},
        },
        objective="accuracy",
        direction="maximize",
        trials=5,
        parallel=2,
        seed=1,
        name="notebook",
    )
    """,
    "run.wait(progress=True).state",
    "run.trials()[['trial', 'state', 'metrics.accuracy', 'params.lr', 'params.layers']]",
    "sorted(run.best.params), run.best.value == max(run.trials()['metrics.accuracy'])",
    """
    import optuna

    study = run.study()
    assert study.best_value == run.best.value
    optuna.visualization.plot_optimization_history(study, target_name="accuracy")
    """,
    """
    once = Platform().submit(objective, params={"lr": 0.001}, objective="accuracy", name="once")
    [type(event).__name__ async for event in once.events() if not hasattr(event, "status")]
    """,
    """
    try:
        Platform().submit(lambda x: x)
    except Exception as error:
        print(error)
    %time Nothing = 3
    """,
]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of this interpreter, with a home, a port and settings of its own, below a temporary folder."""
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "Python", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv(env.HOME, str(tmp_path / "home"))


@pytest.mark.slow
def test_a_notebook(kernel: None, tmp_path: Path) -> None:
    notebook = v4.new_notebook(cells=[v4.new_code_cell(textwrap.dedent(text).strip()) for text in CELLS])
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    client.execute()
    *_, waited, trials, best, plot, events, refused = (cell.outputs for cell in notebook.cells)

    shown, state = waited
    assert shown["output_type"] == "display_data", "the live view is one output, which was replaced each time"
    assert "5/5 ended" in shown["data"]["text/plain"]
    assert "5/5 ended" in shown["data"]["text/html"]
    assert "SUCCEEDED" in text_of(state)
    assert text_of(trials[0]).count("COMPLETE") == 5
    assert text_of(best[0]) == "(['layers', 'lr'], True)"
    (figure,) = [output for output in plot if "data" in output]
    assert "accuracy" in str(figure["data"]["application/vnd.plotly.v1+json"])
    assert text_of(events[0]) == "['TrialStarted', 'TrialEnded']"
    assert "a lambda has no source of its own; write it as def objective(lr)" in refused[0]["text"]


def text_of(output: Any) -> str:
    """What an output is as text."""
    return str(output["data"]["text/plain"])
