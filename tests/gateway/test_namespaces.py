"""Which namespace's runs a request to the gateway is about, by its address.

What each then answers is in test_gateway; what is in which ledger, in tests/contracts/test_ledger_namespaces.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from trialplane.gateway.limits import Admit
from trialplane.gateway.routes import Namespaces
from trialplane.gateway.server import Answer


class Heard:
    """In place of a namespace's gateway: what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name

    def answer(self, method: str, target: str, headers: Mapping[str, str], admit: Admit) -> Answer:
        return Answer(200, f"{self.name}: {method} {target} {dict(headers)}".encode())


@pytest.fixture
def gateways() -> Namespaces:
    return Namespaces({name: Heard(name) for name in ("team-a", "team-b")})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("target", "heard"),
    [
        ("/namespaces/team-a/runs", "team-a: GET /runs {}"),
        (
            "/namespaces/team-b/runs/toy/log?from=4&x=/namespaces/team-a/",
            "team-b: GET /runs/toy/log?from=4&x=/namespaces/team-a/ {}",
        ),
    ],
)
def test_the_address_says_whose_run_is_meant(gateways: Namespaces, target: str, heard: str) -> None:
    answer = gateways.answer("GET", target, {})
    assert (answer.code, answer.body.decode()) == (200, heard)


@pytest.mark.parametrize(
    "target",
    ["/runs", "/", "", "/namespaces", "/namespaces/team-a", "/namespaces//runs", "/namespaces/team-c/runs", "//team-a/runs"],
)
def test_no_other_address_is_anybodys(gateways: Namespaces, target: str) -> None:
    answer = gateways.answer("GET", target, {})
    assert answer.code == 404
    assert json.loads(answer.body)["error"]


def test_whether_the_gateway_works_is_no_namespaces_business(gateways: Namespaces) -> None:
    assert gateways.answer("GET", "/health", {}).body == b'{"status": "ok"}'.replace(b" ", b"")
