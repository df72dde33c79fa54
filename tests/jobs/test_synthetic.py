"""The shipped data is what jobs/make_synthetic.py makes, is marked as synthetic, and says what its columns claim.

Not checked: whether it resembles anything people write; it does not.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"
JSONL = ("evidence", "share", "joint")


def test_the_script_makes_the_files_byte_for_byte():
    ended = subprocess.run(
        [sys.executable, JOBS / "make_synthetic.py", "--check"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout


def test_pairs_are_marked_and_both_labels_are_there():
    with (JOBS / "criteria" / "synthetic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["source"] for row in rows} == {"synthetic"}
    assert len({row["criterion"] for row in rows}) == 9
    assert 0.35 < sum(row["label"] == "1" for row in rows) / len(rows) < 0.55


@pytest.mark.parametrize("name", JSONL)
def test_spans_lie_on_clauses_of_their_post(name):
    rows = [json.loads(line) for line in (JOBS / name / "synthetic.jsonl").read_text().splitlines()]
    assert {row["source"] for row in rows} == {"synthetic"}
    for row in rows:
        assert bool(row["spans"]) == bool(row["label"])
        for start, end in row["spans"]:
            evidence = row["post"][start:end]
            assert evidence == evidence.strip()
            assert "." not in evidence
            assert len(evidence.split()) > 2
