"""Every error trialplane raises on purpose, in one tree.

    TrialplaneError                 exit code 3: the platform could not do its work
    ├── InputError                  exit code 2: the user's input is wrong; nothing was started, nothing was lost
    │   ├── SpecError               a job file, a flag or `--set`; holds every issue found, not just the first
    │   ├── JobNotFound             no such job folder; names the nearest
    │   ├── RunNotFound             no such run; names the nearest
    │   ├── RunExists               the name belongs to a run with another spec; shows the difference
    │   ├── EntrypointError         the job's code cannot be imported
    │   ├── CheckpointMismatch      a checkpoint of another model, order of batches or number of ranks
    │   └── DataError               a text file is missing, empty, changed, or not text; names it and the line
    ├── PolicyError                 a process would break one of the four policies; explains what to do
    │   └── TransportError          a value that may not cross a process boundary, by its path in the tree
    ├── LedgerError                 the study's database
    │   ├── LedgerLocked            another controller has this study
    │   ├── LedgerFenced            another controller took this study over; this one must stop writing
    │   ├── LedgerCorrupt           the file is not a study, or is damaged
    │   ├── LedgerFull              the runs of its namespace keep as much as they may
    │   ├── LedgerRefused           the gateway takes no such record
    │   └── LedgerUnavailable       the disk is full or the database cannot be reached
    ├── CheckpointError             a checkpoint could not be written or read; older complete ones are untouched
    │   └── CheckpointDamaged       its files were cut or changed after they were written
    ├── CacheError                  an index or a token cache could not be written, or was damaged
    ├── SlotError                   no slot could be started
    ├── MessageError                a message from another process is damaged, too long, or of another version
    ├── LeaseLost                   an operator may not work any longer: its Lease was not renewed, or another one holds it
    └── TargetError                 the place where runs live (this machine, a cluster) refused or failed
        └── RunDamaged              a run's files cannot be read, or were changed; names them

A message says what happened, to which run or trial, where the log is and what to type next. Foreign errors are mapped
once, at the border of the room that owns the library, and chained with `from`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence

# Exit codes of `platform` and the controller; `platform --help` shows this list.
EXIT_OK = 0
EXIT_RUN_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_PLATFORM = 3
EXIT_CANCELLED = 4
EXIT_INTERRUPTED = 130
EXIT_CODES = {
    EXIT_OK: "done",
    EXIT_RUN_FAILED: "the run failed; `platform status` shows why",
    EXIT_BAD_INPUT: "the input is wrong; nothing was started, nothing was lost",
    EXIT_PLATFORM: "the platform could not do its work",
    EXIT_CANCELLED: "the run was cancelled",
    EXIT_INTERRUPTED: "the run was stopped and can be resumed",
}
MOST_ISSUES = 50  # shown at once
Place = tuple[str | int, ...]  # path of a field of a job file: ("space", "lr", "low")
_LONGEST_NAME = 100  # longer input is no misspelt name, and comparing it would take seconds


class TrialplaneError(Exception):
    """The root of the tree. `exit_code` is that of the command line."""

    exit_code: int = EXIT_PLATFORM


class InputError(TrialplaneError):
    """The user's input cannot be used; nothing was started."""

    exit_code = EXIT_BAD_INPUT


@dataclasses.dataclass(frozen=True)
class Issue:
    """One thing wrong with the input.

    Attributes:
        place: path of the field; relative to a part of a job while that part checks itself.
        message: what is wrong and what would be right.
        source: the file, flag or variable it came from.
        line: 1-based line in `source`, or 0 when there is none.
    """

    place: Place
    message: str
    source: str = ""
    line: int = 0

    @property
    def field(self) -> str:
        """The field as users write it: `space.lr.low`."""
        return ".".join(map(str, self.place))

    def below(self, *above: str | int) -> Issue:
        """The same issue, with the path of the enclosing part in front."""
        return dataclasses.replace(self, place=(*above, *self.place))

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.field}: {self.message}" if place else f"{self.field}: {self.message}"


class SpecError(InputError):
    """A job that cannot run as written, with every issue at once."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = tuple(issues)
        count = len(self.issues)
        head = "1 problem; nothing was started" if count == 1 else f"{count} problems; nothing was started"
        lines = [f"  {issue}" for issue in self.issues[:MOST_ISSUES]]
        more = [f"  and {count - MOST_ISSUES} more"] if count > MOST_ISSUES else []
        super().__init__("\n".join([head, *lines, *more]))


class JobNotFound(InputError):
    """No job of that name."""


class RunNotFound(InputError):
    """No run of that name."""


class RunExists(InputError):
    """The run's name is taken by a run with another spec."""


class EntrypointError(InputError):
    """The job's module or function cannot be imported."""


class CheckpointMismatch(InputError):
    """A checkpoint that does not fit the model, the order of batches or the number of ranks."""


class DataError(InputError):
    """A text file that is missing, empty, changed since it was indexed, or not text."""


class PolicyError(TrialplaneError):
    """A process would break one of the four policies."""


class TransportError(PolicyError):
    """A value that may not cross a process boundary."""


class LedgerError(TrialplaneError):
    """The study's database."""


class LedgerLocked(LedgerError):
    """Another controller has this study."""


class LedgerFenced(LedgerError):
    """Another controller has taken this study over."""


class LedgerCorrupt(LedgerError):
    """The file is not a study, or is damaged."""

    exit_code = EXIT_BAD_INPUT


class LedgerFull(LedgerError):
    """The runs of the namespace keep as much as they may; what was recorded is safe."""


class LedgerRefused(LedgerError):
    """The gateway takes no such record; what was recorded is safe."""


class LedgerUnavailable(LedgerError):
    """The disk is full or the database cannot be reached; what was recorded is safe."""


class CheckpointError(TrialplaneError):
    """A checkpoint could not be written or read; older complete ones are untouched."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint's files were cut or changed after they were written."""


class CacheError(TrialplaneError):
    """An index or a token cache that could not be written, or was damaged; the text is untouched."""


class SlotError(TrialplaneError):
    """No slot could be started."""


class MessageError(TrialplaneError):
    """A message between two processes that is damaged, too long, or unknown to the version that reads it."""


class LeaseLost(TrialplaneError):
    """The Lease of an operator was not renewed in time, or another one holds it."""


class TargetError(TrialplaneError):
    """The place where runs live refused or failed."""


class RunDamaged(TargetError):
    """A run whose files cannot be read, or were changed; it can still be deleted."""


def shortened(text: str, longest: int) -> str:
    """`text`, cut where it is longer."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def nearest(word: str, candidates: Iterable[str]) -> str:
    """A phrase naming the candidates nearest to `word`, or all if there are few; else ""."""
    known = sorted(candidates)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5) if len(word) <= _LONGEST_NAME else []
    if close:
        return f"did you mean {' or '.join(close)}?"
    if 0 < len(known) <= 12:
        return f"there are: {', '.join(known)}"
    return ""


def counted(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
