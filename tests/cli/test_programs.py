"""`platform init --from` for programs: command lines, shell scripts, Makefiles, notebooks, and scripts in larger projects.

Not checked here: how one script takes its arguments (test_script_styles.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest
from tests.cli.conftest import command_of, made, write

from trialplane.job import load, settings
from trialplane.job.kinds import Study

PRINTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--layers", type=int, required=True)
args = parser.parse_args()
print(f"val_loss={args.lr * args.layers}")
"""


def job_in(folder: str) -> Study:
    job = load.load_job(Path(folder))
    assert isinstance(job, Study)
    return job


@pytest.mark.parametrize(
    ("line", "is_script"),
    [
        ("python src/fit.py --tag a --lr 0.1 --layers 2", True),
        ("python3 -u src/fit.py --tag a --lr 0.1 --layers 2", True),
        ("python ./src/fit.py --tag a --lr 0.1 --layers 2", False),  # sys.argv[0] of a script has no ./
        ("python -O src/fit.py --tag a --lr 0.1 --layers 2", False),
        ("MODE=a python src/fit.py --tag a --lr 0.1 --layers 2", False),
        ("python src/fit.py --tag a --lr 0.1 --layers 2 | cat", False),
    ],
)
def test_a_command_that_only_starts_a_script_is_the_script_with_its_arguments(
    platform, written: Path, line: str, is_script: bool
) -> None:
    text = PRINTS.replace("args =", "parser.add_argument('--tag')\nparser.add_argument('--dropout', type=float)\nargs =")
    write(written, {"fit.py": text})
    result = platform("init", "--from", line, "--space", "lr=0.01..1", "--space", "dropout=0.1..0.5")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    job = job_in(".")
    assert (job.script is not None, job.command is None) == (is_script, is_script)
    if is_script:
        assert job.script == "src/fit.py" and job.arguments is not None
        assert job.arguments.items == ("--tag", "a", "--lr", "{lr}", "--layers", "{layers}", "{flags}")
        assert job.params == {"layers": 2}


@pytest.mark.parametrize(
    ("line", "command", "start"),
    [
        (
            "python src/fit.py --lr 1e-1 --layers=2",
            ("python", "src/fit.py", "--lr", "{lr}", "--layers={layers}"),
            {"lr": 0.1, "layers": 2},
        ),
        (
            "cd src && python fit.py --lr {lr=0.1} --layers 2",
            ("bash", "-c", 'cd src && python fit.py --lr {lr} --layers {layers} "$@"', "bash"),
            {"lr": 0.1, "layers": 2},
        ),
        (
            "LR=0.1 SEED=x sh -c 'echo loss=$LR {}'",
            ("bash", "-c", "LR={LR} SEED=x sh -c 'echo loss=$LR {{}}'"),
            {"LR": 0.1},
        ),
        ("LR=0.1 env", ("env", "LR={LR}", "env"), {"LR": 0.1}),
        (
            "echo -lr 0.1 OPT.DROPOUT 0.5",
            ("echo", "-lr", "{lr}", "OPT.DROPOUT", "{OPT.DROPOUT}"),
            {"lr": 0.1, "OPT.DROPOUT": 0.5},
        ),
    ],
)
def test_a_command_line_is_a_job(
    platform, written: Path, line: str, command: tuple[str, ...], start: dict[str, float]
) -> None:
    write(written, {"fit.py": PRINTS})
    result = platform("init", "--from", line)
    assert result.exit_code == 0 and "failed" not in result.stderr, result.output
    assert "runs once with the command's values, as" in result.stderr
    job = job_in(".")
    assert command_of(job) == command
    assert job.search.enqueue == (start,)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "API_KEY=hush1 python src/fit.py --lr 0.1 --layers 2",
            ("python", "src/fit.py", "--lr", "{lr}", "--layers", "{layers}"),
        ),
        (
            "python src/fit.py --api-key hush1 --lr 0.1 --layers 2",
            ("bash", "-c", 'python src/fit.py --api-key "$API_KEY" --lr {lr} --layers {layers} "$@"', "bash"),
        ),
        (
            """python src/fit.py --conf '{"api_key": "hush1"}' --lr 0.1 --layers 2""",
            (
                "bash",
                "-c",
                """python src/fit.py --conf '{{"api_key": "'"$API_KEY"'"}}' --lr {lr} --layers {layers} "$@\"""",
                "bash",
            ),
        ),
    ],
)
def test_secrets_of_a_command_line_stay_in_the_environment(
    platform, written: Path, line: str, command: tuple[str, ...]
) -> None:
    reads = "import os\nassert os.environ['API_KEY'] == 'hush1'"
    write(
        written,
        {
            "fit.py": f"{reads}\n{PRINTS}".replace(
                "args =", "for key in ('--api-key', '--conf'): parser.add_argument(key)\nargs ="
            )
        },
    )
    result = platform("init", "--from", line)
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    assert "type `export API_KEY=…` before `platform submit`" in result.stderr
    assert command_of(job_in(".")) == command
    assert "hush1" not in Path("job.yaml").read_text() + result.output


def test_a_command_line_with_a_secret_and_without_arguments_is_its_script(platform, written: Path) -> None:
    write(written, {"fit.py": "import os\nlr = 0.1\nprint(f'loss={lr}', len(os.environ['HF_TOKEN']))\n"})
    result = platform("init", "--from", "HF_TOKEN=hush1 python src/fit.py")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert job_in(".").script == "src/fit.py" and "hush1" not in Path("job.yaml").read_text()


def test_defaults_that_are_secrets_stay_out_of_the_job(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hush-in-environment")
    text = "import argparse, os\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
    text += "p.add_argument('--auth', default=os.environ['HF_TOKEN'])\np.add_argument('--password', default='hush1')\n"
    write(written, {"fit.py": f"{text}print(f'loss={{p.parse_args().lr}}')\n"})
    assert platform("init", "--from", str(written / "fit.py")).exit_code == 0
    assert "hush" not in (written / "job.yaml").read_text() and made().params == {}


def test_a_required_secret_is_not_to_be_written(platform, written: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
    write(written, {"fit.py": f"{text}p.add_argument('--api-key', required=True)\np.parse_args()\n"})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 2 and "let fit.py read an environment variable in its place" in result.stderr
    assert "--param api-key" not in result.stderr


def test_a_secret_in_a_shell_script_is_named(platform, written: Path) -> None:
    write(written, {"fit.py": PRINTS, "fit.sh": "export WANDB_API_KEY=hush1\npython fit.py --lr 0.1 --layers 2\n"})
    result = platform("init", "--from", str(written / "fit.sh"), "--no-smoke")
    assert result.exit_code == 0 and "sets WANDB_API_KEY, which looks like a secret" in result.stderr, result.output


def test_a_secret_of_a_loop_is_named_as_the_command_reads_it(platform, written: Path) -> None:
    script = (
        "TOKEN=hush1\nKEY=hush2\nfor lr in 0.1 0.01; do\npython fit.py --lr $lr --hub-key $TOKEN --wandb-key $KEY\ndone\n"
    )
    write(written, {"fit.py": PRINTS, "fit.sh": script})
    result = platform("init", "--from", str(written / "fit.sh"), "--no-smoke")
    assert "sets TOKEN, which looks like a secret" in result.stderr and "`export HUB_KEY=…`" in result.stderr, result.output
    assert "sets WANDB_KEY, which" in result.stderr and "`export WANDB_KEY=…`" in result.stderr
    command = made().command or ()
    assert "hush" not in str(command) and '--hub-key "$HUB_KEY" --wandb-key "$WANDB_KEY"' in str(command), command


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Makefile", "TOKEN = hush1\nfit:\n\tpython fit.py --hub-token $(TOKEN) --lr 0.1\n"),
        (
            "MLproject",
            "entry_points: {main: {parameters: {lr: float}, command: 'python fit.py --hub-token hush1 --lr {lr}'}}\n",
        ),
    ],
)
def test_no_secret_of_a_launcher_is_in_the_job(platform, written: Path, name: str, text: str) -> None:
    write(written, {"fit.py": PRINTS, name: text})
    result = platform("init", "--from", str(written / name), "--no-smoke")
    assert "which looks like a secret" in result.stderr and "`export HUB_TOKEN=…`" in result.stderr, result.output
    assert "hush" not in (written / "job.yaml").read_text()
    assert '--hub-token "$HUB_TOKEN" --lr {lr}' in str(made().command)


