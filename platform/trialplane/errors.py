"""The errors that trialplane raises.

    TrialplaneError                 exit code 3: the platform could not do its work
    ├── InputError                  exit code 2: the input is wrong; nothing was started, nothing was lost
    │   ├── SpecError               a job file, an option or `--set` has issues; holds all of them
    │   ├── JobNotFound             no job has this name; names similar ones
    │   ├── RunNotFound             no run has this name; names similar ones
    │   ├── RunExists               a run with this name has another spec; shows the difference
    │   ├── NotPackedError          a folder is too large to be uploaded, or has a link that leads out of it
    │   ├── OtherFolderError        a command needs files of a folder above its own; shows the command for that
    │   ├── EntrypointError         the job's code cannot be imported
    │   ├── CheckpointMismatch      a checkpoint does not fit the model, the order of batches or the number of ranks
    │   └── DataError               a text file is missing, empty, not text, or has changed
    ├── PolicyError                 a process would break a policy of the platform
    │   └── TransportError          a value may not cross a process boundary; names its path
    ├── LedgerError                 the ledger failed
    │   ├── LedgerLocked            another controller is using the ledger of this run
    │   ├── LedgerFenced            another controller has taken over this run
    │   ├── LedgerCorrupt           the file is not a ledger, or is damaged
    │   ├── LedgerFull              the budget of the namespace for records is used up
    │   ├── LedgerRefused           the gateway refused a record
    │   └── LedgerUnavailable       the disk is full, or the database cannot be reached
    ├── CheckpointError             a checkpoint could not be written or read; older ones are unchanged
    │   └── CheckpointDamaged       its files were truncated or changed after they were written
    ├── CacheError                  an index or a cache could not be written, or is damaged
    ├── SlotError                   no slot could be started
    ├── MessageError                a message between two processes is damaged, too long, or of an unknown version
    ├── LeaseLost                   the Lease of an operator was not renewed in time, or another operator holds it
    └── TargetError                 the target of the runs, this machine or a cluster, refused or failed
        └── RunDamaged              files of a run cannot be read, or were changed

A message says what happened, to which run or trial, where the log is and what to type next. Errors of other libraries are
chained with `from`.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    EXIT_BAD_INPUT: "the input is wrong, or no trial can start with it; nothing was lost",
    EXIT_PLATFORM: "the platform could not do its work",
    EXIT_CANCELLED: "the run was cancelled",
    EXIT_INTERRUPTED: "the run was stopped and can be resumed",
}
MOST_ISSUES = 50  # shown at once
_MOST_LISTED = 12  # names in a hint that lists all of them
FieldPath = tuple[str | int, ...]  # path of a field of a job file: ("space", "lr", "low")
_NESTED_ERROR = re.compile(r"^(?:\S+: )?(error: .*)((?:\n[ \t]+\S.*)+)\s*\Z", re.MULTILINE)
_VERY_SIMILAR = 0.75
_LONGEST_NAME = 100  # characters; longer input is not a misspelled name, and comparing it would take seconds

ARGUMENTS_REFUSED = "does not take its arguments"  # words in the message about a script that refuses them


class TrialplaneError(Exception):
    """Base class of all errors of trialplane.

    Attributes:
        exit_code: Exit code of the command line.
    """

    exit_code: int = EXIT_PLATFORM


class InputError(TrialplaneError):
    """The input is wrong. Nothing was started."""

    exit_code = EXIT_BAD_INPUT


@dataclasses.dataclass(frozen=True)
class Issue:
    """A problem with the input.

    Attributes:
        field_path: Path of the field: `("space", "lr", "low")`.
        message: Description of the problem, and how to fix it.
        source: File, option or variable with the field.
        line: Line in `source`, from 1. 0 without a line.
        meant: Name of the parameter that the user probably means; "" if it is unknown.
    """

    field_path: FieldPath
    message: str
    source: str = ""
    line: int = 0
    meant: str = ""

    @property
    def field(self) -> str:
        """Dotted path of the field: `space.lr.low`."""
        return ".".join(map(str, self.field_path))

    def below(self, *prefix: str | int) -> Issue:
        """Return the issue with a longer path: `prefix`, the path of the value that contains the field, comes first."""
        return dataclasses.replace(self, field_path=(*prefix, *self.field_path))

    def __str__(self) -> str:
        location = f"{self.source}:{self.line}" if self.line else self.source
        return f"{location}: {self.field}: {self.message}" if location else f"{self.field}: {self.message}"


class CheckResult(NamedTuple):
    """Issues, which prevent a run, and warnings."""

    issues: list[Issue]
    warnings: list[str]


class SpecError(InputError):
    """The job has issues.

    Args:
        issues: All issues; also an attribute.
    """

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = tuple(issues)
        count = len(self.issues)
        head = f"{counted(count, 'problem')}; nothing was started"
        lines = [f"  {issue}" for issue in self.issues[:MOST_ISSUES]]
        if count > MOST_ISSUES:
            lines.append(f"  and {count - MOST_ISSUES} more")
        super().__init__("\n".join([head, *lines]))


class JobNotFound(InputError):
    """No job has this name.

    Args:
        message: Message for the user.
        program: Script or command that has this name, of which `platform init --from` makes a job; "" for none. Also an
            attribute.
    """

    def __init__(self, message: str, program: str = "") -> None:
        super().__init__(message)
        self.program = program


class RunNotFound(InputError):
    """No run has this name."""


class RunExists(InputError):
    """A run with this name exists and has another spec."""


class NotPackedError(InputError):
    """A folder is too large to be uploaded, or has a link that leads out of it."""


class OtherFolderError(InputError):
    """A command needs files of a folder above its own, of which a job gets no copy.

    Args:
        message: Message, with the command for the folder that has all files.
        reason: Beginning of the message.
        folder: That folder.
        command: Command line of the user's program there.
        options: Options of the user, for the same job there.
    """

    def __init__(self, message: str, reason: str, folder: Path, command: str, options: Any) -> None:
        super().__init__(message)
        self.reason, self.folder, self.command, self.options = reason, folder, command, options


class EntrypointError(InputError):
    """The job's module or function cannot be imported, or its packages cannot be installed."""


