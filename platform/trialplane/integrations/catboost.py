"""CatBoost in a trial: reports after each iteration, pruning, clean stops, and CatBoost's snapshots.

    with catboost.TrialCallback() as callback:
        model.fit(x, y, eval_set=…, callbacks=[callback], **callback.snapshot)

Metrics are named after the data and the metric: `learn-Logloss`, `validation-Logloss`. CatBoost has callbacks on CPUs only.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

import trialplane
from trialplane import errors
from trialplane.integrations import saves
from trialplane.integrations.reports import numeric_metrics

_FILE = "catboost.snapshot"


class TrialCallback:
    """Callback that reports the metrics of each iteration, with the number of iterations done.

    CatBoost turns exceptions of callbacks into a CatBoostError. So the callback ends the training with a snapshot, and the
    end of the `with` block raises `Pruned` or `Stopped`.

    Args:
        save_every: Time between two snapshots, in seconds. One more is taken if a stop is requested.

    Attributes:
        snapshot: Arguments of `fit` for CatBoost to save snapshots and to continue from them. Empty outside of a trial.

    Raises:
        InputError: The run saves checkpoints at a URL, and CatBoost only writes to folders. Or the trial continues from a
            rung of a population: CatBoost ignores parameters other than those in its snapshot.
        CheckpointError: The run that `--resume` names has no snapshot.
    """

    def __init__(self, save_every: int = 60) -> None:
        self.snapshot: dict[str, Any] = {}
        self._is_in_block = False
        self._pending: Exception | None = None  # raised at the end of the `with` block
        self._taken_over: Path | None = None  # copied snapshot of another run or trial, until CatBoost has read it
        ctx = trialplane.current()
        if ctx is None:
            return
        file = saves.local_folder(ctx.checkpoints, "CatBoost") / _FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        if ctx.needs_newest:  # the trial is a member of a population, which continues with other parameters
            raise errors.InputError(
                "CatBoost continues with the parameters in its snapshot, so members of a population cannot change theirs; "
                "take pruner: {name: asha, promote: true} instead of population"
            )
        if (resumed_location := ctx.resume_from) is not None and not file.exists():
            other_snapshot = saves.local_folder(resumed_location, "CatBoost") / _FILE
            if not other_snapshot.exists():
                raise errors.CheckpointError(saves.no_checkpoint_message(ctx, resumed_location))
            shutil.copy(other_snapshot, file)
            self._taken_over = other_snapshot
        self.snapshot = {"save_snapshot": True, "snapshot_file": str(file), "snapshot_interval": save_every}

    def __enter__(self) -> TrialCallback:
        if (ctx := trialplane.current()) is not None:
            _ = ctx.stopping  # the first read makes SIGTERM a request to stop
        self._is_in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raise Pruned or Stopped if the training ended for this reason. Do not catch them."""
        self._is_in_block = False
        if self._pending is not None and error is None:
            raise self._pending

    def after_iteration(self, info: Any) -> bool:
        """Report the metrics. CatBoost calls this after each iteration.

        Args:
            info: `iteration`, from 1, and `metrics`, the values so far by data and name.

        Returns:
            False to end the training, if the trial is pruned or a stop is requested.

        Raises:
            RuntimeError: `fit` was called outside of the `with` block.
        """
        ctx = trialplane.current()
        if ctx is None:
            return True
        if not self._is_in_block:
            raise RuntimeError("call fit within a block of `with catboost.TrialCallback() as callback:`")
        taken_over, self._taken_over = self._taken_over, None
        # If CatBoost cannot read a snapshot, it only warns, and begins anew with iteration 1.
        if taken_over is not None and info.iteration == 1:
            self._pending = errors.CheckpointDamaged(f"CatBoost cannot read the snapshot {taken_over}; its warning is above")
            return False
        # Of each metric, CatBoost has the values of all iterations so far.
        newest = {f"{data}-{name}": values[-1] for data, metrics in info.metrics.items() for name, values in metrics.items()}
        try:
            ctx.report(info.iteration, **numeric_metrics(newest))
        except Exception as error:  # noqa: BLE001  raised again at the end of the block, where CatBoost does not change it
            self._pending = error
        else:
            if ctx.stopping:
                self._pending = ctx.stopped(info.iteration)
        return self._pending is None
