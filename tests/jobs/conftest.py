"""Loads a job's `train.py` as a module of its own and runs it in this process: trials of a study, or a training."""

from __future__ import annotations

import itertools
import math
import signal

import pytest
from tests.jobs.trainings import JOBS, Launcher, Training, train_of

from trialplane.job import load
from trialplane.worker.context import Context
from trialplane.worker.pausing import Pause


def _middle(parameter):
    """A plain value of a parameter: the last choice (the richer one in all four jobs), or the middle of the range."""
    if parameter.type == "categorical":
        return parameter.choices[-1]
    if parameter.log:
        return math.sqrt(parameter.low * parameter.high)
    return (parameter.low + parameter.high) / 2


class Trials:
    """Runs trials of one job; `reports` holds what the last one reported."""

    def __init__(self, name, cache, workdir):
        self.folder, self.cache, self.workdir = JOBS / name, cache, workdir
        self.job = load.load_job(self.folder, environ={})
        self.train = train_of(name)
        self.reports = []
        self.folders = itertools.count()

    def __call__(self, seed=0, segment=None, checkpoints=None, **params):
        """One trial in a new place, or up to a rung in a given one."""
        self.reports = []
        space = {name: _middle(parameter) for name, parameter in self.job.search.parameters.items()}
        context = Context(
            params={**self.job.params, **space, **params},
            seed=seed,
            run="test",
            trial=0,
            attempt=1,
            cpus=1,
            gpus=0,
            code=self.folder,
            cache=self.cache,
            workdir=self.workdir,
            checkpoints=str(checkpoints or self.workdir / f"checkpoints-{next(self.folders)}"),
            _reporter=lambda step, metrics, **_: self.reports.append((step, dict(metrics))),
            _pause=Pause(segment),
        )
        return self.train.run(context)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """One cache for the session, as trials share one."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def launch():
    """`launch(job, spec, …)` runs a training in ranks as often as there are specs."""
    launcher = Launcher("finetune", "cnm-bert")
    yield launcher
    launcher.close()


@pytest.fixture
def trials(cache, tmp_path, monkeypatch):
    """`trials("criteria")` gives a callable that runs one trial and returns its metrics."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    handler = signal.getsignal(signal.SIGTERM)  # a job that continues from a checkpoint takes SIGTERM
    yield lambda name: Trials(name, cache, tmp_path)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def training(request, cache, tmp_path):
    """`training()` gives a callable that trains JOB of the test's module, with its SMALL parameters, in a new folder."""
    numbers = itertools.count()

    def made():
        folder = tmp_path / f"training-{next(numbers)}"
        folder.mkdir()
        return Training(request.module.JOB.name, request.module.SMALL, folder, cache)

    handler = signal.getsignal(signal.SIGTERM)  # a job that asks whether it is to stop takes SIGTERM
    yield made
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def playing(tmp_path, monkeypatch):
    """Plays games of `selfplay` and learns from them in this process, on one core."""
    import torch
    from tests.jobs.playing import Playing

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Playing(tmp_path)
    torch.set_num_threads(threads)
