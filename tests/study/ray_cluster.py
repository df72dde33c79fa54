"""A Ray cluster on this machine that looks to the controller like one of pods: a head, and workers that share no folder.

Each worker is a raylet with a home of its own (TRIALPLANE_HOME) and one slot; killing its processes is what deleting a
pod is. Kubernetes itself is not here (tests/e2e).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.ports import free_port

from trialplane.job import kinds
from trialplane.plan import plan as planning
from trialplane.plan.plan import Plan, Provenance
from trialplane.wire import env
from trialplane.wire.paths import RunPaths

RAY = Path(__file__).parents[2] / "jobs" / "image" / "quick_ray.py"  # the images' `ray`
TOKEN = "a" * 64
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
ENVIRONMENT |= {"RAY_raylet_start_wait_time_s": "120"}  # two raylets at once on a busy machine
ENVIRONMENT |= {"RAY_memory_monitor_refresh_ms": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def wait_until(condition: Callable[[], Any], description: str, timeout: float = 420.0) -> Any:
    """Waits for something another process does; gives what the condition gave."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain until {description}"
        time.sleep(0.1)  # a look takes a connection to the database
    return value


def below(pid: int) -> list[int]:
    """A process and everything it started that is still its descendant."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    pids = [pid]
    for each in pids:
        pids += [child for child, parent in parents.items() if parent == each]
    return pids


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a process with all its descendants at once, as the end of a container does."""
    for pid in below(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


@dataclasses.dataclass
class Cluster:
    """A head, its workers, and the controller that is the Ray driver on the head.

    Args:
        root: an empty folder.
        ledger: URL of the database, or of a gateway.
        mlflow: MLflow's tracking URI.
        token: file with the run's token, which a gateway asks for.
    """

    root: Path
    ledger: str
    mlflow: str
    token: Path | None = None
    head: subprocess.Popen[bytes] | None = None
    workers: dict[str, subprocess.Popen[bytes]] = dataclasses.field(default_factory=dict)
    controller: subprocess.Popen[bytes] | None = None
    keeps_disk: bool = False
    heads: int = 0
    address: str = ""

    def __post_init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="tpr-", dir="/tmp"))  # Ray's sockets have short names or none
        self.submitted = self.root / "submitted"

    def start_head(self, *, controller: bool = False) -> None:
        """Starts a head; with a disk of its own, as a new pod has without a claim, unless `keeps_disk`.

        With `controller` that starts first, as in a pod, and waits for the head.
        """
        self.heads += 1
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        if controller:
            self.start_controller()
            wait_until(lambda: "does not answer yet" in self.said(), "the controller waits for the head")
        command = ["--head", f"--port={port}", "--num-cpus=0", f"--temp-dir={self._scratch}/{self.heads}"]
        # The agent's port is else the same for every Ray of this machine.
        command += ["--include-dashboard=false", f"--dashboard-agent-listen-port={free_port()}"]
        self.head = self._ray(command, self.home)

        def is_up() -> bool:
            assert self.head is not None
            assert self.head.poll() is None, (self.home / "ray.log").read_text()[-3000:]
            return _answers(port)

        wait_until(is_up, "Ray's head answers")

    @property
    def home(self) -> Path:
        """TRIALPLANE_HOME of the newest head."""
        return self.root / ("heads" if self.keeps_disk else f"head-{self.heads}")

    @property
    def run(self) -> RunPaths:
        return RunPaths.of(self.home, "toy")

    def start_worker(self, name: str, *, slots: int = 1, gpus: int = 0, wait: bool = True) -> None:
        """Starts a worker with slots and a disk of its own; one that Ray gives up on a busy machine is started again.

        Ray believes that it has GPUs.
        """
        resources = json.dumps({"trial_slot": slots})
        command = [f"--address={self.address}", f"--num-cpus={slots}", f"--resources={resources}"]
        command.append(f"--num-gpus={gpus}")
        self.workers[name] = self._ray(command, self.root / name)

        def is_up() -> bool:
            if self.workers[name].poll() is not None:
                self.workers[name] = self._ray(command, self.root / name)
            return "will now block" in (self.root / name / "ray.log").read_text()

        if wait:
            wait_until(is_up, f"{name} has joined")

    def submit(self, plan: Plan) -> None:
        """Puts a submission where a pod has it mounted."""
        for name in ("run", "code"):
            (self.submitted / name).mkdir(parents=True, exist_ok=True)
        (self.submitted / "run" / "job.json").write_text(plan.job.model_dump_json())
        (self.submitted / "run" / "submission.json").write_text(json.dumps(plan.submission(1000.0)))
        (self.submitted / "code" / "code.tar.gz").write_bytes(plan.pack.data)

    def command(self) -> list[str]:
        """The command of the container beside the head."""
        module = [sys.executable, "-m", "trialplane.controller"]
        return [*module, "--run-dir", str(self.run.root), "--submitted", str(self.submitted)]

    def environment(self) -> dict[str, str]:
        """The environment of that container."""
        variables = {env.HOME: str(self.home), env.LEDGER: self.ledger, env.MLFLOW_TRACKING_URI: self.mlflow}
        token = {} if self.token is None else {env.TOKEN_FILE: str(self.token)}
        return {**os.environ, **ENVIRONMENT, **variables, **token, env.STATUS: "127.0.0.1:0"}

    def start_controller(self, **more: str) -> None:
        self.home.mkdir(exist_ok=True)
        with (self.root / f"controller-{self.heads}.out").open("ab") as out:
            environment = {**self.environment(), env.RAY_ADDRESS: self.address, **more}
            self.controller = subprocess.Popen(self.command(), env=environment, stdout=out, stderr=out)

    def said(self) -> str:
        """The output of the newest controller."""
        return (self.root / f"controller-{self.heads}.out").read_text()

    def wait(self) -> int:
        """The controller's exit code."""
        assert self.controller is not None
        return self.controller.wait(600)

    def kill_worker(self, name: str) -> None:
        kill(self.workers.pop(name))

    def kill_head(self) -> None:
        """Kills everything of the head's pod, and forgets the workers, who go when they notice."""
        for process in (self.controller, self.head):
            if process is not None:
                kill(process)
        for name in list(self.workers):
            self.kill_worker(name)
        self.controller = self.head = None

    def close(self) -> None:
        self.kill_head()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _ray(self, arguments: list[str], home: Path) -> subprocess.Popen[bytes]:
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(RAY), "start", "--block", "--disable-usage-stats", *arguments]
        command += ["--node-ip-address=127.0.0.1", f"--object-store-memory={80 << 20}", "--include-log-monitor=false"]
        environment = {**os.environ, **ENVIRONMENT, env.HOME: str(home)}
        with (home / "ray.log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def make_plan(folder: Path, spec: Mapping[str, Any], code: str) -> Plan:
    """A job in a folder, planned."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(code)
    origin = Provenance(job_folder=str(folder), user="ann", version="1")
    return planning.plan(kinds.read({"name": "toy", "kind": "hpo", **spec}), folder, "toy", origin)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
