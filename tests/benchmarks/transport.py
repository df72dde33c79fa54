"""How fast results move: packing them, the way from two workers to a learner, and what readers of weights hold.

A result is a game of 200 positions, each a state of 119×8×8 float32 and a mask of 4672 bool: 400 arrays, 7 MB. Peers get the
same arrays. How many games a second a job plays is not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.benchmarks.rows import Goal, Row
from tests.benchmarks.workplace import Workplace

# Way → name of the peer and by how much ours is to be faster.
PEERS = {
    "queue": ("multiprocessing.Queue, arrays", Goal(times=5)),
    "torch": ("torch.multiprocessing queue, tensors", Goal(times=5)),
    "ray": ("Ray, lists of arrays", Goal(times=2)),
    "ray_torch": ("Ray, lists of tensors", Goal(times=2)),
    "memcpy": ("one copy in one process", None),
}


def measure(place: Workplace) -> Iterator[Row]:
    """Packing, moving, weights."""
    yield from _packing(place)
    yield from _moving(place)
    yield from _broadcast(place)


def _packing(place: Workplace) -> Iterator[Row]:
    place.say("transport: packing and unpacking, in turn")
    taken = place.call("packing", {"rounds": place.repeats(40, 3), "positions": place.size(200, 20)}, timeout=300)
    for shape in ("listed", "stacked"):  # at most 1.2 times the peer's time
        what = f"packing and unpacking a game of {shape} arrays"
        peer = f"pickle 5, out of band, and copied: {shape}"
        yield Row(
            "transport",
            what,
            "ms",
            tuple(taken[f"ours_{shape}"]),
            peer,
            tuple(taken[f"pickle_{shape}"]),
            Goal(times=0.83),
        )


def _moving(place: Workplace) -> Iterator[Row]:
    arguments = {"games": place.size(120, 24), "positions": place.size(200, 20)}
    # A quick run needs Ray, and tensors, only once each.
    peers = {way: peer for way, peer in PEERS.items() if way != "ray_torch" or not place.quick}
    seconds: dict[str, list[float]] = {way: [] for way in ("ours", *peers)}
    for number in range(place.repeats(5)):
        place.say(f"transport: moving games, round {number + 1}")
        for way, samples in seconds.items():
            answer: dict[str, Any] = place.call("moving", {**arguments, "way": way}, timeout=300)
            samples.append(1 / answer["gb_per_second"])
    for way, (peer, goal) in peers.items():
        what = "games from two workers to a learner that reads them"
        yield Row("transport", what, "s/GB", tuple(seconds["ours"]), peer, tuple(seconds[way]), goal)


def _broadcast(place: Workplace) -> Iterator[Row]:
    place.say("transport: weights for several readers")
    mib, readers = place.size(256, 8), place.size(8, 2)
    folder = place.scratch / "weights"
    folder.mkdir()
    held = {
        way: place.call("broadcast", {"way": way, "mib": mib, "readers": readers, "folder": str(folder)}, timeout=300)["mib"]
        for way in ("ours", "pickle")
    }
    what = f"memory of {readers} readers of {mib} MiB of weights on a node"
    # The readers' own objects and page tables are in it: an eighth more than one copy is one copy.
    goal, note = Goal(value=mib * 1.125), "beside them the node's object store has one copy, for those that start later"
    words = ("smaller", "larger")
    peer = f"{readers} pickles"
    yield Row("transport", what, "MiB", (held["ours"],), peer, (held["pickle"],), goal, words=words, note=note)
