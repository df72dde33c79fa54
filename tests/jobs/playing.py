"""Helpers for tests of the job `selfplay`: its modules, and iterations in this process with the real contexts."""

from __future__ import annotations

import importlib
import sys

import numpy as np
from tests.jobs.trainings import JOBS

from trialplane.job import load
from trialplane.policies import transport
from trialplane.wire.units import Unit
from trialplane.worker.collect.learner import Learner, Result, Results
from trialplane.worker.collect.worker import Worker

JOB = JOBS / "selfplay"
TINY = {
    "channels": 8,
    "blocks": 1,
    "games_at_once": 4,
    "batch": 4,
    "simulations": 6,
    "max_half_moves": 12,
    "adjudicate": 1,
    "match_games": 4,
    "epochs": 2,
    "train_batch": 16,
    "pictures": 2,
}


def module(name):
    """A module of the job, as `train.py` finds it."""
    if str(JOB) not in sys.path:
        sys.path.insert(0, str(JOB))
    return importlib.import_module(name)


def units(count, first=0):
    """Units with seeds of their own."""
    return [Unit(number, 1000 + number) for number in range(first, first + count)]


class Work:
    """Hands out units as they are and keeps what is given, packed as on the way to a learner.

    Args:
        ready: units, in the order in which they are handed out.
        sparing: hands out one at a time, and none at every other question that need not wait.
    """

    def __init__(self, ready, sparing=False):
        self.ready, self.sparing = list(ready), sparing
        self.given, self.asked = {}, 0

    def take(self, count, wait):
        self.asked += 1
        if self.sparing:
            count = 1 if wait or self.asked % 2 else 0
        taken, self.ready = self.ready[:count], self.ready[count:]
        return tuple(taken)

    def give(self, unit, value, items):
        assert unit.number not in self.given
        self.given[unit.number] = Result(unit.number, 0, items, transport.unpack(transport.pack(value)))


class Feed:
    """Feeds results to a learner in the order in which they are given here."""

    failed = 0

    def __init__(self, results):
        self._left = list(results)

    def next(self):
        return self._left.pop(0) if self._left else None


class Playing:
    """The job's two functions in this process; `reports` holds what the learner reported.

    Args:
        folder: scratch.
    """

    def __init__(self, folder):
        self.train = module("train")
        self.params = load.load_job(JOB, environ={}).params | TINY
        self.reports = []
        self._fields = {"run": "test", "attempt": 1, "cpus": 1, "gpus": 0, "code": JOB, "cache": folder, "workdir": folder}

    def _report(self, step, metrics, **_):
        self.reports.append((step, dict(metrics)))
        return False

    def play(self, ready, weights=None, sparing=False, **params):
        """The results of these units, by number."""
        work = Work(ready, sparing)
        fields = {**self._fields, "params": self.params | params, "seed": 0, "trial": 0, "_reporter": self._report}
        self.train.play(Worker(**fields, weights=weights, _work=work))
        assert not work.ready
        return work.given

    def learn(self, results, weights=None, state=None, iteration=0, **params):
        """The result of an iteration."""
        fields = {**self._fields, "params": self.params | params, "seed": iteration, "trial": iteration}
        context = Learner(**fields, _reporter=self._report, weights=weights, state=state, iteration=iteration)
        returned = self.train.learn(context, Results(max(1, len(results)), Feed(results)))
        return transport.unpack(transport.pack(returned), copy=True)


def same(first, second):
    """Whether two records of games are the same, to the last bit."""
    assert first.keys() == second.keys()
    return all(np.array_equal(first[name], second[name]) for name in first)
