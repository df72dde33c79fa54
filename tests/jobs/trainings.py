"""Helpers for tests of train jobs: ranks started by launch.py, and a job run in this process as one rank."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from trialplane.job import load
from trialplane.training import checkpoint
from trialplane.worker.context import Context

JOBS = Path(__file__).parents[2] / "jobs"
LAUNCH = Path(__file__).parent / "launch.py"
ENVIRON = {
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "CUDA_VISIBLE_DEVICES": "",
}


def train_of(job):
    """The module `train.py` of a job."""
    spec = importlib.util.spec_from_file_location(f"job_{job}", JOBS / job / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Launcher:
    """A process that has imported these jobs, and forks the ranks of trainings (launch.py)."""

    def __init__(self, *jobs):
        command = [sys.executable, LAUNCH, *jobs]
        self._process = subprocess.Popen(
            command, env=os.environ | ENVIRON, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, job, *specs):
        """Does launches of a job, one after the other; gives their exit code and output as a finished process has them."""
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder, name) for name in ("stdout", "stderr")}
            order = {
                "launches": [{"job": job, **spec} for spec in specs],
                **{name: str(file) for name, file in files.items()},
            }
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess([job], code, **{name: file.read_text() for name, file in files.items()})

    def close(self):
        self._process.communicate()


def said(folder):
    return json.loads((folder / "said.json").read_text())


def losses(folder):
    return [metrics["loss"] for _, metrics in said(folder)["reports"] if "loss" in metrics]


def weights(folder):
    store = checkpoint.Checkpoints(str(folder / "checkpoints"))
    newest = store.newest()
    return newest.step, store.load(newest)[0]["model"]


class Training:
    """Runs the job in this process, as one rank; `reports` holds what it reported."""

    def __init__(self, job, small, folder, cache):
        self.job, self.small = JOBS / job, small
        self.folder, self.cache, self.reports = folder, cache, []
        self.checkpoints = checkpoint.Checkpoints(str(folder / "checkpoints"))
        self.train = train_of(job)

    def __call__(self, stop_at=None, **params):
        def report(step, metrics, **_):
            self.reports.append((step, dict(metrics)))
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return False

        context = Context(
            params={**load.load_job(self.job, environ={}).params, **self.small, **params},
            seed=0,
            run="test",
            trial=0,
            attempt=1,
            cpus=1,
            gpus=0,
            code=self.job,
            cache=self.cache,
            workdir=self.folder,
            _reporter=report,
            checkpoints=self.checkpoints.location,
        )
        return self.train.run(context)

    @property
    def losses(self):
        return [metrics["loss"] for _, metrics in self.reports if "loss" in metrics]
