"""Uploads files into MLflow runs: each is sent until MLflow has it, refuses it, or has failed to take it often enough.

Files follow independently of the events they came with: neither a refused file nor an artifact store that is away delays
anything else.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.controller.batch import Artifact, describe, is_refusal, write_log
from trialplane.controller.journal import Journal
from trialplane.policies import transport
from trialplane.wire import backoff, labels, logs, records

TRIES = 20  # consecutive failures after which all waiting files are given up: 8 minutes with these pauses
MAX_PAUSE = 30.0  # seconds between two attempts


class _Unreadable(Exception):
    """A file that cannot be converted, however often it is tried."""


class Artifacts:
    """Files to be uploaded to MLflow; a run is marked as recorded once it has its files.

    Args:
        client: of the MLflow that gets them.
        journal: records which are pending, for the next writer.
    """

    def __init__(self, client: Any, journal: Journal) -> None:
        self._client = client
        self._journal = journal
        self._waiting: dict[str, dict[Artifact, int]] = {}  # id of a run → its files, with the attempts at each
        self._last: set[str] = set()  # ids of runs to be marked as recorded
        self._failures = 0  # in a row
        self._due = 0.0
        self._left_out = 0
        self._why = ""
        for key, waits in journal.notes["artifact"].items():
            if waits:
                run_id, folder, file, kind = json.loads(key)
                self._waiting.setdefault(run_id, {})[Artifact(folder, file, kind)] = 0

    def add(self, run_id: str, files: Iterable[Artifact], *, is_last: bool) -> None:
        """Queues files for a run; with `is_last` the run is marked as recorded after them."""
        for file in files:
            waiting = self._waiting.setdefault(run_id, {})
            if file not in waiting:
                waiting[file] = 0
                self._note(run_id, file, waits=True)
        if is_last:
            self._waiting.setdefault(run_id, {})
            self._last.add(run_id)

    @property
    def left(self) -> int:
        """How many files and marks are pending."""
        return self._files + len(self._last)

    @property
    def trouble(self) -> str:
        """How many files MLflow lacks, and why; "" for none."""
        if self._failures and self._files:
            have = "has" if self._files == 1 else "have"
            return f"{errors.counted(self._files, 'file')} {have} not reached MLflow yet and will be retried: {self._why}"
        if self._left_out:
            return f"MLflow has not taken {errors.counted(self._left_out, 'file')}, named in controller.log: {self._why}"
        return ""

    @property
    def _files(self) -> int:
        return sum(map(len, self._waiting.values()))

    def send(self) -> bool:
        """Sends the next file, or marks the next run; False when there is none, or it is too soon after a failure.

        Raises:
            Exception: MLflow is away.
        """
        if not self._waiting or time.monotonic() < self._due:
            return False
        run_id, files = next(iter(self._waiting.items()))
        if not files:
            self._mark(run_id)
            return True
        artifact = next(iter(files))
        try:
            self._upload(run_id, artifact)
        except Exception as error:  # noqa: BLE001 - any artifact store's: what is not a refusal is retried
            if is_refusal(error) or isinstance(error, (_Unreadable, FileNotFoundError, PermissionError)):
                self._give_up(run_id, artifact, error)
            else:
                self._client.get_run(run_id)  # raises when MLflow itself is away, which does not count as an attempt
                self._fail(run_id, artifact, error)
                return True
        else:
            self._remove(run_id, artifact)
        self._failures = 0
        return True

    def _mark(self, run_id: str) -> None:
        try:
            self._client.set_tag(run_id, labels.RECORDED, "true")
        except Exception as error:
            if not is_refusal(error):
                raise
            write_log(f"MLflow refuses what belongs to its run {run_id}, so it is left out: {error}")
        self._last.discard(run_id)
        del self._waiting[run_id]

    def _fail(self, run_id: str, artifact: Artifact, error: Exception) -> None:
        """Counts a failed attempt, gives up files that reached the limit, and moves the file behind the others."""
        self._failures += 1
        self._why = describe(error)[:300]
        self._due = time.monotonic() + backoff.pause(self._failures, MAX_PAUSE)
        self._waiting[run_id][artifact] += 1
        if self._failures >= TRIES:  # the artifact store is away
            for other, files in list(self._waiting.items()):
                for file in list(files):
                    self._give_up(other, file, error)
        elif self._waiting[run_id][artifact] >= TRIES:  # it is this file
            self._give_up(run_id, artifact, error)
        else:
            files = self._waiting.pop(run_id)
            files[artifact] = files.pop(artifact)
            self._waiting[run_id] = files

    def _give_up(self, run_id: str, artifact: Artifact, error: Exception) -> None:
        write_log(f"{artifact.file} cannot be uploaded to MLflow's run {run_id}, so it stays where it is: {describe(error)}")
        self._left_out += 1
        self._why = describe(error)[:300]
        self._remove(run_id, artifact)

    def _remove(self, run_id: str, artifact: Artifact) -> None:
        del self._waiting[run_id][artifact]
        if not self._waiting[run_id] and run_id not in self._last:
            del self._waiting[run_id]
        self._note(run_id, artifact, waits=False)

    def _note(self, run_id: str, artifact: Artifact, *, waits: bool) -> None:
        self._journal.note("artifact", json.dumps([run_id, artifact.folder, artifact.file, artifact.kind]), waits)

    def _upload(self, run_id: str, artifact: Artifact) -> None:
        file = Path(artifact.file)
        if artifact.kind == "arrays":
            if file.exists():  # else a writer was killed after it had sent it
                for made in _converted(file):
                    self._client.log_artifact(run_id, str(made), artifact.folder)
                    made.unlink()
                file.unlink()
        elif artifact.kind == "log" and file.stat().st_size > logs.KEPT:
            self._send_end(run_id, artifact.folder, file)
        else:
            self._client.log_artifact(run_id, str(file), artifact.folder or None)

    def _send_end(self, run_id: str, folder: str, file: Path) -> None:
        """Sends the end of a log that is too long."""
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            end = Path(scratch) / file.name
            with file.open("rb") as whole:
                left_out = whole.seek(-logs.KEPT, os.SEEK_END)
                end.write_bytes(logs.notice(left_out) + whole.read(logs.KEPT))
            self._client.log_artifact(run_id, str(end), folder)


def _converted(packed: Path) -> list[Path]:
    """The packed arrays as files in common formats."""
    try:
        return convert(packed)
    except OSError:
        raise
    except Exception as error:
        raise _Unreadable(describe(error)) from error


def convert(packed: Path) -> list[Path]:
    """Writes `result.npz` and `result.json` beside the packed file, each only if it has contents.

    Values that contain an array are in the archive, one array per leaf, named by its path in the tree; all others are in the
    JSON file, by name. `numpy.savez` takes names as arguments and so cannot write an array named `file`.
    """
    import numpy as np

    tree = transport.unpack(np.fromfile(packed, dtype=np.uint8))
    leaves = {name: dict(_leaves(value, name)) for name, value in tree.items()}
    arrays = [name for name, below in leaves.items() if any(isinstance(leaf, np.ndarray) for leaf in below.values())]
    made = []
    if arrays:
        made.append(packed.with_name("result.npz"))
        with zipfile.ZipFile(made[-1], "w", zipfile.ZIP_DEFLATED) as parts:
            for name, leaf in ((name, leaf) for top in arrays for name, leaf in leaves[top].items()):
                array = np.asarray(leaf)
                if array.dtype.hasobject:  # None, or a whole number of more than 64 bits: `numpy.load` would require pickle
                    array = np.asarray(str(leaf))
                with parts.open(f"{name}.npy", "w", force_zip64=True) as part:
                    np.lib.format.write_array(part, array, allow_pickle=False)
    plain = {name: records.to_dict(value) for name, value in tree.items() if name not in arrays}
    if plain:
        made.append(packed.with_name("result.json"))
        made[-1].write_text(json.dumps(plain, indent=1))
    return made


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}.{index}")
    else:
        yield path, node
