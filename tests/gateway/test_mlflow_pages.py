"""MLflow's pages as users of two namespaces read them: each what is of his own, in lists, by id and in GraphQL.

On a real PostgreSQL and a real server of MLflow. That users change nothing is in test_mlflow.
"""

from __future__ import annotations

import functools
import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from tests.contracts.conftest import Postgres, wait_until
from tests.controller.conftest import Server
from tests.gateway.gateway_site import NAMESPACE, STRANGER, TOKEN, Reply, Site, postgres
from tests.gateway.mlflow_site import Door, server

from trialplane.gateway import mlflow as door_module
from trialplane.gateway import pages
from trialplane.gateway.mlflow_calls import Refused
from trialplane.gateway.upstream import Upstream
from trialplane.wire import ledger
from trialplane.wire.mlflow import UI, Scope

__all__ = ["postgres", "server"]  # fixtures

OTHER = "other"  # another namespace than the gateway's own
RUN = "own-1"
TOKENS = {NAMESPACE: TOKEN, OTHER: STRANGER}
GET_RUN = 'query GetRun($data: MlflowGetRunInput!) @component(name: "MLflow.X") { mlflowGetRun(input: $data) { run { info { runUuid } experiment { name } modelVersions { name } } } }'  # noqa: E501  as the page sends it


class Pages:
    """A user of one namespace, with the door of a run there that has logged something.

    Attributes:
        door: of the run.
        experiment, run, model: ids in MLflow.
        registered: name of a registered model.
    """

    def __init__(self, site: Site, namespace: str) -> None:
        self._site, self._namespace = site, namespace
        self.door = Door(site, RUN, namespace)
        made, model = self.door.new_run(), self.door.new_model()
        self.experiment, self.run, self.model = made["experiment_id"], made["run_id"], model["model_id"]
        root = f"{made['experiment_id']}/{self.run}/artifacts"
        assert self.door.ask("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{root}/f", b"said").code == 200
        self.door.done("runs/log-metric", {"run_id": self.run, "key": "x", "value": 1, "timestamp": 1})
        self.registered = f"net-of-{namespace}"
        self.door.call("registered-models/create", {"name": self.registered})  # there already, from the test before
        source = {"name": self.registered, "run_id": self.run, "source": f"mlflow-artifacts:/{root}/f"}
        self.version = self.door.done("model-versions/create", source)["model_version"]["version"]

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        sent = b"" if body is None else json.dumps(body).encode()
        return self._site.ask(method, ledger.place(self._namespace) + UI + path, sent, TOKENS[self._namespace])

    def get(self, endpoint: str, **query: str) -> Reply:
        return self.ask("GET", f"/ajax-api/2.0/mlflow/{endpoint}?{urllib.parse.urlencode(query)}")

    def post(self, endpoint: str, body: Any, version: str = "2.0") -> Reply:
        return self.ask("POST", f"/ajax-api/{version}/mlflow/{endpoint}", body)

    def reads(self, of: Pages) -> list[tuple[str, Reply]]:
        """All requests that name something of a user's."""
        version = {"name": of.registered, "version": of.version}
        return [
            ("experiment", self.get("experiments/get", experiment_id=of.experiment)),
            ("runs", self.post("runs/search", {"experiment_ids": [of.experiment]})),
            ("runs, and own", self.post("runs/search", {"experiment_ids": [self.experiment, of.experiment]})),
            ("data sets", self.post("experiments/search-datasets", {"experiment_ids": [of.experiment]})),
            ("data sets to evaluate on", self.post("datasets/search", {"experiment_ids": [of.experiment]}, "3.0")),
            ("models", self.post("logged-models/search", {"experiment_ids": [of.experiment]})),
            ("model", self.get(f"logged-models/{of.model}")),
            ("files of a model", self.get(f"logged-models/{of.model}/artifacts/directories")),
            ("run", self.get("runs/get", run_id=of.run)),
            ("run, by its former name", self.get("runs/get", run_uuid=of.run)),
            ("metric", self.get("metrics/get-history", run_id=of.run, metric_key="x")),
            ("metrics", self.get("metrics/get-history-bulk", run_id=of.run, metric_key="x")),
            ("steps", self.get("metrics/get-history-bulk-interval", run_ids=of.run, metric_key="x")),
            ("files", self.get("artifacts/list", run_id=of.run)),
            ("file", self.ask("GET", f"/get-artifact?path=f&run_uuid={of.run}")),
            ("registered model", self.get("registered-models/get", name=of.registered)),
            ("version", self.get("model-versions/get", **version)),
            ("file of a version", self.ask("GET", f"/model-versions/get-artifact?path=&{urllib.parse.urlencode(version)}")),
            ("traces", self.post("traces/search", {"locations": [_location(of.experiment)]}, "3.0")),
            ("traces, as they were", self.get("traces", experiment_ids=of.experiment)),
            ("a page's query", self.ask("POST", "/graphql", {"query": GET_RUN, "variables": {"data": {"runId": of.run}}})),
        ]


def _location(experiment: str) -> Any:
    return {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}


