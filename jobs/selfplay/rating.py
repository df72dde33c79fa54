"""The gain in strength of new weights: a match with both colours from each opening, and Elo from its score."""

from __future__ import annotations

import math

import encoding
import games
import numpy as np
from search import Search, together

_NORMAL_95 = 1.96
_TEMPERATURE = 0.25


class Pairing:
    """One game between two networks.

    Args:
        p: parameters of the job.
        opening: seed of all chance in it; the first half-moves are nothing else.
        white: which network, 0 or 1, has White.
    """

    def __init__(self, p, opening: int, white: int) -> None:
        self._p, self._white = p, white
        self.line = encoding.Line()
        rng = self._rng = np.random.default_rng(opening)
        self.half_moves = 0
        while self.half_moves < p["match_opening"] and (moves := encoding.legal(self.line.board)[0]):
            self.line.push(moves[rng.integers(len(moves))])
            self.half_moves += 1
        self.searches = [Search(self.line, simulations=p["simulations"], exploration=p["exploration"]) for _ in range(2)]
        self.over = games.ending(self.line, self.half_moves, p)

    @property
    def player(self) -> int:
        """The network that is to move."""
        return self._white if self.line.board.turn else 1 - self._white

    @property
    def points(self) -> float:
        """The points of network 0, once the game is over: 1, 0.5 or 0."""
        outcome = self.over[0]
        return (1 + (outcome if self._white == 0 else -outcome)) / 2

    def move(self) -> None:
        """Make a move of the network that is to move.

        By chance, but the most visited one nearly always where the search is sure. Where it is not, always taking that one
        would have two beginners move their rooks to and fro until the game is a draw by repetition.
        """
        root = self.searches[self.player].root
        move = root.moves[games.choice(root, self._rng, temperature=_TEMPERATURE)]
        self.line.push(move)
        for search in self.searches:
            search.advance(move)
        self.half_moves += 1
        self.over = games.ending(self.line, self.half_moves, self._p)


def match(new, old, p, seed) -> list[float]:
    """The new network's points in each game, two games from each opening.

    Args:
        new: an Evaluator.
        old: another.
        p: parameters of the job.
        seed: a whole number or several, for all chance in the games.
    """
    openings = np.random.SeedSequence(seed).generate_state(math.ceil(p["match_games"] / 2))
    played = [Pairing(p, int(opening), white) for opening in openings for white in (0, 1)]
    while running := [game for game in played if game.over is None]:
        for player, evaluate in enumerate((new, old)):
            together([game.searches[player] for game in running if game.player == player], evaluate)
        for game in running:
            if game.searches[game.player].done:
                game.move()
    return [game.points for game in played]


def elo(points: list[float]) -> tuple[float, float, float]:
    """The difference in Elo that a score means, and its 95 % interval, by the normal approximation.

    A won and a lost game are added: so a match that was won to nil has a number (20 of 20: 529), and one in which all was
    drawn has an interval.
    """
    counted = [*points, 1.0, 0.0]
    mean = sum(counted) / len(counted)
    spread = math.sqrt(sum((point - mean) ** 2 for point in counted)) / len(counted)
    edge = 0.25 / len(counted)

    def difference(score: float) -> float:
        score = min(max(score, edge), 1 - edge)
        return 400 * math.log10(score / (1 - score))

    return difference(mean), difference(mean - _NORMAL_95 * spread), difference(mean + _NORMAL_95 * spread)
