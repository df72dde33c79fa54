"""An API server that behaves, in this process: keeps objects, applies, patches, selects, deletes what an owner owned.

It speaks HTTP, so what is tested is the client as it is, its kubeconfig included. What KubeRay, the controller and the
gateway do is `kuberay_double`; the operator is the real one, called around each request of a user. Not here: watches,
validation; versions count patches only; of field ownership only that an apply without force is refused where another
manager's object is otherwise.
"""

from __future__ import annotations

import copy
import datetime
import json
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from trialplane.wire import cluster as names

TOKEN = "the-users-token"
OPERATOR = "operator"  # its context, and its token
KINDS = {
    "runs": "Run",
    "rayclusters": "RayCluster",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "pods": "Pod",
    "events": "Event",
    "leases": "Lease",
    "networkpolicies": "NetworkPolicy",
    "services": "Service",
    "serviceaccounts": "ServiceAccount",
    "roles": "Role",
    "rolebindings": "RoleBinding",
    "nodes": "Node",
    "namespaces": "Namespace",
    "resourcequotas": "ResourceQuota",
    "priorityclasses": "PriorityClass",
}


class Problem(Exception):
    """An answer that is a Status."""

    def __init__(self, code: int, message: str, *, name: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
            "details": {"name": name} if name else {},
        }


class New(dict[str, Any]):
    """An object that a request made."""


Proxy = Callable[[str, str, Mapping[str, str], Mapping[str, str], bytes], tuple[int, dict[str, str], bytes]]


