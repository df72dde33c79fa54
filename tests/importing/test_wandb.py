"""Sweeps of W&B as jobs: methods, distributions, the forms of a command, and what has no counterpart."""

from __future__ import annotations

from typing import Any

import pytest
from tests.importing.conftest import reasons

from trialplane import errors
from trialplane.importing import wandb
from trialplane.importing.source import ImportResult

SWEEP = """\
program: fit.py
project: digits
method: METHOD
metric: {name: val/acc, goal: maximize, target: 0.9}
parameters:
  lr: {distribution: log_uniform_values, min: 0.001, max: 0.1}
  depth: {min: 2, max: 8}
  opt: {values: [adam, sgd]}
  epochs: {value: 3}
early_terminate: {type: hyperband, min_iter: 2, eta: 4, strict: true}
run_cap: 12
"""


def read(text: str = SWEEP, method: str = "bayes") -> ImportResult:
    return wandb.read(text.replace("METHOD", method), "sweep.yaml", {})


def test_a_sweep_is_a_job(loaded) -> None:
    made = read()
    job = loaded(made, fit="")
    assert job.script == "fit.py" and made.copies == ("fit.py",)
    assert (job.arguments.items, job.arguments.booleans) == (("{flags}",), "value")
    assert (job.sampler.name, job.trials, job.budget.target, job.params) == ("tpe", 12, 0.9, {"epochs": 3})
    assert job.objectives[0].model_dump() == {"metric": "val/acc", "direction": "maximize", "of": "last"}
    assert job.space["lr"].log and job.space["depth"].type == "int" and job.space["opt"].choices == ("adam", "sgd")
    assert (job.pruner.name, job.pruner.options) == ("hyperband", {"min_resource": 2, "reduction_factor": 4})
    found = reasons(made)
    assert set(found) == {"program", "project", "early_terminate.strict"}


@pytest.mark.parametrize(
    ("given", "wanted", "noted"),
    [
        ("{distribution: q_uniform, min: 0, max: 1, q: 0.25}", {"low": 0.0, "high": 1.0, "step": 0.25}, ""),
        (
            "{distribution: q_uniform, min: 3, max: 17.5, q: 4}",
            {"low": 4.0, "high": 16.0, "step": 4.0},
            "values are multiples of 4, so the range is 4 to 16",
        ),
        ("{distribution: q_uniform, min: 0.1, max: 0.3, q: 0.1}", {"low": 0.1, "high": 0.3, "step": 0.1}, ""),
        ("{distribution: log_uniform, min: 0, max: 1}", {"low": 1.0, "high": 2.718281828459045, "log": True}, ""),
        ("{distribution: normal, mu: 1, sigma: 0.5}", {"type": "normal", "mean": 1.0, "std": 0.5, "log": False}, ""),
        ("{distribution: log_normal, mu: 1, sigma: 0.5}", {"type": "normal", "log": True}, ""),
        ("{distribution: q_uniform, min: 8, max: 32, q: 8}", {"type": "int", "low": 8, "high": 32, "step": 8}, ""),
        ("{distribution: q_uniform, min: 1, max: 9}", {"type": "int", "low": 1, "high": 9}, ""),
        ("{distribution: q_normal, mu: 1, sigma: 0.5, q: 0.5}", {"low": -0.5, "high": 2.5, "step": 0.5}, "3 sigma"),
        ("{distribution: beta, min: 0, max: 1}", {"low": 0.0, "high": 1.0}, "no counterpart"),
        ("{min: 0.5, max: 2}", {"low": 0.5, "high": 2.0, "type": "float"}, ""),
        (
            "{distribution: q_log_uniform_values, min: 1, max: 8, q: 2}",
            {"type": "int", "low": 1, "high": 8, "log": True},
            "no step here",
        ),
        ("{values: [[1, 2], 3]}", {"choices": ("[1, 2]", 3)}, "JSON text"),
    ],
)
def test_distributions(loaded, given: str, wanted: dict[str, Any], noted: str) -> None:
    made = read(f"program: fit.py\nmethod: random\nmetric: {{name: loss}}\nparameters: {{x: {given}}}\n")
    found = loaded(made, fit="").space["x"].model_dump()
    assert {key: found[key] for key in wanted} == wanted
    said = " ".join(reason for field, reason in reasons(made).items() if field.startswith("parameters"))
    assert (noted in said) if noted else not said


