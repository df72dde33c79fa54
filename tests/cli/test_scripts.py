"""A script without a job file, as `submit` takes it: what would run, and all complaints about its flags at once.

Not checked here: that it runs (tests/study/test_scripts.py), each form of a parameter (tests/job/test_short.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from trialplane.cli import watching
from trialplane.job import load, reach

Platform = Callable[..., Result]


@pytest.fixture
def script(workplace: Path) -> Path:
    file = Path("loose") / "fit.py"
    file.parent.mkdir()
    file.write_text("import sys\nprint('accuracy=1', sys.argv)\n")
    return file


def test_a_script_that_reads_no_arguments_is_refused(platform: Platform, script: Path) -> None:
    script.write_text("rate = 0.1\nprint('accuracy=1')\n")
    words = ("--space", "zzz=0..1", "--param", "steps=1", "--objective", "accuracy:max", "--local")
    result = platform("submit", "hpo", f"./{script}", *words)
    assert result.exit_code == 2 and "--space zzz=0..1: space.zzz: has no effect" in result.stderr, result.stderr
    assert "--param steps=1: params.steps: has no effect" in result.stderr


@pytest.mark.parametrize("text", ["rate = 0.1\nsteps = 2\n", "if __name__ == '__main__':\n    rate = 0.1\n    steps = 2\n"])
def test_constants_of_a_script_that_reads_no_arguments_are_replaced(platform: Platform, script: Path, text: str) -> None:
    script.write_text(f"{text}print('accuracy=1')\n")
    words = ("--space", "rate=0..1", "--param", "steps=3", "--objective", "accuracy:max")
    words += ("--local", "--dry-run", "-o", "json")
    result = platform("submit", "hpo", f"./{script}", *words)
    assert result.exit_code == 0 and json.loads(result.stdout)["job"]["arguments"]["items"] == ["{globals}"], result.stderr
    assert "fit.py reads no arguments: each trial sets steps, rate in a copy of its text" in result.stderr
    assert "copy of its text" not in platform("submit", "hpo", f"./{script}", *words, "--set", "arguments=globals").stderr


@pytest.mark.parametrize("text", ["", "import neat_of_a_team\n"])
def test_values_of_the_settings_file_of_a_script_that_reads_no_arguments_are_replaced(
    platform: Platform, script: Path, text: str
) -> None:
    (script.parent / "config-net").write_text("[net]\nrate = 1.0\nsteps = 2\n")
    script.write_text(f"{text}open('config-net')\nprint('accuracy=1')\n")
    words = ("--space", "rate=0..1", "--objective", "accuracy:max", "--trials", "3", "--local", "--dry-run", "-o", "json")
    result = platform("submit", "hpo", f"./{script}", *words)
    assert result.exit_code == 0, result.stderr
    job = json.loads(result.stdout)["job"]
    assert job["arguments"]["files"] == ["config-net"] and job["trials"] == 3
    assert job["space"]["net.rate"]["type"] == "float"
    assert "fit.py reads no arguments: each trial sets net.rate in a copy of config-net" in result.stderr


@pytest.mark.parametrize("text", ["", "import neat_of_a_team\n"])
def test_values_of_the_only_module_that_sets_them_are_replaced(platform: Platform, script: Path, text: str) -> None:
    (script.parent / "nets").mkdir()
    (script.parent / "nets" / "trees.py").write_text("def make(depth=1): ...\nmake(depth=3)\nRATE = 1.0\n")
    script.write_text(f"{text}from nets import trees\nprint('accuracy=1')\n")
    words = ("submit", "hpo", f"./{script}", "--objective", "accuracy:max", "--local", "--dry-run", "-o", "json")
    result = platform(*words, "--space", "depth=1..9", "--space", "RATE=0..1")
    assert result.exit_code == 0, result.stderr
    job = json.loads(result.stdout)["job"]
    assert (job["script"], job["arguments"]["files"]) == ("fit.py", ["nets/trees.py"])
    assert job["space"]["RATE"]["type"] == "float"
    assert "fit.py reads no arguments: each trial sets depth, RATE in a copy of nets/trees.py" in result.stderr
    script.write_text(f"{text}from nets import trees\nsteps = 2\nprint('accuracy=1')\n")
    result = platform(*words, "--space", "depth=1..9", "--space", "steps=1..9")
    assert json.loads(result.stdout)["job"]["arguments"]["items"] == ["{globals}"], result.stderr
    assert "each trial sets depth, steps in a copy of its text and nets/trees.py" in result.stderr
    script.write_text(f"{text}from nets import trees\nRATE = 2\nopen('nets/trees.py')\nprint('accuracy=1')\n")
    result = platform(*words, "--space", "depth=1..9", "--space", "RATE=1..9")
    assert result.exit_code == 2, "both the text and the module have RATE"
    result = platform(*words, "--space", "rate=0..1")
    assert result.exit_code == 2 and "is not in nets/trees.py; did you mean RATE?" in result.stderr, result.output
    assert f"`platform init --from {script} --space RATE=0..1 --objective accuracy:max` makes a job" in result.stderr


@pytest.mark.parametrize(
    ("nets", "kinds", "message"),
    [
        ("f(depth=3)\n", "f(depth=3)\n", "let it read --depth"),  # one of them would be a guess
        ("def f(depth=3): ...\n", "", "let it read --depth"),  # its callers may override it
        ("if __name__ == '__main__':\n    depth = 3\n", "", "let it read --depth"),  # an import does not set it
        ("def f(parser): parser.add_argument('--depth', default=3)\n", "", "let it read --depth"),
        ("A(depth=3)\nB(depth=3)\n", "", "nets.py, which it reads, has A.depth and B.depth"),
    ],
)
def test_a_value_in_a_module_is_not_guessed(platform: Platform, script: Path, nets: str, kinds: str, message: str) -> None:
    (script.parent / "nets.py").write_text(nets)
    (script.parent / "kinds.py").write_text(kinds)
    script.write_text("import nets, kinds\nprint('accuracy=1')\n")
    result = platform("submit", "hpo", f"./{script}", "--space", "depth=1..9", "--objective", "accuracy:max", "--local")
    assert result.exit_code == 2 and message in result.stderr, result.output
    command = f"`platform init --from {script} --space depth=1..9 --objective accuracy:max` makes a job"
    assert (command in result.stderr) == ("has A.depth" in message)


PARSER = "import argparse\ndef read():\n    p = argparse.ArgumentParser()\n    p.add_argument('--hidden_size', type=float)\n"


@pytest.mark.parametrize(
    ("option", "hint", "command"),
    [
        (("--param", "zzz=1"), "there are: hidden_size;", ""),
        (("--param", "hiden_size=1"), "did you mean hidden_size?", "platform submit hpo {} --param hidden_size=1"),
        (("--space", "Hidden_Size=1..2"), "did you mean hidden_size?", "platform submit hpo {} --space hidden_size=1..2"),
        (
            ("--space", "net.hidden_size=1..2"),
            "did you mean hidden_size?",
            "platform submit hpo {} --space hidden_size=1..2",
        ),
        (("--space", "RATE=0..1"), "its text has RATE", "platform init --from {} --space RATE=0..1"),
        (("--space", "depth=1..2"), "opts.py, which it imports, has depth", "platform init --from {} --space depth=1..2"),
    ],
)
def test_an_argument_that_a_parser_in_a_module_would_refuse_is_refused_before_the_start(
    platform: Platform, script: Path, option: tuple[str, str], hint: str, command: str
) -> None:
    (script.parent / "opts.py").write_text(f"{PARSER}    return p.parse_args()\ndepth = 2\n")
    script.write_text("from opts import read\nRATE = 0.1\nprint('accuracy=1', read())\n")
    words = ("submit", "hpo", f"./{script}", *option, "--objective", "accuracy:max", "--local", "--dry-run")
    result = platform(*words)
    message = f"fit.py takes no --{option[1].partition('=')[0]}; {hint}"
    assert result.exit_code == 2 and message in result.stderr and "nothing was started" in result.stderr, result.output
    shown = re.findall(r"`(platform [^`]+)`", result.stderr)
    assert [text.startswith(command.format(script if "init" in command else f"./{script}")) for text in shown] == (
        [True] * bool(command)
    )
    if shown:
        result = platform(*shlex.split(shown[0])[1:])
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("parser", ["p.parse_known_args()", "library.add_flags(p).parse_args()"])
def test_an_argument_that_a_parser_may_take_is_not_refused(platform: Platform, script: Path, parser: str) -> None:
    (script.parent / "opts.py").write_text(f"{PARSER}    return {parser}\n")
    script.write_text("from opts import read\nprint('accuracy=1', read())\n")
    words = ("--space", "hidden-size=0..1", "--param", "zzz=1", "--objective", "accuracy:max", "--local", "--dry-run")
    result = platform("submit", "hpo", f"./{script}", *words, "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["job"]["space"]["hidden_size"]["type"] == "float", "as the module's parser says"


@pytest.mark.parametrize(
    ("text", "typed", "command"),
    [
        ("WIDTH = 8\n", "widht=4..16", "--space WIDTH=4..16"),
        ("model.compile('sgd', 'mse')\n", "optimizer=sgd,adam", "--space compile.0=sgd,adam"),
        ("import nets\n", "optimizer=sgd,adam", "--space kind=sgd,adam"),
        ("f(L(n_in=8, n_out=50), L(n_in=50, n_out=4))\n", "hidden_size=4..16", "--space n_out=4..16"),
    ],
)
def test_the_command_with_the_value_that_is_meant_is_shown(
    platform: Platform, script: Path, text: str, typed: str, command: str
) -> None:
    (script.parent / "nets.py").write_text("Net(kind='sgd')\n")
    script.write_text(f"{text}print('accuracy=1')\n")
    words = ("--space", typed, "--objective", "accuracy:max")
    result = platform("submit", "hpo", f"./{script}", *words, "--local")
    assert result.exit_code == 2 and "did you mean " in result.stderr, result.output
    command = f"platform init --from {script} {command} --objective accuracy:max"
    assert f"`{command}` makes a job that sets it there" in result.stderr, result.output
    assert platform(*shlex.split(command)[1:], "--no-smoke").exit_code == 0


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("type=str2bool, default=True", {"items": ["--amp={amp}", "{flags}"], "booleans": "switch"}),
        ("type=str2bool, nargs='?', const=True", {"items": ["--amp={amp}", "{flags}"], "booleans": "switch"}),
        ("choices=['True', 'False']", {"items": ["--amp={amp}", "{flags}"], "booleans": "switch"}),
        ("default='False'", {"items": ["--amp={amp}", "{flags}"], "booleans": "switch"}),
        ("action=argparse.BooleanOptionalAction", {"items": ["{flags}"], "booleans": "negated"}),
        ("action='store_true'", None),
        ("type=lambda text: text == 'true'", None),
        ("default='true'", None),
        ("nargs='?', const='cosine', default=''", None),
        ("type=bool, default=True", None),
        ("type=int, default=1", None),
        ("default=True", None),
    ],
)
@pytest.mark.parametrize("words", [("--space", "amp=True,False"), ("--param", "amp=false", "--space", "lr=0..1")])
@pytest.mark.parametrize("in_module", [False, True])
def test_a_boolean_is_written_as_the_parser_of_a_script_reads_it(
    platform: Platform, script: Path, option: str, field: dict[str, Any] | None, words: tuple[str, ...], in_module: bool
) -> None:
    parser = f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('-a', '--amp', {option})\n"
    parser += "parser.add_argument('--lr')\n"
    (script.parent / "options.py").write_text(parser)
    script.write_text(f"{'from options import parser' if in_module else parser}\nparser.parse_args()\n")
    words = (*words, "--objective", "accuracy:max", "--local", "--dry-run", "-o", "json")
    result = platform("submit", "hpo", f"./{script}", *words)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["job"]["arguments"]
    assert (found and {"items": found["items"], "booleans": found["booleans"]}) == field
    words = (*words, "--set", "arguments=hydra")
    assert json.loads(platform("submit", "hpo", f"./{script}", *words).stdout)["job"]["arguments"]["items"] == ["{hydra}"]


_BY_VALUE = {"items": ["--amp={amp}", "{flags}"], "booleans": "switch"}
_NEGATED = {"items": ["{flags}"], "booleans": "negated"}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("import click\n@click.option('--amp/--no-amp', default=True)\ndef main(amp): ...\n", _NEGATED),
        ("import click\n@click.option('--amp', default=True)\ndef main(amp): ...\n", _BY_VALUE),
        ("import click\n@click.option('--amp', type=bool)\ndef main(amp): ...\n", _BY_VALUE),
        ("import click\n@click.option('--amp', is_flag=True, default=False)\ndef main(amp): ...\n", None),
        ("import click\n@click.option('--amp/--plain', default=True)\ndef main(amp): ...\n", None),
        ("import typer\ndef main(amp: bool = True): ...\ntyper.run(main)\n", _NEGATED),
        ("import typer\ndef main(a: bool = typer.Option(True, '--amp/--no-amp')): ...\ntyper.run(main)\n", _NEGATED),
        ("import typer\ndef main(*, amp: bool = typer.Option(False, '--amp')): ...\ntyper.run(main)\n", None),
        ("import tyro\nclass C:\n    amp: bool = True\ntyro.cli(C)\n", _NEGATED),
        ("import tyro\nclass C:\n    amp: bool\ntyro.cli(C)\n", _BY_VALUE),
        ("import simple_parsing\nclass C:\n    amp: bool = True\nsimple_parsing.parse(C)\n", _BY_VALUE),
        ("from transformers import HfArgumentParser\nclass C:\n    amp: bool = True\nHfArgumentParser(C)\n", _BY_VALUE),
        ("import jsonargparse\ndef main(amp: bool = True): ...\njsonargparse.CLI(main)\n", _BY_VALUE),
        ("from absl import flags\nflags.DEFINE_bool('amp', True, 'x')\n", _BY_VALUE),
        ("import fire\ndef main(lr=0.1, amp=True): ...\nfire.Fire(main)\n", _BY_VALUE),
        ("import argparse\nclass C:\n    amp: bool = True\nargparse.ArgumentParser().parse_known_args()\n", None),
        ("import click\n@click.option('--amp', flag_value=True, default=False)\ndef main(amp): ...\n", None),
        # A switch that the code adds, beside an argument of that name, and the name of a library that is not imported.
        ("import argparse, fire\ndef fit(amp=False): ...\nadd.add_argument('--amp', action='store_true')\n", None),
        ("import argparse\n# like typer\ndef fit(amp=False): ...\nargparse.ArgumentParser().parse_known_args()\n", None),
    ],
)
def test_a_boolean_is_written_as_the_library_of_a_script_reads_it(
    platform: Platform, script: Path, text: str, field: dict[str, Any] | None
) -> None:
    """By default, False is no argument, and the script would take its own default."""
    script.write_text(text)
    words = ("--space", "amp=true,false", "--objective", "accuracy:max", "--local", "--dry-run", "-o", "json")
    result = platform("submit", "hpo", f"./{script}", *words)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["job"]["arguments"]
    assert (found and {"items": found["items"], "booleans": found["booleans"]}) == field


@pytest.mark.parametrize(
    ("component", "words"),
    [
        ("{'test': print, 'train': print}", 'arguments=["train", "{flags}"]'),
        ("Model", 'arguments=["train", "{flags}"]'),
        ("Model()", 'arguments=["train", "{flags}"]'),
        ("Called", ""),
        ("Trains", ""),
        ("print", ""),
    ],
)
def test_a_script_with_subcommands_of_fire_is_refused_with_the_command_that_names_one(
    platform: Platform, script: Path, component: str, words: str
) -> None:
    methods = "    def test(self, lr=0.1): ...\n    def train(self, lr=0.1): ...\n    def _load(self): ...\n"
    methods += "    @property\n    def trained(self): ...\n"
    called = "class Called:\n    def __call__(self, lr=0.1): ...\n    def train(self): ...\n"
    called += "class Trains:\n    def __init__(self, lr=0.1): self.fit()\n    def fit(self): ...\n"
    script.write_text(f"import fire\nclass Model:\n{methods}{called}fire.Fire({component})\n")
    options = ("--space", "lr=0..1", "--objective", "accuracy:max", "--local", "--dry-run")
    result = platform("submit", "hpo", f"./{script}", *options)
    assert result.exit_code == (2 if words else 0), result.output
    if words:
        assert f"needs one of its subcommands before the parameters: type `--set '{words}'` (or test in" in result.stderr
        assert platform("submit", "hpo", f"./{script}", *options, "--set", words).exit_code == 0
        result = platform("submit", "hpo", f"./{script}", *options, "--param", "amp=false")
        assert 'arguments={"items": ["train", "{flags}"], "booleans": "value"}' in result.stderr


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        (
            "import click\n@click.option('--amp/--no-amp')\n@click.option('--fp16', is_flag=True)\ndef main(**flags): ...\n",
            ("amp", "fp16"),
            "space.fp16: is a switch without --no-fp16, which a job would write as it writes --no-amp",
        ),
        (
            "import tyro\nclass Train:\n    amp: bool = True\nclass C:\n    train: Train\ntyro.cli(C)\n",
            ("train.amp",),
            "space.train.amp: its False is --train.no-amp, which a job does not write",
        ),
    ],
)
def test_a_boolean_whose_false_no_job_writes_is_refused(
    platform: Platform, script: Path, text: str, names: tuple[str, ...], message: str
) -> None:
    script.write_text(text)
    fixed = (
        "submit",
        "hpo",
        f"./{script}",
        "--space",
        f"{names[0]}=true,false",
        "--param",
        "fp16=true",
        "--objective",
        "a:max",
    )
    if len(names) > 1:
        assert platform(*fixed, "--local", "--dry-run").exit_code == 0
    space = [word for name in names for word in ("--space", f"{name}=true,false")]
    result = platform("submit", "hpo", f"./{script}", *space, "--objective", "accuracy:max", "--local", "--dry-run")
    assert result.exit_code == 2 and message in result.stderr, result.output


@pytest.mark.parametrize("text", ["open('a.ini')\nopen('b.ini')", "open('a.ini', 'w').write('')"])
def test_a_file_that_may_be_overridden_or_is_written_is_not_taken_for_the_settings(
    platform: Platform, script: Path, text: str
) -> None:
    for name in ("a.ini", "b.ini"):
        (script.parent / name).write_text("[net]\nrate = 1.0\n")
    script.write_text(f"{text}\nprint('accuracy=1')\n")
    words = ("--space", "rate=0..1", "--objective", "accuracy:max", "--local", "--dry-run")
    result = platform("submit", "hpo", f"./{script}", *words)
    assert result.exit_code == 2 and "fit.py reads no --rate" in result.stderr, result.output


@pytest.mark.parametrize("more", [(), ("--space", "zzz=0..1")])
def test_the_command_for_a_settings_file_with_some_parameters_is_shown(
    platform: Platform, script: Path, more: tuple[str, ...]
) -> None:
    (script.parent / "config-net").write_text("[a]\nrate = 1.0\n[b]\nrate = 1.0\n")
    script.write_text("open('config-net')\nprint('accuracy=1')\n")
    words = ("--space", "rate=0..1", *more, "--objective", "accuracy:max", "--trials", "3")
    result = platform("submit", "hpo", f"./{script}", *words, "--local", "--dry-run")
    assert result.exit_code == 2
    assert "fit.py reads no --rate; config-net, which it reads, has a.rate and b.rate" in result.stderr
    command = f"platform init --from {script} --space rate=0..1 --objective accuracy:max --trials 3"
    assert (f"`{command}` makes a job that sets it there" in result.stderr) == (not more)


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [
        ("", True),
        ("import other_library_of_a_team\n", True),
        ("import json, numpy, library_of_a_team\n", True),
        ("import argparse\n", False),
        ("import launcher_of_a_team\n", False),
        ("import sys\nprint(sys.argv)\n", False),
        ("import os\nprint(os.environ['TRIALPLANE_PARAMS'])\n", False),
        ("for x in\n", False),
    ],
)
def test_the_code_of_an_installed_library_shows_whether_it_may_read_arguments(
    platform: Platform, script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, is_refused: bool
) -> None:
    (tmp_path / "site" / "library_of_a_team").mkdir(parents=True)
    (tmp_path / "site" / "library_of_a_team" / "__init__.py").touch()
    (tmp_path / "site" / "library_of_a_team" / "nets.py").write_text(code)
    (tmp_path / "site" / "other_library_of_a_team.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    reach._may_read_arguments.cache_clear()
    script.write_text("import library_of_a_team\nprint('accuracy=1')\n")
    words = ("--space", "rate=0..1", "--objective", "accuracy:max", "--local", "--dry-run")
    result = platform("submit", "hpo", f"./{script}", *words)
    assert (result.exit_code == 2) == is_refused, result.stderr
    reach._may_read_arguments.cache_clear()


@pytest.mark.parametrize(("text", "is_named"), [("", False), ("import launcher_of_a_team\n", True)])
def test_options_are_not_advised_for_a_script_that_reads_no_arguments(
    platform: Platform, script: Path, text: str, is_named: bool
) -> None:
    script.write_text(f"{text}print('accuracy=1')\n")
    result = platform("init", "--from", str(script), "--no-smoke")
    assert ("If it takes --NAME=VALUE" in result.stderr) == is_named
    assert ("reads no arguments" in result.stderr) == (not is_named)
    assert "--set arguments=globals" in result.stderr


@pytest.mark.parametrize("text", ["def fit(rate=0.1): ...\n", "rate = 0.1\nimport argparse\n", "rate = other()\n"])
def test_other_values_of_a_script_are_not_replaced_by_themselves(platform: Platform, script: Path, text: str) -> None:
    script.write_text(text)
    words = ("--space", "rate=0..1", "--objective", "accuracy:max", "--local", "--dry-run", "-o", "json")
    result = platform("submit", "hpo", f"./{script}", *words)
    assert result.exit_code == 2 or json.loads(result.stdout)["job"]["arguments"] is None


def test_a_script_needs_no_file(platform: Platform, script: Path) -> None:
    words = ("--space", "lr=1e-4..1e-1:log", "--space", "opt=adam,sgd", "--objective", "accuracy:max", "--trials", "7")
    result = platform("submit", "hpo", f"./{script}", *words, "--local", "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.stderr
    job = json.loads(result.stdout)["job"]
    assert (job["name"], job["script"], job["trials"]) == ("fit", "fit.py", 7)
    assert job["space"]["opt"]["choices"] == ["adam", "sgd"] and job["space"]["lr"]["log"]
    assert job["objectives"][0]["direction"] == "maximize"


PARSES = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\nargs = p.parse_args()\n"
ADDS_FOLDER_ABOVE = "from pathlib import Path\nsys.path.append(str(Path(__file__).parents[1]))\n"


@pytest.mark.parametrize(
    ("working_directory", "text", "script_name"),
    [
        (".", f"{ADDS_FOLDER_ABOVE}import nets", "loose/fit.py"),
        ("..", f"{ADDS_FOLDER_ABOVE}import nets", "loose/fit.py"),
        ("loose", f"{ADDS_FOLDER_ABOVE}import nets", "fit.py"),  # the folder above is not in the working directory
        (".", f"{ADDS_FOLDER_ABOVE}import own", "fit.py"),
        (".", "open('nets.py').close()", "fit.py"),
        (".", "import nets", "fit.py"),  # only a command with PYTHONPATH finds it
        (".", f"{ADDS_FOLDER_ABOVE}import nets\nopen('own.py')", "fit.py"),  # only a command that starts in its folder
    ],
)
def test_a_script_is_submitted_from_the_folder_of_its_modules_as_init_takes_it(
    platform: Platform, script: Path, monkeypatch: pytest.MonkeyPatch, working_directory: str, text: str, script_name: str
) -> None:
    script.write_text(f"import sys\n{text}\n{PARSES}print('accuracy=1', args.lr)\n")
    folder = script.parent.absolute()
    (folder / "own.py").touch()
    (folder.parent / "nets.py").touch()
    monkeypatch.chdir(folder.parent / working_directory)
    typed = f"./{os.path.relpath(folder / script.name)}"
    words = ("--space", "lr=0..1", "--objective", "accuracy:max")
    result = platform("submit", "hpo", typed, *words, "--local", "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["job"]["script"] == script_name
    watched_folders = []
    monkeypatch.setattr(watching, "watch", lambda folder, run_trial: watched_folders.append(folder.absolute()) or 0)
    platform("submit", "hpo", typed, *words, "--local", "--watch-code")
    code_folder = folder if script_name == "fit.py" else folder.parent
    assert watched_folders == [code_folder]
    if code_folder != folder:
        assert platform("init", "--from", typed, *words, "--no-smoke").exit_code == 0
        assert load.load_job(code_folder).script == script_name


def test_a_folder_above_the_working_directory_is_not_submitted(
    platform: Platform, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep_script = script.parent / "deep" / script.name
    deep_script.parent.mkdir()
    deep_script.write_text(f"import sys\n{ADDS_FOLDER_ABOVE.replace('[1]', '[2]')}import nets\n{PARSES}")
    Path("nets.py").touch()
    monkeypatch.chdir(script.parent)
    words = ("--space", "lr=0..1", "--objective", "accuracy:max", "--local", "--dry-run", "-o", "json")
    result = platform("submit", "hpo", "./deep/fit.py", *words)
    assert result.exit_code == 0 and json.loads(result.stdout)["job"]["script"] == "fit.py", result.stderr


def test_a_longer_name_is_not_the_flag_of_a_script(platform: Platform, script: Path) -> None:
    flags = PARSES.replace("args =", "p.add_argument('--batch-size', type=int)\nargs =")
    script.write_text(flags.replace("parse_args", "parse_known_args"))
    words = ("submit", "hpo", f"./{script}", "--objective", "accuracy:max", "--local", "--dry-run", "-o", "json")
    result = platform(*words, "--space", "model.lr=0..1")  # some library may declare it, beside --lr
    assert result.exit_code == 0 and set(json.loads(result.stdout)["job"]["space"]) == {"model.lr"}, result.output
    result = platform(*words, "--space", "lr=0..1", "--space", "lr=1..2")
    assert result.exit_code == 2 and "is set by --space lr=0..1 too" in result.stderr
    result = platform(*words, "--space", "batch_size=1..8", "--param", "batch_size=3")
    assert result.exit_code == 2 and "is searched by --space; leave out one of them" in result.stderr


def test_a_script_that_is_not_python_is_named_with_every_wrong_flag(platform: Platform, script: Path) -> None:
    script.write_text("x = (\n")
    result = platform("submit", "hpo", f"./{script}", "--space", "lr=low..1", "--local")
    assert result.exit_code == 2 and "'lr=low..1' is not" in result.stderr and "is not Python" in result.stderr


def test_a_parameter_that_a_job_lists_as_a_comment_can_be_fixed(platform: Platform, script: Path) -> None:
    fields = "kind: hpo\nscript: fit.py\n# params:\n  # total_steps: 100\nspace: {lr: {type: float, low: 0, high: 1}}\n"
    (script.parent / "job.yaml").write_text(f"{fields}objective: {{metric: accuracy, direction: maximize}}\n")
    words = ("submit", "hpo", f"./{script.parent}", "--local", "--dry-run", "-o", "json")
    result = platform(*words, "--param", "total_steps=7")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["job"]["params"] == {"total_steps": 7}
    assert "no such parameter" in platform(*words, "--param", "steps=7").stderr


def test_the_command_that_makes_a_job_has_the_typed_options(platform: Platform, script: Path) -> None:
    words = ("--space", "lr=1e-4..1e-1:log", "--space", "opt=adam,sgd", "--objective", "accuracy:max", "--local")
    result = platform("submit", "hpo", f"python {script} -c x", *words)
    command = f"platform init --from 'python {script} -c x' --space lr=1e-4..1e-1:log --space opt=adam,sgd"
    command += " --objective accuracy:max"
    assert result.exit_code == 2 and f"`{command}` makes one" in result.stderr, result.output
    shutil.copy(sys.executable, "fit")
    result = platform("submit", "hpo", "./fit", "--space", "c=1..2", "--objective", "accuracy:max", "--local")
    command = "platform init --from './fit ARGUMENTS' --space c=1..2 --objective accuracy:max"
    assert f"./fit is a program and no job; `{command}` makes one, with the arguments that you type" in result.stderr


def test_its_arguments_can_be_fixed(platform: Platform, script: Path) -> None:
    words = ("--space", "lr=1..2", "--objective", "accuracy:max", "--params", "fixed.yaml")
    Path("fixed.yaml").write_text("steps: 1\nname: a\n")
    words = (*words, "--param", "epochs=5", "--param", "model=bert-base", "--param", "steps=6000")
    result = platform("submit", "hpo", f"./{script}", *words, "--local", "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.stderr
    job = json.loads(result.stdout)["job"]
    assert job["params"] == {"steps": 6000, "name": "a", "epochs": 5, "model": "bert-base"} and set(job["space"]) == {"lr"}


def test_a_parameter_of_a_job_can_be_fixed(platform: Platform) -> None:
    result = platform("submit", "hpo", "demo", "--param", "lr=0.5", "--local", "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.stderr
    job = json.loads(result.stdout)["job"]
    assert job["params"]["lr"] == 0.5 and "lr" not in job["space"]
    result = platform("submit", "hpo", "demo", "--param", "nosuch=1", "--local", "--dry-run")
    assert result.exit_code == 2, result.output
    assert "--param nosuch=1: nosuch: there is no such parameter; " in result.stderr
    assert "; for a new one write `params: {nosuch: VALUE}` into job.yaml" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--param", "epochs"), "'epochs' is not a parameter; write NAME=VALUE"),
        (("--param", "x=["), "is not YAML"),
        (("--param", "lr=1", "--space", "lr=1..2"), "params.lr: is searched by --space; leave out one of them"),
    ],
)
def test_a_fixed_argument_that_is_none_is_refused(
    platform: Platform, script: Path, words: tuple[str, ...], told: str
) -> None:
    result = platform("submit", "hpo", f"./{script}", "--objective", "accuracy:max", *words, "--local", "--dry-run")
    assert result.exit_code == 2 and told in result.stderr


def test_every_wrong_flag_is_named_at_once(platform: Platform, script: Path) -> None:
    words = ("--space", "lr", "--space", "n=9..1", "--objective", "accuracy", "--trials", "0")
    result = platform("submit", "hpo", f"./{script}", *words, "--local")
    assert result.exit_code == 2
    for part in ("'lr' is not a parameter", "--space n=9..1", "accuracy:max or accuracy:min", "--trials"):
        assert part in result.stderr


def test_flags_change_a_job_that_has_a_file(platform: Platform) -> None:
    words = ("--space", "lr=1..2", "--objective", "loss:min:best")
    result = platform("submit", "hpo", "demo", *words, "--local", "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.stderr
    job = json.loads(result.stdout)["job"]
    assert job["space"]["lr"] | {"type": "float", "low": 1.0, "high": 2.0} == job["space"]["lr"]
    assert job["objectives"] == [{"metric": "loss", "direction": "minimize", "of": "best"}]


def test_a_module_that_only_a_folder_in_pythonpath_has_is_named_before_the_start(
    platform: Platform, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("lib").mkdir()
    Path("lib/exported_helper.py").write_text("")
    Path("code").mkdir()
    Path("code/fit.py").write_text("import exported_helper\n" + PARSES)
    words = ("--space", "lr=1..2", "--objective", "loss:min")
    command = shlex.join(["platform", "init", "--from", "PYTHONPATH=lib python code/fit.py", *words])
    for python_path, is_named in (("lib", True), ("code", False)):
        monkeypatch.setenv("PYTHONPATH", str(Path(python_path).resolve()))
        result = platform("submit", "hpo", "code/fit.py", *words, "--local", "--dry-run")
        assert (f"exported_helper is in {Path('lib').resolve()}: `{command}` makes a job" in result.stderr) == is_named


def test_a_script_that_is_not_there_is_named(platform: Platform) -> None:
    result = platform("submit", "hpo", "./no.py", "--local", "--objective", "a:max")
    assert result.exit_code == 2 and "there is no script ./no.py" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "mix = 1.0\ncopies = 1\n",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--mix', type=float)\n"
        "p.add_argument('--copies', type=int, default=1)\np.parse_args()\n",
        "import click\n@click.command()\n@click.option('-m', '--mix', default=1.0)\n@click.option('--copies', default=1)\n"
        "def main(mix, copies): ...\nmain()\n",
        "import fire\nfire.Fire(lambda mix=1.0, *, copies=1: None)\n",
    ],
)
def test_the_range_of_a_float_of_a_script_is_one_of_floats(platform: Platform, tmp_path: Path, text: str) -> None:
    (tmp_path / "fit.py").write_text(text)
    words = ("--space", "mix=0..1", "--space", "copies=0..1", "--objective", "loss:min", "--set", "arguments=flags")
    result = platform("submit", "hpo", str(tmp_path / "fit.py"), *words, "--local", "--dry-run", "-o", "json")
    assert result.exit_code == 0, result.stderr
    space = json.loads(result.stdout)["job"]["space"]
    assert {name: parameter["type"] for name, parameter in space.items()} == {"mix": "float", "copies": "int"}
