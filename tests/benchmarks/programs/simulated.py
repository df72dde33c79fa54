"""Runs the real controller on a run folder with slots that do no work, and measures the controller itself.

Only the pool is simulated: its attempts report at a fixed rate, or end at once, in no process. Everything else (ledger,
sampler, status, the exporter to MLflow) is what a run has.
"""

from __future__ import annotations

import collections
import heapq
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import studies

from trialplane.controller import __main__ as entry
from trialplane.controller import workloads
from trialplane.controller.exporter_process import ExporterProcess
from trialplane.controller.ledger import Ledger
from trialplane.controller.pool import SlotEvent, SlotReady, SlotTrial
from trialplane.wire.messages import TrialEnded
from trialplane.wire.records import TrialOutcome, TrialReport, TrialRequest

REPORTS = 0  # of each attempt
RATE = 1.0  # reports per second of each attempt
METRICS = ("loss", "accuracy", "rate", "norm", "tokens")


class SimulatedPool:
    """A `Pool` whose attempts report and end by the clock."""

    trouble = ""
    nodes = ("simulated",)

    def __init__(self, _host: object, _config: object, size: int, **_: object) -> None:
        self.size = size
        self._warming = collections.deque(range(size))
        self._idle: set[int] = set()
        self._requests: dict[int, TrialRequest] = {}
        self._due: list[tuple[float, int, int]] = []  # moment of the slot's next event, the slot, reports so far

    @property
    def slots(self) -> frozenset[int]:
        return frozenset(range(self.size))

    @property
    def idle(self) -> list[int]:
        return sorted(self._idle)

    @property
    def ready(self) -> int:
        return self.size - len(self._warming)

    def resize(self, size: int) -> None:
        """Slots that no attempt uses any more stay."""

    def start(self, slot: int, request: TrialRequest) -> None:
        self._idle.discard(slot)
        self._requests[slot] = request
        heapq.heappush(self._due, (time.monotonic() + 1 / RATE, slot, 0))

    def answer(self, slot: int, prune_at: int | None = None, suggested: object = None) -> None:
        """Nothing prunes these attempts."""

    def running(self) -> dict[int, TrialRequest]:
        return dict(self._requests)

    def events(self, timeout: float) -> Iterator[SlotEvent]:
        while self._warming:
            slot = self._warming.popleft()
            self._idle.add(slot)
            yield SlotReady(slot, 0.0, (), "simulated")
        if not self._due:
            time.sleep(timeout)
            return
        time.sleep(max(0.0, min(timeout, self._due[0][0] - time.monotonic())))
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            moment, slot, reports = heapq.heappop(self._due)
            request = self._requests[slot]
            if reports < REPORTS:
                metrics = dict.fromkeys(METRICS, 1 / (reports + 1))
                heapq.heappush(self._due, (moment + 1 / RATE, slot, reports + 1))
                yield SlotTrial(slot, request, (TrialReport(request.number, reports + 1, metrics, time.time()),))
            else:
                del self._requests[slot]
                self._idle.add(slot)
                yield SlotTrial(slot, request, (TrialEnded(studies.outcome(request, request.number)),))

    def remove_checkpoints(self, folders: object) -> None:
        """There are none."""

    def send_files(self, message: object) -> None:
        """There are none."""

    def close(self) -> None:
        """There is nothing to end."""


class NoExporter(ExporterProcess):
    """For a measurement of the controller alone."""

    def _start(self) -> None:
        """Starts nothing."""

    def wake(self) -> None:
        """There is nobody."""

    def tick(self) -> None:
        """There is nobody."""

    def send_end(self, run_end: object, trials: int = 0) -> None:
        """There is nobody."""

    def close(self, patience: float, **waits: Any) -> bool:
        return True


def main() -> None:
    """Runs the controller; prints moments in seconds, its processor time in seconds, and its memory in KiB by trials."""
    global REPORTS, RATE
    arguments = json.loads(sys.argv[1])
    REPORTS, RATE = arguments["reports"], arguments["rate"]
    begun: list[tuple[float, float]] = []  # at the first slot's readiness
    told: list[float] = []
    cpu: list[float] = []
    memory: dict[int, int] = {}
    recorded: list[float] = []
    events, tell, close = SimulatedPool.events, Ledger.tell, ExporterProcess.close

    def timed_tell(self: Ledger, outcome: TrialOutcome) -> TrialOutcome | None:
        answer = tell(self, outcome)
        told.append(time.perf_counter())
        cpu.append(time.process_time())
        if len(told) % arguments["every"] == 0:
            memory[len(told)] = resident()
        return answer

    def timed_events(self: SimulatedPool, timeout: float) -> Iterator[SlotEvent]:
        begun or begun.append((time.perf_counter(), time.process_time()))
        yield from events(self, timeout)

    def timed_close(self: ExporterProcess, patience: float, **waits: Any) -> bool:
        complete = close(self, patience, **waits)
        recorded.append(time.perf_counter())
        return complete

    patches: Any = (
        (workloads, "SlotPool", SimulatedPool),
        (SimulatedPool, "events", timed_events),
        (Ledger, "tell", timed_tell),
        (ExporterProcess, "close", timed_close),
    )
    for owner, name, value in patches:
        setattr(owner, name, value)
    if not arguments["mlflow"]:
        from trialplane.controller import session

        session.ExporterProcess = NoExporter  # type: ignore[misc, attr-defined]
    sys.argv = ["controller", "--run-dir", arguments["folder"]]
    code = entry.main()
    answer = {
        "code": code,
        "begun": begun[0],
        "told": told,
        "cpu": cpu,
        "memory": memory,
        "recorded": recorded[-1:],
        "metrics": METRICS,
    }
    print(json.dumps(answer), flush=True)  # noqa: T201  this is the answer


def resident() -> int:
    """Memory of this process in KiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


if __name__ == "__main__":
    main()
