"""The controller process of a local run: starting it, telling whether it lives, ending it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from trialplane.errors import TargetError
from trialplane.policies import protobuf
from trialplane.wire import env
from trialplane.wire.paths import RunPaths

PROGRAM = ("-m", "trialplane.controller")
# A controller imports for a second or two before it takes the study's lock; on a busy machine for longer.
STARTING = 60.0

# Children of this process, by pid: they must be waited for, or they stay zombies that look alive.
_children: dict[int, subprocess.Popen[bytes]] = {}


def start(run: RunPaths) -> int:
    """Starts the controller of a run in a session of its own, so that it outlives the terminal; gives its pid.

    Raises:
        TargetError: the system does not start it.
    """
    environ = protobuf.controller_env(os.environ)
    environ.pop(env.LEDGER, None)  # a local run's ledger is the file that `results` reads
    command = [sys.executable, *PROGRAM, "--run-dir", str(run.root)]
    try:
        with run.controller_log.open("ab") as log:
            child = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=run.root,
            )
    except OSError as error:
        raise TargetError(f"the controller of {run.root.name} could not be started: {error}") from error
    _children[child.pid] = child
    # Until the controller holds the lock this is how others know that one is coming; it writes its own facts later.
    replace(run.controller, json.dumps({"pid": child.pid, "port": 0, "host": os.uname().nodename, "started": time.time()}))
    return child.pid


def living(run: RunPaths) -> int | None:
    """Pid of the controller that works on the run or is being started, or None."""
    holder = _holder(run.lock)
    if holder is not None:
        return holder
    try:
        facts = json.loads(run.controller.read_bytes())
        pid, started = int(facts["pid"]), float(facts["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if time.time() - started < STARTING and _exists(pid) else None


def signal_stop(pid: int, *, now: bool = False) -> None:
    """Asks a controller to end, or kills it with its process group at once; one that is gone is left alone."""
    try:
        if now:
            os.killpg(pid, signal.SIGKILL)  # it leads its session and so its group
        else:
            os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise TargetError(f"the controller (pid {pid}) belongs to another user, who must end it") from error


def exit_code(pid: int) -> int | None:
    """What a controller that this process started ended with, or None when that is not known."""
    child = _children.get(pid)
    return None if child is None else child.poll()


def replace(file: Path, text: str) -> None:
    """Writes a file so that a reader sees the old text or the new one."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _holder(lock: Path) -> int | None:
    """Pid of the process that holds the lock, or None."""
    try:
        with lock.open() as handle:
            text = handle.read().strip()
            # Trying the lock while a controller takes it would make that controller fail: look for the process first.
            if text.isdigit() and not _exists(int(text)):
                return None
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(text) if text.isdigit() else None
            return None
    except FileNotFoundError:
        return None


def _exists(pid: int) -> bool:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
