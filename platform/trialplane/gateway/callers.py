"""Authentication of users by a token of a service account in their namespace. The API server checks the token.

A laptop requests a token from the API server, for the service account `trialplane-user` in the namespace of its runs, or
`trialplane-viewer` to read only. The token is valid for some minutes and for the gateway only (its audience). The API
server's review of the token names the service account, and so the namespace whose runs the user may see. A user's rights
thus follow from the Role that allows creating such tokens, and the gateway needs no secret of its own. (Runs have other
tokens, see `ledgers`.)
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
from typing import Any

from trialplane import errors
from trialplane.wire import cluster

CACHE_SECONDS = 60.0  # time for which a review is cached
TOKENS = 1000  # limit of cached reviews
MAX_LIFETIME = 600.0  # limit of a token's lifetime, in seconds: the shortest lifetime that Kubernetes offers
REVIEW_SECONDS = 5.0  # time limit of a review
_MAX_TOKEN = 16 << 10  # limit of a token's characters
_MAX_REVIEWS = 4  # limit of concurrent reviews
_MAX_ANSWER = 1 << 20  # limit of the API server's answer, in bytes
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_USER = re.compile(
    r"system:serviceaccount:(?P<namespace>[a-z0-9]([-a-z0-9]*[a-z0-9])?):"
    rf"(?P<account>{re.escape(cluster.USER)}|{re.escape(cluster.VIEWER)})"
)


class TokenRefused(Exception):
    """Error for a request without a valid token.

    Args:
        text: Message for people.
        is_renewable: Whether a new token may be valid.
    """

    def __init__(self, text: str, *, is_renewable: bool = False) -> None:
        self.is_renewable = is_renewable
        super().__init__(text)


class TokenUnchecked(Exception):
    """Error for a token that the API server could not check. Another attempt may succeed."""


@dataclasses.dataclass(frozen=True)
class User:
    """A user of the runs in one namespace. `is_viewer` is whether the user may only read them."""

    namespace: str
    is_viewer: bool = False

    def may_see(self, namespace: str) -> bool:
        """Whether this user may see the runs in a namespace."""
        return namespace == self.namespace

    def may_change(self, namespace: str) -> bool:
        """Whether this user may delete runs in a namespace. The API server authorizes all other changes of a run."""
        return self.may_see(namespace) and not self.is_viewer


@dataclasses.dataclass(frozen=True)
class Review:
    """The API server's review of a token.

    Attributes:
        name: Username of the token's bearer. "" if the token is not valid.
        reason: Reason why it is not valid, or "".
    """

    name: str
    reason: str = ""


class Callers:
    """Authentication of users by their tokens, with a cache. Safe for several threads.

    Args:
        review: Function that returns the review of a token, or raises TokenUnchecked.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, review: Callable[[str], Review], clock: Callable[[], float] = time.monotonic) -> None:
        self._review = review
        self._clock = clock
        # By digest of the token: the time of its review, and its user; the oldest review first.
        self._cache: collections.OrderedDict[str, tuple[float, User]] = collections.OrderedDict()
        self._cache_lock = threading.Lock()
        self._reviews = threading.BoundedSemaphore(_MAX_REVIEWS)

    def user(self, token: str) -> User:
        """Return the user of a token.

        Raises:
            TokenRefused: It is not a valid token of a user.
            TokenUnchecked: The token cannot be checked at the moment.
        """
        if not token:
            raise TokenRefused(
                f"the header {cluster.TOKEN_HEADER} must hold a token of the service account {cluster.USER}, or "
                f"{cluster.VIEWER}, in your namespace: `kubectl create token {cluster.USER} --audience {cluster.AUDIENCE}` "
                "creates one"
            )
        # Another kind of secret than a JSON Web Token, which has three parts, must not be sent to the API server.
        if token.count(".") != 2 or len(token) > _MAX_TOKEN:
            raise TokenRefused(f"the header {cluster.TOKEN_HEADER} does not hold a token of a service account")
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        with self._cache_lock:
            if digest in self._cache:
                reviewed_at, user = self._cache[digest]
                if self._clock() - reviewed_at < CACHE_SECONDS:
                    return user
        reviewed_at = self._clock()
        user = self._reviewed_user(token)
        with self._cache_lock:
            self._cache[digest] = (reviewed_at, user)
            self._cache.move_to_end(digest)
            while len(self._cache) > TOKENS:
                self._cache.popitem(last=False)
        return user

    def _reviewed_user(self, token: str) -> User:
        """Return the user of a token by the API server's review.

        Raises:
            TokenRefused, TokenUnchecked: As in `user`.
        """
        if not self._reviews.acquire(timeout=REVIEW_SECONDS):
            raise TokenUnchecked("the gateway is checking too many other tokens; try again in a moment")
        try:
            review = self._review(token)
        finally:
            self._reviews.release()
        if not review.name:
            reason = review.reason or "it has expired"
            raise TokenRefused(f"the token is not valid (any more): {reason}", is_renewable=True)
        match = _USER.fullmatch(review.name)
        if match is None:
            raise TokenRefused(f"the token is of {review.name}; users need one of the service account {cluster.USER}")
        return User(match["namespace"], is_viewer=match["account"] == cluster.VIEWER)


