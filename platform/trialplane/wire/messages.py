"""The messages between the processes of a run, and their codec.

    controller  ↔ slot          StartAttempt, AnswerReport; at any time KillTrial, StopTrial, FetchResults, FetchWeights,
                                FeedTransfers, HandUnits, ReleaseResults, ReleaseWeights, EndFeed · SlotStarted; of its trial
                                LogGrown, TrialReport, Suggest, UnitsWanted, ResultsOffered, WeightsOffered, ResultsTaken
                                Exiting and at last TrialEnded
    slot        ↔ template      LoadJob (to its standard input), StartTrial · JobLoaded | JobFailed, TrialStarted,
                                TrialExited
    slot        ↔ trial         RunTrial, AnswerReport, Suggested · Reported, Suggest, Ended, Printed
    slot        ↔ worker        of a collection, in addition to a trial's: HandUnits, ReleaseResults · UnitsWanted,
                                UnitsBegun, ResultOffered, JobReturned
    slot        ↔ learner       of a collection, in addition to a trial's: FeedResults, EndFeed, ReleaseWeights ·
                                WeightsOffered, ResultsTaken, FilesFree
    supervisor  ↔ rank          RunRank, AnswerReport · Reported, Ended, Pulsed

The messages to the second process are before the `·`, and its messages to the first process after it. A message is one line
of JSON, `[tag, version, fields]`: the name of its class, the version of trialplane that wrote it, and the class's fields in
the form of `records`. In a message with bytes, its field `data` follows after the line. A reader ignores unknown fields.
An unknown tag is an error that names both versions, because a package may be replaced while its processes run. The code of a
job may forge a message, so a reader lists the messages that it accepts (`Direction`), and the type of each field is checked.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

from trialplane import __version__, errors
from trialplane.wire import records
from trialplane.wire.paths import TrialFolder
from trialplane.wire.records import SlotConfig, TrialOutcome, TrialReport, TrialRequest
from trialplane.wire.states import FailureClass
from trialplane.wire.units import Offer, Transfer, Unit

M = TypeVar("M")

MAX_BYTES = 4 << 20  # limit of a message; ten thousand metrics, or parameters of a million characters, are far below it

# --- slot and template: LoadJob goes to the template's standard input, the others are packets of a SEQPACKET socket


@dataclasses.dataclass(frozen=True)
class LoadJob:
    """Import the job's code."""

    config: SlotConfig


@dataclasses.dataclass(frozen=True)
class StartTrial:
    """Start the process of an attempt. The packet also passes the file descriptor of the attempt's channel."""

    number: int


@dataclasses.dataclass(frozen=True)
class JobLoaded:
    """The template has imported the job's code.

    Attributes:
        seconds: Duration of the imports.
        unclean: Reasons why trials will be spawned instead of forked. Empty if they are forked.
    """

    seconds: float
    unclean: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class JobFailed:
    """The job's code does not import."""

    message: str


@dataclasses.dataclass(frozen=True)
class TrialStarted:
    """The process of an attempt has started. The packet also passes its pidfd.

    Attributes:
        number: Number of the attempt.
        pid: Process id.
        method: Start method: "fork" or "spawn".
        reasons: Reasons not to fork. Empty if it was forked.
    """

    number: int
    pid: int
    method: str
    reasons: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class TrialExited:
    """The process of an attempt and all processes that it started have ended.

    Attributes:
        number: Number of the attempt.
        code: Exit code. Negative if a signal ended the process.
        peak_memory: Largest resident set, in bytes.
    """

    number: int
    code: int
    peak_memory: int


# --- controller and slot


@dataclasses.dataclass(frozen=True)
class StartAttempt:
    """Start an attempt at a trial in an idle slot."""

    request: TrialRequest


@dataclasses.dataclass(frozen=True)
class RemoveCheckpoints:
    """Remove folders of trials' checkpoints."""

    folders: tuple[TrialFolder, ...]


