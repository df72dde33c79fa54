"""Uploads files into MLflow runs.

The upload of a file is repeated until it succeeds, is refused, or has failed `TRIES` times. It is independent of the other
writes of the exporter: neither a refused file nor an artifact store that does not answer delays them.
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

TRIES = 20  # attempts for one file; after as many consecutive failures, which take 8 minutes, all files are given up
MAX_PAUSE = 30.0  # seconds between two attempts


@dataclasses.dataclass
class _Waiting:
    """A file that is to be uploaded, and the number of attempts that failed."""

    run_id: str
    artifact: Artifact
    tries: int = 0


class _UnreadableFile(Exception):
    """The file is damaged and cannot be converted."""


class Files:
    """Files to be uploaded to MLflow, with marks between them, which show how many are done.

    Args:
        client: Client of the MLflow that gets the files.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._waiting: dict[int, _Waiting] = {}  # number of a file → it, in the order in which files were added
        self._order: collections.deque[int] = collections.deque()  # their numbers in the order of the next attempts
        # Ends, each with the number of files that had been added when it was marked.
        self._marks: collections.deque[tuple[int, Ends]] = collections.deque()
        self._count = 0  # number of files added so far
        self._last_done: Ends | None = None
        self._failures = 0  # number of consecutive failures
        self._next_time = 0.0  # of an attempt, by the monotonic clock
        self._given_up = 0  # number of files
        self._reason = ""  # of the last failure

    def add(self, files: Iterable[tuple[str, Artifact]]) -> None:
        """Queue files, each with the id of its run."""
        for run_id, artifact in files:
            self._waiting[self._count] = _Waiting(run_id, artifact)
            self._order.append(self._count)
            self._count += 1

    def mark(self, ends: Ends) -> None:
        """Mark that all files of these ends have been added."""
        self._marks.append((self._count, ends))

    @property
    def done(self) -> Ends | None:
        """The last marked ends whose files are all uploaded or given up; None before the first."""
        first_waiting = next(iter(self._waiting), self._count)
        while self._marks and self._marks[0][0] <= first_waiting:
            self._last_done = self._marks.popleft()[1]
        return self._last_done

    @property
    def pending(self) -> int:
        """The number of files that are still to be uploaded."""
        return len(self._waiting)

    @property
    def trouble(self) -> str:
        """A message with the number of files that MLflow lacks, and the reason; "" if it lacks none."""
        if self._failures and self.pending:
            have = "has" if self.pending == 1 else "have"
            return (
                f"{errors.counted(self.pending, 'file')} {have} not reached MLflow yet and will be retried: {self._reason}"
            )
        if self._given_up:
            return f"MLflow has not taken {errors.counted(self._given_up, 'file')}, named in controller.log: {self._reason}"
        return ""

    def send(self) -> bool:
        """Try to upload the next file.

        Returns:
            False if there is no file, or if the pause after a failure is not over.

        Raises:
            Exception: MLflow does not answer.
        """
        if not self._order or time.monotonic() < self._next_time:
            return False
        number = self._order[0]
        waiting = self._waiting[number]
        try:
            self._upload(waiting.run_id, waiting.artifact)
        except Exception as error:  # noqa: BLE001 - artifact stores raise errors of any class
            if is_refusal(error) or isinstance(error, (_UnreadableFile, FileNotFoundError, PermissionError)):
                self._give_up(number, error)
            else:
                self.client.get_run(waiting.run_id)  # raises if MLflow does not answer, which does not count as an attempt
                self._record_failure(number, error)
                return True
        else:
            self._remove(number)
        self._failures = 0
        return True

    def _record_failure(self, number: int, error: Exception) -> None:
        """Count a failed attempt; give up files at the limit, otherwise move the file behind the others."""
        self._failures += 1
        self._reason = describe(error)[:300]
        self._next_time = time.monotonic() + backoff.pause(self._failures, MAX_PAUSE)
        self._waiting[number].tries += 1
        if self._failures >= TRIES:  # the artifact store does not answer
            for waiting_number in list(self._waiting):
                self._give_up(waiting_number, error)
        elif self._waiting[number].tries >= TRIES:  # only this file fails
            self._give_up(number, error)
        else:
            self._order.rotate(-1)

    def _give_up(self, number: int, error: Exception) -> None:
        """Remove a file that cannot be uploaded from those to be uploaded, and log that."""
        waiting = self._waiting[number]
        target = f"MLflow's run {waiting.run_id}"
        write_log(f"{waiting.artifact.file} cannot be uploaded to {target}, so it stays where it is: {describe(error)}")
        self._given_up += 1
        self._reason = describe(error)[:300]
        self._remove(number)

    def _remove(self, number: int) -> None:
        del self._waiting[number]
        self._order.remove(number)

    def _upload(self, run_id: str, artifact: Artifact) -> None:
        """Upload a file in the form of its kind."""
        file = Path(artifact.file)
        if artifact.kind == "arrays":
            if file.exists():  # otherwise an exporter has uploaded it, and was killed after that
                for converted in _convert(file):
                    self.client.log_artifact(run_id, str(converted), artifact.folder)
                    converted.unlink()
                file.unlink()
        elif artifact.kind == "log" and file.stat().st_size > logs.ARTIFACT_BYTES:
            self._send_end(run_id, artifact.folder, file)
        else:
            self.client.log_artifact(run_id, str(file), artifact.folder or None)

    def _send_end(self, run_id: str, folder: str, file: Path) -> None:
        """Upload only the end of a log that is too long."""
        with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
            end = Path(scratch) / file.name
            with file.open("rb") as stream:
                skipped = stream.seek(-logs.ARTIFACT_BYTES, os.SEEK_END)
                end.write_bytes(logs.notice(skipped) + stream.read(logs.ARTIFACT_BYTES))
            self.client.log_artifact(run_id, str(end), folder)


def _convert(packed: Path) -> list[Path]:
    """Convert packed arrays, see `convert`; raise _UnreadableFile if the file is damaged."""
    try:
        return convert(packed)
    except OSError:
        raise
    except Exception as error:
        raise _UnreadableFile(describe(error)) from error


def convert(packed: Path) -> list[Path]:
    """Convert packed arrays into `result.npz` and `result.json` beside the file; return the paths of the files written.

    Values that contain an array go into the archive, one array per leaf, named by its path in the tree. All others go into
    the JSON file, by name. A file without contents is not written. `numpy.savez` is not used: it takes names as arguments,
    and so cannot write an array named `file`.
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
                if array.dtype.hasobject:  # None or a large integer, which would be pickled
                    array = np.asarray(str(leaf))
                with parts.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
    plain = {name: records.to_dict(value) for name, value in tree.items() if name not in arrays}
    if plain:
        written.append(packed.with_name("result.json"))
        written[-1].write_text(json.dumps(plain, indent=1))
    return written


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each leaf of a tree of mappings and lists."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}.{index}")
    else:
        yield path, node
