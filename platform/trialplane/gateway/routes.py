"""The routes of the gateway, and the answers to laptops: ledgers and logs of all runs.

Requests of laptops arrive through the API server's service proxy. Each request except those for health and the OpenAPI
document has a token of its user (`callers`), and a user sees the runs in one namespace. A run is available as long as its
ledger exists, even if it has ended. The gateway does not change the desired state of a run, which is in the Run object.
Answers are JSON, except logs and code; an error is `{"error": text}`. (Controllers connect directly, with their run's token,
see `ledgers`.)
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from trialplane import errors
from trialplane.gateway import callers, limits
from trialplane.gateway import route as routing
from trialplane.gateway.answers import error_response, json_response
from trialplane.gateway.callers import Callers, User
from trialplane.gateway.limits import CountRequest
from trialplane.gateway.logs import Controllers, LogId, MlflowLogs, NoLog
from trialplane.gateway.route import Authority, Route
from trialplane.ledger import archive, run_status
from trialplane.ledger.archive import Archive
from trialplane.ledger.attempts import NO_LIMIT
from trialplane.ledger.run_status import LedgerView
from trialplane.plan import plan as planning
from trialplane.wire import cluster, labels, logs, mlflow, records
from trialplane.wire.ledger import Address
from trialplane.wire.logs import Piece
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState, TrialState

Options = Mapping[str, str]  # the query of a request, by name


class Refusal(Exception):
    """Error for a request that is refused, with its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


# Errors for which a request gets a response; others are bugs.
_ANSWERED_ERRORS = (
    Refusal,
    callers.TokenRefused,
    callers.TokenUnchecked,
    errors.RunNotFound,
    errors.LedgerError,
    archive.DATABASE_ERRORS,
)


class Dispatcher:
    """The dispatcher of requests of laptops to the gateways of the namespaces. It uses no sockets.

    Args:
        gateways: Gateway of each namespace, by the name of the namespace.
    """

    def __init__(self, gateways: Mapping[str, Gateway]) -> None:
        self._gateways = gateways

    def answer(
        self, route: Route, names: Mapping[str, str], options: Options, token: str, count_request: CountRequest
    ) -> Response:
        """Return the response of a namespace's gateway to a request. An error is a response, too.

        Args:
            route: Route of the request.
            names: Namespace and name of the run in the path, by placeholder of the route.
            options: Query of the request.
            token: Token of the user.
            count_request: Function that counts the request for the namespace of the token.
        """
        gateway = self._gateways.get(names["namespace"])
        if gateway is None:
            return _unknown_namespace_response(names["namespace"])
        return gateway.answer(route, names.get("run", ""), options, token, count_request)

    def user(self, namespace: str, token: str) -> User | Response:
        """Return the user of a token for MLflow in a namespace, or the response that refuses the token."""
        gateway = self._gateways.get(namespace)
        return _unknown_namespace_response(namespace) if gateway is None else gateway.user(token)


