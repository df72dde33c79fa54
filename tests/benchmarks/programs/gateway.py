"""Asks, reports and tells trials on a ledger behind the gateway and one on PostgreSQL itself, in turn; prints ms each."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks import studies
from tests.benchmarks.programs.storing import tell_one
from tests.contracts.conftest import Postgres
from tests.contracts.gateway_process import Gateways

from trialplane.controller.ledger import Ledger


def main() -> None:
    """Prints milliseconds per trial, one number per round and ledger."""
    arguments = json.loads(sys.argv[1])
    rounds, trials = arguments["rounds"], arguments["trials"]
    job = studies.job(10**6, "random")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = Postgres(max(Path("/usr/lib/postgresql").glob("*/bin")))
        stack.callback(postgres.close)
        gateways = Gateways()
        stack.callback(gateways.close)
        door = gateways.door(postgres.new_database())
        stack.callback(door.close)
        door.admit(studies.NAME, [objective.direction for objective in job.objectives])
        ways = {
            name: stack.enter_context(Ledger(url, job, studies.NAME, folder, folder / name))
            for name, url in {"direct": postgres.new_database(), "gateway": door.url()}.items()
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, ledger in ways.items():
                before = time.perf_counter()
                for _ in range(trials):
                    tell_one(ledger)
                if number:  # the first fills caches
                    taken[name].append(1000 * (time.perf_counter() - before) / trials)
    print(json.dumps(taken))  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