@pytest.mark.parametrize(
    "text",
    [
        "include config.mk\nfit:\n\tpython fit.py $(ARGS)\n",
        "ifdef A\n  include config.mk\nendif\nfit:\n\tpython fit.py $(ARGS)\n",
        "fit: ARGS = --big\nfit:\n\tpython fit.py $(ARGS)\n",
        "ifdef BIG\n  ARGS = --big\nendif\nfit:\n\tpython fit.py $(ARGS)\n",
        "fit:\n\tpython fit.py --kind $(OPTIMIZER)\n",
        "fit:\n\tpython fit.py $(FIT_ARGS)\n",
    ],
)
def test_no_argument_of_a_recipe_is_dropped(platform, workplace: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    write(workplace, {"fit.py": PRINTS, "Makefile": text})
    monkeypatch.setenv("FIT_ARGS", "--big")
    result = platform("init", "--from", "make fit", "--no-smoke", "--space", "lr=0..1")
    assert result.exit_code == 2 and not Path("job.yaml").exists(), result.output


def test_parameters_of_an_mlproject_may_have_hyphens(platform, written: Path) -> None:
    text = "entry_points: {main: {parameters: {n-rows: {type: int, default: 3}}, command: 'python fit.py -n {n-rows}'}}\n"
    write(written, {"fit.py": PRINTS, "MLproject": text})
    result = platform("init", "--from", str(written / "MLproject"), "--no-smoke")
    assert result.exit_code == 0, result.output
    assert made().command == ("python", "fit.py", "-n", "{n-rows}")


def test_a_command_line_without_numbers_is_told_what_to_write(platform, written: Path) -> None:
    result = platform("init", "--from", "python src/fit.py --name x")
    assert result.exit_code == 2 and "write `--lr 0.1`, `lr=0.1` or {lr=0.1} where a value goes" in result.stderr
    assert not Path("job.yaml").exists()
    result = platform("init", "--from", "python src/fit.py 'x --lr 0.1")
    assert result.exit_code == 2 and "cannot be read: No closing quotation" in result.stderr


def test_numbers_of_a_shell_script_are_replaced_in_its_text(platform, written: Path) -> None:
    script = "#!/bin/bash\n# LR=9\nexport LR=0.5  # of Adam\nOUT=x1\npython fit.py --lr $LR \\\n  --layers 2 \\\n"
    write(written, {"fit.py": PRINTS, "fit.sh": script})
    result = platform("init", "--from", str(written / "fit.sh"))
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    job = made()
    assert job.command == ("bash", "fit.sh") and job.arguments is not None and job.arguments.files == ("fit.sh",)
    assert job.search.enqueue == ({"LR": 0.5, "layers": 2},)


def test_variables_of_a_makefile_are_given_to_make(platform, written: Path) -> None:
    makefile = "LR ?= 0.5  # of Adam\nN := 2\nOUT = out\nall: train\ntrain:\n\t@python fit.py --lr $(LR) --layers $(N)\n"
    write(written, {"fit.py": PRINTS, "Makefile": makefile})
    result = platform("init", "--from", str(written / "Makefile"))
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    assert made().command == ("make", "train", "LR={LR}", "N={N}") and set(made().search.parameters) == {"LR"}
    assert "runs once with its defaults, as `make train LR=0.5 N=2`, in a copy of src" in result.stderr


def test_a_target_of_a_makefile_that_is_not_named_like_a_training_never_runs(platform, written: Path) -> None:
    makefile = f"LR ?= 0.5\ndeploy:\n\ttouch {written / 'deployed'} # $(LR)\nclean:\n\trm -r data\n"
    write(written, {"Makefile": makefile})
    result = platform("init", "--from", str(written / "Makefile"))
    assert result.exit_code == 2 and "its targets are deploy, clean; name the one that trains: `platform" in result.stderr
    assert "'make TARGET LR=0.1'`" in result.stderr and not (written / "deployed").exists()
    assert not (written / "job.yaml").exists()


@pytest.mark.parametrize(
    ("makefile", "command"),
    [
        ("include fit.mk\nfit:\n\tpython fit.py --lr $(LR) --layers 2\n", ("make", "fit", "LR={LR}")),
        (
            "fit:\n\t@python fit.py --lr 0.1 \\\n\t\t--layers 2\nother:\n\techo --x 1\n",
            ("python", "fit.py", "--lr", "{lr}", "--layers", "{layers}"),
        ),
    ],
)
def test_values_of_a_makefile_may_be_in_another_or_in_a_recipe(
    platform, written: Path, makefile: str, command: tuple[str, ...]
) -> None:
    write(written, {"fit.py": PRINTS, "fit.mk": "LR = 0.1\n", "Makefile": makefile})
    result = platform("init", "--from", str(written / "Makefile"))
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    assert command_of(made()) == command


@pytest.mark.parametrize(
    ("makefile", "command"),
    [
        ("LR ?= 0.5\nN := 2\nfit:\n\tpython fit.py --lr $(LR) --layers $(N)\n", "make fit LR={LR} N={N}"),
        (
            "PY = python\nfit: data\n\t$(PY) fit.py --lr 0.1 --layers 2\n",
            "python fit.py --lr {lr} --layers {layers}",
        ),
        (
            "N = 2\nfit:\n\tpython load.py --rows 9\n\tpython fit.py --lr 0.1\nscore:\n\tpython load.py $(N)\n",
            "python fit.py --lr {lr}",
        ),
        (
            "LR = 0.1\nFLAGS = --lr ${LR}\nfit: model\nmodel: load\n\tpython fit.py $(FLAGS)\nload:\n\techo\n",
            "make fit LR={LR}",
        ),
    ],
)
def test_a_target_of_make_stands_for_the_command_with_parameters(
    platform, written: Path, makefile: str, command: str
) -> None:
    write(Path(), {"fit.py": PRINTS, "Makefile": makefile})
    result = platform("init", "--from", "make fit", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert " ".join(command_of(job_in("."))) == command
    told = "`make fit` also runs `python load.py --rows 9`, which trials leave out"
    assert (told in result.stderr) == ("--rows" in makefile), result.stderr


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("make -f fit.mk score", "make -f fit.mk score LR={LR} KIND={KIND}"),
        ("make -f fit.mk clean && make -f fit.mk LR=0.5", "make -f fit.mk LR={LR} KIND={KIND}"),
        ("make -f fit.mk score | sort", "make -f fit.mk score LR={LR} KIND={KIND} | sort"),
    ],
)
def test_variables_of_a_makefile_that_the_user_names_are_given_to_make(
    platform, written: Path, typed: str, command: str
) -> None:
    """The rules that use them may have targets that only make knows."""
    makefile = "LR = 0.1\nKIND = rbf\nN = 3\nMODEL := out/$(KIND)\nscore: $(MODEL)\n$(MODEL):\n\t./fit $(LR) $(KIND) $(N)\n"
    write(Path(), {"fit.mk": f"{makefile}clean:\n\trm -f out\n", "Makefile": "LR = 0.9\nall:\n\techo\n"})
    options = ("--space", "LR=0.01..1", "--space", "KIND=rbf,linear", "--objective", "loss:min", "--no-smoke")
    result = platform("init", "--from", typed, *options)
    assert result.exit_code == 0, result.output
    assert command in " ".join(command_of(job_in("."))), command_of(job_in("."))
    assert job_in(".").search.enqueue == ({"LR": 0.5 if "LR=0.5" in typed else 0.1, "KIND": "rbf"},)


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("make -C src fit", "make -C src fit LR={LR}"),
        ("make --directory=src -sf Makefile", "make --directory=src -sf Makefile LR={LR}"),
        ("cd src && make fit", "cd src && make fit LR={LR}"),
        ("make -I src -f src/Makefile fit LR=0.5", "make -I src -f src/Makefile fit LR={LR}"),
        ("make --what-if src fit LR=0.5", "make --what-if src fit LR={LR}"),
    ],
)
def test_the_values_of_make_are_those_of_its_makefile(platform, written: Path, typed: str, command: str) -> None:
    """An option's value is no target, though it is the name of a file."""
    write(Path(), {"Makefile": "LR = 0.9\nfit:\n\t./fit $(LR)\n", "src/Makefile": "LR = 0.5\nfit:\n\t./fit $(LR)\n"})
    result = platform("init", "--from", typed, "--space", "LR=0.01..1", "--objective", "loss:min", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert command in " ".join(command_of(job_in("."))), command_of(job_in("."))
    assert job_in(".").search.enqueue == ({"LR": 0.5},)


@pytest.mark.parametrize("command", ["make rows && python src/fit.py --lr 0.5 --layers 2", "make rows; ./fit --lr 0.5"])
def test_a_parameter_of_a_program_is_no_variable_of_a_make_before_it(platform, written: Path, command: str) -> None:
    write(Path(), {"Makefile": "lr = 0.9\nrows:\n\techo $(lr)\n", "src/fit.py": PRINTS})
    result = platform("init", "--from", command, "--space", "lr=0.01..1", "--objective", "loss:min", "--no-smoke")
    assert result.exit_code == 0, result.output
    words = " ".join(command_of(job_in(".")))
    assert "make rows lr" not in words and "--lr {lr}" in words
    assert job_in(".").search.enqueue == ({"lr": 0.5},)


READS_FILE = """
import sys
import yaml
with open(sys.argv[1]) as file:
    values = yaml.safe_load(file)
assert isinstance(values["model"]["shape"], str)
print(f"val_loss={values['model']['C']}")
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("make && make fit", "bash -c make && ./fit --lr {lr}"),
        ("make all; A=x make fit", "bash -c make all; A=x ./fit --lr {lr}"),
        ("make && make score", "bash -c make && make score LR={LR}"),
    ],
)
def test_a_program_is_built_before_the_target_of_make_that_runs_it(platform, command: str, expected: str) -> None:
    rules = "all: fit.sh\n\tcp fit.sh fit\nfit:\n\t./fit --lr 0.1\nscore:\n\t./fit --lr $(LR)\n"
    write(Path(), {"Makefile": f"LR = 0.1\n{rules}", "fit.sh": "#!/bin/sh\necho loss: $2\n"})
    Path("fit.sh").chmod(0o755)
    result = platform("init", "--from", command)
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert " ".join(command_of(job_in("."))) == expected


@pytest.mark.parametrize(
    ("before", "behind", "removed"),
    [
        ("nohup ", " > log.txt 2>&1 &", "`nohup` and `> log.txt 2>&1 &`"),
        ("nohup ", " &>> log.txt </dev/null &", "`nohup` and `&>> log.txt </dev/null &`"),
        ("", " 2>&1 | tee -a log.txt", "`2>&1 | tee -a log.txt`"),
        ("", " |& tee log.txt &", "`&` and `|& tee log.txt`"),
        ("", ' | tee "my log" log_$(date +%s)', '`| tee "my log" log_$(date +%s)`'),
        ("nohup ", ' > "my log" & disown', '`nohup` and `> "my log" & disown`'),
    ],
)
def test_a_trial_waits_for_the_command_and_has_its_output(platform, before: str, behind: str, removed: str) -> None:
    write(Path(), {"fit.py": PRINTS})
    result = platform("init", "--from", f"A=x {before}python fit.py --lr 0.5 --layers 2{behind}")
    assert result.exit_code == 0 and f"{removed}: left out of the command, because" in result.stderr, result.output
    assert "its metrics: val_loss" in result.stderr and job_in(".").metrics is None
    assert " ".join(command_of(job_in("."))) == "env A=x python fit.py --lr {lr} --layers {layers}"


@pytest.mark.parametrize(
    ("typed", "words", "first"),
    [
        ("KIND=lstm ./fit", "env KIND={KIND} ./fit", "lstm"),
        ("env LR=0.1 KIND=lstm ./fit", "env LR={LR} KIND={KIND} ./fit", "lstm"),
        ("KIND=lstm make", "env KIND={KIND} make", "lstm"),
        ("make", "make KIND={KIND}", "rbf"),
        ("KIND=lstm make OWN=1", "env KIND={KIND} make OWN={OWN}", "lstm"),
    ],
)
def test_a_text_of_a_variable_before_a_command_is_searched_on_request(platform, typed: str, words: str, first: str) -> None:
    write(Path(), {"fit": '#!/bin/sh\necho "loss: 1 $KIND"\n', "Makefile": "KIND ?= rbf\nfit:\n\t./fit $(KIND)\n"})
    Path("fit").chmod(0o755)
    result = platform("init", "--from", typed, "--space", "KIND=rbf,poly,lstm", "--no-smoke")
    assert result.exit_code == 0 and " ".join(command_of(job_in("."))) == words, result.output
    assert job_in(".").search.enqueue == ({"KIND": first},)


@pytest.mark.parametrize(
    ("code", "space", "searched", "point"),
    [
        ("fit(lr=0.1, kind='a')", ("--space", "LR=0.1..1"), "fit(lr={lr}, kind='a')", {"lr": 0.1}),
        ("fit(lr=0.1, kind='a')", ("--space", "kind=a,b"), "fit(lr=0.1, kind='{kind}')", {"kind": "a"}),
        ("fit(lr=0.1); score(lr=0.1)", (), "fit(lr={lr}); score(lr={lr})", {"lr": 0.1}),
    ],
)
def test_a_value_in_the_code_of_a_command_is_searched(platform, code: str, space, searched: str, point: dict) -> None:
    result = platform("init", "--from", f'python -c "from nets import *; {code}"', *space, "--no-smoke")
    assert result.exit_code == 0, result.output
    assert command_of(job_in("."))[2] == f'python -c "from nets import *; {searched}"'
    assert job_in(".").search.enqueue == (point,)


@pytest.mark.parametrize("code", ["fit('lr')", "fit(lr=$LR)", "fit(lr=", "fit(LR)"])
def test_other_code_of_a_command_has_no_parameters(platform, code: str) -> None:
    result = platform("init", "--from", f'python -c "{code}"', "--space", "lr=0.1..1", "--no-smoke")
    assert result.exit_code == 2 and not Path("job.yaml").exists(), result.output


def test_a_variable_before_make_that_the_makefile_replaces_is_given_to_make(platform) -> None:
    write(Path(), {"Makefile": "KIND = rbf\nN = 3\nfit:\n\techo loss: $(N) $(KIND)\n"})
    result = platform("init", "--from", "KIND=lstm N=5 make", "--space", "KIND=rbf,lstm", "--space", "N=1..5", "--no-smoke")
    assert result.exit_code == 0 and command_of(job_in(".")) == ("make", "KIND={KIND}", "N={N}"), result.output
    assert job_in(".").search.enqueue == ({"KIND": "rbf", "N": 3},), "which make has today"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("python fit.py --lr 0.5 # the rate 3", "python fit.py --lr {lr}"),
        ("# best so far\npython fit.py \\\n  --lr 0.5  # it's --n 3 \\", "python fit.py --lr {lr}"),
        ("python fit.py --tag '# 1' --out a#2 --lr 0.5", "python fit.py --tag # 1 --out a#2 --lr {lr}"),
        ("python fit.py --tag \\# --lr 0.5", "python fit.py --tag # --lr {lr}"),
    ],
)
def test_a_comment_is_no_argument(platform, typed: str, words: str) -> None:
    write(Path(), {"fit.py": PRINTS})
    result = platform("init", "--from", typed, "--no-smoke")
    assert result.exit_code == 0 and " ".join(command_of(job_in("."))) == words, result.output
    assert platform("init", "--from", "# python fit.py").exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        "python fit.py --lr 0.5 && echo '& '",
        "python fit.py --lr 0.5 && echo 'a | tee b'",
        "python fit.py --lr 0.5 > log.txt",
        "cd .\npython fit.py --lr 0.5",
        "time python fit.py --lr 0.5",  # a word of the shell
    ],
)
def test_other_parts_of_a_command_stay(platform, command: str) -> None:
    write(Path(), {"fit.py": PRINTS})
    result = platform("init", "--from", command, "--no-smoke")
    assert result.exit_code == 0 and "left out" not in result.stderr
    assert command_of(job_in("."))[2] == command.replace("0.5", '{lr} "$@"')


@pytest.mark.parametrize(
    ("makefile", "command", "remedy"),
    [
        ("fit:\n\tpython fit.py --lr 0.1\n", "make fit.py LR=0.1", "type `platform init --from fit.py --no-smoke`"),
        ("fit:\n\t./fit\n", "make -j 2 src LR=0.1", "name a target, as in `platform init --from 'make fit' --no-smoke`"),
        (None, "make src LR=0.1", "give the command that you type today"),
    ],
)
def test_a_file_that_make_has_no_rule_for_is_refused(platform, makefile: str | None, command: str, remedy: str) -> None:
    write(Path(), {"fit.py": PRINTS, "src/fit.c": "", **({"Makefile": makefile} if makefile else {})})
    result = platform("init", "--from", command, "--no-smoke")
    file = "fit.py" if "fit.py" in command else "src"
    assert f"make has no rule for {file}, and would run nothing; {remedy}" in result.stderr, result.output
    assert result.exit_code == 2 and not Path("job.yaml").exists()


@pytest.mark.parametrize("rules", ["include rules.mk\n", "%: %.c\n\tcc $<\n", "$(DIR): all\n"])
def test_a_file_that_make_may_have_a_rule_for_is_made(platform, rules: str) -> None:
    write(Path(), {"Makefile": rules, "rules.mk": "", "src/fit.c": ""})
    assert platform("init", "--from", "make src LR=0.1", "--no-smoke").exit_code == 0


@pytest.mark.parametrize("command", ["PYTHONPATH=src make", "env PYTHONPATH=src make fit", "make", "Makefile"])
def test_a_target_of_make_stands_for_a_command_whose_settings_file_has_the_parameters(platform, command: str) -> None:
    makefile = "F = b.yaml\nfit:\n\t@python fit.py $(F)\nclean:\n\trm -r data\n"
    write(Path(), {"fit.py": READS_FILE, "a.yaml": "model:\n  C: 1.0\n  shape: (1, 1)\n", "Makefile": makefile})
    make_given = command.endswith(("make", "fit")) and command != "make"
    if make_given:
        command += " F=a.yaml"
    else:
        write(Path(), {"b.yaml": "model:\n  C: 1.0\n  shape: (1, 1)\n"})
    result = platform("init", "--from", command, "--space", "C=0.1..10:log", "--space", "shape=(1, 1),(1, 2)")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    job = job_in(".")
    assert command_of(job)[-3:] == ("python", "fit.py", "a.yaml" if make_given else "b.yaml")
    assert ("PYTHONPATH=src" in command_of(job)) == make_given
    assert job.search.parameters["model.shape"].choices == ("(1, 1)", "(1, 2)")
    assert job.search.enqueue == ({"model.C": 1.0, "model.shape": "(1, 1)"},)


def test_a_range_that_no_job_may_have_is_refused_before_the_script_runs(platform) -> None:
    write(Path(), {"fit.py": PRINTS})
    result = platform("init", "--from", "python fit.py --lr 0.1 --layers 2", "--space", "lr=0.1,0.2,0.1")
    assert result.exit_code == 2 and "space.lr.choices.2: 0.1 is listed twice" in result.stderr, result.output
    assert "runs once" not in result.stderr and not Path("job.yaml").exists()


def test_variables_before_make_are_exported_to_all_commands_of_a_recipe(platform) -> None:
    write(Path("src"), {"fit.py": PRINTS})
    write(Path(), {"Makefile": "fit:\n\tcd src && python fit.py --lr 0.1 --layers 2\n"})
    result = platform("init", "--from", "MODE=b make", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert job_in(".").command[2].startswith("export MODE=b && cd src && python fit.py --lr {lr}")


def test_a_settings_file_of_a_command_in_a_shell_script_is_searched(platform) -> None:
    write(Path(), {"fit.py": READS_FILE, "a.yaml": "C: 1.0\n", "fit.sh": "N=${N:-2}\npython fit.py a.yaml\n"})
    result = platform("init", "--from", "fit.sh", "--space", "C=0.1..10:log", "--no-smoke")
    assert result.exit_code == 0, result.output
    job = job_in(".")
    assert job.arguments is not None and job.arguments.files == ("a.yaml",) and set(job.search.parameters) == {"C"}


@pytest.mark.parametrize("command", ["cd src && bash fit.sh", "fit.sh"])
def test_a_settings_file_of_a_command_in_another_folder_is_not_that_of_this_one(platform, command: str) -> None:
    files = {
        "a.yaml": "C: 2.0\n",
        "src/fit.py": READS_FILE,
        "src/a.yaml": "C: 1.0\n",
        "src/fit.sh": "python fit.py a.yaml\n",
    }
    write(Path(), {**files, "fit.sh": "cd src\npython fit.py a.yaml\n"})
    result = platform("init", "--from", command, "--space", "C=0.1..10:log", "--no-smoke")
    if command == "fit.sh":
        assert result.exit_code == 2 and "'cd src && python fit.py a.yaml' --space C=0.1..10:log" in result.output
        return
    job = job_in(".")
    assert job.command[:3] == ("bash", "-c", 'cd src && python fit.py a.yaml "$@"')
    assert job.arguments is not None and job.arguments.files == ("src/a.yaml",)


@pytest.mark.parametrize("head", ["", "LR=0.1 ", "cd src && "])
def test_environment_variables_that_a_commands_script_reads_are_searched(platform, written: Path, head: str) -> None:
    text = "import os, sys\ndef getenv(key, default): return type(default)(os.environ.get(key, default))\n"
    text += "LR, DEPTH = getenv('LR', 0.5), int(os.environ.get('DEPTH', '3'))\nprint(f'loss={LR * DEPTH}')\n"
    write(Path("src") if "src" in head else Path(), {"fit.py": text})
    result = platform("init", "--from", f"{head}python fit.py -v", "--space", "LR=0.1..1", "--space", "DEPTH=1..4")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    job = job_in(".")
    assert job.search.enqueue == ({"LR": 0.1 if head.startswith("LR") else 0.5, "DEPTH": 3},)
    assert job.command[0] == "env" and {"LR={LR}", "DEPTH={DEPTH}"} <= set(job.command)


@pytest.mark.parametrize("typed", ["--work-dir=/data/out", "--output_dir /data/out"])
def test_trials_that_share_an_output_of_the_command_do_not_run_at_the_same_time(platform, written: Path, typed: str) -> None:
    write(Path(), {"fit.py": "print('loss=1')\n"})
    result = platform("init", "--from", f"python fit.py {typed} --lr 0.1 --data-dir /data/in", "--no-smoke")
    told = "uses /data/out, which all trials share, so `parallel` is 1; for more, let it write below its working directory"
    assert result.exit_code == 0 and told in result.stderr and "torchrun" not in result.stderr, result.output
    assert job_in(".").parallel == 1


@pytest.mark.parametrize(("typed", "parallel"), [("torchrun --master_port=29511", 1), ("torchrun --standalone", 2)])
def test_trials_with_a_fixed_port_do_not_run_at_the_same_time(platform, written: Path, typed: str, parallel: int) -> None:
    write(Path(), {"fit.py": "print('loss=1')\n"})
    result = platform("init", "--from", f"{typed} fit.py --lr 0.1", "--no-smoke")
    is_told = "port 29511, which all trials share, so `parallel` is 1; for more, give torchrun --standalone" in result.stderr
    assert result.exit_code == 0 and is_told == (parallel == 1), result.output
    assert job_in(".").parallel == parallel


def test_a_settings_file_that_a_commands_script_names_is_searched(platform, written: Path) -> None:
    text = "import argparse, json\np = argparse.ArgumentParser()\np.add_argument('data')\np.add_argument('--n', type=int)\n"
    text += "p.parse_args()\nprint('loss=%f' % json.load(open('params.json'))['train']['lr'])\n"
    write(Path(), {"fit.py": text, "params.json": '{"train": {"lr": 0.1, "layers": 2}}'})
    spaces = ("--space", "lr=0.1..1", "--space", "train.layers=1..4", "--space", "n=1..3")
    result = platform("init", "--from", "python fit.py data", *spaces)
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    job = job_in(".")
    assert job.arguments is not None and job.arguments.files == ("params.json",)
    assert set(job.search.parameters) == {"train.lr", "train.layers", "n"}


@pytest.mark.parametrize("command", ["python fit.py --train conf/train.json --model conf/model.yaml", "bash run.sh"])
def test_values_of_several_settings_files_are_searched(platform, written: Path, command: str) -> None:
    text = (
        "import argparse, json, yaml\np = argparse.ArgumentParser()\np.add_argument('--train')\np.add_argument('--model')\n"
    )
    text += (
        "a = p.parse_args()\nlr = json.load(open(a.train))['lr']\nwidth = yaml.safe_load(open(a.model))['net']['width']\n"
    )
    text += "print('loss=%f' % (100 * width + lr))\n"
    shell = "mkdir -p out\npython fit.py \\\n  --train conf/train.json \\\n  --model conf/model.yaml\n"
    files = {"fit.py": text, "conf/train.json": '{"lr": 0.5}', "conf/model.yaml": "net:\n  width: 8\n", "run.sh": shell}
    write(Path(), files)
    spaces = ("--space", "lr=0.1..1", "--space", "net.width=4..16", "--objective", "loss:min")
    result = platform("init", "--from", command, *spaces)
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    job = job_in(".")
    assert job.arguments is not None and job.arguments.files == ("conf/train.json", "conf/model.yaml")
    assert set(job.search.parameters) == {"lr", "net.width"} and job.search.enqueue == ({"lr": 0.5, "net.width": 8},)


def test_a_requested_value_of_an_imported_module_comes_before_other_values_of_the_script(platform, written: Path) -> None:
    text = "from config import CFG\ndef split(shuffle=True, batch_size=8): ...\nprint('loss=%f' % CFG.depth)\n"
    write(written, {"fit.py": text, "config.py": "class CFG:\n    depth = 4\n    rounds = 9\n"})
    result = platform("init", "--from", "src/fit.py", "--space", "depth=2..8")
    assert result.exit_code == 0 and made().arguments.files == ("config.py",), result.output  # type: ignore[union-attr]


def test_a_shell_script_without_numbers_may_have_variables_with_defaults(platform, written: Path) -> None:
    write(Path(), {"fit.py": PRINTS, "runs/fit.sh": "python fit.py --lr ${LR:-0.1} --layers ${LAYERS:-2}\n"})
    result = platform("init", "--from", "bash runs/fit.sh", "--space", "LR=0.1..1")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    assert job_in(".").command == ("env", "LR={LR}", "LAYERS={LAYERS}", "bash", "runs/fit.sh")


def test_a_shell_script_passes_on_the_arguments_that_it_gets(platform, written: Path) -> None:
    other = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--size', type=int)\nparser.parse_args()\n"
    )
    shell = (
        "if [[ $1 == train ]]; then\n  python fit.py --lr 0.1 --layers 2 ${@:2}\n"
        "else\n  python other.py --size 3 ${@:2}\nfi\n"
    )
    write(written, {"fit.py": PRINTS, "other.py": other, "run.sh": shell})
    command = "cd src && bash run.sh train"
    refused = platform("init", "--from", command, "--space", "size=1..4")
    assert refused.exit_code == 2 and "has no parameter size" in refused.stderr, refused.output
    result = platform("init", "--from", command, "--space", "lr=0.01..1", "--space", "layers=1..4")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    job = job_in(".")
    assert job.command == ("bash", "-c", 'cd src && bash run.sh train "$@"', "bash")
    assert job.search.enqueue == ({"lr": 0.1, "layers": 2},)


def test_the_values_of_a_shell_script_are_those_of_today(platform, written: Path) -> None:
    """The Python script that it starts has none."""
    write(Path(), {"fit.py": PRINTS, "run.sh": 'LR=${LR:-0.3}\npython fit.py --lr $LR --layers=3 "$@"\n'})
    result = platform("init", "--from", "bash run.sh")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    assert job_in(".").search.enqueue == ({"lr": 0.3, "layers": 3},)


@pytest.mark.parametrize(
    ("command", "line", "first_trial"),
    [
        ("LR=0.1 bash run.sh", 'LR=${LR:-0.3}\npython fit.py --lr "$LR" --layers=3 "$@"', {"LR": 0.1, "layers": 3}),
        ("export LR=0.1 && bash run.sh", "export LR=${LR:-0.3}\npython fit.py --lr=${LR} $@", {"LR": 0.1, "layers": 2}),
        ("X=0.1 bash run.sh", "python fit.py --lr ${X:-0.3} $@", {"lr": 0.1, "layers": 2}),
        ("bash run.sh", "X=${LR:=${Y:-0.3}}\npython fit.py --lr $X --opt sgd $@", {"lr": 0.3, "layers": 2}),
        ("bash run.sh", "for lr in 0.1 0.2; do\n  python fit.py --lr $lr $@\ndone", {"layers": 2}),
        ("bash run.sh", "python fit.py --lr $(cat lr.txt) --layers `nproc` $@", {}),
    ],
)
def test_only_the_values_that_a_shell_script_would_use_are_those_of_today(
    platform, written: Path, command: str, line: str, first_trial: dict[str, float]
) -> None:
    text = PRINTS.replace("float, required=True", "float, default=0.01").replace("int, required=True", "int, default=2")
    text = text.replace("args =", "parser.add_argument('--opt', choices=['adam', 'sgd'], default='adam')\nargs =")
    write(Path(), {"fit.py": text, "run.sh": f"{line}\n"})
    result = platform("init", "--from", command, "--no-smoke")
    assert result.exit_code == 0, result.output
    opt = "sgd" if "sgd" in line else "adam"
    search = job_in(".").search
    assert search.enqueue == ({**first_trial, "opt": opt},)
    assert set(search.parameters) == ({"LR", "layers", "opt"} if "LR" in first_trial else {"lr", "layers", "opt"})


def test_an_option_that_a_variable_fills_is_searched_if_the_user_names_it(platform, written: Path) -> None:
    write(Path(), {"fit.py": PRINTS, "run.sh": "python fit.py --lr ${LR:-0.3} --layers 3 $@\n"})
    result = platform("init", "--from", "LR=0.1 bash run.sh", "--space", "lr=0.1..1")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    search = job_in(".").search
    assert set(search.parameters) == {"lr"} and search.enqueue == ({"lr": 0.1},)


TAKES_SETTINGS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config")
parser.add_argument("--lr", type=float, default=0.1)
print(parser.parse_args(), "loss=1")
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conf/a.json", '{"net": {"width": 3}}'),
        ("settings.ini", "[net]\nwidth = 3\n"),
        ("params.toml", "[net]\nwidth = 3\n"),
    ],
)
def test_the_command_that_searches_a_name_in_a_settings_file_is_told(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    write(written, {"fit.py": TAKES_SETTINGS, name: text, "data/a.json": '{"width": 1}'})
    monkeypatch.chdir(written)
    words = ("--space", "width=2..4", "--objective", "loss:min")
    refused = platform("init", "--from", "python fit.py", *words)
    command = f"platform init --from 'python fit.py --config {name}' --space net.{' '.join(words[1:])}"
    assert refused.exit_code == 2 and f"`{command}`; nothing was changed" in refused.stderr, refused.output
    result = platform(*shlex.split(command)[1:])
    assert result.exit_code == 0 and set(job_in(".").search.parameters) == {"net.width"}, result.output


@pytest.mark.parametrize("default", ["'hyps/low.yaml'", "ROOT / 'hyps/low.yaml'", "'hyps/low.py'"])
def test_the_command_for_a_settings_file_names_that_of_the_option_whose_default_it_is(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, default: str
) -> None:
    far = write(written.parent, {"far.yaml": "lr0: 0.3\n"}) / "far.yaml"
    files = f"parser.add_argument('--hyp', default={default})\nparser.add_argument('--out', default='{far}')\n"
    declared = TAKES_SETTINGS.replace('"--config"', '"--cfg", default=""').replace("print", f"{files}print")
    text = f"from pathlib import Path\nROOT = Path(__file__).parent{declared}"
    values = {"hyps/low.yaml": "lr0: 0.1\n", "hyps/low.py": "lr0 = 0.1\n", "hyps/high.yaml": "lr0: 0.2\n"}
    write(written, {"fit.py": text, **values})
    monkeypatch.chdir(written)
    refused = platform("init", "--from", "fit.py", "--space", "lr0=0..1", "--space", "lr=0..1")
    name = "hyps/low.py" if "py'" in default else "hyps/low.yaml"
    command = f"platform init --from 'python fit.py --hyp {name}' --space lr0=0..1 --space lr=0..1"
    assert refused.exit_code == 2 and f"`{command}`; nothing was changed" in refused.stderr, refused.output
    assert platform(*shlex.split(command)[1:]).exit_code == 0 and set(job_in(".").search.parameters) == {"lr0", "lr"}


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("fit.py", "python fit.py --config conf/a.json"),
        ("python fit.py --config conf/b.json --lr 0.2", "python fit.py --lr 0.2 --config conf/a.json"),
        ("python fit.py --lr 0.2 --config=conf/b.json", "python fit.py --lr 0.2 --config conf/a.json"),
        ("python fit.py -c 'conf/b.json'", "python fit.py -c conf/a.json"),
        ("python fit.py | cat", ""),
        ("cd . && python fit.py", ""),
        ("book.ipynb", ""),
    ],
)
def test_the_command_for_a_settings_file_has_its_flag_once_and_is_none_of_a_shell(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, source: str, command: str
) -> None:
    cell = {"cell_type": "code", "source": TAKES_SETTINGS}
    files = {"fit.py": TAKES_SETTINGS, "book.ipynb": json.dumps({"cells": [cell]}), "conf/b.json": '{"depth": 3}'}
    write(written, {**files, "conf/a.json": '{"net": {"width": 3}}'})
    monkeypatch.chdir(written)
    refused = platform("init", "--from", source, "--space", "width=2..4")
    assert refused.exit_code == 2 and " conf/a.json` in the command" in refused.stderr, refused.output
    typed = f": `{shlex.join(['platform', 'init', '--from', command, '--space', 'net.width=2..4'])}`"
    assert (typed if command else "LOW..HIGH`; nothing") in refused.stderr, refused.output


def test_the_loss_of_other_data_than_its_line_names_is_its_own(platform, written: Path) -> None:
    text = "lr = 0.1\nprint('| End of training | test loss  4.75 | test ppl   115.5')\n"
    result = platform("init", "--from", str(write(written, {"fit.py": text}) / "fit.py"))
    assert "; its metrics: test_loss, test_ppl\n" in result.stderr, result.output


def test_a_name_that_a_settings_file_has_is_told_with_its_key(platform, written: Path) -> None:
    text = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--algo')\nparser.add_argument('--env')\n"
        "parser.add_argument('--seed', type=int, default=0)\nparser.add_argument('--conf-file')\n"
        "parser.add_argument('--hyperparams', nargs='+')\nprint(parser.parse_args(), 'loss=1 reward=2')\n"
    )
    values = "default: {rate: 0.3}\ncart: {rate: 0.1, steps: 32}\n"
    write(written, {"fit.py": text, "hyper/a2c.yml": values, "hyper/ppo.yml": values})
    command = "cd src && python fit.py --algo ppo --env cart --seed 1"
    refused = platform("init", "--from", command, "--space", "rate=0.01..1", "--space", "steps=1..4")
    assert refused.exit_code == 2, refused.output
    assert "has no parameter rate; src/hyper/ppo.yml has cart.rate; and no steps; src/hyper/ppo.yml has" in refused.stderr
    assert "`--conf-file hyper/ppo.yml` in the command, and `--space cart.rate=LOW..HIGH`" in refused.stderr
    assert "`--hyperparams rate:{rate=VALUE}` in the command" in refused.stderr
    result = platform("init", "--from", f"{command} --conf-file hyper/ppo.yml", "--space", "cart.rate=0.01..1")
    assert result.exit_code == 0, result.output
    assert "`--objective METRIC:min` or `:max` at submit picks another metric" in result.stderr
    Path("job.yaml").unlink()
    result = platform("init", "--from", f"{command} --hyperparams rate:{{rate=0.1}}", "--space", "rate=0.01..1")
    assert result.exit_code == 0, result.output


def test_a_folder_above_that_a_command_names_is_told(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(written, {"fit.py": PRINTS + "\n# parse\n", "run.sh": "python fit.py --lr 0.1 --layers 2 $@ # ../data\n"})
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--data')\n"
    text += "parser.add_argument('--lr', type=float, default=0.1)\nprint(parser.parse_args(), 'loss=1')\n"
    write(written, {"fit.py": text, "run.sh": "python fit.py --data ../data/ $@\n"})
    (written.parent / "data").mkdir()
    monkeypatch.chdir(written)
    result = platform("init", "--from", "bash run.sh --lr 0.2", "--no-smoke")
    assert result.exit_code == 0 and "the command names ../data, above this folder" in result.stderr, result.output


def test_another_program_is_told_how_it_is_given(platform, written: Path) -> None:
    write(written, {"fit.R": "lr <- 0.1\n"})
    result = platform("init", "--from", str(written / "fit.R"))
    assert result.exit_code == 2 and "`platform init --from 'Rscript fit.R'`" in result.stderr


@pytest.mark.parametrize(
    ("text", "name", "command"),
    [
        ("lr <- 0.1\nn <- 5\n", "fit.R", "Rscript fit.R"),
        ("#define lr 0.1\nint n = 5;\nint main() {}\n", "fit.c", "gcc fit.c -o fit && ./fit"),
    ],
)
def test_the_numbers_of_a_program_are_parameters(platform, written: Path, text: str, name: str, command: str) -> None:
    write(Path(), {name: text})
    result = platform("init", "--from", command, "--space", "lr=0.01..1", "--objective", "loss:min", "--no-smoke")
    assert result.exit_code == 0, result.output
    job = made(".")
    assert set(job.search.parameters) == {"lr"} and job.arguments is not None and job.arguments.files == (name,)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python src/fit.py with 'kind'='lstm' lr=0.1", "src/fit.py with kind={kind} lr={lr}"),
        ("kind=gru python src/fit.py with +kind='lstm' lr=0.1", "kind=gru python src/fit.py with +kind={kind} lr={lr}"),
        ("python -O src/fit.py kind=lstm lr=0.1 | cat", 'python -O src/fit.py kind={kind} lr={lr} "$@" | cat'),
        ("Rscript fit.R --kind lstm --lr 0.1", "Rscript fit.R --kind {kind} --lr {lr}"),
        ("echo --kind=lstm --lr=0.1 kinds=lstm", "echo --kind={kind} --lr={lr} kinds=lstm"),
    ],
)
def test_a_text_of_a_command_is_searched_if_the_user_names_it(platform, written: Path, line: str, words: str) -> None:
    write(written, {"fit.py": "import sys\nprint(sys.argv)\n"})
    options = ("--space", "kind=lstm,gru", "--space", "lr=0.01..1", "--objective", "loss:min", "--no-smoke")
    result = platform("init", "--from", line, *options)
    assert result.exit_code == 0, result.output
    job = job_in(".")
    assert words in " ".join(command_of(job)), command_of(job)
    assert job.search.enqueue == ({"kind": "lstm", "lr": 0.1},)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python src/fit.py --kind lstm --lr 0.1 && echo kind=gru", '--kind lstm --lr {lr} "$@" && echo kind=gru'),
        ("export kind=gru && python src/fit.py --lr 0.1", "export kind=gru && python src/fit.py --lr {lr}"),
        ("python src/fit.py --lr 0.1 --name kind=gru --kind lstm", "--name kind=gru --kind lstm"),
    ],
)
def test_a_text_of_another_program_is_no_parameter_of_the_script(platform, written: Path, line: str, words: str) -> None:
    options = "".join(f"p.add_argument('--{name}', default='lstm')\n" for name in ("kind", "name", "lr"))
    write(written, {"fit.py": f"import argparse\np = argparse.ArgumentParser()\n{options}p.parse_args()\n"})
    result = platform("init", "--from", line, "--space", "kind=lstm,gru", "--objective", "loss:min", "--no-smoke")
    assert result.exit_code == 0 and words in " ".join(command_of(job_in("."))), result.output
    assert job_in(".").search.enqueue == ({"kind": "lstm"},)


def test_an_equals_sign_in_a_value_is_a_part_of_it(platform, written: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--tag')\np.parse_args()\n"
    write(written, {"fit.py": text})
    options = ("--space", "tag=a=b,c", "--objective", "loss:min", "--no-smoke")
    result = platform("init", "--from", "python src/fit.py --tag a=b", *options)
    assert result.exit_code == 0, result.output
    assert job_in(".").search.enqueue == ({"tag": "a=b"},)


@pytest.mark.parametrize("line", ["Rscript fit.R --shape --lr 0.1", "./rows --shape a && Rscript fit.R --shape b --lr 0.1"])
def test_a_text_that_is_not_certain_is_no_parameter(platform, line: str) -> None:
    write(Path(), {"fit.R": "", "rows": ""})
    result = platform("init", "--from", line, "--space", "shape=a,b", "--objective", "loss:min", "--no-smoke")
    assert result.exit_code == 2 and "has no parameter shape; there are: lr" in result.stderr, result.output


def test_a_notebook_becomes_a_script(platform, written: Path) -> None:
    cells = [
        ("markdown", "# lr = 9"),
        ("code", "%matplotlib inline\n!exit 3\nlr = 0.1\nif lr:\n    %time 3\n"),
        ("code", "%%bash\nexit 3"),
        ("code", "%%time\nprint(f'loss={lr}')"),
    ]
    text = json.dumps({"cells": [{"cell_type": kind, "source": source.splitlines(True)} for kind, source in cells]})
    write(written, {"fit it.ipynb": text})
    result = platform("init", "--from", str(written / "fit it.ipynb"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert (made().script, set(made().search.parameters)) == ("fit_it.py", {"lr"})
    assert "already exists" in platform("init", "--from", str(written / "fit it.ipynb")).stderr
    write(written, {"other.ipynb": "[]"})
    assert "it is not a notebook" in platform("init", "--from", str(written / "other.ipynb")).stderr


@pytest.mark.parametrize(
    "command",
    [
        "jupyter nbconvert --execute 'src/fit it.ipynb' --output done.ipynb --ExecutePreprocessor.timeout=600",
        "jupyter-nbconvert --output executed.ipynb --execute 'src/fit it.ipynb'",
        "python -m nbconvert --execute --to notebook 'src/fit it.ipynb'",
        "jupyter execute 'src/fit it.ipynb'",
        "papermill 'src/fit it.ipynb' out.ipynb",
    ],
)
def test_a_command_that_executes_a_notebook_is_its_notebook(platform, written: Path, command: str) -> None:
    cells = [{"cell_type": "code", "source": "lr = 0.1\nprint(f'loss={lr}')"}]
    write(written, {"fit it.ipynb": json.dumps({"cells": cells})})
    result = platform("init", "--from", command, "--space", "lr=0.01..1")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert (made().script, set(made().search.parameters)) == ("fit_it.py", {"lr"})


@pytest.mark.parametrize(
    "command", ["papermill src/fit.ipynb out.ipynb -p lr 0.1", "jupyter nbconvert --to html src/fit.ipynb"]
)
def test_a_command_that_does_not_run_a_notebook_as_it_is_makes_no_job_of_it(platform, written: Path, command: str) -> None:
    write(written, {"fit.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": "lr = 0.1"}]})})
    result = platform("init", "--from", command)
    assert result.exit_code == 2 and not (written / "fit.py").exists(), result.output


def test_nothing_is_written_beside_a_notebook_that_no_job_is_made_of(platform, written: Path, tmp_path: Path) -> None:
    text = json.dumps({"cells": [{"cell_type": "code", "source": "import argparse\nargparse.ArgumentParser()\n"}]})
    write(written, {"fit.ipynb": text})
    before = sorted(written.rglob("*"))
    result = platform("init", "--from", str(written / "fit.ipynb"))
    assert result.exit_code == 2 and "Nothing was changed" in result.stderr, result.output
    assert sorted(written.rglob("*")) == before
    write(written, {"fit.ipynb": text.replace("import argparse\\nargparse.ArgumentParser()", "lr = 0.1")})
    outside = tmp_path / "outside"
    for name in ("fit.py", "job.yaml"):
        (written / name).symlink_to(outside)
        result = platform("init", "--from", str(written / "fit.ipynb"), "--no-smoke")
        assert result.exit_code == 2 and f"{name} already exists" in result.stderr and not outside.exists()
        (written / name).unlink()
    assert platform("init", "--from", str(written / "fit.ipynb"), "--no-smoke").exit_code == 0
    assert (made().script, set(made().search.parameters)) == ("fit.py", {"lr"})


FIT = "def fit(lr): return lr ** 2\n"
TAKES_LR = """
    import argparse
    {imports}
    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float, default=0.1)
        {body}
        print(f"loss={{fit(parser.parse_args().lr)}}")
    {end}
