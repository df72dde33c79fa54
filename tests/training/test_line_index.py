"""The index of a text: found again, built by one process while others wait, taken over from a killed one, put elsewhere.

Not checked: what is in it (test_lines.py), how fast it is built (tests/benchmarks).
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from trialplane import errors
from trialplane.training import building, process
from trialplane.training.lines import LineDataset, scan
from trialplane.training.lines import header as headers
from trialplane.training.lines import index as line_index
from trialplane.wire import env

# Opens a dataset when it is told to, and says how many lines it has and whether it built the index.
OPENS = """
import sys
from trialplane.training.lines import scan
from trialplane.training.lines import LineDataset
write, built = scan.write, []
scan.write = lambda *args, **options: built.append(1) or write(*args, **options)
print("ready", flush=True)
sys.stdin.readline()
print(len(LineDataset(sys.argv[1])), len(built))
"""
# Begins to build an index and never ends.
HANGS = """
import signal, sys
from trialplane.training.lines import scan
from trialplane.training.lines import LineDataset
def write(file, text, **options):
    file.write(b"half of it")
    file.flush()
    print("building", flush=True)
    signal.pause()
scan.write = write
LineDataset(sys.argv[1])
"""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text("one\ntwo\n\nthree\n")
    return file


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by a path for each index that is built."""
    built: list[str] = []
    write = scan.write

    def counted(file, text, **options):  # type: ignore[no-untyped-def]
        built.append(text.path)
        return write(file, text, **options)

    monkeypatch.setattr(scan, "write", counted)
    return built


