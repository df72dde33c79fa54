"""A trial is code of somebody: what it writes to its slot without keeping to the messages ends it, with a message that says
what it was, and neither the slot nor any other trial.

The processes are real. Not checked here: the codec (tests/wire/test_messages.py), the socket (test_channel.py), and what a
process of a collection may claim (collect/test_exchange.py).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest
from tests.worker.conftest import Bench

from trialplane.wire import messages
from trialplane.wire.states import FailureClass, TrialState

CODE = """
import os
import threading

def run(ctx):
    if ctx.params["what"] == "many metrics":
        return {"score": 0.5, **{f"metric {number:099}": 0.5 for number in range(40_000)}}
    data = bytes.fromhex(ctx.params["what"])
    if data:
        if ctx.params.get("report"):
            ctx.report(1, score=0.25)
        # By the descriptor, as any program could that a job starts.
        os.write(ctx._reporter._channel.fileno(), data)
        match ctx.params.get("then"):
            case "exit":
                os._exit(0)
            case "wait":
                threading.Event().wait()
    return 0.5
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One slot for all of them: it goes on after each."""
    with Bench(tmp_path_factory.mktemp("strangers"), {"train": CODE}) as made:
        yield made


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The same with two ranks a trial."""
    with Bench(tmp_path_factory.mktemp("strange-ranks"), {"train": CODE}, ranks=2) as made:
        yield made


def frame(tag: str, fields: str, version: str = "9.9.9") -> bytes:
    data = f'["{tag}","{version}",{fields}]'.encode()
    return struct.pack("!I", len(data)) + data


def ended(fields: str, number: int = 0) -> bytes:
    return frame("Ended", f'{{"outcome":{{"number":{number},{fields}}}}}')


STRANGE = {
    "unknown tag": (frame("Hibernated", "{}"), "of trialplane 9.9.9 sent 'Hibernated', which trialplane"),
    "no message": (struct.pack("!I", 3) + b"abc", "sent an invalid message"),
    "wrong type": (frame("Reported", '{"step":"x","metrics":{},"time":1,"sent":1}'), "a value of another type as step"),
    "too long": (struct.pack("!I", messages.MAX_BYTES + 1), "began a message of 4,194,305 bytes"),
}
OF_A_TRIAL = {
    **STRANGE,
    "a worker's": (frame("UnitsWanted", '{"count":3}'), "sent 'UnitsWanted', which trialplane"),
    "a step below 0": (frame("Reported", '{"step":-1,"metrics":{},"time":1,"sent":1}'), "sent a report of step -1"),
    "a state that is not an end": (ended('"state":"RUNNING"'), "sent an outcome of state RUNNING"),
    "a failure without its class": (ended('"state":"FAILED"'), "of state FAILED with failure None"),
    "no metric": (ended('"state":"COMPLETE"'), "without a finite number for score"),
    "not a number": (ended('"state":"COMPLETE","metrics":{"score":"nan"}'), "without a finite number for score"),
}


def assert_goes_on(bench: Bench) -> None:
    assert bench.outcome("").state is TrialState.COMPLETE


@pytest.mark.parametrize("what", OF_A_TRIAL)
@pytest.mark.parametrize("then", ["exit", "wait"])
def test_what_is_no_message_ends_the_trial_and_says_so(bench: Bench, what: str, then: str) -> None:
    data, said = OF_A_TRIAL[what]
    outcome = bench.outcome(data.hex(), then=then, report=True)
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.INVALID)
    assert said in outcome.message
    assert outcome.message.startswith("a trial ")
    assert outcome.metrics == {"score": 0.25}, "what it reported before counts"
    assert_goes_on(bench)


def test_half_a_message_and_an_end_is_no_result(bench: Bench) -> None:
    outcome = bench.outcome(frame("Reported", "{}")[:-5].hex(), then="exit")
    assert outcome.failure is FailureClass.INVALID
    assert outcome.message.startswith("the process ended with exit code 0 before it could send its result")
    assert "`command:`" in outcome.message
    assert_goes_on(bench)


def test_half_a_message_does_not_keep_a_trial_from_its_limit(bench: Bench) -> None:
    outcome = bench.outcome(frame("Reported", "{}")[:-5].hex(), then="wait", timeout=1.0)
    assert outcome.failure is FailureClass.TIMEOUT
    assert_goes_on(bench)


def test_a_trial_cannot_speak_for_another_or_of_another_time(bench: Bench) -> None:
    report = frame("Reported", '{"step":1,"metrics":{},"time":"nan","sent":1,"number":7777}')
    data = report + ended('"state":"PRUNED","started":"inf"', number=7777)
    before, request, after = time.time(), bench.request(data.hex(), then="exit"), time.time() + 60.0
    outcome, (told,) = bench.reported(request)
    assert (outcome.number, outcome.state) == (told.number, TrialState.PRUNED) == (request.number, "PRUNED")
    assert before <= told.time <= outcome.started <= after, "and at no time at which it was not there"


def test_arrays_that_are_not_there_are_no_result(bench: Bench) -> None:
    data = ended('"state":"COMPLETE","metrics":{"score":1},"arrays":1000')
    event = bench.run(data.hex(), then="exit")
    assert event.outcome is not None
    assert (event.outcome.failure, event.arrays) == (FailureClass.INVALID, None)
    assert "the 1,000 bytes of arrays of its result are not in" in event.outcome.message
    assert_goes_on(bench)


@pytest.mark.parametrize("which", ["bench", "ranks"])
def test_a_result_too_long_for_a_message_is_the_jobs_error(which: str, request: pytest.FixtureRequest) -> None:
    outcome = request.getfixturevalue(which).outcome("many metrics")
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.ERROR)
    assert "MessageError: Ended has 4," in outcome.message
    assert outcome.message.endswith(" bytes; a message has at most 4,194,304")


@pytest.mark.parametrize("what", STRANGE)
def test_what_a_rank_sends_that_is_no_message_ends_its_trial(ranks: Bench, what: str) -> None:
    data, said = STRANGE[what]
    outcome = ranks.outcome(data.hex(), then="wait")
    assert (outcome.state, outcome.failure) == (TrialState.FAILED, FailureClass.INVALID)
    assert said in outcome.message
    assert_goes_on(ranks)
