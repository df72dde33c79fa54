"""The job `selfplay`: games that depend on their seeds alone, records, learning, matches, what lands in MLflow, its file.

Both functions run in this process, with the real contexts and packed results, but without slots and without a controller.
Chess itself is in test_selfplay_chess.py; learning is in test_selfplay_learning.py.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import tarfile

import chess
import chess.pgn
import numpy as np
import pytest
from tests.jobs.playing import JOB, module, same, units
from tests.jobs.trainings import ENVIRON

from trialplane.job import load

encoding, games, network, rating, replay, search = map(
    module, ("encoding", "games", "network", "rating", "replay", "search")
)


@pytest.fixture
def untrained(playing):
    return network.build(playing.params)


def views(count, seed=0):
    """Views of different positions."""
    rng, line, found = np.random.default_rng(seed), encoding.Line(), []
    while len(found) < count:
        found.append(line.view())
        moves, _ = encoding.legal_moves(line.board)
        if not moves:
            line = encoding.Line()
            continue
        line.push(moves[rng.integers(len(moves))])
    return found


# -- a game depends on its seed alone


def test_an_answer_does_not_depend_on_what_else_is_asked(untrained):
    """To the last bit: whichever row a position is in, whatever is in the others, however many are asked."""
    evaluate, asked = network.Evaluator(untrained, 8), views(24)
    logits, values = evaluate(asked)
    rng = random.Random(0)
    for count in (1, 2, 7, 8, 9, 24):
        for _ in range(6):
            chosen = [rng.randrange(24) for _ in range(count)]
            some, worth = evaluate([asked[row] for row in chosen])
            assert np.array_equal(some, logits[chosen])
            assert np.array_equal(worth, values[chosen])


def test_the_network_is_always_asked_in_batches_of_one_size(untrained):
    """What the last bits hang on: with another size the sums of a convolution are taken in another order."""
    sizes = set()
    untrained.register_forward_hook(lambda _, inputs, __: sizes.add(tuple(inputs[0].shape)))
    evaluate = network.Evaluator(untrained, 8)
    for count in (1, 7, 8, 20):
        evaluate(views(count))
    assert sizes == {(8, 119, 8, 8)}


def test_a_game_is_the_same_whatever_games_are_beside_it(playing):
    """All at once, one at a time, in another order, and as units trickle in."""
    wanted = units(6)
    together = playing.play(wanted, games_at_once=6)
    assert sorted(together) == [unit.number for unit in wanted]
    others = [
        playing.play(wanted[3:4], games_at_once=1),
        playing.play(wanted[::-1], games_at_once=3),
        playing.play(wanted, games_at_once=4, sparing=True),
    ]
    for found in others:
        assert all(same(result.value, together[number].value) for number, result in found.items())
    assert len({tuple(result.value["actions"]) for result in together.values()}) == 6


def test_a_worker_keeps_its_batch_full(playing, monkeypatch):
    """A game that ends makes room for the next at once; the last ones are played to their end."""
    busy = []
    plain = playing.train.simulate_all
    monkeypatch.setattr(playing.train, "simulate_all", lambda found, ask: (busy.append(len(found)), plain(found, ask)))
    playing.play(units(9), games_at_once=3, max_half_moves=4)
    assert set(busy) == {3}


# -- records


def test_a_record_has_what_a_game_is(playing):
    for result in playing.play(units(3), max_half_moves=30, simulations=10).values():
        game = result.value
        count = game["move_count"]
        assert set(game) == {
            "states",
            "legal_masks",
            "actions",
            "visits",
            "outcome",
            "termination",
            "move_count",
            "legal_move_rate",
        }
        assert (game["states"].shape, game["states"].dtype) == ((count, 119, 8, 8), np.float32)
        assert (game["legal_masks"].shape, game["legal_masks"].dtype) == ((count, 4672), bool)
        assert game["actions"].shape == (count,)
        assert result.items == count
        assert game["outcome"] in (-1, 0, 1)
        assert game["termination"] in games.TERMINATIONS
        assert 0 <= game["legal_move_rate"] <= 1

        line, at = encoding.Line(), 0
        for row, action in enumerate(game["actions"]):
            legal = encoding.legal_moves(line.board)[1]
            assert np.array_equal(np.flatnonzero(game["legal_masks"][row]), legal)
            assert np.array_equal(game["states"][row], encoding.planes([line.view()])[0])
            visits = dict(zip(legal.tolist(), game["visits"][at : at + len(legal)].tolist(), strict=True))
            assert sum(visits.values()) >= 10
            assert visits[int(action)] > 0
            at += len(legal)
            line.push(encoding.move_of(int(action), line.board))
        assert at == len(game["visits"])
        assert games.ending(line, count, playing.params | {"max_half_moves": 30}) == (game["outcome"], game["termination"])
        assert games.board_of(game["actions"]).fen() == line.board.fen()


def test_the_rate_of_legal_moves_is_that_of_the_bare_policy(playing):
    """Of a policy that always wants the move e2e4, which only the first position allows."""
    weights = network.weights_of(network.build(playing.params))
    weights["policy.weight"][:] = 0
    weights["policy.bias"][:] = 0
    game = playing.play(units(1), weights=weights)[0].value
    plain = np.zeros(encoding.ACTIONS)
    wanted = int(plain.argmax())  # all are equal, and the first one is taken
    assert game["legal_move_rate"] == np.mean(game["legal_masks"][:, wanted])


# -- search


def searched(fen, simulations, evaluate=None, **options):
    """A search from a position, with a network that knows nothing unless another is given."""
    know_nothing = lambda asked: (np.zeros((len(asked), encoding.ACTIONS), np.float32), np.zeros(len(asked)))  # noqa: E731
    line = encoding.Line(chess.Board(fen))
    found = search.Search(line, simulations=simulations, exploration=1.25, **options)
    while not found.done:
        search.simulate_all([found], evaluate or know_nothing)
    assert line.board.fen() == fen
    return found


def test_a_mate_is_found_and_then_searched_most():
    root = searched("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1", 200).root
    assert root.moves[root.visits.argmax()] == chess.Move.from_uci("a1a8")
    assert root.visits.sum() == 200


def test_a_mate_that_threatens_is_avoided():
    """Black mates on a1 unless White makes its king a way out."""
    root = searched("r5k1/8/8/8/8/8/5PPP/6K1 w - - 0 1", 3000).root
    best = root.moves[root.visits.argmax()]
    board = chess.Board("r5k1/8/8/8/8/8/5PPP/6K1 w - - 0 1")
    board.push(best)
    board.push(chess.Move.from_uci("a8a1"))
    assert not board.is_checkmate()


def test_what_is_known_of_a_move_is_kept_when_it_is_made():
    found = searched(chess.STARTING_FEN, 100)
    move = found.root.moves[int(found.root.visits.argmax())]
    visits = found.root.visits.max()
    child = found.root.children[found.root.moves.index(move)]
    found.advance(move)
    assert found.root is child
    assert child.visits.sum() == visits - 1  # its own evaluation was the first visit
    assert not found.done


def test_noise_makes_the_root_try_other_moves():
    def root(noise, seed=0):
        return searched(chess.STARTING_FEN, 50, noise=noise, rng=np.random.default_rng(seed)).root

    assert np.array_equal(root(0.25).visits, root(0.25).visits)
    assert not np.array_equal(root(0.25).visits, root(0.25, seed=1).visits)
    assert root(0.25).priors.sum() == pytest.approx(1)
    assert np.ptp(root(0.0).priors) == 0


# -- the job's file


@pytest.mark.parametrize("profile", [None, "smoke", "original", "cores"])
def test_profiles_hold_together(profile):
    job = load.load_job(JOB, profile=profile, environ={})
    assert job.kind == "collect"
    assert job.params["match_games"] % 2 == 0
    longest = job.params["max_half_moves"] * (119 * 64 * 4 + 4672 + 4 * 218 + 8)
    assert longest * 2 < job.collect.in_flight_bytes
    if profile == "original":
        assert (job.collect.workers, job.collect.units, job.collect.iterations) == (8, 800, 10)
    gpus = {role.name: role.replicas * role.resources.gpus for role in job.roles()}
    of_profile = {"original": {"worker": 8, "learner": 1}, "cores": {"worker": 0, "learner": 1}}
    assert gpus == of_profile.get(profile, {"worker": 0, "learner": 0})


def test_the_folder_fits_a_config_map():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in JOB.iterdir():
            if path.is_file():
                archive.add(path, path.name)
    assert packed.tell() < 100_000


# -- the whole


@pytest.mark.slow
def test_it_runs_alone(tmp_path):
    environ = {**os.environ, **ENVIRON, "TRIALPLANE_HOME": str(tmp_path / "home")}
    for name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"):
        environ.pop(name, None)
    command = [sys.executable, JOB / "train.py", "--profile", "smoke", "--max_half_moves", "12", "--simulations", "4"]
    ended = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout[ended.stdout.rindex("\n{") :])
    assert told["loss"] < told["loss_before"]
    assert {"elo", "elo_low", "elo_high", "units", "items"} <= set(told)
    assert "Traceback" not in ended.stderr
