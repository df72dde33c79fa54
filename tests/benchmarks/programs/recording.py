"""Writes trials and artifacts to MLflow alone, and through the gateway to one with the plugin, in turn; prints the ms."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mlflow.tracking import MlflowClient
from tests.contracts.conftest import Postgres
from tests.contracts.gateway_process import NAMESPACE, TOKEN, Gateways
from tests.controller.conftest import Server
from tests.gateway.mlflow_site import with_plugin

from trialplane.exporter.batch import Batch, Sender
from trialplane.job import kinds
from trialplane.ledger import tables
from trialplane.ledger.archive import Archive
from trialplane.wire import env, labels, ledger
from trialplane.wire import mlflow as wire

RUN, JOB = "toy-1", "toy"


def main() -> None:
    """Prints milliseconds per trial, one number per round and way; and of an artifact of some MiB."""
    given = json.loads(sys.argv[1])
    rounds, trials, size = given["rounds"], given["trials"], given["mib"] << 20
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = Postgres(max(Path("/usr/lib/postgresql").glob("*/bin")))
        stack.callback(postgres.close)
        server = Server(postgres.new_database(), folder)
        server.start()
        stack.callback(server.stop)
        (folder / "tenants").mkdir()
        tenants, _ = stack.enter_context(with_plugin(postgres.new_database(), folder / "tenants", NAMESPACE))
        gateways = Gateways()
        stack.callback(gateways.close)
        url = postgres.new_database()
        door = gateways.door(url, mlflow=tenants.uri)
        stack.callback(door.close)
        _record(url)
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"  # the answer alone stands there
        os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
        os.environ[env.MLFLOW_TOKEN] = wire.token(TOKEN)
        artifact = folder / "artifact"
        artifact.write_bytes(os.urandom(size))
        ways = {
            "direct": server.uri,
            "door": f"http://127.0.0.1:{door.port}{wire.path(ledger.namespace_path(NAMESPACE), RUN)}",
        }
        clients = {name: MlflowClient(uri) for name, uri in ways.items()}
        experiments = {name: client.create_experiment(JOB) for name, client in clients.items()}
        parents = {name: client.create_run(experiments[name]).info.run_id for name, client in clients.items()}
        taken: dict[str, list[float]] = {f"{what} {name}": [] for what in ("trial", "artifact") for name in ways}
        for number in range(rounds + 1):
            for name, client in clients.items():
                experiment, parent = experiments[name], parents[name]
                trial = _timed(functools.partial(_trials, client, experiment, parent, trials))
                sent = _timed(functools.partial(client.log_artifact, parent, str(artifact)))
                if number:  # the first fills caches
                    taken[f"trial {name}"].append(trial / trials)
                    taken[f"artifact {name}"].append(sent)
    print(json.dumps(taken))  # noqa: T201  this is the answer


def _record(url: str) -> None:
    """The run of the token that the gateway's tests have."""
    connections = tables.Connections(url)
    archive = Archive(connections.share())
    objectives = [{"metric": "loss", "direction": "minimize"}]
    job = kinds.read({"name": JOB, "kind": "hpo", "objectives": objectives, "trials": 1})
    archive.record_run(RUN, job, {"submitted": time.time(), labels.RECORD_UID: "1"}, b"", new=True)
    archive.set_token(RUN, TOKEN)
    connections.close()


def _trials(client: MlflowClient, experiment: str, parent: str, trials: int) -> None:
    for number in range(trials):
        _trial(client, experiment, parent, number)


def _trial(client: MlflowClient, experiment: str, parent: str, number: int) -> None:
    """What the exporter sends of one trial: its run, a batch at its start, one at its end, and its state."""
    run = client.create_run(experiment, tags={labels.PARENT: parent}).info.run_id
    begun, ended = Batch(status="RUNNING"), Batch(status="FINISHED", end=int(1000 * time.time()))
    begun.add_tags({labels.NUMBER: number, labels.TRIAL: number, labels.STATE: "RUNNING"})
    for step in range(20):
        ended.add_metrics({"loss": 1 / (step + 1), "score": step}, time.time(), step)
    ended.add_params({f"p{index}": index for index in range(8)})
    ended.add_tags({labels.STATE: "COMPLETE"})
    for batch in (begun, ended):
        Sender(client).send(run, batch)


def _timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    before = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - before)


if __name__ == "__main__":
    main()
