"""How fast a cluster is: `submit`, the way to the first trial, an isolated trial, and reading a run of many trials.

Everything beside what does the same work: `kubectl apply` of the same manifests, and the same job with `--local` on this
machine. On a cluster of one machine (kind) both share its cores.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.benchmarks import runs, timeline, trial
from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import ROOT, MeasurementFailed, Workplace

from trialplane.client.kubernetes import KubernetesTarget
from trialplane.client.local import LocalTarget
from trialplane.client.run import RunHandle
from trialplane.errors import RunNotFound, TrialplaneError
from trialplane.wire import paths
from trialplane.wire.records import RunStatus

SLOTS = 2
PATIENCE = 600.0  # seconds for a run to end
PREFIX = "bench"  # of the names of runs
PLATFORM = Path(sys.executable).with_name("platform")
# The template is the parent of each trial, so a trial's metrics say in which slot it ran. The first trials do nothing but
# their import; the others last, so that a run of many trials can be read while it lives.
HEAVY = """\
import os
import time

import torch
import transformers


def run(ctx):
    if ctx.trial >= ctx.params["quick"]:
        time.sleep(ctx.params["seconds"])
    return {"loss": (ctx.params["x"] - 0.3) ** 2 + ctx.params["y"], "slot": os.getppid()}
"""


def measure(place: Workplace) -> Iterator[Row]:
    """The way to the first trial round by round, then a long run here and there."""
    if not place.context:
        raise MeasurementFailed("which cluster? name it: --only cluster --context CTX [--namespace NS]")
    try:
        with contextlib.ExitStack() as stack:
            remote = Remote(place, KubernetesTarget(place.context, place.namespace or None), stack)
            yield from _start(place, remote)
            yield from _study(place, remote)
            yield from _long(place, remote)
    except TrialplaneError as error:
        raise MeasurementFailed(str(error)) from error


@dataclasses.dataclass
class Remote:
    """The cluster, with everything that was started there deleted in the end.

    Attributes:
        place: where the benchmark works.
        target: the namespace.
        stack: ends what was started.
        mark: of this benchmark's runs.
    """

    place: Workplace
    target: KubernetesTarget
    stack: contextlib.ExitStack
    mark: str = dataclasses.field(default_factory=lambda: f"{PREFIX}-{secrets.token_hex(2)}")

    @functools.cached_property
    def flags(self) -> list[str]:
        """Of `platform` and `kubectl` alike."""
        return ["--context", self.target.cluster.context, "--namespace", self.target.cluster.namespace]

    def submit(self, folder: Path, name: str, *more: str) -> float:
        """Seconds of the whole process."""
        self.stack.callback(self.delete, name)
        return self.place.time_command([*_submit(folder, name), *more, *self.flags, "--detach"])

    def apply(self, folder: Path, name: str) -> float:
        """Seconds that `kubectl` takes for what `submit` would send; its pods are not waited for but for their end."""
        manifests = self.place.scratch / f"{name}.yaml"
        manifests.write_text(self.place.output([*_submit(folder, name), *self.flags, "--dry-run"]))
        kubectl = ["kubectl", *self.flags]
        try:
            return self.place.time_command([*kubectl, "apply", "--server-side", "-f", str(manifests)])
        finally:
            self.place.output([*kubectl, "delete", "--wait=false", "--ignore-not-found", "-f", str(manifests)])
            self.wait_for_room(name)

    def delete(self, name: str) -> None:
        """Takes a run away; what cannot be is said, for the figures are there all the same."""
        try:
            self.target.is_active(name)  # raises when it was deleted before
            self.place.output([str(PLATFORM), "delete", name, "--yes", *self.flags], timeout=180)
            self.wait_for_room(name)
        except RunNotFound:
            return
        except (MeasurementFailed, TrialplaneError) as error:
            self.place.say(f"{name} is left on the cluster: {error}")

    def wait_for_room(self, name: str) -> None:
        """Until no pod of a run uses anything any more."""

        def rests() -> bool:
            return all(pod["status"].get("phase") in ("Succeeded", "Failed") for pod in self.target.objects.pods(name))

        _until(f"end of {name}'s pods", rests)

    def attempts(self, name: str) -> list[dict[str, Any]]:
        """When each trial of a run ran; asked where the database's URL is."""
        code = (ROOT / "tests" / "benchmarks" / "programs" / "moments.py").read_text()
        site = self.target.objects.site
        command = [
            "kubectl",
            *["--context", self.target.cluster.context, "--namespace", site.home],
            "exec",
            "-i",
            f"service/{site.gateway.service}",
            "--",
            "python",
            "-",
            json.dumps({"run": name, "namespace": site.namespace, "control": site.home}),
        ]
        return _attempts(json.loads(self.place.output(command, stdin=code)))

    def log(self, name: str) -> str:
        """The controller's."""
        return "".join(RunHandle(name, self.target).logs())


