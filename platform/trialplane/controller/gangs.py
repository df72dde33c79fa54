"""A pool of gangs, for trials of several nodes. A gang has a slot for each node, and looks like one slot to a workload.

A gang is formed of idle slots. When it starts a trial, each of its slots gets the same request, with its own number as
`node` and the address of node 0 as `rendezvous`. Node 0 provides the reports and the arrays of the trial. The
times of the other nodes' ranks are added to its reports.

The trial ends when every node has ended. It has the outcome of node 0 if all nodes succeeded, or if those that did not had
enough time after node 0. When a node fails, the others are ended, and the trial has the failure that caused the other ones.

A gang that has lost a slot is dissolved, and its other slots wait for a new gang.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping

from trialplane import errors
from trialplane.controller.pool import Pool, SlotCall, SlotReady, SlotTrial
from trialplane.wire import causes, messages, ranks, system_metrics
from trialplane.wire.messages import Confirm, LogGrown, TrialEnded
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

MARGIN = 5.0  # seconds in addition to a trial's grace, in which a node may report its own failure


@dataclasses.dataclass
class _Gang:
    """Slots that run trials together.

    Attributes:
        index: Number of the gang, which the loop takes for the number of a slot.
        members: Its slots by node.
        request: Request of the attempt that runs in it; None while it is idle.
        running: Nodes that have not ended.
        times: Times of other nodes' ranks, as metrics for the next report of node 0.
        ends: Last event of each node that has ended, by node, in the order of arrival; without the outcome if the node was
            killed.
        waiting_node: Node whose event the loop has not answered yet; None if there is none.
        kill_at: Time by the monotonic clock at which the nodes that still run are killed; None if none is scheduled.
        kill_reason: Reason for the kill, as a clause: "another node of the trial failed".
        is_killed: Whether nodes were killed, so that their outcomes do not explain the trial's.
        is_broken: Whether the gang has lost a slot.
    """

    index: int
    members: list[int]
    request: TrialRequest | None = None
    running: set[int] = dataclasses.field(default_factory=set)
    times: dict[str, float] = dataclasses.field(default_factory=dict)
    ends: dict[int, SlotTrial] = dataclasses.field(default_factory=dict)
    waiting_node: int | None = None
    kill_at: float | None = None
    kill_reason: str = ""
    is_killed: bool = False
    is_broken: bool = False


class GangPool:
    """A `Pool` of gangs, each of several slots of another pool.

    In its methods and events, the number of a slot is that of a gang.

    Args:
        pool: Pool with `config.nodes` slots for each gang.
        config: Configuration that all slots share.
    """

    def __init__(self, pool: Pool, config: SlotConfig) -> None:
        self._pool = pool
        self._nodes = config.nodes
        self._failure_patience = config.grace + MARGIN  # seconds in which the other nodes may report their failures
        self._linger = config.linger
        self._ready_events: dict[int, SlotReady] = {}  # slot → the event that its template is warm
        self._free_slots: list[int] = []  # idle slots without a gang, in the order in which they became ready
        self._gangs: dict[int, _Gang] = {}
        self._gang_of: dict[int, _Gang] = {}  # slot → its gang

    @property
    def size(self) -> int:
        """The number of gangs, including those still starting."""
        return self._pool.size // self._nodes

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""
        return self._pool.nodes

    @property
    def ready(self) -> int:
        """The number of slots with a warm template, in a gang or not."""
        return self._pool.ready

    @property
    def slots(self) -> frozenset[int]:
        """The gangs that are complete."""
        return frozenset(self._gangs)

    @property
    def idle(self) -> list[int]:
        """The gangs in which nothing runs."""
        return [gang.index for gang in self._gangs.values() if gang.request is None]

    @property
    def trouble(self) -> str:
        """A message on a slot that does not start; "" if all start."""
        return self._pool.trouble

    def resize(self, size: int) -> None:
        """Grow or shrink the pool to `size` gangs."""
        self._pool.resize(size * self._nodes)
        remaining = self._pool.slots
        self._free_slots = [slot for slot in self._free_slots if slot in remaining]
        for slot in self._gang_of.keys() - remaining:
            self._gang_of.pop(slot).is_broken = True
        idle_gangs = [gang for gang in self._gangs.values() if gang.request is None]
        for gang in idle_gangs:  # any other broken gang is dissolved when its trial has ended
            if gang.is_broken:
                self._dissolve(gang)

    def start(self, slot: int, request: TrialRequest) -> None:
        """Start a trial in all slots of a gang."""
        gang = self._gangs[slot]
        gang.request = request
        gang.running = set(range(self._nodes))
        gang.ends, gang.times = {}, {}
        gang.kill_at, gang.is_killed, gang.waiting_node = None, False, None
        rendezvous = self._ready_events[gang.members[0]].address
        for node, member in enumerate(gang.members):
            # Time in which a trial waits for the pruner's answer does not count against its time limit. Only node 0 can
            # measure these waits, so in a prunable trial only node 0 has the limit.
            timeout = request.timeout if node == 0 or not request.prunable else None
            self._pool.start(member, dataclasses.replace(request, node=node, rendezvous=rendezvous, timeout=timeout))

    def remove_checkpoints(self, folders: tuple[TrialFolder, ...]) -> SlotCall[None] | None:
        """Let any slot remove checkpoints, see `Pool.remove_checkpoints`."""
        return self._pool.remove_checkpoints(folders)

    def send_files(self, message: messages.SendFiles) -> SlotCall[messages.FilesSent] | None:
        """Let any slot send files to MLflow, see `Pool.send_files`."""
        return self._pool.send_files(message)

    def answer(self, slot: int, prune_at: int | None = None, suggested: messages.Suggested | None = None) -> None:
        """Answer the last event of a gang, unless the node that sent it has ended. Only node 0 is told to prune.

        For the arguments see `Pool.answer`. `suggested` is always None, as a trial of several nodes requests no parameters.
        """
        assert suggested is None, "an objective of Optuna runs in one process"
        gang = self._gangs[slot]
        if gang.waiting_node is not None:
            self._pool.answer(gang.members[gang.waiting_node], prune_at if gang.waiting_node == 0 else None)
            gang.waiting_node = None

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Kill the trial of a gang, see `Pool.kill`."""
        gang = self._gangs[slot]
        for node in gang.running:
            self._pool.kill(gang.members[node], failure, message)

    def stop(self, slot: int, message: str) -> None:
        """Let the trial of a gang save itself and end, see `Pool.stop`."""
        gang = self._gangs[slot]
        for node in gang.running:
            self._pool.stop(gang.members[node], message)

    def running(self) -> dict[int, TrialRequest]:
        """Return the attempt in each gang that has one, by gang."""
        return {gang.index: gang.request for gang in self._gangs.values() if gang.request is not None}

    def events(self, timeout: float) -> Iterator[SlotReady | SlotTrial]:
        """Yield the gangs' next events, waiting at most `timeout` seconds for the first.

        Raises:
            EntrypointError, SlotError: As `Pool.events`.
        """
        # `resize` may have dissolved gangs, whose slots can form new ones.
        ready_events = list(self._form_gangs())
        if ready_events:
            yield from ready_events
            return
        received: list[SlotReady | SlotTrial] = []
        pool_error = None
        try:
            for event in self._pool.events(timeout):
                received.append(event)
        except errors.SlotError as error:
            pool_error = error  # raised below, after the events before it: these may be outcomes
        # A kill may have been due for minutes while the loop handled an earlier event. A gang with new events is not killed
        # yet, because they may be the ends of its nodes.
        slots_with_events = {event.slot for event in received}
        self._kill_due_nodes(gang for gang in self._gangs.values() if slots_with_events.isdisjoint(gang.members))
        for event in received:
            if isinstance(event, SlotReady):
                self._ready_events[event.slot] = event
                if event.slot not in self._gang_of and event.slot not in self._free_slots:
                    self._free_slots.append(event.slot)
            else:
                yield from self._take_node_event(event)
            yield from self._form_gangs()
        if pool_error is not None:
            raise pool_error

    def close(self) -> None:
        """End all slots."""
        self._pool.close()

    def _form_gangs(self) -> Iterator[SlotReady]:
        """Form as many gangs as there are idle slots for; yield for each the event that it is ready."""
        while len(self._free_slots) >= self._nodes:
            members = sorted(self._free_slots[: self._nodes])
            del self._free_slots[: self._nodes]
            free_index = next(index for index in itertools.count() if index not in self._gangs)
            gang = self._gangs[free_index] = _Gang(free_index, members)
            self._gang_of.update(dict.fromkeys(members, gang))
            ready_events = [self._ready_events[member] for member in members]
            yield SlotReady(
                slot=gang.index,
                seconds=max(ready.seconds for ready in ready_events),
                unclean=tuple(dict.fromkeys(reason for ready in ready_events for reason in ready.unclean)),
                node=", ".join(dict.fromkeys(ready.node for ready in ready_events)),
                address=ready_events[0].address,
            )

    def _dissolve(self, gang: _Gang) -> None:
        """Remove a gang; its remaining slots wait for a new one."""
        del self._gangs[gang.index]
        for member in gang.members:
            if self._gang_of.get(member) is gang:
                del self._gang_of[member]
                self._free_slots.append(member)

    def _take_node_event(self, event: SlotTrial) -> Iterator[SlotTrial]:
        """Record an event of a node; yield the trial's events that follow: its messages, and its end after the last node."""
        gang = self._gang_of[event.slot]
        node, request = gang.members.index(event.slot), gang.request
        assert request is not None
        if event.slot_lost:
            del self._gang_of[event.slot]
            gang.is_broken = True
        gang.waiting_node = node if event.outcome is None else None
        trial_messages = self._trial_messages(gang, node, event)
        if event.outcome is None or trial_messages:  # a node that runs waits for an answer, also without messages
            yield SlotTrial(slot=gang.index, request=request, messages=trial_messages)
        if event.outcome is None:
            return
        gang.running.discard(node)
        # The outcome of a node that was killed does not explain the end of the trial. It is among the messages.
        gang.ends[node] = dataclasses.replace(event, messages=()) if gang.is_killed else event
        self._schedule_kills(gang, node, event)
        if not gang.running:
            yield self._end_trial(gang, request)

    def _trial_messages(self, gang: _Gang, node: int, event: SlotTrial) -> tuple[LogGrown | TrialReport | Confirm, ...]:
        """Return the messages of a node that count for the trial: of each node its log and `Confirm`, of node 0 its reports.

        Of a report of another node, store the times of its ranks for the next report of node 0.
        """
        trial_messages: list[LogGrown | TrialReport | Confirm] = []
        for message in event.messages:
            if isinstance(message, (LogGrown, Confirm)):
                trial_messages.append(message)
            elif isinstance(message, TrialReport) and node == 0:
                trial_messages.append(self._with_times(gang, message))
            elif isinstance(message, TrialReport):
                gang.times |= ranks.as_metrics(ranks.seconds(message.metrics))
        return tuple(trial_messages)

    def _with_times(self, gang: _Gang, report: TrialReport) -> TrialReport:
        """Return a report of node 0 with the times of the other nodes' ranks that have arrived since the one before."""
        if system_metrics.is_sample(report.metrics):
            return report
        times, gang.times = gang.times, {}
        return dataclasses.replace(report, metrics={**report.metrics, **times})

    def _schedule_kills(self, gang: _Gang, ended_node: int, event: SlotTrial) -> None:
        """Schedule the kill of the nodes that still run, after one node has ended.

        - If the node certainly failed by itself, the others are killed at once.
        - If its failure may be a consequence of another one, the others get time to report their own failures.
        - If it was stopped, the others may have been stopped too, and get time to write a checkpoint.
        - If node 0 has completed, the others get `SlotConfig.linger` seconds to end as well.
        - If a stop rule of the job ended the node, the others are killed at once.
        - If another node has completed, nothing is scheduled.
        """
        outcome = event.outcome
        assert outcome is not None
        if not gang.running:
            return
        if outcome.state is TrialState.COMPLETE:
            if outcome.early:
                self._kill_after(gang, seconds=0.0, reason="a stop rule ended the trial")
            elif ended_node == 0:
                reason = f"it was still at work {self._linger:g} s after rank 0 had returned its result"
                self._kill_after(gang, self._linger, reason)
            return
        # A process that was stopped is LOST, too. But a slot that is lost without an exit code has lost its machine.
        has_lost_machine = event.slot_lost and outcome.exit_code is None
        was_stopped = outcome.failure is FailureClass.LOST and not has_lost_machine
        patience = self._failure_patience if was_stopped or causes.may_be_consequence(outcome) else 0.0
        self._kill_after(gang, patience, "another node of the trial failed")

    def _kill_after(self, gang: _Gang, seconds: float, reason: str) -> None:
        """Kill the nodes that still run after some seconds, unless an earlier kill is scheduled."""
        kill_at = time.monotonic() + seconds
        if gang.kill_at is None or kill_at < gang.kill_at:
            gang.kill_at, gang.kill_reason = kill_at, reason
        self._kill_due_nodes([gang])

    def _kill_due_nodes(self, gangs: Iterable[_Gang]) -> None:
        """Kill the nodes whose kill is due.

        The kill is repeated at each call, because a process that is just starting ignores the message that ends it.
        """
        now = time.monotonic()
        for gang in gangs:
            if gang.running and gang.kill_at is not None and now >= gang.kill_at:
                gang.is_killed = True
                for node in gang.running:
                    self._pool.kill(gang.members[node], FailureClass.LOST, f"ended because {gang.kill_reason}")

    def _end_trial(self, gang: _Gang, request: TrialRequest) -> SlotTrial:
        """Return the event of the trial's end, after its last node has ended. Dissolve the gang if it has lost a slot."""
        gang.request = None
        if gang.is_broken:
            self._dissolve(gang)
        outcome = _trial_outcome(gang)
        return SlotTrial(
            gang.index,
            request,
            messages=(TrialEnded(outcome),),
            arrays=gang.ends[0].arrays if outcome.state is TrialState.COMPLETE else None,
            store=gang.ends[0].store,
            slot_lost=gang.is_broken,
        )


