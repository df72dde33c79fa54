"""The messages between the processes of a run, and the one codec that writes and reads them.

    controller  ↔ slot          StartAttempt, AnswerReport; at any time KillTrial, StopTrial, FetchResults, FetchWeights,
                                FeedTransfers, HandUnits, ReleaseResults, ReleaseWeights, EndFeed · SlotStarted; of its trial
                                LogGrown, TrialReport, Suggest, UnitsWanted, ResultsOffered, WeightsOffered, ResultsTaken
                                Exiting and at last TrialEnded
    slot        ↔ template      LoadJob (to its standard input), StartTrial · JobLoaded | JobFailed, TrialStarted,
                                TrialExited
    slot        ↔ trial         RunTrial, AnswerReport, Suggested · Reported, Suggest, Ended, Printed
    slot        ↔ worker        of a collection, beside a trial's: HandUnits, ReleaseResults · UnitsWanted, UnitsBegun,
                                ResultOffered, JobReturned
    slot        ↔ learner       of a collection, beside a trial's: FeedResults, EndFeed, ReleaseWeights · WeightsOffered,
                                ResultsTaken, FilesFree
    supervisor  ↔ rank          RunRank, AnswerReport · Reported, Ended, Pulsed

Left what is requested of the second process, right what it reports. A message is one line of JSON, `[tag, version, fields]`:
its class, the version of trialplane that wrote it, and the class's fields as `records` writes them; `data`, of those that
carry bytes, follows behind the line. Fields that a reader does not know are dropped; a tag that it does not know is an error
with both versions, since a package may be replaced while its processes run. What arrives may come from the code of a job, so
the reader names the messages that it takes (`Direction`), and every field is checked for its type.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

from trialplane import __version__, errors
from trialplane.wire import records
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass
from trialplane.wire.units import Offer, Transfer, Unit

M = TypeVar("M")

MAX_BYTES = 4 << 20  # of one message; some ten thousand metrics, or a million characters of parameters, are far from it

# --- slot and template: LoadJob goes to its standard input, all else are packets of a SEQPACKET socket


@dataclasses.dataclass(frozen=True)
class LoadJob:
    """Import the job's code."""

    config: SlotConfig


@dataclasses.dataclass(frozen=True)
class StartTrial:
    """Start the process of an attempt; the descriptor of its channel comes along."""

    number: int


@dataclasses.dataclass(frozen=True)
class JobLoaded:
    """The template is warm.

    Attributes:
        seconds: of the imports.
        unclean: why trials will be spawned; empty when they are forked.
    """

    seconds: float
    unclean: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class JobFailed:
    """The job's code does not import."""

    message: str


@dataclasses.dataclass(frozen=True)
class TrialStarted:
    """The process of an attempt is there, by "fork" or "spawn"; its pidfd comes along. `reasons` are those not to fork."""

    number: int
    pid: int
    method: str
    reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TrialExited:
    """The process of an attempt has ended, and nothing that it started is alive.

    Attributes:
        number: of the attempt.
        code: exit code; negative is the signal that ended it.
        peak_memory: largest resident set, in bytes.
        orphans: processes that it had left and that were killed.
    """

    number: int
    code: int
    peak_memory: int
    orphans: int


# --- controller and slot


@dataclasses.dataclass(frozen=True)
class StartAttempt:
    """Start one attempt at a trial, in a slot that runs none."""

    request: TrialRequest


@dataclasses.dataclass(frozen=True)
class RemoveCheckpoints:
    """Remove all checkpoints of trials that have ended."""

    trials: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SendFiles:
    """Send the files that are beside a trial's checkpoints to its run in MLflow, within some seconds."""

    trial: int
    number: int  # of the attempt in the ledger that began its series
    seconds: float


@dataclasses.dataclass(frozen=True)
class FilesSent:
    """Which of them MLflow lacks, and why, "" for none; and whether another try may do better."""

    lacks: str = ""
    again: bool = False


@dataclasses.dataclass(frozen=True)
class KillTrial:
    """End the trial as `failure`."""

    failure: FailureClass
    message: str


@dataclasses.dataclass(frozen=True)
class StopTrial:
    """Let the trial save itself and end, within the grace of `SlotConfig`."""

    message: str


@dataclasses.dataclass(frozen=True)
class FetchResults:
    """Put these results, which were offered, into the object store."""

    units: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FetchWeights:
    """Put the weights that the learner has offered into the object store."""


@dataclasses.dataclass(frozen=True)
class FeedTransfers:
    """Pass these results, which come beside as a reference to a list in this order, to the learner."""

    transfers: tuple[Transfer, ...]


@dataclasses.dataclass(frozen=True)
class SlotStarted:
    """The template of a slot is warm.

    Attributes:
        node: host or pod.
        seconds: of the imports.
        unclean: why trials will be spawned; empty when they are forked.
        address: with several nodes the host:port at which ranks can meet when this slot is their node 0; else "".
    """

    node: str
    seconds: float
    unclean: tuple[str, ...]
    address: str = ""


