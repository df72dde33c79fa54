"""The settings file that a command line names without its suffix, or in part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import made, write

from trialplane.cli.init_from import settings_file


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("--config small", "configs/small.yaml"),
        ("--model-cfg=small", "configs/small.yaml"),
        ("-c small", "configs/small.yaml"),
        ("--model small", ""),
        ("--optimizer small", ""),
        ("-m small", ""),
    ],
)
def test_only_an_option_for_a_file_names_one_without_its_suffix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.yaml").write_text("lr: 0.1\n")
    assert settings_file.named(command, tmp_path).names == ((name,) if name else ())
    assert ("configs/small.yaml is taken as the settings file" in capsys.readouterr().err) == bool(name)


@pytest.mark.parametrize(
    ("command", "text", "requested", "name"),
    [
        ("--dataset HAR", 'exec(f"from config_files.{name}_Configs import Config")', ["lr"], "config_files/HAR_Configs.py"),
        ("--dataset HAR", 'module = "config_files." + name + "_Configs"', ["lr"], "config_files/HAR_Configs.py"),
        ("--dataset HAR", 'exec(f"from config_files.{name}_Configs import Config")', ["dropout"], ""),
        ("--dataset HA", 'exec(f"from config_files.{name}_Configs import Config")', ["lr"], ""),
        ("--dataset HAR", "from config_files import HAR_Configs", ["lr"], ""),
    ],
)
def test_a_script_has_the_end_of_the_name_of_its_settings_file(
    tmp_path: Path, command: str, text: str, requested: list[str], name: str
) -> None:
    (tmp_path / "config_files").mkdir()
    for data in ("Epilepsy", "HAR"):
        (tmp_path / "config_files" / f"{data}_Configs.py").write_text(
            "class Config:\n    def __init__(self):\n        self.lr = 0.1\n"
        )
    (tmp_path / "main.py").write_text(text)
    assert settings_file.named_in_part(command, tmp_path / "main.py", tmp_path, requested).names == ((name,) if name else ())


@pytest.mark.parametrize(
    ("command", "text", "requested", "name"),
    [
        ("--model_dir models/a", 'open(os.path.join(args.model_dir, "params.json"))', ["lr"], "models/a/params.json"),
        ("--model_dir=models/b/", 'open(f"{args.model_dir}/params.json")', ["lr"], "models/b/params.json"),
        ("--seed 1", 'open(os.path.join("models/b", "params.json"))', ["lr"], "models/b/params.json"),
        ("--out models", 'open(os.path.join(args.model_dir, "params.json"))', ["lr"], ""),
        ("--model_dir models/a", 'open(os.path.join(args.model_dir, "results.json"))', ["lr"], ""),
        ("--model_dir models/a", 'open(os.path.join(args.model_dir, "params.json"))', ["dropout"], ""),
    ],
)
def test_a_command_has_the_folder_of_the_settings_file_that_a_script_names(
    tmp_path: Path, command: str, text: str, requested: list[str], name: str
) -> None:
    for folder in ("models/a", "models/b"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "params.json").write_text('{"lr": 0.1}')
    (tmp_path / "main.py").write_text(text)
    assert settings_file.named_in_script(command, tmp_path / "main.py", tmp_path, requested).names == (
        (name,) if name else ()
    )


def test_a_file_that_a_script_names_comes_before_one_of_its_name_that_it_may_write(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("config.json", "out/config.json"):
        (tmp_path / name).write_text('{"lr": 0.1}')
    (tmp_path / "main.py").write_text(
        'cfg = json.load(open("config.json"))\n'
        'os.makedirs("out", exist_ok=True)\n'
        'json.dump(cfg, open(os.path.join("out", "config.json"), "w"))\n'
    )
    assert settings_file.named_in_script("--out out", tmp_path / "main.py", tmp_path, ["lr"]).names == ("config.json",)


def test_only_some_pairs_of_a_folder_and_a_file_in_a_script_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "b" / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "main.py").write_text('open(os.path.join("a", "config.json"))\nopen(os.path.join("b", "config.json"))\n')
    assert settings_file.named_in_script("", tmp_path / "main.py", tmp_path, ["lr"]).names == ("b/config.json",)
    monkeypatch.setattr(settings_file, "_MOST_PAIRS", 1)
    assert settings_file.named_in_script("", tmp_path / "main.py", tmp_path, ["lr"]).names == ()


def test_a_large_folder_of_data_is_not_walked_for_a_settings_file(tmp_path: Path) -> None:
    for folder in ("configs", "rows", "z/configs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "configs" / "small.yaml").write_text("lr: 0.1\n")
    (tmp_path / "z" / "configs" / "large.yaml").write_text("lr: 0.1\n")
    assert settings_file.named("--config large", tmp_path).names == ("z/configs/large.yaml",)
    for number in range(10_001):
        (tmp_path / "rows" / str(number)).touch()
    assert settings_file.named("--config large", tmp_path).names == ()
    assert settings_file.named("--config small", tmp_path).names == ("configs/small.yaml",)


def test_a_command_names_several_settings_files_with_requested_parameters(tmp_path: Path) -> None:
    texts = {"data.json": '{"size": 9}', "train.json": '{"lr": 0.1, "layers": 1}', "model.json": '{"layers": 2, "width": 8}'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    command = " ".join(f"--cfg {name}" for name in texts)
    files = settings_file.named(command, tmp_path, ["lr", "width"])
    assert files.names == ("train.json", "model.json")
    assert {option.name: option.default for option in files.options} == {"lr": 0.1, "layers": 1, "width": 8}
    assert settings_file.named(command, tmp_path, ["lr", "layers"]).names == ("train.json", "model.json")
    assert settings_file.named(command, tmp_path, ["depth"], only_requested=True).names == ()


def test_a_module_of_optimizers_is_no_settings_file(tmp_path: Path) -> None:
    for folder in ("options", "net/optim"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "net" / "optim" / "adamw.py").write_text("def step(lr=0.1): ...\n")
    assert settings_file.named("--opt adamw", tmp_path).names == ()
    (tmp_path / "options" / "adamw.yaml").write_text("lr: 0.1\n")
    assert settings_file.named("--opt adamw", tmp_path).names == ("options/adamw.yaml",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config-xor", "[net]\nwidth = 8\ndrop = 1.0\n"),
        ("values", "net: {width: 8, drop: 1.0}\n"),
        ("conf.txt", '{"net": {"width": 8, "drop": 1.0}}'),
        ("conf/base", "[net]\nwidth = 8\ndrop = 1.0\n[optimizer]\nname = 'adam'\n"),
    ],
)
def test_a_file_that_a_script_names_is_read_by_its_content(platform, workplace: Path, name: str, text: str) -> None:
    folder = write(workplace / "src", {name: text, "notes": "width 8\n"})
    (folder / "fit.py").write_text(f'import os, other\nother.read("notes")\nother.run(os.path.join(HOME, "{name}"))\n')
    result = platform("init", "--from", "src/fit.py", "--space", "width=4..16", "--space", "drop=0..2", "--no-smoke")
    assert result.exit_code == 0, result.stderr
    job = made()
    assert job.arguments.files == (name,)
    assert {key: parameter.type for key, parameter in job.space.items()} == {"net.width": "int", "net.drop": "float"}


def test_a_file_without_a_suffix_needs_the_name_of_settings_or_the_requested_parameters(platform, workplace: Path) -> None:
    folder = write(workplace / "src", {"table": "lr: 0.1\n", "config-net": "lr = 0.1\n"})
    for name, files in (("table", ()), ("config-net", ("config-net",))):
        (folder / "fit.py").write_text(f'import other\nother.run("{name}")\n')
        assert platform("init", "--from", "src/fit.py", "--no-smoke").exit_code == 0
        assert made().arguments.files == files
        (folder / "job.yaml").unlink()


def test_each_file_with_a_searched_parameter_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"base.yaml": "lr: 0.1\n", "data.yaml": "size: 3\n", "other.yaml": "lr: 0.2\nwidth: 8\n"}
    for name, text in {**texts, "part.yaml": "net: {lr: 1}\n"}.items():
        (tmp_path / name).write_text(text)
    files = settings_file.named(" ".join([*texts, "part.yaml"]), tmp_path, ["lr"])
    assert files.names == ("base.yaml", "other.yaml")
    assert {option.name: option.default for option in files.options} == {"lr": 0.1, "width": 8}
    assert "lr is 0.1 in base.yaml, 0.2 in other.yaml: trials replace it in each" in capsys.readouterr().err


def test_a_file_of_data_that_a_command_names_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text(json.dumps({"lr": 1, "names": ["cat"] * 10_000}))
    (tmp_path / "fit.py").write_text("lr = 0.1\n" + "# a comment\n" * 10_000)
    assert settings_file.named("labels.json fit.py", tmp_path, ["lr"]).names == ("fit.py",)
