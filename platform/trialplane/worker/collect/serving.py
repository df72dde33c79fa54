"""The process of a collection's trial, around the job's function: a worker's, and the learner's.

The learner starts with the checkpoint of its iteration, first offers the weights to the workers, and saves the job's
result before it sends its outcome: an outcome implies a checkpoint.
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

KEPT = {"weights": states.WEIGHTS, "state": states.STATE}  # name in the job's result → file of the checkpoint


class _Role:
    """The configuration of one process of a collection.

    Args:
        config: of the slot.
        request: the trial's.
        line: to the slot.
        shared_files: the files from its slot.
    """

    def __init__(
        self, config: records.SlotConfig, request: records.TrialRequest, line: Line, shared_files: messages.SharedFiles
    ) -> None:
        self._config = config
        self._request = request
        self._line = line
        self._shared_files = shared_files


class WorkerRole(_Role):
    """A worker's process."""

    def __call__(self, play: Callable[..., Any], fields: Mapping[str, Any]) -> context.Result:
        """Call the job's function."""
        weights = self._shared_files.weights
        worker_units = worker.WorkerUnits(self._line, Path(self._shared_files.folder), fields["workdir"])
        assert self._request.worker is not None
        ctx = Worker(
            **{**fields, **own_checkpoints(self._config, self._request)},
            weights=None if weights is None else transport.unpack(segments.read(weights)),
            iteration=self._request.trial,
            worker=self._request.worker,
            _work=worker_units,
        )
        try:
            _call(play, ctx)
        finally:
            if not self._line.stopping:
                worker_units.drain()  # results count even if the function failed later
        if self._line.stopping:
            raise ctx.stopped()
        worker_units.check_complete()
        return {}


class LearnerRole(_Role):
    """The learner's process."""

    def __call__(self, learn: Callable[..., Any], fields: Mapping[str, Any]) -> context.Result:
        """Call the job's function, after loading the checkpoint of this iteration and before saving the next one."""
        config, iteration = self._config, self._request.trial
        location = trial.checkpoints(config, self._request.run, 0)  # the folder of one trial serves all iterations
        start = states.Start()
        if iteration > 0:
            start = states.States(location).load(iteration)
        elif self._request.resume:
            start = states.States(trial.checkpoints(config, self._request.resume, 0)).newest()
        fed = learner.Fed(self._line)
        written = None
        if config.write:
            beside = trial.checkpoint_location(config, self._request.run)
            written = shards.of_iteration(config.write, beside, self._request.run, iteration)
            fed.has(written.units)
        self._offer(fed, start.packed.get(states.WEIGHTS), fields["workdir"])
        ctx = Learner(
            **{**fields, **own_checkpoints(config, self._request)},
            weights=start.tree(states.WEIGHTS),
            state=start.tree(states.STATE),
            iteration=iteration,
            shards=written,
        )
        result = returned(_call(learn, ctx, learner.Results(self._request.units, fed)))
        states.States(location).save(iteration + 1, merged(start, result))
        return {name: value for name, value in result.items() if name not in KEPT}

    def _offer(self, fed: learner.Fed, weights: Any, workdir: Path) -> None:
        if weights is None:
            self._line.send(messages.WeightsOffered(0))
            return
        file, size = segments.Writer(self._shared_files.folder, workdir).copy(weights)
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
    config, request, shared_files = message.config, message.request, message.shared_files
    assert shared_files is not None, "a collection's process gets its files from the slot"
    stop = stopping.Stop(config.grace)
    role = WorkerRole if config.role == "worker" else LearnerRole
    return trial.act_out(run, message, channel, stop, role(config, request, Line(channel, stop), shared_files))


def own_checkpoints(config: records.SlotConfig, request: records.TrialRequest) -> dict[str, Any]:
    """The job's own checkpoint folder for all iterations, beside the platform's checkpoints."""
    locations = {run: f"{trial.checkpoints(config, run, 0)}/own" for run in (request.run, request.resume) if run}
    return {"checkpoints": locations[request.run], "_origin": context.Origin(locations.get(request.resume))}


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


def merged(start: states.Start, result: Mapping[str, Any]) -> states.Start:
    """Return the start of the next iteration: the returned parts, and this iteration's start for omitted parts.

    Raises:
        TransportError: a returned value cannot be saved; names its path.
    """
    packed = dict(start.packed)
    for name, file in KEPT.items():
        if name in result:
            packed.pop(file, None)  # first: weights may be large, and need not be in memory twice
            packed[file] = transport.pack(result[name], name)
    return states.Start(packed)
