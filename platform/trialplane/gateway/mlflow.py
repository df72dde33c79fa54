"""MLflow's door: what runs and users may request of MLflow's server, which nobody but the gateway can reach.

A run comes with the token that is derived from its own (`wire.mlflow`), and reaches its own MLflow runs: those with its
tags, which the door sets when they are created and lets nobody change. What it may call is in `mlflow_calls`. Users only
read, with MLflow's pages, and of their namespace alone (`pages`). Whose what is, `ownership` knows. Artifacts pass in
pieces; nothing is held in memory whose size has not been checked.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from starlette.responses import Response

from trialplane import errors
from trialplane.gateway import mlflow_calls, pages
from trialplane.gateway.answers import as_json
from trialplane.gateway.bodies import BadBody, Body, Headers, Reply
from trialplane.gateway.limits import Admit, Limit, crowded
from trialplane.gateway.mlflow_calls import DENIED, UNKNOWN, Call, Refused
from trialplane.gateway.ownership import Records
from trialplane.gateway.records import Run
from trialplane.gateway.upstream import ANSWER_SECONDS, AWAY, Upstream
from trialplane.ledger import archive, budget
from trialplane.ledger.archive import Archive
from trialplane.ledger.namespaces import Ledgers
from trialplane.wire import cluster, escapes, labels, ledger
from trialplane.wire.ledger import Address
from trialplane.wire.mlflow import Inside

MAX_CALL = 4 << 20  # bytes of a call's body; MLflow takes 1 MB of metrics, parameters and tags at once
REQUESTS = 128  # of one run at a time
MAX_QUESTION = 64 << 10  # bytes of the body of a user's request: MLflow's pages send little
QUESTIONS = 32  # of one namespace's users that are answered at a time
PIECE = 1 << 18  # bytes of an artifact in memory
STORE_SECONDS = 1800.0  # for it to store an artifact that it has received
_REMEMBERED = 10_000  # tokens whose runs are remembered
_LARGE = 256 << 10  # bytes of a body from which on one is handled at a time
_CALLS = 32  # with bodies from a quarter of that on which are in memory at a time, or on their way there,
_CALLS_OF_ONE = 8  # of one run
_BEARER = "Bearer "
_logger = logging.getLogger(__name__)
_LOG = "the log of its pod says more"
_CURES = {
    401: "its password is not the one in the gateway's Secret",
    403: "the chart's value mlflow.allowedHosts must have the host by which the gateway names it",
}
_BYTES = "application/octet-stream"
_KIND = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w.-]+=[\w.-]+)?")
_PASSED_ON = ("Content-Type", "Content-Disposition", "Cache-Control", "ETag", "Last-Modified", "X-Content-Type-Options")


class Door:
    """Passes requests on to MLflow.

    Args:
        upstream: MLflow's server; None where there is none.
        all_runs: by namespace.
        refuses: why a user may not come in, from the namespace and the token; None for one who may.
    """

    def __init__(self, upstream: Upstream | None, all_runs: Ledgers, refuses: Callable[[str, str], Response | None]) -> None:
        self._upstream = upstream
        self._all_runs = all_runs
        self._refuses = refuses
        self._large = threading.Lock()
        self._calls = Limit()  # by address
        self._requests = Limit()  # by address
        self._questions = Limit()  # by namespace
        self._records = None if upstream is None else Records(upstream)
        self._guard = threading.Lock()  # of what follows
        self._known_runs: dict[tuple[Address, str], Run] = {}  # by address and token

    @property
    def _server(self) -> Upstream:
        if self._upstream is None:
            raise Refused(503, AWAY, "this gateway has no MLflow: the chart's values say where it is, in mlflow")
        return self._upstream

    @property
    def _there(self) -> Records:
        assert self._records is not None  # there is a server
        return self._records

    @contextlib.contextmanager
    def answer(
        self, inside: Inside, method: str, headers: Headers, body: Body, admit: Admit = lambda namespace: True
    ) -> Iterator[Reply]:
        """The reply to one request, whatever it is; its body passes through while the context is entered.

        Args:
            inside: whose door it came to, and what is behind it.
            method: of HTTP.
            headers: as they came.
            body: not read yet.
            admit: is told the namespace whose token it shows.
        """
        with contextlib.ExitStack() as stack:
            try:
                reply = stack.enter_context(self._answer(inside, method, headers, body, admit))
            except Refused as refused:
                reply = _refusal(refused.status, refused.code, str(refused))
            except BadBody as bad:
                reply = _refusal(bad.status, mlflow_calls.INVALID, str(bad))
            except errors.LedgerFull as error:
                reply = _refusal(507, mlflow_calls.FULL, str(error))
            except archive.DATABASE_ERRORS as error:
                line = archive.reason(error)
                reply = _refusal(503, AWAY, f"the ledger's database, which knows this run's token, does not answer: {line}")
            except errors.TrialplaneError as error:
                reply = _refusal(403, DENIED, str(error))
            except Exception as error:  # what nobody thought of, in a request or in what MLflow said
                _logger.exception("%s %s", method, escapes.visible(inside.target[:200]))
                reply = _refusal(502, "INTERNAL_ERROR", f"the gateway could not handle this: {type(error).__name__}")
            yield reply

    def _answer(
        self, inside: Inside, method: str, headers: Headers, body: Body, admit: Admit
    ) -> contextlib.AbstractContextManager[Reply]:
        _, target = self._server, inside.target
        runs = self._all_runs.of(inside.namespace)
        if runs is None:
            text = f"{inside.namespace:.63} is not among the gateway's namespaces"
            if inside.run:  # its team was added and this gateway not started anew, or was taken out: it waits, as its ledger
                raise Refused(503, AWAY, f"{text}; what {inside.run} logs waits until it is")
            raise Refused(404, UNKNOWN, text)
        if inside.run:
            run = self._admitted(runs, Address(inside.namespace, inside.run), headers.get("Authorization") or "")
            _check_admitted(admit, inside.namespace)
            return self._run(run, method, target, headers, body)
        if (method, target) == ("GET", "/health"):
            return self._health()
        return self._read(inside, method, headers, body, admit)

    @contextlib.contextmanager
    def _health(self) -> Iterator[Reply]:
        """For anybody: whether MLflow answers what needs its database."""
        with self._server.sent("GET", "/api/2.0/mlflow/experiments/search?max_results=1", "", (), 0) as response:
            if response.status != http.client.OK:
                said = response.read(200).decode(errors="replace")
                raise Refused(
                    503,
                    AWAY,
                    f"MLflow answers the gateway with {response.status}: {said}; {_CURES.get(response.status, _LOG)}",
                )
        yield Reply.of(as_json({"mlflow": "answers"}))

    @contextlib.contextmanager
    def _read(self, inside: Inside, method: str, headers: Headers, body: Body, admit: Admit) -> Iterator[Reply]:
        """For a user."""
        if (refusal := self._refuses(inside.namespace, headers.get(cluster.TOKEN_HEADER) or "")) is not None:
            yield Reply.of(refusal)
            return
        _check_admitted(admit, inside.namespace)
        scope = self._all_runs.scope(inside.namespace)
        if not self._questions.enter(inside.namespace, QUESTIONS, patience=ANSWER_SECONDS / 4):
            text = f"MLflow's pages have {QUESTIONS} requests of {inside.namespace} under way already; try again in a moment"
            raise Refused(429, "REQUEST_LIMIT_EXCEEDED", text)
        try:
            asked = pages.question(scope, method, inside.target, lambda: body.whole(MAX_QUESTION))
            self._there.check_visible(scope, asked)
            with self._server.sent(method, asked.target, "application/json", [asked.body], len(asked.body)) as response:
                yield self._there.visible(scope, asked, response) or _reply(response)
        finally:
            self._questions.leave(inside.namespace)

    @contextlib.contextmanager
    def _run(self, run: Run, method: str, target: str, headers: Headers, body: Body) -> Iterator[Reply]:
        """For a run, one of the requests that it may have at a time."""
        whose = Address(run.scope.namespace, run.name)
        if not self._requests.enter(whose, REQUESTS):
            text = f"{run.name} has {REQUESTS} requests to MLflow under way already"
            raise Refused(429, "REQUEST_LIMIT_EXCEEDED", text)
        with contextlib.ExitStack() as stack, contextlib.ExitStack() as unless_stored:
            stack.callback(self._requests.leave, whose)
            path, _, query = target.partition("?")
            call = mlflow_calls.artifact(method, path, query)
            if call is None:
                stack.enter_context(self._room(whose, body))
                call, data = self._call(run, method, path, query, body.whole(MAX_CALL))
                self._spend(whose, budget.MLFLOW, _kept(call, data), unless_stored, spare=not call.makes)
                kind, pieces, length, patience = "application/json", iter([data]), len(data), ANSWER_SECONDS
            else:
                self._there.check(run, call)
                most = self._server.max_artifact if method == "PUT" else 0
                body.check(most)
                if body.length is None:
                    _check_empty(body)
                elif method == "PUT":
                    self._spend(whose, budget.ARTIFACTS, body.length, unless_stored, spare=True)
                kind, pieces = headers.get("Content-Type") or _BYTES, body.pieces(most) if body.length else iter(())
                kind = kind if _KIND.fullmatch(kind) else _BYTES
                length, patience = body.length or 0, STORE_SECONDS
            response = stack.enter_context(self._server.sent(call.method, call.target, kind, pieces, length, patience))
            if response.status < 400:
                unless_stored.pop_all()
            unless_stored.close()  # before the reply is sent, as the next request may follow it at once
            yield self._made(response) if call.makes else _reply(response)

    def _spend(
        self, whose: Address, what: budget.Category, size: int, unless_stored: contextlib.ExitStack, *, spare: bool
    ) -> None:
        """Counts bytes that MLflow is about to get, and has them given back unless it takes them."""
        runs = self._all_runs.of(whose.namespace)
        assert runs is not None  # it was admitted
        runs.spend(what, size, spare=spare)
        unless_stored.callback(runs.refund, what, size)

    @contextlib.contextmanager
    def _room(self, whose: Address, body: Body) -> Iterator[None]:
        """Has a large body wait until there is room for it in memory."""
        if body.length is not None and body.length <= _LARGE // 4:
            yield
            return
        if not self._calls.enter(whose, _CALLS_OF_ONE, _CALLS, ANSWER_SECONDS / 4):
            text = f"{_CALLS} large requests to MLflow are under way already, or {_CALLS_OF_ONE} of {whose.run}"
            raise Refused(503, AWAY, text)
        try:
            yield
        finally:
            self._calls.leave(whose)

    def _call(self, run: Run, method: str, path: str, query: str, data: bytes) -> tuple[Call, bytes]:
        """A call that may be made, and its body."""
        with self._large if len(data) > _LARGE else contextlib.nullcontext():
            call = mlflow_calls.call(run, method, path, query, data)
            sent = b"" if call.body is None else json.dumps(call.body).encode()
        self._there.check(run, call)
        return call, sent

    def _made(self, response: http.client.HTTPResponse) -> Reply:
        """The reply about a new run, whose owner is known from now on."""
        data = response.read()
        if response.status == http.client.OK:
            self._there.learn(json.loads(data)["run"])
        return Reply(response.status, _passed_on(response), iter([data]), len(data))

    def _admitted(self, runs: Archive, whose: Address, authorization: str) -> Run:
        """The run that a token opens."""
        token = authorization.removeprefix(_BEARER)
        if not authorization.startswith(_BEARER) or not runs.opens_mlflow(whose.run, token):
            text = (
                "the token does not open MLflow for this run: each start has its own, which is gone when the run has ended"
            )
            raise Refused(403, DENIED, text)
        key = whose, ledger.hashed(token)
        with self._guard:
            known = self._known_runs.get(key)
        if known is None:
            job = runs.attribute(whose.run, labels.LEDGER_JOB)["name"]
            submission = runs.attribute(whose.run, labels.LEDGER_SUBMISSION) or {}
            scope = self._all_runs.scope(whose.namespace)
            known = Run(scope, whose.run, job, str(submission.get(labels.RECORD_UID, "")))
            with self._guard:
                self._known_runs[key] = known
                _forget(self._known_runs)
        return known


def _check_admitted(admit: Admit, namespace: str) -> None:
    if not admit(namespace):
        raise Refused(429, "REQUEST_LIMIT_EXCEEDED", crowded(namespace))


def _kept(call: Call, data: bytes) -> int:
    """Bytes that MLflow keeps of a call: those of its body, and of the rows that it makes of it."""
    if call.body is None or call.target.endswith(("/search", "/delete", "/delete-tag")):
        return 0
    entries = sum(len(value) for value in call.body.values() if isinstance(value, list))
    return len(data) + budget.ROW * (1 + entries)


def _check_empty(body: Body) -> None:
    """Refuses chunks: MLflow's server would store nothing of them, and say that it did. A client sends an empty file so."""
    try:
        body.whole(0)
    except BadBody as error:
        raise Refused(411, mlflow_calls.INVALID, "an artifact must state its length") from error


def _reply(response: http.client.HTTPResponse) -> Reply:
    return Reply(response.status, _passed_on(response), iter(lambda: response.read1(PIECE), b""), response.length)


def _passed_on(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name: value for name in _PASSED_ON if (value := response.headers.get(name)) is not None}


def _refusal(status: int, code: str, text: str) -> Reply:
    """An error as MLflow's client understands it."""
    return Reply.of(Response(json.dumps({"error_code": code, "message": text}), status, media_type="application/json"))


def _forget(known: dict[Any, Any]) -> None:
    """Drops the oldest of too many."""
    while len(known) > _REMEMBERED:
        del known[next(iter(known))]
