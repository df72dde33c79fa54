"""One session of a controller: opens everything that a run needs, runs the loop, and closes everything.

The program calls `drive`, which runs a `Session`. Every ending, including errors, becomes the run's last status and an exit
code.

A session opens, in this order: the status board, the ledger (the run's database), the exporter to MLflow, Ray if the run
needs it, and the slots, in which the attempts at trials run. On a laptop the user starts each controller. In a cluster
Kubernetes also starts one again after a crash, so a controller may get a run whose earlier controller was lost.
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
from trialplane.job.kinds.ranked import Ranked
from trialplane.plan import sizes
from trialplane.wire import env, escapes, labels, paths, progress, records
from trialplane.wire.costs import Usage
from trialplane.wire.exports import End, Order
from trialplane.wire.paths import RunPaths
from trialplane.wire.records import RunStatus, SlotConfig
from trialplane.wire.states import RunState

log = logging.getLogger(__name__)

HEAD_LOCK_PATIENCE = 120.0  # seconds in which PostgreSQL detects that the connection of a lost head is dead
SHARDS = "trialplane.worker.collect.shards:write"  # the learner that writes results to files
REFUSED_PATIENCE = 60.0  # seconds for the operator to remove the pod, or for the kubelet to mount another token
HEAD_PATIENCE = 5.0  # seconds in which a head ends after its raylet, because `ray start --block` checks it once a second
OPEN_PATIENCE = 600.0  # seconds to wait, in a cluster, for a database that does not answer at the start


class AlreadyEnded(Exception):
    """The run has ended or was paused after its last start, so the controller has nothing to do."""


class TokenRefused(Exception):
    """The gateway refuses the run's token: the run has ended, or was started again with another token."""


class HeadLost(Exception):
    """Ray's head is lost, so another controller must continue the run."""


def drive(folder: Path, signals: list[int], setting: Setting) -> int:
    """Drive a run to its end; return the exit code.

    In a cluster the kubelet restarts a controller whenever it ends. So a controller whose run has already ended waits until
    the operator removes the pod.

    Args:
        folder: Folder of the run.
        signals: Numbers of the signals received so far; a signal that is appended stops the run.
        setting: Environment of the controller.
    """
    run = RunPaths(folder)
    try:
        job = kinds.read(run.job.read_text())
    except ValidationError as error:
        first_error = error.errors()[0]
        field = ".".join(map(str, first_error["loc"]))
        log.error(
            "%s cannot be read by trialplane %s: %s: %s. It was submitted by another version; "
            "use the same version on the laptop and in the images (`platform image build`)",
            run.job,
            trialplane.__version__,
            field,
            first_error["msg"],
        )
        return errors.EXIT_PLATFORM
    session = Session(run, job, signals, setting)
    try:
        state = session.run()
    except (errors.LedgerLocked, errors.LedgerFenced) as error:
        log.error("%s", error)
        return error.exit_code  # without a last status, as the other controller writes the run's status
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
        with contextlib.suppress(OSError):  # the error may be that the disk is full
            write_status(run, session.last_status(error))
        if isinstance(error, errors.EntrypointError) and session.has_begun:
            return errors.EXIT_RUN_FAILED  # the error's own code, EXIT_BAD_INPUT, would say that no trial was started
        return error.exit_code if isinstance(error, errors.TrialplaneError) else errors.EXIT_PLATFORM
    return state.exit_code


