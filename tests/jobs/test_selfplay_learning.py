"""What `selfplay` makes of its games: the replay, learning, matches of new weights against the old, what lands in MLflow.

`learn` runs in this process, with the real context and packed results. Games themselves are in test_selfplay.py; how much
stronger three iterations make a network is a figure of `python -m tests.benchmarks --only selfplay`.
"""

from __future__ import annotations

import io
import math

import chess
import chess.pgn
import numpy as np
import pytest
import torch
from tests.jobs.playing import module, same, units

from trialplane.policies import transport

encoding, games, network, rating, replay, search = map(
    module, ("encoding", "games", "network", "rating", "replay", "search")
)


# -- learning


def test_the_loss_falls_and_the_rules_are_learned(playing):
    results = playing.play(units(6), max_half_moves=30)
    learned = playing.learn(list(results.values()), epochs=12)
    losses = [metrics["loss"] for _, metrics in playing.reports]
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 2
    assert (learned["loss_before"], learned["loss"]) == (losses[0], losses[-1])
    steps = [step for step, _ in playing.reports]
    assert steps == sorted(set(steps))
    again = playing.play(units(6, first=6), weights=learned["weights"], max_half_moves=30)
    before = np.mean([result.value["legal_move_rate"] for result in results.values()])
    assert np.mean([result.value["legal_move_rate"] for result in again.values()]) > before + 0.2


def test_what_is_learned_does_not_depend_on_the_order_of_arrival(playing):
    results = list(playing.play(units(5)).values())
    one, other = playing.learn(results, max_positions=40), playing.learn(results[::-1], max_positions=40)
    assert one["positions"] == 40  # of five games a part each
    assert transport.pack(one).tobytes() == transport.pack(other).tobytes()


def test_an_iteration_goes_on_where_the_last_one_was(playing):
    """Weights, the optimizer's numbers and the count of steps."""
    results = list(playing.play(units(4)).values())
    first = playing.learn(results)
    second = playing.learn(results, first["weights"], first["state"], iteration=1)
    assert second["loss_before"] < first["loss_before"]
    steps = [step for step, _ in playing.reports]
    assert steps == sorted(set(steps))
    assert second["state"]["steps"] == 2 * first["state"]["steps"]
    assert float(second["state"]["optimizer"][0]["step"]) == second["state"]["steps"]
    fresh = playing.learn(results, first["weights"], None, iteration=1)
    assert not same(fresh["weights"], second["weights"])  # so the state is used


def test_an_optimizer_comes_back_as_it_was(playing):
    model = network.build(playing.params)
    optimizer = torch.optim.AdamW(model.parameters())
    logits, values = model(torch.ones(2, 119, 8, 8))
    (logits.sum() + values.sum()).backward()
    optimizer.step()
    entries = transport.unpack(transport.pack(playing.train.optimizer_arrays(optimizer)), copy=True)
    other = torch.optim.AdamW(model.parameters())
    playing.train.restore_optimizer(other, entries)
    before, after = optimizer.state_dict()["state"], other.state_dict()["state"]
    assert before.keys() == after.keys()
    for number, entry in before.items():
        assert all(torch.equal(tensor, after[number][name]) for name, tensor in entry.items())


def test_a_replay_gives_back_what_it_took(playing):
    kept, found = replay.Replay(1000), {}
    for number, result in playing.play(units(3)).items():
        kept.add(number, result.value)
        ends = np.cumsum(result.value["legal_masks"].sum(1))
        for row, visits in enumerate(np.split(result.value["visits"], ends[:-1])):
            state = result.value["states"][row]
            policy = np.zeros(encoding.ACTIONS, np.float32)
            policy[result.value["legal_masks"][row]] = visits / visits.sum()
            sign = 1 if state[112, 0, 0] else -1
            found[state.tobytes(), policy.tobytes(), np.float32(sign * result.value["outcome"]).tobytes()] = number
    rng = np.random.default_rng(0)
    batches = list(kept.batches(7, rng))
    assert [len(states) for states, _, _ in batches[:-1]] == [7] * (len(batches) - 1)
    rows = [tuple(part[row].numpy().tobytes() for part in batch) for batch in batches for row in range(len(batch[0]))]
    assert len(rows) == len(kept)
    assert set(rows) == set(found)
    assert [row[0] for row in rows] != [row[0] for row in found]


def test_a_position_in_the_replay_is_small(playing):
    kept = replay.Replay(1000)
    for number, result in playing.play(units(2)).items():
        kept.add(number, result.value)
    size = sum(array.nbytes for game in kept._games.values() for array in game)
    assert size / len(kept) < 2048


# -- rating


