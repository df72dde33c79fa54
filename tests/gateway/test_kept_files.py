"""The files that a study keeps go through MLflow's door: odd names as they are, sizes as it takes them, its own records.

Not checked here: names that HTTP would change, and the rest of how they are sent (tests/worker/test_kept_files.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gateway.mlflow_site import MOST, Door, other, own, postgres, server, site, tenants

from trialplane.wire import env, labels
from trialplane.wire.messages import FilesSent, SendFiles
from trialplane.wire.records import SlotConfig
from trialplane.worker import kept_files

__all__ = ["other", "own", "postgres", "server", "site", "tenants"]  # fixtures


def send(door: Door, folder: Path, run: str, token: str = "") -> FilesSent:
    given = {
        env.MLFLOW_TRACKING_URI: door.uri,
        env.MLFLOW_TOKEN: token or door.token,
        env.MLFLOW_EXPERIMENT_NAME: "toy",
        env.MLFLOW_CONTEXT: json.dumps({labels.RUN: run}),
    }
    config = SlotConfig("toy", "", "train:run", str(folder / "run"), "", checkpoints=str(folder / "saved"), env=given)
    return kept_files.send(config, SendFiles(3, 7, 900.0))


def left(folder: Path, **files: bytes) -> None:
    """Trial 3 leaves files, and one whose name is odd."""
    place = folder / "saved" / "toy" / "trial-3" / "files" / "out"
    place.mkdir(parents=True)
    for name, data in {**files, "a b+50%.txt": b"odd"}.items():
        (place / name).write_bytes(data)


def there(door: Door, run: str) -> dict[str, int]:
    listed: Any = door.done("artifacts/list", {"run_id": run, "path": "kept_files/out"}, get=True)
    return {Path(file["path"]).name: int(file["file_size"]) for file in listed.get("files", ())}


def test_what_is_too_large_for_the_door_is_told_and_the_rest_is_there(own: Door, tmp_path: Path) -> None:
    run = own.new_run(**{labels.NUMBER: "7", labels.RUN: own.run})["run_id"]
    left(tmp_path, large=b"x" * (MOST + 1), small=b"small")
    answer = send(own, tmp_path, own.run)
    assert answer.lacks.startswith("out/large (413") and not answer.again, answer
    assert there(own, run) == {"a b+50%.txt": 3, "small": 5}


def test_another_teams_record_gets_nothing(own: Door, other: Door, tmp_path: Path) -> None:
    run = other.new_run(**{labels.NUMBER: "7", labels.RUN: other.run})["run_id"]
    left(tmp_path)
    assert send(own, tmp_path, other.run).lacks
    assert there(other, run) == {}


def test_a_token_that_the_door_refuses_is_told(own: Door, tmp_path: Path) -> None:
    run = own.new_run(**{labels.NUMBER: "7", labels.RUN: own.run})["run_id"]
    left(tmp_path)
    answer = send(own, tmp_path, own.run, token="another")
    assert answer.lacks and there(own, run) == {}
