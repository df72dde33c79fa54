"""Whose things in MLflow are, as MLflow's server says: runs, logged and registered models, experiments.

A run of a job has what has its tags; users see what is in the experiments of their namespace, and registered models with its
tag.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Any

from trialplane.gateway import mlflow_calls, pages, records
from trialplane.gateway.answers import as_json
from trialplane.gateway.bodies import Reply
from trialplane.gateway.mlflow_calls import UNKNOWN, Call, Refused
from trialplane.gateway.pages import Question
from trialplane.gateway.records import Run
from trialplane.gateway.upstream import AWAY, Upstream
from trialplane.wire.mlflow import Scope

_MAX_KNOWN = 8 << 20  # bytes of MLflow's answer about one thing, or of a list of which some are left out
_REMEMBERED = 50_000  # things whose owners are remembered


@dataclasses.dataclass(frozen=True)
class Thing:
    """A run or a logged model in MLflow.

    Attributes:
        tags: those that say whose it is.
        root: the folder of its artifacts, "" where the server keeps none.
        experiment: the id of the one that it is in.
    """

    tags: Mapping[str, str]
    root: str
    experiment: str


class Records:
    """Knows whose things in MLflow are. May be used from several threads.

    Args:
        upstream: MLflow's server.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._guard = threading.Lock()
        self._known: dict[str, Thing | str] = {}  # by id; of an experiment its name

    def check(self, run: Run, call: Call) -> None:
        """Checks that everything that a call names is the run's, and a registered model its namespace's.

        Raises:
            Refused: something is not, or is not there, which looks the same.
        """
        for kind, names in (("run", call.runs), ("model", call.models)):
            for name in sorted(names):
                thing = self._thing(kind, name)
                if thing is None or not run.owns(thing.tags):
                    raise Refused(403, UNKNOWN, f"{run.name} has no {kind} {name} in MLflow")
                if name in call.roots and call.roots[name] != thing.root:
                    raise Refused(403, UNKNOWN, f"the artifacts of {name} are not below {call.roots[name]:.120}")
        for name in sorted(call.experiments):
            if self._experiment(name) != run.experiment:
                raise Refused(403, UNKNOWN, f"the experiment {name} in MLflow is not {run.experiment}, that of {run.name}")
        if call.registered and not self._is_registered(run.scope, call.registered):
            raise Refused(
                403,
                UNKNOWN,
                f"{run.scope.namespace} has no registered model {call.registered:.120}; if there is one of that name, it is "
                "another team's: register yours under another",
            )

    def check_visible(self, scope: Scope, asked: Question) -> None:
        """Checks that everything that MLflow's pages ask for is in one namespace.

        Raises:
            Refused: something is not, or is not there, which looks the same.
        """
        # Each is checked before MLflow is asked about the next: a question about others' things costs it one request.
        for name in sorted(asked.experiment_names):
            _check_in(scope, name, name)
        for name in sorted(asked.experiments):
            _check_in(scope, name, self._experiment(name))
        for kind, names in (("run", asked.runs), ("model", asked.models)):
            for name in sorted(names):
                thing = self._thing(kind, name)
                _check_in(scope, name, None if thing is None else self._experiment(thing.experiment))
        for name in sorted(asked.registered):
            if not self._is_registered(scope, name):
                raise _unseen(scope, name)

    def visible(self, scope: Scope, asked: Question, response: http.client.HTTPResponse) -> Reply | None:
        """MLflow's list without what is not in the namespace; None for an answer that is passed on as it is."""
        if not asked.lists or response.status != http.client.OK:
            return None
        data = response.read(_MAX_KNOWN + 1)
        if len(data) > _MAX_KNOWN:
            raise Refused(503, AWAY, "MLflow's list is too long for the gateway; ask for fewer at a time")
        found = json.loads(data)
        entries = found.get(asked.lists) or []
        if asked.lists == pages.EXPERIMENTS:
            seen = [one for one in entries if scope.has_experiment(str(one["name"]))]
        elif asked.lists == pages.REGISTERED:
            seen = [one for one in entries if scope.has(_tags(one.get("tags")))]
        else:
            names = {str(one["name"]) for one in entries}
            own = {name for name in names if self._is_registered(scope, name)}
            seen = [one for one in entries if one["name"] in own]
        if not asked.goes_on:
            found.pop("next_page_token", None)
        return Reply.of(as_json({**found, asked.lists: seen}))

    def learn(self, run: Any) -> Thing:
        """Notes a run as MLflow describes it."""
        info, tags = run["info"], (run.get("data") or {}).get("tags")
        return self._remember(info["run_id"], tags, info)

    def _thing(self, kind: str, name: str) -> Thing | None:
        with self._guard:
            known = self._known.get(name)
        if isinstance(known, Thing):
            return known
        if kind == "run":
            found = self._asked(f"/api/2.0/mlflow/runs/get?run_id={name}")
            return None if found is None else self.learn(found["run"])
        found = self._asked(f"/api/2.0/mlflow/logged-models/{name}")
        if found is None:
            return None
        info = found["model"]["info"]
        return self._remember(name, info.get("tags"), info)

    def _remember(self, name: str, tags: Any, info: Any) -> Thing:
        root = mlflow_calls.root(info.get("artifact_uri", ""))
        thing = Thing(_tags(tags), root, str(info.get("experiment_id", "")))
        self._note(name, thing)
        return thing

    def _note(self, key: str, known: Thing | str) -> None:
        with self._guard:
            self._known[key] = known
            while len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]

    def _experiment(self, number: str) -> str | None:
        """The name of an experiment."""
        key = f"experiment {number}"
        with self._guard:
            known = self._known.get(key)
        if isinstance(known, str):
            return known
        found = self._asked(f"/api/2.0/mlflow/experiments/get?experiment_id={number}")
        if found is None:
            return None
        name = str(found["experiment"]["name"])
        self._note(key, name)
        return name

    def _is_registered(self, scope: Scope, name: str) -> bool:
        """Whether a namespace has a registered model; asked each time, as an administrator may delete or rename one."""
        query = urllib.parse.urlencode({"name": name})
        found = self._asked(f"/api/2.0/mlflow/registered-models/get?{query}")
        return found is not None and scope.has(_tags(found["registered_model"].get("tags")))

    def _asked(self, target: str) -> Any:
        """What MLflow answers the gateway's own question; None when it knows nothing of that name."""
        with self._upstream.sent("GET", target, "", (), 0) as response:
            data = response.read(_MAX_KNOWN + 1)
            if response.status in (http.client.NOT_FOUND, http.client.BAD_REQUEST):
                return None
            if response.status != http.client.OK or len(data) > _MAX_KNOWN:
                raise Refused(503, AWAY, f"MLflow does not say whose this is: it answers {response.status}")
            return json.loads(data)


def _check_in(scope: Scope, name: str, experiment: str | None) -> None:
    """Checks that what is named so is in an experiment of a namespace, by the experiment's name."""
    if experiment is None or not scope.has_experiment(experiment):
        raise _unseen(scope, name)


def _unseen(scope: Scope, name: str) -> Refused:
    return Refused(404, UNKNOWN, f"{scope.namespace} has no {name:.120} in MLflow")


def _tags(entries: Any) -> dict[str, str]:
    """Of all tags those that say whose something is."""
    return {one["key"]: one.get("value", "") for one in entries or () if one["key"] in records.TAGS}
