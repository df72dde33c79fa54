"""`python -m tests.benchmarks`: how fast the platform is, side by side with its peers; see README.md.

Ends with 0 when everything was measured, whether or not the goals are met, and with 1 when something could not be.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from tests.benchmarks import machine, rows
from tests.benchmarks.workplace import MeasurementFailed, Workplace

# Figure → whether it is measured unless another is asked for.
FIGURES = {
    "trial": True,
    "scripts": True,
    "sweeps": True,
    "overhead": True,
    "loop": True,
    "checkpoints": True,
    "controller": True,
    "cli": True,
    "report": True,
    "ask": True,
    "ledger": True,
    "training_overhead": True,
    "ranks": True,
    "transport": True,
    "selfplay": True,
    "lines": False,
    "search": False,
    "cluster": False,
    "run_objects": False,
}
ON_A_CLUSTER = {"cluster", "run_objects"}


def main() -> int:
    """Measures what the command line asks for, prints the table and writes the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=list(FIGURES), help="this figure; repeatable")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast it is")
    parser.add_argument("--rounds", type=int, help="repeat each measurement so often")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples and the machine's facts here")
    parser.add_argument("--context", default="", help="a context of the kubeconfig, for `cluster` and `run_objects`")
    parser.add_argument("--namespace", default="", help="the namespace there; the context's when left out")
    options = parser.parse_args()
    needing = ON_A_CLUSTER.intersection(options.only or [])
    if needing and not options.context:
        parser.error(f"figure `{min(needing)}` needs a cluster with the chart in it: --context CTX --namespace NS")

    def say(text: str) -> None:
        notes.print(f"{_clock(began)} {text}")

    notes = Console(stderr=True, highlight=False, markup=False)
    facts, began = machine.facts(), time.perf_counter()
    measured: list[rows.Row] = []
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="trialplane-benchmarks-", ignore_cleanup_errors=True) as scratch:
        place = Workplace(Path(scratch), options.quick, options.rounds, say, options.context, options.namespace)
        for name in options.only or [name for name, usual in FIGURES.items() if usual]:
            try:
                measured += importlib.import_module(f"tests.benchmarks.{name}").measure(place)
            except MeasurementFailed as error:
                failures[name] = str(error)
                notes.print(f"{_clock(began)} {name} could not be measured: {error}")

    title = "trialplane, small sizes (no measure of speed)" if options.quick else "trialplane"
    # As wide as the table needs when it goes to a file.
    Console(width=None if sys.stdout.isatty() else 200).print(rows.table(measured, title), machine.line(facts))
    if options.json:
        document = {
            "machine": facts,
            "load_after": machine.facts()["load"],
            "quick": options.quick,
            "seconds": round(time.perf_counter() - began, 1),
            "figures": [row.record() for row in measured],
            "failures": failures,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if failures else 0


def _clock(began: float) -> str:
    minutes, seconds = divmod(int(time.perf_counter() - began), 60)
    return f"{minutes:3d}:{seconds:02d}"


if __name__ == "__main__":
    sys.exit(main())
