"""Notifications about a run, derived from its statuses and sent through apprise by a separate thread.

`Watch` derives messages from the statuses of a run, and `Notifier` sends them as the job's rules say. A service that is
slow, unreachable or misspelled does not affect the run: the failure is logged. If a controller is killed, a notification
may be lost or sent twice.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from trialplane import errors
from trialplane.job.notify import Notify, Occasion
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState

log = logging.getLogger(__name__)

STUCK = 600.0  # seconds without a running trial
BEST_INTERVAL = 60.0  # seconds between two messages about the best trial
CLOSE_PATIENCE = 30.0  # seconds for the last messages to be sent, also on a busy machine


@dataclasses.dataclass(frozen=True)
class Message:
    """A notification. A rule of the job with any of its occasions sends it."""

    occasions: frozenset[Occasion]
    title: str
    text: str


class Watch:
    """Derives messages from consecutive statuses of a run.

    Args:
        last_status: Last status of an earlier controller; None for a new run.
    """

    def __init__(self, last_status: RunStatus | None = None) -> None:
        # Number of the best trial when the last message about it was sent
        self._best_trial = None if last_status is None or last_status.best is None else last_status.best.trial
        self._best_sent = -math.inf  # time of this message
        self._idle_since: float | None = None  # time since which no trial has run; infinity after a message about that

    def messages(self, status: RunStatus, now: float) -> list[Message]:
        """Return the messages about a new status of a run: a new best trial, or no running trial for a long time.

        Args:
            status: The status.
            now: Current time by the monotonic clock.
        """
        messages: list[Message] = []
        if not status.state.is_active:
            return messages
        best, may_send_best = status.best, now - self._best_sent >= BEST_INTERVAL
        if best is not None and best.trial != self._best_trial and may_send_best:
            self._best_trial, self._best_sent = best.trial, now
            messages.append(Message(frozenset({"best"}), f"{status.run}: new best trial", _best_text(status, best)))
        if status.running:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= STUCK:
            self._idle_since = math.inf  # no second message until a trial has run
            text = f"No trial has run for {STUCK / 60:.0f} minutes: {status.reason or 'the slots are not ready'}\n"
            messages.append(Message(frozenset({"stuck"}), f"{status.run} is stuck", f"{text}{_command('status', status)}"))
        return messages


def end_message(status: RunStatus) -> Message:
    """Return the message about the end of a run."""
    occasions: set[Occasion] = {"ended", "failed"} if status.state is RunState.FAILED else {"ended"}
    counts = f"{status.complete} complete, {status.pruned} pruned, {status.failed} failed"
    best = "" if status.best is None else f"{_best_text(status, status.best)}\n"
    command = "logs" if status.state is RunState.FAILED else "results"
    text = f"{status.reason}\n{counts}\n{best}{_command(command, status)}"
    return Message(frozenset(occasions), f"{status.run} {status.state.value}", text)


class Notifier:
    """Sends the messages of a run.

    Args:
        rules: Rules of the job.
        secrets: Folder with a file for each secret; None if these are environment variables.
        last_status: Last status of an earlier controller; None for a new run.
    """

    def __init__(self, rules: Sequence[Notify], secrets: Path | None, last_status: RunStatus | None) -> None:
        self._rules = rules
        self._secrets = secrets
        self._watch = Watch(last_status)
        self._messages: queue.Queue[Message | None] = queue.Queue()
        self._thread = threading.Thread(target=self._send_all, name="notify", daemon=True)
        if rules:
            self._thread.start()

    def show(self, status: RunStatus) -> None:
        """Queue the messages about a new status, see `Watch.messages`."""
        if self._rules:
            for message in self._watch.messages(status, time.monotonic()):
                self._messages.put(message)

    def end(self, status: RunStatus) -> None:
        """Queue the message about the run's end."""
        if self._rules:
            self._messages.put(end_message(status))

    def close(self) -> None:
        """Wait at most `CLOSE_PATIENCE` seconds until the last messages are sent."""
        if self._rules:
            self._messages.put(None)  # ends the thread
            self._thread.join(CLOSE_PATIENCE)

    def _send_all(self) -> None:
        """Send queued messages until the notifier is closed; runs in a separate thread."""
        while (message := self._messages.get()) is not None:
            for rule in self._rules:
                if message.occasions & set(rule.on):
                    self._send(rule, message)

    def _send(self, rule: Notify, message: Message) -> None:
        """Send one message, or log why it was not sent. The log never contains the URL, which may contain a password."""
        name = f"secret:{rule.secret}" if rule.secret is not None else rule.url.partition(":")[0]
        try:
            import apprise  # only jobs with notifications need it

            service = apprise.Apprise()
            if not service.add(self._url(rule)):
                raise errors.InputError("it is no URL of apprise")
            if not service.notify(title=message.title, body=message.text):
                raise errors.InputError("the service refused it or did not answer")
        except Exception as error:  # noqa: BLE001  any library that apprise uses may raise its own
            # The text of any other error may contain the URL.
            text = str(error) if isinstance(error, (errors.InputError, OSError)) else type(error).__name__
            log.warning("the notification %r was not sent to %s: %s", message.title, name, text)

    def _url(self, rule: Notify) -> str:
        """Return the URL of a rule: from the rule itself, from a file with a secret, or from an environment variable.

        Raises:
            InputError: The environment variable is not set.
            OSError: The file cannot be read.
        """
        if rule.secret is None:
            return rule.url
        if self._secrets is not None:
            return (self._secrets / rule.secret).read_text().strip()
        url = os.environ.get(rule.secret, "")
        if not url:
            raise errors.InputError(f"the environment variable {rule.secret} was not set when the run was started")
        return url


def _best_text(status: RunStatus, best: TrialRow) -> str:
    """Return a text about the best trial: its objectives and parameters."""
    values = ", ".join(f"{name} {value:.6g}" for name, value in zip(status.objectives, best.values, strict=False))
    params = "".join(f"\n  {name} = {value}" for name, value in best.params.items())
    return f"best {values} (trial {best.trial}){params}"


def _command(verb: str, status: RunStatus) -> str:
    """Return the command of `platform` for a run."""
    return f"platform {verb} {status.run}"
