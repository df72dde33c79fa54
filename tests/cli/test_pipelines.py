"""`platform init --from` for a pipeline of DVC: its job, the run that finds its metrics, and trials of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from tests.cli.conftest import write

from trialplane.job import load
from trialplane.job.kinds import Study
from trialplane.worker.metrics import elsewhere

PREPARE = """
import yaml
from pathlib import Path
Path("data/ready").mkdir()  # fails if it exists
half = yaml.safe_load(open("params.yaml"))["half"]
Path("data/ready/half.txt").write_text(str(float(Path("data/raw.txt").read_text()) * half))
"""
TRAIN = """
import json, sys, yaml
from pathlib import Path
assert sys.argv[1] == "--depth" and not Path("model.txt").exists()
params = yaml.safe_load(open("params.yaml"))["train"]
assert int(sys.argv[2]) == params["depth"]
print("loss: 0.125")  # of training; the metrics are those of the next stage
Path("model.txt").write_text(str(float(Path("data/ready/half.txt").read_text()) + params["depth"] + params["lr"]))
"""
EVALUATE = """
import json
from pathlib import Path
Path("scores.json").write_text(json.dumps({"error": float(Path("model.txt").read_text())}))
"""
PIPELINE = """
stages:
  prepare: {cmd: python prepare.py, deps: [data/raw.txt], params: [half], outs: [data/ready]}
  train:
    cmd: python src/train.py --depth ${train.depth}
    deps: [data/ready]
    params: [train]
    outs: [model.txt]
  evaluate: {cmd: python src/evaluate.py, deps: [model.txt], metrics: [scores.json: {cache: false}]}
  publish: {cmd: exit 1, deps: [model.txt]}
"""


@pytest.fixture
def pipeline(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline in the working directory, with the results of an earlier run."""
    files = {
        "dvc.yaml": PIPELINE,
        "params.yaml": "half: 0.5\ntrain:\n  lr: 0.25 # of Adam\n  depth: 4\nother: {dropout: 0.5}\n",
        "data/raw.txt": "10",
        "prepare.py": PREPARE,
        "src/train.py": TRAIN,
        "src/evaluate.py": EVALUATE,
        "data/ready/half.txt": "1000",
        "model.txt": "1000",
        "scores.json": '{"error": 1000}',
    }
    folder = write(workplace / "project", files)
    monkeypatch.chdir(folder)
    return folder


def made(folder: Path) -> Study:
    job = load.load_job(folder)
    assert isinstance(job, Study)
    return job


@pytest.mark.parametrize("source", ["dvc.yaml", ".", "dvc repro", "cd . && dvc exp run --queue"])
def test_a_pipeline_is_a_job(platform: Callable[..., Result], pipeline: Path, source: str) -> None:
    result = platform("init", "--from", source)
    assert result.exit_code == 0 and "trials run prepare, train, evaluate, and not publish" in result.stderr, result.output
    job = made(pipeline)
    expected = "python prepare.py && python src/train.py --depth {train.depth} && python src/evaluate.py"
    assert job.command == ("bash", "-c", expected)
    assert job.arguments is not None and job.arguments.files == ("params.yaml",)
    assert set(job.search.parameters) == {"train.lr", "train.depth"}, "and not the dropout, which no stage lists"
    assert job.search.enqueue == ({"train.lr": 0.25, "train.depth": 4},)
    assert [(source.source, source.path) for source in job.metrics or ()] == [("file", "scores.json")]
    assert job.objectives[0].metric == "error", "and not the loss that a stage prints"
    assert (pipeline / ".jobignore").read_text().split() == ["/data/ready", "/model.txt", "/scores.json"]
    assert platform("validate", ".").exit_code == 0


