"""What many Runs cost: the operator that follows 500 that ended and 50 that wait for room, and `kubectl get runs`.

The ended ones were cancelled before they began, and those that wait ask for more memory than any node has: neither costs the
machine a pod that works, so what is measured is the operator alone, and the API server.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from tests.benchmarks import runs, timeline
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import MeasurementFailed, Workplace

from trialplane.client.kubernetes import KubernetesTarget
from trialplane.errors import TrialplaneError
from trialplane.kube import kinds
from trialplane.wire import cluster as names

PLATFORM = Path(sys.executable).with_name("platform")
PREFIX = "bench"  # of the names of runs
PATIENCE = 1200.0  # seconds until the operator has seen all Runs
CALM = 120.0  # seconds for which an untouched cluster is watched
TOO_MUCH = "9000Gi"  # of memory
# Of the operator's process, which is the first of its container: seconds of CPU, and MiB that are resident.
USAGE = """\
import json, os
fields = open("/proc/1/stat").read().rpartition(")")[2].split()
resident = next(line for line in open("/proc/1/status") if line.startswith("VmRSS"))
seconds = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
print(json.dumps({"cpu": seconds, "memory": int(resident.split()[1]) / 1024}))
"""


def measure(place: Workplace) -> Iterator[Row]:
    """Makes the Runs, and looks at the operator when it has nothing more to do."""
    if not place.context:
        raise MeasurementFailed("which cluster? name it: --only run_objects --context CTX [--namespace NS]")
    try:
        with contextlib.ExitStack() as stack:
            many = Many(place, KubernetesTarget(place.context, place.namespace or None))
            stack.callback(many.delete)
            yield from many.rows()
    except TrialplaneError as error:
        raise MeasurementFailed(str(error)) from error


@dataclasses.dataclass
class Many:
    """The Runs of one measurement.

    Attributes:
        place: where the benchmark works.
        target: the namespace.
        mark: their job's name, and the beginning of their own.
    """

    place: Workplace
    target: KubernetesTarget
    mark: str = dataclasses.field(default_factory=lambda: f"{PREFIX}-{secrets.token_hex(2)}")

    def rows(self) -> Iterator[Row]:
        """All figures."""
        ended, waiting = self.place.size(500, 5), self.place.size(50, 2)
        folder = self._job()
        began = time.perf_counter()
        self._make(folder, ended, waiting)
        wanted = Counter({"Cancelled": ended, "Pending": waiting})
        self._until(f"state of {ended + waiting} Runs", lambda: self._states() == wanted)
        everything = f"{ended} ended and {waiting} waiting Runs"
        yield Row(
            "run_objects", f"until {everything}, applied at once, have their states", "s", (time.perf_counter() - began,)
        )
        yield from self._operator(everything)
        ours, theirs = [], []
        for _ in range(self.place.repeats(5)):
            ours.append(self.place.time_command(self._kubectl("get", "runs")))
            theirs.append(self.place.time_command(self._kubectl("get", "configmaps")))
        what = f"kubectl get runs, {everything}"
        yield Row("run_objects", what, "s", tuple(ours), "kubectl get configmaps", tuple(theirs), Goal(value=1))
        first = tuple(self._first_condition(folder, number) for number in range(self.place.repeats(5)))
        what = f"from submit's start to the Run's first condition, beside {everything}"
        yield Row("run_objects", what, "s", first, goal=Goal(value=2))

    def delete(self) -> None:
        """Deletes the Runs; their records stay in the ledger, as those of any Run that `kubectl` deletes."""
        selector = f"{names.JOB}={self.mark}"
        self.place.output(self._kubectl("delete", "runs,configmaps", "--selector", selector, "--wait=false"), timeout=300)

    def _operator(self, everything: str) -> Iterator[Row]:
        """Its pods together: one of them works, the others wait for its Lease."""
        before, began = self._usage(), time.perf_counter()
        self.place.say(f"run_objects: {CALM:g} s in which nothing happens")
        time.sleep(self.place.size(int(CALM), 5))
        after, seconds = self._usage(), time.perf_counter() - began
        if before.keys() != after.keys():
            raise MeasurementFailed("a pod of the operator was made anew meanwhile")
        busy = 100 * sum(after[pod]["cpu"] - before[pod]["cpu"] for pod in after) / seconds
        largest = max(usage["memory"] for usage in after.values())
        yield Row("run_objects", f"operator's memory, {everything}", "MiB", (largest,), goal=Goal(value=256))
        yield Row("run_objects", f"of a core for the operator, {everything}, untouched", "%", (busy,), goal=Goal(value=5))

    def _usage(self) -> dict[str, dict[str, float]]:
        """What each pod of the operator has used."""
        space = self.target.objects.site.control or self.target.cluster.namespace
        found = self.place.output(
            self._kubectl("get", "pods", "--selector", f"{names.ROLE}={names.OPERATOR}", "--output", "name", namespace=space)
        )
        return {
            pod: json.loads(
                self.place.output(self._kubectl("exec", "-i", pod, "--", "python", "-", namespace=space), stdin=USAGE)
            )
            for pod in found.split()
        }

    def _first_condition(self, folder: Path, number: int) -> float:
        """Seconds from the start of a `submit`; the run is cancelled then."""
        name = f"{self.mark}-first-{number}"
        flags = ["--context", self.target.cluster.context, "--namespace", self.target.cluster.namespace]
        began = time.perf_counter()
        self.place.output([str(PLATFORM), "submit", "hpo", str(folder), "--name", name, "--detach", *flags])

        def has_one() -> bool:
            found = self.target.cluster.read(kinds.RUN, name)
            return bool(found and (found.get("status") or {}).get("conditions"))

        self._until(f"condition of {name}", has_one, poll=0.05)
        seconds = time.perf_counter() - began
        self.place.output([str(PLATFORM), "cancel", name, "--now", "--yes", *flags])
        return seconds

    def _make(self, folder: Path, ended: int, waiting: int) -> None:
        """Applies what `submit --dry-run` prints, under many names."""
        flags = ["--context", self.target.cluster.context, "--namespace", self.target.cluster.namespace]
        command = [str(PLATFORM), "submit", "hpo", str(folder), "--name", self.mark, "--dry-run", *flags]
        printed = [document for document in yaml.safe_load_all(self.place.output(command)) if document]
        made: list[dict[str, Any]] = []
        for number in range(ended + waiting):
            for document in printed:
                one = json.loads(json.dumps(document).replace(f'"{self.mark}-code"', f'"{self.mark}-{number}-code"'))
                one["metadata"]["labels"][names.RUN] = f"{self.mark}-{number}"
                if one["kind"] == "Run":
                    one["metadata"]["name"] = f"{self.mark}-{number}"
                    one["spec"] = _without_room(one["spec"]) if number >= ended else {**one["spec"], "state": "Cancelled"}
                made.append(one)
        file = self.place.scratch / "runs.yaml"
        file.write_text(yaml.safe_dump_all(made))
        self.place.say(f"run_objects: {len(made)} objects are applied")
        self.place.output(self._kubectl("apply", "--server-side", "--filename", str(file)), timeout=PATIENCE)

    def _states(self) -> Counter[str]:
        found = self.target.cluster.list(kinds.RUN, selector=f"{names.JOB}={self.mark}")
        return Counter((run.get("status") or {}).get("state", "") for run in found)

    def _job(self) -> Path:
        folder = self.place.scratch / "jobs" / self.mark
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(runs.SLEEPING)
        document = {
            "kind": "hpo",
            "objectives": [{"metric": "loss", "direction": "minimize"}],
            "sampler": "random",
            "trials": 1,
            "parallel": 1,
            "params": {"seconds": 1.0},
            "space": runs.unit_space(("x",)),
            "resources": {"cpus": 1, "memory": "1Gi"},
        }
        (folder / "job.yaml").write_text(yaml.safe_dump(document))
        return folder

    def _kubectl(self, *words: str, namespace: str = "") -> list[str]:
        cluster = self.target.cluster
        return ["kubectl", "--context", cluster.context, "--namespace", namespace or cluster.namespace, *words]

    def _until(self, what: str, holds: Callable[[], bool], poll: float = timeline.POLL) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"after {PATIENCE:g} s: no {what}")
            time.sleep(poll)


def _without_room(spec: dict[str, Any]) -> dict[str, Any]:
    """A run's spec whose head fits no node."""
    large = copy.deepcopy(spec)
    large["job"]["cluster"]["controller"]["memory"] = TOO_MUCH
    return large
