"""Logs through the gateway: from a controller that works, afterwards from MLflow, and from neither more than their bounds.

Not checked here: what a controller gives to MLflow (tests/controller), and what a terminal shows of a log (tests/cli).
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow.tracking import MlflowClient
from tests.contracts.conftest import Postgres, ask, complete, wait_until
from tests.controller.conftest import Server
from tests.gateway.gateway_site import Site, postgres, record
from tests.gateway.mlflow_site import Door, server, tenants

from trialplane.controller.status import StatusBoard
from trialplane.gateway import logs as gateway_logs
from trialplane.gateway.logs import Controllers, LogId, MlflowLogs, NoLog
from trialplane.gateway.upstream import Upstream
from trialplane.ledger import attempts as reading
from trialplane.wire import env, labels, ledger, logs
from trialplane.wire.ledger import Address
from trialplane.wire.logs import Piece
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import TrialOutcome
from trialplane.wire.states import FailureClass, TrialState

__all__ = ["postgres", "server", "tenants"]  # fixtures

KEY = ledger.token_digest("a-token")


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    made = RunPaths.of(tmp_path, "toy")
    made.root.mkdir(parents=True)
    return made


@pytest.fixture
def board(run: RunPaths) -> Iterator[StatusBoard]:
    made = StatusBoard(run, key=KEY)
    yield made
    made.close()


@pytest.fixture
def site(postgres: Postgres, tmp_path: Path, board: StatusBoard) -> Iterator[Site]:
    """A gateway whose controllers all are `board`; no MLflow answers."""
    made = Site(postgres, tmp_path, controllers=f"http://127.0.0.1:{board.port}", mlflow=MlflowLogs("http://127.0.0.1:9"))
    yield made
    made.close()


@contextlib.contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does with its connections whatever it likes; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(65536)
                        answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def test_a_log_that_grows_comes_in_pieces_from_the_controller(
    site: Site, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PIECE", 4)
    with site.ledger("toy") as found:
        site.archive.set_token("toy", "a-token")
        request = ask(found)
        assert "it is empty so far" in site.ask("GET", "/runs/toy/log?trial=0").json()["error"]
        log = run.trial_log(0, 1)
        log.parent.mkdir(parents=True)
        log.write_text("one two")
        run.controller_log.write_text("said")
        first = site.ask("GET", "/runs/toy/log?trial=0")
        assert (first.data, first.headers["x-trialplane-next"], first.headers["x-trialplane-growing"]) == (b"one ", "4", "1")
        rest = site.ask("GET", "/runs/toy/log?trial=0&attempt=1&from=4")
        assert (rest.data, rest.headers["x-trialplane-next"], rest.headers["x-trialplane-growing"]) == (b"two", "7", "1")
        found.tell(complete(request))
        assert site.ask("GET", "/runs/toy/log?trial=0&from=4").headers["x-trialplane-growing"] == "0"
        assert site.ask("GET", "/runs/toy/log?trial=0").headers["x-trialplane-growing"] == "1", "there is more to read"
        controller = site.ask("GET", "/runs/toy/log?from=99")
        assert (controller.data, controller.headers["x-trialplane-growing"]) == (b"", "1")
        run.trial_log(0, 1, worker=2).write_text("played")
        assert site.ask("GET", "/runs/toy/log?trial=0&worker=2&from=4").data == b"ed"
        assert site.ask("GET", "/runs/toy/log?trial=5").code == 404
        assert site.ask("GET", "/runs/toy/log?trial=x").code == 400
    wait_until(lambda: not site.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
    reply = site.ask("GET", "/runs/toy/log?trial=0")
    assert reply.code == 404, "nobody is asked about a run without a controller"
    assert "MLflow at http://127.0.0.1:9, which stores it, does not answer" in reply.json()["error"]


def test_the_log_of_a_trial_reads_the_attempts_at_that_trial_alone(
    site: Site, run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll of one log must not take what a study of 100,000 trials is made of."""
    read = []
    odd = {"type": "categorical", "choices": ["\0", '"trial": 1,']}  # neither must lead the choice astray
    with site.ledger("toy", space={"x": odd}) as found:
        site.archive.set_token("toy", "a-token")
        for request in [ask(found) for _ in range(4)]:
            lost = TrialOutcome(request.number, TrialState.FAILED, failure=FailureClass.LOST)
            found.tell(lost if request.trial == 1 else complete(request, score=0.5))
        again = ask(found)
        assert (again.trial, again.attempt, again.number) == (1, 2, 4)
        for attempt in (1, 2):
            log = run.trial_log(1, attempt)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"attempt {attempt}")
        row = reading.trial_row
        monkeypatch.setattr(reading, "trial_row", lambda *given: read.append(row(*given)) or read[-1])
        assert site.ask("GET", "/runs/toy/log?trial=1").data == b"attempt 2"
        assert site.ask("GET", "/runs/toy/log?trial=1&attempt=1").data == b"attempt 1"
        assert {attempt.trial for attempt in read} == {1}
        assert site.ask("GET", "/runs/toy/log?trial=1&attempt=3").code == 404
        assert site.ask("GET", "/runs/toy/log?trial=99999999999").code == 404


