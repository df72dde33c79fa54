"""The codec of the messages between processes: all of them come back, and what is not a message, or none that is taken from
that side, is an error that says so.

Not checked here: the socket that carries them (tests/worker/test_channel.py), and what becomes of a trial that sends such
things (tests/worker/test_strangers.py).
"""

from __future__ import annotations

import contextlib
import json
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trialplane
from trialplane import errors
from trialplane.wire import messages
from trialplane.wire.messages import Direction
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.wire.units import Offer, Transfer, Unit

CONFIG = SlotConfig("toy", "/code", "train:run", "/root", "/cache", preload=("numpy",), env={"A": "b"})
REQUEST = TrialRequest("toy", 3, 1, 7, {"lr": 0.1, "layers": [1, 2]}, 5, ("loss",), timeout=60.0)
OUTCOME = TrialOutcome(7, TrialState.FAILED, FailureClass.ERROR, {"loss": 0.5}, {"note": ["x"]}, "it failed")
EXAMPLES = [
    (messages.START, messages.StartAttempt(REQUEST)),
    (messages.REMOVE, messages.RemoveCheckpoints((TrialFolder(3), TrialFolder(4, 8)))),
    (messages.SEND_FILES, messages.SendFiles(3, 7, 60.0)),
    (messages.FILES_SENT, messages.FilesSent("model.pt (too large)", again=True)),
    (messages.ANSWER, messages.AnswerReport()),
    (messages.CONTROL, messages.KillTrial(FailureClass.TIMEOUT, "too late")),
    (messages.CONTROL, messages.StopTrial("the user paused the run")),
    (messages.CONTROL, messages.HandUnits((Unit(4, 99),), last=True)),
    (messages.CONTROL, messages.ReleaseResults((4,))),
    (messages.CONTROL, messages.EndFeed(0)),
    (messages.FETCH, messages.FetchResults((4, 5))),
    (messages.FEED, messages.FeedTransfers((Transfer(4, 0, 1000, 12),))),
    (messages.FROM_STARTING, messages.SlotStarted("pod-0", 0.5, ("a thread is alive",), "pod-0:29500")),
    (messages.FROM_SLOT, messages.LogGrown(b"\xff\nstart\n")),
    (messages.FROM_SLOT, messages.LogGrown(b"")),
    (messages.FROM_SLOT, TrialReport(7, 9, {"loss": 0.25}, 1e9, "slow")),
    (messages.FROM_SLOT, messages.UnitsWanted(3)),
    (messages.FROM_SLOT, messages.ResultsOffered((Offer(4, 1000, 12, 0.5),))),
    (messages.FROM_SLOT, messages.ResultsTaken((4,))),
    (messages.FROM_SLOT, messages.Exiting()),
    (messages.FROM_SLOT, messages.TrialEnded(OUTCOME, begun=(4,), arrays="/slot/7.arrays")),
    (messages.LOAD, messages.LoadJob(CONFIG)),
    (messages.FROM_LOADING, messages.JobLoaded(0.5, ("a thread is alive",))),
    (messages.FROM_LOADING, messages.JobFailed("ImportError: no")),
    (messages.TO_TEMPLATE, messages.StartTrial(7)),
    (messages.FROM_TEMPLATE, messages.TrialStarted(7, 4711, "spawn", ("CUDA is initialized",))),
    (messages.FROM_TEMPLATE, messages.TrialExited(7, -9, 1 << 30)),
    (messages.TO_TRIAL, messages.RunTrial(CONFIG, REQUEST, "/work")),
    (messages.TO_TRIAL, messages.RunTrial(CONFIG, REQUEST, "/work", messages.SharedFiles("/dev/shm/x", None))),
    (messages.TO_TRIAL, messages.AnswerReport(3)),
    (messages.TO_TRIAL, messages.Suggested(2.0, "", ("c is deprecated",))),
    (messages.TO_TRIAL, messages.HandUnits((Unit(4, 99), Unit(5, 98)), last=False)),
    (messages.TO_TRIAL, messages.ReleaseResults((4, 5))),
    (messages.TO_TRIAL, messages.FeedResults((messages.FedResult(4, 0, 12, "/dev/shm/x/1-0"),))),
    (messages.TO_TRIAL, messages.EndFeed(2)),
    (messages.FROM_TRIAL, messages.Reported(9, {"loss": 0.25}, 1e9, 12.5, "slow")),
    (messages.FROM_TRIAL, messages.Suggest("c", "float", 0.5, 2.0, 0.5)),
    (messages.FROM_TRIAL, messages.Suggest("kind", "categorical", choices=("rbf", [1, 2], None))),
    (messages.FROM_TRIAL, messages.Ended(OUTCOME)),
    (messages.FROM_TRIAL, messages.Confirm()),
    (messages.FROM_RANK, messages.Confirm()),
    (messages.FROM_SLOT, messages.Confirm()),
    (messages.FROM_TRIAL, messages.Printed(1_024)),
    (messages.FROM_WORKER, messages.UnitsWanted(3)),
    (messages.FROM_WORKER, messages.UnitsBegun((4,))),
    (messages.FROM_WORKER, messages.ResultOffered(Offer(4, 1000, 12, 0.5), "/dev/shm/x/1-0")),
    (messages.FROM_WORKER, messages.JobReturned()),
    (messages.FETCH, messages.FetchWeights()),
    (messages.CONTROL, messages.ReleaseWeights()),
    (messages.FROM_LEARNER, messages.WeightsOffered(1000, "/dev/shm/x/1-0")),
    (messages.FROM_LEARNER, messages.ResultsTaken((4, 5))),
    (messages.FROM_LEARNER, messages.FilesFree((4,))),
    (messages.TO_RANK, messages.RunRank(CONFIG, REQUEST, "/work", 1, "127.0.0.1:29500")),
    (messages.FROM_RANK, messages.Pulsed(9, 0.25)),
]
DIRECTIONS = [value for value in vars(messages).values() if isinstance(value, Direction)]
each = pytest.mark.parametrize(("direction", "message"), EXAMPLES, ids=lambda value: type(value).__name__)


