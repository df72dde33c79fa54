"""The shipped Chinese lines are what jobs/make_corpus.py makes, and fit where they must travel.

Not checked: whether they resemble anything people write; they do not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from textjobs import components
from trialplane.plan import pack

JOBS = Path(__file__).parents[2] / "jobs"
SCRIPT, SHIPPED = JOBS / "make_corpus.py", JOBS / "cnm-bert" / "synthetic.txt"


def run(*arguments):
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_script_makes_the_file_byte_for_byte():
    ended = run("--check")
    assert ended.returncode == 0, ended.stdout


def test_the_lines_all_differ_and_are_chinese():
    lines = SHIPPED.read_text().splitlines()
    assert len(set(lines)) == len(lines) == 4000
    assert all(line.strip() == line and 4 < len(line) < 47 for line in lines)  # the job's max_length, [CLS] and [SEP]
    table = components.read(JOBS / "cnm-bert" / "components.tsv")
    characters = {char for line in lines for char in line if "\u4e00" <= char <= "\u9fff"}
    assert len([char for char in characters if table.of(char, 1)]) > 0.98 * len(characters) > 300


def test_it_makes_larger_files_of_the_same_kind(tmp_path):
    first, again = tmp_path / "first.txt", tmp_path / "again.txt"
    for file in (first, again):
        assert run("--lines", "500", "--out", str(file)).returncode == 0
    assert first.read_bytes() == again.read_bytes()
    assert first.read_text().count("\n") == 500
    assert run("--lines", "500", "--seed", "6", "--out", str(again)).returncode == 0
    assert first.read_bytes() != again.read_bytes()


def test_the_folder_fits_a_config_map():
    packed = pack.pack(JOBS / "cnm-bert")
    assert len(packed.data) < 120_000
    assert {"train.py", "job.yaml", "synthetic.txt", "components.tsv"} <= set(packed.files)