def _start(place: Workplace, remote: Remote) -> Iterator[Row]:
    """`submit`, and what happens until the first trial of a job without imports."""
    submitted: list[float] = []
    applied: list[float] = []
    rows: list[Row] = []
    for pods, autoscale in (("fixed pods", False), ("pods as trials wait", True)):
        ways: list[dict[str, float]] = []
        found: list[dict[str, float]] = []
        folder = _job(
            place,
            f"light-{len(rows)}",
            runs.SLEEPING,
            trials=4,
            params={"seconds": 1.0},
            space=runs.unit_space(("x",)),
            cluster={"autoscale": autoscale},
        )
        for number in range(place.repeats(3)):
            place.say(f"cluster: round {number + 1}, submit and start, {pods}")
            name = f"{remote.mark}-{number}{'a' if autoscale else 'f'}"
            applied.append(remote.apply(folder, f"{name}-k"))
            before = time.time()
            submitted.append(remote.submit(folder, name))
            seen = timeline.follow(remote.target, name, PATIENCE)
            known = seen, remote.log(name), remote.attempts(name)
            found.append(timeline.steps(*known))
            ways.append({step: moment - before for step, moment in timeline.way(*known).items()})
            remote.delete(name)
        rows += _step_rows(found, f"nothing imported, {pods}")
        for step in ways[0]:
            rows.append(Row("cluster", f"from submit's start: {step}, {pods}", "s", tuple(way[step] for way in ways)))
    peer = "kubectl apply --server-side"
    yield Row("cluster", "platform submit --detach", "s", tuple(submitted), peer, tuple(applied), Goal(value=2))
    yield from rows


def _study(place: Workplace, remote: Remote) -> Iterator[Row]:
    """The README's study, `criteria`, from the start of `submit` to its end, here and there."""
    trials = place.size(24, 4)
    flags = ["--trials", str(trials), "--parallel", str(SLOTS)]
    folder = ROOT / "jobs" / "criteria"
    local = LocalTarget(place.home)
    seconds: dict[str, list[float]] = {"local": [], "cluster": []}
    for number in range(place.repeats(1)):
        name = f"{remote.mark}-study-{number}"
        for where, samples in seconds.items():
            place.say(f"cluster: round {number + 1}, {trials} trials of criteria, {where}")
            run, before = RunHandle(name, local if where == "local" else remote.target), time.time()
            if where == "local":
                place.output([*_submit(folder, name), *flags, "--local", "--detach"])
            else:
                remote.submit(folder, name, *flags)
            _until(f"end of {name} ({where})", lambda run=run: run.status().state.is_ended)
            status = run.status()
            if status.ended is None or status.complete + status.pruned != trials:
                raise MeasurementFailed(f"{status.complete + status.pruned} of {trials} trials {where}: {status.reason}")
            samples.append(status.ended - before)
        remote.delete(name)
    what = f"{trials} trials of criteria on {SLOTS} slots, from submit's start to the run's end"
    yield Row("cluster", what, "s", tuple(seconds["cluster"]), "the same --local", tuple(seconds["local"]))


def _step_rows(found: Sequence[Mapping[str, float]], job: str) -> Iterator[Row]:
    """The whole way from the last pod scheduled, then its parts; those that were seen in every round."""
    names = [name for name in found[0] if all(name in steps for steps in found)]
    whole = tuple(steps[names[-1]] - steps[names[0]] for steps in found)
    note = f"load {os.getloadavg()[1]:.1f} over five minutes on {os.cpu_count()} cores"
    yield Row(
        "cluster", f"from the last pod scheduled to the first trial, {job}", "s", whole, goal=Goal(value=15), note=note
    )
    for before, after in itertools.pairwise(names):
        yield Row("cluster", f"  of it: {after}", "s", tuple(steps[after] - steps[before] for steps in found))