"""
CALLED = "if __name__ == '__main__': main()"


@pytest.mark.parametrize(
    ("files", "script", "folder", "command"),
    [
        (  # an entry point of a package in a folder src, which its own modules import by its name
            {
                "project/src/toy/__init__.py": "",
                "project/src/toy/models.py": FIT,
                "project/src/toy/cli.py": TAKES_LR.format(imports="from toy.models import fit", body="", end=""),
            },
            "project/src/toy/cli.py",
            "project/src",
            ("python", "-c", "from toy.cli import main; main()"),
        ),
        (  # modules and data in the folder above, from which it is started
            {
                "project/lib/models.py": FIT,
                "project/data/rows.csv": "a",
                "project/scripts/fit.py": TAKES_LR.format(
                    imports="from lib.models import fit", body="open('data/rows.csv').close()", end=CALLED
                ),
            },
            "project/scripts/fit.py",
            "project",
            ("env", "PYTHONPATH=.", "python", "scripts/fit.py"),
        ),
        (  # it adds the folder itself
            {
                "project/lib/models.py": FIT,
                "project/data/rows.csv": "a",
                "project/scripts/fit.py": TAKES_LR.format(
                    imports="import sys\n    sys.path.append('.')\n    from lib.models import fit",
                    body="open('data/rows.csv').close()",
                    end=CALLED,
                ),
            },
            "project/scripts/fit.py",
            "project",
            (),
        ),
        (  # data beside its folder, in which it is started
            {
                "project/input/rows.csv": "a",
                "project/code/models.py": FIT,
                "project/code/fit.py": TAKES_LR.format(
                    imports="from models import fit", body="open('../input/rows.csv').close()", end=CALLED
                ),
            },
            "project/code/fit.py",
            "project",
            ("env", "-C", "code", "python", "fit.py"),
        ),
    ],
)
def test_a_script_of_a_project_is_started_where_it_runs(
    platform, workplace: Path, monkeypatch, files: dict[str, str], script: str, folder: str, command: tuple[str, ...]
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the command would have it
    write(workplace, files)
    result = platform("init", "--from", script)
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    job = job_in(folder)
    assert (job.command or (), set(job.search.parameters)) == (command, {"lr"})


def test_values_in_the_text_are_replaced_in_a_copy_if_a_command_starts_the_script(platform, workplace: Path) -> None:
    write(
        workplace,
        {"p/input/rows.csv": "a", "p/code/fit.py": "lr = 0.1\nopen('../input/rows.csv')\nprint(f'{lr=} loss={lr}')\n"},
    )
    result = platform("init", "--from", "p/code/fit.py")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert job_in("p").arguments.files == ("code/fit.py",)  # type: ignore[union-attr]


def test_values_of_an_imported_module_are_searched(platform, written: Path) -> None:
    config = "import os\nLR = 0.1  # of Adam\nNAME = 'é'; DROPOUT = 0.5\nclass Data:\n    batch_size: int = 32\n"
    write(written, {"settings.py": config, "fit.py": "import settings\nprint(f'loss={settings.LR}')\n"})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert made().arguments.files == ("settings.py",)  # type: ignore[union-attr]
    assert set(made().search.parameters) == {"LR", "DROPOUT", "batch_size"}


BY_POSITION = {
    "sys.argv": """
