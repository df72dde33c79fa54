"""One namespace of a Kubernetes cluster, as plain JSON objects.

Requests are paths and JSON; `connections` has the credentials, `refusal` what the API server refuses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3

from trialplane.errors import InputError, TargetError
from trialplane.kube import connections, kinds, kubeconfig, refusal
from trialplane.kube.kinds import ObjectKind
from trialplane.wire import cluster as names
from trialplane.wire import logs

CONNECT = 5.0  # seconds until a connection must be established
READ = 30.0  # seconds an answer may take
# Seconds until Kubernetes counts a new kind of object: it notices the CRD within 30, and counts again every 300.
QUOTA_PATIENCE = 360.0
QUOTA_PAUSE = 2.0  # seconds between attempts
_LOG = logging.getLogger(__name__)
_POD = "this cluster"  # shown in a pod, which has no context
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclasses.dataclass(frozen=True)
class ApiResponse:
    """Response of the API server; `headers` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON values.

        Raises:
            TargetError: it is nested deeper than this Python takes it; the API server takes 10,000 levels.
        """
        try:
            return json.loads(self.data)
        except RecursionError as error:
            raise TargetError(
                "an object in the API server's answer is nested too deep to be read; `kubectl get` shows which, and whoever "
                "made it should delete it"
            ) from error


@dataclasses.dataclass(frozen=True)
class Applied:
    """An object after an apply, and whether that created it."""

    thing: Mapping[str, Any]
    is_new: bool


class Cluster:
    """One context of the kubeconfig and one namespace. May be used from several threads.

    Args:
        context: of the kubeconfig, its current one when None.
        namespace: the context's when None, "default" when it has none.

    Raises:
        InputError: there is no kubeconfig, or no such context in it.
        TargetError: the credentials cannot be obtained.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        chosen = kubeconfig.read(context)
        if chosen is not None:
            self.context, default_namespace = chosen.name, chosen.namespace
        elif context is None and os.environ.get("KUBERNETES_SERVICE_HOST") and (_ACCOUNT / "token").exists():
            self.context, default_namespace = _POD, (_ACCOUNT / "namespace").read_text().strip()
        else:
            raise InputError(
                f"there is no kubeconfig ({kubeconfig.names()}), so no cluster is known; set KUBECONFIG, or run on this "
                "machine with --local"
            )
        self.namespace = namespace or default_namespace or "default"
        self._settings = connections.settings(chosen)
        try:
            self._pool = connections.pool(self._settings)
        except ssl.SSLError as error:
            raise TargetError(
                f"the kubeconfig {kubeconfig.names()} has an invalid certificate or key for {self.context}: {error}"
            ) from error
        except ImportError as error:
            raise TargetError(f"the proxy of {self.context} needs PySocks: `pip install PySocks` ({error})") from error

    @property
    def place(self) -> str:
        """The namespace and the cluster, for messages."""
        return f"namespace {self.namespace} of {self.context}"

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._settings.host)

    def authorization(self) -> dict[str, str]:
        """The header of that name, or none; the package renews tokens when it is time."""
        setting = self._settings.auth_settings().get("BearerToken")
        return {"authorization": str(setting["value"])} if setting else {}

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout: float = READ,
    ) -> ApiResponse:
        """Send one request; return the response, whatever its status.

        Args:
            method: GET, PUT, …
            path: with its leading /.
            query: parameters after the ?.
            body: plain JSON values, or None for none.
            content: type of the body.
            headers: additional ones.
            timeout: seconds the response may take.

        Raises:
            TargetError: the cluster cannot be reached.
        """
        answer = self._send(method, path, query, body, content, headers, timeout, whole=True)
        return ApiResponse(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.data)

    def read(self, kind: ObjectKind, name: str) -> dict[str, Any] | None:
        """One object, or None when there is none of that name."""
        answer = self.call("GET", self._path(kind, name))
        if answer.status == 404 and refusal.is_about_an_object(answer.data):
            return None
        thing: dict[str, Any] = self._checked(answer, "get", kind).json()
        return thing

    def list(
        self, kind: ObjectKind, selector: str = "", fields: str = "", limit: int = 0, everywhere: bool = False
    ) -> list[dict[str, Any]]:
        """The objects of a kind that match both selectors, in our namespace if they are namespaced.

        Args:
            kind: of the objects.
            selector: by labels: `a=b,c`.
            fields: by fields: `type=Warning`.
            limit: most objects to return; 0 is all.
            everywhere: in all namespaces.
        """
        query = {"labelSelector": selector, "fieldSelector": fields, "limit": str(limit) if limit else ""}
        path = self._path(dataclasses.replace(kind, namespaced=kind.namespaced and not everywhere))
        answer = self.call("GET", path, query={key: value for key, value in query.items() if value})
        items: list[dict[str, Any]] = self._checked(answer, "list", kind).json()["items"]
        return items

    def apply(self, thing: Mapping[str, Any], manager: str, *, force: bool) -> Applied | None:
        """Server-side apply; None, and nothing changed, on a conflict with another field manager.

        Args:
            thing: the object.
            manager: our field manager.
            force: whether to override other managers.
        """
        kind = kinds.APPLIED[thing["kind"]]
        path = self._path(kind, thing["metadata"]["name"])
        query = {"fieldManager": manager, "force": str(force).lower()}
        deadline = time.monotonic() + (QUOTA_PATIENCE if kind is kinds.RUN else 0)
        warned = False
        while True:
            answer = self.call("PATCH", path, query=query, body=thing, content="application/apply-patch+yaml")
            # Kubernetes counts a new kind of object only some time after the CRD, and refuses it until then.
            if answer.status != 403 or b"status unknown for quota" not in answer.data or time.monotonic() > deadline:
                break
            if not warned:
                _LOG.warning(
                    "%s: Kubernetes has not applied the quota to new runs yet; trying again for up to %d minutes "
                    "(this happens once, after the chart's installation)",
                    self.namespace,
                    QUOTA_PATIENCE / 60,
                )
                warned = True
            time.sleep(QUOTA_PAUSE)
        if answer.status == 409 and not force:
            return None
        return Applied(self._checked(answer, "patch", kind).json(), answer.status == 201)

    def patch(self, kind: ObjectKind, name: str, body: Any, *, status: bool = False) -> dict[str, Any]:
        """A JSON merge patch (a mapping) or a JSON patch (a list) of one object, or of its status."""
        content = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        path = self._path(kind, name) + ("/status" if status else "")
        answer = self.call("PATCH", path, body=body, content=content)
        applied: dict[str, Any] = self._checked(answer, "patch", kind).json()
        return applied

    def create(self, kind: ObjectKind, thing: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; one of that name must not exist."""
        created: dict[str, Any] = self._checked(self.call("POST", self._path(kind), body=thing), "create", kind).json()
        return created

    def delete(
        self,
        kind: ObjectKind,
        name: str,
        *,
        now: bool = False,
        foreground: bool = False,
        only: Mapping[str, Any] | None = None,
    ) -> bool:
        """Delete an object, and in the background what it owns; False when there was none.

        Args:
            kind: of the objects.
            name: of it.
            now: without a grace period for its processes.
            foreground: it stays, being deleted, until what it owns is gone.
            only: the object as it was read; one that was changed or replaced since is not deleted, which is an error.
        """
        policy = "Foreground" if foreground else "Background"
        body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
        if now:
            body["gracePeriodSeconds"] = 0
        if only is not None:
            body["preconditions"] = {key: only["metadata"][key] for key in ("uid", "resourceVersion")}
        answer = self.call("DELETE", self._path(kind, name), body=body)
        if answer.status == 404 and refusal.is_about_an_object(answer.data):
            return False
        self._checked(answer, "delete", kind)
        return True

    def pod_log(self, pod: str, *, container: str = "", follow: bool = False, previous: bool = False) -> Iterator[str]:
        """Lines of a pod's log, with line ends; with `follow` as long as the container lives.

        While following there is no read timeout: TCP detects a lost connection.
        """
        query = {"container": container, "follow": "true" if follow else "", "previous": "true" if previous else ""}
        path = f"{self._path(kinds.POD, pod)}/log"
        present = {key: value for key, value in query.items() if value}
        answer = self._send("GET", path, present, None, "", None, None if follow else READ, whole=False)
        try:
            if answer.status >= 300:
                raise self.refused(ApiResponse(answer.status, {}, answer.read()), "get", "pods/log")
            yield from logs.lines(self._guarded(answer))
        finally:
            answer.release_conn()

    def service(
        self,
        name: str,
        port: int,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = READ,
        namespace: str = "",
    ) -> ApiResponse:
        """One request to a service of this namespace, or of another one, through the API server's proxy; see `call`."""
        base = f"/api/v1/namespaces/{namespace or self.namespace}/services/http:{name}:{port}/proxy"
        return self.call(method, base + path, query=query, body=body, headers=headers, timeout=timeout)

    @contextlib.contextmanager
    def service_stream(
        self, name: str, port: int, method: str, path: str, body: bytes, headers: Mapping[str, str], namespace: str = ""
    ) -> Iterator[Any]:
        """As `service`, with urllib3's response, whose body has not been read; that raises urllib3's errors."""
        url = f"/api/v1/namespaces/{namespace or self.namespace}/services/http:{name}:{port}/proxy{path}"
        answer = self._send(method, url, None, body or None, "application/json", headers, READ, whole=False)
        with contextlib.ExitStack() as stack:
            stack.callback(answer.close)  # a connection with the rest of an answer in it is of no use
            yield answer
            answer.drain_conn()
            stack.pop_all()
        answer.release_conn()

    def refused(self, answer: ApiResponse, verb: str, resource: str, namespace: str = "") -> Exception:
        """The error for an unsuccessful response.

        Args:
            answer: of `call` or `service`.
            verb: of RBAC: get, list, create, …
            resource: of RBAC: rayclusters, services/proxy, …
            namespace: where, if not in this one.
        """
        return refusal.explain(answer.status, answer.data, verb, resource, namespace or self.namespace, self.context)

    def _checked(self, answer: ApiResponse, verb: str, kind: ObjectKind) -> ApiResponse:
        if not answer.ok:
            raise self.refused(answer, verb, f"{kind.plural}.{kind.group}".rstrip("."))
        return answer

    def _path(self, kind: ObjectKind, name: str = "") -> str:
        base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        scope = f"/namespaces/{self.namespace}" if kind.namespaced else ""
        return f"{base}{scope}/{kind.plural}" + (f"/{urllib.parse.quote(name, safe='')}" if name else "")

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content: str,
        headers: Mapping[str, str] | None,
        timeout: float | None,
        *,
        whole: bool,
    ) -> Any:
        url = self.host.rstrip("/") + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        sent = {"accept": "application/json, */*", "user-agent": names.MANAGER, **self.authorization(), **(headers or {})}
        if body is not None:
            sent["content-type"] = content
        # Reads may be repeated, and so may requests that were never sent.
        retries = urllib3.Retry(
            total=3, connect=2, read=1, redirect=0, status=2, status_forcelist=(429,), backoff_factor=0.2
        )
        retries.raise_on_status = False
        try:
            return self._pool.request(
                method,
                url,
                body=body if body is None or isinstance(body, bytes) else json.dumps(body),
                headers=sent,
                timeout=urllib3.Timeout(connect=CONNECT, read=timeout),
                retries=retries,
                preload_content=whole,
            )
        except urllib3.exceptions.HTTPError as error:
            raise TargetError(refusal.unreachable(error, self.host, self.context)) from error

    def _guarded(self, answer: Any) -> Iterator[bytes]:
        """A body piece by piece; a broken connection becomes our error."""
        try:
            yield from answer.stream(2**16, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise TargetError(refusal.unreachable(error, self.host, self.context)) from error
