"""Scripts and commands in a job file: their short forms, and each mistake as an issue with its line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from tests.job.conftest import found

from trialplane import errors
from trialplane.job import document, kinds, load, schema
from trialplane.job.kinds import program

BASE = """\
kind: hpo
space:
  lr: {type: float, low: 1e-5, high: 1e-2, log: true}
objective: {metric: f1, direction: maximize}
"""


@pytest.fixture
def job(folder: Path) -> Path:
    (folder / "go.sh").write_text("#!/bin/sh\n")
    (folder / "train.py").write_text(f"import argparse\n{(folder / 'train.py').read_text()}")
    (folder / "tools").mkdir()
    (folder / "conf").mkdir()
    (folder / "conf" / "params.yaml").write_text("lr: 0.1\n")
    (folder / "conf" / "bad.yaml").write_text("lr: [\n")
    (folder / "conf" / "words.txt").write_text("lr 0.1\n")
    (folder / "tools" / "fit.py").write_text("print('f1=0.5')\n")
    return folder


def write(folder: Path, text: str) -> None:
    (folder / "job.yaml").write_text(BASE + text)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("script: train.py\n", ("{flags}",)),
        ("script: ./tools/fit.py\narguments: flags\n", ("{flags}",)),
        ("script: train.py\narguments: hydra\n", ("{hydra}",)),
        ("script: train.py\narguments: none\n", ()),
        ("script: train.py\narguments: conf/params.yaml\n", ()),
        ("script: train.py\narguments: {items: flags, file: ./conf/params.yaml}\n", ("{flags}",)),
        ('script: train.py\narguments: [--lr, "{lr}", --k, 3]\n', ("--lr", "{lr}", "--k", "3")),
        ("script: train.py\narguments: {items: flags, booleans: value, lists: comma}\n", ("{flags}",)),
        ('command: [python, tools/fit.py, "{lr}", "{checkpoints}"]\n', ()),
        ('command: [python]\narguments: ["{flags}"]\n', ("{flags}",)),
    ],
)
def test_what_may_be_written(job: Path, text: str, items: tuple[str, ...]) -> None:
    write(job, text)
    made = load.load_job(job)
    assert isinstance(made, kinds.Study)
    runs = program.from_job(made)
    assert runs is not None and runs.arguments == items
    sources = ["stdout", "mlflow"] if runs.script else ["stdout"]
    assert [one.source for one in runs.metrics] == sources and runs.cwd == "code"
    assert kinds.read(made.model_dump_json()) == made
    assert made.roles()[0].program == runs
    jsonschema.validate(document.read(job / "job.yaml").data, schema.json_schema())


def test_a_circle_of_conditions_beside_a_script_is_an_issue(job: Path) -> None:
    circle = "  a: {type: int, low: 1, high: 2, when: {b: 1}}\n  b: {type: int, low: 1, high: 2, when: {a: 1}}\n"
    (job / "job.yaml").write_text(BASE.replace("objective", f"{circle}objective") + "script: train.py\n")
    assert [message for *_, message in found(job)] == ["the conditions go round in a circle: a → b → a"]


def test_sources_of_metrics(job: Path) -> None:
    text = "script: train.py\nmetrics: [stdout, {from: file, path: out/*.jsonl, step: it}, {from: tensorboard}]\n"
    write(job, text)
    made = load.load_job(job)
    assert isinstance(made, kinds.Study)
    assert [one.source for one in made.metrics or ()] == ["stdout", "file", "tensorboard"]
    assert kinds.read(made.model_dump_json()) == made
    assert json.loads(made.model_dump_json())["metrics"][1]["path"] == "out/*.jsonl"
    jsonschema.validate(document.read(job / "job.yaml").data, schema.json_schema())
    write(job, "script: train.py\nmetrics: {from: stdout, pattern: 'loss of (?P<loss>[0-9.]+)'}\n")
    assert load.load_job(job).metrics[0].pattern == ("loss of (?P<loss>[0-9.]+)",)
    write(job, "script: train.py\nmetrics: none\n")
    none = load.load_job(job)
    assert isinstance(none, kinds.Study) and none.metrics == ()


@pytest.mark.parametrize(
    ("text", "field", "line", "part"),
    [
        ("script: trane.py\n", "script", 5, "did you mean train.py?"),
        ("script: ../train.py\n", "script", 5, "no Python file of the job's folder"),
        ("script: /bin/train.py\n", "script", 5, "no Python file of the job's folder"),
        ("script: train.sh\n", "script", 5, "no Python file of the job's folder"),
        ("script: train.py\ncommand: [./go.sh]\n", "command", 6, "stands beside script (train.py)"),
        ("script: train.py\nentrypoint: train:run\n", "entrypoint", 6, "stands beside script; keep one of them"),
        ('script: train.py\narguments: [--lr, "{lrr}"]\n', "arguments.1", 6, "did you mean lr?"),
        ('script: train.py\narguments: [--lr, "{flags}x"]\n', "arguments.1", 6, "{flags} must be an argument by itself"),
        ('command: [./none.sh, "{lr}"]\n', "command.0", 5, "there is no ./none.sh"),
        ("command: [./go.sh]\narguments: flags\n", "command.0", 5, "is not executable; `chmod +x"),
        (
            'command: [sh, "{momentum}"]\narguments: flags\n',
            "command.1",
            5,
            "is not a parameter, and no fact about the trial",
        ),
        ("command: []\n", "command", 5, "needs at least 1"),
        (
            'script: train.py\narguments: ["{data}", "{data}", "{flags}"]\nparams: {data: null}\n',
            "params.data",
            7,
            "no value",
        ),
        (
            'command: [sh, "--data={data}", "{lr}"]\nparams: {data: null}\n',
            "params.data",
            6,
            "the argument --data={data} needs one",
        ),
        ("arguments: flags\n", "arguments", 5, "is for a script or a command"),
        (
            "script: train.py\narguments: falgs\n",
            "arguments",
            6,
            "is not flags, hydra, pairs, globals, none, a settings file or a list",
        ),
        ("script: train.py\narguments: conf/parms.yaml\n", "arguments.files", 6, "did you mean conf/params.yaml"),
        ("script: train.py\narguments: ../params.yaml\n", "arguments", 6, "is not a settings file of the job's folder"),
        ("script: train.py\narguments: params.xml\n", "arguments", 6, "a settings file or a list"),
        ("script: train.py\narguments: {file: conf/words.txt}\n", "arguments.files", 6, "neither YAML, JSON nor TOML"),
        ("script: train.py\narguments: conf/params.yaml\nparams: {lrr: 1}\n", "params.lrr", 7, "did you mean lr?"),
        ("script: train.py\narguments: conf/bad.yaml\n", "arguments.files", 6, "conf/bad.yaml cannot be read"),
        ("script: train.py\nmetrics: {from: file}\n", "metrics.0.path", 6, "is missing; write path"),
        ("script: train.py\nmetrics: {from: file, path: ../x.csv}\n", "metrics.0.path", 6, "must lie below the folder"),
        ("script: train.py\nmetrics: {from: file, path: .}\n", "metrics.0.path", 6, "names no file"),
        ("script: train.py\nmetrics: {from: file, path: 'out/**.csv'}\n", "metrics.0.path", 6, "cannot be looked for"),
        ("script: train.py\nmetrics: {from: stdout, pattern: '('}\n", "metrics.0.pattern.0", 6, "not a regular expression"),
        ("script: train.py\nmetrics: {from: stdout, pattern: 'a=(.*)'}\n", "metrics.0.pattern.0", 6, "needs two groups"),
        ("script: train.py\nmetrics: {from: stdout, pattern: '(?P<name>.)'}\n", "metrics.0.pattern.0", 6, "two groups"),
        ("script: train.py\nmetrics: {from: stdoot}\n", "metrics.0.from", 6, "'stdoot' is not 'stdout'"),
        ("script: train.py\ncapture: wandbb\n", "capture.0", 6, "'wandbb' is not 'wandb'"),
        (
            "command: [sh, '{lr}']\nmetrics: [stdout, mlflow]\n",
            "metrics.1",
            6,
            "a command is a process of its own, whose calls are not seen: print the metric, write it to a file",
        ),
        (
            "command: [sh, '{lr}']\ncapture: [wandb, hf]\n",
            "capture",
            6,
            "hf reaches into a script, and a command is a process of its own",
        ),
        (
            "script: train.py\ncapture: tensorboard\nmetrics: [stdout, tensorboard]\n",
            "metrics.1",
            7,
            "tensorboard is in capture",
        ),
    ],
)
def test_one_mistake_is_one_issue(job: Path, text: str, field: str, line: int, part: str) -> None:
    write(job, text)
    [(at, _, where, message)] = found(job)
    assert at.startswith(field) and part in message, (at, message)
    assert where == line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("script: tools/fit.py\narguments: globals\nparams: {steps: 4}\n", ""),
        ('script: tools/fit.py\narguments: ["{steps}", "{globals}"]\nparams: {steps: 4}\n', ""),
        ('script: tools/fit.py\narguments: ["{size}", "{globals}"]\nparams: {size: 4}\n', ""),
        (
            "script: tools/fit.py\narguments: globals\nparams: {stpes: 4}\n",
            "fit.py gives stpes no single value; did you mean steps?",
        ),
        ("command: [sh, x]\narguments: globals\n", "and a command has none: write script: train.py"),
    ],
)
def test_globals_are_what_the_script_assigns(job: Path, text: str, message: str) -> None:
    (job / "tools" / "fit.py").write_text("lr: float = 0.1\nif __name__ == '__main__':\n    steps = 3\n")
    write(job, text)
    if message:
        [(_, _, _, told)] = found(job)
        assert message in told
    else:
        assert load.load_job(job).script == "tools/fit.py"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("command: [python, fit.py]\n", "", "write {lr} into command, or `arguments: flags` for --lr=VALUE at its end"),
        ("command: [python, fit.py]\narguments: none\n", "", ""),
        ("command: [python, fit.py]\ncapture: wandb\n", "import wandb\nwandb.init()\n", "write {lr} into command"),
        ("command: [python, fit.py]\n", "import wandb\nlr = wandb.init().config.lr\n", ""),
        ("command: [python, fit.py]\n", "from trialplane import params\n", ""),
        ("script: fit.py\n", "lr = 0.1\n", "fit.py reads no --lr; write `arguments: globals`"),
        ("script: fit.py\n", "import wandb\nwandb.init()\nlr = 0.1\n", "fit.py reads no --lr; write `arguments: globals`"),
        ("script: fit.py\ncapture: wandb\n", "import wandb\nwandb.init()\n", "fit.py reads no --lr; let it read --lr"),
        ("script: fit.py\n", "import wandb\nlr = wandb.config.lr\nlr = 0.1\n", ""),
        ("script: fit.py\n", "import wandb\nrun = wandb.init()\nlr = run.config.lr\n", ""),
        ("script: fit.py\n", "", "fit.py reads no --lr; let it read --lr, for example by argparse"),
        (
            "script: fit.py\n",
            "lrs = 0.1\n",
            "did you mean lrs in its text, with `--set arguments=globals`? Or let it read --lr",
        ),
        ("script: fit.py\n", "from torch.nn.utils import clip_grad_norm_\n# argparse\n", "fit.py reads no --lr"),
        ("script: fit.py\n", "import numpy\n", "fit.py reads no --lr"),
        ("script: fit.py\n", "exec(open('tools/args.py').read())\n", ""),
        ("script: fit.py\n", "import importlib\nimportlib.import_module('tools.' + 'args')\n", ""),
        ("script: fit.py\n", "from lightning.pytorch.cli import LightningCLI\n", ""),
        ("script: fit.py\n", "from tools.args import lr\nlr = lr or 0.1\n", ""),
        ("script: fit.py\n", "import sys\nlr = 0.1\nprint(sys.argv)\n", ""),
        ("script: fit.py\n", "from lib import ArgumentParser\nlr = ArgumentParser().lr\nlr = lr or 0.1\n", ""),
        ("script: fit.py\narguments: globals\n", "lr = 0.1\n", ""),
        ("script: fit.py\n", "import rich_click as cli_library\n", ""),
        ("script: fit.py\n", "from trainer_of_a_company import main\nmain()\n", ""),
        ("script: fit.py\n", "from library_of_a_company import layers\nlr = 0.1\n", "write `arguments: globals`"),
        ("script: fit.py\n", "import WandbLogger\nlr = WandbLogger().experiment.config.lr\n", ""),
        ("script: fit.py\n", f"x = {' + '.join(['1'] * 400)}\n", "fit.py reads no --lr"),
    ],
)
def test_a_searched_parameter_that_does_not_reach_the_program_is_refused(
    job: Path, text: str, code: str, message: str
) -> None:
    (job / "train.py").unlink()
    (job / "venv" / "site-packages").mkdir(parents=True)
    (job / "venv" / "site-packages" / "numpy.py").write_text("import argparse\n")
    (job / "tools" / "args.py").write_text("import argparse\n" if "tools" in code else "")
    (job / "fit.py").write_text(f"{code}print('f1=0.5')\n")
    write(job, text)
    if message:
        [(at, _, _, told)] = found(job)
        assert at == "space.lr" and "it does not reach the program: " in told and message in told
    else:
        assert load.load_job(job).kind == "hpo"


FIRE = "import fire\nfire.Fire({'test': 1, 'train_one': 2})\n"


@pytest.mark.parametrize(
    ("text", "code", "is_refused"),
    [
        ("", FIRE, True),
        ("arguments: [train_one, '{flags}']\n", FIRE, False),
        ("", FIRE.replace("'test': 1, ", ""), False),
        ("", FIRE.replace("import fire\nfire.", "from fire import Fire\n"), True),
        ("", FIRE.replace("})", "}, command='train_one')"), False),
        ("", f"import sys\nsys.argv.insert(1, 'train_one')\n{FIRE}", False),
    ],
)
def test_flags_without_a_subcommand_are_refused_with_the_option_for_one(
    job: Path, text: str, code: str, is_refused: bool
) -> None:
    (job / "fit.py").write_text(code)
    write(job, f"script: fit.py\n{text}")
    if is_refused:
        [(at, _, _, told)] = found(job)
        assert at == "script"
        assert told.endswith("""type `--set 'arguments=["train_one", "{flags}"]'` (or test in its place)""")
    else:
        assert load.load_job(job).kind == "hpo"


def test_a_parameter_that_another_field_names_need_not_reach_the_program(tmp_path: Path) -> None:
    fields = {
        "objectives": [{"metric": "f1", "direction": "maximize"}],
        "params": {"epochs": 16},
        "pruner": {"name": "asha", "promote": True, "max_resource": "epochs"},
        "space": {"lr": {"type": "float", "low": 0.1, "high": 1.0}},
        "command": ["sh", "train.sh", "{lr}"],
        "kind": "hpo",
    }
    (tmp_path / "job.yaml").write_text(json.dumps(fields))
    assert load.load_job(tmp_path).params == {"epochs": 16}


def test_a_fixed_parameter_that_does_not_reach_the_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text("print('f1=0.5')\n")
    objective = {"objectives": [{"metric": "f1", "direction": "maximize"}]}
    with pytest.raises(errors.SpecError) as caught:
        load.load_job(tmp_path, kind="hpo", script="fit.py", params={"zzz": 1}, overrides=objective)
    issues = [issue for issue in caught.value.issues if issue.field == "params.zzz"]
    assert len(issues) == 1 and "fit.py reads no --zzz" in issues[0].message


@pytest.mark.parametrize(
    ("text", "captured", "read"),
    [
        ("", None, ("stdout", "mlflow")),
        ("capture: none\n", (), ("stdout", "mlflow")),
        ("capture: mlflow\n", ("mlflow",), ("stdout", "mlflow")),
        ("capture: [wandb, hf]\n", ("wandb", "hf"), ("mlflow",)),
        ("capture: tensorboard\n", ("tensorboard",), ("mlflow",)),
        ("capture: tensorboard\nmetrics: stdout\n", ("tensorboard",), ("stdout",)),
    ],
)
def test_what_is_captured_is_not_guessed_from_the_output(job: Path, text: str, captured: object, read: object) -> None:
    write(job, f"script: train.py\n{text}")
    made = load.load_job(job)
    assert isinstance(made, kinds.Study) and made.capture == captured
    assert kinds.read(made.model_dump_json()) == made
    program = made.roles()[0].program
    assert program is not None and tuple(one.source for one in program.metrics) == read
    assert bool(program.late_metrics) == ("tensorboard" not in text), "by default, event files are read at the end"
    jsonschema.validate(document.read(job / "job.yaml").data, schema.json_schema())


def test_a_script_that_is_not_python_is_an_issue_of_its_line(job: Path) -> None:
    (job / "train.py").write_text("import os\nfor x in\n")
    write(job, "script: train.py\n")
    [(_, source, line, message)] = found(job)
    assert source.endswith("train.py") and line == 2 and "is not Python" in message


def test_a_collection_runs_no_script(folder: Path) -> None:
    (folder / "job.yaml").write_text("kind: collect\nscript: train.py\ncollect: {units: 3, learner: train:run}\n")
    messages = [message for field, _, _, message in found(folder) if field == "script"]
    assert messages and "calls ctx.give in a function" in messages[0]


@pytest.mark.parametrize("arguments", ["flags", "hydra", "none"])
def test_a_parameter_without_a_value_is_for_arguments_that_can_do_without(job: Path, arguments: str) -> None:
    write(job, f"script: train.py\narguments: {arguments}\nparams: {{data: null}}\n")
    assert load.load_job(job).params == {"data": None}