class Session:
    """The resources that one controller has open while it works on a run.

    Args:
        run: Paths of the run.
        job: Resolved job.
        signals: Numbers of the signals received so far; grows while the run continues.
        setting: Environment of the controller.
    """

    def __init__(self, run: RunPaths, job: Job, signals: list[int], setting: Setting) -> None:
        self._run = run
        self._job = job
        self._signals = signals
        self._setting = setting
        self._ledger: Ledger | None = None
        self._workload: Workload | None = None
        self._submission: dict[str, Any] = json.loads(run.submission.read_text())
        self._previous_status = _read_status(run)  # of an earlier controller; read before it is overwritten
        self._loop: loop.Loop | None = None
        # Sends nothing. It is replaced once the ledger is open.
        self._notifier = Notifier(rules=(), secrets=None, last_status=None)
        self._has_joined = False  # whether this process has joined the Ray of a cluster
        self._begun = float(self._submission.get(labels.BEGUN, 0.0))  # last start by the operator's clock; 0.0 without one
        self._initial_status = RunStatus(
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
            worked=0.0 if self._previous_status is None else self._previous_status.worked,
            alive=0.0 if self._previous_status is None else self._previous_status.alive,
            prices=setting.prices,
        )

    @property
    def has_begun(self) -> bool:
        """Whether any attempt has ever been started."""
        return self._ledger is not None and any(True for _ in self._ledger.attempts())

    def run(self) -> RunState:
        """Open everything, drive the run to its end, and close everything; return the run's last state.

        Raises:
            AlreadyEnded: The run had already ended.
            TokenRefused: The gateway refuses the run's token.
            HeadLost: Ray's head is lost.
            TrialplaneError: The run cannot continue; its status was recorded if possible.
        """
        run, setting = self._run, self._setting
        uri = tracking_uri(run, is_gateway=bool(setting.mlflow_token))
        with contextlib.ExitStack() as stack:
            board = StatusBoard(run, address=setting.status, record=self._record_status, key=setting.key)
            stack.callback(board.close)
            self._ledger = stack.enter_context(self._open_ledger(board))
            if (recorded := self._ledger.status) is not None:
                # In a cluster the kubelet restarts a controller even after the run's end, until the operator has removed the
                # pod. On a laptop only the user starts a controller, to continue a run that has ended.
                if setting.in_cluster and self._begun and recorded.has_ended(self._begun):
                    raise AlreadyEnded(f"the run has ended ({recorded.state.value}: {recorded.reason})")
                # The status in the database may be newer than that in the folder. The seconds worked only grow.
                worked = max(self._initial_status.worked, recorded.worked)
                self._initial_status = dataclasses.replace(self._initial_status, worked=worked)
            last_status = recorded or self._previous_status
            self._notifier = Notifier(self._job.notify, setting.secrets, last_status=last_status)
            stack.callback(self._notifier.close)
            board.listener = self._notifier.show
            try:
                with _map_full_disk(run):
                    board.write_address()
                    return self._work_to_end(self._ledger, board, uri)
            except (errors.LedgerLocked, errors.LedgerFenced):
                raise  # without a last status, as the other controller writes the run's status
            except Exception as error:
                self._record_error(error)
                raise

    def _record_error(self, error: Exception) -> None:
        """Record the run's last status after an error, and notify the user.

        If the error was caused by the loss of Ray's head, do neither: the next controller continues the run.

        Raises:
            HeadLost: Ray's head is lost.
        """
        if self._has_joined:
            from trialplane.controller import ray_session  # imports Ray

            # A lost slot, and an error that is none of the platform's own, may be the first effect of a head that is about
            # to end, so wait for that. The platform's other errors have causes of their own.
            may_be_caused_by_head = isinstance(error, errors.SlotError) or not isinstance(error, errors.TrialplaneError)
            if ray_session.is_head_lost(self._setting.ray, patience=HEAD_PATIENCE if may_be_caused_by_head else 0.0):
                text = f"Ray's head at {self._setting.ray} is lost, and the next controller continues the run"
                raise HeadLost(f"{text}: {errors.first_line(error)}") from error
        status = self.last_status(error)
        self._notifier.end(status)
        self._notifier.close()
        with contextlib.suppress(errors.LedgerError):  # the error may be that of the ledger
            self._record_status(status)

    def last_status(self, error: Exception) -> RunStatus:
        """Return the status after an error, with the current counts; PAUSED if the run can be resumed, otherwise FAILED.

        It can be resumed after an error of the ledger or the slots that may be temporary, and after an unexpected error, one
        that is no TrialplaneError.
        """
        if not isinstance(error, errors.TrialplaneError):
            reason = f"the controller failed: {type(error).__name__}: {errors.first_line(error)}"
            return self._status(RunState.PAUSED, f"{reason}; see {self._run.controller_log}")
        is_final = isinstance(error, (errors.LedgerCorrupt, errors.LedgerFull))
        is_resumable = isinstance(error, (errors.LedgerError, errors.SlotError)) and not is_final
        return self._status(RunState.PAUSED if is_resumable else RunState.FAILED, str(error))

    def _open_ledger(self, board: StatusBoard) -> Ledger:
        """Open the ledger; wait for a database that may still be starting.

        Raises:
            TokenRefused: The gateway refuses the run's token.
        """
        run = self._run

        def show_wait(message: str) -> None:
            is_open = self._ledger is not None  # an open ledger waits too, for a database that is away for a while
            board.show(self._status(RunState.RUNNING if is_open else RunState.PENDING, message), now=True)

        def should_give_up() -> bool:
            return bool(self._signals)

        def open_once() -> Ledger:
            """Make one attempt to open the ledger. The ledger has a patience of its own, for its later writes."""
            return Ledger(
                url=self._setting.ledger or f"sqlite:///{run.ledger}",
                job=self._job,
                run=run.root.name,
                code=run.code,
                lock=run.lock,
                patience=Patience(on_wait=show_wait, should_give_up=should_give_up, lock_seconds=HEAD_LOCK_PATIENCE),
                last_alive=self._initial_status.alive,
            )

        open_seconds = OPEN_PATIENCE if self._setting.ledger else 0.0  # a file of this machine answers at once
        repeat_until_open = Patience(open_seconds, on_wait=show_wait, should_give_up=should_give_up)
        try:
            return repeat_until_open(open_once)
        except errors.LedgerFenced as error:
            if not self._setting.in_cluster:
                raise
            raise TokenRefused(str(error)) from error

    def _work_to_end(self, ledger: Ledger, board: StatusBoard, uri: str) -> RunState:
        """Work on the run until its end, and record the end in MLflow, in the ledger and on the status board.

        Returns:
            The run's last state.
        """
        run, setting = self._run, self._setting
        self._reopen_failure(ledger)
        if self._job.search.sampler.class_path:
            rehearsal.check(self._job, run.code)
        ledger.drawing.check_sampler()
        board.show(self._status(RunState.PENDING, "the slots are warming up"), now=True)
        shutil.rmtree(run.scratch, ignore_errors=True)  # left by a controller that was killed
        with contextlib.ExitStack() as stack:
            order = Order(setting.ledger or f"sqlite:///{run.ledger}", keeps_folder=not setting.in_cluster)
            exporter = ExporterProcess(run, order, uri, token=setting.mlflow_token)
            stack.callback(exporter.close, 5.0)  # in case of an error; otherwise `_finish` has closed it already
            slot_stack = stack.enter_context(contextlib.ExitStack())  # closed by `_finish`, before the exporter is
            try:
                ending = self._run_loop(ledger, exporter, board, uri, slot_stack)
            except errors.EntrypointError as error:
                exporter.send_end(End(RunState.FAILED, reason=errors.first_line(error), time=time.time()))
                raise
            final_status = self._status(ending.state, ending.reason)
            recorded_end = End(
                state=final_status.state,
                reason=final_status.reason,
                time=final_status.ended or time.time(),
                status=final_status if setting.in_cluster else None,  # for the page, which only a cluster stores
            )
            exporter.send_end(recorded_end, trials=ledger.counts.ended)
            final_status = self._finish(exporter, board, ending, final_status, slot_stack)
            self._notifier.close()  # must come before the end is recorded: the operator then removes this pod
            board.show(final_status, now=True)
            if setting.ledger:
                # The board records a status without waiting for the database. The last one must get there, so wait for it.
                ledger.record_status(self._updated_after_start(final_status))
            return ending.state

    def _finish(
        self,
        exporter: ExporterProcess,
        board: StatusBoard,
        ending: Ending,
        final_status: RunStatus,
        slot_stack: contextlib.ExitStack,
    ) -> RunStatus:
        """Notify of the run's end, end the slots, and wait until MLflow has all results.

        A signal ends the wait.

        Args:
            exporter: Exporter, which has got the run's end.
            board: Board that shows the status during the wait.
            ending: Ending of the run.
            final_status: Status of the run with this ending.
            slot_stack: Stack whose closing ends the slots.

        Returns:
            The final status. If MLflow lacks results, it says so, and that `platform resume` writes them.
        """
        if self._setting.in_cluster:
            # The run stays RUNNING, so that another controller continues if this one is killed.
            status_during_wait = dataclasses.replace(self._status(RunState.RUNNING, ending.reason), final_state=ending.state)
        else:
            # The run has ended for the user, whose terminal need not wait. If this is killed, a resume writes the rest.
            status_during_wait = dataclasses.replace(final_status, unrecorded=True)

        def show(text: str, *, now: bool = False) -> None:
            board.show(dataclasses.replace(status_during_wait, mlflow=text), now=now)

        signal_count = len(self._signals)  # signals so far have stopped the run, and one more ends the wait

        def should_give_up() -> bool:
            return len(self._signals) > signal_count

        show("recording in MLflow", now=True)
        log.info("%s: %s", ending.state.value, ending.reason)
        self._notifier.end(final_status)
        slot_stack.close()
        if not exporter.close(self._mlflow_patience(ending), is_stopped=should_give_up, show=show):
            reason = exporter.trouble or "it is slow"
            text = f"MLflow lacks some results ({reason}); `platform resume {self._run.root.name}` writes the rest"
            log.warning("%s", text)
            return dataclasses.replace(final_status, mlflow=text, unrecorded=True)
        if exporter.trouble:  # MLflow has all results, but has refused files, which controller.log names
            return dataclasses.replace(final_status, mlflow=exporter.trouble)
        return final_status

    def _reopen_failure(self, ledger: Ledger) -> None:
        """Let the attempt whose failure ended the run be retried, if the user has resumed the run.

        On a laptop only the user starts a controller, so each start is such a request. In a cluster a controller is also
        started after a head was lost. There `platform resume` writes the number of the attempt into the ledger, as the field
        `again` of the desired state.
        """
        attempt_number: int | None = None  # None for the newest attempt
        if self._setting.in_cluster:
            attempt_number = ledger.read_desired().again
            if attempt_number is None:  # the user has not requested it
                return
        if ledger.reopen_failure(attempt_number):
            log.info("the run had failed; it continues from its newest checkpoint, with all its retries")

    def _run_loop(
        self, ledger: Ledger, exporter: ExporterProcess, board: StatusBoard, uri: str, slot_stack: contextlib.ExitStack
    ) -> Ending:
        """Start the slots and run the loop; return the run's ending.

        Closing `slot_stack` ends the slots, and the session of Ray if there is one.
        """
        run, job, setting = self._run, self._job, self._setting
        desired = DesiredState(run, self._signals, ledger if setting.ledger else None)  # on a laptop only signals count
        if (early_ending := desired.ending()) is not None:
            return early_ending
        if setting.in_cluster or workloads.needs_ray(job):
            self._enter_ray(desired, board, slot_stack)
        # Joining Ray may take minutes, in which the run may have been cancelled or its deadline may have passed.
        if (early_ending := desired.ending()) is not None:
            return early_ending
        configs = {role.name: self._slot_config(role, uri) for role in job.roles()}
        self._workload = workloads.start(ledger, configs, desired.parallel(), in_cluster=setting.in_cluster)
        slot_stack.callback(self._workload.close)
        self._loop = loop.Loop(run, ledger, self._workload, exporter, board, self._initial_status, desired)
        return self._loop.run()

    def _enter_ray(self, desired: DesiredState, board: StatusBoard, slot_stack: contextlib.ExitStack) -> None:
        """Join the cluster's Ray, or start Ray on a laptop. Closing `slot_stack` leaves or ends it."""
        from trialplane.controller import ray_session  # imports Ray for seconds, and most runs of a laptop need none

        job, setting = self._job, self._setting
        if setting.in_cluster:
            slot_stack.callback(ray_session.disconnect)
            board.show(self._status(RunState.PENDING, "Ray's head is starting"), now=True)

            def show(trouble: str) -> None:
                text = f"Ray's head at {setting.ray} cannot be joined yet: {trouble}"
                board.show(self._status(RunState.PENDING, text), now=True)

            self._has_joined = ray_session.join(setting.ray, lambda: desired.ending() is not None, show)
            stopping.end_on_signals()
        else:
            slot_stack.callback(stopping.record_signals, self._signals)  # ending Ray removes the handler of SIGTERM
            try:
                slot_stack.enter_context(ray_session.connect(job.roles(), functools.partial(sizes.local_object_store, job)))
            except SystemExit:  # raised by Ray's own handler of SIGTERM while it starts
                self._signals.append(signal.SIGTERM)
            stopping.record_signals(self._signals)

    def _slot_config(self, role: Role, uri: str) -> SlotConfig:
        """Return the configuration that the slots of a role share."""
        run, job, setting = self._run, self._job, self._setting
        entrypoint = role.entrypoint or SHARDS  # a learner need not have one
        has_preload_functions = any(":" in name for name in job.preload)  # `module:function`, which gets the parameters
        return SlotConfig(
            run=run.root.name,
            code=str(run.code),
            entrypoint="" if role.program else entrypoint,
            root=str(run.root),
            cache=str(paths.cache(run.home)),
            preload=job.preload,
            params=job.params if has_preload_functions else {},
            cpus=role.resources.threads,
            cores=role.resources.cpus,
            gpus=role.resources.gpu_count,
            gpu_share=role.resources.gpu_share,
            memory=role.resources.memory_bytes,
            env={
                env.MLFLOW_TRACKING_URI: uri,
                env.MLFLOW_EXPERIMENT_NAME: job.name,
                env.MLFLOW_CONTEXT: json.dumps(labels.identity(run.root.name, self._submission)),
                **({env.MLFLOW_TOKEN: setting.mlflow_token} if setting.mlflow_token else {}),
                **_variables_that_hide_gpus(role, job),
            },
            ranks=role.ranks,
            nodes=role.nodes,
            checkpoints=job.checkpoints.url or setting.checkpoints,
            grace=job.grace(setting.grace),
            linger=job.budget.exit_timeout,
            pack=str(arrival.code_archive(setting.submitted)) if setting.in_cluster and setting.submitted else "",
            ship=setting.in_cluster,  # pods share no folder with this process
            role=role.name,
            write=role.write,
            program=role.program,
            capture=job.capture,
            keep=job.keep.files if isinstance(job, Study) and job.keep is not None else (),
            requirements=job.requires,
            code_hash=str(self._submission.get("code_hash", "")),
            restores=job.search.ladder is not None and not role.program,
            system_metrics=job.system_metrics if isinstance(job, Ranked) else None,
            links=job.links,
        )

    def _mlflow_patience(self, ending: Ending) -> float:
        """Return the seconds to wait at the end for an MLflow that does not answer: fewer if the user ends the run."""
        if self._setting.in_cluster:  # logs and MLflow stores that were not copied are lost with the pod's disk
            return 60.0 if ending.is_by_user else 600.0
        return 5.0 if ending.is_by_user else 120.0  # the user waits, and nothing is lost

    def _record_status(self, status: RunStatus) -> None:
        """Write the status to the database, without waiting for one that does not answer.

        On a laptop, where the database is a file in the run's folder, status.json is enough.
        """
        if self._setting.ledger and self._ledger is not None:
            self._ledger.record_status(self._updated_after_start(status), patient=False)

    def _updated_after_start(self, status: RunStatus) -> RunStatus:
        """Return the status with an update time that is not before the run's last start.

        The operator ignores a status from before the last start. It takes that time from its own clock, which may be ahead
        of this machine's.
        """
        return dataclasses.replace(status, updated=max(status.updated, self._begun))

    def _status(self, state: RunState, reason: str) -> RunStatus:
        """Return the run's status before the loop starts or after it has ended, when no attempt runs."""
        counts = {} if self._ledger is None else self._ledger.counts.status_fields()
        now = time.time()
        return dataclasses.replace(
            self._initial_status,
            **{**counts, "running": 0},
            state=state,
            reason=reason,
            best=None if self._ledger is None else self._ledger.best,
            ended=None if state.is_active else now,
            updated=now,
            progress=self._initial_status.progress if self._workload is None else self._workload.progress,
            worked=self._initial_status.worked if self._loop is None else self._loop.worked,
            usage=self._usage(),
            warnings=() if self._loop is None else self._loop.warnings,
        )

    def _usage(self) -> Usage:
        """Return the usage of all attempts so far; before the ledger is open, the usage in the previous status."""
        if self._ledger is None:
            return (self._previous_status or self._initial_status).usage
        return self._ledger.usage(self._setting.prices)


