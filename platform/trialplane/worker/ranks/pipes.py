"""The lines of ranks, which pass through their supervisor without ever holding it up."""

from __future__ import annotations

import contextlib
import os

MAX_LINE = 8 << 10  # bytes; a longer one, or a progress bar's, is written in pieces
_CHUNK = 64 << 10  # all that a pipe holds, unless somebody makes it larger


class Lines:
    """A rank's output on its way to the trial's log, each line with the rank's number before it.

    The pipe is the kernel's: what a rank wrote is there also when the rank was killed in the next moment.

    Args:
        source: the pipe's end; closed by `close`.
        prefix: of each line.
        log: descriptor of the log.
    """

    def __init__(self, source: int, prefix: str, log: int) -> None:
        os.set_blocking(source, False)
        self.source = source
        self._prefix = prefix.encode()
        self._log = log
        self._rest = b""

    def pump(self) -> bool:
        """Writes what is there now, not what comes meanwhile, which may never end; False once the other end is closed."""
        try:
            data = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        self._write(lines)
        return bool(data)

    def close(self) -> None:
        """Writes the rest, whole line or not; of what somebody goes on writing, as much as a pipe holds."""
        self.pump()
        if self._rest:
            self._write([self._rest])
            self._rest = b""
        os.close(self.source)

    def _write(self, lines: list[bytes]) -> None:
        with contextlib.suppress(OSError):  # a full disk ends no training
            write_all(self._log, b"".join(b"%s%s\n" % (self._prefix, line) for line in lines))


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of it."""
    while data:
        data = data[os.write(descriptor, data) :]
