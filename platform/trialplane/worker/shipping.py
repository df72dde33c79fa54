"""Files sent between a slot and a controller that share no folder, as in the pods of a cluster.

The job's code arrives as an archive. A trial's log is sent with its events as it grows, within bounds, and at its end the
MLflow store that it logged into if it could not reach MLflow. Files that have been sent are removed here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import tarfile
from pathlib import Path

from trialplane import errors
from trialplane.plan import pack
from trialplane.training import building
from trialplane.training.steps import folders
from trialplane.wire import paths
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import CheckpointSummary, SlotConfig, TrialRequest

CHUNK = 256 << 10  # bytes of a log in one event
HEAD = 768 << 10  # bytes of a log that are sent while the trial runs; of the rest only the end, after the trial's end
TAIL = 255 << 10
MAX_STORE = 256 << 20  # bytes of artifacts that are sent through Ray's object store; the controller's is in its memory


def at_home(config: SlotConfig) -> SlotConfig:
    """The config with its folders below this machine's TRIALPLANE_HOME."""
    home = paths.home()
    run = RunPaths.of(home, config.run)
    return dataclasses.replace(config, root=str(run.root), code=str(run.code), cache=str(paths.cache(home)))


def unpack_code(archive: Path, code: Path, sha256: str = "") -> None:
    """Unpack the job's code, unless a former slot of this pod has done so.

    Args:
        archive: the first part; further parts are beside it.
        code: the folder.
        sha256: that the submission names; "" where it is not known.

    Raises:
        SlotError: the archive is missing, damaged or another one, or the disk is full.
    """
    mark = code.with_name(f".{code.name}.sha256")
    try:
        data = pack.read(archive)
        digest = hashlib.sha256(data).hexdigest()
        with building.lock(mark):  # another slot of this machine may be unpacking
            if code.exists() and mark.exists() and mark.read_text() == digest:
                return
            shutil.rmtree(code, ignore_errors=True)
            pack.unpack(data, code, sha256)
            mark.write_text(digest)
    except (OSError, errors.InputError) as error:
        raise errors.SlotError(f"the job's code in {archive} cannot be unpacked into {code}: {error}") from error


class Log:
    """The new parts of one trial's log, in bounded pieces.

    Of a log longer than `HEAD` only the last part of the rest is sent, after the trial's end: that is where a traceback is.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0

    def grown(self, *, ended: bool = False) -> bytes:
        """The next piece, or b"". After the trial's end, parts beyond the limit are replaced by a mark."""
        try:
            size = self._file.stat().st_size
        except FileNotFoundError:
            return b""
        mark = b""
        if not ended:
            size = min(size, HEAD)
        elif self._offset >= HEAD and size - self._offset > TAIL:
            left_out = size - self._offset - TAIL
            mark = f"\n[trialplane: {left_out:,} bytes of this log are left out here]\n".encode()
            self._offset += left_out
        elif self._offset < HEAD < size:
            size = HEAD  # the mark comes with the next piece
        count = min(size - self._offset, CHUNK)
        if count <= 0:
            return mark
        with self._file.open("rb") as file:
            file.seek(self._offset)
            data = file.read(count)
        self._offset += len(data)
        return mark + data

    @property
    def is_sent(self) -> bool:
        """Whether the whole log has been sent, once it no longer grows."""
        return not self._file.exists() or self._offset >= self._file.stat().st_size

    def remove(self) -> None:
        """Remove the file, which has been sent."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)


def pack_store(store: Path, file: Path) -> str | None:
    """Pack a trial's own MLflow store and remove it; None when the trial logged nothing there.

    Artifacts that are too large are left out: then the archive lacks their folder.
    """
    if not store.exists():
        return None
    artifacts = store.with_suffix(".artifacts")
    size = sum(each.stat().st_size for each in artifacts.rglob("*") if each.is_file()) if artifacts.is_dir() else 0
    with tarfile.open(file, "w") as archive:
        for each in sorted(store.parent.glob(f"{store.stem}.*")):
            if each != artifacts or size <= MAX_STORE:
                archive.add(each, each.name)
    shutil.rmtree(artifacts, ignore_errors=True)
    for each in store.parent.glob(f"{store.stem}.*"):
        each.unlink(missing_ok=True)
    return str(file)


def checkpoint_summary(config: SlotConfig, request: TrialRequest) -> CheckpointSummary | None:
    """Return the summary of the checkpoints of a study's trial; None without any, or if they cannot be read."""
    if config.role != "trial":
        return None
    root = config.checkpoints or str(RunPaths(Path(config.root)).checkpoints)
    with contextlib.suppress(errors.CheckpointError):
        return folders.summary(paths.trial_checkpoints(root, config.run, request.trial))
    return None


def has_saved(config: SlotConfig, request: TrialRequest) -> bool | None:
    """Whether a trial, in this attempt or an earlier one, has left a checkpoint, which the controller cannot see.

    None where the slot cannot see it either, in an object store, or need not look, as all share the folder.
    """
    folder = paths.local_folder(config.checkpoints) if config.checkpoints else None
    if folder is None:
        return None
    trial = request.trial if config.role == "trial" else 0  # the iterations of a collection share a folder
    with contextlib.suppress(OSError):
        return paths.is_saved(Path(paths.trial_checkpoints(str(folder), config.run, trial)))
    return None
