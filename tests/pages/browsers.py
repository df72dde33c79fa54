"""The system's Chromium, without a window, for pages of reports; a test that needs it is skipped where there is none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# Chromium without its windows, which takes half of the processor's time, or a whole one.
_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, _PROGRAMS)), None)
# No GPU is needed: WebGL is drawn by the processor. Tests run as root in containers, where Chromium has no sandbox.
FLAGS = ("--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist")
# Keeps the canvases that were given a WebGL context; asking a canvas for it would make one.
_COUNTING = """
    const get = HTMLCanvasElement.prototype.getContext;
    window.canvases = new Set();
    HTMLCanvasElement.prototype.getContext = function (kind, ...options) {
        const context = get.call(this, kind, ...options);
        if (context && kind.includes('webgl')) window.canvases.add(this);
        return context;
    };
"""
SCREENSHOTS = os.environ.get("SCREENSHOTS")  # the folder of pictures; none for one that pytest removes
WINDOW = {"width": 1280, "height": 900}
PATIENCE = 120_000  # milliseconds, of all waits: for a machine that has much else to do


class Page:
    """A tab of the browser, and the page that is open in it.

    Args:
        page: playwright's.

    Attributes:
        page: the same.
        errors: messages of errors, of scripts and of the content security policy.
        requests: addresses that the page asked for, but its own.
        workers: addresses of the web workers that the page started.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        page.set_default_timeout(PATIENCE)
        page.add_init_script(_COUNTING)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.workers: list[str] = []
        page.on("worker", lambda worker: self.workers.append(worker.url))
        page.on("pageerror", lambda error: self.errors.append(f"{error.message}\n{error.stack}"))
        page.on("console", lambda line: line.type == "error" and self.errors.append(line.text))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))

    def leave(self) -> None:
        """End the page that is open, and what it has opened, kept and said."""
        self.read("() => { try { localStorage.clear(); } catch { /* an empty page has none */ } }")
        for opened in set(self.page.context.pages) - {self.page}:
            opened.close()
        self.page.context.clear_cookies()
        self.page.context.clear_permissions()
        self.page.mouse.move(-1, -1)
        self.page.goto("about:blank")
        self.errors.clear()
        self.requests.clear()
        self.workers.clear()

    def open(self, address: str, viewport: Mapping[str, int], color_scheme: str) -> None:
        """Open an address as a new tab would, and wait until its charts can be drawn."""
        self.leave()
        self.page.emulate_media(media="null", color_scheme=color_scheme)
        self.page.set_viewport_size(viewport)
        self.page.goto(address)
        self.page.wait_for_function("document.documentElement.dataset.ready === 'charts'")
        self.requests.remove(self.page.url)

    def read(self, script: str, *values: Any) -> Any:
        """Return the value of an expression, or of a function of a value, in the page."""
        return self.page.evaluate(script, *values)

    def show(self, section: str) -> None:
        """Scroll to a section, and wait until its charts are drawn."""
        self.read("id => document.getElementById(id).scrollIntoView({behavior: 'instant'})", section)
        is_drawn = "chart => chart.querySelector('.plot-container, .lines')"
        drawn = f"id => [...document.querySelectorAll(`#${{id}} .chart`)].every({is_drawn})"
        self.page.wait_for_function(drawn, arg=section)

    @property
    def contexts(self) -> int:
        """Number of WebGL contexts of the charts that are mounted."""
        return int(self.read("[...window.canvases].filter(canvas => canvas.isConnected).length"))

    @property
    def sections(self) -> list[str]:
        """Ids of the sections."""
        return list(self.read("[...document.querySelectorAll('section')].map(s => s.id)"))

    def text(self, selector: str) -> str:
        """Return the text of the first element that a selector chooses."""
        return str(self.page.locator(selector).first.inner_text())


def pictures(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the pictures, which exists.

    Args:
        factory: of pytest's temporary folders.
    """
    folder = Path(SCREENSHOTS) if SCREENSHOTS else factory.getbasetemp() / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def browser(flags: Sequence[str] = FLAGS) -> Iterator[Any]:
    """Start the browser; gives a function that opens a file, or an address, as a `Page`.

    It opens all pages in the same tab, unless it is given the number of another one, and all files from the same path: the
    browser keeps the compiled plotly.js of an address in a tab, and compiling it takes most of the time of a page.
    """
    if PROGRAM is None:
        pytest.skip("there is no Chromium; apt-get install chromium-headless-shell")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started, tempfile.TemporaryDirectory() as folder:
        chromium = started.chromium.launch(executable_path=PROGRAM, args=list(flags), timeout=PATIENCE)

        tabs: dict[int, Page] = {}

        def opened(
            target: Path | str, viewport: Mapping[str, int] = WINDOW, color_scheme: str = "light", tab: int = 0
        ) -> Page:
            page = tabs[tab] if tab in tabs else tabs.setdefault(tab, Page(chromium.new_page()))
            address = Path(shutil.copy(target, f"{folder}/page.html")).as_uri() if isinstance(target, Path) else target
            page.open(address, viewport, color_scheme)
            return page

        try:
            yield opened
        finally:
            chromium.close()
