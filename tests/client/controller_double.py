"""A controller that works on nothing: takes the lock, says RUNNING, and ends at SIGTERM as the real one does.

Its status names it by pid, and `ready` in its folder says that it listens.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import os
import signal
import sys
from pathlib import Path

from trialplane.wire import records
from trialplane.wire.holder import Holder
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState


def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run = RunPaths(parser.parse_args().run_dir)
    sys.stdout.write("the double is here\n")
    sys.stdout.flush()
    with run.lock.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(f"{records.to_json(Holder.of_this_process())}\n")
        lock.flush()
        show(run, RunState.RUNNING, f"pid {os.getpid()}")
        (run.root / "ready").touch()
        signal.sigwait([signal.SIGTERM])
        if run.cancelled.exists():
            show(run, RunState.CANCELLED, "cancelled by the user")
            return 4
        show(run, RunState.PAUSED, "stopped")
        return 130


def show(run: RunPaths, state: RunState, reason: str) -> None:
    status = dataclasses.replace(
        records.from_json(RunStatus, run.status.read_bytes()), state=state, reason=reason, slots_ready=1
    )
    partial = run.status.with_suffix(".partial")
    partial.write_text(records.to_json(status))
    partial.replace(run.status)


if __name__ == "__main__":
    sys.exit(main())
