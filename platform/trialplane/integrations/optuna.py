"""Get the objective that a script passes to `study.optimize`, even if it is a lambda, a partial or a local function.

Write a module beside the script, and `entrypoint: optuna:search_objective:objective` in job.yaml:

    # search_objective.py
    from trialplane.integrations.optuna import objective_of

    objective = objective_of("search.py")
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import trialplane


class _OptimizeCalled(BaseException):
    """Raised by `study.optimize` to end the script. It is no Exception, so that the script does not catch it by accident."""

    def __init__(self, objective: Callable[..., Any]) -> None:
        super().__init__()
        self.objective = objective


class _Study:
    """A study that is not created: its `optimize` ends the script, and its other methods do nothing."""

    def optimize(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
        """End the script, and pass on its objective `func`."""
        raise _OptimizeCalled(func)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a method that does nothing, for any other method of a study."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def objective_of(script: str) -> Callable[..., Any]:
    """Run a script without arguments up to `study.optimize`, and return the function that it passes there.

    No study or storage is created. A trial has a separate copy of the script's folder as its working directory.

    Args:
        script: Path of the script, relative to the folder of the calling module.

    Raises:
        LookupError: The script ends before `study.optimize`.
        Exception: Any exception of the script.
    """
    optuna = importlib.import_module("optuna")
    caller = sys._getframe(1).f_globals.get("__file__", "")
    file = Path(caller).resolve().parent / script
    creators = [(module, name) for module in (optuna, optuna.study) for name in ("create_study", "load_study")]
    with _as_program(file) as namespace, contextlib.ExitStack() as restore:
        for module, name in creators:
            restore.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, lambda *args, **kwargs: _Study())  # its `optimize` raises `_OptimizeCalled`
        try:
            exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), namespace)
        except _OptimizeCalled as call:
            objective = call.objective

            def objective_with_files(trial: Any) -> Any:
                """Call the objective in a working directory with the files of the script's folder."""
                _copy_files(file.parent)
                return objective(trial)

            return objective_with_files
    raise LookupError(f"{script} ended without a call of study.optimize")


@contextlib.contextmanager
def _as_program(file: Path) -> Iterator[dict[str, Any]]:
    """Context manager in which a script finds what it would if Python had started it in its folder; yield its namespace."""
    main = types.ModuleType("__main__")
    main.__file__ = str(file)
    previous_argv, previous_path, previous_main = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv, sys.modules["__main__"] = [str(file)], main
    sys.path.insert(0, str(file.parent))
    try:
        with contextlib.chdir(file.parent):
            yield main.__dict__
    finally:
        sys.argv, sys.path, sys.modules["__main__"] = previous_argv, previous_path, previous_main


def _copy_files(folder: Path) -> None:
    """Copy the files of the script's folder into the working directory of a trial, except those that it has already.

    Does nothing outside of a trial.
    """
    if trialplane.current() is None:
        return
    for entry in folder.iterdir():
        target = Path(entry.name)
        if target.is_symlink() or target.exists():
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, target, symlinks=True)
        else:
            shutil.copy2(entry, target, follow_symlinks=False)