@pytest.mark.services
def test_trials_run_the_stages_in_copies_with_their_own_parameters(platform: Callable[..., Result], pipeline: Path) -> None:
    assert platform("init", "--from", "dvc exp run -S half=0.25 -S 'train.depth=2,3'").exit_code == 0
    job = made(pipeline)
    assert job.params == {"half": 0.25} and list(job.search.parameters) == ["train.depth"]
    result = platform("submit", "hpo", ".", "--local", "--sampler", "grid", "--trials", "2", "--parallel", "2")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in platform("results").stdout.splitlines()[1:]]
    assert sorted(line[1:3] for line in lines) == [["COMPLETE", "4.75"], ["COMPLETE", "5.75"]], "10 · 0.25 + depth + 0.25"
    assert (pipeline / "scores.json").read_text() == '{"error": 1000}' and "depth: 4" in (
        pipeline / "params.yaml"
    ).read_text()


def test_without_a_run_the_metrics_are_those_that_the_stages_declare(
    platform: Callable[..., Result], pipeline: Path
) -> None:
    (pipeline / "scores.json").unlink()
    result = platform("init", "--from", "dvc.yaml", "--no-smoke")
    assert result.exit_code == 0 and "name a metric of scores.json" in result.stderr, result.output
    assert [(source.source, source.path) for source in made(pipeline).metrics or ()] == [("file", "scores.json")]
    (pipeline / "job.yaml").unlink()
    result = platform("init", "--from", "dvc.yaml", "--no-smoke", "--objective", "auc:max", "--space", "lr=0.1..1")
    job = made(pipeline)
    assert (job.objectives[0].metric, list(job.search.parameters)) == ("auc", ["train.lr"]), result.output
    assert [(source.source, source.path) for source in job.metrics or ()] == [("file", "scores.json")]


def test_metrics_of_an_earlier_run_count_if_none_are_seen(platform: Callable[..., Result], pipeline: Path) -> None:
    (pipeline / "scores.json").write_text('{"accuracy": 0.5, "size": 3}')
    result = platform("init", "--from", "dvc.yaml", "--no-smoke")
    assert result.exit_code == 0 and "the metrics are those of an earlier run, in scores.json" in result.stderr
    job = made(pipeline)
    assert (job.objectives[0].metric, job.objectives[0].direction) == ("accuracy", "maximize")
    assert [(source.source, source.path) for source in job.metrics or ()] == [("file", "scores.json")]
    (pipeline / "job.yaml").unlink()
    (pipeline / "src" / "evaluate.py").write_text("raise ValueError")
    result = platform("init", "--from", "dvc.yaml")
    assert "dvc.yaml failed" in result.stderr and made(pipeline).objectives[0].metric == "accuracy", result.output


def test_a_value_that_the_command_sets_is_that_of_every_trial(platform: Callable[..., Result], pipeline: Path) -> None:
    result = platform("init", "--from", "dvc exp run -S train.lr=0.5", "--no-smoke")
    assert result.exit_code == 0, result.output
    job = made(pipeline)
    assert job.params["train.lr"] == 0.5 and list(job.search.parameters) == ["train.depth"], result.stderr


