"""Pictures of every section of the page, for each kind of run, in both themes, narrow and printed; and their layout.

The pictures are in the folder SCREENSHOTS: look at them after a change of the page. Without this variable they are below
pytest's temporary folder (`--basetemp`), and only a study and a comparison are dark too, as a theme changes no layout. What
a program can see is checked here: nothing is wider than the page, no chart is empty, and no text of a chart is cut off or
lies on another one. Not checked here: what charts show (test_page.py). The pictures of a live page with a failure, and of
the log that it links to, are taken in tests/client/test_study_page.py.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pages import browsers, studies
from tests.pages.browsers import Page

from trialplane.pages import comparison, page
from trialplane.pages.content import RunRecord

Opened = Callable[..., Page]

_DEFECTS = (Path(__file__).parent / "defects.js").read_text()  # a function of a section


def _objectives() -> RunRecord:
    chance = random.Random(0)
    return studies.study(
        80,
        run="objectives",
        objectives=[{"metric": "loss", "direction": "minimize"}, {"metric": "accuracy", "direction": "maximize"}],
        constraints=[{"metric": "memory", "max": 9}],
        metrics=lambda params, value: {
            "loss": value, "accuracy": 1 - value - 0.1 * chance.random(), "memory": params["layers"] * chance.random() * 2
        },
    )  # fmt: skip


def _study() -> RunRecord:
    record = studies.study(300)
    attempts = [dataclasses.replace(row, slot=int(row.node.removeprefix("pod-"))) for row in record.attempts]
    return dataclasses.replace(record, attempts=attempts)


RUNS: dict[str, Callable[[], list[RunRecord]]] = {
    "study": lambda: [_study()],
    "large": lambda: [studies.study(12_000, steps=2)],
    "objectives": lambda: [_objectives()],
    "promotion": lambda: [studies.promoted(64)],
    "population": lambda: [studies.population(12)],
    "training": lambda: [studies.training(8, slow=5)],
    "ranks": lambda: [studies.training(48, slow=17)],
    "collection": lambda: [studies.collection(40)],
    "comparison": lambda: [studies.study(60, seed=seed, run=f"seed-{seed}", sampler=sampler)
                           for seed, sampler in enumerate(("tpe", "tpe", "random", "random"))],
}  # fmt: skip


@pytest.fixture(scope="session", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return browsers.pictures(tmp_path_factory)


def picture(shown: Page, name: str, folder: Path) -> list[str]:
    """Take a picture of each section; return the defects of their layout."""
    defects = []
    if shown.read("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
        defects.append("the page is wider than the window")
    for section in shown.sections:
        shown.show(section)
        shown.page.locator(f"#{section}").screenshot(path=folder / f"{name}-{section}.png")
        defects += shown.read(_DEFECTS, section)
    return defects


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "theme"),
    [
        *((run, "light") for run in RUNS),
        *((run, "dark") for run in (RUNS if browsers.SCREENSHOTS else ("study", "comparison"))),
    ],
)
def test_every_section_is_whole(opened: Opened, folder: Path, run: str, theme: str) -> None:
    shown = opened(*RUNS[run](), color_scheme=theme, viewport={"width": 1280, "height": 1200})  # the tallest section fits
    assert picture(shown, f"{run}-{theme}", folder) == []
    assert shown.errors == []


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"] if browsers.SCREENSHOTS else ["light"])
def test_the_comparison_of_trials_is_whole(chromium: Opened, folder: Path, tmp_path: Path, theme: str) -> None:
    record = _study()
    compared = comparison.trial_comparison([(record, trial) for trial in range(8)], goal=0.4)
    file = tmp_path / "trials.html"
    file.write_text(page.page("trials", [], compared), encoding="utf-8")
    shown = chromium(file, color_scheme=theme, viewport={"width": 1280, "height": 1200})
    assert picture(shown, f"compared-trials-{theme}", folder) == []
    assert shown.errors == []


@pytest.mark.slow
@pytest.mark.parametrize("run", ["study", "population", "training"])
def test_every_section_fits_into_a_narrow_window(opened: Opened, folder: Path, run: str) -> None:
    shown = opened(*RUNS[run](), viewport={"width": 420, "height": 2000})  # high enough for all tiles
    assert picture(shown, f"{run}-narrow", folder) == []


@pytest.mark.slow
def test_a_printed_page_has_every_chart(opened: Opened, folder: Path) -> None:
    shown = opened(studies.study(60), color_scheme="dark")
    shown.page.emulate_media(media="print")
    shown.read("dispatchEvent(new Event('beforeprint'))")
    drawn = "[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('.plot-container, .lines'))"
    shown.page.wait_for_function(drawn)
    text = shown.read("getComputedStyle(document.querySelector('#history .legendtext')).fill")
    assert text == "rgb(0, 0, 0)", "on paper"
    shown.page.screenshot(path=folder / "study-print.png", full_page=True)
    shown.page.pdf(path=folder / "study-print.pdf")
    assert [defect for section in shown.sections for defect in shown.read(_DEFECTS, section)] == []
