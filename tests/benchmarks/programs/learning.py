"""Some iterations of the job `selfplay` in one process, then a match of what it learned against what it began with.

Games and learning are the job's own `play(ctx)` and `learn(ctx, results)`; there are no slots and no controller.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.jobs.playing import Playing, module, units


def main() -> None:
    """Learns, plays and prints the answer."""
    arguments = json.loads(sys.argv[1])
    games, params = arguments["games"], arguments["params"]
    network, rating = module("network"), module("rating")
    playing = Playing(Path(arguments["folder"]))
    weights = state = None
    for iteration in range(arguments["iterations"]):
        results = playing.play(units(games, first=games * iteration), weights, **params)
        learned = playing.learn(list(results.values()), weights, state, iteration, **params, match_games=2, pictures=0)
        weights, state = learned["weights"], learned["state"]
    params = playing.params | params | arguments["match"]
    trained, untrained = (network.Evaluator(network.build(params, tree), params["batch"]) for tree in (weights, None))
    points = rating.play_match(trained, untrained, params, arguments["seed"])
    elo, low, high = rating.elo(points)
    answer = {"elo": elo, "low": low, "high": high, "points": sum(points), "games": len(points)}
    print(json.dumps(answer))  # noqa: T201  the answer


if __name__ == "__main__":
    main()
