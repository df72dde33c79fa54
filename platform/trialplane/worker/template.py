"""The warm template: a process that imports the job's modules once and then forks one child per trial.

`python -m trialplane.worker.template FD` is started by the slot and communicates over a SEQPACKET socket, one message of
`wire/messages.py` per packet. From the slot: StartTrial with the trial's channel as a file descriptor. To the slot:
JobLoaded or JobFailed once, then TrialStarted and TrialExited for each trial.

Before each fork the template checks that it is clean (policies.spawn); if not, the trial is spawned and the reason is
reported. It adopts and kills the processes that its trials leave behind, so after TrialExited no process of the trial runs.

When the slot ends, the template ends too, and its trials with it. There is one exception: in a pod that is being removed
(`leaving`), Ray may end the slot before its trials have saved their checkpoints. So the template waits for them, up to the
grace period. The template of the pod's next slot, if there is one, starts trials only after they have ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from trialplane import policies
from trialplane.policies import spawn
from trialplane.training import mlflow_runs, process
from trialplane.wire import env, messages, records
from trialplane.worker import channel, context, outcomes, roles, trial
from trialplane.worker.leaving import REMOVAL_SIGNAL
from trialplane.worker.setup import usage
from trialplane.worker.shims import capture

TRACKER_GRACE = 2.0  # seconds for resource trackers to end by themselves
# Seconds after the end of a slot in which the signal may arrive that its pod is being removed. Ray may end the slot earlier.
REMOVAL_NOTICE = 8.0
_LOCK_FILE = "trialplane-slot.lock"  # in the folder of temporary files; each pod has its own
_PAUSE = 0.1  # seconds between checks for a process's end
MAX_MESSAGE = 60_000  # bytes; a SEQPACKET packet must fit the socket's buffer


def main() -> None:
    """Import the job, report that or the error to the slot, and start trials until the slot ends."""
    faulthandler.enable()  # a slot ends imports that hang by SIGABRT, which then prints their stacks
    control = socket.socket(fileno=int(sys.argv[1]))
    config = messages.decode(sys.stdin.buffer.read(), messages.LOAD).config
    policies.apply_all()
    mlflow_runs.replace_on_import(config.env)
    began = time.monotonic()
    with _exit_with_slot(control):
        try:
            job_function = _import_all(config)
        except BaseException as error:  # noqa: BLE001  the border: whatever the job's code raises at import
            traceback.print_exc()  # into the slot's log
            sys.stderr.flush()
            _fail(control, outcomes.describe(error))
    unclean = tuple(spawn.reasons_not_to_fork())
    if not unclean:
        try:
            usage.check_arguments(job_function, config)
        except context.Invalid as error:
            _fail(control, str(error))
    _wait_for_earlier_slot()
    control.send(messages.encode(messages.JobLoaded(time.monotonic() - began, unclean)))
    _make_first_calls(config)
    gc.collect()
    gc.freeze()  # otherwise a child's garbage collector would write to, and so copy, every inherited page
    Template(control, config, job_function).serve()
    os._exit(0)  # the kernel cleans up; some libraries' own exit handlers take seconds


def _fail(control: socket.socket, reason: str) -> NoReturn:
    """Report to the slot that no trial can start, and end this process."""
    control.send(messages.encode(messages.JobFailed(reason)))
    os._exit(0)


def _import_all(config: records.SlotConfig) -> context.JobFunction:
    """Import the job, and the modules that its trials need, once for all of them; return the job's function.

    Raises:
        Any exception of the job's code at import; see `trial.import_job`.
    """
    capture.prepare(config)
    job_function = trial.import_job(config)
    roles.role_function(config)  # imports the modules of the role
    _preload_mlflow()
    if config.restores:  # after the job's own imports, which may set variables for numpy
        importlib.import_module("trialplane.training.states")
    if "numpy" in sys.modules and config.cpus > 1:
        importlib.import_module("threadpoolctl")  # for `environment.use_cores`
    return job_function


def _make_first_calls(config: records.SlotConfig) -> None:
    """Call functions whose first call is slow, so that it does not slow down each trial."""
    empty_request = messages.RunTrial(
        config, records.TrialRequest(run="", trial=0, attempt=1, number=0, params={}, seed=0, metrics=()), workdir=""
    )
    messages.decode(messages.encode(empty_request), messages.TO_TRIAL)  # builds the decoders
    process.seed_everything(0)  # torch reads source files for 10 ms


class Template:
    """The loop that starts trials as children of this process."""

    def __init__(self, control: socket.socket, config: records.SlotConfig, job_function: context.JobFunction) -> None:
        self._control = control
        self._config = config
        self._job_function = job_function
        self._running: dict[int, int] = {}  # pid → number of the attempt
        self._is_pod_removed = False
        self._import_children = process.children()  # started by the job's imports; they belong to no trial, and stay
        process.adopt_orphans()

    def serve(self) -> None:
        """Start trials and report their ends until the slot closes the socket."""
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a signal with a handler is also written to `wake_write`
        signal.signal(REMOVAL_SIGNAL, self._note_removal)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        while True:
            readable, _, _ = select.select([self._control, wake_read], [], [])
            if wake_read in readable:
                with contextlib.suppress(BlockingIOError):
                    wake_read.recv(4096)
                self._reap()
            if self._control in readable:
                data, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 1)
                if not data:
                    self._end_trials()
                    return
                self._start(messages.decode(data, messages.TO_TEMPLATE).number, descriptors[0])

    def _start(self, number: int, descriptor: int) -> None:
        """Start a trial, by a fork if this process is clean, and report it to the slot."""
        reasons = spawn.reasons_not_to_fork()
        pid = self._spawn(descriptor) if reasons else self._fork(descriptor)
        os.close(descriptor)
        self._running[pid] = number
        # The slot signals the process by a descriptor, as the pid may have been reused by then.
        pidfd = os.pidfd_open(pid)
        started = messages.TrialStarted(number, pid, "spawn" if reasons else "fork", tuple(reasons))
        socket.send_fds(self._control, [messages.encode(started)], [pidfd])
        os.close(pidfd)

    def _fork(self, descriptor: int) -> int:
        """Run a trial in a fork of this process, with the descriptor of its channel; return its pid."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            # The child shares the descriptors of this process, so it must not react to signals in place of it.
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, REMOVAL_SIGNAL):
                signal.signal(number, signal.SIG_DFL)
            self._control.close()
            trial_channel = channel.open_trial_channel(descriptor)
            trial.run_and_end(self._job_function, trial_channel, parent, roles.role_function)  # does not return
        return pid

    def _spawn(self, descriptor: int) -> int:
        """Run a trial in a new interpreter, with the descriptor of its channel; return its pid."""
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "trialplane.worker.roles", str(descriptor), str(os.getpid())],
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # from its start, so that it can be found and killed
        )
        child.returncode = 0  # `_reap` waits for the process by its pid, so the Popen object must not
        return child.pid

    def _reap(self) -> None:
        """Reap ended children, and report each trial among them to the slot.

        Before the last running trial is reported, kill the processes that trials have left.
        """
        for child in _reap_children():
            number = self._running.pop(child.pid, None)
            if number is None:  # a process that a trial has left, or of the job's imports
                continue
            if not self._running:
                self._kill_orphans()
            exited = messages.TrialExited(number, code=child.exit_code, peak_memory=child.peak_memory)
            with contextlib.suppress(OSError):  # the slot has ended
                self._control.send(messages.encode(exited))

    def _kill_orphans(self) -> None:
        """Kill the processes that trials have left behind. Call it when no trial runs.

        This process has adopted them, so they are all of its children except those of the job's imports. Resource trackers
        of multiprocessing and joblib get `TRACKER_GRACE` to end by themselves, which they do after all other processes: they
        remove the shared memory, semaphores and folders that these have left.
        """
        deadline = time.monotonic() + TRACKER_GRACE
        while orphans := process.children() - self._import_children:
            trackers = [pid for pid in orphans if _may_be_tracker(pid)] if time.monotonic() < deadline else []
            killable = [pid for pid in orphans if pid not in trackers]
            process.kill_children(killable)
            if trackers and not killable:
                _wait_for_end(trackers[0], min(_PAUSE, deadline - time.monotonic()))

    def _note_removal(self, *_: object) -> None:
        """Record that the pod is being removed, as the signal says."""
        self._is_pod_removed = True

    def _end_trials(self) -> None:
        """Kill the trials and their processes after the slot's end.

        In a pod that is being removed, trials first have the grace period to end by themselves. The signal that says so may
        come after the slot's end, so in every pod with a grace period they have at least `REMOVAL_NOTICE` of it.
        """
        slot_ended_at = time.monotonic()
        grace = float(os.environ.get(env.GRACE, "0"))
        while self._running:
            patience = grace if self._is_pod_removed else min(grace, REMOVAL_NOTICE)
            if time.monotonic() >= slot_ended_at + patience:
                break
            time.sleep(_PAUSE)
            self._reap()
        self._running.clear()
        self._import_children.clear()
        self._kill_orphans()


