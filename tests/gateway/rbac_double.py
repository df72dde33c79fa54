"""The part of an API server that MLflow's plugin asks: namespaces by name, and RBAC by the chart's roles for MLflow."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import re
import threading
import urllib.parse
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[2] / "charts" / "platform" / "files" / "mlflow-roles.yaml"
_SELECTOR = re.compile(r"kubernetes\.io/metadata\.name in \(([\w,-]+)\)")


class Rbac:
    """Serves from a thread until it is closed.

    A namespace exists when somebody selects it, unless it is deleted.

    Args:
        folder: gets the kubeconfig.

    Attributes:
        kubeconfig: by which the plugin finds it.
    """

    def __init__(self, folder: Path) -> None:
        roles: dict[str, dict[str, list[str]]] = yaml.safe_load(ROLES.read_text())
        self._changed = changed = threading.Condition()  # for all of the following
        self._is_closed = False
        self._deleted: set[str] = set()
        self._events: list[dict[str, Any]] = []  # of namespaces; the resource version is their number and 1
        double = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                fields = dict(urllib.parse.parse_qsl(query))
                selected = _SELECTOR.fullmatch(fields.get("labelSelector", ""))
                is_config = path == "/apis/mlflow.kubeflow.org/v1/mlflowconfigs"  # of which there are none
                if not is_config and (path != "/api/v1/namespaces" or selected is None):
                    self._answer(404, {"kind": "Status", "status": "Failure", "code": 404})
                elif fields.get("watch", "").lower() == "true":
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self._watch(int(fields["resourceVersion"]) - 1 if selected else 1 << 30)
                else:
                    with changed:
                        names = set(selected[1].split(",") if selected else ()) - double._deleted
                        version = str(len(double._events) + 1)
                    listed = {"kind": "NamespaceList", "apiVersion": "v1", "metadata": {"resourceVersion": version}}
                    self._answer(200, {**listed, "items": [{"metadata": {"name": name}} for name in sorted(names)]})

            def _watch(self, first: int) -> None:
                """Send the events from that one on, until the double is closed or nobody listens."""
                with changed, contextlib.suppress(ConnectionError):
                    for number in itertools.count(first):
                        while not double._is_closed and len(double._events) <= number:
                            changed.wait()
                        if double._is_closed:
                            return
                        line = json.dumps(double._events[number]).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
                status = {"allowed": may(review["spec"])}
                self._answer(201, {**review, "status": status})

            def _answer(self, code: int, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name is the base class's
                return

        def may(spec: dict[str, Any]) -> bool:
            """Whether one of the caller's groups has the right, by the bindings that the chart makes in each namespace."""
            wanted = spec["resourceAttributes"]
            if wanted["group"] != "mlflow.kubeflow.org" or wanted.get("subresource"):
                return False
            held = set(spec.get("groups") or ())
            return any(
                f"trialplane:{role}:{wanted['namespace']}" in held and wanted["verb"] in rules.get(wanted["resource"], ())
                for role, rules in roles.items()
            )

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.kubeconfig = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "double", "cluster": cluster}],
                    "users": [{"name": "mlflow", "user": {"token": "x"}}],
                    "contexts": [{"name": "double", "context": {"cluster": "double", "user": "mlflow"}}],
                    "current-context": "double",
                }
            )
        )

    def delete(self, namespace: str) -> None:
        """Delete a namespace."""
        self._change("DELETED", namespace)

    def create(self, namespace: str) -> None:
        """Create a namespace that was deleted."""
        self._change("ADDED", namespace)

    def _change(self, kind: str, namespace: str) -> None:
        with self._changed:
            (self._deleted.add if kind == "DELETED" else self._deleted.discard)(namespace)
            metadata = {"name": namespace, "resourceVersion": str(len(self._events) + 2)}
            self._events.append({"type": kind, "object": {"kind": "Namespace", "apiVersion": "v1", "metadata": metadata}})
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
