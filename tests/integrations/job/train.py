"""A trial of one library: each example is a file with_LIBRARY.py, whose `run` is a job's.

`outside` runs the example as if there were no trial. `without` is a package that is not to be found. With `hold` the first
attempt waits, in its report of that number, until a stop is requested, which then comes in the middle of a training.
"""

from __future__ import annotations

import importlib
import sys
import time
from unittest import mock

import trialplane
from trialplane.worker import context


def run(ctx):
    library = ctx.params["library"]
    if without := ctx.params.get("without"):
        sys.modules |= dict.fromkeys([without, *(name for name in sys.modules if name.startswith(f"{without}."))])
        importlib.reload(importlib.import_module(f"trialplane.integrations.{library}"))
        sys.modules.pop(f"with_{library}")
    example = importlib.import_module(f"with_{library}")
    if ctx.params.get("outside"):
        with mock.patch.object(context, "_active", []):
            return example.run(ctx)
    if ctx.params.get("hold") and ctx.attempt == 1:
        trialplane.report = held(ctx, ctx.params["hold"])
    return example.run(ctx)


def held(ctx, number):
    """`report`, which does not return from report number `number` until a stop is requested."""
    steps = []

    def report(step=None, **metrics):
        ctx.report(step, **metrics)
        steps.append(step)
        if len(steps) == number:
            sys.stderr.write("waits for a stop\n")  # for the test, which finds it in the log
        while len(steps) == number and not ctx.stopping:
            time.sleep(0.005)

    return report
