"""Advise the user about work that takes time in each trial: imports that the template could do once, and process pools."""

from __future__ import annotations

import contextlib
import sys
import time
import types
from collections.abc import Iterator

from trialplane.wire import records

_IMPORTLIB = "<frozen importlib"
_MIN_SECONDS = 1.0  # seconds of a trial's imports from which on advice is given
_MIN_MODULE_SECONDS = 0.1  # a module that is imported faster is not counted
_MAX_MODULES = 5  # modules


class LateImports:
    """Imports of a trial that its template could do once for all trials, and their duration.

    Python calls `find_spec` for each module that is not loaded yet. The time between two calls counts as importing if the
    second call comes from within an import; otherwise it is the job's own work. So the seconds are a lower bound.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}  # module imported by the job's own code → seconds, with its nested imports
        self._outermost = ""
        self._last_call_at = 0.0

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the imports of this process within the block."""
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Record the import of a module, and return None, so that the other finders find it.

        See `importlib.abc.MetaPathFinder`. The call comes from Python's import code. If further out in the stack there is
        import code again, the module is imported by another one that is being imported.
        """
        now = time.perf_counter()
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_IMPORTLIB):  # this import
            frame = frame.f_back
        while frame is not None and not frame.f_code.co_filename.startswith(_IMPORTLIB):  # the code that imports
            frame = frame.f_back
        is_nested = frame is not None
        if not is_nested:
            self._outermost = name
            self._seconds.setdefault(name, 0.0)
        elif self._outermost:
            self._seconds[self._outermost] += now - self._last_call_at
        self._last_call_at = time.perf_counter()

    def advice(self, config: records.SlotConfig) -> str:
        """Return advice with the line of job.yaml that does these imports once per slot; "" if they take little time."""
        slow_imports = {name: seconds for name, seconds in self._seconds.items() if seconds >= _MIN_MODULE_SECONDS}
        total = sum(slow_imports.values())
        if total < _MIN_SECONDS:
            return ""
        slowest = sorted(slow_imports, key=lambda name: -slow_imports[name])[:_MAX_MODULES]
        preloads: list[str] = []
        for name in slowest:
            # A submodule that the job also imports is named in place of its package, because its import imports both.
            submodules = [module for module in self._seconds if module.startswith(f"{name}.")]
            preloads.append(submodules[0] if submodules else name)
        names = ", ".join(dict.fromkeys([*config.preload, *preloads]))
        return f"a trial spends {total:.1f} s on imports; with `preload: [{names}]` in job.yaml they are done once per slot"


def pool_advice() -> str:
    """Return advice about joblib's pool of processes, if the trial has started one; "" otherwise."""
    loky = sys.modules.get("joblib.externals.loky.reusable_executor")
    if getattr(loky, "_executor", None) is None:
        return ""
    return (
        "each trial starts a pool of processes of its own (joblib, n_jobs), which takes a second or two; with n_jobs=1 and "
        "a higher `parallel` in job.yaml it takes none"
    )
