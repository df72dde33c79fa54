"""Makes a run with many ended trials: asked of the ledger with a random sampler, and told at once."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.benchmarks import studies

from trialplane.wire.paths import RunPaths


def main() -> None:
    """Fills the ledger of the run in `folder` with `trials` trials, `halved` or all complete."""
    arguments = json.loads(sys.argv[1])
    run, trials = RunPaths(Path(arguments["folder"])), arguments["trials"]
    run.root.mkdir(parents=True)
    asked, halving = studies.job(trials, "random"), studies.Halving() if arguments["halved"] else None
    shown = asked if halving is None else studies.job(trials, "random", pruner=halving.PRUNER)
    run.job.write_text(shown.model_dump_json())
    run.submission.write_text(json.dumps({"submitted": time.time()}))
    with studies.open_ledger(run.root, asked) as ledger:
        while (request := ledger.ask()) is not None:
            if halving is None:
                ledger.tell(studies.outcome(request, studies.sphere(request.params)))
            else:
                halving.train(ledger, request)
    print(json.dumps({"trials": trials}))  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
