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
from search import together

from trialplane import standalone

KEPT = ("outcome", "termination", "move_count", "legal_move_rate")  # of each game, beside its positions


# ---------------------------------------------------------------------------------------------------------------------
# a worker: as many games at once as its batch holds


def play(ctx):
    """Play games until the iteration has enough of them; every worker runs this."""
    p = ctx.params
    torch.set_num_threads(ctx.cpus)
    evaluate = network.Evaluator(network.build(p, ctx.weights), p["batch"])
    running = []  # of units and games
    while True:
        free = p["games_at_once"] - len(running)
        units = ctx.take(free, wait=not running) if free else ()
        running += [(unit, games.Game(p, unit.seed)) for unit in units]
        if not running:
            return
        together([game.search for _, game in running], evaluate)
        for _, game in running:
            if game.search.done:
                game.move()
        for unit, game in running:
            if game.over:
                record = game.record()
                ctx.give(unit, record, items=record["move_count"])
        running = [(unit, game) for unit, game in running if not game.over]


# ---------------------------------------------------------------------------------------------------------------------
# the learner: learns from an iteration's games


def learn(ctx, results):
    """Train on the games as they came from the workers; its weights are what the next iteration plays with."""
    p = ctx.params
    torch.set_num_threads(ctx.cpus)

    # What is kept of a game is copied: its arrays lie in memory that the next games need.
    replay, by_number = Replay(max(1, p["max_positions"] // results.expected)), {}
    for result in results:
        replay.add(result.unit, result.value)
        by_number[result.unit] = {name: result.value[name] for name in KEPT} | {"actions": result.value["actions"].tolist()}
    played = [by_number[number] for number in sorted(by_number)]  # the order in which they came is chance
    if not played:
        raise ValueError("no game of this iteration came to its end; see the workers' logs")

    # -----------------------------------------------------------------------------------------------------------------
    # train

    model = network.build(p, ctx.weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=p["lr"], weight_decay=p["weight_decay"])
    if ctx.state is not None:
        restore(optimizer, ctx.state["optimizer"])
    done = ctx.state["steps"] if ctx.state is not None else 0
    rng = np.random.default_rng([ctx.seed, ctx.iteration])
    torch.manual_seed(int(rng.integers(2**63)))  # of the dropout
    model.train()
    first, sums = None, np.zeros(3)
    for _ in range(p["epochs"]):
        sums[:] = 0
        for states, policies, values in replay.batches(p["train_batch"], rng):
            states, policies, values = (tensor.to(network.device()) for tensor in (states, policies, values))
            logits, guessed = model(states.contiguous(memory_format=torch.channels_last))
            # Of all 4672 actions, legal or not: the network is to know the rules too.
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
    # what it is worth

    new, old = (network.Evaluator(network.build(p, tree), p["batch"]) for tree in (weights, ctx.weights))
    points = rating.match(new, old, p, [ctx.seed, ctx.iteration])
    elo, low, high = rating.elo(points)
    show(played[: p["pictures"]], ctx.iteration)
    return {
        "elo": elo,
        "elo_low": low,
        "elo_high": high,
        "match_score": float(np.mean(points)),
        "loss_before": first["loss"],
        **means,
        "positions": len(replay),
        **of_games(played),
        "weights": weights,
        "state": {"optimizer": optimizer_arrays(optimizer), "steps": done},
    }


def of_games(played):
    """Statistics of an iteration's games: shares and means."""
    outcomes, endings = [game["outcome"] for game in played], [game["termination"] for game in played]
    lengths = [game["move_count"] for game in played]
    return {
        "white_wins": outcomes.count(1) / len(played),
        "black_wins": outcomes.count(-1) / len(played),
        **{f"ended_{name}": endings.count(name) / len(played) for name in games.TERMINATIONS},
        "move_count": float(np.mean(lengths)),
        "legal_move_rate": float(np.average([game["legal_move_rate"] for game in played], weights=lengths)),
    }


def optimizer_arrays(optimizer):
    """The optimizer's numbers for each parameter, in the order of the parameters."""
    return [{name: tensor.numpy(force=True) for name, tensor in entry.items()} for entry in optimizer.state.values()]


def restore(optimizer, entries):
    """Give the optimizer back what `optimizer_arrays` took."""
    for parameter, entry in zip(optimizer.param_groups[0]["params"], entries, strict=True):
        numbers = {name: torch.tensor(array) for name, array in entry.items()}
        optimizer.state[parameter] = {
            name: tensor if name == "step" else tensor.to(parameter.device) for name, tensor in numbers.items()
        }


def show(played, iteration):
    """The final position of some games as a picture, and the games as PGN, in the iteration's run in MLflow."""
    if not os.environ.get("MLFLOW_TRACKING_URI"):  # neither in a trial, nor is a store named
        return
    import mlflow

    for number, game in enumerate(played):
        board = games.board_of(game["actions"])
        last, check = board.peek(), board.king(board.turn) if board.is_check() else None
        mlflow.log_text(chess.svg.board(board, lastmove=last, check=check, size=400), f"games/{number:02}.svg")
        text = games.pgn_of(board, game["outcome"], game["termination"], Round=f"{iteration + 1}.{number + 1}")
        mlflow.log_text(text, f"games/{number:02}.pgn")


if __name__ == "__main__":
    standalone(__file__, play, learn)