import sys
rate = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
kind = sys.argv[1]
layers = int(sys.argv[3]) if len(sys.argv) > 3 else 2
print(f"val_loss={rate * layers}")
""",
    "sys.argv at once": """
import sys
kind, rate = sys.argv[1], float(sys.argv[2])
layers = int(sys.argv[3]) if len(sys.argv) > 3 else 2
print(f"val_loss={rate * layers}")
""",
    "sys.argv in a dict": """
import sys
cfg = {}
cfg["kind"], cfg["rate"] = sys.argv[1], float(sys.argv[2])
rate = float(sys.argv[2])
layers = int(sys.argv[3]) if len(sys.argv) > 3 else 2
print(f"val_loss={rate * layers}")
""",
    "sys.argv in a call": """
import sys
def fit(kind, rate, layers=2): print(f"val_loss={rate * layers}")
fit(sys.argv[1], float(sys.argv[2]), layers=int(sys.argv[3]) if len(sys.argv) > 3 else 2)
""",
    "argparse": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--quick", action="store_true")
parser.add_argument("--tag")
parser.add_argument("kind")
parser.add_argument("rate", type=float)
parser.add_argument("layers", type=int, nargs="?", default=2)
args = parser.parse_args()
print(f"val_loss={args.rate * args.layers}")
""",
}


@pytest.mark.parametrize("style", BY_POSITION)
@pytest.mark.parametrize("head", ["", "cd . && "])
def test_positional_arguments_of_a_command_are_parameters(platform, written: Path, style: str, head: str) -> None:
    write(Path(), {"fit.py": BY_POSITION[style]})
    flags = "--quick --tag new " if style == "argparse" else ""
    spaces = ("--space", "rate=0.1..1", "--space", "layers=1..4")
    result = platform("init", "--from", f"{head}python fit.py {flags}small 0.25", *spaces)
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    job = job_in(".")
    line = " ".join(command_of(job))
    assert f"python fit.py {flags}small {{rate}} {{layers}}" in line and "sys.argv" not in line
    assert set(job.search.parameters) == {"rate", "layers"} and job.search.enqueue == ({"rate": 0.25, "layers": 2},)


