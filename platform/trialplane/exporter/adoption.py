"""Copies entries from the local MLflow store of a trial into MLflow.

While MLflow does not answer, a trial logs into a store of its own, which is a SQLite file with a folder of artifacts beside
it. After the trial's end, the entries of this store are copied into the trial's run in MLflow, and its child runs become
child runs of that run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import urllib.parse
from collections.abc import MutableMapping
from pathlib import Path

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trialplane.exporter.batch import ENDED, Artifact, Batch, describe, is_refusal, write_log
from trialplane.wire import labels

_MAX_RUNS = 50_000  # the most runs that MLflow returns in one search
_NAME = "mlflow.runName"


@dataclasses.dataclass
class Adopted:
    """One run of a trial's store, to be copied.

    Attributes:
        run_id: Id of the run in the store.
        parent: Id of its parent in the store; "" for a run without one, whose entries go into the trial's run in MLflow.
        start: Start in milliseconds since the epoch.
        batch: Entries of the run.
    """

    run_id: str
    parent: str
    start: int
    batch: Batch


def copy_store(store: Path, client: MlflowClient, run_id: str, batches: MutableMapping[str, Batch]) -> None:
    """Add the entries of a trial's store to the batches of the trial's run and of its child runs.

    Child runs are created in MLflow. A store that cannot be read is left out, and so are runs that MLflow refuses.

    Args:
        store: File of the store; nothing is copied if it does not exist.
        client: Client of the MLflow that gets the entries.
        run_id: Id of the trial's run in that MLflow.
        batches: Batch of each run, by id; a missing one must be created on access, as in a defaultdict.
    """
    if not store.exists():
        return
    try:
        adopted = read(store)
    except Exception as error:  # noqa: BLE001 - a killed trial may leave a damaged file
        write_log(f"what a trial logged into {store} cannot be read, so it is left out of MLflow: {describe(error)}")
        return
    new_ids: dict[str, str] = {}  # id of a run in the store → its id in MLflow
    for adopted_run in adopted:
        try:
            if adopted_run.parent:
                new_ids[adopted_run.run_id] = _ensure_child(client, new_ids[adopted_run.parent], adopted_run)
            else:
                new_ids[adopted_run.run_id] = run_id
        except MlflowException as error:
            if not is_refusal(error):
                raise
            write_log(f"MLflow refuses runs below its run {run_id}, so those in {store} are left out: {describe(error)}")
            return
        batch = batches[new_ids[adopted_run.run_id]]
        batch.add(adopted_run.batch)
        if adopted_run.parent:
            batch.status, batch.end = adopted_run.batch.status, adopted_run.batch.end


def read(store: Path) -> list[Adopted]:
    """Return the runs of a trial's store, each after its parent.

    Raises:
        Exception: The store is damaged.
    """
    with contextlib.closing(sqlite3.connect(store)) as file:
        file.execute("PRAGMA schema_version")  # raises at once if the file is damaged; MLflow would first retry for a minute
    client = MlflowClient(f"sqlite:///{store}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = {run.info.run_id: run for run in client.search_runs(experiments, max_results=_MAX_RUNS)}
    parents = {run_id: run.data.tags.get(labels.PARENT, "") for run_id, run in runs.items()}
    adopted_runs: list[Adopted] = []
    for run_id, run in runs.items():
        parent = parents[run_id] if parents[run_id] in runs else ""  # a script may name any run as the parent
        adopted_runs.append(_adopted_run(store, client, run, parent))
    return sorted(adopted_runs, key=lambda adopted_run: _depth(adopted_run.run_id, parents))


def _adopted_run(store: Path, client: MlflowClient, run: Run, parent: str) -> Adopted:
    """Return a run of a trial's store with its entries.

    `parent` is the id of its parent in the store, or "" for none.
    """
    run_id = run.info.run_id
    batch = Batch()
    batch.add_params(run.data.params)
    batch.add_tags({key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")})
    for name in run.data.metrics:
        batch.metrics += client.get_metric_history(run_id, name)
    batch.artifacts += _artifacts(store, run.info.artifact_uri)
    if parent:
        batch.add_tags({_NAME: run.data.tags.get(_NAME, "")})
        batch.status = run.info.status if run.info.status in ENDED else "KILLED"
        batch.end = run.info.end_time
    return Adopted(run_id, parent=parent, start=run.info.start_time, batch=batch)


def _artifacts(store: Path, uri: str) -> list[Artifact]:
    """Return the artifacts of a run. Each file is an artifact of its own, because MLflow may refuse one of them.

    A hostile trial could set any URI, or link to any file. So files outside of the store's folder are left out: this process
    may be able to read files that the trial must not read.
    """
    allowed_folder = store.with_suffix(".artifacts").resolve()
    parts = urllib.parse.urlsplit(uri)  # such as file:///runs/toy/trial.artifacts/1/ab12/artifacts
    location = Path(urllib.parse.unquote(parts.path))
    is_local = parts.scheme == "file" and not parts.netloc
    if not is_local or not location.resolve().is_relative_to(allowed_folder):
        write_log(f"what a trial logged as artifacts at {uri:.200} is left out of MLflow: it is not beside {store}")
        return []
    artifacts: list[Artifact] = []
    for file in sorted(location.rglob("*")):
        if file.is_file() and file.resolve().is_relative_to(allowed_folder):
            folder = file.parent.relative_to(location).as_posix()
            artifacts.append(Artifact("" if folder == "." else folder, str(file)))
    return artifacts


def _ensure_child(client: MlflowClient, parent: str, adopted: Adopted) -> str:
    """Return the id of the child run in MLflow for a run of the store. It is created unless an earlier copy has done so."""
    experiment = client.get_run(parent).info.experiment_id
    query = f"tags.`{labels.PARENT}` = '{parent}' and tags.`{labels.COPY_OF}` = '{adopted.run_id}'"
    runs = client.search_runs([experiment], query)
    if runs:
        return str(runs[0].info.run_id)
    tags = {labels.PARENT: parent, labels.COPY_OF: adopted.run_id}
    return str(client.create_run(experiment, start_time=adopted.start, tags=tags).info.run_id)


def _depth(run_id: str, parents: dict[str, str]) -> int:
    """Return the number of ancestors of a run in the store."""
    depth = 0
    # A script may have created a cycle of parents. The limit ends it.
    while (run_id := parents[run_id]) in parents and depth < len(parents):
        depth += 1
    return depth
