"""`datasets` and processes: its map forks by itself, and under the policy spawns while that is clean and else is refused.

CUDA is played by a stand-in named torch: no machine of ours needs a GPU for this. Not checked here: mapping in processes of
its own (tests/training/test_mapping.py).
"""

from __future__ import annotations

import pytest
from tests.policies.conftest import Program

pytestmark = pytest.mark.slow

pytest.importorskip("datasets")

# What a job does: a dataset over a file, and a function that leaves in each row which process it ran in and how that began.
ROWS = """
import os, sys, types
import datasets
datasets.disable_progress_bars()

def tell(row):
    import multiprocess, os
    return {"pid": os.getpid(), "parent": os.getppid(), "how": type(multiprocess.current_process()).__name__}

def try_to(work):
    try:
        made = work()
        return set(made["how"]), set(made["pid"]) != {os.getpid()}
    except errors.PolicyError as error:
        return str(error)

rows = datasets.Dataset.from_dict({"text": list("abcd")})
"""
POLICY = "from trialplane import errors\nfrom trialplane.policies import spawn\nspawn.apply()\n"
# CUDA initialized in this process: what uses it in a fork hears of it as from torch. Any other name of torch's is a class.
CUDA = """
class Torch(types.ModuleType):
    cuda = types.SimpleNamespace(is_initialized=lambda: True)
    pid = os.getpid()

    def compute(self):
        if os.getpid() != self.pid:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    def __getattr__(self, name):
        return type(name, (), {})

sys.modules["torch"] = Torch("torch")
"""
MAIN = "if __name__ == '__main__':\n    "
# As a slot starts its template: without the threads that libraries start at import.
QUIET = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def test_without_the_policy_one_process_means_a_fork(program: Program) -> None:
    """The failure: `num_proc=1` sounds like no process at all, and the work is done by a fork, where CUDA is broken."""
    code = (
        f"{ROWS}{CUDA}made = rows.map(tell, num_proc=1)\n"
        "print(set(made['how']), set(made['parent']) == {os.getpid()}, set(made['pid']) == {os.getpid()})\n"
        "print(set(rows.map(tell)['pid']) == {os.getpid()})\n"
        "def embed(row):\n    sys.modules['torch'].compute()\n    return row\n"
        "rows.map(embed)\n"
        "try:\n    rows.map(embed, num_proc=1)\nexcept RuntimeError as error:\n    print(error)\n"
    )
    forks, stays, failure = program(code).splitlines()
    assert forks == "{'ForkProcess'} True False"
    assert stays == "True"
    assert failure == "Cannot re-initialize CUDA in forked subprocess"


@pytest.mark.parametrize("order", [POLICY + ROWS, ROWS + POLICY], ids=["before the import", "after it"])
def test_with_the_policy_it_is_refused_with_the_cure(program: Program, order: str) -> None:
    code = (
        f"{order}{CUDA}spawn.check()\n"
        "print(try_to(lambda: rows.map(tell, num_proc=1)))\n"
        "print(try_to(lambda: rows.filter(lambda row: True, num_proc=2)))\n"
        "print(try_to(lambda: datasets.DatasetDict(train=rows).map(tell, num_proc=2)))\n"
        "print(try_to(lambda: rows.map(tell)), try_to(lambda: rows.map(tell, num_proc=0)))\n"
    )
    first, second, third, clean = program(code).splitlines()
    assert first.startswith("Dataset.map(num_proc=1) starts processes (datasets does so even for 1)")
    assert "but CUDA is initialized." in first
    assert all(advice in first for advice in ("before the model is on the GPU", "num_proc=None", "mapping.mapped("))
    assert second.startswith("Dataset.filter(num_proc=2)")
    assert third.startswith("Dataset.map(num_proc=2)")
    assert clean == "({'_MainProcess'}, False) ({'_MainProcess'}, False)"


def test_ranks_do_not_start_processes(program: Program) -> None:
    code = f"{POLICY}{ROWS}print(try_to(lambda: rows.map(tell, num_proc=2)))\n"
    said = program(code, env={"RANK": "3", "WORLD_SIZE": "8"})
    assert "this is rank 3 of 8" in said
    assert "num_proc=None" in said


def test_ranks_that_have_met_do_not_either(program: Program) -> None:
    meet = (
        "met = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1,"
        " get_world_size=lambda: 2)\nsys.modules['torch.distributed'] = met\n"
    )
    assert "this is rank 1 of 2" in program(f"{POLICY}{ROWS}{meet}print(try_to(lambda: rows.map(tell, num_proc=1)))\n")


def test_a_fork_that_the_job_chose_is_refused_beside_threads_only(program: Program) -> None:
    code = (
        f"import multiprocess\nmultiprocess.set_start_method('fork')\n{POLICY}{ROWS}"
        "print(try_to(lambda: rows.map(tell, num_proc=2)))\n"
        "import threading\nstop = threading.Event()\nthread = threading.Thread(target=stop.wait)\nthread.start()\n"
        "print(try_to(lambda: rows.map(tell, num_proc=2)))\nstop.set()\n"
    )
    clean, threads = program(code, env=QUIET).splitlines()
    assert clean == "({'ForkProcess'}, True)"
    assert "thread(s) are alive" in threads


@pytest.mark.slow
def test_before_cuda_and_ranks_it_uses_clean_processes(program: Program) -> None:
    """Threads do not matter to these; a trial has some from the start, for computing."""
    code = (
        f"{POLICY}{ROWS}if __name__ == '__main__':\n"
        "    import threading\n    stop = threading.Event()\n    threading.Thread(target=stop.wait).start()\n"
        "    print(try_to(lambda: rows.map(tell, num_proc=2)))\n    stop.set()\n"
    )
    assert program(code) == "({'SpawnProcess'}, True)"


def test_a_process_that_imported_datasets_without_the_policy_does_not_pass(program: Program) -> None:
    code = (
        f"{ROWS}import multiprocessing\nmultiprocessing.set_start_method('spawn')\n"
        "from trialplane import errors\nfrom trialplane.policies import spawn\n"
        "try:\n    spawn.check()\nexcept errors.PolicyError as error:\n    print(error)\n"
    )
    assert program(code).startswith("datasets was imported before the policy was applied")


def test_applying_it_twice_guards_once(program: Program) -> None:
    code = (
        f"{POLICY}spawn.apply()\n{ROWS}spawn.apply()\n"
        "print(hasattr(datasets.Dataset.map.__wrapped__, '_trialplane_guarded'), datasets.Dataset.map.__name__)\n"
        "print(sum(type(finder).__name__ == '_ImportHook' for finder in sys.meta_path))\n"
    )
    assert program(code).splitlines() == ["False map", "1"]
