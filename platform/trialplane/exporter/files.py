"""Uploads files into MLflow runs.

The upload of a file is repeated until it succeeds, is refused, or has failed `TRIES` times. Uploads do not delay the other
writes of the exporter, even if a file is refused or the artifact store does not answer.
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
from typing import Any, NamedTuple

from trialplane import errors
from trialplane.exporter.batch import Artifact, describe, is_refusal, write_log
from trialplane.exporter.projection import Ends
from trialplane.policies import transport
from trialplane.wire import backoff, logs, records

TRIES = 20  # limit for one file; after as many failures in a row, which takes 8 minutes, all files are given up
MAX_PAUSE = 30.0  # longest pause in seconds between two tries


@dataclasses.dataclass
class _Waiting:
    """A file that waits for its upload.

    Attributes:
        run_id: Id of the run into which it is uploaded.
        artifact: The file.
        tries: Number of tries that failed.
    """

    run_id: str
    artifact: Artifact
    tries: int = 0


class _Mark(NamedTuple):
    """A mark among the files that are added: it comes after all files of the attempts up to an end.

    Attributes:
        file_count: Number of files that had been added before it.
        ends: Ends of the attempts.
    """

    file_count: int
    ends: Ends


class _UnreadableFile(Exception):
    """The file is damaged and cannot be converted."""


class Files:
    """Files that wait for their upload to MLflow.

    A mark among the files stands for ends of attempts. They are uploaded once all files before the mark are.

    Args:
        client: Client of the MLflow that gets the files.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        # Files are numbered in the order in which they are added.
        self._waiting: dict[int, _Waiting] = {}  # by number
        self._order: collections.deque[int] = collections.deque()  # numbers of these files, in the order of their next tries
        self._marks: collections.deque[_Mark] = collections.deque()  # those after the mark of `_uploaded_ends`
        self._count = 0  # number of files added so far
        self._uploaded_ends: Ends | None = None
        self._failures = 0  # number of consecutive failures
        self._next_time = 0.0  # time of the next try, by the monotonic clock
        self._failure_reason = ""  # description of the last failure
        self._given_up = 0  # number of files that were given up
        self._refusal_reason = ""  # reason why the last of these was given up

    def add(self, files: Iterable[tuple[str, Artifact]]) -> None:
        """Queue files, each with the id of its run."""
        for run_id, artifact in files:
            self._waiting[self._count] = _Waiting(run_id, artifact)
            self._order.append(self._count)
            self._count += 1

    def mark(self, ends: Ends) -> None:
        """Mark that all files of the attempts up to these ends have been added."""
        self._marks.append(_Mark(self._count, ends))

    def uploaded_ends(self) -> Ends | None:
        """Return the ends of the last mark before which all files are uploaded or given up; None if there is none yet."""
        first_waiting = next(iter(self._waiting), self._count)  # all files with lower numbers are done
        while self._marks and self._marks[0].file_count <= first_waiting:
            self._uploaded_ends = self._marks.popleft().ends
        return self._uploaded_ends

    @property
    def pending(self) -> int:
        """The number of files that wait for their upload."""
        return len(self._waiting)

    @property
    def trouble(self) -> str:
        """A message with the number of files that MLflow lacks after a failure, and the reason; "" if there is none."""
        if self._failures and self.pending:
            have = "has" if self.pending == 1 else "have"
            return (
                f"{errors.counted(self.pending, 'file')} {have} not reached MLflow yet and will be retried: "
                f"{self._failure_reason}"
            )
        if self._given_up:
            count_text = errors.counted(self._given_up, "file")
            return f"MLflow has not taken {count_text}, named in controller.log: {self._refusal_reason}"
        return ""

    def send_until(self, deadline: float) -> bool:
        """Upload files one after the other until a time of the monotonic clock; at least one is tried, as by `send`.

        Returns:
            False if nothing was tried.
        """
        has_tried = False
        while self.send():
            has_tried = True
            if time.monotonic() >= deadline:
                break
        return has_tried

    def send(self) -> bool:
        """Try to upload the next file. A file that cannot be uploaded is given up or tried again later.

        Returns:
            False if nothing was tried: there is no file, or the pause after a failure is not over.

        Raises:
            Exception: MLflow does not answer. This does not count as a failure of the file.
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
                self.client.get_run(waiting.run_id)  # raises if not only the artifact store, but MLflow does not answer
                self._record_failure(number, error)
                return True
        else:
            self._remove(number)
        self._failures = 0  # the artifact store has answered, even if it refused the file
        return True

    def _record_failure(self, number: int, error: Exception) -> None:
        """Count a failed try to upload a file. At a limit, give up this file or all files; otherwise make it the last."""
        self._failures += 1
        self._failure_reason = describe(error)[:300]
        self._next_time = time.monotonic() + backoff.pause(self._failures, MAX_PAUSE)
        self._waiting[number].tries += 1
        if self._failures >= TRIES:  # all files fail: the artifact store does not answer
            for waiting_number in list(self._waiting):
                self._give_up(waiting_number, error)
        elif self._waiting[number].tries >= TRIES:  # only this file fails
            self._give_up(number, error)
        else:
            self._order.rotate(-1)

    def _give_up(self, number: int, error: Exception) -> None:
        """Give up a file that cannot be uploaded, and log that."""
        waiting = self._waiting[number]
        target = f"MLflow's run {waiting.run_id}"
        write_log(f"{waiting.artifact.file} cannot be uploaded to {target}, so it stays where it is: {describe(error)}")
        self._given_up += 1
        self._refusal_reason = describe(error)[:300]
        self._remove(number)

    def _remove(self, number: int) -> None:
        """Remove a file that was uploaded or given up."""
        del self._waiting[number]
        self._order.remove(number)

    def _upload(self, run_id: str, artifact: Artifact) -> None:
        """Upload a file: packed arrays converted, and of a long log only the end. Packed arrays are removed afterwards."""
        file = Path(artifact.file)
        if artifact.kind == "arrays":
            if file.exists():  # otherwise an earlier exporter has uploaded and removed it, and was killed then
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
    """Convert packed arrays as `convert` does.

    Raises:
        _UnreadableFile: The file is damaged.
    """
    try:
        return convert(packed)
    except OSError:  # of the disk; a later try may succeed
        raise
    except Exception as error:
        raise _UnreadableFile(describe(error)) from error


def convert(packed: Path) -> list[Path]:
    """Convert the packed result of a trial into `result.npz` and `result.json` beside the file.

    The result is a mapping. Values that contain an array go into `result.npz`, with one array per leaf, named by its path.
    All other values go into `result.json`. `numpy.savez` is not used, because it takes names as keyword arguments and so
    cannot write an array named `file`.

    Returns:
        Paths of the files that were written. A file that would be empty is not written.
    """
    import numpy as np

    tree = transport.unpack(np.fromfile(packed, dtype=np.uint8))
    leaves_with_arrays: dict[str, Any] = {}  # by path: all leaves of the values that contain an array
    other_values: dict[str, Any] = {}
    for name, value in tree.items():
        leaves = dict(_leaves(value, name))
        if any(isinstance(leaf, np.ndarray) for leaf in leaves.values()):
            leaves_with_arrays |= leaves
        else:
            other_values[name] = records.to_dict(value)
    written: list[Path] = []
    if leaves_with_arrays:
        written.append(packed.with_name("result.npz"))
        _write_arrays(leaves_with_arrays, written[-1])
    if other_values:
        written.append(packed.with_name("result.json"))
        written[-1].write_text(json.dumps(other_values, indent=1))
    return written


def _write_arrays(leaves: Mapping[str, Any], file: Path) -> None:
    """Write leaves into a file of NumPy, each as an array with the name of its path."""
    import numpy as np

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as members:
        for path, leaf in leaves.items():
            array = np.asarray(leaf)
            if array.dtype.hasobject:  # None or a very large integer, which NumPy could only pickle
                array = np.asarray(str(leaf))
            with members.open(f"{path}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each leaf of a tree of mappings and lists, whose own path is `path`."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}.{index}")
    else:
        yield path, node
