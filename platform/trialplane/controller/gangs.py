"""Gangs: as many slots as a trial has nodes, which a workload sees as one slot.

A gang is made of whichever slots are idle and starts a trial when all of them are ready: each gets the same request with its
number as `node` and node 0's address as `rendezvous`. Node 0 speaks for the trial: its reports, its arrays, and its outcome
when all nodes ended well, or had their time to do so after its own. When one fails the others are ended, the failure that
explains the others is the trial's, and it is told when every node is free again. A gang that lost a slot falls apart; its
other slots wait for a new one. It knows `slots` and no Ray; trials of one node need none of this and are run by a `SlotPool`
itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping

from trialplane import errors
from trialplane.controller.slot_events import SlotReady, SlotTrial
from trialplane.controller.slots import SlotPool
from trialplane.wire import causes
from trialplane.wire.messages import LogGrown, TrialEnded
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass, TrialState

MARGIN = 5.0  # seconds, beyond a trial's grace, for a node to say itself why it ended


@dataclasses.dataclass
class _Gang:
    """Slots that run trials together.

    Attributes:
        index: its number for the loop.
        members: the slots, node 0 first.
        request: the attempt in it.
        open: nodes that have not ended.
        ends: node → its last word, in the order they came.
        speaker: the node whose event the loop has to answer.
        kill_at: when nodes that are still at work are killed.
        why: what for: another has failed, or the result is there.
        ending: whether they were killed, so that what they say now explains nothing.
        broken: whether a slot of it is gone.
    """

    index: int
    members: list[int]
    request: TrialRequest | None = None
    open: set[int] = dataclasses.field(default_factory=set)
    ends: dict[int, SlotTrial] = dataclasses.field(default_factory=dict)
    speaker: int | None = None
    kill_at: float | None = None
    why: str = ""
    ending: bool = False
    broken: bool = False


class GangPool:
    """Gangs of slots, with the methods of `SlotPool`; see there.

    Args:
        pool: has `config.nodes` slots for each gang.
        config: what all slots share.
    """

    def __init__(self, pool: SlotPool, config: SlotConfig) -> None:
        self._pool = pool
        self._nodes = config.nodes
        self._patience = config.grace + MARGIN
        self._linger = config.linger
        self._warm: dict[int, SlotReady] = {}
        self._idle: list[int] = []  # slots in no gang, in the order they became ready
        self._gangs: dict[int, _Gang] = {}
        self._gang_of: dict[int, _Gang] = {}

    @property
    def size(self) -> int:
        """How many gangs there are or will be."""
        return self._pool.size // self._nodes

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts or pods that have a slot."""
        return self._pool.nodes

    @property
    def ready(self) -> int:
        """How many slots have a warm template, in a gang or not."""
        return self._pool.ready

    @property
    def idle(self) -> list[int]:
        """The gangs in which nothing runs."""
        return [gang.index for gang in self._gangs.values() if gang.request is None]

    @property
    def trouble(self) -> str:
        """Which slot does not start, and why."""
        return self._pool.trouble

    def resize(self, size: int) -> None:
        """Makes it `size` gangs; see `SlotPool.resize`."""
        self._pool.resize(size * self._nodes)
        there = self._pool.slots
        self._idle = [slot for slot in self._idle if slot in there]
        gone = [self._gang_of.pop(slot) for slot in self._gang_of.keys() - there]
        for gang in {gang.index: gang for gang in gone}.values():
            gang.broken = True  # one that runs a trial falls apart at the trial's end
            if gang.request is None:
                self._dissolve(gang)

    def start(self, slot: int, request: TrialRequest) -> None:
        """Starts a trial in all slots of a gang."""
        gang = self._gangs[slot]
        gang.request = request
        gang.open = set(range(self._nodes))
        gang.ends = {}
        gang.kill_at, gang.ending, gang.speaker = None, False, None
        rendezvous = self._warm[gang.members[0]].address
        for node, member in enumerate(gang.members):
            # Who waits for what node 0 is answered does not know how long that took: node 0's deadline is the trial's.
            timeout = None if node and request.prunable else request.timeout
            self._pool.start(member, dataclasses.replace(request, node=node, rendezvous=rendezvous, timeout=timeout))

    def answer(self, slot: int, prune: bool = False) -> None:
        """Answers the last event of a gang; of a node that has ended there is nothing to answer."""
        gang = self._gangs[slot]
        if gang.speaker is not None:
            self._pool.answer(gang.members[gang.speaker], prune and gang.speaker == 0)
            gang.speaker = None

    def kill(self, slot: int, failure: FailureClass, message: str) -> None:
        """Ends the trial of a gang; its outcome comes as an event."""
        gang = self._gangs[slot]
        for node in gang.open:
            self._pool.kill(gang.members[node], failure, message)

    def stop(self, slot: int, message: str) -> None:
        """Lets the trial of a gang save itself and end."""
        gang = self._gangs[slot]
        for node in gang.open:
            self._pool.stop(gang.members[node], message)

    def running(self) -> dict[int, TrialRequest]:
        """Gang → the attempt in it."""
        return {gang.index: gang.request for gang in self._gangs.values() if gang.request is not None}

    def events(self, timeout: float) -> Iterator[SlotReady | SlotTrial]:
        """What gangs say, waiting at most `timeout` seconds for the first. Raises as `SlotPool.events`."""
        formed = list(self._form())  # of slots that a smaller pool has left over
        if formed:
            yield from formed
            return
        heard, failed = [], None
        try:
            for said in self._pool.events(timeout):
                heard.append(said)
        except errors.SlotError as error:
            failed = error  # what was said before it is an outcome, perhaps
        # What the loop does with an event may take minutes: whoever has spoken meanwhile is heard before it is late.
        speaking = {said.slot for said in heard}
        self._end_late(gang for gang in self._gangs.values() if speaking.isdisjoint(gang.members))
        for said in heard:
            if isinstance(said, SlotReady):
                self._warm[said.slot] = said
                if said.slot not in self._gang_of and said.slot not in self._idle:
                    self._idle.append(said.slot)
            elif isinstance(said, SlotTrial):
                yield from self._heard(said)
            yield from self._form()
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Ends all slots."""
        self._pool.close()

    def _form(self) -> Iterator[SlotReady]:
        """Makes gangs of idle slots, as many as there are."""
        while len(self._idle) >= self._nodes:
            members, self._idle = sorted(self._idle[: self._nodes]), self._idle[self._nodes :]
            gang = _Gang(next(number for number in itertools.count() if number not in self._gangs), members)
            self._gangs[gang.index] = gang
            self._gang_of.update(dict.fromkeys(members, gang))
            warm = [self._warm[member] for member in members]
            yield SlotReady(
                slot=gang.index,
                seconds=max(ready.seconds for ready in warm),
                unclean=tuple(dict.fromkeys(reason for ready in warm for reason in ready.unclean)),
                mlflow=any(ready.mlflow for ready in warm),
                node=", ".join(dict.fromkeys(ready.node for ready in warm)),
                address=warm[0].address,
            )

    def _dissolve(self, gang: _Gang) -> None:
        """Takes a gang apart; its slots that are left are idle."""
        del self._gangs[gang.index]
        for member in gang.members:
            if self._gang_of.get(member) is gang:
                del self._gang_of[member]
                self._idle.append(member)

    def _heard(self, said: SlotTrial) -> Iterator[SlotTrial]:
        """Passes on what a node says, and the trial's end when it is the last one's."""
        gang = self._gang_of[said.slot]
        node, request = gang.members.index(said.slot), gang.request
        assert request is not None
        if said.gone:
            del self._gang_of[said.slot]
            gang.broken = True
        gang.speaker = node if said.outcome is None else None
        kinds = (LogGrown, TrialReport) if node == 0 else (LogGrown,)
        passed = tuple(message for message in said.messages if isinstance(message, kinds))
        if said.outcome is None or passed:
            yield SlotTrial(gang.index, request, passed)
        if said.outcome is None:
            return
        gang.open.discard(node)
        # What a node says that was killed for another's failure explains nothing: only its files count.
        gang.ends[node] = dataclasses.replace(said, messages=()) if gang.ending else said
        self._follow(gang, said)
        if not gang.open:
            yield self._ended(gang, request)

    def _follow(self, gang: _Gang, said: SlotTrial) -> None:
        """Ends the other nodes when one has failed.

        At once, when there is no doubt that it failed by itself. Else they get the time to say what happened to them, and to
        write the checkpoint for which all of them may have been stopped.
        """
        outcome = said.outcome
        assert outcome is not None
        if not gang.open:
            return
        if outcome.state is TrialState.COMPLETE:
            if gang.members.index(said.slot) == 0:  # the result is there; see `SlotConfig.linger`
                why = f"ended because it was still at work {self._linger:g} s after rank 0 had returned its result"
                self._end_in(gang, self._linger, why)
            return
        soft = outcome.failure is FailureClass.LOST and (not said.gone or outcome.exit_code is not None)  # it was stopped
        patience = self._patience if soft or causes.may_follow(outcome) else 0.0
        self._end_in(gang, patience, "ended because another node of the trial failed")

    def _end_in(self, gang: _Gang, seconds: float, why: str) -> None:
        """Has the nodes that are still at work killed then, unless they are to be killed before."""
        when = time.monotonic() + seconds
        if gang.kill_at is None or when < gang.kill_at:
            gang.kill_at, gang.why = when, why
        self._end_late([gang])

    def _end_late(self, gangs: Iterable[_Gang]) -> None:
        """Kills nodes that are still at work when their time is over; again each time, for one that was just starting."""
        now = time.monotonic()
        for gang in gangs:
            if gang.open and gang.kill_at is not None and now >= gang.kill_at:
                gang.ending = True
                for node in gang.open:
                    self._pool.kill(gang.members[node], FailureClass.LOST, gang.why)

    def _ended(self, gang: _Gang, request: TrialRequest) -> SlotTrial:
        """The trial's end, when the last of its nodes is free."""
        gang.request = None
        first = gang.ends[0]
        outcome, node = verdict({node: said.outcome for node, said in gang.ends.items() if said.outcome})
        if node:
            where = f" ({outcome.node})" if outcome.node else ""
            own = first.outcome
            metrics = own.metrics if own is not None and own.metrics else outcome.metrics
            outcome = dataclasses.replace(outcome, message=f"node {node}{where}: {outcome.message}", metrics=metrics)
        elif outcome.state is TrialState.COMPLETE and gang.ending:
            late = (f"node {node} was {gang.why}" for node, said in sorted(gang.ends.items()) if said.outcome is None)
            outcome = dataclasses.replace(outcome, message="; ".join(filter(None, (outcome.message, *late))))
        arrays = first.arrays if outcome.state is TrialState.COMPLETE else None
        ended = SlotTrial(gang.index, request, (TrialEnded(outcome),), arrays, first.store, gang.broken)
        if gang.broken:
            self._dissolve(gang)
        return ended


def verdict(outcomes: Mapping[int, TrialOutcome]) -> tuple[TrialOutcome, int]:
    """The outcome that is the trial's, and the node it comes from.

    Args:
        outcomes: node → its outcome, in the order they came; without those of nodes that were killed for another's failure.
    """
    failures = {node: outcome for node, outcome in outcomes.items() if outcome.state is not TrialState.COMPLETE}
    if not failures:
        return outcomes[0], 0
    outcome = causes.cause(list(failures.values()))
    node = next(node for node, failure in failures.items() if failure is outcome)
    if outcome.failure is FailureClass.ERROR and causes.may_follow(outcome):
        # Nobody has failed by himself: it was the way between them, which may be open again.
        text = f"the nodes of the trial lost each other: {outcome.message}"
        outcome = dataclasses.replace(outcome, failure=FailureClass.LOST, message=text)
    return outcome, node
