"""Asks, reports and tells trials on our ledger and on Optuna's storages, a few on each in turn; prints ms per trial."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from tests.benchmarks import studies

from trialplane.controller.ledger import Ledger
from trialplane.wire.records import TrialReport

REPORTS = 3


def main() -> None:
    """Prints milliseconds per trial, one number per round and storage."""
    arguments = json.loads(sys.argv[1])
    scratch, rounds, trials = Path(arguments["scratch"]), arguments["rounds"], arguments["trials"]
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    scratch.mkdir()
    storages: dict[str, BaseStorage] = {
        "sqlite": RDBStorage(f"sqlite:///{scratch / 'default.db'}"),
        "wal": _with_wal(RDBStorage(f"sqlite:///{scratch / 'wal.db'}")),
        "journal": JournalStorage(JournalFileBackend(str(scratch / "journal.log"))),
        "memory": InMemoryStorage(),
    }
    with studies.open_ledger(scratch / "ours", studies.job(10**6, "random")) as ledger:
        ways: dict[str, Callable[[], None]] = {"ours": lambda: tell_one(ledger)}
        for name, storage in storages.items():
            ways[name] = _plain(storage)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                before = time.perf_counter()
                for _ in range(trials):
                    way()
                if number:  # the first fills caches
                    taken[name].append(1000 * (time.perf_counter() - before) / trials)
    print(json.dumps(taken))  # noqa: T201  this is the answer


def tell_one(ledger: Ledger) -> None:
    """Asks for a trial, reports and tells its end."""
    request = ledger.ask()
    assert request is not None
    for step in range(REPORTS):
        ledger.report(TrialReport(request.number, step, {"loss": float(step)}, 0.0))
    ledger.tell(studies.outcome(request, studies.sphere(request.params)))


def _plain(storage: BaseStorage) -> Callable[[], None]:
    study = optuna.create_study(
        storage=storage, sampler=optuna.samplers.RandomSampler(seed=0), pruner=optuna.pruners.NopPruner()
    )

    def one_trial() -> None:
        trial = study.ask()
        params = {name: trial.suggest_float(name, 0.0, 1.0) for name in studies.PARAMETERS}
        for step in range(REPORTS):
            trial.report(float(step), step)
            trial.should_prune()
        study.tell(trial, studies.sphere(params))

    return one_trial


def _with_wal(storage: RDBStorage) -> RDBStorage:
    """As our ledger sets SQLite."""

    def tune(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    sa.event.listen(storage.engine, "connect", tune)
    storage.engine.dispose()  # connections made before know nothing of it
    return storage


if __name__ == "__main__":
    main()
