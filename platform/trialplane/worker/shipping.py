"""Files sent between a slot and a controller that share no folder, as in the pods of a cluster.

The job's code arrives as an archive. A trial's log is sent with its events as it grows, within bounds. At the trial's end
its own MLflow store is sent, if it could not reach MLflow. Files that have been sent are removed on the slot's machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from trialplane import errors
from trialplane.plan import pack
from trialplane.training import building
from trialplane.wire import paths
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import SlotConfig

CHUNK = 256 << 10  # bytes of a log in one event
LIVE_BYTES = 768 << 10  # bytes of a log that are sent while the trial runs
END_BYTES = 255 << 10  # bytes at the end of a longer log that are sent after the trial's end
MAX_STORE = 256 << 20  # bytes of artifacts that are sent through Ray's object store, which is in the controller's memory


def localized_config(config: SlotConfig) -> SlotConfig:
    """Return the config with folders below this machine's TRIALPLANE_HOME."""
    home = paths.home()
    run = RunPaths.of(home, config.run)
    return dataclasses.replace(config, root=str(run.root), code=str(run.code), cache=str(paths.cache(home)))


def unpack_code(archive: Path, code: Path, sha256: str = "") -> None:
    """Unpack the job's code, unless another slot of this machine has unpacked the same code.

    Args:
        archive: First part of the archive; further parts are in the same folder.
        code: Folder for the code.
        sha256: Expected `Pack.sha256`, which is that of the tar in the archive; "" if it is unknown.

    Raises:
        SlotError: The archive is missing, damaged or of another digest, or the disk is full.
    """
    mark = code.with_name(f".{code.name}.sha256")
    try:
        data = pack.read(archive)
        archive_digest = hashlib.sha256(data).hexdigest()
        with building.lock(mark):  # another slot of this machine may be unpacking
            if code.exists() and mark.exists() and mark.read_text() == archive_digest:
                return
            shutil.rmtree(code, ignore_errors=True)
            pack.unpack(data, code, sha256)
            mark.write_text(archive_digest)
    except (OSError, errors.InputError) as error:
        raise errors.SlotError(f"the job's code in {archive} cannot be unpacked into {code}: {error}") from error


def add_links(code: Path, links: Mapping[str, str]) -> None:
    """Add links, by path in the folder of the job's code, to absolute paths, unless another slot has added them.

    Raises:
        SlotError: A link cannot be added.
    """
    for link, target in links.items():
        path = code / link
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_symlink():
                path.symlink_to(target)
        except OSError as error:
            if not path.is_symlink():  # otherwise another slot was first
                raise errors.SlotError(
                    f"links.{link}: {path} cannot be made a link to {target}: {error.strerror}"
                ) from error


class Log:
    """A reader of the new parts of one trial's log, in pieces of at most `CHUNK` bytes.

    While the trial runs, the first `LIVE_BYTES` of the log are sent. After its end the last `END_BYTES` follow, because that
    is where a traceback is. A mark stands for what is left out between them.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0

    def next_piece(self, *, ended: bool = False) -> bytes:
        """Return the next piece of the log; b"" if nothing is left to send now.

        Args:
            ended: Whether the trial has ended, so that the end of a long log is sent too.
        """
        try:
            size = self._file.stat().st_size
        except FileNotFoundError:
            return b""
        mark = b""
        sends_end = ended and self._offset >= LIVE_BYTES  # the first `LIVE_BYTES` are sent before the end
        left_out = size - self._offset - END_BYTES
        if sends_end and left_out > 0:
            mark = f"\n[trialplane: {left_out:,} bytes of this log are left out here]\n".encode()
            self._offset += left_out
        end_offset = size if sends_end else min(size, LIVE_BYTES)
        count = min(end_offset - self._offset, CHUNK)
        if count <= 0:
            return b""
        with self._file.open("rb") as file:
            file.seek(self._offset)
            piece = file.read(count)
        self._offset += len(piece)
        return mark + piece

    @property
    def is_sent(self) -> bool:
        """Whether the whole log has been sent, once it no longer grows."""
        return not self._file.exists() or self._offset >= self._file.stat().st_size

    def remove(self) -> None:
        """Remove the file, which has been sent."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)


def pack_store(store: Path, file: Path) -> str | None:
    """Pack a trial's own MLflow store and remove it; return the archive, or None if the trial has no store.

    The store is a database, perhaps with more files of the same stem and a folder of artifacts. Artifacts of more than
    `MAX_STORE` bytes together are left out, with their folder.
    """
    if not store.exists():
        return None
    artifacts = store.with_suffix(".artifacts")
    size = sum(path.stat().st_size for path in artifacts.rglob("*") if path.is_file())
    with tarfile.open(file, "w") as archive:
        for path in sorted(store.parent.glob(f"{store.stem}.*")):
            if path != artifacts or size <= MAX_STORE:
                archive.add(path, path.name)
    shutil.rmtree(artifacts, ignore_errors=True)
    for path in store.parent.glob(f"{store.stem}.*"):
        path.unlink(missing_ok=True)
    return str(file)
