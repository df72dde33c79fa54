"""One session of a controller: opens everything a run needs, runs the loop, and closes everything.

Turns every ending, errors included, into the run's last status and an exit code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import logging
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import trialplane
from trialplane import errors
from trialplane.controller import arrival, loop, rehearsal, stopping, workloads
from trialplane.controller.desired import DesiredState
from trialplane.controller.endings import Ending
from trialplane.controller.exporter_process import ExporterProcess
from trialplane.controller.ledger import Ledger
from trialplane.controller.notifications import Notifier
from trialplane.controller.patience import Patience
from trialplane.controller.setting import Setting
from trialplane.controller.status import StatusBoard, write_status
from trialplane.controller.workloads.workload import Workload
from trialplane.job import kinds
from trialplane.job.kinds import Job, Role, Study
from trialplane.plan import sizes
from trialplane.wire import env, escapes, labels, paths, progress, records
from trialplane.wire.exports import End, Order
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, SlotConfig
from trialplane.wire.states import RunState

log = logging.getLogger(__name__)

HEAD_LOCK_PATIENCE = 120.0  # seconds for a lost head's connection to be noticed by PostgreSQL, in a cluster
SHARDS = "trialplane.worker.collect.shards:write"  # the learner that writes files
REFUSED_PATIENCE = 60.0  # seconds for the operator to remove the pod, or for the kubelet to bring another token
HEAD_PATIENCE = 5.0  # seconds for a head to end after its raylet; `ray start --block` looks once a second
OPEN_PATIENCE = 600.0  # seconds for a database that is away when the controller starts, in a cluster


class AlreadyEnded(Exception):
    """The run has ended, or was paused, since its last start, so there is nothing to do."""


class TokenRefused(Exception):
    """The run's token opens it no longer, or not yet: it has ended, or was started again."""


class HeadLost(Exception):
    """Ray's head is gone, and nothing more can be said of the run: the next controller goes on with it."""


def drive(folder: Path, stopped: list[int], setting: Setting) -> int:
    """Run what is in `folder`; a signal's number in `stopped` stops it.

    In a cluster the kubelet starts a controller again whenever it ends. So one that finds its run ended only waits until the
    operator, which has seen the end too, removes the pod.
    """
    run = RunPaths(folder)
    try:
        job = kinds.read(run.job.read_text())
    except ValidationError as error:
        first_error = error.errors()[0]
        log.error(
            "%s cannot be read by trialplane %s: %s: %s. It was submitted by another version; "
            "use the same version on the laptop and in the images (`platform image build`)",
            *(run.job, trialplane.__version__, ".".join(map(str, first_error["loc"])), first_error["msg"]),
        )
        return errors.EXIT_PLATFORM
    session = Session(run, job, stopped, setting)
    try:
        state = session.run()
    except (errors.LedgerLocked, errors.LedgerFenced) as error:
        log.error("%s", error)
        return error.exit_code  # the status is the other controller's
    except TokenRefused as error:
        log.error("%s; this container waits for a minute to be removed, and then tries another token", error)
        stopping.wait_for_removal(REFUSED_PATIENCE)
        return errors.EXIT_PLATFORM
    except AlreadyEnded as error:
        log.info("%s; this container waits to be removed", error)
        stopping.wait_for_removal()
    except HeadLost as error:
        log.error("%s", error)
        return errors.EXIT_PLATFORM
    except Exception as error:
        if isinstance(error, errors.TrialplaneError):
            log.error("%s", error)
        else:
            log.exception("the controller failed")
        with contextlib.suppress(OSError):  # a full disk may be what the error is about
            write_status(run, session.last_status(error))
        if isinstance(error, errors.EntrypointError) and session.has_begun:
            return errors.EXIT_RUN_FAILED  # the input could not have been refused before the start
        return error.exit_code if isinstance(error, errors.TrialplaneError) else errors.EXIT_PLATFORM
    return state.exit_code


