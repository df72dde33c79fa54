"""What happens between `submit` and the first trial of a run on a cluster, and when: read from others' timestamps.

Kubernetes and Ray round to whole seconds, and so does the controller's log, which is taken to be in UTC as containers are.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tests.benchmarks.workplace import MeasurementFailed

from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.run import RunHandle
from trialplane.kube import kinds
from trialplane.wire import cluster
from trialplane.wire.records import RunStatus

POLL = 1.0  # seconds between looks at a run
_WARM = re.compile(r"^(\d\d):(\d\d):(\d\d) INFO slot \d+ is warm ", re.MULTILINE)
_DAY = 86400.0


@dataclasses.dataclass
class Seen:
    """What was seen of a run while it lived.

    Attributes:
        pods: name → when each of its conditions became true first, in seconds since the epoch, and its role.
        controller: when the controller's container started first, or None.
        run: the Run as it was seen last.
        status: the run's last status.
    """

    pods: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    controller: float | None = None
    run: dict[str, Any] = dataclasses.field(default_factory=dict)
    status: RunStatus | None = None

    def look(self, target: KubernetesTarget, run: str) -> RunStatus:
        """Looks once."""
        for pod in target.objects.pods(run):
            known = self.pods.setdefault(pod["metadata"]["name"], {"role": pod["metadata"]["labels"][cluster.ROLE]})
            for condition in pod["status"].get("conditions") or []:
                if condition["status"] == "True":
                    known.setdefault(condition["type"], epoch(condition["lastTransitionTime"]))
            self.controller = self.controller or _controller_start(pod)
        self.run = target.cluster.read(kinds.RUN, run) or self.run
        self.status = RunHandle(run, target).status()
        return self.status

    def last(self, condition: str) -> float:
        """When the last of the pods came to a condition."""
        times = [float(pod[condition]) for pod in self.pods.values() if condition in pod]
        if not times or len(times) < len(self.pods):
            raise MeasurementFailed(f"not every pod was seen to be {condition}: {self.pods}")
        return max(times)

    def first(self, condition: str, role: str) -> float:
        """When the first pod of a role came to a condition."""
        times = [float(pod[condition]) for pod in self.pods.values() if pod["role"] == role and condition in pod]
        if not times:
            raise MeasurementFailed(f"no {role} pod was seen to be {condition}: {self.pods}")
        return min(times)


def follow(target: KubernetesTarget, run: str, patience: float) -> Seen:
    """Looks at a run until it has succeeded.

    Raises:
        MeasurementFailed: it ended otherwise, or not in `patience` seconds.
    """
    seen, deadline = Seen(), time.monotonic() + patience
    while True:
        status = seen.look(target, run)
        if status.state.is_ended:
            break
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"{run} is {status.state} after {patience:g} s: {status.reason}")
        time.sleep(POLL)
    if status.complete != status.trials:
        raise MeasurementFailed(f"{run}: {status.complete} of {status.trials} trials completed; {status.reason}")
    return seen


def steps(seen: Seen, log: str, attempts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Step → when it was done, in order; the first is the scheduling of the last of the head and worker pods.

    What was done before that is left out: where trial pods come when trials wait, nearly all of the controller's start.

    Args:
        seen: of a run that ended.
        log: of its controller.
        attempts: of `programs/moments.py`.
    """
    first = min(float(attempt["started"]) for attempt in attempts)
    found = {
        "scheduled": seen.last("PodScheduled"),
        "pods ready": seen.last("Ready"),
        **_controller(seen, log, first),
        "first trial started": first,
    }
    counted = [name for name, moment in found.items() if moment >= found["scheduled"]]
    return {name: found[name] for name in sorted(counted, key=lambda name: found[name])}


def way(seen: Seen, log: str, attempts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Step → when it was done, in order, from the run's object in the API server to the first trial's result.

    Args:
        seen: of a run that ended.
        log: of its controller.
        attempts: of `programs/moments.py`.
    """
    known = list(attempts)
    first = min(float(attempt["started"]) for attempt in known)
    found = {
        "Run applied": epoch(seen.run["metadata"]["creationTimestamp"]),
        "head pod ready": seen.first("Ready", cluster.CONTROLLER),
        "first trial pod ready": seen.first("Ready", cluster.TRIAL),
        **_controller(seen, log, first),
        "first trial started": first,
        "first trial's result": min(float(attempt["ended"]) for attempt in known),
    }
    return dict(sorted(found.items(), key=lambda one: one[1]))


def _controller(seen: Seen, log: str, first: float) -> dict[str, float]:
    """The start of the controller, and of the first slot."""
    if seen.controller is None or seen.status is None or seen.status.started is None:
        raise MeasurementFailed(f"the start of the controller was not seen: {seen.pods}")
    return {
        "controller's container started": seen.controller,
        "controller's libraries imported": seen.status.started,
        "first slot warm": _first_warm(log, first),
    }


def epoch(text: str) -> float:
    """Kubernetes's timestamp in seconds since the epoch."""
    return datetime.datetime.fromisoformat(text).timestamp()


def _first_warm(log: str, near: float) -> float:
    """When the first slot was warm: the log has the time of day only, the day is that of the first trial."""
    found = _WARM.search(log)
    if found is None:
        raise MeasurementFailed(f"the controller's log names no warm slot:\n{log[-2000:]}")
    hours, minutes, seconds = map(int, found.groups())
    midnight = near - near % _DAY
    moment = midnight + 3600 * hours + 60 * minutes + seconds
    return moment - _DAY if moment > near + 1 else moment


def _controller_start(pod: Mapping[str, Any]) -> float | None:
    """When the container of the controller in a head pod started."""
    for container in pod["status"].get("initContainerStatuses") or []:
        for state in ("running", "terminated"):
            started = (container["state"].get(state) or {}).get("startedAt")
            if container["name"] == cluster.CONTROLLER and started:
                return epoch(started)
    return None