@pytest.fixture
def site(postgres: Postgres, server: Server, tmp_path: Path) -> Iterator[Site]:
    made = Site(postgres, tmp_path, upstream=Upstream(server.uri), others=[OTHER])
    for namespace in (NAMESPACE, OTHER):
        with made.ledger(RUN, 1000.0, namespace):
            made.archive_of(namespace).admit(RUN, f"the token of {RUN}" + ("" if namespace == NAMESPACE else f" in {OTHER}"))
    yield made
    made.close()


@pytest.fixture
def users(site: Site) -> tuple[Pages, Pages]:
    """Of the gateway's own namespace, and of the other one."""
    return Pages(site, NAMESPACE), Pages(site, OTHER)


def test_what_is_of_another_namespace_is_not_there(users: tuple[Pages, Pages]) -> None:
    for user, other in (users, users[::-1]):
        seen = {what: reply.code for what, reply in user.reads(user)}
        assert set(seen.values()) == {200}, seen
        unseen = {what: reply.code for what, reply in user.reads(other)}
        assert set(unseen.values()) == {404}, unseen


def test_lists_hold_what_is_of_the_users_namespace(users: tuple[Pages, Pages]) -> None:
    for user, other in (users, users[::-1]):
        for reply in (
            user.get("experiments/search", max_results="1000"),
            user.post("experiments/search", {"max_results": 1000, "filter": "name ILIKE '%toy%'"}),
        ):
            found = {one["experiment_id"] for one in reply.json()["experiments"]}
            assert user.experiment in found and other.experiment not in found
        models = {one["name"] for one in user.get("registered-models/search").json()["registered_models"]}
        assert user.registered in models and other.registered not in models
        for query in ({}, {"filter": f"run_id = '{other.run}'"}, {"filter": f"name = '{other.registered}'"}):
            versions = {one["name"] for one in user.get("model-versions/search", **query).json()["model_versions"]}
            assert other.registered not in versions and (user.registered in versions) is (not query)


def test_a_list_does_not_say_that_others_have_more_that_matches(users: tuple[Pages, Pages]) -> None:
    for user, other in (users, users[::-1]):
        source = f"mlflow-artifacts:/{other.experiment}/{other.run}/artifacts/f"
        version = {"name": other.registered, "run_id": other.run, "source": source}
        other.door.done("model-versions/create", version)
        for what, text in (
            ("model-versions", f"name = '{other.registered}'"),
            ("registered-models", "name LIKE 'net-of-%'"),
        ):
            found = user.get(f"{what}/search", max_results="1", filter=text).json()
            assert "next_page_token" not in found, what
    user, _ = users
    assert user.get("model-versions/search", max_results="1").json()["next_page_token"], "nobody's filter matches all"


def test_a_question_in_graphql_names_nothing_but_in_its_variables(users: tuple[Pages, Pages]) -> None:
    user, other = users
    inline = f'query {{ mlflowGetRun(input: {{runId: "{other.run}"}}) {{ run {{ info {{ runUuid }} }} }} }}'
    versions = (
        "query Q($data: MlflowSearchModelVersionsInput!) { mlflowSearchModelVersions(input: $data) { apiError { code } } }"
    )
    for query, variables in (
        (inline, {}),
        (inline.replace('"', '"""'), {}),
        (versions, {"data": {"filter": f"name = '{other.registered}'"}}),
        ("query Q($id: String) { mlflowGetRun(input: {runId: $id}) { run { info { runUuid } } } }", {"id": other.run}),
        (
            "query Q($ids: [String]) { mlflowSearchRuns(input: {experimentIds: $ids}) { runs { info { runUuid } } } }",
            {"ids": ["0"]},
        ),
        ("mutation { testMutation(inputString: $a) { output } }", {"a": "x"}),
    ):
        assert user.ask("POST", "/graphql", {"query": query, "variables": variables}).code == 403, query
    both = GET_RUN.replace("} } }", "} } more: mlflowGetRun(input: $more) { run { info { runUuid } } } }")
    variables = {"data": {"runId": user.run}, "more": {"runId": other.run}}
    assert user.ask("POST", "/graphql", {"query": both, "variables": variables}).code == 404


def test_what_a_run_logs_waits_while_this_gateway_does_not_serve_its_namespace(site: Site) -> None:
    """A team was added, and one of two gateways not started anew yet: 404 would have the writer leave it out."""
    door = Door(site, RUN, "added")
    reply = door.call("runs/create", {"experiment_id": "0"})
    assert (reply.code, reply.json()["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")
    assert "added is not among the gateway's namespaces; what own-1 logs waits until it is" in reply.json()["message"]
    assert site.ask("GET", f"{ledger.place('added')}{UI}/").code == 404, "a user's page has nothing to wait for"


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/ajax-api/2.0/mlflow/runs/search", {}),
        ("POST", "/ajax-api/2.0/mlflow/runs/search", {"experiment_ids": []}),
        ("POST", "/ajax-api/2.0/mlflow/runs/search", {"experimentIds": ["1"]}),
        ("POST", "/ajax-api/2.0/mlflow/logged-models/search", {"filter": "x"}),
        ("GET", "/ajax-api/2.0/mlflow/metrics/get-history-bulk?metric_key=x", None),
        ("GET", "/ajax-api/2.0/mlflow/runs/get?runId=a", None),
        ("POST", "/ajax-api/3.0/mlflow/traces/search", {"locations": [{"type": "INFERENCE_TABLE"}]}),
        ("GET", "/get-artifact?path=x", None),
    ],
)
def test_a_question_says_of_what(method: str, target: str, body: Any) -> None:
    with pytest.raises(Refused) as caught:
        pages.question(Scope("a", False), method, target, lambda: json.dumps(body).encode())
    assert caught.value.status == 400


