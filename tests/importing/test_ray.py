"""Searches of Ray Tune as jobs, from the text of a Python file: domains, schedulers, and the generated file."""

from __future__ import annotations

import types
from typing import Any

import pytest
from tests.importing.conftest import reasons

from trialplane import errors
from trialplane.importing import ray
from trialplane.importing.source import Imported

FILE = """\
from ray import tune
from ray.tune.schedulers import ASHAScheduler

raise_if_run = None
DEPTHS = [2, 4]


def fit(config):
    tune.report({"acc": config["opt"]["lr"]})


def main():
    space = {"opt": {"lr": tune.loguniform(1e-4, 10 * 1e-2)}, "depth": tune.choice(DEPTHS), "epochs": 3}
    tuner = tune.Tuner(
        tune.with_resources(fit, {"cpu": 2, "gpu": 0.5}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="acc", mode="max", num_samples=12, scheduler=ASHAScheduler(max_t=9, grace_period=2), reuse_actors=True
        ),
        run_config=tune.RunConfig(name="x"),
    )
    tuner.fit()


if __name__ == "__main__":
    main()
"""


def read(text: str = FILE, name: str = "search.py") -> Imported:
    return ray.read(text, name, {})


def test_a_search_is_a_job(loaded) -> None:
    made = read()
    job = loaded(made, search=FILE)
    assert job.entrypoint == "train:run" and made.copies == ("search.py",)
    assert (job.sampler.name, job.trials, job.params) == ("random", 12, {"epochs": 3})
    assert (job.resources.cpus, job.resources.gpus) == (2, 1)
    assert job.objectives[0].model_dump() == {"metric": "acc", "direction": "maximize", "of": "last"}
    assert (job.pruner.name, job.pruner.options) == ("successive_halving", {"min_resource": 2, "reduction_factor": 4})
    assert job.space["opt.lr"].log and job.space["opt.lr"].high == pytest.approx(0.1)
    assert job.space["depth"].choices == (2, 4)
    found = reasons(made)
    assert "until its code returns" in found["tune_config.scheduler.max_t"]
    assert found["tune_config.reuse_actors"] == "a job has no field for it"
    assert "becomes a whole one here" in found["0.1.gpu"]
    assert "line 9: tune.report needs Ray's session" in found["file"]
    assert "run_config" in found


def test_the_generated_file_calls_the_function_with_its_configuration(monkeypatch) -> None:
    module = types.ModuleType("search")
    module.fit = lambda config: config
    monkeypatch.setitem(__import__("sys").modules, "search", module)
    made: dict[str, Any] = {}
    exec(read().files["train.py"], made)
    context = types.SimpleNamespace(params={"opt.lr": 0.1, "depth": 2, "epochs": 3})
    assert made["run"](context) == {"opt": {"lr": 0.1}, "depth": 2, "epochs": 3}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("tune.uniform(0, 1)", {"type": "float", "low": 0.0, "high": 1.0}),
        ("tune.quniform(0, 1, 0.25)", {"step": 0.25}),
        ("tune.randint(1, 8)", {"type": "int", "low": 1, "high": 7}),
        ("tune.qrandint(2, 8, 2)", {"low": 2, "high": 8, "step": 2}),
        ("tune.lograndint(1, 9, base=2)", {"high": 8, "log": True}),
        ("tune.randn(10, 2)", {"mean": 10.0, "std": 2.0}),
        ("tune.uniform(lower=2 ** -3, upper=-1 + 2)", {"low": 0.125, "high": 1.0}),
        ("tune.choice(['a', 'b'])", {"choices": ("a", "b")}),
    ],
)
def test_domains(loaded, given: str, wanted: dict[str, Any]) -> None:
    text = f"def fit(config): ...\ndef main():\n    tune.run(fit, config={{'x': {given}}}, metric='m', mode='min')\n"
    found = loaded(read(text), search=text).space["x"].model_dump()
    assert {key: found[key] for key in wanted} == wanted


def test_a_grid_is_one(loaded) -> None:
    text = (
        "def fit(config): ...\ndef main():\n"
        "    tune.run(fit, config={'a': tune.grid_search([1, 2]), 'b': tune.grid_search([3, 4, 5])}, metric='m')\n"
    )
    job = loaded(read(text), search=text)
    assert (job.sampler.name, job.trials) == ("grid", 6)


@pytest.mark.parametrize(
    ("more", "sampler", "part"),
    [
        ("search_alg=OptunaSearch()", "tpe", ""),
        ("search_alg=ConcurrencyLimiter(BayesOptSearch(), max_concurrent=3)", "gp", ""),
        ("search_alg=Oracle()", "tpe", "Oracle has no counterpart"),
        ("scheduler=PopulationBasedTraining(a=1)", "random", "population based training is not a pruner"),
        ("scheduler=MedianStoppingRule(grace_period=3)", "random", ""),
    ],
)
def test_searchers_and_schedulers(loaded, more: str, sampler: str, part: str) -> None:
    text = f"def fit(config): ...\ndef main():\n    tune.run(fit, config={{'x': tune.uniform(0, 1)}}, metric='m', {more})\n"
    made = read(text)
    job = loaded(made, search=text)
    assert job.sampler.name == sampler
    assert part in str(reasons(made))
    assert job.parallel == (3 if "Limiter" in more else 1)
    assert job.pruner.options == ({"n_warmup_steps": 3} if "Median" in more else {})


def test_what_only_running_would_tell_is_named(loaded) -> None:
    text = (
        "def fit(config): ...\ndef main():\n    tune.run(fit, config={'x': tune.uniform(0, 1),"
        " 'y': tune.sample_from(lambda s: 1), 'z': compute()}, metric='m', mode='min', stop={'a': 1})\n"
    )
    made = read(text)
    assert list(loaded(made, search=text).space) == ["x"]
    found = reasons(made)
    assert all("only running the file would show" in found[f"config.{name}"] for name in "yz")
    assert "budget.target" in found["stop"]


def test_a_file_that_would_search_when_it_is_imported_is_not_called() -> None:
    text = "def fit(config): ...\ntune.run(fit, config={'x': tune.uniform(0, 1)}, metric='m', mode='min')\n"
    made = read(text)
    assert not made.files
    assert "line 2 would start the search" in reasons(made)["file"]


def test_a_file_called_train_keeps_its_name(loaded) -> None:
    text = FILE.replace("search", "train")
    job = loaded(read(text, "train.py"), train=text)
    assert job.entrypoint == "trial:run"


def test_a_class_needs_a_function() -> None:
    text = "class Fit(Trainable): ...\ndef main():\n    tune.run(Fit, config={'x': tune.uniform(0, 1)}, metric='m')\n"
    assert "Fit is not a function" in str(reasons(read(text)))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = 1", "has no tune.Tuner"),
        ("def (", "is not Python"),
        ("x = " + "(" * 30_000, "is not Python"),
        ("\0", "is not Python"),
        ("tune.run(f, config=load())", "is not a dict that can be read"),
        ("tune.run(f, config={'x': tune.uniform(a, 1)})", "must be a number"),
        ("tune.run(f, config={'x': tune.choice(a)})", "needs a list of values"),
        ("a = [1] * 9\n" + "".join(f"{b} = [{a}, {a}, {a}, {a}]\n" for a, b in zip("abcdefghij", "bcdefghijk", strict=True))
         + "tune.run(f, config={'x': tune.choice(k)})", "is too large"),
        ("a = b\nb = a\ntune.run(f, config=a)", "nested too deeply"),
    ],
    ids=range(9),
)  # fmt: skip
def test_what_is_refused(text: str, part: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        read(text)
    assert part in str(caught.value)
