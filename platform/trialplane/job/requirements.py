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
from typing import TYPE_CHECKING

from trialplane import errors
from trialplane.errors import Issue
from trialplane.job import document
from trialplane.job.kinds import Job

# `packaging` and `importlib.metadata` are imported where they are needed: they would add 30 ms to every command.
if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

_MOST_BYTES = 2**20  # of a file
_MOST_FILES = 50  # with all included ones
_INCLUDE_OPTIONS = {"-r": "requirement", "--requirement": "requirement", "-c": "constraint", "--constraint": "constraint"}
_EDITABLE_OPTIONS = ("-e", "--editable")
_PIP_OPTIONS = (  # they say where pip finds packages, and how it installs them
    "-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--trusted-host", "--pre",
    "--prefer-binary", "--no-binary", "--only-binary", "--require-hashes", "--use-feature",
)  # fmt: skip
_COMMENT = re.compile(r"(^|\s)#.*$")
_URL_OR_PATH = re.compile(r"^[./~]|://|/|\.(whl|zip|tar\.gz)$")
_BLOCK = re.compile(r"# /// ([a-zA-Z0-9-]+)\s*")


@dataclasses.dataclass(frozen=True)
class RequirementLine:
    """A requirement with its file and line.

    Attributes:
        requirement: Name, versions, extras and marker.
        source: Name of the file in messages.
        line: 1-based line.
        is_constraint: Whether it only limits the version of another line's requirement.
        has_url: Whether it is installed from a URL.
        applies: Whether it has no marker, or the marker is true for this Python.
    """

    requirement: Requirement
    source: str
    line: int
    is_constraint: bool = False
    has_url: bool = False
    applies: bool = True


@dataclasses.dataclass(frozen=True)
class Requirements:
    """The requirements of a job.

    Attributes:
        lines: Lines with a requirement, in their order.
        python: Required versions of Python, with the file and the line that require them. None for any version.
        unchecked: Remarks about lines that only an installation could check.
        issues: Issues of invalid lines.
        files: Path and text of each file; for a script, its dependencies, one per line.
        main: Path of the requirements file or the script; "" if there are no requirements.
        source: Name of `main` in messages.
    """

    lines: tuple[RequirementLine, ...] = ()
    python: tuple[SpecifierSet, str, int] | None = None
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


def prefix(folder: Path) -> str:
    """Return the prefix of the names of a folder's files in messages: its path in its shortest form, with a /."""
    try:
        return f"{folder.absolute().relative_to(Path.cwd())}/".removeprefix("./")
    except ValueError:
        return f"{folder}/"


def read(folder: Path, name: str, prefix: str = "", *, is_named: bool = True) -> Requirements:
    """Return the requirements in a file.

    Args:
        folder: The job's folder.
        name: Path of a requirements file or of a Python script in the folder; "" for none.
        prefix: Prefix of the names of files in messages.
        is_named: Whether the job names the file as its requirements. Otherwise it is the job's script, which may have none.
    """
    if not name or not (is_named or (folder / name).is_file()):
        return Requirements()
    reader = _Reader(folder, prefix)
    reader.read_script(name) if name.endswith(".py") else reader.read_file(name)
    if name.endswith(".py") and not reader.has_block:
        if is_named:
            reader.issues.append(Issue(("requirements",), f"{name} has no metadata: there is no line `# /// script` in it"))
        else:
            return Requirements()
    files = tuple(sorted(reader.files.items()))
    issues, unchecked = tuple(reader.issues), tuple(reader.unchecked)
    return Requirements(tuple(reader.lines), reader.python, unchecked, issues, files, name, f"{prefix}{name}")


