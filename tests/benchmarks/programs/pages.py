"""Opens the report of a run, and optuna-dashboard on its export, in Chromium; in turn, with a new context for each."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright import sync_api
from tests.benchmarks import studies
from tests.pages import browsers
from tests.ports import free_port

from trialplane.client import folder
from trialplane.ledger import results
from trialplane.pages import content, page
from trialplane.pages.content import Recorded, Surroundings
from trialplane.plan import plan as planning
from trialplane.wire.paths import RunPaths

ACTIONS = {
    "scroll": "() => { document.querySelector('#trials .grid').scrollTop += 5000; }",
    "sort": "() => document.querySelectorAll('#trials .header button')[2].click()",
    "filter": """() => {
        const box = document.querySelector('#trials input');
        box.value = `loss < ${100 + Math.random()}`;
        box.dispatchEvent(new Event('input'));
    }""",
}
# Milliseconds in the page until an action and the frame after it are done.
_TIMED = """async () => {
    const begun = performance.now();
    (%s)();
    await new Promise(requestAnimationFrame);
    await new Promise((done) => setTimeout(done));
    return performance.now() - begun;
}"""


def main() -> None:
    """Answers with milliseconds of each opening and action, and seconds of each writing."""
    arguments = json.loads(sys.argv[1])
    scratch, rounds, patience = Path(arguments["scratch"]), arguments["rounds"], 1000 * arguments["patience"]
    scratch.mkdir(parents=True)
    file = scratch / "report.html"
    taken: dict[str, list[float]] = {name: [] for name in ("content", "chart", *ACTIONS, "theirs", "writing")}
    with _chromium() as browser, _dashboard(Path(arguments["exported"]), scratch) as address:
        for number in range(rounds + 1):
            begun = time.perf_counter()
            _write(RunPaths(Path(arguments["folder"])), file)
            samples = {"writing": time.perf_counter() - begun, **_ours(browser, file)}
            theirs = _theirs(browser, address, patience)
            if theirs is not None:
                samples["theirs"] = theirs
            for name, sample in samples.items() if number else ():  # the first round warms the page cache
                taken[name].append(sample)
    print(json.dumps(taken))  # noqa: T201  this is the answer


def _write(run: RunPaths, file: Path) -> None:
    """Write the report of a run that has no status, as the benchmark's histories have none."""
    job = folder.load_job(run)
    attempts = results.attempts(run.ledger, studies.NAME, job, alive=False)
    recorded = Recorded(job, planning.pending(run.root.name, job, 0.0), attempts, [])
    around = Surroundings("--local", False, None, time.time())
    file.write_text(page.page("benchmark", [content.content(recorded, around)]), encoding="utf-8")


@contextlib.contextmanager
def _chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=browsers.PROGRAM, args=list(browsers.FLAGS))
        yield browser
        browser.close()


@contextlib.contextmanager
def _dashboard(exported: Path, scratch: Path) -> Iterator[str]:
    """Start optuna-dashboard, as its users do; gives its address."""
    port = free_port()
    command = [Path(sys.executable).with_name("optuna-dashboard"), f"sqlite:///{exported}", "--port", str(port), "--quiet"]
    with (scratch / "dashboard.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        address = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 60
            while not _answers(address):
                if time.monotonic() > deadline or server.poll() is not None:
                    raise SystemExit(f"optuna-dashboard does not answer: {log.name}")
                time.sleep(0.1)
            yield address
        finally:
            server.terminate()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _ours(browser: Any, file: Path) -> dict[str, float]:
    with contextlib.closing(browser.new_context(viewport={"width": 1280, "height": 900})) as context:
        shown = context.new_page()
        shown.goto(file.absolute().as_uri())
        shown.wait_for_function("performance.getEntriesByName('chart').length > 0", timeout=browsers.PATIENCE)
        taken = {
            name: float(shown.evaluate("name => performance.getEntriesByName(name)[0].startTime", name))
            for name in ("content", "chart")
        }
        shown.evaluate("document.getElementById('trials').scrollIntoView({behavior: 'instant'})")
        time.sleep(1)  # until the charts on the way are drawn
        return taken | {name: float(shown.evaluate(_TIMED % action)) for name, action in ACTIONS.items()}


def _theirs(browser: Any, address: str, patience: float) -> float | None:
    """Milliseconds until the history of the study has points in optuna-dashboard; None if that takes too long."""
    with contextlib.closing(browser.new_context(viewport={"width": 1280, "height": 900})) as context:
        shown = context.new_page()
        try:
            shown.goto(f"{address}/dashboard/studies/1", wait_until="commit", timeout=patience)
            shown.wait_for_function("document.querySelector('.scatterlayer .trace')", timeout=patience)
        except sync_api.Error:  # too late, or the page has crashed
            return None
        return float(shown.evaluate("performance.now()"))


if __name__ == "__main__":
    main()
