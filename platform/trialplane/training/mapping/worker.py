"""Mapping in a fresh interpreter (`training/clean.py`), whose own workers can be forked within milliseconds.

It writes Arrow files, and then `complete.json`.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.policies import spawn
from trialplane.training import building
from trialplane.training.mapping import dataset

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def work(message: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
    """Map the rows and write the cache. `send` is not used, because a mapping sends no progress.

    Args:
        message: Fields of `work` in `mapping.dataset.mapped`.
        send: Function that sends a message to the process that started this one.

    Raises:
        InputError: The function failed.
        CacheError: The disk is full.
    """
    try:
        _map(message)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            reason = f"{message['folder']} cannot be written: {error.strerror}; make room, or name another cache"
            raise errors.CacheError(reason) from error
        traceback.print_exc()
        reason = f"{type(error).__name__}: {errors.first_line(error)}"
        raise errors.InputError(f"mapping by {message['name']} failed: {reason}; its traceback is above") from error


def _map(message: dict[str, Any]) -> None:
    """Map the rows into Arrow files, and write `complete.json` with their names."""
    import datasets
    import dill
    import multiprocess

    # The function may come from a module of the job, which is then imported.
    sys.path[:] = [*sys.path, *(entry for entry in message["path"] if entry not in sys.path)]
    datasets.disable_progress_bars()
    function = dill.loads(message["function"])
    # If a library has started a thread, workers are spawned instead, which is slower.
    multiprocess.set_start_method("spawn" if spawn.reasons_not_to_fork() else "fork")
    folder, processes = Path(message["folder"]), message["processes"]
    mapped_rows = message["rows"].map(
        function,
        num_proc=processes if processes > 1 else None,
        cache_file_name=str(folder / "rows.arrow"),
        load_from_cache_file=True,  # uses the shards that a killed process has finished
        **message["options"],
    )
    if not len(mapped_rows):
        raise ValueError("it returned no rows")
    files = [Path(file["filename"]).name for file in mapped_rows.cache_files]
    with building.open_new(folder / dataset.COMPLETE) as file:
        file.write(json.dumps({**message["facts"], "rows_made": len(mapped_rows), "files": files}, indent=2).encode())
