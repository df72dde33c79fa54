"""The meter's reports, and the lines they become, on a clock of the test's own: rates, means, time left, and pulses.

Not checked: what the meter costs (tests/benchmarks); and without a GPU, a GPU's figures.
"""

from __future__ import annotations

import dataclasses

import pynvml  # type: ignore[import-untyped]
import pytest
import torch

from trialplane.training import progress
from trialplane.worker import context


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass
class Job:
    """A context that remembers."""

    rank: int = 0
    world_size: int = 8
    prune_at: int = -1
    reports: list[tuple[int, dict[str, float]]] = dataclasses.field(default_factory=list)
    pulses: list[tuple[int, float]] = dataclasses.field(default_factory=list)

    def report(self, step: int, **metrics: float) -> None:
        self.reports.append((step, metrics))
        if step == self.prune_at:
            raise context.Pruned("pruned")

    def pulse(self, step: int, seconds: float) -> None:
        self.pulses.append((step, seconds))


def drive(job: Job, clock: Clock, meter: progress.Meter, steps: range, seconds: float = 0.5) -> None:
    for step in steps:
        with meter.own_work():
            clock.now += seconds * 0.4
        clock.now += seconds * 0.6
        meter.step(step, samples=32, tokens=1000, loss=torch.tensor(float(step)), lr=1e-3, grad_norm=torch.tensor(2.5))


def test_a_line_has_rates_of_a_rank_and_of_all_means_and_the_time_left() -> None:
    job, clock = Job(), Clock()
    meter = progress.Meter(job, total_steps=1000, every=5.0, clock=clock)
    clock.now += 60  # a slow start is not a measure of what is left
    drive(job, clock, meter, range(1, 12))
    (_, first), (step, metrics) = job.reports
    assert first["seconds_per_step"] == 60.5
    assert step == 11
    assert metrics == {
        "loss": pytest.approx(sum(range(2, 12)) / 10),
        "lr": 1e-3,
        "grad_norm": 2.5,
        "samples_per_second_and_rank": pytest.approx(64),
        "samples_per_second": pytest.approx(512),
        "tokens_per_second_and_rank": pytest.approx(2000),
        "tokens_per_second": pytest.approx(16000),
        "seconds_per_step": pytest.approx(0.5),
        "seconds_left": pytest.approx(989 * 0.5),
        "total_steps": 1000,
    }
    assert progress.log_line(step, metrics) == (
        "step 11/1,000 (1%)  loss 6.5  lr 0.001  grad_norm 2.5  512 samples/s (64 per rank)  "
        "16,000 tokens/s (2,000 per rank)  0.5 s/step  0:08:14 left"
    )


def test_the_last_step_has_a_line_and_one_that_goes_on_counts_from_there() -> None:
    job, clock = Job(), Clock()
    meter = progress.Meter(job, total_steps=105, start=100, every=1e9, clock=clock)
    drive(job, clock, meter, range(101, 106))
    ((step, metrics),) = job.reports
    assert (step, metrics["seconds_left"]) == (105, 0)
    said = progress.log_line(step, metrics)
    assert said.startswith("step 105/105 (100%)")
    assert said.endswith("done")


def test_a_study_has_reports_at_the_same_steps_in_each_trial() -> None:
    job, clock = Job(prune_at=20), Clock()
    meter = progress.Meter(job, total_steps=100, every_steps=10, clock=clock)
    with pytest.raises(context.Pruned):
        drive(job, clock, meter, range(1, 101), seconds=37.0)
    assert [step for step, _ in job.reports] == [10, 20]


def test_a_report_at_every_step_begins_with_the_first() -> None:
    job, clock = Job(), Clock()
    drive(job, clock, progress.Meter(job, total_steps=3, every_steps=1, clock=clock), range(1, 4))
    assert [step for step, _ in job.reports] == [1, 2, 3]


def test_a_job_that_counts_from_0_is_no_mistake() -> None:
    job, clock = Job(), Clock()
    drive(job, clock, progress.Meter(job, total_steps=3, every_steps=1, clock=clock), range(3))
    assert [step for step, _ in job.reports] == [0, 1, 2]


def test_other_ranks_report_nothing_and_every_rank_sends_its_own_seconds() -> None:
    job, clock = Job(rank=3), Clock()
    meter = progress.Meter(job, total_steps=8, every=0.1, clock=clock)
    drive(job, clock, meter, range(1, 9))
    assert job.reports == []
    assert [step for step, _ in job.pulses] == [2, 4, 6, 8]
    assert [seconds for _, seconds in job.pulses] == [pytest.approx(0.2)] * 4


def test_numbers_do_as_well_as_tensors_and_others_are_reported_too() -> None:
    job, clock = Job(world_size=1), Clock()
    meter = progress.Meter(job, total_steps=2, clock=clock)
    for step in (1, 2):
        clock.now += 1
        meter.step(step, loss=step, samples=1, accuracy=0.25)
    assert job.reports[0][1]["loss"] == 1.5
    assert job.reports[0][1]["accuracy"] == 0.25
    assert progress.log_line(*job.reports[0]) == "step 2/2 (100%)  loss 1.5  1 samples/s  1 s/step  accuracy 0.25  done"


def test_a_report_of_anything_else_is_shown_by_its_names() -> None:
    assert progress.log_line(3, {"macro_f1": 0.81234567, "loss": 2.0}) == "step 3: macro_f1 0.812346  loss 2"


def test_a_gpu_that_does_not_tell_how_busy_it_is_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a slice of one (MIG): there NVIDIA's library raises an error of its own, which torch lets pass."""

    class Silent:
        def memory_allocated(self) -> int:
            return 2**30

        max_memory_allocated = memory_allocated

        def utilization(self) -> int:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(progress, "_cuda", Silent)
    gpu = progress._Gpu()
    assert gpu.metrics() == gpu.metrics() == {"gpu_memory_gib": 1.0, "gpu_memory_peak_gib": 1.0}
    assert capsys.readouterr().err == "the GPU's utilization cannot be read: Not Supported\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpus_memory_and_how_busy_it_is_are_shown() -> None:
    torch.ones(1, device="cuda")
    job, clock = Job(), Clock()
    drive(job, clock, progress.Meter(job, total_steps=2, clock=clock), range(1, 3))
    assert job.reports[0][1]["gpu_memory_peak_gib"] >= job.reports[0][1]["gpu_memory_gib"] >= 0
    assert 0 <= job.reports[0][1]["gpu_utilization"] <= 100
