"""Searches of Ray Tune as jobs, from the text of a Python file: domains, schedulers, and the entrypoint."""

from __future__ import annotations

import importlib
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.importing.conftest import reasons

from trialplane import errors
from trialplane.importing import ray
from trialplane.importing.source import ImportResult

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


def read(text: str = FILE, name: str = "search.py") -> ImportResult:
    return ray.read(text, name, {})


def test_a_search_is_a_job(loaded) -> None:
    made = read()
    job = loaded(made, search=FILE)
    assert (job.entrypoint, made.copies, made.files) == ("ray:search:fit", ("search.py",), {})
    assert (job.sampler.name, job.trials, job.params) == ("random", 12, {"epochs": 3})
    assert (job.resources.cpus, job.resources.gpus) == (2, 0.5)
    assert job.objectives[0].model_dump() == {"metric": "acc", "direction": "maximize", "of": "last"}
    assert (job.pruner.name, job.pruner.options) == ("successive_halving", {"min_resource": 2, "reduction_factor": 4})
    assert job.space["opt.lr"].log and job.space["opt.lr"].high == pytest.approx(0.1)
    assert job.space["depth"].choices == (2, 4)
    found = reasons(made)
    assert [rule.step for rule in job.stops] == [9], "the scheduler's max_t"
    assert found["tune_config.reuse_actors"] == "a job has no field for it"
    assert "trainable.resources.gpu" not in found
    assert "file" not in found, "the function is called as it stands"
    assert found["run_config.name"] == "is given when the job is submitted: --name"


@pytest.mark.parametrize("name", ["my-search.py", "2024.py", "class.py"])
def test_a_file_that_cannot_be_imported_is_copied_under_another_name(loaded, name: str) -> None:
    made = read(name=name)
    (file,) = made.files
    assert (made.files[file], made.copies) == (FILE, (name,)), "with what the file imports"
    assert loaded(made).entrypoint == f"ray:{file.removesuffix('.py')}:fit"


def test_the_copy_has_the_text_of_the_file_if_a_value_is_assumed(loaded) -> None:
    text = (
        "def fit(config): ...\ndef main():\n"
        "    tune.run(fit, config={'x': tune.uniform(0, 1), 'n': 1 if is_large() else 2}, metric='m')\n"
    )
    made = read(text, "my-search.py")
    assert "2 is taken" in reasons(made)["config.n"]
    assert list(made.files.values()) == [text]


