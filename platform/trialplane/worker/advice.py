"""Advice on what costs each trial time: imports that its template could do once, and pools of processes."""

from __future__ import annotations

import contextlib
import sys
import time
import types
from collections.abc import Iterator

from trialplane.wire import records

_IMPORTLIB = "<frozen importlib"
_LATE = 1.0  # seconds of a trial's imports that are worth advice
_MOST_ADVISED = 5  # modules


class LateImports:
    """Imports of a trial that its template could do once for all trials, and their duration.

    Python calls `find_spec` for each module that is not loaded yet. The time between two calls counts as importing if the
    second call comes from within an import; otherwise it is the job's own work. So the seconds are a lower bound.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}  # by module that was imported outside of any import
        self._newest = ""
        self._last = 0.0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this process."""
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Record that a module is imported; see `importlib.abc.MetaPathFinder`."""
        now = time.perf_counter()
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_IMPORTLIB):
            frame = frame.f_back
        while frame is not None and not frame.f_code.co_filename.startswith(_IMPORTLIB):
            frame = frame.f_back
        if frame is None:
            self._newest = name
            self._seconds.setdefault(name, 0.0)
        elif self._newest:
            self._seconds[self._newest] += now - self._last
        self._last = time.perf_counter()

    def advice(self, config: records.SlotConfig) -> str:
        """The line of job.yaml that would spare the other trials these imports; "" where they take little."""
        parts = {name: seconds for name, seconds in self._seconds.items() if seconds >= _LATE / 10}
        total = sum(parts.values())
        if total < _LATE:
            return ""
        slowest = sorted(parts, key=lambda name: -parts[name])[:_MOST_ADVISED]
        # A submodule instead of its package, which it imports as well.
        imported = [next((module for module in self._seconds if module.startswith(f"{name}.")), name) for name in slowest]
        names = ", ".join(dict.fromkeys([*config.preload, *imported]))
        return f"a trial spends {total:.1f} s on imports; with `preload: [{names}]` in job.yaml they are done once per slot"


def of_pools() -> str:
    """Advice about joblib's pool of processes, if the trial has started one; "" otherwise."""
    loky = sys.modules.get("joblib.externals.loky.reusable_executor")
    if getattr(loky, "_executor", None) is None:
        return ""
    return (
        "each trial starts a pool of processes of its own (joblib, n_jobs), which takes a second or two; with n_jobs=1 and "
        "a higher `parallel` in job.yaml it takes none"
    )
