"""How long an ask takes if the sampler learns from the trials of an earlier study. Prints milliseconds, by sampler."""

from __future__ import annotations

import json
import random
import sys
import time
import warnings
from pathlib import Path

import optuna
from tests.benchmarks import studies

from trialplane.wire import earlier
from trialplane.wire.earlier import Earlier, EarlierTrial
from trialplane.wire.paths import RunPaths


def main() -> None:
    """Ask and tell in turn, with one sampler after the other."""
    arguments = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    generator = random.Random(0)
    points = [{name: generator.random() for name in studies.PARAMETERS} for _ in range(arguments["entries"])]
    trials = (EarlierTrial("earlier", number, point, (studies.sphere(point),)) for number, point in enumerate(points))
    content = Earlier(tuple(trials)).pack()
    taken: dict[str, list[float]] = {}
    for sampler, asks in arguments["asks"].items():
        folder = Path(arguments["scratch"], sampler)
        code = RunPaths(folder).code
        code.mkdir(parents=True)
        (code / earlier.FILE).write_bytes(content)
        with studies.open_ledger(folder, studies.job(10**6, sampler)) as ledger:
            for number in range(asks + 1):
                before = time.perf_counter()
                request = ledger.ask()
                if number:  # the first fills caches
                    taken.setdefault(sampler, []).append(1000 * (time.perf_counter() - before))
                assert request is not None
                ledger.tell(studies.outcome(request, studies.sphere(request.params)))
    print(json.dumps(taken))  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
