"""Games of the job `selfplay` in one process, by its own `play(ctx)`, without slots or a controller; times them.

Several of these side by side are told when to begin (`begin`, seconds since the epoch), after their imports.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from trialplane.job import load
from trialplane.policies import transport
from trialplane.wire.units import Unit
from trialplane.worker.collect.worker import Worker

JOB = Path(__file__).resolve().parents[3] / "jobs" / "selfplay"


class Work:
    """Hands out so many units and packs what is given, as a worker does."""

    def __init__(self, first: int, count: int) -> None:
        self._ready = [Unit(number, number) for number in range(first, first + count)]
        self.items = 0

    def take(self, count: int, wait: bool) -> tuple[Unit, ...]:
        """Units that are left."""
        taken, self._ready = self._ready[:count], self._ready[count:]
        return tuple(taken)

    def give(self, unit: Unit, value: object, items: int) -> None:
        """Counts a game."""
        transport.pack(value)
        self.items += items


def main() -> None:
    """Plays and prints the answer."""
    arguments = json.loads(sys.argv[1])
    sys.path.insert(0, str(JOB))
    import train

    work = Work(arguments["first"], arguments["games"])
    params = load.load_job(JOB, environ={}).params | arguments["params"]
    folder = Path(arguments["folder"])
    fields = {
        "run": "bench",
        "trial": 0,
        "attempt": 1,
        "cpus": 1,
        "gpus": 0,
        "code": JOB,
        "cache": folder,
        "workdir": folder,
    }
    worker = Worker(params=params, seed=0, _reporter=lambda step, metrics, **_: False, _work=work, **fields)
    time.sleep(max(0.0, arguments["begin"] - time.time()))
    began = time.time()
    train.play(worker)
    print(json.dumps({"positions": work.items, "began": began, "ended": time.time()}))  # noqa: T201  the answer


if __name__ == "__main__":
    main()
