"""Authentication of users: by a token of their namespace's service account, which the API server checks.

A laptop requests a token of the service account `trialplane-user` in the namespace of its runs from the API server, or of
`trialplane-viewer` to read only, valid for this gateway (its audience) and for minutes. The API server's review of the token
names its account, and so the namespace whose runs its bearer may see. So rights are given by the Role that allows making
such tokens, and the gateway holds no secret of its own. (Runs have tokens of another kind: `ledgers`.)
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
    """A request without a valid token; `again` is whether another token may be valid."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        self.again = again
        super().__init__(text)


class Unchecked(Exception):
    """The API server could not check a token; the next try may succeed."""


@dataclasses.dataclass(frozen=True)
class User:
    """A user of the runs of one namespace; `views` is whether he may only see them."""

    namespace: str
    views: bool = False

    def may_see(self, namespace: str) -> bool:
        """Whether runs of a namespace are for this user. The only place that decides it."""
        return namespace == self.namespace

    def may_change(self, namespace: str) -> bool:
        """Whether this user may delete runs of a namespace; the API server authorizes all other changes of a run."""
        return self.may_see(namespace) and not self.views


@dataclasses.dataclass(frozen=True)
class Review:
    """The API server's review of a token: the name of its bearer, or "" if it is not valid, with the reason."""

    name: str
    reason: str = ""


class Reviewer(Protocol):
    """Reviews tokens, as the API server does."""

    def __call__(self, token: str) -> Review:
        """Return the review of a token.

        Raises:
            Unchecked: there is no answer.
        """


class Callers:
    """Authenticates users by their tokens. May be used from several threads.

    Args:
        review: checks a token.
        clock: seconds, monotonic.
    """

    def __init__(self, review: Reviewer, clock: Callable[[], float] = time.monotonic) -> None:
        self._review = review
        self._clock = clock
        self._cache: collections.OrderedDict[str, tuple[float, User]] = collections.OrderedDict()
        self._changing = threading.Lock()
        self._reviewing = threading.BoundedSemaphore(_REVIEWS)

    def user(self, token: str) -> User:
        """Return the user of a token.

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
        if token.count(".") != 2 or len(token) > _LONGEST:  # no other secret is sent to the API server
            raise Unknown(f"the header {cluster.TOKEN_HEADER} does not hold a token of a service account")
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        with self._changing:
            reviewed_at, user = self._cache.get(digest, (0.0, None))
            if user is not None and self._clock() - reviewed_at < REMEMBERED:
                return user
        if not self._reviewing.acquire(timeout=SECONDS):
            raise Unchecked("the gateway has other tokens to check; try again in a moment")
        try:
            reviewed_at = self._clock()
            review = self._review(token)
        finally:
            self._reviewing.release()
        if not review.name:
            raise Unknown(f"the token is not valid (any more): {review.reason or 'it has expired'}", again=True)
        match = _USER.fullmatch(review.name)
        if match is None:
            raise Unknown(f"the token is of {review.name}; users need one of the service account {cluster.USER}")
        user = User(match[1], match[3] == cluster.VIEWER)
        with self._changing:
            self._cache[digest] = (reviewed_at, user)
            self._cache.move_to_end(digest)
            while len(self._cache) > TOKENS:
                self._cache.popitem(last=False)
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
        """Return the API server of the cluster that this pod is in.

        Raises:
            KeyError: this is no pod.
            OSError: it has no token.
        """
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")

    def __call__(self, token: str) -> Review:
        """See `Reviewer`."""
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [cluster.AUDIENCE]},
        }
        try:
            headers = {"Authorization": f"Bearer {self._token.read_text().strip()}", "Content-Type": "application/json"}
            request = urllib.request.Request(self._url, json.dumps(review).encode(), headers)
            with self._opener.open(request, timeout=SECONDS) as reply:
                status = json.loads(reply.read(_ANSWER))["status"]
            user = status.get("user") or {}
            # An API server without support for audiences returns none, and has then checked none.
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
    """Return the lifetime of a token by its claims, whose signature the API server has checked; infinite without them."""
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    times = claims.get("exp"), claims.get("iat")
    return times[0] - times[1] if all(isinstance(moment, (int, float)) for moment in times) else math.inf
