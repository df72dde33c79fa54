"""Who asks the gateway, with an API server that checks tokens over HTTP: whom it knows, what it remembers, and what it says
when the API server refuses or is away.

Not checked here: which routes ask (test_gateway.py), and a real API server's tokens (tests/e2e).
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trialplane.gateway import callers
from trialplane.gateway.callers import ApiServer, Callers, TokenRefused, TokenUnchecked, User
from trialplane.wire import cluster


def jwt(name: str, seconds: int = 600) -> str:
    """One as the API server makes it for so many seconds, but for its signature."""
    payload = json.dumps({"iat": 1_800_000_000, "exp": 1_800_000_000 + seconds, "sub": name}).encode()
    return f"head.{base64.urlsafe_b64encode(payload).decode().rstrip('=')}.signature"


ADA = jwt("ada")
USER = "system:serviceaccount:team:trialplane-user"
ITSELF = "the-gateways-own"


class Reviews:
    """The API server's TokenReview.

    Attributes:
        bearers: whose tokens there are.
        audiences: for which they are good.
        code: of its answers; 201 is all well.
        body: in place of its answer, if given.
        asked: each token that it was shown.
    """

    def __init__(self) -> None:
        self.bearers = {ADA: USER}
        self.audiences: list[str] | None = [cluster.AUDIENCE]
        self.code = 201
        self.body: bytes | None = None
        self.asked: list[str] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
                return

            def do_POST(self) -> None:
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code, body = double.answer(self.path, self.headers["Authorization"], given)
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, authorization: str, given: dict[str, Any]) -> tuple[int, bytes]:
        assert path == "/apis/authentication.k8s.io/v1/tokenreviews"
        assert given["spec"]["audiences"] == [cluster.AUDIENCE]
        token = given["spec"]["token"]
        self.asked.append(token)
        if authorization != f"Bearer {ITSELF}":
            return 401, b"{}"
        if token not in self.bearers:
            status: dict[str, Any] = {"authenticated": False, "error": "token has expired"}
        else:
            status = {"authenticated": True, "user": {"username": self.bearers[token]}}
            status |= {"audiences": self.audiences} if self.audiences is not None else {}
        return self.code, self.body or json.dumps({"kind": "TokenReview", "status": status}).encode()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@pytest.fixture
def reviews() -> Iterator[Reviews]:
    made = Reviews()
    yield made
    made.close()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(reviews: Reviews, clock: Clock, tmp_path: Path) -> Callers:
    (tmp_path / "token").write_text(f"{ITSELF}\n")
    return Callers(ApiServer(reviews.url, tmp_path), clock)


def test_a_viewer_is_known_by_an_account_of_its_own(known: Callers, reviews: Reviews) -> None:
    reviews.bearers[ADA] = "system:serviceaccount:team:trialplane-viewer"
    user = known.user(ADA)
    assert user == User("team", is_viewer=True)
    assert (user.may_see("team"), user.may_change("team"), user.may_see("other")) == (True, False, False)


def test_a_user_is_known_by_the_namespace_of_the_account(known: Callers) -> None:
    user = known.user(ADA)
    assert user == User("team")
    assert user.may_see("team") and user.may_change("team")
    assert not user.may_see("other")
    assert not user.may_see("")


def test_an_answer_is_remembered_for_a_minute_and_no_longer(known: Callers, reviews: Reviews, clock: Clock) -> None:
    known.user(ADA)
    clock.now += 59
    known.user(ADA)
    assert reviews.asked == [ADA]
    reviews.bearers.clear()  # the account was removed
    clock.now += 2
    with pytest.raises(TokenRefused, match="token has expired"):
        known.user(ADA)


def test_what_is_remembered_is_bounded_and_is_no_token(
    known: Callers, reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "TOKENS", 2)
    several = [jwt(f"ada-{number}") for number in range(3)]
    reviews.bearers = dict.fromkeys(several, USER)
    for token in (*several, several[2], several[0]):
        known.user(token)
    assert reviews.asked == [*several, several[0]], "the oldest was forgotten"
    assert not any(token in repr(known._cache) for token in several)


@pytest.mark.parametrize("seconds", [601, 365 * 86_400, -1])
def test_a_token_that_outlasts_the_right_to_make_one_is_refused(known: Callers, reviews: Reviews, seconds: int) -> None:
    """Who may ask for minutes may ask for a year."""
    long = jwt("ada", seconds)
    reviews.bearers[long] = USER
    with pytest.raises(TokenRefused, match="valid for longer than 10 minutes; leave out --duration"):
        known.user(long)
    reviews.bearers["a.e30.c"] = USER  # without a word of its time
    with pytest.raises(TokenRefused, match="valid for longer"):
        known.user("a.e30.c")


def test_a_refusal_is_not_remembered(known: Callers, reviews: Reviews) -> None:
    with pytest.raises(TokenRefused):
        known.user(jwt("new"))
    reviews.bearers[jwt("new")] = USER
    assert known.user(jwt("new")) == User("team")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ada",
        "system:serviceaccount:team:default",
        "system:serviceaccount:team:trialplane-user2",
        "system:serviceaccount:team:x:trialplane-user",
        "system:serviceaccount:TEAM:trialplane-user",
        "x-system:serviceaccount:team:trialplane-user",
        "system:serviceaccount::trialplane-user",
        "system:serviceaccount:team:trialplane-user\n",
    ],
)
def test_whoever_is_not_a_namespaces_account_for_users_is_unknown(known: Callers, reviews: Reviews, name: str) -> None:
    reviews.bearers[ADA] = name
    with pytest.raises(TokenRefused):
        known.user(ADA)


@pytest.mark.parametrize("audiences", [None, [], ["https://kubernetes.default.svc"]])
def test_a_token_for_somebody_else_is_refused(known: Callers, reviews: Reviews, audiences: list[str] | None) -> None:
    """An API server that knows no audiences says that such a token is valid."""
    reviews.audiences = audiences
    with pytest.raises(TokenRefused) as caught:
        known.user(ADA)
    assert caught.value.is_renewable


@pytest.mark.parametrize("token", ["", "a-run's-token-without-dots", "a.b.c" + "x" * 20_000, "a.b.c.d"])
def test_what_is_no_token_of_an_account_is_shown_to_nobody(known: Callers, reviews: Reviews, token: str) -> None:
    with pytest.raises(TokenRefused) as caught:
        known.user(token)
    assert reviews.asked == []
    assert not caught.value.is_renewable
    assert token or "kubectl create token trialplane-user --audience trialplane" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (401, "right to create tokenreviews"),
        (403, "`helm upgrade`"),
        (500, "HTTP 500"),
        (503, "try again"),
        (429, "HTTP 429"),
    ],
)
def test_an_api_server_that_refuses_is_no_answer(known: Callers, reviews: Reviews, code: int, told: str) -> None:
    reviews.code = code
    with pytest.raises(TokenUnchecked, match=told):
        known.user(ADA)
    reviews.code = 201
    assert known.user(ADA) == User("team"), "the next try"


@pytest.mark.parametrize(
    "body", [b"no JSON", b"[]", b"{}", b'{"status": 7}', b'{"status": {"authenticated": true, "user": 1}}']
)
def test_an_answer_that_is_none_lets_nobody_in(known: Callers, reviews: Reviews, body: bytes) -> None:
    reviews.body = body
    with pytest.raises((TokenUnchecked, TokenRefused)):
        known.user(ADA)


def test_an_api_server_that_is_away_is_said_and_what_is_remembered_counts(known: Callers, reviews: Reviews) -> None:
    known.user(ADA)
    reviews.close()
    assert known.user(ADA) == User("team")
    with pytest.raises(TokenUnchecked, match=r"could not be asked who you are: .*; try again in a moment"):
        known.user("an.other.token")


def test_a_token_that_the_kubelet_renews_is_read_again(known: Callers, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("stale")
    with pytest.raises(TokenUnchecked, match="HTTP 401"):
        known.user(ADA)
    (tmp_path / "token").write_text(ITSELF)
    assert known.user(ADA) == User("team")
    (tmp_path / "token").unlink()
    with pytest.raises(TokenUnchecked, match="No such file"):
        known.user("a.b.c")
