"""A function as a job: the module that is written for it does what the function does, and what cannot travel is refused.

Each function stands in a file of its own, as in a user's script. Not checked here: cells of a notebook, and a whole run
(tests/study/test_notebook.py).
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from trialplane.client import functions
from trialplane.errors import SpecError
from trialplane.job import load

Script = Callable[[str], ModuleType]


@pytest.fixture
def script(tmp_path, monkeypatch, request) -> Script:
    """Imports a text as a module that lies beside the code, which is not installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def imported(text: str) -> ModuleType:
        made.append(f"script_{abs(hash(request.node.name))}_{len(made)}")
        (tmp_path / f"{made[-1]}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(made[-1])

    yield imported
    for name in made:
        sys.modules.pop(name, None)


def called(job: functions.FunctionJob, folder: Path, **params: object) -> object:
    """What the job returns for parameters, in an interpreter that knows nothing but its folder."""
    job.write(folder)
    program = (
        "import json, sys, types; sys.path.insert(0, sys.argv[1]); import train; "
        "print(json.dumps(train.run(types.SimpleNamespace(params=json.loads(sys.argv[2]), trial=7))))"
    )
    command = [sys.executable, "-P", "-c", program, str(folder), json.dumps(params)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


USES_ALL = '''
import collections.abc
import functools
import json as js
import math
import xml.etree.ElementTree
from dataclasses import dataclass, field
from fractions import Fraction as F
from pathlib import Path
from typing import Any

FACTOR = 2.5
TABLE = {"a": [1, (2, 3)], "b": {4}, "c": None}
BOUND = float("inf")
UNUSED = object()

try:
    import nosuchlibrary
except ImportError:
    nosuchlibrary = None


def doubled(function):
    @functools.wraps(function)
    def call(*given, **named):
        return 2 * function(*given, **named)
    return call


@dataclass
class Base:
    """Has a field of a type of this module."""
    inner: "Inner | None" = None


class Inner(Base):
    def size(self) -> float:
        return FACTOR


@functools.cache
@doubled
def helper(depth: int) -> float:
    return Inner().size() if depth == 0 else helper(depth - 1) / 2


again = helper


def objective(lr, layers: UNUSED = 3, *, other: nosuchlibrary = None, steps=(1, 2), hook=print) -> Path:
    """What it says."""
    def below(x):
        return x + math.pi * 0
    xml.etree.ElementTree.Element("a")
    assert isinstance(steps, tuple) and hook is print
    assert isinstance([], collections.abc.Sequence) and js.loads("1") == 1
    assert nosuchlibrary is None
    values = [below(value) for value in (lr, layers) if value < BOUND]
    return {"value": again(layers) + sum(values) + float(F(1, 2)) + len(TABLE["a"]), "text": "ünïcode"}
'''


def test_the_module_does_what_the_function_does(script, tmp_path):
    module = script(USES_ALL)
    job = functions.function_job(module.objective, ())
    assert called(job, tmp_path / "job", lr=0.25, layers=2) == module.objective(0.25, 2)
    assert "\nUNUSED = " not in job.files["submitted.py"]
    assert (job.name, job.arguments, job.required) == ("objective", ("lr", "layers", "other", "steps", "hook"), ("lr",))
    spec = json.loads(job.files["job.yaml"])
    assert spec["params"] == {"layers": 3, "other": None}, "a default that JSON changes stays in the source"


def test_the_functions_own_default_stands_where_a_parameter_is_not_drawn(script, tmp_path):
    job = functions.function_job(script("def objective(lr, layers=3):\n    return lr * layers\n").objective, ())
    assert called(job, tmp_path / "job", lr=2.0) == 6.0


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("def run(ctx):\n    return [ctx.trial, ctx.params]\n", [7, {"lr": 2, "a": 1}]),
        ("def run(lr, ctx):\n    return [ctx.trial, lr]\n", [7, 2]),
        ("def run(**params):\n    return params\n", {"lr": 2, "a": 1}),
    ],
)
def test_a_function_may_take_the_context_or_any_parameter(script, tmp_path, text, result):
    job = functions.function_job(script(text).run, ())
    assert job.is_open
    assert called(job, tmp_path / "job", lr=2, a=1) == result


def test_plain_values_that_a_function_closes_over_travel(script, tmp_path):
    text = "def made(k):\n    def objective(x):\n        return x + k['a'][0]\n    return objective\n"
    job = functions.function_job(script(text).made({"a": [3]}), ())
    assert called(job, tmp_path / "job", x=1) == 4


