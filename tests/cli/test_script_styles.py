"""`platform init --from` for each way in which a script takes its arguments: the arguments that are found, and those given.

Not checked here: the rest of what it makes of a script (test_from_script.py).
"""

from __future__ import annotations

import shlex
import shutil
import textwrap
from pathlib import Path

import pytest
from tests.cli.conftest import BODY, command_of, given, made

from trialplane.job import arguments, load
from trialplane.job.kinds import program

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
    "class of fire": (
        """
        import fire
        class Trainer:
            def __init__(self, lr=0.1, seed: int = 0): self.lr = lr
            def train(self, batch_size: int = 8, sizes=(4, 8)): assert (self.lr, batch_size, list(sizes)) == (0.1, 8, [4, 8])
            def evaluate(self, checkpoint): raise AssertionError
        fire.Fire(Trainer)
        """,
        {"lr", "batch_size"},
        ["train", "--lr=0.1", "--seed=0", "--sizes=[4, 8]"],
    ),
    "script of fire": (
        """
        import fire
        def fit(lr=0.1): assert lr == 0.1
        def test(): raise AssertionError
        fire.Fire()
        """,
        {"lr"},
        ["fit", "--lr=0.1"],
    ),
    "configurator": (
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
        {"model", "model.layers", "optimizer.lr"},
        ["model=small", "optimizer.lr=0.1"],
    ),
    "group": (
        """
        import click
        @click.group()
        def cli(): ...
        @cli.command()
        @click.option("--lr", default=0.1)
        def train(lr): ...
        cli(standalone_mode=False)
        """,
        {"lr"},
        ["train", "--lr=0.1"],
    ),
    "tyro": (
        """
        import dataclasses, tyro
        from typing import Literal, Optional, Tuple
        @dataclasses.dataclass
        class Optimizer:
            lr: float = 0.1
            kind: Literal["adam", "sgd"] = "adam"
        @dataclasses.dataclass
        class Args:
            optimizer: Optimizer
            cuda: bool = True
            n_steps: int = 3
            name: Optional[str] = None
            entity: str = ""
            sizes: Tuple[int, ...] = (4, 8)
        args = tyro.cli(Args)
        assert args.entity == ""
        assert args.optimizer.lr == 0.1 and args.cuda and args.n_steps == 3 and args.name is None and args.sizes == (4, 8)
        """,
        {"optimizer.lr", "optimizer.kind"},
        ["--optimizer.lr=0.1", "--optimizer.kind=adam", "--cuda", "--n-steps=3"],
    ),
    "jsonargparse": (
        """
        import jsonargparse
        def main(lr: float = 0.1, amp: bool = True, name: str = "x"):
            assert lr == 0.1 and amp is True and name == "x"
        jsonargparse.CLI(main)
        """,
        {"lr"},
        ["--lr=0.1", "--amp=True", "--name=x"],
    ),
    "absl": (
        """
        from absl import app, flags
        LR = flags.DEFINE_float("lr", 0.1, "The learning rate.")
        flags.DEFINE_enum("act", "relu", ["relu", "gelu"], "What is between the layers.")
        flags.DEFINE_bool("amp", default=True, help="")
        def main(argv):
            assert LR.value == 0.1 and flags.FLAGS.amp and flags.FLAGS.act == "relu"
        if __name__ == "__main__":
            try:
                app.run(main)
            except SystemExit as error:
                assert not error.code
        """,
        {"lr", "act"},
        ["--lr=0.1", "--act=relu", "--amp=True"],
    ),
    "configuration in a flag": (
        """
        from absl import flags
        class Config(dict):  # as ml_collections' is
            def to_dict(self): return dict(self)
        class Parser(flags.ArgumentParser):
            def parse(self, text): return Config(lr=0.1, model={"dropout": 0.5, "name": "x"})
        flags.DEFINE(Parser(), "config", "default.py", "The configuration.")
        flags.DEFINE_string("workdir", "out", "")
        flags.FLAGS(["fit.py"])  # the arguments of this double stay unread
        """,
        {"config.lr", "config.model.dropout"},
        ["--config.lr=0.1", "--config.model.name=x", "--workdir=out"],
    ),
    "types in the help": (
        """
        import argparse
        parser = argparse.ArgumentParser()  # as pydantic-settings makes it
        for name, type_, default in (("optimizer.lr", "float", 0.1), ("flag", "bool", False), ("optimizer", "JSON", {})):
            parser.add_argument(f"--{name}", default=argparse.SUPPRESS, metavar=type_, help=f"(default: {default})")
        assert getattr(parser.parse_args(), "optimizer.lr") == "0.1"
        """,
        {"optimizer.lr"},
        ["--optimizer.lr=0.1"],
    ),
    "docopt": (
        """
        '''Usage: fit.py [--lr=<lr>] [--verbose]

        Options: --lr=<lr> [default: 0.1]
        '''
        import docopt
        assert docopt.docopt(__doc__) == ["--lr=0.1"]
        """,
        {"lr"},
        ["--lr=0.1"],
    ),
    "sacred": (
        """
        import sys
        try:
            from sacred import Experiment
        except ImportError:
            class Experiment:
                def config(self, function): return function
        ex = Experiment()
        @ex.config
        def cfg():
            C = 1.0
            balanced = True
            path = "x"
        assert sys.argv[1:] == ["with", "balanced=True", "C=1.0"]
        """,
        {"C", "balanced"},
        ["with", "balanced=True", "C=1.0"],
    ),
    "several subcommands": (
        """
        import typer
        app = typer.Typer()
        @app.command()
        def evaluate(model: str): ...
        @app.command()
        def train(lr: float = 0.1): ...
        app(standalone_mode=False)
        """,
        {"lr"},
        ["train", "--lr=0.1"],
    ),
    "positions": (
        """
        import sys
        gamma = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
        try:
            alpha = float(sys.argv[1])
        except IndexError:
            alpha = 0.01
        mode = sys.argv[3] if len(sys.argv) > 3 else "quick"
        assert sys.argv[1:] == ["0.01", "0.5", "quick"]
        """,
        {"alpha", "gamma"},
        ["0.01", "0.5", "quick"],
    ),
    "globals": (
        """
        LEARNING_RATE: float = 0.1
        INPUT_SIZE = 4
        DROPOUT, SEED = 0.5, 1
        _hidden = 8
        if __name__ == "__main__":
            batch_size = 8
        """,
        {"LEARNING_RATE", "DROPOUT", "batch_size"},
        [],
    ),
    "values in functions": (
        """
        from dataclasses import dataclass
        from dataclasses import field
        def Field(value, description): return value
        @dataclass
        class Config:
            hidden: int = 16
            weight_decay: float = Field(0.01, description="as pydantic's")
            layers: int = field(default=2)
        def fit(config, learning_rate=0.1, momentum=0.7, dropout=0.0):
            assert (config["batch_size"], learning_rate, momentum) == (32, 0.1, 0.5)
        def main():
            config = {"batch_size": 32}
            fit(config, momentum=0.5)  # in place of the default
            fit(config, dropout=0.1) if config is None else None
            fit(config, dropout=0.2) if config is None else None  # two values, of which neither is the one
        if __name__ == "__main__":
            main()
        """,
        {"hidden", "learning_rate", "batch_size", "momentum", "weight_decay", "layers"},
        [],
    ),
    "attributes without arguments": (
        """
        from types import SimpleNamespace
        args = SimpleNamespace()
        args.lr = 0.1
        args.cuda = False
        """,
        {"lr"},
        [],
    ),
    "subcommands of argparse": (
        """
        import argparse
        common = argparse.ArgumentParser(add_help=False)
        common.add_argument("--dropout", type=float, default=0.5)
        parser = argparse.ArgumentParser()
        parser.add_argument("--verbose", action="store_true")
        commands = parser.add_subparsers(dest="command", required=True)
        commands.add_parser("predict", parents=[common]).add_argument("checkpoint")
        commands.add_parser("train", parents=[common]).add_argument("--lr", type=float, default=0.1)
        args = parser.parse_args()
        assert (args.command, args.lr, args.dropout) == ("train", 0.1, 0.5)
        """,
        {"lr", "dropout"},
        ["train", "--lr=0.1", "--dropout=0.5"],
    ),
    "options above subcommands": (
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        parser.add_argument("-v", action="count", default=0)
        parser.add_argument("-w", "--weight-decay", type=float)
        train = parser.add_subparsers(dest="command").add_parser("train")
        parser.add_argument("-d", default="x")  # still an option above the subcommand
        train.add_argument("--layers", type=int, default=2)
        args = parser.parse_args()
        assert (args.command, args.lr, args.layers, args.d) == ("train", 0.1, 2, "x")
        """,
        {"lr", "layers"},
        ["--lr=0.1", "-d", "x", "train", "--layers=2"],
    ),
    "options of a group of click": (
        """
        import click
        @click.group()
        @click.option("--lr", default=0.1)
        @click.option("--quiet", is_flag=True)
        @click.pass_context
        def cli(context, lr, quiet): assert lr == 0.1
        @cli.command()
        @click.option("--layers", default=2)
        def train(layers): ...
        cli(standalone_mode=False)
        """,
        {"lr", "layers"},
        ["--lr=0.1", "train", "--layers=2"],
    ),
    "optparse": (
        """
        import optparse
        parser = optparse.OptionParser()
        parser.add_option("-l", "--lr", type="float", default=0.1)
        parser.add_option("-q", action="store_true", default=False)
        parser.add_option("--name")
        options, _ = parser.parse_args()
        assert (options.lr, options.q, options.name) == (0.1, False, None)
        """,
        {"lr"},
        ["--lr=0.1"],
    ),
    "argparse and no other library": (
        """
        import argparse, sys
        assert not {"absl", "click", "docopt", "fire", "jsonargparse", "omegaconf", "typer", "tyro"} & sys.modules.keys()
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        assert parser.parse_args().lr == 0.1
        """,
        {"lr"},
        ["--lr=0.1"],
    ),
    "yacs": (
        """
        import argparse, sys, types
        sys.modules["yacs.config"] = yacs = types.ModuleType("yacs.config")  # a double of it
        class CfgNode(dict): ...
        yacs.CfgNode = CfgNode
        C = CfgNode(SOLVER=CfgNode(LR=0.1, STEPS=[1, 2]), MODEL=CfgNode(DROPOUT=0.5, NAME="x"))
        parser = argparse.ArgumentParser()
        parser.add_argument("--config-file", default="")
        parser.add_argument("opts", nargs=argparse.REMAINDER)
        args = parser.parse_args()
        assert args.config_file == "" and dict(zip(args.opts[::2], args.opts[1::2])) == {
            "SOLVER.LR": "0.1", "MODEL.DROPOUT": "0.5", "MODEL.NAME": "x"
        }
        """,
        {"SOLVER.LR", "MODEL.DROPOUT"},
        ["SOLVER.LR", "0.1", "MODEL.NAME", "x"],
    ),
    "OmegaConf": (
        """
        from omegaconf import OmegaConf
        base = OmegaConf.create({"optimizer": {"lr": 0.1}, "amp": True, "sizes": [1]})
        config = OmegaConf.merge(base, OmegaConf.from_cli())
        assert config.optimizer.lr == 0.1
        """,
        {"optimizer.lr"},
        ["optimizer.lr=0.1"],
    ),
    "structured configuration of Hydra": (
        """
        from dataclasses import dataclass
        import hydra
        from hydra.core.config_store import ConfigStore
        @dataclass
        class Config:
            lr: float = 0.1
        ConfigStore.instance().store(name="main", node=Config)
        @hydra.main(version_base=None, config_name="main")
        def main(config): assert config.lr == 0.1
        if __name__ == "__main__":
            main()
        """,
        {"lr"},
        ["lr=0.1"],
    ),
    "arguments that are not read": (
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("-l", "--lr", type=float, default=0.1)
        args = parser.parse_args([])
        """,
        {"lr"},
        [],
    ),
    "a parser of its own": (
        """
        import sys
        lr = 0.1
        for word, value in zip(sys.argv[1::2], sys.argv[2::2]):
            if word == "--lr":
                lr = float(value)
        """,
        {"lr"},
        [],
    ),
    "attributes": (
        """
        import sys
        from types import SimpleNamespace
        config = SimpleNamespace(trainer=SimpleNamespace())
        config.trainer.lr = 0.1
        config.trainer.folder = "./out"
        for flag, value in (argument[2:].split("=") for argument in sys.argv[1:]):
            assert flag == "trainer.lr" and float(value) == 0.1
        """,
        {"trainer.lr"},
        ["--trainer.lr=0.1"],
    ),
}


