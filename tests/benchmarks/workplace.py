"""Where a benchmark works: its scratch folder, its sizes, and the children it starts.

Whatever might disturb another measurement runs in a child process of its own, `programs/NAME.py`. A child gets its
arguments as one JSON document and answers with one on the last line of its output. It is ended by its pid when it takes
too long.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trialplane.policies import protobuf
from trialplane.wire import env

ROOT = Path(__file__).resolve().parents[2]  # of the repository
STOP_GRACE = 20.0  # seconds between SIGTERM and SIGKILL
# Variables of the user's that would send a benchmark's results to the user's own places.
# PYTHONDONTWRITEBYTECODE would make each process compile our modules anew, which those of an installed package are not.
_FOREIGN = (
    "PYTHONDONTWRITEBYTECODE",
    env.LEDGER,
    env.MLFLOW_TRACKING_URI,
    env.MLFLOW_RUN_ID,
    env.MLFLOW_EXPERIMENT_NAME,
    protobuf.VARIABLE,
)


class MeasurementFailed(Exception):
    """A child did not do its work; says where its output is."""


@dataclasses.dataclass(frozen=True)
class Workplace:
    """One run of the benchmarks.

    Attributes:
        scratch: folder for everything, deleted in the end.
        quick: small sizes, which show that everything works and say nothing about speed.
        rounds: how often to repeat, or None for each figure's own number.
        say: prints a line of progress.
        context: of the kubeconfig, for figure `cluster`; "" where none was named.
        namespace: in that cluster; "" for the context's.
    """

    scratch: Path
    quick: bool
    rounds: int | None
    say: Callable[[str], None]
    context: str = ""
    namespace: str = ""

    @property
    def home(self) -> Path:
        """TRIALPLANE_HOME of all runs."""
        return self.scratch / "home"

    def size(self, full: int, quick: int) -> int:
        """A size, full or quick."""
        return quick if self.quick else full

    def repeats(self, full: int, quick: int = 1) -> int:
        """Number of rounds."""
        return self.rounds or self.size(full, quick)

    def heavy(self, *modules: str) -> str:
        """Statements that import modules because it takes seconds; a quick run has none."""
        return "" if self.quick else "".join(f"import {module}\n" for module in modules)

    def environment(self) -> dict[str, str]:
        """Of every child: ours and the peers' alike."""
        return {
            **{name: value for name, value in os.environ.items() if name not in _FOREIGN},
            env.HOME: str(self.home),
            # What the controller sets for its own Ray before it imports it. The peers get the same.
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_DEDUP_LOGS": "0",
            "PYTHONWARNINGS": "ignore",
        }

    def call(self, program: str, arguments: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Runs `programs/<program>.py` with `arguments` and gives its answer.

        Raises:
            MeasurementFailed: it failed, or took longer than `timeout` seconds.
        """
        log = self.scratch / f"{program}-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", f"tests.benchmarks.programs.{program}", json.dumps(arguments)]
        with log.open("wb") as errors:
            child = subprocess.Popen(
                command, env=self.environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL
            )
        output = _wait(child, timeout)
        lines = output.decode().strip().splitlines()
        if child.returncode != 0 or not lines:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            how = f"ended with {child.returncode}" if output or child.returncode >= 0 else f"took over {timeout:g} s"
            raise MeasurementFailed(f"{program} {json.dumps(arguments)} {how}:\n{tail}")
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    def time_command(self, command: Sequence[str], timeout: float = 60.0) -> float:
        """Seconds that a command takes from its start to its end.

        Raises:
            MeasurementFailed: it failed, or took longer than `timeout` seconds.
        """
        return self._run(command, timeout, None, subprocess.DEVNULL)[0]

    def output(self, command: Sequence[str], timeout: float = 60.0, stdin: str | None = None) -> str:
        """What a command prints, given `stdin`; errors as of `time_command`."""
        return self._run(command, timeout, stdin, subprocess.PIPE)[1]

    def _run(self, command: Sequence[str], timeout: float, stdin: str | None, stdout: int) -> tuple[float, str]:
        environment = self.environment()
        before = time.perf_counter()
        child = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdout=stdout,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            text=True,
        )
        try:
            printed, said = child.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise MeasurementFailed(f"{' '.join(command)} took over {timeout:g} s") from None
        seconds = time.perf_counter() - before
        if child.returncode != 0:
            raise MeasurementFailed(f"{' '.join(command)} ended with {child.returncode}:\n{said}")
        return seconds, printed


def _wait(child: subprocess.Popen[bytes], timeout: float) -> bytes:
    """The child's output; one that takes too long is asked to end, so that it ends its own children, then killed."""
    try:
        return child.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
    try:
        child.communicate(timeout=STOP_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
    child.returncode = child.returncode or -signal.SIGTERM  # one that ended in good order is late all the same
    return b""