class ApiServer:
    """Function that reviews tokens by a TokenReview of the API server, with the rights of the gateway's service account.

    It uses the standard library, because importing the Kubernetes client would add a quarter to the gateway's memory.

    Args:
        url: URL of the API server.
        account: Folder with the service account's `token`, which the kubelet renews, and `ca.crt`.
    """

    def __init__(self, url: str, account: Path = ACCOUNT) -> None:
        self._url = f"{url}/apis/authentication.k8s.io/v1/tokenreviews"
        self._token = account / "token"
        # No proxy: the API server is in the cluster.
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        if url.startswith("https:"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # as strict as kubectl, see `kube.connections`
            context.load_verify_locations(account / "ca.crt")
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    @classmethod
    def of_pod(cls) -> ApiServer:
        """Return the API server of this pod's cluster.

        Raises:
            KeyError: This process does not run in a pod.
            OSError: The pod does not mount the certificate of the API server.
        """
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")

    def __call__(self, token: str) -> Review:
        """Return the review of a token.

        Raises:
            TokenUnchecked: The API server cannot be reached, or cannot review it.
        """
        try:
            return _review_of(token, self._post_review(token))
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise TokenUnchecked(
                    f"the API server does not let the gateway check tokens (HTTP {error.code}): the chart gives its service "
                    "account the right to create tokenreviews.authentication.k8s.io; `helm upgrade` gives it again"
                ) from error
            text = f"the API server could not check a token (HTTP {error.code}); try again in a moment"
            raise TokenUnchecked(text) from error
        # The answer of a proxy in between may be anything.
        except (OSError, ValueError, LookupError, TypeError, AttributeError, http.client.HTTPException) as error:
            text = errors.first_line(error)
            raise TokenUnchecked(f"the API server could not be asked who you are: {text}; try again in a moment") from error

    def _post_review(self, token: str) -> dict[str, Any]:
        """Create a TokenReview, and return its status."""
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [cluster.AUDIENCE]},
        }
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._url, json.dumps(review).encode(), headers)
        with self._opener.open(request, timeout=REVIEW_SECONDS) as reply:
            status: dict[str, Any] = json.loads(reply.read(_MAX_ANSWER))["status"]
        return status


def _review_of(token: str, status: dict[str, Any]) -> Review:
    """Return the review of a token by the status of its TokenReview."""
    # An API server that does not support audiences has not checked them, and returns none.
    if not status.get("authenticated") or cluster.AUDIENCE not in (status.get("audiences") or ()):
        return Review("", str(status.get("error") or "")[:300])
    if not 0 <= _lifetime(token) <= MAX_LIFETIME:
        return Review("", f"it is valid for longer than {MAX_LIFETIME / 60:.0f} minutes; leave out --duration")
    name = str((status.get("user") or {}).get("username") or "")
    return Review(name, "" if name else "it has no username")


def _lifetime(token: str) -> float:
    """Return the lifetime of a token in seconds, from its claims. Infinite if the claims have no times.

    The claims can be trusted, because the API server has checked their signature before.
    """
    payload = token.split(".")[1]
    padding = "=" * (-len(payload) % 4)  # tokens leave it out, and Python requires it
    claims = json.loads(base64.urlsafe_b64decode(payload + padding))
    expires_at, issued_at = claims.get("exp"), claims.get("iat")
    has_times = isinstance(expires_at, (int, float)) and isinstance(issued_at, (int, float))
    return expires_at - issued_at if has_times else math.inf
