"""`platform import`: the folder that it makes, the list of what is not in it, and files that are no such files.

Not checked here: what becomes of each field (tests/importing).
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.cli.conftest import write

from trialplane.job import load
from trialplane.plan import pack

EXPERIMENT = """\
kind: Experiment
metadata: {name: digits, namespace: lab}
spec:
  objective: {type: maximize, objectiveMetricName: acc}
  maxTrialCount: 3
  parameters: [{name: lr, parameterType: double, feasibleSpace: {min: "0.1", max: "0.5"}}]
  trialTemplate:
    trialParameters: [{name: speed, reference: lr}]
    trialSpec: {kind: Job, spec: {containers: [{image: "a:1", command: [python, fit.py, "${trialParameters.speed}"]}]}}
  "odd\\u2028key: x": 1
"""


@pytest.fixture
def given(workplace: Path) -> Path:
    folder = workplace / "katib"
    folder.mkdir()
    (folder / "digits.yaml").write_text(EXPERIMENT)
    (folder / "fit.py").write_text("print('acc=0.5')\n")
    return folder / "digits.yaml"


def test_a_job_that_can_be_submitted(platform, given: Path) -> None:
    result = platform("import", "katib", str(given))
    assert result.exit_code == 0, result.output
    folder = Path("jobs/digits")
    assert result.stdout.strip().endswith("jobs/digits")
    assert load.load_job(folder).script == "fit.py"
    assert (folder / "fit.py").read_text() == "print('acc=0.5')\n"
    assert "metadata.namespace (line 2): is given when the job is submitted" in result.stderr
    assert "--local` runs the job" in result.stderr


def test_what_is_not_mapped_stands_in_the_job_too(platform, given: Path) -> None:
    result = platform("import", "katib", str(given), "--into", "jobs/other")
    assert result.exit_code == 0, result.output
    text = Path("jobs/other/job.yaml").read_text()
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("metadata.namespace (line 2)" in line for line in comments)
    # A key with a line break of YAML's in it stays within its comment.
    assert any("spec.odd key: x (line 10): a job has no field for it" in line for line in comments)
    for note in (line.partition(": ")[2] for line in result.stderr.splitlines() if "(line" in line):
        assert any(" ".join(note.split()) in " ".join(line.split()) for line in comments), note


FILES = {
    "wandb": {"sweep.yaml": "program: fit.py\nmetric: {name: loss}\nparameters: {a: {values: [1, 2]}}\n", "fit.py": ""},
    "sagemaker": {
        "sweep.json": '{"HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "m"}, '
        '"ParameterRanges": {"IntegerParameterRanges": [{"Name": "a", "MinValue": "1", "MaxValue": "3"}]}}',
        "fit.py": "",
    },
    "ray": {
        "sweep.py": "def fit(config): ...\ndef main():\n    tune.run(fit, config={'a': tune.uniform(0, 1)}, metric='m')\n",
    },
    "hydra": {
        "conf/sweep.yaml": "hydra: {sweeper: {params: {a: '1,2'}}}\n",
        "conf/db/one.yaml": "b: 1\n",
        "fit.py": "import hydra\n\n@hydra.main(config_path='conf')\ndef main(cfg): ...\n",
    },
}


@pytest.mark.parametrize("source", FILES)
def test_each_source(platform, workplace: Path, source: str) -> None:
    for name, text in FILES[source].items():
        file = workplace / source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    first = next(iter(FILES[source]))
    result = platform("import", source, f"{source}/{first}")
    assert result.exit_code == 0, result.output
    job = load.load_job(Path("jobs/sweep"))
    assert list(job.search.names) == ["a"]
    needed = {"sweep.py"} if source == "ray" else {"fit.py"}
    needed |= {"conf/sweep.yaml", "conf/db/one.yaml"} if source == "hydra" else set()
    there = {str(file.relative_to("jobs/sweep")) for file in Path("jobs/sweep").rglob("*.*") if file.is_file()}
    assert there == needed | {"job.yaml"}


def test_the_files_of_the_folder_come_along(platform, workplace: Path) -> None:
    files = {
        "sweep.yaml": "program: code/fit.py\nmetric: {name: a}\nparameters: {a: {values: [1, 2]}}\n",
        "code/fit.py": "import nets\ndef late():\n    from lib.deep import x\n",
        "code/nets.py": "import layers, torch\n",
        "code/layers.py": "import nets\n",
        "code/lib/__init__.py": "",
        "code/lib/deep.py": "from . import other\n",
        "code/lib/other.py": "",
        "data/rows.csv": "1\n",
        "jobs/earlier/train.py": "",
        ".env": "SECRET=x\n",
    }
    write(Path(), files)
    result = platform("import", "wandb", "sweep.yaml")
    assert result.exit_code == 0, result.output
    names = {str(file.relative_to("jobs/sweep")) for file in Path("jobs/sweep").rglob("*") if file.is_file()}
    assert names == set(files) - {"sweep.yaml", "jobs/earlier/train.py", ".env"} | {"job.yaml"}


def test_files_that_are_not_copied_are_named(platform, workplace: Path) -> None:
    sweep = "program: fit.py\nmetric: {name: a}\nparameters: {a: {values: [1, 2]}}\n"
    secrets = ["keys/id_rsa", "keys/own.pem", "settings.env"]
    write(Path(), {"sweep.yaml": sweep, "fit.py": "", "rows.csv": "1\n"} | dict.fromkeys(secrets, "x"))
    result = platform("import", "wandb", "sweep.yaml", "--into", "jobs/first")
    assert "not copied, because they may have secrets: keys/id_rsa, keys/own.pem, settings.env" in result.stderr
    names = {str(file.relative_to("jobs/first")) for file in Path("jobs/first").rglob("*") if file.is_file()}
    assert names == {"job.yaml", "fit.py", "rows.csv"}
    Path("link").symlink_to("/")
    result = platform("import", "wandb", "sweep.yaml", "--into", "jobs/second")
    assert result.exit_code == 0 and "the other files beside sweep.yaml are not copied: " in result.stderr, result.output


def test_modules_of_the_folder_above_lie_beside_the_script(platform, workplace: Path) -> None:
    files = {
        "project/search/tune_it.py": "import sys\nsys.path.append('..')\nimport models, beside\nfrom ray import tune\n"
        "def fit(config): ...\ntune.run(fit, config={'a': tune.uniform(0, 1)}, metric='m')\n",
        "project/search/beside.py": "",
        "project/models/__init__.py": "from . import deep\nimport losses\n",
        "project/models/deep.py": "",
        "project/losses.py": "",
        "project/unused.py": "",
    }
    write(Path(), files)
    result = platform("import", "ray", "project/search/tune_it.py")
    assert result.exit_code == 0, result.output
    copied_files = {str(file.relative_to("jobs/tune_it")) for file in Path("jobs/tune_it").rglob("*.py")}
    assert copied_files == {"tune_it.py", "beside.py", "models/__init__.py", "models/deep.py", "losses.py"}


def test_what_submit_would_refuse_is_told(platform, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "MAX_BYTES", 2**16)
    Path("sweep.yaml").write_text("program: fit.py\nmetric: {name: a}\nparameters: {a: {values: [1, 2]}}\n")
    Path("fit.py").write_text("import first, second\n")
    for name in ("first.py", "second.py"):
        Path(name).write_text(f"x = {random.Random(name).randbytes(2**15).hex()!r}\n")
    result = platform("import", "wandb", "sweep.yaml")
    assert result.exit_code == 2 and "the job cannot run yet" in result.stderr and "second.py" in result.stderr


def test_the_job_is_made_below_the_current_folder(platform, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("sub").mkdir()
    monkeypatch.chdir("sub")
    Path("search.py").write_text(TUNE)
    assert platform("import", "ray", "search.py").exit_code == 0
    assert platform("init", "mine").exit_code == 0
    assert {path.name for path in Path("jobs").iterdir()} == {"search", "mine", "job.schema.json"}


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n# \xe9\n"])
def test_a_file_may_name_its_encoding(platform, workplace: Path, head: bytes) -> None:
    Path("search.py").write_bytes(head + TUNE.encode())
    assert platform("import", "ray", "search.py").exit_code == 0


def test_a_script_that_is_not_there_is_named(platform, workplace: Path) -> None:
    Path("sweep.yaml").write_text("program: fit.py\nparameters: {a: {values: [1, 2]}}\n")
    result = platform("import", "wandb", "sweep.yaml")
    assert result.exit_code == 2
    assert "fit.py does not lie beside sweep.yaml: copy it to" in result.stderr
    assert "the job cannot run yet" in result.stderr and "there is no fit.py" in result.stderr


def test_a_script_elsewhere_is_not_fetched(platform, workplace: Path) -> None:
    (workplace.parent / "out.py").write_text("")
    Path("sweep.yaml").write_text("program: ../out.py\nparameters: {a: {values: [1, 2]}}\n")
    assert platform("import", "wandb", "sweep.yaml").exit_code == 2
    assert not list(Path("jobs").rglob("out.py"))


def test_a_folder_that_exists_is_left_alone(platform, given: Path) -> None:
    before = Path("jobs/demo/job.yaml").read_text()
    result = platform("import", "katib", str(given), "--into", "jobs/demo")
    assert result.exit_code == 2
    assert "already exists" in result.stderr
    assert Path("jobs/demo/job.yaml").read_text() == before


def test_a_job_that_cannot_run_yet_is_written_with_its_complaints(platform, given: Path) -> None:
    given.write_text(EXPERIMENT.replace('min: "0.1"', 'min: "0.9"'))
    result = platform("import", "katib", str(given))
    assert result.exit_code == 2
    assert "the job cannot run yet" in result.stderr and "0.9 is over high (0.5)" in result.stderr
    assert Path("jobs/digits/job.yaml").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff", "is not UTF-8 text"),
        (b"kind: [", "is not YAML"),
        (b"[" * 100_000, "levels deep"),
        (b"a: &a [1, 2]\nb: [" + b"*a, " * 90_000 + b"]", "has more than 100,000 values"),
        (b"x" * (17 * 2**20), "more than 16 MiB"),
        (b"1", "is not a Katib Experiment"),
        (b"", "is not a Katib Experiment"),
        (b"- 1", "is not a Katib Experiment"),
        (b"kind: Experiment\nspec: {parameters: 1, objective: [], trialTemplate: x}", "must be a"),
        (b"kind: Experiment\nspec: {parameters: [[1]], objective: {type: {a: 1}}}", "must be"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_files_that_are_none(platform, given: Path, text: bytes, said: str) -> None:
    given.write_bytes(text)
    refused(platform("import", "katib", str(given)), said)
    if said != "must be a" and said != "must be":
        for source in FILES:
            refused(platform("import", source, str(given)), "")


def refused(result, said: str) -> None:
    assert result.exit_code == 2, result.output
    assert said in result.stderr and "Traceback" not in result.stderr
    assert not Path("jobs/digits").exists()


def test_paths_that_are_no_files(platform, given: Path) -> None:
    for path, said in (
        ("none.yaml", "No such file"),
        ("jobs", "Is a directory"),
        ("/dev/zero", "16 MiB"),
    ):
        refused(platform("import", "katib", path), said)
    refused(platform("import", "katib", str(given), "--into", "jobs/Big Name"), "not a valid job name")
    refused(platform("import", "katib", str(given), "--into", f"{'a' * 300}/x"), "File name too long")
    refused(platform("import", "ktaib", str(given)), "'ktaib' is none of katib, wandb")


TUNE = "from ray import tune\ndef fit(config): ...\ntune.run(fit, config={'a': tune.uniform(0, 1)}, metric='m')\n"


def test_init_takes_a_search_of_ray_tune_as_import_does(platform, workplace: Path) -> None:
    Path("search.py").write_text(TUNE)
    result = platform("init", "--from", "search.py")
    assert result.exit_code == 0, result.output
    assert load.load_job(Path("jobs/search")).entrypoint == "ray:search:fit"


def test_options_that_a_search_of_ray_tune_has_no_use_for_are_told(platform, workplace: Path) -> None:
    Path("search.py").write_text(TUNE)
    result = platform("init", "--from", "search.py", "--kind", "train")
    assert result.exit_code == 2 and "--from makes a study; drop --kind" in result.stderr
    result = platform("init", "--from", "search.py", "--no-smoke")
    assert result.exit_code == 0, result.output
    assert "--no-smoke changes nothing: a search of Ray Tune is read, and never run" in result.stderr
    result = platform("init", "other", "--no-smoke")
    assert result.exit_code == 2 and "--no-smoke needs --from" in result.stderr and not Path("jobs/other").exists()


def test_a_search_of_ray_tune_is_not_submitted_as_a_script(platform, workplace: Path) -> None:
    Path("search.py").write_text(TUNE)
    result = platform("submit", "hpo", "./search.py", "--local")
    assert result.exit_code == 2
    assert "`platform import ray ./search.py` creates the job" in result.stderr


TUNE_IN_MAIN = """
import click
from functools import partial
from ray import tune
LR = 0.1
def fit(config, folder=None): print(f"loss={config['x'] * LR}")
def search(num_samples):
    tune.run(fit, config={"x": tune.uniform(0, 1)}, num_samples=num_samples, metric="loss", mode="min")