def test_keys_that_the_function_gets_in_another_way_are_told(loaded) -> None:
    text = (
        "def fit(config): ...\ndef main():\n    tune.run(fit, config={'opt.lr': tune.uniform(0, 1), 'n': {'a b': 1},"
        " 'units': [tune.choice([1, 2]), 3], 'plain': [{'a': 1}]}, metric='m')\n"
    )
    made = read(text)
    job = loaded(made, search=text)
    assert (list(job.space), job.params["plain"]) == (["opt.lr"], [{"a": 1}])
    found = reasons(made)
    assert "gets it as config['opt']['lr'], not as config['opt.lr']" in found["config.opt.lr"]
    assert "not as config['n']['a b']" in found["config.n.a b"]
    assert "values are drawn in a list here" in found["config.units"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("tune.uniform(0, 1)", {"type": "float", "low": 0.0, "high": 1.0}),
        ("tune.quniform(0, 1, 0.25)", {"step": 0.25}),
        ("tune.randint(1, 8)", {"type": "int", "low": 1, "high": 7}),
        ("tune.qrandint(2, 8, 2)", {"low": 2, "high": 8, "step": 2}),
        ("tune.lograndint(1, 9, base=2)", {"high": 8, "log": True}),
        ("tune.qrandint(3, 17, 4)", {"low": 4, "high": 16, "step": 4}),
        ("tune.qrandint(2, 8)", {"low": 2, "high": 7}),
        ("tune.qrandint(2, 8, 1)", {"low": 2, "high": 7}),
        ("tune.quniform(0.1, 0.95, 0.1)", {"low": 0.1, "high": 0.9, "step": 0.1}),
        ("tune.qrandn(0.5, 1, 0.4)", {"low": -2.4, "high": 3.6, "step": 0.4}),
        ("tune.randn(10, 2)", {"mean": 10.0, "std": 2.0}),
        ("tune.uniform(lower=2 ** -3, upper=-1 + 2)", {"low": 0.125, "high": 1.0}),
        ("tune.choice(['a', 'b'])", {"choices": ("a", "b")}),
        ("tune.choice([2**i for i in range(4) if i != 1])", {"choices": (1, 4, 8)}),
        ("tune.choice([i * j for i in (1, 3) for j in SIZES if i + j != 9])", {"choices": (16, 24, 48)}),
        ("tune.choice(list(range(2, 9, BASE)))", {"choices": (2, 5, 8)}),
        ("tune.grid_search([8] + [BASE] * 1)", {"choices": (8, 3)}),
        ("tune.uniform(BASE / 100, 10 ** -BASE * 50)", {"low": 0.03, "high": 0.05}),
    ],
)
def test_domains(loaded, given: str, wanted: dict[str, Any]) -> None:
    text = "BASE = 3\ndef fit(config): ...\ndef main():\n    SIZES = [8, 16]\n"
    text += f"    tune.run(fit, config={{'x': {given}}}, metric='m', mode='min')\n"
    found = loaded(read(text), search=text).space["x"].model_dump()
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    "values",
    [
        "sum([[0] * 5] * 5, [])",
        "[round(12345, -30)]",
        "[[[[0] * 60] * 60] * 60] * 2",
        "[x for x in [[0] * 1000] for n in range(100)]",
        "[1 for y in [['a'] * 99] for z in [['a'] * 99] for n in range(999) if y == z]",
        "[len(x) for x in [list(range(999))] for n in range(999)]",
        "[" + "sum([i * i for i in range(999)]), " * 30 + "]",
    ],
)
def test_values_that_need_too_much_work_are_refused(values: str) -> None:
    with pytest.raises(errors.SpecError, match="needs a list of values"):
        read(f"tune.run(f, config={{'x': tune.choice({values})}})")


@pytest.mark.parametrize("values", ["range(3)", "[i for i in range(3)]"])
def test_a_function_with_the_name_of_a_built_in_is_not_evaluated(values: str) -> None:
    with pytest.raises(errors.SpecError, match="needs a list of values"):
        read(f"def range(n): return [7]\ntune.run(f, config={{'x': tune.choice({values})}})")


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
        ("search_alg=ConcurrencyLimiter(BayesOptSearch(), max_concurrent=3)", "tpe", ""),
        ("search_alg='hyperopt'", "tpe", ""),
        ("search_alg=Oracle()", "tpe", "'Oracle' has no counterpart"),
        ("scheduler=PopulationBasedTraining(a=1)", "random", "population based training is not a pruner"),
        ("scheduler=MedianStoppingRule(min_samples_required=3)", "random", ""),
    ],
)
def test_searchers_and_schedulers(loaded, more: str, sampler: str, part: str) -> None:
    text = f"def fit(config): ...\ndef main():\n    tune.run(fit, config={{'x': tune.uniform(0, 1)}}, metric='m', {more})\n"
    made = read(text)
    job = loaded(made, search=text)
    assert job.sampler.name == sampler
    said = str(reasons(made))
    assert part in said and ("has no counterpart" in said) == ("has no counterpart" in part)
    assert job.parallel == (3 if "Limiter" in more else 1)
    assert job.pruner.options == ({"n_startup_trials": 3} if "Median" in more else {})


def test_bounds_that_are_moved_to_multiples_are_told() -> None:
    text = "def fit(config): ...\ntune.run(fit, config={'x': tune.qrandint(3, 17, 4)}, metric='m')\n"
    assert reasons(read(text))["config.x"] == "values are multiples of 4, so the range is 4 to 16"


