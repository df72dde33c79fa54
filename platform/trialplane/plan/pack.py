"""Packs a job's folder as one small archive with a reproducible hash, and unpacks it.

The archive is stored in a ConfigMap, which Kubernetes limits to 1 MiB; data belongs elsewhere. Two folders with the
same files give the same tar whatever their times, owners and umask, so its hash names the code of a run.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from trialplane.errors import InputError

IGNORE_FILE = ".jobignore"
MAX_BYTES = 2**20
_LARGEST_SHOWN = 5


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


def pack(folder: Path) -> Pack:
    """Packs a folder, without hidden files, Python's caches and what `.jobignore` names.

    Raises:
        InputError: the folder holds a link that leaves it or something not a file, cannot be read, or is too large.
    """
    patterns = _patterns(folder)
    try:
        files = {name: (path.read_bytes(), path.stat().st_mode & 0o100) for name, path in _walk(folder, patterns)}
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
    if len(data) > MAX_BYTES:
        raise InputError(_too_large(folder, len(data), {name: len(content) for name, (content, _) in files.items()}))
    # Of the tar, not of `data`: builds of zlib differ in how they compress the same bytes.
    return Pack(data, hashlib.sha256(buffer.getvalue()).hexdigest(), tuple(sorted(files)))


def digest(data: bytes) -> str:
    """The `Pack.sha256` of packed code, which may come from anybody: read piece by piece, however large the tar inside is.

    Raises:
        InputError: it is not gzip, or was cut off.
    """
    found, inflate = hashlib.sha256(), zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        while data and not inflate.eof:
            found.update(inflate.decompress(data, MAX_BYTES))
            data = inflate.unconsumed_tail
        found.update(inflate.flush())
    except zlib.error as error:
        raise InputError(f"the packed code is damaged: {error}") from error
    if not inflate.eof:
        raise InputError("the packed code is damaged: it ends too early")
    return found.hexdigest()


def unpack(data: bytes, target: Path) -> None:
    """Unpacks into `target`, which must not exist or be empty; it appears whole or not at all.

    Raises:
        InputError: `data` is not such an archive, would write outside of `target`, or `target` is in use.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        # Check all of it before writing anything: tarfile accepts a truncated archive.
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data)), mode="r:") as archive:
            for member in archive:
                _extract(archive, member, scratch)
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


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Writes one file below `target`; tarfile's own filters are newer than Python 3.11.0."""
    place = target / member.name
    content = archive.extractfile(member) if member.isfile() else None
    if content is None or ".." in place.parts or not place.is_relative_to(target):
        raise tarfile.TarError(f"{member.name!r} is no file inside of it")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.read())
    place.chmod(0o755 if member.mode & 0o100 else 0o644)


def _patterns(folder: Path) -> list[str]:
    file = folder / IGNORE_FILE
    if not os.path.lexists(file):
        return []
    if not file.is_file():  # reading a pipe may block forever
        raise InputError(f"{file} is no file; nothing was started")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start}); nothing was started") from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}; nothing was started") from error
    lines = (line.strip() for line in text.splitlines())
    return [line.rstrip("/") for line in lines if line and not line.startswith("#")]


def _walk(folder: Path, patterns: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Every file that is packed, by its path inside; links are followed while they stay in the folder."""
    if not folder.is_dir():  # also a link in a circle, which `resolve` refuses
        raise InputError(f"{folder} is no folder")
    root = folder.resolve()
    todo: list[tuple[Path, tuple[Path, ...]]] = [(folder, (root,))]
    while todo:
        here, above = todo.pop()
        for path in sorted(here.iterdir()):
            name = path.relative_to(folder).as_posix()
            if _is_left_out(path.name, name, patterns):
                continue
            try:
                real = path.resolve()
            except (OSError, RuntimeError) as error:  # which of them depends on the version of Python
                raise InputError(f"{path} is a link in a circle; name it in {IGNORE_FILE}") from error
            if path.is_symlink() and (not real.is_relative_to(root) or not real.exists()):
                where = "to nothing" if not real.exists() else "out of the folder"
                message = f"{path} is a link {where} ({path.readlink()}); copy the file, or name it in {IGNORE_FILE}"
                raise InputError(message)
            if real.is_dir():
                if real in above:
                    raise InputError(f"{path} is a link to a folder above it; name it in {IGNORE_FILE}")
                todo.append((path, (*above, real)))
            elif real.is_file():
                yield name, path
            else:
                raise InputError(f"{path} is neither a file nor a folder; name it in {IGNORE_FILE}")


def _is_left_out(word: str, name: str, patterns: Sequence[str]) -> bool:
    if word.startswith(".") or word == "__pycache__" or word.endswith(".pyc"):
        return True
    return any(fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(word, pattern) for pattern in patterns)


def _too_large(folder: Path, size: int, sizes: dict[str, int]) -> str:
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:_LARGEST_SHOWN]
    lines = [f"  {count / 1024:10,.0f} KiB  {name}" for name, count in largest]
    head = f"{folder} is {size / 1024:,.0f} KiB packed, and {MAX_BYTES // 1024:,} KiB is the limit. Its largest files:"
    tail = f"Name what the job does not need in {folder / IGNORE_FILE}, and keep data outside, by its path in params."
    return "\n".join([head, *lines, tail])
