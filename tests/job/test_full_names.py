"""Names of `--space` that are a part of a parameter's name, or have one in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trialplane.errors import SpecError
from trialplane.importing import flags
from trialplane.job import fixed_params, load
from trialplane.job.load import Flag


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("batch_size", "data.batch_size"),
        ("batch-size", "data.batch_size"),
        ("run.data.batch_size", "data.batch_size"),
        ("optim.depth", "depth"),
        ("size", "size"),
        ("depth", "depth"),
        ("lr", ""),
    ],
)
def test_a_name_is_that_of_the_only_parameter_that_it_can_mean(name: str, full: str) -> None:
    known = ("data.batch_size", "depth", "actor.lr", "critic.lr")
    if full:
        assert fixed_params.full_name(name, known, "--space", are_all_known=True) == full
        return
    with pytest.raises(SpecError, match=r"space\.lr: may be actor\.lr or critic\.lr; type the one that you mean"):
        fixed_params.full_name(name, known, "--space", are_all_known=True)


JOB = "kind: hpo\nscript: train.py\nobjective: {metric: loss, direction: minimize}\n"


def _searched(folder: Path, job: str, name: str) -> set[str]:
    """The space of a job that searches one more parameter."""
    (folder / "cfg.yaml").write_text("regression: {batch_size: 8}\n")
    (folder / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    (folder / "job.yaml").write_text(JOB + job)
    fields: dict[str, Any] = {"type": "int", "low": 1, "high": 8}
    return set(load.load_job(folder, overrides={f'space."{name}"': Flag(fields, f"--space {name}=1..8")}).search.names)


@pytest.mark.parametrize(
    "job",
    [
        "arguments: cfg.yaml\nspace: {}\n",
        "arguments: {items: flags, file: cfg.yaml}\n",
        "params: {regression.batch_size: 8}\n",
        "params:\n  seed: 1\n  # regression.batch_size: 8\n",
        "space: {regression.batch_size: {type: int, low: 1, high: 4}}\n",
    ],
)
def test_an_option_searches_the_parameter_of_a_job(tmp_path: Path, job: str) -> None:
    assert _searched(tmp_path, job, "batch_size") == {"regression.batch_size"}


@pytest.mark.parametrize(("value", "type_"), [("1.0", "float"), ("1", "int")])
@pytest.mark.parametrize("sets", [(), ("arguments={file: settings-net}",)])
def test_a_range_of_a_parameter_in_a_file_of_any_name_has_the_type_of_its_value(
    tmp_path: Path, value: str, type_: str, sets: tuple[str, ...]
) -> None:
    (tmp_path / "settings-net").write_text(f"[net]\ndrop = {value}\n")
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(JOB + ("" if sets else "arguments: {file: settings-net}\n"))
    fields = {"type": "int", "low": 0, "high": 2}
    job = load.load_job(tmp_path, sets=sets, overrides={"space.drop": Flag(fields, "--space drop=0..2")})
    assert {name: job.search.space[name].type for name in job.search.names} == {"net.drop": type_}


def test_what_a_job_does_not_name_is_a_new_parameter(tmp_path: Path) -> None:
    assert _searched(tmp_path, "params: {regression.batch_size: 8}\n", "depth") == {"depth"}
    assert _searched(tmp_path, "params: {lr: 8}\n", "head.lr") == {"head.lr"}, "the script may have both"
    assert _searched(tmp_path, "arguments: hydra\nparams: {lr: 8}\n", "optim.lr") == {"optim.lr"}


def test_the_flags_of_a_file() -> None:
    text = "p.add_argument('-b', '--batch-size')\n@click.option('--lr')\ndef f(lr): ...\np.add_argument('data')\n"
    assert flags.names(text) == {"batch-size", "lr"}
    assert flags.names("def") == set()
