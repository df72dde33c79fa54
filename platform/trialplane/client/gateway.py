"""Client of the chart's gateway: the ledger and the logs of runs, through the API server's proxy.

There is one method for each route of the gateway (`trialplane.gateway`). For a run that is not in the ledger, a method
returns None, False or an empty list. Any other failure is a `TargetError`. A token of the namespace's service account for
users authenticates each request. The API server issues such tokens (TokenRequest), valid for minutes, to these users only.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from trialplane.client.target import AttemptsRead, EndedRows, Log
from trialplane.errors import LedgerLocked, RunDamaged, TargetError
from trialplane.kube.cluster import ApiResponse, Cluster
from trialplane.ledger.attempts import Attempt
from trialplane.plan.site import Site
from trialplane.wire import cluster as names
from trialplane.wire import ledger, mlflow, records
from trialplane.wire.logs import Piece
from trialplane.wire.records import Change, Desired, ReportRow, RunStatus, TrialRow

TOKEN_SECONDS = 600  # the shortest lifetime that Kubernetes allows
_RENEWAL = 0.8  # share of a token's lifetime after which it is renewed
_RETRY_DELAYS = (0.5, 1.0, 2.0)  # seconds before each retry, if the gateway could not check the token


class LedgerStatus(NamedTuple):
    """The state of a run in the ledger.

    Attributes:
        status: Newest status.
        alive: Whether a controller works on the run.
        desired: Desired state.
    """

    status: RunStatus
    alive: bool
    desired: Desired


class Gateway:
    """Connection to the gateway of one site.

    Args:
        cluster: Cluster of the gateway.
        site: Site with the name of its service.
        clock: Function that returns the time in seconds, monotonic.
        pause: Function that waits for a number of seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        site: Site,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._site = site
        self._clock = clock
        self._pause = pause
        self._token, self._renewal_time = "", 0.0
        self._token_lock = threading.Lock()

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs in the ledger, newest first: run, job, submitted."""
        runs: list[dict[str, Any]] = self._checked_response(self._get("runs")).json()
        return runs

    def status(self, run: str) -> LedgerStatus | None:
        """Return the state of a run in the ledger.

        Raises:
            RunDamaged: The status is invalid or of another version.
        """
        answer = self._get_run_item(run, "status")
        if answer is None:
            return None
        fields = answer.json()
        try:
            status = records.from_dict(RunStatus, fields["status"])
            desired = records.from_dict(Desired, fields["desired"])
        except ValueError as error:
            raise self._unreadable_status_error(run, str(error)) from error
        if invalid_field := records.mistyped_field(status):
            raise self._unreadable_status_error(run, f"an invalid value for `{invalid_field}`")
        return LedgerStatus(status, alive=bool(fields["alive"]), desired=desired)

    def job(self, run: str) -> bytes | None:
        """Return the resolved job as JSON."""
        return self._item_body(run, "job")

    def submission(self, run: str) -> dict[str, Any] | None:
        """Return the facts of the submission."""
        document = self._item_body(run, "submission")
        return None if document is None else dict(json.loads(document))

    def code(self, run: str) -> bytes | None:
        """Return the packed code."""
        return self._item_body(run, "code")

    def has_checkpoint(self, run: str) -> bool | None:
        """Return whether a training has saved a checkpoint; None if that, or the run, is unknown."""
        answer = self._get_run_item(run, "checkpoints")
        saved: bool | None = None if answer is None else answer.json()["saved"]
        return saved

    def attempts(self, run: str) -> list[TrialRow] | None:
        """Return all attempts, in the order of their starts."""
        pages = self._pages(run, "attempts", {})
        return None if pages is None else _rows(pages)

    def ends(self, run: str, after: int) -> EndedRows | None:
        """Return the attempts that ended after the position `after`."""
        pages = self._pages(run, "ends", {"after": str(after)})
        return None if pages is None else EndedRows(position=int(pages[-1]["end_number"]), rows=_rows(pages))

    def attempts_since(self, run: str, after: int) -> AttemptsRead | None:
        """Return running attempts and those that ended after a position."""
        pages = self._pages(run, "whole", {"after": str(after)})
        if pages is None:
            return None
        attempts = [records.from_dict(Attempt, attempt) for page in pages for attempt in page["attempts"]]
        is_active = any(page["alive"] for page in pages)  # a controller may start or end between two pages
        return AttemptsRead(attempts, is_active)

    def curves(self, run: str, after: int, limit: int) -> list[ReportRow] | None:
        """Return the first `limit` reports with marks above `after`, in order."""
        pages = self._pages(run, "curves", {"after": str(after), "limit": str(limit)})
        if pages is None:
            return None
        return [records.from_dict(ReportRow, report) for page in pages for report in page["reports"]]

    def changes(self, run: str) -> list[Change]:
        """Return the changes of the desired state, in order."""
        answer = self._get_run_item(run, "changes")
        return [] if answer is None else [records.from_dict(Change, change) for change in answer.json()]

    def log(self, run: str, which: Log, offset: int) -> Piece | str:
        """Return a piece of a log from an offset, or as text the reason why there is no log yet."""
        numbers = {"trial": which.trial, "attempt": which.attempt, "worker": which.worker}
        query = {"from": str(offset), **{name: str(number) for name, number in numbers.items() if number is not None}}
        answer = self._get(f"runs/{run}/log", query)
        if _is_not_found(answer):
            return _error_field(answer, "error") or ""
        self._checked_response(answer)
        next_offset = int(answer.headers.get("x-trialplane-next", offset + len(answer.data)))
        return Piece(answer.data, next_offset, is_growing=answer.headers.get("x-trialplane-growing") == "1")

    def forget(self, run: str) -> bool:
        """Request the removal of a run, which the operator carries out. Return False if the run is unknown.

        Raises:
            LedgerLocked: A controller works on the run.
        """
        answer = self._send("DELETE", f"runs/{run}")
        message = _error_field(answer, "error")
        if answer.status == 409 and message is not None:
            raise LedgerLocked(message)
        if _is_not_found(answer):
            return False
        self._checked_response(answer, "delete")
        return True

    def _unreadable_status_error(self, run: str, problem: str) -> RunDamaged:
        """Return the error for a run whose status has a problem."""
        return RunDamaged(
            f"the status of {run}, from the gateway in {self._cluster.location}, cannot be read: {problem}. Use the chart's "
            "version of `platform`"
        )

    def _item_body(self, run: str, item: str) -> bytes | None:
        """Return the body of the answer about an item of a run; None for an unknown run."""
        answer = self._get_run_item(run, item)
        return None if answer is None else answer.data

    def _get_run_item(self, run: str, item: str, query: Mapping[str, str] | None = None) -> ApiResponse | None:
        """Return the answer about an item of a run, such as "status" or "curves"; None for an unknown run."""
        answer = self._get(f"runs/{run}/{item}", query)
        return None if _is_not_found(answer) else self._checked_response(answer)

    def _pages(self, run: str, item: str, query: Mapping[str, str]) -> list[dict[str, Any]] | None:
        """Return all pages of an answer, at least one; None for an unknown run.

        `next` of a page has the parts of the query that change for the next page. It is None in the last page.
        """
        pages: list[dict[str, Any]] = []
        next_query: Mapping[str, Any] | None = {}
        while next_query is not None:
            query = {**query, **{name: str(value) for name, value in next_query.items()}}
            answer = self._get_run_item(run, item, query)
            if answer is None:
                return None
            pages.append(answer.json())
            next_query = pages[-1]["next"]
        return pages

    def check_mlflow(self) -> None:
        """Check that MLflow answers.

        Raises:
            TargetError: MLflow or the gateway does not answer.
        """
        answer = self._get(f"{mlflow.UI.lstrip('/')}/health")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if not answer.ok:
                raise TargetError(f"the gateway in {self._cluster.location} reports: {answer.json()['message']}")
        self._checked_response(answer)

    @contextlib.contextmanager
    def mlflow(self, method: str, target: str, body: bytes) -> Iterator[Any]:
        """Yield the response to a request of MLflow's pages; see `Cluster.service_stream`.

        Args:
            method: HTTP method.
            target: Path and query.
            body: JSON, or b"".
        """
        site_gateway, path = self._site.gateway, f"{self._root_path}{mlflow.UI}{target}"
        for renew in (False, True):  # a refused token is replaced once
            headers = {names.TOKEN_HEADER: self._bearer(renew=renew)}
            with self._cluster.service_stream(
                site_gateway.service, site_gateway.port, method, path, body, headers, self._namespace, site_gateway.scheme
            ) as response:
                if response.status == 401 and not renew:
                    continue
                yield response
                return

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> ApiResponse:
        return self._send("GET", path, query)

    def _send(self, method: str, path: str, query: Mapping[str, str] | None = None) -> ApiResponse:
        """Send a request. Repeat it with a new token if the gateway rejects the token, or could not check it."""
        answer = self._send_once(method, path, query, self._bearer())
        if answer.status == 401 and _error_field(answer, "error") is not None:
            answer = self._send_once(method, path, query, self._bearer(renew=True))
        for seconds in _RETRY_DELAYS:
            is_unchecked = answer.status == 503 and _error_field(answer, "code") == names.UNCHECKED
            if not is_unchecked:
                break
            self._pause(seconds)  # then the request is repeated, which is safe: without a checked token it had no effect
            answer = self._send_once(method, path, query, self._bearer())
        return answer

    def _send_once(self, method: str, path: str, query: Mapping[str, str] | None, token: str) -> ApiResponse:
        """Send one request about this namespace, without retries."""
        site_gateway = self._site.gateway
        return self._cluster.service(
            site_gateway.service,
            site_gateway.port,
            method,
            f"{self._root_path}/{path}",
            query=query,
            headers={names.TOKEN_HEADER: token},
            namespace=self._namespace,
            scheme=site_gateway.scheme,
        )

    @property
    def _root_path(self) -> str:
        return ledger.namespace_path(self._cluster.namespace)

    @property
    def _namespace(self) -> str:
        """Namespace of the gateway itself."""
        return self._site.home

    def _bearer(self, *, renew: bool = False) -> str:
        """Return a token that authenticates this user for runs in the namespace: the last one, or a new one if needed."""
        with self._token_lock:
            if renew or self._clock() >= self._renewal_time:
                request_time = self._clock()
                self._token, lifetime_seconds = self._request_token()
                self._renewal_time = request_time + _RENEWAL * lifetime_seconds
            return self._token

    def _request_token(self) -> tuple[str, float]:
        """Return a new token and its lifetime in seconds."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [names.AUDIENCE], "expirationSeconds": TOKEN_SECONDS},
        }
        accounts = f"/api/v1/namespaces/{self._cluster.namespace}/serviceaccounts"
        answer = self._cluster.call("POST", f"{accounts}/{names.USER}/token", body=body)
        if answer.status == 403:  # viewers may only create tokens of another account
            viewer_answer = self._cluster.call("POST", f"{accounts}/{names.VIEWER}/token", body=body)
            if viewer_answer.ok:
                answer = viewer_answer
        if answer.status == 404:
            raise TargetError(
                f"there is no service account {names.USER} in {self._cluster.location}, with which the gateway identifies "
                "users; `helm upgrade` with the chart of this `platform` creates it"
            )
        if not answer.ok:
            raise self._cluster.refusal_error(answer, "create", "serviceaccounts/token")
        token_request = answer.json()
        return str(token_request["status"]["token"]), float(token_request["spec"].get("expirationSeconds") or TOKEN_SECONDS)

    def _checked_response(self, answer: ApiResponse, verb: str = "get") -> ApiResponse:
        """Return a successful answer unchanged.

        Raises:
            TargetError: The answer is an error.
        """
        if answer.ok:
            return answer
        service, location = self._site.gateway.service, f"namespace {self._namespace} of {self._cluster.context}"
        message = _error_field(answer, "error")  # None: the API server answered, because the gateway did not
        if message is not None and answer.status == 401:
            raise TargetError(f"the gateway in {location} does not know you: {message}")
        if message is not None and answer.status == 403:
            raise TargetError(f"the gateway in {location} refuses: {message}")
        if message is not None:
            raise TargetError(f"the gateway in {location} reports: {message}; see `kubectl logs deploy/{service}` there")
        if answer.status in (404, 502, 503, 504):
            raise TargetError(
                f"the gateway {service} in {location} does not answer; `kubectl --context {self._cluster.context} "
                f"-n {self._namespace} get pods,endpointslices -l {names.MANAGED_BY}` or `platform doctor` shows why"
            )
        raise self._cluster.refusal_error(answer, verb, "services/proxy", self._namespace)


def _rows(pages: list[dict[str, Any]]) -> list[TrialRow]:
    """Return the rows of all pages."""
    return [records.from_dict(TrialRow, row) for page in pages for row in page["rows"]]


def _is_not_found(answer: ApiResponse) -> bool:
    """Return whether the gateway has no such run, or no such log of it.

    The API server answers 404, too, if it has no service of the gateway, but without an error of the gateway.
    """
    return answer.status == 404 and _error_field(answer, "error") is not None


def _error_field(answer: ApiResponse, field: str) -> str | None:
    """Return a field of the gateway's error, `{"error": message, "code": code}`. None if the answer is no such error."""
    try:
        document = answer.json()
    except ValueError:
        return None
    return str(document[field]) if isinstance(document, dict) and "error" in document and field in document else None