def test_variables_of_the_environment_are_given_by_a_command(platform, written: Path) -> None:
    text = """
        import os
        lr, layers = float(os.environ.get("LR", "0.1")), int(os.getenv("LAYERS", 2))
        home, width = os.environ["HOME"], int(os.environ["STAMP"])
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and "fit.py needs a value for STAMP" in result.stderr, result.output
    file = Path("src/job.yaml")
    file.write_text(file.read_text().replace("STAMP: null", "STAMP: 4"))
    job = made()
    assert set(job.search.parameters) == {"LR", "LAYERS"} and job.params == {"STAMP": 4}
    assert job.command == ("env", "LR={LR}", "LAYERS={LAYERS}", "STAMP={STAMP}", "python", "fit.py")


def test_booleans_are_given_as_the_parser_reads_them(platform, written: Path) -> None:
    text = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--plot", nargs="?", const=True, default=False)
        parser.add_argument("--bias", nargs="?", const=True, default=False, type=lambda text: text == "True")
        parser.add_argument("--norm", default=True)
        parser.add_argument("--shuffle", type=bool, default=True)
        args = parser.parse_args()
        assert (args.plot, args.bias) == (False, False)
    """
    (written / "fit.py").write_text(textwrap.dedent(text) + BODY)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "fit.py ended after" in result.stderr, result.output
    for name, how in (("norm", "without a type"), ("shuffle", "`type=bool`")):
        assert f"--{name}: takes a boolean {how}, which does not read the texts True and False" in result.stderr
    assert made().params["plot"] is False and given(made()) == ["--bias=False"]


def test_a_flag_of_absl_without_a_value_needs_one(platform, written: Path) -> None:
    text = """
        from absl import app, flags
        flags.DEFINE_float("lr", 0.1, "")
        flags.DEFINE_string("stamp", None, "", required=True)
        app.run(lambda argv: None)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and "fit.py needs a value for stamp" in result.stderr, result.output


DOCOPT = """
import collections, sys
Option = collections.namedtuple("Option", "short long argcount value")
def parse_defaults(doc):
    return [Option("-h", "--help", 0, False), Option(None, "--lr", 1, "0.1"), Option("-v", "--verbose", 0, False)]
def docopt(doc): return sys.argv[1:]
"""


@pytest.mark.parametrize("style", STYLES)
def test_each_style(platform, written: Path, style: str) -> None:
    text, searched, line = STYLES[style]
    (written / "docopt.py").write_text(DOCOPT)  # it is one file, which projects copy
    (written / "fit.py").write_text(textwrap.dedent(text) + BODY)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    assert "fit.py ended after" in result.stderr, "with the arguments of its own style"
    job = made()
    assert set(job.search.parameters) == searched
    assert set(line) <= set(given(job)), given(job)


@pytest.mark.slow
def test_the_arguments_of_lightning_are_those_of_its_own_classes(platform, written: Path) -> None:
    text = """
        from lightning.pytorch import LightningDataModule, LightningModule
        from lightning.pytorch.cli import LightningCLI
        class Model(LightningModule):
            def __init__(self, lr: float = 0.1, deep: bool = True): ...
        class Data(LightningDataModule):
            def __init__(self, batch_size: int = 8): ...
        LightningCLI(Model, Data)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0, result.output
    job = made()
    assert set(job.search.parameters) == {"model.lr", "data.batch_size"}
    callback = "--trainer.callbacks+=trialplane.integrations.lightning.TrialCallback"
    assert given(job) == ["fit", callback, "--model.deep=True", "--model.lr=0.1", "--data.batch_size=8"]


def test_an_objective_of_optuna_is_the_entrypoint(platform, written: Path) -> None:
    text = """
        import optuna
        def objective(trial):
            return trial.suggest_float("x", -1, 1) ** 2, trial.should_prune()
        if __name__ == "__main__":
            optuna.create_study(directions=["minimize", "maximize"]).optimize(objective, n_trials=7)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and "pruner" in result.stderr, "which is checked as submit would"
    Path("src/job.yaml").unlink()
    text = text.replace(", trial.should_prune()", ", 1").replace('"maximize"', "optuna.study.StudyDirection.MAXIMIZE")
    (written / "fit.py").write_text(textwrap.dedent(text))
    assert platform("init", "--from", str(written / "fit.py")).exit_code == 0
    job = made()
    assert (job.entrypoint, job.trials) == ("optuna:fit:objective", 7)
    assert [(one.metric, one.direction) for one in job.objectives] == [("value_0", "minimize"), ("value_1", "maximize")]


@pytest.mark.parametrize(
    ("arguments", "asks", "pruner"),
    [
        ("", True, "asha"),
        ("pruner=None", True, "asha"),
        ("pruner=optuna.pruners.MedianPruner()", True, "median"),
        ("pruner=optuna.pruners.NopPruner()", True, "none"),
        ("", False, "none"),
    ],
    ids=str,
)
def test_a_study_without_a_pruner_has_asha_if_trials_ask(
    platform, written: Path, arguments: str, asks: bool, pruner: str
) -> None:
    text = f"""
        import optuna
        def objective(trial):
            x = trial.suggest_float("x", -1, 1)
            trial.report(x, 1)
            if {"trial.should_prune()" if asks else "x > 2"}:
                raise optuna.TrialPruned
            return x
        if __name__ == "__main__":
            optuna.create_study({arguments}).optimize(objective, n_trials=3)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    assert platform("init", "--from", str(written / "fit.py"), "--no-smoke").exit_code == 0
    assert made().pruner.name == pruner


STUDY_WITH_ARGUMENTS = """
import argparse
import optuna
MANY = 40
def objective(trial):
    return trial.suggest_float("x", -1, 1) ** 2
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n_trials", type=int, default=6)
    parser.add_argument("--n_startup_trials", type=int, default=5)
    parser.add_argument("--resolution", type=int, default=8)
    args = parser.parse_args()
    optuna.create_study().optimize(objective, n_trials=args.n_trials)
"""


@pytest.mark.parametrize(("trials", "wanted"), [("args.n_trials", 6), ("MANY", 40), ("count()", 20), ("None", 20)])
def test_the_number_of_trials_of_a_study_is_read_or_its_lack_is_told(
    platform, written: Path, trials: str, wanted: int
) -> None:
    (written / "fit.py").write_text(STUDY_WITH_ARGUMENTS.replace("n_trials=args.n_trials", f"n_trials={trials}"))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and made().trials == wanted, result.output
    assert ("shows no number of trials" in result.stderr) == (wanted == 20)


