"""What a job needs installed: read from a requirements file, or from a script's own metadata (PEP 723), and compared.

pip is not asked, which would have to resolve, and may download: each line is compared with what this Python has installed.
What a URL or a folder would install is not known before, so such lines are reported as not checked.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job import document
from trialplane.job.kinds import Job

# `packaging` and `importlib.metadata` are imported where they are needed: 30 ms of every command, for the jobs that say what
# they need.
if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

_LARGEST = 2**20  # bytes of a file
_MOST_FILES = 50  # that are included
_FILES = {"-r": "requirement", "--requirement": "requirement", "-c": "constraint", "--constraint": "constraint"}
_EDITABLE = ("-e", "--editable")
_OF_PIP = (  # what says where pip finds packages, and how it installs them
    "-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--trusted-host", "--pre",
    "--prefer-binary", "--no-binary", "--only-binary", "--require-hashes", "--use-feature",
)  # fmt: skip
_COMMENT = re.compile(r"(^|\s)#.*$")
_PLACE = re.compile(r"^[./~]|://|/|\.(whl|zip|tar\.gz)$")
_BLOCK = re.compile(r"# /// ([a-zA-Z0-9-]+)\s*")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """One requirement, with the file and the line that state it.

    Attributes:
        requirement: as it stands there.
        source: the file.
        line: 1-based.
        is_constraint: whether it only limits the version of what another line requires.
        has_url: whether it names the URL that it is installed from.
        applies: whether its marker is true of this Python, or it has none.
    """

    requirement: Requirement
    source: str
    line: int
    is_constraint: bool = False
    has_url: bool = False
    applies: bool = True


@dataclasses.dataclass(frozen=True)
class Requirements:
    """What a job says about what must be installed.

    Attributes:
        wanted: the requirements, in the order in which they stand there.
        python: versions of Python that its script runs with, and the line that says so.
        unchecked: lines that only an installation could check.
        issues: lines that say nothing sound.
        files: what was read: its path in the job's folder, and its text; of a script its dependencies, one a line.
        main: the file that the job names, or its script; "" where neither says anything.
        source: the same as messages name it.
    """

    wanted: tuple[Wanted, ...] = ()
    python: tuple[SpecifierSet, str, int] | None = None
    unchecked: tuple[Issue, ...] = ()
    issues: tuple[Issue, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    main: str = ""
    source: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 in hex of the files that say it; the same on every machine."""
        return hashlib.sha256(repr(self.files).encode()).hexdigest()


def of(job: Job, folder: Path, prefix: str = "") -> Requirements:
    """What a job needs, by the file that it names or its script.

    Args:
        job: that says which.
        folder: of the job.
        prefix: before the names of files in messages.
    """
    return read(folder, job.requires, prefix, is_named=bool(job.requirements))


def prefix(folder: Path) -> str:
    """What stands before the names of a folder's files in messages on the user's machine: its path in its shortest form."""
    try:
        return f"{folder.absolute().relative_to(Path.cwd())}/".removeprefix("./")
    except ValueError:
        return f"{folder}/"


def read(folder: Path, name: str, prefix: str = "", *, is_named: bool = True) -> Requirements:
    """What a file of a job's folder says about what must be installed.

    Args:
        folder: of the job.
        name: path in it, of a requirements file or of a Python script; "" for nothing.
        prefix: before the names of files in messages.
        is_named: whether the job says that the requirements are there; a script may have none.
    """
    if not name or not (is_named or (folder / name).is_file()):
        return Requirements()
    reader = _Reader(folder, prefix)
    reader.script(name) if name.endswith(".py") else reader.file(name)
    if name.endswith(".py") and not reader.has_block:
        if is_named:
            reader.issues.append(Issue(("requirements",), f"{name} has no metadata: there is no line `# /// script` in it"))
        else:
            return Requirements()
    files = tuple(sorted(reader.files.items()))
    issues, unchecked = tuple(reader.issues), tuple(reader.unchecked)
    return Requirements(tuple(reader.wanted), reader.python, unchecked, issues, files, name, f"{prefix}{name}")


