"""Save and restore a training: model, optimizer, schedule, gradient scaler, order of the batches and random generators.

Heavy libraries are imported inside the functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialplane import errors
from trialplane.training import checkpoint

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

    from trialplane.training.batches import BatchOrder
    from trialplane.training.checkpoint import Checkpoints


class TrainingState:
    """The parts of a training that are saved and restored together.

    Args:
        ctx: Context of the trial.
        saves: Checkpoints of the trial.
        order: Order of the batches.
        accelerator: Accelerator of the training.
        model: Model, without Accelerate's wrapper.
        optimizer: Optimizer.
        schedule: Schedule of the learning rate.
    """

    def __init__(
        self,
        ctx: Any,
        saves: Checkpoints,
        order: BatchOrder,
        accelerator: Accelerator,
        model: torch.nn.Module,
        optimizer: Any,
        schedule: Any,
    ) -> None:
        self._ctx, self._saves, self._order = ctx, saves, order
        self._scaler = accelerator.scaler
        self._parts = {"model": model, "optimizer": optimizer, "schedule": schedule}

    def save(self, step: int, loss: float | None = None) -> None:
        """Save a checkpoint. Every rank must call this.

        Args:
            step: Number of steps that are done.
            loss: Loss on held-out data, by which the best checkpoints are kept; None if it was not computed.
        """
        ctx = self._ctx
        state = {name: part.state_dict() for name, part in self._parts.items()}
        state |= {"scaler": {} if self._scaler is None else self._scaler.state_dict(), "order": self._order.state_dict(step)}
        rank_state = {"rng": checkpoint.rng_state()}
        self._saves.save(step, state, rank_state=rank_state, metric=loss, rank=ctx.rank, world_size=ctx.world_size)

    def resume(self, total: int) -> tuple[int, str]:
        """Restore the newest checkpoint of the trial, or else of the run of `--resume`. Every rank must call this.

        Args:
            total: Number of steps of the training.

        Returns:
            The number of steps that are done, and the location of the checkpoint; 0 and "" without a checkpoint.

        Raises:
            InputError: The checkpoint has more steps than the training.
        """
        ctx, model = self._ctx, self._parts["model"]
        resumed = self._saves.resume(rank=ctx.rank, world_size=ctx.world_size, like=model, otherwise=ctx.resume_from)
        if resumed is None:
            return 0, ""
        start = self._order.start(resumed.state["order"])
        if start > total:
            raise errors.InputError(
                f"{resumed.saved.location} has done {start:,} steps, and this training has {total:,}: raise "
                "params.max_steps or params.epochs, or give it another location for its checkpoints"
            )
        for name, part in self._parts.items():
            part.load_state_dict(resumed.state[name])
        if self._scaler is not None and resumed.state["scaler"]:
            self._scaler.load_state_dict(resumed.state["scaler"])
        if resumed.rank_state is not None:
            checkpoint.set_rng_state(resumed.rank_state["rng"])
        else:  # the checkpoint is of another number of ranks
            checkpoint.reseed(ctx.seed, ctx.rank, start)
        for note in resumed.notes if ctx.is_main else ():
            print(note, flush=True)
        return start, resumed.saved.location