@pytest.mark.services
def test_a_command_that_starts_a_search_is_the_job_of_that_search(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (written / "own" / "data").mkdir(parents=True)
    (written / "own" / "data" / "scale.txt").write_text("4")
    text = STUDY_WITH_ARGUMENTS.replace("** 2\n", "** 2 * SCALE * int(open('data/scale.txt').read()) * args.resolution\n")
    (written / "own" / "fit.py").write_text(text.replace("MANY", "SCALE = int(open('data/scale.txt').read())\nMANY"))
    monkeypatch.chdir(written)
    result = platform("init", "--from", "cd own && python fit.py --n_trials 2 --resolution=-3")
    assert result.exit_code == 0 and "the search of fit.py is the job: value minimized, 2 trials" in result.stderr
    result = platform("submit", "hpo", "own", "--local")
    assert result.exit_code == 0, result.output
    x, value = (float(platform("results").stdout.splitlines()[1].split()[index]) for index in (3, 2))
    assert value == pytest.approx(x**2 * 16 * -3, rel=0.02), "with the files of its folder and the argument"


def test_a_variable_of_a_command_that_starts_a_search_is_replaced_in_the_trial(platform, written: Path) -> None:
    Path("fit.py").write_text(STUDY_WITH_ARGUMENTS)
    result = platform("init", "--from", "NAME='a $LATER' python fit.py --n_trials 2", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert "os.environ |= {'NAME': os.path.expandvars('a $LATER')}" in Path("fit_objective.py").read_text()


SUBCOMMANDS = """
import click, json, optuna
@click.group()
def app(): ...
@app.command()
@click.option("--args-path", default="../conf/args.json")
@click.option("--folds", default=3)
def train_model(args_path, folds): print("loss=%f" % json.load(open(args_path))["lr"])
@app.command()
@click.option("--num-trials", default=3)
def tune(num_trials): optuna.create_study().optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=num_trials)
if __name__ == "__main__":
    app()
"""


def test_a_search_in_another_subcommand_does_not_matter(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (written / "own").mkdir()
    (written / "own" / "main.py").write_text(SUBCOMMANDS)
    (written / "conf" / "args.json").write_text('{"lr": 0.1, "dropout": 0.5}')
    monkeypatch.chdir(written / "own")
    command = "python main.py train-model --args-path ../conf/args.json"
    result = platform("init", "--from", command)
    assert f"the job is made in {written}, which has both, of `cd own && {command}`" in result.stderr
    monkeypatch.chdir(written)
    assert result.exit_code == 0 and "search of its own" not in result.stderr, result.output
    job = load.load_job(written)
    assert job.arguments.files == ("conf/args.json",) and set(job.search.parameters) == {"lr", "dropout"}
    Path("job.yaml").unlink()
    result = platform("init", "--from", "own/main.py")
    told = "`platform init --from 'python own/main.py tune'`"
    assert result.exit_code == 2 and told in result.stderr and not Path("job.yaml").exists(), result.output
    result = platform("init", "--from", "python own/main.py tune --num-trials 5")
    assert result.exit_code == 0, result.output
    assert (load.load_job(written).entrypoint, load.load_job(written).trials) == ("optuna:main_objective:objective", 5)


ONE_COMMAND = """
import click, optuna, typer
app = typer.Typer()
@click.command()
@click.option("--num-trials", "-n", default=12)
def tune(num_trials):
    def objective(trial): return trial.suggest_float("x", 0, 1)
    optuna.create_study().optimize(objective, n_trials=num_trials)
if __name__ == "__main__":
    tune()
"""
TYPER = "@app.command()\ndef tune(num_trials: int = 12):"


@pytest.mark.parametrize("is_typer", [False, True])
def test_the_only_command_of_click_or_typer_is_no_subcommand(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, is_typer: bool
) -> None:
    text = ONE_COMMAND
    if is_typer:
        start, end = text.index("@click.command"), text.index("    def objective")
        text = f"{text[:start]}{TYPER}\n{text[end:]}".replace("    tune()", "    app()")
    (written / "fit.py").write_text(text)
    monkeypatch.chdir(written)
    for source, trials in (("python fit.py --num-trials 10", 10), ("fit.py", 12)):
        result = platform("init", "--from", source)
        assert result.exit_code == 0, result.output
        job = load.load_job(written)
        assert (job.entrypoint, job.trials) == ("optuna:fit_objective:objective", trials)
        for name in ("job.yaml", "fit_objective.py"):
            (written / name).unlink()


def test_a_search_does_not_hide_the_arguments_that_the_user_searches(platform, written: Path) -> None:
    (written / "fit.py").write_text(STUDY_WITH_ARGUMENTS)
    result = platform("init", "--from", "src/fit.py", "--space", "resolution=4..8", "--no-smoke")
    assert result.exit_code == 0 and "each trial of this job is a whole search" in result.stderr, result.output
    assert set(made().search.parameters) == {"resolution"} and made().script == "fit.py"


@pytest.mark.services
def test_the_objective_of_a_script_below_the_job_is_found(platform, written: Path) -> None:
    (written / "own").mkdir()
    (written / "shared.py").write_text("HIGH = 1\n")
    text = "import optuna, sys\nsys.path.append('..')\nimport shared\n"
    (written / "own" / "fit.py").write_text(
        f"{text}optuna.create_study().optimize(lambda trial: trial.suggest_float('x', 0, shared.HIGH), n_trials=2)\n"
    )
    result = platform("init", "--from", "src/own/fit.py")
    assert result.exit_code == 0 and "src/fit_objective.py is written" in result.stderr, result.output
    result = platform("submit", "hpo", "src", "--local")
    assert result.exit_code == 0, result.output


def test_the_sampler_and_the_pruner_of_a_study_are_the_jobs(platform, written: Path) -> None:
    text = """
        import optuna
        from optuna.pruners import HyperbandPruner
        def objective(trial):
            return trial.suggest_float("x", 0, 1)
        if __name__ == "__main__":
            sampler = optuna.samplers.TPESampler(seed=7, multivariate=True, gamma=lambda n: 3)
            study = optuna.create_study(sampler=sampler, pruner=HyperbandPruner(min_resource=2), storage="sqlite:///a.db")
            study.optimize(objective, n_trials=9, n_jobs=2, timeout=600)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert "sampler: gamma of TPESampler cannot be read" in result.stderr and "storage: a run has a ledger" in result.stderr
    job = made()
    assert (job.sampler.name, job.sampler.options) == ("tpe", {"multivariate": True})
    assert (job.pruner.name, job.pruner.options) == ("hyperband", {"min_resource": 2})
    assert (job.seed, job.parallel, job.budget.time) == (7, 2, 600)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            "pruner=optuna.pruners.PatientPruner(optuna.pruners.MedianPruner(), patience=1)",
            "MedianPruner() of PatientPruner",
        ),
        ("pruner=optuna.pruners.PercentilePruner(25.0)", "25.0 of PercentilePruner"),
        ("sampler=optuna.samplers.GridSampler({'x': [1, 2]})", "of GridSampler cannot be read"),
        ("sampler=optuna.samplers.TPESampler(seed=input())", "seed of TPESampler"),
        ("sampler=Mine()", "Mine is none of"),
        ("pruner=None", ""),
    ],
)
def test_what_of_a_study_cannot_be_read_is_told_and_the_job_is_valid(platform, written: Path, call: str, told: str) -> None:
    text = f"""
        import optuna
        def objective(trial):
            return trial.suggest_float("x", 0, 1)
        if __name__ == "__main__":
            optuna.create_study({call}).optimize(objective, n_trials=9, timeout=2592000)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and told in result.stderr, result.output
    assert made().budget.time == 2592000


@pytest.mark.parametrize("passed", ["objective", "lambda trial: Objective(1)(trial)"])
def test_an_objective_that_cannot_be_imported_is_that_of_a_module(platform, written: Path, passed: str) -> None:
    text = f"""
        import optuna
        class Objective:
            def __init__(self, high):
                self.high = high
            def __call__(self, trial):
                return trial.suggest_float("x", 0, self.high)
        if __name__ == "__main__":
            objective = Objective(1)
            optuna.create_study().optimize({passed}, n_trials=9)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "src/fit_objective.py is written" in result.stderr, result.output
    assert made().entrypoint == "optuna:fit_objective:objective"
    (written / "job.yaml").unlink()
    assert "fit_objective.py already exists" in platform("init", "--from", str(written / "fit.py")).stderr
    (written / "fit.py").write_text(f"{textwrap.dedent(text)}\nbest = Objective(1)\n".replace(f"({passed}", "(best"))
    assert platform("init", "--from", str(written / "fit.py")).exit_code == 0
    assert made().entrypoint == "optuna:fit:best"


def test_values_of_a_study_are_those_of_its_variables_and_flags(platform, written: Path) -> None:
    text = """
        import argparse
        import optuna
        parser = argparse.ArgumentParser()
        parser.add_argument("--pruning", "-p", action="store_true")
        args = parser.parse_args()
        SEED, FIRST = 3, {"x": 0.5}
        STARTUP = 2 * 4
        def objective(trial):
            return trial.suggest_float("x", 0, 1)
        def other(trial):
            return -trial.suggest_float("x", 0, 1)
        if __name__ == "__main__":
            pruner = optuna.pruners.MedianPruner(n_warmup_steps=STARTUP) if not args.pruning else optuna.pruners.NopPruner()
            study = optuna.create_study(pruner=pruner, direction="maximize")
            study.enqueue_trial({"x": 0.25, "kind": "a"})
            study.enqueue_trial(FIRST)
            study.enqueue_trial(dict(zip("x", input())))
            study.optimize(objective, n_trials=9)
            optuna.create_study().optimize(other, n_trials=3)
    """.replace("SEED, FIRST = 3, ", "FIRST = ")
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    job = made()
    assert (job.pruner.name, job.pruner.options) == ("median", {"n_warmup_steps": 8})
    assert list(job.enqueue) == [{"x": 0.25, "kind": "a"}, {"x": 0.5}] and "enqueue_trial: only running" in result.stderr
    assert "only the first search, of objective, is taken" in result.stderr
    assert "--set entrypoint=optuna:fit:other" in result.stderr


LIBRARIES = {
    "from hyperopt import fmin\nfmin(f, {}, max_evals=7)": ("loss", "minimize", "tpe", 7),
    "from sklearn.model_selection import RandomizedSearchCV as S\nS(m, {}).fit(x, y)": (
        "mean_test_score",
        "maximize",
        "random",
        10,
    ),
    "from sklearn import model_selection as s\ng = {'a': [1, 2], 'b': [None] * 3}\ns.GridSearchCV(m, g).fit(x, y)": (
        "mean_test_score",
        "maximize",
        "bruteforce",
        6,
    ),
    "import skopt\nskopt.gp_minimize(f, [], n_calls=8)": ("value", "minimize", "tpe", 8),
    "import keras_tuner as kt\nkt.RandomSearch(b, kt.Objective('val_f1', 'max'), max_trials=4).search(x)": (
        "val_f1",
        "maximize",
        "tpe",
        4,
    ),
    "import bayes_opt\nb = bayes_opt.BayesianOptimization(f, {})\nb.maximize(2, n_iter=3)": ("target", "maximize", "tpe", 5),
}


@pytest.mark.parametrize("text", LIBRARIES)
def test_a_search_of_another_library_is_the_job(platform, written: Path, text: str) -> None:
    (written / "fit.py").write_text(f"{text}\nlr = 0.1\n")
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    metric, direction, sampler, trials = LIBRARIES[text]
    job = made()
    assert (job.entrypoint, job.sampler.name, job.trials) == ("optuna:fit_objective:objective", sampler, trials)
    assert [(one.metric, one.direction) for one in job.objectives] == [(metric, direction)]


SEARCH_MODULE = """
import optuna
def objective(trial): return trial.suggest_float("x", 0, 1)
def search(count, direction="maximize"): optuna.create_study(direction=direction).optimize(objective, n_trials=count)
def unused(): optuna.create_study().optimize(objective, n_trials=99)
"""
TUNE_MODULE = """
from ray import tune
def fit(config): tune.report({"loss": config["lr"]})
def search(samples=6): tune.run(fit, config={"lr": tune.uniform(0, 1)}, num_samples=samples, metric="loss", mode="min")
"""


def test_a_search_in_a_module_that_the_script_calls_is_the_job(platform, written: Path) -> None:
    (written / "fit.py").write_text("from tuning import search\nlr = 0.1\nsearch(7)\n")
    (written / "tuning.py").write_text(SEARCH_MODULE)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    job = made()
    assert (job.entrypoint, job.trials) == ("optuna:fit_objective:objective", 7)
    assert job.objectives[0].direction == "maximize"
    (written / "job.yaml").unlink()
    (written / "fit.py").write_text("from tuning import objective\nlr = 0.1\nprint('loss:', lr)\n")
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0 and set(made().search.parameters) == {"lr"}, "which the script does not start"
    (written / "tuning.py").write_text(TUNE_MODULE)
    (written / "fit.py").write_text("import tuning\nlr = 0.1\ntuning.search()\n")
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "the search that fit.py starts is in tuning.py" in result.stderr, result.output
    job = load.load_job(Path("jobs/tuning"))
    assert (job.entrypoint, job.trials) == ("ray:tuning:fit", 6)


@pytest.mark.parametrize(
    "text",
    [
        "for m in (1, 2):\n    GridSearchCV(m, {'a': [1, 2]}).fit(x, y)",
        "GridSearchCV(m, {'a': [1, 2]}).fit(x, y)\nGridSearchCV(n, {'a': [1]}).fit(x, y)",
    ],
)
def test_further_searches_of_a_script_are_told(platform, written: Path, text: str) -> None:
    (written / "fit.py").write_text(f"from sklearn.model_selection import GridSearchCV\n{text}\n")
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "only the search that starts first is taken" in result.stderr, result.output


def test_a_sweep_of_wandb_may_be_in_a_file_that_the_script_names(platform, written: Path) -> None:
    text = "import wandb, yaml\ndef fit(): ...\nsweep = yaml.safe_load(open('sweep.yaml'))\n"
    (written / "fit.py").write_text(f"{text}wandb.agent(wandb.sweep(sweep), function=fit, count=4)\n")
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and "neither in its text nor in a file that it names" in result.stderr
    (written / "sweep.yaml").write_text("metric: {name: loss}\nparameters: {lr: {min: 0.1, max: 0.5}}\n")
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "the sweep is that of src/sweep.yaml" in result.stderr, result.output
    assert (made().script, made().trials, set(made().search.parameters)) == ("fit.py", 4, {"lr"})


def test_values_of_a_script_that_asks_and_tells_a_study_are_not_searched(platform, written: Path) -> None:
    (written / "fit.py").write_text("import optuna\nbatch_size = 8\nstudy = optuna.create_study()\nstudy.ask()\n")
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0 and "searches by itself, by optuna" in result.stderr, result.output
    assert not made().search.parameters


def test_a_search_that_starts_when_the_script_is_imported_is_not_started(platform, written: Path) -> None:
    text = "import optuna\ndef objective(trial): return trial.suggest_float('x', 0, 1)\n"
    (written / "fit.py").write_text(f"{text}optuna.create_study().optimize(objective, n_trials=3)\n")
    assert platform("init", "--from", str(written / "fit.py")).exit_code == 0
    assert (made().entrypoint, made().trials) == ("optuna:fit_objective:objective", 3)


def test_hydras_main_may_be_imported_by_its_name(platform, written: Path) -> None:
    text = """
        from hydra import main
        @main(config_path=None, config_name=None, version_base=None)
        def run(cfg):
            print("loss=1")
        run()
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and "no configuration has as +NAME" in result.stderr


HYDRA = """
    import hydra
    @hydra.main(version_base=None, config_path="conf", config_name="config")
    def main(cfg):
        return {returned}
    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("returned", "direction"), [("cfg.val_accuracy", "maximize"), ("-cfg.val_accuracy", "minimize"), ("cfg.x", "minimize")]
)
def test_what_a_function_returns_to_hydra_is_the_objective(platform, written: Path, returned: str, direction: str) -> None:
    (written / "fit.py").write_text(textwrap.dedent(HYDRA.format(returned=returned)))
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0 and "the function's return value is the objective" in result.stderr, result.output
    job = made()
    assert job.capture == ("hydra",) and job.pruner.name == "none"
    assert [(one.metric, one.direction) for one in job.objectives] == [("objective", direction)]


def test_the_sweep_of_a_hydra_script_is_the_space(platform, written: Path) -> None:
    (written / "fit.py").write_text(textwrap.dedent(HYDRA.format(returned="cfg.x")))
    sweep = "{ax_config: {max_trials: 4, params: {optimizer.lr: {type: range, bounds: [0.1, 0.2]}}}}"
    config = f"defaults: [override hydra/sweeper: ax]\noptimizer: {{lr: 0.1}}\nhydra: {{sweeper: {sweep}}}\n"
    (written / "conf" / "config.yaml").write_text(config)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "the sweep in the configuration is the job" in result.stderr, result.output
    job = made()
    assert (job.script, job.trials, set(job.search.parameters)) == ("fit.py", 4, {"optimizer.lr"})
    (written / "job.yaml").unlink()
    (written / "conf" / "config.yaml").write_text(config.replace("[0.1, 0.2]", "0.1"))
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0 and "needs type range with bounds" in result.stderr, result.output
    assert made().search.parameters["optimizer.lr"].log, "guessed, as the sweep cannot be read"


def test_the_direction_of_a_study_may_be_a_member_of_optunas_enum(platform, written: Path) -> None:
    text = """
        import optuna
        def objective(trial):
            return trial.suggest_float("x", -1, 1)
        if __name__ == "__main__":
            optuna.create_study(direction=optuna.study.StudyDirection.MAXIMIZE).optimize(objective, n_trials=7)
    """
    (written / "fit-it.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit-it.py"))
    assert result.exit_code == 0 and made().entrypoint == "optuna:fit_it_objective:objective", "its name is none of a module"
    assert [one.direction for one in made().objectives] == ["maximize"]


def test_a_sweep_in_the_script_is_the_space(platform, written: Path) -> None:
    text = """
        import wandb
        sweep = {
            "method": "random",
            "metric": {"name": "score", "goal": "maximize"},
            "parameters": {"x": {"min": 0.1, "max": 1.0}, "y": {"values": [1, 3]}},
        }
        def main():
            with wandb.init() as run:
                run.log({"score": run.config.x})
        wandb.agent(wandb.sweep(sweep, project="p"), function=main, count=4)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    job = made()
    assert (job.script, job.capture, job.trials, set(job.search.parameters)) == ("fit.py", ("wandb",), 4, {"x", "y"})
    assert given(job) == [] and job.objectives[0].metric == "score"


def test_a_sweep_that_is_put_together_is_read(platform, written: Path) -> None:
    text = """
        import wandb
        config = dict(method="random")
        config["metric"] = metric = {"name": "score", "goal": "maximize"}
        parameters = {"x": {"values": [1, 3]}}
        config["parameters"] = parameters
        parameters.update({"y": {"min": 0.1, "max": 1.0}})
        parameters["epochs"] = {"value": 3}
        def main():
            with wandb.init() as run:
                run.log({"score": run.config.x})
        wandb.agent(wandb.sweep(config, project="p"), function=main, count=4)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    job = made()
    assert set(job.search.parameters) == {"x", "y"} and job.params == {"epochs": 3}
    assert job.objectives[0].metric == "score"


def test_of_many_arguments_the_likely_ones_are_searched_and_the_others_are_comments(platform, written: Path) -> None:
    likely = ["lr", "weight-decay", "dropout", "batch-size", "hidden", "layers"]
    text = (
        "import argparse\nparser = argparse.ArgumentParser()\nfor index in range(150):\n"
        "    parser.add_argument(f'--bias-{index}', action='store_true')\n"
        "    parser.add_argument(f'--width-{index}', type=int, default=8)\n"
        "parser.add_argument('--model-ema-decay', type=float, default=0.9998)\n"
        "parser.add_argument('--lr', type=float, default=None)\nparser.add_argument('--min-lr', type=float, default=1e-6)\n"
        "parser.add_argument('--weight-decay', type=float, default=2e-5)\n"
        "parser.add_argument('--dropout', type=float, default=0.1)\n"
        "parser.add_argument('--batch-size', type=int, default=32)\n"
        "parser.add_argument('--hidden', type=int, default=32)\nparser.add_argument('--layers', type=int, default=2)\n"
        "parser.parse_args()\n"
    )
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert result.exit_code == 0, result.output
    job = made()
    assert set(job.search.parameters) == set(likely) and not job.params
    comments = [line for line in Path("src/job.yaml").read_text().splitlines() if line.startswith("  # ")]
    assert "  # model-ema-decay: 0.9998" in comments and len(comments) > 300


READS = """
    import json, sys
    from pathlib import Path
    import yaml
    values = yaml.safe_load(open("{file}"))["train"]
    Path("scores").mkdir(exist_ok=True)
    Path("scores/metrics.json").write_text(json.dumps({{"accuracy": values["lr"], "args": sys.argv[1:]}}, indent=2))
"""
SHELL = """#!/bin/bash
set -eu
LR=${LR:-0.1}  # of Adam
OUT="${OUT_DIR:-./out}"
DEPTH=${1:-3}
TOKEN=${TOKEN:-}
echo "val_loss=$LR depth: $DEPTH in $OUT"
"""
MLPROJECT = """
name: fit
entry_points:
  main:
    parameters:
      alpha: {type: float, default: 1}
      depth: {type: int, default: 3}
      unused: {default: 4}
    command: "bash fit.sh {depth} --alpha={alpha}"
"""


@pytest.mark.parametrize(
    ("name", "searched", "command"),
    [
        (
            "fit.sh",
            {"LR", "DEPTH"},
            ("env", "LR={LR}", "OUT_DIR={OUT_DIR}", "bash", "fit.sh", "{DEPTH}"),
        ),
        ("MLproject", {"alpha", "depth"}, ("bash", "fit.sh", "{depth}", "--alpha={alpha}")),
    ],
)
def test_a_file_that_starts_a_script_is_a_command(
    platform, written: Path, name: str, searched: set[str], command: tuple[str, ...]
) -> None:
    (written / "fit.sh").write_text(SHELL)
    (written / "MLproject").write_text(MLPROJECT)
    result = platform("init", "--from", str(written / name))
    assert result.exit_code == 0 and "ended after" in result.stderr, result.output
    job = made()
    assert (job.command, set(job.search.parameters)) == (command, searched)
    assert job.objectives[0].metric == "val_loss", "by a run of it"
    (written / "job.yaml").unlink()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("fit.sh", "# LR=0.1\nNAME=x\n", "has no parameters; write LR=${LR:-0.1}"),
        ("Makefile", "NAME = x\nfit:\n\techo\n", "has no parameters; write LR ?= 0.1"),
        ("MLproject", "entry_points: {main: {command: 'echo {x}', parameters: {y: {default: 1}}}}", "has no parameters"),
        ("MLproject", "[]", "has no parameters; an entry point needs"),
    ],
)
def test_what_starts_a_script_without_parameters_is_told_what_to_write(
    platform, written: Path, name: str, text: str, told: str
) -> None:
    (written / name).write_text(text)
    result = platform("init", "--from", str(written / name))
    assert result.exit_code == 2 and told in result.stderr and not (written / "job.yaml").exists(), result.output


def test_an_exported_notebook_runs_without_its_magics(platform, written: Path) -> None:
    text = "get_ipython().system('exit 3')\nget_ipython().run_cell_magic('time', '', 'lr = 0.1\\n')\nprint(f'loss={lr}')\n"
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "leave out its magics" in result.stderr, result.output
    assert (set(made().search.parameters), made().objectives[0].metric) == ({"lr"}, "loss")
    assert (written / "fit.py").read_text() == text


def test_a_metric_behind_its_value_is_found_once(platform, written: Path) -> None:
    text = "C = 1.0\nprint('CV values: 0.1 0.2')\nprint('0.977 accuracy with a standard deviation of 0.01')\n"
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert "its metrics: accuracy" in result.stderr, result.output
    assert made().objectives[0].metric == "accuracy"
    (written / "job.yaml").unlink()
    (written / "fit.py").write_text("C = 1.0\nprint('[1] validation-rmse: 0.1')\n")
    assert "its metrics: validation-rmse\n" in platform("init", "--from", str(written / "fit.py")).stderr


CONFIG_ARGUMENTS = """
import argparse, sys

class Parser(argparse.ArgumentParser):  # as ConfigArgParse's: a file has arguments, which typed ones override
    def parse_known_args(self, args=None, namespace=None):
        args = list(sys.argv[1:] if args is None else args)
        file = args[args.index("--config") + 1]
        lines = [line.split(" = ") for line in open(file).read().splitlines()]
        words = [word for name, value in lines for word in ([f"--{name}"] if value == "True" else [f"--{name}", value])]
        return super().parse_known_args(words + args, namespace)

parser = Parser()
parser.add_argument("--config")
parser.add_argument("--lrate", type=float, default=5e-4)
parser.add_argument("--netwidth", type=int, default=256)
parser.add_argument("--nodes", type=int, default=1)
parser.add_argument("--use_bias", action="store_true")
parser.add_argument("--epochs", "-e", type=int, default=9)
args = parser.parse_args()
assert args.use_bias
print(f"val_loss={args.lrate * args.netwidth * args.epochs}")
"""


@pytest.mark.parametrize("is_in_folder", [False, True])
def test_arguments_that_a_typed_command_does_not_name_are_appended_to_it(
    platform, workplace: Path, monkeypatch: pytest.MonkeyPatch, is_in_folder: bool
) -> None:
    folder = workplace / "src" / "run" if is_in_folder else workplace / "src"
    folder.mkdir(parents=True)
    monkeypatch.chdir(workplace / "src")
    (folder / "fit.py").write_text(CONFIG_ARGUMENTS)
    (folder / "lego.txt").write_text("netwidth = 64\nuse_bias = True\n")
    command = "python fit.py --config lego.txt -e 2"
    result = platform("init", "--from", f"cd run && {command} 2>&1 | cat" if is_in_folder else command)
    assert result.exit_code == 0 and "--use_bias: stays on, as in the command or its file" in result.stderr, result.output
    monkeypatch.chdir(workplace)
    job = made()
    assert set(job.search.parameters) == {"lrate", "netwidth"} and job.params == {"epochs": 2}
    assert (job.search.parameters["netwidth"].low, job.search.parameters["netwidth"].high) == (32, 128), "by the file"
    assert set(given(job)) >= {"--lrate=0.0005", "--netwidth=64"}
    shell = ("bash", "-c", 'cd run && python fit.py --config lego.txt -e {epochs} "$@" 2>&1 | cat', "bash")
    assert command_of(job) == (shell if is_in_folder else ("python", "fit.py", "--config", "lego.txt", "-e", "{epochs}"))
    assert job.objectives[0].metric == "val_loss" and "its metrics: val_loss" in result.stderr


def test_a_list_reaches_fire_as_one_argument(platform, written: Path) -> None:
    (written.parent / "fit.py").write_text("import fire\ndef main(lr=0.1, on=['q']): print('loss=1')\nfire.Fire(main)\n")
    platform("init", "--from", "python fit.py --lr 0.1", "--space", "on=[q,v],[q,k,v]", "--no-smoke")
    job = load.load_job(written.parent)
    field = job.arguments
    words = arguments.build(field.items, {"lr": 0.1, "on": ["q", "v"]}, {}, field.booleans, field.lists)
    assert job.search.parameters["on"].points() == [["q", "v"], ["q", "k", "v"]] and "--on=['q', 'v']" in words


YACS = """
import argparse, sys, types
sys.modules["yacs.config"] = yacs = types.ModuleType("yacs.config")  # a double of it
class CfgNode(dict): ...
yacs.CfgNode = CfgNode
C = CfgNode(SOLVER=CfgNode(LR=0.1), MODEL=CfgNode(DROPOUT=0.5))
parser = argparse.ArgumentParser()
parser.add_argument("--temperature", type=float, default=0.5)
parser.add_argument("--amp", action="store_true")
parser.add_argument("opts", nargs=argparse.REMAINDER)
args = parser.parse_args()
values = dict(zip(args.opts[::2], args.opts[1::2], strict=True))
assert set(values) <= {"SOLVER.LR", "MODEL.DROPOUT"}, values
print(f"val_loss={values.get('SOLVER.LR', 1)}")
"""


@pytest.mark.parametrize("typed", ["--temperature 0.4 SOLVER.LR 0.1", "--temperature 0.4", ""])
@pytest.mark.parametrize("has_values", [True, False])
def test_keys_of_yacs_are_appended_as_pairs_also_those_that_are_added_later(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, typed: str, has_values: bool
) -> None:
    hidden_values = YACS.replace("C = ", "def defaults(): return ").replace("args =", "# merge_from_list\nargs =")
    (written / "fit.py").write_text(YACS if has_values else hidden_values)
    monkeypatch.chdir(written)
    space = "MODEL.DROPOUT=0.1..0.2"
    result = platform("init", "--from", f"python fit.py {typed}".strip(), "--space", space)
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    monkeypatch.chdir(written.parent)
    job, added = made(), {"MODEL.DROPOUT": 0.15, "SOLVER.LR": 0.2}
    plan = program.from_job(job)
    assert plan is not None
    words = arguments.build((*(plan.command or ("python", job.script)), *plan.arguments), {**job.params, **added}, {})
    first = min(words.index("SOLVER.LR"), words.index("MODEL.DROPOUT"))
    pairs = words[first:]
    assert dict(zip(pairs[::2], pairs[1::2], strict=True)) == {"SOLVER.LR": "0.2", "MODEL.DROPOUT": "0.15"}, words
    assert typed == "" or words[:4] == ["python", "fit.py", "--temperature", "0.4"]


TYRO_ABOVE = """
import dataclasses, os
import tyro
from shared.losses import loss

@dataclasses.dataclass
class Args:
    learning_rate: float = 0.1
    tau: float = 1.0

if __name__ == "__main__":
    assert os.environ["OMP_NUM_THREADS"] == "1"
    args = tyro.cli(Args)
    print(f"val_loss={loss(args.learning_rate)}")
"""


def test_a_switch_of_the_command_is_searched(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--use-amp", action="store_true")
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
print("val_loss:", args.lr + args.use_amp)
"""
    (written / "fit.py").write_text(text)
    monkeypatch.chdir(written)
    command = ("python fit.py --use-amp --lr 0.2", "--space", "lr=0.1..1", "--objective", "val_loss:min", "--no-smoke")
    result = platform("init", "--from", *command, "--space", "use-amp=true,false")
    assert "--use-amp: taken out of the command, because it is searched\n" in result.stderr, result.output
    written_job = Path("job.yaml").read_text()
    assert '\nscript: fit.py\narguments: [--lr, "{lr}", "{flags}"]\n' in written_job, written_job
    assert "\n  use-amp: {type: categorical, choices: [true, false]}\n" in written_job
    assert "enqueue: [{lr: 0.2, use-amp: true}]" in written_job, "as in the command"
    Path("job.yaml").unlink()
    result = platform("init", "--from", *command)
    assert "not a parameter: --use-amp: stays on, as in the command or its file" in result.stderr, result.output


def test_a_package_that_is_installed_is_the_installed_one(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As for the command, whose script is in the package's folder, and so does not find the package above it."""
    (written / "shapes" / "scripts").mkdir(parents=True)
    text = """
import argparse, shapes
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.parse_args()
"""
    (written / "shapes" / "scripts" / "fit.py").write_text(text)
    (written / "shapes" / "scripts" / "__init__.py").touch()
    (written / "shapes" / "__init__.py").touch()
    monkeypatch.chdir(written)
    command = ("python shapes/scripts/fit.py --lr 0.2", "--objective", "loss:min", "--no-smoke")
    assert platform("init", "--from", *command).exit_code == 0
    assert "PYTHONPATH=." in Path("job.yaml").read_text()
    Path("job.yaml").unlink()
    installed = tmp_path / "site" / "shapes.py"
    installed.parent.mkdir()
    installed.touch()
    monkeypatch.syspath_prepend(installed.parent)
    result = platform("init", "--from", *command)
    assert result.exit_code == 0 and "PYTHONPATH" not in Path("job.yaml").read_text(), result.output


def test_an_argument_of_a_class_that_jsonargparse_does_not_list_is_searched(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import jsonargparse
class Net:
    def __init__(self, width: int = 8): ...
def main(net: Net | None = None, lr: float = 0.1): ...
jsonargparse.CLI(main)
"""
    (written / "fit.py").write_text(text)
    monkeypatch.chdir(written)
    command = ("python fit.py --lr=0.2", "--space", "net.width=4..16", "--objective", "loss:min", "--no-smoke")
    result = platform("init", "--from", *command)
    written_job = Path("job.yaml").read_text()
    assert result.exit_code == 0 and "\n  net.width: {type: int, low: 4, high: 16" in written_job, result.output
    assert "help" not in written_job and "print_config" not in written_job  # arguments that end the script
    Path("job.yaml").unlink()
    result = platform("init", "--from", *command, "--space", "nets.width=4..16")
    assert result.exit_code == 2 and "has no parameter nets.width" in result.stderr, result.output


def test_numbers_without_a_name_are_told_and_searched_by_their_class(platform, written: Path) -> None:
    text = """
class Layer:
    def __init__(self, value): self.value = value
batch_size = 8
first, second, dropout = Layer(32), Layer(64), Layer(0.5)
print("val_loss:", first.value + second.value / 1000 + batch_size)
"""
    (written / "net.py").write_text(text)
    script = str(written / "net.py")
    result = platform("init", "--from", script, "--space", "filters=16,32")
    assert result.exit_code == 2 and "has no parameter filters; there are: Layer, Layer_2, Layer_3, batch_size;" in (
        result.stderr
    ), result.output
    result = platform("init", "--from", script, "--space", "Layer=16,32", "--space", "batch_size=4..16")
    assert result.exit_code == 0 and set(made().space) == {"Layer", "batch_size"}, result.output
    assert made().enqueue == ({"Layer": 32, "batch_size": 8},)


def test_numbers_of_equal_keywords_are_told_by_their_places_and_searched_on_request(platform, written: Path) -> None:
    text = """
class Net:
    def __init__(self, width, batch_size, rate=0.1): self.value = width * batch_size * rate
def classification(): return Net(64, batch_size=8)
def regression(): return Net(32, batch_size=16, rate=0.5)
print("val_loss:", classification().value + regression().value)
"""
    (written / "net.py").write_text(text)
    command = ("init", "--from", str(written / "net.py"), "--no-smoke", "--objective", "val_loss:min")
    result = platform(*command, "--space", "regression.size=8..32")
    places = "Net: 64, line 4, in classification(); Net_2: 32, line 5, in regression(); for a value without a name in net.py"
    assert "batch_size: 8, line 4, in classification(); batch_size_2: 16, line 5, in regression(); Net" in result.stderr
    assert result.exit_code == 2 and f"{places}, set `size = VALUE`" in result.stderr, result.output
    result = platform(*command, "--space", "batch_size_2=8..32")
    assert result.exit_code == 0 and "batch_size_2 is the 16 in line 5, in regression()" in result.stderr, result.output
    assert set(made().space) == {"batch_size_2"} and made().enqueue == ({"batch_size_2": 16},)
    assert "  # batch_size: 8 # line 4, in classification()\n" in (written / "job.yaml").read_text()
    (written / "job.yaml").unlink()
    result = platform(*command)
    assert result.exit_code == 0 and not {"batch_size", "batch_size_2"} & set(made().space), "only on request"
    further = (written / "job.yaml").read_text().partition("# Others that could be searched")[2]
    assert "# batch_size_2: {" in further and "line 5, in regression()" in further


@pytest.mark.parametrize(
    "prefix",
    ["OMP_NUM_THREADS=1 PYTHONPATH=.", "env OMP_NUM_THREADS=1 PYTHONPATH=.", "export OMP_NUM_THREADS=1 PYTHONPATH=.;"],
)
def test_the_variables_of_a_command_are_set_for_the_question_for_its_arguments(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    (written / "algorithms").mkdir()
    (written / "shared").mkdir()
    (written / "algorithms" / "fit.py").write_text(TYRO_ABOVE)
    (written / "shared" / "losses.py").write_text("def loss(rate): return rate\n")
    monkeypatch.chdir(written)
    command = f"{prefix} python algorithms/fit.py"
    result = platform("init", "--from", f"{command} --tau 0.5", "--space", "learning_rate=0.1..0.2", "--space", "zzz=1..2")
    assert result.exit_code == 2 and "has no parameter zzz; there are: learning-rate, tau;" in result.stderr, result.output
    result = platform("init", "--from", f"{command} --tau 0.5", "--space", "learning_rate=0.1..0.2")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    monkeypatch.chdir(written.parent)
    assert set(made().search.parameters) == {"learning-rate"} and set(made().params) == {"tau"}


def test_a_script_that_ends_before_it_reads_its_arguments_is_named_with_the_reason(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (written / "fit.py").write_text(f"raise SystemExit('no accelerator')\n{TYRO_ABOVE}")
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python fit.py --tau 0.5", "--space", "lr=1..2", "--space", "zzz=1..2")
    assert result.exit_code == 2, result.output
    reason = "has no parameter lr and no zzz, and its script ended before it read its arguments, so only its command has"
    assert reason in result.stderr and "no accelerator" in result.stderr and "there are" not in result.stderr


def test_values_that_a_configurator_overrides_are_appended_as_arguments(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (written / "configurator.py").write_text(
        "import sys\nfor word in sys.argv[1:]:\n    if word.endswith('.py'):\n        exec(open(word).read())\n    else:\n"
        "        key, value = word[2:].split('=')\n        assert type(eval(value)) is type(globals()[key])\n"
        "        globals()[key] = eval(value)\n"
    )
    script_text = "learning_rate = 6e-4\nn_layer = 12\ndropout = 0.0\nseed = 1\nexec(open('configurator.py').read())\n"
    (written / "fit.py").write_text(f"{script_text}print(f'val_loss={{learning_rate * n_layer}}')\n")
    (written / "small.py").write_text("n_layer = 4\n")
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python fit.py small.py --learning_rate=0.001")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    monkeypatch.chdir(written.parent)
    job = made()
    assert set(job.search.parameters) == {"learning_rate", "n_layer", "dropout"}
    assert (job.search.parameters["n_layer"].low, job.search.parameters["n_layer"].high) == (2, 8)
    assert command_of(job) == ("python", "fit.py", "small.py", "--learning_rate={learning_rate}")
    assert {"--n_layer=4", "--dropout=0.0"} <= set(given(job))


def test_an_argument_and_the_value_of_its_name_in_the_file_are_set_together(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        import argparse, yaml
        parser = argparse.ArgumentParser()
        parser.add_argument("--config")
        parser.add_argument("--lr", type=float)
        parser.add_argument("--seed", type=int, default=1)
        args = parser.parse_args()
        values = yaml.safe_load(open(args.config))["train"]
        print(f"val_loss={(args.lr or values['lr']) * values['dropout']}")
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    (written / "fit.yaml").write_text("train: {lr: 0.1, dropout: 0.5}\n")
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python fit.py --config fit.yaml --seed 3")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    monkeypatch.chdir(written.parent)
    job = made()
    assert set(job.search.parameters) == {"train.lr", "train.dropout"} and job.params == {"seed": 3}
    assert job.arguments is not None and job.arguments.files == ("fit.yaml",)
    assert job.arguments.items == ("--config", "fit.yaml", "--seed", "{seed}", "--lr={train.lr}", "{flags}"), job.arguments


def test_a_value_of_the_file_that_the_command_overrides_is_not_searched(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        import argparse, json
        parser = argparse.ArgumentParser()
        parser.add_argument("-c", "--config")
        parser.add_argument("--lr", "--learning_rate", type=float)
        parser.add_argument("--bs", "--batch_size", type=int)
        args = parser.parse_args()
        values = json.load(open(args.config))
        lr, size = args.lr or values["optimizer"]["lr"], args.bs or values["loader"]["batch_size"]
        print(f"val_loss={lr * size * values['model']['dropout']}")
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    (written / "fit.json").write_text(
        '{"optimizer": {"lr": 0.1}, "loader": {"batch_size": 8}, "model": {"dropout": 0.5, "name": "x"}}'
    )
    command = "python fit.py -c fit.json --lr 0.1 --bs 8"
    monkeypatch.chdir(written)
    refused = platform("init", "--from", command, "--space", "optimizer.lr=0.1..1", "--no-smoke")
    assert refused.exit_code == 2 and "optimizer.lr of fit.json: --lr of the command overrides it" in refused.stderr
    result = platform("init", "--from", command, "--no-smoke")
    assert "loader.batch_size of fit.json: --batch_size of the command overrides it" in result.stderr, result.output
    assert set(load.load_job(written).search.parameters) == {"lr", "bs", "model.dropout"}
    assert "optimizer.lr:" not in (written / "job.yaml").read_text()
    unreached = platform("submit", "hpo", ".", "--space", "optimizer.lr=0.1..1", "--objective", "val_loss:min", "--local")
    assert unreached.exit_code == 2 and "--lr in the command overrides optimizer.lr in fit.json" in unreached.stderr


@pytest.mark.parametrize(
    ("monitor", "told"),
    [
        ('"monitor": "min val_loss"', "objective: val_loss, minimized (from trainer.monitor)"),
        ('"monitor": "val_gap", "mode": "max"', "objective: val_gap, maximized (from trainer.monitor)"),
        ('"monitor": "off"', "objective: val_acc, maximized (guessed from the metrics of one run)"),
    ],
)
def test_the_metric_that_a_settings_file_monitors_is_the_objective(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, monitor: str, told: str
) -> None:
    (written / "fit.py").write_text(
        "import json, sys\nlr = json.load(open(sys.argv[2]))['lr']\n"
        "print(f'epoch 1: val_loss={lr} val_acc=0.5')\nprint(f'val_gap={0.25}')\n"
    )
    (written / "fit.json").write_text(f'{{"lr": 0.1, "trainer": {{{monitor}}}}}')
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python fit.py -c fit.json")
    assert result.exit_code == 0 and told in result.stderr, result.output
    objective = load.load_job(Path()).objectives[0]
    assert f"{objective.metric}, {objective.direction}d" in told


def test_the_objective_is_the_test_and_not_the_training(platform, written: Path) -> None:
    text = """
        lr = 0.1
        for epoch in (1, 2):
            for batch in (1, 2):
                print(f"Train Epoch: {epoch} [{batch}/2] Loss: {epoch / batch}")
            print(f"\\nTest set: Average loss: {lr / epoch}\\n")
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert "its metrics: test_loss, train_Loss\n" in result.stderr, result.output
    assert made().objectives[0].metric == "test_loss"


def test_a_metric_of_validation_in_event_files_comes_before_a_printed_one_of_training(platform, written: Path) -> None:
    text = """
        import tensorboardX
        lr = 0.1
        print("  | Name | Type     | Params\\n--------------------------\\n0 | acc  | Accuracy | 0     ")
        with tensorboardX.SummaryWriter("runs/a") as writer:
            writer.add_scalar("val/loss", lr, 1)
        print("train/loss=0.5")
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    job = made()
    assert job.objectives[0].metric == "val/loss"
    assert [source.source for source in job.metrics or ()] == ["tensorboard", "stdout"]


PARAMS = "prepare: {batch_size: 4}\ntrain:\n  lr: 0.1 # of Adam\n  seed: 3\n"


def test_values_of_a_settings_file_are_searched_and_metrics_found_in_a_file(platform, written: Path) -> None:
    (written / "fit.py").write_text(textwrap.dedent(READS.format(file="settings.yaml")))
    (written / "settings.yaml").write_text(PARAMS)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    job = made()
    assert job.arguments is not None and (job.arguments.files, job.arguments.items) == (("settings.yaml",), ())
    assert set(job.search.parameters) == {"train.lr", "prepare.batch_size"} and job.params == {}
    assert [(source.source, source.path) for source in job.metrics or ()] == [("file", "scores/metrics.json")]
    assert job.objectives[0].metric == "accuracy"


@pytest.mark.parametrize("command", ["python fit/train.py data.csv '{x}'", "[\"python -m fit.train data.csv '{x}'\"]"])
def test_a_stage_of_a_pipeline_of_dvc_is_a_job(platform, written: Path, command: str) -> None:
    (written / "fit").mkdir()
    (written / "fit" / "train.py").write_text(textwrap.dedent(READS.format(file="params.yaml")))
    (written / "params.yaml").write_text(PARAMS)
    (written / "dvc.yaml").write_text(
        f"stages:\n  other: {{cmd: python other.py}}\n  train:\n    cmd: {command}\n    params: [train]\n"
    )
    result = platform("init", "--from", str(written / "fit" / "train.py"))
    assert result.exit_code == 0, result.output
    job = made()
    assert (job.script, set(job.search.parameters)) == ("fit/train.py", {"train.lr"}), "which the stage names"
    assert job.arguments is not None and job.arguments.files == ("params.yaml",) and given(job) == ["data.csv", "{x}"]


@pytest.mark.parametrize("declared", ["--lr', type=float, default=0.1", "--input', required=True"])
def test_a_parser_with_arguments_to_search_or_to_give_comes_before_a_settings_file(
    platform, written: Path, declared: str
) -> None:
    text = f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('{declared})\nparser.parse_args()\n"
    (written / "fit.py").write_text(f"{text}open('settings.yaml')\n")
    (written / "settings.yaml").write_text(PARAMS)
    platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert "file" not in (written / "job.yaml").read_text()
    (written / "job.yaml").unlink()
    (written / "fit.py").write_text(f"{text}open('settings.yaml')\n".replace(declared, "--verbose', action='store_true'"))
    assert platform("init", "--from", str(written / "fit.py"), "--no-smoke").exit_code == 0
    assert made().arguments.files == ("settings.yaml",)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "line", "searched"),
    [
        ("import sys\nfile = sys.argv[1]\n", ["conf/exp.yaml"], {"train.lr", "prepare.batch_size"}),
        ("file = next(iter(__import__('glob').glob('conf/e*.yaml')))\n", [], {"train.lr", "prepare.batch_size"}),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config', required=True)\n"
            "p.add_argument('--seed', default=1)\nfile = p.parse_args().config\n",
            ["--config", "conf/exp.yaml"],
            {"train.lr", "prepare.batch_size"},
        ),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('-c', '--config')\n"
            "p.add_argument('--lr', type=float, default=0.1)\nfile = p.parse_args().config\n",
            ["--config=conf/exp.yaml", "--lr=0.1"],
            {"lr"},
        ),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('config')\n"
            "p.add_argument('--lr', type=float, default=0.1)\nfile = p.parse_args().config\n",
            ["conf/exp.yaml", "--lr=0.1"],
            {"lr"},
        ),
    ],
)
def test_a_settings_file_that_an_argument_or_a_pattern_names(
    platform, written: Path, text: str, line: list[str], searched: set[str]
) -> None:
    (written / "fit.py").write_text(f"{text}import yaml\nprint('loss=%f' % yaml.safe_load(open(file))['train']['lr'])\n")
    (written / "conf" / "config.yaml").rename(written / "conf" / "exp.yaml").write_text(PARAMS)
    shutil.rmtree(written / "conf" / "model")  # whose files could be settings, too
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    job = made()
    assert (given(job), set(job.search.parameters)) == (line, searched)
    assert ("lr" in searched) == (getattr(job.arguments, "files", ()) == ())


def test_defaults_of_the_environment_are_those_of_a_dotenv_file(platform, written: Path) -> None:
    (written / ".env").write_text("# of the model\nexport LR='0.5'\nLAYERS=2\nWIDTH=wide\n")
    text = "import os\nlr, layers = float(os.environ['LR']), int(os.environ['LAYERS'])\nprint(f'loss={lr * layers}')\n"
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert made().search.enqueue == ({"LR": 0.5, "LAYERS": 2},)


def test_secrets_of_a_dotenv_file_stay_there(platform, written: Path) -> None:
    (written / ".env").write_text("LR=0.5\nAPI_KEY=sk-1234\nTOKEN=5678\n")
    text = "import os\nlr, key = float(os.environ['LR']), os.environ.get('API_KEY', '')\ntoken = os.getenv('TOKEN')\n"
    (written / "fit.py").write_text(f"{text}print(f'loss={{lr}}')\n")
    assert platform("init", "--from", str(written / "fit.py")).exit_code == 0
    job_text = (written / "job.yaml").read_text()
    assert "sk-1234" not in job_text and "5678" not in job_text
    assert "# TOKEN: null" in job_text and made().search.enqueue == ({"LR": 0.5},)


def test_a_module_of_a_package_is_started_as_one(platform, written: Path) -> None:
    package = written / "pkg" / "tools"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "rate.py").write_text("LR = 0.1\n")
    text = """
        import argparse
        from .rate import LR
        from pkg.tools import rate
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=LR)
        print(f"val_loss={parser.parse_args().lr}")
    """
    (package / "train.py").write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(package / "train.py"))
    assert result.exit_code == 0 and "not installed" not in result.stderr, result.output
    job = made()
    assert (job.command, given(job)) == (("python", "-m", "pkg.tools.train"), ["--lr=0.1"])
    assert job.objectives[0].metric == "val_loss", "by a run of the module"


def test_what_a_function_returns_to_sacred_is_the_objective(platform, written: Path) -> None:
    text = """
        from sacred import Experiment
        ex = Experiment("toy")
        @ex.config
        def cfg():
            lr = 0.1
        @ex.automain
        def run(lr):
            return accuracy(lr)
    """
    (written / "fit.py").write_text(textwrap.dedent(text))
    assert platform("init", "--from", str(written / "fit.py"), "--no-smoke").exit_code == 0
    [objective] = made().objectives
    assert (objective.metric, objective.direction) == ("Result", "maximize")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "import gin\nfrom absl import flags\nflags.DEFINE_multi_string('gin_bindings', [], '')\n",
            """--set 'arguments=["--gin_bindings=FUNCTION.NAME={FUNCTION.NAME}"]'`""",
        ),
    ],
)
def test_a_script_that_no_job_is_made_of_is_told_the_command_that_runs_it(
    platform, written: Path, text: str, told: str
) -> None:
    (written / "fit.py").write_text(text)
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and told in result.stderr, result.output


def test_a_value_that_is_missing_may_be_given_to_submit(platform, written: Path) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--stamp', required=True)\n"
    (written / "fit.py").write_text(f"{text}parser.add_argument('--lr', type=float, default=0.1)\nparser.parse_args()\n")
    result = platform("init", "--from", str(written / "fit.py"))
    assert "`platform submit hpo src --param stamp=VALUE --objective METRIC:min --local`" in result.stderr, result.output
    result = platform("submit", "hpo", "src", "--param", "stamp=x", "--objective", "loss:min", "--local", "--dry-run")
    assert result.exit_code == 0 and "stamp: x" in result.stdout, result.output


def test_validate_and_submit_tell_that_nothing_is_searched(platform, written: Path) -> None:
    (written / "fit.py").write_text("print('loss=1')\n")
    job = "kind: hpo\nscript: fit.py\nobjective: {metric: loss, direction: minimize}\ntrials: 3\n"
    (written / "job.yaml").write_text(job)
    for words in (("validate", "src"), ("submit", "hpo", "src", "--local", "--dry-run")):
        result = platform(*words)
        assert result.exit_code == 0 and "note: nothing is searched: all 3 trials" in result.stderr, result.output


SHELL_SCRIPT = """#!/bin/sh
python first.py --data=x
python fit.py --data=x
"""


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("cd src && PYTHONPATH=.. sh run.sh", "cd src && PYTHONPATH=.. python fit.py --data=x"),
        ("bash src/run.sh", "python fit.py --data=x"),
        ("src/run.sh", "cd src && python fit.py --data=x"),
    ],
)
def test_the_python_commands_of_a_shell_script_without_parameters_are_named(
    platform, written: Path, source: str, command: str
) -> None:
    (written / "run.sh").write_text(SHELL_SCRIPT)
    result = platform("init", "--from", source, "--no-smoke")
    typed = command.replace("fit", "first")
    assert result.exit_code == 2, result.output
    typed_commands = f"`platform init --from '{typed}' --no-smoke` or `platform init --from '{command}' --no-smoke`"
    assert typed_commands in result.stderr


def test_the_python_commands_of_a_shell_script_that_lacks_a_requested_parameter_are_named(platform, written: Path) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--width', type=int)\n"
    text += "parser.add_argument('--dropout', type=float, default=0.5)\nprint('loss=', parser.parse_args().dropout)\n"
    (written / "fit.py").write_text(text)
    (written / "run.sh").write_text("python fit.py --width 8\n")
    words = ["--space", "width=4..16", "--space", "dropout=0..0.5"]
    result = platform("init", "--from", "src/run.sh", "--no-smoke", *words)
    command = ["platform", "init", "--from", "cd src && python fit.py --width 8", *words, "--no-smoke"]
    assert result.exit_code == 2 and "has no parameter dropout; there are: width; for an" in result.stderr, result.output
    assert f": `{shlex.join(command)}`; nothing was changed" in result.stderr
    assert platform(*command[1:]).exit_code == 0
    Path("job.yaml").unlink()
    result = platform("init", "--from", "cd src && sh run.sh", "--no-smoke", *words)
    assert result.exit_code == 0 and "runs `cd src && python fit.py --width 8`, which is the command" in result.stderr
    result = platform("init", "--from", "src/run.sh", "--no-smoke", "--space", "widht=4..16")
    assert "did you mean width" in result.stderr and "python fit.py" not in result.stderr, "the name is a typing error"


def test_the_commands_of_a_shell_script_are_read_for_a_message_only(platform, written: Path) -> None:
    (written / "run.sh").write_text("LR=${LR:-0.1}\npython fit.py --lr $LR\nfind . -name '*.tmp' -exec rm {} \\;\n")
    result = platform("init", "--from", "src/run.sh", "--no-smoke")
    assert result.exit_code == 0, result.output


def test_the_numbers_of_a_shell_script_in_another_folder_are_found(platform, written: Path) -> None:
    (written / "run.sh").write_text("python fit.py --lr 0.1\n")
    result = platform("init", "--from", "cd src && SEED=1 sh run.sh", "--no-smoke")
    assert result.exit_code == 0, result.output
    job = load.load_job(Path())
    assert set(job.search.parameters) == {"lr"} and job.arguments.files == ("src/run.sh",)


@pytest.mark.parametrize(
    ("parsing", "arguments"),
    [
        ("first.parse_args(), second.parse_args()", ("{globals}",)),
        ("first.parse_args(), second.parse_known_args()[0]", ("{flags}",)),  # for which the first one refuses `depth`
    ],
)
def test_values_of_several_parsers_are_replaced_in_the_text(
    platform, written: Path, parsing: str, arguments: tuple[str, ...]
) -> None:
    text = "import argparse\nfirst, second = argparse.ArgumentParser(), argparse.ArgumentParser()\n"
    text += "first.add_argument('--lr', type=float, default=0.1)\nsecond.add_argument('--depth', type=int, default=2)\n"
    (written / "fit.py").write_text(f"{text}a, b = {parsing}\nprint(f'loss={{a.lr * b.depth}}')\n")
    result = platform("init", "--from", str(written / "fit.py"), "--space", "lr=0.1..1", "--objective", "loss:min")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    job = made()
    assert ("has several parsers" in result.stderr) == (arguments == ("{globals}",))
    assert job.arguments is None or job.arguments.items == arguments
    assert job.search.enqueue == ({"lr": 0.1},)
