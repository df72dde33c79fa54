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
        above: `run_id` of the run that it is below; "" for one that stands for the trial's own.
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
    place: dict[str, str] = {}  # the runs' ids in the store → here
    for own in adopted:
        try:
            place[own.run_id] = _below(client, place[own.above], own) if own.above else run_id
        except MlflowException as error:
            if not is_refusal(error):
                raise
            write_log(f"MLflow refuses runs below its run {run_id}, so those in {store} are left out: {describe(error)}")
            return
        batch = batches[place[own.run_id]]
        batch.add(own.batch)
        if own.above:
            batch.status, batch.end = own.batch.status, own.batch.end


def read(store: Path) -> list[Adopted]:
    """The runs of a trial's own store, each after the one that it is below."""
    with contextlib.closing(sqlite3.connect(store)) as file:
        file.execute("PRAGMA schema_version")  # raises at once for a damaged file, which MLflow would retry for a minute
    client = MlflowClient(f"sqlite:///{store}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = {run.info.run_id: run for run in client.search_runs(experiments, max_results=_MAX_RUNS)}
    above = {run_id: run.data.tags.get(labels.PARENT, "") for run_id, run in runs.items()}
    found = []
    for run_id, run in runs.items():
        own = Batch()
        own.add_params(run.data.params)
        own.add_tags({key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")})
        for name in run.data.metrics:
            own.metrics += client.get_metric_history(run_id, name)
        own.artifacts += _artifacts(store, run.info.artifact_uri)
        if above[run_id] in runs:
            own.add_tags({_NAME: run.data.tags.get(_NAME, "")})
            own.status = run.info.status if run.info.status in ENDED else "KILLED"
            own.end = run.info.end_time
        found.append(Adopted(run_id, above[run_id] if above[run_id] in runs else "", run.info.start_time, own))
    return sorted(found, key=lambda one: _depth(one.run_id, above))


def _artifacts(store: Path, uri: str) -> list[Artifact]:
    """The files of a run one by one, as MLflow may refuse a single one.

    The URI, and the links among the files, are the trial's: whatever they name outside of the store's own folder, a file of
    this process or another host, is left out.
    """
    home, parts = store.with_suffix(".artifacts").resolve(), urllib.parse.urlsplit(uri)
    place = Path(urllib.parse.unquote(parts.path))
    if (parts.scheme, parts.netloc) != ("file", "") or not place.resolve().is_relative_to(home):
        write_log(f"what a trial logged as artifacts at {uri:.200} is left out of MLflow: it is not beside {store}")
        return []
    files = [file for file in sorted(place.rglob("*")) if file.is_file() and file.resolve().is_relative_to(home)]
    folders = [file.parent.relative_to(place).as_posix() for file in files]
    return [Artifact("" if folder == "." else folder, str(file)) for folder, file in zip(folders, files, strict=True)]


def _below(client: MlflowClient, above: str, own: Adopted) -> str:
    """The id of a new run below another, or of the one that an interrupted copy has already created."""
    experiment = client.get_run(above).info.experiment_id
    query = f"tags.`{labels.PARENT}` = '{above}' and tags.`{labels.COPY_OF}` = '{own.run_id}'"
    runs = client.search_runs([experiment], query)
    if runs:
        return str(runs[0].info.run_id)
    tags = {labels.PARENT: above, labels.COPY_OF: own.run_id}
    return str(client.create_run(experiment, start_time=own.start, tags=tags).info.run_id)


def _depth(run_id: str, above: dict[str, str]) -> int:
    """How many runs of the store a run is below."""
    depth = 0
    while (run_id := above[run_id]) in above and depth < len(above):  # a script may have made a cycle
        depth += 1
    return depth
