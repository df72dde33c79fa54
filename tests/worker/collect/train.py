"""The job of the collection's tests: workers whose units say in the parameters what goes wrong in them."""

from __future__ import annotations

import os
import signal
import sys
import time
import types
from pathlib import Path

import numpy as np

from trialplane.worker.collect import worker


def play(ctx):
    getattr(Plays, ctx.params.get("play", "simple"))(ctx)


def learn(ctx, results):
    return getattr(Learns, ctx.params.get("learn", "simple"))(ctx, results)


def pass_time(seconds):
    """So much time goes by for who asks for units, and no more: a busy machine is not slow, and nobody has to wait."""
    now = worker.time.monotonic() + seconds
    worker.time = types.SimpleNamespace(monotonic=lambda: now)


def result(ctx, unit):
    rng = np.random.default_rng(unit.seed)
    base = 0.0 if ctx.weights is None else float(ctx.weights["bias"][0])
    return {"states": rng.random((5, 3), dtype=np.float32) + base, "end": "mate", "count": 5}


class Plays:
    def simple(ctx):
        for unit in ctx.units():
            sys.stdout.write(f"unit {unit.number}\n")
            ctx.give(unit, result(ctx, unit), items=5)

    def batches(ctx):
        """As a batched inference does it: many units at a time, filled up whenever one has ended."""
        held = list(ctx.take(4))
        asked = 0
        while held:
            unit = held.pop(0)
            ctx.give(unit, result(ctx, unit), items=5)
            for _ in range(3):
                held += ctx.take(4 - len(held), wait=False) if len(held) < 4 else ()
                asked += 1
            if not held:
                held += ctx.take(4)

    def seeded(ctx):
        for unit in ctx.units():
            ctx.give(unit, {"drawn": np.random.random(3)})

    def killed(ctx):
        """Dies in the middle of a result: what is in the file is not offered."""
        from trialplane.policies import transport

        write = transport.Packing.write

        def half(self, buffer):
            write(self, buffer)
            os.kill(os.getpid(), signal.SIGKILL)

        for unit in ctx.units():
            if unit.number == ctx.params["at"]:
                transport.Packing.write = half
            ctx.give(unit, result(ctx, unit), items=5)

    def slow(ctx):
        for unit in ctx.units():
            pass_time(1.1 * worker.AHEAD_SECONDS)
            ctx.give(unit, result(ctx, unit), items=5)

    def quick(ctx):
        for unit in ctx.units():
            pass_time(1e-6)
            ctx.give(unit, result(ctx, unit), items=5)

    def slow_at(ctx):
        for unit in ctx.units():
            pass_time(1.1 * worker.AHEAD_SECONDS if unit.number == ctx.params["at"] else 1e-6)
            ctx.give(unit, 1)

    def raises(ctx):
        for unit in ctx.units():
            if unit.number == ctx.params["at"]:
                raise ValueError("no legal move")
            ctx.give(unit, result(ctx, unit), items=5)

    def garbage(ctx):
        for unit in ctx.units():
            ctx.give(unit, {"states": [np.ones(2), {"model": object()}]} if unit.number == ctx.params["at"] else 1)

    def giant(ctx):
        for unit in ctx.units():
            size = ctx.params["bytes"] if unit.number == ctx.params["at"] else 10
            ctx.give(unit, {"zeros": np.broadcast_to(np.uint8(0), size)})

    def hangs(ctx):
        for unit in ctx.units():
            sys.stdout.write(f"hanging in unit {unit.number}\n")
            time.sleep(600)

    def keeps(ctx):
        ctx.take()

    def twice(ctx):
        for unit in ctx.units():
            ctx.give(unit, 1)
            ctx.give(unit, 2)

    def once(ctx):
        (unit,) = ctx.take()
        ctx.give(unit, unit.number)

    def many(ctx):
        for unit in ctx.units():
            ctx.give(unit, np.zeros(ctx.params["bytes"], np.uint8))
            Path(ctx.params["file"]).write_text(str(unit.number))

    def listens(ctx):
        for unit in ctx.units():
            ctx.give(unit, 1)
            Path(ctx.params["file"]).write_text(str(ctx.stopping))

    def looks_at_weights(ctx):
        for unit in ctx.units():
            weights = ctx.weights["bias"]
            maps = Path("/proc/self/maps").read_text().splitlines()
            file = next(line.split()[-1] for line in maps if "weights" in line)
            ctx.give(unit, {"writable": weights.flags.writeable, "file": file, "worker": ctx.worker, "bias": weights})


class Learns:
    def simple(ctx, results):
        seen = {one.unit: one for one in results}
        sys.stdout.write(f"learned from {sorted(seen)}\n")
        assert results.expected == ctx.params.get("units", 6)
        return {
            "loss": 0.5,
            "iteration": ctx.iteration,
            "failed": results.failed,
            "before": -1.0 if ctx.state is None else ctx.state["count"],
            "weights": {"bias": np.full(4, 10.0 + ctx.iteration)},
            "state": {"count": len(seen)},
            "seen": {str(number): one.value for number, one in seen.items()},
        }

    def nothing(ctx, results):
        for _ in results:
            pass

    def wrong(ctx, results):
        return 0.5

    def unpackable(ctx, results):
        return {"weights": {"net": object()}}

    def killed(ctx, results):
        for _ in results:
            os.kill(os.getpid(), signal.SIGKILL)

    def drops(ctx, results):
        """Keeps nothing, so files are written again."""
        total, files = 0.0, set()
        for one in results:
            total += float(one.value["states"].sum())
            del one
            files.update(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm" in line)
        return {"files": len(files), "total": total}

    def keeps(ctx, results):
        """Keeps views alone: they must stay what they were."""
        kept = [(one.unit, one.value["states"], one.value["states"].copy()) for one in results]
        return {"equal": float(all(np.array_equal(view, copy) for _, view, copy in kept)), "count": len(kept)}

    def lists_own_files(ctx, results):
        """Files in memory that this process made."""
        for _ in results:
            pass
        mine = f"{os.getpid()}-"  # beside them runs of other tests come and go, so folders vanish during the walk
        files = [name for _, _, names in os.walk(f"/dev/shm/trialplane-{os.getuid()}") for name in names]
        return {"files": sum(name.startswith(mine) for name in files)}

    def saves(ctx, results):
        for _ in results:
            pass
        folder = Path(ctx.checkpoints)
        found = len(list(folder.iterdir())) if folder.exists() else 0
        (folder / str(ctx.iteration)).mkdir(parents=True)
        return {"found": found}

    def listens(ctx, results):
        for _ in results:
            Path(ctx.params["file"]).write_text(str(ctx.stopping))
        return {}