@dataclasses.dataclass(frozen=True)
class SendFiles:
    """Upload the files that are stored with a trial's checkpoints to its run in MLflow.

    Attributes:
        trial: Number of the trial.
        number: Number in the ledger of the attempt that began its series.
        seconds: Time limit, in seconds.
    """

    trial: int
    number: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class FilesSent:
    """The result of `SendFiles`.

    Attributes:
        lacks: The files that MLflow lacks and the reason, for users. "" if it has all.
        again: Whether another attempt may succeed.
    """

    lacks: str = ""
    again: bool = False


@dataclasses.dataclass(frozen=True)
class KillTrial:
    """Kill the trial. It ends with this class of failure and this message."""

    failure: FailureClass
    message: str


@dataclasses.dataclass(frozen=True)
class StopTrial:
    """Ask the trial to save a checkpoint and to end, within the grace period of `SlotConfig`."""

    message: str


@dataclasses.dataclass(frozen=True)
class FetchResults:
    """Put the offered results of these units into the object store."""

    units: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FetchWeights:
    """Put the weights that the learner has offered into the object store."""


@dataclasses.dataclass(frozen=True)
class FeedTransfers:
    """Pass results to the learner. Their data is a list in the object store, in the order of `transfers`."""

    transfers: tuple[Transfer, ...]


@dataclasses.dataclass(frozen=True)
class SlotStarted:
    """The template of a slot has imported the job's code.

    Attributes:
        node: Host or pod of the slot.
        seconds: Duration of the imports.
        unclean: Reasons why trials will be spawned instead of forked. Empty if they are forked.
        address: Address (host:port) where the ranks of a trial meet if this slot is its node 0; "" for trials of one node.
    """

    node: str
    seconds: float
    unclean: tuple[str, ...]
    address: str = ""


@dataclasses.dataclass(frozen=True)
class LogGrown:
    """New bytes of a trial's log, from a slot that shares no folder with the controller (`SlotConfig.ship`)."""

    data: bytes


@dataclasses.dataclass(frozen=True)
class ResultsOffered:
    """Results that the slot of a worker is ready to send."""

    offers: tuple[Offer, ...]


@dataclasses.dataclass(frozen=True)
class Exiting:
    """The process of a trial still runs some time after it sent its result, for example in an exit hook."""


@dataclasses.dataclass(frozen=True)
class TrialEnded:
    """A trial and all its processes have ended.

    Attributes:
        outcome: Outcome of the trial.
        begun: Units of a worker that it began but offered no results of. None for any other trial.
        arrays: File on the slot's node with the packed arrays of the result. None without arrays.
        store: File on the slot's node with the trial's own MLflow store, from a slot that shares no folder with the
            controller. None without one.
    """

    outcome: TrialOutcome
    begun: tuple[int, ...] | None = None
    arrays: str | None = None
    store: str | None = None


# --- slot and trial


@dataclasses.dataclass(frozen=True)
class SharedFiles:
    """Files that a slot shares with a process of a collection.

    Attributes:
        folder: Folder for results.
        weights: File with a worker's weights. None without weights.
    """

    folder: str
    weights: str | None


@dataclasses.dataclass(frozen=True)
class RunTrial:
    """Run an attempt, with `workdir` as its scratch folder."""

    config: SlotConfig
    request: TrialRequest
    workdir: str
    shared_files: SharedFiles | None = None


@dataclasses.dataclass(frozen=True)
class Suggested:
    """The answer to Suggest.

    Attributes:
        value: Value in Optuna's internal form: of a choice, its index. None if Optuna refuses the request.
        error: Reason for the refusal, or "".
        warnings: Optuna's warnings about the request.
    """

    value: float | None
    error: str = ""
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class AnswerReport:
    """The answer to reports and requests.

    Attributes:
        prune_at: Step of the report at which the trial ends as pruned. None to continue.
        suggested: Value that the trial requested, in an answer to a slot. None otherwise.
    """

    prune_at: int | None = None
    suggested: Suggested | None = None


