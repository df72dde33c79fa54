"""What is imported becomes a job folder that is loaded, as the command does it; and a note is found by its field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trialplane.cli import output
from trialplane.importing.source import Imported
from trialplane.job import load
from trialplane.job.kinds import Study


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Study]:
    """Writes the job with scripts of that name, and loads it, which refuses what is no job."""

    def load_(made: Imported, **scripts: str) -> Study:
        folder = tmp_path / "job"
        folder.mkdir()
        (folder / "job.yaml").write_text(output.as_yaml(dict(made.job)))
        for name, text in {**{f"{stem}.py": text for stem, text in scripts.items()}, **made.files}.items():
            (folder / name).write_text(text)
        job = load.load_job(folder)
        assert isinstance(job, Study)
        return job

    return load_


def reasons(made: Imported) -> dict[str, str]:
    """The notes by their fields; several on one field are joined."""
    found: dict[str, str] = {}
    for note in made.notes:
        found[note.field] = f"{found[note.field]}; {note.reason}" if note.field in found else note.reason
    return found
