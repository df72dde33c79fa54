"""Whom each route is for, which namespace's runs a request is about, by its address, and the document of the routes.

What each then answers is in test_gateway; what is in which ledger, in tests/contracts/test_ledger_namespaces.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.responses import Response
from tests.contracts.conftest import Postgres
from tests.gateway.gateway_site import PLACE, VIEWER, Site, postgres, site

from trialplane.gateway.limits import CountRequest
from trialplane.gateway.route import ANY, Authority, Route
from trialplane.gateway.routes import ROUTES, Dispatcher, Options
from trialplane.gateway.upstream import Upstream

__all__ = ["postgres", "site"]  # fixtures


class Heard:
    """In place of a namespace's gateway: what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name

    def answer(self, asked: Route, run: str, options: Options, token: str, count_request: CountRequest) -> Response:
        return Response(f"{self.name}: {asked.path} {run} {options} {token}")


@pytest.mark.parametrize("namespace", ["team-a", "team-b"])
def test_the_address_says_whose_run_is_meant(namespace: str) -> None:
    gateways = Dispatcher({name: Heard(name) for name in ("team-a", "team-b")})  # type: ignore[misc]
    names = {"namespace": namespace, "run": "toy"}
    answer = gateways.answer(ROUTES[0], names, {"from": "4"}, "token", lambda _: True)
    assert bytes(answer.body).decode() == f"{namespace}: {ROUTES[0].path} toy {{'from': '4'}} token"
    names = {"namespace": "team-c", "run": "toy"}
    assert gateways.answer(ROUTES[0], names, {}, "token", lambda _: True).status_code == 404


@pytest.mark.parametrize(
    "target",
    ["/run", "/", "/namespaces", PLACE, "/namespaces//runs", "/namespaces/team-c/runs", f"/{PLACE}/runs"],
)
def test_no_other_address_is_anybodys(site: Site, target: str) -> None:
    answer = site.ask("GET", target)
    assert answer.code == 404
    assert answer.json()["error"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_each_route_is_for_those_whom_the_table_names(postgres: Postgres, tmp_path: Path, route: Route) -> None:
    site = Site(postgres, tmp_path, upstream=Upstream("http://127.0.0.1:9"))
    site.ledger("toy").close()
    method, path = ("GET", f"{route.path}/x") if route.method == ANY else (route.method, route.path)
    path = path.format(namespace="studies", run="toy")
    nobody, viewer = site.ask(method, path, token=""), site.ask(method, path, token=VIEWER)
    assert (nobody.code == 403) == (route.authority is not Authority.ANYONE)
    if route.authority in (Authority.CONTROLLER, Authority.TRIAL, Authority.USER):
        assert viewer.code == 403
    elif route.method != ANY:
        assert viewer.code != 403
    site.close()


def test_the_document_has_all_routes(site: Site) -> None:
    document = site.ask("GET", "/openapi.json", token="").json()
    found = {
        (method.upper(), path): entry for path, entries in document["paths"].items() for method, entry in entries.items()
    }
    for route in ROUTES:
        method, path = ("GET", f"{route.path}/{{target}}") if route.method == ANY else (route.method, route.path)
        entry = found[method, path]
        assert entry["description"] == route.authority.value
        assert bool(entry["security"]) == (route.authority is not Authority.ANYONE)
        assert {one["name"] for one in entry["parameters"]} >= set(route.options)
        for scheme in (name for one in entry["security"] for name in one):
            assert scheme in document["components"]["securitySchemes"]
