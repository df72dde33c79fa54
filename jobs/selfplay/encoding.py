"""Chess positions and moves as AlphaZero's numbers: 119 planes of 8×8 for a position, 4672 = 8×8×73 actions for a move.

Source: D. Silver et al., "A general reinforcement learning algorithm that masters chess, shogi, and Go through self-play",
Science 362 (2018), supplementary tables S1 (planes) and S2 (moves).

The planes show the view of the side to move ("P1"). For Black the ranks are flipped, rank 1 ↔ rank 8, so that its pawns go
up, too. Files, and so king's and queen's side, stay. A plane is indexed [rank][file], from a1.

| planes | content |
|---|---|
| 14·t … 14·t+5 | P1's pawns, knights, bishops, rooks, queens, king, t half-moves ago, t = 0 … 7 |
| 14·t+6 … 14·t+11 | the same for P2 |
| 14·t+12, 14·t+13 | 1 if that position had been on the board at least once, at least twice before |
| 112 | 1 when P1 is White |
| 113 | number of the move, over 100 |
| 114, 115 | 1 if P1 may castle on the king's, on the queen's side |
| 116, 117 | the same for P2 |
| 118 | half-moves since a capture or a pawn's move, over 100 |

The paper does not define the scale of the two counts. Divided by 100, they are as large as the other planes. Before the
first position of a game, planes are zeros.

An action is square · 73 + kind, where the square is that of the piece before the move. Kinds 0–55 are queen's moves (8
directions, clockwise from north, × 1–7 squares; a pawn on the last rank becomes a queen), 56–63 are knight's moves, and
64–72 are promotions to knight, bishop or rook (straight, capturing towards the h-file, capturing towards the a-file).
"""

from __future__ import annotations

from typing import NamedTuple

import chess
import numpy as np

HISTORY = 8
PLANES = 14 * HISTORY + 7
KINDS = 73
ACTIONS = 64 * KINDS
COUNTS = (113, 118)  # the two planes with other values than 0 and 1
SCALE = 100  # by which these values are divided

_NORTH_CLOCKWISE = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))  # files, ranks
_KNIGHT = ((1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2))
_UNDER = (chess.KNIGHT, chess.BISHOP, chess.ROOK)
_BLACK = 56  # square ^ 56 is the square after a flip of the ranks
_LAST_RANK = 56  # first square of the last rank


def _tables() -> tuple[dict[tuple[int, int, int], int], list[tuple[int, int, int]]]:
    """Return the action of each (from, to, promotion), and the (from, to, promotion) of each action, (0, 0, 0) if unused.

    The promotion is 0 unless it is to knight, bishop or rook.
    """
    # The files, ranks and promotion of each kind of move, in the order of the kinds.
    steps = [(files * distance, ranks * distance, 0) for files, ranks in _NORTH_CLOCKWISE for distance in range(1, 8)]
    steps += [(files, ranks, 0) for files, ranks in _KNIGHT]
    steps += [(files, 1, piece) for files in (0, 1, -1) for piece in _UNDER]
    action_of_move: dict[tuple[int, int, int], int] = {}
    moves = [(0, 0, 0)] * ACTIONS
    for source in range(64):
        for kind, (files, ranks, piece) in enumerate(steps):
            file, rank = source % 8 + files, source // 8 + ranks
            if 0 <= file < 8 and 0 <= rank < 8 and not (piece and rank != 7):
                action, move = source * KINDS + kind, (source, rank * 8 + file, piece)
                moves[action] = move
                action_of_move[move] = action
    return action_of_move, moves


_ACTION_OF_MOVE, _MOVE_OF_ACTION = _tables()


def action_of(move: chess.Move, turn: chess.Color) -> int:
    """Return the action of a move, from the view of the side that makes it."""
    flip = 0 if turn else _BLACK
    promotion = move.promotion or 0
    return _ACTION_OF_MOVE[move.from_square ^ flip, move.to_square ^ flip, 0 if promotion == chess.QUEEN else promotion]


def move_of(action: int, board: chess.Board) -> chess.Move:
    """Return the move of an action on a board. An illegal action gives an illegal move."""
    source, target, promotion = _MOVE_OF_ACTION[action]
    flip = 0 if board.turn else _BLACK
    is_pawn = board.piece_type_at(source ^ flip) == chess.PAWN
    if is_pawn and target >= _LAST_RANK and not promotion:
        promotion = chess.QUEEN
    return chess.Move(source ^ flip, target ^ flip, promotion or None)


