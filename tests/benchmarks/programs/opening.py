"""A controller's memory with a long history, and how long it takes to open it: ours, or plain Optuna's.

Everything that the controller imports is imported, and what it does with the history when it starts is done: the ledger is
opened and all attempts are gone through once. Then a few trials are asked and told.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path

import optuna
from tests.benchmarks import studies

ASKS = 10


def main() -> None:
    """Prints seconds to open, and MiB resident before, now and at the peak."""
    arguments = json.loads(sys.argv[1])
    source, scratch = Path(arguments["source"]), Path(arguments["scratch"])
    studies.copy_ledger(source, scratch)
    exported = arguments["exported"]  # Optuna's own file, or "" for ours
    importlib.import_module("trialplane.controller.session")  # for its size
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rss_before = _resident()
    before = time.perf_counter()
    if exported:
        study = optuna.load_study(study_name=studies.NAME, storage=f"sqlite:///{exported}")
        count = len(study.get_trials(deepcopy=False))
        seconds = time.perf_counter() - before
    else:
        with studies.open_ledger(scratch, studies.job(10**6, "tpe")) as ledger:
            seconds = time.perf_counter() - before
            count = sum(1 for _ in ledger.attempts())
            for _ in range(ASKS):
                request = ledger.ask()
                assert request is not None
                ledger.tell(studies.outcome(request, studies.sphere(request.params)))
            rss = _resident()
    if exported:
        rss = _resident()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer = {"seconds": seconds, "trials": count, "before": rss_before, "rss": rss, "peak": peak}
    print(json.dumps(answer))  # noqa: T201  this is the answer


def _resident() -> float:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
