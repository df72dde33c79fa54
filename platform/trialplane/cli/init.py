"""`platform init`: a new job that runs in seconds and needs no library."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from trialplane.cli import output
from trialplane.errors import InputError
from trialplane.spec import job, load, schema

_SCHEMA = "job.schema.json"
_JOB = """\
# yaml-language-server: $schema=../job.schema.json
# `platform validate {name}` checks this file; `platform schema` prints its schema for editors.
kind: hpo
description: Finds the lowest point of a valley, as a stand-in for a model to train.
entrypoint: train:run # module:function below this folder
preload: [] # heavy modules to import once per slot: torch, transformers

params: # the same in every trial
  steps: 5

space: # what is searched
  lr: {{type: float, low: 1.0e-4, high: 1.0, log: true}}
  layers: {{type: int, low: 1, high: 6}}
  optimizer: {{type: categorical, choices: [sgd, adam]}}
  momentum: {{type: float, low: 0.0, high: 0.99, when: {{optimizer: sgd}}}}

objective: {{metric: loss, direction: minimize}}
sampler: tpe
pruner: median

trials: 20
parallel: 2
budget: {{max_failed: 5, timeout: 10m}}
resources: {{cpus: 1, memory: 1Gi}}
"""

_TRAIN = '''\
"""One trial of the job {name}.

    platform submit hpo {name} --local      # a study on this machine
    python jobs/{name}/train.py             # one trial alone; --set lr=0.01 changes a parameter
"""

import math

from trialplane.runtime.context import standalone


def run(ctx):
    """Trains with `ctx.params`, reports each step, and returns the metrics."""
    p = ctx.params
    speed = abs(math.log10(p["lr"]) + 2)  # best at lr = 0.01 ...
    depth = abs(p["layers"] - 3)  # ... with 3 layers ...
    bonus = 0.2 if p["optimizer"] == "adam" else abs(p["momentum"] - 0.9)  # ... and much momentum
    loss = 4.0
    for step in range(p["steps"]):
        loss = 0.5 * loss + 0.5 * (speed + 0.3 * depth + bonus)
        print(f"step {{step}}: loss {{loss:.4f}}")
        ctx.report(step, loss=loss)  # a bad trial ends here
    return {{"loss": loss}}


if __name__ == "__main__":
    standalone(__file__, run)
'''


@click.command("init")
@click.argument("name")
def command(name: str) -> None:
    """Make jobs/NAME with a job.yaml and a train.py that run as they are, and jobs/job.schema.json for editors."""
    if not re.fullmatch(job.NAME, name):
        raise InputError(f"{name!r} is no name for a job: use lower-case letters, digits, - and _, 63 at most")
    here = Path.cwd()
    jobs = next((above / load.FOLDER for above in (here, *here.parents) if (above / load.FOLDER).is_dir()), None)
    folder = (jobs or here / load.FOLDER) / name
    if folder.exists():
        raise InputError(f"{folder} is there already; nothing was changed, choose another name")
    try:
        folder.mkdir(parents=True)
        (folder / load.FILE).write_text(_JOB.format(name=name), encoding="utf-8")
        (folder / "train.py").write_text(_TRAIN.format(name=name), encoding="utf-8")
        if not (folder.parent / _SCHEMA).exists():
            text = json.dumps(schema.json_schema(), indent=2, ensure_ascii=False)
            (folder.parent / _SCHEMA).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    click.echo(folder)
    output.note(f"`platform submit hpo {name} --local` runs it")
