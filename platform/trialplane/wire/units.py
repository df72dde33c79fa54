"""The work of a collection as it crosses process boundaries: units for workers, and offers of their results.

Frozen values. They do not contain the arrays of a result: an offer says that a result is ready to be fetched.
"""

from __future__ import annotations

import dataclasses
import hashlib

_SEED_MASK = 0xC011EC7  # gives a unit other random numbers than the trial with the same number

# Limits of a batch. Results are sent in batches, because a call takes as long as sending some megabytes.
BATCH_BYTES = 32 << 20
BATCH_RESULTS = 64
MAX_UNITS = 10_000  # limit of the units in a message of a worker or the learner, to keep it far below `messages.MAX_BYTES`


@dataclasses.dataclass(frozen=True)
class Unit:
    """A piece of work for one worker.

    Attributes:
        number: Number of the unit, from 0 to iterations × units - 1. It is unique in the run.
        seed: Seed of all random numbers of the unit, so that every worker computes the same result.
    """

    number: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Offer:
    """The offer of a packed result, which stays in its worker's memory until it is fetched.

    Attributes:
        unit: Number of the unit.
        bytes: Size of the packed result.
        items: Number of items in it, such as positions or samples, as counted by the job.
        seconds: Time since the job received the unit, in seconds.
    """

    unit: int
    bytes: int
    items: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A result that is sent from a worker to the learner. For `bytes` and `items`, see `Offer`."""

    unit: int
    worker: int
    bytes: int
    items: int


@dataclasses.dataclass(frozen=True)
class WorkerStatus:
    """Status of a worker in the current iteration.

    Attributes:
        worker: Number of the worker.
        state: "starting", "working", "waiting" (for units, or for room in the store), "failed" (it is being replaced), or
            "gone".
        node: Host or pod of the worker.
        units: Number of its units whose results have arrived.
        items: Number of items in these results.
        failed: Number of its units that have failed.
        bytes: Size of the results that have arrived.
        seconds: Time from the start of its first unit until now, in seconds. If it is not working, until its newest result.
        message: Reason for the state, or "".
    """

    worker: int
    state: str
    node: str = ""
    units: int = 0
    items: int = 0
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0
    message: str = ""


def unit_seed(collection_seed: int, unit: int) -> int:
    """Return the 32-bit seed of the unit with this number."""
    digest = hashlib.sha256(f"{collection_seed}:{unit}".encode()).digest()
    return int.from_bytes(digest[:4], "little") ^ _SEED_MASK
