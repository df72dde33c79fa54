"""`platform init --from` for a script with data beside it that cannot be uploaded: the job links to them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.cli.conftest import write

from trialplane.cli.init_from import data_links
from trialplane.job import load
from trialplane.plan import pack

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
with open("data/train.txt") as file:
    print(f"loss: {len(file.readline()) * args.lr}")
"""


def fill_large(file: Path, size: int = pack.MAX_BYTES) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(random.Random(0).randbytes(size))


def test_only_what_makes_the_folder_too_large_is_linked(written: Path) -> None:
    write(written, {"fit.py": "x = 1\n", "mixed/model.py": "x = 1\n", "conf/a.yaml": "a: 1\n", "data/a/b.txt": "x\n"})
    write(written, {"requirements.txt": "numpy\n", "notes.ipynb": " " * (9 << 20)})  # large, but small when it is packed
    assert data_links.find(written, []) == ()
    fill_large(written / "data/a/c.bin")
    assert data_links.find(written, []) == ("data",)
    fill_large(written / "mixed/d.bin", 2 * pack.MAX_BYTES)
    assert data_links.find(written, []) == ("data", "mixed/d.bin")  # the folder itself has code
    assert data_links.find(written, ["/data"]) == ("mixed/d.bin",)
    write(written, {"data/data.yaml": "classes: 3\n"})  # a settings file may be replaced in a trial's copy
    assert data_links.find(written, []) == ("data/a", "mixed/d.bin")


def test_links_that_lead_out_of_the_folder_are_linked_to_data_only(written: Path) -> None:
    write(written, {"fit.py": "x = 1\n"})
    write(written.parent / "elsewhere", {"train.txt": "x\n"})
    (written / "data").symlink_to(written.parent / "elsewhere")
    assert data_links.find(written, []) == ("data",)
    (written / "nowhere").symlink_to("gone")
    assert data_links.find(written, []) == ()
    assert data_links.find(written, ["/nowhere"]) == ("data",)
    write(written.parent / "library", {"tools/own.py": "x = 1\n"})
    (written / "tools").symlink_to(written.parent / "library")
    assert data_links.find(written, ["/nowhere"]) == ()


def test_a_link_within_the_folder_counts_as_what_it_leads_to(written: Path) -> None:
    write(written, {"fit.py": "x = 1\n"})
    fill_large(written / "sets/v2/a.bin")
    (written / "data").symlink_to("sets/v2")
    assert data_links.find(written, []) == ("data", "sets")


@pytest.mark.parametrize("name", ["checkpoints/best.pt", "runs/a/events.bin", "my_logs/a.bin", "lightning_logs/a.bin"])
def test_what_scripts_write_is_not_linked(written: Path, name: str) -> None:
    write(written, {"fit.py": "x = 1\n"})
    fill_large(written / name)
    assert data_links.find(written, []) == ()


def test_nothing_is_linked_if_the_rest_is_too_large(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(written, {"fit.py": SCRIPT, "data/train.txt": "abc\n"})
    fill_large(written / "data/large.bin")
    fill_large(written / "runs/model.bin")
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python fit.py --lr 0.5")
    assert result.exit_code == 2 and "linked in" not in result.stderr and "Its largest files" in result.stderr, result.output


def test_so_is_a_folder_with_too_many_files(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "MOST_ENTRIES", 10)
    write(written, {"fit.py": "x = 1\n"} | {f"images/{number}.txt": "x" for number in range(20)})
    assert data_links.find(written, []) == ("images",)


def test_the_script_finds_its_data_in_the_smoke_run(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(written, {"fit.py": SCRIPT, "data/train.txt": "abc\n"})
    fill_large(written / "data/large.bin")
    monkeypatch.chdir(written)
    result = platform("init", "--from", "python fit.py --lr 0.5")
    assert result.exit_code == 0, result.output
    assert "not uploaded, but linked in the folder of each trial, also below: data; what the script writes" in result.stderr
    job = load.load_job(written)
    assert (job.links, job.objectives[0].metric) == ({"data": str(written / "data")}, "loss")
    assert (written / "data/large.bin").stat().st_size == pack.MAX_BYTES


def test_so_does_the_job_of_a_search_in_the_script(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
import optuna

def objective(trial):
    return trial.suggest_float("x", 0, 1)

if __name__ == "__main__":
    study = optuna.create_study()
    study.optimize(objective, n_trials=3)
"""
    write(written, {"fit.py": text})
    fill_large(written / "data/large.bin")
    monkeypatch.chdir(written)
    result = platform("init", "--from", "fit.py")
    assert result.exit_code == 0, result.output
    assert list(load.load_job(written).links) == ["data"]


def test_the_job_of_a_command_has_data_above_its_folder(platform, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "from pathlib import Path\nDATA = Path(__file__).parents[1] / 'data'\n"
    write(written, {"src/fit.py": own + SCRIPT.replace('"data/', 'DATA / "'), "data/train.txt": "abc\n"})
    monkeypatch.chdir(written / "src")
    result = platform("init", "--from", "python fit.py --lr 0.5", "--objective", "loss:min")
    assert result.exit_code == 0, result.output
    reason = f"fit.py names {written}/data, above this folder; the job is made in {written}, which has both, of "
    assert f"{reason}`cd src && python fit.py --lr 0.5`" in result.stderr and "its metrics: loss" in result.stderr
    (written / "job.yaml").unlink()
    monkeypatch.chdir(written)
    result = platform("init", "--from", "cd src && python fit.py --lr 0.5", "--objective", "loss:min")
    assert result.exit_code == 0, result.output
