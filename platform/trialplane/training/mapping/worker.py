"""The process that maps: `python -m trialplane.training.mapping.worker PARENT`, started by `dataset.py`.

A fresh interpreter, which has imported neither torch nor the job, so that its own workers may be forked: they are there in
milliseconds. Reads its work (pickled) from standard input; writes Arrow files and, when all are there, `complete.json`; says
on standard output, as JSON, what went wrong. Ends with the process that started it, and its workers with it.
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
    """Maps; gives the exit code."""
    process.die_with_parent(int(sys.argv[1]))
    os.register_at_fork(after_in_child=process.end_with_parent)
    # What a function prints must not be taken for an answer.
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
    # Nothing here has started a thread; should a library come to do so, its price is the slower start.
    multiprocess.set_start_method("spawn" if spawn.reasons_not_to_fork() else "fork")
    folder, processes = Path(message["folder"]), message["processes"]
    made = message["rows"].map(
        function,
        num_proc=processes if processes > 1 else None,
        cache_file_name=str(folder / "rows.arrow"),
        load_from_cache_file=True,  # shards that a killed process has finished
        **message["options"],
    )
    if not len(made):
        raise ValueError("it made no rows")
    files = [Path(file["filename"]).name for file in made.cache_files]
    with building.whole(folder / dataset.COMPLETE) as file:
        file.write(json.dumps({**message["facts"], "rows_made": len(made), "files": files}, indent=2).encode())


if __name__ == "__main__":
    sys.exit(main())
