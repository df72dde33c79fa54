"""A controller's loop over doubles: slots that a test drives, an MLflow that is nobody's business, and a user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.controller.slots_double import Slots

from trialplane.controller import loop
from trialplane.controller.endings import Ending
from trialplane.controller.ledger import Ledger
from trialplane.controller.workloads.study import StudyWorkload
from trialplane.controller.workloads.training import TrainingWorkload
from trialplane.controller.workloads.workload import Workload
from trialplane.job import kinds
from trialplane.wire.costs import Prices
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus
from trialplane.wire.states import FailureClass, RunState

PAUSED = Ending(RunState.PAUSED, "paused by the user", kill=True)
CANCELLED = Ending(RunState.CANCELLED, "cancelled by the user", kill=True)


class Exporter:
    """MLflow's end, which is nobody's business here."""

    trouble = ""

    def wake(self) -> None:
        """Goes on."""

    tick = wake


class Board:
    """Keeps every status it is shown."""

    def __init__(self) -> None:
        self.shown: list[RunStatus] = []

    def show(self, status: RunStatus, *, now: bool = False) -> None:
        self.shown.append(status)


class Loop:
    """One controller whose slots are warm, and a user who wants something as soon as the trial runs.

    Args:
        ledger: of the study.
        run: its files.
        wants: what the user wants, or what says so each time it is asked.
        stop: what a trial does that is told to stop; None when it is not to be told.
        work: makes the workload of the ledger and the slots; by default that of a study, or of a training.
        size: how many slots there are.
        worked: seconds that former controllers worked.
        prices: of hours of GPUs and cores.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: RunPaths,
        wants: Ending | Callable[[], Ending | None] | None,
        stop: Callable[[Slots], None] | None = None,
        work: Callable[[Ledger, Any], Workload] | None = None,
        size: int = 1,
        worked: float = 0.0,
        prices: Prices = Prices(),  # noqa: B008  frozen
    ) -> None:
        self._wants = wants
        self.slots = Slots(size)
        self.slots.warm(*range(size))
        self.board = Board()
        self.heard: list[str] = []

        def on_stop(slot: int, message: str) -> None:
            assert stop is not None, "it was to be killed"
            if not self.heard:  # each turn of the loop says it again
                stop(self.slots)
            self.heard.append(message)

        def on_kill(slot: int, failure: FailureClass, message: str) -> None:
            if slot not in [killed for killed, _, _ in self.slots.killed]:
                self.slots.fail(slot, failure, message)
            self.slots.killed.append((slot, failure, message))

        self.slots.stop = on_stop  # type: ignore[method-assign]
        self.slots.kill = on_kill  # type: ignore[method-assign]
        base = RunStatus("toy-1", "toy", RunState.RUNNING, ledger.job.trials, worked=worked, prices=prices)
        work = work or (TrainingWorkload if isinstance(ledger.job, kinds.Training) else StudyWorkload)
        parts: tuple[Any, ...] = (run, ledger, work(ledger, self.slots), Exporter(), self.board, base)
        self.controller = loop.Loop(*parts, self)

    def ending(self) -> Ending | None:
        """The state that the user requests once the trial runs."""
        if not self.slots.started:
            return None
        return self._wants() if callable(self._wants) else self._wants

    def parallel(self) -> None:
        """As many as there are."""
