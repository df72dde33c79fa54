"""The work of a collection as it crosses process boundaries: units that are handed out, and results that are on offer.

Frozen values without behaviour. The arrays of a result never travel with these: an offer says that they are there.
"""

from __future__ import annotations

import dataclasses
import hashlib

_OF_UNITS = 0xC011EC7  # so that no unit has the random numbers of the trial with its number

# What moves with one call, for a call costs as much as some megabytes: results together as far as they stay below both.
TOGETHER_BYTES = 32 << 20
TOGETHER = 64
AT_ONCE = 10_000  # units that one message of a worker or the learner names, which keeps it far below its longest


@dataclasses.dataclass(frozen=True)
class Unit:
    """One piece of work, done by one worker and counted once.

    Attributes:
        number: 0 to iterations × units - 1; unique in the run.
        seed: of everything random in it, so that the same unit gives the same result wherever it is done.
    """

    number: int
    seed: int


@dataclasses.dataclass(frozen=True)
class Offer:
    """A packed result that lies ready in its worker's memory until it is fetched.

    Attributes:
        unit: number of the unit.
        bytes: of the packed result.
        items: what the job counts in it: positions, samples.
        seconds: from when the job had the unit.
    """

    unit: int
    bytes: int
    items: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One result on its way from a worker to the learner; `bytes` and `items` are those of its offer."""

    unit: int
    worker: int
    bytes: int
    items: int


@dataclasses.dataclass(frozen=True)
class WorkerStatus:
    """One worker as the laptop shows it, in the iteration that runs.

    `state` is starting, working, waiting (for units, or for room in the store), failed (and being replaced) or gone;
    `message` says why. `units` and `items` are those that arrived, `failed` units that it could not do, `bytes` of what
    arrived, `seconds` from when its first unit was handed out until now, or until its newest result while it does not work.
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


def seed_of(seed: int, unit: int) -> int:
    """The 32-bit seed of a unit, in a collection seeded with `seed`."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{unit}".encode()).digest()[:4], "little") ^ _OF_UNITS