@dataclasses.dataclass(frozen=True)
class LogGrown:
    """New bytes of the log of a trial, from a slot that ships it (`SlotConfig.ship`)."""

    data: bytes


@dataclasses.dataclass(frozen=True)
class ResultsOffered:
    """Results that lie ready in the slot of a worker."""

    offers: tuple[Offer, ...]


@dataclasses.dataclass(frozen=True)
class Exiting:
    """The process of a trial has sent its result a while ago, and still runs: an exit hook, for example."""


@dataclasses.dataclass(frozen=True)
class TrialEnded:
    """A trial has ended, and nothing of it is alive.

    Attributes:
        outcome: the trial's.
        begun: units that the job of a worker had begun without offering their results; None for any other trial.
        arrays: the file, on the slot's node, that holds the packed arrays of the result.
        store: the file there that holds the trial's own MLflow store, of a slot that ships it.
    """

    outcome: TrialOutcome
    begun: tuple[int, ...] | None = None
    arrays: str | None = None
    store: str | None = None


# --- slot and trial


@dataclasses.dataclass(frozen=True)
class SharedFiles:
    """Files that a slot shares with a collection's process: a folder for results, and the file of a worker's weights."""

    folder: str
    weights: str | None


@dataclasses.dataclass(frozen=True)
class RunTrial:
    """Run one attempt, with `workdir` as its scratch folder."""

    config: SlotConfig
    request: TrialRequest
    workdir: str
    shared_files: SharedFiles | None = None


@dataclasses.dataclass(frozen=True)
class Suggested:
    """The answer to Suggest.

    Attributes:
        value: as Optuna keeps it, of a choice its index; None where Optuna refuses the request.
        error: why it does; "" where it does not.
        warnings: what Optuna remarks on the request.
    """

    value: float | None
    error: str = ""
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class AnswerReport:
    """The answer to reports and requests.

    Attributes:
        prune_at: step of the report at which the trial ends as pruned; None to continue.
        suggested: to a slot, the value that its trial asked for.
    """

    prune_at: int | None = None
    suggested: Suggested | None = None


@dataclasses.dataclass(frozen=True)
class Reported:
    """Metrics of one step. The receiver determines whose they are.

    Attributes:
        step: 0 to 2³¹ - 1.
        metrics: by name.
        time: seconds since the epoch.
        sent: the same by the monotonic clock, which all processes of a machine share.
        remark: a note on the trial for the user, or "".
        waits: whether the process waits for the answer, if the study prunes; else a pruned one is ended by a signal.
    """

    step: int
    metrics: Mapping[str, float]
    time: float
    sent: float
    remark: str = ""
    waits: bool = True


@dataclasses.dataclass(frozen=True)
class Suggest:
    """An objective of Optuna asks for the value of a parameter, and waits for it.

    Attributes:
        name: of the parameter.
        kind: which of Optuna's distributions.
        low, high: bounds of a number, both included.
        step: distance between numbers; None for any.
        log: whether a number is drawn on a logarithmic scale.
        choices: of a categorical parameter, JSON values.
    """

    name: str
    kind: Literal["float", "int", "categorical"]
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of the job's function; the process only has to exit."""

    outcome: TrialOutcome


@dataclasses.dataclass(frozen=True)
class Printed:
    """The process of a script or command exits. Its log has so many bytes: what follows is of processes that it has left."""

    printed: int


# --- supervisor and rank


@dataclasses.dataclass(frozen=True)
class RunRank:
    """Run one rank of an attempt: number `local` on this node. All ranks meet at `address`, as host:port."""

    config: SlotConfig
    request: TrialRequest
    workdir: str
    local: int
    address: str


@dataclasses.dataclass(frozen=True)
class Pulsed:
    """A rank's own seconds for one step, without those in which it waited for others."""

    step: int
    seconds: float


# --- slot and the processes of a collection


@dataclasses.dataclass(frozen=True)
class HandUnits:
    """Units for a worker to do; after those that are `last` it gets no more in this iteration."""

    units: tuple[Unit, ...]
    last: bool


@dataclasses.dataclass(frozen=True)
class ReleaseResults:
    """Results on offer have been fetched, or are not needed: their files may be reused."""

    units: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ReleaseWeights:
    """The weights on offer have been fetched: their file may go."""


@dataclasses.dataclass(frozen=True)
class FedResult:
    """One result that a worker made, in a file for the learner to map."""

    unit: int
    worker: int
    items: int
    file: str


@dataclasses.dataclass(frozen=True)
class FeedResults:
    """Results for the learner."""

    results: tuple[FedResult, ...]


@dataclasses.dataclass(frozen=True)
class EndFeed:
    """The learner has all results of the iteration but those of so many units that failed."""

    failed: int


@dataclasses.dataclass(frozen=True)
class UnitsWanted:
    """A worker needs this many more units."""

    count: int


@dataclasses.dataclass(frozen=True)
class UnitsBegun:
    """The job of a worker has taken these units."""

    units: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ResultOffered:
    """A packed result, in a file of the shared folder or of the work folder."""

    offer: Offer
    file: str