@pytest.mark.parametrize(
    ("scheduler", "options", "place", "told"),
    [
        ("MedianStoppingRule(grace_period=60)", {}, "scheduler.grace_period", "is in seconds there"),
        (
            "MedianStoppingRule(grace_period=6, time_attr='training_iteration')",
            {"n_warmup_steps": 6},
            "scheduler.grace_period",
            "",
        ),
        (
            "ASHAScheduler(time_attr='time_total_s', grace_period=60, max_t=600)",
            {"min_resource": 1, "reduction_factor": 4},
            "scheduler.grace_period",
            "is in seconds there",
        ),
        ("HyperBandScheduler(time_attr='mean_accuracy', max_t=9)", {}, "scheduler.max_t", "is in mean_accuracy there"),
    ],
)
def test_a_scheduler_that_does_not_count_iterations_gives_no_steps(
    loaded, scheduler: str, options: dict[str, Any], place: str, told: str
) -> None:
    text = f"def fit(config): ...\ntune.run(fit, config={{'x': tune.uniform(0, 1)}}, metric='m', scheduler={scheduler})\n"
    made = read(text)
    assert loaded(made, search=text).pruner.options == options
    assert (told in reasons(made).get(place, "")) if told else place not in reasons(made)


def test_what_only_running_would_tell_is_named(loaded) -> None:
    text = (
        "def fit(config): ...\ndef main():\n    tune.run(fit, config={'x': tune.uniform(0, 1),"
        " 'y': tune.sample_from(lambda s: 1), 'z': compute()}, metric='m', mode='min', stop=Stopper())\n"
    )
    made = read(text)
    job = loaded(made, search=text)
    assert list(job.space) == ["x"] and job.budget.timeout == 3600, "a trial whose end is not known ends after an hour"
    found = reasons(made)
    assert "a function of the other values cannot be read" in found["config.y"]
    assert "only running the file would show" in found["config.z"]
    assert "a trial ends when its code returns, or after 1h" in found["stop"]


def test_what_later_statements_put_into_a_dict_is_in_it(loaded) -> None:
    text = (
        "def fit(config): ...\ndef main():\n    space = dict(x=tune.uniform(0, 1), opt={})\n    more = {'n': 3}\n"
        "    space['y'] = tune.choice([1, 2])\n    space['opt']['lr'] = tune.loguniform(1e-4, 1e-1)\n"
        "    space.update(more, x=tune.uniform(0, 2))\n    space.update({'k': 4})\n"
        "    tune.run(fit, config=space, metric='m', num_samples=3)\n"
    )
    made = read(text)
    job = loaded(made, search=text)
    assert set(job.space) == {"x", "y", "opt.lr"} and job.space["x"].high == 2 and job.params == {"n": 3, "k": 4}
    assert not made.notes


@pytest.mark.parametrize(
    "change", ["if big:\n    space['y'] = 1", "space[name] = 1", "space.update(more())", "for n in (1, 2): space.pop(n)"]
)
def test_a_change_of_a_dict_that_cannot_be_read_is_told(loaded, change: str) -> None:
    text = (
        f"def fit(config): ...\nspace = {{'x': tune.uniform(0, 1)}}\nother = {{}}\nother[name] = 1\n{change}\n"
        "tune.run(fit, config=space, metric='m', num_samples=3)\n"
    )
    made = read(text)
    assert loaded(made, search=text).trials == 3
    assert "space is changed in line" in reasons(made)["config"] and len(made.notes) == 1


@pytest.mark.parametrize(
    ("samples", "grid", "trials"), [("-1", "", 20), ("given()", "", 20), ("-1", "'g': tune.grid_search([1, 2])", 2)]
)
def test_a_number_of_trials_that_is_unlimited_or_unknown_is_told(loaded, samples: str, grid: str, trials: int) -> None:
    space = f"{{'x': tune.uniform(0, 1), {grid}}}"
    text = f"def fit(config): ...\ntune.run(fit, config={space}, metric='m', num_samples={samples})\n"
    made = read(text)
    assert loaded(made, search=text).trials == trials
    assert f"but a study must end: trials is {trials}" in reasons(made)["num_samples"]