class _Reader:
    """Reader of a requirements file and the files that it includes, or of a script. The attributes collect the results.

    Attributes:
        lines, python, unchecked, issues: As of `Requirements`.
        files: Texts of the files by path.
        has_block: Whether the script has metadata.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self.lines: list[RequirementLine] = []
        self.python: tuple[SpecifierSet, str, int] | None = None
        self.unchecked: list[Issue] = []
        self.issues: list[Issue] = []
        self.files: dict[str, str] = {}
        self.has_block = False
        self._included: set[tuple[str, bool]] = set()
        self._folder = folder
        self._prefix = prefix

    def read_file(self, name: str, *, is_constraint: bool = False, included_at: Issue | None = None) -> None:
        """Read a requirements file.

        Args:
            name: Path in the folder.
            is_constraint: Whether its lines only limit versions.
            included_at: Issue of the line that includes the file, in case it cannot be read. None for the first file.
        """
        self._included.add((name, is_constraint))
        if (text := self._text(name, included_at)) is None:
            return
        source = f"{self._prefix}{name}"
        for number, line in logical_lines(text):
            word = line.split(maxsplit=1)[0] if line else ""
            option, _, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
            value = value or line[len(word) :].strip()
            line_issue = Issue((option,), "", source, number)  # template for issues of this line
            if not line or option in _PIP_OPTIONS:
                continue
            if option in _INCLUDE_OPTIONS:
                self._include(name, value, line_issue, _INCLUDE_OPTIONS[option] == "constraint" or is_constraint)
            elif option in _EDITABLE_OPTIONS:
                word = option if "://" in value else f"{option} {value}"  # a URL may hold a password
                self.unchecked.append(_line_issue(line_issue, word, "is not checked: it says neither name nor version"))
            elif line.startswith("-"):
                self.issues.append(_line_issue(line_issue, word, "is not an option of a requirements file"))
            else:
                self._add(re.split(r"\s--?[a-z]", line)[0].strip(), source, number, is_constraint)

    def read_script(self, name: str) -> None:
        """Read the metadata of a script."""
        text = self._text(name, None)
        if text is None:
            self.has_block = True  # the unreadable file is the only issue
            return
        source, lines = f"{self._prefix}{name}", text.splitlines()
        blocks = list(_blocks(lines))
        if not blocks:
            return
        self.has_block = True
        first_line, content = blocks[0]
        if len(blocks) > 1:
            self.issues.append(Issue(("script",), "appears twice; keep one of the blocks", source, blocks[1][0]))
        try:
            data = tomllib.loads("\n".join(content))
        except tomllib.TOMLDecodeError as error:
            self.issues.append(Issue(("script",), f"the metadata is not TOML: {error}", source, first_line))
            return
        dependencies = data.get("dependencies", [])
        if not isinstance(dependencies, list) or not all(isinstance(dependency, str) for dependency in dependencies):
            self.issues.append(Issue(("dependencies",), 'must be a list of strings: ["torch>=2"]', source, first_line))
            dependencies = []
        self.files[name] = "\n".join(dependencies)  # not the whole script: its other lines do not matter
        for dependency in dependencies:
            line_numbers = (index for index, line in enumerate(content) if dependency in line)
            self._add(dependency, source, first_line + 1 + next(line_numbers, -1), is_constraint=False)
        if "requires-python" in data:
            line = next((index for index, line in enumerate(content) if line.lstrip().startswith("requires-python")), -1)
            self._limit_python(data["requires-python"], source, first_line + 1 + line)

    def _limit_python(self, version_range: object, source: str, line: int) -> None:
        """Record the required versions of Python, or an issue."""
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            self.python = SpecifierSet(str(version_range)), source, line
        except InvalidSpecifier:
            message = f'{version_range!r} is not a range of versions; write requires-python = ">=3.11"'
            self.issues.append(Issue(("requires-python",), message, source, line))

    def _add(self, text: str, source: str, line: int, is_constraint: bool) -> None:
        """Record a requirement, or an issue, and a remark if its version cannot be checked."""
        from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
        from packaging.requirements import Requirement

        line_issue = Issue((), "", source, line)
        if "${" in text:
            message = "is not checked: only pip knows what it stands for"
            self.unchecked.append(_line_issue(line_issue, "a line with ${…}", message))
            return
        try:
            requirement = Requirement(text)
            if len(str(requirement).splitlines()) > 1:  # from escapes in a marker's strings
                raise ValueError("its marker has a line break")
        except ValueError as error:  # raised by packaging too
            if _URL_OR_PATH.search(text.split(";")[0].strip()):  # not shown: it may contain a password
                self.unchecked.append(
                    _line_issue(line_issue, "a URL or a path", "is not checked: it says neither name nor version")
                )
            else:
                self.issues.append(_line_issue(line_issue, text, f"is not a requirement: {errors.first_line(error)}"))
            return
        if has_url := bool(requirement.url):
            self.unchecked.append(
                _line_issue(line_issue, requirement.name, "is installed from a URL, so its version is not checked")
            )
            requirement.url = None
        try:
            applies = requirement.marker is None or requirement.marker.evaluate()
        except (UndefinedComparison, UndefinedEnvironmentName) as error:
            message = f"has a marker that cannot be compared: {errors.first_line(error)}"
            self.issues.append(_line_issue(line_issue, text, message))
            return
        self.lines.append(RequirementLine(requirement, source, line, is_constraint, has_url, applies))

    def _include(self, name: str, value: str, line_issue: Issue, is_constraint: bool) -> None:
        """Read a file that another file includes.

        Args:
            name: Path of the file with the line.
            value: Path of the included file, relative to that file.
            line_issue: Template for issues of the line.
            is_constraint: Whether the included lines only limit versions.
        """
        if "://" in value:
            self.unchecked.append(_line_issue(line_issue, line_issue.field, "names a URL, whose content is not checked"))
            return
        path, name_and_value = os.path.normpath(PurePosixPath(name).parent / value), f"{line_issue.field} {value}"
        if path.startswith(("/", "..")):
            self.issues.append(
                _line_issue(line_issue, name_and_value, "lies outside of the job's folder, and only that folder is sent")
            )
        elif len(self._included) >= _MOST_FILES:
            self.issues.append(_line_issue(line_issue, name_and_value, f"is beyond the {_MOST_FILES} files that are read"))
        elif (path, is_constraint) not in self._included:  # ends circular includes
            self.read_file(path, is_constraint=is_constraint, included_at=_line_issue(line_issue, name_and_value, ""))

    def _text(self, name: str, included_at: Issue | None) -> str | None:
        """Return the text of a file. None after an issue, which is reported at `included_at`."""
        file = self._folder / name
        try:
            if not file.is_file():
                text_files = [path.relative_to(self._folder).as_posix() for path in self._folder.glob("**/*.txt")]
                hint = errors.nearest(name, text_files)
                raise FileNotFoundError(f"there is no {name} in {self._folder}; {hint}".rstrip("; "))
            with file.open("rb") as opened:
                data = opened.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise ValueError(f"{name} is larger than {_MOST_BYTES // 2**20} MiB")
            self.files[name] = text = document.decode(data, name)
        except (OSError, ValueError) as error:
            message = f"{name} is not {error.encoding.upper()} text" if isinstance(error, UnicodeDecodeError) else str(error)
            self.issues.append(dataclasses.replace(included_at or Issue(("requirements",), ""), message=message))
            return None
        return text


def _line_issue(line_issue: Issue, subject: str, message: str) -> Issue:
    """Return an issue of the line of `line_issue`, about a part of it, `subject`."""
    return dataclasses.replace(line_issue, place=(errors.shortened(subject, 100),), message=message)


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a requirements file without comments, with their numbers. A backslash joins a line to the next."""
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


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the metadata blocks of type `script`: 1-based number of the first line, and the lines inside without `#`."""
    index = 0
    while index < len(lines):
        block_start = _BLOCK.fullmatch(lines[index])
        index += 1
        if block_start is None:
            continue
        first_line = index
        while index < len(lines) and (lines[index].rstrip() == "#" or lines[index].startswith("# ")):
            index += 1
        comments = [line.rstrip() for line in lines[first_line:index]]
        if "# ///" in comments and block_start[1] == "script":  # the last of these ends the block; later lines are comments
            end = len(comments) - 1 - comments[::-1].index("# ///")
            yield first_line, [line[2:] for line in comments[:end]]


def unmet_issues(needs: Requirements, advice: str = "") -> list[Issue]:
    """Return an issue for each requirement that this Python does not meet, after one with their number and advice.

    Args:
        needs: Requirements of a job.
        advice: Advice, as a sentence. Default: the command of pip that installs the packages.
    """
    applying = [line for line in needs.lines if line.applies]
    names = {_canonical_name(line.requirement.name) for line in applying if not line.is_constraint}
    # A constraint counts only for a package that is required.
    checked = [line for line in applying if not line.is_constraint or _canonical_name(line.requirement.name) in names]
    issues = [
        Issue((str(line.requirement),), message, line.source, line.line)
        for line in checked
        for message in _unmet_reasons(line.requirement, ())
    ]
    if issues and not advice:
        # Requirements with a URL are left out: pip would install the package of that name in the index.
        from_index = shlex.join(str(line.requirement) for line in checked if not line.has_url)
        pip_arguments = from_index if needs.source.endswith(".py") else f"-r {shlex.quote(needs.source)}"
        advice = f"`pip install {pip_arguments}` installs what is missing" if pip_arguments else ""
        if needs.source.endswith(".py") and any(line.has_url for line in checked):
            advice = f"{advice}; what has a URL is installed from there".removeprefix("; ")
    if needs.python is not None:
        versions, source, line = needs.python
        if not versions.contains(platform.python_version(), prereleases=True):
            issues.insert(0, Issue((f"requires-python {versions}",), f"this is {platform.python_version()}", source, line))
    if not issues:
        return []
    count = errors.counted(len({(issue.source, issue.line) for issue in issues}), "requirement")
    verb = "is" if count.startswith("1 ") else "are"
    parts = [
        f"{count} {verb} not met by {sys.executable}, which runs the trials here",
        advice,
        "see `platform docs studies`",
    ]
    return [Issue(("requirements",), "; ".join(filter(None, parts))), *issues]


def _unmet_reasons(requirement: Requirement, outer_extras: tuple[str, ...]) -> Iterator[str]:
    """Yield the reasons for which a requirement is not met, and recursively those of its extras.

    Args:
        requirement: The requirement.
        outer_extras: Extras that require this one, as package[extra], at which the recursion ends.
    """
    from packaging.version import InvalidVersion

    distribution = _find_distribution(_canonical_name(requirement.name))
    if distribution is None:
        yield "is not installed"
        return
    try:
        if not requirement.specifier.contains(distribution.version, prereleases=True):
            yield f"{distribution.version} is installed"
    except InvalidVersion:
        yield f"{distribution.version} is installed, a version that cannot be compared"
    extra_names = distribution.metadata.get_all("Provides-Extra") or []
    provided = {_canonical_name(extra_name): extra_name for extra_name in extra_names}
    for extra in sorted(requirement.extras):
        step = f"{_canonical_name(requirement.name)}[{_canonical_name(extra)}]"
        if _canonical_name(extra) not in provided:
            hint = errors.nearest(extra, provided.values())
            yield f"{distribution.version} is installed, which has no extra {extra}; {hint}".rstrip("; ")
        elif step not in outer_extras:
            for extra_requirement in _extra_requirements(distribution, provided[_canonical_name(extra)]):
                yield from (
                    f"[{extra}] needs {extra_requirement}: {problem}"
                    for problem in _unmet_reasons(extra_requirement, (*outer_extras, step))
                )


def _extra_requirements(distribution: Distribution, extra: str) -> Iterable[Requirement]:
    """Yield the requirements of an extra of an installed package."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in distribution.requires or []:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # older versions of pip installed such packages
            continue
        if (
            requirement.marker is not None
            and requirement.marker.evaluate({"extra": extra})
            and not requirement.marker.evaluate({"extra": ""})
        ):
            requirement.marker = None
            yield requirement


def _find_distribution(name: str) -> Distribution | None:
    """Return the installed package with a canonical name. None if there is none."""
    from importlib import metadata

    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return distribution if distribution.metadata["Version"] else None  # a broken installation has no version


def _canonical_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