class Session:
    """Everything that one controller holds while it works on a run.

    Args:
        run: the run's files.
        job: the resolved job.
        stopped: numbers of the signals received so far.
        setting: where it works.
    """

    def __init__(self, run: RunPaths, job: Job, stopped: list[int], setting: Setting) -> None:
        self._run = run
        self._job = job
        self._stopped = stopped
        self._setting = setting
        self._ledger: Ledger | None = None
        self._workload: Workload | None = None
        self._submission = _submission_facts(run)
        self._last_status = _last_status(run)  # read now, as this controller's first status overwrites it
        self._loop: loop.Loop | None = None
        self._notifier = Notifier((), None, None)
        self._has_joined = False  # a Ray that it did not start
        self._start_time = float(self._submission.get(labels.BEGUN, 0.0))
        self._base = RunStatus(
            run=run.root.name,
            job=job.name,
            state=RunState.PENDING,
            trials=job.trials,
            parallel=job.width,
            objectives=tuple(objective.metric for objective in job.objectives),
            created=float(self._submission.get("submitted", 0.0)),
            started=time.time(),
            updated=time.time(),
            slots_per_trial=job.roles()[0].nodes,
            progress=progress.initial_progress(job.kind),
            worked=0.0 if self._last_status is None else self._last_status.worked,
        )

    @property
    def has_begun(self) -> bool:
        """Whether any trial was ever started."""
        return self._ledger is not None and any(True for _ in self._ledger.attempts())

    def run(self) -> RunState:
        """Open everything in order, run the loop, and close everything in the opposite order."""
        run, setting = self._run, self._setting
        uri = tracking_uri(run, is_door=bool(setting.mlflow_token))
        with contextlib.ExitStack() as stack:
            board = StatusBoard(run, setting.status, self._record_status, setting.key)
            stack.callback(board.close)
            self._ledger = stack.enter_context(self._open(board))
            if (recorded := self._ledger.status) is not None:
                if setting.submitted is not None and self._start_time and recorded.has_ended(self._start_time):
                    raise AlreadyEnded(f"the run has ended ({recorded.state.value}: {recorded.reason})")
                self._base = dataclasses.replace(self._base, worked=max(self._base.worked, recorded.worked))
            self._notifier = Notifier(self._job.notify, setting.secrets, recorded or self._last_status)
            stack.callback(self._notifier.close)
            board.listener = self._notifier.show
            try:
                with _full_disk_as_unavailable(run):
                    board.publish()
                    return self._run_to_its_end(self._ledger, board, uri)
            except (errors.LedgerLocked, errors.LedgerFenced):
                raise  # the record is another controller's
            except Exception as error:
                # Our own errors have a known cause; any other, or a lost slot, may be the first sign of a lost head.
                is_own_error = isinstance(error, errors.TrialplaneError) and not isinstance(error, errors.SlotError)
                if self._has_joined and _is_head_lost(setting.ray, 0.0 if is_own_error else HEAD_PATIENCE):
                    description = f"Ray's head at {setting.ray} is lost, and the next controller continues the run"
                    raise HeadLost(f"{description}: {errors.first_line(error)}") from error
                status = self.last_status(error)
                self._notifier.end(status)
                self._notifier.close()
                with contextlib.suppress(errors.LedgerError):  # the ledger may be what failed
                    self._record_status(status)
                raise

    def last_status(self, error: Exception) -> RunStatus:
        """The status after an error, with the current counts."""
        if not isinstance(error, errors.TrialplaneError):
            reason = f"the controller failed: {type(error).__name__}: {errors.first_line(error)}"
            return self._status(RunState.PAUSED, f"{reason}; see {self._run.controller_log}")
        final = isinstance(error, (errors.LedgerCorrupt, errors.LedgerFull))
        resumable = isinstance(error, (errors.LedgerError, errors.SlotError)) and not final
        return self._status(RunState.PAUSED if resumable else RunState.FAILED, str(error))

    def _open(self, board: StatusBoard) -> Ledger:
        """Open the ledger, waiting for a database that may still be starting.

        Raises:
            TokenRefused: the gateway refuses the run's token.
        """
        run = self._run

        def wait(message: str) -> None:
            board.show(self._status(RunState.RUNNING if self._ledger else RunState.PENDING, message), now=True)

        def give_up() -> bool:
            return bool(self._stopped)

        def opened() -> Ledger:
            url = self._setting.ledger or f"sqlite:///{run.ledger}"
            patience = Patience(on_wait=wait, give_up=give_up, lock_seconds=HEAD_LOCK_PATIENCE)
            return Ledger(url, self._job, run.root.name, run.code, run.lock, patience=patience)

        try:
            return Patience(OPEN_PATIENCE if self._setting.ledger else 0.0, wait, give_up)(opened)
        except errors.LedgerFenced as error:
            if self._setting.submitted is None:
                raise
            raise TokenRefused(str(error)) from error

    def _run_to_its_end(self, ledger: Ledger, board: StatusBoard, uri: str) -> RunState:
        """Work on the run, and record how it ended."""
        run = self._run
        remote = bool(self._setting.ledger)
        self._take_up(ledger)
        if self._job.search.sampler.of_class:
            rehearsal.check(self._job, run.code)
        ledger.prepare()
        board.show(self._status(RunState.PENDING, "the slots are warming up"), now=True)
        shutil.rmtree(run.scratch, ignore_errors=True)  # of a controller that was killed
        with contextlib.ExitStack() as stack:
            order = Order(self._setting.ledger or f"sqlite:///{run.ledger}", keeps_folder=not self._setting.in_cluster)
            exporter = ExporterProcess(run, order, uri, token=self._setting.mlflow_token)
            stack.callback(exporter.close, 5.0)
            slots = stack.enter_context(contextlib.ExitStack())
            try:
                ending = self._work(ledger, exporter, board, uri, slots)
            except errors.EntrypointError as error:
                exporter.end(End(RunState.FAILED, errors.first_line(error), time.time()))
                raise
            final_status = self._status(ending.state, ending.reason)
            end = End(final_status.state, final_status.reason, final_status.ended or time.time())
            exporter.end(end, ledger.counts.ended)
            if self._setting.in_cluster:  # where the next controller continues if this one is killed
                status_meanwhile = self._status(RunState.RUNNING, "the last results are recorded in MLflow")
            else:
                text = f"MLflow lacks some results: `platform resume {run.root.name}` writes the rest if this is interrupted"
                status_meanwhile = dataclasses.replace(final_status, reason=f"{ending.reason}; {text}", unrecorded=True)

            def show(text: str, *, now: bool = False) -> None:
                board.show(dataclasses.replace(status_meanwhile, mlflow=text), now=now)

            signals = len(self._stopped)
            show("recording in MLflow", now=True)
            log.info("%s: %s", ending.state.value, ending.reason)
            self._notifier.end(final_status)
            slots.close()
            if not exporter.close(self._patience(ending), lambda: len(self._stopped) > signals, show):
                text = f"MLflow lacks some results ({exporter.trouble or 'it is slow'}): "
                text += f"`platform resume {run.root.name}` writes the rest"
                log.warning("%s", text)
                final_status = dataclasses.replace(final_status, reason=f"{ending.reason}; {text}", unrecorded=True)
            elif exporter.trouble:
                final_status = dataclasses.replace(final_status, mlflow=exporter.trouble)
            self._notifier.close()  # before the record of the end, at which the operator removes this pod
            board.show(final_status, now=True)
            if remote:
                # Again, and waiting: only this record remains.
                ledger.record_status(self._of_this_start(final_status))
            return ending.state

    def _take_up(self, ledger: Ledger) -> None:
        """Reopen the failure that ended the run, if the user started this controller.

        On a laptop that is always so. In a cluster a controller is also started after a head was lost, so the user's request
        is in the ledger's desired state, with the attempt that it is about.
        """
        again = ledger.desired().again if self._setting.in_cluster else None
        if (again is not None or not self._setting.in_cluster) and ledger.take_up(again):
            log.info("the run had failed; it continues from its newest checkpoint, with all its retries")

    def _work(
        self, ledger: Ledger, exporter: ExporterProcess, board: StatusBoard, uri: str, slots: contextlib.ExitStack
    ) -> Ending:
        """Start the slots, which `slots` ends, and run the loop."""
        run, job, setting = self._run, self._job, self._setting
        desired = DesiredState(run, self._stopped, ledger if setting.ledger else None)
        if (by_user := desired.ending()) is not None:
            return by_user
        if setting.in_cluster or workloads.needs_ray(job):
            self._enter_ray(desired, board, slots)
        if (by_user := desired.ending()) is not None:
            return by_user
        configs = {role.name: self._slot_config(role, uri) for role in job.roles()}
        self._workload = workloads.start(ledger, configs, desired.parallel(), in_cluster=setting.in_cluster)
        slots.callback(self._workload.close)
        self._loop = loop.Loop(run, ledger, self._workload, exporter, board, self._base, desired)
        return self._loop.run()

    def _enter_ray(self, desired: DesiredState, board: StatusBoard, slots: contextlib.ExitStack) -> None:
        """Join the cluster's Ray, or start one on a laptop; `slots` leaves it."""
        from trialplane.controller import ray_session  # seconds of imports, which most runs of a laptop can save

        job, setting = self._job, self._setting
        if setting.in_cluster:
            slots.callback(ray_session.disconnect)
            board.show(self._status(RunState.PENDING, "Ray's head is starting"), now=True)

            def show(trouble: str) -> None:
                text = f"Ray's head at {setting.ray} cannot be joined yet: {trouble}"
                board.show(self._status(RunState.PENDING, text), now=True)

            self._has_joined = ray_session.join(setting.ray, lambda: desired.ending() is not None, show)
            stopping.end_on_signals()
        else:
            slots.callback(stopping.record_signals, self._stopped)  # again: Ray's end leaves SIGTERM without a handler
            try:
                slots.enter_context(ray_session.connect(job.roles(), functools.partial(sizes.local_object_store, job)))
            except SystemExit:  # raised by Ray's own handler of SIGTERM while it starts
                self._stopped.append(signal.SIGTERM)
            stopping.record_signals(self._stopped)

    def _slot_config(self, role: Role, uri: str) -> SlotConfig:
        """The configuration that the slots of a role share."""
        run, job, setting = self._run, self._job, self._setting
        return SlotConfig(
            run=run.root.name,
            code=str(run.code),
            entrypoint="" if role.program else role.entrypoint or SHARDS,
            root=str(run.root),
            cache=str(paths.cache(run.root.parent.parent)),
            preload=job.preload,
            cpus=role.resources.threads,
            gpus=role.resources.gpus,
            memory=role.resources.memory_bytes,
            env={
                env.MLFLOW_TRACKING_URI: uri,
                env.MLFLOW_EXPERIMENT_NAME: job.name,
                env.MLFLOW_CONTEXT: json.dumps(labels.identity(run.root.name, self._submission)),
                **({env.MLFLOW_TOKEN: setting.mlflow_token} if setting.mlflow_token else {}),
                **_without_gpus(role, job),
            },
            ranks=role.ranks,
            nodes=role.nodes,
            checkpoints=job.checkpoints.url or setting.checkpoints,
            grace=job.grace(setting.grace),
            linger=job.budget.exit_timeout,
            pack=str(arrival.archive(setting.submitted)) if setting.in_cluster and setting.submitted else "",
            ship=setting.in_cluster,
            role=role.name,
            write=role.write,
            program=role.program,
            capture=job.capture,
            keep=job.keep.files if isinstance(job, Study) and job.keep is not None else (),
            requirements=job.requires,
            code_hash=str(self._submission.get("code_hash", "")),
        )

    def _patience(self, ending: Ending) -> float:
        """Seconds to wait for an MLflow that does not answer, at the end."""
        cut_short = ending.state in (RunState.PAUSED, RunState.CANCELLED)
        # What MLflow lacks is lost with the pod's disk; on a laptop the user waits for the prompt.
        return (60.0 if cut_short else 600.0) if self._setting.in_cluster else (5.0 if cut_short else 120.0)

    def _record_status(self, status: RunStatus) -> None:
        """Write the status to a database that outlives the run's folder."""
        if self._setting.ledger and self._ledger is not None:
            self._ledger.record_status(self._of_this_start(status), patient=False)

    def _of_this_start(self, status: RunStatus) -> RunStatus:
        """The status with a time after the start, of which the operator's clock made a note and this one may be behind."""
        return dataclasses.replace(status, updated=max(status.updated, self._start_time))

    def _status(self, state: RunState, reason: str) -> RunStatus:
        """The status outside of the loop: nothing runs."""
        counts = {} if self._ledger is None else self._ledger.counts.shown()
        best = None if self._ledger is None else self._ledger.best
        now = time.time()
        ended = None if state.is_active else now
        return dataclasses.replace(
            self._base,
            **{**counts, "running": 0},
            state=state,
            reason=reason,
            best=best,
            ended=ended,
            updated=now,
            progress=self._base.progress if self._workload is None else self._workload.progress,
            worked=self._base.worked if self._loop is None else self._loop.worked,
            warnings=() if self._loop is None else self._loop.warnings,
        )