def test_a_search_at_the_top_level_is_taken(loaded) -> None:
    text = "def fit(config): ...\ntune.run(fit, config={'x': tune.uniform(0, 1)}, metric='m', mode='min')\n"
    assert loaded(read(text), search=text).entrypoint == "ray:search:fit"


def test_a_class_trainable_is_the_entrypoint(loaded) -> None:
    text = "class Fit(Trainable): ...\ndef main():\n    tune.run(Fit, config={'x': tune.uniform(0, 1)}, metric='m')\n"
    assert loaded(read(text), search=text).entrypoint == "ray:search:Fit"


@pytest.mark.parametrize(
    ("stop", "timeout"), [("", "1h"), (", stop={'training_iteration': 9}", None), (", stop={'time_total_s': 9}", 9)]
)
def test_a_class_trainable_has_an_end(stop: str, timeout: object) -> None:
    text = f"class Fit(Trainable): ...\ntune.run(Fit, config={{'x': tune.uniform(0, 1)}}, metric='m'{stop})\n"
    assert read(text).job.get("budget", {}).get("timeout") == timeout
    assert ("without `stop`" in str(reasons(read(text)))) == (stop == "")


@pytest.mark.parametrize(
    ("trainable", "part"),
    [
        ("inner", "inner is not defined at the top level of the file"),
        ("lambda config: 1", "lambda config: 1 is not a function of this file by its name"),
    ],
)
def test_a_trainable_that_no_trial_could_name_is_told(trainable: str, part: str) -> None:
    text = "def fit(config, data): ...\ndef main():\n    def inner(config): ...\n"
    text += f"    tune.run({trainable}, config={{'x': tune.uniform(0, 1)}}, metric='m')\n"
    assert part in str(reasons(read(text)))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = 1", "has no tune.Tuner"),
        ("def (", "is not Python"),
        ("x = " + "(" * 30_000, "is not Python"),
        ("\0", "is not Python"),
        ("tune.run(f, config=load())", "is not a dict that can be read"),
        ("tune.run(f, config={'x': tune.uniform(a, 1)})", "config.x: needs two bounds that can be read"),
        ("tune.run(f, config={'x': 1})", "has nothing to search that can be read"),
        ("from ray.rllib import PPO\ntune.run(PPO, config={'x': tune.uniform(0, 1)})", "PPO is a class of Ray's"),
        ("tune.run(f, config={'x': tune.choice(a)})", "needs a list of values"),
        ("tune.run(f, config={'x': tune.choice([load(), 1])})", "needs a list of values"),
        ("tune.run(f, config={'x': tune.choice([i for i in range(10**9)])})", "needs a list of values"),
        ("tune.run(f, config={'x': tune.choice([9**9**9])})", "needs a list of values"),
        ("tune.run(f, config={'x': tune.choice([0] * 10**9)})", "needs a list of values"),
        ("tune.run(partial(f, a=load(x)), config={'x': tune.uniform(0, 1)})", "write `def NAME(config): return f(config"),
        ("from functools import partial\ndef f(config, a): ...\ntune.run(partial(f, a=1), config={'x': tune.uniform(0, 1)})",
         "would start its search"),
        ("a = [1] * 9\n" + "".join(f"{b} = [{a}, {a}, {a}, {a}]\n" for a, b in zip("abcdefghij", "bcdefghijk", strict=True))
         + "tune.run(f, config={'x': tune.choice(k)})", "has more than 50,000 values"),
        ("a = b\nb = a\ntune.run(f, config=a)", "is nested too deeply"),
    ],
    ids=range(17),
)  # fmt: skip
def test_what_is_refused(text: str, part: str) -> None:
    with pytest.raises(errors.SpecError) as caught:
        read(text)
    assert part in str(caught.value) and "'()'" not in str(caught.value)


