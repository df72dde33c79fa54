"""The process that maps: `python -m trialplane.training.mapping.worker PARENT`, started by `dataset.py`.

A fresh interpreter, which has imported neither torch nor the job, so its own workers can be forked, within
milliseconds. Reads its work (pickled) from standard input; writes Arrow files and, after all of them, `complete.json`;
writes errors to standard output, as JSON. Ends with the process that started it, as do its workers.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.policies import spawn
from trialplane.training import building, process
from trialplane.training.mapping import dataset

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def main() -> int:
    """Map the rows; return the exit code."""
    process.die_with_parent(int(sys.argv[1]))
    os.register_at_fork(after_in_child=process.end_with_parent)
    # The output of a function must not be read as an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    message = pickle.loads(sys.stdin.buffer.read())
    try:
        _map(message)
    except Exception as error:  # noqa: BLE001  the function may raise anything
        if isinstance(error, OSError) and error.errno in _FULL:
            answer = {"kind": "disk", "message": error.strerror}
        else:
            traceback.print_exc()
            answer = {"kind": "function", "message": f"{type(error).__name__}: {errors.first_line(error)}"}
        answers.write(json.dumps(answer))
        answers.close()
        return 1
    return 0


def _map(message: dict[str, Any]) -> None:
    import datasets
    import dill
    import multiprocess

    sys.path[:] = [*sys.path, *(entry for entry in message["path"] if entry not in sys.path)]
    datasets.disable_progress_bars()
    function = dill.loads(message["function"])
    # No thread runs here; should a library start one, workers are spawned, which is slower.
    multiprocess.set_start_method("spawn" if spawn.reasons_not_to_fork() else "fork")
    folder, processes = Path(message["folder"]), message["processes"]
    mapped_rows = message["rows"].map(
        function,
        num_proc=processes if processes > 1 else None,
        cache_file_name=str(folder / "rows.arrow"),
        load_from_cache_file=True,  # shards that a killed process has finished
        **message["options"],
    )
    if not len(mapped_rows):
        raise ValueError("it returned no rows")
    files = [Path(file["filename"]).name for file in mapped_rows.cache_files]
    with building.whole(folder / dataset.COMPLETE) as file:
        file.write(json.dumps({**message["facts"], "rows_made": len(mapped_rows), "files": files}, indent=2).encode())


if __name__ == "__main__":
    sys.exit(main())
