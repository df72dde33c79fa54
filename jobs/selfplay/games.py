"""Play a game of the network against itself, from its seed to its record.

A worker plays many games at the same time. They are independent, but their positions are evaluated together.
"""

from __future__ import annotations

import io

import chess
import chess.pgn
import encoding
import numpy as np
from search import Node, Search

TERMINATIONS = (
    "checkmate",
    "stalemate",
    "insufficient_material",
    "threefold_repetition",
    "fifty_moves",
    "adjudication",
    "move_limit",
)
_WORTH = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}


class Game:
    """A game of self-play.

    Args:
        p: Parameters of the job.
        seed: Seed of all random numbers of the game.

    Attributes:
        search: Search for the next move.
        over: Outcome for White (1, 0, -1) and termination of the game; None while it is played.
    """

    def __init__(self, p, seed: int) -> None:
        self._p, self._rng = p, np.random.default_rng(seed)
        self._line = encoding.Line()
        self.search = Search(
            self._line,
            simulations=p["simulations"],
            exploration=p["exploration"],
            noise=p["noise"],
            dirichlet=p["dirichlet"],
            rng=self._rng,
        )
        self._views: list[encoding.View] = []
        self._actions: list[int] = []
        self._legal: list[np.ndarray] = []
        self._visits: list[np.ndarray] = []
        self._guesses: list[bool] = []
        self.over: tuple[int, str] | None = None

    def move(self) -> None:
        """Make the most visited move. In the first moves of a game, draw one in proportion to its visits instead."""
        root = self.search.root
        is_early = len(self._actions) < self._p["temperature_moves"]
        index = draw_index(root, self._rng) if is_early else int(root.visits.argmax())
        self._views.append(self._line.view())
        self._actions.append(int(root.actions[index]))
        self._legal.append(root.actions)
        self._visits.append(root.visits.astype(np.uint32))
        self._guesses.append(root.guess_is_legal)
        self._line.push(root.moves[index])
        self.search.advance(root.moves[index])
        self.over = ending(self._line, len(self._actions), self._p)

    def record(self) -> dict:
        """Return the record of the game, as in README.md."""
        outcome, termination = self.over
        return {
            "states": encoding.planes(self._views),
            "legal_masks": np.stack([encoding.mask(actions) for actions in self._legal]),
            "actions": np.array(self._actions, dtype=np.int16),
            "visits": np.concatenate(self._visits),
            "outcome": outcome,
            "termination": termination,
            "move_count": len(self._actions),
            "legal_move_rate": float(np.mean(self._guesses)),
        }


def draw_index(root: Node, rng: np.random.Generator, temperature: float = 1.0) -> int:
    """Draw a move by its visits, and return its index. A low temperature prefers the most visited move."""
    weights = (root.visits / root.visits.max()) ** (1 / temperature)
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def ending(line: encoding.Line, half_moves: int, p) -> tuple[int, str] | None:
    """Return the outcome for White and the termination; None if the game goes on.

    Args:
        line: Game.
        half_moves: Number of half-moves that were played.
        p: Parameters of the job.
    """
    board = line.board
    if not any(board.legal_moves):
        return ((-1 if board.turn else 1), "checkmate") if board.is_check() else (0, "stalemate")
    if rule := line.draw_rule():
        return 0, rule
    if half_moves < p["max_half_moves"]:
        return None
    lead = sum(worth * (len(board.pieces(kind, True)) - len(board.pieces(kind, False))) for kind, worth in _WORTH.items())
    if p["adjudicate"] and abs(lead) >= p["adjudicate"]:
        return (1 if lead > 0 else -1), "adjudication"
    return 0, "move_limit"


def board_of(actions) -> chess.Board:
    """Return the final position of a game, with all of its moves."""
    board = chess.Board()
    for action in actions:
        board.push(encoding.move_of(int(action), board))
    return board


def pgn_of(board: chess.Board, outcome: int, termination: str, **headers: str) -> str:
    """Return the game as PGN, the format of chess programs."""
    game = chess.pgn.Game.from_board(board)
    game.headers.update({"Event": "self-play", "White": "network", "Black": "network", **headers})
    game.headers["Result"] = {1: "1-0", 0: "1/2-1/2", -1: "0-1"}[outcome]
    game.headers["Termination"] = termination.replace("_", " ")
    out = io.StringIO()
    print(game, file=out)
    return out.getvalue()