@pytest.mark.parametrize(
    ("stop", "rules", "timeout"),
    [
        ("{'acc': 0.9, 'training_iteration': 5}", [{"metric": "acc", "above": 0.9}, {"step": 5}], None),
        ("{'training_iteration': args.steps, 'time_total_s': 60}", [{"step": 7}], 60),
        ("{'done': True}", [], None),
    ],
)
def test_what_ends_a_trial(loaded, stop: str, rules: list[dict[str, Any]], timeout: float | None) -> None:
    text = "parser.add_argument('--steps', type=int, default=7)\nargs = parser.parse_args()\ndef fit(config): ...\n"
    for call in (
        f"tune.run(fit, config=SPACE, metric='m', stop={stop})",
        f"tune.Tuner(fit, param_space=SPACE, run_config=tune.RunConfig(stop={stop}))",
    ):
        made = read(f"SPACE = {{'x': tune.uniform(0, 1)}}\n{text}{call}\n")
        assert made.job.get("stop", []) == rules and made.job.get("budget", {}).get("timeout") == timeout


@pytest.mark.parametrize(
    ("main", "call", "trials"),
    [
        ("main():", "5 if args.smoke_test else 50", 50),
        ("main():", "5 if not args.smoke_test else 50", 5),
        ("main(n, smoke=False):", "5 if smoke else 50", 50),
        ("main(samples, limit=2):", "samples", 9),
        ("main():", "args.num_samples", 30),
        ("main():", "int(30)", 30),
    ],
)
def test_values_that_depend_on_arguments_have_their_defaults(loaded, main: str, call: str, trials: int) -> None:
    text = (
        "parser.add_argument('--smoke-test', action='store_true')\nparser.add_argument('-n', '--num-samples', default=30)\n"
        f"args, _ = parser.parse_known_args()\ndef fit(config): ...\ndef {main}\n"
        f"    tune.run(fit, config={{'x': tune.uniform(0, 1)}}, metric='m', num_samples={call})\n"
        "if __name__ == '__main__':\n    main(9)\n"
    )
    made = read(text)
    assert loaded(made, search=text).trials == trials and not made.notes


def test_what_is_taken_of_two_values_is_told() -> None:
    text = (
        "def fit(config): ...\ntune.run(fit, config={'x': tune.uniform(0, 1)}, metric='m', num_samples=5 if f() else g())\n"
    )
    found = reasons(read(text))["num_samples"]
    assert "g() is taken" in found and "only running the file would show what g(…) is" in found


def test_a_comparison_with_the_default_of_an_argument_decides(loaded) -> None:
    text = (
        "parser.add_argument('--scheduler', default='ASHA')\nargs = parser.parse_args()\ndef fit(config): ...\n"
        "tune.run(fit, config={'x': tune.uniform(0, 1)}, metric='m', mode='max', stop={'training_iteration': 9},\n"
        "    scheduler=ASHAScheduler(grace_period=2) if args.scheduler == 'ASHA' else PopulationBasedTraining())\n"
    )
    imported = read(text)
    assert loaded(imported, search=text).pruner.name == "successive_halving"
    assert not any("is taken" in note.reason for note in imported.notes), imported.notes


@pytest.mark.parametrize("change", ["while big():\n    sizes.append(128)", "sizes += [128]", "sizes.extend(more())"])
def test_a_change_of_a_list_of_choices_is_told(change: str) -> None:
    text = (
        f"def fit(config): ...\nsizes = [64]\n{change}\n"
        "tune.run(fit, config={'x': tune.uniform(0, 1), 'b': tune.choice(sizes)}, metric='m', num_samples=3)\n"
    )
    assert "sizes is changed in line" in reasons(read(text))["config.b.categories"]


def test_a_name_that_is_assigned_again_stands_for_the_last_value(loaded) -> None:
    text = (
        "def fit(config): ...\nalgo = OptunaSearch(metric=['a', 'b'], mode=['min', 'max'])\n"
        "algo = ConcurrencyLimiter(algo, max_concurrent=4)\n"
        "tune.run(fit, config={'x': tune.uniform(0, 1)}, search_alg=algo)\n"
    )
    job = loaded(read(text), search=text)
    assert (job.sampler.name, job.parallel) == ("tpe", 4)
    assert [(one.metric, one.direction) for one in job.objectives] == [("a", "minimize"), ("b", "maximize")]


