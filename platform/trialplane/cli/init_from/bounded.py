"""A process of the user's code with a time limit. Its descendants end with it, and its output is written to a file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trialplane import errors
from trialplane.training import process
from trialplane.wire import escapes
from trialplane.worker import sessions

_INTERVAL = 0.2  # seconds between measurements of the memory
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_TAIL = 64 << 10  # bytes at the end of the output that are searched for the cause of a failure
_MAX_CAUSE = 300  # characters
_NOT_STARTED = 127  # exit code that a shell has for a program that it cannot start
_ERROR = re.compile(r"[\w.]*(?:Error|Exception)(?::|$)")  # last line of a traceback
# That of a launcher, such as accelerate or torchrun, which follows that of the script.
_LAUNCHER_ERROR = re.compile(r"[\w.]*(?:CalledProcessError|ChildFailedError)\b")

_HYDRA_ADVICE = "Set the environment variable HYDRA_FULL_ERROR"  # after the cause


@dataclasses.dataclass(frozen=True)
class ProcessEnd:
    """The end of a process.

    Attributes:
        code: Exit code, negative for a signal; None after a timeout.
        seconds: Duration of the process.
        log: File with its output.
        peak_memory: Most bytes that it and its descendants were seen to use.
    """

    code: int | None
    seconds: float
    log: Path
    peak_memory: int = 0

    @property
    def cause(self) -> str:
        """The cause of a failure: an error with nested reasons at the end of the output, or else its last line `…Error: …`.

        Without such lines, it is the signal or the last line.
        """
        with self.log.open("rb") as output:
            output.seek(max(0, self.log.stat().st_size - _TAIL))
            text = escapes.strip_sequences(output.read(_TAIL).decode(errors="replace"))
        if reason := errors.nested_reason(text):
            return errors.shortened(reason, _MAX_CAUSE)
        stripped = (line.strip() for line in text.splitlines())
        lines = [line for line in stripped if line and not line.startswith(_HYDRA_ADVICE)]
        error_lines = [line for line in lines if _ERROR.match(line)]
        script_errors = [line for line in error_lines if not _LAUNCHER_ERROR.match(line)]
        if error_lines:
            return errors.shortened((script_errors or error_lines)[-1], _MAX_CAUSE)
        if self.code is not None and self.code < 0:
            return f"it was killed by {signal.Signals(-self.code).name}"
        return errors.shortened(lines[-1], _MAX_CAUSE) if lines else f"exit code {self.code}, and no output"

    def keep_log(self, name: str) -> str:
        """Copy the output to a file that stays, and return the clause of a message that names it; "" without output.

        Args:
            name: Part of the file's name.
        """
        if not self.log.stat().st_size:
            return ""
        descriptor, file = tempfile.mkstemp(prefix=f"trialplane-{name}-", suffix=".log")
        os.close(descriptor)
        shutil.copyfile(self.log, file)
        return f"its whole output is in {file}"


def run(command: Sequence[str], folder: Path, environ: Mapping[str, str], log: Path, timeout: float) -> ProcessEnd:
    """Run a command until it ends or its time is over, and then kill its descendants.

    Args:
        command: Program and arguments.
        folder: Working directory.
        environ: Variables in addition to those of this process.
        log: File for the output. It is not a pipe, which a descendant would hold open.
        timeout: Maximum duration, in seconds.
    """
    start_time = time.monotonic()
    peak_memory = 0  # bytes
    code: int | None = None
    with log.open("wb") as output, _kill_descendants():
        try:
            child = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:  # there is no such program, or it may not be executed
            output.write(f"{error.filename}: {error.strerror}\n".encode())
            return ProcessEnd(_NOT_STARTED, time.monotonic() - start_time, log)
        try:
            while code is None and (remaining := start_time + timeout - time.monotonic()) > 0:
                peak_memory = max(peak_memory, sessions.resident_memory(child.pid, limit=peak_memory))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = child.wait(min(_INTERVAL, remaining))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE)
            child.kill()
            child.wait()
    return ProcessEnd(code, time.monotonic() - start_time, log, peak_memory)


@contextlib.contextmanager
def _kill_descendants() -> Iterator[None]:
    """Kill all processes that were started in the context at its end, also daemons.

    For this, processes whose parent has ended become children of this process.
    """
    own_children = process.children()
    process.adopt_orphans()
    try:
        yield
    finally:
        while remaining := process.children() - own_children:  # also the children of those that were killed just now
            process.kill_children(remaining)
        process.adopt_orphans(False)
