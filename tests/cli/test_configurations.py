"""`platform init --from` for scripts that merge the words of the command line into a configuration by code of their own.

Not checked here: parsers and configurations of libraries (test_script_styles.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.conftest import given, made, write

from trialplane.errors import EXIT_RUN_FAILED
from trialplane.importing import script, script_folder

CONFIG = """
    import ast

    class Node:
        def __init__(self, **values): self.__dict__.update(values)

        def merge_from_args(self, words):
            for word in words:
                key, value = word.split("=")
                assert key[:2] == "--"
                self.replace(key[2:], value)

        def merge_from_list(self, words):
            for key, value in zip(words[0::2], words[1::2]):
                self.replace(key, value)

        def replace(self, key, value):
            *names, last = key.split(".")
            node = self
            for name in names:
                node = getattr(node, name)
            assert hasattr(node, last), key
            setattr(node, last, ast.literal_eval(value))

    class Trainer:
        lr = 0.1
        betas = (0.9, 0.95)
        width = None

    def defaults():
        return Node(trainer=Trainer(), resid_pdrop=0.2, seed=1)

    def overridden(words):
        config = defaults()
        for word in words:
            config.replace(*word.split("="))
        return config
"""
# Form → statement that merges, and arguments of a command
MERGES = {
    "flags": ("config = defaults()\nconfig.merge_from_args(sys.argv[1:])", "--seed=2"),
    "pairs": ("config = defaults()\nconfig.merge_from_list(sys.argv[1:])", "seed 2"),
    "assignments": ("config = overridden(sys.argv[1:])", "seed=2"),
    "returned": ("def load():\n    return overridden(sys.argv[1:])\nconfig = load()", "seed=2"),
}


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("is_command", [True, False])
def test_values_of_a_configuration_that_the_script_merges_by_itself_are_searched(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, merge: str, is_command: bool
) -> None:
    statement, typed = MERGES[merge]
    result_line = "print(f'loss={config.trainer.lr + config.resid_pdrop}')"
    write(written, {"own.py": CONFIG, "fit.py": f"import sys\nfrom own import *\n{statement}\n{result_line}\n"})
    monkeypatch.chdir(written)
    result = platform("init", "--from", f"python fit.py {typed}" if is_command else "fit.py")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    monkeypatch.chdir(written.parent)
    assert set(made().search.parameters) == {"trainer.lr", "resid_pdrop"}
    words = {"flags": "--trainer.lr=0.3", "pairs": "trainer.lr 0.3"}.get(merge, "trainer.lr=0.3")
    assert words in " ".join(given(made(), **{"trainer.lr": 0.3}))


SHARED = "from shared_lib.losses import loss\n"
SHARED_LOSS = "print(f'loss={loss(float(sys.argv[2]))}')\n"
# Files of a project whose projects/fit.py needs a module above it, and the beginning of the command there.
MODULES_ABOVE = {
    "no path": ({"projects/fit.py": f"import sys\n{SHARED}{SHARED_LOSS}"}, ""),
    "path of the script": ({"projects/fit.py": f"import sys\nsys.path.append('..')\n{SHARED}{SHARED_LOSS}"}, ""),
    "path of the command": (
        {"projects/own.py": SHARED, "projects/fit.py": f"import sys\nfrom own import loss\n{SHARED_LOSS}"},
        "LEVEL=a PYTHONPATH=.. ",
    ),
    "other path of the script": (
        {
            "projects/lib/own.py": "",
            "projects/fit.py": f"import sys\nsys.path.append('lib')\nimport own\n{SHARED}{SHARED_LOSS}",
        },
        "",
    ),
    "other path of the command": (
        {"projects/lib/own.py": "", "projects/fit.py": f"import sys, own\n{SHARED}{SHARED_LOSS}"},
        'PYTHONPATH="lib" ',
    ),
}


@pytest.mark.parametrize("form", MODULES_ABOVE)
def test_a_command_that_needs_modules_of_a_folder_above_has_its_job_there(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    files, typed = MODULES_ABOVE[form]
    write(written, {"shared_lib/losses.py": "def loss(lr): return lr\n", **files})
    monkeypatch.chdir(written / "projects")
    result = platform("init", "--from", f"{typed}python fit.py --lr 0.1", "--space", "lr=0.5..2")
    assert result.exit_code == 0 and not Path("job.yaml").exists(), result.output
    assert f"; the job is made in {written}, which has both, of `cd projects && " in result.stderr
    assert "its metrics: loss" in result.stderr and result.stderr.endswith(f"type `cd {written}` before these commands\n")
    assert "high: 2" in (written / "job.yaml").read_text(), "the options are those that were typed"


def test_a_job_in_a_folder_above_has_the_same_checks(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = "parser = argparse.ArgumentParser()\nparser.add_argument('--lr')\nparser.add_argument('--n')\n"
    text = f"import argparse\n{SHARED}{parser}parser.parse_args()\n"
    write(written, {"shared_lib/losses.py": "def loss(lr): return lr\n", "projects/fit.py": text})
    monkeypatch.chdir(written / "projects")
    result = platform("init", "--from", "python fit.py --n 3", "--space", "hidden=1..9")
    assert result.exit_code == 2 and not list(written.rglob("job.yaml")), result.output
    assert "has no parameter hidden; there are: lr, n" in result.stderr
    (written / "job.yaml").touch()
    result = platform("init", "--from", "python fit.py --n 3", "--space", "lr=1..9")
    assert result.exit_code == 2 and "imports modules of " in result.stderr, result.output
    assert f"{written}/job.yaml already exists; " in result.stderr, result.output


def test_a_value_of_a_commands_script_without_a_name_gets_one(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "parser = argparse.ArgumentParser()\nparser.add_argument('--n')\nparser.parse_args()\nprint(f'loss={1 / hidden}')\n"
    )
    file = write(written, {"fit.py": f"import argparse\n{text.replace('hidden', '8')}"}) / "fit.py"
    monkeypatch.chdir(written)
    result = platform("init", "--from", "cd . && python fit.py --n 3", "--space", "hidden=4..9")
    assert "without a name in fit.py, set `hidden = VALUE` at its top and use hidden there; nothing" in result.stderr
    file.write_text(f"import argparse\nhidden = 8\n{text}")
    result = platform("init", "--from", "cd . && python fit.py --n 3", "--space", "hidden=4..9")
    text = Path("job.yaml").read_text()
    assert result.exit_code == 0 and "enqueue: [{hidden: 8}] # today's values, tried" in text, result.output
    assert "params: # today's values, the same in every trial\n  n: 3\n" in text, "which are the command's"


def test_a_folder_that_no_job_may_contain_is_added_to_the_path(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, typed = MODULES_ABOVE["path of the command"]
    write(written, {"shared_lib/losses.py": "def loss(lr): return lr\n", **files})
    monkeypatch.setenv("HOME", str(written))
    monkeypatch.chdir(written / "projects")
    result = platform("init", "--from", f"{typed}python fit.py --lr 0.1", "--no-smoke")
    absolute = re.search(rf"set `(PYTHONPATH={re.escape(str(written))}:..)` in the command", result.stderr)
    assert absolute is not None and "cd " not in result.stderr, result.output
    result = platform("init", "--from", f"{absolute[1]} python fit.py --lr 0.1")
    assert "its metrics: loss" in result.stderr, result.output


@pytest.mark.parametrize(
    ("statement", "head", "is_named"),
    [
        ("data = '{root}/data/train.csv'", "", False),
        ("data = '{root}x'", "PYTHONPATH={root}x ", False),
        ("sys.path.append('{root}/')", "", True),
        ("", "PYTHONPATH={root}/projects/.. ", True),
    ],
)
def test_only_the_absolute_path_of_a_folder_itself_makes_its_modules_known(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, statement: str, head: str, is_named: bool
) -> None:
    text = f"import sys\n{statement.format(root=written)}\n{SHARED}{SHARED_LOSS}"
    write(written, {"shared_lib/losses.py": "def loss(lr): return lr\n", "projects/fit.py": text})
    monkeypatch.chdir(written / "projects")
    result = platform("init", "--from", f"{head.format(root=written)}python fit.py --lr 0.1", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert Path("job.yaml").exists() == is_named and (written / "job.yaml").exists() != is_named


@pytest.mark.parametrize("source", ["python fit.py --lr 0.1", "fit.py", "bash fit.sh", "python parsed.py --seed 1"])
def test_the_job_of_a_run_that_lacks_a_module_of_a_folder_above_is_there(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    files = {
        "shared_lib/losses.py": "def loss(lr): return lr\n",
        "projects/own.py": SHARED,
        "projects/fit.py": "lr = 0.1\nfrom own import loss\nprint(f'loss={loss(lr)}')\n",
        "projects/fit.sh": "python fit.py --lr 0.1\n",
        "projects/parsed.py": "from own import loss\nimport argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--seed')\nparser.add_argument('--lr', type=float, default=0.1)\n"
        "print(f'loss={loss(parser.parse_args().lr)}')\n",
    }
    write(written, files)
    monkeypatch.chdir(written / "projects")
    result = platform("init", "--from", source, "--space", "lr=0.5..2")
    assert result.exit_code == 0 and not Path("job.yaml").exists() and (written / "job.yaml").exists(), result.output
    assert f"imports shared_lib, which is in {written}, outside" in result.stderr and "its metrics: loss" in result.stderr


@pytest.mark.parametrize("source", ["sh run.sh", "python fit.py --lr 0.1", "fit.py"])
def test_a_folder_that_is_named_like_a_missing_library_is_no_package(
    platform, workplace: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    text = "import sys\nlr = 0.1\n{}\nprint('loss=', lr)\n"
    files = {
        "run.sh": "python dyn.py --lr 0.1\n",
        "dyn.py": text.format("__import__('xgboostz')"),
        "fit.py": text.format("from xgboostz import Booster"),
    }
    monkeypatch.chdir(write(workplace / "xgboostz", files))
    result = platform("init", "--from", source)
    assert result.exit_code == EXIT_RUN_FAILED and Path("job.yaml").exists(), result.output
    assert "No module named 'xgboostz'" in result.stderr


@pytest.mark.parametrize("nets", ["src/nets.py", "src/__init__.py", "src.py"])
def test_a_folder_has_the_modules_that_its_scripts_import_by_its_name(workplace: Path, nets: str) -> None:
    text = "from src import nets\n"
    file = write(workplace, {"src/fit.py": text, nets: ""}) / "src/fit.py"
    assert script_folder.start(file, script.read(text, "fit.py"), text).roots == [workplace]
    if nets != "src/nets.py":
        assert script_folder.root_above(file.parent, "src") == workplace


def test_a_folder_without_python_files_is_no_package(workplace: Path) -> None:
    text = "import models\n"
    file = write(workplace, {"src/fit.py": text, "models/.gitkeep": "", "models/best/net.pt": ""}) / "src/fit.py"
    assert script_folder.start(file, script.read(text, "fit.py"), text).roots == []
    root = write(workplace, {"models/large/nets/core.py": ""})
    assert script_folder.start(file, script.read(text, "fit.py"), text).roots == [root]
    (root / "models/large/nets/core.py").unlink()
    write(workplace, {"models/nets/core.py": "", **{f"models/best/{index}.pt": "" for index in range(1100)}})
    assert script_folder.start(file, script.read(text, "fit.py"), text).roots == [root]


def test_the_folders_of_a_commands_modules_are_looked_for_once(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, start = [], script_folder.start
    monkeypatch.setattr(
        script_folder, "start", lambda file, *args, **named: files.append(file) or start(file, *args, **named)
    )
    text = f"import sys\nsys.path.append('.')\n{SHARED}{SHARED_LOSS}"
    file = write(written, {"shared_lib/losses.py": "def loss(lr): return lr\n", "projects/fit.py": text}) / "projects/fit.py"
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python projects/fit.py --lr 0.1")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert "PYTHONPATH" not in Path("job.yaml").read_text(), "it finds them by itself"
    assert files.count(file) == 1, "the others are in copies"


def test_a_path_of_a_command_above_its_folder_that_it_does_not_need_is_no_reason_to_refuse(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(written, {"projects/fit.py": "import sys\nprint('loss=', sys.argv[2])\n"})
    monkeypatch.chdir(written / "projects")
    result = platform("init", "--from", "PYTHONPATH=.. python fit.py --lr 0.1")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output


@pytest.mark.parametrize(
    "statement",
    ["import getopt\ngetopt.getopt(sys.argv[1:], 'o:')", "def look(words): pass\nlook(sys.argv[1:])"],
    ids=["getopt", "function"],
)
def test_words_that_are_merged_into_no_configuration_leave_the_values_of_the_script(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    write(written, {"fit.py": f"import sys\nlr = 0.1\nhidden = 64\n{statement}\nprint('loss=', lr * hidden)\n"})
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python fit.py -o x")
    assert result.exit_code == 0, result.output
    monkeypatch.chdir(written.parent)
    assert set(made().search.parameters) == {"lr", "hidden"}


def test_objects_that_refer_to_each_other_are_read_within_a_limit(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 200 nodes refers to all the others, and may spawn a process, which gets `sys.argv`."""
    text = """
        import pickle, sys
        from own import *
        config, nodes = defaults(), [Node() for _ in range(200)]
        for node in nodes:
            node.__dict__.update({f"n{number}": other for number, other in enumerate(nodes)}, lr=0.1)
        pickle.dumps(sys.argv)
        config.nodes = nodes[0]
        config.merge_from_args(sys.argv[1:])
        print(f"loss={config.trainer.lr}")
    """
    write(written, {"own.py": CONFIG, "fit.py": text})
    monkeypatch.chdir(written)
    result = platform("init", "--no-smoke", "--from", "fit.py")
    assert result.exit_code == 0, result.output
    monkeypatch.chdir(written.parent)
    assert "trainer.lr" in made().search.parameters