@contextlib.contextmanager
def _map_full_disk(run: RunPaths) -> Iterator[None]:
    """Raise the error of a full disk or a used-up quota as LedgerUnavailable, so that the run can be resumed."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        problem = f"cannot write {error.filename or f'a file of {run.root}'}: {error.strerror}; all records are safe"
        raise errors.LedgerUnavailable(f"{problem}. Make room and type `platform resume {run.root.name}`") from error


def _variables_that_hide_gpus(role: Role, job: Job) -> dict[str, str]:
    """Return environment variables that hide the machine's GPUs from a role without GPUs; none if they stay visible.

    - They are hidden from the ranks of a distributed trial. Each rank would use the GPU with its number, which belongs to
      another run or does not exist.
    - They are hidden if another role of the run has GPUs, which must not be shared.
    - Otherwise they stay visible: a process that is the only one of its trial may detect a GPU, and share it.
    """
    if role.resources.gpus:
        return {}
    is_distributed = role.gang or role.ranks > 1  # a training is a gang, even of one rank
    other_has_gpus = any(other_role.resources.gpus for other_role in job.roles())
    return {"CUDA_VISIBLE_DEVICES": ""} if is_distributed or other_has_gpus else {}


def _read_status(run: RunPaths) -> RunStatus | None:
    """Return the last status in the run's folder; None if there is none, or if it is damaged."""
    try:
        return records.from_json(RunStatus, run.status.read_bytes())
    except (OSError, ValueError, TypeError, KeyError):
        return None  # the status is only needed for the time worked under a controller that was killed


