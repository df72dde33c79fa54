"""Client of the API server of a Kubernetes cluster, for the objects in one namespace. Objects are plain JSON values.

`kinds` has the kinds of objects, `connections` opens connections with the user's credentials, and `refusal` explains errors
of the API server.
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

CONNECT = 5.0  # time limit for opening a connection, in seconds
READ = 30.0  # time limit of a response, in seconds
# Seconds to wait until Kubernetes counts a new kind of object for quotas. It notices the kind's CRD within 30 s, and begins
# to count at the next of its updates, every 300 s.
QUOTA_PATIENCE = 360.0
QUOTA_PAUSE = 2.0  # seconds between attempts
_LOG = logging.getLogger(__name__)
_POD_CONTEXT = "this cluster"  # name of the context in messages of a pod, which has no kubeconfig
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclasses.dataclass(frozen=True)
class ApiResponse:
    """Response of the API server. The names of its `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Return the body as JSON values.

        Raises:
            TargetError: It is nested too deeply for Python. The API server accepts 10,000 levels.
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
    """The result of a server-side apply: the object, and whether it was created."""

    manifest: Mapping[str, Any]
    is_new: bool


class Cluster:
    """Client of a cluster's API server for one context of the kubeconfig and one namespace. Safe for several threads.

    In a pod without a kubeconfig, it uses the pod's service account.

    Args:
        context: Context of the kubeconfig. None for its current context.
        namespace: Namespace. None for that of the context, or "default".

    Attributes:
        context: Name of the context.
        namespace: Name of the namespace.

    Raises:
        InputError: There is no kubeconfig, or it has no such context.
        TargetError: There are no valid credentials.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        kube_context = kubeconfig.read(context)
        if kube_context is not None:
            self.context, default_namespace = kube_context.name, kube_context.namespace
        elif context is None and os.environ.get("KUBERNETES_SERVICE_HOST") and (_ACCOUNT / "token").exists():
            self.context, default_namespace = _POD_CONTEXT, (_ACCOUNT / "namespace").read_text().strip()
        else:
            raise InputError(
                f"there is no kubeconfig ({kubeconfig.names()}), so no cluster is known; set KUBECONFIG, or run on this "
                "machine with --local"
            )
        self.namespace = namespace or default_namespace or "default"
        self._settings = connections.settings(kube_context)
        try:
            self._pool = connections.pool(self._settings)
        except ssl.SSLError as error:
            raise TargetError(
                f"the kubeconfig {kubeconfig.names()} has an invalid certificate or key for {self.context}: {error}"
            ) from error
        except ImportError as error:
            raise TargetError(f"the proxy of {self.context} needs PySocks: `pip install PySocks` ({error})") from error

    @property
    def location(self) -> str:
        """Name of the namespace and the cluster, for messages."""
        return f"namespace {self.namespace} of {self.context}"

    @property
    def host(self) -> str:
        """URL of the API server."""
        return str(self._settings.host)

    def authorization(self) -> dict[str, str]:
        """Return a mapping with the header `authorization`, or empty without a token. An expiring token is renewed."""
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
        """Send a request, and return the response, with any status.

        Args:
            method: HTTP method.
            path: Path, with its leading /.
            query: Query, by name.
            body: Plain JSON values. None for no body.
            content: Content type of the body.
            headers: Additional headers.
            timeout: Time limit of the response, in seconds.

        Raises:
            TargetError: The cluster cannot be reached.
        """
        answer = self._send(method, path, query, body, content, headers, timeout, preload=True)
        return ApiResponse(
            answer.status, headers={name.lower(): value for name, value in answer.headers.items()}, data=answer.data
        )

    def read(self, kind: ObjectKind, name: str) -> dict[str, Any] | None:
        """Return an object, or None if there is no object of that name."""
        answer = self.call("GET", self._path(kind, name))
        if answer.status == 404 and refusal.is_about_an_object(answer.data):
            return None
        manifest: dict[str, Any] = self._require_success(answer, "get", kind).json()
        return manifest

    def list_if_allowed(self, kind: ObjectKind) -> list[dict[str, Any]] | None:
        """Return the objects of a kind. None if this user may not list them."""
        try:
            return self.list(kind)
        except TargetError:
            return None

    def list(
        self, kind: ObjectKind, selector: str = "", fields: str = "", limit: int = 0, everywhere: bool = False
    ) -> list[dict[str, Any]]:
        """Return the objects of a kind that match both selectors.

        Args:
            kind: Kind of the objects.
            selector: Label selector, such as `a=b,c`.
            fields: Field selector, such as `type=Warning`.
            limit: Maximum number of objects. 0 for all.
            everywhere: List all namespaces instead of this one.
        """
        options = {"labelSelector": selector, "fieldSelector": fields, "limit": str(limit) if limit else ""}
        # A path without a namespace stands for the objects of all namespaces.
        path = self._path(dataclasses.replace(kind, namespaced=False) if everywhere else kind)
        answer = self.call("GET", path, query={key: value for key, value in options.items() if value})
        items: list[dict[str, Any]] = self._require_success(answer, "list", kind).json()["items"]
        return items

    def apply(self, manifest: Mapping[str, Any], manager: str, *, force: bool) -> Applied | None:
        """Create or change an object by server-side apply.

        A Run that Kubernetes refuses because it does not count Runs for the quota yet is applied again for some minutes.

        Args:
            manifest: Object.
            manager: Name of our field manager.
            force: Override other field managers.

        Returns:
            The result. None if another field manager has set a field to another value. Then nothing is changed.

        Raises:
            TargetError: The API server refuses it for another reason.
        """
        kind = kinds.APPLIED[manifest["kind"]]
        path = self._path(kind, manifest["metadata"]["name"])
        query = {"fieldManager": manager, "force": str(force).lower()}
        deadline = time.monotonic() + (QUOTA_PATIENCE if kind is kinds.RUN else 0)
        has_warned = False
        while True:
            answer = self.call("PATCH", path, query=query, body=manifest, content="application/apply-patch+yaml")
            # Kubernetes counts a new kind of object only some time after its CRD is created, and refuses it until then.
            is_uncounted = answer.status == 403 and b"status unknown for quota" in answer.data
            if not is_uncounted or time.monotonic() > deadline:
                break
            if not has_warned:
                _LOG.warning(
                    "%s: Kubernetes has not applied the quota to new runs yet; trying again for up to %d minutes "
                    "(this happens once, after the chart's installation)",
                    self.namespace,
                    QUOTA_PATIENCE / 60,
                )
                has_warned = True
            time.sleep(QUOTA_PAUSE)
        if answer.status == 409 and not force:
            return None
        return Applied(self._require_success(answer, "patch", kind).json(), is_new=answer.status == 201)

    def patch(self, kind: ObjectKind, name: str, body: Any, *, status: bool = False) -> dict[str, Any]:
        """Patch an object or its status, and return it.

        Args:
            kind: Kind of the object.
            name: Name of the object.
            body: JSON merge patch (a mapping) or JSON patch (a list).
            status: Patch the status.
        """
        content = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        path = self._path(kind, name) + ("/status" if status else "")
        answer = self.call("PATCH", path, body=body, content=content)
        patched: dict[str, Any] = self._require_success(answer, "patch", kind).json()
        return patched

    def create(self, kind: ObjectKind, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, and return it.

        Raises:
            TargetError: It exists already.
        """
        answer = self.call("POST", self._path(kind), body=manifest)
        created: dict[str, Any] = self._require_success(answer, "create", kind).json()
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
        """Delete an object and the objects that it owns.

        Args:
            kind: Kind of the object.
            name: Name of the object.
            now: Give its processes no grace period.
            foreground: Keep the object, marked as deleted, until the objects that it owns are gone.
            only: Object as it was read. If it was changed or replaced since, it is not deleted.

        Returns:
            Whether the object existed.

        Raises:
            TargetError: The object differs from `only`.
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
        self._require_success(answer, "delete", kind)
        return True

    def pod_log(self, pod: str, container: str, *, follow: bool) -> Iterator[str]:
        """Yield the lines of a container's log, with their line ends.

        Args:
            pod: Name of the pod.
            container: Name of the container.
            follow: Continue until the container ends. There is no time limit, because TCP detects a lost connection.
        """
        answer = self._send(
            "GET",
            f"{self._path(kinds.POD, pod)}/log",
            query={"container": container, **({"follow": "true"} if follow else {})},
            body=None,
            content="",
            headers=None,
            timeout=None if follow else READ,
            preload=False,
        )
        try:
            if answer.status >= 300:
                raise self.refusal_error(ApiResponse(answer.status, headers={}, data=answer.read()), "get", "pods/log")
            yield from logs.lines(self._body_pieces(answer))
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
        headers: Mapping[str, str] | None = None,
        namespace: str = "",
        scheme: str = "http",
    ) -> ApiResponse:
        """Send a request to a service through the API server's proxy, and return the response; see `call`.

        Args:
            name: Name of the service.
            port: Port of the service.
            method: HTTP method.
            path: Path at the service.
            query: Query, by name.
            headers: Additional headers.
            namespace: Namespace of the service. "" for this one.
            scheme: "http" or "https".
        """
        return self.call(method, self._proxy_path(name, port, namespace, scheme) + path, query=query, headers=headers)

    @contextlib.contextmanager
    def service_stream(
        self,
        name: str,
        port: int,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        namespace: str = "",
        scheme: str = "http",
    ) -> Iterator[Any]:
        """Send a request to a service, and yield urllib3's response, whose body has not been read.

        For the arguments, see `service`. An empty `body` is not sent. Reading the body may raise errors of urllib3.
        """
        answer = self._send(
            method,
            self._proxy_path(name, port, namespace, scheme) + path,
            query=None,
            body=body or None,
            content="application/json",
            headers=headers,
            timeout=READ,
            preload=False,
        )
        try:
            yield answer
            answer.drain_conn()  # a connection without unread data can be reused
        except BaseException:
            answer.close()
            raise
        answer.release_conn()

    def _proxy_path(self, service: str, port: int, namespace: str, scheme: str) -> str:
        """Return the path at which the API server passes requests on to a service."""
        return f"/api/v1/namespaces/{namespace or self.namespace}/services/{scheme}:{service}:{port}/proxy"

    def refusal_error(self, answer: ApiResponse, verb: str, resource: str, namespace: str = "") -> Exception:
        """Return the error for an unsuccessful response.

        Args:
            answer: Response of `call` or `service`.
            verb: RBAC verb of the request: get, list, create, …
            resource: RBAC resource of the request: rayclusters, services/proxy, …
            namespace: Namespace of the request. "" for this one.
        """
        return refusal.error(
            answer.status,
            answer.data,
            verb=verb,
            resource=resource,
            namespace=namespace or self.namespace,
            context=self.context,
        )

    def _require_success(self, answer: ApiResponse, verb: str, kind: ObjectKind) -> ApiResponse:
        """Return a response unchanged if it is successful. Otherwise, raise the error for it, with this RBAC verb."""
        if not answer.ok:
            raise self.refusal_error(answer, verb, f"{kind.plural}.{kind.group}".rstrip("."))
        return answer

    def _path(self, kind: ObjectKind, name: str = "") -> str:
        """Return the path of an object, or of all objects of a kind in this namespace."""
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
        preload: bool,
    ) -> Any:
        """Send a request, and return urllib3's response, with any status. For the arguments, see `call`.

        Without a `timeout`, there is no time limit. Without `preload`, the caller has to read the body of the response and
        to release the connection.
        """
        url = self.host.rstrip("/") + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        default_headers = {"accept": "application/json, */*", "user-agent": names.MANAGER}
        all_headers = {**default_headers, **self.authorization(), **(headers or {})}
        if body is not None:
            all_headers["content-type"] = content
        # urllib3 repeats a request if it could not be sent, or if its method is safe to repeat. It also repeats one that the
        # API server answers with 429 (try again later). The last response is returned, even if it is a 429.
        retries = urllib3.Retry(
            total=3, connect=2, read=1, redirect=0, status=2, status_forcelist=(429,), backoff_factor=0.2
        )
        retries.raise_on_status = False
        try:
            return self._pool.request(
                method,
                url,
                body=body if body is None or isinstance(body, bytes) else json.dumps(body),
                headers=all_headers,
                timeout=urllib3.Timeout(connect=CONNECT, read=timeout),
                retries=retries,
                preload_content=preload,
            )
        except urllib3.exceptions.HTTPError as error:
            raise TargetError(refusal.unreachable_message(error, self.host, self.context)) from error

    def _body_pieces(self, answer: Any) -> Iterator[bytes]:
        """Yield the body of a response in pieces.

        Raises:
            TargetError: The connection broke.
        """
        try:
            yield from answer.stream(2**16, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise TargetError(refusal.unreachable_message(error, self.host, self.context)) from error