def _is_head_lost(address: str, patience: float) -> bool:
    """Whether the Ray that was joined does not answer any more: `ray_session.is_head_lost`."""
    from trialplane.controller import ray_session  # as above

    return ray_session.is_head_lost(address, patience)


@contextlib.contextmanager
def _full_disk_as_unavailable(run: RunPaths) -> Iterator[None]:
    """A disk that fills up ends the run like a ledger that cannot be written: it can be resumed.

    Raises:
        LedgerUnavailable: the disk is full, or a quota is used up.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        problem = f"cannot write {error.filename or f'a file of {run.root}'}: {error.strerror}; all records are safe"
        raise errors.LedgerUnavailable(f"{problem}. Make room and type `platform resume {run.root.name}`") from error


def _without_gpus(role: Role, job: Job) -> dict[str, str]:
    """Hide the machine's GPUs from ranks without GPUs, and from a role without GPUs if another role of the run has some.

    Otherwise each would take the GPU of its local rank, which belongs to another run or does not exist. A study's trial of
    one process may use a GPU that it finds: such trials share it.
    """
    other_has_gpus = any(other_role.resources.gpus for other_role in job.roles())
    hides = role.resources.gpus == 0 and (role.gang or role.ranks > 1 or other_has_gpus)
    return {"CUDA_VISIBLE_DEVICES": ""} if hides else {}


def _submission_facts(run: RunPaths) -> dict[str, Any]:
    """Return the facts of the run's submission."""
    facts: dict[str, Any] = json.loads(run.submission.read_text())
    return facts


