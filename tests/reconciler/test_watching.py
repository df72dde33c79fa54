"""What the operator's watches stand: kopf itself, before an API server that answers as the test wants.

A namespace whose objects it may not see, or a Run nested as deep as the API server takes it, ends it for nobody; credentials
that are refused make no hot loop, and new ones disturb no other request; and when kopf ends, a thread at work is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from yarl import URL

from trialplane.reconciler import __main__ as operator
from trialplane.reconciler import lease as leases
from trialplane.reconciler.__main__ import Name
from trialplane.reconciler.workqueue import WorkQueue

from .conftest import Team

CRDS = {"apiextensions.k8s.io": ("v1", {"customresourcedefinitions": "CustomResourceDefinition"})}  # kopf asks for these
GROUPS = {"trialplane.io": ("v1alpha1", {"runs": "Run"}), "ray.io": ("v1", {"rayclusters": "RayCluster"}), **CRDS}
CORE = ("v1", {"pods": "Pod", "namespaces": "Namespace"})
LEVELS = 9_990  # the API server takes 10,000


class WatchedApi:
    """An API server that lists Runs, and whose watches stay silent.

    Attributes:
        runs: namespace → the JSON of its Runs.
        refused: called with a namespace and how often it was asked for; the status that is answered, or None.
        asked: namespace → how often.
        tokens: the bearer tokens of all requests.
    """

    def __init__(self, file: Path) -> None:
        self.tokens: set[str] = set()
        self._file = file
        self.runs: dict[str, list[str]] = {}
        self.asked: dict[str, int] = {}
        self.refused: Callable[[str, int], int | None] = lambda namespace, times: None
        self._closing = threading.Event()
        double = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
                return

            def do_GET(self) -> None:
                double.tokens.add(self.headers["authorization"].removeprefix("Bearer "))
                status, body = double.answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.end_headers()
                if status == 200 and "watch=true" in self.path:
                    double._closing.wait(60)
                else:
                    self.wfile.write(body.encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.issue("the-operators")

    def issue(self, token: str) -> None:
        """Writes the operator's kubeconfig, with this token."""
        address = f"http://127.0.0.1:{self._server.server_port}"
        config = {
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        self._file.write_text(yaml.safe_dump(config))

    def answer(self, path: str) -> tuple[int, str]:
        if path == "/api":
            return 200, json.dumps({"versions": ["v1"]})
        if path == "/apis":
            versions = {name: {"version": one[0]} for name, one in GROUPS.items()}
            groups = [{"name": name, "versions": [one], "preferredVersion": one} for name, one in versions.items()]
            return 200, json.dumps({"groups": groups})
        if "/namespaces/" not in path:
            _, kinds = next((one for name, one in GROUPS.items() if name in path), CORE)
            also = {"singularName": "", "namespaced": True, "verbs": ["list", "watch"]}
            return 200, json.dumps({"resources": [{"name": name, "kind": kind, **also} for name, kind in kinds.items()]})
        namespace, _, plural = path.partition("/namespaces/")[2].partition("/")
        if plural == "runs":
            self.asked[namespace] = self.asked.get(namespace, 0) + 1
            if status := self.refused(namespace, self.asked[namespace]):
                return status, json.dumps({"kind": "Status", "message": "runs is forbidden: no RBAC policy matched"})
        items = self.runs.get(namespace, []) if plural == "runs" else []
        return 200, f'{{"metadata": {{"resourceVersion": "1"}}, "items": [{", ".join(items)}]}}'

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()


def run(namespace: str, name: str, submission: str = "{}") -> str:
    metadata = json.dumps({"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"})
    return f'{{"metadata": {metadata}, "spec": {{"submission": {submission}}}}}'


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedApi]:
    made = WatchedApi(tmp_path / "kubeconfig-of-the-operator")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig-of-the-operator"))
    monkeypatch.setattr(operator, "BACKOFFS", (0.01, 0.01))
    with contextlib.closing(made):
        yield made


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `main` does first, for one test."""
    monkeypatch.setattr(json, "_default_decoder", json._default_decoder)  # type: ignore[attr-defined]  # until the end
    limit, size = sys.getrecursionlimit(), threading.stack_size()
    operator.allow_deep_objects()
    yield
    sys.setrecursionlimit(limit)
    threading.stack_size(size)


def seen(count: int, *namespaces: str) -> list[str]:
    """The first names that the watches bring; an error of the watches is raised."""

    async def first() -> list[str]:
        queue: WorkQueue[Name] = WorkQueue(lambda name: name.namespace)
        found: list[str] = []

        async def take() -> None:
            while len(found) < count:
                found.append(str(await queue.take()))

        tasks = [asyncio.ensure_future(one) for one in (take(), operator.watch(queue, namespaces))]
        ended, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in ended:
            task.result()
        return found

    return asyncio.run(first())


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_namespace_that_may_not_be_watched_ends_the_watch_of_no_other(
    status: int, api: WatchedApi, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is watched as soon as it may be."""
    api.runs = {"lost": [run("lost", "b")], "team": [run("team", "a")]}
    api.refused = lambda namespace, times: status if namespace == "lost" and times < 8 else None
    with caplog.at_level(logging.ERROR, "trialplane.reconciler"):
        assert seen(2, "lost", "team") == ["team/a", "lost/b"]
    assert f"the runs of namespace lost cannot be watched: {status} runs is forbidden" in caplog.text
    assert "namespace team" not in caplog.text
    assert ("`helm upgrade`" in caplog.text and "`teams`" in caplog.text) == (status < 500)