HEADS = "import functools, threading\nlock = threading.Lock()\nbig = 'x' * 70000\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("f = lambda x: x", "a lambda has no source of its own; write it as def objective"),
        ("f = len", "len is compiled, and has no source; write a function that calls it"),
        ("f = functools.partial(max, 1)", "partial is a partial; write a function that calls it"),
        ("class A:\n    def g(self, x): return x\nf = A().g", "A.g is a method, whose object would have to be sent"),
        ("class A:\n    @staticmethod\n    def g(x): return x\nf = A.g", "A.g is a method"),
        ("class f: pass", "f is a class; submit a function that uses it"),
        ("async def f(x): return x", "returns no result when it is called (async or yield)"),
        ("def f(x): yield x", "returns no result when it is called (async or yield)"),
        ("def f(*x): return x", "has arguments without a name (* or /)"),
        ("def f(x): return lock", "f: uses lock, a lock, which cannot be written as source; make it inside f"),
        ("def f(x): return big", "f: uses big, which is 70,002 characters of data; save it to a file"),
        ("def f(x): return nosuch", "f: uses nosuch, which is not defined"),
        ("def f(x): return display(x)", "f: uses display (or a % or ! command), which only a notebook has"),
        ("g = lambda x: x\ndef f(x): return g(x)", "f: uses g, a lambda, which has no source of its own"),
        ("def g(x): return lock\ndef f(x): return g(x)", "g: uses lock, a lock"),
        (
            "def m(k):\n    def f(x): return k\n    return f\nf = m(lock)",
            "f: uses k, a lock, which cannot be written as source",
        ),
        (
            "exec(compile('def f(x): return x', '<made>', 'exec'))",
            "the source of f cannot be found; define it in a file, or in a notebook's cell",
        ),
        (
            "def d(g):\n    def call(x): return g(x)\n    return call\n@d\ndef g(x): return x\ndef f(x): return g(x)",
            "uses another g than what it calls does; rename one of them",
        ),
        (
            "def k(): return 1\ndef m(k):\n    def f(x): return k + g()\n    return f\ndef g(): return k()\nf = m(2)",
            "uses another k than what it calls does; rename one of them",
        ),
    ],
)
def test_what_cannot_travel_is_refused_with_a_cure(script, text, says):
    module = script(HEADS + text)
    with pytest.raises(SpecError) as refused:
        functions.function_job(module.f, ())
    assert says in str(refused.value)


def test_a_name_that_notebooks_have_may_be_the_users_own(script, tmp_path):
    job = functions.function_job(script("def display(x):\n    return x\ndef f(x):\n    return display(x)\n").f, ())
    assert called(job, tmp_path / "job", x=1) == 1


def test_every_reason_is_given_at_once_with_the_line(script):
    module = script(HEADS + "def f(x):\n    return lock, nosuch, big\n")
    with pytest.raises(SpecError) as refused:
        functions.function_job(module.f, ())
    assert len(refused.value.issues) == 3
    assert f"{module.__file__}:4: f: uses" in str(refused.value)


def test_a_module_beside_the_code_is_refused(script):
    """A trial would not find it; plain values of it are no reason."""
    beside = script("RATE = 3\ndef g(x):\n    return x\n")
    module = script(f"from {beside.__name__} import g, RATE\nimport yaml\ndef f(x):\n    return yaml, g(x) * RATE\n")
    with pytest.raises(SpecError, match=f"uses g of {beside.__name__}, a module beside your code") as refused:
        functions.function_job(module.f, ())
    assert len(refused.value.issues) == 1, "yaml is installed"


@pytest.mark.parametrize(
    ("space", "params", "says"),
    [
        (
            {"lr": {}, "layer": {}},
            (),
            "submit(space=…): space.layer: the function has no such argument; did you mean layers or lr?",
        ),
        (
            {"lr": {}},
            ("nosuch",),
            "submit(params=…): params.nosuch: the function has no such argument; there are: layers, lr",
        ),
        ({}, (), "submit(…): lr: this argument has no value; put it into space or params, or write a default for it: lr=…"),
        (
            {"lr": {"when": {"layers": 3}}},
            (),
            "space.lr.when: has no value where its condition does not hold; write a default",
        ),
    ],
)
def test_parameters_that_do_not_fit_the_arguments(script, space, params, says):
    job = functions.function_job(script("def f(lr, layers=3):\n    return lr\n").f, params)
    (issue,) = job.check(space, params)
    assert says in str(issue)


def test_an_objective_of_optuna_defines_its_parameters_itself(script, tmp_path):
    job = functions.function_job(script("def f(trial):\n    return trial.suggest_float('x', 0, 1)\n").f, {"x"})
    assert not list(job.check({}, {"x"}))
    job.write(tmp_path / "f")
    loaded = load.load_job(tmp_path / "f")
    assert (loaded.entrypoint, loaded.search.suggests) == ("optuna:submitted:f", True)


def test_an_objective_with_other_arguments_is_told_what_to_do(script):
    job = functions.function_job(script("def f(trial, data):\n    return trial.suggest_float('x', 0, 1)\n").f, {"data"})
    (issue,) = job.check({}, {"data"})
    assert "an objective of Optuna has it alone" in str(issue)
