"""`platform init --from`: the job that is made of a script in each style, its smoke run, and scripts of which none is made.

Not checked here: what is guessed from which name (tests/importing/test_guess.py), and such a job as a run
(tests/study/test_scripts.py).
"""

from __future__ import annotations

import os
import select
import textwrap
from pathlib import Path
from typing import Any

import pytest

from trialplane.cli import smoke
from trialplane.spec import arguments, load
from trialplane.spec.jobs import Study, program

BODY = """
from pathlib import Path
Path("trained").touch()
print("epoch 1: val_acc=0.5 train_loss=0.25")
"""
ARGPARSE = """
import argparse
from own import helper

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--learning-rate", "--lr", type=float, default=1e-3)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="adam")
parser.add_argument("--nesterov", action="store_true")
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--sizes", type=int, nargs="+", default=[64, 32])
parser.add_argument("--table", default="table.csv")
parser.add_argument("-j", type=int, default=4)
args = parser.parse_args()
open(args.table).close()
"""
STYLES: dict[str, tuple[str, set[str], list[str]]] = {
    "pre-parser": (
        """
        import argparse
        first = argparse.ArgumentParser(add_help=False)
        first.add_argument("--config", default="")
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        _, rest = first.parse_known_args()
        args = parser.parse_args(rest)
        """,
        {"lr"},
        ["--lr=0.1", "--config="],
    ),
    "values": (
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--bias", type=lambda text: text == "True", default=True)
        parser.add_argument("--depth", type=int, default=3)
        args, _ = parser.parse_known_args()
        """,
        {"bias", "depth"},
        ["--bias=True", "--depth=3"],
    ),
    "click": (
        """
        import click
        @click.command()
        @click.option("--lr", default=0.1)
        @click.option("--amp/--no-amp", default=True)
        @click.option("--hidden", multiple=True, type=int, default=[4, 8])
        def main(lr, amp, hidden):
            assert hidden == (4, 8) and amp
        main(standalone_mode=False)
        """,
        {"lr"},
        ["--lr=0.1", "--amp", "--hidden=4", "--hidden=8"],
    ),
    "fire": (
        """
        import fire
        def main(lr=0.1, bias: bool = False, name="x"):
            assert bias is False
        if __name__ == "__main__":
            fire.Fire(main)
        """,
        {"lr", "bias"},
        ["--lr=0.1", "--bias=False", "--name=x"],
    ),
    "globals": (
        """
        learning_rate = 0.1
        compile = False
        exec(open("own.py").read())
        """,
        {"learning_rate"},
        ["--learning_rate=0.1", "--compile=False"],
    ),
    "hydra": (
        """
        import hydra
        @hydra.main(version_base=None, config_path="conf", config_name="config")
        def main(cfg):
            assert cfg.model.layers == 2 and cfg.optimizer.lr == 0.1
        if __name__ == "__main__":
            main()
        """,
        {"model", "optimizer_lr"},
        ["model=small", "optimizer.lr=0.1"],
    ),
}


@pytest.fixture
def written(workplace: Path) -> Path:
    """A folder with what the scripts need."""
    folder = workplace / "src"
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "config.yaml").write_text("defaults: [{model: small}]\noptimizer: {lr: 0.1}\nname: x\n")
    for name, layers in (("small", 2), ("large", 4)):
        (folder / "conf" / "model" / f"{name}.yaml").write_text(f"layers: {layers}\n")
    (folder / "own.py").write_text("def helper(): ...\n")
    (folder / "table.csv").write_text("a,b\n")
    return folder


def made(name: str) -> Study:
    job = load.load_job(Path("jobs", name))
    assert isinstance(job, Study)
    return job


def given(job: Study, **more: Any) -> list[str]:
    """The arguments of a trial with the script's defaults."""
    plan = program.of(job)
    assert plan is not None
    params = {**job.params, **(job.search.enqueue[0] if job.search.enqueue else {}), **more}
    return arguments.build(plan.arguments, params, {}, plan.booleans, plan.lists)


def test_a_script_becomes_a_job_that_can_be_submitted(platform, written: Path) -> None:
    (written / "fit.py").write_text(ARGPARSE.replace('add_argument("data")', 'add_argument("--data", default="d")') + BODY)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    assert (
        "its metrics: train_loss, val_acc" in result.stderr and "`platform submit hpo fit --local` runs it" in result.stderr
    )
    job = made("fit")
    assert set(job.search.parameters) == {"learning-rate", "layers", "optimizer", "nesterov"}
    assert job.params == {"no-cuda": False, "data": "d", "sizes": [64, 32], "table": "table.csv", "j": 4}
    line = " ".join(given(job))
    assert "-j 4" in line and "--sizes 64 32" in line and "cuda" not in line
    assert job.objectives[0].metric == "val_acc" and job.objectives[0].direction == "maximize"
    folder = Path("jobs/fit")
    assert {file.name for file in folder.iterdir()} == {"job.yaml", "fit.py", "own.py", "table.csv"}
    text = (folder / "job.yaml").read_text()
    assert all("# guessed: " in line for line in text.splitlines() if line.startswith("  ") and "type: " in line)
    assert "is valid" in platform("validate", "fit").stdout


@pytest.mark.parametrize("style", STYLES)
def test_each_style(platform, written: Path, style: str) -> None:
    text, searched, line = STYLES[style]
    (written / "fit.py").write_text(textwrap.dedent(text) + BODY)
    result = platform("init", style.replace("-", ""), "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    assert "fit.py ended after" in result.stderr, "with the arguments of its own style"
    job = made(style.replace("-", ""))
    assert set(job.search.parameters) == searched
    assert set(line) <= set(given(job)), given(job)


def test_nothing_behind_the_arguments_runs(platform, written: Path) -> None:
    (written / "fit.py").write_text(ARGPARSE + f"open({str(written / 'ran')!r}, 'w')\n" + BODY)
    result = platform("init", "fit", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    assert not (written / "ran").exists()
    # It is not run for its metrics either, as one argument has no value.
    assert "needs a value for data" in result.stderr and "runs once" not in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        ARGPARSE,
        ARGPARSE.replace('"data"', '"--data", required=True'),
        ARGPARSE.replace('"data"', '"-d", dest="data", required=True'),
        "import fire\ndef main(data, lr=0.1): ...\nif __name__ == '__main__':\n    fire.Fire(main)\n",
    ],
)
def test_a_job_that_lacks_a_value_is_not_valid(platform, written: Path, text: str) -> None:
    (written / "fit.py").write_text(text)
    assert platform("init", "fit", "--from", str(written / "fit.py")).exit_code == 0
    result = platform("validate", "fit")
    name = "d" if '"-d"' in text else "data"
    assert result.exit_code == 2 and "1 problem" in result.stderr and f"params.{name}: has no value" in result.stderr
    file = Path("jobs/fit/job.yaml")
    file.write_text(file.read_text().replace(f"{name}: null", f"{name}: table.csv"))
    assert platform("validate", "fit").exit_code == 0
    assert "table.csv" in " ".join(given(made("fit")))


def test_a_script_that_is_a_link_brings_what_is_beside_both_places(platform, written: Path, tmp_path: Path) -> None:
    """Python imports from where the script lies; its files are opened from where it is named."""
    other = tmp_path / "place" / "real"
    other.mkdir(parents=True)
    (other / "fit.py").write_text(ARGPARSE.replace('"data"', '"--data"') + "open('there.csv').close()\n" + BODY)
    (other / "own.py").write_text("from deeper import helper\n")
    (other / "deeper.py").write_text("def helper(): ...\n")
    (other / "there.csv").write_text("there")
    (other / "table.csv").write_text("of the place where the script lies")
    (written / "fit.py").symlink_to(other / "fit.py")
    Path("link").symlink_to(written)
    result = platform("init", "--from", "link/fit.py")
    assert result.exit_code == 0, result.output
    folder = Path("jobs/fit")
    assert "from deeper" in (folder / "own.py").read_text() and (folder / "deeper.py").exists()
    assert (folder / "table.csv").read_text() == "a,b\n" and (folder / "there.csv").read_text() == "there"
    assert not (folder / "fit.py").is_symlink() and "its metrics" in result.stderr


def test_a_file_that_is_a_link_to_elsewhere_is_named(platform, written: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.csv").write_text("a")
    (written / "table.csv").unlink()
    (written / "table.csv").symlink_to(tmp_path / "elsewhere.csv")
    (written / "fit.py").write_text(ARGPARSE.replace('"data"', '"--data"'))
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert "table.csv leads by a link to a place outside of the script's folder: give its whole path" in result.stderr
    assert not Path("jobs/fit/table.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ("--lr=0.1 --layers=2", ["enqueue: [{lr: 0.1, layers: 2}] # the script's defaults, tried first"]),
        (
            "--lr=0.1 --weight-decay=0.0",
            [
                "enqueue: [{lr: 0.1}] # the script's defaults, tried first; "
                "weight-decay, by default 0.0, is outside of its range"
            ],
        ),
        (
            "--weight-decay=0.0",
            ["# The script's defaults are not tried first: weight-decay, by default 0.0, is outside of its range"],
        ),
        ("--name=x", []),
    ],
)
def test_what_is_said_of_the_defaults_is_true(platform, written: Path, arguments: str, lines: list[str]) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\n"
    for name, _, value in (one.partition("=") for one in arguments.split()):
        default = repr(value) if value.isalpha() else value
        text += f"parser.add_argument({name!r}, type=type({default}), default={default})\n"
    (written / "fit.py").write_text(text + "parser.parse_args()\n")
    assert platform("init", "--from", str(written / "fit.py"), "--no-smoke").exit_code == 0
    made = Path("jobs/fit/job.yaml").read_text().splitlines()
    assert [line for line in made if "tried first" in line or line.startswith("enqueue")] == lines


def test_without_a_smoke_run_the_metric_is_a_guess(platform, written: Path) -> None:
    (written / "fit.py").write_text(STYLES["fire"][0].replace("        ", "") + BODY)
    result = platform("init", "fit", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0 and "runs once" not in result.stderr
    assert "# guessed: the script was not run; name a metric that it prints" in Path("jobs/fit/job.yaml").read_text()


def test_a_smoke_run_is_bounded(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke, "LONGEST", 2.0)
    endless = "import signal\nprint('val_acc=0.5', flush=True)\nwhile True:\n    signal.pause()\n"
    (written / "fit.py").write_text(ARGPARSE.replace('"data"', '"--data"') + endless)
    result = platform("init", "fit", "--from", str(written / "fit.py"))
    assert "fit.py was stopped after" in result.stderr and "its metrics: val_acc" in result.stderr
    assert made("fit").objectives[0].metric == "val_acc"


def test_a_script_that_fails_is_told_with_its_reason(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(written))
    noise = "import atexit\natexit.register(print, '\x1b[34mwandb: see the docs\x1b[0m')\n"
    (written / "fit.py").write_text(ARGPARSE.replace('"data"', '"--data"') + noise + "raise OSError('no such disk')\n")
    result = platform("init", "fit", "--from", str(written / "fit.py"))
    (kept,) = written.glob("trialplane-fit-*.log")
    assert f"OSError: no such disk; its whole output is in {kept}; no metrics were found" in result.stderr
    assert result.exit_code == 0 and "see the docs" not in result.stderr and "wandb: see the docs" in kept.read_text()
    assert made("fit").script == "fit.py"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("print('loss=1')\n", "does not read arguments with argparse"),
        ("x = (\n", "is not Python"),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI(int)\n", "takes the arguments of LightningCLI"),
        (
            "from lightning.pytorch.cli import LightningCLI\nclass Mine(LightningCLI): ...\nMine(int)\n",
            "takes the arguments of LightningCLI",
        ),
        (
            "import argparse\nimport no_such_library\nargparse.ArgumentParser().parse_args()\n",
            "No module named 'no_such_library'",
        ),
        (
            "import argparse\ndef never(parser): parser.parse_args()\n",
            "did not get as far as reading its arguments: it ended without reading any",
        ),
        (
            "import hydra\n@hydra.main(config_name='none')\ndef main(cfg): ...\n",
            "names no Hydra configuration that is there",
        ),
    ],
)
def test_nothing_is_made_of_what_cannot_be_searched(platform, written: Path, text: str, told: str) -> None:
    (written / "fit.py").write_text(text)
    before = sorted(Path("jobs").iterdir())
    result = platform("init", "other", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and told in result.stderr
    assert sorted(Path("jobs").iterdir()) == before


def test_a_missing_library_is_named(platform, written: Path) -> None:
    (written / "fit.py").write_text(ARGPARSE + "def late():\n    import no_such_library\n")
    result = platform("init", "fit", "--from", str(written / "fit.py"))
    assert "imports no_such_library, which is not installed here" in result.stderr


def test_a_process_that_outlives_the_script_holds_nothing_up(platform, written: Path) -> None:
    os.mkfifo(written / "held")
    held = os.open(written / "held", os.O_RDONLY | os.O_NONBLOCK)
    left = f"import subprocess\nsubprocess.Popen(['sleep', '600'], stdin=open({str(written / 'held')!r}, 'w'))\n"
    (written / "fit.py").write_text(left + ARGPARSE)
    result = platform("init", "fit", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0, result.output
    assert select.select([held], [], [], 60.0)[0] and os.read(held, 1) == b"", "it is ended with the script"
    os.close(held)


def test_what_is_there_is_left_alone(platform, written: Path) -> None:
    (written / "fit.py").write_text(ARGPARSE + f"open({str(written / 'ran')!r}, 'w')\n")
    before = Path("jobs/demo/job.yaml").read_text()
    result = platform("init", "demo", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and "already exists" in result.stderr
    assert Path("jobs/demo/job.yaml").read_text() == before and not (written / "ran").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name the job"),
        (("x", "--from", "src/onw.py"), "there is no src/onw.py; did you mean own.py?; nothing was changed"),
        (("x", "--from", "no/such.py"), "there is no no/such.py; give the path of a Python script; nothing was changed"),
        (("x", "--from", "src/table.csv"), "src/table.csv is not a Python script"),
        (("x", "--from", "src"), "src is not a Python script"),
        (("x", "--kind", "train", "--from", "a.py"), "drop --kind"),
    ],
)
def test_wrong_words(platform, written: Path, words: tuple[str, ...], told: str) -> None:
    result = platform("init", *words)
    assert result.exit_code == 2 and told in result.stderr
