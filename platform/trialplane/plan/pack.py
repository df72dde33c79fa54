"""Packs a job's folder and its packages as one archive with a reproducible hash, and unpacks it.

The archive travels in ConfigMaps, which Kubernetes limits to 1 MiB each: in as many as it takes, up to a bound; data
belongs elsewhere. Two folders with the same files give the same tar whatever their times, owners and umask, so its hash
names the code of a run, and whoever unpacks it compares.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from trialplane.errors import InputError, Issue

IGNORE_FILE = ".jobignore"
PART = 2**20  # bytes of one ConfigMap
MAX_BYTES = 8 * PART  # packed; all of it is kept in etcd while the run lives, and in the ledger
MOST_ENTRIES = 20_000  # files and folders; links can make any number of few
MAX_UNPACKED = 64 * 2**20  # of the tar
_LARGEST_SHOWN = 5
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Pack:
    """A packed folder.

    Attributes:
        data: the tar.gz.
        sha256: of the tar inside, in hex; the same on every machine.
        files: paths inside, sorted, with / between.
    """

    data: bytes
    sha256: str
    files: tuple[str, ...]

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The tar.gz in pieces of at most `PART` bytes."""
        return tuple(self.data[at : at + PART] for at in range(0, len(self.data), PART)) or (b"",)


def pack(folder: Path, packages: Sequence[Path] = ()) -> Pack:
    """Pack a folder, without Python's caches, what `.jobignore` ignores, and hidden files that it does not name with `!`.

    Args:
        folder: of the job.
        packages: folders outside of it that are packed beside its files, each under its own name, and each by a
            `.jobignore` of its own.

    Raises:
        InputError: one of the folders holds a link that leaves it or something not a file, cannot be read, or all of it is
            too large. That is found before any file is read.
    """
    try:
        found = dict(_walk(folder, _ignored(folder)))
        for package in packages:
            found |= {f"{package.name}/{name}": path for name, path in _walk(package, _ignored(package))}
        sizes = {name: path.stat().st_size for name, path in found.items()}
        if sum(sizes.values()) > MAX_UNPACKED:
            raise InputError(_too_large(folder, f"{_mib(sum(sizes.values()))}, and {_mib(MAX_UNPACKED)}", sizes))
        files = {name: (path.read_bytes(), path.stat().st_mode & 0o100) for name, path in found.items()}
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}; or name it in {IGNORE_FILE}") from error
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            content, executable = files[name]
            info = tarfile.TarInfo(name)  # owner 0, time 0
            info.size = len(content)
            info.mode = 0o755 if executable else 0o644
            archive.addfile(info, io.BytesIO(content))
    data = gzip.compress(buffer.getvalue(), compresslevel=9, mtime=0)
    if len(buffer.getvalue()) > MAX_UNPACKED:  # by the names of very many files
        raise InputError(_too_large(folder, f"{_mib(len(buffer.getvalue()))} as a tar, and {_mib(MAX_UNPACKED)}", sizes))
    if len(data) > MAX_BYTES:
        raise InputError(_too_large(folder, f"{_mib(len(data))} packed, and {_mib(MAX_BYTES)}", sizes))
    # Of the tar, not of `data`: builds of zlib differ in how they compress the same bytes.
    return Pack(data, hashlib.sha256(buffer.getvalue()).hexdigest(), tuple(sorted(files)))


def left_out(folder: Path, names: Iterable[str]) -> list[Issue]:
    """Issues of files with a job's requirements that would not travel with it, so that its slots could not read them.

    Args:
        folder: of the job.
        names: of the files, below it.

    Raises:
        InputError: as of `pack`.
    """
    if not (wanted := list(names)):
        return []
    there = {name for name, _ in _walk(folder, _ignored(folder))}
    return [Issue(("requirements",), _why_left_out(name)) for name in wanted if name not in there]


