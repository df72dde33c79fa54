"""One namespace of a Kubernetes cluster, as plain JSON objects; the only module that imports `kubernetes`.

It takes from that package what is hard to do well: reading a kubeconfig with its credential plugins, proxies and
certificates, and the port-forward stream. Requests go over its connection pool without the generated models, which would
double the time that `import kubernetes` takes (a third of a second, which is why this module imports it inside functions).
What the API server refuses becomes an error of ours once, in `refusal`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trialplane.client import refusal
from trialplane.errors import InputError, TargetError
from trialplane.wire import cluster as names

CONNECT = 5.0  # seconds until a connection must stand
READ = 30.0  # seconds an answer may take
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of object: `plural` as it stands in addresses; `group` is "" for the core."""

    group: str
    version: str
    plural: str
    namespaced: bool = True


RAY_JOB = Kind("ray.io", "v1", "rayjobs")
RAY_CLUSTER = Kind("ray.io", "v1", "rayclusters")
CONFIG_MAP = Kind("", "v1", "configmaps")
SECRET = Kind("", "v1", "secrets")
SERVICE = Kind("", "v1", "services")
POD = Kind("", "v1", "pods")
EVENT = Kind("", "v1", "events")
QUOTA = Kind("", "v1", "resourcequotas")
NODE = Kind("", "v1", "nodes", namespaced=False)
NAMESPACE = Kind("", "v1", "namespaces", namespaced=False)
PRIORITY_CLASS = Kind("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)
STORAGE_CLASS = Kind("storage.k8s.io", "v1", "storageclasses", namespaced=False)
CLAIM = Kind("", "v1", "persistentvolumeclaims")
DEPLOYMENT = Kind("apps", "v1", "deployments")
CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
ADMISSION_POLICY = Kind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", namespaced=False)
LOCAL_QUEUE = Kind("kueue.x-k8s.io", "v1beta1", "localqueues")
WORKLOAD = Kind("kueue.x-k8s.io", "v1beta1", "workloads")
# What `apply` finds by the `kind` of an object.
APPLIED = {"RayJob": RAY_JOB, "ConfigMap": CONFIG_MAP, "Secret": SECRET, "Service": SERVICE, "Pod": POD}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came back: `headers` by lower-case name."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def ok(self) -> bool:
        """Whether it is what was asked for."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON values."""
        return json.loads(self.data)


@dataclasses.dataclass(frozen=True)
class Applied:
    """An object as it is after an apply, and whether that made it."""

    thing: Mapping[str, Any]
    is_new: bool


class Cluster:
    """One context of the kubeconfig and one namespace. May be used from several threads.

    Args:
        context: of the kubeconfig, its current one when None.
        namespace: the context's when None, "default" when it has none.

    Raises:
        InputError: there is no kubeconfig, or no such context in it.
        TargetError: the credentials cannot be had.
    """

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        from kubernetes.client import Configuration
        from kubernetes.client.rest import RESTClientObject

        self._configuration = Configuration()
        self.context, known = _load(self._configuration, context)
        self.namespace = namespace or known or "default"
        self._pool = RESTClientObject(self._configuration).pool_manager

    @property
    def place(self) -> str:
        """The namespace and the cluster, for messages."""
        return f"namespace {self.namespace} of {self.context}"

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._configuration.host)

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
    ) -> Answer:
        """Sends one request; an answer of any status is given back.

        Args:
            method: GET, PUT, …
            path: with its leading /.
            query: after the ?.
            body: plain JSON values, or None for none.
            content: type of the body.
            headers: more of them.
            timeout: seconds the answer may take.

        Raises:
            TargetError: the cluster cannot be reached.
        """
        answer = self._send(method, path, query, body, content, headers, timeout, whole=True)
        return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.data)

    def read(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """One object, or None when there is none of that name."""
        answer = self.call("GET", self._path(kind, name))
        if answer.status == 404 and refusal.is_about_an_object(answer.data):
            return None
        found: dict[str, Any] = self._checked(answer, "get", kind).json()
        return found

    def list(
        self, kind: Kind, selector: str = "", fields: str = "", limit: int = 0, everywhere: bool = False
    ) -> list[dict[str, Any]]:
        """The objects of a kind, in our namespace where they have one, that both selectors choose.

        Args:
            kind: of what.
            selector: by labels: `a=b,c`.
            fields: by fields: `type=Warning`.
            limit: so many at most; 0 is all.
            everywhere: in all namespaces.
        """
        query = {"labelSelector": selector, "fieldSelector": fields, "limit": str(limit) if limit else ""}
        path = self._path(dataclasses.replace(kind, namespaced=kind.namespaced and not everywhere))
        answer = self.call("GET", path, query={key: value for key, value in query.items() if value})
        items: list[dict[str, Any]] = self._checked(answer, "list", kind).json()["items"]
        return items

    def apply(self, thing: Mapping[str, Any], manager: str, *, force: bool) -> Applied | None:
        """Server-side apply; None, and nothing changed, when another manager wants a field otherwise.

        Args:
            thing: the object.
            manager: of its fields.
            force: whether what others want does not count.
        """
        kind = APPLIED[thing["kind"]]
        path = self._path(kind, thing["metadata"]["name"])
        query = {"fieldManager": manager, "force": str(force).lower()}
        answer = self.call("PATCH", path, query=query, body=thing, content="application/apply-patch+yaml")
        if answer.status == 409 and not force:
            return None
        return Applied(self._checked(answer, "patch", kind).json(), answer.status == 201)

    def patch(self, kind: Kind, name: str, body: Any) -> dict[str, Any]:
        """A JSON merge patch (a mapping) or a JSON patch (a list) of one object."""
        content = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        answer = self.call("PATCH", self._path(kind, name), body=body, content=content)
        made: dict[str, Any] = self._checked(answer, "patch", kind).json()
        return made

    def create(self, kind: Kind, thing: Mapping[str, Any]) -> dict[str, Any]:
        """A new object; one of that name must not exist."""
        made: dict[str, Any] = self._checked(self.call("POST", self._path(kind), body=thing), "create", kind).json()
        return made

    def delete(self, kind: Kind, name: str, *, now: bool = False) -> bool:
        """Deletes an object, and in the background what it owns; False when there was none.

        Args:
            kind: of what.
            name: of it.
            now: without the time that its processes have to end in.
        """
        body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if now:
            body["gracePeriodSeconds"] = 0
        answer = self.call("DELETE", self._path(kind, name), body=body)
        if answer.status == 404 and refusal.is_about_an_object(answer.data):
            return False
        self._checked(answer, "delete", kind)
        return True

    def pod_log(self, pod: str, *, container: str = "", follow: bool = False, previous: bool = False) -> Iterator[str]:
        """Lines of a pod's log, with their ends of line; with `follow` as long as the container lives.

        Silence has no time limit while following: TCP notices a connection that is gone.
        """
        query = {"container": container, "follow": "true" if follow else "", "previous": "true" if previous else ""}
        path = f"{self._path(POD, pod)}/log"
        known = {key: value for key, value in query.items() if value}
        answer = self._send("GET", path, known, None, "", None, None if follow else READ, whole=False)
        try:
            if answer.status >= 300:
                raise self._refused(Answer(answer.status, {}, answer.read()), "get", "pods/log")
            yield from _lines(self._guarded(answer))
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
    ) -> Answer:
        """One request to a service of the namespace, through the API server's proxy; see `call`."""
        base = f"/api/v1/namespaces/{self.namespace}/services/http:{name}:{port}/proxy"
        return self.call(method, base + path, query=query, body=body, headers=headers, timeout=timeout)

    def forward(self, pod: str, port: int) -> Any:
        """A stream to a port of a pod: an object with `recv`, `sendall`, `shutdown` and `close`, as sockets have.

        Raises:
            TargetError: the pod does not listen or is gone, or this is not allowed.
        """
        from kubernetes.client import ApiException
        from kubernetes.stream import ws_client

        url = f"{self.host}{self._path(POD, pod)}/portforward"
        query = [("ports", str(port))]
        try:
            made = ws_client.portforward_call(
                self._configuration, "GET", url, query_params=query, headers=self._authorization()
            )
        except ApiException as error:
            raise TargetError(f"port {port} of the pod {pod} in {self.place} cannot be reached: {error.reason}") from error
        return made.socket(port)

    def refused(self, answer: Answer, verb: str, what: str) -> Exception:
        """The error for an answer that is not what was asked for.

        Args:
            answer: of `call` or `service`.
            verb: of RBAC: get, list, create, …
            what: of RBAC: rayjobs, services/proxy, …
        """
        return self._refused(answer, verb, what)

    def _checked(self, answer: Answer, verb: str, kind: Kind) -> Answer:
        if not answer.ok:
            raise self._refused(answer, verb, f"{kind.plural}.{kind.group}".rstrip("."))
        return answer

    def _refused(self, answer: Answer, verb: str, what: str) -> Exception:
        return refusal.explain(answer.status, answer.data, verb, what, self.namespace, self.context)

    def _path(self, kind: Kind, name: str = "") -> str:
        base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        scope = f"/namespaces/{self.namespace}" if kind.namespaced else ""
        return f"{base}{scope}/{kind.plural}" + (f"/{urllib.parse.quote(name, safe='')}" if name else "")

    def _authorization(self) -> dict[str, str]:
        setting = self._configuration.auth_settings().get("BearerToken")
        return {"authorization": setting["value"]} if setting and setting["value"] else {}

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
        import urllib3

        url = self.host.rstrip("/") + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        sent = {"accept": "application/json, */*", "user-agent": names.MANAGER, **self._authorization(), **(headers or {})}
        if body is not None:
            sent["content-type"] = content
        # A read may be sent again, and so may whatever did not get through at all.
        retries = urllib3.Retry(
            total=3, connect=2, read=1, redirect=0, status=2, status_forcelist=(429,), backoff_factor=0.2
        )
        retries.raise_on_status = False
        try:
            return self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=sent,
                timeout=urllib3.Timeout(connect=CONNECT, read=timeout),
                retries=retries,
                preload_content=whole,
            )
        except urllib3.exceptions.HTTPError as error:
            raise TargetError(refusal.unreachable(error, self.host, self.context)) from error

    def _guarded(self, answer: Any) -> Iterator[bytes]:
        """A body piece by piece; a connection that breaks is an error of ours."""
        import urllib3

        try:
            yield from answer.stream(2**16, decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise TargetError(refusal.unreachable(error, self.host, self.context)) from error


def contexts() -> tuple[list[str], str]:
    """Names of the kubeconfig's contexts and the current one; no context when there is no kubeconfig."""
    from kubernetes import config

    try:
        found, current = config.list_kube_config_contexts(_file())
    except config.ConfigException:
        return [], ""
    return [context["name"] for context in found], current["name"]


def _file() -> str:
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def _load(configuration: Any, context: str | None) -> tuple[str, str]:
    """Fills a configuration; gives the names of the context and of its namespace."""
    from kubernetes import config

    files = _file()
    if not any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file):
        if context is None and os.environ.get("KUBERNETES_SERVICE_HOST") and (_ACCOUNT / "token").exists():
            config.load_incluster_config(client_configuration=configuration)
            return "this cluster", (_ACCOUNT / "namespace").read_text().strip()
        raise InputError(
            f"there is no kubeconfig ({files}), so no cluster is known; set KUBECONFIG, or run on this machine with --local"
        )
    try:
        found, current = config.list_kube_config_contexts(files)
        chosen = current if context is None else next((one for one in found if one["name"] == context), None)
        if chosen is None:
            raise InputError(refusal.no_context(str(context), [one["name"] for one in found], files))
        config.load_kube_config(files, chosen["name"], configuration, persist_config=False)
    except config.ConfigException as error:
        if context is None and "current-context" in str(error):
            raise InputError(
                f"the kubeconfig {files} has no current context; choose one with --context, or run here with --local"
            ) from error
        raise TargetError(f"the kubeconfig {files} cannot be used: {error}") from error
    except (OSError, ValueError) as error:
        raise TargetError(f"the kubeconfig {files} cannot be read: {error}") from error
    return chosen["name"], chosen.get("context", {}).get("namespace") or ""


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace") + "\n"
    if rest:
        yield rest.decode(errors="replace")
