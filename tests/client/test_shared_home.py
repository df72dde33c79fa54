"""A home that several machines or containers share: a run that is worked on elsewhere is alive, and nothing here touches it.

Another machine is a lock that somebody holds in the name of another boot. Not checked here: locks of NFS themselves.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import time

import pytest
from click.testing import CliRunner
from tests.client.conftest import complete

from trialplane.cli.status import list_command
from trialplane.client import process
from trialplane.client.run import RunHandle
from trialplane.errors import InputError, TargetError
from trialplane.wire.holder import Holder
from trialplane.wire.states import RunState

# With the pid of this process, which a signal that goes by the pid alone would reach.
ELSEWHERE = dataclasses.replace(Holder.of_this_process(), host="node7", boot="another boot")
IN_A_CONTAINER = dataclasses.replace(Holder.of_this_process(), host="node7", namespace="pid:[1]")
GONE = dataclasses.replace(Holder.of_this_process(), host="node7", boot="another boot", pid=2**22 + 1)


@pytest.fixture
def signals(monkeypatch):
    """What signals would have been sent to other processes, and to which."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((pid, number)))
    return sent


@pytest.mark.parametrize("holder", [ELSEWHERE, IN_A_CONTAINER, GONE])
def test_a_run_whose_controller_is_elsewhere_goes_on(runs, held, holder):
    run = runs.make("a", tell=complete, asks=3)
    told = runs.say(run, RunState.RUNNING, complete=1)
    held(run, holder)
    assert runs.target.is_active("a")
    assert RunHandle("a", runs.target).status() == told


@pytest.mark.parametrize("holder", [ELSEWHERE, IN_A_CONTAINER, GONE])
def test_it_is_neither_deleted_nor_resumed(runs, held, signals, holder):
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, RunState.RUNNING, complete=1)
    held(run, holder)
    with pytest.raises(InputError, match="is active"):
        runs.target.remove("a", forget=True)
    with pytest.raises(TargetError, match="node7"):
        RunHandle("a", runs.target).delete()
    with pytest.raises(InputError, match="is running"):
        RunHandle("a", runs.target).resume()
    assert run.ledger.exists()
    assert signals == []


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("verb", ["stop", "cancel"])
@pytest.mark.parametrize("holder", [ELSEWHERE, IN_A_CONTAINER])
def test_no_signal_crosses_to_a_process_that_has_its_pid_here(runs, held, signals, holder, verb, now):
    run = runs.make("a", tell=complete, asks=3)
    runs.say(run, RunState.RUNNING, complete=1)
    held(run, holder)
    with pytest.raises(TargetError) as caught:
        getattr(RunHandle("a", runs.target), verb)(now=now)
    assert all(word in str(caught.value) for word in (f"pid {os.getpid()} on node7", "platform cancel a --local"))
    assert signals == []
    assert not run.cancelled.exists(), "a pause there would become a cancel"
    assert RunHandle("a", runs.target).status().state is RunState.RUNNING


def test_a_lock_that_names_nobody_is_held_all_the_same(runs, held, signals):
    run = runs.make("a", tell=complete, asks=3)
    held(run)
    run.lock.write_text("4711\n")
    assert runs.target.is_active("a")
    with pytest.raises(TargetError, match="does not name its process: `fuser` shows it"):
        RunHandle("a", runs.target).stop()
    assert signals == []


def test_a_controller_that_has_just_taken_the_lock_is_known_by_its_start(runs, held, signals):
    run = runs.make("a", tell=complete, asks=3)
    held(run, GONE)
    run.controller.write_text(json.dumps(Holder.of_this_process().facts(started=time.time())))
    for text in ("", json.dumps(dataclasses.replace(Holder.of_this_process(), ticks=1).facts())):
        run.lock.write_text(text)
        assert process.active_controller(run) == Holder.of_this_process()


def test_a_controller_that_waits_for_ray_is_known_however_long_it_takes(runs):
    run = runs.make("a", tell=complete, asks=3)
    run.controller.write_text(json.dumps(Holder.of_this_process().facts(started=time.time() - 600)))
    assert process.active_controller(run) == Holder.of_this_process()


def test_another_process_that_got_the_pid_is_not_killed(runs, signals):
    """After the machine was started again within a minute, or with a pid that came round."""
    run = runs.make("a", tell=complete, asks=3)
    former = dataclasses.replace(Holder.of_this_process(), ticks=1)
    run.lock.write_text(json.dumps(former.facts()))
    run.controller.write_text(json.dumps(former.facts(started=time.time())))
    assert process.active_controller(run) is None
    process.signal_stop("a", former, now=True)
    assert signals == []


@pytest.mark.parametrize(("age", "alive"), [(5.0, True), (-5.0, True), (3600.0, False), (-3600.0, False)])
def test_one_that_is_being_started_elsewhere_counts_for_a_minute(runs, age, alive):
    run = runs.make("a")
    run.controller.write_text(json.dumps(ELSEWHERE.facts(started=time.time() - age)))
    assert runs.target.is_active("a") is alive


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without locks."""

    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_locks_a_process_here_is_looked_for(runs, no_locks):
    run = runs.make("a")
    run.lock.write_text("")
    run.controller.write_text(json.dumps(Holder.of_this_process().facts(started=1.0)))
    assert runs.target.is_active("a")
    run.controller.write_text(json.dumps(dataclasses.replace(Holder.of_this_process(), ticks=1).facts(started=1.0)))
    assert not runs.target.is_active("a")


def test_without_locks_one_elsewhere_may_be_alive(runs, no_locks):
    run = runs.make("a")
    run.lock.write_text("")
    run.controller.write_text(json.dumps(ELSEWHERE.facts(started=1.0)))
    with pytest.raises(TargetError) as caught:
        runs.target.remove("a", forget=True)
    assert all(word in str(caught.value) for word in ("No locks available", "node7", f"remove {run.controller}"))
    assert run.root.exists()
    found = CliRunner().invoke(list_command, ["--local"])
    assert (found.exit_code, "DAMAGED" in found.stdout) == (0, True), "the others of the list are shown"


def test_a_controller_on_a_file_system_without_locks_says_so(runs, no_locks):
    from trialplane.errors import LedgerUnavailable
    from trialplane.ledger import locking

    run = runs.make("a")
    with pytest.raises(LedgerUnavailable, match="No locks available; set TRIALPLANE_HOME"):
        locking.lock_file(run.lock, "a")


def test_a_second_controller_is_told_where_the_first_one_works(runs, held):
    from trialplane.errors import LedgerLocked
    from trialplane.ledger import locking

    run = runs.make("a")
    held(run, ELSEWHERE)
    with pytest.raises(LedgerLocked, match=rf"another controller \(pid {os.getpid()} on node7\)"):
        locking.lock_file(run.lock, "a")
