"""What the probe says of an image and of a pod: every failure with its cure, the real checks on this machine where they can
be had, and the processes that compute and sum.

Not checked here: NCCL and CUDA (marker gpu below), and a pod of a cluster (tests/e2e).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.gateway.certificates import Authority

from trialplane import policies
from trialplane.gateway.tls import Certificate
from trialplane.policies import protobuf
from trialplane.wire import env, records
from trialplane.wire.findings import Finding, Verdict
from trialplane.worker.probe import devices, pod
from trialplane.worker.probe.pod import Reachability

CONTROLLER = {name: value for name, value in policies.trial_env().items() if name not in protobuf.ENV}


def probe(*words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in policies.trial_env()}
    command = [sys.executable, "-m", "trialplane.worker.probe", *words]
    return subprocess.run(command, env={**kept, **environ}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("role", "environ"), [("trial", policies.trial_env()), ("controller", CONTROLLER)])
def test_an_image_that_keeps_its_policies_builds(role, environ) -> None:
    done = probe("--image", role, environ=environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pass  policy") == len(policies.ALL)


@pytest.mark.parametrize("missing", sorted(policies.trial_env()))
def test_an_image_without_one_variable_does_not_build(missing) -> None:
    environ = {name: value for name, value in policies.trial_env().items() if name != missing}
    done = probe("--image", "trial", environ=environ)
    assert done.returncode == 1
    assert f"fail  policy {policy_of(missing)}: {missing} is None" in done.stderr


def policy_of(variable: str) -> str:
    return next(policy.__name__.rpartition(".")[2] for policy in policies.ALL if variable in policy.ENV)


def test_a_controllers_image_with_the_slow_protobuf_does_not_build() -> None:
    done = probe("--image", "controller", environ=policies.trial_env())
    assert done.returncode == 1
    assert "fail  policy protobuf" in done.stderr


STATUS = "Name:\tpython\nCapEff:\t{caps}\nNoNewPrivs:\t{new}\nSeccomp:\t{seccomp}\n"
LOCKED = STATUS.format(caps="0000000000000000", new=1, seccomp=2)
SEEN = {"torch": "2.13.0", "cuda": "13.0", "devices": ["H200", "H200"]}

BAD = {
    "root": (pod.check_user(0), "is root"),
    "capabilities": (
        pod.check_privileges(STATUS.format(caps="00000000a80425fb", new=1, seccomp=2)),
        "has capabilities (00000000a80425fb)",
    ),
    "new privileges": (pod.check_privileges(STATUS.format(caps="0", new=0, seccomp=2)), "may gain privileges"),
    "no seccomp": (pod.check_privileges(STATUS.format(caps="0", new=1, seccomp=0)), "no seccomp profile"),
    "a root file system": (pod.check_read_only_root(0), "can be written"),
    "a token": (pod.check_no_token(True), "has a token"),
    "folders": (pod.check_writable(["/proc/none"]), "/proc/none: No such file or directory"),
    "shared memory": (pod.check_shared_memory(2**26, 2**30), "64 MiB, and the pod requested 1024"),
    "data": (pod.check_data_volume("/nowhere/at/all"), "No such file"),
    "MLflow away": (pod.check_mlflow("http://m:5000", 0, "timed out"), "cannot be reached: timed out"),
    "MLflow broken": (pod.check_mlflow("http://m:5000", 500, "oops"), "answers 500: oops"),
    "PostgreSQL": (pod.check_unreachable("PostgreSQL", "db:5432", Reachability.OPEN), "a trial reaches db:5432"),
    "torch": (devices.judge_matmul(0, None, "killed by signal 6: oops"), "killed by signal 6"),
    "CUDA": (devices.judge_matmul(1, None, "exit code 1: no kernel image"), "no kernel image"),
    "GPUs": (devices.judge_matmul(4, SEEN, ""), "sees 2 of 4 GPUs"),
    "NCCL": (devices.judge_reduce("nccl", 2, [], "did not end within 180 s"), "2 processes, nccl: did not end"),
    "gloo": (devices.judge_reduce("gloo", 2, [], "exit code 1: refused"), "gloo: exit code 1"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_fails_and_comes_with_its_cure(what: str) -> None:
    finding, message = BAD[what]
    assert finding.verdict is Verdict.FAIL
    assert message in finding.message
    assert len(finding.fix) > 20


def test_the_cures_name_what_to_change() -> None:
    assert "networkPolicy.enabled" in pod.check_unreachable("x", "x:1", Reachability.OPEN).fix
    assert "DEVICE=cuda" in devices.judge_matmul(1, {**SEEN, "devices": []}, "").fix
    assert "NCCL_DEBUG" in devices.judge_reduce("nccl", 2, [], "x").fix


@pytest.mark.parametrize(
    "finding",
    [
        pod.check_shared_memory(2**26, 0),
        pod.check_unreachable("x", "x:1", Reachability.REFUSED),
        pod.check_unreachable("x", "x:1", Reachability.UNKNOWN),
    ],
)
def test_what_is_doubtful_is_a_warning(finding: Finding) -> None:
    assert finding.verdict is Verdict.WARN
    assert finding.fix


@pytest.mark.parametrize(
    "finding",
    [
        pod.check_user(1000),
        pod.check_privileges(LOCKED),
        pod.check_read_only_root(os.ST_RDONLY),
        pod.check_no_token(False),
        pod.check_writable(["/tmp"]),
        pod.check_shared_memory(2**30, 2**30),
        pod.check_mlflow("http://m:5000", 200, ""),
        pod.check_unreachable("x", "x:1", Reachability.SHUT),
        devices.judge_matmul(2, SEEN, ""),
        devices.judge_reduce("nccl", 2, [{"seconds": 0.001, "bytes": 2**26}] * 2, ""),
    ],
    ids=lambda finding: finding.check,
)
def test_what_is_well_passes_without_a_cure(finding: Finding) -> None:
    assert finding.verdict is Verdict.PASS
    assert finding.fix == ""


def test_this_process_is_read_as_it_is() -> None:
    assert pod.check_privileges(pod.PROC_STATUS.read_text()).check == "privileges"


def test_folders_are_tried_and_made(tmp_path) -> None:
    assert pod.check_writable([str(tmp_path / "new" / "deep")]).verdict is Verdict.PASS
    assert list((tmp_path / "new" / "deep").iterdir()) == []
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in pod.check_writable([str(tmp_path / "file")]).message


def test_a_data_volume_is_read(tmp_path) -> None:
    assert pod.check_data_volume(str(tmp_path)).verdict is Verdict.WARN
    (tmp_path / "train.csv").touch()
    assert pod.check_data_volume(str(tmp_path)).message.endswith("has 1 entries")


@contextlib.contextmanager
def server(status: int, certificate: Certificate | None = None) -> Iterator[str]:
    """A gateway that says of MLflow with one status how it is."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/mlflow/health"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"said")

        def log_message(self, *_: object) -> None:
            return

    made = HTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        made.socket = certificate.context.wrap_socket(made.socket, server_side=True)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'' if certificate is None else 's'}://127.0.0.1:{made.server_port}/mlflow"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def test_the_gateway_is_asked_whether_mlflow_answers() -> None:
    with server(200) as url:
        assert pod.query(url) == (200, "")
    with server(403) as url:
        assert pod.query(f"{url}/") == (403, "said")
    assert pod.query(url)[0] == 0


