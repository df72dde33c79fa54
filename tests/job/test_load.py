"""Loading a job file: every issue with its field, source and line.

Does not check which layer wins (test_layers.py), Optuna's own behaviour, data files (test_inputs.py) or the JSON schema
(test_schema.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.job.conftest import GOOD, found

from trialplane.job import document, kinds, load


def test_a_good_job_loads(folder: Path) -> None:
    job = load.load_job(folder)
    assert (job.name, job.trials, job.required_metrics) == ("demo", 24, ("f1",))
    assert (job.budget.time, job.budget.timeout) == (5400.0, 90.0)
    assert job.sampler.name == "tpe" and job.sampler.options == {"n_startup_trials": 8}
    assert job.params["epochs"] == 3 and job.pruner.name == "median"
    assert kinds.read(job.model_dump_json()) == job


def test_an_interval_of_system_metrics_may_be_true_or_false(folder: Path) -> None:
    intervals = []
    for text in ("true", "false", "1m", "5"):
        (folder / "job.yaml").write_text(f"{GOOD}system_metrics: {text}\n")
        intervals.append(load.load_job(folder).system_metrics)
    assert intervals == [10.0, None, 60.0, 5.0]


# field, replaced text, new text, line, part of the message
_FAULTS = [
    ("space.lr.low", "low: 1e-5", "low: 1.0", 5, "over high (0.01)"),
    ("space.lr.low", "low: 1e-5", "low: 0", 5, "must be over 0 with log"),
    ("space.lr.step", "log: true", "log: true, step: 0.1", 5, "together with log"),
    ("space.lr.low", "low: 1e-5", "low: .nan", 5, "number"),
    ("space.lr.low", "low: 1e-5", "low: a", 5, "must be a number, not 'a'"),
    ("space.lr.low", "low: 1e-5, ", "", 5, "is missing"),
    ("space.lr.hgh", "high: 1e-2", "hgh: 1", 5, "did you mean high"),
    ("space.layers.step", "high: 4", "high: 4, step: 0", 6, "must be over 0"),
    ("space.layers.low", "low: 1, high: 4", "low: 1.5, high: 4", 6, "must be a whole number"),
    ("space.layers", "type: int, low: 1, high: 4", "low: 1", 6, "has no type"),
    ("space.layers", "type: int, low: 1, high: 4", "type: inte", 6, "did you mean int"),
    ("space.layers", "{type: int, low: 1, high: 4}", "4", 6, "must be a mapping"),
    ("space.lay..ers", "layers:", "lay..ers:", 6, "name is letters"),
    ("space.model.choices", "[bert, roberta]", "[]", 7, "is empty"),
    ("space.model.choices.2", "[bert, roberta]", "[bert, roberta, bert]", 7, "listed twice"),
    ("space.model.choices", "choices: [bert, roberta]", "choices: bert", 7, "must be a list"),
    ("space.heads.when.modle", "{model: bert}", "{modle: bert}", 8, "did you mean model"),
    ("space.heads.when.model", "{model: bert}", "{model: [bert, xlm]}", 8, "model is never 'xlm'"),
    ("space.heads.when", "when: {model: bert}", "when: {heads: 2}", 8, "heads → heads"),
    ("objective.direction", "direction: maximize", "direction: max", 9, "'minimize' or 'maximize'"),
    ("objective.direction", ", direction: maximize", "", 9, "is missing"),
    ("objectives", "objective: {metric: f1, direction: maximize}\n", "", 1, "write objective"),
    ("kind", "kind: hpo", "kind: hpx", 1, "is not 'hpo'"),
    ("sampler.n_startup_trial", "n_startup_trials: 8", "n_startup_trial: 8", 10, "did you mean n_startup_trials"),
    ("sampler.n_startup_trials", "n_startup_trials: 8", "n_startup_trials: -1", 10, "at least 0"),
    ("sampler.n_startup_trials", "n_startup_trials: 8", "n_startup_trials: many", 10, "must be a whole number"),
    ("sampler.seed", "n_startup_trials: 8", "seed: 8", 10, "set by the platform from the job's `seed`"),
    ("sampler.constraints_func", "n_startup_trials: 8", "constraints_func: a:b", 10, "job's `constraints`"),
    ("sampler.name", "name: tpe", "name: tbe", 10, "did you mean tpe"),
    ("sampler.gamma", "n_startup_trials: 8", "gamma: 3", 10, "module:function"),
    ("sampler.gamma", "n_startup_trials: 8", "gamma: train:gama", 10, "train.py defines no gama"),
    ("sampler.group", "n_startup_trials: 8", "group: true, multivariate: false", 10, "together with multivariate"),
    ("sampler.crossover.name", "name: tpe, n_startup_trials: 8", "name: nsgaii, crossover: sbxx", 10, "mean sbx"),
    ("sampler.crossover.eta", "name: tpe, n_startup_trials: 8", "name: nsgaii, crossover: {name: sbx, eta: a}", 10, ""),
    (
        "sampler.independent_sampler.name",
        "name: tpe, n_startup_trials: 8",
        "name: gp, independent_sampler: rand",
        10,
        "",
    ),
    ("sampler.x0.lrr", "name: tpe, n_startup_trials: 8", "name: cmaes, x0: {lrr: 1}", 10, "did you mean lr"),
    ("sampler", "sampler: {name: tpe, n_startup_trials: 8}", "sampler: 3", 10, "must be a mapping"),
    ("pruner.name", "pruner: median", "pruner: medain", 11, "did you mean median"),
    ("pruner.percentile", "pruner: median", "pruner: percentile", 11, "is missing"),
    (
        "pruner.wrapped_pruner.name",
        "pruner: median",
        "pruner: {name: patient, patience: 2, wrapped_pruner: x}",
        11,
        "not a pruner",
    ),
    ("pruner.lower", "pruner: median", "pruner: threshold", 11, "lower or upper"),
    ("pruner.bootstrap_count", "pruner: median", "pruner: {name: hyperband, bootstrap_count: 2}", 11, "max_resource"),
    ("budget.time", "time: 1h30m", "time: 1 hour", 12, "is not a duration"),
    ("budget.timeout", "timeout: 90", "timeout: 0s", 12, "must be over 0"),
    ("enqueue.0.modle", "lr: 0.001, model: bert", "modle: bert", 14, "did you mean model"),
    ("enqueue.0.lr", "lr: 0.001", "lr: 5", 14, "lr is a number from 1e-05 to 0.01"),
    ("enqueue.0.heads", "lr: 0.001, model: bert", "heads: 3", 14, "in steps of 2"),
    ("enqueue.0.heads", "lr: 0.001, model: bert", "heads: 4, model: roberta", 14, "does not exist with model"),
    ("trials", "trials: 24", "trials: 0", 15, "must be over 0"),
    ("trials", "trials: 24", "trials: lots", 15, "must be a whole number, not 'lots'"),
    ("trails", "trials: 24", "trails: 24", 15, "did you mean trials"),
    ("name", "trials: 24", "name: other", 15, "the job's folder"),
    ("profiles.max.trails", "{trials: 800", "{trails: 800", 17, "did you mean trials"),
    ("profiles.max.trials", "{trials: 800", "{trials: -1", 17, "must be over 0"),
    ("profiles.max.sampler.n_startup_trial", "{n_startup_trials: 40}", "{n_startup_trial: 4}", 17, "n_startup_trials"),
    (
        "profiles.other",
        "other: {sampler: random, space: {lr: {type: int, low: 1, high: 2}}, enqueue: []}",
        "other: 3",
        18,
        "",
    ),
    ("environment.HPO_EPOCHS", "params.epochs", "params.epoch", 3, "did you mean epochs"),
    ("environment.HPO_EPOCHS", "params.epochs", "trails", 3, "did you mean trials"),
    ("environment.HPO_EPOCHS", "params.epochs", "objectives.0.metric.0", 3, "objectives.0.metric has no fields"),
    ("environment.HPO_MODEL_CHOICES", "space.model.choices", "space.model.low", 3, "'low' is unknown"),
    ("inputs.dta", "trials: 24", "inputs: {dta: {columns: [text]}}", 15, "did you mean data"),
    ("inputs.data.colums", "trials: 24", "inputs: {data: {colums: [text]}}", 15, "did you mean columns"),
    ("constraints.0", "trials: 24", "constraints: [{metric: size}]", 15, "needs min or max"),
    ("constraints.0.min", "trials: 24", "constraints: [{metric: size, min: 2, max: 1}]", 15, "over max"),
    ("constraints.1.metric", "trials: 24", "constraints: [{metric: a, min: 2}, {metric: a, max: 3}]", 15, "twice"),
    ("resources.memory", "trials: 24", "resources: {memory: 2 gigs}", 15, "amount of memory"),
    ("resources.gpu", "trials: 24", "resources: {gpu: 1}", 15, "did you mean gpus"),
    ("retries.lost", "trials: 24", "retries: {lost: -1}", 15, "at least 0"),
    ("resources.cpus", "trials: 24", "resources: {cpus: 0}", 15, "is not an amount of CPU; write 2, 0.5 or 500m"),
    ("resources.gpus", "trials: 24", "resources: {gpus: -1}", 15, "at least 0"),
    ("system_metrics", "kind: hpo", "kind: hpo\nsystem_metrics: 10 ms", 2, "is not a duration"),
    ("budget.max_failed", "time: 1h30m", "max_failed: -1", 12, "at least 0"),
    ("parallel", "trials: 24", "parallel: 0", 15, "over 0"),
    ("parallel", "trials: 24", "parallel: true", 15, "must be a whole number, not True"),
    ("seed", "trials: 24", "seed: -1", 15, "at least 0"),
    ("objective", "trials: 24", "objectives: [{metric: f1, direction: maximize}]", 9, "stands beside"),
    ("entrypoint", "trials: 24", "entrypoint: train:rnu", 15, "defines no rnu; did you mean run"),
    ("entrypoint", "trials: 24", "entrypoint: trian:run", 15, "did you mean train"),
    ("entrypoint", "trials: 24", "entrypoint: train", 15, "must be module:function"),
    ("trials", "trials: 24", "trials: 20\ntrials: 30", 16, "in lines 15 and 16"),
    ("space.lr", "  layers: {type: int, low: 1, high: 4}", "  lr: {type: int}", 6, "in lines 5 and 6"),
    ("params.a,b", "epochs: 3", "epochs: 3, 'a,b': 1", 2, "is not a valid MLflow name"),
    ("params.a//b", "epochs: 3", "epochs: 3, a//b: 1", 2, "may not be empty"),
    (f"space.{'x' * 251}", "layers:", f"{'x' * 251}:", 6, "250 at most"),
    ("objective.metric", "metric: f1", "metric: 'f1 (dev)'", 9, "is not a valid MLflow name"),
    ("objective.metric", "metric: f1", "metric: /f1", 9, "begin or end with /"),
    ("constraints.0.metric", "trials: 24", "constraints: [{metric: 'a=b', min: 2}]", 15, "is not a valid MLflow name"),
    ("params.epochs.when", "epochs: 3", "epochs: {when: .inf}", 2, "inf"),
    ("cluster.toleration", "trials: 24", "cluster: {toleration: []}", 15, "did you mean tolerations"),
    ("cluster.controller.cpu", "trials: 24", "cluster: {controller: {cpu: 1}}", 15, "did you mean cpus"),
    ("cluster.controller.cpus", "trials: 24", "cluster: {controller: {cpus: 0}}", 15, "write 2, 0.5 or 500m"),
    (
        "cluster.tolerations.0.value",
        "trials: 24",
        "cluster: {tolerations: [{key: a, operator: Exists, value: b}]}",
        15,
        "Exists",
    ),
    ("cluster.tolerations.0.key", "trials: 24", "cluster: {tolerations: [{value: b}]}", 15, "is missing"),
    (
        "cluster.tolerations.0.tolerationSeconds",
        "trials: 24",
        "cluster: {tolerations: [{key: a, tolerationSeconds: 3}]}",
        15,
        "NoExecute",
    ),
    (
        "cluster.tolerations.0.effects",
        "trials: 24",
        "cluster: {tolerations: [{key: a, effects: x}]}",
        15,
        "did you mean effect",
    ),
    ("cluster.topology", "trials: 24", "cluster: {topology: {}}", 15, "needs spread or pack"),
    ("cluster.topology.pack", "trials: 24", "cluster: {topology: {spread: zone, pack: zone}}", 15, "label of spread too"),
    ("cluster.node_selector.gpu", "trials: 24", "cluster: {node_selector: {gpu: true}}", 15, "must be a string, not True"),
    ("cluster.node_selector.a b", "trials: 24", "cluster: {node_selector: {a b: c}}", 15, "write name or domain.org/name"),
    (
        "cluster.labels.app.kubernetes.io/name",
        "trials: 24",
        "cluster: {labels: {app.kubernetes.io/name: x}}",
        15,
        "set by the platform",
    ),
    ("cluster.autoscale", "trials: 24", "cluster: {autoscale: 'yes'}", 15, "must be true or false"),
    ("cluster.image", "trials: 24", "cluster: {image: 'a b'}", 15, "write name:tag"),
    ("cluster.queue", "trials: 24", "cluster: {queue: Team A}", 15, "lower-case letters"),
    ("cluster.gpu_resource", "trials: 24", "cluster: {gpu_resource: gpu}", 15, "write nvidia.com/gpu"),
    ("cluster.pending_deadline", "trials: 24", "cluster: {pending_deadline: soon}", 15, "not a duration"),
]


@pytest.mark.parametrize(("field", "old", "new", "line", "part"), _FAULTS, ids=[f"{f[0]}-{f[2][:30]}" for f in _FAULTS])
def test_one_fault_is_one_issue(folder: Path, field: str, old: str, new: str, line: int, part: str) -> None:
    assert GOOD.count(old) >= 1
    (folder / "job.yaml").write_text(GOOD.replace(old, new, 1))
    issues = found(folder)
    match = [one for one in issues if one[0] == field and part in one[3]]
    assert match, issues
    assert match[0][1:3] == ("jobs/demo/job.yaml", line)
    # A profile that builds on what is wrong may be wrong by that.
    assert len([one for one in issues if one[0] == field or not one[0].startswith("profiles.")]) == 1, issues


_WHOLE = [
    ("sampler: grid", "space.lr.step", "needs a step or choices"),
    (
        "sampler: cmaes\nobjectives: [{metric: a, direction: minimize}, {metric: b, direction: minimize}]",
        "sampler",
        "2",
    ),
    ("pruner: median\nobjectives: [{metric: a, direction: minimize}, {metric: b, direction: minimize}]", "pruner", "2"),
    (
        "budget: {target: 1}\nobjectives: [{metric: a, direction: minimize}, {metric: b, direction: minimize}]",
        "budget.target",
        "one objective",
    ),
    (
        "objectives: [{metric: a, direction: minimize}, {metric: a, direction: maximize}]",
        "objectives.1.metric",
        "twice",
    ),
    (
        "sampler: {name: cmaes, consider_pruned_trials: true}\npruner: {name: median, metric: loss}",
        "sampler.consider_pruned_trials",
        "takes the last report of a pruned trial for its f1, and the pruner watches loss",
    ),
    (
        "sampler: bruteforce\nspace: {a: {type: int, low: 1, high: 20}}\nenqueue: [{a: 1}, {a: 2}, {a: 1}]",
        "enqueue.2",
        "repeats enqueue.0, and bruteforce tries every point once",
    ),
    ("objectives: []", "objectives", "needs at least 1"),
    ("space: train:defin", "space", "did you mean define"),
    ("space: 'train define'", "space", "module:function"),
    ("space: train:define\nsampler: grid", "sampler", "in code"),
]


@pytest.mark.parametrize(("text", "field", "part"), _WHOLE)
def test_faults_between_fields(folder: Path, text: str, field: str, part: str) -> None:
    fields = {
        "kind": "kind: hpo",
        "space": "space: {lr: {type: float, low: 0, high: 1}}",
        "objectives": "objective: {metric: f1, direction: maximize}",
    }
    for line in text.splitlines():
        fields[line.split(":")[0]] = line
    (folder / "job.yaml").write_text("\n".join(fields.values()))
    issues = found(folder)
    assert [one[0] for one in issues] == [field]
    assert part in issues[0][3]


@pytest.mark.parametrize("sampler", ["grid", "bruteforce"])
def test_too_few_points(folder: Path, sampler: str) -> None:
    space = "space: {a: {type: int, low: 1, high: 3}, b: {type: categorical, choices: [x, y]}}"
    head = f"kind: hpo\n{space}\nobjective: {{metric: f1, direction: maximize}}\nsampler: {sampler}\n"
    (folder / "job.yaml").write_text(head + "trials: 7")
    assert found(folder) == [
        ("trials", "jobs/demo/job.yaml", 5, "7 is more than the space has points (6); write trials: 6 or less")
    ]
    (folder / "job.yaml").write_text(head + "trials: 6")
    assert load.load_job(folder).trials == 6


def test_brute_force_counts_along_conditions(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "kind: hpo\nsampler: bruteforce\nobjective: {metric: f1, direction: maximize}\ntrials: 5\nspace:\n"
        "  m: {type: categorical, choices: [x, y]}\n  a: {type: int, low: 1, high: 3, when: {m: x}}\n"
    )
    assert "points (4)" in found(folder)[0][3]


def test_all_complaints_at_once_sorted_by_line(folder: Path) -> None:
    text = GOOD.replace("low: 1e-5", "low: 1.0").replace("pruner: median", "pruner: medain")
    text = text.replace("model: bert}\ntrials: 24", "modle: bert}\ntrails: 24").replace("trials: 800", "trials: 0")
    (folder / "job.yaml").write_text(text)
    issues = found(folder, sets=["parallel=0", "nope"], profile="mxa")
    assert [(field, line) for field, _, line, _ in issues] == [
        ("space.lr.low", 5),
        ("pruner.name", 11),
        ("enqueue.0.modle", 14),
        ("trails", 15),
        ("profiles.max.trials", 17),
        ("profiles", 0),
        ("--set", 0),
        ("parallel", 0),
    ]


def test_unreadable_files(folder: Path) -> None:
    file = folder / "job.yaml"
    for text, part, line in [
        ("", "is empty; `platform init` writes one that runs", 0),
        ("# nothing\n", "is empty", 0),
        ("- a\n", "holds a list", 1),
        ("word", "a single value", 1),
        ("kind: hpo\nspace: {a: [\n", "is not YAML", 3),
        ("kind: hpo\n\ttrials: 3\n", "is not YAML", 2),
        ("kind: hpo\n---\nkind: hpo\n", "is not YAML", 2),
        ("kind: !!python/object:os.system x\n", "cannot be read", 1),
        ("a: &a [*a]\n", "contains it", 1),
        ("kind: \x00\n", "is not YAML", 0),
    ]:
        file.write_text(text)
        [(_, source, at, message)] = found(folder)
        assert (source, at) == ("jobs/demo/job.yaml", line), text
        assert part in message
    file.write_bytes(b"kind: \xff")
    assert "UTF-8" in found(folder)[0][3]
    file.unlink()
    assert "does not exist" in found(folder)[0][3]
    file.mkdir()
    assert "cannot be read" in found(folder)[0][3]


def test_an_alias_bomb_is_refused(folder: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    (folder / "job.yaml").write_text("\n".join(rows))
    assert "has more than 100,000 values" in found(folder)[0][3]


def test_more_than_a_job_may_hold_is_refused_before_it_is_built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What 16 MiB of such a list would take to build: a minute, and 4 GB."""
    monkeypatch.setattr(document, "_Builder", lambda source: pytest.fail("it was built"))
    (folder / "job.yaml").write_text(f"a: 1\nparams: [{'1,' * 250_000}]")
    ((*where, message),) = found(folder)
    assert where == ["file", "jobs/demo/job.yaml", 2]
    assert message.startswith("has more than 100,000 values")


