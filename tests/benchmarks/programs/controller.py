"""Runs the real controller on a run folder, and notes when slots were ready, trials told and everything recorded.

The three moments are taken around public methods of the controller's own parts; nothing else differs from
`python -m trialplane.controller --run-dir DIR`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

# Ray reads its settings when it is imported; the benchmark has put them into the environment.
from trialplane.controller import __main__ as entry
from trialplane.controller.exporter_process import ExporterProcess
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import SlotReady, SlotTrial
from trialplane.controller.slots import SlotPool
from trialplane.wire.records import TrialOutcome


def main() -> None:
    """Runs the controller and prints the moments, in seconds of one clock."""
    arguments = json.loads(sys.argv[1])
    ready: list[float] = []
    told: list[float] = []
    states: list[str] = []
    recorded: list[float] = []
    events, tell, close = SlotPool.events, Ledger.tell, ExporterProcess.close

    def timed_events(self: SlotPool, timeout: float) -> Iterator[SlotReady | SlotTrial]:
        for said in events(self, timeout):
            if isinstance(said, SlotReady):
                ready.append(time.perf_counter())
            yield said

    def timed_tell(self: Ledger, outcome: TrialOutcome) -> TrialOutcome | None:
        answer = tell(self, outcome)
        told.append(time.perf_counter())
        states.append(outcome.state.value)
        return answer

    def timed_close(self: ExporterProcess, patience: float, *waits: Any) -> bool:
        complete = close(self, patience, *waits)
        recorded.append(time.perf_counter())
        return complete

    patches: Any = (
        (SlotPool, "events", timed_events),
        (Ledger, "tell", timed_tell),
        (ExporterProcess, "close", timed_close),
    )
    for owner, name, timed in patches:
        setattr(owner, name, timed)
    sys.argv = ["controller", "--run-dir", arguments["folder"]]
    code = entry.main()
    complete = states.count("COMPLETE")
    answer = {"code": code, "ready": ready, "told": told, "complete": complete, "recorded": recorded[-1:]}
    print(json.dumps(answer), flush=True)  # noqa: T201  this is the answer


if __name__ == "__main__":
    main()
