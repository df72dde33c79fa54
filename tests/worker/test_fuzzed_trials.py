"""Trials that do anything, in random order: each attempt has one outcome in time, and none harms its slot or the next trial.

A trial plays a list of acts, of which the last one ends it. The processes are real. Each act by itself has tests of its own
(test_raised.py, test_stopped.py, test_strangers.py, test_output_ends.py).
"""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench, alive, wait_until
from tests.worker.test_raised import CODE as RAISING
from tests.worker.test_raised import LINE, RAISED

from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState

pytestmark = pytest.mark.slow

SEEDS = 60
LIMIT = 2.0  # seconds for a trial that stops or hangs; others have five minutes, which no busy machine needs
PATIENCE = 3.0  # seconds that the slot waits for a stopped template
LINGER = 2.0  # seconds for exit hooks
SLACK = 300.0  # seconds that a busy machine may take for all else

CODE = (
    RAISING
    + """
import atexit, faulthandler, json, os, signal, subprocess, threading, time

def _keep(pid, file):
    with open(file, "a") as pids:
        print(pid, file=pids)

def _fork(file, own_session):
    pid = os.fork()
    if pid:
        _keep(pid, file)
        return
    if own_session:
        os.setsid()
    time.sleep(600)
    os._exit(0)

def play(ctx, act, value):
    file = ctx.params["pids"]
    match act:
        case "report":
            ctx.report(value, score=value / 100)
        case "print":
            print(value, flush=True)
        case "print bytes":
            os.write(1, bytes.fromhex(value))
        case "dump":
            faulthandler.dump_traceback(all_threads=True)
        case "child":
            _keep(subprocess.Popen(["sleep", "600"], start_new_session=value).pid, file)
        case "fork":
            _fork(file, value)
        case "hook prints":
            atexit.register(print, value, flush=True)
        case "hook hangs":
            atexit.register(time.sleep, 600)
        case "thread hangs":
            threading.Thread(target=time.sleep, args=(600,), daemon=value).start()
        case "stop the template":
            os.kill(os.getppid(), signal.SIGSTOP)
        case "raise":
            fails(value)
        case "exit":
            sys.exit(value)
        case "end":
            os._exit(value)
        case "replace":
            os.execv("/bin/sh", ["sh", "-c", value])
        case "signal":
            os.kill(os.getpid(), value)
            time.sleep(600)  # for one that does not end it
        case "hang":
            time.sleep(600)
        case "garbage":
            os.write(ctx._reporter._channel.fileno(), bytes.fromhex(value))
    return 0.5

def run(ctx):
    if ctx.params["what"] == "well":
        return 0.5
    for act, value in json.loads(ctx.params["what"]):
        result = play(ctx, act, value)
    return result
"""
)

Act = tuple[str, Any]
_SIGNALS = {"SIGKILL": 9, "SIGSEGV": 11, "SIGTERM": 15, "SIGSTOP": 19, "SIGUSR1": 10, "SIGABRT": 6}


def first_acts(rng: random.Random) -> list[Act]:
    """Acts after which the trial goes on. Those for which the slot must wait are rare."""
    acts: list[Act] = []
    for step in range(rng.randrange(6)):
        acts.append(
            rng.choice(
                [
                    ("report", step),
                    ("report", step),
                    ("print", rng.choice(["score: 7", "epoch 3 loss=nan", "\x1b[2J" * 99, "\r" * 999, "é" * 9999])),
                    ("print bytes", rng.randbytes(rng.randrange(1, 200)).hex()),
                    ("dump", None),
                    ("child", rng.random() < 0.5),
                    ("fork", rng.random() < 0.5),
                    ("hook prints", "score: 8"),
                ]
            )
        )
    if rng.random() < 0.15:
        acts.append(rng.choice([("hook hangs", None), ("thread hangs", False), ("thread hangs", True)]))
    if rng.random() < 0.06:
        acts.append(("stop the template", None))
    return acts


def last_act(rng: random.Random) -> Act:
    """An act that ends the trial; one that hangs is rare."""
    if rng.random() < 0.08:
        return rng.choice([("hang", None), ("signal", _SIGNALS["SIGSTOP"])])
    return rng.choice(
        [
            ("print", "score: 9"),  # and returns
            ("raise", rng.choice(RAISED)),
            ("raise", rng.choice(RAISED)),
            ("raise", rng.choice(RAISED)),
            ("exit", rng.choice([0, 1, None, "no data"])),
            ("end", rng.choice([0, 1, 77, 255])),
            ("replace", rng.choice(["exit 0", "exit 3", "kill -9 $$", "echo score: 3"])),
            ("signal", rng.choice([number for name, number in _SIGNALS.items() if name != "SIGSTOP"])),
            ("garbage", rng.randbytes(rng.randrange(1, 300)).hex()),
        ]
    )


@dataclasses.dataclass(frozen=True)
class Result:
    """The end of an attempt: its outcomes, and the processes that it left to themselves."""

    outcomes: list[TrialOutcome]
    seconds: float
    pids: list[int]


def attempt(bench: Bench, acts: list[Act], timeout: float, file: Path) -> Result:
    start = time.monotonic()
    events = bench.events(json.dumps(acts), timeout=timeout, pids=str(file))
    seconds = time.monotonic() - start
    outcomes = [event.outcome for event in events if event.outcome is not None]
    pids = [int(line) for line in file.read_text().split()] if file.exists() else []
    return Result(outcomes, seconds, [*pids, *(outcome.pid for outcome in outcomes if outcome.pid)])


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One slot for all of them."""
    with Bench(tmp_path_factory.mktemp("fuzzed"), {"train": CODE}, linger=LINGER) as made:
        yield made


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_a_trial_does_it_has_one_outcome(
    bench: Bench, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    acts = [*first_acts(rng), last_act(rng)]
    (last, value), names = acts[-1], {act for act, _ in acts}
    hangs = last in ("hang", "signal")
    with monkeypatch.context() as short:
        if "stop the template" in names:
            for name in ("running.TEMPLATE_PATIENCE", "running.KILLED_PATIENCE", "slot.CLOSE_PATIENCE"):
                short.setattr(f"trialplane.worker.{name}", PATIENCE)
        short.setattr("trialplane.worker.running.ABORT_GRACE", 0.5)
        result = attempt(bench, acts, LIMIT if hangs else 300.0, tmp_path / "pids")
    (outcome,) = result.outcomes
    limits = (LIMIT if hangs else 0.0) + LINGER + 4 * PATIENCE
    assert result.seconds < limits + SLACK, acts
    assert (outcome.state is TrialState.FAILED) == (outcome.failure is not None), acts
    if last == "raise":
        assert (outcome.failure, outcome.fingerprint) == (FailureClass.ERROR, f"train.py:{LINE}"), (acts, outcome.message)
        assert str(value) in outcome.message, acts
    if last == "print":
        assert (outcome.state, outcome.metrics) == (TrialState.COMPLETE, {"score": 0.5}), (acts, outcome.message)
    if last == "hang":
        assert outcome.failure is FailureClass.TIMEOUT, (acts, outcome.message)
    for pid in result.pids:
        wait_until(lambda pid=pid: not alive(pid), f"process {pid} of {acts} is gone")
    assert bench.slot.running is None, acts
    assert bench.outcome("well").state is TrialState.COMPLETE, acts
