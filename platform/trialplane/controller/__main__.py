"""`python -m trialplane.controller --run-dir DIR`: drives the run in that folder to its end.

With `--submitted DIR`, as in a cluster, the folder is filled from the files mounted there: `run/job.json`,
`run/submission.json` and `code/code.tar.gz`. The controller then joins the Ray cluster that RAY_ADDRESS names, if any.

The exit codes are those of `errors`: 0 succeeded, 1 failed, 2 the job's code cannot be imported (no trial was started),
3 the platform failed, 4 cancelled, 130 paused. On a laptop SIGTERM and SIGINT stop the run cleanly, and it can be resumed.
In a pod they end the controller at once, and another controller continues the run.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
from pathlib import Path

from trialplane import errors
from trialplane.controller import arrival, stopping
from trialplane.controller.setting import Setting
from trialplane.policies import protobuf
from trialplane.wire.paths import RunPaths


def main() -> int:
    """Drive the run to its end; return the exit code."""
    # The policy `protobuf` selects a slow implementation for trials, whose slots set the variable again. The controller uses
    # the fast one.
    if os.environ.get(protobuf.VARIABLE) == protobuf.ENV[protobuf.VARIABLE]:
        del os.environ[protobuf.VARIABLE]
    parser = argparse.ArgumentParser(prog="python -m trialplane.controller", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's folder")
    parser.add_argument("--submitted", type=Path, help="the folder that the submission is mounted in")
    arguments = parser.parse_args()
    run = RunPaths(arguments.run_dir.absolute())
    received_signals: list[int] = []  # numbers of the signals to stop; stays empty in a pod, which a signal ends at once
    if arguments.submitted is None:
        # This comes before libraries are imported, which takes seconds, so that no signal is lost.
        stopping.record_signals(received_signals)
    try:
        setting = Setting.of(os.environ, arguments.submitted)
        if setting.submitted is not None:
            arrival.copy_submission(setting.submitted, run)
    except errors.InputError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    _configure_logging(run.controller_log if setting.submitted is not None else None)
    for name, value in _ray_settings(setting).items():
        os.environ.setdefault(name, value)
    from trialplane.controller import session  # takes seconds, and must follow the settings that Ray reads on import

    return session.drive(run.root, received_signals, setting)


def _configure_logging(file: Path | None) -> None:
    """Log to stdout and to a file in a cluster; on a laptop to stderr, which is a file already."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        handlers = [logging.StreamHandler(sys.stdout), logging.FileHandler(file)]
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", handlers=handlers
    )
    logging.getLogger("trialplane").setLevel(logging.INFO)


def _ray_settings(setting: Setting) -> dict[str, str]:
    """Return the environment variables that Ray reads on import; none in a cluster, where the pods have their own."""
    if setting.in_cluster:
        return {}
    return {
        # A token for this run alone: nothing is written to the home folder, and no other user can send work to this Ray.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # A trial is a child of a slot and has its own memory limit. Ray would kill the slot if the trial needs too much.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's agents outlive a killed controller by this many seconds; a minute is the default.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
        # Ray must not hide the GPUs from a slot without GPUs, as its job may detect and use them itself.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


if __name__ == "__main__":
    sys.exit(main())