def test_numbers_of_a_command_without_names_get_those_that_fit(platform, written: Path) -> None:
    """A file before a number is no name of it. A number that has a name has no other."""
    fit = "import sys\nlayers = int(sys.argv[3])\nprint('loss=', float(sys.argv[2]) + 2 * float(sys.argv[4]))\n"
    write(Path(), {"fit.py": fit})
    words = ["--objective", "loss:min", "--no-smoke", "--space", "rate=0.1..1"]
    result = platform("init", "--from", "python fit.py rows.csv 0.25 2 0.01", *words, "--space", "decay=0.001..0.1")
    command = re.search(r"if rate is the 0.25 and decay is the 0.01 in the command, type `platform (.*?)`", result.stderr)
    assert command is not None and "rows.csv {rate=0.25} 2 {decay=0.01}" in command[1], result.output
    assert platform(*shlex.split(command[1])).exit_code == 0
    assert made(".").search.enqueue == ({"rate": 0.25, "decay": 0.01},)
    Path("job.yaml").unlink()
    result = platform("init", "--from", "python fit.py rows.csv 5 2 7", *words)
    assert result.exit_code == 2 and "write {rate=VALUE} in its place" in result.stderr, result.output
    result = platform("init", "--from", "python fit.py rows.csv 0.25 2 7", *words, "--space", "decay=0.001..0.1")
    assert "if rate is the 0.25 in the command, write {rate=0.25} there; nothing" in result.stderr, result.output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--weight 0.01", "--weight {weight} {rate}"),  # the beginning of --weight-decay
        ("-v", "-v {rate}"),
        ("--names 2", "--names {names} 0.5"),  # whether 2 is its value is unknown
    ],
)
def test_a_value_of_a_flag_is_no_positional_argument(platform, written: Path, flags: str, words: str) -> None:
    text = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--weight-decay")
        parser.add_argument("-v", action="count")
        parser.add_argument("--layers", type=int, default=2)
        parser.add_argument("rate", type=float)
        parser.parse_known_args()
    """
    write(Path(), {"fit.py": text})
    result = platform("init", "--from", f"python fit.py {flags} 0.5", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert f"python fit.py {words}" in " ".join(command_of(job_in(".")))


@pytest.mark.parametrize(
    ("file", "settings_text", "typed"),
    [
        ("configs/base.yaml", 'optim: {lr: 0.1}\nlayers: 2\nchat: "{% a %}\\n{{ b }}"\n', "--config base"),
        ("configs/small/base.json", '{"optim": {"lr": 0.1}, "layers": 2}', "-c small/base"),
        ("exps/base.py", "optim = dict(lr=0.1)\nlayers = 2\n", "--exp=exps.base"),
    ],
)
def test_an_option_may_name_a_settings_file_without_its_suffix(
    platform, written: Path, file: str, settings_text: str, typed: str
) -> None:
    """The user may write the whole name of a value or only its end, if that is unambiguous."""
    write(Path(), {file: settings_text, "other/base.yaml": "lr: 1\nlayers: 3\n", "fit.py": "print('loss=1')\n"})
    spaces = ("--space", "lr=0.1..1", "--space", "layers=1..4")
    result = platform("init", "--from", f"python fit.py {typed}", *spaces)
    assert result.exit_code == 0, result.output
    job = job_in(".")
    assert job.arguments is not None and job.arguments.files == (file,)
    assert set(job.search.parameters) == {"lr" if file.endswith(".py") else "optim.lr", "layers"}
    assert job.search.enqueue[0]["layers"] == 2


def test_a_group_of_hydra_is_no_settings_file(platform, written: Path) -> None:
    text = "import argparse, hydra\np = argparse.ArgumentParser()\np.add_argument('--config')\n"
    text += "p.add_argument('--lr', type=float)\np.parse_args()\n"
    write(Path(), {"conf/base.yaml": "lr: 0.1\n", "fit.py": text, "hydra.py": ""})
    assert platform("init", "--from", "python fit.py --config base --lr 1", "--no-smoke").exit_code == 0
    job = job_in(".")
    assert job.arguments is None or not job.arguments.files


def test_several_values_of_a_name_are_named(platform, written: Path) -> None:
    text = (
        "class A:\n    def __init__(self, drop=0.5): ...\nclass B:\n    def __init__(self, drop=0.1): ...\nprint('loss=1')\n"
    )
    (written / "fit.py").write_text(text)
    words = ("init", "--from", "src/fit.py", "--space")
    assert "has no parameter drop, but several: A.drop or B.drop" in platform(*words, "drop=0.1..0.9").stderr
    result = platform(*words, "B.drop=0.1..0.9")
    assert result.exit_code == 0, result.output
    assert made().search.enqueue == ({"B.drop": 0.1},)


def test_the_owner_of_the_only_value_of_a_name_is_checked(platform, written: Path) -> None:
    (written / "fit.py").write_text("class A:\n    def __init__(self, drop=0.5): ...\nprint('loss=1')\n")
    words = ("init", "--from", "src/fit.py", "--no-smoke", "--space")
    result = platform(*words, "B.drop=0.1..0.9")
    assert result.exit_code == 2 and "has no parameter B.drop" in result.stderr, result.output
    assert platform(*words, "A.drop=0.1..0.9").exit_code == 0
    assert made().search.enqueue == ({"drop": 0.5},)


_BY_POSITION = "import sys, yaml\nprint('loss=%f' % yaml.safe_load(open(sys.argv[1]))['lr'])\n"
_BY_OPTION = (
    "import argparse, yaml\np = argparse.ArgumentParser()\np.add_argument('--config')\n"
    "print('loss=%f' % yaml.safe_load(open(p.parse_args().config))['lr'])\n"
)


@pytest.mark.parametrize(("text", "flag"), [(_BY_POSITION, ""), (_BY_OPTION, "--config ")], ids=["position", "option"])
def test_of_several_settings_files_that_an_argument_may_name_the_user_gets_the_commands(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, text: str, flag: str
) -> None:
    write(written, {"fit.py": text, "a.yaml": "lr: 0.1\n", "b.yaml": "lr: 0.2\n", "c.yaml": "name: x\n"})
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "loss:min")
    assert result.exit_code == 2 and not (written / "job.yaml").exists()
    commands = [line.strip() for line in result.stderr.splitlines() if line.startswith("  ")]
    assert commands[:2] == [
        f"cd src && platform init --from 'python fit.py {flag}{name}' --objective loss:min" for name in ("a.yaml", "b.yaml")
    ]
    assert not any("c.yaml" in command for command in commands)
    monkeypatch.chdir(written)
    assert platform(*shlex.split(commands[1].partition(" && platform ")[2])).exit_code == 0
    job = job_in(".")
    assert job.arguments is not None and job.arguments.files == ("b.yaml",) and job.search.enqueue == ({"lr": 0.2},)


def test_of_several_settings_files_the_only_one_with_a_searched_name_is_used(platform, written: Path) -> None:
    write(written, {"fit.py": _BY_POSITION, "a.yaml": "lr: 0.1\n", "b.yaml": "lr: 0.2\nbeta: 0.5\n"})
    assert platform("init", "--from", str(written / "fit.py"), "--space", "beta=0..1").exit_code == 0
    assert made().arguments.files == ("b.yaml",)


def test_a_script_that_may_run_without_a_settings_file_gets_none_of_several(platform, written: Path) -> None:
    text = (
        "import argparse, yaml\np = argparse.ArgumentParser()\np.add_argument('--config')\n"
        "p.add_argument('--lr', type=float, default=0.5)\nargs = p.parse_args()\n"
        "if args.config: yaml.safe_load(open(args.config))\nprint('loss=%f' % args.lr)\n"
    )
    write(written, {"fit.py": text, "a.yaml": "lr: 0.1\n", "b.yaml": "lr: 0.2\n"})
    assert platform("init", "--from", str(written / "fit.py")).exit_code == 0
    job = made()
    assert job.search.enqueue == ({"lr": 0.5},) and "config" not in job.params


def test_of_several_settings_files_the_one_that_the_script_reads_is_used(platform, written: Path) -> None:
    text = "import yaml\nname, other = chr(98), 'a'\nprint('loss=%f' % yaml.safe_load(open(f'{name}.yaml'))['lr'])\n"
    write(written, {"fit.py": text, "a.yaml": "lr: 0.1\n", "b.yaml": "lr: 0.2\n"})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "fit.py reads b.yaml, not a.yaml" in result.stderr
    job = made()
    assert job.arguments is not None and job.arguments.files == ("b.yaml",) and job.search.enqueue == ({"lr": 0.2},)
    assert "Other settings files" not in (written / "job.yaml").read_text()


def test_of_several_settings_files_that_a_script_reads_the_others_are_named(platform, written: Path) -> None:
    text = "import yaml\nfor name in ('a.yaml', 'b.yaml'): print('loss=%f' % yaml.safe_load(open(name))['lr'])\n"
    write(written, {"fit.py": text, "a.yaml": "lr: 0.1\n", "b.yaml": "lr: 0.2\n", "c.yaml": "lr: 0.3\n"})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "the values are those of a.yaml; for those of another (b.yaml)" in result.stderr
    assert "# Other settings files: b.yaml\n" in (written / "job.yaml").read_text()


def test_of_several_settings_files_that_with_the_name_of_the_objective_is_used(platform, written: Path) -> None:
    reads = "import yaml\nfor name in ('a.yaml', 'metabric.yaml'): print(yaml.safe_load(open(name))['lr'])\n"
    write(written, {"fit.py": reads, "a.yaml": "lr: 0.1\n", "metabric.yaml": "lr: 0.2\n"})
    options = ("--no-smoke", "--space", "lr=0.1..1", "--objective", "METABRIC:max")
    result = platform("init", "--from", str(written / "fit.py"), *options)
    assert result.exit_code == 0 and "the values are those of metabric.yaml; for those of another (a.yaml" in result.stderr


def test_a_script_that_searches_by_itself_is_one_trial(platform, written: Path) -> None:
    text = "def GridSearchCV(): ...\nseed, lr = 3, 0.1\nGridSearchCV()\nprint('best score: 0.9')\n"
    write(written, {"fit.py": text})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "searches by itself, by GridSearchCV" in result.stderr, result.output
    assert (made().trials, dict(made().search.parameters), made().objectives[0].metric) == (1, {}, "score")


def test_a_search_of_another_tool_is_imported(platform, written: Path) -> None:
    sweep = "program: fit.py\nmethod: random\nmetric: {name: loss}\nparameters: {lr: {min: 0.1, max: 0.5}}\n"
    write(written, {"fit.py": PRINTS, "sweep.yaml": sweep})
    result = platform("init", "--from", str(written / "sweep.yaml"))
    assert result.exit_code == 0 and job_in("jobs/sweep").search.parameters.keys() == {"lr"}, result.output
    told = "config.yaml is not a search that can be read, which are those of katib"
    assert told in platform("init", "--from", str(written / "conf" / "config.yaml")).stderr
    assert "becomes a job by `platform init --from FILE`" in platform("import", "optuna", "fit.py").stderr


@pytest.mark.parametrize(
    ("printed", "metric", "direction"),
    [("accuracy_score([1], [1])", "accuracy_score", "maximize"), ("len([3])", "cost", "minimize")],
)
def test_a_number_without_a_name_is_the_objective(
    platform, written: Path, printed: str, metric: str, direction: str
) -> None:
    write(written, {"fit.py": f"lr = 0.1\ndef accuracy_score(a, b): return 0.9\nprint('fitting')\nprint({printed})\n"})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and f"its metrics: {metric}" in result.stderr, result.output
    objective = made().objectives[0]
    assert (objective.metric, objective.direction, made().metrics[0].source) == (metric, direction, "stdout")  # type: ignore[index]


@pytest.mark.parametrize("requested", ["score", "CV score"])
def test_a_number_without_a_name_has_the_name_that_the_user_gives_it(platform, written: Path, requested: str) -> None:
    """A word of LightGBM's log is not a metric. If the script shows the requested one, the number without a name is none."""
    text = "lr = 0.1\nprint('[LightGBM] [Info] Start training from score -0.5')\nprint('valid_loss: 0.25')\nprint(0.75)\n"
    write(written, {"fit.py": text})
    result = platform("init", "--from", str(written / "fit.py"), "--objective", f"{requested}:min")
    metric = requested.replace(" ", "_")
    assert f"objective: {metric}, minimized (as requested, the number that it prints without a name)" in result.stderr
    source = made().metrics[0]  # type: ignore[index]
    assert made().objectives[0].metric == metric and re.search(source.pattern[0], "0.75")[metric] == "0.75"  # type: ignore[index]
    Path("src/job.yaml").unlink()
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "valid_loss:min")
    assert "; its metrics: valid_loss\n" in result.stderr and made().metrics is None


def test_a_misspelled_objective_is_no_number_without_a_name(platform, written: Path) -> None:
    text = "lr = 0.1\nfor i in range(4):\n    print(f'epoch {i} valid_acc: {i / 4}')\nprint(12)\n"
    write(written, {"fit.py": text})
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "val_acc:max")
    assert "; its metrics: valid_acc\n" in result.stderr, result.output
    assert "objective: valid_acc, maximized (val_acc by another name)" in result.stderr
    Path("src/job.yaml").unlink()
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "val_auc:max")
    assert "objective: val_auc, maximized (one run did not show it; did you mean valid_acc?)" in result.stderr
    assert made().metrics is None


def test_a_metric_of_all_lines_is_that_of_held_out_data(platform, written: Path) -> None:
    text = """
    lr = 0.1
    for step in range(1, 9):
        print(f"12:00:0{step} INFO: | step {step} | loss 2.0 | ppl {7 - step * lr:.2f}")
        if step % 4 == 0:
            print(f"12:00:0{step} INFO: | eval checkpoint {step}.pt | ppl {1 + 1 / step:.2f}")
    """
    file = written / "fit.py"
    file.write_text(textwrap.dedent(text))
    result = platform("init", "--from", str(file), "--objective", "ppl:min")
    reason = "ppl of held-out data, as other lines print ppl, too"
    assert f"objective: eval_ppl, minimized ({reason})" in result.stderr, result.output
    assert made().objectives[0].metric == "eval_ppl"
    Path("src/job.yaml").unlink()
    file.write_text(textwrap.dedent(text.replace("eval checkpoint", "checkpoint")))
    result = platform("init", "--from", str(file), "--objective", "ppl:min")
    assert "objective: ppl, minimized (as requested)" in result.stderr, result.output


def test_the_file_of_every_trial_is_read_also_if_its_name_has_a_searched_value(platform, written: Path) -> None:
    """A file of an earlier run matches, too, but no trial writes it, so it is not read."""
    program = (
        "import sys\nfor epoch in range(3):\n    print(f'epoch {epoch} Vali Loss: {float(sys.argv[2]) / (epoch + 1)}')\n"
    )
    (written / "fit.py").write_text(program)
    (written / "logs").mkdir()
    (written / "logs/m_96_24.log").write_text("Vali Loss: 9\n")
    (written / "run.sh").write_text("seq_len=48\npython fit.py --lr 0.1 >logs/m_$seq_len'_'24.log\n")
    options = ("--space", "seq_len=48,96", "--objective", "Vali Loss:min")
    result = platform("init", "--from", str(written / "run.sh"), *options)
    assert result.exit_code == 0, result.output
    assert [source.path for source in made().metrics or ()] == ["logs/m_*_24.log"]


