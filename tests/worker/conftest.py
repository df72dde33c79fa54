"""A slot on the bench: a job's code in a folder, a real template, and trials run one after the other."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane.wire import messages
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.units import Offer, Unit
from trialplane.worker import slot as slots
from trialplane.worker.running import RunningTrial


def wait_until(condition: Callable[[], Any], description: str, timeout: float = 300.0) -> Any:
    """Waits for something another process does; gives what the condition gave."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {description}"
        time.sleep(0.005)
    return value


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclasses.dataclass(frozen=True)
class Event:
    """The messages that a slot sends at one time, by kind; `waiting`: the trial waits for an answer."""

    reports: tuple[TrialReport, ...] = ()
    waiting: bool = False
    outcome: TrialOutcome | None = None
    arrays: str | None = None
    log: bytes = b""
    store: str | None = None
    wants: int = 0
    weights: int | None = None
    offers: tuple[Offer, ...] = ()
    took: tuple[int, ...] = ()
    begun: tuple[int, ...] | None = None
    wanted: messages.Suggest | None = None
    exiting: bool = False
    confirm: bool = False

    @classmethod
    def of(cls, sent: tuple[messages.FromSlot, ...], waiting: bool = False) -> Event:
        """All of what a slot sent at one time; TrialEnded comes last."""
        fields: dict[str, Any] = {"reports": tuple(each for each in sent if isinstance(each, TrialReport))}
        for each in sent:
            assert not isinstance(each, messages.TrialEnded) or each is sent[-1]
            match each:
                case messages.LogGrown(data):
                    fields["log"] = data
                case messages.UnitsWanted(count):
                    fields["wants"] = count
                case messages.ResultsOffered(offers):
                    fields["offers"] = offers
                case messages.WeightsOffered(size):
                    fields["weights"] = size
                case messages.ResultsTaken(units):
                    fields["took"] = units
                case messages.Confirm():
                    fields["confirm"] = True
                case messages.Exiting():
                    fields["exiting"] = True
                case messages.Suggest():
                    fields["wanted"] = each
                case messages.TrialEnded():
                    fields |= vars(each)
        return cls(waiting=waiting, **fields)


class Slot(slots.Slot):
    """A slot that gives events, and passes on what the controller sends to the process of a collection."""

    def run(self, request: TrialRequest, weights: Any = None) -> Event:
        return self._event(super().run(request, weights))

    def answer(self, prune_at: int | None = None, suggested: messages.Suggested | None = None) -> Event:
        return self._event(super().answer(prune_at, suggested))

    def play(self, request: TrialRequest, prune: Callable[[Event], int | None] = lambda event: None) -> list[Event]:
        """All events of one attempt; `prune` returns the step at which it is pruned."""
        return self.rest(self.run(request), prune)

    def rest(self, event: Event, prune: Callable[[Event], int | None] = lambda event: None) -> list[Event]:
        """An event of an attempt, and all that follow."""
        events = [event]
        while events[-1].outcome is None:
            events.append(self.answer(prune(events[-1])))
        return events

    def hand(self, units: Iterable[Unit], last: bool) -> None:
        self._pass_on(messages.HandUnits(tuple(units), last))

    def release(self, units: Iterable[int]) -> None:
        self._pass_on(messages.ReleaseResults(tuple(units)))

    def end_feed(self, failed: int) -> None:
        self._pass_on(messages.EndFeed(failed))

    def fetch(self, units: Sequence[int]) -> dict[int, Any]:
        return {} if self.exchange is None else self.exchange.fetch(units)

    def _pass_on(self, message: messages.ToExchange) -> None:
        if self.exchange is not None:
            self.exchange.pass_on(message)

    def _event(self, sent: tuple[messages.FromSlot, ...]) -> Event:
        return Event.of(sent, self.running is not None and self.running.is_answer_due)


class Bench:
    """A started slot and numbered requests to it.

    Args:
        root: an empty folder.
        modules: name → code of the job's modules.
        **config: fields of the slot's config.
    """

    def __init__(self, root: Path, modules: Mapping[str, str], **config: Any) -> None:
        self.root = root / "run"
        code = root / "code"
        code.mkdir(exist_ok=True)
        for name, text in modules.items():
            (code / f"{name}.py").write_text(text)
        config.setdefault("entrypoint", "train:run")
        self.config = SlotConfig(run="toy", code=str(code), root=str(self.root), cache=str(root / "cache"), **config)
        self.slot = Slot(self.config, "0-1")
        self.next = 0  # number of the next request
        self.ready = self.slot.start()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.slot.close()

    def request(self, what: str, *, timeout: float | None = 300.0, prunable: bool = False, **params: Any) -> TrialRequest:
        """A trial of its own that does `what`; it has a limit, so that no mistake lasts forever."""
        env, stop, directions = params.pop("env", {}), params.pop("stop", ()), params.pop("directions", ())
        number, self.next = self.next, self.next + 1
        return TrialRequest(
            run="toy",
            trial=number,
            attempt=1,
            number=number,
            params={"what": what, **params},
            seed=42,
            metrics=("score",),
            timeout=timeout,
            prunable=prunable,
            env=env,
            stop=stop,
            directions=directions,
        )

    def events(self, what: str, **options: Any) -> list[Event]:
        """All events of one trial."""
        return self.attempt(self.request(what, **options))

    def attempt(self, request: TrialRequest) -> list[Event]:
        """All events of one attempt."""
        return self.slot.play(request)

    def overdue(self, event: Event) -> TrialOutcome:
        """The outcome of a trial that has said what it had to say, and whose limit of time is over now."""
        assert event.outcome is None and self.running.request.timeout is not None
        self.running.timers.postpone("deadline", -self.running.request.timeout)
        outcome = self.slot.rest(event)[-1].outcome
        assert outcome is not None
        return outcome

    def reported(self, request: TrialRequest) -> tuple[TrialOutcome, list[TrialReport]]:
        """The outcome of one attempt, and its reports."""
        events = self.attempt(request)
        outcome = events[-1].outcome
        assert outcome is not None
        return outcome, [report for event in events for report in event.reports]

    def run(self, what: str, **options: Any) -> Event:
        """The last event of one trial."""
        return self.events(what, **options)[-1]

    def outcome(self, what: str, **options: Any) -> TrialOutcome:
        outcome = self.run(what, **options).outcome
        assert outcome is not None
        return outcome

    def look(self, file: Path, **options: Any) -> dict[str, Any]:
        """The facts that a trial of the job's `looks` finds."""
        self.run("looks", file=str(file), **options)
        facts: dict[str, Any] = json.loads(file.read_text())
        return facts

    def log(self, outcome: TrialOutcome) -> str:
        return (self.root / outcome.log).read_text()

    def slot_log(self) -> str:
        return (self.root / "slots" / "0-1.log").read_text()

    @property
    def running(self) -> RunningTrial:
        """The trial that runs now."""
        running = self.slot.running
        assert running is not None
        return running

    def templates(self) -> list[int]:
        """Pids of this slot's template."""
        return [] if self.slot.template is None else [self.slot.template.pid]

    @staticmethod
    def children(pid: int) -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def prune_at(bench: Bench, step: int, event: Event) -> TrialOutcome:
    """Answers the reports of a trial until one is of that step, which prunes it."""
    events = bench.slot.rest(event, lambda each: next((report.step for report in each.reports if report.step >= step), None))
    outcome = events[-1].outcome
    assert outcome is not None
    return outcome
