"""Sample how much of the machine the processes of a trial use, under the names that MLflow gives these metrics.

Processor and memory are those of the trial's own processes, because the trials of a machine share it. GPUs are read by
`nvidia-smi`, which the driver brings along.
"""

from __future__ import annotations

import csv
import math
import os
import subprocess
import time
from collections.abc import Iterator, Sequence

from trialplane.wire.records import SlotConfig
from trialplane.wire.system_metrics import PREFIX
from trialplane.worker import sessions

SAMPLES_BEFORE_DOUBLING = 500  # samples of an attempt at one interval, which doubles after so many
_PATIENCE = 10.0  # seconds for nvidia-smi, which may hang with a broken driver
_MEGABYTE = 1e6  # MLflow's unit
_MOST_TIMEOUTS = 3  # after which nvidia-smi is not called again
_QUERY = "index,uuid,utilization.gpu,memory.used,memory.total,power.draw"


class Sampler:
    """Samples of the processes of one attempt, which are in one session."""

    def __init__(self, config: SlotConfig, session: int) -> None:
        self._config = config
        self._session = session
        self._remaining_timeouts = _MOST_TIMEOUTS if config.gpus else 0
        self._processor_seconds = sessions.processor_seconds(session)
        self._time = time.monotonic()

    def sample(self) -> dict[str, float]:
        """Return the current values by name. Shares of processor time are those since the sample before."""
        now, processor_seconds = time.monotonic(), sessions.processor_seconds(self._session)
        # Less than before if a process has ended and its parent has not waited for it.
        used_seconds = max(0.0, processor_seconds - self._processor_seconds)
        share = used_seconds / max(now - self._time, 1e-9) / self._config.cores
        self._processor_seconds, self._time = processor_seconds, now
        memory = sessions.resident_memory(self._session, limit=0)  # always the exact sum
        values = {
            "cpu_utilization_percentage": 100 * share,
            "system_memory_usage_megabytes": memory / _MEGABYTE,
        }
        if self._config.memory is not None:
            values["system_memory_usage_percentage"] = 100 * memory / self._config.memory
        return {PREFIX + name: value for name, value in [*values.items(), *self._gpu_values()]}

    def _gpu_values(self) -> Iterator[tuple[str, float]]:
        """Yield names and values for each GPU of the trial; none if `nvidia-smi` is missing, fails or hangs."""
        if not self._remaining_timeouts:
            return
        # Of a trial with all GPUs of the machine, the variable may be unset.
        selected = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        try:
            output = subprocess.run(
                [*command, *([f"--id={selected}"] if selected else [])],
                capture_output=True,
                check=True,
                text=True,
                timeout=_PATIENCE,
            ).stdout
            yield from list(_device_values(output, selected.split(",") if selected else []))
        except subprocess.TimeoutExpired:
            self._remaining_timeouts -= 1
        except (OSError, subprocess.SubprocessError, ValueError):
            self._remaining_timeouts = 0  # it will not succeed later


def _device_values(output: str, visible_devices: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield names and values for each GPU in the output of nvidia-smi.

    Args:
        output: Output, as CSV.
        visible_devices: Indexes or UUIDs of the trial's GPUs, in its order, by which they are numbered. Empty for all GPUs.

    Raises:
        ValueError: The output has a line that is no GPU of the trial, such as "No devices were found".
    """
    for index, uuid, *cells in csv.reader(output.splitlines(), skipinitialspace=True):  # 0, GPU-1f…, 35, 2048, 81559, 120
        device = uuid if uuid in visible_devices else index
        position = visible_devices.index(device) if visible_devices else int(index)
        utilization, used, total, power = map(_number, cells)
        values = {
            "utilization_percentage": utilization,
            "memory_usage_megabytes": used * 2**20 / _MEGABYTE,
            "memory_usage_percentage": 100 * used / total,
            "power_usage_watts": power,
        }
        # The driver does not know all values of all devices.
        yield from ((f"gpu_{position}_{name}", value) for name, value in values.items() if math.isfinite(value))


def _number(text: str) -> float:
    """Return a number in the output of nvidia-smi; NaN for what it does not know, as in "[N/A]"."""
    try:
        return float(text)
    except ValueError:
        return math.nan
