"""Samples of the use of the machine by a trial's processes, from a slot and from a fake nvidia-smi.

Not checked here: samples in the ledger (tests/contracts/test_ledger_reports.py) and in MLflow (tests/study/test_mlflow.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.worker.conftest import Bench, wait_until

from trialplane.wire.records import SlotConfig
from trialplane.wire.system_metrics import is_sample
from trialplane.worker import leaving, sampling, sessions
from trialplane.worker.sampling import Sampler

CONFIG = SlotConfig("toy", "", "train:run", "", "", cores=2.5, memory=100_000_000)
BUSY = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
STRANGER = r"""
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\xff) \xfe")  # PR_SET_NAME
print("named", flush=True)
sys.stdin.read()
"""

JOB = """
import time
from pathlib import Path

def run(ctx):
    while not Path(ctx.params["what"]).exists():
        time.sleep(0.01)
    ctx.report(0, score=0.5)
    return {"score": 1.0}
"""

SMI = """#!/bin/sh
echo "$@" >> {calls}
echo '3, GPU-a, 87, 1000, 80000, 312.5'
echo '5, GPU-b, [N/A], 2000, 80000, [N/A]'
"""


@pytest.fixture
def busy() -> Iterator[int]:
    """A session whose only busy process is a child of its leader."""
    with subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) as process:
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def test_processor_and_memory_are_those_of_all_processes_of_the_trial(busy: int) -> None:
    sampler = Sampler(CONFIG, busy)
    first = wait_until(
        lambda: next(filter(lambda values: values["system/cpu_utilization_percentage"] > 1, [sampler.sample()]), None),
        "the child computes",
    )
    assert set(first) == {
        "system/cpu_utilization_percentage",
        "system/system_memory_usage_megabytes",
        "system/system_memory_usage_percentage",
    }
    megabytes = first["system/system_memory_usage_megabytes"]
    assert 1 < megabytes < 1000
    assert first["system/system_memory_usage_percentage"] == pytest.approx(megabytes), "of 100 MB"


def test_a_process_whose_name_is_no_utf_8_is_measured_and_killed() -> None:
    command = [sys.executable, "-c", STRANGER]
    with subprocess.Popen(command, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            assert b"\xff) \xfe" in Path(f"/proc/{stranger.pid}/stat").read_bytes()
            assert sessions.resident_memory(stranger.pid, limit=0) > 0
            assert sessions.processor_seconds(stranger.pid) >= 0
            assert leaving.trial_parents(os.getpid()) == {}
            sessions.kill(stranger.pid)
            assert stranger.wait(60) == -signal.SIGKILL
        finally:
            stranger.kill()


def test_processor_time_is_relative_to_the_cores_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, now = iter([5.0, 10.0, 9.0]), iter([0.0, 4.0, 8.0])
    monkeypatch.setattr(sampling.sessions, "processor_seconds", lambda session: next(seconds))
    monkeypatch.setattr(sampling, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    sampler = Sampler(CONFIG, 1 << 30)
    assert [sampler.sample()["system/cpu_utilization_percentage"] for _ in range(2)] == [50.0, 0.0]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a fake nvidia-smi, which writes its arguments to the file `calls` beside it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    file = tmp_path / "nvidia-smi"
    file.write_text(SMI.format(calls=tmp_path / "calls"))
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("devices", ["5,3", "GPU-b,GPU-a"])
def test_gpus_are_numbered_as_the_trial_sees_them(smi: Path, monkeypatch: pytest.MonkeyPatch, devices: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    calls = smi.parent / "calls"
    config = SlotConfig("toy", "", "train:run", "", "", gpus=2)
    values = {name: value for name, value in Sampler(config, 1 << 30).sample().items() if "gpu" in name}
    assert values == {
        "system/gpu_1_utilization_percentage": 87.0,
        "system/gpu_1_memory_usage_megabytes": 1048.576,
        "system/gpu_1_memory_usage_percentage": 1.25,
        "system/gpu_1_power_usage_watts": 312.5,
        "system/gpu_0_memory_usage_megabytes": 2097.152,
        "system/gpu_0_memory_usage_percentage": 2.5,
    }, "what the driver does not know is left out"
    assert f"--id={devices}" in calls.read_text()
    assert not any("gpu" in name for name in Sampler(CONFIG, 1 << 30).sample()), "a trial without GPUs"


def test_without_a_variable_gpus_have_the_numbers_of_nvidia_smi(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    values = Sampler(SlotConfig("toy", "", "train:run", "", "", gpus=2), 1 << 30).sample()
    assert {name[:12] for name in values if "gpu" in name} == {"system/gpu_3", "system/gpu_5"}


@pytest.mark.parametrize("ending", ["exit 9", "echo No devices were found"], ids=["fails", "finds nothing"])
def test_an_nvidia_smi_that_fails_is_not_called_again(smi: Path, ending: str) -> None:
    calls = smi.parent / "calls"
    smi.write_text(f"#!/bin/sh\necho called >> {calls}\n{ending}\n")
    sampler = Sampler(SlotConfig("toy", "", "train:run", "", "", gpus=1), 1 << 30)
    assert not any("gpu" in name for _ in range(2) for name in sampler.sample())
    assert calls.read_text().count("called") == 1


def test_an_nvidia_smi_that_hangs_is_called_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def hang(command: list[str], *, timeout: float, **options: object) -> None:
        calls.append(command)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(sampling.subprocess, "run", hang)
    sampler = Sampler(SlotConfig("toy", "", "train:run", "", "", gpus=1), 1 << 30)
    for _ in range(9):
        assert not any("gpu" in name for name in sampler.sample())
    assert len(calls) == 3


def test_a_slot_sends_samples_while_the_trial_runs_and_apart_from_its_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SAMPLES_BEFORE_DOUBLING", 2)
    monkeypatch.setattr(sampling.Sampler, "sample", lambda self: {"system/cpu_utilization_percentage": 1.0})
    goal = tmp_path / "goal"
    with Bench(tmp_path, {"train": JOB}, system_metrics=0.01) as bench:
        events = [bench.slot.run(bench.request(str(goal), prunable=True))]
        while sum(len(event.reports) for event in events) < 6:
            events.append(bench.slot.answer())
        assert not any(event.waiting for event in events), "no answer is due to a sample"
        goal.touch()
        events += bench.slot.rest(bench.slot.answer())
    reports = [report for event in events for report in event.reports]
    samples = [report for report in reports if is_sample(report.metrics)]
    assert [sample.step for sample in samples] == list(range(len(samples)))
    times = [sample.time for sample in samples]
    assert times[5] - times[4] > 0.02, "the interval has doubled twice"
    assert [report.metrics for report in reports if report not in samples] == [{"score": 0.5}]
    assert events[-1].outcome is not None
    assert events[-1].outcome.metrics == {"score": 1.0}


def test_without_the_field_nothing_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "Sampler", None)
    with Bench(tmp_path, {"train": JOB}) as bench:
        bench.slot.run(bench.request(str(tmp_path)))
        assert not any(thread.name == "sampler" for thread in threading.enumerate())
