"""The command line as a user types it, in this process, with the home, the job and the runs of tests/client."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.client.conftest import closed, double, held, home, namespace, planned, runs, started, target, workplace

from trialplane.cli import main
from trialplane.cli.init_from import smoke
from trialplane.job import arguments, load
from trialplane.job.kinds import Study, program

__all__ = [
    "closed", "double", "held", "home", "namespace", "planned", "platform", "runs", "started", "target", "workplace",
]  # fmt: skip


@pytest.fixture
def platform(workplace, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Types `platform …` in the workplace; `.exit_code`, `.stdout` and `.stderr` are what the user's shell gets."""
    monkeypatch.setattr(smoke, "LONGEST", 900.0)  # a script that imports MLflow takes longer than usual on a busy machine

    def type_(*words: str) -> Result:
        return CliRunner().invoke(_Whole(), list(words))

    return type_


class _Whole:
    """A command for CliRunner, with main's own handling of errors inside."""

    name = "platform"

    def main(self, args, prog_name, **_):
        main.main(args)


BODY = """
from pathlib import Path
Path("trained").touch()
print("epoch 1: val_acc=0.5 train_loss=0.25")
"""


@pytest.fixture
def written(workplace: Path) -> Path:
    """A folder with what the scripts need."""
    folder = workplace / "src"
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "config.yaml").write_text("defaults: [{model: small}]\noptimizer: {lr: 0.1}\nname: x\n")
    for name, layers in (("small", 2), ("large", 4)):
        (folder / "conf" / "model" / f"{name}.yaml").write_text(f"layers: {layers}\n")
    (folder / "own.py").write_text("def helper(): ...\n")
    (folder / "table.csv").write_text("a,b\n")
    return folder


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes files below a folder, and gives the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    return folder


def made(folder: str = "src") -> Study:
    job = load.load_job(Path(folder))
    assert isinstance(job, Study)
    return job


def command_of(job: Study) -> tuple[str, ...]:
    """The words that start a trial; `{flags}` and the like, for all other parameters, are left out."""
    items = job.arguments.items if job.script and job.arguments else ()
    words = job.command or ("python", job.script, *items)
    return tuple(word for word in words if word.strip("{}") not in arguments.FOR_ALL)


def given(job: Study, **more: Any) -> list[str]:
    """The arguments of a trial with the script's defaults."""
    plan = program.from_job(job)
    assert plan is not None
    params = {**job.params, **(job.search.enqueue[0] if job.search.enqueue else {}), **more}
    return arguments.build(plan.arguments, params, {}, plan.booleans, plan.lists)
