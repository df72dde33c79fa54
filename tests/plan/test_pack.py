"""Packing a job's folder: the same content is the same hash, what is left out, what is refused, and back again.

Does not check how the archive reaches a pod.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from trialplane.errors import InputError, NotPackedError
from trialplane.plan import pack


def fill(folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text("def run(ctx): ...\n")
    (folder / "data" / "tiny.csv").write_text("text,label\n")
    (folder / "job.yaml").write_text("kind: hpo\n")
    (folder / "größe.txt").write_text("ü")
    return folder


def test_an_empty_folder_is_an_archive_without_files(tmp_path: Path) -> None:
    assert pack.pack(tmp_path).files == ()


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
    with pytest.raises(InputError, match=r"secret is a link that leads out of the folder \(/etc/passwd\)"):
        pack.pack(folder)
    (folder / ".jobignore").write_text("secret")
    assert "secret" not in pack.pack(folder).files
    (folder / "data" / "up").symlink_to("..")
    with pytest.raises(InputError, match="link to a parent folder"):
        pack.pack(folder)
    (folder / "data" / "up").unlink()
    (folder / "nowhere").symlink_to("gone")
    with pytest.raises(InputError, match="link that leads nowhere"):
        pack.pack(folder)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(fill(tmp_path / "one") / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        pack.pack(tmp_path / "one")
    with pytest.raises(InputError, match="is not a folder"):
        pack.pack(tmp_path / "none")


def test_ignored_as_git_ignores(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    for name in ("out/model.bin", "out/keep.txt", "src/out.log", "src/deep/a.log", "top.bin", "src/top.bin"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".jobignore").write_text("data/\n*.txt\n/top.bin\n*.log\n!src/out.log\nout/\n!out/keep.txt\n")
    assert pack.pack(folder).files == ("job.yaml", "src/out.log", "src/top.bin", "train.py")
    (folder / ".jobignore").write_text("a\n!\n/\n")
    with pytest.raises(InputError, match=r"\.jobignore:2: .*'!'") as caught:
        pack.pack(folder)
    assert "nothing was started" in str(caught.value)


def test_a_hidden_file_travels_where_a_line_names_just_it(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    before = pack.pack(folder).files
    for name in (".env", ".marker", "conf/.env", ".streamlit/config.toml", ".streamlit/.env", ".streamlit/a.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    for lines in ("!*", "!.*", "!**/.e*", "!conf/", "!conf", "!.streamlit/**"):
        (folder / ".jobignore").write_text(lines)
        assert pack.pack(folder).files == before, lines
    (folder / ".jobignore").write_text("!.marker\n!/.streamlit/\n")
    assert set(pack.pack(folder).files) - set(before) == {".marker", ".streamlit/config.toml"}
    (folder / ".jobignore").write_text("!conf/.env\n")
    assert set(pack.pack(folder).files) - set(before) == {"conf/.env"}
    (folder / ".jobignore").write_text("!/.env\n")
    assert set(pack.pack(folder).files) - set(before) == {".env"}
    (folder / ".jobignore").write_text("!.env\n")
    assert set(pack.pack(folder).files) - set(before) == {".env", "conf/.env"}


def test_hidden_files_without_secrets_travel(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    before = pack.pack(folder).files
    for name in (".project-root", "lib/.here", "logs/.gitkeep", ".cache/.gitkeep", ".env", ".netrc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("" if name.endswith(".gitkeep") else "# do not delete\n")
    packed = {".project-root", "lib/.here", "logs/.gitkeep"}
    assert set(pack.pack(folder).files) - set(before) == packed
    (folder / ".jobignore").write_text("lib/\n")
    assert set(pack.pack(folder).files) - set(before) == packed - {"lib/.here"}


def test_no_line_takes_a_cache_of_python_along(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    before = pack.pack(folder).files
    for name in ("m.pyc", ".m.pyc", "__pycache__/m.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".jobignore").write_text("!m.pyc\n!.m.pyc\n!__pycache__/\n!__pycache__/m.py\n")
    assert pack.pack(folder).files == before


def test_the_lines_for_a_hidden_path_let_it_travel(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    before = pack.pack(folder).files
    for name in (".root", "conf/.h/x.yaml", ".k/.x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
        (folder / ".jobignore").write_text("\n".join(pack.inclusion_lines(name)))
        assert set(pack.pack(folder).files) - set(before) == {name}
        assert [issue.message for issue in pack.excluded_issues(folder, [name])] == []
    (folder / ".jobignore").unlink()
    (issue,) = pack.excluded_issues(folder, [".k/.x"])
    assert issue.message.endswith("it is hidden, or .jobignore excludes it. Add `!.k/` and `!.k/.x` there")
    assert (pack.inclusion_lines("conf/.h/"), pack.inclusion_lines("conf/x")) == (["!conf/.h/"], [])


def test_a_folder_above_one_mib_travels_in_parts(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    (folder / "data" / "big.bin").write_bytes(random.Random(0).randbytes(2**20 + 2**19))
    packed = pack.pack(folder)
    assert [len(part) for part in packed.parts] == [2**20, len(packed.data) - 2**20]
    for number, part in enumerate(packed.parts):
        (tmp_path / pack.part_name("code.tar.gz", number)).write_bytes(part)
    assert sorted(path.name for path in tmp_path.glob("code*")) == ["code.tar.gz", "code.tar.gz.1"]
    assert pack.read(tmp_path / "code.tar.gz") == packed.data
    pack.unpack(pack.read(tmp_path / "code.tar.gz"), tmp_path / "there", packed.sha256)
    assert pack.pack(tmp_path / "there") == packed
    assert pack.Pack(b"", "", ()).parts == (b"",)


def test_what_is_unpacked_is_what_was_packed(tmp_path: Path) -> None:
    packed = pack.pack(fill(tmp_path / "one"))
    with pytest.raises(InputError, match=f"differs from the submission, whose SHA-256 is {'0' * 64}"):
        pack.unpack(packed.data, tmp_path / "there", "0" * 64)
    assert not (tmp_path / "there").exists()
    bomb = gzip.compress(bytes(pack.MAX_UNPACKED + 1))
    with pytest.raises(InputError, match="larger than 64 MiB"):
        pack.unpack(bomb, tmp_path / "there")


def test_packages_lie_beside_the_files_of_the_job(tmp_path: Path) -> None:
    folder = fill(tmp_path / "job")
    package = tmp_path / "src" / "mine"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__.py", "deep/more.py", "notes.md", ".secret"):
        (package / name).write_text("x = 1\n")
    (package / ".jobignore").write_text("*.md\n")
    (folder / ".jobignore").write_text("deep/\n")  # of the job's folder only
    packed = pack.pack(folder, [package])
    own = pack.pack(folder)
    assert packed.files == tuple(sorted([*own.files, "mine/__init__.py", "mine/deep/more.py"]))
    pack.unpack(packed.data, tmp_path / "there", packed.sha256)
    assert (tmp_path / "there" / "mine" / "deep" / "more.py").read_text() == "x = 1\n"
    (package / "__init__.py").write_text("x = 2\n")
    assert pack.pack(folder, [package]).sha256 != packed.sha256
    (package / "out").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match=r"mine/out is a link that leads out of the folder \(/etc/passwd\)"):
        pack.pack(folder, [package])
    (package / "out").unlink()
    with (package / "big.bin").open("wb") as file:
        file.truncate(pack.MAX_UNPACKED + 1)
    with pytest.raises(InputError, match=r"KiB  mine/big\.bin"):
        pack.pack(folder, [package])


def test_too_large(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    (folder / "data" / "big.bin").write_bytes(random.Random(0).randbytes(pack.MAX_BYTES))
    (folder / "data" / "less.bin").write_bytes(bytes(2048))
    with pytest.raises(InputError) as caught:
        pack.pack(folder)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{folder} is 8 MiB packed, and 8 MiB is the limit. Its largest files:"
    assert [line.split()[-1] for line in lines[1:3]] == ["data/big.bin", "data/less.bin"]
    assert "8,192 KiB  data/big.bin" in lines[1] and f"`echo data/big.bin >> {folder}/.jobignore`" in lines[-1]


def test_too_large_is_found_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "one")
    (folder / "venv").mkdir()
    for number in range(7):
        with (folder / "venv" / f"{number}.so").open("wb") as file:
            file.truncate(10 * 2**20)  # no disk is used
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(InputError) as caught:
        pack.pack(folder)
    text = str(caught.value)
    assert "is 70 MiB, and 64 MiB is the limit" in text and "10,240 KiB  venv/0.so" in text
    assert "71,680 KiB  venv/ in all, with 7 files" in text and f"`echo venv/ >> {folder}/.jobignore`" in text


def test_links_are_not_packed(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    (folder / "data" / "big.bin").write_bytes(random.Random(0).randbytes(pack.MAX_BYTES))
    with pytest.raises(NotPackedError, match=r"write `links: \[data/big\.bin\]` in job\.yaml"):
        pack.pack(folder)
    (folder / "a[1]*").symlink_to("/")
    (folder / "a1x").write_text("x")
    with pytest.raises(NotPackedError, match="or in the job's field `links`"):
        pack.pack(folder)
    packed = pack.pack(folder, ignored=pack.ignored_lines(["data", "a[1]*"]))
    assert "a1x" in packed.files and not any(name.startswith("data") for name in packed.files)


def test_there_and_back(tmp_path: Path) -> None:
    folder = fill(tmp_path / "one")
    packed = pack.pack(folder)
    target = tmp_path / "deep" / "code"
    pack.unpack(packed.data, target)
    assert pack.pack(target) == packed
    with pytest.raises(InputError, match="already exists"):
        pack.unpack(packed.data, target)
    assert [path.name for path in target.parent.iterdir()] == ["code"]


def test_folders_without_packed_files_travel(tmp_path: Path) -> None:
    """A script writes to them: a repository keeps such a folder by a `.gitignore` in it, which is hidden."""
    folder = fill(tmp_path / "one")
    files = pack.pack(folder).files
    for name in ("models/best", "results/.git", "lib/__pycache__"):
        (folder / name).mkdir(parents=True)
    (folder / "results" / ".gitignore").write_text("*\n")
    (folder / ".jobignore").write_text("lib/\n")
    packed = pack.pack(folder)
    assert packed.files == files
    pack.unpack(packed.data, tmp_path / "code")
    folders = {path.relative_to(tmp_path / "code").as_posix() for path in (tmp_path / "code").rglob("*") if path.is_dir()}
    assert folders == {"data", "models", "models/best", "results"}
    assert pack.pack(tmp_path / "code").sha256 == packed.sha256


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
