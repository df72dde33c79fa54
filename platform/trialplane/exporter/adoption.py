"""Copies what a trial logged into an MLflow store of its own, because MLflow was away."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import urllib.parse
from collections.abc import MutableMapping
from pathlib import Path

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trialplane.exporter.batch import ENDED, Artifact, Batch, describe, is_refusal, write_log
from trialplane.wire import labels

_MAX_RUNS = 50_000  # that MLflow gives at once
_NAME = "mlflow.runName"


@dataclasses.dataclass
class Adopted:
    """One run of such a store.

    Attributes:
        run_id: in the store.
        above: `run_id` of its parent in the store; "" for one that stands for the trial's own.
        start: milliseconds since the epoch.
        batch: its contents.
    """

    run_id: str
    above: str
    start: int
    batch: Batch


def take_over(store: Path, client: MlflowClient, run_id: str, batches: MutableMapping[str, Batch]) -> None:
    """Add what a trial logged into a store of its own to the batch of its run, and to those of new runs below it.

    Args:
        store: the file; need not exist.
        client: of the MLflow that gets it.
        run_id: of the trial's run there.
        batches: run → its batch; missing ones are created.
    """
    if not store.exists():
        return
    try:
        adopted = read(store)
    except Exception as error:  # noqa: BLE001 - a killed trial may have left any file; an MLflow that is away is no reason
        write_log(f"what a trial logged into {store} cannot be read, so it is left out of MLflow: {describe(error)}")
        return
    new_ids: dict[str, str] = {}  # the runs' ids in the store → here
    for adopted_run in adopted:
        try:
            new_ids[adopted_run.run_id] = (
                _below(client, new_ids[adopted_run.above], adopted_run) if adopted_run.above else run_id
            )
        except MlflowException as error:
            if not is_refusal(error):
                raise
            write_log(f"MLflow refuses runs below its run {run_id}, so those in {store} are left out: {describe(error)}")
            return
        batch = batches[new_ids[adopted_run.run_id]]
        batch.add(adopted_run.batch)
        if adopted_run.above:
            batch.status, batch.end = adopted_run.batch.status, adopted_run.batch.end


def read(store: Path) -> list[Adopted]:
    """The runs of a trial's own store, each after the one that it is below."""
    with contextlib.closing(sqlite3.connect(store)) as file:
        file.execute("PRAGMA schema_version")  # raises at once for a damaged file, which MLflow would retry for a minute
    client = MlflowClient(f"sqlite:///{store}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = {run.info.run_id: run for run in client.search_runs(experiments, max_results=_MAX_RUNS)}
    parents = {run_id: run.data.tags.get(labels.PARENT, "") for run_id, run in runs.items()}
    adopted = []
    for run_id, run in runs.items():
        batch = Batch()
        batch.add_params(run.data.params)
        batch.add_tags({key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")})
        for name in run.data.metrics:
            batch.metrics += client.get_metric_history(run_id, name)
        batch.artifacts += _artifacts(store, run.info.artifact_uri)
        if parents[run_id] in runs:
            batch.add_tags({_NAME: run.data.tags.get(_NAME, "")})
            batch.status = run.info.status if run.info.status in ENDED else "KILLED"
            batch.end = run.info.end_time
        adopted.append(Adopted(run_id, parents[run_id] if parents[run_id] in runs else "", run.info.start_time, batch))
    return sorted(adopted, key=lambda adopted_run: _depth(adopted_run.run_id, parents))


def _artifacts(store: Path, uri: str) -> list[Artifact]:
    """The files of a run one by one, as MLflow may refuse a single one.

    The URI, and the links among the files, are the trial's: whatever they name outside of the store's own folder, a file of
    this process or another host, is left out.
    """
    home, parts = store.with_suffix(".artifacts").resolve(), urllib.parse.urlsplit(uri)
    location = Path(urllib.parse.unquote(parts.path))
    if (parts.scheme, parts.netloc) != ("file", "") or not location.resolve().is_relative_to(home):
        write_log(f"what a trial logged as artifacts at {uri:.200} is left out of MLflow: it is not beside {store}")
        return []
    files = [file for file in sorted(location.rglob("*")) if file.is_file() and file.resolve().is_relative_to(home)]
    folders = [file.parent.relative_to(location).as_posix() for file in files]
    return [Artifact("" if folder == "." else folder, str(file)) for folder, file in zip(folders, files, strict=True)]


def _below(client: MlflowClient, parent: str, adopted: Adopted) -> str:
    """The id of a new run below another, or of the one that an interrupted copy has already created."""
    experiment = client.get_run(parent).info.experiment_id
    query = f"tags.`{labels.PARENT}` = '{parent}' and tags.`{labels.COPY_OF}` = '{adopted.run_id}'"
    runs = client.search_runs([experiment], query)
    if runs:
        return str(runs[0].info.run_id)
    tags = {labels.PARENT: parent, labels.COPY_OF: adopted.run_id}
    return str(client.create_run(experiment, start_time=adopted.start, tags=tags).info.run_id)


def _depth(run_id: str, parents: dict[str, str]) -> int:
    """The depth of a run: the number of runs of the store above it."""
    depth = 0
    while (run_id := parents[run_id]) in parents and depth < len(parents):  # a script may have made a cycle
        depth += 1
    return depth