@dataclasses.dataclass(frozen=True)
class Reported:
    """Metrics of one step. The connection identifies the attempt.

    Attributes:
        step: Step, from 0 to 2³¹ - 1.
        metrics: Metrics, by name.
        time: Time of the report, in seconds since the epoch.
        sent: Time of the report on the monotonic clock, which all processes of a machine share.
        remark: Note on the trial for the user, or "".
        waits: Whether the process waits for the answer if the study prunes. If not, a signal ends a pruned trial.
        start_step: Step from which the attempt has started, see `TrialReport`.
    """

    step: int
    metrics: Mapping[str, float]
    time: float
    sent: float
    remark: str = ""
    waits: bool = True
    start_step: int | None = None


@dataclasses.dataclass(frozen=True)
class Suggest:
    """A request of an Optuna objective for the value of a parameter. The objective waits for the answer.

    Attributes:
        name: Name of the parameter.
        kind: Kind of Optuna's distribution.
        low, high: Bounds of a number, both inclusive.
        step: Distance between possible numbers. None if any number is possible.
        log: Whether the scale of a number is logarithmic.
        choices: Choices of a categorical parameter, as JSON values.
    """

    name: str
    kind: Literal["float", "int", "categorical"]
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Confirm:
    """A request for AnswerReport once the reports so far are in the ledger, before the trial saves a checkpoint."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """The job's function has ended, and only the exit of the process remains."""

    outcome: TrialOutcome


@dataclasses.dataclass(frozen=True)
class Printed:
    """The process of a script or command exits.

    Attributes:
        printed: Size of its log, in bytes. Later output is from processes that it left behind.
    """

    printed: int


# --- supervisor and rank


@dataclasses.dataclass(frozen=True)
class RunRank:
    """Run one rank of an attempt.

    Attributes:
        config: Configuration of the slot.
        request: Request for the attempt.
        workdir: Scratch folder.
        local: Local rank: its number on this node.
        address: Rendezvous address (host:port) of all ranks.
    """

    config: SlotConfig
    request: TrialRequest
    workdir: str
    local: int
    address: str


@dataclasses.dataclass(frozen=True)
class Pulsed:
    """The duration of a step in a rank, in seconds, without the time in which it waited for other ranks."""

    step: int
    seconds: float


# --- slot and the processes of a collection


@dataclasses.dataclass(frozen=True)
class HandUnits:
    """Units of work for a worker. `last` is whether it gets no more in this iteration."""

    units: tuple[Unit, ...]
    last: bool


@dataclasses.dataclass(frozen=True)
class ReleaseResults:
    """The offered results of these units were fetched or are not needed, so their files may be reused."""

    units: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ReleaseWeights:
    """The offered weights were fetched, so their file may be removed."""


@dataclasses.dataclass(frozen=True)
class FedResult:
    """A worker's result in a file that the learner maps into memory.

    Attributes:
        unit: Number of the unit.
        worker: Number of the worker.
        items: Number of items in the result.
        file: Path of the file.
    """

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
    """The learner has all results of the iteration. `failed` is the number of units without a result, which failed."""

    failed: int


@dataclasses.dataclass(frozen=True)
class UnitsWanted:
    """A worker requests this number of further units."""

    count: int


@dataclasses.dataclass(frozen=True)
class UnitsBegun:
    """The job of a worker has taken these units."""

    units: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ResultOffered:
    """A packed result in a file of the shared folder or of the scratch folder."""

    offer: Offer
    file: str


@dataclasses.dataclass(frozen=True)
class WeightsOffered:
    """Packed weights for the workers of an iteration.

    Attributes:
        bytes: Size of the packed weights. 0 without weights, for example before the end of the first iteration.
        file: File of the shared folder that contains them. "" without weights, and from the slot to the controller.
    """

    bytes: int
    file: str = ""


@dataclasses.dataclass(frozen=True)
class JobReturned:
    """The job's function in a worker has returned. Some offered results may not be fetched yet."""


