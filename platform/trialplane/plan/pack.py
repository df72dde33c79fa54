"""Packing a job's folder and its packages as one archive with a reproducible hash, and unpacking it.

The archive is uploaded in several ConfigMaps, which Kubernetes limits to 1 MiB each. Data does not belong in it. Folders
with the same files give the same tar, regardless of times, owners and umask. Its hash identifies the code of a run, and is
checked when the archive is unpacked.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from trialplane.errors import InputError, Issue, NotPackedError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".jobignore"
JOB = "job.yaml"
PART = 2**20  # size limit of one ConfigMap, in bytes
MAX_BYTES = 8 * PART  # size limit of the tar.gz, which is stored in etcd while the run exists, and in the ledger
MOST_ENTRIES = 20_000  # limit of files and folders, because a few links to folders can stand for any number of files
MAX_UNPACKED = 64 * 2**20  # size limit of the tar, in bytes
# Hidden files that mark the root of a project: rootutils and pyprojroot look for them. They have no settings, so no secrets.
_ROOT_MARKERS = frozenset((".project-root", ".here"))
_SPECIAL = re.compile(r"[*?\[\]!#\\]")  # characters with a meaning in a line of `.jobignore`
_LARGEST_SHOWN = 5  # number of files in a message
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Pack:
    """A packed folder.

    Attributes:
        data: Content of the tar.gz.
        sha256: SHA-256 of the decompressed tar, in hex; the same on every machine.
        files: Sorted paths in the tar, separated by /.
        identity: SHA-256 of the code that trials run: of all files but job.yaml and additions.
    """

    data: bytes
    sha256: str
    files: tuple[str, ...]
    identity: str = ""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The tar.gz in parts of at most `PART` bytes. There is at least one."""
        return tuple(self.data[start : start + PART] for start in range(0, len(self.data), PART)) or (b"",)


def pack(
    folder: Path,
    packages: Sequence[Path] = (),
    additions: Mapping[str, bytes] = MappingProxyType({}),
    ignored: Sequence[str] = (),
) -> Pack:
    """Return a folder as an archive, without Python's caches, ignored files, and hidden files that may have secrets.

    Args:
        folder: The job's folder. Its `.jobignore` says which files are ignored. A hidden file is packed only if it is empty,
            marks the root of a project, or is named with `!` in `.jobignore`.
        packages: Folders of packages outside of it. Each is packed beside the folder's files, under its own name and with
            its own `.jobignore`.
        additions: Contents of further files, by name.
        ignored: Further lines of the folder's `.jobignore`.

    Raises:
        NotPackedError: A folder contains a link that leads out of it, too many files, or the total size is too large, which
            is checked before files are read.
        InputError: A folder contains a special file, or cannot be read.
    """
    try:
        entries = dict(_walk(folder, ignore_rule(folder, ignored)))  # by name in the archive; of a folder, it ends with /
        for package in packages:
            entries |= {f"{package.name}/{name}": path for name, path in _walk(package, ignore_rule(package))}
        paths = {name: path for name, path in entries.items() if not name.endswith("/")}
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        sizes |= {name: len(content) for name, content in additions.items()}
        total_size = sum(sizes.values())
        if total_size > MAX_UNPACKED:
            raise NotPackedError(_too_large_message(folder, f"{_mib(total_size)}, and {_mib(MAX_UNPACKED)}", sizes))
        files = {
            name: _File(path.read_bytes(), is_executable=bool(path.stat().st_mode & stat.S_IXUSR))
            for name, path in paths.items()
        }
        files |= {name: _File(content) for name, content in additions.items()}
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}; or name it in {IGNORE_FILE}") from error
    names = sorted((*entries, *files))
    # A script may write to a folder that exists, such as one with a `.gitignore` alone, which is hidden and so not packed.
    empty_folders = [name for name, next_name in zip(names, (*names[1:], ""), strict=False) if _is_empty(name, next_name)]
    tar = _tar(files | {name: _File(b"") for name in empty_folders})
    data = gzip.compress(tar, compresslevel=9, mtime=0)
    if len(tar) > MAX_UNPACKED:  # the tar also has the names of the files, which may be very many
        raise NotPackedError(_too_large_message(folder, f"{_mib(len(tar))} as a tar, and {_mib(MAX_UNPACKED)}", sizes))
    if len(data) > MAX_BYTES:
        raise NotPackedError(_too_large_message(folder, f"{_mib(len(data))} packed, and {_mib(MAX_BYTES)}", sizes))
    return Pack(
        data=data,
        sha256=hashlib.sha256(tar).hexdigest(),  # not of `data`: builds of zlib compress the same bytes differently
        files=tuple(sorted(files)),
        identity=_digest_of({name: file for name, file in files.items() if name not in (JOB, *additions)}),
    )


