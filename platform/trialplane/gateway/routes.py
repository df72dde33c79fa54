"""The routes of the gateway, and the answers to laptops: ledgers and logs of all runs.

Requests of laptops come through the API server's service proxy, and have no password of the database. Each request but that
for the gateway's health has a token of its user (`callers`), and a user sees the runs of one namespace. The desired state of
a run is in its Run, which the operator follows. A run is served as long as its ledger exists, active or not. Answers are
JSON except logs and code; an error is `{"error": text}`. (Controllers connect directly, with their run's token: `ledgers`.)
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.responses import Response

from trialplane import errors
from trialplane.gateway import callers
from trialplane.gateway import route as routing
from trialplane.gateway.answers import as_json, failed
from trialplane.gateway.callers import Callers, User
from trialplane.gateway.limits import Admit, crowded
from trialplane.gateway.logs import Chosen, Controllers, Mlflow, NoLog
from trialplane.gateway.route import Authority, Route
from trialplane.ledger import archive, run_status
from trialplane.ledger import attempts as reading
from trialplane.ledger.archive import Archive
from trialplane.ledger.run_status import LedgerView
from trialplane.plan import plan as planning
from trialplane.wire import cluster, labels, logs, mlflow, records
from trialplane.wire.ledger import Address
from trialplane.wire.logs import Piece
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState, TrialState

Options = Mapping[str, str]  # a request's query
T = TypeVar("T")


class Refusal(Exception):
    """A refused request, with its HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


class Namespaces:
    """Answers requests of laptops about the runs of several namespaces, independently of sockets.

    Args:
        gateways: by namespace.
    """

    def __init__(self, gateways: Mapping[str, Gateway]) -> None:
        self._gateways = gateways

    def answer(self, route: Route, names: Mapping[str, str], options: Options, token: str, admit: Admit) -> Response:
        """The answer to one request, whatever it is.

        Args:
            route: its route.
            names: those in its address.
            options: its query.
            token: of the user.
            admit: called with the namespace of the token.
        """
        gateway = self._gateways.get(names["namespace"])
        if gateway is None:
            return _nowhere(names["namespace"])
        return gateway.answer(route, names.get("run", ""), options, token, admit)

    def user(self, namespace: str, token: str) -> User | Response:
        """Return the user of a token in a namespace's MLflow, or the response that refuses it."""
        gateway = self._gateways.get(namespace)
        return _nowhere(namespace) if gateway is None else gateway.user(token)


