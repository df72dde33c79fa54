"""`platform submit hpo … --watch-code`: one trial of a job, and another one whenever its folder changes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trialplane.cli import failure, output
from trialplane.errors import EXIT_INTERRUPTED, TrialplaneError

if TYPE_CHECKING:
    from trialplane.client.run import RunHandle

_PAUSE = 0.3  # seconds between two looks at the folder

Started = Callable[["RunHandle"], None]
Files = dict[Path, tuple[int, int]]  # path → time of the last change in nanoseconds, and size


def watch(folder: Path, smoke: Callable[[Started], int]) -> int:
    """Start a run now and after each change of a folder, until Ctrl-C; the run before is deleted when the next one starts.

    Args:
        folder: of the job.
        smoke: shows a run until it ends, and returns its exit code; calls its argument with the run when that has started.
    """
    last: list[RunHandle] = []

    def started(handle: RunHandle) -> None:
        for before in last:
            before.delete()
        last[:] = [handle]

    while True:
        state = files(folder)
        try:
            code = smoke(started)
        except TrialplaneError as error:  # of the code or the job, which the next change may mend
            code = failure.show(error)
        if code == EXIT_INTERRUPTED:
            return code
        output.note(f"waiting for a change in {folder}; Ctrl-C ends this")
        while files(folder) == state:
            time.sleep(_PAUSE)


def files(folder: Path) -> Files:
    """Return the files of a folder that may be code: hidden ones and caches are left out."""
    state: Files = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = Path(root, name)
            if not name.startswith("."):
                with contextlib.suppress(OSError):  # an editor is replacing it
                    facts = path.stat()
                    state[path] = facts.st_mtime_ns, facts.st_size
    return state
