"""Pages of runs, and the browser that opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pages import browsers, studies

from trialplane.pages import comparison, content, page
from trialplane.pages.content import RunRecord

Opened = Callable[..., browsers.Page]


@pytest.fixture(scope="module")  # no longer: while playwright is open, its thread can run no other event loop
def chromium() -> Iterator[Opened]:
    with browsers.browser() as opened:
        yield opened


@pytest.fixture
def opened(chromium: Opened, tmp_path: Path) -> Callable[..., browsers.Page]:
    """Opens the page of runs, as `platform report` writes it; of several also their comparison."""

    def open_(*runs: RunRecord, **options: Any) -> browsers.Page:
        file = tmp_path / "report.html"
        contents = [content.content(run, studies.AROUND) for run in runs]
        compared = comparison.run_comparison(runs) if len(runs) > 1 else None
        file.write_text(page.page("a title", contents, compared), encoding="utf-8")
        return chromium(file, **options)

    return open_