def test_a_match_is_fair_and_seeded(playing):
    """Against itself a network gets exactly half: from each opening both colours are played, with the same chance."""
    evaluate = network.Evaluator(network.build(playing.params), 4)
    points = rating.play_match(evaluate, evaluate, playing.params | {"match_games": 6}, seed=1)
    assert len(points) == 6
    assert sum(points) == 3
    weights = network.weights_of(network.build(playing.params | {"first_weights": 1}))
    other = network.Evaluator(network.build(playing.params, weights), 4)
    twice = [rating.play_match(evaluate, other, playing.params | {"match_games": 6}, seed=2) for _ in range(2)]
    assert twice[0] == twice[1]
    there, back = (rating.play_match(*pair, playing.params, seed=3) for pair in ((evaluate, other), (other, evaluate)))
    assert sum(there) + sum(back) == len(there)


def test_an_odd_match_has_one_game_more(playing):
    evaluate = network.Evaluator(network.build(playing.params), 4)
    assert rating.play_match(evaluate, evaluate, playing.params | {"match_games": 1}, seed=1) in ([0.5, 0.5], [0, 1], [1, 0])


def test_an_opening_may_be_the_whole_game(playing):
    """By chance somebody is mate, at the earliest with the fourth half-move."""
    p = playing.params | {"match_opening": 400, "max_half_moves": 500}
    ended = [rating.Pairing(p, opening, 0) for opening in range(12)]
    assert any(game.line.board.is_checkmate() for game in ended)
    assert all(game.points in (0, 0.5, 1) for game in ended if game.over is not None)


def test_an_iteration_without_a_game_says_so(playing):
    with pytest.raises(ValueError, match="no game of this iteration came to its end"):
        playing.learn([])


def test_who_knows_more_wins(playing):
    """One network counts pawns and pieces, the other knows nothing."""

    def counts(asked):
        planes = encoding.planes(asked)
        lead = sum(
            worth * (planes[:, kind].sum((1, 2)) - planes[:, kind + 6].sum((1, 2)))
            for kind, worth in enumerate((1, 3, 3, 5, 9))
        )
        return np.zeros((len(asked), encoding.ACTIONS), np.float32), np.tanh(lead / 5)

    def knows_nothing(asked):
        return np.zeros((len(asked), encoding.ACTIONS), np.float32), np.zeros(len(asked))

    params = playing.params | {"simulations": 60, "max_half_moves": 30, "match_games": 6}
    assert np.mean(rating.play_match(counts, knows_nothing, params, seed=0)) > 0.7


def test_elo_has_a_number_and_an_interval_for_any_score():
    even, low, high = rating.elo([1, 0, 0.5, 0.5])
    assert even == pytest.approx(0)
    assert low == pytest.approx(-high)
    assert rating.elo([1] * 20)[0] == pytest.approx(400 * math.log10(21))
    assert rating.elo([0] * 20)[0] == pytest.approx(-400 * math.log10(21))
    assert rating.elo([0.75] * 300 + [0.75] * 100)[0] == pytest.approx(400 * math.log10(3), abs=2)
    for points in ([1] * 20, [0] * 20, [0.5] * 8, [1, 0] * 200):
        found = rating.elo(points)
        assert all(map(math.isfinite, found))
        assert found[1] < found[0] < found[2]
    assert rating.elo([1, 0] * 200)[2] < rating.elo([1, 0] * 10)[2]


# -- what lands in MLflow


def test_pictures_and_games_land_in_the_iterations_run(playing, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    logged = {}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///its-own")  # also without a run of the platform's
    monkeypatch.setattr(mlflow, "log_text", lambda text, name: logged.update({name: text}))
    results = list(playing.play(units(4, first=8)).values())
    playing.learn(results[::-1], iteration=2)
    assert set(logged) == {"games/00.svg", "games/00.pgn", "games/01.svg", "games/01.pgn"}
    assert logged["games/00.svg"].startswith("<svg")
    read = chess.pgn.read_game(io.StringIO(logged["games/00.pgn"]))
    first = next(result.value for result in results if result.unit == 8)
    assert list(read.mainline_moves()) == games.board_of(first["actions"]).move_stack
    assert read.headers["Result"] == {1: "1-0", 0: "1/2-1/2", -1: "0-1"}[first["outcome"]]
    assert read.headers["Round"] == "3.1"
    assert not read.errors


def test_an_iteration_says_how_its_games_went(playing):
    results = list(playing.play(units(4)).values())
    told = playing.learn(results)
    assert sum(told[f"ended_{name}"] for name in games.TERMINATIONS) == pytest.approx(1)
    assert told["move_count"] == np.mean([result.items for result in results])
    assert told["white_wins"] == np.mean([result.value["outcome"] == 1 for result in results])
    numbers = [value for name, value in told.items() if name not in ("weights", "state")]
    assert all(math.isfinite(number) for number in numbers)
