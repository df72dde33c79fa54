"""Runs a train job's `run(ctx)` in several ranks, forked from this process, as a slot's template does; no platform around.

    python tests/jobs/launch.py cnm-bert …

imports these jobs and reads orders, one a line: `{"launches": […], "stdout": FILE, "stderr": FILE}`. A fork does the
launches, one after the other, and its exit code is the answer, 1 when a rank failed. A launch is

    {"job": "cnm-bert", "world_size": 8, "params": {…}, "folder": "…", "cache": "…"}

Rank 0's reports and result are written to `<folder>/said.json`, and the keys of the samples each rank read, batch by batch,
to `<folder>/keys-<rank>.jsonl`. With `kill_at`, rank 0 kills itself (SIGKILL) when it reports that step and a checkpoint is
there, and the other ranks are ended. With `stop_at`, rank 0 alone is told to stop (SIGTERM) when it reports that step; each
rank prints how it stopped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType

from textjobs import masking
from trialplane.job import load
from trialplane.training import checkpoint, process
from trialplane.worker.context import Context, Stopped
from trialplane.worker.ranks import meeting

JOBS = Path(__file__).parents[2] / "jobs"


def train_of(job: str) -> ModuleType:
    """The module `train.py` of a job."""
    module = importlib.util.spec_from_file_location("train", JOBS / job / "train.py")
    train = importlib.util.module_from_spec(module)
    module.loader.exec_module(train)
    return train


def obey(order: dict) -> int:
    """Does the launches of an order in a fork; gives its exit code."""
    pid = os.fork()
    if not pid:
        for number, name in enumerate(("stdout", "stderr"), start=1):
            with Path(order[name]).open("w") as file:
                os.dup2(file.fileno(), number)
        outcomes = [launch(spec) for spec in order["launches"]]
        os._exit(0 if all(outcomes) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def launch(spec: dict) -> bool:
    """Starts the ranks and waits for them; whether all ended well."""
    job = load.load_job(JOBS / spec["job"], profile="smoke", environ={})
    train = train_of(spec["job"])
    port = meeting.Port()
    ranks = {}
    for rank in range(spec["world_size"]):
        pid = os.fork()
        if not pid:
            os._exit(be(rank, spec, job, train.run, port))
        ranks[pid] = rank
    well = True
    while ranks:
        pid, status = os.waitpid(-1, 0)
        del ranks[pid]
        if status and well:
            well = False
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    port.close()
    return well


def be(rank: int, spec: dict, job, run, port: meeting.Port) -> int:
    """One rank; its exit code."""
    folder, world_size = Path(spec["folder"]), spec["world_size"]
    workdir = folder / f"rank-{rank}"
    workdir.mkdir(parents=True, exist_ok=True)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(world_size), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": port.host, "MASTER_PORT": str(port.number)}
    if world_size == 1:  # a process alone is not a group of one
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del os.environ[name]
    seed = spec.get("seed", 0)
    process.seed_everything(seed)
    checkpoints = str(folder / "checkpoints")
    reports = []

    def report(step, metrics, **_):
        reports.append([step, dict(metrics)])
        if step == spec.get("kill_at"):
            while checkpoint.Checkpoints(checkpoints).newest() is None:
                time.sleep(0.01)  # it is written beside the training, which stands still here
            os.kill(os.getpid(), signal.SIGKILL)
        if step == spec.get("stop_at"):
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    if spec["job"] == "cnm-bert":
        log_keys(folder / f"keys-{rank}.jsonl")
    context = Context(
        params={**job.params, **spec["params"]},
        seed=seed,
        run="test",
        trial=0,
        attempt=1,
        cpus=world_size,
        gpus=0,
        code=JOBS / spec["job"],
        cache=Path(spec["cache"]),
        workdir=workdir,
        _reporter=report,
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        checkpoints=checkpoints,
    )
    try:
        result = run(context)
    except Stopped as stopped:
        sys.stdout.write(f"rank {rank}: {stopped}\n")
        sys.stdout.flush()
        return 0
    except BaseException:  # noqa: BLE001  a fork must never return into its parent's code
        traceback.print_exc()
        return 1
    if rank == 0:
        (folder / "said.json").write_text(json.dumps({"reports": reports, "result": result}))
    return 0


def log_keys(file: Path) -> None:
    """Makes the samples that are trained on leave a trace."""
    read = masking.MaskedSamples.__getitem__

    def logged(self, keys):
        if keys[0][0] != masking.EVALUATION:
            with file.open("a") as log:
                log.write(json.dumps(keys) + "\n")
        return read(self, keys)

    masking.MaskedSamples.__getitem__ = logged


if __name__ == "__main__":
    for name in sys.argv[1:]:
        train_of(name)
    for line in sys.stdin:
        sys.stdout.write(f"{obey(json.loads(line))}\n")
        sys.stdout.flush()