@pytest.mark.parametrize("key", ["", "a-token", "f" * 64, "ä"])
def test_a_controller_shows_logs_to_the_gateway_alone(board: StatusBoard, run: RunPaths, key: str) -> None:
    run.controller_log.write_text("said")
    controllers = Controllers(f"http://127.0.0.1:{board.port}")
    assert controllers.log("toy", KEY, LogId(), 0) == Piece(b"said", 4)
    assert controllers.log("toy", key.encode("utf-8").decode("latin-1"), LogId(), 0) is None


def test_a_controller_without_a_token_shows_none(run: RunPaths) -> None:
    """As on a laptop, where everybody who has an account reaches its port."""
    run.controller_log.write_text("said")
    open_to_all = StatusBoard(run)
    try:
        assert Controllers(f"http://127.0.0.1:{open_to_all.port}").log("toy", "", LogId(), 0) is None
    finally:
        open_to_all.close()


@pytest.mark.parametrize(
    "query", ["trial=../../..", "trial=1&attempt=../../job", "from=-1", "trial=1e3", "worker=%2e%2e&trial=0"]
)
def test_a_log_is_chosen_by_numbers(board: StatusBoard, run: RunPaths, query: str) -> None:
    run.controller_log.write_text("said")
    assert board.page(f"/log?{query}", KEY) is None
    assert board.page("/log", KEY) is not None


def test_more_than_a_piece_is_not_taken_from_a_controller() -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with peer(flood) as url:
        piece = Controllers(url).log("toy", KEY, LogId(), 7)
        assert piece is not None
        assert (len(piece.data), piece.next) == (logs.PIECE, logs.PIECE + 7)
        assert Controllers(url).status("toy") is None


def test_an_answer_that_never_ends_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_logs, "LOG_SECONDS", 0.5)
    monkeypatch.setattr(gateway_logs, "MLFLOW_SECONDS", 0.5)
    closed = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not closed.wait(0.05):
            connection.sendall(b"x")

    with peer(drip) as url:
        with pytest.raises(TimeoutError, match=r"no complete answer within 0\.5 s"):
            Controllers(url).log("toy", KEY, LogId(), 0)
        with pytest.raises(NoLog, match=r"no complete answer within 0\.5 s"):
            MlflowLogs(url).log(Address("studies", "toy"), "toy", {}, LogId(), 0)
        closed.set()


def test_an_answer_that_was_cut_is_late_although_the_peer_then_reset_the_connection() -> None:
    def reset(reply: http.client.HTTPResponse) -> bytes:
        reply.read()
        raise ConnectionResetError("as the kernel has it where the peer wrote once more")

    def stand_still(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        connection.recv(1)

    with peer(stand_still) as url, pytest.raises(TimeoutError, match=r"no complete answer within 0\.2 s"):
        gateway_logs.fetch(url, 0.2, reset)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
)
def test_nothing_is_followed_and_nothing_odd_believed(answer: bytes) -> None:
    with peer(lambda connection: connection.sendall(answer)) as url:
        with pytest.raises(OSError):
            Controllers(url).log("toy", KEY, LogId(), 0)
        with pytest.raises(NoLog, match="does not answer"):
            MlflowLogs(url).log(Address("studies", "toy"), "toy", {}, LogId(), 0)


