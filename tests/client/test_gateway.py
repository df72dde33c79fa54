"""How a laptop says at the gateway who it is: tokens that the API server makes, when they are renewed, and what is said when
there are none.

On the doubles of an API server and the gateway. The other end: tests/gateway.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.client.kuberay_double import SITE, NamespaceDouble
from tests.kube.cluster_double import ClusterDouble, Problem

from trialplane.client.gateway import Gateway
from trialplane.errors import TargetError
from trialplane.kube.cluster import ApiResponse, Cluster
from trialplane.plan.site import Site
from trialplane.wire import cluster as names


class Clock:
    now = 5000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def double(tmp_path, monkeypatch) -> ClusterDouble:
    made = ClusterDouble()
    monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig(tmp_path / "kubeconfig")))
    yield made
    made.close()


@pytest.fixture
def namespace(double: ClusterDouble) -> NamespaceDouble:
    return NamespaceDouble(double)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def waited() -> list[float]:
    return []


@pytest.fixture
def gateway(namespace: NamespaceDouble, clock: Clock, waited: list[float]) -> Gateway:
    return Gateway(Cluster(), Site.model_validate({**SITE, "namespace": "team"}), clock, waited.append)


def refusing(code: int, message: str, reason: str = "") -> Callable[[str, str, str], None]:
    def refuse(verb: str, plural: str, name: str) -> None:
        if plural == "serviceaccounts/token":
            raise Problem(code, message, name=name, reason=reason)

    return refuse


def test_one_token_is_for_all_requests_of_some_minutes(gateway: Gateway, double: ClusterDouble, clock: Clock) -> None:
    for _ in range(3):
        assert gateway.runs() == []
    assert not gateway.forget("none")
    assert len(double.tokens) == 1
    clock.now += 479
    gateway.runs()
    assert len(double.tokens) == 1
    clock.now += 2
    gateway.runs()
    assert len(double.tokens) == 2, "before it expires"


def test_a_token_that_is_not_taken_is_made_anew_once(
    gateway: Gateway, double: ClusterDouble, namespace: NamespaceDouble
) -> None:
    gateway.runs()
    namespace.expired.update(double.tokens)
    assert gateway.runs() == []
    assert len(double.tokens) == 2
    namespace.expired.update(f"of.team.{number}" for number in range(10))
    with pytest.raises(TargetError, match=r"the gateway in namespace team of lab does not know you: the token is not valid"):
        gateway.runs()
    assert len(double.tokens) == 3


def test_what_a_user_may_not_do_is_not_said_to_be_for_lack_of_knowing_him(gateway: Gateway) -> None:
    refusal = ApiResponse(403, {}, b'{"error": "a viewer deletes no runs"}')
    with pytest.raises(TargetError, match=r"^the gateway in namespace \w+ of lab refuses: a viewer deletes no runs$"):
        gateway._checked_response(refusal)


def test_a_gateway_that_cannot_find_out_who_asks_is_asked_again(
    gateway: Gateway, namespace: NamespaceDouble, waited: list[float]
) -> None:
    namespace.unchecked = 2
    assert gateway.runs() == []
    assert waited == [0.5, 1.0]
    namespace.unchecked = 9
    with pytest.raises(TargetError, match="could not be asked who you are"):
        gateway.runs()
    assert len(waited) == 5


def test_who_may_not_have_a_token_is_told_who_gives_it(gateway: Gateway, double: ClusterDouble) -> None:
    said = 'serviceaccounts "trialplane-user" is forbidden: User "ada" cannot create resource "serviceaccounts/token"'
    double.refuse = refusing(403, said, "Forbidden")
    with pytest.raises(TargetError) as caught:
        gateway.runs()
    assert "ada may not create serviceaccounts/token in namespace team of lab" in str(caught.value)
    assert "by adding ada to `users` of your team in the chart's values" in str(caught.value)


def test_who_only_reads_gets_a_token_of_the_viewers(gateway: Gateway, double: ClusterDouble) -> None:
    def refuse(verb: str, plural: str, name: str) -> None:
        if name == names.USER:
            refusing(403, "forbidden", "Forbidden")(verb, plural, name)

    double.refuse = refuse
    assert gateway.runs() == []
    assert len(double.tokens) == 1


def test_a_chart_without_the_account_is_older(gateway: Gateway, double: ClusterDouble) -> None:
    double.refuse = refusing(404, 'serviceaccounts "trialplane-user" not found', "NotFound")
    with pytest.raises(TargetError, match=r"no service account trialplane-user in namespace team of lab.*helm upgrade"):
        gateway.runs()
