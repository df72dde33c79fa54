"""The site, built once."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.docs import pages


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; the build is strict."""
    folder = tmp_path_factory.mktemp("site")
    # The builder writes beside its configuration, and the checkout stays as it is.
    shutil.copytree(pages.FOLDER, folder / "docs")
    text = (pages.ROOT / "platform" / "mkdocs.yml").read_text()
    (folder / "mkdocs.yml").write_text(text.replace("paths: [.]", f"paths: ['{pages.ROOT / 'platform'}']"))
    built = subprocess.run(
        [Path(sysconfig.get_path("scripts")) / "zensical", "build", "--strict", "-f", "mkdocs.yml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0 and "ERROR" not in built.stdout + built.stderr, built.stdout + built.stderr
    return folder / "site"
