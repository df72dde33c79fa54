"""Kills the pods of a run and of the chart at random, or cuts them off, and the nodes of a kind cluster, and sees when each
is back.

Nothing waits in here: `Kills.look` is told the time, looks once, and kills when it is time to. A role whose pod was killed
is not chosen again before as many of its pods are ready as before. The one exception are trial pods, of which a run has
several and which come and go as trials wait: one that is ready is enough, for a run must stand the loss of the next one
while the first is being replaced.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import random
import subprocess
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from trialplane.errors import TargetError
from trialplane.kube import kinds
from trialplane.kube.cluster import Cluster
from trialplane.kube.objects import Objects
from trialplane.wire import cluster as names

NODE = "node"
DARK = 60.0  # seconds that a node stays away once Kubernetes knows: heads are made elsewhere after 30
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


class Place(enum.Enum):
    """The cluster and namespace of the pods."""

    RUN = enum.auto()
    CHART = enum.auto()
    ANYWHERE = enum.auto()


@dataclasses.dataclass(frozen=True)
class Role:
    """The pods that may be killed, by role.

    Attributes:
        name: for the table.
        selector: of its pods, by labels. A platform in which no pod has them has no such role.
        place: whose namespace its pods are in: the run's, the chart's, or that of whoever installed them.
        spare: whether one ready pod is enough for the next kill.
    """

    name: str
    selector: str
    place: Place = Place.RUN
    spare: bool = False

    @property
    def of_run(self) -> bool:
        """Whether its pods end with the run."""
        return names.RUN in self.selector


def roles(run: str) -> tuple[Role, ...]:
    """All that a run depends on; pods of other runs are not among it."""
    selector = f"{names.RUN}={run},{names.ROLE}="
    return (
        Role("trial", selector + names.TRIAL, spare=True),
        Role("controller", selector + names.CONTROLLER),
        *(Role(name, f"{names.ROLE}={name}", Place.CHART) for name in (names.OPERATOR, "gateway", "mlflow", "postgresql")),
        Role("kuberay", "app.kubernetes.io/component=kuberay-operator", Place.ANYWHERE),
    )


@dataclasses.dataclass(frozen=True)
class Victim:
    """A pod that is ready, or a node."""

    name: str
    uid: str
    namespace: str = ""


@dataclasses.dataclass
class Kill:
    """One kill.

    Attributes:
        role: the name of one, or NODE.
        victim: what was killed.
        at: seconds since the first look.
        before: ready pods of the role before it.
        known: seconds since the first look at which Kubernetes noticed that the node is away; None before, and for pods.
        started: whether a node was started again, or a pod that was cut off has its network again.
        back: seconds since the first look at which the role was whole again; None before.
    """

    role: str
    victim: Victim
    at: float
    before: int = 1
    known: float | None = None
    started: bool = False
    back: float | None = None


class There(Protocol):
    """The interface to a cluster: pods that can be listed and killed."""

    def ready(self, role: Role) -> list[Victim]:
        """Pods of a role that are ready and not being deleted."""

    def kill(self, pod: Victim) -> None:
        """Deletes a pod without grace; one that is gone already is no error."""

    def cut(self, pod: Victim) -> None:
        """Drops all packets from and to a pod."""

    def reconnect(self, pod: Victim) -> None:
        """Lets the packets of a pod that was cut off pass again."""

    def nodes(self) -> list[Victim]:
        """Nodes that are ready and are not the API server's."""

    def stop(self, node: Victim) -> None:
        """Takes a node away as a power cut does."""

    def start(self, node: Victim) -> None:
        """Brings it back."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """What is killed, and when.

    Attributes:
        every: seconds from one kill to the next.
        seed: of the choice.
        nodes: whether nodes are stopped as well.
        once: kill each role once and no more; one that has no pods yet waits for its turn.
        cut: seconds for which a pod is cut off from the network; 0 to kill it instead.
    """

    every: float
    seed: int
    nodes: bool = False
    once: bool = False
    cut: float = 0.0


class Kills:
    """Kills one thing after the other, or cuts it off.

    Args:
        there: the cluster.
        all_roles: what may be killed.
        rules: what is killed when.
        say: prints a line.
    """

    def __init__(self, there: There, all_roles: Iterable[Role], rules: Rules, say: Callable[[str], None]) -> None:
        self.there = there
        self.roles = {role.name: role for role in all_roles}
        self.nodes, self.once, self.say = rules.nodes, rules.once, say
        self._every, self._cut = rules.every, rules.cut
        self.chance = random.Random(rules.seed)
        self.done: list[Kill] = []
        self._due = 0.0

    @property
    def out(self) -> list[Kill]:
        """Kills whose role is not back yet."""
        return [kill for kill in self.done if kill.back is None]

    @property
    def missing(self) -> list[str]:
        """Names of what is not back and does not end with the run."""
        return [kill.role for kill in self.out if kill.role == NODE or not self.roles[kill.role].of_run]

    @property
    def left(self) -> list[str]:
        """Names of what was not killed so far."""
        hit = {kill.role for kill in self.done}
        return [name for name in (*self.roles, *([NODE] if self.nodes else [])) if name not in hit]

    def look(self, now: float, *, strike: bool = True) -> None:
        """Sees who is back, and kills the next one if it is time.

        Args:
            now: seconds since the first look.
            strike: False when the killing is over.
        """
        for kill in self.out:
            self._look_for(kill, now)
        if not strike or now < self._due or any(kill.role == NODE for kill in self.out):  # a node that is away is enough
            return
        chosen = self._choose()
        if chosen is None:
            return
        role, ready = chosen
        kill = Kill(role, self.chance.choice(sorted(ready, key=lambda pod: pod.name)), now, len(ready))
        if role == NODE:
            self.there.stop(kill.victim)
        elif self._cut:
            self.there.cut(kill.victim)
        else:
            self.there.kill(kill.victim)
        self.done.append(kill)
        self._due = now + self._every
        self.say(
            f"{now:5.0f} s  {role}: {kill.victim.name} {'stopped' if role == NODE else 'cut off' if self._cut else 'killed'}"
        )

    def restore(self) -> None:
        """Starts the nodes that are stopped, and reconnects the pods that are cut off."""
        for kill in self.out:
            if (kill.role == NODE or self._cut) and not kill.started:
                self._start(kill)

    def _start(self, kill: Kill) -> None:
        if kill.role == NODE:
            self.there.start(kill.victim)
        else:
            self.there.reconnect(kill.victim)
        kill.started = True

    def _choose(self) -> tuple[str, list[Victim]] | None:
        """A role at random that is back, and its ready pods. One draw per role, so that a seed gives an order of roles."""
        names = list(self.left if self.once else [*self.roles, *([NODE] if self.nodes else [])])
        self.chance.shuffle(names)
        missing = {kill.role for kill in self.out}
        for name in names:
            if name in missing and not self.roles[name].spare:
                continue
            ready = self.there.nodes() if name == NODE else self.there.ready(self.roles[name])
            if ready:
                return name, ready
        return None

    def _look_for(self, kill: Kill, now: float) -> None:
        if kill.role == NODE:
            is_ready = kill.victim.name in {node.name for node in self.there.nodes()}
            if not is_ready and kill.known is None:
                kill.known = now
            if not kill.started and kill.known is not None and now >= kill.known + DARK:
                self._start(kill)
            elif kill.started and is_ready:
                kill.back = now
            return
        if self._cut and not kill.started:
            if now >= kill.at + self._cut:
                self._start(kill)
            return
        ready = self.there.ready(self.roles[kill.role])
        is_replaced = kill.victim.uid not in {pod.uid for pod in ready}
        if len(ready) >= kill.before and (is_replaced or self._cut):
            kill.back = now


class KindCluster:
    """A cluster through its API server; its nodes are Docker's containers of the same names, as kind makes them.

    Args:
        context: of the kubeconfig.
        namespace: of the run, which names that of the chart.
    """

    def __init__(self, context: str, namespace: str) -> None:
        self.context = context
        self.cluster = Cluster(context, namespace)
        self._rules: dict[str, tuple[str, str]] = {}  # uid of a pod that is cut off → its node, and its address

    @functools.cached_property
    def chart(self) -> Cluster:
        """The namespace of the chart's own pods."""
        return Cluster(self.context, Objects(self.cluster).site.home)

    def ready(self, role: Role) -> list[Victim]:
        """See `There`."""
        where = self.chart if role.place is Place.CHART else self.cluster
        pods = where.list(kinds.POD, role.selector, everywhere=role.place is Place.ANYWHERE)
        return [_victim(pod) for pod in pods if _is_ready(pod)]

    def kill(self, pod: Victim) -> None:
        """See `There`."""
        Cluster(self.context, pod.namespace).delete(kinds.POD, pod.name, now=True)

    def cut(self, pod: Victim) -> None:
        """See `There`."""
        manifest = Cluster(self.context, pod.namespace).read(kinds.POD, pod.name)
        if manifest is None:
            raise TargetError(f"the pod {pod.name} is gone before it was cut off")
        self._rules[pod.uid] = manifest["spec"]["nodeName"], manifest["status"]["podIP"]
        self._filter("-I", pod)

    def reconnect(self, pod: Victim) -> None:
        """See `There`."""
        self._filter("-D", pod)
        del self._rules[pod.uid]

    def _filter(self, action: str, pod: Victim) -> None:
        """Insert (-I) or delete (-D) the rules that drop what the pod's node forwards from and to it."""
        node, address = self._rules[pod.uid]
        for end in ("-s", "-d"):
            _docker("exec", node, "iptables", "-w", "-t", "mangle", action, "FORWARD", end, address, "-j", "DROP")

    def nodes(self) -> list[Victim]:
        """See `There`."""
        nodes = self.cluster.list(kinds.NODE)
        return [_victim(node) for node in nodes if _is_ready(node) and _CONTROL_PLANE not in node["metadata"]["labels"]]

    def stop(self, node: Victim) -> None:
        """See `There`."""
        _docker("kill", node.name)

    def start(self, node: Victim) -> None:
        """See `There`."""
        _docker("start", node.name)


def _docker(*words: str) -> None:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(
            f"`docker {' '.join(words)}` failed; --nodes and --cut are for kind on this machine: {done.stderr.strip()}"
        )


def _victim(thing: dict[str, Any]) -> Victim:
    about = thing["metadata"]
    return Victim(about["name"], about["uid"], about.get("namespace", ""))


def _is_ready(thing: dict[str, Any]) -> bool:
    conditions = thing["status"].get("conditions") or []
    is_ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return is_ready and "deletionTimestamp" not in thing["metadata"]
