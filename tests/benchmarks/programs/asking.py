"""How long an ask takes on a long history: our ledger, and Optuna's TPE in memory and on its RDB storage.

The three are asked in turn, on the same trials. A trial is told between two asks, outside the time.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import optuna
from tests.benchmarks import studies


def main() -> None:
    """Prints milliseconds of each ask: ours, memory, rdb."""
    arguments = json.loads(sys.argv[1])
    source, scratch, asks, few = (Path(arguments["source"]), Path(arguments["scratch"]), arguments["asks"], arguments["few"])
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    studies.copy_ledger(source, scratch / "ours")
    copy = shutil.copy(arguments["exported"], scratch / "rdb.db")
    rdb = optuna.load_study(study_name=studies.NAME, storage=f"sqlite:///{copy}", sampler=_tpe())
    memory = optuna.create_study(sampler=_tpe())
    memory.add_trials(rdb.get_trials(deepcopy=False))
    taken: dict[str, list[float]] = {"ours": [], "memory": [], "rdb": []}
    with studies.open_ledger(scratch / "ours", studies.job(10**6, "tpe")) as ledger:

        def ours() -> Callable[[], object]:
            request = ledger.ask()
            assert request is not None
            return lambda: ledger.tell(studies.outcome(request, studies.sphere(request.params)))

        for number in range(asks + 1):
            for name, ask in (("ours", ours), ("memory", lambda: _ask(memory)), ("rdb", lambda: _ask(rdb))):
                if name == "rdb" and number > few:
                    continue
                before = time.perf_counter()
                tell = ask()
                if number:  # the first fills caches
                    taken[name].append(1000 * (time.perf_counter() - before))
                tell()
    print(json.dumps(taken))  # noqa: T201  this is the answer


def _tpe() -> optuna.samplers.TPESampler:
    return optuna.samplers.TPESampler(seed=0)


def _ask(study: optuna.Study) -> Callable[[], object]:
    trial = study.ask()
    params = {name: trial.suggest_float(name, 0.0, 1.0) for name in studies.PARAMETERS}
    return lambda: study.tell(trial, studies.sphere(params))


if __name__ == "__main__":
    main()
