"""Gangs: as many slots as a trial has nodes, presented to a workload as one slot.

A gang is formed of idle slots and starts a trial when all of them are ready: each receives the same request with its number
as `node` and node 0's address as `rendezvous`. The trial's reports and arrays are node 0's, and so is its outcome when all
nodes succeeded, or had their time to do so after node 0. When one fails the others are ended, the failure that caused the
others is the trial's, and it is reported when every node is free again. A gang that lost a slot is dissolved; its other
slots wait for a new one. Trials of one node run in the pool of slots directly.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping

from trialplane import errors
from trialplane.controller.pool import Pool, SlotCall, SlotReady, SlotTrial
from trialplane.wire import causes, messages
from trialplane.wire.messages import LogGrown, TrialEnded
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

MARGIN = 5.0  # seconds, beyond a trial's grace, for a node to report itself why it ended


@dataclasses.dataclass
class _Gang:
    """Slots that run trials together.

    Attributes:
        index: its number for the loop.
        members: the slots, node 0 first.
        request: the attempt that runs in it.
        open: nodes that have not ended.
        ends: node → its last event, in the order of arrival.
        to_answer: the node whose event the loop has to answer.
        kill_at: when nodes that are still running are killed.
        kill_reason: why they are killed: another node failed, or the result is complete.
        ending: whether they were killed, so that their outcomes explain nothing.
        broken: whether it lost a slot.
    """

    index: int
    members: list[int]
    request: TrialRequest | None = None
    open: set[int] = dataclasses.field(default_factory=set)
    ends: dict[int, SlotTrial] = dataclasses.field(default_factory=dict)
    to_answer: int | None = None
    kill_at: float | None = None
    kill_reason: str = ""
    ending: bool = False
    broken: bool = False


class GangPool:
    """A `Pool` of gangs, each of several slots of another pool.

    Args:
        pool: has `config.nodes` slots for each gang.
        config: what all slots share.
    """

    def __init__(self, pool: Pool, config: SlotConfig) -> None:
        self._pool = pool
        self._nodes = config.nodes
        self._patience = config.grace + MARGIN
        self._linger = config.linger
        self._warm: dict[int, SlotReady] = {}
        self._single: list[int] = []  # slots in no gang, in the order they became ready
        self._gangs: dict[int, _Gang] = {}
        self._gang_of: dict[int, _Gang] = {}

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
        """Which slot does not start, and why."""
        return self._pool.trouble

    def resize(self, size: int) -> None:
        """Grow or shrink the pool to `size` gangs."""
        self._pool.resize(size * self._nodes)
        remaining = self._pool.slots
        self._single = [slot for slot in self._single if slot in remaining]
        lost_members = [self._gang_of.pop(slot) for slot in self._gang_of.keys() - remaining]
        for gang in {gang.index: gang for gang in lost_members}.values():
            gang.broken = True  # a gang that runs a trial is dissolved at the trial's end
            if gang.request is None:
                self._dissolve(gang)

    def start(self, slot: int, request: TrialRequest) -> None:
        """Start a trial in all slots of a gang."""
        gang = self._gangs[slot]
        gang.request = request
        gang.open = set(range(self._nodes))
        gang.ends = {}
        gang.kill_at, gang.ending, gang.to_answer = None, False, None
        rendezvous = self._warm[gang.members[0]].address
        for node, member in enumerate(gang.members):
            # Nodes that wait for node 0's answer cannot measure how long that takes: node 0's deadline is the trial's.
            timeout = None if node and request.prunable else request.timeout
            self._pool.start(member, dataclasses.replace(request, node=node, rendezvous=rendezvous, timeout=timeout))

    def remove(self, trials: tuple[int, ...]) -> SlotCall[None] | None:
        """Remove checkpoints in any slot, as all of them reach their folder."""
        return self._pool.remove(trials)

    def send_files(self, message: messages.SendFiles) -> SlotCall[messages.FilesSent] | None:
        """Send files from any slot, for the same reason."""
        return self._pool.send_files(message)

    def answer(self, slot: int, prune_at: int | None = None, suggested: messages.Suggested | None = None) -> None:
        """Answer the last event of a gang, unless its node has ended; a trial of several nodes asks for no parameters."""
        assert suggested is None, "an objective of Optuna runs in one process"
        gang = self._gangs[slot]
        if gang.to_answer is not None:
            self._pool.answer(gang.members[gang.to_answer], None if gang.to_answer else prune_at)
            gang.to_answer = None

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """End the trial of a gang; its outcome comes as an event."""
        gang = self._gangs[slot]
        for node in gang.open:
            self._pool.kill(gang.members[node], failure, message)

    def stop(self, slot: int, message: str) -> None:
        """Let the trial of a gang save itself and end."""
        gang = self._gangs[slot]
        for node in gang.open:
            self._pool.stop(gang.members[node], message)

    def running(self) -> dict[int, TrialRequest]:
        """Gang → the attempt in it."""
        return {gang.index: gang.request for gang in self._gangs.values() if gang.request is not None}

    def events(self, timeout: float) -> Iterator[SlotReady | SlotTrial]:
        """The gangs' next events, waiting at most `timeout` seconds for the first. Raises as `Pool.events`."""
        formed = list(self._form())  # of slots left over by a smaller pool
        if formed:
            yield from formed
            return
        received, failed = [], None
        try:
            for event in self._pool.events(timeout):
                received.append(event)
        except errors.SlotError as error:
            failed = error  # the events before it may be outcomes
        # Handling an event may take the loop minutes: events that arrived in that time are handled before a node is late.
        reporting = {event.slot for event in received}
        self._end_late(gang for gang in self._gangs.values() if reporting.isdisjoint(gang.members))
        for event in received:
            if isinstance(event, SlotReady):
                self._warm[event.slot] = event
                if event.slot not in self._gang_of and event.slot not in self._single:
                    self._single.append(event.slot)
            elif isinstance(event, SlotTrial):
                yield from self._receive(event)
            yield from self._form()
        if failed is not None:
            raise failed

    def close(self) -> None:
        """End all slots."""
        self._pool.close()

    def _form(self) -> Iterator[SlotReady]:
        """Form as many gangs as there are idle slots for."""
        while len(self._single) >= self._nodes:
            members, self._single = sorted(self._single[: self._nodes]), self._single[self._nodes :]
            gang = _Gang(next(number for number in itertools.count() if number not in self._gangs), members)
            self._gangs[gang.index] = gang
            self._gang_of.update(dict.fromkeys(members, gang))
            warm = [self._warm[member] for member in members]
            yield SlotReady(
                slot=gang.index,
                seconds=max(ready.seconds for ready in warm),
                unclean=tuple(dict.fromkeys(reason for ready in warm for reason in ready.unclean)),
                node=", ".join(dict.fromkeys(ready.node for ready in warm)),
                address=warm[0].address,
            )

    def _dissolve(self, gang: _Gang) -> None:
        """Remove a gang; its remaining slots become idle."""
        del self._gangs[gang.index]
        for member in gang.members:
            if self._gang_of.get(member) is gang:
                del self._gang_of[member]
                self._single.append(member)

    def _receive(self, event: SlotTrial) -> Iterator[SlotTrial]:
        """Pass on a node's event, and after the last node's end the trial's."""
        gang = self._gang_of[event.slot]
        node, request = gang.members.index(event.slot), gang.request
        assert request is not None
        if event.slot_lost:
            del self._gang_of[event.slot]
            gang.broken = True
        gang.to_answer = node if event.outcome is None else None
        kinds = (LogGrown, TrialReport) if node == 0 else (LogGrown,)
        passed = tuple(message for message in event.messages if isinstance(message, kinds))
        if event.outcome is None or passed:
            yield SlotTrial(gang.index, request, passed)
        if event.outcome is None:
            return
        gang.open.discard(node)
        # The outcome of a node that was killed because another failed explains nothing: only its files count.
        gang.ends[node] = dataclasses.replace(event, messages=()) if gang.ending else event
        self._follow(gang, event)
        if not gang.open:
            yield self._ended(gang, request)

    def _follow(self, gang: _Gang, event: SlotTrial) -> None:
        """End the other nodes when one has failed.

        At once if it certainly failed by itself. Otherwise they get the time to report their own failures, and to write the
        checkpoint for which all of them may have been stopped.
        """
        outcome = event.outcome
        assert outcome is not None
        if not gang.open:
            return
        if outcome.state is TrialState.COMPLETE:
            if outcome.early:
                self._end_in(gang, 0.0, "ended because a stop rule ended the trial")
            elif gang.members.index(event.slot) == 0:  # the result is complete; see `SlotConfig.linger`
                reason = f"ended because it was still at work {self._linger:g} s after rank 0 had returned its result"
                self._end_in(gang, self._linger, reason)
            return
        soft = outcome.failure is FailureClass.LOST and (
            not event.slot_lost or outcome.exit_code is not None
        )  # it was stopped
        patience = self._patience if soft or causes.may_follow(outcome) else 0.0
        self._end_in(gang, patience, "ended because another node of the trial failed")

    def _end_in(self, gang: _Gang, seconds: float, reason: str) -> None:
        """Schedule the kill of the nodes that are still running, unless it is due earlier."""
        kill_at = time.monotonic() + seconds
        if gang.kill_at is None or kill_at < gang.kill_at:
            gang.kill_at, gang.kill_reason = kill_at, reason
        self._end_late([gang])

    def _end_late(self, gangs: Iterable[_Gang]) -> None:
        """Kill nodes that are still running after their time; repeatedly, as one may just have been starting."""
        now = time.monotonic()
        for gang in gangs:
            if gang.open and gang.kill_at is not None and now >= gang.kill_at:
                gang.ending = True
                for node in gang.open:
                    self._pool.kill(gang.members[node], FailureClass.LOST, gang.kill_reason)

    def _ended(self, gang: _Gang, request: TrialRequest) -> SlotTrial:
        """The trial's end, when the last of its nodes is free."""
        gang.request = None
        node_0 = gang.ends[0]
        outcome, node = verdict({node: event.outcome for node, event in gang.ends.items() if event.outcome})
        if node:
            location = f" ({outcome.node})" if outcome.node else ""
            node_0_outcome = node_0.outcome
            metrics = node_0_outcome.metrics if node_0_outcome is not None and node_0_outcome.metrics else outcome.metrics
            outcome = dataclasses.replace(outcome, message=f"node {node}{location}: {outcome.message}", metrics=metrics)
        elif outcome.state is TrialState.COMPLETE and gang.ending and not outcome.early:
            late = (
                f"node {node} was {gang.kill_reason}" for node, event in sorted(gang.ends.items()) if event.outcome is None
            )
            outcome = dataclasses.replace(outcome, message="; ".join(filter(None, (outcome.message, *late))))
        arrays = node_0.arrays if outcome.state is TrialState.COMPLETE else None
        trial_end = SlotTrial(gang.index, request, (TrialEnded(outcome),), arrays, node_0.store, gang.broken)
        if gang.broken:
            self._dissolve(gang)
        return trial_end


def verdict(outcomes: Mapping[int, TrialOutcome]) -> tuple[TrialOutcome, int]:
    """The outcome that is the trial's, and the node it comes from.

    Args:
        outcomes: node → its outcome, in the order of arrival; without nodes that were killed because another failed.
    """
    failures = {node: outcome for node, outcome in outcomes.items() if outcome.state is not TrialState.COMPLETE}
    # Once a stop rule has ended node 0, or it is paused, the others may fail as they wait for it.
    if not failures or (0 in outcomes and (outcomes[0].early or outcomes[0].state is TrialState.PAUSED)):
        return outcomes[0], 0
    outcome = causes.cause(list(failures.values()))
    node = next(node for node, failure in failures.items() if failure is outcome)
    if outcome.failure is FailureClass.ERROR and causes.may_follow(outcome):
        # No node failed by itself: the connection between them did, and may recover.
        text = f"the nodes of the trial lost each other: {outcome.message}"
        outcome = dataclasses.replace(outcome, failure=FailureClass.LOST, message=text)
    return outcome, node