def _digest_of(files: Mapping[str, _File]) -> str:
    """Return the SHA-256 of the names and contents of files, without their modes."""
    digests = {name: hashlib.sha256(files[name].content).hexdigest() for name in sorted(files)}
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def ignored_lines(paths: Iterable[str]) -> list[str]:
    """Return the lines of a `.jobignore` that ignore paths in its folder."""
    return ["/" + _SPECIAL.sub(r"\\\g<0>", path) for path in paths]


def files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder that `pack` packs, by their names; {} if their total size is too large.

    Raises:
        InputError: See `pack`.
    """
    try:
        entries = _walk(folder, ignore_rule(folder))
        paths = {name: path for name, path in entries if not name.endswith("/")}
        size = sum(path.stat().st_size for path in paths.values())
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error
    return paths if size <= MAX_UNPACKED else {}


def _is_empty(name: str, next_name: str) -> bool:
    """Return whether a name is that of a folder without entries, by the next name in the order of all names."""
    return name.endswith("/") and not next_name.startswith(name)


class _File(NamedTuple):
    """A file to pack: its content, and whether it is executable."""

    content: bytes
    is_executable: bool = False


def _tar(files: Mapping[str, _File]) -> bytes:
    """Return a tar that is the same for the same files: sorted, with owner 0 and time 0.

    Args:
        files: Files by their paths. A path that ends with / is that of an empty folder.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            file = files[name]
            info = tarfile.TarInfo(name)  # its owner and its time are 0
            info.size = len(file.content)
            info.mode = 0o755 if file.is_executable else 0o644
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            archive.addfile(info, io.BytesIO(file.content))
    return buffer.getvalue()


def excluded_issues(folder: Path, names: Iterable[str], ignored: Sequence[str] = ()) -> list[Issue]:
    """Return an issue for each requirements file that would not be uploaded with the job.

    Args:
        folder: The job's folder.
        names: Paths of the requirements files in the folder.
        ignored: Further lines of the folder's `.jobignore`.

    Raises:
        InputError: The folder cannot be packed; see `pack`.
    """
    required = list(names)
    if not required:
        return []  # without reading the folder
    packed = {name for name, _ in _walk(folder, ignore_rule(folder, ignored))}
    return [Issue(("requirements",), _exclusion_message(name)) for name in required if name not in packed]


def inclusion_lines(name: str) -> list[str]:
    """Return the lines of a `.jobignore` that include a hidden path: one for each part that starts with a dot.

    Args:
        name: Path of a file or folder in the job's folder. The path of a folder ends in /.
    """
    parts = name.split("/")
    lines = []
    for depth, part in enumerate(parts, start=1):
        if part.startswith("."):
            is_folder = depth < len(parts)
            lines.append(f"!{'/'.join(parts[:depth])}{'/' if is_folder else ''}")
    return lines


def digest(data: bytes) -> str:
    """Return the `Pack.sha256` of packed code.

    The code may be from anyone, so it is decompressed in pieces, and only up to the size limit.

    Raises:
        InputError: The data are not gzip, are truncated, or are larger than `MAX_UNPACKED`.
    """
    tar_hash, size = hashlib.sha256(), 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while piece := file.read(_MIB):
                size += len(piece)
                if size > MAX_UNPACKED:
                    raise InputError(f"the packed code is damaged: it is larger than {_mib(MAX_UNPACKED)}")
                tar_hash.update(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"the packed code is damaged: {error}") from error
    return tar_hash.hexdigest()


def part_name(archive: str, number: int) -> str:
    """Return the name of a part of an archive. The first part has the archive's name."""
    return f"{archive}.{number}" if number else archive


def read(archive: Path) -> bytes:
    """Return the content of an archive whose parts are files in one folder.

    Args:
        archive: Path of the first part.

    Raises:
        OSError: A part cannot be read, or there is none.
    """
    parts = [archive.read_bytes()]
    while (next_part := archive.with_name(part_name(archive.name, len(parts)))).exists():
        parts.append(next_part.read_bytes())
    return b"".join(parts)


