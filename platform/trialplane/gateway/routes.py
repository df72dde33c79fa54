"""What laptops ask for: ledgers and logs of all runs.

They come through the API server's service proxy, and have no password of the database. Each request but that for the
gateway's health says by a token who asks (`callers`), and a user sees the runs of one namespace. What a run is to be is in
its Run, which the operator follows. A run is served as long as its ledger exists, active or not. Answers are JSON except
logs and code; an error is `{"error": text}`. (Controllers come directly, with their run's token: `ledgers`.)
"""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from trialplane import errors
from trialplane.gateway import bodies, callers
from trialplane.gateway.bodies import Answer
from trialplane.gateway.callers import Callers, User
from trialplane.gateway.limits import Admit, crowded
from trialplane.gateway.logs import Chosen, Controllers, Mlflow, NoLog, Piece
from trialplane.ledger import archive, standing
from trialplane.ledger.archive import Archive
from trialplane.plan import plan as planning
from trialplane.wire import cluster, labels, logs, records
from trialplane.wire.mlflow import Scope
from trialplane.wire.records import RunStatus
from trialplane.wire.states import RunState, TrialState


class Refusal(Exception):
    """A refused request, with its HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


class Namespaces:
    """Answers requests about the runs of several namespaces: `/namespaces/NAMESPACE/runs/…`, independently of sockets.

    Args:
        gateways: one for each.
    """

    def __init__(self, gateways: Mapping[str, Gateway]) -> None:
        self._gateways = gateways

    def answer(self, method: str, target: str, headers: Mapping[str, str], admit: Admit = lambda namespace: True) -> Answer:
        """The answer to one request, whatever it is; `admit` is told the namespace whose token it shows."""
        path, question, query = target.partition("?")
        if (method, path) == ("GET", "/health"):
            return _json({"status": "ok"})  # not the database's: without it, requests are still answered with the reason
        _, first, namespace, rest = [*path.split("/", 3), "", "", ""][:4]
        if first != "namespaces" or not rest:
            return bodies.error(404 if method == "GET" else 405, f"there is no {method} {path}")
        gateway = self._gateways.get(namespace)
        if gateway is None:
            return _nowhere(namespace)
        return gateway.answer(method, f"/{rest}{question}{query}", headers, admit)

    def refuses(self, namespace: str, headers: bodies.Headers) -> Answer | None:
        """Why a user may not look into MLflow from a namespace, from the headers of the request; None for one who may."""
        gateway = self._gateways.get(namespace)
        return _nowhere(namespace) if gateway is None else gateway.refuses(headers)


class Gateway:
    """Answers requests about the runs of one namespace; their addresses are those below it.

    Args:
        runs: the database.
        users: knows who asks.
        scope: of the namespace that the runs in the database are in.
        controllers: those that work.
        mlflow: has the logs of the others.
    """

    def __init__(
        self, runs: Archive, users: Callers, scope: Scope, controllers: Controllers, mlflow: Mlflow | None = None
    ) -> None:
        self._runs = runs
        self._users = users
        self._scope = scope
        self._controllers = controllers
        self._mlflow = mlflow

    def answer(self, method: str, target: str, headers: Mapping[str, str], admit: Admit = lambda namespace: True) -> Answer:
        """The answer to one request, whatever it is; `admit` is told the namespace whose token it shows."""
        answer = self._mapped(lambda: self._answer(method, target, headers, admit))
        assert answer is not None
        return answer

    def _mapped(self, do: Callable[[], Answer | None]) -> Answer | None:
        """What it returns, or the answer for its error."""
        try:
            return do()
        except Refusal as refusal:
            return bodies.error(refusal.code, str(refusal))
        except callers.Unknown as error:
            return bodies.error(401 if error.again else 403, str(error))
        except callers.Unchecked as error:
            return bodies.error(503, str(error), cluster.UNCHECKED)
        except errors.RunNotFound as error:
            return bodies.error(404, str(error))
        except errors.LedgerLocked as error:
            return bodies.error(409, str(error))
        except errors.LedgerError as error:
            return bodies.error(503, str(error))
        except archive.DATABASE_ERRORS as error:
            text = f"the ledger's database does not answer: {archive.reason(error)}; all records are safe"
            return bodies.error(503, text)

    def _answer(self, method: str, target: str, headers: Mapping[str, str], admit: Admit) -> Answer:
        path, _, query = target.partition("?")
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        options = {name: values[-1] for name, values in urllib.parse.parse_qs(query).items()}
        if (method, parts) == ("GET", ["health"]):
            return _json({"status": "ok"})  # not the database's: without it, requests are still answered with the reason
        user = self._users.user(headers.get(cluster.TOKEN_HEADER) or "")
        if not admit(user.namespace):
            raise Refusal(429, crowded(user.namespace))
        match method, parts:
            case "GET", ["runs"]:
                if not user.may_see(self._scope.namespace):
                    there = self._scope.namespace
                    raise Refusal(403, f"the runs in {there} are for its users, and your token is of {user.namespace}")
                return _json(self._runs.runs())
            case "GET", ["runs", run, what]:
                return self._get(self._visible(user, _named(run)), what, options)
            case "DELETE", ["runs", run]:
                known = self._visible(user, _named(run))
                if not user.may_change(self._scope.namespace):
                    raise Refusal(
                        403, f"you may view the runs of {self._scope.namespace} and delete none; ask one of its users"
                    )
                return self._delete(known)
        raise Refusal(404 if method == "GET" else 405, f"there is no {method} {path}")

    def _get(self, run: str, what: str, options: Mapping[str, str]) -> Answer:
        match what:
            case "status":
                return self._status(run)
            case "job":
                return _json(_there(self._runs.attribute(run, labels.LEDGER_JOB), run, what))
            case "submission":
                return _json(_there(self._runs.attribute(run, labels.LEDGER_SUBMISSION), run, what))
            case "code":
                return Answer(200, _there(self._runs.code(run), run, what), "application/gzip")
            case "attempts":
                rows, after = self._runs.attempts(run, _number(options, "after", -1))
                return _json({"rows": rows, "next": None if after is None else {"after": after}})
            case "ends":
                rows, after, place = self._runs.ends(run, _number(options, "after", 0))
                return _json({"place": place, "rows": rows, "next": None if after is None else {"after": after}})
            case "whole":
                return self._whole(run, options)
            case "changes":
                return _json(self._runs.changes(run))
            case "log":
                return self._log(run, options)
            case "checkpoints":
                return _json({"saved": self._runs.has_saved(run)})
        raise Refusal(404, f"a run has no {what}")

    def _status(self, run: str) -> Answer:
        """The status from an active controller, which is newer, or else the ledger's."""
        recorded = self._runs.attribute(run, labels.LEDGER_STATUS)
        alive = self._runs.is_alive(run)
        # The service may be going away or have no process behind it: then the ledger's status serves.
        own = self._controllers.status(run) if alive else None
        status = _there(own or recorded, run, "status")
        desired = self._runs.attribute(run, labels.LEDGER_DESIRED) or {}
        with contextlib.suppress(ValueError):  # the laptop says what is wrong with a status that cannot be read
            known = records.from_dict(RunStatus, status)
            if not records.misfit(known):
                target, begun = RunState(desired.get("state", RunState.RUNNING)), 0.0 if own else self._begun(run)
                status = records.to_dict(standing.current(known, target, alive=alive, begun=begun))
        status = {**status, "images": self._runs.images(run)}
        return _json({"status": status, "alive": alive, "desired": desired})

    def _whole(self, run: str, options: Mapping[str, str]) -> Answer:
        """Attempts as the ledger stores them, which is JSON: parsed here, a hostile one would take thirty times its size."""
        until = _number(options, "until", 0) if "until" in options else None
        page = self._runs.whole(run, _number(options, "after", 0), _number(options, "number", -1), until)
        texts = (
            f'{{"place":{json.dumps(place)},"request":{request},"outcome":{outcome or "null"},"optuna":{optuna}}}'
            for place, request, outcome, optuna in page.stored
        )
        following = None if page.next is None else {"number": page.next, "until": page.until}
        rest = f'"place":{page.until},"alive":{json.dumps(page.alive)},"next":{json.dumps(following)}'
        return Answer(200, f'{{"attempts":[{",".join(texts)}],{rest}}}'.encode())

    def _begun(self, run: str) -> float:
        """When the run's last start was recorded, in seconds since the epoch; 0 if none was."""
        submission = self._runs.attribute(run, labels.LEDGER_SUBMISSION) or {}
        return float(submission.get(labels.BEGUN, 0.0))

    def _log(self, run: str, options: Mapping[str, str]) -> Answer:
        """A piece of a log: the controller's while it has the file, else what MLflow was given."""
        alive, start, growing = self._runs.is_alive(run), _number(options, "from", 0), True
        chosen = Chosen()
        if "trial" in options:
            trial = _number(options, "trial", 0)
            row = self._runs.attempt(run, trial, _number(options, "attempt", 1) if "attempt" in options else None)
            if row is None:
                raise Refusal(404, f"{run} has not started that attempt at trial {trial}")
            worker = _number(options, "worker", 0) if "worker" in options else None
            chosen, growing = Chosen(trial, row.attempt, row.number, worker), row.state is TrialState.RUNNING
        try:
            piece = self._piece(run, chosen, start, alive=alive, growing=growing)
        except NoLog as error:
            raise Refusal(404, f"{chosen} is not there: {error}") from error
        growing = (alive and growing) or len(piece.data) == logs.PIECE  # there may be more of it
        progress = {"X-Trialplane-Next": str(piece.next), "X-Trialplane-Growing": str(int(growing))}
        return Answer(200, piece.data, "text/plain; charset=utf-8", progress)

    def _piece(self, run: str, chosen: Chosen, start: int, *, alive: bool, growing: bool) -> Piece:
        """A piece of a log.

        Raises:
            NoLog: nobody has it.
        """
        job = self._runs.attribute(run, labels.LEDGER_JOB)  # raises for an unknown run
        if alive:
            try:
                if (piece := self._controllers.log(run, self._runs.key(run), chosen, start)) is not None:
                    return piece
            except OSError as error:
                if growing:  # nobody else has it yet
                    what = f"the controller of {run} does not answer: {errors.first_line(error):.200}"
                    raise NoLog(f"{what}; `platform status {run}` shows how it is") from error
            if growing:
                raise NoLog(
                    "it is empty so far" if chosen.worker is None else "no such worker, or it has printed nothing yet"
                )
        if self._mlflow is None:
            raise NoLog("its controller does not have it, and this gateway knows no MLflow that would")
        submission = self._runs.attribute(run, labels.LEDGER_SUBMISSION) or {}
        return self._mlflow.log(run, self._scope.experiment(str(job["name"])), submission, chosen, start)

    def _delete(self, run: str) -> Answer:
        """Has the operator remove a run, which then is unknown here; the same request may come until it is."""
        self._runs.forget(run)
        return _json({"deleting": run})

    def _visible(self, user: User, run: str) -> str:
        """A run that is for this user; of others it is not told whether they exist."""
        if not user.may_see(self._scope.namespace):
            raise errors.RunNotFound(f"the ledger has no run {run}")
        return run

    def refuses(self, headers: bodies.Headers) -> Answer | None:
        """Why a user may not look into MLflow, from the headers of the request; None for one who may."""
        return self._mapped(lambda: self._looks(headers))

    def _looks(self, headers: bodies.Headers) -> Answer | None:
        if self._users.user(headers.get(cluster.TOKEN_HEADER) or "").may_see(self._scope.namespace):
            return None
        raise Refusal(403, "MLflow's records here are for the users of another namespace")


def _nowhere(namespace: str) -> Answer:
    return bodies.error(404, f"no run can be in namespace {namespace:.63}: it is not one of the platform's")


def _named(run: str) -> str:
    """A run's name, which also names a folder."""
    if planning.check_name(run):
        raise Refusal(404, f"{run!r} is not the name of a run")
    return run


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    if name not in options:
        return default
    text = options[name]
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(400, f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def _there(value: Any, run: str, what: str) -> Any:
    if value is None:
        raise Refusal(404, f"the ledger has no {what} of {run}")
    return value


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(records.to_dict(value), separators=(",", ":")).encode())