@pytest.mark.parametrize("words", [(), ("--no-smoke",)])
def test_declared_metrics_are_read_behind_more_files_than_are_searched(
    platform: Callable[..., Result], pipeline: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(elsewhere, "MOST_ENTRIES", 1)
    stages = PIPELINE.replace("[scores.json:", "[/none.json, ../none.json, 'n**.json', results/scores.json:")
    write(pipeline, {"dvc.yaml": stages, "results/scores.json": '{"error": 1000}'})
    (pipeline / "src" / "evaluate.py").write_text(EVALUATE.replace("scores.json", "results/scores.json"))
    result = platform("init", "--from", "dvc.yaml", *words)
    assert result.exit_code == 0, result.output
    assert [source.path for source in made(pipeline).metrics or ()] == ["results/scores.json"], result.stderr
    assert made(pipeline).objectives[0].metric == "error"


@pytest.mark.parametrize("text", ["import dvc.api", "from dvc import api"])
def test_a_pipeline_with_calls_of_dvc_gets_a_repository(platform: Callable[..., Result], pipeline: Path, text: str) -> None:
    (pipeline / "src" / "own.py").write_text(f"{text}\n")
    train = "from pathlib import Path\nassert 'no_scm = true' in Path('.dvc/config').read_text()\n"
    (pipeline / "src" / "train.py").write_text(train + TRAIN)
    result = platform("init", "--from", "dvc.yaml")
    assert result.exit_code == 0 and "its metrics: error" in result.stderr, result.output


def test_other_files_of_a_pipeline_are_no_metrics(platform: Callable[..., Result], pipeline: Path) -> None:
    evaluate = (pipeline / "src" / "evaluate.py").read_text().replace('"error"', '"size"')
    (pipeline / "src" / "evaluate.py").write_text(f"{evaluate}Path('curve.json').write_text('{{\"precision\": 0.5}}')\n")
    (pipeline / "src" / "train.py").write_text(TRAIN.replace("loss: 0.125", ""))
    (pipeline / "scores.json").unlink()
    result = platform("init", "--from", "dvc.yaml")
    assert result.exit_code == 0 and "its metrics: size" in result.stderr, result.output
    assert [(source.source, source.path) for source in made(pipeline).metrics or ()] == [("file", "scores.json")]


def test_a_requested_metric_may_be_a_printed_one(platform: Callable[..., Result], pipeline: Path) -> None:
    result = platform("init", "--from", "dvc.yaml", "--objective", "loss:min")
    assert result.exit_code == 0, result.output
    assert made(pipeline).objectives[0].metric == "loss" and made(pipeline).metrics is None


def test_the_lines_for_an_existing_jobignore_are_printed(platform: Callable[..., Result], pipeline: Path) -> None:
    (pipeline / ".jobignore").write_text("/model.txt\n")
    result = platform("init", "--from", "dvc.yaml")
    assert result.exit_code == 0 and "its metrics: error" in result.stderr, result.output
    assert "add the lines to .jobignore: /data/ready, /scores.json" in result.stderr
    assert (pipeline / ".jobignore").read_text() == "/model.txt\n"


def test_a_pipeline_in_a_folder_below_reads_files_above(platform: Callable[..., Result], workplace: Path) -> None:
    text = """
    stages:
      train:
        wdir: ..
        cmd: python train.py ${lr} && mkdir out && cp m.json 'out/a[1].json'
        params: [lr]
        deps: [train.py]
        metrics: [m.json]
        outs: ['out/a[1].json']
    """
    train = "import json, sys\njson.dump({'loss': float(sys.argv[1])}, open('m.json', 'w'))\n"
    write(workplace, {"p/dvc.yaml": text, "params.yaml": "lr: 0.5\n", "p/params.yaml": "lr: 0.5\n", "train.py": train})
    result = platform("init", "--from", "p")
    assert result.exit_code == 0, result.output
    job = made(workplace)
    assert job.command is not None and job.command[:3] == ("env", "-C", "p")
    assert job.arguments is not None and job.arguments.files == ("params.yaml",)
    assert [(source.source, source.path) for source in job.metrics or ()] == [("file", "m.json")]
    assert (workplace / ".jobignore").read_text() == "/out/a\\[1\\].json\n/m.json\n"


def test_a_pipeline_without_its_data_is_refused(platform: Callable[..., Result], pipeline: Path) -> None:
    (pipeline / "data" / "raw.txt").unlink()
    result = platform("init", "--from", "dvc.yaml")
    assert result.exit_code == 2
    assert "dvc.yaml:3: stages.prepare.deps: data/raw.txt does not exist; `dvc pull` gets it" in result.stderr
    assert not (pipeline / "job.yaml").exists()
    result = platform("init", "--from", "cd nowhere && dvc repro")
    assert result.exit_code == 2 and "there is no nowhere/dvc.yaml" in result.stderr


def test_the_error_of_submit_names_the_command_for_a_pipeline(platform: Callable[..., Result], pipeline: Path) -> None:
    for name in ("dvc.yaml", "dvc repro"):
        result = platform("submit", "hpo", name, "--local")
        assert result.exit_code == 2 and f"platform init --from {name if ' ' not in name else repr(name)}" in result.stderr
    result = platform("submit", "hpo", ".", "--local")
    assert result.exit_code == 2 and "`platform init --from dvc.yaml` makes one" in result.stderr
