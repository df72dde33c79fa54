"""The submitter against a dashboard that behaves like Ray's: it waits, submits once, prints once, and submits again to a
head that does not know the job; and once against Ray's own.

Not checked here: what the job does (tests/study/test_cluster.py).
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from tests.study.ray_cluster import TOKEN, Cluster

from trialplane.controller import submitter
from trialplane.controller.submitter import Dashboard, Submitter


class Head:
    """A dashboard whose jobs a test moves."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submissions = 0
        self.lose_answers = 0  # how many submissions are taken without an answer
        self.tokens: set[str | None] = set()
        head = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                head.tokens.add(self.headers.get("Authorization"))
                name = self.path.split("/")[3]
                job = head.jobs.get(name)
                if job is None:
                    self._send(404, f"Job {name} does not exist".encode())
                elif self.path.endswith("/logs"):
                    self._send(200, json.dumps({"logs": job["log"]}).encode())
                else:
                    self._send(200, json.dumps({"status": job["status"], "message": job.get("message")}).encode())

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = asked["submission_id"]
                if name in head.jobs:
                    text = f"ValueError: Job with submission_id {name} already exists. Please use a different submission_id."
                    self._send(400, text.encode())
                    return
                head.submissions += 1
                head.jobs[name] = {"status": "PENDING", "log": "", "entrypoint": asked["entrypoint"]}
                if head.lose_answers:
                    head.lose_answers -= 1
                    self.connection.close()
                    return
                self._send(200, json.dumps({"submission_id": name}).encode())

            def _send(self, code: int, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's
                return

        self._handler = Handler
        self.server: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.start()

    def start(self) -> None:
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


@pytest.fixture
def head() -> Iterator[Head]:
    made = Head()
    yield made
    made.stop()


class Script:
    """What happens between two looks, one step a pause."""

    def __init__(self, *steps: Any) -> None:
        self._steps = list(steps)

    def __call__(self, seconds: float) -> None:
        assert self._steps, "the submitter should have ended"
        self._steps.pop(0)()


def run(head: Head, *steps: Any) -> int:
    return Submitter(Dashboard(f"127.0.0.1:{head.port}", "secret"), "toy-1", "python -m x", Script(*steps)).run()


def nothing() -> None:
    return


def job(head: Head, **changes: Any) -> Any:
    return lambda: head.jobs["toy-1"].update(changes)


def test_a_job_is_submitted_once_and_its_log_printed_once(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [job(head, log="one\n", status="RUNNING"), nothing, job(head, log="one\ntwo\n"), nothing]
    assert run(head, *steps, job(head, status="SUCCEEDED", log="one\ntwo\nthree\n")) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == ["one", "two", "three", "[submitter] the Ray job SUCCEEDED"]
    assert head.submissions == 1
    assert head.jobs["toy-1"]["entrypoint"] == "python -m x"
    assert head.tokens == {"Bearer secret"}


@pytest.mark.parametrize("status", ["FAILED", "STOPPED"])
def test_a_job_that_fails_ends_with_its_message(head: Head, capsys: pytest.CaptureFixture[str], status: str) -> None:
    assert run(head, job(head, status=status, message="exit code 3\nand more")) == 0
    assert f"the Ray job {status}: exit code 3" in capsys.readouterr().out


def test_a_head_that_is_away_is_waited_for(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.stop()
    steps = [nothing, head.start, job(head, status="RUNNING", log="one\n"), nothing, head.stop, nothing, nothing, head.start]
    assert run(head, *steps, job(head, status="SUCCEEDED")) == 0
    assert head.submissions == 1
    out = capsys.readouterr().out
    assert (out.count("does not answer yet"), out.count("is away"), out.count("one\n")) == (1, 1, 1)


def test_a_new_head_gets_the_job_again(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [job(head, status="RUNNING", log="one\n"), nothing, head.jobs.clear]
    steps += [job(head, status="RUNNING", log="one\nagain\n"), job(head, status="SUCCEEDED")]
    assert run(head, *steps) == 0
    assert head.submissions == 2
    assert capsys.readouterr().out.count("one\n") == 2, "the new head's log is another"


def test_a_log_is_printed_as_it_was_written_wherever_it_is_cut(
    head: Head, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitter, "PIECE", 16)
    parts = ['a "quote", a \\ and a tab\t\n', "ein Ä, 漢字 und \U0001f600\U0001f600\n", "}\n", "\\u0041 \x1b[31m\n"] * 3
    logs = ["".join(parts[: count + 1]) for count in range(len(parts))]
    assert run(head, job(head, status="RUNNING"), *(job(head, log=log) for log in logs), job(head, status="FAILED")) == 0
    assert capsys.readouterr().out == "".join(parts) + "[submitter] the Ray job FAILED\n"


def test_a_log_that_is_shorter_than_what_was_printed_is_another_one(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = job(head, status="RUNNING", log="of the first head\n"), job(head, log="of another\n")
    steps = [first, nothing, second, nothing, nothing]
    assert run(head, *steps, job(head, status="SUCCEEDED")) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["of the first head", "of another"]


LINE = "ä line like many\n"


class Long:
    """A reply with a log of so many lines, made as it is read."""

    status = 200

    def __init__(self, lines: int) -> None:
        self._left = [b'"}', *[json.dumps(LINE).encode()[1:-1] * 1000] * (lines // 1000), b'{"logs": "']
        self._data = b""
        self.length = sum(map(len, self._left))

    def read(self, size: int) -> bytes:
        while self._left and len(self._data) < size:
            self._data += self._left.pop()
        data, self._data = self._data[:size], self._data[size:]
        return data


def test_a_log_longer_than_the_pods_memory_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = Dashboard("127.0.0.1:1", "")
    monkeypatch.setattr(dashboard, "_answer", lambda *_: contextlib.nullcontext(Long(1_000_000)))
    place, seen = 0, 0
    tracemalloc.start()
    try:
        for text, passed in dashboard.log("toy-1", 0):
            seen += text.count(LINE)
            place = passed
        (text, _), *_ = dashboard.log("toy-1", place - len(json.dumps(LINE)[1:-1]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen >= 999_000
    assert text == LINE
    assert peak < 2**20, f"{peak} bytes of a log of {Long(1_000_000).length}"


def test_a_log_that_breaks_off_goes_on_where_it_broke_off(monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = Dashboard("127.0.0.1:1", "")
    whole = json.dumps({"logs": "one\ntwo\nthree\n"}).encode()
    text = ""
    place = 0
    for length in (24, 31, len(whole)):
        reply = http.client.HTTPResponse(_Socket(b"HTTP/1.0 200 OK\r\n\r\n" + whole[:length]))  # type: ignore[arg-type]
        reply.begin()
        monkeypatch.setattr(dashboard, "_answer", lambda *_, reply=reply: contextlib.nullcontext(reply))
        with contextlib.suppress(submitter.Away):
            for more, passed in dashboard.log("toy-1", place):
                text += more
                place = passed
    assert text == "one\ntwo\nthree\n"


class _Socket:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def test_a_submission_whose_answer_was_lost_is_not_made_twice(head: Head) -> None:
    head.lose_answers = 1
    assert run(head, job(head, status="RUNNING"), job(head, status="SUCCEEDED")) == 0
    assert head.submissions == 1


def test_a_second_submitter_finds_the_job_there(head: Head) -> None:
    head.jobs["toy-1"] = {"status": "RUNNING", "log": "one\n"}
    assert run(head, job(head, status="SUCCEEDED")) == 0
    assert head.submissions == 0
    Dashboard(f"127.0.0.1:{head.port}", "").submit("toy-1", "python -m x")  # between its look and its submission


def test_what_is_imported_is_the_standard_librarys() -> None:
    code = "import sys, trialplane.controller.submitter; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & {"ray", "pydantic", "sqlalchemy", "optuna", "mlflow", "numpy", "requests"} == set()
    assert submitter.__name__ in done.stderr


def test_without_its_variables_it_says_which_are_missing() -> None:
    command = [sys.executable, "-m", "trialplane.controller.submitter"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "RAY_DASHBOARD_ADDRESS" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_against_rays_own_dashboard(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With token authentication; the job is submitted, followed, and refused a second time."""
    cluster = Cluster(tmp_path, "", "")
    try:
        cluster.start_head(dashboard=True)
        wrong = Submitter(Dashboard(cluster.dashboard, "b" * 64), "toy-1", "true", _patient(cluster))
        assert wrong.run() == 1
        assert "Ray refuses the job" in capsys.readouterr().out
        right = Dashboard(cluster.dashboard, TOKEN)
        assert Submitter(right, "toy-1", "echo one; sleep 2; echo two", _patient(cluster)).run() == 0
        out = capsys.readouterr().out
        assert (out.splitlines().count("one"), out.splitlines().count("two")) == (1, 1)
        right.submit("toy-1", "false")
        assert right.job("toy-1")["status"] == "SUCCEEDED", "the first stays the only one"  # type: ignore[index]
        assert Submitter(right, "toy-2", "echo bad; exit 3", _patient(cluster)).run() == 0
        assert "exit code 3" in capsys.readouterr().out
    finally:
        cluster.close()


def _patient(cluster: Cluster) -> Any:
    """Pauses until the head may have something new to say, and sees that it lives."""
    ticks = threading.Event()

    def pause(seconds: float) -> None:
        assert cluster.head is not None
        assert cluster.head.poll() is None, (cluster.home / "ray.log").read_text()[-2000:]
        ticks.wait(seconds)

    return pause