def lines_for(name: str) -> list[str]:
    """The lines of a `.jobignore` that let a hidden path travel: one for each part that begins with a dot.

    Args:
        name: of a file or folder, from the job's folder; that of a folder ends in /.
    """
    parts = name.split("/")
    ends = [end for end, part in enumerate(parts, start=1) if part.startswith(".")]
    return [f"!{'/'.join(parts[:end])}{'/' * (end < len(parts))}" for end in ends]


def digest(data: bytes) -> str:
    """The `Pack.sha256` of packed code, which may come from anybody: read piece by piece, and no further than the limit.

    Raises:
        InputError: it is not gzip, was cut off, or is larger than `MAX_UNPACKED`.
    """
    found, size = hashlib.sha256(), 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while piece := file.read(_MIB):
                size += len(piece)
                if size > MAX_UNPACKED:
                    raise InputError(f"the packed code is damaged: it is larger than {_mib(MAX_UNPACKED)}")
                found.update(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"the packed code is damaged: {error}") from error
    return found.hexdigest()


def part_name(archive: str, number: int) -> str:
    """The name of a piece of an archive; the first has the archive's own."""
    return f"{archive}.{number}" if number else archive


def read(archive: Path) -> bytes:
    """An archive whose pieces lie beside it.

    Raises:
        OSError: one cannot be read, or there is none.
    """
    found = [archive.read_bytes()]
    while (more := archive.with_name(part_name(archive.name, len(found)))).exists():
        found.append(more.read_bytes())
    return b"".join(found)


def unpack(data: bytes, target: Path, sha256: str = "") -> None:
    """Unpack into `target`, which must not exist or be empty; it appears whole or not at all.

    Args:
        data: the tar.gz.
        target: the folder.
        sha256: what `Pack.sha256` of it must be; "" where that is not known.

    Raises:
        InputError: `data` is not such an archive, has another hash, would write outside of `target`, or `target` is in use.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        # Check all of it before writing anything: tarfile accepts a truncated archive.
        tar = _decompressed(data)
        if sha256 and hashlib.sha256(tar).hexdigest() != sha256:
            raise tarfile.TarError(f"it is not that of the submission, whose SHA-256 is {sha256}")
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
            for member in archive:
                extract(archive, member, scratch)
        scratch.chmod(0o755)
        scratch.replace(target)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"the packed code for {target} is damaged: {error}") from error
    except OSError as error:
        if target.exists():
            raise InputError(f"{target} already exists and is not empty; remove it first") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _decompressed(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        tar = file.read(MAX_UNPACKED + 1)
    if len(tar) > MAX_UNPACKED:
        raise tarfile.TarError(f"it is larger than {_mib(MAX_UNPACKED)}")
    return tar


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write one file below `target`; tarfile's own filters are newer than Python 3.11.0.

    Raises:
        tarfile.TarError: `member` is no file, or lies outside of `target`.
    """
    place = target / member.name
    content = archive.extractfile(member) if member.isfile() else None
    if content is None or ".." in place.parts or not place.is_relative_to(target):
        raise tarfile.TarError(f"{member.name!r} is no file inside of it")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.read())
    place.chmod(0o755 if member.mode & 0o100 else 0o644)


def _ignored(folder: Path) -> Callable[[str], bool]:
    """Whether a path in a folder stays behind, by its name or by the folder's `.jobignore`; that of a folder ends in /."""
    file = folder / IGNORE_FILE
    if not os.path.lexists(file):
        return lambda name: _is_cache(name) or _is_hidden(name)
    if not file.is_file():  # reading a pipe may block forever
        raise InputError(f"{file} is no file; nothing was started")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start}); nothing was started") from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}; nothing was started") from error
    from pathspec import GitIgnoreSpec  # 25 ms, for the jobs that have such a file

    wrong = []
    for number, line in enumerate(lines, start=1):
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError as error:
            wrong.append(f"  {file}:{number}: {error}")
    if wrong:
        raise InputError("\n".join([f"{file} has lines that gitignore's syntax does not know; nothing was started", *wrong]))
    ignored = GitIgnoreSpec.from_lines(lines)
    # A hidden file travels if a line names just it, `!.project-root`: neither `!*` nor `!config/` takes a `.env` along.
    # As in git, a line with a / before its end means one path, and any other whatever has that name.
    lifted = [line[1:].strip().rstrip("/") for line in lines if line.startswith("!")]
    named = {f"/{line.lstrip('/')}" if "/" in line else line for line in lifted}

    def is_ignored(name: str) -> bool:
        is_named = not named.isdisjoint({f"/{name.rstrip('/')}", _last(name)})
        return _is_cache(name) or (_is_hidden(name) and not is_named) or ignored.match_file(name)

    return is_ignored


