"""Damaged scripts of all styles: `init --from` writes a job that `validate` takes, or refuses the script in clear lines.

The scripts are those of test_script_styles.py with lines that are removed, doubled or exchanged, odd bytes, other encodings,
long numbers, and lines that start processes or remove the folder. Not checked here: the job (test_script_styles.py).
"""

from __future__ import annotations

import os
import random
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from tests.cli.conftest import BODY
from tests.cli.test_fuzzed_jobs import is_clear
from tests.cli.test_script_styles import STYLES
from tests.worker.conftest import alive, wait_until

pytestmark = pytest.mark.slow

SEEDS = 60
MARK = "TRIALPLANE_TEST_MARK"
WRITTEN = {"src/job.yaml", "src/.jobignore"}
ODD_BYTES = [b"\x00", b"\xff\xfe", b"\x80", b"\x0c", b"\r", b"\x1b[31m", b"\xe2\x80\xae", "é²𝟘".encode(), b"\x1a", b"\t"]
ENCODINGS = [
    b"# -*- coding: latin-1 -*-\n",
    b"# coding: cp1252\n",
    b"# coding: utf-16\n",
    b"# coding: no-such-one\n",
    b"#!/usr/bin/env python\n# vim: set fileencoding=utf-8 :\n",
    b"\xef\xbb\xbf",
    b"\xef\xbb\xbf# coding: latin-1\n",
]
PROCESSES = [
    b"import subprocess; subprocess.Popen(['sleep', '600'])",
    b"import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)",
    b"import os, time; os.fork() or (os.setsid(), time.sleep(600))",
]
LINES = [
    b"import shutil; shutil.rmtree('.', ignore_errors=True)",
    b"import os; os._exit(0)",
    b"import os; os.kill(os.getpid(), 9)",
    b"import atexit; atexit.register(print, 'score: 7')",
    b"import sys; sys.exit('no data')",
    b"raise KeyboardInterrupt",
    b"class Mute(BaseException): __str__ = None\nraise Mute",
    b"import sys; sys.setrecursionlimit(10**6); (lambda f: f(f))(lambda f: f(f))",
    b"print('x' * 10**6)",
    b"x = " + b"(" * 300 + b")" * 300,
]


def damaged(text: bytes, rng: random.Random) -> bytes:
    """A text with one to three damages; half of the texts have only those after which it is still Python."""
    breaking = rng.choice([[], ["remove", "double", "swap", "odd", "cut", "utf-16"]])
    for _ in range(rng.randrange(1, 4)):
        lines = text.split(b"\n")
        here, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.choice(["encoding", "number", "line", "process", *breaking]):
            case "remove":
                del lines[here : here + rng.randrange(1, 3)]
            case "double":
                lines.insert(here, lines[other])
            case "swap":
                lines[here], lines[other] = lines[other], lines[here]
            case "odd":
                at = rng.randrange(len(lines[here]) + 1)
                lines[here] = lines[here][:at] + rng.choice(ODD_BYTES) + lines[here][at:]
            case "encoding":
                lines[0] = rng.choice(ENCODINGS) + lines[0]
            case "number":
                digits = rng.choice([b"9" * 400, b"1e400", b"0x" + b"f" * 400, b"-1", b"nan", b"0." + b"3" * 400])
                lines[here] = re.sub(rb"\b\d+(\.\d+)?\b", digits, lines[here])
            case "line" | "process" as kind:
                outer = [at for at, line in enumerate(lines) if line[:1].isalpha() and not line.startswith((b"el", b"exc"))]
                lines.insert(rng.choice(outer or [0]), rng.choice(PROCESSES if kind == "process" else LINES))
            case "cut":
                lines[here] = lines[here][: len(lines[here]) // 2]
            case "utf-16" if rng.random() < 0.2:
                lines = [b"\n".join(lines).decode(errors="replace").encode("utf-16")]
        text = b"\n".join(lines)
    return text


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def marked(mark: str) -> list[int]:
    """Processes that were started with this mark in their environment."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:  # it has just ended
                continue
            if f"{MARK}={mark}".encode() in environ.split(b"\0") and alive(int(entry.name)):
                pids.append(int(entry.name))
    return pids


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_script_becomes_a_job_or_is_refused_in_clear_lines(
    platform: Callable[..., Result], written: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    style = rng.choice(sorted(STYLES))
    script = damaged((textwrap.dedent(STYLES[style][0]) + BODY).encode(), rng)
    (written / "fit.py").write_bytes(script)
    mark = f"{os.getpid()}-{seed}"
    monkeypatch.setenv(MARK, mark)
    before = files(written.parent)
    result = platform("init", "--from", str(written / "fit.py"), "--no-smoke")
    assert is_clear(result.exit_code, result.stderr), (style, script, result.output[:3000], result.exception)
    after = files(written.parent)
    assert {name: after.get(name) for name in before} == before, (style, script)
    assert after.keys() - before.keys() <= WRITTEN, (style, script)
    if result.exit_code == 0:
        checked = platform("validate", "src")
        assert checked.exit_code == 0, (style, script, checked.output)
    wait_until(lambda: not marked(mark), f"no process of {script!r} is left")