@pytest.mark.parametrize(
    "body", [b"[]", b'{"experiment": 3}', b'{"experiment": {"experiment_id": "1"}, "runs": [{}]}', b"{", b"[" * 99999]
)
def test_an_answer_of_another_shape_is_no_log(body: bytes) -> None:
    found = peer(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + body))
    with found as url, pytest.raises(NoLog, match="does not answer"):
        MlflowLogs(url).log(Address("studies", "toy"), "toy", {}, LogId(), 0)


def test_what_mlflow_is_told_of_the_login() -> None:
    found = MlflowLogs.of(
        {"MLFLOW_TRACKING_URI": "http://m/", "MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p"}
    )
    assert found == MlflowLogs("http://m", "Basic dTpw")
    assert "dTpw" not in repr(found)
    assert MlflowLogs.of({"MLFLOW_TRACKING_URI": "http://m/", "MLFLOW_TRACKING_TOKEN": "t"}) == MlflowLogs(
        "http://m", "Bearer t"
    )
    assert MlflowLogs.of({"MLFLOW_TRACKING_URI": "sqlite:///x"}) is None


@pytest.mark.slow
def test_logs_of_an_ended_run_are_read_from_mlflow(
    postgres: Postgres, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Site(postgres, tmp_path, mlflow=MlflowLogs(server.uri), upstream=Upstream(server.uri))
    try:
        with made.ledger("toy", submitted=1000.5) as found:
            found.tell(complete(ask(found)))
        wait_until(lambda: not made.get("/runs/toy/status")["alive"], "PostgreSQL sees that the controller is gone")
        reply = made.ask("GET", "/runs/toy/log")
        assert "the controller's log is not there: MLflow has no such log of toy; " in reply.json()["error"]
        monkeypatch.setattr(mlflow, "set_tracking_uri", mlflow.set_tracking_uri)
        made.archive.set_token("toy", "the token of toy")
        door = Door(made, "toy")
        monkeypatch.setenv(env.MLFLOW_TOKEN, door.token)
        client, experiment = MlflowClient(door.uri), door.experiment()
        tags = {labels.RUN: "toy", labels.KIND: "study", labels.STATE: "SUCCEEDED"}
        client.create_run(experiment, tags={**tags, labels.RECORD: record(7.0)})  # a former one of its name
        parent = client.create_run(experiment, tags={**tags, labels.RECORD: record(1000.5)}).info.run_id
        trial = client.create_run(experiment, tags={labels.PARENT: parent, labels.NUMBER: "0"}).info.run_id
        cut = logs.notice(1000) + b"x" * 50 + b"the end"
        for run_id, name, data in (
            (parent, "controller.log", b"said"),
            (trial, "attempt-1.log", cut),
            (trial, "worker-2.log", b"played"),
        ):
            (tmp_path / name).write_bytes(data)
            client.log_artifact(run_id, str(tmp_path / name), "logs")
        said = made.ask("GET", "/runs/toy/log?from=1")
        assert (said.data, said.headers["x-trialplane-next"], said.headers["x-trialplane-growing"]) == (b"aid", "4", "0")
        assert made.ask("GET", "/runs/toy/log?trial=0&worker=2").data == b"played"
        assert made.ask("GET", "/runs/toy/log?trial=0&worker=3").code == 404
        whole = made.ask("GET", "/runs/toy/log?trial=0")
        assert (whole.data, whole.headers["x-trialplane-next"]) == (cut, "1057")
        for start, rest in (
            (999, b"x" * 50 + b"the end"),
            (1049, b"xthe end"),
            (1050, b"the end"),
            (1057, b""),
            (4000, b""),
        ):
            assert made.ask("GET", f"/runs/toy/log?trial=0&from={start}").data == rest, start
    finally:
        made.close()
