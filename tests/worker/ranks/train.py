"""A job of several ranks that does whatever its parameter `what` says; test_ranks.py runs it."""

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from trialplane.worker.ranks import supervisor

supervisor.ABORT_GRACE = 5.0  # for a machine that has much else to do


def run(ctx):
    return globals()[ctx.params["what"]](ctx)


def wait():
    threading.Event().wait()


def wait_for_stop(ctx):
    """Waits for SIGTERM; a signal that comes between a look and the wait is in the socket by then."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno())
    while not ctx.stopping:
        ours.recv(1)
    signal.set_wakeup_fd(before)


def fifo(ctx, rank):
    """A pipe by which others know when a rank is gone: it opens it for writing, and never closes it."""
    path = Path(ctx.params["folder"], f"fifo-{rank}")
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path)
    return path


def note(ctx, **facts):
    """Write facts of this rank for the test, completely or not at all."""
    file = Path(ctx.params["folder"], f"rank-{ctx.rank}")
    file.with_suffix(".part").write_text(json.dumps(facts))
    file.with_suffix(".part").rename(file)


def wait_for_notes(ctx, *ranks):
    """Wait until these ranks have noted something."""
    while not all(Path(ctx.params["folder"], f"rank-{rank}").exists() for rank in ranks):
        time.sleep(0.01)


def looks(ctx):
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "OMP_NUM_THREADS"]
    names += ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TMPDIR"]
    note(
        ctx,
        env={name: os.environ.get(name) for name in names} | {"TMPDIR": os.path.realpath(os.environ["TMPDIR"])},
        place=[ctx.rank, ctx.local_rank, ctx.world_size, ctx.is_main],
        cwd=str(Path.cwd()),
        workdir=str(ctx.workdir),
        checkpoints=ctx.checkpoints,
        random=[random.random(), float(np.random.rand())],
        session=os.getsid(0),
        parent=os.getppid(),
        first_write=first_write("a line"),
    )
    return {"score": 1.0, "values": np.arange(3)} if ctx.is_main else None


def first_write(line):
    """The first of the writes that `print` makes of a line."""
    ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM)
    kept = os.dup(1)
    os.dup2(theirs.fileno(), 1)
    print(line)  # noqa: T201  `write` alone would not show it
    os.dup2(kept, 1)
    return ours.recv(100).decode()


def reduces(ctx):
    """The sum of all ranks, by gloo."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    value = torch.tensor([float(ctx.rank + 1)])
    distributed.all_reduce(value)
    distributed.destroy_process_group()
    note(ctx, value=value.item(), port=os.environ["MASTER_PORT"], threads=torch.get_num_threads())
    return value.item()


def accelerates(ctx):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    accelerator.wait_for_everyone()  # a rank that leaves while others connect to it leaves them waiting
    note(ctx, place=[accelerator.process_index, accelerator.num_processes, accelerator.local_process_index])
    return 1.0