class CheckpointMismatch(InputError):
    """A checkpoint does not fit the model, the order of batches or the number of ranks."""


class DataError(InputError):
    """A text file is missing, empty, not text, or has changed since it was indexed."""


class PolicyError(TrialplaneError):
    """A process would break a policy of the platform."""


class TransportError(PolicyError):
    """A value may not cross a process boundary."""


class LedgerError(TrialplaneError):
    """The ledger failed."""


class LedgerLocked(LedgerError):
    """Another controller is using the ledger of this run."""


class LedgerFenced(LedgerError):
    """Another controller has taken over this run."""


class LedgerCorrupt(LedgerError):
    """The file is not a ledger, or is damaged."""

    exit_code = EXIT_BAD_INPUT


class LedgerFull(LedgerError):
    """The budget of the namespace for records is used up. Existing records are safe."""


class LedgerRefused(LedgerError):
    """The gateway refused a record. Existing records are safe."""


class LedgerUnavailable(LedgerError):
    """The disk is full, or the database cannot be reached. Existing records are safe."""


class CheckpointError(TrialplaneError):
    """A checkpoint could not be written or read. Older complete ones are unchanged."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint is missing, or its files were truncated or changed after they were written."""


class CacheError(TrialplaneError):
    """An index or a cache could not be written, or is damaged. The text is unchanged."""


class SlotError(TrialplaneError):
    """No slot could be started, or a slot was lost during a call."""


class MessageError(TrialplaneError):
    """A message between two processes is damaged, too long, or of an unknown version."""


class LeaseLost(TrialplaneError):
    """The Lease of an operator was not renewed in time, or another operator holds it."""


class TargetError(TrialplaneError):
    """The target of the runs refused or failed."""


class RunDamaged(TargetError):
    """Files of a run cannot be read, or were changed. The run can still be deleted."""


def shortened(text: str, longest: int) -> str:
    """Return `text` with at most `longest` characters. The last character of a truncated text is an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def nested_reason(text: str) -> str:
    """Return the error at the end of a text whose further lines are indented, with the deepest of them; "" without one.

    A parser of options nests its reasons: `error: Parser key "lr":`, below it what it has tried, and deepest what is wrong.
    """
    match = _NESTED_ERROR.search(text)
    if match is None:
        return ""
    deepest = max(match[2].splitlines(), key=lambda line: len(line) - len(line.lstrip()))  # the first of equals
    return f"{match[1].rstrip(' :')}: {deepest.strip()}"


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return a hint for a name that is not among the candidates.

    It is "did you mean …?" with up to three similar candidates. Without a similar one, it is "there are: …" with all
    candidates if there are at most 12, else "".
    """
    ordered = sorted(candidates)
    if names := similar(word, ordered) or list(filter(None, [only_similar(word, ordered)])):
        return f"did you mean {' or '.join(names)}?"
    if 0 < len(ordered) <= _MOST_LISTED:
        return f"there are: {', '.join(ordered)}"
    return ""


def similar(word: str, candidates: Iterable[str]) -> list[str]:
    """Return up to three candidates that are similar to a name, the most similar first."""
    # Without the dashes of flags, which are no similarity.
    candidate_by_bare_name = {name.lstrip("-"): name for name in sorted(candidates)}
    bare_word = word.lstrip("-")
    is_comparable = len(bare_word) <= _LONGEST_NAME
    close = difflib.get_close_matches(bare_word, candidate_by_bare_name, n=3, cutoff=0.5) if is_comparable else []
    return [candidate_by_bare_name[name] for name in close]


def only_similar(word: str, candidates: Iterable[str]) -> str:
    """Return the only candidate that is very similar to a name, in letters of any case; "" without one."""
    names_by_letters: dict[str, list[str]] = {}
    for name in candidates:
        names_by_letters.setdefault(_letters(name), []).append(name)
    is_comparable = len(word) <= _LONGEST_NAME
    close = difflib.get_close_matches(_letters(word), names_by_letters, cutoff=_VERY_SIMILAR) if is_comparable else []
    names = [name for letters in close for name in names_by_letters[letters]]
    return names[0] if len(names) == 1 else ""


def _letters(name: str) -> str:
    """Return what counts for the similarity of a name: neither the dashes of flags nor the case of letters."""
    return name.lstrip("-").replace("-", "_").lower()


def counted(number: float, noun: str) -> str:
    """Return a number with a noun: `1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
