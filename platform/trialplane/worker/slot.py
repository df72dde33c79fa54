"""A slot: runs one trial at a time in a process forked from its warm template, and reports its events.

The slot owns the template and the trial's channel, and enforces its limits (running.py). It is driven by calls that return
the next event, so that the Ray actor around it needs no thread per trial:

    slot.start()                    the template is warm, or EntrypointError
    slot.run(request)               the first messages about the trial, and until TrialEnded is among them:
    slot.answer(prune_at, suggested)  answers a report or a Suggest; the next messages
    slot.stop(message)              from another thread: requests the running trial to save a checkpoint and end
    slot.kill(failure, message)     from another thread: ends the running trial
    slot.exchange                   from another thread: the units and results of a collection (collect/exchange.py)

It must not import Ray, Optuna or MLflow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trialplane import errors
from trialplane.training import process
from trialplane.wire import messages, paths, records
from trialplane.wire.paths import RunPaths
from trialplane.wire.states import FailureClass, TrialState
from trialplane.worker import environment, outcomes, programs, sessions, shipping, trial_end
from trialplane.worker.channel import Channel
from trialplane.worker.collect import exchange
from trialplane.worker.metrics.reader import Reader
from trialplane.worker.ranks import meeting
from trialplane.worker.running import WATCH_INTERVAL, Messages, RunningTrial, accepted_messages, log_messages
from trialplane.worker.setup import usage
from trialplane.worker.shims import capture, wandb_files
from trialplane.worker.template import MAX_MESSAGE

if TYPE_CHECKING:
    from trialplane.worker.collect.segments import Bytes

IMPORT_PATIENCE = 1800.0  # seconds for the template to import the job's code
CLOSE_PATIENCE = 5.0  # seconds for the template to kill the processes of its trials and end; again as long after SIGKILL


class _TemplateMessage(NamedTuple):
    """A message of the template.

    Attributes:
        message: The message; None if the template is gone.
        pidfd: Descriptor of the process that the template has started; -1 if the message is not about a start.
    """

    message: messages.TrialStarted | messages.TrialExited | None
    pidfd: int = -1


class Slot:
    """A slot on this machine, for one trial at a time.

    Attributes:
        config: Configuration that all slots of the role share, with the paths of this machine.
        name: Name of the slot, unique in the run.
        node: Host or pod of the slot.
        template: Process of the template; None before the start, and after the end.
        running: Trial that runs now; None between trials.
    """

    def __init__(self, config: records.SlotConfig, name: str) -> None:
        self.config = config = shipping.localized_config(config) if config.ship else config
        self.name = name
        self.node = socket.gethostname()
        self._paths = RunPaths(Path(config.root))
        self._log = self._paths.slot_log(name)
        self.template: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self.running: RunningTrial | None = None
        # The log of an ended trial that is still being sent in pieces, and the messages that follow its last piece.
        self._unsent_end: tuple[shipping.Log, Messages] | None = None
        self._rendezvous: meeting.Port | None = None  # the rendezvous of a trial's nodes, if this slot is one of several

    def start(self) -> messages.SlotStarted:
        """Start the template and wait until it is warm: it has imported the job's code and can fork trials.

        Raises:
            EntrypointError: The job's code does not import, or needs packages that are not installed.
            SlotError: The template ended without a message, or has sent none in time.
            MessageError: The template is of another version.
        """
        if self.config.pack:
            shipping.unpack_code(Path(self.config.pack), Path(self.config.code), self.config.code_hash)
        shipping.add_links(Path(self.config.code), self.config.links)
        environment.add_packages_to_path()
        usage.check_installed(self.config)
        self._control = self._start_template()
        loaded = self._receive_loaded(self._control)
        if self.config.nodes > 1 and self._rendezvous is None:  # it stays if `run` starts an ended template again
            self._rendezvous = meeting.Port(meeting.own_address())
        address = "" if self._rendezvous is None else self._rendezvous.address
        return messages.SlotStarted(self.node, loaded.seconds, loaded.unclean, address)

    def _start_template(self) -> socket.socket:
        """Start the process of the template, which imports the job's code; return the slot's end of its socket."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        slot_end, template_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        load_file = os.fdopen(os.memfd_create("load"), "w+b")  # writing to a pipe would wait for a template that hangs
        with template_end, self._log.open("ab") as log, load_file:
            load_file.write(messages.encode(messages.LoadJob(self.config)))
            load_file.seek(0)
            self.template = subprocess.Popen(
                [sys.executable, "-P", "-m", "trialplane.worker.template", str(template_end.fileno())],
                pass_fds=[template_end.fileno()],
                stdin=load_file,
                stdout=log,
                stderr=log,
                env=environment.template_variables(self.config),
                start_new_session=True,
            )
        return slot_end

    def _receive_loaded(self, control: socket.socket) -> messages.JobLoaded:
        """Wait for the template's first message, and return it if the job's code was imported; otherwise end the template.

        Raises:
            EntrypointError, SlotError, MessageError: As in `start`.
        """
        if not select.select([control], [], [], IMPORT_PATIENCE)[0]:
            self._end_template(signal.SIGABRT)
            raise errors.SlotError(
                f"slot {self.name} on {self.node}: its template had not imported the job's code after {IMPORT_PATIENCE:g} s "
                f"and was killed. An import hangs, or the process was stopped; the stacks of its threads: "
                f"{self._template_output()}"
            )
        data = control.recv(MAX_MESSAGE)
        try:
            message = messages.decode(data, messages.FROM_LOADING) if data else None
        except errors.MessageError:
            self.close()
            raise
        if isinstance(message, messages.JobLoaded):
            return message
        self.close()
        if message is None:
            raise errors.SlotError(
                f"slot {self.name} on {self.node}: its template ended while importing; see {self._template_output()}"
            )
        raise errors.EntrypointError(self._load_failure_text(message.message))

    def _load_failure_text(self, failure: str) -> str:
        """Return the message for a job whose code cannot be loaded, with the failure that the template has sent."""
        # Before a program's trials, its arguments are checked too, so the cause may be other than an import.
        problem = "the job's code does not import" if self.config.program is None else "no trial can start"
        return (
            f"{problem}: {failure}\n  in {self.config.code}, {self._program_name()}\n  traceback: {self._template_output()}"
        )

    def run(self, request: records.TrialRequest, weights: Bytes | None = None) -> Messages:
        """Start one trial and return the first messages about it.

        Args:
            request: Request of the trial.
            weights: Packed weights, for a worker of a collection.
        """
        assert self.running is None, "a slot runs one trial at a time"
        if self.template is None or self.template.poll() is not None:
            self._end_template()
            self.start()
        workdir = self._paths.scratch / f"{self.name}-{request.number}"
        log_file = self._paths.trial_log(request.trial, request.attempt, request.worker)
        self.running = running = RunningTrial(
            self.config,
            request,
            Channel(self._request_process(request.number), accepted_messages(self.config, request)),
            workdir,
            started_at=time.time(),
            reader=self._metrics_reader(request, log_file, workdir),
            log=shipping.Log(log_file) if self.config.ship else None,
        )
        self._expect_template(running)
        if self.config.role != "trial":
            running.exchange = exchange.Exchange(request, running.send, weights, workdir)
        shared_files = None if running.exchange is None else running.exchange.shared_files
        running.send(messages.RunTrial(self.config, request, workdir=str(workdir), shared_files=shared_files))
        if self.config.memory is not None:
            watcher = threading.Thread(target=running.watch_memory, args=(self.config.memory,), name="memory", daemon=True)
            watcher.start()
        return self.next_messages()

    def _request_process(self, number: int) -> socket.socket:
        """Request the process of an attempt from the template, and return the slot's end of its channel."""
        assert self._control is not None
        slot_end, process_end = socket.socketpair()
        with process_end, contextlib.suppress(OSError):  # the template has just died; the first event reports that
            start = messages.encode(messages.StartTrial(number))
            socket.send_fds(self._control, [start], [process_end.fileno()])
        return slot_end

    def _metrics_reader(self, request: records.TrialRequest, log_file: Path, workdir: Path) -> Reader | None:
        """Return a reader of the metrics of a program; None for a function, or on a node other than the first."""
        program = self.config.program
        if program is None or request.node != 0:
            return None
        folder = programs.folder(program, workdir)
        if capture.captures_wandb(self.config):  # processes that the program starts log to W&B by this file, too
            program = dataclasses.replace(program, metrics=(*program.metrics, wandb_files.SOURCE))
        code = Path(self.config.code)
        return Reader(program, log_file, folder, time.time(), code=code, stop=request.stop, params=request.params)

    def answer(self, prune_at: int | None = None, suggested: messages.Suggested | None = None) -> Messages:
        """Answer the newest reports and requests of the trial, and return the next messages about it.

        After the trial has ended, there is nothing to answer, and a call returns the next piece of its log. TrialEnded comes
        with the last piece.

        Args:
            prune_at: Step at which the trial is pruned; None if it continues.
            suggested: Answer to a request for a parameter; None without a request.
        """
        if self._unsent_end is not None:
            return self._next_end_messages()
        running = self.running
        assert running is not None, "no trial runs in this slot"
        running.answer(prune_at, suggested)
        if running.is_gone.is_set():  # the answer was for the last reports of a process that had ended, see `_end_trial`
            return self._conclude(running)
        return self.next_messages()

    def kill(self, failure: FailureClass, message: str) -> None:
        """End the running trial, if there is one, as `failure`. May be called from another thread."""
        if (running := self.running) is not None:
            running.kill(failure, message)

    def stop(self, message: str) -> None:
        """Request the running trial, if any, to save a checkpoint and end; kill it after the grace period.

        The outcome is LOST, with the message, unless the trial ends in another way first. May be called from another thread.
        """
        if (running := self.running) is not None:
            running.stop(message)

    @property
    def exchange(self) -> exchange.Exchange | None:
        """The exchange of a running worker or learner of a collection, None without one. May be read from other threads."""
        running = self.running
        return None if running is None else running.exchange

    def close(self) -> None:
        """End the template and the running trial."""
        self.kill(FailureClass.STOPPED, "its slot was closed")  # otherwise the template may wait for the end of the trial
        self._end_template()
        if self.running is not None:
            self.running.channel.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _end_template(self, first_signal: signal.Signals | None = None) -> None:
        """End the template, and return after three times `CLOSE_PATIENCE` at most.

        The template first has `CLOSE_PATIENCE` to kill its trials and end by itself, except with SIGKILL. Then it is killed
        with all processes below it. It may still run at the return: a process that waits for a disk ends only when the disk
        answers.

        Args:
            first_signal: SIGABRT for a template that hangs in an import, which then writes its stacks to the log; SIGKILL
                for one that does not answer. None for one that ends by itself when its socket is closed.
        """
        control, template = self._control, self.template
        self._control = self.template = None
        if control is not None and first_signal is None:  # with SIGABRT, it must not end before it has written its stacks
            control.close()
        if template is not None:
            if first_signal is signal.SIGABRT:
                template.send_signal(first_signal)
            if first_signal is signal.SIGKILL or not _ends_in_time(template):
                process.kill_tree(template.pid, CLOSE_PATIENCE)
                _ends_in_time(template)
        if control is not None:  # no effect if it is closed already
            control.close()

    def _program_name(self) -> str:
        """Return the program that its trials run, for a message."""
        program = self.config.program
        if program is None:
            return f"entrypoint {self.config.entrypoint}"
        return f"script {program.script}" if program.script else f"command {program.command[0]}"

    def _template_output(self) -> str:
        """Return the path of the template's log for a message, or the log's end if the user cannot read the file."""
        if not self.config.ship:
            return str(self._log)
        with contextlib.suppress(OSError):
            return f"the end of its log on {self.node}:\n{self._log.read_bytes()[-4000:].decode(errors='replace')}"
        return "nothing: its log cannot be read"

    def next_messages(self) -> Messages:
        """Handle the trial's events until there are messages for the controller, and return these messages.

        Events are messages of the process, the end of the process, messages of the template, and timers.
        """
        running = self.running
        assert running is not None
        while True:
            readable = self._wait_for_sources(running)
            if running.channel in readable:
                running.receive()  # what it sent is handed over by a due action
            if running.pidfd in readable:
                self._expect_template(running)  # the process has ended; the template reports its exit code
            if self._control in readable and (last_messages := self._handle_template_message(running)) is not None:
                return last_messages
            if (due_messages := running.run_due_actions()) is not None:
                return due_messages

    def _handle_template_message(self, running: RunningTrial) -> Messages | None:
        """Handle the template's next message; return the trial's last messages if its process or the template has ended."""
        try:
            message, pidfd = self._receive_from_template()
        except errors.MessageError as error:
            running.kill(FailureClass.INVALID, f"{error}; its template was ended, see {self._template_output()}")
            self._end_template()
            return self._end_trial(running, None)
        if not isinstance(message, messages.TrialStarted):
            return self._end_trial(running, message)
        running.handle_start(message.pid, message.method, pidfd)
        if message.reasons:
            with self._log.open("a") as log:
                log.write(f"attempt {message.number} was spawned, not forked: {'; '.join(message.reasons)}\n")
        return None

    def _wait_for_sources(self, running: RunningTrial) -> list[Any]:
        """Wait for the process, its end, the template, or the next timer; return the readable ones."""
        sources: list[Any] = [self._control]
        if running.is_open:  # a closed channel would always be readable
            sources.append(running.channel)
        if running.pidfd is not None and running.template_asked_at is None:
            sources.append(running.pidfd)
        return select.select(sources, [], [], running.timers.until_next())[0]

    def _expect_template(self, running: RunningTrial) -> None:
        """Set the timer that ends a template which does not send its next message, about a start or an exit."""
        running.template_asked_at = time.monotonic()
        running.timers.set("template", running.template_asked_at, self._check_template)  # it sets its own next time

    def _check_template(self) -> Messages | None:
        """Kill the template if its message is overdue, as when it was stopped, or waits for a disk or a debugger.

        Returns:
            The last messages of the trial, which ends with its template; None if the template has time left.
        """
        running = self.running
        assert running is not None
        assert running.template_asked_at is not None
        now = time.monotonic()
        overdue_at = running.template_asked_at + running.template_patience()
        if now < overdue_at:  # checked often, because another thread may kill the process, which shortens the time
            running.timers.set("template", min(overdue_at, now + WATCH_INTERVAL), self._check_template)
            return None
        running.template_end_text = f"did not answer for {running.template_patience():g} s and was killed"
        self._end_template(signal.SIGKILL)
        return self._end_trial(running, None)

    def _receive_from_template(self) -> _TemplateMessage:
        """Return the template's next message.

        Raises:
            MessageError: The template sent an invalid message, as the job's code in it may do.
        """
        assert self._control is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 1)
        except ConnectionResetError:  # it was killed before it read the slot's message
            return _TemplateMessage(None)
        if not data:
            return _TemplateMessage(None)
        message = messages.decode(data, messages.FROM_TEMPLATE)
        if not isinstance(message, messages.TrialStarted):
            return _TemplateMessage(message)
        if not descriptors:
            raise errors.MessageError("a template sent TrialStarted without the descriptor of the process")
        return _TemplateMessage(message, descriptors[0])

    def _end_trial(self, running: RunningTrial, exit_message: messages.TrialExited | None) -> Messages:
        """Read what is left of a trial whose process or template is gone, and return its last messages.

        In a study that prunes, these are at first only its last reports. The end follows once they are answered, so that a
        program that ends quickly can still be pruned. Late reports come with the end: they are of a trial that ran in full.

        Args:
            running: Trial that has ended.
            exit_message: Message of the template about the process's end; None if the template is gone.
        """
        while running.channel.is_readable() and running.receive():  # the messages that are left in the channel
            pass
        running.read_metrics(ended=True)
        with running.send_lock:
            running.channel.close()
        running.handle_exit()
        if exit_message is None and running.pid:  # the template is gone and cannot kill the trial's descendants
            sessions.kill(running.pid)
        running.exit_message = exit_message
        if running.request.prunable and running.reports:
            return running.take_messages()
        return self._conclude(running)

    def _conclude(self, running: RunningTrial) -> Messages:
        """Return the last messages of a trial that has ended, with its outcome, and remove its scratch folder.

        If its log is sent to the controller, these are the first piece of the log's rest, and `answer` returns the others.
        """
        self.running = None
        outcome, arrays = self._build_outcome(running)  # before the folder that it may search is gone
        shutil.rmtree(running.workdir, ignore_errors=True)
        paths.remove_short_path(running.workdir)
        ended = messages.TrialEnded(outcome, arrays=arrays)
        last_messages: Messages = (*running.reports, *running.late_reports, *running.take_samples())
        if running.exchange is not None:
            last_messages = (*last_messages, *running.exchange.news())
            ended = dataclasses.replace(ended, begun=running.exchange.begun_units)
            running.exchange.close()
        if running.log is None:
            return (*last_messages, ended)
        store = self._paths.trial_store(outcome.number, running.request.worker)
        packed_store = shipping.pack_store(store, running.workdir.with_suffix(".store"))
        self._unsent_end = running.log, (*last_messages, dataclasses.replace(ended, store=packed_store))
        return self._next_end_messages()

    def _next_end_messages(self) -> Messages:
        """Return the next piece of an ended trial's log; with the last piece also the messages of the trial's end."""
        assert self._unsent_end is not None
        log, end_messages = self._unsent_end
        piece_messages = log_messages(log.next_piece(ended=True))
        if not log.is_sent:
            return piece_messages
        self._unsent_end = None
        log.remove()
        return (*piece_messages, *end_messages)

    def _build_outcome(self, running: RunningTrial) -> trial_end.CheckedOutcome:
        """Return the outcome of a trial that has ended, with the path of its arrays."""
        outcome = self._with_slot_facts(running)
        if outcome.state is TrialState.PAUSED and outcome.checkpoints is None:
            outcome = outcomes.unsaved_outcome(outcome)
        if outcome.state is not TrialState.COMPLETE:
            return trial_end.CheckedOutcome(outcome)
        ended_without_message = running.final_outcome is None and running.decided_end is None
        if self.config.keep and ended_without_message:  # the process copies the files just before its last message
            text = (
                "keep.files: nothing was copied, as the script ended by os._exit or os.exec…; run it with `command:` instead"
            )
            return trial_end.CheckedOutcome(dataclasses.replace(outcome, remark=text))
        return trial_end.check_arrays(outcome, paths.trial_arrays(running.workdir))

    def _with_slot_facts(self, running: RunningTrial) -> records.TrialOutcome:
        """Return the trial's outcome with what the slot knows of its process, its log and its checkpoints."""
        exit_message = running.exit_message
        code = None if exit_message is None else exit_message.code
        loss_text = f"the template of slot {self.name} on {self.node} {running.template_end_text}, and the trial with it"
        outcome = trial_end.outcome_of(running, code, loss_text)
        return dataclasses.replace(
            outcome,
            ended=time.time(),
            # Of several ranks, the outcome already has the exit code of the rank that explains the end.
            exit_code=code if outcome.exit_code is None else outcome.exit_code,
            node=self.node,
            pid=running.pid,
            start_method=running.start_method,
            log=paths.trial_log(running.request.trial, running.request.attempt, running.request.worker),
            peak_memory=max(0 if exit_message is None else exit_message.peak_memory, outcome.peak_memory),
            saved=trial_end.has_saved(self.config, running.request),
            checkpoints=trial_end.checkpoint_summary(self.config, running.request),
        )


def _ends_in_time(child: subprocess.Popen[bytes]) -> bool:
    """Wait for the end of a process, and return whether it has ended within `CLOSE_PATIENCE`."""
    try:
        child.wait(timeout=CLOSE_PATIENCE)
    except subprocess.TimeoutExpired:
        return False
    return True
