"""The gain in strength of new weights: a match with both colors from each opening, and the Elo of its score."""

from __future__ import annotations

import math

import encoding
import games
import numpy as np
from search import Search, simulate_all

_NORMAL_95 = 1.96  # standard errors on each side of a 95 % interval
_TEMPERATURE = 0.25  # of the drawn moves; see `games.draw_index`


class Pairing:
    """A game between two networks.

    Args:
        p: Parameters of the job.
        opening: Seed of all random numbers of the game. Its first half-moves are random.
        white: Number of the network with White, 0 or 1.
    """

    def __init__(self, p, opening: int, white: int) -> None:
        self._p, self._white = p, white
        self.line = encoding.Line()
        rng = self._rng = np.random.default_rng(opening)
        self.half_moves = 0
        while self.half_moves < p["match_opening"] and (moves := encoding.legal_moves(self.line.board)[0]):
            self.line.push(moves[rng.integers(len(moves))])
            self.half_moves += 1
        self.searches = [Search(self.line, simulations=p["simulations"], exploration=p["exploration"]) for _ in range(2)]
        self.over = games.ending(self.line, self.half_moves, p)

    @property
    def player(self) -> int:
        """The number of the network that is to move."""
        return self._white if self.line.board.turn else 1 - self._white

    @property
    def points(self) -> float:
        """The points of network 0 after the end of the game: 1, 0.5 or 0."""
        outcome = self.over[0]
        return (1 + (outcome if self._white == 0 else -outcome)) / 2

    def move(self) -> None:
        """Make a move of the network that is to move.

        The move is drawn, but it is nearly always the most visited one if the search is sure. If the most visited move were
        always made, two beginners would move their rooks to and fro until the game is a draw by repetition.
        """
        root = self.searches[self.player].root
        move = root.moves[games.draw_index(root, self._rng, temperature=_TEMPERATURE)]
        self.line.push(move)
        for search in self.searches:
            search.advance(move)
        self.half_moves += 1
        self.over = games.ending(self.line, self.half_moves, self._p)


def play_match(new, old, p, seed) -> list[float]:
    """Play a match; return the points of the new network in each game. Each opening is played with both colors.

    Args:
        new: Evaluator of the new network.
        old: Evaluator of the old network.
        p: Parameters of the job.
        seed: Seed of all random numbers, one integer or several.
    """
    openings = np.random.SeedSequence(seed).generate_state(math.ceil(p["match_games"] / 2))
    pairings = [Pairing(p, int(opening), white) for opening in openings for white in (0, 1)]
    while running := [game for game in pairings if game.over is None]:
        for player, evaluate in enumerate((new, old)):
            simulate_all([game.searches[player] for game in running if game.player == player], evaluate)
        for game in running:
            if game.searches[game.player].done:
                game.move()
    return [game.points for game in pairings]


def elo(points: list[float]) -> tuple[float, float, float]:
    """Return the difference in Elo of a score, and its 95 % interval by the normal approximation.

    A won and a lost game are added. So a match that was won completely has a finite number (20 of 20: 529), and a match with
    only draws has an interval.
    """
    all_points = [*points, 1.0, 0.0]
    mean = sum(all_points) / len(all_points)
    standard_error = math.sqrt(sum((point - mean) ** 2 for point in all_points)) / len(all_points)
    limit = 0.25 / len(all_points)

    def difference(score: float) -> float:
        score = min(max(score, limit), 1 - limit)
        return 400 * math.log10(score / (1 - score))

    return difference(mean), difference(mean - _NORMAL_95 * standard_error), difference(mean + _NORMAL_95 * standard_error)
