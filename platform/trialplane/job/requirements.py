"""The requirements of a job, from a requirements file or a script's metadata (PEP 723), compared with this Python.

Each line is compared with the installed packages. pip is not used, because it would have to resolve and might download.
Lines with a URL or a folder cannot be compared, and are reported as not checked.
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
from typing import TYPE_CHECKING, NamedTuple

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job import document

# `packaging` and `importlib.metadata` are imported where they are needed: they would add 30 ms to every command.
# The models of a job would add 300 ms to the start of each slot.
if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    from trialplane.job.kinds import Job

_INCLUDE_OPTIONS = ("-r", "--requirement")
_CONSTRAINT_OPTIONS = ("-c", "--constraint")
_EDITABLE_OPTIONS = ("-e", "--editable")
_PIP_OPTIONS = (  # options that say where pip finds packages, and how it installs them
    "-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--trusted-host", "--pre",
    "--prefer-binary", "--no-binary", "--only-binary", "--require-hashes", "--use-feature",
)  # fmt: skip
_COMMENT = re.compile(r"(^|\s)#.*$")
_URL_OR_PATH = re.compile(r"^[./~]|://|/|\.(whl|zip|tar\.gz)$")
# A block of metadata as PEP 723 defines it. Of several end lines among its comments, the last one counts.
_BLOCK = re.compile(r"^# /// (?P<type>[a-zA-Z0-9-]+)[^\S\n]*\n(?P<comments>(?:#(?: .*)?\n)*)# ///\s*$", re.MULTILINE)
_OPTION = re.compile(r"(?:^|\s)(-[a-zA-Z]|--[a-z][a-z-]*)")
_INSTALLED = "with install: true a line is a name and versions; `platform image build --job NAME` installs whatever pip does"


@dataclasses.dataclass(frozen=True)
class RequirementLine:
    """A requirement with its file and line.

    Attributes:
        requirement: Name, versions, extras and marker.
        source: Name of the file in messages.
        line: 1-based line.
        has_url: Whether it is installed from a URL.
        applies: Whether it has no marker, or the marker is true for this Python.
    """

    requirement: Requirement
    source: str
    line: int
    has_url: bool = False
    applies: bool = True


class RequiredPython(NamedTuple):
    """Versions of Python that a script requires.

    Attributes:
        versions: Range of the versions.
        source: Name of the script in messages.
        line: 1-based line that requires them.
    """

    versions: SpecifierSet
    source: str
    line: int


@dataclasses.dataclass(frozen=True)
class Requirements:
    """The requirements of a job.

    Attributes:
        lines: Lines with a requirement, in their order.
        python: Required versions of Python. None for any version.
        unchecked: Remarks about lines that only an installation could check.
        issues: Issues of invalid lines.
        files: Path and text of each file; for a script, its dependencies, one per line.
        main: Path of the requirements file or the script; "" if there are no requirements.
        source: Name of `main` in messages.
    """

    lines: tuple[RequirementLine, ...] = ()
    python: RequiredPython | None = None
    unchecked: tuple[Issue, ...] = ()
    issues: tuple[Issue, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    main: str = ""
    source: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the files in hex; the same on every machine."""
        return hashlib.sha256(repr(self.files).encode()).hexdigest()


def job_requirements(job: Job, folder: Path, prefix: str = "") -> Requirements:
    """Return the requirements of a job, from its requirements file or its script.

    Args:
        job: The job.
        folder: The job's folder.
        prefix: Prefix of the names of files in messages.
    """
    return read(folder, job.requires, prefix, is_named=bool(job.requirements))


def source_prefix(folder: Path) -> str:
    """Return the prefix of the names of a folder's files in messages: its path in its shortest form, with a /."""
    try:
        return f"{folder.absolute().relative_to(Path.cwd())}/".removeprefix("./")
    except ValueError:
        return f"{folder}/"


