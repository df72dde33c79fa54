"""The process that holds the lock of a run. The lock contains this record of it, so that other processes can find it.

A pid identifies a process only within one boot of one machine and within one container, and the kernel reuses pids. So the
record also has the boot, the pid namespace and the start time of the process: several machines (by NFS) and containers may
share a home folder. Standard library only.
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
    """The holder of a run's lock, usually a controller.

    Attributes:
        pid: Process id. 0 if unknown.
        host: Name of the machine or the container, for messages.
        boot: Id of the machine's boot.
        namespace: Pid namespace of `pid`: that of a container or of the machine.
        ticks: Start time of the process, in clock ticks since the boot.
    """

    pid: int = 0
    host: str = ""
    boot: str = ""
    namespace: str = ""
    ticks: int = 0

    @classmethod
    def of(cls, pid: int) -> Holder:
        """Return the record of a process of this machine and container."""
        return cls(
            pid=pid,
            host=socket.gethostname(),
            boot=_boot_id(),
            namespace=_pid_namespace(),
            ticks=_start_ticks(pid) or 0,
        )

    @classmethod
    def of_this_process(cls) -> Holder:
        """Return the record of the calling process."""
        return cls.of(os.getpid())

    @classmethod
    def read(cls, text: str | bytes) -> Holder:
        """Return the holder in the text of a lock or of `controller.json`. If it is empty or damaged, the pid is 0."""
        unknown = cls()
        try:
            holder = records.from_json(cls, text)
        except ValueError:
            return unknown
        is_complete = holder.pid and holder.boot and not records.mistyped_field(holder)
        return holder if is_complete else unknown

    @property
    def is_visible(self) -> bool:
        """Whether the holder is a process of the machine and pid namespace of the caller, so that its pid is valid here."""
        return bool(self.pid) and (self.boot, self.namespace) == (_boot_id(), _pid_namespace())

    @property
    def is_alive(self) -> bool:
        """Whether the process runs. False if it is not visible, is a zombie, or if another process has its pid now."""
        return self.is_visible and self.ticks == _start_ticks(self.pid)

    @property
    def description(self) -> str:
        """The process in words, for messages: `pid 4711 on node7`."""
        return f"pid {self.pid} on {self.host}" if self.pid else "a process that its lock does not name"

    def facts(self, **other_facts: Any) -> Mapping[str, Any]:
        """Return the record and other facts as plain JSON values. `read` finds the record among them."""
        return {**records.to_dict(self), **other_facts}


def _boot_id() -> str:
    """Return the id of the machine's boot. Where a sandbox hides it, return the host name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _pid_namespace() -> str:
    """Return the id of this process's pid namespace. Where it cannot be read, return the host name."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return socket.gethostname()


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process of this pid namespace, in clock ticks since the boot.

    Returns:
        The start time, or None if the process does not exist or is a zombie.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # See proc(5): "4711 (my (odd) name) S 1 …". Field 2, the name, may contain spaces and parentheses, so begin after it.
    fields_from_3 = line[line.rindex(")") + 2 :].split()
    state, start_ticks = fields_from_3[0], fields_from_3[22 - 3]
    return None if state in "ZX" else int(start_ticks)  # Z: zombie, X: dead