@pytest.mark.parametrize(
    ("lines", "objective"),
    [
        (
            ("Dev: time: 1.2s, speed: 9.5st/s; acc: 0.8, f: 0.{i}", "Test: time: 1.2s; acc: 0.7, f: 0.{i}1", "f: 0.{i}"),
            "dev_f",
        ),
        (("Test: p: 0.7, f: 0.{i}1", "Valid: p: 0.8, f: 0.{i}"), "val_f"),
        (("Test: p: 0.7, f: 0.{i}1", "f: 0.{i}"), "test_f"),
    ],
)
def test_a_metric_of_validation_comes_before_that_of_a_test(
    platform, written: Path, lines: tuple[str, ...], objective: str
) -> None:
    printed = "".join(f"    print(f'{line}')\n" for line in lines)
    (written / "fit.py").write_text(f"lr = 0.1\nfor i in range(1, 4):\n{printed}")
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "f:max")
    reason = "f of held-out data, as other lines print f, too"
    assert f"objective: {objective}, maximized ({reason})" in result.stderr, result.output
    assert made().objectives[0].metric == objective


def test_no_metric_of_training_is_proposed_for_one_of_held_out_data(platform, written: Path) -> None:
    file = written / "fit.py"
    file.write_text("lr = 0.1\nprint('loss training: 1.27')\n")
    result = platform("init", "--from", str(file), "--objective", "test_loss:min")
    assert "objective: test_loss, minimized (one run did not show it); its trials" in result.stderr, result.output
    assert "--objective METRIC:min` with one of its metrics (training_loss)" in result.stderr
    Path("src/job.yaml").unlink()
    file.write_text("lr = 0.1\nprint('accuracy train: 0.71 test: 0.58')\n")
    result = platform("init", "--from", str(file), "--objective", "accuracy_test:max")
    assert "objective: test_accuracy, maximized (accuracy_test by another name)" in result.stderr, result.output
    Path("src/job.yaml").unlink()
    result = platform("init", "--from", str(file), "--objective", "accuracy:max")
    assert "its metrics: accuracy, train_accuracy\n" in result.stderr, "the accuracy is that of the test"
    assert "objective: accuracy, maximized (as requested)" in result.stderr, result.output


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("Best model at step 50:\\n  test loss: 1e-2\\n  test metric: [4.13e-02]", "test metric"),
        ("Cross Validation Accuracy = 83.7%", "Cross Validation Accuracy"),
    ],
)
def test_an_objective_may_be_given_in_the_printed_words(platform, written: Path, text: str, objective: str) -> None:
    (written / "fit.py").write_text(f"lr = 0.1\nprint('{text}')\n")
    result = platform("init", "--from", str(written / "fit.py"), "--objective", f"{objective}:min")
    assert made().objectives[0].metric == objective
    assert f"objective: {objective}, minimized (as requested)" in result.stderr, result.output
    assert "validation_" not in result.stderr


def test_a_number_behind_its_step_is_the_objective(platform, written: Path) -> None:
    """A progress bar may stand before it in the same line."""
    text = "lr = 0.1\nfor i in range(4):\n    loss = [1 / (i + 1)]\n"
    text += "    print('  50%|##  | [00:01]' if i == 2 else '', end='')\n    print(f'{i}: {loss[0]} ({2:.1f} sec)')\n"
    write(written, {"fit.py": f"{text}print('ended with', 7)\n"})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert made().objectives[0].metric == "loss"
    source = made().metrics[0]  # type: ignore[index]
    lines = ["0: 1.0 (2.0 sec)", "  50%|##  | [00:01]2: 0.33"]
    assert [match["step"] for line in lines if (match := re.search(source.pattern[0], line))] == ["0", "2"]


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("Epoch {0}: 93{0}0 / 10000", {"step": "2", "accuracy": "9320"}),
        ("{0}000/ 200000: 2.{0}000", {"step": "2000", "accuracy": "2.2000"}),
        ("[1] 0.23{0}", {"accuracy": "0.232"}),  # as R prints it
    ],
)
def test_totals_and_words_around_a_number_without_a_name_are_no_part_of_it(
    platform, written: Path, line: str, read: dict[str, str]
) -> None:
    write(written, {"fit.py": f"lr = 0.1\nfor i in range(4):\n    print('{line}'.format(i))\n"})
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "accuracy:max")
    assert "(as requested, the number that it prints without a name)" in result.stderr, result.output
    [pattern] = made().metrics[0].pattern  # type: ignore[index]
    assert re.search(pattern, line.format(2)).groupdict() == read  # type: ignore[union-attr]


def test_a_number_alone_at_the_end_comes_before_those_behind_steps(platform, written: Path) -> None:
    write(written, {"fit.py": "lr = 0.1\nfor i in range(4):\n    print(f'Epoch {i}: {lr / (i + 1)}')\nprint(0.75)\n"})
    result = platform("init", "--from", str(written / "fit.py"), "--objective", "accuracy:max")
    assert result.exit_code == 0, result.output
    [pattern] = made().metrics[0].pattern  # type: ignore[index]
    assert [line for line in ("Epoch 3: 0.025", "0.75") if re.search(pattern, line)] == ["0.75"]
    Path("src/job.yaml").unlink()
    write(written, {"fit.py": "lr = 0.1\nfor i in range(4):\n    print(i, lr / (i + 1))\nprint(12.5)\n"})
    platform("init", "--from", str(written / "fit.py"), "--objective", "accuracy:max")
    [pattern] = made().metrics[0].pattern  # type: ignore[index]
    assert [line for line in ("3 0.025", "12.5") if re.search(pattern, line)] == ["3 0.025"], "12.5 may be a time"


def test_what_loops_of_a_shell_script_go_through_is_searched(platform, written: Path) -> None:
    script = """
        # for lr in 1 2; do
        for lr in 0.1 0.01; do
          for layers in 2 4
          do echo "lr=$lr"
            python fit.py --lr "$lr" \\
              --layers ${layers} > $lr.txt
          done
        done
    """
    write(written, {"fit.py": PRINTS, "fit.sh": script})
    result = platform("init", "--from", str(written / "fit.sh"))
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    assert command_of(made()) == ("python", "fit.py", "--lr", "{lr}", "--layers", "{layers}")
    assert {name: parameter.choices for name, parameter in made().search.parameters.items()} == {
        "lr": (0.1, 0.01),
        "layers": (2, 4),
    }


@pytest.mark.parametrize(
    ("text", "command", "choices"),
    [
        (  # arrays, ranges, variables, a loop over one value
            """
            set -e
            export THREADS=two
            rates=(0.1 0.01); name="x y"
            name='fit'
            for rate in "${rates[@]}"; do
              for layers in {2..3}; do for seed in 7; do
                id=${name}_$seed
                if [ $layers = 2 ]; then echo $rate; fi
                python ${name}.py --lr $rate --layers $layers --id $id 2>&1 | tee $rate.log
              done; done
            done
            """,
            ("env", "THREADS=two", "python", "fit.py", "--lr", "{rate}", "--layers", "{layers}", "--id", "fit_{seed}"),
            {"rate": (0.1, 0.01), "layers": (2, 3)},
        ),
        (  # two commands, with the value that a variable has at each of them; values in a variable
            """
            lrs="0.1 0.01"
            for lr in $lrs
            do
              layers=$(( 1 ))
              n=2
              python fit.py --lr $lr --layers $n --id a > a.txt
              n=3
              python fit.py --lr $lr --layers $n --id b &
            done
            """,
            (
                "bash",
                "-c",
                'python fit.py --lr {lr} --layers 2 --id a && python fit.py --lr {lr} --layers 3 --id b "$@"',
                "bash",
            ),
            {"lr": (0.1, 0.01)},
        ),
        (  # its own folder
            """
            cd "$(dirname "$0")"
            for lr in $(seq 1 2); do python fit.py --lr $lr --layers 2 --id a; done
            for lr in $(seq 1 2); do
              python fit.py --lr $lr --layers 2 --id a
            done
            """,
            ("bash", "-c", 'cd "$(dirname "$0")" && python fit.py --lr {lr} --layers {layers} --id a "$@"', "fit.sh"),
            {"lr": (1, 2)},
        ),
    ],
)
def test_the_commands_in_loops_run_once_with_the_variables_of_the_script(
    platform, written: Path, text: str, command: tuple[str, ...], choices: dict[str, tuple[float, ...]]
) -> None:
    write(written, {"fit.py": PRINTS.replace("args =", "parser.add_argument('--id')\nargs ="), "fit.sh": text})
    result = platform("init", "--from", str(written / "fit.sh"))
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    assert command_of(made()) == command
    parameters = made().search.parameters
    assert {name: parameters[name].choices for name in choices} == choices  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "source", ["for lr in 0.1 0.01; do python fit.py --lr $lr; done", "bash sweep.sh", "cd own && bash sweep.sh"]
)
def test_a_loop_that_the_user_types_or_whose_script_bash_starts_is_that_of_its_values(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    folder = written / "own" if source.startswith("cd") else written
    write(folder, {"fit.py": PRINTS, "sweep.sh": "for lr in 0.1 0.01; do\n  python fit.py --lr $lr > out.txt\ndone\n"})
    monkeypatch.chdir(written)
    result = platform("init", "--from", source, "--no-smoke")
    assert result.exit_code == 0, result.output
    assert job_in(folder).search.parameters["lr"].choices == (0.1, 0.01)
    assert "for" not in command_of(job_in(folder))


def test_the_python_commands_of_a_shell_script_are_named_with_its_variables_and_the_typed_options(
    platform, written: Path
) -> None:
    write(written, {"fit.py": PRINTS, "run.sh": "python fit.py --name a\npython fit.py --name b\n"})
    words = ("--space", "lr=0.1..1", "--space", "layers=1..4", "--objective", "val_loss:min")
    result = platform("init", "--from", "cd src && PYTHONPATH=.. bash run.sh", *words)
    command = "platform init --from 'cd src && PYTHONPATH=.. python fit.py --name b' " + " ".join(words)
    assert result.exit_code == 2 and f"`{command}`" in result.stderr, result.output


def test_options_of_the_program_in_a_loop_are_searched_too(platform, written: Path) -> None:
    text = "name=a\nfor rate in 0.1 0.01; do\n  python fit.py --lr $rate --layers 2 --id ${name}_$rate > $rate.log\ndone\n"
    more = "parser.add_argument('--id')\nparser.add_argument('--dropout', type=float, default=0.5)\nargs ="
    write(written, {"fit.py": PRINTS.replace("args =", more), "fit.sh": text})
    result = platform("init", "--from", str(written / "fit.sh"))
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    job = made()
    assert set(job.search.parameters) == {"rate", "layers", "dropout"}, "--lr is the rate"
    assert job.search.parameters["rate"].choices == (0.1, 0.01)  # type: ignore[union-attr]
    (written / "job.yaml").unlink()
    result = platform("init", "--from", str(written / "fit.sh"), "--no-smoke", "--space", "droput=0..1")
    assert result.exit_code == 2 and "has no parameter droput; did you mean dropout" in result.stderr, result.output
    assert platform("init", "--from", str(written / "fit.sh"), "--no-smoke", "--space", "dropout=0..1").exit_code == 0
    assert set(made().search.parameters) == {"dropout"} and made().params["rate"] == 0.1
    assert made().arguments is not None and made().arguments.items[-1] == "{flags}", "dropout is an argument at the end"


def test_a_script_with_a_loop_over_files_runs_as_it_is(platform, written: Path) -> None:
    write(written, {"fit.py": PRINTS, "fit.sh": "for f in *.csv; do\n  python fit.py --lr 0.1 --layers 2\ndone\n"})
    result = platform("init", "--from", str(written / "fit.sh"))
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    assert made().command == ("bash", "fit.sh")


def test_a_number_that_a_shell_script_repeats_is_replaced_everywhere(platform, written: Path) -> None:
    line = "python fit.py --lr 0.1 --layers {}\n"
    write(written, {"fit.py": PRINTS, "fit.sh": line.format(1) + line.format(2)})
    assert platform("init", "--from", str(written / "fit.sh"), "--no-smoke").exit_code == 0
    assert set(made().search.parameters) == {"lr"}, "layers has two values"
    text = settings.replace_values((written / "fit.sh").read_text(), {"lr": 0.5, "layers": 9}, "fit.sh")
    assert text == line.replace("0.1", "0.5").format(1) + line.replace("0.1", "0.5").format(2)


@pytest.mark.parametrize(
    ("program", "text", "folder", "command"),
    [
        ("fit.py", "python fit.py --lr 0.1 --layers ${LAYERS:-2}\n", ".", ("bash", "tools/toy/fit.sh")),
        ("lib/fit.py", "python -m lib.fit --lr 0.1 --layers 2\n", ".", ("bash", "tools/toy/fit.sh")),
        ("tools/toy/fit.py", "python fit.py --lr 0.1 --layers 2\n", "tools/toy", ("bash", "fit.sh")),
        (
            "fit.py",
            "for lr in 0.1 0.2; do\n  python ./fit.py --lr $lr --layers 2\ndone\n",
            ".",
            ("python", "./fit.py", "--lr", "{lr}", "--layers", "{layers}"),
        ),
    ],
)
def test_a_shell_script_runs_where_its_paths_begin(
    platform, workplace: Path, program: str, text: str, folder: str, command: tuple[str, ...]
) -> None:
    write(workplace, {program: PRINTS, "tools/toy/fit.sh": text})
    result = platform("init", "--from", "tools/toy/fit.sh")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    words = job_in(folder).command or ()
    assert tuple(word for word in words if not word.startswith(("env", "LAYERS="))) == command


def test_values_of_a_settings_file_that_a_command_line_names_are_searched(platform, written: Path) -> None:
    write(
        Path(),
        {"fit.cfg": "[train]\nlr = 0.1\n", "fit.py": "import sys\nprint('loss=%d' % len(open(sys.argv[1]).read()))\n"},
    )
    result = platform("init", "--from", "python fit.py fit.cfg")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert (job_in(".").arguments.files, job_in(".").search.enqueue) == (("fit.cfg",), ({"train.lr": 0.1},))  # type: ignore[union-attr]


@pytest.mark.parametrize("argument", [False, True])
def test_a_command_names_a_settings_file_with_any_suffix(platform, written: Path, argument: bool) -> None:
    """Of a script without arguments that a parser declares, and of one with them."""
    fit = "import argparse, sys\nvalues = dict(line.split('=') for line in open(sys.argv[-1]))\n"
    if argument:
        fit += (
            "p = argparse.ArgumentParser()\np.add_argument('--wide', type=int)\np.add_argument('--config')\np.parse_args()\n"
        )
    write(Path(), {"fit.py": f"{fit}print('loss=%f' % float(values['lr']))\n", "my.train.config": "lr=0.1\nname=Adam\n"})
    command = f"python fit.py {'--config ' * argument}my.train.config"
    for words in ((), ("--space", "lr=0.01..0.2")):
        Path("job.yaml").unlink(missing_ok=True)
        result = platform("init", "--from", command, *words)
        assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
        job = made(".")
        assert job.arguments.files == ("my.train.config",) and job.search.enqueue == ({"lr": 0.1},)  # type: ignore[union-attr]


def test_a_file_that_may_have_secrets_or_is_data_is_no_settings_file(platform, written: Path) -> None:
    lines = "lr=0.1\n"
    write(Path(), {"fit.py": "print('loss=1')\n", ".env": lines, "few.txt": lines, "data.txt": lines + "x=1\n" * 20_000})
    for name, exit_code in ((".env", 2), ("data.txt", 2), ("few.txt", 0)):
        result = platform("init", "--no-smoke", "--from", f"python fit.py {name}", "--space", "lr=0.01..0.2")
        assert result.exit_code == exit_code, result.output


@pytest.mark.parametrize("program", ["sh fit", "python -m fit"])
def test_a_number_in_a_command_leaves_the_settings_file_that_it_names(platform, written: Path, program: str) -> None:
    """Of a program that is not a script here, and of one whose arguments are not known."""
    fit = {"sh fit": "fit", "python -m fit": "fit.py"}[program]
    data, config = "dropout = 0.5\n", "[train]\nlr = 0.1\nwarm = 3\nname = x\n"
    write(Path(), {fit: "# fits\n", "data.cfg": data, "fit.cfg": config})
    command = f"{program} --data data.cfg --config fit.cfg --train.name en --gpu-id -1"
    result = platform(
        "init", "--no-smoke", "--from", command, "--space", "train.lr=1e-3..1:log", "--space", "train.warm=1..5"
    )
    assert result.exit_code == 0, result.output
    assert "not a parameter: train.name of fit.cfg: --train.name of the command overrides it" in result.stderr
    job = job_in(".")
    assert job.arguments.files == ("fit.cfg",)  # type: ignore[union-attr]
    assert job.command == (*program.split(), *command.split()[len(program.split()) : -1], "{gpu-id}")
    assert (dict(job.params), {*job.search.parameters}) == ({"gpu-id": -1}, {"train.lr", "train.warm"})


@pytest.mark.parametrize(
    ("typed", "words", "name"),
    [
        ('--hparams "lr=0.2,size=3"', "--hparams lr={lr},size={size}", "lr"),
        ("--config.lr=0.2", "--config.lr={config.lr}", "config.lr"),
        ("--config.lr=x", "--config.lr of the command overrides it", ""),
        ("--opts lr 0.2", "lr of the command overrides it", ""),
    ],
)
def test_a_value_of_a_settings_file_is_searched_where_the_command_overrides_it(
    platform, written: Path, typed: str, words: str, name: str
) -> None:
    write(Path(), {"fit.py": "# fits\n", "fit.json": '{"lr": 0.1, "size": 4}'})
    result = platform("init", "--no-smoke", "--from", f"python fit.py fit.json {typed}", "--space", "lr=0.01..1")
    if not name:
        assert result.exit_code == 2 and f"no parameter lr of fit.json: {words}; nothing" in result.stderr, result.output
        return
    job = job_in(".")
    assert shlex.join(command_of(job)) == shlex.join(["python", "fit.py", "fit.json", *words.split()])
    assert set(job.search.parameters) == {name} and job.search.enqueue == ({name: 0.2},)


@pytest.mark.parametrize("line", ["python3 -u src/fit.py", "python -m src.fit"])
def test_a_command_line_without_arguments_is_its_script(platform, written: Path, line: str) -> None:
    write(written, {"fit.py": "lr = 0.1\nprint(f'loss={lr}')\n"})
    assert platform("init", "--from", line).exit_code == 0
    assert job_in(".").script == "src/fit.py"


def test_values_that_arguments_need_are_guessed_by_their_names(platform, written: Path) -> None:
    lines = "".join(
        f"parser.add_argument('{name}', type={kind}, **({{'required': True}} if '{name}'[0] == '-' else {{}}))\n"
        for name, kind in (
            ("data", "str"),
            ("--lr", "float"),
            ("--epochs", "int"),
            ("--batch-size", "int"),
            ("--save-dir", "str"),
        )
    )
    write(written, {"fit.py": f"import argparse\nparser = argparse.ArgumentParser()\n{lines}"})
    (written / "fit.py").write_text(
        (written / "fit.py").read_text() + "a = parser.parse_args()\nopen(a.data)\nprint(f'loss={a.lr}')\n"
    )
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert made().params == {"data": "table.csv", "epochs": 3, "save-dir": "out"}
    assert set(made().search.parameters) == {"lr", "batch-size"}
    assert "epochs: 3 # required; the value is guessed" in (written / "job.yaml").read_text()


def test_a_script_that_needs_the_variables_of_torchrun_is_started_by_it(platform, written: Path) -> None:
    write(
        written,
        {"fit.py": "import os\nlr = 0.1\nassert __import__('sys').argv\nprint('loss=%f' % int(os.environ['LOCAL_RANK']))\n"},
    )
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float, default=0.1)\n"
    write(
        written,
        {"fit.py": f"{text}lr = parser.parse_args().lr\nimport os\nos.environ['LOCAL_RANK']\nprint(f'loss={{lr}}')\n"},
    )
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert made().command == ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "fit.py")


