"""One trial of a job without the platform: `python jobs/criteria/train.py --set lr=1e-4`. No controller, no ledger."""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trialplane import errors, policies
from trialplane.runtime import context
from trialplane.spec import load, space
from trialplane.spec.job import Job
from trialplane.wire import paths


def main(file: str, run: context.Run, argv: Sequence[str] | None = None) -> None:
    """Runs one trial and prints what it returns.

    Parameters come from job.yaml: the fixed ones, then the first `enqueue` point or the middle of each range, then
    `--set name=value`.

    Args:
        file: the script's `__file__`; its folder holds job.yaml.
        run: the job's function.
        argv: arguments instead of the process's own.
    """
    parser = argparse.ArgumentParser(description=f"Run one trial of {Path(file).parent.name} alone.")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter's value")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)

    policies.apply_all()
    folder = Path(file).resolve().parent
    job = load.load_job(folder, environ=os.environ)
    params = {**job.params, **_starting_point(job), **_assignments(arguments.set)}
    context.seed_everything(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="trialplane-") as workdir:
        alone = context.Context(
            params=params,
            seed=arguments.seed,
            run="standalone",
            trial=0,
            attempt=1,
            cpus=job.resources.cpus,
            gpus=job.resources.gpus,
            code=folder,
            cache=paths.cache(paths.home()),
            workdir=Path(workdir),
            _reporter=_print_report,
        )
        result = run(alone)
    print(json.dumps(result if isinstance(result, Mapping) else {"value": result}, default=str, indent=2))  # noqa: T201


def _starting_point(job: Job) -> dict[str, Any]:
    """A value for each sampled parameter: the first known good point's, else the middle of its range."""
    known = job.enqueue[0] if job.enqueue else {}
    point: dict[str, Any] = {}
    for name, parameter in job.parameters.items():
        if space.is_active(parameter, point):
            point[name] = known.get(name, _middle(parameter))
    return point


def _middle(parameter: space.FloatParameter | space.IntParameter | space.CategoricalParameter) -> Any:
    if isinstance(parameter, space.CategoricalParameter):
        return parameter.choices[0]
    low, high = parameter.low, parameter.high
    middle = math.sqrt(low * high) if parameter.log else (low + high) / 2
    return round(middle) if isinstance(parameter, space.IntParameter) else middle


def _assignments(texts: Sequence[str]) -> dict[str, Any]:
    """`name=value` texts, the values read as YAML."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise errors.InputError(f"--set {text}: write NAME=VALUE")
        values[name.removeprefix("params.")] = yaml.safe_load(value)
    return values


def _print_report(step: int, metrics: Mapping[str, float]) -> bool:
    shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    print(f"step {step}: {shown}", flush=True)  # noqa: T201
    return False
