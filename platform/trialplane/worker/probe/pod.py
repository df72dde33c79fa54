"""Checks of a trial's pod: the four policies, its process, its files, and its network access."""

from __future__ import annotations

import enum
import importlib
import os
import socket
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from trialplane import errors, policies
from trialplane.policies import protobuf
from trialplane.wire import env, findings
from trialplane.wire.findings import Finding

PROC_STATUS = Path("/proc/self/status")
TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MIB = 2**20
_MANIFEST = "submit with this version of `platform`, and check for a webhook of the cluster that changes pods"
_IMAGE = "use an image built from jobs/Dockerfile, and leave the variable out of `env` in the chart's values"
TIMEOUT = 5.0  # seconds
# A network policy takes effect some seconds after a pod has started.
PATIENCE = 15.0


def check_user(uid: int) -> Finding:
    """Check that the process is not root."""
    if uid == 0:
        return findings.failed("user", "the process is root", _MANIFEST)
    return findings.passed("user", f"uid {uid}, not root")


def check_privileges(status: str) -> Finding:
    """Check that the process has no capabilities, cannot gain privileges, and has a seccomp profile.

    Args:
        status: Contents of /proc/self/status.
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    problems = []
    if int(fields["CapEff"], 16):
        problems.append(f"has capabilities ({fields['CapEff'].strip()})")
    if fields.get("NoNewPrivs", "").strip() != "1":
        problems.append("may gain privileges")
    if fields.get("Seccomp", "").strip() != "2":  # the kernel's number for a filter
        problems.append("has no seccomp profile")
    if problems:
        return findings.failed("privileges", f"the process {', '.join(problems)}", _MANIFEST)
    return findings.passed("privileges", "no capabilities, no new privileges, seccomp")


def check_read_only_root(flags: int) -> Finding:
    """Check that the root file system cannot be written.

    Args:
        flags: `f_flag` of statvfs("/").
    """
    if not flags & os.ST_RDONLY:
        return findings.failed("root file system", "it can be written", _MANIFEST)
    return findings.passed("root file system", "read-only")


def check_no_token(exists: bool) -> Finding:
    """Check that the pod has no token of its service account."""
    if exists:
        return findings.failed("token", f"the pod has a token of its service account: {TOKEN}", _MANIFEST)
    return findings.passed("token", "none")


def check_writable(folders: Sequence[str]) -> Finding:
    """Check that trials can create files in folders, which are created if they are missing."""
    problems = []
    for folder in folders:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                file.write(b"probe")
        except OSError as error:
            problems.append(f"{folder}: {error.strerror}")
    if problems:
        return findings.failed("folders", f"cannot be written: {'; '.join(problems)}", _MANIFEST)
    return findings.passed("folders", f"{' and '.join(folders)} can be written")


def check_shared_memory(size: int, requested: int) -> Finding:
    """Check that /dev/shm is large enough.

    Args:
        size: Size in bytes.
        requested: Size that the pod requested, in bytes; 0 for none.
    """
    if size < requested:
        message = f"{size // _MIB} MiB, and the pod requested {requested // _MIB}"
        return findings.failed("/dev/shm", message, _MANIFEST)
    if size <= 64 * _MIB:
        message = f"{size // _MIB} MiB, too little for data loaders with workers"
        return findings.warned("/dev/shm", message, "set resources.shm in job.yaml, for example 1Gi")
    return findings.passed("/dev/shm", f"{size // _MIB} MiB")


def check_data_volume(folder: str) -> Finding:
    """Check that the volume with data for trials can be read."""
    try:
        count = sum(1 for _ in Path(folder).iterdir())
    except OSError as error:
        remedy = "let uid or group 1000 read the volume"
        return findings.failed("data volume", f"{folder} cannot be read: {error.strerror}", remedy)
    if not count:
        return findings.warned("data volume", f"{folder} is empty", "copy your data into the volume")
    return findings.passed("data volume", f"{folder} has {count} entries")


def check_trial_policies() -> Iterator[Finding]:
    """Check the policies in a trial's pod."""
    for policy in policies.ALL:
        yield _check_policy(policy)


def check_image_policies(role: str) -> Iterator[Finding]:
    """Check the policies in an image.

    Args:
        role: "trial", or "controller", which has protobuf's fast implementation.
    """
    if role == "trial":
        yield from check_trial_policies()
        return
    for policy in policies.ALL:
        if policy is not protobuf:
            yield _check_policy(policy)
    yield _check_controller_protobuf()


