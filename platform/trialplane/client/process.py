"""Controller process of a local run: its start, its detection, its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from trialplane.errors import RunDamaged, TargetError
from trialplane.policies import protobuf
from trialplane.wire import env
from trialplane.wire.holder import Holder
from trialplane.wire.paths import RunPaths

PROGRAM = ("-m", "trialplane.controller")
# Seconds for which a controller on another machine may be starting. It starts Ray before it takes the run's lock.
STARTING = 60.0


class Controller(subprocess.Popen[bytes]):
    """Process of a controller, which may outlive the process that started it. The destructor does not warn about that."""

    def __del__(self) -> None:
        return


def start(run: RunPaths) -> Controller:
    """Start the controller of a run in its own session, so that it outlives the terminal.

    Raises:
        TargetError: The system cannot start the process.
    """
    environ = protobuf.controller_env(os.environ)
    environ.pop(env.LEDGER, None)  # a local run's ledger is the file that `results` reads
    command = [sys.executable, "-P", *PROGRAM, "--run-dir", str(run.root)]
    try:
        with run.controller_log.open("ab") as log:
            child = Controller(
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
    # Until the controller holds the lock, this file announces it. The controller replaces the file later.
    with contextlib.suppress(OSError):  # a full disk: the controller continues, or reports it itself
        replace(run.controller, json.dumps(Holder.of(child.pid).facts(port=0, started=time.time())))
    return child


def active_controller(run: RunPaths) -> Holder | None:
    """Return the controller that works on a run or is starting, on any machine; None if there is none.

    The holder of the run's lock works on the run, even if its process is on another machine. If nobody holds the lock, or if
    this is unknown, the file with the last controller that was started decides. A holder without a pid is unknown.

    Raises:
        RunDamaged: The lock cannot be checked, and the last controller was on another machine.
    """
    newest = _newest_controller(run)
    try:
        lock_record = _record_in_lock(run.lock)
    except OSError as error:
        is_elsewhere = newest.holder.pid and not newest.holder.is_visible
        if not is_elsewhere:
            return newest.holder if newest.holder.is_alive else None
        raise RunDamaged(
            f"whether {run.root.name} is active is unknown: {run.lock} cannot be locked ({error.strerror}), and its "
            f"last controller was {newest.holder.description}; when that has ended, remove {run.controller}"
        ) from error
    if lock_record is None:  # a controller may be starting: it takes the lock after the start of Ray
        return newest.holder if newest.may_start else None
    holder = Holder.read(lock_record)
    # Somebody holds the lock, but has perhaps not written its record yet: then the record is empty or of an earlier holder.
    is_outdated = not holder.pid or (holder.is_visible and not holder.is_alive)
    return newest.holder if is_outdated and newest.holder.pid else holder


def signal_stop(run: str, controller: Holder, *, now: bool = False) -> None:
    """Ask the controller of a run to end, or kill it with its process group. One that has ended is ignored.

    Raises:
        TargetError: The process is on another machine, or is another user's.
    """
    check_reach(run, controller)
    if not controller.is_alive:
        return
    try:
        if now:
            os.killpg(controller.pid, signal.SIGKILL)  # `start` has made it the leader of a session, and so of a group
        else:
            os.kill(controller.pid, signal.SIGTERM)
    except ProcessLookupError:
        return


def check_reach(run: str, controller: Holder) -> None:
    """Check that a signal would reach the controller of a run. On another machine, its pid belongs to another process.

    Raises:
        TargetError: The process is unknown, or is on another machine or in another container, or is another user's. The
            message says where it is, and how to stop it there.
    """
    if not controller.pid:
        raise TargetError(
            f"the controller of {run} holds the run's controller.lock, which does not name its process: "
            "`fuser` shows it on the machine where it works, and SIGTERM ends it cleanly"
        )
    if not controller.is_visible:
        raise TargetError(
            f"the controller of {run} ({controller.description}) works on another machine or in another container and "
            f"cannot be reached from here; there, `platform pause {run} --local` stops it, `platform cancel {run} --local` "
            "ends it"
        )
    try:
        if controller.is_alive:
            os.kill(controller.pid, 0)
    except ProcessLookupError:
        return  # it has just ended
    except PermissionError as error:
        raise TargetError(
            f"the controller of {run} ({controller.description}) is another user's, who must end it"
        ) from error


def replace(file: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old text or the new text."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


class _StartedController(NamedTuple):
    """The newest controller of a run that was started.

    Attributes:
        holder: The controller; unknown, without a pid, if its file cannot be read.
        started: Time of its start in seconds since the epoch.
    """

    holder: Holder
    started: float

    @property
    def may_start(self) -> bool:
        """Whether it may be starting: it is alive or, if its process is not visible from here, was started recently."""
        if self.holder.is_visible:
            return self.holder.is_alive
        return self.holder.pid != 0 and abs(time.time() - self.started) < STARTING


def _newest_controller(run: RunPaths) -> _StartedController:
    """Return the newest controller of a run that was started."""
    try:
        facts = run.controller.read_bytes()
        return _StartedController(Holder.read(facts), started=float(json.loads(facts)["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return _StartedController(Holder(), started=0.0)


def _record_in_lock(lock: Path) -> bytes | None:
    """Return the content of a lock that is held, the record of its holder; None if the lock is free.

    Raises:
        OSError: The file cannot be read or locked.
    """
    try:
        with lock.open("rb") as file:
            try:
                # A controller that tries to take the lock at this moment retries; see `locking.LOCK_PATIENCE`.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read()
            return None
    except FileNotFoundError:
        return None