def unpack(data: bytes, target: Path, sha256: str = "") -> None:
    """Unpack an archive as a new folder, with all of its files or not at all.

    Args:
        data: Content of the tar.gz.
        target: Folder, which must not exist or be empty.
        sha256: Expected `Pack.sha256`; "" to skip the check.

    Raises:
        InputError: `data` is not a valid archive, has another hash or files outside of `target`, or `target` is not empty.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        # Check the whole archive before writing anything: tarfile accepts a truncated archive.
        tar = _decompress(data)
        if sha256 and hashlib.sha256(tar).hexdigest() != sha256:
            raise tarfile.TarError(f"it differs from the submission, whose SHA-256 is {sha256}")
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
            for member in archive:
                extract(archive, member, scratch)
        scratch.chmod(0o755)
        scratch.replace(target)  # fails if `target` is not empty
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"the packed code for {target} is damaged: {error}") from error
    except OSError as error:
        if target.exists():
            raise InputError(f"{target} already exists and is not empty; remove it first") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _decompress(data: bytes) -> bytes:
    """Return the tar in a tar.gz.

    Raises:
        tarfile.TarError: The tar is too large.
        OSError, EOFError, zlib.error: The data are damaged.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        tar = file.read(MAX_UNPACKED + 1)
    if len(tar) > MAX_UNPACKED:
        raise tarfile.TarError(f"it is larger than {_mib(MAX_UNPACKED)}")
    return tar


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write one file or folder of an archive below `target`.

    The checks are those of tarfile's own filters, which need Python 3.11.4.

    Raises:
        tarfile.TarError: The member is not a file or folder, or is outside of `target`.
    """
    path = target / member.name
    content = archive.extractfile(member) if member.isfile() else None
    if (content is None and not member.isdir()) or ".." in path.parts or not path.is_relative_to(target):
        raise tarfile.TarError(f"{member.name!r} is not a file inside of it")
    if content is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.read())
    path.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)


def ignore_rule(folder: Path, further_lines: Sequence[str] = ()) -> Callable[[str], bool]:
    """Return the rule for a folder: a function that returns whether a path in it is ignored, and so not packed.

    If a path ends with /, it is that of a folder, and patterns for folders apply. Without a `.jobignore`, only caches and
    hidden files that may have secrets are ignored, and what the further lines say.

    Raises:
        InputError: The `.jobignore` of the folder cannot be read, or has invalid lines.
    """
    file = folder / IGNORE_FILE

    def may_have_secrets(name: str) -> bool:
        """Whether a path is a hidden one that could have secrets."""
        return _base_name(name).startswith(".") and not _is_harmless(folder / name)

    has_file = os.path.lexists(file)
    if not has_file and not further_lines:
        return lambda name: _is_cache(name) or may_have_secrets(name)
    lines = [*(_ignore_lines(file) if has_file else ()), *further_lines]
    patterns = _ignore_patterns(file, lines)
    # A hidden file is packed if a line names it, as `!.marker` does. `!*` and `!config/` do not name `config/.env`.
    # As in git, a line with a / before its end is a path from the folder, stored here as "/path". A line without one is a
    # name that matches in every folder.
    negated_lines = [line[1:].strip().rstrip("/") for line in lines if line.startswith("!")]
    named_paths = {f"/{line.lstrip('/')}" if "/" in line else line for line in negated_lines}

    def is_ignored(name: str) -> bool:
        """Whether a path is ignored: as a cache, as a hidden file that may have secrets, or by a pattern."""
        is_named = f"/{name.rstrip('/')}" in named_paths or _base_name(name) in named_paths
        return _is_cache(name) or (may_have_secrets(name) and not is_named) or patterns.match_file(name)

    return is_ignored


def _ignore_patterns(file: Path, lines: Sequence[str]) -> GitIgnoreSpec:
    """Return the patterns of a `.jobignore`.

    Raises:
        InputError: Lines are invalid.
    """
    from pathspec import GitIgnoreSpec  # takes 25 ms, and few jobs have such a file

    invalid = []
    for number, line in enumerate(lines, start=1):
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError as error:
            invalid.append(f"  {file}:{number}: {error}")
    if invalid:
        raise InputError(
            "\n".join([f"{file} has lines that are not valid gitignore patterns; nothing was started", *invalid])
        )
    return GitIgnoreSpec.from_lines(lines)


def _ignore_lines(file: Path) -> list[str]:
    """Return the lines of a `.jobignore`.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start}); nothing was started") from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}; nothing was started") from error