def read(folder: Path, name: str, prefix: str = "", *, is_named: bool = True) -> Requirements:
    """Return the requirements in a file. They are empty if there is no file, or the job's script has no metadata.

    Args:
        folder: The job's folder.
        name: Path of a requirements file or of a Python script in the folder; "" for none.
        prefix: Prefix of the names of files in messages.
        is_named: Whether the job names the file as its requirements. Otherwise it is the job's script, which may have none.
    """
    is_missing_script = not is_named and not (folder / name).is_file()  # which another check reports
    if not name or is_missing_script:
        return Requirements()
    reader = _Reader(folder, prefix)
    try:
        if not name.endswith(".py"):
            reader.read_file(name)
        elif not reader.read_script(name):  # without metadata
            if not is_named:
                return Requirements()
            raise _UnreadableFile(f"{name} has no metadata: there is no line `# /// script` in it")
    except _UnreadableFile as error:
        reader.issues.append(Issue(("requirements",), str(error)))
    return Requirements(
        lines=tuple(reader.lines),
        python=reader.python,
        unchecked=tuple(reader.unchecked),
        issues=tuple(reader.issues),
        files=tuple(sorted(reader.files.items())),
        main=name,
        source=f"{prefix}{name}",
    )


class _UnreadableFile(Exception):
    """Error of a file whose requirements cannot be read. The text is the message for the user."""


class _Line(NamedTuple):
    """A line of a file, which issues name.

    Attributes:
        source: Name of the file in messages.
        number: 1-based number of the line.
    """

    source: str
    number: int

    def issue(self, subject: str, message: str) -> Issue:
        """Return an issue of the line, with the part of the line that it concerns."""
        return Issue((errors.shortened(subject, longest=100),), message, source=self.source, line=self.number)


