"""Uploads files into MLflow runs: each is sent until MLflow has it, refuses it, or has failed to take it often enough.

Files follow independently of the events they came with: neither a refused file nor an artifact store that is away delays
anything else.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.exporter.batch import Artifact, describe, is_refusal, write_log
from trialplane.exporter.projection import Ends
from trialplane.policies import transport
from trialplane.wire import backoff, logs, records

TRIES = 20  # consecutive failures after which all waiting files are given up: 8 minutes with these pauses
MAX_PAUSE = 30.0  # seconds between two attempts


@dataclasses.dataclass
class _Waiting:
    """A file that is to be uploaded, and how often it has failed."""

    run_id: str
    artifact: Artifact
    tries: int = 0


class _Unreadable(Exception):
    """A file that cannot be converted, however often it is tried."""


class Files:
    """Files to be uploaded to MLflow, and marks between them, which tell how far the uploads are.

    Args:
        client: of the MLflow that gets them.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._waiting: dict[int, _Waiting] = {}  # in the order in which they were added
        self._order: collections.deque[int] = collections.deque()  # the same in the order in which they are tried
        self._marks: collections.deque[tuple[int, Ends]] = collections.deque()
        self._count = 0
        self._last_done: Ends | None = None
        self._failures = 0  # in a row
        self._due = 0.0
        self._left_out = 0
        self._reason = ""

    def add(self, files: Iterable[tuple[str, Artifact]]) -> None:
        """Queue files, each with the id of its run."""
        for run_id, artifact in files:
            self._waiting[self._count] = _Waiting(run_id, artifact)
            self._order.append(self._count)
            self._count += 1

    def mark(self, ends: Ends) -> None:
        """Set a mark behind all files that were added so far: those of these ends."""
        self._marks.append((self._count, ends))

    @property
    def done(self) -> Ends | None:
        """The last mark before which all files are uploaded or given up."""
        first_waiting = next(iter(self._waiting), self._count)
        while self._marks and self._marks[0][0] <= first_waiting:
            self._last_done = self._marks.popleft()[1]
        return self._last_done

    @property
    def pending(self) -> int:
        """The number of pending files."""
        return len(self._waiting)

    @property
    def trouble(self) -> str:
        """The number of files that MLflow lacks, and the reason; "" for none."""
        if self._failures and self.pending:
            have = "has" if self.pending == 1 else "have"
            return (
                f"{errors.counted(self.pending, 'file')} {have} not reached MLflow yet and will be retried: {self._reason}"
            )
        if self._left_out:
            return f"MLflow has not taken {errors.counted(self._left_out, 'file')}, named in controller.log: {self._reason}"
        return ""

    def send(self) -> bool:
        """Send the next file; False when there is none, or it is too soon after a failure.

        Raises:
            Exception: MLflow is away.
        """
        if not self._order or time.monotonic() < self._due:
            return False
        number = self._order[0]
        waiting = self._waiting[number]
        try:
            self._upload(waiting.run_id, waiting.artifact)
        except Exception as error:  # noqa: BLE001 - any artifact store's: what is not a refusal is retried
            if is_refusal(error) or isinstance(error, (_Unreadable, FileNotFoundError, PermissionError)):
                self._give_up(number, error)
            else:
                self.client.get_run(waiting.run_id)  # raises when MLflow itself is away, which does not count as an attempt
                self._fail(number, error)
                return True
        else:
            self._remove(number)
        self._failures = 0
        return True

    def _fail(self, number: int, error: Exception) -> None:
        """Count a failed attempt, give up files that reached the limit, and move the file behind the others."""
        self._failures += 1
        self._reason = describe(error)[:300]
        self._due = time.monotonic() + backoff.pause(self._failures, MAX_PAUSE)
        self._waiting[number].tries += 1
        if self._failures >= TRIES:  # the artifact store is away
            for waiting_number in list(self._waiting):
                self._give_up(waiting_number, error)
        elif self._waiting[number].tries >= TRIES:  # it is this file
            self._give_up(number, error)
        else:
            self._order.rotate(-1)

    def _give_up(self, number: int, error: Exception) -> None:
        waiting = self._waiting[number]
        target = f"MLflow's run {waiting.run_id}"
        write_log(f"{waiting.artifact.file} cannot be uploaded to {target}, so it stays where it is: {describe(error)}")
        self._left_out += 1
        self._reason = describe(error)[:300]
        self._remove(number)

    def _remove(self, number: int) -> None:
        del self._waiting[number]
        self._order.remove(number)

    def _upload(self, run_id: str, artifact: Artifact) -> None:
        file = Path(artifact.file)
        if artifact.kind == "arrays":
            if file.exists():  # else a writer was killed after it had sent it
                for converted in _converted(file):
                    self.client.log_artifact(run_id, str(converted), artifact.folder)
                    converted.unlink()
                file.unlink()
        elif artifact.kind == "log" and file.stat().st_size > logs.ARTIFACT_BYTES:
            self._send_end(run_id, artifact.folder, file)
        else:
            self.client.log_artifact(run_id, str(file), artifact.folder or None)

    def _send_end(self, run_id: str, folder: str, file: Path) -> None:
        """Send the end of a log that is too long."""
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            end = Path(scratch) / file.name
            with file.open("rb") as stream:
                left_out = stream.seek(-logs.ARTIFACT_BYTES, os.SEEK_END)
                end.write_bytes(logs.notice(left_out) + stream.read(logs.ARTIFACT_BYTES))
            self.client.log_artifact(run_id, str(end), folder)


def _converted(packed: Path) -> list[Path]:
    """The packed arrays as files in common formats."""
    try:
        return convert(packed)
    except OSError:
        raise
    except Exception as error:
        raise _Unreadable(describe(error)) from error


def convert(packed: Path) -> list[Path]:
    """Write `result.npz` and `result.json` beside the packed file, each only if it has contents.

    Values that contain an array are in the archive, one array per leaf, named by its path in the tree; all others are in the
    JSON file, by name. `numpy.savez` takes names as arguments and so cannot write an array named `file`.
    """
    import numpy as np

    tree = transport.unpack(np.fromfile(packed, dtype=np.uint8))
    leaves = {name: dict(_leaves(value, name)) for name, value in tree.items()}
    arrays = [
        name
        for name, leaves_of_value in leaves.items()
        if any(isinstance(leaf, np.ndarray) for leaf in leaves_of_value.values())
    ]
    written = []
    if arrays:
        written.append(packed.with_name("result.npz"))
        with zipfile.ZipFile(written[-1], "w", zipfile.ZIP_DEFLATED) as parts:
            for name, leaf in ((name, leaf) for top in arrays for name, leaf in leaves[top].items()):
                array = np.asarray(leaf)
                if array.dtype.hasobject:  # None, or a whole number of more than 64 bits: `numpy.load` would require pickle
                    array = np.asarray(str(leaf))
                with parts.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
    plain = {name: records.to_dict(value) for name, value in tree.items() if name not in arrays}
    if plain:
        written.append(packed.with_name("result.json"))
        written[-1].write_text(json.dumps(plain, indent=1))
    return written


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}.{index}")
    else:
        yield path, node
