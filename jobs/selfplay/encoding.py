"""Chess positions and moves as AlphaZero's numbers: 119 planes of 8×8 for a position, 4672 = 8×8×73 actions for a move.

Source: D. Silver et al., "A general reinforcement learning algorithm that masters chess, shogi, and Go through self-play",
Science 362 (2018), supplementary tables S1 (planes) and S2 (moves).

All is seen by the side to move ("P1"): for Black the board is flipped, rank 1 ↔ rank 8, so that its pawns too go up. Files
stay, and with them king's and queen's side. A plane is indexed [rank][file], from a1.

| planes | what |
|---|---|
| 14·t … 14·t+5 | P1's pawns, knights, bishops, rooks, queens, king, t half-moves ago, t = 0 … 7 |
| 14·t+6 … 14·t+11 | P2's |
| 14·t+12, 14·t+13 | the position of then had been on the board at least once, at least twice before |
| 112 | 1 when P1 is White |
| 113 | number of the move, over 100 |
| 114, 115 | P1 may castle on the king's, on the queen's side |
| 116, 117 | the same for P2 |
| 118 | half-moves since a capture or a pawn's move, over 100 |

The paper leaves the scale of the two counts open; over 100 they are as large as the other planes. Positions before the
game's first are planes of zeros.

An action is square · 73 + kind, the square being where the piece comes from: kinds 0–55 are queen's moves (8 directions,
clockwise from north, × 1–7 squares; a pawn that gets to the last rank so becomes a queen), 56–63 knight's moves, 64–72
promotions to knight, bishop or rook (straight on, capturing towards the h-file, towards the a-file).
"""

from __future__ import annotations

from typing import NamedTuple

import chess
import numpy as np

HISTORY = 8
PLANES = 14 * HISTORY + 7
KINDS = 73
ACTIONS = 64 * KINDS
COUNTS = (113, 118)  # the two planes that are not of zeros and ones
SCALE = 100  # of them

_NORTH_CLOCKWISE = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))  # files, ranks
_KNIGHT = ((1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2))
_UNDER = (chess.KNIGHT, chess.BISHOP, chess.ROOK)
_BLACK = 56  # square ^ 56 is the square that a flip of the ranks puts there


def _kinds() -> tuple[dict[tuple[int, int, int], int], list[tuple[int, int, int]]]:
    """(from, to, promotion to less than a queen or 0) → action, and what each action is; unused ones are (0, 0, 0)."""
    steps = [(files * far, ranks * far, 0) for files, ranks in _NORTH_CLOCKWISE for far in range(1, 8)]
    steps += [(files, ranks, 0) for files, ranks in _KNIGHT]
    steps += [(files, 1, piece) for files in (0, 1, -1) for piece in _UNDER]
    number: dict[tuple[int, int, int], int] = {}
    meaning = [(0, 0, 0)] * ACTIONS
    for source in range(64):
        for kind, (files, ranks, piece) in enumerate(steps):
            file, rank = source % 8 + files, source // 8 + ranks
            if 0 <= file < 8 and 0 <= rank < 8 and not (piece and rank != 7):
                meaning[source * KINDS + kind] = (source, rank * 8 + file, piece)
                number[meaning[source * KINDS + kind]] = source * KINDS + kind
    return number, meaning


_NUMBER, _MEANING = _kinds()


def action_of(move: chess.Move, turn: chess.Color) -> int:
    """The action that a move is to the side that makes it."""
    flip = 0 if turn else _BLACK
    promotion = move.promotion or 0
    return _NUMBER[move.from_square ^ flip, move.to_square ^ flip, 0 if promotion == chess.QUEEN else promotion]


def move_of(action: int, board: chess.Board) -> chess.Move:
    """The move that an action is on a board; of an action that is not legal there, something that is not legal either."""
    source, target, promotion = _MEANING[action]
    if not promotion and target >= 56 and board.piece_type_at(source ^ (0 if board.turn else _BLACK)) == chess.PAWN:
        promotion = chess.QUEEN
    flip = 0 if board.turn else _BLACK
    return chess.Move(source ^ flip, target ^ flip, promotion or None)


def legal(board: chess.Board) -> tuple[list[chess.Move], np.ndarray]:
    """The legal moves and their actions, in the order of the actions."""
    turn = board.turn
    moves = sorted((action_of(move, turn), move) for move in board.legal_moves)
    return [move for _, move in moves], np.array([action for action, _ in moves], dtype=np.int64)


