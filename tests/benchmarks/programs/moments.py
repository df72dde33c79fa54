"""Says when and where each trial of a run ran, from its ledger, whatever database that is.

Also sent to a cluster: the pod that has the database's URL runs it from its standard input.
"""

from __future__ import annotations

import json
import os
import sys

import sqlalchemy as sa

from trialplane.wire import env, labels

_ATTEMPTS = """
SELECT r.value_json, o.value_json
FROM studies s
JOIN trials t ON t.study_id = s.study_id
JOIN trial_user_attributes r ON r.trial_id = t.trial_id AND r.key = :request
JOIN trial_user_attributes o ON o.trial_id = t.trial_id AND o.key = :outcome
WHERE s.study_name = :run
ORDER BY t.number
"""


def main() -> None:
    """Prints all attempts of the run in `run` that ended; `ledger` is the database's URL, else the environment's."""
    arguments = json.loads(sys.argv[1])
    names = {"run": arguments["run"], "request": labels.LEDGER_REQUEST, "outcome": labels.LEDGER_OUTCOME}
    engine = sa.create_engine(arguments.get("ledger") or os.environ[env.LEDGER])
    with engine.connect() as connection:
        found = [(json.loads(r), json.loads(o)) for r, o in connection.execute(sa.text(_ATTEMPTS), names)]
    engine.dispose()
    kept = ("state", "metrics", "started", "ended", "node")
    answer = {"attempts": [{"trial": asked["trial"], **{key: said[key] for key in kept}} for asked, said in found]}
    print(json.dumps(answer))  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
