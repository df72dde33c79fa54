"""Input of `platform init --from`: the options of the user, the file or command line, and the files to write."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trialplane import errors
from trialplane.importing import script

INIT = "platform init --from"
_LONGEST_TITLE = 50  # characters of a command in a message


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of `platform init --from`.

    Attributes:
        with_smoke: Whether to run the script once, to find its metrics.
        space: Parameters to search in place of guessed ones, as fields of job.yaml by name; empty to guess.
        secrets: Secrets that the user's command had, by the environment variable that stands for each one in the job.
        smoke_seconds: Maximum duration of that run; None for `smoke.LONGEST`.
        objective: Field `objective` of job.yaml in place of a guessed one; None to guess.
        trials: Number of trials; None for the default.
        typed: The options as the user types them, for messages.
        switched_on: Searched parameters that are on in the user's command, without their flags.
    """

    with_smoke: bool = True
    space: Mapping[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    secrets: Mapping[str, str] = dataclasses.field(default_factory=dict)
    smoke_seconds: float | None = None
    objective: Mapping[str, str] | None = None
    trials: int | None = None
    typed: str = ""
    switched_on: tuple[str, ...] = ()

    def command(self, source: str) -> str:
        """Return the command that makes the job of a file or a command line, with the options that the user typed."""
        return " ".join(filter(None, (INIT, shlex.quote(source), self.typed)))

    def with_objective(self, metric: str) -> Request:
        """Return the options with another metric to optimize in place of the typed one."""
        words = shlex.split(self.typed)
        index = words.index("--objective") + 1
        assert self.objective is not None  # it is typed
        words[index] = f"{metric}{words[index].removeprefix(self.objective['metric'])}"
        return dataclasses.replace(self, typed=shlex.join(words))

    @property
    def typed_options(self) -> str:
        """The options that a search of the script's own replaces, as the user types them."""
        is_typed = {"--space": self.space, "--objective": self.objective, "--trials": self.trials}
        return " and ".join(option for option, value in is_typed.items() if value)


@dataclasses.dataclass(frozen=True)
class NewFile:
    """A file beside the script that the job needs.

    Attributes:
        path: Path of the file.
        text: Content of the file.
        remark: Meaning of the file, for messages.
    """

    path: Path
    text: str
    remark: str


@dataclasses.dataclass(frozen=True)
class Origin:
    """The file or the command line from which a job is made.

    Attributes:
        file: Path of the script or launcher as the user names it, or the command line.
        real: The path without links; for a command line, a path in the working directory.
        text: Text of the file; "" for a command line.
        title: Name for messages.
        new_files: Files to write beside the job's.
        call: Call of the script in a command that the user types; None without one.
        started_commands: Of a shell script, the commands that make the jobs of its Python commands, for messages.
        notebook: Notebook whose code the file is; None for another file.
    """

    file: Path
    real: Path
    text: str
    title: str
    new_files: tuple[NewFile, ...] = ()
    call: script.Call | None = None
    started_commands: tuple[str, ...] = ()
    notebook: Path | None = None

    @property
    def source(self) -> str:
        """The file or the command line as the user types it."""
        return str(self.notebook or self.file) if self.text else self.title

    @property
    def short_title(self) -> str:
        """The title, without the end of a long command, for messages that would repeat it."""
        return errors.shortened(self.title, _LONGEST_TITLE)


def with_names(words: Sequence[str], other_names: Mapping[str, Sequence[str]]) -> str:
    """Return a command with other names, perhaps several, in place of names in its options --space and --param."""
    new_words: list[str] = []
    for word in words:
        name, _, value = word.partition("=")
        if new_words[-1:] in (["--space"], ["--param"]) and name in other_names:
            option = new_words.pop()
            new_words += [text for other_name in other_names[name] for text in (option, f"{other_name}={value}")]
        else:
            new_words.append(word)
    return shlex.join(new_words)
