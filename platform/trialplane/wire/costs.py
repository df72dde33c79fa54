"""Hours of slots, GPUs and cores that the attempts of a run have used, and their price. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trialplane import errors
from trialplane.wire import env

if TYPE_CHECKING:  # only a type here: this module must not import pydantic
    from trialplane.job.kinds import Job

_HOUR = 3600.0


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices of an hour of one GPU and of one CPU core, in any currency. 0 if it is free or unknown."""

    gpu_hour: float = 0.0
    cpu_hour: float = 0.0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Prices:
        """Return the prices in the environment.

        Raises:
            InputError: One of them is not a number, is negative or infinite.
        """
        return cls(gpu_hour=_price(environ, env.GPU_PRICE), cpu_hour=_price(environ, env.CPU_PRICE))

    def with_overrides(self, gpu_hour: float | None, cpu_hour: float | None) -> Prices:
        """Return the prices with other values for those arguments that are not None."""
        return Prices(self.gpu_hour if gpu_hour is None else gpu_hour, self.cpu_hour if cpu_hour is None else cpu_hour)

    @property
    def are_known(self) -> bool:
        """Whether anything has a price."""
        return bool(self.gpu_hour or self.cpu_hour)


@dataclasses.dataclass(frozen=True)
class Busy:
    """The time for which attempts have run.

    Attributes:
        seconds: Sum of their durations.
        worker_seconds: Sum of the durations of their workers: 240 for an attempt of one minute with four workers.
    """

    seconds: float = 0.0
    worker_seconds: float = 0.0

    def __add__(self, other: Busy) -> Busy:
        """Return the time of the attempts of both."""
        return Busy(self.seconds + other.seconds, self.worker_seconds + other.worker_seconds)


@dataclasses.dataclass(frozen=True)
class Demand:
    """Slots, GPUs and CPU cores that one attempt uses, of all its nodes."""

    slots: int = 1
    gpus: float = 0.0
    cpus: float = 1.0

    @classmethod
    def of(cls, job: Job) -> Demand:
        """Return the demand of an attempt at a trial, a training, or an iteration.

        An iteration uses the pods of all workers and of the learner, any other attempt the nodes of one trial.
        """
        roles = job.roles()
        is_collection = len(roles) > 1
        pods_of_roles = [(role, role.pods if is_collection else role.nodes) for role in roles]
        return cls(
            slots=sum(pods for _, pods in pods_of_roles),
            gpus=sum(pods * role.resources.gpus for role, pods in pods_of_roles),
            cpus=sum(pods * role.resources.cpus for role, pods in pods_of_roles),
        )

    def has_price(self, prices: Prices) -> bool:
        """Whether the prices suffice for a budget: the price of a GPU if an attempt uses GPUs, otherwise that of a core."""
        return (prices.gpu_hour if self.gpus else prices.cpu_hour) > 0


@dataclasses.dataclass(frozen=True)
class JobDemand:
    """The demand of an attempt in two parts, because the number of a collection's workers may change during a run.

    Attributes:
        attempt: Demand of an attempt without the workers of a collection.
        worker: Demand of one such worker. All numbers are 0 for other jobs.
    """

    attempt: Demand
    worker: Demand

    @classmethod
    def of(cls, job: Job) -> JobDemand:
        """Return the demand of a job's attempts."""
        # For a collection, the width is the number of workers. For other jobs, it does not affect the demand of an attempt.
        without_workers = Demand.of(job.widened(0))
        with_one_worker = Demand.of(job.widened(1))
        worker = Demand(
            slots=with_one_worker.slots - without_workers.slots,
            gpus=with_one_worker.gpus - without_workers.gpus,
            cpus=with_one_worker.cpus - without_workers.cpus,
        )
        return cls(attempt=without_workers, worker=worker)


@dataclasses.dataclass(frozen=True)
class Usage:
    """Hours of slots, GPUs and CPU cores, and their cost; None without prices."""

    slot_hours: float = 0.0
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    cost: float | None = None

    @classmethod
    def of(cls, busy: Busy, demand: JobDemand, prices: Prices) -> Usage:
        """Return the usage of all attempts of a run, which have run for the time in `busy`."""
        attempt, worker = demand.attempt, demand.worker
        slot_hours = (attempt.slots * busy.seconds + worker.slots * busy.worker_seconds) / _HOUR
        gpu_hours = (attempt.gpus * busy.seconds + worker.gpus * busy.worker_seconds) / _HOUR
        cpu_hours = (attempt.cpus * busy.seconds + worker.cpus * busy.worker_seconds) / _HOUR
        cost = gpu_hours * prices.gpu_hour + cpu_hours * prices.cpu_hour
        return cls(slot_hours=slot_hours, gpu_hours=gpu_hours, cpu_hours=cpu_hours, cost=cost if prices.are_known else None)


def _price(environ: Mapping[str, str], name: str) -> float:
    """Return the price in an environment variable. 0 if the variable is missing or empty.

    Raises:
        InputError: The value is not a number, is negative or infinite.
    """
    text = environ.get(name, "").strip()
    try:
        price = float(text or 0)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise errors.InputError(f"{name} must be the price of an hour, for example 2.5, not {text!r}")
    return price
