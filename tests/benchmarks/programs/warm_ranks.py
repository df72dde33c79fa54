"""Trials of many ranks in a slot whose template is warm; prints the seconds from request to first step of the last rank."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from trialplane.wire.messages import TrialEnded
from trialplane.wire.records import SlotConfig, TrialRequest
from trialplane.worker.slot import Slot


def main() -> None:
    """Runs the trials one after the other."""
    arguments = json.loads(sys.argv[1])
    root, ranks = Path(arguments["folder"]), arguments["ranks"]
    config = SlotConfig(
        run="ranks",
        code=str(Path(__file__).parent),
        entrypoint="first_step:run",
        root=str(root),
        cache=str(root / "cache"),
        ranks=ranks,
    )
    slot = Slot(config, "0-0")
    ready = slot.start()
    seconds, methods = [], set()
    for number in range(arguments["trials"]):
        folder = root / f"steps-{number}"
        folder.mkdir()
        request = TrialRequest("ranks", number, 1, number, {"folder": str(folder)}, 0, ("score",), timeout=300.0)
        began = time.perf_counter()
        sent = slot.run(request)
        while not (sent and isinstance(sent[-1], TrialEnded)):
            sent = slot.answer()
        outcome = sent[-1].outcome
        assert not outcome.failure, outcome.message
        methods.add(outcome.start_method)
        seconds.append(max(float((folder / str(rank)).read_text()) for rank in range(ranks)) - began)
    slot.close()
    print(json.dumps({"seconds": seconds, "warm": ready.seconds, "methods": sorted(methods)}))  # noqa: T201  the answer


if __name__ == "__main__":
    main()
