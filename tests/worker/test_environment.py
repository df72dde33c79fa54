"""Trials find what their pod has installed: modules before the image's and before its PYTHONPATH, and programs on PATH.

And they compute with as many threads as they have cores, though their template has none. Not checked: how packages come
there (test_install.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.worker.conftest import Bench

from trialplane.job.program import MetricSource, Program
from trialplane.wire import env
from trialplane.wire.records import SlotConfig
from trialplane.worker import environment

TRAIN = """
import shutil
import eggs, spam
def run(ctx):
    return {"spam": spam.VALUE, "eggs": eggs.VALUE, "found": float(shutil.which("spam-run") is not None)}
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image with a PYTHONPATH of its own, in a pod that has installed another `spam`."""
    image, installed = tmp_path / "image", tmp_path / "packages"
    for file, value in ((image / "spam.py", 1.0), (image / "eggs.py", 2.0), (installed / "spam.py", 3.0)):
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"VALUE = {value}\n")
    program = installed / "bin" / "spam-run"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(image))
    monkeypatch.setenv(env.PACKAGES, str(installed))
    return installed


def test_trials_find_modules_and_programs_of_the_pods_packages_and_the_images_own_path(
    packages: Path, tmp_path: Path
) -> None:
    before = os.environ["PATH"]
    with Bench(tmp_path, {"train": TRAIN}) as slot:
        outcome = slot.outcome("")
        assert outcome.metrics == {"spam": 3.0, "eggs": 2.0, "found": 1.0}, f"{outcome.message}\n{slot.log(outcome)}"
    assert os.environ["PATH"] == before, "it is the template's alone"
    assert sys.path[0] == str(packages), "the slot sends files with them"


@pytest.mark.parametrize(
    "words", [("env", "PYTHONPATH={image}", "python"), ("bash", "-c", "PYTHONPATH={image} python $0 $1")]
)
def test_a_command_that_sets_the_path_of_modules_finds_the_pods_packages(
    packages: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    command = (*(word.format(image=tmp_path / "image") for word in words), "show.py", "--")
    program = Program(command=command, cwd="code", metrics=(MetricSource("stdout"),), names=("spam", "eggs"), arguments=())
    with Bench(
        tmp_path, {"show": "import eggs, spam\nprint(f'spam={spam.VALUE} eggs={eggs.VALUE}')\n"}, program=program
    ) as slot:
        outcome = slot.outcome("")
        assert outcome.metrics == {"spam": 3.0, "eggs": 2.0}, f"{outcome.message}\n{slot.log(outcome)}"


def test_without_packages_the_paths_stay(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.PACKAGES)
    with Bench(tmp_path, {"train": TRAIN}) as slot:
        assert slot.outcome("").metrics == {"spam": 1.0, "eggs": 2.0, "found": 0.0}


THREADS = """
import json, os, pathlib, sys
import numpy as np
def run(ctx):
    started = len(os.listdir("/proc/self/task")) - 1
    import threadpoolctl
    threads = {one["internal_api"]: one["num_threads"] for one in threadpoolctl.threadpool_info()}
    later = os.environ["OPENBLAS_NUM_THREADS"]
    np.ones((300, 300)) @ np.ones((300, 300))
    return {"score": 1.0, "threads": threads["openblas"], "started": started, "later": float(later)}
"""


@pytest.mark.parametrize(("cpus", "asked", "threads"), [(1, "", 1), (2, "", 2), (3, "", 3), (1, "2", 2), (3, "1", 1)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_numpy_has_a_thread_for_each_core_and_the_template_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, asked: str, threads: int, ranks: int
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", asked)
    with Bench(tmp_path, {"train": THREADS}, cpus=cpus * ranks, ranks=ranks) as slot:
        outcome = slot.outcome("")
    assert slot.ready.unclean == ()
    assert outcome.start_method == "fork"
    assert outcome.metrics == {"score": 1.0, "threads": threads, "started": threads - 1, "later": threads}, outcome.message


def test_a_trial_that_is_spawned_has_these_threads_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    code = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n" + THREADS
    with Bench(tmp_path, {"train": code}, cpus=2) as slot:
        outcome = slot.outcome("")
    assert outcome.start_method == "spawn"
    assert (outcome.metrics["threads"], outcome.metrics["later"]) == (2, 2)


@pytest.mark.parametrize(
    ("share", "pod", "own", "options"),
    [
        (1.0, "", {}, None),
        (0.5, "", {}, "per_process_memory_fraction:0.475"),
        (0.5, "", {"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native,per_process_memory_fraction:0.475"),
        (0.5, "", {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "backend:native,per_process_memory_fraction:0.475"),
        (0.5, "", {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.3"}, "per_process_memory_fraction:0.3"),
        (0.3, "0.5", {}, "per_process_memory_fraction:0.475"),  # the share that the pod has got
        (0.3, "1", {}, None),  # its device limits its memory
    ],
)
def test_torch_limits_its_memory_on_a_share_of_a_gpu(
    share: float, pod: str, own: dict[str, str], options: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**own, env.GPU_MEMORY: pod}.items():
        monkeypatch.setenv(name, value)
    variables = environment.template_variables(SlotConfig("a", "", "", "", "", gpus=1, gpu_share=share))
    assert variables.get("PYTORCH_ALLOC_CONF") == options


CAPPED = """
def run(ctx):
    import torch
    torch.cuda.init()
    total = torch.cuda.mem_get_info()[1]
    fits = torch.empty(int(0.3 * total), dtype=torch.uint8, device="cuda")
    try:
        torch.empty(int(0.3 * total), dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return {"score": 1.0}
    return {"score": 0.0}
"""


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="needs a GPU")
def test_a_trial_with_half_a_gpu_gets_no_more_than_half_of_its_memory(tmp_path: Path) -> None:
    with Bench(tmp_path, {"train": CAPPED}, gpus=1, gpu_share=0.5) as slot:
        outcome = slot.outcome("")
        assert outcome.metrics == {"score": 1.0}, f"{outcome.message}\n{slot.log(outcome)}"
