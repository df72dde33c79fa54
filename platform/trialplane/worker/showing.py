"""One report as a line for people, in a trial's log and on a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def line(step: int, metrics: Mapping[str, float]) -> str:
    """What was reported at a step: a training's rates and time left in words, whatever else there is by its name.

    `step 1,200/10,000 (12%)  loss 2.31  lr 0.0005  8,192 samples/s (1,024 per rank)  0.5 s/step  0:08:14 left`, when the
    report is one of `progress.Meter`; else `step 3: macro_f1 0.8123`.
    """
    if not {"total_steps", "seconds_left", "seconds_per_step"} <= set(metrics):
        return f"step {step}: " + "  ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    rest = dict(metrics)
    total = int(rest.pop("total_steps"))
    said = [f"step {step:,}/{total:,} ({100 * step // max(total, 1)}%)"]
    said += [f"{name} {rest.pop(name):.4g}" for name in ("loss", "lr", "grad_norm") if name in rest]
    for name in ("samples", "tokens"):
        if f"{name}_per_second" in rest:
            every, one = rest.pop(f"{name}_per_second"), rest.pop(f"{name}_per_second_and_rank")
            said.append(f"{_short(every)} {name}/s" + (f" ({_short(one)} per rank)" if every != one else ""))
    left = rest.pop("seconds_left")
    said.append(f"{rest.pop('seconds_per_step'):.3g} s/step")
    if "gpu_memory_gib" in rest:
        memory, peak = rest.pop("gpu_memory_gib"), rest.pop("gpu_memory_peak_gib")
        said.append(f"GPU {memory:.1f} GiB (at most {peak:.1f})")
    if "gpu_utilization" in rest:
        said.append(f"{rest.pop('gpu_utilization'):.0f}% busy")
    said += [f"{name} {value:.4g}" for name, value in rest.items()]
    hours, seconds = divmod(round(left), 3600)
    said.append(f"{hours}:{seconds // 60:02d}:{seconds % 60:02d} left" if step < total else "done")
    return "  ".join(said)


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
