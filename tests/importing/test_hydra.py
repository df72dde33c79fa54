"""Sweeps of Hydra as jobs: the grammar of their parameters, both sweepers, and the script they are for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.importing.conftest import reasons

from trialplane import errors
from trialplane.importing import hydra
from trialplane.importing.source import ImportResult

APP = "import hydra\n\n@hydra.main(config_path='conf', config_name='config')\ndef main(cfg): ...\n"
CONFIG = """\
defaults: [_self_, override hydra/sweeper: optuna]
lr: 0.1
model: {depth: 3}
hydra:
  sweeper:
    sampler: {_target_: optuna.samplers.TPESampler, seed: 7, n_startup_trials: 4, consider_prior: true}
    direction: maximize
    study_name: s
    n_trials: 30
    n_jobs: 3
    params:
      lr: tag(log, interval(1e-4, 1))
      model.depth: range(2, 8, step=2)
      act: choice(relu, "a,b", 'x')
      fixed: 4
  launcher: {a: 1}
"""


def read(text: str, name: str = "conf/config.yaml", **scripts: str) -> ImportResult:
    return hydra.read(text, name, scripts or {"../app.py": APP, "../other.py": ""})


def test_a_sweep_of_optuna_is_a_job(loaded) -> None:
    made = read(CONFIG)
    job = loaded(made, app=APP)
    assert job.script == "app.py" and (made.copies, made.is_in_parent) == (("app.py",), True)
    assert job.arguments.items == ("{hydra}",)
    assert (job.sampler.name, job.sampler.options, job.seed) == ("tpe", {"n_startup_trials": 4}, 7)
    assert (job.trials, job.parallel, job.params) == (30, 3, {"fixed": 4})
    assert job.objectives[0].model_dump() == {"metric": "objective", "direction": "maximize", "of": "last"}
    assert job.space["lr"].log and job.space["act"].choices == ("relu", "a,b", "x")
    assert job.space["model.depth"].points() == [2, 4, 6, 8]
    found = reasons(made)
    assert job.capture == ("hydra",) and "what the function returns" in found["hydra.sweeper"]
    assert "--name" in found["hydra.sweeper.study_name"] and "started by the platform" in found["hydra.launcher"]
    assert "hydra.sweeper.sampler.consider_prior" in found
    assert not any(field.startswith(("lr", "model", "defaults")) for field in found)


@pytest.mark.parametrize(
    ("chosen", "name"), [("random", "random"), ("cmaes", "cmaes"), ("nsgaii", "nsgaii"), ("tpe", "tpe"), ("", "tpe")]
)
def test_the_sampler_of_the_list_of_defaults_is_the_jobs(loaded, chosen: str, name: str) -> None:
    override = f"  - override hydra/sweeper/sampler: {chosen}\n" if chosen else ""
    text = f"defaults:\n  - override hydra/sweeper: optuna\n{override}"
    made = read(f"{text}hydra: {{sweeper: {{sampler: {{seed: 3}}, params: {{lr: 'interval(0, 1)'}}}}}}\n")
    assert (loaded(made, app=APP).sampler.name, made.job["seed"]) == (name, 3)
    assert not any("has no counterpart" in reason for reason in reasons(made).values())


def test_the_basic_sweeper_tries_all(loaded) -> None:
    made = read(
        "hydra: {sweeper: {params: {a: '1,2,3', b: 'range(0, 4)', +c: 'choice(x, y)'}}}", "config.yaml", **{"app.py": APP}
    )
    job = loaded(made, app=APP)
    assert (job.sampler.name, job.trials) == ("grid", 24)
    assert job.space["b"].points() == [0, 1, 2, 3]  # without its end
    assert job.arguments.items == ("{hydra}",) and "+c" in job.space and made.copies == ("app.py", "config.yaml")


AX = """\
defaults: [override hydra/sweeper: ax]
hydra:
  mode: MULTIRUN
  sweeper:
    ax_config:
      max_trials: 9
      client: {random_seed: 5}
      early_stop: {max_epochs_without_improvement: 3}
      experiment: {minimize: false, objective_name: score}
      params:
        model.depth: {type: range, bounds: [1, 4]}
        lr: {type: range, bounds: [0.001, 1], log_scale: true}
        act: {type: choice, values: [relu, gelu]}
        fixed: {type: fixed, value: 3}
        width: int(interval(2, 8))