def test_yaml_is_read_as_its_newer_version(folder: Path) -> None:
    scalars = "params: {a: 1e-5, b: on, c: 2024-01-01, d: 012, e: 1:30, f: ~, g: 0x10, h: .5, i: 'true', j: True}"
    (folder / "job.yaml").write_text(GOOD.replace("params: {epochs: 3,", scalars[:-1] + ", epochs: 3,", 1))
    params = load.load_job(folder).params
    read = [params[key] for key in "abcdefghij"]
    assert read == [1e-5, "on", "2024-01-01", 12, "1:30", None, 16, 0.5, "true", True]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("-0x1f", "-0x1f"),
        (".5e3", 500.0),
        ("2024-01-01 10:00:00", "2024-01-01 10:00:00"),
        ("%YAML 1.1\n--- on", "on"),
        ("{k:\t1}", {"k": 1}),
        ("6\t# of them", 6),
    ],
)
def test_a_value_is_what_it_looks_like(text: str, value: Any) -> None:
    assert document.scalar(text, "--set") == value


def test_anchors_and_merge_keys(folder: Path) -> None:
    text = GOOD.replace(
        "layers: {type: int, low: 1, high: 4}", "layers: &l {type: int, low: 1, high: 4}\n  b: {<<: *l, high: 9}"
    )
    (folder / "job.yaml").write_text(text)
    assert load.load_job(folder).search.parameters["b"].high == 9  # type: ignore[union-attr]


