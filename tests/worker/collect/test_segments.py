"""Results as files in shared memory: written once, read without a copy, names used again, no room and garbage said.

Not checked: how fast that is (tests/benchmarks), and who makes and removes the folders (`memory`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trialplane import errors
from trialplane.policies import transport
from trialplane.worker.collect import segments


@pytest.fixture
def writer(tmp_path: Path) -> segments.Writer:
    return segments.Writer(tmp_path)


def game(moves: int, value: int = 0) -> dict[str, Any]:
    return {"states": np.full((moves, 64), value, dtype=np.float32), "moves": moves}


def written_elsewhere(folder: Path) -> str:
    code = (
        "import sys, numpy as np\n"
        "from trialplane.worker.collect import segments\n"
        "print(segments.Writer(sys.argv[1]).write({'x': np.arange(1000)})[0])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    return ended.stdout.strip()


def test_what_is_written_is_read(writer: segments.Writer) -> None:
    path, size = writer.write(game(10, 7))
    packed = segments.read(path)
    assert packed.nbytes == size <= Path(path).stat().st_size
    back = transport.unpack(packed)
    assert back["moves"] == 10
    np.testing.assert_array_equal(back["states"], game(10, 7)["states"])
    assert not back["states"].flags.writeable


def test_another_process_reads_it_after_the_writer_has_gone(tmp_path: Path) -> None:
    path = written_elsewhere(tmp_path)
    np.testing.assert_array_equal(transport.unpack(segments.read(path))["x"], np.arange(1000))


def test_a_packed_tree_is_copied_as_it_is(writer: segments.Writer) -> None:
    packed = transport.pack(game(3, 1))
    path, size = writer.copy(packed)
    assert size == packed.nbytes
    np.testing.assert_array_equal(segments.read(path), packed)


def test_a_name_is_used_again_only_after_its_release(writer: segments.Writer) -> None:
    first, _ = writer.write(game(100, 1))
    second, _ = writer.write(game(100, 2))
    assert first != second
    page = Path(first).stat().st_ino
    writer.release(first)
    third, size = writer.write(game(90, 3))
    assert third == first
    assert Path(third).stat().st_ino == page
    back = segments.read(third)
    assert back.nbytes == size
    np.testing.assert_array_equal(transport.unpack(back)["states"], game(90, 3)["states"])
    np.testing.assert_array_equal(transport.unpack(segments.read(second))["states"], game(100, 2)["states"])


def test_a_larger_result_takes_the_place_of_a_smaller(writer: segments.Writer, tmp_path: Path) -> None:
    path, _ = writer.write(game(10))
    writer.release(path)
    path, size = writer.write(game(1000, 5))
    assert Path(path).stat().st_size >= size
    assert [file.name for file in tmp_path.iterdir()] == [Path(path).name]


def test_a_giant_does_not_keep_its_memory(writer: segments.Writer, tmp_path: Path) -> None:
    path, _ = writer.copy(np.zeros(100 << 20, dtype=np.uint8))
    writer.release(path)
    writer.write(game(10))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1 << 20


def test_a_reader_says_when_nothing_refers_to_it_any_longer(writer: segments.Writer) -> None:
    path, _ = writer.write({"x": np.arange(10), "y": [np.arange(3), np.arange(3)]})
    said: list[str] = []
    tree = transport.unpack(segments.read(path, lambda: said.append(path)))
    kept = tree["y"][1][1:]
    del tree
    assert said == []
    del kept
    assert said == [path]


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    one = segments.Writer(tmp_path)
    path, _ = one.write(game(5, 1))
    assert written_elsewhere(tmp_path) != path
    np.testing.assert_array_equal(transport.unpack(segments.read(path))["states"], game(5, 1)["states"])


class TestNoRoom:
    """A result is never written into memory that is not there, which would kill the process."""

    def test_a_result_over_half_of_what_is_left_goes_to_the_disk(self, tmp_path: Path, monkeypatch: Any) -> None:
        free = dict.fromkeys([tmp_path], 1000)
        monkeypatch.setattr(segments.shutil, "disk_usage", lambda place: _Usage(free.get(place, 1 << 30)))
        writer = segments.Writer(tmp_path, tmp_path / "disk" / "spare")
        path, _ = writer.write(game(10, 4))
        assert Path(path).parent == tmp_path / "disk" / "spare"
        np.testing.assert_array_equal(transport.unpack(segments.read(path))["states"], game(10, 4)["states"])
        free[tmp_path] = 1 << 30
        assert Path(writer.write(game(10, 4))[0]).parent == tmp_path

    def test_without_one_it_is_refused_in_words(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setattr(segments.shutil, "disk_usage", lambda place: _Usage(1_000_000))
        with pytest.raises(
            errors.TransportError, match=r"there is no room for a result of 1\.0 MB: 1 MB free in .*resources\.shm"
        ):
            segments.Writer(tmp_path).copy(np.zeros(1_000_000, dtype=np.uint8))
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_the_system_refuses_is_not_left(self, tmp_path: Path) -> None:
        """As a full disk refuses it: here by the process's own limit on files, which says EFBIG."""
        code = (
            "import resource, signal, sys, numpy as np\n"
            "from trialplane import errors\n"
            "from trialplane.worker.collect import segments\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
            "writer = segments.Writer(sys.argv[1], sys.argv[1])\n"
            "writer.write({'x': np.zeros(1000)})\n"
            "try:\n"
            "    writer.write({'x': np.zeros(1 << 20)})\n"
            "except errors.TransportError as error:\n"
            "    print(error)\n"
        )
        ended = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
        assert "there is no room for a result of 8.4 MB" in ended.stdout
        assert len(list(tmp_path.iterdir())) == 1

    def test_a_writer_whose_folder_was_removed_makes_no_new_one(self, tmp_path: Path) -> None:
        """The slot removes it when the trial has ended; nobody would remove what came after."""
        with pytest.raises(FileNotFoundError):
            segments.Writer(tmp_path / "gone").write(game(1))
        assert not (tmp_path / "gone").exists()


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"cannot be read"),
        (b"short", r"5 bytes are too few for a packed result"),
        (os.urandom(7) + b"\x7f" + os.urandom(7) + b"\x7f" + bytes(100), r"was truncated|its header would have"),
        (bytes(200), r"not a packed result"),
    ],
)
def test_garbage_is_named_with_its_file(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "garbage"
    file.write_bytes(content)
    with pytest.raises(errors.TransportError, match=f"garbage.*({said})"):
        transport.unpack(segments.read(file))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.TransportError, match="nothing cannot be read"):
        segments.read(tmp_path / "nothing")


def test_reading_copies_nothing(writer: segments.Writer) -> None:
    """64 MiB are mapped: the process's own memory does not grow by them."""
    path, size = writer.copy(_packed_of(64 << 20))
    before = _anonymous()
    tree = transport.unpack(segments.read(path))
    assert int(tree["x"].sum()) == 0
    assert _anonymous() - before < size // 4


def _packed_of(size: int) -> Any:
    return transport.pack({"x": np.zeros(size, dtype=np.uint8)})


def _anonymous() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise AssertionError("smaps_rollup has no such line")