@dataclasses.dataclass(frozen=True)
class WeightsOffered:
    """Packed weights for the workers of an iteration.

    Attributes:
        bytes: of the packed tree; 0 when there are none, as before the first iteration has ended.
        file: that holds them, of the shared folder; "" when there are none, and from the slot to the controller.
    """

    bytes: int
    file: str = ""


@dataclasses.dataclass(frozen=True)
class JobReturned:
    """The function of a worker has returned; its results on offer have yet to be fetched."""


@dataclasses.dataclass(frozen=True)
class ResultsTaken:
    """The learner has read these results, or has them from a former attempt."""

    units: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FilesFree:
    """Nothing in the learner refers to these results any more: their files may be used again."""

    units: tuple[int, ...]


ToExchange = HandUnits | ReleaseResults | ReleaseWeights | EndFeed
Control = KillTrial | StopTrial | ToExchange  # what takes no time
Fetch = FetchResults | FetchWeights
Shown = LogGrown | TrialReport  # what a run keeps of a trial that goes on
FromExchange = UnitsWanted | ResultsOffered | WeightsOffered | ResultsTaken
FromSlot = Shown | FromExchange | Suggest | Exiting | TrialEnded
ToTrial = RunTrial | AnswerReport | Suggested | FeedResults | ToExchange
OfTrial = Reported | Suggest | Ended | Printed
OfWorker = UnitsWanted | UnitsBegun | ResultOffered | JobReturned
OfLearner = WeightsOffered | ResultsTaken | FilesFree
FromTrial = OfTrial | OfWorker | OfLearner
ToRank = RunRank | AnswerReport
FromRank = Reported | Ended | Pulsed


class Direction(Generic[M]):
    """The messages that one side takes from another.

    Args:
        sender: who sends them, for messages about errors.
        kinds: a message class, or a union of them.
    """

    def __init__(self, sender: str, kinds: object) -> None:
        self.sender = sender
        self.kinds: dict[str, type[M]] = {kind.__name__: kind for kind in typing.get_args(kinds) or (kinds,)}


START = Direction[StartAttempt]("a controller", StartAttempt)
ANSWER = Direction[AnswerReport]("a controller", AnswerReport)
REMOVE = Direction[RemoveCheckpoints]("a controller", RemoveCheckpoints)
SEND_FILES = Direction[SendFiles]("a controller", SendFiles)
FILES_SENT = Direction[FilesSent]("a slot", FilesSent)
CONTROL = Direction[Control]("a controller", Control)
FETCH = Direction[Fetch]("a controller", Fetch)
FEED = Direction[FeedTransfers]("a controller", FeedTransfers)
FROM_STARTING = Direction[SlotStarted]("a slot", SlotStarted)
FROM_SLOT = Direction[FromSlot]("a slot", FromSlot)
LOAD = Direction[LoadJob]("a slot", LoadJob)
FROM_LOADING = Direction[JobLoaded | JobFailed]("a template", JobLoaded | JobFailed)
TO_TEMPLATE = Direction[StartTrial]("a slot", StartTrial)
FROM_TEMPLATE = Direction[TrialStarted | TrialExited]("a template", TrialStarted | TrialExited)
TO_TRIAL = Direction[ToTrial]("a slot", ToTrial)
FROM_TRIAL = Direction[FromTrial]("a trial", OfTrial)
FROM_WORKER = Direction[FromTrial]("a worker", OfTrial | OfWorker)
FROM_LEARNER = Direction[FromTrial]("a learner", OfTrial | OfLearner)
TO_RANK = Direction[ToRank]("a supervisor", ToRank)
FROM_RANK = Direction[FromRank]("a rank", FromRank)

_BESIDE = "data"  # the field whose bytes follow the line
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode(message: object) -> bytes:
    """A message as one line of JSON, and what it carries beside."""
    tag, fields = type(message).__name__, records.to_dict(message)
    beside = fields.pop(_BESIDE, None)
    line = f'["{tag}","{__version__}",{_encode(fields)}]'.encode()
    return line if beside is None else b"%s\n%s" % (line, beside)


def decode(data: bytes, direction: Direction[M]) -> M:
    """The message that `encode` wrote.

    Raises:
        MessageError: it is none of those that are taken from there, is damaged, or a field has another type than its own.
    """
    line, newline, beside = data.partition(b"\n")
    sender = direction.sender
    try:
        tag, version, fields = json.loads(line.decode())
        if version != __version__:
            sender = f"{sender} of trialplane {version!s:.40}"
        kind = direction.kinds.get(tag)
        if kind is None:
            raise errors.MessageError(
                f"{direction.sender} of trialplane {version!s:.40} sent {tag!r:.40}, which trialplane {__version__} does "
                "not take from there"
            )
        message = records.from_dict(kind, {**fields, _BESIDE: beside} if newline else fields)
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        problem = f"sent an invalid message to trialplane {__version__}: {errors.first_line(error):.200}"
        raise errors.MessageError(f"{sender} {problem}") from error
    if wrong := records.misfit(message):
        raise errors.MessageError(f"{sender} sent {tag} with a value of another type as {wrong}")
    return message
