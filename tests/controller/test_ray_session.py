"""A Ray that does not start, by a double; and that the installed one says what its object stores hold and spill: the calls
are its own, not public.

Not checked here: what follows from the latter (test_collection.py).
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
from tests.controller.conftest import wait_until

from trialplane import errors
from trialplane.controller import ray_session
from trialplane.job import kinds

ONE_TRIAL = kinds.read({"name": "toy", "kind": "train"}).roles()
STORE = 80 << 20  # the smallest that Ray takes


@pytest.fixture
def small_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with ray_session.connect(ONE_TRIAL, lambda free: STORE):
        yield


@pytest.mark.slow
def test_what_an_object_store_has_no_room_for_is_counted_as_spilled(small_store: None) -> None:
    assert abs(ray_session.store_bytes(ONE_TRIAL) - STORE) < 1 << 20
    assert ray_session.spilled_bytes() == 0
    piece = STORE // 4
    kept = [ray.put(np.zeros(piece, dtype=np.uint8)) for _ in range(2)]
    ray_session.wait(kept, 60)
    assert ray_session.spilled_bytes() == 0, "there is room"
    kept += [ray.put(np.zeros(piece, dtype=np.uint8)) for _ in range(4)]
    wait_until(lambda: (ray_session.spilled_bytes() or 0) >= 2 * piece, "Ray has written to disk what has no room")
    assert len(kept) == 6


@pytest.mark.parametrize("error", [RuntimeError("no port"), Exception("The current node timed out during startup. More.")])
def test_a_ray_that_does_not_start_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def init(**_: object) -> None:
        raise error

    monkeypatch.setattr(ray_session.ray, "init", init)
    with (
        pytest.raises(
            errors.SlotError,
            match=r"^Ray does not start on this machine \(its logs are in .*\): (no port$|The current node timed out)",
        ),
        ray_session.connect(ONE_TRIAL, lambda free: 80 << 20),
    ):
        pass


@pytest.fixture
def address() -> str:
    """Where a head could listen, and does not yet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_a_head_is_joined_as_soon_as_it_answers_and_has_a_raylet(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    troubles = [ConnectionError("no raylet"), ConnectionError("no raylet"), RuntimeError("not yet"), None]
    heads: list[socket.socket] = []

    def init(address: str, **_: object) -> None:
        asked.append(address)
        if (trouble := troubles.pop(0)) is not None:
            raise trouble

    def pause(seconds: float) -> None:
        if not heads:
            assert not asked, "Ray would wait for 40 s"
            heads.append(socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))))

    monkeypatch.setattr(ray_session.ray, "init", init)
    monkeypatch.setattr(ray_session.time, "sleep", pause)
    with caplog.at_level(logging.INFO):
        assert ray_session.join(address, lambda: False)
    assert asked == [address] * 4
    said = [record.getMessage().partition("answer yet: ")[2] for record in caplog.records]
    assert said[1:] == ["no raylet", "not yet"], "each trouble once"
    assert not ray_session.is_head_lost(address)
    heads.pop().close()
    assert ray_session.is_head_lost(address)


def test_who_waits_for_a_head_can_be_stopped(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_session.ray, "init", lambda **_: pytest.fail("there is no head"))
    answers = [False, False, True]
    assert not ray_session.join(address, lambda: answers.pop(0))
    assert not answers


def test_whatever_is_wrong_with_a_head_that_answers_is_told_once_and_ends_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    troubles = [ValueError("no such option"), ValueError("no such option"), KeyError("another"), None]

    def init(**_: object) -> None:
        if (trouble := troubles.pop(0)) is not None:
            raise trouble

    monkeypatch.setattr(ray_session.ray, "init", init)
    monkeypatch.setattr(ray_session.time, "sleep", lambda _: None)
    monkeypatch.setattr(ray_session.socket, "create_connection", lambda *_, **__: socket.socket())
    assert ray_session.join(address, lambda: False, told.append)
    assert told == ["no such option", "'another'"]


def test_a_head_that_ends_a_moment_after_its_raylet_is_lost(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head = socket.create_server(("127.0.0.1", int(address.rpartition(":")[2])))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            head.close()

    monkeypatch.setattr(ray_session.time, "sleep", pause)
    assert ray_session.is_head_lost(address, 3600.0)
    assert len(pauses) == 3


def test_a_ray_that_was_slow_is_started_again_and_nothing_is_left_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def init(**_: object) -> None:
        started.append(subprocess.Popen(["sleep", "600"]))
        if len(started) < 3:
            raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray_session.ray, "init", init)
    monkeypatch.setattr(ray_session.ray, "cluster_resources", dict)
    other = subprocess.Popen(["sleep", "600"])
    try:
        with ray_session.connect(ONE_TRIAL, lambda free: 80 << 20):
            assert [process.wait() for process in started[:2]] == [-signal.SIGKILL] * 2
            assert started[2].poll() is None, "the Ray that is up stays"
        assert other.poll() is None, "as does what is none of its"
    finally:
        for process in (*started, other):
            process.kill()
            process.wait()


def test_a_mistake_is_no_ray_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_session.ray, "init", lambda **_: [][0])
    with pytest.raises(IndexError), ray_session.connect(ONE_TRIAL, lambda free: 80 << 20):
        pass


@pytest.mark.parametrize("depth", [1, 30], ids=["short", "long"])
def test_the_folder_of_a_ray_is_this_users_alone_and_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """Another user could replace a socket in Ray's own folder; and the path of a socket has 107 characters at most."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as base:
        place = Path(base, "x" * depth)
        place.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        folders: list[Path] = []
        monkeypatch.setattr(ray_session.ray, "init", lambda **given: folders.append(Path(given["_temp_dir"])))
        monkeypatch.setattr(ray_session.ray, "cluster_resources", dict)
        with ray_session.connect(ONE_TRIAL, lambda free: 80 << 20):
            (folder,) = folders
            assert folder.parent.stat().st_mode & 0o777 == 0o700
            assert folder.parent.parent == (place if depth == 1 else Path("/tmp"))
            session = "session_2026-11-25_09-59-52_407123_1234567/sockets/plasma_store"
            assert len(str(folder / session)) <= 107
        assert not folder.parent.exists()


def test_folders_that_killed_controllers_left_go_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_session.ray, "cluster_resources", dict)
    monkeypatch.setattr(ray_session.ray, "init", lambda **_: None)
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        left, used, young = (Path(base, f"trialplane-ray-{name}") for name in ("left", "used", "young"))
        others = Path(base, "trialplane-abc")  # of `platform ui`, of a trial that runs alone, …
        for folder in (left, used, young, others):
            folder.mkdir()
        for folder in (left, used, others):
            os.utime(folder, (0, 0))
        descriptor = os.open(used, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with ray_session.connect(ONE_TRIAL, lambda free: 80 << 20):
            assert [folder.exists() for folder in (left, used, young, others)] == [False, True, True, True]
        os.close(descriptor)


@pytest.mark.slow
def test_a_real_ray_leaves_nothing_and_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        with ray_session.connect(ONE_TRIAL, lambda free: STORE):
            (folder,) = Path(base).iterdir()
            assert list(folder.glob("*/session_*/sockets/*")), "its sockets are there"
            assert folder.stat().st_mode & 0o777 == 0o700
        assert not list(Path(base).iterdir())
