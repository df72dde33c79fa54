"""Let a pod's trials save a checkpoint before the pod ends: `python -m trialplane.worker.leaving [SECONDS]`, a preStop hook.

Kubernetes runs the hook before it ends the pod's own process, so slot and controller still run and receive the outcomes.
The hook sends SIGTERM to every trial and waits until they have ended, or the seconds are over; without trials it ends at
once. Outside of a pod it would stop all trials of all runs: `--below PID` limits it to the trials of one process.

It uses the standard library only, and does not communicate with the slots, so that it is quick and works in any pod.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

REMOVAL_SIGNAL = signal.SIGUSR1  # tells a template that its pod is being removed: it waits for its trials if its slot ends
_TEMPLATE = b"trialplane.worker.template"
_TRIAL = b"trialplane.worker.roles"  # a spawned trial; a forked one has the template's command line


def main(argv: Sequence[str] | None = None) -> int:
    """Stop the trials; return 0 when all have ended, 1 if some still run when the time is over."""
    parser = argparse.ArgumentParser(
        prog="python -m trialplane.worker.leaving", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("seconds", nargs="?", type=float, default=35.0, help="how long to wait (%(default)s)")
    parser.add_argument("--below", type=int, metavar="PID", help="only trials of slots below this process")
    options = parser.parse_args(argv)
    return _stop_trials(trial_parents(options.below), options.seconds)


def _stop_trials(templates: Mapping[int, int], seconds: float) -> int:
    """Send SIGTERM to trials, and wait at most so long until they have ended; return the exit code.

    Args:
        templates: Pid of each trial → pid of its template.
        seconds: Time limit.
    """
    deadline = time.monotonic() + seconds
    pid_by_pidfd = {}
    for pid, template in templates.items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(template, REMOVAL_SIGNAL)  # before SIGTERM, because the slot may end right after it
            pidfd = os.pidfd_open(pid)
            pid_by_pidfd[pidfd] = pid
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    while pid_by_pidfd:
        ended, _, _ = select.select(list(pid_by_pidfd), [], [], max(0.0, deadline - time.monotonic()))
        if not ended:
            pids = ", ".join(map(str, pid_by_pidfd.values()))
            sys.stderr.write(f"{len(pid_by_pidfd)} trial(s) had not ended after {seconds:g} s: pid {pids}\n")
            return 1
        for pidfd in ended:
            os.close(pidfd)
            del pid_by_pidfd[pidfd]
    return 0


class _Process(NamedTuple):
    """A process: the pid of its parent, the id of its session, and the words of its command line."""

    parent: int
    session: int
    command: list[bytes]


def trial_parents(below: int | None = None) -> dict[int, int]:
    """Return the pid of each trial's process, with that of its template.

    A trial is a child of a template that leads a session of its own.

    Args:
        below: Pid of a process; only trials of slots below it are returned. None for all.
    """
    processes = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (process := _read_process(entry)) is not None:
            processes[int(entry.name)] = process
    templates = {pid for pid, process in processes.items() if _TEMPLATE in process.command}
    parents = {}
    for pid, process in processes.items():
        has_trial_command = pid in templates or _TRIAL in process.command  # a forked trial has the template's command
        leads_session = process.session == pid
        is_in_scope = below is None or _is_below(pid, below, processes)
        if process.parent in templates and has_trial_command and leads_session and is_in_scope:
            parents[pid] = process.parent
    # A process that a trial has forked has the template's command line too. It is left out, because its parent is a trial.
    return {pid: parent for pid, parent in parents.items() if parent not in parents}


def _is_below(pid: int, ancestor: int, processes: Mapping[int, _Process]) -> bool:
    """Return whether a process is the ancestor itself, or below it."""
    while pid and pid != ancestor:
        pid = processes[pid].parent if pid in processes else 0
    return pid == ancestor


def _read_process(folder: Path) -> _Process | None:
    """Return the process with this folder in /proc; None if it has just ended."""
    try:
        # The fields after the name of the program, which may be no UTF-8: state, parent, process group, session.
        _, parent, _, session, *_ = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        return _Process(int(parent), int(session), (folder / "cmdline").read_bytes().split(b"\0"))
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