class Study:
    def start(self): search(4)
"""


@pytest.mark.parametrize(
    "start",
    ["search(4)", "Study().start()", "partial(search, num_samples=4)()", "click.command()(lambda: search(4))()"],
)
def test_a_command_that_starts_a_search_of_ray_tune_is_imported(platform, workplace: Path, start: str) -> None:
    Path("tutorial.py").write_text(f"{TUNE_IN_MAIN}if __name__ == '__main__':\n    {start}\n")
    result = platform("init", "--from", "python tutorial.py")
    assert result.exit_code == 0 and not Path("job.yaml").exists(), result.output
    assert load.load_job(Path("jobs/tutorial")).entrypoint == "ray:tutorial:fit"


@pytest.mark.parametrize("command", ["cd own && python tutorial.py", "python own/tutorial.py --lr 0.1", "sh own/start.sh"])
def test_a_command_with_a_search_of_ray_tune_is_refused_with_the_command_to_type(
    platform, workplace: Path, command: str
) -> None:
    Path("own").mkdir()
    Path("own/tutorial.py").write_text(f"{TUNE_IN_MAIN}if __name__ == '__main__':\n    search(4)\n")
    Path("own/start.sh").write_text('python own/tutorial.py --lr 0.1 "$@"\n')
    result = platform("init", "--from", command, "--no-smoke")
    assert result.exit_code == 2 and not Path("job.yaml").exists(), result.output
    assert "`platform init --from own/tutorial.py` makes the job of the search itself" in result.stderr


@pytest.mark.services
def test_a_subcommand_that_starts_no_search_of_ray_tune_is_a_job(platform, workplace: Path) -> None:
    app = "@click.group()\ndef app(): ...\n@app.command()\ndef tune_all(): search(4)\n"
    app += "@app.command()\n@click.option('--lr', default=0.1)\ndef train(lr): print(f'loss={lr}')\n"
    Path("main.py").write_text(f"{TUNE_IN_MAIN}{app}if __name__ == '__main__':\n    app()\n")
    result = platform("init", "--from", "python main.py tune-all", "--no-smoke")
    assert result.exit_code == 2 and "its subcommand tune-all starts that; `platform init" in result.stderr, result.output
    result = platform("init", "--from", "python main.py train --lr 0.1", "--no-smoke")
    assert result.exit_code == 0 and set(load.load_job(workplace).search.parameters) == {"lr"}, result.output


def test_a_notebook_with_a_search_of_ray_tune_is_refused(platform, workplace: Path) -> None:
    cell = {"cell_type": "code", "source": TUNE, "metadata": {}, "outputs": [], "execution_count": None}
    Path("fit.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    result = platform("init", "--from", "fit.ipynb")
    assert result.exit_code == 2 and "`platform import ray fit.py`" in result.stderr, result.output
    assert not Path("job.yaml").exists() and not Path("fit.py").exists()
