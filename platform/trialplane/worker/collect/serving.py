"""Call the job's functions in the processes of a collection's workers and learner.

In each iteration, the workers compute results, and the learner returns the weights with which they compute the next ones.
The learner loads the checkpoint of its iteration, and first offers the weights to the workers. Before it sends its outcome,
it saves the weights and the state that the job has returned. So there is a checkpoint for each outcome of a learner.
"""

from __future__ import annotations

import dataclasses
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

STATE_FILES = {"weights": states.WEIGHTS, "state": states.STATE}  # name in the job's result → file of the checkpoint


@dataclasses.dataclass(frozen=True)
class _Role:
    """The base of the two roles of a collection's process, which are called with the job's function (`trial.CallJob`).

    Attributes:
        config: Configuration of the slot.
        request: Request of the trial.
        line: Channel to the slot.
        shared_files: Files that the slot has created for the process.
    """

    config: records.SlotConfig
    request: records.TrialRequest
    line: Line
    shared_files: messages.SharedFiles


class WorkerRole(_Role):
    """The work of a worker's process."""

    def __call__(self, play: Callable[..., Any], fields: Mapping[str, Any]) -> context.Result:
        """Call the job's function, and wait until its results are fetched. What it returns is ignored.

        Args:
            play: Job's function.
            fields: Arguments of `context.Context`, by name.

        Raises:
            Invalid: The job has not given results of units that it took.
            Stopped: A stop was requested.
        """
        weights_file = self.shared_files.weights
        worker_units = worker.WorkerUnits(self.line, folder=Path(self.shared_files.folder), spare=fields["workdir"])
        assert self.request.worker is not None
        ctx = Worker(
            **{**fields, **job_checkpoint_fields(self.config, self.request)},
            weights=None if weights_file is None else transport.unpack(segments.read(weights_file)),
            iteration=self.request.trial,
            worker=self.request.worker,
            _work=worker_units,
        )
        try:
            _call_job(play, ctx)
        finally:
            if not self.line.stopping:
                worker_units.drain()  # results that were given count even if the function has failed
        if self.line.stopping:
            raise ctx.stopped()
        worker_units.check_complete()
        return {}


class LearnerRole(_Role):
    """The work of the learner's process."""

    def __call__(self, learn: Callable[..., Any], fields: Mapping[str, Any]) -> context.Result:
        """Load the checkpoint of this iteration, call the job's function, and save the checkpoint of the next iteration.

        Returns:
            The job's result without weights and state.

        Raises:
            CheckpointError: A checkpoint is missing or damaged, or cannot be written.
            Invalid: The job's result is not a dict.
        """
        config, iteration = self.config, self.request.trial
        location = trial.checkpoint_folder(config, self.request.run, trial=0)  # all iterations have the folder of trial 0
        start = states.Start()
        if iteration > 0:
            start = states.States(location).load(iteration)
        elif self.request.resume:
            start = states.States(trial.checkpoint_folder(config, run=self.request.resume, trial=0)).newest()
        feed = learner.ResultFeed(self.line)
        iteration_shards = None
        if config.write:
            checkpoints = trial.checkpoint_root(config, self.request.run)
            iteration_shards = shards.open_shards(config.write, checkpoints, self.request.run, iteration)
            feed.report_existing(iteration_shards.units)
        self._offer_weights(feed, start.packed.get(states.WEIGHTS), fields["workdir"])
        ctx = Learner(
            **{**fields, **job_checkpoint_fields(config, self.request)},
            weights=start.tree(states.WEIGHTS),
            state=start.tree(states.STATE),
            iteration=iteration,
            shards=iteration_shards,
        )
        result = result_dict(_call_job(learn, ctx, learner.Results(self.request.units, feed)))
        states.States(location).save(iteration + 1, next_start(start, result))
        return {name: value for name, value in result.items() if name not in STATE_FILES}

    def _offer_weights(self, feed: learner.ResultFeed, weights: Any, workdir: Path) -> None:
        """Offer the packed weights to the workers, or report that there are none."""
        if weights is None:
            self.line.send(messages.WeightsOffered(0))
            return
        file, size = segments.Writer(self.shared_files.folder, spare=workdir).copy(weights)
        feed.weights = Path(file)  # the feed removes the file when the workers have fetched it
        self.line.send(messages.WeightsOffered(size, file))


def _call_job(function: Callable[..., Any], ctx: context.Context, *arguments: Any) -> Any:
    """Call the job's function and return its result; None if it ends by `sys.exit(0)`."""
    try:
        with context.activate(ctx):
            return function(ctx, *arguments)
    except SystemExit as error:
        if trial.is_clean_exit(error):
            return None
        raise


def perform(
    job_function: context.JobFunction | None, message: messages.RunTrial, channel: TrialChannel
) -> records.TrialOutcome:
    """Perform the role of a worker or the learner of a collection, and return the outcome."""
    config, request, shared_files = message.config, message.request, message.shared_files
    assert shared_files is not None, "a collection's process gets its files from the slot"
    stop = stopping.Stop(config.grace)
    role = WorkerRole if config.role == "worker" else LearnerRole
    return trial.run_role_job(job_function, message, channel, stop, role(config, request, Line(channel, stop), shared_files))


def job_checkpoint_fields(config: records.SlotConfig, request: records.TrialRequest) -> dict[str, Any]:
    """Return the fields of the context about the folder in which the job itself saves checkpoints.

    All iterations share one folder below that of trial 0, beside the checkpoints that the platform saves for the learner.
    If the run resumes another one, they include the location of that run's checkpoints.
    """
    location = f"{trial.checkpoint_folder(config, request.run, trial=0)}/own"
    resumed_location = f"{trial.checkpoint_folder(config, run=request.resume, trial=0)}/own" if request.resume else None
    return {"checkpoints": location, "_origin": context.Origin(resumed_location)}


def result_dict(result: Any) -> Mapping[str, Any]:
    """Return the learner's result as a dict; an empty one for None.

    Raises:
        Invalid: The result is not a dict.
    """
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        raise context.Invalid(
            f"learn(ctx, results) returned a {type(result).__name__}; it must return a dict of metrics, with weights and "
            "state where there are any, or None"
        )
    return result


def next_start(start: states.Start, result: Mapping[str, Any]) -> states.Start:
    """Return the start of the next iteration: the returned weights and state, or those of this iteration if omitted.

    Raises:
        TransportError: A returned value cannot be saved. The message has its path.
    """
    packed = dict(start.packed)
    for name, file in STATE_FILES.items():
        if name in result:
            packed.pop(file, None)  # frees the old weights before the new ones are packed, as they may be large
            packed[file] = transport.pack(result[name], name)
    return states.Start(packed)
