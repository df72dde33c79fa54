"""A job that does whatever its parameter `what` says; the slot's tests run it."""

import atexit
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import optuna_like

import worker

PATCHED = ["as imported"]


def run(ctx):
    return globals()[ctx.params["what"]](ctx)


def arrays(ctx):
    return {
        "score": np.float32(0.5),
        "count": 3,
        "logits": np.arange(6.0).reshape(2, 3),
        "one": np.ones(1),
        "nested": {"ids": [np.array([1, 2])]},
        "name": "0.5",
    }


def number(ctx):
    return 0.25


def fails(ctx):
    raise ValueError("no such colour")


def missing(ctx):
    return {"loss": 1.0}


def nan(ctx):
    return {"score": float("nan"), "loss": 1.0}


def nothing(ctx):
    return None


def objects(ctx):
    return {"score": 1.0, "best": {"model": object()}}


def killed(ctx):
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(ctx):
    sys.exit(3)


def leaves_at_once(ctx):
    os._exit(7)


def hangs(ctx):
    sys.stdout.write("about to hang\n")
    threading.Event().wait()


def hog(ctx):
    globals().update(hold=np.ones(300 * 2**20, dtype=np.uint8))
    threading.Event().wait()


def hog_while_it_waits(ctx):
    """Fills memory as soon as nobody answers its report."""
    threading.Thread(target=lambda: globals().update(hold=np.ones(300 * 2**20, dtype=np.uint8)), daemon=True).start()
    ctx.report(1, score=0.5)
    threading.Event().wait()


def hangs_at_exit(ctx):
    atexit.register(threading.Event().wait, 30.0)  # far longer than it may
    if ctx.params["fails"]:
        raise ValueError("no such colour")
    return {"score": 0.5, "logits": np.arange(3.0)}


def no_memory(ctx):
    raise MemoryError("12 TiB")


def prunes_itself(ctx):
    ctx.report(3, score=0.125)
    raise optuna_like.TrialPruned("bad")


def reports(ctx):
    for step in range(ctx.params["steps"]):
        ctx.report(step, score=step / 2, loss=1.0)
    return 1.0


def reports_and_hangs(ctx):
    sys.stdout.write("about to hang\n")
    ctx.report(1, score=0.5)
    threading.Event().wait()


def reports_and_fails(ctx):
    ctx.report(7, score=0.75)
    raise RuntimeError("after a report")


def leaves_everything(ctx):
    """Changes all it can reach, and says which processes it left."""
    plain = subprocess.Popen(["sleep", "1000"])
    daemon = subprocess.run(
        [sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, check=True, text=True, start_new_session=True
    )
    os.environ["LEFT_BEHIND"] = "yes"
    os.environ["HOME"] = "/nowhere"
    os.chdir("/")
    os.umask(0)
    textwrap.dedent = None
    PATCHED.append("changed")
    sys.path.insert(0, "/nowhere")
    np.random.seed(1)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    hold = np.ones(200 * 2**20, dtype=np.uint8)
    Path("/".join([str(ctx.workdir), "left"])).write_text("x")
    thread = threading.Thread(target=threading.Event().wait)
    thread.start()
    Path(ctx.params["file"]).write_text(f"{plain.pid} {daemon.stdout.strip()} {os.getpid()}")
    globals().update(hold=hold)
    return 1.0


DAEMON = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
read, write = os.pipe()
if os.fork():
    os.close(write)
    os.read(read, 1)
    os._exit(0)
print(os.getpid(), flush=True)
os.close(1)
os.close(write)
os.execvp("sleep", ["sleep", "1000"])
"""


def looks(ctx):
    """What a trial finds."""
    found = {
        "env": [os.environ.get("LEFT_BEHIND"), os.environ["HOME"]],
        "cwd": str(Path.cwd()),
        "workdir": str(ctx.workdir),
        "files": [path.name for path in Path().iterdir()],
        "patched": PATCHED,
        "textwrap": textwrap.dedent is not None,
        "path": "/nowhere" in sys.path,
        "hold": "hold" in globals(),
        "threads": threading.active_count(),
        "umask": os.umask(0o22),
        "usr1": signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL,
        "random": float(np.random.rand()),
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
        "pid": os.getpid(),
        "session": os.getsid(0) == os.getpid(),
        "seed": ctx.seed,
        "trial": os.environ["TRIALPLANE_TRIAL"],
        "tmp": os.path.realpath(os.environ["TMPDIR"]),
        "extra": os.environ.get("EXTRA"),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
    }
    Path(ctx.params["file"]).write_text(json.dumps(found))
    return 1.0


def workers(ctx):
    with multiprocessing.Pool(2) as pool:
        return float(sum(pool.map(worker.square, range(4))))


def loader(ctx):
    """What a data loader does: workers with queues, batches of arrays through them."""
    context = multiprocessing.get_context()
    orders, batches = context.Queue(), context.Queue()
    processes = [context.Process(target=worker.load, args=(orders, batches), daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    for index in range(6):
        orders.put(index)
    total = sum(float(batches.get().sum()) for _ in range(6))
    for _ in processes:
        orders.put(None)
    for process in processes:
        process.join()
    return total


def large_argument(ctx):
    multiprocessing.Process(target=worker.square, args=(bytes(2**21),)).start()


def shared_memory(ctx):
    from multiprocessing import shared_memory

    block = shared_memory.SharedMemory(create=True, size=4096)
    lock = multiprocessing.get_context().Lock()
    Path(ctx.params["file"]).write_text(f"{block.name} {lock._semlock.name}")
    if ctx.params["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def joblib_workers(ctx):
    """What scikit-learn does with `n_jobs`: loky's processes, to which large arrays go as files."""
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=2, max_nbytes=1024)
    with parallel:
        where = parallel(delayed(worker.file_of)(np.ones(4096)) for _ in range(2))
        Path(ctx.params["file"]).write_text(f"{os.getpid()} {where[0]}")
        if ctx.params["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
    return 1.0
