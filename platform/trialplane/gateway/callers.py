"""Who asks the gateway: users, by a token of their namespace's service account, which the API server checks.

A laptop has the API server make a token of the service account `trialplane-user` in the namespace of its runs, or of
`trialplane-viewer` for who only reads, good for this gateway (its audience) and for minutes. The API server says whose it
is, and with that which namespace's runs its bearer may see. So rights are given by the Role that lets somebody make such
tokens, and the gateway holds no secret of its own. (Runs have tokens of another kind: `ledgers`.)
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import http.client
import json
import math
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from trialplane import errors
from trialplane.wire import cluster

REMEMBERED = 60.0  # seconds for which an answer of the API server counts
TOKENS = 1000  # answers that are remembered
LONGEST = 600.0  # seconds for which a user's token may be made: the shortest that Kubernetes makes
SECONDS = 5.0  # for the API server to answer
_LONGEST = 16 << 10  # characters of a token
_REVIEWS = 4  # at the same time
_ANSWER = 1 << 20  # bytes of the API server's that are read
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_USER = re.compile(
    rf"system:serviceaccount:([a-z0-9]([-a-z0-9]*[a-z0-9])?):({re.escape(cluster.USER)}|{re.escape(cluster.VIEWER)})"
)


class Unknown(Exception):
    """A request without a token that says who asks; `again` is whether another token may."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        self.again = again
        super().__init__(text)


class Unchecked(Exception):
    """The API server could not say whose a token is; it may at the next try."""


@dataclasses.dataclass(frozen=True)
class User:
    """Whoever may use the runs of one namespace, or only see them."""

    namespace: str
    views: bool = False

    def may_see(self, namespace: str) -> bool:
        """Whether runs of a namespace are for this user. The only place that decides it."""
        return namespace == self.namespace

    def may_change(self, namespace: str) -> bool:
        """Whether this user may delete runs of a namespace; all else that changes a run is asked of the API server."""
        return self.may_see(namespace) and not self.views


@dataclasses.dataclass(frozen=True)
class Review:
    """What the API server says of a token: the name of its bearer, "" if it is not valid, and why not."""

    name: str
    why: str = ""


class Reviewer(Protocol):
    """Has the API server check a token."""

    def __call__(self, token: str) -> Review:
        """What it says.

        Raises:
            Unchecked: it says nothing.
        """


class Callers:
    """Knows users by their tokens. May be used from several threads.

    Args:
        review: checks a token.
        clock: seconds, monotonic.
    """

    def __init__(self, review: Reviewer, clock: Callable[[], float] = time.monotonic) -> None:
        self._review = review
        self._clock = clock
        self._known: collections.OrderedDict[str, tuple[float, User]] = collections.OrderedDict()
        self._changing = threading.Lock()
        self._reviewing = threading.BoundedSemaphore(_REVIEWS)

    def user(self, token: str) -> User:
        """Whose token it is.

        Raises:
            Unknown: it is of no user.
            Unchecked: the API server cannot be asked at the moment.
        """
        if not token:
            raise Unknown(
                f"the header {cluster.TOKEN_HEADER} must hold a token of the service account {cluster.USER}, or "
                f"{cluster.VIEWER}, in your namespace: `kubectl create token {cluster.USER} --audience {cluster.AUDIENCE}` "
                "makes one"
            )
        if token.count(".") != 2 or len(token) > _LONGEST:  # nobody else's secret is shown to the API server
            raise Unknown(f"what is in the header {cluster.TOKEN_HEADER} is no token of a service account")
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        with self._changing:
            asked, user = self._known.get(digest, (0.0, None))
            if user is not None and self._clock() - asked < REMEMBERED:
                return user
        if not self._reviewing.acquire(timeout=SECONDS):
            raise Unchecked("the gateway has other tokens to check; try again in a moment")
        try:
            asked = self._clock()
            review = self._review(token)
        finally:
            self._reviewing.release()
        if not review.name:
            raise Unknown(f"the token is not valid (any more): {review.why or 'it has expired'}", again=True)
        found = _USER.fullmatch(review.name)
        if found is None:
            raise Unknown(f"the token is of {review.name}; the gateway knows users by the service account {cluster.USER}")
        user = User(found[1], found[3] == cluster.VIEWER)
        with self._changing:
            self._known[digest] = (asked, user)
            self._known.move_to_end(digest)
            while len(self._known) > TOKENS:
                self._known.popitem(last=False)
        return user


class ApiServer:
    """Checks tokens by TokenReview, with the rights of the gateway's own service account.

    Two requests of the standard library, in place of a client library that would be half of the gateway's memory.

    Args:
        url: of the API server.
        account: folder with `token`, which the kubelet renews, and `ca.crt`.
    """

    def __init__(self, url: str, account: Path = ACCOUNT) -> None:
        self._url = f"{url}/apis/authentication.k8s.io/v1/tokenreviews"
        self._token = account / "token"
        # No proxy: the API server is in the cluster.
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        if url.startswith("https:"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # as strict as kubectl, see `kube.cluster`
            context.load_verify_locations(account / "ca.crt")
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    @classmethod
    def of_pod(cls) -> ApiServer:
        """That of the cluster which this pod is in.

        Raises:
            KeyError: this is no pod.
            OSError: it has no token.
        """
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")

    def __call__(self, token: str) -> Review:
        """See `Reviewer`."""
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [cluster.AUDIENCE]},
        }
        try:
            headers = {"Authorization": f"Bearer {self._token.read_text().strip()}", "Content-Type": "application/json"}
            request = urllib.request.Request(self._url, json.dumps(asked).encode(), headers)
            with self._opener.open(request, timeout=SECONDS) as reply:
                status = json.loads(reply.read(_ANSWER))["status"]
            user = status.get("user") or {}
            # An API server that does not know of audiences says nothing of them, and has then checked none.
            if not status.get("authenticated") or cluster.AUDIENCE not in (status.get("audiences") or ()):
                return Review("", str(status.get("error") or "")[:300])
            if not 0 <= _seconds(token) <= LONGEST:
                return Review("", f"it was made for longer than {LONGEST / 60:.0f} minutes; leave out --duration")
            return Review(str(user.get("username") or ""), "it has no name")
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise Unchecked(
                    f"the API server does not let the gateway check tokens (HTTP {error.code}): the chart gives its service "
                    "account the right to create tokenreviews.authentication.k8s.io; `helm upgrade` gives it again"
                ) from error
            raise Unchecked(f"the API server could not check a token (HTTP {error.code}); try again in a moment") from error
        except (OSError, ValueError, LookupError, TypeError, AttributeError, http.client.HTTPException) as error:
            text = errors.first_line(error)
            raise Unchecked(f"the API server could not be asked who you are: {text}; try again in a moment") from error


def _seconds(token: str) -> float:
    """For how long a token was made, as it says itself; the API server has checked that it made it. Infinite if unsaid."""
    payload = token.split(".")[1]
    said = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    found = said.get("exp"), said.get("iat")
    return found[0] - found[1] if all(isinstance(one, (int, float)) for one in found) else math.inf
