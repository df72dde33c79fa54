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
PRINTED: dict[str, list[str]] = {}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Path:
    """One for all pages: making MLflow's tables takes seconds."""
    made = tmp_path_factory.mktemp("home")
    shutil.copy(mlflow_tables, paths.mlflow_db(made))
    return made


@pytest.mark.parametrize("page", FOLLOWED, ids=pages.name)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, home: Path) -> None:
    printed = pages.follow(page, tmp_path, home)
    position = 0
    for expected in PRINTED.get(pages.name(page), []):
        found = re.compile(expected).search(printed, position)
        assert found, f"{expected!r} is not in what follows:\n{printed[position:]}"
        position = found.end()
    submitted = len(re.findall(r"^\+ platform submit .*--local", printed, re.M))
    assert printed.count(" ended") >= submitted - printed.count("--detach")


def test_what_is_expected_is_of_a_page_that_is_followed() -> None:
    assert set(PRINTED) <= {pages.name(page) for page in FOLLOWED}
