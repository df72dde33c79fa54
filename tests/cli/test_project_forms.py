"""`platform init --from` for parsers and configurations that are beside the script, and for short flags in commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.cli.conftest import command_of, given, made, write

# A double of pyrallis: an argparse parser that fills a dataclass, and forgets the types and defaults when it parses.
PYRALLIS = """
    import argparse, dataclasses, yaml
    class ArgumentParser(argparse.ArgumentParser):
        def __init__(self, config_class):
            super().__init__()
            self.config_class = config_class
            for field in dataclasses.fields(config_class):
                for inner in dataclasses.fields(field.type) if dataclasses.is_dataclass(field.type) else [None]:
                    shown, name = (inner, f"{field.name}.{inner.name}") if inner else (field, field.name)
                    self.add_argument(f"--{name}", type=shown.type, default=shown.default)
        def parse_args(self, args=None, namespace=None):
            for action in self._actions:
                action.type, action.default = str, argparse.SUPPRESS
            config = self.config_class()
            for name, text in vars(super().parse_args(args)).items():
                *sections, last = name.split(".")
                owner = getattr(config, sections[0]) if sections else config
                kind = type(getattr(owner, last))
                setattr(owner, last, kind[text] if hasattr(kind, "__members__") else yaml.safe_load(text))
            return config
"""
FIELDS = """
    import dataclasses, enum
    class Act(enum.Enum):
        RELU = 1
        GELU = 2
    @dataclasses.dataclass
    class Optim:
        lr: float = 0.1
    @dataclasses.dataclass
    class Config:
        optim: Optim = dataclasses.field(default_factory=Optim)
        act: Act = Act.RELU
        shuffle: bool = True
        sizes: list = dataclasses.field(default_factory=lambda: [4, 8])
"""
TINY = """
    class Config(dict):  # as ml_collections' is
        def to_dict(self): return dict(self)
    def get_config(): return Config(lr=0.1)
