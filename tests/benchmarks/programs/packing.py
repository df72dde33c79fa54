"""Packing and unpacking a game, in turn with pickle: `packing '{"rounds": 20, "positions": 200}'`.

Both bring a game as a list of arrays, and one of stacked arrays, into a buffer that is there already, and make a tree of
views of it. Pickle does it as well as it can: protocol 5, buffers out of band, which are then copied one after another.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.benchmarks.programs import games

from trialplane.policies import transport


def main() -> None:
    """Prints milliseconds of each round."""
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    taken: dict[str, list[float]] = {}
    for shape in ("listed", "stacked"):
        game = games.game(arguments["positions"], stacked=shape == "stacked")
        buffer = np.zeros(2 * games.size(game) + (1 << 20), dtype=np.uint8)
        for number in range(arguments["rounds"] + 2):
            for name, way in (("ours", ours), ("pickle", pickled), ("copy", copied)):
                milliseconds = 1e3 * timed(way, game, buffer)
                if number >= 2:
                    taken.setdefault(f"{name}_{shape}", []).append(milliseconds)
    print(json.dumps(taken))  # noqa: T201  this is the answer


def timed(way: Callable[[Any, Any], object], game: Any, buffer: Any) -> float:
    """Seconds that one way takes."""
    before = time.perf_counter()
    way(game, buffer)
    return time.perf_counter() - before


def ours(game: Any, buffer: Any) -> Any:
    """By the platform's transport."""
    transport.Packing(game).write(buffer)
    return transport.unpack(buffer)


def pickled(game: Any, buffer: Any) -> Any:
    """By pickle."""
    parts: list[pickle.PickleBuffer] = []
    head = pickle.dumps(game, protocol=5, buffer_callback=parts.append)
    room, views, at = memoryview(buffer), [], 0
    for part in parts:
        raw = part.raw()
        room[at : at + raw.nbytes] = raw
        views.append(room[at : at + raw.nbytes])
        at += raw.nbytes
    return pickle.loads(head, buffers=views)


def copied(game: Any, buffer: Any) -> None:
    """Nothing but a copy of as many bytes, from the buffer's own other half."""
    half = buffer.nbytes // 2
    size = min(games.size(game), half)
    np.copyto(buffer[:size], buffer[half : half + size])


if __name__ == "__main__":
    main()