def _last_status(run: RunPaths) -> RunStatus | None:
    """Return the last status in the run's folder; None without one, or when it is damaged."""
    try:
        return records.from_json(RunStatus, run.status.read_bytes())
    except (OSError, ValueError, TypeError, KeyError):
        return None  # it only has the progress of a run whose controller was killed


def tracking_uri(run: RunPaths, *, is_door: bool = False) -> str:
    """Return the tracking URI of a run and its trials: the one it has been recorded to so far, with the current login.

    Args:
        run: the run's files.
        is_door: whether the one in the environment is the gateway's: whatever address it had before, MLflow is the same.
    """
    current = os.environ.get(env.MLFLOW_TRACKING_URI, "")
    if current and is_door:
        return current
    previous = run.exporter.read_text() if run.exporter.exists() else ""
    if previous and current and _without_login(current) != _without_login(previous):
        log.warning(
            "%s is still recorded to %s, where it began, and not to the current %s (%s); submit under another name for that",
            *(
                run.root.name,
                escapes.mask_passwords(previous),
                env.MLFLOW_TRACKING_URI,
                escapes.mask_passwords(current),
            ),
        )
        return previous
    uri = current or previous or paths.mlflow_uri(run.root.parent.parent)
    run.exporter.write_text(uri)
    return uri


def _without_login(uri: str) -> str:
    """Return a URI without user name and password."""
    return re.sub(r"(?<=://)[^/?#]*@", "", uri).rstrip("/")