class ClusterDouble:
    """The API server of one cluster.

    Attributes:
        objects: plural → name → object, of the one namespace.
        requests: (verb, path) of all requests of users, in order.
        user: as whom the user is known.
        tokens: of the service account for users, as they were asked for.
        deleted: (plural, name, propagation policy) of all that was deleted by request, in order.
        made: called with each new RayCluster, and `gone` with each deleted one.
        proxy: answers requests to services: (method, service/path, query, headers, body).
        refuse: called with (verb, plural, name) of a user's request; raises a Problem where the test wants one.
        operate: called before each request of a user, and after each that changes something.
    """

    def __init__(self, namespace: str = "team") -> None:
        self.namespace = namespace
        self.objects: dict[str, dict[str, dict[str, Any]]] = {plural: {} for plural in KINDS}
        self.requests: list[tuple[str, str]] = []
        self.managers: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
        self.logs: dict[str, str] = {}
        self.tokens: list[str] = []
        self.user = "ada"
        self.deleted: list[tuple[str, str, str]] = []
        self.made: Callable[[dict[str, Any]], None] = lambda thing: None
        self.gone: Callable[[dict[str, Any]], None] = lambda thing: None
        self.proxy: Proxy = lambda *_: (503, {}, b"no endpoints")
        self.refuse: Callable[[str, str, str], None] = lambda verb, plural, name: None
        self.operate: Callable[[], None] = lambda: None
        self.lock = threading.RLock()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are two packets, of which the second would wait for 40 ms

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
                return

            def handle_request(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                headers = {k.lower(): v for k, v in self.headers.items()}
                body = self.rfile.read(length)
                is_operator = headers.get("authorization") == f"Bearer {OPERATOR}"
                if not is_operator:
                    double.operate()
                status, headers, data = double.answer(self.command, self.path, headers, body)
                if not is_operator and self.command != "GET":
                    double.operate()
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = handle_request

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kubeconfig(self, file: Path, context: str = "lab") -> Path:
        """Writes a kubeconfig whose one context leads here."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}, {"name": OPERATOR, "user": {"token": OPERATOR}}],
            "contexts": [
                {"name": name, "context": {"cluster": "c", "user": user, "namespace": self.namespace}}
                for name, user in ((context, "u"), (OPERATOR, OPERATOR))
            ],
        }
        file.write_text(yaml.safe_dump(content))
        return file

    def put(self, plural: str, thing: Mapping[str, Any]) -> dict[str, Any]:
        """Keeps an object as the API server would a new one."""
        stored = copy.deepcopy(dict(thing))
        stored.setdefault("kind", KINDS[plural])
        stored["metadata"] = {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now(),
            "namespace": self.namespace,
            "generation": 1,
            "resourceVersion": "1",
            **stored["metadata"],
        }
        self.objects[plural][stored["metadata"]["name"]] = stored
        return stored

    def remove(self, plural: str, name: str) -> None:
        """Takes an object away, and what it owned."""
        thing = self.objects[plural].pop(name)
        uid = thing["metadata"]["uid"]
        for other, things in self.objects.items():
            for owned in [n for n, one in things.items() if uid in _owners(one)]:
                self.remove(other, owned)
        if plural == "rayclusters":
            self.gone(thing)

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        path, _, query = target.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        user = headers.get("authorization", "").partition("Bearer ")[2]
        with self.lock:
            if user == TOKEN:
                self.requests.append((method, path))
            try:
                if user not in (TOKEN, OPERATOR):
                    raise Problem(401, "Unauthorized", reason="Unauthorized")
                if "/proxy/" in path:
                    service, _, rest = path.partition("/services/")[2].partition("/proxy")
                    return self.proxy(method, f"{service}{rest}", asked, headers, body)
                found = self._objects(method, path, asked, headers.get("content-type", ""), body, user)
            except Problem as problem:
                return problem.code, {"content-type": "application/json"}, json.dumps(problem.body).encode()
        if isinstance(found, bytes):
            return 200, {"content-type": "text/plain"}, found
        code = 201 if isinstance(found, New) else 200
        return code, {"content-type": "application/json"}, json.dumps(found).encode()

    def _objects(self, method: str, path: str, query: Mapping[str, str], content: str, body: bytes, user: str) -> Any:
        parts = path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        if not parts and "runs" in self.objects:  # whether Runs are known
            return {"kind": "APIResourceList"}
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            if parts[1] != self.namespace:
                parts = [*parts[:1], "", *parts[2:]]
            elsewhere = parts[1] == ""
            parts = parts[2:]
        else:
            elsewhere = False
        plural, name, below = parts[0] if parts else "", parts[1] if len(parts) > 1 else "", parts[2:]
        if (method, plural) == ("POST", "selfsubjectreviews"):
            return New(kind="SelfSubjectReview", status={"userInfo": {"username": self.user}})
        if (plural, below) == ("serviceaccounts", ["token"]) and name in (names.USER, names.VIEWER):
            self.refuse("create", "serviceaccounts/token", name)
            return self._token(json.loads(body)["spec"])
        if plural not in KINDS or plural not in self.objects:
            raise Problem(404, "the server could not find the requested resource", reason="NotFound")
        things = {} if elsewhere else self.objects[plural]
        verb = {"GET": "get" if name else "list", "PATCH": "patch", "POST": "create", "DELETE": "delete"}[method]
        if user == TOKEN:
            self.refuse(verb, plural, name)
        if verb == "list":
            chosen = [one for one in things.values() if _selected(one, query.get("labelSelector", ""))]
            named = query.get("fieldSelector", "").partition("metadata.name=")[2]
            chosen = [one for one in chosen if not named or one["metadata"]["name"] == named]
            return {"kind": f"{KINDS[plural]}List", "items": chosen}
        if verb == "create" or (verb == "patch" and "apply" in content):
            return self._applied(plural, name, json.loads(body), query)
        if name not in things:
            raise Problem(404, f'{plural} "{name}" not found', name=name, reason="NotFound")
        if below == ["log"]:
            return self.logs.get(name, "").encode()
        if verb == "get":
            return things[name]
        if verb == "delete":
            wanted = json.loads(body).get("preconditions", {})
            if any(things[name]["metadata"][key] != value for key, value in wanted.items()):
                raise Problem(409, f'{plural} "{name}": the object has been modified', name=name, reason="Conflict")
            self.deleted.append((plural, name, json.loads(body)["propagationPolicy"]))
            self.remove(plural, name)
            return {"kind": "Status", "status": "Success"}
        thing, patch = things[name], json.loads(body)
        before = copy.deepcopy(thing)
        version = int(before["metadata"]["resourceVersion"])
        expected = {} if isinstance(patch, list) else patch.get("metadata") or {}
        of_another = expected.get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]
        if of_another or expected.get("resourceVersion", str(version)) != str(version):
            raise Problem(409, f'{plural} "{name}": the object has been modified', name=name, reason="Conflict")
        _patched(thing, patch)
        thing["metadata"]["resourceVersion"] = str(version + 1)
        if plural == "runs":  # a kind with the subresource `status`: each request changes one of the two
            kept = "spec" if below == ["status"] else "status"
            thing.pop(kept, None)
            thing.update({kept: before[kept]} if kept in before else {})
            thing["metadata"]["generation"] = before["metadata"]["generation"] + (thing["spec"] != before["spec"])
        return thing

    def _token(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        if spec != {"audiences": [names.AUDIENCE], "expirationSeconds": 600}:
            raise Problem(422, f"no such token is made: {spec}", reason="Invalid")
        self.tokens.append(f"of.{self.namespace}.{len(self.tokens)}")
        return New(kind="TokenRequest", spec=spec, status={"token": self.tokens[-1]})

    def _applied(self, plural: str, name: str, thing: dict[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
        known = self.objects[plural].get(name or thing["metadata"]["name"])
        manager = query.get("fieldManager", "")
        before = self.managers.get((plural, name)) if known is not None else None
        if before is not None and query.get("force") != "true" and before != (manager, thing):
            raise Problem(409, f'Apply failed with 1 conflict: conflict with "{before[0]}": .spec', reason="Conflict")
        self.managers[plural, name] = (manager, thing)
        if known is not None and not name:
            taken = thing["metadata"]["name"]
            raise Problem(409, f'{plural} "{taken}" already exists', name=taken, reason="AlreadyExists")
        if known is not None:
            known.update({key: value for key, value in thing.items() if key != "metadata"})
            known["metadata"].update(thing["metadata"])
            return known
        made = self.put(plural, thing)
        if plural == "rayclusters":
            self.made(made)
        return New(made)


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _owners(thing: Mapping[str, Any]) -> list[str]:
    return [reference["uid"] for reference in thing["metadata"].get("ownerReferences") or []]


def _selected(thing: Mapping[str, Any], selector: str) -> bool:
    labels = thing["metadata"].get("labels") or {}
    wanted = [part.partition("=") for part in selector.split(",") if part]
    return all(labels.get(key) == value if equal else key in labels for key, equal, value in wanted)


def _patched(thing: dict[str, Any], patch: Any) -> None:
    """A JSON patch of the operations that are used; else a merge patch."""
    if isinstance(patch, dict):
        for key, value in patch.items():
            if isinstance(value, dict) and isinstance(thing.get(key), dict):
                _patched(thing[key], value)
            else:
                thing[key] = value
        return
    for change in patch:
        *path, last = (step.replace("~1", "/") for step in change["path"].strip("/").split("/"))
        place: Any = thing
        for step in path:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if change["op"] == "test":
            if place.get(last) != change["value"]:
                raise Problem(422, "the server rejected our request due to an error in our request", reason="Invalid")
        elif change["op"] == "remove":
            del place[last]
        else:
            place[last] = change["value"]