def legal_moves(board: chess.Board) -> tuple[list[chess.Move], np.ndarray]:
    """Return the legal moves and their actions, in the order of the actions."""
    turn = board.turn
    moves = sorted((action_of(move, turn), move) for move in board.legal_moves)
    return [move for _, move in moves], np.array([action for action, _ in moves], dtype=np.int64)


def mask(actions: np.ndarray) -> np.ndarray:
    """Return actions as an array of 4672 bools."""
    flags = np.zeros(ACTIONS, dtype=bool)
    flags[actions] = True
    return flags


class Position(NamedTuple):
    """A position, as far as the planes of later positions encode it.

    Attributes:
        pieces: A bit board for each plane, six of White and six of Black, uint64.
        before: Number of times that the position had been on the board before.
    """

    pieces: np.ndarray
    before: int


class View(NamedTuple):
    """The input of the planes of one position.

    Attributes:
        history: Positions up to this one, newest first, at most 8.
        turn: Whether White is to move.
        number: Number of the move, from 1.
        castling: Castling rights: White's king's and queen's side, Black's king's and queen's side.
        quiet: Number of half-moves since a capture or a pawn's move.
    """

    history: tuple[Position, ...]
    turn: bool
    number: int
    castling: tuple[bool, bool, bool, bool]
    quiet: int


class Line:
    """A game up to now, with the positions that the planes and the rule of repetition need.

    Attributes:
        board: Current position. Only `push` and `pop` of this class may change it.
    """

    def __init__(self, board: chess.Board | None = None) -> None:
        self.board = chess.Board() if board is None else board
        self._positions: list[Position] = []
        self._keys: list[tuple] = []
        self._occurrences: dict[tuple, int] = {}
        self._record_position()

    def push(self, move: chess.Move) -> None:
        """Make a move."""
        self.board.push(move)
        self._record_position()

    def pop(self) -> None:
        """Undo the last move."""
        self.board.pop()
        self._positions.pop()
        self._occurrences[self._keys.pop()] -= 1

    def view(self) -> View:
        """Return the input of the network."""
        board = self.board
        castling = tuple(
            bool(right(color))
            for color in chess.COLORS
            for right in (board.has_kingside_castling_rights, board.has_queenside_castling_rights)
        )
        return View(
            tuple(self._positions[: -HISTORY - 1 : -1]), board.turn, board.fullmove_number, castling, board.halfmove_clock
        )

    def draw_rule(self) -> str | None:
        """Return the rule by which this position is a draw, although there may be moves; None without such a rule."""
        if self._positions[-1].before >= 2:
            return "threefold_repetition"
        if self.board.halfmove_clock >= 100:
            return "fifty_moves"
        return "insufficient_material" if self.board.is_insufficient_material() else None

    def _record_position(self) -> None:
        """Record the current position, and count its occurrences."""
        board = self.board
        kinds = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings)
        bits = tuple(kind & board.occupied_co[color] for color in chess.COLORS for kind in kinds)
        # By the rules, positions are the same only if the same moves are possible, including castling and en passant.
        passant = board.ep_square if board.ep_square is not None and board.has_legal_en_passant() else None
        key = (bits, board.turn, board.clean_castling_rights(), passant)
        before = self._occurrences.get(key, 0)
        self._occurrences[key] = before + 1
        self._keys.append(key)
        self._positions.append(Position(np.array(bits, dtype=np.uint64), before))


def planes(views: list[View]) -> np.ndarray:
    """Return the planes of positions, float32 of shape (positions, 119, 8, 8)."""
    pieces = np.zeros((len(views), HISTORY, 12), dtype=np.uint64)
    result = np.zeros((len(views), PLANES, 8, 8), dtype=np.float32)
    steps = result[:, : 14 * HISTORY].reshape(len(views), HISTORY, 14, 8, 8)
    for row, view in enumerate(views):
        for step, position in enumerate(view.history):
            pieces[row, step] = position.pieces
            for times in range(min(position.before, 2)):
                steps[row, step, 12 + times] = 1
        castling = view.castling if view.turn else view.castling[2:] + view.castling[:2]
        result[row, 112] = view.turn
        result[row, 113] = view.number / SCALE
        result[row, 114:118] = np.array(castling)[:, None, None]
        result[row, 118] = view.quiet / SCALE
    black = np.array([not view.turn for view in views], dtype=bool)
    # A rank is one byte, so reversing the bytes flips the board.
    pieces[black] = np.roll(pieces[black], 6, axis=2).byteswap()
    bits = np.unpackbits(pieces.astype("<u8", copy=False).view(np.uint8), bitorder="little", axis=-1)
    steps[:, :, :12] = bits.reshape(len(views), HISTORY, 12, 8, 8)
    return result
