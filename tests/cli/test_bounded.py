"""A process of the user's code: what it leaves running is ended with it, and why it failed is found in its output.

Not checked here: what `platform init --from` makes of that (test_from_script.py).
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trialplane.cli.init_from import bounded

LEFT = 'exec 3> "$HELD"; sleep 600 & '  # which has standard output, standard error and the FIFO open

# In a session of its own, without its parent, and deaf to SIGTERM, as daemons are.
DAEMON = 'exec 3> "$HELD"; (setsid sh -c "trap : TERM; sleep 600; sleep 600" &); '


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    """The end for reading of a FIFO, `held` in the test's folder: at its end once no process holds the other one."""
    os.mkfifo(tmp_path / "held")
    descriptor = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def shell(script: str, folder: Path, longest: float = 300.0) -> bounded.ProcessEnd:
    environ = {"HELD": str(folder / "held")}
    return bounded.run(["sh", "-c", script], folder, environ, folder / "output.log", longest)


def test_a_program_that_cannot_be_started_has_failed(tmp_path: Path) -> None:
    process_end = bounded.run(["./fit", "--lr", "0.1"], tmp_path, {}, tmp_path / "output.log", 300.0)
    assert (process_end.code, process_end.cause) == (127, "./fit: No such file or directory")


def is_released(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 60.0)[0]) and os.read(descriptor, 1) == b""


@pytest.mark.parametrize(
    ("script", "longest", "code"),
    [
        (LEFT + "exit 3", 300.0, 3),
        (LEFT + "wait", 1.0, None),
        (DAEMON + "exit 3", 300.0, 3),
        (DAEMON + "sleep 600", 1.0, None),
    ],
)
def test_what_a_process_has_started_ends_with_it(
    tmp_path: Path, held: int, script: str, longest: float, code: int | None
) -> None:
    assert shell(script, tmp_path, longest).code == code
    assert is_released(held)


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo one; echo two >&2; exit 1", "two"),
        ("exit 4", "exit code 4, and no output"),
        ("echo one; kill -9 $$", "it was killed by SIGKILL"),
        (
            r"printf 'ValueError: \033[1;31mno\033[0m such \033]0;title\007file\n\033(B\033[m\n'; exit 1",
            "ValueError: no such file",
        ),
        ("echo 'torch.OutOfMemoryError: 1 GiB'; echo 'wandb: see the docs'; exit 1", "torch.OutOfMemoryError: 1 GiB"),
        ("echo 'OSError: first'; echo ' ValueError: last'; exit 1", "ValueError: last"),
        ("echo 'OSError: no'; echo 'subprocess.CalledProcessError: Command [python] failed'; exit 1", "OSError: no"),
        (
            "echo 'OSError: no'; printf 'error: Key x:\\n  Errors:\\n    Option y is not accepted\\n  Value: 3\\n'; exit 2",
            "error: Key x: Option y is not accepted",
        ),
        ("echo 'KeyError: 1'; head -c 1000000 /dev/zero | tr '\\0' '-'; echo; echo end; exit 1", "end"),
    ],
)
def test_the_cause_of_a_failure(tmp_path: Path, script: str, cause: str) -> None:
    assert shell(script, tmp_path).cause == cause


def test_a_cause_is_short(tmp_path: Path) -> None:
    ended = bounded.run([sys.executable, "-c", "raise OSError('x' * 9999)"], tmp_path, {}, tmp_path / "log", 300.0)
    assert ended.cause.startswith("OSError: xxx") and len(ended.cause) == 300


def test_output_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    clause = shell("seq 100000; exit 1", tmp_path).keep_log("fit")
    (kept,) = tmp_path.glob("trialplane-fit-*.log")
    assert clause == f"its whole output is in {kept}" and kept.read_text() == (tmp_path / "output.log").read_text()
    assert shell("exit 1", tmp_path).keep_log("fit") == ""