def test_an_inverted_logarithmic_scale_becomes_a_plain_one() -> None:
    made = read("program: fit.py\nparameters: {x: {distribution: inv_log_uniform_values, min: 1, max: 8}}\n")
    assert made.job["space"]["x"] == {"type": "float", "low": 1.0, "high": 8.0, "log": True}
    said = [note.reason for note in made.notes if note.field == "parameters.x.distribution"]
    assert said == ["is drawn on a plain logarithmic scale here, not on an inverted one"]


def test_nested_parameters_keep_their_names_as_arguments(loaded) -> None:
    made = read("program: fit.py\nmetric: {name: loss}\nparameters: {opt: {parameters: {lr: {min: 0.1, max: 1.0}}}}\n")
    job = loaded(made, fit="")
    assert job.arguments.items == ("{flags}",) and list(job.space) == ["opt.lr"]
    found = reasons(made)
    assert "single dict" in found["parameters.opt"] and "parameters.opt.parameters.lr" not in found
    assert "must end" in found["run_cap"]


@pytest.mark.parametrize(
    ("command", "head", "rest"),
    [
        ("['${env}', '${interpreter}', '${program}', '${args_no_boolean_flags}']", "fit.py", ("{flags}",)),
        ("['${program}', '${args_no_hyphens}']", "fit.py", ("{hydra}",)),
        ("[accelerate, launch, '${program}', --x, '{a}', '${args}']", ("accelerate", "launch", "fit.py"), None),
        ("['${interpreter}', '${program}', '${args_json}']", "fit.py", ('{{"lr": {lr}, "opt": "{opt}"}}',)),
    ],
)
def test_commands(loaded, command: str, head: Any, rest: tuple[str, ...] | None) -> None:
    space = "{lr: {min: 0.1, max: 1.0}, opt: {values: [a, b]}}"
    job = loaded(
        read(f"program: fit.py\nmetric: {{name: x}}\nmethod: random\ncommand: {command}\nparameters: {space}\n"), fit=""
    )
    assert (job.script or job.command) == head
    assert job.arguments.items == (rest or ("--x", "{{a}}", "{flags}"))
    assert job.arguments.booleans == ("switch" if "boolean" in command else "value")


def test_a_macro_without_a_counterpart_is_named() -> None:
    text = "program: fit.py\ncommand: ['${program}', '${args_json_file}', '${envvar:X}']\nparameters: {a: {values: [1]}}\n"
    found = reasons(read(text))
    assert "no counterpart" in found["command.1"] and "no counterpart" in found["command.2"]


@pytest.mark.parametrize("command", ["", "command: [torchrun, '${program}', '${args}']", "command: [python, -m, fit]"])
def test_what_a_program_logs_is_captured(loaded, command: str) -> None:
    made = read(f"program: fit.py\n{command}\nmetric: {{name: loss}}\nparameters: {{a: {{values: [1, 2]}}}}\n")
    assert "W&B gets nothing" in reasons(made)["program"] and made.copies == ("fit.py",)
    assert loaded(made, fit="").capture == ("wandb",)


LOGS = "import wandb\nrun = wandb.init()\nrun.log({'epoch': 1, 'train_loss': 2, **{}})\n"