def _long(place: Workplace, remote: Remote) -> Iterator[Row]:
    """A run of many trials that import torch and transformers, here and there: what a trial takes, and reading it."""
    quick, slow = place.size(680, 16), place.size(120, 8)
    folder = _job(
        place,
        "heavy",
        HEAVY,
        trials=quick + slow,
        params={"quick": quick, "seconds": 0.5},
        space=runs.unit_space(("x", "y")),
        preload=["torch", "transformers"],
    )
    trial.warm_up(place)
    each: dict[str, list[float]] = defaultdict(list)
    read: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    found: list[dict[str, float]] = []
    local = LocalTarget(place.home)
    for number in range(place.repeats(1)):
        name = f"{remote.mark}-long-{number}"
        for where in ("local", "cluster"):
            place.say(f"cluster: round {number + 1}, {quick + slow} trials, {where}")
            flags = ["--local"] if where == "local" else remote.flags
            if where == "local":
                place.output([*_submit(folder, name), "--local", "--detach"])
                seen = _finish(place, name, quick, RunHandle(name, local).status, flags, where, read)
                run = paths.RunPaths.of(place.home, name)
                attempts = _attempts(place.call("moments", {"run": name, "ledger": f"sqlite:///{run.ledger}"}, timeout=60))
            else:
                remote.submit(folder, name)
                seen_there = timeline.Seen()
                look = functools.partial(seen_there.look, remote.target, name)
                seen = _finish(place, name, quick, look, flags, where, read)
                attempts = remote.attempts(name)
                found.append(_steps(remote, name, seen_there))
            if seen.complete != quick + slow:
                raise MeasurementFailed(f"{seen.complete} of {quick + slow} trials completed {where}: {seen.reason}")
            each[where].append(_each(attempts, quick))
        remote.delete(name)
    total = f"{quick + slow} trials"
    yield from list(_step_rows(found, "torch and transformers imported"))
    yield Row(
        "cluster",
        f"one of {quick} isolated trials that import torch and transformers",
        "ms",
        tuple(each["cluster"]),
        "the same job --local",
        tuple(each["local"]),
        Goal(times=0.5),
        note="once both slots are warm; the cluster at most twice the local time",
    )
    for verb in ("status", "results"):
        for state in ("living", "ended"):
            ours, theirs = (tuple(read[verb, state, where]) for where in ("cluster", "local"))
            what = f"platform {verb} of {total}, {state}"
            yield Row("cluster", what, "ms", ours, "the same --local", theirs, Goal(value=1000))


def _finish(
    place: Workplace,
    name: str,
    quick: int,
    look: Callable[[], RunStatus],
    flags: Sequence[str],
    where: str,
    read: dict[tuple[str, str, str], list[float]],
) -> RunStatus:
    """Waits for the quick trials of a run, reads the run while the others last, and again when it has ended."""

    def until(what: str, holds: Callable[[RunStatus], bool]) -> None:
        _until(f"{what} of {name} ({where})", lambda: holds(look()))

    def time_verbs(state: str, rounds: int) -> None:
        taken: dict[str, list[float]] = {"status": [], "results": []}
        for _ in range(rounds):
            for verb, samples in taken.items():
                samples.append(1000 * place.time_command([str(PLATFORM), verb, name, *flags]))
        if state == "ended" or not look().state.is_ended:  # else they are of neither state
            for verb, samples in taken.items():
                read[verb, state, where] += samples

    until("quick trials", lambda status: status.ended_trials >= quick or status.state.is_ended)
    time_verbs("living", place.size(4, 1))
    until("end", lambda status: status.state.is_ended)
    time_verbs("ended", place.size(8, 1))
    return look()


def _steps(remote: Remote, name: str, seen: timeline.Seen) -> dict[str, float]:
    return timeline.steps(seen, remote.log(name), remote.attempts(name))


def _each(attempts: Sequence[Mapping[str, Any]], quick: int) -> float:
    """Milliseconds per trial from when both slots have begun to the end of the last quick trial."""
    first: dict[tuple[str, float], float] = {}
    for attempt in attempts:
        slot = (attempt["node"], attempt["metrics"]["slot"])
        first[slot] = min(first.get(slot, attempt["started"]), attempt["started"])
    ends = [float(attempt["ended"]) for attempt in attempts if attempt["trial"] < quick]
    begin = float(max(first.values()))
    counted = [end for end in ends if end > begin]
    if len(first) != SLOTS or len(counted) < len(ends) / 4:
        raise MeasurementFailed(f"{len(first)} slots, which ran side by side for {len(counted)} of {len(ends)} trials only")
    return 1000 * (max(counted) - begin) / len(counted)


def _job(place: Workplace, name: str, code: str, **fields: Any) -> Path:
    """A job's folder. Its pods are all made at once, whatever the chart prefers: so the steps follow one another."""
    folder = place.scratch / "jobs" / name
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(code)
    document = {
        "kind": "hpo",
        "objectives": [{"metric": "loss", "direction": "minimize"}],
        "sampler": "random",
        "parallel": SLOTS,
        "resources": {"cpus": 1, "memory": "1Gi"},
        "cluster": {"autoscale": False},
        **fields,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(document))
    return folder


def _submit(folder: Path, name: str) -> list[str]:
    return [str(PLATFORM), "submit", "hpo", str(folder), "--name", name]


def _attempts(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer["attempts"]
    if not found:
        raise MeasurementFailed("the ledger knows no trial of the run that ended")
    return found


def _until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"after {PATIENCE:g} s: no {what}")
        time.sleep(timeline.POLL)
