"""Chess in the job `selfplay`: planes and actions against hand-made positions and against the `chess` package's rules.

Positions come from random games (hypothesis picks their seeds). Not checked: the rules themselves, which are the package's.
"""

from __future__ import annotations

import chess
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.jobs.playing import module

encoding, games = module("encoding"), module("games")

# Positions with what random games seldom have: promotions of all kinds for both, en passant, castling both ways.
RARE = (
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N w - - 0 1",
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1",
    "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1",
    "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1",
    "8/8/8/2k5/3Pp3/8/8/4K3 b - d3 0 1",
    "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1",
    "8/8/8/8/3Q4/8/8/k1K5 w - - 0 1",
)


def wander(seed, half_moves):
    """A line of random moves."""
    rng, line = np.random.default_rng(seed), encoding.Line()
    for _ in range(half_moves):
        moves = list(line.board.legal_moves)
        if not moves:
            break
        line.push(moves[rng.integers(len(moves))])
    return line


def line_of(*moves, fen=chess.STARTING_FEN):
    line = encoding.Line(chess.Board(fen))
    for move in moves:
        line.push(line.board.parse_san(move))
    return line


def seen(line):
    return encoding.planes([line.view()])[0]


def squares(plane):
    """The squares that a plane marks, as the side to move names them."""
    assert set(np.unique(plane)) <= {0, 1}
    return {chess.square_name(int(square)) for square in np.flatnonzero(plane)}


def check_actions(board):
    moves, actions = encoding.legal_moves(board)
    assert set(moves) == set(board.legal_moves)
    assert len(moves) == len(actions) == len(set(actions.tolist()))
    assert (np.diff(actions) > 0).all()
    assert ((actions >= 0) & (actions < encoding.ACTIONS)).all()
    assert [encoding.move_of(int(action), board) for action in actions] == moves
    flags = encoding.mask(actions)
    assert flags.shape == (4672,)
    allowed = {encoding.move_of(action, board) for action in range(encoding.ACTIONS) if flags[action]}
    assert allowed == set(board.legal_moves)


# -- actions


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 150))
def test_legal_moves_are_actions_and_back(seed, half_moves):
    check_actions(wander(seed, half_moves).board)


@pytest.mark.parametrize("fen", RARE)
def test_rare_moves_are_actions_and_back(fen):
    check_actions(chess.Board(fen))


@pytest.mark.parametrize("fen", [chess.STARTING_FEN, *RARE])
def test_no_action_that_the_mask_leaves_out_is_legal(fen):
    board = chess.Board(fen)
    flags = encoding.mask(encoding.legal_moves(board)[1])
    # The package also takes "king takes rook" for castling, so what a move is in its own words counts.
    moves = set(board.legal_moves)
    legal = [action for action in range(encoding.ACTIONS) if encoding.move_of(action, board) in moves]
    assert legal == np.flatnonzero(flags).tolist()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 80))
def test_an_action_is_the_same_for_both_sides(seed, half_moves):
    board = wander(seed, half_moves).board
    assert encoding.legal_moves(board)[1].tolist() == encoding.legal_moves(board.mirror())[1].tolist()


@pytest.mark.parametrize(
    ("fen", "move", "source", "kind"),
    [
        (chess.STARTING_FEN, "e2e4", "e2", 1),  # north, 2
        (chess.STARTING_FEN, "g1f3", "g1", 63),  # the knight's last: one left, two up
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "e1g1", "e1", 2 * 7 + 1),  # east, 2
        ("4k3/8/8/8/3B4/8/8/4K3 w - - 0 1", "d4a1", "d4", 5 * 7 + 2),  # south-west, 3
        ("4k3/P7/8/8/8/8/8/4K3 w - - 0 1", "a7a8q", "a7", 0),  # north, 1
        ("4k3/P7/8/8/8/8/8/4K3 w - - 0 1", "a7a8n", "a7", 64),
        ("1n2k3/P7/8/8/8/8/8/4K3 w - - 0 1", "a7b8r", "a7", 69),
        ("4k3/8/8/8/8/8/1p6/N3K3 b - - 0 1", "b2a1b", "b7", 71),  # as Black sees it, from b7 to a8
        ("4k3/8/8/8/8/8/8/4K3 b - - 0 1", "e8e7", "e1", 0),
    ],
)
def test_an_action_is_where_from_and_how(fen, move, source, kind):
    board = chess.Board(fen)
    action = encoding.action_of(chess.Move.from_uci(move), board.turn)
    assert action == chess.parse_square(source) * 73 + kind
    assert encoding.move_of(action, board) == chess.Move.from_uci(move)


# -- planes


def test_the_planes_of_the_first_position():
    planes = seen(line_of())
    assert planes.shape == (119, 8, 8)
    assert planes.dtype == np.float32
    assert squares(planes[0]) == {f"{file}2" for file in "abcdefgh"}
    assert squares(planes[1]) == {"b1", "g1"}
    assert squares(planes[4]) == {"d1"}
    assert squares(planes[5]) == {"e1"}
    assert squares(planes[6]) == {f"{file}7" for file in "abcdefgh"}
    assert squares(planes[11]) == {"e8"}
    assert not planes[12:112].any()  # neither repetition nor history
    assert (planes[112] == 1).all()
    assert np.allclose(planes[113], 0.01)
    assert (planes[114:118] == 1).all()
    assert not planes[118].any()


