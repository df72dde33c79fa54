"""The one shape of the four policies, and protobuf's and spawn's own rules, each in a process of its own.

Not checked here: that protobuf's failure is real and gone (tests/worker/test_protobuf_failure.py), pickling and transport
(files of their own), that templates obey spawn (tests/worker/test_template.py).
"""

from __future__ import annotations

import sys
import threading

import pytest
from tests.policies.conftest import Program

from trialplane import policies
from trialplane.policies import pickling, protobuf, spawn, transport

NAMES = ["protobuf", "spawn", "pickling", "transport"]


def test_one_shape() -> None:
    assert (protobuf, spawn, pickling, transport) == policies.ALL
    for policy in policies.ALL:
        text = policy.__doc__ or ""
        assert all(f"{part}:" in text for part in ("Rule", "Why", "Enforced where", "Test")), policy.__name__
        assert policy.ENV
        assert all(isinstance(value, str) for pair in policy.ENV.items() for value in pair)


def test_a_trials_environment_is_all_of_them() -> None:
    assert policies.trial_env() == {**protobuf.ENV, **spawn.ENV, **pickling.ENV, **transport.ENV}


@pytest.mark.parametrize("name", NAMES)
def test_a_process_that_was_not_started_through_us_does_not_pass(program: Program, name: str) -> None:
    said = program(
        f"from trialplane import errors\nfrom trialplane.policies import {name}\n"
        f"try:\n    {name}.check()\nexcept errors.PolicyError as error:\n    print(error)\n"
    )
    assert said, "check() found nothing wrong"
    assert "trialplane" in said, "says what to do"


@pytest.mark.parametrize("name", NAMES)
def test_apply_makes_the_check_pass(program: Program, name: str) -> None:
    code = f"from trialplane.policies import {name}\n{name}.apply()\n{name}.apply()\n{name}.check()\nprint('holds')\n"
    assert program(code) == "holds"


def test_all_together_before_any_other_import(program: Program) -> None:
    code = (
        "import sys\nfrom trialplane import policies\n"
        "heavy = {'numpy', 'torch', 'google'} & set(sys.modules)\n"
        "policies.apply_all()\nfor policy in policies.ALL: policy.check()\nprint(heavy or 'light')\n"
    )
    assert program(code) == "light"


def test_protobuf_is_the_pure_one_after_apply(program: Program) -> None:
    code = (
        "from trialplane.policies import protobuf\nprotobuf.apply()\nbefore = protobuf.implementation()\n"
        "import google.protobuf.internal.api_implementation\nprint(before, protobuf.implementation())\nprotobuf.check()\n"
    )
    assert program(code) == "None python"


def test_protobuf_imported_too_early_is_found(program: Program) -> None:
    code = (
        "import google.protobuf.internal.api_implementation\n"
        "from trialplane import errors\nfrom trialplane.policies import protobuf\nprotobuf.apply()\n"
        "try:\n    protobuf.check()\nexcept errors.PolicyError as error:\n    print(error)\n"
    )
    assert "imported as upb before PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python was set" in program(code)


def test_a_users_own_protobuf_wins_with_a_warning(program: Program) -> None:
    code = (
        "import os, warnings\nfrom trialplane.policies import protobuf\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n    protobuf.apply()\n"
        "print(os.environ[protobuf.VARIABLE], len(caught), 'is set by you and kept' in str(caught[0].message))\n"
    )
    assert program(code, env={protobuf.VARIABLE: "upb"}) == "upb 1 True"


def test_the_controller_keeps_the_fast_protobuf() -> None:
    given = {"PATH": "/bin", protobuf.VARIABLE: "python"}
    assert protobuf.controller_env(given) == {"PATH": "/bin"}
    assert protobuf.controller_env({protobuf.VARIABLE: "upb"}) == {protobuf.VARIABLE: "upb"}


def test_workers_are_spawned(program: Program) -> None:
    code = (
        "import multiprocessing\nfrom trialplane.policies import spawn\nspawn.apply()\n"
        "print(multiprocessing.get_start_method(), type(multiprocessing.get_context().Process()).__name__)\n"
    )
    assert program(code) == "spawn SpawnProcess"


def test_a_start_method_that_the_job_chose_is_kept_and_told(program: Program) -> None:
    code = (
        "import multiprocessing\nmultiprocessing.set_start_method('fork')\n"
        "from trialplane import errors\nfrom trialplane.policies import spawn\nspawn.apply()\n"
        "try:\n    spawn.check()\n"
        "except errors.PolicyError as error:\n    print(multiprocessing.get_start_method(), error)\n"
    )
    assert program(code).startswith("fork multiprocessing starts workers by fork,")


def test_what_hinders_a_fork(program: Program) -> None:
    code = (
        "import sys, threading, types\nfrom trialplane.policies import spawn\nprint(spawn.reasons_not_to_fork())\n"
        "sys.modules['torch'] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))\n"
        "print(spawn.reasons_not_to_fork())\n"
        "sys.modules.pop('torch')\nstop = threading.Event()\nthread = threading.Thread(target=stop.wait)\nthread.start()\n"
        "print(spawn.reasons_not_to_fork())\nstop.set()\nthread.join()\n"
    )
    clean, cuda, threads = program(code).splitlines()
    assert clean == "[]"
    assert cuda == "['CUDA is initialized']"
    assert threads.startswith("['1 thread(s) are alive: python")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thread_of_a_native_library_counts_too() -> None:
    """The kernel's list is asked, not Python's: a thread started in C is in no list of threading's."""
    started, stop = threading.Event(), threading.Event()

    def body() -> None:
        started.set()
        stop.wait()

    import _thread

    before = threading.active_count()
    _thread.start_new_thread(body, ())
    started.wait()
    try:
        assert threading.active_count() == before
        assert any("alive" in reason for reason in spawn.reasons_not_to_fork())
    finally:
        stop.set()
