"""A job's script by itself: by python, and by torchrun with several ranks.

Not checked here: the jobs of this repository (tests/jobs).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from trialplane import errors

JOB = """
kind: train
params: {stops: false, data: text.txt}
"""

SEARCH = """kind: hpo
space: {lr: {type: float, low: 0.0, high: 1.0}}
objectives: [{metric: loss, direction: minimize}]
trials: 1"""

SCRIPT = """
import signal, socket, sys
from trialplane.training import lines
from trialplane import standalone

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
    if ctx.params["stops"] == "for want of data":
        lines.LineDataset(ctx.path("data"), cache=ctx.cache)
    elif ctx.params["stops"]:
        ctx.stopping
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno())
        sys.stdout.write("ready\\n")
        sys.stdout.flush()
        while not ctx.stopping:
            ours.recv(1)
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


@pytest.mark.parametrize(("kind", "cpus"), [("kind: train", 64), (SEARCH, 3)])
def test_a_training_alone_has_all_cores_and_a_search_those_of_the_job(script: Path, kind: str, cpus: int) -> None:
    (script.parent / "job.yaml").write_text(JOB.replace("kind: train", f"{kind}\nresources: {{cpus: 3}}"))
    program = (
        "from trialplane.worker import alone; from trialplane.training import process; process.cores = lambda: 64\n"
        f"alone.main({str(script)!r}, lambda ctx: {{'loss': ctx.cpus}})"
    )
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}  # a job divides them by itself
    for environ in ({}, ranks):
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, **environ})
        assert result(done.stdout) == {"loss": cpus}


def test_a_parameter_may_be_named_like_an_option_of_a_collection(script: Path) -> None:
    (script.parent / "job.yaml").write_text("kind: train\nparams: {units: 8, iterations: 1, stops: false}")
    script.write_text(SCRIPT.replace('{"loss": total,', '{"params": ctx.params, "loss": total,'))
    command = [sys.executable, script, "--units", "64", "--iterations=2"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    assert result(done.stdout)["params"] == {"units": 64, "iterations": 2, "stops": False}


@pytest.mark.slow
def test_torchrun_with_two_ranks_prints_once(script: Path, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    command = [*launcher, script]
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "stops=for want of data"), "text.txt"),
        (("--set", "stops=for want of data", "--data", "null"), "params.data is null, and must be a path"),
        (("--set", "stops=for want of data", "--data", "[a.txt, b.txt]"), "params.data is a list, and this job reads one"),
        (("--set", "stosp=true"), "stosp: there is no such parameter; did you mean stops?"),
        (("--set", "stops"), "is not a parameter; write NAME=VALUE"),
        (("stops", "true"), "'stops' is not an option; write --NAME VALUE"),
        (("--stops",), "--stops has no value; write --stops VALUE"),
        (("--profile", "big"), "there is no profile 'big'"),
    ],
)
def test_what_the_user_gave_wrong_is_a_message_and_no_traceback(script: Path, words: tuple[str, ...], said: str) -> None:
    done = subprocess.run([sys.executable, script, *words], check=False, capture_output=True, text=True)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == errors.EXIT_BAD_INPUT


def test_an_error_of_the_job_keeps_its_traceback(script: Path) -> None:
    script.write_text(SCRIPT.replace("    total = 1.0", "    total = 1.0 / 0"))
    done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    assert "ZeroDivisionError" in done.stderr
    assert "Traceback" in done.stderr
    assert done.returncode == 1


def test_each_rank_says_which_one_it_is(script: Path) -> None:
    place = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    command = [sys.executable, script, "--set", "x=1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **place})
    assert done.stderr.startswith("rank 1: x: there is no such parameter")