def _walk(folder: Path, is_ignored: Callable[[str], bool]) -> Iterator[tuple[str, Path]]:
    """Yield the relative path and the full path of each file to pack, and of each folder, whose relative path ends with /.

    Links within the folder are followed.

    Raises:
        InputError: The folder contains a link that leads out of it or into a circle, a special file, or too many files.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    root = folder.resolve()
    count = 0
    pending: list[tuple[Path, tuple[Path, ...]]] = [(folder, (root,))]  # folders, each with the real paths above its files
    while pending:
        directory, ancestors = pending.pop()
        for path in sorted(directory.iterdir()):
            name = path.relative_to(folder).as_posix()
            if is_ignored(name):
                continue
            count += 1
            if count > MOST_ENTRIES:
                raise NotPackedError(
                    f"{folder} has more than {MOST_ENTRIES:,} files and folders; name some in {IGNORE_FILE}, or in the "
                    "job's field `links` (`platform explain links`)"
                )
            resolved = Path(os.path.realpath(path))  # does not exist for a circular link
            if path.is_symlink() and (not resolved.is_relative_to(root) or not resolved.exists()):
                direction = "out of the folder" if resolved.exists() else "nowhere"
                raise NotPackedError(
                    f"{path} is a link that leads {direction} ({path.readlink()}); copy the file, or name it in "
                    f"{IGNORE_FILE} or in the job's field `links` (`platform explain links`)"
                )
            if resolved.is_dir():
                if is_ignored(f"{name}/"):  # by a pattern for folders; as in git, its files cannot be included again
                    continue
                if resolved in ancestors:
                    raise InputError(f"{path} is a link to a parent folder; name it in {IGNORE_FILE}")
                pending.append((path, (*ancestors, resolved)))
                yield f"{name}/", path
            elif resolved.is_file():
                yield name, path
            else:
                raise InputError(f"{path} is neither a file nor a folder; name it in {IGNORE_FILE}")


def _exclusion_message(name: str) -> str:
    """Return the message for a requirements file that is not packed, with the lines of `.jobignore` that include it."""
    prefix = f"{name} is not uploaded with the job: "
    if lines := inclusion_lines(name):
        return f"{prefix}it is hidden, or {IGNORE_FILE} excludes it. Add `{'` and `'.join(lines)}` there"
    return f"{prefix}{IGNORE_FILE} excludes it. Change that"


def _is_harmless(path: Path) -> bool:
    """Whether a hidden path is a file without secrets: a file that marks the root of a project, or an empty file.

    An empty file is often needed: `.gitkeep` keeps a folder into which a script writes.
    """
    is_own_file = path.is_file() and not path.is_symlink()
    return is_own_file and (path.name in _ROOT_MARKERS or path.stat().st_size == 0)


def _is_cache(name: str) -> bool:
    """Whether a path is a file or folder with compiled Python code, by its name."""
    return _base_name(name) == "__pycache__" or name.endswith(".pyc")


def _base_name(name: str) -> str:
    """Return the last part of a path. The path of a folder may have a / at its end, which is dropped."""
    return name.rstrip("/").rpartition("/")[2]


def _too_large_message(folder: Path, size_and_limit: str, sizes: dict[str, int]) -> str:
    """Return the message for code that is too large.

    The message lists the largest files, and a folder of many files that has more than half of the size. It has the command
    that leaves this folder out, or else the largest file.

    Args:
        folder: The job's folder.
        size_and_limit: Size and limit in words: "70 MiB, and 64 MiB".
        sizes: Size of each file in bytes, by its path.
    """
    largest_files = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:_LARGEST_SHOWN]
    lines = [f"  {size / 1024:10,.0f} KiB  {name}" for name, size in largest_files]
    folder_sizes = collections.Counter[str]()  # of the top-level folders; "" for the files beside them
    for name, size in sizes.items():
        top_folder, slash, _ = name.partition("/")
        folder_sizes[f"{top_folder}/" if slash else ""] += size
    largest_folder, folder_size = folder_sizes.most_common(1)[0]
    file_count = sum(name.startswith(largest_folder) for name in sizes)
    largest = largest_files[0][0]
    if largest_folder and folder_size > sum(sizes.values()) / 2 and file_count > _LARGEST_SHOWN:
        largest = largest_folder
        lines.append(f"  {folder_size / 1024:10,.0f} KiB  {largest_folder} in all, with {file_count:,} files")
    head = f"{folder} is {size_and_limit} is the limit. Its largest files:"
    command = f"echo {shlex.quote(largest)} >> {shlex.quote(str(folder / IGNORE_FILE))}"
    tail = f"Leave out what the job does not need: `{command}`."
    link = largest.rstrip("/")
    is_in_folder = (folder / link).exists()  # and not in a package
    if is_in_folder:
        tail += (
            f" For data that trials read there, write `links: [{link}]` in {JOB}, or `--set 'links=[{link}]'` without one: "
            "trials get a link to it."
        )
    return "\n".join([head, *lines, tail])


def _mib(size: int) -> str:
    """Return a number of bytes as MiB, for a message: "1.5 MiB", "64 MiB"."""
    return f"{size / _MIB:,.1f} MiB".replace(".0 ", " ")