def test_lines_of_merged_fields(folder: Path) -> None:
    more = "  max: &max\n    trials: 0\n    parallel: 0\n    enqueue: [{lr: 1}]\n"
    more += "  super:\n    trials: -1\n    <<: *max\n    enqueue:\n\n    - {lr: 9}\n"
    (folder / "job.yaml").write_text(GOOD[: GOOD.index("  max:")] + more)
    assert [(field, line) for field, _, line, _ in found(folder)] == [
        ("profiles.max.trials", 18),
        ("profiles.max.parallel", 19),
        ("profiles.super.parallel", 19),
        ("profiles.max.enqueue.0.lr", 20),
        ("profiles.super.trials", 22),
        ("profiles.super.enqueue.0.lr", 26),
    ]


def test_the_code_must_parse(folder: Path) -> None:
    (folder / "train.py").write_text("def run(ctx):\n    return (\n\nx = = 2\n")
    [(field, source, line, message)] = found(folder)
    assert field == "train" and source.endswith("train.py") and line > 0 and "is not Python" in message


@pytest.mark.parametrize(
    "code",
    [
        "from other import run",
        "run = None",
        "from other import *",
        "if True:\n    def run(ctx): ...",
        "class run: ...",
        "for run in [print]: ...",
        "while True:\n    import run\n    break",
        "with make() as run: ...",
        "match make():\n    case [run]: ...",
        "match make():\n    case {'a': 1, **run}: ...",
        "print(run := make())",
    ],
)
def test_the_entrypoint_may_come_from_elsewhere(folder: Path, code: str) -> None:
    (folder / "train.py").write_text(code)
    assert load.load_job(folder).entrypoint == "train:run"


@pytest.mark.parametrize(
    "code",
    [
        "if True:\n    def make():\n        run = 1",
        "with make():\n    class Make:\n        def run(ctx): ...",
        "made = [run for run in make()]",
        "try:\n    make()\nexcept ValueError as run: ...",
    ],
)
def test_the_names_of_a_function_are_not_the_modules(folder: Path, code: str) -> None:
    (folder / "train.py").write_text(code)
    assert [message.partition(";")[0] for _, _, _, message in found(folder)] == ["train.py defines no run"]


@pytest.mark.parametrize("kind", ["[collect]", "{a: 1}", "3", "null", "'hpo '"])
def test_a_kind_that_is_none_is_the_only_issue_about_it(folder: Path, kind: str) -> None:
    """Whatever YAML it is, and whatever of another kind stands in the file."""
    text = GOOD.replace("kind: hpo", f"kind: {kind}\ncollect: {{units: 3}}\nresume: a-1")
    (folder / "job.yaml").write_text(text)
    assert [(field, line) for field, _, line, _ in found(folder)] == [("kind", 1)]
    assert [(field, line) for field, _, line, _ in found(folder, kind="hpo")] == [("kind", 1)]