def test_a_number_that_the_file_adds_to_is_unknown() -> None:
    text = "def fit(config): ...\nn = 3\nn += 1\ntune.run(fit, config={'x': tune.uniform(0, 1), 'y': n}, metric='m')\n"
    assert "y" not in (read(text).job.get("params") or {})


def test_a_function_that_draws_for_optuna_is_the_space(loaded) -> None:
    text = (
        "def fit(config): ...\ndef define(trial):\n    trial.suggest_float('x', 0, 1)\n"
        "tune.run(fit, metric='m', search_alg=OptunaSearch(space=define))\n"
    )
    assert loaded(read(text), search=text).space == "search:define"


SEARCH = "tune.Tuner(fit, param_space={}).fit()"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (FILE, True),
        (f"from ray import tune\nif __name__ == '__main__':\n    {SEARCH}\n", True),
        ("from ray.tune import run\nrun(fit, config={})\n", True),
        ("from ray import tune as t\nt.run(fit, config={})\n", True),
        ("import ray, keras_tuner\nkeras_tuner.Tuner(fit)\n", False),
        ("import ray\nfrom keras_tuner import Tuner\nTuner(fit)\n", False),
        (f"from ray import tune\ndef search():\n    {SEARCH}\n", False),
    ],
)
def test_a_script_that_starts_a_search_is_one(text: str, wanted: bool) -> None:
    assert ray.is_search(text) is wanted


@pytest.mark.parametrize("call", ["tune.report({'a': 1}, checkpoint=None)", "tune.get_checkpoint()"])
def test_a_trainable_that_saves_goes_on_from_its_checkpoint(loaded, call: str) -> None:
    text = FILE.replace("def fit(config):", f"def fit(config):\n    {call}")
    made = read(text)
    assert loaded(made, search=text).checkpoints.grace == 30
    assert any("saves checkpoints" in note.reason for note in made.notes)
    assert "checkpoints" not in read().job


PARTIAL = """
import os
from functools import partial
from ray import tune
BASE = 3
def fit(config, folder=None, sizes=(), scale=1): return {"loss": config["x"] * scale, "folder": folder, "sizes": sizes}
def main(samples=4, scale=2):
    folder = os.path.abspath("data")
    sizes = [BASE, len(folder)]
    bound = partial(fit, folder=folder, sizes=sizes, scale=scale)
    tune.run(tune.with_resources(bound, {"cpu": 2}), config={"x": tune.uniform(0, 1)}, num_samples=samples, metric="loss")
if __name__ == "__main__":
    main(scale=5)
"""


