"""What the pool relies on, of every host of slots: processes of this machine, and actors of a real Ray.

Add another host to `HOSTS`. Not checked here: the pool (tests/controller/test_slot_pool.py), what a slot does (tests/worker)
and the object store of a collection (tests/study/test_collection.py).
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.worker.conftest import Bench, alive, wait_until

from trialplane import errors
from trialplane.controller.slot_host import Actor, SlotHost
from trialplane.controller.slot_processes import ProcessHost
from trialplane.job import kinds
from trialplane.policies import transport
from trialplane.wire import messages, records
from trialplane.wire.messages import FromSlot, TrialEnded
from trialplane.wire.records import SlotConfig, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import slot_process

JOB = {"name": "toy", "kind": "hpo", "objectives": [{"metric": "score", "direction": "maximize"}], "trials": 2}
CODE = """
import os, time
import numpy as np

def run(ctx):
    what = ctx.params["what"]
    if what == "reports":
        ctx.report(0, score=0.25)
    if what == "waits":
        open(ctx.params["file"], "w").write(str(os.getpid()))
        time.sleep(600)
    return {"score": 0.5, "logits": np.arange(4.0)}
"""


def processes() -> AbstractContextManager[SlotHost]:
    return nullcontext(ProcessHost())


class _Ray:
    """A Ray with one slot."""

    def __enter__(self) -> SlotHost:
        from trialplane.controller import ray_session
        from trialplane.controller.ray_slots import RayHost

        self._session = ray_session.connect(kinds.read(JOB).roles(), lambda free: 80 << 20)
        self._session.__enter__()
        return RayHost()

    def __exit__(self, *error: Any) -> None:
        self._session.__exit__(*error)


HOSTS: dict[str, Callable[[], AbstractContextManager[SlotHost]]] = {"processes": processes, "ray": _Ray}


@pytest.fixture(scope="module", params=["processes", pytest.param("ray", marks=pytest.mark.services)])
def host(request: pytest.FixtureRequest) -> Iterator[SlotHost]:
    with HOSTS[request.param]() as host:
        yield host


@pytest.fixture
def config(tmp_path: Path) -> SlotConfig:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(CODE)
    folders = {name: str(tmp_path / name) for name in ("code", "root", "cache")}
    return SlotConfig(run="toy", entrypoint="train:run", **folders)


def answer(host: SlotHost, actor: Actor, method: str, *arguments: Any) -> Any:
    """Call a slot and wait for its answer."""
    reference = actor.call(method, *arguments)
    assert host.wait([reference], 300) == [reference]
    return host.result(reference)


def attempt(number: int, **params: Any) -> bytes:
    request = TrialRequest("toy", number, 1, number, params, 42, ("score",), timeout=300.0, prunable=True)
    return messages.encode(messages.StartAttempt(request))


@pytest.fixture
def actor(host: SlotHost, config: SlotConfig) -> Iterator[Actor]:
    """A warm slot."""
    actor = host.open(config, "0-1")
    started = messages.decode(answer(host, actor, "start"), messages.FROM_STARTING)
    assert started.unclean == ()
    yield actor
    actor.kill()


def decoded(answered: Any) -> tuple[tuple[FromSlot, ...], dict[str, Any]]:
    return tuple(messages.decode(data, messages.FROM_SLOT) for data in answered[0]), answered[1]


def test_an_attempt_reports_and_ends_with_its_arrays(host: SlotHost, actor: Actor) -> None:
    sent, files = decoded(answer(host, actor, "run", 0, attempt(0, what="reports"), []))
    reports = [message for message in sent if isinstance(message, TrialReport)]
    while not isinstance(sent[-1], TrialEnded):
        sent, files = decoded(answer(host, actor, "answer", messages.encode(messages.AnswerReport(None))))
        reports += [message for message in sent if isinstance(message, TrialReport)]
    assert [(report.step, report.metrics) for report in reports] == [(0, {"score": 0.25})]
    assert sent[-1].outcome.state is TrialState.COMPLETE, sent[-1].outcome.message
    (reference,) = files.values()
    arrays = transport.unpack(host.read(reference))
    np.testing.assert_array_equal(arrays["logits"], np.arange(4.0))
    assert not Path(str(sent[-1].arrays)).exists(), "its file is gone"


def test_an_attempt_can_be_killed_while_its_call_is_pending(host: SlotHost, actor: Actor, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    running = actor.call("run", 7, attempt(7, what="waits", file=str(file)), [])
    wait_until(lambda: file.exists() and file.read_text(), "the trial runs")
    assert host.wait([running], 0) == []
    killed = actor.call("control", 7, messages.encode(messages.KillTrial(FailureClass.STOPPED, "enough")))
    assert host.wait([running], 300) == [running]
    sent, _ = decoded(host.result(running))
    assert isinstance(sent[-1], TrialEnded)
    assert (sent[-1].outcome.failure, sent[-1].outcome.message) == (FailureClass.STOPPED, "enough")
    assert host.wait([killed], 300) == [killed]
    assert host.result(killed) is None


def test_a_killed_slot_answers_with_an_error_and_leaves_nothing(host: SlotHost, actor: Actor, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    running = actor.call("run", 0, attempt(0, what="waits", file=str(file)), [])
    pid = int(wait_until(lambda: file.exists() and file.read_text(), "the trial runs"))
    actor.kill()
    assert host.wait([running], 300) == [running]
    with pytest.raises(errors.SlotError):
        host.result(running)
    wait_until(lambda: not alive(pid), "the trial has ended with its slot")
    late = actor.call("control", 0, messages.encode(messages.StopTrial("late")))
    assert host.wait([late], 300) == [late]
    with pytest.raises(errors.SlotError):
        host.result(late)


def test_code_that_does_not_import_is_an_error_of_the_call(host: SlotHost, config: SlotConfig) -> None:
    Path(config.code, "train.py").write_text("import no_such_module\n")
    actor = host.open(config, "0-1")
    with pytest.raises(errors.EntrypointError, match="no_such_module"):
        answer(host, actor, "start")
    actor.kill()


# Processes alone


def test_an_error_that_cannot_be_sent_is_sent_as_text() -> None:
    class Strange(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("odd")

    def fails() -> None:
        raise Strange(1, 2)

    (number, result, error) = pickle.loads(slot_process.pickled_answer(3, fails, ()))
    assert (number, result) == (3, None)
    assert isinstance(error, errors.SlotError)
    assert str(error) == "Strange: odd"


def test_a_slot_ends_with_its_controller(config: SlotConfig, tmp_path: Path) -> None:
    """Also when it is stopped, so that it cannot notice."""
    program = tmp_path / "controller.py"
    program.write_text(
        "import sys, time\n"
        "from trialplane.controller.slot_processes import ProcessHost\n"
        "from trialplane.wire import records\n"
        "actor = ProcessHost().open(records.from_json(records.SlotConfig, sys.argv[1]), '0-1')\n"
        "actor.call('start').result()\n"
        "print('warm', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, str(program), records.to_json(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "warm\n"
        (slot,) = Bench.children(controller.pid)
        os.kill(slot, signal.SIGSTOP)
        controller.kill()
    wait_until(lambda: not alive(slot), "the slot has ended")
