"""`Platform.submit`: a function and a folder, the search given in Python, and every complaint at once with its argument.

What is started is a double that works on nothing. Not checked here: the module that is written for a function
(test_functions.py), and trials that run it (tests/study/test_notebook.py).
"""

from __future__ import annotations

import base64
import io
import math
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path

import pytest

from trialplane.client import folder
from trialplane.client.sdk import Platform
from trialplane.errors import InputError, RunExists, SpecError
from trialplane.wire import cluster
from trialplane.wire.paths import RunPaths

LR = {"type": "float", "low": 1e-5, "high": 1e-1, "log": True}


def objective(lr, layers=3):
    """Is submitted."""
    return math.log10(lr) + layers


@pytest.fixture
def submit(workplace, double):
    """Submits, and gives the job as it was resolved and the run's files."""

    def submitted(job, **given):
        run = Platform().submit(job, name="a", **given)
        return run.job, RunPaths.of(run.target.home, "a")

    return submitted


def test_a_function_with_its_search(submit, home):
    job, files = submit(
        objective, space={"lr": LR}, objective="accuracy", direction="maximize", trials=7, parallel=2, seed=3,
        params={"layers": 5}, overrides={"pruner": "median", "resources.memory": "1Mi"},
    )  # fmt: skip
    assert (job.name, job.kind, job.trials, job.parallel, job.seed, job.pruner.name) == (
        "objective",
        "hpo",
        7,
        2,
        3,
        "median",
    )
    assert [(one.metric, one.direction) for one in job.objectives] == [("accuracy", "maximize")]
    assert (job.params, list(job.space), job.space["lr"].log) == ({"layers": 5}, ["lr"], True)
    assert sorted(path.name for path in files.code.iterdir()) == ["job.yaml", "submitted.py", "train.py"]
    scratch = tempfile.gettempdir()
    assert folder.load_submission(files)["job_folder"] == str(Path(__file__).parent)
    assert not list(Path(scratch).glob("trialplane-*/objective"))


def test_a_function_alone_is_called_once_with_its_defaults(submit):
    job, _ = submit(objective, params={"lr": 0.1})
    assert (job.trials, job.params) == (1, {"layers": 3, "lr": 0.1})
    assert [(one.metric, one.direction) for one in job.objectives] == [("value", "minimize")]


def test_the_same_again_is_the_same_run(submit):
    submit(objective, space={"lr": LR}, trials=3)
    submit(objective, space={"lr": LR}, trials=3)
    with pytest.raises(RunExists, match="trials: 3 → 4"):
        submit(objective, space={"lr": LR}, trials=4)


def test_a_folder_with_a_parameter_more(submit):
    job, _ = submit("demo", space={"layers": {"type": "int", "low": 1, "high": 2}}, trials=4, direction="maximize")
    assert (list(job.space), job.trials) == (["lr", "name", "layers"], 4)
    assert [(one.metric, one.direction) for one in job.objectives] == [("loss", "maximize")]


def test_a_space_may_have_short_forms(submit):
    job, _ = submit("demo", space={"penalty": ["l1", None], "lr": "1e-5..1e-2:log", "layers": "1..3", "act": "relu,gelu"})
    assert job.space["penalty"].choices == ("l1", None) and job.space["act"].choices == ("relu", "gelu")
    assert (job.space["lr"].low, job.space["lr"].high, job.space["lr"].log) == (1e-5, 1e-2, True)
    assert (job.space["layers"].type, job.space["layers"].high) == ("int", 3)


def test_several_objectives(submit):
    job, _ = submit("demo", objective=["loss", "size"], direction=["maximize", "minimize"])
    assert [(one.metric, one.direction) for one in job.objectives] == [("loss", "maximize"), ("size", "minimize")]


def test_a_value_given_by_an_override_stays(submit):
    job, _ = submit(objective, overrides={"trials": 9, "space": {"lr": LR}})
    assert job.trials == 9


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"space": {"lr": {**LR, "low": 2}}}, "submit(space=…): space.lr.low: 2.0 is over high (0.1)"),
        ({"space": {"lr": (1e-5, 1e-1)}}, "submit(space=…): space.lr: "),
        ({"space": {"lr": "1e-5.."}}, "submit(space=…): space: 'lr=1e-5..' is not a parameter"),
        ({"space": {"lr": LR}, "trials": 0}, "submit(trials=…): trials: "),
        ({"space": {"lr": LR}, "direction": "up"}, "submit(objective=…): objectives.0.direction: "),
        ({"space": {"lr": LR}, "objective": ["a", "b"], "direction": ["minimize"] * 3}, "2 objectives and 3 directions"),
        ({"space": {"lr": LR}, "params": {"lr": 1}}, "submit(space=…): params.lr: is searched as well; leave it out of one"),
        ({"params": {"lr": object()}}, "submit(params=…): params.lr: a object is not allowed"),
        ({"space": {"x": LR}}, "submit(space=…): space.x: the function has no such argument"),
    ],
)
def test_what_is_wrong_is_named_by_its_argument_and_nothing_starts(submit, started, given, says):
    with pytest.raises(SpecError) as refused:
        submit(objective, **given)
    assert says in str(refused.value)
    assert not started


def test_every_complaint_comes_at_once(submit):
    with pytest.raises(SpecError) as refused:
        submit(objective, space={"x": {**LR, "low": 2}}, trials=0, parallel=0)
    assert {issue.field for issue in refused.value.issues} == {"space.x", "lr", "space.x.low", "trials", "parallel"}


def test_a_function_on_a_cluster_is_a_config_map_as_any_code(target, namespace):
    run = Platform(target).submit(objective, space={"lr": LR}, trials=3, name="a")
    assert (run.job.trials, list(run.job.space)) == (3, ["lr"])
    code = namespace.cluster.objects["configmaps"][cluster.code_map("a")]["binaryData"][cluster.CODE_KEY]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(code))) as packed:
        assert packed.getnames() == ["job.yaml", "submitted.py", "train.py"]


@pytest.mark.parametrize("job", [3, None, types.SimpleNamespace()])
def test_neither_a_job_nor_a_function(workplace, job):
    with pytest.raises(InputError, match="give the name of a job, the path of its folder, or a function"):
        Platform().submit(job)


def test_submitting_a_function_imports_nothing_heavy(workplace, double):
    """Nor what only shows a run, or waits for its events."""
    (workplace / "script.py").write_text(
        "import sys\nfrom trialplane import Platform\n\n\ndef f(x):\n    return x\n\n\n"
        "Platform().prepare(f, params={'x': 1})\nprint(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=True)
    heavy = {"torch", "ray", "numpy", "optuna", "mlflow", "pandas", "rich", "asyncio", "kubernetes", "mcp"}
    assert not heavy & set(done.stdout.split())
