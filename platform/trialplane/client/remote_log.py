"""Lines of a run's logs on a cluster: from the gateway, which stores them, or else from the pods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trialplane.client.gateway import Gateway
from trialplane.client.target import Log
from trialplane.errors import TargetError
from trialplane.kube import metadata
from trialplane.kube.objects import Objects
from trialplane.wire import cluster as names
from trialplane.wire import logs
from trialplane.wire.logs import Piece

PAUSE = 1.0  # seconds between requests for more of a log


def gateway_lines(gateway: Gateway, run: str, which: Log, is_active: Callable[[], bool]) -> Iterator[str]:
    """Yield the lines of a log. While `is_active`, wait for the log and for new lines, until its writer has ended.

    Args:
        gateway: Gateway, which is polled. No line is lost while it is unavailable.
        run: Name of the run.
        which: Log of the run.
        is_active: Function that returns whether new lines may still be written.

    Raises:
        TargetError: The gateway is unavailable, and the run is not active.
    """

    def read(offset: int) -> Piece:
        """Return the piece at an offset. It is empty while there is no log yet, or while the gateway does not answer."""
        active = is_active()  # checked before reading, so that the last lines are not missed
        try:
            piece = gateway.log(run, which, offset)
        except TargetError:
            if not active:
                raise
            return Piece(data=b"", next=offset, is_growing=True)
        if isinstance(piece, str):  # the reason why there is no log yet
            return Piece(data=b"", next=offset, is_growing=active)
        # A controller's log may continue in a new head pod, even if its writer has ended.
        return dataclasses.replace(piece, is_growing=active and (piece.is_growing or which.trial is None))

    return logs.lines(logs.follow(read, PAUSE))


def controller_lines(objects: Objects, run: str, follow: bool) -> Iterator[str] | None:
    """Return the log of the controller's container in the newest head pod; None if no such container has started.

    After a restart of the container, this is only the log since the restart. The gateway's log is complete.
    """
    for pod in objects.pods(run, names.CONTROLLER):
        statuses = metadata.status_of(pod).get("initContainerStatuses") or []
        if any(status.get("name") == names.CONTROLLER and _has_started(status) for status in statuses):
            return objects.cluster.pod_log(pod["metadata"]["name"], names.CONTROLLER, follow=follow)
    return None


def _has_started(container_status: Mapping[str, Any]) -> bool:
    """Whether a container runs, or ran before its last restart, so that it has a log."""
    states = [container_status.get(field) or {} for field in ("state", "lastState")]
    return any("running" in state or "terminated" in state for state in states)
