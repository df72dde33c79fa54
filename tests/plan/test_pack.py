"""Packing a job's folder: the same content is the same hash, what is left out, what is refused, and back again.

Does not check how the archive reaches a pod.
"""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from trialplane.errors import InputError
from trialplane.plan import pack


def fill(folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("def run(ctx): ...\n")
    (folder / "data" / "tiny.csv").write_text("text,label\n")
    (folder / "job.yaml").write_text("kind: hpo\n")
    (folder / "größe.txt").write_text("ü")
    return folder


def test_same_content_same_hash(tmp_path: Path) -> None:
    one = fill(tmp_path / "one")
    old = os.umask(0o077)
    try:
        two = fill(tmp_path / "elsewhere" / "two")
    finally:
        os.umask(old)
    for path in two.rglob("*"):
        os.utime(path, (1, 1))
    first, second = pack.pack(one), pack.pack(two)
    assert first == second
    assert first.files == ("data/tiny.csv", "größe.txt", "job.yaml", "train.py")
    (two / "train.py").write_text("def run(ctx): pass\n")
    assert pack.pack(two).sha256 != first.sha256


def test_entries_carry_nothing_of_this_machine(tmp_path: Path) -> None:
    (fill(tmp_path / "one") / "tool.sh").touch(mode=0o700)
    with tarfile.open(fileobj=io.BytesIO(pack.pack(tmp_path / "one").data)) as archive:
        entries = archive.getmembers()
    assert {(entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries} == {(0, 0, 0, "", "")}
    assert {entry.name: entry.mode for entry in entries if entry.name in ("tool.sh", "train.py")} == {
        "tool.sh": 0o755,
        "train.py": 0o644,
    }


def test_what_is_left_out(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    whole = pack.pack(folder)
    for name in (".env", ".git/config", "__pycache__/train.pyc", "data/old.pyc", "out/model.bin", "a.log"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".jobignore").write_text("# results\nout/\n\n*.log\n")
    assert pack.pack(folder) == whole
    (folder / ".jobignore").write_text("data/*\n*.txt\nout\n*.log")
    assert pack.pack(folder).files == ("job.yaml", "train.py")


def test_links(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    (folder / "copy.py").symlink_to("train.py")
    assert "copy.py" in pack.pack(folder).files
    (folder / "secret").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match=r"secret is a link out of the folder \(/etc/passwd\)"):
        pack.pack(folder)
    (folder / ".jobignore").write_text("secret")
    assert "secret" not in pack.pack(folder).files
    (folder / "data" / "up").symlink_to("..")
    with pytest.raises(InputError, match="link to a folder above"):
        pack.pack(folder)
    (folder / "data" / "up").unlink()
    (folder / "nowhere").symlink_to("gone")
    with pytest.raises(InputError, match="link to nothing"):
        pack.pack(folder)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(fill(tmp_path / "one") / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        pack.pack(tmp_path / "one")
    with pytest.raises(InputError, match="is no folder"):
        pack.pack(tmp_path / "none")


def test_too_large(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    (folder / "data" / "big.bin").write_bytes(random.Random(0).randbytes(2**20))
    with pytest.raises(InputError) as caught:
        pack.pack(folder)
    message = str(caught.value)
    assert "1,024 KiB  data/big.bin" in message and ".jobignore" in message and "limit" in message


def test_there_and_back(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    packed = pack.pack(folder)
    target = tmp_path / "deep" / "code"
    pack.unpack(packed.data, target)
    assert pack.pack(target) == packed
    with pytest.raises(InputError, match="already exists"):
        pack.unpack(packed.data, target)
    assert [path.name for path in target.parent.iterdir()] == ["code"]


def test_a_bad_archive_leaves_nothing(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("good"), io.BytesIO())
        archive.addfile(tarfile.TarInfo("../evil"), io.BytesIO())
    whole = pack.pack(fill(tmp_path / "one")).data
    for data in (buffer.getvalue(), b"nonsense", b"", whole[:-20], whole[:40]):
        with pytest.raises(InputError, match="is damaged"):
            pack.unpack(data, tmp_path / "there" / "code")
    assert list((tmp_path / "there").iterdir()) == []
    assert not (tmp_path / "evil").exists()