def _check_policy(policy: ModuleType) -> Finding:
    """Check one policy: its variables must be set already, and the policy must hold after it is applied."""
    check = f"policy {policy.__name__.rpartition('.')[2]}"
    for variable, value in policy.ENV.items():
        if os.environ.get(variable) != value:
            return findings.failed(check, f"{variable} is {os.environ.get(variable)!r} and not {value!r}", _IMAGE)
    policy.apply()
    if policy is protobuf:
        _import_protobuf()  # check() inspects the loaded module
    try:
        policy.check()
    except errors.PolicyError as error:
        return findings.failed(check, str(error), _IMAGE)
    facts = [f"{variable}={value}" for variable, value in policy.ENV.items()]
    if policy is protobuf:
        facts.append(f"protobuf runs as {protobuf.implementation()}")
    return findings.passed(check, ", ".join(facts))


def _check_controller_protobuf() -> Finding:
    """Check that protobuf has its fast implementation, as the controller needs."""
    if protobuf.VARIABLE in os.environ:
        message = f"{protobuf.VARIABLE} is set, which makes the controller two orders of magnitude slower"
        return findings.failed("policy protobuf", message, "leave it out of the controller's image and variables")
    _import_protobuf()
    implementation = protobuf.implementation()
    if implementation == "python":
        remedy = "install a protobuf wheel that was made for this platform"
        return findings.failed("policy protobuf", "protobuf has no fast implementation here", remedy)
    return findings.passed("policy protobuf", f"protobuf runs as {implementation}, the fast one")


def _import_protobuf() -> None:
    importlib.import_module("google.protobuf.internal.api_implementation")


def query(url: str) -> tuple[int, str]:
    """Request MLflow's health from the gateway.

    Returns:
        Status and "" for a success, status and body for an HTTP error, or 0 and the reason why no answer came.
    """
    address = f"{url.rstrip('/')}/health"
    try:
        context = ssl.create_default_context(cafile=os.environ.get(env.MLFLOW_CA))
        with urllib.request.urlopen(address, timeout=2 * TIMEOUT, context=context) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.read(200).decode(errors="replace")
    except (OSError, ValueError) as error:
        return 0, errors.first_line(error)


def check_mlflow(url: str, status: int, body: str) -> Finding:
    """Judge the gateway's answer about MLflow, as `query` returns it."""
    check = "MLflow"
    if status == 200:
        return findings.passed(check, f"{url} answers")
    if status == 0:
        remedy = "check the gateway's pod (`kubectl get pods`), its service and the network policies of the namespace"
        return findings.failed(check, f"{url} cannot be reached: {body}", remedy)
    return findings.failed(
        check, f"{url} answers {status}: {body}", "see the message, and the logs of the gateway and of MLflow"
    )


class Reachability(enum.Enum):
    """The result of attempts to connect."""

    OPEN = "open"
    REFUSED = "refused"
    SHUT = "shut"  # no answer within the time limit
    UNKNOWN = "unknown"  # the host has no address


def reachability(host: str, port: int, patience: float = PATIENCE) -> Reachability:
    """Try to connect to a port until an attempt gets no answer, at most for `patience` seconds; return the last result.

    A port that is open at first may be shut later, because a network policy takes effect some seconds after the start.
    """
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    except OSError:
        return Reachability.UNKNOWN
    end = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((str(address[0]), int(address[1])), timeout=TIMEOUT).close()
            state = Reachability.OPEN
        except ConnectionRefusedError:
            state = Reachability.REFUSED
        except OSError:
            return Reachability.SHUT
        if time.monotonic() > end:
            return state
        time.sleep(0.5)


def check_unreachable(name: str, address: str, state: Reachability) -> Finding:
    """Judge by the attempts to connect whether the address of a service that a trial must not reach is unreachable."""
    check = f"no way to {name}"
    if state is Reachability.OPEN:
        remedy = (
            "the cluster's network plugin must enforce NetworkPolicy, and `networkPolicy.enabled` of the chart be true; "
            "a pod always reaches its own node, so that a cluster of one node cannot keep it from the API server"
        )
        return findings.failed(check, f"a trial reaches {address}", remedy)
    if state is Reachability.UNKNOWN:
        return findings.warned(check, f"{address} has no address", "check the service and the cluster's DNS")
    if state is Reachability.REFUSED:
        remedy = "make sure that it runs, and check again; some network plugins refuse instead of dropping"
        return findings.warned(check, f"{address} refuses, which a policy may do or a service without pods", remedy)
    return findings.passed(check, f"{address} cannot be reached")