class _Reader:
    """Collects what a file says, and what those files say that it includes."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.wanted: list[Wanted] = []
        self.python: tuple[SpecifierSet, str, int] | None = None
        self.unchecked: list[Issue] = []
        self.issues: list[Issue] = []
        self.files: dict[str, str] = {}
        self.has_block = False
        self._included: set[tuple[str, bool]] = set()
        self._folder = folder
        self._prefix = prefix

    def file(self, name: str, *, is_constraint: bool = False, said: Issue | None = None) -> None:
        """Read a requirements file.

        Args:
            name: its path in the folder.
            is_constraint: whether it only limits versions.
            said: where it is named, with any message; None for the job's own.
        """
        self._included.add((name, is_constraint))
        if (text := self._text(name, said)) is None:
            return
        source = f"{self._prefix}{name}"
        for number, line in joined(text):
            what = line.split(maxsplit=1)[0] if line else ""
            option, _, value = what.partition("=") if what.startswith("--") else (what[:2], "", what[2:])
            value = value or line[len(what) :].strip()
            here = Issue((option,), "", source, number)
            if not line or option in _OF_PIP:
                continue
            if option in _FILES:
                self._include(name, value, here, _FILES[option] == "constraint" or is_constraint)
            elif option in _EDITABLE:
                what = option if "://" in value else f"{option} {value}"  # a URL may hold a password
                self.unchecked.append(_said(here, what, "is not checked: it says neither name nor version"))
            elif line.startswith("-"):
                self.issues.append(_said(here, what, "is not an option of a requirements file"))
            else:
                self._add(re.split(r"\s--?[a-z]", line)[0].strip(), source, number, is_constraint)

    def script(self, name: str) -> None:
        """Read the metadata of a script."""
        text = self._text(name, None)
        if text is None:
            self.has_block = True  # there is an issue already
            return
        source, lines = f"{self._prefix}{name}", text.splitlines()
        blocks = list(_blocks(lines))
        if not blocks:
            return
        self.has_block = True
        begin, content = blocks[0]
        if len(blocks) > 1:
            self.issues.append(Issue(("script",), "appears twice; keep one of the blocks", source, blocks[1][0]))
        try:
            data = tomllib.loads("\n".join(content))
        except tomllib.TOMLDecodeError as error:
            self.issues.append(Issue(("script",), f"the metadata is not TOML: {error}", source, begin))
            return
        given = data.get("dependencies", [])
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            self.issues.append(Issue(("dependencies",), 'must be a list of strings: ["torch>=2"]', source, begin))
            given = []
        self.files[name] = "\n".join(given)  # the rest of the script says nothing about it
        for one in given:
            found = (at for at, line in enumerate(content) if one in line)
            self._add(one, source, begin + 1 + next(found, -1), is_constraint=False)
        if "requires-python" in data:
            line = next((at for at, line in enumerate(content) if line.lstrip().startswith("requires-python")), -1)
            self._limit_python(data["requires-python"], source, begin + 1 + line)

    def _limit_python(self, given: object, source: str, line: int) -> None:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            self.python = SpecifierSet(str(given)), source, line
        except InvalidSpecifier:
            message = f'{given!r} is not a range of versions; write requires-python = ">=3.11"'
            self.issues.append(Issue(("requires-python",), message, source, line))

    def _add(self, text: str, source: str, line: int, is_constraint: bool) -> None:
        from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
        from packaging.requirements import Requirement

        here = Issue((), "", source, line)
        if "${" in text:
            self.unchecked.append(_said(here, "a line with ${…}", "is not checked: only pip knows what it stands for"))
            return
        try:
            made = Requirement(text)
            if len(str(made).splitlines()) > 1:  # what escapes in a marker's strings stand for
                raise ValueError("its marker has a line break")
        except ValueError as error:  # of packaging too
            if _PLACE.search(text.split(";")[0].strip()):  # not shown: it may hold a password
                self.unchecked.append(_said(here, "a URL or a path", "is not checked: it says neither name nor version"))
            else:
                self.issues.append(_said(here, text, f"is not a requirement: {errors.first_line(error)}"))
            return
        if has_url := bool(made.url):
            self.unchecked.append(_said(here, made.name, "is installed from a URL, so its version is not checked"))
            made.url = None
        try:
            applies = made.marker is None or made.marker.evaluate()
        except (UndefinedComparison, UndefinedEnvironmentName) as error:
            self.issues.append(_said(here, text, f"has a marker that cannot be compared: {errors.first_line(error)}"))
            return
        self.wanted.append(Wanted(made, source, line, is_constraint, has_url, applies))

    def _include(self, name: str, value: str, here: Issue, is_constraint: bool) -> None:
        if "://" in value:
            self.unchecked.append(_said(here, here.field, "names a URL, whose content is not checked"))
            return
        path, what = os.path.normpath(PurePosixPath(name).parent / value), f"{here.field} {value}"
        if path.startswith(("/", "..")):
            self.issues.append(_said(here, what, "lies outside of the job's folder, and only that folder is sent"))
        elif len(self._included) >= _MOST_FILES:
            self.issues.append(_said(here, what, f"is beyond the {_MOST_FILES} files that are read"))
        elif (path, is_constraint) not in self._included:  # a circle ends here
            self.file(path, is_constraint=is_constraint, said=_said(here, what, ""))

    def _text(self, name: str, said: Issue | None) -> str | None:
        """The text of a file, or None after an issue."""
        file = self._folder / name
        try:
            if not file.is_file():
                there = [path.relative_to(self._folder).as_posix() for path in self._folder.glob("**/*.txt")]
                near = errors.nearest(name, there)
                raise FileNotFoundError(f"there is no {name} in {self._folder}; {near}".rstrip("; "))
            with file.open("rb") as opened:
                data = opened.read(_LARGEST + 1)
            if len(data) > _LARGEST:
                raise ValueError(f"{name} is larger than {_LARGEST // 2**20} MiB")
            self.files[name] = text = document.decoded(data, name)
        except (OSError, ValueError) as error:
            why = f"{name} is not {error.encoding.upper()} text" if isinstance(error, UnicodeDecodeError) else str(error)
            self.issues.append(dataclasses.replace(said or Issue(("requirements",), ""), message=why))
            return None
        return text


def _said(here: Issue, what: str, message: str) -> Issue:
    return dataclasses.replace(here, place=(errors.shortened(what, 100),), message=message)


def joined(text: str) -> Iterator[tuple[int, str]]:
    """The logical lines of a requirements file with their numbers, without comments."""
    pending, begin = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        begin = begin or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            pending += f"{line[:-1]} "
            continue
        yield begin, _COMMENT.sub("", pending + line).strip()
        pending, begin = "", 0
    if pending:
        yield begin, _COMMENT.sub("", pending).strip()


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """The blocks of metadata of the type `script`: the number of the first line, and the lines between, without `#`."""
    at = 0
    while at < len(lines):
        opened = _BLOCK.fullmatch(lines[at])
        at += 1
        if opened is None:
            continue
        begin = at
        while at < len(lines) and (lines[at].rstrip() == "#" or lines[at].startswith("# ")):
            at += 1
        inside = [line.rstrip() for line in lines[begin:at]]
        if "# ///" in inside and opened[1] == "script":  # the last one ends it, and what follows is a comment
            end = len(inside) - 1 - inside[::-1].index("# ///")
            yield begin, [line[2:] for line in inside[:end]]


def unmet(found: Requirements, cure: str = "") -> list[Issue]:
    """What this Python does not have of it: an issue for each line, after one that says how many and what to type.

    Args:
        found: what is needed.
        cure: what to type, in a sentence's form; pip's command when left out.
    """
    wanted = [one for one in found.wanted if one.applies]
    named = {_canonical(one.requirement.name) for one in wanted if not one.is_constraint}
    asked = [one for one in wanted if not one.is_constraint or _canonical(one.requirement.name) in named]
    issues = [
        Issue((str(one.requirement),), message, one.source, one.line)
        for one in asked
        for message in _lacking(one.requirement, ())
    ]
    if issues and not cure:
        # pip would take a package of the name from the index, whoever's it is.
        from_index = shlex.join(str(one.requirement) for one in asked if not one.has_url)
        asks = from_index if found.source.endswith(".py") else f"-r {shlex.quote(found.source)}"
        cure = f"`pip install {asks}` installs what is missing" if asks else ""
        if found.source.endswith(".py") and any(one.has_url for one in asked):
            cure = f"{cure}; what has a URL is installed from there".removeprefix("; ")
    if found.python is not None:
        versions, source, line = found.python
        if not versions.contains(platform.python_version(), prereleases=True):
            issues.insert(0, Issue((f"requires-python {versions}",), f"this is {platform.python_version()}", source, line))
    if not issues:
        return []
    lines = errors.counted(len({(one.source, one.line) for one in issues}), "requirement")
    verb = "is" if lines.startswith("1 ") else "are"
    parts = [f"{lines} {verb} not met by {sys.executable}, which runs the trials here", cure, "see `platform docs studies`"]
    return [Issue(("requirements",), "; ".join(filter(None, parts))), *issues]


def _lacking(requirement: Requirement, above: tuple[str, ...]) -> Iterator[str]:
    """Why what is installed does not meet a requirement; with its extras, whose requirements are looked at too."""
    from packaging.version import InvalidVersion

    there = _installed(_canonical(requirement.name))
    if there is None:
        yield "is not installed"
        return
    try:
        if not requirement.specifier.contains(there.version, prereleases=True):
            yield f"{there.version} is installed"
    except InvalidVersion:
        yield f"{there.version} is installed, a version that cannot be compared"
    provided = {_canonical(one): one for one in there.metadata.get_all("Provides-Extra") or []}
    for extra in sorted(requirement.extras):
        step = f"{_canonical(requirement.name)}[{_canonical(extra)}]"
        if _canonical(extra) not in provided:
            near = errors.nearest(extra, provided.values())
            yield f"{there.version} is installed, which has no extra {extra}; {near}".rstrip("; ")
        elif step not in above:
            for below in _of_extra(there, provided[_canonical(extra)]):
                yield from (f"[{extra}] needs {below}: {why}" for why in _lacking(below, (*above, step)))


def _of_extra(there: Distribution, extra: str) -> Iterable[Requirement]:
    """What an extra of an installed package requires."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in there.requires or []:
        try:
            made = Requirement(text)
        except InvalidRequirement:  # of a package made long ago; pip has taken it
            continue
        if made.marker is not None and made.marker.evaluate({"extra": extra}) and not made.marker.evaluate({"extra": ""}):
            made.marker = None
            yield made


def _installed(name: str) -> Distribution | None:
    """The installed package of a canonical name."""
    from importlib import metadata

    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return found if found.metadata["Version"] else None  # a folder that a broken installation left


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