def mask(actions: np.ndarray) -> np.ndarray:
    """The actions as 4672 bools."""
    flags = np.zeros(ACTIONS, dtype=bool)
    flags[actions] = True
    return flags


class Position(NamedTuple):
    """The part of a position that is encoded in the planes of later ones.

    Attributes:
        pieces: a bit board for each plane, White's six and Black's six, uint64.
        before: how often it had been on the board before.
    """

    pieces: np.ndarray
    before: int


class View(NamedTuple):
    """Everything that the planes of one position encode.

    Attributes:
        history: the positions up to this one, the newest first, at most 8.
        turn: True when White is to move.
        number: of the move, from 1.
        castling: White's king's and queen's side, Black's king's and queen's side.
        quiet: half-moves since a capture or a pawn's move.
    """

    history: tuple[Position, ...]
    turn: bool
    number: int
    castling: tuple[bool, bool, bool, bool]
    quiet: int


class Line:
    """A game as far as it is played, with the positions that the planes and the rule of repetition need.

    Attributes:
        board: the position at the end. `push` and `pop` of this class, not its own, change it.
    """

    def __init__(self, board: chess.Board | None = None) -> None:
        self.board = chess.Board() if board is None else board
        self._positions: list[Position] = []
        self._keys: list[tuple] = []
        self._occurrences: dict[tuple, int] = {}
        self._note()

    def push(self, move: chess.Move) -> None:
        """Make a move."""
        self.board.push(move)
        self._note()

    def pop(self) -> None:
        """Take the last move back."""
        self.board.pop()
        self._positions.pop()
        self._occurrences[self._keys.pop()] -= 1

    def view(self) -> View:
        """The input of the network."""
        board = self.board
        castling = tuple(
            bool(right(color))
            for color in chess.COLORS
            for right in (board.has_kingside_castling_rights, board.has_queenside_castling_rights)
        )
        return View(
            tuple(self._positions[: -HISTORY - 1 : -1]), board.turn, board.fullmove_number, castling, board.halfmove_clock
        )

    def drawn(self) -> str | None:
        """The rule by which this position is a draw although there may be moves; None when there is none."""
        if self._positions[-1].before >= 2:
            return "threefold_repetition"
        if self.board.halfmove_clock >= 100:
            return "fifty_moves"
        return "insufficient_material" if self.board.is_insufficient_material() else None

    def _note(self) -> None:
        board = self.board
        kinds = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings)
        bits = tuple(kind & board.occupied_co[color] for color in chess.COLORS for kind in kinds)
        # By the rules, positions are the same if the same moves are possible, including castling and en passant.
        passant = board.ep_square if board.ep_square is not None and board.has_legal_en_passant() else None
        key = (bits, board.turn, board.clean_castling_rights(), passant)
        before = self._occurrences.get(key, 0)
        self._occurrences[key] = before + 1
        self._keys.append(key)
        self._positions.append(Position(np.array(bits, dtype=np.uint64), before))


def planes(views: list[View]) -> np.ndarray:
    """The planes of some positions, float32 of shape (positions, 119, 8, 8)."""
    pieces = np.zeros((len(views), HISTORY, 12), dtype=np.uint64)
    filled = np.zeros((len(views), PLANES, 8, 8), dtype=np.float32)
    steps = filled[:, : 14 * HISTORY].reshape(len(views), HISTORY, 14, 8, 8)
    for row, view in enumerate(views):
        for step, position in enumerate(view.history):
            pieces[row, step] = position.pieces
            for times in range(min(position.before, 2)):
                steps[row, step, 12 + times] = 1
        castling = view.castling if view.turn else view.castling[2:] + view.castling[:2]
        filled[row, 112] = view.turn
        filled[row, 113] = view.number / SCALE
        filled[row, 114:118] = np.array(castling)[:, None, None]
        filled[row, 118] = view.quiet / SCALE
    black = np.array([not view.turn for view in views], dtype=bool)
    # A rank is a byte, so the other order of bytes is the board flipped.
    pieces[black] = np.roll(pieces[black], 6, axis=2).byteswap()
    bits = np.unpackbits(pieces.astype("<u8", copy=False).view(np.uint8), bitorder="little", axis=-1)
    steps[:, :, :12] = bits.reshape(len(views), HISTORY, 12, 8, 8)
    return filled