def test_a_model_is_its_namespaces_and_no_other_adds_a_version(users: tuple[Pages, Pages], server: Server) -> None:
    client = MlflowClient(server.uri)
    for user, other in (users, users[::-1]):
        source = f"mlflow-artifacts:/{user.experiment}/{user.run}/artifacts/f"
        version = {"run_id": user.run, "source": source}
        taken = user.door.call("registered-models/create", {"name": other.registered})
        assert taken.json()["error_code"] == "RESOURCE_ALREADY_EXISTS", "as MLflow's client expects it, before it adds to it"
        refused = user.door.call("model-versions/create", {**version, "name": other.registered})
        assert refused.code == 403 and "it is another team's: register yours under another" in refused.json()["message"]
        theirs = {"name": other.registered, "version": other.version}
        assert user.door.call("model-versions/get", theirs, get=True).code == 403
        forged = {"name": "forged", "tags": [{"key": "trialplane.namespace", "value": "elsewhere"}]}
        assert user.door.call("registered-models/create", forged).code == 403
        assert user.door.call("model-versions/create", {**version, "name": user.registered}).code == 200
    bare = "net-of-nobody"  # without a tag: the control namespace's, until somebody says whose
    client.create_registered_model(bare)
    own, other = users
    version = {
        "name": bare,
        "run_id": other.run,
        "source": f"mlflow-artifacts:/{other.experiment}/{other.run}/artifacts/f",
    }
    assert own.get("registered-models/get", name=bare).code == 200
    assert other.door.call("model-versions/create", version).code == 403
    client.set_registered_model_tag(bare, "trialplane.namespace", OTHER)
    assert own.get("registered-models/get", name=bare).code == 404
    assert other.door.call("model-versions/create", version).code == 200
    client.delete_registered_model(bare)


def test_what_a_request_names_is_asked_about_up_to_the_first_that_is_not_there(
    users: tuple[Pages, Pages], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, _ = users
    asked: list[str] = []
    records = site.door._there
    whose = records._asked
    monkeypatch.setattr(records, "_asked", lambda target: asked.append(target) or whose(target))
    unknown = [str(number) for number in range(900_000, 900_000 + pages.MAX_NAMED)]
    assert user.post("runs/search", {"experiment_ids": unknown}).code == 404
    assert user.get("metrics/get-history-bulk-interval", run_ids="a", metric_key="x").code == 404
    assert len(asked) == 2, asked


@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/ajax-api/2.0/mlflow/runs/search", {"experiment_ids": ["{}"]}),
        ("/ajax-api/3.0/mlflow/traces/search", {"locations": [{"mlflow_experiment": {"experiment_id": "{}"}}]}),
        ("/graphql", {"query": "query { mlflowSearchRuns }", "variables": {"data": {"experimentIds": ["{}"]}}}),
    ],
)
def test_a_request_names_so_many_things_at_most(target: str, body: Any) -> None:
    text = json.dumps(body)
    one = text[text.index("[") + 1 : text.index("]")]
    for number, refused in ((pages.MAX_NAMED, False), (pages.MAX_NAMED + 1, True)):
        many = text.replace(one, ", ".join(one.replace("{}", str(each), 1) for each in range(number)))
        sent = functools.partial(str.encode, many)
        if refused:
            with pytest.raises(Refused, match="and 200 is the most; ask for fewer"):
                pages.question(Scope("a", False), "POST", target, sent)
        else:
            assert len(pages.question(Scope("a", False), "POST", target, sent).experiments) == number


def test_a_users_body_is_small_and_one_namespaces_requests_hold_up_no_others(
    users: tuple[Pages, Pages], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of JSON takes forty times its size when it is decoded, and all namespaces have one gateway."""
    user, other = users
    large = {"experiment_ids": [user.experiment], "filter": " " * door_module.MAX_QUESTION}
    assert user.post("runs/search", large).code == 413
    wait_until(lambda: site.door._questions.total == 0, "it gave its turn back")
    for _ in range(door_module.QUESTIONS):
        assert site.door._questions.enter(NAMESPACE, door_module.QUESTIONS)
    with monkeypatch.context() as patch:
        patch.setattr(door_module, "ANSWER_SECONDS", 0.04)  # of which it waits a part for its turn
        assert user.get("registered-models/search").code == 429
        assert other.get("registered-models/search").code == 200
    site.door._questions.leave(NAMESPACE)
    assert user.get("registered-models/search").code == user.get("registered-models/search").code == 200, (
        "each gave its turn back"
    )
