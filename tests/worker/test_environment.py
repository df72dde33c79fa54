"""Trials find what their pod has installed: modules before the image's and before its PYTHONPATH, and programs on PATH.

Not checked: how it comes there (test_install.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.worker.conftest import Bench

from trialplane.wire import env

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


def test_without_packages_the_paths_stay(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(env.PACKAGES)
    with Bench(tmp_path, {"train": TRAIN}) as slot:
        assert slot.outcome("").metrics == {"spam": 1.0, "eggs": 2.0, "found": 0.0}