def test_credentials_that_are_refused_are_not_tried_again_at_once(
    api: WatchedApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "RETRY_INTERVAL", 61.5)
    waits, sleep = 0, asyncio.sleep

    async def slept(delay: float, result: Any = None) -> Any:
        nonlocal waits
        waits += delay == 61.5
        return await sleep(0.0 if delay == 61.5 else delay, result)

    monkeypatch.setattr(asyncio, "sleep", slept)
    api.runs = {"team": [run("team", "a")]}
    api.refused = lambda namespace, times: 401 if times <= 3 else None
    with caplog.at_level(logging.ERROR, "trialplane.reconciler"):
        assert seen(1, "team") == ["team/a"]
    assert waits == 3
    assert "refuses the operator's credentials (401)" in caplog.text and "again in 62 s" in caplog.text


def test_new_credentials_close_no_connection_of_another_request(api: WatchedApi) -> None:
    """As when a token expires while the list of another namespace is on its way."""
    refused, waits = threading.Event(), threading.Event()
    api.runs = {"expired": [run("expired", "a")], "team": [run("team", "b")]}

    def refuse(namespace: str, times: int) -> int | None:
        if namespace == "team" and times == 1:
            waits.set()
            assert refused.wait(60)
        if namespace == "expired" and times == 1:
            assert waits.wait(60)
            api.issue("a-new-one")
            return 401
        if namespace == "expired":
            refused.set()
        return None

    api.refused = refuse
    assert sorted(seen(2, "expired", "team")) == ["expired/a", "team/b"]
    assert api.asked["team"] <= 2  # the list, and the watch
    assert api.tokens == {"the-operators", "a-new-one"}


def test_a_tls_connection_that_the_api_server_closes_ends_no_session() -> None:
    """For kopf goes by these words, and would log in again."""

    async def send(_: aiohttp.ClientRequest) -> aiohttp.ClientResponse:
        raise aiohttp.ClientOSError(1, "[SSL: APPLICATION_DATA_AFTER_CLOSE_NOTIFY] application data after close notify")

    async def sent() -> None:
        request = aiohttp.ClientRequest("GET", URL("https://api/"), loop=asyncio.get_running_loop())
        await operator._keep_watching(request, send)

    with pytest.raises(aiohttp.ClientConnectionError, match=r"^the API server closed a TLS connection$"):
        asyncio.run(sent())


def test_a_restart_waits_for_what_a_thread_does(api: WatchedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though kopf, which is cancelled for it, cancels whatever was begun after it."""
    api.runs = {"team": [run("team", "a")]}
    begun, watched, goes_on = threading.Event(), threading.Event(), threading.Event()
    renewals = 0

    class Held:
        def hold(self) -> bool:
            nonlocal renewals
            renewals += watched.is_set()
            if renewals > 3:
                goes_on.set()
            return True

    class Slow:
        def admitted(self) -> list[str]:
            return []

        def runs_to_remove(self) -> list[str]:
            return []

        def reconcile(self, name: str) -> None:
            begun.set()
            assert goes_on.wait(60)

    watch = operator.watch

    async def watch_without_a_probe(queue: WorkQueue[Name], namespaces: list[str], _: str) -> None:
        try:
            await watch(queue, namespaces)
        finally:
            watched.set()

    async def restart() -> None:
        await asyncio.to_thread(begun.wait, 60)
        raise operator.RestartNeeded("another namespace")

    async def operated() -> bool:
        try:
            with pytest.raises(operator.RestartNeeded):
                await operator.operate({"team": Slow()}, Held(), [restart()])  # type: ignore[arg-type,dict-item]
            return goes_on.is_set()
        finally:
            goes_on.set()

    monkeypatch.setattr(operator, "watch", watch_without_a_probe)
    monkeypatch.setattr(leases, "PAUSE", 0.01)
    assert asyncio.run(operated()), "the Lease would be released while a thread works"


def test_a_run_nested_without_end_ends_no_watch(api: WatchedApi, deep: None) -> None:
    api.runs = {"team": [run("team", "deep", '{"a":' * LEVELS + "1" + "}" * LEVELS), run("team", "other")]}
    assert seen(2, "team") == ["team/deep", "team/other"]


def test_a_run_nested_without_end_ends_in_a_condition(team: Team, deep: None) -> None:
    team.apply()
    spec = team.cluster.objects["runs"]["a"]["spec"]
    spec["submission"] = json.loads(
        '{"a":' * 3_000 + "1" + "}" * 3_000
    )  # the double copies it, which takes three calls each
    done = threading.Thread(target=team.reconciler.reconcile, args=("a",))
    done.start()
    done.join(60)
    assert team.condition("Accepted")[:2] == ("False", "Invalid")
    assert "spec.submission: is nested more than 50 levels deep" in team.condition("Accepted")[2]
    assert not team.ray_clusters