def test_a_script_that_reads_its_repository_gets_a_link_to_it(platform, written: Path) -> None:
    text = "import os\nlr = 0.1\nif not os.path.isdir('.git'):\n    raise OSError('not a git repository')\n"
    text += "print('loss=%f' % lr)\n"
    write(written, {"fit.py": text})
    (written / ".git").mkdir()
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert list(made().links) == [".git"]


def test_numbers_in_an_argument_that_is_json_are_parameters(platform, written: Path, monkeypatch) -> None:
    text = "import json, sys\noptions = json.loads(sys.argv[2])\nprint('loss=%f' % (options['lr'] * options['depth']))\n"
    write(written, {"fit.py": text})
    monkeypatch.chdir(written)
    command = """python fit.py --options '{"lr": 1e-3, "depth": 3, "name": "a"}'"""
    result = platform("init", "--from", command, "--space", "lr=1e-4..1e-2:log", "--objective", "loss:min")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    job = made(".")
    assert command_of(job)[-1] == '{{"lr": {lr}, "depth": {depth}, "name": "a"}}'
    assert set(job.search.parameters) == {"lr"} and job.params == {"depth": 3}


def test_a_part_of_a_value_is_searched_by_the_command_that_the_message_shows(platform, written: Path) -> None:
    argument = "parser.add_argument('--sizes', default='1,1,64')\nargs ="
    width = "args.sizes.split(',')[-1]"
    write(written, {"fit.py": PRINTS.replace("args =", argument) + f"print('width_loss:', float({width}))\n"})
    words = ("--space", "width=32..128", "--objective", "width_loss:min")
    command_line = "python src/fit.py --lr 1 --layers 2 --sizes 1,1,64"
    result = platform("init", "--from", command_line, *words)
    command = f"platform init --from '{command_line.replace('64', '{width=64}')}' {' '.join(words)}"
    assert result.exit_code == 2 and f"if width is the 64 of 1,1,64, type `{command}`" in result.stderr, result.output
    result = platform(*shlex.split(command)[1:])
    assert result.exit_code == 0 and f"as `{command_line}`" in result.stderr, result.output
    job = made(".")
    assert set(job.search.parameters) == {"width"} and job.search.enqueue == ({"width": 64},)
    assert "sizes" not in Path("job.yaml").read_text().partition("params:")[2], "an argument would replace the parameter"


def test_a_command_whose_only_numbers_are_in_a_list_is_the_example(platform, written: Path) -> None:
    (written / "run.sh").write_text("width=${2##*,}\npython fit.py --width $width\n")
    result = platform("init", "--from", "sh src/run.sh --layers 1,1,64")
    assert result.exit_code == 2, result.output
    assert "as in `platform init --from 'sh src/run.sh --layers 1,1,{NAME=64}'`" in result.stderr


@pytest.mark.parametrize(("sizes", "example"), [("64,64", "64,{width=64}"), ("1,2", "1,{width=2}")])
def test_a_part_of_a_value_is_not_guessed(platform, written: Path, sizes: str, example: str) -> None:
    write(written, {"fit.py": PRINTS.replace("args =", "parser.add_argument('--sizes')\nargs =")})
    result = platform("init", "--from", f"python src/fit.py --sizes {sizes}", "--space", "width=32..128")
    remedy = f"if width is a part of {sizes}, write {{width=VALUE}} there in the command, as in `{example}`"
    assert result.exit_code == 2 and f"; {remedy}; for a value without" in result.stderr, result.output


def test_a_value_without_a_name_can_be_searched_once_it_has_one(platform, written: Path) -> None:
    head = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=0.1)\n"
    text = "lr = p.parse_args().lr\nprint('loss=%f' % (lr * len(range(23))))\n"
    words = ("init", "--from", str(written / "fit.py"), "--space", "lr=0.01..0.2:log", "--space", "passes=5..23")
    write(written, {"fit.py": head + text})
    result = platform(*words)
    assert result.exit_code == 2 and "set `passes = VALUE` at its top and use passes there" in result.stderr, result.output
    write(written, {"fit.py": "passes = 23\n" + head + text.replace("23", "passes")})
    result = platform(*words)
    assert result.exit_code == 0 and set(made().search.parameters) == {"lr", "passes"}, result.output


def test_answers_to_prompts_are_piped(platform, written: Path) -> None:
    text = "lr = float(input('Rate: '))\nlayers = int(input('Layers [4]: ') or 4)\nname = input('Name: ')\n"
    text += "print(f'loss={lr * layers}')\n"
    write(written, {"fit.py": text})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert set(made().search.parameters) == {"lr", "layers"} and made().params == {"name": "trial"}


