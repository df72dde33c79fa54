"""Scripts of the styles that people have, unchanged, as trials: their arguments and metrics arrive.

Not checked here: everything else about scripts (test_programs.py).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from tests.worker.conftest import Bench

from trialplane.job.program import MetricSource, Program
from trialplane.wire.states import TrialState

FLAGS = ("{flags}",)
PARAMS = {"lr": 0.003, "layers": 4, "amp": True}
TRAINS = """
    for epoch in range(1, 4):
        print(f"epoch {epoch}: loss={lr / epoch} score={1 - lr / epoch}")
    assert (layers, amp) == (4, True)
"""
STYLES = {
    "argparse": (
        Program(script="train.py", arguments=FLAGS),
        """
import argparse

def train(lr, layers, amp):%s
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--amp", action="store_true")
train(**vars(parser.parse_args()))
""",
    ),
    "click": (
        Program(script="train.py", arguments=FLAGS, booleans="negated"),
        """
import click

@click.command()
@click.option("--lr", type=float, required=True)
@click.option("--layers", type=int)
@click.option("--amp/--no-amp")
def train(lr, layers, amp):%s
if __name__ == "__main__":
    train()
""",
    ),
    "fire": (
        Program(script="train.py", arguments=FLAGS, booleans="value"),
        """
import fire

def train(lr, layers, amp):%s
if __name__ == "__main__":
    fire.Fire(train)
""",
    ),
    "simple-parsing": (
        Program(script="train.py", arguments=FLAGS, booleans="value"),
        """
from dataclasses import dataclass
import simple_parsing

def train(lr, layers, amp):%s
@dataclass
class Options:
    lr: float
    layers: int = 2
    amp: bool = False

options = simple_parsing.parse(Options)
train(options.lr, options.layers, options.amp)
""",
    ),
    "hf": (
        Program(script="train.py", arguments=FLAGS, booleans="value"),
        """
from dataclasses import dataclass
from transformers import HfArgumentParser

def train(lr, layers, amp):%s
@dataclass
class Options:
    lr: float
    layers: int = 2
    amp: bool = False

def main():
    (options,) = HfArgumentParser(Options).parse_args_into_dataclasses()
    train(options.lr, options.layers, options.amp)

if __name__ == "__main__":
    main()
""",
    ),
    "hydra": (
        Program(script="train.py", arguments=("hydra.run.dir=.", "{hydra}")),
        """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    train(config.lr, config.layers, config.amp)

def train(lr, layers, amp):%s
if __name__ == "__main__":
    main()
""",
    ),
    "configurator": (
        Program(script="train.py", arguments=("big.py", "{flags}"), booleans="value"),
        """
lr = 1e-2
layers = 2
amp = False
exec(open("configurator.py").read())

def train(lr, layers, amp):%s
train(lr, layers, amp)
""",
    ),
    "parameters": (
        Program(script="train.py"),
        """
import trialplane

def train(lr, layers, amp):%s
train(**trialplane.params())
""",
    ),
    "settings": (
        Program(script="train.py", arguments=("{flags}",), booleans="value", files=("conf/settings.yaml",)),
        """
import sys
from pathlib import Path
import yaml

def train(lr, layers, amp):%s
text = Path(__file__).with_name("conf").joinpath("settings.yaml").read_bytes()
assert text.count(b"\\r\\n") == 3, "the line ends of Windows stay"
values = yaml.safe_load(text)
assert values["name"] == "a" and sys.argv[1:] == ["--amp=True"], "in the file there is no amp"
train(values["lr"], values["layers"], True)
""",
    ),
    "command": (
        Program(command=("python", "train.py", "{lr}", "{layers}")),
        """
import sys

def train(lr, layers, amp):%s
train(float(sys.argv[1]), int(sys.argv[2]), True)
""",
    ),
}
CONFIGURATOR = """
import sys
from ast import literal_eval
for text in sys.argv[1:]:
    if text.startswith("--"):
        name, value = text[2:].split("=")
        globals()[name] = literal_eval(value)
    else:
        exec(open(text).read())
"""


@pytest.mark.parametrize("style", STYLES)
def test_a_script_of_each_style(tmp_path: Path, style: str) -> None:
    program, text = STYLES[style]
    program = dataclasses.replace(program, metrics=(MetricSource("stdout"),), names=("score",), sample=PARAMS)
    code = tmp_path / "code"
    (code / "conf").mkdir(parents=True)
    (code / "conf" / "config.yaml").write_text("lr: 0.1\nlayers: 2\namp: false\n")
    (code / "conf" / "settings.yaml").write_bytes(b"lr: 9\r\nlayers: 9\r\nname: a\r\n")
    with Bench(
        tmp_path, {"train": text % TRAINS, "configurator": CONFIGURATOR, "big": "layers = 5\n"}, program=program
    ) as slot:
        request = dataclasses.replace(slot.request(""), params=PARAMS)
        sent = slot.attempt(request)
    outcome = sent[-1].outcome
    assert outcome is not None and outcome.state is TrialState.COMPLETE, outcome
    assert [report.step for event in sent for report in event.reports] == [1, 2, 3]
    assert outcome.metrics == {"loss": 0.001, "score": 0.999}


def test_a_settings_file_in_a_link_is_not_changed(tmp_path: Path) -> None:
    program, text = STYLES["settings"]
    program = dataclasses.replace(program, metrics=(MetricSource("stdout"),), names=("score",), sample=PARAMS)
    own = tmp_path / "own"
    own.mkdir()
    (own / "settings.yaml").write_text("lr: 9\nlayers: 9\nname: a\n")
    with Bench(tmp_path, {"train": text % TRAINS}, program=program, links={"conf": str(own)}) as slot:
        outcome = slot.attempt(dataclasses.replace(slot.request(""), params=PARAMS))[-1].outcome
    assert outcome is not None and outcome.state is TrialState.FAILED
    assert "conf/settings.yaml is in a link out of the trial's folder" in outcome.message
    assert (own / "settings.yaml").read_text() == "lr: 9\nlayers: 9\nname: a\n"


def test_a_socket_fits_into_the_temporary_folder_of_a_run_with_a_long_name(tmp_path: Path) -> None:
    """Workers of torch's DataLoader send tensors by such sockets."""
    text = """
import os, tempfile
from multiprocessing.connection import Listener
Listener(family="AF_UNIX").close()
print("folder:", tempfile.gettempdir(), "score=1")
assert os.path.samefile(tempfile.gettempdir(), "..")
"""
    program = Program(script="train.py", metrics=(MetricSource("stdout"),), names=("score",))
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    with Bench(folder, {"train": text}, program=program) as slot:
        outcome = slot.attempt(slot.request(""))[-1].outcome
        assert outcome is not None and outcome.state is TrialState.COMPLETE, outcome
        workdir = slot.root / "scratch"
    links = Path(f"/tmp/trialplane-{os.getuid()}")
    assert links.stat().st_mode & 0o077 == 0
    assert not [link for link in links.iterdir() if link.readlink().is_relative_to(workdir)]