def _trial_outcome(gang: _Gang) -> TrialOutcome:
    """Return the outcome of the trial of a gang whose nodes have all ended.

    If it is the failure of another node than node 0, its message names that node. If nodes were killed after node 0 had
    completed, the message names them.
    """
    outcomes = {node: end.outcome for node, end in gang.ends.items() if end.outcome is not None}
    outcome, decisive_node = _decisive_outcome(outcomes)
    if decisive_node != 0:
        pod = f" ({outcome.node})" if outcome.node else ""
        # Node 0 has the trial's metrics, unless it was killed or has reported none.
        metrics = (outcomes[0].metrics if 0 in outcomes else {}) or outcome.metrics
        return dataclasses.replace(outcome, message=f"node {decisive_node}{pod}: {outcome.message}", metrics=metrics)
    if outcome.state is TrialState.COMPLETE and gang.is_killed and not outcome.early:
        killed_nodes = sorted(gang.ends.keys() - outcomes.keys())
        remarks = (f"node {node} was ended because {gang.kill_reason}" for node in killed_nodes)
        return dataclasses.replace(outcome, message="; ".join(filter(None, (outcome.message, *remarks))))
    return outcome


def _decisive_outcome(outcomes: Mapping[int, TrialOutcome]) -> tuple[TrialOutcome, int]:
    """Return the outcome of a trial, and the node that it comes from.

    It is that of node 0 if no node failed, and if node 0 was paused or ended by a stop rule. Otherwise it is the failure
    that has caused the other ones.

    Args:
        outcomes: Outcomes by node, in the order of arrival, without those of nodes that were killed because another had
            ended.
    """
    failures = {node: outcome for node, outcome in outcomes.items() if outcome.state is not TrialState.COMPLETE}
    node_0 = outcomes.get(0)
    # If node 0 was paused, or ended by a stop rule, the others may have failed only because they waited for it.
    has_ended_by_design = node_0 is not None and (node_0.early or node_0.state is TrialState.PAUSED)
    if not failures or has_ended_by_design:
        return outcomes[0], 0
    outcome = causes.cause(list(failures.values()))
    decisive_node = next(node for node, failure in failures.items() if failure is outcome)
    if outcome.failure is FailureClass.ERROR and causes.may_be_consequence(outcome):
        # No node failed by itself: the connection between them did, and may recover.
        text = f"the nodes of the trial lost each other: {outcome.message}"
        outcome = dataclasses.replace(outcome, failure=FailureClass.LOST, message=text)
    return outcome, decisive_node