"""


def test_a_sweep_of_ax_is_a_job(loaded) -> None:
    made = read(AX)
    job = loaded(made, app=APP)
    assert (job.trials, job.seed, job.sampler.name, job.params) == (9, 5, "tpe", {"fixed": 3})
    assert [(one.metric, one.direction) for one in job.objectives] == [("objective", "maximize")]
    assert (job.space["model.depth"].type, job.space["lr"].log, job.space["width"].type) == ("int", True, "int")
    assert job.space["act"].choices == ("relu", "gelu")
    assert job.arguments.items == ("hydra.mode=RUN", "{hydra}"), "which would sweep otherwise"
    assert "a study ends with its `trials`" in reasons(made)["hydra.sweeper.ax_config.early_stop"]


NEVERGRAD = """\
defaults: [override hydra/sweeper: nevergrad]
hydra:
  sweeper:
    optim: {optimizer: CMA, budget: 12, num_workers: 3, maximize: true, seed: 2}
    parametrization:
      db: [mnist, cifar]
      act: choice(relu, gelu)
      lr: {init: 0.1, step: 10, log: true}
      dropout: {lower: 0.0, upper: 1.0}
      batch_size: {lower: 4, upper: 16, integer: true}
      depth: {init: 4, step: 1, integer: true}
"""


def test_a_sweep_of_nevergrad_is_a_job(loaded) -> None:
    made = read(NEVERGRAD)
    job = loaded(made, app=APP)
    assert (job.trials, job.parallel, job.seed, job.sampler.name) == (12, 3, 2, "cmaes")
    assert job.objectives[0].direction == "maximize"
    assert job.space["db"].choices == ("mnist", "cifar") and job.space["act"].choices == ("relu", "gelu")
    rate = job.space["lr"]
    assert (rate.type, round(rate.mean, 3), round(rate.std, 3), rate.log) == ("normal", -2.303, 2.303, True)
    assert (job.space["batch_size"].low, job.space["batch_size"].high, job.space["batch_size"].type) == (4, 16, "int")
    assert (job.space["depth"].low, job.space["depth"].high, job.space["depth"].type) == (1, 7, "int")
    assert "normal distribution" in reasons(made)["hydra.sweeper.parametrization.lr"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("interval(0, 1)", {"type": "float", "low": 0.0, "high": 1.0}),
        ("int(interval(1, 5))", {"type": "int", "low": 1, "high": 5}),
        ("tag(log, int(interval(1, 5)))", {"type": "int", "log": True}),
        ("range(0, 1, 0.25)", {"type": "float", "step": 0.25, "high": 1.0}),
        ("range(5)", {"type": "int", "low": 0, "high": 5}),
        ("range(start=1, stop=9, step=4)", {"low": 1, "high": 9, "step": 4}),
        ("shuffle(1, 2)", {"choices": (1, 2)}),
        ("{type: float, low: 0.1, high: 1.0, log: true}", {"type": "float", "log": True}),
        ("{type: categorical, choices: [1, a]}", {"choices": (1, "a")}),
    ],
)
def test_the_grammar(loaded, given: str, wanted: dict[str, Any]) -> None:
    quoted = given if given.startswith("{") else f"'{given}'"
    found = loaded(read(f"hydra: {{sweeper: {{n_trials: 2, params: {{x: {quoted}}}}}}}"), app=APP).space["x"].model_dump()
    assert {key: found[key] for key in wanted} == wanted


def test_a_script_that_is_not_clear_is_named() -> None:
    found = reasons(read("hydra: {sweeper: {params: {a: '1,2'}}}", **{"a.py": APP, "b.py": APP}))
    assert "a.py, b.py use Hydra" in found["hydra"]
    assert "no script beside it" in reasons(read("hydra: {sweeper: {params: {a: '1,2'}}}", **{"a.py": ""}))["hydra"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: 1", "has no sweep"),
        ("hydra: {sweeper: {params: {}}}", "no parameters to search"),
        ("hydra: {sweeper: {params: {a: 'glob(*)'}}}", "is not understood"),
        ("hydra: {sweeper: {params: {a: 'interval(1)'}}}", "is not understood"),
        ("hydra: {sweeper: {params: {a: 'range(1, 2, 0)'}}}", "is not understood"),
        ("hydra: {sweeper: {params: {a: 'range(stop=3)'}}}", "is not understood"),
        ("hydra: {sweeper: {params: {a: 'tag()'}}}", "is not understood"),
        ("hydra: {sweeper: {params: {a: {type: float}}}}", "needs type int or float"),
        ("hydra: {sweeper: {ax_config: {params: {a: {type: range}}}}}", "needs type range with bounds"),
        ("hydra: {sweeper: {optim: {budget: 3}, params: {a: {lower: 1}}}}", "needs lower and upper, or init"),
        ("hydra: {sweeper: {optim: {budget: 3}, params: {a: {init: 0, log: true}}}}", "above 0 with log"),
        ("hydra: {sweeper: {direction: up, params: {a: '1,2'}}}", "'up' is not minimize"),
    ],
)
def test_what_is_refused(text: str, part: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        read(text)
    assert part in str(caught.value)