def _walk(folder: Path, is_ignored: Callable[[str], bool]) -> Iterator[tuple[str, Path]]:
    """Every file that is packed, by its path inside; links are followed while they stay in the folder."""
    if not folder.is_dir():  # also a link in a circle, which `resolve` refuses
        raise InputError(f"{folder} is no folder")
    root = folder.resolve()
    seen = 0
    todo: list[tuple[Path, tuple[Path, ...]]] = [(folder, (root,))]
    while todo:
        here, above = todo.pop()
        for path in sorted(here.iterdir()):
            name = path.relative_to(folder).as_posix()
            if is_ignored(name):
                continue
            seen += 1
            if seen > MOST_ENTRIES:
                raise InputError(f"{folder} has more than {MOST_ENTRIES:,} files and folders; name some in {IGNORE_FILE}")
            try:
                real = path.resolve()
            except (OSError, RuntimeError) as error:  # which of them depends on the version of Python
                raise InputError(f"{path} is a link in a circle; name it in {IGNORE_FILE}") from error
            if path.is_symlink() and (not real.is_relative_to(root) or not real.exists()):
                where = "to nothing" if not real.exists() else "out of the folder"
                message = f"{path} is a link {where} ({path.readlink()}); copy the file, or name it in {IGNORE_FILE}"
                raise InputError(message)
            if real.is_dir():
                if is_ignored(f"{name}/"):  # as in git, nothing below it can be named again
                    continue
                if real in above:
                    raise InputError(f"{path} is a link to a folder above it; name it in {IGNORE_FILE}")
                todo.append((path, (*above, real)))
            elif real.is_file():
                yield name, path
            else:
                raise InputError(f"{path} is neither a file nor a folder; name it in {IGNORE_FILE}")


def _why_left_out(name: str) -> str:
    why = f"{name} does not travel with the job: "
    if lines := lines_for(name):
        return f"{why}it is hidden, or {IGNORE_FILE} leaves it out; let it travel by `{'` and `'.join(lines)}` there"
    return f"{why}{IGNORE_FILE} leaves it out; let it travel"


def _is_hidden(name: str) -> bool:
    return _last(name).startswith(".")


def _is_cache(name: str) -> bool:
    return _last(name) == "__pycache__" or name.endswith(".pyc")


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _too_large(folder: Path, size: str, sizes: dict[str, int]) -> str:
    """What makes it large: the largest files, and a folder that has more than half of it in many."""
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:_LARGEST_SHOWN]
    lines = [f"  {count / 1024:10,.0f} KiB  {name}" for name, count in largest]
    folders = collections.Counter[str]()
    for name, count in sizes.items():
        folders[name.partition("/")[0] + "/" if "/" in name else ""] += count
    (name, most), *_ = folders.most_common(1)
    files = sum(each.startswith(name) for each in sizes)
    if name and most > sum(sizes.values()) / 2 and files > _LARGEST_SHOWN:
        lines.append(f"  {most / 1024:10,.0f} KiB  {name} in all, with {files:,} files")
    head = f"{folder} is {size} is the limit. Its largest files:"
    tail = f"Name what the job does not need in {folder / IGNORE_FILE}, and keep data outside, by its path in params."
    return "\n".join([head, *lines, tail])


def _mib(count: int) -> str:
    return f"{count / _MIB:,.1f} MiB".replace(".0 ", " ")
