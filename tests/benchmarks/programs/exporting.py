"""Writes the run in a folder as a study of Optuna's, for the peers that work on its RDB storage."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.benchmarks import studies

from trialplane.controller import export
from trialplane.ledger import results
from trialplane.ledger.attempts import NO_LIMIT, StudyOrder
from trialplane.wire import records


def main() -> None:
    """Exports the run in `folder` into the file `target`."""
    arguments = json.loads(sys.argv[1])
    ledger = Path(arguments["folder"]) / "ledger.db"
    found = results.attempts_since(ledger, studies.NAME, False, 0)
    rows = results.reports(ledger, studies.NAME, alive=False, after=0, limit=NO_LIMIT)
    reports = [(row.number, row.step, row.metrics["loss"]) for row in rows]
    order = StudyOrder(studies.NAME, ("minimize",), ("loss",), {}, f"sqlite:///{arguments['target']}")
    export.write(order, [json.dumps({"attempts": records.to_dict(found), "alive": False, "reports": reports})])
    print(json.dumps({"trials": len(found)}))  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
