"""`platform init --from` and `submit hpo` for a script that reads files of a folder above its own."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import write

from trialplane.cli import submit
from trialplane.cli.init_from import bounded
from trialplane.errors import EXIT_RUN_FAILED
from trialplane.job import load

# Scripts that read `loss=0.5` in a folder above their own, by the form in which they name it.
ABOVE = {
    "text": {"fit.py": "{}\nprint(open('../data/loss.txt').read())\n"},
    "module": {
        "fit.py": "{}\nimport own\nprint(own.read())\n",
        "own.py": "def read(): return open('../data/loss.txt').read()\n",
    },
    "own path of a module": {
        "fit.py": "{}\nimport own\nprint((own.ROOT / 'data/loss.txt').read_text())\n",
        "own.py": "from pathlib import Path\nROOT = Path(__file__).resolve().parent.parent\n",
    },
    "computed": {"fit.py": "{}\nimport os\nprint(open(os.path.join('..', 'data', 'loss.txt')).read())\n"},
    "argument": {"fit.py": "{}\nprint(open(args.file + 'loss.txt').read())\n"},
}
ARGUMENTS = (
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float, default=0.1)\n"
    "parser.add_argument('--file', default='')\nargs = parser.parse_args()"
)


@pytest.mark.parametrize("form", ABOVE)
@pytest.mark.parametrize("source", ["python fit.py --lr 0.5", "./fit.py"])
def test_a_job_has_the_smallest_folder_with_what_its_script_reads(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, form: str, source: str
) -> None:
    files = {f"own/code/{name}": text.replace("{}", ARGUMENTS) for name, text in ABOVE[form].items()}
    write(written, {**files, "own/data/loss.txt": "loss=0.5\n"})
    monkeypatch.chdir(written / "own/code")
    if form == "argument":
        source = "python fit.py --lr 0.5 --file ../data/"
    result = platform("init", "--from", source)
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    assert (written / "own/job.yaml").exists()


@pytest.mark.parametrize("form", ["text", "module", "argument"])
def test_data_that_a_text_names_are_found_without_a_run(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    files = {f"own/code/{name}": text.replace("{}", ARGUMENTS) for name, text in ABOVE[form].items()}
    write(written, {**files, "own/data/loss.txt": "loss=0.5\n"})
    monkeypatch.chdir(written / "own/code")
    command = "python fit.py --lr 0.5" + (" --file ../data/" if form == "argument" else "")
    assert platform("init", "--from", command, "--no-smoke").exit_code == 0
    assert (written / "own/job.yaml").exists()


def test_a_folder_with_unrelated_files_is_no_jobs(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(written, {"code/fit.py": ABOVE["text"]["fit.py"].replace("{}", ARGUMENTS), "data/loss.txt": "loss=0.5\n"})
    monkeypatch.setenv("HOME", str(written))
    monkeypatch.chdir(written / "code")
    result = platform("init", "--from", "python fit.py --lr 0.5")
    assert "No such file" in result.stderr and "if it needs other arguments" not in result.stderr, "they are typed"
    assert Path("job.yaml").exists() and not (written / "job.yaml").exists()


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("import sys; sys.path.append('../')", False),
        ("x = '../pipe'", False),
        ("x = '../link/loss.txt'", True),  # a link to data elsewhere
        ("from pathlib import Path; x = Path(__file__).parent.parent / 'link/loss.txt'", True),
    ],
)
def test_a_parent_alone_and_what_has_no_data_are_not_read(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, text: str, is_taken: bool
) -> None:
    write(written, {"own/code/fit.py": f"{text}\n{ARGUMENTS}\nprint('loss=1')\n", "elsewhere/loss.txt": "loss=0.5\n"})
    if "pipe" in text:
        os.mkfifo(written / "own/pipe")
    (written / "own/link").symlink_to(written / "elsewhere")
    monkeypatch.chdir(written / "own/code")
    result = platform("init", "--from", "python fit.py --lr 0.5", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert (written / "own/job.yaml").exists() == is_taken
    assert Path("job.yaml").exists() != is_taken


@pytest.mark.parametrize(
    ("code", "is_read"),
    [
        ("open('../kept.txt', 'w')", False),
        ("open(file='../kept.txt', mode='a')", False),
        ("Path('../kept.txt').write_text('x')", False),
        ("Path('../kept.txt').open('w')", False),
        ("PATH = '../kept.txt'\nif os.path.exists(PATH): print(open(PATH).read())\nopen(PATH, 'w')", False),  # it resumes
        ("frame.to_csv('../kept.txt')", False),
        ("np.save('../kept.txt', [1])", False),
        ("torch.save(model, f'../kept.txt')", False),
        ("plt.savefig(os.path.join('..', '../kept.txt'))", False),
        ("model.fit(output_path='../kept.txt')", False),
        ("open(Path(__file__).parent.parent / 'kept.txt', 'w')", False),
        ("KEPT = Path(__file__).parents[1] / 'kept.txt'\njson.dump([], open(KEPT, 'w'))", False),
        ("open('../kept.txt')", True),
        ("W = '../kept.txt'\nif os.path.exists(W): load_checkpoint(W)", True),
        ("trainer.fit(model, ckpt_path='../kept.txt')", True),
        ("OUT = '../'\nos.makedirs(OUT, exist_ok=True)\ntorch.save(1, os.path.join(OUT, 'kept.txt'))", False),
        ("ModelCheckpoint('../kept.txt')", False),
        ("Path('../kept.txt').open('r')", True),
        ("np.save('kept', np.load('../kept.txt') / 2)", True),
        ("ROWS = read('../kept.txt')\nnp.save('kept.npy', ROWS)", True),
        ("print((Path(__file__).parents[1] / 'kept.txt').read_text())", True),
    ],
)
@pytest.mark.parametrize("source", ["python fit.py --lr 0.5", "fit.py"])
def test_a_file_above_that_a_script_writes_is_no_input(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, code: str, is_read: bool, source: str
) -> None:
    """An earlier run has left it."""
    text = f"{ARGUMENTS}\nimport os, json\nfrom pathlib import Path\ndef train():\n    " + code.replace("\n", "\n    ")
    write(written, {"own/code/fit.py": f"{text}\n", "own/kept.txt": "x\n"})
    monkeypatch.chdir(written / "own/code")
    result = platform("init", "--from", source, "--no-smoke")
    assert result.exit_code == 0, result.output
    assert (written / "own/job.yaml").exists() == is_read
    assert Path("job.yaml").exists() != is_read


def test_a_job_is_not_made_outside_of_a_repository(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(written, {"own/code/fit.py": ABOVE["text"]["fit.py"].replace("{}", ARGUMENTS), "own/data/loss.txt": "loss=0.5\n"})
    (written / "own/code/.git").mkdir()
    monkeypatch.chdir(written / "own/code")
    result = platform("init", "--from", "python fit.py --lr 0.5")
    assert result.exit_code == 2 and "cd code && python fit.py --lr 0.5" in result.stderr
    assert not (written / "own/job.yaml").exists()


@pytest.mark.parametrize("job", ["./fit.py", "code/fit.py"])
def test_a_failed_study_of_a_script_that_names_data_above_its_folder_shows_the_command_that_works(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    write(written, {"code/fit.py": ABOVE["text"]["fit.py"].replace("{}", ARGUMENTS), "data/loss.txt": "loss=0.5\n"})
    monkeypatch.setattr(submit, "_submit", lambda *_args, **_options: EXIT_RUN_FAILED)
    monkeypatch.chdir(written / "code" if job == "./fit.py" else written)
    words = ["--space", "lr=0.1..1", "--objective", "loss:min"]
    result = platform("submit", "hpo", job, *words, "--param", "file=a b", "--local")
    assert result.exit_code == EXIT_RUN_FAILED, result.output
    assert f"{job} names {written}/data/loss.txt, and trials get a copy of {written}/code only: `platform" in result.stderr
    shown = re.search(r"`platform (init .+)` makes a job with both", result.stderr)
    assert shown is not None, result.output
    result = platform(*shlex.split(shown[1]))
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output


def test_a_failed_study_whose_parameter_names_a_file_of_the_working_directory_shows_its_path(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(written, {"code/fit.py": ARGUMENTS, "rows.csv": "1\n", "code/beside.csv": "1\n", "beside.csv": "1\n"})
    monkeypatch.setattr(submit, "_submit", lambda *_args, **_options: EXIT_RUN_FAILED)
    monkeypatch.chdir(written)
    params = ["--param", "data=rows.csv", "--param", "other=beside.csv", "--param", "name=no.csv"]
    result = platform("submit", "hpo", "code/fit.py", "--space", "lr=0.1..1", "--objective", "loss:min", *params, "--local")
    assert f"with --local, `--param data={written}/rows.csv` gives them its path" in result.stderr, result.output
    assert result.stderr.count("gives them its path") == 1


# It imports `settled` from a folder `lib` that only PYTHONPATH has.
HYDRA = """
import hydra, settled
from hydra.core.config_store import ConfigStore

