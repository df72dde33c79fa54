"""Client of the chart's gateway: the ledger and the logs of runs, through the API server's proxy.

One method per route of its protocol (`trialplane.controller.gateway` is the other end). For a run that is not in the
ledger they return None or False; every other failure is a `TargetError`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from trialplane.client import kinds
from trialplane.client.cluster import Answer, Cluster
from trialplane.client.target import Log
from trialplane.errors import RunDamaged, TargetError
from trialplane.plan.site import Site
from trialplane.wire import cluster as names
from trialplane.wire import records
from trialplane.wire.attempts import Attempt
from trialplane.wire.records import Desired, RunStatus, TrialRow

SECRET_KEY = "token"


@dataclasses.dataclass(frozen=True)
class Piece:
    """A piece of a log: its bytes, the next offset, and whether more may follow."""

    data: bytes
    next: int
    growing: bool


class Gateway:
    """Sends requests to the gateway of one site.

    Args:
        cluster: where it is.
        site: has the name of its service.
    """

    def __init__(self, cluster: Cluster, site: Site) -> None:
        self._cluster = cluster
        self._site = site
        self._token: str | None = None

    def runs(self) -> list[dict[str, Any]]:
        """All runs in the ledger, the newest first: run, job, submitted, state."""
        found: list[dict[str, Any]] = self._need(self._get("/runs")).json()
        return found

    def status(self, run: str) -> tuple[RunStatus, bool, Desired] | None:
        """The newest status, whether a controller lives, and the desired state, or None.

        Raises:
            RunDamaged: it is not a status, or is of another version.
        """
        answer = self._known(run, "status")
        if answer is None:
            return None
        data = answer.json()
        try:
            status = records.from_dict(RunStatus, data["status"])
            desired = records.from_dict(Desired, data.get("desired", {}))  # missing from gateways of earlier versions
        except ValueError as error:
            raise self._unreadable(run, str(error)) from error
        if wrong := records.misfit(status):
            raise self._unreadable(run, f"an invalid value for `{wrong}`")
        return status, bool(data["alive"]), desired

    def job(self, run: str) -> bytes | None:
        """The job as resolved, JSON."""
        return self._data(run, "job")

    def submission(self, run: str) -> dict[str, Any] | None:
        """The facts of the submission."""
        data = self._data(run, "submission")
        return None if data is None else dict(json.loads(data))

    def code(self, run: str) -> bytes | None:
        """The packed code."""
        return self._data(run, "code")

    def is_saved(self, run: str) -> bool | None:
        """Whether there is a checkpoint of a training; None if the gateway has no access to any, or is too old."""
        answer = self._known(run, "checkpoints")
        return None if answer is None else bool(answer.json()["saved"])

    def attempts(self, run: str) -> list[TrialRow] | None:
        """Every attempt, in the order they started."""
        answer = self._known(run, "attempts")
        return None if answer is None else [records.from_dict(TrialRow, row) for row in answer.json()]

    def ends(self, run: str, after: int) -> tuple[int, list[TrialRow]] | None:
        """The attempts that ended since a place, and the next place."""
        answer = self._known(run, "ends", {"after": str(after)})
        if answer is None:
            return None
        data = answer.json()
        return int(data["place"]), [records.from_dict(TrialRow, row) for row in data["rows"]]

    def whole(self, run: str, after: int) -> tuple[list[Attempt], bool] | None:
        """The attempts that run and those that ended since a place, with Optuna's view, and whether a controller lives.

        None also when the gateway is too old for the request.
        """
        answer = self._known(run, "whole", {"after": str(after)})
        if answer is None:
            return None
        data = answer.json()
        return [records.from_dict(Attempt, attempt) for attempt in data["attempts"]], bool(data["alive"])

    def log(self, run: str, which: Log, offset: int) -> Piece | str:
        """A log from an offset on, or why there is none yet."""
        chosen = {"trial": which.trial, "attempt": which.attempt, "worker": which.worker}
        query = {"from": str(offset), **{name: str(number) for name, number in chosen.items() if number is not None}}
        answer = self._get(f"/runs/{run}/log", query)
        if _is_unknown(answer):
            return _error(answer) or ""
        self._need(answer)
        following = int(answer.headers.get("x-trialplane-next", offset + len(answer.data)))
        return Piece(answer.data, following, answer.headers.get("x-trialplane-growing") == "1")

    def forget(self, run: str) -> bool:
        """Deletes the study and the run's folder; False for an unknown run."""
        return self._changed(self._send("DELETE", f"/runs/{run}"), "delete")

    def _unreadable(self, run: str, why: str) -> RunDamaged:
        place = self._cluster.place
        return RunDamaged(
            f"the status of {run}, from the gateway in {place}, cannot be read: {why}; the chart's version of `platform` may"
        )

    def _data(self, run: str, what: str) -> bytes | None:
        answer = self._known(run, what)
        return None if answer is None else answer.data

    def _known(self, run: str, what: str, query: Mapping[str, str] | None = None) -> Answer | None:
        answer = self._get(f"/runs/{run}/{what}", query)
        return None if _is_unknown(answer) else self._need(answer)

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        return self._cluster.service(self._site.gateway.service, self._site.gateway.port, "GET", path, query=query)

    def _changed(self, answer: Answer, verb: str) -> bool:
        """Whether a change was made; False for an unknown run."""
        return False if _is_unknown(answer) else self._need(answer, verb).ok

    def _send(self, method: str, path: str) -> Answer:
        headers = {names.TOKEN_HEADER: self._secret()} if self._site.gateway.secret else {}
        service = self._site.gateway
        return self._cluster.service(service.service, service.port, method, path, headers=headers)

    def _secret(self) -> str:
        if self._token is None:
            name = self._site.gateway.secret
            found = self._cluster.read(kinds.SECRET, name)
            if found is None or SECRET_KEY not in (found.get("data") or {}):
                raise TargetError(
                    f"the Secret {name} in {self._cluster.place}, which allows changes, has no {SECRET_KEY}; `helm upgrade` "
                    "recreates it"
                )
            self._token = base64.b64decode(found["data"][SECRET_KEY]).decode()
        return self._token

    def _need(self, answer: Answer, verb: str = "get") -> Answer:
        if answer.ok:
            return answer
        service, place = self._site.gateway.service, self._cluster.place
        message = _error(answer)
        if message is not None:
            raise TargetError(f"the gateway in {place} reports: {message}; see `kubectl logs deploy/{service}` there")
        if answer.status in (404, 502, 503, 504):
            raise TargetError(
                f"the gateway {service} in {place} does not answer; `kubectl --context {self._cluster.context} "
                f"-n {self._cluster.namespace} get pods,endpointslices -l {names.MANAGED_BY}` or `platform doctor` shows why"
            )
        raise self._cluster.refused(answer, verb, "services/proxy")


def _is_unknown(answer: Answer) -> bool:
    """Whether it is a 404 from the gateway itself, not from an API server without the service."""
    return answer.status == 404 and _error(answer) is not None


def _error(answer: Answer) -> str | None:
    """The gateway's message, or None if the response is not from the gateway."""
    try:
        data = answer.json()
    except ValueError:
        return None
    return str(data["error"]) if isinstance(data, dict) and "error" in data else None
