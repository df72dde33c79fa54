"""Status of a run on a cluster, from its two sources. Pure.

The API server has the Run object, whose status the operator writes. The gateway has the ledger, whose status the controller
writes; it is the newer one while the controller works. One source may not know the run: an ended run may have no Run object
anymore, and the operator records a new Run in the ledger a moment after its creation. If the gateway cannot be reached, only
the Run's status is shown, with that reason. `ledger.run_status` decides between them.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence

from trialplane.kube import metadata
from trialplane.kube.objects import Run
from trialplane.ledger import run_status
from trialplane.ledger.run_status import LedgerView, OperatorView
from trialplane.plan import plan as planning
from trialplane.wire import cluster as names
from trialplane.wire.records import Desired, RunStatus
from trialplane.wire.states import RunState

PATIENCE = 15.0  # seconds within which a running operator reports on a new Run


@dataclasses.dataclass(frozen=True)
class RunSources:
    """Snapshot of a run, from the API server and the gateway. At least one of them knows it.

    Attributes:
        run: Run object; None if there is none.
        desired: Desired state of the Run object, or else of the ledger.
        status: Status in the ledger; None if it is not there.
        alive: Whether a controller holds the run's lock.
        gateway_problem: Reason why the gateway could not be reached; "" if it was.
    """

    run: Run | None
    desired: Desired
    status: RunStatus | None = None
    alive: bool = False
    gateway_problem: str = ""

    @property
    def has_begun(self) -> bool:
        """Whether a controller has ever worked on the run, according to the ledger."""
        return self.status is not None and self.status.started is not None

    @property
    def is_active(self) -> bool:
        """Whether a controller works on the run or is being started."""
        if self.alive:
            return True
        if self.run is None or self.run.is_settled:
            return False
        # The operator is about to start a controller, unless the ledger shows that the last start has already ended.
        has_last_start_ended = self.ledger is not None and run_status.reported_status(self.ledger) is not None
        return not has_last_start_ended

    @property
    def ledger(self) -> LedgerView | None:
        """View of the ledger; None if it has no status of the run.

        It has the time of the last start of a controller, because a status from before that start is outdated. The gateway
        has already compared the status with the last start in the ledger, but the Run may have a newer one, or one that the
        operator has not recorded yet.
        """
        if self.status is None:
            return None
        run = self.run
        if run is None or self.alive:
            start_time = 0.0  # the status is not outdated
        elif run.is_observed and run.is_started and not run.is_deleted:
            start_time = metadata.timestamp(run.status.started) or run.created
        else:  # the Run names a start that the operator has not recorded yet, so the status is of an earlier one
            start_time = math.inf
        return LedgerView(self.status, alive=self.alive, begun=start_time)

    def operator_view(self, operator_command: str) -> OperatorView:
        """Return the operator's view of the run.

        Args:
            operator_command: Command that shows whether the operator runs, for messages.
        """
        run = self.run
        if run is None:
            name = "" if self.status is None else self.status.run
            reason = f"there is no Run of it in the cluster (any more); `platform resume {name}` creates one and continues"
            return OperatorView(RunState.PAUSED, reason)
        if run.is_deleted:
            return OperatorView(RunState.PAUSED, "it is being removed")
        if not run.is_observed:
            reason = run_status.join_reasons(_unobserved_reason(run, operator_command), self.gateway_problem)
            return OperatorView(RunState.PENDING, reason)
        if run.state is RunState.RUNNING and self.gateway_problem:
            return OperatorView(run.state, run_status.join_reasons(self.gateway_problem, run.status.reason))
        if run.state.is_active:
            return self._starting_view(run.status.reason)
        reason = run_status.join_reasons(run.status.reason, self.gateway_problem)
        return OperatorView(run.state, reason, ended=metadata.timestamp(run.status.since))

    def _starting_view(self, reported: str) -> OperatorView:
        """Return the view of a Run whose controller starts; `reported` is the operator's reason, or ""."""
        start_reason = "the controller is restarting" if self.has_begun else run_status.STARTING
        reason = run_status.join_reasons(reported or start_reason, self.gateway_problem)
        lacks_slots = self.status is not None and self.status.slots_ready < self.status.slots
        return OperatorView(RunState.PENDING, reason, waits=reported if lacks_slots else "")


def status(sources: RunSources, operator_command: str) -> RunStatus:
    """Return the status of a run from both sources, with its owner and the digests of its images.

    The status has a warning for each image with more than one digest.

    Args:
        sources: Both sources of the run.
        operator_command: Command that shows whether the operator runs.
    """
    run = sources.run
    ledger = sources.ledger
    if ledger is None:
        assert run is not None, "one of the sources knows the run"
        ledger = LedgerView(_status_of_object(run), begun=math.inf)  # not the status of any start
    merged = run_status.current(ledger, sources.operator_view(operator_command))
    images = dict(merged.images)  # name → digests
    for image in run.status.images if run else ():
        known_digests = images.get(image.image, ())
        images[image.image] = tuple(dict.fromkeys((*known_digests, image.digest)))
    owner = run.owner if run else merged.owner
    return dataclasses.replace(merged, owner=owner, images=images, warnings=(*merged.warnings, *_image_warnings(images)))


def _image_warnings(images: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a warning for each image with more than one digest; `images` has the digests of each."""
    return [
        f"its pods have run {len(digests)} digests of {image}: the tag was pushed again, or nodes have different "
        "architectures; give each build a tag of its own (`platform docs gpus`)"
        for image, digests in images.items()
        if len(digests) > 1
    ]


def _unobserved_reason(run: Run, operator_command: str) -> str:
    """Return the reason why a Run whose newest spec the operator has not handled yet waits."""
    if run.parsed.issues:
        return "; ".join(f"{issue.field}: {issue.message}" for issue in run.parsed.issues[:3])
    if run.status.observedGeneration:  # it has handled an earlier spec
        return f"the operator is about to follow the change; if that lasts, `{operator_command}` shows whether it runs"
    age = time.time() - run.created
    if age > PATIENCE:
        return f"the operator has not answered for {age:.0f} s: is it running? `{operator_command}`"
    return "the operator is about to start it"


def _status_of_object(run: Run) -> RunStatus:
    """Return the status of a run that only the API server knows."""
    if run.parsed.job is None or run.parsed.spec is None:
        job = metadata.labels_of(run.manifest).get(names.JOB, "")
        return RunStatus(run=run.name, job=job, state=RunState.UNKNOWN, trials=0, created=run.created, updated=time.time())
    pending = planning.pending_status(run.name, run.parsed.job, run.submitted)
    parallel = run.parsed.spec.parallel
    return pending if parallel is None else dataclasses.replace(pending, parallel=parallel)
