"""Work in a fresh interpreter that has imported neither torch nor the job: without threads and CUDA it may fork.

`run` starts `python -m trialplane.training.clean MODULE PARENT` and sends it a pickled message. The process calls the
module's `work(message, send)`, and writes the answers of `send`, or an error of the platform, to standard output as lines of
JSON. It ends with the process that started it, and so do its own children.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trialplane
from trialplane import errors
from trialplane.policies import pickling
from trialplane.training import process

# Variables that limit each process to one thread: a process with several threads must not fork.
_ENV = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# Variables that are removed, because they would make the process a rank of the training.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
MEMORY_HINT = (
    "the system sends SIGKILL mostly when memory is short: run it again, with fewer processes; complete files are kept"
)


def run(module: str, message: Any, name: str, on_answer: Callable[[dict[str, Any]], object] = lambda answer: None) -> None:
    """Run the function `work` of a module in a fresh interpreter.

    Args:
        module: Name of the module.
        message: First argument of the function, to be pickled.
        name: Name of the process or of its work, for errors: "the mapping by f".
        on_answer: Function to call with each answer.

    Raises:
        TrialplaneError: The function raised this error.
        CacheError: The process was killed, or failed in another way.
    """
    environment = {variable: value for variable, value in os.environ.items() if variable not in _RANK_VARIABLES} | _ENV
    package_folder = str(Path(trialplane.__file__).parents[1])
    old_path = os.environ.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{package_folder}{os.pathsep}{old_path}" if old_path else package_folder
    # -P: without it, a file in the working folder could be imported instead of a library of the same name.
    command = [sys.executable, "-P", "-m", __name__, module, str(os.getpid())]
    pickled_message = pickling.dumps(message, name)
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        try:
            # If the process failed to start, the pipe is broken. Its exit code, below, reports that.
            with contextlib.suppress(BrokenPipeError), worker.stdin as stdin:
                stdin.write(pickled_message)
            for line in worker.stdout:
                answer = json.loads(line)
                if "failed" in answer:  # the name of an error class, from `main`
                    raise getattr(errors, answer["failed"])(answer["message"])
                on_answer(answer)
            code = worker.wait()
        finally:
            if worker.poll() is None:  # after an error in this block
                worker.kill()
    if code:
        how_ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise errors.CacheError(f"{name} (pid {worker.pid}) {how_ended}; its output is above; {MEMORY_HINT}")


def main(module: str, parent: str) -> int:
    """Receive a message, run the function `work` of a module, and return the exit code of this process.

    `parent` is the pid of the process that started this one.
    """
    process.die_with_parent(int(parent))
    os.register_at_fork(after_in_child=process.end_with_parent)  # the kernel's setting is not inherited by a fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    # Standard output becomes standard error, so that output of libraries is not read as an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        importlib.import_module(module).work(pickle.loads(sys.stdin.buffer.read()), send)
    except errors.TrialplaneError as error:
        send({"failed": type(error).__name__, "message": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
