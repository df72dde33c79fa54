"""A trial of a script whose output and files a test writes itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from trialplane.job.program import MetricSource, Program
from trialplane.wire.records import StopRule
from trialplane.worker.metrics import reader
from trialplane.worker.metrics.reader import Reader
from trialplane.worker.metrics.steps import Report

STDOUT = MetricSource("stdout")


class Trial:
    """A trial whose files the test writes itself."""

    def __init__(
        self,
        root: Path,
        *sources: MetricSource,
        names: tuple[str, ...] = ("acc",),
        script: str = "",
        code: Path | None = None,
        stop: tuple[StopRule, ...] = (),
        late: tuple[MetricSource, ...] = (),
        params: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.log = root / "attempt-1.log"
        self.folder = root / "work"
        self.folder.mkdir(parents=True)
        self.log.write_text("from an earlier process: loss=99\n")
        program = Program(script=script, metrics=sources, late_metrics=late, names=names)
        self.reader = Reader(program, self.log, self.folder, 0.0, code, stop, params)
        self._now = 0.0

    def prints(self, text: str) -> None:
        with self.log.open("a", newline="") as file:
            file.write(text)

    def read(self, *, ended: bool = False) -> list[Report]:
        self._now += reader.LOOK_INTERVAL
        return [*self.reader.read(self._now, ended=ended), *self.reader.late_reports]
