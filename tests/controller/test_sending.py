"""The files of a study's best trials on their way to MLflow at the end of a run: which, how often, how long; what is told.

Ray is a double. Not checked here: the sending itself (tests/worker/test_kept_files.py), MLflow's door (tests/gateway), and a
whole study (tests/study/test_kept_files.py).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from tests.controller.loops import CANCELLED, PAUSED, Loop
from tests.controller.ray_double import FakeRay, clock, fake, running
from tests.controller.slots_double import Slots
from tests.controller.trainings import SEARCH, Opened, job

from trialplane.controller.endings import Ending
from trialplane.controller.sending import PATIENCE, PAUSE, TRIES, FileSender
from trialplane.controller.slots import SlotPool
from trialplane.wire import messages
from trialplane.wire.messages import FilesSent, SendFiles
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import TrialRequest
from trialplane.wire.states import FailureClass

__all__ = ["clock", "fake"]
Answer = FilesSent | Exception | bytes | None


class End:
    """The end of a run: a pool that answers what is sent, and a clock that goes on with each look at it.

    Args:
        fake: Ray.
        clock: seconds.
        answers: what a slot says of each trial's files, in the order in which they are sent; None for nothing.
    """

    def __init__(self, fake: FakeRay, clock: list[float], answers: list[Answer]) -> None:
        self.fake = fake
        self.shown: list[str] = []
        self.pool: SlotPool = running(fake)
        self.began = clock[0]
        answered = 0

        def events(timeout: float) -> Any:
            nonlocal answered
            clock[0] += 1.0
            sent = [call for call in fake.calls if call.method == "send_files"]
            if len(sent) > answered and answered < len(answers) and (answer := answers[answered]) is not None:
                sent[-1].answer = messages.encode(answer) if isinstance(answer, FilesSent) else answer
            answered = len(sent)
            yield from ()

        self.pool.events = events  # type: ignore[method-assign]

    def run(self, runs: dict[int, int], goes_on: Callable[[], bool] = lambda: True) -> list[str]:
        return FileSender(self.pool, runs).run(goes_on, self.shown.append)

    @property
    def sent(self) -> list[tuple[int, int]]:
        made = [
            messages.decode(call.given[0], messages.SEND_FILES) for call in self.fake.calls if call.method == "send_files"
        ]
        assert all(0.0 < one.seconds <= PATIENCE for one in made), "each within what is left"
        return [(one.trial, one.number) for one in made]


def test_the_files_of_each_trial_are_sent_once_to_its_run(fake: FakeRay, clock: list[float]) -> None:
    end = End(fake, clock, [FilesSent(), FilesSent()])
    assert end.run({4: 44, 2: 42}) == []
    assert end.sent == [(4, 44), (2, 42)]
    assert f"for {PATIENCE:.0f} s at most: 0 of 2 trials are done" in end.shown[0] and "2 of 2" in end.shown[-1]


def test_each_trial_has_its_share_of_the_time(fake: FakeRay, clock: list[float]) -> None:
    late = FilesSent("they were not there in time", again=True)
    end = End(fake, clock, [late, FilesSent(), FilesSent(), None])
    end.run({4: 44, 2: 42, 5: 45})
    made = [messages.decode(call.given[0], messages.SEND_FILES) for call in fake.calls if call.method == "send_files"]
    assert [one.trial for one in made] == [4, 2, 5, 4]
    first, second, third, again = (one.seconds / PATIENCE for one in made)
    assert 0.3 < first <= 1 / 3 and 0.45 < second <= 0.5, "the one that is tried again waits behind all that were not"
    assert third > 0.9 and again > 0.8


def test_a_try_in_vain_is_repeated_behind_the_others_and_not_for_ever(fake: FakeRay, clock: list[float]) -> None:
    away = FilesSent("connection refused", again=True)
    end = End(fake, clock, [away, FilesSent(), away, away, away])
    (told,) = end.run({4: 44, 2: 42})
    assert end.sent == [(4, 44), (2, 42), *[(4, 44)] * (TRIES - 1)]
    assert told == "keep.files: MLflow lacks files of trial 4, which are beside its checkpoints: connection refused"
    assert clock[0] - end.began >= 2 * PAUSE


def test_a_try_that_succeeds_after_all_is_not_told(fake: FakeRay, clock: list[float]) -> None:
    lost = fake.exceptions.ActorDiedError()
    assert End(fake, clock, [lost, FilesSent()]).run({4: 44}) == []


@pytest.mark.parametrize("trouble", [OSError("no space left on device"), b"what no slot says"])
def test_a_sending_that_fails_itself_is_repeated_and_ends_no_study(
    fake: FakeRay, clock: list[float], trouble: Answer
) -> None:
    end = End(fake, clock, [trouble, trouble, FilesSent(), *[trouble] * (TRIES - 1)])
    (told,) = end.run({4: 44, 2: 42})
    assert end.sent == [(4, 44), (2, 42), (4, 44), (2, 42), (2, 42)]
    assert "trial 2, which are beside its checkpoints: the sending failed: " in told


def test_what_is_refused_for_good_is_not_tried_again(fake: FakeRay, clock: list[float]) -> None:
    end = End(fake, clock, [FilesSent("model.pt (too large)")])
    (told,) = end.run({4: 44})
    assert len(end.sent) == 1 and told.endswith(": model.pt (too large)")


def test_the_end_of_a_run_waits_for_a_bounded_time(fake: FakeRay, clock: list[float]) -> None:
    end = End(fake, clock, [FilesSent("away", again=True), None])
    told = end.run({4: 44, 2: 42})
    assert clock[0] - end.began == PATIENCE
    assert [text.partition(": MLflow lacks files of ")[2] for text in told] == [
        f"trial 2, which are beside its checkpoints: they were not there within {PATIENCE:.0f} s",
        f"trial 4, which are beside its checkpoints: they were not there within {PATIENCE:.0f} s; away",
    ]


@pytest.mark.parametrize("looks", [0, 3])
def test_nothing_more_is_sent_once_the_run_is_to_end(fake: FakeRay, clock: list[float], looks: int) -> None:
    end = End(fake, clock, [None])
    told = end.run({4: 44, 2: 42}, lambda: clock[0] - end.began < looks)
    assert end.sent == ([(4, 44)] if looks else []) and clock[0] - end.began == looks
    assert len(told) == 2 and all("the run was to end before" in text for text in told)


def test_removals_that_are_under_way_hold_nothing_up(fake: FakeRay, clock: list[float]) -> None:
    end = End(fake, clock, [FilesSent()])
    assert end.pool.remove_checkpoints((TrialFolder(7),)) is not None  # and never answered
    assert end.run({4: 44}) == []


@pytest.mark.parametrize("wanted", [None, PAUSED, CANCELLED])
def test_a_run_that_the_user_ends_sends_nothing(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, wanted: Ending | None
) -> None:
    """Of three trials the third runs when the user ends the run; one that is paused sends at its own end."""
    of = job(**{**SEARCH, "trials": 3}, keep={"best": 1, "files": ["model.pt"]})

    def stop(slots: Slots) -> None:
        slots.fail(0, FailureClass.STOPPED)

    loop = Loop(opened.open(of), opened.run, lambda: wanted if len(loop.slots.starts) == 3 else None, stop)
    sent: list[SendFiles] = []
    start = loop.slots.start

    def begin(slot: int, request: TrialRequest) -> None:
        start(slot, request)
        if wanted is None or request.trial < 2:
            loop.slots.end(slot, metrics={"loss": 1.0 - request.trial})

    def send(message: SendFiles) -> Future[FilesSent]:
        sent.append(message)
        answer: Future[FilesSent] = Future()
        answer.set_result(FilesSent())
        return answer

    monkeypatch.setattr(loop.slots, "start", begin)
    monkeypatch.setattr(loop.slots, "send_files", send)
    ending = loop.controller.run()
    if wanted is None:
        assert [(message.trial, message.number) for message in sent] == [(2, 2)] and loop.controller.warnings == ()
        assert "sending the files" in loop.board.shown[-1].reason
    else:
        told = "keep.files: MLflow lacks files of trial 1, which are beside its checkpoints: the run was to end before"
        assert (ending, sent) == (wanted, [])
        assert loop.controller.warnings == ((told,) if wanted is CANCELLED else ())