def start(program: str, text: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(text)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_it_is_built_once_and_lies_beside_the_text(text: Path, builds: list[str]) -> None:
    for _ in range(3):
        assert len(LineDataset(text)) == 3
    assert len(builds) == 1
    assert names(text.parent) == [".corpus.txt.skip.lines", "corpus.txt"]
    LineDataset(text, empty="keep")
    LineDataset(text.parent / ".." / text.parent.name / "corpus.txt", max_samples=1)
    assert len(builds) == 2


@pytest.mark.parametrize("how", ["longer", "newer", "in place"])
def test_the_index_of_a_changed_text_is_not_used(text: Path, builds: list[str], how: str) -> None:
    LineDataset(text)
    before = text.stat()
    text.write_text("one\ntwo\n\nthree\nfour\n" if how == "longer" else "o\ne\ntwo\n\nthree\n")
    if how == "in place":
        os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert len(LineDataset(text)) == 4
    assert len(builds) == 2


@pytest.mark.parametrize("damage", [b"", b"{}", b"\0" * 5000, b'{"version": 0}'])
def test_a_damaged_index_is_built_again(text: Path, builds: list[str], damage: bytes) -> None:
    LineDataset(text)
    text.with_name(".corpus.txt.skip.lines").write_bytes(damage)
    assert [row["text"] for row in LineDataset(text)] == ["one", "two", "three"]
    assert len(builds) == 2


def test_a_cut_index_is_built_again(text: Path, builds: list[str]) -> None:
    LineDataset(text)
    index = text.with_name(".corpus.txt.skip.lines")
    index.write_bytes(index.read_bytes()[:-1])
    assert len(LineDataset(text)) == 3
    assert len(builds) == 2


def test_of_many_that_come_at_once_one_builds(text: Path) -> None:
    openers = [start(OPENS, text) for _ in range(4)]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    said = sorted(opener.communicate(timeout=300)[0] for opener in openers)
    assert said == ["3 0\n", "3 0\n", "3 0\n", "3 1\n"]
    assert names(text.parent) == [".corpus.txt.skip.lines", "corpus.txt"]


def test_a_killed_builder_is_taken_over(text: Path) -> None:
    killed, waiting = start(HANGS, text), start(OPENS, text)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "building\n"
    assert waiting.stdin is not None
    waiting.stdin.write("go\n")
    waiting.stdin.flush()
    assert not text.with_name(".corpus.txt.skip.lines").exists()
    killed.send_signal(signal.SIGKILL)
    assert waiting.communicate(timeout=300)[0] == "ready\n3 1\n"
    assert names(text.parent) == [".corpus.txt.skip.lines", "corpus.txt"], "what it left is swept up"
    killed.communicate()


def test_the_lock_is_held_while_it_is_built(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that comes meanwhile does not get it."""
    tries = f"""
import fcntl
with open({str(text.with_name(".corpus.txt.skip.lines.lock"))!r}) as lock:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""
    write, ended = scan.write, []

    def while_building(file, text, **options):  # type: ignore[no-untyped-def]
        ended.append(subprocess.run([sys.executable, "-c", tries], capture_output=True, text=True, check=False))
        return write(file, text, **options)

    monkeypatch.setattr(scan, "write", while_building)
    LineDataset(text)
    assert "BlockingIOError" in ended[0].stderr


def test_who_waited_for_a_lock_that_was_removed_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two could build at once: one with the old file's lock, one with the new one's."""
    lock, flock, asked = tmp_path / "made.lock", fcntl.flock, []

    def after_its_holder_ended(handle: BinaryIO, operation: int) -> None:
        asked.append(operation)
        if len(asked) == 1:
            lock.unlink()
        flock(handle, operation)

    monkeypatch.setattr(building.fcntl, "flock", after_its_holder_ended)
    with building.lock(tmp_path / "made"), lock.open() as another:
        assert len(asked) == 2
        with pytest.raises(BlockingIOError):
            flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_where_the_text_cannot_be_written_beside_it_goes_to_the_cache(
    text: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, builds: list[str]
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(env.CACHE, str(cache))
    refuse_writing(text.parent, monkeypatch)
    for _ in range(2):
        assert len(LineDataset(text)) == 3
    assert len(builds) == 1
    assert names(text.parent) == ["corpus.txt"]
    (index,) = (cache / "lines").iterdir()
    assert index.name.startswith("corpus.txt.")


def test_a_named_cache_holds_it_and_nothing_else_does(text: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("cache") / "deep" / "er"
    twin = text.with_name("folder") / "corpus.txt"
    twin.parent.mkdir()
    twin.write_text("another\n")
    assert len(LineDataset(text, cache=cache)) == 3
    assert len(LineDataset(twin, cache=cache)) == 1
    assert names(text.parent) == ["corpus.txt", "folder"]
    assert len(names(cache)) == 2


def test_where_it_can_be_written_nowhere_the_message_says_so(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writing(text.parent, monkeypatch)
    monkeypatch.setenv(env.CACHE, "/proc/none")
    with pytest.raises(errors.CacheError, match=r"index of .*corpus\.txt .*Read-only.*; /proc/none/lines: .*cache=FOLDER"):
        LineDataset(text)


def test_a_full_disk_leaves_nothing_half_written(text: Path) -> None:
    """A limit on the size of files fails the same call in the same place as a full disk."""
    text.write_text("line\n" * 10_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(errors.CacheError, match="File too large"):
            LineDataset(text, cache=text.parent / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(text.parent / "cache") == []
    assert len(LineDataset(text, cache=text.parent / "cache")) == 10_000


def test_a_text_that_grows_while_it_is_read_is_refused(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = scan.write

    def grows(file, facts, **options):  # type: ignore[no-untyped-def]
        with text.open("a") as more:
            more.write("more\n")
        return write(file, facts, **options)

    monkeypatch.setattr(scan, "write", grows)
    with pytest.raises(errors.DataError, match=r"corpus\.txt has changed since"):
        LineDataset(text)
    assert names(text.parent) == ["corpus.txt"]


def test_large_files_have_wide_numbers(text: Path) -> None:
    """A sparse file of over 4 GiB would be all NUL bytes, so the numbers are looked at in a header that says 8."""
    LineDataset(text)
    index = text.with_name(".corpus.txt.skip.lines")
    header = headers.read_header(index)
    assert header is not None
    assert header.width == 4
    numbers = memoryview(index.read_bytes())[line_index.HEADER_SIZE :].cast("I").tolist()
    assert numbers == [0, 4, 8, 15]
    with index.open("wb") as file:
        headers.write_header(file, line_index.Header(**{**vars(header), "width": 8}))
        for number in numbers:
            file.write(number.to_bytes(8, "little"))
    assert [row["text"] for row in LineDataset(text)] == ["one", "two", "three"]


def test_threads_end_with_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No fork survives one."""
    monkeypatch.setattr(scan, "SPAN", 1000)
    monkeypatch.setattr(process, "cores", lambda: 3)
    file = tmp_path / "corpus.txt"
    file.write_text("line\n" * 10_000)
    pools: list[futures.Executor] = []  # one that nobody holds ends its threads

    def held_pool(*arguments: Any) -> futures.Executor:
        pools.append(futures.ThreadPoolExecutor(*arguments))
        return pools[-1]

    monkeypatch.setattr(scan, "futures", SimpleNamespace(Future=futures.Future, ThreadPoolExecutor=held_pool))
    before = set(threading.enumerate())  # the kernel lists a thread for a moment longer than `join` waits
    dataset = LineDataset(file)
    assert len(dataset.content) == 64 and pools
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("quota", "count"), [("150000 100000", 2), ("max 100000", 64), ("50000 100000", 1), ("", 64)])
def test_cores_are_those_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    (tmp_path / "cpu.max").write_text(quota)
    assert process.cores(tmp_path / "cpu.max") == count
    assert process.cores(tmp_path / "none") == 64


def refuse_writing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a read-only mount does, also for root."""
    lock: Callable[[Path], object] = building.lock

    def refusing(target: Path) -> object:
        if target.parent == folder:
            raise OSError(30, "Read-only file system")
        return lock(target)

    monkeypatch.setattr(building, "lock", refusing)