@pytest.mark.parametrize(
    ("text", "metric", "direction"),
    [
        (LOGS, "train_loss", "minimize"),
        (f"{LOGS}wandb.log({{'val_acc': 1}}, step=3)\n", "val_acc", "maximize"),
        (f"{LOGS}wandb.log({{'other': 1}})\nlogger.log({{'val_loss': 1}})\n", "train_loss", "minimize"),
        ("import wandb\nwith wandb.init() as run:\n    run.log({'reached': 1})\n", "reached", "maximize"),
    ],
)
def test_a_sweep_without_a_metric_gets_the_one_that_the_program_logs(loaded, text: str, metric: str, direction: str) -> None:
    sweep = "program: fit.py\nmethod: random\nparameters: {a: {values: [1, 2]}}\n"
    made = wandb.read(sweep, "sweep.yaml", {"fit.py": text})
    [objective] = loaded(made, fit="").objectives
    assert (objective.metric, objective.direction) == (metric, direction)
    assert f"is missing: {metric} is what the program logs" in reasons(made)["metric"]
    made = wandb.read(f"{sweep}metric: {{goal: minimize}}\n", "sweep.yaml", {"fit.py": text})
    assert made.job["objective"]["direction"] == "minimize"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no name can be read from its wandb.log calls"),
        ("not Python", "no name can be read"),
        ("import wandb\nwandb.log(values)\nwandb.log({name: 1})\n", "no name can be read"),
        (f"{LOGS}wandb.log({{'val_acc': 1, 'val_loss': 2}})\n", "it logs epoch, train_loss, val_acc, val_loss"),
    ],
)
def test_a_sweep_without_a_metric_is_no_whole_job(loaded, text: str, told: str) -> None:
    sweep = "program: fit.py\nmethod: random\nparameters: {a: {values: [1, 2]}}\n"
    made = wandb.read(sweep, "sweep.yaml", {"fit.py": text})
    assert told in reasons(made)["metric"] and "write `objective: {metric: NAME" in reasons(made)["metric"]
    with pytest.raises(errors.SpecError, match="objectives: is missing"):
        loaded(made, fit="")


def test_a_script_that_takes_no_arguments_gets_its_parameters_by_wandb_config(loaded) -> None:
    scripts = {"fit.py": "import wandb\nlr = wandb.config.lr\n"}
    text = SWEEP.replace("METHOD", "random")
    job = loaded(wandb.read(text, "sweep.yaml", scripts), fit="")
    assert job.capture == ("wandb",) and job.arguments.items == () and job.metrics is None
    scripts["fit.py"] += "import argparse\n"
    assert wandb.read(text, "sweep.yaml", scripts).job["arguments"] != "none"


def test_a_grid_ends_with_its_points(loaded) -> None:
    job = loaded(
        read("program: fit.py\nmetric: {name: x}\nmethod: grid\nparameters: {a: {values: [1, 2]}, b: {min: 1, max: 3}}\n"),
        fit="",
    )
    assert (job.sampler.name, job.trials) == ("grid", 6)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: 1", "is not a sweep"),
        ("parameters: {a: 1}", "parameters.a: must be a mapping"),
        ("parameters: {a: {min: 1}}", "needs value, values, or min and max"),
        ("parameters: {a: {min: x, max: 2}}", "must be a number"),
        ("parameters: {a: {distribution: log_uniform, min: 1, max: 10000}}", "is over 1e300"),
        (
            "parameters: {a: {values: [1]}}\nearly_terminate: {type: hyperband, max_iter: 27, s: -1000}",
            "s: must be 1 or more",
        ),
        ("parameters: {a: {values: [1]}}\nmetric: [1]", "metric"),
        ("parameters: {a: {values: [1]}}\nmetric: {goal: up}", "'up' is not minimize"),
    ],
)
def test_what_is_refused(text: str, part: str) -> None:
    try:
        found = str(read(text).notes)
    except errors.SpecError as error:
        found = str(error)
    assert part in found


def test_a_sweep_without_a_program_is_that_of_the_only_agent() -> None:
    text = "metric: {name: loss}\nparameters: {x: {min: 0.1, max: 2.0}}\n"
    agent = "import wandb\nwandb.agent('id', function=print)\n"
    scripts = {"fit.py": agent, "nets.py": "", "../other.py": agent}
    made = wandb.read(text, "sweep.yaml", scripts)
    assert (made.job["script"], made.job["arguments"], made.copies) == ("fit.py", "none", ("fit.py",))
    made = wandb.read(text, "sweep.yaml", {**scripts, "more.py": agent})
    assert "script" not in made.job and "command" not in made.job
    assert "not exactly one script" in str(made.notes)