class Gateway:
    """Answers requests about the runs of one namespace.

    Args:
        runs: the database.
        users: authenticates callers.
        namespace: that the runs in the database are in.
        controllers: those that work.
        mlflow: has the logs of the others.
    """

    def __init__(
        self, runs: Archive, users: Callers, namespace: str, controllers: Controllers, mlflow: Mlflow | None = None
    ) -> None:
        self._runs = runs
        self._users = users
        self._namespace = namespace
        self._controllers = controllers
        self._mlflow = mlflow

    def answer(self, route: Route, run: str, options: Options, token: str, admit: Admit = lambda _: True) -> Response:
        """The answer to one request, whatever it is; see `Namespaces.answer`."""

        def respond() -> Response:
            assert route.answer is not None  # it is a laptop's
            user = self._users.user(token)
            if not admit(user.namespace):
                raise Refusal(429, crowded(user.namespace))
            self._check(route, user, run)
            return route.answer(self, run, options)

        return _mapped(respond)

    def user(self, token: str) -> User | Response:
        """Return the user of a token in MLflow, or the response that refuses it."""

        def authorized() -> User:
            user = self._users.user(token)
            if not user.may_see(self._namespace):
                raise Refusal(403, "MLflow's records here are for the users of another namespace")
            return user

        return _mapped(authorized)

    def _check(self, route: Route, user: User, run: str) -> None:
        """Refuse users without the route's authority. A run that is not theirs looks as if it did not exist."""
        namespace = self._namespace
        if "{run}" in route.path:
            if planning.check_name(run):
                raise Refusal(404, f"{run!r} is not the name of a run")
            if not user.may_see(namespace):
                raise errors.RunNotFound(f"the ledger has no run {run}")
        elif not user.may_see(namespace):
            raise Refusal(403, f"the runs in {namespace} are for its users, and your token is of {user.namespace}")
        if route.authority is Authority.USER and not user.may_change(namespace):
            raise Refusal(403, f"you may view the runs of {namespace} and delete none; ask one of its users")

    def all(self, run: str, options: Options) -> Response:
        """All runs, the newest first."""
        return as_json(self._runs.runs())

    def job(self, run: str, options: Options) -> Response:
        """The job as resolved."""
        return as_json(_present(self._runs.attribute(run, labels.LEDGER_JOB), run, "job"))

    def submission(self, run: str, options: Options) -> Response:
        """The facts of the submission."""
        return as_json(_present(self._runs.attribute(run, labels.LEDGER_SUBMISSION), run, "submission"))

    def code(self, run: str, options: Options) -> Response:
        """The packed code."""
        return Response(_present(self._runs.code(run), run, "code"), media_type="application/gzip")

    def attempts(self, run: str, options: Options) -> Response:
        """A page of attempts, in the order they started."""
        rows, after = self._runs.attempts(run, _number(options, "after", -1))
        return as_json({"rows": rows, "next": None if after is None else {"after": after}})

    def ends(self, run: str, options: Options) -> Response:
        """A page of the attempts that ended since a place."""
        rows, after, place = self._runs.ends(run, _number(options, "after", 0))
        return as_json({"place": place, "rows": rows, "next": None if after is None else {"after": after}})

    def curves(self, run: str, options: Options) -> Response:
        """A page of reports, those of running attempts included, in the order they arrived."""
        limit = _number(options, "limit", reading.NO_LIMIT)
        page = self._runs.curves(run, _number(options, "after", 0), limit)
        remaining = limit - len(page.rows)
        following = {"after": page.rows[-1].mark, "limit": remaining} if page.more and remaining > 0 else None
        return as_json({"reports": page.rows, "next": following})

    def changes(self, run: str, options: Options) -> Response:
        """The changes of the desired state."""
        return as_json(self._runs.changes(run))

    def checkpoints(self, run: str, options: Options) -> Response:
        """Whether a training has saved a checkpoint."""
        return as_json({"saved": self._runs.has_saved(run)})

    def status(self, run: str, options: Options) -> Response:
        """The status from an active controller, which is newer, or else the ledger's."""
        recorded = self._runs.attribute(run, labels.LEDGER_STATUS)
        alive = self._runs.is_alive(run)
        # The service may be going away or have no process behind it: then the ledger's status serves.
        reported = self._controllers.status(run) if alive else None
        status = _present(reported or recorded, run, "status")
        desired = self._runs.attribute(run, labels.LEDGER_DESIRED) or {}
        with contextlib.suppress(ValueError):  # the laptop reports a status that cannot be read
            recorded_status = records.from_dict(RunStatus, status)
            if not records.mistyped_field(recorded_status):
                target, start_time = (
                    RunState(desired.get("state", RunState.RUNNING)),
                    0.0 if reported else self._start_time(run),
                )
                current = run_status.current(view := LedgerView(recorded_status, target, alive, start_time))
                if view.is_killed:
                    current = run_status.recounted(current, *self._runs.job_and_attempts(run))
                status |= records.to_dict(current)  # a newer controller may have fields that this gateway does not know
        status = {**status, "images": self._runs.images(run)}
        return as_json({"status": status, "alive": alive, "desired": desired})

    def whole(self, run: str, options: Options) -> Response:
        """Attempts as the ledger stores them, which is JSON: parsed here, a hostile one would take thirty times its size."""
        until = _number(options, "until", 0) if "until" in options else None
        page = self._runs.attempts_since(run, _number(options, "after", 0), _number(options, "number", -1), until)
        texts = (
            f'{{"place":{json.dumps(place)},"request":{request},"outcome":{outcome or "null"},"optuna":{optuna}}}'
            for place, request, outcome, optuna in page.stored
        )
        following = None if page.next is None else {"number": page.next, "until": page.until}
        suffix = f'"place":{page.until},"alive":{json.dumps(page.alive)},"next":{json.dumps(following)}'
        return Response(f'{{"attempts":[{",".join(texts)}],{suffix}}}', media_type="application/json")

    def _start_time(self, run: str) -> float:
        """The time of the run's last recorded start, in seconds since the epoch; 0 if none was."""
        submission = self._runs.attribute(run, labels.LEDGER_SUBMISSION) or {}
        return float(submission.get(labels.BEGUN, 0.0))

    def log(self, run: str, options: Options) -> Response:
        """A piece of a log: the controller's while it has the file, otherwise from MLflow."""
        alive, start, growing = self._runs.is_alive(run), _number(options, "from", 0), True
        chosen = Chosen()
        if "trial" in options:
            trial = _number(options, "trial", 0)
            row = self._runs.attempt(run, trial, _number(options, "attempt", 1) if "attempt" in options else None)
            if row is None:
                raise Refusal(404, f"{run} has not started that attempt at trial {trial}")
            worker = _number(options, "worker", 0) if "worker" in options else None
            chosen, growing = Chosen(trial, row.attempt, row.first, worker), row.state is TrialState.RUNNING
        try:
            piece = self._piece(run, chosen, start, alive=alive, growing=growing)
        except NoLog as error:
            raise Refusal(404, f"{chosen} is not there: {error}") from error
        growing = (alive and growing) or len(piece.data) == logs.PIECE  # there may be more of it
        progress = {"X-Trialplane-Next": str(piece.next), "X-Trialplane-Growing": str(int(growing))}
        return Response(piece.data, headers=progress, media_type="text/plain")

    def _piece(self, run: str, chosen: Chosen, start: int, *, alive: bool, growing: bool) -> Piece:
        """A piece of a log.

        Raises:
            NoLog: neither the controller nor MLflow has it.
        """
        job = self._runs.attribute(run, labels.LEDGER_JOB)  # raises for an unknown run
        if alive:
            try:
                if (piece := self._controllers.log(run, self._runs.token_digest(run), chosen, start)) is not None:
                    return piece
            except OSError as error:
                if growing:  # MLflow does not have it yet
                    description = f"the controller of {run} does not answer: {errors.first_line(error):.200}"
                    raise NoLog(f"{description}; `platform status {run}` shows how it is") from error
            if growing:
                raise NoLog(
                    "it is empty so far" if chosen.worker is None else "no such worker, or it has printed nothing yet"
                )
        if self._mlflow is None:
            raise NoLog("its controller does not have it, and this gateway has no MLflow")
        submission = self._runs.attribute(run, labels.LEDGER_SUBMISSION) or {}
        return self._mlflow.log(Address(self._namespace, run), str(job["name"]), submission, chosen, start)

    def delete(self, run: str, options: Options) -> Response:
        """Mark a run for removal by the operator. It stays known here until then, and the request may be repeated."""
        self._runs.forget(run)
        return as_json({"deleting": run})