def fails_in_step(ctx):
    """One rank does not come to the collective that the others wait in."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    distributed.barrier()
    if ctx.rank == ctx.params["who"]:
        if ctx.params["how"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no such colour")
    distributed.all_reduce(torch.ones(1))


def out_of_memory(ctx):
    import torch

    if ctx.rank == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    wait()


def follows(ctx):
    """Rank 0 sees that the other end is gone before anybody sees that rank 2 is."""
    if ctx.rank == 0:
        globals().update(held=fifo(ctx, 0).open("w"))
        raise ConnectionResetError("Connection reset by peer")
    if ctx.rank == 2:
        fifo(ctx, 0).open().read()
        os.kill(os.getpid(), signal.SIGKILL)
    wait()


def loses_its_connection(ctx):
    if ctx.rank == 0:
        raise ConnectionResetError("Connection reset by peer")
    wait()


def leaves_at_once(ctx):
    if ctx.rank == 1:
        os._exit(0)
    wait()


def dies_in_mid_word(ctx):
    """One rank is killed while it sends something long, of which the beginning has arrived."""
    if ctx.rank == 0:
        os.write(ctx._reporter._channel.fileno(), struct.pack("!I", 100_000) + b'["Reported"')
        os.kill(os.getpid(), signal.SIGKILL)
    wait()


def stops(ctx):
    ctx.stopping  # noqa: B018  asks
    ctx.report(1, score=0.5)
    wait_for_stop(ctx)
    if ctx.is_main:
        Path(ctx.checkpoints).mkdir(parents=True)
        Path(ctx.checkpoints, "saved").write_text("7")
    raise ctx.stopped(7)


def stops_in_part(ctx):
    """Rank 1 hears of the end and does not care."""
    ctx.stopping  # noqa: B018  asks
    if ctx.rank == 1:
        note(ctx, asked=True)
        wait()
    wait_for_notes(ctx, 1)  # before the report, after which the test stops all
    ctx.report(1, score=0.5)
    wait_for_stop(ctx)
    raise ctx.stopped(7)


def never_asks(ctx):
    ctx.report(1, score=0.5)
    wait()


def asks_and_hangs(ctx):
    ctx.stopping  # noqa: B018
    ctx.report(1, score=0.5)
    while True:
        with contextlib.suppress(InterruptedError):
            wait()


def stands_still(ctx):
    """Nothing but SIGKILL reaches it any more."""
    ctx.stopping  # noqa: B018
    ctx.report(1, score=0.5)
    os.kill(os.getpid(), signal.SIGSTOP)


def reports(ctx):
    for step in range(ctx.params["steps"]):
        ctx.report(step, score=float(step))
        if ctx.rank:
            wait()
    return 1.0


def prints(ctx):
    for line in range(200):
        sys.stdout.write(f"line {line} of {ctx.rank}\n")
    if ctx.rank == 0:
        fifo(ctx, 0).open("w").close()
    if ctx.rank == 1:
        fifo(ctx, 0).read_text()  # ends when rank 0 has opened and closed it: all ranks are ended with this one
        os.write(2, b"the last words of 1")
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def leaves_children(ctx):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=ctx.rank == 1)
    note(ctx, pids=[os.getpid(), child.pid])
    ctx.report(1, score=0.5)
    if ctx.params["then"] == "wait":
        wait()
    return 1.0


def hangs(ctx):
    note(ctx, hangs=True)
    ctx.report(1, score=0.5)
    wait()


def lingers(ctx):
    """Rank 0 returns, and others do not; one of them does not even hear what it is told."""
    if ctx.rank:
        note(ctx, lingers=True)
    if ctx.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    if ctx.rank:
        wait()
    wait_for_notes(ctx, 1, 2)
    return 1.0


def pulses(ctx):
    """Each rank has its own time per step."""
    ctx.pulse(3, 0.1 * ctx.rank)
    return 1.0


def straggles(ctx):
    for step in range(20):
        ctx.pulse(step, 0.5 if ctx.rank == 2 else 0.1)
    if ctx.rank:
        globals().update(held=fifo(ctx, ctx.rank).open("w"))
        return 1.0
    for rank in range(1, ctx.world_size):
        fifo(ctx, rank).open().read()
    ctx.report(20, score=0.5)  # when this is answered, the supervisor has seen the ranks' ends, and before them their pulses
    ctx.report(21, score=0.5)
    return 1.0


def one_catches_up(ctx):
    """Ranks 2 and 3 of 4 are slow; when the supervisor knows that of both, rank 3 is slow no more."""
    slow = {2: 0.5, 3: 0.8}
    for step in range(20):
        ctx.pulse(step, slow.get(ctx.rank, 0.1))
    if ctx.rank == 3:
        fifo(ctx, 30).open().read()  # until rank 0 closes it
        for step in range(20, 40):
            ctx.pulse(step, 0.1)
    if ctx.rank:
        globals().update(held=fifo(ctx, ctx.rank).open("w"))
        return 1.0
    for ended, step in (((1, 2), 20), ((3,), 40)):
        for rank in ended:
            fifo(ctx, rank).open().read()
        ctx.report(step, score=0.5)
        if step == 20:
            fifo(ctx, 30).open("w").close()
    ctx.report(41, score=0.5)
    return 1.0


def hog(ctx):
    """Each rank's own memory, beside what all share with the template."""
    globals().update(hold=np.ones(ctx.params["mib"] << 20, dtype=np.uint8))
    note(ctx, done=True)
    ctx.report(1, score=0.5)
    wait()
