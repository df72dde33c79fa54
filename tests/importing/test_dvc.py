"""A pipeline of DVC as one command: its stages, their order, interpolations, parameters and metrics."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import PurePath

import pytest

from trialplane.errors import SpecError
from trialplane.importing import dvc
from trialplane.importing.script import Script

PARAMS = "prepare: {split: 0.2, seed: 1}\ntrain:\n  lr: 0.1\n  depth: 3\n  amp: true\n  name: small\n"
STAGES = """
stages:
  report:
    cmd: python report.py
    deps: [scores.json]
  evaluate:
    cmd: python evaluate.py model.pkl
    deps: [model.pkl, data/ready]
    metrics: [scores.json: {cache: false}]
  train:
    cmd: python train.py
    deps: [data/ready/train.csv]
    params: [train.lr, train.depth]
    outs: [model.pkl]
  prepare:
    cmd: python prepare.py data/raw.csv
    deps: [data/raw.csv]
    params: [prepare]
    outs: [data/ready]
"""


def read(text: str, files: Mapping[str, str] | None = None, command: str = "", **options) -> Script:
    """The content of a pipeline beside files, as a command of DVC starts it; all other files exist."""
    texts = {"params.yaml": PARAMS, **(files or {})}

    def read_text(name: str) -> str:
        if name not in texts:
            raise FileNotFoundError(name)
        return texts[name]

    def exists(name: str) -> bool:
        return name in texts or PurePath(name).suffix not in (".yaml", ".json", ".toml", ".missing")

    parsed_command = dvc.find_command(command) if command else None
    assert bool(command) == (parsed_command is not None)
    return dvc.read(textwrap.dedent(text), "dvc.yaml", dvc.Files(read_text, exists), command=parsed_command, **options)


def shell(parsed: Script) -> str:
    """The text of the shell in the command."""
    assert parsed.command[-3:-1] == ("bash", "-c")
    return parsed.command[-1]


def names(parsed: Script) -> set[str]:
    return {option.name for option in parsed.options}


def train(command: str, fields: str = "", head: str = "") -> str:
    """A pipeline with one stage."""
    return f"{head}\nstages:\n  train:\n    cmd: {command}\n    {fields}\n"


def problems(text: str, files: Mapping[str, str] | None = None, command: str = "") -> list[str]:
    with pytest.raises(SpecError) as refusal:
        read(text, files, command)
    return [str(issue) for issue in refusal.value.issues]


def test_stages_run_in_the_order_of_their_dependencies_up_to_the_metrics() -> None:
    parsed = read(STAGES)
    assert shell(parsed) == "python prepare.py data/raw.csv && python train.py && python evaluate.py model.pkl"
    assert parsed.config == "params.yaml" and parsed.metric_files == ("scores.json",)
    assert names(parsed) == {"prepare.split", "prepare.seed", "train.lr", "train.depth"}, "and no other of the file"
    assert parsed.outputs == ("data/ready", "model.pkl", "scores.json")
    assert parsed.notes == ("trials run prepare, train, evaluate, and not report",)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("dvc repro", "python prepare.py data/raw.csv && python train.py && python evaluate.py model.pkl"),
        ("dvc repro train", "python prepare.py data/raw.csv && python train.py"),
        ("uv run dvc repro -f dvc.yaml:train", "python prepare.py data/raw.csv && python train.py"),
        ("dvc repro model.pkl", "python prepare.py data/raw.csv && python train.py"),
        ("dvc repro -s train evaluate", "python train.py && python evaluate.py model.pkl"),
        ("dvc exp run -n first --queue train", "python prepare.py data/raw.csv && python train.py"),
    ],
)
def test_a_command_of_dvc_names_the_stages(command: str, expected: str) -> None:
    assert shell(read(STAGES, command=command)) == expected


def test_a_command_of_dvc_sets_values_and_several_values_are_a_search() -> None:
    values = "-S train.lr=0.5 --set-param 'train.depth=2,4' -S 'prepare.seed=range(1,4)'"
    command = dvc.find_command(f"cd sub && CUDA_VISIBLE_DEVICES=0 dvc exp run {values}")
    assert command is not None and command.file == "sub/dvc.yaml" and command.values == {"train.lr": 0.5}
    assert command.space == {
        "train.depth": {"type": "categorical", "choices": [2, 4]},
        "prepare.seed": {"type": "int", "low": 1, "high": 3},
    }
    parsed = read(STAGES, command="A=1 dvc exp run -S train.lr=0.5")
    assert {option.name: option.default for option in parsed.options}["train.lr"] == 0.5
    assert parsed.fixed == ("train.lr",) and parsed.command[:2] == ("env", "A=1")
    assert "no stage of the job has this parameter; did you mean train.lr" in str(
        problems(STAGES, command="dvc exp run -S train.lrr=1")
    )
    assert "is not understood" in str(problems(STAGES, command="dvc exp run -S 'train.lr=wrong(1)'"))


def test_a_command_of_dvc_sets_values_of_the_file_that_trials_rewrite() -> None:
    files = {"params.yaml": "lr: 0.1\nsize: 3\n", "p2.yaml": "lr: 0.2\nmom: 0.9\n"}
    both = train("python train.py", "params: [lr, size, {p2.yaml: [lr, mom]}]")
    parsed = read(both, files, "dvc exp run -S params.yaml:lr=0.5")
    assert {option.name: option.default for option in parsed.options} == {"lr": 0.5, "size": 3}
    assert "-S: 'p2.yaml:lr=0.5' is not understood" in str(problems(both, files, "dvc exp run -S p2.yaml:lr=0.5"))
    assert "no stage of the job has this parameter" in str(problems(both, files, "dvc exp run -S mom=1"))
    files["p2.yaml"] += "learning_rate: 0.1\n"
    other = train("python train.py", "params: [lr, {p2.yaml: [lr, learning_rate]}]")
    remedy = "trials rewrite one file of parameters, which is p2.yaml: write the value into params.yaml, and drop -S"
    assert f"-S.lr: {remedy}" in problems(other, files, "dvc exp run -S lr=0.5")


def test_a_command_of_dvc_sets_switches_paths_and_no_items_of_lists() -> None:
    files = {"params.yaml": "train: {amp: true, path: data/x, lr: 0.1}\nsizes: [1, 2]\n"}
    text = train("python t.py --amp ${train.amp} ${sizes[0]} ${train.lr}", "deps: ['${train.path}']\n    params: [train]")
    parsed = read(text, files, "dvc exp run -S train.amp=false -S train.path=data/y")
    assert shell(parsed) == "python t.py --amp false 1 {train.lr}"
    assert {option.name: option.default for option in parsed.options} == {
        "train.amp": False,
        "train.path": "data/y",
        "train.lr": 0.1,
    }
    unlisted = text.replace("params: [train]", "")
    assert names(read(unlisted, files, "dvc exp run -S train.amp=false -S train.path=data/y")) >= {"train.lr"}
    assert "data/y.missing does not exist" in str(problems(text, files, "dvc exp run -S train.path=data/y.missing"))
    assert "no stage of the job has this parameter" in str(problems(text, files, "dvc exp run -S sizes.0=5"))


@pytest.mark.parametrize(
    ("command", "targets", "is_alone", "values"),
    [
        ("dvc exp run -m 'my run' train", ("train",), False, {}),
        ("dvc repro -m train", ("train",), False, {}),
        ("dvc repro -sf train", ("train",), True, {}),
        ("dvc exp run -qfs -j4 -fS lr=1 -Sa=2 --set-param=b=3 --name x train", ("train",), True, {"lr": 1, "a": 2, "b": 3}),
    ],
)
def test_options_of_dvc_are_no_stages(
    command: str, targets: tuple[str, ...], is_alone: bool, values: Mapping[str, object]
) -> None:
    parsed = dvc.find_command(command)
    assert parsed is not None and (parsed.targets, parsed.is_alone, parsed.values) == (targets, is_alone, values)


@pytest.mark.parametrize("option", ["--downstream b", "--glob 'tr*'", "-R .", "-fP", "-p train", "--force=1", "--"])
def test_options_of_dvc_that_choose_other_stages_are_refused(option: str) -> None:
    with pytest.raises(SpecError, match=r"is not read: name the stages to run, as in `dvc repro STAGE`"):
        dvc.find_command(f"dvc repro {option}")


@pytest.mark.parametrize("text", ["python train.py", "dvc pull", "dvc push && python train.py", "echo dvc"])
def test_another_command_is_not_one_of_a_pipeline(text: str) -> None:
    assert dvc.find_command(text) is None


def test_interpolated_values_are_placeholders_and_paths_stay() -> None:
    command = "python train.py --lr ${train.lr} --amp ${train.amp} --name ${train.name} --out ${out}/m.pkl '{x}' \\${HOME}"
    parsed = read(train(command, "outs: ['${out}/m.pkl']", "vars: [{out: models}]"))
    expected = "python train.py --lr {train.lr} --amp true --name {train.name} --out models/m.pkl '{{x}}' ${{HOME}}"
    assert shell(parsed) == expected
    assert names(parsed) == {"train.lr", "train.name"} and parsed.outputs == ("models/m.pkl",)


def test_variables_come_from_files_keys_of_files_and_stages() -> None:
    files = {"more.json": '{"a": {"b": 1}, "c": 2}', "sub/own.toml": "d = 3\n[e]\nf = [4, 5]\n"}
    fields = "wdir: sub\n    vars: [own.toml, {g: 6}]"
    parsed = read(train("run ${a.b} ${d} ${e.f[1]} ${g}", fields, "vars: ['more.json:a']"), files)
    assert shell(parsed) == "(cd sub && (run {a.b} {d} 5 {g}))" and names(parsed) == {"a.b", "d", "g"}
    assert "${c} has no value" in str(problems(train("run ${c}", "", "vars: ['more.json:a']"), files))


def test_a_mapping_in_a_command_is_flags() -> None:
    parsed = read(train("python train.py ${train}"))
    assert shell(parsed) == "python train.py --lr {train.lr} --depth {train.depth} --amp --name {train.name}"
    files = {"params.yaml": "train: {amp: false, sizes: [1, 2], text: a b, api_key: x y}"}
    assert shell(read(train("run ${train} -n 1"), files)) == 'run --sizes 1 2 --text {train.text} --api_key "$API_KEY" -n 1'


def test_a_command_reads_the_secrets_of_files_from_the_environment() -> None:
    files = {"params.yaml": "wandb: {api_key: s3cr3tVALUE99}\nhub: {api_key: other}\nlr: 0.1\n"}
    key = "${wandb.api_key}"
    command = f'run {key} --key="{key}" "x {key}x" \'{key}\' --token {key} ${{hub.api_key}} ${{hub}} --lr ${{lr}}'
    parsed = read(f"stages:\n  a:\n    cmd: |\n      {command}\n", files)
    expected = """run "$API_KEY" --key="$API_KEY" "x ""$API_KEY""x" ''"$API_KEY"'' --token "$API_KEY" "$HUB_API_KEY" """
    assert shell(parsed) == f'{expected}--api_key "$HUB_API_KEY" --lr {{lr}}'
    assert [note.split(" from")[0] for note in parsed.notes[:-1]] == [
        "the command reads API_KEY",
        "the command reads HUB_API_KEY",
    ]


@pytest.mark.parametrize("command", ["exec run", "exit 0", "cd data", "set -e; python train.py"])
def test_a_command_that_changes_its_shell_has_one_of_its_own(command: str) -> None:
    parsed = read(f'stages: {{a: {{cmd: ["{command}", "python train.py ${{train.lr}}"]}}}}')
    assert shell(parsed) == f"({command}) && python train.py {{train.lr}}"


def test_each_command_runs_in_a_shell_of_its_own() -> None:
    text = """
    stages:
      a:
        cmd:
        - cd sub && run ${train.lr}
        - export A=1
        - (a; b) | c
        outs: [x]
      b:
        cmd: |
          first \\
            --flag
          second | tee log  # of b
        wdir: sub
        deps: [../x]
        metrics: [m.json]
    """
    first = "(cd sub && run {train.lr}) && (export A=1) && ( (a; b) | c) && (cd sub && (first --flag))"
    parsed = read(text)
    assert shell(parsed) == f"{first} && (cd sub && (\nsecond | tee log  # of b\n))"
    assert parsed.metric_files == ("sub/m.json",)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("params: [train.lr]", {"train.lr"}),
        ("params: [train]", {"train.lr", "train.depth", "train.amp", "train.name"}),
        (
            "params: [{params.yaml: }]",
            {"train.lr", "train.depth", "train.amp", "train.name", "prepare.split", "prepare.seed"},
        ),
        ("params: [{conf/own.toml: [m.hidden]}]", {"m.hidden"}),
        ("params: [prepare.seed, {conf/own.toml: [m.hidden]}]", {"m.hidden"}),  # the file with values to search
        ("vars: [{own: conf/own.toml}]\n    params: [{'${own}': [m.hidden]}]", {"m.hidden"}),
        ("deps: [conf/own.toml]", {"m.hidden", "m.x"}),
        ("wdir: .", {"train.lr", "train.depth", "train.amp", "train.name", "prepare.split", "prepare.seed"}),
    ],
)
def test_parameters_are_those_that_the_stages_list(fields: str, expected: set[str]) -> None:
    files = {"conf/own.toml": "[m]\nhidden = 64\nx = 0.5\n"}
    parsed = read(train("python train.py", fields), files)
    assert names(parsed) == expected and parsed.config == ("conf/own.toml" if "m.hidden" in expected else "params.yaml")


def test_a_requested_parameter_decides_between_two_files() -> None:
    fields = "params: [prepare.seed, {own.toml: [hidden]}]"
    parsed = read(train("python train.py", fields), {"own.toml": "hidden = 64\n"}, requested=["seed"])
    assert names(parsed) == {"prepare.seed"}
    assert "own.toml stays as it is: trials rewrite one file, which is params.yaml" in parsed.notes


def test_numbers_of_commands_are_the_parameters_of_a_pipeline_without_others() -> None:
    parsed = read(train("python train.py --lr 0.1 '{x}'"), {"params.yaml": "{}"})
    assert shell(parsed) == "python train.py --lr {lr} '{{x}}'" and names(parsed) == {"lr"}


@pytest.mark.parametrize(
    ("fields", "head", "expected"),
    [
        ("metrics: [a/m.json, {b.json: {cache: false}}]", "", ("a/m.json", "b.json")),
        ("outs: [live]", "metrics: [live/metrics.json]", ("live/metrics.json",)),
        ("outs: [live]", "metrics: [other/metrics.json]", ("other/metrics.json",)),
        ("metrics: ['${train.name}/${train.depth}.json']", "", ("small/*.json",)),
        ("metrics: [reports]", "", ("reports/*",)),
    ],
)
def test_metrics_of_a_stage_and_of_the_pipeline(fields: str, head: str, expected: tuple[str, ...]) -> None:
    assert read(train("python train.py", fields, head)).metric_files == expected


def test_without_metrics_the_last_stage_that_trains_or_evaluates_by_its_name_is_run() -> None:
    text = """
    stages:
      train_test_split: {cmd: split, outs: [a]}
      fit: {cmd: fit, deps: [a], outs: [b]}
      test: {cmd: check, deps: [b]}
      push: {cmd: docker push, deps: [b]}
    """
    assert shell(read(text)) == "(split) && (fit) && (check)"


def test_of_several_stages_with_metrics_the_last_one_is_run_and_a_note_names_the_others() -> None:
    text = STAGES.replace("outs: [model.pkl]", "outs: [model.pkl]\n    metrics: [train.json]")
    parsed = read(text)
    assert parsed.metric_files == ("scores.json",) and shell(parsed).endswith("evaluate.py model.pkl")
    assert "stages with metrics are train, evaluate" in parsed.notes[0] and "'dvc repro train'" in parsed.notes[0]


def test_a_frozen_stage_does_not_run() -> None:
    parsed = read(STAGES.replace("    cmd: python train.py", "    frozen: true\n    cmd: python train.py"))
    assert shell(parsed) == "python prepare.py data/raw.csv && python evaluate.py model.pkl"
    assert "train: frozen, so trials take the outputs as they are" in parsed.notes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stages: [", "is not YAML"),
        ("a: 1", "has no stages"),
        ("stages: {train: 3}", "must be a mapping with `cmd`"),
        ("stages: {train: {deps: [a]}}", "needs `cmd`"),
        ("stages: {train: {cmd: [1]}}", "needs `cmd`"),
        (train("run ${train.lrr}"), "${train.lrr} has no value; did you mean train.lr"),
        (train("run ${LR:-0.1}"), "for a variable of the shell write \\${LR:-0.1}"),
        (train("run ${list}", "", "vars: [{list: [1]}]"), "${list} is a list"),
        (train("run", "params: [train.lrr]"), "params.yaml has no train.lrr; did you mean train.lr"),
        (train("run", "params: [{none.yaml: [a]}]"), "the file of parameters none.yaml does not exist"),
        (train("run", "", "vars: [none.yaml]"), "dvc.yaml:1: vars.0: the file of parameters none.yaml does not exist"),
        (train("run", "params: [{bad.yaml: [a]}]"), "bad.yaml:2: file: is not YAML"),
        (train("run", "params: [{list.yaml: [a]}]"), "list.yaml has no `name: value` lines"),
        (train("run", "params: [{bad.toml: [a]}]"), "bad.toml cannot be read"),
        (train("run", "deps: [raw.missing]"), "raw.missing does not exist; `dvc pull` gets it"),
        (
            train("run", "foreach: [1]\n    do: {cmd: run}").replace("    cmd: run\n", ""),
            "stages.train.foreach: stands for several",
        ),
        (train("run ${item.a}", "matrix: {a: [1, 2]}"), "stages.train.matrix: stands for several stages"),
        (
            "stages: {a: {cmd: x, deps: [p], outs: [q]}, b: {cmd: y, deps: [q], outs: [p]}}",
            "depend on each other: a → b → a",
        ),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused(text: str, expected: str) -> None:
    files = {"bad.yaml": "a: [", "list.yaml": "[a]", "bad.toml": "a ="}
    assert expected in "\n".join(problems(text, files))


def test_no_stage_of_that_name() -> None:
    assert "there is no stage 'trian'; did you mean train?" in str(problems(STAGES, command="dvc repro trian"))


def test_a_pipeline_without_parameters_is_refused() -> None:
    assert "list the parameters that a stage reads" in str(problems(train("run"), {"params.yaml": "{}"}))


def test_files_above_the_folder_are_paths() -> None:
    parsed = read(
        train("run", "wdir: ..\n    deps: [data/a.csv]\n    params: [{conf/p.toml: [x]}]"), {"../conf/p.toml": "x = 0.1\n"}
    )
    assert parsed.paths == ("../conf/p.toml", "..", "../data/a.csv") and parsed.config == "../conf/p.toml"
