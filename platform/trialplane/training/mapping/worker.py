"""Mapping in a fresh interpreter (`training/clean.py`), whose own workers can be forked within milliseconds.

It writes Arrow files, and then `complete.json`.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.policies import spawn
from trialplane.training import building

if TYPE_CHECKING:
    import datasets

COMPLETE = "complete.json"
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclasses.dataclass(frozen=True)
class Work:
    """A mapping of one dataset.

    Attributes:
        import_path: `sys.path` of the process that sends this. The function may come from a module of the job.
        function: Function for `Dataset.map`, pickled by dill.
        name: Name of the function, for errors.
        rows: Dataset to map.
        options: Options for `Dataset.map`.
        processes: Number of processes.
        folder: Folder of the cache.
        facts: What the cache depends on, for `complete.json`.
    """

    import_path: Sequence[str]
    function: bytes
    name: str
    rows: datasets.Dataset
    options: Mapping[str, Any]
    processes: int
    folder: str
    facts: Mapping[str, Any]


def work(message: Work, send: Callable[[dict[str, Any]], None]) -> None:
    """Map the rows and write the cache. `send` is not used, because a mapping sends no progress.

    Raises:
        InputError: The function failed.
        CacheError: The disk is full.
    """
    try:
        _map(message)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            reason = f"{message.folder} cannot be written: {error.strerror}; make room, or name another cache"
            raise errors.CacheError(reason) from error
        traceback.print_exc()
        reason = f"{type(error).__name__}: {errors.first_line(error)}"
        raise errors.InputError(f"mapping by {message.name} failed: {reason}; its traceback is above") from error


def _map(message: Work) -> None:
    """Map the rows into Arrow files, and write `complete.json` with their names."""
    import datasets
    import dill
    import multiprocess

    sys.path += [entry for entry in message.import_path if entry not in sys.path]  # `dill.loads` imports modules of the job
    datasets.disable_progress_bars()
    function = dill.loads(message.function)
    # If a library has started a thread, workers are spawned instead, which is slower.
    multiprocess.set_start_method("spawn" if spawn.reasons_not_to_fork() else "fork")
    folder = Path(message.folder)
    mapped_rows = message.rows.map(
        function,
        num_proc=message.processes if message.processes > 1 else None,
        cache_file_name=str(folder / "rows.arrow"),
        load_from_cache_file=True,  # uses the shards that a killed process has finished
        **message.options,
    )
    if not len(mapped_rows):
        raise ValueError("it returned no rows")
    files = [Path(file["filename"]).name for file in mapped_rows.cache_files]
    with building.open_new(folder / COMPLETE) as file:
        file.write(json.dumps({**message.facts, "rows_made": len(mapped_rows), "files": files}, indent=2).encode())
