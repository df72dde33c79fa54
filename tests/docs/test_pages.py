"""The pages of platform/docs, followed: their files are written and their commands typed, as they stand there.

Of the other tools' own commands only those run that need nothing installed beside what the tests have. Not checked here:
what of a file an importer can read (tests/importing).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.docs import pages

from trialplane.wire import paths

FOLLOWED = [page for page in pages.PAGES if any(block.language == "sh" for block in pages.blocks(page))]
# Page → what its commands print, in this order, as regular expressions.
PRINTED = {
    "collections": ["SUCCEEDED", "units_per_second"],
    "determined": ["3/3 ended", r"loss.*optimizer\.damping"],
    "dvc": ["trials run prepare, train, evaluate, and not publish", "3/3 ended", r"error.*train\.lr"],
    "examples": [
        rf"{name}\S* SUCCEEDED"
        for name in (
            *("study", "objectives", "population", "promotion", "earlier-1", "earlier", "longer-1"),
            *(
                "reuse: 2 checkpoints(?s:.*?)longer",
                "changed-1",
                "changed-1",
                "changed",
                "refit-1",
                "refit",
                "sampler",
                "searcher",
                "budget",
                "cost",
                "memory",
            ),
            *("share", "script", "command", "data", "capture", "optuna", "ray", "training", "collection"),
        )
    ],
    "hydra": ["3 jobs", r"objective.*model\.lr", "sweep is valid"],
    "katib": ["2 notes", "3/3 ended", "accuracy.*lr"],
    "laptop": ["20/20 ended", r"loss.*lr.*layers", "loss ", "SUCCEEDED", "first is valid", "3/3 ended"],
    "notebooks": ["lr", "loss"],
    "optuna": ["3/3 ended", "momentum", "exported as the study first"],
    "ray-tune": ["3/3 ended", r"model\.lr"],
    "reports": ["20/20 ended", "20/20 ended", r"run +state.*sampler\.name", "shown +SUCCEEDED", "cannot be told"],
    "scripts": ["3/3 ended", "accuracy.*lr", "its metrics: accuracy", "is valid"],
    "studies": [
        *("loss", "mine is valid", "3/3 ended", "loss.*layers", "when it is resumed", "6/6 ended", "8/8 ended", "4/4 ended"),
        *("1/1 ended", "1/1 ended", r"(3/3|6/6) ended", "95 %.*seeds", "mine is valid"),  # one trial is complete, or more
    ],
    "trainings": ["SUCCEEDED", "loss", "SUCCEEDED"],
    "troubleshooting": ["found were score", "FAILED"],
    "wandb": ["W&B gets nothing", "3/3 ended", r"val_loss.*optimizer\.momentum"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Path:
    """One for all pages: making MLflow's tables takes seconds."""
    made = tmp_path_factory.mktemp("home")
    shutil.copy(mlflow_tables, paths.mlflow_db(made))
    return made


@pytest.mark.timeout(1800)  # a page of many runs, on a machine that has much else to do
@pytest.mark.parametrize("page", FOLLOWED, ids=pages.name)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, home: Path) -> None:
    printed = pages.follow(page, tmp_path, home)
    position = 0
    for expected in PRINTED.get(pages.name(page), []):
        match = re.compile(expected).search(printed, position)
        assert match, f"{expected!r} is not in what follows:\n{printed[position:]}"
        position = match.end()


def test_the_output_of_every_page_is_looked_at() -> None:
    assert set(PRINTED) == {pages.name(page) for page in FOLLOWED} - {"gitops"}  # which writes a file
