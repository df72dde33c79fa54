"""Logs of a run on a cluster as lines: from the gateway, which keeps them, or else from the pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from trialplane.client.gateway import Gateway, Piece
from trialplane.client.target import Log
from trialplane.errors import TargetError
from trialplane.kube.objects import Objects
from trialplane.wire import cluster as names

_PAUSE = 1.0
_STATES = ("state", "lastState")  # of a container


def stored(gateway: Gateway, run: str, which: Log) -> Iterator[str] | str:
    """Return the lines of a log, or why the gateway has none."""
    piece = gateway.log(run, which, 0)
    if isinstance(piece, str):
        return piece

    def lines() -> Iterator[str]:
        page: Piece | str = piece
        text = b""
        while isinstance(page, Piece) and page.data:
            *whole, text = (text + page.data).split(b"\n")
            yield from (line.decode(errors="replace") + "\n" for line in whole)
            page = gateway.log(run, which, page.next)
        if text:
            yield text.decode(errors="replace")

    return lines()


def followed(
    gateway: Gateway,
    run: str,
    which: Log,
    is_active: Callable[[], bool],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """The lines of a log, and new ones until its writer has ended; waits for one that does not exist yet.

    Args:
        gateway: polled; nothing is lost while it is unavailable.
        run: its name.
        which: of its logs.
        is_active: whether the run is active.
        pause: waits for a number of seconds.
    """
    offset, text = 0, b""
    while True:
        active = is_active()  # checked before reading, so that the last lines are not missed
        try:
            piece = gateway.log(run, which, offset)
        except TargetError:
            if not active:
                raise
            pause(_PAUSE)
            continue
        if isinstance(piece, Piece) and piece.data:
            offset = piece.next
            *whole, text = (text + piece.data).split(b"\n")
            yield from (line.decode(errors="replace") + "\n" for line in whole)
            continue
        # A controller's log continues in a new head pod; a trial's attempt ends once.
        growing = active if isinstance(piece, str) or which.trial is None else piece.growing and active
        if not growing:
            break
        pause(_PAUSE)
    if text:
        yield text.decode(errors="replace")


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
