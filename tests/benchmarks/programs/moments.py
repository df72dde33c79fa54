"""Says when and where each trial of a run ran, from its ledger, whatever database that is.

Also sent to a cluster: the pod that has the database's URL runs it from its standard input.
"""

from __future__ import annotations

import json
import os
import sys

import sqlalchemy as sa

from trialplane.ledger import attempts, tables
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import env, records


def main() -> None:
    """Prints all attempts of the run in `run` that ended.

    `ledger` is the database's URL; else it is the environment's, and the run that of a `namespace`, beside a `control` one.
    """
    arguments = json.loads(sys.argv[1])
    if "ledger" in arguments:
        engine = sa.create_engine(arguments["ledger"])
    else:
        there = arguments["namespace"]
        engine = tables.postgresql_engine(Ledgers(os.environ[env.LEDGER], arguments["control"], [there]).url(there))
    with engine.connect() as connection:
        found = attempts.all_attempts(
            lambda query, values: connection.execute(sa.text(query), values).all(), arguments["run"]
        )
    engine.dispose()
    kept = ("state", "metrics", "started", "ended", "node")
    ended = [(one.request.trial, records.to_dict(one.outcome)) for one in found if one.outcome is not None]
    answer = {"attempts": [{"trial": trial, **{key: outcome[key] for key in kept}} for trial, outcome in ended]}
    print(json.dumps(answer))  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
