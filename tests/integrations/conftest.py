"""One warm slot that has imported every example of `job/`, and trials in it that are pruned or stopped at a report."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import Bench, wait_until

from trialplane.wire.paths import RunPaths
from trialplane.wire.records import Segment, TrialOutcome, TrialRequest

JOB = Path(__file__).parent / "job"
MODULES = {file.stem: file.read_text() for file in JOB.glob("*.py")}
EXAMPLES = tuple(sorted(name for name in MODULES if name.startswith("with_")))


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of an attempt, and its reports."""

    trial: int
    reports: tuple[tuple[int, dict[str, float]], ...]
    outcome: TrialOutcome

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.reports]


def status(pid: int) -> dict[str, str]:
    """The kernel's status of a process, as in `proc_pid_status(5)`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


class Trials(Bench):
    """A slot for trials of the examples."""

    def checkpoints(self, trial: int, run: str = "toy") -> Path:
        """The folder of a trial's checkpoints; `other` is another run of the job, beside the slot's."""
        root = self.root if run == "toy" else self.root.parent / run
        return root / "checkpoints" / run / f"trial-{trial}"

    def await_signal(self, request: TrialRequest, supervisor: int) -> None:
        """Waits until a trial's supervisor has passed SIGTERM on to rank 0, which blocks on the answer to its report."""
        log = RunPaths(self.root).trial_log(request.trial, request.attempt, request.worker)
        wait_until(lambda: "SIGTERM: ranks have" in log.read_text(), "the supervisor received SIGTERM")
        wait_until(lambda: status(supervisor)["State"].startswith("S"), "it waits for the ranks again")
        rank = self.children(supervisor)[0]
        wait_until(lambda: int(status(rank)["ShdPnd"], 16) == 0, "rank 0 has received SIGTERM")

    def attempt(
        self,
        library: str,
        *,
        prune_at: int | None = None,
        stop_at: int | None = None,
        kill_at: int | None = None,
        signal_at: int | None = None,
        after: Ended | None = None,
        resume: Ended | None = None,
        segment: Segment | None = None,
        **params: Any,
    ) -> Ended:
        """Runs an attempt; each of its reports is waited for and answered.

        Args:
            library: whose example.
            prune_at: number of the report, from 1, that is answered so that the trial is pruned.
            stop_at: number of the report at which a stop is requested, as a pause does.
            kill_at: number of the report at which the trial's process is killed.
            signal_at: number of the report at which its last rank alone gets SIGTERM.
            after: the attempt of the same trial before this one.
            resume: a trial whose checkpoints are those of the run that `--resume` names.
            segment: the part of the training that it does.
            **params: of the example.
        """
        request = self.request("", prunable=True, timeout=600.0, library=library, **params)
        if after is not None:
            request = dataclasses.replace(request, trial=after.trial, attempt=2)
        if resume is not None:
            if self.checkpoints(resume.trial).exists():
                shutil.copytree(self.checkpoints(resume.trial), self.checkpoints(request.trial, "other"))
            request = dataclasses.replace(request, resume="other")
        request = dataclasses.replace(request, prunable=segment is None, segment=segment)
        reports: list[tuple[int, dict[str, float]]] = []
        event = self.slot.run(request)
        while event.outcome is None:
            reports += [(report.step, dict(report.metrics)) for report in event.reports]
            if event.waiting:
                number, pid = len(reports), self.running.pid
                if number == stop_at:
                    self.slot.stop("paused")
                    if self.config.ranks > 1:
                        self.await_signal(request, pid)
                    else:  # another thread, which a busy machine runs late, may receive it
                        wait_until(lambda pid=pid: int(status(pid)["ShdPnd"], 16) == 0, "the trial has received SIGTERM")
                if number == kill_at:
                    os.kill(pid, signal.SIGKILL)
                if number == signal_at:
                    os.kill(self.children(pid)[-1], signal.SIGTERM)
            event = self.slot.answer(reports[-1][0] if event.waiting and len(reports) == prune_at else None)
        reports += [(report.step, dict(report.metrics)) for report in event.reports]
        return Ended(request.trial, tuple(reports), event.outcome)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    """A slot for trials of two ranks, of the libraries that have ranks."""
    preload = ("with_accelerate", "with_huggingface", "with_lightning")
    with Trials(tmp_path_factory.mktemp("ranks"), MODULES, preload=preload, ranks=2, cpus=2, grace=60.0) as bench:
        assert bench.ready.unclean == ()
        yield bench


@pytest.fixture(scope="session")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    """The slot; its trials are forks, so that what a library does to a process stays in it."""
    folder = tmp_path_factory.mktemp("integrations")
    with Trials(folder, MODULES, preload=EXAMPLES, grace=60.0) as bench:
        assert bench.ready.unclean == ()
        yield bench