def tracking_uri(run: RunPaths, *, is_gateway: bool = False) -> str:
    """Return the tracking URI of a run and its trials, and store it in the run's folder for later controllers.

    It comes from the environment variable MLFLOW_TRACKING_URI, or else is that of a local MLflow. But a run stays at the
    MLflow in which it was recorded first: if the variable names another one, that is ignored with a warning. If the variable
    has another login for the same MLflow, the new login is used.

    Args:
        run: Paths of the run.
        is_gateway: Whether the URI in the environment is that of the gateway. Then it is always used, and not stored: the
            gateway may have got another address, but the MLflow behind it is the same.
    """
    current = os.environ.get(env.MLFLOW_TRACKING_URI, "")
    if current and is_gateway:
        return current
    uri_file = run.exporter
    previous = uri_file.read_text() if uri_file.exists() else ""
    if previous and current and _without_login(current) != _without_login(previous):
        log.warning(
            "%s is still recorded to %s, where it began, and not to the current %s (%s); submit under another name for that",
            run.root.name,
            escapes.mask_passwords(previous),
            env.MLFLOW_TRACKING_URI,
            escapes.mask_passwords(current),
        )
        return previous
    uri = current or previous or paths.mlflow_uri(run.home)
    uri_file.write_text(uri)
    return uri


def _without_login(uri: str) -> str:
    """Return a URI without user name and password: for example https://host/ml for https://user:password@host/ml/."""
    return re.sub(r"(?<=://)[^/?#]*@", "", uri).rstrip("/")
