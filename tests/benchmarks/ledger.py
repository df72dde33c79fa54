"""What it costs to write a trial down: 10 parameters, 3 reports, its end; our ledger beside Optuna's storages."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.rows import Row
from tests.benchmarks.workplace import Workplace

# Name in the program → in the table.
PEERS = {
    "sqlite": "Optuna RDBStorage, SQLite as it comes",
    "wal": "Optuna RDBStorage, SQLite with WAL",
    "journal": "Optuna JournalStorage, file",
    "memory": "Optuna in memory",
}


def measure(place: Workplace) -> Iterator[Row]:
    """All storages in turn, in one process; the random sampler, so that the storage is what is measured."""
    place.say("ledger: all storages in turn")
    arguments = {
        "scratch": str(place.scratch / "storing"),
        "rounds": place.repeats(10, 2),
        "trials": place.size(20, 2),
    }
    taken = place.call("storing", arguments, timeout=600)
    for name, peer in PEERS.items():
        what = "ask, 3 reports and tell of a trial of 10 parameters"
        yield Row("ledger", what, "ms", tuple(taken["ours"]), peer, tuple(taken[name]))
