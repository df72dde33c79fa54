"""Makes a run with many finished trials: asked of the ledger with a random sampler, and told at once."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.benchmarks import studies

from trialplane.wire.paths import RunPaths


def main() -> None:
    """Fills the ledger of the run in `folder` with `trials` trials."""
    arguments = json.loads(sys.argv[1])
    run, trials = RunPaths(Path(arguments["folder"])), arguments["trials"]
    run.root.mkdir(parents=True)
    asked = studies.job(trials, "random")
    run.job.write_text(asked.model_dump_json())
    run.submission.write_text(json.dumps({"submitted": time.time()}))
    with studies.open_ledger(run.root, asked) as ledger:
        while (request := ledger.ask()) is not None:
            ledger.tell(studies.outcome(request, studies.sphere(request.params)))
    print(json.dumps({"trials": trials}))  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
