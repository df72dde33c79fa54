"""`python -m trialplane.controller --run-dir DIR`: runs what is in that folder to its end.

With `--submitted DIR`, as in a cluster, the folder is made from what is mounted there: `run/job.json`,
`run/submission.json` and `code/code.tar.gz`. Where RAY_ADDRESS then names a Ray cluster the controller joins that.

Ends with the exit codes of `errors`: 0 succeeded, 1 failed, 2 the job's code does not import (no trial was started),
3 the platform failed, 4 cancelled, 130 paused. On a laptop SIGTERM and SIGINT stop the run cleanly, and it can be resumed;
in a pod they end the controller at once, and the next one continues the run.
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
    """Run it and return the exit code."""
    # The controller keeps the fast protobuf; its slots set the trials' own.
    if os.environ.get(protobuf.VARIABLE) == protobuf.ENV[protobuf.VARIABLE]:
        del os.environ[protobuf.VARIABLE]
    stopped: list[int] = []
    parser = argparse.ArgumentParser(prog="python -m trialplane.controller", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's folder")
    parser.add_argument("--submitted", type=Path, help="the folder that the submission is mounted in")
    arguments = parser.parse_args()
    run = RunPaths(arguments.run_dir.absolute())
    if arguments.submitted is None:  # a stop counts from the first moment on, also while libraries are imported
        stopping.record_signals(stopped)
    try:
        setting = Setting.of(os.environ, arguments.submitted)
        if setting.submitted is not None:
            arrival.take_in(setting.submitted, run)
    except errors.InputError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    _log_to(run.controller_log if setting.submitted is not None else None)
    for name, value in _ray_settings(setting).items():
        os.environ.setdefault(name, value)
    from trialplane.controller import session  # after the settings, and seconds of imports

    return session.drive(run.root, stopped, setting)


def _log_to(file: Path | None) -> None:
    """Log to stderr, which a laptop redirects to a file; in a cluster to a file and to stdout, which Ray collects."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr if file is None else sys.stdout)]
    if file is not None:
        handlers.append(logging.FileHandler(file))
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", handlers=handlers
    )
    logging.getLogger("trialplane").setLevel(logging.INFO)


def _ray_settings(setting: Setting) -> dict[str, str]:
    """The environment variables that Ray reads on import."""
    if setting.in_cluster:
        return {}  # the pods have theirs
    return {
        # A token of this run's own: nothing is written to the home folder, and no other user can send work to this Ray.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        # Trials are children of a slot and have a memory limit of their own; Ray would kill the slot for them.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's agents outlive a killed controller by this many seconds; a minute is the default.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
        # A trial's GPUs are all its own; a slot without GPUs must not hide those of a job that finds them itself.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


if __name__ == "__main__":
    sys.exit(main())
