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

_POLL = 0.3  # seconds between two reads of the folder

StartCallback = Callable[["RunHandle"], None]
Files = dict[Path, tuple[int, int]]  # path → time of the last change in nanoseconds, and size


def watch(folder: Path, run_trial: Callable[[StartCallback], int]) -> int:
    """Run a trial now and after each change of a folder, until Ctrl-C. When a run starts, the previous one is deleted.

    Args:
        folder: Folder of the job.
        run_trial: Function that starts a run, calls its argument with the run, waits for the end, and returns the exit code.

    Returns:
        The exit code.
    """
    last_run: RunHandle | None = None

    def replace_last_run(handle: RunHandle) -> None:
        """Delete the previous run of this watch, and remember the new one."""
        nonlocal last_run
        if last_run is not None:
            last_run.delete()
        last_run = handle

    while True:
        state = files(folder)
        try:
            code = run_trial(replace_last_run)
        except TrialplaneError as error:  # the next change of the code or the job may correct it
            code = failure.show(error)
        if code == EXIT_INTERRUPTED:
            return code
        output.note(f"waiting for a change in {folder}; Ctrl-C ends this")
        while files(folder) == state:
            time.sleep(_POLL)


def files(folder: Path) -> Files:
    """Return the state of the files in a folder that may be code. Hidden files and caches are left out."""
    state: Files = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = Path(root, name)
            if not name.startswith("."):
                with contextlib.suppress(OSError):  # an editor may be replacing the file
                    info = path.stat()
                    state[path] = info.st_mtime_ns, info.st_size
    return state