def text(tag: Any, fields: Any, version: Any = "9.9.9") -> bytes:
    return json.dumps([tag, version, fields]).encode()


@each
def test_every_message_comes_back(direction: Direction[Any], message: Any) -> None:
    data = messages.encode(message)
    line, newline, beside = data.partition(b"\n")
    assert (bool(newline), beside) == (hasattr(message, "data"), getattr(message, "data", b""))
    assert json.loads(line)[:2] == [type(message).__name__, trialplane.__version__]
    assert messages.decode(data, direction) == message


def test_there_is_an_example_of_each() -> None:
    known = {kind for direction in DIRECTIONS for kind in direction.kinds.values()}
    assert known == {type(message) for _, message in EXAMPLES}


@pytest.mark.parametrize("direction", DIRECTIONS, ids=lambda direction: direction.sender)
def test_an_unknown_tag_names_both_versions(direction: Direction[Any]) -> None:
    with pytest.raises(errors.MessageError) as caught:
        messages.decode(text("Hibernated", {}), direction)
    said = (
        f"{direction.sender} of trialplane 9.9.9 sent 'Hibernated', which trialplane {trialplane.__version__} does not take"
    )
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("direction", DIRECTIONS, ids=lambda direction: direction.sender)
def test_messages_of_other_directions_are_not_taken(direction: Direction[Any]) -> None:
    for _, message in EXAMPLES:
        if type(message).__name__ not in direction.kinds:
            with pytest.raises(errors.MessageError, match="does not take from there"):
                messages.decode(messages.encode(message), direction)


def wrong_values(hint: Any) -> list[Any]:
    """JSON values that are none of this type."""
    if hint == tuple[Any, ...]:
        return ["a text", 3, {"a": [1]}]
    return ["a text", True, 1 << 70] if hint is int else [[{"a": 1}], {"a": [1]}]


@each
def test_a_field_of_another_type_is_an_error(direction: Direction[Any], message: Any) -> None:
    tag, _, fields = json.loads(messages.encode(message).partition(b"\n")[0])
    for name, hint in typing.get_type_hints(type(message)).items():
        for value in wrong_values(hint):
            with pytest.raises(errors.MessageError, match=rf"^{direction.sender} of trialplane 9.9.9 sent "):
                messages.decode(text(tag, {**fields, name: value}), direction)


@each
def test_a_truncated_message_is_an_error(direction: Direction[Any], message: Any) -> None:
    data = messages.encode(message).partition(b"\n")[0]
    for length in range(len(data)):
        with pytest.raises(errors.MessageError, match=rf"^{direction.sender} sent an invalid message"):
            messages.decode(data[:length], direction)


@pytest.mark.parametrize("beside", [b"\n", b"\nbytes"])
def test_bytes_beside_what_has_none_are_dropped(beside: bytes) -> None:
    data = messages.encode(messages.UnitsWanted(3))
    assert messages.decode(data + beside, messages.FROM_SLOT) == messages.UnitsWanted(3)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"null", b"3", b"{}", b"[]", b'["Ended"]', text(["Ended"], {}), text("Ended", []), text("Ended", {}),
     text("Ended", {"outcome": {"number": 1, "state": "SLEEPING"}}), text("Ended", {"outcome": 3}), b"[" * 100_000,
     b'["Reported","1",{"step":1,"metrics":{"a":1' + b"0" * 400 + b'},"time":1,"sent":1}]'],
)  # fmt: skip
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(errors.MessageError, match=r"^a trial (of trialplane (9.9.9|1) )?sent "):
        messages.decode(data, messages.FROM_TRIAL)


def test_what_a_newer_version_adds_is_dropped() -> None:
    added = text("UnitsWanted", {"count": 3, "soon": True})
    assert messages.decode(added, messages.FROM_WORKER) == messages.UnitsWanted(3)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200) | st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
       lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=9), below, max_size=4)).map(
           lambda value: json.dumps(["Reported", "1", value]).encode()))  # fmt: skip
def test_anything_else_is_a_message_or_an_error_of_ours(data: bytes) -> None:
    with contextlib.suppress(errors.MessageError):
        assert isinstance(messages.decode(data, messages.FROM_TRIAL), messages.Reported)