"""
CONFIG_FILE = """
    import importlib.util, sys
    from absl import flags
    class Parser(flags.ArgumentParser):
        def parse(self, path):
            spec = importlib.util.spec_from_file_location("config", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.get_config()
        def flag_type(self): return "config object"
    flags.DEFINE(Parser(), "config", None, "The configuration.")
    flags.DEFINE_string("workdir", None, "")
    flags.mark_flags_as_required(["config", "workdir"])
    flags.FLAGS([word for word in sys.argv if not word.startswith("--config.")])  # the double reads no nested ones
    print("loss=", flags.FLAGS.config["lr"])
"""
SHORT = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("-v", action="store_true")
    parser.add_argument("-t", action="store_true")
    parser.add_argument("-n", dest="epochs", type=int, default=2)
    parser.add_argument("-l", dest="lr", type=float, default=0.1)
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    args = parser.parse_args()
    print("loss=", args.lr * args.epochs)
"""
# A double of docopt, and of its result for `fit.py train --data=<file> [--lr=<lr>] <out>` or `fit.py test`.
DOCOPT = """
    import sys
    class Node:
        def __init__(self, *children, name="", long="", value=None):
            self.children, self.name, self.long, self.short = children, name or long, long, None
            self.argcount, self.value = 1, value
    class Command(Node): ...
    class Argument(Node): ...
    class Option(Node): ...
    class Either(Node): ...
    def parse_defaults(doc): return [Option(long="--data"), Option(long="--lr", value="0.1")]
    def printable_usage(doc): return doc
    formal_usage = printable_usage
    def parse_pattern(usage, options):
        train = Node(Command(name="train"), options[0], Node(options[1]), Argument(name="<out>"))
        return Node(Either(train, Node(Command(name="test"))))
    def docopt(doc): return sys.argv[1:]
"""
# A double of Sacred, of which an experiment is configured while the script runs.
SACRED = """
    class Experiment:
        def add_config(self, config): self.config = config
        def run(self, command_name, config_updates, named_configs):
            self.config |= config_updates
            return self
        def run_commandline(self, argv):
            values = dict(word.split("=") for word in argv if "=" in word)
            print("loss=", float(values.get("optim.lr", 0.1)), self.config["steps"])
"""
SACRED_WORDS = """
    def get_config_updates(words): return {word.split("=")[0]: int(word.split("=")[1]) for word in words}, []
"""
CONFIGURED = """
    import sys
    import sacred
    experiment = sacred.Experiment()
    experiment.add_config({"optim": {"lr": float("0.1")}, "steps": 2 if "--large" not in sys.argv else 5})
    experiment.run_commandline(sys.argv)
"""
GROUPS = """
    import hydra
    @hydra.main(config_path="conf", config_name="main", version_base="1.1")
    def run(cfg): print("loss=", cfg.model.width * cfg.optim.lr)
    run()
"""
PARSER = """
    import argparse
    def get_parser():
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        return parser
"""
PARSE = "print('loss=', get_parser().parse_args().lr)\n"
# Files, words after `init --from`, searched parameters, and words of a trial's arguments or of the job's command.
FORMS: dict[str, tuple[dict[str, str], list[str], set[str], list[str]]] = {
    "dataclass of pyrallis in a module": (
        {
            "pyrallis/__init__.py": "",
            "pyrallis/argparsing.py": PYRALLIS,
            "conf_types/config.py": FIELDS,
            "fit.py": """
                from conf_types.config import Act, Config
                from pyrallis.argparsing import ArgumentParser
                config = ArgumentParser(config_class=Config).parse_args()
                assert (config.act, config.shuffle, config.sizes) == (Act.RELU, True, [4, 8])
                print("loss=", config.optim.lr)
            """,
        },
        ["fit.py"],
        {"optim.lr", "act", "shuffle"},
        ["--optim.lr=0.1", "--act=RELU", "--shuffle=True", "--sizes=[4, 8]"],
    ),
    "last part of a flag's name": (
        {
            "fit.py": """
                import argparse
                parser = argparse.ArgumentParser()
                parser.add_argument("--optim.lr", type=float, default=0.1)
                print("loss=", getattr(parser.parse_args(), "optim.lr"))
            """,
        },
        ["fit.py", "--space", "lr=0.01..0.1"],
        {"optim.lr"},
        [],
    ),
    "flag of ml_collections without a file": (
        {"configs/tiny.py": TINY, "fit.py": CONFIG_FILE},
        ["fit.py"],
        {"lr"},
        ["--config", "configs/tiny.py", "--workdir", "out"],
    ),
    "flag of ml_collections in a command": (
        {"configs/tiny.py": TINY, "fit.py": CONFIG_FILE},
        ["python fit.py --config configs/tiny.py --workdir out"],
        {"config.lr"},
        ["--config.lr=0.1"],
    ),
    "file that OmegaConf's arguments must name": (
        {
            "configs/tiny.yaml": "optimizer: {lr: 0.1}\n",
            "fit.py": """
                import sys
                from omegaconf import OmegaConf
                cli = OmegaConf.from_cli()
                if "config" not in cli:
                    sys.exit("Usage: python fit.py config=FILE")
                config = OmegaConf.merge(OmegaConf.load(cli.config), cli)
                print("loss=", config.optimizer.lr)
            """,
        },
        ["fit.py"],
        {"optimizer.lr"},
        ["config=configs/tiny.yaml"],
    ),
    "file that OmegaConf's arguments name": (
        {
            "configs/tiny.yaml": "optimizer: {lr: 0.1}\n",
            "fit.py": """
                from omegaconf import OmegaConf
                cli = OmegaConf.from_cli()
                config = OmegaConf.merge(OmegaConf.load(cli.config), cli)
                print("loss=", config.optimizer.lr)
            """,
        },
        ["python fit.py config=configs/tiny.yaml"],
        {"optimizer.lr"},
        ["config=configs/tiny.yaml"],
    ),
    "constants of a module, and a command": (
        {
            "config.py": "LEARNING_RATE = 0.1\n",
            "fit.py": """
                import argparse, config
                parser = argparse.ArgumentParser()
                parser.add_argument("--seed", type=int, default=0)
                parser.parse_args()
                print("loss=", config.LEARNING_RATE)
            """,
        },
        ["python fit.py --seed 1"],
        {"LEARNING_RATE"},
        [],
    ),
    "requested constants of a module, and a command": (
        {
            "config.py": "WARMUP = 0.1\n",
            "fit.py": """
                import argparse, config
                parser = argparse.ArgumentParser()
                parser.add_argument("--lr", type=float, default=0.1)
                parser.parse_args()
                print("loss=", config.WARMUP)
            """,
        },
        ["python fit.py --lr 0.1", "--space", "WARMUP=0.1..0.2"],
        {"WARMUP"},
        [],
    ),
    "requested default of a constructor in a module": (
        {
            "model.py": "class Net:\n    def __init__(self, hidden=64): self.hidden = hidden\n",
            "fit.py": """
                import argparse
                from model import Net
                parser = argparse.ArgumentParser()
                parser.add_argument("--lr", type=float, default=0.1)
                parser.parse_args()
                print("loss=", Net().hidden)
            """,
        },
        ["python fit.py --lr 0.1", "--space", "hidden=16..32"],
        {"hidden"},
        [],
    ),
    "destinations of short flags": (
        {"fit.py": SHORT},
        ["fit.py"],
        {"lr", "batch-size"},
        ["-n", "2", "-l", "0.1", "--batch-size=8"],
    ),
    "short flags in one word": (
        {"fit.py": SHORT},
        ["python fit.py -vtn 5 -l.2 -b16"],
        {"lr", "batch-size"},
        ["-vtn", "{epochs}", "-l{lr}", "-b{batch-size}"],
    ),
    "short name of a parameter": (
        {"fit.py": SHORT},
        ["python fit.py -n 5", "--space", "l=0.1..0.2"],
        {"lr"},
        ["-n", "{epochs}"],
    ),
    "words and arguments that a usage of docopt needs": (
        {
            "docopt.py": DOCOPT,
            "table.csv": "a",
            "fit.py": "import docopt\nassert len(docopt.docopt('')) == 4\nprint('loss=0.5')\n",
        },
        ["fit.py"],
        {"lr"},
        ["train", "out", "--data=table.csv", "--lr=0.1"],
    ),
    "configuration of Sacred that is made while the script runs": (
        {"sacred/__init__.py": SACRED, "sacred/arg_parser.py": SACRED_WORDS, "fit.py": CONFIGURED},
        ["python fit.py --large with steps=3", "--space", "lr=0.1..0.5"],
        {"optim.lr"},
        ["--large", "with", "steps={steps}", "optim.lr=0.1"],
    ),
    "configuration of Sacred that a command does not change": (
        {"sacred/__init__.py": SACRED, "sacred/arg_parser.py": SACRED_WORDS, "fit.py": CONFIGURED},
        ["python fit.py --large", "--space", "lr=0.1..0.5"],
        {"optim.lr"},
        ["--large", "with", "optim.lr=0.1"],
    ),
    "values of the files that a command of Hydra and the defaults choose": (
        {
            "conf/main.yaml": "defaults: [optim: sgd, model: small]\n",
            "conf/optim/sgd.yaml": "lr: 0.1\nmomentum: 0.9\n",
            "conf/optim/adam.yaml": "# @package _group_\nlr: 0.2\nbeta: 0.99\n",
            "conf/model/small.yaml": "width: 8\n",
            "conf/model/deep.yaml": "depth: 8\n",
            "fit.py": GROUPS,
        },
        ["python fit.py optim=adam", "--space", "optim.beta=0.5..0.999", "--space", "model.width=4..16"],
        {"optim.beta", "model.width"},
        ["optim=adam", "optim.beta=0.99", "model.width=8"],
    ),
    "shell script that is started in another folder": (
        {"scripts/run.sh": "python fit.py --batch-size 8\n", "fit.py": SHORT},
        ["bash ./scripts/run.sh", "--space", "batch-size=4..16"],
        {"batch-size"},
        ["scripts/run.sh"],
    ),
    "command in several lines": (
        {"fit.py": SHORT},
        ["python fit.py \\\n  -n 5 \\\n", "--space", "l=0.1..0.2"],
        {"lr"},
        ["-n", "{epochs}"],
    ),
    "subcommand of fire whose values are in a module": (
        {
            "config.py": "class opt:\n    lr = 0.1\n",
            "fit.py": """
                import fire
                from config import opt
                def train(**changes): print("loss=", opt.lr)
                def test(**changes): ...
                fire.Fire()
            """,
        },
        ["fit.py"],
        {"lr"},
        ["train"],
    ),
    "parser in a folder above": (
        {"lib/options.py": PARSER, "tools/fit.py": "from lib.options import get_parser\n" + PARSE},
        ["tools/fit.py"],
        {"lr"},
        ["--lr=0.1"],
    ),
    "parser in a folder that a module adds to the path": (
        {
            "_paths.py": "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))\n",
            "lib/options.py": PARSER + "    def parsed(): return get_parser().parse_args()\n",
            "fit.py": "import _paths, options\nprint('loss=', options.parsed().lr)\n",
        },
        ["fit.py"],
        {"lr"},
        ["--lr=0.1"],
    ),
    "modules of the folder in which the command is typed": (
        {"lib/options.py": PARSER, "tools/fit.py": "from lib.options import get_parser\n" + PARSE},
        ["python tools/fit.py --lr 0.2"],
        {"lr"},
        ["PYTHONPATH=."],
    ),
    "path of data in a module": (
        {
            "data/rate.txt": "0.5",
            "toy/__init__.py": "",
            "toy/options.py": PARSER,
            "toy/data.py": "def rate(): return float(open('../data/rate.txt').read())\n",
            "toy/fit.py": "from toy.data import rate\nfrom toy.options import get_parser\nrate()\n" + PARSE,
        },
        ["toy/fit.py"],
        {"lr"},
        ["-C", "toy", "PYTHONPATH=.."],
    ),
    "module of a package in src": (
        {"src/toy/options.py": PARSER, "src/toy/fit.py": "from toy.options import get_parser\n" + PARSE},
        ["python -m toy.fit"],
        {"lr"},
        ["PYTHONPATH=src"],
    ),
    "package that is run, and its parser": (
        {
            "toy/__init__.py": "",
            "toy/options.py": PARSER,
            "toy/__main__.py": "from .options import get_parser\n" + PARSE,
        },
        ["python -m toy"],
        {"lr"},
        ["toy.__main__"],
    ),
    "parser that reads the arguments twice": (
        {
            "fit.py": """
                import argparse
                def options():
                    parser = argparse.ArgumentParser()
                    parser.add_argument("--model", default="small")
                    model = parser.parse_known_args()[0].model
                    parser.add_argument(f"--{model}-dropout", type=float, default=0.1)
                    return parser.parse_args()
                print("loss=", options().small_dropout)
            """,
        },
        ["fit.py"],
        {"small-dropout"},
        ["--small-dropout=0.1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_each_form(platform, workplace: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    files, words, searched, expected = FORMS[form]
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the job would have it
    monkeypatch.chdir(write(workplace / "src", files))
    result = platform("init", "--from", *words)
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    monkeypatch.chdir(workplace)
    job = made()
    assert set(job.search.parameters) == searched
    assert set(expected) <= {*given(job), *command_of(job)}, (command_of(job), given(job))


@pytest.mark.parametrize(
    ("folder", "typed"),
    [(".", "python tools/fit.py --lr 0.2"), (".", "tools/fit.py"), ("tools", "python fit.py --lr 0.2")],
)
def test_a_path_that_a_job_sets_keeps_the_folders_of_the_users(
    platform, workplace: Path, monkeypatch: pytest.MonkeyPatch, folder: str, typed: str
) -> None:
    fit = "import mine, second\nfrom lib.options import get_parser\n" + PARSE
    files = {"lib/options.py": PARSER, "tools/fit.py": fit, "own/second.py": ""}
    other, own = write(workplace / "other", {"mine.py": ""}), write(workplace / "src", files) / "own"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(other), str(own), ""]))
    monkeypatch.chdir(workplace / "src" / folder)
    result = platform("init", "--from", typed)
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
