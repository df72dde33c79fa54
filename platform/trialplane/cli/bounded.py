"""A process of the user's code, bounded in time: its descendants end with it, and its output is a file."""

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

_GRACE = 3.0  # seconds to end after SIGTERM
_TAIL = 64 << 10  # bytes at the end of the output that are searched for the cause of an end
_LONGEST = 300  # characters of the cause
_ERROR = re.compile(r"[\w.]*(?:Error|Exception)(?::|$)")  # the last line of a traceback


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of a process.

    Attributes:
        code: its exit code, negative for a signal; None after a timeout.
        seconds: its duration.
        log: file with its output.
    """

    code: int | None
    seconds: float
    log: Path

    @property
    def cause(self) -> str:
        """The cause of its failure: the last line `…Error: …` of its output, or the last line."""
        with self.log.open("rb") as output:
            output.seek(max(0, self.log.stat().st_size - _TAIL))
            text = escapes.strip_sequences(output.read(_TAIL).decode(errors="replace"))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if message := next((line for line in reversed(lines) if _ERROR.match(line)), ""):
            return errors.shortened(message, _LONGEST)
        if self.code is not None and self.code < 0:
            lines = [f"it was killed by {signal.Signals(-self.code).name}"]
        return errors.shortened(lines[-1], _LONGEST) if lines else f"exit code {self.code}, and no output"

    def keep(self, name: str) -> str:
        """Copy the output to a file that stays, and return a clause that names it; "" without output.

        Args:
            name: part of the file's name.
        """
        if not self.log.stat().st_size:
            return ""
        descriptor, file = tempfile.mkstemp(prefix=f"trialplane-{name}-", suffix=".log")
        os.close(descriptor)
        shutil.copyfile(self.log, file)
        return f"its whole output is in {file}"


def run(command: Sequence[str], folder: Path, environ: Mapping[str, str], log: Path, longest: float) -> Ended:
    """Run a command to its end, or for some seconds, and then end its descendants.

    Args:
        command: program and arguments.
        folder: in which it runs.
        environ: variables in addition to those of this process.
        log: file for its output; not a pipe, which a descendant would hold open.
        longest: seconds.
    """
    began = time.monotonic()
    with log.open("wb") as output, _adopting():
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = child.wait(longest)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE)
            child.kill()
            child.wait()
    return Ended(code, time.monotonic() - began, log)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Kill processes that were started meanwhile, daemons too: a process whose parent ends becomes this one's child."""
    before = process.children()
    process.adopt_orphans()
    try:
        yield
    finally:
        while remaining := process.children() - before:
            process.kill_children(remaining)
        process.adopt_orphans(False)