@pytest.mark.services
def test_a_partial_is_a_module_with_its_arguments(loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = read(PARTIAL, "bound_search.py")
    assert (imported.job["entrypoint"], imported.job["trials"]) == ("ray:bound_search_trainable:trainable", 4)
    for name, text in {**imported.files, "bound_search.py": PARTIAL}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    trainable = importlib.import_module("bound_search_trainable").trainable
    folder = str(Path("data").absolute())
    assert trainable({"x": 2}) == {"loss": 10, "folder": folder, "sizes": [3, len(folder)]}


@pytest.mark.services
def test_arguments_of_with_parameters_are_bound_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PARTIAL.replace("partial(fit,", "tune.with_parameters(fit,").replace("from functools import partial\n", "")
    imported = read(text, "with_search.py")
    for name, content in {**imported.files, "with_search.py": text}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("with_search_trainable").trainable({"x": 2})["loss"] == 10
    no_arguments = text.replace(
        "tune.with_parameters(fit, folder=folder, sizes=sizes, scale=scale)", "tune.with_parameters(fit)"
    )
    assert importlib.import_module("with_search_trainable").trainable.func.__name__ == "fit"
    assert read(no_arguments, "with_search.py").job["entrypoint"] == "ray:with_search_trainable:trainable"
    with pytest.raises(errors.SpecError, match=r"binds values that only running the file would show"):
        read(text.replace("sizes=sizes", "sizes=load(input())"))


@pytest.mark.parametrize(
    ("rest", "objective"),
    [
        ("best = result.get_best_trial('val_acc', 'max', 'last')", ("val_acc", "maximize")),
        ("print(result.get_best_result(metric='err', mode='min').config)", ("err", "minimize")),
        ("def g(c): tune.report({'step': 1, 'val_loss': 2, 'train_loss': 1})", ("val_loss", "minimize")),
        ("def g(c): session.report(epoch=1, mean_accuracy=2)", ("mean_accuracy", "maximize")),
        ("", ("loss", "minimize")),
    ],
)
def test_a_metric_that_the_search_does_not_name_is_that_of_the_rest_of_the_file(
    rest: str, objective: tuple[str, str]
) -> None:
    imported = read(f"def f(c): ...\n{rest}\nresult = tune.run(f, config={{'x': tune.uniform(0, 1)}})\n")
    assert tuple(imported.job["objective"].values()) == objective
    assert "names no metric" in str(reasons(imported))


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ("2 ** np.random.randint(2, 5)", {"type": "categorical", "choices": [4, 8, 16]}),
        ("int(random.choice([1, 2]) * 8)", {"type": "categorical", "choices": [8, 16]}),
        ("random.randint(1, 3)", {"type": "categorical", "choices": [1, 2, 3]}),
        ("10 ** np.random.uniform(-3, -1)", {"type": "float", "low": 0.001, "high": 0.1, "log": True}),
        ("np.random.uniform(0.1, 0.5)", {"type": "float", "low": 0.1, "high": 0.5}),
        ("np.random.randint(0, 100)", {"type": "categorical", "choices": list(range(100))}),
        ("np.random.randint(10, 1000)", None),
        ("np.random.randint(5, 5)", None),
        ("np.random.randint(1, high=9)", None),
        ("np.random.randint(2, 9, size=3)", None),
        ("np.random.randint(1e1, 1e2)", None),
        ("np.random.uniform(0.1, high=0.9)", None),
        ("np.random.uniform(0.5)", None),
        ("spec.config.y * 2", None),
        ("np.random.uniform(0, 1) + np.random.uniform(0, 1)", None),
        ("9 ** np.random.uniform(1, 10**9)", None),
    ],
)
def test_a_random_number_of_sample_from_is_a_parameter(body: str, parameter: dict[str, Any] | None) -> None:
    config = f"{{'y': tune.uniform(0, 1), 'x': tune.sample_from(lambda spec: {body})}}"
    imported = read(f"def f(c): ...\ntune.run(f, config={config}, metric='m')\n")
    assert imported.job["space"].get("x") == parameter
    assert ("a function of the other values cannot be read" in str(reasons(imported))) == (parameter is None)


def test_a_registered_trainable_is_the_entrypoint() -> None:
    text = "def fit(config): ...\ntune.register_trainable('my_fit', fit)\n"
    imported = read(f"{text}tune.run('my_fit', config={{'x': tune.uniform(0, 1)}}, metric='m')\n")
    assert imported.job["entrypoint"] == "ray:search:fit" and not reasons(imported)


def test_the_function_of_a_trainer_gets_its_part_of_the_space() -> None:
    text = """
        def fit(config): ...
        trainer = TorchTrainer(fit, train_loop_config={"epochs": 3, "lr": 0.1}, scaling_config=ScalingConfig(num_workers=4))
        space = {"train_loop_config": {"lr": tune.loguniform(1e-4, 1e-1)}}
        tune.Tuner(trainer, param_space=space, tune_config=TuneConfig(metric="m")).fit()
    """
    imported = read(textwrap.dedent(text))
    assert (imported.job["entrypoint"], imported.job["params"]) == ("ray:search:fit", {"epochs": 3})
    assert set(imported.job["space"]) == {"lr"} and "runs in one process" in str(reasons(imported))


def test_resources_leave_no_remark() -> None:
    config = "config={'x': tune.uniform(0, 1)}, metric='m'"
    imported = read(f"def f(c): ...\ntune.run(tune.with_resources(f, {{'cpu': 2}}), {config})\n")
    assert imported.job["resources"] == {"cpus": 2} and not reasons(imported)


