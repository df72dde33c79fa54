"""Logs of a run on a cluster as lines: from the gateway, which keeps them, or else from the pods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from trialplane.client.gateway import Gateway
from trialplane.client.target import Log
from trialplane.errors import TargetError
from trialplane.kube.objects import Objects
from trialplane.wire import cluster as names
from trialplane.wire import logs
from trialplane.wire.logs import Piece

PAUSE = 1.0  # seconds between requests for more of a log
_STATES = ("state", "lastState")  # of a container


def of_gateway(gateway: Gateway, run: str, which: Log, is_active: Callable[[], bool]) -> Iterator[str]:
    """Yield the lines of a log, and new ones until its writer has ended; wait for a log that does not exist yet.

    Args:
        gateway: polled; nothing is lost while it is unavailable.
        run: its name.
        which: of its logs.
        is_active: whether to wait for more.
    """

    def read(offset: int) -> Piece:
        active = is_active()  # checked before reading, so that the last lines are not missed
        try:
            piece = gateway.log(run, which, offset)
        except TargetError:
            if not active:
                raise
            return Piece(b"", offset, True)
        if isinstance(piece, str):
            return Piece(b"", offset, active)
        # A controller's log continues in a new head pod; a trial's attempt ends once.
        return dataclasses.replace(piece, is_growing=active and (piece.is_growing or which.trial is None))

    return logs.lines(logs.follow(read, PAUSE))


def of_controller(objects: Objects, run: str, follow: bool) -> Iterator[str] | None:
    """The log of the controller's container in the newest head pod, or None when there is none that has started.

    Of one that was restarted because it had ended it is the log of its newest life; the gateway's has all.
    """
    for pod in objects.pods(run, names.CONTROLLER):
        statuses = (pod.get("status") or {}).get("initContainerStatuses") or []
        lives = [
            status.get(state) or {} for status in statuses if status.get("name") == names.CONTROLLER for state in _STATES
        ]
        if any(life.keys() & {"running", "terminated"} for life in lives):
            return objects.cluster.pod_log(pod["metadata"]["name"], container=names.CONTROLLER, follow=follow)
    return None