class _Reader:
    """Reader of a requirements file and the files that it includes, or of a script. The attributes collect the results.

    Attributes:
        lines, python, unchecked, issues: The attributes of `Requirements` with these names.
        files: Texts of the files by path.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self.lines: list[RequirementLine] = []
        self.python: RequiredPython | None = None
        self.unchecked: list[Issue] = []
        self.issues: list[Issue] = []
        self.files: dict[str, str] = {}
        self._folder = folder
        self._prefix = prefix

    def read_file(self, name: str) -> None:
        """Read a requirements file in the folder.

        Raises:
            _UnreadableFile: It does not exist, or is not text.
        """
        for number, text in logical_lines(self._read_text(name)):
            line = _Line(f"{self._prefix}{name}", number)
            if text.startswith("-"):
                self._read_option(name, text, line)
            elif text:
                without_options = re.split(r"\s--?[a-z]", text)[0].strip()  # such as --hash=…
                self._add_requirement(without_options, line)

    def _read_option(self, name: str, text: str, line: _Line) -> None:
        """Read a line of a requirements file that is an option: include a file, or record a remark or an issue.

        Args:
            name: Path of the file.
            text: Text of the line: "-r base.txt".
            line: The line.
        """
        word = text.split(maxsplit=1)[0]
        if word.startswith("--"):  # --option=value or --option value
            option, _, value = word.partition("=")
        else:  # -ovalue or -o value
            option, value = word[:2], word[2:]
        value = value or text[len(word) :].strip()
        if option in _INCLUDE_OPTIONS or option in _CONSTRAINT_OPTIONS:
            self._include(name, option, value, line)
        elif option in _EDITABLE_OPTIONS:
            subject = option if "://" in value else f"{option} {value}"  # a URL may contain a password
            self.unchecked.append(line.issue(subject, "is not checked: it says neither name nor version"))
        elif option not in _PIP_OPTIONS:
            self.issues.append(line.issue(word, "is not an option of a requirements file"))

    def read_script(self, name: str) -> bool:
        """Read the metadata of a script in the folder. Return whether it has any.

        Raises:
            _UnreadableFile: The script does not exist, or is not text.
        """
        blocks = list(_script_blocks(self._read_text(name)))
        if not blocks:
            return False
        source, block = f"{self._prefix}{name}", blocks[0]
        block_line = _Line(source, block.first_line)
        if len(blocks) > 1:
            second_line = _Line(source, blocks[1].first_line)
            self.issues.append(second_line.issue("script", "appears twice; keep one of the blocks"))
        try:
            data = tomllib.loads("\n".join(block.metadata))
        except tomllib.TOMLDecodeError as error:
            self.issues.append(block_line.issue("script", f"the metadata is not TOML: {error}"))
            return True
        dependencies = data.get("dependencies", [])
        if not isinstance(dependencies, list) or not all(isinstance(dependency, str) for dependency in dependencies):
            self.issues.append(block_line.issue("dependencies", 'must be a list of strings: ["torch>=2"]'))
            dependencies = []
        self.files[name] = "\n".join(dependencies)  # not the whole script: its other lines do not matter
        for dependency in dependencies:
            self._add_requirement(dependency, _Line(source, block.line_of(dependency)))
        if "requires-python" in data:
            self._set_python(data["requires-python"], _Line(source, block.line_of("requires-python")))
        return True

    def _set_python(self, version_range: object, line: _Line) -> None:
        """Record the required versions of Python. Record an issue if they are not a valid range."""
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            self.python = RequiredPython(SpecifierSet(str(version_range)), line.source, line.number)
        except InvalidSpecifier:
            message = f'{version_range!r} is not a range of versions; write requires-python = ">=3.11"'
            self.issues.append(line.issue("requires-python", message))

    def _add_requirement(self, text: str, line: _Line) -> None:
        """Record a requirement. Record an issue instead if it is invalid, and a remark if it cannot be checked.

        Args:
            text: The requirement, without options.
            line: Its line.
        """
        from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
        from packaging.requirements import Requirement

        if "${" in text:
            message = "is not checked: it contains a variable, which pip replaces"
            self.unchecked.append(line.issue("a line with ${…}", message))
            return
        try:
            requirement = Requirement(text)
        except ValueError as error:  # the errors of packaging are ValueErrors
            if _URL_OR_PATH.search(text.split(";")[0].strip()):  # the text is not shown: it may contain a password
                self.unchecked.append(line.issue("a URL or a path", "is not checked: it says neither name nor version"))
            else:
                self.issues.append(line.issue(text, f"is not a requirement: {errors.first_line(error)}"))
            return
        has_url = bool(requirement.url)
        if has_url:
            message = "is installed from a URL, so its version is not checked"
            self.unchecked.append(line.issue(requirement.name, message))
            requirement.url = None
        try:
            applies = requirement.marker is None or requirement.marker.evaluate()
        except (UndefinedComparison, UndefinedEnvironmentName) as error:
            message = f"has a marker that cannot be compared: {errors.first_line(error)}"
            self.issues.append(line.issue(text, message))
            return
        self.lines.append(RequirementLine(requirement, line.source, line.number, has_url, applies))

    def _include(self, name: str, option: str, value: str, line: _Line) -> None:
        """Read a file that another file names. Record an issue or a remark if that is not possible.

        Of a file with constraints only the text is recorded, because it only limits the versions of an installation.

        Args:
            name: Path of the file with the line.
            option: Option of the line, such as -r or -c.
            value: Path of the included file, relative to that file; or a URL.
            line: The line.
        """
        if "://" in value:
            self.unchecked.append(line.issue(option, "names a URL, whose content is not checked"))
            return
        path = os.path.normpath(PurePosixPath(name).parent / value)
        subject = f"{option} {value}"
        if path.startswith(("/", "..")):
            message = "lies outside of the job's folder, and only that folder is sent"
            self.issues.append(line.issue(subject, message))
        elif path not in self.files:  # ends circular includes
            read = self._read_text if option in _CONSTRAINT_OPTIONS else self.read_file
            try:
                read(path)
            except _UnreadableFile as error:
                self.issues.append(line.issue(subject, str(error)))

    def _read_text(self, name: str) -> str:
        """Record and return the text of a file in the folder.

        Raises:
            _UnreadableFile: It does not exist, or is not text.
        """
        file = self._folder / name
        if not file.is_file():
            text_files = [path.relative_to(self._folder).as_posix() for path in self._folder.glob("**/*.txt")]
            hint = errors.nearest(name, text_files)
            raise _UnreadableFile(f"there is no {name} in {self._folder}; {hint}".rstrip("; "))
        try:
            self.files[name] = document.decode(file.read_bytes(), name)
        except UnicodeDecodeError as error:
            raise _UnreadableFile(f"{name} is not {error.encoding.upper()} text") from error
        except (OSError, ValueError) as error:
            raise _UnreadableFile(str(error)) from error
        return self.files[name]


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a requirements file, without comments.

    A backslash at the end of a line joins it to the next one. The joined line has the number of the first of them.
    """
    pending, first_number = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        first_number = first_number or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            pending += f"{line[:-1]} "
            continue
        yield first_number, _COMMENT.sub("", pending + line).strip()
        pending, first_number = "", 0
    if pending:
        yield first_number, _COMMENT.sub("", pending).strip()


