"""What kind `collect` means: iterations, in each of which producers make results for one consumer.

An iteration is a trial of the run, and they run one after another, so `collect.iterations` is the job's `trials`. Models and
rules only: `worker/collect/` does the work, `controller/crews.py` hands it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from trialplane.spec import faults, values
from trialplane.spec.faults import Fault
from trialplane.spec.resources import Budget
from trialplane.spec.training import SEARCH_ONLY

if TYPE_CHECKING:  # it asks this module for the defaults
    from trialplane.spec.job import Job

KIND = "collect"
# Metrics of an iteration that the platform adds to what the consumer returned.
FAILED_UNITS = "units_failed"
ADDED = ("units", FAILED_UNITS, "items", "gigabytes", "units_per_second", "items_per_second")
# And of each worker, below its name, which tables leave out.
OF_WORKER = re.compile(r"worker_\d+/")
_OBJECTIVE = {"metric": ADDED[0], "direction": "maximize"}
_ENTRYPOINT = "train:play"
_PLACE = r"^([a-z][a-z0-9+.-]*://[^\s/]\S*|/\S.*)$"
_SHARE_FAILED = 10  # one unit in so many may fail where the job does not say


def _place(value: str) -> str:
    if not re.fullmatch(_PLACE, value):
        raise ValueError(f"{value!r} is no place; write a URL, s3://bucket/path, or a folder from the root, /data/games")
    return value


class Write(faults.Model):
    """Results as files, where no code of the job reads them."""

    format: Literal["npz", "parquet"] = Field(
        default="npz",
        description="npz: numpy's archives, for arrays of any shape. parquet: tables, with a row for each item.",
    )
    shard: values.Quantity = Field(default="256Mi", description="Size at which a file is full and the next one begins.")
    to: Annotated[str, AfterValidator(_place), Field(json_schema_extra={"pattern": _PLACE})] | None = Field(
        default=None, description="Where they go: a URL, s3://bucket/path, or a folder; else beside the run's checkpoints."
    )

    @property
    def shard_bytes(self) -> int:
        """Size of a file, in bytes."""
        return values.bytes_of(self.shard)


class Collect(faults.Model):
    """How results are made and who reads them."""

    units: values.Integer = Field(gt=0, description="Results of one iteration: games, episodes, documents.")
    iterations: values.Integer = Field(
        default=1, gt=0, description="How often producers and consumer take turns; each has the weights of the one before."
    )
    workers: values.Integer = Field(
        default=1, gt=0, description="Producers at the same time, each in a slot of its own; the consumer has one more."
    )
    consumer: values.Function | None = Field(
        default=None, description="module:function that reads the results and returns weights; or write."
    )
    write: Write | None = Field(default=None, description="Write the results into files; or consumer.")
    in_flight: values.Quantity = Field(
        default="512Mi", description="Bytes on their way from producers to the consumer at most; no result may be larger."
    )
    timeout: values.Duration = Field(
        default=600.0, description="How long a producer may be without a result before it is ended: 600, 10m."
    )
    max_failed: values.Integer | None = Field(
        default=None, ge=0, description="Units of one iteration that may fail before it does; left out: a tenth of them."
    )

    @field_validator("write", mode="after")
    @classmethod
    def _no_other_reader(cls, write: Write | None, info: ValidationInfo) -> Write | None:
        """Told beside whatever else is wrong in the section."""
        consumer = info.data.get("consumer")
        if consumer is not None and write is not None:
            faults.refuse([Fault((), f"stands beside consumer ({consumer}), and one of them takes the results")])
        return write

    @model_validator(mode="after")
    def _a_reader(self) -> Collect:
        if self.consumer is None and self.write is None:
            example = "consumer: train:learn (code that reads them) or write: {format: npz} (files)"
            faults.refuse([Fault((), f"nobody takes the results; write {example}")])
        return self

    @property
    def in_flight_bytes(self) -> int:
        """`in_flight` in bytes."""
        return values.bytes_of(self.in_flight)

    @property
    def most_failed(self) -> int:
        """Units of one iteration that may fail: as the job says, else a tenth of them."""
        return self.units // _SHARE_FAILED if self.max_failed is None else self.max_failed


def filled(data: Any) -> Any:
    """The fields of a job as given, with the defaults that a collection has otherwise than a search.

    A slot's process is one, whatever GPUs it has.
    """
    if not isinstance(data, dict) or data.get("kind") != KIND:
        return data
    collect = data.get("collect")
    iterations = collect.get("iterations", 1) if isinstance(collect, dict) else getattr(collect, "iterations", 1)
    trials = iterations if type(iterations) is int and iterations > 0 else 1  # else it has a complaint of its own
    own = {"entrypoint": _ENTRYPOINT, "objectives": [_OBJECTIVE], "trials": trials, "parallel": 1, "ranks": 1}
    return {**own, **data}


def check(job: Job, broken: bool) -> Iterator[Fault]:
    """What a collection must have, and what it must leave to the other kinds.

    Args:
        job: of any kind.
        broken: whether the field `collect` has a complaint already.
    """
    if not job.is_collection:
        if job.collect is not None:
            yield Fault(("collect",), f"is for kind: collect, and the kind is {job.kind}; drop it")
        return
    if job.collect is None and not broken:
        yield Fault(("collect",), "is missing; write collect: {units: 80, workers: 2, consumer: train:learn}")
    if job.collect is not None and job.collect.consumer == job.entrypoint:
        message = f"is the entrypoint ({job.entrypoint}), which makes the results; name the function that reads them"
        yield Fault(("collect", "consumer"), message)
    for field, why in SEARCH_ONLY.items():
        if field in job.model_fields_set:
            yield Fault((field,), f"is for a search (kind: hpo), and a collection compares no trials: {why}; drop it")
    if job.collect is not None and job.trials != job.collect.iterations:
        yield Fault(("trials",), "are the iterations of a collection; drop it and write collect.iterations")
    if job.parallel != 1:
        yield Fault(("parallel",), "is 1, for iterations come one after another; drop it and write collect.workers")
    for field in ("ranks", "nodes"):
        if getattr(job, field) not in (None, 1):
            yield Fault((field,), "is for trials of several processes; a collection has collect.workers; drop it")
    for field in ("max_failed", "failed_alike"):
        if getattr(job.budget, field) != Budget.model_fields[field].default:
            why = "an iteration needs the weights of the one before, so the first that fails for good ends the run"
            yield Fault(("budget", field), f"{why}; drop it, collect.max_failed says how many units may fail")
