"""The process that works on a run, as recorded in the run's lock, by which other processes find it.

A pid means something on one boot of one machine, and inside of one container. Beside it the lock therefore names the boot
and the pid namespace, and when the process started, as a pid is given away again. Home may be shared by machines (NFS) and
by containers. Standard library only.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trialplane.wire import records


@dataclasses.dataclass(frozen=True)
class Holder:
    """A controller, as far as its lock names it.

    Attributes:
        pid: its process, 0 when unknown.
        host: the machine's name, or the container's; for messages.
        boot: id of the machine's boot.
        namespace: in which `pid` is a number: a container's, or the machine's.
        ticks: when the process started, in clock ticks since the boot.
    """

    pid: int = 0
    host: str = ""
    boot: str = ""
    namespace: str = ""
    ticks: int = 0

    @classmethod
    def of(cls, pid: int) -> Holder:
        """A process of this machine and container."""
        return cls(pid, socket.gethostname(), _boot(), _namespace(), _started(pid) or 0)

    @classmethod
    def me(cls) -> Holder:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def read(cls, text: str | bytes) -> Holder:
        """The holder in a lock or in the facts of a controller; an unknown one when they are empty or damaged."""
        try:
            holder = records.from_json(cls, text)
        except ValueError:
            return cls()
        return holder if holder.pid and holder.boot and not records.misfit(holder) else cls()

    @property
    def is_here(self) -> bool:
        """Whether its pid means a process that this one can see."""
        return bool(self.pid) and (self.boot, self.namespace) == (_boot(), _namespace())

    @property
    def is_alive(self) -> bool:
        """Whether the process runs, for one that `is_here`; another process with its pid does not count."""
        return self.is_here and self.ticks == _started(self.pid)

    @property
    def where(self) -> str:
        """The process in words, for messages: `pid 4711 on node7`."""
        return f"pid {self.pid} on {self.host}" if self.pid else "a process that its lock does not name"

    def facts(self, **other_facts: Any) -> Mapping[str, Any]:
        """The holder and other facts as plain JSON values, for `read`."""
        return {**records.to_dict(self), **other_facts}


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # some sandboxes hide it
        return socket.gethostname()


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> int | None:
    """Return the start of a process of this namespace, in clock ticks; None for one that has ended, also as a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name in brackets may hold anything
    return None if fields[0] in "ZX" else int(fields[19])
