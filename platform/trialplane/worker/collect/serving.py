"""The process of a collection's trial, around the job's function: a worker's, and the learner's.

The learner starts with the checkpoint of its iteration, first offers the weights to the workers, and saves what the job
returned before it sends its outcome: an outcome implies a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trialplane.policies import transport
from trialplane.wire import messages, records
from trialplane.worker import context, stopping, trial
from trialplane.worker.channel import TrialChannel
from trialplane.worker.collect import learner, segments, shards, states, worker
from trialplane.worker.collect.learner import Learner
from trialplane.worker.collect.line import Line
from trialplane.worker.collect.worker import Worker

KEPT = {"weights": states.WEIGHTS, "state": states.STATE}  # what the job returns → file of the checkpoint


class _Role:
    """The configuration of one process of a collection.

    Args:
        config: of the slot.
        request: the trial's.
        line: to the slot.
        lent: the files from its slot.
    """

    def __init__(self, config: records.SlotConfig, request: records.TrialRequest, line: Line, lent: messages.Lent) -> None:
        self._config = config
        self._request = request
        self._line = line
        self._lent = lent


class WorkerRole(_Role):
    """A worker's process."""

    def __call__(self, play: Callable[..., Any], given: Mapping[str, Any]) -> context.Result:
        """Calls the job's function."""
        weights = self._lent.weights
        desk = worker.Desk(self._line, Path(self._lent.folder), given["workdir"])
        assert self._request.worker is not None
        ctx = Worker(
            **{**given, **own_checkpoints(self._config, self._request)},
            weights=None if weights is None else transport.unpack(segments.read(weights)),
            iteration=self._request.trial,
            worker=self._request.worker,
            _work=desk,
        )
        try:
            _call(play, ctx)
        finally:
            if not self._line.stopping:
                desk.drain()  # results are kept even if the function failed later
        if self._line.stopping:
            raise ctx.stopped()
        desk.check_given()
        return {}


class LearnerRole(_Role):
    """The learner's process."""

    def __call__(self, learn: Callable[..., Any], given: Mapping[str, Any]) -> context.Result:
        """Calls the job's function, after loading the checkpoint of this iteration and before saving the next one."""
        config, iteration = self._config, self._request.trial
        place = trial.checkpoints(config, self._request.run, 0)  # the folder of one trial serves all iterations
        kept = states.Kept()
        if iteration > 0:
            kept = states.States(place).load(iteration)
        elif self._request.resume:
            kept = states.States(trial.checkpoints(config, self._request.resume, 0)).newest()
        fed = learner.Fed(self._line)
        written = None
        if config.write:
            beside = trial.checkpoint_place(config, self._request.run)
            written = shards.of_iteration(config.write, beside, self._request.run, iteration)
            fed.has(written.units)
        self._offer(fed, kept.packed.get(states.WEIGHTS), given["workdir"])
        ctx = Learner(
            **{**given, **own_checkpoints(config, self._request)},
            weights=kept.tree(states.WEIGHTS),
            state=kept.tree(states.STATE),
            iteration=iteration,
            shards=written,
        )
        result = returned(_call(learn, ctx, learner.Results(self._request.units, fed)))
        states.States(place).save(iteration + 1, merged(kept, result))
        return {name: value for name, value in result.items() if name not in KEPT}

    def _offer(self, fed: learner.Fed, weights: Any, workdir: Path) -> None:
        if weights is None:
            self._line.send(messages.WeightsOffered(0))
            return
        file, size = segments.Writer(self._lent.folder, workdir).copy(weights)
        fed.weights = Path(file)
        self._line.send(messages.WeightsOffered(size, file))


def _call(function: Callable[..., Any], ctx: context.Context, *arguments: Any) -> Any:
    """The result of the job's function; one that ends by `sys.exit(0)` returns None."""
    try:
        with context.entered(ctx):
            return function(ctx, *arguments)
    except SystemExit as error:
        if not trial.ended_well(error):
            raise
        return None


def perform(run: context.Run | None, message: messages.RunTrial, channel: TrialChannel) -> records.TrialOutcome:
    """The role of a worker or the learner of a collection."""
    config, request, lent = message.config, message.request, message.lent
    assert lent is not None, "a collection's process gets its files from the slot"
    stop = stopping.Stop(config.grace)
    role = WorkerRole if config.role == "worker" else LearnerRole
    return trial.act_out(run, message, channel, stop, role(config, request, Line(channel, stop), lent))


def own_checkpoints(config: records.SlotConfig, request: records.TrialRequest) -> dict[str, Any]:
    """The job's own checkpoint folder for all iterations, beside the platform's checkpoints."""
    own = {run: f"{trial.checkpoints(config, run, 0)}/own" for run in (request.run, request.resume) if run}
    return {"checkpoints": own[request.run], "_origin": context.Origin(own.get(request.resume))}


def returned(result: Any) -> Mapping[str, Any]:
    """The learner's result as a dict.

    Raises:
        Invalid: it is not a dict.
    """
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        raise context.Invalid(
            f"learn(ctx, results) returned a {type(result).__name__}; it must return a dict of metrics, with weights and "
            "state where there are any, or None"
        )
    return result


def merged(kept: states.Kept, result: Mapping[str, Any]) -> states.Kept:
    """The state for the next iteration: what was returned, and for omitted parts what this one started with.

    Raises:
        TransportError: a returned value cannot be saved; names its path.
    """
    packed = dict(kept.packed)
    for name, file in KEPT.items():
        if name in result:
            packed.pop(file, None)  # first: weights may be large, and need not be in memory twice
            packed[file] = transport.pack(result[name], name)
    return states.Kept(packed)
