"""The pages of platform/docs, on the job file, on scripts, and for those who come from another tool: their files are written
and their commands typed, as they stand there.

Of the other tool's own commands only those run that need nothing installed beside what the tests have. Not checked here:
what of a file an importer can read (tests/importing).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.docs import pages

from trialplane.wire import paths

FOLDER = pages.ROOT / "platform" / "docs"
# Page → what the commands print, in this order, as regular expressions.
PRINTED = {
    "from-determined": ["3/3 ended", r"validation_loss.*optimizer\.damping"],
    "from-hydra": ["epoch 7: loss", "hydra.sweeper", "3/3 ended: 3 complete", r"loss.*model\.lr.*\+trainer\.note"],
    "from-katib": ["metadata.namespace", "3/3 ended", "accuracy.*momentum"],
    "from-optuna": ["Trial 5 finished", "value", "3/3 ended", "loss.*momentum", "3 trials"],
    "from-ray-tune": ["3/3 ended", r"model\.lr"],
    "job-file": ["mine is valid", "3/3 ended", r"loss.*hidden"],
    "scripts": ["its metrics: accuracy", "3/3 ended", "accuracy.*layers", "mine is valid", "3/3 ended"],
    "from-wandb-sweeps": ["WANDB_MODE=offline", "3/3 ended", r"val_loss.*optimizer\.momentum"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Path:
    """One for all pages: making MLflow's tables takes seconds."""
    made = tmp_path_factory.mktemp("home")
    shutil.copy(mlflow_tables, paths.mlflow_db(made))
    return made


def test_every_page_is_followed_and_in_the_readme() -> None:
    there = {file.stem for file in FOLDER.glob("*.md")}
    assert there == set(PRINTED)
    linked = set(re.findall(r"\(platform/docs/([\w-]+)\.md\)", (pages.ROOT / "README.md").read_text()))
    assert linked == there


@pytest.mark.parametrize("page", PRINTED)
def test_a_page_does_what_it_says(page: str, tmp_path: Path, home: Path) -> None:
    printed = pages.follow(FOLDER / f"{page}.md", tmp_path, home)
    position = 0
    for expected in PRINTED[page]:
        found = re.compile(expected).search(printed, position)
        assert found, f"{expected!r} is not in what follows:\n{printed[position:]}"
        position = found.end()
