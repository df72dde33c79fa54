"""Chess learned by self-play, as AlphaZero does: workers play games against themselves, one process learns from them.

    platform submit collect selfplay --local --profile smoke                          # 2 workers, 2 iterations, a minute
    platform submit collect selfplay --workers 8 --games 800 --iterations 10 --profile original     # a cluster, GPUs
    python jobs/selfplay/train.py --profile smoke                                     # alone, in one process

An iteration plays its games with the weights of the one before, learns from them, and plays a match of the new weights
against the old. Metrics: loss, policy_loss, value_loss, elo of the match with its interval, and how the games went.
"""

from __future__ import annotations

import os

import chess
import chess.svg
import games
import network
import numpy as np
import rating
import torch
from replay import Replay
from search import simulate_all

from trialplane import standalone

GAME_FIELDS = ("outcome", "termination", "move_count", "legal_move_rate")  # of each game, for statistics


# ---------------------------------------------------------------------------------------------------------------------
# a worker, which plays many games at once


def play(ctx):
    """Play games until the iteration has enough of them. Every worker runs this."""
    p = ctx.params
    torch.set_num_threads(ctx.cpus)
    evaluate = network.Evaluator(network.build(p, ctx.weights), p["batch"])
    running = []  # unit and game
    while True:
        free = p["games_at_once"] - len(running)
        units = ctx.take(free, wait=not running) if free else ()
        running += [(unit, games.Game(p, unit.seed)) for unit in units]
        if not running:
            return
        simulate_all([game.search for _, game in running], evaluate)
        for _, game in running:
            if game.search.done:
                game.move()
        for unit, game in running:
            if game.over:
                record = game.record()
                ctx.give(unit, record, items=record["move_count"])
        running = [(unit, game) for unit, game in running if not game.over]


# ---------------------------------------------------------------------------------------------------------------------
# the learner, which learns from the games of an iteration


def learn(ctx, results):
    """Train on the games of an iteration, and return metrics and the weights for the next iteration."""
    p = ctx.params
    torch.set_num_threads(ctx.cpus)

    # The fields of a game are copied, because its arrays are in shared memory that the next games need.
    replay, by_number = Replay(max(1, p["max_positions"] // results.expected)), {}
    for result in results:
        replay.add(result.unit, result.value)
        by_number[result.unit] = {name: result.value[name] for name in GAME_FIELDS} | {
            "actions": result.value["actions"].tolist()
        }
    game_records = [by_number[number] for number in sorted(by_number)]  # the order of their arrival is random
    if not game_records:
        raise ValueError("no game of this iteration came to its end; see the workers' logs")

    # -----------------------------------------------------------------------------------------------------------------
    # train

    model = network.build(p, ctx.weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=p["lr"], weight_decay=p["weight_decay"])
    if ctx.state is not None:
        restore_optimizer(optimizer, ctx.state["optimizer"])
    done = ctx.state["steps"] if ctx.state is not None else 0
    rng = np.random.default_rng([ctx.seed, ctx.iteration])
    torch.manual_seed(int(rng.integers(2**63)))  # for the dropout
    model.train()
    first, sums = None, np.zeros(3)
    for _ in range(p["epochs"]):
        sums[:] = 0
        for states, policies, values in replay.batches(p["train_batch"], rng):
            states, policies, values = (tensor.to(network.device()) for tensor in (states, policies, values))
            logits, guessed = model(states.contiguous(memory_format=torch.channels_last))
            # The loss is over all 4672 actions, legal or not, so that the network learns the rules, too.
            policy_loss = torch.nn.functional.cross_entropy(logits, policies)
            value_loss = torch.nn.functional.mse_loss(guessed, values)
            loss = policy_loss + p["value_weight"] * value_loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), p["clip"])
            optimizer.step()
            done += 1
            sums += len(states) * np.array([part.item() for part in (loss, policy_loss, value_loss)])
        means = dict(zip(("loss", "policy_loss", "value_loss"), (sums / len(replay)).tolist(), strict=True))
        first = means if first is None else first
        ctx.report(done, **means)
    weights = network.weights_of(model)

    # -----------------------------------------------------------------------------------------------------------------
    # strength of the new weights

    new, old = (network.Evaluator(network.build(p, tree), p["batch"]) for tree in (weights, ctx.weights))
    points = rating.play_match(new, old, p, [ctx.seed, ctx.iteration])
    elo, low, high = rating.elo(points)
    log_games(game_records[: p["pictures"]], ctx.iteration)
    return {
        "elo": elo,
        "elo_low": low,
        "elo_high": high,
        "match_score": float(np.mean(points)),
        "loss_before": first["loss"],
        **means,
        "positions": len(replay),
        **game_statistics(game_records),
        "weights": weights,
        "state": {"optimizer": optimizer_arrays(optimizer), "steps": done},
    }


def game_statistics(game_records):
    """Return shares and means over the games of an iteration."""
    outcomes, endings = [game["outcome"] for game in game_records], [game["termination"] for game in game_records]
    lengths = [game["move_count"] for game in game_records]
    return {
        "white_wins": outcomes.count(1) / len(game_records),
        "black_wins": outcomes.count(-1) / len(game_records),
        **{f"ended_{name}": endings.count(name) / len(game_records) for name in games.TERMINATIONS},
        "move_count": float(np.mean(lengths)),
        "legal_move_rate": float(np.average([game["legal_move_rate"] for game in game_records], weights=lengths)),
    }


def optimizer_arrays(optimizer):
    """Return the optimizer's arrays for each parameter, in the order of the parameters."""
    return [{name: tensor.numpy(force=True) for name, tensor in entry.items()} for entry in optimizer.state.values()]


def restore_optimizer(optimizer, entries):
    """Restore the result of `optimizer_arrays`."""
    for parameter, entry in zip(optimizer.param_groups[0]["params"], entries, strict=True):
        numbers = {name: torch.tensor(array) for name, array in entry.items()}
        optimizer.state[parameter] = {
            name: tensor if name == "step" else tensor.to(parameter.device) for name, tensor in numbers.items()
        }


def log_games(game_records, iteration):
    """Log the final positions of some games as pictures, and the games as PGN, to the iteration's run in MLflow."""
    if not os.environ.get("MLFLOW_TRACKING_URI"):  # not in a trial, and no other MLflow is set
        return
    import mlflow

    for number, game in enumerate(game_records):
        board = games.board_of(game["actions"])
        last, check = board.peek(), board.king(board.turn) if board.is_check() else None
        mlflow.log_text(chess.svg.board(board, lastmove=last, check=check, size=400), f"games/{number:02}.svg")
        text = games.pgn_of(board, game["outcome"], game["termination"], Round=f"{iteration + 1}.{number + 1}")
        mlflow.log_text(text, f"games/{number:02}.pgn")


if __name__ == "__main__":
    standalone(__file__, play, learn)