def test_a_settings_file_above_the_script_is_the_one_that_an_argument_needs(platform, workplace: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--cfg', required={needed})\n"
    text += "print(p.parse_args().cfg, 'loss=1')\n"
    write(workplace, {"p/experiments/a/x.yaml": "lr: 0.1\n", "p/tools/fit.py": text.format(needed=True)})
    result = platform("init", "--from", "p/tools/fit.py")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert job_in("p").arguments.items == ("--cfg", "experiments/a/x.yaml")  # type: ignore[union-attr]
    Path("p/job.yaml").unlink()
    write(workplace, {"p/tools/fit.py": text.format(needed=False)})
    assert platform("init", "--from", "p/tools/fit.py").exit_code == 0 and Path("p/tools/job.yaml").exists()


def test_a_shell_script_that_starts_the_programs_of_a_folder_above_runs_there(platform, workplace: Path) -> None:
    script = "DATA=${1:-toy}\ncd $(dirname $0)/..\npython src/fit.py --lr=0.1 --layers 2 # $DATA\n"
    write(workplace, {"p/src/fit.py": PRINTS, "p/scripts/fit.sh": script})
    result = platform("init", "--from", "p/scripts/fit.sh")
    assert result.exit_code == 0 and "its metrics: val_loss" in result.stderr, result.output
    job = job_in("p")
    assert (job.command, job.params) == (("bash", "scripts/fit.sh", "{DATA}"), {"DATA": "toy"})
    assert job.arguments is not None and job.arguments.files == ("scripts/fit.sh",)
    assert job.search.enqueue == ({"lr": 0.1, "layers": 2},)


def test_numbers_that_are_calculated_are_searched(platform, written: Path) -> None:
    text = "lr = 10 ** -2\nhidden = 2 ** 6\ndropout = float('0.5')\ndepth = 3 / 0\nsize = 2 ** 9999\nprint(f'loss={lr}')\n"
    write(written, {"fit.py": text.replace("depth = 3 / 0\n", "").replace("size = 2 ** 9999\n", "")})
    assert platform("init", "--from", str(written / "fit.py"), "--no-smoke").exit_code == 0
    assert made().search.enqueue == ({"lr": 0.01, "dropout": 0.5, "hidden": 64},)
    (written / "job.yaml").unlink()
    write(written, {"fit.py": text})
    assert platform("init", "--from", str(written / "fit.py"), "--no-smoke").exit_code == 0
    assert set(made().search.parameters) == {"lr", "dropout", "hidden"}


def test_names_outside_of_the_project_are_no_settings(platform, written: Path, tmp_path: Path) -> None:
    write(tmp_path, {"apart/config.yaml": "lr: 0.1\n"})
    outside = tmp_path / "apart"
    names = [f"{outside}/*.json", f"{outside}/config.yaml", "conf/**.ini", f"{'x' * 300}.json", f"a. {'word ' * 60}."]
    text = f"import glob\nnames = {names!r}\nglob.glob(names[0])\ndropout = 0.5\nprint('loss=1')\n"
    write(written, {"fit.py": text})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0, result.output
    assert set(made().search.parameters) == {"dropout"}
    result = platform("init", "--from", f"echo --config {outside}/config.yaml")
    assert result.exit_code == 2 and "has no named numbers" in result.stderr, result.output


@pytest.mark.parametrize("name", ["f'{root}/exp.yaml'", "root + '/exp.yaml'", "'../exp.yaml'"])
def test_a_settings_file_may_be_named_from_a_folder(platform, written: Path, name: str) -> None:
    text = f"import yaml\nroot = 'conf'\nprint('loss=%f' % yaml.safe_load(open({name}))['lr'])\n"
    write(written, {"fit.py": text, ("../" if ".." in name else "conf/") + "exp.yaml": "lr: 0.1\n"})
    result = platform("init", "--from", str(written / "fit.py"))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    [file] = [path for path in (written / "job.yaml", written.parent / "job.yaml") if path.exists()]
    job = job_in(str(file.parent))
    assert job.arguments is not None and job.arguments.files[0] in ("conf/exp.yaml", "exp.yaml")


def test_a_long_command_is_no_file(platform, written: Path) -> None:
    write(Path(), {"fit.py": PRINTS})
    result = platform("init", "--from", f"python fit.py --lr 0.1 --layers 2 {'x' * 300}", "--no-smoke")
    assert result.exit_code == 0, result.output
    for words in ("x" * 300, f"{'x' * 300}.yaml", f"{'x' * 300}/fit.py", f"python {'x' * 300}.py"):
        result = platform("init", "--from", words)
        assert result.exit_code == 2 and "there is no xxx" in result.stderr, result.output


def test_an_installed_program_declares_what_can_be_searched(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = written.parent / "bin"
    main = """
import argparse
def main():
    parser = argparse.ArgumentParser()
    train = parser.add_subparsers(dest="mode").add_parser("train")
    train.add_argument("--depth", type=int, nargs="+", default=[3])
    train.add_argument("--epochs", type=int, default=9)
    args = parser.parse_args()
    print("mse:", args.depth[0] / args.epochs)
"""
    entry = f"#!{sys.executable}\nimport re\nimport sys\nfrom solubility import main\nsys.exit(main())\n"
    write(programs, {"solubility.py": main, "soluble": entry})
    (programs / "soluble").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(programs))
    monkeypatch.chdir(written)
    command = ("soluble train --epochs 2", "--objective", "mse:min", "--space")
    result = platform("init", "--from", *command, "depth=2..6")
    assert result.exit_code == 0 and "objective: mse, minimized (as requested)" in result.stderr, result.output
    job = job_in(".")
    assert job.command == ("soluble", "train", "--epochs", "{epochs}") and job.params == {"epochs": 2}
    assert list(job.search.space) == ["depth"] and job.enqueue == ({"depth": 3},)
    Path("job.yaml").unlink()
    result = platform("init", "--from", *command, "width=2..6")
    assert result.exit_code == 2 and "has no parameter width; did you mean depth?" in result.stderr, result.output


def test_a_longer_name_than_that_of_a_value_in_a_file_is_told(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('config')\nparser.parse_args()\n"
    write(written, {"fit.py": text, "conf.py": "optim = dict(optimizer=dict(kind='sgd', lr=0.01), momentum=0.9)\n"})
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python fit.py conf.py", "--space", "optim.adam.lr=0.001..0.1")
    assert result.exit_code == 2 and "no parameter optim.adam.lr; did you mean lr?" in result.stderr, result.output
    words = ["--space", "optim.optimizer.lr=0.001..0.1", "--no-smoke", "--objective", "loss:min"]
    result = platform("init", "--from", "python fit.py conf.py", *words)
    assert result.exit_code == 0 and set(made(".").search.parameters) == {"lr"}, result.output


@pytest.mark.parametrize(
    "command",
    ["MODEL=small LAYERS=2 {}", "export LAYERS=2 && MODEL='small' {}", "env MODEL='small' {}", "MODEL='a b' {}"],
)
def test_a_searched_variable_replaces_its_value_in_the_command(platform, written: Path, command: str) -> None:
    """Otherwise each trial would run with the value in the command, whatever the study says."""
    text = "import os\nprint('size:', {'small': 1, 'large': 2}[os.environ.get('MODEL', 'small')])\n"
    write(written, {"fit.py": text})
    result = platform(
        "init", "--from", command.format("python src/fit.py"), "--space", "model=small,large", "--objective", "size:min"
    )
    assert result.exit_code == (1 if "a b" in command else 0), result.output  # 1, as the run with the command's values fails
    job = made(".")
    words = " ".join(str(word) for word in job.command or ())
    assert words.count("MODEL=") == 1 and "MODEL={MODEL} " in words, words
    assert job.search.enqueue == (() if "a b" in command else ({"MODEL": "small"},))  # only a choice can be tried first


TREES = """
MODELS = {"forest": Forest(trees=9, depth=3), "extra": Extra(trees=9)}
def grow(trees=5): ...
"""


@pytest.mark.parametrize(
    ("imports", "module"),
    [
        ("from . import kinds", "src/kinds.py"),
        ("from src import kinds", "src/kinds.py"),
        ("import nets.kinds", "nets/kinds.py"),
    ],
)
def test_a_value_in_an_imported_module_can_be_searched(platform, written: Path, imports: str, module: str) -> None:
    """Of a name with several values, the command that is shown searches each of them."""
    fit = f"{imports}\nprint('loss=1')\n"
    write(Path(), {"src/fit.py": fit, "src/__init__.py": "", "src/unused.py": "f(depth=1)\n", module: TREES})
    words = ["init", "--from", "python -m src.fit --seed 1", "--no-smoke", "--space"]
    result = platform(*words, "trees=1..9", "--space", "depth=1..4")
    assert result.exit_code == 2 and "no parameter trees, but several: Extra.trees or Forest.trees" in result.stderr
    result = platform(*words, "trees=1..9", "--objective", "loss:min")
    command = re.search(r"`platform (init .*?)` searches each", result.stderr)
    assert command is not None and platform(*shlex.split(command[1]), "--no-smoke").exit_code == 0, result.output
    job = made(".")
    assert job.arguments is not None and job.arguments.files == (module,)
    assert job.search.enqueue == ({"Extra.trees": 9, "Forest.trees": 9},)


def test_names_of_a_settings_file_that_are_meant_are_shown_in_the_command(platform, workplace: Path) -> None:
    """They end with the name, or have one of its choices as value."""
    config = "layers:\n- {size: 8, dropout: 0.5}\n- {size: 4, dropout: 0.1}\noptim: {lr: 0.1, name: sgd}\n"
    write(workplace, {"fit.py": "open('config.yaml')\nprint('loss=1')\n", "config.yaml": config})
    space = ["--space", "lr=0.01..1", "--space", "dropout=0.1..0.5", "--space", "optimizer=sgd,adam"]
    result = platform("init", "--from", "python fit.py train", "--no-smoke", *space, "--objective", "loss:min")
    command = re.search(r"`platform (init .*?)` searches each", result.stderr)
    assert command is not None, result.output
    assert platform(*shlex.split(command[1]), "--no-smoke").exit_code == 0
    job = made(".")
    assert job.arguments is not None and job.arguments.files == ("config.yaml",)
    assert job.search.enqueue == ({"optim.lr": 0.1, "layers.0.dropout": 0.5, "layers.1.dropout": 0.1, "optim.name": "sgd"},)


def test_options_that_a_module_declares_are_arguments_of_the_script(platform, written: Path) -> None:
    declares = "def add(parser): parser.add_argument('--lr', type=float, default=0.1)\n"
    fit = "import argparse, options\nparser = argparse.ArgumentParser()\noptions.add(parser)\nparser.parse_args()\n"
    write(written, {"fit.py": fit, "options.py": declares})
    result = platform("init", "--from", "python src/fit.py", "--no-smoke", "--space", "lr=0..1", "--objective", "loss:min")
    assert result.exit_code == 0, result.output
    assert (made(".").script, made(".").arguments) == ("src/fit.py", None)


@pytest.mark.parametrize("command", ["scripts/fit.py", "python scripts/fit.py", "make fit"])
def test_only_a_module_above_has_the_value(platform, workplace: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """It is found without an argument in the command, also if PYTHONPATH has its folder. The script's tests set nothing."""
    fit = "import argparse, nets.kinds, nets.tests.a\nargparse.ArgumentParser().parse_args()\nprint('loss=1')\n"
    makefile = "fit:\n\tpython scripts/fit.py $(ARGS)\n"
    modules = {"nets/kinds.py": "dict(depth=3)\n", "nets/tests/a.py": "dict(depth=9)\n"}
    write(workplace, {"scripts/fit.py": fit, "Makefile": makefile, **modules})
    monkeypatch.setenv("PYTHONPATH", ".")
    monkeypatch.syspath_prepend(workplace)
    result = platform("init", "--from", command, "--no-smoke", "--space", "depth=1..4", "--objective", "loss:min")
    assert result.exit_code == 0, result.output
    job = made(".")
    assert job.command == ("env", "PYTHONPATH=.", "python", "scripts/fit.py")
    assert job.arguments is not None and job.arguments.files == ("nets/kinds.py",)


CHOOSES = """
import argparse, importlib
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="small")
parser.add_argument("--data", default="rows")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
config = importlib.import_module(f"models.{args.model}").Config()
print("loss=", config.rate * args.epochs)
"""


@pytest.mark.parametrize(
    ("start", "name", "file"),
    [
        ("python src/fit.py --model wide --data rows", "rate", "models/wide.py"),
        ("python src/fit.py --model=wide", "self.rate", "models/wide.py"),
        ("python src/fit.py", "Config.rate", "models/small.py"),  # by the default
        ("src/fit.py", "rate", "models/small.py"),
    ],
)
def test_a_value_in_a_module_that_an_argument_chooses_can_be_searched(
    platform, written: Path, start: str, name: str, file: str
) -> None:
    """Another value of the argument would choose another module, so it is no parameter."""
    module = "class Config:\n    def __init__(self):\n        self.rate = 0.5\n"
    write(Path("src"), {"fit.py": CHOOSES, "models/small.py": module, "models/wide.py": module})
    words = ["init", "--from", start, "--space", f"{name}=0.1..1", "--space", "epochs=1..4", "--objective", "loss:min"]
    result = platform(*words, "--space", "model=small,wide")
    remedy = f"{file}, which model chooses; so one job cannot search both; leave out --space model"
    assert result.exit_code == 2 and remedy in result.stderr, result.output
    result = platform(*words)
    assert result.exit_code == 0 and "model: chooses" in result.stderr, result.output
    job = made(next(folder for folder in ("src", ".") if Path(folder, "job.yaml").exists()))
    assert job.arguments is not None and job.arguments.files[0] in (file, f"src/{file}")
    assert job.search.enqueue == ({"rate": 0.5, "epochs": 2},)


READS_EPOCHS = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--epochs', type=int)\np.parse_args()\n"


@pytest.mark.parametrize(
    ("text", "others", "arguments"),
    [
        (READS_EPOCHS, ["epochs"], {"items": ("{flags}",), "files": ("nets/kinds.py",)}),
        ("size = 2\nexec(open('configurator.py').read())\n", ["size"], {"items": ("{flags}",), "files": ("nets/kinds.py",)}),
        ("def fit(size=2): ...\n", [], {"items": (), "files": ("nets/kinds.py",)}),
        ("import os\nos.environ.get('SIZE', '2')\n", [], {"items": (), "files": ("nets/kinds.py",)}),
        ("open('config.yaml')\n", [], {"items": (), "files": ("nets/kinds.py",)}),  # whose values are others
        ("open('sizes.yaml')\n", [], {"items": (), "files": ("sizes.yaml",)}),  # which has it, too
        ("DEPTH = 3\n", [], {"items": ("{globals}",), "files": ()}),  # so it is no default of the module's
        (
            "size = 2\n",
            ["size"],
            {"items": ("{globals}",), "files": ("nets/kinds.py",)},
        ),  # in the script's text, and in a file
        ("size = 2\nopen('sizes.yaml')\n", ["size"], {"items": ("{globals}",), "files": ("sizes.yaml",)}),
    ],
)
def test_a_script_has_a_value_of_a_module_that_nothing_else_sets(
    platform, workplace: Path, text: str, others: list[str], arguments: dict[str, object]
) -> None:
    fit = f"{text}from nets import kinds\nprint(f'loss={{kinds.SIZES[\"depth\"]}}')\n"
    files = {"config.yaml": "lr: 0.1\n", "sizes.yaml": "depth: 3\nlr: 0.1\n", "nets/kinds.py": "SIZES = {'depth': 3}\n"}
    write(workplace, {"fit.py": fit, "configurator.py": "", **files})
    spaces = [word for name in ("depth", *others) for word in ("--space", f"{name}=1..4")]
    result = platform("init", "--from", "fit.py", *spaces)
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    job = made(".")
    assert job.script == "fit.py" and job.arguments is not None
    assert {name: getattr(job.arguments, name) for name in arguments} == arguments
    assert [name.lower() for name in job.search.parameters] == ["depth", *others]


@pytest.mark.parametrize(
    "files",
    [
        {"kinds.py": "f(depth=3)\n", "nets.py": "f(depth=3)\n"},  # one of them would be a guess
        {"kinds.py": "def f(depth=3): ...\n", "nets.py": ""},  # its callers may override it
        {"kinds.py": "RATE = 2\nf(depth=3)\n", "nets.py": ""},  # trials would also replace RATE there
    ],
)
@pytest.mark.parametrize("source", ["src/fit.py", "python src/fit.py --seed 1"])
def test_a_value_in_a_module_is_not_guessed(platform, written: Path, files: dict[str, str], source: str) -> None:
    write(written, {"fit.py": "import kinds, nets\nRATE = 1\nprint('loss=1')\n", **files})
    result = platform("init", "--from", source, "--no-smoke", "--space", "depth=1..4", "--space", "RATE=1..4")
    assert result.exit_code == 2 and "has no parameter depth" in result.stderr, result.output


@pytest.mark.parametrize(
    "shell",
    [
        "export MODEL=$1",
        "#!/bin/sh\nset -eu\ncd . || exit 1  # here\nSIZE=$1; \nexport MODEL=$SIZE A=1\necho begins $SIZE",
    ],
)
def test_the_only_python_command_of_a_shell_script_becomes_the_command(platform, written: Path, shell: str) -> None:
    text = "import os\nprint('size:', {'small': 1, 'large': 2}[os.environ.get('MODEL')])\n"
    write(Path(), {"src/fit.py": text, "run.sh": f"{shell}\npython src/fit.py\n"})
    result = platform("init", "--from", "sh run.sh small", "--space", "model=small,large", "--objective", "size:min")
    assert result.exit_code == 0, result.output
    variables = "MODEL=small A=1" if "A=1" in shell else "MODEL=small"
    assert f"`sh run.sh small` runs `{variables} python src/fit.py`, which is the command of the job" in result.stderr
    command = made(".").command or ()
    assert (command[0], command[1], command[-1]) == ("env", "MODEL={MODEL}", "src/fit.py")


@pytest.mark.parametrize(
    "shell",
    [
        "mkdir -p out; python src/fit.py",
        "mkdir -p out\npython src/fit.py",
        "cp data.bak data.txt && python src/fit.py",
        "python src/fit.py | tee log",
        "python src/fit.py; rm -r out",
        'if [ -n "$CI" ]; then\npython src/fit.py\nfi',
        "for i in 1 2; do\npython src/fit.py\ndone",
        "python src/fit.py\npython src/fit.py",
        "cd src || exit 1; export A=$(cat k); python fit.py",
        "A=$(cat k)\npython src/fit.py --name $A",
        "A=`cat k`\npython src/fit.py --name $A",
        "export A=$B:1\npython src/fit.py",
        "export A=~/lib\npython src/fit.py",
        "A=x && python src/fit.py --name $A",
        "export A=x; python src/fit.py --name $A",
        "echo a > data.txt\npython src/fit.py",
        "source env.sh\npython src/fit.py",
    ],
)
def test_a_shell_script_that_does_more_than_its_python_command_is_not_replaced(platform, written: Path, shell: str) -> None:
    write(Path(), {"src/fit.py": "print('loss=1')\n", "run.sh": f"{shell}\n"})
    result = platform("init", "--from", "sh run.sh small", "--no-smoke")
    assert result.exit_code == 2 and "which is the command of the job" not in result.stderr, result.output
    assert "fit.py" in result.stderr and not Path("job.yaml").exists()


def test_modules_outside_the_job_are_not_searched(platform, written: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = tmp_path_factory.mktemp("lib")
    write(library, {"nets.py": "WIDTH = 3\n"})
    write(written, {"fit.py": PRINTS.replace("import argparse", "import argparse, nets")})
    command = f"PYTHONPATH={library} python src/fit.py --lr 0.1"
    result = platform("init", "--no-smoke", "--from", command, "--space", "WIDTH=1..5")
    assert result.exit_code == 2 and "has no parameter WIDTH" in result.stderr, result.output


def test_a_requested_objective_is_named_as_the_printed_metric(platform, written: Path) -> None:
    write(written, {"fit.py": PRINTS.replace("val_loss=", "mAP@[.5:.95] = ")})
    line = "python src/fit.py --lr 0.1 --layers 2"
    result = platform("init", "--no-smoke", "--from", line, "--objective", "mAP@[.5:.95]:max")
    assert result.exit_code == 0, result.output
    assert made(".").objectives[0].metric == "mAP__.5_.95_"
