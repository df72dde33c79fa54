"""Whose checkpoints of a study stay, in a job file: what may be written, and what is refused, with the line.

Not checked here: what is removed, and when (tests/controller/test_keeping.py).
"""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
from tests.job.conftest import found

from trialplane.job import document, kinds, load, schema
from trialplane.job.resources import Keep

HEAD = "kind: hpo\nobjective: {metric: f1, direction: maximize}\nspace: {a: {type: int, low: 1, high: 2}}\ntrials: 2\n"
SEVERAL = "objectives: [{metric: f1, direction: maximize}, {metric: loss, direction: minimize}]"
TWO = HEAD.replace("objective: {metric: f1, direction: maximize}", SEVERAL)


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("", None),
        ("keep: {best: 3}", Keep(best=3)),
        ("keep: {best: 1, files: [model.pt, out/*.pt]}", Keep(best=1, files=("model.pt", "out/*.pt"))),
    ],
)
def test_what_stays(folder: Path, text: str, keep: Keep | None) -> None:
    """Trials of a study with it save checkpoints, for which a cluster needs a volume."""
    (folder / "job.yaml").write_text(HEAD + text)
    job = load.load_job(folder)
    assert isinstance(job, kinds.Study) and job.keep == keep and job.keeps_checkpoints is (keep is not None)
    assert kinds.read(job.model_dump_json()) == job
    assert jsonschema.Draft202012Validator(schema.json_schema()).is_valid(document.read(folder / "job.yaml").data)


@pytest.mark.parametrize(
    ("head", "text", "field", "part"),
    [
        (HEAD, "keep: {best: 0}", "keep.best", "0"),
        (HEAD, "keep: {best: 3, files: [/etc/passwd]}", "keep.files", "below the folder"),
        (HEAD, "keep: {best: 3, files: [../x]}", "keep.files", "below the folder"),
        (TWO, "keep: {best: 3}", "keep", "no best ones"),
        ("kind: train\n", "keep: {best: 3}", "keep", "nothing is compared"),
    ],
)
def test_what_is_refused(folder: Path, head: str, text: str, field: str, part: str) -> None:
    (folder / "job.yaml").write_text(head + text)
    [(at, _, _, message)] = found(folder)
    assert at == field and part in message, (at, message)
