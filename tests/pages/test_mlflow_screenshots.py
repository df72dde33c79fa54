"""Pictures of MLflow's own pages for a recorded study: its trials as charts and as a table, its run, and that of a trial.

The pictures are in the folder SCREENSHOTS, as those of test_screenshots.py: look at them after a change of what the exporter
writes. Checked here are the names, the order and the columns that a reader sees first.
"""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.controller.conftest import Server, outcome, request
from tests.exporter.conftest import DONE, Place, place, server
from tests.pages import browsers
from tests.pages.test_screenshots import _folder

from trialplane.cli import ui
from trialplane.job import kinds
from trialplane.wire.states import FailureClass, TrialState

__all__ = ["_folder", "place", "server"]

pytestmark = [pytest.mark.services, pytest.mark.slow]


def record(place: Place) -> None:
    """Record a study of eight trials, of which one is pruned, and one has failed and was repeated."""
    for number in range(9):
        attempt = request(number, **({"trial": 6, "attempt": 2, "retry_of": 6} if number == 7 else {}))
        place.begin(attempt)
        place.report(number, 0, score=number / 20, loss=1.0)
        score = {"score": number / 10, "loss": 1 - number / 10}
        if number == 4:
            place.end(attempt, outcome(number, state=TrialState.PRUNED, metrics=score, step=0))
        elif number == 6:
            failure = {"failure": FailureClass.CRASHED, "message": "killed", "retried": True}
            place.end(attempt, outcome(number, state=TrialState.FAILED, metrics={}, **failure))
        else:
            place.report(number, 1, **score)
            place.end(attempt, outcome(number, metrics=score, step=1))
    place.export(DONE)


def test_a_study_is_read_in_mlflow(place: Place, server: Server, folder: Path, tmp_path: Path) -> None:
    record(place)
    (study,) = place.runs("study")
    best = place.trial(8)

    @contextlib.contextmanager
    def ask(method: str, target: str, body: bytes) -> Iterator[Any]:
        with urllib.request.urlopen(f"{server.uri}{target}") as reply:
            yield reply

    job = kinds.read(place.run.job.read_text())
    trials = ui.mlflow_page(ask, ("toy-1", job))
    experiment = f"/#/experiments/{place.experiment}/runs"
    first = tmp_path / "first.html"
    first.write_text("<html data-ready='charts'>")
    with browsers.browser() as opened:
        page = opened(first, viewport={"width": 1600, "height": 1000}).page

        page.set_default_timeout(60_000)

        def shown(name: str, address: str, selector: str) -> str:
            """Take a picture of a page when it has an element; return the text of the page."""
            page.goto("about:blank")  # otherwise only the fragment of the address changes
            page.goto(f"{server.uri}{address}")
            page.locator(f"{selector} >> visible=true").first.wait_for()
            page.screenshot(path=folder / f"mlflow-{name}.png")
            return str(page.locator("body").inner_text())

        listed = shown("trials", trials, ".js-plotly-plot")
        table = shown("table", trials.replace("compareRunsMode=CHART", "compareRunsMode=TABLE"), ".ag-row")
        whole = shown("study", f"{experiment}/{study.info.run_id}", "text=best_score")
        single = shown("trial", f"{experiment}/{best.info.run_id}", "text=trial_seconds")
    names = ["trial-0008", "trial-0006-attempt-2", "trial-0005", "trial-0000"]
    for text in (listed, table):
        assert sorted(names, key=text.index) == names, "the best first"
    titles = table.splitlines()
    assert titles[titles.index("Run Name") :][:6] == ["Run Name", "Created", "Dataset", "Duration", "Source", "Models"]
    assert "toy-1" in whole and "best_trial" in whole
    assert "trial-0008" in single and "loss" in single