@dataclasses.dataclass(frozen=True)
class ResultsTaken:
    """The learner has read the results of these units, in this or in a former attempt."""

    units: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FilesFree:
    """The learner does not use the results of these units any more, so their files may be reused."""

    units: tuple[int, ...]


ToExchange = HandUnits | ReleaseResults | ReleaseWeights | EndFeed
Control = KillTrial | StopTrial | ToExchange  # a slot handles these without delay
Fetch = FetchResults | FetchWeights
TrialUpdate = LogGrown | TrialReport  # the run records these while the trial runs
FromExchange = UnitsWanted | ResultsOffered | WeightsOffered | ResultsTaken
FromSlot = TrialUpdate | FromExchange | Suggest | Confirm | Exiting | TrialEnded
ToTrial = RunTrial | AnswerReport | Suggested | FeedResults | ToExchange
TrialMessage = Reported | Suggest | Confirm | Ended | Printed
WorkerMessage = UnitsWanted | UnitsBegun | ResultOffered | JobReturned
LearnerMessage = WeightsOffered | ResultsTaken | FilesFree
FromTrial = TrialMessage | WorkerMessage | LearnerMessage
ToRank = RunRank | AnswerReport
FromRank = Reported | Confirm | Ended | Pulsed


class Direction(Generic[M]):
    """The set of messages that a receiver accepts from a sender.

    Args:
        sender: Sender, for error messages.
        kinds: Message class, or union of message classes.
    """

    def __init__(self, sender: str, kinds: object) -> None:
        self.sender = sender
        classes = typing.get_args(kinds) or (kinds,)  # the members of a union, or the only class
        self.kinds: dict[str, type[M]] = {message_class.__name__: message_class for message_class in classes}


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
FROM_TRIAL = Direction[FromTrial]("a trial", TrialMessage)
FROM_WORKER = Direction[FromTrial]("a worker", TrialMessage | WorkerMessage)
FROM_LEARNER = Direction[FromTrial]("a learner", TrialMessage | LearnerMessage)
TO_RANK = Direction[ToRank]("a supervisor", ToRank)
FROM_RANK = Direction[FromRank]("a rank", FromRank)

_PAYLOAD = "data"  # name of the field whose bytes follow the line
_encode_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode(message: object) -> bytes:
    """Return a message as one line of JSON, followed by its binary payload, if any."""
    tag, fields = type(message).__name__, records.to_dict(message)
    payload = fields.pop(_PAYLOAD, None)
    line = f'["{tag}","{__version__}",{_encode_json(fields)}]'.encode()
    return line if payload is None else b"%s\n%s" % (line, payload)


def decode(data: bytes, direction: Direction[M]) -> M:
    """Return the message that `encode` wrote.

    Args:
        data: Line of JSON, followed by the binary payload, if any.
        direction: Messages that are accepted.

    Raises:
        MessageError: The message is damaged or is not accepted, or a field has a wrong type.
    """
    line, newline, payload = data.partition(b"\n")
    has_payload = bool(newline)
    sender = direction.sender  # for messages of errors, with its version if that differs from ours
    try:
        tag, version, fields = json.loads(line.decode())
        sender_with_version = f"{direction.sender} of trialplane {version!s:.40}"
        if version != __version__:
            sender = sender_with_version
        message_class = direction.kinds.get(tag)
        if message_class is None:
            raise errors.MessageError(
                f"{sender_with_version} sent {tag!r:.40}, which trialplane {__version__} does not take from there"
            )
        message = records.from_dict(message_class, {**fields, _PAYLOAD: payload} if has_payload else fields)
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        problem = f"sent an invalid message to trialplane {__version__}: {errors.first_line(error):.200}"
        raise errors.MessageError(f"{sender} {problem}") from error
    if field := records.mistyped_field(message):
        raise errors.MessageError(f"{sender} sent {tag} with a value of another type as {field}")
    return message
