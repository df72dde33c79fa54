"""A job's script by itself: by python, and by torchrun with several ranks.

Not checked here: the jobs of this repository (tests/jobs).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JOB = """
kind: train
"""

SCRIPT = """
import sys, time
from trialplane.runtime.context import standalone

def run(ctx):
    total = 1.0
    if ctx.world_size > 1:
        import torch
        from torch import distributed
        distributed.init_process_group("gloo")
        value = torch.tensor([float(ctx.rank + 1)])
        distributed.all_reduce(value)
        total = value.item()
        distributed.destroy_process_group()
    ctx.report(1, loss=total)
    if ctx.params.get("stops"):
        ctx.stopping
        sys.stdout.write("ready\\n")
        sys.stdout.flush()
        while not ctx.stopping:
            time.sleep(0.005)
        raise ctx.stopped(3)
    return {"loss": total, "place": [ctx.rank, ctx.local_rank, ctx.world_size], "checkpoints": ctx.checkpoints}

if __name__ == "__main__":
    standalone(__file__, run)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    (folder / "train.py").write_text(SCRIPT)
    return folder / "train.py"


def result(said: str) -> dict[str, Any]:
    """The JSON that a script prints in the end."""
    found: dict[str, Any] = json.loads(said[said.index("{") :])
    return found


def test_python_alone(script: Path, tmp_path: Path) -> None:
    said = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert said.startswith("step 1: loss 1\n")
    assert result(said) == {"loss": 1.0, "place": [0, 0, 1], "checkpoints": str(tmp_path / "checkpoints/toy")}
    words = [sys.executable, script, "--checkpoints", "s3://bucket/here"]
    assert (
        result(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["checkpoints"] == "s3://bucket/here"
    )
    assert not (tmp_path / "checkpoints").exists(), "a job that saves nothing leaves nothing"


@pytest.mark.slow
def test_torchrun_with_two_ranks_prints_once(script: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}", script]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 1: loss 3") == 1
    assert result(done.stdout)["place"] == [0, 0, 2]


def test_sigterm_is_a_request(script: Path) -> None:
    command = [sys.executable, script, "--set", "stops=true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while process.stdout.readline() != "ready\n":
            pass
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == "stopped by SIGTERM after step 3, with a checkpoint\n"
    assert process.returncode == 128 + signal.SIGTERM
