"""Loads the job folder of an import, as the command does, and finds notes by their fields."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trialplane.cli import output
from trialplane.importing.source import ImportResult
from trialplane.job import load
from trialplane.job.kinds import Study


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Study]:
    """Writes the job with scripts of that name, and loads it, which refuses what is not a job."""

    def load_(imported: ImportResult, **scripts: str) -> Study:
        folder = tmp_path / "job"
        folder.mkdir()
        (folder / "job.yaml").write_text(output.as_yaml(dict(imported.job)))
        for name, text in {**{f"{stem}.py": text for stem, text in scripts.items()}, **imported.files}.items():
            (folder / name).write_text(text)
        job = load.load_job(folder)
        assert isinstance(job, Study)
        return job

    return load_


def reasons(imported: ImportResult) -> dict[str, str]:
    """The notes by their fields; several on one field are joined."""
    by_field: dict[str, str] = {}
    for note in imported.notes:
        assert "'()'" not in note.reason, "the mark of a call in code is not for readers"
        by_field[note.field] = f"{by_field[note.field]}; {note.reason}" if note.field in by_field else note.reason
    return by_field
