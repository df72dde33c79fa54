"""What a trial's pod reaches: MLflow, and neither the database nor the API server."""

from __future__ import annotations

import enum
import socket
import time
import urllib.error
import urllib.request

from trialplane import errors
from trialplane.wire import findings
from trialplane.wire.findings import Finding

TIMEOUT = 5.0
# A network policy takes effect some seconds after a pod has started.
PATIENCE = 15.0


def ask(url: str) -> tuple[int, str]:
    """Status and words of MLflow's answer to a question that needs its database; status 0 when it did not answer."""
    address = f"{url.rstrip('/')}/api/2.0/mlflow/experiments/search?max_results=1"
    try:
        with urllib.request.urlopen(address, timeout=2 * TIMEOUT) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.read(200).decode(errors="replace")
    except (OSError, ValueError) as error:
        return 0, errors.first_line(error)


def mlflow(url: str, status: int, said: str) -> Finding:
    """MLflow answers a trial."""
    check = "MLflow"
    if status == 200:
        return findings.passed(check, f"{url} answers")
    if status == 0:
        cure = "look at its pod (`kubectl get pods`), its service and the network policies of the namespace"
        return findings.failed(check, f"{url} cannot be reached: {said}", cure)
    if status == 401:
        # What trials log themselves reaches MLflow through the controller, which has the password.
        return findings.passed(check, f"{url} answers and asks for a password, as it should")
    if status == 403:
        cure = "add the host of this address to `mlflow.allowedHosts` in the chart's values"
        return findings.failed(check, f"{url} refuses the Host header: {said}", cure)
    return findings.failed(
        check, f"{url} answers {status}: {said}", "look at the log of its pod: `kubectl get pods` names it"
    )


class Way(enum.Enum):
    """What became of attempts to connect."""

    OPEN = "open"
    REFUSED = "refused"
    SHUT = "shut"
    UNKNOWN = "unknown"  # the host has no address


def way(host: str, port: int, patience: float = PATIENCE) -> Way:
    """Whether a port can be reached, or still can after `patience` seconds."""
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
    except OSError:
        return Way.UNKNOWN
    end = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((str(address[0]), int(address[1])), timeout=TIMEOUT).close()
            seen = Way.OPEN
        except ConnectionRefusedError:
            seen = Way.REFUSED
        except OSError:
            return Way.SHUT
        if time.monotonic() > end:
            return seen
        time.sleep(0.5)


def closed(name: str, address: str, seen: Way) -> Finding:
    """A place that a trial must not reach."""
    check = f"no way to {name}"
    if seen is Way.OPEN:
        cure = (
            "the cluster's network plugin must enforce NetworkPolicy, and `networkPolicy.enabled` of the chart be true; "
            "a pod always reaches its own node, so that a cluster of one node cannot keep it from the API server"
        )
        return findings.failed(check, f"a trial reaches {address}", cure)
    if seen is Way.UNKNOWN:
        return findings.warned(check, f"{address} has no address", "look at the service and at the cluster's DNS")
    if seen is Way.REFUSED:
        cure = "make sure that it runs, and look again; some network plugins refuse instead of dropping"
        return findings.warned(check, f"{address} refuses, which a policy may do or a service without pods", cure)
    return findings.passed(check, f"{address} cannot be reached")
