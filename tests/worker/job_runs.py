"""A job's function run as a trial runs it, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trialplane.policies import transport
from trialplane.wire import paths
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialRequest
from trialplane.worker import trial

Job = Callable[..., Any]


class Channel:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[TrialOutcome, Any]]:
    """Runs a job's function; gives its outcome and what was packed."""

    def go(
        function: Job, *metrics: str, asked: Mapping[str, Any] | None = None, **of_the_rank: Any
    ) -> tuple[TrialOutcome, Any]:
        config = SlotConfig("toy", str(tmp_path), "train:run", str(tmp_path), str(tmp_path))
        request = TrialRequest("toy", 7, 1, 9, {}, 0, metrics or ("score",), **(asked or {}))
        reporter = trial.Reporter(request, Channel())  # type: ignore[arg-type]
        ended = trial.run_job(function, config, request, tmp_path / "trial-9", reporter, **of_the_rank)
        file = paths.trial_arrays(tmp_path / "trial-9")
        return ended, transport.unpack(np.fromfile(file, dtype=np.uint8)) if file.exists() else None

    return go