PARTIAL_HEAD = """
import argparse
from functools import partial
from ray import tune
n = 5
class C: ...
def fit(config, d=None): ...
def make_parser(): ...
def other():
    local = 9
"""
PARSER = """
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", default="/d")
    parser.add_argument("--name")
"""
MAIN = '\nif __name__ == "__main__":\n'
SEARCH = '    tune.run(partial(fit, d={}), config={{"x": tune.uniform(0, 1)}}, metric="m")\n'


def partial_module(text: str) -> str:
    """Return the module of the trainable in a file with a search below PARTIAL_HEAD."""
    (module,) = read(PARTIAL_HEAD + text).files.values()
    return module


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (MAIN + PARSER + "    args = parser.parse_args()\n" + SEARCH.format("args.data_dir"), "'/d'"),
        ("def main(args):\n" + SEARCH.format("args.data_dir") + MAIN + PARSER + "    main(parser.parse_args())", "'/d'"),
        ("def main(local):\n" + SEARCH.format("local") + MAIN + "    main(3)", "3"),
        ("def main():\n    n = 7\n" + SEARCH.format("n") + MAIN + "    main()", "7"),
        ("def main():\n" + SEARCH.format("n") + MAIN + "    main()", "script.n"),
        ("def main():\n    def f():\n        n = 9\n" + SEARCH.format("n") + MAIN + "    main()", "script.n"),
        ("def main():\n    n = 7\n    class C:\n        n = 9\n" + SEARCH.format("n") + MAIN + "    main()", "7"),
        ("def main():\n    k = 1\n    k = k + 1\n" + SEARCH.format("k") + MAIN + "    main()", "1 + 1"),
        ("def main():\n    k = {'a': 1}\n    k['b'] = 2\n" + SEARCH.format("k") + MAIN + "    main()", "{'a': 1, 'b': 2}"),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_partial_gets_the_values_of_local_names(text: str, value: str) -> None:
    assert f"trainable = partial(script.fit, d={value})\n" in partial_module(text)


@pytest.mark.parametrize(
    "body",
    [
        PARSER + "    args = parser.parse_args()\n" + SEARCH.format("args.name"),
        PARSER + "    args = parser.parse_args()\n" + SEARCH.format("vars(args)"),
        PARSER + "    args = parser.parse_args()\n    args.data_dir = C()\n" + SEARCH.format("args.data_dir"),
        "    k = make_parser().parse_args()\n" + SEARCH.format("k"),
        SEARCH.format("n") + "def change():\n    global n\n    n = 6\n",
        "    k = 1\n    k += 3\n" + SEARCH.format("k"),
        "    k = C()\n    k.width = 4\n" + SEARCH.format("k"),
        "    k = C()\n    k['width'] = 4\n" + SEARCH.format("k"),
        "    k = C()\n    k.load(4)\n" + SEARCH.format("k"),
        "    k = 0\n    for k in range(3): ...\n" + SEARCH.format("k"),
        "    k = 0\n    with open('f') as k: ...\n" + SEARCH.format("k"),
        "    k = 0\n    def f():\n        nonlocal k\n        k = 1\n" + SEARCH.format("k"),
        "    global n\n    n = 6\n" + SEARCH.format("n"),
        SEARCH.format("[n for n in range(3)]"),
        SEARCH.format("lambda n: n"),
        SEARCH.format("local"),
        "    k = k0\n    k0 = k\n" + SEARCH.format("k"),
        "    k = 7\n    def f():\n        k = 9\n    " + SEARCH.format("k"),
    ],
    ids=range(18),
)
def test_a_partial_with_values_that_are_not_clear_is_refused(body: str) -> None:
    with pytest.raises(errors.SpecError, match="binds values that only running the file would show"):
        partial_module(f"def main():\n{body}{MAIN}    main()")


def test_the_entrypoint_of_a_trainable_without_a_name_is_a_placeholder() -> None:
    text = "def main():\n    tune.run(lambda config: 1, config={'x': tune.uniform(0, 1)}, metric='m')\n"
    assert read(text).job["entrypoint"] == "ray:search:FUNCTION"