def _mapped(do: Callable[[], T]) -> T | Response:
    """Return the result of `do`, or the response for its error."""
    try:
        return do()
    except Refusal as refusal:
        return failed(refusal.code, str(refusal))
    except callers.Unknown as error:
        return failed(401 if error.again else 403, str(error))
    except callers.Unchecked as error:
        return failed(503, str(error), cluster.UNCHECKED)
    except errors.RunNotFound as error:
        return failed(404, str(error))
    except errors.LedgerLocked as error:
        return failed(409, str(error))
    except errors.LedgerError as error:
        return failed(503, str(error))
    except archive.DATABASE_ERRORS as error:
        return failed(503, f"the ledger's database does not answer: {archive.reason(error)}; all records are safe")


def _nowhere(namespace: str) -> Response:
    return failed(404, f"no run can be in namespace {namespace:.63}: it is not one of the platform's")


def _number(options: Options, name: str, default: int) -> int:
    if name not in options:
        return default
    text = options[name]
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(400, f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def _present(value: Any, run: str, column: str) -> Any:
    if value is None:
        raise Refusal(404, f"the ledger has no {column} of {run}")
    return value


_NAMESPACE = "/namespaces/{namespace}"
_RUN = f"{_NAMESPACE}/runs/{{run}}"
# All that the gateway answers. The authority of controllers and trials is checked by `ledgers` and `mlflow`.
ROUTES: tuple[Route, ...] = (
    Route("POST", f"{_RUN}/ledger", Authority.CONTROLLER, "One transaction of the run's ledger (`wire.ledger`)."),
    Route(routing.ANY, f"{_RUN}{mlflow.UI}", Authority.TRIAL, "MLflow, for the records of the run's namespace."),
    # Before what it is an exception of.
    Route("GET", f"{_NAMESPACE}{mlflow.UI}/health", Authority.ANYONE, "Whether MLflow answers."),
    Route(routing.ANY, f"{_NAMESPACE}{mlflow.UI}", Authority.VIEWER, "MLflow, for the records of the namespace."),
    Route("GET", "/health", Authority.ANYONE, "Whether the gateway answers.", lambda: as_json({"status": "ok"})),
    Route("GET", "/openapi.json", Authority.ANYONE, "This document.", lambda: as_json(routing.document(ROUTES))),
    Route("GET", f"{_NAMESPACE}/runs", Authority.VIEWER, "All runs, the newest first.", Gateway.all),
    Route("DELETE", _RUN, Authority.USER, "Have the operator remove a run.", Gateway.delete),
    Route("GET", f"{_RUN}/status", Authority.VIEWER, "The status, and the desired state.", Gateway.status),
    Route("GET", f"{_RUN}/job", Authority.VIEWER, "The job as resolved.", Gateway.job),
    Route("GET", f"{_RUN}/submission", Authority.VIEWER, "The facts of the submission.", Gateway.submission),
    Route("GET", f"{_RUN}/code", Authority.VIEWER, "The packed code.", Gateway.code),
    Route("GET", f"{_RUN}/attempts", Authority.VIEWER, "A page of attempts.", Gateway.attempts, ("after",)),
    Route("GET", f"{_RUN}/ends", Authority.VIEWER, "A page of those that ended since a place.", Gateway.ends, ("after",)),
    Route(
        "GET",
        f"{_RUN}/whole",
        Authority.VIEWER,
        "A page of those that run or ended since a place, with Optuna's view.",
        Gateway.whole,
        ("after", "number", "until"),
    ),
    Route("GET", f"{_RUN}/curves", Authority.VIEWER, "A page of reports after a mark.", Gateway.curves, ("after", "limit")),
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
