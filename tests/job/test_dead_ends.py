"""What Optuna, Python or memory would only refuse once trials run is refused with its field and its line before.

Not checked here: what one field may hold (test_load.py), data files (test_inputs.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.job.conftest import found

from trialplane.job import load, space

CURE = "raise the steps, or take another, for example random"
HEAD = "kind: hpo\nobjective: {metric: f1, direction: maximize}\n"
BOTH = "kind: hpo\nobjectives: [{metric: f1, direction: maximize}, {metric: size, direction: minimize}]\n"
NUMBERS = "  a: {type: float, low: 0, high: 1}\n  b: {type: int, low: 1, high: 4}\n"
SPACE = "space:\n" + NUMBERS + "  c: {type: categorical, choices: [x]}\n"
MANY = ", ".join(f"{{metric: m{index}, direction: minimize}}" for index in range(8000))
WIDE = "space:\n" + "".join(f"  p{index}: {{type: int, low: 1, high: 200}}\n" for index in range(3))


@pytest.mark.parametrize(
    ("text", "field", "line", "message"),
    [
        (HEAD + SPACE + "sampler: {name: cmaes, x0: {a: 0.5}}", "sampler.x0", 7, "lacks b;"),
        (HEAD + "space: {a: {type: float, low: -1.7e308, high: 1.7e308}}", "space.a.high", 3, "farther from low"),
        (HEAD + "space: {a: {type: float, low: 1e16, high: 2e16, step: 0.5}}", "space.a.step", 3, "is lost beside 2e+16"),
        (HEAD + "space: {a: {type: float, low: 0, high: 1, step: 1e-17}}", "space.a.step", 3, "is lost beside 1.0"),
        (HEAD + "space: {a: {type: float, low: 0, high: 1, step: 1e-320}}", "space.a.step", 3, "is lost"),
        (HEAD + f"params: {{n: {2**63}}}", "params.n", 3, "more than 64 bits"),
        (HEAD + f"space: {{a: {{type: categorical, choices: [1, {-(2**63) - 1}]}}}}", "space.a.choices.1", 3, "64 bits"),
        (HEAD + f"space: {{a: {{type: int, low: 0, high: {2**63}}}}}", "space.a.high", 3, "must be at most"),
        (
            HEAD + "sampler:\n  name: nsgaii\n  population_size: 2\n  crossover: spx",
            "sampler.population_size",
            5,
            "2 must be at least 3: spx needs so many parents",
        ),
        (HEAD + "sampler: {name: nsgaiii, population_size: 2, crossover: {name: undx}}", "sampler.population_size", 3, "3"),
        (
            HEAD + "sampler: {name: cmaes, lr_adapt: true, with_margin: true}",
            "sampler.lr_adapt",
            3,
            "together with with_margin",
        ),
        (HEAD + "sampler: {name: cmaes, x0: {a: 1}, source_trials: 'a:b'}", "sampler.x0", 3, "together with source_trials"),
        (
            HEAD + "pruner: {name: successive_halving, bootstrap_count: 1}",
            "pruner.bootstrap_count",
            3,
            "needs a min_resource",
        ),
        (
            BOTH + "sampler:\n  name: nsgaiii\n  reference_points:\n    - [0, 1]\n    - [1]",
            "sampler.reference_points.1",
            7,
            "has 1 number, and there are 2 objectives",
        ),
        (BOTH + f"sampler: {{name: nsgaiii, dividing_parameter: {2**53}}}", "sampler.dividing_parameter", 3, "at most"),
        (BOTH + "sampler: {name: nsgaiii, dividing_parameter: 10000}", "sampler.dividing_parameter", 3, "10001 reference"),
        (
            f"kind: hpo\nobjectives: [{MANY}]\nsampler: {{name: nsgaiii, dividing_parameter: 10000}}",
            "sampler.dividing_parameter",
            3,
            "10000 makes over 10^5367 reference points of 8000 objectives",
        ),
        (HEAD + f"sampler: {{name: tpe, n_ei_candidates: {2**53}}}", "sampler.n_ei_candidates", 3, "at most 10000"),
        (HEAD + f"sampler: {{name: cmaes, popsize: {2**53}}}", "sampler.popsize", 3, "at most 10000"),
        (
            HEAD + f"pruner: {{name: successive_halving, min_early_stopping_rate: {2**53}}}",
            "pruner.min_early_stopping_rate",
            3,
            "at most 100",
        ),
        (HEAD + WIDE + "sampler: grid", "sampler", 7, "100000 points at most, and the space has 8000000"),
        (HEAD + WIDE + "sampler: bruteforce", "sampler", 7, "100000 points at most, and the space has 8000000"),
        (
            HEAD + f"space:\n  a: {{type: int, low: 0, high: {2**53}}}\nsampler: grid",
            "space.a",
            4,
            "has 9007199254740993 values, and the grid sampler takes 100000 points at most",
        ),
        (
            HEAD + "space: {a: {type: int, low: 1, high: 10000000}}\nsampler: gp",
            "space.a",
            3,
            "has 10000000 values, and the gp",
        ),
        (
            HEAD + "sampler: {name: gp, independent_sampler: grid}",
            "sampler.independent_sampler",
            3,
            "grid cannot draw one parameter by itself",
        ),
    ],
)
def test_it_is_refused_before_anything_starts(folder: Path, text: str, field: str, line: int, message: str) -> None:
    (folder / "job.yaml").write_text(text)
    [(at, _, where, said)] = found(folder)
    assert (at, where) == (field, line), said
    assert message in said


@pytest.mark.parametrize(
    "text",
    [
        HEAD + SPACE + "sampler: {name: cmaes, x0: {a: 0.5, b: 2}}",
        HEAD + "space: {a: {type: float, low: -8e307, high: 8e307}}",
        HEAD + "space: {a: {type: float, low: 0, high: 1, step: 1e-12}}",
        HEAD + f"params: {{n: {2**63 - 1}, m: {-(2**63)}}}",
        HEAD + "sampler: {name: nsgaii, population_size: 3, crossover: spx}",
        HEAD + "sampler: {name: tpe, group: true}",
        HEAD + "pruner: {name: successive_halving, bootstrap_count: 1, min_resource: 2}",
        BOTH + "sampler: {name: nsgaiii, reference_points: [[0, 1], [1, 0]]}",
        BOTH + "sampler: {name: nsgaiii, dividing_parameter: 9999}",
        HEAD + WIDE.replace("200", "46") + "sampler: grid",
        HEAD + WIDE + "sampler: gp",
        HEAD + WIDE + "sampler: {name: gp, independent_sampler: {name: tpe, n_ei_candidates: 10000}}",
    ],
)
def test_what_works_is_taken(folder: Path, text: str) -> None:
    (folder / "job.yaml").write_text(text)
    load.load_job(folder)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("run = 3", "run is 3 and no function (train.py:1)"),
        ("run = [print]", "is [print] and no function"),
        ("def run():\n    pass", "run takes no arguments, but is called with ctx"),
        ("\nrun = lambda: 0", "(train.py:2)"),
        ("def run(ctx, more): ...", "takes ctx, more, but is called with ctx"),
        ("def run(ctx, *, more): ...", "takes ctx, more"),
        ("async def run(ctx): ...", "is async, but it is called synchronously"),
        ("if True:\n    def run(): ...\nelse:\n    run = 0", "run is 0 and no function (train.py:4)"),
    ],
)
def test_what_cannot_be_called_as_the_platform_does_is_no_entrypoint(folder: Path, code: str, message: str) -> None:
    (folder / "job.yaml").write_text(HEAD + "entrypoint: train:run\n")
    (folder / "train.py").write_text(code)
    [(field, _, line, said)] = found(folder)
    assert (field, line) == ("entrypoint", 3)
    assert message in said


@pytest.mark.parametrize(
    "code",
    [
        "def run(ctx, more=1, *rest, other=2, **named): ...",
        "def run(*given): ...",
        "run = print",
        "@print\ndef run(): ...",
        "class run:\n    def __init__(self, ctx): ...",
        "try:\n    from x import run\nexcept ImportError:\n    run = None",
        "run, evaluate = make(), other()",
        "from impl import *\nrun.limit = 3",
    ],
)
def test_what_may_be_called_so_is_an_entrypoint(folder: Path, code: str) -> None:
    (folder / "job.yaml").write_text(HEAD)
    (folder / "train.py").write_text(code)
    load.load_job(folder)


def test_a_learner_takes_the_context_and_the_results(folder: Path) -> None:
    text = "kind: collect\nentrypoint: train:run\ncollect: {units: 2, learner: 'train:learn'}\n"
    (folder / "job.yaml").write_text(text)
    (folder / "train.py").write_text("def run(ctx): ...\ndef learn(ctx, results): ...\n")
    load.load_job(folder)
    (folder / "train.py").write_text("def run(ctx): ...\ndef learn(ctx): ...\n")
    [(field, _, line, said)] = found(folder)
    assert (field, line) == ("collect.learner.entrypoint", 3)
    assert "learn takes ctx, but is called with ctx and results" in said


def test_points_are_counted_without_being_made(folder: Path) -> None:
    wide = "".join(f"  p{index}: {{type: float, low: 0, high: 1, step: 1e-15}}\n" for index in range(50))
    (folder / "job.yaml").write_text(HEAD + "space:\n" + wide)
    points = space.count_points(load.load_job(folder).search.parameters)
    assert points is not None and points > 10**740
    (folder / "job.yaml").write_text(HEAD + "space:\n" + wide.replace("1e-15", "1e-4") + "sampler: grid\n")
    [(field, _, _, said)] = found(folder)
    assert (field, said) == ("sampler", "grid takes 100000 points at most, and the space has over 10^200; " + CURE)