def test_black_sees_its_own_side_below():
    planes = seen(line_of("e4"))
    assert squares(planes[5]) == {"e1"}  # its king, from e8
    assert squares(planes[4]) == {"d1"}
    assert squares(planes[6]) == {*(f"{file}7" for file in "abcdfgh"), "e5"}  # the pawn on e4
    assert squares(planes[14 + 6]) == {f"{file}7" for file in "abcdefgh"}  # and a half-move ago, seen by the same side
    assert not planes[112].any()


def test_history_goes_back_eight_positions():
    moves = ("e4", "e5", "Nf3", "Nc6", "Bb5", "a6", "Ba4", "Nf6", "O-O")
    planes = seen(line_of(*moves))
    for ago in range(8):
        then = encoding.planes([line_of(*moves[: len(moves) - ago]).view()])[0]
        if ago % 2:  # the other side was to move then
            then[:14] = np.concatenate([then[6:12, ::-1], then[:6, ::-1], then[12:14]])
        assert np.array_equal(planes[14 * ago : 14 * ago + 14], then[:14])
    assert (planes[114:118, 0, 0] == [1, 1, 0, 0]).all()  # Black to move, White has castled


def test_castling_rights_are_those_of_each_side():
    assert (seen(line_of(fen="r3k2r/8/8/8/8/8/8/R3K2R w Kq - 0 1"))[114:118, 3, 3] == [1, 0, 0, 1]).all()
    assert (seen(line_of(fen="r3k2r/8/8/8/8/8/8/R3K2R b Kq - 0 1"))[114:118, 3, 3] == [0, 1, 1, 0]).all()


def test_repetitions_and_quiet_moves_are_counted():
    there_and_back = ("Nf3", "Nf6", "Ng1", "Ng8")
    once, twice = line_of(*there_and_back), line_of(*there_and_back, *there_and_back)
    assert (seen(once)[12] == 1).all()
    assert not seen(once)[13].any()
    assert not seen(once)[14 + 12].any()  # a half-move ago it was new
    assert (seen(twice)[12:14] == 1).all()
    assert (seen(twice)[4 * 14 + 12] == 1).all()
    assert np.allclose(seen(twice)[118], 0.08)
    assert np.allclose(seen(twice)[113], 0.05)
    assert once.draw_rule() is None
    assert twice.draw_rule() == "threefold_repetition"


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 120))
def test_the_planes_show_all_pieces_from_either_side(seed, half_moves):
    line = wander(seed, half_moves)
    planes, board = seen(line), line.board if line.board.turn else line.board.mirror()
    for kind in chess.PIECE_TYPES:
        for color in chess.COLORS:
            found = squares(planes[kind - 1 + (0 if color else 6)])
            assert found == {chess.square_name(square) for square in board.pieces(kind, color)}


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 150))
def test_repetitions_are_those_of_the_rules(seed, half_moves):
    line = encoding.Line(chess.Board("8/8/8/3k4/8/3K4/8/8 w - - 0 1"))  # where random moves repeat
    rng = np.random.default_rng(seed)
    for _ in range(half_moves):
        moves = list(line.board.legal_moves)
        line.push(moves[rng.integers(len(moves))])
        assert (seen(line)[12, 0, 0], seen(line)[13, 0, 0]) == (line.board.is_repetition(2), line.board.is_repetition(3))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(1, 10))
def test_a_move_taken_back_leaves_no_trace(seed, half_moves, more):
    line, other = wander(seed, half_moves), wander(seed, half_moves)
    rng = np.random.default_rng(seed + 1)
    made = 0
    for _ in range(more):
        moves = list(other.board.legal_moves)
        if moves:
            other.push(moves[rng.integers(len(moves))])
            made += 1
    for _ in range(made):
        other.pop()
    assert np.array_equal(seen(line), seen(other))
    assert line.draw_rule() == other.draw_rule()


# -- how games end


@pytest.mark.parametrize(
    ("fen", "half_moves", "ending"),
    [
        ("3k4/8/8/8/8/8/8/4K2R w K - 0 1", 10, None),
        ("R3k3/8/4K3/8/8/8/8/8 b - - 0 1", 10, (1, "checkmate")),
        ("4k3/8/8/8/8/6b1/5q2/r3K3 w - - 0 1", 10, (-1, "checkmate")),
        ("k7/2Q5/8/8/8/8/8/4K3 b - - 0 1", 10, (0, "stalemate")),
        ("4k3/8/8/8/8/8/8/4KB2 w - - 0 1", 10, (0, "insufficient_material")),
        ("3k4/8/8/8/8/8/8/4K2R w K - 100 80", 10, (0, "fifty_moves")),
        ("3k4/8/8/8/8/8/8/4K2R w K - 0 1", 100, (1, "adjudication")),
        ("3k3q/8/8/8/8/8/8/4K2R w K - 0 1", 100, (-1, "adjudication")),
        ("3k3r/8/8/8/8/8/P7/4K2R w K - 0 1", 100, (0, "move_limit")),
    ],
)
def test_how_a_game_ends(fen, half_moves, ending):
    params = {"max_half_moves": 100, "adjudicate": 3}
    assert games.ending(encoding.Line(chess.Board(fen)), half_moves, params) == ending
    if ending is not None:
        assert ending[1] in games.TERMINATIONS
    if ending is not None and ending[1] == "adjudication":
        assert games.ending(encoding.Line(chess.Board(fen)), half_moves, params | {"adjudicate": None}) == (0, "move_limit")
