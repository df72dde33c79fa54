"""What it costs to write a trial down: 10 parameters, 3 reports, its end; our ledger beside Optuna's storages.

On a cluster a controller writes through the gateway: beside what the database itself takes, where PostgreSQL is installed.
It is without fsync and on the same machine, so that the way there is as much of the whole as it can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.rows import Goal, Row
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
        "rounds": place.repeats(10),
        "trials": place.size(20, 2),
    }
    taken = place.call("storing", arguments, timeout=600)
    for name, peer in PEERS.items():
        what = "ask, 3 reports and tell of a trial of 10 parameters"
        yield Row("ledger", what, "ms", tuple(taken["ours"]), peer, tuple(taken[name]))
    if any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        place.say("ledger: through the gateway, and directly, in turn")
        taken = place.call("gateway", {"rounds": place.repeats(20), "trials": place.size(50, 2)}, timeout=600)
        what = "the same on PostgreSQL, through the gateway"
        goal = Goal(times=0.77)  # at most 1.3 times as long
        yield Row(
            "ledger", what, "ms", tuple(taken["gateway"]), "the ledger on PostgreSQL itself", tuple(taken["direct"]), goal
        )
        mib = place.size(64, 1)
        place.say("ledger: records in MLflow through the gateway's door, and directly, in turn")
        arguments = {"rounds": place.repeats(5), "trials": place.size(15, 1), "mib": mib}
        taken = place.call("recording", arguments, timeout=600)
        for thing in ("trial", "artifact"):
            what = f"{thing} in MLflow, through the gateway" + (f" ({mib} MiB)" if thing == "artifact" else "")
            goal = Goal(times=0.67)  # at most 1.5 times as long
            yield Row(
                "ledger", what, "ms", tuple(taken[f"{thing} door"]), "MLflow itself", tuple(taken[f"{thing} direct"]), goal
            )