class Gateway:
    """The answers to requests about the runs in one namespace.

    Args:
        runs: Ledgers of the namespace.
        users: Authentication of users.
        namespace: Name of the namespace.
        controllers: Client of active controllers, for their logs.
        mlflow: Client of MLflow, for the logs of ended runs. None without MLflow.
    """

    def __init__(
        self, runs: Archive, users: Callers, namespace: str, controllers: Controllers, mlflow: MlflowLogs | None = None
    ) -> None:
        self._runs = runs
        self._users = users
        self._namespace = namespace
        self._controllers = controllers
        self._mlflow = mlflow

    def answer(
        self, route: Route, run: str, options: Options, token: str, count_request: CountRequest = lambda _: True
    ) -> Response:
        """Return the response to a request about a run, or about all runs if `run` is ""; see `Dispatcher.answer`."""
        assert route.answer is not None  # routes for laptops have a function
        try:
            user = self._users.user(token)
            if not count_request(user.namespace):
                raise Refusal(429, limits.limit_message(user.namespace))
            self._authorize(route, user, run)
            return route.answer(self, run, options)
        except _ANSWERED_ERRORS as error:
            return _response_to(error)

    def user(self, token: str) -> User | Response:
        """Return the user of a token for MLflow, or the response that refuses the token."""
        try:
            user = self._users.user(token)
        except _ANSWERED_ERRORS as error:
            return _response_to(error)
        if not user.may_see(self._namespace):
            return error_response(403, "MLflow's records here are for the users of another namespace")
        return user

    def _authorize(self, route: Route, user: User, run: str) -> None:
        """Check that a user has the authority for a route.

        Raises:
            Refusal: The user does not have it, or the name of the run is invalid.
            RunNotFound: The run is in a namespace of other users. The answer does not tell whether it exists.
        """
        namespace = self._namespace
        is_about_one_run = "{run}" in route.path
        if is_about_one_run and planning.check_name(run):
            raise Refusal(404, f"{run!r} is not the name of a run")
        if not user.may_see(namespace):
            if is_about_one_run:
                raise errors.RunNotFound(f"the ledger has no run {run}")
            raise Refusal(403, f"the runs in {namespace} are for its users, and your token is of {user.namespace}")
        if route.authority is Authority.USER and not user.may_change(namespace):
            raise Refusal(403, f"you may view the runs of {namespace} and delete none; ask one of its users")

    def list_runs(self, run: str, options: Options) -> Response:
        """Return all runs, the newest first."""
        return json_response(self._runs.runs())

    def job(self, run: str, options: Options) -> Response:
        """Return the resolved job."""
        return json_response(_require(self._runs.column(run, labels.LEDGER_JOB), run, "job"))

    def submission(self, run: str, options: Options) -> Response:
        """Return the fields of the submission."""
        return json_response(_require(self._runs.column(run, labels.LEDGER_SUBMISSION), run, "submission"))

    def code(self, run: str, options: Options) -> Response:
        """Return the packed code."""
        return Response(_require(self._runs.code(run), run, "code"), media_type="application/gzip")

    def attempts(self, run: str, options: Options) -> Response:
        """Return a page of attempts, by number."""
        rows, next_after = self._runs.attempts(run, _integer(options, "after", -1))
        return json_response({"rows": rows, "next": None if next_after is None else {"after": next_after}})

    def ends(self, run: str, options: Options) -> Response:
        """Return a page of the attempts that ended after the query's `after`, the number of an end."""
        rows, last_end, more = self._runs.ended_attempts(run, _integer(options, "after", 0))
        return json_response({"end_number": last_end, "rows": rows, "next": {"after": last_end} if more else None})

    def reports(self, run: str, options: Options) -> Response:
        """Return a page of reports, in the order in which they arrived.

        The query's `limit` is the maximum number of reports on all pages together, so `next` has what is left of it.
        """
        limit = _integer(options, "limit", NO_LIMIT)
        page = self._runs.reports(run, _integer(options, "after", 0), limit)
        remaining = limit - len(page.rows)
        next_options = {"after": page.rows[-1].mark, "limit": remaining} if page.more and remaining > 0 else None
        return json_response({"reports": page.rows, "next": next_options})

    def changes(self, run: str, options: Options) -> Response:
        """Return the changes of the desired state, the oldest first."""
        return json_response(self._runs.changes(run))

    def checkpoints(self, run: str, options: Options) -> Response:
        """Return whether a training has saved a checkpoint: true, false, or null if that is unknown."""
        return json_response({"saved": self._runs.has_saved(run)})

    def status(self, run: str, options: Options) -> Response:
        """Return the run's current status, the desired state, and whether a controller works on the run.

        The status comes from the active controller. If none is active or answers, it comes from the ledger, where it may be
        of an earlier start or have outdated counts; `run_status` then corrects it.
        """
        ledger_status = self._runs.column(run, labels.LEDGER_STATUS)
        alive = self._runs.is_alive(run)
        controller_status = self._controllers.status(run) if alive else None
        status = _require(controller_status or ledger_status, run, "status")
        desired = self._runs.column(run, labels.LEDGER_DESIRED) or {}
        with contextlib.suppress(ValueError):  # an invalid status is returned unchanged, and the laptop explains it
            # 0 for an active controller, whose status always belongs to the last start.
            start_time = 0.0 if controller_status else self._start_time(run)
            desired_state = RunState(desired.get("state", RunState.RUNNING))
            view = LedgerView(_parse_status(status), desired_state, alive=alive, begun=start_time)
            status |= records.to_dict(self._corrected(run, view))  # fields that only a newer controller knows stay
        status = {**status, "images": self._runs.images(run)}
        return json_response({"status": status, "alive": alive, "desired": desired})

    def _corrected(self, run: str, view: LedgerView) -> RunStatus:
        """Return the current status of a run, with the counts of the ledger's attempts if its controller was killed."""
        status = run_status.current(view)
        if view.is_killed:
            with contextlib.suppress(ValueError):  # an attempt in the ledger is damaged
                return run_status.recounted(status, self._runs.counts(run))
        return status

    def stored_attempts(self, run: str, options: Options) -> Response:
        """Return a page of the attempts that are running or ended after an end, with the values that Optuna stored.

        The query's `after` is the number of an end, `until` the number of the last end of all pages, and `number` the last
        attempt of the previous page. The stored JSON is copied into the response without parsing it, because hostile JSON
        would take thirty times its size in memory.
        """
        after, last_number = _integer(options, "after", 0), _integer(options, "number", -1)
        page = self._runs.attempts_since(run, after, last_number, _optional_integer(options, "until"))
        attempts = ",".join(
            f'{{"end_number":{json.dumps(end_number)},"request":{request},"outcome":{outcome or "null"},"optuna":{optuna}}}'
            for end_number, request, outcome, optuna, _ in page.stored
        )
        next_options = None if page.next is None else {"number": page.next, "until": page.until}
        other_fields = json.dumps({"end_number": page.until, "alive": page.alive, "next": next_options}).removeprefix("{")
        return Response(f'{{"attempts":[{attempts}],{other_fields}', media_type="application/json")

    def _start_time(self, run: str) -> float:
        """Return the time of the run's last recorded start, in seconds since the epoch. 0 if there is none."""
        submission = self._runs.column(run, labels.LEDGER_SUBMISSION) or {}
        return float(submission.get(labels.BEGUN, 0.0))

    def log(self, run: str, options: Options) -> Response:
        """Return a piece of a log, from the active controller if it has the log, or else from MLflow.

        The query names the trial, the attempt (the last one by default) and a collection's worker. Without a trial, it is
        the controller's log. Headers have the offset of the next piece, and whether the log may have more bytes later.
        """
        alive = self._runs.is_alive(run)
        trial = _optional_integer(options, "trial")
        if trial is None:
            log_id, is_growing = LogId(), True  # the controller's log
        else:
            row = self._runs.attempt(run, trial, _optional_integer(options, "attempt"))
            if row is None:
                raise Refusal(404, f"{run} has not started that attempt at trial {trial}")
            log_id = LogId(trial, row.attempt, number=row.first, worker=_optional_integer(options, "worker"))
            is_growing = row.state is TrialState.RUNNING
        try:
            piece = self._piece(run, log_id, _integer(options, "from", 0), alive=alive, is_growing=is_growing)
        except NoLog as error:
            raise Refusal(404, f"{log_id} is not there: {error}") from error
        is_full = len(piece.data) == logs.PIECE
        may_have_more = is_full or (alive and is_growing)
        headers = {"X-Trialplane-Next": str(piece.next), "X-Trialplane-Growing": str(int(may_have_more))}
        return Response(piece.data, headers=headers, media_type="text/plain")

    def _piece(self, run: str, log_id: LogId, start: int, *, alive: bool, is_growing: bool) -> Piece:
        """Return a piece of a log.

        Args:
            run: Name of the run.
            log_id: Log.
            start: Offset of the piece.
            alive: Whether the run has an active controller.
            is_growing: Whether the log may still grow, so that MLflow does not have it yet.

        Raises:
            NoLog: Neither the controller nor MLflow has the log.
            RunNotFound: There is no such run.
        """
        job = self._runs.column(run, labels.LEDGER_JOB)
        if alive:
            piece = self._controller_piece(run, log_id, start, is_growing=is_growing)
            if piece is not None:
                return piece
        if self._mlflow is None:
            raise NoLog("its controller does not have it, and this gateway has no MLflow")
        submission = self._runs.column(run, labels.LEDGER_SUBMISSION) or {}
        return self._mlflow.log(Address(self._namespace, run), str(job["name"]), submission, log_id, start)

    def _controller_piece(self, run: str, log_id: LogId, start: int, *, is_growing: bool) -> Piece | None:
        """Return a piece of a log from the active controller; None if only MLflow may have it. For the rest see `_piece`."""
        try:
            piece = self._controllers.log(run, self._runs.token_digest(run), log_id, start)
        except OSError as error:
            if not is_growing:
                return None
            description = f"the controller of {run} does not answer: {errors.first_line(error):.200}"
            raise NoLog(f"{description}; `platform status {run}` shows its state") from error
        if piece is None and is_growing:
            is_of_worker = log_id.worker is not None
            raise NoLog("no such worker, or it has printed nothing yet" if is_of_worker else "it is empty so far")
        return piece

    def delete(self, run: str, options: Options) -> Response:
        """Mark a run for removal. The operator removes it later; until then, the request may be repeated."""
        self._runs.mark_for_removal(run)
        return json_response({"deleting": run})


