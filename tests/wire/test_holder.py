"""Who holds a run's lock: what is written of a process, and when another one is not taken for it.

Not checked here: what the local target makes of it (tests/client/test_shared_home.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from trialplane.wire import records
from trialplane.wire.holder import Holder


def test_a_process_knows_itself_again():
    me = Holder.read(records.to_json(Holder.of_this_process()))
    assert me == Holder.of_this_process()
    assert (me.pid, me.is_visible, me.is_alive) == (os.getpid(), True, True)
    assert str(os.getpid()) in me.description


def test_other_facts_beside_it_do_not_matter():
    assert Holder.read(json.dumps(Holder.of_this_process().facts(port=80, started=1.5))) == Holder.of_this_process()


@pytest.mark.parametrize("field", ["boot", "namespace"])
def test_the_same_pid_on_another_boot_or_in_another_container_is_not_here(field):
    other = dataclasses.replace(Holder.of_this_process(), **{field: "another"})
    assert (other.is_visible, other.is_alive) == (False, False)


def test_a_process_that_got_the_pid_of_one_that_ended_is_not_it():
    former = dataclasses.replace(Holder.of_this_process(), ticks=Holder.of_this_process().ticks - 1)
    assert (former.is_visible, former.is_alive) == (True, False)


def test_a_process_that_has_ended_is_gone_also_before_somebody_waits_for_it():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        holder = Holder.of(child.pid)
        assert holder.is_alive
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert not holder.is_alive
        child.wait()
        assert not holder.is_alive


@pytest.mark.parametrize(
    "text",
    ["", "4711\n", "null", "[]", "{", "{}", '{"pid": "1"}', '{"pid": -1}', '{"pid": true}', '{"pid": 1.5}',
     '{"pid": 1, "boot": 3}', b"\xff\x00", '{"pid": 1, "ticks": null}', "[" * 100_000],
)  # fmt: skip
def test_a_lock_that_is_empty_or_damaged_names_nobody(text):
    assert Holder.read(text) == Holder()
    assert not Holder().is_visible


def test_no_number_is_too_large_for_a_pid():
    assert not dataclasses.replace(Holder.of_this_process(), pid=10**4000).is_alive
