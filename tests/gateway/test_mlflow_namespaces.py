"""MLflow's door for two namespaces that hold a run of one name, of one job and submitted at one moment.

On a real PostgreSQL and a real server of MLflow. The door itself is in test_mlflow, the ledgers of two namespaces in
tests/contracts/test_ledger_namespaces.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from tests.contracts.conftest import Postgres, wait_until
from tests.controller.conftest import Server
from tests.gateway.gateway_site import NAMESPACE, STRANGER, Site, postgres, record
from tests.gateway.mlflow_site import Door, server

from trialplane.gateway import mlflow as door_module
from trialplane.gateway.logs import Mlflow
from trialplane.gateway.mlflow import Upstream
from trialplane.wire import labels, ledger
from trialplane.wire.ledger import Address

__all__ = ["postgres", "server"]  # fixtures

OTHER = "other"  # another namespace than the gateway's own
RUN = "own-1"
SUBMITTED = 1000.0


@pytest.fixture
def site(postgres: Postgres, server: Server, tmp_path: Path) -> Iterator[Site]:
    made = Site(postgres, tmp_path, mlflow=Mlflow(server.uri), upstream=Upstream(server.uri), others=[OTHER])
    for namespace in (NAMESPACE, OTHER):
        with made.ledger(RUN, SUBMITTED, namespace):
            made.archive_of(namespace).admit(RUN, f"the token of {RUN}" + ("" if namespace == NAMESPACE else f" in {OTHER}"))
    yield made
    made.close()


@pytest.fixture
def doors(site: Site) -> tuple[Door, Door]:
    """Of the run in the gateway's own namespace, and of that in the other one."""
    return Door(site, RUN), Door(site, RUN, OTHER)


def test_a_run_reaches_no_record_of_the_run_of_its_name_in_another_namespace(doors: tuple[Door, Door]) -> None:
    for own, other in (doors, doors[::-1]):
        theirs, model = other.new_run(), other.new_model()
        root = f"/api/2.0/mlflow-artifacts/artifacts/{theirs['experiment_id']}/{theirs['run_id']}/artifacts"
        assert other.ask("PUT", f"{root}/f", b"x").code == 200
        assert own.call("runs/get", {"run_id": theirs["run_id"]}, get=True).code == 403
        assert own.call("runs/set-tag", {"run_id": theirs["run_id"], "key": "k", "value": "v"}).code == 403
        assert own.call(f"logged-models/{model['model_id']}", get=True).code == 403
        assert own.ask("GET", f"{root}/f").code == 403
        assert other.call("runs/get", {"run_id": theirs["run_id"]}, get=True).code == 200
        for token in (other.token, own.token):
            assert own.ask("GET", "/api/2.0/mlflow/runs/get?run_id=x", token=token).code == 403


def test_a_namespaces_experiments_are_its_own(doors: tuple[Door, Door], site: Site, server: Server) -> None:
    own, other = doors
    ids = (own.experiment(), other.experiment())
    assert ids[0] != ids[1]
    names = [MlflowClient(server.uri).get_experiment(one).name for one in ids]
    assert names == ["toy", f"{OTHER}/toy"], "of the gateway's own namespace it is named as it always was"
    made = [one.new_run()["run_id"] for one in doors]
    for one, mine, (here, there) in zip(doors, made, (ids, ids[::-1]), strict=True):
        found = one.done("runs/search", {"experiment_ids": [here]})["runs"]
        assert mine in [run["info"]["run_id"] for run in found] and not {*made} - {mine} & {
            run["info"]["run_id"] for run in found
        }
        assert one.call("runs/search", {"experiment_ids": [there]}).code == 403
        assert one.call("experiments/get", {"experiment_id": there}, get=True).code == 403
        assert one.call("runs/create", {"experiment_id": there}).code == 403
    for name in (f"{OTHER}/toy", f"{NAMESPACE}/toy"):
        assert own.call("experiments/create", {"name": name}).code == 403


def test_a_records_namespace_is_set_by_the_door_and_stays(doors: tuple[Door, Door]) -> None:
    for one, namespace, wrong in zip(doors, (NAMESPACE, OTHER), (OTHER, NAMESPACE), strict=True):
        run = one.new_run()["run_id"]
        assert one.tags(run)[labels.NAMESPACE] == namespace
        assert one.call("runs/set-tag", {"run_id": run, "key": labels.NAMESPACE, "value": wrong}).code == 403
        assert one.call("runs/delete-tag", {"run_id": run, "key": labels.NAMESPACE}).code == 403
        given = [{"key": labels.NAMESPACE, "value": wrong}]
        assert one.call("runs/log-batch", {"run_id": run, "tags": given}).code == 403
        assert one.call("runs/create", {"experiment_id": one.experiment(), "tags": given}).code == 403


def test_a_record_without_a_namespace_is_the_gateways_own(doors: tuple[Door, Door], server: Server) -> None:
    own, other = doors
    tags = {labels.RUN: RUN, labels.RECORD: record(SUBMITTED)}
    client = MlflowClient(server.uri)
    for experiment in (own.experiment(), other.experiment()):
        bare = client.create_run(experiment, tags=tags).info.run_id
        assert own.call("runs/get", {"run_id": bare}, get=True).code == 200
        assert other.call("runs/get", {"run_id": bare}, get=True).code == 403


def test_a_run_that_has_all_its_requests_under_way_holds_up_none_of_another_namespace(doors: tuple[Door, Door]) -> None:
    own, other = doors
    limit = own.site.door._requests
    for _ in range(door_module.REQUESTS):
        assert limit.enter(Address(NAMESPACE, RUN), door_module.REQUESTS)
    asked = {"experiment_name": "toy"}
    codes = [one.call("experiments/get-by-name", asked, get=True).code for one in (own, other)]
    assert codes[0] == 429 and codes[1] in (200, 404)


def test_a_log_is_that_of_the_namespaces_own_run(doors: tuple[Door, Door], site: Site) -> None:
    """Both are read from MLflow, as neither has a controller any more."""
    for one, said in zip(doors, (b"said here", b"said there"), strict=True):
        tags = {labels.KIND: "study", labels.STATE: "SUCCEEDED"}
        run = one.new_run(**tags)
        root = f"/api/2.0/mlflow-artifacts/artifacts/{run['experiment_id']}/{run['run_id']}/artifacts"
        assert one.ask("PUT", f"{root}/logs/controller.log", said).code == 200
    for namespace in (NAMESPACE, OTHER):
        archive = site.archive_of(namespace)
        wait_until(lambda archive=archive: not archive.is_alive(RUN), "PostgreSQL sees that the controller is gone")
    path = f"{ledger.place(OTHER)}/runs/{RUN}/log"
    assert site.ask("GET", f"/runs/{RUN}/log").data == b"said here"
    assert site.ask("GET", path, token=STRANGER).data == b"said there"
    assert site.ask("GET", path).code == 404, "it is of a namespace that this user has no part in"
