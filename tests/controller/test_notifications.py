"""Notifications of a run: which status gives rise to which message, and that a service cannot disturb the run.

The service is a real HTTP server. Not checked here: the fields of a job (tests/job/test_notify.py).
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.webhook import webhook

from trialplane.controller import notifications
from trialplane.controller.notifications import Notifier, Watch
from trialplane.job.notify import Notify, Occasion
from trialplane.wire.records import RunStatus, TrialRow
from trialplane.wire.states import RunState, TrialState

RUNNING = RunStatus("toy-1", "toy", RunState.RUNNING, 8, running=2, objectives=("loss",))


def best(trial: int, value: float) -> TrialRow:
    return TrialRow(trial, TrialState.COMPLETE, 1, trial, (value,), {"lr": 0.1})


def titles(watch: Watch, status: RunStatus, now: float) -> list[str]:
    return [message.title for message in watch.messages(status, now)]


def test_each_best_trial_is_told_once_and_not_more_often_than_once_a_minute() -> None:
    watch = Watch()
    assert titles(watch, RUNNING, 0.0) == []
    first = dataclasses.replace(RUNNING, best=best(0, 0.5))
    (message,) = watch.messages(first, 1.0)
    assert (message.title, message.text) == ("toy-1: new best trial", "best loss 0.5 (trial 0)\n  lr = 0.1")
    assert message.occasions == {"best"}
    assert titles(watch, first, 100.0) == []
    second = dataclasses.replace(RUNNING, best=best(3, 0.25))
    assert titles(watch, second, 60.0) == []
    assert titles(watch, second, 61.0) == ["toy-1: new best trial"]


def test_the_best_trial_of_an_earlier_controller_is_not_told_again() -> None:
    known = dataclasses.replace(RUNNING, best=best(0, 0.5))
    assert titles(Watch(known), known, 0.0) == []


def test_a_run_without_a_running_trial_is_stuck_after_ten_minutes() -> None:
    watch = Watch()
    idle = dataclasses.replace(RUNNING, running=0, reason="slot 0 failed to start")
    assert titles(watch, idle, 0.0) == []
    assert titles(watch, RUNNING, 590.0) == []
    assert titles(watch, idle, 600.0) == []
    assert titles(watch, idle, 1199.0) == []
    (message,) = watch.messages(idle, 1200.0)
    assert message.title == "toy-1 is stuck"
    assert message.text == "No trial has run for 10 minutes: slot 0 failed to start\nplatform status toy-1"
    assert titles(watch, idle, 9000.0) == [], "once"
    assert titles(watch, RUNNING, 9001.0) == []
    assert titles(watch, idle, 9002.0) == []
    assert titles(watch, idle, 9602.0) == ["toy-1 is stuck"]


@pytest.mark.parametrize(
    ("state", "occasions", "command"),
    [
        (RunState.SUCCEEDED, {"ended"}, "platform results toy-1"),
        (RunState.PAUSED, {"ended"}, "platform results toy-1"),
        (RunState.FAILED, {"ended", "failed"}, "platform logs toy-1"),
    ],
)
def test_an_end_has_its_reason_its_counts_and_the_next_command(
    state: RunState, occasions: set[Occasion], command: str
) -> None:
    status = dataclasses.replace(RUNNING, state=state, reason="all 8 trials ended", complete=7, failed=1, best=best(2, 0.5))
    message = notifications.end_message(status)
    assert message.title == f"toy-1 {state.value}"
    assert message.occasions == occasions
    assert message.text.splitlines() == [
        "all 8 trials ended",
        "7 complete, 0 pruned, 1 failed",
        "best loss 0.5 (trial 2)",
        "  lr = 0.1",
        command,
    ]


@pytest.fixture
def service() -> Iterator[tuple[int, queue.Queue[dict[str, Any]]]]:
    """The port of a service, and the messages that it has received."""
    with webhook() as service_:
        yield service_


ENDED = dataclasses.replace(RUNNING, state=RunState.SUCCEEDED, reason="all 8 trials ended", complete=8)


def test_messages_reach_the_services_that_want_them(service: tuple[int, queue.Queue[dict[str, Any]]]) -> None:
    port, received = service
    url = f"json://127.0.0.1:{port}/hook"
    notifier = Notifier((Notify(url=url, on=("best", "ended")), Notify(url=url, on=("failed",))), None, None)
    notifier.show(dataclasses.replace(RUNNING, best=best(0, 0.5)))
    notifier.end(ENDED)
    notifier.close()
    sent = [received.get(timeout=300) for _ in range(2)]
    assert [message["title"] for message in sent] == ["toy-1: new best trial", "toy-1 SUCCEEDED"]
    assert received.empty()
    assert sent[1]["message"].startswith("all 8 trials ended\n8 complete")


@pytest.mark.parametrize("on_cluster", [False, True])
def test_a_secret_holds_the_url(
    service: tuple[int, queue.Queue[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_cluster: bool
) -> None:
    port, received = service
    url = f"json://127.0.0.1:{port}/hook"
    if on_cluster:
        (tmp_path / "HOOK").write_text(f"{url}\n")
    else:
        monkeypatch.setenv("HOOK", url)
    notifier = Notifier((Notify(url="secret:HOOK"),), tmp_path if on_cluster else None, None)
    notifier.end(ENDED)
    notifier.close()
    assert received.get(timeout=300)["title"] == "toy-1 SUCCEEDED"


@pytest.mark.parametrize(
    "url", ["json://user:hidden@127.0.0.1:{port}/refuse", "json://user:hidden@127.0.0.1:1/", "secret:NONE"]
)
def test_a_service_that_fails_costs_a_line_in_the_log_without_its_password(
    service: tuple[int, queue.Queue[dict[str, Any]]], caplog: pytest.LogCaptureFixture, tmp_path: Path, url: str
) -> None:
    port, received = service
    good = Notify(url=f"json://127.0.0.1:{port}/hook")
    notifier = Notifier((Notify(url=url.format(port=port)), good), tmp_path, None)
    with caplog.at_level(logging.WARNING, "trialplane"):
        notifier.end(ENDED)
        notifier.close()
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("trialplane")]
    assert line.startswith("the notification 'toy-1 SUCCEEDED' was not sent to ")
    assert "hidden" not in caplog.text
    assert [message["title"] for message in received.queue][-1:] == ["toy-1 SUCCEEDED"], "the other service gets it"


def test_a_service_that_hangs_delays_the_end_by_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "CLOSE_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        notifier = Notifier((Notify(url=f"json://127.0.0.1:{silent.getsockname()[1]}/"),), None, None)
        notifier.end(ENDED)
        notifier.close()