class _ScriptBlock(NamedTuple):
    """A block of metadata in a script.

    Attributes:
        first_line: 1-based number of the line `# /// script`.
        metadata: Lines between this one and the last one, without `# `.
    """

    first_line: int
    metadata: list[str]

    def line_of(self, text: str) -> int:
        """Return the number of the first line that contains a text; without one, that of the first line of the block."""
        numbers = (number for number, line in enumerate(self.metadata, start=self.first_line + 1) if text in line)
        return next(numbers, self.first_line)


def _script_blocks(text: str) -> Iterator[_ScriptBlock]:
    """Yield the metadata blocks of type `script` in a script."""
    for match in _BLOCK.finditer(text):
        if match["type"] == "script":
            first_line = text.count("\n", 0, match.start()) + 1
            yield _ScriptBlock(first_line, [line[2:] for line in match["comments"].splitlines()])


def unmet_issues(needs: Requirements, advice: str = "") -> list[Issue]:
    """Return an issue for each requirement that this Python does not meet. Empty if all are met.

    A first issue has the number of unmet requirements and the advice.

    Args:
        needs: Requirements of a job.
        advice: Advice, as a sentence. Default: the command of pip that installs the packages.
    """
    applicable = [line for line in needs.lines if line.applies]
    issues: list[Issue] = []
    for line in applicable:
        if reason := _unmet_reason(line.requirement):
            issues.append(Issue((str(line.requirement),), reason, source=line.source, line=line.line))
    if issues and not advice:
        advice = _pip_advice(needs, applicable)
    if needs.python is not None:  # after the default advice: pip cannot install another Python
        versions, source, line_number = needs.python
        current = platform.python_version()
        if not versions.contains(current, prereleases=True):
            issues.insert(0, Issue((f"requires-python {versions}",), f"this is {current}", source, line_number))
    if not issues:
        return []
    line_count = len({(issue.source, issue.line) for issue in issues})
    summary = f"{errors.counted(line_count, 'requirement')} {'is' if line_count == 1 else 'are'} not met by {sys.executable}"
    parts = filter(None, [f"{summary}, which runs the trials here", advice, "see `platform docs studies`"])
    return [Issue(("requirements",), "; ".join(parts)), *issues]


def _pip_advice(needs: Requirements, applicable: Iterable[RequirementLine]) -> str:
    """Return the command of pip that installs the requirements of a job, as advice.

    Args:
        needs: Requirements of the job.
        applicable: Lines of a script that apply to this Python. Of a requirements file, pip reads the lines itself.
    """
    if not needs.source.endswith(".py"):
        return f"`pip install -r {shlex.quote(needs.source)}` installs what is missing"
    # Requirements with a URL are left out: pip would install the package of that name in the index.
    from_index = shlex.join(str(line.requirement) for line in applicable if not line.has_url)
    return f"`pip install {from_index}` installs what is missing from the index" if from_index else ""


def _unmet_reason(requirement: Requirement) -> str:
    """Return the reason why a requirement is not met, "" if it is. Its extras are not checked."""
    from importlib import metadata

    from packaging.version import InvalidVersion

    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        version = ""
    if not version:  # also of a broken installation
        return "is not installed"
    try:
        return "" if requirement.specifier.contains(version, prereleases=True) else f"{version} is installed"
    except InvalidVersion:
        return f"{version} is installed, a version that cannot be compared"


def install_issues(needs: Requirements) -> list[Issue]:
    """Return issues of the lines that a pod does not install: URLs, paths, and options.

    It installs only names and versions, from the chart's package index.
    """
    issues = [dataclasses.replace(issue, message=f"is not installed in a pod; {_INSTALLED}") for issue in needs.unchecked]
    reported = {(issue.source, issue.line) for issue in issues}
    prefix = needs.source.removesuffix(needs.main)  # of the names of files in messages
    for name, text in needs.files:
        if name.endswith(".py"):  # the dependencies of a script have no options
            continue
        for line, content in logical_lines(text):
            option = _OPTION.search(content)
            if option is None or (f"{prefix}{name}", line) in reported:
                continue
            reason = "hashes are not compared in a pod" if "hash" in content else "options are not followed in a pod"
            field_path = (errors.shortened(option[1], longest=100),)
            issues.append(Issue(field_path, f"{reason}; {_INSTALLED}", source=f"{prefix}{name}", line=line))
    return sorted(issues, key=lambda issue: (issue.source, issue.line))
