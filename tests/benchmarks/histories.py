"""Runs with many ended trials, made once per length by the ledger's own code with a random sampler."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.workplace import Workplace

from trialplane.wire.paths import RunPaths


def of(place: Workplace, trials: int, halved: bool = False) -> Path:
    """The folder of a run with `trials` ended trials of ten parameters, as a controller that was killed leaves it.

    Args:
        place: where it is.
        trials: number of them.
        halved: whether they report, and two thirds are pruned; see `studies.Halving`.
    """
    run = RunPaths.of(place.home, f"history-{trials}{'-halved' if halved else ''}")
    if not run.ledger.exists():
        place.say(f"making a history of {trials:,} trials")
        arguments = {"folder": str(run.root), "trials": trials, "halved": halved}
        place.call("history", arguments, timeout=120 + 0.1 * trials)
    return run.root


def exported(place: Workplace, trials: int, halved: bool = False) -> Path:
    """The same history as a study in a SQLite file of Optuna's."""
    folder = of(place, trials, halved)
    file = folder / "optuna.db"
    if not file.exists():
        place.say(f"exporting a history of {trials:,} trials")
        place.call("exporting", {"folder": str(folder), "target": str(file)}, timeout=120 + 0.1 * trials)
    return file