ConfigStore.instance().store(name="conf", node={"lr": settled.LR, "width": 8})

@hydra.main(config_path=%s, config_name="conf", version_base=None)
def main(config): print(f"loss={config.lr}")

main()
"""


def test_a_hydra_configuration_above_is_in_the_job(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"lib/settled.py": "LR = 0.1\n", "conf/conf.yaml": "lr: 0.2\nwidth: 4\n"}
    write(written, {"code/bin/fit.py": HYDRA % "'../../conf'", **files})
    monkeypatch.chdir(written / "code")
    command = f"PYTHONPATH={written}/code/../lib python bin/fit.py width=5"
    result = platform("init", "--from", command, "--space", "lr=0.1..1")
    assert result.exit_code == 0 and "its metrics: loss" in result.stderr, result.output
    reason = f"bin/fit.py names {written}/conf, above this folder; the job is made in {written}, which has both, of "
    assert f"{reason}`cd code && {command}`" in result.stderr


def test_hydra_lists_the_configuration_with_the_commands_variables(
    platform, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(written, {"bin/fit.py": HYDRA % None, "lib/settled.py": "import warnings\nwarnings.warn('old')\nLR = 0.1\n"})
    monkeypatch.chdir(written)
    command = f"PYTHONPATH={written}/lib python bin/fit.py width=5"
    result = platform("init", "--from", command, "--space", "lr=0.1..1", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert load.load_job(written).search.parameters.keys() == {"lr"}
    (written / "job.yaml").unlink()
    result = platform("init", "--from", "python bin/fit.py width=5", "--no-smoke")  # its listing is a traceback
    assert result.exit_code == 2 and "names no existing Hydra configuration" in result.stderr, result.output


def test_the_cause_of_a_failure_of_hydra_is_not_its_advice(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "Primary config directory not found.\nCheck that '/a' exists\n\nSet the environment variable HYDRA_FULL_ERROR=1 …\n"
    )
    assert bounded.ProcessEnd(1, 0.0, log).cause == "Check that '/a' exists"
