"""Let a pod's trials save a checkpoint before the pod ends: `python -m trialplane.worker.leaving [SECONDS]`, a preStop hook.

Kubernetes runs the hook before it ends the pod's own process, so slot and controller still run and receive the outcomes.
The hook sends SIGTERM to every trial and waits until they are gone, or the seconds are over; without trials it ends at once.
Outside of a pod it would stop all trials of all runs: `--below PID` limits it to the trials of one process.

Uses the standard library only, and does not communicate with the slots, so that it is quick and works in any pod.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

REMOVAL_SIGNAL = signal.SIGUSR1  # tells a template that its pod is being removed: it waits for its trials if its slot ends
_TEMPLATE = b"trialplane.worker.template"
_TRIAL = b"trialplane.worker.roles"  # a spawned trial; a forked one has the template's command line


def main(argv: Sequence[str] | None = None) -> int:
    """Stop the trials; return 0 when all are gone, 1 when some are left."""
    parser = argparse.ArgumentParser(
        prog="python -m trialplane.worker.leaving", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("seconds", nargs="?", type=float, default=35.0, help="how long to wait (%(default)s)")
    parser.add_argument("--below", type=int, metavar="PID", help="only trials of slots below this process")
    options = parser.parse_args(argv)
    deadline = time.monotonic() + options.seconds
    handles = {}
    for pid, template in trials(options.below).items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(template, REMOVAL_SIGNAL)  # before SIGTERM, as the slot may be gone a moment later
            handles[os.pidfd_open(pid)] = pid
            signal.pidfd_send_signal(next(reversed(handles)), signal.SIGTERM)
    while handles:
        ended, _, _ = select.select(list(handles), [], [], max(0.0, deadline - time.monotonic()))
        if not ended:
            pids = ", ".join(map(str, handles.values()))
            sys.stderr.write(f"{len(handles)} trial(s) had not ended after {options.seconds:g} s: pid {pids}\n")
            return 1
        for handle in ended:
            os.close(handle)
            del handles[handle]
    return 0


def trials(below: int | None = None) -> dict[int, int]:
    """Return the pids of trial processes, each with its template's: children of a template that lead a session of their own.

    Args:
        below: Pid of a process; only trials of slots below it. None for all.
    """
    facts = {
        int(entry.name): fact
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (fact := _process_facts(entry))
    }

    def is_below(pid: int) -> bool:
        while pid and pid != below:
            pid = facts[pid][0] if pid in facts else 0
        return pid == below

    parents = {
        pid: parent
        for pid, (parent, session, command) in facts.items()
        if session == pid
        and (_TEMPLATE in command or _TRIAL in command)
        and parent in facts
        and _TEMPLATE in facts[parent][2]
        and (below is None or is_below(pid))
    }
    # A trial's own fork in a session of its own has a template's command line too, but its parent is a trial.
    return {pid: parent for pid, parent in parents.items() if parent not in parents}


def _process_facts(process: Path) -> tuple[int, int, list[bytes]] | None:
    """Return parent, session and command line of a process; None if it has just ended."""
    try:
        status = (process / "stat").read_text().rpartition(")")[2].split()
        return int(status[1]), int(status[3]), (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
