"""Programs of test_checkpoint_crashes.py: processes that save checkpoints and are killed in the middle.

    python killed_while_saving.py points FOLDER     one process per point of a save, killed by SIGKILL when it gets there
    python killed_while_saving.py ranks FOLDER      two ranks with gloo; in the end rank 1 is killed while it saves
    python killed_while_saving.py forgets FOLDER    saves and ends without waiting, as a job's process does

torch is imported once; children are forked before any thread is alive. Each prints what it saw as one JSON document.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from trialplane import errors
from trialplane.training.checkpoint import Checkpoints
from trialplane.training.steps import stores

# Where a save is stopped: the call after which nothing more happens. Each is replaced by one that says so and sleeps.
POINTS = ("open", "half of the state", "state", "rank", "COMPLETE", "renamed", "old one hidden")


def tensors(step: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((1000, 1000), float(step))}}


def stop_at(point: str, stop: Callable[[], None]) -> None:
    """Makes the next save of this process stop at a point for good."""
    store = stores.FolderStore
    create, rename, sink_write = store.create, Path.rename, stores.Sink.write

    @contextlib.contextmanager
    def created(self: Any, name: str, file: str) -> Iterator[Any]:
        with create(self, name, file) as sink:
            if point == "open" and file == "state.pt":
                stop()
            yield sink
        if (point, file) in (("state", "state.pt"), ("rank", "rank-00000.pt"), ("COMPLETE", "COMPLETE")):
            stop()

    def renamed(self: Path, target: Path) -> Path:
        result = rename(self, target)
        if point == ("old one hidden" if target.name.endswith(".deleted") else "renamed"):
            stop()
        return result

    def written(self: Any, data: Any) -> int:
        view = memoryview(data)
        if point == "half of the state" and len(view) > 1_000_000:
            sink_write(self, view[: len(view) // 2])
            stop()
        return sink_write(self, data)

    store.create = created  # type: ignore[method-assign, assignment]
    Path.rename = renamed  # type: ignore[method-assign, assignment]
    stores.Sink.write = written  # type: ignore[method-assign]


def killed_at(act: Callable[[Callable[[], None]], None]) -> int:
    """Runs `act(stop)` in a child and kills it when it calls `stop`; its signal."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:

        def stop() -> None:
            os.write(writes, b"here")
            signal.pause()

        act(stop)
        os._exit(3)
    os.close(writes)
    assert os.read(reads, 4) == b"here"
    os.kill(child, signal.SIGKILL)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def points(folder: Path) -> list[dict[str, Any]]:
    """For each point: what a new process finds afterwards, and what is left after it has saved once more."""
    marks = []
    for point in POINTS:
        place = folder / point.replace(" ", "-")

        def act(stop: Callable[[], None], place: Path = place, point: str = point) -> None:
            checkpoints = Checkpoints(place, keep_last=1, background=False)
            checkpoints.save(1, tensors(1), rank_state={"rank": 0})
            stop_at(point, stop)
            checkpoints.save(2, tensors(2), rank_state={"rank": 0})

        ended_by = killed_at(act)
        after = Checkpoints(place, keep_last=1, background=False)
        resumed = after.resume()
        assert resumed is not None
        step, value = resumed.step, resumed.state["model"]["weight"].mean().item()
        after.save(3, tensors(3), rank_state={"rank": 0})
        marks.append(
            {
                "point": point,
                "signal": ended_by,
                "step": step,
                "value": value,
                "left": sorted(path.name for path in place.iterdir()),
            }
        )
    return marks


def ranks(folder: Path) -> list[dict[str, Any]]:
    """Two ranks that save while they train, one that is damaged, and rank 1's death in the middle of a save."""
    pipes = [os.pipe() for _ in range(2)]
    here, there = os.pipe()
    children = []
    for rank in range(2):
        if (child := os.fork()) == 0:
            try:
                os.write(pipes[rank][1], json.dumps(one_rank(folder, rank, there)).encode())
            finally:
                os._exit(0)
        children.append(child)
    assert os.read(here, 4) == b"here"
    os.kill(children[1], signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    os.close(pipes[0][1])
    return [json.loads(os.read(pipes[0][0], 1 << 16))]


def one_rank(folder: Path, rank: int, here: int) -> dict[str, Any]:
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    place = folder / "run"
    options: dict[str, Any] = {"rank": rank, "world_size": 2}
    checkpoints = Checkpoints(place, keep_last=3)
    total = torch.zeros(1)
    for step in range(1, 31):
        distributed.all_reduce(total.fill_(rank + step))  # the training's own collectives, while the threads meet
        if step % 10 == 0:
            checkpoints.save(step, {"model": {"weight": total.clone()}}, rank_state={"rank": rank}, **options)
    checkpoints.wait()
    result = {"steps": [saved.step for saved in checkpoints.all()]}
    distributed.barrier()
    if rank == 1:
        (place / "step-0000000030" / "rank-00001.pt").write_bytes(b"harmed")
    distributed.barrier()
    with warnings.catch_warnings(record=True) as said:
        resumed = checkpoints.resume(**options)
    assert resumed is not None
    steps: list[Any] = [None, None]
    distributed.all_gather_object(steps, [resumed.step, resumed.rank_state, [str(saved.message) for saved in said]])
    if rank == 1:

        def stop() -> None:
            os.write(here, b"here")
            signal.pause()

        create = stores.FolderStore.create

        @contextlib.contextmanager
        def created(self: Any, name: str, file: str) -> Iterator[Any]:
            stop()
            with create(self, name, file) as sink:
                yield sink

        stores.FolderStore.create = created  # type: ignore[method-assign, assignment]
    checkpoints.save(40, {"model": {"weight": total}}, rank_state={"rank": rank}, **options)
    try:
        checkpoints.wait()
    except errors.CheckpointError as error:
        result |= {"said": str(error)}
    return {**result, "resumed": steps, "left": [saved.step for saved in Checkpoints(place).all()]}


def forgets(folder: Path) -> list[dict[str, Any]]:
    """As a trial's process ends: exit handlers run, threads are not joined."""
    if (child := os.fork()) == 0:
        atexit._clear()
        Checkpoints(folder).save(1, tensors(1))
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(child, 0)
    return [{"steps": [saved.step for saved in Checkpoints(folder).all()]}]


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, where = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir()
    print(json.dumps({"points": points, "ranks": ranks, "forgets": forgets}[what](where)))  # noqa: T201  for the test
