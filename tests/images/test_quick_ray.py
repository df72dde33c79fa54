"""jobs/image/quick_ray.py: what the images' `ray` answers by itself, and what it hands on to Ray's own command.

The server that answers is a real gRPC server, as Ray's GCS is one; the GCS itself is asked in tests/e2e, where no worker
starts without it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import ModuleType

import grpc
import pytest
import ray
from tests.images import programs
from tests.ports import free_port

from trialplane.policies import protobuf
from trialplane.training import process

SERVERS = ("gcs_server", "raylet", "dashboard.py", "ray.util.client.server")  # of a head as Ray starts it
PROGRAM = programs.FOLDER / "quick_ray.py"


@pytest.fixture(scope="module")
def quick_ray() -> ModuleType:
    return programs.load("quick_ray")


@pytest.fixture
def gcs() -> Iterator[int]:
    """Port of a gRPC server without any service."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that listens and says nothing by itself."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The program, with what it imports in its stderr."""
    environ = {name: value for name, value in os.environ.items() if name != "RAY_USE_TLS"}
    command = [sys.executable, "-X", "importtime", str(PROGRAM), *words]
    environ["RAY_AUTH_MODE"] = "disabled"
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def imported(said: subprocess.CompletedProcess[str]) -> set[str]:
    return {line.rpartition("|")[2].strip() for line in said.stderr.splitlines() if line.startswith("import time:")}


def test_a_living_server_is_healthy_and_ray_is_not_imported(gcs) -> None:
    done = run("health-check", "--address", f"127.0.0.1:{gcs}")
    assert done.returncode == 0
    assert "ray" not in imported(done)


def test_nobody_there_is_not_healthy(listener) -> None:
    port = listener.getsockname()[1]
    listener.close()
    done = run("health-check", "--address", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert "ray" not in imported(done)


def test_a_server_that_only_takes_connections_is_not_healthy(quick_ray, listener, monkeypatch) -> None:
    monkeypatch.setattr(quick_ray, "_PATIENCE", 0.2)
    assert not quick_ray.speaks_http2(*listener.getsockname())


@pytest.mark.parametrize("said", [b"", b"\0\0\0\4", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_of_another_kind_is_not_healthy(quick_ray, listener, said) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(said)

    other = threading.Thread(target=serve)
    other.start()
    assert not quick_ray.speaks_http2(*listener.getsockname())
    other.join()


def test_every_other_command_is_rays_own_without_serve() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.strip().endswith(f", version {ray.__version__}")
    assert "ray.scripts.scripts" in imported(done)
    assert "ray.serve" not in imported(done)


@pytest.mark.parametrize(("given", "used"), [("python", "upb"), ("upb", "upb")])
def test_ray_gets_the_fast_protobuf(monkeypatch, given, used) -> None:
    code = (
        f"import runpy, sys; sys.argv = ['ray', '--version']; sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        "try: runpy.run_module('quick_ray', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "from google.protobuf.internal import api_implementation; print(api_implementation.Type())"
    )
    environ = {**os.environ, protobuf.VARIABLE: given, "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == used


def test_a_health_check_of_another_kind_is_rays_own(gcs) -> None:
    done = run("health-check", "--address", f"127.0.0.1:{gcs}", "--help")
    assert done.returncode == 0
    assert "--component" in done.stdout


@pytest.mark.parametrize(("first", "code"), [(b"bash\0-c\0while ! ray health-check\0", 0), (b"bash\0-c\0ray start\0", 1)])
def test_the_check_of_an_init_container_leaves_the_wait_to_the_worker(quick_ray, monkeypatch, tmp_path, first, code) -> None:
    monkeypatch.setattr(quick_ray, "_FIRST_PROCESS", tmp_path / "cmdline")
    (tmp_path / "cmdline").write_bytes(first)
    assert quick_ray.main(["health-check", "--address", f"127.0.0.1:{free_port()}"]) == code


@pytest.mark.services
def test_a_head_has_no_servers_that_no_run_uses(quick_ray) -> None:
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a path that is short enough for Ray's sockets
        words = ["start", "--head", "--block", f"--port={address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1"]
        words += ["--include-dashboard=false", "--no-monitor", f"--dashboard-agent-listen-port={free_port()}"]
        environ = {name: value for name, value in os.environ.items() if name != "RAY_USE_TLS"} | {
            "RAY_AUTH_MODE": "disabled"
        }
        command = [sys.executable, str(PROGRAM), *words, f"--temp-dir={folder}"]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as head:
            try:
                assert head.stdout is not None
                assert any("Ray runtime started" in line for line in head.stdout)
                commands = [Path(f"/proc/{child}/cmdline").read_text() for child in process.children(head.pid)]
                join = f"import ray; ray.init({address!r}); print([node['Alive'] for node in ray.nodes()])"
                joined = subprocess.run(
                    [sys.executable, "-c", join], env=environ, capture_output=True, text=True, check=True
                )
            finally:
                head.terminate()
    assert joined.stdout == "[True]\n"
    assert [name for name in SERVERS if any(name in command for command in commands)] == ["gcs_server", "raylet"]


def test_a_worker_waits_for_its_head() -> None:
    port = free_port()
    environ = {name: value for name, value in os.environ.items() if name != "RAY_USE_TLS"} | {"RAY_AUTH_MODE": "disabled"}
    # The help is printed by Ray's own command, once the wait is over.
    command = [sys.executable, str(PROGRAM), "start", f"--address=127.0.0.1:{port}", "--num-cpus=1", "--help"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == f"waiting for Ray's head at 127.0.0.1:{port}\n"
        assert worker.poll() is None
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
        assert server.add_insecure_port(f"127.0.0.1:{port}") == port
        server.start()
        assert worker.stdout.readline().startswith("Usage:")
        worker.stdout.read()
    server.stop(None)
    assert worker.returncode == 0


def test_a_worker_whose_head_does_not_come_is_left_to_ray(quick_ray, monkeypatch, capsys) -> None:
    monkeypatch.setattr(quick_ray, "_HEAD_PATIENCE", 0.0)
    quick_ray.wait_for_head("127.0.0.1", free_port())
    assert "waiting for Ray's head" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["start", "--head"], ["start", "--address=auto"], ["status"]])
def test_other_commands_wait_for_nobody(quick_ray, words) -> None:
    assert quick_ray.head_address(words) is None
