"""Progress of a training: rates, loss, learning rate, gradient norm, GPU use, time left, and slow ranks.

    meter = progress.Meter(ctx, total_steps=10_000, start=found.step)
    for step in range(start, total):
        with meter.own_work():
            batch = next(batches); loss = model(batch)
        ...
        meter.step(step + 1, samples=32, tokens=batch_tokens, loss=loss, lr=lr, grad_norm=norm)

Rank 0 reports, with one line per report in the log. Every rank also sends its own duration of a step, so that slow ranks are
detected. Values can be tensors: they are read from the GPU only for a report, so other steps do not wait for it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

__all__ = ["Meter"]

_PULSE = 1.0  # seconds between two reports to the supervisor


class Job(Protocol):
    """The part of a `Context` that the meter needs."""

    @property
    def rank(self) -> int:
        """Number of this rank."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def report(self, step: int, **metrics: float) -> None:
        """Report metrics of a step."""

    def pulse(self, step: int, seconds: float) -> None:
        """Report this rank's own duration of a step, in seconds."""


class Meter:
    """Measure and report the progress of one rank.

    Args:
        ctx: Context of the trial.
        total_steps: Number of optimizer steps of the whole training, for the time left.
        start: Number of optimizer steps done before this process started.
        every: Time between two reports, in seconds.
        every_steps: Number of steps between two reports, instead of `every`. Use it with a pruner, which compares trials at
            the same steps.
        clock: Function that returns the time in seconds, for tests.
    """

    def __init__(
        self,
        ctx: Job,
        *,
        total_steps: int,
        start: int = 0,
        every: float = 10.0,
        every_steps: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ctx, self._total, self._every, self._every_steps = ctx, total_steps, every, every_steps
        self._clock = clock
        self._timing_start = self._report_time = self._pulse_time = clock()
        self._start = self._report_step = self._pulse_step = start
        self._warm_from: int | None = None  # the step after which rates and the time left are measured; None before it
        self._samples = self._tokens = 0
        self._losses: list[Any] = []
        self._own_seconds = 0.0  # in `own_work` since the last pulse
        self._gpu = _Gpu()

    @contextlib.contextmanager
    def own_work(self) -> Iterator[None]:
        """Context manager around the rank's own work, such as data and forward pass, without collectives."""
        start_time = self._clock()
        start_event = self._gpu.mark()
        yield
        self._gpu.end_span(start_event)
        self._own_seconds += self._clock() - start_time

    def step(
        self,
        step: int,
        *,
        samples: int = 0,
        tokens: int = 0,
        loss: Any = None,
        lr: float | None = None,
        grad_norm: Any = None,
        **others: Any,
    ) -> None:
        """Count an optimizer step, and report if a report is due.

        Args:
            step: Number of optimizer steps done, including this one.
            samples: Number of samples of this rank in this step.
            tokens: Number of tokens of this rank in this step.
            loss: Loss, as a number or a tensor. The mean since the last report is reported.
            lr: Learning rate.
            grad_norm: Norm of the gradient, as a number or a tensor.
            **others: Other metrics to report, by name.

        Raises:
            Pruned: The pruner ends the trial. Do not catch it.
            Finished: The job's `stop` ends the trial. Do not catch it.
        """
        now = self._clock()
        self._samples += samples
        self._tokens += tokens
        if self._ctx.rank == 0 and loss is not None:  # only rank 0 reports
            self._losses.append(loss.detach() if hasattr(loss, "detach") else loss)
        if now - self._pulse_time >= _PULSE or step >= self._total:
            self._pulse(step, now)
        if self._ctx.rank == 0 and self._is_due(step, now):
            self._report(step, now, lr, grad_norm, others)
        # The first step takes longer, because libraries, allocators and DataLoader workers warm up. So rates and the time
        # left are measured from its end.
        if self._warm_from is None:
            self._timing_start = self._report_time = now
            self._warm_from = self._report_step = step
            self._samples = self._tokens = 0

    def _is_due(self, step: int, now: float) -> bool:
        """Whether a report is due, which is always the case at the last step."""
        if step >= self._total:
            return True
        if self._every_steps:
            return step % self._every_steps == 0
        return now - self._report_time >= self._every

    def _pulse(self, step: int, now: float) -> None:
        """Send the seconds per step that this rank's own work has taken since the last call, to detect slow ranks.

        The GPU works while the host continues. So the longer of the two times counts.
        """
        steps = step - self._pulse_step
        if steps > 0:
            self._ctx.pulse(step, max(self._own_seconds, self._gpu.seconds()) / steps)
        self._pulse_time, self._pulse_step, self._own_seconds = now, step, 0.0

    def _report(self, step: int, now: float, lr: float | None, grad_norm: Any, other_metrics: dict[str, Any]) -> None:
        """Report the metrics of this step, and the mean loss and the rates since the last report. Then reset the counts."""
        seconds = max(now - self._report_time, 1e-9)  # not 0, by which the counts are divided below
        steps = max(step - self._report_step, 1)  # 0 in a job that numbers steps from 0 and reports step `start`
        metrics: dict[str, float] = {}
        if self._losses:
            metrics["loss"] = _mean(self._losses)
        if lr is not None:
            metrics["lr"] = float(lr)
        if grad_norm is not None:
            metrics["grad_norm"] = float(grad_norm)
        metrics |= {name: float(value) for name, value in other_metrics.items()}
        for name, count in (("samples", self._samples), ("tokens", self._tokens)):
            if count:  # all ranks process the same number of samples in a step, and the same number of tokens on average
                metrics[f"{name}_per_second_and_rank"] = count / seconds
                metrics[f"{name}_per_second"] = count / seconds * self._ctx.world_size
        metrics["seconds_per_step"] = seconds / steps
        # The time left follows from all steps since the first one, as the rate since the last report varies.
        timed_steps = step - (self._start if self._warm_from is None else self._warm_from)
        metrics["seconds_left"] = max(self._total - step, 0) * (now - self._timing_start) / max(timed_steps, 1)
        metrics |= self._gpu.metrics()
        self._report_time, self._report_step = now, step
        self._samples = self._tokens = 0
        self._losses.clear()
        self._ctx.report(step, total_steps=self._total, **metrics)


def _mean(losses: list[Any]) -> float:
    """Return the mean of numbers, or of tensors with one wait for the device."""
    if hasattr(losses[0], "detach"):
        return float(sys.modules["torch"].stack(losses).float().mean())
    return sum(float(loss) for loss in losses) / len(losses)


class _Gpu:
    """This rank's GPU, if torch uses one; otherwise all methods do nothing."""

    def __init__(self) -> None:
        self._spans: list[tuple[Any, Any]] = []  # the events at the start and at the end of each span, the oldest first
        self._has_utilization = True

    def mark(self) -> Any:
        """Record an event at the current end of the GPU's queue and return it; None without a GPU."""
        cuda = _cuda()
        if cuda is None:
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def end_span(self, start_event: Any) -> None:
        """End a span of work that began at the event `start_event`, from `mark`. None without a GPU."""
        if start_event is not None:
            self._spans.append((start_event, self.mark()))

    def seconds(self) -> float:
        """Return the seconds of the spans that the GPU has finished since the last call, without waiting for it."""
        seconds = 0.0
        while self._spans:
            start_event, end_event = self._spans[0]
            if not end_event.query():  # the GPU has not finished this span, nor the following ones
                break
            seconds += start_event.elapsed_time(end_event) / 1000  # from milliseconds
            del self._spans[0]
        return seconds

    def metrics(self) -> dict[str, float]:
        """Return the memory of torch's tensors, now and at its peak, and the GPU's utilization if that can be read."""
        cuda = _cuda()
        if cuda is None:
            return {}
        metrics = {
            "gpu_memory_gib": cuda.memory_allocated() / 2**30,
            "gpu_memory_peak_gib": cuda.max_memory_allocated() / 2**30,
        }
        if self._has_utilization:
            try:
                metrics["gpu_utilization"] = float(cuda.utilization())
            except _gpu_errors() as error:
                self._has_utilization = False
                print(f"the GPU's utilization cannot be read: {error}", file=sys.stderr)  # noqa: T201
        return metrics


def _gpu_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a missing or failing NVIDIA library, whose own classes torch does not catch."""
    pynvml = sys.modules.get("pynvml")
    return (ImportError, RuntimeError) if pynvml is None else (ImportError, RuntimeError, pynvml.NVMLError)


def _cuda() -> Any:
    """Return `torch.cuda` if this process uses a GPU, otherwise None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def log_line(step: int, metrics: Mapping[str, float]) -> str:
    """Return a report as a line of the log.

    A report of `Meter` is `step 1,200/10,000 (12%)  loss 2.31  lr 0.0005  8,192 samples/s (1,024 per rank)  0.5 s/step
    0:08:14 left`. Any other is `step 3: macro_f1 0.8123`.
    """
    is_of_meter = {"total_steps", "seconds_left", "seconds_per_step"} <= set(metrics)
    if not is_of_meter:
        return f"step {step}: " + "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    rest = dict(metrics)  # those that are not in the line yet; each `pop` below moves one there
    total = int(rest.pop("total_steps"))
    parts = [f"step {step:,}/{total:,} ({100 * step // max(total, 1)}%)"]
    parts += [f"{name} {rest.pop(name):.4g}" for name in ("loss", "lr", "grad_norm") if name in rest]
    for name in ("samples", "tokens"):
        if f"{name}_per_second" in rest:
            total_rate, rank_rate = rest.pop(f"{name}_per_second"), rest.pop(f"{name}_per_second_and_rank")
            has_one_rank = total_rate == rank_rate
            per_rank = "" if has_one_rank else f" ({_rate_text(rank_rate)} per rank)"
            parts.append(f"{_rate_text(total_rate)} {name}/s{per_rank}")
    seconds_left = rest.pop("seconds_left")
    parts.append(f"{rest.pop('seconds_per_step'):.3g} s/step")
    if "gpu_memory_gib" in rest:
        memory, peak = rest.pop("gpu_memory_gib"), rest.pop("gpu_memory_peak_gib")
        parts.append(f"GPU {memory:.1f} GiB (at most {peak:.1f})")
    if "gpu_utilization" in rest:
        parts.append(f"{rest.pop('gpu_utilization'):.0f}% busy")
    parts += [f"{name} {value:.4g}" for name, value in rest.items()]
    minutes, seconds = divmod(round(seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    parts.append(f"{hours}:{minutes:02d}:{seconds:02d} left" if step < total else "done")
    return "  ".join(parts)


def _rate_text(rate: float) -> str:
    """Return a number per second: `8,192` or `0.125`."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