def test_a_gateway_with_a_certificate_is_asked_with_its_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Authority().write(tmp_path, "127.0.0.1")
    with server(200, Certificate(tmp_path)) as url:
        assert "CERTIFICATE_VERIFY_FAILED" in pod.query(url)[1]
        monkeypatch.setenv(env.MLFLOW_CA, str(tmp_path / "ca.crt"))
        assert pod.query(url) == (200, "")


def test_a_port_that_listens_is_open_and_one_that_does_not_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert pod.reachability("127.0.0.1", port, patience=0) is Reachability.OPEN
    assert pod.reachability("127.0.0.1", port, patience=0) is Reachability.REFUSED
    assert pod.reachability("no-such-host.invalid", 1, patience=0) is Reachability.UNKNOWN


@pytest.mark.slow
def test_a_whole_probe_prints_one_finding_a_line_and_ends_with_0(tmp_path) -> None:
    """On this machine: torch computes, two processes sum; user and file system are whatever they are here."""
    environ = {**policies.trial_env(), "HOME": str(tmp_path), "TRIALPLANE_HOME": str(tmp_path / "home")}
    done = probe("--closed", "nobody=no-such-host.invalid:1", environ=environ)
    assert done.returncode == 0, done.stderr
    found = {one.check: one for one in (records.from_json(Finding, line) for line in done.stdout.splitlines())}
    for check in (
        "torch",
        "all-reduce",
        "folders",
        *(f"policy {name}" for name in ("protobuf", "spawn", "pickling", "transport")),
    ):
        assert found[check].verdict is Verdict.PASS, found[check]
    assert found["no way to nobody"].verdict is Verdict.WARN
    assert "MLflow" not in found


@pytest.mark.slow
def test_a_process_that_dies_or_hangs_is_told_with_its_last_words(monkeypatch) -> None:
    (finding,) = (
        list(devices.check_devices(1)) if not Path("/dev/nvidia0").exists() else [devices.judge_matmul(1, None, "x")]
    )
    assert finding.verdict is Verdict.FAIL
    seen, problem = devices.run_processes([["reduce", "no-such-backend", "0", "1", "/tmp/never"]])
    assert seen == []
    assert "no-such-backend" in problem.lower() or "exit code" in problem
    monkeypatch.setattr(devices, "LIMIT", 0.2)
    assert devices.run_processes([["matmul", "0"]]) == ([], "did not end within 0 s")


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs a GPU")
def test_all_gpus_of_this_machine_compute_and_sum() -> None:
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    for finding in devices.check_devices(gpus):
        assert finding.verdict is Verdict.PASS, finding


def test_findings_are_json_that_reads_back() -> None:
    finding = pod.check_user(0)
    assert records.from_json(Finding, records.to_json(finding)) == finding
    assert json.loads(records.to_json(finding))["verdict"] == "fail"