class _EndedChild(NamedTuple):
    """A child of this process that has ended: its pid, its exit code, and its largest resident set in bytes."""

    pid: int
    exit_code: int
    peak_memory: int


def _reap_children() -> list[_EndedChild]:
    """Reap the children that have ended, and return them."""
    ended: list[_EndedChild] = []
    while True:
        try:
            pid, status, resource_usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:  # there are no children
            return ended
        if pid == 0:  # all children still run
            return ended
        ended.append(_EndedChild(pid, os.waitstatus_to_exitcode(status), resource_usage.ru_maxrss * 1024))


def _wait_for_earlier_slot() -> None:
    """Wait until the trials of the pod's earlier slot have ended, because they use the same GPUs.

    They hold a lock on a file with their template, which this process then takes for itself and its trials. Only pods with a
    grace period have trials that outlive their slot. After a time limit this process continues without the lock.
    """
    if env.GRACE not in os.environ:
        return
    lock = os.open(Path(tempfile.gettempdir(), _LOCK_FILE), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + float(os.environ[env.GRACE]) + REMOVAL_NOTICE + TRACKER_GRACE
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_PAUSE)
    sys.stderr.write("trials of this pod's earlier slot have not ended in time; this slot starts while they run\n")


def _preload_mlflow() -> None:
    """Import MLflow's modules for a database, if the job has imported MLflow and logs to one.

    Otherwise the first `mlflow.log_*` of each trial would import them, which takes a second.
    """
    uri = os.environ.get(env.MLFLOW_TRACKING_URI, "")
    is_database = "://" in uri and not uri.startswith("http")
    if "mlflow" in sys.modules and is_database:
        for name in ("mlflow.store.tracking.sqlalchemy_store", "alembic.command"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@contextlib.contextmanager
def _exit_with_slot(control: socket.socket) -> Iterator[None]:
    """End this process if the slot ends within the block.

    A thread watches for that. It has ended after the block, because a process with threads cannot fork safely.
    """
    stop_read, stop_write = socket.socketpair()

    def watch() -> None:
        readable, _, _ = select.select([control, stop_read], [], [])
        if control in readable:  # nothing is sent before JobLoaded: the slot has ended
            os._exit(1)

    watcher = threading.Thread(target=watch, name="watch-slot")
    watcher.start()
    try:
        yield
    finally:
        stop_write.close()
        watcher.join()
        while Path(f"/proc/self/task/{watcher.native_id}").exists():  # the kernel may remove the thread after the join
            time.sleep(0.001)
        stop_read.close()


def _may_be_tracker(pid: int) -> bool:
    """Return whether a process is a resource tracker, of multiprocessing or derived from it, as joblib's is.

    A process whose command line is empty counts as one: it is just starting.
    """
    try:
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return False
    return not command_line or b"resource_tracker" in command_line


def _wait_for_end(pid: int, seconds: float) -> None:
    """Wait at most `seconds` for a child to end, and reap it."""
    descriptor = os.pidfd_open(pid)
    try:
        if select.select([descriptor], [], [], max(0.0, seconds))[0]:
            os.waitpid(pid, 0)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
