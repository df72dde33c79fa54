"""Forwards a loopback port of this machine to a service in a cluster, as `kubectl port-forward` does.

Each connection gets its own stream to a pod that is ready at that moment, so replacing a pod breaks only the
connections it had.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from trialplane.client import kinds
from trialplane.client.cluster import Cluster
from trialplane.errors import InputError, TargetError

_PIECE = 2**16


class Forward:
    """Listens on a port until it is closed.

    Args:
        cluster: where the service is.
        service: its name.
        port: of the service.
        listener: listens at a port of this machine; closed by `close`.
        report: called with the reason when a connection could not be made.
    """

    def __init__(
        self, cluster: Cluster, service: str, port: int, listener: socket.socket, report: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._service = service
        self._port = port
        self._report = report
        self._listener = listener

    def __enter__(self) -> Forward:
        threading.Thread(target=self._accept, daemon=True, name=f"forward to {self._service}").start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accepts no more connections; open ones end with the process."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def connect(self) -> Any:
        """A stream to a pod of the service; see `Cluster.forward`.

        Raises:
            TargetError: none of its pods is ready.
        """
        service = self._cluster.read(kinds.SERVICE, self._service)
        if service is None:
            raise TargetError(f"there is no service {self._service} in {self._cluster.place}; `helm upgrade` recreates it")
        selector = ",".join(f"{key}={value}" for key, value in (service["spec"].get("selector") or {}).items())
        pods = [pod for pod in self._cluster.list(kinds.POD, selector=selector) if _is_ready(pod)]
        if not pods:
            raise TargetError(
                f"no pod of {self._service} in {self._cluster.place} is ready; "
                f"`kubectl -n {self._cluster.namespace} get pods -l {selector}` shows them"
            )
        entry = next((one for one in service["spec"]["ports"] if one["port"] == self._port), service["spec"]["ports"][0])
        return self._cluster.forward(pods[0]["metadata"]["name"], _number(pods[0], entry.get("targetPort", self._port)))

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                stream = self.connect()
            except (TargetError, InputError) as error:
                self._report(str(error))
                return
            with contextlib.closing(stream):
                back = threading.Thread(target=_pump, args=(stream, client), daemon=True)
                back.start()
                _pump(client, stream)
                back.join()


def _pump(source: Any, target: Any) -> None:
    """Copies until the source ends, then ends the target."""
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    for one in (target, source):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _number(pod: dict[str, Any], port: int | str) -> int:
    """A target port as a number; pods may name their ports."""
    if isinstance(port, int):
        return port
    named = {one.get("name"): one["containerPort"] for box in pod["spec"]["containers"] for one in box.get("ports") or []}
    if port not in named:
        raise TargetError(f"the pod {pod['metadata']['name']} has no port {port}")
    return int(named[port])