def _response_to(error: Exception) -> Response:
    """Return the response to a request that one of `_ANSWERED_ERRORS` has ended."""
    match error:
        case Refusal():
            return error_response(error.status, str(error))
        case callers.TokenRefused():
            return error_response(401 if error.is_renewable else 403, str(error))
        case callers.TokenUnchecked():
            return error_response(503, str(error), cluster.UNCHECKED)
        case errors.RunNotFound():
            return error_response(404, str(error))
        case errors.LedgerLocked():
            return error_response(409, str(error))
        case errors.LedgerError():
            return error_response(503, str(error))
    return error_response(503, archive.unavailable(error))


def _unknown_namespace_response(namespace: str) -> Response:
    return error_response(404, f"no run can be in namespace {namespace:.63}: it is not one of the platform's")


def _integer(options: Options, name: str, default: int) -> int:
    """Return an integer of the query, or the default if the query lacks it. Raise Refusal for any other text."""
    number = _optional_integer(options, name)
    return default if number is None else number


def _optional_integer(options: Options, name: str) -> int | None:
    """Return an integer of the query, or None if the query lacks it. Raise Refusal for any other text."""
    if name not in options:
        return None
    text = options[name]
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(400, f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def _parse_status(fields: Mapping[str, Any]) -> RunStatus:
    """Return the status with these fields. Raise ValueError if it is invalid."""
    status = records.from_dict(RunStatus, fields)
    if field := records.mistyped_field(status):
        raise ValueError(f"the type of {field} is wrong")
    return status


def _require(value: Any, run: str, column: str) -> Any:
    """Return the value of a column of a run in the ledger. Raise Refusal if it is None."""
    if value is None:
        raise Refusal(404, f"the ledger has no {column} of {run}")
    return value


_NAMESPACE = "/namespaces/{namespace}"
_RUN = f"{_NAMESPACE}/runs/{{run}}"
# All routes of the gateway. `ledgers` checks the authority of controllers, and `mlflow` that of trials.
ROUTES: tuple[Route, ...] = (
    Route("POST", f"{_RUN}/ledger", Authority.CONTROLLER, "One transaction of the run's ledger (`wire.ledger`)."),
    Route(routing.ANY, f"{_RUN}{mlflow.UI}", Authority.TRIAL, "MLflow, for the records of the run's namespace."),
    # Before the route below, to which it is an exception.
    Route("GET", f"{_NAMESPACE}{mlflow.UI}/health", Authority.ANYONE, "Whether MLflow answers."),
    Route(routing.ANY, f"{_NAMESPACE}{mlflow.UI}", Authority.VIEWER, "MLflow, for the records of the namespace."),
    Route("GET", "/health", Authority.ANYONE, "Whether the gateway answers.", lambda: json_response({"status": "ok"})),
    Route("GET", "/openapi.json", Authority.ANYONE, "This document.", lambda: json_response(routing.document(ROUTES))),
    Route("GET", f"{_NAMESPACE}/runs", Authority.VIEWER, "All runs, the newest first.", Gateway.list_runs),
    Route("DELETE", _RUN, Authority.USER, "Have the operator remove a run.", Gateway.delete),
    Route("GET", f"{_RUN}/status", Authority.VIEWER, "The status, and the desired state.", Gateway.status),
    Route("GET", f"{_RUN}/job", Authority.VIEWER, "The job as resolved.", Gateway.job),
    Route("GET", f"{_RUN}/submission", Authority.VIEWER, "The fields of the submission.", Gateway.submission),
    Route("GET", f"{_RUN}/code", Authority.VIEWER, "The packed code.", Gateway.code),
    Route("GET", f"{_RUN}/attempts", Authority.VIEWER, "A page of attempts.", Gateway.attempts, ("after",)),
    Route("GET", f"{_RUN}/ends", Authority.VIEWER, "A page of attempts that ended since an end.", Gateway.ends, ("after",)),
    Route(
        "GET",
        f"{_RUN}/whole",
        Authority.VIEWER,
        "A page of attempts that are running or ended since an end, with Optuna's values.",
        Gateway.stored_attempts,
        ("after", "number", "until"),
    ),
    Route("GET", f"{_RUN}/curves", Authority.VIEWER, "A page of reports after a mark.", Gateway.reports, ("after", "limit")),
    Route("GET", f"{_RUN}/changes", Authority.VIEWER, "The changes of the desired state.", Gateway.changes),
    Route(
        "GET",
        f"{_RUN}/log",
        Authority.VIEWER,
        "A piece of a log.",
        Gateway.log,
        ("from", "trial", "attempt", "worker"),
    ),
    Route("GET", f"{_RUN}/checkpoints", Authority.VIEWER, "Whether a training has saved a checkpoint.", Gateway.checkpoints),
)
